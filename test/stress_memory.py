# SPDX-License-Identifier: BSD-2-Clause
"""Memory that fails in traffic: each port, code and role of a QP; who asked fails as the tables say, nobody else."""
import random

from roce_soc import abi, verbs
from roce_soc.errors import ERRORS
from roce_soc.queue.sq import CACHE_SLOTS
from test.engine_bench import ENGINE_VA, ModelBench
from test.engine_traffic import RECEIVED, Traffic, check_idle

LENGTHS  = ((1, 64, 700, 3000), (1000, 4096, 8000), (64,), (0, 1, 1025))
MEMORIES = (None, None, dict(latency=(1, 60), cmd_stall=.2, data_stall=.2, answer_gap=.2), dict(latency=(1, 400)))
# Counts of what was taken: as they were, when nothing is under way. Not the flag of the row that a reply was last made of.
COUNTS   = r"(?<!icrc)(?<!quick)\.(level|free|outstanding|open|flying|left|owed|whole|waits)\d*$"
COMMAND  = 6000         # clocks that a command may take with the slowest memory here.


class Fault:
    """One piece of one QP's memory that fails: which, and what must come of it."""
    def __init__(self, play):
        self.play, self.rng = play, play.rng
        self.qp   = play.rng.choice(play.bench.pairs)
        self.err  = play.rng.randrange(1, 4)
        self.port = None
        kinds     = [self.payload, self.payload, self.payload, self.send_ring, self.receive_ring]
        play.rng.choice(kinds)()

    def _fail(self, port, lo, hi, kinds, side, wr_id, *outcomes):
        """`outcomes`: (side, queue, statuses, row) of the first completions in error of the QP."""
        at = self.rng.randrange(lo, hi)
        self.port, self.side, self.wr_id, self.outcomes = port, side, wr_id, outcomes
        self.play.bench.engine.memory.fail(at, at + 1, self.err, kinds=kinds)
        if "ring" in port:
            self.play.traffic.unread.add(self.qp.qpn)

    def payload(self):
        """The bytes of a message, read or written."""
        work = []
        for side in ("engine", "model"):
            half = self.play.traffic.halves[side, self.qp.qpn]
            # What is just under way, or next.
            work += [(side, n, place) for n, place in list(half.ranges.items())[:4] if place[2]]
        if not work:
            return
        side, wr_id, (into, offset, length) = self.rng.choice(work)
        operation = self.play.operations[side, self.qp.qpn, wr_id]
        fails     = {verbs.WC_REM_OP_ERR} | ({verbs.WC_RETRY_EXC_ERR} if self.play.lossy else set())
        lo        = ENGINE_VA + offset
        area      = lo, lo + length, 1 if into == "model" else 2
        if side == "engine":
            status, row = (verbs.WC_LOC_QP_OP_ERR, "LOCAL_MEMORY")
            if operation == "READ":
                status, row = (verbs.WC_LOC_PROT_ERR, "RESPONSE_MEMORY")
            self._fail(f"payload of the engine's {operation}", *area, side, wr_id, ("engine", "send", {status}, row))
        elif operation in ("READ", "WRITE"):
            self._fail(f"payload of the model's {operation}", *area, side, wr_id, ("model", "send", fails, None))
        elif operation == "WRITE_IMM":
            # Its receive is in use from its last packet on, and may not be posted before.
            self._fail("payload of the model's WRITE_IMM", *area, side, wr_id, ("model", "send", fails, None))
        else:
            self._fail(f"payload of the model's {operation}", *area, side, wr_id, ("model", "send", fails, None),
                ("engine", "receive", {verbs.WC_LOC_QP_OP_ERR}, "MEMORY_FAULT"))

    def send_ring(self):
        """The next work request posted cannot be read."""
        half = self.play.traffic.halves["engine", self.qp.qpn]
        if half.todo:
            slot = self.qp.sq.slot_addr(self.qp.sq.producer)
            self._fail("send ring", slot, slot + 64, 1, "engine", half.todo[0][0],
                ("engine", "send", {verbs.WC_LOC_QP_OP_ERR}, "LOCAL_MEMORY"))

    def receive_ring(self):
        """The next receive posted cannot be read."""
        half   = self.play.traffic.halves["model", self.qp.qpn]
        wanted = [entry[1] for entry in half.receives] + [work[0] for work in half.todo if work[1] in RECEIVED]
        if wanted:
            slot  = self.qp.rq.slot_addr(self.qp.rq.producer)
            fails = {verbs.WC_REM_OP_ERR} | ({verbs.WC_RETRY_EXC_ERR} if self.play.lossy else set())
            self._fail("receive ring", slot, slot + 64, 1, "model", wanted[0],
                ("engine", "receive", {verbs.WC_LOC_QP_OP_ERR}, "RECV_WQE"), ("model", "send", fails, None))

    def happened(self):
        """First failures of the QP: {(side, queue): failure}."""
        first = {}
        for failure in self.play.traffic.failures:
            if failure.qpn == self.qp.qpn:
                first.setdefault((failure.side, failure.queue), failure)
        return first

    def over(self):
        """The QP has failed and all its completions are there, or the work went past the fault."""
        traffic = self.play.traffic
        traffic.advance()
        if self.qp.qpn in traffic.killed:
            seen = self.happened()
            return traffic.posted(self.qp) == (0, 0) and all((side, queue) in seen for side, queue, *_ in self.outcomes)
        return self.wr_id not in traffic.halves[self.side, self.qp.qpn].ranges

    def check(self):
        """What failed is the work request hit, with its status; the rest was flushed."""
        seen = self.happened()
        for side, queue, statuses, row in self.outcomes:
            failure = seen[side, queue]
            # Where acknowledges were lost, a QP that is dead gives no second one.
            silent  = (self.play.lossy and side == "model" and failure.status == verbs.WC_RETRY_EXC_ERR
                and failure.wr_id < self.wr_id)
            # Work that is repeated is read together with what stands behind it: the read fails, so its first one does.
            together = self.port == "send ring" and 0 <= self.wr_id - failure.wr_id < CACHE_SLOTS
            hit      = failure.wr_id == self.wr_id or together
            assert silent or hit and failure.status in statuses, (self, failure, statuses)
            if row and failure.status != verbs.WC_WR_FLUSH_ERR:
                assert failure.row == ERRORS[row].index, (self, failure, row)
        for failure in self.play.traffic.failures:
            first = seen.get((failure.side, failure.queue))
            if failure.qpn == self.qp.qpn and failure is not first:
                assert failure.status == verbs.WC_WR_FLUSH_ERR, (self, failure, "behind", first)
        assert self.qp.query()["state"] == abi.QP_ERR, (self, "state")

    def __repr__(self):
        return f"{self.port}, QP {self.qp.qpn:#x}, work {self.wr_id} of the {self.side}, err {self.err}"


