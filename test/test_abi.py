# SPDX-License-Identifier: BSD-2-Clause
"""abi: fields do not overlap and stay inside their structure; what is not built has its place; the columns of errors."""
import pytest

from roce_soc import abi
from roce_soc.capability import EVERY_PAGE, MemoryTarget, capability_words
from roce_soc.common import MEM_ERR_WIDTH, MEM_GONE, MEMORY_KIND_WIDTH, MEMORY_MSI, PAGE_WIDTH, TARGET_WIDTH
from roce_soc.errors import BY_INDEX, ERROR_ROWS

ARGS       = {"QP": abi.QP_ARGS, "MR": abi.MR_ARGS, "CQ": abi.CQ_ARGS, "RQ": abi.RQ_ARGS, "EQ": abi.EQ_ARGS, "AH": abi.AH_ARGS, "GID": abi.GID_ARGS}
STRUCTURES = {"SEND_WQE": (abi.SEND_WQE, abi.SEND_WQE_BYTES), "RECV_WQE": (abi.RECV_WQE, abi.RECV_WQE_BYTES), "SGE": (abi.SGE, abi.SGE_BYTES),
              "CQE": (abi.CQE + abi.CQE_WIDE, abi.CQE_WIDE_BYTES), "EQE": (abi.EQE, abi.EQE_BYTES)}
UNBUILT    = [(name, arg) for name in ("QP", "MR", "CQ", "RQ", "EQ") for arg in ARGS[name] if arg.built != (1 << arg.width) - 1]


def assert_apart(fields, bits):
    """Fields as [(name, first bit, width)] lie apart and below `bits`."""
    taken = {}
    for name, first, width in fields:
        assert first + width <= bits, name
        for bit in range(first, first + width):
            assert bit not in taken, f"{name} lies on {taken[bit]}"
            taken[bit] = name


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures(name):
    layout, size = STRUCTURES[name]
    assert_apart([(e.name, 8*e.byte + e.bit, e.width) for e in layout], 8*size)


@pytest.mark.parametrize("name", ARGS)
def test_arguments(name):
    """No field lies on another one, none of up to 32 bits crosses a word, none is beyond a mailbox."""
    layout = ARGS[name]
    assert_apart([(a.name, 32*a.word + a.bit, a.width) for a in layout], 32*abi.COMMAND_WORDS)
    assert all(a.bit + a.width <= 32 if a.width <= 32 else a.bit == 0 for a in layout)


def test_widths_of_the_engine():
    """What a record carries fits what the ABI gives it."""
    for layout in (abi.QP_ARGS, abi.MR_ARGS, abi.CQ_ARGS, abi.RQ_ARGS, abi.EQ_ARGS):
        for arg in layout:
            wanted = {"page": PAGE_WIDTH, "target": TARGET_WIDTH, "sq_target": TARGET_WIDTH, "list_target": TARGET_WIDTH}.get(arg.name)
            assert wanted in (None, arg.width), arg.name
    assert MEM_GONE < 1 << MEM_ERR_WIDTH and MEMORY_MSI < 1 << MEMORY_KIND_WIDTH


def test_translation_is_the_same_everywhere():
    """Regions and all rings name their translation alike."""
    for layout, prefix in ((abi.QP_ARGS, "sq_"), (abi.MR_ARGS, ""), (abi.CQ_ARGS, ""), (abi.RQ_ARGS, ""), (abi.EQ_ARGS, "")):
        widths = [abi.field(layout, f"{prefix}{name}").width for name in ("translation", "page_log2", "list_target")]
        assert widths == [1, 6, TARGET_WIDTH]


def test_known_bits():
    """A bit of a word is known exactly where a built field has it."""
    for layout in abi.COMMAND_ARGS.values():
        known = abi.known_bits(layout)
        assert len(known) == abi.words_of(layout) <= abi.COMMAND_WORDS
        for arg in layout:
            bits = sum(word << 32*i for i, word in enumerate(known)) >> (32*arg.word + arg.bit)
            assert bits & ((1 << arg.width) - 1) == arg.built, arg.name
    assert {arg.name for _, arg in UNBUILT} >= {"priority", "rate", "gid_index", "translation", "kind", "qpn", "wide", "eq", "count", "shared",
                                                "vector"}


def test_send_list_fits_two_slots():
    assert abi.SEND_SGE_SLOTS == 2
    first = abi.field(abi.RECV_WQE, "va").byte
    assert [abi.field(abi.RECV_WQE, e.name).byte - first for e in abi.SGE] == [e.byte for e in abi.SGE]
    assert first + 3*abi.SGE_BYTES == abi.RECV_WQE_BYTES and first + abi.MAX_RECV_SGES*abi.SGE_BYTES <= 2*abi.RECV_WQE_BYTES


# Capability ---------------------------------------------------------------------------------------

def test_memory_targets():
    """Two words a target: kind and latency, pages; beyond the table's end, and of odd sizes: refused."""
    words = capability_words(n_qps=16, n_mrs=16, n_cqs=16, n_rqs=16, memories=(
        MemoryTarget(abi.MEMORY_SRAM, 1 << 20), MemoryTarget(abi.MEMORY_DRAM, 4 << 30, abi.LATENCY_BOARD),
        MemoryTarget(abi.MEMORY_HOST, None, abi.LATENCY_HOST)))
    assert [value for value, _ in words.values()][-7:] == [3, 0x01, 256, 0x12, 1 << 20, 0x23, EVERY_PAGE]
    for bad in (dict(kind=0, size=4096), dict(kind=5, size=4096), dict(kind=1, size=100), dict(kind=1, size=0), dict(kind=1, size=4096, latency=3)):
        with pytest.raises(ValueError, match="must be"):
            MemoryTarget(**bad)
    with pytest.raises(ValueError, match="8 memories, not 9"):
        capability_words(n_qps=16, n_mrs=16, n_cqs=16, n_rqs=16, memories=(MemoryTarget(1, 4096),)*9)

# Errors -------------------------------------------------------------------------------------------

def test_rows_have_room():
    assert max(BY_INDEX) < ERROR_ROWS == 256


def test_event_and_access():
    """Exactly what ends a QP or a CQ raises an event; a broken key or right of a responder is an access error."""
    for row in BY_INDEX.values():
        assert (row.event is not None) == (row.qp_effect == "ERR"), row.name
        if row.stage in ("REQUESTER", "COMPLETER") and row.event is not None:
            assert row.event == abi.EVENT_QP_FATAL, row.name
        if row.event == abi.EVENT_QP_ACCESS_ERR:
            assert row.access and row.wire == "NAK", row.name
    assert {row.name for row in BY_INDEX.values() if row.event == abi.EVENT_QP_ACCESS_ERR} == {"MR_KEY", "MR_PD", "MR_ACCESS", "MR_BOUNDS"}
