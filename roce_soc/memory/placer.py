# SPDX-License-Identifier: BSD-2-Clause
"""Payload placement: moves packet payloads from the packet buffer to memory, rotated once.

Not supported: page tables (a packet's bytes are contiguous), several targets in parallel.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.arbiter import Turns
from roce_soc.bounds import counted
from roce_soc.common import (
    DATA_BYTES, DATA_WIDTH, IN_FLIGHT, MEM_ERR_WIDTH, PAGE_BYTES, QPI_WIDTH, TAG_WIDTH,
    memory_command_description, place_description, place_done_description, where_description)
from roce_soc.memory.port import MemoryWritePort
from roce_soc.table import BypassFIFO

RECORDS = IN_FLIGHT   # place records that may wait for their acknowledges.
PAGE_BEATS = PAGE_BYTES//DATA_BYTES


class PlacerPort:
    """Client port: `sink` (place_description), `done` (place_done_description).

    With `late` the addresses come behind the records, that packets may leave the buffer while their keys are
    checked: `where` has one item for each record of a length other than 0, in order. Without `write` the
    packet is dropped, or with `keep` stays in the buffer; its done has no error.
    """
    def __init__(self, late):
        self.late  = late
        self.sink  = stream.Endpoint(place_description())
        self.where = stream.Endpoint(where_description())
        self.done  = stream.Endpoint(place_done_description())


def rotations(data, amount, bits):
    """`data` rotated towards higher lanes by each value of `amount` times 2^bits bytes, as a list."""
    n = len(data)
    out = []
    for value in range(1 << len(amount)):
        shift = 8*(value << bits) % n
        out.append(Cat(data[n - shift:], data[:n - shift]) if shift else data)
    return out


# PayloadPlacer ------------------------------------------------------------------------------------

class PayloadPlacer(LiteXModule):
    """Takes place records of its clients in turn, one order for all, and answers each client in its order.

    ::
        clients ─► issue ─► buffer.fetch
                     ├────► jobs ──► job ──► rotate ─► merge ─► wdata      buffer.data ─► rotate
                     ├────► wheres ──^ │  └─► wcmd (one per 4 KiB page)
                     └────► order ─► done  ◄── wack         counts: wcmds of the job

    A record without payload passes the order as well: its done comes after all earlier ones.

    Endpoints
    ---------
    get_port(late=False) : PlacerPort
    fetch, data, keep : packet buffer's fetch sink and data source; keep: the packet being taken stays there
    port : MemoryWritePort, out

    Latency: record to fetch none, address to first step 1 clock, first stored beat to wdata 2 clocks; max(beats
    stored, lines written) clocks a packet, no gap between packets.
    Errors : done.err is the first error of the packet's acknowledges.
    """
    def __init__(self, dw=DATA_WIDTH):
        self.clients = []
        self.fetch   = stream.Endpoint([("slot", 10), ("discard", 1)])
        self.data    = stream.Endpoint([("data", dw)])
        self.keep    = Signal()
        self.port    = MemoryWritePort(dw)
        self.quiet   = Signal()     # no record under way.
        self.dw      = dw

    def get_port(self, late=False):
        """A new client; `late`: it tells addresses behind its records."""
        port = PlacerPort(late)
        self.clients.append(port)
        return port

    def do_finalize(self):
        dw, n = self.dw, max(1, len(self.clients))

        # Issue: one record a clock when everybody has room.
        self.turns = turns = Turns(n)
        client_bits = bits_for(n - 1)
        job_layout  = [("offset", 6), ("length", 13), ("qpi", QPI_WIDTH), ("client", client_bits)]
        self.jobs   = jobs  = stream.SyncFIFO(job_layout, RECORDS)
        self.order  = order = BypassFIFO([("client", client_bits), ("empty", 1)], RECORDS)
        self.wheres = [BypassFIFO(where_description(), RECORDS) for _ in self.clients]
        self.submodules += self.wheres
        # Addresses that come with the records have as many places as the records; others wait for their own FIFO.
        self.submodules += [counted(where, "addresses: no more than records in `order`")
            for where, client in zip(self.wheres, self.clients) if not client.late]
        record     = Record(place_description().payload_layout)
        offered, able, taken = Signal(), Signal(), Signal()
        self.comb += [
            turns.request.eq(Cat(*[c.sink.valid for c in self.clients])),
            [If(turns.grant == i,
                offered.eq(c.sink.valid),
                [getattr(record, name).eq(getattr(c.sink, name)) for name, _ in record.layout],
                c.sink.ready.eq(able & (self.fetch.ready | ~record.has_slot)),
            ) for i, c in enumerate(self.clients)],
            able.eq(jobs.sink.ready & order.sink.ready),
            self.fetch.valid.eq(offered & able & record.has_slot),
            self.fetch.first.eq(1),
            self.fetch.last.eq(1),
            self.fetch.slot.eq(record.slot),
            self.fetch.discard.eq(record.length == 0),
            taken.eq(offered & able & (self.fetch.ready | ~record.has_slot)),
            turns.next.eq(taken | ~offered),
            jobs.sink.valid.eq(taken & (record.length != 0)),
            [getattr(jobs.sink, name).eq(getattr(record, name)) for name in ("offset", "length", "qpi")],
            jobs.sink.client.eq(turns.grant),
            order.sink.valid.eq(taken),
            order.sink.client.eq(turns.grant),
            order.sink.empty.eq(record.length == 0),
        ]
        for i, (client, where) in enumerate(zip(self.clients, self.wheres)):
            if client.late:
                self.comb += client.where.connect(where.sink)
            else:
                self.comb += [
                    where.sink.valid.eq(jobs.sink.valid & (turns.grant == i)),
                    where.sink.write.eq(1),
                    where.sink.target.eq(record.target),
                    where.sink.addr.eq(record.addr),
                ]
        self._do_job(jobs)
        self._do_data(self.job, dw)
        self._do_acknowledge(order)
        self.comb += self.quiet.eq(~order.source.valid & ~offered)

    def _do_job(self, jobs):
        """The next packet meets its address; how many commands it takes is told to the acknowledges."""
        self.job    = job = stream.Endpoint([("offset", 6), ("length", 13), ("qpi", QPI_WIDTH), ("crosses", 1)]
            + where_description().payload_layout)
        self.counts = counts = stream.SyncFIFO([("commands", 2)], 2*RECORDS)
        self.submodules += counted(counts, "packets with commands out: no more than records in `order`")
        where, crosses, load = stream.Endpoint(where_description()), Signal(), Signal()
        self.comb += [
            Case(jobs.source.client, {**{i: [
                where.valid.eq(fifo.source.valid), where.payload.eq(fifo.source.payload),
                fifo.source.ready.eq(load),
            ] for i, fifo in enumerate(self.wheres)}, "default": []}),
            load.eq(jobs.source.valid & where.valid & (~job.valid | job.ready)),
            jobs.source.ready.eq(load),
            crosses.eq((where.addr[:12] + jobs.source.length) > PAGE_BYTES),
            counts.sink.valid.eq(load),
            counts.sink.commands.eq(Mux(where.write, 1 + crosses, 0)),
        ]
        self.sync += [
            If(job.ready, job.valid.eq(0)),
            If(load,
                job.valid.eq(1),
                [getattr(job, name).eq(getattr(jobs.source, name)) for name in ("offset", "length", "qpi")],
                [getattr(job, name).eq(getattr(where, name)) for name in ("write", "keep", "target", "addr")],
                job.crosses.eq(crosses),
            ),
        ]

    def _do_data(self, job, dw):
        """Rotates stored beats to the lanes of memory and merges neighbours; commands go ahead by two clocks."""
        self.commands = commands = stream.SyncFIFO(memory_command_description(), 4)
        wdata  = self.port.wdata
        move   = Signal()
        self.comb += [
            move.eq(~wdata.valid | wdata.ready),
            commands.source.connect(self.port.wcmd),
        ]

        # Stage 0: one input beat, or the flush step behind the last one.
        lane, turn  = Signal(6), Signal(6)          # first lane in memory, rotation.
        lines       = Signal(7)                     # lines written by the packet.
        line        = Signal(7)                     # number of the line this step completes.
        began, flush = Signal(), Signal()
        early       = Signal()                      # the first beat completes a line by itself.
        step, emit, first_line, last_line = (Signal() for _ in range(4))
        page_line, page_first, page_last = Signal(6), Signal(), Signal()
        tag = Signal(TAG_WIDTH)
        self.comb += [
            self.keep.eq(job.keep),
            lane.eq(job.addr[:6]),
            turn.eq(lane - job.offset),
            lines.eq((lane + job.length + DATA_BYTES - 1) >> 6),
            early.eq(lane >= job.offset),
            step.eq(move & job.valid & (flush | self.data.valid) & (commands.sink.ready | ~page_first | ~emit)),
            emit.eq(job.write & (began | early)),
            first_line.eq(line == 0),
            last_line.eq(emit & (line == lines - 1)),
            self.data.ready.eq(step & ~flush),
            job.ready.eq(step & (flush | self.data.last) & (last_line | ~job.write)),
            page_line.eq(job.addr[6:12] + line),
            page_first.eq(first_line | (page_line == 0)),
            page_last.eq(last_line | (page_line == PAGE_BEATS - 1)),
            commands.sink.valid.eq(step & emit & page_first),
            commands.sink.first.eq(1),
            commands.sink.last.eq(1),
            commands.sink.target.eq(job.target),
            commands.sink.qpi.eq(job.qpi),
            commands.sink.tag.eq(tag),
            If(first_line,
                commands.sink.addr.eq(job.addr),
                commands.sink.length.eq(Mux(job.crosses, PAGE_BYTES - job.addr[:12], job.length)),
            ).Else(
                commands.sink.addr.eq(Cat(C(0, 12), job.addr[12:] + 1)),
                commands.sink.length.eq(job.addr[:12] + job.length - PAGE_BYTES),
            ),
        ]
        self.sync += If(step,
            If(emit, line.eq(line + 1)),
            began.eq(1),
            # Behind the last stored beat a line may be left.
            If(self.data.last & ~flush & ~last_line & job.write, flush.eq(1)),
            If(job.ready, began.eq(0), flush.eq(0), line.eq(0)),
            If(commands.sink.valid, tag.eq(tag + 1)),
        )

        # Stages 1 and 2: rotation by four-to-one choices; the second merges with the beat before.
        control = [("valid", 1), ("emit", 1), ("first", 1), ("last", 1), ("page_last", 1), ("page_first", 1),
            ("turn", 6), ("lane", 6), ("end", 6)]
        c1      = Record(control)
        d1, d2, d0 = Signal(dw), Signal(dw), Signal(dw)
        previous   = Signal(dw)
        coarse     = Signal(dw)
        self.comb += [
            d0.eq(self.data.data),
            Case(turn[4:6], {i: coarse.eq(choice) for i, choice in enumerate(rotations(d0, turn[4:6], 4))}),
        ]
        end = Signal(6)
        self.comb += end.eq(lane + job.length[:6])
        self.sync += If(move,
            c1.valid.eq(step), c1.emit.eq(emit), c1.first.eq(first_line), c1.last.eq(last_line),
            c1.page_first.eq(page_first), c1.page_last.eq(page_last),
            c1.turn.eq(turn), c1.lane.eq(lane), c1.end.eq(end),
            Case(turn[2:4], {i: d1.eq(choice) for i, choice in enumerate(rotations(coarse, turn[2:4], 2))}),
            If(c1.valid, previous.eq(d2)),
        )
        self.comb += Case(c1.turn[:2], {i: d2.eq(choice) for i, choice in enumerate(rotations(d1, c1.turn[:2], 0))})
        merged, be = Signal(dw), Signal(DATA_BYTES)
        for i in range(DATA_BYTES):
            self.comb += [
                merged[8*i:8*(i + 1)].eq(Mux(c1.turn > i, previous[8*i:8*(i + 1)], d2[8*i:8*(i + 1)])),
                be[i].eq(~(c1.first & (c1.lane > i)) & ~(c1.last & (c1.end != 0) & (c1.end <= i))),
            ]
        self.sync += If(move,
            wdata.valid.eq(c1.valid & c1.emit),
            wdata.data.eq(merged),
            wdata.be.eq(be),
            wdata.first.eq(c1.page_first),
            wdata.last.eq(c1.page_last),
        )

    def _do_acknowledge(self, order):
        """Counts acknowledges into the packet at the head of the order."""
        self.acks = acks = BypassFIFO([("err", MEM_ERR_WIDTH)], 2*RECORDS)
        self.submodules += counted(acks, "acknowledges: two commands at most for each record in `order`")
        seen, err = Signal(2), Signal(MEM_ERR_WIDTH)
        err_now, complete = Signal(MEM_ERR_WIDTH), Signal()
        enough, last = Signal(), Signal()
        ready  = Signal()
        counts = self.counts.source
        self.comb += [
            self.port.wack.ready.eq(1),
            acks.sink.valid.eq(self.port.wack.valid),
            acks.sink.err.eq(self.port.wack.err),
            err_now.eq(Mux(err != 0, err, Mux(acks.source.valid & ~enough, acks.source.err, 0))),
            enough.eq(order.source.empty | (counts.valid & (counts.commands == 0))),
            last.eq(counts.valid & (seen + 1 == counts.commands)),
            complete.eq(order.source.valid & (enough | (acks.source.valid & last))),
            counts.ready.eq(complete & ready & ~order.source.empty),
            acks.source.ready.eq(order.source.valid & ~enough & (ready | ~last)),
            order.source.ready.eq(complete & ready),
            [If(order.source.client == i,
                c.done.valid.eq(complete),
                ready.eq(c.done.ready),
            ) for i, c in enumerate(self.clients)],
            [[c.done.err.eq(err_now), c.done.first.eq(1), c.done.last.eq(1)] for c in self.clients],
        ]
        self.sync += [
            If(order.source.valid & order.source.ready,
                seen.eq(0),
                err.eq(0),
            ).Elif(acks.source.valid & acks.source.ready,
                seen.eq(seen + 1),
                err.eq(err_now),
            )
        ]
