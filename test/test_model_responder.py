# SPDX-License-Identifier: BSD-2-Clause
"""Responder of the reference model: every check of its order, answers, completions, nothing else touched."""
import pytest

from roce_soc import opcodes as op
from roce_soc import verbs as v
from roce_soc.errors import ERRORS
from test.model.qp import RXE
from test.model_bench import ACCESS, A_QPN, B_KEY, B_QPN, B_VA, OTHER_PD, SIZE, Pair

WRITE, SEND = op.RC_WRITE_ONLY, op.RC_SEND_ONLY


def refused(pair, row, **packet):
    """Feed b one packet that a row refuses: answer, counter, state, completions, memory as the row says."""
    before  = bytes(pair.b.region.data)
    answers = pair.feed_b(**{"psn": 0x100, "ackreq": 1, **packet})
    error   = ERRORS[row]
    assert pair.b.counters == {row: 1}
    assert bytes(pair.b.region.data) == before
    if error.wire == "DROP":
        assert answers == []
    else:
        assert [a.name for a in answers] == ["RC_ACKNOWLEDGE"]
        expected = error.syndrome | (pair.qb.min_rnr_timer if error.wire == "RNR" else 0)
        assert (answers[0].syndrome, answers[0].psn, answers[0].msn) == (expected, packet.get("psn", 0x100), 0)
    assert v.QP_STATES[pair.qb.state] == ("ERR" if error.qp_effect == "ERR" else "RTS")
    return answers


def reth(length, va=B_VA, rkey=B_KEY):
    return {"va": va, "rkey": rkey, "dma_length": length}


# Refusals -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("row,packet", [
    ("OPCODE_SEQUENCE", {"opcode": op.RC_SEND_MIDDLE, "payload": bytes(256)}),
    ("OPCODE_SEQUENCE", {"opcode": op.RC_WRITE_LAST, "payload": bytes(4)}),
    ("LENGTH_PMTU", {"opcode": op.RC_SEND_FIRST, "payload": bytes(255)}),
    ("LENGTH_PMTU", {"opcode": op.RC_SEND_FIRST, "payload": bytes(257)}),
    ("LENGTH_PMTU", {"opcode": op.RC_WRITE_FIRST, "payload": bytes(252), **reth(512)}),
    ("LENGTH_PMTU", {"opcode": op.RC_WRITE_FIRST, "payload": bytes(255), "pad": 1, **reth(512)}),
    ("LENGTH_LAST", {"opcode": SEND, "payload": bytes(257)}),
    ("LENGTH_LAST", {"opcode": WRITE, "payload": bytes(260), **reth(260)}),
    ("LENGTH_LAST", {"opcode": op.RC_READ_REQUEST, "payload": bytes(4), **reth(4)}),
    ("LENGTH_LAST", {"opcode": SEND, "payload": bytes(4), "pad": 3, "pad_bytes": bytes(3)}),
    ("LENGTH_RETH", {"opcode": op.RC_WRITE_FIRST, "payload": bytes(256), **reth((1 << 31) + 1)}),
    ("LENGTH_RETH", {"opcode": op.RC_READ_REQUEST, **reth(0xffffffff)}),
    ("LENGTH_RESIDUE", {"opcode": WRITE, "payload": bytes(4), **reth(0)}),
    ("LENGTH_RESIDUE", {"opcode": WRITE, "payload": bytes(4), **reth(5)}),
    ("LENGTH_RESIDUE", {"opcode": WRITE, "payload": bytes(5), **reth(4)}),
    ("LENGTH_RESIDUE", {"opcode": op.RC_WRITE_FIRST, "payload": bytes(256), **reth(255)}),
    ("ATOMIC_ALIGN", {"opcode": op.RC_FETCH_ADD, "va": B_VA + 4, "rkey": B_KEY}),
    ("MR_KEY", {"opcode": WRITE, "payload": bytes(4), **reth(4, rkey=B_KEY ^ 1)}),
    ("MR_KEY", {"opcode": op.RC_READ_REQUEST, **reth(4, rkey=0)}),
    ("MR_KEY", {"opcode": op.RC_CMP_SWAP, "va": B_VA, "rkey": B_KEY + 0x100}),
    ("MR_BOUNDS", {"opcode": WRITE, "payload": bytes(4), **reth(4, va=B_VA + SIZE - 3)}),
    ("MR_BOUNDS", {"opcode": WRITE, "payload": bytes(4), **reth(4, va=B_VA - 1)}),
    ("MR_BOUNDS", {"opcode": op.RC_READ_REQUEST, **reth(8, va=(1 << 64) - 4)}),
    ("MR_BOUNDS", {"opcode": op.RC_READ_REQUEST, **reth(SIZE + 1)})])
