# SPDX-License-Identifier: BSD-2-Clause
"""Random captures made by two reference models: either side plays them back, faults leave their marks."""
import pytest

from test.model.capture import load
from test.model.replay import ModelEngine, play
from test.model.synthesize import FAULTS, save, synthesize

MIXES = [(), FAULTS] + [(fault,) for fault in FAULTS]


@pytest.mark.parametrize("faults", MIXES, ids=lambda f: "+".join(f) if f != FAULTS else "all")
def test_both_sides_play_back(seed, faults):
    for number in range(3):
        capture = synthesize(seed + number, faults, atomics=True)
        assert len(capture.frames["a"]) > 8
        for side in "ab":
            report = play(capture, side)
            assert report.ok, f"seed {seed + number}, faults {faults}\n{report.text()}"
            assert report.completions == len(capture.completions(side)) > 0


def opcodes(capture, side="b"):
    return [f.packet.name for f in capture.frames[side]]


def count(faults, what, seeds=4):
    """Over some seeds: how many frames or events satisfy what(capture)."""
    return sum(what(synthesize(seed, faults, percent=20)) for seed in range(seeds))


def naks(capture, kind):
    return sum(f.packet.name == "RC_ACKNOWLEDGE" and f.packet.syndrome >> 5 == kind for f in capture.frames["b"])


def test_faults_do_what_they_say():
    def lost(capture):
        return sum(f.sender == "a" for f in capture.frames["a"]) - sum(f.sender == "a" for f in capture.frames["b"])

    def bad(capture):
        return sum(not f.packet.icrc_ok for f in capture.frames["b"])

    def marked(capture):
        return sum(f.packet.tos & 3 == 3 for f in capture.frames["b"])

    def failed(capture):
        return sum(c["status"] == "REM_ACCESS_ERR" for c in capture.completions("a"))
    assert count((), lost) == count((), bad) == count((), marked) == count((), failed) == 0
    assert count((), lambda c: naks(c, 1)) == count((), lambda c: naks(c, 3)) == 0
    assert count(("loss",), lost) > 0 > count(("duplicate",), lost)
    assert count(("loss",), lambda c: naks(c, 3)) > 0
    assert count(("corrupt",), bad) > 0 and count(("ecn",), marked) > 0
    assert count(("rnr",), lambda c: naks(c, 1)) > 0
    assert count(("refuse",), failed) > 0


def test_same_seed_same_capture():
    a, b = synthesize(5, FAULTS), synthesize(5, FAULTS)
    assert a.records == b.records and a.events == b.events
    assert synthesize(6, FAULTS).records != a.records


def test_one_direction():
    capture = synthesize(3, both=False)
    assert not [e for e in capture.events if e["ev"] == "post_send" and e["side"] == "b"]
    assert play(capture, "a").ok and play(capture, "b").ok


def test_saved_captures_are_read_back(tmp_path):
    capture = synthesize(1, ("loss",), percent=20)
    save(capture, str(tmp_path/"x"))
    again = load(str(tmp_path/"x.pcap"))
    for side in "ab":
        assert [f.frame for f in again.frames[side]] == [f.frame for f in capture.frames[side]]
        assert play(again, side).ok


def test_another_behaviour_is_red():
    """An engine that answers otherwise than the model is found: rxe's partial READs, no re-ACK."""
    seen = [play(synthesize(seed, ("loss",), percent=30), "b", ModelEngine("rxe")).ok for seed in range(6)]
    assert not all(seen)


def test_unknown_fault():
    with pytest.raises(ValueError, match="fault must be one of .*, not 'gremlin'"):
        synthesize(1, ("gremlin",))
