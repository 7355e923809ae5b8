# SPDX-License-Identifier: BSD-2-Clause
"""transport/retry: loss at every place, time-outs, RNR, exhaustion and flush, order of completions, cycle figures."""
import pytest

from roce_soc.transport.retire.timer import SCAN_CYCLES
from test.requester_bench import N_QPS, SendBench, expect_cqes
from roce_soc import abi
from roce_soc.common import CTL_ERR
from roce_soc.opcodes import RNR_TIMER_10US, by_name
from roce_soc.verbs import (
    WC_RETRY_EXC_ERR, WC_RNR_RETRY_EXC_ERR, WR_RDMA_READ, WR_RDMA_WRITE, WR_RDMA_WRITE_WITH_IMM, WR_SEND)

WORK = [(WR_SEND, 700), (WR_RDMA_WRITE, 300), (WR_RDMA_READ, 1000), (WR_SEND, 10), (WR_RDMA_READ, 200),
        (WR_RDMA_WRITE_WITH_IMM, 513), (WR_SEND, 0)]
PACKETS = 3 + 2 + 1 + 1 + 1 + 3 + 1


def run_work(b, qpi=0):
    for n, (opcode, length) in enumerate(WORK):
        b.post(qpi, opcode, length, offset=n*5000, ring=False)
    b.ring(qpi)
    b.completed(len(WORK))


def check_work(b, qpi=0):
    expect_cqes(b, qpi, [0]*len(WORK))
    peer, sends, writes = b.peers[qpi], [], []
    for w, data in b.unchecked[qpi]:
        if w["opcode"] == WR_RDMA_READ:
            assert b.buffer(qpi, w["local_va"] - b.va(qpi), w["length"]) == peer.read_data(w["remote_va"], w["length"])
        elif w["opcode"] == WR_SEND:
            sends.append(data)
        else:
            writes.append(data)
    assert [s[0] for s in peer.sends] == sends
    assert [w[1] for w in peer.writes] == writes
    assert not b.events and not b.slots


class Drop:
    """Loses the nth packet of a direction, `times` times counted from there."""
    def __init__(self, direction, index, times=1):
        self.direction, self.left, self.times = direction, index, times

    def __call__(self, direction, p):
        if direction != self.direction:
            return False
        self.left -= 1
        return self.left < 0 and -self.left <= self.times


@pytest.mark.parametrize("middle", [False, True])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("index", range(PACKETS))
def test_request_lost(seed, index, times, middle):
    """One or two requests lost, at every place, through the PSN wrap: all is delivered once, in order."""
    b = SendBench(seed, tick_cycles=8, lose=Drop("tx", index, times))
    b.connect(0, pmtu=256, psn=0xfffffc, timeout=4)
    b.peers[0].middle_restart = middle
    run_work(b)
    check_work(b)


@pytest.mark.parametrize("middle", [False, True])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("index", range(11))
def test_response_lost(seed, index, times, middle):
    """Responses lost, at every place; a READ's restart comes in either form."""
    b = SendBench(seed, tick_cycles=8, lose=Drop("rx", index, times))
    b.connect(0, pmtu=256, psn=0xfffffc, timeout=4)
    b.peers[0].middle_restart = middle
    run_work(b)
    check_work(b)


@pytest.mark.parametrize("rate", [0.02, 0.2])
def test_random_loss(seed, rng, rate):
    """Loss in both directions on all QPs; each message delivered once, in order, with its data."""
    b = SendBench(seed, tick_cycles=8, stall=0.1, lose=lambda direction, p: rng.random() < rate, latency=(1, 60))
    for qpi in range(16):
        b.connect(qpi, pmtu=256, psn=rng.randrange(1 << 24), timeout=4, retry_cnt=7)
        b.delay = 30
    for n, (opcode, length) in enumerate(WORK):
        for qpi in range(16):
            b.post(qpi, opcode, length, offset=n*5000)
    b.run(lambda: len(b.cqes) + 7*len(b.events) >= 16*len(WORK), cycles=400_000)
    for qpi in range(16):
        if not any(e.queue == qpi for e in b.events):
            peer = b.peers[qpi]
            assert len(peer.sends) == 3 and len(peer.writes) == 2
    if rate < 0.1:
        for qpi in range(16):
            check_work(b, qpi)


def test_timeout_value(seed):
    """Never before T = 4.096 us * 2^n, and not much after; each repetition asks for an ACK."""
    b = SendBench(seed, tick_cycles=16, lose=lambda direction, p: direction == "tx")
    b.connect(0, timeout=2, retry_cnt=3)
    b.post(0, WR_SEND, 6000)                # two bursts.
    b.completed(1)
    starts = [p.first for p in b.packets if p.psn == 0x1000]
    assert len(starts) == 4
    wait = 16*4*16
    for gap in (after - before for before, after in zip(starts, starts[1:])):
        assert wait <= gap <= wait + N_QPS*SCAN_CYCLES + 16 + 100
    assert b.cqes[0].status == WC_RETRY_EXC_ERR
    # Message end each time, and the end of each repeated burst.
    assert sum(p.ackreq for p in b.packets) == 4 + 3


