# SPDX-License-Identifier: BSD-2-Clause
"""roce_soc/soc: where add_roce puts its regions in anybody's SoC, a second port too; what it refuses."""
import logging
import re

import pytest
from litex.build.sim import SimPlatform
from litex.build.generic_platform import Pins
from litex.gen import *
from litex.soc.cores.cpu import CPUNone
from litex.soc.integration.soc import SoCError, SoCRegion
from litex.soc.integration.soc_core import SoCCore
from litex.soc.interconnect import wishbone
from litex_boards.platforms.xilinx_vcu118 import Platform
from migen import *

from roce_soc import abi
from roce_soc.memory.crossing import MemoryCrossing
from roce_soc.memory.sram import RoCESRAM
from roce_soc.phy.model import RoCEPHYModel
from roce_soc.soc import add_roce, allocate

SMALL = dict(n_qps=16, n_mrs=16, n_cqs=16, n_chunks=64)


class Elsewhere(CPUNone):
    """Map of a CPU whose RAM lies at 0x8000_0000 and whose devices begin at the registers."""
    io_regions = {0x1200_0000: 0x7000_0000}

    @property
    def mem_map(self):
        return {"rom": 0x1000_0000, "sram": 0x1100_0000, "csr": 0x1200_0000, "main_ram": 0x8000_0000}


def make(ports, cpu="vexriscv", **more):
    """A SoC with ports of these names and its register region, which LiteX adds last; LiteX checks each as it comes."""
    platform = SimPlatform("SIM", io=[("sys_clk", 0, Pins(1)), ("sys_rst", 0, Pins(1))])
    soc = SoCCore(platform, 250_000_000, cpu_type="vexriscv" if cpu == "vexriscv" else None, with_uart=False, with_timer=False,
        **{**dict(integrated_rom_size=0x1000, integrated_sram_size=0x1000), **more})
    for name in ports:
        phy = RoCEPHYModel()
        soc.add_module(name="phy" if name == "roce" else f"{name}_phy", module=phy)
        add_roce(soc, phy, name=name, memory_size=1 << 16, engine_parameters=dict(scalable_ticks=True, **SMALL))
    soc.bus.add_region("csr", SoCRegion(origin=soc.mem_map["csr"], size=4*2**soc.csr.address_width, cached=False))
    return soc


def spans(soc):
    """{region: (first, last)} of everything that answers, the slots' halves left out."""
    return {n: (r.origin, r.origin + r.size_pow2 - 1) for n, r in soc.bus.regions.items() if not n.endswith(("_rx", "_tx"))}


@pytest.mark.parametrize("cpu", ["vexriscv", "elsewhere"])
@pytest.mark.parametrize("ports", [("roce",), ("nic",), ("nic", "nic2")])
def test_no_two_answer(ports, cpu, monkeypatch):
    """Whatever the port's name, the CPU's map and the number of ports: each region by itself, in the CPU's uncached space."""
    if cpu == "elsewhere":
        monkeypatch.setattr(CPUNone, "io_regions", Elsewhere.io_regions)
        monkeypatch.setattr(CPUNone, "mem_map", Elsewhere.mem_map.fget(None))
    soc  = make(ports, cpu=cpu, **(dict(integrated_main_ram_size=0x10000) if cpu == "elsewhere" else {}))
    seen = spans(soc)
    slow = {"roce": "slowpath"}
    for port in ports:
        assert {f"{port}_memory", f"{port}_doorbell", slow.get(port, f"{port}_slowpath")} <= set(seen)
    ordered = sorted(seen.items(), key=lambda item: item[1])
    for (a, (_, end)), (b, (start, _)) in zip(ordered, ordered[1:]):
        assert end < start, f"{a} and {b} overlap"
    for first, length in soc.cpu.io_regions.items():
        for port in ports:
            assert first <= seen[f"{port}_memory"][0] and seen[f"{port}_memory"][1] < first + length
    for port in ports:
        # The slots' halves lie inside the checked region.
        name = slow.get(port, f"{port}_slowpath")
        whole, rx, tx = (soc.bus.regions[n] for n in (name, f"{name}_rx", f"{name}_tx"))
        assert whole.origin == rx.origin and rx.origin + rx.size == tx.origin and tx.origin + tx.size <= whole.origin + whole.size


