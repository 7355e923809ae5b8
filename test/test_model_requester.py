# SPDX-License-Identifier: BSD-2-Clause
"""Requester of the reference model: responses, retries, timers, errors, flush; loss of every packet."""
import pytest

from roce_soc import opcodes as op
from roce_soc import verbs as v
from test.model.packet import parse
from test.model.qp import RXE
from test.model_bench import A_KEY, A_QPN, A_VA, B_KEY, B_QPN, B_VA, SIZE, Pair

MS = 1_000_000


def statuses(endpoint):
    return [(c.wr_id, c.status) for c in endpoint.poll_cq()]


def acknowledge(pair, psn, syndrome=op.ACK_UNLIMITED, **fields):
    """Give a an ACK or NAK made by hand; returns what a sends then."""
    return pair.feed(pair.a, opcode=op.RC_ACKNOWLEDGE, psn=psn, syndrome=syndrome, **fields)


# Sending ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("opcode,length,names", [
    (v.WR_SEND, 0, "ONLY"), (v.WR_SEND, 256, "ONLY"), (v.WR_SEND, 257, "FIRST LAST"), (v.WR_SEND, 513, "FIRST MIDDLE LAST"),
    (v.WR_SEND_WITH_IMM, 257, "FIRST LAST_IMM"), (v.WR_SEND_WITH_INV, 3, "ONLY_INV"), (v.WR_RDMA_WRITE_WITH_IMM, 0, "ONLY_IMM"),
    (v.WR_RDMA_WRITE, 768, "FIRST MIDDLE LAST")])
def test_segmentation(opcode, length, names):
    pair = Pair()
    pair.send(opcode, length, flags=v.SEND_SIGNALED | v.SEND_SOLICITED)
    kind  = "WRITE" if opcode in (v.WR_RDMA_WRITE, v.WR_RDMA_WRITE_WITH_IMM) else "SEND"
    sent  = [parse(frame) for frame in pair.a.tx(0)]
    assert [p.name for p in sent] == [f"RC_{kind}_{n}" for n in names.split()]
    assert [p.psn for p in sent] == list(range(0x100, 0x100 + len(sent)))
    assert [p.ackreq for p in sent] == [0]*(len(sent) - 1) + [1]
    assert [p.se for p in sent] == [0]*(len(sent) - 1) + [int(opcode != v.WR_RDMA_WRITE)]
    assert b"".join(p.payload for p in sent) == pair.a.region.read(A_VA, length)
    assert [len(p.payload) for p in sent[:-1]] == [256]*(len(sent) - 1)


def test_read_takes_the_psns_of_its_answers():
    pair = Pair()
    pair.send(v.WR_RDMA_READ, 700, wr_id=1)
    pair.send(v.WR_RDMA_WRITE, 1, wr_id=2)
    pair.run()
    assert [p.psn for p in pair.wire if p.dest_qpn == B_QPN] == [0x100, 0x103]
    assert statuses(pair.a) == [(1, 0), (2, 0)]


def test_ackreq_inside_long_messages():
    pair = Pair()
    pair.send(v.WR_RDMA_WRITE, 256*200)
    pair.run()
    asked = [p.psn - 0x100 for p in pair.wire if p.dest_qpn == B_QPN and p.ackreq]
    assert asked == [64, 129, 194, 199]


def test_depth_of_reads():
    pair = Pair(a={"max_rd_atomic": 2})
    for wr_id in range(4):
        pair.send(v.WR_RDMA_READ, 4, wr_id)
    assert len(pair.a.tx(0)) == 2
    answer = pair.feed(pair.a, opcode=op.RC_READ_RESPONSE_ONLY, psn=0x100, payload=b"1234", syndrome=0x1f)
    assert [p.psn for p in answer] == [0x102]


