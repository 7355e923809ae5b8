# SPDX-License-Identifier: BSD-2-Clause
"""Send queues: doorbells, prefetch of work requests into an on-chip cache, and the schedule of QPs.

Ref: InfiniBand Architecture vol. 1 ch. 10.8 (work requests), design of rings and doorbells in roce_soc/abi.py.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.bounds import counted
from roce_soc.common import (
    DATA_WIDTH, MEMORY_WQE, PAGE_BYTES, memory_command_description, memory_rdata_description)
from roce_soc.queue.push import wqe_layout
from roce_soc.queue.sq_doorbell import SLOT_SHIFT, SendDoorbell
from roce_soc.queue.sq_forget import SendQueueForget
from roce_soc.queue.sq_layout import EPOCH_WIDTH, cursor_layout
from roce_soc.table import KickQueue, Table, clocked_port

CACHE_SLOTS = 8       # work requests of a QP on chip.
FETCHES     = 16      # descriptor reads outstanding, all QPs together.
ARRIVALS    = 64      # kicks of arrived work requests that wait for the schedule.


# SendQueues ---------------------------------------------------------------------------------------

class SendQueues(LiteXModule):
    """Knows which QPs have work and holds their next work requests on chip.

    ::
        doorbell ─► producer ─► fetch queue ─► rcmd      rdata ─► cache ─► schedule ─► requester
             └─ push ──────────────┼─ cursor moved ─────────► cache ─┘        ▲ kicks

    Slot numbers are 16-bit counters; a ring slot is the counter modulo the ring. The requester moves
    the cursor; a new epoch in it restarts the prefetch there and drops what is under way. Work
    requests on chip stay good until RESET, since a producer does not change what is outstanding.
    A pushed work request goes straight to the cache when it is the only one that its QP has to visit.

    Parameters
    ----------
    context : QPContext
        Connection rows: ring geometry, page, state.
    n_kicks : int
        Kick inputs of the schedule.

    Endpoints
    ---------
    doorbell : doorbell_description(), in
        Those of kind SQ and push are acted on, others swallowed.
    push : push_layout(), in
        Work request of a push doorbell.
    inline_we, inline : out
        Inline data of a push that was taken, and its place in the ring.
    rcmd, rdata : descriptor read port.
    kicks : list of kick_description(), in
        Window or una moved, READ slot or ring entry free, rewound, RNR over.
    again : {valid, qpi}, in
        Kick from the requester, taken at once.
    source : kick_description(), out
        A QP that may have something to send.
    hit, err, wqe : out
        Work request at the cursor of the QP that stood in `source` two clocks ago.
    cursor_we, cursor_qpi, cursor : in
        New cursor, from the requester.
    retired_we, retired_qpi, retired : in
        Slots below `retired` are the producer's again, from the retire walker.
    clear, clear_qpi : in
        Forget the producer index (RESET).
    ctl : ctl_description(), in; ctl_done : pulse, out
        Last part of a RESET: reads of the old ring have ended, nothing of it is left on chip.
    refusal : refusal_description(), out

    Latency: doorbell to read command 8 clocks, rdata to source 3 clocks; push to source 3; 6 clocks a read command.
    Errors : DOORBELL (QP unknown, in RESET or INIT, wrong page, beyond the ring): ignored, counted. A failed
    descriptor read marks its work requests (`err`).
    """
    def __init__(self, context, n_kicks=2, dw=DATA_WIDTH):
        n_qps = context.n_qps
        bits  = context.bits
        # Stream Endpoints.
        self.rcmd     = stream.Endpoint(memory_command_description())
        self.rdata    = stream.Endpoint(memory_rdata_description(dw))
        self.cursor_we  = Signal()
        self.cursor_qpi = Signal(bits)
        self.cursor     = Record(cursor_layout())
        self.retired_we  = Signal()
        self.retired_qpi = Signal(bits)
        self.retired     = Signal(16)
        self.hit        = Signal()
        self.err        = Signal()
        self.wqe        = Record(wqe_layout())
        self.ready      = Signal()

        # # #

        self.cursors  = cursors  = Table(cursor_layout(), n_qps, distributed=True)
        self.owned    = owned    = Table([("slot", 16)], n_qps)
        self.produced = produced = Table([("slot", 16)], n_qps)
        self.fetched  = fetched  = Table(cursor_layout(), n_qps)
        self.tags     = tags     = Table(
            [("valid", 1), ("err", 1), ("slot", 16), ("life", EPOCH_WIDTH)], CACHE_SLOTS*n_qps)
        self.schedule = schedule = KickQueue(n_qps, n_kicks + 1)
        self.fetch    = fetch    = KickQueue(n_qps, 1)
        self.kicks, self.source = schedule.kicks[:n_kicks], schedule.source
        self.bell   = bell = SendDoorbell(context, owned, produced)
        self.doorbell, self.push, self.refusal = bell.sink, bell.push, bell.refusal
        self.inline_we, self.inline   = bell.inline_we, bell.inline
        self.clear, self.clear_qpi    = bell.clear, bell.clear_qpi
        self.again  = Record([("valid", 1), ("qpi", bits)])
        self.comb += [
            bell.enable.eq(self.ready),
            bell.kick.connect(fetch.kicks[0]),
            schedule.urgent.valid.eq(self.again.valid | bell.placed),
            schedule.urgent.qpi.eq(Mux(self.again.valid, self.again.qpi, bell.sink.queue)),
            self.ready.eq(schedule.ready & fetch.ready & tags.ready & cursors.ready),
            # A moved cursor leaves room for the prefetch.
            cursors.we.eq(self.cursor_we),
            cursors.adr.eq(self.cursor_qpi),
            cursors.row.raw_bits().eq(self.cursor.raw_bits()),
            owned.we.eq(self.retired_we),
            owned.adr.eq(self.retired_qpi),
            owned.row.slot.eq(self.retired),
        ]
        self.sync += [
            fetch.urgent.valid.eq(self.cursor_we),
            fetch.urgent.qpi.eq(self.cursor_qpi),
        ]
        self.arrivals = stream.SyncFIFO([("qpi", bits)], ARRIVALS)
        self.submodules += counted(self.arrivals, "kicks: two for each tag that is open, `free` keeps their places")
        self.open, self.done = Signal(FETCHES), Signal(FETCHES)      # reads, by tag: open; ended this clock.
        self.forget = forget = SendQueueForget(self.open, self.done, CACHE_SLOTS)
        self.ctl, self.ctl_done = forget.ctl, forget.ctl_done
        self.add_fetch(context, bits)
        self.add_cache(bits, dw)

    def add_fetch(self, context, bits):
        """One visit of a QP reads up to eight slots that lie together in ring, page and cache."""
        fetch, rcmd = self.fetch, self.rcmd
        port, cursor, producer, fetched = (
            context.get_port(), self.cursors.get_port(), self.produced.get_port(), self.fetched.get_port())
        adr = Signal(bits)
        qpi = Signal(bits)
        self.comb += [table.adr.eq(adr) for table in (port, cursor, producer, fetched)]
        row = port.row

        # Tags: the lowest free one, each open until its last beat; answers of a slow memory hold back no other.
        self.fetches = Memory(bits + 16 + EPOCH_WIDTH, FETCHES)
        tag, lowest  = Signal(max=FETCHES), Signal(max=FETCHES)
        free         = Signal()
        issue        = Signal()
        write        = self.fetches.get_port(write_capable=True)
        self.specials += self.fetches, write
        self.comb += [
            # A fetch ends in up to two kicks, which wait for their turn: their places are kept free.
            [If(~self.open[n], lowest.eq(n)) for n in reversed(range(FETCHES))],
            free.eq((self.open != 2**FETCHES - 1) & (self.arrivals.level <= ARRIVALS - 2*FETCHES - 2)),
            write.we.eq(issue),
            write.adr.eq(tag),
        ]
        self.sync += self.open.eq((self.open | Mux(issue, 1 << tag, 0)) & ~self.done)

        slot, epoch = Signal(16), Signal(EPOCH_WIDTH)
        in_ring     = Signal(15)
        ring        = Signal(16)
        avail       = Signal(16)
        used        = Signal(16)
        restart     = Signal()
        lead        = Signal(16)
        first       = Signal(16)
        count       = Signal(4)
        addr        = Signal(64)
        near, room, posted, page = Signal(4), Signal(4), Signal(4), Signal(7)

        def least(a, b):
            return Mux(a < b, a, b)

        self.fetch_fsm = fsm = FSM(reset_state="IDLE")
        fsm.act("IDLE",
            adr.eq(fetch.source.qpi),
            fetch.source.ready.eq(self.ready & free),
            NextValue(qpi, fetch.source.qpi),
            If(self.ready & free & fetch.source.valid, NextState("ROW")),
        )
        fsm.act("ROW", NextState("COUNT"))
        self.comb += [
            # Behind a rewind the requester may find work requests still on chip and pass the prefetch.
            lead.eq(fetched.row.slot - cursor.row.slot),
            restart.eq((fetched.row.epoch != cursor.row.epoch) | lead[-1]),
            first.eq(Mux(restart, cursor.row.slot, fetched.row.slot)),
        ]
        fsm.act("COUNT",
            adr.eq(qpi),
            NextValue(slot,  first),
            NextValue(epoch, cursor.row.epoch),
            NextValue(avail, producer.row.slot - first),
            NextValue(used,  first - cursor.row.slot),
            NextValue(ring,  1 << row.sq_log2),
            NextValue(in_ring, first & ((1 << row.sq_log2) - 1)),
            NextValue(addr,  row.sq_addr),
            NextValue(rcmd.target, row.sq_target),
            NextState("LIMIT"),
        )
        fsm.act("LIMIT",
            NextValue(addr,   addr + (in_ring << SLOT_SHIFT)),
            NextValue(posted, Mux(avail > CACHE_SLOTS, CACHE_SLOTS, avail)),
            NextValue(room,   Mux(used > CACHE_SLOTS, 0, CACHE_SLOTS - used)),
            NextValue(near,   Mux(ring < CACHE_SLOTS, ring - in_ring, CACHE_SLOTS - in_ring[:3])),
            NextState("LEAST"),
        )
        page_slots = PAGE_BYTES >> SLOT_SHIFT
        fsm.act("LEAST",
            page.eq(page_slots - addr[SLOT_SHIFT:log2_int(PAGE_BYTES)]),
            NextValue(count, least(least(posted, room), least(near, page))),
            NextValue(tag, lowest),
            NextState("ISSUE"),
        )
        # What a ring's, page's or cache's end leaves over needs a further command.
        fsm.act("ISSUE",
            rcmd.valid.eq(count != 0),
            If(count == 0,
                NextState("IDLE"),
            ).Elif(rcmd.ready,
                issue.eq(1),
                If((posted != count) & (room != count),
                    NextState("AGAIN"),
                ).Else(
                    NextState("IDLE"),
                )
            )
        )
        fsm.act("AGAIN",
            adr.eq(qpi),
            If(free, NextState("ROW")),
        )
        self.comb += [
            rcmd.addr.eq(addr),
            rcmd.length.eq(count << SLOT_SHIFT),
            rcmd.qpi.eq(qpi),
            rcmd.kind.eq(MEMORY_WQE),
            rcmd.tag.eq(tag),
            write.dat_w.eq(Cat(qpi, slot, epoch)),
            If(issue,
                self.fetched.we.eq(1),
                self.fetched.adr.eq(qpi),
                self.fetched.row.slot.eq(slot + count),
                self.fetched.row.epoch.eq(epoch),
            ).Else(
                self.fetched.we.eq(self.forget.fetched),
                self.fetched.adr.eq(self.forget.ctl.qpi),
            ),
            self.forget.issue.eq(issue),
            self.forget.visit.eq(~fsm.ongoing("IDLE") & (qpi == self.forget.ctl.qpi)),
        ]

    def add_cache(self, bits, dw):
        """Arriving beats go to the cache unless their QP's epoch or cursor has moved on; a fetch's first and last kick the QP.

        Nothing lands behind the cursor: the place may be that of a pushed work request.
        """
        rdata, tags = self.rdata, self.tags
        owner  = Signal(self.cursors.adr.nbits)       # whose slot a word that was read is, else the doorbell's queue.
        cursor, lookup = self.cursors.read(owner), self.cursors.read(self.source.qpi)
        read   = self.fetches.get_port(async_read=True)
        cache  = Memory(dw, CACHE_SLOTS*2**bits)
        write  = cache.get_port(write_capable=True)
        # A work request read again while it is read from here: `tags` is written and read in the same clocks, so an old tag
        # has the old word beside it, and a hit the work request of that slot.
        load   = clocked_port(cache, old_word=True)
        self.specials += read, cache, write, load
        slot_bits = log2_int(CACHE_SLOTS)

        # Arrival.
        beat  = Signal(3)
        valid = Signal()
        err   = Signal()
        qpi   = Signal(bits)
        slot, epoch = Signal(16), Signal(EPOCH_WIDTH)
        data  = Signal(dw)
        arrivals = self.arrivals
        ends, lands = Signal(), Signal()
        behind = Signal(16)
        bell, forget = self.bell, self.forget
        self.comb += [
            rdata.ready.eq(1),
            read.adr.eq(rdata.tag),
            If(rdata.valid & rdata.last, self.done.eq(1 << rdata.tag)),
            bell.busy.eq(valid | self.again.valid),
            bell.cursor.eq(cursor.slot),
            owner.eq(Mux(valid, qpi, bell.sink.queue)),
            behind.eq(slot - cursor.slot),
            lands.eq(valid & (epoch == cursor.epoch) & ~behind[-1]),
            write.we.eq(lands | bell.placed),
            write.adr.eq(Cat(slot[:slot_bits], qpi)),
            write.dat_w.eq(data),
            tags.row.err.eq(err),
            tags.row.slot.eq(slot),
            If(bell.placed,
                write.adr.eq(Cat(bell.slot[:slot_bits], bell.sink.queue[:bits])),
                write.dat_w.eq(bell.push.wqe),
                tags.row.err.eq(0),
                tags.row.slot.eq(bell.slot),
            ),
            forget.arrival.eq(write.we),
            If(write.we,
                tags.we.eq(1),
                tags.adr.eq(write.adr),
                tags.row.valid.eq(1),
                tags.row.life.eq(cursor.life),
            ).Else(
                tags.we.eq(forget.tag),
                tags.adr.eq(Cat(forget.slot, forget.ctl.qpi[:bits])),
                tags.row.raw_bits().eq(0),
            ),
            arrivals.sink.valid.eq(lands & ends),
            arrivals.sink.qpi.eq(qpi),
            arrivals.source.connect(self.schedule.kicks[-1]),
        ]
        self.sync += [
            valid.eq(rdata.valid),
            ends.eq((beat == 0) | rdata.last),
            err.eq(rdata.err != 0),
            data.eq(rdata.data),
            Cat(qpi, slot, epoch).eq(read.dat_r),
            slot.eq(read.dat_r[bits:bits + 16] + beat),
            If(rdata.valid, beat.eq(Mux(rdata.last, 0, beat + 1))),
        ]

        # Lookup for the QP at the head of the schedule.
        tag_port  = tags.get_port()
        cursor_d  = [Record(cursor_layout()) for _ in range(2)]
        self.comb += [
            load.adr.eq(Cat(lookup.slot[:slot_bits], self.source.qpi[:bits])),
            tag_port.adr.eq(load.adr),
            self.hit.eq(tag_port.row.valid & (tag_port.row.slot == cursor_d[1].slot)
                & (tag_port.row.life == cursor_d[1].life)),
            self.err.eq(tag_port.row.err),
        ]
        self.sync += [
            self.wqe.raw_bits().eq(load.dat_r),
            cursor_d[0].raw_bits().eq(lookup.raw_bits()),
            cursor_d[1].raw_bits().eq(cursor_d[0].raw_bits()),
        ]
