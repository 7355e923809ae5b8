#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Fills the tables of README.md and doc/*.md from the sources they describe.

    doc/generate.py [--check]

A block begins with <!-- table: NAME --> and ends with <!-- end -->; what stands between is made here, never by hand.
"""
import argparse
import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from sim import env  # noqa: E402
if __name__ == "__main__":
    env.enter()

from roce_soc import abi, errors, opcodes, verbs  # noqa: E402
from sim import bench_rows  # noqa: E402

PAGES = ("README.md", "doc/architecture.md", "doc/programmers_guide.md", "doc/debugging.md")
BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(heads, rows):
    """A markdown table."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|"*len(heads)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]) + "\n"


# From data ----------------------------------------------------------------------------------------

def layout(fields):
    """Fields of a structure in memory."""
    return table(("byte", "bits", "field", "meaning"), [(e.byte, e.width if not e.bit else f"{e.width} from bit {e.bit}", e.name, e.doc) for e in fields])


def arguments(fields):
    """Argument words of a command."""
    def known(arg):
        """What of a field is built, in words for where it is not all."""
        return "" if arg.built == (1 << arg.width) - 1 else " (0 in this build)" if not arg.built else f" (bits {arg.built:#x} in this build)"
    return table(("word", "bits", "field", "meaning"), [(e.word, f"{e.bit + e.width - 1}:{e.bit}", e.name, e.doc + known(e)) for e in fields])


def constants(prefix, skip=()):
    """Constants of the ABI by prefix."""
    names = [n for n, v in vars(abi).items() if n.startswith(prefix) and isinstance(v, int) and not n.endswith(("_BYTES", "_WORDS")) and n not in skip]
    return table(("value", "name"), [(f"0x{getattr(abi, n):02x}", n) for n in sorted(names, key=lambda n: getattr(abi, n))])


def transitions():
    """Changes of state of an RC queue pair with the attributes they need."""
    def names(mask):
        return " ".join(n for n, bit in verbs.ATTR_BITS.items() if mask >> bit & 1) or "-"
    rows = [t for t in verbs.TRANSITIONS.values() if t.qp_type == "RC" and t.new not in (verbs.QPS_RESET, verbs.QPS_ERR)]
    return table(("from", "to", "must carry", "may carry"),
                 [(verbs.QP_STATES[t.old], verbs.QP_STATES[t.new], names(t.required), names(t.optional)) for t in rows])


# From sources -------------------------------------------------------------------------------------

def modules():
    """Every file of roce_soc/: its classes and the sentence it begins with."""
    rows = []
    for path in sorted((ROOT / "roce_soc").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        text = ast.get_docstring(tree)
        if path.name == "__init__.py" or not text:
            continue
        classes = [n.name for n in tree.body if isinstance(n, ast.ClassDef) and not n.name.startswith("_")]
        rows.append((str(path.relative_to(ROOT / "roce_soc")), ", ".join(f"`{c}`" for c in classes) or "-", text.split("\n\n")[0].replace("\n", " ")))
    rows.sort(key=lambda r: (r[0].count("/"), r[0]))
    return table(("file", "classes", "what"), rows)


def _core():
    return ast.walk(ast.parse((ROOT / "roce_soc" / "core.py").read_text(encoding="utf-8")))


def counters():
    """Traffic counters in their order, behind the error rows."""
    names = next(n for n in _core() if isinstance(n, ast.FunctionDef) and n.name == "_traffic")
    found = next(n.value for n in ast.walk(names) if isinstance(n, ast.Return) and isinstance(n.value, ast.Dict))
    return table(("number", "counter", "counts"), [(errors.ERROR_ROWS + i, key.value, value.elts[1].value)
                                                    for i, (key, value) in enumerate(zip(found.keys, found.values))])


def sources():
    """Numbers of the parts that write refusal lines."""
    call = next(n for n in _core() if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "RoCEMonitor")
    return table(("source", "part"), [(i, key.value) for i, key in enumerate(call.args[0].keys) if key])


TABLES = {
    "send_wqe":    lambda: layout(abi.SEND_WQE),
    "recv_wqe":    lambda: layout(abi.RECV_WQE),
    "sge":         lambda: layout(abi.SGE),
    "cqe":         lambda: layout(abi.CQE),
    "cqe_wide":    lambda: layout(abi.CQE_WIDE),
    "eqe":         lambda: layout(abi.EQE),
    "doorbells":   lambda: constants("DOORBELL_"),
    "commands":    lambda: constants("CMD_"),
    "codes":       lambda: constants("CODE_"),
    "events":      lambda: constants("EVENT_"),
    "states":      lambda: constants("QP_", skip=("QP_TYPE_RC", "QP_TYPE_UC", "QP_TYPE_UD")),
    "qp_args":     lambda: arguments(abi.QP_ARGS),
    "mr_args":     lambda: arguments(abi.MR_ARGS),
    "ring_args":   lambda: arguments(abi.RING_ARGS),
    "cq_args":     lambda: arguments(abi.CQ_ARGS[len(abi.RING_ARGS):]),
    "rq_args":     lambda: arguments(abi.RQ_ARGS[len(abi.RING_ARGS):]),
    "eq_args":     lambda: arguments(abi.EQ_ARGS[len(abi.RING_ARGS):]),
    "ah_args":     lambda: arguments(abi.AH_ARGS),
    "gid_args":    lambda: arguments(abi.GID_ARGS),
    "transitions": transitions,
    "errors":      errors.markdown_table,
    "opcodes":     opcodes.markdown_table,
    "modules":     modules,
    "counters":    counters,
    "sources":     sources,
    "bench":       bench_rows.markdown,
}


def filled(text):
    """`text` with every block made anew; KeyError names a table that is not there."""
    return BLOCK.sub(lambda m: m[1] + (TABLES[m[2]]() if m[2] != "walk" else m[0][len(m[1]):-len(m[3])]) + m[3], text)


def fill(path, write=True):
    """Makes the tables of a page anew; True when that changes it."""
    text = path.read_text(encoding="utf-8")
    made = filled(text)
    if write and made != text:
        path.write_text(made, encoding="utf-8")
    return made != text


def main():
    parser = argparse.ArgumentParser(description="Fills the tables of doc/*.md from the sources they describe.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 and name the pages that are stale")
    args  = parser.parse_args()
    stale = []
    for name in PAGES:
        if fill(ROOT / name, write=not args.check):
            stale.append(name)
    if stale:
        print(("stale: " if args.check else "made: ") + " ".join(stale))
    return env.FAILED if args.check and stale else env.OK


if __name__ == "__main__":
    sys.exit(main())
