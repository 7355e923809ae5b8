# SPDX-License-Identifier: BSD-2-Clause
"""QP connection rows: what every stage of the engine reads about a QP and only commands write.

Ref: InfiniBand Architecture vol. 1 ch. 10.2.4, 11.2.5 (queue pair attributes).
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.common import MAX_QPS, connection_layout
from roce_soc.table import Table


# QPContext ----------------------------------------------------------------------------------------

class QPContext(LiteXModule):
    """Connection rows in RAM, one copy for each reader, one writer.

    Copies cost block RAM but leave every reader its own port: no stage ever waits for a row.
    An all-zero row is a QP in RESET that was never created.

    Parameters
    ----------
    n_qps : int
        Rows, a power of two from 16 to 4096.

    Endpoints
    ---------
    write : {index, row}, in
        Replaces a row; one a clock; readers see it from the next clock's addresses on, until then the whole old row.
    get_port() : {adr} in, `row` (Record of connection_layout) out two clocks later
        Must be called before finalisation.

    Latency: row valid two clocks after adr, one read a clock. `ready` rises when all rows are zero.
    Errors : none.
    """
    def __init__(self, n_qps):
        if n_qps < 16 or n_qps > MAX_QPS or n_qps & (n_qps - 1):
            raise ValueError(f"n_qps must be a power of two from 16 to {MAX_QPS}, not {n_qps!r}")
        self.n_qps = n_qps
        self.bits  = log2_int(n_qps)
        self.ready = Signal()
        self.write = stream.Endpoint([("index", self.bits), ("row", len(Record(connection_layout()).raw_bits()))])

        # # #

        self.table = table = Table(connection_layout(), n_qps)
        self.comb += [
            self.ready.eq(table.ready),
            self.write.ready.eq(self.ready),
            table.we.eq(self.write.valid),
            table.adr.eq(self.write.index),
            table.row.raw_bits().eq(self.write.row),
        ]

    def get_port(self):
        """A new read port with its own copy of the rows."""
        return self.table.get_port()