class Play:
    """Traffic both ways on all QPs; one fault after the other; whoever failed is reset and made new."""
    def __init__(self, seed, *, targets=0, **options):
        self.rng   = rng = random.Random(seed)
        chosen     = dict(qps=rng.choice((2, 3, 5)), memory=rng.choice(MEMORIES),
            faults=rng.choice(({}, {}, dict(loss=.02))))
        self.lossy = bool(chosen["faults"])
        self.chosen = {**chosen, **options}
        self.bench = ModelBench(seed=seed, targets=targets, timeout=11, min_rnr_timer=4,
            vary=lambda n: dict(pmtu=1 + (n + seed) % 5), **self.chosen)
        # How fast memory says that it does not answer.
        self.bench.engine.memory.set(timeout=rng.choice((100, 2000)))
        self.bench.settle(400)
        self.before  = self.counts()
        self.traffic = Traffic(self.bench, rng, 4, rng.choice(LENGTHS), late=rng.choice((0, 600)),
            depth=rng.choice((2, 8)))
        self.operations = {}
        self.note()

    def counts(self):
        """Registers that count what is taken."""
        return self.bench.bench.sim.registers(COUNTS)

    def note(self):
        """Remembers what each work request is."""
        for (side, qpn), half in self.traffic.halves.items():
            self.operations.update({(side, qpn, work[0]): work[1] for work in half.todo})

    def again(self, qp):
        """RESET, then the same QP with other PSNs and new work."""
        bench, rng, traffic = self.bench, self.rng, self.traffic
        traffic.kill(qp)
        begun = bench.bench.sim.cycles()
        qp.modify(abi.QP_RESET)
        spent = bench.bench.sim.cycles() - begun
        assert spent < COMMAND, f"RESET took {spent} clocks"
        for cq in (qp.send_cq, qp.recv_cq):
            cq.poll()
        bench.model.modify_qp(qp.peer, verbs.QPS_RESET)
        bench.model.poll_cq(qp.peer)
        bench.settle(600)
        traffic.revive(qp)
        traffic.unread.discard(qp.qpn)
        traffic.failures[:] = [f for f in traffic.failures if f.qpn != qp.qpn]
        psns = rng.getrandbits(24), rng.getrandbits(24)
        for state in (abi.QP_INIT, abi.QP_RTR, abi.QP_RTS):
            qp.modify(state, sq_psn=psns[0], rq_psn=psns[1])
        bench.model.modify_qp(qp.peer, verbs.QPS_RTS, sq_psn=psns[1], rq_psn=psns[0])
        traffic.add(qp, 4)
        self.note()

    def fault(self):
        """One fault and what comes of it; returns whether it hit."""
        bench, traffic = self.bench, self.traffic
        end = bench.bench.sim.cycles() + self.rng.randrange(600)
        bench.run(lambda: traffic.advance() or bench.bench.sim.cycles() > end, every=25)
        for qp in bench.pairs:
            if not traffic.halves["engine", qp.qpn].todo or not traffic.halves["model", qp.qpn].todo:
                traffic.add(qp, 3)
        self.note()
        fault = Fault(self)
        if fault.port is None:
            return False
        traffic.suspects.add(fault.qp.qpn)
        bench.run(fault.over, max_cycles=600_000, every=25)
        hit = fault.qp.qpn in traffic.killed
        if hit:
            fault.check()
        bench.engine.memory.heal()
        traffic.suspects.discard(fault.qp.qpn)
        if hit:
            self.again(fault.qp)
        else:
            traffic.unread.discard(fault.qp.qpn)
        return hit

    def end(self):
        """The rest of the work, every byte, and nothing left inside."""
        bench = self.bench
        self.traffic.run()
        bench.settle(600)
        left = {name: (self.before[name], now) for name, now in self.counts().items() if now != self.before[name]}
        assert not left, f"not given back: {left}"
        begun = bench.bench.sim.cycles()
        bench.mr.invalidate()
        spent = bench.bench.sim.cycles() - begun
        assert spent < COMMAND, f"removing the region took {spent} clocks: an access was counted and never ended"
        check_idle(bench)


