# SPDX-License-Identifier: BSD-2-Clause
"""Where the parts beside this package lie, and the commands of an installed one.

In a clone `targets`, `software` and `sim` are the package's neighbours; a wheel carries them inside it, in `_tree`, so that it
brings no other names of modules. No gateware import.
"""
import runpy
import sys
from pathlib import Path

PACKAGE   = Path(__file__).resolve().parent
INSTALLED = (PACKAGE / "_tree").is_dir()
TREE      = PACKAGE / "_tree" if INSTALLED else PACKAGE.parent


def enter():
    """Makes `targets`, `software` and `sim` importable, in front of whatever else has these names."""
    if str(TREE) not in sys.path:
        sys.path.insert(0, str(TREE))


def build_dir():
    """Folder of what commands make: build/ of the clone, or of the current folder where the package is installed."""
    return (Path.cwd() if INSTALLED else TREE) / "build"


def _run(*parts):
    """Runs a script of the tree as a program."""
    enter()
    script = TREE.joinpath(*parts)
    sys.argv[0] = str(script)
    runpy.run_path(str(script), run_name="__main__")


def vcu118():
    """Console script roce_vcu118: targets/vcu118.py."""
    _run("targets", "vcu118.py")


def info():
    """Console script roce_info: software/control/roce_info.py."""
    _run("software", "control", "roce_info.py")


def simulate():
    """Console script roce_sim: sim/roce_sim.py."""
    _run("sim", "roce_sim.py")
