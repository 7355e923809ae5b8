# SPDX-License-Identifier: BSD-2-Clause
"""Requester, first stage: a visit of a QP turns its next work request into one burst of packets.

Ref: InfiniBand Architecture vol. 1 ch. 9.7.2 to 9.7.4 (PSNs, opcodes, READ limits), 9.9.2 (local errors), 10.8.
Not supported: atomics, local invalidate, SEND with invalidate, more than one SGE, credits.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.abi import QP_RTS, QP_SQD, QP_TYPE_RC
from roce_soc.attributes import pmtu_case
from roce_soc.bounds import counted
from roce_soc.common import MAX_MESSAGE, TARGET_WIDTH, ctl_description, mr_request_description
from roce_soc.errors import ROW_WIDTH, index_of
from roce_soc.table import BypassFIFO, KickQueue, kick_description
from roce_soc.transport.requester.state import (
    GENERATION_WIDTH, RING_BITS, burst_layout, requester_layout, rewind_description)
from roce_soc.transport.requester.write import write_burst, write_ctl, write_rewind, write_visit
from roce_soc.verbs import (
    SEND_FENCE, SEND_INLINE, SEND_SIGNALED, SEND_SOLICITED, WC_OF_WR, WR_RDMA_READ,
    WR_RDMA_WRITE, WR_RDMA_WRITE_WITH_IMM, WR_SEND, WR_SEND_WITH_IMM)

BURST_BYTES  = 4096         # payload of a burst; sixteen packets at the smallest path MTU.
READ_SHIFT   = 29           # a READ of more than 2^29 bytes goes out as several requests.
WINDOW_SHIFT = 21           # no burst starts with 2^21 PSNs outstanding, so they stay below 2^23.
INLINE_BYTES = 64
BURSTS       = 16           # bursts between visit and launch.
STAGES       = 5            # clocks from taking a QP to its row's write.
OPCODES      = (WR_SEND, WR_SEND_WITH_IMM, WR_RDMA_WRITE, WR_RDMA_WRITE_WITH_IMM, WR_RDMA_READ)

VISIT, REWIND, CTL = range(3)


# RequesterVisit -----------------------------------------------------------------------------------

class RequesterVisit(LiteXModule):
    """Pipeline of visits. It never stalls: a visit starts only when its burst will find room.

    ::
        S0 take a QP    S2 rows and work request here    S3 what is left of the message
        S4 gates, decision    S5 row written, burst and key check leave, next kick

    A QP is in the pipeline once: its next visit reads what this one wrote. Rewinds and control take
    the same way. Behind a rewind acknowledges may pass the cursor. Its message may then be retired and its
    slot the producer's again, so the work request is not looked at: when all that was registered is done the
    cursor goes behind it, else `seek` asks for the oldest message left.

    Parameters
    ----------
    context, state, sq : QPContext, SendState, SendQueues

    Endpoints
    ---------
    rewind : rewind_description(), in
    ctl : ctl_description(), in
    burst : burst_layout(), out
    check : mr_request_description(), out
        One for each burst with `check`, in order.
    seek : kick_description(), out
        A QP whose cursor was passed; answered by a rewind.

    Latency: 6 clocks from one visit of a QP to its next; different QPs one a clock.
    Errors : LOCAL_OPERATION, LOCAL_LENGTH, LOCAL_MEMORY (work request not readable) travel in the burst's `row`.
    """
    def __init__(self, context, state, sq):
        bits = state.bits
        # Stream Endpoints.
        self.rewind = stream.Endpoint(rewind_description())
        self.ctl    = stream.Endpoint(ctl_description())
        self.burst  = stream.Endpoint(burst_layout())
        self.check  = stream.Endpoint(mr_request_description())
        self.seek   = stream.Endpoint(kick_description())

        # # #

        self.state, self.sq = state, sq
        self.context_port = context.get_port()
        self.row_port     = state.requester.get_port()
        self.una_port     = state.completer.get_port()
        self.tail_port    = state.walker.get_port()
        self.bursts = BypassFIFO(burst_layout(), BURSTS)
        self.buffer = stream.Buffer(burst_layout())
        self.checks = stream.SyncFIFO(mr_request_description(), BURSTS)
        self.seeks  = KickQueue(state.n_qps, 0)
        self.submodules += counted(self.bursts, "visits on their way: `room` keeps STAGES + 2 places")
        self.submodules += counted(self.checks, "bursts with a key: each waits in `bursts` for its result")
        self.comb += [
            self.seeks.source.connect(self.seek),
            self.bursts.source.connect(self.buffer.sink),
            self.buffer.source.connect(self.burst),
            self.checks.source.connect(self.check),
        ]
        self.stages = [Record([("valid", 1), ("qpi", bits), ("kind", 2), ("op", 3),
            ("psn", 24), ("msg_psn", 24), ("slot", 16), ("generation", GENERATION_WIDTH)]) for _ in range(STAGES + 1)]
        self.add_take(bits)
        self.add_rows()
        self.add_left()
        self.add_decision()
        self.add_write()

    def shift(self, layout):
        """A Record of `layout`, and another that holds it a clock later."""
        now, after = Record(layout), Record(layout)
        self.sync += after.raw_bits().eq(now.raw_bits())
        return now, after

    def add_take(self, bits):
        """S0: rewinds, then control, then the schedule; not while the QP is in the pipeline."""
        s, sq   = self.stages, self.sq
        wanted  = Record([("valid", 1), ("qpi", bits)])
        busy    = Signal()
        room    = Signal()
        self.comb += [
            room.eq(self.bursts.fifo.level <= BURSTS - STAGES - 2),
            wanted.qpi.eq(sq.source.qpi),
            s[0].kind.eq(VISIT),
            If(self.rewind.valid,
                wanted.valid.eq(1),
                wanted.qpi.eq(self.rewind.qpi),
                s[0].kind.eq(REWIND),
                s[0].op.eq(self.rewind.op),
            ).Elif(self.ctl.valid,
                wanted.valid.eq(room),
                wanted.qpi.eq(self.ctl.qpi),
                s[0].kind.eq(CTL),
                s[0].op.eq(self.ctl.op),
            ).Else(
                wanted.valid.eq(room & sq.source.valid),
            ),
            s[0].psn.eq(Mux(self.rewind.valid, self.rewind.psn, self.ctl.psn)),
            s[0].msg_psn.eq(self.rewind.msg_psn),
            s[0].slot.eq(self.rewind.slot),
            s[0].generation.eq(self.rewind.generation),
            busy.eq(Reduce("OR", [t.valid & (t.qpi == wanted.qpi) for t in s[1:]])),
            s[0].valid.eq(wanted.valid & ~busy & self.state.ready & sq.ready & self.seeks.ready),
            s[0].qpi.eq(wanted.qpi),
            self.rewind.ready.eq(s[0].valid & (s[0].kind == REWIND)),
            self.ctl.ready.eq(s[0].valid & (s[0].kind == CTL)),
            sq.source.ready.eq(s[0].valid & (s[0].kind == VISIT)),
            self.context_port.adr.eq(wanted.qpi),
            self.row_port.adr.eq(wanted.qpi),
            self.una_port.adr.eq(wanted.qpi),
            self.tail_port.adr.eq(wanted.qpi),
        ]
        self.sync += [after.raw_bits().eq(now.raw_bits()) for now, after in zip(s, s[1:])]

    def add_rows(self):
        """S2: the rows are here: ring and window gates, what the work request is, where it stands."""
        conn, row, una, tail = (
            self.context_port.row, self.row_port.row, self.una_port.row, self.tail_port.row)
        wqe = self.sq.wqe
        layout = requester_layout() + [
            ("hit", 1), ("unreadable", 1), ("passed", 1), ("all_done", 1), ("progress", 24), ("registered", 1),
            ("out_full", 1), ("reads_full", 1), ("reads_open", 1), ("tail", RING_BITS + 1),
            ("wide", 1), ("rts", 1), ("sqd", 1), ("pd", 16), ("pmtu", 3), ("whole", 24), ("part", 1),
            ("is_read", 1), ("is_write", 1), ("has_imm", 1), ("wc_opcode", 8), ("unknown", 1), ("too_long", 1),
            ("inline", 1), ("fence", 1), ("se", 1), ("signalled", 1), ("inline_slot", 15),
            ("sq_target", TARGET_WIDTH), ("sq_addr", 64)]
        layout += [(n, getattr(wqe, n).nbits) for n in
            ("length", "wr_id", "local_va", "lkey", "imm", "remote_va", "rkey")]
        a, self.s3 = self.shift(layout)
        self.comb += [getattr(a, n).eq(getattr(row, n)) for n, _ in requester_layout()]
        self.comb += [getattr(a, n).eq(getattr(wqe, n)) for n in
            ("length", "wr_id", "local_va", "lkey", "imm", "remote_va", "rkey")]
        behind        = Signal(24)
        out, reads    = Signal(len(row.out_index)), Signal(len(row.read_index))
        fenced        = Signal(len(out))
        known         = Signal()
        not_sent      = Signal(24)
        self.comb += [
            a.hit.eq(self.sq.hit),
            a.unreadable.eq(self.sq.err),
            # Position.
            behind.eq(row.next_psn - una.una),
            a.passed.eq(behind[-1]),
            a.all_done.eq(una.una == row.msg_high),
            a.progress.eq(row.next_psn - row.msg_psn),
            not_sent.eq(row.msg_psn - row.msg_high),
            a.registered.eq(not_sent[-1]),
            pmtu_case(conn.pmtu, lambda k: [a.whole.eq(wqe.length[k:]), a.part.eq((wqe.length == 0) | (wqe.length[:k] != 0))]),
            # Limits.
            out.eq(row.out_index - tail.tail),
            a.out_full.eq(out[-1]),
            reads.eq(row.read_index - una.read_head),
            a.reads_full.eq(reads >= conn.max_rd_atomic),
            # The newest READ is not retired: only then its data is in memory.
            a.tail.eq(tail.tail),
            fenced.eq(row.fence_index - tail.tail),
            a.reads_open.eq((fenced != 0) & (fenced <= out)),
            a.wide.eq(~behind[-1] & (behind[WINDOW_SHIFT:23] != 0)),
            a.rts.eq((conn.state == QP_RTS) & (conn.qp_type == QP_TYPE_RC) & row.started),
            a.sqd.eq((conn.state == QP_SQD) & (conn.qp_type == QP_TYPE_RC)),
            a.pd.eq(conn.pd),
            a.pmtu.eq(conn.pmtu),
            # The work request.
            a.is_read.eq(wqe.opcode == WR_RDMA_READ),
            a.is_write.eq((wqe.opcode == WR_RDMA_WRITE) | (wqe.opcode == WR_RDMA_WRITE_WITH_IMM)),
            a.has_imm.eq((wqe.opcode == WR_SEND_WITH_IMM) | (wqe.opcode == WR_RDMA_WRITE_WITH_IMM)),
            Case(wqe.opcode, {
                **{op: [known.eq(1), a.wc_opcode.eq(WC_OF_WR[op])] for op in OPCODES},
                "default": [],
            }),
            a.inline.eq((wqe.flags & SEND_INLINE) != 0),
            a.fence.eq((wqe.flags & SEND_FENCE) != 0),
            a.se.eq((wqe.flags & SEND_SOLICITED) != 0),
            a.signalled.eq(((wqe.flags & SEND_SIGNALED) != 0) | conn.sq_sig_all),
            a.unknown.eq(~known | (wqe.num_sge > 1) | (a.is_read & ((conn.max_rd_atomic == 0) | a.inline))
                | ((wqe.num_sge == 0) & (wqe.length != 0) & ~a.inline)),
            a.too_long.eq((wqe.length > MAX_MESSAGE) | (a.inline & (wqe.length > INLINE_BYTES))),
            a.inline_slot.eq((row.slot + 1) & ((1 << conn.sq_log2) - 1)),
            a.sq_target.eq(conn.sq_target),
            a.sq_addr.eq(conn.sq_addr),
        ]

    def add_left(self):
        """S3: what is left of the message, and where it lies."""
        s3   = self.s3
        left = [
            ("left", 24), ("offset", 32), ("remaining", 32), ("chunk", READ_SHIFT + 1), ("chunk_last", 1), ("retry", 1),
            ("end_psn", 24), ("inline_addr", 64), ("next_slot", 16), ("halted", 1), ("halted_psn", 24)]
        a, self.s4 = self.shift(left + s3.layout)
        self.comb += [getattr(a, n).eq(getattr(s3, n)) for n, _ in s3.layout]
        fresh, packets = Signal(24), Signal(24)
        final  = Signal(32)
        halted = self.state.halted.read(self.stages[3].qpi)
        self.comb += [
            packets.eq(s3.whole + s3.part),
            pmtu_case(s3.pmtu, lambda k: a.offset.eq(s3.progress << k)),
            a.left.eq(packets - s3.progress),
            a.remaining.eq(s3.length - a.offset),
            # READ requests end at multiples of 2^29 bytes of their message, also when they are repeated.
            a.chunk.eq((1 << READ_SHIFT) - a.offset[:READ_SHIFT]),
            final.eq(s3.length - 1),
            a.chunk_last.eq((s3.length == 0) | (final[READ_SHIFT:] == a.offset[READ_SHIFT:])),
            fresh.eq(s3.next_psn - s3.sent_high),
            a.retry.eq(fresh[-1]),
            a.end_psn.eq(s3.msg_psn + packets),
            a.inline_addr.eq(s3.sq_addr + (s3.inline_slot << 6)),
            a.next_slot.eq(s3.slot + Mux(s3.inline, 2, 1)),
            a.halted.eq(halted.halted),
            a.halted_psn.eq(halted.psn),
        ]

    def add_decision(self):
        """S4: at most one of flush, jump, seek, refuse, go."""
        s4, step = self.s4, self.stages[4]
        layout = [
            ("flush", 1), ("jump", 1), ("seek", 1), ("refuse", 1), ("go", 1), ("row", ROW_WIDTH),
            ("count", 24), ("bytes", READ_SHIFT + 1), ("last", 1), ("next", 24), ("local", 64), ("remote", 64)]
        a, self.s5 = self.shift(layout + s4.layout)
        self.comb += [getattr(a, n).eq(getattr(s4, n)) for n, _ in s4.layout]
        fits, able, held, bad = Signal(), Signal(), Signal(), Signal()
        alive = Signal()
        older = Signal(24)
        self.comb += [
            a.local.eq(s4.local_va + s4.offset),
            a.remote.eq(s4.remote_va + s4.offset),
            fits.eq(s4.remaining <= BURST_BYTES),
            a.last.eq(Mux(s4.is_read, s4.chunk_last, fits)),
            If(a.last,
                a.bytes.eq(s4.remaining),
                a.count.eq(s4.left),
            ).Elif(s4.is_read,
                a.bytes.eq(s4.chunk),
                pmtu_case(s4.pmtu, lambda k: a.count.eq(s4.chunk[k:])),
            ).Else(
                a.bytes.eq(BURST_BYTES),
                pmtu_case(s4.pmtu, lambda k: a.count.eq(BURST_BYTES >> k)),
            ),
            a.next.eq(s4.next_psn + a.count),
            If(s4.unreadable,
                a.row.eq(index_of("LOCAL_MEMORY")),
            ).Elif(s4.unknown,
                a.row.eq(index_of("LOCAL_OPERATION")),
            ).Elif(s4.too_long,
                a.row.eq(index_of("LOCAL_LENGTH")),
            ),
            bad.eq(a.row != 0),
            able.eq(step.valid & (step.kind == VISIT) & ~s4.paused),
            # Behind a local failure messages older than the one that failed are still repeated.
            older.eq(s4.halted_psn - s4.end_psn),
            alive.eq((s4.rts | (s4.sqd & s4.registered)) & (s4.registered | (~s4.out_full & ~s4.halted))),
            held.eq(~alive | s4.wide | (s4.halted & older[-1])
                | (s4.is_read & ~s4.retry & s4.reads_full)
                | (s4.fence & ~s4.registered & s4.reads_open)),
            If(able,
                If(s4.flushing,
                    a.flush.eq(s4.hit & ~s4.out_full),
                ).Elif(s4.passed,
                    a.jump.eq(s4.all_done),
                    a.seek.eq(~s4.all_done & ~s4.seeking),
                ).Elif(s4.hit & bad,
                    # Also when a work request cannot be read a second time.
                    a.refuse.eq(alive),
                ).Elif(s4.hit,
                    a.go.eq(~held),
                )
            ),
        ]

    def add_write(self):
        """S5: row, cursor, burst, key check, kick."""
        state, sq, s5, step = self.state, self.sq, self.s5, self.stages[5]
        table, row = state.requester, state.requester.row
        high  = Signal(24)
        enter = Signal()                       # a message enters the outstanding ring.
        moved = Signal()                       # the cursor moved.
        self.comb += [
            enter.eq(((s5.go | s5.refuse) & ~s5.registered) | s5.flush),
            high.eq(s5.next - s5.sent_high),
            table.we.eq(step.valid),
            table.adr.eq(step.qpi),
            [getattr(row, n).eq(getattr(s5, n)) for n, _ in requester_layout()],
            state.generation.we.eq(step.valid & (step.kind != VISIT)),
            state.generation.adr.eq(step.qpi),
            state.generation.row.eq(row.generation),
            sq.again.qpi.eq(step.qpi),
            self.seeks.urgent.valid.eq(step.valid & (step.kind == VISIT) & s5.seek),
            self.seeks.urgent.qpi.eq(step.qpi),
            Case(step.kind, {
                VISIT  : write_visit(s5, step, sq, row, enter, high, moved),
                REWIND : write_rewind(s5, step, sq, row, moved),
                CTL    : write_ctl(s5, step, sq, row, moved),
                "default" : [],
            }),
            sq.cursor_we.eq(step.valid & moved),
            sq.cursor_qpi.eq(step.qpi),
            sq.cursor.slot.eq(row.slot),
            sq.cursor.epoch.eq(row.epoch),
            sq.cursor.life.eq(row.life),
            sq.clear_qpi.eq(step.qpi),
        ]
        self.comb += write_burst(s5, step, self.bursts.sink, self.checks.sink, enter, step.kind == CTL)
