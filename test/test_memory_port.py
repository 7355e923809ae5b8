# SPDX-License-Identifier: BSD-2-Clause
"""memory/port, memory/router, memory/watchdog: arbiters, routers, watchdogs over on-chip RAM and over the harness' memory; contract, errors, time-outs."""
import pytest
from litex.gen import LiteXModule

from roce_soc.common import TAG_WIDTH
from roce_soc.memory.port import MemoryReadArbiter, MemoryReadPort, MemoryWriteArbiter, MemoryWritePort
from roce_soc.memory.router import MemoryHub, MemoryReadRouter, MemoryReadSplit, MemoryWriteRouter
from roce_soc.memory.sram import RoCESRAM
from roce_soc.memory.watchdog import MemoryReadTimeout, MemoryWriteTimeout
from sim.engine import OuterMemory
from sim.harness import Sim, build
from test.memory_contract import PortUser, exercise

SIZE    = 16 * 1024
TIMEOUT = 400


class Paths(LiteXModule):
    """Two users, arbiters, routers; target 0 is on-chip RAM, target 1 the harness' memory, others do not exist."""
    def __init__(self):
        self.write_arbiter = wa = MemoryWriteArbiter(2)
        self.read_arbiter  = ra = MemoryReadArbiter(2, tag_bits=7)
        self.write_router  = wr = MemoryWriteRouter(2, timeout_cycles=TIMEOUT)
        self.read_router   = rr = MemoryReadRouter(2, timeout_cycles=TIMEOUT)
        self.sram          = RoCESRAM(size=SIZE)
        self.comb += [
            wa.port.connect(wr.port),
            ra.port.connect(rr.port),
            wr.targets[0].connect(self.sram.write),
            rr.targets[0].connect(self.sram.get_read()),
        ]


def make():
    top   = Paths()
    users = {f"u{n}": {**top.write_arbiter.masters[n].streams(), **top.read_arbiter.masters[n].streams()} for n in (0, 1)}
    return top, {**users, "t1": {**top.write_router.targets[1].streams(), **top.read_router.targets[1].streams()},
        "wquiet": top.write_router.quiet, "rquiet": top.read_router.quiet,
        **{f"{p}{n}": getattr(r, n) for p, r in (("w", top.write_router), ("r", top.read_router)) for n in ("closed", "restart")}}


@pytest.fixture(scope="module")
def so():
    return build(*make(), name="memory_paths")


def bench(so, seed, rng, **options):
    sim    = Sim(so, seed=seed)
    memory = sim.memory("t1", **options)
    sim.reset()
    return sim, memory


def missing(kind, target, addr, length):
    """err of an access: targets 2 and 3 do not exist, the RAM ends at SIZE."""
    return 2 if target > 1 else 1 if target == 0 and addr >= SIZE else 0

REGIONS = [(0, 0, 8192), (0, SIZE, 4096), (1, 0x7000_0000_0000, 8192), (2, 0, 4096), (3, 4096, 4096)]


@pytest.mark.parametrize("options", [
    dict(), dict(latency=1, ahead=4), dict(latency=(1, 100), cmd_stall=.4, data_stall=.4, answer_gap=.4)], ids=["plain", "fast", "slow"])
@pytest.mark.parametrize("gap", [0, .4])
def test_contract(so, seed, rng, options, gap):
    """Any mix of targets, existing or not: every answer in order of issue, every byte right."""
    sim, _ = bench(so, seed, rng, **options)
    exercise(PortUser(sim, "u0", rng, gap=gap, expect=missing), rng, REGIONS, rounds=6)
    assert sim.peek("wquiet") == sim.peek("rquiet") == 3


