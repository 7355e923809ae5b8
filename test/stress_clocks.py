# SPDX-License-Identifier: BSD-2-Clause
"""Engine, registers and MAC in clocks of their own: random work at any ratio and phase, resets of each clock in traffic."""
import random

from roce_soc import abi
from roce_soc.errors import ERRORS
from roce_soc.monitor import TRAFFIC_BASE
from sim.engine import CLOCKS
from test.engine_bench import ModelBench
from test.engine_scenario import scenario
from test.engine_traffic import Traffic
from test.model.packet import parse

SETTINGS = tuple(name for name in CLOCKS if name != "equal")
ORDERS   = (("sys",), ("roce",), ("sys", "roce"), ("roce", "sys"))
LENGTHS  = (0, 1, 64, 1000, 1025, 5000)
SPARE    = 200                # QP whose row commands change while resets come.
TICK     = 1
WORDS    = dict(qpi=SPARE, qpn=0x100 + SPARE, qp_type=abi.QP_TYPE_RC, state=abi.QP_INIT, pd=1, pkey=0xffff, sq_log2=3)
COUNTERS = ("rx_roce_frames", "rx_slow_frames", "rx_requests", "rx_responses", "tx_frames", "tx_requests", "tx_acks", "tx_reads",
    "rewinds", "completions")


