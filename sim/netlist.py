#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""What a synthesis tool would refuse in the engine's netlist: loops, second drivers, wires without a driver.

    ./sim/netlist.py                 # all parts; needs yosys
    ./sim/netlist.py --part slowpath

Verilator judges whole blocks, Yosys each operator and each signal by itself. The parts together are all of the gateware but CPU
and hard blocks: the engine in a clock of its own behind two memories, and the slow path.

Exit status: 0 good, 1 a fault, 2 bad argument, 3 no yosys.
"""
import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from sim import env  # noqa: E402

env.enter("yosys")

import subprocess  # noqa: E402
import tempfile    # noqa: E402
import time        # noqa: E402

from roce_soc.network.slowpath import RoCESlowPath  # noqa: E402
from sim.engine import Engines                      # noqa: E402
from sim.harness.emit import emit                   # noqa: E402

SCRIPT = """\
read_verilog -sv {verilog}
hierarchy -check -top top
proc
flatten
opt_clean
check -assert
"""


def engine() -> tuple[str, dict[str, str]]:
    """The engine in a clock of its own, two memories behind the hub."""
    top = Engines(1, {}, targets=2, separate=True)
    return emit(top, top.ios(), ("sys", "roce", "mac"))


def slowpath() -> tuple[str, dict[str, str]]:
    """LiteEth's cores between the engine and the CPU."""
    path = RoCESlowPath(0x02_00_00_00_00_01, "10.0.0.1", 250e6)
    return emit(path, {"sink": path.sink, "source": path.source})


PARTS = {"engine": engine, "slowpath": slowpath}


def plain(text: str) -> str:
    """Verilog as LiteX writes it: Yosys takes no non-blocking assignment in always_comb."""
    return text.replace("always_comb", "always @(*)")


def check(text: str, folder: pathlib.Path) -> tuple[bool, str]:
    """Runs Yosys' check on Verilog text whose top is `top`; returns (good, what it said)."""
    verilog, script = folder / "top.v", folder / "check.ys"
    verilog.write_text(plain(text))
    script.write_text(SCRIPT.format(verilog=verilog))
    done = subprocess.run(["yosys", "-q", str(script)], capture_output=True, text=True)
    return done.returncode == 0, (done.stdout + done.stderr).strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog="Exit status: 0 good, 1 a fault, 2 bad argument, 3 no yosys.")
    parser.add_argument("--part", choices=PARTS, action="append", help="check this part only (default: all)")
    arguments = parser.parse_args()
    status    = env.OK
    for name in arguments.part or PARTS:
        start = time.monotonic()
        print(f"{name}: {PARTS[name].__doc__} ...", flush=True)
        text, files = PARTS[name]()
        with tempfile.TemporaryDirectory() as folder:
            for file, content in files.items():
                (pathlib.Path(folder) / file).write_text(content)
            good, said = check(text, pathlib.Path(folder))
        print(f"{name}: {'good' if good else 'FAULT'}, {time.monotonic() - start:.0f} s")
        if not good:
            print(said[-4000:])
            status = env.FAILED
    return status


if __name__ == "__main__":
    sys.exit(main())
