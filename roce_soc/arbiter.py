# SPDX-License-Identifier: BSD-2-Clause
"""Whose turn it is: round robin for whatever several clients share."""
from migen import *

from litex.gen import *


# Turns --------------------------------------------------------------------------------------------

class Turns(LiteXModule):
    """Round robin over clients that ask.

    Parameters
    ----------
    n : int
        Clients, 1 or more.
    ahead : bool
        The first that asks behind the last one is chosen in the clock in which it asks. False: `grant` is a register that looks for the
        next one while the present one does not ask: a clock more for who comes alone, no logic in front of what it selects.

    Signals
    -------
    request : Signal(n), in
        Who asks.
    grant : out
        The client whose turn it is, whether it asks or not.
    next : in
        The turn goes on behind `grant`. Of a registered grant: also in each clock in which that client does not ask.
    keep : in, ahead only
        In the next clock the same client is granted whoever asks.

    Latency: above. Errors: none.
    """
    def __init__(self, n, *, ahead=False):
        if n < 1:
            raise ValueError(f"n must be at least 1, not {n!r}")
        self.request = Signal(n)
        self.grant   = grant = Signal(max=max(2, n))
        self.next, self.keep = Signal(), Signal()

        # # #

        last, held = Signal(max=max(2, n)), Signal()
        behind     = Signal(max=max(2, n))          # the first that asks behind `last`, `last` itself where nobody does.
        cases      = {}
        for before in range(n):
            choice = [behind.eq(before)]
            for i in reversed([(before + 1 + k) % n for k in range(n - 1)]):
                choice = [If(self.request[i], behind.eq(i)).Else(*choice)]
            cases[before] = choice
        self.comb += Case(last, {**cases, "default": behind.eq(0)})
        if ahead:
            self.comb += grant.eq(Mux(held, last, behind))
            self.sync += If(self.next, last.eq(grant)), held.eq(self.keep)
        else:
            self.comb += grant.eq(last)
            self.sync += If(self.next, last.eq(behind))


# StreamChoice -------------------------------------------------------------------------------------

class StreamChoice(LiteXModule):
    """Turns of several command streams on one: the choice holds while its command waits.

    Parameters
    ----------
    commands : list of streams, in
    cmd : stream, out
    able : expression
        A command may be offered.
    taken : expression
        The command offered leaves in this clock.

    Latency: 0 clocks, also where the turn changes: who asks alone is chosen at once. Errors: none.
    """
    def __init__(self, commands, cmd, able, taken):
        self.turns = turns = Turns(len(commands), ahead=True)
        self.grant = turns.grant

        # # #

        self.comb += [
            turns.request.eq(Cat(*[command.valid for command in commands])),
            turns.next.eq(cmd.valid),
            turns.keep.eq(cmd.valid & ~taken),
            [If(turns.grant == i,
                cmd.valid.eq(command.valid & able),
                cmd.payload.eq(command.payload),
                command.ready.eq(cmd.ready & able),
            ) for i, command in enumerate(commands)],
        ]
