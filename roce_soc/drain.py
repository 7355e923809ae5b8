# SPDX-License-Identifier: BSD-2-Clause
"""Waiting for what is under way: everything that began before a certain clock has ended."""
from functools import reduce
from operator import or_

from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.bounds import Bound
from roce_soc.common import ctl_description

VERDICT_CLOCKS = 4     # clocks behind a verdict in which its record reaches its FIFO.


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

    Latency: 2 clocks a phase when nothing is under way.
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


# ReceiveDrain -------------------------------------------------------------------------------------

class ReceiveDrain(LiteXModule):
    """Part of the receive side in a RESET: packets that were let in under the QP's old state are with their transport.

    A frame reads its QP's row at its head and is handed out behind its verdict, later still when responder or
    completer are slow. Of a QP that begins anew meanwhile they would take it for one of the new life.

    Parameters
    ----------
    head, verdict : Signals
        Pulses: a frame's first beat enters the decoder, a frame's verdict leaves it.
    stored, records : lists of streams
        Records where they enter the packet buffer's FIFOs and where they leave them.

    Endpoints
    ---------
    ctl : ctl_description(), in; ctl_done : pulse, out

    Latency: 8 clocks when nothing is under way.
    """
    def __init__(self, head, verdict, stored, records):
        self.ctl      = stream.Endpoint(ctl_description())
        self.ctl_done = Signal()

        # # #

        late = Signal(VERDICT_CLOCKS)
        self.sync += late.eq(Cat(verdict, late))
        self.drain = drain = Drain([[(head, late[-1]), (sink.valid & sink.ready, source.valid & source.ready)]
            for sink, source in zip(stored, records)])
        self.submodules += [Bound(sink.valid & sink.ready & ~verdict & (late == 0), "records: stored within VERDICT_CLOCKS of the verdict")
            for sink in stored]
        self.comb += [
            drain.wait.eq(self.ctl.valid),
            self.ctl.ready.eq(drain.done),
            self.ctl_done.eq(drain.done),
        ]
