# SPDX-License-Identifier: BSD-2-Clause
"""The memory model of the harness: it keeps its side of the memory-port contract and sees every breach of the other."""
import functools
import random

import pytest

from litex.gen import LiteXModule
from litex.soc.interconnect import stream

from roce_soc.common import (memory_command_description, memory_rdata_description, memory_wack_description,
                             memory_wdata_description)
from sim.harness import Sim, Violation, build

# Module under test --------------------------------------------------------------------------------

class MemoryWires(LiteXModule):
    """A memory port whose engine side is played from Python."""
    STREAMS = {"wcmd": memory_command_description(), "wdata": memory_wdata_description(),
               "rcmd": memory_command_description(), "rdata": memory_rdata_description(), "wack": memory_wack_description()}

    def __init__(self):
        self.ios = {}
        for name, description in self.STREAMS.items():
            engine, port = stream.Endpoint(description), stream.Endpoint(description)
            self.comb += engine.connect(port) if name in ("wcmd", "wdata", "rcmd") else port.connect(engine)
            self.ios.update({f"e_{name}": engine, f"p_{name}": port})


@functools.lru_cache
def memory_model():
    dut = MemoryWires()
    return build(dut, dut.ios, name="memory_wires")


class Engine:
    """Plays the engine side of `MemoryWires`."""
    def __init__(self, seed, **options):
        self.sim    = Sim(memory_model(), seed)
        self.wcmd   = self.sim.source("e_wcmd")
        self.wdata  = self.sim.source("e_wdata", records=True)
        self.rcmd   = self.sim.source("e_rcmd")
        self.wack   = self.sim.sink("e_wack")
        self.rdata  = self.sim.sink("e_rdata", records=True)
        self.memory = self.sim.memory("p", **options)
        self.sim.reset()

    def write(self, addr, data, *, tag=0, target=0, beats=None, be=None):
        self.wcmd.send(target=target, addr=addr, length=len(data), qpi=5, tag=tag)
        shift = addr % 64
        lanes = bytes(shift) + data
        count = (len(lanes) + 63) // 64
        mask  = ((1 << len(data)) - 1) << shift
        for n in range(count if beats is None else beats):
            self.wdata.send(data=int.from_bytes(lanes[64 * n:64 * n + 64], "little"), last=n == count - 1,
                            be=(mask >> 64 * n & 2**64 - 1) if be is None else be)

    def read(self, addr, length, *, tag=0, target=0):
        self.rcmd.send(target=target, addr=addr, length=length, qpi=5, tag=tag)

    def answer(self, addr, length):
        """Takes one read answer: (bytes, tag, err)."""
        count = (addr % 64 + length + 63) // 64
        self.sim.until(self.rdata, count)
        beats = [self.rdata.recv() for _ in range(count)]
        assert [b["last"] for b in beats] == [0] * (count - 1) + [1]
        assert len({(b.tag, b.err) for b in beats}) == 1
        lanes = b"".join(b["data"].to_bytes(64, "little") for b in beats)
        return lanes[addr % 64:addr % 64 + length], beats[0].tag, beats[0].err

# Answers ------------------------------------------------------------------------------------------

BEHAVIOURS = {"ideal": dict(ahead=4), "random": dict(latency=(1, 100), cmd_stall=.3, data_stall=.5, answer_gap=.5, early=.5),
              "slow":  dict(latency=(1, 1000), reorder=.5)}


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_memory_write_read(behaviour, seed):
    rng    = random.Random(seed)
    engine = Engine(seed, **BEHAVIOURS[behaviour])
    spans  = [(page * 4096 + first, length) for page in range(8)
              for first, length in [(rng.randrange(64), rng.choice([1, 63, 64, 65, 1000])), (2000, 2096)]]
    data   = [rng.randbytes(n) for _, n in spans]
    for tag, ((addr, _), d) in enumerate(zip(spans, data)):
        engine.write(addr, d, tag=tag)
    engine.sim.until(engine.wack, len(spans), max_cycles=200_000)
    assert [(f.tag, f.err) for f in engine.wack.recv_all()] == [(n, 0) for n in range(len(spans))]
    for (addr, n), d in zip(spans, data):
        assert engine.memory.read(addr, n) == d
    for tag, (addr, n) in enumerate(spans):
        engine.read(addr, n, tag=tag)
    for tag, ((addr, n), d) in enumerate(zip(spans, data)):
        assert engine.answer(addr, n) == (d, tag, 0)
    counters = engine.memory.counters()
    assert counters["p", "write"]["bytes"] == counters["p", "read"]["bytes"] == sum(n for _, n in spans)
    assert [e["tag"] for e in engine.memory.log()] == 2 * list(range(len(spans)))


