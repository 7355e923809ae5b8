# SPDX-License-Identifier: BSD-2-Clause
"""Life cycles in traffic: queue pairs, queues, regions reset, killed, broken, destroyed and made again at random clocks.

After a command is done no byte moves through what it took away, late packets of a former life change nothing, the
neighbours do not notice, and when all is destroyed the engine is as after power-up.
"""
import random
from collections import Counter

from roce_soc import abi, verbs
from roce_soc.errors import ERRORS
from sim.engine import MACS
from sim.harness.memory import READS, WRITES
from test.engine_bench import ACCESS, ENGINE_VA, REGION, ModelBench
from test.engine_traffic import check_idle
from test.life_leak import leaks
from test.life_traffic import LifeTraffic
from test.life_watch import Events, Watch
from test.model.packet import PacketError, internet_checksum, parse

COMMAND  = 40_000    # clocks that a command may take at most, with the slowest memory here.
LENGTHS  = ((0, 1, 64, 65, 1023, 1024, 1025, 3000), (64, 1000), (0, 1, 4096, 8000), (1, 100, 5000))
MEMORIES = (None, dict(latency=(1, 300), answer_gap=.2, data_stall=.2, cmd_stall=.2), dict(latency=(1, 1000), depth=64),
    dict(latency=(1, 100), depth=4, cmd_stall=.6))
BOXES    = ("host", "firmware")

operations = Counter()      # what was done in all plays of this process.


def summary():
    """What the plays of this process did."""
    return f"{sum(operations.values())} operations: " + ", ".join(f"{count} {name}" for name, count in sorted(operations.items()))


