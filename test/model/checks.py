# SPDX-License-Identifier: BSD-2-Clause
"""Checks of a request in the order in which a responder makes them: opcode sequence, rights, resources,
length, key.

Ref: InfiniBand Architecture vol. 1 ch. 9.7.4.1.2 to 9.7.4.1.6.
"""
from roce_soc.verbs import ACCESS_LOCAL_WRITE, ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE

MAX_DMA_LENGTH = 1 << 31
ACCESS_OF = {"WRITE": ACCESS_REMOTE_WRITE, "READ_REQUEST": ACCESS_REMOTE_READ,
             "CMP_SWAP": ACCESS_REMOTE_ATOMIC, "FETCH_ADD": ACCESS_REMOTE_ATOMIC}


class Refusal(Exception):
    """A check that failed: `row` of errors.py."""
    def __init__(self, row):
        super().__init__(row)
        self.row = row


class Checks:
    """The state that checks look at, and the checks; base of the responders.

    kind: SEND or WRITE while inside a message. receive, placed: receive in use and bytes placed in it.
    va, rkey, residue: the rest of a WRITE. region: the Region that the last check granted.
    """
    def __init__(self, qp):
        self.qp      = qp
        self.kind    = self.receive = self.region = None
        self.placed  = self.va = self.rkey = self.residue = self.total = 0

    def check(self, packet, row):
        """Raise Refusal where a request in sequence must not be executed."""
        qp = self.qp
        if row.kind in ("SEND", "WRITE"):
            if (self.kind != row.kind) if not row.starts else (self.kind is not None):
                raise Refusal("OPCODE_SEQUENCE")
        elif self.kind is not None:
            raise Refusal("OPCODE_SEQUENCE")
        if ACCESS_OF.get(row.kind, 0) & ~qp.access:
            raise Refusal("QP_ACCESS")
        self._check_resources(packet, row)
        self._check_length(packet, row)
        self._check_key(packet, row)

    def _check_resources(self, packet, row):
        qp = self.qp
        if (row.kind == "SEND" and row.starts) or (row.kind == "WRITE" and row.has_imm):
            if not qp.receives:
                raise Refusal("RNR")
        if row.kind in ("READ_REQUEST", "CMP_SWAP", "FETCH_ADD") and qp.max_dest_rd_atomic == 0:
            raise Refusal("READ_RESOURCES")

    def _check_length(self, packet, row):
        length, pmtu = len(packet.payload), self.qp.pmtu
        if row.payload == "PMTU" and length != pmtu:
            raise Refusal("LENGTH_PMTU")
        if (row.payload == "NONE" and length + packet.pad) or length > pmtu \
           or (row.payload == "1..PMTU" and length == 0) or packet.pad != -length & 3:
            raise Refusal("LENGTH_LAST")
        if "RETH" in row.headers and packet.dma_length > MAX_DMA_LENGTH:
            raise Refusal("LENGTH_RETH")
        if row.kind == "WRITE":
            residue = packet.dma_length if row.starts else self.residue
            if length > residue or (row.ends and length != residue):
                raise Refusal("LENGTH_RESIDUE")
        if row.kind == "SEND":
            receive, placed = (self.qp.receives[0], 0) if row.starts else (self.receive, self.placed)
            if placed + length > receive.length:
                if row.starts:
                    self.receive = self.qp.receives.popleft()
                raise Refusal("LENGTH_RECV")
        if row.kind in ("CMP_SWAP", "FETCH_ADD") and packet.va & 7:
            raise Refusal("ATOMIC_ALIGN")

    def _check_key(self, packet, row):
        """Leaves the region for _execute in self.region."""
        qp, memory = self.qp, self.qp.endpoint.memory
        self.region = None
        if row.kind == "WRITE":
            if row.starts:
                self._region(memory, packet.rkey, packet.va, packet.dma_length, ACCESS_REMOTE_WRITE)
            else:
                self._region(memory, self.rkey, self.va, self.residue, ACCESS_REMOTE_WRITE)
        elif row.kind == "READ_REQUEST":
            self._region(memory, packet.rkey, packet.va, packet.dma_length, ACCESS_REMOTE_READ)
        elif row.kind in ("CMP_SWAP", "FETCH_ADD"):
            self._region(memory, packet.rkey, packet.va, 8, ACCESS_REMOTE_ATOMIC)
        elif row.kind == "SEND" and packet.payload:
            receive = qp.receives[0] if row.starts else self.receive
            refused, self.region = memory.check(receive.lkey, receive.va, receive.length, ACCESS_LOCAL_WRITE, qp.pd)
            if refused:
                if row.starts:
                    self.receive = qp.receives.popleft()
                raise Refusal("RECV_PROTECTION")

    def _region(self, memory, key, va, length, access):
        if length:
            refused, self.region = memory.check(key, va, length, access, self.qp.pd)
            if refused:
                raise Refusal(refused)