def test_further_memories_and_a_shared_hub():
    """Each memory with a bus has its region, software is told of all; a second port on the same hub has no memories of its own."""
    platform = SimPlatform("SIM", io=[("sys_clk", 0, Pins(1)), ("sys_rst", 0, Pins(1))])
    soc = SoCCore(platform, 250_000_000, cpu_type="vexriscv", with_uart=False, with_timer=False, integrated_rom_size=0x1000,
        integrated_sram_size=0x1000)
    small  = dict(memory_size=1 << 16, engine_parameters=dict(scalable_ticks=True, **SMALL))
    soc.phy, soc.phy2 = RoCEPHYModel(), RoCEPHYModel()
    first  = add_roce(soc, soc.phy, memories=[RoCESRAM(1 << 15)], **small)
    second = add_roce(soc, soc.phy2, name="nic", hub=first.hub, with_slowpath=False, **small)
    regions = spans(soc)
    assert {"roce_memory", "roce_memory1", "roce_doorbell", "nic_doorbell"} <= set(regions) and "nic_memory" not in regions
    for core in (first, second):
        words = {name: getattr(core.capability, name).status.reset.value for name in
                 ("memories", "memory0", "memory0_pages", "memory1", "memory1_pages")}
        assert list(words.values()) == [2, abi.MEMORY_SRAM, 16, abi.MEMORY_SRAM, 8]
    assert len(first.hub.writes) == 4 and len(first.hub.targets) == 2
    with pytest.raises(ValueError, match="pass one of the two"):
        add_roce(soc, RoCEPHYModel(), name="third", hub=first.hub, memories=[RoCESRAM(1 << 15)], **small)
    soc.finalize()


class Holder(LiteXModule):
    """An adapter that holds a crossing."""
    def __init__(self, crossing):
        self.inside = crossing
        self.target, self.write, self.get_read = crossing.target, crossing.write, crossing.get_read


def crossed(near, far, **how):
    return MemoryCrossing(ClockDomainsRenamer(far)(RoCESRAM(1 << 15)), near, far, **how)


def make_bounded(memories, clock_domain="sys", clk_freq=None):
    """{(net, net): ns} that a Vivado SoC with these memories bounds, domain clocks as `<domain>_clk`."""
    soc = SoCCore(Platform(), 125_000_000, cpu_type="vexriscv", with_uart=False, with_timer=False, integrated_rom_size=0x1000)
    phy = soc.phy = RoCEPHYModel()
    phy.engine_domain = clock_domain
    add_roce(soc, phy, memories=memories, memory_size=1 << 16, engine_parameters=dict(SMALL), clock_domain=clock_domain,
        clk_freq=clk_freq)
    bounds = [(net["a"].backtrace[-1][0], net["b"].backtrace[-1][0], float(re.search(r"-datapath_only (\S+)", text)[1]))
        for text, net in soc.platform.toolchain.pre_optimize_commands]
    return {(a.replace("_of_port", ""), b.replace("_of_port", "")): ns for a, b, ns in bounds}, len(bounds)


def test_every_crossing_of_a_memory_is_bounded():
    """Both ways, to a clock of the faster side, once a pair: crossings that are an adapter, held by one, behind each other."""
    inner    = MemoryCrossing(crossed("mem", "slow", far_hz=50e6), "roce", "mem", far_hz=400e6)
    memories = [inner, Holder(crossed("roce", "mem", far_hz=400e6)), crossed("roce", "sys")]
    bounds, number = make_bounded(memories, "roce", 200e6)
    wanted = {("sys_clk", "roce_clk"): 5.0, ("roce_clk", "mem_clk"): 2.5, ("mem_clk", "slow_clk"): 2.5}
    assert bounds == {**wanted, **{(b, a): ns for (a, b), ns in wanted.items()}} and number == len(bounds)
    assert make_bounded([RoCESRAM(1 << 15), crossed("sys", "sys")]) == ({}, 0)


