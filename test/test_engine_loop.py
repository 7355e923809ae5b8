# SPDX-License-Identifier: BSD-2-Clause
"""Two local QPs, an unrelated one and a flood of foreign frames on the compiled engine."""
import pytest

from roce_soc import abi, verbs
from sim.engine import IPS, MACS, Bench

VA      = 0x10000000
COUNT   = 30
LENGTH  = 256
CLOCKS  = 8000
FOREIGN = b"\xff"*12 + b"\x88\xb5" + bytes(46)      # for the slow path, one beat.


@pytest.mark.parametrize("flood", [False, True])
def test_loop_in_a_flood(seed, flood):
    """A foreign frame in every clock keeps local frames waiting, and nobody else: all others leave; then the local ones end."""
    bench  = Bench(seed=seed, tick_cycles=1)
    engine = bench.engines[0]
    mr     = engine.roce.reg_mr(VA, 1 << 20, access=verbs.ACCESS_LOCAL_WRITE | verbs.ACCESS_REMOTE_WRITE)

    def make(**attributes):
        cq = engine.roce.create_cq(8)
        return engine.roce.create_qp(cq, cq, **{**dict(sq_log2=6, rq_log2=1, src_mac=MACS[0], dst_mac=MACS[1], src_ip=IPS[0],
            dst_ip=IPS[1], dest_qpn=0x300, sq_psn=0, rq_psn=0, timeout=0, pmtu=3), **attributes})
    a, b, other = make(dst_mac=MACS[0], dst_ip=IPS[0]), make(dst_mac=MACS[0], dst_ip=IPS[0]), make()
    a.attributes["dest_qpn"], b.attributes["dest_qpn"] = b.qpn, a.qpn
    for qp in (a, b, other):
        for state in (abi.QP_INIT, abi.QP_RTR, abi.QP_RTS):
            qp.modify(state)
    if flood:
        for _ in range(2*CLOCKS):
            engine.send(FOREIGN)
        bench.step(500)
        engine.slow_out.recv_all()
    for wr_id in range(COUNT):
        a.post_send(verbs.WR_RDMA_WRITE, mr, va=VA, length=LENGTH, remote_va=VA + 0x8000, rkey=mr.rkey, wr_id=wr_id, ring=False)
        other.post_send(verbs.WR_RDMA_WRITE, mr, va=VA, length=LENGTH, remote_va=0, rkey=1, wr_id=wr_id, ring=False)
    a.ring_send()
    other.ring_send()
    bench.step(CLOCKS)
    assert len(engine.frames()) == COUNT
    bench.step(2*CLOCKS)
    assert [(e["wr_id"], e["status"]) for e in a.send_cq.poll()] == [(n, 0) for n in range(COUNT)]