class Life:
    """Engine and model with traffic on several QPs, everything watched, and operations on what lives.

    The first QP is the neighbour: nothing is done to it.
    """
    def __init__(self, seed, **options):
        self.rng = rng = random.Random(seed)
        faults   = {} if rng.random() < .5 else {name: rng.choice(p) for name, p in (
            ("loss", (.01, .03)), ("duplicate", (.02, .1)), ("reorder", (.02, .1)), ("corrupt", (.01, .02))) if rng.random() < .5}
        chosen   = dict(qps=rng.randrange(2, 7), memory=rng.choice(MEMORIES), faults=faults, gap=rng.choice((0, .3)), stall=rng.choice((0, .4)),
            timeout=rng.choice((11, 12)), min_rnr_timer=rng.randrange(1, 5), **options)
        work     = dict(lengths=rng.choice(LENGTHS), late=rng.choice((0, 600, 3000)))
        self.chosen = {**chosen, **work}

        def vary(n):
            return dict(pmtu=1 + (n + seed) % 5, sq_log2=rng.choice((2, 4, 6)), rq_log2=rng.choice((2, 4, 6)), sq_psn=rng.getrandbits(24),
                rq_psn=rng.getrandbits(24), max_rd_atomic=rng.choice((1, 4, 16)), max_dest_rd_atomic=16)
        self.bench  = bench = ModelBench(seed=seed, vary=vary, **chosen)
        self.sim, self.engine, self.model, self.roce = bench.bench.sim, bench.engine, bench.model, bench.engine.roce
        self.peers  = 0x400
        for qp in bench.pairs:
            qp.mr = self.roce.reg_mr(ENGINE_VA, REGION, access=ACCESS)
        self.watch   = Watch(bench)
        self.events  = Events(self.engine, rng)
        self.traffic = LifeTraffic(bench, rng, 4, work["lengths"], late=work["late"])
        self.engine.idle = self.breathe

    # The world goes on ------------------------------------------------------------------------------------

    def breathe(self):
        """A few clocks while a command is under way."""
        self.sim.step(8)
        self.bench.exchange()

    def work(self, cycles):
        """All goes on for so many clocks."""
        end = self.sim.cycles() + cycles
        while self.sim.cycles() < end:
            self.bench.bench.step(25)
            self.bench.exchange()
            self.traffic.advance()
        self.watch.look()
        self.events.poll()

    def some(self, count=1):
        """QPs to do something to; never the neighbour."""
        return self.rng.sample(self.bench.pairs[1:], min(count, len(self.bench.pairs) - 1))

    # Commands ---------------------------------------------------------------------------------------------

    def command(self, *wanted, code=abi.CODE_OK):
        """Commands (opcode, words), one for each master, at once; returns the clocks of their ends."""
        engine, ends = self.engine, {}
        boxes = self.rng.sample(BOXES, len(wanted))
        for box, (_, words) in zip(boxes, wanted):
            engine.write_register(f"mailbox_{box}_index", 0)
            for word in words:
                engine.write_register(f"mailbox_{box}_data", word)
        begun = self.sim.cycles()
        for box, (opcode, _) in zip(boxes, wanted):
            engine.write_register(f"mailbox_{box}_go", opcode | 0x77 << 8)
        while len(ends) < len(wanted):
            for box in boxes:
                status = engine.read_register(f"mailbox_{box}_status")
                if box not in ends and status & 2:
                    assert (status >> 8) & 0xffff == 0x7700 | code, f"{box}: status {status:#x}, not code {code}"
                    ends[box] = self.sim.cycles()
            assert self.sim.cycles() - begun < COMMAND, f"commands {[hex(c) for c, _ in wanted]} take more than {COMMAND} clocks"
            self.breathe()
        return [ends[box] for box in boxes]

    @staticmethod
    def modify(qp, state, **attributes):
        """MODIFY_QP as a command."""
        qp.attributes.update(attributes, state=state)
        return abi.CMD_MODIFY_QP, abi.pack_args(abi.QP_ARGS, **qp.attributes)

    def reach(self, qp, *states, **attributes):
        """One state after the other."""
        for state in states:
            self.command(self.modify(qp, state, **attributes))

    # Queue pairs ------------------------------------------------------------------------------------------

    def kill(self, qps):
        """From here on work of these may be flushed."""
        for qp in qps:
            self.traffic.kill(qp)
        self.traffic.advance()

    def reset(self, qps):
        """RESET, each by another master; then nothing of them moves, and packets that come late are dropped and counted."""
        self.kill(qps)
        ends = self.command(*[self.modify(qp, abi.QP_RESET) for qp in qps])
        for qp, end in zip(qps, ends):
            rings = [(qp.sq.addr, abi.SEND_WQE_BYTES << qp.sq.log2), (qp.rq.addr, abi.RECV_WQE_BYTES << qp.rq.log2),
                (qp.send_cq.addr, abi.CQE_BYTES << qp.send_cq.log2)]
            self.watch.forbid("RESET", end, qp.index, rings)
        # What had completed before is there, in order, and nothing else.
        self.traffic.advance()
        for qp in qps:
            self.model.modify_qp(qp.peer, verbs.QPS_RESET)
            self.model.poll_cq(qp.peer)
        images = [self.engine.read_memory(qp.send_cq.addr, abi.CQE_BYTES << qp.send_cq.log2) for qp in qps]
        self.work(self.rng.choice((50, 300, 2500)))
        self.late([frame for qp in qps for frame in self.watch.received.get(qp.qpn, ())])
        for qp, end, image in zip(qps, ends, images):
            self.watch.silent(qp.peer, end)
            assert self.engine.read_memory(qp.send_cq.addr, abi.CQE_BYTES << qp.send_cq.log2) == image, "a completion of the old life"
        operations["reset"] += len(qps)

    def send_late(self, frames):
        """Up to six good frames of a former life arrive once more; their number."""
        def good(frame):
            """Undamaged, also where the ICRC does not look."""
            try:
                packet = parse(frame)
            except PacketError:
                packet = None
            return packet and packet.icrc_ok and frame[:6] == MACS[0].to_bytes(6, "big") and internet_checksum(frame[14:34]) == 0
        frames = [f for f in self.rng.sample(frames, min(len(frames), 6)) if good(f)]
        for frame in frames:
            self.engine.send(frame if len(frame) >= 60 else frame + bytes(60 - len(frame)))
        operations["late frame"] += len(frames)
        return len(frames)

    def late(self, frames):
        """Frames for a number that is not in use: each is dropped and counted."""
        def counted():
            return sum(self.engine.counter(ERRORS[row].index) for row in ("QPN_UNKNOWN", "QPN_GENERATION", "QP_STATE"))
        before = counted()
        number = self.send_late(frames)
        # They may stand behind packets of others whose memory is slow, and those never end.
        for _ in range(200):
            self.work(100)
            if counted() - before >= number:
                break
        else:
            raise AssertionError(f"{number} late frames, {counted() - before} counted")

    def again(self, qp):
        """The same QP with PSNs that no packet of the old life fits, and new work; some of those packets come."""
        a    = qp.attributes
        psns = [(a[name] + self.rng.randrange(1 << 22, 3 << 22)) & 0xffffff for name in ("sq_psn", "rq_psn")]
        old  = self.watch.received.pop(qp.qpn, ())
        self.watch.lift(qp.index, "RESET", "INVALIDATE", "REREGISTER")
        qp.sq.reset()
        self.roce.write_rq(qp)
        self.reach(qp, abi.QP_INIT, abi.QP_RTR, abi.QP_RTS, sq_psn=psns[0], rq_psn=psns[1])
        self.model.modify_qp(qp.peer, verbs.QPS_RTS, sq_psn=psns[1], rq_psn=psns[0])
        self.traffic.revive(qp)
        self.traffic.add(qp, 4)
        if self.rng.random() < .5:
            self.send_late(old)

    def destroy(self, qp):
        """A QP in RESET and its queues are taken away; their memory is the owner's again."""
        qp.destroy()
        qp.send_cq.destroy()
        self.watch.give_up("destroy", self.sim.cycles(), [(qp.sq.addr, abi.SEND_WQE_BYTES << qp.sq.log2),
            (qp.rq.addr, abi.RECV_WQE_BYTES << qp.rq.log2), (qp.send_cq.addr, abi.CQE_BYTES << qp.send_cq.log2)])
        self.model.destroy_qp(qp.peer)
        self.bench.pairs.remove(qp)
        self.traffic.bury(qp)
        operations["destroy"] += 1

    def create(self, old):
        """A QP on a destroyed one's index and queue numbers: another generation, other rings, another peer."""
        rng, a = self.rng, old.attributes
        own = {name: a[name] for name in ("timeout", "min_rnr_timer", "max_rd_atomic", "max_dest_rd_atomic")}
        self.peers += 1
        self.watch.lift(old.index, "RESET", "INVALIDATE", "REREGISTER")
        cq  = self.roce.create_cq(8, index=old.send_cq.index)
        new = self.bench.pair(cq, self.peers, index=old.index, sq_log2=rng.choice((2, 4, 6)), rq_log2=rng.choice((2, 4, 6)),
            pmtu=rng.randrange(1, 6), sq_psn=rng.choice((a["sq_psn"], rng.getrandbits(24))), rq_psn=rng.choice((a["rq_psn"], rng.getrandbits(24))), **own)
        assert new.qpn != old.qpn
        new.mr = old.mr
        self.bench.pairs.append(new)
        self.traffic.birth(new, 4)
        self.late(self.watch.received.pop(old.qpn, ()))

    def finish(self, qp):
        """Everything that a QP in ERR had posted completes, in order."""
        self.bench.run(lambda: self.traffic.advance() or self.traffic.posted(qp) == (0, 0), max_cycles=100_000)

    def err(self, qps):
        """ERR, by several masters; nothing is waited for."""
        self.kill(qps)
        self.command(*[self.modify(qp, abi.QP_ERR) for qp in qps])
        operations["err"] += len(qps)

    # Plays: each leaves every QP alive -------------------------------------------------------------------

    def play_reset(self):
        qps = self.some(self.rng.choice((1, 1, 2)))
        if self.rng.random() < .4:
            self.err(qps)
            if self.rng.random() < .5:
                for qp in qps:
                    self.finish(qp)
            else:
                self.work(self.rng.randrange(200))
        self.reset(qps)
        for qp in qps:
            self.again(qp)

    def play_destroy(self):
        qp, = self.some()
        if self.rng.random() < .3:
            self.err([qp])
        self.reset([qp])
        self.destroy(qp)
        self.work(self.rng.choice((0, 500)))
        self.create(qp)

    def play_drained(self):
        """SQD and back: nothing is lost."""
        qp, = self.some()
        self.reach(qp, abi.QP_SQD)
        self.work(self.rng.randrange(2000))
        self.reach(qp, abi.QP_RTS)
        operations["sqd"] += 1

    def play_region(self):
        """A region that is in use is invalidated, or overwritten by another; then its QP begins anew."""
        qp, = self.some()
        again = self.rng.random() < .5
        mr    = qp.mr
        self.kill([qp])
        what  = "REREGISTER" if again else "INVALIDATE"
        words = dict(index=mr.index)
        if again:
            words.update(variant=mr.variant % 255 + 1, access=ACCESS, pd=1, va=ENGINE_VA, length=REGION, addr=ENGINE_VA)
        end, = self.command((abi.CMD_WRITE_MR if again else abi.CMD_INVALIDATE_MR, abi.pack_args(abi.MR_ARGS, **words)))
        self.watch.forbid(what, end, qp.index)
        self.work(self.rng.choice((100, 1000, 3000)))
        self.reset([qp])
        qp.mr = self.roce.reg_mr(ENGINE_VA, REGION, access=ACCESS, index=mr.index, variant=mr.variant % 255 + 1)
        self.again(qp)
        operations[what.lower()] += 1

    def play_queue(self):
        """A completion or receive queue is taken away under its living QP: no byte of it moves; the QP is made anew."""
        rng, (qp,) = self.rng, self.some()
        what, opcode, layout, index, ring, size = rng.choice((
            ("completion queue", abi.CMD_WRITE_CQ, abi.CQ_ARGS, qp.send_cq.index, qp.send_cq, abi.CQE_BYTES),
            ("receive queue", abi.CMD_WRITE_RQ, abi.RQ_ARGS, qp.attributes["rq_index"], qp.rq, abi.RECV_WQE_BYTES)))
        lost = self.engine.counter(ERRORS["CQ_OVERFLOW"].index)
        self.kill([qp])
        end, = self.command((opcode, abi.pack_args(layout, index=index)))
        self.watch.forbid(what, end, qp.index, [(ring.addr, size << ring.log2)], payload=False)
        self.work(rng.choice((0, 100, 1000, 3000)))
        if self.engine.counter(ERRORS["CQ_OVERFLOW"].index) != lost:
            assert qp.query()["state"] == abi.QP_ERR, "a completion was lost, the QP lives on"
        self.reset([qp])
        self.destroy(qp)
        self.watch.lift(qp.index, what)
        self.create(qp)
        # Entries that were there already may have been taken, and told to a queue that is no more.
        self.traffic.refused_doorbells = self.engine.counter(ERRORS["DOORBELL"].index)
        operations[what] += 1

    def play_fault(self):
        """A ring of one QP cannot be read, or not be written: who needs it fails, and is made anew."""
        rng, traffic, (qp,) = self.rng, self.traffic, self.some()
        ring, size, kind = rng.choice(((qp.sq, abi.SEND_WQE_BYTES, READS), (qp.rq, abi.RECV_WQE_BYTES, READS),
            (qp.send_cq, abi.CQE_BYTES, WRITES)))
        for group in (traffic.suspects, traffic.unread):
            group.add(qp.qpn)
        self.engine.memory.fail(ring.addr, ring.addr + (size << ring.log2), rng.randrange(1, 4), kinds=kind)
        traffic.add(qp, 4)
        for _ in range(rng.choice((1, 20))):
            self.work(rng.randrange(1, 1000))
            if qp.query()["state"] == abi.QP_ERR:
                operations["ring fault met"] += 1
                break
        self.reset([qp])
        self.engine.memory.heal()
        for group in (traffic.suspects, traffic.unread):
            group.remove(qp.qpn)
        if ring is qp.send_cq or rng.random() < .5:
            # Completions that were lost left a gap.
            self.destroy(qp)
            self.create(qp)
        else:
            self.again(qp)
        operations["ring fault"] += 1

    def play_events(self):
        """The event queue is made anew; events come in the new one, from its first place on."""
        for qp in self.bench.pairs:
            qp.send_cq.arm()
        self.work(self.rng.randrange(200))
        ring  = self.events.ring
        self.command(self.events.geometry())
        self.watch.give_up("event queue", self.sim.cycles(), [ring])
        before = sum(self.events.seen.values())
        for qp in self.bench.pairs:
            qp.send_cq.arm()
        self.traffic.top_up()
        self.bench.run(lambda: [self.traffic.advance(), self.events.poll()] and sum(self.events.seen.values()) > before, max_cycles=200_000)
        operations["event queue"] += 1

    def play_refused(self):
        """Commands with bad arguments change nothing."""
        qp, = self.some()
        a, bad = {**qp.attributes, "state": abi.QP_RTS}, abi.CODE_BAD_VALUE
        words, code = self.rng.choice((
            (dict(a, qpn=qp.qpn ^ 1), bad), (dict(a, qp_type=1), bad), (dict(a, pmtu=6), bad), (dict(a, rq_index=256), bad), (dict(a, send_cq=256), bad),
            (dict(a, sq_addr=8), bad), (dict(a, max_rd_atomic=17), bad), (dict(a, state=abi.QP_INIT), abi.CODE_BAD_STATE), (dict(a, qpi=256), abi.CODE_BAD_INDEX)))
        self.command((abi.CMD_MODIFY_QP, abi.pack_args(abi.QP_ARGS, **words)), code=code)
        for opcode, args, code in ((abi.CMD_WRITE_MR, dict(index=1024), abi.CODE_BAD_INDEX), (abi.CMD_WRITE_CQ, dict(index=qp.send_cq.index, valid=1, log2=0), bad),
                (abi.CMD_WRITE_RQ, dict(index=qp.attributes["rq_index"], valid=1, log2=3, addr=8), bad), (0x7f, dict(index=0), abi.CODE_BAD_OPCODE)):
            layout = abi.MR_ARGS if opcode == abi.CMD_WRITE_MR else abi.CQ_ARGS
            self.command((opcode, abi.pack_args(layout, **args)), code=code)
        assert qp.query()["state"] == qp.attributes["state"] == abi.QP_RTS
        operations["refused command"] += 5

    PLAYS = ((play_reset, 6), (play_destroy, 5), (play_drained, 2), (play_region, 4), (play_queue, 2), (play_fault, 2),
        (play_events, 1), (play_refused, 1))

    def run(self, count):
        """So many plays at random clocks, then the rest of the work, then everything is destroyed. Returns the clocks."""
        plays, weights = zip(*self.PLAYS)
        for _ in range(count):
            self.traffic.top_up()
            self.work(self.rng.randrange(2500))
            self.rng.choices(plays, weights)[0](self)
        self.traffic.run()
        self.end()
        return self.sim.cycles()

    def end(self):
        """All is destroyed; nothing is left."""
        for qp in list(self.bench.pairs):
            self.reset([qp])
            self.destroy(qp)
            qp.mr.destroy()
        self.bench.mr.destroy()
        self.command((abi.CMD_WRITE_EQ, abi.pack_args(abi.EQ_ARGS, index=0)))
        self.watch.look()
        self.watch.check_canaries()
        check_idle(self.bench)
        left = leaks(self.sim)
        assert not left, "left behind: " + "; ".join(left[:10])


def run(seed, count=25):
    """One play for sim/stress.py; returns the clocks simulated."""
    life = Life(seed)
    try:
        return life.run(count)
    except (AssertionError, RuntimeError, LookupError) as error:
        raise AssertionError(f"{type(error).__name__}: {error}\n  at clock {life.sim.cycles()}, {life.chosen}") from error
