# SPDX-License-Identifier: BSD-2-Clause
"""Crossings of a ClockLink: order, nothing doubled, torn or made up, at any ratio, phase and under resets of either side."""
import random

import pytest
from litex.gen import *
from litex.soc.interconnect import stream, wishbone
from litex.soc.interconnect.stream import EndpointDescription
from migen import *

from roce_soc.clocks import ClockLink
from sim.harness import Sim, build

WIDTH  = 40
FRAMES = EndpointDescription([("data", 64), ("last_be", 8), ("error", 8)])
RATIOS = {"250/100": (10_000, 4000), "equal": (4000, 4000), "100/250": (4000, 10_000), "250/249": (4013, 4000), "far apart": (40_000, 3100)}


class Slave(LiteXModule):
    """A memory of 16 words and a bell at word 16, both as slow as asked; tells what rang and what had been written by then."""
    def __init__(self):
        self.bus   = bus = wishbone.Interface(data_width=32, address_width=32, addressing="word")
        self.delay = Signal(6)
        self.rings = Signal(16)
        self.seen  = Signal(32)
        self.writes = Signal(16)
        self.words = Array(Signal(32) for _ in range(16))
        count = Signal(6)
        begin = Signal()
        self.comb += begin.eq(bus.cyc & bus.stb & ~bus.ack & (count == self.delay))
        self.sync += [
            bus.ack.eq(begin),
            If(bus.cyc & bus.stb & ~bus.ack & ~begin, count.eq(count + 1)).Else(count.eq(0)),
            If(begin & bus.we,
                If(bus.adr[4],
                    self.rings.eq(self.rings + 1),
                    self.seen.eq(self.words[bus.dat_w]),
                ).Else(
                    self.words[bus.adr[:4]].eq(bus.dat_w),
                    self.writes.eq(self.writes + 1),
                )
            ),
            If(begin, bus.dat_r.eq(self.words[bus.adr[:4]])),
        ]


class Link(LiteXModule):
    """One of every crossing."""
    def __init__(self):
        self.link   = link = ClockLink("sys", "roce")
        self.down   = link.add_stream([("value", WIDTH)], to_far=True)
        self.up     = link.add_stream([("value", WIDTH)], to_far=False)
        self.frames = link.add_frames(FRAMES, to_far=True)
        self.slave  = link.on_far(Slave())
        self.bus    = link.add_bus(self.slave.bus)
        self.query  = link.add_query(32, 4, latency=1)
        self.pulses = Signal(3)
        self.pulsed = link.add_pulses(self.pulses, to_far=False)
        self.number = Signal(32)
        self.word   = link.add_word(self.number, to_far=False)
        # Far table of the query: index times 3 at the next clock.
        self.sync.roce += If(self.query.far_ask, self.query.far_value.eq(self.query.far_index*3))
        self.seen = [Signal(16, name=f"seen{i}") for i in range(3)]
        self.sync += [If(self.pulsed[i], seen.eq(seen + 1)) for i, seen in enumerate(self.seen)]


@pytest.fixture(scope="module")
def so():
    top = Link()
    bus = {f"bus_{n}": getattr(top.bus, n) for n in ("adr", "dat_w", "dat_r", "sel", "cyc", "stb", "we", "ack")}
    return build(top, {"down_in": top.down[0], "down_out": top.down[1], "up_in": top.up[0], "up_out": top.up[1], "frame_in": top.frames[0],
        "frame_out": top.frames[1], **bus, "delay": top.slave.delay, "rings": top.slave.rings, "seen": top.slave.seen, "writes": top.slave.writes,
        "ask": top.query.ask, "index": top.query.index, "value": top.query.value, "known": top.query.ready, "pulses": top.pulses,
        "seen_pulses": top.seen, "number": top.number, "word": top.word, "near_stop": top.link.near.stop, "far_stop": top.link.far.stop},
        name="clock_link", clocks=("sys", "roce"))


