# SPDX-License-Identifier: BSD-2-Clause
"""The one time base: ticks that every timer of the engine counts."""
from migen import *

from litex.gen import *
from litex.soc.interconnect.csr import *

from roce_soc.common import TICK_CYCLES

TIME_WIDTH = 36     # ticks: 16*2^31 of the longest ACK time-out still fits.


# TimeBase -----------------------------------------------------------------------------------------

class TimeBase(LiteXModule):
    """Counts ticks of 0.256 us (TICK_CYCLES engine clocks at 250 MHz).

    Parameters
    ----------
    scalable : bool
        True in simulation: a register sets the clocks of a tick, so that 67 ms need not be 17 million cycles.

    `now` counts ticks, `tick` pulses with each.
    """
    def __init__(self, scalable=False):
        self.now  = Signal(TIME_WIDTH)
        self.tick = Signal()

        # # #

        limit = Signal(16, reset=TICK_CYCLES)
        count = Signal(16)
        if scalable:
            self.tick_cycles = CSRStorage(16, reset=TICK_CYCLES, description="Engine clocks of a tick, 1 or more; hardware runs at 64.")
            self.comb += limit.eq(self.tick_cycles.storage)
        self.sync += [
            self.tick.eq(0),
            count.eq(count + 1),
            If(count + 1 >= limit,
                count.eq(0),
                self.tick.eq(1),
                self.now.eq(self.now + 1),
            )
        ]
