# SPDX-License-Identifier: BSD-2-Clause
"""transport/retry in SQD: what was begun ends, what is new waits, and whoever asked is told once that all is done."""
import pytest

from roce_soc import abi
from roce_soc.common import CTL_RESUME, CTL_SQD
from roce_soc.verbs import WR_RDMA_READ, WR_SEND
from test.requester_bench import SendBench, expect_cqes


def sqd(b, qpi, notify=1):
    """As the command port: the row, then the requester, then the completer."""
    b.sim.poke("begins_who", qpi)
    b.sim.poke("begins", 1)
    b.sim.step()
    b.sim.poke("begins", 0)
    b.write_row(qpi, state=abi.QP_SQD, sqd_notify=notify)
    b.ctl(qpi, CTL_SQD, owners="rc")


def resume(b, qpi):
    b.write_row(qpi, state=abi.QP_RTS, sqd_notify=0)
    b.ctl(qpi, CTL_RESUME, owners="rc")


def told(b):
    return [r.qpi for r in b.drained.recv_all()]


@pytest.mark.parametrize("notify", [0, 1])
def test_idle(seed, notify):
    """At once, if asked."""
    b = SendBench(seed)
    b.connect(0)
    b.connect(1)
    b.post(0, WR_SEND, 10)
    b.completed(1)
    sqd(b, 0, notify)
    b.run(cycles=300)
    assert told(b) == [0]*notify
    # Once; work that waits changes nothing.
    b.post(0, WR_SEND, 10)
    b.run(cycles=2000)
    assert told(b) == [] and len(b.cqes) == 1
    resume(b, 0)
    b.completed(2)
    expect_cqes(b, 0, [0, 0])
    b.run(cycles=500)
    assert told(b) == []
    sqd(b, 0)
    b.run(cycles=300)
    assert told(b) == [0]


@pytest.mark.parametrize("opcode, length", [(WR_SEND, 20_000), (WR_RDMA_READ, 3000), (WR_SEND, 0)])
@pytest.mark.parametrize("wait", [0, 20, 60, 150])
def test_busy(seed, opcode, length, wait):
    """Behind the last completion of what was begun; a message is begun with its first packet."""
    b = SendBench(seed)
    b.delay = 2000
    b.connect(0, pmtu=1024)
    for n in range(4):
        b.post(0, opcode, length, offset=n*32768, ring=False)
    b.ring(0)
    b.run(cycles=wait)
    sqd(b, 0)
    seen = []
    for _ in range(30_000//4):
        b.sim.step(4)
        b.serve()
        if not seen:
            seen += told(b)
            if seen:
                done = len(b.cqes)
    assert seen == [0] and done == len(b.cqes) and told(b) == []
    b.sim.step(100)
    resume(b, 0)
    b.completed(4)
    expect_cqes(b, 0, [0]*4)