class Bench:
    """A running Link; time steps are those of `sys`."""
    def __init__(self, so, seed, ratio):
        self.rng = rng = random.Random(seed)
        sys, roce = RATIOS[ratio]
        self.sim = sim = Sim(so, seed=seed, clocks={"sys": (sys, rng.randrange(sys)), "roce": (roce, rng.randrange(roce))})
        self.ends = {n: sim.source(f"{n}_in", clock=c, gap=rng.choice((0, .3))) for n, c in (("down", "sys"), ("up", "roce"), ("frame", "sys"))}
        self.outs = {n: sim.sink(f"{n}_out", clock=c, stall=rng.choice((0, .3)), **k) for n, c, k in (("down", "roce", {}), ("up", "sys", {}),
            ("frame", "roce", dict(check_first=False)))}
        sim.reset()
        sim.poke("delay", rng.randrange(8))
        self.open_access = False
        self.open()

    def open(self):
        for name in ("near_stop", "far_stop"):
            self.sim.wait(name, 0, max_cycles=1000)

    def start(self, adr, value=None):
        """An access begins."""
        for name, v in (("adr", adr), ("dat_w", value or 0), ("sel", 15), ("we", value is not None), ("cyc", 1), ("stb", 1)):
            self.sim.poke(f"bus_{name}", int(v))
        self.open_access = True
        return adr

    def drop(self):
        """The master is gone."""
        self.sim.poke("bus_cyc", 0)
        self.sim.poke("bus_stb", 0)
        self.open_access = False

    def watch(self, cycles, until_idle=False):
        """So many clocks, or until the access under way is acknowledged."""
        for _ in range(cycles):
            if until_idle and not self.open_access:
                return
            done = self.open_access and self.sim.peek("bus_ack")
            if done:
                self.answer = self.sim.peek("bus_dat_r")
            self.sim.step()
            if done:
                self.drop()

    def access(self, adr, value=None):
        """One bus access; the value read."""
        self.start(adr, value)
        self.watch(2000, until_idle=True)
        assert not self.open_access, "no acknowledge"
        return self.answer

    def ask(self, index):
        sim = self.sim
        sim.poke("index", index)
        sim.poke("ask", 1)
        sim.step()
        sim.poke("ask", 0)
        sim.step()
        sim.wait("known", 1, max_cycles=1000)
        return sim.peek("value")


@pytest.mark.parametrize("ratio", RATIOS)
def test_every_item_once_and_in_order(so, ratio, seed):
    bench = Bench(so, seed, ratio)
    sent  = {n: [bench.rng.getrandbits(WIDTH) for _ in range(400)] for n in ("down", "up")}
    for name, values in sent.items():
        for v in values:
            bench.ends[name].send(value=v)
    bench.sim.run(lambda: all(len(bench.outs[n]) == 400 for n in sent))
    for name, values in sent.items():
        assert [f.value for f in bench.outs[name].recv_all()] == values


@pytest.mark.parametrize("ratio", RATIOS)
def test_pulses_and_words(so, ratio, seed):
    """Each pulse is followed by one on the other side; a number is never torn."""
    bench = Bench(so, seed, ratio)
    sim   = bench.sim
    for bit in range(3):
        before = sim.peek(f"seen_pulses{bit}")
        sim.poke("pulses", 1 << bit)
        sim.step(bench.rng.choice((1, 1, 5)) if ratio != "100/250" else 3)
        sim.poke("pulses", 0)
        sim.step(60)
        assert sim.peek(f"seen_pulses{bit}") > before
    # More than can cross, then one of another kind.
    for bit in range(2):
        before = sim.peek(f"seen_pulses{bit + 1}")
        sim.poke("pulses", 1 << bit)
        sim.step(50)
        sim.poke("pulses", 2 << bit)
        sim.step(1, "roce")
        sim.poke("pulses", 0)
        sim.step(100)
        assert sim.peek(f"seen_pulses{bit + 1}") > before
    allowed = {0}
    for _ in range(300):
        value = bench.rng.choice((0, 0xffffffff, 0x55555555, 0xaaaaaaaa))
        allowed.add(value)
        sim.poke("number", value)
        sim.step(bench.rng.randrange(1, 4))
        assert sim.peek("word") in allowed
    sim.step(80)
    assert sim.peek("word") == value


@pytest.mark.parametrize("ratio", RATIOS)
def test_a_bell_rings_behind_the_writes_before_it(so, ratio, seed):
    """Memory and bell behind the bus: what the bell's slave sees is the master's last write, whatever the slave's delay."""
    bench = Bench(so, seed, ratio)
    for n in range(40):
        word, value = bench.rng.randrange(16), bench.rng.getrandbits(32)
        bench.sim.poke("delay", bench.rng.randrange(8))
        bench.access(word, value)
        bench.access(16, word)
        assert bench.sim.peek("rings") == n + 1 and bench.sim.peek("seen") == value
        assert bench.access(word) == value and bench.ask(n % 16) == n % 16*3


