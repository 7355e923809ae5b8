# SPDX-License-Identifier: BSD-2-Clause
"""queue/rq: doorbell rules, prefetch order and fairness, taking, parking, flush, reset."""
import random

import pytest
from litex.gen import *
from litex.soc.interconnect import stream
from migen import Signal

from roce_soc import abi
from roce_soc.queue.rq import CACHE_DEPTH, ReceiveQueues
from roce_soc.queue.rq_layout import RQ_CTL_FLUSH, RQ_CTL_RESET
from roce_soc.verbs import WC_WR_FLUSH_ERR
from sim.harness import Sim, build
from sim.harness.memory import IDEAL

N = 16


class Queues(LiteXModule):
    """The queues with outputs whose fields are all driven."""
    def __init__(self):
        self.rq = ReceiveQueues(N)
        self.outputs = {}
        for name, source in (("d_rcmd", self.rq.rcmd), ("cqe", self.rq.cqe), ("refusal", self.rq.refusal), ("wake", self.rq.wake)):
            self.outputs[name] = stream.Endpoint(source.description)
            self.comb += source.connect(self.outputs[name])
        # The answer of the clock before, as Python looks between clocks.
        self.got, self.park = Signal(), Signal()
        self.sync += self.got.eq(self.rq.port.got), self.park.eq(self.rq.port.park)


@pytest.fixture(scope="module")
def so():
    top = Queues()
    rq  = top.rq
    return build(top, {
        **top.outputs, "d_rdata": rq.rdata, "write": rq.write, "bell": rq.doorbell, "ctl": rq.ctl, "done": rq.ctl_done,
        "ready": rq.ready, "peek": rq.port.peek, "peeking": rq.port.peeking, "index": rq.port.index, "take": rq.port.take,
        "qpi": rq.port.qpi, "got": top.got, "park": top.park, "wqe": rq.port.wqe, "slot": rq.port.slot}, name="rq")


class Bench:
    """Queue q has 2**log2 slots at 0x10000*q + 0xf40 + 64*q, so that bursts meet page ends."""
    def __init__(self, so, seed=1, **memory):
        self.sim = sim = Sim(so, seed=seed)
        self.write, self.bell, self.ctl = (sim.source(n) for n in ("write", "bell", "ctl"))
        self.cqe, self.refusal, self.wake = (sim.sink(n) for n in ("cqe", "refusal", "wake"))
        self.memory = sim.memory("d", **{**IDEAL, **memory})
        self.log2, self.posted, self.taken = {}, {}, {}
        sim.reset()
        sim.wait("ready", 1)

    def open(self, q, log2=4):
        self.log2[q], self.posted[q], self.taken[q] = log2, 0, 0
        self.write.send(index=q, enable=1, log2=log2, target=1, page=q + 3, addr=self.addr(q))
        self.sim.drain(self.write)

    def addr(self, q, n=0):
        return 0x10000*q + 0xf40 + 64*q + 64*(n % (1 << self.log2[q]))

    def post(self, q, count=1, ring=True):
        for _ in range(count):
            n = self.posted[q]
            self.memory.write(self.addr(q, n), abi.pack(abi.RECV_WQE, 64, wr_id=q << 48 | n, num_sge=1, va=n << 20, length=n + 1,
                                                        lkey=n ^ 0xffff), target=1)
            self.posted[q] = n + 1
        if ring:
            self.bell.send(kind=1, page=q + 3, queue=q, index=self.posted[q] & 0xffff)
            self.sim.drain(self.bell)

    def take(self, q, qpi=0):
        """One take: "got" (checked against what was posted), "park" or None."""
        sim = self.sim
        sim.poke("peek", q), sim.poke("peeking", 1)
        sim.step()
        sim.poke("peeking", 0), sim.poke("index", q), sim.poke("qpi", qpi), sim.poke("take", 1)
        sim.step()
        sim.poke("take", 0)
        got, park = sim.peek("got"), sim.peek("park")
        if got:
            n = self.taken[q]
            assert (sim.peek("wqe_wr_id"), sim.peek("wqe_va"), sim.peek("wqe_length"), sim.peek("wqe_lkey"), sim.peek("slot")) == (
                q << 48 | n, n << 20, n + 1, n ^ 0xffff, n % (1 << self.log2[q]))
            self.taken[q] = n + 1
        return "got" if got else "park" if park else None

    def control(self, op, q, qpn=0x55, cqn=9):
        self.ctl.send(op=op, index=q, qpn=qpn, cqn=cqn)
        self.sim.drain(self.ctl)


