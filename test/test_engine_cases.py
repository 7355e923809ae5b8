# SPDX-License-Identifier: BSD-2-Clause
"""Corner cases one by one, packets made by hand: what is answered, counted, and where the QP stands afterwards.

Names begin with the number of the case in the project's list of conformance cases (protocol notes, chapter 8).
"""
import pytest

from roce_soc import abi, verbs
from roce_soc import opcodes as op
from roce_soc.errors import ERRORS
from roce_soc.monitor import TRAFFIC_BASE
from sim.engine import IPS, MACS
from sim.harness.memory import IDEAL
from test.engine_bench import ENGINE_VA, MODEL_VA, REGION, ModelBench
from test.model.packet import Packet, parse, raw

PMTU  = 1024
OK    = abi.QP_RTS
ERR   = abi.QP_ERR
VA    = ENGINE_VA + 0x8000
CODES = {row.name[3:]: row.value for row in op.OPCODES.values() if row.transport == "RC"}
BYTES = bytes(i*7 & 255 for i in range(8192))


class Hand:
    """A QP of the engine whose peer is the test. PSNs are relative to the first one expected."""
    def __init__(self, receives=(), **attributes):
        self.bench  = ModelBench(seed=11, timeout=attributes.pop("timeout", 0), pmtu=3, min_rnr_timer=5, **attributes)
        self.engine, self.qp, self.mr = self.bench.engine, self.bench.pairs[0], self.bench.mr
        self.base   = self.qp.attributes["rq_psn"]
        self.engine.write_memory(ENGINE_VA, bytes(BYTES))
        for n, length in enumerate(receives):
            self.qp.post_recv(self.mr, va=ENGINE_VA + 0x20000 + 0x2000*n, length=length, wr_id=n)

    def packet(self, name, psn=0, payload=b"", **fields):
        """A request (or response) for the QP."""
        a = {**dict(dest_qpn=self.qp.qpn, ackreq=1, va=VA, rkey=self.mr.rkey, dma_length=len(payload)), **fields}
        code = a.pop("opcode", None)
        return Packet(dst_mac=MACS[0].to_bytes(6, "big"), src_mac=MACS[1].to_bytes(6, "big"), **{**dict(src_ip=IPS[1].to_bytes(4, "big"),
            dst_ip=IPS[0].to_bytes(4, "big")), "opcode": CODES[name] if code is None else code, "psn": (self.base + psn) & op.PSN_MASK, "payload": payload, **a})

    def send(self, packet):
        """One packet or frame, worked off."""
        frame = packet if isinstance(packet, bytes) else packet.build(pad_frame=True)
        self.engine.send(frame + bytes(max(0, 60 - len(frame))))
        self.bench.bench.work(400)

    def answers(self):
        """What came: (kind, relative PSN, MSN) of ACK, NAK_xx, RNR_n; (opcode's place, relative PSN, payload) of READ replies."""
        out = []
        for frame in self.engine.frames():
            p = parse(frame)
            assert p.icrc_ok and p.dest_qpn == self.qp.peer
            psn = op.psn_diff(p.psn, self.base)
            if p.name != "RC_ACKNOWLEDGE":
                out.append((p.name[17:], psn, p.payload))
                continue
            kind = op.syndrome_class(p.syndrome)
            out.append(("ACK" if kind == "ACK" else f"RNR_{p.syndrome & 31}" if kind == "RNR" else f"NAK_{p.syndrome:x}", psn, p.msn))
        return out

    def completions(self):
        """Polled completions: (wr_id, status, byte_len)."""
        return [(e["wr_id"], e["status"], e["byte_len"]) for e in self.qp.send_cq.poll()]

    def count(self, row):
        return self.engine.counter(ERRORS[row].index)

    def state(self):
        return self.qp.query()["state"]


def p(name, psn=0, length=0, change=None, **fields):
    """Row of a table: a packet with `length` bytes of payload; `change` alters its frame."""
    return name, psn, BYTES[:length], change, fields


ACK0, SEND = [("ACK", 0, 1)], p("SEND_ONLY", length=8)
NAK61, NAK62 = [("NAK_61", 0, 0)], [("NAK_62", 0, 0)]

