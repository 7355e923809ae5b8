# SPDX-License-Identifier: BSD-2-Clause
"""network/transmit: frames to the own MAC beside those for the wire, while the way round is blocked or slow."""
import pytest

from roce_soc import opcodes
from roce_soc.common import OWNER_ACK
from sim.harness import build
from test.tx_bench import TxBench, make, padded

LOCAL = dict(dst_mac=0x020000000001, src_mac=0x020000000001)


@pytest.fixture(scope="module")
def so():
    return build(*make(), name="transmit")


def bench_of(so, seed, rng, **options):
    """A bench whose QPs 0 to 7 are local."""
    bench = TxBench(so, seed, rng, **options)
    for qpi in range(8):
        bench.row(qpi, **LOCAL)
    return bench


def free(bench):
    bench.sim.step(20)
    return [bench.sim.peek(f"free_{c}") for c in ("control", "roce", "slow", "loop")] == [32, 512, 128, 512]


@pytest.mark.parametrize("size", [0, 256, 4096])
def test_blocked(so, seed, rng, size):
    """Local frames that cannot leave at all cost the others half of the clocks, and that for no longer than the block."""
    bench = bench_of(so, seed, rng, latency=4)
    bench.loop.set(stall=1)
    wire  = []
    for n in range(300 if size < 4096 else 60):
        for qpi in (n % 8, 8 + n % 8):
            ack  = n % 3 == 0
            pack = bench.packet(opcodes.RC_ACKNOWLEDGE if ack else opcodes.RC_WRITE_MIDDLE, 0 if ack else size, qpi=qpi, client=0,
                owner=OWNER_ACK if ack else 0)
            if qpi >= 8:
                wire.append(padded(pack[1]))
    start = bench.sim.cycles()
    got   = bench.frames(len(wire), max_cycles=200_000)
    beats = sum(f.beats for f in got)
    assert sorted(f.data for f in got) == sorted(wire)
    # Local ones have the same beats in the encoder; then half of the clocks, and one hold to begin with.
    assert bench.sim.cycles() - start < 2*2*beats + 2*512 + 700
    bench.loop.set(stall=0)
    bench.sim.step(3000)
    turned = bench.loop.recv_all()
    assert 0 < len(turned) <= len(wire) and all(f.last - f.first + 1 == f.beats for f in turned)
    assert len(bench.returned(2*len(wire))) == 2*len(wire) and free(bench)


def test_slow_way_round(so, seed, rng):
    """A way round of half the rate loses nothing: the encoder waits for it."""
    bench = bench_of(so, seed, rng, latency=4)
    bench.loop.set(stall=.5)
    sent = [bench.packet(opcodes.RC_WRITE_MIDDLE, rng.randrange(1, 300), qpi=n % 8, client=0)[1] for n in range(250)]
    assert [f.data for f in bench.frames(250, bench.loop)] == [padded(f) for f in sent]
    assert free(bench)


def test_read_errors(so, seed, rng):
    """Local frames whose payload could not be read give back all they had taken, in room or without."""
    bench = bench_of(so, seed, rng)
    bench.memory.fail(0x10000, 0x20000, 1)
    for stall in (0, 1, 0):
        bench.loop.set(stall=stall)
        for n in range(80):
            bench.packet(opcodes.RC_WRITE_ONLY, 3000, addr=0x10000 if rng.random() < .4 else 0x100000, qpi=n % 8)
        bench.returned(80)
    bench.sim.step(5000)
    assert free(bench)
