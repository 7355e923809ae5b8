# SPDX-License-Identifier: BSD-2-Clause
"""The SoC that boards and simulation share: CPU, UART, timer, 100G port, engine, slow path.

`RoCESoC` is board independent: a target brings clocks, pins and a PHY. `add_roce` puts a port with its
engine into any other LiteX SoC.

Not supported: DDR4 and host memory behind the engine (on-chip RAM only), more than one port.
"""
import hashlib
import inspect
import ipaddress
import os
import pathlib

from migen import *

from litex.gen import *
from litex.soc.integration.common import get_mem_data
from litex.soc.integration.soc import SoCRegion
from litex.soc.integration.soc_core import SoCCore
from litex.soc.interconnect import stream, wishbone

from roce_soc import abi, firmware, tree
from roce_soc.clocks import ClockLink, bound_delay
from roce_soc.common import event_description
from roce_soc.core import RoCECore
from roce_soc.memory.control import MemoryControl
from roce_soc.memory.crossing import MemoryCrossing
from roce_soc.memory.router import MemoryHub
from roce_soc.memory.sram import RoCESRAM
from roce_soc.network.slowpath import RoCESlowPath
from roce_soc.timebase import tick_cycles_of

FIRMWARE_DIRECTORY = str(tree.TREE / "software" / "firmware")

# Addresses, all uncached: the CPU's caches know nothing of what the engine writes.
MEM_MAP = {
    "slowpath":      0x8000_0000,
    "control_ram":   0x8100_0000,
    "roce_doorbell": 0x9000_0000,
    "roce_memory":   0xa000_0000,
}

DEFAULT_MAC = 0x02_00_00_00_00_01
DEFAULT_IP  = "192.168.1.50"

ENGINE_HZ   = 10e6, 500e6       # a board's engine clock: a tick of 256 ns is 3 clocks or more.
RESERVED    = 1 << 20           # bytes kept free behind each address that the SoC's map names but has not used yet.


# Checks -------------------------------------------------------------------------------------------

def check_addresses(mac_address, ip_address):
    """ValueError names what is no unicast MAC address (a number) or no IPv4 address (text)."""
    if not isinstance(mac_address, int) or not 0 < mac_address < 1 << 48 or mac_address >> 40 & 1:
        shown = f"{mac_address:#x}" if isinstance(mac_address, int) else repr(mac_address)
        raise ValueError(f"mac_address must be a number from 1 to {(1 << 48) - 1:#x} without the group bit (1 << 40), not {shown}")
    try:
        ipaddress.IPv4Address(ip_address if isinstance(ip_address, str) else "")
    except ValueError:
        raise ValueError(f"ip_address must be text of four numbers from 0 to 255, as {DEFAULT_IP!r}, not {ip_address!r}") from None


def clock_of(soc, domain):
    """The clock of a domain: that of the SoC's CRG, else a net of its own that follows it."""
    found = getattr(getattr(soc, "crg", None), f"cd_{domain}", None)
    if found is not None:
        return found.clk
    clk = Signal(name=f"{domain}_clk_of_port")
    soc.comb += clk.eq(ClockSignal(domain))
    return clk


def bound_domains(soc, a, b, hz):
    """Vivado: paths between two clock domains take at most a clock of `hz`, once per pair; other toolchains are not told."""
    bounded = soc.__dict__.setdefault("bounded_domains", set())
    if a != b and frozenset((a, b)) not in bounded and hasattr(soc.platform.toolchain, "pre_optimize_commands"):
        bounded.add(frozenset((a, b)))
        bound_delay(soc.platform, clock_of(soc, a), clock_of(soc, b), 1e9/hz)


def crossings_of(adapter):
    """The MemoryCrossings that an adapter is or holds, the engine's first."""
    found = [adapter] if isinstance(adapter, MemoryCrossing) else []
    return found + [crossing for _, part in adapter._submodules for crossing in crossings_of(part)]


