# SPDX-License-Identifier: BSD-2-Clause
"""Responder of RC: checks every request in order, executes it, answers it.

Ref: InfiniBand Architecture vol. 1 ch. 9.7.4 (validation), 9.7.5 (responses).
Not supported: SRQ.
"""
from collections import deque, namedtuple

from roce_soc import opcodes as op
from roce_soc.errors import ERRORS
from roce_soc.verbs import (ACCESS_REMOTE_READ, QPS_ERR, WC_FLAG_GRH, WC_FLAG_WITH_IMM, WC_FLAG_WITH_INV, WC_RECV,
                            WC_RECV_RDMA_WITH_IMM, WC_SUCCESS)
from test.model.checks import Checks, Refusal
from test.model.qp import Completion

# What a duplicate READ or atomic is answered from.
Resource = namedtuple("Resource", "kind first_psn last_psn va length rkey original")


class Responder(Checks):
    """The receiving half of a QP: request() takes packets that passed the endpoint's filter."""
    def __init__(self, qp):
        super().__init__(qp)
        self.profile = qp.endpoint.profile
        self.reset()

    def reset(self):
        """State of a QP that enters RTR."""
        self.epsn, self.msn = self.qp.rq_psn, 0
        self.nak_sent  = False          # one NAK a gap; silent until epsn comes.
        self.kind      = self.receive = None
        self.resources = deque(maxlen=max(1, self.qp.max_dest_rd_atomic))

    # Entry ----------------------------------------------------------------------------------------

    def request(self, packet):
        """One request packet; answers go to the endpoint's send list, completions to the CQ."""
        row = op.OPCODES[packet.opcode]
        diff = op.psn_diff(packet.psn, self.epsn)
        if diff < 0:
            return self._duplicate(packet, row)
        if diff > 0:
            return self._out_of_sequence()
        self.nak_sent = False
        try:
            self.check(packet, row)
            self._execute(packet, row)
        except Refusal as refusal:
            self._refuse(packet, refusal.row)

    def _out_of_sequence(self):
        if self.nak_sent:
            return self.qp.endpoint.count("PSN_SEQUENCE_AGAIN")
        self.nak_sent = True
        self.qp.endpoint.count("PSN_SEQUENCE")
        self._acknowledge(self.epsn, op.NAK_PSN_SEQUENCE)

    # Execution ------------------------------------------------------------------------------------

    def _execute(self, packet, row):
        kind = row.kind
        if kind == "READ_REQUEST":
            return self._read(packet)
        if kind in ("CMP_SWAP", "FETCH_ADD"):
            return self._atomic(packet, kind)
        if kind == "SEND":
            self._place_send(packet, row)
        else:
            self._place_write(packet, row)
        self.kind = None if row.ends else kind
        self.epsn = (self.epsn + 1) & op.PSN_MASK
        if row.ends:
            self.msn = (self.msn + 1) & op.PSN_MASK
            self._complete_receive(packet, row)
        if packet.ackreq and self.qp.qp_type == "RC" and self.qp.state != QPS_ERR:
            self._acknowledge(packet.psn, op.ACK_UNLIMITED)

    def _place_send(self, packet, row):
        if row.starts:
            self.receive, self.placed = self.qp.receives.popleft(), 0
        if packet.payload:
            self.region.write(self.receive.va + self.placed, packet.payload)
        self.placed += len(packet.payload)

    def _place_write(self, packet, row):
        if row.starts:
            self.va, self.rkey, self.residue = packet.va, packet.rkey, packet.dma_length
            self.total = packet.dma_length
        if packet.payload:
            self.region.write(self.va, packet.payload)
        self.va      += len(packet.payload)
        self.residue -= len(packet.payload)
        if row.has_imm:
            self.receive, self.placed = self.qp.receives.popleft(), self.total

    def _complete_receive(self, packet, row):
        if self.receive is None:
            return
        qp, flags = self.qp, 0
        if self.profile.grh_flag:
            flags |= WC_FLAG_GRH
        if row.has_imm:
            flags |= WC_FLAG_WITH_IMM
        if row.has_inv:
            region = qp.endpoint.memory.regions.get(packet.inv_rkey)
            if region is None or region.pd != qp.pd or not region.invalidatable:
                return self._refuse(packet, "INVALIDATE_KEY")
            qp.endpoint.memory.deregister(packet.inv_rkey)
            flags |= WC_FLAG_WITH_INV
        receive, self.receive = self.receive, None
        qp.complete(Completion(
            receive.wr_id, WC_SUCCESS, WC_RECV_RDMA_WITH_IMM if row.kind == "WRITE" else WC_RECV, qp.qpn,
            byte_len=self.placed, flags=flags, imm=packet.imm if row.has_imm else None,
            inv_rkey=packet.inv_rkey if row.has_inv else None, solicited=bool(packet.se)))

    def _read(self, packet):
        self.resources.append(Resource("READ", packet.psn,
            (packet.psn + op.packets(packet.dma_length, self.qp.pmtu) - 1) & op.PSN_MASK,
            packet.va, packet.dma_length, packet.rkey, 0))
        self.msn  = (self.msn + 1) & op.PSN_MASK
        self.epsn = (self.resources[-1].last_psn + 1) & op.PSN_MASK
        self._read_replies(packet, self.region, True)

    def _read_replies(self, packet, region, from_start):
        qp, length, pmtu = self.qp, packet.dma_length, self.qp.pmtu
        data  = region.read(packet.va, length) if length else b""
        count = op.packets(length, pmtu)
        starts = from_start or self.profile.read_restart_first
        for n in range(count):
            first, last = n == 0 and starts, n == count - 1
            opcode = {(True, True): op.RC_READ_RESPONSE_ONLY, (True, False): op.RC_READ_RESPONSE_FIRST,
                      (False, True): op.RC_READ_RESPONSE_LAST, (False, False): op.RC_READ_RESPONSE_MIDDLE}[first, last]
            qp.endpoint.send(qp, opcode=opcode, psn=(packet.psn + n) & op.PSN_MASK, syndrome=op.ACK_UNLIMITED,
                             msn=self.msn, payload=data[n*pmtu:(n + 1)*pmtu])

    def _atomic(self, packet, kind):
        old = int.from_bytes(self.region.read(packet.va, 8), "little")
        if kind == "FETCH_ADD":
            new = (old + packet.swap_add) & (1 << 64) - 1
        else:
            new = packet.swap_add if old == packet.compare else old
        self.region.write(packet.va, new.to_bytes(8, "little"))
        self.resources.append(Resource("ATOMIC", packet.psn, packet.psn, packet.va, 8, packet.rkey, old))
        self.msn  = (self.msn + 1) & op.PSN_MASK
        self.epsn = (self.epsn + 1) & op.PSN_MASK
        self._atomic_reply(packet.psn, old)

    def _atomic_reply(self, psn, original):
        self.qp.endpoint.send(self.qp, opcode=op.RC_ATOMIC_ACKNOWLEDGE, psn=psn, syndrome=op.ACK_UNLIMITED,
                              msn=self.msn, original=original)

    # Answers --------------------------------------------------------------------------------------

    def _acknowledge(self, psn, syndrome):
        self.qp.endpoint.send(self.qp, opcode=op.RC_ACKNOWLEDGE, psn=psn, syndrome=syndrome, msn=self.msn)

    def _refuse(self, packet, name):
        """Do what the row says: answer, own completion, QP state."""
        qp, row = self.qp, ERRORS[name]
        qp.endpoint.count(name)
        if row.wire == "RNR":
            self.nak_sent = not self.profile.rnr_sequence_nak
            return self._acknowledge(packet.psn, op.SYNDROME_RNR | qp.min_rnr_timer)
        syndrome, status = row.syndrome, row.local_status
        if name == "LENGTH_RECV" and self.profile.short_receive_syndrome is not None:
            syndrome, status = self.profile.short_receive_syndrome, self.profile.short_receive_status
        if name == "RECV_PROTECTION" and self.profile.fault_status is not None:
            status = self.profile.fault_status
        if row.wire == "NAK":
            self._acknowledge(packet.psn, syndrome)
        receive, self.receive = self.receive, None
        if receive is not None:
            qp.complete(Completion(receive.wr_id, status, WC_RECV, qp.qpn, row=name))
        qp.endpoint.fail(qp, name)

    def _duplicate(self, packet, row):
        """A PSN that was executed: never refused, never executed again."""
        endpoint = self.qp.endpoint
        if row.kind in ("SEND", "WRITE"):
            endpoint.count("PSN_DUPLICATE")
            if packet.ackreq or self.profile.duplicate_ack_all:
                self._acknowledge((self.epsn - 1) & op.PSN_MASK, op.ACK_UNLIMITED)
            return
        for resource in self.resources:
            if op.psn_diff(packet.psn, resource.first_psn) < 0 or op.psn_diff(packet.psn, resource.last_psn) > 0:
                continue
            if row.kind != "READ_REQUEST":
                if resource.kind == "ATOMIC" and packet.va == resource.va and packet.rkey == resource.rkey:
                    endpoint.count("PSN_DUPLICATE")
                    return self._atomic_reply(packet.psn, resource.original)
                continue
            ends = packet.va + packet.dma_length
            if resource.kind == "READ" and packet.rkey == resource.rkey and packet.va >= resource.va \
               and ends <= resource.va + resource.length:
                refused, region = endpoint.memory.check(packet.rkey, packet.va, packet.dma_length,
                                                        ACCESS_REMOTE_READ, self.qp.pd) \
                    if packet.dma_length else (None, None)
                if not refused:
                    endpoint.count("PSN_DUPLICATE")
                    return self._read_replies(packet, region, packet.psn == resource.first_psn)
        endpoint.count("DUPLICATE_DROPPED")
