# SPDX-License-Identifier: BSD-2-Clause
"""Hard-block PHY between three real clocks: a stand-in for the core, everything around it as on the board."""
import itertools
import random

import pytest

from roce_soc.phy import cmac as cmac_module
from roce_soc.phy.cmac import RoCEPHYCMAC
from roce_soc.phy.common import COUNTERS, LATCHED_FLAGS
from roce_soc.phy.hardblock import STATUS, TIED, ip_config
from roce_soc.phy.line import MAX_BEATS
from roce_soc.phy.model import RoCEPHYModel
from sim.harness import Sim, build

from test.phy_bench import PINS, HardBlock, RegisterBench, Registers, platform

# sys 125 MHz, engine 250 MHz, line 322.27 MHz.
PERIODS = {"sys": 8000, "roce": (4000, 700), "line": (3103, 1300)}


@pytest.fixture(scope="module")
def built():
    """(library, register index, fields) of the PHY with `HardBlock`."""
    patch = pytest.MonkeyPatch()
    patch.setattr(cmac_module, "CMACHardBlock", HardBlock)
    try:
        board = platform()
        pads  = board.request("qsfp")
        dut   = RoCEPHYCMAC(board, pads, site="CMACE4_X0Y7", gt_group=("X1", 48), sys_clk_freq=125e6)
        bench = RegisterBench(dut)
        core  = dut.cmac
        so    = build(bench, {
            "bus": bench.bus, "sink": dut.sink, "source": dut.source, "line_tx": core.line_tx, "line_rx": core.line_rx,
            "hole": core.hole, "keep": core.keep, "core": {**core.controls, **core.resets},
            "stat": core.status, "pin": {name: getattr(pads, name) for name, _ in PINS}},
            name="phy_cmac", clocks=("sys", "roce", "line", "init"))
    finally:
        patch.undo()
    return so, bench.index(), bench.fields


class Board:
    def __init__(self, built, seed=1, periods=PERIODS, cycle=1, strict=True):
        so, index, fields = built
        self.sim       = sim = Sim(so, seed=seed, clocks=periods, strict=strict)
        self.registers = Registers(sim, index, fields, cycle)
        self.tx, self.rx     = sim.source("sink", clock="roce"), sim.source("line_rx", clock="line")
        self.line, self.engine = sim.sink("line_tx", clock="line"), sim.sink("source", clock="roce")
        sim.reset(16)
        sim.poke("core_powergood", 15)
        sim.step(8)

    def bring_up(self, wide=2**20 - 1):
        sim = self.sim
        self.registers.update("control", rx_enable=1, send_rfi=1)
        sim.poke("stat_block_lock", wide)
        sim.poke("stat_synced", wide)
        sim.poke("stat_aligned", 1)
        sim.poke("stat_rx_status", 1)
        sim.step(4)
        assert not self.registers.get("status")["link_up"]
        self.registers.update("control", send_rfi=0, tx_enable=1)
        sim.step(8)
        return self

    def status(self):
        self.sim.step(8)
        return self.registers.get("status")

    def counters(self):
        """All counters that are not 0, after a snapshot."""
        self.sim.step(200)
        values = {name: self.registers.read(f"{name}_count") for name, _ in COUNTERS}
        return {name: value for name, value in values.items() if value}


def frames(rng, count, low=60, high=1500):
    return [rng.randbytes(rng.randint(low, high)) for _ in range(count)]

# Registers ----------------------------------------------------------------------------------------

def test_same_registers_as_the_model(built):
    _, index, fields = built
    model = RegisterBench(RoCEPHYModel())
    model.finalize()
    assert set(index) == {name for name in model.index() if not name.startswith("fault_")}
    assert fields == {name: content for name, content in model.fields.items() if not name.startswith("fault_")}


