# SPDX-License-Identifier: BSD-2-Clause
"""transport/responder with its neighbours: the responder cases of the conformance list, table driven."""
import random

import pytest

from roce_soc import abi
from roce_soc.common import CTL_ERR
from roce_soc.transport.responder.responder import RoCEResponder
from roce_soc.verbs import (
    WC_LOC_LEN_ERR, WC_LOC_PROT_ERR, WC_LOC_QP_OP_ERR, WC_RECV, WC_RECV_RDMA_WITH_IMM, WC_REM_ACCESS_ERR,
    WC_REM_INV_REQ_ERR, WC_WR_FLUSH_ERR)
from sim.harness import emit
from test.responder_bench import *

ACK, SEQ, INV, ACC, OPER, RNR12 = 0x1f, 0x60, 0x61, 0x62, 0x63, 0x2c


@pytest.fixture(scope="module")
def so():
    return compiled()


def data_of(n, seed=1):
    return random.Random(seed*100003 + n).randbytes(n)


def statuses(b):
    return [(c.wr_id & 0xffff, c.status) for c in b.take("cqes")]


@pytest.mark.parametrize("n_qps", [256, 4096])
def test_sizes(n_qps):
    top = ResponderSide(n_qps)
    text, _ = emit(top, top.ports())
    assert "module top" in text


@pytest.mark.parametrize("n_qps", [0, 8, 100, 8192])
def test_bad_size(n_qps):
    with pytest.raises(ValueError, match="n_qps must be"):
        RoCEResponder(n_qps, None, None, None, None)


# Good cases ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("size", [0, 1, 3, 64, 255, 256, 257, 512, 1000, 4096])
@pytest.mark.parametrize("kind", ["SEND", "WRITE"])
def test_messages(so, kind, size):
    b = Bench(so, seed=size)
    b.qp(2, psn=0xfffffe)                                             # wraps: case 23.
    b.post(2)
    data = data_of(size)
    if kind == "SEND":
        b.message(2, "SEND", data, imm=0xcafe0001)
    else:
        b.write(2, data, offset=77, imm=0xcafe0001)
    b.idle()
    psn = (0xfffffe + packets(size, 256) - 1) & 0xffffff
    assert b.answers() == [("ACK", psn, ACK, 1)]
    place = (LOCAL_ADDR if kind == "SEND" else REMOTE_ADDR + 77)
    assert b.memory.read(place, size) == data
    cqe, = b.cqes
    assert (cqe.wr_id, cqe.byte_len, cqe.imm, cqe.status, cqe.flags, cqe.cqn, cqe.qpn, cqe.slot) == (
        2 << 32, size, 0xcafe0001, 0, 2, 5, 0x102, 0)
    assert cqe.opcode == (WC_RECV if kind == "SEND" else WC_RECV_RDMA_WITH_IMM)
    assert not b.refusals and not b.events


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 768, 1000, 5000])
def test_read(so, size):
    b = Bench(so, seed=size)
    b.qp(2, psn=0xffffff)
    b.memory.write(REMOTE_ADDR, data := data_of(8192))
    b.read(2, size, offset=33)
    b.run(300)
    tx = b.take("tx")
    b.write(2, b"next PSN")
    b.idle()
    assert b.answers() == [("ACK", (0xffffff + packets(size, 256)) & 0xffffff, ACK, 2)]
    assert b"".join(chunk for *_, chunk in tx) == data[33:33 + size]
    n = packets(size, 256)
    assert [psn for _, _, psn, *_ in tx] == [(0xffffff + k) & 0xffffff for k in range(n)]
    names = [name for _, name, *_ in tx]
    assert names == (["READ_RESPONSE_ONLY"] if n == 1 else
                     ["READ_RESPONSE_FIRST"] + ["READ_RESPONSE_MIDDLE"]*(n - 2) + ["READ_RESPONSE_LAST"])
    assert all(packet.msn == 1 for *_, packet, _ in tx)


def test_write_carries_its_address_past_32_bits(so):
    b = Bench(so)
    b.region(0x0777, 7, 0xffff_0000, REMOTE_ADDR)
    b.qp(1)
    b.message(1, "WRITE", data := data_of(1500), va=0x1_0000_0000 - 300, rkey=0x0777)
    b.idle()
    assert b.memory.read(REMOTE_ADDR + 0x10000 - 300, 1500) == data and not b.refusals


