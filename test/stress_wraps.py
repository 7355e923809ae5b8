# SPDX-License-Identifier: BSD-2-Clause
"""Counters, rings, PSNs at their ends: PSNs wrap under loss, rings fill and wrap, queues overflow, windows close."""
import random

from roce_soc import abi, verbs
from roce_soc import opcodes as op
from roce_soc.errors import ERRORS
from roce_soc.transport.responder.check import ROW_LAYOUT
from sim.engine import Bench
from sim.harness.state import field
from software.control.monitor import Monitor
from test.engine_bench import ENGINE_VA, ModelBench
from test.engine_pair import OPCODE, PSN, QPN, connect_inside
from test.engine_traffic import Traffic
from test.model.packet import parse
from test.test_engine_cases import BYTES, THREE, Asker, Hand, statuses

HALF     = 1 << 23                # PSNs: half a circle.
ENDS     = (0, 1, HALF - 1, HALF, op.PSN_MASK)
OVERFLOW = 9                      # pending bit of the event queue, behind its causes.
LENGTH_BYTE = next(entry.byte for entry in abi.SEND_WQE if entry.name == "length")


# PSNs ---------------------------------------------------------------------------------------------

class Thin(ModelBench):
    """A ModelBench whose wire loses frames with PSNs next to the wrap, each at most once."""
    def __init__(self, seed, **options):
        super().__init__(seed=seed, **options)
        self.lost = set()

    def _pass(self, way, frame, deliver):
        psn = int.from_bytes(frame[PSN], "big")
        key = way, frame[QPN], frame[OPCODE], psn
        if (psn + 4) & op.PSN_MASK < 8 and key not in self.lost and self.random.random() < .4:
            self.lost.add(key)
            return
        super()._pass(way, frame, deliver)


def psn_wrap(seed):
    """Every operation across the end of the PSNs, both ways; requests, answers and NAKs next to it get lost."""
    rng   = random.Random(seed)
    bench = Thin(seed, qps=4, pmtu=1, timeout=9, min_rnr_timer=3, vary=lambda n: dict(
        sq_psn=-rng.randrange(1, 50) & op.PSN_MASK, rq_psn=-rng.randrange(1, 50) & op.PSN_MASK,
        max_rd_atomic=rng.choice((1, 4, 16)), max_dest_rd_atomic=16))
    Traffic(bench, rng, 8, (0, 256, 256*9, 256*30 + 1, 5000), late=rng.choice((0, 2000))).run()
    seen = {(way, frame[QPN], int.from_bytes(frame[PSN], "big") >> 23) for way, frame in bench.wire}
    assert len(seen) == 2*len(bench.pairs)*2, "not every PSN has wrapped"
    assert bench.lost, "nothing was lost"
    return bench.bench.sim.cycles()


def half_circle(psn):
    """Half a circle behind is a duplicate or a ghost, half a circle ahead a gap or beyond what was sent."""
    hand = Hand([64]*4, rq_psn=psn)
    for name, distance in (("SEND", -HALF), ("READ", -HALF), ("SEND", HALF - 1), ("SEND", 0)):
        hand.send(hand.packet("READ_REQUEST", distance, dma_length=8) if name == "READ" else
            hand.packet("SEND_ONLY", distance, BYTES[:8]))
    got = hand.answers()
    assert got == [("ACK", -1, 0), ("NAK_60", 0, 0), ("ACK", 0, 1)], got
    assert [hand.count(row) for row in ("PSN_DUPLICATE", "DUPLICATE_DROPPED", "PSN_SEQUENCE")] == [1, 1, 1]
    asker = Asker(*THREE, sq_psn=psn)
    for distance in (-1, -HALF + 3, -HALF, 3, HALF - 1):
        asker.ack(distance)
    assert not statuses(asker) and [asker.count(row) for row in ("ACK_GHOST", "ACK_BEYOND_SENT")] == [3, 2]
    asker.ack(2)
    assert statuses(asker) == [(0, 0), (1, 0), (2, 0)]
    return hand.bench.bench.sim.cycles() + asker.bench.bench.sim.cycles()


