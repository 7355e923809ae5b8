# SPDX-License-Identifier: BSD-2-Clause
"""Latencies of sim/bench.py: B4 to B7 on one engine, the bench is the peer.

Clocks from the last beat in (B4: the doorbell, or the last word of the push) to the first beat out. The memory of the
bench answers in 4 clocks. B6 and B7 leave its latency out: each is measured with a slower memory too, what a clock of
latency costs is taken off.
"""
from collections.abc import Callable

from roce_soc import opcodes, verbs
from roce_soc.common import DEFAULT_QPS
from roce_soc.transport.retire.timer import SCAN_CYCLES
from sim.bench_rows import B5_SIZES, B6_SIZES, B7_ROWS, Row, Say, latencies, row
from sim.engine import IPS, MACS, Bench
from sim.harness.memory import IDEAL
from software.control.roce import QP
from test.model.packet import Packet, parse

BUFFERS = 0x1000_0000
REMOTE  = 0x2000_0000
NAKS    = 5                 # measurements of B7, each a clock later against the engine's timers.
SLOWER  = 20                # clocks of memory latency of the second measurement.


def ack(qp: QP, psn: int, syndrome: int = opcodes.ACK_UNLIMITED) -> bytes:
    """An ACK or NAK of the peer for `psn`."""
    return Packet(opcode=opcodes.RC_ACKNOWLEDGE, dst_mac=MACS[0].to_bytes(6, "big"), src_mac=MACS[1].to_bytes(6, "big"),
        src_ip=IPS[1].to_bytes(4, "big"), dst_ip=IPS[0].to_bytes(4, "big"), dest_qpn=qp.qpn, psn=psn & opcodes.PSN_MASK,
        syndrome=syndrome, msn=0).build(pad_frame=True)


class Latency:
    """One QP of one engine."""
    def __init__(self, seed: int) -> None:
        self.bench  = Bench(seed=seed, memory=IDEAL)
        self.engine = engine = self.bench.engines[0]
        cq          = engine.roce.create_cq(8)
        self.mr     = engine.roce.reg_mr(BUFFERS, 1 << 20, access=7)
        self.qp     = qp = engine.roce.create_qp(cq, cq, src_mac=MACS[0], dst_mac=MACS[1], src_ip=IPS[0], dst_ip=IPS[1],
            pmtu=5, dest_qpn=0x1000, sq_psn=0, rq_psn=0, timeout=0)
        for state in (1, 2, 3):
            qp.modify(state)
        self.psn = 0

    def request(self, opcode: int, size: int) -> bytes:
        """A WRITE or READ request of the peer for `size` bytes."""
        packet = Packet(opcode=opcode, dst_mac=MACS[0].to_bytes(6, "big"), src_mac=MACS[1].to_bytes(6, "big"),
            src_ip=IPS[1].to_bytes(4, "big"), dst_ip=IPS[0].to_bytes(4, "big"), dest_qpn=self.qp.qpn, psn=self.psn,
            ackreq=1, rkey=self.mr.rkey, dma_length=size, va=BUFFERS + 64,
            payload=bytes(0 if opcode == opcodes.RC_READ_REQUEST else size))
        self.psn += 1
        return packet.build(pad_frame=True)

    def answer(self, frame: bytes) -> int:
        """Clocks from the last beat of `frame` to the first beat of the next frame out."""
        self.engine.frames()
        self.engine.rx.times()
        self.engine.send(frame)
        self.bench.sim.until(self.engine.tx, 1, max_cycles=5000)
        out = self.engine.tx.recv()
        return out.first - self.engine.rx.times()[-1][2]

    def doorbell(self, push: bool) -> int:
        """B4: doorbell to the first beat of an inline WRITE that is pushed, or read from its ring."""
        self.engine.frames()
        self.qp.post_send(verbs.WR_RDMA_WRITE, inline=bytes(64), remote_va=REMOTE, rkey=1, push=push)
        self.bench.sim.until(self.engine.tx, 1, max_cycles=5000)
        frame = self.engine.tx.recv()
        self.engine.send(ack(self.qp, parse(frame.data).psn))
        self.bench.step(300)
        return frame.first - self.engine.rang

    def write(self, size: int) -> int:
        """B5: clocks of a WRITE of `size` bytes."""
        clocks = self.answer(self.request(opcodes.RC_WRITE_ONLY, size))
        self.bench.step(300)
        return clocks

    def read(self, size: int) -> int:
        """B6: clocks of a READ of `size` bytes."""
        clocks = self.answer(self.request(opcodes.RC_READ_REQUEST, size))
        self.bench.step(500)
        return clocks

    def nak(self, size: int, acknowledged: int) -> int:
        """B7: the first of the WRITEs that are not acknowledged by the NAK is sent again; the worst of some."""
        return max(self._nak(size, acknowledged, wait) for wait in range(NAKS))

    def _nak(self, size: int, acknowledged: int, wait: int) -> int:
        bench, engine, qp = self.bench, self.engine, self.qp
        for _ in range(acknowledged + 1):
            qp.post_send(verbs.WR_RDMA_WRITE, self.mr, va=BUFFERS, length=size, remote_va=REMOTE, rkey=1)
        bench.step(100*acknowledged + 300)
        self.behind_the_scanner()
        bench.step(wait)
        psn    = parse(engine.frames()[-1]).psn
        clocks = self.answer(ack(qp, psn, opcodes.NAK_PSN_SEQUENCE))
        bench.step(500)
        engine.send(ack(qp, psn))
        bench.step(300)
        qp.send_cq.poll()
        return clocks

    def behind_the_scanner(self) -> None:
        """Runs on until the timer scanner has just passed the QP: its visit, one in thousand clocks, would hold up an answer by
        up to 5 clocks, and whether it does would hang on every clock of the set-up."""
        number, = self.bench.sim.registers(r"\.scanner\.qpi$").values()
        self.bench.step(SCAN_CYCLES*((self.qp.index + 8 - number) % DEFAULT_QPS))

    def without_memory(self, measure: Callable[..., int], *args: int) -> tuple[float, float]:
        """(clocks of `measure` less the memory's latency, what a clock of latency costs)."""
        memory = self.engine.memory
        clocks = measure(*args)
        memory.set(latency=SLOWER)
        slower = measure(*args)
        memory.set(latency=IDEAL["latency"])
        cost = (slower - clocks)/(SLOWER - IDEAL["latency"])
        return clocks - cost*IDEAL["latency"], cost


def b4_to_b7(seed: int, say: Say) -> list[Row]:
    """Rows of latencies()."""
    say("B4 to B7")
    side  = Latency(seed)
    found: list[tuple[float, dict[str, float]]] = [(min(side.doorbell(push) for _ in range(3)), {}) for push in (True, False)]
    found += [(side.write(size), {}) for size in B5_SIZES]
    for measure, cases in ((side.read, [(size,) for size in B6_SIZES]), (side.nak, B7_ROWS)):
        for case in cases:
            clocks, cost = side.without_memory(measure, *case)
            found.append((clocks, dict(memory_reads=cost)))
    return [row(name, what, clocks, "clocks", must, **more)
        for (name, what, must), (clocks, more) in zip(latencies(), found)]
