# SPDX-License-Identifier: BSD-2-Clause
"""One RC queue pair with its buffer on the guest's RoCE device, by pyverbs.

Names of statuses, opcodes and attributes are those of libibverbs. Data travels as hex.
"""
import ipaddress
import os

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute, GID
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

DEVICE   = "rxe_eth0"
SYS      = f"/sys/class/infiniband/{DEVICE}/ports/1"
DEPTH    = 32
ACCESS   = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
OPCODES  = {"SEND": e.IBV_WR_SEND, "WRITE": e.IBV_WR_RDMA_WRITE, "READ": e.IBV_WR_RDMA_READ}
STATUSES = {getattr(e, name): name[7:] for name in dir(e) if name.startswith("IBV_WC_")
            and (name.endswith("_ERR") or name == "IBV_WC_SUCCESS")}
WC_NAMES = {e.IBV_WC_SEND: "SEND", e.IBV_WC_RDMA_WRITE: "WRITE", e.IBV_WC_RDMA_READ: "READ", e.IBV_WC_RECV: "RECV"}
STATES   = ("RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR")

context  = Context(name=DEVICE)
qps      = {}


def _gid_of(ip):
    return ipaddress.IPv6Address("::ffff:" + ip).exploded

def _gid_index(gid):
    for index in range(16):
        with open(f"{SYS}/gids/{index}") as file:
            if file.read().strip() == gid:
                return index
    raise ValueError(f"no GID {gid} on {DEVICE}")

class GuestQP:
    """A QP, its PD, CQ and one buffer of `length` bytes registered for local and remote access."""
    def __init__(self, length):
        self.pd = PD(context)
        self.cq = CQ(context, 4*DEPTH)
        self.mr = MR(self.pd, length, ACCESS)
        cap     = QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH, max_send_sge=1, max_recv_sge=1)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, sq_sig_all=1, cap=cap))

    def sge(self, offset, length):
        """Scatter/gather list of one entry (pyverbs wants one for no bytes, too)."""
        return [SGE(self.mr.buf + offset, length, self.mr.lkey)]

    def close(self):
        """Give everything back, users first."""
        for thing in (self.qp, self.mr, self.cq, self.pd):
            thing.close()

def open_qp(length):
    """Make a QP in RESET with a zeroed buffer: its qpn, rkey and va."""
    new = GuestQP(length)
    new.mr.write(bytes(length), length)
    qps[new.qp.qp_num] = new
    return {"qpn": new.qp.qp_num, "rkey": new.mr.rkey, "va": new.mr.buf}

def connect(qpn, remote_qpn, remote_ip, local_ip, sq_psn, rq_psn, pmtu, timeout, retry_cnt, rnr_retry, min_rnr_timer):
    """RESET to RTS towards a remote QP; times are verbs' codes."""
    attr = QPAttr(port_num=1)
    attr.qp_access_flags, attr.pkey_index = ACCESS, 0
    attr.dest_qp_num, attr.path_mtu       = remote_qpn, pmtu.bit_length() - 8
    attr.rq_psn, attr.sq_psn              = rq_psn, sq_psn
    attr.min_rnr_timer, attr.timeout      = min_rnr_timer, timeout
    attr.retry_cnt, attr.rnr_retry        = retry_cnt, rnr_retry
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 4
    route = GlobalRoute(dgid=GID(_gid_of(remote_ip)), sgid_index=_gid_index(_gid_of(local_ip)), hop_limit=64)
    attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
    qps[qpn].qp.to_rts(attr)

def close_qp(qpn):
    """Destroy a QP and its buffer."""
    qps.pop(qpn).close()

def post_receive(qpn, wr_id, offset, length):
    """One receive into the buffer."""
    own = qps[qpn]
    own.qp.post_recv(RecvWR(wr_id=wr_id, sg=own.sge(offset, length), num_sge=1))

def post_send(qpn, wr_id, opcode, offset, length, remote_va, rkey):
    """One signalled SEND, WRITE or READ."""
    own = qps[qpn]
    wr  = SendWR(wr_id=wr_id, opcode=OPCODES[opcode], num_sge=1, sg=own.sge(offset, length), send_flags=e.IBV_SEND_SIGNALED)
    if opcode != "SEND":
        wr.set_wr_rdma(rkey, remote_va)
    own.qp.post_send(wr)

def poll(qpn):
    """Completions that are there, without waiting."""
    found = []
    while True:
        count, entries = qps[qpn].cq.poll(8)
        for wc in entries:
            found.append({"wr_id": wc.wr_id, "status": STATUSES.get(wc.status, str(wc.status)),
                          "opcode": WC_NAMES.get(wc.opcode, str(wc.opcode)), "byte_len": wc.byte_len})
        if not count:
            return found

def read(qpn, offset, length):
    """Bytes of the buffer in hex."""
    data = qps[qpn].mr.read(length, offset)
    return (data if isinstance(data, bytes) else data.encode("latin1")).hex()

def write(qpn, offset, data):
    """Put bytes, given in hex, into the buffer."""
    data = bytes.fromhex(data)
    qps[qpn].mr.write(data, len(data), offset)

def state(qpn):
    """State of the QP by name."""
    return STATES[qps[qpn].qp.query(e.IBV_QP_STATE)[0].qp_state]

def counters():
    """Hardware counters of the device by name."""
    values = {}
    for name in sorted(os.listdir(f"{SYS}/hw_counters")):
        if name != "lifespan":
            with open(f"{SYS}/hw_counters/{name}") as file:
                values[name] = int(file.read())
    return values
