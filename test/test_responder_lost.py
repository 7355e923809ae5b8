# SPDX-License-Identifier: BSD-2-Clause
"""transport/responder: requests whose completion has no place in its queue are not answered."""
import pytest

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

