# SPDX-License-Identifier: BSD-2-Clause
"""Random work of both sides of a ModelBench, and what must come of it: completions in order, every byte."""
from collections import deque, namedtuple

from roce_soc import verbs
from roce_soc.errors import ERRORS
from test.engine_bench import ENGINE_VA, MODEL_VA, REGION

OPERATIONS = {"SEND": verbs.WR_SEND, "SEND_IMM": verbs.WR_SEND_WITH_IMM, "WRITE": verbs.WR_RDMA_WRITE, "WRITE_IMM": verbs.WR_RDMA_WRITE_WITH_IMM,
    "READ": verbs.WR_RDMA_READ}
RECEIVED = ("SEND", "SEND_IMM", "WRITE_IMM")


Failure = namedtuple("Failure", "side qpn queue wr_id status row")


class Half:
    """What one side of a QP asks of the other: work still to post, receives that wait, completions to come."""
    def __init__(self):
        self.todo, self.receives = deque(), deque()
        self.sent, self.received = deque(), deque()       # what must complete: (wr_id) and (wr_id, byte_len, imm).
        self.count = 0
        self.open, self.flushed  = 0, set()               # flushed: queues ("send", "receive") that have begun to.
        self.ranges = {}                                  # wr_id -> (side written, offset, length) of what is not known to be done.


