# SPDX-License-Identifier: BSD-2-Clause
"""Life cycles in traffic on the compiled engine: a few hundred seeded operations; the campaign is sim/stress.py --part life."""
import pytest

from test import stress_life

# Chosen for what they cover in little time: each kind of operation, every memory, wires with and without faults.
SEEDS = (2, 3, 4, 5, 6, 8, 9)


@pytest.mark.parametrize("number", SEEDS)
def test_play(number, pytestconfig):
    """After "done" nothing moves, late packets change nothing, neighbours go on, at the end nothing is left."""
    stress_life.run(number + 1000*(int(pytestconfig.option.seed) - 1))


def test_operations():
    """The plays above did every operation, hundreds in all."""
    done = stress_life.operations
    print(stress_life.summary())
    if len(done) and sum(done.values()) > 100:
        assert set(done) >= {"reset", "err", "destroy", "sqd", "invalidate", "reregister", "event queue", "refused command", "late frame",
            "completion queue", "receive queue", "ring fault", "ring fault met"}
