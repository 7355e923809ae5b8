# SPDX-License-Identifier: BSD-2-Clause
"""Frames between an engine's clock and the AXI-Stream ports of a 100G core.

::

    engine clock                        line clock eth_tx = eth_rx, 322.27 MHz
    sink ─► guard ─► FIFO (stored) ─────► end ─► skid ─► gate ─► register ─► core
    source ◄─ register ◄─ FIFO (admits whole frames) ◄─ gate ◄─ two registers ◄─ core

The line's clock has no reset: the core goes on when the engine is reset. The FIFOs are emptied by the rule of ClockLink; a
frame on its way to the line ends with an error, one that arrives is dropped to its end.

Ref: AMD PG203 (UltraScale+ Devices Integrated 100G Ethernet), "AXI4-Stream", "Transmit debug".
"""
from migen import *

from litex.gen import *

from litex.soc.interconnect import stream

from roce_soc.common import DATA_BYTES, DATA_WIDTH, roce_wire_description
from roce_soc.crossing import FrameEnd
from roce_soc.phy.common import MAX_FRAME
from roce_soc.phy.frames import FrameFIFO, FrameGate, FrameGuard, encode, line_description

MAX_BEATS = (MAX_FRAME + DATA_BYTES - 1)//DATA_BYTES


class LineSide(LiteXModule):
    """A core's stream port: valid, last, data, keep, error, and ready where the core may stall.

    Latency: none. Errors: none of its own.
    """
    def add_line(self):
        self.valid = Signal()
        self.last  = Signal()
        self.data  = Signal(DATA_WIDTH)
        self.keep  = Signal(DATA_BYTES)
        self.error = Signal()
        self.ready = Signal()

# LineTransmit -------------------------------------------------------------------------------------

class LineTransmit(LineSide):
    """Frames of the engine to the core: refused if too short or long, stored, then sent without a hole.

    A transmit frame starts when it is complete in the FIFO, since a hole would kill the core's transmitter.

    Parameters
    ----------
    depth : int
        Beats of the FIFO, a power of two above MAX_BEATS + FrameFIFO.SLACK.
    link : ClockLink
        From the engine's clock to eth_tx.

    Endpoints
    ---------
    sink : roce_wire_description(512), in, clock of the engine

    Signals: line side as LineSide, ready is an input; `up` (in: frames may start), `in_reset` (in: the core takes nothing);
    `passed`, `dropped` (out, line clock, one clock a frame), `refused` (out, engine clock).

    Latency: 9 to 11 line clocks from the last beat in to the first out.
    Errors : link down: dropped; FrameGuard's rules: refused; cut by a reset of the engine: `error` on its last beat.
    """
    def __init__(self, depth, link):
        layout = line_description(DATA_WIDTH)
        # Stream Endpoints.
        self.sink = stream.Endpoint(roce_wire_description(DATA_WIDTH))
        self.add_line()
        self.up       = Signal()
        self.in_reset = Signal()
        self.passed   = Signal()
        self.dropped  = Signal()
        self.refused  = Signal()

        # # #

        self.guard = ClockDomainsRenamer(link.near.domain)(FrameGuard(self.sink.description, layout, MAX_BEATS))
        self.fifo  = fifo = ClockDomainsRenamer({"write": link.near.cross, "read": link.far.cross})(
            FrameFIFO(layout, depth, MAX_BEATS, store_and_forward=True))
        self.end   = end = ClockDomainsRenamer("eth_tx")(FrameEnd(layout))
        self.skid  = ClockDomainsRenamer("eth_tx")(stream.Buffer(layout, pipe_valid=False, pipe_ready=True))
        self.gate  = gate = ClockDomainsRenamer("eth_tx")(FrameGate(layout, terminate=False))
        self.comb += [
            self.sink.connect(self.guard.sink),
            self.guard.source.connect(fifo.sink, omit={"valid", "ready"}),
            fifo.sink.valid.eq(self.guard.source.valid & ~link.near.stop),
            self.guard.source.ready.eq(fifo.sink.ready & ~link.near.stop),
            fifo.source.connect(end.sink, omit={"valid", "ready"}),
            end.sink.valid.eq(fifo.source.valid & ~link.far.stop),
            fifo.source.ready.eq(end.sink.ready & ~link.far.stop),
            end.stop.eq(link.far.stop),
            end.source.connect(self.skid.sink),
            self.skid.source.connect(gate.sink),
            gate.open.eq(self.up),
            gate.cut.eq(self.in_reset),
            gate.source.ready.eq(~self.valid | self.ready),
        ]
        # Output register, emptied while the transmitter is in reset.
        self.sync.eth_tx += [
            If(gate.source.ready,
                self.valid.eq(gate.source.valid),
                self.data.eq(gate.source.data),
                self.last.eq(gate.source.last),
                self.error.eq(gate.source.last & gate.source.error),
                self.keep.eq(Cat(*[~gate.source.last | (gate.source.end >= lane) for lane in range(DATA_BYTES)])),
            ),
            If(self.in_reset, self.valid.eq(0)),
        ]
        # Status.
        self.comb += [
            self.passed.eq(gate.passed),
            self.dropped.eq(gate.dropped),
            self.refused.eq(self.guard.refused),
        ]

