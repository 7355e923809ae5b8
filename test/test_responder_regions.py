# SPDX-License-Identifier: BSD-2-Clause
"""transport/responder and memory/mr: regions taken away or written over while requests and replies use them."""
import random

import pytest

from test.responder_bench import *

ACC = 0x62


@pytest.fixture(scope="module")
def so():
    return compiled()


def data_of(n, seed=1):
    return random.Random(seed*100003 + n).randbytes(n)


def test_region_removed_during_a_write(so):                           # case 50
    b = Bench(so)
    b.qp(1)
    b.send(1, "WRITE_FIRST", data_of(256), va=REMOTE_VA, rkey=RKEY, dma_length=768)
    b.run()
    b.region(RKEY, 0, 0, 0, valid_row=0)
    b.send(1, "WRITE_MIDDLE", data_of(256), ackreq=1)
    b.send(1, "WRITE_LAST", data_of(256), ackreq=1)
    b.idle()
    assert b.answers() == [("ACK", 101, ACC, 0)]
    assert b.memory.read(REMOTE_ADDR + 256, 512) == bytes(512)


def test_region_removed_before_a_read_starts(so):
    b = Bench(so)
    b.qp(1)
    b.reads.set(stall=1.0)
    b.read(1, 256*30)
    b.read(1, 8)
    b.write(1, b"behind", offset=64)
    b.run(300)
    b.region(RKEY, 0, 0, 0, valid_row=0, wait=False)
    assert b.mrwrite.pending                                          # replies are on their way out.
    b.reads.set(stall=0)
    b.idle()
    assert not b.mrwrite.pending
    answers = b.answers()
    assert answers[-1][2] == ACC and answers[-1][0] == "ACK"
    assert [a[1] for a in answers] == list(range(100, answers[-1][1] + 1))
    assert [BY_INDEX[e.info].name for e in b.events] == ["MR_KEY"]


@pytest.mark.parametrize("k", range(0, 120, 8))
def test_region_removed_between_the_replies_of_a_read(so, k):
    """NAK at the PSN behind the last reply, nothing behind it; the QP goes to ERR."""
    b = Bench(so, seed=k)
    b.qp(1)
    b.reads.set(stall=.9)
    b.read(1, 256*60)
    b.write(1, b"behind", offset=64)
    b.run(60 + k, every=1)
    b.region(RKEY, 0, 0, 0, valid_row=0, wait=False)
    b.reads.set(stall=0)
    b.idle()
    answers = b.answers()
    assert 1 < len(answers) < 60 and (answers[-1][0], answers[-1][2]) == ("ACK", ACC)
    assert [a[1] for a in answers] == list(range(100, 100 + len(answers)))
    assert [BY_INDEX[e.info].name for e in b.events] == ["MR_KEY"]


def test_region_removed_before_a_duplicate_read(so):
    """A READ that was answered is asked for again when its region is gone: dropped, counted once; the QP goes on."""
    b = Bench(so)
    b.qp(1)
    b.read(1, 600)
    b.read(1, 8)
    b.write(1, b"behind", offset=64, ackreq=0)
    b.run(300)
    b.take("tx")
    b.region(RKEY, 0, 0, 0, valid_row=0)
    b.read(1, 600, psn=100)
    b.read(1, 8, psn=103)
    b.run(400)
    assert not b.answers() and not b.events and b.take("refusals") == ["PSN_DUPLICATE"]*2
    b.region(RKEY, 2 | 4 | 1, REMOTE_VA, REMOTE_ADDR)
    b.read(1, 600, psn=100)
    b.write(1, b"lives", offset=64)
    b.idle()
    assert [a[1] for a in b.answers()] == [100, 101, 102, 105] and not b.events


def test_region_removed_while_a_read_starts(so):
    """A READ that is sent at once is not checked again: an invalidation told as done waits for it at any distance, also
    while another QP's duplicate is looked up."""
    held = 0
    for k in range(40):
        b = Bench(so, seed=k)
        for qpi in (1, 2):
            b.qp(qpi)
        for n in range(16):
            b.read(2, 8, offset=64*n)
            b.run(20)
        b.take("tx")
        b.read(2, 8, offset=32, psn=100)      # covered by none of the 16.
        b.run(14, every=1)                                            # it is being looked up.
        b.read(1, 8)
        b.run(k, every=1)
        b.take("tx")
        b.region(RKEY, 0, 0, 0, valid_row=0, wait=False)
        while b.mrwrite.pending:
            b.run(1, every=1)
        b.serve()
        held += len(b.tx)
        b.take("tx")
        b.run(300)
        assert not [t for t in b.tx if t[1].startswith("READ")], f"{k} clocks: a reply under a key that is gone"
        assert b.refusals.count("DUPLICATE_DROPPED") == 1
    assert held


def stalled_writes(so):
    """A bench whose five writes stand before a placer that does not take them."""
    b = Bench(so)
    b.qp(1)
    b.sim.step(10)
    b.place.set(stall=1.0)
    for n in range(5):
        b.write(1, b"data", offset=8*n)
    b.run(100)
    return b


def let_go(b):
    """The placer goes on; the five writes land before the region's row is taken."""
    b.place.set(stall=0)
    while b.mrwrite.pending:
        b.sim.step(1)
        b.serve()
    assert b.memory.read(REMOTE_ADDR + 32, 4) == b"data"


def test_removing_a_region_waits_for_placements(so):
    b = stalled_writes(so)
    b.region(RKEY, 0, 0, 0, valid_row=0, wait=False)
    b.write(1, b"late", offset=64)                                    # begun afterwards: refused, not awaited.
    b.run(100)
    assert b.mrwrite.pending == 1
    let_go(b)
    b.idle()
    assert b.memory.read(REMOTE_ADDR + 64, 4) == bytes(4) and b.answers()[-1][2] == ACC
    b.region(LKEY, 0, 0, 0, valid_row=0)                              # nothing in flight: at once.


def test_writing_over_a_region_waits_for_placements(so):
    """A region written over a valid one is not taken before the accesses through the old key have ended; then it is good at once."""
    b = stalled_writes(so)
    b.region(RKEY ^ 1, 2 | 4 | 1, REMOTE_VA, REMOTE_ADDR, wait=False)
    b.run(100)
    assert b.mrwrite.pending == 1
    let_go(b)
    b.sim.step(4)
    b.message(1, "WRITE", b"more", va=REMOTE_VA + 64, rkey=RKEY ^ 1)
    b.idle()
    assert b.memory.read(REMOTE_ADDR + 64, 4) == b"more"


def test_removing_a_region_gives_up_in_the_end(so):
    b = Bench(so)
    b.qp(1)
    b.place.set(stall=1.0)
    b.write(1, b"data")
    b.run(100)
    b.region(RKEY, 0, 0, 0, valid_row=0, wait=False)
    b.run(4000)
    assert b.mrwrite.pending
    b.run(2000)
    assert not b.mrwrite.pending
