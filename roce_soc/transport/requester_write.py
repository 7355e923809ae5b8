# SPDX-License-Identifier: BSD-2-Clause
"""Requester, end of a visit: what stage S6 writes, as statements for RequesterVisit."""
from migen import *

from roce_soc.common import CTL_ERR, CTL_RESET, CTL_START, CTL_STOP
from roce_soc.transport.requester_rows import REWIND_PAUSE
from roce_soc.verbs import ACCESS_LOCAL_WRITE


def write_visit(s6, step, sq, row, enter, high, moved, now):
    """A visit's burst, skip, refusal or flush moves the row on."""
    return [
        sq.again.valid.eq(step.valid & (s6.go | s6.skip | s6.flush)),
        If(enter,
            row.out_index.eq(s6.out_index + 1),
            row.slot_high.eq(s6.next_slot),
        ),
        If(s6.go & enter & s6.is_read,
            row.fence_index.eq(s6.out_index + 1),
        ).Elif(~s6.reads_open,
            row.fence_index.eq(s6.tail),
        ),
        If(s6.go,
            row.next_psn.eq(s6.next),
            If(~high[-1], row.sent_high.eq(s6.next)),
            If(enter, row.msg_high.eq(s6.end_psn)),
            If(s6.is_read & ~s6.retry, row.read_index.eq(s6.read_index + 1)),
            If(s6.idle, row.busy_since.eq(now)),
            If(s6.last, row.msg_psn.eq(s6.next)),
        ),
        If(s6.idle, row.paused.eq(0)),
        If(s6.refuse, row.msg_high.eq(s6.msg_psn + 1)),
        If(s6.skip,
            row.next_psn.eq(s6.end_psn),
            row.msg_psn.eq(s6.end_psn),
        ),
        moved.eq(s6.skip | s6.flush | (s6.go & s6.last)),
        If(moved, row.slot.eq(s6.next_slot)),
    ]


def write_rewind(s6, step, sq, row, moved):
    """Back to an earlier PSN, or pause until that comes."""
    return [
        # Packets that are still waiting to go belong to the past.
        row.generation.eq(s6.generation + 1),
        If(s6.flushing,
            # Nothing is sent any more.
        ).Elif(step.op == REWIND_PAUSE,
            row.paused.eq(1),
        ).Else(
            row.paused.eq(0),
            row.next_psn.eq(step.psn),
            row.msg_psn.eq(step.msg_psn),
            row.slot.eq(step.slot),
            sq.again.valid.eq(step.valid),
            # Another work request: the prefetch starts again there.
            If(step.slot != s6.slot,
                row.epoch.eq(s6.epoch + 1),
                moved.eq(1),
            )
        )
    ]


def write_ctl(s6, step, sq, row, moved):
    """Control: new row, flush, or clean row."""
    return [
        sq.again.valid.eq(step.valid),
        Case(step.op, {
            CTL_START : [
                row.next_psn.eq(step.psn), row.sent_high.eq(step.psn),
                row.msg_psn.eq(step.psn),  row.msg_high.eq(step.psn),
                row.slot_high.eq(s6.slot),
                row.started.eq(1),
                row.paused.eq(0),
                row.flushing.eq(0),
            ],
            CTL_ERR : [
                row.generation.eq(s6.generation + 1),
                row.flushing.eq(1),
                row.paused.eq(0),
                row.slot.eq(s6.slot_high),
                # Flushed messages count behind all that is outstanding.
                row.msg_psn.eq(s6.msg_high),
                row.epoch.eq(s6.epoch + 1),
                moved.eq(1),
            ],
            CTL_STOP : [
                row.generation.eq(s6.generation + 1),
                row.started.eq(0),
                row.paused.eq(0),
                row.flushing.eq(0),
            ],
            CTL_RESET : [
                row.raw_bits().eq(0),
                row.generation.eq(s6.generation + 1),
                row.epoch.eq(s6.epoch + 1),
                row.life.eq(s6.life + 1),
                moved.eq(1),
                sq.clear.eq(step.valid),
            ],
            "default" : [],
        })
    ]


def write_burst(s6, step, burst, check, enter, is_ctl):
    """The burst record and its key check."""
    same = ("row", "out_index", "read_index", "msg_psn", "wr_id", "wc_opcode", "signalled", "is_read", "is_write",
        "has_imm", "retry", "pmtu", "imm", "lkey", "rkey", "slot", "generation")
    return [
        [getattr(burst, n).eq(getattr(s6, n)) for n in same],
        burst.qpi.eq(step.qpi),
        burst.ctl.eq(is_ctl),
        burst.op.eq(step.op),
        burst.valid.eq(step.valid & (burst.ctl | s6.flush | s6.refuse | s6.go)),
        burst.send.eq(s6.go),
        burst.register.eq(enter),
        burst.push_read.eq(s6.go & s6.is_read & ~s6.retry),
        burst.check.eq(s6.go & (s6.bytes != 0) & ~s6.inline),
        If(~s6.refuse, burst.row.eq(0)),
        burst.last_psn.eq(Mux(s6.go, s6.end_psn - 1, s6.msg_psn)),
        burst.two_slots.eq(s6.inline),
        burst.msg_length.eq(s6.length),
        burst.starts.eq(s6.eff_psn == s6.msg_psn),
        burst.ends.eq(s6.last),
        burst.se.eq(s6.se),
        burst.psn.eq(Mux(s6.go, s6.eff_psn, s6.msg_psn)),
        burst.end_psn.eq(s6.next),
        burst.length.eq(s6.bytes),
        burst.target.eq(s6.sq_target),
        burst.addr.eq(s6.inline_addr),
        burst.local_va.eq(s6.local),
        burst.remote_va.eq(Mux(s6.is_read, s6.remote, s6.remote_va)),
        burst.dma_length.eq(Mux(s6.is_read, s6.bytes, s6.length)),
        check.valid.eq(burst.valid & burst.check & ~burst.ctl),
        check.key.eq(s6.lkey),
        check.va.eq(s6.local),
        check.length.eq(s6.remaining),
        check.access.eq(Mux(s6.is_read, ACCESS_LOCAL_WRITE, 0)),
        check.pd.eq(s6.pd),
    ]
