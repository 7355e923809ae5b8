# SPDX-License-Identifier: BSD-2-Clause
"""queue/cq and queue/eq: CQEs in index order, arming, overflow, events behind their CQE."""
import random

import pytest
from litex.gen import *
from migen import *

from roce_soc import abi
from roce_soc.errors import ERRORS
from roce_soc.queue.cq import CompletionQueues
from roce_soc.queue.eq import CAUSES, EventQueue
from sim.harness import Sim, build
from sim.harness.memory import IDEAL, SLOW

CQ_ADDR, EQ_ADDR = 0x10000, 0x200000


class Queues(LiteXModule):
    def __init__(self):
        self.cq    = CompletionQueues(16)
        self.eq    = EventQueue()
        self.ports = [self.cq.get_port() for _ in range(3)]
        self.other = self.eq.get_port()
        self.comb += self.cq.event.connect(self.eq.get_port())


@pytest.fixture(scope="module")
def so():
    top = Queues()
    cq, eq = top.cq, top.eq
    return build(top, {
        **{f"cqe{i}": port for i, port in enumerate(top.ports)}, "event": top.other, "cqwrite": cq.write, "eqwrite": eq.write,
        "ctl": cq.ctl, "drained": cq.ctl_done, "bell": cq.doorbell, "eqbell": eq.doorbell, "refusal": cq.refusal,
        "fatal": cq.fatal, "ready": cq.ready, "causes": eq.causes,
        "cw_wcmd": cq.wcmd, "cw_wdata": cq.wdata, "cw_wack": cq.wack, "ew_wcmd": eq.wcmd, "ew_wdata": eq.wdata, "ew_wack": eq.wack}, name="cq")


