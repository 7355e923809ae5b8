# SPDX-License-Identifier: BSD-2-Clause
"""Doorbells of the send queues: the producer index is checked and kept; a push may start at once."""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.abi import DOORBELL_SQ, QP_RTR, SEND_WQE_BYTES
from roce_soc.common import doorbell_description, refusal_description
from roce_soc.errors import index_of
from roce_soc.queue.doorbell import KIND_PUSH
from roce_soc.queue.push import inline_layout, push_layout, wqe_layout
from roce_soc.table import kick_description
from roce_soc.verbs import SEND_INLINE

SLOT_SHIFT = log2_int(SEND_WQE_BYTES)


# SendDoorbell -------------------------------------------------------------------------------------

class SendDoorbell(LiteXModule):
    """Producer index: checked against page, state and ring, then the QP is queued for fetching.

    The ring begins with the oldest work request that has not completed, where the cursor may come to lie
    behind it: it is moved back by a retry and finds late what was acknowledged meanwhile.
    A push starts from its slot when all of it came and it is the only work request that its QP has to visit: the one
    at the former producer index, where the requester stands. Otherwise it is a doorbell as any other.

    Parameters
    ----------
    context : QPContext
    owned, produced : Table
        Slots below the first have completed; producer index, written here.

    Endpoints
    ---------
    sink : doorbell_description(), in
        Those of kind SQ and push are acted on, others swallowed.
    push : push_layout(), in
        With a push, from its second clock on.
    enable : in
        Tables are ready.
    clear, clear_qpi : in
        Forget the producer index (RESET).
    busy, cursor : in
        Cache or schedule are taken in this clock; else the cursor's slot of the doorbell's QP.
    placed, slot : out
        Pulse: the pushed work request goes to the cache as that of `slot`, its QP to the schedule.
    inline_we, inline : out
        Inline data of a push that was placed, and its place in the ring.
    kick : kick_description(), out
        A QP that has work requests to fetch.
    refusal : refusal_description(), out

    Latency: 2 clocks to `placed`, 3 clocks to `kick`.
    Errors : DOORBELL, also in RESET, INIT and RTR: nobody would hear of the work request. In SQD it waits, in ERR it is flushed.
    """
    def __init__(self, context, owned, produced):
        # Stream Endpoints.
        self.sink    = doorbell = stream.Endpoint(doorbell_description())
        self.push    = push = Record(push_layout())
        self.enable  = Signal()
        self.clear, self.clear_qpi = Signal(), Signal(context.bits)
        self.busy, self.cursor     = Signal(), Signal(16)
        self.placed, self.slot     = Signal(), Signal(16)
        self.inline_we, self.inline = Signal(), Record(inline_layout())
        self.kick    = kick    = stream.Endpoint(kick_description())
        self.refusal = refusal = stream.Endpoint(refusal_description())

        # # #

        port, oldest, before = context.get_port(), owned.get_port(), produced.get_port()
        row   = port.row
        mine  = Signal()
        good  = Signal()
        ahead = Signal(16)
        self.comb += [
            mine.eq((doorbell.kind == DOORBELL_SQ//4) | (doorbell.kind == KIND_PUSH)),
            [p.adr.eq(doorbell.queue) for p in (port, oldest, before)],
            ahead.eq(doorbell.index - oldest.row.slot),
            good.eq((doorbell.queue < context.n_qps) & (row.state > QP_RTR) & (row.page == doorbell.page)
                & (ahead <= (1 << row.sq_log2))),
        ]

        # Push.
        wqe    = Record(wqe_layout())
        inline = Signal()
        posted = Signal(16)
        behind = Signal(15)        # ring slot of the inline data.
        whole, single = Signal(), Signal()
        self.comb += [
            wqe.raw_bits().eq(push.wqe),
            inline.eq((wqe.flags & SEND_INLINE) != 0),
            posted.eq(doorbell.index - before.row.slot),
            single.eq(whole & (posted == Mux(inline, 2, 1))),
            self.slot.eq(before.row.slot),
            behind.eq((before.row.slot + 1) & ((1 << row.sq_log2) - 1)),
            self.inline_we.eq(self.placed & inline),
            self.inline.target.eq(row.sq_target),
            self.inline.addr.eq(row.sq_addr + (behind << SLOT_SHIFT)),
            self.inline.data.eq(push.data),
        ]

        # Control-Path.
        self.fsm = fsm = FSM(reset_state="IDLE")
        fsm.act("IDLE",
            doorbell.ready.eq(self.enable & ~mine),
            If(self.enable & doorbell.valid & mine, NextState("ROW")),
        )
        fsm.act("ROW",
            NextValue(whole, push.complete & (doorbell.kind == KIND_PUSH)),
            NextState("CHECK")
        )
        fsm.act("CHECK",
            # RESET goes first.
            If(~self.clear,
                If(~good,
                    refusal.valid.eq(1),
                    doorbell.ready.eq(1),
                    NextState("IDLE"),
                ).Elif(single & self.busy,
                    # Waits for its turn.
                ).Elif(single & (self.cursor == before.row.slot),
                    self.placed.eq(1),
                    produced.we.eq(1),
                    doorbell.ready.eq(1),
                    NextState("IDLE"),
                ).Else(
                    produced.we.eq(1),
                    NextState("KICK"),
                )
            )
        )
        fsm.act("KICK",
            kick.valid.eq(1),
            If(kick.ready,
                doorbell.ready.eq(1),
                NextState("IDLE"),
            )
        )
        self.comb += [
            kick.qpi.eq(doorbell.queue),
            produced.adr.eq(doorbell.queue),
            produced.row.slot.eq(doorbell.index),
            If(self.clear,
                produced.we.eq(1),
                produced.adr.eq(self.clear_qpi),
                produced.row.slot.eq(0),
            ),
            refusal.first.eq(1),
            refusal.last.eq(1),
            refusal.row.eq(index_of("DOORBELL")),
            refusal.qpn.eq(row.qpn),
            refusal.psn.eq(0),
            refusal.opcode.eq(0),
            refusal.info.eq(Cat(doorbell.index, doorbell.queue)),
        ]
