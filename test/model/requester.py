# SPDX-License-Identifier: BSD-2-Clause
"""Requester and completer: sends work requests in order, takes their responses, retries, completes.

Ref: InfiniBand Architecture vol. 1 ch. 9.7.2 (PSN), 9.7.6 (responses), 9.7.7.2 (timers), 9.9.2 (errors).
Not supported: end-to-end credits (the peer's credit codes are ignored).
"""
from collections import deque

from roce_soc import opcodes as op
from roce_soc.errors import ERRORS
from roce_soc.verbs import (ACCESS_LOCAL_WRITE, QPS_RTS, QPS_SQD, SEND_FENCE, SEND_INLINE, SEND_SIGNALED,
                            SEND_SOLICITED, WC_OF_WR, WC_SUCCESS, WC_WR_FLUSH_ERR, WR_ATOMIC_CMP_AND_SWP,
                            WR_ATOMIC_FETCH_AND_ADD, WR_LOCAL_INV, WR_RDMA_READ, WR_RDMA_WRITE,
                            WR_RDMA_WRITE_WITH_IMM, WR_SEND, WR_SEND_WITH_IMM, WR_SEND_WITH_INV)
from test.model.qp import Completion

SEND_OPS   = (WR_SEND, WR_SEND_WITH_IMM, WR_SEND_WITH_INV)
WRITE_OPS  = (WR_RDMA_WRITE, WR_RDMA_WRITE_WITH_IMM)
ATOMIC_OPS = (WR_ATOMIC_CMP_AND_SWP, WR_ATOMIC_FETCH_AND_ADD)
ANSWERED   = (WR_RDMA_READ,) + ATOMIC_OPS      # complete by data, not by ACK alone.
OPS_OF_TYPE = {"RC": SEND_OPS + WRITE_OPS + ANSWERED + (WR_LOCAL_INV,),
               "UC": (WR_SEND, WR_SEND_WITH_IMM) + WRITE_OPS + (WR_LOCAL_INV,),
               "UD": (WR_SEND, WR_SEND_WITH_IMM)}
MAX_MESSAGE = 1 << 31


