# SPDX-License-Identifier: BSD-2-Clause
"""Registers of the one time base that every timer of the engine counts."""
from migen import *

from litex.gen import *
from litex.soc.interconnect.csr import *

from roce_soc.common import TICK_CYCLES


# TimeBase -----------------------------------------------------------------------------------------

class TimeBase(LiteXModule):
    """Shows the time base; in simulation sets the clocks of a tick, so that 67 ms need not be 17 million cycles.

    Parameters
    ----------
    scalable : bool
        True in simulation; a board's tick is TICK_CYCLES engine clocks (0.256 us at 250 MHz).

    `now` comes from the timer scanner, `tick_cycles` goes to it.
    """
    def __init__(self, now, scalable=False):
        self.now_low = CSRStatus(32, name="now", description="Time base, ticks since reset, low 32 bits.")
        self.cycles  = Signal(16, reset=TICK_CYCLES)

        # # #

        self.comb += self.now_low.status.eq(now)
        if scalable:
            self.tick_cycles = CSRStorage(16, reset=TICK_CYCLES, description="Engine clocks of a tick, 1 or more; a board has 64.")
            self.comb += self.cycles.eq(self.tick_cycles.storage)
