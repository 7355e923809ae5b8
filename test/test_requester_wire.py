# SPDX-License-Identifier: BSD-2-Clause
"""transport/requester, completer, retry while transmit stands still: what has not left is not acknowledged, timed or lost."""
import pytest

from roce_soc.common import CTL_RESET, CTL_START, CTL_STOP
from roce_soc.errors import BY_INDEX, ERRORS
from roce_soc.opcodes import ACK_UNLIMITED, NAK_PSN_SEQUENCE, by_name
from roce_soc.verbs import WC_LOC_QP_OP_ERR, WC_RETRY_EXC_ERR, WC_WR_FLUSH_ERR, WR_RDMA_READ, WR_RDMA_WRITE, WR_SEND
from test.requester_bench import N_QPS, SendBench, expect_cqes

ACK = by_name("RC_ACKNOWLEDGE").value
T1  = 16*2          # ticks of ACK time-out code 1.


def answer(b, psn, syndrome=ACK_UNLIMITED, cycles=200, qpi=0):
    b.respond(qpi, opcode=ACK, psn=psn, syndrome=syndrome, msn=0)
    b.run(cycles=cycles)


def refused(b):
    return [BY_INDEX[r.row].name for r in b.refusals]


class Silent:
    """A peer that only listens; the test answers."""
    def packet(self, p, data):
        return []


# Payload faults -----------------------------------------------------------------------------------

@pytest.mark.parametrize("messages", [1, 4])
@pytest.mark.parametrize("order", [1, -1])
def test_every_payload_fault_is_told(seed, messages, order):
    """The payload of all QPs fails at once: each QP fails its oldest message and flushes the others, without a time-out.
    In descending order every fault counts, as those before and behind a rewind do."""
    b = SendBench(seed)
    b.blocked = True
    for qpi in range(N_QPS):
        b.connect(qpi)
        b.sent_err.update({(qpi, 0x1000 + n): 2 for n in range(messages)})
    for _ in range(messages):
        for qpi in range(N_QPS):
            # All of them from one region.
            b.post(qpi, WR_RDMA_WRITE, 64, lkey=0x55, local_va=b.va(0))
    b.run(lambda: len(b.kept) == N_QPS*messages)
    # As an arbiter would have it: no two of a QP in a row. The walker waits for completions.
    b.kept.sort(key=lambda p: order*p.psn)
    b.cqe.set(stall=.98)
    b.blocked = False
    b.run(lambda: len(b.cqes) == N_QPS*messages and len(b.events) == N_QPS)
    for qpi in range(N_QPS):
        expect_cqes(b, qpi, [WC_LOC_QP_OP_ERR] + [WC_WR_FLUSH_ERR]*(messages - 1))
    assert {e.info for e in b.events} == {ERRORS["LOCAL_MEMORY"].index}


def test_the_oldest_fault_counts(seed):
    """Of several faults of a QP the oldest fails its message, whatever the order they are told in; older work completes."""
    b = SendBench(seed)
    b.connect(0)
    b.blocked = True
    b.sent_err.update({(0, 0x1000 + n): 2 for n in (1, 3)})
    for _ in range(5):
        b.post(0, WR_SEND, 64)
    b.run(lambda: len(b.kept) == 5)
    b.kept.sort(key=lambda p: -p.psn)
    b.peers[0] = Silent()
    b.blocked = False
    b.run(cycles=300)
    answer(b, 0x1000)
    expect_cqes(b, 0, [0, WC_LOC_QP_OP_ERR] + [WC_WR_FLUSH_ERR]*3)


def test_no_fault_outlives_its_qp(seed):
    """Faults under way at RESET are told before it is done; the next life begins clean."""
    b = SendBench(seed)
    for qpi in range(2):
        b.connect(qpi)
    b.blocked = True
    b.sent_err.update({(qpi, 0x1000 + n): 2 for qpi in range(2) for n in range(8)})
    for _ in range(8):
        for qpi in range(2):
            b.post(qpi, WR_SEND, 64)
    b.run(lambda: len(b.kept) == 16)
    b.blocked = False
    b.reset(0)
    b.run(lambda: len(b.cqes) >= 8)
    b.connect(0, psn=0x1000)
    first = len(b.cqes)
    b.post(0, WR_SEND, 64)
    b.completed(first + 1)
    assert b.cqes[-1].status == 0 and b.cqes[-1].qpn == b.rows[0]["qpn"]

