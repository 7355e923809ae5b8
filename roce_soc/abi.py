# SPDX-License-Identifier: BSD-2-Clause
"""The ABI between hardware and software as data: rings, commands, doorbells, events.

One description feeds the gateware (``pack``/``field``), the C header (:func:`c_header`) and the
Python control library. All structures are little endian; numbers that are big endian on the wire
(immediate data, keys, addresses) are plain numbers here. No gateware import.
"""
from collections import namedtuple

Field = namedtuple("Field", "name byte bit width doc")

ABI_VERSION = 1


def _layout(*rows):
    return tuple(Field(*row) for row in rows)


# Rings ------------------------------------------------------------------------------------------

SEND_WQE_BYTES = 64
RECV_WQE_BYTES = 64
CQE_BYTES      = 32
EQE_BYTES      = 16

SEND_WQE = _layout(
    ("opcode",       0, 0,  8, "work request opcode, IBV_WR_* number"),
    ("flags",        1, 0,  8, "IBV_SEND_* bits: fence 1, signalled 2, solicited 4, inline 8"),
    ("num_sge",      2, 0,  8, "0 (length 0 or inline) or 1"),
    ("length",       4, 0, 32, "message length in bytes, <= 2^31"),
    ("wr_id",        8, 0, 64, "returned in the completion"),
    ("local_va",    16, 0, 64, "first byte of the local buffer"),
    ("lkey",        24, 0, 32, "local key of the buffer"),
    ("imm",         28, 0, 32, "immediate data (number; big endian on the wire) or key to invalidate"),
    ("remote_va",   32, 0, 64, "RDMA and atomic: remote address"),
    ("rkey",        40, 0, 32, "RDMA and atomic: remote key"),
    ("ud_qpn",      44, 0, 24, "UD: destination QPN"),
    ("swap_add",    48, 0, 64, "atomic: swap or add operand; UD: Q_Key (low), address handle (high)"),
    ("compare",     56, 0, 64, "atomic: compare operand"),
)

RECV_WQE = _layout(
    ("wr_id",        0, 0, 64, "returned in the completion"),
    ("num_sge",      8, 0,  8, "0 or 1 (up to 3 are laid out)"),
    ("va",          16, 0, 64, "first SGE: address"),
    ("length",      24, 0, 32, "first SGE: bytes"),
    ("lkey",        28, 0, 32, "first SGE: local key"),
)

CQE = _layout(
    ("wr_id",        0, 0, 64, "of the work request"),
    ("byte_len",     8, 0, 32, "receive and READ: bytes"),
    ("imm",         12, 0, 32, "immediate data or invalidated key (number)"),
    ("qpn",         16, 0, 24, "local QPN"),
    ("status",      19, 0,  8, "IBV_WC_* status"),
    ("src_qp",      20, 0, 24, "UD: source QPN"),
    ("opcode",      23, 0,  8, "IBV_WC_* opcode"),
    ("slot",        24, 0, 16, "ring slot of the work request: returns the slots up to it"),
    ("flags",       26, 0,  8, "IBV_WC_* flags: GRH 1, WITH_IMM 2, WITH_INV 8"),
    ("vendor_err",  27, 0,  8, "row of errors.py that caused the status, 0 = none"),
    ("phase",       31, 0,  1, "1 in the first pass over the ring, then toggles each pass"),
)

EQE = _layout(
    ("type",         0, 0,  8, "EVENT_* below"),
    ("queue",        2, 0, 16, "QP index or CQ number"),
    ("info",         4, 0, 32, "error row or port state"),
    ("time",         8, 0, 32, "time base, ticks"),
    ("phase",       15, 0,  1, "as in a CQE"),
)

# Verbs' asynchronous event numbers plus the completion event, which verbs delivers elsewhere.
EVENT_CQ_ERR, EVENT_QP_FATAL, EVENT_QP_REQ_ERR, EVENT_QP_ACCESS_ERR = 0, 1, 2, 3
EVENT_COMM_EST, EVENT_SQ_DRAINED, EVENT_PORT_ACTIVE, EVENT_PORT_ERR = 4, 5, 9, 10
EVENT_COMPLETION = 0x40

# Doorbells --------------------------------------------------------------------------------------
# One aligned 32-bit write {queue[31:16], index[15:0]} into a window of 4 KiB owner pages.

DOORBELL_PAGE_BYTES = 4096
DOORBELL_SQ, DOORBELL_RQ, DOORBELL_CQ, DOORBELL_CQ_ARM, DOORBELL_EQ = 0, 4, 8, 12, 16
# Bit 15 of the index of DOORBELL_CQ_ARM asks for solicited completions only.

