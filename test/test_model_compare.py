# SPDX-License-Identifier: BSD-2-Clause
"""The comparison can fail: every kind of change in a capture turns a play red."""
import copy
import os
import re
from dataclasses import replace

import pytest

from roce_soc import opcodes as op
from test.model.capture import Capture, Frame, load
from test.model.compare import FrameMatcher, Report
from test.model.packet import Packet, parse
from test.model.qp import STANDARD
from test.model.replay import ModelEngine, play
from test.reference.rulings import rulings_for

FOLDER = os.path.join(os.path.dirname(__file__), "reference", "captures")
NAMES  = ("rc_send_only", "rc_write", "rc_read", "rc_mtu1024", "rc_zero", "rc_atomic", "rc_psn_wrap", "rc_drop_middle",
          "rc_rnr", "rc_nak_rkey_write", "rc_vlan", "rc6_all", "uc_all", "ud_send", "rc_pipeline")


def capture_of(name):
    return load(os.path.join(FOLDER, name + ".pcap"))


def with_frames(capture, side, frames):
    return Capture(capture.name, capture.data, {**capture.frames, side: frames})


def changed_fields(packet):
    """(what, changes) for every kind of field of a packet."""
    if packet.payload:
        middle = len(packet.payload)//2
        yield "payload", {"payload": packet.payload[:middle] + bytes([packet.payload[middle] ^ 1]) + packet.payload[middle + 1:]}
    yield "psn+1", {"psn": (packet.psn + 1) & op.PSN_MASK}
    yield "psn-1", {"psn": (packet.psn - 1) & op.PSN_MASK}
    yield "se", {"se": packet.se ^ 1}
    yield "pkey", {"pkey": 0x7fff}
    yield "tos", {"tos": packet.tos ^ 4}
    if packet.name.startswith("UD"):
        yield "opcode", {"opcode": packet.opcode ^ 1}
        yield "qkey", {"qkey": packet.qkey ^ 1}
        yield "src_qp", {"src_qp": packet.src_qp ^ 1}
    else:
        same = [v for v, o in op.OPCODES.items() if v != packet.opcode and o.headers == packet.headers and o.transport == "RC"]
        yield "opcode", {"opcode": same[0] if same else packet.opcode ^ 1}
    if "AETH" in packet.headers:
        yield "msn", {"msn": packet.msn + 1}
        yield "syndrome", {"syndrome": packet.syndrome ^ 1}
    if "RETH" in packet.headers:
        yield "va", {"va": packet.va + 1}
        yield "rkey", {"rkey": packet.rkey ^ 1}
        yield "dma_length", {"dma_length": packet.dma_length + 1}
    if "ATOMICETH" in packet.headers:
        yield "swap_add", {"swap_add": packet.swap_add ^ 1}
    if "ATOMICACKETH" in packet.headers:
        yield "original", {"original": packet.original ^ 1}
    if "IMMDT" in packet.headers:
        yield "imm", {"imm": packet.imm ^ 1}


@pytest.mark.parametrize("profile", ["standard", "rxe"])
@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize("name", NAMES)
def test_changed_frames_are_red(name, side, profile):
    capture, frames = capture_of(name), capture_of(name).frames[side]
    for index, frame in enumerate(frames):
        if frame.sender != side or (name == "rc_pipeline" and index % 9):
            continue
        for what, changes in changed_fields(frame.packet):
            new  = frame.packet.copy(**changes).renew().build()
            list_ = frames[:index] + [replace(frame, frame=new, packet=parse(new))] + frames[index + 1:]
            report = play(with_frames(capture, side, list_), side, profile=profile)
            assert not report.ok, f"frame {frame.number}: {what} changed and nobody saw it"
            assert "frame" in report.differences[0]


