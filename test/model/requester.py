# SPDX-License-Identifier: BSD-2-Clause
"""Requester: sends work requests in order, completes and flushes them.

Ref: InfiniBand Architecture vol. 1 ch. 9.7.2 (PSN), 9.7.3 (requester), 9.9.2 (errors).
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
    """The sending half of a QP: post(), pump() sends what may go; test.model.completer takes the answers."""
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