def test_refusal_of_one_packet(row, packet):
    pair = Pair()
    pair.receive()
    refused(pair, row, **packet)
    done = pair.b.poll_cq()
    assert [(c.wr_id, c.status) for c in done] == [(100, v.WC_WR_FLUSH_ERR)]


@pytest.mark.parametrize("opcode,lost", [
    (op.RC_WRITE_ONLY, v.ACCESS_REMOTE_WRITE), (op.RC_READ_REQUEST, v.ACCESS_REMOTE_READ),
    (op.RC_FETCH_ADD, v.ACCESS_REMOTE_ATOMIC), (op.RC_CMP_SWAP, v.ACCESS_REMOTE_ATOMIC)])
def test_rights_of_qp_and_region(opcode, lost):
    packet = {"opcode": opcode, "va": B_VA, "rkey": B_KEY, "payload": bytes(4) if opcode == WRITE else b"", "dma_length": 4}
    refused(Pair(b={"access": ACCESS & ~lost}), "QP_ACCESS", **packet)
    pair = Pair()
    pair.b.region.access &= ~lost
    refused(pair, "MR_ACCESS", **packet)
    pair = Pair()
    pair.b.region.pd = OTHER_PD
    refused(pair, "MR_PD", **packet)


def test_no_read_resources():
    refused(Pair(b={"max_dest_rd_atomic": 0}), "READ_RESOURCES", opcode=op.RC_READ_REQUEST, **reth(4))


def test_receiver_not_ready():
    pair = Pair()
    refused(pair, "RNR", opcode=SEND, payload=b"1234")
    pair.receive()
    answers = pair.feed_b(opcode=SEND, payload=b"1234", psn=0x100, ackreq=1)
    assert (answers[0].syndrome, answers[0].msn) == (op.ACK_UNLIMITED, 1)
    assert [c.wr_id for c in pair.b.poll_cq()] == [100]


def test_receiver_not_ready_at_the_last_of_a_write_with_immediate():
    pair = Pair()
    pair.feed_b(opcode=op.RC_WRITE_FIRST, payload=b"\x55"*256, psn=0x100, **reth(260))
    answers = pair.feed_b(opcode=op.RC_WRITE_LAST_IMM, payload=b"abcd", psn=0x101, imm=9, ackreq=1)
    assert answers[0].syndrome >> 5 == 1 and pair.b.region.read(B_VA, 256) == b"\x55"*256
    pair.receive()
    answers = pair.feed_b(opcode=op.RC_WRITE_LAST_IMM, payload=b"abcd", psn=0x101, imm=9, ackreq=1)
    assert (answers[0].syndrome, answers[0].msn) == (0x1f, 1)
    done = pair.b.poll_cq()
    assert [(c.opcode, c.byte_len, c.imm) for c in done] == [(v.WC_RECV_RDMA_WITH_IMM, 260, 9)]


@pytest.mark.parametrize("profile,syndrome,status", [(None, 0x61, v.WC_LOC_LEN_ERR), (RXE, 0x63, v.WC_LOC_QP_OP_ERR)])
def test_send_longer_than_its_receive(profile, syndrome, status):
    pair = Pair(**({"profile": profile} if profile else {}))
    pair.receive(length=300)
    pair.receive(wr_id=101)
    assert pair.feed_b(opcode=op.RC_SEND_FIRST, payload=bytes(256), psn=0x100) == []
    answers = pair.feed_b(opcode=op.RC_SEND_LAST, payload=bytes(45), psn=0x101, ackreq=1)
    assert (answers[0].syndrome, answers[0].psn) == (syndrome, 0x101)
    assert [(c.wr_id, c.status) for c in pair.b.poll_cq()] == [(100, status), (101, v.WC_WR_FLUSH_ERR)]


