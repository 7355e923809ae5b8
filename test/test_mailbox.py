# SPDX-License-Identifier: BSD-2-Clause
"""qp/mailbox at one clock and at two: words and answers, refusals by their word, resets of either side in a command."""
import pytest

from roce_soc import abi
from test.command_bench import N_QPS, Bench, compile_commands


@pytest.fixture(scope="module", params=["sys", "roce"])
def so(request):
    return compile_commands(request.param)


def test_busy_mailbox(so):
    """While a command waits, writes to its words and its go register change nothing, and it is not done."""
    bench = Bench(so)
    bench.modify(abi.QP_INIT)
    bench.answers = False
    bench.start(abi.CMD_MODIFY_QP, abi.pack_args(abi.QP_ARGS, qpi=3, qpn=0x13, state=abi.QP_RTR, pmtu=3, sq_log2=4))
    assert bench.csr(0, "status") & 3 == 1
    bench.csr(0, "index", 0)
    bench.csr(0, "data", 0x55)
    bench.csr(0, "index", 0)
    assert bench.csr(0, "value") != 0x55
    bench.csr(0, "go", abi.CMD_NOP | 99 << 8)
    assert bench.finish()[0] == abi.CODE_TIMEOUT


def test_codes(so):
    """Unknown commands and indices beyond the tables."""
    bench = Bench(so)
    assert bench.run(0x77, [])[0] == abi.CODE_BAD_OPCODE
    assert bench.run(abi.CMD_MODIFY_QP, [N_QPS])[0] == abi.CODE_BAD_INDEX
    assert bench.run(abi.CMD_WRITE_MR, [64])[0] == abi.CODE_BAD_INDEX
    assert bench.run(abi.CMD_WRITE_CQ, abi.pack_args(abi.CQ_ARGS, index=8, valid=1, log2=3))[0] == abi.CODE_BAD_INDEX
    assert bench.run(abi.CMD_WRITE_CQ, abi.pack_args(abi.CQ_ARGS, index=2, valid=1, log2=3, addr=0x1010))[0] == abi.CODE_BAD_VALUE
    assert bench.run(abi.CMD_WRITE_CQ, abi.pack_args(abi.CQ_ARGS, index=2, valid=1, log2=3, addr=0x1040, page=9))[0] == abi.CODE_OK
    cq = bench.cq.recv()
    assert (cq["index"], cq.enable, cq.log2, cq.addr, cq.page) == (2, 1, 3, 0x1040, 9)
    assert bench.run(abi.CMD_WRITE_MR, abi.pack_args(abi.MR_ARGS, index=5, variant=0xab, access=7, pd=4, va=1 << 60, length=1 << 40, addr=0x123))[0] == abi.CODE_OK
    mr = bench.mr.recv()
    assert (mr["index"], mr.variant, mr.access, mr.pd, mr.va, mr.length, mr.addr, mr.valid_row) == (5, 0xab, 7, 4, 1 << 60, 1 << 40, 0x123, 1)
    assert bench.run(abi.CMD_INVALIDATE_MR, [5])[0] == abi.CODE_OK and bench.mr.recv().valid_row == 0


@pytest.mark.parametrize("name,words", [("QP", None), ("MR", abi.CMD_WRITE_MR), ("CQ", abi.CMD_WRITE_CQ), ("RQ", abi.CMD_WRITE_RQ),
    ("EQ", abi.CMD_WRITE_EQ)])
