# SPDX-License-Identifier: BSD-2-Clause
"""Entry of the responder: one packet of a QP in the check stage at a time, parking, control.

Ref: InfiniBand Architecture vol. 1 ch. 9.7.4 (requests of a QP execute in PSN order).
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.bounds import counted
from roce_soc.common import CTL_ERR, CTL_RESET, QPI_WIDTH, ctl_description, rx_packet_description
from roce_soc.packet.buffer import chunks_of
from roce_soc.table import InitWalker, Table, clocked_port
from roce_soc.transport.responder.layout import (
    PSEUDO_CTL, PSEUDO_KILL, PSEUDO_SILENT, kill_description, packet_layout, sum_or)

PARK_DEPTH   = 256   # parked packets of all QPs.
PARK_QP      = 192   # parked packets of a QP: more than 2 us of WRITEs of 64 bytes, which are 154.
PARK_RESERVE = 8     # places kept for packets that are in the check stage already.


# RequestEntry -------------------------------------------------------------------------------------

class RequestEntry(LiteXModule):
    """Lets packets into the check stage and keeps those that must wait for a receive WQE or a page.

    A packet whose receive WQE is posted but not on chip is parked; later packets of its QP queue up
    behind it, every other QP flows. The head of a QP's list stays there while it is tried again and
    leaves when it was executed. Packets of a QP that waits for a page (`put_off`) queue up without having been tried. A QP may
    have PARK_QP packets waiting, all together hold at most half of the packet buffer: what goes beyond is dropped, for its
    peer sends it again, and nobody else waits for it.

    Parameters
    ----------
    n_qps : int
    n_chunks : int
        Chunks of the packet buffer.

    Endpoints
    ---------
    sink : rx_packet_description(), in
    ctl : ctl_description(), in
        Taken (ready) when `ctl_done` says that it has taken effect everywhere. ERR and RESET first stop
        the QP and empty its parking list, then go in themselves.
    kill : kill_description(), in
        QP whose READ reply failed.
    silent : {qpi}, in
        QP that has answered its failure already and only has to stop.
    wake : {qpi}, in
        QPs whose receive WQE has come. released : {qpi}, in, QPs that do not wait for a page any more.
    held_more : in
        Chunks of the packet buffer that others hold of what waits.
    room : in
        The stages behind can take what is admitted now.
    stages : list of (valid, qpi), in
        What is in the check stage; the QP of a candidate must not be there.
    out : Record of packet_layout with out_valid
        What enters this clock.
    result_valid, result_park, result : in
        What leaves the check stage this clock and whether it must be parked.

    Latency: none for a packet that need not wait. One packet a clock.
    Errors : no parking place: BUFFER_FULL (the check stage says so).
    """
    def __init__(self, n_qps, n_chunks=512):
        self.sink   = stream.Endpoint(rx_packet_description())
        self.ctl    = stream.Endpoint(ctl_description())
        self.ctl_done = Signal()
        self.kill   = stream.Endpoint(kill_description())
        self.silent = stream.Endpoint([("qpi", QPI_WIDTH)])
        self.wake   = stream.Endpoint([("qpi", QPI_WIDTH)])
        self.released  = stream.Endpoint([("qpi", QPI_WIDTH)])
        self.held_more = Signal(16)
        self.room   = Signal()
        self.out, self.out_valid = Record(packet_layout()), Signal()
        self.result, self.result_valid, self.result_park = Record(packet_layout()), Signal(), Signal()
        self.ready  = Signal()
        self.parked = Signal(max=PARK_DEPTH + 1)      # for monitoring: 0 when idle.

        # # #

        self.n_qps, self.bits = n_qps, log2_int(n_qps)
        slot_bits   = log2_int(PARK_DEPTH)
        self.lists  = Table(
            [("parked", 1), ("head", slot_bits), ("tail", slot_bits), ("count", bits_for(PARK_QP))], n_qps, distributed=True)
        self.links  = Table(slot_bits, PARK_DEPTH, distributed=True)
        self.free   = stream.SyncFIFO([("slot", slot_bits)], PARK_DEPTH, buffered=True)
        self.tokens = stream.SyncFIFO([("qpi", QPI_WIDTH)], 2*PARK_DEPTH, buffered=True)
        self.submodules += counted(self.free, "places: PARK_DEPTH, each in the list or in use")
        self.submodules += counted(self.tokens, "turns: one a QP that has a packet parked; wake-ups leave half of the places")
        storage     = Memory(len(self.out.raw_bits()), PARK_DEPTH)
        self.store, self.load = storage.get_port(write_capable=True), clocked_port(storage)
        self.specials += storage, self.store, self.load
        self.limit  = n_chunks//2
        self.held   = Signal(max=n_chunks + 1)        # chunks of parked packets.
        self.walker = InitWalker(PARK_DEPTH)
        self.comb += self.ready.eq(self.lists.ready & self.links.ready & self.walker.ready)

    def connect_stages(self, stages, put_off):
        """Builds the entry on the check stage's (valid, qpi) pairs and on put_off(qpi), which says that a QP waits for a page."""
        self.stages, self.put_off = stages, put_off
        event, draining = self._add_results()
        self._add_injection()
        self._add_admission(event, draining)

    def busy(self, qpi):
        """Expression: a packet of `qpi` is in the check stage."""
        return sum_or(valid & (other == qpi) for valid, other in self.stages)

    def _add_results(self):
        """What leaves the check stage: new heads are parked, executed heads leave their list."""
        result, lists, bits = self.result, self.lists, self.bits
        park, leave = Signal(), Signal()
        entry = lists.read(result.qpi[:bits])
        drain = stream.Endpoint([("qpi", QPI_WIDTH)])
        more  = Signal()
        able  = Signal()
        self.park_now, self.leave_now, self.leave_entry = park, leave, entry
        self.comb += [
            park.eq(self.result_valid & self.result_park & ~result.parked),
            leave.eq(self.result_valid & ~self.result_park & result.parked),
            more.eq(leave & (entry.head != entry.tail)),
            # A QP with packets left gets another turn; wake-ups and drains come after it.
            self.tokens.sink.valid.eq(more | (able & (self.wake.valid | self.released.valid | drain.valid))),
            self.tokens.sink.qpi.eq(Mux(more, result.qpi, Mux(self.wake.valid, self.wake.qpi,
                Mux(self.released.valid, self.released.qpi, drain.qpi)))),
            # The other half of the FIFO is for those with packets left.
            able.eq(self.tokens.level < PARK_DEPTH),
            self.wake.ready.eq(~more & able),
            self.released.ready.eq(~more & ~self.wake.valid & able),
            drain.ready.eq(~more & ~self.wake.valid & ~self.released.valid & able),
            # Places.
            self.free.sink.valid.eq(~self.walker.ready | leave),
            self.free.sink.slot.eq(Mux(self.walker.ready, result.park, self.walker.adr)),
        ]
        return park | leave, drain

    def _add_injection(self):
        """The head of the list of the token's QP is read and offered to the check stage."""
        qpi   = self.tokens.source.qpi
        entry = self.lists.read(qpi[:self.bits])
        slot  = Signal(log2_int(PARK_DEPTH))
        state = Signal(2)
        self.inject, self.inject_valid, self.inject_taken = Record(packet_layout()), Signal(), Signal()
        held  = Signal(QPI_WIDTH)
        self.comb += [
            self.tokens.source.ready.eq((state == 0) & ~self.busy(qpi)),
            self.load.adr.eq(slot),
            self.inject.raw_bits().eq(self.load.dat_r),
            self.inject.parked.eq(1),
            # What was noted at its arrival is over.
            self.inject.drop.eq(0),
            self.inject.full.eq(0),
            self.inject.park.eq(slot),
            self.inject_valid.eq(state == 2),
        ]
        self.sync += [
            # A QP that waits for a page gets its turn when it is released.
            If((state == 0) & self.tokens.source.valid & self.tokens.source.ready & entry.parked & ~self.put_off(qpi),
                slot.eq(entry.head),
                held.eq(qpi),
                state.eq(1),
            ),
            If(state == 1, state.eq(2)),
            If(self.inject_taken, state.eq(0)),
        ]

    def _add_admission(self, event, drain):
        """Parked heads before kills before control before new packets."""
        bits, out, sink, lists = self.bits, self.out, self.sink, self.lists
        fresh, pseudo = Record(packet_layout()), Record(packet_layout())
        entry = lists.read(sink.qpi[:bits])
        places, longer, waits = Signal(), Signal(), Signal()
        fresh_go, append, drop, pseudo_valid, pseudo_go = (Signal() for _ in range(5))
        names = [f[0] for f in rx_packet_description().payload_layout if hasattr(fresh, f[0])]
        self.comb += [getattr(fresh, name).eq(getattr(sink, name)) for name in names]
        self.comb += [
            longer.eq(places & (~entry.parked | (entry.count != PARK_QP))),
            waits.eq(entry.parked | self.put_off(sink.qpi)),
            # Appending waits while a packet of this QP is in the check stage: that one is older and may be parked yet.
            append.eq(sink.valid & self.ready & waits & longer & ~event & (entry.parked | ~self.busy(sink.qpi))),
            drop.eq(waits & ~longer & ~event),
            fresh.drop.eq(waits),
            fresh.full.eq(~places),
            fresh_go.eq(sink.valid & self.ready & (~waits | drop) & self.room & ~self.inject_valid
                & ~pseudo_valid & ~self.busy(sink.qpi)),
            sink.ready.eq(fresh_go | append),
            pseudo_go.eq(pseudo_valid & self.ready & self.room & ~self.inject_valid & ~self.busy(pseudo.qpi)),
            self.inject_taken.eq(self.inject_valid & self.room & ~self.busy(self.inject.qpi)),
            self.out_valid.eq(self.inject_taken | pseudo_go | fresh_go),
            If(self.inject_valid,
                out.eq(self.inject),
            ).Elif(pseudo_valid,
                out.eq(pseudo),
            ).Else(
                out.eq(fresh),
            ),
            self.parked.eq(Mux(self.walker.ready, PARK_DEPTH - self.free.level, 0)),
        ]
        # Store, links and lists have one write port: in a clock with `event` the result has it, so `append` is off.
        result = self.result
        self.comb += [
            self.free.source.ready.eq(append | self.park_now),
            self.store.we.eq(append | self.park_now),
            self.store.adr.eq(self.free.source.slot),
            self.store.dat_w.eq(Mux(self.park_now, result.raw_bits(), fresh.raw_bits())),
            self.links.we.eq(append & entry.parked), self.links.adr.eq(entry.tail), self.links.row.eq(self.free.source.slot),
            lists.we.eq(append | event),
            lists.adr.eq(Mux(event, result.qpi[:bits], sink.qpi[:bits])),
            lists.row.parked.eq(1),
            lists.row.tail.eq(self.free.source.slot),
            lists.row.count.eq(Mux(entry.parked, entry.count + 1, 1)),
            If(self.park_now,
                lists.row.head.eq(self.free.source.slot),
                lists.row.count.eq(1),
            ).Elif(self.leave_now,
                lists.row.count.eq(self.leave_entry.count - 1),
                lists.row.parked.eq(self.leave_entry.head != self.leave_entry.tail),
                lists.row.head.eq(self.links.read(self.leave_entry.head)),
                lists.row.tail.eq(self.leave_entry.tail),
            ).Else(
                lists.row.head.eq(Mux(entry.parked, entry.head, self.free.source.slot)),
            ),
        ]
        held_in_all = Signal(len(self.held_more) + 1)
        self.comb += held_in_all.eq(self.held + self.held_more)
        self.sync += places.eq((self.free.level > PARK_RESERVE) & (held_in_all < self.limit))
        self.sync += self.held.eq(self.held + Mux(append, chunks_of(sink), Mux(self.park_now, chunks_of(result), 0))
            - Mux(self.leave_now, chunks_of(result), 0))
        self._add_control(pseudo, pseudo_valid, pseudo_go, drain)

    def _add_control(self, pseudo, pseudo_valid, pseudo_go, drain):
        """Pseudo-packets: kills from two sides, and the control sequence."""
        ctl, kill, silent = self.ctl, self.kill, self.silent
        entry   = self.lists.read(ctl.qpi[:self.bits])
        ctl_valid, ctl_stop, ctl_go = Signal(), Signal(), Signal()
        take = Signal()
        self.comb += [
            take.eq(~pseudo_valid),
            silent.ready.eq(take),
            kill.ready.eq(take & ~silent.valid),
            ctl_go.eq(take & ctl_valid & ~silent.valid & ~kill.valid),
            drain.qpi.eq(ctl.qpi),
        ]
        # The one that is next stands in a register until the check stage is free for it.
        self.sync += If(pseudo_go,
            pseudo_valid.eq(0),
        ).Elif(take,
            pseudo_valid.eq(silent.valid | kill.valid | ctl_valid),
            If(silent.valid,
                pseudo.qpi.eq(silent.qpi), pseudo.pseudo.eq(PSEUDO_SILENT),
            ).Elif(kill.valid,
                pseudo.qpi.eq(kill.qpi), pseudo.psn.eq(kill.psn), pseudo.code.eq(kill.row), pseudo.pseudo.eq(PSEUDO_KILL),
            ).Else(
                pseudo.qpi.eq(ctl.qpi), pseudo.psn.eq(ctl.psn), pseudo.code.eq(ctl.op),
                pseudo.pseudo.eq(Mux(ctl_stop, PSEUDO_SILENT, PSEUDO_CTL)),
            ),
        )
        self.fsm = fsm = FSM(reset_state="IDLE")
        fsm.act("IDLE",
            If(ctl.valid,
                If((ctl.op == CTL_ERR) | (ctl.op == CTL_RESET), NextState("STOP")).Else(NextState("ENTER"))
            )
        )
        fsm.act("STOP",
            ctl_valid.eq(1), ctl_stop.eq(1),
            If(ctl_go, NextState("DRAIN"))
        )
        # The QP is dead: its parked packets pass and are dropped.
        fsm.act("DRAIN",
            drain.valid.eq(~pseudo_valid),
            If(drain.valid & drain.ready, NextState("EMPTY"))
        )
        fsm.act("EMPTY",
            If(~entry.parked & ~self.busy(ctl.qpi) & ~pseudo_valid, NextState("ENTER"))
        )
        fsm.act("ENTER",
            ctl_valid.eq(1),
            If(ctl_go, NextState("WAIT"))
        )
        fsm.act("WAIT",
            If(self.ctl_done, ctl.ready.eq(1), NextState("IDLE"))
        )
