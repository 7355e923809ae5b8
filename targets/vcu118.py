#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""AMD VCU118 (Virtex UltraScale+ VU9P): clocks, pins, one 100G port on either QSFP28 cage.

    ./targets/vcu118.py --build --load

Ref: AMD UG1224 (VCU118 board), PG203 (100G core: which core reaches which transceivers).
Not supported: DDR4, PCIe, FMC, FireFly, the second cage at the same time.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from sim import env  # noqa: E402

if __name__ == "__main__":
    env.enter()

from migen import *  # noqa: E402

from litex.build.generic_platform import *  # noqa: E402
from litex.build.io import DifferentialInput  # noqa: E402
from litex.gen import *  # noqa: E402
from litex.soc.cores.clock import USPMMCM  # noqa: E402
from litex.soc.cores.led import LedChaser  # noqa: E402
from litex_boards.platforms import xilinx_vcu118  # noqa: E402

from roce_soc.phy.cmac import RoCEPHYCMAC  # noqa: E402
from roce_soc.soc import RoCESoC  # noqa: E402
from targets import common  # noqa: E402

# IOs ----------------------------------------------------------------------------------------------

def _cage(index, refclk, rx, tx, side):
    """One QSFP28 cage: reference clock, lanes 0..3 as P pins (N pins below), low-speed pins."""
    out = [IOStandard("LVCMOS18"), Misc("SLEW=SLOW"), Misc("DRIVE=8")]
    inp = [IOStandard("LVCMOS18"), Misc("PULLUP=TRUE")]
    modsell, resetl, modprsl, intl, lpmode = side.split()
    return ("qsfp", index,
        Subsignal("clk_p", Pins(refclk[0])), Subsignal("clk_n", Pins(refclk[1])),
        Subsignal("rxp", Pins(rx[0])), Subsignal("rxn", Pins(rx[1])),
        Subsignal("txp", Pins(tx[0])), Subsignal("txn", Pins(tx[1])),
        Subsignal("modsell", Pins(modsell), *out), Subsignal("resetl", Pins(resetl), *out),
        Subsignal("modprsl", Pins(modprsl), *inp), Subsignal("intl", Pins(intl), *inp),
        Subsignal("lpmode", Pins(lpmode), *out),
    )

_io = [
    # QSFP1: quad 231. Its Si570 gives 156.25 MHz from power-up.
    _cage(0, ("W9", "W8"), ("Y2 W4 V2 U4", "Y1 W3 V1 U3"), ("V7 T7 P7 M7", "V6 T6 P6 M6"),
        "AM21 BA22 AL21 AP21 AN21"),
    # QSFP2: quad 232.
    _cage(1, ("R9", "R8"), ("T2 R4 P2 M2", "T1 R3 P1 M1"), ("L5 K7 J5 H7", "L4 K6 J4 H6"),
        "AN23 AY22 AN24 AT21 AT24"),
    # PCIe edge, lane 0 first; the clock of quad 225 reaches all sixteen lanes.
    ("pcie_x16", 0,
        Subsignal("rst_n", Pins("AM17"), IOStandard("LVCMOS18"), Misc("PULLUP=TRUE")),
        Subsignal("clk_p", Pins("AL9")), Subsignal("clk_n", Pins("AL8")),
        Subsignal("rx_p", Pins("AA4 AB2 AC4 AD2 AE4 AF2 AG4 AH2 AJ4 AK2 AM2 AP2 AT2 AV2 AY2 BB2")),
        Subsignal("rx_n", Pins("AA3 AB1 AC3 AD1 AE3 AF1 AG3 AH1 AJ3 AK1 AM1 AP1 AT1 AV1 AY1 BB1")),
        Subsignal("tx_p", Pins("Y7 AB7 AD7 AF7 AH7 AK7 AM7 AN5 AP7 AR5 AT7 AU5 AW5 BA5 BC5 BE5")),
        Subsignal("tx_n", Pins("Y6 AB6 AD6 AF6 AH6 AK6 AM6 AN4 AP6 AR4 AT6 AU4 AW4 BA4 BC4 BE4")),
    ),
]

# Cage: (100G core, first transceiver of its quad).
_ports = {
    1: ("CMACE4_X0Y7", ("X1", 48)),
    2: ("CMACE4_X0Y8", ("X1", 52)),
}

# Platform -----------------------------------------------------------------------------------------

