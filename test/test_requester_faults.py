# SPDX-License-Identifier: BSD-2-Clause
"""transport/requester: local failures while older work is outstanding: that is repeated, then the failing one completes."""
import pytest

from roce_soc import abi
from roce_soc.errors import index_of
from roce_soc.opcodes import by_name
from roce_soc.verbs import (
    WC_LOC_PROT_ERR, WC_LOC_QP_OP_ERR, WC_RETRY_EXC_ERR, WC_WR_FLUSH_ERR, WR_ATOMIC_FETCH_AND_ADD, WR_RDMA_READ,
    WR_SEND)
from test.requester_bench import SQ_BASE, SendBench, expect_cqes

FLUSH = WC_WR_FLUSH_ERR
FAILS = {   # how the fourth of six work requests fails: (status, changes to it)
    "key":     (WC_LOC_PROT_ERR,  dict(lkey=0x54)),
    "opcode":  (WC_LOC_QP_OP_ERR, dict(opcode=WR_ATOMIC_FETCH_AND_ADD)),
    "payload": (WC_LOC_QP_OP_ERR, dict()),
    "request": (WC_LOC_QP_OP_ERR, dict()),
}


def ack(b, psn, syndrome=0x1f):
    b.respond(0, opcode=by_name("RC_ACKNOWLEDGE").value, psn=psn, syndrome=syndrome)


def six(b, how, **attributes):
    """Six messages of three packets, the fourth fails locally."""
    status, changes = FAILS[how]
    b.connect(0, pmtu=256, **attributes)
    if how == "payload":
        b.sent_err[0, 0x1000 + 10] = 1
    for n in range(6):
        if how == "request" and n == 3:
            b.ring(0)                            # those before it are read by a command of their own.
            b.run(cycles=50)
            b.memory.fail(SQ_BASE + 3*64, SQ_BASE + 4*64, 2)
        fields = dict(changes) if n == 3 else {}
        b.post(0, fields.pop("opcode", WR_SEND), 600, ring=False, **fields)
    b.ring(0)
    return status


def fatal(b):
    """Runs until the QP has failed, then moves it to ERR as the command port would."""
    b.run(lambda: b.events)
    b.flushed(0)
    assert [(e.type, e.queue) for e in b.events] == [(abi.EVENT_QP_FATAL, 0)]


@pytest.mark.parametrize("lost", range(9))
@pytest.mark.parametrize("repair", ["nak", "timer"])
@pytest.mark.parametrize("how", FAILS)
def test_older_work_is_repeated(seed, how, repair, lost):
    """A packet before the failing message is lost: it is repeated; then the message fails, the rest is flushed."""
    dropped = []

    def lose(direction, p):
        if direction == "tx" and p.psn == 0x1000 + lost and not dropped:
            dropped.append(p)
            return True
        return repair == "timer" and direction == "rx" and p["syndrome"] == 0x60
    b = SendBench(seed, tick_cycles=8, lose=lose)
    b.delay = 150                                # the failure is known before the peer answers.
    # The last packet before the failing one that did not leave has nothing behind it that would make the peer ask.
    status = six(b, how, timeout=4 if repair == "timer" or lost == 8 else 0)
    fatal(b)
    b.completed(6)
    if how == "request":                         # a request that could not be read has no wr_id to tell.
        assert [(c.slot, c.status) for c in b.cqes] == list(enumerate([0, 0, 0, status, FLUSH, FLUSH]))
    else:
        expect_cqes(b, 0, [0, 0, 0, status, FLUSH, FLUSH])
    assert [len(s[0]) for s in b.peers[0].sends] == [600]*3 and dropped


def test_nothing_new_behind_a_failure(seed):
    """Repetition ends before the failing message: of what lies behind no packet leaves for the first time."""
    b = SendBench(seed, tick_cycles=8)
    b.connect(0, pmtu=256, timeout=4)
    b.peers[0].packet = lambda p, data: []
    for n in range(6):
        b.post(0, WR_SEND, 600, ring=False, **({"lkey": 0x54} if n == 3 else {}))
    b.ring(0)
    b.run(lambda: b.events)
    assert {p.psn for p in b.packets} == set(range(0x1000, 0x1009))
    assert len(b.packets) == 9*8                 # seven retries.
    b.flushed(0)
    b.completed(6)
    expect_cqes(b, 0, [WC_RETRY_EXC_ERR] + [FLUSH]*5)


