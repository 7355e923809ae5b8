# SPDX-License-Identifier: BSD-2-Clause
"""memory/watchdog, memory/control: memories that lose answers in a reset work again, and nothing of before reaches a new command."""
import pytest
from litex.gen import LiteXModule

from roce_soc.clocks import ClockLink
from roce_soc.memory.control import MemoryControl
from roce_soc.memory.port import MemoryReadPort
from roce_soc.memory.router import MemoryHub
from sim.engine import OuterMemory
from sim.harness import Sim, build
from test.memory_contract import PortUser, exercise
from test.test_memory_port import TIMEOUT, bench, make


@pytest.fixture(scope="module")
def so():
    return build(*make(), name="memory_paths")


def restart(sim):
    """Both ways to target 1, for one clock."""
    for name in ("wrestart", "rrestart"):
        sim.poke(name, 2)
    sim.step()
    for name in ("wrestart", "rrestart"):
        sim.poke(name, 0)


def test_restart_after_lost_answers(so, seed, rng):
    """A target that lost answers in its reset stays closed, but for a restart, and is whole again behind it."""
    sim, memory = bench(so, seed, rng)
    user = PortUser(sim, "u0", rng)
    for _ in range(3):
        user.expect = lambda *_: 0
        exercise(user, rng, [(1, 0, 4096)], rounds=1)
        memory.set(paused=True)
        user.expect = lambda *_: 3
        for _ in range(6):
            user.write(rng.randrange(3000), rng.randbytes(900), 1)
            user.read(rng.randrange(3000), 900, 1)
        user.collect()
        memory.forget()
        memory.set(paused=False)
        sim.step(2*TIMEOUT)
        assert sim.peek("wclosed") == sim.peek("rclosed") == 2
        user.write(0, b"lost", 1)
        user.read(0, 64, 1)
        user.collect()
        restart(sim)
        sim.step(4)
        assert sim.peek("wclosed") == sim.peek("rclosed") == 0
        assert sim.peek("wquiet") == sim.peek("rquiet") == 3


def test_restart_while_answers_are_due(so, seed, rng):
    """A restart in the midst of traffic: what was outstanding ends; late answers of before reach no later command."""
    sim, memory = bench(so, seed, rng, latency=150)
    user = PortUser(sim, "u0", rng, expect=lambda *_: None)
    memory.write(0, rng.randbytes(16384), 1)
    for delay in range(0, 200, 9):
        # Whole commands only: data that a memory waits for is a matter of its reset.
        for n in range(8):
            user.write(8192 + 64*n, rng.randbytes(64), 1)
            user.read(64*rng.randrange(50), 640, 1)
        sim.drain(user.wcmd, user.wdata, user.rcmd)
        sim.step(delay + 2)
        restart(sim)
        sim.run(lambda: not sim.peek("wclosed") | sim.peek("rclosed"), max_cycles=200, every=1)
        # The old answers are still to come: in order, before those of the new commands.
        model = [rng.randrange(1000) for _ in range(6)]
        for at in model:
            user.read(at, 3000, 1, memory.read(at, 3000, 1))
            user.write(12288 + at % 2048, rng.randbytes(500), 1)
        reads, writes = user.reads[8:], user.writes[8:]
        user.reads, user.writes = user.reads[:8], user.writes[:8]
        user.collect()
        user.expect, user.reads, user.writes = (lambda *_: 0), reads, writes
        user.collect()
        user.expect = lambda *_: None
        sim.run(lambda: sim.peek("wquiet") == sim.peek("rquiet") == 3, max_cycles=1000)


def test_restart_in_the_midst_of_data(so, seed, rng):
    """A target that was reset waits for no data any more: it is given none without a command, the next write is whole."""
    sim, memory = bench(so, seed, rng)
    user = PortUser(sim, "u0", rng, gap=.8, expect=lambda *_: None)
    port = memory.ports["t1", "write"]
    for beats in range(1, 40, 3):
        given = port.counters()["beats"]
        user.write(0, bytes(4096), 1)
        # At a moment in which nothing is offered to it: that may not be taken back.
        sim.run(lambda given=given, beats=beats: port.counters()["beats"] >= given + beats and not sim.peek("t1_wdata_valid"), every=1)
        memory.forget()
        restart(sim)
        user.collect(max_cycles=2000)
        data = rng.randbytes(4096)
        user.expect = lambda *_: 0
        user.write(4096, data, 1)
        user.collect(max_cycles=2000)
        assert memory.read(4096, 4096, 1) == data
        user.expect = lambda *_: None


