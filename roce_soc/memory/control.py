# SPDX-License-Identifier: BSD-2-Clause
"""Registers of the memories behind an engine: which are answered for, and the command that opens them again."""
from migen import *

from litex.gen import *
from litex.soc.interconnect.csr import *


# MemoryControl ------------------------------------------------------------------------------------

class MemoryControl(LiteXModule):
    """Lets software see that a memory was given up, and open it again after its reset.

    A memory that loses answers in a reset of its own stays closed: its watchdog waits for what it owes. Whoever reset the
    memory, or sees `closed` stay, ends that with `restart`; a memory whose reset the SoC sees drives `reset` instead.

    Parameters
    ----------
    link : ClockLink
        From sys, the registers' clock, to the hub's.
    hub : MemoryHub

    Endpoints
    ---------
    reset : Signal(targets), in
        In the hub's clock: the target is in reset.

    Latency: some 5 clocks of each side.
    Errors : none.
    """
    def __init__(self, link, hub):
        n_targets     = len(hub.restart)
        self.reset    = Signal(n_targets)
        self._closed  = CSRStatus(n_targets, description="A bit for each memory target: 1, it stopped, its commands end with"
            " MEM_TIMEOUT at once. Cleared by hardware when it has answered all it owes, or by `restart`.")
        self._restart = CSRStorage(n_targets, description="Write 1 to the bit of a target after its reset: what it owes from"
            " before is given up, commands under way end with MEM_TIMEOUT, new ones go to it. Acts with the write.")

        # # #

        pulses = Signal(n_targets)
        self.sync += pulses.eq(Mux(self._restart.re, self._restart.storage, 0))
        self.comb += [
            self._closed.status.eq(link.add_level(hub.closed, to_far=False)),
            hub.restart.eq(self.reset | link.add_pulses(pulses, to_far=True)),
        ]
