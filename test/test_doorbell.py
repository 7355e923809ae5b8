# SPDX-License-Identifier: BSD-2-Clause
"""queue/doorbell: each word of each page goes to its queues; what has no meaning is refused and acknowledged."""
import pytest

from roce_soc import abi
from roce_soc.errors import ERRORS
from roce_soc.queue.doorbell import KIND_PUSH, QUEUES, DoorbellWindow
from sim.harness import Sim, build

PAGES = 4
BUS   = ("adr", "dat_w", "dat_r", "sel", "cyc", "stb", "we", "ack")
KINDS = {kind: name for name, kinds in QUEUES.items() for kind in kinds}


def make(pages):
    top = DoorbellWindow(pages)
    top.comb += [getattr(top.refusal, name).eq(0) for name in ("opcode", "qpn", "psn")]     # undriven: zero.
    return build(top, {**{name: getattr(top, name) for name in QUEUES}, "refusal": top.refusal,
        **{f"bus_{n}": getattr(top.bus, n) for n in BUS}}, name=f"doorbell{pages}")


@pytest.fixture(scope="module")
def so():
    return make(PAGES)


class Bench:
    def __init__(self, so, stall=0.0):
        self.sim     = sim = Sim(so, seed=1)
        self.queues  = {name: sim.sink(name, stall=stall) for name in QUEUES}
        self.refusal = sim.sink("refusal")
        for name in ("cyc", "stb", "we"):
            sim.poke(f"bus_{name}", 0)
        sim.reset()

    def access(self, offset, value=0, sel=0xf, we=1):
        """One bus access; clocks until its acknowledge."""
        sim = self.sim
        for name, v in (("adr", offset//4), ("dat_w", value), ("sel", sel), ("we", we), ("cyc", 1), ("stb", 1)):
            sim.poke(f"bus_{name}", v)
        for clocks in range(1, 200):
            sim.step()
            if sim.peek("bus_ack"):
                break
        else:
            raise AssertionError("no acknowledge")
        data = sim.peek("bus_dat_r")
        sim.step()     # a master sees the acknowledge at the next edge: it holds its strobe until then.
        sim.poke("bus_cyc", 0)
        sim.poke("bus_stb", 0)
        sim.step(2)
        assert not sim.peek("bus_ack") and data == 0
        return clocks

    def taken(self):
        """[(queue kind, kind, page, queue, index)]"""
        return [(name, r.kind, r.page, r["queue"], r["index"]) for name, sink in self.queues.items() for r in sink.recv_all()]


@pytest.mark.parametrize("stall", [0.0, 0.7])
def test_every_word(so, stall):
    """Each meaning of each page, exactly once, with queue and index in place."""
    bench = Bench(so, stall)
    for page in range(PAGES):
        for kind, name in KINDS.items():
            queue, index = 0x8001 + page, 0x7ffe - kind
            bench.access(page*abi.DOORBELL_PAGE_BYTES + kind, queue << 16 | index)
            assert bench.taken() == [(name, KIND_PUSH if kind == abi.DOORBELL_SQ_PUSH else kind//4, page, queue, index)]
    assert not len(bench.refusal)


def test_refused(so):
    """Other offsets and narrow writes: one refusal with the address, an acknowledge, no record. Reads do nothing."""
    bench, bad = Bench(so), []
    for offset in (20, 24, 0x7c, 0x104, 0x180, 0x800, 0xffc, 0x1014):
        bench.access(offset, 1 << 16)
        bad.append(offset)
    for sel in (1, 3, 7, 12, 14):
        bench.access(abi.DOORBELL_RQ, 1 << 16, sel=sel)
        bad.append(abi.DOORBELL_RQ)
    bench.access(abi.DOORBELL_SQ, we=0)
    bench.access(20, we=0)
    assert [(r.row, r.info) for r in bench.refusal.recv_all()] == [(ERRORS["DOORBELL"].index, offset) for offset in bad]
    assert not bench.taken()


def test_waits_for_the_queue(so):
    """The acknowledge waits until the record is taken: a later access of the master cannot overtake it."""
    bench = Bench(so)
    bench.queues["sq"].set(stall=1.0)
    bench.sim.step(2)
    assert bench.access(abi.DOORBELL_SQ, we=0) <= 2, "a read waits for no queue"
    with pytest.raises(AssertionError, match="no acknowledge"):
        bench.access(abi.DOORBELL_SQ, 5)
    bench.queues["sq"].set(stall=0.0)
    bench.sim.run(lambda: bench.sim.peek("bus_ack"), max_cycles=4, every=1)
    bench.sim.step()
    bench.sim.poke("bus_cyc", 0)
    bench.sim.poke("bus_stb", 0)
    bench.sim.step(4)
    assert bench.taken() == [("sq", 0, 0, 0, 5)]
    assert bench.access(abi.DOORBELL_SQ, 6) <= 2


def test_one_page():
    """A window of a single page ignores the bits above it."""
    bench = Bench(make(1))
    bench.access(abi.DOORBELL_CQ, 3 << 16 | 9)
    bench.access(3*abi.DOORBELL_PAGE_BYTES + abi.DOORBELL_CQ, 4 << 16 | 9)
    assert bench.taken() == [("cq", 2, 0, 3, 9), ("cq", 2, 0, 4, 9)]


@pytest.mark.parametrize("pages", [0, 3, 8192, -4])
def test_bad_pages(pages):
    with pytest.raises(ValueError, match=f"power of two from 1 to 4096, not {pages}"):
        DoorbellWindow(pages)
