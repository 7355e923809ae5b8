# SPDX-License-Identifier: BSD-2-Clause
"""A page that is not on chip, on the receive side: a request or READ reply that misses is put off, with its QP, and nobody else."""
import random

import pytest

from roce_soc.common import CTL_ERR, CTL_RESET, CTL_START
from roce_soc.memory.deferred import PATIENCE
from sim.harness import build
from test import reply_bench
from test.responder_bench import *

ELSE = 0x0333                    # MR 3: the region whose pages are absent.
ELSE_VA, ELSE_ADDR = 0x6600_0000_0000, 0x30_0000


@pytest.fixture(scope="module")
def so():
    return compiled()


@pytest.fixture(scope="module")
def reply_so():
    return reply_bench.compiled()


def bench(so, *qps, **options):
    """QPs and the region ELSE."""
    b = Bench(so, **options)
    b.region(ELSE, 2 | 4 | 1, ELSE_VA, ELSE_ADDR)
    b.memory.write(ELSE_ADDR, bytes(REGION))
    for qpi in qps:
        b.qp(qpi)
    return b


def absent_write(b, qpi, data, offset=0, **fields):
    b.message(qpi, "WRITE", data, va=ELSE_VA + offset, rkey=ELSE, **fields)


# Requests -----------------------------------------------------------------------------------------

def test_only_its_own_qp_waits(so):
    """Requests of a QP behind one that misses wait, in order, whatever they are; those of others are executed and answered."""
    b = bench(so, 1, 2)
    b.absent(ELSE)
    absent_write(b, 1, b"first")
    b.read(1, 300)
    b.write(1, b"behind", offset=0)
    for n in range(40):
        b.write(2, b"flows", offset=0x100*n + 0x100)
        b.write(1, bytes([n]), offset=0x10 + n)
    b.run(2*PATIENCE + 400)
    assert {a[0] for a in b.tx} == {2} and [a[1] for a in b.answers()] == list(range(100, 140))
    assert b.memory.read(REMOTE_ADDR, 6) == bytes(6) and b.memory.read(ELSE_ADDR, 5) == bytes(5)
    b.absent()
    b.idle()
    assert b.memory.read(ELSE_ADDR, 5) == b"first" and b.memory.read(REMOTE_ADDR, 6) == b"behind"
    assert b.memory.read(REMOTE_ADDR + 0x10, 40) == bytes(range(40))
    answers = b.answers()
    assert [a[:2] for a in answers[:3]] == [("ACK", 100), ("READ_FIRST", 101), ("READ_LAST", 102)] and answers[-1][1] == 143
    assert not b.refusals


@pytest.mark.parametrize("length", [1, 64, 256, 600, 3000])
def test_lengths(so, length):
    """Messages of any length that miss at any of their packets are placed whole."""
    rng  = random.Random(length)
    data = rng.randbytes(length)
    b = bench(so, 1)
    for n in range(6):
        absent_write(b, 1, data, offset=0x1000*n + n)
        b.run(rng.randrange(40))
        b.absent(ELSE)
        b.run(rng.randrange(300))
        b.absent()
    b.idle()
    for n in range(6):
        assert b.memory.read(ELSE_ADDR + 0x1000*n + n, length) == data
    assert not b.refusals and b.answers()[-1][3] == 6


def test_receive_buffers(so):
    """SENDs into a buffer that is not there complete in order with the right bytes; the immediate WRITE behind them too."""
    b = bench(so, 1)
    for n in range(4):
        b.post(1, va=ELSE_VA + 0x1000*n, lkey=ELSE)
    b.absent(ELSE)
    for n in range(3):
        b.message(1, "SEND", bytes([n + 1])*300)
    b.write(1, b"with", imm=77)
    b.run(800)
    assert not b.cqes and not b.tx
    b.absent()
    b.idle()
    assert [(c.wr_id & 0xff, c.status, c.byte_len) for c in b.cqes] == [(0, 0, 300), (1, 0, 300), (2, 0, 300), (3, 0, 4)]
    assert [b.memory.read(ELSE_ADDR + 0x1000*n, 300) for n in range(3)] == [bytes([n + 1])*300 for n in range(3)]


