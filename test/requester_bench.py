# SPDX-License-Identifier: BSD-2-Clause
"""The compiled send side with a small peer: tx_packets in, responses out, loss and refusals by choice."""
import random

from litex.gen import *
from migen import *

from roce_soc import abi
from roce_soc.common import CTL_ERR, CTL_RESET, CTL_START, CTL_STOP, connection_layout
from roce_soc.memory.mr import MRTable
from roce_soc.opcodes import (
    ACK_UNLIMITED, NAK_PSN_SEQUENCE, OPCODES, PMTU_BYTES, PSN_MASK, by_name, packets, psn_diff)
from roce_soc.qp.context import QPContext
from roce_soc.queue.doorbell import KIND_PUSH
from roce_soc.transport.send_side import RoCESendSide
from roce_soc.verbs import ACCESS_LOCAL_WRITE, SEND_SIGNALED, WR_RDMA_READ
from sim.harness import Sim, build_cached

N_QPS    = 64
SQ_BASE  = 0x100_0000      # send ring of QP i at SQ_BASE + i*64 KiB.
BUF_BASE = 0x4000_0000     # local buffer of QP i: 16 MiB each, VA = address + VA_SHIFT.
VA_SHIFT = 0x7f00_0000_0000
BUF_SIZE = 1 << 24
PD       = 7
SQ_LOG2  = 6
PAGE     = 3


class SendTop(LiteXModule):
    """Send side, connection rows and MR table with all their streams as ports."""
    def __init__(self):
        self.context = QPContext(N_QPS)
        self.mr      = MRTable(16)
        self.side    = RoCESendSide(self.context, self.mr.get_port(), self.mr.get_port())
        # A region whose pages are not on chip; 0: none. A page that comes.
        self.absent, self.page = Signal(32), Signal()
        self.comb += [
            self.mr.missing.eq((self.mr.judged.key == self.absent) & (self.absent != 0)),
            self.mr.wake.eq(self.page),
        ]
        self.ready   = Signal()
        self.comb   += self.ready.eq(self.side.ready & self.context.ready & self.mr.ready)


def make():
    top  = SendTop()
    side = top.side
    rq, cp = side.requester, side.completer
    return top, {
        "context": top.context.write, "mr": top.mr.write, "bell": side.sq.doorbell, "d_rcmd": side.sq.rcmd,
        "d_rdata": side.sq.rdata, "push_complete": side.sq.push.complete, "push_wqe": side.sq.push.wqe,
        "push_data": side.sq.push.data, "inline_we": side.sq.inline_we, "inline_addr": side.sq.inline.addr,
        "sqrefusal": side.sq.refusal, "tx": rq.source, "sent": rq.sent, "rctl": rq.ctl,
        "rdone": rq.ctl_done, "response": cp.response, "place": cp.place, "done": cp.done, "cctl": cp.ctl,
        "drained": side.walker.drained, "begins": side.walker.drained_clear, "begins_who": side.walker.drained_qpi,
        "sctl": side.sq.ctl, "sdone": side.sq.ctl_done,
        "crefusal": cp.refusal, "wrefusal": side.walker.refusal, "cqe": side.walker.cqe, "event": side.walker.event, "wdone": side.walker.ctl_done,
        "tick_cycles": side.scanner.tick_cycles, "ready": top.ready, "absent": top.absent, "page": top.page, "free": cp.deferred.free, "reset_probe": side.walker.kick.valid}


def library():
    """The compiled send side, built when a source changed."""
    return build_cached(make, key=f"send {N_QPS}", name="send", sources=[__file__])


