# SPDX-License-Identifier: BSD-2-Clause
"""Registers of the one time base that every timer of the engine counts."""
from migen import *

from litex.gen import *
from litex.soc.interconnect.csr import *

from roce_soc.clocks import ClockLink
from roce_soc.common import TICK_CYCLES, TICK_NS


def tick_cycles_of(clk_freq):
    """Clocks of a tick at an engine clock in Hz: TICK_NS rounded up, since a time-out is never shortened."""
    return max(1, -(-int(clk_freq)*TICK_NS//10**9))


# TimeBase -----------------------------------------------------------------------------------------

class TimeBase(LiteXModule):
    """Shows the time base; in simulation sets the clocks of a tick, so that 67 ms need not be 17 million cycles.

    Parameters
    ----------
    scalable : bool
        True in simulation.
    tick_cycles : int
        Engine clocks of a tick, 1..65535: TICK_NS at the engine's clock, never less.

    link : ClockLink
        The registers are near, the timer scanner is far; default one clock.

    `now` comes from the timer scanner, `cycles` goes to it.

    Latency: that of the link. Errors: none.
    """
    def __init__(self, now, scalable=False, tick_cycles=TICK_CYCLES, link=None):
        link = ClockLink() if link is None else link
        if not 1 <= tick_cycles < 1 << 16:
            raise ValueError(f"tick_cycles must be 1..{(1 << 16) - 1}, not {tick_cycles!r}")
        self.now_low = CSRStatus(32, name="now", description="Time base, ticks since reset, low 32 bits.")
        self.cycles  = Signal(16, reset=tick_cycles)

        # # #

        self.comb += self.now_low.status.eq(link.add_word(now, to_far=False))
        if scalable:
            self.tick_cycles = CSRStorage(16, reset=tick_cycles,
                description="Engine clocks of a tick, 1 or more; a board's is fixed.")
            cycles = link.add_word(self.tick_cycles.storage, to_far=True)
            self.comb += self.cycles.eq(cycles)
            if link.separate:
                self.comb += If(cycles == 0, self.cycles.eq(tick_cycles))
