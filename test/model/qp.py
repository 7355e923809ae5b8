# SPDX-License-Identifier: BSD-2-Clause
"""Queue pairs, work requests, completions, and the profiles in which implementations differ.

Ref: InfiniBand Architecture vol. 1 ch. 10.2, 10.3; values of libibverbs.
"""
from collections import deque
from dataclasses import dataclass

from roce_soc.opcodes import PKEY_DEFAULT, PMTU_CODES
from roce_soc.verbs import QPS_RESET, SEND_SIGNALED, WC_SUCCESS

# Profiles -----------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Profile:
    """What an implementation does where the standard leaves a choice, or where it departs from it.

    name                : for messages.
    read_restart_first  : answer to a READ repeated in its middle starts with FIRST/ONLY, else MIDDLE/LAST.
    duplicate_ack_all   : ACK every duplicate SEND/WRITE packet, else only those with AckReq.
    rnr_sequence_nak    : packets behind one refused by RNR NAK draw a sequence NAK.
    short_receive_syndrome, short_receive_status : NAK and own completion of a SEND longer than its
                          receive, where they are not those of the row.
    fault_status        : own completion where a receive's buffer may not be written, likewise.
    retry_7_infinite    : retry_cnt 7 means for ever.
    read_gap_retry      : a gap in READ responses is retried at once, else by time-out only.
    ackreq_interval     : AckReq on every n-th packet inside a message, 0 = on its last only.
    window              : PSNs that may be unacknowledged.
    check_udp_checksum  : a UDP checksum that is not 0 must be right.
    grh_flag            : RC receives carry the GRH flag.
    """
    name                   : str
    read_restart_first     : bool = True
    duplicate_ack_all      : bool = True
    rnr_sequence_nak       : bool = False
    short_receive_syndrome : int  = None
    short_receive_status   : int  = None
    fault_status           : int  = None
    retry_7_infinite       : bool = False
    read_gap_retry         : bool = True
    ackreq_interval        : int  = 0
    window                 : int  = 1 << 16
    check_udp_checksum     : bool = False
    grh_flag               : bool = False

STANDARD = Profile("standard", ackreq_interval=64)
RXE      = Profile(
    "rxe",
    read_restart_first     = False,
    rnr_sequence_nak       = True,
    short_receive_syndrome = 0x63,
    short_receive_status   = 2,
    fault_status           = 2,
    retry_7_infinite       = True,
    read_gap_retry         = False,
    ackreq_interval        = 65,
    window                 = 128,
    check_udp_checksum     = True,
    grh_flag               = True,
)
PROFILES = {p.name: p for p in (STANDARD, RXE)}

# Work requests and completions --------------------------------------------------------------------

@dataclass
class SendRequest:
    """A work request of a send queue; `opcode` is one of WR_, `flags` of SEND_.

    `swap_add` and `compare` are the atomic operands, `address` the UD destination (dict of L2/L3
    fields of a Packet). The model adds what it needs to send it.
    """
    wr_id       : int
    opcode      : int
    va          : int  = 0
    length      : int  = 0
    lkey        : int  = 0
    flags       : int  = SEND_SIGNALED
    remote_va   : int  = 0
    rkey        : int  = 0
    imm         : int  = 0
    inv_rkey    : int  = 0
    swap_add    : int  = 0
    compare     : int  = 0
    remote_qpn  : int  = 0
    remote_qkey : int  = 0
    address     : dict = None
    inline      : bytes = None
    # Set by the requester.
    first_psn   : int  = 0
    last_psn    : int  = 0
    ssn         : int  = 0
    row         : str  = None    # row of errors.py that refuses it.
    response    : str  = ""      # position of the last READ response.
    retried     : bool = False

@dataclass
class ReceiveRequest:
    """A work request of a receive queue."""
    wr_id  : int
    va     : int = 0
    length : int = 0
    lkey   : int = 0

@dataclass
class Completion:
    """A completion as verbs tell it; `row` is the row of errors.py behind an error."""
    wr_id    : int
    status   : int
    opcode   : int
    qpn      : int
    byte_len : int = 0
    imm      : int = None
    inv_rkey : int = None
    flags    : int = 0
    src_qp   : int = 0
    row      : str = None
    solicited: bool = False

    @property
    def ok(self):
        """True where the status is SUCCESS."""
        return self.status == WC_SUCCESS

# Queue pair ---------------------------------------------------------------------------------------

# Attributes of a QP and their values before modify.
ATTRIBUTES = {
    "dest_qpn": 0, "pmtu": 1024, "sq_psn": 0, "rq_psn": 0, "timeout": 14, "retry_cnt": 7, "rnr_retry": 7,
    "min_rnr_timer": 12, "max_rd_atomic": 16, "max_dest_rd_atomic": 16, "access": 0, "qkey": 0,
    "pkey": PKEY_DEFAULT, "dst_mac": bytes(6), "src_mac": None, "dst_ip": b"", "src_ip": b"",
    "vlan": None, "tos": 0, "ttl": 64, "flow_label": 0, "sport": None, "pd": 0, "sq_sig_all": False,
}

class QueuePair:
    """State that both halves of a QP share: attributes, receive queue, state, completions."""
    def __init__(self, endpoint, qpn, qp_type):
        self.endpoint, self.qpn, self.qp_type = endpoint, qpn, qp_type
        self.state       = QPS_RESET
        self.receives    = deque()
        self.completions = endpoint.completions
        self.requester   = None
        self.responder   = None
        self.__dict__.update(ATTRIBUTES)

    def set(self, **attributes):
        """Change attributes; ValueError names one that does not exist or has a bad value."""
        for name, value in attributes.items():
            if name not in ATTRIBUTES:
                raise ValueError(f"QP has no attribute {name!r}")
            if name == "pmtu" and value not in PMTU_CODES:
                raise ValueError(f"pmtu must be one of {sorted(PMTU_CODES)}, not {value!r}")
            if name.endswith(("psn", "qpn")) and not 0 <= value < 1 << 24:
                raise ValueError(f"{name} must fit 24 bits, not {value!r}")
            setattr(self, name, value)

    def complete(self, completion):
        """Append to the completion queue."""
        self.completions.append(completion)
