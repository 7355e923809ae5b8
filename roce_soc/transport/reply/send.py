# SPDX-License-Identifier: BSD-2-Clause
"""Way of a reply from the scheduler to the fetcher: R_Key check, order, returns.

Ref: InfiniBand Architecture vol. 1 ch. 9.7.4.1.4 (R_Key of a READ while it is executed).
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.bounds import counted
from roce_soc.common import (
    IN_FLIGHT, OWNER_ACK, OWNER_RESPONDER, QPI_WIDTH, mr_request_description, mr_result_description, tx_packet_description,
    tx_sent_description)
from roce_soc.errors import ERRORS
from roce_soc.memory.deferred import Deferred
from roce_soc.opcodes import NAK_PSN_SEQUENCE
from roce_soc.table import BypassFIFO, FlagTable, Table
from roce_soc.transport.reply.bypass import quick_layout
from roce_soc.transport.responder.layout import READ_INDEX_WIDTH, kill_description
from roce_soc.verbs import ACCESS_REMOTE_READ

REPLIES   = 32    # packets waiting for their key check.
ON_THE_WAY = 6    # places kept for operations that have begun.
DEFERRED  = 256   # replies of all QPs that wait for a page.
RESERVE   = 2*REPLIES    # places for replies that may still have to wait when there is no `room` any more.

REPLY_FIELDS = ("qpi", "opcode", "psn", "syndrome", "msn", "length")
TX_FIELDS    = REPLY_FIELDS + ("target", "addr")

TX_ACK, TX_INBAND, TX_READ, TX_MARK = range(4)

def send_layout():
    """A reply: acknowledge by either path, READ reply, or a mark that ctl waits for.

    after_control: must wait until the fetcher has taken every acknowledge on the control path. again: of a duplicate.
    """
    return [
        ("kind", 2), ("qpi", QPI_WIDTH), ("opcode", 8), ("psn", 24), ("syndrome", 8), ("msn", 24),
        ("length", 13), ("va", 64), ("rkey", 32), ("pd", 16), ("check_length", 32),
        ("last_reply", 1), ("index", READ_INDEX_WIDTH), ("again", 1), ("after_control", 1)]


# ReplySend ----------------------------------------------------------------------------------------

class ReplySend(LiteXModule):
    """Keeps the scheduler's order through the key checks and follows packets until they were sent.

    A reply whose page is not on chip is put off, and with it what its QP has behind it, until the page has come.

    Endpoints
    ---------
    sink : send_layout, in
        Valid only; `room` says that what has begun and one more will be taken.
    put_off(qpi) : expression, replies of `qpi` wait for a page; it should give no more. wake : in, a page has come.
    quick : quick_layout, in
        A reply with nothing before it, not even here: `ready` when it can leave at once.
    request, result : MR port
    control, reads : tx_packet_description(), out
    sent : tx_sent_description(), in
    fail : kill_description(), out
        A READ reply whose key check or payload read failed; the QP's further READ replies are dropped. A duplicate
        is never refused: a reply of one is left out, and the peer finds a gap.
    done : Table
        READs answered completely, modulo 32.
    ctl_done : out, pulse

    Latency: that of the key check; a `quick` reply leaves in its clock.
    Errors : MR_* and MEMORY_FAULT, told by `fail`.
    """
    def __init__(self, n_qps):
        self.sink    = stream.Endpoint(send_layout())
        self.room    = Signal()
        self.quick   = stream.Endpoint(quick_layout())
        self.request = stream.Endpoint(mr_request_description())
        self.result  = stream.Endpoint(mr_result_description())
        self.control = stream.Endpoint(tx_packet_description())
        self.reads   = stream.Endpoint(tx_packet_description())
        self.sent    = stream.Endpoint(tx_sent_description())
        self.fail    = stream.Endpoint(kill_description())
        self.ctl_done = Signal()
        self.ready   = Signal()
        self.returned = stream.Endpoint(kill_description())       # a packet whose payload could not be read; valid only.
        self.flight_begun, self.flight_ended = Signal(), Signal()

        # # #

        self.bits    = log2_int(n_qps)
        self.done    = Table(READ_INDEX_WIDTH, n_qps, distributed=True)
        self.failed  = FlagTable(n_qps)
        self.deferred = deferred = Deferred(send_layout(), n_qps, DEFERRED)
        self.put_off, self.wake = deferred.waits, deferred.wake
        # deferred: was put off before.
        self.waiting = waiting = stream.SyncFIFO(send_layout() + [("deferred", 1)], REPLIES, buffered=True)
        self.keys    = keys    = BypassFIFO(mr_request_description(), REPLIES)
        self.results = results = BypassFIFO(mr_result_description(), REPLIES)
        self.controls, self.readss = stream.SyncFIFO(tx_packet_description(), 4), stream.SyncFIFO(tx_packet_description(), 4)
        self.flight  = stream.SyncFIFO([("last_reply", 1), ("again", 1), ("index", READ_INDEX_WIDTH)], IN_FLIGHT)
        self.faults  = stream.SyncFIFO(kill_description(), IN_FLIGHT + 8)
        self.submodules += [counted(fifo, kept_by) for fifo, kept_by in (
            (waiting,     "replies: `room` keeps ON_THE_WAY places"),
            (keys,        "READs in `waiting`, which has as many places"),
            (results,     "READs in `waiting`, which has as many places"),
            (self.faults, "packets in `flight`, and replies behind 8 places"),
        )]
        sink, again, enter = self.sink, deferred.source, waiting.sink
        self.direct = direct = Signal()
        self.comb += [
            self.ready.eq(self.done.ready & self.failed.ready & deferred.ready),
            self.room.eq((waiting.level < REPLIES - ON_THE_WAY) & (deferred.free >= RESERVE) & ~deferred.hurry),
            # An acknowledge on the control path with nothing before it goes straight out.
            direct.eq(sink.valid & (sink.kind == TX_ACK) & (waiting.level == 0) & self.controls.sink.ready
                & ~self.put_off(sink.qpi)),
            # What was put off begins anew in a clock in which the scheduler gives nothing.
            again.ready.eq(~sink.valid & (waiting.level < REPLIES - ON_THE_WAY)),
            enter.valid.eq(Mux(sink.valid, ~direct, again.valid & again.ready)),
            [getattr(enter, name).eq(Mux(sink.valid, getattr(sink, name), getattr(again, name))) for name, _ in send_layout()],
            enter.deferred.eq(~sink.valid),
            enter.first.eq(1), enter.last.eq(1),
            keys.sink.valid.eq(enter.valid & (enter.kind == TX_READ) & (enter.check_length != 0)),
            keys.sink.key.eq(enter.rkey), keys.sink.va.eq(enter.va), keys.sink.length.eq(enter.check_length),
            keys.sink.pd.eq(enter.pd), keys.sink.access.eq(ACCESS_REMOTE_READ),
            keys.source.connect(self.request),
            self.result.connect(results.sink),
        ]
        for fifo, source in ((self.controls, self.control), (self.readss, self.reads)):
            self.comb += fifo.source.connect(source, omit={"first", "last"}), source.first.eq(1), source.last.eq(1)
        self._add_exit()
        self._add_quick()
        self._add_returns()

    def connect_mr(self, port):
        """Connects the MR port of the READ replies, with its tracking: checked, then read and sent."""
        self.comb += self.request.connect(port.request), port.result.connect(self.result), self.wake.eq(port.wake)
        port.track(self.keys.sink.valid, self.results.source.valid & self.results.source.ready)
        # Beside it the responder tracks a READ from its answer to here (quick).
        port.track(0, 0)
        port.track(self.flight_begun, self.flight_ended)

    def _add_exit(self):
        """The oldest reply leaves when its key is known; a failed one stops its QP."""
        oldest, results, bits, deferred = self.waiting.source, self.results.source, self.bits, self.deferred
        control, reads, flight = self.controls.sink, self.readss.sink, self.flight.sink
        last_nak = (oldest.syndrome[5:7] == 3) & (oldest.syndrome != NAK_PSN_SEQUENCE)
        is_read, checked, known, bad, dropped = Signal(), Signal(), Signal(), Signal(), Signal()
        to_control, to_reads, fire, fault, refused = (Signal() for _ in range(5))
        miss, put_off, failed = Signal(), Signal(), Signal()
        self.comb += [
            is_read.eq(oldest.kind == TX_READ),
            checked.eq(is_read & (oldest.check_length != 0)),
            known.eq(oldest.valid & (~checked | results.valid)),
            refused.eq(checked & results.valid & (results.row != 0)),
            # `self.failed` is set in the clock of `faults.sink` and cleared by the QP's mark (both below). With a failed READ go
            # the acknowledges of what came behind it; the NAK that ends the QP stays.
            failed.eq((is_read | ((oldest.kind == TX_INBAND) & ~last_nak)) & self.failed.read(oldest.qpi[:bits])),
            # What a failure before it drops needs no page.
            miss.eq(checked & results.miss & ~failed),
            put_off.eq(miss | (deferred.waits(oldest.qpi) & ~oldest.deferred)),
            dropped.eq(failed | (refused & oldest.again)),
            bad.eq(known & refused & ~dropped & ~put_off),
            to_control.eq(((oldest.kind == TX_ACK) | (oldest.kind == TX_MARK)) & ~put_off),
            to_reads.eq(((oldest.kind == TX_INBAND) | (oldest.kind == TX_MARK) | is_read) & ~dropped & ~put_off),
            [getattr(deferred.record, name).eq(getattr(oldest, name)) for name, _ in send_layout()],
            deferred.append.eq(oldest.valid & oldest.ready & put_off & ~oldest.deferred), deferred.miss.eq(miss),
            deferred.missed.eq(oldest.valid & oldest.ready & miss & oldest.deferred),
            deferred.passed.eq(oldest.valid & oldest.ready & ~miss & oldest.deferred),
            deferred.released.ready.eq(1),
            fire.eq(known & ~bad & ~(oldest.after_control & self.controls.source.valid)
                & (control.ready | ~to_control) & ((reads.ready & flight.ready) | ~to_reads)),
            fault.eq(bad & ~self.returned.valid & (self.faults.level < 8)),
            oldest.ready.eq(fire | fault),
            results.ready.eq(oldest.ready & checked),
            control.valid.eq((fire & to_control) | self.direct),
            reads.valid.eq(fire & to_reads),
            flight.valid.eq(fire & to_reads),
            self.flight_begun.eq(flight.valid),
            flight.last_reply.eq(oldest.last_reply), flight.index.eq(oldest.index), flight.again.eq(oldest.again & is_read),
            # Failures: payload reads first, they cannot wait.
            self.faults.sink.valid.eq(self.returned.valid | fault),
            self.faults.sink.qpi.eq(oldest.qpi), self.faults.sink.psn.eq(oldest.psn), self.faults.sink.row.eq(results.row),
            If(self.returned.valid, self.faults.sink.payload.eq(self.returned.payload)),
            self.failed.set.eq(self.faults.sink.valid), self.failed.set_adr.eq(self.faults.sink.qpi),
            self.faults.source.connect(self.fail),
            self.failed.clear.eq(fire & (oldest.kind == TX_MARK) & ~put_off), self.failed.clear_adr.eq(oldest.qpi),
        ]
        for tx, owner in ((control, OWNER_ACK), (reads, OWNER_RESPONDER)):
            self.comb += [
                tx.owner.eq(owner), tx.marker.eq(oldest.kind == TX_MARK),
                [getattr(tx, name).eq(getattr(oldest, name)) for name in REPLY_FIELDS],
                tx.target.eq(results.target), tx.addr.eq(results.addr),
            ]
        self.comb += If(self.direct,
            control.marker.eq(0),
            [getattr(control, name).eq(getattr(self.sink, name)) for name in REPLY_FIELDS],
        )

    def _add_quick(self):
        """A reply that passes everything; nothing else leaves in its clock, for nothing waits."""
        quick, control, reads, flight = self.quick, self.controls.sink, self.readss.sink, self.flight.sink
        by_reads, taken = Signal(), Signal()
        self.comb += [
            by_reads.eq(quick.read | quick.inband),
            quick.ready.eq(~self.sink.valid & (self.waiting.level == 0) & ~self.failed.read(quick.qpi[:self.bits])
                & ~self.put_off(quick.qpi)
                & ~(quick.after_control & self.controls.source.valid)
                & Mux(by_reads, reads.ready & flight.ready, control.ready)),
            taken.eq(quick.valid & quick.ready),
            If(taken,
                control.valid.eq(~by_reads), reads.valid.eq(by_reads), flight.valid.eq(by_reads),
                flight.last_reply.eq(quick.last_reply), flight.index.eq(quick.index), flight.again.eq(0),
                [tx.marker.eq(0) for tx in (control, reads)],
                [getattr(tx, name).eq(getattr(quick, name)) for tx in (control, reads) for name in TX_FIELDS],
            ),
        ]

    def _add_returns(self):
        """tx_sent in order: READs are done with their last reply, marks with both paths' returns."""
        sent, flight = self.sent, self.flight.source
        mine, done = Signal(), self.done.read(sent.qpi[:self.bits])
        marks = Signal(2)
        self.comb += [
            sent.ready.eq(1),
            mine.eq(sent.valid & (sent.owner == OWNER_RESPONDER)),
            flight.ready.eq(mine),
            self.flight_ended.eq(mine),
            self.done.adr.eq(sent.qpi),
            self.done.we.eq(mine & flight.last_reply & (sent.marker | (sent.err == 0) & (flight.index == done))),
            self.done.row.eq(Mux(sent.marker, 0, done + 1)),
            self.returned.valid.eq(mine & ~sent.marker & (sent.err != 0) & ~flight.again),
            self.returned.qpi.eq(sent.qpi), self.returned.psn.eq(sent.psn),
            self.returned.row.eq(ERRORS["MEMORY_FAULT"].index),
            self.ctl_done.eq(marks == 3),
        ]
        self.sync += [
            If(marks == 3, marks.eq(0)),
            If(sent.valid & sent.marker & (sent.owner == OWNER_ACK), marks[0].eq(1)),
            If(mine & sent.marker, marks[1].eq(1)),
        ]
