# SPDX-License-Identifier: BSD-2-Clause
"""RC responder: checks the requests of every QP in order, executes them, answers them.

Ref: InfiniBand Architecture vol. 1 ch. 9.7 (reliable service), C9-88, C9-105, C9-110; Annex A17 (RoCEv2).
Not supported: atomics, SEND with invalidate, SRQ, UC, UD; their packets are refused with a row of errors.py.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.common import CTL_ERR, CTL_RESET, MAX_QPS, cqe_description
from roce_soc.table import BypassQueue
from roce_soc.transport.responder.check import RequestCheck
from roce_soc.transport.responder.entry import RequestEntry
from roce_soc.transport.responder.execute import PLACEMENTS, RequestAnswer, RequestExecute
from roce_soc.transport.responder.layout import REPLY_READ, verdict_layout


# RoCEResponder ------------------------------------------------------------------------------------

class RoCEResponder(LiteXModule):
    """Joins the stages a request passes:

    sink -> entry (parking) -> check (rows, receive WQE) -> execute (key check, place) -> answer
                                                              placer ----> done ----^  |-> cqe, event, reply

    Sequence state advances on trust when a request has passed the check stage; a failure found later kills
    the QP: everything behind it is discarded, so nothing has to be rolled back.

    Parameters
    ----------
    n_qps : int
        QPs, a power of two from 16 to 4096.
    context_port : ContextPort
    mr_port : MRPort
    receive_queues : ReceiveQueues
    reply : RoCEReply
        Its records, kills and READ counters are connected here.
    n_chunks : int
        Chunks of the packet buffer: parked packets hold half of them at most.

    Endpoints
    ---------
    sink : rx_packet_description(), in
    ctl : ctl_description(), in
        CTL_START (psn: first expected), CTL_ERR, CTL_RESET; others are only answered. Each is answered by
        one pulse of `ctl_done`, for this module, the receive queue and the reply scheduler together.
    place : place_description(), out; where : where_description(), out; place_done : place_done_description(), in
        A late port of the placer.
    cqe : cqe_description(), out
        Receive completions, flushed ones included, in order.
    outcome : {valid, lost}, in
        Whether each good completion has its place in its queue, in order.
    event : event_description(), out
        QPs that failed, for the command port.
    established : kick_description(), out
        QPs whose peer sent its first good request while they were in RTR.
    refusal : refusal_description(), out

    Latency: packet to place record 6 clocks, to its address 9 with a key check; done to reply record 2 clocks.
    Errors : the RESPONDER rows of errors.py but ATOMIC_ALIGN and INVALIDATE_KEY; QP_STATE for packets behind a failure,
        BUFFER_FULL for those without a place.
    """
    def __init__(self, n_qps, context_port, mr_port, receive_queues, reply, n_chunks=512):
        if n_qps < 16 or n_qps > MAX_QPS or n_qps & (n_qps - 1):
            raise ValueError(f"n_qps must be a power of two from 16 to {MAX_QPS}, not {n_qps!r}")
        self.entry   = entry   = RequestEntry(n_qps, n_chunks)
        self.check   = check   = RequestCheck(n_qps, context_port, receive_queues.port)
        self.execute = execute = RequestExecute(n_qps)
        self.answer  = answer  = RequestAnswer(n_qps)
        # Stream Endpoints.
        self.sink       = entry.sink
        self.ctl        = entry.ctl
        self.ctl_done   = Signal()
        self.place      = execute.place
        self.where      = execute.where
        self.place_done = answer.done
        self.cqe        = stream.Endpoint(cqe_description())
        self.outcome    = answer.outcome
        self.established = answer.established
        self.event      = answer.event
        self.refusal    = answer.refusal
        self.ready      = Signal()

        # # #

        entry.connect_stages(check.stages, execute.put_off)
        self.placements = placements = BypassQueue(verdict_layout(), PLACEMENTS)
        self.comb += [
            self.ready.eq(entry.ready & check.ready & execute.ready & answer.ready & receive_queues.ready & reply.ready),
            entry.room.eq(execute.room),
            entry.held_more.eq(execute.held),
            execute.gap.eq(check.gap), execute.wake.eq(mr_port.wake),
            execute.released.connect(entry.released),
            check.packet.eq(entry.out), check.packet_valid.eq(entry.out_valid),
            entry.result.eq(check.result), entry.result_valid.eq(check.result_valid), entry.result_park.eq(check.result_park),
            receive_queues.wake.connect(entry.wake),
            check.verdict.connect(execute.verdict),
            check.key.connect(execute.key),
            execute.request.connect(mr_port.request),
            mr_port.result.connect(execute.result),
            execute.source.connect(placements.sink),
            placements.source.connect(answer.sink),
            answer.silent.connect(entry.silent),
            answer.rq_ctl.connect(receive_queues.ctl),
            answer.reply.connect(reply.sink),
            reply.kill.connect(entry.kill),
            reply.reads_qpi.eq(check.reads_qpi), check.reads_done.eq(reply.reads_done),
        ]
        # An access ends with its answer, a READ's when the reply scheduler has it: if sent at once, that one's goes on.
        replies, answers, joined = answer.replies.sink, answer.replies.source, answer.joined.source
        mr_port.track(execute.keys.sink.valid, joined.valid & joined.ready & joined.check)
        mr_port.track(replies.valid & replies.ready & (replies.kind == REPLY_READ) & ~replies.void,
            answers.valid & answers.ready & (answers.kind == REPLY_READ) & ~answers.void)
        # Completions of a QP before the flush of its queue: one FIFO, requests first.
        self.cqes = cqes = stream.SyncFIFO(cqe_description(), 8)
        self.cqes_held = Signal(max=answer.cqes.depth + cqes.depth + 1)
        self.comb += [
            self.cqes_held.eq(answer.cqes.level + cqes.level),
            If(answer.cqe.valid,
                answer.cqe.connect(cqes.sink),
            ).Else(
                receive_queues.cqe.connect(cqes.sink),
            ),
            cqes.source.connect(self.cqe),
        ]
        # A control operation is done when reply scheduler and, where it has a part, receive queue are.
        parts, needed = Signal(2), Signal()
        self.comb += [
            needed.eq((self.ctl.op == CTL_ERR) | (self.ctl.op == CTL_RESET)),
            self.ctl_done.eq(parts[0] & (parts[1] | ~needed)),
            entry.ctl_done.eq(self.ctl_done),
        ]
        self.sync += [
            If(reply.ctl_done, parts[0].eq(1)),
            If(receive_queues.ctl_done, parts[1].eq(1)),
            If(self.ctl_done, parts.eq(0)),
        ]