# RNR ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("fill", range(2, 8))
@pytest.mark.parametrize("late", [False, True])
def test_resume_before_the_next_burst_is_launched(seed, late, fill):
    """The refused message is acknowledged after all, the next one waits for its launch: the pause ends nevertheless."""
    b = SendBench(seed, tick_cycles=1)
    for qpi in range(2):
        b.connect(qpi, pmtu=256)
    b.peers[0] = Silent()
    b.post(0, WR_SEND, 64)
    b.run(lambda: len(b.packets) == 1)
    # Bursts of the other QP are before it, yet it is visited.
    b.tx.set(stall=.9999)
    for n in range(fill):
        b.post(1, WR_RDMA_WRITE, 4096, offset=4096*n)
    b.run(cycles=1000)
    b.post(0, WR_SEND, 64)
    b.run(cycles=200)
    answer(b, 0x1000, 0x20 | 1)
    if late:
        b.run(cycles=100)
    answer(b, 0x1000)
    expect_cqes(b, 0, [0])
    b.run(cycles=1000)
    b.tx.set(stall=0)
    b.run(lambda: any(p.qpi == 0 and p.psn == 0x1001 for p in b.packets))
    b.run(cycles=50)
    answer(b, 0x1001)
    expect_cqes(b, 0, [0, 0])
    b.post(0, WR_SEND, 64)
    b.run(lambda: any(p.qpi == 0 and p.psn == 0x1002 for p in b.packets))


def refused_and_acknowledged(seed, **options):
    """A SEND that a late time-out repeats: first an RNR NAK of the longest wait, then the acknowledge; then a WRITE at 0x1001."""
    b = SendBench(seed, tick_cycles=16)
    b.connect(0, **options)
    b.peers[0] = Silent()
    b.post(0, WR_SEND, 10)
    b.run(lambda: len(b.packets) == 2)
    answer(b, 0x1000, 0x20)
    answer(b, 0x1000)
    expect_cqes(b, 0, [0])
    b.post(0, WR_RDMA_WRITE, 10)
    b.run(lambda: b.packets[-1].psn == 0x1001)
    b.run(cycles=20)
    return b


def test_sequence_nak_behind_a_wait_that_is_over(seed):
    b = refused_and_acknowledged(seed, timeout=1)
    answer(b, 0x1001, NAK_PSN_SEQUENCE)
    assert [p.psn for p in b.packets[2:]] == [0x1001, 0x1001]


def test_rnr_behind_a_wait_that_is_over(seed):
    """A new RNR NAK begins its own, shorter wait."""
    b = refused_and_acknowledged(seed, timeout=1)
    b.write_row(0, timeout=0)
    count = len(b.packets)
    answer(b, 0x1001, 0x20 | 1)
    b.run(lambda: len(b.packets) > count, cycles=60*40*16)
    assert b.packets[-1].psn == 0x1001


def test_timer_behind_a_wait_that_is_over(seed):
    b = refused_and_acknowledged(seed, timeout=1)
    b.run(lambda: [p.psn for p in b.packets[2:]] == [0x1001]*3, cycles=20*T1*16)


def test_progress_during_the_wait(seed):
    """Two refused messages: the acknowledge of the first ends the wait, the second is sent again at once."""
    b = SendBench(seed, tick_cycles=16)
    b.connect(0)
    b.peers[0] = Silent()
    for _ in range(2):
        b.post(0, WR_SEND, 10)
    b.run(lambda: len(b.packets) == 2)
    answer(b, 0x1000, 0x20)
    answer(b, 0x1000)
    expect_cqes(b, 0, [0])
    assert [p.psn for p in b.packets] == [0x1000, 0x1001, 0x1001]


def test_rnr_of_a_later_psn_during_the_wait(seed):
    """An RNR NAK that acknowledges what was refused before begins a wait of its own."""
    b = SendBench(seed, tick_cycles=1)
    b.connect(0)
    b.peers[0] = Silent()
    for _ in range(3):
        b.post(0, WR_SEND, 10)
    b.run(lambda: len(b.packets) == 3)
    answer(b, 0x1000, 0x20)
    answer(b, 0x1001, 0x20 | 1)
    expect_cqes(b, 0, [0])
    b.run(lambda: len(b.packets) == 5, cycles=3000)
    assert [p.psn for p in b.packets[3:]] == [0x1001, 0x1002]

# What has not left --------------------------------------------------------------------------------

