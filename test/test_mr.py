# SPDX-License-Identifier: BSD-2-Clause
"""memory/mr: every check and its order, bounds with full carries, latency, fairness, invalidation."""
import random

import pytest
from litex.gen import *
from migen import Signal

from roce_soc.errors import BY_INDEX
from roce_soc.memory.mr import MRTable
from sim.harness import Sim, build

M64      = 1 << 64
PATIENCE = 2000


class Table(LiteXModule):
    def __init__(self, absent=None):
        self.mr    = MRTable(16, patience=PATIENCE, absent=absent)
        self.ports = [self.mr.get_port() for _ in range(3)]
        self.begun, self.ended = Signal(), Signal()      # accesses of the first client.
        self.ports[0].track(self.begun, self.ended)
        self.wakes = Signal(16)
        self.sync += self.wakes.eq(self.wakes + self.ports[2].wake)

    def ios(self):
        return {
            **{f"req{n}": port.request for n, port in enumerate(self.ports)},
            **{f"res{n}": port.result for n, port in enumerate(self.ports)},
            "write": self.mr.write, "ready": self.mr.ready, "begun": self.begun, "ended": self.ended, "wakes": self.wakes}


@pytest.fixture(scope="module")
def so():
    top = Table()
    return build(top, top.ios(), name="mr")


@pytest.fixture(scope="module")
def absent_so():
    top = Table(absent=(64, 2, 100))
    return build(top, top.ios(), name="mr_absent")


class Bench:
    def __init__(self, so, seed=1):
        self.sim = sim = Sim(so, seed=seed)
        self.req = [sim.source(f"req{n}") for n in range(3)]
        self.res = [sim.sink(f"res{n}") for n in range(3)]
        self.write = sim.source("write")
        self.rows = {}
        sim.reset()
        sim.wait("ready", 1)

    def region(self, index, **row):
        row = {"valid_row": 1, "variant": 0, "access": 0, "target": 0, "pd": 0, "va": 0, "length": 0, "addr": 0, **row}
        self.rows[index] = row
        self.write.send(index=index, **row)
        self.sim.drain(self.write)
        self.sim.step(4)

    def expect(self, key, va, length, access, pd):
        row = self.rows.get(key >> 8)
        if row is None or not row["valid_row"] or row["variant"] != key & 255:
            return "MR_KEY", None
        if row["pd"] != pd:
            return "MR_PD", None
        if access & ~row["access"]:
            return "MR_ACCESS", None
        if va < row["va"] or va + length > min(row["va"] + row["length"], M64):
            return "MR_BOUNDS", None
        return None, (row["target"], (row["addr"] + va - row["va"]) % M64)

    def check(self, port=0, **request):
        self.req[port].send(**request)
        self.sim.until(self.res[port], 1)
        return self.judge(self.res[port].recv(), request)

    def judge(self, result, request):
        name, place = self.expect(**request)
        got = BY_INDEX[result.row].name if result.row else None
        assert got == name, (request, got, name)
        if place:
            assert (result.target, result.addr) == place, request
        return got


def test_checks_in_order(so):
    b = Bench(so)
    b.region(3, variant=0x55, access=7, target=2, pd=9, va=0x7fff_ffff_0000_1001, length=0x1_0000_0003, addr=0xffff_0123)
    base = dict(key=0x355, va=0x7fff_ffff_0000_1001, length=1, access=2, pd=9)
    assert b.check(**base) is None
    assert b.check(**{**base, "key": 0x354}) == "MR_KEY"
    assert b.check(**{**base, "key": 0x255}) == "MR_KEY"
    assert b.check(**{**base, "key": 0x1355, "pd": 1}) == "MR_KEY"          # beyond the table: not an alias of 3.
    assert b.check(**{**base, "pd": 8, "access": 8, "va": 0}) == "MR_PD"
    assert b.check(**{**base, "access": 8, "va": 0}) == "MR_ACCESS"
    assert b.check(**{**base, "va": base["va"] - 1}) == "MR_BOUNDS"
    assert b.check(**{**base, "access": 0}) is None
    b.region(3, valid_row=0, variant=0x55)
    assert b.check(**base) == "MR_KEY"