class Bench:
    """Compiled queues: CQ 3 with 8 entries on page 5, an event ring of 16."""
    def __init__(self, so, seed=1, log2=3, **memory):
        self.sim = sim = Sim(so, seed=seed)
        self.cqe = [sim.source(f"cqe{i}") for i in range(3)]
        self.cqwrite, self.eqwrite, self.bell, self.eqbell = (sim.source(n) for n in ("cqwrite", "eqwrite", "bell", "eqbell"))
        self.event, self.refusal, self.fatal = sim.source("event"), sim.sink("refusal"), sim.sink("fatal")
        self.memory = sim.memory("cw", "ew", fill=0, **(memory or IDEAL))
        sim.reset()
        sim.wait("ready", 1)
        self.log2, self.read, self.eq_read = log2, 0, 0
        self.cqwrite.send(index=3, enable=1, log2=log2, target=0, page=5, addr=CQ_ADDR)
        self.eqwrite.send(index=0, enable=1, log2=4, target=0, page=0, addr=EQ_ADDR)
        sim.drain()

    def post(self, port, wr_id, cqn=3, **more):
        self.cqe[port].send(cqn=cqn, wr_id=wr_id, **more)

    def poll(self):
        """CQEs that are visible beyond the last one read."""
        out = []
        while True:
            size  = 1 << self.log2
            entry = abi.unpack(abi.CQE, self.memory.read(CQ_ADDR + 32*(self.read % size), 32))
            if entry["phase"] == (self.read//size) & 1:
                return out
            out.append(entry)
            self.read += 1

    def events(self):
        out = []
        while True:
            entry = abi.unpack(abi.EQE, self.memory.read(EQ_ADDR + 16*(self.eq_read % 16), 16))
            if entry["phase"] == (self.eq_read//16) & 1:
                return out
            out.append(entry)
            self.eq_read += 1

    def renew(self):
        """The queue is written anew, its ring cleared."""
        self.memory.write(CQ_ADDR, bytes(32 << self.log2))
        self.cqwrite.send(index=3, enable=1, log2=self.log2, target=0, page=5, addr=CQ_ADDR)
        self.sim.drain(self.cqwrite)
        self.read = 0

    def consume(self, kind=abi.DOORBELL_CQ, solicited=0, index=None, page=5, queue=3):
        index = self.read if index is None else index
        self.bell.send(kind=kind//4, page=page, queue=queue, index=(index & 0x7fff) | solicited << 15 if kind == abi.DOORBELL_CQ_ARM else index & 0xffff)
        self.sim.drain(self.bell)
        self.sim.step(8)


@pytest.mark.parametrize("memory", [IDEAL, SLOW])
def test_order_and_wrap(so, memory):
    """Several turns of the ring from three clients: each client's order kept, every field in place, phase right."""
    bench, rng = Bench(so, **memory), random.Random(3)
    sent = {port: [] for port in range(3)}
    got  = []
    for turn in range(12):
        for i in range(6):
            port   = rng.randrange(3)
            fields = dict(wr_id=rng.getrandbits(56) << 8 | port, byte_len=rng.getrandbits(32), imm=rng.getrandbits(32), qpn=rng.getrandbits(24),
                status=rng.randrange(13), src_qp=rng.getrandbits(24), opcode=rng.getrandbits(8), slot=rng.getrandbits(16),
                flags=rng.getrandbits(8), vendor_err=rng.getrandbits(8))
            sent[port].append(fields)
            bench.post(port, **fields)
        bench.sim.run(lambda: got.extend(bench.poll()) or len(got) == 6*(turn + 1), max_cycles=40000)
        bench.consume()
    for port in range(3):
        mine = [{k: e[k] for k in sent[port][0]} for e in got if e["wr_id"] & 0xff == port]
        assert mine == sent[port]
    assert not len(bench.refusal)


@pytest.mark.parametrize("why", ["full", "no such queue", "refused write"])
def test_a_lost_completion_fails_its_qp(so, why):
    """Each QP that lost one is reported, once until the report is taken; those that lost nothing are not."""
    bench = Bench(so)
    bench.fatal.set(stall=1.0)
    if why == "refused write":
        bench.memory.fail(CQ_ADDR + 2*32, CQ_ADDR + 8*32, 2)
    good = 2 if why == "refused write" else 8 if why == "full" else 0
    for i in range(good + 6):
        qpi = i if i < good else 40 + i % 3
        bench.post(i % 3 if i >= good else 0, i, cqn=9 if why == "no such queue" else 3, qpn=0x300 + qpi)
        bench.sim.step(30)
    bench.sim.step(200)
    bench.fatal.set()
    bench.sim.step(60)
    records = bench.fatal.recv_all()
    lost    = [r.queue for r in records]
    assert sorted(lost) == [40, 41, 42]
    assert {(r.type, r.info) for r in records} == {(abi.EVENT_QP_FATAL, ERRORS["CQ_OVERFLOW"].index)}
    bench.post(0, 99, cqn=9, qpn=0x300 + 41)
    bench.sim.step(60)
    assert [r.queue for r in bench.fatal.recv_all()] == [41]


def test_overflow(so):
    """A full queue loses no entry to a later one: the CQE is not written, one CQ_ERR event; the queue is dead until it is written anew."""
    bench = Bench(so)
    for i in range(11):
        bench.post(0, i)
    bench.sim.step(200)
    assert [e["wr_id"] for e in bench.poll()] == list(range(8))
    assert [r.row for r in bench.refusal.recv_all()] == [ERRORS["CQ_OVERFLOW"].index]*3
    assert [(e["type"], e["queue"]) for e in bench.events()] == [(abi.EVENT_CQ_ERR, 3)]
    # No doorbell mends the hole: what follows is lost as well, and its QP told of.
    bench.fatal.recv_all()
    bench.consume()
    bench.post(1, 99, qpn=0x307)
    bench.sim.step(60)
    assert not bench.poll() and not bench.events()
    assert [r.row for r in bench.refusal.recv_all()] == [ERRORS["CQ_OVERFLOW"].index]
    assert [r.queue for r in bench.fatal.recv_all()] == [7]
    bench.renew()
    for i in range(9):
        bench.post(2, i)
    bench.sim.step(200)
    assert [e["wr_id"] for e in bench.poll()] == list(range(8))
    assert [(e["type"], e["queue"]) for e in bench.events()] == [(abi.EVENT_CQ_ERR, 3)]


@pytest.mark.parametrize("first", [0, 3])
def test_a_refused_write_kills_its_queue(so, first):
    """Nobody sees what lies behind a hole: one CQ_ERR, each QP with a completion there is told of, later ones are lost too."""
    bench = Bench(so)
    bench.memory.ports["cw", "write"].set(latency=40)
    bench.memory.fail(CQ_ADDR + first*32, CQ_ADDR + (first + 2)*32, 2)
    for i in range(6):
        bench.post(i % 3, i, qpn=0x300 + i)
        bench.sim.step(5)
    bench.sim.step(300)
    assert [e["wr_id"] for e in bench.poll()] == list(range(first))
    assert sorted(r.queue for r in bench.fatal.recv_all()) == list(range(first, 6))
    assert [(e["type"], e["queue"], e["info"]) for e in bench.events()] == [(abi.EVENT_CQ_ERR, 3, 2)]
    bench.memory.heal()
    bench.consume()
    bench.post(0, 50, qpn=0x309)
    bench.sim.step(200)
    assert [r.queue for r in bench.fatal.recv_all()] == [9] and not bench.events()
    bench.renew()
    bench.post(0, 60)
    bench.sim.step(200)
    assert [e["wr_id"] for e in bench.poll()] == [60]


def test_a_refused_write_of_an_old_life_leaves_the_new_queue_alone(so):
    bench = Bench(so)
    bench.memory.ports["cw", "write"].set(latency=100)
    bench.memory.fail(CQ_ADDR, CQ_ADDR + 32, 2)
    bench.post(0, 1)
    bench.sim.step(20)
    bench.cqwrite.send(index=3, enable=1, log2=3, target=0, page=5, addr=CQ_ADDR + 0x1000)
    bench.sim.step(300)
    bench.post(0, 2)
    bench.sim.step(300)
    assert abi.unpack(abi.CQE, bench.memory.read(CQ_ADDR + 0x1000, 32))["wr_id"] == 2
    assert not bench.events()


def test_many_refused_writes(so):
    """Every write of several queues is refused, at full rate: nothing stands still, each queue has one event."""
    bench = Bench(so)
    for queue in range(4, 8):
        bench.cqwrite.send(index=queue, enable=1, log2=8, target=0, page=5, addr=0x40000*queue)
    bench.memory.ports["cw", "write"].set(latency=(1, 60))
    bench.memory.fail(0, 1 << 30, 2)
    for i in range(120):
        bench.post(i % 3, i, cqn=4 + i % 4, qpn=0x300 + i)
    bench.sim.drain(*bench.cqe, max_cycles=20_000)
    bench.sim.step(2000)
    assert {r.queue for r in bench.fatal.recv_all()} == set(range(120))


@pytest.mark.parametrize("log2", [9, 15])
def test_overflow_of_a_long_ring(so, log2):
    """Rings beyond 256 entries, the longest one too: full is full, and room for n is room for n."""
    bench, size = Bench(so, log2=log2), 1 << log2
    for i in range(size):
        bench.post(i % 3, i)
    bench.sim.drain(*bench.cqe)
    bench.sim.step(200)
    assert sorted(e["wr_id"] for e in bench.poll()) == list(range(size))
    assert not bench.refusal.recv_all()
    room = size//2 + 44
    bench.consume(index=room)
    for i in range(room + 2):
        bench.post(0, i)
    bench.sim.drain(*bench.cqe)
    bench.sim.step(200)
    assert [e["wr_id"] for e in bench.poll()] == list(range(room))
    assert [r.row for r in bench.refusal.recv_all()] == [ERRORS["CQ_OVERFLOW"].index]*2


@pytest.mark.parametrize("memory", [IDEAL, SLOW])
def test_drain(so, memory):
    """A control operation is done when all that the clients held before it is in memory, while one of them goes on."""
    bench, ctl = Bench(so, log2=8, **memory), None
    ctl = bench.sim.source("ctl")
    for turn in range(4):
        for i in range(20):
            bench.post(0, turn*100 + i)
        for i in range(100):
            bench.post(1, 10**6)
        ctl.send(qpi=1, op=0)
        bench.sim.wait("drained", 1, max_cycles=100_000)
        assert bench.cqe[1].pending, "the busy client was waited for"
        assert [e["wr_id"] for e in bench.poll() if e["wr_id"] < 10**6] == [turn*100 + i for i in range(20)]
        bench.sim.drain(max_cycles=200_000)
        bench.poll()
        bench.consume()


@pytest.mark.parametrize("turn", range(4))
def test_events_between_writes(so, turn):
    """What is no write lies between writes whose acknowledges come in bunches: none is lost, the next event comes in its time."""
    bench = Bench(so, seed=turn, log2=8, latency=(1, 60), depth=64)
    bench.post(0, 0)
    bench.sim.step(100)
    rng = random.Random(turn)
    for i in range(120):
        bench.post(i % 3, i)
        bench.sim.step(rng.randrange(4))
        if rng.randrange(2):
            bench.bell.send(kind=abi.DOORBELL_CQ_ARM//4, page=5, queue=3, index=0)  # entry 0 lies beyond: an event at once.
    bench.sim.drain()
    bench.sim.step(3000)
    bench.poll()
    bench.eqwrite.send(index=0, enable=1, log2=4, target=0, page=0, addr=EQ_ADDR + 0x1000)
    bench.consume(abi.DOORBELL_CQ_ARM)
    bench.sim.step(200)
    bench.post(1, 99)
    bench.sim.step(200)
    assert bench.memory.read(EQ_ADDR + 0x1000, 16) != bytes(16)


def test_arming(so):
    """One event per arming; at once when an entry already lies beyond; solicited only when asked for."""
    bench = Bench(so)
    bench.consume(abi.DOORBELL_CQ_ARM)
    bench.post(0, 1)
    bench.post(0, 2)
    bench.sim.step(80)
    assert [e["type"] for e in bench.events()] == [abi.EVENT_COMPLETION]
    bench.poll()
    bench.consume(abi.DOORBELL_CQ_ARM, index=1)          # entry 1 lies beyond.
    bench.sim.step(60)
    assert len(bench.events()) == 1
    bench.consume()
    bench.consume(abi.DOORBELL_CQ_ARM, solicited=1)
    bench.post(0, 3)
    bench.sim.step(60)
    assert not bench.events()
    bench.post(0, 4, solicited=1)
    bench.sim.step(60)
    assert len(bench.events()) == 1
    bench.poll()
    bench.consume()
    bench.consume(abi.DOORBELL_CQ_ARM, solicited=1)
    bench.post(0, 5, status=5)                           # errors count as solicited.
    bench.sim.step(60)
    assert len(bench.events()) == 1


@pytest.mark.parametrize("requests, plain, solicited", [
    ((0,), 1, 1), ((1,), 0, 1), ((0, 1), 1, 1), ((1, 0), 1, 1), ((1, 1), 0, 1), ((0, 0), 1, 1), ((0, 1, 1), 1, 1)])
def test_the_first_request_outlives_the_second(so, requests, plain, solicited):
    """Next (0) and solicited (1) in any order: next stays asked for. One event answers all of them."""
    for kinds, wanted in (((0, 0), plain), ((1, 1), solicited)):
        bench = Bench(so)
        for request in requests:
            bench.consume(abi.DOORBELL_CQ_ARM, solicited=request)
        for kind in kinds:
            bench.post(0, kind, solicited=kind)
        bench.sim.step(80)
        assert len(bench.events()) == wanted, (requests, kinds)


@pytest.mark.parametrize("asked", [0, 1])
def test_arming_with_the_longest_ring_unread(so, asked):
    """The index has 15 bits, the ring 2^15 entries: all of them unread is not none."""
    bench = Bench(so, log2=15)
    for i in range(1 << 15):
        bench.post(i % 3, i, solicited=1)
    bench.sim.drain(*bench.cqe)
    bench.sim.step(200)
    bench.consume(abi.DOORBELL_CQ_ARM, solicited=asked, index=0)
    bench.sim.step(80)
    assert [e["type"] for e in bench.events()] == [abi.EVENT_COMPLETION]


def test_nothing_between_the_last_poll_and_the_arm_is_lost(so):
    """A completion in any clock around the arm: an event, whoever was first."""
    for wait in range(16):
        bench = Bench(so)
        bench.post(0, 1)
        bench.sim.step(wait)
        bench.bell.send(kind=abi.DOORBELL_CQ_ARM//4, page=5, queue=3, index=0)
        bench.sim.step(100)
        assert [e["type"] for e in bench.events()] == [abi.EVENT_COMPLETION], wait


def test_event_after_cqe(so):
    """When the event's bit rises its CQE is in memory, however slow the completion port."""
    bench = Bench(so)
    bench.memory.ports["cw", "write"].set(latency=(1, 300))
    causes = 1 << CAUSES.index(abi.EVENT_COMPLETION)
    for i in range(8):
        bench.consume(abi.DOORBELL_CQ_ARM)
        bench.post(i % 3, i)
        bench.sim.wait("causes", causes, max_cycles=2000)
        assert [e["wr_id"] for e in bench.poll()] == [i]
        bench.consume()
        bench.sim.step(4)


def test_bad_doorbells(so):
    """Doorbells for no queue, from another page, or beyond what was produced are refused and change nothing."""
    bench = Bench(so)
    bench.consume(page=6)
    bench.consume(queue=9)
    bench.consume(queue=200)
    bench.consume(index=1)
    bench.consume(abi.DOORBELL_CQ_ARM, page=6)
    assert [r.row for r in bench.refusal.recv_all()] == [ERRORS["DOORBELL"].index]*5
    bench.post(0, 7)
    bench.sim.step(40)
    assert [e["wr_id"] for e in bench.poll()] == [7]
    assert not bench.events()


def test_write_error(so):
    """A CQE that memory refuses raises CQ_ERR."""
    bench = Bench(so)
    bench.memory.ports["cw", "write"].set(error=1.0, err=2)
    bench.post(0, 1)
    bench.sim.step(80)
    assert [(e["type"], e["info"]) for e in bench.events()] == [(abi.EVENT_CQ_ERR, 2)]
