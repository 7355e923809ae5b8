# SPDX-License-Identifier: BSD-2-Clause
"""Rulings are no wider than their clause: for each an engine that is at fault just beyond it is refused."""
import os

import pytest

from roce_soc import opcodes as op
from test.model.capture import load
from test.model.packet import parse
from test.model.replay import ModelEngine, play
from test.reference.rulings import RULINGS, rulings_for

FOLDER = os.path.join(os.path.dirname(__file__), "reference", "captures")


class Faulty:
    """The model as an engine; `packet(p, n)` changes the n-th packet that it sends (None: left out), `cqe(c)` a completion."""
    def __init__(self, packet=None, cqe=None, profile="standard"):
        self.engine = ModelEngine(profile)
        self.packet, self.cqe, self.count = packet, cqe, 0

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def frames(self):
        out = []
        for now, frame in self.engine.frames():
            packet = parse(frame)
            new    = self.packet(packet, self.count) if self.packet else packet
            self.count += 1
            for one in new if isinstance(new, list) else [new]:
                if one is not None:
                    out.append((now, one.copy().renew().build()))
        return out

    def completions(self):
        done = self.engine.completions()
        for completion in done:
            if self.cqe:
                self.cqe(completion)
        return done


def report_of(name, side, packet=None, cqe=None, profile="standard"):
    return play(load(os.path.join(FOLDER, name + ".pcap")), side, Faulty(packet, cqe, profile), profile)


def agrees(*arguments, uses=None, **options):
    report = report_of(*arguments, **options)
    assert report.ok, report.text()
    assert uses is None or report.rulings[uses], report.text()


def differs(*arguments, says="", **options):
    report = report_of(*arguments, **options)
    assert not report.ok, report.text()
    assert says in report.differences[0], report.text()


def test_no_ruling_names_a_capture():
    """Each has a condition, or says why any value is right; names come once."""
    assert not hasattr(RULINGS[0], "captures")
    assert {r.name for r in RULINGS if not r.rule} == {"ip-identification", "ethernet-padding", "migreq"}
    assert len({r.name for r in RULINGS}) == len(RULINGS) and set(rulings_for("rxe")) < set(rulings_for())


# Frames -------------------------------------------------------------------------------------------

@pytest.mark.parametrize("profile", ["standard", "rxe"])
def test_source_port(profile):
    """Any from 0xC000 on, but one."""
    for name, side in (("rc_write", "a"), ("rc_write", "b"), ("ud_send", "a")):
        agrees(name, side, lambda p, n: p.copy(sport=0xffff), uses="udp-source-port", profile=profile)
        differs(name, side, lambda p, n: p.copy(sport=0x1234), says="sport", profile=profile)
        differs(name, side, lambda p, n: p.copy(sport=0xc000 + n), says="source port", profile=profile)


@pytest.mark.parametrize("profile", ["standard", "rxe"])
def test_ackreq(profile):
    """Never is too little; more than the capture is allowed; the last packet of a signalled message has it."""
    agrees("rc_mtu256", "a", lambda p, n: p.copy(ackreq=1), uses="ackreq-pattern", profile=profile)
    for name in ("rc_send_only", "rc_write", "rc_read", "rc_mtu1024", "rc_long_write"):
        differs(name, "a", lambda p, n: p.copy(ackreq=0), says="ackreq", profile=profile)
    # Between: only what a window's end asks for may miss, and not for ever.
    middle = ("RC_WRITE_FIRST", "RC_WRITE_MIDDLE")
    agrees("rc_long_write", "a", lambda p, n: p.copy(ackreq=0) if p.name in middle else p, uses="ackreq-pattern", profile=profile)


def test_ackreq_of_a_repetition():
    """After a time-out the last packet of what is repeated asks for an ACK, signalled or not."""
    for name in ("rc_drop_ack", "rc_drop_last"):
        seen = set()

        def quiet(p, n):
            again = p.psn in seen
            seen.add(p.psn)
            return p.copy(ackreq=0) if again else p
        differs(name, "a", quiet, says="ackreq")


