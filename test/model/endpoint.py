# SPDX-License-Identifier: BSD-2-Clause
"""A RoCE v2 station in plain Python: frames in, frames out, verbs at the side.

Ref: InfiniBand Architecture vol. 1 ch. 9.6 (validation), 10.3 (QP states); Annex A17 (RoCEv2).
Not supported: ARP, ND and ICMP (rx() says that such a frame is not its own), RDMA CM, congestion control.

    a = Endpoint("52:54:00:00:00:01", "10.0.0.1")
    a.reg_mr(0x10000, 4096, access, key=0x101)
    a.create_qp(0x11, "RC", dest_qpn=0x14, dst_mac=..., dst_ip=..., sq_psn=0, rq_psn=0, pmtu=1024)
    a.post_send(0x11, wr_id=1, opcode=WR_SEND, va=0x10000, length=64, lkey=0x101)
    for frame in a.tx(now): ...          # now: any clock in ns that never goes back
    a.rx(frame, now); a.tick(now); a.poll_cq()
"""
from collections import Counter, deque

from roce_soc import opcodes as op
from roce_soc.errors import ERRORS
from roce_soc.verbs import (QPS_ERR, QPS_RECEIVE, QPS_RESET, QPS_RTR, QPS_RTS, QPS_SQD, QP_STATES,
                            WC_RECV, WC_WR_FLUSH_ERR)
from test.model.memory import MemoryTable
from test.model.packet import Packet, PacketError, ip, mac, parse, udp_sport
from test.model.qp import Completion, QueuePair, ReceiveRequest, SendRequest, STANDARD
from test.model.completer import Completer
from test.model.responder import Responder
from test.model.unreliable import UCResponder, UDResponder

RESPONDERS = {"RC": Responder, "UC": UCResponder, "UD": UDResponder}


def pkey_match(a, b):
    """P_Keys fit: same low 15 bits, at least one full member."""
    return (a ^ b) & 0x7fff == 0 and (a | b) & 0x8000 != 0


def vid(tci):
    """VLAN ID of a tag; 0, that of a priority tag, where there is none."""
    return (tci or 0) & 0xfff


