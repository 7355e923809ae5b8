# SPDX-License-Identifier: BSD-2-Clause
"""RESET of the receive side: what was let in under a QP's old state has been handed out."""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.bounds import Bound
from roce_soc.common import ctl_description
from roce_soc.drain import Drain

VERDICT_CLOCKS = 4     # clocks behind a verdict in which its record reaches its FIFO.


# ReceiveDrain -------------------------------------------------------------------------------------

class ReceiveDrain(LiteXModule):
    """Part of the receive side in a RESET: packets that were let in under the QP's old state are with their transport.

    A frame reads its QP's row at its head and is handed out behind its verdict, later still when responder or
    completer are slow. Of a QP that begins anew meanwhile they would take it for one of the new life.

    Parameters
    ----------
    head, verdict : Signals
        Pulses: a frame's first beat enters the decoder, a frame's verdict leaves it.
    stored, records : lists of streams
        Records where they enter the packet buffer's FIFOs and where they leave them.

    Endpoints
    ---------
    ctl : ctl_description(), in; ctl_done : pulse, out

    Latency: 2 clocks when nothing is under way.
    Errors : none.
    """
    def __init__(self, head, verdict, stored, records):
        self.ctl      = stream.Endpoint(ctl_description())
        self.ctl_done = Signal()

        # # #

        late = Signal(VERDICT_CLOCKS)
        self.sync += late.eq(Cat(verdict, late))
        self.drain = drain = Drain([[(head, late[-1]), (sink.valid & sink.ready, source.valid & source.ready)]
            for sink, source in zip(stored, records)])
        self.submodules += [Bound(sink.valid & sink.ready & ~verdict & (late == 0), "records: stored within VERDICT_CLOCKS of the verdict")
            for sink in stored]
        self.comb += [
            drain.wait.eq(self.ctl.valid),
            self.ctl.ready.eq(drain.done),
            self.ctl_done.eq(drain.done),
        ]
