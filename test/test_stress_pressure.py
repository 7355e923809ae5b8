# SPDX-License-Identifier: BSD-2-Clause
"""Transmit blocked or slow at random moments among everything else that may happen; the campaign is sim/stress.py --part pressure."""
import pytest

from test import stress_pressure


@pytest.mark.parametrize("number", range(3))
def test_play(number, pytestconfig):
    """What is not killed completes once, in order, with every byte, whatever the wire does."""
    stress_pressure.run(1 + number + 100*(int(pytestconfig.option.seed) - 1))
