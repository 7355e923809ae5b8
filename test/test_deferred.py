# SPDX-License-Identifier: BSD-2-Clause
"""memory/deferred alone: records of every QP come out in order, whatever clock they were appended in; places come back."""
import pytest
from litex.gen import *
from migen import *

from roce_soc.common import QPI_WIDTH
from roce_soc.memory.deferred import PATIENCE, Deferred, MissQueue
from sim.harness import Sim, build

N, DEPTH = 16, 64
OPS = ("append", "passed", "missed", "miss")


class Top(LiteXModule):
    """The lists with `waits` of a QP to ask for."""
    def __init__(self):
        self.deferred = deferred = Deferred([("qpi", QPI_WIDTH), ("number", 16), ("weight", 4)], N, DEPTH, lambda record: record.weight)
        self.ask, self.waits = Signal(QPI_WIDTH), Signal()
        self.comb += self.waits.eq(deferred.waits(self.ask))


@pytest.fixture(scope="module")
def so():
    top = Top()
    d   = top.deferred
    return build(top, {**{op: getattr(d, op) for op in OPS}, "record": d.record, "source": d.source, "wake": d.wake, "free": d.free,
        "held": d.held, "released": d.released, "ready": d.ready, "ask": top.ask, "waits": top.waits}, name="deferred")


@pytest.mark.parametrize("again", [0, .5])
def test_random(so, seed, rng, again):
    """An owner with one record a clock, some of which miss: nothing is lost, overtaken or told twice; at most one of a QP is out."""
    sim = Sim(so, seed=seed)
    sim.reset()
    sim.wait("ready", 1)
    source, released = sim.sink("source", records=True), sim.sink("released", records=True)
    sent, done, out, held = {q: 0 for q in range(N)}, {q: [] for q in range(N)}, [], 0
    lists = {q: [] for q in range(N)}
    for clock in range(6000):
        taken = source.recv_all()
        for record in taken:
            assert record.qpi not in [r.qpi for r in out] and record.number == lists[record.qpi][0], "overtaken"
            out.append(record)
        ops, qpi, number, weight = dict.fromkeys(OPS, 0), rng.randrange(4 if clock < 3000 else N), 0, 0
        if out and rng.random() < .3:
            record = out.pop(rng.randrange(len(out)))
            qpi, number, weight = record.qpi, record.number, record.weight
            if rng.random() < again:
                ops["missed"] = 1
            else:
                ops["passed"] = 1
                done[qpi].append(lists[qpi].pop(0))
                held -= weight
        elif clock < 5000 and sim.peek("free") > 4:
            sim.poke("ask", qpi)
            sim.step(0)
            waits  = sim.peek("waits")
            assert waits or not lists[qpi], "records wait, and nobody says so"
            number, weight, missed = sent[qpi], rng.randrange(16), int(rng.random() < .2)
            sent[qpi] += 1
            if waits or missed:
                ops.update(append=1, miss=missed)
                lists[qpi].append(number)
                held += weight
            else:
                done[qpi].append(number)
        for name, value in (*ops.items(), ("record_qpi", qpi), ("record_number", number), ("record_weight", weight),
                            ("wake", int(rng.random() < .05))):
            sim.poke(name, value)
        sim.step()
    for op in OPS:
        sim.poke(op, 0)
    sim.poke("wake", 0)
    # What is left comes out by patience alone.
    for _ in range(200):
        for record in out + source.recv_all():
            assert record.number == lists[record.qpi][0]
            done[record.qpi].append(lists[record.qpi].pop(0))
            held -= record.weight
            sim.poke("record_qpi", record.qpi), sim.poke("record_weight", record.weight), sim.poke("passed", 1)
            sim.step()
            sim.poke("passed", 0)
        out = []
        sim.step(PATIENCE//4)
    assert done == {q: list(range(n)) for q, n in sent.items()}
    assert sim.peek("free") == DEPTH and sim.peek("held") == held == 0 and released.recv_all()


def test_wake_and_patience():
    """A wake lets all go that are queued, none that come later; without one the oldest goes after PATIENCE clocks."""
    top = MissQueue(N)
    sim = Sim(build(top, {"urgent": top.urgent, "wake": top.wake, "source": top.source, "ready": top.ready}, name="miss_queue"), seed=1)
    sim.reset()
    sim.wait("ready", 1)
    source = sim.sink("source", records=True)

    def miss(*qps):
        for qpi in qps:
            sim.poke("urgent_qpi", qpi), sim.poke("urgent_valid", 1)
            sim.step()
        sim.poke("urgent_valid", 0)
    miss(3, 1, 2)
    sim.step(100)
    assert not source.recv_all()
    sim.poke("wake", 1)
    sim.step()
    sim.poke("wake", 0)
    miss(5, 6)
    sim.step(100)
    assert [r.qpi for r in source.recv_all()] == [3, 1, 2]
    sim.step(PATIENCE)
    assert [r.qpi for r in source.recv_all()] == [5]
    sim.step(PATIENCE + 4)
    assert [r.qpi for r in source.recv_all()] == [6]
