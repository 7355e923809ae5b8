# SPDX-License-Identifier: BSD-2-Clause
"""Records of the send queues."""

EPOCH_WIDTH = 12      # restarts of a send ring's prefetch.


def cursor_layout():
    """Next send ring slot of a QP, written by the requester. A new `epoch` restarts the prefetch there;
    a new `life` (RESET) makes what is on chip worthless."""
    return [("slot", 16), ("epoch", EPOCH_WIDTH), ("life", EPOCH_WIDTH)]
