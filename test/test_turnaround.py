# SPDX-License-Identifier: BSD-2-Clause
"""network/turnaround: frames to the own MAC among those of a full wire; nothing lost, cut or swapped."""
import pytest

from roce_soc.common import MAX_FRAME
from roce_soc.network.turnaround import RoCETurnaround
from sim.harness import Sim, build


@pytest.fixture(scope="module")
def so():
    top = RoCETurnaround()
    return build(top, {"wire": top.wire, "local": top.local, "source": top.source}, name="turnaround")


class Bench:
    def __init__(self, so, seed, gap=0.0, local_gap=0.0):
        self.sim    = sim = Sim(so, seed=seed)
        self.wire   = sim.source("wire", gap=gap)
        self.local  = sim.source("local", frame_gap=local_gap)
        self.source = sim.sink("source")
        sim.reset()

    def frame(self, rng, mark, size):
        return bytes([mark]) + rng.randbytes(size - 1)


@pytest.mark.parametrize("gap,local_gap", [(0.3, 0.0), (0.3, 0.5), (0.05, 0.0)])
def test_both(so, seed, rng, gap, local_gap):
    """Frames of every length from both sides: each side's whole, in its order, once."""
    bench = Bench(so, seed, gap, local_gap)
    sent  = {0: [], 1: []}
    for n in range(400):
        side  = rng.randrange(2)
        frame = bench.frame(rng, side, rng.choice([60, 64, 65, 128, rng.randrange(60, 1500), MAX_FRAME]))
        error = rng.random() < 0.1
        (bench.local if side else bench.wire).send(frame, error=error)
        sent[side].append((frame, error))
    bench.sim.until(bench.source, 400, max_cycles=200_000)
    bench.sim.step(50)
    got = [(f.data, bool(f.error)) for f in bench.source.recv_all()]
    for side in (0, 1):
        assert [g for g in got if g[0][0] == side] == sent[side]


@pytest.mark.parametrize("size", [60, 1024, MAX_FRAME])
def test_full_wire(so, seed, rng, size):
    """A wire at 100 Gb/s (50 bytes a clock) loses nothing to a local side that always has a frame, and that one gets on too."""
    bench = Bench(so, seed)
    bench.wire.pace(50)
    count = max(40, 30_000//size)
    sent  = [bench.frame(rng, 0, size) for _ in range(count)]
    local = [bench.frame(rng, 1, MAX_FRAME) for _ in range(60)]
    for frame in sent:
        bench.wire.send(frame)
    for frame in local:
        bench.local.send(frame)
    bench.sim.until(bench.source, count + len(local), max_cycles=200_000)
    got = [f.data for f in bench.source.recv_all()]
    assert [g for g in got if g[0] == 0] == sent and [g for g in got if g[0] == 1] == local
    # The wire was never made to wait.
    assert bench.wire.stats()["stalled"] == 0


def test_saturated_wire(so, seed, rng):
    """Beats in every clock (a burst out of a FIFO): the local side waits as soon as the wire's FIFO is no longer near empty."""
    bench = Bench(so, seed)
    sent  = [bench.frame(rng, 0, 4096) for _ in range(100)]
    for frame in sent:
        bench.wire.send(frame)
    for _ in range(8):
        bench.local.send(bench.frame(rng, 1, MAX_FRAME))
    bench.sim.until(bench.source, 108, max_cycles=50_000)
    assert [f.data for f in bench.source.recv_all() if f.data[0] == 0] == sent


def test_latency(so, seed, rng):
    """A frame of the wire alone passes at once, gapless."""
    bench = Bench(so, seed)
    bench.wire.send(bench.frame(rng, 0, 1024))
    bench.sim.until(bench.source, 1, max_cycles=100)
    frame = bench.source.recv()
    _, first, last, beats = bench.wire.times()[0]
    assert frame.first == first and frame.last - frame.first == beats - 1 == last - first


@pytest.mark.parametrize("size", [60, 250, 1500])
def test_full_for_long(so, seed, rng, size):
    """Beats in every clock without end: local frames get a share all the same, frames of the wire are whole, marked or lost."""
    bench = Bench(so, seed)
    beats = -(-size//64)
    sent  = [n.to_bytes(4, "big") + bytes(size - 4) for n in range(60_000//beats)]
    local = [b"\xff" + rng.randbytes(rng.choice((59, 300, MAX_FRAME - 1))) for _ in range(60)]
    for frame in sent:
        bench.wire.send(frame)
    for frame in local:
        bench.local.send(frame)
    bench.sim.drain(bench.wire)
    bench.sim.step(400)
    got   = bench.source.recv_all()
    mine  = [f.data for f in got if f.data[0] == 0xff]
    wire  = [f for f in got if f.data[0] != 0xff]
    assert mine == local and not any(f.error for f in got if f.data[0] == 0xff)
    assert all(f.data == sent[int.from_bytes(f.data[:4], "big")] for f in wire if not f.error)
    order = [int.from_bytes(f.data[:4], "big") for f in wire]
    assert order == sorted(set(order))
    # It cost the wire no more beats than the local ones have, and what was cut.
    short = beats*(len(sent) - sum(not f.error for f in wire))
    assert short <= sum(-(-len(f)//64) for f in local) + 130*2 + beats*4
    assert bench.wire.stats()["stalled"] == 0


def test_wire_among_local_ones(so, seed, rng):
    """Local frames without end beside a wire at 100 Gb/s for a long time: the wire loses nothing."""
    bench = Bench(so, seed)
    bench.wire.pace(50)
    sent  = [bench.frame(rng, 0, rng.choice((60, 250, 1024, 4096))) for _ in range(700)]
    for frame in sent:
        bench.wire.send(frame)
    for _ in range(1500):
        bench.local.send(bench.frame(rng, 1, rng.choice((60, 300, MAX_FRAME))))
    bench.sim.drain(bench.wire)
    bench.sim.step(4000)
    assert bench.local.pending, "the local side had nothing to send at the end"
    assert [f.data for f in bench.source.recv_all() if f.data[0] == 0] == sent
