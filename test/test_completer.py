# SPDX-License-Identifier: BSD-2-Clause
"""transport/completer: ACK ranges, implied NAKs, READ responses, ghosts, refusals, memory errors."""
import pytest

from test.requester_bench import SendBench, expect_cqes
from roce_soc import abi
from roce_soc.errors import BY_INDEX, ERRORS
from roce_soc.opcodes import OPCODES, by_name
from roce_soc.verbs import (
    WC_BAD_RESP_ERR, WC_LOC_LEN_ERR, WC_LOC_PROT_ERR, WC_REM_ACCESS_ERR, WC_REM_INV_REQ_ERR, WC_REM_OP_ERR, WC_RETRY_EXC_ERR,
    WR_RDMA_READ, WR_RDMA_WRITE, WR_SEND)

ACK = by_name("RC_ACKNOWLEDGE").value


class Silent:
    """A peer that only listens; the test answers."""
    def __init__(self):
        self.seen = []

    def packet(self, p, data):
        self.seen.append(p)
        return []


def bench(seed, works, **options):
    """A QP whose work requests of (opcode, length) have all been sent, first PSN 0x1000, PMTU 256."""
    b = SendBench(seed)
    b.connect(0, pmtu=256, **options)
    b.peers[0] = Silent()
    for n, (opcode, length) in enumerate(works):
        b.post(0, opcode, length, offset=n*4096)
    b.run(cycles=400)
    return b


def refused(b):
    return [BY_INDEX[r.row].name for r in b.refusals]


def ack(b, psn, syndrome=0x1f):
    b.respond(0, opcode=ACK, psn=psn & 0xffffff, syndrome=syndrome, msn=0)
    b.run(cycles=200)


def read(b, psn, position, data, syndrome=0x1f):
    b.respond(0, opcode=by_name(f"RC_READ_RESPONSE_{position}").value, psn=psn, syndrome=syndrome, msn=0, data=data)
    b.run(cycles=200)


def test_ack_range(seed):
    """An ACK completes all messages up to it, in order, and moves una inside a message."""
    b = bench(seed, [(WR_SEND, 600), (WR_RDMA_WRITE, 10), (WR_SEND, 0), (WR_SEND, 300)])
    ack(b, 0x1001)                       # inside the first.
    assert not b.cqes
    ack(b, 0x1004)                       # the third and those before it.
    expect_cqes(b, 0, [0]*3)
    ack(b, 0x1006)
    expect_cqes(b, 0, [0]*4)
    assert not refused(b)


@pytest.mark.parametrize("syndrome", range(32))
def test_credit_codes(seed, syndrome):
    """Every credit code is an ACK."""
    b = bench(seed, [(WR_SEND, 10)])
    ack(b, 0x1000, syndrome)
    expect_cqes(b, 0, [0])


def test_ghosts(seed):
    """Older and never sent PSNs complete nothing and are counted."""
    b = bench(seed, [(WR_SEND, 10), (WR_SEND, 10)])
    ack(b, 0x0fff)
    ack(b, 0x1002)
    ack(b, 0x1400)
    ack(b, 0x1000 + (1 << 23) - 1)
    ack(b, 0x1002, 0x60)
    assert not b.cqes
    ack(b, 0x1000)
    ack(b, 0x1000)
    ack(b, 0x1001)
    expect_cqes(b, 0, [0, 0])
    assert refused(b) == ["ACK_GHOST"] + ["ACK_BEYOND_SENT"]*4 + ["ACK_GHOST"]
    assert not b.events


@pytest.mark.parametrize("syndrome", [0x40, 0x5f, 0x64, 0x65, 0x7f, 0x80, 0x9f, 0xe0, 0xff])
def test_reserved_syndromes(seed, syndrome):
    """Reserved syndromes and NAK codes change nothing."""
    b = bench(seed, [(WR_SEND, 10)])
    sent = len(b.packets)
    ack(b, 0x1000, syndrome)
    assert not b.cqes and not b.events and len(b.packets) == sent
    assert refused(b) == ["SYNDROME_RESERVED"]
    ack(b, 0x1000)
    expect_cqes(b, 0, [0])