def msn_wrap(seed):
    """MSN of every kind of answer across its end: ACK, coalesced or not, NAK, RNR NAK, READ reply, duplicates."""
    rng   = random.Random(seed)
    hand  = Hand([64]*4)
    sim   = hand.bench.bench.sim
    rows, start = "core0.responder.check.table.memory", op.PSN_MASK - rng.randrange(1, 4)
    row, at, width = sim.memories(rows)[rows][hand.qp.index], *field(ROW_LAYOUT, "msn")
    assert row >> at & (1 << width) - 1 == 0
    sim.write_row(rows, hand.qp.index, row | start << at)
    psn, msn, receives, told = 0, start, 4, False       # told: a NAK is out, a gap tells nothing more.

    def answer(*packets):
        for packet in packets:
            hand.engine.send(packet.build(pad_frame=True))
        hand.bench.bench.work(400)
        return [parse(f) for f in hand.engine.frames()]
    for _ in range(12):
        kind = rng.choice(("WRITE", "SEND", "READ", "gap", "RNR", "duplicate", "message of two"))
        if kind == "SEND" and not receives:
            continue
        if kind in ("gap", "RNR"):
            if kind == "RNR" and receives:
                continue
            got  = answer(hand.packet("SEND_ONLY", psn + (kind == "gap"), BYTES[:8]))
            said = "NAK" if kind == "gap" else "RNR"
            want = [(said, msn & op.PSN_MASK)]*(kind == "RNR" or not told)
            assert [(op.syndrome_class(q.syndrome), q.msn) for q in got] == want, (kind, got)
            told = True
            continue
        if kind == "READ":
            got = answer(hand.packet("READ_REQUEST", psn, va=ENGINE_VA, dma_length=8))
        elif kind == "duplicate":
            got = answer(hand.packet("WRITE_ONLY", psn - 1, BYTES[:8]))
        elif kind == "message of two":
            got = answer(hand.packet("WRITE_FIRST", psn, BYTES[:1024], dma_length=1030, ackreq=0),
                hand.packet("WRITE_LAST", psn + 1, BYTES[:6]))
        else:
            got = answer(hand.packet(f"{kind}_ONLY", psn, BYTES[:8]))
        receives -= kind == "SEND"
        psn += 2 if kind == "message of two" else kind != "duplicate"
        msn += kind != "duplicate"
        told &= kind == "duplicate"
        assert [q.msn for q in got] == [msn & op.PSN_MASK], (kind, msn, got)
    while msn <= op.PSN_MASK + 2:
        got = answer(hand.packet("WRITE_ONLY", psn, BYTES[:8]))
        psn, msn = psn + 1, msn + 1
        assert [(q.msn, op.psn_diff(q.psn, hand.base)) for q in got] == [(msn & op.PSN_MASK, psn - 1)]
    return sim.cycles()


# Rings --------------------------------------------------------------------------------------------

class Loop:
    """Two QPs of one engine, connected to each other inside it; SENDs of no bytes, whose slots are written once."""
    def __init__(self, seed, *, sq_log2=6, rq_log2=6, cq_log2=8):
        self.rng    = random.Random(seed)
        self.bench  = Bench(seed=seed, tick_cycles=1)
        self.engine = self.bench.engines[0]
        self.a, self.b = connect_inside(self.engine, sq_log2=sq_log2, rq_log2=rq_log2, cq_log2=cq_log2,
            min_rnr_timer=1, timeout=13)
        self.sq, self.rq = self.a.sq, self.b.rq
        self.sent, self.received = 0, 0
        send = dict(opcode=verbs.WR_SEND, flags=verbs.SEND_SIGNALED)
        for ring, layout, fields in ((self.sq, abi.SEND_WQE, send), (self.rq, abi.RECV_WQE, {})):
            slots = (abi.pack(layout, 64, wr_id=n, **fields) for n in range(1 << ring.log2))
            self.engine.write_memory(ring.addr, b"".join(slots))

    def free(self, ring, cq):
        """Slots to be posted: free in the ring, and with a place for their completion."""
        return min((1 << ring.log2), 1 << cq.log2) - (ring.producer - ring.consumer)

    def send(self, count):
        self.sq.producer += count
        self.a.ring_send()

    def receive(self, count):
        self.rq.producer += count
        self.engine.doorbell(self.b.page, abi.DOORBELL_RQ, self.b.attributes["rq_index"], self.rq.producer & 0xffff)

    def poll(self):
        """Completions are those of the slots in order."""
        def check(entry, number, ring, opcode):
            got = entry["status"], entry["wr_id"], entry["opcode"]
            assert got == (0, number % (1 << ring.log2), opcode), (number, entry)
        for entry in self.a.send_cq.poll():
            check(entry, self.sent, self.sq, 0)
            self.sent += 1
        for entry in self.b.recv_cq.poll():
            check(entry, self.received, self.rq, 0x80)
            self.received += 1

    def drain(self):
        """Until every SEND that has a receive is done."""
        def done():
            self.poll()
            return self.received == min(self.sq.producer, self.rq.producer) and self.sent == self.received
        self.bench.run(done, max_cycles=2_000_000, every=400)

    def beyond(self):
        """Doorbells one slot beyond what each ring can hold are refused; called when all is done."""
        before = self.engine.counter(ERRORS["DOORBELL"].index)
        send, receive = self.sq.producer + (1 << self.sq.log2) + 1, self.rq.consumer + (1 << self.rq.log2) + 1
        self.engine.doorbell(self.a.page, abi.DOORBELL_SQ, self.a.index, send & 0xffff)
        self.engine.doorbell(self.b.page, abi.DOORBELL_RQ, self.b.attributes["rq_index"], receive & 0xffff)
        for cq in (self.a.send_cq, self.b.recv_cq):
            self.engine.doorbell(cq.page, abi.DOORBELL_CQ, cq.index, (cq.consumer + 1) & 0xffff)
        self.bench.step(200)
        assert self.engine.counter(ERRORS["DOORBELL"].index) == before + 4


