# SPDX-License-Identifier: BSD-2-Clause
"""Command port: mailboxes of the masters, one command at a time, QP state machine, fatal errors.

Ref: InfiniBand Architecture vol. 1 ch. 10.3 (QP states), 11.2.5.2 (modify queue pair).
Not supported: SQE (UC and UD only), alternate paths, the required-attribute rules (firmware and host
software check them; here the row is always written whole).
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc import abi
from roce_soc.common import (
    CTL_ERR, CTL_RESET, CTL_RESUME, CTL_SQD, CTL_START, CTL_STOP, MAX_READS, connection_layout, ctl_description,
    event_description, mr_write_description, ring_write_description)
from roce_soc.qp.mailbox import WORD_BITS, CommandMailbox, MailboxCrossing, words_of_command
from roce_soc.table import Table

# Whose part of a QP a control operation is for.
SIDES = ("receive", "responder", "requester", "completer", "fetch", "completion")
ABSENT = 7      # in place of a state: the QP was never made, or was destroyed.

# State changes by a command: (from, to) -> control operations as (side, op), in order; "row" writes the row as the
# arguments say, "state" its state alone.
TRANSITIONS = {
    (ABSENT,       abi.QP_RESET): ("row",),
    (ABSENT,       abi.QP_INIT): ("row",),
    (abi.QP_RESET, abi.QP_INIT): ("row",),
    (abi.QP_INIT,  abi.QP_INIT): ("row",),
    (abi.QP_INIT,  abi.QP_RTR):  (("responder", CTL_START), "row"),
    (abi.QP_RTR,   abi.QP_RTS):  ("row", ("completer", CTL_START), ("requester", CTL_START)),
    (abi.QP_RTS,   abi.QP_RTS):  ("row",),
    (abi.QP_RTS,   abi.QP_SQD):  ("row", ("requester", CTL_SQD), ("completer", CTL_SQD)),
    (abi.QP_SQD,   abi.QP_SQD):  ("row",),
    (abi.QP_SQD,   abi.QP_RTS):  ("row", ("requester", CTL_RESUME), ("completer", CTL_RESUME)),
}
# Packets that were let in under the old state go first. Then the requester falls silent, before the walker's row is
# cleared, before the requester's is: in any other order one of them would see the other's counters of the next life.
TO_RESET = ("state", ("receive", CTL_RESET), ("requester", CTL_STOP), ("completer", CTL_RESET), ("requester", CTL_RESET),
    ("fetch", CTL_RESET), ("responder", CTL_RESET), ("completion", CTL_RESET), "row")
TO_ERR   = ("state", ("responder", CTL_ERR), ("requester", CTL_ERR), ("completer", CTL_ERR))
TRANSITIONS.update({(state, abi.QP_RESET): TO_RESET for state in range(7)})
TRANSITIONS.update({(state, abi.QP_ERR): TO_ERR for state in range(1, 7)})

OWED = 7        # operations that an owner may leave unanswered.


# CommandOwner -------------------------------------------------------------------------------------

class CommandOwner(LiteXModule):
    """Control port of one row owner: `ctl` out, `done` (pulse for each operation, in order) in.

    An operation stays offered until it is taken, also when its command has given up waiting; what is answered late
    is counted, so that no later command takes the answer for its own.

    Endpoints
    ---------
    sink : ctl_description(), in
    idle : out
        Every operation has been answered.

    Latency: 1 clock to `ctl`, 1 clock from `done` to `idle`.
    Errors : none; what an owner does not answer is counted in `owed`.
    """
    def __init__(self):
        self.sink = sink = stream.Endpoint(ctl_description())
        self.ctl  = stream.Endpoint(ctl_description())
        self.done = Signal()
        self.idle = Signal()

        # # #

        self.buffer = buffer = stream.Buffer(ctl_description())
        owed  = Signal(max=OWED + 1)
        begun = Signal()
        self.comb += [
            buffer.sink.payload.eq(sink.payload),
            buffer.sink.first.eq(1), buffer.sink.last.eq(1),
            begun.eq(sink.valid & buffer.sink.ready & (owed != OWED)),
            buffer.sink.valid.eq(begun),
            sink.ready.eq(begun),
            buffer.source.connect(self.ctl),
            self.idle.eq(owed == 0),
        ]
        self.sync += owed.eq(owed + begun - (self.done & (owed != 0)))


# CommandPort --------------------------------------------------------------------------------------

class CommandPort(LiteXModule):
    """Executes commands and fatal errors one at a time; the only writer of connection rows.

    A receive queue belongs to one QP, from INIT until that is in RESET again: two would take each other's work requests.
    What a QP was connected with (QPN, queues) does not change while it is in RTR, RTS or SQD.

    Parameters
    ----------
    context : QPContext
    n_mrs, n_cqs, n_rqs : int
        Sizes of the tables, for the checks.
    capability : list of 32-bit numbers
        Answer of CMD_QUERY_DEVICE.
    timeout : int
        Clocks until an owner that does not answer makes the command end with CODE_TIMEOUT. What it owes is waited for
        by the next command that needs it.

    Endpoints
    ---------
    get_mailbox(link) : CommandMailbox, on the near side of a ClockLink
    get_fatal() : event_description(), in
        QPs that failed: type EVENT_QP_*, queue = QP index, info = row of errors.py.
    get_owner(side) : CommandOwner
        Owner of rows, one for each of SIDES; gets the operations of TRANSITIONS that name it.
    event : event_description(), out
        Fatal events, after the QP's state is ERR.
    drain_begins, qpi, drained : out, out, in
        A QP's row changes otherwise than within SQD; whether that QP has done all that was begun before SQD (RetireWalker).
    owned(index) : whether a receive queue belongs to a QP (expression, same clock); call before finalisation.
    mr_write : mr_write_description(), cq_write, rq_write, eq_write : ring_write_description(), out

    Latency: 8 to 20 clocks a command and one for each of its words; RESET and ERR take as long as what is in flight.
    Errors : CODE_* of the ABI; CODE_BAD_VALUE names the first word with a bit that this build does not know, else the first
        with a value that it refuses. RESET, ERR and the removal of a ring look at no more than the number.
    """
    def __init__(self, context, *, n_mrs, n_cqs, n_rqs, capability, timeout=1 << 22):
        self.context    = context
        self.n_mrs, self.n_cqs, self.n_rqs = n_mrs, n_cqs, n_rqs
        self.capability = list(capability)
        self.timeout    = timeout
        self.port       = context.get_port()
        self.holders    = Table([("held", 1), ("qpi", context.bits)], n_rqs, distributed=True)
        self.drain_begins, self.drained = Signal(), Signal(reset=1)
        self.mailboxes  = []
        self.fatals     = []
        self.owners     = {}
        self.event      = stream.Endpoint(event_description())
        self.mr_write   = stream.Endpoint(mr_write_description())
        self.cq_write   = stream.Endpoint(ring_write_description())
        self.rq_write   = stream.Endpoint(ring_write_description())
        self.eq_write   = stream.Endpoint(ring_write_description())

        # # #

        # The command or the fatal event under way.
        self.opcode, self.args     = Signal(8), Signal(32*max(abi.words_of(layout) for layout in abi.COMMAND_ARGS.values()))
        self.count                 = Signal(WORD_BITS + 1)
        self.odd, self.odd_word    = Signal(), Signal(8)      # an argument word has a bit that this build does not know.
        self.box                   = Signal(2)
        self.code, self.info       = Signal(8), Signal(8)
        self.fatal                 = Record(event_description().payload_layout)
        self.from_fatal            = Signal()
        self.qpi                   = Signal(context.bits)
        self.old_state, self.new_state = Signal(3), Signal(3)
        self.done, self.answer_we  = Signal(), Signal()
        # Clocks that an owner lets wait.
        self.watchdog, self.running = Signal(max=timeout + 1), Signal()
        self.sync += If(self.running, self.watchdog.eq(self.watchdog + 1)).Else(self.watchdog.eq(0))

    def owned(self, index):
        """Whether receive queue `index` belongs to a QP."""
        return self.holders.read(index).held

    def get_mailbox(self, link=None):
        """A mailbox for one more master; the caller makes it a submodule with a name for its CSRs."""
        if len(self.mailboxes) == 4:
            raise ValueError("there can be 4 mailboxes, this is the fifth")
        mailbox = CommandMailbox()
        if link is not None and link.separate:
            link.submodules += (crossing := MailboxCrossing(link, mailbox))
            self.mailboxes.append(crossing)
        else:
            self.mailboxes.append(mailbox)
        return mailbox

    def get_fatal(self):
        """A sink for the fatal events of one client."""
        sink = stream.Endpoint(event_description())
        self.fatals.append(sink)
        return sink

    def get_owner(self, side):
        """The control port of the row owner of `side`."""
        if side not in SIDES or side in self.owners:
            raise ValueError(f"side must be one of {SIDES}, each once, not {side!r}")
        self.owners[side] = owner = CommandOwner()
        setattr(self.submodules, f"owner_{side}", owner)
        return owner

    def _arg(self, layout, name):
        """Argument `name` of the command under way."""
        entry = abi.field(layout, name)
        low   = entry.lsb
        return self.args[low:low + entry.width]

    def do_finalize(self):
        records = [self.event, self.mr_write, self.cq_write, self.rq_write, self.eq_write]
        self.comb += [[record.first.eq(1), record.last.eq(1)] for record in records]
        self._add_row()
        self._add_tables()
        self._add_answers()
        self._add_fsm()

    # Data path ------------------------------------------------------------------------------------

    def _add_row(self):
        """Row written by MODIFY_QP: the arguments in the layout's order, or the row as it is but for the state."""
        new = Record(connection_layout())
        self.whole = Signal()
        self.comb += [
            self.port.adr.eq(self.qpi),
            self.context.write.index.eq(self.qpi),
            self.context.write.row.eq(new.raw_bits()),
            If(self.whole,
                [getattr(new, name).eq(self._arg(abi.QP_ARGS, name)) for name, _ in connection_layout()],
            ).Else(
                new.eq(self.port.row),
                new.state.eq(self.new_state),
            )
        ]

    def _add_tables(self):
        """Rows of memory regions and rings: the arguments as they stand; of a ring that is taken away nothing is left."""
        rings     = (self.cq_write, self.rq_write, self.eq_write)
        places    = ("index", "log2", "target", "page", "addr")
        self.ring = {name: self._arg(abi.CQ_ARGS, name) for name in ("valid", *places)}
        self.comb += [
            [[getattr(w, name).eq(self.ring[name] if name == "index" else Mux(self.ring["valid"], self.ring[name], 0))
                for name in places] for w in rings],
            [w.enable.eq(self.ring["valid"]) for w in rings],
            [getattr(self.mr_write, name).eq(self._arg(abi.MR_ARGS, name)) for name, _ in mr_write_description().payload_layout
                if name != "valid_row"],
            self.mr_write.valid_row.eq(self.opcode == abi.CMD_WRITE_MR),
        ]

    def _add_words(self):
        """Argument words of the command under way, one a clock; returns how many it has."""
        word, total, known = Signal(32), Signal(WORD_BITS + 1), Signal(32)
        self.comb += [
            words_of_command(self.opcode, total),
            Case(self.box, {**{i: word.eq(mailbox.word) for i, mailbox in enumerate(self.mailboxes)}, "default": word.eq(0)}),
            Case(self.opcode, {number: Case(self.count, {
                **{i: known.eq(mask) for i, mask in enumerate(abi.known_bits(layout))}, "default": known.eq(0)})
                for number, layout in abi.COMMAND_ARGS.items()} | {"default": known.eq(0)}),
        ]
        self.load = load = Signal()
        self.sync += If(load,
            [If(self.count == i, self.args[32*i:32*(i + 1)].eq(word)) for i in range(len(self.args)//32)],
            If(((word & ~known) != 0) & ~self.odd, self.odd.eq(1), self.odd_word.eq(self.count)),
        ).Elif(self.done,
            self.odd.eq(0)
        )
        return total

    def _add_answers(self):
        """Answers of queries word by word, results of the mailboxes."""
        query = Signal(32*abi.words_of(abi.QP_ARGS))
        for a in abi.QP_ARGS:
            value = self.qpi if a.name == "qpi" else getattr(self.port.row, a.name, None)
            if a.name == "draining":
                value = Signal()
                self.comb += value.eq((self.port.row.state == abi.QP_SQD) & ~self.drained)
            if value is not None:
                self.comb += query[a.lsb:a.lsb + len(value)].eq(value)
        answer, self.answers = Signal(32), Signal(WORD_BITS + 1)
        self.comb += If(self.opcode == abi.CMD_QUERY_QP,
            Case(self.count, {**{i: answer.eq(query[32*i:32*(i + 1)]) for i in range(len(query)//32)}, "default": answer.eq(0)}),
            self.answers.eq(len(query)//32),
        ).Else(
            Case(self.count, {**{i: answer.eq(value) for i, value in enumerate(self.capability)}, "default": answer.eq(0)}),
            self.answers.eq(len(self.capability)),
        )
        for i, mailbox in enumerate(self.mailboxes):
            self.comb += [
                mailbox.at.eq(self.count),
                mailbox.answer.eq(answer),
                mailbox.answer_we.eq(self.answer_we & (self.box == i)),
                mailbox.done.eq(self.done & (self.box == i)),
                mailbox.code.eq(self.code),
                mailbox.info.eq(self.info),
            ]

    def _add_checks(self):
        """(a value is refused, number of its argument word): the first word with an unknown bit, else the first that is wrong."""
        arg, state = (lambda name: self._arg(abi.QP_ARGS, name)), self.new_state
        qpn    = arg("qpn")
        holder = self.holders.read(arg("rq_index")[:log2_int(self.n_rqs)])
        live   = (self.old_state == abi.QP_RTR) | (self.old_state == abi.QP_RTS) | (self.old_state == abi.QP_SQD)

        def other(*names):
            """Whether the arguments differ from the row."""
            return Reduce("OR", [arg(name) != getattr(self.port.row, name) for name in names])
        def at(name):
            return abi.field(abi.QP_ARGS, name).word
        checks = (
            (at("qpn"), (qpn[:self.context.bits] != self.qpi) | (qpn < 2) | (qpn == 0xffffff)
                | (arg("qp_type") != abi.QP_TYPE_RC) | (live & other("qpn"))),
            (at("pmtu"), (state >= abi.QP_RTR) & ((arg("pmtu") == 0) | (arg("pmtu") > 5))),
            (at("send_cq"), (arg("send_cq") >= self.n_cqs) | (arg("recv_cq") >= self.n_cqs) | (live & other("send_cq", "recv_cq"))),
            (at("rq_index"), (arg("rq_index") >= self.n_rqs) | (arg("sq_log2") == 0) | (holder.held & (holder.qpi != self.qpi))
                | (live & other("rq_index"))),
            (at("sq_addr"), arg("sq_addr")[:6] != 0),
            (at("max_rd_atomic"), arg("max_rd_atomic") > MAX_READS),
            (at("max_dest_rd_atomic"), arg("max_dest_rd_atomic") > MAX_READS),
        )
        bad, word = Signal(), Signal(8)
        for number, wrong in reversed(checks):
            self.comb += If(wrong, bad.eq(1), word.eq(number))
        self.comb += If(self.odd, bad.eq(1), word.eq(self.odd_word))
        self.comb += If((state == abi.QP_RESET) | (state == abi.QP_ERR), bad.eq(0))
        return bad, word

    # Control path ---------------------------------------------------------------------------------

    def _end(self, result, word=0):
        return [NextValue(self.code, result), NextValue(self.info, word), NextState("DONE")]

    def _add_fsm(self):
        """IDLE -> LOAD -> one of the commands -> DONE; a QP's change reads the row, judges, runs its program."""
        self.fsm = fsm = FSM(reset_state="IDLE")
        total = self._add_words()
        # Fatal events first: a failing QP must not wait behind a row of commands.
        branches = [(sink.valid, [
            sink.ready.eq(1),
            [NextValue(getattr(self.fatal, n), getattr(sink, n)) for n, _ in self.fatal.layout],
            NextValue(self.from_fatal, 1),
            NextValue(self.qpi, sink.queue),
            NextState("READ-ROW"),
        ]) for sink in self.fatals]
        branches += [(mailbox.request, [
            mailbox.taken.eq(1),
            NextValue(self.box, i),
            NextValue(self.opcode, mailbox.opcode),
            NextValue(self.from_fatal, 0),
            NextValue(self.count, 0),
            NextState("LOAD"),
        ]) for i, mailbox in enumerate(self.mailboxes)]
        choice = If(branches[0][0], *branches[0][1])
        for condition, statements in branches[1:]:
            choice = choice.Elif(condition, *statements)
        fsm.act("IDLE", choice)
        fsm.act("LOAD",
            self.load.eq(self.count != total),
            NextValue(self.count, self.count + 1),
            If(self.count == total, NextValue(self.count, 0), NextState("DECODE"))
        )
        fsm.act("ANSWER",
            self.answer_we.eq(self.count != self.answers),
            NextValue(self.count, self.count + 1),
            If(self.count == self.answers, *self._end(abi.CODE_OK))
        )

        def if_index(limit, index, state):
            return If(index >= limit, *self._end(abi.CODE_BAD_INDEX)).Else(NextState(state))
        qpi, mr = self._arg(abi.QP_ARGS, "qpi"), self._arg(abi.MR_ARGS, "index")
        fsm.act("DECODE",
            NextValue(self.qpi, qpi),
            Case(self.opcode, {
                abi.CMD_NOP:           self._end(abi.CODE_OK),
                abi.CMD_QUERY_DEVICE:  [NextState("ANSWER")],
                abi.CMD_MODIFY_QP:     if_index(self.context.n_qps, qpi, "READ-ROW"),
                abi.CMD_QUERY_QP:      if_index(self.context.n_qps, qpi, "READ-ROW"),
                abi.CMD_WRITE_MR:      if_index(self.n_mrs, mr, "WRITE-MR"),
                abi.CMD_INVALIDATE_MR: if_index(self.n_mrs, mr, "WRITE-MR"),
                abi.CMD_WRITE_CQ:      if_index(self.n_cqs, self.ring["index"], "WRITE-CQ"),
                abi.CMD_WRITE_RQ:      if_index(self.n_rqs, self.ring["index"], "WRITE-RQ"),
                abi.CMD_WRITE_EQ:      if_index(1, self.ring["index"], "WRITE-EQ"),
                "default":             self._end(abi.CODE_BAD_OPCODE),
            })
        )
        unknown = self._end(abi.CODE_BAD_VALUE, self.odd_word)
        fsm.act("WRITE-MR",
            If(self.odd,
                *unknown
            ).Else(
                self.mr_write.valid.eq(1),
                If(self.mr_write.ready, *self._end(abi.CODE_OK))
            )
        )
        for name, sink, end in (("CQ", self.cq_write, [NextState("MARK")]), ("RQ", self.rq_write, self._end(abi.CODE_OK)),
                ("EQ", self.eq_write, self._end(abi.CODE_OK))):
            fsm.act(f"WRITE-{name}",
                If(self.ring["valid"] & self.odd,
                    *unknown
                ).Elif(self.ring["valid"] & (self.ring["log2"] == 0),
                    *self._end(abi.CODE_BAD_VALUE, abi.field(abi.CQ_ARGS, "log2").word)
                ).Elif(self.ring["valid"] & (self.ring["addr"][:6] != 0),
                    *self._end(abi.CODE_BAD_VALUE, abi.field(abi.CQ_ARGS, "addr").word)
                ).Else(
                    sink.valid.eq(1),
                    If(sink.ready, *end)
                )
            )
        self._add_qp_states(fsm)
        fsm.act("DONE", self.done.eq(1), NextState("IDLE"))

    def _add_qp_states(self, fsm):
        """A QP's change: a short program of steps, picked by (old state, new state)."""
        programs     = sorted({tuple(p) for p in TRANSITIONS.values()}, key=str)
        program      = Signal(max=max(2, len(programs)))
        allowed      = Signal()
        bad, word    = self._add_checks()
        old          = self.port.row
        self.comb += Case(Cat(self.new_state, self.old_state), {
            **{(o << 3 | n): [allowed.eq(1), program.eq(programs.index(tuple(p)))]
                for (o, n), p in TRANSITIONS.items()},
            "default": allowed.eq(0)})
        fsm.delayed_enter("READ-ROW", "JUDGE-STATE", 3)
        fsm.act("JUDGE-STATE",
            NextValue(self.old_state, Mux(old.qpn == 0, ABSENT, old.state)),
            NextValue(self.new_state, Mux(self.from_fatal, abi.QP_ERR, self._arg(abi.QP_ARGS, "state"))),
            If(~self.from_fatal & (self.opcode == abi.CMD_QUERY_QP),
                NextState("ANSWER")
            ).Elif(self.from_fatal & ((old.state == abi.QP_RESET) | (old.state == abi.QP_ERR)),
                NextState("IDLE")
            ).Else(
                NextState("JUDGE")
            )
        )
        fsm.act("JUDGE",
            If(~self.from_fatal & bad,
                *self._end(abi.CODE_BAD_VALUE, word)
            ).Elif(~allowed | (~self.from_fatal & (self.old_state == abi.QP_SQD) & (self.new_state == abi.QP_SQD) & ~self.drained),
                *self._end(abi.CODE_BAD_STATE)
            ).Else(
                Case(program, {**{i: NextState(f"P{i}-0") for i in range(len(programs))}, "default": NextState("IDLE")})
            )
        )
        for i, steps in enumerate(programs):
            for j, step in enumerate(steps):
                name, after = f"P{i}-{j}", f"P{i}-{j + 1}" if j + 1 < len(steps) else "APPLIED"
                if step == "row":
                    self._add_row_step(fsm, name, after)
                elif step == "state":
                    fsm.act(name,
                        self.context.write.valid.eq(1),
                        If(self.context.write.ready, NextState(after)),
                    )
                elif step[0] in self.owners:
                    self._add_operation(fsm, name, *step, after)
                else:
                    fsm.act(name, NextState(after))
        # Completions on their way to the queue's old place.
        if "completion" in self.owners:
            self._add_operation(fsm, "MARK", "completion", CTL_RESET, "APPLIED")
        else:
            fsm.act("MARK", NextState("APPLIED"))
        fsm.act("APPLIED", If(self.from_fatal, NextState("TELL")).Else(*self._end(abi.CODE_OK)))
        fsm.act("TELL",
            self.event.valid.eq(1),
            [getattr(self.event, n).eq(getattr(self.fatal, n)) for n, _ in self.fatal.layout],
            If(self.event.ready, NextState("IDLE"))
        )

    def _add_row_step(self, fsm, name, after):
        """Two states: the receive queue of the row as it was goes free, then the row is written and its queue is taken."""
        holders, bits = self.holders, log2_int(self.n_rqs)
        held = holders.read(self.port.row.rq_index[:bits])
        fsm.act(name,
            holders.we.eq(held.held & (held.qpi == self.qpi)),
            holders.adr.eq(self.port.row.rq_index),
            NextState(f"{name}-ROW"),
        )
        fsm.act(f"{name}-ROW",
            self.whole.eq(1),
            self.context.write.valid.eq(1),
            self.drain_begins.eq((self.old_state != abi.QP_SQD) | (self.new_state != abi.QP_SQD)),
            holders.we.eq(self.context.write.ready & (self.new_state != abi.QP_RESET)),
            holders.adr.eq(self._arg(abi.QP_ARGS, "rq_index")),
            holders.row.held.eq(1), holders.row.qpi.eq(self.qpi),
            If(self.context.write.ready, NextState(after)),
        )

    def _add_operation(self, fsm, name, side, op, after):
        """Two states: the operation is given to its owner, and answered."""
        owner = self.owners[side]
        # No command waits for a fatal error: its event tells.
        give_up = If(self.from_fatal, NextState("TELL")).Else(*self._end(abi.CODE_TIMEOUT))
        expired = self.watchdog == self.timeout
        fsm.act(name,
            self.running.eq(~owner.sink.ready),
            owner.sink.valid.eq(1),
            owner.sink.op.eq(op),
            owner.sink.qpi.eq(self.qpi),
            owner.sink.psn.eq(self._arg(abi.QP_ARGS, "rq_psn" if side == "responder" else "sq_psn")),
            If(owner.sink.ready, NextState(f"{name}-WAIT")).Elif(expired, give_up)
        )
        fsm.act(f"{name}-WAIT",
            self.running.eq(~owner.idle),
            If(owner.idle, NextState(after)).Elif(expired, give_up)
        )
