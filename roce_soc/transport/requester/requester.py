# SPDX-License-Identifier: BSD-2-Clause
"""RC requester: work requests of the send queues become packets, in order, as far as the limits allow.

Ref: InfiniBand Architecture vol. 1 ch. 9.7.2 to 9.7.5, 9.9.2.
Not supported: UC, UD, atomics, invalidate, more than one SGE, end-to-end credits.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.bounds import counted
from roce_soc.common import OWNER_REQUESTER, ctl_description, tx_packet_description, tx_sent_description
from roce_soc.table import kick_description
from roce_soc.transport.requester.launch import RequesterLaunch
from roce_soc.transport.requester.segment import RequesterSegment
from roce_soc.transport.requester.state import TIME_WIDTH, local_description, rewind_description
from roce_soc.transport.requester.visit import RequesterVisit


# RoCERequester ------------------------------------------------------------------------------------

class RoCERequester(LiteXModule):
    """Joins the requester's stages.

    ::
        SendQueues ─► visit (row loop, paid per burst of up to 4 KiB) ─► launch (key check, rings) ─► segment ─► tx
                        ▲ rewind, ctl                                       └► local faults ─► retire walker

    Retransmission reads memory again: a rewind only moves the cursor and `next_psn`; messages that are
    registered are not registered twice, and what was acknowledged meanwhile is not looked at again.

    Parameters
    ----------
    context : QPContext
    state : SendState
    sq : SendQueues
    mr_port : {request, result}
        Port of the MR table.

    Endpoints
    ---------
    rewind : rewind_description(), in          ctl : ctl_description(), in; ctl_done : pulse, out
    source : tx_packet_description(), out      sent : tx_sent_description(), in
    local : local_description(), out           now : in, ticks
    seek : kick_description(), out

    Latency: schedule to tx_packet about 20 clocks; per QP a visit every 6 clocks, packets one a clock.
    Errors : LOCAL_OPERATION, LOCAL_LENGTH, LOCAL_PROTECTION, LOCAL_MEMORY: the message completes with it, the QP stands.
    """
    def __init__(self, context, state, sq, mr_port):
        # Stream Endpoints.
        self.rewind   = stream.Endpoint(rewind_description())
        self.ctl      = stream.Endpoint(ctl_description())
        self.source   = stream.Endpoint(tx_packet_description())
        self.sent     = stream.Endpoint(tx_sent_description())
        self.local    = stream.Endpoint(local_description())
        self.seek     = stream.Endpoint(kick_description())
        self.now      = Signal(TIME_WIDTH)
        self.ctl_done = Signal()
        self.ready    = Signal()

        # # #

        self.visit   = visit   = RequesterVisit(context, state, sq)
        self.launch  = launch  = RequesterLaunch(state)
        self.segment = segment = RequesterSegment(state)
        self.results = results = stream.SyncFIFO(launch.result.description, 16)
        self.submodules += counted(results, "bursts with a key: fewer than BURSTS wait for the launch")
        self.comb += [
            # The walker's first: it may be answering a time-out.
            If(self.rewind.valid,
                self.rewind.connect(visit.rewind),
            ).Else(
                launch.rewind.connect(visit.rewind),
            ),
            launch.wake.eq(mr_port.wake),
            self.ready.eq(launch.misses.ready),
            self.ctl.connect(visit.ctl),
            launch.now.eq(self.now),
            visit.seek.connect(self.seek),
            visit.check.connect(mr_port.request),
            mr_port.result.connect(results.sink),
            results.source.connect(launch.result),
            visit.burst.connect(launch.burst),
            launch.source.connect(segment.sink),
            self.sent.connect(launch.sent),
            launch.local.connect(self.local),
            segment.source.connect(self.source),
            self.ctl_done.eq(launch.ctl_done),
        ]
        # Under its key until its last packet is on its way: checked, cut, read and sent.
        mr_port.track(visit.checks.sink.valid, results.source.valid & results.source.ready)
        mr_port.track(launch.source.valid & launch.source.ready & ~launch.source.ctl, segment.burst_ended)
        mr_port.track(segment.packet_begun, self.sent.valid & (self.sent.owner == OWNER_REQUESTER) & ~self.sent.marker)
