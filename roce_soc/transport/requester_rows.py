# SPDX-License-Identifier: BSD-2-Clause
"""State of the send side: rows in RAM with one writer each, and the records that pass between its stages."""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream
from litex.soc.interconnect.stream import EndpointDescription
from migen.genlib.roundrobin import RoundRobin, SP_CE

from roce_soc.bounds import counted
from roce_soc.common import MAX_READS, OUTSTANDING, QPI_WIDTH, TARGET_WIDTH
from roce_soc.errors import ROW_WIDTH
from roce_soc.table import clocked_port

PSN_WIDTH   = 24
TIME_WIDTH  = 36                           # ticks; 16*2^31 still fits.
EPOCH_WIDTH = 12                           # restarts of a send ring's prefetch.
GENERATION_WIDTH = 4                       # rewinds and pauses of a QP; more are never under way at once.
RING_BITS   = log2_int(OUTSTANDING)        # index into the outstanding ring; counters have one bit more.
READ_BITS   = log2_int(MAX_READS)          # index into the READ ring; counters have one bit more.

# Rows ---------------------------------------------------------------------------------------------

def requester_layout():
    """Written by the requester. PSNs: `next_psn` is sent next, below `sent_high` were given to a burst once,
    `msg_psn` is the first of the current message, below `msg_high` belong to registered messages;
    `started`: these are set (CTL_START); `slot_high` follows the last registered message;
    `generation` counts rewinds and pauses: bursts of an older one are not sent any more;
    `fence_index` is the message behind the newest READ, moved up to the oldest message once that is retired;
    `seeking`: acknowledges have passed the cursor, the walker was asked where to go on."""
    return [
        ("next_psn", 24), ("sent_high", 24), ("msg_psn", 24), ("msg_high", 24),
        ("slot", 16), ("slot_high", 16), ("epoch", EPOCH_WIDTH), ("life", EPOCH_WIDTH),
        ("out_index", RING_BITS + 1), ("read_index", READ_BITS + 1), ("fence_index", RING_BITS + 1),
        ("generation", GENERATION_WIDTH), ("started", 1), ("paused", 1), ("seeking", 1), ("flushing", 1)]


def cursor_layout():
    """Next send ring slot of a QP, written by the requester. A new `epoch` restarts the prefetch there;
    a new `life` (RESET) makes what is on chip worthless."""
    return [("slot", 16), ("epoch", EPOCH_WIDTH), ("life", EPOCH_WIDTH)]


def pushed_layout():
    """Entries pushed into a QP's rings, written with the entries: `out` messages, `read` READs."""
    return [("out", RING_BITS + 1), ("read", READ_BITS + 1)]


def completer_layout():
    """Written by the completer. `una` is the oldest unacknowledged PSN; `gap`: a retry was asked for
    and nothing has moved since; `restart`: a READ may resume in either form; `waiting`: RNR. `rewinding`: a pause or
    rewind was asked for when the requester's generation was `rewind_from`."""
    return [
        ("una", 24), ("read_head", READ_BITS + 1),
        ("retry_left", 3), ("rnr_left", 3), ("gap", 1), ("restart", 1), ("waiting", 1), ("dead", 1),
        ("rewinding", 1), ("rewind_from", GENERATION_WIDTH),
        ("last_progress", TIME_WIDTH), ("rnr_until", TIME_WIDTH)]


def wire_layout():
    """Written by the launch stage as packets come back from transmit: PSNs below `high` have been handed to the wire,
    the last of them by `generation` of the requester. `started`: CTL_START has set it, so that `high` means something."""
    return [("high", PSN_WIDTH), ("generation", GENERATION_WIDTH), ("started", 1)]


def walker_layout():
    """Written by the retire walker: `tail` counts retired messages, `slot` follows the last of them; `draining`: in SQD,
    what was begun is not done; a local fault waits for its message."""
    return [("tail", RING_BITS + 1), ("slot", 16), ("draining", 1), ("dead", 1), ("fault", 1), ("fault_psn", 24), ("fault_row", ROW_WIDTH)]


def outstanding_layout():
    """An entry of the outstanding ring; `slots`: the work request takes two ring slots."""
    return [
        ("first_psn", 24), ("last_psn", 24), ("slot", 16), ("two_slots", 1), ("wr_id", 64),
        ("wc_opcode", 8), ("signalled", 1), ("length", 32)]


def read_layout():
    """An entry of the READ ring: where the data of a READ request goes."""
    return [("first_psn", 24), ("last_psn", 24), ("va", 64), ("lkey", 32), ("length", 32)]

# Records ------------------------------------------------------------------------------------------

# Pseudo-visits of the requester that are not control (common.CTL_*).
REWIND_PAUSE, REWIND_GO, REWIND_SEEK = range(3)

