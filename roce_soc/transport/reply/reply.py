# SPDX-License-Identifier: BSD-2-Clause
"""Reply scheduler: ACKs, NAKs and READ replies of every QP, in the order the standard wants.

Ref: InfiniBand Architecture vol. 1 ch. 9.7.5 (responses, coalescing), 9.7.5.1.1 (duplicate READ),
9.7.5.1.2 (order of acknowledges and READ responses).
Not supported: atomics, end-to-end credits (every ACK says unlimited).
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.attributes import pmtu_bytes
from roce_soc.bounds import counted
from roce_soc.common import CTL_ERR, CTL_RESET, CTL_START, MAX_QPS, MAX_READS, QPI_WIDTH, refusal_description
from roce_soc.opcodes import (
    ACK_UNLIMITED, NAK_PSN_SEQUENCE, RC_ACKNOWLEDGE, RC_READ_RESPONSE_FIRST, RC_READ_RESPONSE_LAST,
    RC_READ_RESPONSE_MIDDLE, RC_READ_RESPONSE_ONLY, SYNDROME_ACK)
from roce_soc.transport.reply.again import LOOK_UPS, accept_again, connect_look_ups, look_up_known, look_up_layout
from roce_soc.transport.reply.bypass import ReplyBypass
from roce_soc.transport.reply.ring import READ_LAYOUT, ReadRing
from roce_soc.transport.reply.rows import LIFE_WIDTH, ReplyRows
from roce_soc.transport.reply.send import TX_ACK, TX_INBAND, TX_MARK, TX_READ, ReplySend, send_layout
from roce_soc.transport.responder.layout import (
    READ_INDEX_WIDTH, REPLY_ACK, REPLY_CTL, REPLY_NAK, REPLY_READ, REPLY_READ_AGAIN, kill_description,
    reply_description)

OP_ACCEPT, OP_AGAIN, OP_LOADED, OP_TURN, OP_FAIL = range(5)

def _final(syndrome):
    """Expression: a NAK that ends the QP."""
    return (syndrome[5:7] == 3) & (syndrome != NAK_PSN_SEQUENCE)


# RoCEReply ----------------------------------------------------------------------------------------

class RoCEReply(LiteXModule):
    """Owes every peer at most one acknowledge and its accepted READs; pays one packet of a QP a turn.

    One operation a clock reads and rewrites a QP's row: a record from the responder, a turn, a READ
    loaded from the ring, a failure. QPs with something to send wait in one FIFO, each once.

    A newer ACK replaces an older one; a NAK replaces an ACK and is not replaced. A READ takes the pending
    acknowledge along. From a QP's first READ on its acknowledges use the READ replies' own path, class and
    order included, since the control class may overtake data on its way to the wire; before, they use
    the control class. A duplicate READ is looked up among the last 16 and answered once more, before READs
    that are younger; it begins with FIRST or ONLY. One that is yet to be answered adds nothing.

    Look-ups wait beside the stream of records, LOOK_UPS of all QPs, 16 of a QP. What a QP owes behind its own waits for
    them, other QPs' records do not. A duplicate without a place is dropped, as if the network had lost it: the peer asks
    again. A duplicate is never refused: where its key is gone or its memory fails, its replies are left out.

    Parameters
    ----------
    n_qps : int

    Endpoints
    ---------
    sink : reply_description(), in
        Always taken, whatever the way out does, after at most a few clocks. A READ's key has been checked, it begins at
        target, addr: enough for a reply that starts at once.
    request, result : MR port
        R_Key of each READ reply that had to wait, at its start for all that is left of the READ.
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

    Latency: acknowledge and READ to tx_packet 1 clock when nothing waits at all; else, when nothing of the QP does,
        5 and 13; READ replies of one QP every 5.
    Errors : PSN_DUPLICATE or DUPLICATE_DROPPED, one for each duplicate READ; MR_* rows and MEMORY_FAULT through `kill`.
    """
    def __init__(self, n_qps):
        if n_qps < 16 or n_qps > MAX_QPS or n_qps & (n_qps - 1):
            raise ValueError(f"n_qps must be a power of two from 16 to {MAX_QPS}, not {n_qps!r}")
        self.n_qps, self.bits = n_qps, log2_int(n_qps)
        # Stream Endpoints.
        self.sink    = stream.Endpoint(reply_description())
        self.kill    = stream.Endpoint(kill_description())
        self.send    = send = ReplySend(n_qps)
        self.refusal = stream.Endpoint(refusal_description())
        self.asked   = asked = stream.SyncFIFO(look_up_layout(), LOOK_UPS, buffered=True)
        self.ring    = ring = ReadRing(n_qps, asked.source)
        self.connect_mr                     = send.connect_mr
        self.request, self.result           = send.request, send.result
        self.control, self.reads, self.sent = send.control, send.reads, send.sent
        self.reads_qpi, self.reads_done     = Signal(self.bits), Signal(READ_INDEX_WIDTH)
        self.ctl_done = send.ctl_done
        self.ready    = Signal()

        # # #

        self.work    = stream.SyncFIFO([("qpi", QPI_WIDTH)], n_qps)
        self.kills   = stream.SyncFIFO(kill_description(), 16)
        self.submodules += counted(self.work, "QPs: n_qps, each at most once (`queued`)")
        self.submodules += counted(self.kills, "failures on their way: three, with the level below 8")
        # Operation: 0 chosen, 1 row on its way, 2 row here: executed. load: what the ring gave, for OP_LOADED and OP_AGAIN.
        # sent: the first packet of an accepted READ has left.
        op = [("valid", 1), ("kind", 3), ("qpi", QPI_WIDTH), ("room", 1), ("again", 1), ("sent", 1),
            ("index", READ_INDEX_WIDTH), ("life", LIFE_WIDTH)]
        self.ops     = [Record(op, name=f"op{n}") for n in range(3)]
        self.records = [Record(reply_description().payload_layout, name=f"record{n}") for n in range(3)]
        self.loads   = [Record(READ_LAYOUT, name=f"load{n}") for n in range(3)]
        for group in (self.ops, self.records, self.loads):
            self.sync += [after.eq(before) for before, after in zip(group, group[1:])]
        self.quick = quick = ReplyBypass(n_qps, self.sink, self.ops)
        self.op, self.record, self.loaded = self.ops[2], self.records[2], self.loads[2]
        self.rows    = rows = ReplyRows(n_qps, self.ops)
        self.old, self.new = rows.old, rows.new
        self.tx      = Record(send_layout())
        self.tx_valid, self.push, self.load = Signal(), Signal(), Signal()
        self.comb += [
            self.ready.eq(rows.ready & send.ready & ring.ready & quick.ready),
            self.reads_done.eq(send.done.read(self.reads_qpi)),
            quick.source.connect(send.quick, omit={"valid", "ready"}),
            self.kills.source.connect(self.kill, omit={"first", "last"}), self.kill.first.eq(1), self.kill.last.eq(1),
        ]
        # Whether one packet is enough, known one clock before it is asked.
        self.record_last, self.load_last = lasts = Signal(), Signal()
        for last, group in zip(lasts, (self.records, self.loads)):
            self.sync += last.eq(group[1].length <= pmtu_bytes(group[1].pmtu))
        self._add_choice()
        self._add_operation()

    def _add_choice(self):
        """One operation a clock: what the ring returned, a failure, a record not sent at once, a turn."""
        op, sink, work, send, ring = self.ops[0], self.sink, self.work, self.send, self.ring
        fail, accept, turn, sent, qpi = Signal(), Signal(), Signal(), Signal(), Signal(QPI_WIDTH)
        known, asked = Signal(), self.asked.source
        self.comb += [
            fail.eq(send.fail.valid & (self.kills.level < 8) & ~ring.loaded_valid),
            send.fail.ready.eq(fail),
            # What a look-up gave: one in many clocks, so that nobody waits.
            known.eq(ring.known & ~ring.loaded_valid & ~fail),
            ring.taken.eq(known),
            asked.ready.eq(known),
            accept.eq(sink.valid & self.ready & ~ring.loaded_valid & ~fail & ~ring.known),
            sink.ready.eq(accept),
            send.quick.valid.eq(accept & self.quick.source.valid),
            sent.eq(send.quick.valid & send.quick.ready),
            turn.eq(work.source.valid & ~ring.loaded_valid & ~fail & ~ring.known & ~accept & send.room),
            work.source.ready.eq(turn),
            qpi.eq(Mux(ring.loaded_valid, ring.loaded_qpi, Mux(fail, send.fail.qpi, Mux(known, asked.qpi,
                Mux(accept, sink.qpi, work.source.qpi))))),
        ]
        self.sync += [
            op.room.eq(send.room & ~send.put_off(qpi)),
            op.valid.eq(ring.loaded_valid | fail | known | accept & ~(sent & ~send.quick.read) | turn),
            op.sent.eq(sent),
            op.qpi.eq(qpi),
            op.kind.eq(Mux(ring.loaded_valid, OP_LOADED,
                Mux(fail, OP_FAIL, Mux(known, OP_AGAIN, Mux(accept, OP_ACCEPT, OP_TURN))))),
            # Of a look-up: an entry was found.
            op.again.eq(Mux(ring.loaded_valid, ring.loaded_again, ring.found)),
            op.life.eq(asked.life),
            op.index.eq(Mux(ring.loaded_valid, ring.loaded_index, ring.index)),
            self.loads[0].raw_bits().eq(Mux(ring.loaded_valid, ring.loaded.raw_bits(), ring.hit.raw_bits())),
            self.records[0].eq(sink.payload),
            If(fail,
                self.records[0].psn.eq(send.fail.psn), self.records[0].code.eq(send.fail.row),
            ).Elif(known,
                [getattr(self.records[0], name).eq(getattr(asked, name)) for name, _ in look_up_layout() if name != "life"],
            ),
        ]

    def _add_operation(self):
        """The clock of an operation: the row is changed; a packet, the QP's place in the FIFO, ring and kill follow."""
        op, record, old, new, ring = self.op, self.record, self.old, self.new, self.ring
        self.busy  = Signal()
        self.dropped, self.answered = Signal(), Signal()      # the duplicate in hand.
        entry      = Record(READ_LAYOUT)      # of an accepted READ
        push_qpi   = Signal(QPI_WIDTH)
        pushing    = Signal()
        self.comb += [
            new.eq(old),
            self.busy.eq(old.active | old.loading | (old.next != old.accepted) | (old.again != 0) | (old.looking != 0)),
            [getattr(entry, name).eq(getattr(record, name)) for name, _ in READ_LAYOUT if not name.startswith("ack")],
            entry.ack.eq(old.pending), entry.ack_psn.eq(old.psn), entry.ack_syndrome.eq(old.syndrome), entry.ack_msn.eq(old.msn),
            self.quick.update.eq(op.valid), self.quick.op_qpi.eq(op.qpi),
            self.quick.free.eq(~new.queued & new.started & (new.looking == 0)), self.quick.inband.eq(new.inband),
            ring.op_qpi.eq(op.qpi), ring.accepted.eq(new.accepted), ring.saved.eq(new.saved), ring.update.eq(op.valid),
            ring.entry.eq(entry), ring.entry_index.eq(record.index),
            ring.repeat.psn.eq(record.psn), ring.repeat.va.eq(record.va), ring.repeat.length.eq(record.length),
            ring.repeat.last_psn.eq(record.last_psn), ring.repeat_index.eq(op.index),
            self.kills.sink.qpi.eq(op.qpi), self.kills.sink.psn.eq(record.psn), self.kills.sink.row.eq(record.code),
            self.tx.qpi.eq(op.qpi),
            self.work.sink.valid.eq(pushing), self.work.sink.qpi.eq(push_qpi),
        ]
        self.sync += [
            pushing.eq(self.push), push_qpi.eq(op.qpi),
            self.send.sink.valid.eq(self.tx_valid & ~op.sent),
            [getattr(self.send.sink, name).eq(getattr(self.tx, name)) for name, _ in send_layout()],
        ]
        connect_look_ups(self)
        self._add_packet(entry)
        accept = {REPLY_ACK: self._accept_ack(), REPLY_NAK: self._accept_nak(), REPLY_READ: self._accept_read(entry),
            REPLY_READ_AGAIN: accept_again(self), REPLY_CTL: self._accept_ctl(), "default": []}
        self.comb += If(op.valid, Case(op.kind, {
            OP_ACCEPT: [Case(record.kind, accept)],
            OP_AGAIN:  look_up_known(self),
            OP_LOADED: [
                If(~old.loading,
                    self.push.eq(1),
                ).Else(
                    new.loading.eq(0), new.active.eq(1), self._start(self.loaded, op.index, self.load_last, op.again),
                    If(op.again, new.again.eq(old.again & ~(1 << op.index[:4]))),
                    If(op.room, self.emit.eq(1)).Else(self.push.eq(1)),
                )],
            OP_TURN:   self._turn(),
            OP_FAIL:   self._fail(),
            "default": [],
        }))
        self.comb += If(self.emit, self._emit())

    def _start(self, entry, index, last, again=0):
        """Statements: `entry` is the READ under way; `last`: it has one packet left."""
        new = self.new
        return [new.r_first.eq(1), new.r_last.eq(last), new.r_turning.eq(0), new.r_index.eq(index), new.r_again.eq(again),
                [getattr(new, f"r_{name}").eq(getattr(entry, name)) for name, _ in READ_LAYOUT]]

    def _add_packet(self, entry):
        """The READ that a packet is made of: accepted or loaded just now, or under way; and the next to load."""
        old, op, ring = self.old, self.op, self.ring
        self.emit  = Signal()
        self.cur   = cur = Record(READ_LAYOUT + [("first", 1), ("last", 1), ("turning", 1)])
        self.size, self.last, self.waiting = Signal(13), cur.last, Signal()
        self.next_last = Signal()
        pmtu = Signal(13)
        self.left = left = Signal(MAX_READS)
        names = [name for name, _ in READ_LAYOUT]
        self.comb += [
            [getattr(cur, name).eq(getattr(old, f"r_{name}")) for name in names + ["first", "last", "turning"]],
            If(op.kind == OP_LOADED,
                [getattr(cur, name).eq(getattr(self.loaded, name)) for name in names], cur.first.eq(1), cur.turning.eq(0),
                cur.last.eq(self.load_last),
            ).Elif(op.kind == OP_ACCEPT,
                [getattr(cur, name).eq(getattr(entry, name)) for name in names], cur.first.eq(1), cur.turning.eq(~old.inband),
                cur.last.eq(self.record_last),
            ),
            pmtu.eq(pmtu_bytes(cur.pmtu)),
            self.next_last.eq(cur.length <= Cat(0, pmtu)),
            self.size.eq(Mux(self.last, cur.length, pmtu)),
            # Not `new.again`: what a turn decides by `waiting` may clear it.
            left.eq(old.again & ~Mux((op.kind == OP_LOADED) & op.again, 1 << op.index[:4], 0)),
            self.waiting.eq(((old.next != old.accepted) | (left != 0)) & (old.looking == 0)),
        ]
        self.comb += [
            ring.load.eq(self.load), ring.load_again.eq(left),
            ring.load_next.eq(old.next), ring.load_accepted.eq(old.accepted),
        ]

    def _emit(self):
        """Statements: a packet of the READ `cur`, the acknowledge before it first; then the next READ is loaded."""
        old, new, tx, cur, last, size, op = self.old, self.new, self.tx, self.cur, self.last, self.size, self.op
        more = Signal()
        self.comb += more.eq(cur.ack | ~last | old.pending & (op.kind != OP_ACCEPT) | old.mark)
        return [
            self.tx_valid.eq(1), tx.after_control.eq(cur.turning),
            new.r_turning.eq(0),
            If(cur.ack,
                tx.kind.eq(TX_INBAND), tx.opcode.eq(RC_ACKNOWLEDGE),
                tx.psn.eq(cur.ack_psn), tx.syndrome.eq(cur.ack_syndrome), tx.msn.eq(cur.ack_msn),
                new.r_ack.eq(0),
            ).Else(
                tx.kind.eq(TX_READ),
                tx.opcode.eq(Mux(cur.first, Mux(last, RC_READ_RESPONSE_ONLY, RC_READ_RESPONSE_FIRST),
                    Mux(last, RC_READ_RESPONSE_LAST, RC_READ_RESPONSE_MIDDLE))),
                tx.psn.eq(cur.psn), tx.msn.eq(cur.msn), tx.syndrome.eq(SYNDROME_ACK | ACK_UNLIMITED),
                tx.length.eq(size), tx.va.eq(cur.va), tx.rkey.eq(cur.rkey), tx.pd.eq(cur.pd),
                tx.check_length.eq(Mux(cur.first, cur.length, size)),
                tx.last_reply.eq(last), tx.index.eq(new.r_index), tx.again.eq(new.r_again),
                new.r_first.eq(0), new.r_last.eq(self.next_last),
                new.r_psn.eq(cur.psn + 1), new.r_va.eq(cur.va + size), new.r_length.eq(cur.length - size),
                new.active.eq(~last),
            ),
            # A READ accepted just now has none waiting behind it; a turn that waits is for an acknowledge or a mark, so `more`.
            If(op.kind == OP_ACCEPT,
                new.queued.eq(more), self.push.eq(~old.queued & more),
            ).Elif(~cur.ack & last & self.waiting,
                self._load(),
            ).Else(
                new.queued.eq(more), self.push.eq(more),
            ),
        ]

    def _load(self):
        """Statements: the next READ is loaded; the QP's turn comes with it."""
        old, new = self.old, self.new
        return [self.load.eq(1), new.loading.eq(1), new.queued.eq(1), self.push.eq(0),
                If(self.left == 0, new.next.eq(old.next + 1))]

    def _queue(self):
        """Statements: the QP has something to send."""
        return self.new.queued.eq(1), self.push.eq(~self.old.queued)

    def _owe(self):
        """Statements: the record is the pending acknowledge."""
        new, names = self.new, ("psn", "syndrome", "msn")
        return [new.pending.eq(1), [getattr(new, n).eq(getattr(self.record, n)) for n in names], self._queue()]

    def _acknowledge(self, psn, syndrome, msn):
        """Statements: an acknowledge leaves."""
        tx = self.tx
        return [self.tx_valid.eq(1), tx.kind.eq(Mux(self.old.inband, TX_INBAND, TX_ACK)), tx.opcode.eq(RC_ACKNOWLEDGE),
                tx.psn.eq(psn), tx.syndrome.eq(syndrome), tx.msn.eq(msn)]

    def _cut(self):
        """Statements: no READ is owed any more."""
        new = self.new
        return [new.active.eq(0), new.loading.eq(0), new.again.eq(0), new.next.eq(self.old.accepted)]

    def _forget(self):
        """Statements: what look-ups of the QP will give is not wanted any more."""
        return [self.new.looking.eq(0), self.new.life.eq(self.old.life + 1)]

    def _accept_ack(self):
        old, record = self.old, self.record
        held = old.pending & (old.syndrome[5:7] != 0)
        return [If(old.started & ~held,
            # Nothing waits: it leaves at once. Else it is owed, instead of an older one.
            If(~old.queued & (old.looking == 0) & self.op.room,
                self._acknowledge(record.psn, record.syndrome, record.msn)
            ).Else(self._owe()),
        )]

    def _accept_nak(self):
        # The last NAK of a QP is wanted even when its READs have failed.
        return [If(self.old.started | _final(self.record.syndrome), self._owe())]

    def _accept_read(self, entry):
        old, new, record = self.old, self.new, self.record
        return [If(old.started,
            self.ring.write.eq(1),
            new.pending.eq(0),
            new.inband.eq(1),
            new.accepted.eq(record.index + 1),
            If(old.saved != MAX_READS, new.saved.eq(old.saved + 1)),
            # Nothing before it: no way round through the ring.
            If(~self.busy,
                new.next.eq(record.index + 1), new.active.eq(1),
                self._start(entry, record.index, self.record_last),
                # From here on acknowledges use the other path: what is on the old one goes first.
                new.r_turning.eq(~old.inband),
                If(self.op.room, self.emit.eq(1)).Else(self._queue()),
            ).Else(
                self._queue()
            ),
        )]

    def _accept_ctl(self):
        old, new, record = self.old, self.new, self.record
        done = self.send.done.read(self.op.qpi[:self.bits])
        return [
            new.mark.eq(1), self._queue(), self._forget(),
            If(record.code == CTL_START,
                self._cut(), new.pending.eq(0), new.next.eq(done), new.accepted.eq(done), new.saved.eq(0),
                new.started.eq(1), new.clean.eq(0), new.failed.eq(0), new.inband.eq(0),
            ).Elif(record.code == CTL_RESET,
                self._cut(), new.pending.eq(0), new.started.eq(0), new.saved.eq(0), new.clean.eq(1),
            ).Elif(record.code == CTL_ERR,
                # What was accepted before the NAK that failed the QP is still owed, as is the NAK.
                new.started.eq(0),
                If(~(old.pending & _final(old.syndrome)), self._cut(), new.pending.eq(0)),
            ),
        ]

    def _turn(self):
        """One packet of the QP, or the next READ from the ring."""
        old, new, tx, more = self.old, self.new, self.tx, Signal()
        return [
            If(~self.op.room,
                # It waits for a page; its turn goes round.
                self.push.eq(1),
            ).Elif(old.active,
                self.emit.eq(1),
            ).Elif(self.waiting,
                self._load(),
            ).Elif(old.looking != 0,
                # All else waits for the look-ups; the last of them queues the QP.
                self.push.eq(0), new.queued.eq(0),
            ).Else(
                If(old.pending,
                    self._acknowledge(old.psn, old.syndrome, old.msn),
                    new.pending.eq(0), more.eq(old.mark),
                ).Elif(old.mark,
                    # The mark of a RESET also clears the count of answered READs when it comes back.
                    self.tx_valid.eq(1), tx.kind.eq(TX_MARK), tx.last_reply.eq(old.clean), new.mark.eq(0),
                ),
                self.push.eq(more), new.queued.eq(more),
                If(old.mark & ~old.pending & old.clean, new.raw_bits().eq(0), new.life.eq(old.life)),
            ),
        ]

    def _fail(self):
        """A READ reply that could not be read: no more replies of this QP; the responder gives the NAK."""
        old, new = self.old, self.new
        return [
            self._cut(), self._forget(), new.failed.eq(1), new.started.eq(0), self._queue(),
            new.pending.eq(old.pending & _final(old.syndrome)),
            self.kills.sink.valid.eq(~old.failed),
        ]