def test_timer_starts_with_work(seed):
    """The time an idle QP has spent does not count."""
    b = SendBench(seed, tick_cycles=4)
    b.connect(0, timeout=3)                 # 512 cycles.
    b.delay = 300
    for turn in range(3):
        b.post(0, WR_SEND, 10)
        b.completed(turn + 1)
        b.run(cycles=3000)
    assert len(b.packets) == 3


@pytest.mark.parametrize("timeout", [0, 27, 28, 31])
def test_no_timeout(seed, timeout):
    """Time-out code 0: no timer. The longest ones, 4.096 us * 2^31, do not end before their time."""
    b = SendBench(seed, tick_cycles=1, lose=lambda direction, p: direction == "tx")
    b.connect(0, timeout=timeout)
    b.post(0, WR_SEND, 10)
    b.run(cycles=20_000)
    assert len(b.packets) == 1 and not b.cqes


@pytest.mark.parametrize("retry_cnt", [0, 1, 7])
def test_retry_exceeded(seed, retry_cnt):
    """retry_cnt + 1 transmissions, then the oldest fails, the others are flushed, one event; other QPs go on."""
    b = SendBench(seed, tick_cycles=4, lose=lambda direction, p: direction == "tx" and p.qpi == 0)
    b.connect(0, timeout=1, retry_cnt=retry_cnt)
    b.connect(1)
    for _ in range(40):
        b.post(0, WR_SEND, 10)
    b.run(lambda: b.events)
    b.flushed(0)
    b.post(1, WR_SEND, 10)
    b.completed(41)
    expect_cqes(b, 0, [WC_RETRY_EXC_ERR] + [5]*39)
    expect_cqes(b, 1, [0])
    assert [(e.type, e.queue) for e in b.events] == [(abi.EVENT_QP_FATAL, 0)]
    assert len([p for p in b.packets if p.psn == 0x1000 and p.qpi == 0]) == retry_cnt + 1


def test_progress_reloads(seed):
    """More losses than retry_cnt, but with progress between them."""
    lost = set()

    def lose(direction, p):
        if direction == "tx" and p.psn % 2 and p.psn not in lost:
            lost.add(p.psn)
            return True
        return False
    b = SendBench(seed, tick_cycles=4, lose=lose)
    b.connect(0, pmtu=256, timeout=1, retry_cnt=1)
    for _ in range(20):
        b.post(0, WR_SEND, 256)
    b.completed(20)
    expect_cqes(b, 0, [0]*20)
    assert len(lost) == 10


def test_nak_once_in_a_gap(seed):
    """A repeated sequence NAK of the same gap does not cost another retry."""
    b = SendBench(seed)
    b.connect(0, pmtu=256, retry_cnt=1)
    b.peers[0].force = {0x1002: 0x60}
    b.post(0, WR_SEND, 2000)
    b.run(lambda: len(b.packets) >= 8)
    for _ in range(3):
        b.respond(0, opcode=by_name("RC_ACKNOWLEDGE").value, psn=0x1002, syndrome=0x60)
    b.completed(1)
    expect_cqes(b, 0, [0])


# RNR ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("code", range(32))
def test_rnr_wait(seed, code):
    """The wait of each RNR timer code; short ones to the clock, long ones are still waiting."""
    b = SendBench(seed, tick_cycles=1)
    b.connect(0)
    b.peers[0].force = {0x1000: 0x20 | code}
    b.post(0, WR_SEND, 10)
    units = RNR_TIMER_10US[code]
    if units > 100:
        b.run(cycles=100*40)
        assert len(b.packets) == 1
        return
    b.completed(1)
    gap = b.packets[1].first - b.packets[0].first
    assert units*40 <= gap <= units*40 + N_QPS*SCAN_CYCLES + 150
    expect_cqes(b, 0, [0])


@pytest.mark.parametrize("rnr_retry", [0, 1, 6])
def test_rnr_exceeded(seed, rnr_retry):
    """rnr_retry finite: that many retries, then RNR_RETRY_EXC_ERR."""
    b = SendBench(seed, tick_cycles=1)
    b.connect(0, rnr_retry=rnr_retry)
    b.peers[0].force = Always(0x1001, 0x21)
    for _ in range(4):
        b.post(0, WR_SEND, 10)
    b.completed(4)
    expect_cqes(b, 0, [0, WC_RNR_RETRY_EXC_ERR, 5, 5])
    assert len([p for p in b.packets if p.psn == 0x1001]) == rnr_retry + 1


