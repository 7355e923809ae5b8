# SPDX-License-Identifier: BSD-2-Clause
"""Reply scheduler: ACKs, NAKs and READ replies of every QP, in the order the standard wants.

Ref: InfiniBand Architecture vol. 1 ch. 9.7.5 (responses, coalescing), 9.7.5.1.1 (duplicate READ),
9.7.5.1.2 (order of acknowledges and READ responses).
Not supported: atomics, end-to-end credits (every ACK says unlimited).
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.common import (
    CTL_ERR, CTL_RESET, CTL_START, MAX_QPS, MAX_READS, QPI_WIDTH, refusal_description)
from roce_soc.errors import ERRORS
from roce_soc.opcodes import (
    ACK_UNLIMITED, NAK_PSN_SEQUENCE, RC_ACKNOWLEDGE, RC_READ_REQUEST, RC_READ_RESPONSE_FIRST,
    RC_READ_RESPONSE_LAST, RC_READ_RESPONSE_MIDDLE, RC_READ_RESPONSE_ONLY, SYNDROME_ACK)
from roce_soc.table import StateTable
from roce_soc.transport.reply_send import TX_ACK, TX_INBAND, TX_MARK, TX_READ, ReplySend, send_layout
from roce_soc.transport.responder_layout import (
    READ_INDEX_WIDTH, REPLY_ACK, REPLY_CTL, REPLY_NAK, REPLY_READ, REPLY_READ_AGAIN, kill_description,
    reply_description)

OP_ACCEPT, OP_AGAIN, OP_LOADED, OP_TURN, OP_FAIL = range(5)

# Flags and READ counters of a QP. `inband`: a READ was accepted, so acknowledges travel with READ replies;
# `mark`: a control operation is answered when what stands before it has been sent.
STATE_LAYOUT = [
    ("pending", 1), ("queued", 1), ("stopped", 1), ("failed", 1), ("inband", 1), ("active", 1), ("loading", 1), ("mark", 1),
    ("accepted", READ_INDEX_WIDTH), ("next", READ_INDEX_WIDTH), ("saved", READ_INDEX_WIDTH)]

ACK_LAYOUT = [("psn", 24), ("syndrome", 8), ("msn", 24)]

# A READ: in the ring as accepted, under way as what is left of it. ack*: goes out before its first reply.
READ_LAYOUT = [
    ("psn", 24), ("last_psn", 24), ("va", 64), ("rkey", 32), ("length", 32), ("msn", 24), ("pmtu", 3), ("pd", 16),
    ("ack", 1), ("ack_psn", 24), ("ack_syndrome", 8), ("ack_msn", 24)]


# RoCEReply ----------------------------------------------------------------------------------------

class RoCEReply(LiteXModule):
    """Owes every peer at most one acknowledge and its accepted READs; pays one packet of a QP a turn.

    One operation a clock reads and rewrites a QP's state: a record from the responder, a turn, a READ
    loaded from the ring, a failure. QPs with something to send wait in one FIFO, each once.

    A newer ACK replaces an older one; a NAK replaces an ACK and is not replaced. A READ takes the pending
    acknowledge along. From a QP's first READ on its acknowledges use the READ replies' own path, class and
    order included, since the control class may overtake data on its way to the wire; before, they use
    the control class. A duplicate READ is looked up in the ring of the last 16, newest first, and makes the
    scheduler go back to it: it and the READs behind it are answered again.

    Parameters
    ----------
    n_qps : int

    Endpoints
    ---------
    sink : reply_description(), in
        Always taken, whatever the way out does, after at most 50 clocks (look-up of a duplicate).
    request, result : MR port
        R_Key of each READ reply, at its start for all that is left of the READ.
    control, reads : tx_packet_description(), out
        Owners OWNER_ACK and OWNER_RESPONDER.
    sent : tx_sent_description(), in
        Returns of both owners; others are passed over.
    kill : kill_description(), out
        READ that could not be answered: the responder answers the NAK and fails the QP.
    reads_qpi, reads_done : in, out
        READs of a QP whose last reply has been sent, modulo 32; same clock.
    ctl_done : out
        Pulse: a REPLY_CTL record has taken effect and nothing begun before it is in flight.
    refusal : refusal_description(), out

    Latency: acknowledge to tx_packet 4 clocks when nothing of its QP waits, READ 12; READ replies of one QP every 2 clocks.
    Errors : DUPLICATE_DROPPED; MR_* rows and MEMORY_FAULT through `kill`.
    """
    def __init__(self, n_qps):
        if n_qps < 16 or n_qps > MAX_QPS or n_qps & (n_qps - 1):
            raise ValueError(f"n_qps must be a power of two from 16 to {MAX_QPS}, not {n_qps!r}")
        self.n_qps, self.bits = n_qps, log2_int(n_qps)
        # Stream Endpoints.
        self.sink    = stream.Endpoint(reply_description())
        self.kill    = stream.Endpoint(kill_description())
        self.refusal = stream.Endpoint(refusal_description())
        self.send    = send = ReplySend(n_qps)
        self.request, self.result           = send.request, send.result
        self.control, self.reads, self.sent = send.control, send.reads, send.sent
        self.reads_qpi, self.reads_done     = Signal(self.bits), Signal(READ_INDEX_WIDTH)
        self.ctl_done = send.ctl_done
        self.ready    = Signal()

        # # #

        bits = self.bits
        self.state   = StateTable(STATE_LAYOUT, n_qps)
        self.ack     = StateTable(ACK_LAYOUT, n_qps)
        self.reading = StateTable(READ_LAYOUT + [
            ("first", 1), ("turning", 1), ("index", READ_INDEX_WIDTH)], n_qps)
        self.work    = stream.SyncFIFO([("qpi", QPI_WIDTH)], n_qps)
        self.kills   = stream.SyncFIFO(kill_description(), 8)
        ring         = Memory(layout_len(READ_LAYOUT), n_qps*MAX_READS)
        self.ring_write, self.ring_read = ring.get_port(write_capable=True), ring.get_port()
        self.specials += ring, self.ring_write, self.ring_read
        self.op      = Record([("valid", 1), ("kind", 3), ("qpi", QPI_WIDTH), ("room", 1)])
        self.record  = Record(reply_description().payload_layout)     # of OP_ACCEPT, OP_AGAIN, OP_FAIL
        self.loaded  = Record(READ_LAYOUT)                            # of OP_LOADED
        self.hit     = Record(READ_LAYOUT)                            # of OP_AGAIN
        self.ring_entry = Record(READ_LAYOUT)
        self.load    = Signal()                                       # this clock reads the ring for OP_LOADED.
        self.comb += [
            self.ready.eq(self.state.ready & self.ack.ready & self.reading.ready & send.ready),
            self.reads_done.eq(send.done.read(self.reads_qpi)),
            self.kills.source.connect(self.kill, omit={"first", "last"}), self.kill.first.eq(1), self.kill.last.eq(1),
            self.ring_entry.raw_bits().eq(self.ring_read.dat_r),
        ]
        self._add_search()
        self._add_choice()
        self._add_operation()

    def connect_mr(self, port):
        """Connects the MR port of the READ replies, with its tracking: checked, then read and sent."""
        send = self.send
        self.comb += self.request.connect(port.request), port.result.connect(self.result)
        port.track(send.keys.sink.valid, send.results.source.valid & send.results.source.ready)
        port.track(send.flight_begun, send.flight_ended)

    def _add_search(self):
        """Walks the ring back from the newest READ for one that covers the duplicate at the sink."""
        sink, entry, bits = self.sink, self.ring_entry, self.bits
        self.found, self.missed = Signal(), Signal()
        self.search_index = index = Signal(READ_INDEX_WIDTH)
        self.search_going = Signal()
        state   = self.state.read(sink.qpi[:bits])
        left    = Signal(READ_INDEX_WIDTH)
        hit_psn, hit_key, hit_low, hit_high = Signal(), Signal(), Signal(), Signal()
        after, before, ends = Signal(24), Signal(24), Signal(24)
        end, entry_end = Signal(65), Signal(65)
        self.comb += [
            after.eq(sink.psn - entry.psn),
            before.eq(entry.last_psn - sink.psn),
            ends.eq(entry.last_psn - sink.last_psn),
            end.eq(sink.va + sink.length),
            entry_end.eq(entry.va + entry.length),
        ]
        again = sink.valid & (sink.kind == REPLY_READ_AGAIN)
        self.search = fsm = FSM(reset_state="IDLE")
        fsm.act("IDLE",
            NextValue(index, state.accepted - 1),
            NextValue(left, state.saved),
            If(again & self.ready, NextState("READ"))
        )
        fsm.act("READ",
            self.search_going.eq(1),
            If(left == 0,
                self.missed.eq(1),
                NextState("IDLE"),
            ).Elif(~self.load,
                NextState("COMPARE")
            )
        )
        fsm.act("COMPARE",
            NextValue(hit_psn, ~after[23] & ~before[23] & ~ends[23]),
            NextValue(hit_key, entry.rkey == sink.rkey),
            NextValue(hit_low, sink.va >= entry.va),
            NextValue(hit_high, end <= entry_end),
            NextState("JUDGE"),
        )
        fsm.act("JUDGE",
            If(hit_psn & hit_key & hit_low & hit_high,
                self.found.eq(1),
                If(sink.ready, NextState("IDLE")),
            ).Else(
                NextValue(index, index - 1),
                NextValue(left, left - 1),
                NextState("READ"),
            )
        )
        self.comb += self.refusal.first.eq(1), self.refusal.last.eq(1)
        self.sync += [
            If(fsm.ongoing("COMPARE"), self.hit.eq(entry)),
            self.refusal.valid.eq(self.missed),
            self.refusal.row.eq(ERRORS["DUPLICATE_DROPPED"].index),
            self.refusal.psn.eq(sink.psn),
            self.refusal.qpn.eq(sink.qpn),
            self.refusal.opcode.eq(RC_READ_REQUEST),
            self.refusal.info.eq(sink.length),
        ]

    def _add_choice(self):
        """One operation a clock: what the ring returned, a failure, a record, a turn."""
        op, sink, work, send = self.op, self.sink, self.work, self.send
        load_qpi, loading = Signal(QPI_WIDTH), Signal()
        fail, accept, turn = Signal(), Signal(), Signal()
        again = sink.kind == REPLY_READ_AGAIN
        self.comb += [
            fail.eq(send.fail.valid & (self.kills.level < 4) & ~loading),
            send.fail.ready.eq(fail),
            accept.eq(sink.valid & self.ready & ~loading & ~fail & (~again | self.found)),
            sink.ready.eq(accept | self.missed),
            turn.eq(work.source.valid & ~loading & ~fail & ~accept & send.room),
            work.source.ready.eq(turn),
        ]
        self.sync += [
            loading.eq(self.load), load_qpi.eq(op.qpi),
            op.room.eq(send.room),
            op.valid.eq(loading | fail | accept | turn),
            op.qpi.eq(Mux(loading, load_qpi, Mux(fail, send.fail.qpi, Mux(accept, sink.qpi, work.source.qpi)))),
            op.kind.eq(Mux(loading, OP_LOADED, Mux(fail, OP_FAIL, Mux(accept, Mux(again, OP_AGAIN, OP_ACCEPT), OP_TURN)))),
            If(loading, self.loaded.eq(self.ring_entry)),
            self.record.eq(sink.payload),
            If(fail, self.record.psn.eq(send.fail.psn), self.record.code.eq(send.fail.row)),
        ]

    def _add_operation(self):
        """The clock of an operation: state and READ under way are read, changed, written."""
        op, record, bits, tx = self.op, self.record, self.bits, self.send.sink
        state, ack, reading = (table.read(op.qpi[:bits]) for table in (self.state, self.ack, self.reading))
        new, new_reading = self.state.dat_w, self.reading.dat_w
        self.old, self.old_ack, self.old_reading = state, ack, reading
        self.push  = Signal()
        self.busy  = Signal()
        entry      = Record(READ_LAYOUT)      # of an accepted READ
        entry_ring = Record(READ_LAYOUT)
        self.comb += [
            new.eq(state),
            new_reading.eq(reading),
            self.state.we.eq(op.valid), self.state.adr.eq(op.qpi),
            self.ack.adr.eq(op.qpi), self.reading.adr.eq(op.qpi),
            self.ack.dat_w.psn.eq(record.psn), self.ack.dat_w.syndrome.eq(record.syndrome), self.ack.dat_w.msn.eq(record.msn),
            self.busy.eq(state.active | state.loading | (state.next != state.accepted)),
            [getattr(entry, name).eq(getattr(record, name)) for name, _ in READ_LAYOUT if not name.startswith("ack")],
            entry.ack.eq(state.pending), entry.ack_psn.eq(ack.psn), entry.ack_syndrome.eq(ack.syndrome),
            entry.ack_msn.eq(ack.msn),
            self.ring_write.adr.eq(Cat(record.index[:4], op.qpi[:bits])),
            self.ring_write.dat_w.eq(entry.raw_bits()),
            self.ring_read.adr.eq(Mux(self.load, Cat(state.next[:4], op.qpi[:bits]),
                Cat(self.search_index[:4], self.sink.qpi[:bits]))),
            self.work.sink.valid.eq(self.push), self.work.sink.qpi.eq(op.qpi),
            self.kills.sink.qpi.eq(op.qpi), self.kills.sink.psn.eq(record.psn), self.kills.sink.row.eq(record.code),
            tx.qpi.eq(op.qpi),
        ]
        self.comb += If(op.valid, Case(op.kind, {
            OP_ACCEPT: [Case(record.kind, {
                REPLY_ACK:  self._accept_ack(),
                REPLY_NAK:  self._accept_nak(),
                REPLY_READ: self._accept_read(entry),
                REPLY_CTL:  self._accept_ctl(),
                "default":  []})],
            OP_AGAIN:  self._again(),
            OP_LOADED: [
                self.push.eq(1),
                If(state.loading,
                    new.loading.eq(0), new.active.eq(1),
                    self._start(self.loaded, state.next - 1)
                )],
            OP_TURN:   self._turn(),
            OP_FAIL:   self._fail(),
            "default": [],
        }))

    def _start(self, entry, index):
        """Statements: `entry` is the READ under way."""
        reading = self.reading
        return [reading.we.eq(1), reading.dat_w.first.eq(1), reading.dat_w.turning.eq(0), reading.dat_w.index.eq(index),
                [getattr(reading.dat_w, name).eq(getattr(entry, name)) for name, _ in READ_LAYOUT]]

    def _queue(self):
        """Statements: the QP has something to send."""
        return [self.state.dat_w.queued.eq(1), self.push.eq(~self.old.queued)]

    def _accept_ack(self):
        old, record, tx = self.old, self.record, self.send.sink
        held = old.pending & (self.old_ack.syndrome[5:7] != 0)
        return [If(~old.stopped & ~held,
            # Nothing waits: it leaves at once. Else it is owed, instead of an older one.
            If(~old.queued & self.op.room,
                tx.valid.eq(1), tx.kind.eq(Mux(old.inband, TX_INBAND, TX_ACK)), tx.opcode.eq(RC_ACKNOWLEDGE),
                tx.psn.eq(record.psn), tx.syndrome.eq(record.syndrome), tx.msn.eq(record.msn),
            ).Else(
                self.ack.we.eq(1), self.state.dat_w.pending.eq(1), self._queue(),
            ),
        )]

    def _accept_nak(self):
        # The last NAK of a QP is wanted even when its READs have failed.
        final = (self.record.syndrome[5:7] == 3) & (self.record.syndrome != NAK_PSN_SEQUENCE)
        return [If(~self.old.stopped | final, self.ack.we.eq(1), self.state.dat_w.pending.eq(1), self._queue())]

    def _accept_read(self, entry):
        old, new, record = self.old, self.state.dat_w, self.record
        return [If(~old.stopped,
            self.ring_write.we.eq(1),
            new.pending.eq(0),
            new.inband.eq(1),
            new.accepted.eq(record.index + 1),
            If(old.saved != MAX_READS, new.saved.eq(old.saved + 1)),
            # Nothing before it: no way round through the ring.
            If(~self.busy,
                new.next.eq(record.index + 1), new.active.eq(1),
                self._start(entry, record.index),
                # From here on acknowledges use the other path: what is on the old one goes first.
                self.reading.dat_w.turning.eq(~old.inband),
            ),
            self._queue(),
        )]

    def _accept_ctl(self):
        old, new, record = self.old, self.state.dat_w, self.record
        last_nak = old.pending & (self.old_ack.syndrome[5:7] == 3) & (self.old_ack.syndrome != NAK_PSN_SEQUENCE)
        cut  = [new.active.eq(0), new.loading.eq(0), new.pending.eq(0), new.next.eq(old.accepted)]
        done = self.send.done.read(self.op.qpi[:self.bits])
        return [
            new.mark.eq(1), self._queue(),
            If(record.code == CTL_START,
                cut, new.next.eq(done), new.accepted.eq(done), new.saved.eq(0),
                new.stopped.eq(0), new.failed.eq(0), new.inband.eq(0),
            ).Elif(record.code == CTL_RESET,
                cut, new.stopped.eq(1), new.saved.eq(0),
            ).Elif(record.code == CTL_ERR,
                # What was accepted before the NAK that failed the QP is still owed, as is the NAK.
                new.stopped.eq(1),
                If(~last_nak, cut),
            ),
        ]

    def _again(self):
        """The duplicate was found as ring entry search_index: go back to it unless it is yet to come."""
        old, new, record = self.old, self.state.dat_w, self.record
        index, to_come, age = Signal(READ_INDEX_WIDTH), Signal(READ_INDEX_WIDTH), Signal(READ_INDEX_WIDTH)
        restart = Record(READ_LAYOUT)
        self.sync += If(self.found, index.eq(self.search_index))
        self.comb += [
            to_come.eq(old.accepted - old.next),
            age.eq(old.accepted - index),
            restart.eq(self.hit),
            restart.psn.eq(record.psn), restart.last_psn.eq(record.last_psn), restart.va.eq(record.va),
            restart.length.eq(record.length), restart.ack.eq(0),
        ]
        return [If(~old.stopped & (age > to_come),
            new.next.eq(index + 1), new.active.eq(1), new.loading.eq(0),
            self._start(restart, index), self._queue(),
        )]

    def _turn(self):
        """One packet of the QP, or the next READ from the ring."""
        old, new, ack, reading, tx = self.old, self.state.dat_w, self.old_ack, self.old_reading, self.send.sink
        size, pmtu, last, more = Signal(13), Signal(13), Signal(), Signal()
        next_reading = self.reading.dat_w
        self.comb += [
            pmtu.eq(128 << reading.pmtu),
            last.eq(reading.length <= pmtu),
            size.eq(Mux(last, reading.length, pmtu)),
        ]
        self.comb += tx.after_control.eq(old.active & reading.turning)
        acknowledge = [tx.valid.eq(1), tx.kind.eq(Mux(old.inband, TX_INBAND, TX_ACK)), tx.opcode.eq(RC_ACKNOWLEDGE)]
        return [
            If(old.active & reading.ack,
                acknowledge, tx.psn.eq(reading.ack_psn), tx.syndrome.eq(reading.ack_syndrome), tx.msn.eq(reading.ack_msn),
                self.reading.we.eq(1), next_reading.ack.eq(0), next_reading.turning.eq(0),
                more.eq(1),
            ).Elif(old.active,
                tx.valid.eq(1), tx.kind.eq(TX_READ),
                tx.opcode.eq(Mux(reading.first, Mux(last, RC_READ_RESPONSE_ONLY, RC_READ_RESPONSE_FIRST),
                    Mux(last, RC_READ_RESPONSE_LAST, RC_READ_RESPONSE_MIDDLE))),
                tx.psn.eq(reading.psn), tx.msn.eq(reading.msn), tx.syndrome.eq(SYNDROME_ACK | ACK_UNLIMITED),
                tx.length.eq(size), tx.va.eq(reading.va), tx.rkey.eq(reading.rkey), tx.pd.eq(reading.pd),
                tx.check_length.eq(Mux(reading.first, reading.length, size)),
                tx.last_reply.eq(last), tx.index.eq(reading.index),
                self.reading.we.eq(1), next_reading.first.eq(0), next_reading.turning.eq(0),
                next_reading.psn.eq(reading.psn + 1), next_reading.va.eq(reading.va + size),
                next_reading.length.eq(reading.length - size),
                new.active.eq(~last),
                more.eq(~last | (old.next != old.accepted) | old.pending | old.mark),
            ).Elif(old.next != old.accepted,
                self.load.eq(1),
                new.next.eq(old.next + 1), new.loading.eq(1),
            ).Elif(old.pending,
                acknowledge, tx.psn.eq(ack.psn), tx.syndrome.eq(ack.syndrome), tx.msn.eq(ack.msn),
                new.pending.eq(0), more.eq(old.mark),
            ).Elif(old.mark,
                tx.valid.eq(1), tx.kind.eq(TX_MARK), new.mark.eq(0),
            ),
            self.push.eq(more),
            new.queued.eq(more | self.load),
        ]

    def _fail(self):
        """A READ reply that could not be read: no more replies of this QP; the responder gives the NAK."""
        old, new = self.old, self.state.dat_w
        last_nak = old.pending & (self.old_ack.syndrome[5:7] == 3) & (self.old_ack.syndrome != NAK_PSN_SEQUENCE)
        return [
            new.failed.eq(1), new.stopped.eq(1), new.active.eq(0), new.loading.eq(0), new.next.eq(old.accepted),
            new.pending.eq(last_nak),
            self.kills.sink.valid.eq(~old.failed),
        ]