def faults(seed, count=8):
    """Play with faults of single pieces of memory; returns (clocks, faults that hit)."""
    play = Play(seed)
    try:
        hits = sum(play.fault() for _ in range(count))
        play.end()
    except AssertionError as error:
        raise AssertionError(f"{error}\n  {play.chosen}") from error
    return play.bench.bench.sim.cycles(), hits


# Memory that stops --------------------------------------------------------------------------------

WATCHDOG = 4000         # clocks of the hub's watchdogs in the compiled engine.


def renew(engine, cq):
    """The completion queue again, empty: entries may be missing."""
    engine.write_memory(cq.addr, bytes(abi.CQE_BYTES << cq.log2))
    ring = abi.pack_args(abi.CQ_ARGS, index=cq.index, valid=1, log2=cq.log2, page=cq.page, addr=cq.addr)
    engine.roce.command(abi.CMD_WRITE_CQ, ring)
    cq.consumer = 0


def outage(seed, port=None):
    """One memory port of the hub stops for longer than its watchdog, and comes back; returns clocks."""
    play = Play(seed, targets=2)
    rng, bench, traffic, engine = play.rng, play.bench, play.traffic, play.bench.engine
    port = port or rng.choice(("t0w", "t0r0", "t0r1"))

    def advance(cycles):
        end = bench.bench.sim.cycles() + cycles
        bench.run(lambda: traffic.advance() or bench.bench.sim.cycles() > end, every=25)
    try:
        for _ in range(2):
            advance(rng.randrange(3000))
            traffic.suspects.update(qp.qpn for qp in bench.pairs)
            traffic.unread.update(qp.qpn for qp in bench.pairs)
            engine.port(port).set(paused=True)
            advance(rng.choice((500, WATCHDOG + 500, 3*WATCHDOG)))
            # Commands end while it is dead.
            if rng.random() < .5:
                qp, begun = rng.choice(bench.pairs), bench.bench.sim.cycles()
                traffic.kill(qp)
                qp.modify(abi.QP_RESET)
                spent = bench.bench.sim.cycles() - begun
                assert spent < COMMAND + 3*WATCHDOG, f"RESET took {spent} clocks with {port} dead"
            engine.port(port).set(paused=False)
            advance(3000)
            traffic.suspects.clear()
            for qp in bench.pairs:
                state = qp.query()["state"]
                if qp.qpn in traffic.killed:
                    assert state in (abi.QP_ERR, abi.QP_RESET), f"QP {qp.qpn:#x} failed and is in {state}"
                if state != abi.QP_RTS or port == "t0w":
                    traffic.kill(qp)
            killed = [qp for qp in bench.pairs if qp.qpn in traffic.killed]
            for qp in killed:
                qp.modify(abi.QP_RESET)
            for qp in killed:
                renew(engine, qp.send_cq)
                play.again(qp)
            traffic.unread.clear()
        play.end()
    except AssertionError as error:
        raise AssertionError(f"{error}\n  {port} {play.chosen}") from error
    return bench.bench.sim.cycles()


def run(seed):
    """One play, every third with memory that stops. Returns clocks."""
    return outage(seed) if seed % 3 == 0 else faults(seed)[0]