def test_memory_ideal_rate(seed):
    engine = Engine(seed, ahead=4)
    engine.memory.write(0, bytes(range(256)) * 16)
    for tag in range(50):
        engine.read(0, 64, tag=tag)
    engine.sim.until(engine.rdata, 50, max_cycles=60)
    got = engine.rdata.recv_all()
    assert got[-1].first - got[0].first == 49
    entry = engine.memory.log()[0]
    assert entry["answered"] - entry["issued"] == 4
    for tag in range(50):
        engine.write(0, bytes(64), tag=tag)
    engine.sim.until(engine.wack, 50, max_cycles=60)
    got = engine.wack.recv_all()
    assert got[-1].first - got[0].first == 49


def test_memory_latency_is_exact(seed):
    engine = Engine(seed, latency=9)
    engine.read(128, 64)
    engine.answer(128, 64)
    entry = engine.memory.log()[0]
    assert entry["answered"] - entry["issued"] == 9


def test_write_is_visible_with_its_acknowledge(seed):
    engine = Engine(seed, latency=50, fill=0)
    engine.write(0, b"\xff" * 64)
    engine.sim.step(30)
    assert engine.memory.read(0, 64) == bytes(64)
    engine.sim.until(engine.wack, 1)
    assert engine.memory.read(0, 64) == b"\xff" * 64


def test_partial_enables_where_allowed(seed):
    engine = Engine(seed, fill=0, exact_be=False)
    engine.wcmd.send(addr=10, length=100)
    engine.wdata.send(data=int.from_bytes(b"\xaa" * 64, "little"), be=(1 << 64) - (1 << 20), last=0)
    engine.wdata.send(data=int.from_bytes(b"\xbb" * 64, "little"), be=1 << 45 | 1, last=1)
    engine.sim.until(engine.wack, 1)
    expected = bytes(10) + b"\xaa" * 44 + b"\xbb" + bytes(44) + b"\xbb"
    assert engine.memory.read(10, 100) == expected


def test_memory_errors(seed):
    engine = Engine(seed, fill=0x11, timeout=300)
    engine.memory.fail(0x1000, 0x2000, 1)
    engine.memory.fail(0x2000, 0x3000, 2)
    engine.memory.fail(0x3000, 0x4000, 3)
    for page in range(4):
        engine.write(page * 4096, b"x" * 100, tag=page)
        engine.read(page * 4096 + 5, 100, tag=page)
    engine.sim.until(engine.wack, 4)
    assert [(f.tag, f.err) for f in engine.wack.recv_all()] == [(n, n) for n in range(4)]
    for page in range(4):
        data, tag, err = engine.answer(page * 4096 + 5, 100)
        assert (tag, err) == (page, page) and (data == bytes(100)) == (page > 0)
        assert engine.memory.read(page * 4096, 100) == (b"x" * 100 if page == 0 else b"\x11" * 100)
    assert engine.sim.cycles() > 300
    engine.memory.heal()
    engine.write(0x1000, b"y")
    engine.sim.until(engine.wack, 1)
    assert engine.wack.recv().err == 0


def test_targets_are_apart_and_may_overtake(seed):
    engine = Engine(seed, latency=(1, 200), reorder=1.0, fill=0)
    for n in range(40):
        engine.write(n * 64, bytes([n + 1]) * 64, tag=n, target=n & 1)
    engine.sim.until(engine.wack, 40)
    tags = [f.tag for f in engine.wack.recv_all()]
    assert tags != sorted(tags)
    assert [t for t in tags if t & 1] == list(range(1, 40, 2)) and [t for t in tags if not t & 1] == list(range(0, 40, 2))
    assert engine.memory.read(64, 64, target=1) == b"\x02" * 64 and engine.memory.read(64, 64, target=0) == bytes(64)


def test_paused_memory_never_answers(seed):
    engine = Engine(seed)
    engine.memory.set(paused=True)
    engine.read(0, 64)
    engine.sim.step(5000)
    assert len(engine.rdata) == 0 and engine.memory.counters()["p", "read"]["outstanding"] == 1
    engine.memory.set(paused=False)
    engine.answer(0, 64)


