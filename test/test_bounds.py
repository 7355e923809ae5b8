# SPDX-License-Identifier: BSD-2-Clause
"""Bounds kept by counting: every FIFO whose `ready` nobody waits for has one, and every model checks them."""
import pytest
from litex.gen import LiteXModule
from litex.soc.interconnect import stream
from migen import Signal
from migen.fhdl.structure import Case, If, _Assign
from migen.fhdl.tools import list_inputs, list_signals, list_special_ios, list_targets

from roce_soc.bounds import Bound, bounds_of, counted
from roce_soc.memory.fetcher import PayloadFIFO
from roce_soc.network.slowpath import RoCESlowPath
from roce_soc.network.transmit import ControlFIFO, WholeFrameFIFO
from roce_soc.table import BypassFIFO, BypassQueue
from sim.engine import Engines
from sim.harness import Sim, Violation, build
from sim.harness.emit import signals_of
from sim.soc import bounded

FIFOS = (stream.SyncFIFO, stream.AsyncFIFO, stream.ClockDomainCrossing, BypassFIFO, BypassQueue, PayloadFIFO, ControlFIFO, WholeFrameFIFO)


def edges(statements, conditions=frozenset()):
    """(signals that are set, signals that decide it) of each assignment."""
    for statement in statements:
        if isinstance(statement, _Assign):
            yield list_targets(statement), list_inputs(statement) | conditions
        elif isinstance(statement, If):
            inner = conditions | list_signals(statement.cond)
            yield from edges(statement.t, inner)
            yield from edges(statement.f, inner)
        elif isinstance(statement, Case):
            for branch in statement.cases.values():
                yield from edges(branch, conditions | list_signals(statement.test))
        elif isinstance(statement, (list, tuple)):
            yield from edges(statement, conditions)


def behind(signals, fragment):
    """The signals and all that decides them within the clock."""
    drivers = {}
    for targets, inputs in edges(fragment.comb):
        for target in targets:
            drivers.setdefault(target, set()).update(inputs)
    reached, todo = set(signals), list(signals)
    while todo:
        new = drivers.get(todo.pop(), set()) - reached
        reached |= new
        todo += new
    return reached


def used(fragment, ports):
    """Signals that reach a register, a memory or a port."""
    inputs = [inputs for statements in fragment.sync.values() for _, inputs in edges(statements)]
    return behind(set(ports).union(list_special_ios(fragment, True, False, True), *inputs), fragment)


def unbounded(module, ports):
    """Paths of the FIFOs whose ready has no use and that no Bound speaks of; a FIFO inside another is the other's."""
    fragment = module.get_fragment()
    # What a Bound itself looks at is no use.
    bounds   = [bound for _, bound in bounds_of(module)]
    flags    = {bound.broken for bound in bounds}
    fragment.sync = {domain: [s for s in statements if not flags & list_targets(s)] for domain, statements in fragment.sync.items()}
    reached  = used(fragment, ports)
    stated   = behind({bound.of.ready for bound in bounds if bound.of is not None}, fragment)
    seen     = set()

    def walk(owner, path):
        for name, child in owner._submodules:
            inner = f"{path}.{name or type(child).__name__.lower()}"
            if id(child) in seen:
                continue
            seen.add(id(child))
            if not isinstance(child, FIFOS):
                yield from walk(child, inner)
            # LiteX's and LiteEth's own are theirs: that of the slow path's frame slots shows its ready to software.
            elif type(owner).__module__.startswith(("roce_soc.", "sim.", "test.")) and child.sink.ready not in reached | stated:
                yield inner
    return list(walk(module, "top"))


def test_every_fifo_without_ready_is_bounded():
    """The engine in its own clock, two memories behind the hub; the slow path."""
    engine = Engines(1, {}, targets=2, separate=True)
    assert unbounded(engine, signals_of(engine.ios())) == []
    path = RoCESlowPath(0x02_00_00_00_00_01, "10.0.0.1", 250e6)
    assert unbounded(path, signals_of({"sink": path.sink, "source": path.source})) == []


class Store(LiteXModule):
    """Four places; `trusting`: who writes does not wait."""
    def __init__(self, trusting=True, stated=True):
        self.sink, self.source = stream.Endpoint([("data", 8)]), stream.Endpoint([("data", 8)])
        self.taken = Signal()
        self.fifo = fifo = stream.SyncFIFO([("data", 8)], 4)
        if stated:
            self.bound = counted(fifo, "items: four at a time")
        self.comb += [
            self.sink.connect(fifo.sink, omit={"ready"}),
            fifo.source.connect(self.source),
            self.sink.ready.eq(1 if trusting else fifo.sink.ready),
        ]


@pytest.mark.parametrize("trusting,stated,found", [(True, False, ["top.fifo"]), (True, True, []), (False, False, [])])
def test_unbounded(trusting, stated, found):
    store = Store(trusting, stated)
    assert unbounded(store, signals_of({"sink": store.sink, "source": store.source})) == found


def test_sim_raises():
    """In the step in which the fifth item comes, whatever reset follows; the message names place and keeper."""
    store = Store()
    so    = build(store, {"sink": store.sink, "source": store.source})
    with Sim(so) as sim:
        sim.reset()
        sim.poke("sink_valid", 1)
        sim.step(4)
        assert sim.broken_bounds() == []
        with pytest.raises(Violation, match="bound broken: top: items: four at a time"):
            sim.step(2)
        with pytest.raises(Violation, match="four at a time"):
            sim.reset()
    with Sim(so, strict=False) as sim:
        sim.reset()
        sim.poke("sink_valid", 1)
        sim.step(6)
        assert sim.broken_bounds() == ["bound broken: top: items: four at a time"]


def test_unless():
    """Clocks in which items are lost on purpose."""
    class Leaky(Store):
        def __init__(self):
            super().__init__(stated=False)
            self.stop  = Signal()
            self.bound = counted(self.fifo, "items", unless=self.stop)
    store = Leaky()
    with Sim(build(store, {"sink": store.sink, "source": store.source, "stop": store.stop})) as sim:
        sim.reset()
        sim.poke("stop", 1)
        sim.poke("sink_valid", 1)
        sim.step(8)
        sim.poke("stop", 0)
        with pytest.raises(Violation):
            sim.step(1)


def test_simulated_soc_stops():
    text = "module sim (input sys_clk);\n    reg              core_bound_broken3 = 1'd0;\nendmodule\n"
    assert 'if (core_bound_broken3) begin $display("bound broken: core_bound_broken3"); $finish; end' in bounded(text)
    assert bounded(text).rstrip().endswith("endmodule")


def test_bound():
    """A bound may be of anything."""
    class Wide(LiteXModule):
        def __init__(self):
            self.value = Signal(4)
            self.bound = Bound(self.value > 9, "digits: who writes it")
    wide = Wide()
    with Sim(build(wide, {"value": wide.value})) as sim:
        sim.reset()
        sim.poke("value", 9)
        sim.step(3)
        sim.poke("value", 10)
        with pytest.raises(Violation, match="top: digits"):
            sim.step(2)
