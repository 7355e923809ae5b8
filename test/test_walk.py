# SPDX-License-Identifier: BSD-2-Clause
"""sim/walk.py against doc/architecture.md: the clocks of the page are those the compiled engine takes."""
import re

from sim import walk
from test.conftest import ROOT

TOLERANCE = 2
ROW       = re.compile(r"^\| (\d+) \| -?\d+ \| (\w+) \| ([\w/.]+) \| (.+) \|$", re.MULTILINE)


def test_page_tells_the_measured_clocks(tmp_path):
    page     = (ROOT / "doc" / "architecture.md").read_text(encoding="utf-8")
    told     = [(stage, file, what, int(clock)) for clock, stage, file, what in ROW.findall(page)]
    rows     = walk.walk()
    measured = [(r["stage"], r["file"], r["what"], r["clock"]) for r in rows]
    assert [t[:3] for t in told] == [m[:3] for m in measured], "sim/walk.py --markdown"
    far = [(t, m[3]) for t, m in zip(told, measured) if abs(t[3] - m[3]) > TOLERANCE]
    assert not far, f"sim/walk.py --markdown: {far}"
    walk.chart(rows, tmp_path / "walk.png")
    assert (tmp_path / "walk.png").stat().st_size > 10000


def test_every_file_exists():
    for _, file, _, _, _ in walk.MILESTONES:
        assert (ROOT / "roce_soc" / file).is_file(), file
