# SPDX-License-Identifier: BSD-2-Clause
"""What the on-chip CPU shares with hosts and debuggers, as data: status block, request block, event log.

All of it lies in one small uncached RAM (region `control_ram` of csr.json). The same tables make the
firmware's C header (:func:`c_header`) and the Python side (software/control/firmware.py). No gateware import.
"""
from collections import namedtuple

from roce_soc import abi, verbs
from roce_soc.errors import ERRORS

FIRMWARE_MAGIC   = 0x45436f52        # "RoCE"
FIRMWARE_VERSION = 1

# Control RAM --------------------------------------------------------------------------------------

CONTROL_RAM_BYTES = 8192
STATUS_OFFSET     = 0x000
REQUEST_OFFSET    = 0x100
LOG_OFFSET        = 0x400
LOG_LINES         = 128              # 16 bytes each.
LOG_LINE_BYTES    = 16

Word = namedtuple("Word", "name offset doc")


def _words(base, *rows):
    return tuple(Word(name, base + 4*n, doc) for n, (name, doc) in enumerate(rows))


STATUS = _words(STATUS_OFFSET,
    ("magic",          "FIRMWARE_MAGIC once the firmware runs; written last at boot"),
    ("version",        "FIRMWARE_VERSION"),
    ("heartbeat",      "counts passes of the main loop"),
    ("uptime_ms",      "milliseconds since boot (scaled in simulation)"),
    ("link_state",     "LINK_STATES"),
    ("link_reason",    "LINK_REASONS: why the link is not up, or why it last went down"),
    ("link_attempts",  "bring-up attempts since boot"),
    ("link_failures",  "bring-up attempts that failed since boot"),
    ("link_ups",       "times that the link came up"),
    ("backoff_ms",     "wait before the next attempt"),
    ("log_count",      "event lines written since boot; the newest is line (count - 1) modulo LOG_LINES"),
    ("log_offset",     "byte offset of line 0 in this RAM"),
    ("log_lines",      "lines of the ring"),
    ("requests",       "requests served"),
    ("refusals",       "requests refused"),
    ("console_lost",   "console characters dropped because the UART was slower"),
    ("neighbours",     "entries of the neighbour table"),
    ("reset_cause",    "0 power-up or reset, else 1 + trap cause"),
)

# Requests: the asker writes opcode and arguments, then `submit` := another number; the firmware
# answers in result words, then `done` := `submit`.
REQUEST_WORDS = 1 + abi.COMMAND_WORDS
REQUEST = _words(REQUEST_OFFSET,
    ("submit",   "sequence number, written last by the asker"),
    ("done",     "sequence number of the request that was answered"),
    ("opcode",   "REQ_*"),
    ("code",     "FW_*: result"),
    ("field",    "FW_BAD_VALUE: number of the refused field in QP_FIELDS"),
    ("value",    "refused value, or mask of attributes at fault"),
    ("limit",    "limit that the value breaks"),
    ("engine",   "FW_ENGINE: code, and info << 8, of the engine's command port"),
    ("args",     "first of REQUEST_WORDS argument or answer words"),
)

REQ_NOP, REQ_LINK, REQ_QP_MODIFY, REQ_QP_QUERY, REQ_COMMAND = range(5)
REQ_DOC = {
    "REQ_LINK":      "args[0]: 0 link down and stay down, 1 bring it up, 2 restart bring-up",
    "REQ_QP_MODIFY": "args[0]: attribute mask (verbs.ATTR_BITS); args[1..]: QP_ARGS words",
    "REQ_QP_QUERY":  "args[0]: QP index; answers QP_ARGS words in args[1..]",
    "REQ_COMMAND":   "args[0]: CMD_* for memory regions and queues; args[1..]: its words",
}

(FW_OK, FW_BAD_REQUEST, FW_BAD_INDEX, FW_BAD_TRANSITION, FW_MISSING, FW_REFUSED, FW_BAD_VALUE, FW_ENGINE,
 FW_TIMEOUT, FW_NO_ENGINE) = range(10)
FW_DOC = (
    "good",
    "unknown request {value}, limit {limit}",
    "QP index {value} is beyond the firmware's {limit} QPs",
    "no such transition",
    "attributes missing",
    "attributes not allowed in this transition",
    "value {value:#x} breaks limit {limit:#x}",
    "the engine refused the command",
    "the engine did not answer in {limit} ms",
    "this SoC has no engine",
)

