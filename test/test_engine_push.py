# SPDX-License-Identifier: BSD-2-Clause
"""Work requests pushed through the doorbell window of the compiled engine, the model as peer."""
import pytest

from roce_soc import abi, verbs
from sim.harness.memory import IDEAL
from test.engine_bench import ENGINE_VA, MODEL_VA, ModelBench
from test.engine_traffic import check_idle
from test.model.packet import parse


@pytest.mark.parametrize("faults", [{}, dict(loss=.05, reorder=.05)])
def test_against_model(faults, seed, rng):
    """Pushed, plain, inline and long WRITEs in any mixture on two QPs: every byte arrives, completions in order."""
    bench = ModelBench(seed=seed, qps=2, faults=faults, timeout=9)
    image = bytearray(1 << 16)
    begun = {qp.qpn: [] for qp in bench.pairs}
    done  = {qp.qpn: [] for qp in bench.pairs}

    def poll():
        for qp in bench.pairs:
            for entry in qp.send_cq.poll():
                assert entry["status"] == 0
                done[qp.qpn].append(entry["wr_id"])
        return done == begun
    for n in range(60):
        qp, at, data = rng.choice(bench.pairs), n*1024, rng.randbytes(rng.choice((0, 1, 4, 63, 64, 500, 1000)))
        inline = len(data) <= 64 and rng.random() < .7
        if not inline:
            bench.engine.write_memory(ENGINE_VA + at, data)
        where = dict(inline=data) if inline else dict(mr=bench.mr, va=ENGINE_VA + at, length=len(data))
        qp.post_send(verbs.WR_RDMA_WRITE, remote_va=MODEL_VA + at, rkey=bench.region.key, wr_id=n, push=rng.random() < .8,
            **where)
        begun[qp.qpn].append(n)
        image[at:at + len(data)] = data
        if rng.random() < .5:
            bench.settle(rng.choice((50, 200, 2000)))
        poll()
    bench.run(poll)
    assert bench.region.read(MODEL_VA, len(image)) == image
    check_idle(bench)


def test_no_read_of_memory(seed):
    """An inline WRITE pushed to an idle QP: neither ring nor payload is read; its repetition reads both."""
    bench = ModelBench(seed=seed, memory=IDEAL, timeout=0)
    qp, engine = bench.pairs[0], bench.engine
    data = bytes(range(64))
    engine.memory.log()
    qp.post_send(verbs.WR_RDMA_WRITE, inline=data, remote_va=MODEL_VA, rkey=bench.region.key, push=True)
    bench.bench.work(200)
    frame, = engine.frames()
    assert parse(frame).payload == data and not [e for e in engine.memory.log() if e["kind"] == "read"]
    # The slots are as any other's: a plain doorbell goes on behind them.
    bench.model.rx(frame, bench.now)
    bench.settle(500)
    qp.post_send(verbs.WR_RDMA_WRITE, inline=data[::-1], remote_va=MODEL_VA + 64, rkey=bench.region.key)
    bench.settle(1000)
    assert bench.region.read(MODEL_VA, 128) == data + data[::-1] and len(qp.send_cq.poll()) == 2


def test_words_do_not_survive_reset(seed):
    """Words of a push before its QP was reset, the doorbell after: the ring is read."""
    bench = ModelBench(seed=seed, timeout=0)
    qp, engine = bench.pairs[0], bench.engine
    stale = abi.pack(abi.SEND_WQE, 64, opcode=verbs.WR_RDMA_WRITE, flags=verbs.SEND_INLINE, length=64, remote_va=MODEL_VA,
        rkey=bench.region.key) + bytes([0xee])*64
    for at in range(0, 128, 4):
        word = int.from_bytes(stale[at:at + 4], "little")
        engine.doorbell(qp.page, abi.DOORBELL_PUSH + at, word >> 16, word & 0xffff)
    for state in (abi.QP_RESET, abi.QP_INIT, abi.QP_RTR, abi.QP_RTS):
        qp.modify(state)
    slot = qp.post_send(verbs.WR_RDMA_WRITE, inline=b"fresh", remote_va=MODEL_VA, rkey=bench.region.key, ring=False)
    assert slot == 0
    engine.doorbell(qp.page, abi.DOORBELL_SQ_PUSH, qp.index, qp.sq.producer)
    bench.bench.work(300)
    frame, = engine.frames()
    assert parse(frame).payload == b"fresh"
