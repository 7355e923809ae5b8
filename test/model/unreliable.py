# SPDX-License-Identifier: BSD-2-Clause
"""Responders of UC and UD: they never answer.

Ref: InfiniBand Architecture vol. 1 ch. 9.8.2 (UC), 9.8.3 (UD).
"""
from roce_soc import opcodes as op
from roce_soc.verbs import ACCESS_LOCAL_WRITE, WC_FLAG_GRH, WC_FLAG_WITH_IMM, WC_RECV, WC_SUCCESS
from test.model.checks import Refusal
from test.model.qp import Completion
from test.model.responder import Responder


class UCResponder(Responder):
    """UC: a gap or refusal abandons the message; the next FIRST or ONLY starts anew."""
    def request(self, packet):
        """One request packet."""
        row = op.OPCODES[packet.opcode]
        if self.kind is not None and (packet.psn != self.epsn or row.starts):
            self._abandon()
        elif packet.psn != self.epsn:
            self.qp.endpoint.count("UC_DROPPED")
        if not row.starts and self.kind is None:
            self.epsn = (packet.psn + 1) & op.PSN_MASK   # rest of a message that was given up.
            return
        self.epsn = packet.psn
        try:
            self.check(packet, row)
            self._execute(packet, row)
        except Refusal:
            self._abandon()
            self.epsn = (packet.psn + 1) & op.PSN_MASK

    def _abandon(self):
        """Forget the message; its receive serves the next one."""
        self.qp.endpoint.count("UC_DROPPED")
        if self.receive is not None:
            self.qp.receives.appendleft(self.receive)
        self.receive = self.kind = None


class UDResponder(Responder):
    """UD: one packet a message, behind 40 bytes for the IP header."""
    def request(self, packet):
        """One packet, which the endpoint has found to carry the QP's Q_Key."""
        qp      = self.qp
        length  = op.GRH_BYTES + len(packet.payload)
        if not qp.receives or length > qp.receives[0].length:
            return qp.endpoint.count("UD_DROPPED")
        receive = qp.receives[0]
        refused, region = qp.endpoint.memory.check(receive.lkey, receive.va, receive.length, ACCESS_LOCAL_WRITE, qp.pd)
        if refused:
            return qp.endpoint.count("UD_DROPPED")
        qp.receives.popleft()
        header = packet._ip_header(packet.udp_length)
        grh = bytes(40 - len(header)) + header
        region.write(receive.va, grh + packet.payload)
        flags = WC_FLAG_GRH | (WC_FLAG_WITH_IMM if op.OPCODES[packet.opcode].has_imm else 0)
        qp.complete(Completion(receive.wr_id, WC_SUCCESS, WC_RECV, qp.qpn, byte_len=length, flags=flags,
                               imm=packet.imm if flags & WC_FLAG_WITH_IMM else None, src_qp=packet.src_qp,
                               solicited=bool(packet.se)))
