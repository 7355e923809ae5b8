# SPDX-License-Identifier: BSD-2-Clause
"""queue/eq: order, fields and phase of events, full and missing rings, doorbells, refused writes, pending causes."""
import pytest
from litex.gen import *
from migen import *

from roce_soc import abi
from roce_soc.queue.eq import CAUSE_OVERFLOW, CAUSES, EventQueue
from sim.harness import Sim, build
from sim.harness.memory import IDEAL, SLOW

ADDR  = 0x20000
EAGER = dict(latency=4, cmd_stall=.7, ahead=4)      # takes data before the command they belong to.


class Events(LiteXModule):
    """An event queue whose cause pulses are counted, as the pending bits would see them."""
    def __init__(self):
        self.eq     = EventQueue()
        self.ports  = [self.eq.get_port() for _ in range(3)]
        self.counts = [Signal(8) for _ in range(len(CAUSES) + 1)]
        self.sync  += [If(self.eq.causes[i], count.eq(count + 1)) for i, count in enumerate(self.counts)]


@pytest.fixture(scope="module")
def so():
    top = Events()
    eq  = top.eq
    return build(top, {**{f"event{i}": port for i, port in enumerate(top.ports)}, "write": eq.write, "bell": eq.doorbell,
        "now": eq.time, "m_wcmd": eq.wcmd, "m_wdata": eq.wdata, "m_wack": eq.wack,
        **{f"count{i}": count for i, count in enumerate(top.counts)}}, name="eq")