def test_zero_length_needs_no_key(so):                                # case 35
    b = Bench(so)
    b.qp(1)
    b.send(1, "WRITE_ONLY", va=1 << 63, rkey=0xdeadbeef, dma_length=0, ackreq=1)
    b.read(1, 0, va=5, rkey=0xdeadbeef)
    b.idle()
    assert b.answers() == [("ACK", 100, ACK, 1), ("READ_ONLY", 101, 0, 2)]


def test_msn_ackreq_and_order(so):                                    # cases 36, 37, 38
    b = Bench(so)
    b.qp(1)
    for _ in range(3):
        b.post(1)
    b.write(1, data_of(600), ackreq=0)                                # 100..102, no ACK asked
    b.message(1, "SEND", data_of(10))                                 # 103
    b.read(1, 600)                                                    # 104..106
    b.message(1, "SEND", data_of(300))                                # 107, 108
    b.read(1, 5)                                                      # 109
    b.write(1, b"x")                                                  # 110
    b.idle()
    answers = b.answers()
    # ACKs may be coalesced, never reordered.
    assert [a for a in answers if a[0] != "ACK"] == [
        ("READ_FIRST", 104, 256, 3), ("READ_MIDDLE", 105, 256, 3), ("READ_LAST", 106, 88, 3), ("READ_ONLY", 109, 5, 5)]
    assert [a[1] for a in answers] == sorted(a[1] for a in answers)
    assert answers[0] == ("ACK", 103, ACK, 2) and answers[-1] == ("ACK", 110, ACK, 6)
    assert [c.byte_len for c in b.cqes] == [10, 300]


def test_solicited(so):                                               # case 49
    b = Bench(so)
    b.qp(1)
    for _ in range(2):
        b.post(1)
    b.send(1, "SEND_ONLY", b"abcd", se=1)
    b.send(1, "SEND_ONLY", b"abcd", se=0)
    b.idle()
    assert [c.solicited for c in b.cqes] == [1, 0]


# Sequence -----------------------------------------------------------------------------------------

def test_gap_answers_once(so):                                        # cases 21, 22
    b = Bench(so)
    b.qp(1)
    for psn in (102, 103, 101):
        b.send(1, "WRITE_ONLY", b"abcd", psn=psn, va=REMOTE_VA, rkey=RKEY, dma_length=4, ackreq=1)
    b.run()
    assert b.answers() == [("ACK", 100, SEQ, 0)]
    assert b.take("refusals") == ["PSN_SEQUENCE", "PSN_SEQUENCE_AGAIN", "PSN_SEQUENCE_AGAIN"]
    b.send(1, "WRITE_ONLY", b"abcd", psn=100, va=REMOTE_VA, rkey=RKEY, dma_length=4, ackreq=1)
    b.run()
    b.send(1, "WRITE_ONLY", b"abcd", psn=105, va=REMOTE_VA, rkey=RKEY, dma_length=4, ackreq=1)
    b.idle()
    assert b.answers() == [("ACK", 100, ACK, 1), ("ACK", 101, SEQ, 1)]
    assert not b.events


def test_duplicates_are_answered_not_executed(so):                    # cases 24, 25
    b = Bench(so)
    b.qp(1)
    b.post(1)
    b.message(1, "SEND", b"once")
    b.write(1, b"data")
    b.run()
    b.take("tx"), b.take("cqes")
    b.memory.write(REMOTE_ADDR, b"new!")
    b.region(RKEY, 0, 0, 0, valid_row=0)
    b.post(1)
    b.send(1, "SEND_ONLY", b"once", psn=100, ackreq=1)
    b.run()
    b.send(1, "WRITE_ONLY", b"data", psn=101, va=REMOTE_VA, rkey=RKEY, dma_length=4, ackreq=1)
    b.idle()
    assert b.answers() == [("ACK", 101, ACK, 2)]*2
    assert b.memory.read(REMOTE_ADDR, 4) == b"new!" and not b.cqes and not b.events
    assert b.refusals == ["PSN_DUPLICATE"]*2