def test_bring_up_and_pins(built):
    board = Board(built)
    assert board.registers.get("info") == {"model": 0, "rate_gbps": 100}
    board.sim.poke("pin_modprsl", 0)
    board.sim.poke("pin_intl", 1)
    board.bring_up()
    status = board.status()
    assert {name for name, value in status.items() if value} == {
        "link_up", "aligned", "rx_status", "block_lock", "synced", "tx_reset_done", "rx_reset_done", "powergood", "module_present"}
    assert [board.sim.peek(f"pin_{name}") for name in ("resetl", "modsell", "lpmode")] == [1, 1, 0]
    board.registers.update("control", module_reset=1, module_select=1, module_low_power=1)
    assert [board.sim.peek(f"pin_{name}") for name in ("resetl", "modsell", "lpmode")] == [0, 0, 1]
    board.sim.poke("pin_modprsl", 1)
    board.sim.poke("pin_intl", 0)
    status = board.status()
    assert status["module_interrupt"] and not status["module_present"]


@pytest.mark.parametrize("field", ["sys_reset", "tx_reset", "rx_reset", "gt_tx_reset", "gt_rx_reset", "loopback"])
def test_controls_reach_the_core(built, field):
    board = Board(built)
    for value in (1, 0):
        board.registers.update("control", **{field: value})
        board.sim.step(2)
        names = ("sys_reset", "tx_reset", "rx_reset", "gt_tx_reset", "gt_rx_reset", "loopback")
        assert {name: board.sim.peek(f"core_{name}") for name in names} == {name: int(name == field)*value for name in names}


@pytest.mark.parametrize("signal, value, field, flag", [
    ("aligned", 0, "aligned", "align_lost"), ("rx_status", 0, "rx_status", "link_down"),
    ("local_fault", 1, "local_fault", "local_fault"), ("remote_fault", 1, "remote_fault", "remote_fault"),
    ("hi_ber", 1, "hi_ber", "hi_ber"), ("block_lock", 2**20 - 3, "block_lock", None), ("synced", 2**19 - 1, "synced", None)])
def test_status(built, signal, value, field, flag):
    board = Board(built).bring_up()
    board.registers.flags()
    board.sim.poke(f"stat_{signal}", value)
    status = board.status()
    assert status[field] == (value == 1)
    if signal not in ("hi_ber", "block_lock", "synced"):
        assert not status["link_up"]
    assert not flag or flag in board.registers.flags()


@pytest.mark.parametrize("signal, flag", [("hi_ber", "hi_ber"), ("remote_fault", "remote_fault"), ("local_fault", "local_fault"),
    ("tx_unfout", "tx_unfout"), ("tx_ovfout", "tx_unfout"), ("bad_fcs", "bad_fcs"), ("fec_uncorrected", "fec_uncorrected")])
def test_short_events_are_caught(built, signal, flag):
    """One line clock is enough, wherever it falls in the CPU's clock; it is seen once."""
    board = Board(built, periods={"line": 3103, "sys": 20000, "roce": 4000}, cycle=7).bring_up()
    board.sim.step(100)
    for wait in range(9):
        board.sim.step(400 + wait)
        board.registers.flags()
        board.sim.step(60)
        assert flag not in board.registers.flags()
        board.sim.poke(f"stat_{signal}", 1)
        board.sim.step(1)
        board.sim.poke(f"stat_{signal}", 0)
        board.sim.step(200)
        assert flag in board.registers.flags()


def test_fec_mode_is_taken_at_reset(built):
    board = Board(built)
    assert board.sim.peek("core_tx_rsfec") == board.sim.peek("core_rx_rsfec") == 1
    for mode in (0, 1, 0):
        board.registers.update("control", rsfec_enable=mode)
        assert board.status()["rsfec_active"] != mode or mode == 0
        for side in ("tx", "rx"):
            board.sim.poke(f"core_usr_{side}_reset", 1)
            assert not board.status()[f"{side}_reset_done"]
            board.sim.poke(f"core_usr_{side}_reset", 0)
        assert board.status()["rsfec_active"] == mode == board.sim.peek("core_rx_rsfec")