@pytest.mark.parametrize("change", [{"lkey": B_KEY ^ 1}, {"va": B_VA + SIZE - 1}])
def test_receive_whose_buffer_is_not_ours(change):
    pair = Pair()
    pair.receive(**change)
    answers = pair.feed_b(opcode=SEND, payload=b"1234", psn=0x100, ackreq=1)
    assert answers[0].syndrome == op.NAK_REMOTE_OPERATIONAL
    assert [(c.wr_id, c.status, c.row) for c in pair.b.poll_cq()] == [(100, v.WC_LOC_PROT_ERR, "RECV_PROTECTION")]


@pytest.mark.parametrize("first,second", [
    (op.RC_SEND_FIRST, op.RC_SEND_ONLY), (op.RC_SEND_FIRST, op.RC_SEND_FIRST), (op.RC_SEND_FIRST, op.RC_WRITE_MIDDLE),
    (op.RC_SEND_FIRST, op.RC_READ_REQUEST), (op.RC_WRITE_FIRST, op.RC_SEND_LAST), (op.RC_WRITE_FIRST, op.RC_WRITE_ONLY),
    (op.RC_WRITE_FIRST, op.RC_CMP_SWAP)])
def test_opcode_sequence(first, second):
    pair = Pair()
    pair.receive()
    pair.feed_b(opcode=first, payload=bytes(256), psn=0x100, **(reth(512) if first == op.RC_WRITE_FIRST else {}))
    size = 0 if second in (op.RC_READ_REQUEST, op.RC_CMP_SWAP) else 256
    row  = op.OPCODES[second]
    answers = pair.feed_b(opcode=second, payload=bytes(size), psn=0x101,
                          **{k: x for k, x in reth(256).items() if row.header_length})
    assert (answers[0].syndrome, answers[0].psn) == (0x61, 0x101) and pair.qb.state == v.QPS_ERR
    assert pair.b.poll_cq()[0].status == (v.WC_REM_INV_REQ_ERR if first == op.RC_SEND_FIRST else v.WC_WR_FLUSH_ERR)


def test_write_ends_with_the_right_of_its_region():
    """A region that goes while a WRITE is under way: NAK from then on."""
    pair = Pair()
    pair.feed_b(opcode=op.RC_WRITE_FIRST, payload=bytes(256), psn=0x100, **reth(512))
    pair.b.memory.deregister(B_KEY)
    assert pair.feed_b(opcode=op.RC_WRITE_LAST, payload=bytes(256), psn=0x101)[0].syndrome == 0x62


# What is right ------------------------------------------------------------------------------------

@pytest.mark.parametrize("length", [0, 1, 4, 255, 256, 257, 511, 512, 513, 4096])
def test_lengths(length):
    pair = Pair()
    pair.receive(wr_id=1)
    pair.receive(wr_id=2)
    pair.send(v.WR_RDMA_WRITE, length, remote_va=B_VA + 8192)
    pair.send(v.WR_SEND, length)
    pair.send(v.WR_SEND_WITH_IMM, length, imm=0x01020304)
    pair.send(v.WR_RDMA_READ, length, va=A_ELSEWHERE, remote_va=B_VA + 16384)
    pair.run()
    sent = pair.a.region.read(A_START, length)
    assert pair.b.region.read(B_VA + 8192, length) == pair.b.region.read(B_VA, length) == sent
    assert pair.a.region.read(A_ELSEWHERE, length) == pair.b.region.read(B_VA + 16384, length)
    assert [c.status for c in pair.a.poll_cq()] == [0]*4
    assert [(c.byte_len, c.imm) for c in pair.b.poll_cq()] == [(length, None), (length, 0x01020304)]
    assert pair.wire[-1].msn == 4 and not pair.b.counters


A_START, A_ELSEWHERE = 0x1_0000_0000, 0x1_0000_8000


def test_zero_length_needs_no_key():
    pair = Pair()
    pair.send(v.WR_RDMA_WRITE, 0, remote_va=1, rkey=0xdead)
    pair.send(v.WR_RDMA_READ, 0, remote_va=(1 << 64) - 1, rkey=0xbeef)
    pair.run()
    assert [c.status for c in pair.a.poll_cq()] == [0, 0]


