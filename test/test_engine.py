# SPDX-License-Identifier: BSD-2-Clause
"""The compiled engine end to end: against itself and against the reference model, with a faulty wire."""
import pytest

from roce_soc import abi, verbs
from roce_soc.errors import ERRORS
from sim.engine import Bench, connect
from sim.harness.memory import SLOW
from test.engine_bench import ENGINE_VA, MODEL_VA, REGION, ModelBench

LENGTHS = (0, 1, 2, 3, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097, 10000)
OPERATIONS = ("SEND", "SEND_IMM", "WRITE", "WRITE_IMM", "READ")
VA = 0x1000_0000


@pytest.mark.parametrize("pmtu", [1, 3, 5])
def test_two_engines(pmtu, rng):
    """Every operation and many lengths and alignments between two engines, all bytes checked."""
    bench = Bench(engines=2, seed=pmtu)
    a, b  = bench.engines
    qa, qb = connect(a, b, pmtu=pmtu)
    ma, mb = a.roce.reg_mr(VA, 1 << 20, access=7), b.roce.reg_mr(VA, 1 << 20, access=7)
    for n, length in enumerate(LENGTHS):
        for operation in OPERATIONS:
            src, dst, data = rng.randrange(5000), 0x40000 + rng.randrange(5000), rng.randbytes(length)
            near, far = (b, a) if operation == "READ" else (a, b)
            near.write_memory(VA + src, data)
            far.write_memory(VA + dst - 8, b"\xaa"*(length + 16))
            if operation not in ("WRITE", "READ"):
                qb.post_recv(mb, va=VA + dst, length=max(length, 1), wr_id=7)
            opcode = {"SEND": 2, "SEND_IMM": 3, "WRITE": 0, "WRITE_IMM": 1, "READ": 4}[operation]
            va, remote = (dst, src) if operation == "READ" else (src, dst)
            qa.post_send(opcode, ma, va=VA + va, length=length, remote_va=VA + remote, rkey=mb.rkey, wr_id=n, imm=n + 1)
            done = []
            bench.run(lambda: done.extend(qa.send_cq.poll()) or done, max_cycles=20000)
            assert (done[0]["status"], done[0]["wr_id"]) == (0, n), (operation, length, done)
            if operation == "WRITE_IMM":
                far.write_memory(VA + dst - 8, far.read_memory(VA + dst - 8, length + 16))
            assert far.read_memory(VA + dst - 8, length + 16) == b"\xaa"*8 + data + b"\xaa"*8, (operation, length)
            if operation not in ("WRITE", "READ"):
                got = []
                bench.run(lambda: got.extend(qb.recv_cq.poll()) or got, max_cycles=5000)
                assert got[0]["byte_len"] == length and got[0]["status"] == 0 and got[0]["wr_id"] == 7
                if "IMM" in operation:
                    assert got[0]["imm"] == n + 1 and got[0]["flags"] & verbs.WC_FLAG_WITH_IMM