# name: (receives, packets, answers, row that counts or None, state).
CASES = {
    "1 wrong ICRC":              ([64], [p("SEND_ONLY", length=8, icrc=1)], [], "ICRC", OK),
    "2 TTL and DSCP changed":    ([64], [p("SEND_ONLY", length=8, change=lambda f: raw(22, b"\x05")(raw(15, b"\xb8")(f)))], ACK0, None, OK),
    "18 VLAN of others":         ([64], [p("SEND_ONLY", length=8, vlan=0x6005)], [], "VLAN", OK),
    "4 ICRC byte order":         ([64], [p("SEND_ONLY", length=8, change=lambda f: f[:-4] + f[:-5:-1])], [], "ICRC", OK),
    "5 UDP checksum not zero":   ([64], [p("SEND_ONLY", length=8, udp_checksum=0x1234)], ACK0, None, OK),
    "6 TVer":                    ([64], [p("SEND_ONLY", length=8, tver=1)], [], "TVER", OK),
    "7 FECN BECN M reserved":    ([64], [p("SEND_ONLY", length=8, fecn=1, becn=1, m=1, resv6=63, resv7=127)], ACK0, None, OK),
    "8 QPN 0":                   ([64], [p("SEND_ONLY", length=8, dest_qpn=0)], [], "QPN_UNKNOWN", OK),
    "8 QPN never made":          ([64], [p("SEND_ONLY", length=8, dest_qpn=0x105)], [], "QPN_UNKNOWN", OK),
    "8 QPN of another life":     ([64], [p("SEND_ONLY", length=8, dest_qpn=0x201)], [], "QPN_GENERATION", OK),
    "9 UC opcode":               ([64], [p("", opcode=0x24, length=8)], [], "TRANSPORT_CLASS", OK),
    "9 UD opcode":               ([64], [p("", opcode=0x64, length=8)], [], "TRANSPORT_CLASS", OK),
    **{f"10 opcode {o:#x}":      ([64], [p("", opcode=o, length=8)], [], "OPCODE_UNKNOWN", OK) for o in (0x15, 0x18, 0x1b, 0x1e, 0x1f)},
    "11 limited P_Key":          ([64], [p("SEND_ONLY", length=8, pkey=0x7fff)], ACK0, None, OK),
    "11 other P_Key":            ([64], [p("SEND_ONLY", length=8, pkey=0xfffe)], [], "PKEY", OK),
    "12 foreign source":         ([64], [p("SEND_ONLY", length=8, src_ip=bytes((10, 0, 0, 9)))], [], "ADDRESS", OK),
    "12 own source":             ([64], [p("SEND_ONLY", length=8, src_ip=IPS[0].to_bytes(4, "big"))], [], "MARTIAN", OK),
    "12 other destination":      ([64], [p("SEND_ONLY", length=8, dst_ip=bytes((10, 0, 0, 9)))], [], "ADDRESS", OK),
    "14 zero bytes":             ([64], [p("SEND_ONLY")], ACK0, None, OK),
    "15 UDP length too small":   ([64], [p("SEND_ONLY", length=8, udp_length=20)], [], "UDP_LENGTH", OK),
    "15 UDP length beyond IP":   ([64], [p("SEND_ONLY", length=8, udp_length=40, ip_length=52, trailer=bytes(20))], [], "UDP_LENGTH", OK),
    "16 pad":                    ([64], [p("SEND_ONLY", length=5)], ACK0, None, OK),
    "16 pad on FIRST":           ([4096], [p("SEND_FIRST", length=1021)], NAK61, "LENGTH_PMTU", ERR),
    "17 IP options":             ([64], [p("SEND_ONLY", length=8, change=raw(14, b"\x46"))], [], "IP_OPTIONS", OK),
    "17 fragment":               ([64], [p("SEND_ONLY", length=8, ip_flags=0x2000)], [], "IP_FRAGMENT", OK),
    "18 priority tagged":        ([64], [p("SEND_ONLY", length=8, vlan=0x6000)], ACK0, None, OK),
    "19 CNP":                    ([64], [p("", opcode=0x81)], [], "CNP_IGNORED", OK),
    "19 CNP for nobody":         ([64], [p("", opcode=0x81, dest_qpn=0x105)], [], "QPN_UNKNOWN", OK),
    "20 CE":                     ([64], [p("SEND_ONLY", length=8, tos=3)], ACK0, None, OK),
    "21 gap":                    ([64], [p("SEND_ONLY", 1, 8), p("SEND_ONLY", 2, 8), p("SEND_ONLY", 5, 8)], [("NAK_60", 0, 0)], "PSN_SEQUENCE", OK),
    "22 second gap":             ([64]*3, [p("SEND_ONLY", 1, 8), SEND, p("SEND_ONLY", 2, 8)], [("NAK_60", 0, 0), ("ACK", 0, 1), ("NAK_60", 1, 1)], None, OK),
    "24 duplicate SEND":         ([64]*3, [SEND, p("SEND_ONLY", 1, 8), SEND], [("ACK", 0, 1), ("ACK", 1, 2), ("ACK", 1, 2)], "PSN_DUPLICATE", OK),
    "25 duplicate WRITE, key":   ([], [p("WRITE_ONLY", 0, 8), p("WRITE_ONLY", 0, 8, rkey=0x5500)], [("ACK", 0, 1), ("ACK", 0, 1)], "PSN_DUPLICATE", OK),
    "26 duplicate READ":         ([], [p("READ_REQUEST", 0, va=ENGINE_VA, dma_length=9)]*2, [("ONLY", 0, BYTES[:9])]*2, "PSN_DUPLICATE", OK),
    "26 part of a READ":         ([], [p("READ_REQUEST", 0, va=ENGINE_VA, dma_length=1500), p("READ_REQUEST", 1, va=ENGINE_VA + 1024, dma_length=476)],
        [("FIRST", 0, BYTES[:1024]), ("LAST", 1, BYTES[1024:1500]), ("ONLY", 1, BYTES[1024:1500])], "PSN_DUPLICATE", OK),
    "27 READ beyond":            ([], [p("READ_REQUEST", 0, va=ENGINE_VA, dma_length=9), p("READ_REQUEST", 0, va=ENGINE_VA, dma_length=10)],
        [("ONLY", 0, BYTES[:9])], "DUPLICATE_DROPPED", OK),
    "27 READ by another key":    ([], [p("READ_REQUEST", 0, va=ENGINE_VA, dma_length=9), p("READ_REQUEST", 0, va=ENGINE_VA, dma_length=9, rkey=0x5500)],
        [("ONLY", 0, BYTES[:9])], "DUPLICATE_DROPPED", OK),
    "29 MIDDLE first":           ([64], [p("SEND_MIDDLE", length=1024)], NAK61, "OPCODE_SEQUENCE", ERR),
    "29 LAST first":             ([64], [p("WRITE_LAST", length=4)], NAK61, "OPCODE_SEQUENCE", ERR),
    "29 ONLY inside":            ([4096], [p("SEND_FIRST", length=1024, ackreq=0), p("SEND_ONLY", 1, 8)], [("NAK_61", 1, 0)], "OPCODE_SEQUENCE", ERR),
    "29 WRITE inside SEND":      ([4096], [p("SEND_FIRST", length=1024, ackreq=0), p("WRITE_MIDDLE", 1, 1024)], [("NAK_61", 1, 0)], "OPCODE_SEQUENCE", ERR),
    "30 LAST without payload":   ([4096], [p("SEND_FIRST", length=1024, ackreq=0), p("SEND_LAST", 1)], [("NAK_61", 1, 0)], "LENGTH_LAST", ERR),
    "31 ONLY of PMTU":           ([4096], [p("SEND_ONLY", length=1024)], ACK0, None, OK),
    "31 ONLY of PMTU + 1":       ([4096], [p("SEND_ONLY", length=1025)], NAK61, "LENGTH_LAST", ERR),
    "32 FIRST short":            ([4096], [p("SEND_FIRST", length=1020)], NAK61, "LENGTH_PMTU", ERR),
    "32 FIRST long":             ([4096], [p("WRITE_FIRST", length=1028, dma_length=2000)], NAK61, "LENGTH_PMTU", ERR),
    "33 ONLY short of RETH":     ([], [p("WRITE_ONLY", length=8, dma_length=9)], NAK61, "LENGTH_RESIDUE", ERR),
    "33 ONLY beyond RETH":       ([], [p("WRITE_ONLY", length=8, dma_length=4)], NAK61, "LENGTH_RESIDUE", ERR),
    "33 RETH 0 with payload":    ([], [p("WRITE_ONLY", length=8, dma_length=0)], NAK61, "LENGTH_RESIDUE", ERR),
    "34 RETH beyond 2^31":       ([], [p("READ_REQUEST", dma_length=0x80000001)], NAK61, "LENGTH_RETH", ERR),
    "35 zero WRITE, garbage":    ([], [p("WRITE_ONLY", va=0xdeadbeef, rkey=0x12345678)], ACK0, None, OK),
    "35 zero READ, garbage":     ([], [p("READ_REQUEST", va=0xdeadbeef, rkey=0x12345678)], [("ONLY", 0, b"")], None, OK),
    "36 MSN":                    ([64]*3, [SEND, p("WRITE_FIRST", 1, 1024, ackreq=0, dma_length=1028), p("WRITE_LAST", 2, 4), p("READ_REQUEST", 3, dma_length=0),
        p("SEND_ONLY", 4, 8)], [("ACK", 0, 1), ("ACK", 2, 2), ("ONLY", 3, b""), ("ACK", 4, 4)], None, OK),
    "37 no AckReq":              ([64]*2, [p("SEND_ONLY", 0, 8, ackreq=0), p("SEND_ONLY", 1, 8)], [("ACK", 1, 2)], None, OK),
    "39 no receive":             ([], [SEND, p("SEND_ONLY", 1, 8)], [("RNR_5", 0, 0)], "RNR", OK),
    "41 no receive for WRITE":   ([], [p("WRITE_FIRST", 0, 1024, ackreq=0, dma_length=1028), p("WRITE_LAST_IMM", 1, 4)], [("RNR_5", 1, 0)], "RNR", OK),
    "42 SEND beyond receive":    ([7], [SEND], NAK61, "LENGTH_RECV", ERR),
    "43 atomic":                 ([], [p("FETCH_ADD")], NAK61, "QP_ACCESS", ERR),
    "44 no such key":            ([], [p("WRITE_ONLY", length=8, rkey=0x5501)], NAK62, "MR_KEY", ERR),
    "44 stale variant":          ([], [p("WRITE_ONLY", length=8, rkey=0x102)], NAK62, "MR_KEY", ERR),
    "44 a byte out of bounds":   ([], [p("READ_REQUEST", va=ENGINE_VA + REGION - 8, dma_length=9)], NAK62, "MR_BOUNDS", ERR),
    "44 below":                  ([], [p("WRITE_ONLY", length=8, va=ENGINE_VA - 1)], NAK62, "MR_BOUNDS", ERR),
    "44 wrap":                   ([], [p("WRITE_ONLY", length=8, va=2**64 - 4)], NAK62, "MR_BOUNDS", ERR),
}


