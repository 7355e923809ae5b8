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
   final one, whatever happens. err: MEM_* of common.py. Data of an error is zero.
4. Of one port and target, writes become visible in order of issue, so do wacks and answers. Nothing
   is said about the order between targets, ports, reads and writes. Beats of two answers never mix.
   Payload ports want more: answers in order of issue whatever the targets (memory/router.py, in_order).
5. A wack says that every later read through this target sees the bytes.
6. Writes never wait for reads. A memory that stops is answered for with MEM_TIMEOUT; its late answers
   are swallowed, and until the last of them came, or a restart says that none will, it is not asked again.
7. Tags are the engine's, opaque to adapters, unique while outstanding at a port.
8. Lanes outside the range carry no promise in rdata; in wdata their `be` is 0, all others' 1.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.arbiter import StreamChoice
from roce_soc.common import (
    DATA_WIDTH, IN_FLIGHT, TAG_WIDTH, memory_command_description, memory_rdata_description, memory_wack_description,
    memory_wdata_description)

DEPTH       = IN_FLIGHT   # commands of one port that may be outstanding.
BEATS_WIDTH = 7           # beats of a command: 1 to 64.

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


# MemoryWriteArbiter -------------------------------------------------------------------------------

class MemoryWriteArbiter(LiteXModule):
    """Joins write ports into one ordered write path, in turns per command.

    Parameters
    ----------
    n_masters : int
        Ports joined, 1 or more.
    depth : int
        Commands outstanding, up to 2^TAG_WIDTH; a further one waits.

    Endpoints
    ---------
    masters : list of MemoryWritePort, in
    port : MemoryWritePort, out
        Carries the arbiter's own tags; the masters get theirs back.

    Latency: 0 clocks each way, one command and one beat a clock.
    Errors : none of its own; those of the memory pass.
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
    """Joins read ports into one, in turns per command. The tag says whose an answer is, so that answers of a fast
    target may come before those of a slow one that were asked for earlier.

    Parameters
    ----------
    n_masters : int
        Ports joined, 1 or more.
    tag_bits : int
        Width of the masters' tags.

    Endpoints
    ---------
    masters : list of MemoryReadPort, in
    port : MemoryReadPort, out
        Tag: the master's, its number above it.

    Latency: as MemoryWriteArbiter.
    Errors : none of its own; those of the memory pass.
    """
    def __init__(self, n_masters=2, tag_bits=4, dw=DATA_WIDTH):
        bits = bits_for(max(n_masters - 1, 1))
        if not 1 <= tag_bits <= TAG_WIDTH - bits:
            raise ValueError(f"tag_bits must be 1..{TAG_WIDTH - bits} for {n_masters} masters, not {tag_bits!r}")
        self.masters = masters = [MemoryReadPort(dw) for _ in range(n_masters)]
        self.port    = port    = MemoryReadPort(dw)

        # # #

        taken      = Signal()
        cmd        = stream.Endpoint(memory_command_description())
        self.choice = choice = StreamChoice([m.rcmd for m in masters], cmd, 1, taken)
        self.comb += [
            taken.eq(cmd.valid & cmd.ready),
            cmd.connect(port.rcmd, omit={"tag"}),
            port.rcmd.tag.eq(Cat(cmd.tag[:tag_bits], choice.grant)),
            port.rdata.ready.eq(1),
        ]
        for i, m in enumerate(masters):
            self.comb += [
                port.rdata.connect(m.rdata, omit={"valid", "ready", "tag"}),
                m.rdata.valid.eq(port.rdata.valid & (port.rdata.tag[tag_bits:] == i)),
                m.rdata.tag.eq(port.rdata.tag[:tag_bits]),
            ]
