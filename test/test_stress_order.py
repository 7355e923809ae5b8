# SPDX-License-Identifier: BSD-2-Clause
"""Order as users and peers see it, seeded: bytes, completion, event, interrupt, acknowledge; each port its latency."""
import pytest

from test import stress_order

# Between them: each port the slow one, one queue for all QPs, flush, loss, late receives.
SEEDS = (1, 3, 5, 7, 9, 11)


@pytest.mark.parametrize("number", SEEDS)
def test_every_clock(number, pytestconfig):
    """Looked at in every clock: nothing is told before it is true, and completions come in order."""
    stress_order.run(number + 1000*(int(pytestconfig.option.seed) - 1))


@pytest.mark.parametrize("number", range(4))
def test_chain(number, seed):
    """A READ behind a WRITE or SEND returns its bytes; a fenced WRITE behind a READ sends the READ's."""
    stress_order.chain(seed + number)
