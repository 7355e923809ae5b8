# SPDX-License-Identifier: BSD-2-Clause
"""Doorbell window: 32-bit writes into 4 KiB owner pages become doorbell records for the queues.

Not supported: reads (answer 0).
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream, wishbone

from roce_soc import abi
from roce_soc.common import PAGE_WIDTH, doorbell_description, refusal_description
from roce_soc.errors import ERRORS
from roce_soc.queue.push import PushSlots

KIND_PUSH = 5      # doorbell record of a push; the other kinds are offsets in the page divided by 4.

QUEUES = {
    "sq": (abi.DOORBELL_SQ, abi.DOORBELL_SQ_PUSH),
    "rq": (abi.DOORBELL_RQ,),
    "cq": (abi.DOORBELL_CQ, abi.DOORBELL_CQ_ARM),
    "eq": (abi.DOORBELL_EQ,),
}


# DoorbellWindow -----------------------------------------------------------------------------------

class DoorbellWindow(LiteXModule):
    """Wishbone slave that turns {queue[31:16], index[15:0]} writes into records, one stream per kind of queue.

    A write is acknowledged when its record is taken, so a doorbell acts after every earlier write
    that its master has seen acknowledged.

    Parameters
    ----------
    pages : int
        Owner pages of 4 KiB, a power of two from 1 to 4096; the page number goes with the record.

    Endpoints
    ---------
    bus : wishbone.Interface(32), slave
    sq, rq, cq, eq : doorbell_description(), out
    slots.push : push_layout(), out
        With a record of kind KIND_PUSH, from its second clock on.
    slots.forget : in
        Forgets the words of every push slot.
    refusal : refusal_description(), out
        DOORBELL: an offset without meaning, or a write of less than 32 bits.

    Latency: 2 clocks; one doorbell every 3 clocks.
    Errors : row DOORBELL, as `refusal`.
    """
    def __init__(self, pages=16):
        if pages < 1 or pages > 1 << PAGE_WIDTH or pages & (pages - 1):
            raise ValueError(f"pages must be a power of two from 1 to 4096, not {pages!r}")
        self.size    = pages*abi.DOORBELL_PAGE_BYTES
        self.bus     = bus = wishbone.Interface(data_width=32, address_width=32, addressing="word")
        self.refusal = refusal = stream.Endpoint(refusal_description())
        for name in QUEUES:
            setattr(self, name, stream.Endpoint(doorbell_description()))

        # # #

        self.slots = slots = PushSlots(pages)
        page_words = log2_int(abi.DOORBELL_PAGE_BYTES//4)
        offset     = bus.adr[:page_words]
        page       = Signal(PAGE_WIDTH)
        write      = Signal()
        taken, known = Signal(), Signal()
        pushed     = Signal()
        words      = log2_int(abi.DOORBELL_PUSH_BYTES//4)
        self.comb += [
            page.eq(bus.adr[page_words:page_words + max(1, log2_int(pages))] if pages > 1 else 0),
            write.eq(bus.cyc & bus.stb & bus.we & ~bus.ack),
            bus.dat_r.eq(0),
            refusal.first.eq(1), refusal.last.eq(1),
            refusal.row.eq(ERRORS["DOORBELL"].index),
            refusal.info.eq(Cat(bus.adr[:30] << 2)),
            refusal.valid.eq(write & ~known),
            # Push slots.
            pushed.eq((offset[words:] == abi.DOORBELL_PUSH//abi.DOORBELL_PUSH_BYTES) & (bus.sel == 0xf)),
            slots.page.eq(page),
            slots.word.eq(offset[:words]),
            slots.data.eq(bus.dat_w),
            slots.we.eq(write & pushed),
            If(pushed, known.eq(1), taken.eq(1)),
            slots.done.eq(self.sq.valid & self.sq.ready & (self.sq.kind == KIND_PUSH)),
        ]
        for name, kinds in QUEUES.items():
            sink = getattr(self, name)
            hit  = Signal()
            self.comb += [
                [If((offset == kind//4) & (bus.sel == 0xf), hit.eq(1)) for kind in kinds],
                sink.valid.eq(write & hit),
                sink.first.eq(1), sink.last.eq(1),
                sink.kind.eq(Mux(offset == abi.DOORBELL_SQ_PUSH//4, KIND_PUSH, offset[:3])),
                sink.page.eq(page),
                sink.queue.eq(bus.dat_w[16:]),
                sink.index.eq(bus.dat_w[:16]),
                If(hit, known.eq(1), taken.eq(sink.ready)),
            ]
        self.sync += bus.ack.eq(bus.cyc & bus.stb & ~bus.ack & (~bus.we | taken | ~known))