@pytest.mark.parametrize("name", CASES)
def test_request(name):
    """The table: answers in order, counter, state; a refusal wakes nothing else; a QP that lives takes the next request."""
    receives, packets, answers, row, state = CASES[name]
    hand = Hand(receives)
    for what, psn, payload, change, fields in packets:
        packet = hand.packet(what, psn, payload, **fields)
        hand.send(change(packet.build()) if change else packet)
    hand.bench.bench.work(400)
    assert hand.answers() == answers
    if row:
        assert hand.count(row) == 1
    assert hand.state() == state
    assert hand.engine.chunks_free() == 512
    if state == OK and not answers:
        # Nothing has changed: the packet as it should be.
        hand.send(hand.packet("WRITE_ONLY", 0, b"12345678"))
        assert hand.answers() == ACK0 and hand.engine.read_memory(VA, 8) == b"12345678"


@pytest.mark.parametrize("limit", [0, 2])
def test_46_47_read_resources(limit):
    """READs beyond max_dest_rd_atomic while replies are held back: NAK 0x61; none allowed at all: the first."""
    hand = Hand(max_dest_rd_atomic=limit)
    hand.engine.memory.set(latency=2000)
    for n in range(limit + 1):
        hand.engine.send(hand.packet("READ_REQUEST", n, va=ENGINE_VA, dma_length=8).build(pad_frame=True))
    hand.bench.bench.step(9000)
    got = hand.answers()
    assert got[-1][0] == "NAK_61" and [g[0] for g in got[:-1]] == ["ONLY"]*limit
    assert hand.count("READ_RESOURCES") == 1


