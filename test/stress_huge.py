# SPDX-License-Identifier: BSD-2-Clause
"""Messages of the largest size: 2^31 bytes by WRITE and READ, across addresses of 2^32; memory checks a pattern."""
from roce_soc import verbs
from roce_soc.errors import ERRORS
from sim.engine import Bench
from test.engine_pair import connect_inside

LARGEST = 1 << 31


def move(operation, length, seed=1):
    """One message between two QPs of one engine; source and sink lie across 2^32, at other lanes, so do their VAs."""
    bench  = Bench(seed=seed, tick_cycles=1)
    engine = bench.engines[0]
    near, far = (1 << 32) - length//2 - 5, (3 << 32) - length//3 - 42
    engine.memory.pattern(near, near + length)
    counts = engine.memory.pattern(far, far + length)
    a, _   = connect_inside(engine, pmtu=5, timeout=20)
    shift  = 0x7000_0000 + 64*seed
    source, sink = [engine.roce.reg_mr(addr + shift, length, addr=addr, access=7) for addr in (near, far)]
    local, remote = (sink, source) if operation == "READ" else (source, sink)
    opcode = {"READ": verbs.WR_RDMA_READ, "WRITE": verbs.WR_RDMA_WRITE}[operation]
    a.post_send(opcode, local, length=length, remote_va=remote.va, rkey=remote.rkey, wr_id=9)
    done = []
    bench.run(lambda: done.extend(a.send_cq.poll()) or done, max_cycles=length//32 + 20_000,
        every=max(500, length//2000))
    assert [(e["wr_id"], e["status"]) for e in done] == [(9, verbs.WC_SUCCESS)], done
    assert counts() == dict(written=length, wrong=0, jumps=0), counts()
    assert not any(engine.counter(row.index) for row in ERRORS.values())
    return bench.sim.cycles()


def run(seed):
    """One message of 2^31 bytes: READ for odd seeds, WRITE for even ones; about 36 million clocks."""
    return move("READ" if seed % 2 else "WRITE", LARGEST, seed)
