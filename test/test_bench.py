# SPDX-License-Identifier: BSD-2-Clause
"""sim/bench.py: musts, floors, README and the exit status, on rows made here."""
import json

import pytest

from sim import bench, bench_rows, env
from test.conftest import ROOT


@pytest.mark.parametrize("value,better,ok", [(17.9, "lower", True), (18, "lower", True), (18.01, "lower", False),
    (18.01, "higher", True), (18, "higher", True), (17.9, "higher", False)])
def test_must(value, better, ok):
    """A row at its must is good, beyond it is not."""
    made = bench.row("B1", "x", value, "clocks", 18, better)
    assert (made["ok"], made["limit"], made["value"]) == (ok, 18, value)
    assert bench.row("B1", "x", value, "clocks")["ok"], "a row without a must is printed, not judged"


@pytest.mark.parametrize("value,better,ok", [(100.0, "lower", True), (101.5, "lower", True), (101.6, "lower", False),
    (1.0, "lower", True), (100.0, "higher", True), (99.0, "higher", True), (98.9, "higher", False), (200.0, "higher", True)])
def test_floor(value, better, ok):
    """A recorded floor of 100 fails what is worse by more than the rounding, whatever the must says."""
    rows = [bench.row("B2", "x", value, "clocks", None, better), bench.row("B2", "y", value, "clocks", None, better)]
    bench.judge(rows, {"B2 x": 100.0})
    assert rows[0]["ok"] == ok and rows[0]["floor"] == 100.0
    assert rows[1]["ok"] and "floor" not in rows[1]


def test_floor_does_not_excuse():
    """A row beyond its must stays bad when its floor is worse still."""
    rows = [bench.row("B1", "x", 20, "clocks", 18)]
    bench.judge(rows, {"B1 x": 30})
    assert not rows[0]["ok"]


@pytest.mark.parametrize("size,count", [(0, 1), (60, 1), (64, 1), (65, 2), (128, 2), (4096 + 58, 65)])
def test_beats(size, count):
    assert bench.beats(size) == count


def test_rates():
    """64 bytes a clock are the path's limit; messages follow the clock."""
    assert bench.rates(1, 64) == {"gbps_250": 128.0, "gbps_322": 165.0, "mmsg_250": 250.0, "mmsg_322": 322.3}


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Runs the command with rows of ours and a floor file of its own: (status, text)."""
    floors = tmp_path/"floors.json"
    monkeypatch.setattr(bench, "FLOORS", floors)

    def go(rows, recorded=None, *options):
        monkeypatch.setattr(bench, "PARTS", {"B1": lambda seed, say: [bench.row(**r) for r in rows]})
        if recorded is not None:
            floors.write_text(json.dumps(recorded))
        status = bench.main(list(options))
        return status, capsys.readouterr().out, floors
    return go


GOOD = dict(name="B1", what="receive, 64 B", value=2.5, unit="clocks/frame", limit=3.5, **bench.rates(2.5, 64))
WIRE = dict(name="B3", what="WRITE", value=0.999, unit="of the wire", limit=0.995, better="higher", goodput_gbps=96.2)


@pytest.mark.parametrize("rows,recorded,status", [
    ([GOOD, WIRE], None, env.OK), ([GOOD, WIRE], {"B1 receive, 64 B": 2.5, "B3 WRITE": 1.0}, env.OK),
    ([GOOD, {**WIRE, "value": 0.99}], None, env.FAILED), ([{**GOOD, "value": 4}, WIRE], None, env.FAILED),
    ([{**GOOD, "limit": None, "value": 9}], {"B1 receive, 64 B": 8}, env.FAILED)])
def test_exit_status(run, rows, recorded, status):
    """0 only if every row reaches its must and its floor; the table marks the one that does not."""
    got, text, _ = run(rows, recorded)
    assert got == status and ("BELOW" in text) == (status == env.FAILED)


BUDGETS = [("B2", "WRITE 64 B, one QP", bench_rows.MUST["B2"])] + [r for r in bench_rows.latencies() if r[2]]


@pytest.mark.parametrize("name,what,must", BUDGETS, ids=[f"{name} {what}" for name, what, _ in BUDGETS])
def test_above_its_must(run, name, what, must):
    """One clock above the must of any budget fails the command, at the must it passes."""
    made = dict(name=name, what=what, unit="clocks", limit=must)
    assert run([{**made, "value": must}, GOOD])[0] == env.OK
    got, text, _ = run([{**made, "value": must + 1}, GOOD])
    assert got == env.FAILED and text.count("BELOW") == 1


def test_musts_are_the_budgets():
    """Constants of the latency budgets, spelled out: payload beats, response beats, messages acknowledged."""
    musts = {(name, what): must for name, what, must in bench_rows.latencies()}
    assert [m for (n, _), m in musts.items() if n == "B5"] == [39, 40, 55, 103]
    assert [m for (n, _), m in musts.items() if n == "B6"] == [42, 57, 105]
    assert [m for (n, _), m in musts.items() if n == "B7"] == [67, 82, 73, 91, 163]


def test_readme_and_floors_agree(capsys):
    """README shows what is recorded: --markdown prints its tables; another figure gives another text."""
    floors = json.loads(bench.FLOORS.read_text())
    assert bench.main(["--markdown"]) == env.OK
    made = capsys.readouterr().out
    assert made == bench_rows.markdown(floors)
    assert made in (ROOT / "README.md").read_text(encoding="utf-8"), "sim/bench.py --readme"
    for key in ("B1 receive, 64 B", "B2 WRITE 64 B, one QP", "B3 SEND, PMTU 256, one way",
                "B5 WRITE of 64 B in to ACK out"):
        assert bench_rows.markdown({**floors, key: floors[key]*.97}) != made, key


def test_json_and_record(run):
    """--json prints the rows; --record writes what was measured and keeps the floors of parts that did not run."""
    status, text, floors = run([GOOD], {"B2 x": 7}, "--json", "--record")
    assert status == env.OK and json.loads(text)[0]["value"] == 2.5
    assert json.loads(floors.read_text()) == {"B2 x": 7, "B1 receive, 64 B": 2.5}


def test_bad_argument(run):
    with pytest.raises(SystemExit) as left:
        run([GOOD], None, "--only", "B9")
    assert left.value.code == env.BAD_ARGUMENT


def test_recorded_floors():
    """The recorded file names rows that exist: every size of B1, every kind of B3."""
    floors = json.loads(bench.FLOORS.read_text())
    assert all(isinstance(v, (int, float)) and v > 0 for v in floors.values())
    for size in bench.SIZES:
        assert f"B1 receive, {size} B" in floors and f"B1 transmit, {size} B" in floors
    for operation in ("WRITE", "SEND", "READ"):
        assert f"B3 {operation}, PMTU 4096, one way" in floors
