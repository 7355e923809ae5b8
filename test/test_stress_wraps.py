# SPDX-License-Identifier: BSD-2-Clause
"""PSNs, ring indices, phases, logs across their ends; queues full and empty; windows and lengths at their limits."""
import pytest

from test import stress_huge
from test import stress_wraps as wraps


def test_psn_wrap_under_loss(seed):
    """Every operation across the end of the PSNs while frames next to it get lost."""
    wraps.psn_wrap(seed)


@pytest.mark.parametrize("number", range(3))
def test_msn_wrap(number, seed):
    """Every answer carries the right MSN across its end."""
    wraps.msn_wrap(seed + number)


@pytest.mark.parametrize("psn", wraps.ENDS)
def test_half_a_circle(psn):
    """The oldest duplicate, the farthest gap, the oldest ghost, the farthest beyond."""
    wraps.half_circle(psn)


@pytest.mark.parametrize("logs", [(1, 1, 1), (2, 9, 3), (9, 2, 10)], ids=str)
def test_rings(logs, seed):
    """Small and larger rings, full and empty; phases wrap many times."""
    wraps.rings(seed, 1200, logs)


def test_ring_indices_wrap(seed):
    """Producer and consumer indices pass 65535 in rings of 4096 slots."""
    wraps.rings(seed, 66_000, (12, 12, 13))


def test_largest_rings(seed):
    """32768 slots, all of them posted at once."""
    wraps.rings(seed, 32_768, (15, 15, 15))


def test_cq_overflow(seed):
    """Event, failed queue pairs, nothing overwritten."""
    wraps.cq_overflow(seed)


def test_event_ring_full(seed):
    """Nothing overwritten, the overflow is pending."""
    wraps.eq_full(seed)


def test_refusal_ring_wraps(seed):
    """The last 64 lines, in order."""
    wraps.refusal_ring(seed)


@pytest.mark.parametrize("limit", [1, 16])
def test_reads_accepted(limit):
    """max_dest_rd_atomic reached, then exceeded."""
    wraps.reads_accepted(limit)


def test_windows(seed):
    """32 messages, max_rd_atomic READs."""
    wraps.window(seed)


def test_longest_message():
    """2^31 bytes, and one more."""
    wraps.longest()


@pytest.mark.parametrize("operation", ["WRITE", "READ"])
def test_across_4_gib(operation, seed):
    """What stress_huge does with 2^31 bytes, with 300001: every byte once, in order, across addresses of 2^32."""
    stress_huge.move(operation, 300_001, seed=seed % 1000)
