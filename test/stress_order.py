# SPDX-License-Identifier: BSD-2-Clause
"""Order as users and peers see it: bytes, completion, event, interrupt, acknowledge; each ports' latency its own."""
import random

from roce_soc import abi, verbs
from roce_soc import opcodes as op
from test.engine_bench import ENGINE_VA, MODEL_VA, ModelBench
from test.engine_traffic import Traffic, check_idle
from test.model.packet import parse

# Latency of each port. What a slow write hides, a fast completion, read or acknowledge shows.
FAST, MIDDLE, SLOW = dict(latency=1, ahead=4), dict(latency=(1, 60)), dict(latency=(600, 1000), ahead=4)
ANY       = dict(latency=(1, 1000))
LATENCIES = (
    dict(pw=SLOW, cw=FAST, pr=FAST, dr=FAST),
    dict(pw=FAST, cw=SLOW, pr=FAST, dr=FAST),
    dict(pw=FAST, cw=FAST, pr=SLOW, dr=FAST),
    dict(pw=SLOW, cw=MIDDLE, pr=MIDDLE, dr=SLOW),
    dict(pw=ANY, cw=ANY, pr=ANY, dr=FAST),
    dict(pw=MIDDLE, cw=FAST, pr=dict(latency=(1, 60), early=.5), dr=MIDDLE))
FAULTS    = ({}, {}, dict(loss=.03), dict(duplicate=.2), dict(loss=.02, reorder=.1), dict(corrupt=.03))
LENGTHS   = ((0, 1, 64, 65, 700), (64,), (1, 1023, 1024, 1025, 3000), (4096, 4097, 1))
EQ_LOG2   = 10


class Events:
    """The event queue with all its interrupts enabled, looked at between two clocks."""
    def __init__(self, bench):
        self.engine  = engine = bench.engine
        self.addr    = engine.roce.allocate(abi.EQE_BYTES << EQ_LOG2, "event queue")
        self.seen    = 0                     # events taken.
        self.told    = 0                     # events before the interrupt was last cleared.
        self.armed   = {}                    # CQ: consumer index when it was armed.
        ring = abi.pack_args(abi.EQ_ARGS, index=0, valid=1, log2=EQ_LOG2, addr=self.addr)
        engine.roce.command(abi.CMD_WRITE_EQ, ring)
        engine.write_register("ev_enable", (1 << 10) - 1)

    def _at(self, n):
        return self.addr + abi.EQE_BYTES*(n % (1 << EQ_LOG2))

    def _visible(self, n):
        return self.engine.read_memory(self._at(n) + abi.EQE_BYTES - 1, 1)[0] & 1 != (n >> EQ_LOG2) & 1

    def look(self, cqs, visible):
        """New events have their completions, the interrupt has its event; `visible(cq)` counts completions so far."""
        engine = self.engine
        while self._visible(self.seen):
            event = abi.unpack(abi.EQE, engine.read_memory(self._at(self.seen), abi.EQE_BYTES))
            self.seen += 1
            engine.doorbell(0, abi.DOORBELL_EQ, 0, self.seen & 0xffff)
            if event["type"] == abi.EVENT_COMPLETION:
                armed = self.armed.pop(event["queue"])
                assert visible(cqs[event["queue"]]) > armed, f"event of CQ {event['queue']} before its completion"
        if engine.sim.peek(engine.prefix + "irq"):
            assert self.seen > self.told, "interrupt before its event"
            self.told = self.seen
            engine.sim.step(8)               # pulses of the events just seen.
            engine.write_register("ev_pending", (1 << 10) - 1)
        for cq in cqs.values():
            if cq.index not in self.armed:
                self.armed[cq.index] = cq.consumer
                cq.arm()


