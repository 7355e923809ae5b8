# SPDX-License-Identifier: BSD-2-Clause
"""Reply scheduler: READs that are asked for again, as statements for RoCEReply.

Ref: InfiniBand Architecture vol. 1 ch. 9.7.5.1.1 (duplicate READ).
"""
from migen import *

from roce_soc.common import MAX_READS
from roce_soc.errors import ERRORS
from roce_soc.opcodes import RC_READ_REQUEST
from roce_soc.transport.reply.ring import READ_LAYOUT
from roce_soc.transport.reply.rows import LIFE_WIDTH
from roce_soc.transport.responder.layout import READ_INDEX_WIDTH, reply_description

LOOK_UPS = 128     # duplicates of all QPs that wait to be looked up.


def look_up_layout():
    """A duplicate READ that waits to be looked up; `life` of its QP when it came."""
    fields = {name: width for name, width, *_ in reply_description().payload_layout}
    return [(name, fields[name]) for name in ("qpi", "qpn", "psn", "last_psn", "va", "rkey", "length", "pmtu")] + [
        ("life", LIFE_WIDTH)]


def accept_again(reply):
    """A duplicate is looked up if it finds a place."""
    old, new, asked = reply.old, reply.new, reply.asked.sink
    return [If(old.started & (old.looking != MAX_READS) & asked.ready,
        asked.valid.eq(1), new.looking.eq(old.looking + 1),
    ).Else(
        reply.dropped.eq(1),
    )]

def look_up_known(reply):
    """The duplicate was looked up: `again` says that it is ring entry op.index."""
    old, new, op = reply.old, reply.new, reply.op
    to_come, age, age_active = (Signal(READ_INDEX_WIDTH) for _ in range(3))
    restart = Record(READ_LAYOUT)
    reply.comb += [
        to_come.eq(old.accepted - old.next),
        age.eq(old.accepted - op.index),
        age_active.eq(old.accepted - old.r_index),
        restart.eq(reply.loaded),
        [getattr(restart, name).eq(getattr(reply.record, name)) for name in ("psn", "last_psn", "va", "length")],
        restart.ack.eq(0),
    ]
    repeat = [new.again.eq(old.again | (1 << op.index[:4])), reply.ring.write_repeat.eq(1)]
    # An entry that younger READs have used meanwhile is gone.
    good = op.again & (age <= MAX_READS)
    return [If(op.life != old.life,
        reply.dropped.eq(1),
    ).Else(
        new.looking.eq(old.looking - 1), reply._queue(), reply.dropped.eq(~good), reply.answered.eq(good),
        If(good & (age > to_come), *_repeat(reply, repeat, restart, age > age_active)),
    )]

def _repeat(reply, repeat, restart, older):
    """Statements: the READ found is answered once more; `older`: than the one under way."""
    old, new, op = reply.old, reply.new, reply.op
    return [
        If(old.active & (old.r_index == op.index),
            reply._start(restart, op.index, reply.record_last, old.r_again),
        ).Elif(old.active & older,
            # An older one comes first: the READ under way begins anew behind it.
            repeat, new.active.eq(0),
            If(old.r_again,
                new.again.eq(old.again | (1 << op.index[:4]) | (1 << old.r_index[:4])),
            ).Else(
                new.next.eq(old.next - 1),
            ),
        ).Else(
            repeat
        ),
    ]

def connect_look_ups(reply):
    """What waits to be looked up; one row for each duplicate READ."""
    refusal, record, asked = reply.refusal, reply.record, reply.asked.sink
    reply.comb += [
        [getattr(asked, name).eq(getattr(record, name)) for name, _ in look_up_layout() if name not in ("qpi", "life")],
        asked.qpi.eq(reply.op.qpi), asked.life.eq(reply.old.life),
        refusal.first.eq(1), refusal.last.eq(1),
    ]
    reply.sync += [
        refusal.valid.eq(reply.dropped | reply.answered),
        refusal.row.eq(Mux(reply.dropped, ERRORS["DUPLICATE_DROPPED"].index, ERRORS["PSN_DUPLICATE"].index)),
        refusal.psn.eq(record.psn), refusal.qpn.eq(record.qpn),
        refusal.opcode.eq(RC_READ_REQUEST), refusal.info.eq(record.length),
    ]
