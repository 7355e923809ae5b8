# SPDX-License-Identifier: BSD-2-Clause
"""memory/placer: every residue of source and destination, pages, errors, order, rate; on the harness' memory."""
import pytest

from roce_soc.memory.placer import PayloadPlacer
from sim.harness import Sim, build

LATE = 2     # the client that tells addresses behind its records.


def make():
    top     = PayloadPlacer()
    clients = [top.get_port() for _ in range(2)] + [top.get_port(late=True)]
    ios     = {f"c{n}": {"place": c.sink, "done": c.done} for n, c in enumerate(clients)}
    return top, {
        **ios, "where": clients[LATE].where, "fetch": top.fetch, "data": top.data, "keep": top.keep, "m": top.port.streams(), "idle": top.quiet}


@pytest.fixture(scope="module")
def so():
    return build(*make(), name="placer")


class Bench:
    """Plays the packet buffer: data of a fetch are queued when the record is sent, in the same order."""
    def __init__(self, so, seed, rng, gap=0.0, stall=0.0, **options):
        self.sim, self.rng = sim, _ = Sim(so, seed=seed), rng
        self.memory  = sim.memory("m", fill=0, **options)
        self.places  = [sim.source(f"c{n}_place", gap=gap) for n in range(3)]
        self.dones   = [sim.sink(f"c{n}_done", stall=stall) for n in range(3)]
        self.where   = sim.source("where", gap=gap)
        self.data    = sim.source("data", gap=gap)
        self.fetch   = sim.sink("fetch", stall=stall)
        self.fetches = []
        sim.reset()

    def place(self, addr, data, offset, target=0, client=0, slot=None):
        slot = self.rng.randrange(1024) if slot is None else slot
        self.places[client].send(qpi=5, has_slot=1, slot=slot, offset=offset, length=len(data), target=target, addr=addr)
        self.fetches.append((slot, int(not data)))
        if data:
            self.data.send(self.rng.randbytes(offset) + data + self.rng.randbytes(-(offset + len(data)) % 64))

    def place_late(self, data, offset):
        """A record without its address; `self.where` has to follow."""
        self.place(0, data, offset, client=LATE)

    def done(self, count, client=0):
        self.sim.until(self.dones[client], count, max_cycles=400_000)
        return [d.err for d in self.dones[client].recv_all()]


@pytest.mark.parametrize("gap,stall,options", [
    (0, 0, dict()), (.3, .3, dict(latency=(1, 200), cmd_stall=.4, data_stall=.4, answer_gap=.4))], ids=["plain", "stalls"])
def test_every_residue(so, seed, rng, gap, stall, options):
    """Source lane x destination lane x length, sampled; neighbours keep their bytes."""
    bench  = Bench(so, seed, rng, gap, stall, **options)
    cases  = [(o, a, n) for o in range(0, 64, 7) for a in range(0, 64, 5) for n in (1, rng.randrange(2, 64), 64, rng.randrange(65, 300))]
    cases += [(rng.randrange(64), rng.randrange(64), n) for n in range(1, 140)]
    rng.shuffle(cases)
    at, wanted = 0x1000_0000_0000, []
    for offset, lane, length in cases:
        data = rng.randbytes(length)
        addr = at + lane
        bench.place(addr, data, offset)
        wanted.append((addr, data))
        at = (addr + length + 63 & ~63) + 64
    assert bench.done(len(cases)) == [0] * len(cases)
    for addr, data in wanted:
        assert bench.memory.read(addr - 64, len(data) + 128) == bytes(64) + data + bytes(64)
    assert [(f.slot, f.discard) for f in bench.fetch.recv_all()] == bench.fetches