class Requester:
    """The sending half of a QP: post(), pump() sends what may go, response() takes answers."""
    def __init__(self, qp):
        self.qp, self.profile, self.endpoint = qp, qp.endpoint.profile, qp.endpoint
        self.reset()

    def reset(self):
        """State of a QP that enters RTS."""
        qp = self.qp
        self.queue    = deque()         # work requests not completed, in order.
        self.next_psn = self.una = self.post_psn = qp.sq_psn
        self.sent_high = (qp.sq_psn - 1) & op.PSN_MASK
        self.cursor   = 0               # index in queue of the one being sent.
        self.retries, self.rnr_retries = qp.retry_cnt, qp.rnr_retry
        self.timer    = None            # time of the last progress while something is outstanding.
        self.rnr_until = None
        self.retrying = False           # after an implied NAK, until progress.
        self.unasked  = 0               # packets since the last AckReq.
        self.ssn      = 0

    # Posting --------------------------------------------------------------------------------------

    def post(self, wr):
        """Append a work request; its PSNs are fixed here."""
        count = 1
        if wr.opcode not in ATOMIC_OPS and wr.opcode != WR_LOCAL_INV and self.qp.qp_type != "UD":
            count = op.packets(wr.length, self.qp.pmtu)
        if wr.opcode == WR_LOCAL_INV:
            count = 0
        wr.first_psn  = self.post_psn
        wr.last_psn   = (self.post_psn + max(count, 1) - 1) & op.PSN_MASK
        self.post_psn = (self.post_psn + count) & op.PSN_MASK
        self.ssn     += 1
        wr.ssn = self.ssn
        if wr.flags & SEND_INLINE and wr.inline is None:
            refused, region = self.endpoint.memory.check(wr.lkey, wr.va, wr.length, 0, self.qp.pd)
            wr.inline = region.read(wr.va, wr.length) if refused is None else bytes(wr.length)
        self.queue.append(wr)

    def _local_row(self, wr):
        """Row that refuses a work request on this side, or None."""
        qp = self.qp
        if wr.opcode not in OPS_OF_TYPE[qp.qp_type]:
            return "LOCAL_OPERATION"
        if wr.opcode in ANSWERED and qp.max_rd_atomic == 0:
            return "LOCAL_OPERATION"
        if wr.opcode in ATOMIC_OPS and wr.length not in (0, 8):
            return "LOCAL_LENGTH"
        if wr.length > (qp.pmtu if qp.qp_type == "UD" else MAX_MESSAGE):
            return "LOCAL_LENGTH"
        if wr.length and wr.opcode != WR_LOCAL_INV and not wr.flags & SEND_INLINE:
            access = ACCESS_LOCAL_WRITE if wr.opcode in ANSWERED else 0
            if self.endpoint.memory.check(wr.lkey, wr.va, wr.length, access, qp.pd)[0]:
                return "LOCAL_PROTECTION"
        return None

    # Sending --------------------------------------------------------------------------------------

    def pump(self, now):
        """Send every packet that may go now."""
        qp = self.qp
        while qp.state in (QPS_RTS, QPS_SQD) and self.cursor < len(self.queue) and self.rnr_until is None:
            wr = self.queue[self.cursor]
            starting = self.next_psn == wr.first_psn
            if starting and not self._may_start(wr, now):
                return
            if wr.opcode == WR_LOCAL_INV:
                self.cursor += 1
                continue
            if op.psn_diff(self.next_psn, self.una) >= self.profile.window:
                return
            self._send_one(wr)
            if self.timer is None:
                self.timer = now
            if qp.qp_type != "RC":
                self._complete_sent(now)

    def _may_start(self, wr, now):
        wr.row = wr.row or self._local_row(wr)
        ahead  = list(self.queue)[:self.cursor]
        if wr.row:
            if not ahead:
                self._fatal(wr, wr.row)
            return False
        reads = sum(w.opcode in ANSWERED for w in ahead)
        if wr.opcode in ANSWERED and reads >= self.qp.max_rd_atomic:
            return False
        if wr.opcode == WR_LOCAL_INV:
            if ahead:
                return False
            if wr.inv_rkey not in self.endpoint.memory.regions:
                self._fatal(wr, "LOCAL_OPERATION")
                return False
            self.endpoint.memory.deregister(wr.inv_rkey)
            self.queue.popleft()
            self.cursor -= 1               # pump moves on to what is now at its place.
            self._complete(wr)
        return not (wr.flags & SEND_FENCE and reads)

    def _send_one(self, wr):
        qp, psn = self.qp, self.next_psn
        fields  = self._request(wr, op.psn_diff(psn, wr.first_psn))
        last    = psn == wr.last_psn or wr.opcode in ANSWERED
        self.unasked += 1
        if qp.qp_type == "RC":
            interval = self.profile.ackreq_interval
            if last or (interval and self.unasked > interval):
                fields["ackreq"], self.unasked = 1, 0
        if last and wr.flags & SEND_SOLICITED and (wr.opcode in SEND_OPS or wr.opcode == WR_RDMA_WRITE_WITH_IMM):
            fields["se"] = 1
        self.endpoint.send(qp, psn=psn, address=wr.address, **fields)
        end = wr.last_psn if wr.opcode == WR_RDMA_READ else psn
        self.next_psn = (end + 1) & op.PSN_MASK
        if op.psn_diff(end, self.sent_high) > 0:
            self.sent_high = end
        if last:
            self.cursor += 1

    def _request(self, wr, index):
        """Fields of packet `index` of a message."""
        qp, pmtu, transport = self.qp, self.qp.pmtu, self.qp.qp_type
        if wr.opcode == WR_RDMA_READ:
            return {"opcode": op.RC_READ_REQUEST, "va": wr.remote_va + index*pmtu, "rkey": wr.rkey,
                    "dma_length": wr.length - index*pmtu}
        if wr.opcode in ATOMIC_OPS:
            opcode = op.RC_CMP_SWAP if wr.opcode == WR_ATOMIC_CMP_AND_SWP else op.RC_FETCH_ADD
            return {"opcode": opcode, "va": wr.remote_va, "rkey": wr.rkey, "swap_add": wr.swap_add,
                    "compare": wr.compare}
        first, last = index == 0, self.next_psn == wr.last_psn
        position = {(True, True): "ONLY", (True, False): "FIRST", (False, False): "MIDDLE", (False, True): "LAST"}
        imm = last and wr.opcode in (WR_SEND_WITH_IMM, WR_RDMA_WRITE_WITH_IMM)
        inv = last and wr.opcode == WR_SEND_WITH_INV
        opcode = op.opcode_of(transport, "SEND" if wr.opcode in SEND_OPS else "WRITE", position[first, last],
                              imm=imm, inv=inv)
        size   = wr.length if transport == "UD" else min(pmtu, wr.length - index*pmtu)
        fields = {"opcode": opcode, "payload": self._data(wr, index*pmtu, size)}
        if imm:
            fields["imm"] = wr.imm
        if inv:
            fields["inv_rkey"] = wr.inv_rkey
        if wr.opcode in WRITE_OPS and first:
            fields.update(va=wr.remote_va, rkey=wr.rkey, dma_length=wr.length)
        if transport == "UD":
            fields.update(qkey=wr.remote_qkey, src_qp=qp.qpn, dest_qpn=wr.remote_qpn)
        return fields

    def _data(self, wr, offset, size):
        if not size:
            return b""
        if wr.inline is not None:
            return wr.inline[offset:offset + size]
        region = self.endpoint.memory.regions.get(wr.lkey)
        return region.read(wr.va + offset, size) if region else bytes(size)

    def _complete_sent(self, now):
        """UC and UD: complete with the last packet."""
        while self.cursor:
            self._complete(self.queue.popleft())
            self.cursor -= 1
        self.una, self.timer = self.next_psn, None

    # Responses ------------------------------------------------------------------------------------

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

    # Ends -----------------------------------------------------------------------------------------

    def _complete(self, wr):
        if wr.flags & SEND_SIGNALED or self.qp.sq_sig_all:
            self.qp.complete(Completion(wr.wr_id, WC_SUCCESS, WC_OF_WR[wr.opcode], self.qp.qpn, byte_len=wr.length))

    def _fatal(self, wr, row):
        """The oldest work request fails, the QP goes to ERR."""
        self.endpoint.count(row)
        self.queue.popleft()
        self.qp.complete(Completion(wr.wr_id, ERRORS[row].local_status, WC_OF_WR.get(wr.opcode, 0), self.qp.qpn, row=row))
        self.endpoint.fail(self.qp, row)

    def flush(self):
        """ERR: every work request left ends in WR_FLUSH_ERR, in order."""
        while self.queue:
            wr = self.queue.popleft()
            self.qp.complete(Completion(wr.wr_id, WC_WR_FLUSH_ERR, WC_OF_WR.get(wr.opcode, 0), self.qp.qpn, row="FLUSH"))
        self.cursor, self.timer, self.rnr_until = 0, None, None