def test_rnr_forever(seed):
    """rnr_retry 7 never gives up; other QPs are not held up."""
    b = SendBench(seed, tick_cycles=1)
    b.connect(0, rnr_retry=7, timeout=3, retry_cnt=0)
    b.connect(1)
    b.peers[0].force = Always(0x1000, 0x21)
    b.post(0, WR_SEND, 10)
    b.run(lambda: len(b.packets) >= 12)
    for _ in range(10):
        b.post(1, WR_SEND, 10)
    b.completed(10)
    b.peers[0].force = {}
    b.completed(11)
    assert not b.events


class Always(dict):
    """A syndrome for a PSN, every time."""
    def __init__(self, psn, syndrome):
        super().__init__({psn: syndrome})

    def pop(self, key):
        return self[key]


def test_nak_during_rnr(seed):
    """A sequence NAK during the RNR wait does not end it."""
    b = SendBench(seed, tick_cycles=1)
    b.connect(0)
    b.peers[0].force = {0x1001: 0x29}
    for _ in range(3):
        b.post(0, WR_SEND, 10)
    b.run(lambda: len(b.packets) >= 3)
    b.run(cycles=100)
    b.respond(0, opcode=by_name("RC_ACKNOWLEDGE").value, psn=0x1001, syndrome=0x60)
    b.run(cycles=600)
    assert len(b.packets) == 3
    b.completed(3)
    expect_cqes(b, 0, [0]*3)
    assert b.packets[3].first - b.packets[1].first >= 24*40


# Control ------------------------------------------------------------------------------------------

def test_err_flushes_in_order(seed):
    """QP to ERR in the middle of traffic: done ones completed, all others flushed, each once, in order."""
    for cycles in range(150, 500, 30):
        b = SendBench(seed, latency=(1, 30))
        b.connect(0, pmtu=256)
        for _ in range(40):
            b.post(0, WR_SEND, 600, flags=0)
        b.run(cycles=cycles)
        b.flushed(0)
        b.run(cycles=3000)
        wr_ids = [w["wr_id"] for w in b.posted[0]]
        assert [c.status for c in b.cqes] == [5]*len(b.cqes)
        assert [c.wr_id for c in b.cqes] == wr_ids[40 - len(b.cqes):]
        b.post(0, WR_SEND, 5)
        b.run(cycles=500)
        assert b.cqes[-1].wr_id == b.posted[0][-1]["wr_id"]


def test_flushed_work_answers_no_control(seed):
    """In ERR every message ends as flushed; the answer of a control operation comes with that operation alone."""
    b = SendBench(seed, latency=(1, 30))
    b.step = 1
    b.connect(0)
    b.post(0, WR_SEND, 5)
    b.completed(1)
    b.flushed(0)
    done = []
    serve, b.serve = b.serve, lambda: (done.append(b.sim.peek("wdone")), serve())
    for _ in range(10):
        b.post(0, WR_SEND, 5)
    b.completed(11)
    b.run(cycles=200)
    assert [c.status for c in b.cqes[1:]] == [5]*10 and not any(done)


@pytest.mark.parametrize("rnr", [False, True])
def test_flush_after_rewind(seed, rnr):
    """Work flushed by a QP that was rewound counts behind all that is outstanding, whatever is acknowledged later.

    With an RNR wait the walker is asked once more when it ends, behind all that was acknowledged.
    """
    b = SendBench(seed, tick_cycles=16)
    b.step = 1
    b.connect(0)
    b.delay = 1 << 30
    for _ in range(25):
        b.post(0, WR_SEND, 10)
    b.run(lambda: len(b.packets) == 25)
    b.run(cycles=50)
    b.tx.set(stall=0.95)
    b.respond(0, opcode=by_name("RC_ACKNOWLEDGE").value, psn=0x1000, syndrome=0x60)
    b.run(lambda: len(b.packets) > 25)
    if rnr:
        b.respond(0, opcode=by_name("RC_ACKNOWLEDGE").value, psn=0x1000, syndrome=0x21)
        b.run(cycles=20)
    b.rctl.send(qpi=0, op=CTL_ERR)
    b.run(cycles=300)
    for _ in range(3):
        b.post(0, WR_SEND, 10)
    b.run(cycles=300)
    b.respond(0, opcode=by_name("RC_ACKNOWLEDGE").value, psn=0x1018, syndrome=0x1f)
    b.run(cycles=1200 if rnr else 300)
    b.cctl.send(qpi=0, op=CTL_ERR)
    b.completed(28)
    expect_cqes(b, 0, [0]*25 + [5]*3)


# Figures ------------------------------------------------------------------------------------------

