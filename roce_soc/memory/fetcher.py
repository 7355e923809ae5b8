# SPDX-License-Identifier: BSD-2-Clause
"""Reads the payload of packets to send, ahead of the encoder, as much as its FIFO has room for.

Ref: contract of memory/port.py.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.common import (
    DATA_BYTES, DATA_WIDTH, PAGE_BYTES, TAG_WIDTH, memory_command_description, tx_packet_description)
from roce_soc.memory.port import DEPTH, MemoryReadPort, StreamChoice
from roce_soc.packet.encoder import payload_description

PACKET_DEPTH = 64     # packets between their read and their frame.


# PayloadFetcher -----------------------------------------------------------------------------------

class PayloadFetcher(LiteXModule):
    """Puts the packets of all clients in one order and reads their payload in that order.

    Parameters
    ----------
    payload_beats : int
        Beats of the payload FIFO, a power of two of at least 128: what may be read ahead, which hides the memory's latency.
    max_reads : int
        Read commands outstanding, up to 255.

    Endpoints
    ---------
    get_port() : stream of tx_packet_description, in
        One client; call before finalisation. Clients take turns per packet.
    source : tx_packet_description(), out
        Packets for the encoder, markers among them.
    payload : payload_description(512), out
        The beats of their payload as they came from memory, err with them.
    port : MemoryReadPort, out
        Must answer in order of issue (MemoryReadRouter does).

    Latency: packet to source 0 clocks, to rcmd 2 clocks, rdata to payload 2 clocks; one packet, one command and one beat a clock.
    Errors : err of rdata passes to the encoder, which marks the frame; nothing is read twice.
    """
    def __init__(self, payload_beats=512, max_reads=DEPTH, dw=DATA_WIDTH):
        if payload_beats < 128 or payload_beats & (payload_beats - 1):
            raise ValueError(f"payload_beats must be a power of two of at least 128, not {payload_beats!r}")
        if not 1 <= max_reads < 1 << TAG_WIDTH:
            raise ValueError(f"max_reads must be 1..{(1 << TAG_WIDTH) - 1}, not {max_reads!r}")
        self.payload_beats, self.max_reads, self.dw = payload_beats, max_reads, dw
        self.ports   = []
        self.source  = stream.Endpoint(tx_packet_description())
        self.payload = stream.Endpoint(payload_description(dw))
        self.port    = MemoryReadPort(dw)

    def get_port(self):
        """A new client port."""
        if self.finalized:
            raise ValueError("get_port must be called before finalisation")
        self.ports.append(stream.Endpoint(tx_packet_description()))
        return self.ports[-1]

    def do_finalize(self):
        if not self.ports:
            raise ValueError("PayloadFetcher needs 1 or more ports, not 0")
        port, payload_beats = self.port, self.payload_beats

        # One order for all clients.
        packet = stream.Endpoint(tx_packet_description())
        taken, straight = Signal(), Signal()
        self.choice  = StreamChoice(self.ports, packet, 1, taken)
        self.packets = packets = stream.SyncFIFO(tx_packet_description(), PACKET_DEPTH)
        split_free   = Signal()
        self.comb += [
            packet.ready.eq(packets.sink.ready & split_free),
            taken.eq(packet.valid & packet.ready),
            packets.sink.valid.eq(taken & ~(straight & self.source.ready)),
            packets.sink.payload.eq(packet.payload),
            # Past the FIFO while it is empty.
            straight.eq(~packets.source.valid),
            self.source.valid.eq(packets.source.valid | taken),
            self.source.first.eq(1),
            self.source.last.eq(1),
            self.source.payload.raw_bits().eq(Mux(straight, packet.payload.raw_bits(), packets.source.payload.raw_bits())),
            packets.source.ready.eq(self.source.ready),
        ]

        # Split at the page: one or two commands.
        split   = Record([("qpi", len(packet.qpi)), ("target", len(packet.target)), ("addr", 64)])
        active, second, crosses = Signal(), Signal(), Signal()
        length, rest, to_page   = Signal(13), Signal(13), Signal(13)
        next_page               = Signal(33)       # low bits of the second page, carry.
        issue      = stream.Endpoint(memory_command_description())
        issue_next = Signal()
        self.comb += [
            to_page.eq(PAGE_BYTES - packet.addr[:12]),
            issue_next.eq(~issue.valid | issue.ready),
            split_free.eq(~active | (issue_next & (second | ~crosses))),
        ]
        beats = Signal(7)
        tag   = Signal(TAG_WIDTH)
        self.sync += [
            If(split_free,
                active.eq(taken & (packet.length != 0) & ~packet.marker),
                second.eq(0),
                [getattr(split, n).eq(getattr(packet, n)) for n in ("qpi", "target", "addr")],
                crosses.eq(packet.length > to_page),
                length.eq(Mux(packet.length > to_page, to_page, packet.length)),
                rest.eq(packet.length - to_page),
                next_page.eq(packet.addr[12:44] + 1),
            ).Elif(issue_next,
                second.eq(1),
            ),
            If(issue_next,
                issue.valid.eq(active),
                issue.target.eq(split.target),
                issue.qpi.eq(split.qpi),
                If(second,
                    issue.addr.eq(Cat(Constant(0, 12), next_page[:32], split.addr[44:] + next_page[32])),
                    issue.length.eq(rest),
                    beats.eq((rest + DATA_BYTES - 1) >> 6),
                ).Else(
                    issue.addr.eq(split.addr),
                    issue.length.eq(length),
                    beats.eq((split.addr[:6] + length + DATA_BYTES - 1) >> 6),
                ),
                If(active, tag.eq(tag + 1)),
            ),
        ]

        # Issue: only with room for every beat of the answer.
        self.fifo   = fifo = stream.SyncFIFO(payload_description(self.dw), payload_beats, buffered=True)
        free        = Signal(max=payload_beats + 1, reset=payload_beats)
        outstanding = Signal(max=self.max_reads + 1)
        able, issued, popped, answered = Signal(), Signal(), Signal(), Signal()
        self.comb += [
            able.eq((free >= beats) & (outstanding != self.max_reads)),
            port.rcmd.valid.eq(issue.valid & able),
            port.rcmd.first.eq(1),
            port.rcmd.last.eq(1),
            port.rcmd.payload.eq(issue.payload),
            port.rcmd.tag.eq(tag),
            issue.ready.eq(port.rcmd.ready & able),
            issued.eq(port.rcmd.valid & port.rcmd.ready),
            port.rdata.ready.eq(1),
            answered.eq(port.rdata.valid & port.rdata.last),
            fifo.sink.valid.eq(port.rdata.valid),
            fifo.sink.data.eq(port.rdata.data),
            fifo.sink.err.eq(port.rdata.err),
            fifo.source.connect(self.payload),
            popped.eq(self.payload.valid & self.payload.ready),
        ]
        self.sync += [
            free.eq(free - Mux(issued, beats, 0) + popped),
            outstanding.eq(outstanding + issued - answered),
        ]
