# SPDX-License-Identifier: BSD-2-Clause
"""Timer scanner: the time base of the send side and its visits.

Ref: InfiniBand Architecture vol. 1 ch. 9.7.6.1 (time-out).
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.common import TICK_CYCLES
from roce_soc.table import kick_description
from roce_soc.transport.requester.state import TIME_WIDTH

SCAN_CYCLES = 4      # clocks from one QP's timer visit to the next QP's.


# TimerScanner -------------------------------------------------------------------------------------

class TimerScanner(LiteXModule):
    """Time base, and a visit of every QP in turn: there is no timer to arm, cancel or leak.

    Parameters
    ----------
    n_qps : int
        QPs, a power of two.

    Endpoints
    ---------
    scan : kick_description(), out
    tick_cycles : in
        Engine clocks a tick; its reset value is that of a board, simulations write smaller ones.
    now : out
        Ticks since reset.

    Latency: each QP once in n_qps*SCAN_CYCLES clocks; a time-out is early by less than a tick and late by at
        most that, and by what holds the completer up.
    Errors : none.
    """
    def __init__(self, n_qps):
        # Stream Endpoints.
        self.scan        = scan = stream.Endpoint(kick_description())
        self.tick_cycles = Signal(16, reset=TICK_CYCLES)
        self.now         = now  = Signal(TIME_WIDTH)

        # # #

        divider = Signal(16)
        wait    = Signal(max=SCAN_CYCLES)
        qpi     = Signal(log2_int(n_qps))
        self.comb += [
            scan.valid.eq(wait == 0),
            scan.qpi.eq(qpi),
        ]
        self.sync += [
            divider.eq(divider + 1),
            If(divider + 1 >= self.tick_cycles,
                divider.eq(0),
                now.eq(now + 1),
            ),
            If(wait != 0,
                wait.eq(wait - 1),
            ).Elif(scan.ready,
                wait.eq(SCAN_CYCLES - 1),
                qpi.eq(qpi + 1),
            )
        ]