def test_small_messages(seed, capsys):
    """B2: one QP, 64-byte WRITEs, deep queue: at most 8 cycles a packet."""
    b = SendBench(seed)
    b.step = 1
    b.connect(0, pmtu=1024)
    for _ in range(30):
        b.post(0, WR_RDMA_WRITE, 64, flags=0, ring=False)
    b.ring(0)
    b.run(lambda: len(b.packets) >= 30)
    times = [p.first for p in b.packets][4:]
    cycles = (times[-1] - times[0])/(len(times) - 1)
    with capsys.disabled():
        print(f"\nB2 one QP, 64 B WRITE: {cycles:.2f} cycles a packet")
    assert cycles <= 8


def test_small_messages_many_qps(seed, capsys):
    """B1: 64-byte SENDs of 16 QPs: no more than 4 cycles a packet (3 beats + 1)."""
    b = SendBench(seed)
    b.step = 1
    for qpi in range(16):
        b.connect(qpi)
    for qpi in range(16):
        for _ in range(30):
            b.post(qpi, WR_SEND, 64, flags=0, ring=False)
    for qpi in range(16):
        b.ring(qpi)
    b.run(lambda: len(b.packets) >= 480)
    times = [p.first for p in b.packets][40:440]
    cycles = (times[-1] - times[0])/(len(times) - 1)
    with capsys.disabled():
        print(f"\nB1 16 QPs, 64 B SEND: {cycles:.2f} cycles a packet")
    assert cycles <= 4


@pytest.mark.parametrize("pmtu", [256, 1024, 4096])
def test_streaming(seed, capsys, pmtu):
    """B3: one QP, long WRITE: the requester keeps ahead of max(2, beats)."""
    b = SendBench(seed)
    b.step = 1
    b.connect(0, pmtu=pmtu)
    b.post(0, WR_RDMA_WRITE, 1 << 18)
    b.completed(1)
    times  = [p.first for p in b.packets]
    cycles = (times[-1] - times[0])/(len(times) - 1)
    with capsys.disabled():
        print(f"\nB3 one QP, WRITE, PMTU {pmtu}: {cycles:.2f} cycles a packet")
    assert cycles <= pmtu/64


def test_nak_to_retransmission(seed, capsys):
    """B7: response record of the NAK in to the first repeated tx_packet, 10 messages acknowledged by it."""
    b = SendBench(seed, latency=4)
    b.step = 1
    b.delay = 1 << 30
    b.connect(0, pmtu=256)
    for _ in range(12):
        b.post(0, WR_SEND, 64, ring=False)
    b.ring(0)
    b.run(lambda: len(b.packets) >= 12)
    b.run(cycles=100)
    start = b.sim.cycles()
    b.respond(0, opcode=by_name("RC_ACKNOWLEDGE").value, psn=0x100a, syndrome=0x60)
    b.run(lambda: len(b.packets) > 12)
    cycles = b.packets[12].first - start
    with capsys.disabled():
        print(f"\nB7 NAK behind 10 messages: {cycles} cycles to the first repeated packet")
    assert b.packets[12].psn == 0x100a
    assert cycles <= 64 + 60


def test_nak_under_load(seed, capsys):
    """B7 while a long WRITE waits for the wire: what was queued before the rewind is not sent any more."""
    b = SendBench(seed)
    b.step = 1
    b.connect(0, pmtu=4096)
    b.tx.set(stall=0.985)
    b.post(0, WR_RDMA_WRITE, 1 << 20)
    b.run(lambda: len(b.packets) >= 10)
    b.delay = 1 << 30
    sent = len(b.packets)
    b.respond(0, opcode=by_name("RC_ACKNOWLEDGE").value, psn=0x1004, syndrome=0x60)
    b.run(lambda: any(p.psn == 0x1004 for p in b.packets[sent:]))
    stale = next(n for n, p in enumerate(b.packets[sent:]) if p.psn == 0x1004)
    with capsys.disabled():
        print(f"\nB7 under load: {stale} packets between the NAK and the first repeated one")
    assert stale <= 2


def test_read_responses(seed, capsys):
    """B3: one QP, READ responses of PMTU 256 back to back: no slower than the wire (6.76 cycles at 250 MHz)."""
    b = SendBench(seed)
    b.step = 1
    b.connect(0, pmtu=256)
    b.post(0, WR_RDMA_READ, 1 << 15)
    b.completed(1)
    times  = [first for _, first, _, _ in b.response.times()]
    cycles = (times[-1] - times[0])/(len(times) - 1)
    with capsys.disabled():
        print(f"\nB3 one QP, READ responses, PMTU 256: {cycles:.2f} cycles a packet")
    assert cycles <= 6.76
    assert b.buffer(0, 0, 1 << 15) == b.peers[0].read_data(b.posted[0][0]["remote_va"], 1 << 15)
