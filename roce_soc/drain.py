# SPDX-License-Identifier: BSD-2-Clause
"""Waiting for what is under way: everything that began before a certain clock has ended."""
from functools import reduce
from operator import or_

from migen import *

from litex.gen import *

from roce_soc.bounds import Bound


# Drain --------------------------------------------------------------------------------------------

class Drain(LiteXModule):
    """Counts what is under way on several lines and waits for it, phase by phase.

    Things of a line pass its phases one after the other, in order in each, and begin a phase at the latest one clock
    after they have ended the one before. What begins after `wait` has risen is not waited for.

    Parameters
    ----------
    lines : list of lists of (begun, ended)
        Pulses of each phase of each line.
    width : int
        Bits of the counters: fewer than 2^width things are under way in a phase.

    Endpoints
    ---------
    wait : in
        Held until `done`.
    done : out
        With `wait`: all that had begun before has ended.

    Latency: 1 clock a phase when nothing is under way.
    Errors : none; a count that leaves its width is a bound.
    """
    def __init__(self, lines, width=12):
        self.wait, self.done = Signal(), Signal()

        # # #

        n_phases = max([1] + [len(phases) for phases in lines])
        phase    = Signal(max=n_phases + 1)
        load, busy, waiting = Signal(), Signal(), []
        for phases in lines:
            for n, (begun, ended) in enumerate(phases):
                flying, left, more, less = Signal(width), Signal(width), Signal(), Signal()
                self.sync += [
                    more.eq(begun), less.eq(ended),
                    flying.eq(flying + more - less),
                    If(load & (phase == n),
                        left.eq(flying + more - less)
                    ).Elif(left != 0,
                        left.eq(left - less)
                    ),
                ]
                waiting.append((phase == n + 1) & (left != 0))
                self.submodules += Bound((less & ~more & (flying == 0)) | (more & ~less & (flying == 2**width - 1)),
                    "things under way: each ends once, fewer than 2^width at a time")
        self.comb += [
            busy.eq(reduce(or_, waiting) if waiting else 0),
            load.eq(self.wait & ~busy & (phase != n_phases)),
            self.done.eq(self.wait & ~busy & (phase == n_phases)),
        ]
        self.sync += If(~self.wait | self.done, phase.eq(0)).Elif(load, phase.eq(phase + 1))