class Peer:
    """Responder of one QP, as simple as can be: in order, ACK when asked, one NAK a gap."""
    def __init__(self, psn, pmtu):
        self.psn, self.pmtu = psn, pmtu
        self.msn      = 0
        self.nak_sent = False
        self.sends    = []          # (bytes, imm or None, se)
        self.message  = None
        self.memory   = {}          # written: va -> bytes of each WRITE packet, merged by the test.
        self.writes   = []          # (va, bytes, imm or None)
        self.read_data = lambda va, n: bytes((va + i) * 7 & 0xff for i in range(n))
        self.seen     = []          # (psn, opcode name, ackreq) of each packet that arrived.
        self.reads    = set()       # first PSNs of READs.
        self.middle_restart = False
        self.force    = {}          # psn -> syndrome sent instead of accepting it (once).

    def aeth(self, psn, syndrome=ACK_UNLIMITED):
        return dict(opcode=by_name("RC_ACKNOWLEDGE").value, psn=psn & PSN_MASK, syndrome=syndrome, msn=self.msn)

    def read_reply(self, p):
        n = packets(p.dma_length, self.pmtu)
        out = []
        for i in range(n):
            # As Linux's rxe: a repeat goes on with MIDDLE or LAST, unless it is of the whole READ.
            first = i == 0 and not (self.middle_restart and self.replayed and p.psn not in self.reads)
            last  = i == n - 1
            position = {(1, 1): "ONLY", (1, 0): "FIRST", (0, 0): "MIDDLE", (0, 1): "LAST"}[first, last]
            data = self.read_data(p.va + i*self.pmtu, min(self.pmtu, p.dma_length - i*self.pmtu))
            out.append(dict(opcode=by_name(f"RC_READ_RESPONSE_{position}").value, psn=(p.psn + i) & PSN_MASK,
                syndrome=ACK_UNLIMITED if position != "MIDDLE" else 0xff, msn=self.msn, data=data))
        return out

    def packet(self, p, data):
        """Answers to a tx_packet record with its payload."""
        op = OPCODES[p.opcode]
        self.seen.append((p.psn, op.name, p.ackreq))
        diff = psn_diff(p.psn, self.psn)
        self.replayed = diff < 0
        if diff > 0:
            if self.nak_sent:
                return []
            self.nak_sent = True
            return [self.aeth(self.psn, NAK_PSN_SEQUENCE)]
        if diff < 0:
            if op.kind == "READ_REQUEST":
                return self.read_reply(p)
            return [self.aeth(self.psn - 1)] if p.ackreq else []
        if p.psn in self.force:
            return [self.aeth(p.psn, self.force.pop(p.psn))]
        self.nak_sent = False
        if op.kind == "READ_REQUEST":
            self.reads.add(p.psn)
            self.msn += 1
            self.psn = (self.psn + packets(p.dma_length, self.pmtu)) & PSN_MASK
            return self.read_reply(p)
        assert (self.message is None) == op.starts, f"{op.name} at {p.psn:#x}"
        assert op.position in ("LAST", "ONLY") or len(data) == self.pmtu, f"{op.name} with {len(data)} bytes"
        if op.starts:
            self.message = [op.kind, p.va, p.dma_length, b""]
        assert self.message[0] == op.kind
        self.message[3] += data
        self.psn = (self.psn + 1) & PSN_MASK
        if op.ends:
            kind, va, length, body = self.message
            self.message = None
            self.msn += 1
            imm = p.imm if op.has_imm else None
            if kind == "SEND":
                self.sends.append((body, imm, p.se))
            else:
                assert len(body) == length
                self.writes.append((va, body, imm))
        return [self.aeth(p.psn)] if p.ackreq else []