def check_crossings(memories, clock_domain):
    """ValueError where the first crossing of a memory does not begin in the engine's clock."""
    for n, memory in enumerate(memories, 1):
        for crossing in crossings_of(memory)[:1]:
            if crossing.near_name != clock_domain:
                raise ValueError(f"near of memory {n} must be the engine's clock_domain, {clock_domain!r},"
                                 f" not {crossing.near_name!r}")


def bound_memories(soc, memories, clocks):
    """Bounds the paths between the clocks of every crossing in the memories; clocks : {domain: Hz} that are known."""
    clocks = dict(clocks)
    for n, memory in enumerate(memories, 1):
        for crossing in crossings_of(memory):
            near, far = crossing.near_name, crossing.far_name
            clocks.setdefault(far, crossing.far_hz)
            unknown = next((domain for domain in (near, far) if clocks.get(domain) is None), None)
            if near != far and unknown and hasattr(soc.platform.toolchain, "pre_optimize_commands"):
                raise ValueError(f"far_hz of memory {n}, the frequency of its clock {unknown!r}, must be given:"
                                 " paths to it are bounded")
            if near != far and not unknown:
                bound_domains(soc, near, far, max(clocks[near], clocks[far]))


def allocate(soc, name, size):
    """An uncached region of the SoC: where its map says, else where LiteX finds room beside all that the map names.

    LiteX checks regions against each other as they come; registers and RAM that come later keep their place.
    """
    origin = soc.mem_map.get(name)
    if origin is None:
        bus, kept = soc.bus, []
        for other, start in soc.mem_map.items():
            length = 4*2**soc.csr.address_width if other == "csr" else RESERVED
            if other not in bus.regions:
                kept.append(f"{other} (kept free)")
                bus.regions[kept[-1]] = SoCRegion(origin=start, size=length, cached=False)
        try:
            origin = bus.alloc_region(name, size, cached=False).origin
        finally:
            for other in kept:
                del bus.regions[other]
    return SoCRegion(origin=origin, size=size, cached=False)


# Engine into a SoC --------------------------------------------------------------------------------

