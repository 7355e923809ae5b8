# SPDX-License-Identifier: BSD-2-Clause
"""Rules of the sources: traps that Migen accepts silently, imports that go one way, types, licence lines, forbidden words.

A line that only looks like a trap says why in a comment that contains `lint: ok`.
"""
import ast
import functools
import re
import subprocess
import warnings
from pathlib import Path

import pytest

ROOT       = Path(__file__).resolve().parent.parent
LINE_LIMIT = 130
HARD_LIMIT = 180
FILE_LIMIT = 400

# Python that is no gateware: every public function and method says its types. UNTYPED: the SoC itself, a script about it, and
# what every recorded floor of sim/resources.py has in its key: a changed line there has all modules mapped anew.
TYPED   = ("software/control", "sim", "roce_soc/abi.py", "roce_soc/errors.py", "roce_soc/opcodes.py", "roce_soc/verbs.py")
UNTYPED = ("sim/soc.py", "sim/demo", "sim/synthesis/mapping.py")

# Sources ------------------------------------------------------------------------------------------

@functools.lru_cache
def tracked():
    """Text files of the project: those under version control, or all where there is none."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0 and done.stdout:
        names = [ROOT / n for n in done.stdout.split("\0") if n]
    else:
        folders = ("roce_soc", "sim", "test", "software", "targets", "doc", "examples", ".ci")
        names   = [p for f in folders for p in (ROOT / f).rglob("*")] + list(ROOT.glob("*.*"))
    return sorted(p for p in names if p.is_file() and b"\0" not in p.read_bytes()[:4096] and "__pycache__" not in p.parts)


def python_files(*folders):
    def is_python(path):
        return path.suffix == ".py" or path.suffix == "" and path.read_text(errors="replace").startswith("#!/usr/bin/env python3")
    return [p for p in tracked() if p.relative_to(ROOT).parts[0] in folders and is_python(p)]


def name_of(path):
    return str(path.relative_to(ROOT))

# Migen traps --------------------------------------------------------------------------------------

BITWISE  = (ast.BitAnd, ast.BitOr, ast.BitXor)
HARDWARE = {"If", "Elif", "Else", "Mux", "Case", "eq", "act", "NextValue", "NextState"}


class Traps(ast.NodeVisitor):
    """Collects (line, text) of expressions whose Python meaning is not the hardware that was meant.

    `a == b & c` is `a == (b & c)`; `a < b < c` and and/or/not ask Python for a truth value, which Migen gives silently for
    comparisons with ==; a difference is one bit wider than its operands, so its top bit is not the one a slice expects.
    """
    def __init__(self, source):
        self.source   = source.splitlines()
        self.found    = []
        self.hardware = 0
        self.visit(ast.parse(source))

    def add(self, node, text):
        if "lint: ok" not in self.source[node.lineno - 1]:
            self.found.append((node.lineno, text))

    def in_parentheses(self, node):
        """Whether a pair of parentheses encloses exactly the node, over line ends too."""
        before = "\n".join([*self.source[:node.lineno - 1], self.source[node.lineno - 1].encode()[:node.col_offset].decode()])
        after  = "\n".join([self.source[node.end_lineno - 1].encode()[node.end_col_offset:].decode(),
                            *self.source[node.end_lineno:]])
        return before.rstrip().endswith("(") and after.lstrip().startswith(")")

    def visit_Compare(self, node):
        for side in (node.left, *node.comparators):
            if isinstance(side, ast.BinOp) and isinstance(side.op, BITWISE) and not self.in_parentheses(side):
                self.add(node, "comparison beside & | ^ without parentheses")
        if self.hardware and len(node.ops) > 1:
            self.add(node, "chained comparison")
        self.generic_visit(node)

    def visit_BoolOp(self, node):
        # `field or 0` and `with_x and ...` choose in Python, before there is hardware.
        plain = all(isinstance(v, ast.Constant) or getattr(v, "id", getattr(v, "attr", "")).startswith("with_")
                    for v in node.values[:-1]) or isinstance(node.values[-1], ast.Constant)
        if self.hardware and not plain:
            self.add(node, "and/or on signals")
        self.generic_visit(node)

    def visit_UnaryOp(self, node):
        if self.hardware and isinstance(node.op, ast.Not):
            self.add(node, "not on a signal")
        self.generic_visit(node)

    def visit_Subscript(self, node):
        if isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Sub):
            self.add(node, "slice of a difference")
        self.generic_visit(node)

    def visit_IfExp(self, node):
        held, self.hardware = self.hardware, 0
        self.visit(node.test)
        self.hardware = held
        self.visit(node.body)
        self.visit(node.orelse)

    def visit_comprehension(self, node):
        held, self.hardware = self.hardware, 0
        for test in node.ifs:
            self.visit(test)
        self.hardware = held
        self.visit(node.iter)

    def visit_Call(self, node):
        inside = getattr(node.func, "id", getattr(node.func, "attr", "")) in HARDWARE
        self.visit(node.func)
        self.hardware += inside
        for argument in (*node.args, *(k.value for k in node.keywords)):
            self.visit(argument)
        self.hardware -= inside

    def visit_AugAssign(self, node):
        target = ast.unparse(node.target)
        inside = bool(re.search(r"\b(comb|sync)\b", target))
        self.hardware += inside
        self.visit(node.value)
        self.hardware -= inside


@pytest.mark.parametrize("text, trap", [
    ("self.comb += x.eq(a == b & c)",               "comparison beside"),
    ("self.comb += x.eq((a ^ b) | c == d)",         "comparison beside"),
    ("If(a & 3 == 1, x.eq(1))",                     "comparison beside"),
    ("If(0 < a < 3, x.eq(1))",                      "chained"),
    ("x.eq(Mux((a == 1) and b, c, d))",             "and/or"),
    ("self.sync += If(a or b, x.eq(1))",            "and/or"),
    ("NextValue(x, not a)",                         "not on a signal"),
    ("self.sync.roce += x.eq(not a)",               "not on a signal"),
    ("y = (a - b)[23]",                             "slice of a difference"),
    ("self.comb += x.eq((a == b) & (c == d))",      None),
    ("self.comb += x.eq(\n    (a & b) == c)",       None),
    ("self.comb += x.eq((\n    a & b) == c)",       None),
    ("if not 0 < width <= 512: raise ValueError",   None),
    ("x.eq(row.code or 0)",                         None),
    ("x.eq(a if b and not c else d)",               None),
    ("Cat(*[a.eq(b) for a in c if a and not d])",   None),
    ("y = (a - b)[23]   # lint: ok, both 24 bits",  None),
])
def test_traps_are_seen(text, trap):
    found = [t for _, t in Traps(text).found]
    assert any(trap in t for t in found) if trap else not found


def test_no_migen_traps():
    found = [f"{name_of(p)}:{line}: {text}" for p in python_files("roce_soc", "targets", "examples", "sim")
             for line, text in Traps(p.read_text()).found]
    assert not found, "\n".join(found)

# Imports ------------------------------------------------------------------------------------------

def imports(source):
    """Names of modules a source imports, at any depth of its code."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{a.name}" for a in node.names)


