# SPDX-License-Identifier: BSD-2-Clause
"""Packet library and pcap files: byte for byte, against worked examples, captures and scapy."""
import glob
import os
import struct

import pytest

from roce_soc import opcodes as op
from test.model.packet import Packet, PacketError, internet_checksum, ip, mac, parse, udp_sport
from test.model.pcap import PcapWriter, read_pcap, write_pcap

CAPTURES = sorted(glob.glob(os.path.join(os.path.dirname(__file__), "reference", "captures", "*.pcap")))
BAD_ICRC = {("rc_bad_icrc.b.pcap", 1)}

ETHER4 = "020000000002 020000000001 0800"
EXAMPLES = {
    "A": (ETHER4 + "456a004c123440004011a3ffc0000201c0000202 c12312b700380000 0a30ffff0000001280fffffe"
          "00007f001234567800000a2b0000000d 101112131415161718191a1b1c 000000 bc631217"),
    "B": ("020000000002 020000000001 86dd 66800000001c1140 20010db8000000000000000000000001"
          "20010db8000000000000000000000002 d00d12b7001c0000 1100ffff0000abcd00000005 1f000003 a87a402c"),
    "C": ("020000000002 020000000001 8100 6064 0800 456a003000004000401126510a0000010a000002"
          "c00012b7001c0000 04c0ffff0000010080000000 deadbeef 16d7bb0d"),
    "C2": (ETHER4 + "456b003000004000 3f11 2750 0a0000010a000002 c00012b7001c0000 04c0ffff0000010080000000 deadbeef 16d7bb0d"),
    "D": (ETHER4 + "45c0003c00004000401125ef0a0000020a000001 c00012b700280000 8100ffff400000d200000000" + "00"*16 + "ea37a322"),
    "E": ("020000000002 020000000001 86dd 66aabcde00281140 20010db8000000000000000000000001"
          "20010db8000000000000000000000002 ffff12b700280000 0c00ffff0012345680800000"
          "0000000000001000 deadbeef 00001000 ad9562d2"),
}


def frame_of(name):
    return bytes.fromhex(EXAMPLES[name].replace(" ", ""))


@pytest.mark.parametrize("path", CAPTURES, ids=os.path.basename)
def test_every_captured_frame_is_rebuilt(path):
    for number, (_, frame) in enumerate(read_pcap(path), 1):
        packet = parse(frame)
        if packet is None:
            continue
        assert packet.build() == frame, f"frame {number}"
        assert packet.icrc_ok == ((os.path.basename(path), number) not in BAD_ICRC), f"frame {number}"
        assert packet.ip_checksum_ok
        trailer, icrc = packet.trailer, packet.icrc
        if packet.icrc_ok:
            assert packet.copy().renew().build() + trailer == frame and packet.icrc == icrc


def test_captures_hold_what_they_should():
    packets = [parse(frame) for path in CAPTURES for _, frame in read_pcap(path)]
    assert len(packets) == 1485
    assert sum(p is not None for p in packets) == 1216
    assert sum(p.icrc_ok for p in packets if p) == 1215


@pytest.mark.parametrize("name", EXAMPLES)
def test_worked_examples(name):
    frame  = frame_of(name)
    packet = parse(frame)
    assert packet.icrc_ok and packet.build() == frame and packet.copy().renew().build() == frame


def test_worked_example_fields():
    a = parse(frame_of("A"))
    assert (a.name, a.psn, a.dest_qpn, a.ackreq, a.pad, len(a.payload)) == ("RC_WRITE_ONLY", 0xfffffe, 0x12, 1, 3, 13)
    assert (a.va, a.rkey, a.dma_length, a.icrc) == (0x7f0012345678, 0xa2b, 13, 0x171263bc)
    b = parse(frame_of("B"))
    assert (b.ip_version, b.tos, b.syndrome, b.msn, b.icrc) == (6, 0x68, 0x1f, 3, 0x2c407aa8)
    c = parse(frame_of("C"))
    assert (c.vlan >> 13, c.vlan & 0xfff, c.se, c.m, c.payload) == (3, 100, 1, 1, b"\xde\xad\xbe\xef")
    d = parse(frame_of("D"))
    assert (d.name, d.becn, d.fecn, d.dest_qpn) == ("CNP", 1, 0, 0xd2)
    e = parse(frame_of("E"))
    assert (e.flow_label, e.psn, e.va, e.rkey) == (0xabcde, 0x800000, 0x1000, 0xdeadbeef)