class Platform(xilinx_vcu118.Platform):
    """LiteX-Boards' VCU118 with the board's real part, its cages and its PCIe edge."""
    def __init__(self):
        xilinx_vcu118.Platform.__init__(self)
        self.device = "xcvu9p-flga2104-2L-e"
        self.add_extension(_io)
        self.toolchain.bitstream_commands += [
            "set_property CFGBVS GND [current_design]",
            "set_property CONFIG_VOLTAGE 1.8 [current_design]",
            "set_property BITSTREAM.GENERAL.COMPRESS TRUE [current_design]",
            "set_property BITSTREAM.CONFIG.OVERTEMPSHUTDOWN ENABLE [current_design]",
        ]

# CRG ----------------------------------------------------------------------------------------------

class _CRG(LiteXModule):
    """sys and roce from the board's 125 MHz through one MMCM; init: the same 125 MHz, running from power-up."""
    def __init__(self, platform, sys_clk_freq, roce_clk_freq):
        self.rst     = Signal()
        self.cd_sys  = ClockDomain()
        self.cd_roce = ClockDomain()
        self.cd_init = ClockDomain(reset_less=True)

        # # #

        pads   = platform.request("clk125")
        clk125 = Signal()
        self.specials += [
            DifferentialInput(pads.p, pads.n, clk125),
            Instance("BUFG", i_I=clk125, o_O=self.cd_init.clk),
        ]
        self.pll = pll = USPMMCM(speedgrade=-2)
        self.comb += pll.reset.eq(platform.request("cpu_reset") | self.rst)
        pll.register_clkin(clk125, 125e6)
        pll.create_clkout(self.cd_sys,  sys_clk_freq,  margin=0)
        pll.create_clkout(self.cd_roce, roce_clk_freq, margin=0)

# VCU118SoC ----------------------------------------------------------------------------------------

class VCU118SoC(RoCESoC):
    """RoCESoC with its port on cage 1 or 2.

    Parameters
    ----------
    sys_clk_freq : float
        Clock of CPU and registers.
    roce_clk_freq : float
        Clock of the engine; a beat of 64 bytes a clock: 100 Gb/s want 195.3 MHz or more.
    cage : int
        1 or 2.
    rsfec : bool
        RS-FEC from reset on; software can change it.
    uartbone : bool
        The board's UART is a bus bridge and the console goes over the bus (`litex_term crossover`); JTAG is a bridge always.
    """
    def __init__(self, sys_clk_freq=125e6, roce_clk_freq=250e6, cage=1, rsfec=True, uartbone=False, **kwargs):
        if cage not in _ports:
            raise ValueError(f"cage must be one of {sorted(_ports)}, not {cage!r}")
        platform       = Platform()
        site, gt_group = _ports[cage]
        self.crg = _CRG(platform, sys_clk_freq, roce_clk_freq)
        phy = RoCEPHYCMAC(platform, platform.request("qsfp", cage - 1),
            site          = site,
            gt_group      = gt_group,
            sys_clk_freq  = sys_clk_freq,
            refclk_freq   = 156.25e6,
            init_clk_freq = 125e6,
            engine_domain = "roce",
            rsfec         = rsfec,
        )
        if uartbone:
            kwargs["uart_name"] = "crossover"
        RoCESoC.__init__(self, platform, sys_clk_freq, phy=phy, clock_domain="roce", clk_freq=roce_clk_freq, **kwargs)
        self.add_jtagbone()
        if uartbone:
            self.add_uartbone()
        self.comb += platform.request("i2c_mux_reset_n").eq(1)
        self.leds = LedChaser(pads=platform.request_all("user_led"), sys_clk_freq=sys_clk_freq)

# Main ---------------------------------------------------------------------------------------------

def add_arguments(parser):
    parser.add_argument("--cage", type=int, default=1, choices=sorted(_ports), help="QSFP28 cage of the port")
    parser.add_argument("--no-rsfec", action="store_true", help="start without RS-FEC (LR4 optics)")
    parser.add_argument("--uartbone", action="store_true", help="UART as bus bridge beside JTAG, console over the bus")


def main(argv=None):
    return common.main(lambda args: VCU118SoC(args.sys_clk_freq, args.roce_clk_freq, args.cage, not args.no_rsfec, args.uartbone),
        name          = "vcu118",
        description   = "RoCE v2 at 100 Gb/s on the AMD VCU118.",
        add_arguments = add_arguments,
        cable         = "vcu118",
        device        = "xcvu9p",
        argv          = argv,
        vivado_place_directive               = "Explore",
        vivado_post_place_phys_opt_directive = "Explore",
        vivado_route_directive               = "Explore",
        vivado_post_route_phys_opt_directive = "Explore",
    )


if __name__ == "__main__":
    sys.exit(main())
