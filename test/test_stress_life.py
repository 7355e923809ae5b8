# SPDX-License-Identifier: BSD-2-Clause
"""Life cycles in traffic on the compiled engine: a few hundred seeded operations; the campaign is sim/stress.py --part life."""
import json
import os
from collections import Counter

import pytest

from test import stress_life
from test.engine_traffic import REGION

# Plays in which more queue pairs die than there are places for what they had begun.
MANY_DEATHS = (987133, 55716)
# Chosen for what they cover in little time: each kind of operation, every memory, wires with and without faults.
SEEDS = (2, 3, 4, 5, 6, 8, 9)

OPERATIONS = {"reset", "err", "destroy", "sqd", "invalidate", "reregister", "event queue", "refused command", "late frame",
    "completion queue", "receive queue", "ring fault", "ring fault met"}


@pytest.mark.parametrize("number", SEEDS)
def test_play(number, pytestconfig, tmp_path_factory):
    """After "done" nothing moves, late packets change nothing, neighbours go on, at the end nothing is left.

    Whoever plays last, in whatever process, sees that the plays together did every operation.
    """
    before = Counter(stress_life.operations)
    stress_life.run(number + 1000*(int(pytestconfig.option.seed) - 1))
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if os.environ.get("PYTEST_XDIST_WORKER") else shared
    notes = [shared / f"life_{n}.json" for n in SEEDS]
    note  = shared / f"life_{number}.part"
    note.write_text(json.dumps(stress_life.operations - before))
    note.replace(note.with_suffix(".json"))
    if all(note.exists() for note in notes):
        done = sum((Counter(json.loads(note.read_text())) for note in notes), Counter())
        assert set(done) >= OPERATIONS, f"not done: {', '.join(sorted(OPERATIONS - set(done)))}"


@pytest.mark.parametrize("number", MANY_DEATHS)
def test_places_come_back(number):
    """However many queue pairs have died, there is work for the living."""
    stress_life.run(number)


@pytest.mark.parametrize("end", ["bury", "revive"])
def test_no_place_is_lost(end):
    """Every place is free or in the hands of a living queue pair, whoever has died in the middle of its work."""
    traffic = stress_life.Life(MANY_DEATHS[0]).traffic

    def held():
        return [offset//traffic.slot for half in traffic.halves.values() for _, offset, _ in half.ranges.values()]
    places = list(range(REGION//traffic.slot))
    assert held() and sorted(traffic.places + held()) == places
    for qp in list(traffic.pairs):
        getattr(traffic, end)(qp)
        assert sorted(traffic.places + held()) == places
    assert not held()


def test_play_without_traffic_says_so():
    """Without a place nothing is posted; the play does not wait for what cannot come."""
    life = stress_life.Life(MANY_DEATHS[0])
    life.traffic.run()
    life.traffic.places.clear()
    with pytest.raises(AssertionError, match="without traffic: 0 places are free"):
        life.traffic.top_up()