CM_REQUEST = {
    0x00: "01070203000000000000000100000001", 0x10: "00100000000000001122334400000000", 0x20: "0000000001061d2f020000fffe000001",
    0x30: "00000000000000000000110100000001", 0x40: "000000b0abcdefb7ffff37f0ffffffff", 0x58: "0000ffff0a000001",
    0x68: "0000ffff0a000002", 0x70: "308ef00000400088", 0xa4: "00409c40", 0xb4: "0a000001", 0xc4: "0a000002"}


def test_worked_example_of_a_cm_request():
    """UD SEND with a 256-byte MAD to QP 1."""
    mad = bytearray(256)
    for offset, text in CM_REQUEST.items():
        data = bytes.fromhex(text)
        mad[offset:offset + len(data)] = data
    packet = Packet(dst_mac=mac("02:00:00:00:00:02"), src_mac=mac("02:00:00:00:00:01"), src_ip=ip("10.0.0.1"),
                    dst_ip=ip("10.0.0.2"), sport=0xc8e3, opcode=op.UD_SEND_ONLY, dest_qpn=1, ackreq=1, psn=1,
                    qkey=op.QKEY_GSI, src_qp=1, payload=bytes(mad))
    frame = packet.build()
    assert len(frame) == 322
    assert frame[42:62].hex() == "6400ffff00000001800000018001000000000001"
    assert frame[-4:].hex() == "8139ce74"


def test_icrc_ignores_what_the_path_changes():
    packet = parse(frame_of("C"))
    for changes in ({"ttl": 1}, {"tos": 0xff}, {"vlan": None}, {"vlan": 7}, {"udp_checksum": 0x1234}, {"fecn": 1},
                    {"becn": 1}, {"resv6": 0x3f}):
        changed = packet.copy(**changes, ip_checksum=None)
        assert parse(changed.build()).icrc_ok, changes
    six = parse(frame_of("E"))
    for changes in ({"flow_label": 1}, {"tos": 3}, {"ttl": 2}):
        assert parse(six.copy(**changes).build()).icrc_ok, changes


def test_icrc_covers_every_other_bit():
    masked = {"A": {15, 22, 24, 25, 40, 41, 46}, "B": {15, 16, 17, 21, 60, 61, 66}}
    for name, free in masked.items():
        frame = frame_of(name)
        for offset in range(14, len(frame)):
            for bit in range(8):
                changed = bytearray(frame)
                changed[offset] ^= 1 << bit
                try:
                    packet = parse(changed)
                except PacketError:
                    continue
                if packet is None or (name == "B" and offset == 14):
                    continue
                assert packet.icrc_ok == (offset in free), (name, offset, bit)


def test_icrc_big_endian_is_wrong():
    packet = parse(frame_of("A"))
    swapped = int.from_bytes(packet.icrc.to_bytes(4, "little"), "big")
    assert not parse(packet.copy(icrc=swapped).build()).icrc_ok