class Watch(Traffic):
    """Traffic whose every completion, event and frame is looked at in the clock it appears."""
    def __init__(self, bench, *args, **options):
        super().__init__(bench, *args, **options)
        self.events = Events(bench)
        self.cqs    = {cq.index: cq for qp in self.pairs for cq in (qp.send_cq, qp.recv_cq)}
        self.peers  = {qp.peer: qp for qp in self.pairs}
        self.acked  = {qp.qpn: (qp.attributes["rq_psn"] - 1) & op.PSN_MASK for qp in self.pairs}
        bench.watch = self.left

    def check(self, who, side, qpn, wr_id):
        """The message that `side` asked for is in memory now, every byte."""
        into, offset, length = self.halves[side, qpn].ranges[wr_id]
        bench = self.bench
        if into == "engine":
            got = bench.engine.read_memory(ENGINE_VA + offset, length)
        else:
            got = bench.region.read(MODEL_VA + offset, length)
        if got != self.images[into][offset:offset + length]:
            at = next(i for i in range(length) if got[i] != self.images[into][offset + i])
            raise AssertionError(f"{who} of QP {qpn:#x}, work {wr_id} of the {side}: byte {at} of {length} is not "
                f"there, clock {bench.bench.sim.cycles()}")

    def _completed(self, side, qpn, wr_id, status, opcode, byte_len, imm, row=0):
        if not status:
            asker = side if not opcode & 0x80 else "model" if side == "engine" else "engine"
            mine  = self.halves[asker, qpn].ranges
            if wr_id in mine:
                self.check(f"completion at the {side}", asker, qpn, wr_id)
            # A receive tells of every WRITE before it as well.
            for older in [n for n in mine if n < wr_id and opcode & 0x80 and side == mine[n][0]]:
                self.check(f"completion {wr_id} at the {side}", asker, qpn, older)
        super()._completed(side, qpn, wr_id, status, opcode, byte_len, imm, row)

    def left(self, frame):
        """A frame that left the engine in this clock: what it acknowledges has landed."""
        p  = parse(frame)
        qp = self.peers[p.dest_qpn]
        if qp.qpn in self.killed:
            return
        queue = [wr for wr in self.bench.model.qps[qp.peer].requester.queue if wr.opcode != verbs.WR_RDMA_READ]
        if p.name == "RC_ACKNOWLEDGE":
            good = op.syndrome_class(p.syndrome) == "ACK"
            done = [wr for wr in queue if op.psn_diff(wr.last_psn, p.psn) < good]
            if good and op.psn_diff(p.psn, self.acked[qp.qpn]) > 0:
                self.acked[qp.qpn] = p.psn
        elif p.name.startswith("RC_READ_RESPONSE"):
            done = [wr for wr in queue if op.psn_diff(wr.last_psn, p.psn) < 0]
            if done and not p.name.endswith(("MIDDLE", "LAST")):
                assert op.psn_diff(self.acked[qp.qpn], done[-1].last_psn) >= 0, \
                    f"READ reply {p.psn:#x} of QP {qp.qpn:#x} before the acknowledge of {done[-1].last_psn:#x}"
        else:
            return
        for wr in done:
            self.check(f"{p.name} {p.psn:#x}", "model", qp.qpn, wr.wr_id)

    def visible(self, cq):
        """Completions written so far; one behind a gap is a fault."""
        count = cq.consumer
        seen  = [self._phase(cq, n) != (n >> cq.log2) & 1 for n in range(count, count + 3)]
        assert sorted(seen, reverse=True) == seen, \
            f"completion {count + seen.index(True)} of CQ {cq.index} before {count + seen.index(False)}"
        return count + sum(seen)

    def _phase(self, cq, n):
        """Phase bit of the n-th completion's place: the last byte."""
        return self.bench.engine.read_memory(cq.addr + abi.CQE_BYTES*(n % (1 << cq.log2) + 1) - 1, 1)[0] & 1

    def advance(self):
        for cq in self.cqs.values():
            self.visible(cq)
        self.events.look(self.cqs, self.visible)
        super().advance()


