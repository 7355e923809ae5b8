# SPDX-License-Identifier: BSD-2-Clause
"""Compiled engines: RoCECore in Verilator with modelled memory, driven from Python with whole frames.

    bench  = Bench(seed=1)                     # one engine
    engine = bench.engines[0]
    engine.send(frame); bench.step(100); engine.frames()

    bench  = Bench(engines=2)                  # two engines, wires crossed, each wire at 100 Gb/s
    a, b   = bench.engines
    qa, qb = connect(a, b)

The verbs layer that drives a board drives them too: an Engine is a transport (software/control/transport.py).

ROCE_MEMORY names the memory of every bench that asks for none of its own: a key of MEMORIES. ROCE_ABSENT=1 has a quarter of
all accesses miss their page (ABSENT), as if page lists lay in memory, but where a bench asks for IDEAL to count clocks.

Clocks: registers, engine and MAC run at one clock, or at three with all crossings and the PHY's frame FIFO between them;
Bench(clocks=...) or the environment's ROCE_CLOCKS choose. Time is counted in clocks of the engine.
"""
import functools
import json
import os
import random
from collections.abc import Callable, Mapping
from typing import Any

from migen import *

from litex.gen import *
from litex.soc.interconnect import csr_bus, stream

from roce_soc import abi
from roce_soc.common import roce_wire_description
from roce_soc.core import RoCECore
from roce_soc.memory.port import MemoryReadPort, MemoryWritePort
from roce_soc.memory.router import MemoryHub
from sim.harness import Sim, build_cached
from sim.harness.emit import Port
from sim.harness.memory import IDEAL, SLOW, MemoryPort, Option
from sim.wire import FIELDS, WIRE_BYTES, Mac, Wire
from software.control.monitor import Monitor
from software.control.roce import QP, RoCE
from software.control.transport import Bus

SOURCES      = ("sim/engine.py", "sim/wire.py")  # what compiled engines depend on beside roce_soc/.
MEMORY_PORTS = ("pw", "pr", "dr", "cw")          # payload write and read, descriptor read, completion write.
RING_MEMORY  = (0x0100_0000, 0x0300_0000)        # rings of the programs; buffers lie elsewhere.
MEMORIES     = {"ideal": IDEAL, **{f"{n}": dict(latency=n, ahead=4) for n in (1, 20, 200, 1000)},
    "random": dict(latency=(1, 1000), early=.5), "random+stalls": SLOW}
ABSENT = (64, 2, 2000)        # of 256 accesses so many miss; a page comes so many clocks later.
# Periods in ps of engine, registers, MAC; the first counts.
CLOCKS = {
    "equal":   {"sys": 4000},
    "250/100": {"roce": 4000, "sys": 10_000, "mac": 4000},
    "250/322": {"roce": 4000, "sys": 10_000, "mac": 3103},
}


def memory_named(name: str) -> dict[str, Option]:
    """Options of a memory of MEMORIES."""
    if name not in MEMORIES:
        raise ValueError(f"ROCE_MEMORY must be one of {', '.join(MEMORIES)}, not {name!r}")
    return MEMORIES[name]


# Gateware -----------------------------------------------------------------------------------------

class OuterMemory:
    """Adapter of a memory that the bench models: its ports lead out."""
    def __init__(self) -> None:
        self.write = MemoryWritePort()
        self.reads: list[MemoryReadPort] = []

    def get_read(self) -> MemoryReadPort:
        """A further read port."""
        self.reads.append(MemoryReadPort())
        return self.reads[-1]

    def ios(self, prefix: str) -> dict[str, stream.Endpoint]:
        """Ports for the harness: <prefix>w, <prefix>r0, ..."""
        ports: dict[str, MemoryWritePort | MemoryReadPort] = {f"{prefix}w": self.write}
        ports.update({f"{prefix}r{i}": port for i, port in enumerate(self.reads)})
        return {f"{name}_{stream}": endpoint for name, port in ports.items() for stream, endpoint in port.streams().items()}


