# SPDX-License-Identifier: BSD-2-Clause
"""Memory ports: the contract between the engine and any memory, and what joins and divides ports.

Streams of 512 bits; byte `a` of a memory is lane `a` modulo 64. The engine drives wcmd, wdata, rcmd; an
adapter drives wack, rdata. Layouts: memory_*_description of common.py.

1. A command names one range of 1 to 4096 bytes inside one 4 KiB page. The engine splits and rotates;
   an adapter splits further as its memory needs, but moves no byte to another lane.
2. The data of a wcmd follows without waiting for anything but the adapter's ready, `last` on the final
   beat. An rcmd is issued only with room for its answer: wack and rdata are always accepted, their
   ready is constant 1.
3. Each wcmd is answered by one wack, each rcmd by as many beats as its range touches, `last` on the
   final one, whatever happens. err: MEM_OK, MEM_NO_ADDRESS, MEM_REFUSED, MEM_TIMEOUT. Data of an error is zero.
4. Of one port and target, writes become visible in order of issue, so do wacks and answers. Nothing
   is said about the order between targets, ports, reads and writes. Beats of two answers never mix.
   The routers below give more: answers of one port come in order of issue whatever the targets.
5. A wack says that every later read through this target sees the bytes.
6. Writes never wait for reads. A memory that stops is answered for with MEM_TIMEOUT; its late answers
   are swallowed, and until the last of them came it is not asked again.
7. Tags are the engine's, opaque to adapters, unique while outstanding at a port.
8. Lanes outside the range carry no promise in rdata; in wdata their `be` is 0, all others' 1.
"""
from migen import *
from migen.genlib.roundrobin import RoundRobin, SP_CE

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.common import (
    DATA_WIDTH, MEM_REFUSED, MEM_TIMEOUT, TAG_WIDTH, TARGET_WIDTH, memory_command_description,
    memory_rdata_description, memory_wack_description, memory_wdata_description)

DEPTH          = 64       # commands of one port that may be outstanding.
TIMEOUT_CYCLES = 1 << 16  # 262 us at 250 MHz.
BEATS_WIDTH    = 7        # beats of a command: 1 to 64.

# Ports --------------------------------------------------------------------------------------------

class MemoryWritePort:
    """Streams of a write port: wcmd, wdata towards the memory, wack back."""
    def __init__(self, dw=DATA_WIDTH):
        self.wcmd  = stream.Endpoint(memory_command_description())
        self.wdata = stream.Endpoint(memory_wdata_description(dw))
        self.wack  = stream.Endpoint(memory_wack_description())

    def connect(self, memory):
        """Statements that put this port, seen from its user, on the port of a memory."""
        return [self.wcmd.connect(memory.wcmd), self.wdata.connect(memory.wdata), memory.wack.connect(self.wack)]

    def streams(self):
        return {"wcmd": self.wcmd, "wdata": self.wdata, "wack": self.wack}


class MemoryReadPort:
    """Streams of a read port: rcmd towards the memory, rdata back."""
    def __init__(self, dw=DATA_WIDTH):
        self.rcmd  = stream.Endpoint(memory_command_description())
        self.rdata = stream.Endpoint(memory_rdata_description(dw))

    def connect(self, memory):
        """Statements that put this port, seen from its user, on the port of a memory."""
        return [self.rcmd.connect(memory.rcmd), memory.rdata.connect(self.rdata)]

    def streams(self):
        return {"rcmd": self.rcmd, "rdata": self.rdata}


def beats_of(cmd):
    """Beats that the range of a command touches (expression)."""
    return ((cmd.addr[:6] + cmd.length + 63) >> 6)[:BEATS_WIDTH]


class StreamChoice(LiteXModule):
    """Turns of several command streams on one: `chosen` holds while its command waits."""
    def __init__(self, commands, cmd, able, taken):
        self.round = RoundRobin(len(commands), SP_CE)
        self.grant = self.round.grant
        self.comb += [
            self.round.request.eq(Cat(*[c.valid for c in commands])),
            [If(self.grant == i,
                cmd.valid.eq(c.valid & able),
                cmd.payload.eq(c.payload),
                c.ready.eq(cmd.ready & able),
                self.round.ce.eq(~c.valid | taken),
            ) for i, c in enumerate(commands)],
        ]

