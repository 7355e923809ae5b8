#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Plants single-line faults in the gateware and asks which of them the tests find.

    sim/mutate.py [--seed N] [--count 30] [--only MODULE ...] [--no-engine] [--json] [--list]
    sim/mutate.py --file FILE [--line L ...] [--kind KIND ...] [--tests TEST ...]

A fault is one of: a comparison turned, a constant one more or less, an assignment dropped, a clearing dropped, a
condition or a choice swapped, a term of a condition dropped. The seed draws module, kind and place. Each is applied in
a copy of the tree; the module's own tests run first, those of the whole engine only where they stay green. A fault that
does not elaborate is drawn anew.
A survivor that changes nothing is argued in sim/mutants.json ({file, line, fault, why}).
Exit status: 0 every fault found or argued, 1 one survived or was not judged in time, 2 bad argument.
"""
import argparse
import ast
import json
import os
import pathlib
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from sim import env  # noqa: E402
if __name__ == "__main__":
    env.enter()

ROOT   = pathlib.Path(__file__).resolve().parents[1]
ARGUED = ROOT / "sim" / "mutants.json"
TREE   = ("roce_soc", "sim", "software", "test", "targets", "setup.py", "constraints.txt", "pytest.ini")
CPU_SECONDS = 900      # of one run of tests; a fault may let a wait run to its end.

# Module: files of roce_soc, tests of its own (patterns) in the order of their time.
_SEND = ("test_requester*.py", "test_completer*.py", "test_retry*.py")
MODULES = {
    "decoder":   (("packet/decoder.py", "network/receive.py"), ("test_receive*.py",)),
    "buffer":    (("packet/buffer.py",), ("test_buffer*.py", "test_receive*.py")),
    "responder": (("transport/responder/*.py",), ("test_responder*.py",)),
    "reply":     (("transport/reply/*.py",), ("test_reply*.py", "test_responder*.py")),
    "requester": (("transport/requester/*.py",), _SEND),
    "completer": (("transport/completer/*.py",), ("test_completer*.py", *_SEND)),
    "retry":     (("transport/retire/*.py",), ("test_retry*.py", "test_retire*.py", *_SEND)),
    "mr":        (("memory/mr.py",), ("test_mr*.py", "test_responder.py")),
    "sq":        (("queue/sq*.py",), ("test_sq*.py", "test_push.py", "test_requester*.py")),
    "rq":        (("queue/rq.py",), ("test_rq*.py", "test_responder*.py")),
    "cq":        (("queue/cq.py",), ("test_cq*.py",)),
    "eq":        (("queue/eq.py",), ("test_eq*.py", "test_cq*.py")),
    "doorbell":  (("queue/doorbell.py", "queue/push.py"), ("test_doorbell*.py", "test_push.py")),
}
ENGINE = tuple(f"test/test_{name}.py" for name in ("engine_cases", "engine_frames", "engine", "engine_stress", "engine_push"))

# Faults -------------------------------------------------------------------------------------------

TURNED = {ast.Eq: "!=", ast.NotEq: "==", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
SIGNS  = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
Row    = dict[str, Any]      # of the result: file, number, line, fault, kind, verdict, by.
KINDS  = ("compare", "constant", "dropped", "cleared", "branch", "term")


@dataclass(frozen=True)
class Fault:
    """One change: bytes `first` to `last` of line `number` of `file` become `new`."""
    file: str
    number: int
    first: int
    last: int
    new: str
    kind: str
    line: str                    # the line as it stands, stripped.

    @property
    def what(self) -> str:
        """The change for people; with file and line it names the fault."""
        old = self.line[self.first - self.indent:self.last - self.indent]
        return f"{old} -> {self.new}" if self.new else f"{old} dropped"

    indent: int = 0

    def apply(self, root: pathlib.Path) -> None:
        """Writes the changed file below `root`."""
        path  = root / self.file
        lines = path.read_text().splitlines(keepends=True)
        text  = lines[self.number - 1]
        lines[self.number - 1] = text[:self.first] + (self.new or "[]") + text[self.last:]
        path.write_text("".join(lines))


class Places(ast.NodeVisitor):
    """Collects the faults that a file can have; `hardware` is set inside of statements that become logic."""
    LOGIC = ("If", "Elif", "Else", "Mux", "Case", "eq", "act", "NextValue")

    def __init__(self, file: str, source: str) -> None:
        self.file, self.lines, self.hardware = file, source.splitlines(), False
        self.found: list[Fault] = []
        self.visit(ast.parse(source))

    def _add(self, kind: str, new: str, start: ast.expr, end: ast.expr | None = None) -> None:
        end  = end or start
        if start.lineno == end.end_lineno:
            self._found(start.lineno, start.col_offset, end.end_col_offset, new, kind)

    def _found(self, number: int, first: int, last: int, new: str, kind: str) -> None:
        text   = self.lines[number - 1]
        indent = len(text) - len(text.lstrip())
        self.found.append(Fault(self.file, number, first, last, new, kind, text.strip(), indent))

    def _text(self, node: ast.expr) -> str:
        return self.lines[node.lineno - 1][node.col_offset:node.end_col_offset]

    def _within(self, node: ast.AST, hardware: bool) -> None:
        before, self.hardware = self.hardware, hardware
        self.visit(node)
        self.hardware = before

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name == "eq" and len(node.args) == 1:
            value = node.args[0]
            self._add("cleared" if isinstance(value, ast.Constant) and value.value == 0 else "dropped", "", node)
        if name in ("If", "Elif") and node.args and node.args[0].lineno == node.args[0].end_lineno:
            self._add("branch", f"~({self._text(node.args[0])})", node.args[0])
        if name == "Mux" and len(node.args) == 3 and node.args[1].lineno == node.args[2].end_lineno:
            self._add("branch", f"{self._text(node.args[2])}, {self._text(node.args[1])}", node.args[1], node.args[2])
        logic = name in self.LOGIC or self.hardware and name not in ("Signal", "Record", "range", "len")
        self._within(node.func, logic)
        for value in (*node.args, *(k.value for k in node.keywords)):
            self._within(value, logic)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if self.hardware and isinstance(node.op, (ast.BitAnd, ast.BitOr)) and node.lineno == node.end_lineno:
            self._add("term", f"({self._text(node.left)})", node)
            if type(getattr(node.left, "op", None)) is not type(node.op):
                self._add("term", f"({self._text(node.right)})", node)
        self._within(node.left, self.hardware or isinstance(node.op, (ast.BitAnd, ast.BitOr)))
        self._within(node.right, self.hardware or isinstance(node.op, (ast.BitAnd, ast.BitOr)))

    def visit_Compare(self, node: ast.Compare) -> None:
        words = any(isinstance(c, ast.Constant) and isinstance(c.value, str) for c in node.comparators)
        if self.hardware and len(node.ops) == 1 and type(node.ops[0]) in TURNED and not words:
            left, right = node.left, node.comparators[0]
            if left.lineno == right.end_lineno:
                text  = self.lines[left.lineno - 1]
                sign  = SIGNS[type(node.ops[0])]
                first = text.find(sign, left.end_col_offset)
                self._found(left.lineno, first, first + len(sign), TURNED[type(node.ops[0])], "compare")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if self.hardware and type(node.value) is int:
            for value in (node.value + 1, node.value - 1):
                if value >= 0:
                    self._add("constant", str(value), node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._within(node.test, False)
        self.visit(node.body)
        self.visit(node.orelse)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self._within(node.iter, False)
        for test in node.ifs:
            self._within(test, False)

    def visit_If(self, node: ast.If) -> None:
        self._within(node.test, False)
        for statement in (*node.body, *node.orelse):
            self.visit(statement)


def places(module: str) -> list[Fault]:
    """All faults of a module's files."""
    files = [p for pattern in MODULES[module][0] for p in sorted((ROOT / "roce_soc").glob(pattern))]
    return [f for p in files for f in Places(str(p.relative_to(ROOT)), p.read_text()).found]