def memory_ports(core: RoCECore) -> tuple[MemoryWritePort | MemoryReadPort, ...]:
    """The engine's memory ports in the order of MEMORY_PORTS."""
    return core.payload_write, core.payload_read, core.descriptor_read, core.completion_write


class Engines(LiteXModule):
    """One engine with its wires outside, or two with their wires crossed; registers on one CSR bus each.

    targets : 0: the engine's four memory ports lead out; else a MemoryHub with so many memories lies between.
    watchdog : clocks of the hub's watchdogs.
    separate : clocks sys, roce, mac; else sys.
    """
    def __init__(self, engines: int, parameters: Mapping[str, Any], targets: int = 0, separate: bool = False,
                 watchdog: int = 4000) -> None:
        domain     = "roce" if separate else "sys"
        self.cores = [RoCECore(scalable_ticks=True, clock_domain=domain, **parameters) for _ in range(engines)]
        self.ends  = [Mac(core) for core in self.cores] if separate else self.cores
        self.memories = [[OuterMemory() for _ in range(targets)] for _ in self.cores]
        self.banks = [csr_bus.CSRBank(core.get_csrs(), bus=csr_bus.Interface(data_width=32, address_width=14)) for core in self.cores]
        for i, core in enumerate(self.cores):
            setattr(self.submodules, f"core{i}", core)
            setattr(self.submodules, f"bank{i}", self.banks[i])
            if separate:
                setattr(self.submodules, f"mac{i}", self.ends[i])
            if targets:
                hub = core.link.on_far(MemoryHub(self.memories[i], watchdog))
                setattr(self.submodules, f"hub{i}", hub)
                for port in memory_ports(core):
                    hub.add_port(port)
        if engines == 2:
            a, b = self.ends
            rate, clock = (WIRE_BYTES*3103//4000, "mac") if separate else (WIRE_BYTES, "sys")
            self.wire_ab, self.wire_ba = [ClockDomainsRenamer(clock)(Wire(x.tx, y.rx, rate)) for x, y in ((a, b), (b, a))]

    def ios(self) -> dict[str, Port]:
        """Ports for the harness, prefixed e0_, e1_."""
        ios = {}
        for i, core in enumerate(self.cores):
            p, end = f"e{i}_", self.ends[i]
            if len(self.cores) == 1:
                ios.update({f"{p}rx": end.rx, f"{p}tx": end.tx})
            else:
                # What passes the wire, for the bench to look at; nothing to drive.
                seen = stream.Endpoint(roce_wire_description())
                self.comb += [[getattr(seen, n).eq(getattr(end.tx, n)) for n in FIELDS], seen.valid.eq(end.tx.valid & end.tx.ready)]
                ios[f"{p}seen"] = seen
            ios.update({f"{p}slow_rx": core.slow_rx, f"{p}slow_tx": core.slow_tx, f"{p}ready": core.ready, f"{p}irq": core.ev.irq,
                f"{p}chunks_free": core.buffer.chunks_free})
            for n, memory in enumerate(self.memories[i]):
                ios.update(memory.ios(f"{p}t{n}"))
            if not self.memories[i]:
                ios.update({f"{p}{prefix}_{name}": endpoint for prefix, port in zip(MEMORY_PORTS, memory_ports(core))
                    for name, endpoint in port.streams().items()})
            ios.update({f"{p}csr_{n}": getattr(self.banks[i].bus, n) for n in ("adr", "we", "re", "dat_w", "dat_r")})
            ios.update({f"{p}bell_{n}": getattr(core.doorbell_bus, n) for n in ("adr", "dat_w", "sel", "cyc", "stb", "we", "ack")})
        return ios


@functools.lru_cache(maxsize=None)
def build_engines(engines: int = 1, parameters: tuple[tuple[str, Any], ...] = (), targets: int = 0,
                  separate: bool = False) -> tuple[str, dict[str, int]]:
    """(path of the compiled library, {register: word address}); `parameters` of RoCECore as a sorted tuple of pairs."""
    names = {}

    def make():
        top, at = Engines(engines, dict(parameters), targets, separate), 0
        for csr in top.cores[0].get_csrs():
            names[csr.name] = at
            at += -(-csr.size//32)
        return top, top.ios()

    name   = f"engine{engines}" + (f"_targets{targets}" if targets else "")
    clocks = ("sys", "roce", "mac") if separate else ("sys",)
    so     = build_cached(make, key=f"engines{engines} {parameters!r} {targets}", name=name, clocks=clocks, sources=SOURCES)
    # The names lie beside the library; whoever finds them missing makes them.
    note = os.path.join(os.path.dirname(so), "registers.json")
    if not os.path.exists(note):
        if not names:
            make()
        with open(f"{note}.{os.getpid()}", "w", encoding="utf-8") as file:
            json.dump(names, file)
        os.replace(f"{note}.{os.getpid()}", note)
    with open(note, encoding="utf-8") as file:
        return so, json.load(file)


# Bench --------------------------------------------------------------------------------------------

class Bench:
    """Running engines.

    Parameters
    ----------
    engines : int
        1: the bench is the wire; 2: wires crossed.
    seed : int
        Decides RAM contents, stalls, latencies.
    gap, stall : float
        Probability of idle clocks on the receive wire and of stalls on the transmit wire (one engine).
    memory : dict
        Options of sim.harness.Memory for all ports of an engine; default what ROCE_MEMORY names, or ideal: a beat a clock,
        4 clocks. Who measures clocks gives IDEAL.
    ports : dict
        {port of MEMORY_PORTS: options of its own}.
    targets : int
        Memories behind a hub with watchdogs instead of the bare ports; their ports are named t<n>w, t<n>r0, t<n>r1.
    tick_cycles : int
        Clocks of a tick of the time base.
    clocks : str
        Key of CLOCKS; default $ROCE_CLOCKS or "equal". Phases by seed.
    parameters : keywords of RoCECore.
    """
    def __init__(self, engines: int = 1, seed: int = 1, *, gap: float = 0.0, stall: float = 0.0,
                 memory: Mapping[str, Option] | None = None, ports: Mapping[str, Mapping[str, Option]] | None = None,
                 targets: int = 0, tick_cycles: int | None = None, clocks: str | None = None, **parameters: Any) -> None:
        self.clocks   = clocks or os.environ.get("ROCE_CLOCKS") or "equal"
        if self.clocks not in CLOCKS:
            raise ValueError(f"clocks must be one of {', '.join(CLOCKS)}, not {self.clocks!r}")
        if os.environ.get("ROCE_ABSENT") == "1" and memory is not IDEAL:
            parameters = {"absent": ABSENT, **parameters}
        so, registers = build_engines(engines, tuple(sorted(parameters.items())), targets, self.clocks != "equal")
        memory        = memory_named(os.environ.get("ROCE_MEMORY", "ideal")) if memory is None else memory
        rng           = random.Random(f"phases {seed}")
        self.sim      = Sim(so, seed=seed, clocks={n: (p, rng.randrange(p) if self.clocks != "equal" else 0)
            for n, p in CLOCKS[self.clocks].items()})
        self.engines  = [Engine(self.sim, i, registers, wired=engines == 1, gap=gap, stall=stall, memory=memory, ports=ports, targets=targets)
            for i in range(engines)]
        slowest: list[Any] = [options.get("latency", 4) for options in (memory, *(ports or {}).values())]
        page = parameters["absent"][2] if parameters.get("absent") else 0
        # Engine clocks that slow memory and absent pages may add to a wait.
        self.extra: int = 4*page + 10*max(0, max(n[1] if isinstance(n, tuple) else n for n in slowest) - 4)
        mac = CLOCKS[self.clocks].get("mac", 4000)
        if engines == 1 and mac < 4000:
            # Faster than the engine reads, were it not paced as a wire is.
            self.engines[0].rx.pace(WIRE_BYTES*mac/4000)
        self.sim.reset()
        for engine in self.engines:
            self.sim.wait(f"{engine.prefix}ready", 1, max_cycles=20000)
            engine.open(tick_cycles)

    def step(self, cycles: int = 1) -> None:
        """Runs the engine's clock for so many cycles."""
        self.sim.step(cycles)

    def work(self, cycles: int) -> None:
        """Runs the clock for as long as what takes `cycles` with ideal memory may take with the one that is there."""
        self.sim.step(cycles + self.extra)

    def reset(self, *clocks: str, cycles: int = 8) -> None:
        """Resets these clocks alone, in this order, and lets them go in the same; a reset engine's memory ports forget."""
        for on in (True, False):
            for clock in clocks:
                self.sim.hold(clock, on)
                self.sim.step(cycles)

    def run(self, condition: Callable[[], object], max_cycles: int = 200_000, every: int = 50) -> None:
        """Runs until `condition()` holds, which is asked every `every` engine clocks."""
        self.sim.run(condition, max_cycles=max_cycles + 10*self.extra, every=every)


class Engine(Bus):
    """One engine of a Bench: transport for software/control/roce.py, and its end of the wire."""
    def __init__(self, sim: Sim, index: int, registers: Mapping[str, int], *, wired: bool, gap: float, stall: float,
                 memory: Mapping[str, Option] | None = None, ports: Mapping[str, Mapping[str, Option]] | None = None,
                 targets: int = 0) -> None:
        self.sim, self.registers = sim, registers
        self.prefix = p = f"e{index}_"
        wire = "mac" if "mac" in sim.clocks else None
        if wired:
            self.rx = sim.source(f"{p}rx", clock=wire, gap=gap).stamp_main()
            self.tx = sim.sink(f"{p}tx", clock=wire, stall=stall).stamp_main()
        else:
            self.tx = sim.sink(f"{p}seen", clock=wire).stamp_main()
        self.slow_in, self.slow_out = sim.source(f"{p}slow_tx"), sim.sink(f"{p}slow_rx")
        names = [f"t{n}{port}" for n in range(targets) for port in ("w", "r0", "r1")] or MEMORY_PORTS
        self.memory = sim.memory(*[p + port for port in names], fill=0, **(memory or IDEAL))
        for name, options in (ports or {}).items():
            self.port(name).set(**options)

    def open(self, tick_cycles: int | None) -> None:
        """After reset: the time base (engine clocks a tick, None: as it is), the verbs layer."""
        if tick_cycles:
            self.write_register("time_tick_cycles", tick_cycles)
        self.roce = RoCE(self, mailbox="mailbox_host", ring_memory=RING_MEMORY, qps=range(1, 256), mrs=range(1, 1024), cqs=range(1, 200))

    def port(self, name: str) -> MemoryPort:
        """Model of one memory port: set its options, read its counters."""
        return next(port for (prefix, _), port in self.memory.ports.items() if prefix == self.prefix + name)

    # Transport ------------------------------------------------------------------------------------

    def _csr(self, name: str, value: int | None = None) -> int:
        sim, p = self.sim, self.prefix
        sim.poke(p + "csr_adr", self.registers[name])
        sim.poke(p + "csr_dat_w", value or 0)
        strobe = p + ("csr_we" if value is not None else "csr_re")
        sim.poke(strobe, 1)
        sim.step(1, "sys")
        sim.poke(strobe, 0)
        answer = sim.peek(p + "csr_dat_r")
        sim.step(1, "sys")
        return answer

    def read_register(self, name: str) -> int:
        return self._csr(name)

    def write_register(self, name: str, value: int) -> None:
        self._csr(name, value)

    def read_memory(self, addr: int, length: int) -> bytes:
        return self.memory.read(addr, length)

    def write_memory(self, addr: int, data: bytes) -> None:
        self.memory.write(addr, data)

    def doorbell(self, page: int, kind: int, queue: int, index: int) -> None:
        sim, p = self.sim, self.prefix
        self.rang = sim.cycles()        # clock of the last write into the window.
        for name, value in (("adr", (page*abi.DOORBELL_PAGE_BYTES + kind)//4), ("dat_w", queue << 16 | index), ("sel", 15), ("we", 1), ("cyc", 1), ("stb", 1)):
            sim.poke(f"{p}bell_{name}", value)
        for _ in range(2000):
            sim.step(1, "sys")
            if sim.peek(p + "bell_ack"):
                break
        else:
            raise RuntimeError("doorbell not taken in 2000 clocks")
        sim.poke(p + "bell_cyc", 0)
        sim.poke(p + "bell_stb", 0)
        sim.step(1, "sys")

    def idle(self) -> None:
        self.sim.step(8)

    # Wire and counters ----------------------------------------------------------------------------

    def send(self, frame: bytes, **how: int) -> None:
        """A frame arrives (one engine)."""
        self.rx.send(frame, **how)

    def frames(self) -> list[bytes]:
        """Frames transmitted since the last call."""
        return [f.data for f in self.tx.recv_all()]

    def chunks_free(self) -> int:
        """Chunks of the packet buffer that hold nothing; all of them when nothing is on its way in."""
        return self.sim.peek(self.prefix + "chunks_free")

    def counter(self, index: int) -> int:
        """Counter by number: row of errors.py, or TRAFFIC_BASE + traffic counter."""
        return Monitor(self, "monitor_").counter(index)


# Connections --------------------------------------------------------------------------------------

MACS = (0x020000000001, 0x020000000002)
IPS  = (0x0a000001, 0x0a000002)


class EventRing:
    """An engine's event queue as a program reads it: in order, by phase.

    addr, log2 : where CMD_WRITE_EQ has put it, and its entries as a power of two.
    """
    def __init__(self, engine: Engine, addr: int, log2: int) -> None:
        self.engine, self.addr, self.log2, self.consumer = engine, addr, log2, 0

    def poll(self) -> list[dict[str, int]]:
        """Takes what is there: dicts of abi.EQE's fields; the consumer doorbell is rung when any was taken."""
        taken = []
        while True:
            at    = self.addr + abi.EQE_BYTES*(self.consumer % (1 << self.log2))
            entry = abi.unpack(abi.EQE, self.engine.read_memory(at, abi.EQE_BYTES))
            if entry["phase"] == (self.consumer >> self.log2) % 2:
                break
            taken.append(entry)
            self.consumer = (self.consumer + 1) & 0xffff
        if taken:
            self.engine.doorbell(0, abi.DOORBELL_EQ, 0, self.consumer)
        return taken


def connect(a: Engine, b: Engine, *, cq_log2: int = 8, sq_log2: int = 6, rq_log2: int = 6, **attributes: int) -> tuple[QP, QP]:
    """A QP on each engine (or both on one), connected to each other, in RTS. Returns (qp at a, qp at b)."""
    qps = []
    for side, engine in enumerate((a, b)):
        cq = engine.roce.create_cq(cq_log2)
        qps.append(engine.roce.create_qp(cq, cq, sq_log2=sq_log2, rq_log2=rq_log2, src_mac=MACS[side], dst_mac=MACS[1 - side],
            src_ip=IPS[side], dst_ip=IPS[1 - side], **{**dict(sq_psn=0x100*(side + 1), rq_psn=0x100*(2 - side)), **attributes}))
    for side, qp in enumerate(qps):
        qp.attributes["dest_qpn"] = qps[1 - side].qpn
    for state in (abi.QP_INIT, abi.QP_RTR, abi.QP_RTS):
        for qp in qps:
            qp.modify(state)
    return qps[0], qps[1]
