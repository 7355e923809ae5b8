# SPDX-License-Identifier: BSD-2-Clause
"""Short way of a reply: an acknowledge or READ that finds nothing before it leaves in the clock it comes.

Ref: InfiniBand Architecture vol. 1 ch. 9.7.5 (responses).
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.attributes import pmtu_bytes
from roce_soc.common import QPI_WIDTH, TARGET_WIDTH
from roce_soc.opcodes import ACK_UNLIMITED, RC_ACKNOWLEDGE, RC_READ_RESPONSE_FIRST, RC_READ_RESPONSE_ONLY, SYNDROME_ACK
from roce_soc.table import Table
from roce_soc.transport.responder.layout import READ_INDEX_WIDTH, REPLY_ACK, REPLY_READ


def quick_layout():
    """A reply ready to be sent. `read`, `inband`: by the READ replies' path; after_control: its QP's first there."""
    return [
        ("read", 1), ("inband", 1), ("after_control", 1), ("last_reply", 1), ("index", READ_INDEX_WIDTH),
        ("qpi", QPI_WIDTH), ("opcode", 8), ("psn", 24), ("syndrome", 8), ("msn", 24), ("length", 13),
        ("target", TARGET_WIDTH), ("addr", 64)]


# ReplyBypass --------------------------------------------------------------------------------------

class ReplyBypass(LiteXModule):
    """Knows which QPs have nothing to send and stand; builds the reply while no operation is under way.

    Of a QP that is free an acknowledge changes nothing in its row: it needs no operation. A READ has its operation as
    ever, which finds the first packet sent. Its key was checked for the responder and the access counts as begun since
    (RoCEResponder), so it is not checked again.

    Parameters
    ----------
    n_qps : int
    sink : Endpoint of reply_description
        Watched.
    ops : list of Records with `valid`
        Operations under way.

    Interface
    ---------
    update, op_qpi, free, inband : in
        A QP as an operation leaves it. free: started, nothing to send.
    source : quick_layout, out
        What the sink's record becomes, `valid` when nothing is before it; same clock.
    ready
        Table is initialised.

    Latency: none. Errors: none.
    """
    def __init__(self, n_qps, sink, ops):
        bits = log2_int(n_qps)
        self.update, self.op_qpi = Signal(), Signal(QPI_WIDTH)
        self.free, self.inband   = Signal(), Signal()
        self.source = source = stream.Endpoint(quick_layout())
        self.ready  = Signal()

        # # #

        # One clock behind the operation.
        self.table = table = Table([("free", 1), ("inband", 1)], n_qps, distributed=True)
        row, quiet = table.read(sink.qpi[:bits]), Signal()
        pmtu, last = Signal(13), Signal()
        self.sync += [
            table.we.eq(self.update), table.adr.eq(self.op_qpi),
            table.row.free.eq(self.free), table.row.inband.eq(self.inband),
        ]
        self.comb += [
            self.ready.eq(table.ready),
            quiet.eq(~table.we & ~Reduce("OR", [op.valid for op in ops])),
            pmtu.eq(pmtu_bytes(sink.pmtu)),
            last.eq(sink.length <= pmtu),
            source.read.eq(sink.kind == REPLY_READ),
            source.valid.eq(sink.valid & quiet & row.free & ((sink.kind == REPLY_ACK) | source.read)),
            source.first.eq(1), source.last.eq(1),
            [getattr(source, n).eq(getattr(sink, n)) for n in ("qpi", "psn", "msn", "index", "target", "addr")],
            source.inband.eq(row.inband),
            source.after_control.eq(source.read & ~row.inband),
            If(source.read,
                source.opcode.eq(Mux(last, RC_READ_RESPONSE_ONLY, RC_READ_RESPONSE_FIRST)),
                source.syndrome.eq(SYNDROME_ACK | ACK_UNLIMITED),
                source.length.eq(Mux(last, sink.length, pmtu)),
                source.last_reply.eq(last),
            ).Else(
                source.opcode.eq(RC_ACKNOWLEDGE),
                source.syndrome.eq(sink.syndrome),
            ),
        ]
