# SPDX-License-Identifier: BSD-2-Clause
"""What waits for a page of memory whose translation is not on chip: queue pairs, and their records in order.

Ref: doc/architecture.md, "A page that is not on chip". An access that misses is asked again; only its own QP waits.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.bounds import Bound, counted
from roce_soc.table import InitWalker, KickQueue, Table, clocked_port, kick_description

PATIENCE = 1024     # clocks after which the oldest QP asks again without having been woken.
HURRY    = 8        # clocks that a record waits for a gap before one is made for it.


# MissQueue ----------------------------------------------------------------------------------------

class MissQueue(LiteXModule):
    """QPs whose access missed, oldest first: each asks again when a page has come.

    A page that comes while its miss is still on its way here wakes nobody, so the oldest QP asks again after PATIENCE
    clocks all the same: to wait never depends on a wake alone.

    Parameters
    ----------
    n_qps : int

    Endpoints
    ---------
    urgent : {valid, qpi}, in
        A QP that missed; always taken.
    wake : in
        Pulse: a page has come. All that are queued may ask again.
    source : kick_description(), out

    Latency: wake to the first QP 1 clock, then one a clock.
    Errors : none.
    """
    def __init__(self, n_qps):
        self.wake   = Signal()
        self.kicks  = kicks = KickQueue(n_qps, 0)
        self.urgent = kicks.urgent
        self.source = source = stream.Endpoint(kick_description())
        self.ready  = kicks.ready

        # # #

        woken, waited, leaves = Signal(max=n_qps + 1), Signal(max=PATIENCE), Signal()
        self.comb += [
            kicks.source.connect(source, omit={"valid", "ready"}),
            source.valid.eq(kicks.source.valid & (woken != 0)),
            kicks.source.ready.eq(source.ready & (woken != 0)),
            leaves.eq(source.valid & source.ready),
        ]
        self.sync += [
            If(self.wake,
                woken.eq(kicks.fifo.level - leaves),
            ).Elif(leaves,
                woken.eq(woken - 1),
            ).Elif((woken == 0) & (waited == PATIENCE - 1),
                woken.eq(1),
            ),
            If(~kicks.source.valid | (woken != 0), waited.eq(0)).Elif(waited != PATIENCE - 1, waited.eq(waited + 1)),
        ]


# Deferred -----------------------------------------------------------------------------------------

class Deferred(LiteXModule):
    """Records of QPs that wait for a page: a list for each QP, in order, of handles from one free list.

    The oldest record of a QP comes out when a page has come. Its owner executes it and says `passed`, whereupon the next
    one of the QP comes out, or `missed`, whereupon it waits again. Whatever else of the QP the owner meets while `waits`
    it has to append, that nothing overtakes.

    ::
        append, passed, missed ─► 1 place taken, record stored, list read ─► 2 list and links written ─► misses or nexts
        misses (woken), nexts  ─► head of the list ─► record ─► source

    Parameters
    ----------
    layout : list
        Fields of a record, qpi among them.
    n_qps : int
    depth : int
        Records of all QPs, a power of two. Who appends looks at `free` before he takes what may have to wait.
    weigh : function
        Of a record: what it holds of something that is short, an expression of 4 bits.

    Endpoints
    ---------
    append, passed, missed : in
        Of `record`'s QP; one of them a clock.
    miss : in
        With append: its page is missing; else it waits for those before it.
    record : Record of layout, in
        What is appended; of the other two its qpi, and what `weigh` looks at.
    source : layout, out
        Taken when the owner begins the record anew; nothing else of this QP comes out before `passed` or `missed`.
    hurry : out
        The record at `source` has waited for some clocks: who gives gaps should make one.
    wake : in
        Pulse: a page has come.
    released : kick_description(), out
        QPs whose list has become empty.
    waits(qpi) : expression, same clock; from the clock behind `append` on, until two clocks behind the last `passed`.
    free : out
        Records that have a place left, up to two clocks ago.
    held : out
        Sum of what the records weigh.

    Latency: wake to source 3 clocks, passed to the QP's next record 5; a record every 3.
    Errors : none; a record without a place is a bound.
    """
    def __init__(self, layout, n_qps, depth, weigh=lambda record: 0):
        bits, handle_bits = log2_int(n_qps), log2_int(depth)
        self.append, self.passed, self.missed, self.miss = Signal(), Signal(), Signal(), Signal()
        self.record   = Record(layout)
        self.source   = source = stream.Endpoint(layout)
        self.hurry    = Signal()
        self.wake     = Signal()
        self.released = stream.Endpoint(kick_description())
        self.free     = Signal(max=depth + 1)
        self.held     = Signal(16)
        self.ready    = Signal()

        # # #

        self.bits    = bits
        list_layout  = [("head", handle_bits), ("tail", handle_bits)]
        self.waiting = waiting = Table(1, n_qps, distributed=True)
        self.lists   = lists   = Table(list_layout, n_qps, distributed=True)
        self.links   = links   = Table(handle_bits, depth, distributed=True)
        self.handles = handles = stream.SyncFIFO([("handle", handle_bits)], depth, buffered=True)
        self.misses  = misses  = MissQueue(n_qps)
        self.nexts   = nexts   = KickQueue(n_qps, 0)       # QPs whose next record may come out at once.
        self.walker  = walker  = InitWalker(depth)
        self.releases = releases = stream.SyncFIFO(kick_description(), depth, buffered=True)
        storage      = Memory(len(self.record.raw_bits()), depth)
        store, load  = storage.get_port(write_capable=True), clocked_port(storage, old_word=False)
        self.specials += storage, store, load
        op = [("append", 1), ("passed", 1), ("missed", 1), ("miss", 1)]
        self.first   = first  = Record(op, name="first")
        self.second  = second = Record(op + [("qpi", bits), ("handle", handle_bits), ("waits", 1)] + list_layout, name="second")
        record       = Record(layout)
        self.submodules += [
            counted(handles, "handles: depth, each in the list or in use"),
            counted(releases, "QPs whose list has become empty: one passed record each, depth at most until they are told"),
            Bound(first.append & ~handles.source.valid, "records: whoever appends keeps places by `free`"),
        ]

        # Step 1. What step 2 writes in this clock counts.
        weight, heavier, lighter = Signal(4), Signal(), Signal()
        qpi, same = record.qpi[:bits], Signal()
        entry, waits = lists.read(qpi), waiting.read(qpi)
        self.comb += [
            same.eq(second.qpi == qpi),
            handles.source.ready.eq(first.append),
            store.we.eq(first.append), store.adr.eq(handles.source.handle), store.dat_w.eq(record.raw_bits()),
        ]
        self.sync += [
            [getattr(first, name).eq(getattr(self, name)) for name, _ in op],
            record.eq(self.record),
            [getattr(second, name).eq(getattr(first, name)) for name, _ in op],
            second.qpi.eq(qpi),
            second.handle.eq(handles.source.handle),
            second.waits.eq(Mux(waiting.we & same, waiting.row, waits)),
            [getattr(second, name).eq(Mux(lists.we & same, getattr(lists.row, name), getattr(entry, name)))
                for name, _ in list_layout],
            weight.eq(weigh(record)), heavier.eq(first.append), lighter.eq(first.passed),
            self.held.eq(self.held + Mux(heavier, weight, 0) - Mux(lighter, weight, 0)),
        ]

        # Step 2.
        more = Signal()
        self.comb += [
            self.ready.eq(waiting.ready & lists.ready & links.ready & walker.ready & misses.ready & nexts.ready),
            self.free.eq(Mux(walker.ready, handles.level, 0)),
            more.eq(second.head != second.tail),
            handles.sink.valid.eq(~walker.ready | second.passed),
            handles.sink.handle.eq(Mux(walker.ready, second.head, walker.adr)),
            links.we.eq(second.append & second.waits), links.adr.eq(second.tail), links.row.eq(second.handle),
            waiting.we.eq(second.append | (second.passed & ~more)), waiting.adr.eq(second.qpi), waiting.row.eq(second.append),
            lists.we.eq(second.append | second.passed), lists.adr.eq(second.qpi),
            If(second.append,
                lists.row.head.eq(Mux(second.waits, second.head, second.handle)),
                lists.row.tail.eq(second.handle),
            ).Else(
                lists.row.head.eq(links.read(second.head)),
                lists.row.tail.eq(second.tail),
            ),
            # To `misses`: what missed again, and the first record of a list if it missed. To `nexts`: the rest of a list, and a
            # first record whose list was emptied between `waits` and here.
            misses.wake.eq(self.wake),
            misses.urgent.valid.eq(second.missed | (second.append & ~second.waits & second.miss)),
            nexts.urgent.valid.eq((second.passed & more) | (second.append & ~second.waits & ~second.miss)),
            [queue.urgent.qpi.eq(second.qpi) for queue in (misses, nexts)],
            releases.sink.valid.eq(second.passed & ~more), releases.sink.qpi.eq(second.qpi),
            releases.source.connect(self.released),
        ]

        # Way out.
        taken, state, waited = Signal(), Signal(2), Signal(max=HURRY)
        who, handle = Signal(bits), Signal(handle_bits)
        self.comb += [
            taken.eq((state == 0) & (misses.source.valid | nexts.source.valid)),
            nexts.source.ready.eq(state == 0),
            misses.source.ready.eq((state == 0) & ~nexts.source.valid),
            who.eq(Mux(nexts.source.valid, nexts.source.qpi, misses.source.qpi)),
            load.adr.eq(handle),
            source.valid.eq(state == 2),
            source.payload.raw_bits().eq(load.dat_r),
            source.first.eq(1), source.last.eq(1),
            self.hurry.eq(waited == HURRY - 1),
        ]
        self.sync += [
            If(taken, handle.eq(lists.read(who).head), state.eq(1)),
            If(state == 1, state.eq(2)),
            If(source.valid & source.ready, state.eq(0)),
            If(~source.valid | source.ready, waited.eq(0)).Elif(~self.hurry, waited.eq(waited + 1)),
        ]
        self.record_qpi = qpi

    def waits(self, qpi):
        """Expression: records of `qpi` wait."""
        first, second, qpi = self.first, self.second, qpi[:self.bits]
        return (self.waiting.read(qpi) | (first.append & (self.record_qpi == qpi))
            | (second.append & (second.qpi == qpi)))
