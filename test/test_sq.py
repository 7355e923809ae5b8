# SPDX-License-Identifier: BSD-2-Clause
"""queue/sq: doorbell checks, prefetch at ring, page and cache ends, descriptor errors, ring wrap."""
import pytest

from test.requester_bench import N_QPS, PAGE, SQ_BASE, SQ_LOG2, SendBench, expect_cqes
from roce_soc import abi
from roce_soc.verbs import WC_LOC_QP_OP_ERR, WR_RDMA_WRITE, WR_SEND


def test_doorbell_refused(seed):
    """Wrong page, QP that does not exist or is in RESET, index beyond the ring: counted, nothing moves."""
    b = SendBench(seed)
    b.connect(0)
    b.post(0, WR_SEND, 10, ring=False)
    b.ring(0, page=PAGE + 1)
    b.ring(0, index=(1 << SQ_LOG2) + 1)
    b.ring(0, index=0xffff)
    b.bell.send(kind=0, page=PAGE, queue=N_QPS, index=1)
    b.bell.send(kind=0, page=0, queue=5, index=1)
    b.bell.send(kind=1, page=PAGE, queue=0, index=1)
    b.run(cycles=300)
    assert len(b.bell_refusals) == 5
    assert not b.packets
    b.ring(0)
    b.completed(1)


def test_doorbells_coalesce(seed):
    """A doorbell for many, doorbells again and again: each work request once."""
    b = SendBench(seed)
    b.connect(0)
    for n in range(30):
        b.post(0, WR_SEND, n, ring=False)
    for _ in range(20):
        b.ring(0)
    b.completed(30)
    b.run(cycles=500)
    expect_cqes(b, 0, [0]*30)
    assert [len(s[0]) for s in b.peers[0].sends] == list(range(30))


@pytest.mark.parametrize("log2", [1, 2, 3, 6])
@pytest.mark.parametrize("offset", [0, 64, 4096 - 64])
def test_ring_wrap(seed, rng, log2, offset):
    """Rings of 2 to 64 slots at any multiple of 64, run through several times; the 16-bit counter wraps."""
    b = SendBench(seed, latency=(1, 40))
    b.connect(0, sq_sig_all=1)
    b.write_row(0, sq_log2=log2, sq_addr=SQ_BASE + offset)
    from test import requester_bench
    requester_bench.SQ_LOG2, saved = log2, requester_bench.SQ_LOG2
    try:
        count = 0
        while count < 5 << log2:
            for _ in range(rng.randrange(1, (1 << log2) + 1)):
                b.post(0, WR_SEND, count % 50, ring=False)
                count += 1
            b.ring(0)
            b.completed(count)
    finally:
        requester_bench.SQ_LOG2 = saved
    expect_cqes(b, 0, [0]*count)
    assert [c.slot for c in b.cqes] == [n % (1 << log2) for n in range(count)]
    assert [len(s[0]) for s in b.peers[0].sends] == [n % 50 for n in range(count)]


def test_descriptor_error(seed):
    """A work request that cannot be read completes in error; those before it are done, those behind are flushed."""
    b = SendBench(seed)
    b.connect(0)
    b.memory.fail(SQ_BASE + 3*64, SQ_BASE + 4*64, 2)
    for n in range(3):
        b.post(0, WR_SEND, 10)
    b.completed(3)
    for n in range(3):
        b.post(0, WR_SEND, 10)
    b.run(lambda: b.events)
    b.flushed(0)
    b.completed(6)
    assert [c.status for c in b.cqes] == [0, 0, 0, WC_LOC_QP_OP_ERR, 5, 5]
    assert [c.slot for c in b.cqes] == list(range(6))


def test_many_outstanding_fetches(seed):
    """Slow descriptor memory: fetches of several QPs are under way at the same time."""
    b = SendBench(seed, latency=400)
    for qpi in range(16):
        b.connect(qpi)
    for qpi in range(16):
        b.post(qpi, WR_SEND, 10)
    b.completed(16)
    assert b.memory.ports["d", "read"].counters()["peak"] >= 12


def test_stale_prefetch(seed):
    """RESET while descriptor reads are under way: the next connection does not see them."""
    b = SendBench(seed, latency=300)
    b.connect(0)
    for _ in range(8):
        b.post(0, WR_SEND, 10)
    b.run(cycles=60)
    b.reset(0)
    b.connect(0)
    for _ in range(8):
        b.post(0, WR_RDMA_WRITE, 20)
    b.completed(8)
    assert len(b.peers[0].writes) == 8 and not b.peers[0].sends


@pytest.mark.parametrize("stall", [0, 0.5, 0.7, 0.9])
def test_all_qps_deep(seed, stall):
    """Every QP with a deep queue at once, the wire slower than the descriptor memory: no work request is forgotten."""
    b = SendBench(seed)
    b.tx.set(stall=stall)
    for qpi in range(N_QPS):
        b.connect(qpi)
        for _ in range(16):
            b.post(qpi, WR_RDMA_WRITE, 0, flags=0, ring=False)
    for qpi in range(N_QPS):
        b.ring(qpi)
    b.run(lambda: len(b.packets) == 16*N_QPS, cycles=20_000)