def rewind_description():
    """From the walker: pause, or go back to `psn` inside the message that starts at `msg_psn`. SEEK answers a requester
    that was passed by acknowledges: go on there. Where no message is outstanding the place is that of the next one,
    whether its burst has met the launch stage or not."""
    return EndpointDescription([("qpi", QPI_WIDTH), ("op", 2), ("slot", 16), ("msg_psn", 24), ("psn", 24)])


def kick_description():
    """A QP that may have something to do; a needless kick is harmless."""
    return EndpointDescription([("qpi", QPI_WIDTH)])


# What the launch stage tells the walker.
LOCAL_KICK, LOCAL_FAULT = range(2)

def local_description():
    """LOCAL_KICK: look at the ring again; LOCAL_FAULT: the message with `psn` fails with `row`."""
    return EndpointDescription([("qpi", QPI_WIDTH), ("op", 1), ("psn", 24), ("row", ROW_WIDTH)])


# What the completer tells the walker; the last four are control and answered by ctl_done.
ITEM_NONE, ITEM_PAUSE, ITEM_REWIND, ITEM_SEEK, ITEM_ERROR, ITEM_START, ITEM_FLUSH, ITEM_RESET, ITEM_CTL = range(9)
ITEM_BITS = 4

def item_description():
    """Messages below `una` are done; then `action`; `row` of errors.py with ITEM_ERROR."""
    return EndpointDescription([("qpi", QPI_WIDTH), ("una", 24), ("action", ITEM_BITS), ("row", ROW_WIDTH)])


def burst_layout():
    """Packets of one message, built by one visit of its QP: up to 4 KiB, or one READ request."""
    return [
        ("qpi", QPI_WIDTH), ("ctl", 1), ("op", 3), ("generation", GENERATION_WIDTH),
        # Duties of the launch stage.
        ("send", 1), ("register", 1), ("push_read", 1), ("check", 1), ("row", ROW_WIDTH),
        ("out_index", RING_BITS + 1), ("read_index", READ_BITS + 1),
        ("msg_psn", 24), ("last_psn", 24), ("slot", 16), ("two_slots", 1), ("wr_id", 64),
        ("wc_opcode", 8), ("signalled", 1), ("msg_length", 32),
        # The packets.
        ("is_read", 1), ("is_write", 1), ("has_imm", 1), ("starts", 1), ("ends", 1), ("se", 1), ("retry", 1),
        ("psn", 24), ("end_psn", 24), ("length", 30), ("pmtu", 3), ("imm", 32),
        ("target", TARGET_WIDTH), ("addr", 64),
        ("local_va", 64), ("lkey", 32), ("remote_va", 64), ("rkey", 32), ("dma_length", 32)]


# RowTable -----------------------------------------------------------------------------------------

class RowTable(LiteXModule):
    """Rows in RAM: one writer, a copy for each reader, all rows zero when `ready` rises.

    Parameters
    ----------
    layout : list
        Fields of a row.
    n_rows : int
        Rows, a power of two.
    init : bool
        Zero the rows after reset; rings whose entries are guarded by counters do without.

    Endpoints
    ---------
    we, adr, row : in
        Writes a row; readers see it from the next clock's addresses on.
    get_port() : adr in, row out two clocks later.
    get_async_port() : adr in, row out in the same clock (distributed RAM; short rows only).

    Latency: one write and one read a port and clock; the owner may not write before `ready`.
    """
    def __init__(self, layout, n_rows, *, init=True):
        self.layout = layout
        self.n_rows = n_rows
        self.bits   = log2_int(n_rows)
        self.ready  = Signal()
        self.we     = Signal()
        self.adr    = Signal(self.bits)
        self.row    = Record(layout)

        # # #

        self.ports   = []
        self.walker  = Signal(self.bits + 1, reset=0 if init else n_rows)
        self.comb   += self.ready.eq(self.walker[-1])
        self.sync   += If(~self.ready, self.walker.eq(self.walker + 1))

    def _port(self, is_async):
        if self.finalized:
            raise ValueError("get_port must be called before finalisation")
        port       = Record([("adr", self.bits)])
        port.row   = Record(self.layout)
        self.ports.append((port, is_async))
        return port

    def get_port(self):
        """Read port with two clocks of latency."""
        return self._port(False)

    def get_async_port(self):
        """Read port without latency."""
        return self._port(True)

    def do_finalize(self):
        width = len(self.row.raw_bits())
        for port, is_async in self.ports:
            memory = Memory(width, self.n_rows)
            write  = memory.get_port(write_capable=True)
            read   = memory.get_port(async_read=True) if is_async else clocked_port(memory, old_word=True)
            self.specials += memory, write, read
            self.comb += [
                write.we.eq(~self.ready | self.we),
                write.adr.eq(Mux(self.ready, self.adr, self.walker[:self.bits])),
                write.dat_w.eq(Mux(self.ready, self.row.raw_bits(), 0)),
                read.adr.eq(port.adr),
            ]
            if is_async:
                self.comb += port.row.raw_bits().eq(read.dat_r)
            else:
                self.sync += port.row.raw_bits().eq(read.dat_r)