def draw(rng: random.Random, modules: Sequence[str]) -> Iterator[tuple[str, Fault]]:
    """Yields (module, Fault) without end, none twice."""
    pools, seen = {m: places(m) for m in modules}, set()
    while True:
        module = rng.choice(modules)
        kinds  = [k for k in KINDS if any(f.kind == k for f in pools[module])]
        fault  = rng.choice([f for kind in [rng.choice(kinds)] for f in pools[module] if f.kind == kind])
        if fault not in seen:
            seen.add(fault)
            yield module, fault

# Runs ---------------------------------------------------------------------------------------------

class Copy:
    """A copy of the tree, by default with a cache of its own: what is compiled of a fault is forgotten after it."""
    def __init__(self, own_cache: bool = True) -> None:
        shared     = pathlib.Path(os.environ.get("ROCE_VSIM_CACHE", ROOT / "build" / "vsim"))
        self.root  = pathlib.Path(tempfile.mkdtemp(prefix="roce_mutate_"))
        self.cache = self.root / "build" / "vsim" if own_cache else shared
        for name in TREE:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, self.root / name, ignore=shutil.ignore_patterns("__pycache__", "build"))
            elif source.exists():
                shutil.copy2(source, self.root / name)
        self.cache.mkdir(parents=True, exist_ok=True)
        for path in shared.iterdir() if own_cache and shared.exists() else ():
            if path.suffix not in (".lock", ".tmp"):
                (self.cache / path.name).symlink_to(path.resolve())

    def optimise(self, on: bool) -> None:
        """Whether models are compiled with the compiler's optimisation from here on."""
        name = pathlib.Path("sim") / "harness" / "compile.py"
        text = (ROOT / name).read_text()
        (self.root / name).write_text(text if on else text.replace('"-O1"', '"-O0"'))

    def test(self, names: Iterable[str], seed: int = 1) -> tuple[str, str]:
        """Runs tests until one fails: (verdict "green", "red", "UNKNOWN" or "broken", name of the test or message)."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=line", "-p", "no:cacheprovider", "--timeout=0",
                   "--seed", str(seed), *names]
        variables = dict(os.environ, ROCE_VSIM_CACHE=str(self.cache), PYTHONDONTWRITEBYTECODE="1")
        done = subprocess.run(command, cwd=self.root, env=variables, capture_output=True, text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS)))
        if done.returncode == 0:
            return "green", ""
        first = re.search(r"^(FAILED|ERROR) (\S+)", done.stdout, re.M)
        if done.returncode < 0:
            return "UNKNOWN", f"not over in {CPU_SECONDS} s of processor time"
        # Of a failure pytest names the file that raised, of an error in a fixture the message alone.
        where  = re.search(r"^(/[^:\s]+):\d+: (.*)$", done.stdout, re.M)
        inside = where and re.search(f"/(migen|litex)/|/harness/(compile|emit).py$|^{self.root}/roce_soc/", where[1])
        error  = re.search(r"^E  +(.*)$", done.stdout, re.M)
        judged = error and re.search("Timeout|Violation|^assert|AssertionError", error[1])
        setup  = first and first[1] == "ERROR" and not judged
        if done.returncode != 1 or first is None or inside or setup:
            return "broken", error[1] if error else where[2] if where else (done.stdout + done.stderr)[-300:]
        return "red", first[2]

    def clean(self, fault: Fault) -> None:
        """The tree as it was; nothing of the fault's models stays."""
        shutil.copy2(ROOT / fault.file, self.root / fault.file)
        for path in self.cache.iterdir():
            if not path.is_symlink():
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def close(self) -> None:
        """Removes the copy."""
        shutil.rmtree(self.root, ignore_errors=True)