@pytest.mark.parametrize("opcode, length", [(WR_SEND, 10), (WR_RDMA_WRITE, 3000), (WR_RDMA_READ, 2000)])
@pytest.mark.parametrize("before", [0, 3])
def test_acknowledge_of_what_has_not_left(seed, opcode, length, before):
    """A message that waits for transmit is not acknowledged, by no answer; the true one completes it."""
    b = SendBench(seed)
    b.connect(0, pmtu=256)
    for _ in range(before):
        b.post(0, WR_SEND, 10)
    b.completed(before)
    b.blocked = True
    b.post(0, opcode, length)
    b.run(lambda: b.kept)
    b.run(cycles=200)
    first = 0x1000 + before
    answer(b, first)
    answer(b, first + 1)
    answer(b, first, NAK_PSN_SEQUENCE)
    answer(b, first, 0x62)
    answer(b, first, 0x20)
    if opcode == WR_RDMA_READ:
        b.respond(0, opcode=by_name("RC_READ_RESPONSE_FIRST").value, psn=first, syndrome=ACK_UNLIMITED, msn=0, data=bytes(256))
        b.run(cycles=200)
    assert set(refused(b)) == {"ACK_BEYOND_SENT"} and len(b.refusals) == (6 if opcode == WR_RDMA_READ else 5)
    assert len(b.cqes) == before and not b.events
    b.blocked = False
    b.completed(before + 1)
    expect_cqes(b, 0, [0]*(before + 1))


def test_no_time_runs_for_what_has_not_left(seed):
    """The burst waits for 40 times the time-out, without retries left; the wait begins when it leaves."""
    b = SendBench(seed, tick_cycles=4)
    b.connect(0, timeout=1, retry_cnt=0)
    b.blocked = True
    b.post(0, WR_SEND, 10)
    b.run(cycles=40*T1*4)
    assert not b.cqes and len(b.kept) == 1
    b.peers[0] = Silent()
    b.blocked = False
    begin = b.sim.cycles()
    b.completed(1)
    assert b.cqes[0].status == WC_RETRY_EXC_ERR and b.sim.cycles() - begin >= T1*4


def test_no_time_runs_for_a_repetition_that_has_not_left(seed):
    """A repetition that waits for transmit uses up one retry, not all."""
    b = SendBench(seed, tick_cycles=4, lose=lambda direction, p: direction == "tx" and len(b.packets) == 1)
    b.connect(0, timeout=1, retry_cnt=1)
    b.post(0, WR_SEND, 10)
    b.run(lambda: len(b.packets) == 1)
    b.run(cycles=20)
    b.blocked = True
    b.run(cycles=60*T1*4)
    assert not b.cqes and len(b.kept) == 1
    b.blocked = False
    b.completed(1)
    expect_cqes(b, 0, [0])
    assert len(b.packets) == 2


def test_younger_bursts_do_not_hide_a_loss(seed):
    """One packet is lost, others follow it all the time: its time-out comes all the same."""
    b = SendBench(seed, tick_cycles=4)
    b.connect(0, timeout=1)
    b.peers[0] = Silent()
    for n in range(20):
        b.post(0, WR_SEND, 10)
        b.run(cycles=T1)
    assert [p.psn for p in b.packets].count(0x1000) >= 3


@pytest.mark.parametrize("psn", [0x1000, 0xc00000])
def test_no_answer_before_the_requester_has_started(seed, psn):
    """The completer starts first: an answer between both acknowledges nothing, whatever the PSNs."""
    b = SendBench(seed)
    b.connect(0)
    b.write_row(0, state=2)
    b.ctl(0, CTL_STOP, owners="r")
    b.ctl(0, CTL_RESET, owners="crs")
    b.write_row(0, state=3)
    b.index[0], b.posted[0], b.peers[0] = 0, [], Silent()
    b.ctl(0, CTL_START, psn, owners="c")
    answer(b, psn + 0x1000)
    answer(b, psn)
    b.ctl(0, CTL_START, psn, owners="r")
    b.post(0, WR_SEND, 10)
    b.run(lambda: b.packets)
    assert b.packets[0].psn == psn
    b.run(cycles=20)
    answer(b, psn)
    expect_cqes(b, 0, [0])


def test_no_time_runs_while_a_rewind_waits_for_the_walker(seed):
    """Completions of another QP have no room for 60 time-outs: a packet lost meanwhile costs one retry, not all."""
    b = SendBench(seed, tick_cycles=4, lose=lambda direction, p: direction == "tx" and p.qpi == 0 and lost.pop("once", False))
    lost = {"once": True}
    b.connect(0, timeout=1, retry_cnt=2)
    b.connect(1)
    b.cqe.set(stall=1.0)
    for _ in range(8):
        b.post(1, WR_SEND, 10)
    b.run(cycles=300)
    b.post(0, WR_SEND, 10)
    b.run(cycles=60*T1*4)
    b.cqe.set()
    b.run(lambda: any(c.qpn == b.rows[0]["qpn"] for c in b.cqes))
    expect_cqes(b, 0, [0])
    assert len([p for p in b.packets if p.qpi == 0]) <= 2
