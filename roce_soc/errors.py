# SPDX-License-Identifier: BSD-2-Clause
"""Every way a packet, work request or queue can fail, as one table.

Ref: InfiniBand Architecture vol. 1 ch. 9.6 to 9.9 (validation, responder and requester errors),
10.2, 10.10 (queues, completion status); Annex A17 (RoCEv2). IPv4: RFC 791; UDP: RFC 768.

A check names its row; the row says what goes on the wire, what each side's completion carries, what
becomes of the QP and which counter moves. Clauses are chapters of the specification. `index` is the number in refusal
records and in a CQE's vendor_err; 0 means no error. Indices are ABI: rows are added at free numbers, never renumbered.
"""
from dataclasses import dataclass

from roce_soc.abi import EVENT_CQ_ERR, EVENT_NAMES, EVENT_QP_ACCESS_ERR, EVENT_QP_FATAL, EVENT_QP_REQ_ERR
from roce_soc.opcodes import (NAK_INVALID_REQUEST, NAK_PSN_SEQUENCE, NAK_REMOTE_ACCESS,
                              NAK_REMOTE_OPERATIONAL, SYNDROME_RNR)
from roce_soc.verbs import (WC_BAD_RESP_ERR, WC_LOC_LEN_ERR, WC_LOC_PROT_ERR, WC_LOC_QP_OP_ERR,
                            WC_REM_ACCESS_ERR, WC_REM_INV_REQ_ERR, WC_REM_OP_ERR, WC_RETRY_EXC_ERR,
                            WC_RNR_RETRY_EXC_ERR, WC_STATUS_NAMES, WC_WR_FLUSH_ERR)

ROW_WIDTH  = 8    # bits of a row's number.
ERROR_ROWS = 1 << ROW_WIDTH

# Table --------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class ErrorRow:
    """One way to fail.

    `stage` checks it: RECEIVE, RESPONDER, REQUESTER, COMPLETER, QUEUE or CONTEXT. `wire` is the answer: DROP
    (packet discarded, nothing sent), NAK or RNR (with `syndrome`; RNR takes the QP's timer code in
    its low five bits), NONE (no refusal on the wire: see `condition`). `local_status` is the status
    of the own work request that fails (RESPONDER: the receive in use, if one is), `peer_status` that
    of the requester at the other end. `qp_effect` ERR moves the QP to ERR. All RC; UC and UD drop
    without answer instead (rows UC_DROPPED, UD_DROPPED). `event` is the asynchronous event of the QP or CQ that
    fails with it (abi.EVENT_*, None: nothing fails); `access`: a key, right or bound was broken, what a monitor of
    intrusions counts.
    """
    index        : int
    name         : str
    stage        : str
    condition    : str
    clause       : str
    wire         : str
    syndrome     : int | None
    local_status : int | None
    peer_status  : int | None
    qp_effect    : str
    counter      : str
    event        : int | None
    access       : bool

STAGES   = ("RECEIVE", "RESPONDER", "REQUESTER", "COMPLETER", "QUEUE", "CONTEXT")
_PREFIX  = {"RECEIVE": "rx", "RESPONDER": "resp", "REQUESTER": "req", "COMPLETER": "comp", "QUEUE": "queue", "CONTEXT": "context"}

def _row(index, name, stage, condition, clause, wire, syndrome=None, local=None, peer=None, effect="NONE", event=None, access=False):
    return ErrorRow(index, name, stage, condition, clause, wire, syndrome, local, peer, effect,
                    f"{_PREFIX[stage]}_{name.lower()}", event, access)

def _receive(index, name, condition, clause, access=False):
    return _row(index, name, "RECEIVE", condition, clause, "DROP", access=access)

def _invalid(index, name, condition, clause, local=WC_REM_INV_REQ_ERR, access=False):
    return _row(index, name, "RESPONDER", condition, clause, "NAK", NAK_INVALID_REQUEST,
                local, WC_REM_INV_REQ_ERR, "ERR", EVENT_QP_REQ_ERR, access)

def _access(index, name, condition, clause):
    return _row(index, name, "RESPONDER", condition, clause, "NAK", NAK_REMOTE_ACCESS,
                WC_REM_ACCESS_ERR, WC_REM_ACCESS_ERR, "ERR", EVENT_QP_ACCESS_ERR, True)

