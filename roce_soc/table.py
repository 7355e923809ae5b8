# SPDX-License-Identifier: BSD-2-Clause
"""Small per-queue state in distributed RAM, cleared by an init walker after reset; a FIFO that costs no clock."""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream


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


# StateTable ---------------------------------------------------------------------------------------

class StateTable(LiteXModule):
    """Rows of state with one writer, read in the same clock by any number of readers.

    A row that is read, changed and written within one clock needs neither forwarding nor
    interlock; that is why sequence numbers and flags live here and wide rows in block RAM.

    Parameters
    ----------
    layout : int or list
        Bits of a row, or the layout of its Record.
    depth : int
        Rows, at least 2.

    Endpoints
    ---------
    we, adr, dat_w : in
        Write port, taken at the end of the clock. Writes before `ready` are lost.
    read(adr) : row at `adr`, same clock, before a write of that clock.

    Latency: none. `ready` rises when every row is zero.
    """
    def __init__(self, layout, depth):
        if depth < 2:
            raise ValueError(f"depth must be at least 2, not {depth!r}")
        self.layout = layout
        self.width  = layout if isinstance(layout, int) else layout_len(layout)
        self.depth  = depth
        self.ready  = Signal()
        self.we     = Signal()
        self.adr    = Signal(max=depth)
        self.dat_w  = self._row()

        # # #

        self.memory = Memory(self.width, depth)
        write  = self.memory.get_port(write_capable=True)
        walker = Signal(max=depth)
        self.specials += self.memory, write
        self.comb += [
            write.we.eq(self.we | ~self.ready),
            write.adr.eq(Mux(self.ready, self.adr, walker)),
            If(self.ready, write.dat_w.eq(self._raw(self.dat_w))),
        ]
        self.sync += If(~self.ready, walker.eq(walker + 1), self.ready.eq(walker == depth - 1))

    def _row(self):
        return Signal(self.width) if isinstance(self.layout, int) else Record(self.layout)

    def _raw(self, row):
        return row if isinstance(self.layout, int) else row.raw_bits()

    def read(self, adr):
        """Row at `adr` in the same clock: a Signal, or a Record when the table has a layout."""
        port, row = self.memory.get_port(async_read=True), self._row()
        self.specials += port
        self.comb += port.adr.eq(adr), self._raw(row).eq(port.dat_r)
        return row


# FlagTable ----------------------------------------------------------------------------------------

class FlagTable(LiteXModule):
    """One flag a row with a writer that sets and another that clears, at independent addresses.

    Two tables of one bit, each with one writer: the flag is their difference. Setting a set flag or
    clearing a clear one changes nothing. Set and clear of one row in one clock: both act on the old flag.

    Endpoints
    ---------
    set, set_adr, clear, clear_adr : in
    read(adr) : flag, same clock.
    """
    def __init__(self, depth):
        self.set,   self.set_adr   = Signal(), Signal(max=depth)
        self.clear, self.clear_adr = Signal(), Signal(max=depth)
        self.ready = Signal()

        # # #

        self.up   = up   = StateTable(1, depth)
        self.down = down = StateTable(1, depth)
        self.comb += [
            self.ready.eq(up.ready & down.ready),
            up.adr.eq(self.set_adr),
            up.we.eq(self.set),
            up.dat_w.eq(~down.read(self.set_adr)),
            down.adr.eq(self.clear_adr),
            down.we.eq(self.clear),
            down.dat_w.eq(up.read(self.clear_adr)),
        ]

    def read(self, adr):
        flag = Signal()
        self.comb += flag.eq(self.up.read(adr) ^ self.down.read(adr))
        return flag


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
