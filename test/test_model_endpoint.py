# SPDX-License-Identifier: BSD-2-Clause
"""Endpoint of the reference model: what reaches a QP, states, verbs refusals, regions."""
import pytest

from roce_soc import opcodes as op
from roce_soc import verbs as v
from roce_soc.errors import ERRORS
from test.model.endpoint import Endpoint, pkey_match
from test.model.memory import MemoryTable
from test.model.packet import Packet, ip
from test.model_bench import ACCESS, A_KEY, A_QPN, A_VA, B_KEY, B_QPN, B_VA, Pair

GOOD = {"opcode": op.RC_WRITE_ONLY, "payload": b"1234", "psn": 0x100, "ackreq": 1, "va": B_VA, "rkey": B_KEY, "dma_length": 4}


# Filter -------------------------------------------------------------------------------------------

@pytest.mark.parametrize("row,changes", [
    ("DST_MAC", {"dst_mac": b"\x02\x00\x00\x00\x00\x09"}), ("IP_CHECKSUM", {"ip_checksum": 1}), ("ICRC", {"icrc": 1}),
    ("TVER", {"tver": 1}), ("OPCODE_UNKNOWN", {"opcode": 0x15}), ("OPCODE_UNKNOWN", {"opcode": 0x1c}),
    ("OPCODE_UNKNOWN", {"opcode": 0xa4}), ("OPCODE_UNKNOWN", {"opcode": 0x44}), ("QPN_UNKNOWN", {"dest_qpn": 0}),
    ("QPN_UNKNOWN", {"dest_qpn": B_QPN + 1}), ("QPN_UNKNOWN", {"dest_qpn": 0xffffff}),
    ("CNP_IGNORED", {"opcode": op.CNP, "payload": b""}),
    ("TRANSPORT_CLASS", {"opcode": op.UC_WRITE_ONLY}), ("TRANSPORT_CLASS", {"opcode": op.UD_SEND_ONLY}),
    ("PKEY", {"pkey": 0x1234}), ("PKEY", {"pkey": 0xfffe}), ("ADDRESS", {"src_ip": ip("10.0.0.3")}),
    ("ADDRESS", {"dst_ip": ip("10.0.0.3")}), ("IP_FRAGMENT", {"ip_flags": 0x2000}), ("RUNT", {"udp_length": 100}),
    ("UDP_LENGTH", {"udp_length": 20})])
def test_dropped_before_the_qp(row, changes):
    pair   = Pair()
    before = dict(vars(pair.qb.responder), qp=None)
    assert pair.feed_b(**{**GOOD, **changes}) == []
    assert pair.b.counters == {row: 1} and ERRORS[row].wire == "DROP"
    assert dict(vars(pair.qb.responder), qp=None) == before and pair.b.region.read(B_VA, 4) != b"1234"
    assert pair.b.refusals[0][0] == row
    assert pair.feed_b(**GOOD)[0].syndrome == op.ACK_UNLIMITED


def test_ip_options_are_dropped():
    pair  = Pair()
    frame = bytearray(Packet(dst_mac=pair.b.mac, **{**GOOD, "dest_qpn": B_QPN}).build())
    frame[14] = 0x46
    pair.b.rx(bytes(frame))
    assert pair.b.counters == {"IP_OPTIONS": 1}


@pytest.mark.parametrize("a,b,fits", [(0xffff, 0xffff, True), (0x7fff, 0xffff, True), (0xffff, 0x7fff, True),
                                      (0x7fff, 0x7fff, False), (0x8001, 0x8002, False), (0x8001, 1, True)])
def test_pkey_match(a, b, fits):
    assert pkey_match(a, b) is fits


def test_limited_member_is_accepted():
    assert Pair().feed_b(**{**GOOD, "pkey": 0x7fff})[0].syndrome == op.ACK_UNLIMITED


@pytest.mark.parametrize("frame", [b"", bytes(60), bytes.fromhex("ffffffffffff 020000000001 0806".replace(" ", "")) + bytes(46)])
def test_other_frames_are_the_slow_paths(frame):
    pair = Pair()
    assert pair.b.rx(frame) is False and not pair.b.counters


def test_ethernet_padding_is_no_payload():
    pair = Pair()
    pair.receive()
    frame = Packet(dst_mac=pair.b.mac, src_mac=pair.a.mac, src_ip=ip("10.0.0.1"), dst_ip=ip("10.0.0.2"), dest_qpn=B_QPN,
                   opcode=op.RC_SEND_ONLY, psn=0x100).build(pad_frame=True)
    pair.b.rx(frame)
    assert len(frame) == 60 and [c.byte_len for c in pair.b.poll_cq()] == [0]