# MemoryWriteArbiter -------------------------------------------------------------------------------

class MemoryWriteArbiter(LiteXModule):
    """Joins write ports into one ordered write path, in turns per command.

    Parameters
    ----------
    n_masters : int
        Ports joined, 1 or more.
    depth : int
        Commands outstanding, up to 256; a further one waits.

    Endpoints
    ---------
    masters : list of MemoryWritePort, in
    port : MemoryWritePort, out
        Carries the arbiter's own tags; the masters get theirs back.

    Latency: 0 clocks each way, one command and one beat a clock; a change of turn may cost one clock.
    """
    def __init__(self, n_masters=2, depth=DEPTH, dw=DATA_WIDTH):
        if not 1 <= depth <= 1 << TAG_WIDTH:
            raise ValueError(f"depth must be 1..{1 << TAG_WIDTH}, not {depth!r}")
        self.masters = masters = [MemoryWritePort(dw) for _ in range(n_masters)]
        self.port    = port    = MemoryWritePort(dw)

        # # #

        layout     = [("master", bits_for(max(n_masters - 1, 1))), ("tag", TAG_WIDTH)]
        self.order = order = stream.SyncFIFO(layout, depth)
        self.turns = turns = stream.SyncFIFO(layout[:1], 4)
        taken      = Signal()
        tag        = Signal(TAG_WIDTH)
        cmd        = stream.Endpoint(memory_command_description())
        able       = order.sink.ready & turns.sink.ready
        self.choice = choice = StreamChoice([m.wcmd for m in masters], cmd, able, taken)
        self.comb += [
            taken.eq(cmd.valid & cmd.ready),
            cmd.connect(port.wcmd, omit={"tag"}),
            port.wcmd.tag.eq(tag),
            order.sink.valid.eq(taken),
            order.sink.master.eq(choice.grant),
            order.sink.tag.eq(cmd.tag),
            turns.sink.valid.eq(taken),
            turns.sink.master.eq(choice.grant),
            # Data in command order.
            [If(turns.source.valid & (turns.source.master == i), m.wdata.connect(port.wdata)) for i, m in enumerate(masters)],
            turns.source.ready.eq(port.wdata.valid & port.wdata.ready & port.wdata.last),
            # Acknowledges in command order.
            port.wack.ready.eq(1),
            order.source.ready.eq(port.wack.valid),
        ]
        for i, m in enumerate(masters):
            self.comb += [
                m.wack.valid.eq(port.wack.valid & (order.source.master == i)),
                m.wack.last.eq(1),
                m.wack.tag.eq(order.source.tag),
                m.wack.err.eq(port.wack.err),
            ]
        self.sync += If(taken, tag.eq(tag + 1))

# MemoryReadArbiter --------------------------------------------------------------------------------

class MemoryReadArbiter(LiteXModule):
    """Joins read ports into one, in turns per command; parameters and latency as MemoryWriteArbiter."""
    def __init__(self, n_masters=2, depth=DEPTH, dw=DATA_WIDTH):
        if not 1 <= depth <= 1 << TAG_WIDTH:
            raise ValueError(f"depth must be 1..{1 << TAG_WIDTH}, not {depth!r}")
        self.masters = masters = [MemoryReadPort(dw) for _ in range(n_masters)]
        self.port    = port    = MemoryReadPort(dw)

        # # #

        layout     = [("master", bits_for(max(n_masters - 1, 1))), ("tag", TAG_WIDTH)]
        self.order = order = stream.SyncFIFO(layout, depth)
        taken      = Signal()
        tag        = Signal(TAG_WIDTH)
        cmd        = stream.Endpoint(memory_command_description())
        self.choice = choice = StreamChoice([m.rcmd for m in masters], cmd, order.sink.ready, taken)
        self.comb += [
            taken.eq(cmd.valid & cmd.ready),
            cmd.connect(port.rcmd, omit={"tag"}),
            port.rcmd.tag.eq(tag),
            order.sink.valid.eq(taken),
            order.sink.master.eq(choice.grant),
            order.sink.tag.eq(cmd.tag),
            port.rdata.ready.eq(1),
            order.source.ready.eq(port.rdata.valid & port.rdata.last),
        ]
        for i, m in enumerate(masters):
            self.comb += [
                port.rdata.connect(m.rdata, omit={"valid", "ready", "tag"}),
                m.rdata.valid.eq(port.rdata.valid & (order.source.master == i)),
                m.rdata.tag.eq(order.source.tag),
            ]
        self.sync += If(taken, tag.eq(tag + 1))