def test_what_was_not_sent_cannot_be_acknowledged(seed):
    """Repetition does not pass the failing message: an acknowledge of what lies behind is one beyond what was sent."""
    b = SendBench(seed, tick_cycles=8)
    b.connect(0, pmtu=256, timeout=4)
    b.peers[0].packet = lambda p, data: []
    b.post(0, WR_SEND, 600, ring=False)
    b.post(0, WR_SEND, 200_000, ring=False, lkey=0x54)
    b.ring(0)
    b.run(lambda: len(b.packets) == 9)           # sent three times.
    ack(b, 0x1003 + 500)
    b.run(cycles=200)
    assert [r.row for r in b.refusals] == [index_of("ACK_BEYOND_SENT")] and not b.cqes
    ack(b, 0x1002)
    fatal(b)
    b.completed(2)
    expect_cqes(b, 0, [0, WC_LOC_PROT_ERR])


@pytest.mark.parametrize("older", range(3))
def test_older_work_fails_in_repetition(seed, older):
    """The payload of an older message cannot be read when it is repeated: it fails, not the one known to be bad."""
    b = SendBench(seed, tick_cycles=8, lose=lambda direction, p: direction == "tx")
    six(b, "key", timeout=4)
    b.run(lambda: len(b.packets) == 9)
    b.run(cycles=100)
    b.sent_err[0, 0x1000 + 3*older + 1] = 1
    b.run(lambda: not b.sent_err)
    ack(b, 0x1000 + 3*older)
    fatal(b)
    b.completed(6)
    expect_cqes(b, 0, [0]*older + [WC_LOC_QP_OP_ERR] + [FLUSH]*(5 - older))


def test_acknowledged_after_its_repetition_failed(seed):
    """The first transmission had arrived: the message is done, no completion can tell of the failure, the QP fails."""
    b = SendBench(seed, tick_cycles=8)
    b.connect(0, pmtu=256, timeout=4)
    b.delay = 1 << 30
    for _ in range(2):
        b.post(0, WR_SEND, 600)
    b.run(lambda: len(b.packets) == 6)
    b.sent_err[0, 0x1004] = 1                    # in the second message, at the time-out.
    b.run(lambda: not b.sent_err)
    b.run(cycles=50)
    assert not b.events
    ack(b, 0x1005)
    fatal(b)
    b.post(0, WR_SEND, 10)
    b.completed(3)
    expect_cqes(b, 0, [0, 0, FLUSH])


@pytest.mark.parametrize("bad", [0, 8])
def test_request_not_read_again(seed, bad):
    """A work request that has left the chip cannot be read for its repetition: its message fails in its turn."""
    b = SendBench(seed, latency=50)
    b.connect(0, pmtu=256)
    b.peers[0].packet = lambda p, data: []
    for n in range(12):
        b.post(0, WR_SEND, 600, ring=False)
    b.ring(0)
    b.run(lambda: len(b.packets) == 36)
    b.run(cycles=200)
    b.memory.fail(SQ_BASE + bad*64, SQ_BASE + bad*64 + 64, 2)
    ack(b, 0x1001, 0x60)
    b.run(cycles=1000)
    sent = [p.psn for p in b.packets[36:]]
    assert sent == list(range(0x1001, 0x1000 + 3*bad))
    if bad:
        assert not b.events
        ack(b, 0x1000 + 3*bad - 1)
    fatal(b)
    b.completed(12)
    expect_cqes(b, 0, [0]*bad + [WC_LOC_QP_OP_ERR] + [FLUSH]*(11 - bad))


def test_read_error_meets_reset(seed):
    """Payload that could not be read is told while its QP is being reset: the next life does not hear of it."""
    for cycles in range(20, 200, 20):
        b = SendBench(seed)
        b.connect(0, pmtu=256)
        b.tx.set(stall=.9)
        b.sent_err = {(0, psn): 1 for psn in range(0x1000, 0x1100)}
        for _ in range(4):
            b.post(0, WR_SEND, 2000)
        b.run(cycles=cycles)
        b.reset(0)
        b.sent_err, b.pending, b.cqes = {}, [], []
        b.connect(0, pmtu=256)
        for opcode in (WR_SEND, WR_RDMA_READ):
            b.post(0, opcode, 600)
        b.completed(2)
        expect_cqes(b, 0, [0, 0])
