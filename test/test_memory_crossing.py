# SPDX-License-Identifier: BSD-2-Clause
"""memory/crossing: the port contract through two clocks, at the slower one's rate; either side reset at any moment."""
import random

import pytest
from litex.gen import *
from migen import *

from roce_soc.capability import MemoryTarget
from roce_soc.common import MEM_GONE
from roce_soc.memory.crossing import MemoryCrossing
from sim.engine import OuterMemory
from sim.harness import Sim, build
from sim.harness.memory import SLOW
from test.memory_contract import PortUser, exercise

# Periods in ps: 250/125, 250/250, 250/300, 125/250 MHz.
PAIRS = {"250/125": (4000, 8000), "250/250": (4000, 4000), "250/300": (4000, 3333), "125/250": (8000, 4000)}


class Crossed(LiteXModule):
    """A modelled memory in clock mem behind a write port and two read ports in clock roce."""
    def __init__(self, far="mem"):
        self.memory = OuterMemory()
        self.memory.target = MemoryTarget(3, None, 2)
        self.crossing = MemoryCrossing(self.memory, "roce", far)
        self.reads = [self.crossing.get_read() for _ in range(2)]

    def ios(self):
        write = self.crossing.write.streams()
        return {"u0": {**write, **self.reads[0].streams()}, "u1": self.reads[1].streams(), **self.memory.ios("t"), "down": self.crossing.down}


@pytest.fixture(scope="module")
def so():
    top = Crossed()
    return build(top, top.ios(), name="memory_crossing", clocks=("roce", "mem"))


def bench(so, seed, pair="250/300", **memory):
    """(simulation, memory, main user, second user of reads)."""
    near, far = PAIRS[pair]
    rng = random.Random(f"phases {seed}")
    sim = Sim(so, seed=seed, clocks={"roce": (near, 0), "mem": (far, rng.randrange(far))})
    model = sim.memory("tw", "tr0", "tr1", clock="mem", **(memory or dict(latency=10)))
    sim.reset()
    sim.step(60)
    rng = random.Random(seed)
    return sim, model, PortUser(sim, "u0", rng), PortUser(sim, "u1", rng, write=False)


@pytest.mark.parametrize("memory", [dict(latency=4), SLOW])
@pytest.mark.parametrize("pair", PAIRS)
def test_contract(so, seed, rng, pair, memory):
    """Random accesses on all ports: order, tags, beats, bytes; the target sees whole commands whose data does not wait."""
    sim, model, user, second = bench(so, seed, pair, **memory)
    exercise(user, rng, [(0, 0, 8192)], rounds=4)
    second.read(100, 3000, data=model.read(100, 3000))
    second.collect()
    assert not sim.peek("down")


@pytest.mark.parametrize("err", [2, 5])
def test_errors(so, seed, rng, err):
    """The target's own errors come through."""
    sim, model, user, _ = bench(so, seed, error=1.0, err=err)
    user.expect = lambda *_: err
    for n in range(20):
        user.write(64*n, rng.randbytes(300))
        user.read(64*n, 300)
    user.collect()


@pytest.mark.parametrize("length", [4096, 64])
@pytest.mark.parametrize("pair", PAIRS)
def test_rate(so, seed, rng, pair, length):
    """At least 0.97 beats a clock of the slower side, reads and writes each."""
    sim, model, user, _ = bench(so, seed, pair, latency=20, depth=64, ahead=64)
    count = 128*4096//64//max(1, length//64)
    for kind in ("write", "read"):
        for n in range(count):
            addr = n*length % (1 << 20)
            user.write(addr, bytes(length)) if kind == "write" else user.read(addr, length)
        start = sim.time
        user.collect()
        clocks = (sim.time - start)/max(PAIRS[pair])
        assert count*length/64 >= .97*(clocks - 200), f"{kind}: {count*length//64} beats in {clocks:.0f} clocks"


class Life:
    """Traffic while sides are reset: every command is answered once; what was answered with 0 is in memory."""
    def __init__(self, so, seed, pair):
        self.rng = random.Random(seed)
        self.sim, self.model, self.user, self.second = bench(so, seed, pair, latency=(2, 60), cmd_stall=.2, data_stall=.2)
        self.user.expect = self.second.expect = lambda *_: None

    def post(self, count=12):
        for _ in range(count):
            addr, length = 4096*self.rng.randrange(8) + 64*self.rng.randrange(16), self.rng.choice([8, 64, 700, 3000])
            if self.rng.random() < .5:
                self.user.write(addr, self.rng.randbytes(length))
            else:
                (self.user if self.rng.random() < .5 else self.second).read(addr, length)

    def collect(self):
        for user in (self.user, self.second):
            user.collect(max_cycles=30_000)

    def whole(self):
        """Everything works as before any reset."""
        self.sim.step(200)
        assert not self.sim.peek("down")
        for user in (self.user, self.second):
            user.expect = lambda *_: 0
        exercise(self.user, self.rng, [(0, 0, 8192)], rounds=2, writes=8)
        self.second.read(64, 4000, data=self.model.read(64, 4000))
        self.second.collect()
        for user in (self.user, self.second):
            user.expect = lambda *_: None


