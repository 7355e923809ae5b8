# SPDX-License-Identifier: BSD-2-Clause
"""Error table: numbers fit the records, wire answers agree with syndromes, statuses with verbs."""
import glob
import os
import re

import pytest

from roce_soc import errors as er
from roce_soc import opcodes as op
from roce_soc import verbs


def test_indices_fit_and_are_unique():
    assert len({r.index for r in er.ERRORS.values()}) == len(er.ERRORS)
    assert all(0 < r.index < er.ERROR_ROWS for r in er.ERRORS.values())
    assert len({r.counter for r in er.ERRORS.values()}) == len(er.ERRORS)


def test_wire_and_syndrome_agree():
    kinds = {"NAK": "NAK", "RNR": "RNR"}
    for row in er.ERRORS.values():
        assert row.stage in er.STAGES
        assert (row.syndrome is not None) == (row.wire in kinds), row.name
        if row.syndrome is not None:
            assert op.syndrome_class(row.syndrome) == kinds[row.wire]
            assert row.stage == "RESPONDER"


def test_status_follows_from_the_syndrome():
    peers = {op.NAK_INVALID_REQUEST: verbs.WC_REM_INV_REQ_ERR, op.NAK_REMOTE_ACCESS: verbs.WC_REM_ACCESS_ERR,
             op.NAK_REMOTE_OPERATIONAL: verbs.WC_REM_OP_ERR}
    for row in er.ERRORS.values():
        if row.syndrome in peers:
            assert row.peer_status == peers[row.syndrome] and row.qp_effect == "ERR", row.name
        else:
            assert row.peer_status is None, row.name
        if row.wire == "DROP":
            assert row.qp_effect == "NONE" and row.local_status is None, row.name


def test_receive_stage_only_drops():
    assert all(r.wire == "DROP" for r in er.ERRORS.values() if r.stage == "RECEIVE")


@pytest.mark.parametrize("name,index", [("ICRC", 8), ("RNR", 27), ("MR_KEY", 35), ("LOCAL_PROTECTION", 45),
                                        ("RETRY_EXCEEDED", 49), ("FLUSH", 62)])
def test_numbers_are_abi(name, index):
    assert er.index_of(name) == index and er.BY_INDEX[index].name == name


def test_index_of_refuses():
    with pytest.raises(ValueError, match="'NEVER'"):
        er.index_of("NEVER")


def test_every_row_has_a_test():
    """Each row is named by a test that provokes it, on the model or on the gateware."""
    folder = os.path.dirname(__file__)
    texts  = []
    for path in glob.glob(os.path.join(folder, "test_*.py")):
        if os.path.basename(path) != os.path.basename(__file__):
            with open(path, encoding="utf-8") as file:
                texts.append(file.read())
    missing = {name for name in er.ERRORS if not any(re.search(rf"\b{name}\b", text) for text in texts)}
    assert missing == set()


def test_markdown_has_a_line_per_row():
    assert er.markdown_table().count("\n") == len(er.ERRORS) + 2