# Link ---------------------------------------------------------------------------------------------

LINK_STATES = (
    ("DOWN",         "switched off by request"),
    ("RESET",        "core or receiver held in reset"),
    ("WAIT_RESET",   "waiting until both directions are out of reset"),
    ("WAIT_ALIGN",   "receiver enabled, remote fault sent, waiting for alignment"),
    ("WAIT_PEER",    "aligned, transmitter enabled, waiting until the peer receives us"),
    ("UP",           "frames pass"),
    ("BACKOFF",      "waiting before the next attempt"),
)
LINK_REASONS = (
    ("NONE",          "no failure"),
    ("ADMIN",         "switched off by request"),
    ("NO_MODULE",     "no pluggable module"),
    ("NO_POWER",      "transceivers report bad supply or clock"),
    ("RESET_TIMEOUT", "a direction did not leave reset"),
    ("NO_LOCK",       "no block lock: no signal or other FEC setting"),
    ("NO_ALIGN",      "block lock, but lanes do not align"),
    ("HI_BER",        "high bit error rate"),
    ("LOCAL_FAULT",   "local fault although aligned"),
    ("REMOTE_FAULT",  "the peer reports that it does not receive us"),
    ("ALIGN_LOST",    "alignment was lost on a running link"),
    ("TX_DEAD",       "the transmit side starved"),
)

# Milliseconds; in simulation a millisecond is shorter (constant ROCE_MS_CYCLES).
LINK_TIMES = {
    "LINK_RESET_MS":       2,       # resets are held.
    "LINK_WAIT_RESET_MS":  200,
    "LINK_WAIT_ALIGN_MS":  1000,
    "LINK_WAIT_PEER_MS":   2000,
    "LINK_BACKOFF_MS":     50,      # first wait, doubled by every failure up to the next line.
    "LINK_BACKOFF_MAX_MS": 5000,
    "LINK_FULL_RESET":     4,       # every n-th attempt resets the whole core, the others the receiver.
    "COMMAND_MS":          1000,    # longest engine command.
}

# Event log ------------------------------------------------------------------------------------------
# A line: time in ms, event code, two arguments; 32 bits each.

LOG_EVENTS = (
    ("BOOT",        "firmware started; version"),
    ("LINK_STATE",  "link state changed; state, reason"),
    ("LINK_UP",     "link came up; attempt, ms of this attempt"),
    ("LINK_FAIL",   "attempt failed; reason, back-off ms"),
    ("LINK_LOST",   "running link went down; reason, PHY status register"),
    ("QP_STATE",    "QP changed state; QP index, old << 8 | new"),
    ("REFUSED",     "request refused; opcode << 8 | code, value"),
    ("ENGINE_ERR",  "engine command failed; command, code | info << 8"),
    ("EVENT",       "the engine raised a cause; its bit in register roce_ev_pending, ms"),
    ("NEIGHBOUR",   "neighbour learnt; IPv4 address, low 32 bits of the MAC"),
    ("REQUEST",     "request served; opcode, first argument"),
)

# Queue pairs ----------------------------------------------------------------------------------------

FIRMWARE_QPS = 32      # QPs that the firmware keeps shadows of: indices below this.
FIRMWARE_MRS = 32      # memory regions that it remembers for its console.

# Attribute of a modify request -> fields of abi.QP_ARGS it stands for.
ATTR_FIELDS = {
    "ACCESS_FLAGS":       ("access",),
    "PKEY_INDEX":         ("pkey",),
    "PORT":               ("src_mac", "src_ip", "ipv6"),
    "QKEY":               ("qkey",),
    "AV":                 ("dst_mac", "dst_ip", "gid_index", "priority", "hop_limit", "tclass", "vlan_en", "vlan_tci", "flow_label", "udp_sport"),
    "PATH_MTU":           ("pmtu",),
    "TIMEOUT":            ("timeout",),
    "RETRY_CNT":          ("retry_cnt",),
    "RNR_RETRY":          ("rnr_retry",),
    "RQ_PSN":             ("rq_psn",),
    "MAX_QP_RD_ATOMIC":   ("max_rd_atomic",),
    "MIN_RNR_TIMER":      ("min_rnr_timer",),
    "SQ_PSN":             ("sq_psn",),
    "MAX_DEST_RD_ATOMIC": ("max_dest_rd_atomic",),
    "DEST_QPN":           ("dest_qpn",),
    "EN_SQD_ASYNC_NOTIFY": ("sqd_notify",),
}
# Limits beyond the width of the field.
FIELD_LIMITS = {"pmtu": (1, 5), "max_rd_atomic": (0, 16), "max_dest_rd_atomic": (0, 16), "dest_qpn": (1, 0xfffffe),
                "qpn": (2, 0xfffffe), "hop_limit": (1, 255), "rnr_retry": (0, 7), "retry_cnt": (0, 7)}