HDL = {"migen", "litex", "liteeth", "litedram", "litepcie"}


@functools.lru_cache
def is_gateware(module):
    """Whether a module of roce_soc needs a hardware language, by itself or through its imports at module level."""
    path = ROOT / (module.replace(".", "/") + ".py")
    if not path.exists():
        return False
    tree = ast.parse(path.read_text())
    top  = "\n".join(ast.unparse(n) for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom)))
    return any(name.split(".")[0] in HDL or name.startswith("roce_soc") and name != module and is_gateware(name)
               for name in imports(top))


def test_tables_are_no_gateware():
    assert is_gateware("roce_soc.common")
    for table in ("opcodes", "errors", "verbs", "abi"):
        assert not is_gateware(f"roce_soc.{table}")


def forbidden_import(path, source):
    """Yields imports that a file of this folder must not have."""
    folder = name_of(path)
    for name in imports(source):
        top = name.split(".")[0]
        if top == "scapy" and not folder.startswith("test/"):
            yield f"{name}: scapy is an oracle of test/ alone"
        if folder.startswith("roce_soc/") and top in ("test", "software", "sim", "targets", "scapy"):
            yield f"{name}: the gateware stands below everything else"
        if folder.startswith(("software/", "test/model/")) and (top in HDL or is_gateware(name)):
            yield f"{name}: gateware in host code"


