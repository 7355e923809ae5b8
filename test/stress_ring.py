# SPDX-License-Identifier: BSD-2-Clause
"""Send rings that are always full, on the compiled engine: slow descriptors, loss, needless time-outs, pushes.

A slot holds its next work request as soon as the completion of the last has returned it, so a work request that
is read or kept too long is another one.
"""
import functools
import random

from test.engine_bench import ModelBench
from test.engine_traffic import Traffic

LENGTHS = ((0, 1, 64, 200, 256, 257, 700), (1, 1500), (0,), (256, 512, 513, 0))
COUNT   = 250      # work requests of all QPs together.


def run(seed):
    """One play; returns the clocks simulated."""
    rng   = random.Random(seed)
    qps   = rng.choice((1, 1, 2, 3))
    bench = ModelBench(seed=seed, qps=qps, pmtu=1,
        faults=dict(loss=rng.choice((.02, .05, .1)), reorder=rng.choice((0, .1))),
        vary=lambda n: dict(sq_log2=rng.choice((4, 6, 6)), sq_psn=rng.choice((5, 0xfffff0, 0x7fffe0)),
            timeout=rng.choice((7, 8)), sq_sig_all=1, max_rd_atomic=rng.choice((1, 4, 16)), max_dest_rd_atomic=16))
    for qp in bench.pairs if rng.random() < .5 else ():
        qp.post_send = functools.partial(qp.post_send, push=True)
    bench.engine.memory.ports["e0_dr", "read"].set(latency=rng.choice((4, 300, 1000, (1, 1500))))
    operations = rng.choice((("SEND", "WRITE", "READ"), ("WRITE",), ("READ", "SEND")))
    Traffic(bench, rng, COUNT//qps, rng.choice(LENGTHS), operations=operations, sides=("engine",)).run()
    return bench.bench.sim.cycles()
