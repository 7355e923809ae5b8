# SPDX-License-Identifier: BSD-2-Clause
"""Responder, reply scheduler, receive queues, MR table and QP context joined, with Python as buffer, placer and wire."""
import random

from litex.gen import *
from litex.soc.interconnect import stream
from migen import *

from roce_soc import abi
from roce_soc.common import CTL_START, OWNER_ACK, OWNER_RESPONDER, connection_layout, place_description
from roce_soc.errors import BY_INDEX
from roce_soc.memory.mr import MRTable
from roce_soc.opcodes import OPCODES, by_name, packets
from roce_soc.qp.context import QPContext
from roce_soc.queue.rq import ReceiveQueues
from roce_soc.transport.reply.reply import RoCEReply
from roce_soc.transport.responder.responder import RoCEResponder
from sim.harness import Sim, build
from sim.harness.memory import IDEAL

N_QPS = 16
NAMES = {o.value: o.name[3:] for o in OPCODES.values() if o.transport == "RC"}


class ResponderSide(LiteXModule):
    """The responder's half of the engine without buffer, placer, fetcher and wire."""
    def __init__(self, n_qps=N_QPS):
        self.mr        = MRTable(64, patience=5000)
        self.context   = QPContext(n_qps)
        self.rq        = ReceiveQueues(n_qps)
        self.reply     = RoCEReply(n_qps)
        self.responder = RoCEResponder(n_qps, self.context.get_port(), self.mr.get_port(), self.rq, self.reply)
        self.reply.connect_mr(self.mr.get_port())
        self.ready = Signal()
        self.comb += [
            self.ready.eq(self.mr.ready & self.context.ready & self.rq.ready & self.reply.ready & self.responder.ready),
        ]


        # A region whose pages are not on chip; 0: none. A page that comes.
        self.absent, self.page = Signal(32), Signal()
        self.comb += [
            self.mr.missing.eq((self.mr.judged.key == self.absent) & (self.absent != 0)),
            self.mr.wake.eq(self.page),
        ]

        # A completion queue that has room, or not.
        self.cq_full = Signal()
        cqe = self.responder.cqe
        self.comb += [
            self.responder.outcome.valid.eq(cqe.valid & cqe.ready & (cqe.status == 0)),
            self.responder.outcome.lost.eq(self.cq_full),
        ]
        # Mirrors: a field that nothing drives is 0 there instead of an input of the model.
        self.outputs = {}
        for name, source in (
            ("place", self._placements()), ("cqe", self.responder.cqe), ("established", self.responder.established), ("event", self.responder.event),
            ("refusal", self.responder.refusal), ("miss", self.reply.refusal), ("bad_bell", self.rq.refusal),
            ("control", self.reply.control), ("reads", self.reply.reads), ("dq_rcmd", self.rq.rcmd)):
            self.outputs[name] = stream.Endpoint(source.description)
            self.comb += source.connect(self.outputs[name])


    def _placements(self):
        """Place records with their addresses; length 0 where nothing is to be written, `keep` where the packet stays."""
        place, where = self.responder.place, self.responder.where
        joined, waits = stream.Endpoint(place_description().payload_layout + [("keep", 1)]), Signal()
        self.comb += [
            waits.eq(place.length != 0),
            place.connect(joined, omit={"valid", "ready", "length", "target", "addr"}),
            joined.keep.eq(waits & where.keep),
            joined.valid.eq(place.valid & (where.valid | ~waits)),
            If(waits, joined.target.eq(where.target), joined.addr.eq(where.addr)),
            If(where.write | ~waits, joined.length.eq(place.length)),
            place.ready.eq(joined.valid & joined.ready),
            where.ready.eq(joined.valid & joined.ready & waits),
        ]
        return joined

    def ports(self):
        responder, rq = self.responder, self.rq
        return {
            **self.outputs,
            "packet": responder.sink, "ctl": responder.ctl, "done": responder.place_done, "sent": self.reply.sent,
            "dq_rdata": rq.rdata, "bell": rq.doorbell, "rqwrite": rq.write, "mrwrite": self.mr.write, "row": self.context.write,
            "ready": self.ready, "parked": responder.entry.parked, "cq_full": self.cq_full, "absent": self.absent, "page": self.page,
            "free": responder.execute.deferred.free, "reply_free": self.reply.send.deferred.free}


def compiled():
    top = ResponderSide()
    return build(top, top.ports(), name="responder")


# Bench --------------------------------------------------------------------------------------------

QUIET = dict(gap=0.0, stall=0.0)
DEFAULT_ROW = dict(qp_type=abi.QP_TYPE_RC, state=abi.QP_RTR, pmtu=1, access=15, pd=7, recv_cq=5, send_cq=4, min_rnr_timer=12,
                   max_dest_rd_atomic=16, pkey=0xffff)
