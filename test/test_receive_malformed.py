# SPDX-License-Identifier: BSD-2-Clause
"""Random malformed frames: the receive side and the reference model give every one of them the same fate."""
import random

import pytest

from roce_soc import opcodes as op
from roce_soc.errors import BY_INDEX
from sim.harness import build
from test.model.endpoint import Endpoint
from test.model.packet import PacketError, icrc, internet_checksum, parse
from test.receive_bench import OWN_IP4, OWN_IP6, OWN_MAC, PEER_IP4, PEER_IP6, Bench, make, packet

BATCH = 50


@pytest.fixture(scope="module")
def so():
    return build(*make(), name="receive")


def model():
    """The QPs of the bench."""
    endpoint = Endpoint(OWN_MAC, OWN_IP4, OWN_IP6)
    for qpn, own, peer in ((0x41, OWN_IP4, PEER_IP4), (0x42, OWN_IP6, PEER_IP6)):
        endpoint.create_qp(qpn, dst_mac=OWN_MAC, src_ip=own, dst_ip=peer, dest_qpn=qpn + 1)
    return endpoint


def verdict(endpoint, frame):
    """("slow", frame), (row, None) or ("request" or "response", PSN)."""
    try:
        p = parse(frame)
    except PacketError as error:
        return error.row, None
    if p is None:
        return "slow", frame
    row = endpoint._filter(p)
    return (row, None) if row else ("response" if op.OPCODES[p.opcode].is_response else "request", p.psn)


# Frames -------------------------------------------------------------------------------------------

def word(rng, right):
    """A 16-bit length: near the right one, short, anything."""
    return rng.choice((rng.randrange(20), max(0, right + rng.randrange(-12, 13)), right + rng.randrange(1, 80),
        rng.randrange(20, 60), rng.getrandbits(16), 0xffff, 0xffff - rng.randrange(20))) & 0xffff