def add_roce(soc, phy, *,
    name            = "roce",
    mac_address     = DEFAULT_MAC,
    ip_address      = DEFAULT_IP,
    memory_size     = 1 << 20,
    memories        = (),
    hub             = None,
    with_engine     = True,
    with_slowpath   = True,
    slow_clk_freq   = None,
    clock_domain    = "sys",
    clk_freq        = None,
    engine_parameters = None,
):
    """Adds a RoCE port to a LiteX SoC: engine, its memory, doorbells, interrupt, slow path.

    Parameters
    ----------
    soc : SoC
        With a CPU or any other bus master; 32-bit Wishbone bus.
    phy : RoCEPHY
        The port; its `source` and `sink` are connected here, its registers are the caller's (`soc.phy = phy`).
    name : str
        Prefix of registers (`<name>_...`) and regions (`<name>_memory`, `<name>_doorbell`). The slow path of the port `roce`
        is `slowpath`, that of another one `<name>_slowpath`.
    mac_address, ip_address : int, str
        Own addresses after reset; software may change the slow path's, QPs carry their own.
    memory_size : int
        Bytes of on-chip memory that the engine reads and writes (target 0), a power of two from 64 KiB.
    memories : list of modules
        Further memories, targets 1, 2, ...: adapters as MemoryHub wants them, each with its `target`, made a part of the
        SoC here, in the engine's clock. One with a `bus` (Wishbone) gets the region `<name>_memory<n>`. One that is or holds
        a MemoryCrossing names its clocks itself, the engine's as `near`; paths between them are bounded to a clock of the
        faster one, so `far_hz` must say the far one's, unless it is the SoC's.
    hub : MemoryHub
        That of another port (`core.hub`), in the same clock: both engines then use its memories; `memory_size` and `memories` are its.
    with_engine : bool
        False: link and slow path alone, every frame takes the slow path.
    with_slowpath : bool
        False: what is not RoCE is dropped.
    slow_clk_freq : number
        Hz for ARP's repetition times, default the SoC's clock; simulation gives a smaller one.
    clock_domain, clk_freq : str, number
        Clock of engine and memory, which is the PHY's `engine_domain`, and its Hz; default the SoC's. Paths between it and
        the SoC's clock are bounded to a clock of the faster one.
    engine_parameters : dict
        Keywords of RoCECore.

    Returns
    -------
    The engine, or None.

    Regions lie where the SoC's `mem_map` says, else where there is room; LiteX checks each against all others.
    """
    check_addresses(mac_address, ip_address)
    if memory_size < 1 << 16 or memory_size & (memory_size - 1):
        raise ValueError(f"memory_size must be a power of two from {1 << 16}, not {memory_size!r}")
    if not (with_engine or with_slowpath):
        raise ValueError("with_engine and with_slowpath are both False: nothing would take the port's frames")
    if hub is not None and memories:
        raise ValueError("memories belong to the port whose hub is given: pass one of the two")
    if memories and not with_engine:
        raise ValueError(f"memories are the engine's: with_engine is False, memories are {len(memories)}")
    if phy.engine_domain != clock_domain:
        raise ValueError(f"clock_domain must be the PHY's, {phy.engine_domain!r}, not {clock_domain!r}")
    parameters = {"clock_domain": clock_domain, **(engine_parameters or {})}
    engine_hz  = clk_freq or soc.clk_freq
    if with_engine and not parameters.get("scalable_ticks") and not ENGINE_HZ[0] <= engine_hz <= ENGINE_HZ[1]:
        raise ValueError(f"the engine's clock must be {ENGINE_HZ[0]:.0f}..{ENGINE_HZ[1]:.0f} Hz, not {engine_hz:.0f}")
    check_crossings(memories, clock_domain)
    bound_domains(soc, "sys", clock_domain, max(soc.clk_freq, engine_hz))
    bound_memories(soc, memories, {"sys": soc.clk_freq, clock_domain: engine_hz})
    adapters = hub.targets if hub else [RoCESRAM(memory_size), *memories]
    core     = add_engine(soc, phy, name, adapters, hub, clk_freq or soc.clk_freq, parameters) if with_engine else None
    if with_slowpath:
        if with_engine:
            link = core.link
        else:
            soc.add_module(name=f"{name}_link", module=(link := ClockLink("sys", clock_domain)))
        slowpath = RoCESlowPath(mac_address, ip_address, slow_clk_freq or soc.clk_freq, link=link)
        slow     = "slowpath" if name == "roce" else f"{name}_slowpath"
        soc.add_module(name=slow, module=slowpath)
        if with_engine:
            soc.comb += [core.slow_rx.connect(slowpath.sink), slowpath.source.connect(core.slow_tx)]
        else:
            soc.comb += [phy.source.connect(slowpath.sink), slowpath.source.connect(phy.sink)]
        add_slots(soc, slowpath, slow)
    elif with_engine:
        soc.comb += core.slow_rx.ready.eq(1)
    return core


def add_engine(soc, phy, name, adapters, hub, clk_freq, parameters):
    """Engine on its memories, doorbell window and interrupt; returns it. `hub` of another port, or None: one is made.

    Memory and doorbells are two slaves, maybe in another clock: both acknowledge a write when it has landed, and a master
    makes one access at a time, so a doorbell acts after every write before it.
    """
    # In simulation the clock's frequency is a name only, and the tick a register.
    if not parameters.get("scalable_ticks"):
        parameters = {"tick_cycles": tick_cycles_of(clk_freq), **parameters}
    core = RoCECore(memories=tuple(adapter.target for adapter in adapters), **parameters)
    soc.add_module(name=name, module=core)
    soc.comb += [phy.source.connect(core.rx), core.tx.connect(phy.sink)]
    # LiteX would put every RAM that a module names on the register bus.
    core.get_memories = list
    core.hub = hub or add_hub(soc, name, core.link, adapters)
    for port in (core.payload_write, core.completion_write, core.payload_read, core.descriptor_read):
        core.hub.add_port(port)
    region = f"{name}_doorbell"
    soc.bus.add_slave(region, core.doorbell_bus, allocate(soc, region, core.doorbells.size))

    # Events of the port, interrupt.
    events = core.link.on_far(PortEvents(core.link.add_level(phy.status.fields.link_up, to_far=True)))
    soc.add_module(name=f"{name}_port_events", module=events)
    soc.comb += events.source.connect(core.port_event)
    if soc.irq.enabled:
        soc.irq.add(name, use_loc_if_exists=True)
    return core


