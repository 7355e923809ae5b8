# SPDX-License-Identifier: BSD-2-Clause
"""Requester, second stage: a burst meets its key check, is entered in the QP's rings and goes on, or fails."""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.common import CTL_ERR, CTL_RESET, CTL_STOP, OWNER_REQUESTER, mr_result_description, tx_sent_description
from roce_soc.errors import ROW_WIDTH, index_of
from roce_soc.transport.requester_rows import LOCAL_FAULT, LOCAL_KICK, burst_layout, local_description

FAULTS = 64     # payload read errors that wait for their turn; those in a row of one QP count as one.


# RequesterLaunch ----------------------------------------------------------------------------------

class RequesterLaunch(LiteXModule):
    """Enters a message in the outstanding ring and a READ in the READ ring before its packets can leave.

    A local failure (work request, key, payload not readable) halts the QP there: bursts of the message and of
    later ones are entered but not sent, older ones still are; the walker fails the message when those are done.
    Bursts from before a rewind are entered but not sent either: the rewind sends them again.

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
        self.ctl_done = Signal()

        # # #

        # Payload read errors.
        self.faults = faults = stream.SyncFIFO([("qpi", len(sent.qpi)), ("psn", 24)], FAULTS)
        self.locals = locals_ = stream.SyncFIFO(local_description(), 4)
        own, wrong  = Signal(), Signal()
        marker, marker_done, markers = Signal(), Signal(), Signal(3)
        passed = Signal()
        same        = Signal()
        latest      = Record([("qpi", len(sent.qpi)), ("psn", 24)])
        older       = Signal(24)
        self.comb += [
            own.eq(sent.owner == OWNER_REQUESTER),
            wrong.eq(sent.valid & own & ~sent.marker & (sent.err != 0)),
            older.eq(sent.psn - latest.psn),
            same.eq(faults.source.valid & (latest.qpi == sent.qpi) & ~older[-1]),
            faults.sink.valid.eq(wrong & ~same),
            faults.sink.qpi.eq(sent.qpi),
            faults.sink.psn.eq(sent.psn),
            sent.ready.eq(1),
            marker.eq(sent.valid & own & sent.marker),
            # What failed before the marker has been told then.
            marker_done.eq((markers != 0) & ~faults.source.valid & ~passed),
            locals_.source.connect(self.local),
        ]
        self.sync += [
            If(faults.sink.valid, latest.qpi.eq(sent.qpi), latest.psn.eq(sent.psn)),
            markers.eq(markers + marker - marker_done),
        ]

        # Halted QPs.
        table  = state.halted
        halted = state.halted.get_async_port()
        latest_generation = state.generation.get_async_port()
        qpi    = Signal(state.bits)
        psn, before, reach = Signal(24), Signal(24), Signal(24)
        fails, sends = Signal(), Signal()       # not halted, or further on.
        self.comb += [
            psn.eq(Mux(faults.source.valid, faults.source.psn, burst.psn)),
            before.eq(psn - halted.row.psn),
            reach.eq(burst.last_psn - halted.row.psn),
            fails.eq(~halted.row.halted | before[-1]),
            sends.eq(~halted.row.halted | reach[-1]),
            qpi.eq(Mux(faults.source.valid, faults.source.qpi, burst.qpi)),
            halted.adr.eq(qpi),
            table.adr.eq(qpi),
        ]

        # Checks.
        known, failed, tell, go = Signal(), Signal(), Signal(), Signal()
        row = Signal(ROW_WIDTH)
        self.comb += [
            known.eq(burst.valid & ~faults.source.valid & (~burst.check | burst.ctl | result.valid)),
            If(burst.row != 0,
                row.eq(burst.row),
            ).Elif(burst.check & (result.row != 0),
                row.eq(index_of("LOCAL_PROTECTION")),
            ),
            failed.eq(~burst.ctl & (row != 0) & fails),
            # Entries of a QP in ERR are for the walker to flush.
            tell.eq(failed | Mux(burst.ctl, burst.op == CTL_ERR, burst.register & ~burst.send & (row == 0))),
            latest_generation.adr.eq(burst.qpi),
            go.eq(Mux(burst.ctl, burst.op == CTL_STOP, burst.send & (row == 0) & sends
                & (burst.generation == latest_generation.row.number))),
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

        # Failures.
        self.comb += [
            locals_.sink.qpi.eq(qpi),
            locals_.sink.psn.eq(psn),
            locals_.sink.row.eq(row),
            locals_.sink.op.eq(Mux(failed, LOCAL_FAULT, LOCAL_KICK)),
            locals_.sink.valid.eq(fire & tell),
            table.we.eq(fire & (failed | (burst.ctl & (burst.op == CTL_RESET)))),
            table.row.halted.eq(failed),
            If(failed | faults.source.valid, table.row.psn.eq(psn)),
            If(faults.source.valid,
                locals_.sink.row.eq(index_of("LOCAL_MEMORY")),
                locals_.sink.op.eq(LOCAL_FAULT),
                locals_.sink.valid.eq(fails),
                faults.source.ready.eq(locals_.sink.ready | ~fails),
                table.we.eq(locals_.sink.ready & fails),
                table.row.halted.eq(1),
            )
        ]
        self.comb += passed.eq(fire & burst.ctl & (burst.op != CTL_STOP))
        self.sync += self.ctl_done.eq(passed | marker_done)