@pytest.mark.parametrize("syndrome, status", [(0x61, WC_REM_INV_REQ_ERR), (0x62, WC_REM_ACCESS_ERR), (0x63, WC_REM_OP_ERR)])
@pytest.mark.parametrize("n", range(4))
def test_fatal_nak(seed, syndrome, status, n):
    """NAK on message n: those before it complete, it fails, those behind are flushed."""
    b = bench(seed, [(WR_SEND, 300)]*4)
    ack(b, 0x1000 + 2*n + 1, syndrome)
    expect_cqes(b, 0, [0]*n + [status] + [5]*(3 - n))
    assert [(e.type, e.queue, e.info) for e in b.events] == [(abi.EVENT_QP_FATAL, 0, b.cqes[n].vendor_err)]
    # The QP is dead: later responses change nothing.
    ack(b, 0x1007)
    assert len(b.cqes) == 4


def test_read_implies_ack(seed):
    """A READ response acknowledges the SENDs before its READ."""
    b = bench(seed, [(WR_SEND, 10), (WR_RDMA_WRITE, 10), (WR_RDMA_READ, 300), (WR_SEND, 5)])
    read(b, 0x1002, "FIRST", bytes(256))
    expect_cqes(b, 0, [0, 0])
    read(b, 0x1003, "LAST", bytes(44))
    expect_cqes(b, 0, [0, 0, 0])
    ack(b, 0x1004)
    expect_cqes(b, 0, [0]*4)
    assert not refused(b)


@pytest.mark.parametrize("answered", range(1, 4))
def test_reads_of_a_former_life(seed, answered):
    """READs answered and READs still open at a RESET do not count in the next life."""
    b = bench(seed, [(WR_RDMA_READ, 20)]*4)
    for n in range(answered):
        read(b, 0x1000 + n, "ONLY", bytes(20))
    expect_cqes(b, 0, [0]*answered)
    b.reset(0)
    b.cqes.clear()
    b.connect(0, pmtu=256, psn=0x2000)
    for _ in range(4):
        b.post(0, WR_RDMA_READ, 20)
    b.peers[0] = Silent()
    b.run(cycles=400)
    for n in range(4):
        read(b, 0x2000 + n, "ONLY", bytes(20))
    expect_cqes(b, 0, [0]*4)
    assert not refused(b) and not b.events


def test_ack_passes_read(seed):
    """An ACK beyond an outstanding READ: its data was lost; the READ and all behind it are sent again."""
    b = bench(seed, [(WR_SEND, 10), (WR_RDMA_READ, 300), (WR_SEND, 5)])
    sent = len(b.packets)
    ack(b, 0x1003)
    expect_cqes(b, 0, [0])
    assert refused(b) == ["IMPLIED_NAK"]
    again = [(p.psn, OPCODES[p.opcode].name) for p in b.packets[sent:]]
    assert again == [(0x1001, "RC_READ_REQUEST"), (0x1003, "RC_SEND_ONLY")]
    # Said again before anything moved: not retried again.
    ack(b, 0x1003)
    assert len(b.packets) == sent + 2


@pytest.mark.parametrize("restart", ["FIRST", "MIDDLE"])
def test_read_gap(seed, restart):
    """A READ response is lost: the READ resumes at the missing PSN with the rest of address and length."""
    b = bench(seed, [(WR_RDMA_READ, 1100)])
    data = bytes(n*7 & 0xff for n in range(1100))
    read(b, 0x1000, "FIRST", data[:256])
    sent = len(b.packets)
    read(b, 0x1002, "MIDDLE", data[512:768])
    read(b, 0x1003, "MIDDLE", data[768:1024])
    p, = b.packets[sent:]
    assert (p.psn, p.va, p.dma_length) == (0x1001, 0x5000_0000 + 256, 1100 - 256)
    read(b, 0x1001, restart, data[256:512])
    read(b, 0x1002, "MIDDLE", data[512:768])
    read(b, 0x1003, "MIDDLE", data[768:1024])
    read(b, 0x1004, "LAST", data[1024:])
    expect_cqes(b, 0, [0])
    assert b.buffer(0, 0, 1100) == data
    assert refused(b) == ["IMPLIED_NAK"]*2