def add_hub(soc, name, link, adapters):
    """The memories of a port behind a hub, each with a bus of its own as a region: <name>_memory, <name>_memory1, ...; returns the hub."""
    hub = link.on_far(MemoryHub(adapters))
    soc.add_module(name=f"{name}_hub", module=hub)
    soc.add_module(name=f"{name}_memory_control", module=MemoryControl(link, hub))
    for n, adapter in enumerate(adapters):
        region = f"{name}_memory{n or ''}"
        soc.add_module(name=region, module=adapter if crossings_of(adapter) else link.on_far(adapter))
        adapter.get_memories = list
        if hasattr(adapter, "bus"):
            soc.bus.add_slave(region, link.add_bus(adapter.bus), allocate(soc, region, adapter.target.size))
    return hub


class PortEvents(LiteXModule):
    """Turns changes of the link into events PORT_ACTIVE and PORT_ERR; only the last state counts.

    Endpoints: source event_description(), out. Latency: 1 clock. Errors: none.
    """
    def __init__(self, link_up):
        self.source = source = stream.Endpoint(event_description())

        # # #

        told = Signal()
        self.comb += [source.first.eq(1), source.last.eq(1)]
        self.sync += [
            If(source.valid & source.ready,
                source.valid.eq(0),
            ).Elif(~source.valid & (link_up != told),
                told.eq(link_up),
                source.valid.eq(1),
                source.type.eq(Mux(link_up, abi.EVENT_PORT_ACTIVE, abi.EVENT_PORT_ERR)),
                source.info.eq(link_up),
            )
        ]


def add_slots(soc, slowpath, name):
    """The CPU's frame slots on the bus: receive slots first, transmit slots behind, both inside one checked region."""
    region = allocate(soc, name, slowpath.rx_bytes + slowpath.tx_bytes)
    soc.bus.add_region(name, region)
    for side, at, length in (("rx", 0, slowpath.rx_bytes), ("tx", slowpath.rx_bytes, slowpath.tx_bytes)):
        # LiteX does not check regions of the linker's: these two lie inside the one above.
        soc.bus.add_slave(f"{name}_{side}", getattr(slowpath.cpu, f"bus_{side}"),
            SoCRegion(origin=region.origin + at, size=length, cached=False, linker=True))


# RoCESoC ------------------------------------------------------------------------------------------

def fingerprint(cls, **parameters):
    """8 hexadecimal digits over what decides where registers and memories lie: gateware sources, the class's file, parameters."""
    def plain(value):
        if isinstance(value, dict):
            return sorted((str(key), plain(item)) for key, item in value.items())
        return value if isinstance(value, (bool, int, float, str, type(None))) else type(value).__name__
    here    = tree.PACKAGE
    sources = [*sorted(p for p in here.rglob("*.py") if "_tree" not in p.parts), pathlib.Path(inspect.getsourcefile(cls))]
    digest  = hashlib.sha256(repr((cls.__name__, plain(parameters))).encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:8]



