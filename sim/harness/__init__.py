# SPDX-License-Identifier: BSD-2-Clause
"""Generated Verilog compiled to a shared library and driven from Python with whole frames.

    so  = build(module, {"sink": module.sink, "source": module.source}, name="buffer")
    sim = Sim(so, seed=7)
    src = sim.source("sink",   gap=0.1)
    snk = sim.sink("source", stall=0.5)
    sim.reset()
    src.send(bytes(100))
    sim.until(snk, 1, max_cycles=1000)
    frame = snk.recv()              # .data .params .error .first .last (cycles)

The C++ half does the work of each cycle: streams, checkers, memories, clocks. Python holds the scenario, the
reference model and the comparison. See `build`, `Sim`, `Source`, `Sink`, `Memory`.
"""
from sim.harness.cached import build_cached
from sim.harness.compile import build, lint
from sim.harness.emit import emit
from sim.harness.memory import Memory
from sim.harness.simulation import Frame, HarnessError, Sim, Timeout, Violation
from sim.harness.streams import Sink, Source

__all__ = ["build", "build_cached", "lint", "emit", "Sim", "Source", "Sink", "Frame", "Memory",
           "HarnessError", "Timeout", "Violation"]