@pytest.mark.parametrize("access,row,nak", [(verbs.ACCESS_REMOTE_READ, "QP_ACCESS", "NAK_61"), (verbs.ACCESS_REMOTE_WRITE, "QP_ACCESS", "NAK_61")])
def test_43_qp_access(access, row, nak):
    """Operations that the QP does not grant: NAK 0x61."""
    hand = Hand(access=access)
    other = "WRITE_ONLY" if access == verbs.ACCESS_REMOTE_READ else "READ_REQUEST"
    hand.send(hand.packet(other, 0, BYTES[:8] if other == "WRITE_ONLY" else b"", dma_length=8))
    assert hand.answers() == [(nak, 0, 0)] and hand.count(row) == 1 and hand.state() == ERR


@pytest.mark.parametrize("pd,access,row", [(2, 7, "MR_PD"), (1, verbs.ACCESS_LOCAL_WRITE, "MR_ACCESS")])
def test_44_region(pd, access, row):
    """A region of another domain, or without the right: NAK 0x62."""
    hand = Hand()
    mr   = hand.engine.roce.reg_mr(0x5000, 4096, pd=pd, access=access, addr=0x6000_0000)
    hand.send(hand.packet("WRITE_ONLY", 0, BYTES[:8], va=0x5000, rkey=mr.rkey))
    assert hand.answers() == NAK62 and hand.count(row) == 1 and hand.engine.read_memory(0x6000_0000, 8) == bytes(8)