# LineReceive --------------------------------------------------------------------------------------

class LineReceive(LineSide):
    """Frames of the core to the engine: each enters the FIFO as a whole, or is dropped and counted.

    Nothing can wait here, so a frame is admitted only if the FIFO has room for the longest one.

    Parameters
    ----------
    depth, link : as LineTransmit

    Endpoints
    ---------
    source : roce_wire_description(512), out, clock of the engine
        ready is ignored; `error` all ones on the last beat of a frame to be discarded.

    Signals: line side as LineSide, all inputs, no ready; `open` (in: frames may begin), `lost` (in: the core gives no more
    beats); `passed`, `failed` (with an error), `dropped` (while down), `full` (no room) (out, line clock, one clock a frame).

    Latency: 3 line clocks and 5 to 6 engine clocks from a beat in to the same beat out.
    Errors : a frame cut by `lost` or longer than MAX_BEATS ends with `error`.
    """
    def __init__(self, depth, link):
        layout = line_description(DATA_WIDTH)
        # Stream Endpoints.
        self.source = source = stream.Endpoint(roce_wire_description(DATA_WIDTH))
        self.add_line()
        self.open    = Signal()
        self.lost    = Signal()
        self.passed  = Signal()
        self.failed  = Signal()
        self.dropped = Signal()
        self.full    = Signal()

        # # #

        self.gate = gate = ClockDomainsRenamer("eth_rx")(FrameGate(layout, terminate=True))
        self.fifo = fifo = ClockDomainsRenamer({"write": link.far.cross, "read": link.near.cross})(
            FrameFIFO(layout, depth, MAX_BEATS, store_and_forward=False))

        # Line side. First register: as it comes, the end as one bit. Second: the end as a number.
        first, one_hot, second = stream.Endpoint(layout), Signal(DATA_BYTES), gate.sink
        self.sync.eth_rx += [
            first.valid.eq(self.valid),
            first.last.eq(self.last),
            first.data.eq(self.data),
            first.error.eq(self.last & self.error),
            one_hot.eq(self.keep & ~Cat(self.keep[1:], 0)),
            second.valid.eq(first.valid),
            second.last.eq(first.last),
            second.data.eq(first.data),
            second.error.eq(first.error),
            second.end.eq(Cat(*encode(one_hot))),
        ]
        # A frame above the longest is cut, though the core should not let one through.
        beats, long, was_lost = Signal(max=MAX_BEATS + 2), Signal(), Signal()
        self.comb += [
            long.eq((beats == (MAX_BEATS - 1)) & second.valid & ~second.last),
            gate.open.eq(self.open & fifo.room),
            gate.cut.eq(self.lost | was_lost | long | link.far.stop),
            # The core falls silent inside a frame: both when it goes down and when it comes back a new one begins.
            gate.forget.eq(self.lost ^ was_lost),
            gate.source.connect(fifo.sink, omit={"valid"}),
            fifo.sink.valid.eq(gate.source.valid & ~link.far.stop),
        ]
        self.sync.eth_rx += [
            was_lost.eq(self.lost),
            If(self.lost | (second.valid & second.last),
                beats.eq(0),
            ).Elif(second.valid & (beats != MAX_BEATS),
                beats.eq(beats + 1),
            )
        ]

        # Engine side.
        engine  = getattr(self.sync, link.near.domain)
        engine += [
            source.valid.eq(fifo.source.valid & ~link.near.stop),
            source.first.eq(fifo.source.first),
            source.last.eq(fifo.source.last),
            source.data.eq(fifo.source.data),
            source.last_be.eq(Cat(*[fifo.source.last & (fifo.source.end == lane) for lane in range(DATA_BYTES)])),
            source.error.eq(Replicate(fifo.source.last & fifo.source.error, DATA_BYTES)),
        ]

        # Status.
        self.comb += [
            fifo.source.ready.eq(~link.near.stop),
            self.passed.eq(gate.passed),
            self.failed.eq(gate.failed),
            self.full.eq(gate.dropped & self.open & ~gate.cut),
            self.dropped.eq(gate.dropped & ~self.full),
        ]
