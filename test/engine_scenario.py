# SPDX-License-Identifier: BSD-2-Clause
"""Random surroundings and random work for the compiled engine against the model, all decided by one number."""
import random

from sim.harness.memory import SLOW
from test.engine_bench import REGION, ModelBench
from test.engine_traffic import OPERATIONS, Traffic

MEMORIES = (SLOW, dict(latency=(1, 200), answer_gap=.2, data_stall=.2, cmd_stall=.2), dict(latency=1000, depth=64), dict(latency=(1, 30), depth=2, cmd_stall=.5))
LENGTHS  = ((0, 1, 2, 3, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025), (0, 1, 4095, 4096, 4097, 10000), (64,), (0,), tuple(range(300)), (16000, 1, 8192))
WORK     = (tuple(OPERATIONS), tuple(OPERATIONS), ("READ",), ("WRITE",), ("SEND", "SEND_IMM"), ("READ", "WRITE"), ("READ", "SEND"))
PSNS     = (0xfffff8, 0x7ffffc, 5, 0xffffff)


def faults(rng):
    """Probabilities of up to three faults of the wire."""
    if rng.random() < .3:
        return {}
    return {name: rng.choice((.01, .05, .07) if name in ("loss", "corrupt") else (.05, .2, .5))
        for name in rng.sample(("loss", "duplicate", "reorder", "corrupt"), rng.randrange(1, 4))}


def scenario(seed, clocks=None):
    """(Traffic that is ready to run, what was chosen as a dict); `clocks` as Bench."""
    rng    = random.Random(seed)
    chosen = dict(qps=rng.choice((1, 1, 2, 3, 6)), memory=rng.choice(MEMORIES) if rng.random() < .4 else None, faults=faults(rng))
    if rng.random() < .5:
        chosen.update(gap=rng.choice((0, .2, .5)), stall=rng.choice((0, .2, .6)))

    def vary(_):
        # A time-out below the slowest memory's round trip would end in RETRY_EXC_ERR, rightly.
        return dict(pmtu=rng.randrange(1, 6), max_rd_atomic=rng.choice((1, 2, 4, 16)), max_dest_rd_atomic=16, sq_log2=rng.choice((1, 2, 6)),
            rq_log2=rng.choice((1, 2, 6)), sq_psn=rng.choice(PSNS + (rng.getrandbits(24),)), rq_psn=rng.choice(PSNS), sq_sig_all=rng.randrange(2),
            timeout=11 if chosen["memory"] else rng.choice((8, 9, 10)), min_rnr_timer=rng.randrange(1, 14), hop_limit=rng.randrange(1, 256), tclass=rng.getrandbits(8) & 0xfc)
    work  = dict(lengths=rng.choice(LENGTHS), operations=rng.choice(WORK), late=rng.choice((0, 0, 1000, 6000)), depth=rng.choice((1, 3, 1000)))
    slot  = -(-(max(work["lengths"]) + 160)//64)*64
    count = min(REGION//slot//(2*chosen["qps"]), rng.choice((10, 20, 40)))
    bench = ModelBench(seed=seed, vary=vary, clocks=clocks, **chosen)
    return Traffic(bench, rng, count, **work), {**chosen, **work, "count": count}


def run(seed):
    """One play for sim/stress.py: the scenario, every byte checked, nothing left inside. Returns the clocks simulated."""
    traffic, chosen = scenario(seed)
    try:
        traffic.run()
    except (AssertionError, RuntimeError) as error:
        raise AssertionError(f"{error}\n  {chosen}") from error
    return traffic.bench.bench.sim.cycles()