def test_duplicate_read(so):                                          # cases 26, 27
    b = Bench(so)
    b.qp(1)
    b.memory.write(REMOTE_ADDR, old := data_of(2000))
    b.read(1, 1000)                                                   # 100..103
    b.write(1, b"behind", offset=5000)                                # 104
    b.run(400)
    b.take("tx")
    b.memory.write(REMOTE_ADDR, new := data_of(2000, 2))
    assert old != new
    b.read(1, 1000, psn=100)
    b.run(400)
    assert [(n, p, d) for _, n, p, _, d in b.take("tx")] == [
        ("READ_RESPONSE_FIRST", 100, new[:256]), ("READ_RESPONSE_MIDDLE", 101, new[256:512]),
        ("READ_RESPONSE_MIDDLE", 102, new[512:768]), ("READ_RESPONSE_LAST", 103, new[768:1000])]
    b.read(1, 488, psn=102, offset=512)                               # restart in the middle begins with FIRST.
    b.run(400)
    assert [(n, p, d) for _, n, p, _, d in b.take("tx")] == [
        ("READ_RESPONSE_FIRST", 102, new[512:768]), ("READ_RESPONSE_LAST", 103, new[768:1000])]
    b.take("refusals")
    for fields in (dict(rkey=LKEY), dict(length=1001), dict(offset=1), dict(psn=99), dict(psn=101)):
        fields = {**dict(length=1000, psn=100, offset=0), **fields}
        b.read(1, **fields)
        b.run(400)
        assert b.answers() == [], fields
        assert b.take("refusals") == ["DUPLICATE_DROPPED"], fields
    assert not b.events


def test_old_read_resource_is_forgotten(so):                          # case 27: used again
    b = Bench(so)
    b.qp(1)
    for _ in range(17):
        b.read(1, 8)
        b.run(60)
    b.take("tx")
    b.read(1, 8, psn=101)
    b.run(400)
    assert [a[:2] for a in b.answers()][0] == ("READ_ONLY", 101)
    b.run(2000)
    b.take("tx"), b.take("refusals")
    b.read(1, 8, psn=100)
    b.run(400)
    assert b.answers() == [] and b.refusals == ["DUPLICATE_DROPPED"]


def test_duplicate_read_in_a_write(so):                               # T2
    b = Bench(so)
    b.qp(1)
    b.memory.write(REMOTE_ADDR, data := data_of(600))
    b.read(1, 300)                                                    # 100, 101
    b.send(1, "WRITE_FIRST", data[:256], va=REMOTE_VA + 4096, rkey=RKEY, dma_length=300)
    b.run(300)
    b.take("tx")
    b.read(1, 300, psn=100)
    b.send(1, "WRITE_LAST", data[256:300], ackreq=1)
    b.idle()
    assert b.answers() == [("READ_FIRST", 100, 256, 1), ("READ_LAST", 101, 44, 1), ("ACK", 103, ACK, 2)]
    assert b.memory.read(REMOTE_ADDR + 4096, 300) == data[:300]


# Refusals -----------------------------------------------------------------------------------------

def W(op, size, dma=None, **fields):
    """A WRITE packet of `size` bytes."""
    fields = {**dict(ackreq=1), **fields}
    if dma is not None:
        fields = {**dict(va=REMOTE_VA, rkey=RKEY, dma_length=dma), **fields}
    return ("WRITE_" + op, size, fields)

def S(op, size, **fields):
    return ("SEND_" + op, size, {**dict(ackreq=1), **fields})

def R(size, length=0, **fields):
    return ("READ_REQUEST", length, {**dict(va=REMOTE_VA, rkey=RKEY, dma_length=size), **fields})

OTHER_PD, READ_ONLY, NO_ACCESS, TOP = 0x0333, 0x0444, 0x0555, 0x0666