@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("rc_rnr", "rc_pipeline")])
def test_frames_left_out_or_doubled_are_red(name, side):
    capture, frames = capture_of(name), capture_of(name).frames[side]
    for index, frame in enumerate(frames):
        if frame.sender != side:
            continue
        report = play(with_frames(capture, side, frames[:index] + frames[index + 1:]), side)
        assert not report.ok, f"frame {frame.number} left out"
        if name == "rc_psn_wrap" and frame.packet.name == "RC_READ_REQUEST":
            continue   # the capture pauses here, so a repeat could be a time-out's.
        report = play(with_frames(capture, side, frames[:index + 1] + frames[index:]), side)
        assert not report.ok, f"frame {frame.number} doubled"


@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize("name", NAMES)
def test_swapped_frames_are_red(name, side):
    capture, frames = capture_of(name), capture_of(name).frames[side]
    own = [i for i, f in enumerate(frames) if f.sender == side]
    for first, second in zip(own, own[1:]):
        if frames[first].packet.psn == frames[second].packet.psn \
                or frames[first].packet.dest_qpn != frames[second].packet.dest_qpn:
            continue   # repeats of one packet; different QPs have no order.
        new = list(frames)
        new[first], new[second] = new[second], new[first]
        assert not play(with_frames(capture, side, new), side).ok, f"frames {frames[first].number}, {frames[second].number}"


@pytest.mark.parametrize("name,fed", [
    ("rc_send_only", "RC_SEND_ONLY"), ("rc_write", "RC_WRITE_MIDDLE"), ("rc_mtu1024", "RC_SEND_MIDDLE"),
    ("rc_read", "RC_READ_REQUEST"), ("rc_atomic", "RC_FETCH_ADD"), ("uc_all", "UC_SEND_MIDDLE")])
def test_changes_in_what_is_fed_are_red(name, fed):
    """Side b sees a frame of a's changed, left out, doubled or out of order."""
    capture, frames = capture_of(name), capture_of(name).frames["b"]
    index = next(i for i, f in enumerate(frames) if f.packet.name == fed)
    frame = frames[index]
    lists = {"left out": frames[:index] + frames[index + 1:]}
    if not fed.startswith("UC"):
        lists["doubled"] = frames[:index + 1] + frames[index:]
        later = next((i for i in range(index + 1, len(frames)) if frames[i].sender == "a"), None)
        lists["swapped"] = list(frames)
        lists["swapped"][index], lists["swapped"][later] = frames[later], frame
    if frame.packet.payload:
        new = frame.packet.copy(payload=frame.packet.payload[:-1] + bytes([frame.packet.payload[-1] ^ 1])).renew().build()
        lists["payload"] = frames[:index] + [replace(frame, frame=new, packet=parse(new))] + frames[index + 1:]
    damaged = bytearray(frame.frame)
    damaged[-1] ^= 1
    lists["icrc"] = frames[:index] + [replace(frame, frame=bytes(damaged))] + frames[index + 1:]
    for what, list_ in lists.items():
        assert not play(with_frames(capture, "b", list_), "b").ok, what


# Completions, memory, state -----------------------------------------------------------------------

CQE_CHANGES = {
    "wr_id":    lambda c: c.update(wr_id=c["wr_id"] + 1),
    "status":   lambda c: c.update(status="LOC_EEC_OP_ERR"),
    "opcode":   lambda c: c.update(opcode="BIND_MW"),
    "byte_len": lambda c: c.update(byte_len=c["byte_len"] + 1),
    "imm":      lambda c: c.update(imm=f"{int(c['imm'], 16) ^ 1:08x}"),
    "inv_rkey": lambda c: c.update(inv_rkey=c["inv_rkey"] ^ 1),
    "src_qpn":  lambda c: c.update(src_qpn=c["src_qpn"] ^ 1),
    "flags":    lambda c: c.update(flags=["WITH_IMM"] if "WITH_IMM" not in c["flags"] else []),
}


def with_events(capture, change):
    data = copy.deepcopy(capture.data)
    change(data["events"])
    return Capture(capture.name, data, capture.frames)