RKEY, LKEY   = 0x0111, 0x0222                 # MR 1: remote, MR 2: receive buffers.
REMOTE_VA, REMOTE_ADDR = 0x7f00_0000_1000, 0x10_0000
LOCAL_VA,  LOCAL_ADDR  = 0x5500_0000_0000, 0x20_0000
REGION       = 0x8_0000
RING_ADDR    = 0x40_0000


class Bench:
    """QPs 0 ... N_QPS-1, each with its receive queue of the same number (64 slots); all memory behind one model."""
    def __init__(self, so, seed=1, gap=0.0, stall=0.0, hold=0, **memory):
        self.sim = sim = Sim(so, seed=seed)
        self.rnd = random.Random(seed)
        self.packet, self.ctl, self.done, self.sent, self.bell, self.rqwrite, self.mrwrite, self.row = (
            sim.source(n) for n in ("packet", "ctl", "done", "sent", "bell", "rqwrite", "mrwrite", "row"))
        self.packet.set(gap=gap)
        self.established = sim.sink("established")
        self.place, self.cqe, self.event, self.refusal, self.miss, self.control, self.reads, self.bad_bell = (
            sim.sink(n) for n in ("place", "cqe", "event", "refusal", "miss", "control", "reads", "bad_bell"))
        for sink in (self.place, self.cqe, self.event, self.control, self.reads):
            sink.set(stall=stall)
        self.memory = sim.memory("dq", **{**IDEAL, **memory})
        self.hold   = hold                # clocks a placement may take at most.
        self.payloads, self.slot = {}, 0
        self.tx, self.cqes, self.events, self.refusals, self.places = [], [], [], [], []
        self.place_error = self.read_error = lambda record: 0
        self.qps, self.posted, self.pages = {}, [0]*N_QPS, {}
        sim.reset()
        sim.wait("ready", 1)
        self.region(RKEY, 2 | 4 | 1, REMOTE_VA, REMOTE_ADDR)
        self.region(LKEY, 1, LOCAL_VA, LOCAL_ADDR)
        self.memory.write(REMOTE_ADDR, bytes(REGION))
        self.memory.write(LOCAL_ADDR, bytes(REGION))

    # Set-up.

    def region(self, key, access, va, addr, length=REGION, pd=7, wait=True, **fields):
        self.mrwrite.send(**{**dict(valid_row=1, index=key >> 8, variant=key & 255, access=access, pd=pd, va=va, length=length,
                                    addr=addr, target=0), **fields})
        while self.mrwrite.pending and wait:
            self.run(4)
        self.run(4)

    def connection(self, qpi, **fields):
        """Writes the connection row."""
        values = {**DEFAULT_ROW, "qpn": 0x100 + qpi, "rq_index": qpi, **fields}
        number, at = 0, 0
        for name, width in connection_layout():
            number |= values.pop(name, 0) << at
            at += width
        assert not values, values
        self.row.send(index=qpi, row=number)
        self.sim.drain(self.row)

    def control_qp(self, qpi, op, psn=0, steps=20000):
        self.ctl.send(qpi=qpi, op=op, psn=psn)
        for _ in range(steps//4):
            if not self.ctl.pending:
                return
            self.run(4)
        raise AssertionError(f"ctl {op} not done{self.sim.state()}")

    def qp(self, qpi, psn=100, ring=True, log2=6, **fields):
        """A QP in RTR that expects `psn`."""
        self.connection(qpi, **fields)
        if ring:
            self.rqwrite.send(index=qpi, enable=1, log2=log2, target=0, page=qpi, addr=RING_ADDR + 0x2000*qpi)
            self.sim.drain(self.rqwrite)
            self.posted[qpi] = 0
        self.control_qp(qpi, CTL_START, psn)
        self.qps[qpi] = psn

    def post(self, qpi, length=4096, va=None, lkey=LKEY, wr_id=None, num_sge=1, ring=True, log2=6):
        """Posts one receive; returns its wr_id."""
        slot  = self.posted[qpi] % (1 << log2)
        wr_id = (qpi << 32 | self.posted[qpi]) if wr_id is None else wr_id
        va    = LOCAL_VA + 0x1000*slot if va is None else va
        self.memory.write(RING_ADDR + 0x2000*qpi + 64*slot, abi.pack(
            abi.RECV_WQE, 64, wr_id=wr_id, num_sge=num_sge, va=va, length=length, lkey=lkey))
        self.posted[qpi] += 1
        if ring:
            self.ring(qpi)
        return wr_id

    def ring(self, qpi, page=None):
        """A doorbell and the clocks it takes: a packet sent behind it finds what was posted."""
        self.bell.send(kind=1, page=qpi if page is None else page, queue=qpi, index=self.posted[qpi] & 0xffff)
        self.sim.drain(self.bell)
        self.sim.step(4)

    # Packets.

    def send(self, qpi, opcode, data=b"", psn=None, count=1, **fields):
        """One request; without `psn` the next of the QP. `count`: PSNs it takes."""
        if psn is None:
            psn = self.qps[qpi]
            self.qps[qpi] = (psn + count) & 0xffffff
        record = dict(qpi=qpi, qpn=0x100 + qpi, opcode=by_name("RC_" + opcode).value, psn=psn, length=len(data), pad=-len(data) & 3)
        if data:
            self.slot = (self.slot + 1) % 1024
            self.payloads[self.slot] = bytes(data)
            record.update(has_slot=1, slot=self.slot, offset=self.rnd.randrange(64))
        record.update(fields)
        self.packet.send(**record)
        return psn

    def message(self, qpi, kind, data, pmtu=256, ackreq=1, imm=None, **fields):
        """SEND or WRITE of any length; fields: RETH."""
        chunks = [data[n:n + pmtu] for n in range(0, len(data), pmtu)] or [b""]
        reth   = dict(dma_length=len(data), **fields) if kind == "WRITE" else fields
        for n, chunk in enumerate(chunks):
            first, last = n == 0, n == len(chunks) - 1
            place  = "ONLY" if first and last else "FIRST" if first else "LAST" if last else "MIDDLE"
            suffix = "_IMM" if last and imm is not None else ""
            extra  = dict(reth) if first else {}
            if last:
                extra.update(ackreq=ackreq, imm=imm or 0)
            self.send(qpi, f"{kind}_{place}{suffix}", chunk, **extra)

    def write(self, qpi, data, offset=0, **fields):
        self.message(qpi, "WRITE", data, va=REMOTE_VA + offset, rkey=RKEY, **fields)

    def read(self, qpi, length, offset=0, pmtu=256, psn=None, **fields):
        return self.send(qpi, "READ_REQUEST", psn=psn, count=packets(length, pmtu),
                         **{**dict(va=REMOTE_VA + offset, rkey=RKEY, dma_length=length), **fields})

    # Running.

    def run(self, cycles=200, every=4):
        """Steps; plays buffer, placer and transmitter."""
        for _ in range(0, cycles, every):
            self.sim.step(every)
            self.serve()

    def serve(self):
        for record in self.place.recv_all():
            self.places.append(record)
            error = self.place_error(record)
            if record.has_slot:
                data = self.payloads[record.slot]
                if not record.keep:
                    del self.payloads[record.slot]
                if record.length and not error:
                    assert record.length == len(data)
                    self.memory.write(record.addr, data, record.target)
            self.done.send(err=error, idle=self.rnd.randrange(self.hold + 1))
        for name, sink in (("control", self.control), ("reads", self.reads)):
            for packet in sink.recv_all():
                error = 0
                if not packet.marker:
                    error = self.read_error(packet)
                    if not error:
                        data = self.memory.read(packet.addr, packet.length, packet.target) if packet.length else b""
                        self.tx.append((packet.qpi, NAMES[packet.opcode], packet.psn, packet, data))
                    assert packet.owner == (OWNER_ACK if name == "control" else OWNER_RESPONDER)
                self.sent.send(owner=packet.owner, marker=packet.marker, qpi=packet.qpi, psn=packet.psn, err=error)
        self.cqes     += self.cqe.recv_all()
        self.events   += self.event.recv_all()
        self.refusals += [BY_INDEX[r.row].name for r in self.refusal.recv_all() + self.miss.recv_all() + self.bad_bell.recv_all()]

    def absent(self, key=0):
        """The pages of this region are not on chip from now on; without one all are, and who waits is told."""
        self.sim.poke("absent", key)
        if not key:
            self.sim.poke("page", 1)
            self.run(4, every=1)
            self.sim.poke("page", 0)

    def take(self, name):
        out = getattr(self, name)
        setattr(self, name, [])
        return out

    def answers(self):
        """Takes what was sent: (kind, psn, syndrome or data length, msn)."""
        return [("ACK" if name == "ACKNOWLEDGE" else name.replace("READ_RESPONSE_", "READ_"), psn,
                 packet.syndrome if name == "ACKNOWLEDGE" else len(data), packet.msn)
                for _, name, psn, packet, data in self.take("tx")]

    def idle(self):
        """Nothing is left anywhere: every packet left as one placement, nothing is parked."""
        for _ in range(100):
            self.run(400)
            if not (self.payloads or self.packet.pending or self.done.pending):
                break
        self.run(200)
        assert not self.payloads and not self.packet.pending and not self.done.pending
        assert self.sim.peek("parked") == 0
        assert (self.sim.peek("free"), self.sim.peek("reply_free")) == (256, 256)
