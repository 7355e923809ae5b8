# SPDX-License-Identifier: BSD-2-Clause
"""Rows read in the clock in which they are written: old word or random bits, and an engine that never uses the latter."""
import pytest
from migen import *
from migen.fhdl.specials import READ_FIRST

from roce_soc.core import RoCECore
from roce_soc.table import clocked_port
from sim.engine import build_engines
from sim.harness import Sim, build, collide
from test import engine_scenario


class Rows(Module):
    """One RAM, two read ports: one that can use the old word, one that must not."""
    def __init__(self):
        memory = Memory(40, 8)
        write  = memory.get_port(write_capable=True)
        reads  = [clocked_port(memory, old_word=True), clocked_port(memory)]
        self.specials += memory, write, *reads
        self.ios = {"we": write.we, "adr": write.adr, "dat_w": write.dat_w, "at": [r.adr for r in reads], "row": [r.dat_r for r in reads]}


@pytest.mark.parametrize("on", [False, True])
def test_collision(monkeypatch, rng, on):
    """In the mode a port that says it can use the old word has it, the other random bits; without it both the old word."""
    monkeypatch.setenv("ROCE_COLLIDE", str(int(on)))
    top = Rows()
    sim = Sim(build(top, top.ios, name="collide"), seed=rng.randrange(1000) + 1)
    sim.reset()
    seen, before = set(), None
    for _ in range(20):
        word = rng.getrandbits(40)
        for name, value in (("we", 1), ("adr", 5), ("dat_w", word), ("at0", 5), ("at1", 5)):
            sim.poke(name, value)
        sim.step()
        if before is not None:
            assert sim.peek("row0") == before
            seen.add(sim.peek("row1") in (before, word))
        # Without a write, or at another row, the word is that of the RAM.
        sim.poke("we", 0)
        sim.step()
        assert sim.peek("row0") == sim.peek("row1") == word
        sim.poke("we", 1)
        sim.poke("adr", 6)
        sim.step()
        assert sim.peek("row0") == sim.peek("row1") == word
        before = word
    assert seen == {not on}


def test_ports_of_the_engine():
    """Every clocked read port of the engine, FIFOs of LiteX included, reads the old word in such a clock."""
    fragment = RoCECore(n_qps=16, n_mrs=16, n_cqs=16, n_chunks=64).get_fragment()
    memories = [special for special in fragment.specials if isinstance(special, Memory)]
    ports    = [port for memory in memories for _, port in collide.readers(memory)]
    assert len(ports) > 20
    for port in ports:
        assert port.mode == READ_FIRST, f"read port at {port.adr!r}"


def test_engine_with_random_bits(monkeypatch):
    """A scenario with random work and faults: nothing depends on a word that a collision makes undefined."""
    monkeypatch.setenv("ROCE_COLLIDE", "1")
    build_engines.cache_clear()
    try:
        engine_scenario.run(3)
    finally:
        build_engines.cache_clear()