@pytest.mark.parametrize("position", ["LAST", "ONLY"])
def test_read_last_lost(seed, position):
    """The last response is lost and found by the ACK behind it."""
    b = bench(seed, [(WR_RDMA_READ, 500), (WR_SEND, 1)])
    read(b, 0x1000, "FIRST", bytes(256))
    ack(b, 0x1002)
    read(b, 0x1001, position, bytes(244))
    ack(b, 0x1002)
    expect_cqes(b, 0, [0, 0])


@pytest.mark.parametrize("position, length, status", [
    ("ONLY", 256, WC_LOC_LEN_ERR), ("FIRST", 255, WC_LOC_LEN_ERR), ("LAST", 256, WC_BAD_RESP_ERR),
    ("MIDDLE", 256, WC_BAD_RESP_ERR), ("FIRST", 0, WC_LOC_LEN_ERR)])
def test_read_first_wrong(seed, position, length, status):
    """First response of a READ of 600 bytes that does not fit: the READ fails, nothing is written."""
    b = bench(seed, [(WR_SEND, 1), (WR_RDMA_READ, 600), (WR_SEND, 1)])
    before = b.buffer(0, 4096, 600)
    read(b, 0x1001, position, bytes(length))
    expect_cqes(b, 0, [0, status, 5])
    assert b.buffer(0, 4096, 600) == before
    assert not b.slots


@pytest.mark.parametrize("position, length, status", [
    ("LAST", 87, WC_LOC_LEN_ERR), ("LAST", 89, WC_LOC_LEN_ERR), ("MIDDLE", 256, WC_LOC_LEN_ERR),
    ("ONLY", 88, WC_BAD_RESP_ERR), ("FIRST", 256, WC_BAD_RESP_ERR)])
def test_read_end_wrong(seed, position, length, status):
    """Last response of a READ of 600 bytes that does not fit."""
    b = bench(seed, [(WR_RDMA_READ, 600)])
    read(b, 0x1000, "FIRST", bytes(256))
    read(b, 0x1001, "MIDDLE", bytes(256))
    read(b, 0x1002, position, bytes(length))
    expect_cqes(b, 0, [status])


def test_read_for_send(seed):
    """A READ response where a SEND is outstanding, an atomic response where nothing like it was asked."""
    for opcode in ("RC_READ_RESPONSE_ONLY", "RC_ATOMIC_ACKNOWLEDGE"):
        b = bench(seed, [(WR_SEND, 10), (WR_RDMA_READ, 10)])
        b.respond(0, opcode=by_name(opcode).value, psn=0x1000, syndrome=0x1f)
        b.run(cycles=200)
        expect_cqes(b, 0, [WC_BAD_RESP_ERR, 5])


def test_read_memory_error(seed):
    """READ data that memory refuses, and a local key that is gone when the data comes."""
    b = bench(seed, [(WR_RDMA_READ, 300), (WR_RDMA_READ, 300)])
    b.done_err[1] = 2
    read(b, 0x1000, "FIRST", bytes(256))
    read(b, 0x1001, "LAST", bytes(44))
    expect_cqes(b, 0, [WC_LOC_PROT_ERR, 5])
    b = bench(seed, [(WR_RDMA_READ, 300), (WR_RDMA_READ, 300)])
    b.mr.send(valid_row=0, index=0)
    b.run(cycles=50)
    read(b, 0x1000, "FIRST", bytes(256))
    expect_cqes(b, 0, [WC_LOC_PROT_ERR, 5])
    assert b.cqes[0].vendor_err == ERRORS["RESPONSE_MEMORY"].index
    assert not b.slots


