# SPDX-License-Identifier: BSD-2-Clause
"""transport/requester with rings that are always full: the slot of a retired work request holds another one already."""
import pytest

from roce_soc import abi
from roce_soc.opcodes import OPCODES, by_name
from roce_soc.verbs import SEND_SIGNALED, WR_RDMA_WRITE, WR_SEND
from test.full_ring import FullRing
from test.requester_bench import SQ_BASE, SendBench, expect_cqes


def faulty(rng, tx, rx):
    """Loses packets of either direction at these rates."""
    return lambda direction, p: rng.random() < {"tx": tx, "rx": rx}[direction]


@pytest.mark.parametrize("latency", [4, 1000])
@pytest.mark.parametrize("qps", [1, 3])
def test_full_ring(seed, rng, qps, latency):
    """Loss, late acknowledges, needless time-outs while work requests are read slowly: each is done once, as posted."""
    b = SendBench(seed, tick_cycles=8, lose=faulty(rng, .01, .05), latency=latency)
    b.delay = 700
    for qpi in range(qps):
        b.connect(qpi, pmtu=256, psn=rng.choice((5, 0xfffff0, 0x7fffe0)), timeout=4)
    FullRing(b, rng, range(qps), signalled=rng.choice((1, .5, .1))).run()


def test_counter_wrap(seed, rng):
    """More than 65536 slots: counters wrap, at rest and with a full ring under loss; each is done once."""
    b = SendBench(seed, tick_cycles=8)
    b.step = 64
    b.connect(0, pmtu=256, timeout=4)
    done = 0
    while done < 65_400:
        for _ in range(60):
            b.post(0, WR_RDMA_WRITE, 0, flags=0, ring=False)
        b.post(0, WR_RDMA_WRITE, 0, ring=False)
        b.unchecked.clear()
        b.ring(0)
        b.completed(len(b.cqes) + 1)
        done += 61
    assert [c.wr_id for c in b.cqes] == [w["wr_id"] for w in b.posted[0] if w["flags"] & SEND_SIGNALED]
    assert len(b.peers[0].writes) == done
    b.step, b.delay, b.lose = 4, 700, faulty(rng, .01, .05)
    FullRing(b, rng, [0]).run()


def ack(b, psn, syndrome=0x1f):
    b.respond(0, opcode=by_name("RC_ACKNOWLEDGE").value, psn=psn & 0xffffff, syndrome=syndrome)


@pytest.mark.parametrize("upto", range(12))
def test_passed_while_read_again(seed, upto):
    """Rewound to a slot that must be read again, acknowledged up to any place meanwhile, overwritten: not looked at."""
    b = SendBench(seed, latency=600)
    b.connect(0, pmtu=256)
    b.peers[0].packet = lambda p, data: []
    for n in range(12):                          # three packets each.
        b.post(0, WR_SEND, 600, ring=False)
    b.ring(0)
    b.run(lambda: len(b.packets) == 36)
    b.run(cycles=700)
    ack(b, 0x1000, 0x60)                         # all again, from a slot that has left the chip.
    b.run(cycles=100)
    ack(b, 0x1000 + 3*upto + 1)                  # but the middle packet of message `upto` and all before has arrived.
    b.run(lambda: len(b.cqes) == upto)
    for n in range(upto):                        # their slots are used anew, by longer and shorter messages.
        other = abi.pack(abi.SEND_WQE, 64, opcode=WR_RDMA_WRITE, flags=2, num_sge=1, length=5000 if n & 1 else 1)
        b.memory.write(SQ_BASE + 64*n, other)
    sent = len(b.packets)
    b.run(cycles=2500)
    again = [(p.psn, OPCODES[p.opcode].name) for p in b.packets[sent:]]
    assert again == [(0x1000 + n, "RC_SEND_" + ("FIRST", "MIDDLE", "LAST")[n % 3]) for n in range(3*upto + 2, 36)]
    ack(b, 0x1000 + 35)
    b.completed(12)
    expect_cqes(b, 0, [0]*12)


def test_all_acknowledged_while_read_again(seed):
    """Rewound, then everything is acknowledged: the ring goes on behind it, the prefetch with it."""
    b = SendBench(seed, latency=600)
    b.connect(0, pmtu=256)
    for n in range(40):
        b.post(0, WR_SEND, 10, ring=False)
    b.delay = 1 << 30
    b.ring(0)
    b.run(lambda: len(b.packets) == 32)          # as many as may be outstanding.
    b.run(cycles=700)
    ack(b, 0x1000, 0x60)
    b.run(cycles=100)
    ack(b, 0x101f)
    b.pending, b.delay = [], 20
    b.completed(40)
    expect_cqes(b, 0, [0]*40)
    assert len(b.packets) == 40 and [len(s[0]) for s in b.peers[0].sends] == [10]*40


def test_passed_before_it_was_entered(seed):
    """All older messages are acknowledged while one waits behind another QP's to be entered: it is sent then."""
    b = SendBench(seed)
    b.step, b.delay = 1, 1 << 30
    for qpi in range(2):
        b.connect(qpi)
    for _ in range(4):
        b.post(0, WR_SEND, 10)
    b.run(lambda: len(b.packets) == 4)
    b.tx.set(stall=1.0)
    b.post(1, WR_SEND, 20_000)
    b.run(cycles=100)
    b.post(0, WR_SEND, 10)
    b.run(cycles=100)
    ack(b, 0x1000, 0x60)
    ack(b, 0x1003)
    b.run(lambda: len(b.cqes) == 4)
    b.run(cycles=100)
    b.tx.set(stall=0.0)
    b.pending, b.delay = [], 20
    b.completed(6)
    expect_cqes(b, 0, [0]*5)
    assert len(b.peers[0].sends) == 5
