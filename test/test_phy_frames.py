# SPDX-License-Identifier: BSD-2-Clause
"""Frame gates, guard and the frame FIFO between real clocks: whole frames, in order, without holes."""
import random

import pytest
from migen import *

from litex.gen import *

from roce_soc.common import roce_wire_description
from roce_soc.phy.frames import FrameFIFO, FrameGate, FrameGuard, line_description
from sim.harness import Sim, build

DW     = 512
DEPTH  = 64
LONG   = 40      # beats
# Periods in ps: the engine at 250 MHz and the line at 322.27 MHz, the two turned round, nearly equal, far apart.
CLOCKS = [(4000, 3103), (3103, 4000), (4000, 4001), (8000, 3103), (3103, 20000)]


class Between(LiteXModule):
    """A FIFO with its ends as wire streams: `last_be` and the line's `end` converted as the PHY does."""
    def __init__(self, store_and_forward):
        self.fifo   = fifo = FrameFIFO(line_description(DW), DEPTH, LONG, store_and_forward)
        self.guard  = guard = ClockDomainsRenamer("write")(
            FrameGuard(roce_wire_description(DW), line_description(DW), LONG))
        self.sink   = guard.sink
        self.source = source = type(self.sink)(roce_wire_description(DW))
        self.hole   = Signal()
        self.room   = fifo.room
        inside      = Signal()
        self.comb += [
            guard.source.connect(fifo.sink),
            fifo.source.connect(source, omit={"end", "error"}),
            If(fifo.source.last,
                source.last_be.eq(1 << fifo.source.end),
                source.error.eq(Replicate(fifo.source.error, DW//8)),
            ),
        ]
        # A hole: ready inside a frame, and no beat.
        self.sync.read += [
            If(source.valid & source.ready, inside.eq(~source.last)),
            If(inside & source.ready & ~source.valid, self.hole.eq(1)),
        ]


@pytest.fixture(scope="module", params=[True, False], ids=["stored", "through"])
def fifo(request):
    top = Between(request.param)
    so  = build(top, {"sink": top.sink, "source": top.source, "hole": top.hole, "room": top.room,
                      "refused": top.guard.refused}, name="phy_fifo", clocks=("write", "read"))
    return request.param, so


def start(so, seed, write=4000, read=3103, **sink):
    sim = Sim(so, seed=seed, clocks={"write": (write, 0), "read": (read, 517)})
    ends = sim.source("sink", clock="write"), sim.sink("source", clock="read", **sink)
    sim.reset(16)
    return (sim, *ends)


@pytest.mark.parametrize("periods", CLOCKS)
@pytest.mark.parametrize("gap, stall", [(0, 0), (0.5, 0), (0, 0.5), (0.3, 0.3)])
def test_every_frame_in_order(fifo, periods, gap, stall, rng):
    stored, so = fifo
    sim, src, snk = start(so, rng.getrandbits(32), *periods)
    src.set(gap=gap)
    snk.set(stall=stall)
    sent = [rng.randbytes(rng.choice([60, 63, 64, 65, 128, rng.randint(60, 64*LONG), 64*LONG])) for _ in range(150)]
    for frame in sent:
        src.send(frame)
    sim.until(snk, len(sent))
    got = snk.recv_all()
    assert [f.data for f in got] == sent
    assert not any(f.error for f in got)
    if stored:
        assert not sim.peek("hole")


def test_full_rate(fifo):
    """At equal clocks the FIFO carries one beat a clock once it runs."""
    stored, so = fifo
    sim, src, snk = start(so, 1, 4000, 3900)
    for _ in range(100):
        src.send(bytes(640))
    sim.until(snk, 100)
    assert sim.cycles("write") < 16 + 1000 + 60
    assert src.stats()["stalled"] <= 2    # ready rises after reset.


def test_stored_frame_waits_for_its_end(fifo):
    stored, so = fifo
    sim, src, snk = start(so, 1)
    src.set(gap=0.9)
    src.send(bytes(64*20))
    sim.run(lambda: src.stats()["beats"] == 19, every=1)
    sim.step(1)
    assert (snk.stats()["beats"] == 0) == stored
    sim.until(snk, 1)


def test_errors_stay_with_their_frame(fifo, rng):
    stored, so = fifo
    sim, src, snk = start(so, 5)
    marks = [rng.random() < 0.5 for _ in range(60)]
    for mark in marks:
        src.send(bytes(rng.randint(60, 300)), error=mark and 1)
    sim.until(snk, len(marks))
    assert [bool(f.error) for f in snk.recv_all()] == marks


def test_room(fifo):
    """`room` holds exactly as long as a longest frame still fits."""
    stored, so = fifo
    sim, src, snk = start(so, 1, stall=1)
    sim.step(4)
    assert sim.peek("room")
    beats = 0
    while sim.peek("room"):
        src.send(bytes(60))
        beats += 1
        sim.drain(src)
        sim.step(8)
        assert beats < DEPTH
    # Two beats have left for the output registers.
    assert beats - 2 + LONG + FrameFIFO.SLACK > DEPTH >= beats - 3 + LONG + FrameFIFO.SLACK
    snk.set(stall=0)
    sim.until(snk, beats)
    sim.step(8)
    assert sim.peek("room")


@pytest.mark.parametrize("size, out", [(59, 0), (1, 0), (60, 60), (64*LONG, 64*LONG)])
def test_guard_keeps_limits(fifo, size, out):
    stored, so = fifo
    sim, src, snk = start(so, 1)
    for n in (size, 200):
        src.send(bytes(n))
    sim.until(snk, 2 if out else 1)
    assert [(len(f.data), f.error) for f in snk.recv_all()] == ([(out, 0)] if out else []) + [(200, 0)]


@pytest.mark.parametrize("beats", [LONG + 1, 3*LONG, 200])
def test_guard_cuts_long_frames(fifo, beats):
    stored, so = fifo
    sim, src, snk = start(so, 1)
    for n in (64*beats - 10, 200):
        src.send(bytes(n))
    sim.until(snk, 2)
    cut, whole = snk.recv_all()
    assert cut.error and cut.beats == LONG
    assert not whole.error and len(whole.data) == 200


def test_parameters_refused():
    for depth, longest in ((12, 1), (48, 1), (8, 1), (64, 57), (64, 0)):
        with pytest.raises(ValueError, match=f"not {longest if depth == 64 else depth}"):
            FrameFIFO(line_description(DW), depth, longest, True)
    for bad in ({"max_beats": 0}, {"max_beats": 4, "patience": 0}):
        with pytest.raises(ValueError, match="not 0"):
            FrameGuard(roce_wire_description(DW), line_description(DW), **bad)

# Guard --------------------------------------------------------------------------------------------

PATIENCE = 50


@pytest.mark.parametrize("stop", range(0, 24))
def test_guard_outlasts_a_dead_line(stop, rng):
    """The line stands still from any beat on: the engine's side goes on, what follows the standstill is whole."""
    top = FrameGuard(roce_wire_description(DW), line_description(DW), LONG, PATIENCE)
    refused = Signal(16)
    top.sync += If(top.refused, refused.eq(refused + 1))
    sim = Sim(build(top, {"sink": top.sink, "source": top.source, "refused": refused}, name="phy_guard"))
    src = sim.source("sink")
    sim.reset()
    frames, beats = [], []

    def run(ready, cycles):
        """Takes beats at the line's side by hand: the guard changes one while it waits."""
        sim.poke("source_ready", ready)
        for _ in range(cycles):
            if ready and sim.peek("source_valid"):
                beats.append((sim.peek("source_error"), sim.peek("source_end")))
                if sim.peek("source_last"):
                    frames.append((64*(len(beats) - 1) + beats[-1][1] + 1, beats[-1][0]))
                    beats.clear()
            sim.step(1)

    sizes = [64*5, 100, 64*7 - 3, 60, 300, 64*3]
    for size in sizes:
        src.send(bytes(size), idle=1)
    run(1, stop)
    run(0, PATIENCE + 60)
    assert not src.pending, "the engine was held up"
    run(1, 4)
    src.send(bytes(200))
    run(1, 20)
    assert not beats and frames[-1] == (200, 0)
    good = [size for size, error in frames[:-1] if not error]
    assert good == sizes[:len(good)]
    assert sum(1 for _, error in frames if error) <= 1
    assert sim.peek("refused") == len(sizes) - len(good)

# Gate ---------------------------------------------------------------------------------------------

@pytest.fixture(scope="module", params=[True, False], ids=["receive", "transmit"])
def gate(request):
    top = FrameGate(roce_wire_description(DW), request.param)
    counts = {}
    for name in ("passed", "failed", "dropped"):
        counts[name] = Signal(16)
        top.sync += If(getattr(top, name), counts[name].eq(counts[name] + 1))
    so = build(top, {"sink": top.sink, "source": top.source, "open": top.open, "cut": top.cut, "forget": top.forget,
                     "count": counts}, name="phy_gate")
    return request.param, so


def gate_bench(so, seed=1, **sink):
    sim = Sim(so, seed=seed)
    ends = sim.source("sink"), sim.sink("source", **sink)
    sim.reset()
    return (sim, *ends)


def counts(sim):
    return tuple(sim.peek(f"count_{name}") for name in ("passed", "failed", "dropped"))


def test_gate_opens_and_closes_at_frames(gate, rng):
    receive, so = gate
    sim, src, snk = gate_bench(so, rng.getrandbits(32), stall=0 if receive else 0.3)
    src.set(gap=0.2)
    sent = [rng.randbytes(rng.randint(1, 900)) for _ in range(200)]
    for frame in sent:
        src.send(frame)
    while src.pending:
        sim.poke("open", rng.getrandbits(1))
        sim.step(rng.randint(1, 30))
    sim.step(2)
    got = [f.data for f in snk.recv_all()]
    assert 20 < len(got) < 180
    rest = iter(sent)
    assert all(frame in rest for frame in got), "whole frames, in order"
    assert counts(sim) == (len(got), 0, len(sent) - len(got))


@pytest.mark.parametrize("where", range(1, 11))
def test_cut(gate, where):
    """A cut before, in each beat of, and behind a frame of 8 beats, then the next frame."""
    receive, so = gate
    sim, src, snk = gate_bench(so, check_first=receive)
    sim.poke("open", 1)
    src.send(bytes(64*8), idle=1)
    src.send(bytes(100), idle=20)
    sim.step(where)
    sim.poke("cut", 1)
    sim.step(1)
    sim.poke("cut", 0)
    sim.until(snk, 1)
    sim.drain()
    sim.step(2)
    got = [(len(f.data), bool(f.error)) for f in snk.recv_all()]
    if where == 1:
        assert counts(sim) == (2, 0, 0)
    elif where == 2:
        assert counts(sim) == (1, 0, 1) and got == [(100, False)]
    elif where == 10:
        assert counts(sim) == (2, 0, 0) and got == [(512, False), (100, False)]
    elif receive:
        assert counts(sim) == (2, 1, 0) and got == [(64*(where - 2) + 1, True), (100, False)]
    else:
        # The stream broke off without an end, as a MAC in reset sees it.
        assert counts(sim) == (1, 0, 1)


@pytest.mark.parametrize("gate", [True], indirect=True, ids=["receive"])    # A transmit side gets the rest of its frames.
@pytest.mark.parametrize("forget", [0, 1])
def test_forget(gate, forget):
    """Three beats of a frame, a cut, three beats more: its rest, or a frame of their own."""
    _, so = gate
    sim = Sim(so)
    snk = sim.sink("source")
    sim.reset()
    sim.poke("open", 1)
    sim.poke("sink_valid", 1)
    sim.step(3)
    sim.poke("sink_valid", 0)
    sim.poke("cut", 1)
    sim.poke("forget", forget)
    sim.step(3)
    sim.poke("cut", 0)
    sim.poke("sink_valid", 1)
    sim.step(2)
    sim.poke("sink_last", 1)
    sim.poke("sink_last_be", 2)
    sim.step(1)
    sim.poke("sink_valid", 0)
    sim.step(2)
    assert [(len(f.data), bool(f.error)) for f in snk.recv_all()] == [(193, True)] + forget*[(130, False)]
    assert counts(sim) == (1 + forget, 1, 0)