# Frames -------------------------------------------------------------------------------------------

@pytest.mark.parametrize("line, engine", itertools.product((3103, 4500), (4000, 3000, 7000)))
def test_frames_both_ways(built, line, engine, rng):
    board = Board(built, rng.getrandbits(32), {"sys": 8000, "roce": engine, "line": (line, 99)}).bring_up()
    sim   = board.sim
    out, back = frames(rng, 60), frames(rng, 60)
    board.tx.set(gap=rng.choice([0, 0.4]))
    board.line.set(stall=rng.choice([0, 0.4]))
    board.rx.set(gap=0.5 if engine > line else 0.1)    # The engine must keep up on average.
    for f, g in zip(out, back):
        board.tx.send(f)
        board.rx.send(g)
    sim.until(board.line, 60)
    sim.until(board.engine, 60)
    assert [f.data for f in board.line.recv_all()] == out
    assert [f.data for f in board.engine.recv_all()] == back
    assert not sim.peek("hole") and not sim.peek("keep")
    assert board.counters() == {"tx_frames": 60, "rx_frames": 60}


def test_every_length(built):
    board = Board(built).bring_up()
    sizes = [*range(60, 200), 64*MAX_BEATS]
    for size in sizes:
        board.tx.send(bytes(size))
        board.rx.send(bytes(size))
    board.sim.until(board.line, len(sizes))
    board.sim.until(board.engine, len(sizes))
    assert [len(f.data) for f in board.line.recv_all()] == [len(f.data) for f in board.engine.recv_all()] == sizes
    assert not board.sim.peek("hole") and not board.sim.peek("keep")


@pytest.mark.parametrize("size", [60, 64, 1024, 4174])
def test_line_rate(built, size):
    """100 Gb/s of back-to-back frames both ways at 250 MHz: nothing dropped, nothing held up."""
    board = Board(built).bring_up()
    sim   = board.sim
    count = 120000//size
    board.rx.pace(12500/322.265625, 24)
    for _ in range(count):
        board.rx.send(bytes(size))
        board.tx.send(bytes(size))
    start = sim.cycles("line")
    sim.until(board.engine, count)
    sim.until(board.line, count)
    wire = (size + 24)*count/(12500/322.265625)
    assert sim.cycles("line") - start < 1.05*wire + 300
    assert board.counters() == {"tx_frames": count, "rx_frames": count}


def test_latency(built):
    """The figures of the docstrings, in clocks of equal length."""
    seen = {"out": set(), "back": set()}
    for phase in range(0, 4000, 500):
        board = Board(built, periods={"sys": 8000, "roce": 4000, "line": (4000, phase)}).bring_up()
        for beats in (1, 5):
            board.tx.send(bytes(64*beats))
            board.rx.send(bytes(64*beats))
            board.sim.step(100)
            sent, came = board.tx.times()[0], board.rx.times()[0]
            out, back  = board.line.recv(), board.engine.recv()
            seen["out"].add(out.first - sent[2])
            seen["back"].add(back.first - came[1])
            assert out.last - out.first == back.last - back.first == beats - 1
    assert seen["out"] <= {8, 9, 10} and seen["back"] <= {8, 9}, seen


def test_errors_marked_at_the_last_beat(built, rng):
    board = Board(built).bring_up()
    marks = [rng.random() < 0.5 for _ in range(50)]
    for mark in marks:
        board.rx.send(bytes(rng.randint(60, 400)), error=int(mark))
        board.tx.send(bytes(rng.randint(60, 400)), error=int(mark))
    board.sim.until(board.engine, 50)
    board.sim.until(board.line, 50)
    assert [bool(f.error) for f in board.engine.recv_all()] == marks
    assert [bool(f.error) for f in board.line.recv_all()] == marks
    assert board.counters() == {"tx_frames": 50, "rx_frames": 50, "rx_errors": sum(marks)}


