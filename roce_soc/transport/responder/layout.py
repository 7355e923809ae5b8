# SPDX-License-Identifier: BSD-2-Clause
"""Layouts of the responder's stages, and its tables in hardware: opcode classes, error rows.

Ref: InfiniBand Architecture vol. 1 ch. 9.2 (opcodes), 9.9 (error classes).
"""
from migen import *

from litex.soc.interconnect.stream import EndpointDescription

from roce_soc import abi
from roce_soc.common import QPI_WIDTH, TARGET_WIDTH, rx_packet_description
from roce_soc.errors import BY_INDEX, ERRORS, ROW_WIDTH
from roce_soc.opcodes import OPCODES

READ_INDEX_WIDTH = 5     # READ counters: modulo 32, at most 16 apart.

# What passes the check stage: packets and pseudo-packets.
PSEUDO_NONE, PSEUDO_CTL, PSEUDO_KILL, PSEUDO_SILENT = range(4)

# What the responder owes the peer for a packet.
ACTION_NONE, ACTION_ACK, ACTION_NAK, ACTION_READ, ACTION_READ_AGAIN = range(5)

# Kinds of reply records.
REPLY_ACK, REPLY_NAK, REPLY_READ, REPLY_READ_AGAIN, REPLY_CTL = range(5)

_PACKET_FIELDS = ("qpi", "qpn", "opcode", "psn", "se", "ackreq", "pad", "length", "has_slot", "slot", "offset",
                  "va", "rkey", "dma_length", "imm")

def packet_layout():
    """Fields of a received packet that the responder keeps, and where it comes from.

    `code`: CTL_* of a ctl pseudo-packet, error row of a kill. `parked`: comes from parking place `park`. `drop`: no
    place is left behind its QP's parked packets; `full`: no place is left for it, should it have to wait.
    """
    fields = {f[0]: f for f in rx_packet_description().payload_layout}
    return [fields[name][:2] for name in _PACKET_FIELDS] + [
        ("pseudo", 2), ("code", ROW_WIDTH), ("parked", 1), ("park", 8), ("drop", 1), ("full", 1)]

def verdict_layout():
    """A checked packet on its way through key check, placement and answer, in arrival order.

    va, rkey: of the packet's own key check; of a READ what it asks for.
    """
    return [
        ("qpi", QPI_WIDTH), ("qpn", 24), ("opcode", 8), ("psn", 24),
        ("pseudo", 2), ("code", ROW_WIDTH), ("row", ROW_WIDTH),
        # A good request in RTR: the peer is there.
        ("in_rtr", 1),
        # Answer. `counted`: msn includes this packet's own message.
        ("action", 3), ("ack_psn", 24), ("msn", 24), ("counted", 1), ("timer", 5),
        # Payload; `lands`: to be written if the key check does not refuse it.
        ("has_slot", 1), ("slot", 10), ("offset", 6), ("length", 13), ("lands", 1),
        # Key check: `check` says that one was asked for; `recv` that it is for a receive's own buffer.
        ("check", 1), ("recv", 1),
        # Receive work request: `holds` one, which this packet took (`opens`) or completes (`closes`).
        ("holds", 1), ("opens", 1), ("closes", 1), ("wr_id", 64), ("wqe_slot", 16),
        ("byte_len", 32), ("imm", 32), ("with_imm", 1), ("write", 1), ("se", 1),
        ("recv_cq", QPI_WIDTH), ("rq_index", QPI_WIDTH),
        # READ; target and addr are known with the key.
        ("last_psn", 24), ("va", 64), ("rkey", 32), ("dma_length", 32), ("index", READ_INDEX_WIDTH),
        ("pd", 16), ("pmtu", 3), ("target", TARGET_WIDTH), ("addr", 64)]

def kill_description():
    """A QP to be killed: NAK with the row's syndrome at `psn`, unless it has failed before."""
    return EndpointDescription([("qpi", QPI_WIDTH), ("psn", 24), ("row", ROW_WIDTH)])

def reply_description():
    """What the responder owes a peer, in the order in which its requests were executed.

    ACK and NAK: psn, syndrome, msn. READ: replies psn ... last_psn from va, rkey, length, saved as entry
    `index` of the QP's ring; its bytes begin at target, addr now. READ_AGAIN: a duplicate, to be looked up. CTL: code
    is CTL_*.
    """
    return EndpointDescription([
        ("kind", 3), ("qpi", QPI_WIDTH), ("qpn", 24), ("code", ROW_WIDTH), ("psn", 24), ("last_psn", 24), ("msn", 24), ("syndrome", 8),
        ("va", 64), ("rkey", 32), ("length", 32), ("index", READ_INDEX_WIDTH), ("pd", 16), ("pmtu", 3),
        ("target", TARGET_WIDTH), ("addr", 64)])

# Opcodes ------------------------------------------------------------------------------------------

OPCODE_FLAGS = ("send", "write", "read", "starts", "ends", "imm", "reth", "refused", "only")

def _flags(o):
    return {
        "send":    o.kind == "SEND",
        "write":   o.kind == "WRITE",
        "read":    o.kind == "READ_REQUEST",
        "starts":  o.starts,
        "ends":    o.ends,
        "imm":     o.has_imm,
        "reth":    "RETH" in o.headers,
        # Operations that this build does not execute.
        "refused": o.has_inv or o.kind not in ("SEND", "WRITE", "READ_REQUEST"),
        "only":    o.starts and o.ends,
    }

def opcode_flags(opcode):
    """(Record of OPCODE_FLAGS, statements): the class of an RC opcode; unknown ones are refused."""
    record = Record([(name, 1) for name in OPCODE_FLAGS])
    cases  = {"default": [record.refused.eq(1), record.starts.eq(1), record.ends.eq(1), record.only.eq(1)]}
    for o in OPCODES.values():
        if o.transport == "RC" and o.is_request:
            cases[o.value & 31] = [getattr(record, name).eq(int(on)) for name, on in _flags(o).items()]
    return record, [Case(opcode[:5], cases)]

# Error rows ---------------------------------------------------------------------------------------

def row(name):
    """Number of an error row."""
    return ERRORS[name].index

def is_fatal(index):
    """Expression: the row, one of the responder's, puts the QP into ERR."""
    rows = [r.index for r in BY_INDEX.values() if r.qp_effect == "ERR" and r.stage == "RESPONDER"]
    return sum_or(index == n for n in rows)

def sum_or(terms):
    """Balanced OR of expressions."""
    terms = list(terms)
    while len(terms) > 1:
        terms = [terms[n] | terms[n + 1] if n + 1 < len(terms) else terms[n] for n in range(0, len(terms), 2)]
    return terms[0]

def error_answer(index):
    """(syndrome, status, event, statements): what row `index` means for the peer, the receive and the driver."""
    syndrome, status, event = Signal(8), Signal(8), Signal(8)
    cases = {"default": [event.eq(abi.EVENT_QP_FATAL)]}
    for r in BY_INDEX.values():
        if r.stage == "RESPONDER":
            cases[r.index] = [
                syndrome.eq(0 if r.syndrome is None else r.syndrome),
                status.eq(0 if r.local_status is None else r.local_status),
                event.eq(abi.EVENT_QP_FATAL if r.event is None else r.event)]
    return syndrome, status, event, [Case(index, cases)]