@pytest.mark.parametrize("pair", PAIRS)
def test_far_reset_at_any_moment(so, seed, pair):
    """PERST: all that is outstanding and all that comes meanwhile ends, with MEM_GONE or as the target had said before; then all is whole."""
    life, gone = Life(so, seed, pair), 0
    for moment in range(25):
        life.post()
        life.sim.step(life.rng.randrange(160))
        life.sim.hold("mem")
        life.post(4)
        life.sim.step(life.rng.choice([1, 3, 40, 400]), "mem")
        life.post(4)
        life.sim.step(life.rng.choice([0, 300]))
        life.user.answers, life.second.answers = [], []
        life.sim.hold("mem", False)
        life.collect()
        errs = {err for user in (life.user, life.second) for _, err, _ in user.answers}
        assert errs <= {0, MEM_GONE}
        gone += MEM_GONE in errs
        if moment % 8 == 0:
            life.whole()
    assert gone > 10
    life.whole()


def test_a_far_side_in_reset_answers_at_once(so, seed):
    """While it lasts each command ends within some clocks, a write behind its last beat; `down` says so."""
    life = Life(so, seed, "250/250")
    life.sim.hold("mem")
    life.sim.step(60)
    assert life.sim.peek("down")
    for user in (life.user, life.second):
        user.expect = lambda *_: MEM_GONE
    life.post(30)
    for user in (life.user, life.second):
        user.collect(max_cycles=2500)
    assert life.sim.peek("down")


def begin_anew(life):
    """The users after a reset of their side: what they had not said they say now, what they had begun to say they end."""
    for user in (life.user, life.second):
        user.rdata.recv_all()
        user.reads = [(*read[:4], None) for read in user.reads[len(user.reads) - user.rcmd.pending:]]
    user = life.user
    user.wack.recv_all()
    left = user.wdata.pending
    if user.wcmd.pending:
        user.writes = user.writes[-1:]
    elif left:
        # The beats left of a command that the old life took: whole lanes, so a write of their own.
        user.writes = [(user._command(user.wcmd, 0, 0, 64*left), 0, 0, bytes(64*left))]
    else:
        user.writes = []


@pytest.mark.parametrize("pair", PAIRS)
def test_near_reset_at_any_moment(so, seed, pair):
    """The hub's side begins anew: the target sees whole commands only (the model checks that), nobody is told of the old life's."""
    life = Life(so, seed, pair)
    rng  = life.rng
    for moment in range(40):
        for n in range(rng.randrange(1, 6)):
            life.user.write(4096*rng.randrange(8), rng.randbytes(64*rng.choice([1, 2, 10, 64])))
            for user in (life.user, life.second):
                user.read(4096*rng.randrange(8) + rng.randrange(64), rng.choice([8, 700, 3000]))
            if n:
                life.sim.run(lambda: not life.user.wcmd.pending and not life.user.wdata.pending, max_cycles=2000, every=1)
        life.sim.step(rng.randrange(120))
        life.sim.hold("roce")
        life.sim.step(rng.choice([1, 2, 50]))
        begin_anew(life)
        life.sim.hold("roce", False)
        life.collect()
        life.sim.step(300)
        assert not len(life.user.wack) and not len(life.user.rdata) and not len(life.second.rdata), "an answer of the old life"
        if moment % 8 == 0:
            life.whole()
    life.whole()


def test_equal_clocks_are_wires():
    """One clock: the target's own ports."""
    memory   = OuterMemory()
    crossing = MemoryCrossing(memory, "sys", "sys")
    assert crossing.write is memory.write and crossing.get_read() is memory.reads[0]


def test_refused():
    for bad in (64, 500, 0):
        with pytest.raises(ValueError, match=f"from 128, not {bad}"):
            MemoryCrossing(OuterMemory(), "a", "b", read_beats=bad)
    for bad in (0, -1e6):
        with pytest.raises(ValueError, match=f"above 0 Hz, not {bad}"):
            MemoryCrossing(OuterMemory(), "a", "b", far_hz=bad)
    top = Crossed()
    top.get_fragment()
    with pytest.raises(ValueError, match="before finalisation"):
        top.crossing.get_read()
    assert top.crossing.target.latency == 2
