# SPDX-License-Identifier: BSD-2-Clause
"""Verbs numbers: work requests, completions, access rights, events, QP states and their transitions.

Ref: InfiniBand Architecture vol. 1 ch. 10, 11; values of libibverbs' user ABI (infiniband/verbs.h).
Not supported: alternate paths (APM), memory windows of type 1, TSO, FLUSH, ATOMIC_WRITE.
"""
from collections.abc import Mapping
from dataclasses import dataclass

# Work requests ------------------------------------------------------------------------------------

WR_RDMA_WRITE, WR_RDMA_WRITE_WITH_IMM, WR_SEND, WR_SEND_WITH_IMM = 0, 1, 2, 3
WR_RDMA_READ, WR_ATOMIC_CMP_AND_SWP, WR_ATOMIC_FETCH_AND_ADD     = 4, 5, 6
WR_LOCAL_INV, WR_BIND_MW, WR_SEND_WITH_INV                       = 7, 8, 9
WR_REG_MR                                                        = 0x20

WR_NAMES = {
    WR_RDMA_WRITE: "RDMA_WRITE", WR_RDMA_WRITE_WITH_IMM: "RDMA_WRITE_WITH_IMM", WR_SEND: "SEND",
    WR_SEND_WITH_IMM: "SEND_WITH_IMM", WR_RDMA_READ: "RDMA_READ",
    WR_ATOMIC_CMP_AND_SWP: "ATOMIC_CMP_AND_SWP", WR_ATOMIC_FETCH_AND_ADD: "ATOMIC_FETCH_AND_ADD",
    WR_LOCAL_INV: "LOCAL_INV", WR_BIND_MW: "BIND_MW", WR_SEND_WITH_INV: "SEND_WITH_INV",
    WR_REG_MR: "REG_MR",
}

SEND_FENCE, SEND_SIGNALED, SEND_SOLICITED, SEND_INLINE = 1, 2, 4, 8
SEND_FLAG_NAMES = {SEND_FENCE: "FENCE", SEND_SIGNALED: "SIGNALED", SEND_SOLICITED: "SOLICITED",
                   SEND_INLINE: "INLINE"}

ACCESS_LOCAL_WRITE, ACCESS_REMOTE_WRITE, ACCESS_REMOTE_READ, ACCESS_REMOTE_ATOMIC = 1, 2, 4, 8
ACCESS_MW_BIND, ACCESS_ZERO_BASED, ACCESS_ON_DEMAND, ACCESS_HUGETLB               = 16, 32, 64, 128
ACCESS_NAMES = {
    ACCESS_LOCAL_WRITE: "LOCAL_WRITE", ACCESS_REMOTE_WRITE: "REMOTE_WRITE",
    ACCESS_REMOTE_READ: "REMOTE_READ", ACCESS_REMOTE_ATOMIC: "REMOTE_ATOMIC",
    ACCESS_MW_BIND: "MW_BIND", ACCESS_ZERO_BASED: "ZERO_BASED", ACCESS_ON_DEMAND: "ON_DEMAND",
    ACCESS_HUGETLB: "HUGETLB",
}

# Bits that an MR may ask for and a device may leave out: RELAXED_ORDERING is the first of them.
ACCESS_OPTIONAL = sum(1 << bit for bit in range(20, 30))
# What this engine grants; HUGETLB and the optional bits change nothing and are ignored.
ACCESS_MR       = ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ
ACCESS_IGNORED  = ACCESS_HUGETLB | ACCESS_OPTIONAL
# A QP's flags may name atomics: connection managers do whenever there are responder resources. It grants nothing yet.
ACCESS_QP       = ACCESS_MR | ACCESS_REMOTE_ATOMIC

def access_of(access: int, allowed: int = ACCESS_MR, what: str = "a memory region") -> int:
    """Access bits as the engine takes them; ValueError names those that are not built."""
    refused = access & ~(allowed | ACCESS_IGNORED)
    if refused:
        names = [name for bit, name in ACCESS_NAMES.items() if refused & bit]
        raise ValueError(f"access of {what} must be of {' '.join(n for bit, n in ACCESS_NAMES.items() if allowed & bit)}, "
            f"not {' '.join(names) or hex(refused)}")
    return access & allowed

def check_access(access: int) -> None:
    """ValueError where remote write or atomic is granted without local write."""
    if access & (ACCESS_REMOTE_WRITE | ACCESS_REMOTE_ATOMIC) and not access & ACCESS_LOCAL_WRITE:
        raise ValueError(f"access with REMOTE_WRITE or REMOTE_ATOMIC needs LOCAL_WRITE, not {access:#x}")

# Completions --------------------------------------------------------------------------------------