def test_completion_after_data(seed):
    """No completion of a READ before its place record is answered; responses go on meanwhile."""
    b = bench(seed, [(WR_RDMA_READ, 100), (WR_SEND, 1)])
    held, b.done.send = [], lambda **fields: held.append(fields)
    send = type(b.done).send
    read(b, 0x1000, "ONLY", bytes(100))
    ack(b, 0x1001)
    assert not b.cqes and len(held) == 2
    for fields in held:
        send(b.done, **fields)
    b.completed(2)
    expect_cqes(b, 0, [0, 0])


@pytest.mark.parametrize("stall,gap", [(.2, 4), (.95, 0)])
def test_one_place_each(seed, rng, stall, gap):
    """Every response record leaves as one place record, whatever it says; nothing is stuck or lost, however slow the placer."""
    b = SendBench(seed, stall=stall)
    for qpi in range(4):
        b.connect(qpi, pmtu=256)
        b.peers[qpi] = Silent()
        b.post(qpi, WR_RDMA_READ, 500)
    b.run(cycles=300)
    opcodes = [o.value for o in OPCODES.values() if o.transport == "RC" and o.is_response]
    for _ in range(500):
        b.respond(rng.randrange(4), opcode=rng.choice(opcodes), psn=0xff0 + rng.randrange(32), msn=0,
            syndrome=rng.choice([0x1f, 0x60, 0x61, 0x25, rng.randrange(256)]), data=bytes(rng.choice([0, 1, 256])))
        b.run(cycles=gap)
    b.run(lambda: b.placed >= 500)
    assert not b.slots


@pytest.mark.parametrize("syndrome, status", [
    (0x60, None), (0x61, WC_REM_INV_REQ_ERR), (0x62, WC_REM_ACCESS_ERR), (0x63, WC_REM_OP_ERR), (0x2c, None)])
def test_nak_behind_a_lost_read(seed, syndrome, status):
    """A NAK of any code behind a READ without its replies: the READ is repeated, what was refused fails when refused again."""
    b = bench(seed, [(WR_SEND, 10), (WR_RDMA_READ, 300), (WR_RDMA_WRITE, 5), (WR_SEND, 1)])
    sent = len(b.packets)
    ack(b, 0x1003, syndrome)
    expect_cqes(b, 0, [0])
    assert refused(b) == ["IMPLIED_NAK"] and not b.events
    assert [p.psn for p in b.packets[sent:]] == [0x1001, 0x1003, 0x1004]
    read(b, 0x1001, "FIRST", bytes(256))
    read(b, 0x1002, "LAST", bytes(44))
    expect_cqes(b, 0, [0, 0])
    if status is not None:
        ack(b, 0x1003, syndrome)
        expect_cqes(b, 0, [0, 0, status, 5])


@pytest.mark.parametrize("syndrome", [0x61, 0x62, 0x63])
def test_nak_inside_a_read(seed, syndrome):
    """A NAK where the next reply belongs fails the READ; one beyond it says that replies were lost."""
    for psn, missing in ((0x1001, False), (0x1002, True)):
        b = bench(seed, [(WR_RDMA_READ, 1000)])
        read(b, 0x1000, "FIRST", bytes(256))
        ack(b, psn, syndrome)
        assert len(b.cqes) == (not missing) and refused(b)[:1] == (["IMPLIED_NAK"] if missing else refused(b)[:1])
        assert not missing or b.packets[-1].psn == 0x1001


def test_silent_peer_behind_a_lost_read(seed):
    """The peer went to ERR behind its NAK: the READ fails by its retries, what is behind it is flushed."""
    b = bench(seed, [(WR_RDMA_READ, 300), (WR_RDMA_WRITE, 5)], timeout=1, retry_cnt=2)
    ack(b, 0x1002, 0x62)
    b.completed(2)
    expect_cqes(b, 0, [WC_RETRY_EXC_ERR, 5])
