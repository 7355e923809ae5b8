# SPDX-License-Identifier: BSD-2-Clause
"""Doorbells by state of the queue pair, on the compiled engine: what nobody would hear of is refused and counted."""
import pytest

from roce_soc import abi, verbs
from roce_soc.errors import ERRORS
from sim.engine import Bench, connect
from software.control.roce import CommandError

VA = 0x1000_0000


def bells(engine):
    return engine.counter(ERRORS["DOORBELL"].index)


@pytest.fixture
def side(seed):
    """An engine, a memory region, a completion queue."""
    engine = Bench(seed=seed).engines[0]
    return engine, engine.roce.reg_mr(VA, 1 << 16, access=7), engine.roce.create_cq(6)


@pytest.mark.parametrize("states, send, receive", [
    ((), 0, 0), ((abi.QP_INIT,), 0, 1), ((abi.QP_INIT, abi.QP_RTR), 0, 1), ((abi.QP_INIT, abi.QP_RTR, abi.QP_RTS), 1, 1),
    ((abi.QP_INIT, abi.QP_RTR, abi.QP_RTS, abi.QP_SQD), 1, 1), ((abi.QP_INIT, abi.QP_ERR), 1, 1)])
def test_doorbells(side, states, send, receive):
    """As software that does not look at the state would ring them."""
    engine, mr, cq = side
    qp = engine.roce.create_qp(cq, cq)
    for state in states:
        qp.modify(state)
    count = bells(engine)
    for kind, queue, taken in ((abi.DOORBELL_SQ, qp.index, send), (abi.DOORBELL_RQ, qp.attributes["rq_index"], receive)):
        engine.doorbell(0, kind, queue, 1)
        engine.sim.step(100)
        count += not taken
        assert bells(engine) == count


def test_receives_in_init_wait_and_are_flushed(side):
    """Receives of INIT are there for the first request; in ERR all that was posted, then and later, is flushed in order."""
    engine, mr, cq = side
    qp = engine.roce.create_qp(cq, cq)
    qp.modify(abi.QP_INIT)
    for n in range(3):
        qp.post_recv(mr, length=64, wr_id=n)
    engine.sim.step(500)
    assert not cq.poll()
    qp.modify(abi.QP_ERR)
    qp.post_recv(mr, length=64, wr_id=3)
    for n in range(2):
        qp.post_send(verbs.WR_SEND, mr, length=8, wr_id=10 + n)
    engine.sim.step(3000)
    done = cq.poll()
    assert {e["status"] for e in done} == {verbs.WC_WR_FLUSH_ERR}
    assert [e["wr_id"] for e in done if e["wr_id"] < 10] == [0, 1, 2, 3] and [e["wr_id"] for e in done if e["wr_id"] >= 10] == [10, 11]


def test_sends_in_sqd_wait(seed):
    """A send posted in SQD leaves when the queue pair is in RTS again."""
    bench = Bench(seed=seed, engines=2)
    a, b  = bench.engines
    qa, _ = connect(a, b)
    ma    = a.roce.reg_mr(VA, 1 << 16, access=7)
    mb    = b.roce.reg_mr(VA, 1 << 16, access=7)
    qa.modify(abi.QP_SQD)
    qa.post_send(verbs.WR_RDMA_WRITE, ma, length=100, remote_va=VA, rkey=mb.rkey, wr_id=5)
    bench.step(3000)
    assert not qa.send_cq.poll()
    qa.modify(abi.QP_RTS)
    done = []
    bench.run(lambda: done.extend(qa.send_cq.poll()) or done)
    assert [(e["wr_id"], e["status"]) for e in done] == [(5, 0)]


def test_two_queue_pairs_on_one_receive_queue(side):
    """The second is refused until the first is in RESET again."""
    engine, mr, cq = side
    first, second = (engine.roce.create_qp(cq, cq) for _ in range(2))
    first.modify(abi.QP_INIT)
    with pytest.raises(CommandError, match="argument word 5"):
        second.modify(abi.QP_INIT, rq_index=first.attributes["rq_index"])
    first.modify(abi.QP_RESET)
    second.modify(abi.QP_INIT, rq_index=first.attributes["rq_index"])