def rings(seed, count=None, logs=None):
    """Rings of any size filled to the last slot and emptied, receives late or early, indices and phases wrapped."""
    rng  = random.Random(seed)
    logs = logs or [rng.choice((1, 2, 3, 6, 9, 12, 15)) for _ in range(3)]
    loop = Loop(seed, **dict(zip(("sq_log2", "rq_log2", "cq_log2"), logs)))
    goal = count or max(600, min(70_000, 3 << max(logs)))
    full = 0
    while loop.sent < goal:
        room  = loop.free(loop.rq, loop.b.recv_cq)
        early = rng.random() < .7
        if early:
            loop.receive(rng.choice((room, room, min(room, rng.randrange(1, 40)))))
        posts = loop.free(loop.sq, loop.a.send_cq)
        posts = rng.choice((posts, posts, min(posts, rng.randrange(1, 40))))
        full += posts == 1 << loop.sq.log2
        loop.send(posts)
        loop.bench.step(rng.choice((0, 50, 500)))
        if loop.rq.producer < loop.sq.producer:
            loop.poll()
            if not loop.free(loop.rq, loop.b.recv_cq):
                loop.drain()
                loop.poll()
            room = loop.free(loop.rq, loop.b.recv_cq)
            loop.receive(min(room, max(1, loop.sq.producer - loop.rq.producer)))
        loop.drain()
        if loop.sent == loop.sq.producer and rng.random() < .1:
            loop.beyond()
    assert full or logs[2] < logs[0], "the send ring was never full"
    assert loop.engine.counter(ERRORS["CQ_OVERFLOW"].index) == 0
    return loop.bench.sim.cycles()


class Events:
    """The engine's event ring, read as software does."""
    def __init__(self, engine, log2):
        self.engine, self.log2, self.consumer = engine, log2, 0
        self.addr = engine.roce.allocate(abi.EQE_BYTES << log2, "event queue")
        ring = abi.pack_args(abi.EQ_ARGS, index=0, valid=1, log2=log2, page=0, addr=self.addr)
        engine.roce.command(abi.CMD_WRITE_EQ, ring)

    def poll(self, ring=True):
        out = []
        while True:
            addr  = self.addr + abi.EQE_BYTES*(self.consumer % (1 << self.log2))
            entry = abi.unpack(abi.EQE, self.engine.read_memory(addr, abi.EQE_BYTES))
            if entry["phase"] == (self.consumer >> self.log2) & 1 or len(out) == 1 << self.log2:
                break
            out.append((entry["type"], entry["queue"], entry["info"]))
            self.consumer += 1
        if out and ring:
            self.engine.doorbell(0, abi.DOORBELL_EQ, 0, self.consumer & 0xffff)
        return out


