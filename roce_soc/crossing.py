# SPDX-License-Identifier: BSD-2-Clause
"""What crosses between two clocks beside single items: frames, bus accesses, reads of a table.

They lie on a roce_soc/clocks.py ClockLink and keep its rule for resets.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream, wishbone

from roce_soc.bounds import counted

PATIENCE = 1023     # clocks that a bus access waits for a side in reset: far more than the link's own handshake needs.


# FrameEnd -----------------------------------------------------------------------------------------

class FrameEnd(LiteXModule):
    """A register that ends a frame whose rest is lost, behind the beats that are there, with an error.

    Parameters
    ----------
    layout : EndpointDescription
        With fields `error` and one of `last_be`, `end`.

    Endpoints
    ---------
    sink, source : layout, in and out

    Signals: `stop` (in, level): nothing more of the open frame comes; sink.valid is 0.

    Latency: 1 clock, one beat a clock. Errors: `error` all ones on a beat that was added.
    """
    def __init__(self, layout):
        # Stream Endpoints.
        self.sink   = sink   = stream.Endpoint(layout)
        self.source = source = stream.Endpoint(layout)
        self.stop   = Signal()

        # # #

        opened, cut, ending, move = Signal(), Signal(), Signal(), Signal()
        end = source.last_be if hasattr(source, "last_be") else source.end
        self.comb += [
            # At once: a MAC takes no hole in a frame.
            ending.eq(self.stop | cut),
            move.eq(~source.valid | source.ready),
            sink.ready.eq(move & ~ending),
        ]
        self.sync += [
            If(self.stop & opened, cut.eq(1)),
            If(move,
                source.valid.eq(sink.valid & ~ending),
                source.first.eq(sink.first),
                source.last.eq(sink.last),
                source.payload.eq(sink.payload),
                If(ending,
                    source.valid.eq(opened),
                    source.last.eq(1),
                    end.eq(1),
                    source.error.eq(2**len(source.error) - 1),
                    cut.eq(0),
                    opened.eq(0),
                ).Elif(sink.valid,
                    opened.eq(~sink.last),
                )
            )
        ]


# FrameCrossing ------------------------------------------------------------------------------------

class FrameCrossing(LiteXModule):
    """A stream of frames into the other clock; one that a reset cuts ends with an error, its rest is dropped.

    Parameters
    ----------
    link : ClockLink
    layout : EndpointDescription
        With fields `last_be` and `error`.
    to_far : bool
    depth : int
        Beats on the way, a power of two.

    Endpoints
    ---------
    sink, source : layout, in and out

    Latency: as the link's. Errors : `error` all ones on the last beat of a frame that was cut.
    """
    def __init__(self, link, layout, to_far, depth):
        # Stream Endpoints.
        self.sink   = sink   = stream.Endpoint(layout)
        self.source = source = stream.Endpoint(layout)

        # # #

        give, take  = (link.near, link.far) if to_far else (link.far, link.near)
        first, then = link.add_stream(layout, to_far=to_far, depth=depth, buffered=False)

        # Giving side: a reset of the other side takes the rest of the frame under way.
        inside, drop = Signal(), Signal()
        sync  = getattr(self.sync, give.domain)
        self.comb += [
            sink.connect(first, omit={"valid", "ready"}),
            first.valid.eq(sink.valid & ~drop),
            sink.ready.eq(first.ready | drop),
        ]
        sync += [
            If(give.stop & inside, drop.eq(1)),
            If(sink.valid & sink.ready,
                inside.eq(~sink.last),
                If(sink.last, drop.eq(0)),
            )
        ]

        # Taking side.
        self.end = end = ClockDomainsRenamer(take.domain)(FrameEnd(layout))
        self.comb += [
            then.connect(end.sink),
            end.stop.eq(take.stop),
            end.source.connect(source),
        ]


# BusCrossing --------------------------------------------------------------------------------------

class BusCrossing(LiteXModule):
    """Wishbone slave for a slave in the far clock of a ClockLink.

    The acknowledge comes when the far slave has given its own: a write has landed when its master may go on. So
    accesses of one master through two such crossings take effect in the order the master made them.

    Parameters
    ----------
    link : ClockLink
    slave : wishbone.Interface, in the far clock

    Endpoints
    ---------
    bus : wishbone.Interface, slave in the near clock

    Latency: the slave's and 4 to 6 clocks of each side; one access at a time.
    Errors : an access under way at a reset of the far side is acknowledged with ones and may or may not have been made;
        while such a reset lasts, beyond PATIENCE clocks, each is acknowledged with ones and not made: the bus goes on.
        Its master, reset or gone, never sees the acknowledge of an older access.
    """
    def __init__(self, link, slave):
        self.bus = bus = wishbone.Interface(data_width=len(slave.dat_w), address_width=32, addressing="word")

        # # #

        fields  = [("adr", len(bus.adr)), ("dat_w", len(bus.dat_w)), ("sel", len(bus.sel)), ("we", 1)]
        request_in, request = link.add_stream(fields, to_far=True, depth=4)
        answer_in, answer   = link.add_stream([("dat_r", len(bus.dat_r))], to_far=False, depth=4)

        # Near side.
        gone, held = Signal(), Signal()
        # Not of the domain that the link clears: a reset of the other side is what it measures.
        stopped, refused = Signal(max=PATIENCE + 1), Signal()
        sync  = getattr(self.sync, link.near.domain)
        sync += [
            If(~link.near.stop, stopped.eq(0)).Elif(stopped != PATIENCE, stopped.eq(stopped + 1)),
            # A clock behind the access: LiteX's decoder hands on nothing earlier.
            refused.eq(bus.cyc & bus.stb & (stopped == PATIENCE) & ~refused),
        ]
        self.comb += [
            [getattr(request_in, n).eq(getattr(bus, n)) for n, _ in fields],
            held.eq(bus.cyc & bus.stb & ~gone),
            answer.ready.eq(1),
        ]
        near = FSM(reset_state="IDLE")
        near.act("IDLE",
            NextValue(gone, 0),
            request_in.valid.eq(bus.cyc & bus.stb & ~refused),
            If(refused,
                bus.dat_r.eq(2**len(bus.dat_r) - 1),
                bus.ack.eq(bus.cyc & bus.stb),
            ),
            If(request_in.valid & request_in.ready, NextState("WAIT"))
        )
        near.act("WAIT",
            If(~(bus.cyc & bus.stb), NextValue(gone, 1)),
            bus.dat_r.eq(Mux(link.near.stop, 2**len(bus.dat_r) - 1, answer.dat_r)),
            If(answer.valid | link.near.stop,
                bus.ack.eq(held),
                NextState("IDLE")
            )
        )
        self.near_fsm = ClockDomainsRenamer(link.near.cross)(near)

        # Far side: what was begun is ended; an access of a side that was reset meanwhile is not answered.
        orphan = Signal()
        kept   = Record(fields)
        value  = Signal(len(bus.dat_r))
        far    = FSM(reset_state="IDLE")
        self.comb += [[getattr(slave, n).eq(getattr(kept, n)) for n, _ in fields]]
        far.act("IDLE",
            request.ready.eq(1),
            NextValue(orphan, 0),
            [NextValue(getattr(kept, n), getattr(request, n)) for n, _ in fields],
            If(request.valid, NextState("ACCESS"))
        )
        far.act("ACCESS",
            slave.cyc.eq(1),
            slave.stb.eq(1),
            If(link.far.stop, NextValue(orphan, 1)),
            If(slave.ack,
                NextValue(value, slave.dat_r),
                If(orphan | link.far.stop, NextState("IDLE")).Else(NextState("ANSWER"))
            )
        )
        far.act("ANSWER",
            answer_in.valid.eq(1),
            answer_in.dat_r.eq(value),
            If(answer_in.ready | link.far.stop, NextState("IDLE"))
        )
        self.far_fsm = ClockDomainsRenamer(link.far.domain)(far)


# Query --------------------------------------------------------------------------------------------

class Query(LiteXModule):
    """A table of the far clock read by a register of the near one: index there, value back.

    Parameters
    ----------
    link : ClockLink
    width, index_width : int
    latency : int
        Far clocks from `far_ask` until `far_value` is good, 1 or more.

    Signals: near `ask` (in, pulse), `index` (in, stays), `value` (out, holds), `ready` (out: `value` belongs to the last
    `ask`); far `far_ask` (out, pulse), `far_index` (out, with far_ask and after it), `far_value` (in).

    Latency: some 5 clocks of each side. Errors: a question lost by a reset is asked again.
    """
    def __init__(self, link, width, index_width, latency):
        self.ask,     self.index     = Signal(), Signal(index_width)
        self.value,   self.ready     = Signal(width), Signal()
        self.far_ask, self.far_index = Signal(), Signal(index_width)
        self.far_value = Signal(width)

        # # #

        question_in, question = link.add_stream([("index", index_width)], to_far=True, depth=4)
        answer_in, answer     = link.add_stream([("value", width)], to_far=False, depth=4)
        self.submodules += ClockDomainsRenamer(link.far.domain)(
            counted(answer_in, "answers: one question at a time", unless=link.far.stop))
        waiting, asked        = Signal(), Signal()
        near, far             = getattr(self.sync, link.near.domain), getattr(self.sync, link.far.domain)
        self.comb += [
            question_in.valid.eq(waiting & ~asked),
            question_in.index.eq(self.index),
            answer.ready.eq(1),
            self.ready.eq(~waiting & ~asked),
        ]
        near += [
            If(question_in.valid & question_in.ready, waiting.eq(0), asked.eq(1)),
            If(answer.valid,
                asked.eq(0),
                self.value.eq(answer.value),
            ),
            If(link.near.stop & asked, asked.eq(0), waiting.eq(1)),
            If(self.ask, waiting.eq(1)),
        ]
        delay, kept = Signal(latency), Signal(index_width)
        self.comb += [
            question.ready.eq(1),
            self.far_ask.eq(question.valid),
            self.far_index.eq(Mux(question.valid, question.index, kept)),
            answer_in.valid.eq(delay[-1]),
            answer_in.value.eq(self.far_value),
        ]
        far += [
            delay.eq(Cat(question.valid, delay)),
            If(question.valid, kept.eq(question.index)),
        ]