def test_ud_address_is_checked_against_the_gids():
    pair = Pair("UD", qkey=1)
    pair.feed_b(opcode=op.UD_SEND_ONLY, qkey=1, dst_ip=ip("10.0.0.9"))
    assert pair.b.counters == {"GID": 1}


# States -------------------------------------------------------------------------------------------

@pytest.mark.parametrize("state", [v.QPS_INIT, v.QPS_ERR, v.QPS_RESET])
def test_states_that_take_no_packets(state):
    pair = Pair()
    pair.b.modify_qp(B_QPN, state)
    assert pair.feed_b(**GOOD) == [] and pair.b.counters == {"QP_STATE": 1}


def test_rtr_answers_but_does_not_send():
    pair = Pair()
    pair.b.modify_qp(B_QPN, v.QPS_RTR)
    assert pair.feed_b(**GOOD)[0].syndrome == op.ACK_UNLIMITED
    assert pair.b.events == [("COMM_EST", B_QPN)]
    pair.feed_b(opcode=op.RC_ACKNOWLEDGE, psn=0x200, syndrome=0x1f)
    assert pair.b.counters == {"QP_STATE": 1}
    with pytest.raises(ValueError, match="state must be RTS, SQD or ERR to post a send, not RTR"):
        pair.b.post_send(B_QPN, 1, v.WR_SEND)


def test_rts_keeps_what_rtr_received():
    pair = Pair()
    pair.b.modify_qp(B_QPN, v.QPS_RTR)
    pair.feed_b(**GOOD)
    pair.b.modify_qp(B_QPN, v.QPS_RTS)
    assert pair.feed_b(**{**GOOD, "psn": 0x101})[0].msn == 2


def test_receive_in_use_is_flushed_first():
    pair = Pair()
    pair.receive(wr_id=100)
    pair.receive(wr_id=101)
    pair.feed_b(opcode=op.RC_SEND_FIRST, payload=bytes(256), psn=0x100)
    pair.b.modify_qp(B_QPN, v.QPS_ERR)
    assert [c.wr_id for c in pair.b.poll_cq()] == [100, 101]


def test_error_flushes_in_order_and_later_posts_too():
    pair = Pair()
    for wr_id in range(3):
        pair.receive(wr_id=100 + wr_id)
        pair.b.post_send(B_QPN, wr_id, v.WR_SEND, va=B_VA, length=4, lkey=B_KEY)
    pair.b.modify_qp(B_QPN, v.QPS_ERR)
    pair.receive(wr_id=103)
    pair.b.post_send(B_QPN, 3, v.WR_SEND)
    done = pair.b.poll_cq()
    assert {c.status for c in done} == {v.WC_WR_FLUSH_ERR}
    assert [c.wr_id for c in done if c.wr_id < 100] == [0, 1, 2, 3]
    assert [c.wr_id for c in done if c.wr_id >= 100] == [100, 101, 102, 103]


def test_reset_and_reuse():
    pair = Pair()
    pair.receive()
    pair.send(v.WR_RDMA_WRITE, 4)
    pair.run()
    for endpoint, qpn, sq, rq in ((pair.a, A_QPN, 5, 9), (pair.b, B_QPN, 9, 5)):
        endpoint.poll_cq()
        endpoint.modify_qp(qpn, v.QPS_RESET)
        assert not endpoint.qps[qpn].receives
        endpoint.modify_qp(qpn, v.QPS_RTS, sq_psn=sq, rq_psn=rq)
    with pytest.raises(ValueError, match="RESET"):
        pair.b.modify_qp(B_QPN, v.QPS_RESET)
        pair.receive()
    pair.b.modify_qp(B_QPN, v.QPS_RTS)
    assert pair.feed_b(**GOOD)[0].syndrome == 0x60      # a packet of the old connection
    pair.send(v.WR_RDMA_WRITE, 4, wr_id=2)
    pair.run()
    assert [c.wr_id for c in pair.a.poll_cq()] == [2] and pair.wire[-1].msn == 1


# Refusals of verbs --------------------------------------------------------------------------------

def test_qp_arguments():
    endpoint = Endpoint("02:00:00:00:00:01", "10.0.0.1")
    for qpn in (0, 0xffffff, 1 << 24):
        with pytest.raises(ValueError, match="qpn must be free and"):
            endpoint.create_qp(qpn)
    endpoint.create_qp(5)
    with pytest.raises(ValueError, match="qpn must be free and"):
        endpoint.create_qp(5)
    with pytest.raises(ValueError, match="RC, UC or UD, not 'XRC'"):
        endpoint.create_qp(6, "XRC")
    for name, value, text in (("pmtu", 1000, "pmtu must be one of"), ("sq_psn", 1 << 24, "sq_psn must fit 24 bits"),
                              ("colour", 1, "no attribute 'colour'")):
        with pytest.raises(ValueError, match=text):
            endpoint.modify_qp(5, **{name: value})
    endpoint.destroy_qp(5)
    endpoint.create_qp(5)


