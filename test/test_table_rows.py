# SPDX-License-Identifier: BSD-2-Clause
"""table: rows are zero when ready, arrive after their latency, are the old ones in the clock of a write; flags, kicks, parity."""
import pytest
from litex.gen import *
from litex.soc.interconnect import stream
from migen import *

from roce_soc.table import DISTRIBUTED_ROWS, LATENCIES, FlagTable, InitWalker, KickQueue, Table, kick_description
from sim.harness import Sim, build

DEPTH, WIDTH = 16, 13


class Tables(LiteXModule):
    """Tables of every latency with and without parity, a distributed one, flags, a queue of kicks; one writer's signals for all tables."""
    def __init__(self):
        self.we, self.adr, self.row, self.at = Signal(), Signal(max=DEPTH), Signal(WIDTH), Signal(max=DEPTH)
        self.rows, self.bads, self.readies = {}, {}, Signal()
        tables = {f"{'parity' if parity else 'plain'}{latency}": Table(WIDTH, DEPTH, latency=latency, parity=parity)
                  for latency in LATENCIES for parity in (False, True)}
        tables["record"] = Table([("low", 5), ("high", WIDTH - 5)], DEPTH)
        tables["near"]   = Table(WIDTH, DEPTH, distributed=True)
        for name, table in tables.items():
            setattr(self.submodules, name, table)
            bits = table.row if isinstance(table.row, Signal) else table.row.raw_bits()
            self.comb += table.we.eq(self.we), table.adr.eq(self.adr), bits.eq(self.row)
            port = table.get_port()
            self.rows[name], self.bads[name] = Signal(WIDTH), port.bad
            self.comb += port.adr.eq(self.at), self.rows[name].eq(port.row if isinstance(port.row, Signal) else port.row.raw_bits())
        self.now = Signal(WIDTH)
        self.comb += self.now.eq(tables["near"].read(self.at))
        self.comb += self.readies.eq(Reduce("AND", [table.ready for table in tables.values()]))
        self.flags  = FlagTable(DEPTH)
        self.flag   = self.flags.read(self.at)
        self.kicks  = KickQueue(DEPTH, 2)
        self.popped = stream.Endpoint(kick_description())
        self.comb  += self.kicks.source.connect(self.popped, omit={"first", "last"}), self.popped.first.eq(1), self.popped.last.eq(1)
        self.walker = InitWalker(5)


@pytest.fixture(scope="module")
def so():
    top = Tables()
    ios = {"we": top.we, "adr": top.adr, "row": top.row, "at": top.at, "ready": top.readies, "now": top.now, "flag": top.flag, "rows": top.rows,
           "bads": top.bads, "set": top.flags.set, "set_adr": top.flags.set_adr, "clear": top.flags.clear, "clear_adr": top.flags.clear_adr,
           "kick0": top.kicks.kicks[0], "kick1": top.kicks.kicks[1], "urgent": top.kicks.urgent, "popped": top.popped,
           "again": top.walker.again, "walked": top.walker.ready, "walk": top.walker.adr}
    return build(top, ios, name="tables")


@pytest.fixture
def sim(so, seed):
    sim = Sim(so, seed=seed)
    sim.reset()
    sim.wait("ready", 1)
    return sim


NAMES = [f"{kind}{latency}" for latency in LATENCIES for kind in ("plain", "parity")] + ["record", "near"]


def latency_of(name):
    return int(name[-1]) if name[-1].isdigit() else 2


def write(sim, adr, row):
    for name, value in (("we", 1), ("adr", adr), ("row", row)):
        sim.poke(name, value)
    sim.step()
    sim.poke("we", 0)


def test_rows_are_zero(sim):
    for at in range(DEPTH):
        sim.poke("at", at)
        sim.step(max(LATENCIES))
        assert not any(sim.peek(f"rows_{name}") for name in NAMES) and sim.peek("now") == 0


