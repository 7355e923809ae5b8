# SPDX-License-Identifier: BSD-2-Clause
"""Memory that is late, fails or stops, seeded: who asked fails as told, all that was taken returns."""
import pytest

from roce_soc import verbs
from sim.engine import MEMORIES, Bench
from test import stress_memory
from test.engine_bench import ACCESS, MODEL_VA, ModelBench
from test.engine_traffic import Traffic

SEEDS = (1, 2, 4, 5, 7)


@pytest.mark.parametrize("name", MEMORIES)
def test_any_memory(name, seed, rng, monkeypatch):
    """Each memory that ROCE_MEMORY can give the engine suite: work of both sides, loss, every byte, nothing left."""
    monkeypatch.setenv("ROCE_MEMORY", name)
    bench = ModelBench(seed=seed, qps=3, timeout=11, faults=dict(loss=.02), gap=.1, stall=.1)
    assert bench.engine.port("pw").options["latency"] == MEMORIES[name]["latency"]
    Traffic(bench, rng, 8, (0, 1, 64, 1025, 5000), late=500).run()


def test_no_such_memory(monkeypatch):
    """A name that is not there is refused with those that are."""
    monkeypatch.setenv("ROCE_MEMORY", "2000")
    with pytest.raises(ValueError, match="ROCE_MEMORY must be one of ideal, 1, 20"):
        Bench()


@pytest.mark.parametrize("number", SEEDS)
def test_faults(number, pytestconfig):
    """Errors 1, 2 and 3 in payload, send ring and receive ring, under traffic, in every role."""
    stress_memory.faults(number + 1000*(int(pytestconfig.option.seed) - 1))


@pytest.mark.parametrize("port", ["t0w", "t0r0", "t0r1"])
def test_outage(port, seed):
    """A memory port that stops: commands end meanwhile, late answers are swallowed, all goes on."""
    stress_memory.outage(seed, port)


# Neighbours of a slow memory ----------------------------------------------------------------------

OPERATIONS = {"placed": (verbs.WR_RDMA_WRITE, "model"), "sent": (verbs.WR_RDMA_WRITE, "engine"),
    "replied": (verbs.WR_RDMA_READ, "model")}


def rate(operation, busy, options, seed=1, cycles=12_000):
    """Messages of 1 KiB that three QPs with fast memory move in `cycles`; `busy`: a fourth works on the other."""
    code, side = OPERATIONS[operation]
    bench  = ModelBench(seed=seed, qps=4, targets=2, timeout=0, pmtu=3)
    engine = bench.engine
    slow   = engine.roce.reg_mr(0x4000_0000, 1 << 20, access=ACCESS, target=1)
    for name in ("t1w", "t1r0", "t1r1"):
        engine.port(name).set(**options)
    done, open_ = 0, {qp: 0 for qp in bench.pairs[0 if busy else 1:]}

    def post():
        nonlocal done
        for qp in open_:
            got = len(qp.send_cq.poll()) if side == "engine" else len(bench.model.poll_cq(qp.peer))
            open_[qp] -= got
            done += got if qp is not bench.pairs[0] else 0
            mr   = slow if qp is bench.pairs[0] else bench.mr
            at   = 0x10000*bench.pairs.index(qp)
            while open_[qp] < 8:
                if side == "engine":
                    qp.post_send(code, mr, va=mr.va + at, length=1024, remote_va=MODEL_VA + at, rkey=bench.region.key)
                else:
                    bench.model.post_send(qp.peer, 0, code, va=MODEL_VA + at, length=1024, lkey=bench.region.key,
                        remote_va=mr.va + at, rkey=mr.rkey)
                open_[qp] += 1
        return bench.bench.sim.cycles() > end
    end = bench.bench.sim.cycles() + 2000
    bench.run(post, every=25)
    done, end = 0, bench.bench.sim.cycles() + cycles
    bench.run(post, every=25)
    return done


# Share of what they move while the fourth has fast memory, too. Packets keep one order whatever their memory: at 1000
# clocks they wait (doc/architecture.md, section 3); a memory that stops costs them one watchdog.
SHARES = {"placed": (.95, .45, .95), "sent": (.95, .4, .95), "replied": (.92, .2, .95)}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_neighbours_of_a_slow_memory(operation):
    """What three QPs with fast memory keep while a fourth works on one that takes 200 or 1000 clocks, or stopped."""
    fair = rate(operation, True, {})
    for share, options in zip(SHARES[operation], (dict(latency=200), dict(latency=1000), dict(paused=True))):
        moved = rate(operation, True, options)
        assert moved >= share*fair, f"{operation}: {moved} of {fair} messages beside {options}"
