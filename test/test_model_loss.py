# SPDX-License-Identifier: BSD-2-Clause
"""The two halves of the reference model repair the loss, repeat and delay of every packet."""
import pytest

from roce_soc import verbs as v
from test.model.qp import RXE
from test.model_bench import A_VA, B_VA, Pair


def statuses(endpoint):
    return [(c.wr_id, c.status) for c in endpoint.poll_cq()]


# Loss of every packet -----------------------------------------------------------------------------

WORK = ((v.WR_SEND, 700), (v.WR_RDMA_WRITE, 700), (v.WR_RDMA_READ, 700), (v.WR_ATOMIC_FETCH_AND_ADD, 8),
        (v.WR_RDMA_WRITE_WITH_IMM, 300), (v.WR_SEND, 0), (v.WR_RDMA_READ, 300))


def outcome(change=None, **attributes):
    pair = Pair(**attributes)
    for wr_id in range(3):
        pair.receive(wr_id=100 + wr_id, va=B_VA + 4096*(wr_id + 1))
    for wr_id, (opcode, length) in enumerate(WORK):
        va = A_VA + 4096*wr_id
        pair.send(opcode, length, wr_id, va=va, remote_va=B_VA + 0x8000 + 4096*(wr_id % 4), swap_add=7, imm=5)
    pair.let_pass(change)
    state = (statuses(pair.a), [(c.wr_id, c.status, c.byte_len, c.imm) for c in pair.b.poll_cq()],
             bytes(pair.a.region.data), bytes(pair.b.region.data))
    return state, len(pair.wire)


def fields_that_matter(state):
    return state[0], state[1]


@pytest.mark.parametrize("profile", [None, RXE])
def test_loss_of_each_packet_is_repaired(profile):
    attributes = {"profile": profile} if profile else {}
    clean, count = outcome(**attributes)
    assert [s for _, s in clean[0]] == [0]*len(WORK) and len(clean[1]) == 3
    for lost in range(1, count + 1):
        state, _ = outcome(lambda p, n: None if n == lost else p, **attributes)
        assert fields_that_matter(state) == fields_that_matter(clean), f"packet {lost} lost"
        assert state[3] == clean[3], f"packet {lost} lost: memory of b"


def test_every_packet_doubled_changes_nothing():
    clean, _ = outcome()
    doubled, _ = outcome(lambda p, n: [p, p])
    assert doubled == clean


@pytest.mark.parametrize("percent", [1, 5, 20])
def test_random_loss_duplication_and_delay(rng, percent):
    clean, _ = outcome()
    for _ in range(20):
        late = []

        def change(packet, number):
            now, late[:] = list(late), []
            dice = rng.randrange(100)
            if dice < percent:
                return now
            if dice < 2*percent:
                return [packet, packet] + now
            if dice < 3*percent:
                late.append(packet)
                return now
            return [packet] + now
        state, _ = outcome(change)
        assert fields_that_matter(state) == fields_that_matter(clean)
        assert state[3] == clean[3]


@pytest.mark.parametrize("start", [0xfffff8, 0xffffff, 0, 0x7ffffc, 0x800000])
def test_psn_wrap_with_loss(start):
    for lost in (0, 3, 8, 9):
        state, _ = outcome(lambda p, n: None if n == lost else p, sq_psn=start)
        assert [s for _, s in state[0]] == [0]*len(WORK)