QpField = namedtuple("QpField", "name word shift width attr low high")


def qp_fields():
    """Rows of the firmware's field table; attr None: taken whenever the QP leaves RESET."""
    owner = {name: attr for attr, names in ATTR_FIELDS.items() for name in names}
    rows  = []
    for arg in abi.QP_ARGS:
        if arg.name in ("qpi", "state", "draining"):
            continue
        low, high = FIELD_LIMITS.get(arg.name, (0, arg.built & 0xffffffff))
        rows.append(QpField(arg.name, arg.word, arg.bit, arg.width, owner.get(arg.name), low, high))
    return rows


QP_FIELDS = qp_fields()


# Header -------------------------------------------------------------------------------------------

def _c_names(prefix, table):
    names = ", ".join(f'"{name}"' for name, *_ in table)
    lines = [f"#define {prefix}_{name} {n}  /* {doc} */" for n, (name, doc) in enumerate(table)]
    return [*lines, f"#define {prefix}_COUNT {len(table)}", f"#define {prefix}_NAMES {{ {names} }}", ""]


def c_header():
    """Text of roce.h: abi.c_header() and the tables of this module."""
    lines = ["/* SPDX-License-Identifier: BSD-2-Clause */", "/* Made from roce_soc/firmware.py. */",
             "#ifndef ROCE_H", "#define ROCE_H", "", '#include "roce_abi.h"', ""]
    names = ("FIRMWARE_MAGIC", "FIRMWARE_VERSION", "FIRMWARE_QPS", "FIRMWARE_MRS", "LOG_OFFSET", "LOG_LINES", "REQUEST_WORDS",
             "REQ_NOP", "REQ_LINK", "REQ_QP_MODIFY", "REQ_QP_QUERY", "REQ_COMMAND",
             *(n for n in globals() if n.startswith("FW_") and n != "FW_DOC"))
    lines += [f"#define {name} {globals()[name]:#x}" for name in names]
    lines += [f"#define {name} {value}" for name, value in LINK_TIMES.items()] + [""]
    for prefix, table in (("STATUS", STATUS), ("REQUEST", REQUEST)):
        lines += [f"#define {prefix}_{w.name.upper()} {w.offset:#x}  /* {w.doc} */" for w in table] + [""]
    lines += _c_names("LINK", LINK_STATES) + _c_names("REASON", LINK_REASONS) + _c_names("EVENT", LOG_EVENTS)
    lines += [f"#define ATTR_{name} (1u << {bit})" for name, bit in verbs.ATTR_BITS.items()]
    attrs = [""]*32
    for name, bit in verbs.ATTR_BITS.items():
        attrs[bit] = name
    lines += ["#define ATTR_NAMES { " + ", ".join(f'"{a}"' for a in attrs) + " }", ""]
    lines += ["/* name, argument word, shift, width, attribute bit (32: none), lowest, highest */", "#define QP_FIELD_ROWS \\"]
    for f in QP_FIELDS:
        bit = 32 if f.attr is None else verbs.ATTR_BITS[f.attr]
        lines.append(f'\t{{ "{f.name}", {f.word}, {f.shift}, {f.width}, {bit}, {f.low:#x}u, {f.high:#x}u }}, \\')
    lines += ["", "/* old state, new state, required and optional attributes (RC) */", "#define QP_TRANSITION_ROWS \\"]
    for row in verbs.TRANSITIONS.values():
        if row.qp_type == "RC":
            lines.append(f"\t{{ {row.old}, {row.new}, {row.required:#x}u, {row.optional:#x}u }}, \\")
    lines += ["", "/* rows of errors.py by index */", "#define ERROR_NAMES { \\"]
    by_index = {row.index: row.name for row in ERRORS.values()}
    lines += [f'\t"{by_index.get(i, "")}", \\' for i in range(max(by_index) + 1)]
    lines += ["}", f"#define ERROR_COUNT {max(by_index) + 1}", "", "#endif", ""]
    return "\n".join(lines)
