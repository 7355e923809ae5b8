# SPDX-License-Identifier: BSD-2-Clause
"""What the responder and the receive queues say to each other."""
from migen import *

from litex.soc.interconnect import stream

from roce_soc.common import QPI_WIDTH

# What the responder sees of a receive WQE; err: the slot could not be read.
RECV_WQE_LAYOUT = [("wr_id", 64), ("num_sge", 8), ("va", 64), ("length", 32), ("lkey", 32), ("err", 1)]

RQ_CTL_FLUSH, RQ_CTL_RESET = range(2)


def rq_ctl_description():
    """Flush (from now on every WQE completes with WR_FLUSH_ERR into `cqn`) or reset of a receive queue."""
    return stream.EndpointDescription([("op", 1), ("index", QPI_WIDTH), ("qpn", 24), ("cqn", QPI_WIDTH)])


class TakePort:
    """The responder's window on the head of a queue.

    Clock 0: `peek` (RQ number) with `peeking`. Clock 1: `index` (the same number) with `take` and `qpi`; the answer in
    the same clock: `got` (the WQE is consumed), `park` (posted, on its way: a wake-up of `qpi` follows)
    or neither (nothing posted). Clock 2: `wqe`, `slot` of what was got.
    """
    def __init__(self):
        self.peek  = Signal(QPI_WIDTH)
        self.peeking = Signal()
        self.index = Signal(QPI_WIDTH)
        self.take  = Signal()
        self.qpi   = Signal(QPI_WIDTH)
        self.got   = Signal()
        self.park  = Signal()
        self.wqe   = Record(RECV_WQE_LAYOUT)
        self.slot  = Signal(16)
