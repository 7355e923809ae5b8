# SPDX-License-Identifier: BSD-2-Clause
"""Check stage of the responder: sequence, opcode, access, resources and lengths of a request.

Ref: InfiniBand Architecture vol. 1 ch. 9.7.4.1 (validation in this order), 9.7.5 (responses),
9.7.5.2.8 (RNR NAK), 9.2.8 (MSN).
Not supported: atomics, SEND with invalidate, UC, UD (refused with their rows).
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.abi import QP_RTR, QP_TYPE_RC, QP_TYPE_UC
from roce_soc.attributes import grants, pmtu_bytes
from roce_soc.common import CTL_ERR, CTL_RESET, CTL_START, QPI_WIDTH, mr_request_description
from roce_soc.table import Table
from roce_soc.transport.responder.layout import *
from roce_soc.verbs import ACCESS_LOCAL_WRITE, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE

MESSAGE_NONE, MESSAGE_SEND, MESSAGE_WRITE = range(3)

# Responder row. va, key, left, total: of the message under way (receive buffer or RDMA WRITE).
ROW_LAYOUT = [
    ("alive", 1), ("epsn", 24), ("msn", 24), ("nak_sent", 1), ("message", 2), ("reads", READ_INDEX_WIDTH),
    ("va", 64), ("key", 32), ("left", 32), ("total", 32), ("wr_id", 64), ("wqe_slot", 16)]

CONNECTION_FIELDS = [
    ("qpn", 24), ("state", 3), ("pd", 16), ("pmtu", 3), ("recv_cq", QPI_WIDTH), ("rq_index", QPI_WIDTH), ("min_rnr_timer", 5),
    ("max_dest_rd_atomic", 5)]


# RequestCheck -------------------------------------------------------------------------------------

class RequestCheck(LiteXModule):
    """Five clocks from a packet to its verdict; the only writer of the responder rows.

    Clock 0: the entry shows the packet, its rows are addressed. 2: PSN, opcode sequence, access, lengths against
    the path MTU. 3: receive WQE is taken, READ resources. 4: lengths against the message; the key is asked.
    5: verdict, row written back. Everything moves every clock: the entry admits only what the stages behind can
    take, and never two of one QP; the next one of a QP follows the clock after its row was written.

    Parameters
    ----------
    n_qps : int
    context_port : ContextPort
        Connection rows.
    take : TakePort
        Head of the receive queues.

    Endpoints
    ---------
    packet, packet_valid : packet_layout, in
    stages : list of (valid, qpi), out
    result, result_valid, result_park : out
        The packet at clock 5, and whether it has to wait for its receive WQE.
    verdict : verdict_layout, out
        At clock 5; valid only.
    key : mr_request_description(), out
        Key check of the verdict with `check`, at clock 4; valid only.
    gap : out
        No packet is at clock 4: neither a key now nor a verdict in the next clock.
    reads_qpi, reads_done : out, in
        READs of a QP that are fully answered, same clock.

    Latency: 5 clocks, one packet a clock; packets of one QP at least 6 clocks apart.
    Errors : rows 13, 19, 21 to 33, 40, 43, 44.
    """
    def __init__(self, n_qps, context_port, take):
        bits = log2_int(n_qps)
        self.packet, self.packet_valid = Record(packet_layout()), Signal()
        self.result, self.result_valid, self.result_park = Record(packet_layout()), Signal(), Signal()
        self.verdict = stream.Endpoint(verdict_layout())
        self.key     = stream.Endpoint(mr_request_description())
        self.gap     = Signal()
        self.reads_qpi, self.reads_done = Signal(bits), Signal(READ_INDEX_WIDTH)
        self.ready   = Signal()

        # # #

        packets = [Record(packet_layout(), name=f"p{n}") for n in range(1, 6)]
        valids  = [Signal(name=f"v{n}") for n in range(1, 6)]
        self.p, self.v = dict(enumerate(packets, 1)), dict(enumerate(valids, 1))
        self.stages = [(v, p.qpi) for v, p in zip(valids, packets)]
        self.sync += packets[0].eq(self.packet), valids[0].eq(self.packet_valid)
        for n in range(1, 5):
            self.sync += packets[n].eq(packets[n - 1]), valids[n].eq(valids[n - 1])

        # Responder rows: address at clock 0, here at clock 2 ... 5.
        self.table = table = Table(ROW_LAYOUT, n_qps)
        read       = table.get_port(old_word=False)       # RequestEntry.busy keeps a QP out while `stages` shows it.
        self.rows  = {2: read.row, **{n: Record(ROW_LAYOUT, name=f"row{n}") for n in range(3, 6)}}
        self.comb += read.adr.eq(self.packet.qpi), context_port.adr.eq(self.packet.qpi)
        self.conns = {n: Record(CONNECTION_FIELDS, name=f"conn{n}") for n in range(3, 6)}
        self.flags = {n: Record([(name, 1) for name in OPCODE_FLAGS], name=f"flags{n}") for n in range(3, 6)}
        for n in range(3, 6):
            self.sync += self.rows[n].eq(self.rows[n - 1])
        for n in range(4, 6):
            self.sync += self.conns[n].eq(self.conns[n - 1]), self.flags[n].eq(self.flags[n - 1])
        self.new = Record(ROW_LAYOUT)
        self.comb += [
            self.ready.eq(table.ready),
            self.gap.eq(~self.v[4]),
            table.adr.eq(self.p[5].qpi),
            table.we.eq(self.v[5] & ~self.result_park),
            table.row.eq(self.new),
        ]
        first = self._add_clock2(context_port.row, take)
        wqe   = self._add_clock3(first, take)
        judge = self._add_clock4(wqe, take)
        self._add_clock5(judge)

    def _add_clock2(self, conn, take):
        """Sequence, opcode and access; lengths against the path MTU. Returns the results at clock 3."""
        p, row = self.p[2], self.rows[2]
        flags, statements = opcode_flags(p.opcode)
        self.comb += statements
        self.sync += self.flags[3].eq(flags)
        self.sync += [getattr(self.conns[3], name).eq(getattr(conn, name)) for name, _ in CONNECTION_FIELDS]
        self.comb += take.peek.eq(conn.rq_index), take.peeking.eq(self.v[2])

        first = Record([(name, 1) for name in (
            "packet", "row_state", "row_class", "row_uc", "equal", "duplicate", "sequence", "access",
            "bad_pmtu", "bad_last", "bad_reth")])
        distance, pmtu = Signal(24), Signal(13)
        self.comb += [
            distance.eq(p.psn - row.epsn),
            pmtu.eq(pmtu_bytes(conn.pmtu)),
        ]
        in_message = (flags.send & (row.message == MESSAGE_SEND)) | (flags.write & (row.message == MESSAGE_WRITE))
        granted    = flags.send | (flags.write & grants(conn.access, ACCESS_REMOTE_WRITE)) | (flags.read & grants(conn.access, ACCESS_REMOTE_READ))
        self.sync += [
            first.packet.eq(p.pseudo == PSEUDO_NONE),
            first.row_state.eq(~row.alive),
            first.row_class.eq(conn.qp_type != QP_TYPE_RC),
            first.row_uc.eq(conn.qp_type == QP_TYPE_UC),
            first.equal.eq(distance == 0),
            first.duplicate.eq(distance[23]),
            first.sequence.eq(Mux(flags.starts, row.message == MESSAGE_NONE, in_message)),
            first.access.eq(granted & ~flags.refused),
            # FIRST, MIDDLE: exactly the path MTU. LAST: at least one byte. Pad fills up to four bytes.
            first.bad_pmtu.eq(~flags.ends & ((p.length != pmtu) | (p.pad != 0))),
            first.bad_last.eq(flags.ends & ((p.length > pmtu) | (~flags.starts & (p.length == 0))
                | ((p.length[:2] + p.pad)[:2] != 0) | (flags.read & (p.length != 0)))),
            first.bad_reth.eq(flags.reth & p.dma_length[31] & (p.dma_length[:31] != 0)),
        ]
        return first

    def _add_clock3(self, first, take):
        """Takes the receive WQE. Returns the results at clock 4."""
        p, row, flags, conn = self.p[3], self.rows[3], self.flags[3], self.conns[3]
        pending = Signal(READ_INDEX_WIDTH)
        second = Record([(name, 1) for name in (
            "packet", "row_state", "row_class", "row_uc", "duplicate", "ahead", "sequence", "access", "reads",
            "candidate", "asks", "needs", "got", "park", "full", "bad_pmtu", "bad_last", "bad_reth")]
            + [("packets", 33), ("reads_done", READ_INDEX_WIDTH)])
        needs, candidate = Signal(), Signal()
        self.comb += [
            candidate.eq(self.v[3] & first.packet & ~p.drop & ~first.row_state & ~first.row_class & first.equal
                & first.sequence & first.access),
            needs.eq((flags.send & flags.starts) | (flags.write & flags.imm)),
            take.index.eq(conn.rq_index),
            take.qpi.eq(p.qpi),
            take.take.eq(candidate & needs),
            self.reads_qpi.eq(p.qpi),
            pending.eq(row.reads - self.reads_done),
        ]
        copied = ("packet", "row_state", "row_class", "row_uc", "duplicate", "sequence", "access",
                  "bad_pmtu", "bad_last", "bad_reth")
        self.sync += [getattr(second, name).eq(getattr(first, name)) for name in copied]
        self.sync += [
            second.ahead.eq(~first.equal & ~first.duplicate),
            second.reads.eq(flags.read & (pending >= conn.max_dest_rd_atomic)),
            second.candidate.eq(candidate),
            # The range of a WRITE's FIRST is the whole message: it holds the packet's own.
            second.asks.eq(candidate & ~take.park & Mux(flags.send | ~flags.starts, p.length != 0, p.dma_length != 0)),
            second.needs.eq(needs),
            second.got.eq(take.got),
            # A packet that would have to wait and has no place is dropped; the peer sends it again.
            second.park.eq(take.park & ~p.full),
            second.full.eq(p.drop | (take.park & p.full)),
            second.packets.eq(p.dma_length + pmtu_bytes(conn.pmtu) - 1),
            second.reads_done.eq(self.reads_done),
        ]
        return second

    def _add_clock4(self, second, take):
        """Lengths against the message; the key is asked. Returns the results at clock 5."""
        p, row, flags, conn, wqe = self.p[4], self.rows[4], self.flags[4], self.conns[4], take.wqe
        third = Record([(name, second_width) for name, second_width in second.layout if name != "packets"]
            + [("packets", 24), ("va", 64), ("next_low", 33), ("key", 32), ("left", 32), ("total", 32),
               ("over", 1), ("short", 1), ("bad_wqe", 1), ("wr_id", 64), ("wqe_slot", 16)])
        left, va, key = Signal(32), Signal(64), Signal(32)
        wqe_left = Mux(wqe.num_sge == 0, 0, wqe.length)
        self.comb += [
            left.eq(Mux(flags.starts, Mux(flags.send, wqe_left, p.dma_length), row.left)),
            va.eq(Mux(flags.starts, Mux(flags.send, wqe.va, p.va), row.va)),
            key.eq(Mux(flags.starts, Mux(flags.send, wqe.lkey, p.rkey), row.key)),
            # Asked a clock before the verdict. Of a packet that is refused RequestExecute takes the result and ignores it.
            self.key.valid.eq(second.asks),
            self.key.key.eq(key),
            self.key.va.eq(va),
            self.key.length.eq(Mux(flags.send | ~flags.starts, p.length, p.dma_length)),
            self.key.pd.eq(conn.pd),
            self.key.access.eq(Mux(flags.send, ACCESS_LOCAL_WRITE,
                Mux(flags.write, ACCESS_REMOTE_WRITE, ACCESS_REMOTE_READ))),
        ]
        self.sync += [getattr(third, name).eq(getattr(second, name)) for name, _ in second.layout if name != "packets"]
        self.sync += [
            # A message of length 0 takes one PSN.
            third.packets.eq(Mux(flags.read & (p.dma_length != 0), second.packets[7:] >> conn.pmtu, 1)),
            third.va.eq(va),
            third.next_low.eq(va[:32] + p.length),
            third.key.eq(key),
            third.left.eq(left - p.length),
            third.over.eq(p.length > left),
            third.short.eq(p.length != left),
            third.total.eq(Mux(flags.send, Mux(flags.starts, 0, row.total) + p.length,
                Mux(flags.starts, p.dma_length, row.total))),
            third.bad_wqe.eq(wqe.err | (wqe.num_sge > 1)),
            third.wr_id.eq(Mux(second.got, wqe.wr_id, row.wr_id)),
            third.wqe_slot.eq(Mux(second.got, take.slot, row.wqe_slot)),
        ]
        return third

    def _add_clock5(self, checked):
        """Verdict and new row."""
        p, row_, flags, conn, new, verdict = self.p[5], self.rows[5], self.flags[5], self.conns[5], self.new, self.verdict
        error, accept, fatal = Signal(ROW_WIDTH), Signal(), Signal()
        self.comb += [
            If(~checked.packet, error.eq(0)
            ).Elif(checked.full, error.eq(row("BUFFER_FULL"))
            ).Elif(checked.row_state, error.eq(row("QP_STATE"))
            ).Elif(checked.row_class, error.eq(Mux(checked.row_uc, row("UC_DROPPED"), row("UD_DROPPED")))
            ).Elif(checked.duplicate, error.eq(Mux(flags.refused, row("DUPLICATE_DROPPED"), row("PSN_DUPLICATE")))
            ).Elif(checked.ahead, error.eq(Mux(row_.nak_sent, row("PSN_SEQUENCE_AGAIN"), row("PSN_SEQUENCE")))
            ).Elif(~checked.sequence, error.eq(row("OPCODE_SEQUENCE"))
            ).Elif(~checked.access, error.eq(row("QP_ACCESS"))
            ).Elif(checked.reads, error.eq(row("READ_RESOURCES"))
            ).Elif(checked.needs & ~checked.got, error.eq(row("RNR"))
            ).Elif(checked.needs & checked.bad_wqe, error.eq(row("RECV_WQE"))
            ).Elif(checked.bad_pmtu, error.eq(row("LENGTH_PMTU"))
            ).Elif(checked.bad_last, error.eq(row("LENGTH_LAST"))
            ).Elif(checked.bad_reth, error.eq(row("LENGTH_RETH"))
            ).Elif(flags.send & checked.over, error.eq(row("LENGTH_RECV"))
            ).Elif(flags.write & (checked.over | (flags.ends & checked.short)), error.eq(row("LENGTH_RESIDUE"))
            ),
            accept.eq(checked.packet & (error == 0)),
            fatal.eq(is_fatal(error)),
            self.result.eq(p),
            self.result_valid.eq(self.v[5]),
            self.result_park.eq(checked.park),
        ]
        self._add_row(checked, accept, fatal, error)
        holds  = checked.got | (row_.message == MESSAGE_SEND)
        self.comb += [
            # Verdict. `verdict.check`: its key was asked for a clock ago.
            verdict.valid.eq(self.v[5] & ~checked.park),
            [getattr(verdict, name).eq(getattr(p, name)) for name in (
                "qpi", "opcode", "psn", "pseudo", "code", "has_slot", "slot", "offset", "length", "imm", "se",
                "dma_length")],
            verdict.rkey.eq(checked.key),
            [getattr(verdict, name).eq(getattr(conn, name)) for name in ("qpn", "recv_cq", "rq_index", "pd", "pmtu")],
            verdict.row.eq(error),
            verdict.in_rtr.eq(accept & (conn.state == QP_RTR)),
            verdict.msn.eq(Mux(checked.packet, new.msn, row_.msn)),
            verdict.counted.eq(accept & flags.ends),
            verdict.timer.eq(conn.min_rnr_timer),
            verdict.check.eq(checked.asks),
            verdict.lands.eq(accept & ~flags.read & (p.length != 0)),
            verdict.recv.eq(flags.send),
            verdict.holds.eq(holds),
            verdict.opens.eq(checked.got),
            verdict.closes.eq(accept & flags.ends & holds),
            verdict.wr_id.eq(checked.wr_id),
            verdict.wqe_slot.eq(checked.wqe_slot),
            verdict.byte_len.eq(checked.total),
            verdict.with_imm.eq(flags.imm),
            verdict.write.eq(flags.write),
            verdict.va.eq(checked.va),
            verdict.last_psn.eq(p.psn + checked.packets - 1),
            verdict.index.eq(row_.reads),
            # Answer: an accepted packet's own PSN, the last executed one for a duplicate, else the expected one.
            verdict.ack_psn.eq(row_.epsn),
            If(~checked.packet,
                verdict.ack_psn.eq(p.psn),
            ).Elif(accept,
                verdict.ack_psn.eq(p.psn),
                If(flags.read, verdict.action.eq(ACTION_READ)).Elif(p.ackreq, verdict.action.eq(ACTION_ACK)),
            ).Elif(error == row("PSN_DUPLICATE"),
                verdict.ack_psn.eq(row_.epsn - 1),
                If(flags.read, verdict.action.eq(ACTION_READ_AGAIN)).Else(verdict.action.eq(ACTION_ACK)),
            ).Elif(fatal | (error == row("PSN_SEQUENCE")) | (error == row("RNR")),
                verdict.action.eq(ACTION_NAK),
            ),
        ]

    def _add_row(self, checked, accept, fatal, error):
        """The row written back."""
        p, old, flags, new = self.p[5], self.rows[5], self.flags[5], self.new
        self.comb += [
            new.eq(old),
            If(accept,
                new.epsn.eq(p.psn + checked.packets),
                new.msn.eq(old.msn + flags.ends),
                new.nak_sent.eq(0),
                new.message.eq(Mux(flags.ends, MESSAGE_NONE, Mux(flags.send, MESSAGE_SEND, MESSAGE_WRITE))),
                new.reads.eq(old.reads + flags.read),
                new.va.eq(Cat(checked.next_low[:32], (checked.va[32:] + checked.next_low[32])[:32])),
                new.key.eq(checked.key),
                new.left.eq(checked.left),
                new.total.eq(checked.total),
                new.wr_id.eq(checked.wr_id),
                new.wqe_slot.eq(checked.wqe_slot),
            ),
            If((error == row("PSN_SEQUENCE")) | (error == row("RNR")), new.nak_sent.eq(1)),
            If(fatal | (p.pseudo == PSEUDO_KILL), new.alive.eq(0), new.message.eq(MESSAGE_NONE)),
            If(p.pseudo == PSEUDO_SILENT, new.alive.eq(0)),
            If(p.pseudo == PSEUDO_CTL,
                If(p.code == CTL_START,
                    new.raw_bits().eq(0),
                    new.alive.eq(1),
                    new.epsn.eq(p.psn),
                    new.reads.eq(checked.reads_done),
                ),
                If(p.code == CTL_ERR,
                    new.alive.eq(0),
                    new.message.eq(MESSAGE_NONE),
                ),
                If(p.code == CTL_RESET,
                    new.raw_bits().eq(0),
                ),
            ),
        ]