def tests_of(module: str, fault: Fault) -> list[str]:
    """Own tests of a module, each file once; those of the fault's own file first."""
    names = [str(p.relative_to(ROOT)) for pattern in MODULES[module][1] for p in sorted((ROOT / "test").glob(pattern))]
    own   = f"test/test_{pathlib.Path(fault.file).stem}.py"
    return list(dict.fromkeys([own]*(own in names) + names))


def argument(fault: Fault, argued: Iterable[Mapping[str, str]]) -> str | None:
    """Why a fault changes nothing, or None."""
    name = dict(file=fault.file, line=fault.line, fault=fault.what)
    return next((a["why"] for a in argued if {k: a[k] for k in name} == name), None)


def judge(copy: Copy, module: str, fault: Fault, argued: Iterable[Mapping[str, str]], args: argparse.Namespace) -> Row | None:
    """Row of the result: dict of file, line, fault, kind, verdict, by; None where the fault does not elaborate."""
    engine = [n for n in ENGINE if not args.no_engine and not args.tests and (ROOT / n).exists()]
    fault.apply(copy.root)
    try:
        # A small model is compiled once and runs shortly: without optimisation it is judged in half the time.
        for names, optimised in ((args.tests or tests_of(module, fault), False), (engine, True)):
            copy.optimise(optimised)
            verdict, by = copy.test(names, args.seed) if names else ("green", "")
            if verdict == "broken":
                return None
            if verdict != "green":
                break
        why = argument(fault, argued) if verdict == "green" else None
    finally:
        copy.clean(fault)
    return row_of(fault, "argued" if why else {"green": "SURVIVED"}.get(verdict, verdict), why or by)


