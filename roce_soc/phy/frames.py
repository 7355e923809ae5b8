# SPDX-License-Identifier: BSD-2-Clause
"""Frame handling between an engine and a 100G MAC: gates, length guard, FIFO between clocks.

The MAC cannot wait: received beats come when they come, and a transmit frame with a hole is lost.
So frames enter and leave whole, or not at all and counted.
"""
from functools import reduce
from operator import or_, xor

from migen import *

from litex.gen import *

from litex.soc.interconnect import stream
from litex.soc.interconnect.stream import EndpointDescription

from roce_soc.phy.common import MIN_FRAME

# Layout -------------------------------------------------------------------------------------------

def line_description(dw):
    """Beats at the MAC: `end` is the lane of the last valid byte and `error` discards the frame; on `last` only."""
    return EndpointDescription([("data", dw), ("end", log2_int(dw//8)), ("error", 1)])


def encode(one_hot):
    """Position of the set bit of `one_hot`, as a list of bits, first the lowest."""
    width = log2_int(len(one_hot))
    return [reduce(or_, [one_hot[i] for i in range(len(one_hot)) if i >> n & 1]) for n in range(width)]

# FrameGate ----------------------------------------------------------------------------------------

class FrameGate(LiteXModule):
    """Lets whole frames pass while `open` at their first beat; drops the others.

    The MAC gives no more beats once its receiver goes down, and takes none once its transmitter does,
    maybe in the middle of a frame. `cut` ends such a frame: a receive gate (`terminate`) puts a beat with
    `last` and `error` behind it, since the FIFO already holds its start; a transmit gate drops the rest.

    Parameters
    ----------
    layout : EndpointDescription
        With fields `data`, `error` and one of `last_be`, `end`.
    terminate : bool
        See above. A terminating gate never stalls its sink, and its source must always be ready.

    Endpoints
    ---------
    sink, source : layout, in and out
        Same beats; no register on the way.

    Signals: `open`, `cut` (in, levels; `cut` implies that no frame begins), `forget` (in: with `cut`, the rest of the frame
    will never come, what comes next is a new frame), `passed`, `failed`, `dropped` (out, one clock a frame:
    ended, ended with an error, kept out or cut short by a transmit gate).

    Latency: none.
    Errors : frames are counted by the owner of `dropped` and `failed`.
    """
    def __init__(self, layout, terminate):
        # Stream Endpoints.
        self.sink   = sink   = stream.Endpoint(layout)
        self.source = source = stream.Endpoint(layout)
        self.open    = Signal()
        self.cut     = Signal()
        self.forget  = Signal()
        self.passed  = Signal()
        self.failed  = Signal()
        self.dropped = Signal()

        # # #

        inside  = Signal()         # A frame was offered and has not ended.
        passing = Signal()         # Its beats pass.
        fresh   = Signal(reset=1)  # Its first beat was not taken yet.
        accept  = Signal()
        close   = Signal()         # A passing frame is cut in this clock.
        self.comb += [
            accept.eq(Mux(inside, passing, self.open) & ~self.cut),
            close.eq(inside & passing & self.cut),
        ]

        # Data-Path.
        self.comb += [
            sink.connect(source, omit={"valid", "ready", "first"}),
            source.valid.eq(sink.valid & accept),
            source.first.eq(fresh),
            sink.ready.eq(1 if terminate else source.ready | ~accept),
        ]
        if terminate:
            end = source.last_be if hasattr(source, "last_be") else source.end
            self.comb += If(close,
                source.valid.eq(1),
                source.last.eq(1),
                end.eq(1),
                source.error.eq(2**len(source.error) - 1),
            )

        # Control-Path.
        self.sync += [
            If(sink.valid,
                inside.eq(~(sink.last & sink.ready)),
                If(~inside, passing.eq(accept)),
                If(sink.ready, fresh.eq(sink.last)),
            ),
            If(self.cut,
                passing.eq(0),
                If(self.forget, inside.eq(0), fresh.eq(1)),
            )
        ]

        # Status.
        self.comb += [
            self.passed.eq(source.valid & source.ready & source.last),
            self.failed.eq(self.passed & (source.error != 0)),
            self.dropped.eq((sink.valid & ~inside & ~accept) | (0 if terminate else close)),
        ]

# FrameGuard ---------------------------------------------------------------------------------------

class FrameGuard(LiteXModule):
    """Keeps frames within the MAC's limits, turns `last_be` into `end`, and never waits for ever.

    Shorter than MIN_FRAME could lock the MAC up: dropped. More beats than max_beats would not fit the
    FIFO behind: the frame ends there with `error`, its rest is dropped. Padding is the sender's task.
    When the source does not take a beat for `patience` clocks (the line's clock may stand still) the frame is ended
    with `error`, its rest and all further frames are dropped until the source moves again.

    Parameters
    ----------
    sink_layout : roce_wire_description(dw)
    source_layout : line_description(dw)
    max_beats : int
        1 or more.
    patience : int
        Clocks, 1 or more.

    Endpoints
    ---------
    sink, source : as the layouts; in and out
        The beat that ends a frame for lack of patience changes `last` and `error` while it waits.

    Signals: `refused` (out, one clock a frame that was dropped or cut).

    Latency: 1 clock; one beat per clock.
    Errors : `refused`.
    """
    def __init__(self, sink_layout, source_layout, max_beats, patience=2**16 - 1):
        if max_beats < 1:
            raise ValueError(f"max_beats must be 1 or more, not {max_beats!r}")
        if patience < 1:
            raise ValueError(f"patience must be 1 clock or more, not {patience!r}")
        # Stream Endpoints.
        self.sink    = sink   = stream.Endpoint(sink_layout)
        self.source  = source = stream.Endpoint(source_layout)
        self.refused = Signal()

        # # #

        beats   = Signal(max=max_beats + 1)
        rest    = Signal()  # Behind a cut.
        short   = Signal()
        full    = Signal()
        move    = Signal()
        stuck   = Signal()
        waited  = Signal(max=patience + 1)
        self.comb += [
            move.eq(~source.valid | source.ready),
            stuck.eq((waited == patience) & ~move),
            sink.ready.eq(move | stuck),
            short.eq((beats == 0) & sink.last & (sink.last_be[:MIN_FRAME - 1] != 0)),
            full.eq((beats == (max_beats - 1)) & ~sink.last),
            self.refused.eq((sink.valid & sink.ready & ~rest & (short | full | stuck)) | (stuck & ~source.last)),
        ]
        self.sync += [
            If(move, waited.eq(0)).Elif(waited != patience, waited.eq(waited + 1)),
            If(move,
                source.valid.eq(sink.valid & ~rest & ~short),
                If(sink.valid,
                    source.first.eq(beats == 0),
                    source.last.eq(sink.last | full),
                    source.data.eq(sink.data),
                    source.end.eq(Cat(*encode(sink.last_be))),
                    source.error.eq(full | (sink.last & (sink.error != 0))),
                    rest.eq((rest | full) & ~sink.last),
                )
            ).Elif(stuck,
                If(~source.last,
                    source.last.eq(1),
                    source.error.eq(1),
                    rest.eq(1),
                ),
                If(sink.valid, rest.eq(~sink.last)),
            ),
            If(sink.valid & sink.ready,
                If(sink.last,
                    beats.eq(0),
                ).Elif(move & ~full & ~rest,
                    beats.eq(beats + 1),
                )
            )
        ]

# FrameFIFO ----------------------------------------------------------------------------------------

class FrameFIFO(LiteXModule):
    """Frames from clock domain "write" to "read" through one memory.

    ::

        write:  sink ─► memory ◄─ produce ──gray──────────► read: prefetch ─► source
                frames, beats written ─────gray─────────►        (gate at first beats)
                level, room ◄───────────────gray── consume ◄──────┘

    Pointers cross as gray codes, so any clock ratio is right. Both domains must be reset by the rule of a ClockLink, and
    nothing moves while it stops a side.

    Parameters
    ----------
    layout : EndpointDescription
    depth : int
        Beats, power of two.
    max_beats : int
        Beats of the longest frame; depth - SLACK at most.
    store_and_forward : bool
        True: a frame leaves after its last beat came, then without holes while source.ready is high.
        False: beats leave as they come; use `room` to admit frames.

    Endpoints
    ---------
    sink : layout, in, clock "write"
        ready falls when the memory is full but for SLACK beats; beats given against ready are lost.
    source : layout, out, clock "read"

    Signals: `room` (out, write clock): a frame of max_beats that begins now fits as a whole.

    Latency: 5 to 6 read clocks from a beat (store_and_forward: 7 to 8 from the last beat) to the source.
    Errors : none; the owner judges `room`.
    """
    SLACK = 8   # Beats that may be written while level, room and ready follow.
    DELAY = 4   # Read clocks that the prefetch gets before a stored frame starts.

    def __init__(self, layout, depth, max_beats, store_and_forward):
        if depth < 16 or depth & (depth - 1):
            raise ValueError(f"depth must be a power of two, 16 or more, not {depth!r}")
        if not 1 <= max_beats <= depth - self.SLACK:
            raise ValueError(f"max_beats must be 1..{depth - self.SLACK} (depth - {self.SLACK}), not {max_beats!r}")
        # Stream Endpoints.
        self.sink   = sink   = stream.Endpoint(layout)
        self.source = source = stream.Endpoint(layout)
        self.room   = Signal()

        # # #

        fields  = [name for name, *_ in sink.description.payload_layout]
        width   = sum(len(getattr(sink, name)) for name in fields) + 2
        storage = Memory(width, depth)
        wrport  = storage.get_port(write_capable=True, clock_domain="write", mode=READ_FIRST)
        rdport  = storage.get_port(has_re=True, clock_domain="read", mode=READ_FIRST)  # Output register holds.
        self.specials += storage, wrport, rdport
        pointer = log2_int(depth) + 1

        # Write side.
        write, read = {}, {}
        for name in ("beats", "frames"):
            write[name] = self._gray_counter(pointer, "write")
        read["beats"] = self._gray_counter(pointer, "read")
        consumed = self._from_gray(read["beats"][2], "write")
        level    = Signal(pointer)
        ready    = Signal()
        self.comb += [
            sink.ready.eq(ready),
            wrport.adr.eq(write["beats"][1]),
            wrport.dat_w.eq(Cat(*[getattr(sink, name) for name in fields], sink.first, sink.last)),
            wrport.we.eq(sink.valid & sink.ready),
            write["beats"][0].eq(wrport.we),
            write["frames"][0].eq(wrport.we & sink.last),
        ]
        self.sync.write += [
            level.eq(write["beats"][1] - consumed),
            ready.eq(level < (depth - self.SLACK//2)),
            self.room.eq(level <= (depth - self.SLACK - max_beats)),
        ]

        # Read side: memory register and output register fill independently, so that a beat waits in each.
        there     = Signal(pointer)
        fetch     = Signal()
        rd_valid  = Signal()
        rd_take   = Signal()
        out_valid = Signal()
        out_take  = Signal()
        self.comb += there.eq(self._cross(write["beats"][2], "read"))
        self.comb += [
            rd_take.eq(~rd_valid | out_take),
            out_take.eq(~out_valid | (source.valid & source.ready)),
            fetch.eq((there != read["beats"][2]) & rd_take),
            read["beats"][0].eq(fetch),
            rdport.adr.eq(read["beats"][1]),
            rdport.re.eq(fetch),
        ]
        first = Signal()
        self.sync.read += [
            If(rd_take, rd_valid.eq(fetch)),
            If(out_take,
                out_valid.eq(rd_valid),
                Cat(*[getattr(source, name) for name in fields], first, source.last).eq(rdport.dat_r),
            )
        ]

        # Control-Path: a stored frame starts when it is complete.
        started = Signal()
        ready_frame = Signal(reset=int(not store_and_forward))
        self.comb += [
            source.first.eq(first),
            source.valid.eq(out_valid & (started | ready_frame)),
        ]
        if store_and_forward:
            complete = self._cross(write["frames"][2], "read", 2 + self.DELAY)
            taken    = self._gray_counter(pointer, "read")
            self.comb += taken[0].eq(source.valid & source.ready & source.last)
            self.comb += ready_frame.eq(complete != taken[2])
            self.sync.read += If(source.valid & source.ready, started.eq(~source.last))

    def _gray_counter(self, width, domain):
        """Returns (enable, binary, gray) of a counter; gray is registered."""
        enable, binary, gray, following = Signal(), Signal(width), Signal(width), Signal(width)
        self.comb += following.eq(binary + 1)
        sync = getattr(self.sync, domain)
        sync += If(enable, binary.eq(following), gray.eq(following ^ following[1:]))
        return enable, binary, gray

    def _cross(self, gray, domain, stages=2):
        """Returns a gray counter in another domain.

        Not a MultiReg: toolchains free those paths from timing, and the bits of one pointer must arrive within
        one clock of each other. Whoever owns the clocks bounds the delay between them (set_max_delay -datapath_only).
        """
        sync = getattr(self.sync, domain)
        for _ in range(stages):
            register = Signal(len(gray), reset_less=True)
            register.attr.update({"async_reg", "no_shreg_extract"})
            sync    += register.eq(gray)
            gray     = register
        return gray

    def _from_gray(self, gray, domain):
        """Returns the binary value of a gray counter of another domain."""
        crossed, binary = self._cross(gray, domain), Signal(len(gray))
        sync = getattr(self.sync, domain)
        sync += binary.eq(Cat(*[reduce(xor, [crossed[i] for i in range(n, len(gray))]) for n in range(len(gray))]))
        return binary
