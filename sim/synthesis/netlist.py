# SPDX-License-Identifier: BSD-2-Clause
"""A mapped netlist: what it takes, how deep its logic is, what its nets drive.

Levels between registers: a LUT is one, the asynchronous read of a distributed RAM is one, carry cells and MUXF are none; a block
RAM's output is not registered a second time and counts OUTPUT_LEVELS. *Mapped* is the netlist as Yosys leaves it. *Repacked* is the
best packing of the same logic into LUTs of six inputs that knows no borders at RAMs, carry chains and modules: cuts are enumerated,
logic may be doubled, nothing is rewritten or rebalanced. What place and route would make of it lies between the two.
"""
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

OUTPUT_LEVELS = 2       # levels that an unregistered output of a block RAM counts.
INPUTS        = 6       # of a LUT.
CUTS          = 8       # kept for each net.
CE_LOADS      = 8       # flip-flops of a slice that share one load of a clock enable.
LUTRAM        = re.compile(r"RAM(32|64|128|256|512)(M|X)")
LUTRAM_LUTS   = {"RAM32M": 4, "RAM64M": 4, "RAM32M16": 8, "RAM64M8": 8, "RAM32X1D": 2, "RAM64X1D": 2, "RAM128X1D": 4, "RAM256X1D": 8,
                 "RAM32X1S": 1, "RAM64X1S": 1, "RAM128X1S": 2, "RAM256X1S": 4, "RAM512X1S": 8}
CLOCKS        = {"C", "CLK", "WCLK", "CLKARDCLK", "CLKBWRCLK"}
CARRY_BITS    = {"CARRY4": 4, "CARRY8": 8}
DATA_ENDS     = re.compile(r"ADDR[A-G]$|DPRA")       # of a distributed RAM: read address, a way through and not an end.


Level = tuple[int, int, int | None]                   # (mapped, repacked, net before it or None).
Cut   = tuple[int, frozenset[int]]                     # (level of the deepest leaf, leaves).


def kind_of(cell: str) -> str:
    """What a primitive is: lut, inv, muxf, carry, ff, bram, uram, lutram, srl, dsp."""
    for prefix, kind in (("LUT", "lut"), ("INV", "inv"), ("MUXF", "muxf"), ("CARRY", "carry"), ("FD", "ff"), ("LD", "ff"), ("RAMB", "bram"),
                         ("URAM", "uram"), ("SRL", "srl"), ("DSP", "dsp")):
        if cell.startswith(prefix):
            return kind
    if LUTRAM.match(cell):
        return "lutram"
    raise ValueError(f"unknown primitive {cell!r}")