def test_whole_frames_dropped_when_full(built, rng):
    """An engine clock that cannot keep up: frames are missing, none is cut."""
    board = Board(built, periods={"sys": 8000, "roce": 20000, "line": 3103}).bring_up()
    board.registers.flags()
    sent = frames(rng, 600, 60, 3000)
    for f in sent:
        board.rx.send(f)
    board.sim.drain(board.rx)
    board.sim.step(3000)
    got  = board.engine.recv_all()
    rest = iter(sent)
    assert 50 < len(got) < 550
    assert not any(f.error for f in got)
    assert all(any(f.data == g for g in rest) for f in got), "whole frames, in order"
    assert board.counters() == {"rx_frames": len(got), "rx_dropped_full": 600 - len(got)}
    assert board.registers.flags() == {"rx_full"}


def test_dropped_while_down(built):
    board = Board(built)
    for stream_ in (board.tx, board.rx):
        stream_.send(bytes(500))
    board.sim.step(200)
    board.bring_up()
    board.sim.poke("stat_remote_fault", 1)
    board.sim.step(20)
    for stream_ in (board.tx, board.rx):
        stream_.send(bytes(300))
    board.sim.until(board.engine, 1)
    board.sim.step(100)
    board.sim.poke("stat_remote_fault", 0)
    board.sim.step(20)
    board.tx.send(bytes(100))
    board.sim.until(board.line, 1)
    assert len(board.line.recv().data) == 100 and len(board.engine.recv().data) == 300
    assert board.counters() == {"tx_frames": 1, "tx_dropped_down": 2, "rx_frames": 1, "rx_dropped_down": 1}


@pytest.mark.parametrize("wait", range(3, 8))
def test_receive_reset_inside_a_frame(built, wait):
    """The core falls silent in the middle of a frame; what it gives afterwards begins a new one."""
    board = Board(built).bring_up()
    sim   = board.sim
    board.rx.send(bytes(64*20))
    sim.step(wait)
    board.rx.set(gap=1)
    sim.poke("core_usr_rx_reset", 1)
    sim.poke("stat_aligned", 0)
    sim.step(20)
    sim.poke("core_usr_rx_reset", 0)
    sim.poke("stat_aligned", 1)
    sim.step(20)
    board.rx.set(gap=0)
    board.rx.send(bytes(100))
    sim.drain(board.rx)
    sim.step(20)
    got = board.engine.recv_all()
    assert [bool(f.error) for f in got] == [True, False, False] and not board.engine.stats()["open"]
    assert len(got[2].data) == 100