@pytest.mark.parametrize("profile", ["standard", "rxe"])
def test_migreq(profile):
    """Set or clear, not now and then."""
    for name, side in (("rc_write", "a"), ("rc_read", "b")):
        agrees(name, side, lambda p, n: p.copy(m=1), uses="migreq", profile=profile)
        differs(name, side, lambda p, n: p.copy(m=n & 1), says="MigReq", profile=profile)


def test_write_behind_read():
    """In place of READ data only what an overlapping WRITE that has come brings, byte by byte."""
    fresh = bytes(range(100))

    def put(data, at=0):
        def change(p, n):
            return p.copy(payload=p.payload[:at] + data + p.payload[at + len(data):]) if p.name == "RC_READ_RESPONSE_FIRST" else p
        return change
    agrees("rc_drop_read_req", "b", put(fresh), uses="write-behind-read")
    agrees("rc_drop_read_req", "b", put(fresh[:50]), uses="write-behind-read")
    differs("rc_drop_read_req", "b", put(b"\x77", 3), says="payload")
    differs("rc_drop_read_req", "b", put(fresh, 1), says="payload")
    differs("rc_drop_read_req", "b", put(b"\x77", 100), says="payload")
    differs("rc_read", "b", put(b"\x77"), says="payload")


def test_read_reply_msn():
    """Between the READ's own message and the last that has come."""
    for shift in (-1, 1, 5, 1 << 20):
        differs("rc_read", "b", lambda p, n: p.copy(msn=(p.msn + shift) & op.PSN_MASK), says="msn")
        differs("rc_drop_read_last", "b", lambda p, n: p.copy(msn=(p.msn + shift) & op.PSN_MASK) if n >= 3 else p)


def test_read_restart():
    """FIRST or ONLY only where a repeated READ begins, with a legal MSN and an ACK's syndrome."""
    agrees("rc_drop_read_last", "b", uses="read-restart")
    for changes in (dict(msn=7), dict(msn=0), dict(syndrome=0x60), dict(syndrome=0x02)):
        differs("rc_drop_read_last", "b", lambda p, n: p.copy(**changes) if p.name == "RC_READ_RESPONSE_ONLY" else p)
    names = {"RC_READ_RESPONSE_MIDDLE": op.RC_READ_RESPONSE_FIRST, "RC_READ_RESPONSE_LAST": op.RC_READ_RESPONSE_ONLY}
    differs("rc_read", "b", lambda p, n: p.copy(opcode=names.get(p.name, p.opcode), syndrome=0x1f, msn=1))


def test_repeated_ack():
    """One more ACK for the repeat of a packet with a wrong UDP checksum: the same, once."""
    agrees("rc_udpsum_bad", "b", uses="udp-checksum")
    for change in (lambda p: [p, p], lambda p: p.copy(msn=5), lambda p: p.copy(msn=0), lambda p: p.copy(psn=p.psn + 1),
                   lambda p: p.copy(syndrome=0x05)):
        differs("rc_udpsum_bad", "b", lambda p, n: change(p) if n else p)
    for name in ("rc_udpsum_good", "rc_send_only", "rc_write"):
        differs(name, "b", lambda p, n: [p, p])


def test_coalesced_acks():
    """In every capture, where a later ACK follows at once; never the last one, never one that the peer waits for."""
    differs("rc_send_only", "b", lambda p, n: None if n == 1 else p, says="did not send")
    differs("rc_pipeline", "b", lambda p, n: None if p.psn == 0x11f else p)


def test_duplicate_acks():
    """None may miss where no duplicate came."""
    for name in ("rc_send_only", "rc_write", "rc_bad_qpn"):
        differs(name, "b", lambda p, n: None if n == 0 else p)
    differs("rc_drop_ack", "b", lambda p, n: None if n else p)