def test_atomics():
    pair = Pair()
    pair.b.region.write(B_VA, (0xffff_fffe).to_bytes(8, "little"))
    pair.send(v.WR_ATOMIC_FETCH_AND_ADD, 8, swap_add=3, compare=99)
    pair.send(v.WR_ATOMIC_CMP_AND_SWP, 8, va=A_START + 8, compare=0x1_0000_0001, swap_add=0x1122334455667788)
    pair.send(v.WR_ATOMIC_CMP_AND_SWP, 8, va=A_START + 16, compare=5, swap_add=0)
    pair.run()
    got = [int.from_bytes(pair.a.region.read(A_START + 8*i, 8), "little") for i in range(3)]
    assert got == [0xffff_fffe, 0x1_0000_0001, 0x1122334455667788]
    assert int.from_bytes(pair.b.region.read(B_VA, 8), "little") == 0x1122334455667788
    assert [c.opcode for c in pair.a.poll_cq()] == [v.WC_FETCH_ADD, v.WC_COMP_SWAP, v.WC_COMP_SWAP]


def test_send_with_invalidate():
    pair = Pair()
    pair.b.memory.window(B_KEY, 0x9999, B_VA, 64, v.ACCESS_REMOTE_WRITE)
    pair.receive()
    pair.send(v.WR_RDMA_WRITE, 16, rkey=0x9999)
    pair.send(v.WR_SEND_WITH_INV, 16, inv_rkey=0x9999)
    pair.run()
    done = pair.b.poll_cq()[0]
    assert (done.flags & v.WC_FLAG_WITH_INV, done.inv_rkey) == (v.WC_FLAG_WITH_INV, 0x9999)
    pair.send(v.WR_RDMA_WRITE, 16, rkey=0x9999)
    pair.run()
    assert [c.status for c in pair.a.poll_cq()] == [0, 0, v.WC_REM_ACCESS_ERR]


def test_invalidate_of_a_key_that_cannot():
    pair = Pair()
    pair.receive()
    assert pair.feed_b(opcode=op.RC_SEND_ONLY_INV, payload=b"1", inv_rkey=0x9999, psn=0x100, ackreq=1) == []
    assert [(c.status, c.row) for c in pair.b.poll_cq()] == [(v.WC_REM_INV_REQ_ERR, "INVALIDATE_KEY")]
    assert pair.qb.state == v.QPS_ERR


def test_ack_only_when_asked():
    pair = Pair()
    pair.receive()
    assert pair.feed_b(opcode=SEND, payload=b"1", psn=0x100) == []
    assert pair.feed_b(opcode=WRITE, payload=b"1", psn=0x101, ackreq=1, **reth(1))[0].psn == 0x101


def test_bits_that_do_not_matter():
    pair = Pair()
    answers = pair.feed_b(opcode=WRITE, payload=b"1", psn=0x100, ackreq=1, m=1, fecn=1, becn=1, resv6=0x3f, resv7=0x7f,
                          tos=3, ttl=1, udp_checksum=0x1234, **reth(1))
    assert answers[0].syndrome == op.ACK_UNLIMITED and pair.b.region.read(B_VA, 1) == b"1"


# Sequence -----------------------------------------------------------------------------------------

def test_one_nak_per_gap():
    pair = Pair()
    assert [a.syndrome for a in pair.feed_b(opcode=WRITE, payload=b"1", psn=0x102, **reth(1))] == [0x60]
    for psn in (0x103, 0x104, 0x102):
        assert pair.feed_b(opcode=WRITE, payload=b"1", psn=psn, ackreq=1, **reth(1)) == []
    assert pair.feed_b(opcode=WRITE, payload=b"1", psn=0x100, ackreq=1, **reth(1))[0].syndrome == 0x1f
    again = pair.feed_b(opcode=WRITE, payload=b"1", psn=0x102, **reth(1))
    assert [(a.syndrome, a.psn, a.msn) for a in again] == [(0x60, 0x101, 1)]
    assert pair.b.counters == {"PSN_SEQUENCE": 2, "PSN_SEQUENCE_AGAIN": 3}


@pytest.mark.parametrize("profile,count", [(None, 0), (RXE, 1)])
def test_behind_an_rnr_nak(profile, count):
    pair = Pair(**({"profile": profile} if profile else {}))
    assert pair.feed_b(opcode=SEND, payload=b"1", psn=0x100)[0].syndrome >> 5 == 1
    assert len(pair.feed_b(opcode=SEND, payload=b"1", psn=0x101)) == count
    assert pair.feed_b(opcode=SEND, payload=b"1", psn=0x102) == []


