# SPDX-License-Identifier: BSD-2-Clause
"""qp/command and qp/context: state machine, order of row and control writes, fatal errors."""
import pytest

from roce_soc import abi
from roce_soc.common import CTL_ERR, CTL_RESET, CTL_START, CTL_STOP
from roce_soc.qp.command import TRANSITIONS
from test.command_bench import Bench, compile_commands


@pytest.fixture(scope="module", params=["sys", "roce"])
def so(request):
    return compile_commands(request.param)


def test_life(so):
    """RESET to RTS, ERR, RESET: who is told what, when, and which state the row shows then."""
    bench = Bench(so)
    assert bench.modify(abi.QP_INIT) == (abi.CODE_OK, 0, [])
    assert bench.modify(abi.QP_RTR) == (abi.CODE_OK, 0, [("responder", CTL_START, 3, 0x222, abi.QP_INIT)])
    assert bench.modify(abi.QP_RTS) == (abi.CODE_OK, 0, [("completer", CTL_START, 3, 0x111, abi.QP_RTS),
        ("requester", CTL_START, 3, 0x111, abi.QP_RTS)])
    row = bench.row(3)
    assert (row["state"], row["dst_mac"], row["src_ip"], row["qpn"]) == (abi.QP_RTS, 0x0a0b0c0d0e0f, 1 << 100, 0x13)
    code, _, order = bench.modify(abi.QP_ERR)
    assert code == abi.CODE_OK and [o[:2] + o[4:] for o in order] == [("responder", CTL_ERR, abi.QP_ERR), ("requester", CTL_ERR, abi.QP_ERR),
        ("completer", CTL_ERR, abi.QP_ERR)]
    code, _, order = bench.modify(abi.QP_RESET)
    assert code == abi.CODE_OK and [o[:2] for o in order] == [("receive", CTL_RESET), ("requester", CTL_STOP), ("completer", CTL_RESET),
        ("requester", CTL_RESET), ("fetch", CTL_RESET), ("responder", CTL_RESET), ("completion", CTL_RESET)]
    assert bench.row(3)["state"] == abi.QP_RESET


def test_destroy(so):
    """A RESET that names nothing but the QP: its owners see the row's own numbers until the last has answered, then the row is zero."""
    bench = Bench(so)
    for state in (abi.QP_INIT, abi.QP_RTR):
        bench.modify(state, rq_index=5, recv_cq=6)
    seen = []
    row  = bench.row
    bench.row = lambda qpi: seen.append(row(qpi)) or seen[-1]
    assert bench.run(abi.CMD_MODIFY_QP, abi.pack_args(abi.QP_ARGS, qpi=3))[0] == abi.CODE_OK
    assert len(seen) == 7 and all((r["state"], r["rq_index"], r["recv_cq"], r["qpn"]) == (abi.QP_RESET, 5, 6, 0x13) for r in seen)
    assert not any(row(3).values())
    # What is not there has no owners to tell, and may be made.
    assert bench.run(abi.CMD_MODIFY_QP, abi.pack_args(abi.QP_ARGS, qpi=3)) == (abi.CODE_OK, 0, [])
    for state in (abi.QP_ERR, abi.QP_RTR):
        assert bench.modify(state)[0] == abi.CODE_BAD_STATE
    assert bench.modify(abi.QP_INIT)[0] == abi.CODE_OK


def test_error_changes_the_state_alone(so):
    """ERR takes nothing from its arguments but the QP."""
    bench = Bench(so)
    bench.modify(abi.QP_INIT, rq_index=5)
    before = bench.row(3)
    assert bench.run(abi.CMD_MODIFY_QP, abi.pack_args(abi.QP_ARGS, qpi=3, state=abi.QP_ERR))[0] == abi.CODE_OK
    assert bench.row(3) == {**before, "state": abi.QP_ERR}


