# SPDX-License-Identifier: BSD-2-Clause
"""A page that is not on chip, on the send side: a burst that misses goes back and leaves later, READ data that misses is put off."""
import random

import pytest

from roce_soc import abi
from roce_soc.errors import BY_INDEX
from roce_soc.memory.deferred import PATIENCE
from roce_soc.opcodes import by_name
from roce_soc.verbs import WC_LOC_PROT_ERR, WR_RDMA_READ, WR_RDMA_WRITE, WR_SEND
from test.requester_bench import SendBench, expect_cqes
from test.test_completer import Silent, ack, read


def psns(b, qpi=0):
    """PSNs sent, in order."""
    return [p.psn for p in b.packets if p.qpi == qpi]


def fill(b, qpi, n, length, operations=(WR_SEND, WR_RDMA_WRITE)):
    """Posts work requests whose bytes differ."""
    for k in range(n):
        b.memory.write(0x4000_0000 + (qpi << 24) + 0x2000*k, random.Random(qpi*64 + k).randbytes(length))
        b.post(qpi, operations[k % len(operations)], length, offset=0x2000*k)


# Requester ----------------------------------------------------------------------------------------

def test_only_its_own_qp_waits(seed):
    """Nothing of a QP leaves while its page is awaited; another QP's messages do; then each PSN leaves once, in order."""
    b = SendBench(seed)
    b.connect(0, pmtu=256), b.connect(1, pmtu=256)
    b.absent(0)
    fill(b, 0, 10, 700), fill(b, 1, 10, 700)
    b.run(lambda: len(b.cqes) == 10)
    b.run(cycles=2*PATIENCE)
    assert not psns(b) and all(c.qpn == 0x101 for c in b.cqes)
    b.absent()
    b.run(lambda: len(b.cqes) == 20)
    assert psns(b) == list(range(0x1000, 0x1000 + 30))
    expect_cqes(b, 0, [0]*10)
    assert not b.refusals and not b.events


def test_in_the_middle(seed):
    """A message of many bursts whose pages go and come: all bytes arrive once, in order."""
    b, rng = SendBench(seed), random.Random(seed)
    b.connect(0, pmtu=1024)
    b.memory.write(0x4000_0000, random.Random(1).randbytes(40_000))
    b.post(0, WR_RDMA_WRITE, 40_000)
    b.post(0, WR_SEND, 30_000, offset=100)
    for _ in range(12):
        b.run(cycles=rng.randrange(120))
        b.absent(0)
        b.run(cycles=rng.randrange(400))
        b.absent()
    b.run(lambda: len(b.cqes) == 2)
    assert psns(b) == list(range(0x1000, 0x1000 + 70))
    peer = b.peers[0]
    assert peer.writes[0][1] == b.buffer(0, 0, 40_000) and peer.sends[0][0] == b.buffer(0, 100, 30_000)


def test_nobody_wakes(seed):
    """A page that came while its miss was on its way wakes nobody: the QP asks again by itself."""
    b = SendBench(seed)
    b.connect(0)
    b.absent(0)
    fill(b, 0, 1, 100)
    b.run(cycles=200)
    b.sim.poke("absent", 0)
    b.run(lambda: b.cqes, cycles=PATIENCE + 400)
    expect_cqes(b, 0, [0])


@pytest.mark.parametrize("when", range(0, 60, 6))
def test_a_time_out_meanwhile(seed, when):
    """Packets are lost and their repetition misses: the time-outs that follow change nothing, no try is used up by the wait."""
    b = SendBench(seed)
    b.connect(0, pmtu=256, timeout=4, retry_cnt=2)
    lost = {0x1000, 0x1001}
    b.lose = lambda way, p: way == "tx" and p.psn in lost and not lost.discard(p.psn)
    fill(b, 0, 4, 300)
    b.run(cycles=300 + when)
    b.absent(0)
    b.run(cycles=60_000)
    b.absent()
    b.run(lambda: len(b.cqes) == 4)
    expect_cqes(b, 0, [0]*4)
    assert not b.events