def cq_overflow(seed):
    """A full queue takes nothing more: one event, what has no completion is not acknowledged, both QPs fail, entries stay."""
    rng    = random.Random(seed)
    log2   = rng.choice((1, 3, 5))
    loop   = Loop(seed, cq_log2=log2)
    size   = 1 << log2
    events = Events(loop.engine, 4)
    first  = rng.randrange(3*size)
    for _ in range(first):
        loop.receive(1)
        loop.send(1)
        loop.drain()
    loop.receive(size)
    loop.send(size)
    loop.bench.step(600 + 60*size)
    assert not events.poll() and loop.a.query()["state"] == loop.b.query()["state"] == abi.QP_RTS
    cqs    = (loop.a.send_cq, loop.b.recv_cq)
    images = [loop.engine.read_memory(cq.addr, 32 << log2) for cq in cqs]
    # The receive whose completion has no place is not acknowledged: the sender hears nothing any more.
    loop.a.modify(abi.QP_RTS, timeout=2, retry_cnt=1)
    loop.receive(1)
    loop.send(1)
    loop.bench.run(lambda: loop.a.query()["state"] == loop.b.query()["state"] == abi.QP_ERR, max_cycles=60_000)
    loop.bench.step(2000)
    got  = events.poll()
    full = {(abi.EVENT_CQ_ERR, cq.index, 0) for cq in (loop.a.send_cq, loop.b.recv_cq)}
    dead = {(abi.EVENT_QP_FATAL, loop.a.index, ERRORS["RETRY_EXCEEDED"].index), (abi.EVENT_QP_FATAL, loop.b.index, ERRORS["CQ_OVERFLOW"].index)}
    assert set(got) == full | dead and len(got) == 4, got
    assert images == [loop.engine.read_memory(cq.addr, 32 << log2) for cq in cqs], "an entry was overwritten"
    assert loop.engine.counter(ERRORS["CQ_OVERFLOW"].index) >= 2
    loop.poll()
    assert (loop.sent, loop.received) == (first + size, first + size)
    # Room again: a queue with a hole takes nothing more.
    images = [loop.engine.read_memory(cq.addr, 32 << log2) for cq in cqs]
    loop.sq.producer += 1
    loop.a.ring_send()
    loop.bench.step(3000)
    assert images == [loop.engine.read_memory(cq.addr, 32 << log2) for cq in cqs] and not events.poll()
    return loop.bench.sim.cycles()


def eq_full(seed):
    """A full event ring keeps what it has, tells that it was full, goes on when there is room; phases wrap."""
    rng    = random.Random(seed)
    log2   = rng.choice((1, 2, 4))
    loop   = Loop(seed)
    events = Events(loop.engine, log2)
    cq     = loop.a.send_cq

    def event(count):
        for _ in range(count):
            cq.arm()
            loop.receive(1)
            loop.send(1)
            loop.drain()
        loop.bench.step(100)
    for _ in range(6):
        fits = rng.randrange(1, (1 << log2) + 1)
        event(fits)
        assert events.poll() == [(abi.EVENT_COMPLETION, cq.index, 0)]*fits
    loop.engine.write_register("ev_pending", 0x3ff)
    event(1 << log2)
    image = loop.engine.read_memory(events.addr, 16 << log2)
    assert loop.engine.read_register("ev_pending") == 1
    event(rng.randrange(1, 4))
    assert loop.engine.read_register("ev_pending") == 1 | 1 << OVERFLOW
    assert loop.engine.read_memory(events.addr, 16 << log2) == image, "an entry was overwritten"
    assert len(events.poll()) == 1 << log2
    event(1)
    assert events.poll() == [(abi.EVENT_COMPLETION, cq.index, 0)]
    return loop.bench.sim.cycles()


def refusal_ring(seed):
    """The refusal ring holds the last 64 lines in order after any number of them; none is left out at this pace."""
    rng   = random.Random(seed)
    hand  = Hand()
    count = rng.randrange(65, 300)
    psns  = [rng.getrandbits(24) for _ in range(count)]
    for psn in psns:
        hand.engine.send(hand.packet("SEND_ONLY", psn, BYTES[:8], tver=1).build(pad_frame=True), idle=30)
    hand.bench.bench.step(40*count)
    monitor = Monitor(hand.engine, "monitor_")
    assert monitor.lines() == (count, 0)
    for n in range(count - 64, count):
        line = monitor.line(n)
        assert (line.psn, line.row) == ((hand.base + psns[n]) & op.PSN_MASK, ERRORS["TVER"].index)
    return hand.bench.bench.sim.cycles()


# Windows ------------------------------------------------------------------------------------------

