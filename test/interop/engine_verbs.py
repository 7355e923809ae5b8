# SPDX-License-Identifier: BSD-2-Clause
"""An engine of ours behind software/control: commands, rings, doorbells, completions."""
from roce_soc import abi, opcodes, verbs
from roce_soc.errors import ERRORS
from software.control.monitor import Monitor
from software.control.roce import CommandError
from test.interop.engine import Completion, Engine, EngineError, Region
from test.model.packet import ip as ip_bytes
from test.model.packet import mac as mac_bytes

OPCODES = {"SEND": verbs.WR_SEND, "WRITE": verbs.WR_RDMA_WRITE, "READ": verbs.WR_RDMA_READ}
ACCESS  = verbs.ACCESS_LOCAL_WRITE | verbs.ACCESS_REMOTE_WRITE | verbs.ACCESS_REMOTE_READ
VA_BIAS = 0x7f12_3000_0000   # virtual addresses differ from where the bytes lie.


def number(data):
    """Bytes of the wire as a number."""
    return int.from_bytes(data, "big")


class VerbsEngine(Engine):
    """Everything of an Engine but its wire and its start, over a software.control RoCE.

    Parameters
    ----------
    roce : software.control.roce.RoCE
    buffers : (first, last) physical addresses that regions may use.
    prefix : str
        What register names of the engine begin with.
    """
    def __init__(self, roce, buffers, prefix=""):
        self.roce, self.prefix = roce, prefix
        self.free, self.end = buffers
        self.regions, self.qps = [], {}

    def reg_mr(self, length):
        if self.free + length > self.end:
            raise EngineError(f"region must fit {self.end - self.free} bytes, not {length}")
        mr = self.roce.reg_mr(VA_BIAS + self.free, length, addr=self.free, access=ACCESS)
        self.free += -(-length//4096)*4096
        self.regions.append(mr)
        return Region(mr.va, length, mr.key, mr.key)

    def create_qp(self):
        cq = self.roce.create_cq()
        qp = self.roce.create_qp(cq, cq)
        self.qps[qp.qpn] = qp
        return qp.qpn

    def connect(self, qpn, remote):
        try:
            qp = self.qps[qpn]
            qp.modify(abi.QP_INIT, access=ACCESS, dest_qpn=remote.qpn, pmtu=opcodes.PMTU_CODES[remote.pmtu],
                      rq_psn=remote.rq_psn, min_rnr_timer=remote.min_rnr_timer,
                      dst_mac=number(mac_bytes(remote.mac)), dst_ip=number(ip_bytes(remote.ip)),
                      src_mac=number(mac_bytes(self.mac)), src_ip=number(ip_bytes(self.ip)))
            qp.modify(abi.QP_RTR)
            qp.modify(abi.QP_RTS, sq_psn=remote.sq_psn, timeout=remote.timeout, retry_cnt=remote.retry_cnt,
                      rnr_retry=remote.rnr_retry)
        except CommandError as error:
            raise EngineError(f"connect of qpn {qpn:#x}: {error}") from error

    def destroy_qp(self, qpn):
        self.qps.pop(qpn).modify(abi.QP_RESET)

    def post_receive(self, qpn, wr_id, va, length, lkey):
        self.qps[qpn].post_recv(va=va, length=length, wr_id=wr_id, lkey=lkey)

    def post_send(self, qpn, wr_id, opcode, va, length, lkey, remote_va=0, rkey=0):
        self.qps[qpn].post_send(OPCODES[opcode], va=va, length=length, wr_id=wr_id, lkey=lkey,
                                remote_va=remote_va, rkey=rkey)

    def poll(self, qpn):
        return [Completion(c["wr_id"], verbs.WC_STATUS_NAMES[c["status"]], verbs.WC_OPCODE_NAMES[c["opcode"]], c["byte_len"])
                for c in self.qps[qpn].send_cq.poll()]

    def _region(self, va, length):
        return next(mr for mr in self.regions if mr.va <= va and va + length <= mr.va + mr.length)

    def read(self, va, length):
        return self._region(va, length).read(va, length)

    def write(self, va, data):
        self._region(va, len(data)).write(data, va)

    def counter(self, index):
        """Counter of the engine by number: a row of errors.py."""
        return Monitor(self.roce.bus, f"{self.prefix}monitor_").counter(index)

    def counters(self):
        return {row.name: self.counter(row.index) for row in ERRORS.values()}
