# SPDX-License-Identifier: BSD-2-Clause
"""Requester, end of a visit: what stage S5 writes, as statements for RequesterVisit."""
from migen import *

from roce_soc.common import CTL_ERR, CTL_RESET, CTL_START, CTL_STOP
from roce_soc.transport.requester.state import REWIND_GO, REWIND_MISS, REWIND_PAUSE, REWIND_SEEK
from roce_soc.verbs import ACCESS_LOCAL_WRITE


def write_visit(s5, step, sq, row, enter, high, moved):
    """A visit's burst, jump, refusal or flush moves the row on."""
    return [
        sq.again.valid.eq(step.valid & (s5.go | s5.jump | s5.flush)),
        If(enter,
            row.out_index.eq(s5.out_index + 1),
            row.slot_high.eq(s5.next_slot),
        ),
        If(s5.go & enter & s5.is_read,
            row.fence_index.eq(s5.out_index + 1),
        ).Elif(~s5.reads_open,
            row.fence_index.eq(s5.tail),
        ),
        If(s5.go,
            row.next_psn.eq(s5.next),
            If(~high[-1], row.sent_high.eq(s5.next)),
            If(enter, row.msg_high.eq(s5.end_psn)),
            If(s5.is_read & ~s5.retry, row.read_index.eq(s5.read_index + 1)),
            If(s5.last, row.msg_psn.eq(s5.next)),
        ),
        If(s5.refuse & enter, row.msg_high.eq(s5.msg_psn + 1)),
        moved.eq(s5.jump | s5.flush | (s5.go & s5.last)),
        If(moved, row.slot.eq(s5.next_slot)),
        # All that was registered is done: what follows is new.
        If(s5.jump,
            row.next_psn.eq(s5.msg_high),
            row.msg_psn.eq(s5.msg_high),
            row.slot.eq(s5.slot_high),
        ),
        If(s5.seek, row.seeking.eq(1)),
        If(s5.jump, row.seeking.eq(0)),
    ]


def write_rewind(s5, step, sq, row, moved):
    """Back to an earlier PSN, or pause until that comes; forward to the oldest message when that was asked for.

    A rewind behind a missing page is void when the QP has been rewound or paused since; control voids it at the launch.
    """
    after_miss = (step.op == REWIND_MISS) & (step.generation == s5.generation)
    place = [
        row.next_psn.eq(step.psn),
        row.msg_psn.eq(step.msg_psn),
        row.slot.eq(step.slot),
        moved.eq(step.slot != s5.slot),
    ]
    return [
        If(s5.flushing,
            # Nothing is sent any more.
        ).Elif(step.op == REWIND_PAUSE,
            row.paused.eq(1),
        ).Elif((step.op == REWIND_GO) | after_miss,
            *place,
            row.paused.eq(0),
            # An answer to a question asked before a missing page is still awaited.
            If(step.op == REWIND_GO, row.seeking.eq(0)),
            sq.again.valid.eq(step.valid),
            # Another work request: the prefetch starts again there.
            If(moved, row.epoch.eq(s5.epoch + 1)),
        ).Elif((step.op == REWIND_SEEK) & s5.seeking,
            *place,
            row.seeking.eq(0),
            sq.again.valid.eq(step.valid),
        ),
        # Packets that are still waiting to go belong to the past.
        If((step.op == REWIND_PAUSE) | (step.op == REWIND_GO) | after_miss, row.generation.eq(s5.generation + 1)),
    ]


def write_ctl(s5, step, sq, row, moved):
    """Control: new row, flush, or clean row."""
    return [
        sq.again.valid.eq(step.valid),
        Case(step.op, {
            CTL_START : [
                row.next_psn.eq(step.psn), row.sent_high.eq(step.psn),
                row.msg_psn.eq(step.psn),  row.msg_high.eq(step.psn),
                row.slot_high.eq(s5.slot),
                row.started.eq(1),
                row.paused.eq(0),
                row.seeking.eq(0),
                row.flushing.eq(0),
            ],
            CTL_ERR : [
                row.generation.eq(s5.generation + 1),
                row.flushing.eq(1),
                row.paused.eq(0),
                row.seeking.eq(0),
                row.slot.eq(s5.slot_high),
                # Flushed messages count behind all that is outstanding.
                row.msg_psn.eq(s5.msg_high),
                row.epoch.eq(s5.epoch + 1),
                moved.eq(1),
            ],
            CTL_STOP : [
                row.generation.eq(s5.generation + 1),
                row.started.eq(0),
                row.paused.eq(0),
                row.seeking.eq(0),
                row.flushing.eq(0),
            ],
            CTL_RESET : [
                # CTL_STOP has counted a generation and its marker is back: none is under way.
                row.raw_bits().eq(0),
                row.epoch.eq(s5.epoch + 1),
                row.life.eq(s5.life + 1),
                moved.eq(1),
                sq.clear.eq(step.valid),
            ],
            "default" : [],
        })
    ]


def write_burst(s5, step, burst, check, enter, is_ctl):
    """The burst record and its key check."""
    same = ("row", "out_index", "read_index", "msg_psn", "wr_id", "wc_opcode", "signalled", "is_read", "is_write",
        "has_imm", "retry", "pmtu", "imm", "lkey", "rkey", "slot", "generation")
    return [
        [getattr(burst, n).eq(getattr(s5, n)) for n in same],
        burst.qpi.eq(step.qpi),
        burst.ctl.eq(is_ctl),
        burst.op.eq(step.op),
        burst.valid.eq(step.valid & (burst.ctl | s5.flush | s5.refuse | s5.go)),
        burst.send.eq(s5.go),
        burst.register.eq(enter),
        burst.push_read.eq(s5.go & s5.is_read & ~s5.retry),
        burst.check.eq(s5.go & (s5.bytes != 0) & ~s5.inline),
        If(~s5.refuse, burst.row.eq(0)),
        burst.last_psn.eq(Mux(s5.go, s5.end_psn - 1, s5.msg_psn)),
        burst.two_slots.eq(s5.inline),
        burst.msg_length.eq(s5.length),
        burst.starts.eq(s5.next_psn == s5.msg_psn),
        burst.ends.eq(s5.last),
        burst.se.eq(s5.se),
        burst.psn.eq(Mux(is_ctl, step.psn, Mux(s5.flush, s5.msg_psn, s5.next_psn))),
        burst.end_psn.eq(s5.next),
        burst.length.eq(s5.bytes),
        burst.target.eq(s5.sq_target),
        burst.addr.eq(s5.inline_addr),
        burst.local_va.eq(s5.local),
        burst.remote_va.eq(Mux(s5.is_read, s5.remote, s5.remote_va)),
        burst.dma_length.eq(Mux(s5.is_read, s5.bytes, s5.length)),
        check.valid.eq(burst.valid & burst.check & ~burst.ctl),
        check.key.eq(s5.lkey),
        check.va.eq(s5.local),
        check.length.eq(s5.remaining),
        check.access.eq(Mux(s5.is_read, ACCESS_LOCAL_WRITE, 0)),
        check.pd.eq(s5.pd),
    ]
