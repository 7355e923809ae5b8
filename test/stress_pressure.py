# SPDX-License-Identifier: BSD-2-Clause
"""A transmit wire that stands still or crawls at random moments, with everything that may happen meanwhile.

Sequence NAKs, RNR NAKs and time-outs come of a wire that loses, doubles and swaps frames and of receives that are late; queue
pairs are reset, flushed and made anew, regions taken away, a local loop-back pair works beside them. All that is not killed
completes once, in order, with every byte; nothing is left inside.
"""
import random
from collections import Counter

from roce_soc import abi, verbs
from sim.engine import IPS, MACS
from test.engine_bench import ACCESS, ENGINE_VA, MODEL_VA, REGION, ModelBench
from test.engine_traffic import Traffic, check_idle

LENGTHS = ((0, 1, 64, 65, 300, 1024), (64, 1023, 1025, 3000, 8000), (0, 64, 4096, 5000))
COMMAND = 400_000       # clocks that a command may take on a wire that crawls.
LOOP_VA = 0x2000_0000
STALLS  = (0, 0, .3, .7, .95)
operations = Counter()


class Pressure:
    """One play: traffic of both sides on a few QPs, a local pair, a wire that the play stops and starts."""
    def __init__(self, seed):
        self.rng = rng = random.Random(seed)
        faults   = {name: rng.choice(p) for name, p in (("loss", (0, .01, .04)), ("duplicate", (0, .05, .2)), ("reorder", (0, .05)),
            ("corrupt", (0, .01)))}
        memory   = rng.choice((None, dict(latency=(1, 300), answer_gap=.2, data_stall=.2, cmd_stall=.2), dict(latency=200, ahead=4)))
        self.bench   = bench = ModelBench(seed=seed, qps=rng.randrange(2, 7), faults=faults, memory=memory, timeout=rng.choice((10, 11, 12)),
            min_rnr_timer=rng.randrange(1, 6), vary=lambda n: dict(pmtu=1 + (n + seed) % 5, sq_log2=rng.choice((2, 4, 6)),
            sq_psn=rng.getrandbits(24), rq_psn=rng.getrandbits(24), max_rd_atomic=rng.choice((1, 4, 16)), max_dest_rd_atomic=16))
        self.engine, self.sim = bench.engine, bench.bench.sim
        for qp in bench.pairs:
            qp.mr = self.engine.roce.reg_mr(ENGINE_VA, REGION, access=ACCESS)
        self.traffic = Traffic(bench, rng, 4, rng.choice(LENGTHS), late=rng.choice((0, 600, 3000)))
        self.loops()
        self.engine.idle = self.breathe

    # Local pair -----------------------------------------------------------------------------------

    def loops(self):
        """Two QPs of the engine itself, their frames turn round inside."""
        roce, self.looped, self.loop_done = self.engine.roce, 0, []
        self.loop_mr = roce.reg_mr(LOOP_VA, 1 << 16, access=ACCESS)
        cqs = [roce.create_cq(8) for _ in range(2)]
        a, b = [roce.create_qp(cq, cq, src_mac=MACS[0], dst_mac=MACS[0], src_ip=IPS[0], dst_ip=IPS[0], sq_psn=7, rq_psn=7, timeout=11, pmtu=3)
            for cq in cqs]
        a.attributes["dest_qpn"], b.attributes["dest_qpn"] = b.qpn, a.qpn
        for state in (abi.QP_INIT, abi.QP_RTR, abi.QP_RTS):
            for qp in (a, b):
                qp.modify(state)
        self.loop = a
        self.engine.write_memory(LOOP_VA, self.rng.randbytes(1 << 15))

    def play_loop(self):
        """Some local WRITEs."""
        for _ in range(self.rng.randrange(1, 12)):
            try:
                self.loop.post_send(verbs.WR_RDMA_WRITE, self.loop_mr, va=LOOP_VA, length=self.rng.choice((0, 64, 1500, 4096)),
                    remote_va=LOOP_VA + (1 << 15), rkey=self.loop_mr.rkey, wr_id=self.looped)
            except BufferError:
                return
            self.looped += 1

    def look(self):
        for entry in self.loop.send_cq.poll():
            assert (entry["wr_id"], entry["status"]) == (len(self.loop_done), 0), ("local pair", entry)
            self.loop_done.append(entry["wr_id"])

    # The world goes on ----------------------------------------------------------------------------

    def breathe(self):
        """A few clocks while a command is under way: a wire that stands still for ever would hold it."""
        self.sim.step(8)
        self.bench.exchange()

    def work(self, cycles):
        end = self.sim.cycles() + cycles
        while self.sim.cycles() < end:
            self.bench.bench.step(25)
            self.bench.exchange()
            self.traffic.advance()
            self.look()

    # Plays ----------------------------------------------------------------------------------------

    def play_block(self):
        """The wire stands still, longer than time-outs and RNR waits, or for a moment."""
        self.engine.tx.set(stall=1.0)
        self.work(self.rng.choice((50, 500, 3000, 20_000)))
        self.engine.tx.set(stall=self.rng.choice(STALLS))

    def play_slow(self):
        self.engine.tx.set(stall=self.rng.choice(STALLS))
        self.work(self.rng.randrange(2000))

    def play_reset(self):
        """RESET on a wire that crawls at most; by way of ERR, or not."""
        qp = self.rng.choice(self.bench.pairs)
        self.engine.tx.set(stall=self.rng.choice(STALLS))
        self.end(qp, flush=self.rng.random() < .4)
        self.begin(qp)

    def play_invalidate(self):
        """A region goes while the wire stands still: its QP fails by itself or not at all, the others go on."""
        qp = self.rng.choice(self.bench.pairs)
        self.traffic.suspects.add(qp.qpn)
        self.engine.tx.set(stall=1.0)
        self.work(self.rng.randrange(1500))
        self.engine.tx.set(stall=self.rng.choice(STALLS))
        # Payload that waits behind a wire that stands still is an access under way.
        qp.mr.invalidate()
        self.work(self.rng.randrange(4000))
        self.end(qp)
        self.traffic.suspects.discard(qp.qpn)
        qp.mr = self.engine.roce.reg_mr(ENGINE_VA, REGION, access=ACCESS, index=qp.mr.index, variant=qp.mr.variant % 255 + 1)
        self.begin(qp)

    def play_work(self):
        """More work for a QP that is well."""
        qp = self.rng.choice(self.bench.pairs)
        if qp.qpn not in self.traffic.killed:
            self.traffic.add(qp, self.rng.randrange(1, 4))

    def end(self, qp, flush=False):
        traffic, begun = self.traffic, self.sim.cycles()
        traffic.kill(qp)
        traffic.advance()
        if flush:
            qp.modify(abi.QP_ERR)
            self.work(200)
        qp.modify(abi.QP_RESET)
        assert self.sim.cycles() - begun < COMMAND
        for cq in (qp.send_cq, qp.recv_cq):
            cq.poll()
        self.bench.model.modify_qp(qp.peer, verbs.QPS_RESET)
        self.bench.model.poll_cq(qp.peer)
        # Frames of the old life that are still on the way meet other PSNs.
        self.engine.tx.set(stall=0)
        self.bench.settle(2500)
        traffic.revive(qp)

    def begin(self, qp):
        psns = self.rng.getrandbits(24), self.rng.getrandbits(24)
        for state in (abi.QP_INIT, abi.QP_RTR, abi.QP_RTS):
            qp.modify(state, sq_psn=psns[0], rq_psn=psns[1])
        self.bench.model.modify_qp(qp.peer, verbs.QPS_RTS, sq_psn=psns[1], rq_psn=psns[0])
        self.traffic.add(qp, 3)


def run(seed, plays=14):
    """One play; returns the clocks simulated."""
    play  = Pressure(seed)
    kinds = ("block", "block", "block", "slow", "reset", "invalidate", "loop", "loop", "work", "work")
    for _ in range(plays):
        kind = play.rng.choice(kinds)
        getattr(play, f"play_{kind}")()
        operations[kind] += 1
        play.work(play.rng.choice((0, 100, 1000)))
    play.engine.tx.set(stall=0)
    play.bench.faults = {}
    play.traffic.run()
    play.bench.run(lambda: play.look() or len(play.loop_done) == play.looped, max_cycles=400_000)
    check_idle(play.bench)
    return play.sim.cycles()


def summary():
    """What was played, for the campaign's last line."""
    return ", ".join(f"{count} {kind}" for kind, count in sorted(operations.items()))