def random_packet(rng):
    row  = rng.choice(list(op.OPCODES.values()))
    size = 0 if row.payload == "NONE" else rng.choice((0, 1, 2, 3, 4, 5, 63, 64, 65, rng.randrange(4097)))
    six  = rng.random() < .5
    fields = {name: rng.getrandbits(bits) for header in row.headers for name, bits in op.EXT_HEADERS[header]}
    fields.update(opcode=row.value, payload=rng.randbytes(size), psn=rng.getrandbits(24), dest_qpn=rng.getrandbits(24),
                  se=rng.getrandbits(1), m=rng.getrandbits(1), ackreq=rng.getrandbits(1), fecn=rng.getrandbits(1),
                  becn=rng.getrandbits(1), resv6=rng.getrandbits(6), resv7=rng.getrandbits(7), pkey=rng.getrandbits(16),
                  tos=rng.getrandbits(8), ttl=rng.getrandbits(8), src_mac=rng.randbytes(6), dst_mac=rng.randbytes(6),
                  sport=rng.getrandbits(16), ip_version=6 if six else 4, src_ip=rng.randbytes(16 if six else 4),
                  dst_ip=rng.randbytes(16 if six else 4), vlan=rng.choice((None, rng.getrandbits(16))))
    if six:
        fields["flow_label"] = rng.getrandbits(20)
    else:
        fields["ip_id"] = rng.getrandbits(16)
    return Packet(**fields), fields


def test_random_packets_survive(rng):
    for _ in range(2000):
        packet, fields = random_packet(rng)
        frame = packet.build()
        again = parse(frame)
        assert again.build() == frame and again.icrc_ok and again.ip_checksum_ok
        assert {name: getattr(again, name) for name in fields} == fields
        assert parse(packet.build(pad_frame=True)).payload == packet.payload and len(packet.build(pad_frame=True)) >= 60


def test_scapy_agrees(rng):
    """scapy's own ICRC and BTH fields over the captures and random packets."""
    layers = pytest.importorskip("scapy.layers.l2")
    roce   = pytest.importorskip("scapy.contrib.roce")
    frames = [f for path in CAPTURES for _, f in read_pcap(path) if parse(f) and parse(f).icrc_ok]
    frames = rng.sample(frames, 150) + [random_packet(rng)[0].build() for _ in range(150)]
    for frame in frames:
        packet = parse(frame)
        if packet.trailer or packet.name == "CNP":
            continue
        bth = layers.Ether(frame)[roce.BTH]
        assert (bth.opcode, bth.solicited, bth.migreq, bth.padcount, bth.version, bth.pkey, bth.fecn, bth.becn, bth.dqpn,
                bth.ackreq, bth.psn) == (packet.opcode, packet.se, packet.m, packet.pad, packet.tver, packet.pkey, packet.fecn,
                                         packet.becn, packet.dest_qpn, packet.ackreq, packet.psn)
        assert bth.compute_icrc(bytes(bth)[:-4]) == packet.icrc.to_bytes(4, "little")


@pytest.mark.parametrize("local,remote,label,port", [
    (0x11, 0x12, 0, 0xc132), (0x12, 0x11, 0, 0xc132), (0x1b3, 0xabcdef, 0, 0xff18), (0xffffff, 0xfffffe, 0, 0xff12),
    (0, 0, 0x12345, 0xe341), (0, 0, 0x04000, 0xc001), (0, 0, 0x308ef, 0xc8e3), (0, 0, 0x9fa42, 0xfa65)])
def test_udp_source_port(local, remote, label, port):
    assert udp_sport(local, remote, label) == port


# Bad frames ---------------------------------------------------------------------------------------

def test_frames_that_are_not_ours():
    frame = frame_of("A")
    assert parse(b"") is None and parse(frame[:13]) is None and parse(frame[:33]) is None
    assert parse(frame[:12] + b"\x08\x06" + frame[14:]) is None          # ARP
    assert parse(frame[:23] + b"\x06" + frame[24:]) is None              # TCP
    assert parse(frame[:36] + b"\x12\xb6" + frame[38:]) is None          # another UDP port
    assert parse(frame[:20] + b"\x00\x01" + frame[22:]) is None          # a fragment that is not the first: no ports