# Contract -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("text, breach", [
    ("length is 0",                lambda e: e.rcmd.send(addr=0, length=0)),
    ("length is 4097",             lambda e: e.rcmd.send(addr=0, length=4097)),
    ("leaves its 4 KiB page",      lambda e: e.read(4000, 97)),
    ("leaves its 4 KiB page",      lambda e: e.write(4095, b"ab")),
    ("tag 7 is still outstanding", lambda e: [e.read(0, 1, tag=7), e.read(64, 1, tag=7)]),
    ("tag 0 is still outstanding", lambda e: [e.write(0, b"a"), e.write(64, b"a")]),
    ("no data for 65 cycles",      lambda e: e.write(0, bytes(128), beats=1)),
    ("no data for 65 cycles",      lambda e: e.write(0, bytes(128), beats=0)),
    ("byte enable of lane 1 is 1", lambda e: e.write(0, b"a", be=2**64 - 1)),
    ("byte enable of lane 63 is 0", lambda e: e.write(0, bytes(64), be=2**63 - 1)),
    ("last is 1 on beat 1 of 2",   lambda e: [e.wcmd.send(addr=0, length=128), e.wdata.send(be=2**64 - 1, last=1)]),
    ("last is 0 on beat 1 of 1",   lambda e: [e.wcmd.send(addr=0, length=64), e.wdata.send(be=2**64 - 1, last=0)]),
], ids=lambda v: v.replace(" ", "-") if isinstance(v, str) else "")
def test_contract_breach_is_seen(text, breach, seed):
    engine = Engine(seed, latency=100)
    breach(engine)
    with pytest.raises(Violation, match=text):
        engine.sim.step(300)


@pytest.mark.parametrize("prefix, text", [("e_rdata", "rdata is not accepted"), ("e_wack", "wack is not accepted")])
def test_unready_engine_is_seen(prefix, text, seed):
    engine = Engine(seed)
    (engine.rdata if prefix == "e_rdata" else engine.wack).set(stall=1.0)
    engine.read(0, 64)
    engine.write(0, bytes(64))
    with pytest.raises(Violation, match=text):
        engine.sim.step(100)

# Ranges -------------------------------------------------------------------------------------------

def test_slow_range(seed):
    """A range with a latency of its own: order of its target holds, another target's answers may overtake."""
    engine = Engine(seed, reorder=1.0)
    engine.memory.slow(0x1000, 0x1040, 300, target=1)
    engine.read(0x1000, 64, tag=0, target=1)
    engine.read(0x2000, 64, tag=1, target=1)
    engine.read(0x1000, 64, tag=2, target=0)
    engine.sim.until(engine.rdata, 3)
    log = engine.memory.log()
    assert [e["tag"] for e in log] == [2, 0, 1] and log[1]["answered"] - log[1]["issued"] == 300 and log[0]["answered"] - log[0]["issued"] < 50
    engine.rdata.recv_all()
    engine.memory.heal()
    engine.read(0x1000, 64, tag=0, target=1)
    engine.sim.until(engine.rdata, 1)
    log = engine.memory.log()
    assert log[0]["answered"] - log[0]["issued"] == 4


def test_pattern_range(seed):
    """What one pattern range gives fits the same place of another; what is wrong, or in the wrong place, is counted."""
    engine = Engine(seed)
    engine.memory.pattern(0x1_0003, 0x1_4003)
    counts = engine.memory.pattern(0x2_0010, 0x2_4010, target=1)
    for addr, length in ((0, 100), (100, 3000), (3100, 61)):
        data = b"".join(engine.memory.read(0x1_0003 + addr + n, min(7, length - n)) for n in range(0, length, 7))
        assert data == engine.memory.read(0x1_0003 + addr, length) and len(set(data)) > 50
        engine.write(0x2_0010 + addr, data, target=1)
        engine.sim.until(engine.wack, 1)
        engine.wack.recv()
    assert counts() == dict(written=3161, wrong=0, jumps=0)
    engine.write(0x2_0010 + 3162, engine.memory.read(0x1_0003 + 3162, 64)[:63] + b"?", target=1)
    engine.sim.until(engine.wack, 1)
    assert counts() == dict(written=3225, wrong=1, jumps=1)
    # Beside the range bytes are kept.
    engine.memory.write(0x2_000e, b"abcd", target=1)
    assert engine.memory.read(0x2_000e, 2, target=1) == b"ab" and counts()["written"] == 3227
