# SPDX-License-Identifier: BSD-2-Clause
"""qp/context: rows zero when ready, every reader its own row, two clocks."""
import pytest
from migen import *

from roce_soc.abi import EVENT_QP_FATAL
from roce_soc.common import connection_layout
from roce_soc.errors import index_of
from roce_soc.qp.context import QPContext
from sim.harness import Sim, build

WIDTH = sum(width for _, width in connection_layout())


def make(n_qps, parity=False, ports=2):
    top = QPContext(n_qps, parity)
    ios = {"ready": top.ready, "write": top.write}
    for i in range(ports):
        port, flat = top.get_port(), Signal(WIDTH)
        top.comb += flat.eq(port.row.raw_bits())
        ios.update({f"adr{i}": port.adr, f"row{i}": flat})
    if parity:
        ios.update({"fault": top.fault, "refused": top.refusal.valid, "refused_row": top.refusal.row, "refused_qpi": top.refusal.info})
    return build(top, ios, name=f"context{n_qps}_{ports}")


@pytest.fixture(scope="module", params=[16, 4096])
def bench(request):
    n_qps = request.param
    sim   = Sim(make(n_qps), seed=3)
    write = sim.source("write", records=True)
    sim.reset()
    return sim, write, n_qps


def read(sim, port, index):
    sim.poke(f"adr{port}", index)
    sim.step(2)
    return sim.peek(f"row{port}")


def test_rows(bench, rng):
    """RAM starts with random bits: every row is zero when ready rises, not before; then each row holds its own value for both readers."""
    sim, write, n_qps = bench
    assert not sim.peek("ready")
    with pytest.raises(Exception, match="after"):
        sim.wait("ready", 1, max_cycles=n_qps - 8)
    sim.wait("ready", 1, max_cycles=16)
    indices = range(n_qps) if n_qps == 16 else [0, 1, 15, 16, 2047, 2048, 4095, *(rng.randrange(n_qps) for _ in range(60))]
    assert all(read(sim, port, i) == 0 for port in (0, 1) for i in indices)
    rows = {}
    for i in indices:
        rows[i] = rng.getrandbits(WIDTH)
        write.send(index=i, row=rows[i])
    sim.drain(write)
    sim.step(2)
    for i in indices:
        assert read(sim, 0, i) == rows[i]
        assert read(sim, 1, n_qps - 1 - i) == rows.get(n_qps - 1 - i, 0)


def test_row_read_while_written(bench, rng):
    """A row asked for in the clock in which a command writes it is the whole old one, on every port; a clock later the new one."""
    sim, write, n_qps = bench
    sim.wait("ready", 1, max_cycles=n_qps + 16)
    old, new = rng.getrandbits(WIDTH), rng.getrandbits(WIDTH)
    write.send(index=9, row=old)
    sim.drain(write)
    sim.poke("adr0", 9)
    sim.poke("adr1", 9)
    sim.step(4)
    write.send(index=9, row=new)
    seen = []
    for _ in range(8):
        sim.step()
        seen.append((sim.peek("row0"), sim.peek("row1"), write.pending))
    assert all(a == b and a in (old, new) for a, b, _ in seen) and seen[-1][0] == new
    # The clock behind the one that took the row shows what was read in it.
    taken = next(n for n, (_, _, pending) in enumerate(seen) if not pending)
    assert [a for a, _, _ in seen[taken:taken + 3]] == [old, old, new]


def test_latency(bench):
    """A row two clocks after its address, one read a clock."""
    sim, write, _ = bench
    sim.run(lambda: sim.peek("ready"), max_cycles=5000)
    for i in (3, 4, 5):
        write.send(index=i, row=i)
    sim.drain(write)
    sim.step(2)
    seen = []
    for i in (3, 4, 5, 5, 5):
        sim.poke("adr0", i)
        sim.step()
        seen.append(sim.peek("row0"))
    assert seen[1:4] == [3, 4, 5]


@pytest.mark.parametrize("n_qps", [8, 17, 8192, 0])
def test_bad_sizes(n_qps):
    with pytest.raises(ValueError, match=f"from 16 to 4096, not {n_qps}"):
        QPContext(n_qps)


def test_parity(rng):
    """A bit that falls over in one reader's copy is told once, by that reader's read, until the row is written; others are not."""
    sim   = Sim(make(16, parity=True), seed=3)
    write, fault = sim.source("write", records=True), sim.sink("fault", records=True)
    sim.poke("adr0", 15), sim.poke("adr1", 14)      # read before they have been written.
    sim.reset()
    sim.wait("ready", 1)
    for port in (0, 1):
        for n in range(16):
            read(sim, port, n)
    copies = sorted(sim.memories("table"))
    assert len(copies) == 2 and not fault.recv_all()
    for n in range(16):
        write.send(index=n, row=rng.getrandbits(WIDTH))
    sim.drain(write)
    sim.step(2)
    for turn, bit in enumerate([0, WIDTH, *rng.sample(range(WIDTH), 12)]):     # WIDTH: the bit of parity itself.
        n, copy = rng.randrange(16), copies[turn % 2]
        row = sim.memories(copy)[copy][n]
        sim.write_row(copy, n, row ^ 1 << bit)
        refused = []
        for _ in range(3):
            for port in (0, 1):
                for other in rng.sample(range(16), 16):
                    for _ in range(3):
                        sim.poke(f"adr{port}", other)
                        sim.step()
                        refused += [(sim.peek("refused_row"), sim.peek("refused_qpi"))]*sim.peek("refused")
        assert [(f.type, f.queue, f.info) for f in fault.recv_all()] == [(EVENT_QP_FATAL, n, index_of("ROW_PARITY"))]
        assert refused == [(index_of("ROW_PARITY"), n)]
        write.send(index=n, row=rng.getrandbits(WIDTH))
        sim.drain(write)
        sim.step(2)
    for n in range(16):
        read(sim, 0, n), read(sim, 1, n)
    sim.step(10)
    assert not fault.recv_all()


@pytest.mark.parametrize("held", [0, 30, 400])
def test_parity_of_every_copy(rng, held):
    """Rows wrong in each of eight copies, read by all in each clock until they are written, in the midst of which
    the event waits: each is told once a life, however many kicks of the old row still stand behind others."""
    sim   = Sim(make(16, parity=True, ports=8), seed=3)
    write, fault = sim.source("write", records=True), sim.sink("fault", records=True)
    sim.reset()
    sim.wait("ready", 1)
    for n in range(16):
        write.send(index=n, row=rng.getrandbits(WIDTH))
    sim.drain(write)
    sim.step(2)
    paths = sorted(sim.memories("table"))
    assert len(paths) == 8

    def reads(clocks):
        for _ in range(clocks):
            one = rng.choice(bad)
            for port in range(8):
                sim.poke(f"adr{port}", one if rng.random() < 0.7 else rng.choice(bad))
            sim.step()

    for _ in range(12):
        bad = rng.sample(range(16), rng.randrange(1, 4))
        for path in paths:
            rows = sim.memories(path)[path]
            for n in bad:
                sim.write_row(path, n, rows[n] ^ 1 << rng.randrange(WIDTH))
        fault.set(stall=1 if held else 0)
        reads(max(40, held))
        for n in rng.sample(bad, len(bad)):
            write.send(index=n, row=rng.getrandbits(WIDTH))
            reads(rng.choice((1, 2, 40)))
        reads(60)
        fault.set(stall=0)
        reads(60)
        told = [f.queue for f in fault.recv_all()]
        # One whose row was written before its turn came is not told any more.
        assert len(told) == len(set(told)) and set(told) <= set(bad) and (held or len(told) == len(bad)) and told