def test_50_region_removed():
    """Invalidated between two packets of a WRITE: what has landed stays, then NAK 0x62, no byte more."""
    hand = Hand()
    mr   = hand.engine.roce.reg_mr(0x5000, 8192, access=7, addr=0x6000_0000)
    hand.send(hand.packet("WRITE_FIRST", 0, BYTES[:1024], va=0x5000, rkey=mr.rkey, dma_length=2048, ackreq=0))
    mr.invalidate()
    hand.send(hand.packet("WRITE_LAST", 1, BYTES[:1024]))
    assert hand.answers() == [("NAK_62", 1, 0)]
    assert hand.engine.read_memory(0x6000_0000, 2048) == BYTES[:1024] + bytes(1024)


def test_23_psn_wrap():
    """Messages across the end of the PSNs."""
    hand = Hand([64]*4, rq_psn=0xfffffe)
    for n in range(4):
        hand.send(hand.packet("SEND_ONLY", n, BYTES[:8]))
    assert hand.answers() == [("ACK", n, n + 1) for n in range(4)]


# Requester ----------------------------------------------------------------------------------------

class Asker(Hand):
    """The engine's QP with work requests sent; the test answers. PSNs are relative to the first one sent."""
    def __init__(self, *work, **attributes):
        super().__init__(**attributes)
        self.base = self.qp.attributes["sq_psn"]
        for n, (operation, length) in enumerate(work):
            self.bench.engine_sends(self.qp, operation, 0x1000*n, length, wr_id=n, flags=0 if attributes.get("silent") else verbs.SEND_SIGNALED)
        self.bench.bench.work(400)
        self.sent = [parse(f) for f in self.engine.frames()]

    def ack(self, psn, syndrome=op.ACK_UNLIMITED, msn=1):
        self.send(self.packet("ACKNOWLEDGE", psn, syndrome=syndrome, msn=msn, ackreq=0))

    def data(self, place, psn, payload):
        self.send(self.packet(f"READ_RESPONSE_{place}", psn, payload, syndrome=op.ACK_UNLIMITED, msn=1, ackreq=0))


FLUSH = verbs.WC_WR_FLUSH_ERR
THREE = (("WRITE", 8), ("WRITE", 8), ("WRITE", 8))


def statuses(hand):
    return [c[:2] for c in hand.completions()]


def test_59_implied_ack():
    """One ACK for all before it."""
    hand = Asker(*THREE)
    hand.ack(2)
    assert statuses(hand) == [(0, 0), (1, 0), (2, 0)]


@pytest.mark.parametrize("syndrome,status", [(0x61, verbs.WC_REM_INV_REQ_ERR), (0x62, verbs.WC_REM_ACCESS_ERR), (0x63, verbs.WC_REM_OP_ERR)])
def test_66_fatal_nak(syndrome, status):
    """Those before are good, the one named fails, those behind are flushed."""
    hand = Asker(*THREE)
    hand.ack(1, syndrome)
    assert statuses(hand) == [(0, 0), (1, status), (2, FLUSH)] and hand.state() == ERR


