# SPDX-License-Identifier: BSD-2-Clause
"""Completion queues: rings of 32-byte CQEs in memory, consumer doorbells, arming, overflow.

Ref: InfiniBand Architecture vol. 1 ch. 10.2.6, 11.4.2 (completion queues, notification).
Not supported: resizing a CQ, moderation.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc import abi
from roce_soc.arbiter import Turns
from roce_soc.bounds import Bound, counted
from roce_soc.common import (
    DATA_BYTES, DEFAULT_QPS, MEMORY_CQE, PAGE_WIDTH, TARGET_WIDTH, cqe_description, ctl_description, doorbell_description,
    event_description, memory_command_description, memory_wack_description, memory_wdata_description, refusal_description,
    ring_write_description)
from roce_soc.errors import ERRORS
from roce_soc.table import KickQueue, Table
from roce_soc.verbs import WC_SUCCESS

OP_WRITE, OP_CONSUMER, OP_ARM, OP_CQE, OP_MARK, OP_KILL = range(6)
WRITES_OUTSTANDING = 16
# A client holds at most so many completions, and shows each within so many clocks.
CLIENT_HOLDS, CLIENT_SHOWS = 31, 7


def queue_layout():
    """Row of a completion queue. `dead`: it has a hole; `life` changes as it is written anew."""
    return [("valid", 1), ("target", TARGET_WIDTH), ("log2", 4), ("page", PAGE_WIDTH), ("addr", 64),
        ("producer", 16), ("consumer", 16), ("armed", 1), ("armed_solicited", 1),
        ("last_solicited", 15), ("dead", 1), ("life", 1)]


def cqe_bits(cqe, phase):
    """The 256 bits of a CQE (abi.CQE) from a cqe_description record and the phase bit."""
    at, out = 0, []
    for entry in abi.CQE:
        place = entry.lsb
        if place > at:
            out.append(C(0, place - at))
        out.append(phase if entry.name == "phase" else getattr(cqe, entry.name)[:entry.width])
        at = place + entry.width
    return Cat(*out, C(0, 8*abi.CQE_BYTES - at))


# CompletionQueues ---------------------------------------------------------------------------------

class CompletionQueues(LiteXModule):
    """Writes CQEs in index order and raises events for armed queues, after the CQE is visible.

    One pipeline owns the rows: geometry writes, doorbells and completions pass it one after the
    other; a row in the pipeline stalls only operations on the same queue.

    A queue that lost a completion has a hole that no doorbell mends: it is dead until it is written anew, raises CQ_ERR
    once, and every later completion for it takes its QP to ERR. An armed queue keeps both requests, for the next
    completion and for the next solicited one, until one event answers them.

    Parameters
    ----------
    n_cqs, n_qps : int
        Queues, a power of two from 2 to 4096; QPs.

    Endpoints
    ---------
    get_port() : cqe_description(), in
        Completions of one client, in its order.
    write : ring_write_description(), in
        Geometry from the command port; resets the queue's indices.
    doorbell : doorbell_description(), in
        Kinds CQ (consumer index, free running 16 bits) and CQ_ARM (low 15 bits of it, bit 15: solicited only).
    ctl : ctl_description(), in; ctl_done : pulse, out
        Done when every completion that a client held is in memory: behind the RESET of a QP none of it comes any more.
    wcmd, wdata, wack : memory write port
        One 32-byte write a CQE.
    event : event_description(), out
        EVENT_COMPLETION of an armed queue, EVENT_CQ_ERR on overflow or when a CQE could not be written.
    fatal : event_description(), out
        QPs of which a completion was lost, each once until taken, for the command port.
    refusal : refusal_description(), out
        CQ_OVERFLOW, DOORBELL.
    outcome : {valid, client, lost}, out
        A good completion (status 0) of a client, by its port's number, has its place in the queue, or is lost; in its order.

    Latency: 4 clocks from a completion to its write command; one completion a clock, three on one queue.
    Errors : overflow is judged against the consumer index: the CQE is not written, its QP fails, the queue is dead. A CQE
        that memory refused does the same to its queue and to the QPs whose completions lie behind it.
    """
    def __init__(self, n_cqs, n_qps=DEFAULT_QPS):
        if n_cqs < 2 or n_cqs > 4096 or n_cqs & (n_cqs - 1):
            raise ValueError(f"n_cqs must be a power of two from 2 to 4096, not {n_cqs!r}")
        self.n_cqs    = n_cqs
        self.n_qps    = n_qps
        self.sinks    = []
        self.write    = stream.Endpoint(ring_write_description())
        self.doorbell = stream.Endpoint(doorbell_description())
        self.wcmd     = stream.Endpoint(memory_command_description())
        self.wdata    = stream.Endpoint(memory_wdata_description())
        self.wack     = stream.Endpoint(memory_wack_description())
        self.event    = stream.Endpoint(event_description())
        self.fatal    = stream.Endpoint(event_description())
        self.refusal  = stream.Endpoint(refusal_description())
        self.ctl      = stream.Endpoint(ctl_description())
        self.ctl_done = Signal()
        self.outcome  = Record([("valid", 1), ("client", 2), ("lost", 1)])
        self.ready    = Signal()

    def get_port(self, held=None):
        """A new client port. `held`: completions that the client holds behind it, CLIENT_HOLDS at most: the drain relies on it."""
        sink = stream.Endpoint(cqe_description())
        self.sinks.append(sink)
        if held is not None:
            most = 2**value_bits_sign(held)[0] - 1
            if most > CLIENT_HOLDS:
                raise ValueError(f"a client must hold at most {CLIENT_HOLDS} completions, not {most}")
            hidden = Signal(max=CLIENT_SHOWS + 2)      # clocks in which it has one and shows none.
            self.sync += If(sink.valid | (held == 0), hidden.eq(0)).Elif(hidden <= CLIENT_SHOWS, hidden.eq(hidden + 1))
            self.submodules += Bound(hidden > CLIENT_SHOWS, "a completion that a client holds is shown within CLIENT_SHOWS clocks")
        return sink

    def do_finalize(self):
        bits = log2_int(self.n_cqs)

        # Rows.
        row_layout = queue_layout()
        row, new = Record(row_layout), Record(row_layout)
        self.rows = rows = Table(row_layout, self.n_cqs)
        rd        = rows.get_port(old_word=False)       # `hazard` holds an operation on a row that is being changed.
        # A QP that lost a completion has work whose end its user never hears of.
        self.losers = losers = KickQueue(self.n_qps, 1)
        # Queues with a CQE that memory refused: what lies behind it is out of the user's sight.
        self.broken = broken = Table(1, self.n_cqs, distributed=True)
        # A refused write on its way to its queue's row.
        self.kill   = kill = Record([("valid", 1), ("cqn", bits), ("life", 1), ("err", 3)])
        self.kill_event = Signal()
        self.comb += [
            self.ready.eq(rows.ready & losers.ready & broken.ready),
            self.fatal.valid.eq(losers.source.valid),
            self.fatal.first.eq(1), self.fatal.last.eq(1),
            self.fatal.type.eq(abi.EVENT_QP_FATAL),
            self.fatal.queue.eq(losers.source.qpi),
            self.fatal.info.eq(ERRORS["CQ_OVERFLOW"].index),
            losers.source.ready.eq(self.fatal.ready),
        ]

        # Stage A: geometry first, then doorbells, then completions round robin.
        op_layout = [("kind", 3), ("client", 2), ("cqn", bits), ("known", 1), ("page", PAGE_WIDTH), ("index", 16),
            ("geometry", len(row.raw_bits())), ("cqe", len(Record(cqe_description().payload_layout).raw_bits()))]
        a, b, c   = Record(op_layout), Record(op_layout), Record(op_layout)
        a_valid, b_valid, c_valid = Signal(), Signal(), Signal()
        self.turns = turns = Turns(max(len(self.sinks), 1))
        room, hazard, go = Signal(), Signal(), Signal()
        kill_begun = Signal()
        self.comb += [turns.request[i].eq(s.valid) for i, s in enumerate(self.sinks)]
        geometry = Record(row_layout)
        self.comb += [
            geometry.valid.eq(self.write.enable),
            [getattr(geometry, n).eq(getattr(self.write, n)) for n in ("target", "log2", "page", "addr")],
        ]
        granted = Record(cqe_description().payload_layout)
        granted_valid = Signal()
        self.comb += Case(turns.grant, {i: [
            granted_valid.eq(s.valid),
            granted.raw_bits().eq(Cat(*[getattr(s, n) for n, _ in cqe_description().payload_layout])),
        ] for i, s in enumerate(self.sinks)})
        doorbell, drained = self.doorbell, Signal()
        self.comb += [
            hazard.eq((b_valid & (b.cqn == a.cqn)) | (c_valid & (c.cqn == a.cqn))),
            # A kill needs no room behind it: the writes it follows wait for it.
            go.eq(self.ready & a_valid & (room | kill.valid) & ~hazard),
            a.client.eq(turns.grant),
            a.cqe.eq(granted.raw_bits()),
            a.geometry.eq(geometry.raw_bits()),
            a.page.eq(doorbell.page),
            a.index.eq(doorbell.index),
            rd.adr.eq(a.cqn),
            If(kill.valid,
                # Once: its row is in the pipeline then.
                a_valid.eq(~kill_begun),
                a.kind.eq(OP_KILL),
                a.cqn.eq(kill.cqn),
                a.known.eq(1),
            ).Elif(self.write.valid,
                a_valid.eq(1),
                a.kind.eq(OP_WRITE),
                a.cqn.eq(self.write.index),
                a.known.eq(1),
                self.write.ready.eq(go),
            ).Elif(self.ctl.valid & drained,
                a_valid.eq(1),
                a.kind.eq(OP_MARK),
                self.ctl.ready.eq(go),
            ).Elif(doorbell.valid,
                a_valid.eq(1),
                a.kind.eq(Mux(doorbell.kind == abi.DOORBELL_CQ_ARM//4, OP_ARM, OP_CONSUMER)),
                a.cqn.eq(doorbell.queue),
                a.known.eq(doorbell.queue < self.n_cqs),
                doorbell.ready.eq(go),
            ).Else(
                # A grant that points at an idle client starts nothing.
                a_valid.eq(granted_valid),
                a.kind.eq(OP_CQE),
                a.cqn.eq(granted.cqn),
                a.known.eq(granted.cqn < self.n_cqs),
                [If(turns.grant == i, s.ready.eq(go & s.valid)) for i, s in enumerate(self.sinks)],
            ),
            # The grant moves on after each completion, and looks for a client while it has none.
            turns.next.eq(~kill.valid & ~self.write.valid & ~(self.ctl.valid & drained) & ~doorbell.valid & (go | ~granted_valid)),
        ]
        self._add_drain(drained)
        self.sync += [
            b_valid.eq(go), b.eq(a), c_valid.eq(b_valid), c.eq(b),
            kill_begun.eq(kill.valid & (kill_begun | go)),
        ]

        # Stage C: the row is here.
        cqe    = Record(cqe_description().payload_layout)
        q      = rd.row
        used   = Signal(16)
        full, usable, solicited, fire = Signal(), Signal(), Signal(), Signal()
        beyond, beyond_solicited      = Signal(15), Signal(15)
        out_layout = [("write", 1), ("mark", 1), ("target", TARGET_WIDTH), ("addr", 64), ("cqe", 256), ("fire", 1),
            ("type", 8), ("cqn", bits), ("life", 1)]
        self.out   = out = stream.SyncFIFO(out_layout, 8)
        self.submodules += counted(out, "completions in the pipeline: `room`")
        mask       = Signal(16)
        bad_bell, lost = Signal(), Signal()
        waiting    = Signal()
        self.comb += [
            room.eq(out.level <= 8 - 4),
            cqe.raw_bits().eq(c.cqe),
            new.eq(q),
            mask.eq((1 << q.log2) - 1),
            used.eq(q.producer - q.consumer),
            full.eq(used > mask),
            usable.eq(q.valid & c.known),
            solicited.eq(cqe.solicited | (cqe.status != 0)),
            beyond.eq(q.producer[:15] - c.index[:15]),
            beyond_solicited.eq(q.last_solicited - c.index[:15]),
            # The index has 15 bits: with 2^15 entries unread it cannot tell all read from none. Then the event comes.
            waiting.eq(used[15] & (beyond == 0) | Mux(c.index[15], (beyond_solicited != 0) & (beyond_solicited <= beyond), beyond != 0)),
            broken.we.eq(c_valid & c.known & ((c.kind == OP_WRITE) | ((c.kind == OP_KILL) & (q.life == kill.life)))),
            broken.adr.eq(c.cqn),
            broken.row.eq(c.kind == OP_KILL),
            self.outcome.valid.eq(c_valid & (c.kind == OP_CQE) & (cqe.status == WC_SUCCESS)),
            self.outcome.client.eq(c.client),
            self.outcome.lost.eq(lost),
            rows.adr.eq(c.cqn),
            rows.row.eq(new),
            rows.we.eq(c_valid & c.known),
            out.sink.target.eq(q.target),
            out.sink.addr.eq(q.addr + ((q.producer & mask) << log2_int(abi.CQE_BYTES))),
            out.sink.cqe.eq(cqe_bits(cqe, ~((q.producer >> q.log2) & 1) & 1)),
            out.sink.cqn.eq(c.cqn),
            out.sink.life.eq(q.life),
            out.sink.type.eq(abi.EVENT_COMPLETION),
            If(c_valid,
                Case(c.kind, {
                    OP_WRITE: [new.raw_bits().eq(c.geometry), new.life.eq(~q.life)],
                    OP_CONSUMER: [
                        If(usable & (q.page == c.page) & (((c.index - q.consumer) & 0xffff) <= used),
                            new.consumer.eq(c.index),
                        ).Else(bad_bell.eq(1)),
                    ],
                    OP_ARM: [
                        If(usable & (q.page == c.page),
                            out.sink.valid.eq(waiting),
                            out.sink.fire.eq(1),
                            If(waiting,
                                new.armed.eq(0), new.armed_solicited.eq(0),
                            ).Elif(c.index[15],
                                new.armed_solicited.eq(1),
                            ).Else(
                                new.armed.eq(1),
                            ),
                        ).Else(bad_bell.eq(1)),
                    ],
                    OP_MARK: [out.sink.valid.eq(1), out.sink.mark.eq(1)],
                    OP_CQE: [
                        If(usable & ~full & ~q.dead,
                            fire.eq(q.armed | (q.armed_solicited & solicited)),
                            new.producer.eq(q.producer + 1),
                            If(solicited, new.last_solicited.eq(q.producer[:15] + 1)),
                            If(fire, new.armed.eq(0), new.armed_solicited.eq(0)),
                            out.sink.valid.eq(1),
                            out.sink.write.eq(1),
                            out.sink.fire.eq(fire),
                        ).Else(
                            lost.eq(1),
                            new.dead.eq(1),
                            out.sink.valid.eq(~q.dead),
                            out.sink.fire.eq(1),
                            out.sink.type.eq(abi.EVENT_CQ_ERR),
                        ),
                    ],
                    OP_KILL: If(q.life == kill.life, new.dead.eq(1), self.kill_event.eq(~q.dead)),
                    "default": [],
                })
            )
        ]
        self.sync += If(c_valid & (c.kind == OP_KILL), kill.valid.eq(0))
        self.comb += [
            self.refusal.first.eq(1), self.refusal.last.eq(1),
            losers.urgent.valid.eq(lost),
            losers.urgent.qpi.eq(cqe.qpn),
        ]
        self.sync += [
            self.refusal.valid.eq(bad_bell | lost),
            self.refusal.row.eq(Mux(lost, ERRORS["CQ_OVERFLOW"].index, ERRORS["DOORBELL"].index)),
            self.refusal.qpn.eq(cqe.qpn),
            self.refusal.psn.eq(0),
            self.refusal.opcode.eq(cqe.opcode),
            self.refusal.info.eq(Cat(C(0, 16), c.cqn)),
        ]
        self._do_write(out, bits)

    def _add_drain(self, drained):
        """What each client held when `ctl` came has been taken: it was idle for a while, or gave all it can hold."""
        over = []
        for sink in self.sinks:
            given, idle, empty = Signal(max=CLIENT_HOLDS + 1), Signal(max=CLIENT_SHOWS + 1), Signal()
            self.sync += If(~self.ctl.valid | self.ctl.ready,
                given.eq(0), idle.eq(0), empty.eq(0),
            ).Else(
                If(sink.valid, idle.eq(0)).Elif(idle != CLIENT_SHOWS, idle.eq(idle + 1)),
                If(sink.valid & sink.ready & (given != CLIENT_HOLDS), given.eq(given + 1)),
                If((idle == CLIENT_SHOWS) | (given == CLIENT_HOLDS), empty.eq(1)),
            )
            over.append(empty)
        self.comb += [drained.eq(Reduce("AND", over)) if over else drained.eq(1)]

    def _do_write(self, out, bits):
        """Issues each write as command and beat together; the event follows the acknowledge."""
        self.acks = acks = stream.SyncFIFO(
            [("write", 1), ("mark", 1), ("fire", 1), ("type", 8), ("cqn", bits), ("life", 1),
             ("qpi", log2_int(self.n_qps))], WRITES_OUTSTANDING)
        # Events wait here so that acknowledges are always taken.
        self.events = events = stream.SyncFIFO(event_description(), 2*WRITES_OUTSTANDING)
        self.submodules += counted(events, "an event for each write outstanding, and one of a queue that died: `take`")
        cmd_done, data_done = Signal(), Signal()
        cmd_ok, data_ok, take = Signal(), Signal(), Signal()
        tag  = Signal(log2_int(WRITES_OUTSTANDING))
        lane = Signal(max=DATA_BYTES)
        item = out.source
        self.comb += [
            lane.eq(item.addr[:6]),
            self.wcmd.valid.eq(item.valid & item.write & ~cmd_done & acks.sink.ready),
            self.wcmd.first.eq(1), self.wcmd.last.eq(1),
            self.wcmd.target.eq(item.target),
            self.wcmd.addr.eq(item.addr),
            self.wcmd.length.eq(abi.CQE_BYTES),
            self.wcmd.kind.eq(MEMORY_CQE),
            self.wcmd.tag.eq(tag),
            self.wdata.valid.eq(item.valid & item.write & ~data_done & acks.sink.ready),
            self.wdata.first.eq(1), self.wdata.last.eq(1),
            self.wdata.data.eq(Replicate(item.cqe, 2)),
            self.wdata.be.eq(Mux(lane[5], 0xffffffff << 32, 0xffffffff)),
            cmd_ok.eq(cmd_done | (self.wcmd.valid & self.wcmd.ready)),
            data_ok.eq(data_done | (self.wdata.valid & self.wdata.ready)),
            # An event for each outstanding acknowledge has its place before the write is finished.
            take.eq(item.valid & acks.sink.ready & (self.events.level <= WRITES_OUTSTANDING)
                & (~item.write | (cmd_ok & data_ok))),
            item.ready.eq(take),
            acks.sink.valid.eq(take),
            [getattr(acks.sink, n).eq(getattr(item, n)) for n in ("write", "mark", "fire", "type", "cqn", "life")],
            acks.sink.qpi.eq(item.cqe[8*abi.field(abi.CQE, "qpn").byte:]),
        ]
        self.sync += If(take,
            cmd_done.eq(0), data_done.eq(0), tag.eq(tag + item.write),
        ).Elif(item.valid & item.write,
            cmd_done.eq(cmd_ok), data_done.eq(data_ok),
        )
        # Acknowledges wait while what is no write, an event or a mark, leaves between two writes.
        self.wacks = wacks = stream.SyncFIFO(memory_wack_description(), WRITES_OUTSTANDING)
        self.submodules += counted(wacks, "acknowledges: WRITES_OUTSTANDING, each has its entry in `acks`")
        failed, unseen, pop = Signal(), Signal(), Signal()
        loser, kill = self.losers.kicks[0], self.kill
        self.comb += [
            self.wack.connect(wacks.sink),
            pop.eq(acks.source.valid & (~acks.source.write | wacks.source.valid) & (~unseen | loser.ready) & ~kill.valid),
            loser.valid.eq(acks.source.valid & wacks.source.valid & unseen & ~kill.valid),
            loser.qpi.eq(acks.source.qpi),
            wacks.source.ready.eq(pop & acks.source.write),
            acks.source.ready.eq(pop),
            self.ctl_done.eq(pop & acks.source.mark),
            failed.eq(acks.source.write & (wacks.source.err != 0)),
            unseen.eq(failed | (acks.source.write & self.broken.read(acks.source.cqn))),
            # A refused write has no event of its own; that of its queue takes the place, once the row is marked.
            events.sink.valid.eq(pop & acks.source.fire & ~unseen | self.kill_event),
            events.sink.type.eq(Mux(self.kill_event, abi.EVENT_CQ_ERR, acks.source.type)),
            events.sink.queue.eq(Mux(self.kill_event, kill.cqn, acks.source.cqn)),
            events.sink.info.eq(Mux(self.kill_event, kill.err, 0)),
            events.source.connect(self.event),
        ]
        self.sync += If(pop & failed,
            kill.valid.eq(1), kill.cqn.eq(acks.source.cqn), kill.life.eq(acks.source.life), kill.err.eq(wacks.source.err),
        )
