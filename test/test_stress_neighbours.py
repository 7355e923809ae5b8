# SPDX-License-Identifier: BSD-2-Clause
"""60 queue pairs beside bad ones, in floods of foreign frames, with both wires standing still: short plays."""
import pytest

from test import stress_neighbours


@pytest.mark.parametrize("mix", stress_neighbours.MIXES)
def test_bad_neighbours(mix, seed):
    """No receive, a dead peer, a slow receive ring, a peer that asks again, all at once: the others keep their rate."""
    stress_neighbours.beside(seed, mix, stress_neighbours.BAD)


@pytest.mark.parametrize("kind", stress_neighbours.BAD)
def test_bad_neighbour(kind, pytestconfig):
    """Each of them alone, beside the same good ones."""
    stress_neighbours.beside(int(pytestconfig.option.seed), "mixed", (kind,))


def test_flood(seed):
    """Small foreign and malformed frames, one in two clocks: each counted or handed out whole, nothing else lost."""
    stress_neighbours.flooded(seed)


def test_blocked_wires(seed):
    """Both ends blocked on transmit at once: nothing is lost, everything completes."""
    stress_neighbours.blocked(seed)


@pytest.mark.parametrize("every", [4, 8, 16])
def test_a_peer_that_asks_again(every):
    """READs asked again at line rate, one in 4, 8 and 16 frames: no frame of another queue pair is lost."""
    stress_neighbours.asked_again(every)
