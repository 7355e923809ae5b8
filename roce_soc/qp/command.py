# SPDX-License-Identifier: BSD-2-Clause
"""Command port: mailboxes of the masters, one command at a time, QP state machine, fatal errors.

Ref: InfiniBand Architecture vol. 1 ch. 10.3 (QP states), 11.2.5.2 (modify queue pair).
Not supported: SQE (UC and UD only), alternate paths, the required-attribute rules (firmware and host
software check them; here the row is always written whole).
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream
from litex.soc.interconnect.csr import *

from roce_soc import abi
from roce_soc.common import (
    CTL_ERR, CTL_RESET, CTL_RESUME, CTL_SQD, CTL_START, MAX_READS, connection_layout, ctl_description,
    event_description, ring_write_description)

# State changes by a command: (from, to) -> control operations as (side, op), in order; "row" = write the row.
TRANSITIONS = {
    (abi.QP_RESET, abi.QP_INIT): ("row",),
    (abi.QP_INIT,  abi.QP_INIT): ("row",),
    (abi.QP_INIT,  abi.QP_RTR):  (("responder", CTL_START), "row"),
    (abi.QP_RTR,   abi.QP_RTS):  ("row", ("requester", CTL_START)),
    (abi.QP_RTS,   abi.QP_RTS):  ("row",),
    (abi.QP_RTS,   abi.QP_SQD):  ("row", ("requester", CTL_SQD)),
    (abi.QP_SQD,   abi.QP_SQD):  ("row",),
    (abi.QP_SQD,   abi.QP_RTS):  ("row", ("requester", CTL_RESUME)),
}
TRANSITIONS.update({(state, abi.QP_RESET): ("row", ("requester", CTL_RESET), ("responder", CTL_RESET)) for state in range(7)})
TRANSITIONS.update({(state, abi.QP_ERR): ("row", ("responder", CTL_ERR), ("requester", CTL_ERR)) for state in range(1, 7)})

SIDES = ("responder", "requester")


# CommandMailbox -----------------------------------------------------------------------------------

class CommandMailbox(LiteXModule):
    """Argument words and go register of one master (firmware, host, debug bridge).

    Write the words through `index` and `data` (which counts the index up), then `go`; poll `status`.
    After a query the words hold the answer: set `index`, read `value`.
    """
    def __init__(self):
        self.index = CSRStorage(fields=[
            CSRField("word", size=5, description="Argument word that `data` writes and `value` shows."),
        ], description="Argument index; counts up with each write to `data`.")
        self.data = CSRStorage(32, description="Write: argument word at `index`, then `index` + 1.")
        self.value = CSRStatus(32, description="Argument word at `index`; after a query the answer.")
        self.go = CSRStorage(fields=[
            CSRField("opcode", size=8, offset=0, description="Command, CMD_* of the ABI."),
            CSRField("seq",    size=8, offset=8, description="Returned in `status`; tells one answer from the next."),
        ], description="A write starts the command. Ignored while busy.")
        self.status = CSRStatus(fields=[
            CSRField("busy", size=1, offset=0,  description="A command is waiting or under way."),
            CSRField("done", size=1, offset=1,  description="The command `seq` has finished."),
            CSRField("code", size=8, offset=8,  description="CODE_* of the ABI: 0 = good."),
            CSRField("seq",  size=8, offset=16, description="Sequence number of the command that has finished."),
            CSRField("info", size=8, offset=24, description="Argument word that was refused (CODE_BAD_VALUE)."),
        ], description="Result of the last command.")
        # Towards the command port.
        self.request = Signal()
        self.opcode  = Signal(8)
        self.args    = Signal(32*abi.COMMAND_WORDS)
        self.done    = Signal()
        self.code    = Signal(8)
        self.info    = Signal(8)
        self.answer  = Signal(32*abi.COMMAND_WORDS)
        self.answer_we = Signal()

        # # #

        words  = Array([Signal(32, name=f"word{i}") for i in range(abi.COMMAND_WORDS)])
        index  = Signal(5)
        seq    = Signal(8)
        self.comb += [
            self.args.eq(Cat(*words)),
            self.value.status.eq(words[index]),
            self.status.fields.busy.eq(self.request),
        ]
        self.sync += [
            If(self.index.re, index.eq(self.index.fields.word)),
            If(self.data.re & ~self.request,
                words[index].eq(self.data.storage),
                index.eq(index + 1),
            ),
            If(self.answer_we, [word.eq(self.answer[32*i:32*(i + 1)]) for i, word in enumerate(words)]),
            If(self.go.re & ~self.request,
                self.request.eq(1),
                self.opcode.eq(self.go.fields.opcode),
                seq.eq(self.go.fields.seq),
                self.status.fields.done.eq(0),
            ),
            If(self.done,
                self.request.eq(0),
                self.status.fields.done.eq(1),
                self.status.fields.code.eq(self.code),
                self.status.fields.info.eq(self.info),
                self.status.fields.seq.eq(seq),
            ),
        ]


class _Owner:
    """Control port of one row owner: `ctl` out, `done` (pulse) in."""
    def __init__(self):
        self.ctl  = stream.Endpoint(ctl_description())
        self.done = Signal()


# CommandPort --------------------------------------------------------------------------------------

class CommandPort(LiteXModule):
    """Executes commands and fatal errors one at a time; the only writer of connection rows.

    Parameters
    ----------
    context : QPContext
    n_mrs, n_cqs, n_rqs : int
        Sizes of the tables, for the checks.
    capability : list of 32-bit numbers
        Answer of CMD_QUERY_DEVICE.
    timeout : int
        Clocks until an owner that does not answer makes the command end with CODE_TIMEOUT.

    Endpoints
    ---------
    get_mailbox() : CommandMailbox
    get_fatal() : event_description(), in
        QPs that failed: type EVENT_QP_*, queue = QP index, info = row of errors.py.
    get_owner(side) : `ctl` out, `done` in
        Owners of rows; side "responder" or "requester". All owners of a side get each of its operations in turn,
        in the order of these calls, CTL_START in the reverse order.
    event : event_description(), out
        Fatal events, after the QP's state is ERR.
    mr_write : {args of abi.MR_ARGS, valid_row}, cq_write, rq_write, eq_write : ring_write_description(), out

    Latency: 8 to 20 clocks a command; RESET and ERR take as long as what is in flight.
    Errors : CODE_* of the ABI.
    """
    def __init__(self, context, *, n_mrs, n_cqs, n_rqs, capability, timeout=1 << 22):
        self.context    = context
        self.n_mrs, self.n_cqs, self.n_rqs = n_mrs, n_cqs, n_rqs
        self.capability = list(capability)
        self.timeout    = timeout
        self.port       = context.get_port()
        self.mailboxes  = []
        self.fatals     = []
        self.owners     = {side: [] for side in SIDES}
        self.event      = stream.Endpoint(event_description())
        self.mr_write   = stream.Endpoint([("valid_row", 1)] + [(a.name, a.width) for a in abi.MR_ARGS])
        self.cq_write   = stream.Endpoint(ring_write_description())
        self.rq_write   = stream.Endpoint(ring_write_description())
        self.eq_write   = stream.Endpoint(ring_write_description())

    def get_mailbox(self):
        """A mailbox for one more master; the caller makes it a submodule with a name for its CSRs."""
        mailbox = CommandMailbox()
        self.mailboxes.append(mailbox)
        return mailbox

    def get_fatal(self):
        """A sink for the fatal events of one client."""
        sink = stream.Endpoint(event_description())
        self.fatals.append(sink)
        return sink

    def get_owner(self, side):
        """A control port for a row owner of `side`."""
        if side not in SIDES:
            raise ValueError(f"side must be one of {SIDES}, not {side!r}")
        owner = _Owner()
        self.owners[side].append(owner)
        return owner

    def do_finalize(self):
        records = [self.event, self.mr_write, self.cq_write, self.rq_write, self.eq_write]
        records += [owner.ctl for side in SIDES for owner in self.owners[side]]
        self.comb += [[record.first.eq(1), record.last.eq(1)] for record in records]
        n_boxes = len(self.mailboxes)
        opcode, args = Signal(8), Signal(32*abi.COMMAND_WORDS)
        box          = Signal(max=max(2, n_boxes))
        code, info   = Signal(8), Signal(8)
        fatal        = Record(event_description().payload_layout)
        from_fatal   = Signal()

        def arg(layout, name):
            entry = abi.field(layout, name)
            low   = 32*entry.word + entry.bit
            return args[low:low + entry.width]

        # Row written by MODIFY_QP: the arguments in the layout's order; a fatal error changes the state alone.
        old, new = self.port.row, Record(connection_layout())
        qpi      = Signal(self.context.bits)
        self.comb += [
            self.port.adr.eq(qpi),
            self.context.write.index.eq(qpi),
            self.context.write.row.eq(new.raw_bits()),
            If(from_fatal,
                new.eq(old),
                new.state.eq(abi.QP_ERR),
            ).Else(
                [getattr(new, name).eq(arg(abi.QP_ARGS, name)) for name, _ in connection_layout()],
            )
        ]

        # What to do at a state change: a short program of steps, picked by (old state, new state).
        steps     = sorted({tuple(p) for p in TRANSITIONS.values()}, key=str)
        program   = Signal(max=max(2, len(steps)))
        allowed   = Signal()
        old_state, new_state = Signal(3), Signal(3)
        self.comb += Case(Cat(new_state, old_state), {
            **{(o << 3 | n): [allowed.eq(1), program.eq(steps.index(tuple(p)))] for (o, n), p in TRANSITIONS.items()},
            "default": allowed.eq(0)})

        # Checks of arguments: first failing word number in `info`.
        checks = (
            (1,  (arg(abi.QP_ARGS, "qpn")[:self.context.bits] != qpi) | (arg(abi.QP_ARGS, "qpn") < 2)
                | (arg(abi.QP_ARGS, "qpn") == 0xffffff) | (arg(abi.QP_ARGS, "qp_type") != abi.QP_TYPE_RC)),
            (2,  (new_state >= abi.QP_RTR) & (new_state != abi.QP_ERR)
                & ((arg(abi.QP_ARGS, "pmtu") == 0) | (arg(abi.QP_ARGS, "pmtu") > 5))),
            (4,  (arg(abi.QP_ARGS, "send_cq") >= self.n_cqs) | (arg(abi.QP_ARGS, "recv_cq") >= self.n_cqs)),
            (5,  (arg(abi.QP_ARGS, "rq_index") >= self.n_rqs) | (arg(abi.QP_ARGS, "sq_log2") == 0)),
            (6,  arg(abi.QP_ARGS, "sq_addr")[:6] != 0),
            (11, arg(abi.QP_ARGS, "max_rd_atomic") > MAX_READS),
            (12, arg(abi.QP_ARGS, "max_dest_rd_atomic") > MAX_READS),
        )
        bad_value, bad_word = Signal(), Signal(8)
        for word, bad in reversed(checks):
            self.comb += If(bad & (new_state != abi.QP_RESET), bad_value.eq(1), bad_word.eq(word))

        ring  = {name: arg(abi.CQ_ARGS, name) for name in ("index", "log2", "target", "page", "addr")}
        ring_bad = Signal()
        self.comb += [
            ring_bad.eq((ring["log2"] == 0) | (ring["addr"][:6] != 0)),
            [[getattr(w, name).eq(value) for name, value in ring.items()] for w in (self.cq_write, self.rq_write, self.eq_write)],
            [w.enable.eq(arg(abi.CQ_ARGS, "valid")) for w in (self.cq_write, self.rq_write, self.eq_write)],
            [getattr(self.mr_write, a.name).eq(arg(abi.MR_ARGS, a.name)) for a in abi.MR_ARGS],
            self.mr_write.valid_row.eq(opcode == abi.CMD_WRITE_MR),
        ]

        # Answers.
        answer = Signal(32*abi.COMMAND_WORDS)
        query  = Signal(32*abi.COMMAND_WORDS)
        for a in abi.QP_ARGS:
            if a.name in dict(connection_layout()):
                self.comb += query[32*a.word + a.bit:32*a.word + a.bit + a.width].eq(getattr(old, a.name))
        entry = abi.field(abi.QP_ARGS, "qpi")
        self.comb += [
            query[32*entry.word:32*entry.word + self.context.bits].eq(qpi),
            answer.eq(Mux(opcode == abi.CMD_QUERY_QP, query, sum(v << (32*i) for i, v in enumerate(self.capability)))),
        ]
        done, answer_we = Signal(), Signal()
        for i, mailbox in enumerate(self.mailboxes):
            self.comb += [
                mailbox.done.eq(done & (box == i) & ~from_fatal),
                mailbox.answer_we.eq(answer_we & (box == i)),
                mailbox.code.eq(code), mailbox.info.eq(info), mailbox.answer.eq(answer),
            ]

        self._do_fsm(locals())

    def _do_fsm(self, v):
        """Control path: IDLE -> one of the commands -> DONE; QP changes run their step program."""
        opcode, args, box, code, info, fatal, from_fatal = (v[n] for n in
            ("opcode", "args", "box", "code", "info", "fatal", "from_fatal"))
        qpi, old, old_state, new_state, program, allowed, steps = (v[n] for n in
            ("qpi", "old", "old_state", "new_state", "program", "allowed", "steps"))
        arg, ring, ring_bad, done, answer_we = (v[n] for n in ("arg", "ring", "ring_bad", "done", "answer_we"))
        self.fsm = fsm = FSM(reset_state="IDLE")

        def end(result, word=0):
            return [NextValue(code, result), NextValue(info, word), NextState("DONE")]

        # Fatal events first: a failing QP must not wait behind a row of commands.
        pick = NextState("IDLE")
        choice = None
        for i, mailbox in enumerate(self.mailboxes):
            body = [NextValue(box, i), NextValue(opcode, mailbox.opcode), NextValue(args, mailbox.args),
                NextValue(from_fatal, 0), NextState("DECODE")]
            choice = If(mailbox.request, *body) if choice is None else choice.Elif(mailbox.request, *body)
        first = None
        for sink in self.fatals:
            body = [sink.ready.eq(1), [NextValue(getattr(fatal, n), getattr(sink, n)) for n, _ in fatal.layout],
                NextValue(from_fatal, 1), NextValue(qpi, sink.queue), NextState("READ-ROW")]
            first = If(sink.valid, *body) if first is None else first.Elif(sink.valid, *body)
        idle = choice if first is None else (first.Else(choice) if choice is not None else first)
        fsm.act("IDLE", idle if idle is not None else pick)

        qpi_arg = arg(abi.QP_ARGS, "qpi")
        fsm.act("DECODE",
            NextValue(qpi, qpi_arg),
            Case(opcode, {
                abi.CMD_NOP:           end(abi.CODE_OK),
                abi.CMD_QUERY_DEVICE:  [answer_we.eq(1), *end(abi.CODE_OK)],
                abi.CMD_MODIFY_QP:     If(qpi_arg >= self.context.n_qps, *end(abi.CODE_BAD_INDEX)).Else(NextState("READ-ROW")),
                abi.CMD_QUERY_QP:      If(qpi_arg >= self.context.n_qps, *end(abi.CODE_BAD_INDEX)).Else(NextState("READ-ROW")),
                abi.CMD_WRITE_MR:      If(arg(abi.MR_ARGS, "index") >= self.n_mrs, *end(abi.CODE_BAD_INDEX)).Else(NextState("WRITE-MR")),
                abi.CMD_INVALIDATE_MR: If(arg(abi.MR_ARGS, "index") >= self.n_mrs, *end(abi.CODE_BAD_INDEX)).Else(NextState("WRITE-MR")),
                abi.CMD_WRITE_CQ:      NextState("WRITE-CQ"),
                abi.CMD_WRITE_RQ:      NextState("WRITE-RQ"),
                abi.CMD_WRITE_EQ:      NextState("WRITE-EQ"),
                "default":             end(abi.CODE_BAD_OPCODE),
            })
        )
        fsm.act("WRITE-MR",
            self.mr_write.valid.eq(1),
            If(self.mr_write.ready, *end(abi.CODE_OK))
        )
        for name, sink, limit in (("CQ", self.cq_write, self.n_cqs), ("RQ", self.rq_write, self.n_rqs), ("EQ", self.eq_write, 1)):
            fsm.act(f"WRITE-{name}",
                If(ring["index"] >= limit,
                    *end(abi.CODE_BAD_INDEX)
                ).Elif(ring_bad & arg(abi.CQ_ARGS, "valid"),
                    *end(abi.CODE_BAD_VALUE, 1)
                ).Else(
                    sink.valid.eq(1),
                    If(sink.ready, *end(abi.CODE_OK))
                )
            )

        # QP: the row is read, the change judged, its steps run.
        fsm.delayed_enter("READ-ROW", "JUDGE-STATE", 3)
        fsm.act("JUDGE-STATE",
            NextValue(old_state, old.state),
            NextValue(new_state, Mux(from_fatal, abi.QP_ERR, arg(abi.QP_ARGS, "state"))),
            If(~from_fatal & (opcode == abi.CMD_QUERY_QP),
                answer_we.eq(1),
                *end(abi.CODE_OK)
            ).Elif(from_fatal & ((old.state == abi.QP_RESET) | (old.state == abi.QP_ERR)),
                NextState("IDLE")
            ).Else(
                NextState("JUDGE")
            )
        )
        fsm.act("JUDGE",
            If(~from_fatal & v["bad_value"],
                *end(abi.CODE_BAD_VALUE, v["bad_word"])
            ).Elif(~allowed,
                *end(abi.CODE_BAD_STATE)
            ).Else(
                Case(program, {**{i: NextState(f"P{i}-0") for i in range(len(steps))}, "default": NextState("IDLE")})
            )
        )
        watchdog = Signal(max=self.timeout + 1)
        running  = Signal()
        self.sync += If(running, watchdog.eq(watchdog + 1)).Else(watchdog.eq(0))
        for i, program_steps in enumerate(steps):
            flat = []
            for step in program_steps:
                if step == "row":
                    flat.append(None)
                else:
                    # Whoever sends starts last and stops first.
                    owners = self.owners[step[0]]
                    flat  += [(owner, step[1]) for owner in (reversed(owners) if step[1] == CTL_START else owners)]
            for j, step in enumerate(flat):
                after = f"P{i}-{j + 1}" if j + 1 < len(flat) else "APPLIED"
                if step is None:
                    fsm.act(f"P{i}-{j}",
                        self.context.write.valid.eq(1),
                        If(self.context.write.ready, NextState(after))
                    )
                else:
                    owner, op = step
                    side = "rq_psn" if owner in self.owners["responder"] else "sq_psn"
                    fsm.act(f"P{i}-{j}",
                        owner.ctl.valid.eq(1),
                        owner.ctl.op.eq(op),
                        owner.ctl.qpi.eq(qpi),
                        owner.ctl.psn.eq(arg(abi.QP_ARGS, side)),
                        If(owner.ctl.ready, If(owner.done, NextState(after)).Else(NextState(f"P{i}-{j}-WAIT")))
                    )
                    fsm.act(f"P{i}-{j}-WAIT",
                        running.eq(1),
                        If(owner.done, NextState(after)
                        ).Elif(watchdog == self.timeout, *end(abi.CODE_TIMEOUT))
                    )
        fsm.act("APPLIED",
            If(from_fatal, NextState("TELL")).Else(*end(abi.CODE_OK))
        )
        fsm.act("TELL",
            self.event.valid.eq(1),
            [getattr(self.event, n).eq(getattr(fatal, n)) for n, _ in fatal.layout],
            If(self.event.ready, NextState("IDLE"))
        )
        fsm.act("DONE", done.eq(1), NextState("IDLE"))