def test_a_crossing_keeps_its_clocks():
    """A memory in `sys` behind an engine in a clock of its own stays there."""
    memory = crossed("roce", "sys")
    make_bounded([memory], "roce", 200e6)
    assert {"sys", "roce"} <= memory.get_fragment().sync.keys()


@pytest.mark.parametrize("memory, text", [
    (lambda: crossed("roce", "mem"), "far_hz of memory 2, the frequency of its clock 'mem', must be given"),
    (lambda: Holder(crossed("roce", "mem")), "far_hz of memory 2, the frequency of its clock 'mem', must be given"),
    (lambda: crossed("sys", "mem", far_hz=1e8), "near of memory 2 must be the engine's clock_domain, 'roce', not 'sys'")])
def test_a_crossing_must_say_its_clocks(memory, text):
    with pytest.raises(ValueError, match=text):
        make_bounded([RoCESRAM(1 << 15), memory()], "roce", 200e6)


def test_a_region_of_others_is_seen():
    """A slave of the SoC's own at 0x8000_0000: the port goes elsewhere; one that comes later onto the port is refused."""
    platform = SimPlatform("SIM", io=[("sys_clk", 0, Pins(1))])
    logging.disable(logging.CRITICAL)
    soc = SoCCore(platform, 250_000_000, cpu_type="vexriscv", integrated_rom_size=0x1000, with_uart=False, with_timer=False)
    soc.bus.add_slave("mine", wishbone.Interface(), SoCRegion(origin=0x8000_0000, size=0x1000_0000, cached=False))
    region = allocate(soc, "nic_memory", 1 << 20)
    assert region.origin >= 0x9000_0000
    soc.bus.add_slave("nic_memory", wishbone.Interface(), region)
    with pytest.raises(SoCError):
        soc.bus.add_slave("late", wishbone.Interface(), SoCRegion(origin=region.origin + 0x1000, size=0x1000, cached=False))


def test_a_soc_says_which_build_it_is():
    """Whatever may move a register changes the identifier; the same SoC made again has the same."""
    from sim.soc import SimSoC
    from targets.vcu118 import VCU118SoC

    def identifier(cls, **how):
        return cls(with_engine=False, **how).constants["CONFIG_IDENTIFIER"]
    different = [identifier(SimSoC), identifier(SimSoC, integrated_sram_size=0x2000), identifier(SimSoC, ms_cycles=50), identifier(VCU118SoC)]
    assert len(set(different)) == len(different) and identifier(SimSoC) == different[0]


@pytest.mark.parametrize("arguments, text", [
    (dict(ip_address="10.0.0.999"), "0 to 255.*not '10.0.0.999'"), (dict(ip_address="10.0.0"), "not '10.0.0'"),
    (dict(ip_address=0x0a000001), "not 167772161"), (dict(mac_address="02:00:00:00:00:01"), "number.*not '02:00:00:00:00:01'"),
    (dict(mac_address=0), "not 0x0"), (dict(mac_address=1 << 48), "0xffffffffffff.*not 0x1000000000000"),
    (dict(mac_address=0x0100_0000_0001), "group bit.*not 0x10000000001"), (dict(clk_freq=1000), "10000000..500000000 Hz, not 1000"),
    (dict(clk_freq=1e9), "not 1000000000"), (dict(memory_size=100), "power of two.*not 100"),
    (dict(memories=[None], with_engine=False), "with_engine is False, memories are 1")])
def test_refused(arguments, text):
    soc = SoCCore(SimPlatform("SIM", io=[("sys_clk", 0, Pins(1))]), 250_000_000, cpu_type="vexriscv", integrated_rom_size=0x1000,
        with_uart=False, with_timer=False)
    with pytest.raises(ValueError, match=text):
        add_roce(soc, RoCEPHYModel(), **{**dict(memory_size=1 << 16, engine_parameters=dict(SMALL)), **arguments})