def test_duplicates_are_acknowledged_not_executed():
    pair = Pair()
    pair.receive()
    pair.feed_b(opcode=SEND, payload=b"1", psn=0x100)
    pair.feed_b(opcode=WRITE, payload=b"2", psn=0x101, **reth(1, va=B_VA + 99))
    pair.b.region.write(B_VA, b"XX")
    pair.b.region.write(B_VA + 99, b"Y")
    for packet in ({"opcode": SEND, "psn": 0x100}, {"opcode": WRITE, "psn": 0x101, **reth(1, rkey=0xbad)}):
        answers = pair.feed_b(payload=b"Z", ackreq=1, **packet)
        assert [(a.psn, a.syndrome, a.msn) for a in answers] == [(0x101, 0x1f, 2)]
    assert pair.b.region.read(B_VA, 2) + pair.b.region.read(B_VA + 99, 1) == b"XXY"
    assert len(pair.b.poll_cq()) == 1


def test_duplicate_read_reads_again():
    pair = Pair()
    pair.feed_b(opcode=op.RC_READ_REQUEST, psn=0x100, **reth(700))
    pair.b.region.write(B_VA + 256, b"new")
    whole = pair.feed_b(opcode=op.RC_READ_REQUEST, psn=0x100, **reth(700))
    assert [a.name[17:] for a in whole] == ["FIRST", "MIDDLE", "LAST"] and whole[1].payload[:3] == b"new"
    part = pair.feed_b(opcode=op.RC_READ_REQUEST, psn=0x101, **reth(444, va=B_VA + 256))
    assert [(a.name[17:], a.psn) for a in part] == [("FIRST", 0x101), ("LAST", 0x102)]
    assert pair.feed_b(opcode=op.RC_READ_REQUEST, psn=0x102, **reth(188, va=B_VA + 512))[0].name[17:] == "ONLY"
    assert pair.qb.responder.epsn == 0x103 and all(a.msn == 1 for a in whole + part if "AETH" in a.headers)


def test_partial_read_as_rxe():
    pair = Pair(profile=RXE)
    pair.feed_b(opcode=op.RC_READ_REQUEST, psn=0x100, **reth(700))
    part = pair.feed_b(opcode=op.RC_READ_REQUEST, psn=0x101, **reth(444, va=B_VA + 256))
    assert [a.name[17:] for a in part] == ["MIDDLE", "LAST"]


@pytest.mark.parametrize("change", [{"va": B_VA - 1, "dma_length": 4}, {"dma_length": 701}, {"rkey": B_KEY ^ 1}])
def test_duplicate_read_outside_what_was_read(change):
    pair = Pair()
    pair.feed_b(opcode=op.RC_READ_REQUEST, psn=0x100, **reth(700))
    assert pair.feed_b(opcode=op.RC_READ_REQUEST, psn=0x100, **{**reth(700), **change}) == []
    assert pair.b.counters["DUPLICATE_DROPPED"] == 1 and pair.qb.state == v.QPS_RTS


def test_duplicate_read_after_its_resource_was_used_again():
    pair = Pair(b={"max_dest_rd_atomic": 2})
    for psn in (0x100, 0x101, 0x102):
        pair.feed_b(opcode=op.RC_READ_REQUEST, psn=psn, **reth(4))
    assert pair.feed_b(opcode=op.RC_READ_REQUEST, psn=0x100, **reth(4)) == []
    assert len(pair.feed_b(opcode=op.RC_READ_REQUEST, psn=0x101, **reth(4))) == 1


def test_duplicate_atomic_gives_the_saved_result():
    pair = Pair()
    pair.b.region.write(B_VA, bytes(8))
    first = pair.feed_b(opcode=op.RC_FETCH_ADD, va=B_VA, rkey=B_KEY, swap_add=5, psn=0x100)[0]
    again = pair.feed_b(opcode=op.RC_FETCH_ADD, va=B_VA, rkey=B_KEY, swap_add=5, psn=0x100)[0]
    assert first.original == again.original == 0 and pair.b.region.read(B_VA, 1) == b"\x05"
    assert pair.feed_b(opcode=op.RC_FETCH_ADD, va=B_VA + 8, rkey=B_KEY, swap_add=5, psn=0x100) == []


