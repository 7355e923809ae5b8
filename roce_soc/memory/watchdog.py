# SPDX-License-Identifier: BSD-2-Clause
"""Answers for memories that do not exist, or that do not answer.

Ref: contract of memory/port.py.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.common import (
    DATA_WIDTH, MEM_REFUSED, MEM_TIMEOUT, TAG_WIDTH, memory_command_description, memory_wdata_description)
from roce_soc.memory.port import BEATS_WIDTH, DEPTH, MemoryReadPort, MemoryWritePort, beats_of

TIMEOUT_CYCLES = 1 << 16   # 262 us at 250 MHz.


# MemoryNoTarget -----------------------------------------------------------------------------------

class MemoryNoTarget(LiteXModule):
    """A write and a read port that answer every command with an error, beats of zeros.

    Latency: 2 clocks, one beat a clock.
    Errors : every command is answered with its `err`.
    """
    def __init__(self, err=MEM_REFUSED, dw=DATA_WIDTH):
        self.write = write = MemoryWritePort(dw)
        self.read  = read  = MemoryReadPort(dw)

        # # #

        w_open, w_tag = Signal(), Signal(TAG_WIDTH)
        w_last        = Signal()
        self.comb += [
            w_last.eq(w_open & write.wdata.valid & write.wdata.last),
            write.wcmd.ready.eq(~w_open | w_last),
            write.wdata.ready.eq(w_open),
        ]
        self.sync += [
            write.wack.valid.eq(w_last),
            write.wack.last.eq(1),
            write.wack.tag.eq(w_tag),
            write.wack.err.eq(err),
            If(write.wcmd.ready, w_open.eq(write.wcmd.valid), w_tag.eq(write.wcmd.tag)),
        ]
        r_open, r_tag = Signal(), Signal(TAG_WIDTH)
        left, r_last  = Signal(BEATS_WIDTH), Signal()
        self.comb += [
            r_last.eq(left == 1),
            read.rcmd.ready.eq(~r_open | r_last),
        ]
        self.sync += [
            read.rdata.valid.eq(r_open),
            read.rdata.last.eq(r_last),
            read.rdata.tag.eq(r_tag),
            read.rdata.err.eq(err),
            left.eq(left - 1),
            If(read.rcmd.ready, r_open.eq(read.rcmd.valid), r_tag.eq(read.rcmd.tag), left.eq(beats_of(read.rcmd))),
        ]

# Watchdogs ----------------------------------------------------------------------------------------

class OwnTags(LiteXModule):
    """Numbers for the commands that one memory is given: tells its next answer from those of before a restart.

    A memory answers in order of issue, so that what it still says about an old command comes before it says anything
    about a new one; numbers repeat after twice the commands that can be outstanding.

    Signals: `issued`, `returned`, `restart` in; `issue` (tag of the next command), `owed` (answers to come) out.

    Latency: 1 clock.
    Errors : none.
    """
    def __init__(self, depth):
        if not 1 <= depth <= 1 << (TAG_WIDTH - 1):
            raise ValueError(f"depth must be 1..{1 << (TAG_WIDTH - 1)}, not {depth!r}")
        self.issued, self.returned, self.restart = Signal(), Signal(), Signal()
        self.issue,  self.expect = Signal(TAG_WIDTH), Signal(TAG_WIDTH)
        self.owed   = Signal(max=depth + 1)

        # # #

        self.sync += [
            If(self.issued, self.issue.eq(self.issue + 1)),
            If(self.restart,
                self.owed.eq(0),
                self.expect.eq(self.issue + self.issued),
            ).Else(
                self.owed.eq(self.owed + self.issued - self.returned),
                If(self.returned, self.expect.eq(self.expect + 1)),
            ),
        ]

    def mine(self, answer):
        """The answer (wack or rdata) is that to the oldest command of this life (expression)."""
        return answer.valid & (self.owed != 0) & (answer.tag == self.expect)


class MemoryWriteTimeout(LiteXModule):
    """Answers for a memory that has not acknowledged a write in time.

    After `cycles` clocks without any progress all outstanding writes are answered MEM_TIMEOUT, and so
    are new ones, until the memory has given every acknowledge it owes. Data that it still waits for is fed to
    it with no byte enabled.

    A memory that was reset gives nothing that it owes. `restart` says so: all that is on its way to the memory is dropped,
    all that is outstanding is answered MEM_TIMEOUT, then the port is open again. Answers of before are known by their
    tags and reach no later command.

    Endpoints
    ---------
    port : MemoryWritePort, in
    memory : MemoryWritePort, out
        Carries tags of its own.
    restart : Signal, in
        A pulse: the memory was reset. A level: it is in reset, every command is answered MEM_TIMEOUT so long.
    closed : Signal, out
        The memory is answered for.
    quiet : Signal, out
        Nothing is outstanding, nothing is owed.

    Latency: 1 clock; a command is passed on when the one before has all its data.
    Errors : MEM_TIMEOUT as above; those of the memory pass.
    """
    def __init__(self, cycles=TIMEOUT_CYCLES, depth=DEPTH, dw=DATA_WIDTH):
        if cycles < 2:
            raise ValueError(f"cycles must be 2 or more, not {cycles!r}")
        self.port   = port   = MemoryWritePort(dw)
        self.memory = MemoryWritePort(dw)
        self.quiet   = Signal()
        self.restart = restart = Signal()
        self.closed  = closed  = Signal()

        # # #

        taken, issued, beat, fed, answer, acked = [Signal() for _ in range(6)]
        # Registers on the memory's side: what a stopped memory was offered stays as it is.
        memory            = MemoryWritePort(dw)
        self.wcmd_buffer  = ResetInserter()(stream.Buffer(memory_command_description()))
        self.wdata_buffer = ResetInserter()(stream.Buffer(memory_wdata_description(dw)))
        self.tags         = tags = OwnTags(depth)
        self.comb += [
            self.wcmd_buffer.reset.eq(restart),
            self.wdata_buffer.reset.eq(restart),
            tags.restart.eq(restart),
            tags.issued.eq(issued),
            tags.returned.eq(acked),
            acked.eq(tags.mine(memory.wack)),
            memory.wcmd.connect(self.wcmd_buffer.sink),
            memory.wdata.connect(self.wdata_buffer.sink),
            self.wcmd_buffer.source.connect(self.memory.wcmd),
            self.wdata_buffer.source.connect(self.memory.wdata),
            self.memory.wack.connect(memory.wack),
        ]

        self.order = order = stream.SyncFIFO([("tag", TAG_WIDTH)], depth)
        whole      = Signal(max=depth + 1)      # commands that were given all their data and not answered yet.
        left       = Signal(BEATS_WIDTH)        # beats of the open command that the memory waits for.
        mine       = Signal(BEATS_WIDTH)        # beats of the open command that `port` has not given.
        free       = Signal()
        timer      = Signal(max=cycles + 1)
        self.comb += [
            free.eq((mine == 0) | ((mine == 1) & beat)),
            port.wcmd.ready.eq(free & order.sink.ready & (closed | memory.wcmd.ready)),
            memory.wcmd.valid.eq(port.wcmd.valid & free & order.sink.ready & ~closed),
            memory.wcmd.payload.eq(port.wcmd.payload),
            memory.wcmd.tag.eq(tags.issue),
            taken.eq(port.wcmd.valid & port.wcmd.ready),
            issued.eq(taken & ~closed),
            order.sink.valid.eq(taken),
            order.sink.tag.eq(port.wcmd.tag),
            # Data: to the memory, or nowhere when closed; the memory's open command is filled with nothing then.
            memory.wdata.valid.eq(Mux(closed, left != 0, port.wdata.valid & (mine != 0))),
            memory.wdata.data.eq(port.wdata.data),
            memory.wdata.be.eq(Mux(closed, 0, port.wdata.be)),
            memory.wdata.last.eq(left == 1),
            port.wdata.ready.eq((mine != 0) & (closed | memory.wdata.ready)),
            beat.eq(port.wdata.valid & port.wdata.ready),
            fed.eq(memory.wdata.valid & memory.wdata.ready),
            # Acknowledges.
            memory.wack.ready.eq(1),
            answer.eq(Mux(closed, whole != 0, acked)),
            order.source.ready.eq(answer),
            port.wack.valid.eq(answer),
            port.wack.last.eq(1),
            port.wack.tag.eq(order.source.tag),
            port.wack.err.eq(Mux(closed, MEM_TIMEOUT, memory.wack.err)),
            self.quiet.eq(~order.source.valid & (tags.owed == 0)),
        ]
        self.sync += [
            whole.eq(whole + (beat & (mine == 1)) - answer),
            If(beat, mine.eq(mine - 1)),
            If(fed, left.eq(left - 1)),
            If(taken, mine.eq(beats_of(port.wcmd))),
            If(issued, left.eq(beats_of(port.wcmd))),
            If(restart, left.eq(0)),
            If(acked | fed | issued | ~order.source.valid,
                timer.eq(0),
            ).Elif(timer != cycles,
                timer.eq(timer + 1),
            ),
            # A command that is taken while closed is answered so.
            If(restart,
                closed.eq(1),
            ).Elif(closed,
                If(self.quiet & ~taken, closed.eq(0)),
            ).Elif((timer == cycles) & ~acked & ~fed & ~issued & (tags.owed != 0),
                closed.eq(1),
                timer.eq(0),
            )
        ]


class MemoryReadTimeout(LiteXModule):
    """Answers for a memory that has not returned read data in time; as MemoryWriteTimeout.

    Latency: 1 clock in the command, 1 in the data.
    Errors : MEM_TIMEOUT as above; those of the memory pass.
    """
    def __init__(self, cycles=TIMEOUT_CYCLES, depth=DEPTH, dw=DATA_WIDTH):
        if cycles < 2:
            raise ValueError(f"cycles must be 2 or more, not {cycles!r}")
        self.port   = port   = MemoryReadPort(dw)
        self.memory = MemoryReadPort(dw)
        self.quiet   = Signal()
        self.restart = restart = Signal()
        self.closed  = closed  = Signal()

        # # #

        memory           = MemoryReadPort(dw)
        self.rcmd_buffer = ResetInserter()(stream.Buffer(memory_command_description()))
        self.tags        = tags = OwnTags(depth)
        taken, issued, came, returned, answer, last = [Signal() for _ in range(6)]
        self.comb += [
            self.rcmd_buffer.reset.eq(restart),
            tags.restart.eq(restart),
            tags.issued.eq(issued),
            tags.returned.eq(returned),
            came.eq(tags.mine(memory.rdata)),
            memory.rcmd.connect(self.rcmd_buffer.sink),
            self.rcmd_buffer.source.connect(self.memory.rcmd),
            self.memory.rdata.connect(memory.rdata),
        ]

        self.order = order = stream.SyncFIFO([("tag", TAG_WIDTH), ("beats", BEATS_WIDTH)], depth)
        sent       = Signal(BEATS_WIDTH)     # beats of the oldest command that were answered.
        timer      = Signal(max=cycles + 1)
        self.comb += [
            port.rcmd.ready.eq(order.sink.ready & (closed | memory.rcmd.ready)),
            memory.rcmd.valid.eq(port.rcmd.valid & order.sink.ready & ~closed),
            memory.rcmd.payload.eq(port.rcmd.payload),
            memory.rcmd.tag.eq(tags.issue),
            taken.eq(port.rcmd.valid & port.rcmd.ready),
            issued.eq(taken & ~closed),
            order.sink.valid.eq(taken),
            order.sink.tag.eq(port.rcmd.tag),
            order.sink.beats.eq(beats_of(port.rcmd)),
            memory.rdata.ready.eq(1),
            returned.eq(came & memory.rdata.last),
            answer.eq(order.source.valid & (closed | came)),
            last.eq(sent + 1 == order.source.beats),
            order.source.ready.eq(answer & last),
            self.quiet.eq(~order.source.valid & (tags.owed == 0)),
        ]
        self.sync += [
            port.rdata.valid.eq(answer),
            port.rdata.last.eq(last),
            port.rdata.tag.eq(order.source.tag),
            port.rdata.err.eq(Mux(closed, MEM_TIMEOUT, memory.rdata.err)),
            port.rdata.data.eq(Mux(closed, 0, memory.rdata.data)),
            If(answer, sent.eq(Mux(last, 0, sent + 1))),
            If(came | issued | (tags.owed == 0),
                timer.eq(0),
            ).Elif(timer != cycles,
                timer.eq(timer + 1),
            ),
            If(restart,
                closed.eq(1),
            ).Elif(closed,
                If(self.quiet & ~taken, closed.eq(0)),
            ).Elif((timer == cycles) & ~came & ~issued & (tags.owed != 0),
                closed.eq(1),
                timer.eq(0),
            )
        ]