@pytest.mark.parametrize("wait", range(0, 40, 4))
def test_transmit_reset_inside_a_frame(built, wait):
    """No beat of the frame that was cut leaves behind the reset."""
    board = Board(built, strict=False).bring_up()
    sim   = board.sim
    board.line = None
    line  = sim.sink("line_tx", clock="line", check_first=False)
    board.tx.send(b"\xaa"*64*60)
    sim.wait("line_tx_valid")
    sim.step(1 + wait//4)
    sim.poke("core_usr_tx_reset", 1)
    line.set(stall=1)    # The core takes nothing while in reset.
    sim.step(20)
    assert not sim.peek("line_tx_valid")
    line.set(stall=0)
    beats = line.stats()["beats"]
    sim.poke("core_usr_tx_reset", 0)
    sim.step(80)
    assert line.stats()["beats"] == beats
    board.tx.send(b"\x55"*100)
    sim.step(60)
    assert line.stats()["beats"] == beats + 2
    assert board.counters() == {"tx_frames": 1, "tx_dropped_down": 1}
    # Only a reset may take back a beat that was offered.
    assert all("valid dropped before ready" in text for text in sim.violations())


@pytest.mark.parametrize("wait", range(0, 30, 2))
def test_engine_reset_inside_frames(built, wait):
    """The engine is reset, the line is not: the frame it gets ends with an error and no hole, what it gives is dropped to its end."""
    board = Board(built).bring_up()
    sim   = board.sim
    for _ in range(3):
        board.tx.send(b"\xaa"*64*20)
        board.rx.send(b"\xaa"*64*20)
    sim.wait("line_tx_valid")
    sim.step(wait//3, "roce")
    sim.hold("roce")
    sim.step(1 + wait % 3, "roce")
    sim.hold("roce", False)
    sim.step(60)
    board.engine.recv_all()
    sim.drain(board.rx, board.tx)
    sim.step(200)
    assert not sim.peek("hole") and not sim.peek("keep"), "the core was starved"
    seen = board.line.recv_all()
    assert not board.line.stats()["open"] and all(f.error or f.data == b"\xaa"*64*20 for f in seen)
    assert all(f.data == b"\xaa"*64*20 for f in board.engine.recv_all()), "the rest of a frame was taken for a frame"
    # All works again, and nothing of before comes late.
    for size in (60, 1000):
        board.tx.send(bytes(size))
        board.rx.send(bytes(size))
    sim.step(400)
    assert [len(f.data) for f in board.line.recv_all()] == [60, 1000] == [len(f.data) for f in board.engine.recv_all()]


@pytest.mark.parametrize("size, counters", [
    (59, {"tx_refused": 1}), (60, {"tx_frames": 1}), (64*MAX_BEATS, {"tx_frames": 1}),
    (64*MAX_BEATS + 1, {"tx_frames": 1, "tx_refused": 1})])
def test_transmit_lengths(built, size, counters):
    board = Board(built).bring_up()
    board.tx.send(bytes(size))
    board.sim.drain(board.tx)
    board.sim.step(300)
    assert board.counters() == counters
    assert [bool(f.error) for f in board.line.recv_all()] == [size > 64*MAX_BEATS]*counters.get("tx_frames", 0)


def test_received_frame_above_the_longest(built):
    board = Board(built).bring_up()
    for size in (64*MAX_BEATS, 64*MAX_BEATS + 1, 64*(MAX_BEATS + 40), 200):
        board.rx.send(bytes(size))
    board.sim.until(board.engine, 4)
    assert [(f.beats, bool(f.error)) for f in board.engine.recv_all()] == [
        (MAX_BEATS, False), (MAX_BEATS, True), (MAX_BEATS, True), (4, False)]


def test_underflow_stops_transmission_until_reset(built):
    board = Board(built).bring_up()
    board.sim.poke("stat_tx_unfout", 1)
    board.sim.step(1)
    board.sim.poke("stat_tx_unfout", 0)
    status = board.status()
    assert status["tx_dead"] and not status["link_up"]
    board.sim.poke("core_usr_tx_reset", 1)
    board.sim.step(8)
    board.sim.poke("core_usr_tx_reset", 0)
    status = board.status()
    assert status["link_up"] and not status["tx_dead"]

# IP -----------------------------------------------------------------------------------------------

def test_ip_configuration():
    config = ip_config("CMACE4_X0Y8", ("X1", 52), 156.25e6, 125e6)
    assert config["GT_GROUP_SELECT"] == "X1Y52~X1Y55" and config["LANE4_GT_LOC"] == "X1Y55"
    assert config["GT_REF_CLK_FREQ"] == "156.25" and config["GT_DRP_CLK"] == "125.00"
    assert ip_config("CMACE4_X0Y3", ("X0", 28), 161.1328125e6, 100e6)["GT_REF_CLK_FREQ"] == "161.1328125"


def test_names_are_unique():
    assert len(set(TIED) & {port for port, _ in STATUS.values()}) == 0
    assert len(dict(LATCHED_FLAGS)) == len(LATCHED_FLAGS) and len(dict(COUNTERS)) == len(COUNTERS)


def test_slow_registers_refused():
    board = platform()
    with pytest.raises(ValueError, match="40.3 MHz or more, not 25.0 MHz"):
        RoCEPHYCMAC(board, board.request("qsfp"), site="CMACE4_X0Y7", gt_group=("X1", 48), sys_clk_freq=25e6)
