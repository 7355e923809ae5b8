# SPDX-License-Identifier: BSD-2-Clause
"""A producer that keeps send rings full: a slot gets its next work request as soon as a completion returns it."""
from roce_soc.verbs import SEND_INLINE, SEND_SIGNALED, WR_RDMA_READ, WR_RDMA_WRITE, WR_SEND
from test.requester_bench import SQ_LOG2, SendBench

SLOTS   = 1 << SQ_LOG2
LENGTHS = (0, 1, 64, 200, 256, 257, 700, 1500, 5000)      # path MTU 256: 1 to 20 packets.
PLACES  = 1 << 13                                         # bytes of a message's own place in the buffer.


class FullRing:
    """QPs of a SendBench with full rings of 64 slots; successive uses of a slot differ in length and operation.

    Parameters
    ----------
    bench : SendBench
    rng : random.Random
    qpis : QPs, connected with path MTU 256; nothing is outstanding.
    total : int
        Work requests of each.
    pushed : float
        Probability that a work request is rung by a push.
    signalled : float
        Probability that a work request asks for a completion.
    """
    def __init__(self, bench, rng, qpis, *, total=250, signalled=1.0, pushed=0,
                 operations=(WR_SEND, WR_RDMA_WRITE, WR_RDMA_READ)):
        self.bench, self.rng, self.operations = bench, rng, operations
        self.signalled, self.pushed = signalled, pushed
        self.taken = len(bench.cqes)                               # CQEs looked at.
        self.first = {q: len(bench.posted[q]) for q in qpis}       # what was posted before is done.
        self.total = {q: n + total for q, n in self.first.items()}
        self.used  = {q: 0 for q in qpis}                          # slots in use.
        self.free  = {q: bench.index[q] for q in qpis}             # next slot, free running.
        self.ends  = {q: {} for q in qpis}                         # work request -> slot behind it.
        self.next  = dict(self.first)                              # oldest that has not completed.
        bench.unchecked.clear()
        for qpi in qpis:
            self.fill(qpi)

    def fill(self, qpi):
        """Posts as much as the ring holds."""
        b, rng, fresh = self.bench, self.rng, False
        while (number := len(b.posted[qpi])) < self.total[qpi]:
            inline = rng.randbytes(rng.randrange(65)) if rng.random() < .3 else None
            slots  = 1 if inline is None else 2
            if self.used[qpi] + slots > SLOTS:
                break
            # Without a completion no slot comes back.
            last   = number == self.total[qpi] - 1 or self.used[qpi] > SLOTS - 4
            flags  = SEND_SIGNALED if last or rng.random() < self.signalled else 0
            opcode, length = rng.choice(self.operations), rng.choice(LENGTHS)
            if inline is not None:
                opcode, length, flags = rng.choice((WR_SEND, WR_RDMA_WRITE)), len(inline), flags | SEND_INLINE
            push = rng.random() < self.pushed
            b.post(qpi, opcode, length, offset=self.place(qpi, number), flags=flags, inline=inline, push=push,
                ring=False)
            self.used[qpi] += slots
            self.free[qpi] += slots
            self.ends[qpi][number] = self.free[qpi]
            fresh = not push
        if fresh:
            b.ring(qpi)

    def place(self, qpi, number):
        """A message's own bytes in the buffer."""
        return (number - self.first[qpi])*PLACES

    def advance(self):
        """Completions return slots, which are posted again at once; true when all is done."""
        b = self.bench
        for c in b.cqes[self.taken:]:
            qpi, number = c.qpn - 0x100, self.next[c.qpn - 0x100]
            while not b.posted[qpi][number]["flags"] & SEND_SIGNALED:
                number += 1
            want = b.posted[qpi][number]["wr_id"]
            assert c.status == 0, f"QP {qpi}, work request {number}: status {c.status}"
            assert c.wr_id == want, f"QP {qpi}: {c.wr_id:#x} completed, {want:#x} was next"
            assert c.slot == (self.ends[qpi][number] - 1) % SLOTS, f"QP {qpi}, work request {number}: slot {c.slot}"
            self.next[qpi] = number + 1
            self.used[qpi] = self.free[qpi] - self.ends[qpi][number]
        self.taken = len(b.cqes)
        for qpi in self.used:
            self.fill(qpi)
        return not any(self.used.values())

    def run(self, cycles=4_000_000):
        """All of it; then what the peers received is what was posted, in order, with its bytes."""
        b = self.bench
        b.run(self.advance, cycles=cycles)
        # Repeated READ data may still be under way.
        b.run(cycles=2*b.delay + 2000)
        for qpi in self.used:
            peer, sends, writes = b.peers[qpi], [], []
            for n, (w, data) in enumerate(b.unchecked[qpi], self.first[qpi]):
                if w["opcode"] == WR_RDMA_READ:
                    got = b.buffer(qpi, self.place(qpi, n), w["length"])
                    assert got == peer.read_data(w["remote_va"], w["length"]), f"READ {n}"
                elif w["opcode"] == WR_SEND:
                    sends.append(data)
                else:
                    writes.append((w["remote_va"], data))
            assert [s[0] for s in peer.sends][-len(sends):] == sends
            assert [w[:2] for w in peer.writes][-len(writes):] == writes
        assert not b.events and not b.slots and not b.bell_refusals
