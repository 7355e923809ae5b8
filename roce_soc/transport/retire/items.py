# SPDX-License-Identifier: BSD-2-Clause
"""What acknowledges left for the retire walker, kept as state of their QP instead of a queue.

Ref: InfiniBand Architecture vol. 1 ch. 9.7.6 (an acknowledge covers all older requests).
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.bounds import counted
from roce_soc.common import QPI_WIDTH
from roce_soc.errors import ROW_WIDTH
from roce_soc.table import FlagTable, Table
from roce_soc.transport.requester.state import (
    ITEM_BITS, ITEM_ERROR, ITEM_NONE, ITEM_SEEK, PSN_WIDTH, item_description)


# RetireItems --------------------------------------------------------------------------------------

class RetireItems(LiteXModule):
    """Takes items as fast as they come: one acknowledge may retire many messages, and the completer, the placer's order
    and so every other QP's packets would wait for that.

    An item that finds nothing before it goes straight to the register that `source` shows. Else its QP waits in a FIFO, at
    most once and with one row. What comes meanwhile joins the row: `una` moves on, an action joins
    where none waits, an acknowledge joins a pause, rewind or seek, which then starts further on. Second actions, what
    comes behind an error, and control wait until the walker has the first.

    Parameters
    ----------
    n_qps : int

    Endpoints
    ---------
    sink, source : item_description(), in and out

    Latency: 1 clock; an item a clock.
    Errors : none.
    """
    def __init__(self, n_qps):
        bits = log2_int(n_qps)
        # Stream Endpoints.
        self.sink   = sink = stream.Endpoint(item_description())
        self.buffer = buffer = stream.Buffer(item_description())
        self.source = buffer.source
        self.ready  = Signal()

        # # #

        self.table  = table = Table([("una", PSN_WIDTH), ("action", ITEM_BITS), ("row", ROW_WIDTH)], n_qps, distributed=True)
        self.queued = flags = FlagTable(n_qps)
        self.fifo   = fifo  = stream.SyncFIFO([("qpi", QPI_WIDTH)], n_qps)
        self.submodules += counted(fifo, "QPs: n_qps, each at most once (`queued`)")
        row, head   = table.read(sink.qpi[:bits]), table.read(fifo.source.qpi[:bits])
        waits, joins, leaves, taken, straight = Signal(), Signal(), Signal(), Signal(), Signal()
        further = Signal(PSN_WIDTH)
        self.comb += [
            self.ready.eq(table.ready & flags.ready),
            waits.eq(flags.read(sink.qpi[:bits])),
            joins.eq(((sink.action == ITEM_NONE) & (row.action <= ITEM_SEEK))
                | ((row.action == ITEM_NONE) & (sink.action <= ITEM_ERROR))),
            # Its row is read in this clock.
            leaves.eq(flags.clear & (fifo.source.qpi == sink.qpi)),
            sink.ready.eq(self.ready & ~leaves & (~waits | joins)),
            taken.eq(sink.valid & sink.ready),
            straight.eq(~fifo.source.valid & buffer.sink.ready),
            further.eq(sink.una - row.una),

            table.we.eq(taken),
            table.adr.eq(sink.qpi),
            [getattr(table.row, n).eq(getattr(sink, n)) for n in ("una", "action", "row")],
            If(waits,
                If(further[-1], table.row.una.eq(row.una)),
                If(sink.action == ITEM_NONE,
                    table.row.action.eq(row.action),
                    table.row.row.eq(row.row),
                ),
            ),
            flags.set.eq(taken & ~waits & ~straight),
            flags.set_adr.eq(sink.qpi),
            fifo.sink.valid.eq(flags.set),
            fifo.sink.qpi.eq(sink.qpi),
            fifo.source.ready.eq(buffer.sink.ready),
            flags.clear.eq(fifo.source.valid & buffer.sink.ready),
            flags.clear_adr.eq(fifo.source.qpi),

            sink.connect(buffer.sink, omit={"valid", "ready"}),
            buffer.sink.valid.eq(fifo.source.valid | taken),
            buffer.sink.first.eq(1),
            buffer.sink.last.eq(1),
            If(fifo.source.valid,
                buffer.sink.qpi.eq(fifo.source.qpi),
                [getattr(buffer.sink, n).eq(getattr(head, n)) for n in ("una", "action", "row")],
            ),
        ]
