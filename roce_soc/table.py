# SPDX-License-Identifier: BSD-2-Clause
"""State in RAM, cleared by an init walker after reset: rows, flags, queues of kicks; FIFOs that cost no clock."""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.arbiter import Turns
from roce_soc.bounds import counted
from roce_soc.common import QPI_WIDTH


# Block RAM ----------------------------------------------------------------------------------------

def clocked_port(memory, *, old_word=False, **options):
    """Read port of a RAM with the word one clock after its address; every clocked read port of the engine is one.

    A row that is read in the clock in which the other port writes it: block RAM with one clock on both ports reads the old
    word where the writing port is READ_FIRST, else undefined bits; so the port is READ_FIRST, and synthesis takes that mode
    for the RAM. With two clocks the word is undefined in any mode.

    Ref: AMD UG573 (UltraScale memory resources), block RAM, address collision, and the same table in AM007, "Address Collision",
    table 1, common clock: writing port RF, other port reads old memory data; WF and NC: X. UG901, RAM inference.

    Parameters
    ----------
    memory : Memory
    old_word : bool
        The reader can use the word of such a clock, which is the old one. False: it forwards what is written, or does not
        use the word; the harness gives it random bits then (ROCE_COLLIDE=1, sim/harness/collide.py).
    options : of Memory.get_port
    """
    port = memory.get_port(mode=READ_FIRST, **options)
    port.old_word = old_word
    return port


def parity_of(bits):
    """XOR of all bits (expression), as a tree: rows may be some hundred bits wide."""
    terms = [bits[i] for i in range(len(bits))]
    while len(terms) > 1:
        terms = [terms[n] ^ terms[n + 1] if n + 1 < len(terms) else terms[n] for n in range(0, len(terms), 2)]
    return terms[0]


# InitWalker ---------------------------------------------------------------------------------------

class InitWalker(LiteXModule):
    """Walks over the rows of a RAM after reset: RAM has no reset, so whoever needs zeros (or a number in each row) writes them.

    Attributes
    ----------
    ready : every row has been walked over.
    adr : Signal(bits of a row's number), the row of this clock while not ready.
    again : in, the walk begins anew.

    Latency: a row a clock from reset on.
    Errors : none.
    """
    def __init__(self, depth):
        self.ready = Signal()
        self.adr   = Signal(max=max(2, depth))
        self.again = Signal()

        # # #

        count = Signal(max=depth + 1)
        self.comb += self.ready.eq(count == depth), self.adr.eq(count)
        self.sync += If(self.again, count.eq(0)).Elif(~self.ready, count.eq(count + 1))

    def fill(self, write, adr, data, enable, init=0):
        """Statements of a RAM's write port: `init` in every row, then `data` at `adr` where `enable`."""
        return [
            write.we.eq(~self.ready | enable),
            write.adr.eq(Mux(self.ready, adr, self.adr)),
            write.dat_w.eq(Mux(self.ready, data, init)),
        ]


# Table --------------------------------------------------------------------------------------------

DISTRIBUTED_ROWS = 4096       # rows of a table in distributed RAM at most: 64 LUTs a bit and reader.
LATENCIES        = (2, 3, 4)  # clocks from address to row: block RAM with its output register, URAM in cascades of 2 and more.