def test_64_ghost_and_beyond():
    """Older ACKs and ACKs of what was never sent change nothing."""
    hand = Asker(*THREE)
    hand.ack(0)
    hand.ack(-1)
    hand.ack(0)
    hand.ack(3)
    hand.ack(1000)
    assert statuses(hand) == [(0, 0)] and (hand.count("ACK_GHOST"), hand.count("ACK_BEYOND_SENT")) == (2, 2)
    hand.ack(2)
    assert statuses(hand) == [(1, 0), (2, 0)]


@pytest.mark.parametrize("syndrome", [0x40, 0x5f, 0x80, 0xff, 0x65, 0x7f])
def test_76_reserved_syndrome(syndrome):
    """Reserved syndromes and NAK codes are ignored, counted."""
    hand = Asker(*THREE)
    hand.ack(2, syndrome)
    assert not statuses(hand) and hand.count("SYNDROME_RESERVED") == 1 and hand.state() == OK
    hand.ack(2)
    assert len(statuses(hand)) == 3


def test_76_credits():
    """Any credit code is an ACK."""
    hand = Asker(*THREE)
    hand.ack(2, 0x03)
    assert len(statuses(hand)) == 3


@pytest.mark.parametrize("start", ["FIRST", "MIDDLE"])
def test_62_63_read_resumes(start):
    """A lost MIDDLE: asked again from there with the right address and length; FIRST and MIDDLE are taken."""
    hand = Asker(("READ", 4*1024))
    hand.data("FIRST", 0, BYTES[:1024])
    hand.data("MIDDLE", 2, BYTES[2048:3072])
    hand.bench.bench.work(600)
    again = [parse(f) for f in hand.engine.frames()]
    assert [(q.name, op.psn_diff(q.psn, hand.base), q.va, q.dma_length) for q in again] == [("RC_READ_REQUEST", 1, MODEL_VA + 1024, 3072)]
    hand.data(start, 1, BYTES[1024:2048])
    hand.data("MIDDLE", 2, BYTES[2048:3072])
    hand.data("LAST", 3, BYTES[3072:4096])
    assert statuses(hand) == [(0, 0)] and hand.engine.read_memory(ENGINE_VA, 4096) == BYTES[:4096]


def test_60_read_passed():
    """An ACK behind a READ without its data: the READ and all behind it again."""
    hand = Asker(("READ", 8), ("WRITE", 8))
    hand.ack(1)
    hand.bench.bench.work(600)
    assert [parse(f).name for f in hand.engine.frames()] == ["RC_READ_REQUEST", "RC_WRITE_ONLY"] and not statuses(hand)
    hand.data("ONLY", 0, b"abcdefgh")
    hand.ack(1)
    assert statuses(hand) == [(0, 0), (1, 0)]


@pytest.mark.parametrize("answer", [("ONLY", 7), ("ONLY", 9), ("FIRST", 1024), ("LAST", 8)])
def test_65_read_length(answer):
    """Data that is not what was asked for: the READ fails, nothing behind the buffer is written."""
    hand = Asker(("READ", 8))
    hand.engine.write_memory(ENGINE_VA, b"\xee"*4096)
    hand.data(answer[0], 0, BYTES[:answer[1]])
    (wr_id, status), = statuses(hand)
    assert wr_id == 0 and status in (verbs.WC_LOC_LEN_ERR, verbs.WC_BAD_RESP_ERR) and hand.state() == ERR
    assert hand.engine.read_memory(ENGINE_VA + 8, 2048) == b"\xee"*2048


def test_67_unsignalled():
    """No completion for good unsignalled work, one for each that fails."""
    hand = Asker(*THREE, ("SEND", 8))
    hand.completions()
    quiet = Hand()
    for n in range(3):
        quiet.bench.engine_sends(quiet.qp, "WRITE", 0, 8, wr_id=n, flags=0)
    quiet.base = quiet.qp.attributes["sq_psn"]
    quiet.bench.bench.work(300)
    quiet.send(quiet.packet("ACKNOWLEDGE", 1, syndrome=0x62, msn=1))
    assert statuses(quiet) == [(1, verbs.WC_REM_ACCESS_ERR), (2, FLUSH)]


