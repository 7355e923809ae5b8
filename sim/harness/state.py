# SPDX-License-Identifier: BSD-2-Clause
"""What a model holds: its memories and registers, named by the path of the Migen module they belong to.

`paths` walks the modules and leaves its list as comments in the Verilog text; `table` joins that list with the members
of Verilator's class; `Rows` is a memory as `Sim.memories` returns it. Nothing of it slows the model down. What Verilator
optimises away (never read, constant) has no entry.
"""
from __future__ import annotations      # Rows names itself.

import re
from collections.abc import Iterable
from typing import Any

from migen import Memory, Module, Signal
from migen.fhdl.tools import list_targets

# Migen --------------------------------------------------------------------------------------------

def _owners(module, path, owners):
    """Enters {memory or register: (path, module)} of a module and all below it; the innermost owner stays."""
    fragment = module._fragment
    for item in [s for s in fragment.specials if isinstance(s, Memory)]:
        owners[item] = path, module
    for statements in fragment.sync.values():
        for item in list_targets(statements):
            owners[item] = path, module
    taken = set()
    for name, child in module._submodules:
        name = name or type(child).__name__.lower()
        while name in taken:
            name += "_"
        taken.add(name)
        _owners(child, f"{path}{name}.", owners)
    return owners


def paths(module: Module, namespace: Any) -> str:
    """Lines `// state <Verilog name> <path>` of a converted module, memories and registers, sorted by path."""
    rows, used = [], set()
    for item, (path, owner) in sorted(_owners(module, "", {}).items(), key=lambda pair: pair[0].duid):
        own  = [k for k, v in vars(owner).items() if v is item]
        name = own[0] if own else item.name_override or (item.backtrace[-1][0] if isinstance(item, Signal) else "memory")
        base, n = f"{path}{name}", 1
        while (full := base if n == 1 else f"{base}{n}") in used:
            n += 1
        used.add(full)
        rows.append((full, namespace.get_name(item)))
    return "".join(f"// state {verilog} {full}\n" for full, verilog in sorted(rows))

# Verilator ----------------------------------------------------------------------------------------

_SCALAR = re.compile(r"^ *\w+(?:<\d+>)?/\*(\d+):0\*/ (\w+);", re.M)
_ARRAY  = re.compile(r"^ *VlUnpacked<\w+(?:<\d+>)?/\*(\d+):0\*/, (\d+)> (\w+);", re.M)
_PORT   = re.compile(r"^ *VL_(?:IN|OUT)(?:8|16|64|W)?\(&?(\w+),(\d+),0", re.M)


def plain(name: str) -> str:
    """Name in Verilog of a member of Verilator's class."""
    return re.sub(r"__0([0-9A-F]{2})", lambda m: chr(int(m[1], 16)), name).replace("__SYM__", "")


def table(text: str, header: str) -> str:
    """Rows of C++ for the items of `paths` in the Verilog `text` that are members of Verilator's class (its `header`)."""
    found: list[tuple[str, str, str | int]] = []
    found  += [(m[2], m[1], 0) for m in _SCALAR.finditer(header)] + [(m[1], m[2], 0) for m in _PORT.finditer(header)]
    found  += [(m[3], m[1], m[2]) for m in _ARRAY.finditer(header)]
    members = {plain(name).removeprefix("top__DOT__"): (name, int(high) + 1, int(depth)) for name, high, depth in found}
    rows    = []
    for verilog, path in re.findall(r"^// state (\S+) (\S+)$", text, re.M):
        if verilog in members:
            name, width, depth = members[verilog]
            rows.append(f'    {{"{path}", offsetof(Vtop___024root, {name}), {width}, {depth}}},')
    return "\n".join(rows)

# Python -------------------------------------------------------------------------------------------

def field(layout: Iterable[tuple[str, int]], name: str) -> tuple[int, int]:
    """(lowest bit, width) of a field in a row of `layout`."""
    at = 0
    for other, width in layout:
        if other == name:
            return at, width
        at += width
    raise ValueError(f"the layout has no field {name!r}")


class Rows:
    """Contents of a memory: a sequence of numbers, compared as a whole.

    width : bits of a row; raw : all bytes, rows of 1, 2, 4, 8 or a multiple of 4 bytes, little endian.
    """
    __slots__ = ("width", "depth", "raw")

    def __init__(self, width: int, depth: int, raw: bytes) -> None:
        self.width, self.depth, self.raw = width, depth, raw

    def __len__(self) -> int:
        return self.depth

    def __getitem__(self, index: int) -> int:
        size = len(self.raw)//self.depth
        at   = range(self.depth)[index]*size
        return int.from_bytes(self.raw[at:at + size], "little")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(self.raw)

    def changed(self, other: Rows) -> list[int]:
        """Indices of the rows that differ from another dump of the same memory."""
        return [] if self == other else [n for n in range(self.depth) if self[n] != other[n]]

    def __repr__(self) -> str:
        return f"Rows({self.depth} rows of {self.width} bits)"