@pytest.mark.parametrize("name", NAMES)
def test_latency_and_order(sim, rng, name):
    """Every clock another address and another write: each row comes after its latency, as it was before the write of its clock."""
    rows, due = [0]*DEPTH, []
    for _ in range(500):
        at, adr, row, we = rng.randrange(4), rng.randrange(4), rng.getrandbits(WIDTH), rng.random() < .7
        for signal, value in (("at", at), ("we", we), ("adr", adr), ("row", row)):
            sim.poke(signal, value)
        due.append(rows[at])
        sim.step()
        if we:
            rows[adr] = row
        if len(due) >= latency_of(name):
            assert sim.peek(f"rows_{name}") == due[-latency_of(name)]
            assert sim.peek(f"bads_{name}") == 0
        assert sim.peek("now") == rows[at]      # after the write of that clock.


@pytest.mark.parametrize("latency", LATENCIES)
def test_parity(sim, rng, latency):
    """One bit of a row that changed by itself is told with the row, and with no other."""
    name = f"parity{latency}"
    path = next(path for path in sim.memories() if re_match(path, name))
    for n in range(DEPTH):
        write(sim, n, rng.getrandbits(WIDTH))
    for n in range(WIDTH + 1):
        at  = rng.randrange(DEPTH)
        row = sim.memories()[path][at]
        sim.write_row(path, at, row ^ 1 << n)
        for other in range(DEPTH):
            sim.poke("at", other)
            sim.step(latency)
            assert sim.peek(f"bads_{name}") == (other == at), (n, other)
        sim.write_row(path, at, row)


def re_match(path, name):
    return path.split(".")[0] == name


def test_flags(sim, rng):
    """Setting what is set and clearing what is clear changes nothing; both in one clock act on the old flag."""
    flags = [0]*DEPTH
    for _ in range(500):
        set_, clear, a, b, at = rng.random() < .5, rng.random() < .5, rng.randrange(4), rng.randrange(4), rng.randrange(4)
        for signal, value in (("set", set_), ("clear", clear), ("set_adr", a), ("clear_adr", b), ("at", at)):
            sim.poke(signal, value)
        assert sim.peek("flag") == flags[at]
        old = list(flags)
        if set_:
            flags[a] = 1
        if clear:
            flags[b] = 0
        if set_ and clear and a == b:
            flags[a] = 1 - old[a]
        sim.step()


def test_kicks(sim, rng):
    """A QP is queued once however often it is kicked, again once it was taken; an urgent kick goes first."""
    sources, sink = [sim.source(f"kick{n}", gap=.3) for n in range(2)], sim.sink("popped", stall=.6)
    kicked = [rng.randrange(DEPTH) for _ in range(400)]
    for n, qpi in enumerate(kicked):
        sources[n & 1].send(qpi=qpi)
    sim.step(3000)
    got = [record.qpi for record in sink.recv_all()]
    assert set(got) == set(kicked) and len(got) <= len(kicked)
    sim.poke("urgent_valid", 1)
    sim.poke("urgent_qpi", 5)
    sim.step()
    sim.poke("urgent_valid", 0)
    sim.step(50)
    assert [record.qpi for record in sink.recv_all()] == [5]


def test_walker(sim):
    """Each row once, then ready; again from the first."""
    for _ in range(2):
        sim.poke("again", 1)
        sim.step()
        sim.poke("again", 0)
        seen = []
        while not sim.peek("walked"):
            seen.append(sim.peek("walk"))
            sim.step()
        assert seen == list(range(5))


@pytest.mark.parametrize("arguments,said", [
    (dict(depth=1), "at least 2, not 1"), (dict(depth=2*DISTRIBUTED_ROWS, distributed=True), f"at most {DISTRIBUTED_ROWS}, not {2*DISTRIBUTED_ROWS}"),
    (dict(depth=4, latency=1), "not 1"), (dict(depth=4, latency=5), "not 5"), (dict(depth=4, parity=True, init=False), "parity needs init")])
def test_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        Table(8, **arguments)


def test_no_row_in_its_own_clock_from_block_ram():
    with pytest.raises(ValueError, match="distributed"):
        Table(8, 16).read(Signal(4))


def test_a_ram_for_each_reader():
    """Several asynchronous ports on one RAM would be muxes of LUTs: each reader of a distributed table has its own RAM."""
    table = Table(WIDTH, DEPTH, distributed=True)
    rows  = [table.read(Signal(max=DEPTH)) for _ in range(3)]
    rams  = [special for special in table.get_fragment().specials if isinstance(special, Memory)]
    assert len(rams) == len(rows) and all(sum(port.async_read and port.dat_w is None for port in ram.ports) == 1 for ram in rams)
