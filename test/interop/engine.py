# SPDX-License-Identifier: BSD-2-Clause
"""What the far end of the guest has to offer, whatever stands behind it.

Names of statuses and opcodes are those of libibverbs without their prefix (SUCCESS, RECV, RDMA_READ).
"""
import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass

ETHERTYPE_ARP = 0x0806
ENGINE_MAC    = "02:00:00:00:00:01"   # what the SoC has after reset.
ENGINE_IP     = "192.168.1.50"


class EngineUnavailable(Exception):
    """The engine cannot be had here (not built, tool missing); the run is skipped."""

class EngineError(Exception):
    """The engine is gone, silent, or refuses a command."""


@dataclass(frozen=True)
class Region:
    """Registered memory of the engine's side."""
    va     : int
    length : int
    lkey   : int
    rkey   : int

@dataclass(frozen=True)
class Remote:
    """What a QP has to know of its peer, and the parameters both ends agree on. Times are verbs' codes."""
    qpn           : int
    mac           : str
    ip            : str
    sq_psn        : int   # this end sends from here.
    rq_psn        : int   # this end expects this first.
    pmtu          : int
    timeout       : int
    retry_cnt     : int
    rnr_retry     : int
    min_rnr_timer : int

@dataclass(frozen=True)
class Completion:
    """A completion as the table of results shows it."""
    wr_id    : int
    status   : str
    opcode   : str
    byte_len : int


class Engine(ABC):
    """One RoCE port, seen from its wire and from its software.

    Attributes: `name`, `mac` and `ip` (text). Frames are bytes without FCS.
    Errors: EngineUnavailable when it cannot start, EngineError for what goes wrong later.
    """
    name, mac, ip = "", ENGINE_MAC, ENGINE_IP

    # Wire.
    @abstractmethod
    def deliver(self, frame):
        """Hand over a frame from the guest."""

    @abstractmethod
    def collect(self):
        """Frames for the guest that are there now."""

    def sockets(self):
        """Sockets that become readable when collect() has something."""
        return []

    def busy(self):
        """True while collect() should be called again at once: its time passes only inside."""
        return False

    # Software.
    @abstractmethod
    def reg_mr(self, length):
        """Region with local and remote write and read access."""

    @abstractmethod
    def create_qp(self):
        """qpn of a new RC QP whose peer is not known yet."""

    @abstractmethod
    def connect(self, qpn, remote):
        """Bring a QP through INIT and RTR to RTS towards a Remote."""

    @abstractmethod
    def destroy_qp(self, qpn):
        """RESET and forget a QP."""

    @abstractmethod
    def post_receive(self, qpn, wr_id, va, length, lkey):
        """One receive of one buffer."""

    @abstractmethod
    def post_send(self, qpn, wr_id, opcode, va, length, lkey, remote_va=0, rkey=0):
        """One signalled work request; opcode SEND, WRITE or READ."""

    @abstractmethod
    def poll(self, qpn):
        """[Completion] of a QP that came since the last call."""

    @abstractmethod
    def read(self, va, length):
        """Bytes of registered memory, past all protection."""

    @abstractmethod
    def write(self, va, data):
        """Put bytes into registered memory."""

    @abstractmethod
    def counters(self):
        """{name: value} of what must be zero after a run without faults: refusals, retries, NAKs."""

    def facts(self):
        """{name: value} worth printing, not judged."""
        return {}

    def close(self):
        """End what start-up began."""


def arp_reply(frame, mac, ip):
    """The reply of station (mac, ip: bytes) to an ARP request in `frame`, or None where it is none for it."""
    head = struct.pack(">HHBB", 1, 0x0800, 6, 4)
    if frame[12:22] != struct.pack(">H", ETHERTYPE_ARP) + head + struct.pack(">H", 1) or frame[38:42] != ip:
        return None
    asker = frame[22:32]
    return asker[:6] + mac + frame[12:14] + head + struct.pack(">H", 2) + mac + ip + asker
