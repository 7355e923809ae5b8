# SPDX-License-Identifier: BSD-2-Clause
"""transport/reply alone: coalescing, order of acknowledges and READ replies, failures, control."""
import random

import pytest

from roce_soc.common import CTL_ERR, CTL_RESET, CTL_START, OWNER_ACK, OWNER_RESPONDER
from roce_soc.errors import ERRORS
from roce_soc.transport.reply.reply import RoCEReply
from roce_soc.transport.responder.layout import REPLY_ACK, REPLY_CTL, REPLY_READ
from test.reply_bench import Bench, compiled


@pytest.fixture(scope="module")
def so():
    return compiled()


def test_newer_ack_replaces_older(so):
    b = Bench(so)
    b.control.set(stall=1.0)
    for psn in range(1, 60):
        b.ack(1, psn)
    b.run(300)
    b.control.set(stall=0)
    b.run(100)
    out = b.take()
    assert len(out) < 40 and out[-1] == (1, "ACKNOWLEDGE", 59, 0x1f, OWNER_ACK)
    assert [o[2] for o in out] == sorted(o[2] for o in out)


def test_nak_replaces_ack_and_stays(so):
    b = Bench(so)
    b.control.set(stall=1.0)
    for psn in range(1, 40):
        b.ack(2, psn)                                                 # fills the way out: the rest stays pending.
    b.nak(2, 40, 0x61)
    b.ack(2, 41)
    b.run(300)
    b.control.set(stall=0)
    b.run(200)
    out = b.take()
    assert (2, "ACKNOWLEDGE", 40, 0x61, OWNER_ACK) in out and (2, "ACKNOWLEDGE", 39, 0x1f, OWNER_ACK) not in out
    assert out[-1][2] == 40


def test_ack_before_read_leaves_before_it_and_after_follows(so):
    b = Bench(so)
    b.control.set(stall=1.0)
    for psn in range(1, 70):
        b.ack(1, psn)
        b.run(6)
    b.read(1, 70, 600)
    b.ack(1, 73)
    b.read(1, 74, 1)
    b.nak(1, 75)
    b.run(40)
    b.control.set(stall=0)
    b.run(300)
    out = b.take()
    # The acknowledge that found no place goes with the READ, those on the control path before it.
    assert [o[2] for o in out] == sorted(o[2] for o in out) and out[0][4] == OWNER_ACK
    assert [o[1:4] for o in out if o[4] == OWNER_RESPONDER] == [("ACKNOWLEDGE", 69, 0x1f), ("FIRST", 70, 256), ("MIDDLE", 71, 256), ("LAST", 72, 88), ("ACKNOWLEDGE", 73, 0x1f),
                   ("ONLY", 74, 1), ("ACKNOWLEDGE", 75, 0x60)]


def test_first_read_lets_acknowledges_pass(so):
    """The fetcher takes from both paths: the change from one to the other keeps the order."""
    b = Bench(so)
    b.control.set(stall=1.0)
    b.ack(1, 1)
    b.run(40)
    b.read(1, 2, 300)
    b.run(60)
    assert not b.take()
    b.control.set(stall=0)
    b.run(60)
    assert [o[2] for o in b.take()] == [1, 2, 3]
    b.control.set(stall=1.0)                                          # another QP's acknowledges hold up nothing.
    b.ack(2, 1)
    b.run(40)
    b.read(1, 4, 8)
    b.run(60)
    assert [o[2] for o in b.take()] == [4]


def test_reset_meets_every_clock_of_a_load(so):
    b = Bench(so)
    for k in range(40):
        for n in range(4):
            b.read(1, 10*n, 8)
        b.sink.send(kind=REPLY_CTL, qpi=1, code=CTL_RESET, idle=k)
        marks = b.marks
        b.until(lambda: b.marks == marks + 2)
        out = [o[2] for o in b.take()]
        assert out == [0, 10, 20, 30][:len(out)], k
        b.run(60)
        assert not b.take(), k                                        # answered means that nothing follows.
        b.sink.send(kind=REPLY_CTL, qpi=1, code=CTL_START)
        b.run(60)
        b.index[1] = b.reads_done(1)
        b.read(1, 77, 0)
        b.run(40)
        assert [o[2] for o in b.take()] == [77], k
        b.index[1] = b.reads_done(1)


def test_key_ranges_and_addresses(so):
    b = Bench(so)
    b.read(1, 0xffffff, 700, va=2**64 - 800)
    b.read(1, 2, 0, va=7)
    b.run(100)
    assert [o[1:4] for o in b.take()] == [("FIRST", 0xffffff, 256), ("MIDDLE", 0, 256), ("LAST", 1, 188), ("ONLY", 2, 0)]
    # The first one starts at once: its key was checked just now. Rests are checked when they start.
    assert b.checks == [(2**64 - 544, 256), (2**64 - 288, 188)]
    assert b.places == [2**64 - 799, 2**64 - 543, 2**64 - 287]
    assert b.reads_done(1) == 2


