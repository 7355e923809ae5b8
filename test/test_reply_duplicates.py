# SPDX-License-Identifier: BSD-2-Clause
"""transport/reply alone: READs that are asked for again."""
from collections import Counter

import pytest

from roce_soc.common import CTL_ERR, CTL_RESET, CTL_START
from roce_soc.errors import BY_INDEX, ERRORS
from roce_soc.transport.responder.layout import REPLY_ACK, REPLY_CTL, REPLY_READ_AGAIN
from test.reply_bench import Bench, compiled


@pytest.fixture(scope="module")
def so():
    return compiled()


def while_it_stands(b, reads, again):
    """READs (PSN, packets), then one of them once more, while no reply leaves; PSNs of the replies."""
    b.reads.set(stall=1.0)
    for psn, packets in reads:
        b.read(1, psn, 256*packets, va=0)
    b.run(100)
    b.read(1, again[0], 256*again[1], va=0, kind=REPLY_READ_AGAIN)
    b.run(60)
    b.reads.set(stall=0)
    b.run(400)
    return [o[2] for o in b.take()]


def test_duplicates(so):
    b = Bench(so)
    for n in range(6):
        b.read(1, 10*n, 500, va=0x1000*n)
    b.run(200)
    b.take()
    # One is answered once more, several in their order, oldest first even when it comes last.
    b.read(1, 20, 500, va=0x2000, kind=REPLY_READ_AGAIN)
    b.run(200)
    assert [o[2] for o in b.take()] == [20, 21]
    for n in (2, 3, 4, 5):
        b.read(1, 10*n, 500, va=0x1000*n, kind=REPLY_READ_AGAIN)
    b.run(400)
    assert [o[2] for o in b.take()] == [20, 21, 30, 31, 40, 41, 50, 51]
    b.reads.set(stall=1.0)
    for n in (5, 4, 1):
        b.read(1, 10*n, 500, va=0x1000*n, kind=REPLY_READ_AGAIN)
        b.run(60)
    b.read(1, 55, 0, va=0x5000)
    b.reads.set(stall=0)
    b.run(300)
    psns = [o[2] for o in b.take()]
    assert psns[-1] == 55 and set(psns) == {10, 11, 40, 41, 50, 51, 55}
    assert b.reads_done(1) == 7
    # While it is under way: begins anew with FIRST.
    b.reads.set(stall=.9)
    b.read(1, 60, 256*30, va=0)
    b.run(100)
    b.read(1, 60, 256*30, va=0, kind=REPLY_READ_AGAIN)
    b.reads.set(stall=0)
    b.run(300)
    out = b.take()
    first = [i for i, o in enumerate(out) if o[1] == "FIRST"]
    assert len(first) == 2 and [o[2] for o in out[first[1]:]] == list(range(60, 90))
    # An older one interrupts the READ under way, which begins anew behind it.
    b.read(1, 90, 256*8, va=0)
    psns = while_it_stands(b, [(98, 50)], (90, 8))
    assert psns[-50:] == list(range(98, 148)) and psns[-58:-50] == list(range(90, 98)) and psns[:8] == list(range(90, 98))
    # Of a READ that is yet to come: it comes once, in its turn.
    assert while_it_stands(b, [(200, 30), (230, 2)], (230, 2)) == list(range(200, 232))
    assert {r.row for r in b.refusal.recv_all()} == {ERRORS["PSN_DUPLICATE"].index}
    # Out of range, other key, other address, too long.
    for fields in (dict(psn=5), dict(rkey=6), dict(va=1), dict(length=256*30 + 1), dict(last_psn=90)):
        fields = {**dict(psn=60, length=256*30, va=0), **fields}
        b.read(1, kind=REPLY_READ_AGAIN, **fields)
        b.run(200)
        assert not b.take(), fields
        assert [r.row for r in b.refusal.recv_all()] == [ERRORS["DUPLICATE_DROPPED"].index], fields


def test_duplicate_close_behind_its_read(so):
    b = Bench(so)
    b.reads.set(stall=1.0)
    for n in range(5):
        b.read(2, n, 4, va=0x100*n)
        b.read(2, n, 4, va=0x100*n, kind=REPLY_READ_AGAIN)
    b.run(300)
    b.reads.set(stall=0)
    b.run(200)
    assert [r.row for r in b.refusal.recv_all()] == [ERRORS["PSN_DUPLICATE"].index]*5
    assert {o[2] for o in b.take()} == set(range(5))


def rows(b):
    """Names of the rows counted, with their number."""
    return Counter(BY_INDEX[r.row].name for r in b.refusal.recv_all())


def ring_of(b, qpi=1):
    """16 READs of 4 bytes, answered."""
    for n in range(16):
        b.read(qpi, n, 4, va=0x100*n)
        b.run(40)
    b.run(200)
    b.take()