def test_command_in_the_clock_of_opening(so, seed, rng):
    """A command that comes in the very clock in which the watchdog opens again has its answer."""
    sim, memory = bench(so, seed, rng)
    user = PortUser(sim, "u0", rng, gap=.6, expect=lambda *_: None)
    for delay in range(80):
        for name in ("wrestart", "rrestart"):
            sim.poke(name, 2)
        for _ in range(6):
            user.write(64, rng.randbytes(64), 1)
            user.read(0, 64, 1)
        sim.step(delay % 16 + 1)
        for name in ("wrestart", "rrestart"):
            sim.poke(name, 0)
        user.collect(max_cycles=1000)
        sim.run(lambda: sim.peek("wquiet") == sim.peek("rquiet") == 3, max_cycles=100)


def test_target_held_in_reset(so, seed, rng):
    """As long as the level says that the target is in reset every command ends with an error; the other target goes on."""
    sim, memory = bench(so, seed, rng)
    user = PortUser(sim, "u0", rng, expect=lambda kind, target, *_: 3 if target == 1 else 0)
    for name in ("wrestart", "rrestart"):
        sim.poke(name, 2)
    exercise(user, rng, [(0, 0, 4096)], rounds=1)
    for n in range(8):
        user.write(64*n, rng.randbytes(300), 1)
        user.read(64*n, 300, 1)
    user.collect(max_cycles=500)
    for name in ("wrestart", "rrestart"):
        sim.poke(name, 0)
    sim.step(4)
    user.expect = lambda *_: 0
    exercise(user, rng, [(0, 0, 4096), (1, 0, 4096)], rounds=1)


class Controlled(LiteXModule):
    """A hub with its registers, in one clock or two."""
    def __init__(self, far="sys"):
        self.memory  = OuterMemory()
        self.link    = link = ClockLink("sys", far)
        self.port    = MemoryReadPort()
        self.hub     = hub = link.on_far(MemoryHub([self.memory], TIMEOUT))
        hub.add_port(self.port)
        self.control = MemoryControl(link, hub)

    def ios(self):
        control = self.control
        return {"u": self.port.streams(), **self.memory.ios("t"), "quiet": self.hub.quiet, "closed": control._closed.status,
            "restart": control._restart.storage, "write": control._restart.re, "held": control.reset}


@pytest.mark.parametrize("far", ["sys", "roce"])
def test_registers(seed, rng, far):
    """Software sees a memory that stopped and opens it again; a memory in reset says so itself."""
    top = Controlled(far)
    clocks = ("sys",) if far == "sys" else ("sys", far)
    sim = Sim(build(top, top.ios(), name=f"memory_control_{far}", clocks=clocks), seed=seed,
        clocks={far: 4000, "sys": 7000} if far != "sys" else None)
    memory = sim.memory("tr0", clock=None)
    memory.write(0, data := rng.randbytes(64))
    sim.reset()
    user = PortUser(sim, "u", rng, write=False, expect=lambda *_: 3)
    memory.set(paused=True)
    user.read(0, 64)
    user.collect()
    sim.step(40)
    assert sim.peek("closed") == 1
    memory.forget()
    memory.set(paused=False)
    user.read(0, 64)
    user.collect()
    sim.poke("restart", 1)
    sim.poke("write", 1)
    sim.step(1, "sys")
    sim.poke("write", 0)
    sim.step(80)
    assert sim.peek("closed") == 0
    user.expect = lambda *_: 0
    user.read(0, 64, data=data)
    user.collect()
    sim.poke("held", 1)
    sim.step(40)
    assert sim.peek("closed") == 1
    sim.poke("held", 0)
    sim.step(40)
    assert sim.peek("closed") == 0
    user.read(0, 64, data=data)
    user.collect()
