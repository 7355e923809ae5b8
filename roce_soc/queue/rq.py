# SPDX-License-Identifier: BSD-2-Clause
"""Receive queues: doorbells, prefetch of receive WQEs, the head WQE for the responder, flush.

Ref: InfiniBand Architecture vol. 1 ch. 10.2, 10.3.1.7 (work request flush).
Not supported: several QPs on one receive queue (SRQ), more than one SGE a WQE.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc import abi
from roce_soc.bounds import counted
from roce_soc.common import (
    MEMORY_WQE, PAGE_BYTES, PAGE_WIDTH, QPI_WIDTH, TARGET_WIDTH, cqe_description, doorbell_description, memory_command_description,
    memory_rdata_description, refusal_description, ring_write_description)
from roce_soc.errors import ERRORS
from roce_soc.queue.rq_layout import RECV_WQE_LAYOUT, RQ_CTL_RESET, TakePort, rq_ctl_description
from roce_soc.table import FlagTable, InitWalker, Table, clocked_port
from roce_soc.verbs import WC_RECV

MAX_RQS     = 4096
CACHE_DEPTH = 8       # receive WQEs on chip a queue.
BURST       = 4       # receive WQEs one read fetches at most.
READS       = 16      # reads outstanding.
PAGE_SLOTS  = PAGE_BYTES//abi.RECV_WQE_BYTES

MODE_RUN, MODE_FLUSH, MODE_HOLD = range(3)   # HOLD: no fetch, no take; being written or reset.


# ReceiveQueues ------------------------------------------------------------------------------------

class ReceiveQueues(LiteXModule):
    """Ring state of every receive queue, one counter a writer, and the WQEs fetched ahead.

    producer (doorbells) >= fetch (reads issued) >= done (WQEs in the cache) >= head (WQEs consumed), all
    free running 16 bits, slot = counter modulo ring size. fetch - head never exceeds the cache.

    Parameters
    ----------
    n_rqs : int
        Queues, a power of two from 16 to 4096.

    Endpoints
    ---------
    write : ring_write_description(), in
        Geometry; drops what was prefetched and sets all counters to 0.
    doorbell : doorbell_description(), in
    bell_index, bell_owned : out, in; same clock
        Whether the doorbell's queue belongs to a QP that is out of RESET; else it is refused.
        Kind RQ is taken, other kinds are not for this module and are passed over.
    rcmd, rdata : memory_command_description(), memory_rdata_description()
        Descriptor reads, up to 16 at once, up to 4 WQEs each; rdata is always accepted.
    port : TakePort
    wake : {qpi}, out
        The WQE that `qpi` parked for is in the cache.
    ctl : rq_ctl_description(), in, answered by a pulse of `ctl_done`.
    cqe : cqe_description(), out
        Flushed receives, in ring order.
    refusal : refusal_description(), out

    Latency: doorbell to read command 12 clocks; last beat to wake-up 2 clocks.
    Errors : DOORBELL (no queue, other page, beyond the ring): ignored and refused. A slot that cannot be read
             is marked `err`; whoever takes it fails.
    """
    def __init__(self, n_rqs):
        if n_rqs < 16 or n_rqs > MAX_RQS or n_rqs & (n_rqs - 1):
            raise ValueError(f"n_rqs must be a power of two from 16 to {MAX_RQS}, not {n_rqs!r}")
        self.n_rqs = n_rqs
        self.bits  = bits = log2_int(n_rqs)
        # Stream Endpoints.
        self.write    = stream.Endpoint(ring_write_description())
        self.doorbell = stream.Endpoint(doorbell_description())
        self.bell_index, self.bell_owned = Signal(QPI_WIDTH), Signal(reset=1)
        self.rcmd     = stream.Endpoint(memory_command_description())
        self.rdata    = stream.Endpoint(memory_rdata_description())
        self.port     = TakePort()
        self.wake     = stream.Endpoint([("qpi", QPI_WIDTH)])
        self.ctl, self.ctl_done = stream.Endpoint(rq_ctl_description()), Signal()
        self.cqe      = stream.Endpoint(cqe_description())
        self.refusal  = stream.Endpoint(refusal_description())
        self.ready    = Signal()

        # # #

        # Tables. Each counter has one writer; `clear` borrows all write ports for one clock.
        self.config   = Table([("enable", 1), ("log2", 4), ("target", TARGET_WIDTH), ("page", PAGE_WIDTH), ("addr", 64)], n_rqs, distributed=True)
        self.flush    = Table([("mode", 2), ("qpn", 24), ("cqn", QPI_WIDTH)], n_rqs, distributed=True)
        self.producer = Table(16, n_rqs, distributed=True)
        self.fetch    = Table(16, n_rqs, distributed=True)
        self.done     = Table(16, n_rqs, distributed=True)
        self.head     = Table(16, n_rqs, distributed=True)
        self.waiting  = FlagTable(n_rqs)
        self.waiter   = Table(QPI_WIDTH, n_rqs, distributed=True)
        tables        = [self.config, self.flush, self.producer, self.fetch, self.done, self.head, self.waiting, self.waiter]
        self.comb += self.ready.eq(Reduce("AND", [table.ready for table in tables]))

        cache = Memory(layout_len(RECV_WQE_LAYOUT), n_rqs*CACHE_DEPTH)
        self.cache_write, self.cache_read = cache.get_port(write_capable=True), clocked_port(cache)
        self.specials += cache, self.cache_write, self.cache_read

        self.clear, self.clear_index = Signal(), Signal(bits)
        self.comb += [self.rcmd.first.eq(1), self.rcmd.last.eq(1), self.cqe.first.eq(1), self.cqe.last.eq(1),
                      self.wake.first.eq(1), self.wake.last.eq(1), self.refusal.first.eq(1), self.refusal.last.eq(1)]
        self._add_doorbell()
        self._add_fetch()
        self._add_return()
        self._add_take()
        self._add_manager()

    def _drive(self, table, we, adr, data):
        """Gives a counter's write port to its writer, except for the clock of a clear."""
        self.comb += [
            table.we.eq(we | self.clear),
            table.adr.eq(Mux(self.clear, self.clear_index, adr)),
            table.row.eq(Mux(self.clear, 0, data)),
        ]

    def _add_doorbell(self):
        """Four clocks, one doorbell at a time: taken, row and counters read, distances, judged."""
        bell, bits = self.doorbell, self.bits
        self.bell_trigger = stream.SyncFIFO([("index", bits)], 4)
        self.submodules += counted(self.bell_trigger, "doorbells: one in four clocks, with the level below 2")
        queue, index, page = Signal(16), Signal(16), Signal(PAGE_WIDTH)
        stage = Signal(3)                     # one bit a clock behind the first.
        row   = Record(self.config.layout)
        head, old, size = Signal(16), Signal(16), Signal(16)
        ahead, posted, mine, good = Signal(16), Signal(16), Signal(), Signal()
        self.comb += [
            bell.ready.eq(self.ready & ~self.clear & (stage == 0) & (self.bell_trigger.level < 2)),
            self.bell_index.eq(queue),
            good.eq(stage[2] & mine & (ahead <= size) & (ahead >= posted)),
            # The fetcher looks at the queue once the counter is written.
            self.bell_trigger.sink.valid.eq(good & ~self.clear),
            self.bell_trigger.sink.index.eq(queue),
        ]
        self._drive(self.producer, good, queue[:bits], index)
        config_now, head_now, old_now = (t.read(queue[:bits]) for t in (self.config, self.head, self.producer))
        self.sync += [
            self.refusal.valid.eq(stage[2] & ~good & ~self.clear),
            self.refusal.row.eq(ERRORS["DOORBELL"].index),
            self.refusal.info.eq(Cat(index, queue)),
            If(self.clear,   # a doorbell of the queue's former life
                If(queue[:bits] == self.clear_index, stage.eq(0)),
            ).Else(
                stage.eq(stage << 1),
                If(bell.valid & bell.ready, stage.eq(bell.kind == abi.DOORBELL_RQ//4)),
                If(stage == 0, queue.eq(bell.queue), index.eq(bell.index), page.eq(bell.page)),
                row.eq(config_now), head.eq(head_now), old.eq(old_now),
                ahead.eq(index - head), posted.eq(old - head), size.eq(1 << row.log2),
                mine.eq(row.enable & (row.page == page) & (queue[bits:] == 0) & self.bell_owned),
            ),
        ]

    def _add_fetch(self):
        """Queues that may have something to fetch wait in one FIFO, each at most once, and get one read a turn.

        Four clocks a turn, one turn a clock: popped, row and counters read, distances, read issued. A queue is
        never in there twice.
        """
        bits, clear = self.bits, self.clear
        # Triggers: a doorbell, room that a consumed WQE made, more to fetch after a turn.
        self.room_trigger = stream.SyncFIFO([("index", bits)], 8)
        self.more_trigger = stream.SyncFIFO([("index", bits)], 8)
        self.work         = work = stream.SyncFIFO([("index", bits)], self.n_rqs, buffered=True)
        self.queued       = FlagTable(self.n_rqs)
        self.tags         = tags = stream.SyncFIFO([("tag", log2_int(READS))], READS, buffered=True)
        self.tag_info     = Table([("index", bits), ("slot", log2_int(CACHE_DEPTH))], READS, distributed=True)
        self.tag_return   = stream.Endpoint([("tag", log2_int(READS))])
        self.rcmds        = rcmds = stream.SyncFIFO(memory_command_description(), 8)
        self.submodules += [counted(fifo, kept_by) for fifo, kept_by in (
            (self.room_trigger, "WQEs taken: one a clock at most, and this trigger goes first"),
            (self.more_trigger, "turns on their way: three, with the level below 4"),
            (work,              "queues: n_rqs, each at most once (`queued`)"),
            (tags,              "tags: there are READS"),
            (rcmds,             "turns on their way: three, with the level below 4"),
        )]
        self.tag_walker   = tag_walker = InitWalker(READS)
        trigger, pushing  = stream.Endpoint([("index", bits)]), Signal()
        self.comb += [
            If(self.room_trigger.source.valid,
                self.room_trigger.source.connect(trigger),
            ).Elif(self.bell_trigger.source.valid,
                self.bell_trigger.source.connect(trigger),
            ).Else(
                self.more_trigger.source.connect(trigger),
            ),
            trigger.ready.eq(1),
            # A trigger that finds its queue waiting is served by that turn.
            pushing.eq(trigger.valid & ~self.queued.read(trigger.index)),
            work.sink.valid.eq(pushing), work.sink.index.eq(trigger.index),
            self.queued.set.eq(pushing), self.queued.set_adr.eq(trigger.index),
            self.queued.clear.eq(work.source.valid & work.source.ready), self.queued.clear_adr.eq(work.source.index),
        ]

        v    = [Signal(name=f"turn{n}") for n in range(1, 4)]
        idx  = [Signal(bits, name=f"turn_index{n}") for n in range(1, 4)]
        busy = Reduce("OR", [valid & (index == work.source.index) for valid, index in zip(v, idx)])
        row2, row3 = Record(self.config.layout), Record(self.config.layout)
        producer2, fetch2, head2, fetch3, slot3 = (Signal(16) for _ in range(5))
        hold2, hold3 = Signal(), Signal()
        left, room, fill = Signal(16), Signal(16), Signal(16)
        many, go, more, issue = Signal(), Signal(), Signal(), Signal()
        burst = Signal(3)
        config_now, mode_now = self.config.read(idx[0]), self.flush.read(idx[0]).mode
        producer_now, fetch_now, head_now = self.producer.read(idx[0]), self.fetch.read(idx[0]), self.head.read(idx[0])
        self.comb += [
            # Room for what is on its way: tags, commands, triggers.
            work.source.ready.eq(~clear & ~busy & (tags.level > 4) & (rcmds.level < 4) & (self.more_trigger.level < 4)),
            fill.eq(fetch2 - head2),
            # A burst starts at a multiple of its size, so it ends inside the ring, and must end in its page.
            many.eq((left >= BURST) & (room >= BURST) & (slot3[:2] == 0) & (row3.log2 >= 2)
                & ((row3.addr[6:12] + slot3[:6])[:6] <= PAGE_SLOTS - BURST)),
            burst.eq(Mux(many, BURST, 1)),
            go.eq((left != 0) & (room != 0) & ~hold3),
            more.eq((left > burst) & (room > burst)),
            issue.eq(v[2] & go & ~clear),
            self.more_trigger.sink.valid.eq(issue & more), self.more_trigger.sink.index.eq(idx[2]),
            tags.source.ready.eq(issue),
            self.tag_info.we.eq(issue), self.tag_info.adr.eq(tags.source.tag),
            self.tag_info.row.index.eq(idx[2]), self.tag_info.row.slot.eq(fetch3),
            tags.sink.valid.eq(~tag_walker.ready | self.tag_return.valid),
            tags.sink.tag.eq(Mux(tag_walker.ready, self.tag_return.tag, tag_walker.adr)),
            rcmds.sink.valid.eq(issue),
            rcmds.sink.target.eq(row3.target),
            rcmds.sink.addr.eq(row3.addr + (slot3 << 6)),
            rcmds.sink.length.eq(burst << 6),
            rcmds.sink.qpi.eq(idx[2]),
            rcmds.sink.kind.eq(MEMORY_WQE),
            rcmds.sink.tag.eq(tags.source.tag),
            rcmds.source.connect(self.rcmd, omit={"first", "last"}),
        ]
        self._drive(self.fetch, issue, idx[2], fetch3 + burst)
        self.sync += [
            If(~clear,
                Cat(*v).eq(Cat(work.source.valid & work.source.ready, v[0], v[1])),
                idx[0].eq(work.source.index), idx[1].eq(idx[0]), idx[2].eq(idx[1]),
                row2.eq(config_now), hold2.eq(mode_now == MODE_HOLD),
                producer2.eq(producer_now), fetch2.eq(fetch_now), head2.eq(head_now),
                row3.eq(row2), hold3.eq(hold2), fetch3.eq(fetch2),
                left.eq(producer2 - fetch2),
                room.eq(CACHE_DEPTH - fill),
                slot3.eq(fetch2 & ((1 << row2.log2) - 1)),
            ),
        ]

    def _add_return(self):
        """Beats into the cache, then the counter, then the wake-up: each visible before the next."""
        bits, rdata = self.bits, self.rdata
        beat = Signal(3)
        info = self.tag_info.read(rdata.tag[:log2_int(READS)])
        wqe  = Record(RECV_WQE_LAYOUT)
        for name in ("wr_id", "num_sge", "va", "length", "lkey"):
            entry = abi.field(abi.RECV_WQE, name)
            low   = entry.lsb
            self.comb += getattr(wqe, name).eq(rdata.data[low:low + entry.width])
        self.comb += [
            wqe.err.eq(rdata.err != 0),
            rdata.ready.eq(1),
            self.cache_write.we.eq(rdata.valid),
            self.cache_write.adr.eq(Cat((info.slot + beat)[:log2_int(CACHE_DEPTH)], info.index)),
            self.cache_write.dat_w.eq(wqe.raw_bits()),
            self.tag_return.valid.eq(rdata.valid & rdata.last),
            self.tag_return.tag.eq(rdata.tag),
        ]
        self.sync += If(rdata.valid, beat.eq(Mux(rdata.last, 0, beat + 1)))

        # Clock 1: counter. A clear never meets a return of its own queue, but may meet another's: wait in a FIFO.
        self.returned = returned = stream.SyncFIFO([("index", bits)], 8)
        self.submodules += counted(returned, "beats: one a clock, held back only in the clock of a clear")
        count = self.done.read(returned.source.index)
        step  = Signal()
        self.comb += [
            returned.sink.valid.eq(rdata.valid),
            returned.sink.index.eq(info.index),
            step.eq(returned.source.valid & ~self.clear),
            returned.source.ready.eq(step),
        ]
        self._drive(self.done, step, returned.source.index, count + 1)

        # Clock 2: wake-up. Each parked QP waits for one queue, so the FIFO holds all there can be. A queue that is taken
        # away wakes its QP too: the packet finds no receive then, and does not hold a parking place for ever.
        self.wakes = wakes = stream.SyncFIFO([("qpi", QPI_WIDTH)], self.n_rqs, buffered=True)
        self.submodules += counted(wakes, "queues with a QP that waits: n_rqs (`waiting`)")
        check, index = Signal(), Signal(bits)
        place = Signal(bits)
        awake = Signal()
        self.settled = Signal()                  # no look at a queue is under way: a clear may have its place.
        self.sync += check.eq(step), index.eq(returned.source.index)
        self.comb += [
            self.settled.eq(~check),
            place.eq(Mux(self.clear, self.clear_index, index)),
            awake.eq((check | self.clear) & self.waiting.read(place)),
            self.waiting.clear.eq(awake),
            self.waiting.clear_adr.eq(place),
            wakes.sink.valid.eq(awake),
            wakes.sink.qpi.eq(self.waiter.read(place)),
            self.wake.valid.eq(wakes.source.valid),
            self.wake.qpi.eq(wakes.source.qpi),
            wakes.source.ready.eq(self.wake.ready),
        ]

    def _add_take(self):
        """The head's WQE is read ahead; taking it is one clock's decision."""
        port, bits = self.port, self.bits
        index     = port.index[:bits]
        producer, done, head = self.producer.read(index), self.done.read(index), self.head.read(index)
        row, mode = self.config.read(index), self.flush.read(index).mode
        allowed   = Signal()
        inside    = 1 if bits == QPI_WIDTH else port.index[bits:] == 0
        peek_head = self.head.read(port.peek[:bits])
        self.comb += [
            self.cache_read.adr.eq(Cat(peek_head[:log2_int(CACHE_DEPTH)], port.peek[:bits])),
            allowed.eq(port.take & row.enable & (mode == MODE_RUN) & inside),
            port.got.eq(allowed & (done != head)),
            port.park.eq(allowed & (done == head) & (producer != head)),
            self.waiting.set.eq(port.park), self.waiting.set_adr.eq(index),
            self.waiter.we.eq(port.park | self.clear),
            self.waiter.adr.eq(Mux(self.clear, self.clear_index, index)),
            self.waiter.row.eq(Mux(self.clear, 0, port.qpi)),
        ]
        self.sync += [
            port.wqe.raw_bits().eq(self.cache_read.dat_r),
            port.slot.eq(head & ((1 << row.log2) - 1)),
        ]
        self.take_head = head

    def _add_manager(self):
        """Geometry writes, resets and flushes; none of it in a hurry. A scanner looks for queues to flush."""
        port, bits, write, ctl, cqe = self.port, self.bits, self.write, self.ctl, self.cqe
        scan    = Signal(bits)          # queue under the scanner, or the one being written or reset.
        row     = self.flush.read(scan)
        config  = self.config.read(scan)
        fetch, done, head = self.fetch.read(scan), self.done.read(scan), self.head.read(scan)
        is_write, popped, wqe = Signal(), Signal(), Record(RECV_WQE_LAYOUT)
        settle  = Signal(3)

        self.fsm = fsm = FSM(reset_state="SCAN")
        fsm.act("SCAN",
            If(self.ready,
                If(write.valid,
                    NextValue(scan, write.index), NextValue(is_write, 1), NextState("HOLD"),
                ).Elif(ctl.valid,
                    NextValue(scan, ctl.index), NextValue(is_write, 0),
                    If(ctl.op == RQ_CTL_RESET, NextState("HOLD")).Else(NextState("FLUSH-ON")),
                ).Elif((row.mode == MODE_FLUSH) & (done != head),
                    NextState("FLUSH-READ"),
                ).Else(
                    NextValue(scan, scan + 1),
                )
            )
        )
        # No further reads; wait until what was asked for has come.
        fsm.act("HOLD",
            self.flush.we.eq(1),
            self.flush.row.mode.eq(MODE_HOLD),
            NextState("SETTLE"),
        )
        # Turns of the fetcher that began before.
        fsm.act("SETTLE",
            NextValue(settle, settle + 1),
            If(settle == 7, NextState("DRAIN"))
        )
        fsm.act("DRAIN",
            If(fetch == done, NextState("CLEAR"))
        )
        fsm.act("CLEAR",
            # The responder's take and this clock's clear would meet at the head counter's write port.
            If(~port.take & self.settled,
                self.clear.eq(1),
                self.flush.we.eq(1),
                self.flush.row.mode.eq(MODE_RUN),
                self.config.we.eq(is_write),
                write.ready.eq(is_write),
                ctl.ready.eq(~is_write),
                self.ctl_done.eq(~is_write),
                NextState("SCAN"),
            )
        )
        fsm.act("FLUSH-ON",
            self.flush.we.eq(1),
            self.flush.row.mode.eq(MODE_FLUSH), self.flush.row.qpn.eq(ctl.qpn), self.flush.row.cqn.eq(ctl.cqn),
            ctl.ready.eq(1),
            self.ctl_done.eq(1),
            NextState("SCAN"),
        )
        fsm.act("FLUSH-READ",
            If(~port.peeking, NextState("FLUSH-LOAD"))
        )
        fsm.act("FLUSH-LOAD",
            NextValue(wqe.raw_bits(), self.cache_read.dat_r),
            NextState("FLUSH"),
        )
        fsm.act("FLUSH",
            cqe.valid.eq(1),
            If(cqe.ready, NextState("FLUSH-POP"))
        )
        fsm.act("FLUSH-POP",
            If(~port.take,
                popped.eq(1),
                NextState("SCAN"),
            )
        )
        self.comb += [
            If(fsm.ongoing("FLUSH-READ") & ~port.peeking,
                self.cache_read.adr.eq(Cat(head[:log2_int(CACHE_DEPTH)], scan))
            ),
            self.clear_index.eq(scan),
            self.flush.adr.eq(scan),
            self.config.adr.eq(scan),
            [getattr(self.config.row, name).eq(getattr(write, name)) for name, _ in self.config.layout],
            cqe.cqn.eq(row.cqn), cqe.wr_id.eq(wqe.wr_id), cqe.qpn.eq(row.qpn),
            cqe.status.eq(ERRORS["FLUSH"].local_status), cqe.vendor_err.eq(ERRORS["FLUSH"].index),
            cqe.opcode.eq(WC_RECV),
            cqe.slot.eq(head & ((1 << config.log2) - 1)),
            cqe.solicited.eq(1),
        ]
        self._drive(self.head, port.got | popped, Mux(popped, scan, port.index[:bits]), Mux(popped, head, self.take_head) + 1)
        self.comb += [
            self.room_trigger.sink.valid.eq((port.got | popped) & ~self.clear),
            self.room_trigger.sink.index.eq(Mux(popped, scan, port.index[:bits])),
        ]
