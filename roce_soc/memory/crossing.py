# SPDX-License-Identifier: BSD-2-Clause
"""A memory in a clock of its own behind the engine's hub; its clock may be reset at any moment, as PCIe's is.

Ref: the memory-port contract in memory/port.py; the reset rule of ClockLink in clocks.py.
Not supported: a target that answers one port's commands in another order.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.bounds import counted
from roce_soc.clocks import ClockLink
from roce_soc.common import (
    MEM_GONE, TAG_WIDTH, memory_command_description, memory_rdata_description, memory_wack_description, memory_wdata_description)
from roce_soc.memory.port import BEATS_WIDTH, DEPTH, MemoryReadPort, MemoryWritePort, beats_of

COMMANDS    = 16      # commands that wait in the far clock.
WRITE_BEATS = 256     # beats of writes that wait there until a command's are whole: four commands of a page.
ACKS        = 64      # writes outstanding at the target.

# Near side ----------------------------------------------------------------------------------------

class _Near(LiteXModule):
    """What is outstanding, in the hub's clock, and when it is answered for.

    `closed`: the link is stopped, or was and not all that was outstanding then has its answer. So long nothing goes to the far side
    and nothing of it is believed; commands that come are taken and answered, too. `idle` (in): nothing is outstanding or begins.
    """
    def __init__(self, stop):
        self.closed, self.idle = Signal(), Signal()

        # # #

        closed = Signal()
        self.comb += self.closed.eq(stop | closed)
        self.sync += If(stop, closed.eq(1)).Elif(self.idle, closed.eq(0))


class _WriteNear(_Near):
    """Write port of the hub: each command has its acknowledge, by the target or with MEM_GONE behind its last beat."""
    def __init__(self, port, command, data, ack, stop):
        super().__init__(stop)
        closed = self.closed

        # # #

        self.order = order = stream.SyncFIFO([("tag", TAG_WIDTH)], DEPTH, buffered=True)
        taken, ended = Signal(), Signal()
        owed = Signal(max=DEPTH + 1)              # commands taken whose last beat has not come.
        self.comb += [
            port.wcmd.connect(command, omit={"valid", "ready"}),
            port.wdata.connect(data, omit={"valid", "ready"}),
            command.valid.eq(port.wcmd.valid & order.sink.ready & ~closed),
            port.wcmd.ready.eq(order.sink.ready & (closed | command.ready)),
            data.valid.eq(port.wdata.valid & (owed != 0) & ~closed),
            port.wdata.ready.eq((owed != 0) & (closed | data.ready)),
            taken.eq(port.wcmd.valid & port.wcmd.ready),
            ended.eq(port.wdata.valid & port.wdata.ready & port.wdata.last),
            order.sink.valid.eq(taken),
            order.sink.tag.eq(port.wcmd.tag),
            self.idle.eq((order.level == 0) & ~taken),
            # Answers. A stopped link's are not believed: its command is answered for.
            ack.ready.eq(1),
            port.wack.first.eq(1), port.wack.last.eq(1),
            port.wack.tag.eq(order.source.tag),
            If(closed,
                port.wack.valid.eq(order.source.valid & (order.level != owed)),
                port.wack.err.eq(MEM_GONE),
            ).Else(
                port.wack.valid.eq(ack.valid),
                port.wack.err.eq(ack.err),
            ),
            order.source.ready.eq(port.wack.valid),
        ]
        self.sync += owed.eq(owed + taken - ended)


class _ReadNear(_Near):
    """One read port of the hub: each command has its beats, by the target or zeros with MEM_GONE for those that are missing."""
    def __init__(self, port, command, data, stop):
        super().__init__(stop)
        closed = self.closed

        # # #

        self.order = order = stream.SyncFIFO([("tag", TAG_WIDTH), ("beats", BEATS_WIDTH)], DEPTH, buffered=True)
        taken = Signal()
        gone, left = Signal(BEATS_WIDTH), Signal(BEATS_WIDTH)      # beats of the oldest answer that came, that are missing.
        out = port.rdata
        self.comb += [
            port.rcmd.connect(command, omit={"valid", "ready"}),
            command.valid.eq(port.rcmd.valid & order.sink.ready & ~closed),
            port.rcmd.ready.eq(order.sink.ready & (closed | command.ready)),
            taken.eq(port.rcmd.valid & port.rcmd.ready),
            order.sink.valid.eq(taken),
            order.sink.tag.eq(port.rcmd.tag),
            order.sink.beats.eq(beats_of(port.rcmd)),
            self.idle.eq((order.level == 0) & ~taken),
            data.ready.eq(1),
            left.eq(order.source.beats - gone),
            out.tag.eq(order.source.tag),
            out.first.eq(gone == 0),
            If(closed,
                out.valid.eq(order.source.valid),
                out.last.eq(left == 1),
                out.err.eq(MEM_GONE),
            ).Else(
                out.valid.eq(data.valid),
                out.last.eq(data.last),
                out.err.eq(data.err),
                out.data.eq(data.data),
            ),
            order.source.ready.eq(out.valid & out.last),
        ]
        self.sync += If(out.valid, gone.eq(gone + 1), If(out.last, gone.eq(0)))

# Far side -----------------------------------------------------------------------------------------

class _Far(LiteXModule):
    """Where commands wait for their target, and how they end when the near side was reset.

    `drop`: the near side was reset: what waits is forgotten, what the target has begun is brought to its end and told to nobody. The new
    life's commands wait for that. `busy` (in): the target owes something.
    """
    def __init__(self, stop):
        self.stop = stop
        self.drop, self.busy = Signal(), Signal()

        # # #

        flush = Signal()
        self.comb += self.drop.eq(stop | flush)
        self.sync += If(stop, flush.eq(1)).Elif(~self.busy, flush.eq(0))

    def take(self, source, sink):
        """Statements: a stream of the link into a FIFO; while the link is stopped what it still offers is of the old life."""
        return [
            source.connect(sink, omit={"valid", "ready"}),
            sink.valid.eq(source.valid & ~self.drop),
            source.ready.eq(self.stop | (sink.ready & ~self.drop)),
        ]


class _WriteFar(_Far):
    """Writes at the target: a command is offered when its data is whole, so that nothing but the target makes it wait."""
    def __init__(self, port, command, data, ack, stop):
        super().__init__(stop)
        drop = self.drop

        # # #

        clear = Signal()
        self.commands = commands = ResetInserter()(stream.SyncFIFO(memory_command_description(), COMMANDS))
        self.beats    = beats    = ResetInserter()(stream.SyncFIFO(memory_wdata_description(len(data.data)), WRITE_BEATS, buffered=True))
        self.acks     = acks     = ResetInserter()(stream.SyncFIFO(memory_wack_description(), ACKS))
        self.submodules += counted(acks, "acknowledges: `owed` and those that wait, ACKS at most", unless=drop)
        whole = Signal(max=WRITE_BEATS + 1)       # commands whose last beat is here and that were not offered.
        open_ = Signal(2)                         # commands at the target whose last beat has not gone there.
        owed  = Signal(max=ACKS + 1)
        issued, stored, ended, stuck = Signal(), Signal(), Signal(), Signal()
        self.comb += [
            self.take(command, commands.sink), self.take(data, beats.sink),
            commands.source.connect(port.wcmd, omit={"valid", "ready"}),
            # What was offered stays offered, whatever happens here.
            port.wcmd.valid.eq(stuck | (commands.source.valid & (whole != 0) & (open_ < 2) & (owed + acks.level < ACKS) & ~drop)),
            commands.source.ready.eq(issued),
            issued.eq(port.wcmd.valid & port.wcmd.ready),
            beats.source.connect(port.wdata, omit={"valid", "ready"}),
            port.wdata.valid.eq(beats.source.valid & (open_ != 0)),
            beats.source.ready.eq(port.wdata.ready & (open_ != 0)),
            stored.eq(beats.sink.valid & beats.sink.ready & beats.sink.last),
            ended.eq(port.wdata.valid & port.wdata.ready & port.wdata.last),
            port.wack.connect(acks.sink, omit={"valid", "ready"}),
            acks.sink.valid.eq(port.wack.valid),
            port.wack.ready.eq(1),
            acks.source.connect(ack),
            clear.eq(drop & (open_ == 0) & ~stuck),
            commands.reset.eq(clear), beats.reset.eq(clear), acks.reset.eq(drop),
            self.busy.eq((owed != 0) | (open_ != 0) | stuck),
        ]
        self.sync += [
            stuck.eq(port.wcmd.valid & ~port.wcmd.ready),
            whole.eq(Mux(clear, 0, whole + stored - issued)),
            open_.eq(open_ + issued - ended),
            owed.eq(owed + issued - port.wack.valid),
        ]


class _ReadFar(_Far):
    """Reads of one port at the target: a command is offered with room for all its beats, so they are always accepted."""
    def __init__(self, port, command, data, stop, depth):
        super().__init__(stop)
        drop = self.drop

        # # #

        self.commands = commands = ResetInserter()(stream.SyncFIFO(memory_command_description(), COMMANDS))
        self.beats    = beats    = ResetInserter()(stream.SyncFIFO(memory_rdata_description(len(data.data)), depth, buffered=True))
        self.submodules += counted(beats, "beats: `held` reserves their places", unless=drop)
        held = Signal(max=depth + 1)              # beats asked for that have not left.
        owed = Signal(max=depth + 1)              # beats asked for that have not come.
        size = Signal(BEATS_WIDTH)
        issued, left, stuck = Signal(), Signal(), Signal()
        self.comb += [
            self.take(command, commands.sink),
            size.eq(beats_of(commands.source)),
            commands.source.connect(port.rcmd, omit={"valid", "ready"}),
            port.rcmd.valid.eq(stuck | (commands.source.valid & (held <= depth - 2**(BEATS_WIDTH - 1)) & ~drop)),
            commands.source.ready.eq(issued),
            issued.eq(port.rcmd.valid & port.rcmd.ready),
            port.rdata.connect(beats.sink, omit={"valid", "ready"}),
            beats.sink.valid.eq(port.rdata.valid),
            port.rdata.ready.eq(1),
            beats.source.connect(data),
            left.eq(data.valid & data.ready),
            commands.reset.eq(drop & ~stuck), beats.reset.eq(drop),
            self.busy.eq((owed != 0) | stuck),
        ]
        self.sync += [
            stuck.eq(port.rcmd.valid & ~port.rcmd.ready),
            held.eq(Mux(drop, 0, held + Mux(issued, size, 0) - left)),
            owed.eq(owed + Mux(issued, size, 0) - port.rdata.valid),
        ]


# MemoryCrossing -----------------------------------------------------------------------------------

class MemoryCrossing(LiteXModule):
    """An adapter in another clock as an adapter in the hub's.

    ::
        hub ─► order of what is outstanding ─► link ─► commands, whole data, room ─► target
            ◄─ answers, or MEM_GONE          ◄─      ◄─                           ◄─

    A reset of the far clock, however short: every command that is outstanding, and all that come until the far side is back,
    end with MEM_GONE; nothing that the far side says of the old life is believed; accesses of the bus are acknowledged with
    ones (BusCrossing). A reset of the near clock: the target finishes what it has begun, nobody is told, the new life's
    commands wait for that. A far clock that only stops: the hub's watchdog answers, and tells what comes late by its own tags.

    Parameters
    ----------
    target : adapter
        In the far clock, made so by the caller; answers each port in order of its commands.
    near, far : str
        Clock domains of hub and target. Equal: wires.
    far_hz : number
        Frequency of the far clock; add_roce needs it to bound the paths between the two, where it does not know that clock.
    read_beats : int
        Beats that a read port may have asked for: latency of the target in far clocks, for one beat a clock.
    link : ClockLink
        An existing one of these domains; default: one of its own.

    Endpoints
    ---------
    write : MemoryWritePort, in; get_read() : MemoryReadPort, in
        In the near clock, as of any adapter.
    down : out, near clock
        The far side is in reset, or what was outstanding then is not answered for.

    bus : wishbone.Interface, slave
        In the near clock; if the adapter has one.

    Attributes: target (capability.MemoryTarget), if the adapter has one; near_name, far_name, far_hz.

    Latency: 4 to 6 clocks of the receiving side each way; a write waits until its data is whole. One beat a clock of the slower side.
    Errors : MEM_GONE as above.
    """
    def __init__(self, target, near="sys", far="sys", *, far_hz=None, read_beats=512, link=None):
        if read_beats < 2**BEATS_WIDTH or read_beats & (read_beats - 1):
            raise ValueError(f"read_beats must be a power of two from {2**BEATS_WIDTH}, not {read_beats!r}")
        if far_hz is not None and not far_hz > 0:
            raise ValueError(f"far_hz must be a frequency above 0 Hz, not {far_hz!r}")
        self.adapter, self.read_beats = target, read_beats
        if hasattr(target, "target"):
            self.target = target.target
        self.down = Signal()
        self.near_name, self.far_name, self.far_hz = near, far, far_hz
        if near == far:
            self.write = target.write
            if hasattr(target, "bus"):
                self.bus = target.bus
            return

        # # #

        self.link = link or ClockLink(near, far)
        if hasattr(target, "bus"):
            self.bus = self.link.add_bus(target.bus)
        self.write = MemoryWritePort()
        streams = [self._stream(layout, to_far) for layout, to_far in (
            (memory_command_description(), True), (memory_wdata_description(), True), (memory_wack_description(), False))]
        (command_in, command), (data_in, data), (ack_in, ack) = streams
        self.write_near = ClockDomainsRenamer(near)(_WriteNear(self.write, command_in, data_in, ack, self.link.near.stop))
        self.write_far  = ClockDomainsRenamer(far)(_WriteFar(target.write, command, data, ack_in, self.link.far.stop))
        self.nears = [self.write_near]

    def _stream(self, layout, to_far):
        return self.link.add_stream(layout, to_far=to_far, depth=16)

    def get_read(self):
        """A new read port."""
        if self.finalized:
            raise ValueError("get_read must be called before finalisation")
        far = self.adapter.get_read()
        if not hasattr(self, "link"):
            return far
        near = MemoryReadPort()
        command_in, command = self._stream(memory_command_description(), True)
        data_in, data       = self._stream(memory_rdata_description(), False)
        side = ClockDomainsRenamer(self.near_name)(_ReadNear(near, command_in, data, self.link.near.stop))
        self.submodules += side
        self.submodules += ClockDomainsRenamer(self.link.far.domain)(_ReadFar(far, command, data_in, self.link.far.stop, self.read_beats))
        self.nears.append(side)
        return near

    def do_finalize(self):
        if hasattr(self, "link"):
            self.comb += self.down.eq(Reduce("OR", [side.closed for side in self.nears]))
