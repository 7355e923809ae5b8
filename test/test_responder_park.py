# SPDX-License-Identifier: BSD-2-Clause
"""transport/responder/entry alone: order within a QP, one packet of it in the check stage, wake-ups, pages, drain, places."""

import pytest
from litex.gen import *
from migen import *

from roce_soc.common import CTL_ERR, CTL_RESET, CTL_START
from roce_soc.transport.responder.layout import PSEUDO_CTL, PSEUDO_KILL, PSEUDO_NONE, PSEUDO_SILENT, packet_layout
from roce_soc.transport.responder.entry import PARK_DEPTH, PARK_QP, RequestEntry
from sim.harness import Sim, build

N, STAGES = 16, 6


class Entry(LiteXModule):
    """The entry in front of six empty stages; a packet is parked while the bit of its QP in `starved` is set, a QP waits for
    a page while its bit in `absent` is."""
    def __init__(self):
        self.entry   = entry = RequestEntry(N)
        self.starved, self.absent = Signal(N), Signal(N)
        fields       = ("qpi", "psn", "pseudo", "code", "parked", "drop")
        self.left    = Record([(n, w) for n, w in packet_layout() if n in fields] + [("valid", 1), ("park", 1)])
        stages = [Record(packet_layout()) for _ in range(STAGES)]
        valids = [Signal() for _ in range(STAGES)]
        for n in range(STAGES):
            self.sync += stages[n].eq(stages[n - 1] if n else entry.out)
            self.sync += valids[n].eq(valids[n - 1] if n else entry.out_valid)
        entry.connect_stages([(v, s.qpi) for v, s in zip(valids, stages)], lambda qpi: (self.absent >> qpi)[0])
        last, park = stages[-1], Signal()
        self.comb += [
            park.eq((last.pseudo == PSEUDO_NONE) & ~last.drop & (Cat(*[self.starved[n] & (last.qpi == n) for n in range(N)]) != 0)),
            entry.result.eq(last), entry.result_valid.eq(valids[-1]), entry.result_park.eq(park),
        ]
        # Two packets of a QP may never be in the stages, but for a fresh one behind the clock that writes its row back.
        self.twice = Signal()
        for n in range(STAGES):
            for m in range(n):
                self.sync += If(valids[n] & valids[m] & (stages[n].qpi == stages[m].qpi), self.twice.eq(1))
        self.sync += [
            [getattr(self.left, n).eq(getattr(last, n)) for n in fields],
            self.left.valid.eq(valids[-1]),
            self.left.park.eq(park),
        ]


@pytest.fixture(scope="module")
def so():
    top = Entry()
    e   = top.entry
    return build(top, {
        "packet": e.sink, "ctl": e.ctl, "kill": e.kill, "silent": e.silent, "wake": e.wake, "room": e.room,
        "done": e.ctl_done, "ready": e.ready, "parked": e.parked, "starved": top.starved, "left": top.left,
        "absent": top.absent, "released": e.released, "held_more": e.held_more,
        "twice": top.twice}, name="park")


class Bench:
    """What leaves the stages is noted in order; nothing else is decided here."""
    def __init__(self, so, seed=1, **options):
        self.sim = sim = Sim(so, seed=seed)
        self.packet, self.ctl, self.wake, self.released = (
            sim.source(n, **options) for n in ("packet", "ctl", "wake", "released"))
        self.left, self.dropped = [], []
        sim.reset()
        sim.wait("ready", 1)
        sim.poke("room", 1)

    def run(self, cycles):
        """Runs, notes what leaves; a control operation is done when it has left."""
        sim = self.sim
        for _ in range(cycles):
            sim.step()
            done = 0
            if sim.peek("left_valid"):
                fields = {n: sim.peek(f"left_{n}") for n in ("qpi", "psn", "pseudo", "code", "park", "drop")}
                done   = fields["pseudo"] == PSEUDO_CTL
                if fields["drop"]:
                    self.dropped.append((fields["qpi"], fields["psn"]))
                elif not fields["park"]:
                    self.left.append(fields)
            sim.poke("done", int(done))
        assert not sim.peek("twice"), "two packets of a QP in the check stage"

    def starve(self, *qps):
        """These QPs have no receive work request on chip."""
        self.sim.poke("starved", sum(1 << q for q in qps))

    def absent(self, *qps):
        """These QPs wait for a page."""
        self.sim.poke("absent", sum(1 << q for q in qps))

    def psns(self, qpi):
        """PSNs of the packets of a QP that passed."""
        return [f["psn"] for f in self.left if f["qpi"] == qpi and f["pseudo"] == PSEUDO_NONE]