def test_acknowledged_meanwhile(seed):
    """What is to be repeated and misses is acknowledged all the same: it is left out, and new work goes on behind it."""
    b = SendBench(seed)
    b.connect(0, pmtu=256, timeout=4)
    b.peers[0] = Silent()
    fill(b, 0, 3, 300)
    b.run(cycles=400)
    assert len(psns(b)) == 6
    b.absent(0)
    b.run(cycles=20_000)                # a time-out: repeated, missed.
    sent = len(b.packets)
    ack(b, 0x1005)
    expect_cqes(b, 0, [0]*3)
    b.memory.write(0x4000_0000 + 0x8000, bytes(100))
    b.post(0, WR_SEND, 100, offset=0x8000)
    b.run(cycles=400)
    assert len(b.packets) == sent
    b.absent()
    b.run(cycles=400)
    assert [p.psn for p in b.packets[sent:]] == [0x1006]
    ack(b, 0x1006)
    expect_cqes(b, 0, [0]*4)


def test_key_gone_meanwhile(seed):
    """The region is invalidated while its page is awaited: the message fails with LOC_PROT_ERR, what is behind it is flushed."""
    b = SendBench(seed)
    b.connect(0)
    b.absent(0)
    fill(b, 0, 3, 100)
    b.run(cycles=300)
    b.mr.send(valid_row=0, index=0)
    b.run(lambda: not b.mr.pending, cycles=2000)
    b.absent()
    b.run(lambda: len(b.cqes) == 3)
    assert [c.status for c in b.cqes] == [WC_LOC_PROT_ERR, 5, 5] and not b.packets


def test_reset_meanwhile(seed):
    """RESET while a page is awaited: done at once; the next life begins at its own first PSN, with nothing of the old one."""
    b = SendBench(seed)
    for life in range(3):
        b.connect(0, psn=0x1000*(life + 1))
        b.absent(0)
        fill(b, 0, 3, 100)
        b.run(cycles=300)
        b.reset(0)
        b.absent()
        b.run(cycles=200)
        assert not b.packets and not b.cqes
    b.connect(0, psn=0x7000)
    fill(b, 0, 3, 100)
    b.run(lambda: len(b.cqes) == 3)
    assert psns(b) == [0x7000, 0x7001, 0x7002]


def test_error_meanwhile(seed):
    """ERR while a page is awaited: all work requests come back flushed, nothing is sent."""
    b = SendBench(seed)
    b.connect(0)
    b.absent(0)
    fill(b, 0, 5, 100)
    b.run(cycles=300)
    b.flushed(0)
    b.run(lambda: len(b.cqes) == 5)
    b.absent()
    b.run(cycles=PATIENCE)
    assert [c.status for c in b.cqes] == [5]*5 and not b.packets


def test_rewound_meanwhile(seed):
    """A NAK rewinds a QP whose page has come without a word: the rewind that the miss still owes is void, nothing leaves twice more."""
    b = SendBench(seed)
    b.connect(0, pmtu=256)
    b.peers[0] = Silent()
    fill(b, 0, 3, 200)
    b.run(cycles=300)
    assert psns(b) == [0x1000, 0x1001, 0x1002]
    b.absent(0)
    fill(b, 0, 1, 200)
    b.run(cycles=100)
    b.sim.poke("absent", 0)
    ack(b, 0x1001, 0x60)
    b.run(cycles=2*PATIENCE)
    assert psns(b)[3:] == [0x1001, 0x1002, 0x1003]


def test_the_next_life(seed):
    """A page that was missed comes in the QP's next life, of the same generation: nothing goes back for it."""
    b = SendBench(seed)
    b.connect(0)
    b.absent(0)
    fill(b, 0, 3, 100)
    b.run(cycles=60)
    b.reset(0)
    b.sim.poke("absent", 0)
    b.connect(0, psn=0x7000)
    b.peers[0] = Silent()
    fill(b, 0, 2, 100)
    b.run(cycles=2*PATIENCE)
    fill(b, 0, 1, 100)
    b.run(cycles=300)
    assert psns(b) == [0x7000, 0x7001, 0x7002]


# Completer ----------------------------------------------------------------------------------------

def reading(seed, *lengths, **options):
    """A QP whose READs have been sent, and the page of its buffer is gone."""
    b = SendBench(seed)
    b.connect(0, pmtu=256, **options), b.connect(1, pmtu=256)
    b.peers[0] = Silent()
    for n, length in enumerate(lengths):
        b.post(0, WR_RDMA_READ, length, offset=0x1000*n)
    b.run(cycles=300)
    b.absent(0)
    return b