(WC_SUCCESS, WC_LOC_LEN_ERR, WC_LOC_QP_OP_ERR, WC_LOC_EEC_OP_ERR, WC_LOC_PROT_ERR, WC_WR_FLUSH_ERR,
 WC_MW_BIND_ERR, WC_BAD_RESP_ERR, WC_LOC_ACCESS_ERR, WC_REM_INV_REQ_ERR, WC_REM_ACCESS_ERR,
 WC_REM_OP_ERR, WC_RETRY_EXC_ERR, WC_RNR_RETRY_EXC_ERR, WC_LOC_RDD_VIOL_ERR, WC_REM_INV_RD_REQ_ERR,
 WC_REM_ABORT_ERR, WC_INV_EECN_ERR, WC_INV_EEC_STATE_ERR, WC_FATAL_ERR, WC_RESP_TIMEOUT_ERR,
 WC_GENERAL_ERR) = range(22)

WC_STATUS_NAMES = (
    "SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR",
    "MW_BIND_ERR", "BAD_RESP_ERR", "LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR",
    "REM_OP_ERR", "RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR", "REM_INV_RD_REQ_ERR",
    "REM_ABORT_ERR", "INV_EECN_ERR", "INV_EEC_STATE_ERR", "FATAL_ERR", "RESP_TIMEOUT_ERR",
    "GENERAL_ERR")

(WC_SEND, WC_RDMA_WRITE, WC_RDMA_READ, WC_COMP_SWAP, WC_FETCH_ADD, WC_BIND_MW, WC_LOCAL_INV) = range(7)
WC_RECV, WC_RECV_RDMA_WITH_IMM = 128, 129

WC_OPCODE_NAMES = {
    WC_SEND: "SEND", WC_RDMA_WRITE: "RDMA_WRITE", WC_RDMA_READ: "RDMA_READ", WC_COMP_SWAP: "COMP_SWAP",
    WC_FETCH_ADD: "FETCH_ADD", WC_BIND_MW: "BIND_MW", WC_LOCAL_INV: "LOCAL_INV", WC_RECV: "RECV",
    WC_RECV_RDMA_WITH_IMM: "RECV_RDMA_WITH_IMM",
}

# Work request opcode -> completion opcode.
WC_OF_WR = {
    WR_RDMA_WRITE: WC_RDMA_WRITE, WR_RDMA_WRITE_WITH_IMM: WC_RDMA_WRITE, WR_SEND: WC_SEND,
    WR_SEND_WITH_IMM: WC_SEND, WR_SEND_WITH_INV: WC_SEND, WR_RDMA_READ: WC_RDMA_READ,
    WR_ATOMIC_CMP_AND_SWP: WC_COMP_SWAP, WR_ATOMIC_FETCH_AND_ADD: WC_FETCH_ADD,
    WR_LOCAL_INV: WC_LOCAL_INV, WR_BIND_MW: WC_BIND_MW, WR_REG_MR: WC_LOCAL_INV,
}

WC_FLAG_GRH, WC_FLAG_WITH_IMM, WC_FLAG_IP_CSUM_OK, WC_FLAG_WITH_INV = 1, 2, 4, 8

# Asynchronous events ------------------------------------------------------------------------------

ASYNC_EVENTS = (
    "CQ_ERR", "QP_FATAL", "QP_REQ_ERR", "QP_ACCESS_ERR", "COMM_EST", "SQ_DRAINED", "PATH_MIG",
    "PATH_MIG_ERR", "DEVICE_FATAL", "PORT_ACTIVE", "PORT_ERR", "LID_CHANGE", "PKEY_CHANGE",
    "SM_CHANGE", "SRQ_ERR", "SRQ_LIMIT_REACHED", "QP_LAST_WQE_REACHED", "CLIENT_REREGISTER",
    "GID_CHANGE", "WQ_FATAL")
EVENT_NUMBER = {name: number for number, name in enumerate(ASYNC_EVENTS)}

# QP states ----------------------------------------------------------------------------------------

QP_STATES = ("RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR")
QPS_RESET, QPS_INIT, QPS_RTR, QPS_RTS, QPS_SQD, QPS_SQE, QPS_ERR = range(7)
QPS_RECEIVE = (QPS_RTR, QPS_RTS, QPS_SQD)     # states in which packets are accepted.
QP_TYPES    = ("RC", "UC", "UD", "GSI")

# Bits of a modify command's attribute mask.
ATTR_BITS = {
    "STATE": 0, "CUR_STATE": 1, "EN_SQD_ASYNC_NOTIFY": 2, "ACCESS_FLAGS": 3, "PKEY_INDEX": 4,
    "PORT": 5, "QKEY": 6, "AV": 7, "PATH_MTU": 8, "TIMEOUT": 9, "RETRY_CNT": 10, "RNR_RETRY": 11,
    "RQ_PSN": 12, "MAX_QP_RD_ATOMIC": 13, "ALT_PATH": 14, "MIN_RNR_TIMER": 15, "SQ_PSN": 16,
    "MAX_DEST_RD_ATOMIC": 17, "PATH_MIG_STATE": 18, "CAP": 19, "DEST_QPN": 20, "RATE_LIMIT": 25,
}

def attr_mask(names: str) -> int:
    """Attribute mask of names separated by spaces."""
    return sum(1 << ATTR_BITS[name] for name in names.split())

@dataclass(frozen=True)
class Transition:
    """A QP state change: attributes it must and may carry, as masks, for one QP type."""
    old      : int
    new      : int
    qp_type  : str
    required : int
    optional : int

