# SPDX-License-Identifier: BSD-2-Clause
"""transport/reply alone: READs that are asked for again."""
import pytest

from roce_soc.errors import ERRORS
from roce_soc.transport.responder_layout import REPLY_READ_AGAIN
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
    assert not len(b.refusal) and {o[2] for o in b.take()} == set(range(5))


def test_look_up_of_a_duplicate_is_short(so):
    """What one peer asks again, found or not, holds up the answers of other QPs by at most 36 clocks each."""
    b = Bench(so)
    for n in range(16):
        b.read(1, n, 4, va=0x100*n)
        b.run(40)
    b.run(400)
    b.take()
    for rkey, found in ((6, []), (5, list(range(16)))):
        for psn in range(16):
            b.read(1, psn, 4, va=0x100*psn, rkey=rkey, kind=REPLY_READ_AGAIN)
        b.ack(2, 5)
        begun, out = b.sim.cycles(), []
        while not any(o[0] == 2 for o in out):
            b.run(2)
            out += b.take()
            assert b.sim.cycles() - begun <= 16*36 + 30
        b.run(600)
        assert [o[2] for o in out + b.take() if o[0] == 1] == found
        assert len(b.refusal.recv_all()) == 16 - len(found)