def reads_accepted(limit):
    """As many READs as max_dest_rd_atomic are answered, round after round; one more is an invalid request."""
    hand = Hand(max_dest_rd_atomic=limit)
    hand.engine.memory.set(latency=600)
    psn  = 0

    def burst(count):
        nonlocal psn
        for _ in range(count):
            hand.engine.send(hand.packet("READ_REQUEST", psn, va=ENGINE_VA, dma_length=8).build(pad_frame=True))
            psn += 1
        hand.bench.bench.step(3000 + 700*count)
        return [kind for kind, *_ in hand.answers()]
    for _ in range(40//limit):
        assert burst(limit) == ["ONLY"]*limit
    assert burst(limit + 1) == ["ONLY"]*limit + ["NAK_61"] and hand.count("READ_RESOURCES") == 1
    return hand.bench.bench.sim.cycles()


def window(seed):
    """32 messages and max_rd_atomic READs leave without an answer, not one more; each answer lets the next one go."""
    limit = random.Random(seed).choice((1, 2, 15, 16))
    asker = Asker(*[("WRITE", 8)]*40, sq_psn=op.PSN_MASK - 50, max_rd_atomic=limit)
    psns  = [op.psn_diff(q.psn, asker.base) for q in asker.sent]
    for n in range(40, 200):
        assert psns == list(range(n - 8)), psns
        asker.ack(n - 40)
        asker.bench.engine_sends(asker.qp, "WRITE", 0, 8, wr_id=n)
        asker.bench.bench.step(200)
        psns += [op.psn_diff(parse(f).psn, asker.base) for f in asker.engine.frames()]
        assert statuses(asker) == [(n - 40, 0)]
    reader = Asker(*[("READ", 8)]*20, max_rd_atomic=limit)
    assert len(reader.sent) == limit
    for n in range(20):
        reader.data("ONLY", n, BYTES[:8])
        assert len(reader.engine.frames()) == (n + limit < 20), n
        assert statuses(reader) == [(n, 0)]
    return asker.bench.bench.sim.cycles() + reader.bench.bench.sim.cycles()


def longest():
    """2^31 bytes are asked for and accepted, READs in requests of 2^29 inside the window; a byte more is refused."""
    far = 0x7fff_f000

    def asker(code, length, **attributes):
        made = Asker(**attributes)
        mr   = made.engine.roce.reg_mr(far, 1 << 31, access=7)
        slot = made.qp.post_send(code, mr, va=far, length=8, wr_id=2, remote_va=far, rkey=1, ring=False)
        # Into the ring by hand: post_send refuses the byte more.
        made.engine.roce.bus.write_memory(made.qp.sq.slot_addr(slot) + LENGTH_BYTE, length.to_bytes(4, "little"))
        made.qp.ring_send()
        made.bench.bench.step(600)
        return made
    for code in (verbs.WR_RDMA_WRITE, verbs.WR_RDMA_READ, verbs.WR_SEND):
        made = asker(code, (1 << 31) + 1)
        assert statuses(made) == [(2, verbs.WC_LOC_LEN_ERR)] and made.state() == abi.QP_ERR and not made.engine.frames()
    assert parse(asker(verbs.WR_RDMA_WRITE, 1 << 31).engine.frames()[0]).dma_length == 1 << 31
    made  = asker(verbs.WR_RDMA_READ, 1 << 31, vary=lambda n: dict(pmtu=1))
    first = [parse(f) for f in made.engine.frames()]
    assert [(q.dma_length, q.va) for q in first] == [(1 << 29, far)]
    made.data("FIRST", 0, BYTES[:256])
    more  = [parse(f) for f in made.engine.frames()]
    assert [(q.dma_length, q.va, op.psn_diff(q.psn, made.base)) for q in more] == [(1 << 29, far + (1 << 29), 1 << 21)]
    hand = Hand()
    mr   = hand.engine.roce.reg_mr(far, 1 << 31, access=7)
    hand.send(hand.packet("WRITE_FIRST", 0, BYTES[:1024], va=far, rkey=mr.rkey, dma_length=1 << 31))
    assert hand.answers() == [("ACK", 0, 0)]
    return hand.bench.bench.sim.cycles()


def run(seed):
    """One play."""
    rng   = random.Random(seed)
    plays = (psn_wrap, psn_wrap, msn_wrap, rings, rings, cq_overflow, eq_full, refusal_ring, window,
             lambda n: half_circle(rng.choice((*ENDS, rng.getrandbits(24)))),
             lambda n: reads_accepted(rng.choice((1, 2, 15, 16))), lambda n: longest())
    return rng.choice(plays)(seed)
