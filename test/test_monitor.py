# SPDX-License-Identifier: BSD-2-Clause
"""monitor: every counter counts exactly, each master reads through its own window, the refusal ring keeps order, wraps, names its gaps."""
import random

import pytest
from litex.gen import *
from litex.soc.interconnect import csr_bus, stream
from migen import *

from roce_soc.clocks import ClockLink
from roce_soc.common import refusal_description
from roce_soc.errors import ERRORS
from roce_soc.monitor import REFUSAL_LINES, TRAFFIC_BASE, RoCEMonitor
from sim.harness import Sim, build
from software.control import monitor as control

SOURCES = {"first": ("RECEIVE",), "second": ("RECEIVE", "RESPONDER"), "third": ("QUEUE",)}
PULSES  = 3
WINDOWS = ("firmware", "host")


class Monitor(LiteXModule):
    """RoCEMonitor on a register bus; with `separate` what is counted has the clock roce."""
    def __init__(self, separate=False):
        self.link    = link = ClockLink("sys", "roce" if separate else "sys")
        self.ends    = [stream.Endpoint(refusal_description()) for _ in SOURCES]
        self.comb   += [end.ready.eq(1) for end in self.ends]
        self.pulses  = Signal(PULSES)
        self.monitor = RoCEMonitor(dict(zip(SOURCES, zip(self.ends, SOURCES.values()))),
            {f"pulse{i}": (self.pulses[i], "") for i in range(PULSES)}, link)
        self.bank    = csr_bus.CSRBank(self.monitor.get_csrs(), bus=csr_bus.Interface(data_width=32, address_width=14))
        self.names   = [c.name for c in self.monitor.get_csrs()]


def compiled(name, **how):
    top = Monitor(bool(how))
    ios = {**{name: end for name, end in zip(SOURCES, top.ends)}, "pulses": top.pulses, "now": top.monitor.time}
    ios.update({f"csr_{n}": getattr(top.bank.bus, n) for n in ("adr", "we", "re", "dat_w", "dat_r")})
    return build(top, ios, name=name, **how), top.names


@pytest.fixture(scope="module")
def built():
    return compiled("monitor")


@pytest.fixture(scope="module")
def apart():
    return compiled("monitor_two_clocks", clocks=("sys", "roce"))


class Bench:
    """The monitor and a register bus; as a Bus of software/control it is one of several programs on it."""
    def __init__(self, built, seed=1, **how):
        so, self.names = built
        self.sim   = sim = Sim(so, seed=seed, **how)
        self.ends  = {name: sim.source(name) for name in SOURCES} if not how else {}
        self.other = None       # what another program does between two accesses of this one.
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

    def read_register(self, name):
        if self.other:
            self.other(name)
        return self.csr(name)

    def write_register(self, name, value):
        if self.other:
            self.other(name)
        self.csr(name, value)

    def idle(self):
        self.sim.step()

    def window(self, name="host"):
        """The control library's reader of a window."""
        return control.Monitor(self, "", name)

    def counter(self, index, window="host"):
        return self.window(window).counter(index)

    def line(self, index, window="host"):
        """(row, opcode, source, qpn, psn, info, time) of a line."""
        return tuple(self.window(window).line(index))

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
    assert bench.counter(TRAFFIC_BASE) == 0
    bench.sim.poke("pulses", 1)
    bench.sim.step(5)
    bench.sim.poke("pulses", 0)
    assert bench.csr("host_counter_value") == 0
    assert bench.counter(TRAFFIC_BASE) == 5


# Several readers ----------------------------------------------------------------------------------

@pytest.mark.parametrize("first", WINDOWS)
@pytest.mark.parametrize("gap", range(4))
def test_masters_do_not_meet(built, first, gap):
    """One master selects, so many clocks later the other selects something else: each reads what it asked for."""
    bench  = Bench(built)
    second = WINDOWS[1 - WINDOWS.index(first)]
    for i in range(PULSES):
        for _ in range(10*i + 5):
            bench.sim.poke("pulses", 1 << i)
            bench.sim.step()
        bench.sim.poke("pulses", 0)
    for n in range(3):
        bench.refuse("first", rows_of("first")[0], info=100 + n)
    bench.sim.drain()
    bench.sim.step(10)
    for kind, value, indices, wanted in (("counter", "counter_value", (TRAFFIC_BASE, TRAFFIC_BASE + 1), (5, 15)),
            ("line", "line_info", (1, 0), (101, 100))):
        bench.sim.poke("csr_we", 1)
        for n, window in enumerate((first, second)):
            bench.sim.poke("csr_adr", bench.names.index(f"{window}_{kind}_select"))
            bench.sim.poke("csr_dat_w", indices[n])
            bench.sim.step()
            if n == 0 and gap:
                bench.sim.poke("csr_we", 0)
                bench.sim.step(gap)
                bench.sim.poke("csr_we", 1)
        bench.sim.poke("csr_we", 0)
        bench.sim.step(10)
        assert tuple(bench.csr(f"{window}_{value}") for window in (first, second)) == wanted, kind
        assert all(bench.csr(f"{window}_status") & 1 for window in WINDOWS)


@pytest.mark.parametrize("fixture", ["built", "apart"])
def test_programs_of_one_window(fixture, request, seed):
    """Two programs read through one window, the other master through its own, at any access of each: everyone gets its own."""
    rng    = random.Random(seed)
    clocks = {} if fixture == "built" else dict(clocks={"sys": (8000, 0), "roce": (4000, 1000)})
    bench  = Bench(request.getfixturevalue(fixture), **clocks)
    bench.sim.step(60)
    for i in range(PULSES):
        for _ in range(7*i + 3):
            bench.sim.poke("pulses", 1 << i)
            bench.sim.step()
            bench.sim.poke("pulses", 0)
            bench.sim.step()
    # With two clocks a pulse of the test lasts several of the engine's.
    count = [bench.counter(TRAFFIC_BASE + i) for i in range(PULSES)]
    assert len(set(count)) == PULSES and all(count)
    met = 0

    def other(_):
        nonlocal met
        if rng.random() < .12:
            met += 1
            bench.other = None
            i, window = rng.randrange(PULSES), rng.choice(WINDOWS)
            if rng.random() < .5:
                bench.csr(f"{window}_counter_select", TRAFFIC_BASE + i)
            else:
                assert bench.counter(TRAFFIC_BASE + i, window) == count[i]
            bench.other = other
    bench.other = other
    for _ in range(150):
        i = rng.randrange(PULSES)
        assert bench.counter(TRAFFIC_BASE + i) == count[i]
    assert met > 30


def test_waits_are_bounded(built):
    """An engine that never answers, and a program that never stops selecting, are told."""
    bench = Bench(built)
    def other(name):
        if name.endswith("value"):
            bench.csr("host_counter_select", 0)
    bench.other = other
    with pytest.raises(TimeoutError, match="others select in window host_"):
        bench.counter(1)

    class Dead:
        read_register  = staticmethod(lambda name: 0)
        write_register = staticmethod(lambda name, value: None)
        idle           = staticmethod(lambda: None)
    with pytest.raises(TimeoutError, match="does not show line_select 3"):
        control.Monitor(Dead).line(3)

# Refusal ring -------------------------------------------------------------------------------------

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
    assert sum(bench.counter(i) for i in range(TRAFFIC_BASE)) == each*len(SOURCES)
    seen = [bench.line(i) for i in range(lines)]
    for number in range(len(SOURCES)):
        mine = [line[5] for line in seen if line[2] == number]
        assert mine == sorted(set(mine)) and len(mine) >= 4
