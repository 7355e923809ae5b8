# SPDX-License-Identifier: BSD-2-Clause
"""Random work under random faults, stalls, latencies, ring sizes, path MTUs and late receives; memory that fails; floods."""
import random

import pytest

from roce_soc import abi, verbs
from roce_soc.common import TICKS_PER_10US, connection_layout
from roce_soc.errors import ERRORS
from roce_soc.opcodes import RNR_TIMER_10US
from sim.engine import IPS, MACS, Bench
from test import engine_scenario
from test.engine_bench import ENGINE_VA, MODEL_VA, ModelBench
from test.engine_traffic import Traffic, check_idle

# Chosen for what they cover in little time; 508: a ring of four slots under loss and stalls.
SEEDS = (3, 7, 10, 12, 25, 34, 508)


@pytest.mark.parametrize("number", SEEDS)
def test_scenario(number, pytestconfig):
    """Everything completes once, in order, with every byte right, and nothing is left inside."""
    engine_scenario.run(number + 1000*(int(pytestconfig.option.seed) - 1))


@pytest.mark.parametrize("max_rd_atomic", [1, 2, 16])
def test_read_depth(max_rd_atomic, seed):
    """Never more READs open than the peer allows; all of them come."""
    bench   = ModelBench(seed=seed, qps=2, max_rd_atomic=max_rd_atomic, max_dest_rd_atomic=max_rd_atomic, timeout=10, faults=dict(loss=.02))
    traffic = Traffic(bench, random.Random(seed), 30, (1, 1024, 3000), operations=("READ", "READ", "WRITE"))
    traffic.run()
    assert not bench.model.counters["READ_RESOURCES"]


@pytest.mark.parametrize("code", range(1, 14, 3))
@pytest.mark.parametrize("retry", [0, 3, 7])
def test_rnr(code, retry, seed):
    """No receive: sent again rnr_retry times, never before the peer's timer, then status 13; 7 is for ever."""
    bench = ModelBench(seed=seed, rnr_retry=retry, min_rnr_timer=code, timeout=14)
    qp    = bench.pairs[0]
    bench.engine_sends(qp, "WRITE", 0, 64, wr_id=1)
    qp.post_send(verbs.WR_SEND, bench.mr, va=ENGINE_VA, length=300, wr_id=2)
    limit, done, tries = 8 if retry == 7 else retry + 1, [], []
    wait  = RNR_TIMER_10US[code]*TICKS_PER_10US          # ticks of one clock here.

    def look():
        done.extend(qp.send_cq.poll())
        tries[:] = [f for way, f in bench.wire if way == "to_model"]
        return len(done) == 2 or (retry == 7 and len(tries) > limit)
    begun = bench.bench.sim.cycles()
    bench.run(look, max_cycles=3*(limit + 1)*wait + 20_000)
    assert bench.bench.sim.cycles() - begun >= (limit - 1)*wait
    if retry == 7:
        bench.model.post_recv(qp.peer, 9, MODEL_VA, 300, bench.region.key)
        bench.run(lambda: look() and len(done) == 2, max_cycles=3*wait + 20_000)
    assert len(tries) == limit + 1 + (retry == 7) and [(e["wr_id"], e["status"]) for e in done] == [(1, 0), (2, 0 if retry == 7 else verbs.WC_RNR_RETRY_EXC_ERR)]


FAILS = {   # what lies in memory that fails: (operation, who posts, status at the engine's send side, at the model's, row)
    "payload to send":    ("WRITE", "engine", verbs.WC_LOC_QP_OP_ERR, None, "LOCAL_MEMORY"),
    "place of READ data": ("READ", "engine", verbs.WC_LOC_PROT_ERR, None, "RESPONSE_MEMORY"),
    "place of a WRITE":   ("WRITE", "model", None, verbs.WC_REM_OP_ERR, "MEMORY_FAULT"),
    "place of a SEND":    ("SEND", "model", None, verbs.WC_REM_OP_ERR, "MEMORY_FAULT"),
    "source of a READ":   ("READ", "model", None, verbs.WC_REM_OP_ERR, "MEMORY_FAULT"),
}