def test_two_users(so, seed, rng):
    """Both users at once in areas of their own; tags may be equal."""
    sim, _ = bench(so, seed, rng, latency=(1, 60), data_stall=.2)
    users  = [PortUser(sim, f"u{n}", rng, gap=.2) for n in (0, 1)]
    users[1].tag = users[0].tag
    model  = [bytearray(SIZE // 2) for _ in users]
    for _ in range(6):
        for user, mine, base in zip(users, model, (0, SIZE // 2)):
            for _ in range(10):
                target = rng.randrange(2)
                a      = rng.randrange(0, 4096) // 4 + (2048 if target else 0)
                data   = rng.randbytes(rng.randrange(1, 800))
                mine[a:a + len(data)] = data
                user.write(base + a, data, target)
        [user.collect() for user in users]
        for user, mine, base in zip(users, model, (0, SIZE // 2)):
            for target in (0, 1):
                user.read(base + 1024, 1, target)
                a = 2048 if target else 0
                user.read(base + a, 200, target, None)
        [user.collect() for user in users]
    for user, mine, base in zip(users, model, (0, SIZE // 2)):
        user.read(base, 700, 0)
        user.collect()


def test_errors_of_the_target(so, seed, rng):
    """err of a target reaches the user that asked, with zero data."""
    sim, memory = bench(so, seed, rng)
    memory.fail(0x2000, 0x3000, 1, target=1)
    memory.fail(0x3000, 0x4000, 2, target=1)
    def expect(kind, target, addr, length):
        return {2: 1, 3: 2}.get(addr >> 12, 0)
    exercise(PortUser(sim, "u1", rng, expect=expect), rng, [(1, 0x1000, 0x4000)])


def test_dead_target(so, seed, rng):
    """A target that stops is answered for within a bound; the other target goes on; late answers are swallowed; it comes back."""
    sim, memory = bench(so, seed, rng)
    dead = False
    def expect(kind, target, addr, length):
        return 3 if target == 1 and dead else 0
    user = PortUser(sim, "u0", rng, expect=expect)
    model = exercise(user, rng, [(0, 0, 4096), (1, 0, 4096)], rounds=2)
    for round_ in range(3):
        memory.set(paused=True)
        dead  = True
        start = sim.cycles()
        for _ in range(12):
            user.write(rng.randrange(4096 - 900), rng.randbytes(900), 1)
            user.read(rng.randrange(3000), 900, 1)
        user.collect()
        assert sim.cycles() - start < 2 * TIMEOUT + 2000
        assert sim.peek("wquiet") & 2 == 0
        # The other target is untouched.
        user.write(0, b"alive" * 20, 0)
        user.collect()
        user.read(0, 100, 0, b"alive" * 20)
        user.collect()
        # Late answers: swallowed; then everything as before.
        memory.set(paused=False)
        dead = False
        sim.step(3000)
        assert sim.peek("wquiet") == sim.peek("rquiet") == 3
        exercise(user, rng, [(0, 0, 4096), (1, 0, 4096)], rounds=2)


def test_answers_while_errors_are_given(so, seed, rng):
    """The memory wakes up while its reads are still answered for: no answer is taken for another one."""
    sim, memory = bench(so, seed, rng)
    user  = PortUser(sim, "u0", rng)
    model = exercise(user, rng, [(1, 0, 16384)], rounds=1)[1, 0, 16384]
    for late in range(0, 700, 45):
        memory.set(paused=True)
        user.expect = lambda *_: None
        for n in range(10):
            user.read(4096 * (n % 4), 4096, 1, bytes(model[4096 * (n % 4):4096 * (n % 4) + 4096]))
        sim.until(user.rdata, 1)
        sim.step(late)
        memory.set(paused=False)
        for n in range(4):
            user.read(4096 * n + 5, 700, 1, bytes(model[4096 * n + 5:4096 * n + 705]))
        user.collect()
        sim.step(3000)
        assert sim.peek("rquiet") == 3
        user.expect = lambda *_: 0
        user.read(100, 200, 1, bytes(model[100:300]))
        user.collect()


def test_stuck_data(so, seed, rng):
    """A target that takes commands or half of the data and stops: answered, data swallowed, later filled with nothing."""
    sim, memory = bench(so, seed, rng)
    user = PortUser(sim, "u0", rng, expect=lambda kind, target, *_: None)
    user.write(0, bytes(4096), 1)
    user.collect()
    for stall in (dict(data_stall=1.0), dict(cmd_stall=1.0)):
        was = memory.read(128, 1900, 1)
        memory.set(**stall)
        for _ in range(3):
            user.write(64, rng.randbytes(2000), 1)
        user.read(0, 64, 1)
        user.collect()
        assert user.answers[-2][1] == 3
        # Later enables are zero: the model's check for whole ranges is lifted while they are made up.
        memory.set(data_stall=0.0, cmd_stall=0.0, exact_be=False)
        for _ in range(4):
            user.write(8192, rng.randbytes(4096), 1)
        sim.step(3000)
        user.collect()
        assert sim.peek("wquiet") == sim.peek("rquiet") == 3
        # The beat that was on offer may have been taken, nothing behind it.
        assert memory.read(128, 1900, 1) == was
        memory.set(exact_be=True)
        user.expect = lambda *_: 0
        exercise(user, rng, [(1, 0, 4096)], rounds=2)
        user.expect = lambda *_: None


def test_rate(so, seed, rng):
    """Arbiter and router lose no clock on a single user, and share fairly between two."""
    sim, _ = bench(so, seed, rng, latency=4, ahead=4)
    users  = [PortUser(sim, f"u{n}", rng) for n in (0, 1)]
    for n in range(64):
        users[0].write(64 * n, bytes(64), 1)
    sim.until(users[0].wack, 64)
    times = users[0].wdata.times()
    assert times[-1][2] - times[0][1] + 1 <= 66
    users[0].collect()
    for n in range(32):
        for user in users:
            user.read(64 * n, 512, 1)
    for user in users:
        user.collect()
    done = [[last for kind, _, last in user.answers if kind == "read"][-1] for user in users]
    assert abs(done[0] - done[1]) < 40


class Engine(LiteXModule):
    """An engine's four ports on one memory, as a SoC puts them."""
    def __init__(self):
        self.memory = RoCESRAM(size=SIZE)
        self.ports  = {"pw": MemoryWritePort(), "cw": MemoryWritePort(), "pr": MemoryReadPort(), "dr": MemoryReadPort()}
        for port in self.ports.values():
            self.memory.add_port(port)


@pytest.fixture(scope="module")
def hub():
    top = Engine()
    return build(top, {n: p.streams() for n, p in top.ports.items()}, name="memory_hub")


def test_hub(hub, seed, rng):
    """Payload and completion writes keep their order on the memory; both read ports see them; other targets are refused."""
    sim = Sim(hub, seed=seed)
    sim.reset()
    payload    = PortUser(sim, "pw", rng, read=False, expect=missing)
    completion = PortUser(sim, "cw", rng, read=False, expect=missing)
    reads      = [PortUser(sim, n, rng, write=False, expect=missing) for n in ("pr", "dr")]
    for n in range(30):
        data, cqe = rng.randbytes(rng.randrange(1, 2000)), rng.randbytes(32)
        payload.write(0x1000, data)
        payload.collect()
        completion.write(0x2000 + 32 * (n % 8), cqe)
        completion.write(0x2000, bytes(32), target=1 + n % 3)
        completion.expect = lambda kind, target, addr, length: 2 if target else 0
        completion.collect()
        for user in reads:
            user.expect = completion.expect
            user.read(0x2000 + 32 * (n % 8), 32, data=cqe)
            user.read(0x1000, len(data), data=data)
            user.read(0x1000, 64, target=2)
            user.collect()


class Hub(LiteXModule):
    """An engine's four ports on two memories of the harness."""
    def __init__(self):
        self.memories = [OuterMemory(), OuterMemory()]
        self.hub   = MemoryHub(self.memories, TIMEOUT)
        self.ports = {"pw": MemoryWritePort(), "cw": MemoryWritePort(), "pr": MemoryReadPort(), "dr": MemoryReadPort()}
        for name, port in self.ports.items():
            self.hub.add_port(port, in_order=name != "dr")

    def ios(self):
        return {**{n: p.streams() for n, p in self.ports.items()}, "quiet": self.hub.quiet,
            **self.memories[0].ios("t0"), **self.memories[1].ios("t1")}


class TwoMemories:
    """Hub in the harness; the second memory is slow, `latency` clocks."""
    def __init__(self, seed, rng, **slow):
        top      = Hub()
        self.sim = sim = Sim(build(top, top.ios(), name="memory_hub2"), seed=seed)
        self.memory = sim.memory("t0w", "t0r0", "t0r1", "t1w", "t1r0", "t1r1", latency=4, ahead=4, fill=0)
        for (name, _), port in self.memory.ports.items():
            if name.startswith("t1"):
                port.set(**slow)
        sim.reset()
        self.users = {n: PortUser(sim, n, rng, read=n[1] == "r", write=n[1] == "w") for n in ("pw", "cw", "pr", "dr")}


def test_two_memories_at_once(seed, rng):
    """Commands that alternate between two memories do not wait for each other's answers; order and bytes stay."""
    bench = TwoMemories(seed, rng, latency=200)
    sim, user = bench.sim, bench.users["pw"]
    data  = [rng.randbytes(64) for _ in range(64)]
    start = sim.cycles()
    for n in range(64):
        user.write(64*n, data[n], n % 2)
    user.collect()
    assert sim.cycles() - start < 2*200, "writes to two memories waited for each other"
    for name in ("pr", "dr"):
        start = sim.cycles()
        for n in range(64):
            bench.users[name].read(64*n, 64, n % 2, data[n])
        if name == "pr":
            bench.users[name].collect()
            assert sim.cycles() - start < 2*200, "reads of two memories waited for each other"
    # Descriptors of the fast memory are there long before those of the slow one.
    sim.until(bench.users["dr"].rdata, 32, max_cycles=100)
    assert sim.cycles() - start < 120
    sim.until(bench.users["dr"].rdata, 64, max_cycles=300)
    assert sim.peek("quiet") == 3


def test_descriptors_of_two_memories(seed, rng):
    """Answers in any order between memories, in order within one, never mixed, with stalls on every handshake."""
    bench = TwoMemories(seed, rng, latency=(1, 200), answer_gap=.3, cmd_stall=.3)
    sim, user = bench.sim, bench.users["dr"]
    bench.memory.write(0, bytes(range(256))*16, 0)
    bench.memory.write(0, bytes(reversed(range(256)))*16, 1)
    wanted = {0: [], 1: [], 2: []}
    for n in range(60):
        target, at = rng.choice((0, 0, 1, 2)), 64*rng.randrange(60)
        beats      = rng.randrange(1, 5)
        user.read(at, 64*beats, target)
        wanted[target].append((user.tag, [0]*beats if target == 2 else
            [int.from_bytes(bench.memory.read(at + 64*i, 64, target), "little") for i in range(beats)]))
    user.reads.clear()
    owner, current = {tag: target for target, rows in wanted.items() for tag, _ in rows}, None
    while any(wanted.values()):
        sim.until(user.rdata, 1, max_cycles=2000)
        beat = user.rdata.recv()
        if current is None:
            tag, current = wanted[owner[beat.tag]].pop(0)
        assert (beat.tag, beat["data"], beat.err) == (tag, current.pop(0), 2*(owner[tag] == 2))
        assert beat["last"] == (not current)
        current = current or None


def test_dead_memory_holds_up_nobody_else(seed, rng):
    """Payload for a memory that stopped waits for the watchdog; completions in the other memory do not."""
    bench = TwoMemories(seed, rng, paused=True)
    sim, payload, completion = bench.sim, bench.users["pw"], bench.users["cw"]
    payload.expect = lambda kind, target, *_: 3 if target else 0
    for n in range(6):
        payload.write(4096*n, rng.randbytes(3000), n % 2)
    sim.step(60)
    start = sim.cycles()
    for n in range(8):
        completion.write(0x8000 + 32*n, rng.randbytes(32), 0)
    completion.collect()
    assert sim.cycles() - start < 100
    bench.users["dr"].expect = lambda kind, target, *_: 3
    bench.users["dr"].read(0, 64, 1)
    payload.collect()
    assert sim.cycles() - start < 2*TIMEOUT
    bench.users["dr"].collect()
    assert sim.peek("quiet") == 1
    bench.memory.set(paused=False)
    sim.run(lambda: sim.peek("quiet") == 3, max_cycles=200)


def test_parameters():
    for cls in (MemoryWriteTimeout, MemoryReadTimeout):
        with pytest.raises(ValueError, match="cycles"):
            cls(cycles=1)
    with pytest.raises(ValueError, match="depth"):
        MemoryWriteArbiter(depth=(1 << TAG_WIDTH) + 1)
    for bad in (0, TAG_WIDTH):
        with pytest.raises(ValueError, match="tag_bits"):
            MemoryReadArbiter(2, tag_bits=bad)
    for cls in (MemoryWriteRouter, MemoryReadRouter):
        for bad in (0, 9):
            with pytest.raises(ValueError, match="n_targets"):
                cls(n_targets=bad)
    with pytest.raises(ValueError, match="read_beats"):
        MemoryReadSplit(3, read_beats=63)