def test_miss_again(so):
    """The page is gone again when the QP asks: it waits on, nothing is lost, nothing comes twice."""
    b = bench(so, 1)
    b.absent(ELSE)
    for n in range(20):
        absent_write(b, 1, bytes([n + 1])*80, offset=100*n)
    for _ in range(30):
        b.sim.poke("page", 1)
        b.run(4)
        b.sim.poke("page", 0)
        b.run(60)
    assert not b.tx and b.memory.read(ELSE_ADDR, 80) == bytes(80)
    b.absent()
    b.idle()
    assert all(b.memory.read(ELSE_ADDR + 100*n, 80) == bytes([n + 1])*80 for n in range(20))
    assert b.answers()[-1] == ("ACK", 119, 0x1f, 20)


def test_nobody_wakes(so):
    """A page that came while its miss was on its way wakes nobody: the QP asks again by itself."""
    b = bench(so, 1)
    b.absent(ELSE)
    absent_write(b, 1, b"late")
    b.run(60)
    b.sim.poke("absent", 0)
    b.run(PATIENCE + 100)
    assert b.memory.read(ELSE_ADDR, 4) == b"late" and [a[:2] for a in b.answers()] == [("ACK", 100)]


def test_region_goes_meanwhile(so):
    """The region is invalidated while its page is awaited: the command does not wait for it, the request is refused."""
    b = bench(so, 1)
    b.absent(ELSE)
    absent_write(b, 1, b"gone")
    b.run(60)
    b.region(ELSE, 0, 0, 0, valid_row=0)
    assert not b.mrwrite.pending
    b.absent()
    b.idle()
    assert b.answers() == [("ACK", 100, 0x62, 0)] and b.refusals == ["MR_KEY"]
    assert b.memory.read(ELSE_ADDR, 4) == bytes(4)


@pytest.mark.parametrize("op", [CTL_RESET, CTL_ERR])
def test_control(so, op):
    """RESET and ERR while a page is awaited: done when it has come; all receives come back; the next life is clean."""
    b = bench(so, 1, 2)
    for n in range(6):
        b.post(1, va=ELSE_VA + 0x1000*n, lkey=ELSE)
    b.absent(ELSE)
    for n in range(4):
        b.message(1, "SEND", bytes([n + 1])*300)
    b.run(400)
    b.ctl.send(qpi=1, op=op)
    b.run(400)
    b.write(2, b"flows")
    b.run(200)
    assert b.ctl.pending and [a[:2] for a in b.answers()] == [("ACK", 100)]
    b.absent()
    b.idle()
    assert not b.ctl.pending
    if op == CTL_ERR:
        assert len(b.cqes) == 6
        return
    b.qp(1, psn=500)
    absent_write(b, 1, b"new life")
    b.idle()
    assert b.memory.read(ELSE_ADDR, 8) == b"new life"


def test_many_qps(so):
    """All QPs miss at once, with more packets than places: nobody else is held up for long, everything is answered in the end."""
    b = bench(so, *range(N_QPS))
    b.absent(ELSE)
    for n in range(20):
        for qpi in range(1, N_QPS):
            absent_write(b, qpi, bytes([qpi, n]), offset=0x100*qpi + 2*n)
        b.write(0, b"flows", offset=16*n)
    b.run(2500)
    dropped = b.take("refusals").count("BUFFER_FULL")
    assert {a[0] for a in b.tx} == {0} and len(b.answers()) == 20 and dropped < 100
    b.absent()
    b.idle()
    if not dropped:
        for qpi in range(1, N_QPS):
            assert b.memory.read(ELSE_ADDR + 0x100*qpi, 40) == b"".join(bytes([qpi, n]) for n in range(20))


# READ replies -------------------------------------------------------------------------------------

