# SPDX-License-Identifier: BSD-2-Clause
"""qp/command, qp/mailbox and qp/context: mailbox at one clock and at two, state machine, order of row and control writes, fatal errors."""
import pytest
from litex.gen import *
from litex.soc.interconnect import csr_bus
from migen import *

from roce_soc import abi
from roce_soc.clocks import ClockLink
from roce_soc.common import CTL_ERR, CTL_RESET, CTL_START, CTL_STOP, connection_layout
from roce_soc.qp.command import SIDES, TRANSITIONS, CommandPort
from roce_soc.qp.context import QPContext
from sim.harness import Sim, build

N_QPS     = 16
REGISTERS = ("index", "data", "value", "go", "status")


class Commands(LiteXModule):
    """Command port with two mailboxes; owners answer after a while."""
    def __init__(self, domain):
        self.link     = link = ClockLink("sys", domain)
        self.context  = link.on_far(QPContext(N_QPS))
        self.reader   = self.context.get_port()
        self.command  = link.on_far(CommandPort(self.context, n_mrs=64, n_cqs=8, n_rqs=8, capability=[7, 8, 9], timeout=500))
        self.box0, self.box1 = self.command.get_mailbox(link), self.command.get_mailbox(link)
        self.fatal    = self.command.get_fatal()
        self.owners   = {side: self.command.get_owner(side) for side in SIDES}
        self.banks    = []
        for box in (self.box0, self.box1):
            bank = csr_bus.CSRBank(box.get_csrs(), bus=csr_bus.Interface(data_width=32, address_width=14))
            self.submodules += box, bank
            self.banks.append(bank)


@pytest.fixture(scope="module", params=["sys", "roce"])
def so(request):
    top = Commands(request.param)
    ios = {"row_adr": top.reader.adr, "fatal": top.fatal,
           "drained": top.command.drained, "drain_begins": top.command.drain_begins,
           "event": top.command.event, "mr": top.command.mr_write, "cq": top.command.cq_write, "ready": top.context.ready}
    flat = Signal(len(top.reader.row.raw_bits()))
    top.comb += flat.eq(top.reader.row.raw_bits())
    ios["flat"] = flat
    for side, owner in top.owners.items():
        ios[f"{side}_ctl"], ios[f"{side}_done"] = owner.ctl, owner.done
    for i, bank in enumerate(top.banks):
        ios.update({f"b{i}_{name}": getattr(bank.bus, name) for name in ("adr", "we", "re", "dat_w", "dat_r")})
    return build(top, ios, name="command", clocks=("sys",) if request.param == "sys" else ("sys", "roce"))


class Bench:
    def __init__(self, so):
        # Registers slower than the port, where they have a clock of their own.
        self.sim = sim = Sim(so, seed=1)
        if "roce" in sim.clocks:
            sim.close()
            self.sim = sim = Sim(so, seed=1, clocks={"roce": 4000, "sys": (10_000, 1700)})
        self.ctl = {side: sim.sink(f"{side}_ctl") for side in SIDES}
        self.event, self.mr, self.cq, self.fatal = sim.sink("event"), sim.sink("mr"), sim.sink("cq"), sim.source("fatal")
        self.answers, self.seq, self.started = True, 0, {}
        sim.reset()
        sim.wait("ready", 1)
        sim.poke("drained", 1)

    def csr(self, box, name, value=None):
        """Writes a mailbox register, or reads it without a value."""
        self.sim.poke(f"b{box}_adr", REGISTERS.index(name))
        self.sim.poke(f"b{box}_dat_w", value or 0)
        self.sim.poke(f"b{box}_we", value is not None)
        self.sim.poke(f"b{box}_re", value is None)
        self.sim.step(1, "sys")
        self.sim.poke(f"b{box}_we", 0)
        self.sim.poke(f"b{box}_re", 0)
        answer = self.sim.peek(f"b{box}_dat_r")
        self.sim.step(1, "sys")     # a bus bridge takes at least this long between two accesses.
        return answer

    def start(self, opcode, words, box=0):
        self.seq += 1
        self.csr(box, "index", 0)
        for word in words:
            self.csr(box, "data", word)
        self.csr(box, "go", opcode | self.seq << 8)
        self.started[box] = self.seq

    def finish(self, box=0, limit=2000):
        """Runs until the mailbox is done, answering the owners; returns (code, info, order of control ops)."""
        order = []
        for _ in range(limit):
            for side in self.ctl:
                record = self.ctl[side].recv()
                if record is not None:
                    order.append((side, record.op, record.qpi, record.psn, self.row(record.qpi)["state"]))
                    if self.answers:
                        self.sim.step(3)
                        self.sim.poke(f"{side}_done", 1)
                        self.sim.step()
                        self.sim.poke(f"{side}_done", 0)
            status = self.csr(box, "status")
            if status & 2 and (status >> 16) & 0xff == self.started[box]:
                return (status >> 8) & 0xff, status >> 24, order
            self.sim.step()
        raise AssertionError("command not done")

    def run(self, opcode, words, **where):
        self.start(opcode, words, **where)
        return self.finish(where.get("box", 0))

    def row(self, qpi):
        self.sim.poke("row_adr", qpi)
        self.sim.step(3)
        bits, out = self.sim.peek("flat"), {}
        for name, width in connection_layout():
            out[name] = bits & ((1 << width) - 1)
            bits >>= width
        return out

    def modify(self, state, **more):
        values = dict(qpi=3, qpn=0x13, state=state, pmtu=3, sq_log2=4, sq_psn=0x111, rq_psn=0x222, dst_mac=0x0a0b0c0d0e0f, src_ip=1 << 100)
        return self.run(abi.CMD_MODIFY_QP, abi.pack_args(abi.QP_ARGS, **{**values, **more}))


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

