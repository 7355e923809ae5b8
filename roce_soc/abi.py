# SPDX-License-Identifier: BSD-2-Clause
"""The ABI between hardware and software as data: rings, commands, doorbells, events.

One description feeds the gateware (``pack``/``field``), the C header (:func:`c_header`) and the
Python control library. All structures are little endian; numbers that are big endian on the wire
(immediate data, keys, addresses) are plain numbers here. No gateware import.
"""
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar


class Field(NamedTuple):
    """Bits of a structure in memory: `width` of them from bit `bit` of byte `byte` on."""
    name  : str
    byte  : int
    bit   : int
    width : int
    doc   : str

    @property
    def lsb(self) -> int:
        """Place of the lowest bit in the structure as one number."""
        return 8*self.byte + self.bit


ABI_VERSION = 2


def _layout(*rows: tuple[str, int, int, int, str]) -> tuple[Field, ...]:
    return tuple(Field(*row) for row in rows)


# Rings ------------------------------------------------------------------------------------------

SEND_WQE_BYTES = 64
RECV_WQE_BYTES = 64
CQE_BYTES      = 32
CQE_WIDE_BYTES = 64
EQE_BYTES      = 16

SEND_WQE = _layout(
    ("opcode",       0, 0,  8, "work request opcode, IBV_WR_* number"),
    ("flags",        1, 0,  8, "IBV_SEND_* bits: fence 1, signalled 2, solicited 4, inline 8"),
    ("num_sge",      2, 0,  8, "0 (length 0 or inline) or 1: local_va, lkey; 2 ... MAX_SEND_SGES: all in SEND_SGE_SLOTS continuation slots"),
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
    ("num_sge",      8, 0,  8, "0 or 1; up to 3, in a wide slot up to MAX_RECV_SGES, follow one another"),
    ("va",          16, 0, 64, "first SGE: address"),
    ("length",      24, 0, 32, "first SGE: bytes"),
    ("lkey",        28, 0, 32, "first SGE: local key"),
)

# One buffer of a list: of a receive from its byte 16 on; of a send work request with more than one in the slots that
# follow it, 4 a slot. Lists are refused while capability max_sge is 1.
SGE_BYTES = 16
MAX_SEND_SGES, MAX_RECV_SGES = 8, 4
SEND_SGE_SLOTS = MAX_SEND_SGES*SGE_BYTES//SEND_WQE_BYTES

SGE = _layout(
    ("va",           0, 0, 64, "address"),
    ("length",       8, 0, 32, "bytes"),
    ("lkey",        12, 0, 32, "local key"),
)

CQE = _layout(
    ("wr_id",        0, 0, 64, "of the work request"),
    ("byte_len",     8, 0, 32, "receive and READ: bytes"),
    ("imm",         12, 0, 32, "immediate data or invalidated key (number)"),
    ("qpn",         16, 0, 24, "local QPN"),
    ("status",      19, 0,  8, "IBV_WC_* status"),
    ("src_qp",      20, 0, 24, "UD: source QPN"),
    ("opcode",      23, 0,  8, "IBV_WC_* opcode"),
    ("slot",        24, 0, 16, "ring slot of the work request: returns the slots up to it; of a shared receive queue that one alone"),
    ("flags",       26, 0,  8, "IBV_WC_* flags: GRH 1, WITH_IMM 2, WITH_INV 8"),
    ("vendor_err",  27, 0,  8, "row of errors.py that caused the status, 0 = none"),
    ("phase",       31, 0,  1, "1 in the first pass over the ring, then toggles each pass"),
)

