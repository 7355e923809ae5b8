# SPDX-License-Identifier: BSD-2-Clause
"""The reference model plays both sides of every capture; loader and script refuse and place as they should."""
import glob
import json
import os
import shutil

import pytest

from test.model.capture import CaptureError, fill_bytes, load
from test.model.replay import ModelEngine, play
from test.reference.rulings import RULINGS, rulings_for

FOLDER = os.path.join(os.path.dirname(__file__), "reference", "captures")


def names():
    """Captures with a QP set-up."""
    found = []
    for path in sorted(glob.glob(os.path.join(FOLDER, "*.json"))):
        with open(path, encoding="utf-8") as file:
            if json.load(file).get("qps"):
                found.append(os.path.basename(path)[:-len(".json")])
    return found


NAMES = names()


def capture_of(name):
    return load(os.path.join(FOLDER, name + ".pcap"))


def test_there_are_captures():
    assert len(NAMES) == 51


@pytest.mark.parametrize("profile", ["standard", "rxe"])
@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize("name", NAMES)
def test_model_plays(name, side, profile):
    capture = capture_of(name)
    report  = play(capture, side, profile=profile)
    assert report.ok, report.text()
    assert report.frames == sum(f.sender == side for f in capture.frames[side])
    assert report.memory == sum(e["ev"] == "memory" and e["side"] == side for e in capture.events)
    assert report.completions == len(capture.completions(side))


@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize("name", ["rc_zero", "rc_send_only", "rc6_all"])
def test_padded_frames_agree(name, side):
    report = play(capture_of(name), side, ModelEngine("standard", pad_frames=True))
    assert report.ok, report.text()
    assert ("ethernet-padding" in report.rulings) == (name == "rc_zero" and side == "a")


def test_exact_profile_needs_only_noise():
    """As rxe the model differs in nothing but the IP identification and fields that verbs leave open."""
    used = set()
    for name in NAMES:
        for side in "ab":
            used |= set(play(capture_of(name), side, profile="rxe").rulings)
    assert used <= {r.name for r in RULINGS if "rxe" in r.profiles}
    assert used == {"ip-identification", "error-fields", "sender-imm-flag"}


@pytest.mark.parametrize("name,side", [("rc_nak_recv_short", "b"), ("rc_drop_read_last", "b"), ("rc_udpsum_bad", "b"),
                                       ("rc_nak_remote_op", "b")])
def test_standard_departs_from_rxe(name, side):
    """Where rulings say so, the standard engine is refused by the rxe profile: the rulings are needed."""
    assert play(capture_of(name), side, ModelEngine("standard"), "standard").ok
    assert not play(capture_of(name), side, ModelEngine("standard"), "rxe").ok


# Script -------------------------------------------------------------------------------------------

def kinds(name, side):
    short = {"expect": "E", "feed": "F"}
    return " ".join(short.get(step.kind, step.kind) for step in capture_of(name).script(side))


def test_script_places_posts():
    assert kinds("rc_rnr", "b") == "fill " + "F E "*8 + "recv F E state memory"
    assert kinds("rc_rnr", "a") == "fill send " + "E F "*9 + "state memory"
    assert kinds("rc_atomic", "a") == "fill " + "send E F memory "*4 + "state memory"
    # As far as the capture has no answer between them.
    assert kinds("rc_pipeline", "a").startswith("fill send E E F send E E F " + "send "*10 + "E E E")
    assert kinds("rc_solicited", "a").startswith("fill send E F ") and kinds("rc_drop_read_req", "a").startswith("fill send send E E F")
    assert kinds("rc_bad_icrc", "b") == "fill F F E state memory"


def test_fill_rules():
    assert fill_bytes({"rule": "zero", "length": 3}) == bytes(3)
    assert fill_bytes({"rule": "count", "length": 4, "seed": 254}) == bytes((254, 255, 0, 1))
    assert len(fill_bytes({"rule": "count", "length": 512, "seed": 1})) == 512
    assert fill_bytes({"rule": "hex", "length": 2, "hex": "abcd"}) == b"\xab\xcd"
    with pytest.raises(CaptureError, match="zero, count or hex"):
        fill_bytes({"rule": "random", "length": 1})


# Refusals -----------------------------------------------------------------------------------------

def changed(tmp_path, change=None, pcap=None):
    """A copy of rc_write with its set-up or its frames changed."""
    shutil.copy(os.path.join(FOLDER, "rc_write.pcap"), tmp_path/"x.pcap")
    with open(os.path.join(FOLDER, "rc_write.json"), encoding="utf-8") as file:
        data = json.load(file)
    if change:
        change(data)
    (tmp_path/"x.json").write_text(json.dumps(data))
    if pcap:
        (tmp_path/"x.pcap").write_bytes(pcap((tmp_path/"x.pcap").read_bytes()))
    return str(tmp_path/"x.pcap")


@pytest.mark.parametrize("change,text", [
    (lambda d: d.update(schema="other"), "schema must be 'roce-capture-1', not 'other'"),
    (lambda d: d.pop("events"), "lacks 'events'"),
    (lambda d: d.update(packets=99), "has 21 frames, the set-up says 99"),
    (lambda d: d["sides"]["a"]["netdevs"]["eth0"].update(mac="02:00:00:00:00:09"), "frame 1: source MAC"),
    (lambda d: d["sides"].pop("b"), "source MAC")])
def test_bad_setup(tmp_path, change, text):
    with pytest.raises(CaptureError, match=text):
        load(changed(tmp_path, change))


def test_bad_pcap(tmp_path):
    with pytest.raises(CaptureError, match="is cut"):
        load(changed(tmp_path, pcap=lambda data: data[:-1]))
    with pytest.raises(CaptureError, match="does not exist"):
        load(str(tmp_path/"nothing.pcap"))
    (tmp_path/"x.json").write_text("{")
    with pytest.raises(CaptureError, match="not JSON"):
        load(str(tmp_path/"x.pcap"))


def test_frames_out_of_time(tmp_path):
    def swap(data):
        size  = int.from_bytes(data[32:36], "little") + 16
        other = int.from_bytes(data[24 + size + 8:24 + size + 12], "little") + 16
        return data[:24] + data[24 + size:24 + size + other] + data[24:24 + size] + data[24 + size + other:]
    with pytest.raises(CaptureError, match="frame 2 is older"):
        load(changed(tmp_path, pcap=swap))


def test_setup_elsewhere(tmp_path):
    path = changed(tmp_path)
    os.rename(tmp_path/"x.json", tmp_path/"y.json")
    assert len(load(path, str(tmp_path/"y.json")).frames["a"]) == 21


def test_nothing_to_play(tmp_path):
    capture = load(changed(tmp_path, lambda d: d.update(qps=[])))
    with pytest.raises(CaptureError, match="no qps"):
        capture.script("a")
    with pytest.raises(ValueError, match="a or b, not 'c'"):
        play(capture, "c")
    with pytest.raises(ValueError, match="standard or rxe, not 'mlx5'"):
        rulings_for("mlx5")