@pytest.mark.parametrize("rkey, found", [(6, 0), (5, 16)])
def test_look_ups_hold_up_nobody(so, rkey, found):
    """Whatever one peer asks again, a record a clock: the answers of other QPs leave within a few clocks."""
    b = Bench(so)
    ring_of(b)
    for n in range(200):
        b.read(1, n % 16, 4, va=0x100*(n % 16), rkey=rkey, kind=REPLY_READ_AGAIN)
        if n % 10 == 9:
            b.ack(2, n)
    begun = b.sim.cycles()
    b.until(lambda: any(o[0] == 2 and o[2] == 199 for o in b.out))
    assert b.sim.cycles() - begun <= 260
    b.run(2000)
    out, counts = b.take(), rows(b)
    assert {o[2] for o in out if o[0] == 1} == set(range(found))
    assert sum(counts.values()) == 200, counts                        # one row for each.
    assert counts["DUPLICATE_DROPPED"] >= 150 and (counts["PSN_DUPLICATE"] >= 16) == bool(found)


def test_a_share_of_the_look_ups_for_each(so):
    """While one QP has all its look-ups waiting another one finds places."""
    b = Bench(so)
    ring_of(b, 1)
    ring_of(b, 2)
    for n in range(60):
        b.read(1, 0, 4, va=0, kind=REPLY_READ_AGAIN)
    for n in range(16):
        b.read(2, n, 4, va=0x100*n, kind=REPLY_READ_AGAIN)
    b.run(2000)
    assert [o[2] for o in b.take() if o[0] == 2] == list(range(16))


def test_what_comes_behind_a_look_up_stays_behind(so):
    """Acknowledges and READs that came behind a duplicate leave behind its replies, found or not."""
    b = Bench(so)
    ring_of(b)
    for gap in (0, 1, 2, 5, 12, 30):
        for rkey, want in ((5, [3]), (6, [])):
            index = b.index[1]
            psn   = 100 + 10*index
            b.read(1, 3, 4, va=0x300, rkey=rkey, kind=REPLY_READ_AGAIN)
            b.ack(1, psn)
            b.sink.send(kind=REPLY_ACK, qpi=1, psn=psn + 1, syndrome=0x1f, idle=gap)
            b.run(300)
            out = [o[2] for o in b.take()]
            assert out[:len(want)] == want and out[len(want):][-1] == psn + 1, (gap, rkey, out)
    b.read(1, 15, 4, va=0xf00, kind=REPLY_READ_AGAIN)
    b.ack(1, 200)
    b.read(1, 201, 300, va=0x4000)
    b.ack(1, 203)
    b.run(400)
    assert [o[2] for o in b.take()] == [15, 200, 201, 202, 203]


@pytest.mark.parametrize("op", [CTL_RESET, CTL_ERR])
def test_nothing_of_a_look_up_behind_control(so, op):
    """A look-up at any distance before a reset or failure of its QP answers nothing behind it, nor in the next life."""
    for k in range(0, 60, 3):
        b = Bench(so, seed=k)
        ring_of(b)
        for n in (2, 7, 11):
            b.read(1, n, 4, va=0x100*n, kind=REPLY_READ_AGAIN)
        b.sink.send(kind=REPLY_CTL, qpi=1, code=op, idle=k)
        marks = b.marks
        b.until(lambda: b.marks == marks + 2)
        b.take()
        b.sink.send(kind=REPLY_CTL, qpi=1, code=CTL_START)
        b.run(60)
        b.index[1] = b.reads_done(1)
        b.read(1, 7, 4, va=0x700)
        b.ack(1, 8)
        b.run(400)
        assert [o[2] for o in b.take()] == [7, 8], k
        assert sum(rows(b).values()) == 3, k


@pytest.mark.parametrize("how", ["key", "memory"])
def test_a_duplicate_is_never_refused(so, how):
    """Its region is gone, or its memory fails: no reply, no NAK, the QP lives; a new READ still fails."""
    b = Bench(so)
    for psn, va in ((0, 0x1000), (10, 0x9000)):
        b.read(1, psn, 600, va=va)
        b.run(100)
    b.take()
    if how == "key":
        b.refuse = lambda request: 36 if request.va < 0x9000 else 0
    else:
        b.error = lambda packet: 2*(packet.length != 0 and packet.addr < 0x9000)
    b.read(1, 0, 600, va=0x1000, kind=REPLY_READ_AGAIN)
    b.run(300)
    assert not b.take() and not len(b.kill)
    b.read(1, 10, 600, va=0x9000, kind=REPLY_READ_AGAIN)
    b.ack(1, 13)
    b.run(300)
    assert [o[2] for o in b.take()] == [10, 11, 12, 13] and not len(b.kill)
    assert rows(b) == {"PSN_DUPLICATE": 2}
    b.read(1, 14, 600, va=0x2000)
    b.run(300)
    assert len(b.kill.recv_all()) == 1


@pytest.mark.parametrize("at", [5, (1 << 22) + 5, (1 << 23) - 3])
def test_inside_of_the_longest_read(so, at):
    """2^31 bytes in packets of 256: asked for again from any of its PSNs, it goes on there."""
    b = Bench(so)
    b.reads.set(stall=1.0)
    b.read(1, 0, 1 << 31, va=0)
    b.run(100)
    b.read(1, at, (1 << 31) - 256*at, va=256*at, kind=REPLY_READ_AGAIN)
    b.run(60)
    b.reads.set(stall=0)
    b.run(300)
    assert at in [psn for _, name, psn, *_ in b.take() if name == "FIRST"]