def test_read_data(seed):
    """READ data waits for its page, and what is acknowledged behind it with it; another QP completes; then all is in order."""
    b = reading(seed, 600, 100)
    b.post(0, WR_SEND, 0)
    b.run(cycles=200)
    for n, place in enumerate(("FIRST", "MIDDLE", "LAST")):
        read(b, 0x1000 + n, place, bytes([n + 1])*(256 if n < 2 else 88))
    read(b, 0x1003, "ONLY", b"o"*100)
    ack(b, 0x1004)
    b.post(1, WR_SEND, 100)
    b.run(lambda: b.cqes)
    b.run(cycles=PATIENCE + 100)
    assert [c.qpn for c in b.cqes] == [0x101] and b.sim.peek("free") == 256 - 5
    b.absent()
    b.run(lambda: len(b.cqes) == 4)
    expect_cqes(b, 0, [0]*3)
    assert b.buffer(0, 0, 600) == b"\1"*256 + b"\2"*256 + b"\3"*88 and b.buffer(0, 0x1000, 100) == b"o"*100
    assert b.sim.peek("free") == 256 and not b.refusals and not b.slots


def test_read_key_gone_meanwhile(seed):
    """The region goes while READ data waits: the message fails, the payload's places come back."""
    b = reading(seed, 600, 100)
    for n, place in enumerate(("FIRST", "MIDDLE", "LAST")):
        read(b, 0x1000 + n, place, bytes([n + 1])*(256 if n < 2 else 88))
    b.mr.send(valid_row=0, index=0)
    b.run(lambda: not b.mr.pending, cycles=2000)
    b.absent()
    b.run(lambda: len(b.cqes) == 2)
    b.run(cycles=200)
    assert [c.status for c in b.cqes] == [WC_LOC_PROT_ERR, 5]
    assert b.sim.peek("free") == 256 and not b.slots


def test_key_gone_behind(seed):
    """READ data whose region is gone, behind data that waits for its page: the first READ lands and completes, then the second fails."""
    b = SendBench(seed)
    b.connect(0, pmtu=256)
    b.mr.send(valid_row=1, index=9, variant=0x55, access=1, pd=7, target=0, va=b.va(0, 0x4000), length=0x1000, addr=0x4000_4000)
    b.run(cycles=40)
    b.peers[0] = Silent()
    b.post(0, WR_RDMA_READ, 100)
    b.post(0, WR_RDMA_READ, 100, offset=0x4000, lkey=0x955)
    b.run(cycles=300)
    b.mr.send(valid_row=0, index=9)
    b.run(cycles=300)
    b.absent(0)
    for n in range(2):
        read(b, 0x1000 + n, "ONLY", bytes([n + 1])*100)
    assert not b.cqes and not b.events
    b.absent()
    b.run(lambda: len(b.cqes) == 2)
    expect_cqes(b, 0, [0, WC_LOC_PROT_ERR])
    assert b.buffer(0, 0, 100) == b"\1"*100 and b.sim.peek("free") == 256 and not b.slots


def test_flood(seed):
    """Data beyond a quarter of the packet buffer is dropped and counted; it is asked for again, and all of it arrives."""
    b = SendBench(seed)
    b.connect(0, pmtu=4096, timeout=8)
    peer = b.peers[0]
    b.post(0, WR_RDMA_READ, 200_000)
    b.run(lambda: len(b.packets) == 1)
    b.absent(0)
    b.run(cycles=3000)
    names = {BY_INDEX[r.row].name for r in b.refusals}
    assert names == {"BUFFER_FULL"} and len(b.slots) <= 128//8 + 4
    b.absent()
    b.run(lambda: b.cqes, cycles=400_000)
    expect_cqes(b, 0, [0])
    assert b.buffer(0, 0, 200_000) == peer.read_data(0x5000_0000, 200_000)
    assert b.sim.peek("free") == 256


def test_random(seed):
    """Pages go and come at random under eight QPs that send and read, with loss: all completes in order with the right bytes."""
    rng = random.Random(seed)
    b   = SendBench(seed, lose=lambda way, p: rng.random() < .01)
    for qpi in range(8):
        b.connect(qpi, pmtu=256, timeout=4)
    for k in range(12):
        for qpi in range(8):
            fill(b, qpi, 1, 500, (rng.choice((WR_SEND, WR_RDMA_WRITE)),)) if rng.random() < .5 else \
                b.post(qpi, WR_RDMA_READ, rng.choice((1, 256, 900)), offset=0x40000 + 0x1000*k)
        b.absent(rng.randrange(8))
        b.run(cycles=rng.randrange(1500))
        if rng.random() < .5:
            b.absent()
    b.absent()
    b.run(lambda: len(b.cqes) == 96, cycles=2_000_000)
    for qpi in range(8):
        expect_cqes(b, qpi, [0]*12)
    assert b.sim.peek("free") == 256 and not b.events
