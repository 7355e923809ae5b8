# SPDX-License-Identifier: BSD-2-Clause
"""Retire walker: completions of send work requests in order, rewinds, errors and flush.

Ref: InfiniBand Architecture vol. 1 ch. 9.7.6.1 (time-out, retry), 10.3.1 (error state), 10.8.5 (order of completions).
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.abi import EVENT_QP_FATAL, QP_SQD
from roce_soc.common import cqe_description, event_description, refusal_description
from roce_soc.errors import BY_INDEX, ROW_WIDTH, index_of
from roce_soc.table import FlagTable, KickQueue, kick_description
from roce_soc.transport.requester.state import (
    ITEM_CTL, ITEM_ERROR, ITEM_FLUSH, ITEM_NONE, ITEM_PAUSE, ITEM_RESET, ITEM_REWIND, ITEM_SEEK, ITEM_START,
    LOCAL_FAULT, REWIND_GO, REWIND_PAUSE, REWIND_SEEK, RING_BITS, item_description,
    local_description, rewind_description)
from roce_soc.verbs import WC_SUCCESS


# RetireWalker -------------------------------------------------------------------------------------

class RetireWalker(LiteXModule):
    """Walks a QP's outstanding ring from its oldest message on.

    An item says up to where all is acknowledged: these messages are retired, with a completion each
    where one is asked for. Then its action: pause or rewind the requester at the oldest message left,
    tell the requester which one that is, or fail it, report the QP and flush all later ones. A local fault
    waits in the row until its message is the oldest. When that message has been acknowledged all the same
    no completion can tell: the QP fails and what is left is flushed.

    Parameters
    ----------
    context, state : QPContext, SendState

    Endpoints
    ---------
    item : item_description(), in            local : local_description(), in (first)
    rewind : rewind_description(), out       kick : kick_description(), out
    cqe : cqe_description(), out             event : event_description(), out
    refusal : refusal_description(), out
        One pulse for each completion in error that the completer has not counted: local faults, flush, READ data
        without a place.
    retired_we, retired_qpi, retired : out
        Send ring slots of a QP below `retired` have completed; written before the completion leaves.
    drained : kick_description(), out
        QPs in SQD that asked to be told, when all that was begun is done; behind the last completion.
    drained_clear, drained_qpi : in
        A QP changes its state: `is_drained(qpi)` is 0 until it is in SQD and drained.
    ctl_done : out
        Pulse for each control item.

    Latency: 3 clocks an item that retires up to one message, 2 more for each further message, waits for cqe.
    Errors : the row of the item or fault becomes the status of the oldest message; FLUSH for those behind it.
    """
    def __init__(self, context, state):
        # Stream Endpoints.
        self.item     = item   = stream.Endpoint(item_description())
        self.local    = local  = stream.Endpoint(local_description())
        self.rewind   = rewind = stream.Endpoint(rewind_description())
        self.kick     = stream.Endpoint(kick_description())
        self.cqe      = stream.Endpoint(cqe_description())
        self.event    = stream.Endpoint(event_description())
        self.refusal  = refusal = stream.Endpoint(refusal_description())
        self.ctl_done = Signal()
        self.retired_we, self.retired_qpi, self.retired = Signal(), Signal(state.bits), Signal(16)
        self.drained  = stream.Endpoint(kick_description())
        self.drained_clear, self.drained_qpi = Signal(), Signal(state.bits)

        # # #

        self.flags = flags = FlagTable(state.n_qps)
        self.tells = tells = KickQueue(state.n_qps, 0)
        self.comb += [
            flags.clear.eq(self.drained_clear), flags.clear_adr.eq(self.drained_qpi),
            tells.source.connect(self.drained),
        ]

        self.kicks  = kicks  = stream.SyncFIFO(kick_description(), 16)
        # A QP fails once in a life: the walker never waits for the command port, which may wait for the walker.
        self.events = events = stream.SyncFIFO(event_description(), state.n_qps, buffered=True)
        self.buffer = buffer = stream.Buffer(cqe_description())
        self.comb += [
            kicks.source.connect(self.kick),
            events.source.connect(self.event),
            buffer.source.connect(self.cqe),
        ]
        connection, table = context.get_port(), state.walker.get_port()
        pushed, ring      = state.pushed.get_port(), state.outstanding.get_port()
        entered           = state.requester.get_port()          # messages that a visit has begun.
        entry             = ring.row

        # The item in hand; a local kick or fault looks like an item that retires nothing.
        take  = Signal()
        head  = Record(item_description().payload_layout)
        fault = Record([("valid", 1), ("psn", 24), ("row", ROW_WIDTH)])
        news  = Record([("valid", 1), ("psn", 24), ("row", ROW_WIDTH)])     # a local fault in hand.
        has_una = Signal()
        qpi   = Signal(state.bits)
        first = Signal()                                            # the rows are not in registers yet.
        dead_r, dead = Signal(), Signal()
        tail_r, tail = Signal(len(table.row.tail)), Signal(len(table.row.tail))
        slot_r, slot = Signal(16), Signal(16)
        draining_r, draining, over = Signal(), Signal(), Signal()
        fault_r, stored = Record(fault.layout), Record(fault.layout)
        index = Signal(RING_BITS)
        tail_index = state.tail.read(qpi)
        earlier = Signal(24)
        self.comb += [
            qpi.eq(head.qpi),
            If(take, qpi.eq(Mux(local.valid, local.qpi, item.qpi))),
            connection.adr.eq(qpi),
            table.adr.eq(qpi),
            pushed.adr.eq(qpi),
            entered.adr.eq(qpi),
            dead.eq(Mux(first, table.row.dead, dead_r)),
            tail.eq(Mux(first, table.row.tail, tail_r)),
            slot.eq(Mux(first, table.row.slot, slot_r)),
            draining.eq(Mux(first, table.row.draining, draining_r)),
            If(head.action == ITEM_CTL, draining.eq(connection.row.state == QP_SQD)),
            If(first,
                stored.valid.eq(table.row.fault),
                stored.psn.eq(table.row.fault_psn),
                stored.row.eq(table.row.fault_row),
            ).Else(
                stored.raw_bits().eq(fault_r.raw_bits()),
            ),
            fault.raw_bits().eq(stored.raw_bits()),
            earlier.eq(news.psn - stored.psn),
            If(news.valid & (~stored.valid | earlier[-1]), fault.raw_bits().eq(news.raw_bits())),
        ]

        # The oldest message.
        exists, below, exact, faulty, void = Signal(), Signal(), Signal(), Signal(), Signal()
        behind, upto, beyond = Signal(24), Signal(24), Signal(24)
        self.comb += [
            exists.eq(tail != pushed.row.out),
            behind.eq(entry.last_psn - head.una),
            below.eq(exists & has_una & behind[-1]),
            exact.eq(behind == 2**24 - 1),
            upto.eq(fault.psn - entry.first_psn),
            beyond.eq(entry.last_psn - fault.psn),
            faulty.eq(exists & fault.valid & ~upto[-1] & ~beyond[-1]),
            void.eq(fault.valid & (~exists | upto[-1])),
        ]

        # Completion of the oldest message.
        cqe, row = buffer.sink, Signal(ROW_WIDTH)
        retire   = Signal()
        statuses = {i: cqe.status.eq(r.local_status) for i, r in BY_INDEX.items() if r.local_status is not None}
        mask     = Signal(16)
        self.comb += [
            Case(row, {**statuses, "default": cqe.status.eq(WC_SUCCESS)}),
            mask.eq((1 << connection.row.sq_log2) - 1),
            cqe.cqn.eq(connection.row.send_cq),
            cqe.qpn.eq(connection.row.qpn),
            cqe.wr_id.eq(entry.wr_id),
            cqe.byte_len.eq(entry.length),
            cqe.opcode.eq(entry.wc_opcode),
            cqe.slot.eq((entry.slot + entry.two_slots) & mask),
            cqe.vendor_err.eq(row),
            cqe.solicited.eq(row != 0),
            rewind.qpi.eq(head.qpi),
            # Nothing outstanding: the next message begins at una, behind the last one that was retired.
            rewind.slot.eq(Mux(exists, entry.slot, slot)),
            rewind.msg_psn.eq(Mux(exists, entry.first_psn, head.una)),
            rewind.psn.eq(head.una),
            events.sink.type.eq(EVENT_QP_FATAL),
            events.sink.queue.eq(head.qpi),
            kicks.sink.qpi.eq(head.qpi),
        ]

        counted = {index_of(name) for name in ("RESPONSE_MEMORY", "FLUSH")} | {
            r.index for r in BY_INDEX.values() if r.stage == "REQUESTER"}
        count   = Signal()
        self.comb += [
            Case(row, {**{i: count.eq(1) for i in counted}, "default": []}),
            refusal.first.eq(1),
            refusal.last.eq(1),
        ]
        self.sync += [
            refusal.valid.eq(retire & count),
            refusal.row.eq(row),
            refusal.qpn.eq(connection.row.qpn),
            refusal.psn.eq(entry.first_psn),
            refusal.opcode.eq(0),
            refusal.info.eq(cqe.slot),
        ]

        # Row, and the entry looked at next.
        next_tail, next_slot = Signal(len(tail)), Signal(16)
        finish, clear, kill, keep = Signal(), Signal(), Signal(), Signal()
        self.comb += [
            self.retired_we.eq(retire | clear),
            self.retired_qpi.eq(head.qpi),
            If(~clear, self.retired.eq(entry.slot + entry.two_slots + 1)),
            next_tail.eq(tail + retire),
            next_slot.eq(Mux(retire, self.retired, slot)),
            # Behind the requester's own control visit nothing begins any more.
            over.eq(finish & draining & (connection.row.state == QP_SQD) & (entered.row.out_index == next_tail)),
            flags.set.eq(over), flags.set_adr.eq(head.qpi),
            tells.urgent.valid.eq(over & connection.row.sqd_notify), tells.urgent.qpi.eq(head.qpi),
            state.walker.we.eq(finish | clear),
            state.walker.adr.eq(head.qpi),
            state.tail.we.eq(finish | clear),
            state.tail.adr.eq(head.qpi),
            If(~clear,
                state.walker.row.tail.eq(next_tail),
                state.walker.row.slot.eq(next_slot),
                state.walker.row.draining.eq(draining & ~over),
                state.walker.row.dead.eq(dead | kill),
                state.walker.row.fault.eq(fault.valid),
                state.walker.row.fault_psn.eq(fault.psn),
                state.walker.row.fault_row.eq(fault.row),
            ),
            If(keep, state.walker.row.tail.eq(tail)),
            state.tail.row.eq(state.walker.row.tail),
            index.eq(Mux(take | first, tail_index, tail_r[:-1]) + retire),
            ring.adr.eq(Cat(index, qpi)),
        ]
        self.fsm = fsm = FSM(reset_state="IDLE")
        self.comb += take.eq(fsm.ongoing("IDLE") & (local.valid | item.valid) & state.ready)
        fsm.act("IDLE",
            If(take,
                NextValue(head.qpi, qpi),
                NextValue(first, 1),
                NextValue(news.valid, 0),
                If(local.valid,
                    local.ready.eq(1),
                    NextValue(has_una, 0),
                    NextValue(head.action, ITEM_NONE),
                    NextValue(news.valid, local.op == LOCAL_FAULT),
                    NextValue(news.psn, local.psn),
                    NextValue(news.row, local.row),
                ).Else(
                    item.ready.eq(1),
                    NextValue(has_una, item.action <= ITEM_ERROR),
                    NextValue(head.una, item.una),
                    NextValue(head.action, item.action),
                    NextValue(head.row, item.row),
                ),
                NextState("WAIT"),
            )
        )
        fsm.act("WAIT", NextState("EVAL"))

        def latch():
            return [
                NextValue(first, 0),
                NextValue(tail_r, next_tail),
                NextValue(slot_r, next_slot),
                NextValue(draining_r, draining),
                NextValue(dead_r, dead | kill),
                NextValue(fault_r.raw_bits(), fault.raw_bits()),
            ]

        def complete(status, *then):
            """Retires the oldest message with a completion, once there is room for it."""
            return [
                row.eq(status),
                cqe.valid.eq(1),
                If(cqe.ready, retire.eq(1), *then),
            ]

        end = [
            kicks.sink.valid.eq(1),
            If(kicks.sink.ready, finish.eq(1), NextState("IDLE")),
        ]
        fsm.act("EVAL",
            If((head.action == ITEM_RESET) | (head.action == ITEM_START) | (head.action == ITEM_CTL),
                clear.eq(head.action != ITEM_CTL),
                finish.eq(head.action == ITEM_CTL),
                keep.eq(head.action == ITEM_START),
                self.ctl_done.eq(1),
                NextState("IDLE"),
            ).Elif(dead | (head.action == ITEM_FLUSH),
                kill.eq(1),
                If(exists,
                    *complete(index_of("FLUSH"), *latch(), NextState("WAIT")),
                ).Else(
                    *end,
                    self.ctl_done.eq(finish & (head.action == ITEM_FLUSH)),
                )
            ).Elif(below,
                # The last message that is done, and nothing else to do: no need to look at the next one.
                If(entry.signalled,
                    cqe.valid.eq(kicks.sink.ready),
                ),
                If(kicks.sink.ready & (cqe.ready | ~entry.signalled),
                    retire.eq(1),
                    *latch(),
                    If(exact & (head.action == ITEM_NONE) & ~fault.valid,
                        kicks.sink.valid.eq(1),
                        finish.eq(1),
                        NextState("IDLE"),
                    ).Else(
                        NextState("WAIT"),
                    )
                )
            ).Elif(faulty | void | (head.action == ITEM_ERROR),
                events.sink.info.eq(Mux(faulty | void, fault.row, head.row)),
                If(exists & ~void,
                    row.eq(events.sink.info),
                    cqe.valid.eq(events.sink.ready),
                    If(cqe.ready & events.sink.ready,
                        events.sink.valid.eq(1),
                        retire.eq(1),
                        kill.eq(1),
                        *latch(),
                        NextState("WAIT"),
                    )
                ).Else(
                    events.sink.valid.eq(1),
                    If(events.sink.ready,
                        kill.eq(1),
                        *latch(),
                        NextState("WAIT"),
                    )
                )
            ).Elif((head.action == ITEM_PAUSE) | (head.action == ITEM_REWIND) | (head.action == ITEM_SEEK),
                Case(head.action, {
                    ITEM_PAUSE : rewind.op.eq(REWIND_PAUSE),
                    ITEM_SEEK  : rewind.op.eq(REWIND_SEEK),
                    "default"  : rewind.op.eq(REWIND_GO),
                }),
                rewind.valid.eq(kicks.sink.ready),
                If(rewind.ready & kicks.sink.ready,
                    kicks.sink.valid.eq(1),
                    finish.eq(1),
                    NextState("IDLE"),
                )
            ).Else(
                *end,
            )
        )

    def is_drained(self, qpi):
        """Whether a QP in SQD has done all that was begun (expression, same clock); call before finalisation."""
        return self.flags.read(qpi)