def test_psn_wrap():
    pair = Pair(sq_psn=0xfffffe)
    pair.receive()
    pair.send(v.WR_SEND, 1000)
    pair.send(v.WR_RDMA_READ, 1000)
    pair.send(v.WR_RDMA_WRITE, 1)
    pair.run()
    assert [c.status for c in pair.a.poll_cq()] == [0, 0, 0] and pair.qb.responder.epsn == 7


def test_msn_counts_messages():
    pair = Pair()
    pair.receive()
    for opcode, length in ((v.WR_SEND, 600), (v.WR_RDMA_WRITE, 600), (v.WR_RDMA_READ, 600), (v.WR_ATOMIC_FETCH_AND_ADD, 8)):
        pair.send(opcode, length)
    pair.run()
    msn = {p.name: p.msn for p in pair.wire if p.dest_qpn == A_QPN}
    assert msn["RC_READ_RESPONSE_FIRST"] == msn["RC_READ_RESPONSE_LAST"] == 3 and msn["RC_ATOMIC_ACKNOWLEDGE"] == 4


# UC and UD ----------------------------------------------------------------------------------------

def test_uc_gap_costs_one_message():
    pair = Pair("UC")
    for wr_id in range(3):
        pair.receive(wr_id=wr_id, va=B_VA + 1024*wr_id)
    for wr_id, length in ((1, 600), (2, 601), (3, 602)):
        pair.send(v.WR_SEND, length, wr_id)
    pair.run(lambda p, n: None if n == 2 else p)
    assert [(c.wr_id, c.byte_len) for c in pair.b.poll_cq()] == [(0, 601), (1, 602)]
    assert [c.status for c in pair.a.poll_cq()] == [0, 0, 0] and pair.b.counters["UC_DROPPED"] == 1


@pytest.mark.parametrize("packet", [
    {"opcode": op.UC_SEND_MIDDLE, "payload": bytes(256)}, {"opcode": op.UC_SEND_FIRST, "payload": bytes(255)},
    {"opcode": op.UC_WRITE_ONLY, "payload": bytes(4), "va": B_VA, "rkey": 0xbad, "dma_length": 4},
    {"opcode": op.UC_SEND_ONLY, "payload": bytes(256)}, {"opcode": op.UC_SEND_ONLY_IMM, "payload": bytes(4)}])
def test_uc_refuses_in_silence(packet):
    pair = Pair("UC")
    if packet["opcode"] != op.UC_SEND_ONLY_IMM:
        pair.receive(length=255)
    assert pair.feed_b(psn=0x100, **packet) == [] and pair.qb.state == v.QPS_RTS
    assert not pair.b.poll_cq()
    pair.receive()
    pair.feed_b(opcode=op.UC_SEND_ONLY, payload=b"ok", psn=0x500)
    assert [c.byte_len for c in pair.b.poll_cq()] == [2]


def test_ud():
    pair = Pair("UD", qkey=0x11111111)
    pair.receive(wr_id=7)
    pair.receive(wr_id=8)
    address = {"dst_mac": pair.b.mac, "dst_ip": bytes((10, 0, 0, 2))}
    for length, opcode in ((100, v.WR_SEND), (0, v.WR_SEND_WITH_IMM)):
        pair.send(opcode, length, remote_qpn=B_QPN, remote_qkey=0x11111111, address=address, imm=5)
    pair.run()
    done = pair.b.poll_cq()
    assert [(c.wr_id, c.byte_len, c.src_qp, c.flags & 1, c.imm) for c in done] == [(7, 140, A_QPN, 1, None), (8, 40, A_QPN, 1, 5)]
    assert pair.b.region.read(B_VA + 20, 1) == b"\x45" and [c.status for c in pair.a.poll_cq()] == [0, 0]


def test_ud_drops():
    pair = Pair("UD", qkey=5)
    send = {"opcode": op.UD_SEND_ONLY, "payload": bytes(64), "src_qp": 9}
    pair.feed_b(qkey=5, **send)
    pair.receive(length=103)
    pair.feed_b(qkey=5, **send)
    pair.feed_b(qkey=6, **send)
    assert pair.b.counters == {"UD_DROPPED": 2, "QKEY": 1} and not pair.b.poll_cq()
