# SPDX-License-Identifier: BSD-2-Clause
"""Verbs tables: numbers of the user ABI, QP transitions and their attributes."""
import pytest

from roce_soc import verbs as v


def test_numbers():
    assert (v.WC_WR_FLUSH_ERR, v.WC_RETRY_EXC_ERR, v.WC_RNR_RETRY_EXC_ERR, v.WC_GENERAL_ERR) == (5, 12, 13, 21)
    assert v.WC_STATUS_NAMES[v.WC_REM_ACCESS_ERR] == "REM_ACCESS_ERR"
    assert (v.EVENT_NUMBER["COMM_EST"], v.EVENT_NUMBER["PORT_ACTIVE"], v.EVENT_NUMBER["WQ_FATAL"]) == (4, 9, 19)
    assert set(v.WC_OF_WR) == set(v.WR_NAMES)


@pytest.mark.parametrize("old,new,qp_type,names", [
    ("RESET", "INIT", "RC", "PKEY_INDEX PORT ACCESS_FLAGS"), ("RESET", "INIT", "UD", "PKEY_INDEX PORT QKEY"),
    ("INIT", "RTR", "RC", "AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER"),
    ("INIT", "RTR", "UC", "AV PATH_MTU DEST_QPN RQ_PSN"), ("INIT", "RTR", "UD", ""),
    ("RTR", "RTS", "RC", "TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC"), ("RTR", "RTS", "UD", "SQ_PSN"),
    ("RTS", "ERR", "RC", ""), ("ERR", "RESET", "UC", "")])
def test_required_attributes(old, new, qp_type, names):
    states = v.QP_STATES.index(old), v.QP_STATES.index(new)
    assert v.TRANSITIONS[states + (qp_type,)].required == v.attr_mask(names)
    v.check_transition(*states, qp_type, v.attr_mask("STATE " + names))
    for name in names.split():
        with pytest.raises(ValueError, match=f"lacks {name}"):
            v.check_transition(*states, qp_type, v.attr_mask(names) & ~v.attr_mask(name))


@pytest.mark.parametrize("old,new,qp_type", [("RESET", "RTR", "RC"), ("RESET", "ERR", "RC"), ("SQE", "RTS", "RC"),
                                             ("RTS", "INIT", "RC"), ("ERR", "RTS", "UD"), ("INIT", "RTS", "UC")])
def test_no_such_transition(old, new, qp_type):
    with pytest.raises(ValueError, match=f"{qp_type} has no transition {old} -> {new}"):
        v.check_transition(v.QP_STATES.index(old), v.QP_STATES.index(new), qp_type, 0)


@pytest.mark.parametrize("name", ["ALT_PATH", "PATH_MIG_STATE", "DEST_QPN"])
def test_refused_attributes(name):
    with pytest.raises(ValueError, match=f"refuses {name}"):
        v.check_transition(v.QPS_RTS, v.QPS_RTS, "RC", v.attr_mask(name))


def test_remote_write_needs_local_write():
    with pytest.raises(ValueError, match="needs LOCAL_WRITE, not 0x2"):
        v.check_access(v.ACCESS_REMOTE_WRITE)
    v.check_access(v.ACCESS_REMOTE_READ)


def test_flag_names():
    assert v.flag_names(v.ACCESS_NAMES, 5) == ["LOCAL_WRITE", "REMOTE_READ"]
