# SPDX-License-Identifier: BSD-2-Clause
"""Rows of the reply scheduler: one RAM, read and rewritten by one operation a clock."""
from migen import *

from litex.gen import *

from roce_soc.common import MAX_READS, QPI_WIDTH
from roce_soc.table import Table
from roce_soc.transport.reply.ring import READ_LAYOUT
from roce_soc.transport.responder.layout import READ_INDEX_WIDTH

# All that is known of a QP's replies. Flags: `inband`: a READ was accepted, so acknowledges travel with READ
# replies; `mark`: a control operation is answered when what stands before it has been sent, `clean`: the row is zero
# then; `again`: READs of the ring to be answered again. psn, syndrome, msn: the pending acknowledge. r_*: the READ
# under way, as what is left of it; r_again: it is a repetition, r_turning: the change of path is due. looking: look-ups
# of duplicates that have not ended; life: moves on where what they find is not wanted any more, and is never cleared.
LIFE_WIDTH = 8       # more lives than a queue pair can have while a look-up waits.
ROW_LAYOUT = [
    ("pending", 1), ("queued", 1), ("started", 1), ("failed", 1), ("inband", 1), ("active", 1), ("loading", 1), ("mark", 1),
    ("clean", 1), ("looking", bits_for(MAX_READS)), ("life", LIFE_WIDTH),
    ("accepted", READ_INDEX_WIDTH), ("next", READ_INDEX_WIDTH), ("saved", READ_INDEX_WIDTH), ("again", MAX_READS),
    ("psn", 24), ("syndrome", 8), ("msn", 24),
    ("r_first", 1), ("r_last", 1), ("r_turning", 1), ("r_again", 1), ("r_index", READ_INDEX_WIDTH),
] + [(f"r_{name}", width) for name, width in READ_LAYOUT]


# ReplyRows ----------------------------------------------------------------------------------------

class ReplyRows(LiteXModule):
    """Row of the operation at clock 2, whatever the two operations before it were.

    The RAM is addressed by the operation at clock 0, its output registered behind clock 1; what the last
    two operations wrote is not in it yet and is forwarded.

    Parameters
    ----------
    n_qps : int
    ops : list of three Records with `valid` and `qpi`
        The operation at clocks 0, 1 and 2.

    Interface
    ---------
    old : row of the operation at clock 2.
    new : in, what it becomes; written at the end of the clock when the operation is valid.

    Latency: 2 clocks from the address to `old`, one operation a clock. Errors: none.
    """
    def __init__(self, n_qps, ops):
        self.old, self.new = Record(ROW_LAYOUT), Record(ROW_LAYOUT)
        self.ready = Signal()

        # # #

        self.table = table = Table(ROW_LAYOUT, n_qps)
        read       = table.get_port(old_word=False)
        op0, op1, op2 = ops
        op3          = Record([("valid", 1), ("qpi", QPI_WIDTH)])
        last, before = (Record(ROW_LAYOUT, name=name) for name in ("row_last", "row_before"))
        hit_last, hit_before = Signal(), Signal()
        self.sync += [
            last.eq(self.new),
            before.eq(last),
            op3.valid.eq(op2.valid), op3.qpi.eq(op2.qpi),
            hit_last.eq(op2.valid & (op1.qpi == op2.qpi)),
            hit_before.eq(op3.valid & (op1.qpi == op3.qpi)),
        ]
        self.comb += [
            self.ready.eq(table.ready),
            read.adr.eq(op0.qpi),
            table.we.eq(op2.valid),
            table.adr.eq(op2.qpi),
            table.row.eq(self.new),
            self.old.eq(read.row),
            If(hit_last, self.old.eq(last)).Elif(hit_before, self.old.eq(before)),
        ]
