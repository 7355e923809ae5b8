# SPDX-License-Identifier: BSD-2-Clause
"""QP connection rows: what every stage of the engine reads about a QP and only commands write.

Ref: InfiniBand Architecture vol. 1 ch. 10.2.4, 11.2.5 (queue pair attributes).
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc import abi
from roce_soc.common import MAX_QPS, connection_layout, event_description, refusal_description
from roce_soc.errors import index_of
from roce_soc.table import FlagTable, KickQueue, Table


# QPContext ----------------------------------------------------------------------------------------

class QPContext(LiteXModule):
    """Connection rows in RAM, one copy for each reader, one writer.

    Copies cost block RAM but leave every reader its own port: no stage ever waits for a row.
    An all-zero row is a QP in RESET that was never created.

    Parameters
    ----------
    n_qps : int
        Rows, a power of two from 16 to 4096.
    parity : bool
        A bit more a row: a row that some reader gets otherwise than it was written is told, once until it is written again.
        What the reader did with it is not undone.

    Endpoints
    ---------
    write : {index, row}, in
        Replaces a row; one a clock; readers see it from the next clock's addresses on, until then the whole old row.
    get_port() : {adr} in, `row` (Record of connection_layout) out two clocks later
        Must be called before finalisation.
    fault : event_description(), out; refusal : refusal_description(), out
        With parity: the QP whose row is wrong, for the command port, and for the counters.

    Latency: row valid two clocks after adr, one read a clock. `ready` rises when all rows are zero.
    Errors : ROW_PARITY.
    """
    def __init__(self, n_qps, parity=False):
        if n_qps < 16 or n_qps > MAX_QPS or n_qps & (n_qps - 1):
            raise ValueError(f"n_qps must be a power of two from 16 to {MAX_QPS}, not {n_qps!r}")
        self.n_qps = n_qps
        self.bits  = log2_int(n_qps)
        self.ready = Signal()
        self.write = stream.Endpoint([("index", self.bits), ("row", len(Record(connection_layout()).raw_bits()))])

        # # #

        self.table  = table = Table(connection_layout(), n_qps, parity=parity)
        self.parity = parity
        self.fault, self.refusal = stream.Endpoint(event_description()), stream.Endpoint(refusal_description())
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

    def do_finalize(self):
        """Each reader's copy may be wrong: those that are, in turn, each QP once until its row is written."""
        if not self.parity:
            return
        ports, row  = [port for port, _ in self.table.ports], index_of("ROW_PARITY")
        self.faults = faults = KickQueue(self.n_qps, len(ports))
        self.told   = told   = FlagTable(self.n_qps)
        # Written while a kick for the old row is still queued: that kick tells nothing, whenever its turn comes.
        self.past   = past   = FlagTable(self.n_qps)
        fault, refusal, ready = self.fault, self.refusal, [Signal() for _ in range(self.table.latency + 1)]
        self.comb += ready[0].eq(self.table.ready & told.ready & past.ready & faults.ready)
        self.sync += [after.eq(before) for before, after in zip(ready, ready[1:])]
        for port, kick in zip(ports, faults.kicks):
            # The port's address when its row is here. One that comes while another waits is read again some time.
            adr = [port.adr] + [Signal(self.bits) for _ in range(self.table.latency)]
            self.sync += [
                [after.eq(before) for before, after in zip(adr, adr[1:])],
                If(~kick.valid | kick.ready, kick.valid.eq(port.bad & ready[-1]), kick.qpi.eq(adr[-1])),
            ]
        qpi, again, late = faults.source.qpi[:self.bits], Signal(), Signal()
        # A written row, when every kick for the old one is in the queue: a reader may have asked for it in the clock of the write,
        # and each port's kick then waits for its turn.
        written = [Record([("valid", 1), ("qpi", self.bits)]) for _ in range(self.table.latency + 3 + len(ports))]
        self.sync += [after.eq(before) for before, after in zip(written, written[1:])]
        clear, load = written[-1], Signal()
        queued      = faults.queued(clear.qpi)
        self.comb += [
            written[0].valid.eq(self.write.valid & self.write.ready), written[0].qpi.eq(self.write.index),
            again.eq(told.read(qpi)),
            late.eq(past.read(qpi)),
            # A clock in which a row is seen to be written takes nothing out: queued or not is one thing then.
            load.eq(faults.source.valid & ~again & ~late & ~clear.valid & (~fault.valid | fault.ready)),
            faults.source.ready.eq(load | ((again | late) & ~clear.valid)),
            told.set.eq(load), told.set_adr.eq(qpi),
            past.set.eq(clear.valid & queued), past.set_adr.eq(clear.qpi),
            past.clear.eq(faults.source.valid & faults.source.ready), past.clear_adr.eq(qpi),
            told.clear.eq(clear.valid), told.clear_adr.eq(clear.qpi),
            refusal.valid.eq(load), refusal.first.eq(1), refusal.last.eq(1),
            refusal.row.eq(row), refusal.info.eq(qpi),
            fault.first.eq(1), fault.last.eq(1),
            fault.type.eq(abi.EVENT_QP_FATAL), fault.info.eq(row),
        ]
        self.sync += [
            If(~fault.valid | fault.ready, fault.valid.eq(load)),
            If(load, fault.queue.eq(qpi)),
        ]
