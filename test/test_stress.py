# SPDX-License-Identifier: BSD-2-Clause
"""sim/stress.py: rounds and seeds, failing plays, arguments and exit status, on parts made here."""
import json
import sys
import types

import pytest

from sim import env, stress


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the command with parts {name: run(seed)} of ours: (status, text, errors)."""
    def go(parts, *options):
        monkeypatch.setattr(stress, "PARTS", {name: (f"test.made_{name}", f"what {name} does") for name in parts})
        monkeypatch.setattr(stress, "parts", lambda: list(parts))
        for name, function in parts.items():
            monkeypatch.setitem(sys.modules, f"test.made_{name}", types.SimpleNamespace(run=function))
        status = stress.main(list(options))
        return (status, *capsys.readouterr())
    return go


def test_rounds(run):
    """Each round is one seed of every part; --part leaves the others out."""
    seen  = []
    parts = {name: lambda seed, name=name: seen.append((name, seed)) or 100 for name in ("a", "b", "c")}
    status, text, _ = run(parts, "--seed", "7", "--minutes", "0", "--rounds", "2")
    assert status == env.OK and seen == [(name, seed) for seed in (7, 8) for name in "abc"]
    assert "6 plays of 3 parts, 600 clocks, 0 failed" in text and "c          seed 8" in text
    seen.clear()
    assert run(parts, "--part", "c", "a", "--part", "a", "--minutes", "0", "--seed", "3")[0] == env.OK
    assert seen == [("c", 3), ("a", 3)]


def test_huge_only_by_name(run):
    """What takes ten minutes a play is left out unless it is asked for."""
    seen  = []
    parts = {name: lambda seed, name=name: seen.append(name) or 1 for name in ("a", "huge")}
    run(parts, "--minutes", "0")
    run(parts, "--minutes", "0", "--part", "huge")
    assert seen == ["a", "huge"]


def test_minutes(run, monkeypatch):
    """Rounds go on until the time is over; a play that has begun is finished."""
    clock, seen = [0], []
    monkeypatch.setattr(stress.time, "monotonic", lambda: clock[0])

    def play(seed):
        clock[0] += 25
        seen.append(seed)
        return 1
    assert run({"a": play, "b": play}, "--minutes", "2")[0] == env.OK
    assert seen == [1, 1, 2, 2, 3]


@pytest.mark.parametrize("fault", [AssertionError("12 chunks lost"), RuntimeError("bad"), KeyError("x")])
def test_failing_part(run, fault):
    """A fault is told with part and seed, the campaign goes on, the exit status is 1."""
    def bad(seed):
        if seed == 4:
            raise fault
        return 10
    status, text, _ = run({"good": lambda seed: 5, "bad": bad}, "--seed", "3", "--minutes", "0", "--rounds", "3")
    assert status == env.FAILED
    assert "again: sim/stress.py --part bad --seed 4 --minutes 0" in text and str(fault) in text
    assert "6 plays of 2 parts, 35 clocks, 1 failed\n  bad seed 4" in text
    # The command that was printed plays it alone.
    status, text, _ = run({"good": lambda seed: 5, "bad": bad}, "--part", "bad", "--seed", "4", "--minutes", "0")
    assert status == env.FAILED and "1 plays of 1 parts" in text


def test_json(run):
    """Nothing but a list of plays."""
    def bad(seed):
        raise AssertionError("it broke")
    status, text, _ = run({"a": lambda seed: 5, "b": bad}, "--json", "--minutes", "0")
    plays = json.loads(text)
    assert status == env.FAILED and [(p["part"], p["seed"], p["clocks"]) for p in plays] == [("a", 1, 5), ("b", 1, 0)]
    assert plays[0]["error"] is None and "it broke" in plays[1]["error"]


@pytest.mark.parametrize("options,said", [
    (("--part", "z"), "there is no part 'z', only a"), (("--seed", "-1"), "seed must be 0 or more, not -1"),
    (("--minutes", "-2"), "minutes must be 0 or more"), (("--minutes", "nan"), "minutes must be 0 or more"),
    (("--rounds", "0"), "rounds must be 1 or more, not 0")])
def test_bad_argument(run, options, said):
    """Refused with the value, nothing is played."""
    status, text, errors = run({"a": lambda seed: 1/0}, *options)
    assert status == env.BAD_ARGUMENT and said in errors and not text


def test_parts_are_there():
    """Every part that is there has a run(seed); its module is imported by nobody before it is played."""
    import importlib
    assert "scenario" in stress.parts()
    for name in stress.parts():
        assert callable(importlib.import_module(stress.PARTS[name][0]).run), name
