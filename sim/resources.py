#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""What the engine costs on UltraScale+, module by module, as Yosys maps it: LUTs, RAMs, depth of the logic.

    ./sim/resources.py                           # a table of all modules; a changed module alone is mapped anew
    ./sim/resources.py --module send --paths 20  # one, with its deepest paths
    ./sim/resources.py --joined --qps 1024       # paths through module borders too, and the whole engine's sums
    ./sim/resources.py --check                   # compare with the recorded floors; --record writes them
    ./sim/resources.py --check --only-changed    # the same, mapping only what has changed since they were recorded

Levels are counted from register to register, mapped / repacked (sim/synthesis/netlist.py; doc/performance.md has the method).
Exit status: 0 good, 1 worse than a floor or a fault of the netlist, 2 bad argument, 3 no yosys.
"""
import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from sim import env  # noqa: E402

env.enter("yosys")

import hashlib                                                       # noqa: E402
import json                                                          # noqa: E402
from collections.abc import Iterable, Iterator, Mapping, Sequence    # noqa: E402
from concurrent.futures import ProcessPoolExecutor                   # noqa: E402
from typing import Any                                               # noqa: E402

from rich.console import Console                                     # noqa: E402
from rich.progress import Progress                                   # noqa: E402
from rich.table import Table                                         # noqa: E402

from roce_soc.common import DEFAULT_MRS, DEFAULT_QPS, MAX_QPS  # noqa: E402
from sim.synthesis import mapping, netlist                           # noqa: E402
from sim.synthesis.parts import Part, parts                          # noqa: E402

FLOORS   = pathlib.Path(__file__).with_name("resources_floors.json")
JOBS     = 2
DEVICE   = {"lut": 1_182_240, "packed": 1_182_240, "lutram": 591_840, "ff": 2_364_480, "bram36": 2_160, "uram": 960, "dsp": 6_840}   # VU9P
LIMITS   = {"mapped": 9, "repacked": 7, "carry": 32, "loads": 512}   # B10
SUMMED   = tuple(DEVICE)
# How much worse than its floor a figure may be: sums of LUTs move a little with the names that Yosys sorts by.
TOLERANCE = {"lut": .02, "packed": .02}
TOLERANCE_LUTS = 8
TITLES   = {"lut": "LUT", "packed": "packed", "lutram": "LUTRAM", "ff": "FF", "bram36": "BRAM36", "uram": "URAM", "dsp": "DSP",
            "mapped": "mapped", "repacked": "repacked", "over7": "ends > 7", "carry": "carry", "loads": "loads"}

Figures = dict[str, Any]      # of a module: numbers of TITLES, and lists and texts beside them.

# Figures ------------------------------------------------------------------------------------------

def figures(net: netlist.Netlist, paths: int = 10) -> Figures:
    """Area, depth, chains and loads of a netlist, its worst paths and nets as text beside them."""
    mapped, repacked = net.histogram()
    carry, chain     = net.longest_carry()
    loads            = net.loads()
    return {**net.area(), "mapped": max(mapped, default=0), "repacked": max(repacked, default=0),
            "over7": sum(n for level, n in repacked.items() if level > 7), "ends": sum(mapped.values()),
            "by_mapped": dict(sorted(mapped.items())), "by_repacked": dict(sorted(repacked.items())),
            "carry": carry, "chain": chain, "loads": loads[0][0] if loads else 0,
            "wide": [list(x) for x in loads[:40] if x[0] > LIMITS["loads"]], "nets_wide": sum(x[0] > LIMITS["loads"] for x in loads),
            "loops": net.loops, "paths": [list(x) for x in net.worst(paths)]}


def of_part(part: Part) -> Figures:
    """Figures of a Part, kept beside its mapped netlist."""
    made = hashlib.sha256(pathlib.Path(netlist.__file__).read_bytes() + pathlib.Path(__file__).read_bytes()).hexdigest()[:16]
    path = mapping.CACHE / f"{mapping.key_of(part)}-{made}.figures"
    if path.exists():
        return json.loads(path.read_text())
    found = {**figures(netlist.Netlist(mapping.mapped(part)), 40), "deep": part.deep, "source": part.source}
    path.write_text(json.dumps(found))
    return found


def of_parts(found: Sequence[Part]) -> dict[str, Figures]:
    """{module: figures} of [Part], two at a time, with progress."""
    rows = {}
    with Progress(console=Console(stderr=True), transient=True) as bar, ProcessPoolExecutor(JOBS) as pool:
        task = bar.add_task("synthesis", total=len(found))
        jobs = {part.name: pool.submit(of_part, part) for part in sorted(found, key=lambda part: -len(part.verilog))}
        for part in found:
            rows[part.name] = jobs[part.name].result()
            bar.advance(task)
    return rows


def joined(found: Iterable[Part]) -> Figures:
    """Figures of the whole engine: the mapped modules joined at their ports."""
    return figures(netlist.Netlist(netlist.join({part.name: (mapping.mapped(part), part.ports) for part in found})), 40)

# Floors -------------------------------------------------------------------------------------------

FLOORED = ("lut", "packed", "lutram", "ff", "bram36", "uram", "mapped", "repacked", "over7", "carry", "loads")


def changed(found: Iterable[Part], floors: Mapping[str, Figures]) -> list[Part]:
    """Those of [Part] that are not what their floor was recorded of: the same Verilog gives the same netlist."""
    return [part for part in found if floors.get(part.name, {}).get("key") != mapping.key_of(part)]


def worse(rows: Mapping[str, Figures], floors: Mapping[str, Figures]) -> Iterator[str]:
    """Yields a sentence for each figure that is worse than its floor, and for each module without one."""
    for name, row in rows.items():
        floor = floors.get(name)
        if floor is None:
            yield f"{name}: no floor is recorded (sim/resources.py --record)"
            continue
        for key in FLOORED:
            allowed = floor[key]*(1 + TOLERANCE.get(key, 0)) + TOLERANCE_LUTS*(key in TOLERANCE)
            if row[key] > allowed:
                yield f"{name}: {TITLES[key]} {row[key]:g}, floor {floor[key]:g}"


def faults(rows: Mapping[str, Figures]) -> Iterator[str]:
    """Yields a sentence for each fault of a netlist."""
    for name, row in rows.items():
        if row["loops"]:
            yield f"{name}: a combinational loop"


def recorded() -> dict[str, Any]:
    """The recorded floors: {"yosys": version, "modules": {module: figures and key of what was mapped}}."""
    return json.loads(FLOORS.read_text()) if FLOORS.exists() else {"yosys": "", "modules": {}}


def record(rows: Mapping[str, Figures], keys: Mapping[str, str]) -> None:
    """Writes floors; keys : {module: mapping.key_of}."""
    old = recorded()
    old["yosys"] = mapping.version()
    old["modules"].update({name: {**{key: row[key] for key in FLOORED}, "key": keys[name]} for name, row in rows.items()})
    lines = [f'  "{name}": {json.dumps(row)}' for name, row in sorted(old["modules"].items())]
    FLOORS.write_text('{"yosys": ' + json.dumps(old["yosys"]) + ', "modules": {\n' + ",\n".join(lines) + "\n}}\n")

# Output -------------------------------------------------------------------------------------------

def table(rows: Mapping[str, Figures], total: Figures | None = None) -> Table:
    """A table of modules, the largest first; beneath it their sum, and shares of a VU9P."""
    shown = Table(box=None, header_style="bold")
    shown.add_column("module")
    keys = [key for key in TITLES if key != "dsp" or any(row["dsp"] for row in rows.values())]
    for key in keys:
        shown.add_column(TITLES[key], justify="right")
    for name, row in sorted(rows.items(), key=lambda item: -item[1]["lut"] - item[1]["lutram"]):
        shown.add_row(name, *[_number(key, row[key]) for key in keys])
    if total:
        shown.add_row("whole", *[_number(key, total[key]) for key in keys], style="bold")
        shown.add_row("of a VU9P", *[f"{total[key]/DEVICE[key]:.1%}" if key in DEVICE else "" for key in keys])
    return shown


def _number(key: str, value: float) -> str:
    return f"[red]{value:g}[/red]" if value > LIMITS.get(key, 1 << 60) else f"{value:g}"


def show_paths(console: Console, name: str, row: Figures, count: int) -> None:
    """Prints the deepest paths, the wide nets and the deep distributed RAMs of a module."""
    console.print(f"\n[bold]{name}[/bold]: deepest paths, repacked / mapped, ends of the pair", highlight=False)
    for mapped, repacked, start, end, ends in row["paths"][:count]:
        console.print(f"  {repacked:2d} / {mapped:2d}  {ends:5d}  {start} -> {end}", markup=False, highlight=False, soft_wrap=True)
    if row["carry"] > LIMITS["carry"]:
        console.print(f"  carry chain of {row['carry']} bits: {row['chain']}", markup=False)
    for count_, net in row["wide"][:count]:
        console.print(f"  {count_} loads: {net}", markup=False, soft_wrap=True)
    for path, width, rows in row.get("deep", ()):
        console.print(f"  distributed RAM of {rows} rows x {width} bits: {path}", markup=False, soft_wrap=True)


def summed(rows: Mapping[str, Figures]) -> Figures:
    """Sums of areas, worst of depths."""
    total = {key: sum(row[key] for row in rows.values()) for key in (*SUMMED, "over7")}
    return {**total, **{key: max(row[key] for row in rows.values()) for key in LIMITS}}


def arguments_of(argv: Sequence[str] | None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0],
        epilog="Exit status: 0 good, 1 worse than a floor or a fault of the netlist, 2 bad argument, 3 no yosys.")
    parser.add_argument("--module", action="append", default=[], help="this module only, as the table names it; may be repeated")
    parser.add_argument("--joined", action="store_true", help="join all modules: paths through their borders, sums of the whole engine")
    parser.add_argument("--qps", type=int, default=DEFAULT_QPS, help=f"queue pairs, a power of two up to {MAX_QPS} (default {DEFAULT_QPS})")
    parser.add_argument("--mrs", type=int, default=DEFAULT_MRS, help=f"memory regions (default {DEFAULT_MRS})")
    parser.add_argument("--paths", type=int, default=0, metavar="N", help="print the N deepest paths of each module shown")
    parser.add_argument("--check", action="store_true", help="compare with the recorded floors (default sizes only)")
    parser.add_argument("--only-changed", action="store_true", help="leave out modules whose Verilog is that of their recorded floor")
    parser.add_argument("--record", action="store_true", help="write the floors")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    arguments = parser.parse_args(argv)
    if (arguments.check or arguments.record) and (arguments.qps, arguments.mrs) != (DEFAULT_QPS, DEFAULT_MRS):
        parser.error(f"floors are those of {DEFAULT_QPS} QPs and {DEFAULT_MRS} regions, not of {arguments.qps} and {arguments.mrs}")
    if arguments.joined and arguments.only_changed:
        parser.error("--joined takes all modules, --only-changed some: choose")
    if arguments.joined and arguments.module:
        parser.error("--joined takes all modules, --module one: choose")
    return parser, arguments


def main(argv: Sequence[str] | None = None) -> int:
    parser, arguments = arguments_of(argv)
    console = Console(stderr=arguments.json, width=None if sys.stdout.isatty() else 150)
    try:
        found = parts(arguments.module, n_qps=arguments.qps, n_mrs=arguments.mrs)
    except ValueError as error:
        parser.error(str(error))
    unknown = set(arguments.module) - {part.name for part in found}
    if unknown:
        parser.error(f"--module must be a module of the engine, not {', '.join(sorted(unknown))}")
    floors = recorded()
    if arguments.only_changed:
        same  = len(found)
        found = changed(found, floors["modules"])
        console.print(f"{same - len(found)} modules are what their floors were recorded of; mapped anew: {', '.join(p.name for p in found) or 'none'}")
    rows  = of_parts(found)
    whole = joined(found) if arguments.joined else None
    if arguments.json:
        print(json.dumps({"qps": arguments.qps, "mrs": arguments.mrs, "yosys": mapping.version(), "modules": rows, "joined": whole}))
    elif rows:
        console.print(table(rows, whole or (None if arguments.module or arguments.only_changed else summed(rows))))
        for name, row in rows.items() if arguments.paths else ():
            show_paths(console, name, row, arguments.paths)
        if whole:
            console.print("ends by levels, mapped:  ", ", ".join(f"{k}: {v}" for k, v in whole["by_mapped"].items()))
            console.print("ends by levels, repacked:", ", ".join(f"{k}: {v}" for k, v in whole["by_repacked"].items()))
            console.print(f"nets of more than {LIMITS['loads']} loads: {whole['nets_wide']}; loops: {whole['loops']}")
            show_paths(console, "whole", whole, arguments.paths or 10)
    if arguments.record:
        record(rows, {part.name: mapping.key_of(part) for part in found})
    wrong = list(faults({**rows, **({"whole": whole} if whole else {})}))
    if arguments.check:
        if floors["yosys"] != mapping.version():
            console.print(f"floors were recorded with Yosys {floors['yosys']}, this is {mapping.version()}: not compared")
        else:
            wrong += worse(rows, floors["modules"])
    for line in wrong:
        console.print(line, markup=False)
    return env.FAILED if wrong else env.OK


if __name__ == "__main__":
    sys.exit(main())