def row_of(fault: Fault, verdict: str, by: str | None) -> Row:
    """A row of the result."""
    return dict(file=fault.file, number=fault.number, line=fault.line, fault=fault.what, kind=fault.kind,
        verdict=verdict, by=by)

# Command ------------------------------------------------------------------------------------------

def line(row: Row) -> str:
    """One row for people."""
    by = f"  ({row['by']})" if row["by"] else ""
    return f"{row['verdict']:<8} {row['file']}:{row['number']} [{row['kind']}] {row['fault']}{by}"


def chosen(args: argparse.Namespace, rng: random.Random) -> Iterator[tuple[str, Fault]]:
    """Iterator of (module, fault): those of --file, --line, --kind, or drawn ones without end."""
    modules = list(dict.fromkeys(args.only or MODULES))
    if not args.file:
        return draw(rng, modules)
    return iter([(m, f) for m in modules for f in places(m) if f.file.endswith(args.file)
        and (not args.line or f.number in args.line) and (not args.kind or f.kind in args.kind)])


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="decides the faults (default: 1)")
    parser.add_argument("--count", type=int, default=30, help="faults that elaborate (default: 30)")
    parser.add_argument("--only", nargs="+", metavar="MODULE", help=f"of these alone: {', '.join(MODULES)}")
    parser.add_argument("--file", help="every fault of this file instead of drawn ones")
    parser.add_argument("--line", type=int, nargs="+", help="every fault of these lines of --file")
    parser.add_argument("--kind", nargs="+", choices=KINDS, help="of --file, faults of these kinds alone")
    parser.add_argument("--no-engine", action="store_true", help="the modules' own tests alone")
    parser.add_argument("--tests", nargs="+", help="these tests alone, as pytest names them")
    parser.add_argument("--list", action="store_true", help="print the faults, run nothing")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON, at the end")
    args  = parser.parse_args(argv)
    wrong = [f"there is no module {m!r}, only {', '.join(MODULES)}" for m in args.only or () if m not in MODULES]
    least = (("seed", 0), ("count", 1))
    wrong += [f"{n} must be {low} or more, not {vars(args)[n]}" for n, low in least if vars(args)[n] < low]
    wrong += ["--line and --kind need --file"] * bool((args.line or args.kind) and not args.file)
    if wrong:
        print("mutate: " + "; ".join(wrong), file=sys.stderr)
        return env.BAD_ARGUMENT
    faults, begun = chosen(args, random.Random(args.seed)), time.monotonic()
    rows: list[Row] = []
    argued = json.loads(ARGUED.read_text()) if ARGUED.exists() else []
    copy   = None if args.list else Copy()
    try:
        for module, fault in faults:
            if len(rows) == args.count and not args.file:
                break
            why = argument(fault, argued)
            row = row_of(fault, module, why) if args.list else judge(copy, module, fault, argued, args)
            if row:
                rows.append(row)
                if not args.json:
                    print(f"{len(rows):>3} {time.monotonic() - begun:>6.0f} s  {line(row)}", flush=True)
    finally:
        if copy:
            copy.close()
    survived = [r for r in rows if r["verdict"] in ("SURVIVED", "UNKNOWN")]
    if args.json:
        print(json.dumps(rows, indent=1))
    else:
        counts = {v: sum(r["verdict"] == v for r in rows) for v in sorted({r["verdict"] for r in rows})}
        print(f"mutate: {len(rows)} faults, " + ", ".join(f"{n} {v}" for v, n in counts.items()))
        for row in survived:
            print(f"  {line(row)}\n    {row['line']}")
    return env.FAILED if survived else env.OK


if __name__ == "__main__":
    sys.exit(main())
