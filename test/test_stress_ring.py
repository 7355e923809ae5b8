# SPDX-License-Identifier: BSD-2-Clause
"""Send rings that are always full, on the compiled engine: slow descriptors, loss, needless time-outs."""
import pytest

from test import stress_ring


@pytest.mark.parametrize("number", [1, 2])
def test_full_ring(number, seed):
    """Everything completes once, in order, with its own bytes."""
    stress_ring.run(number + 1000*(seed - 1))