@pytest.mark.parametrize("ratio", RATIOS)
def test_a_bus_beside_a_long_reset_goes_on(so, ratio, seed):
    """While the far side is in reset each access has its acknowledge, with ones, and is not made; then all works again."""
    bench = Bench(so, seed, ratio)
    bench.access(3, 0x1111)
    bench.sim.hold("roce")
    bench.access(3)
    for _ in range(3):
        bench.start(3)
        assert not bench.sim.peek("bus_ack"), "LiteX's decoder hands on no acknowledge of an access' first clock"
        bench.watch(2000, until_idle=True)
        assert bench.answer == 0xffff_ffff
        bench.access(3, 0x2222)
    bench.sim.hold("roce", False)
    bench.open()
    # The reset has cleared the count; none of the writes meanwhile is in it.
    assert bench.access(14, 5) is not None and bench.sim.peek("writes") == 1
    assert bench.access(14) == 5


@pytest.mark.parametrize("side", ["sys", "roce", "both"])
@pytest.mark.parametrize("ratio", RATIOS)
def test_resets_at_any_moment(so, ratio, side, seed):
    """Resets of one clock or more in the midst of everything: whole items, in order, none made up; all works again."""
    bench, rng = Bench(so, seed, ratio), random.Random(seed + 1)
    sim, rings, writes, sent = bench.sim, 0, 0, {n: [] for n in ("down", "up")}
    whole = [rng.randbytes(rng.randrange(1, 200)) for _ in range(60)]
    bench.access(14, 0xabcd0000)
    writes = 1
    for turn in range(25):
        for name in ("down", "up"):
            for _ in range(rng.randrange(20)):
                sent[name].append(len(sent[name]) << 8 | rng.getrandbits(8))
                bench.ends[name].send(value=sent[name][-1])
        for _ in range(3):
            bench.ends["frame"].send(rng.choice(whole))
        # An access and a question are under way, or not. A slave may be slower than the resets.
        sim.poke("delay", rng.choice((0, 3, 60)))
        asked = rng.random() < .5
        if asked:
            sim.poke("index", 9)
            sim.poke("ask", 1)
            sim.step()
            sim.poke("ask", 0)
        bus = bench.start(16 if rng.random() < .5 else rng.randrange(14), 3) if rng.random() < .7 else None
        busy = bus is not None
        bench.watch(rng.randrange(1, 12))
        names = [side] if side != "both" else rng.sample(("sys", "roce"), 2)
        for name in names:
            sim.hold(name)
            if name == "sys":
                bench.drop()
            bench.watch(rng.randrange(0, 3))
        for name in rng.sample(names, len(names)):
            # A clock of its own, at least.
            sim.step(1, name)
            bench.watch(rng.choice((0, 0, 1, 40)))
            sim.hold(name, False)
        bench.watch(400, until_idle=True)
        assert not bench.open_access, "no acknowledge"
        bench.open()
        if names == ["sys"]:
            assert bench.access(14) == 0xabcd0000 + turn, "the answer of an access of before"
        sim.step(200)
        if asked and "sys" not in names:
            assert sim.peek("known") and sim.peek("value") == 27, "a question was lost"
        if "roce" in names:
            rings = writes = 0
            assert sim.peek("rings") <= 1 and sim.peek("writes") <= 1
        else:
            assert sim.peek("rings") - rings + sim.peek("writes") - writes <= int(busy), "an access was doubled or made up"
        before = sim.peek("rings")
        bench.access(5, 0x1234)
        bench.access(16, 5)
        assert sim.peek("rings") == before + 1 and sim.peek("seen") == 0x1234 and bench.access(5) == 0x1234
        assert bench.ask(7) == 21
        bench.access(14, 0xabcd0001 + turn)
        rings, writes = sim.peek("rings"), sim.peek("writes")
    sim.run(lambda: not any(e.pending for e in bench.ends.values()), max_cycles=20_000)
    sim.step(200)
    for name, values in sent.items():
        got = [f.value for f in bench.outs[name].recv_all()]
        assert got == sorted(set(got)) and set(got) <= set(values), f"{name}: an item doubled, swapped or made up"
        assert len(got) > len(values)//8, f"{name}: more lost than was on its way"
    for frame in bench.outs["frame"].recv_all():
        assert frame.error or frame.data in whole, "a torn frame without a mark"
    assert not bench.outs["frame"].stats()["open"]