def test_regions():
    table  = MemoryTable()
    region = table.register(0x1000, 16, ACCESS, key=7, pd=1)
    assert table.check(7, 0x1000, 16, ACCESS, 1) == (None, region)
    for row, key, va, length, access, pd in (
            ("MR_KEY", 8, 0x1000, 1, 0, 1), ("MR_PD", 7, 0x1000, 1, 0, 2), ("MR_BOUNDS", 7, 0xfff, 1, 0, 1),
            ("MR_BOUNDS", 7, 0x1000, 17, 0, 1), ("MR_BOUNDS", 7, 0x1010, 1, 0, 1), ("MR_BOUNDS", 7, (1 << 64) - 1, 2, 0, 1),
            ("MR_ACCESS", 7, 0x1000, 1, v.ACCESS_MW_BIND, 1)):
        assert table.check(key, va, length, access, pd) == (row, None)
    for arguments, text in ((((1 << 64) - 1, 2, 0), "2\\^64 bytes"), ((0, 1, v.ACCESS_REMOTE_WRITE), "LOCAL_WRITE")):
        with pytest.raises(ValueError, match=text):
            table.register(*arguments)
    with pytest.raises(ValueError, match="free 32-bit number, not 0x7"):
        table.register(0, 1, 0, key=7)
    with pytest.raises(ValueError, match="hold 4 bytes, not 2"):
        table.register(0, 4, 0, data=bytearray(2))
    keys = {table.register(0, 1, 0).key for _ in range(10)}
    assert len(keys) == 10


def test_windows_share_memory():
    table  = MemoryTable()
    region = table.register(0x1000, 64, ACCESS, key=7)
    window = table.window(7, 9, 0x1010, 16, v.ACCESS_REMOTE_WRITE)
    window.write(0x1010, b"abc")
    assert region.read(0x1010, 3) == b"abc" and table.check(9, 0x100f, 2, 0, 0)[0] == "MR_BOUNDS"


def test_poll_of_one_qp_leaves_the_rest():
    pair = Pair()
    pair.a.create_qp(0x99, dest_qpn=1, dst_ip="10.0.0.2", dst_mac=pair.b.mac)
    pair.a.post_recv(0x99, 5)
    pair.a.modify_qp(0x99, v.QPS_ERR)
    pair.send(v.WR_RDMA_WRITE, 4)
    pair.run()
    assert [c.wr_id for c in pair.a.poll_cq(0x99)] == [5] and [c.wr_id for c in pair.a.poll_cq()] == [1]


# Addresses on the wire ----------------------------------------------------------------------------

@pytest.mark.parametrize("fields", [
    {"vlan": 0x6064}, {"tos": 0x6a}, {"ttl": 3}, {"sport": 0xc123}])
def test_route_of_a_qp(fields):
    pair = Pair(**fields)
    pair.send(v.WR_RDMA_WRITE, 4)
    pair.run()
    assert len(pair.wire) == 2
    for packet in pair.wire:
        assert {name: getattr(packet, name) for name in fields} == fields


def test_source_port_is_the_same_both_ways():
    pair = Pair()
    pair.send(v.WR_RDMA_WRITE, 4)
    pair.run()
    assert {p.sport for p in pair.wire} == {0xc132}


def test_identification_counts():
    pair = Pair()
    for _ in range(3):
        pair.send(v.WR_RDMA_WRITE, 4)
    pair.run()
    assert [p.ip_id for p in pair.wire if p.dest_qpn == B_QPN] == [0, 1, 2]


def test_ipv6():
    a, b = Endpoint("02:00:00:00:00:01", "fd00::1"), Endpoint("02:00:00:00:00:02", "fd00::2")
    for me, peer, qpn, other, address, va, key in ((a, b, A_QPN, B_QPN, "fd00::2", A_VA, A_KEY),
                                                   (b, a, B_QPN, A_QPN, "fd00::1", B_VA, B_KEY)):
        me.reg_mr(va, 4096, ACCESS, key=key)
        me.create_qp(qpn, dest_qpn=other, dst_mac=peer.mac, dst_ip=address, flow_label=0x12345, access=ACCESS)
    a.post_send(A_QPN, 1, v.WR_RDMA_WRITE, va=A_VA, length=4, lkey=A_KEY, remote_va=B_VA, rkey=B_KEY)
    frame, = a.tx(0)
    assert frame[12:18].hex() == "86dd60012345" and b.rx(frame)
    a.rx(b.tx(0)[0])
    assert [c.status for c in a.poll_cq()] == [0]