def test_fence():
    pair = Pair()
    pair.send(v.WR_RDMA_READ, 4, 1)
    pair.send(v.WR_RDMA_WRITE, 4, 2, flags=v.SEND_SIGNALED | v.SEND_FENCE)
    assert len(pair.a.tx(0)) == 1
    assert len(pair.feed(pair.a, opcode=op.RC_READ_RESPONSE_ONLY, psn=0x100, payload=b"1234", syndrome=0x1f)) == 1


def test_unsignalled():
    pair = Pair(sq_sig_all=False)
    pair.send(v.WR_RDMA_WRITE, 4, 1, flags=0)
    pair.send(v.WR_RDMA_WRITE, 4, 2)
    pair.send(v.WR_RDMA_WRITE, 4, 3, flags=0, rkey=0)
    pair.run()
    assert statuses(pair.a) == [(2, 0), (3, v.WC_REM_ACCESS_ERR)]


def test_inline_is_taken_at_post():
    pair = Pair()
    pair.a.region.write(A_VA, b"then")
    pair.send(v.WR_RDMA_WRITE, 4, flags=v.SEND_SIGNALED | v.SEND_INLINE)
    pair.a.region.write(A_VA, b"now!")
    pair.run()
    assert pair.b.region.read(B_VA, 4) == b"then"


def test_local_invalidate():
    pair = Pair()
    pair.a.memory.window(A_KEY, 0x777, A_VA, 64, 0)
    pair.send(v.WR_RDMA_WRITE, 4, 1)
    pair.send(v.WR_LOCAL_INV, 0, 2, inv_rkey=0x777)
    pair.send(v.WR_RDMA_WRITE, 4, 3)
    pair.run()
    assert statuses(pair.a) == [(1, 0), (2, 0), (3, 0)] and 0x777 not in pair.a.memory.regions


# Own errors ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("row,status,work", [
    ("LOCAL_PROTECTION", v.WC_LOC_PROT_ERR, {"opcode": v.WR_SEND, "lkey": A_KEY ^ 1}),
    ("LOCAL_PROTECTION", v.WC_LOC_PROT_ERR, {"opcode": v.WR_SEND, "va": A_VA + SIZE - 63}),
    ("LOCAL_PROTECTION", v.WC_LOC_PROT_ERR, {"opcode": v.WR_RDMA_READ, "lkey": 0x777}),
    ("LOCAL_LENGTH", v.WC_LOC_LEN_ERR, {"opcode": v.WR_RDMA_WRITE, "length": (1 << 31) + 1}),
    ("LOCAL_LENGTH", v.WC_LOC_LEN_ERR, {"opcode": v.WR_ATOMIC_FETCH_AND_ADD, "length": 4}),
    ("LOCAL_OPERATION", v.WC_LOC_QP_OP_ERR, {"opcode": v.WR_BIND_MW}),
    ("LOCAL_OPERATION", v.WC_LOC_QP_OP_ERR, {"opcode": v.WR_LOCAL_INV, "inv_rkey": 5})])
def test_own_errors_after_the_ones_before(row, status, work):
    pair = Pair()
    pair.a.memory.window(A_KEY, 0x777, A_VA, 64, 0)
    pair.send(v.WR_RDMA_WRITE, 64, 1)
    pair.send(wr_id=2, **work)
    pair.send(v.WR_RDMA_WRITE, 64, 3)
    pair.run()
    assert statuses(pair.a) == [(1, 0), (2, status), (3, v.WC_WR_FLUSH_ERR)]
    assert pair.a.counters[row] == 1 and pair.qa.state == v.QPS_ERR and pair.a.events == [("QP_FATAL", A_QPN)]


@pytest.mark.parametrize("length,statuses_", [(1024, [(1, 0)]), (1025, [(1, v.WC_LOC_LEN_ERR)])])
def test_ud_message_fits_one_packet(length, statuses_):
    pair = Pair("UD", pmtu=1024)
    pair.send(v.WR_SEND, length, remote_qpn=B_QPN)
    pair.a.tx(0)
    assert statuses(pair.a) == statuses_


def test_no_reads_allowed():
    pair = Pair(a={"max_rd_atomic": 0})
    pair.send(v.WR_RDMA_READ, 4)
    pair.run()
    assert statuses(pair.a) == [(1, v.WC_LOC_QP_OP_ERR)]