# Push: a send work request of 64 bytes at DOORBELL_PUSH of the page, inline data in the 64 bytes behind it, written as
# aligned 32-bit words in any order; then DOORBELL_SQ_PUSH, a doorbell as DOORBELL_SQ. The ring holds the same.
DOORBELL_PUSH_BYTES = 128
DOORBELL_PUSH, DOORBELL_SQ_PUSH = 0x80, 0x100

# Commands ---------------------------------------------------------------------------------------
# A mailbox is 32 argument words, written and read by index + data registers, and a go register.

COMMAND_WORDS = 32

CMD_NOP, CMD_QUERY_DEVICE                   = 0x00, 0x01
CMD_MODIFY_QP, CMD_QUERY_QP                 = 0x10, 0x11
CMD_WRITE_MR, CMD_INVALIDATE_MR             = 0x20, 0x21
CMD_WRITE_CQ, CMD_WRITE_RQ, CMD_WRITE_EQ    = 0x30, 0x31, 0x32

# Features of a device (CMD_QUERY_DEVICE): only what is built in.
FEATURE_RC, FEATURE_UC, FEATURE_UD, FEATURE_ATOMIC, FEATURE_SRQ, FEATURE_INVALIDATE, FEATURE_PUSH = (
    1 << i for i in range(7))

CODE_OK, CODE_BAD_OPCODE, CODE_BAD_INDEX, CODE_BAD_STATE, CODE_BAD_VALUE, CODE_TIMEOUT = range(6)

QP_RESET, QP_INIT, QP_RTR, QP_RTS, QP_SQD, QP_SQE, QP_ERR = range(7)
QP_TYPE_RC, QP_TYPE_UC, QP_TYPE_UD = range(3)

# A command that writes a row writes all of it; software keeps the shadow. "word" counts 32-bit
# argument words; 64-bit and wider values take the low word first.

Arg = namedtuple("Arg", "name word bit width doc")


def _args(*rows):
    return tuple(Arg(*row) for row in rows)


QP_ARGS = _args(
    ("qpi",                 0,  0,  12, "QP index: QPN modulo the number of QPs"),
    ("qpn",                 1,  0,  24, "QPN = generation * number of QPs + index; never 0, 1, 0xFFFFFF"),
    ("qp_type",             1, 24,   2, "QP_TYPE_*"),
    ("state",               2,  0,   3, "state to go to"),
    ("pmtu",                2,  4,   3, "path MTU code 1..5 = 256..4096 B"),
    ("access",              2,  8,   8, "IBV_ACCESS_* bits the QP grants"),
    ("sq_sig_all",          2, 16,   1, "every send work request is signalled"),
    ("ipv6",                2, 17,   1, "0: IPv4 (low 32 bits of the addresses), 1: IPv6"),
    ("vlan_en",             2, 18,   1, "send with an 802.1Q tag, take frames with its VLAN ID alone; 0: untagged or ID 0"),
    ("sqd_notify",          2, 19,   1, "with state SQD: event SQ_DRAINED once all that was begun is done"),
    ("draining",            2, 20,   1, "CMD_QUERY_QP only: in SQD, and something that was begun is not done"),
    ("pd",                  3,  0,  16, "protection domain"),
    ("page",                3, 16,   8, "doorbell page of the send queue"),
    ("send_cq",             4,  0,  12, "CQ of the send queue"),
    ("recv_cq",             4, 16,  12, "CQ of the receive queue"),
    ("rq_index",            5,  0,  12, "receive queue object"),
    ("sq_log2",             5, 16,   4, "log2 of the send ring's slots, 1..15"),
    ("sq_target",           5, 20,   2, "memory target of the send ring"),
    ("sq_addr",             6,  0,  64, "physical address of the send ring, multiple of 64"),
    ("dest_qpn",            8,  0,  24, "peer's QPN"),
    ("sq_psn",              9,  0,  24, "first PSN sent; taken at RTR -> RTS"),
    ("rq_psn",             10,  0,  24, "first PSN expected; taken at INIT -> RTR"),
    ("timeout",            11,  0,   5, "ACK time-out 4.096 us * 2^n, 0 = none"),
    ("retry_cnt",          11,  8,   3, "retries after time-out or sequence NAK"),
    ("rnr_retry",          11, 12,   3, "RNR retries, 7 = for ever"),
    ("min_rnr_timer",      11, 16,   5, "RNR timer code that the responder sends"),
    ("max_rd_atomic",      11, 24,   5, "READs and atomics outstanding as requester, 0..16"),
    ("max_dest_rd_atomic", 12,  0,   5, "READs and atomics accepted as responder, 0..16"),
    ("hop_limit",          12,  8,   8, "TTL / hop limit"),
    ("tclass",             12, 16,   8, "TOS / traffic class byte"),
    ("qkey",               13,  0,  32, "UD: Q_Key"),
    ("pkey",               14,  0,  16, "P_Key"),
    ("udp_sport",          14, 16,  16, "UDP source port"),
    ("vlan_tci",           15,  0,  16, "802.1Q tag control: PCP, DEI, VID"),
    ("flow_label",         16,  0,  20, "IPv6 flow label"),
    ("dst_mac",            17,  0,  48, "next hop's MAC (number, first byte most significant)"),
    ("dst_ip",             19,  0, 128, "peer's address (number)"),
    ("src_ip",             23,  0, 128, "own address (number)"),
    ("src_mac",            27,  0,  48, "own MAC"),
)