class Netlist:
    """Cells and nets of a mapped module (`mapping.mapped`) or of several joined (`join`).

    resets : names of nets that are left out of the loads, beside clocks.
    """
    def __init__(self, module: Mapping[str, Any], resets: Iterable[str] = ("sys_rst",)) -> None:
        self.cells  = [(kind_of(cell), cell, name, pins, outputs) for cell, name, pins, outputs in module["cells"]]
        self.ports  = module["ports"]
        self.names  = module["names"]
        self.resets = resets
        self.driver = {bit: (n, port) for n, (_, _, _, pins, outputs) in enumerate(self.cells) for port in outputs
                       for bit in pins[port] if isinstance(bit, int)}
        self._levels: dict[int, Level] = {}
        self.loops   = 0

    # Area -----------------------------------------------------------------------------------------

    def area(self) -> dict[str, float]:
        """{lut, packed, lutram, ff, bram36, uram, dsp}; packed: two LUTs of up to three inputs share one, as Vivado packs them."""
        kinds = Counter(cell for _, cell, _, _, _ in self.cells)
        small = sum(kinds[f"LUT{n}"] for n in (1, 2, 3))
        large = sum(kinds[f"LUT{n}"] for n in (4, 5, 6))
        return {"lut": small + large, "packed": large + -(-small//2),
                "lutram": sum(n*LUTRAM_LUTS.get(cell, 8) for cell, n in kinds.items() if LUTRAM.match(cell)),
                "ff": sum(n for cell, n in kinds.items() if kind_of(cell) == "ff"),
                "bram36": kinds["RAMB36E2"] + kinds["RAMB18E2"]/2, "uram": kinds["URAM288"],
                "dsp": sum(n for cell, n in kinds.items() if cell.startswith("DSP"))}

    # Paths ----------------------------------------------------------------------------------------

    def _through(self, bit):
        """(kind, [bits]) a net depends on in the same clock, or (kind, None) at a register or RAM output."""
        kind, cell, _, pins, outputs = self.cells[self.driver[bit][0]]
        port = self.driver[bit][1]
        if kind == "carry":
            return kind, [b for p in ("S", "DI", "CI", "CYINIT", "CI_TOP") for b in pins.get(p, ())]
        if kind in ("lut", "inv", "muxf"):
            return kind, [b for p, bits in pins.items() if p not in outputs for b in bits]
        if kind == "lutram":
            if "M" in cell[3:]:                          # DOA ... DOH by ADDRA ... ADDRH.
                return kind, pins.get(f"ADDR{port[-1]}", [])
            wanted = r"DPRA\d*" if port == "DPO" else r"A\d*"
            return kind, [b for p, bits in pins.items() if re.fullmatch(wanted, p) for b in bits]
        return kind, None

    def _finish(self, bit, levels, cuts):
        """Enters (mapped, repacked) levels of a net whose inputs are known, and the net that the mapped ones came by."""
        if bit not in self.driver:
            levels[bit], cuts[bit] = (0, 0, None), ()
            return
        kind, inputs = self._through(bit)
        if inputs is None:
            start = OUTPUT_LEVELS if kind in ("bram", "uram") else 0
            levels[bit], cuts[bit] = (start, start, None), ()
            return
        inputs = list(dict.fromkeys(b for b in inputs if isinstance(b, int)))
        known  = [(levels.get(b, (0, 0, None)), b) for b in inputs]
        mapped, by = max(((level[0], b) for level, b in known), default=(0, None))
        deepest    = max((level[1] for level, _ in known), default=0)
        if kind in ("carry", "lutram", "srl"):
            step = int(kind != "carry")
            levels[bit], cuts[bit] = (mapped + step, deepest + step, by), ()
        elif kind == "inv":
            levels[bit] = mapped, deepest, by
            cuts[bit]   = ((deepest, frozenset(inputs)), *cuts.get(inputs[0], ())) if inputs else ()
        else:
            best   = self._cuts(inputs, levels, cuts)
            inside = 1 + best[0][0] if best else 1 + deepest
            if kind == "muxf":
                inside = min(inside, deepest)
            levels[bit], cuts[bit] = (mapped + (kind == "lut"), inside, by), best

    @staticmethod
    def _cuts(inputs, levels, cuts):
        """The best (levels of the deepest leaf, leaves) that make a function of `inputs` one LUT, at most CUTS."""
        best: list[Cut] = [(0, frozenset())]
        for b in inputs:
            own = (levels.get(b, (0, 0, None))[1], frozenset((b,))), *cuts.get(b, ())
            new: dict[frozenset[int], int] = {}
            for depth, leaves in best:
                for own_depth, own_leaves in own:
                    union = leaves | own_leaves
                    if len(union) <= INPUTS:
                        worst = depth if depth > own_depth else own_depth
                        if new.get(union, 1 << 30) > worst:
                            new[union] = worst
            best = sorted(((depth, leaves) for leaves, depth in new.items()), key=lambda cut: (cut[0], len(cut[1])))[:CUTS]
        return best

    def levels(self) -> dict[int, Level]:
        """{net: (mapped, repacked, net before it or None)} of all nets; counts `loops`."""
        if self._levels:
            return self._levels
        levels = self._levels
        cuts: dict[int, Sequence[Cut]] = {}
        busy: set[int] = set()
        for _, _, bit in self.ends():
            stack = [bit]
            while stack:
                at = stack[-1]
                if at in levels:
                    stack.pop()
                    continue
                inputs = (self._through(at)[1] if at in self.driver else None) or ()
                todo   = [b for b in inputs if isinstance(b, int) and b not in levels]
                looped = [b for b in todo if b in busy]
                if len(todo) > len(looped):
                    busy.add(at)
                    stack.extend(b for b in todo if b not in busy)
                    continue
                self.loops += bool(looped)
                self._finish(at, levels, cuts)
                busy.discard(at)
                stack.pop()
        return levels

    def ends(self) -> Iterator[tuple[int | None, str, int]]:
        """Yields (cell or None for a port of the module, port, net) of each end of a path."""
        for n, (kind, _, _, pins, outputs) in enumerate(self.cells):
            if kind in ("lut", "inv", "muxf", "carry"):
                continue
            for port, bits in pins.items():
                if port in outputs or port in CLOCKS or (kind == "lutram" and DATA_ENDS.match(port)):
                    continue
                for bit in bits:
                    if isinstance(bit, int):
                        yield n, port, bit
        for name, (direction, bits) in self.ports.items():
            if direction == "output":
                for bit in bits:
                    if isinstance(bit, int):
                        yield None, name, bit

    def histogram(self) -> tuple[Counter[int], Counter[int]]:
        """(Counter of ends by mapped levels, the same by repacked ones)."""
        levels = self.levels()
        mapped  : Counter[int] = Counter()
        repacked: Counter[int] = Counter()
        for _, _, bit in self.ends():
            mapped[levels[bit][0]] += 1
            repacked[levels[bit][1]] += 1
        return mapped, repacked

    def name(self, bit: int) -> str:
        """Name of a net, or of the cell that drives it."""
        if bit in self.names:
            return self.names[bit]
        return f"{self.cells[self.driver[bit][0]][2]}" if bit in self.driver else f"net {bit}"

    def start(self, bit: int) -> int:
        """The net at which the deepest mapped path to a net begins."""
        levels = self.levels()
        while (before := levels[bit][2]) is not None:
            bit = before
        return bit

    def end_name(self, cell: int | None, port: str, bit: int) -> str:
        """Name of an end of a path: register and pin, RAM and pin, or port."""
        if cell is None:
            return f"port {port}"
        kind, _, name, pins, outputs = self.cells[cell]
        if kind == "ff":
            bits = [b for p in outputs for b in pins[p] if isinstance(b, int)]
            name = self.name(bits[0]) if bits else name
        return f"{name}.{port}"

    def worst(self, count: int = 10) -> list[tuple[int, int, str, str, int]]:
        """The deepest paths, one for each pair of names without their bit: [(mapped, repacked, start, end, ends of that pair)]."""
        levels = self.levels()
        pairs : dict[tuple[str, str], tuple[int, int, str, str, int]] = {}
        starts: dict[int, int] = {}
        for cell, port, bit in self.ends():
            mapped, repacked, _ = levels[bit]
            if max(mapped, repacked) < 5:
                continue
            if bit not in starts:
                starts[bit] = self.start(bit)
            end = self.end_name(cell, port, bit)
            key = re.sub(r"\[\d+\]$", "", self.name(starts[bit])), re.sub(r"\[\d+\]", "", end)
            old = pairs.get(key, (0, 0, "", "", 0))
            row = max(old[:4], (mapped, repacked, self.name(starts[bit]), end), key=lambda r: (r[1], r[0]))
            pairs[key] = (*row, old[4] + 1)
        return sorted(pairs.values(), key=lambda row: (-row[1], -row[0], row[2]))[:count]

    # Chains and loads -----------------------------------------------------------------------------

    def longest_carry(self) -> tuple[int, str]:
        """(bits, name) of the longest carry chain."""
        after : dict[int, int] = {}
        length: dict[int, int] = {}
        first : list[int] = []
        for n, (kind, cell, name, pins, _) in enumerate(self.cells):
            if kind != "carry":
                continue
            bits    = CARRY_BITS[cell]
            used    = [i for i in range(bits) if any(isinstance(b, int) for p in ("S", "DI") for b in pins[p][i:i + 1])]
            length[n] = used[-1] + 1 if used else 0
            source  = pins.get("CI", ["0"])[0]
            before  = self.driver.get(source) if isinstance(source, int) else None
            if before and self.cells[before[0]][0] == "carry":
                after[before[0]] = n
            else:
                first.append(n)
        best = (0, "")
        for n in first:
            total = 0
            at: int | None = n
            while at is not None:
                total, last = total + length[at], at
                at = after.get(at)
            if total > best[0]:
                outs = [b for p in ("O", "CO") for b in self.cells[last][3].get(p, ()) if b in self.names]
                best = total, self.names[outs[0]] if outs else self.cells[n][2]
        return best

    def loads(self) -> list[tuple[int, str]]:
        """[(loads, name)] of all nets but clocks and resets, most first; CE_LOADS flip-flops are one load of a clock enable."""
        loads  : Counter[int] = Counter()
        enables: Counter[int] = Counter()
        clocks : set[int] = set()
        for kind, _, _, pins, outputs in self.cells:
            for port, bits in pins.items():
                if port in outputs:
                    continue
                for bit in bits:
                    if not isinstance(bit, int):
                        continue
                    if port in CLOCKS:
                        clocks.add(bit)
                    elif port == "CE" and kind == "ff":
                        enables[bit] += 1
                    else:
                        loads[bit] += 1
        for bit, count in enables.items():
            loads[bit] += -(-count//CE_LOADS)
        return sorted(((count, self.name(bit)) for bit, count in loads.items()
                       if bit not in clocks and self.name(bit).split("/")[-1] not in self.resets), reverse=True)


def join(modules: Mapping[str, tuple[Mapping[str, Any], Mapping[str, int]]]) -> dict[str, Any]:
    """One mapped module of several: {name: (mapped module, {port: number of its signal})}.

    A port bit is the bit of its signal; a module may pass an input on or drive a constant. Names of nets and cells get the
    module's name in front.
    """
    above   : dict[Hashable, Hashable] = {}
    constant: dict[Hashable, str] = {}

    def root(key):
        while above.get(key, key) != key:
            key = above[key]
        return key
    read  : set[Hashable] = set()
    driven: set[Hashable] = set()
    for name, (module, numbers) in modules.items():
        for port, (direction, bits) in module["ports"].items():
            signal = numbers.get(port, port)
            for i, bit in enumerate(bits):
                key = "signal", signal, i
                (driven if direction == "output" else read).add(key)
                if isinstance(bit, int):
                    a, b = root(key), root((name, bit))
                    if a != b:
                        above[b] = a
                elif direction == "output":
                    constant[key] = bit
    constant = {root(key): bit for key, bit in constant.items()}
    numbers  = defaultdict(lambda: len(numbers) + 2)

    def bit_of(name, bit):
        if not isinstance(bit, int):
            return bit
        key = root((name, bit))
        return constant.get(key) or numbers[key]
    cells: list[list[Any]] = []
    names: dict[int, str] = {}
    for name, (module, _) in modules.items():
        for cell, label, pins, outputs in module["cells"]:
            cells.append([cell, f"{name}/{label}", {p: [bit_of(name, b) for b in bits] for p, bits in pins.items()}, outputs])
        for bit, label in module["names"].items():
            at = bit_of(name, bit)
            if isinstance(at, int) and (at not in names or label[:1] != "p"):
                names.setdefault(at, f"{name}/{label}")
    outs = sorted({numbers[root(key)] for key in driven - read if root(key) in numbers})
    return {"cells": cells, "ports": {"outside": ["output", outs]}, "names": names}