def test_response_that_cannot_be_placed():
    pair = Pair()
    pair.send(v.WR_RDMA_READ, 4)
    pair.a.tx(0)
    pair.a.region.access = 0
    pair.feed(pair.a, opcode=op.RC_READ_RESPONSE_ONLY, psn=0x100, payload=b"1234", syndrome=0x1f)
    assert statuses(pair.a) == [(1, v.WC_LOC_PROT_ERR)] and pair.a.counters["RESPONSE_MEMORY"] == 1


@pytest.mark.parametrize("syndrome,status,row", [
    (0x61, v.WC_REM_INV_REQ_ERR, "NAK_INVALID"), (0x62, v.WC_REM_ACCESS_ERR, "NAK_ACCESS"),
    (0x63, v.WC_REM_OP_ERR, "NAK_OPERATIONAL"), (0x64, v.WC_REM_OP_ERR, "NAK_OPERATIONAL")])
def test_nak_ends_the_right_one(syndrome, status, row):
    pair = Pair()
    for wr_id in range(1, 5):
        pair.send(v.WR_RDMA_WRITE, 300, wr_id)
    pair.a.tx(0)
    acknowledge(pair, 0x105, syndrome)
    assert statuses(pair.a) == [(1, 0), (2, 0), (3, status), (4, v.WC_WR_FLUSH_ERR)] and pair.a.counters[row] == 1


# Responses that must not move anything ------------------------------------------------------------

@pytest.mark.parametrize("row,psn,syndrome", [
    ("ACK_GHOST", 0x0ff, 0x1f), ("ACK_GHOST", 0x0ff, 0x62), ("ACK_BEYOND_SENT", 0x102, 0x1f),
    ("ACK_BEYOND_SENT", 0x102, 0x60), ("SYNDROME_RESERVED", 0x100, 0x40), ("SYNDROME_RESERVED", 0x100, 0x9f),
    ("SYNDROME_RESERVED", 0x101, 0x7f)])
def test_ignored_responses(row, psn, syndrome):
    pair = Pair()
    pair.send(v.WR_RDMA_WRITE, 300)
    pair.a.tx(0)
    assert acknowledge(pair, psn, syndrome) == [] and statuses(pair.a) == []
    assert pair.a.counters == {row: 1} and pair.qa.requester.una == 0x100
    acknowledge(pair, 0x101)
    assert statuses(pair.a) == [(1, 0)]


def test_one_ack_for_all():
    pair = Pair()
    for wr_id in range(1, 4):
        pair.send(v.WR_RDMA_WRITE, 300, wr_id)
    pair.a.tx(0)
    acknowledge(pair, 0x104)
    assert statuses(pair.a) == [(1, 0), (2, 0)] and pair.qa.requester.una == 0x105
    acknowledge(pair, 0x105)
    assert statuses(pair.a) == [(3, 0)] and pair.a.next_deadline() is None


@pytest.mark.parametrize("opcode,payload,status,row", [
    (op.RC_READ_RESPONSE_MIDDLE, 256, v.WC_BAD_RESP_ERR, "BAD_RESPONSE"),
    (op.RC_READ_RESPONSE_ONLY, 256, v.WC_BAD_RESP_ERR, "BAD_RESPONSE"),
    (op.RC_READ_RESPONSE_FIRST, 252, v.WC_LOC_LEN_ERR, "READ_LENGTH"),
    (op.RC_ATOMIC_ACKNOWLEDGE, 0, v.WC_BAD_RESP_ERR, "BAD_RESPONSE")])
def test_responses_that_do_not_fit(opcode, payload, status, row):
    pair = Pair()
    pair.send(v.WR_RDMA_READ, 600)
    pair.a.tx(0)
    pair.feed(pair.a, opcode=opcode, psn=0x100, payload=bytes(payload), syndrome=0x1f)
    assert statuses(pair.a) == [(1, status)] and pair.a.counters == {row: 1}