class SendBench:
    """Compiled send side, memory, peers. `lose(direction, record)` returns True to drop a packet."""
    def __init__(self, seed=1, *, stall=0.0, tick_cycles=64, lose=None, **memory):
        self.sim  = sim = Sim(library(), seed=seed)
        self.rng  = random.Random(seed)
        self.lose = lose or (lambda direction, p: False)
        self.context, self.mr, self.bell, self.sent, self.rctl, self.cctl, self.sctl, self.response, self.done = (
            sim.source(n, records=True, gap=stall) for n in ("context", "mr", "bell", "sent", "rctl", "cctl", "sctl", "response", "done"))
        self.tx, self.place, self.cqe, self.event = (
            sim.sink(n, records=True, stall=stall) for n in ("tx", "place", "cqe", "event"))
        # Refusals have no ready.
        self.crefusal, self.sqrefusal, self.wrefusal = (
            sim.sink(n, records=True) for n in ("crefusal", "sqrefusal", "wrefusal"))
        self.drained = sim.sink("drained", records=True)
        self.memory = sim.memory("d", **(memory or dict(latency=4)))
        sim.poke("tick_cycles", tick_cycles)
        sim.reset()
        sim.wait("ready", 1)
        self.rows, self.peers, self.index, self.posted = {}, {}, {}, {}
        self.slots, self.free_slots = {}, 0
        self.cqes, self.events, self.refusals, self.bell_refusals, self.packets = [], [], [], [], []
        self.unchecked = {}         # qpi -> (work request, bytes at posting).
        self.failures = []          # refusals of the walker.
        self.pending  = []          # answers on their way: (cycle, tx_sent records before them, qpi, record).
        self.returned = 0           # tx_sent records.
        self.told     = [0]*3       # how many had been told at the last calls of `serve`.
        self.delay    = 20
        self.step     = 4
        self.sent_err = {}          # (qpi, psn) -> err of its tx_sent, once.
        self.blocked  = False       # packets stay between requester and wire, in `kept`: not returned, not seen by the peer.
        self.kept     = []
        self.done_err = {}          # index of a placed record -> err.
        self.placed   = 0
        self.place_delay = 0        # clocks from a place record to its done.

    # Set-up -----------------------------------------------------------------------------------------

    def write_row(self, qpi, **changes):
        row = self.rows.setdefault(qpi, {})
        row.update(changes)
        number, at = 0, 0
        for name, width in connection_layout():
            value = row.get(name, 0)
            assert value >> width == 0, (name, value)
            number |= value << at
            at += width
        self.context.send(index=qpi, row=number)
        self.sim.drain(self.context)

    def ctl(self, qpi, op, psn=0, max_cycles=20_000, owners="rc"):
        """Control to requester, completer, send queue; waits until each has answered."""
        for source, name in [{"r": (self.rctl, "rdone"), "c": (self.cctl, "wdone"), "s": (self.sctl, "sdone")}[owner] for owner in owners]:
            source.send(qpi=qpi, op=op, psn=psn)
            for _ in range(max_cycles):
                self.sim.step(1)
                done = self.sim.peek(name)
                self.serve()
                if done:
                    break
            else:
                raise AssertionError(f"no {name} for {op}")

    def connect(self, qpi=0, *, pmtu=1024, psn=0x1000, timeout=0, retry_cnt=7, rnr_retry=7, max_rd_atomic=4, **more):
        """QP to RTS with a local buffer of its own (lkey (qpi + 1) << 8 | 0x55)."""
        code = next(c for c, size in PMTU_BYTES.items() if size == pmtu)
        self.write_row(qpi, qpn=0x100 + qpi, state=abi.QP_RTS, pmtu=code, page=PAGE, pd=PD, send_cq=qpi,
            sq_log2=SQ_LOG2, sq_addr=SQ_BASE + qpi*0x10000, timeout=timeout, retry_cnt=retry_cnt, rnr_retry=rnr_retry,
            max_rd_atomic=max_rd_atomic, **more)
        self.mr.send(valid_row=1, index=qpi, variant=0x55, access=ACCESS_LOCAL_WRITE, pd=PD, target=0, va=self.va(qpi),
            length=BUF_SIZE, addr=BUF_BASE + qpi*BUF_SIZE)
        self.sim.drain(self.mr)
        self.sim.step(16)
        self.peers[qpi] = Peer(psn, pmtu)
        self.index.setdefault(qpi, 0)
        self.posted.setdefault(qpi, [])
        # In the command port's order: a requester that starts first would see acknowledges of no life of its own.
        self.ctl(qpi, CTL_START, psn, owners="cr")

    @staticmethod
    def va(qpi, offset=0):
        return VA_SHIFT + BUF_BASE + qpi*BUF_SIZE + offset

    def buffer(self, qpi, offset, length):
        return self.memory.read(BUF_BASE + qpi*BUF_SIZE + offset, length)

    # Work -------------------------------------------------------------------------------------------

    def post(self, qpi, opcode, length, *, offset=0, flags=SEND_SIGNALED, inline=None, ring=True, push=False, **more):
        """Writes a work request into the ring; `ring` rings the doorbell, `push` rings it with the work request."""
        slot = self.index[qpi]
        wqe  = dict(opcode=opcode, flags=flags, num_sge=0 if inline is not None else int(length > 0), length=length,
            wr_id=0xabc0000 + qpi*0x1000 + len(self.posted[qpi]), local_va=self.va(qpi, offset), lkey=(qpi << 8) | 0x55,
            remote_va=0x5000_0000 + offset, rkey=0x77001, imm=0x11220000 + slot)
        wqe.update(more)
        base = self.rows[qpi]["sq_addr"]
        self.memory.write(base + (slot % (1 << SQ_LOG2))*64, abi.pack(abi.SEND_WQE, 64, **wqe))
        if inline is not None:
            self.memory.write(base + ((slot + 1) % (1 << SQ_LOG2))*64, inline.ljust(64, b"\0"))
        self.index[qpi] = (slot + (2 if inline is not None else 1)) & 0xffff
        self.posted[qpi].append(wqe)
        sent = self.buffer(qpi, offset, min(length, BUF_SIZE)) if inline is None else inline
        self.unchecked.setdefault(qpi, []).append((wqe, sent))
        if push:
            self.sim.poke("push_wqe", int.from_bytes(abi.pack(abi.SEND_WQE, 64, **wqe), "little"))
            self.push(qpi)
        elif ring:
            self.ring(qpi)
        return wqe["wr_id"]

    def ring(self, qpi, *, page=PAGE, index=None):
        self.bell.send(kind=0, page=page, queue=qpi, index=self.index[qpi] if index is None else index)

    def push(self, qpi, *, complete=1, page=PAGE, index=None):
        """The doorbell of a push whose words are there; returns when it has been taken."""
        self.sim.poke("push_complete", complete)
        self.bell.send(kind=KIND_PUSH, page=page, queue=qpi, index=self.index[qpi] if index is None else index)
        self.sim.drain(self.bell)
        self.sim.poke("push_complete", 0)
        # What another slot holds by then.
        self.sim.poke("push_wqe", self.rng.getrandbits(512))

    # Running ----------------------------------------------------------------------------------------

    def serve(self):
        """Moves records between the model and the peers."""
        now = self.sim.cycles()
        self.kept += self.tx.recv_all()
        for p in [] if self.blocked else self.kept:
            err = self.sent_err.pop((p.qpi, p.psn), 0) if not p.marker else 0
            self.sent.send(owner=p.owner, marker=p.marker, qpi=p.qpi, psn=p.msn, generation=p.syndrome, err=err)
            self.returned += 1
            if p.marker or err:
                continue
            self.packets.append(p)
            if self.lose("tx", p):
                continue
            data = self.memory.read(p.addr, p.length) if p.length else b""
            for answer in self.peers[p.qpi].packet(p, data):
                self.pending.append((now + self.delay, self.returned, p.qpi, answer))
        # A frame is on the wire when its tx_sent has been told, and its answer some clocks behind that.
        told, self.told = self.told[0], [*self.told[1:], self.sent.stats()["frames"]]
        while self.pending and self.pending[0][0] <= now and self.pending[0][1] <= told:
            *_, qpi, answer = self.pending.pop(0)
            self.respond(qpi, **answer)
        if not self.blocked:
            self.kept = []
        for p in self.place.recv_all():
            data = self.slots.pop(p.slot) if p.has_slot else b""
            if p.length:
                assert p.length == len(data)
                self.memory.write(p.addr, data, target=p.target)
            self.done.send(err=self.done_err.pop(self.placed, 0), idle=self.place_delay)
            self.placed += 1
        self.cqes     += self.cqe.recv_all()
        self.events   += self.event.recv_all()
        self.refusals += self.crefusal.recv_all()
        self.failures += self.wrefusal.recv_all()
        self.bell_refusals += self.sqrefusal.recv_all()

    def respond(self, qpi, *, data=b"", **fields):
        """A response of the peer, unless it is lost."""
        if self.lose("rx", fields):
            return
        slot = 0
        if data:
            slot = self.free_slots = (self.free_slots + 1) % 1024
            assert slot not in self.slots
            self.slots[slot] = data
        self.response.send(qpi=qpi, qpn=self.rows[qpi]["qpn"], length=len(data), has_slot=int(bool(data)), slot=slot, **fields)

    def run(self, condition=None, cycles=100_000):
        """Until condition() holds; without one, for `cycles`."""
        end = self.sim.cycles() + cycles
        while self.sim.cycles() < end:
            if condition and condition():
                return
            self.sim.step(self.step)
            self.serve()
        if condition:
            raise AssertionError(f"condition not met in {cycles} cycles; {len(self.cqes)} CQEs, {len(self.events)} events, "
                f"{len(self.packets)} packets, last {[(hex(p.psn), OPCODES[p.opcode].name) for p in self.packets[-5:]]}"
                + self.sim.state())

    def absent(self, qpi=None):
        """The pages of this QP's buffer are not on chip from now on; without one all are, and who waits is told."""
        self.sim.poke("absent", 0 if qpi is None else qpi << 8 | 0x55)
        if qpi is None:
            self.sim.poke("page", 1)
            self.sim.step(1)
            self.sim.poke("page", 0)

    def completed(self, count):
        """Runs until `count` completions came and returns them."""
        self.run(lambda: len(self.cqes) >= count)
        return self.cqes

    def flushed(self, qpi):
        """Moves the QP to ERR as the command port would."""
        self.write_row(qpi, state=abi.QP_ERR)
        self.ctl(qpi, CTL_ERR)

    def reset(self, qpi):
        """Moves the QP to RESET."""
        self.write_row(qpi, state=abi.QP_RESET)
        self.ctl(qpi, CTL_STOP, owners="r")
        self.ctl(qpi, CTL_RESET, owners="crs")
        self.index[qpi] = 0
        self.posted[qpi] = []


def expect_cqes(bench, qpi, statuses):
    """Completions of a QP in posting order with these statuses."""
    got = [(c.wr_id, c.status) for c in bench.cqes if c.qpn == bench.rows[qpi]["qpn"]]
    assert got == [(w["wr_id"], s) for w, s in zip(bench.posted[qpi], statuses)], got