def test_transitions(so):
    """Every pair of states is allowed or refused as the table says."""
    path = {abi.QP_RESET: (), abi.QP_INIT: (1,), abi.QP_RTR: (1, 2), abi.QP_RTS: (1, 2, 3), abi.QP_SQD: (1, 2, 3, 4), abi.QP_ERR: (1, 6)}
    for old, steps in path.items():
        for new in range(7):
            bench = Bench(so)
            for step in steps:
                assert bench.modify(step)[0] == abi.CODE_OK
            assert bench.modify(new)[0] == (abi.CODE_OK if (old, new) in TRANSITIONS else abi.CODE_BAD_STATE), (old, new)


@pytest.mark.parametrize("bad,word", [(dict(qpn=0x14), 1), (dict(qp_type=1), 1), (dict(send_cq=8), 4), (dict(rq_index=8), 5), (dict(sq_log2=0), 5),
    (dict(sq_addr=32), 6), (dict(max_rd_atomic=17), 11), (dict(max_dest_rd_atomic=17), 12)])
def test_bad_values(so, bad, word):
    """A refused value is named by its argument word; the row stays."""
    bench = Bench(so)
    assert bench.modify(abi.QP_INIT, **bad)[:2] == (abi.CODE_BAD_VALUE, word)
    assert bench.row(3)["qpn"] == 0
    assert bench.modify(abi.QP_INIT)[0] == abi.CODE_OK
    assert bench.modify(abi.QP_RTR, pmtu=6)[:2] == (abi.CODE_BAD_VALUE, 2)


@pytest.mark.parametrize("bad,word", [(dict(qpi=1, qpn=1), 1), (dict(qpi=0, qpn=0), 1), (dict(qpi=15, qpn=0xffffff), 1), (dict(recv_cq=8), 4)])
def test_reserved_numbers(so, bad, word):
    """QPNs 0, 1 and 0xffffff are never made; both completion queues must exist. The last good ones beside them pass."""
    bench = Bench(so)
    assert bench.modify(abi.QP_INIT, **bad)[:2] == (abi.CODE_BAD_VALUE, word)
    near = {0: 16, 1: 17, 15: 0xffffef}.get(bad.get("qpi"))
    assert bench.modify(abi.QP_INIT, **(dict(bad, qpn=near) if near else dict(recv_cq=7)))[0] == abi.CODE_OK


def test_error_needs_no_attributes(so):
    """A QP goes to ERR or RESET whatever its path MTU says."""
    bench = Bench(so)
    bench.modify(abi.QP_INIT)
    assert bench.modify(abi.QP_ERR, pmtu=0)[0] == abi.CODE_OK
    assert bench.modify(abi.QP_RESET, pmtu=7, send_cq=9, qpn=0)[0] == abi.CODE_OK


def test_bad_rings(so):
    """A ring of one entry, or an unaligned one, is refused; an entry that takes a ring away may say anything."""
    bench = Bench(so)
    for command in (abi.CMD_WRITE_CQ, abi.CMD_WRITE_RQ, abi.CMD_WRITE_EQ):
        for bad, word in ((dict(log2=0, addr=0x1000), 0), (dict(log2=3, addr=0x1020), 2)):
            assert bench.run(command, abi.pack_args(abi.CQ_ARGS, index=0, valid=1, **bad))[:2] == (abi.CODE_BAD_VALUE, word)
    assert bench.run(abi.CMD_WRITE_CQ, abi.pack_args(abi.CQ_ARGS, index=1, valid=0, log2=0, addr=1))[0] == abi.CODE_OK
    assert bench.cq.recv().enable == 0


