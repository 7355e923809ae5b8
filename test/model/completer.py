# SPDX-License-Identifier: BSD-2-Clause
"""Completer: takes the responses to a requester's packets, retries, runs the timers.

Ref: InfiniBand Architecture vol. 1 ch. 9.7.6 (responses), 9.7.7 (retries, timers), 9.9.2 (errors).
"""
from roce_soc import opcodes as op
from roce_soc.verbs import ACCESS_LOCAL_WRITE, WR_LOCAL_INV, WR_RDMA_READ
from test.model.requester import ANSWERED, ATOMIC_OPS, Requester


class Completer(Requester):
    """The whole sending half of a QP: a Requester with response(), deadline() and tick()."""
    def response(self, packet, now):
        """One response that passed the endpoint's filter."""
        count, row = self.endpoint.count, op.OPCODES[packet.opcode]
        if op.psn_diff(packet.psn, self.sent_high) > 0:
            return count("ACK_BEYOND_SENT")
        if op.psn_diff(packet.psn, self.una) < 0 or not self.queue:
            return count("ACK_GHOST")
        if row.kind == "READ_RESPONSE":
            return self._read_response(packet, row, now)
        kind = op.syndrome_class(packet.syndrome)
        if kind == "RESERVED" or (kind == "NAK" and packet.syndrome > op.NAK_INVALID_RD_REQUEST):
            return count("SYNDROME_RESERVED")
        if row.kind == "ATOMIC_ACKNOWLEDGE":
            return self._atomic_response(packet, now)
        if not self._acknowledge_before(packet.psn, now):
            return None
        if kind == "ACK":
            wr = self.queue[0]
            if wr.opcode in ANSWERED:
                return self._implied_nak(now)
            return self._advance((packet.psn + 1) & op.PSN_MASK, now)
        if self.queue[0].opcode in ANSWERED and packet.psn != self.una:
            return self._implied_nak(now)       # replies before the refused PSN are missing.
        if kind == "RNR":
            return self._rnr(packet, now)
        return self._nak(packet, now)

    def _acknowledge_before(self, psn, now):
        """Complete what a response to `psn` acknowledges before it; False where that is a lost answer."""
        while self.queue and op.psn_diff(psn, self.queue[0].last_psn) > 0:
            wr = self.queue[0]
            if wr.opcode in ANSWERED:
                self._implied_nak(now)
                return False
            self._advance((wr.last_psn + 1) & op.PSN_MASK, now)
        if self.queue and op.psn_diff(psn, self.una) > 0 and self.queue[0].opcode not in ANSWERED:
            self._advance(psn, now)
        return bool(self.queue)

    def _advance(self, una, now):
        """`una` is the oldest PSN still unacknowledged: progress."""
        self.una, self.retrying = una, False
        self.rnr_until = None           # what was refused is done: nothing to wait for.
        self.retries, self.rnr_retries = self.qp.retry_cnt, self.qp.rnr_retry
        while self.queue and self.cursor_passed(self.queue[0]) and op.psn_diff(una, self.queue[0].last_psn) > 0:
            wr = self.queue.popleft()
            self.cursor -= self.cursor > 0
            self._complete(wr)
        if op.psn_diff(self.next_psn, una) < 0:
            self._rewind(una)
        outstanding = op.psn_diff(self.sent_high, una) >= 0
        self.timer  = now if outstanding else None
        if self.queue and self.queue[0].row and self.cursor == 0:
            self._fatal(self.queue[0], self.queue[0].row)

    def cursor_passed(self, wr):
        """True where some packet of a work request was sent."""
        return wr.opcode != WR_LOCAL_INV and op.psn_diff(self.sent_high, wr.first_psn) >= 0

    def _read_response(self, packet, row, now):
        if not self._acknowledge_before(packet.psn, now):
            return None
        wr = self.queue[0]
        if wr.opcode != WR_RDMA_READ:
            return self._fatal(wr, "BAD_RESPONSE")
        if row.position != "MIDDLE" and op.syndrome_class(packet.syndrome) != "ACK":
            return self.endpoint.count("SYNDROME_RESERVED")
        if packet.psn != self.una:
            return self._implied_nak(now)
        index, last = op.psn_diff(packet.psn, wr.first_psn), packet.psn == wr.last_psn
        if last != row.ends or (row.position in ("MIDDLE", "LAST") and not wr.response and not wr.retried):
            return self._fatal(wr, "BAD_RESPONSE")
        if len(packet.payload) != min(self.qp.pmtu, wr.length - index*self.qp.pmtu):
            return self._fatal(wr, "READ_LENGTH")
        if packet.payload and not self._store(wr, index*self.qp.pmtu, packet.payload):
            return None
        wr.response = row.position
        return self._advance((packet.psn + 1) & op.PSN_MASK, now)

    def _atomic_response(self, packet, now):
        if not self._acknowledge_before(packet.psn, now):
            return None
        wr = self.queue[0]
        if wr.opcode not in ATOMIC_OPS or packet.psn != wr.first_psn:
            return self._fatal(wr, "BAD_RESPONSE")
        if self._store(wr, 0, packet.original.to_bytes(8, "little")):
            self._advance((packet.psn + 1) & op.PSN_MASK, now)
        return None

    def _store(self, wr, offset, data):
        refused, region = self.endpoint.memory.check(wr.lkey, wr.va + offset, len(data), ACCESS_LOCAL_WRITE, self.qp.pd)
        if refused:
            self._fatal(wr, "RESPONSE_MEMORY")
            return False
        region.write(wr.va + offset, data)
        return True

    # Retries --------------------------------------------------------------------------------------

    def _rewind(self, psn):
        """Send from `psn` again."""
        self.next_psn, self.cursor = psn, 0
        while self.cursor < len(self.queue) and op.psn_diff(psn, self.queue[self.cursor].last_psn) > 0:
            self.cursor += 1
        for wr in list(self.queue)[self.cursor:]:
            wr.retried = True
        self.unasked = 0

    def _retry(self, psn, now):
        if self.retries == 0:
            return self._fatal(self.queue[0], "RETRY_EXCEEDED")
        if not (self.profile.retry_7_infinite and self.qp.retry_cnt == 7):
            self.retries -= 1
        self.timer = now
        return self._rewind(psn)

    def _implied_nak(self, now):
        """The answer of the oldest READ or atomic is lost."""
        if self.retrying or not self.profile.read_gap_retry:
            return None
        self.retrying = True
        self.endpoint.count("IMPLIED_NAK")
        return self._retry(self.una, now)

    def _nak(self, packet, now):
        if packet.syndrome == op.NAK_PSN_SEQUENCE:
            if self.rnr_until is None:     # the RNR wait takes precedence.
                self._retry(self.una if self.queue[0].opcode in ANSWERED else packet.psn, now)
            return
        row = {op.NAK_INVALID_REQUEST: "NAK_INVALID", op.NAK_REMOTE_ACCESS: "NAK_ACCESS"}
        self._fatal(self.queue[0], row.get(packet.syndrome, "NAK_OPERATIONAL"))

    def _rnr(self, packet, now):
        if self.rnr_until is not None:
            return
        if self.qp.rnr_retry != op.RNR_RETRY_INFINITE:
            if self.rnr_retries == 0:
                self._fatal(self.queue[0], "RNR_EXCEEDED")
                return
            self.rnr_retries -= 1
        self._rewind(packet.psn)
        self.rnr_until = now + op.RNR_TIMER_10US[packet.syndrome & op.SYNDROME_VALUE_MASK]*10_000
        self.timer = None

    def deadline(self):
        """Time of the next timer, None where none runs."""
        if self.rnr_until is not None:
            return self.rnr_until
        if self.timer is None or not self.qp.timeout or self.qp.qp_type != "RC":
            return None
        return self.timer + op.ack_timeout_ns(self.qp.timeout)

    def tick(self, now):
        """Let timers expire."""
        deadline = self.deadline()
        if deadline is None or now < deadline:
            return
        if self.rnr_until is not None:
            self.rnr_until, self.timer = None, now
        elif self.queue and op.psn_diff(self.sent_high, self.una) >= 0:
            self.retrying = False
            self._retry(self.una, now)
        else:
            self.timer = None
