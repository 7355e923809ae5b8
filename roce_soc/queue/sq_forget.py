# SPDX-License-Identifier: BSD-2-Clause
"""Send queue of a QP in RESET: reads of its old ring end, what they brought is forgotten."""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.common import ctl_description


# SendQueueForget ----------------------------------------------------------------------------------

class SendQueueForget(LiteXModule):
    """Last part of a RESET in SendQueues: the ring's memory is the owner's again, the next life begins without a trace.

    A visit of the fetcher that began before ends first, then the reads that are open, then the places on chip are
    marked empty and the fetcher's position is cleared.

    Parameters
    ----------
    open_, done : Signal(n_tags)
        Reads by tag: open, ended in this clock.
    n_slots : int
        Work requests of a QP on chip, a power of two.

    Endpoints
    ---------
    ctl : ctl_description(), in; ctl_done : pulse, out
    visit : in
        The fetcher is at the QP of `ctl`.
    arrival, issue : in
        The write ports of the tags and of the fetcher's position are taken in this clock.
    tag, slot, fetched : out
        Clear the tag of `slot`; clear the position; of the QP of `ctl`, when the port is free.

    Latency: 12 clocks, and what the memory takes for the reads that are open.
    Errors : none.
    """
    def __init__(self, open_, done, n_slots):
        self.ctl      = ctl = stream.Endpoint(ctl_description())
        self.ctl_done = Signal()
        self.visit, self.arrival, self.issue = Signal(), Signal(), Signal()
        self.tag, self.slot, self.fetched = Signal(), Signal(max=n_slots), Signal()

        # # #

        awaited = Signal(len(open_))
        self.fsm = fsm = FSM(reset_state="IDLE")
        fsm.act("IDLE",
            If(ctl.valid & ~self.visit,
                NextValue(awaited, open_ & ~done),
                NextState("READS"),
            )
        )
        fsm.act("READS",
            NextValue(awaited, awaited & ~done),
            If(awaited == 0, NextState("SLOTS")),
        )
        # Beats that arrive for others go first.
        fsm.act("SLOTS",
            self.tag.eq(1),
            If(~self.arrival,
                NextValue(self.slot, self.slot + 1),
                If(self.slot == n_slots - 1, NextState("FETCHED")),
            )
        )
        fsm.act("FETCHED",
            self.fetched.eq(1),
            If(~self.issue, NextState("DONE")),
        )
        fsm.act("DONE",
            ctl.ready.eq(1),
            self.ctl_done.eq(1),
            NextState("IDLE"),
        )