class Draft:
    """A frame in the making: what can be broken is apart."""
    def __init__(self, rng, number):
        row = rng.choice([o for o in op.OPCODES.values() if o.transport == "RC"])
        p   = packet(row.value, v6=rng.random() < .5, psn=number,
            payload=b"" if row.payload == "NONE" else rng.randbytes(rng.choice((0, 1, 4, rng.randrange(150)))))
        frame    = p.build()
        self.rng = rng
        self.six = p.ip_version == 6
        size     = 40 if self.six else 20
        self.ethernet, self.ip, self.udp = frame[:12], bytearray(frame[14:14 + size]), bytearray(frame[14 + size:])
        self.between  = b""          # options or extension headers.
        self.types    = [0x86dd if self.six else 0x0800]
        self.trailer  = b""
        self.cut      = None
        self.repairs  = rng.random() < .85, rng.random() < .85

    # What may be wrong.

    def total(self):
        at = 4 if self.six else 2
        self.ip[at:at + 2] = word(self.rng, int.from_bytes(self.ip[at:at + 2], "big")).to_bytes(2, "big")

    def udp_length(self):
        self.udp[4:6] = word(self.rng, len(self.udp)).to_bytes(2, "big")

    def version(self):
        self.ip[0] = self.ip[0] & 15 | self.rng.randrange(16) << 4

    def header_length(self):
        self.ip[0] = self.ip[0] & 0xf0 | self.rng.randrange(16)

    def fragment(self):
        if not self.six:
            flags = self.rng.choice((0x2000, 0x2000, 0x8000, 0x4000, 0x0001, 0x3000, self.rng.getrandbits(16)))
            self.ip[6:8] = flags.to_bytes(2, "big")
        else:
            self.chain([44])

    def between_headers(self):
        if self.six:
            kinds = (0, 43, 60, 44, 51, 59, 58, 135) if self.rng.random() < .2 else (0, 43, 60, 44)
            self.chain([self.rng.choice(kinds) for _ in range(self.rng.choice((1, 1, 2, 2, 3, 5)))])
        else:
            self.between = self.rng.randbytes(4*self.rng.randrange(1, 11))
            self.ip[0]   = 0x45 + len(self.between)//4
            self.ip[2:4] = (20 + len(self.between) + len(self.udp)).to_bytes(2, "big")

    def chain(self, types):
        """Extension headers in front of UDP, most of them as they should be."""
        rng, self.between = self.rng, b""
        for n, kind in enumerate(types):
            length = 0 if kind == 44 or rng.random() < .6 else rng.randrange(5)
            body   = bytearray(rng.randbytes(8*(length + 1)))
            body[0:2] = (*types, 17)[n + 1], rng.getrandbits(8) if kind == 44 or rng.random() < .05 else length
            if kind == 44:
                body[2:4] = rng.choice((0, 1, 7, 8, 0x100, rng.getrandbits(16))).to_bytes(2, "big")
            self.between += body
        self.ip[6]   = types[0]
        self.ip[4:6] = (len(self.between) + len(self.udp)).to_bytes(2, "big")

    def protocol(self):
        self.ip[6 if self.six else 9] = self.rng.choice((6, 17, 58, 1, 41, self.rng.getrandbits(8)))

    def port(self):
        self.udp[2:4] = self.rng.choice((53, 4790, 0x12b6, self.rng.getrandbits(16))).to_bytes(2, "big")

    def ethertype(self):
        self.types = self.rng.choice(([0x8100, self.types[-1]], [0x8100, 0x8100, self.types[-1]], [0x88a8, self.types[-1]],
            [0x0800 if self.six else 0x86dd], [self.rng.getrandbits(16)], [0x8100, 0x0800 if self.six else 0x86dd]))

    def pad(self):
        self.trailer = self.rng.randbytes(self.rng.randrange(80))

    def truncate(self):
        self.cut = self.rng.choice((self.rng.randrange(1, 130), self.rng.randrange(54, 80), -self.rng.randrange(1, 12)))

    def pad_count(self):
        self.udp[9] ^= self.rng.randrange(4) << 4

    BREAKS = (total, udp_length, version, header_length, fragment, between_headers, protocol, port, ethertype, pad, truncate,
        pad_count)

    def build(self):
        """The frame; checksum and ICRC are made right for what it says, mostly."""
        if not self.six and self.repairs[0]:
            self.ip[10:12] = bytes(2)
            self.ip[10:12] = internet_checksum(bytes(self.ip)).to_bytes(2, "big")
        elif not self.six:
            self.ip[10] ^= 1 << self.rng.randrange(8)
        tags  = b"".join(t.to_bytes(2, "big") + (b"\x60\0" if t in (0x8100, 0x88a8) else b"") for t in self.types)
        start = 12 + len(tags)
        frame = bytearray(self.ethernet + tags + self.ip + self.between + self.udp + self.trailer)
        end   = start + len(self.ip) + len(self.between) + int.from_bytes(self.udp[4:6], "big")
        # Where the length is no multiple of four the engine looks for no ICRC; the model reads on and answers.
        if self.repairs[1] and frame[start] >> 4 in (4, 6) and (end - start) % 4 == 0 and start + 60 <= end <= len(frame):
            frame[end - 4:end] = icrc(frame, start, end - 4).to_bytes(4, "little")
        if self.cut is None:
            return bytes(frame).ljust(60, b"\0")
        return bytes(frame[:self.cut] or frame)


def malformed(rng, number):
    """A frame that breaks no rule or a few, each to what its length fields say by chance."""
    draft = Draft(rng, number)
    for change in rng.sample(Draft.BREAKS, rng.choice((0, 1, 1, 1, 1, 2, 2, 3))):
        if draft.six and change is Draft.header_length:
            continue
        change(draft)
    return draft.build()


# Comparison ---------------------------------------------------------------------------------------

def compare(bench, endpoint, frames):
    """Sends the frames in one go; what became of each, as far as order within a kind tells it. Returns the fates."""
    expected = [verdict(endpoint, frame) for frame in frames]
    for frame in frames:
        bench.rx.send(frame)
    bench.sim.drain(bench.rx)
    bench.sim.step(60)
    found = {"slow": [("slow", f.data) for f in bench.slow.recv_all()],
             "row":  [(BY_INDEX[r.row].name, None) for r in bench.refusal.recv_all()]}
    for kind in ("request", "response"):
        records = getattr(bench, kind).recv_all()
        found[kind] = [(kind, r.psn) for r in records]
        for record in records:
            if record.has_slot:
                bench.fetch.send(slot=record.slot, discard=1)
    bench.sim.drain(bench.fetch)
    for frame, fate in zip(frames, expected):
        kind = fate[0] if fate[0] in found else "row"
        got  = found[kind].pop(0) if found[kind] else None
        assert got == fate, f"model: {fate[0]}, engine: {got}; frame {frame.hex()}"
    assert not any(found.values()), found
    bench.sim.step(20)
    assert bench.sim.peek("chunks_free") == 64
    return [fate for fate, _ in expected]


