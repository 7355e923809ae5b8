# SPDX-License-Identifier: BSD-2-Clause
"""The reply scheduler between a responder, key checks and a transmit path of the test's choice."""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.common import CTL_START, OWNER_ACK, OWNER_RESPONDER
from roce_soc.opcodes import OPCODES
from roce_soc.transport.reply.reply import RoCEReply
from roce_soc.transport.responder.layout import REPLY_ACK, REPLY_CTL, REPLY_NAK, REPLY_READ
from sim.harness import Sim, build

N    = 16
NAME = {o.value: o.name[3:].replace("READ_RESPONSE_", "") for o in OPCODES.values() if o.transport == "RC"}


class Scheduler(LiteXModule):
    """The scheduler with outputs whose fields are all driven."""
    def __init__(self):
        self.reply = RoCEReply(N)
        self.outputs = {}
        for name in ("control", "reads", "request", "kill", "refusal"):
            source = getattr(self.reply, name)
            self.outputs[name] = stream.Endpoint(source.description)
            self.comb += source.connect(self.outputs[name])
        # A QP waits for one turn at most: more would fill the FIFO that has a place for each QP.
        work = self.reply.work
        self.turns, self.twice = Signal(N), Signal()
        push = Mux(work.sink.valid & work.sink.ready, 1 << work.sink.qpi[:log2_int(N)], 0)
        pop  = Mux(work.source.valid & work.source.ready, 1 << work.source.qpi[:log2_int(N)], 0)
        self.sync += [
            self.turns.eq((self.turns & ~pop) | push),
            If((self.turns & ~pop & push) != 0, self.twice.eq(1)),
        ]


def compiled():
    """The scheduler, compiled."""
    top = Scheduler()
    return build(top, {**top.outputs, "sink": top.reply.sink, "result": top.reply.result, "sent": top.reply.sent, "ready": top.reply.ready,
                       "qpi": top.reply.reads_qpi, "done": top.reply.reads_done, "ctl_done": top.reply.ctl_done, "twice": top.twice,
                       "page": top.reply.send.wake, "free": top.reply.send.deferred.free}, name="reply")


class Bench:
    """Key checks are granted at address va + 1 unless `refuse` says a row or `miss` that a page is not there; packets are sent at
    once."""
    def __init__(self, so, seed=1, stall=0.0):
        self.sim = sim = Sim(so, seed=seed)
        self.sink, self.result, self.sent = (sim.source(n) for n in ("sink", "result", "sent"))
        self.control, self.reads, self.request, self.kill, self.refusal = (
            sim.sink(n) for n in ("control", "reads", "request", "kill", "refusal"))
        for sink in (self.control, self.reads, self.request):
            sink.set(stall=stall)
        self.out, self.checks, self.places, self.clocks, self.marks = [], [], [], [], 0
        self.refuse = self.miss = lambda request: 0
        self.error  = lambda packet: 0
        self.index  = [0]*N
        sim.reset()
        sim.wait("ready", 1)
        for qpi in range(4):
            self.sink.send(kind=REPLY_CTL, qpi=qpi, code=CTL_START)
            self.run(40)

    def run(self, cycles=100):
        for _ in range(0, cycles, 2):
            self.sim.step(2)
            for r in self.request.recv_all():
                self.checks.append((r.va, r.length))
                self.result.send(row=self.refuse(r), miss=self.miss(r), target=2, addr=(r.va + 1) % 2**64)
            for sink, owner in ((self.control, OWNER_ACK), (self.reads, OWNER_RESPONDER)):
                for p in sink.recv_all():
                    assert p.owner == owner
                    error = 0 if p.marker else self.error(p)
                    self.clocks.append(p.first)
                    if p.length:
                        assert p.target == 2
                        self.places.append(p.addr)
                    self.sent.send(owner=owner, marker=p.marker, qpi=p.qpi, psn=p.psn, err=error)
                    if p.marker:
                        self.marks += 1
                    elif not error:
                        self.out.append((p.qpi, NAME[p.opcode], p.psn, p.syndrome if NAME[p.opcode] == "ACKNOWLEDGE" else p.length, owner))

    def page(self):
        """A page has come."""
        self.sim.poke("page", 1)
        self.run(2)
        self.sim.poke("page", 0)

    def until(self, condition, cycles=20_000):
        """Runs until `condition()` holds; AssertionError when it does not."""
        for _ in range(0, cycles, 2):
            if condition():
                return
            self.run(2)
        raise AssertionError(f"not reached in {cycles} clocks")

    def take(self):
        assert not self.sim.peek("twice"), "a QP waits for two turns"
        out, self.out = self.out, []
        return out

    def ack(self, qpi, psn, syndrome=0x1f, kind=REPLY_ACK):
        self.sink.send(kind=kind, qpi=qpi, psn=psn, syndrome=syndrome, msn=psn)

    def nak(self, qpi, psn, syndrome=0x60):
        self.ack(qpi, psn, syndrome, REPLY_NAK)

    def read(self, qpi, psn, length, va=0x1000, kind=REPLY_READ, **fields):
        last = psn + max(1, -(-length//256)) - 1
        self.sink.send(**{**dict(kind=kind, qpi=qpi, psn=psn & 0xffffff, last_psn=last & 0xffffff, va=va, rkey=5, length=length,
                                 index=self.index[qpi], pmtu=1, pd=3, msn=psn & 0xffffff,
                                 target=2, addr=(va + 1) % 2**64), **fields})
        if kind == REPLY_READ:
            self.index[qpi] = (self.index[qpi] + 1) % 32

    def reads_done(self, qpi):
        self.sim.poke("qpi", qpi)
        self.sim.step(1)
        return self.sim.peek("done")
