# SPDX-License-Identifier: BSD-2-Clause
"""Joins frames to the own MAC with those from the wire, so that two local QPs can talk."""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.common import DATA_WIDTH, MAX_FRAME, roce_wire_description
from roce_soc.table import BypassFIFO

WIRE_BEATS = 128     # of the FIFO that holds the wire back while a local frame passes.
LEVEL      = WIRE_BEATS - MAX_FRAME//64 - 16


# RoCETurnaround -----------------------------------------------------------------------------------

class RoCETurnaround(LiteXModule):
    """Lets a local frame in at a frame boundary of the wire, when the wire's FIFO has room for what may come meanwhile.

    Endpoints
    ---------
    wire : roce_wire_description(512), in
        Always accepted; the local side takes at most the clocks that the wire leaves idle.
    local : roce_wire_description(512), in
        Frames without gaps inside, out of a store-and-forward FIFO: what the wire's FIFO is dimensioned for.
    source : roce_wire_description(512), out
        Valid only.
    is_local : Signal, out
        With source: the beat is of a local frame.

    Latency: none when nothing waits, one beat a clock.
    """
    def __init__(self, dw=DATA_WIDTH):
        self.wire   = wire   = stream.Endpoint(roce_wire_description(dw))
        self.local  = local  = stream.Endpoint(roce_wire_description(dw))
        self.source = source = stream.Endpoint(roce_wire_description(dw))
        self.is_local = Signal()

        # # #

        self.fifo = fifo = BypassFIFO(roce_wire_description(dw), WIRE_BEATS, frames=True)
        inside_wire, inside_local = Signal(), Signal()
        take_local = Signal()
        self.comb += [
            wire.connect(fifo.sink, omit={"ready"}),
            wire.ready.eq(1),
            take_local.eq(inside_local | (~inside_wire & local.valid & (fifo.level <= LEVEL))),
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
        )