# case, packets, row, syndrome, status of the receive in use (None: none is).
FATAL = [
    ("29a", [S("MIDDLE", 256)], "OPCODE_SEQUENCE", INV, None),
    ("29b", [S("FIRST", 256), S("ONLY", 4)], "OPCODE_SEQUENCE", INV, WC_REM_INV_REQ_ERR),
    ("29c", [S("FIRST", 256), W("MIDDLE", 256)], "OPCODE_SEQUENCE", INV, WC_REM_INV_REQ_ERR),
    ("29d", [W("FIRST", 256, 512), S("LAST", 256)], "OPCODE_SEQUENCE", INV, None),
    ("29e", [W("FIRST", 256, 512), R(4)], "OPCODE_SEQUENCE", INV, None),
    ("29f", [W("LAST", 4)], "OPCODE_SEQUENCE", INV, None),
    ("30a", [S("FIRST", 256), S("LAST", 0)], "LENGTH_LAST", INV, WC_REM_INV_REQ_ERR),
    ("30b", [W("FIRST", 256, 256), W("LAST", 0)], "LENGTH_LAST", INV, None),
    ("31a", [S("ONLY", 257)], "LENGTH_LAST", INV, WC_REM_INV_REQ_ERR),
    ("31b", [W("ONLY", 257, 257)], "LENGTH_LAST", INV, None),
    ("31c", [S("FIRST", 256), S("LAST", 260)], "LENGTH_LAST", INV, WC_REM_INV_REQ_ERR),
    ("32a", [S("FIRST", 255)], "LENGTH_PMTU", INV, WC_REM_INV_REQ_ERR),
    ("32b", [S("FIRST", 257)], "LENGTH_PMTU", INV, WC_REM_INV_REQ_ERR),
    ("32c", [W("FIRST", 256, 1024), W("MIDDLE", 128)], "LENGTH_PMTU", INV, None),
    ("32d", [W("FIRST", 256, 1024, pad=1)], "LENGTH_PMTU", INV, None),
    ("16a", [S("ONLY", 5, pad=0)], "LENGTH_LAST", INV, WC_REM_INV_REQ_ERR),
    ("16b", [S("ONLY", 4, pad=2)], "LENGTH_LAST", INV, WC_REM_INV_REQ_ERR),
    ("33a", [W("ONLY", 8, 9)], "LENGTH_RESIDUE", INV, None),
    ("33b", [W("ONLY", 8, 7)], "LENGTH_RESIDUE", INV, None),
    ("33c", [W("ONLY", 8, 0)], "LENGTH_RESIDUE", INV, None),
    ("33d", [W("FIRST", 256, 300), W("LAST", 43)], "LENGTH_RESIDUE", INV, None),
    ("33e", [W("FIRST", 256, 300), W("LAST", 45)], "LENGTH_RESIDUE", INV, None),
    ("33f", [W("FIRST", 256, 255)], "LENGTH_RESIDUE", INV, None),
    ("33g", [W("FIRST", 256, 300), W("MIDDLE", 256)], "LENGTH_RESIDUE", INV, None),
    ("33h", [R(8, 4)], "LENGTH_LAST", INV, None),
    ("34a", [W("FIRST", 256, (1 << 31) + 1)], "LENGTH_RETH", INV, None),
    ("34b", [R((1 << 31) + 1)], "LENGTH_RETH", INV, None),
    ("42a", [S("ONLY", 101)], "LENGTH_RECV", INV, WC_LOC_LEN_ERR),
    ("44a", [W("ONLY", 8, 8, rkey=OTHER_PD)], "MR_PD", ACC, None),
    ("44b", [W("ONLY", 8, 8, rkey=RKEY ^ 1)], "MR_KEY", ACC, None),
    ("44c", [W("ONLY", 8, 8, va=REMOTE_VA + REGION - 7)], "MR_BOUNDS", ACC, None),
    ("44d", [W("ONLY", 8, 8, va=REMOTE_VA - 1)], "MR_BOUNDS", ACC, None),
    ("44e", [W("ONLY", 8, 8, rkey=TOP, va=(1 << 64) - 4)], "MR_BOUNDS", ACC, None),
    ("44f", [W("ONLY", 8, 8, rkey=READ_ONLY)], "MR_ACCESS", ACC, None),
    ("44g", [R(8, rkey=NO_ACCESS)], "MR_ACCESS", ACC, None),
    ("44h", [R(8, rkey=0)], "MR_KEY", ACC, None),
    ("44i", [R(REGION + 1)], "MR_BOUNDS", ACC, None),
    ("44j", [W("FIRST", 256, REGION + 1)], "MR_BOUNDS", ACC, None),
    ("44k", [W("ONLY_IMM", 8, 8, rkey=READ_ONLY)], "MR_ACCESS", ACC, WC_REM_ACCESS_ERR),
    ("44l", [S("FIRST", 256), ("SEND_LAST_INV", 4, {})], "QP_ACCESS", INV, WC_REM_INV_REQ_ERR),
    ("atomic", [("CMP_SWAP", 0, dict(va=REMOTE_VA, rkey=RKEY))], "QP_ACCESS", INV, None),
]