# Answers without a memory -------------------------------------------------------------------------

class MemoryNoTarget(LiteXModule):
    """A write and a read port that answer every command with an error, beats of zeros.

    Latency: 2 clocks, one beat a clock.
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

class MemoryWriteTimeout(LiteXModule):
    """Answers for a memory that has not acknowledged a write in time.

    After `cycles` clocks without any progress all outstanding writes are answered MEM_TIMEOUT, and so
    are new ones, until the memory has given every acknowledge it owes. Data that it still waits for is fed to
    it with no byte enabled.

    Endpoints
    ---------
    port : MemoryWritePort, in
    memory : MemoryWritePort, out
    quiet : Signal, out
        Nothing is outstanding, nothing is owed.

    Latency: 1 clock; a command is passed on when the one before has all its data.
    """
    def __init__(self, cycles=TIMEOUT_CYCLES, depth=DEPTH, dw=DATA_WIDTH):
        if cycles < 2:
            raise ValueError(f"cycles must be 2 or more, not {cycles!r}")
        self.port   = port   = MemoryWritePort(dw)
        self.memory = MemoryWritePort(dw)
        self.quiet  = Signal()
        self.closed = closed = Signal()

        # # #

        # Registers on the memory's side: what a stopped memory was offered stays as it is.
        memory            = MemoryWritePort(dw)
        self.wcmd_buffer  = stream.Buffer(memory_command_description())
        self.wdata_buffer = stream.Buffer(memory_wdata_description(dw))
        self.comb += [
            memory.wcmd.connect(self.wcmd_buffer.sink),
            memory.wdata.connect(self.wdata_buffer.sink),
            self.wcmd_buffer.source.connect(self.memory.wcmd),
            self.wdata_buffer.source.connect(self.memory.wdata),
            self.memory.wack.connect(memory.wack),
        ]

        self.order = order = stream.SyncFIFO([("tag", TAG_WIDTH)], depth)
        owed       = Signal(max=depth + 1)      # acknowledges the memory has to give.
        whole      = Signal(max=depth + 1)      # commands that were given all their data and not answered yet.
        left       = Signal(BEATS_WIDTH)        # beats of the open command that the memory waits for.
        mine       = Signal(BEATS_WIDTH)        # beats of the open command that `port` has not given.
        free       = Signal()
        taken, issued, beat, fed, answer = Signal(), Signal(), Signal(), Signal(), Signal()
        timer      = Signal(max=cycles + 1)
        self.comb += [
            free.eq((mine == 0) | ((mine == 1) & beat)),
            port.wcmd.ready.eq(free & order.sink.ready & (closed | memory.wcmd.ready)),
            memory.wcmd.valid.eq(port.wcmd.valid & free & order.sink.ready & ~closed),
            memory.wcmd.payload.eq(port.wcmd.payload),
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
            answer.eq(Mux(closed, whole != 0, memory.wack.valid)),
            order.source.ready.eq(answer),
            port.wack.valid.eq(answer),
            port.wack.last.eq(1),
            port.wack.tag.eq(order.source.tag),
            port.wack.err.eq(Mux(closed, MEM_TIMEOUT, memory.wack.err)),
            self.quiet.eq(~order.source.valid & (owed == 0)),
        ]
        self.sync += [
            owed.eq(owed + issued - memory.wack.valid),
            whole.eq(whole + (beat & (mine == 1)) - answer),
            If(beat, mine.eq(mine - 1)),
            If(fed, left.eq(left - 1)),
            If(taken, mine.eq(beats_of(port.wcmd))),
            If(issued, left.eq(beats_of(port.wcmd))),
            If(memory.wack.valid | fed | issued | ~order.source.valid,
                timer.eq(0),
            ).Elif(timer != cycles,
                timer.eq(timer + 1),
            ),
            If(closed,
                If(self.quiet, closed.eq(0)),
            ).Elif((timer == cycles) & ~memory.wack.valid & ~fed & ~issued & (owed != 0),
                closed.eq(1),
                timer.eq(0),
            )
        ]


class MemoryReadTimeout(LiteXModule):
    """Answers for a memory that has not returned read data in time; as MemoryWriteTimeout.

    Latency: 1 clock in the command, 1 in the data.
    """
    def __init__(self, cycles=TIMEOUT_CYCLES, depth=DEPTH, dw=DATA_WIDTH):
        if cycles < 2:
            raise ValueError(f"cycles must be 2 or more, not {cycles!r}")
        self.port   = port   = MemoryReadPort(dw)
        self.memory = MemoryReadPort(dw)
        self.quiet  = Signal()
        self.closed = closed = Signal()

        # # #

        memory           = MemoryReadPort(dw)
        self.rcmd_buffer = stream.Buffer(memory_command_description())
        self.comb += [
            memory.rcmd.connect(self.rcmd_buffer.sink),
            self.rcmd_buffer.source.connect(self.memory.rcmd),
            self.memory.rdata.connect(memory.rdata),
        ]

        self.order = order = stream.SyncFIFO([("tag", TAG_WIDTH), ("beats", BEATS_WIDTH)], depth)
        owed       = Signal(max=depth + 1)
        sent       = Signal(BEATS_WIDTH)     # beats of the oldest command that were answered.
        taken, issued, returned, answer, last = Signal(), Signal(), Signal(), Signal(), Signal()
        timer      = Signal(max=cycles + 1)
        self.comb += [
            port.rcmd.ready.eq(order.sink.ready & (closed | memory.rcmd.ready)),
            memory.rcmd.valid.eq(port.rcmd.valid & order.sink.ready & ~closed),
            memory.rcmd.payload.eq(port.rcmd.payload),
            taken.eq(port.rcmd.valid & port.rcmd.ready),
            issued.eq(taken & ~closed),
            order.sink.valid.eq(taken),
            order.sink.tag.eq(port.rcmd.tag),
            order.sink.beats.eq(beats_of(port.rcmd)),
            memory.rdata.ready.eq(1),
            returned.eq(memory.rdata.valid & memory.rdata.last),
            answer.eq(order.source.valid & (closed | memory.rdata.valid)),
            last.eq(sent + 1 == order.source.beats),
            order.source.ready.eq(answer & last),
            self.quiet.eq(~order.source.valid & (owed == 0)),
        ]
        self.sync += [
            port.rdata.valid.eq(answer),
            port.rdata.last.eq(last),
            port.rdata.tag.eq(order.source.tag),
            port.rdata.err.eq(Mux(closed, MEM_TIMEOUT, memory.rdata.err)),
            port.rdata.data.eq(Mux(closed, 0, memory.rdata.data)),
            owed.eq(owed + issued - returned),
            If(answer, sent.eq(Mux(last, 0, sent + 1))),
            If(memory.rdata.valid | issued | (owed == 0),
                timer.eq(0),
            ).Elif(timer != cycles,
                timer.eq(timer + 1),
            ),
            If(closed,
                If(self.quiet, closed.eq(0)),
            ).Elif((timer == cycles) & ~memory.rdata.valid & ~issued & (owed != 0),
                closed.eq(1),
                timer.eq(0),
            )
        ]

# Routers ------------------------------------------------------------------------------------------

class _Route(LiteXModule):
    """Lets a port have commands outstanding at one target at a time."""
    def __init__(self, cmd, n_targets, taken, answered, depth):
        self.number = number = Signal(max=n_targets + 1)    # n_targets: no such target.
        self.able   = Signal()
        self.count  = count = Signal(max=depth + 1)
        current     = Signal(max=n_targets + 1)
        self.comb += [
            number.eq(n_targets),
            If(cmd.target < n_targets, number.eq(cmd.target)),
            self.able.eq(((count == 0) | (number == current)) & (count != depth)),
        ]
        self.current = current
        self.sync += [
            count.eq(count + taken - answered),
            If(taken, current.eq(number)),
        ]


class MemoryWriteRouter(LiteXModule):
    """Divides a write port by target; commands to targets that do not exist are answered MEM_REFUSED.

    A command to another target waits until the former one has given all its acknowledges: so these
    come back in order of issue.

    Parameters
    ----------
    n_targets : int
        Targets 0 to n_targets - 1 exist, 1 to 4.
    timeout_cycles : int
        A target without progress for so long is answered for with MEM_TIMEOUT.

    Endpoints
    ---------
    port : MemoryWritePort, in
    targets : list of MemoryWritePort, out
    quiet : Signal(n_targets), out
        Nothing outstanding at the target.

    Latency: 1 clock towards the target, one beat a clock.
    """
    def __init__(self, n_targets=1, timeout_cycles=TIMEOUT_CYCLES, depth=DEPTH, dw=DATA_WIDTH):
        if not 1 <= n_targets <= 1 << TARGET_WIDTH:
            raise ValueError(f"n_targets must be 1..{1 << TARGET_WIDTH}, not {n_targets!r}")
        self.port   = port = MemoryWritePort(dw)
        self.quiet  = Signal(n_targets)
        self.none   = MemoryNoTarget(dw=dw)
        guards      = [MemoryWriteTimeout(timeout_cycles, depth, dw) for _ in range(n_targets)]
        self.submodules += guards
        self.targets = [g.memory for g in guards]

        # # #

        ways     = [g.port for g in guards] + [self.none.write]
        taken    = Signal()
        self.route = route = _Route(port.wcmd, n_targets, taken, port.wack.valid, depth)
        self.comb += [
            taken.eq(port.wcmd.valid & port.wcmd.ready),
            self.quiet.eq(Cat(*[g.quiet for g in guards])),
        ]
        for i, way in enumerate(ways):
            self.comb += [
                way.wcmd.payload.eq(port.wcmd.payload),
                way.wdata.payload.eq(port.wdata.payload),
                way.wdata.last.eq(port.wdata.last),
                way.wack.ready.eq(1),
                If(route.able & (route.number == i),
                    way.wcmd.valid.eq(port.wcmd.valid),
                    port.wcmd.ready.eq(way.wcmd.ready),
                ),
                If((route.count != 0) & (route.current == i),
                    way.wdata.valid.eq(port.wdata.valid),
                    port.wdata.ready.eq(way.wdata.ready),
                ),
                If(way.wack.valid,
                    port.wack.valid.eq(1),
                    port.wack.payload.eq(way.wack.payload),
                ),
            ]
        self.comb += port.wack.last.eq(1)


class MemoryReadRouter(LiteXModule):
    """Divides a read port by target; as MemoryWriteRouter. Latency: 1 clock each way."""
    def __init__(self, n_targets=1, timeout_cycles=TIMEOUT_CYCLES, depth=DEPTH, dw=DATA_WIDTH):
        if not 1 <= n_targets <= 1 << TARGET_WIDTH:
            raise ValueError(f"n_targets must be 1..{1 << TARGET_WIDTH}, not {n_targets!r}")
        self.port   = port = MemoryReadPort(dw)
        self.quiet  = Signal(n_targets)
        self.none   = MemoryNoTarget(dw=dw)
        guards      = [MemoryReadTimeout(timeout_cycles, depth, dw) for _ in range(n_targets)]
        self.submodules += guards
        self.targets = [g.memory for g in guards]

        # # #

        ways     = [g.port for g in guards] + [self.none.read]
        taken    = Signal()
        self.route = route = _Route(port.rcmd, n_targets, taken, port.rdata.valid & port.rdata.last, depth)
        self.comb += [
            taken.eq(port.rcmd.valid & port.rcmd.ready),
            self.quiet.eq(Cat(*[g.quiet for g in guards])),
        ]
        for i, way in enumerate(ways):
            self.comb += [
                way.rcmd.payload.eq(port.rcmd.payload),
                way.rdata.ready.eq(1),
                If(route.able & (route.number == i),
                    way.rcmd.valid.eq(port.rcmd.valid),
                    port.rcmd.ready.eq(way.rcmd.ready),
                ),
                If(way.rdata.valid,
                    port.rdata.valid.eq(1),
                    port.rdata.last.eq(way.rdata.last),
                    port.rdata.payload.eq(way.rdata.payload),
                ),
            ]