class Table(LiteXModule):
    """Rows of state in RAM: one writer, any number of readers, zero when `ready` rises.

    Block RAM, a copy for each reader, unless `distributed`: then readers may also see a row in the clock of its address, so that a
    row that is read, changed and written within one clock needs neither forwarding nor interlock. That is for short rows.

    Parameters
    ----------
    layout : int or list
        Bits of a row, or the layout of its Record.
    depth : int
        Rows, at least 2; of a distributed table DISTRIBUTED_ROWS at most.
    distributed : bool
        In distributed RAM: `read` may be used.
    latency : int
        Clocks from address to row of `get_port`, one of LATENCIES. Readers take it from here.
    init : bool
        Zero the rows after reset; rings whose entries are guarded by counters do without.
    parity : bool
        A bit more a row; `port.bad` with a row of `get_port` that is not what was written.

    Endpoints
    ---------
    we, adr, row : in
        Write port, taken at the end of the clock. Writes before `ready` are lost.
    get_port() : adr in, row out `latency` clocks later: as it was before a write of the address's clock.
    read(adr) : row at `adr`, same clock, before a write of that clock.

    Latency: one write and one read a port and clock.
    Errors : none; of parity `bad` tells.
    """
    def __init__(self, layout, depth, *, distributed=False, latency=2, init=True, parity=False):
        if depth < 2:
            raise ValueError(f"depth must be at least 2, not {depth!r}")
        if distributed and depth > DISTRIBUTED_ROWS:
            raise ValueError(f"depth of a distributed table must be at most {DISTRIBUTED_ROWS}, not {depth!r}")
        if latency not in LATENCIES:
            raise ValueError(f"latency must be one of {LATENCIES}, not {latency!r}")
        if parity and not init:
            raise ValueError("parity needs init: a row that was never written has none")
        self.layout      = layout
        self.width       = layout if isinstance(layout, int) else layout_len(layout)
        self.depth       = depth
        self.distributed = distributed
        self.latency     = latency
        self.parity      = parity
        self.ready       = Signal()
        self.we          = Signal()
        self.adr         = Signal(max=depth)
        self.row         = self._new_row()

        # # #

        self.ports = []
        if init:
            self.walker = InitWalker(depth)
            self.comb  += self.ready.eq(self.walker.ready)
        else:
            self.walker = None
            self.comb  += self.ready.eq(1)
        self.reads = 0
        if distributed:
            self.memory = self._new_memory()

    def _new_row(self):
        return Signal(self.width) if isinstance(self.layout, int) else Record(self.layout)

    def _raw(self, row):
        return row if isinstance(self.layout, int) else row.raw_bits()

    def _new_memory(self):
        """A RAM of all rows, written by the table's writer."""
        memory = Memory(self.width + self.parity, self.depth)
        write  = memory.get_port(write_capable=True)
        self.specials += memory, write
        bits   = self._raw(self.row)
        data   = Cat(bits, parity_of(bits)) if self.parity else bits
        if self.walker:
            self.comb += self.walker.fill(write, self.adr, data, self.we)
        else:
            self.comb += write.we.eq(self.we), write.adr.eq(self.adr), write.dat_w.eq(data)
        return memory

    def read(self, adr):
        """Row at `adr` in the same clock: a Signal, or a Record when the table has a layout. Distributed tables only."""
        if not self.distributed:
            raise ValueError("read needs a distributed table; get_port gives the row some clocks later")
        # A copy for each reader: RAM with one read port maps to a deep primitive, with several to muxes of LUTs.
        memory = self.memory
        if self.reads:
            memory = self._new_memory()
            setattr(self, f"copy{self.reads}", memory)
        self.reads += 1
        port, row = memory.get_port(async_read=True), self._new_row()
        self.specials += port
        self.comb += port.adr.eq(adr), self._raw(row).eq(port.dat_r)
        return row

    def get_port(self, *, old_word=True):
        """Read port with `latency`: a Record {adr} with `row`, and `bad` where the table has parity.

        old_word : as of `clocked_port`; False where the reader forwards what is written in the clock of its address.
        """
        if self.finalized:
            raise ValueError("get_port must be called before finalisation")
        port     = Record([("adr", bits_for(self.depth - 1))])
        port.row = self._new_row()
        port.bad = Signal()
        self.ports.append((port, old_word))
        return port

    def do_finalize(self):
        for port, old_word in self.ports:
            memory = self._new_memory()
            read   = clocked_port(memory, old_word=old_word)
            self.specials += read
            self.comb += read.adr.eq(port.adr)
            # The RAM's own register is the first clock; the others are its output register and a cascade's.
            data = read.dat_r
            for _ in range(self.latency - 1):
                later = Signal(len(data), reset_less=True)
                self.sync += later.eq(data)
                data = later
            self.comb += self._raw(port.row).eq(data)
            if self.parity:
                self.comb += port.bad.eq(parity_of(data))


# FlagTable ----------------------------------------------------------------------------------------

class FlagTable(LiteXModule):
    """One flag a row with a writer that sets and another that clears, at independent addresses.

    Two tables of one bit, each with one writer: the flag is their difference. Setting a set flag or
    clearing a clear one changes nothing. Set and clear of one row in one clock: both act on the old flag.

    Endpoints
    ---------
    set, set_adr, clear, clear_adr : in
    read(adr) : flag, same clock.

    Latency: none. Errors: none.
    """
    def __init__(self, depth):
        self.set,   self.set_adr   = Signal(), Signal(max=depth)
        self.clear, self.clear_adr = Signal(), Signal(max=depth)
        self.ready = Signal()

        # # #

        self.up   = up   = Table(1, depth, distributed=True)
        self.down = down = Table(1, depth, distributed=True)
        self.comb += [
            self.ready.eq(up.ready & down.ready),
            up.adr.eq(self.set_adr),
            up.we.eq(self.set),
            up.row.eq(~down.read(self.set_adr)),
            down.adr.eq(self.clear_adr),
            down.we.eq(self.clear),
            down.row.eq(up.read(self.clear_adr)),
        ]

    def read(self, adr):
        flag = Signal()
        self.comb += flag.eq(self.up.read(adr) ^ self.down.read(adr))
        return flag


# KickQueue ----------------------------------------------------------------------------------------

