# SPDX-License-Identifier: BSD-2-Clause
"""Mailboxes of the command port: registers of one master, and their way into another clock.

Not supported: several commands of one master at a time.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect.csr import *

from roce_soc import abi

WORD_BITS = log2_int(abi.COMMAND_WORDS)


def words_of_command(opcode, count):
    """Statement: `count` becomes the argument words of command `opcode`, 0 of one that is not built."""
    return Case(opcode, {**{number: count.eq(abi.words_of(layout)) for number, layout in abi.COMMAND_ARGS.items()}, "default": count.eq(0)})


# CommandEnd ---------------------------------------------------------------------------------------

class CommandEnd(LiteXModule):
    """Signals of a master towards the command port.

    `request` with `opcode` stands until `done` (in, pulse) with `code` and `info`; `taken` (in, pulse) tells when it is begun. From then
    on `word` is the argument word at `at` (in), in the same clock, and `answer_we` (in) puts `answer` (in) there.

    Latency: none. Errors: `code`, CODE_* of the ABI.
    """
    def add_port(self):
        """Makes the signals."""
        self.request, self.taken = Signal(), Signal()
        self.opcode    = Signal(8)
        self.at        = Signal(WORD_BITS)
        self.word      = Signal(32)
        self.answer    = Signal(32)
        self.answer_we = Signal()
        self.done      = Signal()
        self.code      = Signal(8)
        self.info      = Signal(8)

    def add_words(self, domain="sys"):
        """A RAM of argument words: returns (write enable, address, data of a write; address of the read, word read)."""
        memory = Memory(32, abi.COMMAND_WORDS)
        write  = memory.get_port(write_capable=True, clock_domain=domain)
        read   = memory.get_port(async_read=True, clock_domain=domain)
        self.specials += memory, write, read
        return write.we, write.adr, write.dat_w, read.adr, read.dat_r


# CommandMailbox -----------------------------------------------------------------------------------

class CommandMailbox(CommandEnd):
    """Argument words and go register of one master (firmware, host, debug bridge).

    Write the words through `index` and `data` (which counts the index up), then `go`; poll `status`.
    After a query the words hold the answer: set `index`, read `value`. Words have no value before they are written.

    Latency: a word a clock to the port once the command is begun. Errors: `code` in `status`, CODE_* of the ABI.
    """
    def __init__(self):
        self.index = CSRStorage(fields=[
            CSRField("word", size=WORD_BITS, description="Argument word that `data` writes and `value` shows."),
        ], description="Argument index; counts up with each write to `data`.")
        self.data = CSRStorage(32, description="Write: argument word at `index`, then `index` + 1. Ignored while busy.")
        self.value = CSRStatus(32, description="Argument word at `index`; after a query the answer. While busy: any word.")
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

        index = Signal(WORD_BITS)
        seq   = Signal(8)
        write, write_at, written, read_at, word = self.add_words()
        self.comb += [
            write.eq(self.answer_we | (self.data.re & ~self.request)),
            write_at.eq(Mux(self.request, self.at, index)),
            written.eq(Mux(self.request, self.answer, self.data.storage)),
            read_at.eq(Mux(self.request, self.at, index)),
            self.word.eq(word),
            self.value.status.eq(word),
            self.status.fields.busy.eq(self.request),
        ]
        self.sync += [
            If(self.index.re, index.eq(self.index.fields.word)),
            If(self.data.re & ~self.request, index.eq(index + 1)),
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

    Latency: some 10 clocks of the slower side and one a word, each way.
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
        count, total = Signal(WORD_BITS + 1), Signal(WORD_BITS + 1)
        lost = [mailbox.done.eq(1), mailbox.code.eq(abi.CODE_TIMEOUT), NextState("IDLE")]
        self.comb += [
            words_of_command(mailbox.opcode, total),
            command.last.eq(count == total),
            command.word.eq(Mux(command.last, mailbox.opcode, mailbox.word)),
            mailbox.at.eq(count),
            mailbox.answer.eq(answer.word),
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
                mailbox.answer_we.eq(1),
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
        final = Signal(16)      # the port's own goes on to the next command of another master.
        taken = Signal()
        count, answers = Signal(WORD_BITS + 1), Signal(WORD_BITS + 1)
        write, write_at, written, read_at, word = self.add_words(link.far.domain)
        collect, reply = Signal(), Signal()
        self.comb += [
            write.eq((collect & command.valid & ~command.last) | self.answer_we),
            write_at.eq(Mux(collect, count, self.at)),
            written.eq(Mux(collect, command.word, self.answer)),
            read_at.eq(Mux(reply, count, self.at)),
            self.word.eq(word),
        ]
        far = FSM(reset_state="COLLECT")
        far.act("COLLECT",
            collect.eq(1),
            command.ready.eq(1),
            NextValue(taken, 0),
            NextValue(answers, 0),
            If(stop,
                NextValue(count, 0)
            ).Elif(command.valid & ~command.last,
                NextValue(count, count + 1),
            ).Elif(command.valid,
                NextValue(self.opcode, command.word),
                NextState("REQUEST")
            )
        )
        far.act("REQUEST",
            self.request.eq(~taken & ~stop),
            If(self.taken, NextValue(taken, 1)),
            If(self.answer_we, NextValue(answers, self.at + 1)),
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
            reply.eq(1),
            answer.valid.eq(1),
            answer.last.eq(count == answers),
            answer.word.eq(Mux(answer.last, final, word)),
            If(stop,
                NextValue(count, 0),
                NextState("COLLECT")
            ).Elif(answer.ready,
                NextValue(count, count + 1),
                If(answer.last, NextValue(count, 0), NextState("COLLECT"))
            )
        )
        self.far_fsm = ClockDomainsRenamer(link.far.domain)(far)