@pytest.mark.parametrize("row,offset,data", [
    ("IP_FRAGMENT", 20, b"\x20\x00"), ("IP_OPTIONS", 14, b"\x46"),
    ("UDP_LENGTH", 38, b"\x00\x39"), ("UDP_LENGTH", 38, b"\x00\x07"), ("UDP_LENGTH", 38, b"\x00\x17"), ("UDP_LENGTH", 38, b"\x00\x20"),
    ("RUNT", 16, b"\x00\x4d"), ("UDP_LENGTH", 38, b"\x00\x2a")])
def test_frames_that_cannot_be_packets(row, offset, data):
    frame = bytearray(frame_of("A"))
    frame[offset:offset + len(data)] = data
    with pytest.raises(PacketError) as error:
        parse(frame)
    assert error.value.row == row


def test_truncated_frames_never_parse():
    for name in EXAMPLES:
        frame = frame_of(name)
        for size in range(len(frame)):
            try:
                assert parse(frame[:size]) is None
            except PacketError as error:
                assert error.row == "RUNT"


def test_unknown_opcode_is_told_not_refused():
    packet = parse(Packet(opcode=0x15, payload=b"1234").build())
    assert packet.name == "OPCODE_15" and packet.icrc_ok and packet.payload == b"1234" and packet.headers == ()


def test_bad_values_are_named():
    with pytest.raises(ValueError, match="psn must be 0..0xffffff, not 16777216"):
        Packet(psn=1 << 24).build()
    with pytest.raises(ValueError, match="no field 'qp_num'"):
        Packet(qp_num=1)
    with pytest.raises(ValueError, match="6 bytes"):
        mac("01:02")


def test_addresses():
    assert ip("10.0.0.1") == ip("::ffff:10.0.0.1") == bytes((10, 0, 0, 1))
    assert len(ip("fd00::1")) == 16 and mac("52:54:00:00:00:01").hex() == "525400000001"
    assert internet_checksum(frame_of("A")[14:34]) == 0


def test_udp_checksum():
    packet = parse(frame_of("A"))
    assert packet.udp_checksum_ok
    right = next(p for _, f in read_pcap(next(c for c in CAPTURES if c.endswith("rc_udpsum_good.b.pcap")))
                 if (p := parse(f)).udp_checksum)
    assert right.udp_checksum_ok and not right.copy(udp_checksum=right.udp_checksum ^ 1).udp_checksum_ok


# pcap ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("magic,unit", [(0xa1b2c3d4, 1000), (0xa1b23c4d, 1)])
def test_pcap_forms(tmp_path, order, magic, unit):
    path = tmp_path/"x.pcap"
    path.write_bytes(struct.pack(order + "IHHIIII", magic, 2, 4, 0, 0, 65535, 1)
                     + struct.pack(order + "IIII", 7, 9, 4, 4) + b"abcd")
    assert read_pcap(path) == [(7_000_000_000 + 9*unit, b"abcd")]


def test_pcap_round_trip(tmp_path):
    frames = [(1, b"a"*60), (2_000_000_001, b"b"*1500)]
    write_pcap(tmp_path/"x.pcap", frames)
    assert read_pcap(tmp_path/"x.pcap") == frames
    with PcapWriter(tmp_path/"y.pcap") as writer:
        writer.write(b"c", 5)
    assert read_pcap(tmp_path/"y.pcap") == [(5, b"c")]


@pytest.mark.parametrize("data,text", [
    (b"abc", "24 bytes"), (bytes(24), "magic"), (struct.pack("<I", 0x0a0d0d0a) + bytes(20), "pcapng"),
    (struct.pack("<IHHIIII", 0xa1b2c3d4, 2, 4, 0, 0, 65535, 113), "link type"),
    (struct.pack("<IHHIIII", 0xa1b2c3d4, 2, 4, 0, 0, 65535, 1) + bytes(8), "cut"),
    (struct.pack("<IHHIIIIIIII", 0xa1b2c3d4, 2, 4, 0, 0, 65535, 1, 0, 0, 4, 9) + b"abcd", "cut")])
def test_pcap_refusals(tmp_path, data, text):
    path = tmp_path/"x.pcap"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=text):
        read_pcap(path)
