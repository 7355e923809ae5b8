# SPDX-License-Identifier: BSD-2-Clause
"""State of the send side: rows in RAM with one writer each, and the records that pass between its stages."""
from migen import *

from litex.gen import *
from litex.soc.interconnect.stream import EndpointDescription

from roce_soc.common import MAX_READS, OUTSTANDING, QPI_WIDTH, TARGET_WIDTH
from roce_soc.errors import ROW_WIDTH
from roce_soc.queue.sq_layout import EPOCH_WIDTH
from roce_soc.table import Table

PSN_WIDTH   = 24
TIME_WIDTH  = 36                           # ticks; 16*2^31 still fits.
GENERATION_WIDTH = 4                       # rewinds and pauses of a QP; more are never under way at once.
RING_BITS   = log2_int(OUTSTANDING)        # index into the outstanding ring; counters have one bit more.
READ_BITS   = log2_int(MAX_READS)          # index into the READ ring; counters have one bit more.

# Rows ---------------------------------------------------------------------------------------------

def requester_layout():
    """Written by the requester. PSNs: `next_psn` is sent next, below `sent_high` were given to a burst once,
    `msg_psn` is the first of the current message, below `msg_high` belong to registered messages;
    `started`: these are set (CTL_START); `slot_high` follows the last registered message;
    `generation` counts rewinds and pauses: bursts of an older one are not sent any more;
    `fence_index` is the message behind the newest READ, moved up to the oldest message once that is retired;
    `seeking`: acknowledges have passed the cursor, the walker was asked where to go on."""
    return [
        ("next_psn", 24), ("sent_high", 24), ("msg_psn", 24), ("msg_high", 24),
        ("slot", 16), ("slot_high", 16), ("epoch", EPOCH_WIDTH), ("life", EPOCH_WIDTH),
        ("out_index", RING_BITS + 1), ("read_index", READ_BITS + 1), ("fence_index", RING_BITS + 1),
        ("generation", GENERATION_WIDTH), ("started", 1), ("paused", 1), ("seeking", 1), ("flushing", 1)]


def pushed_layout():
    """Entries pushed into a QP's rings, written with the entries: `out` messages, `read` READs."""
    return [("out", RING_BITS + 1), ("read", READ_BITS + 1)]


def completer_layout():
    """Written by the completer. `una` is the oldest unacknowledged PSN; `gap`: a retry was asked for
    and nothing has moved since; `restart`: a READ may resume in either form; `waiting`: RNR. `rewinding`: a pause or
    rewind was asked for when the requester's generation was `rewind_from`."""
    return [
        ("una", 24), ("read_head", READ_BITS + 1),
        ("retry_left", 3), ("rnr_left", 3), ("gap", 1), ("restart", 1), ("waiting", 1), ("dead", 1),
        ("rewinding", 1), ("rewind_from", GENERATION_WIDTH),
        ("last_progress", TIME_WIDTH), ("rnr_until", TIME_WIDTH)]


def wire_layout():
    """Written by the launch stage as packets come back from transmit: PSNs below `high` have been handed to the wire,
    the last of them by `generation` of the requester. `started`: CTL_START has set it, so that `high` means something."""
    return [("high", PSN_WIDTH), ("generation", GENERATION_WIDTH), ("started", 1)]


def walker_layout():
    """Written by the retire walker: `tail` counts retired messages, `slot` follows the last of them; `draining`: in SQD,
    what was begun is not done; a local fault waits for its message."""
    return [("tail", RING_BITS + 1), ("slot", 16), ("draining", 1), ("dead", 1), ("fault", 1), ("fault_psn", 24), ("fault_row", ROW_WIDTH)]


def outstanding_layout():
    """An entry of the outstanding ring; `two_slots`: the work request takes two ring slots."""
    return [
        ("first_psn", 24), ("last_psn", 24), ("slot", 16), ("two_slots", 1), ("wr_id", 64),
        ("wc_opcode", 8), ("signalled", 1), ("length", 32)]


def read_layout():
    """An entry of the READ ring: where the data of a READ request goes."""
    return [("first_psn", 24), ("last_psn", 24), ("va", 64), ("lkey", 32), ("length", 32)]

# Records ------------------------------------------------------------------------------------------

# Pseudo-visits of the requester that are not control (common.CTL_*).
REWIND_PAUSE, REWIND_GO, REWIND_SEEK, REWIND_MISS = range(4)

