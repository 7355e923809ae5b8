# SPDX-License-Identifier: BSD-2-Clause
"""Migen/LiteX module to Verilog text that Verilator runs as hardware would.

Two things in LiteX's output do not survive Verilator 5.48 and are rewritten here: `always @(*)` blocks without
inputs (constant assignments) are never executed, and memory initialisation files are named without a folder.
What an `always_comb` block drives loses its initial value, which would count as a second driver.
"""
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from migen import Cat, ClockDomain, Module, Record, Signal
from migen.fhdl.tools import list_clock_domains

from litex.gen.fhdl.verilog import convert

from roce_soc import grouping
from roce_soc.bounds import bounds_of
from sim.harness import collide
from sim.harness.state import paths

BOUNDS = "bounds_broken"     # output of every model that has bounds, a bit each.

Port: TypeAlias = Signal | Record | list | tuple | dict             # lists, tuples and dicts hold ports again.
Ios : TypeAlias = Mapping[str, Port] | Iterable[Signal | Record]    # by name, or with names of their own.

# Ports --------------------------------------------------------------------------------------------

def _flatten(prefix, item):
    """Yields (name, Signal) of a Signal, a Record or Endpoint, a list or a dict of them."""
    if isinstance(item, Signal):
        yield prefix, item
    elif isinstance(item, Record):
        for field in item.layout:
            sub = getattr(item, field[0])
            # A stream's payload and params are named as the fields of the endpoint itself.
            name = prefix if field[0] in ("payload", "param") else f"{prefix}_{field[0]}"
            yield from _flatten(name, sub)
    elif isinstance(item, (list, tuple)):
        for n, sub in enumerate(item):
            yield from _flatten(f"{prefix}{n}", sub)
    elif isinstance(item, dict):
        for key, sub in item.items():
            yield from _flatten(f"{prefix}_{key}", sub)
    else:
        raise ValueError(f"port {prefix!r} must be a Signal, Record, Endpoint, list or dict, not {item!r}")


def signals_of(ios: Ios) -> set[Signal]:
    """Returns the set of port signals, each with its name fixed."""
    if isinstance(ios, dict):
        named = [pair for name, item in ios.items() for pair in _flatten(name, item)]
    else:
        named = []
        for item in ios:
            if isinstance(item, Signal):
                named.append((item.name_override or item.backtrace[-1][0], item))
            elif isinstance(item, Record) and item.name:
                named.extend(_flatten(item.name, item))
            else:
                raise ValueError(f"port {item!r} has no name of its own: pass a dict {{name: item}}")
    seen: dict[str, Signal] = {}
    for name, signal in named:
        if seen.setdefault(name, signal) is not signal:
            raise ValueError(f"port name {name!r} is used twice")
        signal.name_override = name
    return set(seen.values())

# Verilog ------------------------------------------------------------------------------------------

def combinational(text: str) -> str:
    """LiteX's Verilog with `always_comb` for `always @(*)`, and no other driver beside these blocks."""
    text   = text.replace("always @(*)", "always_comb")
    driven = {name for block in re.findall(r"^always_comb begin\n(.*?)^end$", text, flags=re.M | re.S)
              for name in re.findall(r"^\s+(\w+)(?:\[[^\]]*\])? <= ", block, flags=re.M)}
    return re.sub(r"^((?:\s*output\s+)?reg\b[^=;\n]*?\b(\w+)) = [^;,\n]*", lambda m: m[1] if m[2] in driven else m[0], text, flags=re.M)


def emit(module: Module, ios: Ios, clocks: Sequence[str] = ("sys",)) -> tuple[str, dict[str, str]]:
    """Converts a module.

    Parameters
    ----------
    module : Module
        Not yet finalised; CSRs in it need no bus: their `storage` may be a port.
    ios : dict or iterable
        {name: Signal, Record, Endpoint, list or dict of them}, or named signals. An endpoint `sink` gives the ports
        `sink_valid`, `sink_ready`, `sink_data`, ...
    clocks : tuple of str
        Clock domains driven from outside: ports `<domain>_clk` and `<domain>_rst`.

    Returns
    -------
    (text, files) : str and {file name: content}; the text carries no date and no folder; it ends with the lists of bounds
    (`// bound <bit of the output BOUNDS> <path>: <kept by>`) and of `state.paths`.
    """
    ports    = signals_of(ios)
    fragment = module.get_fragment()
    bounds   = list(bounds_of(module))
    if bounds:
        broken = Signal(len(bounds), name_override=BOUNDS)
        ports.add(broken)
        fragment.comb.append(broken.eq(Cat(*[bound.broken for _, bound in bounds])))
    needed   = list_clock_domains(fragment)
    known    = {cd.name: cd for cd in fragment.clock_domains}
    for name in clocks:
        if name not in known:
            known[name] = ClockDomain(name)
            fragment.clock_domains.append(known[name])
        domain = known[name]
        domain.clk.name_override = f"{name}_clk"
        ports.add(domain.clk)
        if domain.rst is not None:
            domain.rst.name_override = f"{name}_rst"
            ports.add(domain.rst)
    missing = sorted(set(needed) - set(known))
    if missing:
        raise ValueError(f"clock domains {missing} are used but neither defined nor in clocks={tuple(clocks)!r}")
    grouping.install()
    memories = collide.prepare(fragment) if collide.enabled() else []
    out   = convert(fragment, ios=ports, name="top")
    text  = re.sub(r"^//.*$\n?", "", out.main_source, flags=re.M)
    text  = collide.collide(text, memories, out.ns.get_name)
    listed = "".join(f"// bound {n} {path or 'top'}: {bound.kept_by}\n" for n, (path, bound) in enumerate(bounds))
    return combinational(text) + listed + paths(module, out.ns), dict(out.data_files)
