# SPDX-License-Identifier: BSD-2-Clause
"""Simulation PHY: link states and faults by registers, frames through, dropped, cut and looped back."""
import random

import pytest
from migen import If, Mux, Record, Signal

from roce_soc.phy.common import COUNTERS, LATCHED_FLAGS
from roce_soc.phy.model import FAULT_EVENTS, FOREVER, RESET_CYCLES, RoCEPHYModel

from test.phy_bench import start

ALIGN = 20


class Link:
    """A running model with the bring-up of phy/common.py as software does it."""
    def __init__(self, seed=1, **options):
        dut = RoCEPHYModel(**{"align_cycles": ALIGN, **options})
        ios = {"sink": dut.sink, "source": dut.source, "wire_sink": dut.wire_sink, "wire_source": dut.wire_source}
        self.sim, self.registers = start(dut, ios, name="phy_model", seed=seed)
        self.rx, self.wire = self.sim.source("wire_sink"), self.sim.sink("wire_source")
        self.tx, self.engine = self.sim.source("sink"), self.sim.sink("source")
        self.sim.reset()

    def attempt(self, wait=200):
        """One attempt: True when the link is up."""
        r = self.registers
        r.update("control", rx_enable=1, send_rfi=1, tx_enable=0)
        for _ in range(wait//4):
            if r.get("status")["aligned"]:
                r.update("control", send_rfi=0, tx_enable=1)
                return bool(r.get("status")["link_up"])
            self.sim.step(4)
        return False

    def pulse(self, *resets):
        self.registers.update("control", **{name: 1 for name in resets})
        self.sim.step(4)
        self.registers.update("control", **{name: 0 for name in resets})

    def up(self):
        assert self.attempt()
        self.registers.flags()
        return self

    def status(self):
        return self.registers.get("status")

    def count(self, name):
        return self.registers.read(f"{name}_count")


def frames(rng, count, low=60, high=1500):
    return [rng.randbytes(rng.randint(low, high)) for _ in range(count)]

# Link ---------------------------------------------------------------------------------------------

def test_bring_up():
    link = Link()
    assert not link.status()["link_up"]
    link.sim.step(2*RESET_CYCLES)
    assert not link.status()["aligned"], "aligned with the receiver off"
    assert link.attempt()
    status = link.status()
    for name in ("aligned", "rx_status", "block_lock", "synced", "rsfec_active", "rsfec_aligned", "powergood",
                 "tx_reset_done", "rx_reset_done", "module_present"):
        assert status[name], name
    for name in ("local_fault", "remote_fault", "hi_ber", "tx_dead", "module_interrupt"):
        assert not status[name], name
    assert link.registers.get("info") == {"model": 1, "rate_gbps": 100}


def test_align_time():
    link = Link()
    link.sim.step(2*RESET_CYCLES)
    link.registers.update("control", rx_enable=1)
    cycles = 0
    while not link.status()["aligned"]:
        cycles += 1
    assert ALIGN - 2 <= cycles <= ALIGN + 2


def test_failures_need_gt_reset():
    link = Link(failures=2)
    results = []
    for _ in range(4):
        results.append(link.attempt())
        if results[-1]:
            break
        link.pulse("gt_rx_reset")
    assert results == [False, False, True]
    assert link.registers.read("fault_failures") == 0


def test_failures_stay_without_reset():
    link = Link(failures=1)
    assert not link.attempt() and not link.attempt()
    link.pulse("rx_reset")
    assert not link.attempt(), "a reset of the core's logic must not cure the transceiver"
    link.pulse("sys_reset")
    assert link.attempt()


@pytest.mark.parametrize("fault", ["never_align", "no_module"])
def test_no_signal(fault):
    link = Link()
    link.registers.update("fault_link", **{fault: 1})
    assert not link.attempt()
    status = link.status()
    assert status["local_fault"] and not status["block_lock"]
    assert status["module_present"] == (fault != "no_module")
    link.registers.update("fault_link", **{fault: 0})
    assert link.attempt()


@pytest.mark.parametrize("fault, seen", [("local_fault", "local_fault"), ("remote_fault", "remote_fault"),
                                         ("hi_ber", "hi_ber")])
def test_faults_of_an_aligned_link(fault, seen):
    link = Link().up()
    link.registers.update("fault_link", **{fault: 1})
    status = link.status()
    assert status[seen] and status["aligned"] and not status["link_up"]
    assert {seen, "link_down"} <= link.registers.flags()
    assert seen in link.registers.flags(), "the condition persists: its flag must come back"
    link.registers.update("fault_link", **{fault: 0})
    link.sim.step(4)
    link.registers.flags()
    link.sim.step(4)
    assert not link.registers.flags() and link.status()["link_up"]


@pytest.mark.parametrize("own, peer", [(0, 1), (1, 0)])
def test_fec_mismatch(own, peer):
    link = Link(rsfec=bool(own), peer_rsfec=bool(peer))
    assert not link.attempt()
    link.registers.update("control", rsfec_enable=peer)
    link.sim.step(2*ALIGN)
    assert link.status()["rsfec_active"] == own and not link.status()["aligned"], "the FEC mode is taken at reset only"
    link.pulse("tx_reset", "rx_reset")
    assert link.attempt()
    assert link.status()["rsfec_active"] == peer == link.status()["rsfec_aligned"]


def test_fec_of_one_direction_only():
    link = Link(rsfec=False, peer_rsfec=True)
    link.sim.step(2*RESET_CYCLES)
    link.registers.update("control", rsfec_enable=1)
    link.pulse("rx_reset")
    assert not link.attempt()
    assert link.status()["aligned"] and link.status()["remote_fault"], "the peer cannot receive us"


def test_loses_alignment_once():
    link = Link().up()
    link.registers.write("fault_lose_cycles", 100)
    link.sim.step(4)
    assert not link.status()["aligned"]
    link.sim.step(100 + ALIGN + 4)
    assert link.status()["link_up"], "alignment returns by itself"
    assert {"align_lost", "local_fault", "link_down"} <= link.registers.flags()
    assert link.count("align_losses") == 1
    assert not link.registers.flags()


def test_loses_alignment_until_reset():
    link = Link().up()
    link.registers.write("fault_lose_cycles", FOREVER)
    link.sim.step(1000)
    assert not link.attempt()
    link.pulse("gt_rx_reset")
    assert link.attempt()


def test_flags_after_resets():
    link = Link().up()
    link.pulse("gt_rx_reset", "gt_tx_reset")
    assert not link.status()["rx_reset_done"] and not link.status()["tx_reset_done"]
    link.sim.step(RESET_CYCLES + 2*ALIGN)
    assert {"rx_reset_seen", "tx_reset_seen", "align_lost"} <= link.registers.flags()


@pytest.mark.parametrize("event", [name for name, _ in FAULT_EVENTS])
def test_events_once(event):
    link = Link().up()
    link.registers.write("fault_event", **{event: 1})
    link.sim.step(2)
    latched = link.registers.flags()
    if event in dict(LATCHED_FLAGS):
        assert event in latched
        assert event not in link.registers.flags(), "an event of the past must stay cleared"
    if event in dict(COUNTERS):
        assert link.count(event) == 1


def test_clear_leaves_other_flags():
    link = Link().up()
    link.registers.write("fault_event", bad_fcs=1, hi_ber=1)
    link.sim.step(2)
    link.registers.write("latched", bad_fcs=1)
    assert link.registers.flags() == {"hi_ber"}

# Frames -------------------------------------------------------------------------------------------

@pytest.mark.parametrize("seed", range(3))
def test_frames_both_ways(seed):
    link, rng = Link(seed).up(), random.Random(seed)
    out, back = frames(rng, 40), frames(rng, 40)
    link.tx.set(gap=0.3*(seed == 1))
    link.rx.set(gap=0.3*(seed != 2))
    link.wire.set(stall=0.4*seed/2)
    for f, g in zip(out, back):
        link.tx.send(f)
        link.rx.send(g)
    link.sim.until(link.wire, 40)
    link.sim.until(link.engine, 40)
    assert [f.data for f in link.wire.recv_all()] == out
    assert [f.data for f in link.engine.recv_all()] == back
    assert link.count("tx_frames") == link.count("rx_frames") == 40
    assert link.count("rx_errors") == link.count("tx_dropped_down") == link.count("rx_dropped_down") == 0


def test_error_mark_passes():
    link = Link().up()
    link.rx.send(bytes(200), error=2**64 - 1)
    link.rx.send(bytes(200))
    link.sim.until(link.engine, 2)
    bad, good = link.engine.recv_all()
    assert bad.error and not good.error
    assert link.count("rx_errors") == 1 and link.count("rx_frames") == 2


@pytest.mark.parametrize("size", [1, 42, 59, 60])
def test_short_frames(size):
    link = Link().up()
    link.tx.send(bytes(size))
    link.tx.send(bytes(300))
    link.sim.drain()
    link.sim.step(4)
    assert [len(f.data) for f in link.wire.recv_all()] == ([300] if size < 60 else [60, 300])
    assert link.count("tx_refused") == (size < 60)


def test_dropped_while_down():
    link = Link()
    link.tx.send(bytes(200))
    link.rx.send(bytes(200))
    link.sim.drain()
    link.up()
    link.tx.send(bytes(100))
    link.rx.send(bytes(100))
    link.sim.until(link.wire, 1)
    link.sim.until(link.engine, 1)
    assert [len(f.data) for f in link.wire.recv_all() + link.engine.recv_all()] == [100, 100]
    assert link.count("tx_dropped_down") == link.count("rx_dropped_down") == 1


def test_frames_cut_by_alignment_loss():
    link = Link().up()
    link.rx.send(bytes(6400))
    link.tx.send(bytes(6400))
    link.sim.step(10)
    link.registers.write("fault_lose_cycles", 20)
    link.sim.drain()
    link.sim.step(ALIGN + 40)
    link.rx.send(bytes(100))
    link.sim.until(link.engine, 2)
    cut, whole = link.engine.recv_all()
    assert cut.error and len(cut.data) < 6400 and not whole.error and len(whole.data) == 100
    assert len(link.wire.recv().data) == 6400, "a frame under way leaves whole"


def test_frame_cut_by_transmit_reset():
    link = Link().up()
    link.tx.send(bytes(6400))
    link.sim.step(10)
    link.pulse("tx_reset")
    link.sim.drain()
    assert not link.wire.recv() and link.wire.stats()["open"]
    assert link.count("tx_dropped_down") == 1


def test_underflow_kills_transmit_until_reset():
    link = Link().up()
    link.registers.write("fault_event", tx_unfout=1)
    link.sim.step(2)
    assert link.status()["tx_dead"] and not link.status()["link_up"]
    link.tx.send(bytes(100))
    link.sim.drain()
    assert link.count("tx_dropped_down") == 1
    link.pulse("tx_reset")
    link.sim.step(RESET_CYCLES + 4)
    assert link.status()["link_up"] and not link.status()["tx_dead"]


@pytest.mark.parametrize("far", [{}, {"never_align": 1}, {"remote_fault": 1}, {"peer_rsfec": 0}])
def test_loopback(far):
    link, rng = Link(), random.Random(9)
    if far:
        link.registers.update("fault_link", **far)
    link.registers.update("control", loopback=1)
    link.up()
    sent = frames(rng, 20)
    link.tx.set(gap=0.2)
    for f in sent:
        link.tx.send(f)
        link.rx.send(f)
    link.sim.until(link.engine, 20)
    link.sim.drain()
    assert [f.data for f in link.engine.recv_all()] == sent
    assert not link.wire.recv() and link.count("rx_dropped_down") == 20


def test_loopback_switched_under_traffic():
    link, rng = Link(), random.Random(3)
    link.up()
    sent = frames(rng, 60, 60, 700)
    link.tx.set(gap=0.2, frame_gap=0.5)
    link.rx.set(gap=0.2)
    for f in sent:
        link.tx.send(f)
        link.rx.send(f)
    for value in (1, 0, 1, 0):
        link.sim.step(50)
        link.registers.update("control", loopback=value)
    link.sim.drain()
    link.sim.step(4)
    out = [f.data for f in link.wire.recv_all()]
    assert out and all(f in sent for f in out)
    assert all(f.error or f.data in sent for f in link.engine.recv_all())


def test_pads_of_the_simulation_platform(rng):
    """The pads carry `keep`, ones from lane 0 on; what goes out comes back."""
    pads = Record([(f"{side}_{name}", width) for side in ("tx", "rx")
                   for name, width in (("valid", 1), ("ready", 1), ("last", 1), ("data", 512), ("keep", 64), ("error", 1))])
    dut  = RoCEPHYModel(pads, align_cycles=ALIGN)
    hole = Signal()
    for name in ("valid", "last", "data", "keep", "error"):
        dut.comb += getattr(pads, f"rx_{name}").eq(getattr(pads, f"tx_{name}"))
    dut.comb += pads.tx_ready.eq(pads.rx_ready)
    dut.sync += If(pads.tx_valid & Mux(pads.tx_last, (pads.tx_keep & (pads.tx_keep + 1))[:64] != 0, pads.tx_keep != 2**64 - 1),
        hole.eq(1))
    sim, registers = start(dut, {"sink": dut.sink, "source": dut.source, "hole": hole}, name="phy_pads")
    src, snk = sim.source("sink"), sim.sink("source")
    sim.reset()
    registers.update("control", tx_enable=1, rx_enable=1)
    sim.step(RESET_CYCLES + 2*ALIGN)
    sent = [rng.randbytes(size) for size in [*range(60, 200), 4096]]
    marks = [rng.random() < 0.3 for _ in sent]
    for frame, mark in zip(sent, marks):
        src.send(frame, error=int(mark))
    sim.until(snk, len(sent))
    got = snk.recv_all()
    assert [f.data for f in got] == sent and [bool(f.error) for f in got] == marks
    assert not sim.peek("hole")


def test_parameters_refused():
    for bad in ({"align_cycles": 0}, {"align_cycles": 2**32}, {"failures": -1}, {"failures": 256}):
        with pytest.raises(ValueError, match=str(*bad.values())):
            RoCEPHYModel(**bad)