@pytest.mark.parametrize("gap", [0, .3])
def test_same_fate(so, seed, gap):
    """Thousands of frames with wrong lengths, versions, options, extension headers, fragments, cuts, padding."""
    rng, bench, endpoint = random.Random(seed), Bench(so, seed=seed, gap=gap), model()
    seen = {}
    for n in range(80):
        frames = [malformed(rng, BATCH*n + k) for k in range(BATCH)]
        for fate in compare(bench, endpoint, frames):
            seen[fate] = seen.get(fate, 0) + 1
    # Each of them is met, so that none passes by never being made.
    for fate in ("slow", "request", "response", "RUNT", "IP_OPTIONS", "IP_FRAGMENT", "IP_CHECKSUM", "UDP_LENGTH", "ICRC"):
        assert seen.get(fate, 0) >= 10, seen


def frame_of(v6=False, **fields):
    return packet(op.RC_SEND_ONLY, v6=v6, payload=bytes(range(64)), **fields)


def extended(types, port=op.UDP_PORT, offset=0):
    """An IPv6 frame with extension headers of eight bytes in front of its UDP header."""
    frame = frame_of(v6=True, dport=port).build()
    chain = b"".join(bytes((after, 0)) + offset.to_bytes(2, "big") + bytes(4) for after in (*types[1:], 17))
    total = int.from_bytes(frame[18:20], "big") + len(chain)
    return frame[:18] + total.to_bytes(2, "big") + bytes((types[0],)) + frame[21:54] + chain + frame[54:]


def versioned(frame, version):
    """The frame with another IP version; IPv4's checksum made right for it."""
    frame = bytearray(frame)
    frame[14] = frame[14] & 15 | version << 4
    if frame[12:14] == b"\x08\x00":
        frame[24:26] = bytes(2)
        frame[24:26] = internet_checksum(bytes(frame[14:34])).to_bytes(2, "big")
    return bytes(frame)


FRAMES = {
    **{f"total length {n}":      (frame_of(ip_length=n).build(), "UDP_LENGTH") for n in (0, 1, 8, 19, 20)},
    "total length beyond":       (frame_of(ip_length=129).build(), "RUNT"),
    "payload length beyond":     (frame_of(v6=True, ip_length=89).build(), "RUNT"),
    "payload length 0":          (frame_of(v6=True, ip_length=0).build(), "UDP_LENGTH"),
    "UDP length beyond":         (frame_of(udp_length=90, ip_length=108).build(), "UDP_LENGTH"),
    "UDP length, total beyond":  (frame_of(udp_length=90).build(), "RUNT"),
    "UDP length beyond, trailer": (frame_of(udp_length=96, ip_length=108, trailer=bytes(40)).build(), "UDP_LENGTH"),
    "IPv6 version 4":            (versioned(frame_of(v6=True).build(), 4), "slow"),
    "IPv6 version 7":            (versioned(frame_of(v6=True).build(), 7), "slow"),
    "IPv4 version 6":            (versioned(frame_of().build(), 6), "slow"),
    "options":                   (frame_of().build()[:14] + b"\x46" + frame_of().build()[15:], "IP_OPTIONS"),
    "hop-by-hop":                (extended([0]), "IP_OPTIONS"),
    "two extension headers":     (extended([0, 60]), "IP_OPTIONS"),
    "IPv6 fragment":             (extended([44]), "IP_OPTIONS"),
    "IPv6 later fragment":       (extended([44], offset=8), "slow"),
    "IPv6 fragment, other port": (extended([44], port=53), "slow"),
    "hop-by-hop, other port":    (extended([0], port=53), "slow"),
    "fragment":                  (frame_of(ip_flags=0x2000).build(), "IP_FRAGMENT"),
    "fragment, other port":      (frame_of(ip_flags=0x2000, dport=53).build(), "slow"),
    "later fragment":            (frame_of(ip_flags=0x2001).build(), "slow"),
    "last fragment":             (frame_of(ip_flags=0x0007).build(), "slow"),
}


@pytest.mark.parametrize("name", FRAMES)
def test_fate(so, name):
    """One by one, between good frames."""
    frame, fate = FRAMES[name]
    bench, good = Bench(so), [frame_of(psn=n).build() for n in range(2)]
    assert compare(bench, model(), [good[0], frame, good[1]]) == ["request", fate, "request"]