@pytest.mark.parametrize("path, source, bad", [
    ("roce_soc/a.py",    "from test.model import qp",              True),
    ("roce_soc/a.py",    "from roce_soc import opcodes",           False),
    ("software/a.py",    "import litex",                           True),
    ("software/a.py",    "from litex.tools import x",              True),
    ("test/model/a.py",  "from roce_soc.common import x",          True),
    ("test/model/a.py",  "from roce_soc import common",            True),
    ("test/model/a.py",  "def f():\n    import roce_soc.common",   True),
    ("test/model/a.py",  "from roce_soc import opcodes, errors",   False),
    ("sim/a.py",         "import scapy.all",                       True),
    ("test/test_a.py",   "import scapy.all",                       False),
])
def test_forbidden_imports_are_seen(path, source, bad):
    assert bool(list(forbidden_import(ROOT / path, source))) == bad


def test_imports_go_one_way():
    found = [f"{name_of(p)}: {text}" for p in python_files("roce_soc", "software", "sim", "targets", "test", "examples")
             for text in forbidden_import(p, p.read_text())]
    assert not found, "\n".join(found)


def room(path):
    """Folder of a module of roce_soc, below transport/ the folder there; a file beside them is a room of its own."""
    parts = path.relative_to(ROOT / "roce_soc").with_suffix("").parts
    return ".".join(parts[:-1]) or parts[0]


def circles(edges):
    """Rooms that import each other, through others or not, as [(room, room)]."""
    reach = {a: set(to) for a, to in edges.items()}
    grown = True
    while grown:
        grown = False
        for near in reach.values():
            further  = set().union(*(reach.get(b, set()) for b in near)) - near
            near    |= further
            grown    = grown or bool(further)
    return sorted((a, b) for a in reach for b in reach[a] if a < b and a in reach.get(b, ()))


def test_circles_are_seen():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert circles({"a": {"b", "c"}, "b": {"c"}}) == []


def test_no_folder_imports_its_importers():
    """The folders of roce_soc, and those below transport/, stand one above the other."""
    folders = {}
    for path in python_files("roce_soc"):
        if path.name == "__init__.py":
            continue
        for name in imports(path.read_text()):
            other = ROOT / (name.replace(".", "/") + ".py")
            if name.startswith("roce_soc.") and other.exists() and room(other) != room(path):
                folders.setdefault(room(path), set()).add(room(other))
    assert {"queue", "transport.requester", "packet"} <= set(folders)
    assert circles(folders) == []