def test_69_read_depth():
    """max_rd_atomic 1: the second READ waits for the first one's data."""
    hand = Asker(("READ", 8), ("READ", 8), max_rd_atomic=1)
    assert [q.name for q in hand.sent] == ["RC_READ_REQUEST"]
    hand.data("ONLY", 0, BYTES[:8])
    assert [parse(f).name for f in hand.engine.frames()] == ["RC_READ_REQUEST"]


def test_57_no_retry():
    """retry_cnt 0: the first time-out is the end."""
    hand = Asker(*THREE, retry_cnt=0, timeout=4)
    hand.bench.bench.work(4000)
    assert statuses(hand) == [(0, verbs.WC_RETRY_EXC_ERR), (1, FLUSH), (2, FLUSH)] and hand.state() == ERR and not hand.engine.frames()


def test_61_nak_in_rnr_wait():
    """A sequence NAK while the RNR timer runs: the wait goes on."""
    hand = Asker(*THREE, memory=IDEAL)     # the timer's clocks are counted.
    hand.ack(0, 0x20 | 14)
    hand.ack(0, 0x60)
    hand.bench.bench.step(2500)
    assert not hand.engine.frames()
    hand.bench.bench.step(4000)
    assert [op.psn_diff(parse(f).psn, hand.base) for f in hand.engine.frames()] == [0, 1, 2]


@pytest.mark.parametrize("early", [True, False])
def test_61_ack_in_rnr_wait(early):
    """A late RNR NAK, then the ACK of all that was sent: the timer ends with nothing to repeat, and new work goes."""
    hand = Asker(*THREE, memory=IDEAL)     # the timer's clocks are counted.
    hand.ack(1, 0x20 | 14)
    hand.ack(2)
    assert statuses(hand) == [(0, 0), (1, 0), (2, 0)]
    if early:
        hand.bench.engine_sends(hand.qp, "WRITE", 0, 8, wr_id=3)
    hand.bench.bench.step(8000)
    if not early:
        hand.bench.engine_sends(hand.qp, "WRITE", 0, 8, wr_id=3)
        hand.bench.bench.work(400)
    assert {op.psn_diff(parse(f).psn, hand.base) for f in hand.engine.frames()} == {3}
    hand.ack(3)
    assert statuses(hand) == [(3, 0)] and hand.state() == OK


def test_74_posted_in_err():
    """Work posted in ERR is flushed, in order, on both queues."""
    hand = Hand()
    hand.qp.modify(abi.QP_ERR)
    for n in range(3):
        hand.bench.engine_sends(hand.qp, "WRITE", 0, 8, wr_id=n)
        hand.qp.post_recv(hand.mr, va=ENGINE_VA, length=8, wr_id=10 + n)
    hand.bench.bench.work(600)
    done = statuses(hand)
    assert [d for d in done if d[0] < 10] == [(n, FLUSH) for n in range(3)] and [d for d in done if d[0] >= 10] == [(10 + n, FLUSH) for n in range(3)]


def test_40_rnr_code_0():
    """Code 0 is the longest wait, not the shortest."""
    hand = Asker(*THREE)
    hand.ack(0, 0x20)
    hand.bench.bench.step(200_000)
    assert not hand.engine.frames()


def test_what_is_built_is_counted_by_its_kind():
    """An acknowledge is one by either path, a READ reply is none, and a marker is no packet."""
    hand  = Hand()
    built = lambda: [hand.engine.counter(TRAFFIC_BASE + n) for n in (5, 6, 7)]       # tx_requests, tx_acks, tx_reads
    assert built() == [0, 0, 0]
    hand.send(hand.packet("WRITE_ONLY", 0, BYTES[:8]))
    assert built() == [0, 1, 0]
    hand.send(hand.packet("READ_REQUEST", 1, va=ENGINE_VA, dma_length=1500))
    hand.send(hand.packet("WRITE_ONLY", 3, BYTES[:8]))
    assert built() == [0, 2, 2]
    hand.qp.modify(abi.QP_ERR)
    hand.qp.modify(abi.QP_RESET)
    hand.bench.bench.work(400)
    assert built() == [0, 2, 2]