MR_ARGS = _args(
    ("index",    0,  0, 24, "MR index = key[31:8]"),
    ("variant",  1,  0,  8, "key[7:0]"),
    ("access",   1,  8,  8, "IBV_ACCESS_* bits"),
    ("target",   1, 16,  2, "memory target"),
    ("pd",       2,  0, 16, "protection domain"),
    ("va",       3,  0, 64, "first address, as peers and work requests name it"),
    ("length",   5,  0, 64, "bytes"),
    ("addr",     7,  0, 64, "physical address of va"),
)

CQ_ARGS = _args(
    ("index",    0,  0, 12, "CQ number"),
    ("valid",    1,  0,  1, "0 removes the CQ"),
    ("log2",     1,  4,  4, "log2 of its entries, 1..15"),
    ("target",   1,  8,  2, "memory target"),
    ("page",     1, 16,  8, "doorbell page"),
    ("addr",     2,  0, 64, "physical address, multiple of 64"),
)
RQ_ARGS = CQ_ARGS
EQ_ARGS = CQ_ARGS


def field(layout, name):
    """The entry called `name`; KeyError names the layout's fields."""
    for entry in layout:
        if entry.name == name:
            return entry
    raise KeyError(f"{name!r} is not one of {[e.name for e in layout]}")


def pack(layout, size, **values):
    """Structure of `size` bytes from field values; ValueError names a value too wide for its field."""
    number = 0
    for name, value in values.items():
        entry = field(layout, name)
        if not 0 <= value < 1 << entry.width:
            raise ValueError(f"{name} must fit {entry.width} bits, not {value:#x}")
        number |= value << (8*entry.byte + entry.bit)
    return number.to_bytes(size, "little")


def unpack(layout, data):
    """Field values of a structure as a dict."""
    number = int.from_bytes(data, "little")
    return {e.name: (number >> (8*e.byte + e.bit)) & ((1 << e.width) - 1) for e in layout}


def pack_args(layout, **values):
    """Argument words of a command, as many as its layout has; ValueError names a value too wide for its field."""
    number = 0
    for name, value in values.items():
        entry = field(layout, name)
        if not 0 <= value < 1 << entry.width:
            raise ValueError(f"{name} must fit {entry.width} bits, not {value:#x}")
        number |= value << (32*entry.word + entry.bit)
    count = max(-(-(32*e.word + e.bit + e.width)//32) for e in layout)
    return [(number >> (32*i)) & 0xffffffff for i in range(count)]


def unpack_args(layout, words):
    """Field values of argument words as a dict."""
    number = sum(word << (32*i) for i, word in enumerate(words))
    return {e.name: (number >> (32*e.word + e.bit)) & ((1 << e.width) - 1) for e in layout}


def c_header():
    """Text of roce_abi.h: structures as offset, shift and width macros, constants as numbers."""
    lines = ["/* SPDX-License-Identifier: BSD-2-Clause */",
             "/* Made from roce_soc/abi.py. */", "#ifndef ROCE_ABI_H", "#define ROCE_ABI_H", ""]
    prefixes = ("CMD_", "CODE_", "QP_", "EVENT_", "DOORBELL_", "FEATURE_")
    for name, value in globals().items():
        if isinstance(value, int) and (name.startswith(prefixes) or name.endswith(("_BYTES", "_WORDS", "_VERSION"))):
            lines.append(f"#define ROCE_{name} {value:#x}")
    for label, layout in (("SEND_WQE", SEND_WQE), ("RECV_WQE", RECV_WQE), ("CQE", CQE), ("EQE", EQE)):
        lines.append("")
        for e in layout:
            lines += [f"#define ROCE_{label}_{e.name.upper()}_BYTE {e.byte}  /* {e.doc} */",
                      f"#define ROCE_{label}_{e.name.upper()}_WIDTH {e.width}"]
    for label, layout in (("QP", QP_ARGS), ("MR", MR_ARGS), ("CQ", CQ_ARGS)):
        lines.append("")
        for e in layout:
            name = f"ROCE_ARG_{label}_{e.name.upper()}"
            lines += [f"#define {name}_WORD {e.word}  /* {e.doc} */",
                      f"#define {name}_SHIFT {e.bit}", f"#define {name}_WIDTH {e.width}"]
    return "\n".join(lines + ["", "#endif", ""])