def test_turns(so):
    b = Bench(so)
    for qpi in (0, 1, 2, 3):
        b.read(qpi, 0, 256*20)
    b.run(300)
    order = [o[0] for o in b.take()]
    assert len(order) == 80 and all(abs(order[:n].count(0) - order[:n].count(3)) <= 3 for n in range(20, 70))


def test_full_ring_of_reads_wraps(so):
    b, rnd = Bench(so, stall=.3), random.Random(2)
    want, psn = [], 0
    for n in range(200):
        length = rnd.choice([0, 5, 256, 300, 600])
        b.read(3, psn, length)
        count  = max(1, -(-length//256))
        want  += [psn + k for k in range(count)]
        psn   += count
        b.until(lambda: (b.index[3] - b.reads_done(3)) % 32 < 16)
    b.run(600)
    assert [o[2] for o in b.take()] == want


def test_refused_read_stops_its_qp(so):
    b = Bench(so)
    b.refuse = lambda request: 36 if request.va == 0x9000 else 0
    b.read(1, 0, 300)
    b.read(1, 2, 300, va=0x9000)
    b.read(1, 4, 300)
    b.ack(1, 6)
    b.read(2, 0, 300)
    b.run(200)
    assert [o[:3] for o in b.take() if o[0] == 1] == [(1, "FIRST", 0), (1, "LAST", 1)]
    kill, = b.kill.recv_all()
    assert (kill.qpi, kill.psn, kill.row) == (1, 2, 36)
    b.ack(1, 7)
    b.read(1, 8, 3)
    b.nak(1, 2, 0x62)
    b.run(100)
    assert [o[:4] for o in b.take()] == [(1, "ACKNOWLEDGE", 2, 0x62)]
    assert not len(b.kill) and b.reads_done(2) == 1


def test_payload_error_is_told_once(so):
    b = Bench(so)
    b.error = lambda packet: 2 if packet.qpi == 1 and packet.length else 0
    for n in range(4):
        b.read(1, 10*n, 2000)
    b.run(300)
    kill, = b.kill.recv_all()
    assert (kill.qpi, kill.psn, kill.row) == (1, 0, ERRORS["MEMORY_FAULT"].index) and not b.take()
    assert b.reads_done(1) == 0
    # Started again, it works and counts on from where it stood.
    b.error = lambda packet: 0
    b.sink.send(kind=REPLY_CTL, qpi=1, code=CTL_RESET)
    b.sink.send(kind=REPLY_CTL, qpi=1, code=CTL_START)
    b.run(100)
    b.index[1] = 0
    b.read(1, 0, 2000)
    b.run(100)
    assert len(b.take()) == 8 and b.reads_done(1) == 1


def test_read_counts_with_its_last_reply(so):
    """A READ is done, and its place free for another, when its last reply has left, not before."""
    b = Bench(so)
    b.reads.set(stall=.9)
    b.read(1, 0, 256*20)
    for _ in range(1000):
        done, sent = b.reads_done(1), len(b.out)
        assert done == 0 or sent == 20, f"done behind {sent} of 20 replies"
        b.run(2)
    assert len(b.out) == 20 and b.reads_done(1) == 1


def test_a_failed_last_reply_does_not_count(so):
    """A READ whose last reply could not be read is not done."""
    b = Bench(so)
    b.error = lambda packet: 2*(packet.psn == 7)
    b.read(1, 0, 2000)
    b.run(300)
    assert len(b.take()) == 7 and b.reads_done(1) == 0 and len(b.kill.recv_all()) == 1


@pytest.mark.parametrize("count", [1, 5, 17])
def test_reset_begins_at_the_first_place(so, count):
    """READs counted in one life do not count in the next: its READs are the ring's from the first place on."""
    b = Bench(so)
    for n in range(count):
        b.read(1, n, 8)
        b.run(60)
    assert b.reads_done(1) == count and len(b.take()) == count
    b.sink.send(kind=REPLY_CTL, qpi=1, code=CTL_RESET)
    b.run(100)
    assert b.reads_done(1) == 0
    b.sink.send(kind=REPLY_CTL, qpi=1, code=CTL_START)
    b.run(60)
    b.index[1] = 0
    b.reads.set(stall=.9)
    for n in range(6):
        b.read(1, 100 + 2*n, 500, va=0x4000*n)
    b.run(600)
    assert [o[2] for o in b.take()] == list(range(100, 112)) and b.reads_done(1) == 6


@pytest.mark.parametrize("op", [CTL_RESET, CTL_ERR])
def test_control_cuts(so, op):
    b = Bench(so)
    b.reads.set(stall=.95)
    b.read(1, 0, 256*100)
    b.ack(1, 100)
    b.run(60)
    b.sink.send(kind=REPLY_CTL, qpi=1, code=op)
    marks = b.marks
    b.until(lambda: b.marks == marks + 2)
    assert 0 < len(b.take()) < 100
    b.run(300)
    b.ack(1, 101)
    b.read(1, 101, 8)
    b.run(200)
    assert not b.take()


def test_error_lets_the_last_nak_go(so):
    b = Bench(so)
    b.reads.set(stall=.8)
    b.read(1, 0, 256*20)
    b.nak(1, 20, 0x61)
    b.sink.send(kind=REPLY_CTL, qpi=1, code=CTL_ERR)
    b.run(600)
    assert [o[2] for o in b.take()] == list(range(21))


@pytest.mark.parametrize("seed", range(3))
def test_random_order(so, seed):
    """READs complete and in order, acknowledges never before the READs they cover nor out of order."""
    rnd = random.Random(seed)
    b   = Bench(so, seed=seed, stall=rnd.choice([0, .5, .9]))
    psn, want = [0]*4, [[] for _ in range(4)]
    for _ in range(600):
        q = rnd.randrange(4)
        if rnd.random() < .4 and (b.index[q] - b.reads_done(q)) % 32 < 16:
            length = rnd.choice([0, 1, 256, 700])
            b.read(q, psn[q], length)
            count = max(1, -(-length//256))
            want[q] += range(psn[q], psn[q] + count)
            psn[q] += count
        else:
            b.ack(q, psn[q])
            psn[q] += 1
        b.run(rnd.choice([0, 0, 0, 0, 2, 20]))
    b.run(3000)
    out = b.take()
    for q in range(4):
        mine = [o for o in out if o[0] == q and o[4] == OWNER_RESPONDER]
        assert [o[2] for o in mine] == sorted({o[2] for o in mine})
        assert [o[2] for o in mine if o[1] != "ACKNOWLEDGE"] == want[q]
        assert max(o[2] for o in out if o[0] == q) == psn[q] - 1


def test_at_once(so):
    """With nothing before it an acknowledge or READ needs one clock, by either path; a READ's rest is checked again."""
    b = Bench(so)
    records = [lambda n: b.ack(1, n), lambda n: b.read(1, n, 8), lambda n: b.ack(1, n), lambda n: b.read(1, n, 0),
               lambda n: b.read(1, n, 256), lambda n: b.read(1, n, 600, va=0x7000), lambda n: b.ack(2, n)]
    b.sink.times()
    for n, record in enumerate(records):
        b.clocks.clear()
        record(10*n)
        b.run(60)
        assert b.clocks[0] - b.sink.times()[0][1] == 1, n
    assert [o[2] for o in b.take()] == [0, 10, 20, 30, 40, 50, 51, 52, 60]
    assert b.checks == [(0x7100, 256), (0x7200, 88)]
    assert b.reads_done(1) == 4


def test_at_once_behind_anything(so):
    """A reply at every distance behind replies of its own and another QP: none passes one of its QP."""
    b, rnd, psn, want = Bench(so), random.Random(5), [0]*4, [[] for _ in range(4)]
    for k in range(24):
        for _ in range(24):
            qpi, kind = rnd.choice([1, 1, 2]), rnd.randrange(4)
            if kind < 2 or (b.index[qpi] - b.reads_done(qpi)) % 32 >= 8:
                b.sink.send(kind=REPLY_ACK, qpi=qpi, psn=psn[qpi], syndrome=0x1f, idle=rnd.choice([k, k, 0, 1]))
                psn[qpi] += 1
            else:
                length = rnd.choice([0, 8, 256, 300])
                b.read(qpi, psn[qpi], length, idle=rnd.choice([k, k, 0, 1]))
                count = max(1, -(-length//256))
                want[qpi] += range(psn[qpi], psn[qpi] + count)
                psn[qpi]  += count
            b.run(2*rnd.randrange(k + 2))
        b.run(400)
        out = b.take()
        for qpi in (1, 2):
            mine = [o for o in out if o[0] == qpi]
            assert [o[2] for o in mine] == sorted({o[2] for o in mine}), k
            assert [o[2] for o in mine if o[1] != "ACKNOWLEDGE"] == want[qpi], k
            assert not mine or mine[-1][2] == psn[qpi] - 1, k
            want[qpi].clear()


@pytest.mark.parametrize("op", [CTL_RESET, CTL_ERR])
def test_nothing_at_once_behind_control(so, op):
    """An acknowledge or READ at any distance behind a reset or failure of its QP never leaves."""
    b = Bench(so)
    for k in range(14):
        for kind in (REPLY_ACK, REPLY_READ):
            b.ack(1, 1)
            b.sink.send(kind=REPLY_CTL, qpi=1, code=op)
            b.sink.send(kind=kind, qpi=1, psn=2, idle=k)
            b.run(80)
            assert [o[2] for o in b.take()] == [1], (k, kind)
            b.sink.send(kind=REPLY_CTL, qpi=1, code=CTL_START)
            b.run(60)


@pytest.mark.parametrize("bad", [8, 17, 8192])
def test_bad_size(bad):
    with pytest.raises(ValueError, match="n_qps must be"):
        RoCEReply(bad)
