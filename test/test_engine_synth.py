# SPDX-License-Identifier: BSD-2-Clause
"""Random captures of the reference model: the compiled engine plays both sides and is compared frame by frame."""
import pytest

from sim.replay import EngineUnderReplay
from test.model.replay import play
from test.model.synthesize import synthesize

# Without "rnr": who is first, a refusal or the request behind it, is a matter of time, not of protocol.
CASES = [(number, faults) for number in (1, 2, 4, 5, 8) for faults in ((), ("duplicate",), ("ecn", "refuse"))] \
    + [(2, ("corrupt",)), (7, ("corrupt",)), (8, ("corrupt",))]


@pytest.mark.parametrize("side", "ab")
@pytest.mark.parametrize("number,faults", CASES, ids=lambda v: "-".join(v) if isinstance(v, tuple) else str(v))
def test_synthetic(number, faults, side):
    """Frames, completions and memory agree under the rulings."""
    report = play(synthesize(number, faults), side, EngineUnderReplay(seed=number, linger=0))
    assert report.ok and report.frames, report.text()
