# SPDX-License-Identifier: BSD-2-Clause
"""The engine as its modules, each as Verilog of its own.

A module's ports are the signals that it shares with the rest of the engine: what nobody reads is optimised away as it would be in
the whole. Ports carry the number of their signal, so that mapped modules can be joined again.
"""
import inspect
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from migen import ClockDomain, Signal
from migen.fhdl.specials import Memory
from migen.fhdl.structure import _Fragment
from migen.fhdl.tools import list_inputs, list_special_ios, list_targets

from litex.gen import LiteXModule
from litex.gen.fhdl.verilog import convert
from litex.soc.interconnect import csr_bus

from roce_soc import grouping
from roce_soc.core import RoCECore
from roce_soc.tree import PACKAGE
from sim.engine import MEMORY_PORTS, memory_ports
from sim.harness.emit import signals_of

GLUE  = "core"      # what the engine itself adds, and the bank of its registers.
SHALLOW = 64        # rows of a distributed RAM that one level of LUTs reads.


@dataclass
class Part:
    """One module of the engine, ready for synthesis; its top module is `top`."""
    name: str
    source: str                                                        # class and file.
    verilog: str
    files: dict[str, str] = field(default_factory=dict)                # memory images.
    ports: dict[str, int] = field(default_factory=dict)                # {port: number of its signal}.
    # (path, width in bits, rows) of distributed RAMs of more than SHALLOW rows.
    deep: list[tuple[str, int, int]] = field(default_factory=list)


class Engine(LiteXModule):
    """The engine and the bank of its registers, in one clock."""
    def __init__(self, **parameters: Any) -> None:
        self.cd_sys = ClockDomain()
        self.core   = core = RoCECore(**parameters)
        self.bank   = csr_bus.CSRBank(core.get_csrs(), bus=csr_bus.Interface(data_width=32, address_width=14))

    def ios(self) -> set[Signal]:
        """Signals that leave the engine."""
        core  = self.core
        named = {"rx": core.rx, "tx": core.tx, "slow_rx": core.slow_rx, "slow_tx": core.slow_tx, "ready": core.ready, "irq": core.ev.irq,
                 "port_event": core.port_event}
        named.update({f"{prefix}_{name}": endpoint for prefix, port in zip(MEMORY_PORTS, memory_ports(core))
                      for name, endpoint in port.streams().items()})
        named.update({f"csr_{n}": getattr(self.bank.bus, n) for n in ("adr", "we", "re", "dat_w", "dat_r")})
        named.update({f"bell_{n}": getattr(core.doorbell_bus, n) for n in ("adr", "dat_w", "sel", "cyc", "stb", "we", "ack", "dat_r")})
        return signals_of(named)


def _uses(fragment):
    """(signals that are read, signals that are driven)."""
    return (list_inputs(fragment) | list_special_ios(fragment, True, False, True),
            list_targets(fragment) | list_special_ios(fragment, False, True, True))


def _children(module):
    """Yields (name, submodule), each once."""
    seen = set()
    for name, child in module._submodules:
        if id(child) in seen:
            continue
        seen.add(id(child))
        name = name or next((k for k, v in vars(module).items() if v is child), type(child).__name__.lower())
        yield name, child


def _without(fragment, children, domains):
    """What a fragment holds beside its children's."""
    comb, sync, specials = set(), set(), set()
    for child in children:
        own = child._fragment
        comb |= {id(s) for s in own.comb}
        sync |= {id(s) for statements in own.sync.values() for s in statements}
        specials |= own.specials
    return _Fragment([s for s in fragment.comb if id(s) not in comb],
                     {k: [s for s in v if id(s) not in sync] for k, v in fragment.sync.items()}, fragment.specials - specials, domains)


def _deep(module, path):
    """Yields (path, width, rows) of the distributed RAMs of more than SHALLOW rows in a module and all below it."""
    inner = set()
    for name, child in _children(module):
        inner |= child._fragment.specials
        yield from _deep(child, f"{path}.{name}")
    for special in module._fragment.specials - inner:
        if isinstance(special, Memory) and special.depth > SHALLOW and any(port.async_read for port in special.ports if port.we is None):
            yield path, special.width, special.depth


def _convert(fragment, ports, domain):
    """Verilog of a fragment; returns (text, files, {port: number of its signal})."""
    numbers = {}
    for n, signal in enumerate(sorted(ports, key=lambda s: s.duid)):
        base = re.sub(r"\W", "_", "_".join(x[0] for x in (signal.backtrace or [])[-2:] if x[0])) or "signal"
        signal.name_override = f"p{n}_{base}"
        numbers[signal.name_override] = signal.duid
    out  = convert(fragment, ios=set(ports) | {domain.clk, domain.rst}, name="top")
    text = re.sub(r"^//.*$\n?", "", out.main_source, flags=re.M)
    return text, dict(out.data_files), numbers


def parts(only: Collection[str] | None = None, **parameters: Any) -> list[Part]:
    """Elaborates the engine; returns its [Part], in packet order, what the core adds last.

    only : names of modules, default all; parameters : of RoCECore.
    """
    grouping.install()
    top      = Engine(**parameters)
    fragment = top.get_fragment()
    domain   = top.cd_sys
    domain.clk.name_override, domain.rst.name_override = "sys_clk", "sys_rst"
    outside  = top.ios()
    children = [(name, child) for name, child in _children(top.core)
                if child._fragment.comb or child._fragment.sync or child._fragment.specials]
    pieces   = [(name, child._fragment, child) for name, child in children]
    pieces.append((GLUE, _without(fragment, [child for _, child in children], [domain]), top.core))
    uses     = [_uses(piece) for _, piece, _ in pieces]
    read     = Counter(s for ins, _ in uses for s in ins)
    driven   = Counter(s for _, outs in uses for s in outs)
    found    = []
    for (name, piece, module), (ins, outs) in zip(pieces, uses):
        if only and name not in only:
            continue
        pins  = {s for s in ins - outs if driven[s] or s in outside}
        pouts = {s for s in outs if read[s] > (s in ins) or s in outside}
        copy  = _Fragment(list(piece.comb), {k: list(v) for k, v in piece.sync.items()}, set(piece.specials), [domain])
        text, files, numbers = _convert(copy, (pins | pouts) - {domain.clk, domain.rst}, domain)
        deep  = [] if name == GLUE else sorted(_deep(module, name))
        where = Path(inspect.getsourcefile(type(module)))
        where = where.relative_to(PACKAGE.parent) if where.is_relative_to(PACKAGE) else where.name
        found.append(Part(name, f"{type(module).__name__}, {where}", text, files, numbers, deep))
    return found