_INIT_RC = "PKEY_INDEX PORT ACCESS_FLAGS"
_INIT_UD = "PKEY_INDEX PORT QKEY"
_RTR_UC  = "AV PATH_MTU DEST_QPN RQ_PSN"
_RTR_RC  = _RTR_UC + " MAX_DEST_RD_ATOMIC MIN_RNR_TIMER"
_RTS_RC  = "TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC"
_LIVE_RC = "ACCESS_FLAGS MIN_RNR_TIMER"
_SQD_RC  = ("AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC MAX_DEST_RD_ATOMIC PKEY_INDEX PORT "
            "ACCESS_FLAGS MIN_RNR_TIMER")

# old, new, types, required, optional.
_TRANSITIONS = (
    ("RESET", "INIT", "RC UC",        _INIT_RC,               ""),
    ("RESET", "INIT", "UD",           _INIT_UD,               ""),
    ("RESET", "INIT", "GSI",          "PKEY_INDEX QKEY",      ""),
    ("INIT",  "INIT", "RC UC",        "",                     _INIT_RC),
    ("INIT",  "INIT", "UD",           "",                     _INIT_UD),
    ("INIT",  "INIT", "GSI",          "",                     "PKEY_INDEX QKEY"),
    ("INIT",  "RTR",  "RC",           _RTR_RC,                "ACCESS_FLAGS PKEY_INDEX"),
    ("INIT",  "RTR",  "UC",           _RTR_UC,                "ACCESS_FLAGS PKEY_INDEX"),
    ("INIT",  "RTR",  "UD GSI",       "",                     "PKEY_INDEX QKEY"),
    ("RTR",   "RTS",  "RC",           _RTS_RC,                "CUR_STATE " + _LIVE_RC),
    ("RTR",   "RTS",  "UC",           "SQ_PSN",               "CUR_STATE ACCESS_FLAGS"),
    ("RTR",   "RTS",  "UD GSI",       "SQ_PSN",               "CUR_STATE QKEY"),
    ("RTS",   "RTS",  "RC",           "",                     "CUR_STATE " + _LIVE_RC),
    ("RTS",   "RTS",  "UC",           "",                     "CUR_STATE ACCESS_FLAGS"),
    ("RTS",   "RTS",  "UD GSI",       "",                     "CUR_STATE QKEY"),
    ("RTS",   "SQD",  "RC UC UD GSI", "",                     "EN_SQD_ASYNC_NOTIFY"),
    ("SQD",   "RTS",  "RC",           "",                     "CUR_STATE " + _LIVE_RC),
    ("SQD",   "RTS",  "UC",           "",                     "CUR_STATE ACCESS_FLAGS"),
    ("SQD",   "RTS",  "UD GSI",       "",                     "CUR_STATE QKEY"),
    ("SQD",   "SQD",  "RC",           "",                     _SQD_RC),
    ("SQD",   "SQD",  "UC",           "",                     "AV PKEY_INDEX ACCESS_FLAGS"),
    ("SQD",   "SQD",  "UD GSI",       "",                     "PKEY_INDEX QKEY"),
    ("SQE",   "RTS",  "UC",           "",                     "CUR_STATE ACCESS_FLAGS"),
    ("SQE",   "RTS",  "UD GSI",       "",                     "CUR_STATE QKEY"),
)

TRANSITIONS: dict[tuple[int, int, str], Transition] = {}       # (old, new, QP type).
for _old, _new, _types, _required, _optional in _TRANSITIONS:
    for _type in _types.split():
        TRANSITIONS[QP_STATES.index(_old), QP_STATES.index(_new), _type] = Transition(
            QP_STATES.index(_old), QP_STATES.index(_new), _type, attr_mask(_required), attr_mask(_optional))
for _state in range(len(QP_STATES)):
    for _type in QP_TYPES:
        TRANSITIONS[_state, QPS_RESET, _type] = Transition(_state, QPS_RESET, _type, 0, 0)
        if _state != QPS_RESET:
            TRANSITIONS[_state, QPS_ERR, _type] = Transition(_state, QPS_ERR, _type, 0, 0)

def check_transition(old: int, new: int, qp_type: str, mask: int) -> None:
    """None for a legal change of state; ValueError names the states or the attributes at fault.

    STATE is implied; alternate paths are refused, as ALT_PATH and PATH_MIG_STATE are optional nowhere.
    """
    row = TRANSITIONS.get((old, new, qp_type))
    if row is None:
        raise ValueError(f"{qp_type} has no transition {QP_STATES[old]} -> {QP_STATES[new]}")
    mask &= ~attr_mask("STATE")
    for kind, bits in (("lacks", row.required & ~mask), ("refuses", mask & ~row.required & ~row.optional)):
        if bits:
            names = [name for name, bit in ATTR_BITS.items() if bits >> bit & 1]
            raise ValueError(f"{QP_STATES[old]} -> {QP_STATES[new]} {kind} {' '.join(names) or hex(bits)}")

def flag_names(names: Mapping[int, str], value: int) -> list[str]:
    """Names of the bits set in `value` by a table of this module."""
    return [name for bit, name in names.items() if value & bit]