@pytest.mark.parametrize("case,sent,name,syndrome,status", FATAL, ids=[f[0] for f in FATAL])
def test_fatal(so, case, sent, name, syndrome, status):
    b = Bench(so, seed=len(case))
    b.region(OTHER_PD, 15, REMOTE_VA, REMOTE_ADDR, pd=8)
    b.region(READ_ONLY, 4, REMOTE_VA, REMOTE_ADDR)
    b.region(NO_ACCESS, 0, REMOTE_VA, REMOTE_ADDR)
    b.region(TOP, 15, (1 << 64) - 4096, REMOTE_ADDR, length=4096)
    b.qp(1)
    b.qp(4)
    for _ in range(3):
        b.post(1, length=100 if case == "42a" else 4096)
    b.run(100)
    before = b.memory.read(REMOTE_ADDR + 256, 4096)
    for opcode, size, fields in sent:
        b.send(1, opcode, data_of(size), **fields)
    # Sent on trust before the NAK is known: dropped and counted.
    b.send(1, "SEND_ONLY", b"late", ackreq=1)
    b.run(300)
    b.send(1, "SEND_ONLY", b"late", ackreq=1)
    b.write(4, b"others go on")
    b.idle()
    answers = b.answers()
    psn  = 100 + len(sent) - 1
    last = [a for a in answers if a[1] == psn and a[2] == syndrome]
    assert len(last) == 1
    assert last[0][3] == 0                                            # nothing was completed.
    assert not [a for a in answers if a[1] > psn]
    assert sum(p.qpi == 1 and p.length != 0 for p in b.places) < len(sent)   # nothing is placed from the failure on.
    assert b.refusals[0] == name and b.refusals.count(name) == 1 and set(b.refusals[1:]) == {"QP_STATE"}
    cqes = statuses(b)
    if status is not None:
        assert cqes[0] == (0, status)
    assert all(s == WC_WR_FLUSH_ERR for _, s in cqes[status is not None:])
    assert [(e.queue, BY_INDEX[e.info].name) for e in b.events] == [(1, name)]
    assert b.memory.read(REMOTE_ADDR + 256, 4096) == before
    # The command port's answer: every receive comes back, in order, each once.
    b.connection(1, state=abi.QP_ERR)
    b.control_qp(1, CTL_ERR)
    b.run(2000)
    assert [w for w, _ in cqes + statuses(b)] == [0, 1, 2]


@pytest.mark.parametrize("field,sent", [(8 | 4 | 1, W("ONLY", 4, 4)), (8 | 2 | 1, R(4))])
def test_qp_access(so, field, sent):                                  # case 43
    b = Bench(so)
    b.qp(1, access=field)
    b.send(1, sent[0], data_of(sent[1]), **sent[2])
    b.idle()
    assert b.answers() == [("ACK", 100, INV, 0)] and b.refusals == ["QP_ACCESS"]


# Resources ----------------------------------------------------------------------------------------

def test_rnr(so):                                                     # case 39
    b = Bench(so)
    b.qp(1)
    b.send(1, "SEND_ONLY", b"abcd", psn=100, ackreq=1)
    b.send(1, "SEND_ONLY", b"efgh", psn=101, ackreq=1)
    b.run()
    assert b.answers() == [("ACK", 100, RNR12, 0)]
    assert b.take("refusals") == ["RNR", "PSN_SEQUENCE_AGAIN"]
    b.post(1), b.post(1)
    b.run()
    b.send(1, "SEND_ONLY", b"abcd", psn=100, ackreq=1)
    b.send(1, "SEND_ONLY", b"efgh", psn=101, ackreq=1)
    b.idle()
    assert b.answers()[-1] == ("ACK", 101, ACK, 2)
    assert statuses(b) == [(0, 0), (1, 0)]


def test_rnr_at_write_imm(so):                                        # case 41
    b = Bench(so)
    b.qp(1)
    data = data_of(300)
    b.write(1, data, imm=9)
    b.run()
    assert b.answers() == [("ACK", 101, RNR12, 0)]
    assert b.memory.read(REMOTE_ADDR, 300)[:256] == data[:256]
    b.post(1)
    b.run()
    b.send(1, "WRITE_LAST_IMM", data[256:], psn=101, ackreq=1, imm=9)
    b.idle()
    assert b.answers() == [("ACK", 101, ACK, 1)]
    assert [(c.byte_len, c.imm, c.opcode) for c in b.cqes] == [(300, 9, WC_RECV_RDMA_WITH_IMM)]
    assert b.memory.read(REMOTE_ADDR, 300) == data


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_read_resources(so, limit):                                   # cases 46, 47
    b = Bench(so, stall=0.99)
    b.qp(1, max_dest_rd_atomic=limit)
    b.reads.set(stall=1.0)
    for _ in range(limit + 1):
        b.read(1, 600)
    b.run(1000)
    assert b.refusals == ["READ_RESOURCES"]
    b.reads.set(stall=0)
    b.idle()
    answers = b.answers()
    assert answers[-1] == ("ACK", 100 + 3*limit, INV, limit)
    assert [a[1] for a in answers] == list(range(100, 100 + 3*limit + 1))