def test_every_module_says_latency_and_errors():
    """The docstring of each public class of gateware tells how long it takes and how it fails, be it not at all."""
    poor = []
    for path in python_files("roce_soc"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and "LiteXModule" in map(ast.unparse, node.bases):
                said  = ast.get_docstring(node) or ""
                poor += [f"{name_of(path)}: {node.name} has no {word}" for word in ("Latency", "Errors") if not re.search(rf"\b{word} ?:", said)]
    assert not poor, "\n".join(poor)

# Types --------------------------------------------------------------------------------------------

def untyped(body, owner=""):
    """Yields "line: name" of public functions and methods that leave the type of a parameter or of the result open.

    Public are names without an underscore in front and Python's own (`__init__`); what stands inside of a function is its own.
    """
    for node in body:
        private = node.name.startswith("_") and not node.name.endswith("__") if hasattr(node, "name") else False
        if isinstance(node, ast.ClassDef) and not private:
            yield from untyped(node.body, f"{owner}{node.name}.")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not private:
            static = any(ast.unparse(d) == "staticmethod" for d in node.decorator_list)
            given  = [*node.args.posonlyargs, *node.args.args][1 if owner and not static else 0:]
            given += [*node.args.kwonlyargs, *filter(None, (node.args.vararg, node.args.kwarg))]
            if node.returns is None or not all(argument.annotation for argument in given):
                yield f"{node.lineno}: {owner}{node.name}"
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            yield from untyped([*node.body, *getattr(node, "orelse", ())], owner)


@pytest.mark.parametrize("source, good", [
    ("def f(a: int) -> int: pass",                                True),
    ("def f(a) -> int: pass",                                     False),
    ("def f(a: int): pass",                                       False),
    ("def f(*a: int, **b) -> int: pass",                          False),
    ("def f(*, a) -> int: pass",                                  False),
    ("def _f(a): pass",                                           True),
    ("def f() -> None:\n    def g(a): pass",                      True),
    ("class A:\n    def f(self, a: int) -> int: pass",            True),
    ("class A:\n    def f(self, a) -> int: pass",                 False),
    ("class A:\n    def __init__(self): pass",                    False),
    ("class A:\n    @staticmethod\n    def f(a) -> int: pass",    False),
    ("class _A:\n    def f(self, a): pass",                       True),
    ("if 1:\n    def f(a): pass",                                 False),
])
def test_untyped_is_seen(source, good):
    assert (list(untyped(ast.parse(source).body)) == []) == good


def test_python_layers_say_their_types():
    found = [f"{name_of(p)}:{text}" for p in python_files(*{name.split("/")[0] for name in TYPED})
             if name_of(p) not in UNTYPED and name_of(p).startswith(tuple(t if t.endswith(".py") else f"{t}/" for t in TYPED))
             for text in untyped(ast.parse(p.read_text()).body)]
    assert not found, "no type of a parameter or of the result:\n" + "\n".join(found)

# Text ---------------------------------------------------------------------------------------------

NO_LICENCE_LINE = {".pcap", ".json", ".csv", ".txt", ".md", ".png", ".svg", ".init", ".in"}
WORDS = {
    r"\b(TODO|FIXME|XXX|HACK)\b":                            "unfinished work belongs in an issue",
    r"(?<![\w.])/(work|root|home)/\w":                       "path of one machine",
    r"\bpypi\.org\b|\bfiles\.pythonhosted\b|\bnpmjs\.(com|org)\b": "host of a registry",
}


def test_licence_line():
    found = [name_of(p) for p in tracked() if p.suffix not in NO_LICENCE_LINE and p.name not in (".gitignore", "LICENSE")
             and p.stat().st_size and "SPDX-License-Identifier: BSD-2-Clause" not in p.read_text(errors="replace")[:600]]
    assert not found, "no SPDX line: " + ", ".join(found)


def test_no_forbidden_words():
    found = []
    for path in tracked():
        if path == Path(__file__).resolve() or path.suffix in (".json", ".csv"):
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            found += [f"{name_of(path)}:{number}: {why}: {line.strip()[:80]}" for word, why in WORDS.items()
                      if re.search(word, line)]
    assert not found, "\n".join(found)


def test_line_length():
    """Lines beyond the soft limit are counted, beyond the hard one refused."""
    found, soft = [], []
    for path in tracked():
        if path.suffix in (".py", ".c", ".h", ".cpp"):
            lines  = path.read_text().splitlines()
            found += [f"{name_of(path)}:{n}: {len(line)} characters" for n, line in enumerate(lines, 1) if len(line) > HARD_LIMIT]
            long   = sum(len(line) > LINE_LIMIT for line in lines)
            soft  += [f"{name_of(path)} {long}"] * bool(long)
    if soft:
        warnings.warn(f"lines beyond {LINE_LIMIT} characters: {', '.join(soft)}", stacklevel=1)
    assert not found, "\n".join(found)


def test_file_length_report():
    """Long files are named, not refused: each wants a reason or a split."""
    long = {name_of(p): len(p.read_text().splitlines()) for p in python_files("roce_soc", "software", "sim", "targets", "test")}
    found = [f"{name} {lines}" for name, lines in sorted(long.items(), key=lambda i: -i[1]) if lines > FILE_LIMIT]
    if found:
        warnings.warn(f"files beyond {FILE_LIMIT} lines: {', '.join(found)}", stacklevel=1)
    assert max(long.values()) <= 2 * FILE_LIMIT, f"longer than {2 * FILE_LIMIT} lines: {max(long, key=long.get)}"