@pytest.mark.parametrize("va,size", [(0, 1), (0x1234, 4096), (M64 - 4096, 4096), (M64 - 4096, 8192), (0xffff_fffe, 4),
                                     (0x1_0000_0000 - 8, 1 << 33), (5, M64 - 5), (0, M64 - 1)])
def test_bounds(so, va, size):
    b = Bench(so)
    b.region(1, access=15, va=va, length=size, addr=0xdead_beef_f000_0001)
    last = min(va + size, M64)
    for start, length in ((va, 1), (va, 2), (last - 1, 1), (last - 1, 2), (last - 2, 2), (last % M64, 1), (va - 1, 1), (va - 1, 2),
                          (va, min(size, 2**32 - 1)), (va, min(size + 1, 2**32 - 1)), (va + 1, min(size, 2**32 - 1)),
                          (M64 - 1, 2), (M64 - 1, 1), (M64 - 2**31, 2**31), (M64 - 2**31, 2**31 + 1), (0, 2**32 - 1)):
        b.check(key=0x100, va=start % M64, length=length, access=0, pd=0)


def test_random_three_clients(so):
    rnd = random.Random(5)
    b = Bench(so, seed=5)
    for index in rnd.sample(range(16), 12):
        b.region(index, variant=rnd.getrandbits(8), access=rnd.getrandbits(4), target=rnd.getrandbits(2), pd=rnd.getrandbits(1),
                 va=rnd.getrandbits(rnd.choice([8, 32, 64])), length=rnd.getrandbits(rnd.choice([8, 33, 63])), addr=rnd.getrandbits(64))
    sent = [[], [], []]
    for _ in range(3000):
        n   = rnd.randrange(3)
        row = b.rows.get(index := rnd.randrange(17), {"variant": 0, "va": 0, "length": 9, "pd": 0})
        va  = (row["va"] + rnd.choice([0, 0, row["length"], rnd.getrandbits(8), -1])) % M64
        request = dict(key=index << 8 | (row["variant"] ^ (rnd.random() < .1)), va=va,
                       length=rnd.choice([1, rnd.getrandbits(8) + 1, rnd.getrandbits(32), max(1, row["length"] & 0xffffffff)]),
                       access=rnd.choice([0, 1, 2, 4, 8]), pd=row["pd"] ^ (rnd.random() < .1))
        sent[n].append(request)
        b.req[n].send(**request)
    start = b.sim.cycles()
    b.sim.drain(*b.req)
    assert b.sim.cycles() - start <= 3000 + 20          # one check a clock with all clients waiting.
    b.sim.step(10)
    grants = 0
    for n in range(3):
        results = b.res[n].recv_all()
        assert len(results) == len(sent[n])
        grants += sum(b.judge(*pair) is None for pair in zip(results, sent[n]))
    assert grants > 100


@pytest.mark.parametrize("index,over", [(2, 0), (2, 1), (0, 1), (15, 1)])
def test_old_accesses_are_awaited(so, index, over):
    """A region removed, or written over, is dead at once; its place changes hands when what began under it has ended."""
    b = Bench(so)
    b.region(index, access=15, length=64)
    for _ in range(2):
        b.sim.poke("begun", 1)
        b.sim.step()
        b.sim.poke("begun", 0)
        b.sim.step(3)
    # A number beyond the table is no alias: nothing to wait for, nothing taken.
    for beyond in (16 + index, 16 + 7):
        b.write.send(index=beyond, valid_row=1, access=15)
        b.sim.step(20)
        assert not b.write.pending
    b.rows[index] = None
    b.write.send(index=index, valid_row=over, access=15, length=128, addr=0x1000)
    b.sim.step(20)
    for ended in range(2):
        assert b.write.pending, f"done with {2 - ended} accesses under way"
        assert b.check(key=index << 8, va=0, length=1, access=1, pd=0) == "MR_KEY"
        b.sim.poke("ended", 1)
        b.sim.step()
        b.sim.poke("ended", 0)
        b.sim.step(20)
    assert not b.write.pending
    b.rows[index] = dict(valid_row=over, variant=0, access=15, target=0, pd=0, va=0, length=128, addr=0x1000)
    assert b.check(key=index << 8, va=64, length=64, access=1, pd=0) == (None if over else "MR_KEY")
    # A place that is empty waits for nobody.
    b.sim.poke("begun", 1)
    b.sim.step()
    b.sim.poke("begun", 0)
    b.write.send(index=7, valid_row=1, access=15, length=128)
    b.sim.step(20)
    assert not b.write.pending


