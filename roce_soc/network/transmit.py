# SPDX-License-Identifier: BSD-2-Clause
"""Transmit side: whole frames per class, taken in turns at frame boundaries, padded, turned round or sent.

Ref: IEEE 802.3 clause 3.2.8 (padding); InfiniBand Architecture vol. 1 ch. 9.7.5.1.2 (acknowledges first).
Not supported: more than one lossless class.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc import opcodes
from roce_soc.bounds import Bound
from roce_soc.common import DATA_BYTES, DATA_WIDTH, MAX_FRAME, roce_wire_description, tx_sent_description
from roce_soc.packet.align import LANE_BITS, expand, lanes_to
from roce_soc.packet.encoder import frame_params
from roce_soc.table import clocked_port

MAX_BEATS         = -(-MAX_FRAME//DATA_BYTES)
MAX_CONTROL_BEATS = 2
CLASSES           = CONTROL, ROCE, SLOW = range(3)
LOOP_ROOM         = 2*MAX_BEATS + 16     # what has begun before the encoder heard of it, and one more frame.
LOOP_CLOCKS       = 512                  # that local frames may hold the encoder back in one go, and then may not.


# WholeFrameFIFO -----------------------------------------------------------------------------------

class WholeFrameFIFO(LiteXModule):
    """Keeps beats until their frame is whole; gives it without a gap, or forgets it.

    Parameters
    ----------
    depth : int
        Beats, a power of two.
    reserves : bool
        Beats are taken off `free` by `reserve`, ahead; False: as they are written.

    Endpoints
    ---------
    sink : {data, lane}, in
        No ready: the writer looks at `free`. `lane` is the last valid lane, on last.
    discard : Signal, in
        With last: the frame is forgotten.
    reserve : {beats}, in
        Takes beats off `free` ahead of their writing.
    unused : Signal, in
        One reserved beat is not written.
    free : Signal, out
        Beats neither stored nor reserved.
    source : {data, lane}, out

    Latency: first beat out in the clock of the last beat in, a clock later where both are one; one beat a clock.
    Errors : none; the writer looks at `free` (a bound where it need not).
    """
    def __init__(self, depth, reserves=True, dw=DATA_WIDTH):
        if depth < 4 or depth & (depth - 1):
            raise ValueError(f"depth must be a power of two of at least 4, not {depth!r}")
        layout       = [("data", dw), ("lane", LANE_BITS)]
        self.sink    = sink    = stream.Endpoint(layout)
        self.source  = source  = stream.Endpoint(layout)
        self.reserve = reserve = stream.Endpoint([("beats", 7)])
        self.discard = Signal()
        self.unused  = Signal()
        self.free    = free    = Signal(max=depth + 1, reset=depth)

        # # #

        bits    = log2_int(depth)
        storage = Memory(dw + LANE_BITS + 2, depth)
        write   = storage.get_port(write_capable=True)
        read    = clocked_port(storage, has_re=True)
        self.specials += storage, write, read
        produce, commit, consume = Signal(bits + 1), Signal(bits + 1), Signal(bits + 1)
        stored  = Signal(max=depth + 1)       # beats of the frame that is written.
        frames  = Signal(max=depth + 1)       # whole frames whose last beat has not left.
        some    = Signal()                    # there are any.
        ends, drops = Signal(), Signal()
        held    = Signal(bits + 1)            # beats that are not in the RAM's output yet.
        self.submodules += Bound(sink.valid & (held == depth), "beats: who writes has kept places by `free`", sink)
        self.comb += [
            held.eq(produce - consume),
            sink.ready.eq(1),
            reserve.ready.eq(1),
            ends.eq(sink.valid & sink.last),
            drops.eq(ends & self.discard),
            write.we.eq(sink.valid),
            write.adr.eq(produce),
            write.dat_w.eq(Cat(sink.data, sink.lane, stored == 0, sink.last)),
        ]

        # Read: the RAM's output holds until its beat is taken. The first beat of a frame that is not whole yet may
        # stand there; a beat that is read in the clock of its writing comes past the RAM.
        loaded, fetch, past = Signal(), Signal(), Signal()
        taken, left, back   = Signal(7), Signal(), Signal(max=depth + 1)
        passed = Signal(len(write.dat_w))
        self.comb += [
            left.eq(source.valid & source.ready),
            # Of a frame that is dropped nothing is fetched, nor of the one behind it in that clock.
            fetch.eq(((consume != commit) | (((consume != produce) | sink.valid) & ~drops)) & (~loaded | left)),
            read.re.eq(fetch),
            read.adr.eq(consume),
            source.valid.eq(loaded & (some | (ends & ~self.discard))),
            Cat(source.data, source.lane, source.first, source.last).eq(Mux(past, passed, read.dat_r)),
            taken.eq(Mux(reserve.valid, reserve.beats, 0) if reserves else sink.valid),
            back.eq(Mux(drops, stored + 1, 0)),
        ]
        self.sync += [
            If(sink.valid,
                produce.eq(produce + 1),
                stored.eq(stored + 1),
                If(sink.last,
                    stored.eq(0),
                    If(self.discard, produce.eq(commit)).Else(commit.eq(produce + 1)),
                ),
            ),
            frames.eq(frames + (ends & ~self.discard) - (left & source.last)),
            some.eq((ends & ~self.discard) | (frames > 1) | ((frames == 1) & ~(left & source.last))),
            If(fetch,
                consume.eq(consume + 1),
                past.eq(sink.valid & (consume == produce)),
                passed.eq(write.dat_w),
            ),
            loaded.eq(fetch | (loaded & ~left)),
            # Its first beat had been fetched.
            If(drops & ~some,
                loaded.eq(0),
                consume.eq(commit),
            ),
            # A beat's place is free when it has left.
            free.eq(free - taken + back + left + self.unused),
        ]

# ControlFIFO --------------------------------------------------------------------------------------

class ControlFIFO(LiteXModule):
    """Frames without payload, whose beats come clock after clock: they need not be whole to leave.

    Parameters
    ----------
    depth : int
        Beats, at least 4.

    Endpoints
    ---------
    sink, reserve, unused, free, source : as WholeFrameFIFO.

    Latency: 0 clocks while it is empty; one beat a clock.
    Errors : none; as WholeFrameFIFO.
    """
    def __init__(self, depth, dw=DATA_WIDTH):
        if depth < 4:
            raise ValueError(f"depth must be at least 4, not {depth!r}")
        layout       = [("data", dw), ("lane", LANE_BITS)]
        self.sink    = sink    = stream.Endpoint(layout)
        self.source  = source  = stream.Endpoint(layout)
        self.reserve = reserve = stream.Endpoint([("beats", 7)])
        self.unused  = Signal()
        self.free    = free    = Signal(max=depth + 1, reset=depth)

        # # #

        self.fifo = fifo = stream.SyncFIFO(layout, depth)
        straight  = Signal()
        self.submodules += Bound(fifo.sink.valid & ~fifo.sink.ready, "beats: who writes has kept places by `free`", sink)
        self.comb += [
            sink.ready.eq(1),
            reserve.ready.eq(1),
            straight.eq(~fifo.source.valid),
            fifo.sink.valid.eq(sink.valid & ~(straight & source.ready)),
            fifo.sink.first.eq(sink.first),
            fifo.sink.last.eq(sink.last),
            fifo.sink.payload.eq(sink.payload),
            fifo.source.ready.eq(source.ready),
            source.valid.eq(sink.valid | fifo.source.valid),
        ]
        for name in ("data", "lane", "first", "last"):
            self.comb += getattr(source, name).eq(Mux(straight, getattr(sink, name), getattr(fifo.source, name)))
        self.sync += free.eq(free - Mux(reserve.valid, reserve.beats, 0) + (source.valid & source.ready) + self.unused)

# SlowIntake ---------------------------------------------------------------------------------------

class SlowIntake(LiteXModule):
    """Slow-path frames for a WholeFrameFIFO: last lane as a number, lanes behind it zero.

    Latency: 2 clocks, one beat a clock.
    Errors : none.
    """
    def __init__(self, fifo, dw=DATA_WIDTH):
        self.sink = sink = stream.Endpoint(roce_wire_description(dw))

        # # #

        s1      = Record([("valid", 1), ("last", 1), ("error", 1), ("data", dw), ("lane", LANE_BITS)])
        mask    = Signal(dw//8)
        self.comb += [
            # Two beats may be on their way.
            sink.ready.eq(fifo.free > 3),
            mask.eq(Mux(s1.last, lanes_to(s1.lane), (1 << dw//8) - 1)),
        ]
        self.sync += [
            s1.valid.eq(sink.valid & sink.ready),
            s1.last.eq(sink.last),
            s1.error.eq(sink.error != 0),
            s1.data.eq(sink.data),
            [s1.lane[i].eq((sink.last_be & sum(1 << n for n in range(dw//8) if n >> i & 1)) != 0) for i in range(LANE_BITS)],
            fifo.sink.valid.eq(s1.valid),
            fifo.sink.last.eq(s1.last),
            fifo.sink.data.eq(s1.data & expand(mask)),
            fifo.sink.lane.eq(s1.lane),
            fifo.discard.eq(s1.error),
        ]

# RoCETransmit -------------------------------------------------------------------------------------

class RoCETransmit(LiteXModule):
    """A FIFO per class; control first, RoCE and slow path in turns; never starves inside a frame.

    RoCE and slow path are stored whole before they leave. Control frames have no payload to wait for.
    Frames to the own MAC, of either kind, have a FIFO and a way of their own. Where they cannot leave as fast as they come
    they hold the encoder back, at most every second clock; what then finds no room is lost, as on a wire.

    Parameters
    ----------
    roce_beats, control_beats, slow_beats, loop_beats : int
        Beats of the FIFOs, powers of two. RoCE and loop hold at least 4 largest frames, slow path one of its own.

    Endpoints
    ---------
    sink : {data, bytes}, {fields of frame_params}, in
        Frames of ICRCInserter; no ready. Dropped when err is not 0 on the last beat. A marker is only returned.
    reserve : {beats, control}, in
        A frame's beats, as it begins in the encoder.
    room, room_control : Signal, out
        One more frame of the class may begin.
    slow_sink : roce_wire_description(512), in
        Slow path; a frame with error is dropped.
    source : roce_wire_description(512), out
        To the PHY; no gap inside a frame while ready stays 1.
    loop : roce_wire_description(512), out
        Frames to the own MAC, for the receive side.
    sent : tx_sent_description(), out
        One pulse a frame or marker in the encoder's order, when the frame is stored whole; no ready.
    pause : Signal(3), in
        CONTROL, ROCE, SLOW: no new frame of the class begins.

    Latency: last beat in to first beat out 1 clock (of a frame of one beat 2), control 1 clock; one beat a clock, none
        between frames.
    Errors : frames with err count in `dropped`, frames to the own MAC without room in `lost`.
    """
    def __init__(self, roce_beats=512, control_beats=32, slow_beats=128, loop_beats=512, dw=DATA_WIDTH):
        for name, beats in (("roce_beats", roce_beats), ("loop_beats", loop_beats)):
            if beats < 4*MAX_BEATS:
                raise ValueError(f"{name} must be at least {4*MAX_BEATS} (4 largest frames), not {beats!r}")
        # Stream Endpoints.
        self.sink    = sink = stream.Endpoint(stream.EndpointDescription([("data", dw), ("bytes", 7)], frame_params()))
        self.reserve = reserve = stream.Endpoint([("beats", 7), ("control", 1)])
        self.source  = stream.Endpoint(roce_wire_description(dw))
        self.loop    = stream.Endpoint(roce_wire_description(dw))
        self.sent    = sent = stream.Endpoint(tx_sent_description())
        self.pause   = Signal(len(CLASSES))
        self.room, self.room_control = Signal(), Signal()
        self.dropped = Signal()
        self.lost    = Signal()
        self.fifos   = fifos = [ControlFIFO(control_beats, dw), WholeFrameFIFO(roce_beats, dw=dw), WholeFrameFIFO(slow_beats, False, dw)]
        self.submodules += fifos
        self.loop_fifo  = loop_fifo = WholeFrameFIFO(loop_beats, False, dw)
        self.slow      = SlowIntake(fifos[SLOW], dw)
        self.slow_sink = self.slow.sink

        # # #

        # Local frames hold the encoder back, for every frame, while their FIFO is short of room: LOOP_CLOCKS, then others
        # have as many without them.
        held, spent, short = Signal(), Signal(), Signal()
        credit = Signal(max=LOOP_CLOCKS + 1, reset=LOOP_CLOCKS)
        self.comb += held.eq(short & ~spent)
        self.sync += [
            short.eq(loop_fifo.free < LOOP_ROOM),
            If(held,
                credit.eq(credit - 1),
                If(credit == 1, spent.eq(1)),
            ).Elif(credit != LOOP_CLOCKS,
                credit.eq(credit + 1),
            ).Else(
                spent.eq(0),
            ),
        ]

        # Frames go to the FIFO of their class; the encoder is told what happened.
        turns, lose, losing = Signal(), Signal(), Signal()
        self.comb += [
            sink.ready.eq(1),
            reserve.ready.eq(1),
            turns.eq(sink.valid & ~sink.marker & sink.loop),
            lose.eq(Mux(sink.first, loop_fifo.free < MAX_BEATS, losing)),
            loop_fifo.sink.valid.eq(turns & ~lose),
            loop_fifo.sink.first.eq(sink.first),
            loop_fifo.sink.last.eq(sink.last),
            loop_fifo.sink.data.eq(sink.data),
            loop_fifo.sink.lane.eq(sink.bytes - 1),
            loop_fifo.discard.eq(sink.err != 0),
            self.room.eq((fifos[ROCE].free >= MAX_BEATS) & ~held),
            self.room_control.eq((fifos[CONTROL].free >= MAX_CONTROL_BEATS) & ~held),
        ]
        for number, control in ((CONTROL, 1), (ROCE, 0)):
            fifo = fifos[number]
            self.comb += [
                fifo.reserve.valid.eq(reserve.valid & (reserve.control == control)),
                fifo.reserve.beats.eq(reserve.beats),
                fifo.sink.valid.eq(sink.valid & ~sink.marker & ~sink.loop & (sink.control == control)),
                fifo.unused.eq(turns & (sink.control == control)),
                fifo.sink.first.eq(sink.first),
                fifo.sink.last.eq(sink.last),
                fifo.sink.data.eq(sink.data),
                fifo.sink.lane.eq(sink.bytes - 1),
            ]
        self.comb += fifos[ROCE].discard.eq(sink.err != 0)
        self.sync += [
            sent.valid.eq(sink.valid & sink.last),
            sent.first.eq(1),
            sent.last.eq(1),
            [getattr(sent, n).eq(getattr(sink, n)) for n in ("owner", "marker", "qpi", "psn", "generation")],
            sent.err.eq(Mux(sink.marker, 0, sink.err)),
            self.dropped.eq(sink.valid & sink.last & ~sink.marker & (sink.err != 0)),
            losing.eq(lose),
            self.lost.eq(turns & sink.last & lose & (sink.err == 0)),
        ]

        # Choice at frame boundaries: control first, the other two in turns.
        inside, kept = Signal(), Signal(2)
        choice       = Signal(2)
        turn         = Signal()              # slow path is next.
        able         = Signal(len(CLASSES))
        chosen       = stream.Endpoint(fifos[ROCE].source.description)
        self.comb += [
            able.eq(Cat(*[f.source.valid for f in fifos]) & ~self.pause),
            If(inside,
                choice.eq(kept),
            ).Elif(able[CONTROL],
                choice.eq(CONTROL),
            ).Elif(able[SLOW] & (turn | ~able[ROCE]),
                choice.eq(SLOW),
            ).Else(
                choice.eq(ROCE),
            ),
            [If((choice == n) & (inside | able[n]), fifos[n].source.connect(chosen)) for n in CLASSES],
        ]
        moved = Signal()
        self.comb += moved.eq(chosen.valid & chosen.ready)
        self.sync += If(moved,
            inside.eq(~chosen.last),
            kept.eq(choice),
            If(choice != CONTROL, turn.eq(choice == ROCE)),
        )

        # Ways out, a register each; short frames are padded with the zeros behind their end.
        least = opcodes.ETHERNET_MIN_BYTES - 1
        for out, frames in ((self.source, chosen), (self.loop, loop_fifo.source)):
            lane = Signal(LANE_BITS)
            self.comb += [
                lane.eq(Mux(frames.first & (frames.lane < least), least, frames.lane)),
                frames.ready.eq(~out.valid | out.ready),
                out.error.eq(0),
            ]
            self.sync += If(~out.valid | out.ready,
                out.valid.eq(frames.valid),
                out.first.eq(frames.first),
                out.last.eq(frames.last),
                out.data.eq(frames.data),
                out.last_be.eq(Mux(frames.last, Constant(1, dw//8) << lane, 0)),
            )
