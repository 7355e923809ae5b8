# SPDX-License-Identifier: BSD-2-Clause
"""table: FIFOs that an empty state costs no clock: nothing lost, doubled or overtaken; an offer stands until it is taken."""
import pytest
from litex.gen import *
from litex.soc.interconnect.stream import EndpointDescription

from roce_soc.table import BypassFIFO, BypassQueue
from sim.harness import Sim, build

DEPTH = 4
KINDS = ("fifo", "frames", "queue")


class Bypasses(LiteXModule):
    """One of each kind."""
    def __init__(self):
        layout = EndpointDescription([("data", 64), ("last_be", 8)])
        self.frames = BypassFIFO(layout, DEPTH, frames=True)
        self.fifo   = BypassFIFO([("value", 16)], DEPTH)
        self.queue  = BypassQueue([("value", 16)], DEPTH)


@pytest.fixture(scope="module")
def so():
    top = Bypasses()
    ends = {f"{kind}_{end}": getattr(getattr(top, kind), end) for kind in KINDS for end in ("sink", "source")}
    return build(top, ends, name="bypasses")


def offer(source, kind, rng, n):
    """Sends item `n`; returns what must come out."""
    if kind == "frames":
        frame = bytes([n & 255]) + rng.randbytes(rng.randrange(40))
        source.send(frame)
        return frame
    source.send(value=n)
    return n


def taken(sink, kind):
    return [f.data if kind == "frames" else f.value for f in sink.recv_all()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gap,stall", [(0, 0), (.5, .5), (.8, .2), (.1, .7), (0, .9)])
def test_order(so, seed, rng, kind, gap, stall):
    sim = Sim(so, seed=seed)
    source, sink = sim.source(f"{kind}_sink", gap=gap), sim.sink(f"{kind}_source", stall=stall)
    sim.reset()
    sent = [offer(source, kind, rng, n) for n in range(500)]
    sim.until(sink, len(sent), max_cycles=50_000)
    sim.step(20)
    assert taken(sink, kind) == sent


@pytest.mark.parametrize("kind", KINDS)
def test_latency(so, seed, rng, kind):
    """Empty and awaited, an item passes in its own clock, one a clock."""
    sim = Sim(so, seed=seed)
    source, sink = sim.source(f"{kind}_sink"), sim.sink(f"{kind}_source")
    sim.reset()
    for n in range(50):
        offer(source, kind, rng, n)
    sim.until(sink, 50, max_cycles=1000)
    assert [(f.first, f.last) for f in sink.recv_all()] == [(first, last) for _, first, last, _ in source.times()]
