# SPDX-License-Identifier: BSD-2-Clause
"""RC completer: responses of the peer move a QP's oldest unacknowledged PSN, READ data goes to memory.

Ref: InfiniBand Architecture vol. 1 ch. 9.7.5, 9.7.6, 9.9.2.
Not supported: atomic responses, end-to-end credits.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.bounds import counted
from roce_soc.common import (
    IN_FLIGHT, ctl_description, place_description, place_done_description, refusal_description, rx_packet_description)
from roce_soc.errors import index_of
from roce_soc.memory.deferred import Deferred
from roce_soc.packet.buffer import chunks_of
from roce_soc.table import kick_description
from roce_soc.transport.completer.decide import WORKS, CompleterDecide, work_layout
from roce_soc.transport.requester.state import ITEM_ERROR, TIME_WIDTH, item_description

PLACES   = IN_FLIGHT   # place records under way.
DEFERRED = 256         # works of all QPs that wait for a page.
RESERVE  = 2*WORKS     # places for works that may still have to wait when no visit begins any more.


# RoCECompleter ------------------------------------------------------------------------------------

class RoCECompleter(LiteXModule):
    """Decides, checks the key of READ data, places it, and tells the walker when it has landed.

    ::
        response, scan, seek, ctl ─► decide ─► key check ─► place ─► (done) ─► item ─► retire walker

    Everything leaves in one order, so an item never overtakes the data it stands for; each response
    record leaves as exactly one place record (length 0: discard).

    READ data whose page is not on chip is put off, and with it whatever its QP has behind it, until the page has come. Where that
    takes half of DEFERRED works or a quarter of the packet buffer, further responses of such QPs are dropped as if the network
    had lost them; the requester asks again.

    Parameters
    ----------
    context : QPContext
    state : SendState
    mr_port : {request, result}
        Port of the MR table.
    n_chunks : int
        Chunks of the packet buffer.

    Endpoints
    ---------
    response : rx_packet_description(), in     scan : kick_description(), in     ctl : ctl_description(), in
    place : place_description(), out           done : place_done_description(), in
    item : item_description(), out             refusal : refusal_description(), out
    seek : kick_description(), in              now : in, ticks

    Latency: response to place record 8 clocks (READ data: plus the key check); done to item none.
    Errors : those of CompleterRules; RESPONSE_MEMORY (local key, or memory refused the data).
    """
    def __init__(self, context, state, mr_port, n_chunks=512):
        # Stream Endpoints.
        self.response = stream.Endpoint(rx_packet_description())
        self.scan     = stream.Endpoint(kick_description())
        self.seek     = stream.Endpoint(kick_description())
        self.ctl      = stream.Endpoint(ctl_description())
        self.place    = place = stream.Endpoint(place_description())
        self.done     = done  = stream.Endpoint(place_done_description())
        self.item     = item  = stream.Endpoint(item_description())
        self.refusal  = stream.Endpoint(refusal_description())
        self.now      = Signal(TIME_WIDTH)

        # # #

        self.deferred = deferred = Deferred(work_layout(), state.n_qps, DEFERRED, chunks_of)
        self.ready    = deferred.ready
        self.decide  = decide  = CompleterDecide(context, state, deferred.waits)
        self.results = results = stream.SyncFIFO(mr_port.result.description, 16)
        self.waits   = waits   = stream.SyncFIFO(
            [("record", 1), ("tell", 1), ("check", 1), ("psn", 24)] + item_description().payload_layout, PLACES)
        self.submodules += counted(results, "works with a key: WORKS at most wait for their place")
        self.buffer  = buffer  = stream.Buffer(place_description())
        self.comb += [
            self.response.connect(decide.response),
            self.scan.connect(decide.scan),
            self.seek.connect(decide.seek),
            self.ctl.connect(decide.ctl),
            decide.now.eq(self.now),
            decide.check.connect(mr_port.request),
            mr_port.result.connect(results.sink),
            buffer.source.connect(place),
            decide.refusal.connect(self.refusal, omit={"ready"}),
        ]

        # Under its key from the check to the acknowledge of what is placed.
        mr_port.track(decide.checks.sink.valid, waits.source.valid & waits.source.ready & waits.source.check)

        # Put off: what misses, and what its QP has behind it; but for a response that is dropped.
        work, result = decide.work, results.source
        miss, put_off = Signal(), Signal()
        self.comb += [
            miss.eq(work.check & result.miss),
            put_off.eq(miss | (deferred.waits(work.qpi) & ~work.again & (work.check | work.tell))),
            deferred.record.eq(work.payload),
            deferred.append.eq(work.ready & work.valid & put_off & ~work.again), deferred.miss.eq(miss),
            deferred.missed.eq(work.ready & work.valid & miss & work.again),
            deferred.passed.eq(work.ready & work.valid & ~miss & work.again),
            deferred.wake.eq(mr_port.wake),
            deferred.source.connect(decide.again),
            deferred.released.ready.eq(1),
            decide.hurry.eq(deferred.hurry | (deferred.free < RESERVE)),
        ]
        self.sync += decide.full.eq((deferred.free < DEFERRED//2) | (deferred.held >= n_chunks//4))

        # Place.
        known, denied, placed = Signal(), Signal(), Signal()
        self.comb += [
            known.eq(work.valid & (~work.check | result.valid)),
            denied.eq(work.check & (result.row != 0)),
            placed.eq(work.record & ~put_off),
            buffer.sink.valid.eq(known & placed & waits.sink.ready),
            [getattr(buffer.sink, n).eq(getattr(work, n)) for n in ("qpi", "has_slot", "slot", "offset")],
            buffer.sink.length.eq(Mux(work.check & ~denied, work.length, 0)),
            buffer.sink.target.eq(result.target),
            buffer.sink.addr.eq(result.addr),
            # What is put off leaves its key check here, nothing else.
            waits.sink.valid.eq(known & (~placed | buffer.sink.ready)),
            work.ready.eq(waits.sink.valid & waits.sink.ready),
            result.ready.eq(work.ready & work.check),
            [getattr(waits.sink, n).eq(getattr(work, n)) for n in ("check", "psn", "qpi", "una", "action", "row")],
            waits.sink.record.eq(placed),
            waits.sink.tell.eq(work.tell & ~put_off),
            If(denied & ~put_off,
                waits.sink.tell.eq(1),
                *self.fails(waits.sink, work.psn),
            ),
        ]

        # Tell.
        wait   = waits.source
        landed = Signal()
        self.comb += [
            landed.eq(wait.valid & (~wait.record | done.valid)),
            [getattr(item, n).eq(getattr(wait, n)) for n in ("qpi", "una", "action", "row")],
            item.valid.eq(landed & wait.tell),
            If(wait.record & (done.err != 0),
                item.valid.eq(landed),
                *self.fails(item, wait.psn),
            ),
            wait.ready.eq(landed & (item.ready | ~item.valid)),
            done.ready.eq(wait.ready & wait.record),
        ]

    @staticmethod
    def fails(target, psn):
        """What the walker is told instead when READ data of `psn` has no place."""
        return [target.una.eq(psn), target.action.eq(ITEM_ERROR), target.row.eq(index_of("RESPONSE_MEMORY"))]