class SendState(LiteXModule):
    """Per-QP state of the send side: each table has one writer, named here, and any number of readers.

    Attributes
    ----------
    requester, generation : requester  pushed, outstanding, reads, halted, faulty, wire, busy : its launch stage
    completer, una, read_head : completer   walker, tail : retire walker
    """
    def __init__(self, n_qps):
        self.n_qps = n_qps
        self.bits  = log2_int(n_qps)
        self.ready = Signal()
        self.requester   = RowTable(requester_layout(), n_qps)
        self.generation  = RowTable([("number", GENERATION_WIDTH)], n_qps)
        self.pushed      = RowTable(pushed_layout(),    n_qps)
        self.outstanding = RowTable(outstanding_layout(), n_qps*OUTSTANDING, init=False)
        self.reads       = RowTable(read_layout(), n_qps*MAX_READS, init=False)
        self.halted      = RowTable([("halted", 1), ("psn", 24)], n_qps)
        self.faulty      = RowTable([("valid", 1), ("psn", PSN_WIDTH)], n_qps)
        self.wire        = RowTable(wire_layout(),      n_qps)
        self.busy        = RowTable([("since", TIME_WIDTH)], n_qps)
        self.completer   = RowTable(completer_layout(), n_qps)
        self.una         = RowTable([("psn", PSN_WIDTH)], n_qps)
        self.read_head   = RowTable([("index", READ_BITS)], n_qps)
        self.walker      = RowTable(walker_layout(),    n_qps)
        self.tail        = RowTable([("index", RING_BITS)], n_qps)

        # # #

        self.comb += self.ready.eq(self.requester.ready)


# KickQueue ----------------------------------------------------------------------------------------

class KickQueue(LiteXModule):
    """FIFO of QP indices, each in it at most once; taking one out opens it for the next kick.

    A kick must come after the state it announces has been written. Whoever pops a QP reads that
    state afterwards, so no kick is lost: either the QP is still queued, or it is queued again.

    Parameters
    ----------
    n_qps : int
        QPs, a power of two.
    n_kicks : int
        Kick inputs with `ready`, served in turn.

    Endpoints
    ---------
    urgent : {valid, qpi}, in
        Taken in its clock whatever happens.
    kicks : list of kick_description(), in
    source : kick_description(), out

    Latency: kick to source 1 clock.
    """
    def __init__(self, n_qps, n_kicks):
        bits = log2_int(n_qps)
        self.ready  = Signal()
        self.urgent = Record([("valid", 1), ("qpi", bits)])
        self.kicks  = [stream.Endpoint(kick_description()) for _ in range(n_kicks)]
        self.source = source = stream.Endpoint(kick_description())

        # # #

        # A QP is queued when it was pushed once more than it was popped: two bits, one writer each.
        self.pushed = pushed = RowTable([("odd", 1)], n_qps)
        self.popped = popped = RowTable([("odd", 1)], n_qps)
        self.fifo   = fifo   = stream.SyncFIFO([("qpi", bits)], n_qps)
        self.submodules += counted(fifo, "QPs: n_qps, each queued at most once (`pushed`, `popped`)")
        push_p, push_q = pushed.get_async_port(), popped.get_async_port()
        pop_q          = popped.get_async_port()

        qpi    = Signal(bits)
        valid  = Signal()
        queued = Signal()
        if n_kicks:
            self.arbiter = arbiter = RoundRobin(n_kicks, SP_CE)
            self.comb += [
                arbiter.request.eq(Cat(*[k.valid for k in self.kicks])),
                arbiter.ce.eq(~self.urgent.valid & self.ready),
                Case(arbiter.grant, {i: [
                    qpi.eq(k.qpi),
                    valid.eq(k.valid & self.ready),
                    k.ready.eq(~self.urgent.valid & self.ready),
                ] for i, k in enumerate(self.kicks)}),
            ]
        self.comb += [
            self.ready.eq(pushed.ready & popped.ready),
            If(self.urgent.valid, qpi.eq(self.urgent.qpi), valid.eq(1)),
            push_p.adr.eq(qpi),
            push_q.adr.eq(qpi),
            # A QP that is popped in this clock counts as queued: its visit starts now and reads later.
            queued.eq(push_p.row.odd ^ push_q.row.odd),
            fifo.sink.valid.eq(valid & ~queued),
            fifo.sink.qpi.eq(qpi),
            pushed.we.eq(valid & ~queued),
            pushed.adr.eq(qpi),
            pushed.row.odd.eq(~push_p.row.odd),
            source.valid.eq(fifo.source.valid),
            source.qpi.eq(fifo.source.qpi),
            fifo.source.ready.eq(source.ready),
            pop_q.adr.eq(fifo.source.qpi),
            popped.we.eq(source.valid & source.ready),
            popped.adr.eq(fifo.source.qpi),
            popped.row.odd.eq(~pop_q.row.odd),
        ]
