# SPDX-License-Identifier: BSD-2-Clause
"""The reference model as the guest's far end: proves the guest's side without any gateware."""
import time

from roce_soc import verbs
from test.interop.engine import Completion, Engine, Region, arp_reply
from test.model.endpoint import Endpoint

OPCODES   = {"SEND": verbs.WR_SEND, "WRITE": verbs.WR_RDMA_WRITE, "READ": verbs.WR_RDMA_READ}
ACCESS    = verbs.ACCESS_LOCAL_WRITE | verbs.ACCESS_REMOTE_WRITE | verbs.ACCESS_REMOTE_READ
FIRST_QPN = 0x000111
FIRST_VA  = 0x7f00_0000_0000


class ModelEngine(Engine):
    """test/model's Endpoint, answering ARP itself as a port's slow path would."""
    name = "model"

    def __init__(self):
        self.endpoint = Endpoint(self.mac, self.ip)
        self.replies, self.regions, self.qps = [], [], 0

    def deliver(self, frame):
        if not self.endpoint.rx(frame, time.monotonic_ns()):
            reply = arp_reply(frame, self.endpoint.mac, self.endpoint.gids[0])
            self.replies += [reply] if reply else []

    def collect(self):
        now = time.monotonic_ns()
        self.endpoint.tick(now)
        frames, self.replies = self.replies + self.endpoint.tx(now), []
        return frames

    def reg_mr(self, length):
        va     = FIRST_VA + sum(region.length for region in self.regions)
        region = self.endpoint.reg_mr(va, length, ACCESS)
        self.regions.append(region)
        return Region(va, length, region.key, region.key)

    def create_qp(self):
        qpn, self.qps = FIRST_QPN + self.qps, self.qps + 1
        self.endpoint.create_qp(qpn, "RC", state=verbs.QPS_RESET)
        return qpn

    def connect(self, qpn, remote):
        modify = self.endpoint.modify_qp
        modify(qpn, verbs.QPS_INIT, access=ACCESS, dst_mac=remote.mac, dst_ip=remote.ip, dest_qpn=remote.qpn,
               pmtu=remote.pmtu, rq_psn=remote.rq_psn, min_rnr_timer=remote.min_rnr_timer)
        modify(qpn, verbs.QPS_RTR)
        modify(qpn, verbs.QPS_RTS, sq_psn=remote.sq_psn, timeout=remote.timeout, retry_cnt=remote.retry_cnt,
               rnr_retry=remote.rnr_retry)

    def destroy_qp(self, qpn):
        self.endpoint.modify_qp(qpn, verbs.QPS_RESET)
        self.endpoint.destroy_qp(qpn)

    def post_receive(self, qpn, wr_id, va, length, lkey):
        self.endpoint.post_recv(qpn, wr_id, va, length, lkey)

    def post_send(self, qpn, wr_id, opcode, va, length, lkey, remote_va=0, rkey=0):
        self.endpoint.post_send(qpn, wr_id, OPCODES[opcode], va=va, length=length, lkey=lkey, remote_va=remote_va, rkey=rkey)

    def poll(self, qpn):
        return [Completion(c.wr_id, verbs.WC_STATUS_NAMES[c.status], verbs.WC_OPCODE_NAMES[c.opcode], c.byte_len)
                for c in self.endpoint.poll_cq(qpn)]

    def _region(self, va, length):
        return next(r for r in self.regions if r.va <= va and va + length <= r.va + r.length)

    def read(self, va, length):
        return self._region(va, length).read(va, length)

    def write(self, va, data):
        self._region(va, len(data)).write(va, data)

    def counters(self):
        return dict(self.endpoint.counters)
