# SPDX-License-Identifier: BSD-2-Clause
"""A PHY with its registers on a CSR bus, registers by name as software reads them; a stand-in for the 100G hard block."""
from migen import *

from litex.build.generic_platform import Pins, Subsignal
from litex.build.xilinx import XilinxUSPPlatform
from litex.gen import *
from litex.soc.interconnect import csr_bus, stream

from roce_soc.common import roce_wire_description
from roce_soc.phy.hardblock import STATUS
from sim.harness import Sim, build

LANES = (("clk_p", 1), ("clk_n", 1), ("txp", 4), ("txn", 4), ("rxp", 4), ("rxn", 4))
PINS  = (("modsell", 1), ("resetl", 1), ("modprsl", 1), ("intl", 1), ("lpmode", 1))


class RegisterBench(Module):
    """`dut` and a bank with all of its CSRs; `fields` = {register: {field: (offset, size)}}."""
    def __init__(self, dut):
        self.submodules.dut = dut
        self.bus = csr_bus.Interface(data_width=32, address_width=14)
        csrs     = dut.get_csrs()
        self.submodules.bank = csr_bus.CSRBank(csrs, bus=self.bus, address=0)
        self.fields = {c.name: {f.name: (f.offset, f.size) for f in c.fields.fields} for c in csrs if hasattr(c, "fields")}

    def index(self):
        """{register name: word address}; after finalisation."""
        return {c.name: n for n, c in enumerate(self.bank.simple_csrs)}


class Registers:
    """Register access of a running model: one bus transfer a call; `cycle`: main clocks that cover one of the bus."""
    def __init__(self, sim, index, fields, cycle=1):
        self.sim, self.index, self.fields, self.cycle = sim, index, fields, cycle

    def _address(self, name):
        for candidate in (name, name + "0"):
            if candidate in self.index:
                return self.index[candidate]
        raise KeyError(name)

    def read(self, name):
        self.sim.poke("bus_adr", self._address(name))
        self.sim.poke("bus_re", 1)
        self.sim.step(self.cycle)
        self.sim.poke("bus_re", 0)
        return self.sim.peek("bus_dat_r")

    def write(self, name, value=0, **fields):
        """Writes a value, or a value with some fields replaced."""
        for field, content in fields.items():
            offset, size = self.fields[name][field]
            value = value & ~((2**size - 1) << offset) | content << offset
        self.sim.poke("bus_adr", self._address(name))
        self.sim.poke("bus_dat_w", value)
        self.sim.poke("bus_we", 1)
        self.sim.step(self.cycle)
        self.sim.poke("bus_we", 0)
        self.sim.step(2*self.cycle)    # Until the write has its effect.

    def update(self, name, **fields):
        self.write(name, self.read(name), **fields)

    def get(self, name):
        """All fields of a register as a dict."""
        value = self.read(name)
        return {f: value >> o & (2**s - 1) for f, (o, s) in self.fields[name].items()}

    def flags(self):
        """Names of the latched flags that are set; clears exactly those."""
        value = self.read("latched")
        self.write("latched", value)
        return {f for f, (o, _) in self.fields["latched"].items() if value >> o & 1}


def start(dut, ios, *, name, seed=1, clocks=("sys",), periods=None):
    """Returns (sim, registers) of a PHY under test."""
    bench = RegisterBench(dut)
    so    = build(bench, {"bus": bench.bus, **ios}, name=name, clocks=clocks)
    sim   = Sim(so, seed=seed, clocks=periods)
    return sim, Registers(sim, bench.index(), bench.fields)

# Stand-in for the hard block ------------------------------------------------------------------------

def platform():
    io = [("qsfp", 0, *[Subsignal(name, Pins(width)) for name, width in LANES + PINS])]
    return XilinxUSPPlatform("xcvu9p-flga2104-2L-e", io, toolchain="vivado")


class HardBlock(LiteXModule):
    """The core's user side as ports: frames by streams, status and resets by hand."""
    def __init__(self, platform, pads, init_clk, config):
        self.config = config
        self.clk    = Signal()
        self.comb  += self.clk.eq(ClockSignal("line"))
        names = ("sys_reset", "tx_reset", "rx_reset", "gt_tx_reset", "gt_rx_reset", "loopback", "tx_enable", "send_rfi",
                 "tx_rsfec", "rx_enable", "rx_rsfec")
        self.controls = {name: Signal() for name in names}
        self.resets   = {"usr_tx_reset": Signal(), "usr_rx_reset": Signal(), "powergood": Signal(4)}
        for name, signal in {**self.controls, **self.resets}.items():
            setattr(self, name, signal)
        self.status = {key: Signal(width) for key, (_, width) in STATUS.items()}
        for side in ("tx", "rx"):
            for field, width in (("data", 512), ("keep", 64), ("last", 1), ("valid", 1), ("error", 1), ("ready", 1)):
                setattr(self, f"{side}_{field}", Signal(width))
        self.line_tx = stream.Endpoint(roce_wire_description(512))
        self.line_rx = stream.Endpoint(roce_wire_description(512))
        self.hole    = Signal()
        self.keep    = Signal()
        inside       = Signal()
        self.comb += [
            self.line_tx.valid.eq(self.tx_valid),
            self.line_tx.first.eq(~inside),
            self.line_tx.last.eq(self.tx_last),
            self.line_tx.data.eq(self.tx_data),
            If(self.tx_last, self.line_tx.last_be.eq(self.tx_keep & ~Cat(self.tx_keep[1:], 0))),
            self.line_tx.error.eq(Replicate(self.tx_error, 64)),
            self.tx_ready.eq(self.line_tx.ready),
            self.rx_valid.eq(self.line_rx.valid),
            self.rx_last.eq(self.line_rx.last),
            self.rx_data.eq(self.line_rx.data),
            self.rx_keep.eq(Mux(self.line_rx.last, self.line_rx.last_be | (self.line_rx.last_be - 1), 2**64 - 1)),
            self.rx_error.eq(self.line_rx.error != 0),
            self.line_rx.ready.eq(1),
        ]
        self.sync.line += [
            If(self.tx_valid & self.tx_ready, inside.eq(~self.tx_last)),
            If(inside & self.tx_ready & ~self.tx_valid, self.hole.eq(1)),
            # keep is ones before the end, ones from lane 0 at the end.
            If(self.tx_valid & Mux(self.tx_last, (self.tx_keep & (self.tx_keep + 1))[:64] != 0, self.tx_keep != 2**64 - 1),
                self.keep.eq(1)),
        ]