def test_pages(so, seed, rng):
    """A packet across a page is two commands; the harness checks that none leaves its page. Addresses carry beyond 32 bits."""
    bench  = Bench(so, seed, rng)
    wanted = []
    for n in range(60):
        addr   = (rng.choice([1, 2, 1 << 20, 1 << 32, 1 << 31]) << 12) - rng.randrange(1, 600) + (n << 48)
        length = rng.choice([rng.randrange(1, 700), 4096, 1024])
        wanted.append((addr, rng.randbytes(length)))
        bench.place(addr, wanted[-1][1], rng.randrange(64))
    assert bench.done(60) == [0] * 60
    for addr, data in wanted:
        assert bench.memory.read(addr, len(data)) == data
    crossing = sum((a & 4095) + len(d) > 4096 for a, d in wanted)
    assert bench.memory.counters()["m", "write"]["commands"] == 60 + crossing and crossing > 20


def test_zero_length(so, seed, rng):
    """Discarded with a slot, answered in order without any write."""
    bench = Bench(so, seed, rng, latency=300)
    bench.place(0x1000, b"x" * 100, 0)
    bench.place(0x2000, b"", 9)
    bench.places[0].send(has_slot=0, length=0)
    bench.sim.step(100)
    assert len(bench.dones[0]) == 0, "a later record must not overtake the acknowledge of the former"
    assert bench.done(3) == [0, 0, 0]
    assert [(f.slot, f.discard) for f in bench.fetch.recv_all()] == bench.fetches
    assert bench.memory.counters()["m", "write"]["commands"] == 1
    assert bench.sim.peek("idle")


def test_done_follows_the_acknowledge(so, seed, rng):
    bench = Bench(so, seed, rng, latency=500)
    bench.place(0x1000, b"abc", 3)
    bench.sim.step(400)
    assert len(bench.dones[0]) == 0 and not bench.sim.peek("idle")
    assert bench.done(1) == [0]


def test_errors(so, seed, rng):
    """err of the first or the second command; the next packet is good again."""
    bench = Bench(so, seed, rng)
    bench.memory.fail(0x2000, 0x3000, 1)
    bench.memory.fail(0x5000, 0x6000, 2)
    for addr in (0x1ff0, 0x2ff0, 0x4fff, 0x8000, 0x5000, 0x9000):
        bench.place(addr, rng.randbytes(64), 7)
    assert bench.done(6) == [1, 1, 2, 0, 2, 0]


def test_two_clients(so, seed, rng):
    """Each client's answers in its own order."""
    bench  = Bench(so, seed, rng, gap=.2, stall=.2, latency=(1, 60))
    bench.memory.fail(0x100000, 0x200000, 1)
    # The buffer serves fetches in order, so the bench must see which client was taken: distinct lengths by client order.
    wanted = {0: [], 1: []}
    for n in range(60):
        client = rng.randrange(2)
        bad    = rng.random() < .4
        bench.places[client].send(has_slot=0, length=0) if rng.random() < .3 else \
            bench.place((0x100000 if bad else 0x1000) + 256 * n, rng.randbytes(rng.randrange(1, 200)), 2, client=client)
        if bench.places[client].pending and len(bench.fetches) and bench.fetches[-1]:
            pass
        bench.sim.drain()
        wanted[client].append(None)
    for client in (0, 1):
        assert len(bench.done(len(wanted[client]), client)) == len(wanted[client])


@pytest.mark.parametrize("length,budget", [(4096, 66), (1024, 18), (256, 6), (64, 3), (1, 2)])
def test_rate(so, seed, rng, length, budget):
    """Clocks a packet, back to back, random addresses: at most the frame's beats + 1."""
    bench = Bench(so, seed, rng, latency=4, ahead=4, depth=64)
    count = 200
    for n in range(count):
        bench.place((n << 13) + rng.randrange(4096), rng.randbytes(length), 54)
    bench.done(count)
    times  = bench.data.times()
    clocks = (times[-1][2] - times[20][1]) / (count - 20)
    print(f"placer: {length} B, {clocks:.2f} clocks a packet (budget {budget})")
    assert clocks <= budget


