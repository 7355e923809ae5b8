# SPDX-License-Identifier: BSD-2-Clause
"""Joins frames to the own MAC with those from the wire, so that two local QPs can talk."""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.bounds import counted
from roce_soc.common import DATA_WIDTH, MAX_FRAME, roce_wire_description
from roce_soc.table import BypassFIFO

WIRE_BEATS = 128     # of the FIFO that holds the wire back while a local frame passes.
LEVEL      = WIRE_BEATS - MAX_FRAME//64 - 16
PATIENCE   = 8192    # clocks that a full wire may keep local frames out.


# RoCETurnaround -----------------------------------------------------------------------------------

class RoCETurnaround(LiteXModule):
    """Lets local frames in between those of the wire, when the wire's FIFO has room for what may come meanwhile.

    Where both have frames waiting they take turns. A wire with a beat in every clock leaves no such room. When it has kept a
    local frame out for PATIENCE clocks, local frames have their turns all the same, for as many beats; frames of the wire
    that find no room then are lost.

    Endpoints
    ---------
    wire : roce_wire_description(512), in
        Always accepted; but for a wire that is full for long, the local side takes at most the clocks that it leaves idle.
    local : roce_wire_description(512), in
        Frames without gaps inside, out of a store-and-forward FIFO: what the wire's FIFO is dimensioned for.
    source : roce_wire_description(512), out
        Valid only.
    is_local : Signal, out
        With source: the beat is of a local frame.
    lost : Signal, out
        One clock for each frame of the wire that found no room: dropped whole, or cut and marked at its last beat.

    Latency: none when nothing waits, one beat a clock.
    Errors : `lost`.
    """
    def __init__(self, dw=DATA_WIDTH):
        self.wire   = wire   = stream.Endpoint(roce_wire_description(dw))
        self.local  = local  = stream.Endpoint(roce_wire_description(dw))
        self.source = source = stream.Endpoint(roce_wire_description(dw))
        self.is_local = Signal()
        self.lost     = Signal()

        # # #

        self.fifo = fifo = BypassFIFO(roce_wire_description(dw), WIRE_BEATS, frames=True)
        self.submodules += counted(fifo, "beats of the wire: `full` and `cut` stop them before")
        inside_wire, inside_local = Signal(), Signal()
        take_local, may_local = Signal(), Signal()
        waited, due, was_local = Signal(max=PATIENCE + 1), Signal(), Signal()

        # The wire's last place is for the beat that ends a frame, its own or that of a cut one.
        first, dropping, full, cut = Signal(reset=1), Signal(), Signal(), Signal()
        self.comb += [
            wire.ready.eq(1),
            wire.connect(fifo.sink, omit={"valid", "ready"}),
            full.eq(fifo.level >= WIRE_BEATS - 1),
            cut.eq(full & ~first & ~wire.last),
            fifo.sink.valid.eq(wire.valid & ~dropping & ~(full & first)),
            If(cut,
                fifo.sink.last.eq(1),
                fifo.sink.last_be.eq(1 << dw//8 - 1),
                fifo.sink.error.eq(2**(dw//8) - 1),
            ),
            self.lost.eq(wire.valid & ~dropping & full & (first | ~wire.last)),
        ]
        self.sync += If(wire.valid,
            first.eq(wire.last),
            dropping.eq(~wire.last & (dropping | self.lost)),
        )
        self.comb += [
            take_local.eq(inside_local | (~inside_wire & local.valid & may_local)),
            may_local.eq((fifo.level == 0) | (~was_local & ((fifo.level <= LEVEL) | due))),
            self.is_local.eq(take_local),
            If(take_local,
                local.connect(source, omit={"ready"}),
                local.ready.eq(1),
            ).Else(
                fifo.source.connect(source, omit={"ready"}),
                fifo.source.ready.eq(1),
            ),
        ]
        self.sync += If(source.valid,
            If(take_local, inside_local.eq(~source.last)).Else(inside_wire.eq(~source.last)),
            was_local.eq(take_local),
        )
        # What local frames waited they may have later, while they are due.
        self.sync += [
            If(due,
                If(take_local | ~local.valid, waited.eq(waited - 1)),
                If(waited == 1, due.eq(0)),
            ).Elif(take_local,
                waited.eq(0),
            ).Elif(local.valid,
                waited.eq(waited + 1),
                If(waited == PATIENCE - 1, due.eq(1)),
            )
        ]