def test_random(so, seed, rng):
    """Packets of every QP pass once, in order, whatever parks and wakes, or are dropped; places come back."""
    b, sent, starved = Bench(so, seed, gap=.2), {q: 0 for q in range(4)}, set()
    for _ in range(400):
        q = rng.randrange(4)
        b.packet.send(qpi=q, psn=sent[q])
        sent[q] += 1
        if rng.random() < .2:
            q = rng.randrange(4)
            if q in starved:
                starved.remove(q)
            else:
                starved.add(q)
            b.starve(*starved)
            b.wake.send(qpi=q)
        b.run(rng.randrange(8))
    b.starve()
    for _ in range(2):
        for q in range(4):
            b.wake.send(qpi=q)
        b.run(1500)
    want = {q: [psn for psn in range(n) if (q, psn) not in b.dropped] for q, n in sent.items()}
    assert {q: b.psns(q) for q in sent} == want and len(b.dropped) == len(set(b.dropped))
    assert b.sim.peek("parked") == 0


def test_woken_head_waits_for_its_own(so):
    """A head that is woken again while it is in the check stage enters only behind itself: it passes once."""
    for gap in range(1, 16):
        b = Bench(so)
        b.starve(1)
        for psn in range(3):
            b.packet.send(qpi=1, psn=psn)
        b.run(30)
        b.starve()
        b.wake.send(qpi=1)
        b.run(gap)
        b.wake.send(qpi=1)
        b.wake.send(qpi=1)
        b.run(150)
        assert b.psns(1) == [0, 1, 2] and b.sim.peek("parked") == 0, gap


@pytest.mark.parametrize("op", [CTL_ERR, CTL_RESET])
@pytest.mark.parametrize("wakes", [0, 1, 40, 300])
def test_drain_waits_for_its_turn(so, op, wakes):
    """RESET and ERR let the parked packets of their QP through, also when another QP's wake-ups hold the way."""
    for gap in range(0, 12, 1 if wakes < 100 else 5):
        b = Bench(so)
        b.starve(2, 3)
        for psn in range(3):
            b.packet.send(qpi=2, psn=psn)
        b.packet.send(qpi=3, psn=7)
        b.run(60)
        for _ in range(wakes):
            b.wake.send(qpi=3)
        b.starve(3)                  # a dead QP's packets are not parked any more.
        b.run(gap)
        b.ctl.send(qpi=2, op=op)
        for _ in range(80):
            b.run(50 if b.ctl.pending else 0)
        assert not b.ctl.pending, f"control waits for ever, {gap} clocks behind the first of {wakes} wake-ups"
        mine = [(f["pseudo"], f["code"] if f["pseudo"] == PSEUDO_CTL else f["psn"]) for f in b.left if f["qpi"] == 2]
        assert mine == [(PSEUDO_SILENT, 0), *[(PSEUDO_NONE, n) for n in range(3)], (PSEUDO_CTL, op)], gap
        assert b.sim.peek("parked") == 1 and not b.psns(3)


def test_drain_among_packets_that_leave(so):
    """A drain that meets another QP's packet leaving its list is not lost, at any clock."""
    for gap in range(24):
        b = Bench(so)
        b.starve(2, 3)
        b.packet.send(qpi=2, psn=5)
        for psn in range(10):
            b.packet.send(qpi=3, psn=psn)
        b.run(60)
        b.starve()
        b.wake.send(qpi=3)
        b.run(gap)
        b.ctl.send(qpi=2, op=CTL_RESET)
        b.run(300)
        assert not b.ctl.pending and b.psns(2) == [5] and b.psns(3) == list(range(10)), gap


def test_control_waits_for_the_check_stage(so):
    """START does not meet a packet of its QP in the check stage, at any clock."""
    for gap in range(12):
        b = Bench(so)
        b.packet.send(qpi=4, psn=1)
        b.run(gap)
        b.ctl.send(qpi=4, op=CTL_START)
        b.packet.send(qpi=4, psn=2)
        b.run(60)
        assert b.psns(4) == [1, 2] and not b.ctl.pending, gap


