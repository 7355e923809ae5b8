# SPDX-License-Identifier: BSD-2-Clause
"""Requester, second stage: a burst meets its key check, is entered in the QP's rings and goes on, or fails."""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.common import CTL_ERR, CTL_RESET, CTL_START, CTL_STOP, OWNER_REQUESTER, mr_result_description, tx_sent_description
from roce_soc.errors import ROW_WIDTH, index_of
from roce_soc.memory.deferred import MissQueue
from roce_soc.table import KickQueue
from roce_soc.transport.requester.state import (
    GENERATION_WIDTH, LOCAL_FAULT, LOCAL_KICK, PSN_WIDTH, REWIND_MISS, TIME_WIDTH, burst_layout, local_description,
    rewind_description)


# RequesterLaunch ----------------------------------------------------------------------------------

class RequesterLaunch(LiteXModule):
    """Enters a message in the outstanding ring and a READ in the READ ring before its packets can leave.

    A local failure (work request, key, payload not readable) halts the QP there: bursts of the message and of
    later ones are entered but not sent, older ones still are; the walker fails the message when those are done.
    Bursts from before a rewind are entered but not sent either: the rewind sends them again.

    A burst whose page is not on chip is entered and not sent, and so are those of its QP that were visited behind it. When the
    page has come a rewind of the stage's own goes back to it.

    A payload that could not be read is state of its QP, the oldest PSN of all that failed, so as many may fail at once as
    packets are under way. What transmit returns also tells the completer how far the wire has got: `wire`, and since when
    something of the QP is out there: `busy`, set by the first packet behind an idle wire or a rewind.

    Parameters
    ----------
    state : SendState

    Endpoints
    ---------
    burst : burst_layout(), in
    result : mr_result_description(), in
        One for each burst with `check`, in order.
    sent : tx_sent_description(), in
        Returned packets; other owners' are swallowed; always ready.
    source : burst_layout(), out
        Bursts to send, `target` and `addr` filled in, and markers of CTL_STOP.
    local : local_description(), out
    wake : in
        A page has come.
    rewind : rewind_description(), out
        Of QPs whose burst had missed.
    now : in
        Time in ticks.
    ctl_done : out
        Pulse: a control pseudo-visit has passed; for STOP, its marker has come back from transmit and all faults
        before it have been told.

    Latency: one burst a clock; waits for the key check and the stages behind.
    Errors : LOCAL_* rows, MR rows (as LOCAL_PROTECTION), payload read errors (LOCAL_MEMORY).
    """
    def __init__(self, state):
        # Stream Endpoints.
        self.burst    = burst  = stream.Endpoint(burst_layout())
        self.result   = result = stream.Endpoint(mr_result_description())
        self.sent     = sent   = stream.Endpoint(tx_sent_description())
        self.source   = source = stream.Endpoint(burst_layout())
        self.local    = stream.Endpoint(local_description())
        self.rewind   = stream.Endpoint(rewind_description())
        self.wake     = Signal()
        self.now      = Signal(TIME_WIDTH)
        self.ctl_done = Signal()

        # # #

        # Payload read errors: the oldest of a QP is kept, and told in its turn; not in a clock that brings another.
        self.kicks  = kicks = KickQueue(state.n_qps, 0)
        self.locals = locals_ = stream.SyncFIFO(local_description(), 4)
        own, wrong  = Signal(), Signal()
        marker, marker_done, markers = Signal(), Signal(), Signal(3)
        passed = Signal()
        fault, fault_told = Signal(), Signal()
        known_fault, next_fault = state.faulty.read(sent.qpi), state.faulty.read(kicks.source.qpi)
        younger = Signal(PSN_WIDTH)
        self.comb += [
            own.eq(sent.owner == OWNER_REQUESTER),
            wrong.eq(sent.valid & own & ~sent.marker & (sent.err != 0)),
            kicks.urgent.valid.eq(wrong),
            kicks.urgent.qpi.eq(sent.qpi),
            younger.eq(sent.psn - known_fault.psn),
            fault.eq(kicks.source.valid & ~wrong),
            kicks.source.ready.eq(fault_told),
            state.faulty.we.eq(wrong | fault_told),
            state.faulty.adr.eq(Mux(wrong, sent.qpi, kicks.source.qpi)),
            If(wrong,
                state.faulty.row.valid.eq(1),
                state.faulty.row.psn.eq(Mux(known_fault.valid & ~younger[-1], known_fault.psn, sent.psn)),
            ),
            sent.ready.eq(1),
            marker.eq(sent.valid & own & sent.marker),
            # What failed before the marker has been told then.
            marker_done.eq((markers != 0) & ~kicks.source.valid & ~passed),
            locals_.source.connect(self.local),
        ]
        self.sync += markers.eq(markers + marker - marker_done)

        # How far the wire has got: two clocks behind the return, with the oldest PSN that is not acknowledged.
        una     = state.una.get_port()
        returns = [Record([("valid", 1), ("qpi", len(sent.qpi)), ("psn", PSN_WIDTH), ("generation", GENERATION_WIDTH)])
            for _ in range(3)]
        reached = state.wire.read(returns[2].qpi)
        beyond, begins = Signal(PSN_WIDTH), Signal()
        renew = Signal()                        # a control visit writes the row.
        self.comb += [
            returns[0].valid.eq(sent.valid & own & ~sent.marker & (sent.err == 0)),
            [getattr(returns[0], n).eq(getattr(sent, n)) for n in ("qpi", "psn", "generation")],
            una.adr.eq(sent.qpi),
            beyond.eq(returns[2].psn - reached.high),
            begins.eq((una.row.psn == reached.high) | (returns[2].generation != reached.generation)),
            state.wire.we.eq(returns[2].valid | renew),
            state.busy.we.eq(returns[2].valid & begins | renew),
            [table.adr.eq(Mux(returns[2].valid, returns[2].qpi, burst.qpi)) for table in (state.wire, state.busy)],
            If(returns[2].valid,
                state.wire.row.high.eq(Mux(beyond[-1], reached.high, returns[2].psn + 1)),
                state.wire.row.generation.eq(returns[2].generation),
                state.wire.row.started.eq(1),
                state.busy.row.since.eq(self.now),
            ).Elif(burst.op == CTL_START,
                state.wire.row.high.eq(burst.psn),
                state.wire.row.generation.eq(burst.generation),
                state.wire.row.started.eq(1),
            ),
        ]
        self.sync += [after.eq(before) for before, after in zip(returns, returns[1:])]

        # Halted QPs.
        table  = state.halted
        qpi    = Signal(state.bits)
        halted = state.halted.read(qpi)
        latest_generation = state.generation.read(burst.qpi)
        psn, before, reach = Signal(24), Signal(24), Signal(24)
        fails, sends = Signal(), Signal()       # not halted, or further on.
        self.comb += [
            psn.eq(Mux(fault, next_fault.psn, burst.psn)),
            before.eq(psn - halted.psn),
            reach.eq(burst.last_psn - halted.psn),
            fails.eq(~halted.halted | before[-1]),
            sends.eq(~halted.halted | reach[-1]),
            qpi.eq(Mux(fault, kicks.source.qpi, burst.qpi)),
            table.adr.eq(qpi),
        ]

        # A page that is not there: the first burst of a generation that misses stops all that follow in it.
        missing = state.missing.read(burst.qpi)
        stopped, miss = Signal(), Signal()
        self.comb += [
            stopped.eq(missing.valid & (missing.generation == burst.generation)),
            miss.eq(burst.check & ~burst.ctl & result.miss),
        ]

        # Checks.
        known, failed, tell, go = Signal(), Signal(), Signal(), Signal()
        row = Signal(ROW_WIDTH)
        sent_else = Signal()                    # but for a page it would be sent.
        self.comb += [
            known.eq(burst.valid & ~fault & (~burst.check | burst.ctl | result.valid) & ~(burst.ctl & returns[2].valid)),
            If(burst.row != 0,
                row.eq(burst.row),
            ).Elif(burst.check & (result.row != 0),
                row.eq(index_of("LOCAL_PROTECTION")),
            ),
            failed.eq(~burst.ctl & (row != 0) & fails),
            # Entries of a QP in ERR are for the walker to flush.
            tell.eq(failed | Mux(burst.ctl, burst.op == CTL_ERR, burst.register & ~burst.send & (row == 0))),
            sent_else.eq(burst.send & (row == 0) & sends & (burst.generation == latest_generation) & ~stopped),
            go.eq(Mux(burst.ctl, burst.op == CTL_STOP, sent_else & ~miss)),
        ]

        # Data-Path.
        fire = Signal()
        pushed, outstanding, reads = state.pushed, state.outstanding, state.reads
        self.comb += [
            source.valid.eq(known & go & (locals_.sink.ready | ~tell)),
            fire.eq(known & (locals_.sink.ready | ~tell) & (source.ready | ~go)),
            burst.connect(source, omit={"valid", "ready", "target", "addr"}),
            source.target.eq(Mux(burst.check, result.target, burst.target)),
            source.addr.eq(Mux(burst.check, result.addr, burst.addr)),
            burst.ready.eq(fire),
            result.ready.eq(fire & burst.check & ~burst.ctl),

            pushed.we.eq(fire & (~burst.ctl | (burst.op == CTL_RESET))),
            pushed.adr.eq(burst.qpi),
            If(~burst.ctl,
                pushed.row.out.eq(burst.out_index + burst.register),
                pushed.row.read.eq(burst.read_index + burst.push_read),
            ),
            outstanding.we.eq(fire & burst.register & ~burst.ctl),
            outstanding.adr.eq(Cat(burst.out_index[:-1], burst.qpi[:state.bits])),
            outstanding.row.first_psn.eq(burst.msg_psn),
            outstanding.row.length.eq(burst.msg_length),
            [getattr(outstanding.row, n).eq(getattr(burst, n))
                for n in ("last_psn", "slot", "two_slots", "wr_id", "wc_opcode", "signalled")],
            reads.we.eq(fire & burst.push_read & ~burst.ctl),
            reads.adr.eq(Cat(burst.read_index[:-1], burst.qpi[:state.bits])),
            reads.row.first_psn.eq(burst.psn),
            reads.row.last_psn.eq(burst.end_psn - 1),
            reads.row.va.eq(burst.local_va),
            reads.row.lkey.eq(burst.lkey),
            reads.row.length.eq(burst.length),
        ]

        self._add_misses(state, fire, sent_else & miss & ~burst.ctl, stopped & ~burst.ctl)

        # Failures.
        self.comb += [
            locals_.sink.qpi.eq(qpi),
            locals_.sink.psn.eq(psn),
            locals_.sink.row.eq(row),
            locals_.sink.op.eq(Mux(failed, LOCAL_FAULT, LOCAL_KICK)),
            locals_.sink.valid.eq(fire & tell),
            table.we.eq(fire & (failed | (burst.ctl & (burst.op == CTL_RESET)))),
            table.row.halted.eq(failed),
            If(failed | fault, table.row.psn.eq(psn)),
            If(fault,
                locals_.sink.row.eq(index_of("LOCAL_MEMORY")),
                locals_.sink.op.eq(LOCAL_FAULT),
                locals_.sink.valid.eq(fails),
                fault_told.eq(locals_.sink.ready | ~fails),
                table.we.eq(locals_.sink.ready & fails),
                table.row.halted.eq(1),
            )
        ]
        self.comb += [
            passed.eq(fire & burst.ctl & (burst.op != CTL_STOP)),
            renew.eq(fire & burst.ctl & ((burst.op == CTL_START) | (burst.op == CTL_RESET))),
        ]
        self.sync += self.ctl_done.eq(passed | marker_done)

    def _add_misses(self, state, fire, misses, stopped):
        """What missed in this clock is noted; QPs that are woken go back to where they did."""
        burst, rewind = self.burst, self.rewind
        self.misses = queue = MissQueue(state.n_qps)
        missed = state.missed.get_port()
        step, qpi = Signal(2), Signal(len(rewind.qpi))
        self.comb += [
            state.missing.we.eq(fire),
            state.missing.adr.eq(burst.qpi),
            state.missing.row.valid.eq(misses | stopped),
            state.missing.row.generation.eq(burst.generation),
            # Control makes what was noted void.
            state.missed.we.eq(fire & (misses | burst.ctl)),
            state.missed.adr.eq(burst.qpi),
            state.missed.row.valid.eq(misses),
            [getattr(state.missed.row, n).eq(getattr(burst, n)) for n in ("generation", "slot", "msg_psn", "psn")],
            queue.wake.eq(self.wake),
            queue.urgent.valid.eq(fire & misses),
            queue.urgent.qpi.eq(burst.qpi),
            # One at a time: its row is read until the requester takes it.
            queue.source.ready.eq(step == 0),
            missed.adr.eq(Mux(step == 0, queue.source.qpi, qpi)),
            rewind.valid.eq((step == 3) & missed.row.valid),
            rewind.first.eq(1), rewind.last.eq(1),
            rewind.qpi.eq(qpi),
            rewind.op.eq(REWIND_MISS),
            [getattr(rewind, n).eq(getattr(missed.row, n)) for n in ("generation", "slot", "msg_psn", "psn")],
        ]
        self.sync += [
            If(step == 0,
                qpi.eq(queue.source.qpi),
                If(queue.source.valid, step.eq(1)),
            ).Elif(step == 3,
                If(rewind.ready | ~missed.row.valid, step.eq(0)),
            ).Else(
                step.eq(step + 1),
            ),
        ]