def test_unknown_bits(so, name, words):
    """A bit that this build does not know, of a field that is laid out or of none, is refused by its word; nothing is written."""
    bench  = Bench(so)
    layout = getattr(abi, f"{name}_ARGS")
    good   = dict(qpi=3, qpn=0x13, state=abi.QP_INIT, pmtu=3, sq_log2=4) if name == "QP" else dict(index=0, **dict(valid=1, log2=3) if name != "MR" else {})
    number = sum(word << 32*i for i, word in enumerate(abi.pack_args(layout, **good)))
    known  = sum(word << 32*i for i, word in enumerate(abi.known_bits(layout)))
    wrong  = [bit for bit in range(32*abi.words_of(layout)) if not known >> bit & 1]
    fields = {32*a.word + a.bit for a in layout if not a.built}
    # Each field's first bit, the first bits of gaps, and a few more.
    for bit in sorted(fields | {bit for bit in wrong if bit - 1 not in wrong} | set(wrong[::37])):
        bad = number | 1 << bit
        out = bench.run(words or abi.CMD_MODIFY_QP, [bad >> 32*i & 0xffffffff for i in range(abi.words_of(layout))])
        assert out == (abi.CODE_BAD_VALUE, bit//32, []), bit
    assert bench.row(3)["qpn"] == 0 and not len(bench.mr) and not len(bench.cq)
    if name in ("RQ", "EQ"):
        return      # nobody takes a good one here.
    assert bench.run(words or abi.CMD_MODIFY_QP, abi.pack_args(layout, **good))[0] == abi.CODE_OK
    # What is taken away is named by its number alone.
    if name == "QP":
        assert bench.modify(abi.QP_ERR, rate=1, priority=7)[0] == abi.CODE_OK
        assert bench.modify(abi.QP_RESET, rate=1, priority=7)[0] == abi.CODE_OK
    elif name != "MR":
        assert bench.run(words, abi.pack_args(layout, index=0, translation=1))[0] == abi.CODE_OK


def test_queries(so):
    """Answers stand in the mailbox's words; two mailboxes do not mix."""
    bench = Bench(so)
    bench.modify(abi.QP_INIT)
    bench.start(abi.CMD_QUERY_DEVICE, [], box=0)
    bench.start(abi.CMD_QUERY_QP, [3], box=1)
    assert bench.finish(0)[0] == abi.CODE_OK and bench.finish(1)[0] == abi.CODE_OK
    words = {0: [], 1: []}
    for box in (0, 1):
        for i in range(abi.COMMAND_WORDS):
            bench.csr(box, "index", i)
            words[box].append(bench.csr(box, "value"))
    assert words[0][:3] == [7, 8, 9]
    answer = abi.unpack_args(abi.QP_ARGS, words[1])
    assert (answer["qpi"], answer["qpn"], answer["state"], answer["pmtu"], answer["src_ip"]) == (3, 0x13, abi.QP_INIT, 3, 1 << 100)


def test_late_answer(so):
    """What an owner answers behind a time-out is not taken for the answer to a later command; that one waits for both."""
    bench = Bench(so)
    bench.modify(abi.QP_INIT)
    bench.answers = False
    assert bench.modify(abi.QP_RTR)[0] == abi.CODE_TIMEOUT and bench.row(3)["state"] == abi.QP_INIT
    bench.start(abi.CMD_MODIFY_QP, abi.pack_args(abi.QP_ARGS, qpi=4, qpn=0x14, state=abi.QP_INIT, pmtu=3, sq_log2=4, rq_index=1))
    assert bench.finish()[0] == abi.CODE_OK
    bench.start(abi.CMD_MODIFY_QP, abi.pack_args(abi.QP_ARGS, qpi=4, qpn=0x14, state=abi.QP_RTR, pmtu=3, sq_log2=4, rq_index=1))
    bench.sim.run(lambda: len(bench.ctl["responder"]), every=1)
    for answered in (False, True):
        assert bench.csr(0, "status") & 3 == 1, "done before its own answer"
        bench.sim.poke("responder_done", 1)
        bench.sim.step()
        bench.sim.poke("responder_done", 0)
        bench.sim.step(20)
    assert bench.finish()[0] == abi.CODE_OK and bench.row(4)["state"] == abi.QP_RTR


# Port and registers are reset alone where each has a clock of its own.
two_clocks = pytest.mark.parametrize("so", ["roce"], indirect=True, scope="module")


@two_clocks
def test_reset_of_the_registers(so):
    """At any clock of a command: it was done whole or not at all, no later command gets its answer."""
    rows = [dict(qpi=3, qpn=0x13, state=abi.QP_INIT, dst_mac=n*0x010101010101, src_ip=n*(1 << 100), dest_qpn=n*0x111111) for n in range(1, 6)]
    for moment in range(0, 230, 5):
        bench = Bench(so)
        old, new = rows[moment % 5], rows[(moment + 1) % 5]
        bench.modify(**old, pmtu=3)
        bench.start(abi.CMD_MODIFY_QP, abi.pack_args(abi.QP_ARGS, **{**dict(pmtu=3, sq_log2=4), **new}))
        bench.sim.step(moment)
        bench.sim.hold("sys")
        bench.sim.step(1 + moment % 7)
        bench.sim.step(1, "sys")
        bench.sim.hold("sys", False)
        # The next one may be told at once; it waits until the crossing is open.
        bench.start(abi.CMD_WRITE_CQ, abi.pack_args(abi.CQ_ARGS, index=99))
        assert bench.finish()[:2] == (abi.CODE_BAD_INDEX, 0), moment
        row = bench.row(3)
        assert any(all(row[n] == values[n] for n in ("dst_mac", "src_ip", "dest_qpn")) for values in (old, new)), (moment, row)


@two_clocks
def test_reset_of_the_port(so):
    """At any clock of a command: its mailbox is told, by CODE_TIMEOUT if need be, and the next command works."""
    for moment in range(0, 230, 5):
        bench = Bench(so)
        bench.start(abi.CMD_MODIFY_QP, abi.pack_args(abi.QP_ARGS, qpi=3, qpn=0x13, state=abi.QP_INIT, pmtu=3, sq_log2=4))
        bench.sim.step(moment)
        bench.sim.hold("roce")
        bench.sim.step(1 + moment % 7)
        bench.sim.hold("roce", False)
        assert bench.finish()[0] in (abi.CODE_OK, abi.CODE_TIMEOUT), moment
        bench.sim.wait("ready", 1)
        assert bench.row(3)["state"] == abi.QP_RESET, f"{moment}: a command of before was done once more"
        assert bench.modify(abi.QP_INIT)[0] == abi.CODE_OK and bench.row(3)["state"] == abi.QP_INIT
        assert bench.run(abi.CMD_QUERY_DEVICE, [])[0] == abi.CODE_OK
        bench.csr(0, "index", 0)
        assert [bench.csr(0, "value")] == [7]


@two_clocks
def test_reset_of_the_registers_in_a_long_command(so):
    """The port waits for an owner, for longer than the reset lasts: it ends that command, and answers the next one with its own."""
    bench = Bench(so)
    bench.modify(abi.QP_INIT)
    bench.start(abi.CMD_MODIFY_QP, abi.pack_args(abi.QP_ARGS, qpi=3, qpn=0x13, state=abi.QP_RTR, pmtu=3, sq_log2=4))
    bench.sim.run(lambda: len(bench.ctl["responder"]), max_cycles=400)
    bench.sim.hold("sys")
    bench.sim.step(20)
    bench.sim.hold("sys", False)
    bench.start(abi.CMD_WRITE_CQ, abi.pack_args(abi.CQ_ARGS, index=99))
    bench.sim.step(200)
    assert not bench.csr(0, "status") & 2, "done, with the answer of a command that is not"
    code, _, order = bench.finish()
    assert code == abi.CODE_BAD_INDEX and [o[0] for o in order] == ["responder"] and bench.row(3)["state"] == abi.QP_RTR