@pytest.mark.parametrize("err", [1, 2, 3])
@pytest.mark.parametrize("what", FAILS)
def test_memory_fails(what, err, seed):
    """A memory that refuses, has no such address or does not answer: one QP fails as the table says, the other goes on."""
    operation, side, own, peers, row = FAILS[what]
    bench = ModelBench(seed=seed, qps=2, timeout=14)
    bad, good = bench.pairs
    traffic = Traffic(bench, random.Random(seed), 10, (64, 1024, 5000), pairs=[good])
    mr   = bench.engine.roce.reg_mr(0x4000_0000, 1 << 16, access=7, addr=0x6000_0000)
    bench.engine.memory.fail(0x6000_0000 + 4096, 0x6000_0000 + 4160, err)
    far  = bench.model.reg_mr(0x7000_0000, 1 << 16, 7, key=0x999, pd=1)
    code = {"WRITE": verbs.WR_RDMA_WRITE, "READ": verbs.WR_RDMA_READ, "SEND": verbs.WR_SEND}[operation]
    for wr_id, length in ((1, 100), (2, 8000), (3, 100)):
        if side == "engine":
            bad.post_send(code, mr, va=0x4000_0000, length=length, wr_id=wr_id, remote_va=0x7000_0000, rkey=far.key)
        else:
            if operation == "SEND":
                bad.post_recv(mr, va=0x4000_0000, length=8000, wr_id=wr_id)
            bench.model.post_send(bad.peer, wr_id, code, va=0x7000_0000, length=length, lkey=far.key, remote_va=0x4000_0000, rkey=mr.rkey)
    mine, theirs = [], []

    def ended():
        traffic.advance()
        mine.extend(e for e in bad.send_cq.poll() if not e["opcode"] & 0x80)
        theirs.extend(bench.model.poll_cq(bad.peer))
        return len(mine if side == "engine" else theirs) == 3
    bench.run(ended, max_cycles=100_000)
    got = [(e["wr_id"], e["status"]) for e in mine] if side == "engine" else [(c.wr_id, c.status) for c in theirs]
    assert got == [(1, 0), (2, own if side == "engine" else peers), (3, verbs.WC_WR_FLUSH_ERR)]
    assert bench.engine.counter(ERRORS[row].index) == 1
    traffic.run()
    assert bad.query()["state"] == abi.QP_ERR
    check_idle(bench)


def test_payload_of_many_qps_fails_at_once(seed):
    """200 queue pairs with two WRITEs each, without time-out, from memory that refuses: each tells its own, none stays in RTS."""
    bench  = Bench(seed=seed, tick_cycles=1)
    engine = bench.engines[0]
    mr     = engine.roce.reg_mr(ENGINE_VA, 1 << 20, access=7)
    cqs    = [engine.roce.create_cq(10) for _ in range(2)]
    qps    = []
    for n in range(200):
        qp = engine.roce.create_qp(cqs[n % 2], cqs[n % 2], sq_log2=3, rq_log2=1, src_mac=MACS[0], dst_mac=MACS[1], src_ip=IPS[0],
            dst_ip=IPS[1], dest_qpn=0x300 + n, sq_psn=n*0x100, rq_psn=5, timeout=0, retry_cnt=7)
        for state in (abi.QP_INIT, abi.QP_RTR, abi.QP_RTS):
            qp.modify(state)
        qps.append(qp)
    # All reads wait, then all of them fail.
    engine.memory.set(depth=512)
    engine.port("pr").set(paused=True, timeout=1_000_000)
    engine.memory.fail(ENGINE_VA, ENGINE_VA + (1 << 20), 2)
    for wr_id in range(2):
        for i, qp in enumerate(qps):
            qp.post_send(verbs.WR_RDMA_WRITE, mr, va=ENGINE_VA + 64*i, length=64, remote_va=0x5000, rkey=1, wr_id=wr_id)
    bench.step(3000)
    engine.port("pr").set(paused=False)
    done = []
    bench.run(lambda: done.extend(e for cq in cqs for e in cq.poll()) or len(done) == 400, max_cycles=60_000)
    for qp in qps:
        assert [(e["wr_id"], e["status"]) for e in done if e["qpn"] == qp.qpn] == [(0, verbs.WC_LOC_QP_OP_ERR), (1, verbs.WC_WR_FLUSH_ERR)]
        assert qp.query()["state"] == abi.QP_ERR
    assert not engine.frames()


def test_parity(seed):
    """A bit of a connection row falls over: told once however many readers see it, the QP goes to ERR, the other one goes on."""
    bench = ModelBench(seed=seed, qps=2, timeout=14, parameters=dict(parity=True))
    bad, good = bench.pairs
    Traffic(bench, random.Random(seed), 5, (64, 1024, 5000)).run()
    assert not bench.engine.counter(ERRORS["ROW_PARITY"].index)
    sim   = bench.bench.sim
    copies = sim.memories("context.table")
    # Of the destination MAC: what a reader made of it before it was told harms nobody here.
    names  = [name for name, _ in connection_layout()]
    bit    = sum(width for _, width in connection_layout()[:names.index("dst_mac")]) + random.Random(seed).randrange(48)
    for path, rows in copies.items():
        sim.write_row(path, bad.index, rows[bad.index] ^ 1 << bit)
    traffic = Traffic(bench, random.Random(seed), 10, (64, 1024, 5000), pairs=[good])
    for wr_id in range(4):
        bench.engine_sends(bad, "WRITE", 0, 0, wr_id=100 + wr_id)
        bench.bench.work(200)
    traffic.run()
    assert bench.engine.counter(ERRORS["ROW_PARITY"].index) == 1 and bad.query()["state"] == abi.QP_ERR
    assert good.query()["state"] == abi.QP_RTS
