# SPDX-License-Identifier: BSD-2-Clause
"""QPs killed, reset and made anew, regions taken away, all in the midst of traffic that must not notice."""
import random

import pytest

from roce_soc import abi, verbs
from test.engine_bench import ModelBench
from test.engine_traffic import Traffic, check_idle
from test.model.packet import parse

FRAMES  = 600      # clocks in which whole frames that wait for the MAC may still leave.
COMMAND = 20_000   # clocks that a command may take at most, with the slowest memory here.
LENGTHS = (0, 1, 64, 65, 1023, 1024, 1025, 3000, 8000)


class Life:
    """A ModelBench with traffic on all its QPs, one of which is killed now and then."""
    def __init__(self, seed, *, qps=4, count=4, lengths=LENGTHS, late=600, **options):
        self.rng   = rng = random.Random(seed)
        slow       = rng.random() < .5
        options    = {**dict(memory=dict(latency=(1, 300), answer_gap=.2, data_stall=.2, cmd_stall=.2) if slow else None, timeout=11,
            gap=rng.choice((0, .3)), stall=rng.choice((0, .4)), min_rnr_timer=4, vary=lambda n: dict(pmtu=1 + (n + seed) % 5)), **options}
        self.bench   = ModelBench(seed=seed, qps=qps, **options)
        self.traffic = Traffic(self.bench, rng, count, lengths, late=late)
        self.sent    = []                                  # (first clock, frame) of all that the engine sent.
        engine       = self.bench.engine

        def frames():
            got = engine.tx.recv_all()
            self.sent += [(f.first, f.data) for f in got]
            return [f.data for f in got]
        engine.frames = frames

    def work(self, cycles):
        """All goes on for so many clocks."""
        end = self.bench.bench.sim.cycles() + cycles
        while self.bench.bench.sim.cycles() < end:
            self.bench.bench.step(25)
            self.bench.exchange()
            self.traffic.advance()

    def flush(self, qp):
        """ERR by command: everything posted completes, in order; then nothing more."""
        traffic = self.traffic
        traffic.kill(qp)
        qp.modify(abi.QP_ERR)
        self.bench.run(lambda: traffic.advance() or traffic.posted(qp) == (0, 0), max_cycles=100_000)

    def reset(self, qp):
        """RESET; when the command is done nothing of the QP moves."""
        bench, traffic = self.bench, self.traffic
        traffic.kill(qp)
        traffic.advance()
        bench.engine.memory.log()
        begun = bench.bench.sim.cycles()
        qp.modify(abi.QP_RESET)
        done = bench.bench.sim.cycles()
        assert done - begun < COMMAND, f"RESET took {done - begun} clocks"
        for cq in (qp.send_cq, qp.recv_cq):
            cq.poll()
        bench.model.modify_qp(qp.peer, verbs.QPS_RESET)
        bench.model.poll_cq(qp.peer)
        image = bench.engine.memory.read(qp.send_cq.addr, 32 << qp.send_cq.log2)
        self.work(self.rng.choice((300, 2500)))
        # Descriptors that are still read belong to no life: what arrives is not looked at.
        late = [e for e in bench.engine.memory.log() if e["qpi"] == qp.index and e["answered"] > done and (e["kind"] == "write" or e["issued"] > done)]
        assert not late, f"reset was done at {done}, then {late[0]}"
        late = [(at, f) for at, f in self.sent if at > done + FRAMES and parse(f).dest_qpn == qp.peer]
        assert not late, f"reset was done at {done}, then at {late[0][0]} {parse(late[0][1]).describe()}"
        assert bench.engine.memory.read(qp.send_cq.addr, 32 << qp.send_cq.log2) == image, "a completion of the old life"
        traffic.revive(qp)

    def again(self, qp, count=3):
        """The same QP with other PSNs and new work."""
        psns = self.rng.getrandbits(24), self.rng.getrandbits(24)
        for state in (abi.QP_INIT, abi.QP_RTR, abi.QP_RTS):
            qp.modify(state, sq_psn=psns[0], rq_psn=psns[1])
        self.bench.model.modify_qp(qp.peer, verbs.QPS_RTS, sq_psn=psns[1], rq_psn=psns[0])
        self.traffic.add(qp, count)


