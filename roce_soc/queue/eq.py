# SPDX-License-Identifier: BSD-2-Clause
"""Event queue: a ring of 16-byte EQEs in memory, one pending bit per cause, an interrupt.

Ref: InfiniBand Architecture vol. 1 ch. 11.6.3 (asynchronous events).
Not supported: several event queues, moderation.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc import abi
from roce_soc.arbiter import Turns
from roce_soc.common import (
    DATA_BYTES, MEMORY_EQE, doorbell_description, event_description, memory_command_description,
    memory_wack_description, memory_wdata_description, ring_write_description)

# Pending bits: causes that survive a full or missing ring.
CAUSES = (abi.EVENT_COMPLETION, abi.EVENT_CQ_ERR, abi.EVENT_QP_FATAL, abi.EVENT_QP_REQ_ERR, abi.EVENT_QP_ACCESS_ERR,
    abi.EVENT_COMM_EST, abi.EVENT_SQ_DRAINED, abi.EVENT_PORT_ACTIVE, abi.EVENT_PORT_ERR)
CAUSE_OVERFLOW = len(CAUSES)     # bit: an EQE had no room.


# EventQueue ---------------------------------------------------------------------------------------

class EventQueue(LiteXModule):
    """Writes events in the order they come; the cause's pending bit is set when the EQE is visible.

    Endpoints
    ---------
    get_port() : event_description(), in
        Events of one client.
    write : ring_write_description(), in
        Geometry; resets the indices. Taken between two events: nothing is written to the old place any more.
    doorbell : doorbell_description(), in
        Kind EQ: consumer index, free running 16 bits; queue 0 on the owner page of the geometry, others change nothing.
    wcmd, wdata, wack : memory write port
        One 16-byte write an event.
    causes : Signal(len(CAUSES) + 1), out
        Pulse per cause (last: overflow) for the pending bits; at least one pulse for every event.

    Latency: 6 clocks and the write's acknowledge an event, one event at a time.
    Errors : no ring, ring full or write refused: no EQE, the cause's bit and the overflow bit are set.
    """
    def __init__(self):
        self.sinks    = []
        self.write    = stream.Endpoint(ring_write_description())
        self.doorbell = stream.Endpoint(doorbell_description())
        self.wcmd     = stream.Endpoint(memory_command_description())
        self.wdata    = stream.Endpoint(memory_wdata_description())
        self.wack     = stream.Endpoint(memory_wack_description())
        self.causes   = Signal(len(CAUSES) + 1)
        self.time     = Signal(32)     # time base, in.

    def get_port(self):
        """A new client port."""
        sink = stream.Endpoint(event_description())
        self.sinks.append(sink)
        return sink

    def do_finalize(self):
        self.buffer = stream.SyncFIFO(event_description(), 16)
        self.turns  = turns = Turns(max(1, len(self.sinks)))
        self.comb  += turns.request.eq(Cat(*[sink.valid for sink in self.sinks])), turns.next.eq(~self.buffer.sink.valid | self.buffer.sink.ready)
        for i, sink in enumerate(self.sinks):
            self.comb += If(turns.grant == i, sink.connect(self.buffer.sink, keep={"valid", "ready", "type", "queue", "info"}))

        # Ring.
        ring     = Record(ring_write_description().payload_layout)
        producer, consumer, mask = Signal(16), Signal(16), Signal(16)
        self.comb += [
            self.doorbell.ready.eq(1),
            mask.eq((1 << ring.log2) - 1),
        ]
        self.sync += [
            If(self.doorbell.valid & (self.doorbell.queue == 0) & (self.doorbell.page == ring.page),
                consumer.eq(self.doorbell.index),
            ),
            If(self.write.valid & self.write.ready,
                [getattr(ring, n).eq(getattr(self.write, n)) for n, _ in ring.layout],
                producer.eq(0), consumer.eq(0),
            )
        ]

        # One event at a time: write it, wait for the acknowledge, tell.
        event = self.buffer.source
        eqe   = Signal(8*abi.EQE_BYTES)
        place = {e.name: e.lsb for e in abi.EQE}
        addr  = Signal(64)
        time  = Signal(32)       # when the event was taken; an entry that is offered stands still.
        full, lost, cmd_done, data_done = Signal(), Signal(), Signal(), Signal()
        fields = {"type": event.type, "queue": event.queue, "info": event.info, "time": time,
            "phase": ~((producer >> ring.log2) & 1) & 1}
        self.comb += [
            full.eq(((producer - consumer) & 0xffff) > mask),
            [eqe[place[n]:place[n] + len(v) if isinstance(v, Signal) else place[n] + 1].eq(v)
                for n, v in fields.items()],
            addr.eq(ring.addr + ((producer & mask) << log2_int(abi.EQE_BYTES))),
            self.wcmd.first.eq(1), self.wcmd.last.eq(1),
            self.wcmd.target.eq(ring.target),
            self.wcmd.addr.eq(addr),
            self.wcmd.length.eq(abi.EQE_BYTES),
            self.wcmd.kind.eq(MEMORY_EQE),
            self.wcmd.tag.eq(0),
            self.wdata.first.eq(1), self.wdata.last.eq(1),
            self.wdata.data.eq(Replicate(eqe, DATA_BYTES//abi.EQE_BYTES)),
            self.wdata.be.eq(0xffff << addr[:6]),
            self.wack.ready.eq(1),
        ]
        self.fsm = fsm = FSM(reset_state="IDLE")
        fsm.act("IDLE",
            NextValue(cmd_done, 0), NextValue(data_done, 0), NextValue(time, self.time),
            self.write.ready.eq(1),
            If(event.valid & ~self.write.valid,
                If(ring.enable & ~full,
                    NextValue(lost, 0),
                    NextState("WRITE")
                ).Else(
                    NextValue(lost, 1),
                    NextState("TELL")
                )
            )
        )
        fsm.act("WRITE",
            self.wcmd.valid.eq(~cmd_done),
            self.wdata.valid.eq(~data_done),
            If(self.wcmd.ready, NextValue(cmd_done, 1)),
            If(self.wdata.ready, NextValue(data_done, 1)),
            If((cmd_done | self.wcmd.ready) & (data_done | self.wdata.ready), NextState("ACK"))
        )
        fsm.act("ACK",
            If(self.wack.valid,
                NextValue(lost, self.wack.err != 0),
                NextValue(producer, producer + 1),
                NextState("TELL")
            )
        )
        fsm.act("TELL",
            [self.causes[i].eq(event.type == cause) for i, cause in enumerate(CAUSES)],
            self.causes[CAUSE_OVERFLOW].eq(lost),
            event.ready.eq(1),
            NextState("IDLE")
        )
