# SPDX-License-Identifier: BSD-2-Clause
"""Execution and answer stages of the responder: key result, placement, completion, reply.

Ref: InfiniBand Architecture vol. 1 ch. 9.7.4.1.4 (R_Key), 9.7.5 (acknowledge after execution), 9.9.3.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream
from litex.soc.interconnect.stream import EndpointDescription

from roce_soc.bounds import counted
from roce_soc.common import (
    CTL_ERR, CTL_RESET, CTL_START, IN_FLIGHT, QPI_WIDTH, cqe_description, event_description, mr_request_description,
    mr_result_description, place_description, place_done_description, refusal_description, where_description)
from roce_soc.errors import ERRORS, ROW_WIDTH
from roce_soc.memory.deferred import Deferred
from roce_soc.opcodes import ACK_UNLIMITED, SYNDROME_ACK, SYNDROME_RNR
from roce_soc.packet.buffer import chunks_of
from roce_soc.queue.rq_layout import RQ_CTL_FLUSH, RQ_CTL_RESET, rq_ctl_description
from roce_soc.table import BypassFIFO, KickQueue, Table, kick_description
from roce_soc.transport.responder.layout import *
from roce_soc.verbs import (
    ACCESS_LOCAL_WRITE, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE, WC_FLAG_WITH_IMM, WC_RECV, WC_RECV_RDMA_WITH_IMM, WC_SUCCESS)

VERDICTS    = 32    # packets between check and placement.
DEFERRED    = 256   # packets of all QPs that wait for a page.
CHECK_ROOM  = 8     # places for what is in the check stage when it must stop.
PLACEMENTS  = IN_FLIGHT    # packets between placement and answer.
REPLIES     = 16    # answers that wait for the reply scheduler, or for their completion's place.
DEFER_ROOM  = VERDICTS + 2*CHECK_ROOM    # places for all that may still have to wait when no packet is let in any more.
PLACE_FIELDS = [("qpi", QPI_WIDTH), ("has_slot", 1), ("slot", 10), ("offset", 6), ("length", 13), ("lands", 1)]


# RequestExecute -----------------------------------------------------------------------------------

class RequestExecute(LiteXModule):
    """Hands each packet's payload to the placer and, when its key check is there, the address.

    The payload leaves the packet buffer while the key is checked: what is refused is dropped by the placer. A
    failed check kills the QP at once: what was admitted on trust behind it is discarded here.

    A packet whose page is not on chip is put off, and with it what its QP has behind it; the placer leaves its payload in the
    packet buffer. When the page has come it is checked and placed anew, in a gap of the check stage, and then the next one
    of its QP. For each time that it was put off something passes on that stands for its done record alone.

    Endpoints
    ---------
    verdict : verdict_layout, in; key : mr_request_description(), in
        From the check stage, valid only (the key first); `room` says that all that is in it will be taken.
    gap : in
        The check stage gives no key in this clock and no verdict in the next.
    request, result : MR port
    wake : in
        A page has come.
    put_off(qpi) : expression, packets of `qpi` wait for a page; released : kick_description(), out, QPs that do no more.
    held : out
        Chunks of the packet buffer that are held by what was put off.
    place : place_description(), out
        One record for every verdict, without address; of length 0 when nothing is to be written.
    where : where_description(), out
        For each record of another length.
    source : verdict_layout, out
        The verdict with its final row, in place order.

    Latency: that of the key check; the place record goes ahead of it.
    Errors : MR_*, RECV_PROTECTION.
    """
    def __init__(self, n_qps):
        self.verdict = stream.Endpoint(verdict_layout())
        self.key     = stream.Endpoint(mr_request_description())
        self.room    = Signal()
        self.gap     = Signal()
        self.wake    = Signal()
        self.request = stream.Endpoint(mr_request_description())
        self.result  = stream.Endpoint(mr_result_description())
        self.place   = stream.Endpoint(place_description())
        self.where   = stream.Endpoint(where_description())
        self.source  = stream.Endpoint(verdict_layout())
        self.ready   = Signal()

        # # #

        # again: was put off before.
        self.verdicts = verdicts = stream.SyncFIFO(verdict_layout() + [("again", 1)], VERDICTS)
        self.keys     = keys     = BypassFIFO(mr_request_description(), VERDICTS)
        self.results  = results  = BypassFIFO(mr_result_description(), VERDICTS)
        self.places   = places   = stream.SyncFIFO(PLACE_FIELDS, VERDICTS)
        self.submodules += [counted(fifo, "packets in the check stage: `room` keeps CHECK_ROOM places")
            for fifo in (verdicts, keys, results, places)]
        self.alive    = alive    = Table(1, n_qps, distributed=True)      # started and not failed since.
        self.deferred = deferred = Deferred(verdict_layout(), n_qps, DEFERRED, chunks_of)
        self.put_off, self.released, self.held = deferred.waits, deferred.released, deferred.held
        v    = verdicts.source
        killed, known, fire = Signal(), Signal(), Signal()
        miss, behind, put_off = Signal(), Signal(), Signal()
        judged, final = Signal(ROW_WIDTH), Signal(ROW_WIDTH)
        fatal = Signal()
        packet, ctl, kill = v.pseudo == PSEUDO_NONE, v.pseudo == PSEUDO_CTL, v.pseudo == PSEUDO_KILL
        outs = [f[0] for f in verdict_layout() if f[0] not in ("row", "target", "addr")]
        self.comb += [
            self.ready.eq(alive.ready & deferred.ready),
            keys.source.connect(self.request),
            self.result.connect(results.sink),
            self.room.eq((verdicts.level <= VERDICTS - CHECK_ROOM) & (places.level <= VERDICTS - CHECK_ROOM)
                & (deferred.free >= DEFER_ROOM) & ~deferred.hurry),
            # Row: the check stage's, else the key's; everything behind a failure is discarded.
            killed.eq(~alive.read(v.qpi[:log2_int(n_qps)])),
            judged.eq(v.row),
            If((v.row == 0) & v.check & (results.source.row != 0),
                judged.eq(Mux(v.recv, row("RECV_PROTECTION"), results.source.row))
            ),
            If(packet,
                final.eq(Mux(killed, row("QP_STATE"), judged))
            ).Elif(kill,
                final.eq(v.code)
            ),
            fatal.eq(is_fatal(judged)),
            known.eq(v.valid & (~v.check | results.source.valid)),
            fire.eq(known & self.source.ready & (self.where.ready | ~v.lands)),
            v.ready.eq(fire),
            results.source.ready.eq(fire & v.check),
            alive.adr.eq(v.qpi),
            alive.we.eq(fire & ~put_off & ((packet & fatal) | ~packet)),
            If(ctl & (v.code != CTL_ERR) & (v.code != CTL_RESET), alive.row.eq(~killed | (v.code == CTL_START))),
            # A page that is missing matters to a packet that is good otherwise. Whatever of the QP comes behind it waits too, but
            # for what was dropped without a place.
            miss.eq(packet & v.check & (v.row == 0) & ~killed & results.source.miss),
            behind.eq(deferred.waits(v.qpi) & ~v.again & (v.row != row("BUFFER_FULL"))),
            put_off.eq(miss | behind),
            # Payload.
            [getattr(self.place, name).eq(getattr(places.source, name))
                for name in ("valid", "qpi", "has_slot", "slot", "offset")],
            self.place.length.eq(places.source.length & Replicate(places.source.lands, len(self.place.length))),
            places.source.ready.eq(self.place.ready),
            self.place.first.eq(1), self.place.last.eq(1),
            self.where.valid.eq(known & self.source.ready & v.lands),
            # What lands has passed the check stage and has a key.
            self.where.write.eq(~killed & (results.source.row == 0) & ~put_off),
            self.where.keep.eq(put_off),
            self.where.target.eq(results.source.target),
            self.where.addr.eq(results.source.addr),
            self.where.first.eq(1), self.where.last.eq(1),
            # Onward.
            self.source.valid.eq(known & (self.where.ready | ~v.lands)),
            [getattr(self.source, name).eq(getattr(v, name)) for name in outs],
            self.source.row.eq(final),
            self.source.target.eq(results.source.target), self.source.addr.eq(results.source.addr),
            # Of what is put off only the done record is to be taken.
            If(put_off, self.source.pseudo.eq(PSEUDO_SILENT), self.source.opens.eq(0), self.source.row.eq(0)),
        ]
        self._add_entrance()
        self._add_deferred(v, fire, miss, put_off)

    def _add_entrance(self):
        """From the check stage, and in its gaps from what was put off: the key first, the verdict and its place record behind."""
        deferred, verdicts, keys, places = self.deferred, self.verdicts, self.keys, self.places
        again, begins, enters = deferred.source, Signal(), Signal()
        flags, statements = opcode_flags(again.opcode)
        self.comb += [
            *statements,
            begins.eq(again.valid & self.gap & ~enters & (verdicts.level <= VERDICTS - CHECK_ROOM)
                & (places.level <= VERDICTS - CHECK_ROOM)),
            again.ready.eq(enters),
            self.verdict.connect(verdicts.sink),
            self.key.connect(keys.sink),
            If(begins,
                keys.sink.valid.eq(again.check),
                keys.sink.key.eq(again.rkey),
                keys.sink.va.eq(again.va),
                keys.sink.length.eq(Mux(flags.send | ~flags.starts, again.length, again.dma_length)),
                keys.sink.pd.eq(again.pd),
                keys.sink.access.eq(Mux(flags.send, ACCESS_LOCAL_WRITE,
                    Mux(flags.write, ACCESS_REMOTE_WRITE, ACCESS_REMOTE_READ))),
            ),
            If(enters,
                verdicts.sink.valid.eq(1),
                verdicts.sink.again.eq(1),
                [getattr(verdicts.sink, name).eq(getattr(again, name)) for name, _ in verdict_layout()],
            ),
            places.sink.valid.eq(verdicts.sink.valid),
            [getattr(places.sink, name).eq(getattr(verdicts.sink, name)) for name, _ in PLACE_FIELDS],
        ]
        self.sync += enters.eq(begins)

    def _add_deferred(self, v, fire, miss, put_off):
        """What is put off, and what of it has passed. A payload that is not to be placed has left the packet buffer."""
        deferred, record = self.deferred, self.deferred.record
        self.comb += [
            [getattr(record, name).eq(getattr(v, name)) for name, _ in verdict_layout()],
            record.has_slot.eq(v.has_slot & v.lands),
            deferred.wake.eq(self.wake),
            deferred.append.eq(fire & put_off & ~v.again), deferred.miss.eq(miss),
            deferred.missed.eq(fire & miss & v.again),
            deferred.passed.eq(fire & ~miss & v.again),
        ]


def answer_description():
    """A reply, `told` behind a completion; `void`: nothing is to be answered, only waited for."""
    return EndpointDescription(reply_description().payload_layout + [("told", 1), ("void", 1)])


# RequestAnswer ------------------------------------------------------------------------------------

class RequestAnswer(LiteXModule):
    """Everything that others see of a request, in order and after its data is in memory.

    QPs that are not `opened` have had their last answer: nothing leaves for them any more but the flush of receive
    work requests that packets behind the failure had taken.

    A request whose completion has no place in its queue is not answered, nor is anything behind it: the peer must not
    hear of success that nobody here will see. So its answer waits for the completion queue's word, and with it those of
    the requests behind it; the QP is silenced at once, and goes to ERR by the completion queue's report.

    Endpoints
    ---------
    sink : verdict_layout, in; done : place_done_description(), in
    cqe, event, refusal : out
    reply : reply_description(), out
    rq_ctl : rq_ctl_description(), out
    silent : {qpi}, out
        A placement failed, or a completion was lost: the QP has to stop.
    established : kick_description(), out
        QPs whose peer sent its first good request while they were in RTR; each once in a life.
    outcome : {valid, lost}, in
        What became of each good completion, in order.

    Latency: 2 clocks from `done`, one packet a clock.
    Errors : the verdict's row, MEMORY_FAULT; a lost completion silences the QP.
    """
    def __init__(self, n_qps):
        self.sink    = sink = stream.Endpoint(verdict_layout())
        self.done    = done = stream.Endpoint(place_done_description())
        self.cqe     = stream.Endpoint(cqe_description())
        self.event   = stream.Endpoint(event_description())
        self.refusal = stream.Endpoint(refusal_description())
        self.reply   = stream.Endpoint(reply_description())
        self.rq_ctl  = stream.Endpoint(rq_ctl_description())
        self.silent  = stream.Endpoint([("qpi", QPI_WIDTH)])
        self.outcome = Record([("valid", 1), ("lost", 1)])
        self.established = stream.Endpoint(kick_description())
        self.ready   = Signal()

        # # #

        # Join: the packet, what became of its placement, and what its row means.
        self.joined = joined = stream.Buffer(verdict_layout() + [
            ("final", ROW_WIDTH), ("fault", 1), ("fatal", 1), ("syndrome", 8), ("status", 8), ("event", 8), ("shut", 1)])
        final = Signal(ROW_WIDTH)
        syndrome, status, event, statements = error_answer(final)
        self.comb += statements
        self.comb += [
            joined.sink.valid.eq(sink.valid & done.valid),
            sink.ready.eq(joined.sink.ready & done.valid),
            done.ready.eq(joined.sink.ready & sink.valid),
            [getattr(joined.sink, name).eq(getattr(sink, name)) for name, _ in verdict_layout()],
            joined.sink.fault.eq((sink.pseudo == PSEUDO_NONE) & (sink.row == 0) & (done.err != 0)),
            final.eq(Mux(joined.sink.fault, row("MEMORY_FAULT"), sink.row)),
            joined.sink.final.eq(final), joined.sink.fatal.eq(is_fatal(final)),
            joined.sink.syndrome.eq(syndrome), joined.sink.status.eq(status), joined.sink.event.eq(event),
        ]
        self._add_decision(joined.source, n_qps)
        # Whether the QP has had its last answer: what is written in this clock counts.
        opened, shut = self.opened, Signal()
        self.comb += [
            shut.eq(~opened.read(sink.qpi[:log2_int(n_qps)])),
            joined.sink.shut.eq(Mux(opened.we & (joined.source.qpi == sink.qpi), ~opened.row, shut)),
        ]

    def _add_decision(self, sink, n_qps):
        """Everything that leaves for a packet leaves in one clock, and only when all can take it."""
        self.opened  = opened = Table(1, n_qps, distributed=True)
        self.cqes    = cqes    = stream.SyncFIFO(cqe_description(), 8)
        # `opened` lets each QP fail once in a life: n_qps places never fill, no answer waits for qp/command.py or the entry.
        self.events  = events  = stream.SyncFIFO(event_description(), n_qps, buffered=True)
        self.replies = replies = stream.SyncFIFO(answer_description(), REPLIES)
        self.rq_ctls = rq_ctls = stream.SyncFIFO(rq_ctl_description(), 2)
        self.silents = silents = stream.SyncFIFO([("qpi", QPI_WIDTH)], n_qps, buffered=True)
        fifos = (cqes, events, replies, rq_ctls, silents)
        self.mute = Signal()
        packet, ctl = sink.pseudo == PSEUDO_NONE, sink.pseudo == PSEUDO_CTL
        final, fault, shut = sink.final, sink.fault, sink.shut
        stop, fire, failed, good, again = (Signal() for _ in range(5))
        self.comb += [
            fire.eq(sink.valid & Reduce("AND", [fifo.sink.ready for fifo in fifos])),
            sink.ready.eq(fire),
            failed.eq(sink.fatal & ~shut),
            good.eq(packet & ~shut & ~fault),
            again.eq((sink.action == ACTION_READ_AGAIN) & (final == row("PSN_DUPLICATE"))),
            stop.eq(ctl & ((sink.code == CTL_ERR) | (sink.code == CTL_RESET))),
            opened.adr.eq(sink.qpi),
            opened.we.eq(fire & (failed | stop | (ctl & (sink.code == CTL_START)))),
            opened.row.eq(~(failed | stop)),
            If(fire & fault & ~shut,
                silents.sink.valid.eq(1),
                silents.sink.qpi.eq(sink.qpi),
            ).Elif(self.mute,
                silents.sink.valid.eq(1),
                silents.sink.qpi.eq(replies.source.qpi),
            ),
            rq_ctls.sink.valid.eq(fire & stop),
            rq_ctls.sink.op.eq(Mux(sink.code == CTL_RESET, RQ_CTL_RESET, RQ_CTL_FLUSH)),
            rq_ctls.sink.index.eq(sink.rq_index),
            rq_ctls.sink.qpn.eq(sink.qpn),
            rq_ctls.sink.cqn.eq(sink.recv_cq),
            events.sink.valid.eq(fire & failed),
            events.sink.type.eq(sink.event),
            events.sink.queue.eq(sink.qpi),
            events.sink.info.eq(final),
        ]
        self._add_cqe(sink, cqes.sink, fire, shut, failed, good, stop)
        self._add_reply(sink, replies.sink, fire, failed, good, ctl)
        self._add_outcome(replies.source, fire & fault & ~shut, n_qps)
        self._add_established(sink, fire & good & (final == 0), fire & ctl, n_qps)
        self.comb += self.ready.eq(opened.ready & self.muted.ready & self.told.ready & self.news.ready)
        for fifo, source in zip((cqes, events, rq_ctls, silents), (self.cqe, self.event, self.rq_ctl, self.silent)):
            self.comb += fifo.source.connect(source, omit={"first", "last"}), source.first.eq(1), source.last.eq(1)
        self.comb += self.refusal.first.eq(1), self.refusal.last.eq(1)
        self.sync += [
            # A duplicate READ is counted by the reply scheduler, which answers or drops it.
            self.refusal.valid.eq(fire & ((packet & (((final != 0) & ~again) | shut))
                | ((sink.pseudo == PSEUDO_KILL) & failed))),
            self.refusal.row.eq(Mux(shut & packet, row("QP_STATE"), final)),
            self.refusal.qpn.eq(sink.qpn),
            self.refusal.psn.eq(sink.psn),
            self.refusal.opcode.eq(sink.opcode),
            self.refusal.info.eq(sink.length),
        ]

    def _add_established(self, sink, good, ctl, n_qps):
        """The first good request of a life, if it comes in RTR. Control begins a life, or ends it."""
        bits = log2_int(n_qps)
        self.told = told = Table(1, n_qps, distributed=True)
        self.news = news = KickQueue(n_qps, 0)
        first     = Signal()
        self.comb += [
            first.eq(good & sink.in_rtr & ~told.read(sink.qpi[:bits])),
            news.urgent.valid.eq(first),
            news.urgent.qpi.eq(sink.qpi),
            told.we.eq(first | ctl),
            told.adr.eq(sink.qpi),
            told.row.eq(~ctl),
            news.source.connect(self.established),
        ]

    def _add_cqe(self, sink, cqe, fire, shut, failed, good, stop):
        """Success, the failed receive, or the flush of what was taken behind a failure."""
        success, flushed, final = Signal(), Signal(), sink.final
        self.comb += [
            success.eq(good & sink.closes & (final == 0)),
            self.replies.sink.told.eq(success),
            flushed.eq((sink.opens & (shut | (final == row("QP_STATE")))) | (stop & ~shut & sink.holds & (sink.code == CTL_ERR))),
            cqe.valid.eq(fire & (success | flushed | (failed & sink.holds))),
            cqe.cqn.eq(sink.recv_cq),
            cqe.wr_id.eq(sink.wr_id),
            cqe.qpn.eq(sink.qpn),
            cqe.slot.eq(sink.wqe_slot),
            cqe.opcode.eq(Mux(sink.write, WC_RECV_RDMA_WITH_IMM, WC_RECV)),
            If(success,
                cqe.status.eq(WC_SUCCESS),
                cqe.byte_len.eq(sink.byte_len),
                cqe.solicited.eq(sink.se),
                If(sink.with_imm, cqe.imm.eq(sink.imm), cqe.flags.eq(WC_FLAG_WITH_IMM)),
            ).Elif(flushed,
                cqe.status.eq(ERRORS["FLUSH"].local_status),
                cqe.vendor_err.eq(row("FLUSH")),
                cqe.solicited.eq(1),
            ).Else(
                cqe.status.eq(sink.status),
                cqe.vendor_err.eq(final),
                cqe.solicited.eq(1),
            ),
        ]

    def _add_reply(self, sink, reply, fire, failed, good, ctl):
        """ACK, NAK, READ or control to the reply scheduler."""
        answers, final, syndrome = Signal(), sink.final, sink.syndrome
        self.comb += [
            # A row that drops has no action (check.py); the action of a packet whose row became QP_STATE (`killed`) is not used.
            answers.eq(good & (sink.action != ACTION_NONE) & (final != row("QP_STATE"))),
            reply.valid.eq(fire & (answers | failed | ctl | reply.told)),
            reply.void.eq(~(answers | failed | ctl)),
            [getattr(reply, name).eq(getattr(sink, name)) for name in (
                "qpi", "qpn", "code", "last_psn", "va", "rkey", "index", "pd", "pmtu", "target", "addr")],
            # A message that failed on the way does not count.
            reply.msn.eq(sink.msn - (failed & sink.counted)),
            reply.length.eq(sink.dma_length),
            reply.psn.eq(sink.ack_psn),
            reply.syndrome.eq(SYNDROME_ACK | ACK_UNLIMITED),
            If(ctl,
                reply.kind.eq(REPLY_CTL),
            ).Elif(failed,
                reply.kind.eq(REPLY_NAK),
                reply.syndrome.eq(syndrome),
                # What failed on the way had an answer of its own; a kill names its PSN.
                reply.psn.eq(sink.psn),
            ).Else(
                Case(sink.action, {
                    ACTION_ACK:        [reply.kind.eq(REPLY_ACK)],
                    ACTION_NAK:        [reply.kind.eq(REPLY_NAK), reply.syndrome.eq(syndrome)],
                    ACTION_READ:       [reply.kind.eq(REPLY_READ), reply.psn.eq(sink.psn)],
                    ACTION_READ_AGAIN: [reply.kind.eq(REPLY_READ_AGAIN), reply.psn.eq(sink.psn),
                                        reply.va.eq(sink.va)],
                    "default":         [],
                }),
                If(final == row("RNR"), reply.syndrome.eq(SYNDROME_RNR | sink.timer)),
            ),
        ]

    def _add_outcome(self, answer, busy, n_qps):
        """An answer behind a good completion leaves when that has its place; behind a lost one nothing leaves any more.

        `busy`: another QP is silenced in this clock.
        """
        self.muted    = muted    = Table(1, n_qps, distributed=True)
        # One for each answer that waits in `replies`, and for those whose completion is on its way to the queue.
        self.outcomes = outcomes = stream.SyncFIFO([("lost", 1)], 4*REPLIES)
        self.submodules += counted(outcomes, "good completions ahead of their answers: `replies`, and what CQ and its FIFOs hold")
        reply, lost, mute, quiet, leaves = self.reply, Signal(), self.mute, Signal(), Signal()
        self.comb += [
            outcomes.sink.valid.eq(self.outcome.valid),
            outcomes.sink.lost.eq(self.outcome.lost),
            lost.eq(answer.told & outcomes.source.lost),
            mute.eq(answer.valid & outcomes.source.valid & lost & ~busy & self.silents.sink.ready),
            quiet.eq(muted.read(answer.qpi[:log2_int(n_qps)]) & (answer.kind != REPLY_CTL) | answer.void | lost),
            leaves.eq(answer.valid & (~answer.told | outcomes.source.valid)),
            reply.valid.eq(leaves & ~quiet),
            reply.first.eq(1), reply.last.eq(1),
            [getattr(reply, name).eq(getattr(answer, name)) for name, _ in reply_description().payload_layout],
            answer.ready.eq(leaves & Mux(lost, mute, quiet | reply.ready)),
            outcomes.source.ready.eq(answer.ready & answer.told),
            # RESET and START begin anew.
            muted.we.eq(answer.ready & (mute | (~quiet & (answer.kind == REPLY_CTL)))),
            muted.adr.eq(answer.qpi),
            muted.row.eq(mute),
        ]