@pytest.mark.parametrize("first", ["reset", "flush"])
def test_reset_in_traffic(first, seed):
    """RESET at random moments, from RTS or behind ERR: nothing of the old life moves, the new one works, the others go on."""
    life = Life(seed, count=3)
    for _ in range(8):
        life.work(life.rng.randrange(3000))
        qp = life.rng.choice(life.bench.pairs)
        if first == "flush":
            life.flush(qp)
        life.reset(qp)
        life.again(qp)
    life.traffic.run()


# Regions ------------------------------------------------------------------------------------------

USES = {"written": ("WRITE", "model"), "received": ("SEND", "model"), "read": ("READ", "model"), "sent": ("WRITE", "engine"), "read into": ("READ", "engine")}


@pytest.mark.parametrize("use", USES)
def test_region_removed_in_traffic(use, seed):
    """INVALIDATE_MR in the midst of its use: when the command is done no byte of the region is written or read any more."""
    operation, side = USES[use]
    for turn in range(4):
        life = Life(seed + turn, qps=3, count=5, lengths=(64, 1000))
        bench, rng, (bad, *_) = life.bench, life.rng, life.bench.pairs
        traffic, area = life.traffic, (0x6000_0000, 0x6000_0000 + (1 << 16))
        mr  = bench.engine.roce.reg_mr(0x4000_0000, 1 << 16, access=7, addr=area[0])
        far = bench.model.reg_mr(0x7000_0000, 1 << 16, 7, key=0x999, pd=1)
        traffic.halves["engine", bad.qpn].todo.clear()
        traffic.halves["model", bad.qpn].todo.clear()
        traffic.kill(bad)
        code = {"WRITE": verbs.WR_RDMA_WRITE, "READ": verbs.WR_RDMA_READ, "SEND": verbs.WR_SEND}[operation]
        for n in range(12):
            if side == "engine":
                bad.post_send(code, mr, va=0x4000_0000, length=5000, wr_id=n, remote_va=0x7000_0000, rkey=far.key)
                continue
            if operation == "SEND":
                bad.post_recv(mr, va=0x4000_0000, length=5000, wr_id=n)
            bench.model.post_send(bad.peer, n, code, va=0x7000_0000, length=5000, lkey=far.key, remote_va=0x4000_0000, rkey=mr.rkey)
        end = bench.bench.sim.cycles() + rng.randrange(200, 3000)
        while bench.bench.sim.cycles() < end:
            bench.bench.step(25)
            bench.exchange()
        mr.invalidate()
        done = bench.bench.sim.cycles()
        bench.settle(4000)
        late = [e for e in bench.engine.memory.log() if area[0] <= e["addr"] < area[1] and e["answered"] > done]
        assert not late, f"invalidated at {done}, then {late[0]}"
        # The rest of the QPs; the one that lost its region is in ERR, unless it had finished.
        bench.run(lambda: [bad.send_cq.poll(), bench.model.poll_cq(bad.peer), traffic.advance()] and all(
            not h.sent and not h.received for (_, qpn), h in traffic.halves.items() if qpn != bad.qpn), max_cycles=300_000)
        check_idle(bench)


# Many at once ---------------------------------------------------------------------------------------

def test_all_fail_at_once(seed):
    """Every queue pair's peer is gone: each fails and is flushed without waiting for the others, and is used again."""
    bench = ModelBench(seed=seed, qps=24, timeout=8, retry_cnt=0, faults=dict(loss=1.0))
    for qp in bench.pairs:
        for n in range(2):
            bench.engine_sends(qp, "WRITE", 0, 64, wr_id=n)
    left, begun = {qp.qpn: [] for qp in bench.pairs}, bench.bench.sim.cycles()

    def flushed():
        for qp in bench.pairs:
            left[qp.qpn] += [(e["wr_id"], e["status"]) for e in qp.send_cq.poll()]
        return all(len(got) == 2 for got in left.values())
    bench.run(flushed, max_cycles=60_000)
    assert all(got == [(0, verbs.WC_RETRY_EXC_ERR), (1, verbs.WC_WR_FLUSH_ERR)] for got in left.values())
    for qp in bench.pairs:
        assert qp.query()["state"] == abi.QP_ERR
        qp.destroy()
    assert bench.bench.sim.cycles() - begun < 120_000
