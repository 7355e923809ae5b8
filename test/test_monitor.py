# SPDX-License-Identifier: BSD-2-Clause
"""monitor: every counter counts exactly, the refusal ring keeps order, wraps, and says what it left out."""
import pytest
from litex.gen import *
from litex.soc.interconnect import csr_bus, stream
from migen import *

from roce_soc.common import refusal_description
from roce_soc.errors import ERRORS
from roce_soc.monitor import REFUSAL_LINES, TRAFFIC_BASE, RoCEMonitor
from sim.harness import Sim, build

SOURCES = {"first": ("RECEIVE",), "second": ("RECEIVE", "RESPONDER"), "third": ("QUEUE",)}
PULSES  = 3


class Monitor(LiteXModule):
    def __init__(self):
        self.ends    = [stream.Endpoint(refusal_description()) for _ in SOURCES]
        self.comb   += [end.ready.eq(1) for end in self.ends]
        self.pulses  = Signal(PULSES)
        self.monitor = RoCEMonitor(dict(zip(SOURCES, zip(self.ends, SOURCES.values()))),
            {f"pulse{i}": (self.pulses[i], "") for i in range(PULSES)})
        self.bank    = csr_bus.CSRBank(self.monitor.get_csrs(), bus=csr_bus.Interface(data_width=32, address_width=14))
        self.names   = [c.name for c in self.monitor.get_csrs()]


@pytest.fixture(scope="module")
def built():
    top = Monitor()
    ios = {**{name: end for name, end in zip(SOURCES, top.ends)}, "pulses": top.pulses, "now": top.monitor.time}
    ios.update({f"csr_{n}": getattr(top.bank.bus, n) for n in ("adr", "we", "re", "dat_w", "dat_r")})
    return build(top, ios, name="monitor"), top.names


class Bench:
    def __init__(self, built, seed=1):
        so, self.names = built
        self.sim  = sim = Sim(so, seed=seed)
        self.ends = {name: sim.source(name) for name in SOURCES}
        sim.poke("pulses", 0)
        sim.poke("now", 0)
        sim.reset()

    def csr(self, name, value=None):
        sim = self.sim
        sim.poke("csr_adr", self.names.index(name))
        sim.poke("csr_dat_w", value or 0)
        strobe = "csr_re" if value is None else "csr_we"
        sim.poke(strobe, 1)
        sim.step()
        sim.poke(strobe, 0)
        answer = sim.peek("csr_dat_r")
        sim.step(2)
        return answer

    def counter(self, index):
        self.csr("counter_select", index)
        return self.csr("counter_value")

    def line(self, index):
        """(row, opcode, source, qpn, psn, info, time) of a line."""
        self.csr("line_select", index % REFUSAL_LINES)
        row = self.csr("line_row")
        return (row & 0xff, row >> 8 & 0xff, row >> 16 & 0xff,
            *(self.csr(f"line_{n}") for n in ("qpn", "psn", "info", "time")))

    def refuse(self, source, row, **fields):
        self.ends[source].send(row=row, **fields)


def rows_of(source):
    return [row.index for row in ERRORS.values() if row.stage in SOURCES[source]]


def test_every_counter(built, rng):
    """Each row of each source, pulses of several sources and of traffic in the same clocks: no pulse lost, none doubled."""
    bench  = Bench(built)
    wanted = dict.fromkeys(range(TRAFFIC_BASE + PULSES), 0)
    for source in SOURCES:
        sent = [row for row in rows_of(source) for _ in range(rng.randrange(1, 6))]
        rng.shuffle(sent)
        for row in sent:
            bench.refuse(source, row)
            wanted[row] += 1
    for _ in range(200):
        pulses = rng.getrandbits(PULSES)
        bench.sim.poke("pulses", pulses)
        bench.sim.step()
        for i in range(PULSES):
            wanted[TRAFFIC_BASE + i] += pulses >> i & 1
    bench.sim.poke("pulses", 0)
    bench.sim.drain()
    bench.sim.step(4)
    assert {i: bench.counter(i) for i in wanted} == wanted


def test_rows_of_another_stage(built):
    """A source counts its own stages only."""
    bench = Bench(built)
    bench.refuse("first", ERRORS["RNR"].index)
    bench.sim.step(10)
    assert bench.counter(ERRORS["RNR"].index) == 0


def test_value_is_sampled(built):
    """A value stands until the counter is selected again."""
    bench = Bench(built)
    bench.csr("counter_select", TRAFFIC_BASE)
    bench.sim.poke("pulses", 1)
    bench.sim.step(5)
    bench.sim.poke("pulses", 0)
    assert bench.csr("counter_value") == 0
    assert bench.counter(TRAFFIC_BASE) == 5


def test_ring_order_and_wrap(built, rng):
    """Lines keep every field and the order in which they came, over more than two turns of the ring."""
    bench, wanted = Bench(built), []
    for n in range(2*REFUSAL_LINES + 9):
        number, source = rng.choice(list(enumerate(SOURCES)))
        fields = dict(row=rng.choice(rows_of(source)), opcode=rng.getrandbits(8), qpn=rng.getrandbits(24), psn=rng.getrandbits(24),
            info=rng.getrandbits(32))
        bench.sim.poke("now", 0x8000_0000 + n)
        bench.refuse(source, **fields)
        bench.sim.step(6)
        wanted.append((fields["row"], fields["opcode"], number, fields["qpn"], fields["psn"], fields["info"], 0x8000_0000 + n))
        assert bench.csr("lines") == n + 1
    for back in range(REFUSAL_LINES):
        assert bench.line(len(wanted) - 1 - back) == wanted[-1 - back]
    assert bench.csr("lines_lost") == 0


def test_lost_lines(built):
    """More refusals than a line a clock: counters are exact, lines and lines_lost add up, a source's lines keep their order."""
    bench, each = Bench(built), 15
    for n in range(each):
        for source in SOURCES:
            bench.refuse(source, rows_of(source)[0], info=n)
    bench.sim.drain()
    bench.sim.step(20)
    lines, lost = bench.csr("lines"), bench.csr("lines_lost")
    assert lines + lost == each*len(SOURCES) and lost > 0 and lines < REFUSAL_LINES
    assert sum(bench.counter(i) for i in range(64)) == each*len(SOURCES)
    seen = [bench.line(i) for i in range(lines)]
    for number in range(len(SOURCES)):
        mine = [line[5] for line in seen if line[2] == number]
        assert mine == sorted(set(mine)) and len(mine) >= 4