class RoCESoC(SoCCore):
    """VexRiscv with its firmware, one 100G RoCE port.

    ::

        CPU, UART, timer ─┬─ bus ─┬─ rom, sram, control_ram
        debug bridge ─────┘       ├─ registers (csr)
                                  ├─ slowpath ◄─► engine ◄─► phy
                                  ├─ roce_doorbell ─►│
                                  └─ roce_memory  ◄─►┘

    Parameters
    ----------
    platform, sys_clk_freq : as SoCCore
    phy : RoCEPHY
        Port; its clock domains are its own.
    ms_cycles : int
        Clocks that the firmware takes for a millisecond, 10 or more; default sys_clk_freq/1000. Simulation
        gives fewer so that time-outs of a second pass quickly.
    mac_address, ip_address, memory_size, memories, with_engine, clock_domain, clk_freq, engine_parameters : as add_roce
    kwargs : further keywords of SoCCore (uart_name, ...).

    Its identifier ends with a fingerprint: software tells from it whether a csr.json is of the SoC that answers.

    Firmware: `add_firmware(builder)` before `builder.build()`.
    """
    def __init__(self, platform, sys_clk_freq, phy, *,
        ms_cycles         = None,
        mac_address       = DEFAULT_MAC,
        ip_address        = DEFAULT_IP,
        memory_size       = 1 << 20,
        memories          = (),
        with_engine       = True,
        clock_domain      = "sys",
        clk_freq          = None,
        engine_parameters = None,
        **kwargs):
        ms_cycles = int(sys_clk_freq//1000) if ms_cycles is None else ms_cycles
        if not 10 <= ms_cycles < 1 << 32:
            raise ValueError(f"ms_cycles must be 10..{(1 << 32) - 1}, not {ms_cycles!r}")
        # The same identifier is the same csr.json.
        build = fingerprint(type(self), sys_clk_freq=sys_clk_freq, phy=phy, ms_cycles=ms_cycles, memory_size=memory_size,
            memories={n: repr(memory.target) for n, memory in enumerate(memories, 1)}, with_engine=with_engine,
            clock_domain=clock_domain, engine=engine_parameters, more=kwargs)
        self.mem_map = {**self.mem_map, **MEM_MAP}
        SoCCore.__init__(self, platform, sys_clk_freq, **{**dict(
            cpu_type             = "vexriscv",
            integrated_rom_size  = 0x10000,
            integrated_sram_size = 0x4000,
            timer_uptime         = True,
            ident                = f"roce_soc: RoCE v2 endpoint at 100 Gb/s, {build}",
            ident_version        = False,
        ), **kwargs})
        # The ROM's contents come with the firmware: no BIOS.
        self.integrated_rom_initialized = True

        # Control RAM: status block, requests, event log.
        self.control_ram = wishbone.SRAM(firmware.CONTROL_RAM_BYTES, bus=wishbone.Interface(data_width=32))
        self.bus.add_slave("control_ram", self.control_ram.bus,
            SoCRegion(origin=MEM_MAP["control_ram"], size=firmware.CONTROL_RAM_BYTES, cached=False))
        self.add_constant("ROCE_MS_CYCLES", ms_cycles)
        self.add_constant("ROCE_LOG_ADDR", MEM_MAP["control_ram"] + firmware.LOG_OFFSET)

        # Port and engine.
        self.phy = phy
        add_roce(self, phy,
            mac_address       = mac_address,
            ip_address        = ip_address,
            memory_size       = memory_size,
            memories          = memories,
            with_engine       = with_engine,
            slow_clk_freq     = 1000*ms_cycles,
            clock_domain      = clock_domain,
            clk_freq          = clk_freq,
            engine_parameters = engine_parameters,
        )

    # Firmware -------------------------------------------------------------------------------------

    def add_firmware(self, builder):
        """Has the builder compile the firmware instead of LiteX's BIOS."""
        libraries = ("libc", "libcompiler_rt", "libbase")
        builder.software_packages  = [p for p in builder.software_packages if p[0] in libraries]
        builder.software_libraries = list(libraries)
        builder.add_software_package("firmware", FIRMWARE_DIRECTORY)
        os.makedirs(builder.generated_dir, exist_ok=True)
        write_headers(builder.generated_dir)

    def init_mems(self, **kwargs):
        """Called by the builder once the firmware is compiled."""
        image = os.path.join(self.builder.software_dir, "firmware", "firmware.bin")
        if os.path.exists(image):
            self.init_rom("rom", contents=get_mem_data(image, data_width=self.bus.data_width, endianness=self.cpu.endianness))


def write_headers(directory):
    """Writes roce_abi.h and roce.h for the firmware."""
    for name, text in (("roce_abi.h", abi.c_header()), ("roce.h", firmware.c_header())):
        with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
            file.write(text)