def test_reads_of_others(reply_so):
    """Replies of a QP that misses wait, with its acknowledges; another QP's READs go; then all leave in PSN order."""
    b = reply_bench.Bench(reply_so)
    gone  = set(range(0x9000, 0xb000))
    b.miss = lambda r: r.va in gone
    for qpi in (1, 2):
        b.read(qpi, 0, 600, va=0x1000)               # the first leaves by the short way.
    b.run(400)
    b.take()
    b.read(1, 3, 700, va=0x9000)
    b.read(1, 6, 700, va=0x9300)
    for n in range(8):
        b.ack(1, 9 + n)
        b.read(2, 3 + 3*n, 700, va=0x2000)
        b.run(100)
    b.run(400)
    seen = b.take()
    # What the responder has checked at the request may leave before its page is missed.
    assert [p[2] for p in seen if p[0] == 2] == list(range(3, 27)) and all(p[2] < 5 for p in seen if p[0] == 1)
    gone.clear()
    b.page()
    b.run(800)
    psns = [p[2] for p in seen + b.take() if p[0] == 1]
    assert psns == sorted(psns) and psns[:6] == [3, 4, 5, 6, 7, 8] and psns[-1] == 16
    assert b.reads_done(1) == 3 and b.sim.peek("free") == 256


def test_random_misses_of_replies(reply_so):
    """Every third check misses at random: all replies of four QPs leave, each QP's in order; a control mark comes behind its own."""
    rng = random.Random(5)
    b   = reply_bench.Bench(reply_so)
    b.miss = lambda r: rng.random() < .3
    psn = [0]*4
    for _ in range(60):
        qpi, length = rng.randrange(4), rng.choice((0, 1, 256, 600, 1500))
        if b.index[qpi] - b.reads_done(qpi) & 31 < 8:
            b.read(qpi, psn[qpi], length, va=0x1000*rng.randrange(16))
            psn[qpi] += max(1, -(-length//256))
        if rng.random() < .4:
            b.page()
        b.run(rng.randrange(200))
    for _ in range(60):
        b.page()
        b.run(100)
    out = b.take()
    for qpi in range(4):
        assert [p[2] for p in out if p[0] == qpi] == list(range(psn[qpi]))
    assert b.sim.peek("free") == 256
    marks = b.marks
    b.sink.send(kind=reply_bench.REPLY_CTL, qpi=1, code=CTL_START)
    b.run(400)
    assert b.marks == marks + 2


def test_back_to_back(so):
    """A QP's packets that stand one behind the other when the first one misses: in order, receives and duplicates among them."""
    b = bench(so, 1)
    for n in range(6):
        b.post(1, va=ELSE_VA + 0x8000 + 0x1000*n, lkey=ELSE)
    b.place.set(stall=1.0)
    b.absent(ELSE)
    for n in range(6):
        absent_write(b, 1, bytes([n + 1])*100, offset=0x200*n)
        b.message(1, "SEND", bytes([n + 0x41])*100)
        b.send(1, "WRITE_ONLY", b"again", psn=100, va=ELSE_VA, rkey=ELSE, dma_length=5)
    b.run(300)
    b.place.set(stall=0)
    b.run(400)
    assert not b.cqes and not b.tx
    b.absent()
    b.idle()
    assert [(c.wr_id & 0xff, c.status, c.byte_len) for c in b.cqes] == [(n, 0, 100) for n in range(6)]
    for n in range(6):
        assert b.memory.read(ELSE_ADDR + 0x200*n, 100) == bytes([n + 1])*100
        assert b.memory.read(ELSE_ADDR + 0x8000 + 0x1000*n, 100) == bytes([n + 0x41])*100
    assert b.answers()[-1][:2] == ("ACK", 111) and set(b.refusals) == {"PSN_DUPLICATE"}


@pytest.mark.parametrize("others", range(4))
def test_others_between(so, others):
    """Packets of other QPs stand between those of the one that misses: still in order, whatever the distance."""
    b = bench(so, *range(1, 2 + others))
    b.place.set(stall=1.0)
    b.absent(ELSE)
    for n in range(6):
        if n:
            b.write(1, bytes([n]), offset=0x100)         # all to one place: the last one stays.
        else:
            absent_write(b, 1, b"missed")
        for qpi in range(2, 2 + others):
            b.write(qpi, bytes([n + 1]), offset=qpi)
    b.run(300)
    b.place.set(stall=0)
    b.run(400)
    assert {a[0] for a in b.tx} == set(range(2, 2 + others)) and b.memory.read(REMOTE_ADDR + 0x100, 1) == b"\0"
    b.absent()
    b.idle()
    assert b.memory.read(ELSE_ADDR, 6) == b"missed" and b.memory.read(REMOTE_ADDR + 0x100, 1) == b"\5"
    assert [a[1] for a in b.tx if a[0] == 1] == sorted(a[1] for a in b.tx if a[0] == 1) and not b.refusals


def test_error_behind_a_miss(so):
    """A request that fails behind one that waits fails after it: the first is executed and counted, then the NAK names the second."""
    b = bench(so, 1)
    b.place.set(stall=1.0)
    b.absent(ELSE)
    absent_write(b, 1, b"good")
    b.message(1, "WRITE", b"bad!", va=REMOTE_VA, rkey=0x0999)
    b.write(1, b"behind")
    b.run(200)
    b.place.set(stall=0)
    b.run(400)
    assert not b.tx and not b.refusals
    b.absent()
    b.idle()
    assert b.memory.read(ELSE_ADDR, 4) == b"good" and b.memory.read(REMOTE_ADDR, 6) == bytes(6)
    assert b.answers()[-1] == ("ACK", 101, 0x62, 1) and b.refusals == ["MR_KEY", "QP_STATE"]


def test_fault_before_a_miss(so):
    """A placement fails while a page is awaited behind it: the receive that waits there is flushed once."""
    b = bench(so, 1, hold=200)
    b.place_error = lambda record: 3 if record.length == 6 else 0
    b.post(1), b.post(1)
    b.absent(ELSE)
    b.place.set(stall=1.0)
    b.write(1, b"faulty")
    absent_write(b, 1, b"missed")
    b.message(1, "SEND", b"taken")
    b.run(300)
    b.place.set(stall=0)
    b.run(800)
    b.absent()
    b.idle()
    assert b.answers()[-1][:3] == ("ACK", 100, 0x63)
    assert [(c.wr_id & 0xff, c.status) for c in b.cqes] == [(0, 5)]


def test_no_gap(so):
    """A flood with a request in every clock leaves no gap: one is made, and what waited goes on in the midst of it."""
    b = bench(so, *range(1, N_QPS))
    b.absent(ELSE)
    absent_write(b, 1, b"waited")
    b.run(60)
    for n in range(2000):
        b.send(2 + n % (N_QPS - 2), "WRITE_ONLY", va=REMOTE_VA, rkey=RKEY, dma_length=0)
    b.run(40)
    b.absent()
    b.run(200)
    assert b.packet.pending > 500 and b.memory.read(ELSE_ADDR, 6) == b"waited"
    b.idle()


def test_more_than_places():
    """More QPs miss than there are places: no more packets are let in, none is lost, and all is executed when the pages come."""
    top = ResponderSide(512)
    b   = bench(build(top, top.ports(), name="responder512"))
    for qpi in range(400):
        b.qp(qpi, ring=False)
    b.absent(ELSE)
    for qpi in range(400):
        absent_write(b, qpi, bytes([qpi & 255, qpi >> 8]), offset=2*qpi)
    b.run(2000)
    assert b.packet.pending and not b.tx
    b.absent()
    b.idle()
    assert b.memory.read(ELSE_ADDR, 800) == b"".join(bytes([qpi & 255, qpi >> 8]) for qpi in range(400))
    assert not b.refusals


def test_a_long_read_waits_alone(reply_so):
    """The replies of a long READ that misses do not take the places of others: its turns go round."""
    b = reply_bench.Bench(reply_so)
    b.miss = lambda r: r.va >= 0x100000
    for qpi in (1, 2):
        b.read(qpi, 0, 300)
    b.run(400)
    b.take()
    b.read(1, 2, 256*600, va=0x100000)
    b.run(6000)
    for n in range(10):
        b.read(2, 2 + 3*n, 700)
    b.run(1500)
    assert [p[2] for p in b.take() if p[0] == 2] == list(range(2, 32)) and b.sim.peek("free") > 240
    b.miss = lambda r: 0
    b.page()
    b.run(12_000)
    assert b.reads_done(1) == 2