def kick_description():
    """A QP that may have something to do; a needless kick is harmless."""
    return stream.EndpointDescription([("qpi", QPI_WIDTH)])

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
    Errors : none; each QP has its place (a bound).
    """
    def __init__(self, n_qps, n_kicks):
        bits = log2_int(n_qps)
        self.ready  = Signal()
        self.urgent = Record([("valid", 1), ("qpi", bits)])
        self.kicks  = [stream.Endpoint(kick_description()) for _ in range(n_kicks)]
        self.source = source = stream.Endpoint(kick_description())

        # # #

        # A QP is queued when it was pushed once more than it was popped: two bits, one writer each.
        self.pushed = pushed = Table(1, n_qps, distributed=True)
        self.popped = popped = Table(1, n_qps, distributed=True)
        self.fifo   = fifo   = stream.SyncFIFO([("qpi", bits)], n_qps)
        self.submodules += counted(fifo, "QPs: n_qps, each queued at most once (`pushed`, `popped`)")

        qpi    = Signal(bits)
        valid  = Signal()
        queued = Signal()
        if n_kicks:
            self.turns = turns = Turns(n_kicks)
            self.comb += [
                turns.request.eq(Cat(*[k.valid for k in self.kicks])),
                turns.next.eq(~self.urgent.valid & self.ready),
                Case(turns.grant, {i: [
                    qpi.eq(k.qpi),
                    valid.eq(k.valid & self.ready),
                    k.ready.eq(~self.urgent.valid & self.ready),
                ] for i, k in enumerate(self.kicks)}),
            ]
        mine = pushed.read(qpi)
        self.comb += [
            self.ready.eq(pushed.ready & popped.ready),
            If(self.urgent.valid, qpi.eq(self.urgent.qpi), valid.eq(1)),
            # A QP that is popped in this clock counts as queued: its visit starts now and reads later.
            queued.eq(mine ^ popped.read(qpi)),
            fifo.sink.valid.eq(valid & ~queued),
            fifo.sink.qpi.eq(qpi),
            pushed.we.eq(valid & ~queued),
            pushed.adr.eq(qpi),
            pushed.row.eq(~mine),
            source.valid.eq(fifo.source.valid),
            source.qpi.eq(fifo.source.qpi),
            fifo.source.ready.eq(source.ready),
            popped.we.eq(source.valid & source.ready),
            popped.adr.eq(fifo.source.qpi),
            popped.row.eq(~popped.read(fifo.source.qpi)),
        ]

    def queued(self, qpi):
        """Whether a QP is in the queue; one that leaves it in this clock is."""
        queued = Signal()
        self.comb += queued.eq(self.pushed.read(qpi) ^ self.popped.read(qpi))
        return queued


# BypassFIFO ---------------------------------------------------------------------------------------

class BypassFIFO(LiteXModule):
    """FIFO that an item passes in no time when it is empty.

    Parameters
    ----------
    layout : layout or EndpointDescription
    depth : int
    frames : bool
        Items are beats with first and last; else each is a token with both set.

    Latency: 0 clocks when empty, else 1.
    Errors : none.
    """
    def __init__(self, layout, depth, frames=False):
        self.sink, self.source = sink, source = stream.Endpoint(layout), stream.Endpoint(layout)

        # # #

        self.fifo = fifo = stream.SyncFIFO(layout, depth)
        self.level = fifo.level
        empty = Signal()
        self.comb += [
            empty.eq(fifo.level == 0),
            sink.connect(fifo.sink, omit={"valid"}),
            fifo.sink.valid.eq(sink.valid & ~(empty & source.ready)),
            fifo.source.ready.eq(source.ready & ~empty),
            source.valid.eq(Mux(empty, sink.valid, fifo.source.valid)),
            source.payload.eq(fifo.source.payload), source.param.eq(fifo.source.param),
            If(empty, source.payload.eq(sink.payload), source.param.eq(sink.param)),
        ]
        if frames:
            self.comb += [
                source.first.eq(Mux(empty, sink.first, fifo.source.first)),
                source.last.eq(Mux(empty, sink.last, fifo.source.last)),
            ]
        else:
            self.comb += source.first.eq(1), source.last.eq(1)


# BypassQueue --------------------------------------------------------------------------------------

class BypassQueue(LiteXModule):
    """As BypassFIFO for tokens, wide and deep: block RAM does, and what waits stands in a register.

    Latency: 0 clocks when empty, else 3 at most.
    Errors : none.
    """
    def __init__(self, layout, depth):
        self.sink, self.source = sink, source = stream.Endpoint(layout), stream.Endpoint(layout)

        # # #

        self.fifo = fifo = stream.SyncFIFO(layout, depth, buffered=True)
        held, held_valid = Record(sink.description.payload_layout), Signal()
        empty = Signal()
        self.comb += [
            empty.eq(fifo.level == 0),
            sink.connect(fifo.sink, omit={"valid"}),
            # Into the register when it is free or becomes so; what the source takes at once goes nowhere.
            fifo.sink.valid.eq(sink.valid & (~empty | (held_valid & ~source.ready))),
            fifo.source.ready.eq(~held_valid | source.ready),
            source.valid.eq(held_valid | (empty & sink.valid)),
            source.payload.eq(sink.payload),
            If(held_valid, source.payload.eq(held)),
            source.first.eq(1), source.last.eq(1),
        ]
        self.sync += [
            If(fifo.source.valid & fifo.source.ready,
                held_valid.eq(1), held.eq(fifo.source.payload),
            ).Elif(held_valid,
                If(source.ready, held_valid.eq(empty & sink.valid), held.eq(sink.payload)),
            ).Elif(empty & sink.valid,
                held_valid.eq(~source.ready), held.eq(sink.payload),
            ),
        ]