# What follows in a completion of CQE_WIDE_BYTES.
CQE_WIDE = _layout(
    ("time",        32, 0, 64, "when it was written, time base in engine clocks"),
    ("src_mac",     40, 0, 48, "UD: MAC address that the packet came from"),
    ("vlan_tci",    46, 0, 16, "UD: 802.1Q tag control"),
    ("pkey_index",  48, 0, 16, "UD: index of the P_Key"),
    ("priority",    50, 0,  3, "priority that the packet came with"),
    ("vlan",        50, 7,  1, "vlan_tci is there"),
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
EVENT_NAMES = {value: name[len("EVENT_"):] for name, value in list(globals().items()) if name.startswith("EVENT_")}

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
# A mailbox is 64 argument words, written and read by index + data registers, and a go register.

COMMAND_WORDS = 64

CMD_NOP, CMD_QUERY_DEVICE                   = 0x00, 0x01
CMD_MODIFY_QP, CMD_QUERY_QP                 = 0x10, 0x11
CMD_WRITE_MR, CMD_INVALIDATE_MR             = 0x20, 0x21
CMD_WRITE_CQ, CMD_WRITE_RQ, CMD_WRITE_EQ    = 0x30, 0x31, 0x32
CMD_WRITE_AH, CMD_WRITE_GID                 = 0x40, 0x41

# Features of a device (CMD_QUERY_DEVICE): only what is built in.
FEATURE_RC, FEATURE_UC, FEATURE_UD, FEATURE_ATOMIC, FEATURE_SRQ, FEATURE_INVALIDATE, FEATURE_PUSH = (
    1 << i for i in range(7))

CODE_OK, CODE_BAD_OPCODE, CODE_BAD_INDEX, CODE_BAD_STATE, CODE_BAD_VALUE, CODE_TIMEOUT = range(6)

QP_RESET, QP_INIT, QP_RTR, QP_RTS, QP_SQD, QP_SQE, QP_ERR = range(7)
QP_TYPE_RC, QP_TYPE_UC, QP_TYPE_UD = range(3)

# Kinds of a memory target (CMD_QUERY_DEVICE), classes of its latency.
MEMORY_NONE, MEMORY_SRAM, MEMORY_DRAM, MEMORY_HOST, MEMORY_USER = range(5)
LATENCY_CHIP, LATENCY_BOARD, LATENCY_HOST = range(3)

# Where addresses of a region or a ring lead: `addr` on without a gap, or by a list of pages at `addr`.
TRANSLATION_CONTIGUOUS, TRANSLATION_LIST = range(2)
MR_REGION, MR_WINDOW = range(2)

# A command that writes a row writes all of it; software keeps the shadow. "word" counts 32-bit argument words; 64-bit and
# wider values take the low word first. `built`: bits of the value that this build knows; a command with any other bit set,
# of a field or beside the fields, in a word of its layout is refused (CODE_BAD_VALUE).

class Arg(NamedTuple):
    """Bits of a command's argument words: `width` of them from bit `bit` of word `word` on."""
    name  : str
    word  : int
    bit   : int
    width : int
    doc   : str
    built : int

    @property
    def lsb(self) -> int:
        """Place of the lowest bit in the argument words as one number."""
        return 32*self.word + self.bit

UNBUILT = 0
Entry   = TypeVar("Entry", Field, Arg)      # of a layout, which has one kind of them.


def _arg(name: str, word: int, bit: int, width: int, doc: str, built: int | None = None) -> Arg:
    """Without `built` all bits of the value are known."""
    return Arg(name, word, bit, width, doc, (1 << width) - 1 if built is None else built)


def _args(*rows: tuple) -> tuple[Arg, ...]:
    return tuple(_arg(*row) for row in rows)


def _translation(word, bit, list_word, prefix=""):
    """Fields of a translation: how, and of a list its pages and its memory."""
    return (
        (f"{prefix}translation", word, bit,          1, "TRANSLATION_*; of a list `addr` is the list's place", UNBUILT),
        (f"{prefix}page_log2",   list_word, 0,       6, "log2 of a page's bytes, 12..31", UNBUILT),
        (f"{prefix}list_target", list_word, 8,       3, "memory target of the list", UNBUILT),
    )


QP_ARGS = _args(
    ("qpi",                 0,  0,  12, "QP index: QPN modulo the number of QPs"),
    ("qpn",                 1,  0,  24, "QPN = generation * number of QPs + index; never 0, 1, 0xFFFFFF"),
    ("qp_type",             1, 24,   2, "QP_TYPE_*"),
    ("state",               2,  0,   3, "state to go to"),
    ("pmtu",                2,  4,   3, "path MTU code 1..5 = 256..4096 B"),
    ("priority",            2,  8,   3, "priority of what is sent: class of the port and of flow control", UNBUILT),
    ("sq_sig_all",          2, 16,   1, "every send work request is signalled"),
    ("ipv6",                2, 17,   1, "0: IPv4 (low 32 bits of the addresses), 1: IPv6"),
    ("vlan_en",             2, 18,   1, "send with an 802.1Q tag, take frames with its VLAN ID alone; 0: untagged or ID 0"),
    ("sqd_notify",          2, 19,   1, "with state SQD: event SQ_DRAINED once all that was begun is done"),
    ("draining",            2, 20,   1, "CMD_QUERY_QP only: in SQD, and something that was begun is not done"),
    ("pd",                  3,  0,  16, "protection domain"),
    ("access",              3, 16,  16, "ACCESS_* bits the QP grants", 0xf),
    ("send_cq",             4,  0,  12, "CQ of the send queue"),
    ("recv_cq",             4, 16,  12, "CQ of the receive queue"),
    ("rq_index",            5,  0,  12, "receive queue object"),
    ("sq_log2",             5, 12,   4, "log2 of the send ring's slots, 1..15"),
    ("page",                5, 16,  12, "doorbell page of the send queue"),
    ("sq_target",           5, 28,   3, "memory target of the send ring"),
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
    ("gid_index",          15, 16,   8, "own address as a row of the GID table", UNBUILT),
    ("flow_label",         16,  0,  20, "IPv6 flow label"),
    ("dst_mac",            17,  0,  48, "next hop's MAC (number, first byte most significant)"),
    ("dst_ip",             19,  0, 128, "peer's address (number)"),
    ("src_ip",             23,  0, 128, "own address (number)"),
    ("src_mac",            27,  0,  48, "own MAC"),
    ("rate",               29,  0,  32, "most that is sent, kb/s; 0 = the wire's", UNBUILT),
    *_translation(5, 31, 30, "sq_"),
)

MR_ARGS = _args(
    ("index",    0,  0, 24, "MR index = key[31:8]"),
    ("variant",  0, 24,  8, "key[7:0]"),
    ("access",   1,  0, 16, "ACCESS_* bits", 0xf),
    ("pd",       1, 16, 16, "protection domain"),
    ("target",   2,  0,  3, "memory target"),
    ("kind",     2,  4,  2, "MR_REGION, or MR_WINDOW of the QP `qpn`", UNBUILT),
    ("va",       3,  0, 64, "first address, as peers and work requests name it"),
    ("length",   5,  0, 64, "bytes"),
    ("addr",     7,  0, 64, "physical address of va"),
    ("qpn",      9,  0, 24, "the QP that a window is bound to", UNBUILT),
    *_translation(2, 8, 10),
)

RING_ARGS = _args(
    ("index",    0,  0, 12, "number of the queue"),
    ("valid",    0, 16,  1, "0 removes the queue"),
    ("log2",     0, 20,  4, "log2 of its entries, 1..15"),
    ("page",     1,  0, 12, "doorbell page"),
    ("target",   1, 16,  3, "memory target"),
    ("addr",     2,  0, 64, "physical address, multiple of 64"),
    *_translation(1, 20, 4),
)
CQ_ARGS = _args(*RING_ARGS,
    ("wide",     1, 24,  1, "entries of CQE_WIDE_BYTES", UNBUILT),
    ("eq",       4, 16,  8, "event queue of its events", UNBUILT),
    ("count",    5,  0, 16, "completions that an event may wait for", UNBUILT),
    ("period",   5, 16, 16, "microseconds that an event may wait", UNBUILT),
)
RQ_ARGS = _args(*RING_ARGS,
    ("wide",     1, 24,  1, "slots of 128 bytes, up to MAX_RECV_SGES buffers", UNBUILT),
    ("shared",   1, 25,  1, "several QPs take from it: a shared receive queue", UNBUILT),
    ("limit",    4, 16, 16, "event when fewer work requests are left; 0 = none", UNBUILT),
)
EQ_ARGS = _args(*RING_ARGS,
    ("vector",   4, 16, 12, "interrupt of its events", UNBUILT),
    ("count",    5,  0, 16, "events that an interrupt may wait for", UNBUILT),
    ("period",   5, 16, 16, "microseconds that an interrupt may wait", UNBUILT),
)

# Commands that are not built.
AH_ARGS = _args(
    ("index",       0,  0,  16, "address handle"),
    ("valid",       0, 16,   1, "0 removes it"),
    ("ipv6",        0, 17,   1, "as of a QP"),
    ("vlan_en",     0, 18,   1, "as of a QP"),
    ("priority",    0, 20,   3, "as of a QP"),
    ("pmtu",        0, 24,   3, "longest message, code as of a QP"),
    ("pd",          1,  0,  16, "protection domain"),
    ("gid_index",   1, 16,   8, "own address"),
    ("hop_limit",   1, 24,   8, "TTL / hop limit"),
    ("tclass",      2,  0,   8, "TOS / traffic class byte"),
    ("flow_label",  2, 12,  20, "IPv6 flow label"),
    ("vlan_tci",    3,  0,  16, "802.1Q tag control"),
    ("udp_sport",   3, 16,  16, "UDP source port"),
    ("dst_mac",     4,  0,  48, "next hop's MAC"),
    ("dst_ip",      6,  0, 128, "peer's address"),
    ("rate",       10,  0,  32, "as of a QP"),
)
GID_ARGS = _args(
    ("index",       0,  0,   8, "row of the GID table"),
    ("valid",       0, 16,   1, "0 removes it"),
    ("ipv6",        0, 17,   1, "0: IPv4 (low 32 bits)"),
    ("ip",          1,  0, 128, "own address (number)"),
    ("mac",         5,  0,  48, "own MAC"),
)


def words_of(layout: Iterable[Arg]) -> int:
    """Argument words of a layout, of 32 bits each."""
    return max(-(-(e.lsb + e.width)//32) for e in layout)


# What a command's words are, as many as it takes; the rest of a mailbox is not looked at.
COMMAND_ARGS = {
    CMD_MODIFY_QP: QP_ARGS, CMD_QUERY_QP: QP_ARGS[:1], CMD_WRITE_MR: MR_ARGS, CMD_INVALIDATE_MR: MR_ARGS[:2],
    CMD_WRITE_CQ: CQ_ARGS, CMD_WRITE_RQ: RQ_ARGS, CMD_WRITE_EQ: EQ_ARGS}

# Words of a query's answer; of a device's as many as there may be (capability.capability_words).
ANSWER_WORDS = {CMD_QUERY_DEVICE: COMMAND_WORDS, CMD_QUERY_QP: words_of(QP_ARGS)}


def known_bits(layout: Sequence[Arg]) -> list[int]:
    """[32-bit mask] of the argument words of a layout: bits that may be set in this build."""
    return _words(sum(e.built << e.lsb for e in layout), words_of(layout))


def field(layout: Sequence[Entry], name: str) -> Entry:
    """The entry called `name`; KeyError names the layout's fields."""
    for entry in layout:
        if entry.name == name:
            return entry
    raise KeyError(f"{name!r} is not one of {[e.name for e in layout]}")


def _number(layout: Sequence[Entry], values: Mapping[str, int]) -> int:
    """Field values as one number; ValueError names a value too wide for its field."""
    number = 0
    for name, value in values.items():
        entry = field(layout, name)
        if not 0 <= value < 1 << entry.width:
            raise ValueError(f"{name} must fit {entry.width} bits, not {value:#x}")
        number |= value << entry.lsb
    return number


def _values(layout: Iterable[Field | Arg], number: int) -> dict[str, int]:
    return {e.name: (number >> e.lsb) & ((1 << e.width) - 1) for e in layout}


def _words(number: int, count: int) -> list[int]:
    return [(number >> (32*i)) & 0xffffffff for i in range(count)]


def pack(layout: Sequence[Field], size: int, **values: int) -> bytes:
    """Structure of `size` bytes from field values; ValueError names a value too wide for its field."""
    return _number(layout, values).to_bytes(size, "little")


def unpack(layout: Iterable[Field], data: bytes) -> dict[str, int]:
    """Field values of a structure as a dict."""
    return _values(layout, int.from_bytes(data, "little"))


def pack_args(layout: Sequence[Arg], **values: int) -> list[int]:
    """Argument words of a command, as many as its layout has; ValueError names a value too wide for its field."""
    return _words(_number(layout, values), words_of(layout))


def unpack_args(layout: Iterable[Arg], words: Iterable[int]) -> dict[str, int]:
    """Field values of argument words as a dict."""
    return _values(layout, sum(word << (32*i) for i, word in enumerate(words)))


def c_header() -> str:
    """Text of roce_abi.h: structures as offset, shift and width macros, constants as numbers."""
    lines = ["/* SPDX-License-Identifier: BSD-2-Clause */",
             "/* Made from roce_soc/abi.py. */", "#ifndef ROCE_ABI_H", "#define ROCE_ABI_H", ""]
    prefixes = ("CMD_", "CODE_", "QP_", "EVENT_", "DOORBELL_", "FEATURE_", "MEMORY_", "LATENCY_", "TRANSLATION_", "MR_", "MAX_")
    for name, value in globals().items():
        if isinstance(value, int) and (name.startswith(prefixes) or name.endswith(("_BYTES", "_WORDS", "_VERSION"))):
            lines.append(f"#define ROCE_{name} {value:#x}")
    for label, layout in (("SEND_WQE", SEND_WQE), ("RECV_WQE", RECV_WQE), ("SGE", SGE), ("CQE", CQE), ("CQE_WIDE", CQE_WIDE), ("EQE", EQE)):
        lines.append("")
        for e in layout:
            lines += [f"#define ROCE_{label}_{e.name.upper()}_BYTE {e.byte}  /* {e.doc} */",
                      f"#define ROCE_{label}_{e.name.upper()}_WIDTH {e.width}"]
    for label, words in (("QP", QP_ARGS), ("MR", MR_ARGS), ("CQ", CQ_ARGS), ("RQ", RQ_ARGS), ("EQ", EQ_ARGS), ("AH", AH_ARGS),
                         ("GID", GID_ARGS)):
        lines += ["", f"#define ROCE_{label}_WORDS {words_of(words)}"]
        for arg in words:
            name = f"ROCE_ARG_{label}_{arg.name.upper()}"
            lines += [f"#define {name}_WORD {arg.word}  /* {arg.doc} */",
                      f"#define {name}_SHIFT {arg.bit}", f"#define {name}_WIDTH {arg.width}"]
    return "\n".join(lines + ["", "#endif", ""])
