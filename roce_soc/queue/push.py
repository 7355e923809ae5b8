# SPDX-License-Identifier: BSD-2-Clause
"""Push: work requests written into the doorbell window, so that none of it has to be read from memory.

Not supported: a pushed work request behind others that wait; it is read from its ring as they are.
"""
from migen import *

from litex.gen import *

from roce_soc import abi
from roce_soc.common import DATA_WIDTH, TARGET_WIDTH
from roce_soc.memory.port import MemoryReadPort
from roce_soc.table import InitWalker, clocked_port
from roce_soc.verbs import SEND_INLINE

SLOT_WORDS = abi.SEND_WQE_BYTES//4


def wqe_layout():
    """Fields of a send work request as a Record layout of 512 bits, gaps named."""
    layout, at = [], 0
    for entry in sorted(abi.SEND_WQE, key=lambda e: e.lsb):
        bit = entry.lsb
        if bit > at:
            layout.append((f"gap{at}", bit - at))
        layout.append((entry.name, entry.width))
        at = bit + entry.width
    if at < 8*abi.SEND_WQE_BYTES:
        layout.append((f"gap{at}", 8*abi.SEND_WQE_BYTES - at))
    return layout


def push_layout(dw=DATA_WIDTH):
    """A pushed work request and its inline data; `complete`: every word that it needs has come."""
    return [("complete", 1), ("wqe", dw), ("data", dw)]


def inline_layout(dw=DATA_WIDTH):
    """Inline data on chip and where its ring has it too."""
    return [("target", TARGET_WIDTH), ("addr", 64), ("data", dw)]


# PushSlots ----------------------------------------------------------------------------------------

class PushSlots(LiteXModule):
    """The push slot of every owner page: 32 words, and which of them have come since its last doorbell.

    Parameters
    ----------
    pages : int
        Owner pages, a power of two.

    Endpoints
    ---------
    we, page, word, data : in
        Writes a word of a page's slot.
    done : in
        The doorbell of `page` was taken: its words are forgotten.
    forget : in
        Forgets the words of every page (a QP was reset).
    push : push_layout(), out
        Slot of `page`, one clock later.

    Latency: 1 clock.
    Errors : none; words that are missing make the push a doorbell.
    """
    def __init__(self, pages, dw=DATA_WIDTH):
        bits = max(1, log2_int(pages))
        self.we     = Signal()
        self.page   = Signal(bits)
        self.word   = Signal(5)
        self.data   = Signal(32)
        self.done   = Signal()
        self.forget = Signal()
        self.push   = push = Record(push_layout(dw))

        # # #

        for half, target in enumerate((push.wqe, push.data)):
            memory = Memory(dw, 2**bits)
            write  = memory.get_port(write_capable=True, we_granularity=32)
            read   = clocked_port(memory)
            self.specials += memory, write, read
            self.comb += [
                write.adr.eq(self.page),
                write.dat_w.eq(Cat(*[self.data]*SLOT_WORDS)),
                If(self.we & (self.word[4] == half), write.we.eq(1 << self.word[:4])),
                read.adr.eq(self.page),
                target.eq(read.dat_r),
            ]

        # Words that came; after reset and `forget` none, of any page.
        self.walker = walker = InitWalker(2**bits)
        came   = Memory(2*SLOT_WORDS, 2**bits)
        write  = came.get_port(write_capable=True)
        read   = came.get_port(async_read=True)
        self.specials += came, write, read
        self.comb += [
            read.adr.eq(self.page),
            walker.again.eq(self.forget),
            walker.fill(write, self.page, Mux(self.done, 0, read.dat_r | (1 << self.word)), self.we | self.done),
        ]

        # The words it needs: the work request, and inline data as far as it goes.
        wqe     = Record(wqe_layout())
        inline  = Signal()
        missing = Signal(2*SLOT_WORDS)
        self.comb += [
            wqe.raw_bits().eq(push.wqe),
            inline.eq((wqe.flags & SEND_INLINE) != 0),
            missing.eq(~read.dat_r),
            push.complete.eq(walker.ready & (missing[:SLOT_WORDS] == 0)
                & ~Reduce("OR", [missing[SLOT_WORDS + i] & inline & (wqe.length > 4*i) for i in range(SLOT_WORDS)])),
        ]


# InlineReads --------------------------------------------------------------------------------------

class InlineReads(LiteXModule):
    """Read port between the fetcher and memory that answers the first read of pushed inline data itself.

    The data of the last push is held with its address in the ring. It answers only while nothing is under way in
    memory, so answers stay in order; otherwise memory has it as well. It serves once: repetitions, and whatever
    lies there later, are read from memory.

    Parameters
    ----------
    sink : MemoryReadPort
        Of the fetcher.
    max_reads : int
        Commands that the fetcher has outstanding at most.

    Endpoints
    ---------
    load, inline : in
        Pulse: holds this data from here on.
    forget : in
        Holds nothing (a QP was reset).
    port : MemoryReadPort, out

    Latency: none to memory and back; held data comes one clock after its command.
    Errors : none of its own; those of the memory pass.
    """
    def __init__(self, sink, max_reads, dw=DATA_WIDTH):
        self.load   = Signal()
        self.inline = Record(inline_layout(dw))
        self.forget = Signal()
        self.port   = port = MemoryReadPort(dw)

        # # #

        held   = Record(inline_layout(dw))
        valid  = Signal()
        match  = Signal()
        serves = Signal()
        answer = Signal()
        tag    = Signal(len(sink.rcmd.tag))
        open_  = Signal(max=max_reads + 1)
        issued, ended, stalled = Signal(), Signal(), Signal()
        self.comb += [
            match.eq(valid & (sink.rcmd.target == held.target) & (sink.rcmd.addr == held.addr)),
            # A command that memory has seen stays with memory.
            serves.eq(match & (open_ == 0) & ~answer & ~stalled),
            sink.rcmd.connect(port.rcmd, omit={"valid", "ready"}),
            port.rcmd.valid.eq(sink.rcmd.valid & ~serves & ~answer),
            sink.rcmd.ready.eq(serves | (port.rcmd.ready & ~answer)),
            issued.eq(port.rcmd.valid & port.rcmd.ready),
            ended.eq(port.rdata.valid & port.rdata.last),
            port.rdata.connect(sink.rdata),
            If(answer,
                sink.rdata.valid.eq(1),
                sink.rdata.last.eq(1),
                sink.rdata.first.eq(1),
                sink.rdata.data.eq(held.data),
                sink.rdata.tag.eq(tag),
                sink.rdata.err.eq(0),
            ),
        ]
        self.sync += [
            open_.eq(open_ + issued - ended),
            stalled.eq(port.rcmd.valid & ~port.rcmd.ready),
            answer.eq(sink.rcmd.valid & serves),
            tag.eq(sink.rcmd.tag),
            If(sink.rcmd.valid & sink.rcmd.ready & match, valid.eq(0)),
            If(self.load & ~answer,
                valid.eq(1),
                held.eq(self.inline),
            ),
            If(self.forget, valid.eq(0)),
        ]
