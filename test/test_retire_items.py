# SPDX-License-Identifier: BSD-2-Clause
"""transport/retire_items: what acknowledges left for the walker is state, so they never wait for it; nothing is lost or moved."""
import pytest

from roce_soc.opcodes import psn_diff
from roce_soc.transport.requester.state import (
    ITEM_CTL, ITEM_ERROR, ITEM_FLUSH, ITEM_NONE, ITEM_PAUSE, ITEM_RESET, ITEM_REWIND, ITEM_SEEK, ITEM_START)
from roce_soc.transport.retire.items import RetireItems
from sim.harness import Sim, build

N_QPS   = 16
CONTROL = (ITEM_START, ITEM_FLUSH, ITEM_RESET, ITEM_CTL)
ACTIONS = (ITEM_PAUSE, ITEM_REWIND, ITEM_SEEK, ITEM_ERROR, *CONTROL)


@pytest.fixture(scope="module")
def so():
    top = RetireItems(N_QPS)
    return build(top, {"sink": top.sink, "source": top.source, "ready": top.ready}, name="retire_items")


def start(so, seed, stall=0.0):
    """(sim, sink, source) of a module that is ready; `stall` of the walker."""
    sim = Sim(so, seed=seed)
    ends = sim.source("sink", records=True), sim.sink("source", stall=stall, records=True)
    sim.reset()
    sim.wait("ready", 1)
    return sim, *ends


def check(sent, got):
    """One QP: [(una, action, row)] in and out. Actions in order, each behind all before it; errors and control alone."""
    top = lambda items: max((psn_diff(una, sent[0][0]) for una, *_ in items), default=0)  # noqa: E731
    assert [item[1:] for item in got if item[1]] == [item[1:] for item in sent if item[1]]
    assert top([i for i in got if i[1] not in CONTROL]) == top([i for i in sent if i[1] not in CONTROL])
    where = [n for n, item in enumerate(sent) if item[1]]
    for at in (n for n, item in enumerate(got) if item[1]):
        until  = where.pop(0)
        before = top([i for i in sent[:until + 1] if i[1] not in CONTROL])
        told   = top([i for i in got[:at + 1] if i[1] not in CONTROL])
        # What came before is told; behind an error and behind control nothing more.
        assert told == before if sent[until][1] >= ITEM_ERROR else told >= before


@pytest.mark.parametrize("stall", [0.0, 0.7, 0.97])
def test_nothing_is_lost_or_moved(so, seed, rng, stall):
    """Random items of few QPs with PSNs that wrap, a walker from fast to very slow."""
    sim, sink, source = start(so, seed, stall)
    una, sent = {}, {qpi: [] for qpi in range(N_QPS)}
    for _ in range(1500):
        qpi    = rng.choice((0, 1, 2, rng.randrange(N_QPS)))
        action = rng.choice(ACTIONS) if rng.random() < .2 else ITEM_NONE
        # An error may say a little less than was acknowledged before.
        una[qpi] = una.get(qpi, 0xfffe00) + rng.randrange(3) & 0xffffff
        item = (una[qpi] - rng.randrange(2)*(action == ITEM_ERROR) & 0xffffff, action, rng.randrange(64) if action else 0)
        sent[qpi].append(item)
        sink.send(qpi=qpi, una=item[0], action=action, row=item[2])
    got = {qpi: [] for qpi in range(N_QPS)}
    sim.run(lambda: not sink.pending, max_cycles=400_000)
    sim.step(4000)
    for item in source.recv_all():
        got[item["qpi"]].append((item["una"], item["action"], item["row"] if item["action"] else 0))
    for qpi in range(N_QPS):
        if sent[qpi]:
            check(sent[qpi], got[qpi])
    assert stall < .9 or sum(map(len, got.values())) < 1200, "nothing was joined"


def test_acknowledges_never_wait(so, seed):
    """The walker stands still: acknowledges of every QP are taken, one a clock; behind the one it was shown each QP is told once."""
    sim, sink, source = start(so, seed)
    source.set(stall=1)
    for una in range(50):
        for qpi in range(N_QPS):
            sink.send(qpi=qpi, una=una, action=ITEM_NONE, row=0)
    sim.step(50*N_QPS + 10)
    assert not sink.pending
    source.set(stall=0)
    sim.step(3*N_QPS)
    assert [(i["qpi"], i["una"]) for i in source.recv_all()] == [(0, 0), *((qpi, 49) for qpi in (*range(1, N_QPS), 0))]