@pytest.mark.parametrize("syndrome", [0x62, 0x20, 0x80])
def test_read_response_that_is_no_ack(syndrome):
    pair = Pair()
    pair.send(v.WR_RDMA_READ, 4)
    pair.a.tx(0)
    pair.feed(pair.a, opcode=op.RC_READ_RESPONSE_ONLY, psn=0x100, payload=b"1234", syndrome=syndrome)
    assert statuses(pair.a) == [] and pair.a.counters == {"SYNDROME_RESERVED": 1}


def test_read_response_for_a_write():
    pair = Pair()
    pair.send(v.WR_RDMA_WRITE, 4)
    pair.a.tx(0)
    pair.feed(pair.a, opcode=op.RC_READ_RESPONSE_ONLY, psn=0x100, payload=b"1234", syndrome=0x1f)
    assert statuses(pair.a) == [(1, v.WC_BAD_RESP_ERR)]


# Retries ------------------------------------------------------------------------------------------

def test_sequence_nak_goes_back():
    pair = Pair()
    pair.send(v.WR_RDMA_WRITE, 1000)
    pair.a.tx(0)
    again = acknowledge(pair, 0x102, 0x60)
    assert [(p.name[9:], p.psn) for p in again] == [("MIDDLE", 0x102), ("LAST", 0x103)]
    assert pair.qa.requester.una == 0x102


def test_implied_nak_by_a_later_ack():
    pair = Pair()
    pair.send(v.WR_RDMA_WRITE, 4, 1)
    pair.send(v.WR_RDMA_READ, 4, 2)
    pair.send(v.WR_RDMA_WRITE, 4, 3)
    pair.a.tx(0)
    again = acknowledge(pair, 0x102)
    assert statuses(pair.a) == [(1, 0)] and [p.psn for p in again] == [0x101, 0x102]
    assert pair.a.counters["IMPLIED_NAK"] == 1
    assert acknowledge(pair, 0x102) == []


def test_ack_without_data_for_a_read():
    pair = Pair()
    pair.send(v.WR_RDMA_READ, 4)
    pair.a.tx(0)
    assert [p.name for p in acknowledge(pair, 0x100)] == ["RC_READ_REQUEST"]


def test_read_is_resumed_where_it_broke():
    pair = Pair()
    pair.send(v.WR_RDMA_READ, 1000)
    pair.run(lambda p, n: None if p.name == "RC_READ_RESPONSE_MIDDLE" and p.psn == 0x101 and n < 5 else p)
    request = [p for p in pair.wire if p.name == "RC_READ_REQUEST"][1]
    assert (request.psn, request.va, request.dma_length) == (0x101, B_VA + 256, 744)
    assert statuses(pair.a) == [(1, 0)] and pair.a.region.read(A_VA, 1000) == pair.b.region.read(B_VA, 1000)


@pytest.mark.parametrize("retry_cnt", [0, 1, 3, 7])
def test_retries_are_counted(retry_cnt):
    pair = Pair(retry_cnt=retry_cnt)
    pair.send(v.WR_RDMA_WRITE, 4, 1)
    pair.send(v.WR_RDMA_WRITE, 4, 2)
    pair.let_pass(lambda p, n: None)
    assert sum(p.psn == 0x100 for p in pair.wire) == retry_cnt + 1
    assert statuses(pair.a) == [(1, v.WC_RETRY_EXC_ERR), (2, v.WC_WR_FLUSH_ERR)]
    assert pair.now == (retry_cnt + 1)*op.ack_timeout_ns(14) and pair.a.counters == {"RETRY_EXCEEDED": 1}


def test_retry_7_of_rxe_never_ends():
    pair = Pair(profile=RXE, retry_cnt=7)
    pair.send(v.WR_RDMA_WRITE, 4)
    with pytest.raises(AssertionError, match="timers never end"):
        pair.let_pass(lambda p, n: None)