def rewind_description():
    """From the walker: pause, or go back to `psn` inside the message that starts at `msg_psn`. SEEK answers a requester
    that was passed by acknowledges: go on there. Where no message is outstanding the place is that of the next one,
    whether its burst has met the launch stage or not. From the launch stage, MISS: a burst of `generation` found no page, which
    has come now; void when that generation is over."""
    return EndpointDescription([("qpi", QPI_WIDTH), ("op", 2), ("slot", 16), ("msg_psn", 24), ("psn", 24),
        ("generation", GENERATION_WIDTH)])


def missed_layout():
    """Written by the launch stage: where its newest burst that found no page begins, while `valid`."""
    return [("valid", 1), ("generation", GENERATION_WIDTH), ("slot", 16), ("msg_psn", 24), ("psn", 24)]


# What the launch stage tells the walker.
LOCAL_KICK, LOCAL_FAULT = range(2)

def local_description():
    """LOCAL_KICK: look at the ring again; LOCAL_FAULT: the message with `psn` fails with `row`."""
    return EndpointDescription([("qpi", QPI_WIDTH), ("op", 1), ("psn", 24), ("row", ROW_WIDTH)])


# What the completer tells the walker; the last four are control and answered by ctl_done.
ITEM_NONE, ITEM_PAUSE, ITEM_REWIND, ITEM_SEEK, ITEM_ERROR, ITEM_START, ITEM_FLUSH, ITEM_RESET, ITEM_CTL = range(9)
ITEM_BITS = 4

def item_description():
    """Messages below `una` are done; then `action`; `row` of errors.py with ITEM_ERROR."""
    return EndpointDescription([("qpi", QPI_WIDTH), ("una", 24), ("action", ITEM_BITS), ("row", ROW_WIDTH)])


def burst_layout():
    """Packets of one message, built by one visit of its QP: up to 4 KiB, or one READ request."""
    return [
        ("qpi", QPI_WIDTH), ("ctl", 1), ("op", 3), ("generation", GENERATION_WIDTH),
        # Duties of the launch stage.
        ("send", 1), ("register", 1), ("push_read", 1), ("check", 1), ("row", ROW_WIDTH),
        ("out_index", RING_BITS + 1), ("read_index", READ_BITS + 1),
        ("msg_psn", 24), ("last_psn", 24), ("slot", 16), ("two_slots", 1), ("wr_id", 64),
        ("wc_opcode", 8), ("signalled", 1), ("msg_length", 32),
        # The packets.
        ("is_read", 1), ("is_write", 1), ("has_imm", 1), ("starts", 1), ("ends", 1), ("se", 1), ("retry", 1),
        ("psn", 24), ("end_psn", 24), ("length", 30), ("pmtu", 3), ("imm", 32),
        ("target", TARGET_WIDTH), ("addr", 64),
        ("local_va", 64), ("lkey", 32), ("remote_va", 64), ("rkey", 32), ("dma_length", 32)]


# SendState ----------------------------------------------------------------------------------------

class SendState(LiteXModule):
    """Per-QP state of the send side: each table has one writer, named here, and any number of readers.

    Attributes
    ----------
    requester, generation : requester
    pushed, outstanding, reads, halted, faulty, wire, busy, missed, missing : its launch stage
    completer, una, read_head : completer   walker, tail : retire walker

    Latency: that of each Table. Errors: none.
    """
    def __init__(self, n_qps):
        self.n_qps = n_qps
        self.bits  = log2_int(n_qps)
        self.ready = Signal()
        self.requester   = Table(requester_layout(), n_qps)
        self.generation  = Table(GENERATION_WIDTH, n_qps, distributed=True)
        self.pushed      = Table(pushed_layout(),    n_qps)
        self.outstanding = Table(outstanding_layout(), n_qps*OUTSTANDING, init=False)
        self.reads       = Table(read_layout(), n_qps*MAX_READS, init=False)
        self.halted      = Table([("halted", 1), ("psn", 24)], n_qps, distributed=True)
        self.faulty      = Table([("valid", 1), ("psn", PSN_WIDTH)], n_qps, distributed=True)
        self.missed      = Table(missed_layout(),    n_qps)
        self.missing     = Table([("valid", 1), ("generation", GENERATION_WIDTH)], n_qps, distributed=True)
        self.wire        = Table(wire_layout(),      n_qps, distributed=True)
        self.busy        = Table([("since", TIME_WIDTH)], n_qps)
        self.completer   = Table(completer_layout(), n_qps)
        self.una         = Table([("psn", PSN_WIDTH)], n_qps)
        self.read_head   = Table(READ_BITS, n_qps, distributed=True)
        self.walker      = Table(walker_layout(),    n_qps)
        self.tail        = Table(RING_BITS, n_qps, distributed=True)

        # # #

        self.comb += self.ready.eq(self.requester.ready)