class Bench:
    def __init__(self, so, log2=3, enable=1, **memory):
        self.sim    = sim = Sim(so, seed=1)
        self.events = [sim.source(f"event{i}") for i in range(3)]
        self.write, self.bell = sim.source("write"), sim.source("bell")
        self.memory = sim.memory("m", fill=0, **(memory or IDEAL))
        sim.poke("now", 0)
        sim.reset()
        self.log2, self.read = log2, 0
        if enable:
            self.ring()

    def ring(self, **more):
        self.write.send(**{**dict(index=0, enable=1, log2=self.log2, target=0, page=7, addr=ADDR), **more})
        self.sim.drain(self.write)
        self.sim.step(2)

    def post(self, port=0, type=abi.EVENT_COMPLETION, queue=0, info=0):
        self.events[port].send(type=type, queue=queue, info=info)

    def consume(self, index=None, page=7, queue=0):
        self.bell.send(kind=abi.DOORBELL_EQ//4, page=page, queue=queue, index=(self.read if index is None else index) & 0xffff)
        self.sim.drain(self.bell)
        self.sim.step(2)

    def poll(self):
        out = []
        while True:
            size  = 1 << self.log2
            entry = abi.unpack(abi.EQE, self.memory.read(ADDR + abi.EQE_BYTES*(self.read % size), abi.EQE_BYTES))
            if entry["phase"] == (self.read//size) & 1:
                return out
            out.append(entry)
            self.read += 1

    def pulses(self):
        """Pulses of each cause so far, overflow last."""
        return [self.sim.peek(f"count{i}") for i in range(len(CAUSES) + 1)]


@pytest.mark.parametrize("memory", [IDEAL, SLOW, EAGER])
def test_order_and_wrap(so, memory, rng):
    """Several turns of the ring: each client's order, every field, the time, and one cause pulse an event."""
    bench, sent, got = Bench(so, **memory), {p: [] for p in range(3)}, []
    wanted = [0]*(len(CAUSES) + 1)
    for turn in range(6):
        bench.sim.poke("now", 0xf000_0000 + turn)
        for _ in range(7):
            port = rng.randrange(3)
            kind = rng.choice(CAUSES)
            item = dict(type=kind, queue=rng.getrandbits(14) << 2 | port, info=rng.getrandbits(32), time=0xf000_0000 + turn)
            wanted[CAUSES.index(kind)] += 1
            sent[port].append(item)
            bench.post(port, item["type"], item["queue"], item["info"])
        bench.sim.run(lambda: got.extend(bench.poll()) or len(got) == 7*(turn + 1), max_cycles=40_000)
        bench.sim.step(8)
        bench.consume()
    for port in range(3):
        assert [{k: e[k] for k in ("type", "queue", "info", "time")} for e in got if e["queue"] & 3 == port] == sent[port]
    assert bench.pulses() == wanted


def test_full(so):
    """A full ring: no entry is overwritten, cause and overflow bits rise for each event left out; a doorbell makes room."""
    bench = Bench(so)
    for i in range(11):
        bench.post(type=abi.EVENT_QP_FATAL, queue=i)
    bench.sim.step(300)
    assert [e["queue"] for e in bench.poll()] == list(range(8))
    assert bench.pulses()[CAUSES.index(abi.EVENT_QP_FATAL)] == 11 and bench.pulses()[CAUSE_OVERFLOW] == 3
    bench.consume(index=1)
    for i in (20, 21):
        bench.post(queue=i)
    bench.sim.step(100)
    assert [e["queue"] for e in bench.poll()] == [20]
    assert bench.pulses()[CAUSE_OVERFLOW] == 4


def test_another_page(so):
    """A doorbell on another owner's page, or for another queue, makes no room."""
    bench = Bench(so)
    for i in range(8):
        bench.post(queue=i)
    bench.sim.step(200)
    bench.consume(index=8, page=6)
    bench.consume(index=8, queue=1)
    bench.post(queue=8)
    bench.sim.step(60)
    assert bench.pulses()[CAUSE_OVERFLOW] == 1


def test_no_ring(so):
    """Without a ring nothing is written; cause and overflow bits rise. A ring given later starts empty."""
    bench = Bench(so, enable=0)
    bench.post(type=abi.EVENT_PORT_ERR)
    bench.sim.step(60)
    assert bench.memory.counters()["m", "write"]["commands"] == 0
    assert bench.pulses()[CAUSES.index(abi.EVENT_PORT_ERR)] == 1 and bench.pulses()[CAUSE_OVERFLOW] == 1
    bench.ring()
    bench.post(queue=5)
    bench.sim.step(60)
    assert [e["queue"] for e in bench.poll()] == [5] and bench.pulses()[CAUSE_OVERFLOW] == 1


def test_new_geometry(so):
    """Writing the geometry resets both indices."""
    bench = Bench(so)
    for i in range(5):
        bench.post(queue=i)
    bench.sim.step(200)
    bench.poll()
    bench.consume()
    bench.memory.write(ADDR, bytes(1024))
    bench.ring()
    bench.read = 0
    for i in range(9):
        bench.post(queue=10 + i)
    bench.sim.step(300)
    assert [e["queue"] for e in bench.poll()] == [10 + i for i in range(8)]
    assert bench.pulses()[CAUSE_OVERFLOW] == 1


def test_refused_write(so):
    """A write that memory refuses sets the overflow bit beside the cause."""
    bench = Bench(so)
    bench.memory.ports["m", "write"].set(error=1.0, err=2)
    bench.post(type=abi.EVENT_CQ_ERR)
    bench.sim.step(60)
    assert bench.pulses()[CAUSES.index(abi.EVENT_CQ_ERR)] == 1 and bench.pulses()[CAUSE_OVERFLOW] == 1


def test_cause_after_the_entry(so):
    """The cause rises when the entry is in memory, however slow that is."""
    bench = Bench(so, latency=300)
    bench.post(queue=4)
    bench.sim.step(200)
    assert bench.pulses()[0] == 0
    bench.sim.run(lambda: bench.pulses()[0], max_cycles=400, every=1)
    assert [e["queue"] for e in bench.poll()] == [4]


@pytest.mark.parametrize("memory", [IDEAL, SLOW, EAGER])
def test_made_anew_at_every_clock(so, memory):
    """A geometry that comes in the midst of an event: nothing lands in the old ring any more, the new one begins at its first place."""
    for clock in range(24):
        b = Bench(so, **memory)
        b.post(queue=1)
        b.sim.step(clock)
        b.write.send(index=0, enable=1, log2=3, target=0, page=7, addr=ADDR + 0x1000)
        b.sim.drain(b.write)
        old = b.memory.read(ADDR, 128)
        b.post(queue=2)
        b.sim.step(3000)      # two writes, each of up to 1000 clocks.
        assert b.memory.read(ADDR, 128) == old, f"clock {clock}: written after the ring had moved"
        new = [abi.unpack(abi.EQE, b.memory.read(ADDR + 0x1000 + 16*n, 16)) for n in range(3)]
        assert [e["queue"] for e in new if e["phase"]] == ([2] if any(old) else [1, 2]), f"clock {clock}: {new}"
        assert new[0]["phase"], "the first place is left out"


def test_time_stands_still(so):
    """Time goes on while an entry waits for its memory: the entry does not change (the harness sees it), and holds when the event was taken."""
    b = Bench(so, latency=4, data_stall=.9, cmd_stall=.5)
    for n in range(6):
        b.post(queue=n)
    for now in range(1, 600):
        b.sim.poke("now", now)
        b.sim.step()
    times = [e["time"] for e in b.poll()]
    assert len(times) == 6 and times == sorted(times) and 0 < times[0] < times[-1] < 600