def exchange(bench, rng, count, lengths):
    """Random operations both ways at random offsets on all QPs of a ModelBench; checks completions and every byte."""
    engine = {p: [] for p in bench.pairs}
    model  = {p: [] for p in bench.pairs}
    engine_image = bytearray(rng.randbytes(REGION))
    model_image  = bytearray(rng.randbytes(REGION))
    bench.engine.write_memory(ENGINE_VA, bytes(engine_image))
    bench.region.write(MODEL_VA, bytes(model_image))
    slot = 16384
    places = rng.sample(range(REGION//slot), 2*count)
    for n in range(count):
        qp, length = bench.pairs[n % len(bench.pairs)], rng.choice(lengths)
        for side, posts in (("engine", engine), ("model", model)):
            operation = rng.choice(OPERATIONS)
            offset    = places.pop()*slot + rng.randrange(64)
            into_engine = (operation == "READ") == (side == "engine")
            (engine_image if into_engine else model_image)[offset:offset + length] = (model_image if into_engine else engine_image)[offset:offset + length] \
                if operation != "x" else b""
            posts[qp].append(n)
            if side == "engine":
                bench.engine_sends(qp, operation, offset, length, wr_id=n)
            else:
                bench.model_sends(qp, operation, offset, length, wr_id=n)
    sent = {p: [] for p in bench.pairs}
    mine = {p: [] for p in bench.pairs}

    def finished():
        for qp in bench.pairs:
            for e in qp.send_cq.poll():
                assert e["status"] == 0, e
                if not e["opcode"] & 0x80:
                    sent[qp].append(e["wr_id"])
            for c in bench.model.poll_cq(qp.peer):
                assert c.status == 0, c
                if not c.opcode & 0x80:
                    mine[qp].append(c.wr_id)
        return sent == engine and mine == model

    bench.run(finished, max_cycles=6_000_000)
    bench.settle(500)
    got = bench.engine.read_memory(ENGINE_VA, REGION)
    assert got == bytes(engine_image), next(i for i in range(REGION) if got[i] != engine_image[i])
    assert bench.region.read(MODEL_VA, REGION) == bytes(model_image)


def test_against_model(rng):
    """Clean wire: both directions at once on four QPs, no retransmission."""
    bench = ModelBench(seed=3, qps=4, timeout=14)
    exchange(bench, rng, 30, LENGTHS)
    assert sum(bench.model.counters.values()) == 0


@pytest.mark.parametrize("faults", [dict(loss=.05), dict(duplicate=.2), dict(reorder=.1), dict(corrupt=.1), dict(loss=.05, duplicate=.05, reorder=.05, corrupt=.05)],
    ids=lambda f: "-".join(f))
def test_faulty_wire(faults, rng, seed):
    """Loss, duplicates, reordering, corruption: everything completes once, in order, with the right bytes."""
    bench = ModelBench(seed=seed, qps=3, faults=faults, timeout=8, retry_cnt=7, rnr_retry=7)
    exchange(bench, rng, 30, LENGTHS)


def test_slow_memory(rng, seed):
    """Memory latency 1 to 1000, stalls on every handshake."""
    bench = ModelBench(seed=seed, qps=2, memory=SLOW, timeout=14, gap=.2, stall=.2)
    exchange(bench, rng, 20, LENGTHS)


def test_psn_wrap(rng):
    """PSNs wrap inside messages of both directions."""
    bench = ModelBench(seed=4, qps=1, sq_psn=0xfffff8, rq_psn=0xfffffa, timeout=14)
    exchange(bench, rng, 12, (4096, 10000, 0))


def test_peer_dead():
    """No answer: retry_cnt repeats, RETRY_EXC_ERR for the first, flush for the rest, one event, QP in ERR."""
    bench = ModelBench(seed=5, timeout=4, retry_cnt=2, faults=dict(loss=1.0))
    qp = bench.pairs[0]
    for n in range(3):
        bench.engine_sends(qp, "WRITE", 64*n, 64, wr_id=n, flags=0)
    done = []
    bench.run(lambda: done.extend(qp.send_cq.poll()) or len(done) == 3, max_cycles=200_000)
    assert [(e["wr_id"], e["status"]) for e in done] == [(0, verbs.WC_RETRY_EXC_ERR), (1, verbs.WC_WR_FLUSH_ERR), (2, verbs.WC_WR_FLUSH_ERR)]
    assert done[0]["vendor_err"] == ERRORS["RETRY_EXCEEDED"].index
    bench.settle(200)
    assert qp.query()["state"] == abi.QP_ERR


def test_reset_and_reuse(rng):
    """After an error: RESET, the same QP again with new PSNs, traffic as new."""
    bench = ModelBench(seed=6, timeout=14)
    qp = bench.pairs[0]
    exchange(bench, rng, 6, LENGTHS)
    qp.modify(abi.QP_ERR)
    bench.settle(300)
    qp.modify(abi.QP_RESET)
    qp.send_cq.poll()
    bench.model.modify_qp(qp.peer, verbs.QPS_RESET)
    for state in (abi.QP_INIT, abi.QP_RTR, abi.QP_RTS):
        qp.modify(state, sq_psn=0x777, rq_psn=0x888)
    bench.model.modify_qp(qp.peer, verbs.QPS_RTS, sq_psn=0x888, rq_psn=0x777)
    exchange(bench, rng, 6, LENGTHS)


@pytest.mark.parametrize("change,status,row", [
    (dict(rkey=0x12345), verbs.WC_REM_ACCESS_ERR, None), (dict(remote_va=MODEL_VA + REGION - 10), verbs.WC_REM_ACCESS_ERR, None),
    (dict(lkey=0x9900), verbs.WC_LOC_PROT_ERR, "LOCAL_PROTECTION"), (dict(va=ENGINE_VA + REGION - 63), verbs.WC_LOC_PROT_ERR, "LOCAL_PROTECTION")])
def test_bad_work_requests(change, status, row):
    """Wrong keys and bounds: the work request completes with its status, those before are good, those behind are flushed."""
    bench = ModelBench(seed=7, timeout=14)
    qp = bench.pairs[0]
    bench.engine_sends(qp, "WRITE", 0, 64, wr_id=1)
    values = {**dict(va=ENGINE_VA, length=64, remote_va=MODEL_VA, rkey=bench.region.key), **change}
    qp.post_send(verbs.WR_RDMA_WRITE, bench.mr, wr_id=2, **values)
    bench.engine_sends(qp, "WRITE", 128, 64, wr_id=3)
    done = []
    bench.run(lambda: done.extend(qp.send_cq.poll()) or len(done) == 3, max_cycles=100_000)
    assert [(e["wr_id"], e["status"]) for e in done] == [(1, 0), (2, status), (3, verbs.WC_WR_FLUSH_ERR)]
    if row:
        assert done[1]["vendor_err"] == ERRORS[row].index


@pytest.mark.parametrize("change,row,status", [
    (dict(rkey=0x9900), "MR_KEY", verbs.WC_REM_ACCESS_ERR), (dict(remote_va=ENGINE_VA + REGION - 63), "MR_BOUNDS", verbs.WC_REM_ACCESS_ERR)])
def test_refused_requests(change, row, status):
    """The peer's wrong keys draw a NAK, are counted, and leave the QP in ERR; another QP goes on."""
    bench = ModelBench(seed=8, qps=2, timeout=14)
    bad, good = bench.pairs
    values = {**dict(va=MODEL_VA, length=64, lkey=bench.region.key, remote_va=ENGINE_VA, rkey=bench.mr.rkey), **change}
    bench.model.post_send(bad.peer, 1, verbs.WR_RDMA_WRITE, **values)
    done = []
    bench.run(lambda: done.extend(bench.model.poll_cq(bad.peer)) or done, max_cycles=50_000)
    assert done[0].status == status
    bench.settle(300)
    assert bench.engine.counter(ERRORS[row].index) == 1 and bad.query()["state"] == abi.QP_ERR
    bench.model_sends(good, "WRITE", 4096, 500, wr_id=9)
    done = []
    bench.run(lambda: done.extend(bench.model.poll_cq(good.peer)) or done, max_cycles=50_000)
    assert done[0].status == 0
    assert bench.engine.read_memory(ENGINE_VA + 4096, 500) == bench.region.read(MODEL_VA + 4096, 500)
