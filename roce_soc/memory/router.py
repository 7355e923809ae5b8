# SPDX-License-Identifier: BSD-2-Clause
"""From the engine's memory ports to memories: routing by target.

Ref: contract of memory/port.py.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.arbiter import Turns
from roce_soc.bounds import counted
from roce_soc.common import DATA_BYTES, DATA_WIDTH, MEM_ERR_WIDTH, PAGE_BYTES, TAG_WIDTH, TARGET_WIDTH, memory_wack_description
from roce_soc.memory.port import DEPTH, MemoryReadPort, MemoryWriteArbiter, MemoryWritePort, beats_of
from roce_soc.memory.watchdog import TIMEOUT_CYCLES, MemoryNoTarget, MemoryReadTimeout, MemoryWriteTimeout
from roce_soc.table import BypassFIFO

# Splits -------------------------------------------------------------------------------------------

class MemoryWriteSplit(LiteXModule):
    """Divides a write port over `n_ways` ports: a target's number is its way, those beyond go the last one.

    Commands of all ways are outstanding at the same time; their acknowledges wait here for older ones of
    other ways, so that `port` has them in order of issue. The next command goes when the one before has its data.

    Endpoints: port MemoryWritePort, in; ways list of MemoryWritePort, out.
    Latency: 0 clocks each way, one command and one beat a clock.
    Errors : none of its own; those of the memories pass.
    """
    def __init__(self, n_ways, depth=DEPTH, dw=DATA_WIDTH):
        self.port = port = MemoryWritePort(dw)
        self.ways = ways = [MemoryWritePort(dw) for _ in range(n_ways)]

        # # #

        self.order = order = stream.SyncFIFO([("way", bits_for(n_ways - 1))], depth)
        self.acks  = [BypassFIFO(memory_wack_description(), depth) for _ in ways]
        for n, acks in enumerate(self.acks):
            setattr(self.submodules, f"acks{n}", acks)
        self.submodules += [counted(acks, "acknowledges of a way: its commands in `order`, which has as many places") for acks in self.acks]
        way, current = Signal(max=max(n_ways, 2)), Signal(max=max(n_ways, 2))
        open_, ended, able, taken = Signal(), Signal(), Signal(), Signal()
        self.comb += [
            way.eq(Mux(port.wcmd.target < n_ways - 1, port.wcmd.target, n_ways - 1)),
            ended.eq(port.wdata.valid & port.wdata.ready & port.wdata.last),
            able.eq(order.sink.ready & (~open_ | ended)),
            taken.eq(port.wcmd.valid & port.wcmd.ready),
            order.sink.valid.eq(taken),
            order.sink.way.eq(way),
            order.source.ready.eq(port.wack.valid),
            port.wack.last.eq(1),
        ]
        self.sync += [
            open_.eq(taken | (open_ & ~ended)),
            If(taken, current.eq(way)),
        ]
        for n, (out, acks) in enumerate(zip(ways, self.acks)):
            self.comb += [
                out.wcmd.payload.eq(port.wcmd.payload),
                out.wdata.payload.eq(port.wdata.payload),
                out.wdata.last.eq(port.wdata.last),
                # Each way its own statement: valid of one way must not seem to hang on ready of another.
                out.wcmd.valid.eq(port.wcmd.valid & able & (way == n)),
                If(able & (way == n), port.wcmd.ready.eq(out.wcmd.ready)),
                If(open_ & (current == n),
                    out.wdata.valid.eq(port.wdata.valid),
                    port.wdata.ready.eq(out.wdata.ready),
                ),
                out.wack.ready.eq(1),
                acks.sink.valid.eq(out.wack.valid),
                acks.sink.payload.eq(out.wack.payload),
                If(order.source.valid & (order.source.way == n),
                    acks.source.ready.eq(1),
                    port.wack.valid.eq(acks.source.valid),
                    port.wack.payload.eq(acks.source.payload),
                ),
            ]


class MemoryReadSplit(LiteXModule):
    """Divides a read port over `n_ways` ports; as MemoryWriteSplit. With two ways, one memory and what does not exist,
    it waits for the answers of one way before it goes the other, which costs no buffer; with more, each way has one.

    Parameters
    ----------
    read_beats : int
        Beats of a way's buffer, at least 64: a command goes when its answer has room there.
    in_order : bool
        False: answers of different ways come as they are ready, those of one way in order of issue.

    Latency: 0 clocks for the command; the answer 0 clocks with two ways, 2 with more.
    Errors : none of its own; those of the memories pass.
    """
    def __init__(self, n_ways, read_beats=DEPTH, in_order=True, depth=DEPTH, dw=DATA_WIDTH):
        if read_beats < PAGE_BYTES//DATA_BYTES:
            raise ValueError(f"read_beats must be {PAGE_BYTES//DATA_BYTES} or more, not {read_beats!r}")
        self.port = port = MemoryReadPort(dw)
        self.ways = ways = [MemoryReadPort(dw) for _ in range(n_ways)]

        # # #

        way   = Signal(max=max(n_ways, 2))
        able  = Signal(n_ways)
        taken = Signal()
        self.comb += [
            way.eq(Mux(port.rcmd.target < n_ways - 1, port.rcmd.target, n_ways - 1)),
            taken.eq(port.rcmd.valid & port.rcmd.ready),
        ]
        for n, out in enumerate(ways):
            self.comb += [
                out.rcmd.payload.eq(port.rcmd.payload),
                out.rdata.ready.eq(1),
                If((way == n) & able[n],
                    out.rcmd.valid.eq(port.rcmd.valid),
                    port.rcmd.ready.eq(out.rcmd.ready),
                ),
            ]
        if n_ways <= 2:
            self._add_turns(way, able, taken, depth)
        else:
            self._add_buffers(way, able, taken, depth, read_beats, in_order)

    def _add_turns(self, way, able, taken, depth):
        """One way at a time."""
        port, count, current = self.port, Signal(max=depth + 1), Signal(max=max(len(self.ways), 2))
        for n, out in enumerate(self.ways):
            self.comb += [
                able[n].eq(((count == 0) | (current == n)) & (count != depth)),
                If(out.rdata.valid,
                    port.rdata.valid.eq(1),
                    port.rdata.last.eq(out.rdata.last),
                    port.rdata.payload.eq(out.rdata.payload),
                ),
            ]
        self.sync += [
            count.eq(count + taken - (port.rdata.valid & port.rdata.last)),
            If(taken, current.eq(way)),
        ]

    def _add_buffers(self, way, able, taken, depth, read_beats, in_order):
        """A buffer for each way; what comes out is chosen by the order of issue, or in turns."""
        port   = self.port
        head, ready = Signal(max=len(self.ways)), Signal()        # the way whose answer leaves.
        ends   = Signal()
        self.buffers = []
        for n, out in enumerate(self.ways):
            # What does not exist has no data to keep.
            wide   = n != len(self.ways) - 1
            layout = [("tag", TAG_WIDTH), ("err", MEM_ERR_WIDTH)] + ([("data", self.port.rdata.data.nbits)] if wide else [])
            buffer = stream.SyncFIFO(layout, read_beats, buffered=True)
            setattr(self.submodules, f"buffer{n}", buffer)
            self.buffers.append(buffer)
            self.submodules += counted(buffer, "beats asked for: `free`")
            free   = Signal(max=read_beats + 1, reset=read_beats)
            waits  = Signal(max=depth + 1)
            begun  = taken & (way == n)
            gone   = Signal()
            self.comb += [
                able[n].eq((free >= beats_of(port.rcmd)) & (waits != depth)),
                buffer.sink.valid.eq(out.rdata.valid),
                buffer.sink.last.eq(out.rdata.last),
                [getattr(buffer.sink, name).eq(getattr(out.rdata, name)) for name, _ in layout],
                If(ready & (head == n),
                    gone.eq(buffer.source.valid),
                    port.rdata.valid.eq(buffer.source.valid),
                    port.rdata.last.eq(buffer.source.last),
                    [getattr(port.rdata, name).eq(getattr(buffer.source, name)) for name, _ in layout],
                ),
                buffer.source.ready.eq(gone),
            ]
            self.sync += [
                free.eq(free - Mux(begun, beats_of(port.rcmd), 0) + gone),
                waits.eq(waits + begun - (gone & buffer.source.last)),
            ]
        self.comb += ends.eq(port.rdata.valid & port.rdata.last)
        if in_order:
            self.order = order = stream.SyncFIFO([("way", len(way))], depth*len(self.ways))
            self.submodules += counted(order, "commands of all ways: `waits` of each")
            self.comb += [
                order.sink.valid.eq(taken),
                order.sink.way.eq(way),
                head.eq(order.source.way),
                ready.eq(order.source.valid),
                order.source.ready.eq(ends),
            ]
        else:
            self.turn = turn = Turns(len(self.ways))
            inside = Signal()
            self.comb += [
                turn.request.eq(Cat(*[buffer.source.valid for buffer in self.buffers])),
                head.eq(turn.grant),
                ready.eq(1),
                # Between answers the turn looks for one; inside an answer it stays.
                turn.next.eq(ends | ~(port.rdata.valid | inside)),
            ]
            self.sync += If(port.rdata.valid, inside.eq(~port.rdata.last))

# Routers ------------------------------------------------------------------------------------------

class MemoryWriteRouter(LiteXModule):
    """Divides a write port by target; commands to targets that do not exist are answered MEM_REFUSED.

    Parameters
    ----------
    n_targets : int
        Targets 0 to n_targets - 1 exist, 1 to 4.
    timeout_cycles : int
        A target without progress for so long is answered for with MEM_TIMEOUT.

    Endpoints
    ---------
    port : MemoryWritePort, in
        Has its acknowledges in order of issue.
    targets : list of MemoryWritePort, out
    quiet, closed, restart : Signal(n_targets), out, out, in
        As the watchdogs, a bit for each target.

    Latency: 1 clock towards the target, one beat a clock.
    Errors : MEM_REFUSED for a target that does not exist, MEM_TIMEOUT for one that stops.
    """
    def __init__(self, n_targets=1, timeout_cycles=TIMEOUT_CYCLES, depth=DEPTH, dw=DATA_WIDTH):
        check_targets(n_targets)
        self.quiet, self.closed, self.restart = [Signal(n_targets) for _ in range(3)]
        self.none   = MemoryNoTarget(dw=dw)
        self.split  = MemoryWriteSplit(n_targets + 1, depth, dw)
        guards      = [MemoryWriteTimeout(timeout_cycles, depth, dw) for _ in range(n_targets)]
        self.submodules += guards
        self.port, self.targets = self.split.port, [g.memory for g in guards]

        # # #

        ends = [g.port for g in guards] + [self.none.write]
        self.comb += [way.connect(end) for way, end in zip(self.split.ways, ends)]
        self.comb += guard_signals(self, guards)


class MemoryReadRouter(LiteXModule):
    """Divides a read port by target; as MemoryWriteRouter.

    in_order : False, answers of different targets come as they are ready (MemoryReadSplit).

    Latency: 1 clock each way, 2 more for the answer with several targets.
    Errors : MEM_REFUSED for a target that does not exist, MEM_TIMEOUT for one that stops.
    """
    def __init__(self, n_targets=1, timeout_cycles=TIMEOUT_CYCLES, depth=DEPTH, dw=DATA_WIDTH, in_order=True):
        check_targets(n_targets)
        self.quiet, self.closed, self.restart = [Signal(n_targets) for _ in range(3)]
        self.none   = MemoryNoTarget(dw=dw)
        # In order, the answers of fast memory wait for those of slow memory.
        self.split  = MemoryReadSplit(n_targets + 1, 2*DEPTH if in_order else DEPTH, in_order, depth, dw)
        guards      = [MemoryReadTimeout(timeout_cycles, depth, dw) for _ in range(n_targets)]
        self.submodules += guards
        self.port, self.targets = self.split.port, [g.memory for g in guards]

        # # #

        ends = [g.port for g in guards] + [self.none.read]
        self.comb += [way.connect(end) for way, end in zip(self.split.ways, ends)]
        self.comb += guard_signals(self, guards)


def guard_signals(owner, guards):
    """Statements that join the signals of watchdogs, one for each target, to those of their owner."""
    return [
        owner.quiet.eq(Cat(*[g.quiet for g in guards])),
        owner.closed.eq(Cat(*[g.closed for g in guards])),
        [g.restart.eq(owner.restart[n]) for n, g in enumerate(guards)],
    ]


def check_targets(n_targets):
    """ValueError unless so many targets can be told apart."""
    if not 1 <= n_targets <= 1 << TARGET_WIDTH:
        raise ValueError(f"n_targets must be 1..{1 << TARGET_WIDTH}, not {n_targets!r}")

# MemoryHub ----------------------------------------------------------------------------------------

class MemoryHub(LiteXModule):
    """All memory ports of an engine on all its memories.

    ::
        payload write    ─► split ─┬─► arbiter ─► watchdog ─► memory 0
        completion write ─► split ─┼─► arbiter ─► watchdog ─► memory 1
                                   └─► refused
        each read port   ─► router ─► memory 0, memory 1

    Write ports share one ordered path to each memory, so that a completion never overtakes the payload before it, and
    nothing beyond that: a payload's memory that stops holds up no completion in another one. Each read port has a
    path of its own to every memory.

    Parameters
    ----------
    targets : list of adapters
        Target number -> module with `write` (MemoryWritePort), `get_read()` (a new MemoryReadPort) and, for `add_roce`, `target`
        (capability.MemoryTarget).
    timeout_cycles : int
        As the routers.

    Endpoints
    ---------
    add_port(port, in_order) : a MemoryWritePort or MemoryReadPort of the engine; before finalisation.
    quiet : Signal(targets), out
        Nothing outstanding at the target.
    closed : Signal(targets), out
        A watchdog answers for the target.
    restart : Signal(targets), in
        The target was reset (a pulse), is in reset (a level): what it owes will not come. It must forget the commands and
        data of before; what it says about them later is dropped.

    Latency: 1 clock towards the memory, 1 clock back for reads, 2 more with several memories.
    Errors : MEM_REFUSED for a target that does not exist, MEM_TIMEOUT for one that stops.
    """
    def __init__(self, targets, timeout_cycles=TIMEOUT_CYCLES):
        check_targets(len(targets))
        self.targets, self.timeout_cycles = targets, timeout_cycles
        self.writes, self.quiets, self.closeds = [], [], []
        self.quiet, self.closed, self.restart  = [Signal(len(targets)) for _ in range(3)]

    def add_port(self, port, in_order=True):
        """Puts a port of the engine on the memories; in_order: of a read port, as MemoryReadRouter."""
        if self.finalized:
            raise ValueError("add_port must be called before finalisation")
        if isinstance(port, MemoryWritePort):
            self.writes.append(port)
            return
        router = MemoryReadRouter(len(self.targets), self.timeout_cycles, in_order=in_order)
        self.submodules += router
        self.comb += port.connect(router.port)
        self.comb += [way.connect(target.get_read()) for way, target in zip(router.targets, self.targets)]
        self.comb += router.restart.eq(self.restart)
        self.quiets.append(router.quiet)
        self.closeds.append(router.closed)

    def do_finalize(self):
        splits = [MemoryWriteSplit(len(self.targets) + 1) for _ in self.writes]
        guards = []
        self.submodules += splits
        for port, split in zip(self.writes, splits):
            none = MemoryNoTarget()
            self.submodules += none
            self.comb += port.connect(split.port), split.ways[-1].connect(none.write)
        for n, target in enumerate(self.targets if self.writes else []):
            arbiter, guard = MemoryWriteArbiter(len(self.writes)), MemoryWriteTimeout(self.timeout_cycles)
            self.submodules += arbiter, guard
            guards.append(guard)
            self.comb += guard.restart.eq(self.restart[n])
            self.comb += [split.ways[n].connect(master) for split, master in zip(splits, arbiter.masters)]
            self.comb += arbiter.port.connect(guard.port), guard.memory.connect(target.write)
        quiets = self.quiets + ([Cat(*[guard.quiet for guard in guards])] if guards else [])
        closeds = self.closeds + ([Cat(*[guard.closed for guard in guards])] if guards else [])
        self.comb += self.closed.eq(Reduce("OR", closeds) if closeds else 0)
        self.comb += self.quiet.eq(Reduce("AND", quiets) if quiets else (1 << len(self.targets)) - 1)