class Traffic:
    """Random operations both ways on every QP; call `run`, or `advance` until `finished`.

    A QP may be killed meanwhile (`kill`): from then on its work completes or is flushed, in order; after `revive` it gets
    new work by `add`. The others must not notice. QPs in `suspects` may fail by themselves, which kills them; `failures`
    holds what completed in error, in order; of those in `unread` the number of a work request may be lost.

    Parameters
    ----------
    bench : ModelBench
    rng : random.Random
    count : int
        Operations of each side of each QP.
    lengths : sequence of int
        To choose from.
    late : int
        Receives are posted up to so many clocks after the request that needs them.
    depth : int
        Operations a side may have open on a QP.
    sides : who posts: "engine", "model" or both.
    """
    def __init__(self, bench, rng, count, lengths, *, operations=tuple(OPERATIONS), late=0, depth=1000, sides=("engine", "model"), pairs=None):
        self.bench, self.rng, self.late, self.depth = bench, rng, late, depth
        self.pairs  = bench.pairs if pairs is None else pairs
        self.sides, self.operations, self.lengths = sides, operations, lengths
        self.killed, self.unknown = set(), []
        self.suspects, self.unread, self.failures = set(), set(), []
        self.refused_doorbells = 0            # those that were to be expected.
        self.halves = {(side, qp.qpn): Half() for side in sides for qp in self.pairs}
        self.images = {side: bytearray(rng.randbytes(REGION)) for side in ("engine", "model")}
        bench.engine.write_memory(ENGINE_VA, bytes(self.images["engine"]))
        bench.region.write(MODEL_VA, bytes(self.images["model"]))
        self.slot   = -(-(max(lengths) + 160)//64)*64
        self.places = rng.sample(range(REGION//self.slot), REGION//self.slot)
        for qp in self.pairs:
            self.add(qp, count)

    def add(self, qp, count):
        """More work for both sides of a QP."""
        for side in self.sides:
            half = self.halves[side, qp.qpn]
            for _ in range(min(count, len(self.places))):
                half.count += 1
                self._plan(side, half, half.count, self.rng.choice(self.operations), self.places.pop()*self.slot + self.rng.randrange(64),
                    self.rng.choice(self.lengths))

    def kill(self, qp):
        """From here on the work of a QP may be flushed; nothing new is posted."""
        self.killed.add(qp.qpn)

    def posted(self, qp):
        """Work of the engine's side of a killed QP that was posted and has not completed: (sends, receives)."""
        mine, peers = self.halves["engine", qp.qpn], self.halves["model", qp.qpn]
        return len(mine.sent) - len(mine.todo), len(peers.received) - sum(1 for w in peers.todo if w[1] in RECEIVED) - len(peers.receives)

    def revive(self, qp):
        """A killed QP is new: what it had begun may or may not have landed."""
        self.killed.discard(qp.qpn)
        for side in self.sides:
            self.unknown += self.halves[side, qp.qpn].ranges.values()
            self.halves[side, qp.qpn] = Half()

    def _plan(self, side, half, wr_id, operation, offset, length):
        other = "model" if side == "engine" else "engine"
        into, source = (side, other) if operation == "READ" else (other, side)
        imm = self.rng.getrandbits(32) if "IMM" in operation else None
        self.images[into][offset:offset + length] = self.images[source][offset:offset + length]
        half.todo.append((wr_id, operation, offset, length, imm, length + self.rng.choice((0, 0, 1, 64)) if operation.startswith("SEND") else self.rng.choice((0, 8))))
        half.sent.append(wr_id)
        half.ranges[wr_id] = into, offset, length
        if operation in RECEIVED:
            half.received.append((wr_id, length, imm))

    def region(self, qp):
        """The engine's memory region that a QP's work uses: its own `mr`, or the bench's."""
        return getattr(qp, "mr", self.bench.mr)

    # Posting --------------------------------------------------------------------------------------

    def _post(self, side, qp, half):
        wr_id, operation, offset, length, imm, room = half.todo[0]
        bench, code = self.bench, OPERATIONS[operation]
        if side == "engine":
            try:
                qp.post_send(code, self.region(qp), va=ENGINE_VA + offset, length=length, wr_id=wr_id, remote_va=MODEL_VA + offset, rkey=bench.region.key, imm=imm or 0)
            except BufferError:
                return False
        else:
            bench.model.post_send(qp.peer, wr_id, code, va=MODEL_VA + offset, length=length, lkey=bench.region.key, remote_va=ENGINE_VA + offset,
                rkey=self.region(qp).rkey, imm=imm or 0)
        half.todo.popleft()
        half.open += 1
        if operation in RECEIVED:
            due = bench.bench.sim.cycles() + (self.rng.randrange(self.late) if self.late else 0)
            half.receives.append((due, wr_id, offset, room))
        return True

    def _receive(self, side, qp, half):
        _, wr_id, offset, room = half.receives[0]
        bench = self.bench
        if side == "engine":
            bench.model.post_recv(qp.peer, wr_id, MODEL_VA + offset, room, bench.region.key)
        else:
            try:
                qp.post_recv(self.region(qp), va=ENGINE_VA + offset, length=room, wr_id=wr_id)
            except BufferError:
                return False
        half.receives.popleft()
        return True

    # Completions ----------------------------------------------------------------------------------

    def _completed(self, side, qpn, wr_id, status, opcode, byte_len, imm, row=0):
        """One completion seen by `side`; row of errors.py behind an error."""
        receive = opcode & 0x80
        half    = self.halves[("model" if side == "engine" else "engine") if receive else side, qpn]
        queue   = "receive" if receive else "send"
        where   = (side, hex(qpn), queue, wr_id)
        if qpn in self.suspects and status:
            self.killed.add(qpn)
        if qpn in self.killed and status:
            half.flushed.add((side, queue))
            waiting = half.received.popleft()[0] if receive else half.sent.popleft()
            assert wr_id == waiting or (qpn in self.unread and wr_id == 0), (*where, waiting)
            self.failures.append(Failure(side, qpn, queue, waiting, status, row))
            return
        assert (side, queue) not in half.flushed, (*where, "good behind a flushed one")
        assert status == 0, (*where, verbs.WC_STATUS_NAMES[status])
        if receive:
            assert half.received and half.received[0] == (wr_id, byte_len, imm), (*where, byte_len, imm, list(half.received)[:2])
            half.received.popleft()
        else:
            assert half.sent and half.sent[0] == wr_id, (*where, list(half.sent)[:2])
            half.sent.popleft()
            half.ranges.pop(wr_id)
            half.open -= 1

    def advance(self):
        """Posts what there is room for, takes completions."""
        now = self.bench.bench.sim.cycles()
        for qp in self.pairs:
            for cq in {qp.send_cq.index: qp.send_cq, qp.recv_cq.index: qp.recv_cq}.values():
                for e in cq.poll():
                    self._completed("engine", e["qpn"], e["wr_id"], e["status"], e["opcode"], e["byte_len"], e["imm"] if e["flags"] & verbs.WC_FLAG_WITH_IMM else None,
                        e["vendor_err"])
            for c in self.bench.model.poll_cq(qp.peer):
                self._completed("model", qp.qpn, c.wr_id, c.status, c.opcode, c.byte_len, c.imm)
            for side in ("engine", "model"):
                half = self.halves.get((side, qp.qpn))
                if half is None or qp.qpn in self.killed:
                    continue
                while half.receives and half.receives[0][0] <= now and self._receive(side, qp, half):
                    pass
                while half.todo and half.open < self.depth and len(half.receives) < 8 and self._post(side, qp, half):
                    pass

    def finished(self):
        """Advances; true when everything has completed."""
        self.advance()
        return not any(half.sent or half.received for half in self.halves.values())

    def run(self, max_cycles=3_000_000, every=50):
        """All of it, then every byte of both regions and a clean engine."""
        self.bench.run(self.finished, max_cycles=max_cycles, every=every)
        self.bench.settle(600)
        self.advance()
        self.check_memory()
        check_idle(self.bench)
        assert self.bench.engine.counter(ERRORS["DOORBELL"].index) == self.refused_doorbells, "a doorbell within the ring was refused"

    def check_memory(self):
        """Both regions as planned."""
        for side, got in (("engine", self.bench.engine.read_memory(ENGINE_VA, REGION)), ("model", self.bench.region.read(MODEL_VA, REGION))):
            want = bytearray(self.images[side])
            for into, offset, length in self.unknown:
                if into == side:
                    want[offset:offset + length] = got[offset:offset + length]
            assert got == want, f"{side} memory differs first at offset {next(i for i in range(REGION) if got[i] != want[i]):#x}"


def check_idle(bench):
    """Nothing is left inside: every chunk free, no memory access open."""
    engine = bench.engine
    bench.bench.run(lambda: not engine.rx.pending and not any(c["outstanding"] for c in engine.memory.counters().values()), max_cycles=20_000)
    bench.settle(200)
    assert engine.chunks_free() == 512, f"{512 - engine.chunks_free()} chunks of the packet buffer are lost"