@pytest.mark.parametrize("op", [CTL_ERR, CTL_RESET])
def test_drain_among_kills(so, op):
    """The QP is silenced before its parked packets pass, also while others are killed or fall silent, at any clock."""
    for gap in range(10):
        b = Bench(so)
        kill, silent = b.sim.source("kill"), b.sim.source("silent")
        b.starve(2)
        for psn in range(3):
            b.packet.send(qpi=2, psn=psn)
        b.run(60)
        b.starve()
        for n in range(4):
            kill.send(qpi=5, psn=n, row=41)
            silent.send(qpi=6)
        b.run(gap)
        b.ctl.send(qpi=2, op=op)
        b.run(300)
        mine = [(f["pseudo"], f["code"] if f["pseudo"] == PSEUDO_CTL else f["psn"]) for f in b.left if f["qpi"] == 2]
        assert mine == [(PSEUDO_SILENT, 0), *[(PSEUDO_NONE, n) for n in range(3)], (PSEUDO_CTL, op)], gap
        others = [(f["qpi"], f["pseudo"], f["psn"], f["code"]) for f in b.left if f["qpi"] != 2]
        assert [f for f in others if f[0] == 5] == [(5, PSEUDO_KILL, n, 41) for n in range(4)], gap
        assert sum(f[:2] == (6, PSEUDO_SILENT) for f in others) == 4 and len(others) == 8, gap


def test_no_room(so):
    """Without room behind nothing enters; with it everything does."""
    b = Bench(so)
    b.sim.poke("room", 0)
    b.packet.send(qpi=1, psn=1)
    b.ctl.send(qpi=2, op=CTL_START)
    b.run(40)
    assert not b.left
    b.sim.poke("room", 1)
    b.run(40)
    assert sorted(f["qpi"] for f in b.left) == [1, 2]


def test_places_run_out(so):
    """What a starved QP sends beyond its places is dropped at once and holds up nobody; those parked go on, in order."""
    b = Bench(so)
    b.starve(1)
    for psn in range(PARK_DEPTH + 20):
        b.packet.send(qpi=1, psn=psn)
    b.packet.send(qpi=2, psn=0)
    b.run(1200)
    assert not b.packet.pending and b.sim.peek("parked") == PARK_QP and b.psns(2) == [0]
    assert b.dropped == [(1, psn) for psn in range(PARK_QP, PARK_DEPTH + 20)]
    b.starve()
    b.wake.send(qpi=1)
    b.run(4000)
    assert b.psns(1) == list(range(PARK_QP)) and b.sim.peek("parked") == 0


def test_page(so):
    """What a QP that waits for a page sends queues up untried, whoever wakes it; once released all passes in order."""
    b = Bench(so)
    b.absent(2)
    for psn in range(3):           # so that the first place is not the first of the list.
        b.packet.send(qpi=2, psn=psn)
    b.run(30)
    b.absent()
    b.released.send(qpi=2)
    b.run(60)
    b.packet.send(qpi=1, psn=0)
    b.run(3)
    b.absent(1)                    # found out while the first is in the check stage and the second behind it.
    for psn in range(1, 6):
        b.packet.send(qpi=1, psn=psn)
        b.packet.send(qpi=2, psn=psn + 2)
    b.wake.send(qpi=1)
    b.run(200)
    assert b.psns(1) == [0] and b.psns(2) == list(range(8)) and b.sim.peek("parked") == 5
    b.absent()
    b.released.send(qpi=1)
    b.packet.send(qpi=1, psn=6)
    b.run(200)
    assert b.psns(1) == list(range(7)) and b.sim.peek("parked") == 0


def test_page_behind_a_starved_head(so):
    """A packet in the check stage that has to be parked goes before those that came while a page was found missing."""
    for wait in range(1, 12):
        b = Bench(so)
        b.starve(1)
        b.packet.send(qpi=1, psn=0)
        b.run(wait)
        b.absent(1)
        for psn in range(1, 4):
            b.packet.send(qpi=1, psn=psn)
        b.run(60)
        b.starve()
        b.wake.send(qpi=1)
        b.run(20)
        b.absent()
        b.released.send(qpi=1)
        b.run(200)
        assert b.psns(1) == list(range(4)) and b.sim.peek("parked") == 0, wait


def test_page_and_reset(so):
    """RESET and ERR of a QP that waits for a page take effect once it is released, with its packets before them."""
    for op in (CTL_RESET, CTL_ERR):
        b = Bench(so)
        b.absent(1)
        for psn in range(3):
            b.packet.send(qpi=1, psn=psn)
        b.run(30)
        b.ctl.send(qpi=1, op=op)
        b.run(100)
        assert b.ctl.pending and not b.psns(1)
        b.absent()
        b.released.send(qpi=1)
        b.run(200)
        assert not b.ctl.pending and b.psns(1) == list(range(3)) and b.left[-1]["pseudo"] == PSEUDO_CTL


def test_chunks_of_others(so):
    """Where what others hold leaves no chunks a packet that would have to wait is dropped, others pass."""
    b = Bench(so)
    b.absent(1)
    b.sim.poke("held_more", 256)
    b.run(3)
    for q in (1, 2):
        b.packet.send(qpi=q, psn=0)
    b.run(60)
    assert b.dropped == [(1, 0)] and b.psns(2) == [0] and b.sim.peek("parked") == 0
