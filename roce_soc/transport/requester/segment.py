# SPDX-License-Identifier: BSD-2-Clause
"""Requester, third stage: the packets of a burst.

Ref: InfiniBand Architecture vol. 1 ch. 9.2 (opcodes), 9.4 (RETH, immediate data), 9.7.3 (PSNs), 9.7.5 (AckReq).
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.attributes import pmtu_case
from roce_soc.common import OWNER_REQUESTER, tx_packet_description
from roce_soc.opcodes import opcode_of
from roce_soc.transport.requester.state import burst_layout

ACK_PERIOD_BITS = 6     # at least one packet in 64 asks for an acknowledge.


# RequesterSegment ---------------------------------------------------------------------------------

class RequesterSegment(LiteXModule):
    """Cuts bursts into packets of the path MTU.

    Opcode by place in the message and not by place in the burst, so a repeated packet is what it was.
    AckReq on the last packet of a message, of a repeated burst, and on every 64th PSN. A rewind ends
    the burst in hand.

    Parameters
    ----------
    state : SendState

    Endpoints
    ---------
    sink : burst_layout(), in
    source : tx_packet_description(), out
    packet_begun, burst_ended : out, pulses
        A packet is on its way; all packets of a burst are, or are not sent any more. Control is left out.

    Latency: 2 clocks, then one packet a clock.
    Errors : none; bursts of an older generation are dropped.
    """
    def __init__(self, state):
        # Stream Endpoints.
        self.sink   = sink   = stream.Endpoint(burst_layout())
        self.source = stream.Endpoint(tx_packet_description())
        self.packet_begun, self.burst_ended = Signal(), Signal()

        # # #

        self.buffer = buffer = stream.Buffer(tx_packet_description())
        self.comb += buffer.source.connect(self.source)
        packet = buffer.sink

        burst  = Record(sink.payload.layout)
        active = Signal()
        fresh  = Signal()                    # no packet of the burst has gone yet.
        final  = Signal()
        following = Signal(24)
        size   = Signal(13)

        # Data-Path.
        first, last = Signal(), Signal()
        self.comb += [
            following.eq(burst.psn + 1),
            final.eq(burst.ctl | burst.is_read | (following == burst.end_psn)),
            first.eq(burst.starts & fresh),
            last.eq(burst.ends & final),
            pmtu_case(burst.pmtu, lambda k: size.eq(1 << k)),
            packet.owner.eq(OWNER_REQUESTER),
            packet.marker.eq(burst.ctl),
            packet.qpi.eq(burst.qpi),
            packet.psn.eq(burst.psn),
            packet.se.eq(burst.se & last & ~burst.is_read & (~burst.is_write | burst.has_imm)),
            packet.ackreq.eq(burst.is_read | last | (final & burst.retry)
                | (burst.psn[:ACK_PERIOD_BITS] == 2**ACK_PERIOD_BITS - 1)),
            packet.length.eq(Mux(burst.is_read, 0, Mux(final, burst.length, size))),
            packet.target.eq(burst.target),
            packet.addr.eq(burst.addr),
            packet.va.eq(burst.remote_va),
            packet.rkey.eq(burst.rkey),
            packet.dma_length.eq(burst.dma_length),
            packet.imm.eq(burst.imm),
            packet.msn.eq(Mux(burst.is_read, burst.end_psn - 1, burst.psn)),
            packet.syndrome.eq(burst.generation),
        ]
        names = {(1, 0): "FIRST", (0, 0): "MIDDLE", (0, 1): "LAST", (1, 1): "ONLY"}
        cases = {}
        for is_write, kind in enumerate(("SEND", "WRITE")):
            for (is_first, is_last), position in names.items():
                for imm in (0, 1):
                    key = is_write | is_first << 1 | is_last << 2 | imm << 3
                    cases[key] = packet.opcode.eq(opcode_of("RC", kind, position, imm=bool(imm & is_last)))
        self.comb += [
            Case(Cat(burst.is_write, first, last, burst.has_imm), cases),
            If(burst.is_read, packet.opcode.eq(opcode_of("RC", "READ_REQUEST", "ONLY"))),
        ]

        # Control-Path.
        latest = state.generation.read(burst.qpi)
        stale  = Signal()
        self.comb += [
            stale.eq(~burst.ctl & (burst.generation != latest)),
            packet.valid.eq(active & ~stale),
            sink.ready.eq(~active | stale | (packet.ready & final)),
            self.packet_begun.eq(packet.valid & packet.ready & ~burst.ctl),
            self.burst_ended.eq(active & sink.ready & ~burst.ctl),
        ]
        self.sync += [
            If(packet.valid & packet.ready,
                burst.psn.eq(following),
                burst.addr.eq(burst.addr + size),
                burst.length.eq(burst.length - size),
                fresh.eq(0),
            ),
            If(sink.ready,
                active.eq(sink.valid),
                burst.raw_bits().eq(sink.payload.raw_bits()),
                fresh.eq(1),
            )
        ]