class Endpoint:
    """One port with its queue pairs and memory.

    mac, addresses : own addresses; the first one is used where a QP names none.
    profile        : Profile of qp.py.
    admit_own      : frames from own addresses are taken; a station's own are never on its wire.
    Attributes: memory (MemoryTable), qps, completions, events [(name, qpn)], counters (row -> number).
    """
    def __init__(self, mac_address, *addresses, profile=STANDARD):
        self.mac, self.profile = mac(mac_address), profile
        self.gids        = [ip(a) for a in addresses]
        self.memory      = MemoryTable()
        self.qps         = {}
        self.completions = deque()
        self.events      = []
        self.counters    = Counter()
        self.refusals    = deque(maxlen=64)   # (row, packet or None), newest last.
        self.frames      = deque()
        self.ip_id       = 0
        self.admit_own   = False
        self.now         = 0

    # Verbs ----------------------------------------------------------------------------------------

    def reg_mr(self, va, length, access, *, key=None, pd=0, data=None):
        """Register memory; returns the Region, whose key is lkey and rkey."""
        return self.memory.register(va, length, access, key=key, pd=pd, data=data)

    def create_qp(self, qpn, qp_type="RC", *, state=QPS_RTS, **attributes):
        """Make a QP with its attributes (qp.ATTRIBUTES) and bring it to `state`."""
        if not 0 < qpn < 0xffffff or qpn in self.qps:
            raise ValueError(f"qpn must be free and 1..0xfffffe, not {qpn:#x}")
        if qp_type not in RESPONDERS:
            raise ValueError(f"qp_type must be RC, UC or UD, not {qp_type!r}")
        qp = self.qps[qpn] = QueuePair(self, qpn, qp_type)
        qp.requester, qp.responder = None, None
        self.modify_qp(qpn, state, **attributes)
        return qp

    def modify_qp(self, qpn, state=None, **attributes):
        """Change attributes, then the state (RESET, INIT, RTR, RTS, SQD or ERR)."""
        qp = self.qps[qpn]
        for name, convert in (("dst_mac", mac), ("src_mac", mac), ("dst_ip", ip), ("src_ip", ip)):
            if attributes.get(name):
                attributes[name] = convert(attributes[name])
        qp.set(**attributes)
        if state is None:
            return
        if state == QPS_ERR:
            self.fail(qp, None)
        elif state == QPS_RESET:
            qp.state = state
            qp.receives.clear()
            qp.requester = qp.responder = None
        else:
            if qp.responder is None:
                qp.src_mac = qp.src_mac or self.mac
                qp.src_ip  = qp.src_ip or self.gids[0]
                qp.dst_ip  = qp.dst_ip or qp.src_ip
                qp.sport   = qp.sport or udp_sport(qpn, qp.dest_qpn, qp.flow_label)
                qp.responder, qp.requester = RESPONDERS[qp.qp_type](qp), Completer(qp)
            elif state == QPS_RTR:
                qp.responder.reset()
            elif state == QPS_RTS and qp.state == QPS_RTR:
                qp.requester.reset()
            qp.state = state

    def destroy_qp(self, qpn):
        """Forget a QP."""
        del self.qps[qpn]

    def post_send(self, qpn, wr_id, opcode, **fields):
        """Post a SendRequest; it is sent by the next tx()."""
        qp = self.qps[qpn]
        wr = SendRequest(wr_id, opcode, **fields)
        if qp.state not in (QPS_RTS, QPS_SQD, QPS_ERR):
            raise ValueError(f"state must be RTS, SQD or ERR to post a send, not {QP_STATES[qp.state]}")
        qp.requester.post(wr)
        if qp.state == QPS_ERR:
            qp.requester.flush()

    def post_recv(self, qpn, wr_id, va=0, length=0, lkey=0):
        """Post a ReceiveRequest."""
        qp = self.qps[qpn]
        if qp.state == QPS_RESET:
            raise ValueError("state must not be RESET to post a receive")
        qp.receives.append(ReceiveRequest(wr_id, va, length, lkey))
        if qp.state == QPS_ERR:
            self._flush_receives(qp)

    def poll_cq(self, qpn=None):
        """Completions so far, oldest first, of all QPs or of one; they leave the queue."""
        taken = [c for c in self.completions if qpn in (None, c.qpn)]
        for completion in taken:
            self.completions.remove(completion)
        return taken

    # Frames ---------------------------------------------------------------------------------------

    def rx(self, frame, now=None):
        """Take a frame without FCS. False where it is not for a RoCE engine (the slow path's)."""
        self.now = self.now if now is None else now
        try:
            packet = parse(frame)
        except PacketError as error:
            self.refuse(error.row)
            return True
        if packet is None:
            return False
        row = self._filter(packet)
        if row:
            self.refuse(row, packet)
            return True
        opcode = op.OPCODES[packet.opcode]
        qp = self.qps[packet.dest_qpn]
        if opcode.is_response:
            qp.requester.response(packet, self.now)
        else:
            if qp.state == QPS_RTR and ("COMM_EST", qp.qpn) not in self.events:
                self.events.append(("COMM_EST", qp.qpn))
            qp.responder.request(packet)
        return True

    def _filter(self, packet):
        """Row of errors.py that drops a packet before its QP sees it, or None."""
        opcode, qp = op.OPCODES.get(packet.opcode), self.qps.get(packet.dest_qpn)
        if packet.dst_mac != self.mac and not packet.dst_mac[0] & 1:
            return "DST_MAC"
        if not packet.ip_checksum_ok:
            return "IP_CHECKSUM"
        if self.profile.check_udp_checksum and not packet.udp_checksum_ok:
            return "IP_CHECKSUM"
        if not packet.icrc_ok:
            return "ICRC"
        if packet.tver != op.TVER:
            return "TVER"
        if opcode is None:
            return "OPCODE_UNKNOWN"
        if qp is None:
            return "QPN_UNKNOWN"
        if opcode.transport == "CNP":
            return "CNP_IGNORED"
        if qp.state not in QPS_RECEIVE or (opcode.is_response and qp.state == QPS_RTR):
            return "QP_STATE"
        if opcode.transport != qp.qp_type:
            return "TRANSPORT_CLASS"
        if not pkey_match(packet.pkey, qp.pkey):
            return "PKEY"
        if vid(packet.vlan) != vid(qp.vlan):
            return "VLAN"
        if packet.src_ip == qp.src_ip and not self.admit_own:
            return "MARTIAN"
        if qp.qp_type == "UD":
            if packet.dst_ip not in self.gids:
                return "GID"
            if packet.qkey != qp.qkey:
                return "QKEY"
        elif packet.src_ip != qp.dst_ip or packet.dst_ip != qp.src_ip:
            return "ADDRESS"
        return None

    def tx(self, now=None):
        """Frames to send now, in order."""
        self.now = self.now if now is None else now
        for qp in self.qps.values():
            if qp.requester is not None:
                qp.requester.pump(self.now)
        frames = list(self.frames)
        self.frames.clear()
        return frames

    def tick(self, now):
        """Let timers expire; tx() then gives what they cause."""
        self.now = now
        for qp in self.qps.values():
            if qp.requester is not None:
                qp.requester.tick(now)

    def next_deadline(self):
        """Time of the earliest timer, None where none runs."""
        times = [qp.requester.deadline() for qp in self.qps.values() if qp.requester is not None]
        return min((t for t in times if t is not None), default=None)

    # For the halves of a QP -----------------------------------------------------------------------

    def send(self, qp, address=None, **fields):
        """Queue a packet of a QP; `address` replaces the QP's L2 and L3 fields (UD)."""
        route = {"dst_mac": qp.dst_mac, "src_mac": qp.src_mac, "vlan": qp.vlan, "src_ip": qp.src_ip,
                 "dst_ip": qp.dst_ip, "tos": qp.tos, "ttl": qp.ttl, "flow_label": qp.flow_label}
        if address:
            route.update(address)
        route["ip_version"] = 4 if len(route["dst_ip"]) == 4 else 6
        if route["ip_version"] == 4:
            route["flow_label"] = 0
            route["ip_id"] = self.ip_id
            self.ip_id = (self.ip_id + 1) & 0xffff
        fields.setdefault("dest_qpn", qp.dest_qpn)
        self.frames.append(Packet(**route, sport=qp.sport, pkey=qp.pkey, **fields).build())

    def count(self, row):
        """One more of a row of errors.py."""
        self.counters[ERRORS[row].name] += 1

    def refuse(self, row, packet=None):
        """A frame dropped before any QP."""
        self.count(row)
        self.refusals.append((row, packet))

    def fail(self, qp, row):
        """To ERR: flush both queues, in order; one event."""
        if qp.state == QPS_ERR:
            return
        qp.state = QPS_ERR
        if row is not None:
            self.events.append(("QP_FATAL", qp.qpn))
        if qp.requester is not None:
            qp.requester.flush()
        self._flush_receives(qp)

    def _flush_receives(self, qp):
        if qp.responder is not None and qp.responder.receive is not None:
            qp.receives.appendleft(qp.responder.receive)
            qp.responder.receive = None
        while qp.receives:
            receive = qp.receives.popleft()
            qp.complete(Completion(receive.wr_id, WC_WR_FLUSH_ERR, WC_RECV, qp.qpn, row="FLUSH"))