def test_doorbell_of_no_queue(so):
    """A queue that was never written, or was taken away, has no doorbell, whatever its row's page says: refused, and nothing is read."""
    b = Bench(so)
    b.open(2)
    b.write.send(index=2, enable=0)
    b.sim.drain(b.write)
    for q in (1, 2):
        b.bell.send(kind=1, page=0, queue=q, index=1)
    b.sim.drain(b.bell)
    b.sim.step(60)
    assert [r.row for r in b.refusal.recv_all()] == [63]*2 and not b.memory.log()


def test_order_wrap_and_cache(so):
    b = Bench(so)
    b.open(1, log2=4)
    rnd = random.Random(3)
    assert b.take(1) is None
    for _ in range(400):
        room = 16 - (b.posted[1] - b.taken[1])
        if room and rnd.random() < .5:
            b.post(1, rnd.randrange(1, room + 1))
        b.sim.step(90)
        have = min(b.posted[1] - b.taken[1], CACHE_DEPTH)
        for _ in range(rnd.randrange(have + 1)):
            assert b.take(1) == "got"
    assert b.taken[1] > 300
    reads = b.memory.log()
    assert all(r["length"] in (64, 256) and r["addr"] % 4096 + r["length"] <= 4096 for r in reads)
    assert any(r["length"] == 256 for r in reads)


def test_never_more_than_the_cache(so):
    b = Bench(so)
    b.open(2, log2=6)
    b.post(2, 60)
    b.sim.step(200)
    assert sum(r["length"] for r in b.memory.log()) == 64*CACHE_DEPTH
    assert b.take(2) == "got"
    b.sim.step(40)
    assert sum(r["length"] for r in b.memory.log()) == 64


def test_counters_wrap_at_16_bits(so):
    b = Bench(so)
    b.open(3, log2=5)
    while b.taken[3] < 66000:
        b.post(3, 32 - (b.posted[3] - b.taken[3]))
        while b.taken[3] < b.posted[3]:
            b.sim.step(4)
            b.take(3)
    assert not len(b.refusal)


@pytest.mark.parametrize("bell", [
    dict(page=5), dict(queue=2), dict(queue=0x1001), dict(index=17), dict(index=2), dict(index=0xffff)])
def test_bad_doorbells(so, bell):
    b = Bench(so)
    b.open(1, log2=4)
    b.open(3, log2=4)
    b.post(1, 3)
    b.sim.step(60)
    b.memory.log()
    b.bell.send(**{**dict(kind=1, page=4, queue=1, index=5), **bell})
    b.sim.drain(b.bell)
    b.sim.step(40)
    refused = b.refusal.recv_all()
    assert [r.row for r in refused] == [63] and not b.memory.log()
    assert [b.take(1) for _ in range(4)] == ["got"]*3 + [None]
    # Other kinds are not this module's.
    b.bell.send(kind=0, page=9, queue=1, index=9)
    b.sim.step(20)
    assert not len(b.refusal) and not b.memory.log()


def test_park_and_wake(so):
    b = Bench(so, latency=100)
    b.open(1), b.open(2)
    b.post(1, 2), b.post(2)
    assert b.take(1, qpi=7) == "park" and b.take(2, qpi=8) == "park"
    assert b.take(1, qpi=7) == "park"                                 # asked again: still one wake-up.
    b.sim.step(300)
    assert sorted(w.qpi for w in b.wake.recv_all()) == [7, 8]
    assert b.take(1) == "got" and b.take(1) == "got" and b.take(1) is None and b.take(2) == "got"
    b.sim.step(50)
    assert not len(b.wake)


def test_queues_fetch_in_turn(so):
    b = Bench(so, latency=50)
    for q in range(N):
        b.open(q, log2=6)
        b.post(q, 40, ring=False)
    for q in range(N):
        b.bell.send(kind=1, page=q + 3, queue=q, index=40)
    b.sim.step(60)
    # Doorbells come slower than reads go out: still every queue has its first before any has had all.
    b.sim.step(400)
    order = [r["qpi"] for r in b.memory.log()]
    assert set(order[:2*N]) == set(range(N)), order
    assert b.memory.counters()["d", "read"]["peak"] >= 8


