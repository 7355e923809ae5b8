# SPDX-License-Identifier: BSD-2-Clause
"""The compiled harness: what goes in comes out, and every breach of a rule is seen."""
import functools
import random

import pytest
from migen import Array, ClockDomain, Case, If, Memory, Module, Signal
from migen.fhdl import tools

from litex.gen import LiteXModule
from litex.soc.interconnect import stream
from litex.soc.interconnect.csr import CSRStatus, CSRStorage

from roce_soc import grouping
from sim.harness import Sim, Timeout, Violation, build, build_cached, lint, notes
from sim.harness.compile import build_verilog


def frame_description(width):
    return stream.EndpointDescription([("data", width), ("last_be", width // 8), ("error", 1)], [("qpn", 24)])

# Modules under test -------------------------------------------------------------------------------

class Loop(LiteXModule):
    """FIFO and buffer, 512 bits."""
    def __init__(self, width=512):
        self.fifo   = stream.SyncFIFO(frame_description(width), 16, buffered=True)
        self.buffer = stream.Buffer(frame_description(width), pipe_ready=True)
        self.sink, self.source = self.fifo.sink, self.buffer.source
        self.comb += self.fifo.source.connect(self.buffer.sink)


class Faulty(LiteXModule):
    """A wire that breaks one rule, chosen by `fault`."""
    FAULTS = {1: "valid dropped before ready", 2: "data changed while stalled", 3: "last_be is not one-hot",
              4: "last_be is not 0 before last", 5: "first is 0", 6: "qpn changed inside a frame", 7: "first is 1",
              8: "last_be is 0"}

    def __init__(self):
        self.sink   = stream.Endpoint(frame_description(64))
        self.source = stream.Endpoint(frame_description(64))
        self.fault  = Signal(4)
        count       = Signal(24)
        self.sync += count.eq(count + 1)
        self.comb += [
            self.sink.connect(self.source),
            Case(self.fault, {
                1: If(count[2], self.source.valid.eq(0), self.sink.ready.eq(0)),
                2: self.source.data.eq(count),
                3: If(self.source.last, self.source.last_be.eq(3)),
                4: If(~self.source.last, self.source.last_be.eq(1)),
                5: self.source.first.eq(0),
                6: self.source.qpn.eq(count),
                7: self.source.first.eq(1),
                8: self.source.last_be.eq(0),
                "default": [],
            }),
        ]


class TwoClocks(LiteXModule):
    """An asynchronous FIFO."""
    def __init__(self):
        self.cd_a = ClockDomain()
        self.cd_b = ClockDomain()
        self.cdc  = stream.ClockDomainCrossing([("data", 32)], "a", "b", depth=16)
        self.sink, self.source = self.cdc.sink, self.cdc.source

# Models -------------------------------------------------------------------------------------------

@functools.lru_cache
def loop_model(width=512):
    dut = Loop(width)
    return build(dut, {"sink": dut.sink, "source": dut.source}, name="loop")


@functools.lru_cache
def faulty_model():
    dut = Faulty()
    return build(dut, {"sink": dut.sink, "source": dut.source, "fault": dut.fault}, name="faulty")

# Streams ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("stall", [0, .1, .5, .9, .99])
@pytest.mark.parametrize("gap", [0, .5, .9])
def test_loop(gap, stall, seed):
    rng    = random.Random(seed)
    frames = [(rng.randbytes(rng.choice([1, 63, 64, 65, 60, 1500, 4096])), rng.randrange(2**24), rng.randrange(2))
              for _ in range(30)]
    sim = Sim(loop_model(), seed)
    src, snk = sim.source("sink", gap=gap), sim.sink("source", stall=stall)
    sim.reset()
    for data, qpn, error in frames:
        src.send(data, qpn=qpn, error=error)
    sim.until(snk, len(frames), max_cycles=500_000)
    got = snk.recv_all()
    assert [(f.data, f.qpn, f.error) for f in got] == frames
    for (offered, first, last, beats), frame in zip(src.times(), got):
        assert offered <= first <= last and first < frame.first and beats == frame.beats == (len(frame.data) + 63) // 64
        assert frame.last - frame.first >= frame.beats - 1


def test_rate_without_stalls(seed):
    sim = Sim(loop_model(), seed)
    src, snk = sim.source("sink"), sim.sink("source")
    sim.reset()
    for n in range(100):
        src.send(bytes([n]) * 640)
    sim.until(snk, 100, max_cycles=1100)
    got = snk.recv_all()
    assert got[-1].last - got[0].first == 999
    # 50 bytes per cycle is the wire at 250 MHz: 640 + 24 bytes take 13.28 cycles.
    src.pace(50)
    for n in range(100):
        src.send(bytes(640))
    sim.until(snk, 100, max_cycles=2000)
    got = snk.recv_all()
    assert 13.2 < (got[-1].first - got[0].first) / 99 < 13.4


def test_same_seed_same_run():
    def run(seed):
        sim = Sim(loop_model(), seed)
        src, snk = sim.source("sink", gap=.5), sim.sink("source", stall=.5)
        sim.reset()
        for _ in range(20):
            src.send(bytes(300))
        sim.until(snk, 20)
        return [f.last for f in snk.recv_all()]
    assert run(3) == run(3) != run(4)


@pytest.mark.parametrize("fault", sorted(Faulty.FAULTS))
def test_breach_is_seen(fault, seed):
    sim = Sim(faulty_model(), seed)
    src, snk = sim.source("sink"), sim.sink("source", stall=.5 if fault in (1, 2) else 0)
    sim.reset()
    for _ in range(20):
        src.send(bytes(range(60)), qpn=77)
    sim.until(snk, 20)                      # without a fault it passes
    sim.poke("fault", fault)
    for _ in range(20):
        src.send(bytes(range(60)), qpn=77)
    with pytest.raises(Violation, match=Faulty.FAULTS[fault]):
        sim.until(snk, 40)


def test_violations_can_be_collected(seed):
    sim = Sim(faulty_model(), seed, strict=False)
    src, snk = sim.source("sink"), sim.sink("source")
    sim.reset()
    sim.poke("fault", 8)
    src.send(bytes(8))
    sim.step(10)
    assert len(sim.violations()) == 1 and sim.violations() == []


def test_timeout_names_the_state(seed):
    sim = Sim(loop_model(), seed)
    src, snk = sim.source("sink"), sim.sink("source")
    sim.reset()
    with pytest.raises(Timeout, match=r"0 of 1 frames at source after 50 cycles"):
        sim.until(snk, 1, max_cycles=50)
    src.send(bytes(64))
    with pytest.raises(Timeout, match="1 frames to send"):
        sim.drain(max_cycles=0)
    sim.drain()


def test_bad_arguments(seed):
    sim = Sim(loop_model(), seed)
    for call, text in ((lambda: sim.source("nothing"), "no stream 'nothing'"),
                       (lambda: sim.sink("sink"), "is an input"),
                       (lambda: sim.source("sink", gap=1.5), "gap must be a probability 0..1, not 1.5"),
                       (lambda: sim.poke("sink_valid", 2), "1 bits, 0x2 does not fit"),
                       (lambda: sim.poke("source_valid", 1), "driven by the model"),
                       (lambda: sim.peek("nothing"), "no port 'nothing'"),
                       (lambda: sim.memory("sink"), "no memory port 'sink'"),
                       (lambda: sim.source("sink").send(bytes(4), psn=1), "no field"),
                       (lambda: sim.source("sink").send(b""), "at least 1 byte"),
                       (lambda: Sim(loop_model(), clocks={"eth": 4000}), "no clock input eth_clk")):
        with pytest.raises(ValueError, match=text):
            call()
    with pytest.raises(Exception, match="built without trace"):
        sim.trace("x.vcd")

# Clocks, signals, memories ------------------------------------------------------------------------

def test_two_clocks(seed):
    dut = TwoClocks()
    so  = build(dut, {"sink": dut.sink, "source": dut.source}, name="two_clocks", clocks=("a", "b"))
    sim = Sim(so, seed, clocks={"a": 4000, "b": (3103, 700)})
    src, snk = sim.source("sink", clock="a", records=True, gap=.2), sim.sink("source", clock="b", records=True, stall=.2)
    sim.reset()
    for n in range(1000):
        src.send(data=n * 77, last=n & 1)
    sim.until(snk, 1000)
    assert [(f["data"], f["last"]) for f in snk.recv_all()] == [(n * 77, n & 1) for n in range(1000)]
    assert abs(sim.cycles("b") * 3103 - sim.cycles("a") * 4000) < 10000


class Ram(LiteXModule):
    """Initialised and uninitialised RAM, a constant, a CSR without bus."""
    def __init__(self, init=None):
        self.addr, self.value, self.constant, self.sum = Signal(4), Signal(32), Signal(8), Signal(9)
        self.storage = CSRStorage(8)
        self.status  = CSRStatus(8)
        self.mem    = Memory(32, 16, init=init)
        self.port   = port = self.mem.get_port(write_capable=True)
        self.comb  += [port.adr.eq(self.addr), port.dat_w.eq(1), self.value.eq(port.dat_r), self.constant.eq(0), self.constant.eq(0xA5)]
        self.comb  += self.sum.eq(self.storage.storage + self.constant)


def ram(init):
    dut = Ram(init)
    return build(dut, name="ram", ios=dict(
        addr=dut.addr, we=dut.port.we, value=dut.value, constant=dut.constant, sum=dut.sum, csr=dut.storage.storage))


def test_memory_init_constant_and_csr():
    sim = Sim(ram([n * 3 for n in range(16)]))
    sim.reset()
    for n in range(16):
        sim.poke("addr", n)
        sim.step()
        assert sim.peek("value") == n * 3
    # A block without inputs has run, and a poke is seen without a clock.
    assert sim.peek("constant") == 0xA5
    sim.poke("csr", 0x70)
    assert sim.peek("sum") == 0x115


def test_ram_is_random_by_seed():
    def words(seed):
        sim, out = Sim(ram(None), seed), []
        for n in range(16):
            sim.poke("addr", n)
            sim.step()
            out.append(sim.peek("value"))
        return out
    assert words(1) == words(1) != words(2)
    assert len(set(words(1))) > 10


class Inside(LiteXModule):
    """State of every kind, some of it two levels down."""
    class Rows(LiteXModule):
        def __init__(self, width, depth):
            self.rows = Memory(width, depth)
            self.port = self.rows.get_port(write_capable=True)
            self.specials += self.rows, self.port

    def __init__(self, widths):
        self.value = Signal(max(widths))
        self.adr   = Signal(4)
        self.we    = Signal()
        self.out   = [Signal(w) for w in widths]
        self.last__value = Signal(max(widths))
        self.sync += self.last__value.eq(self.value)
        self.seen  = Signal(max(widths))
        self.comb += self.seen.eq(self.last__value)
        for n, width in enumerate(widths):
            rows = Inside.Rows(width, 16)
            setattr(self.submodules, f"of{width}", rows)
            self.comb += rows.port.adr.eq(self.adr), rows.port.dat_w.eq(self.value), rows.port.we.eq(self.we), self.out[n].eq(rows.port.dat_r)


def test_memories_and_registers_inside():
    """Rows and registers of any width are read by the path of their module; RAM is random at power-up; a row that changed is found."""
    widths = (1, 8, 9, 16, 17, 32, 33, 64, 65, 200)

    def make():
        top = Inside(widths)
        return top, {"value": top.value, "adr": top.adr, "we": top.we, "out": top.out, "seen": top.seen}
    so   = build(*make(), name="inside")
    sim  = Sim(so, seed=5)
    rows = sim.memories()
    assert sorted(rows) == sorted(f"of{w}.rows" for w in widths)
    assert Sim(so, seed=5).memories() == rows
    assert all(rows[f"of{w}.rows"] != Sim(so, seed=6).memories()[f"of{w}.rows"] for w in widths)
    sim.reset()
    value = random.Random(1).getrandbits(200) | 1
    for name, x in (("value", value), ("adr", 11), ("we", 1)):
        sim.poke(name, x)
    sim.step()
    sim.poke("we", 0)
    sim.step(3)
    assert sim.registers("last__value") == {"last__value": value}
    for w in widths:
        after = sim.memories(f"^of{w}\\.")[f"of{w}.rows"]
        assert (len(after), after.width, after[11]) == (16, w, value & (1 << w) - 1)
        assert after.changed(rows[f"of{w}.rows"]) in ([11], [] if rows[f"of{w}.rows"][11] == after[11] else None)
        assert [r < 1 << w for r in after] == [True]*16
        sim.write_row(f"of{w}.rows", 3, (1 << w) - 1)
        assert sim.memories(f"^of{w}\\.")[f"of{w}.rows"].changed(after) in ([3], [])
        assert sim.memories(f"^of{w}\\.")[f"of{w}.rows"][3] == (1 << w) - 1
    for wrong in (("of8.rows", 16, 0), ("of8.rows", 0, 256), ("of7.rows", 0, 0)):
        with pytest.raises(ValueError, match="no row"):
            sim.write_row(*wrong)


def test_trace(tmp_path, seed):
    dut = Loop(64)
    sim = Sim(build(dut, {"sink": dut.sink, "source": dut.source}, name="loop_trace", trace=True), seed)
    src, snk = sim.source("sink"), sim.sink("source")
    sim.trace(str(tmp_path / "a.vcd"))
    sim.reset()
    src.send(bytes(100))
    sim.until(snk, 1)
    sim.close()
    text = (tmp_path / "a.vcd").read_text()
    assert "source_valid" in text and "#4000" in text


def test_lint_sees_what_matters():
    class Multi(Module):
        def __init__(self):
            self.a, self.b, self.sel = Signal(), Signal(), Signal(2)
            unread = Array(Signal() for _ in range(4))
            self.comb += self.b.eq(unread[self.sel] ^ self.a)
    dut = Multi()
    assert isinstance(lint(dut, dict(a=dut.a, b=dut.b, sel=dut.sel)), list)


class Looped(Module):
    """Whether the loop closes depends on data, so Verilator simulates it; hardware has it all the same."""
    def __init__(self):
        self.a, self.b = Signal(8), Signal(8)
        x, y = Signal(8), Signal(8)
        self.comb += [x.eq(self.a), If(self.a[0], x.eq(y + 1)), y.eq(self.a), If(~self.a[0], y.eq(x + 1)), self.b.eq(x ^ y)]


def verilog(body):
    return f"module top(input sys_clk, input other_clk, input [1:0] a, output reg [7:0] b);\n{body}\nendmodule\n"


@pytest.mark.parametrize("kind, body", [
    ("MULTIDRIVEN",    "always @(posedge sys_clk) b <= a;\nalways @(posedge other_clk) if (a[0]) b <= 8'd3;"),
    ("CASEINCOMPLETE", "always_comb begin\nb = 0;\ncase (a)\n2'd0: b = 1;\n2'd2: b = 5;\nendcase\nend"),
    ("LATCH",          "always_comb if (a[0]) b = 1;")])
def test_a_fault_of_the_netlist_is_an_error(kind, body, tmp_path, monkeypatch):
    monkeypatch.setenv("ROCE_VSIM_CACHE", str(tmp_path))
    with pytest.raises(RuntimeError, match=kind):
        build_verilog(verilog(body), name="fault")


def test_a_loop_is_an_error():
    dut = Looped()
    with pytest.raises(RuntimeError, match="UNOPTFLAT"):
        lint(dut, {"a": dut.a, "b": dut.b})


def test_allowed_notes_match_their_place_alone():
    """The allow-list names places, not kinds."""
    note = "%Warning-CASEINCOMPLETE: top.v:7:5: Case values incompletely covered (example pattern 0x1)\n    7 |     case ({})\n      |     ^~~~\n"
    assert not notes.faults(note.format("queues_fetch_grant"))
    assert notes.faults(note.format("wqe_opcode"))


def test_build_cached_elaborates_once(tmp_path, monkeypatch):
    monkeypatch.setenv("ROCE_VSIM_CACHE", str(tmp_path))
    calls = []

    def make():
        calls.append(1)
        dut = Faulty()
        return dut, {"sink": dut.sink, "source": dut.source, "fault": dut.fault}
    first = build_cached(make, key="a", name="cached")
    assert build_cached(make, key="a", name="cached") == first and len(calls) == 1
    assert build_cached(make, key="b", name="cached") == first and len(calls) == 2


def test_groups_of_statements(rng):
    """As Migen's own: the same groups, targets and order."""
    signals = [Signal(name=f"s{n}") for n in range(60)]
    for _ in range(200):
        statements = [[signals[rng.randrange(60)].eq(1) for _ in range(rng.randrange(1, 4))] for _ in range(rng.randrange(1, 40))]
        statements = [If(signals[0], *group) if rng.random() < .5 else group[0] for group in statements]
        ours, theirs = grouping.group_by_targets(statements), tools.group_by_targets(statements)
        assert [(t, [id(s) for s in g]) for t, g in ours] == [(t, [id(s) for s in g]) for t, g in theirs]
