# SPDX-License-Identifier: BSD-2-Clause
"""Ways between two clocks, and the one rule for their resets.

Not supported: clocks that stop for ever (what waits for the other side then waits as long).
"""
from types import SimpleNamespace

from migen import *
from migen.genlib.cdc import BusSynchronizer, MultiReg

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.crossing import BusCrossing, FrameCrossing, Query

SETTLE = 3      # clocks a side stays cleared before it says so; its pointers have crossed then.
LINGER = 4      # clocks a side stays cleared after the other has let go.


def bound_delay(platform, a, b, ns):
    """Vivado: paths between two clocks (signals), both ways, take at most so long.

    Synchronisers wait for what crosses; the bits of one item must arrive within a clock of each other. Set after
    synthesis, when the clocks of IPs exist.
    """
    for clk in (a, b):
        clk.attr.add("keep")
    template = "set_max_delay -datapath_only {delay} -from [get_clocks -of_objects [get_nets {{a}}]]" \
               " -to [get_clocks -of_objects [get_nets {{b}}]]"
    for first, then in ((a, b), (b, a)):
        platform.toolchain.pre_optimize_commands.add(template.format(delay=f"{ns:.3f}"), a=first, b=then)


# ClockLink ----------------------------------------------------------------------------------------

class ClockLink(LiteXModule):
    """Crossings between a `near` clock (CPU, registers) and a `far` one (engine). Equal names: wires, not one clock.

    ::

        near: reset ─► want ─► req ─────────► far: stop, clear, ack
                       stop, clear ◄───────────────────────────┘      and the same the other way round

    Reset rule: a reset of one side, however short, stops the ends of all crossings on that side in the same clock: nothing
    goes in or out. The other side stops its ends, clears them and says so; then the first clears its own. Both have been
    stopped and cleared at the same time before either moves again, so no item is doubled, torn or made up. What was on its
    way is lost whole. A reset that lasts holds both sides. Pointers cross as gray codes in LiteX's FIFOs.

    Parameters
    ----------
    near, far : str
        Clock domains; `far` may have no reset of its own.

    Attributes
    ----------
    separate : the domains differ.
    near, far : per side `domain`, `cross` (the same clock, reset by the rule alone), `stop` (nothing moves), `clear`.

    Latency: none with equal clocks; else 4 to 6 clocks of the receiving side an item, one item a clock.
    Errors : none; who waits for an answer ends its wait at `stop`.
    """
    def __init__(self, near="sys", far="sys"):
        self.separate  = near != far
        self.near_name, self.far_name = near, far
        if not self.separate:
            self.near = self.far = SimpleNamespace(domain=near, cross=near, stop=0, clear=0)
            return

        # # #

        self.near, self.far = [
            SimpleNamespace(domain=own, cross=f"{own}_to_{other}",
                **{n: Signal(name=f"{own}_{n}", reset_less=True) for n in ("req", "ack")},
                **{n: Signal(name=f"{own}_{n}", reset_less=True, reset=1) for n in ("want", "clear")},
                **{n: Signal(name=f"{own}_{n}") for n in ("stop", "other_req", "other_ack")})
            for own, other in ((near, far), (far, near))]
        for side, other in ((self.near, self.far), (self.far, self.near)):
            self._add_side(side, other)

    def _add_side(self, side, other):
        """One side of the handshake; its registers know no reset but that of power-up."""
        cd = ClockDomain(side.cross)
        self.clock_domains += cd
        sync    = getattr(self.sync, side.domain)
        reset   = ResetSignal(side.domain, allow_reset_less=True)
        settle  = Signal(max=SETTLE + 1, reset_less=True)
        linger  = Signal(max=LINGER + 1, reset_less=True)
        cleared = side.other_req | side.other_ack | side.ack
        self.specials += [
            MultiReg(other.req, side.other_req, side.domain),
            MultiReg(other.ack, side.other_ack, side.domain),
        ]
        self.comb += [
            cd.clk.eq(ClockSignal(side.domain)),
            cd.rst.eq(side.clear),
            side.stop.eq(reset | side.want | side.req | side.clear | cleared),
        ]
        sync += [
            side.clear.eq(cleared),
            # Asks, and holds while the reset lasts.
            If(~side.req,
                settle.eq(0),
                If(side.want & ~side.other_ack, side.req.eq(1)),
            ).Elif(side.other_ack,
                If(settle != SETTLE,
                    settle.eq(settle + 1),
                ).Elif(~reset,
                    side.req.eq(0),
                    side.want.eq(0),
                )
            ),
            If(reset, side.want.eq(1)),
            # Answers.
            If(side.other_req,
                side.ack.eq(1),
                linger.eq(LINGER),
            ).Elif(linger != 0,
                linger.eq(linger - 1),
            ).Else(
                side.ack.eq(0),
            ),
        ]

    # Crossings ------------------------------------------------------------------------------------

    def _ends(self, to_far):
        return (self.near, self.far) if to_far else (self.far, self.near)

    def on_far(self, module):
        """The module, in the far clock and its reset instead of `sys`."""
        return ClockDomainsRenamer(self.far_name)(module) if self.separate else module

    def add_stream(self, layout, *, to_far, depth=8, buffered=True):
        """(sink, source) of a crossing for one stream; with equal clocks one endpoint.

        What `source` offers it holds, unless its own side is reset; not so without its register (`buffered`).
        """
        sink = stream.Endpoint(layout)
        if not self.separate:
            return sink, sink
        source     = out = stream.Endpoint(layout)
        give, take = self._ends(to_far)
        if buffered:
            self.submodules += (buffer := ClockDomainsRenamer(take.domain)(stream.Buffer(layout)))
            source, out = buffer.source, buffer.sink
        self.submodules += (fifo := stream.ClockDomainCrossing(layout, cd_from=give.cross, cd_to=take.cross, depth=depth))
        self.comb += [
            sink.connect(fifo.sink, omit={"valid", "ready"}),
            fifo.sink.valid.eq(sink.valid & ~give.stop),
            sink.ready.eq(fifo.sink.ready & ~give.stop),
            fifo.source.connect(out, omit={"valid", "ready"}),
            out.valid.eq(fifo.source.valid & ~take.stop),
            fifo.source.ready.eq(out.ready & ~take.stop),
        ]
        return sink, source

    def add_frames(self, layout, *, to_far, depth=32):
        """(sink, source) of a `FrameCrossing`; with equal clocks one endpoint."""
        if not self.separate:
            sink = stream.Endpoint(layout)
            return sink, sink
        self.submodules += (crossing := FrameCrossing(self, layout, to_far, depth))
        return crossing.sink, crossing.source

    def add_level(self, signal, *, to_far):
        """A bit that stays for some clocks, seen on the other side."""
        if not self.separate:
            return signal
        seen = Signal()
        self.specials += MultiReg(signal, seen, self._ends(to_far)[1].domain)
        return seen

    def add_word(self, signal, *, to_far):
        """A number seen on the other side, some 10 clocks old and never torn; 0 until the first has crossed."""
        if not self.separate:
            return signal
        give, take = self._ends(to_far)
        self.submodules += (word := BusSynchronizer(len(signal), give.domain, take.domain))
        self.comb += word.i.eq(signal)
        return word.o

    def add_pulses(self, pulses, *, to_far):
        """Bits that pulse: on the other side at least one pulse after each, however fast they come."""
        if not self.separate:
            return pulses
        give, _      = self._ends(to_far)
        sink, source = self.add_stream([("bits", len(pulses))], to_far=to_far)
        waiting, out = Signal(len(pulses)), Signal(len(pulses))
        sync         = getattr(self.sync, give.domain)
        sync        += waiting.eq(Mux(sink.ready, pulses, waiting | pulses))
        self.comb   += [
            sink.valid.eq(waiting != 0),
            sink.bits.eq(waiting),
            source.ready.eq(1),
            If(source.valid, out.eq(source.bits)),
        ]
        return out

    def add_bus(self, bus):
        """A near Wishbone slave for a far one; with equal clocks the same."""
        if not self.separate:
            return bus
        self.submodules += (crossing := BusCrossing(self, bus))
        return crossing.bus

    def add_query(self, width, index_width, latency):
        """A `Query`; needs separate clocks."""
        self.submodules += (query := Query(self, width, index_width, latency))
        return query
