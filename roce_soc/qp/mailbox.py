# SPDX-License-Identifier: BSD-2-Clause
"""Mailboxes of the command port: registers of one master, and their way into another clock.

Not supported: several commands of one master at a time.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect.csr import *

from roce_soc import abi

# CommandEnd ---------------------------------------------------------------------------------------

class CommandEnd(LiteXModule):
    """Signals of a master towards the command port: `request` with opcode and args until `taken`; `done` with code, info
    and the words of `answer` that `answer_we` names."""
    def add_port(self):
        """Makes the signals."""
        self.request = Signal()
        self.opcode  = Signal(8)
        self.args    = Signal(32*abi.COMMAND_WORDS)
        self.taken   = Signal()
        self.done    = Signal()
        self.code    = Signal(8)
        self.info    = Signal(8)
        self.answer  = Signal(32*abi.COMMAND_WORDS)
        self.answer_we = Signal(abi.COMMAND_WORDS)


# CommandMailbox -----------------------------------------------------------------------------------

class CommandMailbox(CommandEnd):
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
        self.add_port()

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
            [If(self.answer_we[i], word.eq(self.answer[32*i:32*(i + 1)])) for i, word in enumerate(words)],
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


# MailboxCrossing ----------------------------------------------------------------------------------

class MailboxCrossing(CommandEnd):
    """A CommandMailbox in the near clock of a ClockLink for a command port in the far one.

    A command crosses word by word and is asked of the port when it is whole; so does the answer before `done` shows.

    Parameters
    ----------
    link : ClockLink
    mailbox : CommandMailbox

    Signals: those of a CommandMailbox towards the command port, in the far clock.

    Latency: some 40 clocks of the slower side each way.
    Errors : a command under way at a reset of the far side ends with CODE_TIMEOUT; after one of the near side the port
        ends what it had begun, and nobody is told.
    """
    def __init__(self, link, mailbox):
        self.add_port()

        # # #

        beat = [("word", 32)]
        command_in, command = link.add_stream(beat, to_far=True)
        answer_in, answer   = link.add_stream(beat, to_far=False)
        self._add_near(link, mailbox, command_in, answer)
        self._add_far(link, command, answer_in)

    def _add_near(self, link, mailbox, command, answer):
        """Words one after the other, the opcode last; the answer's words in the same order, its code last."""
        count = Signal(max=abi.COMMAND_WORDS + 1)
        words = Array([mailbox.args[32*i:32*(i + 1)] for i in range(abi.COMMAND_WORDS)] + [mailbox.opcode])
        lost  = [mailbox.done.eq(1), mailbox.code.eq(abi.CODE_TIMEOUT), NextState("IDLE")]
        self.comb += [
            command.word.eq(words[count]),
            command.last.eq(count == abi.COMMAND_WORDS),
            mailbox.answer.eq(Replicate(answer.word, abi.COMMAND_WORDS)),
            answer.ready.eq(1),
        ]
        near = FSM(reset_state="IDLE")
        near.act("IDLE",
            NextValue(count, 0),
            If(mailbox.request & ~link.near.stop, NextState("SEND"))
        )
        near.act("SEND",
            command.valid.eq(1),
            If(link.near.stop,
                *lost
            ).Elif(command.ready,
                NextValue(count, count + 1),
                If(command.last, NextValue(count, 0), NextState("WAIT"))
            )
        )
        near.act("WAIT",
            If(link.near.stop,
                *lost
            ).Elif(answer.valid & ~answer.last,
                [mailbox.answer_we[i].eq(count == i) for i in range(abi.COMMAND_WORDS)],
                NextValue(count, count + 1),
            ).Elif(answer.valid,
                mailbox.done.eq(1),
                mailbox.code.eq(answer.word[:8]),
                mailbox.info.eq(answer.word[8:16]),
                NextState("IDLE")
            )
        )
        self.near_fsm = ClockDomainsRenamer(link.near.cross)(near)

    def _add_far(self, link, command, answer):
        """One command at a time; what the port has taken is waited for, whether or not somebody still asks."""
        stop  = link.far.stop
        words = Signal(32*abi.COMMAND_WORDS)
        final = Signal(16)      # the port's own goes on to the next command of another master.
        taken, told = Signal(), Signal()
        count = Signal(max=abi.COMMAND_WORDS + 1)
        far   = FSM(reset_state="COLLECT")
        self.comb += self.args.eq(words)
        far.act("COLLECT",
            command.ready.eq(1),
            NextValue(taken, 0),
            NextValue(told, 0),
            If(command.valid & ~command.last,
                NextValue(words, Cat(words[32:], command.word)),
            ).Elif(command.valid,
                NextValue(self.opcode, command.word),
                NextState("REQUEST")
            )
        )
        far.act("REQUEST",
            self.request.eq(~taken & ~stop),
            If(self.taken, NextValue(taken, 1)),
            If(self.answer_we[0], NextValue(words, self.answer), NextValue(told, 1)),
            NextValue(count, 0),
            NextValue(final, Cat(self.code, self.info)),
            If(self.done,
                NextState("ANSWER"),
                If(stop, NextState("COLLECT"))
            ).Elif(stop,
                If(taken, NextState("ORPHAN")).Else(NextState("COLLECT"))
            )
        )
        far.act("ORPHAN", If(self.done, NextState("COLLECT")))
        far.act("ANSWER",
            answer.valid.eq(1),
            answer.last.eq(~told | (count == abi.COMMAND_WORDS)),
            answer.word.eq(Mux(answer.last, final, words[:32])),
            If(stop,
                NextState("COLLECT")
            ).Elif(answer.ready,
                NextValue(words, words[32:]),
                NextValue(count, count + 1),
                If(answer.last, NextState("COLLECT"))
            )
        )
        self.far_fsm = ClockDomainsRenamer(link.far.domain)(far)