class Resets:
    """Traffic on a ModelBench at unequal clocks, and resets of its clocks."""
    def __init__(self, seed, clocks, qps=2, count=12):
        self.rng   = rng = random.Random(f"resets {seed}")
        self.seed, self.qps, self.count = seed, qps, count
        self.model_bench = ModelBench(seed=seed, qps=qps, clocks=clocks, timeout=11, tick_cycles=TICK,
            faults=rng.choice(({}, dict(loss=.03))))
        self.bench       = self.model_bench.bench
        self.engine      = self.bench.engines[0]
        self.rows        = [dict(WORDS, pmtu=1 + n, udp_sport=0x1111*(n + 1), dst_ip=0x01010101*n, sq_addr=0x40000*(n + 1),
            dest_qpn=0x111111*(n + 1), dst_mac=0x020202020200 + n, timeout=3 + n, sq_psn=0x1234 << n) for n in range(4)]
        self.begin()

    def begin(self):
        """Work for both sides, a spare QP."""
        self.traffic = Traffic(self.model_bench, self.rng, self.count, LENGTHS)
        self.row     = self.rows[0]
        self.engine.roce.command(abi.CMD_MODIFY_QP, abi.pack_args(abi.QP_ARGS, **self.row))

    def work(self, cycles):
        end = self.bench.sim.cycles() + cycles
        while self.bench.sim.cycles() < end:
            self.bench.step(20)
            self.model_bench.exchange()
            self.traffic.advance()

    # What may be under way when a reset comes ------------------------------------------------------

    def start_command(self):
        """A change of the spare QP's row, told word by word; the row it would have."""
        engine, row = self.engine, self.rng.choice(self.rows)
        engine.write_register("mailbox_host_index", 0)
        for word in abi.pack_args(abi.QP_ARGS, **row):
            engine.write_register("mailbox_host_data", word)
        engine.write_register("mailbox_host_go", 0x5500 | abi.CMD_MODIFY_QP)
        self.bench.step(self.rng.randrange(160))
        return row

    def start_doorbell(self):
        """A send doorbell that says what the last one said, under way."""
        sim, qp, p = self.bench.sim, self.rng.choice(self.model_bench.pairs), self.engine.prefix
        word = qp.index << 16 | qp.sq.producer & 0xffff
        for name, value in (("adr", (qp.page*abi.DOORBELL_PAGE_BYTES + abi.DOORBELL_SQ)//4), ("dat_w", word), ("sel", 15),
                            ("we", 1), ("cyc", 1), ("stb", 1)):
            sim.poke(f"{p}bell_{name}", value)
        self.watch(self.rng.randrange(12))

    def watch(self, cycles, until_done=False):
        """So many clocks of the registers, in which the master takes its acknowledge."""
        sim, p = self.bench.sim, self.engine.prefix
        for _ in range(cycles):
            done = sim.peek(p + "bell_cyc") and sim.peek(p + "bell_ack")
            if until_done and not sim.peek(p + "bell_cyc"):
                return
            sim.step(1, "sys")
            if done:
                self.drop_doorbell()

    def drop_doorbell(self):
        """The master has its acknowledge, or is gone."""
        for name in ("cyc", "stb"):
            self.bench.sim.poke(f"{self.engine.prefix}bell_{name}", 0)

    # Resets ---------------------------------------------------------------------------------------

    def reset(self, order):
        """Resets these clocks with a command or a doorbell under way, or nothing; then all works that should."""
        rng, sim, engine = self.rng, self.bench.sim, self.engine
        self.work(rng.randrange(1500))
        busy = rng.choice(("command", "doorbell", None))
        row  = self.start_command() if busy == "command" else None
        if busy == "doorbell":
            self.start_doorbell()
        before = self.counters()["tx_requests"] if busy is None else 0
        for clock in order:
            sim.hold(clock)
            if clock == "sys":
                self.drop_doorbell()
            self.watch(rng.choice((1, 2, 7, 40)))
        for clock in rng.sample(order, len(order)):
            sim.step(1, clock)
            self.watch(rng.choice((1, 7, 40)))
            sim.hold(clock, False)
        self.watch(300, until_done=True)
        assert not sim.peek(engine.prefix + "bell_cyc"), "a doorbell under way at a reset is never acknowledged"
        if "roce" in order:
            self.after_engine(order, row)
        else:
            self.after_registers(row, before)

    def after_registers(self, row, before):
        """The engine ran on: its QPs, its counters; commands and doorbells work, what was half said was not done."""
        engine = self.engine
        engine.write_register("time_tick_cycles", TICK)
        assert self.bench.sim.peek(engine.prefix + "ready") and self.counters()["tx_requests"] >= before
        self.check_row(row)
        self.work(200)

    def after_engine(self, order, row):
        """Nothing is left of the engine's former life; a command of a master that lives has ended; new QPs work."""
        bench, engine = self.bench, self.engine
        if row is not None and "sys" not in order:
            self.bench.run(lambda: not engine.read_register("mailbox_host_status") & 1, max_cycles=3000)
            status = engine.read_register("mailbox_host_status")
            assert status >> 1 & 1 and status >> 16 & 0xff == 0x55, hex(status)
            assert status >> 8 & 0xff in (abi.CODE_OK, abi.CODE_TIMEOUT), hex(status)
        bench.sim.wait(engine.prefix + "ready", 1, max_cycles=20_000)
        bench.run(lambda: not engine.rx.pending, max_cycles=100_000)
        bench.step(500)
        for frame in engine.tx.recv_all():
            packet = parse(frame.data) if not frame.error else None
            assert packet is None or packet.icrc_ok, "a torn frame left without its mark"
        assert engine.chunks_free() == 512 and not engine.frames()
        counters = self.counters()
        assert not any(counters[n] for n in ("tx_requests", "completions", "rewinds", "tx_reads")), counters
        engine.open(TICK)
        assert self.query() == [SPARE] + [0]*(abi.words_of(abi.QP_ARGS) - 1)
        self.model_bench = ModelBench(seed=self.seed, qps=self.qps, tick_cycles=TICK, bench=bench, timeout=11)
        self.begin()
        self.work(200)

    def query(self):
        """Words that the engine answers for the spare QP."""
        return self.engine.roce.command(abi.CMD_QUERY_QP, abi.pack_args(abi.QP_ARGS, qpi=SPARE), answer=True)

    def check_row(self, row):
        """The spare QP's row is the old one or the new one, whole."""
        answer = self.query()
        found  = [r for r in (self.row, row) if r is not None and answer == self._words(r)]
        assert found, f"half a command was done: {answer}"
        self.row = found[0]
        for row in self.rng.sample(self.rows, 2):
            self.engine.roce.command(abi.CMD_MODIFY_QP, abi.pack_args(abi.QP_ARGS, **row))
            assert self.query() == self._words(row)
            self.row = row

    @staticmethod
    def _words(row):
        """What a query answers for a row: all but what the engine does not keep."""
        return abi.pack_args(abi.QP_ARGS, **{n: v for n, v in row.items() if n not in ("sq_psn", "rq_psn")})

    def counters(self):
        return {name: self.engine.counter(TRAFFIC_BASE + n) for n, name in enumerate(COUNTERS)}

    def finish(self):
        """All work completes, every byte right, nothing left inside; a refused doorbell would be a ghost."""
        self.traffic.run()
        assert self.engine.counter(ERRORS["DOORBELL"].index) == 0, "a doorbell that nobody rang"


def run(seed):
    """One play: a scenario of test/engine_scenario.py at unequal clocks, or resets in traffic. Returns the clocks simulated."""
    rng    = random.Random(f"clocks {seed}")
    clocks = rng.choice(SETTINGS)
    if rng.random() < .5:
        traffic, chosen = scenario(seed, clocks)
        try:
            traffic.run()
        except (AssertionError, RuntimeError) as error:
            raise AssertionError(f"{error}\n  {clocks} {chosen}") from error
        return traffic.bench.bench.sim.cycles()
    play = Resets(seed, clocks)
    for _ in range(rng.randrange(1, 6)):
        play.reset(rng.choice(ORDERS))
    play.finish()
    return play.bench.sim.cycles()