@pytest.mark.parametrize("name,side,field", [
    ("rc_send_only", "b", "wr_id"), ("rc_send_only", "b", "byte_len"), ("rc_send_only", "b", "opcode"),
    ("rc_send_only", "a", "wr_id"), ("rc_send_only", "a", "opcode"), ("rc_send_only", "a", "status"),
    ("rc_send_only", "b", "flags"), ("rc_read", "a", "byte_len"), ("rc_write_imm", "b", "imm"),
    ("rc_send_inv", "b", "inv_rkey"), ("ud_send", "b", "src_qpn"), ("rc_nak_rkey_write", "a", "status"),
    ("rc_bad_opseq_first", "b", "status"), ("rc_retry_exceeded", "a", "status")])
def test_changed_completions_are_red(name, side, field):
    capture = capture_of(name)
    count   = len(capture.completions(side))
    seen    = 0
    for number in range(count):
        def change(events):
            completion = [e for e in events if e["ev"] == "completion" and e["side"] == side][number]
            if field in completion:
                CQE_CHANGES[field](completion)
        event = capture.completions(side)[number]
        if event.get(field) is None or (event["status"] != "SUCCESS" and field not in ("wr_id", "status")) \
           or (field == "byte_len" and event["opcode"] == "BIND_MW"):
            continue
        seen += 1
        report = play(with_events(capture, change), side)
        assert not report.ok and "complet" in report.differences[0], f"completion {number}: {field}"
    assert seen


@pytest.mark.parametrize("side", ["a", "b"])
def test_completions_left_out_doubled_swapped_are_red(side):
    capture = capture_of("rc_send_only")

    def places(events):
        return [i for i, e in enumerate(events) if e["ev"] == "completion" and e["side"] == side]

    def swap(events):
        i, j = places(events)[:2]
        events[i]["wr_id"], events[j]["wr_id"] = events[j]["wr_id"], events[i]["wr_id"]
    for change in (lambda e: e.pop(places(e)[2]), lambda e: e.insert(places(e)[2], e[places(e)[2]]), swap):
        assert not play(with_events(capture, change), side).ok


def test_changed_memory_and_state_are_red():
    capture = capture_of("rc_write")

    def spoil(events):
        memory = next(e for e in events if e["ev"] == "memory" and e["side"] == "b" and e.get("sha256"))
        memory["sha256"] = "0"*64
    report = play(with_events(capture, spoil), "b")
    assert not report.ok and "memory" in report.differences[0]
    report = play(with_events(capture, lambda e: next(x for x in e if x["ev"] == "qp_state").update(state="ERR")), "a")
    assert not report.ok and "QP state: capture ERR, engine RTS" in report.differences[0]


# Text ---------------------------------------------------------------------------------------------

def test_first_difference_shows_both_packets():
    capture, frames = capture_of("rc_send_only"), capture_of("rc_send_only").frames["b"]
    index = next(i for i, f in enumerate(frames) if f.sender == "b")
    new   = frames[index].packet.copy(msn=7).renew().build()
    report = play(with_frames(capture, "b", frames[:index] + [replace(frames[index], frame=new, packet=parse(new))]
                              + frames[index + 1:]), "b")
    text = report.text()
    assert "DIFFERS" in text and "capture, frame" in text and "RC_ACKNOWLEDGE" in text and "msn: capture 7, engine 1" in text
    assert report.as_dict()["ok"] is False


# Engines that differ ------------------------------------------------------------------------------

class Altered:
    """The model as an engine, with a change to the frames that it sends."""
    def __init__(self, change, profile=None):
        self.engine, self.change = ModelEngine(), change
        self.engine.profile = profile or self.engine.profile

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def frames(self):
        return [(self.engine.now, frame) for frame in self.change([frame for _, frame in self.engine.frames()])]


