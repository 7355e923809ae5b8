# SPDX-License-Identifier: BSD-2-Clause
"""arbiter: every client has its turn within n, one that asks alone at once or a clock later; a choice holds while it waits."""
import pytest
from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.arbiter import StreamChoice, Turns
from sim.harness import Sim, build

N = 3


class Arbiters(LiteXModule):
    """Both kinds of turns for N and for one client; a choice of N streams whose taker may wait."""
    def __init__(self):
        self.kinds = {"now": Turns(N, ahead=True), "later": Turns(N), "one": Turns(1)}
        for name, turns in self.kinds.items():
            setattr(self.submodules, name, turns)
        self.commands = [stream.Endpoint([("number", 16)]) for _ in range(N)]
        self.out      = stream.Endpoint([("number", 16)])
        self.choice   = StreamChoice(self.commands, self.out, 1, self.out.ready)
        self.comb    += self.out.first.eq(1), self.out.last.eq(1)


@pytest.fixture(scope="module")
def so():
    top = Arbiters()
    ios = {f"{name}_{signal}": getattr(turns, signal) for name, turns in top.kinds.items()
           for signal in ("request", "grant", "next") + (("keep",) if name == "now" else ())}
    return build(top, {**ios, "command": top.commands, "out": top.out}, name="arbiters")


@pytest.fixture
def sim(so, seed):
    sim = Sim(so, seed=seed)
    sim.reset()
    return sim


@pytest.mark.parametrize("kind", ["now", "later"])
def test_turns_in_order(sim, kind):
    """With all asking the turn goes round, one a clock."""
    sim.poke(f"{kind}_request", 2**N - 1)
    sim.poke(f"{kind}_next", 1)
    seen = []
    for _ in range(3*N):
        seen.append(sim.peek(f"{kind}_grant"))
        sim.step()
    assert all((a + 1) % N == b for a, b in zip(seen, seen[1:]))


@pytest.mark.parametrize("kind,clocks", [("now", 0), ("later", 1)])
def test_who_comes_alone(sim, rng, kind, clocks):
    """A client that asks alone is granted in that clock, or in the next one."""
    for _ in range(50):
        client = rng.randrange(N)
        sim.poke(f"{kind}_request", 1 << client)
        sim.poke(f"{kind}_next", 1)
        sim.step(clocks)
        assert sim.peek(f"{kind}_grant") == client
        sim.poke(f"{kind}_request", 0)
        sim.step()


def test_nobody_waits_for_more_than_all_others(sim, rng):
    """Random requests that stand until they are served: at most N - 1 others go between."""
    for kind in ("now", "later"):
        asking, waited = set(), [0]*N
        for _ in range(2000):
            asking |= {n for n in range(N) if rng.random() < .4}
            sim.poke(f"{kind}_request", sum(1 << n for n in asking))
            sim.poke(f"{kind}_next", 1)
            grant = sim.peek(f"{kind}_grant")
            if grant in asking:
                for n in asking - {grant}:
                    waited[n] += 1
                asking.discard(grant)
                waited[grant] = 0
            assert max(waited) < N
            sim.step()


def test_kept(sim):
    """`keep` holds the choice against one that would be next."""
    sim.poke("now_request", 0b001)
    sim.poke("now_next", 1)
    sim.poke("now_keep", 1)
    sim.step()
    sim.poke("now_request", 0b111)
    assert sim.peek("now_grant") == 0
    sim.poke("now_keep", 0)
    sim.step()
    assert sim.peek("now_grant") == 1


def test_one_client(sim):
    for request in (0, 1):
        sim.poke("one_request", request)
        sim.poke("one_next", 1)
        sim.step()
        assert sim.peek("one_grant") == 0


@pytest.mark.parametrize("gap,stall", [(0, 0), (.5, .5), (.2, .8)])
def test_streams(sim, rng, gap, stall):
    """Each stream in its own order, nothing lost or doubled; an offer stands until it is taken (the harness checks that)."""
    sources, sink = [sim.source(f"command{n}", gap=gap) for n in range(N)], sim.sink("out", stall=stall)
    for k in range(300):
        n = rng.randrange(N)
        sources[n].send(number=n << 12 | k)
    sim.until(sink, 300, max_cycles=20_000)
    got = [record.number for record in sink.recv_all()]
    assert len(set(got)) == 300
    for n in range(N):
        assert [x for x in got if x >> 12 == n] == sorted(x for x in got if x >> 12 == n)


def test_refused():
    with pytest.raises(ValueError, match="at least 1, not 0"):
        Turns(0)