def test_fatal_whose_owner_does_not_answer(so):
    """Its event comes all the same, and no mailbox is told of an end that is not its command's."""
    bench = Bench(so)
    for state in (abi.QP_INIT, abi.QP_RTR, abi.QP_RTS):
        bench.modify(state)
    status = bench.csr(0, "status")
    bench.fatal.send(type=abi.EVENT_QP_FATAL, queue=3, info=1)
    bench.sim.step(20)
    bench.start(abi.CMD_QUERY_QP, [3])
    bench.sim.step(2000)
    assert [(e["type"], e["queue"]) for e in bench.event.recv_all()] == [(abi.EVENT_QP_FATAL, 3)]
    assert status & 2
    assert bench.finish()[0] == abi.CODE_OK and bench.row(3)["state"] == abi.QP_ERR


def test_fatal(so):
    """A failing QP goes to ERR, its owners are told, then the event comes; a second failure of it changes nothing."""
    bench = Bench(so)
    for state in (abi.QP_INIT, abi.QP_RTR, abi.QP_RTS):
        bench.modify(state)
    for _ in range(2):
        bench.fatal.send(type=abi.EVENT_QP_ACCESS_ERR, queue=3, info=35)
    bench.start(abi.CMD_NOP, [])
    order = bench.finish()[2]
    bench.sim.step(100)
    assert bench.row(3)["state"] == abi.QP_ERR and [o[:2] for o in order] == [("responder", CTL_ERR), ("requester", CTL_ERR), ("completer", CTL_ERR)]
    assert [(e["type"], e["queue"], e["info"]) for e in bench.event.recv_all()] == [(abi.EVENT_QP_ACCESS_ERR, 3, 35)]


def test_fatal_of_a_reset_qp(so):
    """A failure that comes after the QP's RESET changes nothing and is not told."""
    bench = Bench(so)
    bench.fatal.send(type=abi.EVENT_QP_FATAL, queue=3, info=1)
    bench.sim.step(100)
    assert bench.row(3)["state"] == abi.QP_RESET and not len(bench.event) and not any(len(ctl) for ctl in bench.ctl.values())
    assert bench.csr(0, "status") == 0, "no mailbox is told of an end that is not its command's"


def test_owner_that_does_not_take(so):
    """An operation that is not taken ends its command, stays offered as it was, and is answered before the next one's."""
    bench = Bench(so)
    bench.modify(abi.QP_INIT)
    bench.ctl["responder"].set(stall=1.0)
    assert bench.modify(abi.QP_RTR)[0] == abi.CODE_TIMEOUT
    assert bench.run(abi.CMD_NOP, [])[0] == abi.CODE_OK
    bench.ctl["responder"].set(stall=0)
    code, _, order = bench.modify(abi.QP_RTR, rq_psn=0x333)
    assert code == abi.CODE_OK and [o[3] for o in order] == [0x222, 0x333]


def test_completion_queue_waits(so):
    """A completion queue is gone or moved when what was on its way to the old place is there."""
    bench = Bench(so)
    for valid in (1, 0):
        code, _, order = bench.run(abi.CMD_WRITE_CQ, abi.pack_args(abi.CQ_ARGS, index=1, valid=valid, log2=3, page=2))
        assert code == abi.CODE_OK and [o[:2] for o in order] == [("completion", CTL_RESET)]
        cq = bench.cq.recv()
        assert (cq.enable, cq.log2, cq.page) == ((1, 3, 2) if valid else (0, 0, 0))


def test_owner_that_does_not_answer(so):
    """The command ends with CODE_TIMEOUT and the port serves the next one."""
    bench = Bench(so)
    bench.modify(abi.QP_INIT)
    bench.answers = False
    assert bench.modify(abi.QP_RTR)[0] == abi.CODE_TIMEOUT
    assert bench.run(abi.CMD_NOP, [])[0] == abi.CODE_OK


# Resets ---------------------------------------------------------------------------------------------

# Port and registers are reset alone where each has a clock of its own.
two_clocks = pytest.mark.parametrize("so", ["roce"], indirect=True, scope="module")


