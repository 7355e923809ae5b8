# SPDX-License-Identifier: BSD-2-Clause
"""QP connection rows: what every stage of the engine reads about a QP and only commands write.

Ref: InfiniBand Architecture vol. 1 ch. 10.2.4, 11.2.5 (queue pair attributes).
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.common import MAX_QPS, connection_layout
from roce_soc.table import clocked_port


class ContextPort:
    """Read port: `adr` (QP index) in, `row` (Record of connection_layout) two clocks later."""
    def __init__(self, bits):
        self.adr = Signal(bits)
        self.row = Record(connection_layout())


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
    get_port() : ContextPort
        Must be called before finalisation.

    Latency: row valid two clocks after adr, one read a clock. `ready` rises when all rows are zero.
    """
    def __init__(self, n_qps):
        if n_qps < 16 or n_qps > MAX_QPS or n_qps & (n_qps - 1):
            raise ValueError(f"n_qps must be a power of two from 16 to {MAX_QPS}, not {n_qps!r}")
        self.n_qps = n_qps
        self.bits  = log2_int(n_qps)
        self.ports = []
        self.ready = Signal()
        self.write = stream.Endpoint([("index", self.bits), ("row", len(Record(connection_layout()).raw_bits()))])

        # # #

        walker = Signal(self.bits + 1)
        self.init_we  = Signal()
        self.init_adr = walker
        self.comb += [
            self.ready.eq(walker[-1]),
            self.init_we.eq(~self.ready),
            self.write.ready.eq(self.ready),
        ]
        self.sync += If(~self.ready, walker.eq(walker + 1))

    def get_port(self):
        """A new read port with its own copy of the rows."""
        port = ContextPort(self.bits)
        self.ports.append(port)
        return port

    def do_finalize(self):
        for port in self.ports:
            memory = Memory(len(self.write.row), self.n_qps)
            write, read = memory.get_port(write_capable=True), clocked_port(memory, old_word=True)
            self.specials += memory, write, read
            self.comb += [
                write.we.eq(self.init_we | (self.write.valid & self.write.ready)),
                write.adr.eq(Mux(self.init_we, self.init_adr[:self.bits], self.write.index)),
                write.dat_w.eq(Mux(self.init_we, 0, self.write.row)),
                read.adr.eq(port.adr),
            ]
            # The RAM's own register is the first clock, this one the second.
            self.sync += port.row.raw_bits().eq(read.dat_r)