def run(seed):
    """Random work of both sides, each port with a latency of its own, looked at every clock. Returns clocks."""
    rng    = random.Random(seed)
    qps    = rng.choice((1, 2, 3))
    chosen = dict(ports=rng.choice(LATENCIES), faults=rng.choice(FAULTS), shared_cq=rng.random() < .5,
        late=rng.choice((0, 0, 3000)), lengths=rng.choice(LENGTHS), flush=rng.random() < .3)

    def vary(_):
        return dict(pmtu=rng.randrange(1, 6), sq_psn=rng.choice((0xfffffa, rng.getrandbits(24))),
            rq_psn=rng.choice((0xfffffb, rng.getrandbits(24))))
    bench  = ModelBench(seed=seed, qps=qps, timeout=12, min_rnr_timer=5, vary=vary,
        **{name: chosen[name] for name in ("ports", "faults", "shared_cq")})
    watch  = Watch(bench, rng, rng.choice((4, 8)), chosen["lengths"], late=chosen["late"])
    try:
        if chosen["flush"] and qps > 1:
            end = bench.bench.sim.cycles() + rng.randrange(500, 4000)
            bench.run(lambda: watch.finished() or bench.bench.sim.cycles() > end, every=1)
            qp = bench.pairs[0]
            watch.kill(qp)
            qp.modify(abi.QP_ERR)
            bench.run(lambda: watch.advance() or watch.posted(qp) == (0, 0), max_cycles=200_000, every=1)
            others = [half for (_, qpn), half in watch.halves.items() if qpn != qp.qpn]
            bench.run(lambda: watch.advance() or not any(h.sent or h.received for h in others), every=1)
        else:
            watch.run(every=1)
        bench.settle(3000)
        check_idle(bench)
    except AssertionError as error:
        raise AssertionError(f"{error}\n  {chosen}") from error
    return bench.bench.sim.cycles() + chain(seed)


def chain(seed, count=6):
    """What one work request writes, the next of its QP reads: at the responder and, fenced, at the requester."""
    rng    = random.Random(seed ^ 0xc4a1)
    ports  = rng.choice(LATENCIES)
    bench  = ModelBench(seed=seed, ports=ports, faults=rng.choice(FAULTS), timeout=12, pmtu=rng.randrange(1, 6))
    qp, mr, far, engine = bench.pairs[0], bench.mr, bench.region, bench.engine
    lengths = [rng.choice((1, 64, 200, 1024, 2500, 5000)) for _ in range(count)]
    fresh   = [rng.randbytes(length) for length in lengths]
    gap     = 0x4000
    place   = {name: n*count*gap for n, name in enumerate(("source", "near", "back", "fetched", "echo"))}
    post    = bench.model.post_send
    for n, (length, data) in enumerate(zip(lengths, fresh)):
        at = {name: base + n*gap + rng.randrange(64) for name, base in place.items()}
        far.write(MODEL_VA + at["source"], data)
        # The model writes into the engine's memory, or sends there, and reads it back.
        keys = dict(length=length, lkey=far.key, rkey=mr.rkey)
        if rng.random() < .5:
            qp.post_recv(mr, va=ENGINE_VA + at["near"], length=length, wr_id=n)
            post(qp.peer, 2*n, verbs.WR_SEND, va=MODEL_VA + at["source"], **keys)
        else:
            post(qp.peer, 2*n, verbs.WR_RDMA_WRITE, va=MODEL_VA + at["source"], remote_va=ENGINE_VA + at["near"],
                **keys)
        post(qp.peer, 2*n + 1, verbs.WR_RDMA_READ, va=MODEL_VA + at["back"], remote_va=ENGINE_VA + at["near"], **keys)
        # The engine reads from the model and, behind a fence, writes what it got.
        keys = dict(va=ENGINE_VA + at["fetched"], length=length, rkey=far.key)
        qp.post_send(verbs.WR_RDMA_READ, mr, wr_id=2*n, remote_va=MODEL_VA + at["source"], **keys)
        qp.post_send(verbs.WR_RDMA_WRITE, mr, wr_id=2*n + 1, remote_va=MODEL_VA + at["echo"], **keys,
            flags=verbs.SEND_SIGNALED | verbs.SEND_FENCE)
        lengths[n] = at, length
    mine, theirs = [], []

    def ended():
        mine.extend(e for e in qp.send_cq.poll() if not e["opcode"] & 0x80)
        theirs.extend(bench.model.poll_cq(qp.peer))
        return len(mine) == len(theirs) == 2*count
    bench.run(ended, every=20)
    assert [(e["wr_id"], e["status"]) for e in mine] == [(n, 0) for n in range(2*count)], mine
    assert [(c.wr_id, c.status) for c in theirs] == [(n, 0) for n in range(2*count)], theirs
    for (at, length), data in zip(lengths, fresh):
        assert far.read(MODEL_VA + at["back"], length) == data, f"a READ missed the write before it, {ports}"
        assert engine.read_memory(ENGINE_VA + at["fetched"], length) == data, f"READ data, {ports}"
        assert far.read(MODEL_VA + at["echo"], length) == data, f"a fenced WRITE passed the READ before it, {ports}"
    return bench.bench.sim.cycles()