def test_progress_reloads_the_count():
    pair = Pair(retry_cnt=1)
    for wr_id in range(1, 6):
        pair.send(v.WR_RDMA_WRITE, 4, wr_id)
    lost = {}

    def lose(packet, number):
        lost[packet.psn] = lost.get(packet.psn, 0) + 1
        return None if packet.dest_qpn == B_QPN and lost[packet.psn] == 1 else packet
    pair.let_pass(lose)
    assert [status for _, status in statuses(pair.a)] == [0]*5


def test_timeout_0_is_no_timer():
    pair = Pair(timeout=0)
    pair.send(v.WR_RDMA_WRITE, 4)
    pair.let_pass(lambda p, n: None)
    assert pair.a.next_deadline() is None and statuses(pair.a) == []


@pytest.mark.parametrize("code,wait", [(0, 655_360_000), (1, 10_000), (14, 1_280_000), (31, 491_520_000)])
def test_rnr_wait(code, wait):
    pair = Pair(b={"min_rnr_timer": code})
    pair.send(v.WR_SEND, 4)
    pair.run()
    assert pair.a.next_deadline() == wait
    pair.receive()
    pair.a.tick(wait - 1)
    assert pair.a.tx(wait - 1) == []
    pair.let_pass()
    assert statuses(pair.a) == [(1, 0)] and statuses(pair.b) == [(100, 0)] and pair.now == wait


@pytest.mark.parametrize("rnr_retry", [0, 1, 6])
def test_rnr_retries_are_counted(rnr_retry):
    pair = Pair(rnr_retry=rnr_retry)
    pair.send(v.WR_SEND, 4, 1)
    pair.send(v.WR_SEND, 4, 2)
    pair.let_pass()
    assert sum(p.name == "RC_SEND_ONLY" and p.psn == 0x100 for p in pair.wire) == rnr_retry + 1
    done = pair.a.poll_cq()
    assert [(c.wr_id, c.status) for c in done] == [(1, v.WC_RNR_RETRY_EXC_ERR), (2, v.WC_WR_FLUSH_ERR)]
    assert [c.row for c in done] == ["RNR_EXCEEDED", "FLUSH"]


def test_rnr_retry_7_never_ends():
    pair = Pair(rnr_retry=7)
    pair.send(v.WR_SEND, 4)
    with pytest.raises(AssertionError, match="timers never end"):
        pair.let_pass()


def test_sequence_nak_does_not_cut_an_rnr_wait():
    pair = Pair()
    pair.send(v.WR_SEND, 4, 1)
    pair.send(v.WR_SEND, 4, 2)
    pair.a.tx(0)
    assert acknowledge(pair, 0x100, 0x20 | 14) == []
    assert acknowledge(pair, 0x100, 0x60) == []
    assert pair.a.next_deadline() == 1_280_000 and pair.qa.requester.retries == 7


def test_progress_ends_an_rnr_wait():
    """What was refused is acknowledged after all: sequence NAKs, new RNR NAKs and the timer count again."""
    pair = Pair(rnr_retry=7)
    for _ in range(2):
        pair.send(v.WR_SEND, 3)
    pair.a.tx(0)
    assert not acknowledge(pair, 0x100, op.SYNDROME_RNR)
    assert [p.psn for p in acknowledge(pair, 0x100)] == [0x101]
    assert [p.psn for p in acknowledge(pair, 0x101, op.NAK_PSN_SEQUENCE)] == [0x101]
    assert not acknowledge(pair, 0x101, op.SYNDROME_RNR | 1)
    assert pair.a.next_deadline() == 10_000


def test_window_stays_below_half_the_psns():
    pair = Pair(profile=RXE)
    pair.send(v.WR_RDMA_WRITE, 256*200)
    assert len(pair.a.tx(0)) == 128


def test_remote_key_is_never_granted_by_accident():
    pair = Pair()
    pair.send(v.WR_RDMA_WRITE, 4, rkey=B_KEY ^ 0x80)
    pair.run()
    assert statuses(pair.a) == [(1, v.WC_REM_ACCESS_ERR)]