def test_descriptor_error(so):
    b = Bench(so)
    b.open(1)
    b.memory.fail(b.addr(1, 1), b.addr(1, 1) + 64, 2, target=1)
    b.post(1, 1), b.post(1, 1)
    b.sim.step(50)
    assert b.take(1) == "got" and b.sim.peek("wqe_err") == 0
    b.sim.poke("peek", 1), b.sim.poke("peeking", 1)
    b.sim.step()
    b.sim.poke("peeking", 0), b.sim.poke("take", 1)
    b.sim.step()
    b.sim.poke("take", 0)
    assert b.sim.peek("wqe_err") == 1 and b.sim.peek("wqe_wr_id") == 0


def test_flush(so):
    b = Bench(so, latency=(1, 60))
    b.cqe.set(stall=.5)
    b.open(1), b.open(2)
    b.post(1, 14), b.post(2, 3)
    b.sim.step(100)
    assert b.take(1) == "got"
    b.control(RQ_CTL_FLUSH, 1)
    assert b.take(1) is None                                          # nobody takes from a flushed queue.
    b.sim.step(3000)
    b.post(1, 2)
    b.sim.step(2000)
    cqes = b.cqe.recv_all()
    assert [(c.wr_id & 0xffff, c.slot) for c in cqes] == [(n, n % 16) for n in range(1, 16)]
    assert {(c.status, c.qpn, c.cqn, c.solicited, c.vendor_err, c.opcode) for c in cqes} == {(WC_WR_FLUSH_ERR, 0x55, 9, 1, 62, 128)}
    assert b.take(2) == "got"


@pytest.mark.parametrize("flushed", [False, True])
def test_reset(so, flushed):
    b = Bench(so, latency=500)
    b.open(1)
    b.post(1, 10)
    b.sim.step(20)
    if flushed:
        b.control(RQ_CTL_FLUSH, 1)
    assert b.take(1, qpi=4) == (None if flushed else "park")
    before = b.sim.cycles()
    b.control(RQ_CTL_RESET, 1)
    assert b.sim.cycles() - before > 400                              # reads under way are awaited.
    b.memory.set(latency=4)
    b.cqe.recv_all()
    b.wake.recv_all()
    b.posted[1] = b.taken[1] = 0
    b.post(1, 3)
    b.sim.step(60)
    assert [b.take(1) for _ in range(4)] == ["got"]*3 + [None]
    assert not len(b.wake) and not len(b.cqe)


def test_reset_leaves_others_alone(so):
    """Clears meet takes, doorbells and returns of other queues."""
    b, rnd = Bench(so, seed=9), random.Random(9)
    for q in range(4):
        b.open(q, log2=4)
    for _ in range(1500):
        q = rnd.randrange(3)
        if b.posted[q] - b.taken[q] < 12:
            b.post(q)
        if rnd.random() < .3 and not b.ctl.pending:
            b.ctl.send(op=RQ_CTL_RESET, index=3)
        if rnd.random() < .1 and not b.write.pending:
            b.write.send(index=3, enable=1, log2=4, target=1, page=6, addr=b.addr(3))
        b.take(q)
    b.sim.step(100)
    for q in range(3):
        while b.taken[q] < b.posted[q]:
            assert b.take(q) == "got"
            b.sim.step(30)
    assert not len(b.refusal)


def test_clear_meets_every_clock_of_a_fetch(so):
    b = Bench(so)
    for q in (0, 3):
        b.open(q, log2=4)
    for k in range(60):
        b.bell.send(kind=1, page=3, queue=0, index=b.posted[0] + 1, idle=20 - k if k < 20 else 0)
        b.post(0, ring=False)
        b.ctl.send(op=RQ_CTL_RESET, index=3, idle=max(0, k - 20))
        b.sim.step(120)
        assert b.take(0) == "got", k


@pytest.mark.parametrize("n_rqs", [0, 8, 100, 8192])
def test_bad_size(n_rqs):
    with pytest.raises(ValueError, match="n_rqs must be"):
        ReceiveQueues(n_rqs)