def test_patience(so):
    """An access that never ends holds an invalidation up for so long; its key is dead from the start, the place free then."""
    b = Bench(so)
    b.region(4, access=7, length=64)
    b.sim.poke("begun", 1)
    b.sim.step()
    b.sim.poke("begun", 0)
    b.rows[4] = None
    for _ in range(2):
        b.write.send(index=4, valid_row=0)
        b.sim.step(PATIENCE - 100)
        assert b.write.pending and b.check(key=0x400, va=0, length=1, access=1, pd=0) == "MR_KEY"
        b.sim.step(200)
        assert not b.write.pending
        b.region(4, access=7, length=64)
        assert b.check(key=0x400, va=0, length=1, access=1, pd=0) is None
        b.rows[4] = None


def test_nothing_to_remove(so):
    """A place without a region is removed: no key for it is good in any clock of that."""
    b = Bench(so)
    b.write.send(index=6, valid_row=0)
    for _ in range(40):
        b.req[0].send(key=0x600, va=0, length=0, access=0, pd=0)
    b.sim.drain(b.req[0], b.write)
    b.sim.step(10)
    assert {BY_INDEX[r.row].name for r in b.res[0].recv_all()} == {"MR_KEY"}


def test_latency(so):
    b = Bench(so)
    b.region(0, length=64)
    b.req[1].send(key=0, va=0, length=1, access=0, pd=0)
    b.sim.until(b.res[1], 1)
    taken = b.req[1].times()[0][2]
    assert b.res[1].recv().last - taken == 5


def test_written_over(so):
    """A row over a valid one: the old key is gone, the new one good; so it is behind an invalidation, and for an index beyond the table."""
    b = Bench(so)
    for turn in range(3):
        b.region(5, variant=turn, access=7, va=0x1000*turn, length=0x1000)
        for old in range(turn + 1):
            assert b.check(key=0x500 | old, va=0x1000*old, length=1, access=1, pd=0) == (None if old == turn else "MR_KEY")
    b.region(5, valid_row=0)
    b.region(5, variant=9, access=7, length=0x1000)
    assert b.check(key=0x509, va=0, length=1, access=1, pd=0) is None
    b.region(5 + 16, variant=1, access=7, length=0x1000)
    assert b.check(key=0x509, va=0, length=1, access=1, pd=0) is None


@pytest.mark.parametrize("n_mrs", [0, 8, 100, 1 << 17])
def test_bad_size(n_mrs):
    with pytest.raises(ValueError, match="n_mrs must be"):
        MRTable(n_mrs)


def test_bad_patience():
    with pytest.raises(ValueError, match="patience must be"):
        MRTable(16, patience=1)


@pytest.mark.parametrize("absent, words", [((0, 1, 2), "chance"), ((256, 1, 2), "chance"), ((64, 0, 2), "shortest"),
    ((64, 3, 2), "shortest"), ((64, 1, 1 << 16), "shortest")])
def test_bad_absent(absent, words):
    with pytest.raises(ValueError, match=words):
        MRTable(16, absent=absent)


def test_absent_pages(absent_so):
    """A quarter of the good accesses miss and each miss brings a page; a refused access never misses; results stay in order."""
    b = Bench(absent_so)
    b.region(3, variant=1, access=1, va=0x1000, length=0x1000, addr=0x5000)
    for n in range(800):
        b.req[n % 3].send(key=0x301 if n & 4 else 0x302, va=0x1000 + n, length=1, access=1, pd=0)
    for n in range(3):
        b.sim.until(b.res[n], len(range(n, 800, 3)), max_cycles=20_000)
    results = [b.res[n].recv_all() for n in range(3)]
    misses  = 0
    for n in range(800):
        result = results[n % 3].pop(0)
        misses += result.miss
        if n & 4:
            assert result.row == 0 and (result.miss or result.addr == 0x5000 + n)
        else:
            assert BY_INDEX[result.row].name == "MR_KEY" and not result.miss
    assert 70 <= misses <= 130
    b.sim.step(120)
    assert 1 <= b.sim.peek("wakes") <= misses
