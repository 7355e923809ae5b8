# SPDX-License-Identifier: BSD-2-Clause
"""Completer: the rules for acknowledges, READ responses, retries and timers, as combinational logic.

Ref: InfiniBand Architecture vol. 1 ch. 9.7.5.1 (responses), 9.7.5.2 (syndromes, RNR), 9.7.6 (retry), 9.9.2.4 (errors).
"""
from migen import *

from litex.gen import *

from roce_soc.common import CTL_ERR, CTL_RESET, CTL_START
from roce_soc.errors import ROW_WIDTH, index_of
from roce_soc.opcodes import RNR_RETRY_INFINITE
from roce_soc.transport.requester.state import (
    ITEM_BITS, ITEM_CTL, ITEM_ERROR, ITEM_FLUSH, ITEM_NONE, ITEM_PAUSE, ITEM_RESET, ITEM_REWIND, ITEM_SEEK, ITEM_START,
    completer_layout)

RESPONSE, SCAN, CTL, SEEK = range(4)


# CompleterRules -----------------------------------------------------------------------------------

class CompleterRules(LiteXModule):
    """Judges one visit: the new row, whether data is placed, what the walker is told.

    ACK      of p: all up to p is done; when it passes an outstanding READ, the READ's data was lost: implied NAK.
    READ     response: the PSN expected, else implied NAK; FIRST or ONLY also where a retry may have restarted it.
    NAK      of p: all before p is done. Sequence error: retry from p. Others: the message with p fails. Behind a READ
             whose data is missing, RNR NAKs included: implied NAK, the READ is repeated and the NAK not remembered.
    RNR NAK  of p: all before p is done; wait, then send from p. Sequence NAKs during the wait do not count.
    Timer    over: retry from una. A retry without progress takes one of retry_cnt; progress reloads them.
    Seek     of the requester: passed on, so that it is answered behind all that was acknowledged before.
    A gap is retried once: what arrives behind it until something moves says the same again.

    Parameters
    ----------
    c : Record
        Rows, distances and decoded fields of CompleterDecide's stage C4.
    visit : Record
        kind, op and packet fields.
    now : Signal

    Attributes
    ----------
    verdict : Record
        `write` the row (`row_*`); `place` the payload; `tell` the walker `action`; `error` row of errors.py.

    Latency: none.
    Errors : ACK_GHOST, ACK_BEYOND_SENT, SYNDROME_RESERVED: ignored. IMPLIED_NAK: retried. RETRY_EXCEEDED,
    RNR_EXCEEDED, NAK_*, BAD_RESPONSE, READ_LENGTH: the oldest message fails, the QP is dead until RESET.
    """
    def __init__(self, c, visit, now):
        self.verdict = v = Record([("write", 1), ("place", 1), ("tell", 1), ("action", ITEM_BITS), ("error", ROW_WIDTH)]
            + [(f"row_{n}", w) for n, w in completer_layout()])

        # # #

        # What the response asks for, and up to where all is done then.
        self.advance, self.retry, self.fail = Signal(), Signal(), Signal()
        self.rnr, self.timer, self.resume   = Signal(), Signal(), Signal()
        self.seek   = Signal()
        self.place  = Signal()
        self.reason = Signal(ROW_WIDTH)
        self.una    = Signal(24)
        self.moved  = Signal()
        live = Signal()
        self.comb += [
            live.eq(c.live & ~c.dead & ~visit.drop),
            self.una.eq(c.una),
            Case(visit.kind, {
                RESPONSE : If(live, *self.response_rules(c, visit)),
                SCAN     : If(live,
                    self.resume.eq(c.waiting & c.rnr_over),
                    self.timer.eq(~c.waiting & c.expired),
                ),
                SEEK     : self.seek.eq(live),
                "default": [],
            }),
            self.moved.eq(self.una != c.una),
        ]
        self.comb += [getattr(v, f"row_{n}").eq(getattr(c, n)) for n, _ in completer_layout()]
        self.comb += self.row_rules(c, visit, now)

    def response_rules(self, c, visit):
        """The response by itself."""
        to_limit = self.una.eq(Mux(c.at_read, c.expected, visit.psn))
        follow   = Signal(24)
        form     = Signal()
        length   = Signal()
        self.comb += [
            follow.eq(visit.psn + 1),
            form.eq(Mux(c.starts, c.at_first | c.restart, ~c.at_first)),
            length.eq((c.ends == c.at_last) & (visit.length == Mux(c.at_last, c.left, c.pmtu_bytes))),
        ]

        def error(name):
            return self.reason.eq(index_of(name))

        acknowledge = [
            If(c.ack,
                If(c.at_read,
                    error("IMPLIED_NAK"),
                    self.una.eq(c.expected),
                    self.retry.eq(1),
                ).Else(
                    self.una.eq(follow),
                    self.advance.eq(1),
                )
            ).Elif(c.rnr | c.nak,
                to_limit,
                If(c.at_read & ~c.as_expected,
                    # READ data before it was lost: what is refused is refused again, behind the data.
                    error("IMPLIED_NAK"),
                    self.retry.eq(1),
                ).Elif(c.rnr,
                    self.rnr.eq(1),
                ).Else(
                    self.reason.eq(c.nak_row),
                    self.retry.eq(c.nak_row == 0),
                    self.fail.eq(c.nak_row != 0),
                )
            ).Else(
                error("SYNDROME_RESERVED"),
            )
        ]
        read = [
            If(~c.at_read,
                error("BAD_RESPONSE"),
                self.fail.eq(1),
            ).Elif(~c.as_expected,
                error("IMPLIED_NAK"),
                self.una.eq(c.expected),
                self.retry.eq(1),
            ).Elif(c.aeth & ~c.ack,
                error("SYNDROME_RESERVED"),
            ).Elif(~form,
                error("BAD_RESPONSE"),
                self.una.eq(c.expected),
                self.fail.eq(1),
            ).Elif(~length,
                error("READ_LENGTH"),
                self.una.eq(c.expected),
                self.fail.eq(1),
            ).Else(
                self.una.eq(follow),
                self.advance.eq(1),
                self.place.eq(1),
            )
        ]
        return [
            If(c.ghost,
                error("ACK_GHOST"),
            ).Elif(c.beyond,
                error("ACK_BEYOND_SENT"),
            ).Elif(c.is_ack,
                *acknowledge,
            ).Elif(c.is_read,
                *read,
            ).Else(
                error("BAD_RESPONSE"),
                self.fail.eq(1),
            )
        ]

    def row_rules(self, c, visit, now):
        """The response in the QP's present state: counters, waits, and what the walker is told."""
        verdict = self.verdict
        retries, rnrs = Signal(3), Signal(3)
        again = Signal()
        self.comb += [
            # Counters start afresh with progress.
            retries.eq(Mux(self.moved, c.retry_cnt, c.retry_left)),
            rnrs.eq(Mux(self.moved, c.rnr_retry, c.rnr_left)),
            again.eq(self.timer | (self.retry & (self.moved | ~(c.waiting | c.gap)))),
        ]

        def fail(name):
            return [verdict.error.eq(index_of(name)), verdict.action.eq(ITEM_ERROR), verdict.row_dead.eq(1)]

        return [
            If(self.advance | self.retry | self.rnr | self.fail, verdict.row_una.eq(self.una)),
            verdict.error.eq(Mux((visit.kind == RESPONSE) & visit.drop, index_of("BUFFER_FULL"), self.reason)),
            verdict.place.eq(self.place),
            If(self.place & c.at_last, verdict.row_read_head.eq(c.read_head + 1)),
            If(self.moved,
                verdict.row_retry_left.eq(c.retry_cnt),
                verdict.row_rnr_left.eq(c.rnr_retry),
                verdict.row_gap.eq(0),
                verdict.row_last_progress.eq(now),
                If(self.una == c.sent_high, verdict.row_restart.eq(0)),
            ),
            verdict.action.eq(ITEM_NONE),
            If(self.fail,
                verdict.action.eq(ITEM_ERROR),
                verdict.row_dead.eq(1),
            ).Elif(again,
                If(retries == 0,
                    *fail("RETRY_EXCEEDED"),
                ).Else(
                    verdict.action.eq(ITEM_REWIND),
                    verdict.row_waiting.eq(0),
                    verdict.row_retry_left.eq(retries - 1),
                    verdict.row_gap.eq(~self.timer),
                    verdict.row_restart.eq(1),
                    verdict.row_last_progress.eq(now),
                )
            ).Elif(self.rnr & (self.moved | ~c.waiting),
                If(rnrs == 0,
                    *fail("RNR_EXCEEDED"),
                ).Else(
                    verdict.action.eq(ITEM_PAUSE),
                    If(c.rnr_retry != RNR_RETRY_INFINITE, verdict.row_rnr_left.eq(rnrs - 1)),
                    verdict.row_waiting.eq(1),
                    verdict.row_rnr_until.eq(now + c.rnr_ticks),
                )
            ).Elif(self.resume | (self.moved & c.waiting),
                verdict.action.eq(ITEM_REWIND),
                verdict.row_waiting.eq(0),
                verdict.row_restart.eq(1),
                verdict.row_last_progress.eq(now),
            ).Elif(self.seek,
                verdict.action.eq(ITEM_SEEK),
            ),
            If((verdict.action == ITEM_REWIND) | (verdict.action == ITEM_PAUSE),
                verdict.row_rewinding.eq(1), verdict.row_rewind_from.eq(c.generation),
            ),
            verdict.tell.eq(self.moved | (verdict.action != ITEM_NONE)),
            verdict.write.eq(verdict.tell | self.place),
            If(visit.kind == CTL,
                verdict.write.eq((visit.op == CTL_START) | (visit.op == CTL_ERR) | (visit.op == CTL_RESET)),
                verdict.tell.eq(1),
                verdict.action.eq(ITEM_CTL),
                Case(visit.op, {
                    CTL_START : [
                        verdict.action.eq(ITEM_START),
                        verdict.row_una.eq(visit.ctl_psn),
                        verdict.row_retry_left.eq(c.retry_cnt),
                        verdict.row_rnr_left.eq(c.rnr_retry),
                        [getattr(verdict, f"row_{n}").eq(0) for n in ("gap", "restart", "waiting", "dead", "rewinding")],
                        verdict.row_last_progress.eq(now),
                    ],
                    CTL_ERR : [
                        verdict.action.eq(ITEM_FLUSH),
                        verdict.row_dead.eq(1),
                    ],
                    CTL_RESET : [
                        verdict.action.eq(ITEM_RESET),
                        [getattr(verdict, f"row_{n}").eq(0) for n, _ in completer_layout()],
                    ],
                    "default" : [],
                })
            )
        ]
