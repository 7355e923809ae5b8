# SPDX-License-Identifier: BSD-2-Clause
"""Engine, registers and MAC in clocks of their own: a selection of the engine's suite; resets of each clock in traffic.

The whole suite at other clocks: `ROCE_CLOCKS=250/322 python -m pytest test/test_engine*.py`.
"""
import pytest

from sim.engine import Bench
from test.engine_scenario import scenario
from test.stress_clocks import ORDERS, SETTINGS, Resets

# Chosen for what they cover in little time: slow memory, faults, small rings, READs.
SEEDS = (3, 12, 34)


@pytest.mark.parametrize("number", SEEDS)
@pytest.mark.parametrize("clocks", SETTINGS)
def test_scenario(clocks, number, pytestconfig):
    """Everything completes once, in order, with every byte right, and nothing is left inside."""
    traffic, _ = scenario(number + 1000*(int(pytestconfig.option.seed) - 1), clocks)
    traffic.run()


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
@pytest.mark.parametrize("clocks", SETTINGS)
def test_resets_in_traffic(clocks, order, seed):
    """Each clock reset alone, both in either order, with a command or a doorbell under way; then all works again."""
    play = Resets(seed, clocks)
    for _ in range(4):
        play.reset(order)
    play.finish()


def test_unknown_setting():
    with pytest.raises(ValueError, match="equal, 250/100, 250/322, not '1/2'"):
        Bench(clocks="1/2")
