# SPDX-License-Identifier: BSD-2-Clause
"""Random work of both sides of a ModelBench, and what must come of it: completions in order, every byte."""
from collections import deque

from test.engine_bench import ENGINE_VA, MODEL_VA, REGION
from roce_soc import verbs

OPERATIONS = {"SEND": verbs.WR_SEND, "SEND_IMM": verbs.WR_SEND_WITH_IMM, "WRITE": verbs.WR_RDMA_WRITE, "WRITE_IMM": verbs.WR_RDMA_WRITE_WITH_IMM,
    "READ": verbs.WR_RDMA_READ}
RECEIVED = ("SEND", "SEND_IMM", "WRITE_IMM")


class Half:
    """What one side of a QP asks of the other: work still to post, receives that wait, completions to come."""
    def __init__(self):
        self.todo, self.receives = deque(), deque()
        self.sent, self.received = deque(), deque()       # what must complete: (wr_id) and (wr_id, byte_len, imm).
        self.open = 0


class Traffic:
    """Random operations both ways on every QP; call `run`, or `advance` until `finished`.

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
        self.halves = {(side, qp.qpn): Half() for side in sides for qp in self.pairs}
        self.images = {side: bytearray(rng.randbytes(REGION)) for side in ("engine", "model")}
        bench.engine.write_memory(ENGINE_VA, bytes(self.images["engine"]))
        bench.region.write(MODEL_VA, bytes(self.images["model"]))
        slot   = -(-(max(lengths) + 160)//64)*64
        places = rng.sample(range(REGION//slot), count*len(self.halves))
        for (side, qpn), half in self.halves.items():
            for n in range(count):
                self._plan(side, half, n + 1, rng.choice(operations), places.pop()*slot + rng.randrange(64), rng.choice(lengths))

    def _plan(self, side, half, wr_id, operation, offset, length):
        other = "model" if side == "engine" else "engine"
        into, source = (side, other) if operation == "READ" else (other, side)
        imm = self.rng.getrandbits(32) if "IMM" in operation else None
        self.images[into][offset:offset + length] = self.images[source][offset:offset + length]
        half.todo.append((wr_id, operation, offset, length, imm, length + self.rng.choice((0, 0, 1, 64)) if operation.startswith("SEND") else self.rng.choice((0, 8))))
        half.sent.append(wr_id)
        if operation in RECEIVED:
            half.received.append((wr_id, length, imm))

    # Posting --------------------------------------------------------------------------------------

    def _post(self, side, qp, half):
        wr_id, operation, offset, length, imm, room = half.todo[0]
        bench, code = self.bench, OPERATIONS[operation]
        if side == "engine":
            try:
                qp.post_send(code, bench.mr, va=ENGINE_VA + offset, length=length, wr_id=wr_id, remote_va=MODEL_VA + offset, rkey=bench.region.key, imm=imm or 0)
            except BufferError:
                return False
        else:
            bench.model.post_send(qp.peer, wr_id, code, va=MODEL_VA + offset, length=length, lkey=bench.region.key, remote_va=ENGINE_VA + offset,
                rkey=bench.mr.rkey, imm=imm or 0)
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
                qp.post_recv(bench.mr, va=ENGINE_VA + offset, length=room, wr_id=wr_id)
            except BufferError:
                return False
        half.receives.popleft()
        return True

    # Completions ----------------------------------------------------------------------------------

    def _completed(self, side, qpn, wr_id, status, opcode, byte_len, imm):
        """One completion seen by `side`."""
        receive = opcode & 0x80
        half    = self.halves[("model" if side == "engine" else "engine") if receive else side, qpn]
        where   = (side, hex(qpn), "receive" if receive else "send", wr_id)
        assert status == 0, (*where, verbs.WC_STATUS_NAMES[status])
        if receive:
            assert half.received and half.received[0] == (wr_id, byte_len, imm), (*where, byte_len, imm, list(half.received)[:2])
            half.received.popleft()
        else:
            assert half.sent and half.sent[0] == wr_id, (*where, list(half.sent)[:2])
            half.sent.popleft()
            half.open -= 1

    def advance(self):
        """Posts what there is room for, takes completions."""
        now = self.bench.bench.sim.cycles()
        for qp in self.pairs:
            for cq in {qp.send_cq.index: qp.send_cq, qp.recv_cq.index: qp.recv_cq}.values():
                for e in cq.poll():
                    self._completed("engine", e["qpn"], e["wr_id"], e["status"], e["opcode"], e["byte_len"], e["imm"] if e["flags"] & verbs.WC_FLAG_WITH_IMM else None)
            for c in self.bench.model.poll_cq(qp.peer):
                self._completed("model", qp.qpn, c.wr_id, c.status, c.opcode, c.byte_len, c.imm)
            for side in ("engine", "model"):
                half = self.halves.get((side, qp.qpn))
                if half is None:
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

    def check_memory(self):
        """Both regions as planned."""
        for side, got in (("engine", self.bench.engine.read_memory(ENGINE_VA, REGION)), ("model", self.bench.region.read(MODEL_VA, REGION))):
            want = bytes(self.images[side])
            assert got == want, f"{side} memory differs first at offset {next(i for i in range(REGION) if got[i] != want[i]):#x}"


def check_idle(bench):
    """Nothing is left inside: every chunk free, no memory access open."""
    engine = bench.engine
    bench.bench.run(lambda: not engine.rx.pending and not any(c["outstanding"] for c in engine.memory.counters().values()), max_cycles=20_000)
    bench.settle(200)
    assert engine.chunks_free() == 512, f"{512 - engine.chunks_free()} chunks of the packet buffer are lost"
