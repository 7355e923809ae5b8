# SPDX-License-Identifier: BSD-2-Clause
"""The compiled engine wired to the reference model, with a wire that loses, doubles, swaps and corrupts."""
import random

from roce_soc import abi, verbs
from roce_soc.opcodes import PMTU_BYTES
from sim.engine import IPS, MACS, Bench
from test.model.endpoint import Endpoint

CYCLE_NS  = 4
ENGINE_VA = 0x1000_0000
MODEL_VA  = 0x5000_0000
REGION    = 1 << 20
ACCESS    = verbs.ACCESS_LOCAL_WRITE | verbs.ACCESS_REMOTE_WRITE | verbs.ACCESS_REMOTE_READ


class ModelBench:
    """An engine (address 1) and a model endpoint (address 2) with connected QPs.

    faults: probabilities {loss, duplicate, reorder, corrupt} of each frame, both ways.
    vary: function of the QP's number that gives attributes of its own.
    tick_cycles: clocks of the engine's tick; the model's clock runs at the same scale.
    memory, ports, targets, clocks: as Bench.
    bench: one that runs, its engine reset and opened again. parameters: of RoCECore.
    shared_cq: one completion queue for all QPs.
    """
    def __init__(self, seed=1, *, qps=1, tick_cycles=1, faults=None, memory=None, ports=None, targets=0, gap=0.0, stall=0.0, pmtu=3, vary=None,
                 shared_cq=False, clocks=None, bench=None, parameters=None, **attributes):
        self.bench  = bench or Bench(seed=seed, gap=gap, stall=stall, memory=memory, ports=ports, targets=targets, tick_cycles=tick_cycles,
            clocks=clocks, **(parameters or {}))
        self.engine = self.bench.engines[0]
        self.faults = faults or {}
        self.random = random.Random(seed)
        self.scale  = CYCLE_NS*64/tick_cycles
        self.model  = Endpoint(MACS[1].to_bytes(6, "big"), IPS[1].to_bytes(4, "big"))
        self.mr     = self.engine.roce.reg_mr(ENGINE_VA, REGION, access=ACCESS)
        self.region = self.model.reg_mr(MODEL_VA, REGION, ACCESS, key=0x777, pd=1)
        self.wire   = []             # (direction, frame) of all that was delivered.
        self.watch  = None           # called with each frame that left the engine.
        self.pairs  = []
        self.held   = {"to_model": None, "to_engine": None}
        for n in range(qps):
            cq  = self.pairs[0].send_cq if shared_cq and n else self.engine.roce.create_cq(8)
            qpn = 0x200 + n
            own = {**dict(sq_psn=0x1000*n + 5, rq_psn=0x2000*n + 9, timeout=9, pmtu=pmtu), **attributes, **(vary(n) if vary else {})}
            self.pairs.append(self.pair(cq, qpn, **own))

    def pair(self, cq, peer, **attributes):
        """A QP of the engine and one of the model, number `peer`, connected, in RTS; the engine's."""
        qp = self.engine.roce.create_qp(cq, cq, src_mac=MACS[0], dst_mac=MACS[1], src_ip=IPS[0], dst_ip=IPS[1], dest_qpn=peer, **attributes)
        for state in (abi.QP_INIT, abi.QP_RTR, abi.QP_RTS):
            qp.modify(state)
        a = qp.attributes
        self.model.create_qp(peer, "RC", dest_qpn=qp.qpn, dst_mac=MACS[0].to_bytes(6, "big"), src_mac=MACS[1].to_bytes(6, "big"),
            src_ip=IPS[1].to_bytes(4, "big"), dst_ip=IPS[0].to_bytes(4, "big"), pmtu=PMTU_BYTES[a["pmtu"]], sq_psn=a["rq_psn"], rq_psn=a["sq_psn"],
            timeout=a["timeout"], retry_cnt=a["retry_cnt"], rnr_retry=a["rnr_retry"], min_rnr_timer=a["min_rnr_timer"],
            max_rd_atomic=a["max_rd_atomic"], max_dest_rd_atomic=a["max_dest_rd_atomic"], access=ACCESS, pd=1)
        qp.peer = peer
        return qp

    @property
    def now(self):
        """Model time in ns."""
        return int(self.bench.sim.cycles()*self.scale)

    def _pass(self, way, frame, deliver):
        """One frame through the faulty wire."""
        rng, faults = self.random, self.faults
        if rng.random() < faults.get("loss", 0):
            return
        if rng.random() < faults.get("corrupt", 0):
            at    = rng.randrange(14, len(frame))
            frame = frame[:at] + bytes([frame[at] ^ 1 << rng.randrange(8)]) + frame[at + 1:]
        if rng.random() < faults.get("reorder", 0) and self.held[way] is None:
            self.held[way] = frame
            return
        for _ in range(2 if rng.random() < faults.get("duplicate", 0) else 1):
            self.wire.append((way, frame))
            deliver(frame)
        if self.held[way] is not None:
            late, self.held[way] = self.held[way], None
            self.wire.append((way, late))
            deliver(late)

    def exchange(self):
        """Frames of both sides cross the wire."""
        for frame in self.engine.frames():
            if self.watch:
                self.watch(frame)
            self._pass("to_model", frame, lambda f: self.model.rx(f, self.now))
        self.model.tick(self.now)
        for frame in self.model.tx(self.now):
            self._pass("to_engine", frame, lambda f: self.engine.send(f if len(f) >= 60 else f + bytes(60 - len(f))))

    def run(self, condition, max_cycles=2_000_000, every=50):
        """Lets both sides work until `condition()` holds."""
        end = self.bench.sim.cycles() + max_cycles + 10*self.bench.extra
        while not condition():
            assert self.bench.sim.cycles() < end, f"not reached in {max_cycles} clocks{self.bench.sim.state()}"
            self.bench.step(every)
            self.exchange()

    def settle(self, cycles=2000):
        """Lets both sides work for a while, longer with slow memory."""
        for _ in range((cycles + self.bench.extra)//50):
            self.bench.step(50)
            self.exchange()

    # Both directions in one vocabulary ------------------------------------------------------------

    def engine_sends(self, qp, operation, offset, length, **more):
        """The engine posts; same offset in both regions."""
        opcode = {"SEND": verbs.WR_SEND, "SEND_IMM": verbs.WR_SEND_WITH_IMM, "WRITE": verbs.WR_RDMA_WRITE, "WRITE_IMM": verbs.WR_RDMA_WRITE_WITH_IMM,
            "READ": verbs.WR_RDMA_READ}[operation]
        if operation not in ("WRITE", "READ"):
            self.model.post_recv(qp.peer, more.get("wr_id", 0), MODEL_VA + offset, max(length, 1), self.region.key)
        qp.post_send(opcode, self.mr, va=ENGINE_VA + offset, length=length, remote_va=MODEL_VA + offset, rkey=self.region.key, imm=0x11223344 if "IMM" in operation else 0, **more)

    def model_sends(self, qp, operation, offset, length, wr_id=0):
        """The model posts; same offset in both regions."""
        opcode = {"SEND": verbs.WR_SEND, "SEND_IMM": verbs.WR_SEND_WITH_IMM, "WRITE": verbs.WR_RDMA_WRITE, "WRITE_IMM": verbs.WR_RDMA_WRITE_WITH_IMM,
            "READ": verbs.WR_RDMA_READ}[operation]
        if operation not in ("WRITE", "READ"):
            qp.post_recv(self.mr, va=ENGINE_VA + offset, length=max(length, 1), wr_id=wr_id)
        self.model.post_send(qp.peer, wr_id, opcode, va=MODEL_VA + offset, length=length, lkey=self.region.key, remote_va=ENGINE_VA + offset, rkey=self.mr.rkey,
            imm=0x55667788)
