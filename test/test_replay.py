# SPDX-License-Identifier: BSD-2-Clause
"""sim/replay.py: the compiled engine takes both sides of captures of Linux's stack; changed captures turn it red."""
import copy
import json
import pathlib

import pytest

from sim import replay
from test.model.capture import load
from test.model.packet import parse
from test.model.replay import play

CAPTURES = pathlib.Path(__file__).parent / "reference" / "captures"
AS_B = """rc_send_only rc_send_imm rc_write rc_write_imm rc_read rc_zero rc_mtu256 rc_mtu512 rc_mtu1024 rc_mtu2048 rc_mtu4096 rc_psn_wrap rc_vlan
    rc_pipeline rc_rnr rc_nak_rkey_write rc_nak_rkey_read rc_nak_bounds rc_nak_mr_perm rc_nak_qp_perm_write rc_nak_qp_perm_read rc_bad_opseq_first
    rc_bad_opseq_last rc_drop_middle rc_drop_ack rc_drop_last rc_drop_read_last rc_drop_read_req rc_bad_icrc rc_bad_pkey rc_bad_qpn rc_bad_tver rc_solicited
    rc_long_write rc_fecn rc_eth_padding rc_udpsum_good rc_udpsum_bad rc_nak_recv_short rc_nak_remote_op rc_retry_exceeded""".split()
AS_A = """rc_send_only rc_send_imm rc_write rc_write_imm rc_read rc_zero rc_mtu256 rc_mtu512 rc_mtu1024 rc_mtu2048 rc_mtu4096 rc_psn_wrap rc_vlan rc_pipeline
    rc_drop_middle rc_drop_ack rc_drop_last rc_drop_read_last rc_drop_read_req rc_rnr rc_retry_exceeded rc_nak_rkey_write rc_nak_bounds rc_long_write""".split()


@pytest.mark.parametrize("name,side", [(n, "b") for n in AS_B] + [(n, "a") for n in AS_A])
def test_capture(name, side):
    """Frames, completions, memory and QP state agree under the rulings."""
    # Most run on only shortly: an ACK time-out is a quarter of a million clocks.
    long   = name.startswith(("rc_drop", "rc_rnr", "rc_write"))
    report = play(load(str(CAPTURES / f"{name}.pcap")), side, replay.EngineUnderReplay(seed=3, linger=1.25*long))
    assert report.ok, report.text()
    assert report.frames or name in ("rc_retry_exceeded",)


def changed(change, name="rc_mtu1024", side="b"):
    """Report of a play against a capture whose own side's frames or events were changed."""
    capture = load(str(CAPTURES / f"{name}.pcap"))
    capture.data = copy.deepcopy(capture.data)
    frames = [f for f in capture.frames[side] if f.sender == side]
    change(capture, capture.frames[side], frames)
    return play(capture, side, replay.EngineUnderReplay(seed=3, linger=0))


def edit(frame, **fields):
    frame.packet = frame.packet.copy(**fields)
    frame.frame  = frame.packet.copy(icrc=None).build()
    frame.packet = parse(frame.frame)


def read_frame(frames):
    return next(f for f in frames if f.packet.payload)


MUTATIONS = {
    "payload":  lambda c, all_, own: edit(read_frame(own), payload=b"\x55" + read_frame(own).packet.payload[1:-1] + b"\x55"),
    "psn":      lambda c, all_, own: edit(own[1], psn=own[1].packet.psn + 1),
    "opcode":   lambda c, all_, own: edit(read_frame(own), opcode=0x0f),
    "msn":      lambda c, all_, own: edit(own[0], msn=own[0].packet.msn + 1),
    "syndrome": lambda c, all_, own: edit(own[0], syndrome=0x62),
    "missing":  lambda c, all_, own: all_.remove(own[0]),
    "doubled":  lambda c, all_, own: all_.insert(all_.index(own[0]), own[0]),
    "swapped":  lambda c, all_, own: all_.__setitem__(slice(None), [dict(zip(map(id, (own[0], own[2])), (own[2], own[0]))).get(id(f), f) for f in all_]),
    "cqe":      lambda c, all_, own: next(e for e in c.data["events"] if e["ev"] == "completion" and e["side"] == "b").update(byte_len=1),
}


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_changed_capture(name):
    """One thing changed in what the capture says of our side: the comparison is red."""
    assert not changed(MUTATIONS[name]).ok


def test_command(capsys, tmp_path):
    """Exit status and JSON; what a capture lacks is said."""
    good = str(CAPTURES / "rc_write.pcap")
    assert replay.main([good, "--play", "b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"]
    assert replay.main([str(tmp_path / "none.pcap"), "--play", "b"]) == 2
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["rc_send_only", "rc_send_imm", "rc_write_imm", "rc_mtu1024"])
def test_same_stack(name):
    """Profile rxe agrees where receives complete: what verbs leave undefined is not held against an engine."""
    report = play(load(str(CAPTURES / f"{name}.pcap")), "b", replay.EngineUnderReplay(seed=3), "rxe")
    assert report.ok and report.completions, report.text()


def test_vendor_error():
    """The engine tells the row behind a status."""
    report = play(load(str(CAPTURES / "rc_nak_rkey_write.pcap")), "a", replay.EngineUnderReplay(seed=3))
    assert report.ok and report.rulings["vendor-error"], report.text()
