# SPDX-License-Identifier: BSD-2-Clause
"""What cannot happen because something is counted elsewhere, stated where it would happen and checked in simulation."""
from migen import *

from litex.gen import *


# Bound --------------------------------------------------------------------------------------------

class Bound(LiteXModule):
    """A condition that never holds, and what keeps it from holding.

    In hardware nothing reads `broken`, so synthesis removes it. Every model of sim/harness has it as an output, and `Sim` raises
    `Violation` in the step in which it rises; the simulated SoC stops.

    Parameters
    ----------
    condition : expression
        True in a clock in which the bound does not hold.
    kept_by : str
        What does not fit or hold, and who keeps it: signal, count or protocol.

    Attributes
    ----------
    broken : Signal(), out
        The condition was true in some clock since power-up; a reset does not clear it.
    of : the stream whose items are lost then, or None.

    Latency: 1 clock from the condition to `broken`.
    Errors : none.
    """
    def __init__(self, condition, kept_by, of=None):
        self.kept_by, self.of = kept_by, of
        self.broken = Signal(reset_less=True, name="bound_broken")

        # # #

        self.sync += If(condition, self.broken.eq(1))


def counted(fifo, kept_by, unless=0):
    """Bound of a FIFO whose `ready` nobody waits for: an item that comes while it is full would be lost.

    fifo : module with a `sink`, or the stream itself; unless : expression, clocks in which items are lost on purpose.
    """
    sink = getattr(fifo, "sink", fifo)
    return Bound(sink.valid & ~sink.ready & ~unless, kept_by, sink)


def bounds_of(module, path="", seen=None):
    """Yields (path of the module it is in, Bound) of a finalised module and all below it, each once."""
    seen = set() if seen is None else seen
    for name, child in module._submodules:
        if id(child) in seen:
            continue
        seen.add(id(child))
        if isinstance(child, Bound):
            yield path.rstrip("."), child
        else:
            yield from bounds_of(child, f"{path}{name or type(child).__name__.lower()}.", seen)
