# SPDX-License-Identifier: BSD-2-Clause
"""The send side of the engine: queues, requester, completer, walker and timers, joined."""
from migen import *

from litex.gen import *

from roce_soc.queue.sq import SendQueues
from roce_soc.transport.completer.completer import RoCECompleter
from roce_soc.transport.requester.requester import RoCERequester
from roce_soc.transport.requester.state import SendState
from roce_soc.transport.retire.items import RetireItems
from roce_soc.transport.retire.timer import TimerScanner
from roce_soc.transport.retire.walker import RetireWalker


# RoCESendSide -------------------------------------------------------------------------------------

class RoCESendSide(LiteXModule):
    """Joins the modules of the send side; no logic of its own.

    Parameters
    ----------
    context : QPContext
    requester_mr, completer_mr : {request, result}
        Two ports of the MR table.
    n_chunks : int
        Chunks of the packet buffer.

    Endpoints
    ---------
    sq.doorbell, sq.rcmd, sq.rdata, sq.refusal        : doorbells and descriptor reads
    requester.source, requester.sent, requester.ctl   : tx_packet, tx_sent, control (ctl_done: pulse)
    completer.response, completer.place, completer.done, completer.ctl, completer.refusal : responses
    walker.cqe, walker.event, walker.ctl_done         : completions, fatal events; answers completer.ctl
    scanner.tick_cycles                               : clocks a tick

    Latency: README.md, B4, B7. Errors: rows of REQUESTER, COMPLETER and QUEUE, by the parts.
    """
    def __init__(self, context, requester_mr, completer_mr, n_chunks=512):
        self.state     = state     = SendState(context.n_qps)
        self.sq        = sq        = SendQueues(context, n_kicks=1)
        self.requester = requester = RoCERequester(context, state, sq, requester_mr)
        self.completer = completer = RoCECompleter(context, state, completer_mr, n_chunks)
        self.items     = items     = RetireItems(context.n_qps)
        self.walker    = walker    = RetireWalker(context, state)
        self.scanner   = scanner   = TimerScanner(context.n_qps)
        self.ready     = Signal()

        # # #

        self.comb += [
            self.ready.eq(state.ready & sq.ready & items.ready & requester.ready & completer.ready & walker.flags.ready & walker.tells.ready),
            scanner.scan.connect(completer.scan),
            requester.now.eq(scanner.now),
            completer.now.eq(scanner.now),
            completer.item.connect(items.sink),
            items.source.connect(walker.item),
            requester.local.connect(walker.local),
            requester.seek.connect(completer.seek),
            walker.rewind.connect(requester.rewind),
            walker.kick.connect(sq.kicks[0]),
            sq.retired_we.eq(walker.retired_we), sq.retired_qpi.eq(walker.retired_qpi), sq.retired.eq(walker.retired),
        ]