def _operational(index, name, condition, clause, local, access=False):
    return _row(index, name, "RESPONDER", condition, clause, "NAK", NAK_REMOTE_OPERATIONAL,
                local, WC_REM_OP_ERR, "ERR", EVENT_QP_FATAL, access)

def _fatal(index, name, stage, condition, clause, local, event=EVENT_QP_FATAL, access=False):
    return _row(index, name, stage, condition, clause, "NONE", local=local, effect="ERR", event=event, access=access)

_ROWS = (
    # Receive: L2 to L4, ICRC, BTH, QP lookup. Dropped, counted, nothing else touched.
    _receive( 1, "MAC_ERROR",       "MAC marks the frame bad at its last beat (FCS, alignment, abort)", "802.3 4.2.4.1"),
    _receive( 2, "RUNT",            "frame ends before the end that the length in its IP header tells", "9.6.1.1"),
    _receive( 3, "DST_MAC",         "RoCE frame for another station's MAC address", "802.3 4.2.4.1.1"),
    _receive( 4, "IP_OPTIONS",      "UDP with an IPv4 header length that is not 5 words, or behind one or two IPv6 "
             "extension headers", "A17"),
    _receive( 5, "IP_FRAGMENT",     "first IPv4 fragment (later ones have no port: slow path)", "A17"),
    _receive( 6, "IP_CHECKSUM",     "IPv4 header checksum wrong", "RFC 791 3.1"),
    _receive( 7, "UDP_LENGTH",      "UDP length below headers + pad + ICRC, or above the IP payload", "A17"),
    _receive( 8, "ICRC",            "invariant CRC wrong", "7.8.1, A17"),
    _receive( 9, "TVER",            "BTH transport header version not 0", "9.6.1.1"),
    _receive(10, "OPCODE_UNKNOWN",  "BTH opcode reserved, or of an extension that is not supported", "9.2.1, 9.6.1.1"),
    _receive(11, "QPN_UNKNOWN",     "destination QPN 0, beyond the table or never created", "9.6.1.1"),
    _receive(12, "QPN_GENERATION",  "QPN of an earlier generation: the QP was destroyed and its row used again", "9.6.1.1"),
    _receive(13, "QP_STATE",        "QP in RESET, INIT or ERR; for responses: not RTS or SQD", "10.3.1"),
    _receive(14, "TRANSPORT_CLASS", "opcode class (RC, UC, UD) not that of the QP", "9.6.1.1"),
    _receive(15, "PKEY",            "P_Key: low 15 bits differ, or neither side is a full member", "9.6.1.1, 10.9", True),
    _receive(16, "ADDRESS",         "RC, UC: source or destination IP address not that of the QP", "9.6.1.2, A17"),
    _receive(17, "GID",             "destination IP address not in the GID table (UD, multicast)", "9.6.1.2"),
    _receive(18, "QKEY",            "UD: Q_Key of the DETH not that of the QP", "9.6.1.4", True),
    _receive(19, "BUFFER_FULL",     "no packet-buffer slot free, or too many packets wait for receive work requests: "
             "the whole frame is dropped", "802.1Qbb 36"),
    _receive(20, "CNP_IGNORED",     "CNP while congestion control is off or for a QP without it", "A17"),
    _receive(68, "VLAN",            "VLAN ID not that of the QP; no tag and ID 0 (priority tag) are the same", "802.1Q 9.6"),
    _receive(69, "MARTIAN",         "source IP address is the QP's own and the frame comes from the wire (admitted by a "
             "register)", "RFC 1812 5.3.7"),
    # Responder: sequence.
    _row(21, "PSN_SEQUENCE", "RESPONDER", "PSN beyond the expected one: first of a gap, NAK carries the expected PSN",
         "9.7.4.1.1", "NAK", NAK_PSN_SEQUENCE),
    _row(22, "PSN_SEQUENCE_AGAIN", "RESPONDER", "PSN beyond the expected one while its NAK (sequence or RNR) stands",
         "9.7.4.1.1", "DROP"),
    _row(23, "PSN_DUPLICATE", "RESPONDER", "PSN already executed: not executed again; SEND, WRITE: ACK again; READ: "
         "memory read again; atomic: saved result", "9.7.4.1.1", "NONE"),
    _row(24, "DUPLICATE_DROPPED", "RESPONDER", "duplicate READ or atomic outside the saved range, with another R_Key, "
         "or whose resource was used again, or without a place to wait for its look-up", "9.7.5.1", "DROP"),
    _invalid(25, "OPCODE_SEQUENCE", "MIDDLE or LAST outside a message of its kind; FIRST or ONLY inside one", "9.7.4.1.2"),
    _invalid(26, "QP_ACCESS",       "operation not granted by the QP's access flags or not in this build", "9.7.4.1.3",
             access=True),
    _row(27, "RNR", "RESPONDER", "no receive work request for a SEND or for immediate data", "9.7.5.2.8", "RNR", SYNDROME_RNR),
    _invalid(28, "READ_RESOURCES",  "READ or atomic beyond max_dest_rd_atomic, or that is 0", "9.7.4.1.3"),
    # Responder: length.
    _invalid(29, "LENGTH_PMTU",     "FIRST or MIDDLE whose payload is not the path MTU (pad counts as too short)", "9.7.4.1.5"),
    _invalid(30, "LENGTH_LAST",     "LAST without payload; LAST or ONLY longer than the path MTU; pad wrong; payload "
             "where the opcode has none", "9.7.4.1.5"),
    _invalid(31, "LENGTH_RETH",     "RETH DMA length above 2^31", "9.7.4.1.6"),
    _invalid(32, "LENGTH_RESIDUE",  "WRITE payload differs from the RETH DMA length (too much, or too little at its end)",
             "9.7.4.1.6"),
    _invalid(33, "LENGTH_RECV",     "SEND longer than the receive work request", "9.7.4.1.6, 9.9.3", WC_LOC_LEN_ERR),
    _invalid(34, "ATOMIC_ALIGN",    "atomic whose address is not a multiple of 8", "9.4.5"),
    # Responder: memory protection. Zero-length READ and WRITE are not checked (C9-88).
    _access(35, "MR_KEY",           "key: no such region, or its variant differs", "9.7.4.1.4, 10.6"),
    _access(36, "MR_PD",            "region's protection domain not that of the QP", "9.7.4.1.4, 10.6"),
    _access(37, "MR_BOUNDS",        "address range outside the region or beyond 2^64", "9.7.4.1.4"),
    _access(38, "MR_ACCESS",        "region does not grant the access", "9.7.4.1.4"),
    # Responder: own side.
    _operational(39, "RECV_PROTECTION", "local key, bounds or right of a receive's buffer", "9.9.3", WC_LOC_PROT_ERR, True),
    _operational(40, "RECV_WQE",        "receive work request malformed or not readable", "9.9.3", WC_LOC_QP_OP_ERR),
    _operational(41, "MEMORY_FAULT",    "memory target refused or timed out while data was placed or READ data fetched",
                 "9.9.3", WC_LOC_QP_OP_ERR),
    _fatal(42, "INVALIDATE_KEY", "RESPONDER", "SEND with invalidate: key cannot be invalidated; no NAK", "9.9.3 class J",
           WC_REM_INV_REQ_ERR, EVENT_QP_REQ_ERR, True),
    _row(43, "UC_DROPPED", "RESPONDER", "UC message given up: gap, opcode, length, key or no receive; the receive is "
         "used again by the next FIRST or ONLY", "9.8.2", "DROP"),
    _row(44, "UD_DROPPED", "RESPONDER", "UD packet without a receive work request or longer than it", "9.8.3", "DROP"),
    # Requester.
    _fatal(45, "LOCAL_PROTECTION", "REQUESTER", "local key, protection domain, bounds or right of a send buffer", "9.9.2",
           WC_LOC_PROT_ERR, access=True),
    _fatal(46, "LOCAL_LENGTH",     "REQUESTER", "message longer than 2^31, or UD message longer than the path MTU", "9.9.2",
           WC_LOC_LEN_ERR),
    _fatal(47, "LOCAL_OPERATION",  "REQUESTER", "work request opcode unknown, not for the QP's type, or READ or atomic with "
           "max_rd_atomic 0", "9.9.2", WC_LOC_QP_OP_ERR),
    _fatal(48, "LOCAL_MEMORY",     "REQUESTER", "work request or payload could not be read from its memory target", "9.9.2",
           WC_LOC_QP_OP_ERR),
    # Completer.
    _fatal(49, "RETRY_EXCEEDED",   "COMPLETER", "time-outs and sequence NAKs without progress beyond retry_cnt",
           "9.7.6.1, 9.9.2", WC_RETRY_EXC_ERR),
    _fatal(50, "RNR_EXCEEDED",     "COMPLETER", "RNR NAKs beyond rnr_retry", "9.7.5.2.8, 9.9.2", WC_RNR_RETRY_EXC_ERR),
    _fatal(51, "NAK_INVALID",      "COMPLETER", "peer answered NAK invalid request (0x61)", "9.9.2", WC_REM_INV_REQ_ERR),
    _fatal(52, "NAK_ACCESS",       "COMPLETER", "peer answered NAK remote access error (0x62)", "9.9.2", WC_REM_ACCESS_ERR),
    _fatal(53, "NAK_OPERATIONAL",  "COMPLETER", "peer answered NAK remote operational error (0x63)", "9.9.2", WC_REM_OP_ERR),
    _row(54, "SYNDROME_RESERVED", "COMPLETER", "AETH syndrome or NAK code reserved: response ignored", "9.7.5.2", "DROP"),
    _row(55, "ACK_GHOST", "COMPLETER", "response to a PSN that is already acknowledged", "9.7.6.1", "DROP"),
    _row(56, "ACK_BEYOND_SENT", "COMPLETER", "response to a PSN that was never sent", "9.7.6.1", "DROP"),
    _row(57, "IMPLIED_NAK", "COMPLETER", "READ or atomic response missing (gap, or a later ACK passed it): retried "
         "from there, counts as a retry", "9.7.6.1", "NONE"),
    _fatal(58, "BAD_RESPONSE",     "COMPLETER", "response that does not fit the request (kind, opcode sequence)", "9.9.2",
           WC_BAD_RESP_ERR),
    _fatal(59, "READ_LENGTH",      "COMPLETER", "READ response whose length is not the path MTU or what is left", "9.9.2",
           WC_LOC_LEN_ERR),
    _fatal(60, "RESPONSE_MEMORY",  "COMPLETER", "READ or atomic data could not be placed: local key or memory target",
           "9.9.2", WC_LOC_PROT_ERR, access=True),
    # Queues.
    _row(61, "CQ_OVERFLOW", "QUEUE", "completion for a full CQ: not written, event CQ_ERR", "10.2", "NONE", effect="ERR",
         event=EVENT_CQ_ERR),
    _row(62, "FLUSH", "QUEUE", "work request of a QP in ERR", "10.3.1", "NONE", local=WC_WR_FLUSH_ERR),
    _row(63, "DOORBELL", "QUEUE", "doorbell for a queue that does not exist, from another's page, or beyond its ring",
         "10.2", "NONE"),
    # Connection rows.
    _row(72, "ROW_PARITY", "CONTEXT", "connection row read otherwise than it was written (builds with parity)", "-", "NONE",
         effect="ERR", event=EVENT_QP_FATAL),
)

ERRORS   = {row.name: row for row in _ROWS}
BY_INDEX = {row.index: row for row in _ROWS}
NONE     = 0

def index_of(name: str) -> int:
    """Row number of `name`; ValueError names what is not in the table."""
    if name not in ERRORS:
        raise ValueError(f"error row must be one of ERRORS, not {name!r}")
    return ERRORS[name].index

# Pages --------------------------------------------------------------------------------------------

def _status(number: int | None) -> str:
    return "-" if number is None else f"{WC_STATUS_NAMES[number]} ({number})"

def markdown_table() -> str:
    """The table as markdown, made for the documentation."""
    lines = ["| # | row | stage | condition | wire | own status | peer's status | QP | event | access | counter | clause |",
             "|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for r in _ROWS:
        wire = r.wire if r.syndrome is None else f"{r.wire} 0x{r.syndrome:02x}"
        lines.append(f"| {r.index} | {r.name} | {r.stage} | {r.condition} | {wire} | {_status(r.local_status)} "
                     f"| {_status(r.peer_status)} | {r.qp_effect} | {'-' if r.event is None else EVENT_NAMES[r.event]} "
                     f"| {'yes' if r.access else '-'} | {r.counter} | {r.clause} |")
    return "\n".join(lines) + "\n"
