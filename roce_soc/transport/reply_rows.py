# SPDX-License-Identifier: BSD-2-Clause
"""Rows of the reply scheduler: one RAM, read and rewritten by one operation a clock."""
from migen import *

from litex.gen import *

from roce_soc.common import MAX_READS, QPI_WIDTH
from roce_soc.table import clocked_port
from roce_soc.transport.reply_ring import READ_LAYOUT
from roce_soc.transport.responder_layout import READ_INDEX_WIDTH

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
    """
    def __init__(self, n_qps, ops):
        bits = log2_int(n_qps)
        self.old, self.new = Record(ROW_LAYOUT), Record(ROW_LAYOUT)
        self.ready = Signal()

        # # #

        memory = Memory(layout_len(ROW_LAYOUT), n_qps)
        write, read = memory.get_port(write_capable=True), clocked_port(memory)
        self.specials += memory, write, read
        op0, op1, op2 = ops
        op3    = Record([("valid", 1), ("qpi", QPI_WIDTH)])
        fetched, last, before = (Record(ROW_LAYOUT, name=name) for name in ("row_fetched", "row_last", "row_before"))
        hit_last, hit_before  = Signal(), Signal()
        walker = Signal(bits + 1)
        self.sync += [
            If(~self.ready, walker.eq(walker + 1)),
            fetched.raw_bits().eq(read.dat_r),
            last.eq(self.new),
            before.eq(last),
            op3.valid.eq(op2.valid), op3.qpi.eq(op2.qpi),
            hit_last.eq(op2.valid & (op1.qpi == op2.qpi)),
            hit_before.eq(op3.valid & (op1.qpi == op3.qpi)),
        ]
        self.comb += [
            self.ready.eq(walker[-1]),
            read.adr.eq(op0.qpi),
            write.we.eq(~self.ready | op2.valid),
            write.adr.eq(Mux(self.ready, op2.qpi, walker[:bits])),
            If(self.ready, write.dat_w.eq(self.new.raw_bits())),
            self.old.eq(fetched),
            If(hit_last, self.old.eq(last)).Elif(hit_before, self.old.eq(before)),
        ]
