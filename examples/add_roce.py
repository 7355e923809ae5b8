#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""A RoCE port in somebody else's LiteX SoC: one call. Writes Verilog and csr.json to build/add_roce."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from sim import env

env.enter()

from litex.build.io import CRG
from litex.soc.integration.builder import Builder
from litex.soc.integration.soc_core import SoCMini
from litex_boards.platforms.sqrl_xcu1525 import Platform

from roce_soc import grouping
from roce_soc.phy.model import RoCEPHYModel
from roce_soc.soc import add_roce

platform = Platform()
soc      = SoCMini(platform, 250e6, ident="my SoC")
soc.crg  = CRG(platform.request("clk300", 0))
soc.phy  = RoCEPHYModel()                 # on the board: roce_soc.phy.cmac.RoCEPHYCMAC
soc.add_uartbone()
add_roce(soc, soc.phy, memory_size=1 << 20)
grouping.install()                        # LiteX's conversion to Verilog in half the time.
Builder(soc, output_dir=str(env.ROOT/"build"/"add_roce"), compile_gateware=False).build(run=False)