def test_read_resources_come_back(so):
    b = Bench(so)
    b.qp(1, max_dest_rd_atomic=1)
    for _ in range(40):
        b.read(1, 300)
        b.run(80)
    b.idle()
    assert not b.refusals and len(b.tx) == 80


def test_descriptor_error(so):
    b = Bench(so)
    b.qp(2)
    b.post(2)
    b.memory.fail(RING_ADDR + 0x4000 + 64, RING_ADDR + 0x4000 + 128, 1)
    b.post(2)
    b.run(100)
    b.send(2, "SEND_ONLY", b"good", ackreq=1)
    b.send(2, "SEND_ONLY", b"bad!", ackreq=1)
    b.idle()
    assert b.answers()[-1] == ("ACK", 101, OPER, 1)                   # it covers the ACK of 100.
    assert b.refusals == ["RECV_WQE"]
    assert [c.status for c in b.cqes] == [0, WC_LOC_QP_OP_ERR]


@pytest.mark.parametrize("fault", ["pd", "key", "access", "bounds"])
def test_receive_protection(so, fault):                               # 3.8 step 7
    b = Bench(so)
    b.region(OTHER_PD, 15, LOCAL_VA, LOCAL_ADDR, pd=8)
    b.region(READ_ONLY, 4, LOCAL_VA, LOCAL_ADDR)
    b.qp(1)
    b.post(1, lkey=dict(pd=OTHER_PD, key=LKEY ^ 2, access=READ_ONLY).get(fault, LKEY),
           va=LOCAL_VA + REGION - 10 if fault == "bounds" else None)
    b.send(1, "SEND_ONLY", b"sixteen bytes ok", ackreq=1)
    b.idle()
    assert b.answers() == [("ACK", 100, OPER, 0)] and b.refusals == ["RECV_PROTECTION"]
    assert statuses(b) == [(0, WC_LOC_PROT_ERR)]


def test_placement_error(so):
    b = Bench(so, hold=30)
    b.qp(1)
    b.post(1), b.post(1), b.post(1)
    b.place_error = lambda record: 3 if sum(p.length != 0 for p in b.places) == 2 else 0
    for n in range(3):
        b.send(1, "SEND_ONLY", b"abcd", ackreq=1)
    b.idle()
    assert b.answers()[-1] == ("ACK", 101, OPER, 1)
    assert statuses(b) == [(0, 0), (1, WC_LOC_QP_OP_ERR), (2, WC_WR_FLUSH_ERR)]
    assert b.refusals == ["MEMORY_FAULT", "QP_STATE"]
    assert [BY_INDEX[e.info].name for e in b.events] == ["MEMORY_FAULT"]
    placed = sum(p.length != 0 for p in b.places)
    b.send(1, "SEND_ONLY", b"abcd", ackreq=1)
    b.idle()
    assert b.answers() == [] and b.take("refusals")[-1] == "QP_STATE"
    assert sum(p.length != 0 for p in b.places) == placed


def test_only_the_first_of_two_failures_is_told(so):
    """A placement fails after a later packet's key check has failed: the NAK is the placement's."""
    b = Bench(so)
    b.qp(1)
    b.place.set(stall=0)
    b.place_error = lambda record: 1 if record.length else 0
    b.write(1, b"lost")
    b.send(1, "WRITE_ONLY", b"bad!", va=REMOTE_VA, rkey=5, dma_length=4, ackreq=1)
    for _ in range(60):
        b.sim.step(1)                                                 # both are past their checks before the answer.
    b.idle()
    assert b.answers() == [("ACK", 100, OPER, 0)]
    assert [BY_INDEX[e.info].name for e in b.events] == ["MEMORY_FAULT"]
    assert b.refusals == ["MEMORY_FAULT", "QP_STATE"]


def test_read_payload_error(so):
    b = Bench(so)
    b.qp(1)
    b.read_error = lambda packet: 2 if packet.psn == 101 and packet.length else 0
    b.read(1, 1000)
    b.idle()
    answers = b.answers()
    assert answers[0][:2] == ("READ_FIRST", 100) and answers[-1] == ("ACK", 101, OPER, 1)
    assert [BY_INDEX[e.info].name for e in b.events] == ["MEMORY_FAULT"]