def test_sequence_nak():
    """Silence is right only behind an RNR NAK."""
    for name in ("rc_drop_middle", "rc_drop_read_req", "rc_bad_pkey"):
        differs(name, "b", lambda p, n: None if p.name == "RC_ACKNOWLEDGE" and p.syndrome == 0x60 else p)


def test_short_receive():
    """0x61 for 0x63 only where the SEND is longer than its receive."""
    agrees("rc_nak_recv_short", "b", uses="short-receive-nak")
    differs("rc_nak_remote_op", "b", lambda p, n: p.copy(syndrome=0x61), says="syndrome")
    differs("rc_nak_recv_short", "b", lambda p, n: p.copy(syndrome=0x62), says="syndrome")


# Completions --------------------------------------------------------------------------------------

def test_status_of_receives():
    """The standard's status only for its own reason."""
    agrees("rc_nak_recv_short", "b", uses="short-receive-status")
    agrees("rc_nak_remote_op", "b", uses="receive-key-status")
    differs("rc_nak_recv_short", "b", cqe=lambda c: c.update(status="LOC_PROT_ERR", vendor_err=0), says="status")
    differs("rc_nak_remote_op", "b", cqe=lambda c: c.update(status="LOC_LEN_ERR", vendor_err=0), says="status")


def without_grh(completion):
    completion["flags"] = [f for f in completion["flags"] if f != "GRH"]


def test_grh_flag():
    """An RC receive may be without it in both profiles; UD's may not, and nothing else may change with it."""
    for profile in ("standard", "rxe"):
        agrees("rc_send_imm", "b", cqe=without_grh, uses="grh-flag", profile=profile)
        differs("ud_send", "b", cqe=without_grh, says="flags", profile=profile)
        differs("rc_send_imm", "b", cqe=lambda c: c.update(flags=[]), says="flags", profile=profile)


def test_sender_fields():
    """Length of the work request or 0; no flags."""
    agrees("rc_send_only", "a", cqe=lambda c: c.update(byte_len=0), uses="sender-byte-len")
    differs("rc_send_only", "a", cqe=lambda c: c.update(byte_len=c["byte_len"] + 4), says="byte_len")
    differs("rc_read", "a", cqe=lambda c: c.update(byte_len=0), says="byte_len")
    differs("rc_send_imm", "a", cqe=lambda c: c.update(flags=["WITH_INV"]), says="flags")


@pytest.mark.parametrize("profile", ["standard", "rxe"])
@pytest.mark.parametrize("change,says", [
    (dict(opcode="RDMA_READ"), "opcode"), (dict(opcode="RECV"), "opcode"), (dict(byte_len=77), "byte_len"),
    (dict(flags=["WITH_IMM"]), "flags"), (dict(imm="00000001"), "imm"), (dict(src_qpn=5), "src_qpn")])
def test_fields_of_errors(profile, change, says):
    """A failed WRITE's completion is that of a WRITE."""
    def cqe(completion):
        if completion["status"] == "REM_ACCESS_ERR":
            completion.update(change)
    differs("rc_nak_rkey_write", "a", cqe=cqe, says=says, profile=profile)


def test_opcode_of_a_failed_receive():
    differs("rc_nak_remote_op", "b", cqe=lambda c: c.update(opcode="RDMA_WRITE"), says="opcode")
    differs("rc_nak_remote_op", "b", cqe=lambda c: c.update(opcode="RECV_RDMA_WITH_IMM"), says="opcode")


def test_vendor_error():
    """A good completion has none, a bad one a row of its status."""
    agrees("rc_nak_rkey_write", "a", uses="vendor-error")
    differs("rc_send_only", "a", cqe=lambda c: c.update(vendor_err=1), says="vendor_err")
    differs("rc_nak_rkey_write", "a", cqe=lambda c: c.update(vendor_err=255), says="vendor_err")
    differs("rc_nak_rkey_write", "a", cqe=lambda c: c.update(vendor_err=1), says="vendor_err")
