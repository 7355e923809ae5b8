# SPDX-License-Identifier: BSD-2-Clause
"""A command port with two mailboxes whose owners answer after a while, for test_command and test_mailbox."""
from litex.gen import *
from litex.soc.interconnect import csr_bus
from migen import *

from roce_soc import abi
from roce_soc.clocks import ClockLink
from roce_soc.common import connection_layout
from roce_soc.qp.command import SIDES, CommandPort
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


def compile_commands(domain):
    """The compiled port with its registers in `domain`."""
    top = Commands(domain)
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
    return build(top, ios, name="command", clocks=("sys",) if domain == "sys" else ("sys", "roce"))


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
