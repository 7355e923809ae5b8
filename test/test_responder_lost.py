# SPDX-License-Identifier: BSD-2-Clause
"""transport/responder: requests whose completion has no place in its queue are not answered; who hears of the first request."""
import pytest

from roce_soc import abi
from roce_soc.common import CTL_RESET
from test.responder_bench import *


@pytest.fixture(scope="module")
def so():
    return compiled()


@pytest.mark.parametrize("kind", ["SEND", "WRITE_IMM"])
@pytest.mark.parametrize("behind", ["SEND", "WRITE", "READ"])
def test_a_lost_completion_is_not_acknowledged(so, kind, behind):
    """No answer to a request whose completion has no place, nor to what follows, until the QP begins anew; others go on."""
    b = Bench(so)
    for qpi in (1, 2):
        b.qp(qpi)
        for _ in range(4):
            b.post(qpi, 4096)
    b.write(1, b"before")
    b.idle()
    assert [(a, psn) for a, psn, *_ in b.answers()] == [("ACK", 100)]
    b.sim.poke("cq_full", 1)
    if kind == "SEND":
        b.message(1, "SEND", b"lost")
    else:
        b.write(1, b"lost", imm=5)
    b.idle()
    b.sim.poke("cq_full", 0)
    if behind == "SEND":
        b.message(1, "SEND", b"more")
    elif behind == "WRITE":
        b.write(1, b"more")
    else:
        b.read(1, 10)
    b.message(2, "SEND", b"good")
    b.idle()
    assert [(a, psn) for a, psn, *_ in b.answers()] == [("ACK", 100)]
    assert [c.qpn & 0xff for c in b.cqes if c.status == 0][-1] == 2
    b.control_qp(1, CTL_RESET)
    b.qp(1, psn=500)
    b.post(1, 4096)
    b.message(1, "SEND", b"again")
    b.idle()
    assert [(a, psn) for a, psn, *_ in b.answers()] == [("ACK", 500)]


# Communication established ------------------------------------------------------------------------

def established(b):
    return [r.qpi for r in b.established.recv_all()]


@pytest.mark.parametrize("kind", ["SEND", "WRITE", "READ"])
def test_the_first_good_request_in_rtr_is_told(so, kind):
    """Once in a life; not a duplicate, not one that is refused, never in RTS."""
    b = Bench(so)
    ask = {"SEND": lambda: b.message(1, "SEND", b"x"), "WRITE": lambda: b.write(1, b"x"), "READ": lambda: b.read(1, 5)}[kind]
    for life in range(2):
        b.qp(1, psn=100 + life)
        b.message(1, "WRITE", b"x", psn=90, va=REMOTE_VA, rkey=RKEY)           # a duplicate.
        b.message(1, "WRITE", b"x", psn=120 + life, va=REMOTE_VA, rkey=RKEY)   # beyond.
        b.idle()
        assert established(b) == []
        for _ in range(3):
            b.post(1, 4096)
            ask()
            b.idle()
        assert established(b) == [1]
        b.control_qp(1, CTL_RESET)
    b.qp(1, psn=500, state=abi.QP_RTS)
    b.post(1, 4096)
    ask()
    b.idle()
    assert established(b) == []