@pytest.mark.parametrize("change,text", [
    (lambda frames: [f[:-1] + bytes([f[-1] ^ 1]) for f in frames], "ICRC"),
    (lambda frames: [f + b"\x01" for f in frames], "bytes after the datagram"),
    (lambda frames: [f + bytes(100) for f in frames], "bytes after the datagram"),
    (lambda frames: [f[:24] + bytes([f[24] ^ 1]) + f[25:] for f in frames], "IPv4 header checksum"),
    (lambda frames: [], "did not send"),
    (lambda frames: frames*2, "another frame"),
    (lambda frames: frames[::-1] + frames[:1], "another frame|lacks")])
def test_engines_that_send_wrong_are_red(change, text):
    report = play(capture_of("rc_read"), "b", Altered(change))
    assert not report.ok and re.search(text, report.differences[0]), report.text()


def last_ack_only(frames):
    acks = [f for f in frames if f[42] == op.RC_ACKNOWLEDGE]
    return [f for f in frames if f not in acks[:-1]]


def without_the_last_ack(frames):
    """Of the sixteen WRITEs of rc_pipeline."""
    return [f for f in frames if f[42] != op.RC_ACKNOWLEDGE or f[51:54] != b"\x00\x01\x1f"]


def test_coalescing_of_acks():
    report = play(capture_of("rc_pipeline"), "b", Altered(last_ack_only))
    assert report.ok and report.rulings["ack-coalescing"] > 0, report.text()
    assert not play(capture_of("rc_pipeline"), "b", Altered(last_ack_only), "rxe").ok
    assert not play(capture_of("rc_pipeline"), "b", Altered(without_the_last_ack)).ok


@pytest.mark.parametrize("name", ["rc_drop_ack", "rc_drop_last"])
def test_acks_of_duplicates(name):
    """One ACK for a run of duplicates agrees, none does not."""
    few = replace(STANDARD, duplicate_ack_all=False)
    report = play(capture_of(name), "b", Altered(lambda frames: frames, few))
    assert report.ok and report.rulings["duplicate-acks"] + report.rulings["ack-coalescing"] == 2, report.text()
    assert not play(capture_of(name), "b", Altered(lambda frames: frames, few), "rxe").ok
    seen = set()

    def never_again(frames):
        kept = [f for f in frames if f[50:54] not in seen]
        seen.update(f[50:54] for f in frames)
        return kept
    if name == "rc_drop_ack":
        assert not play(capture_of(name), "b", Altered(never_again)).ok


def matcher_of(rulings_of, *packets):
    """FrameMatcher over packets made by hand, all due."""
    report  = Report(rulings_of, "b", "standard")
    frames  = [Frame(i, 0, p.build(), parse(p.build()), "b") for i, p in enumerate(packets, 1)]
    matcher = FrameMatcher(frames, rulings_for(), report)
    return matcher, report


def test_nak_behind_an_rnr_nak_may_miss():
    ack = Packet(opcode=op.RC_ACKNOWLEDGE, psn=5)
    rnr, nak, other = ack.copy(syndrome=0x2e), ack.copy(syndrome=0x60), ack.copy(syndrome=0x60, psn=6)
    for capture, second, ok in (("rc_rnr", nak, True), ("rc_rnr", other, False)):
        matcher, report = matcher_of(capture, rnr, second, ack.copy(syndrome=0x1f))
        for packet in (rnr, ack.copy(syndrome=0x1f)):
            matcher.add(parse(packet.build()))
        matcher.finish()
        assert report.ok is ok, (capture, second.psn)
        assert report.rulings["nak-after-rnr"] == ok


def test_what_is_due_is_waited_for():
    ack = Packet(opcode=op.RC_ACKNOWLEDGE, psn=5, syndrome=0x1f)
    matcher, report = matcher_of("rc_write", ack, ack.copy(psn=6))
    assert not matcher.waiting()
    matcher.due = 1
    assert matcher.waiting()
    matcher.add(parse(ack.build()))
    assert not matcher.waiting() and report.ok
    matcher.finish()
    assert "did not send" in report.differences[0] and "psn=0x000006" in report.differences[0]