def test_a_receive_queue_has_one_qp(so):
    """From INIT to the end of RESET; the second one that names it is refused, with the word, and changes nothing."""
    bench = Bench(so)

    def other(state, **more):
        bench.start(abi.CMD_MODIFY_QP, abi.pack_args(abi.QP_ARGS, **{**dict(qpi=4, qpn=0x14, state=state, pmtu=3, sq_log2=4, rq_index=5), **more}))
        return bench.finish()[:2]
    assert bench.modify(abi.QP_INIT, rq_index=5)[0] == abi.CODE_OK
    assert other(abi.QP_INIT) == (abi.CODE_BAD_VALUE, 5) and bench.row(4)["qpn"] == 0
    assert other(abi.QP_INIT, rq_index=6)[0] == abi.CODE_OK
    # In INIT it may change: the former one is free again.
    assert bench.modify(abi.QP_INIT, rq_index=6)[:2] == (abi.CODE_BAD_VALUE, 5)
    assert bench.modify(abi.QP_INIT, rq_index=7)[0] == abi.CODE_OK
    assert other(abi.QP_INIT, rq_index=5)[0] == abi.CODE_OK
    assert bench.modify(abi.QP_INIT, rq_index=5)[:2] == (abi.CODE_BAD_VALUE, 5)
    # ERR keeps it, RESET gives it back.
    assert bench.modify(abi.QP_ERR)[0] == abi.CODE_OK
    assert other(abi.QP_INIT, rq_index=7)[:2] == (abi.CODE_BAD_VALUE, 5)
    assert bench.modify(abi.QP_RESET, rq_index=7)[0] == abi.CODE_OK
    assert other(abi.QP_INIT, rq_index=7)[0] == abi.CODE_OK


@pytest.mark.parametrize("field, value, word", [("rq_index", 2, 5), ("send_cq", 3, 4), ("recv_cq", 3, 4), ("qpn", 0x23, 1)])
def test_a_live_qp_keeps_its_queues(so, field, value, word):
    """In RTR, RTS and SQD what others know it by does not change; RESET may change it."""
    bench = Bench(so)
    for state in (abi.QP_INIT, abi.QP_RTR, abi.QP_RTS, abi.QP_SQD):
        assert bench.modify(state)[0] == abi.CODE_OK
        after = {abi.QP_INIT: abi.QP_INIT, abi.QP_RTR: abi.QP_RTS, abi.QP_RTS: abi.QP_RTS, abi.QP_SQD: abi.QP_RTS}[state]
        code, info = bench.modify(after, **{field: value})[:2]
        if state != abi.QP_INIT:
            assert (code, info) == (abi.CODE_BAD_VALUE, word)
        else:
            assert code == abi.CODE_OK and bench.modify(abi.QP_INIT)[0] == abi.CODE_OK
    assert bench.modify(abi.QP_RESET, **{field: value})[0] == abi.CODE_OK


def test_draining(so):
    """SQD tells whether something is not done; until then it takes no other attributes."""
    bench, word = Bench(so), next(a for a in abi.QP_ARGS if a.name == "draining")
    for state in (abi.QP_INIT, abi.QP_RTR, abi.QP_RTS, abi.QP_SQD):
        assert bench.modify(state)[0] == abi.CODE_OK
    for drained in (0, 1):
        bench.sim.poke("drained", drained)
        bench.start(abi.CMD_QUERY_QP, [3])
        assert bench.finish()[0] == abi.CODE_OK
        bench.csr(0, "index", word.word)
        assert bench.csr(0, "value") >> word.bit & 1 == (not drained)
        assert bench.modify(abi.QP_SQD)[0] == (abi.CODE_OK if drained else abi.CODE_BAD_STATE)
    bench.sim.poke("drained", 0)
    assert bench.modify(abi.QP_RTS)[0] == abi.CODE_OK
    bench.start(abi.CMD_QUERY_QP, [3])
    assert bench.finish()[0] == abi.CODE_OK
    bench.csr(0, "index", word.word)
    assert bench.csr(0, "value") >> word.bit & 1 == 0
