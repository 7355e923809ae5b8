# SPDX-License-Identifier: BSD-2-Clause
"""drain: what began before is awaited, phase by phase; what begins later is not."""
import pytest
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.drain import Drain
from roce_soc.packet.drain import ReceiveDrain


class Lines(LiteXModule):
    """A drain of a line of two phases and a line of one."""
    def __init__(self):
        self.begun, self.ended = [Signal() for _ in range(3)], [Signal() for _ in range(3)]
        pairs = list(zip(self.begun, self.ended))
        self.drain = Drain([pairs[:2], pairs[2:]])


def pulse(*signals):
    for signal in signals:
        yield signal.eq(1)
    yield
    for signal in signals:
        yield signal.eq(0)


def waits(drain, clocks):
    """Runs so many clocks; the clock at which `done` rose, or None."""
    for clock in range(clocks):
        yield
        if (yield drain.done):
            return clock
    return None


def test_nothing_under_way():
    top = Lines()

    def play():
        yield top.drain.wait.eq(1)
        assert (yield from waits(top.drain, 20)) is not None
        yield top.drain.wait.eq(0)
        yield
        yield
        assert not (yield top.drain.done)
    run_simulation(top, play())


@pytest.mark.parametrize("same", [False, True])
def test_line_passes_its_phases(same):
    """Two that began before are awaited through both phases, though others begin and end behind them in the same phases."""
    top = Lines()

    def play():
        begun, ended, drain = top.begun, top.ended, top.drain

        def passes(out, into):
            """From one phase to the next, in one clock or in two."""
            yield from pulse(out, into) if same else pulse(out)
            if not same:
                yield from pulse(into)
        yield from pulse(begun[0])
        yield from pulse(begun[0])
        yield drain.wait.eq(1)
        assert (yield from waits(drain, 10)) is None
        yield from pulse(begun[0])                     # later: not awaited.
        yield from passes(ended[0], begun[1])
        assert (yield from waits(drain, 10)) is None
        yield from passes(ended[0], begun[1])
        yield from pulse(ended[1])
        assert (yield from waits(drain, 10)) is None, "the second is still in the second phase"
        yield from pulse(ended[1])
        assert (yield from waits(drain, 10)) is not None, "what began later is awaited"
    run_simulation(top, play())


def test_other_line():
    top = Lines()

    def play():
        yield from pulse(top.begun[2])
        yield top.drain.wait.eq(1)
        assert (yield from waits(top.drain, 10)) is None
        yield from pulse(top.ended[2])
        assert (yield from waits(top.drain, 10)) is not None
    run_simulation(top, play())


@pytest.mark.parametrize("kind", [0, 1])
def test_received_packet(kind):
    """A frame whose head came before: its verdict, then its record on its way to responder or completer; a refused one has none."""
    head, verdict = Signal(), Signal()
    stored, records = ([stream.Endpoint([("qpi", 4)]) for _ in range(2)] for _ in range(2))
    top = ReceiveDrain(head, verdict, stored, records)

    def play():
        for endpoint in (*stored, *records):
            yield endpoint.ready.eq(1)
        yield from pulse(head)
        yield from pulse(head)
        yield top.ctl.valid.eq(1)
        assert (yield from waits(top.drain, 20)) is None
        yield from pulse(verdict)                      # refused.
        assert (yield from waits(top.drain, 20)) is None
        yield from pulse(verdict, stored[kind].valid)
        assert (yield from waits(top.drain, 20)) is None
        yield from pulse(stored[1 - kind].valid)       # another frame's, behind it.
        yield from pulse(records[kind].valid)
        assert (yield from waits(top.drain, 20)) is not None
    run_simulation(top, play())