@pytest.mark.parametrize("gap", [0, .4])
def test_late_addresses(so, seed, rng, gap):
    """Records whose addresses follow, some to be dropped, among another client's: bytes, order, nothing dropped is written."""
    bench = Bench(so, seed, rng, gap, gap, latency=(1, 40))
    wanted, dropped, at, sent = [], [], 0x4000_0000, {0: 0, LATE: 0}
    for _ in range(150):
        data = rng.randbytes(rng.choice([0, rng.randrange(1, 200), rng.randrange(1, 1500)]))
        addr = at + rng.randrange(4096)
        at  += 0x4000
        # The bench's payloads go in the order of the fetches: one client has records under way at a time.
        client = rng.choice([0, LATE])
        if client == LATE:
            bench.place_late(data, rng.randrange(64))
            write = rng.random() < .7
            if data:
                if rng.random() < .3:
                    bench.sim.step(rng.randrange(60))
                bench.where.send(write=write, target=0, addr=addr)
                (wanted if write else dropped).append((addr, data))
        else:
            bench.place(addr, data, rng.randrange(64))
            wanted.append((addr, data))
        while bench.places[client].pending:
            bench.sim.step()
        sent[client] += 1
    for client, count in sent.items():
        assert bench.done(count, client) == [0]*count
    assert [bench.memory.read(addr, len(data)) for addr, data in wanted] == [data for _, data in wanted]
    assert all(bench.memory.read(addr, len(data)) == bytes(len(data)) for addr, data in dropped)
    bench.sim.step(20)
    assert bench.sim.peek("idle") and not bench.data.pending


def test_late_address_waits_alone(so, seed, rng):
    """Nothing is written for a record without its address; its beats stand ready and leave two clocks behind it."""
    bench = Bench(so, seed, rng)
    data  = rng.randbytes(40)
    bench.place_late(data, 3)
    bench.sim.step(100)
    assert not bench.sim.peek("m_wcmd_valid") and not bench.sim.peek("m_wdata_valid")
    bench.where.send(write=1, target=0, addr=0x1003)
    bench.sim.wait("m_wdata_valid")
    shown = bench.sim.cycles()
    assert bench.done(1, LATE) == [0] and bench.memory.read(0x1003, 40) == data
    assert shown - bench.where.times()[0][1] <= 4


def test_latency(so, seed, rng):
    """Four clocks from a record to its first beat at the memory; one more where a line takes bytes of two stored beats."""
    cases = [(54, 1, 40), (0, 0, 64), (63, 63, 1), (20, 10, 400)]
    for offset, lane, length in cases + [(rng.randrange(64), rng.randrange(64), rng.randrange(1, 500))]:
        bench = Bench(so, seed, rng)
        bench.place(0x1000 + lane, rng.randbytes(length), offset)
        bench.sim.wait("m_wdata_valid")
        shown = bench.sim.cycles()
        assert bench.done(1) == [0]
        assert shown - bench.places[0].times()[0][1] == 4 + (offset > lane), (offset, lane, length)


@pytest.mark.parametrize("stall", [0, .5])
def test_kept(so, seed, rng, stall):
    """A packet that is to be kept is read and not written; `keep` stands at each of its beats and at no other's."""
    bench = Bench(so, seed, rng, data_stall=stall)
    plan  = [(rng.randrange(3), rng.randbytes(rng.randrange(1, 400)), rng.randrange(64)) for _ in range(40)]
    beats = [kind for kind, data, offset in plan for _ in range(-(-(offset + len(data))//64))]
    for n, (kind, data, offset) in enumerate(plan):
        bench.place_late(data, offset)
        bench.where.send(write=int(kind == 0), keep=int(kind == 1), addr=0x1000*n)
    seen = []
    while len(seen) < len(beats) or len(bench.dones[LATE]) < len(plan):
        # Shown before the clock in which the beats are taken.
        before, keep = bench.data.stats()["beats"], bench.sim.peek("keep")
        bench.sim.step()
        seen += [keep]*(bench.data.stats()["beats"] - before)
    assert [kind == 1 for kind in beats] == [bool(keep) for keep in seen]
    for n, (kind, data, offset) in enumerate(plan):
        assert bench.memory.read(0x1000*n, len(data)) == (data if kind == 0 else bytes(len(data)))
