# SPDX-License-Identifier: BSD-2-Clause
"""Reads the payload of packets to send, ahead of the encoder, as much as its FIFO has room for.

Ref: contract of memory/port.py.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.arbiter import StreamChoice
from roce_soc.bounds import counted
from roce_soc.common import (
    DATA_BYTES, DATA_WIDTH, IN_FLIGHT, PAGE_BYTES, TAG_WIDTH, memory_command_description, tx_packet_description)
from roce_soc.memory.port import DEPTH, MemoryReadPort
from roce_soc.packet.encoder import payload_description
from roce_soc.table import BypassQueue


# PayloadFIFO --------------------------------------------------------------------------------------

class PayloadFIFO(LiteXModule):
    """FIFO in block RAM that a beat passes at once when it is empty; one that was shown and not taken is kept.

    Latency: 0 clocks when empty, else 2; one beat a clock.
    Errors : none; the reader of memory keeps its room.
    """
    def __init__(self, layout, depth):
        self.sink, self.source = sink, source = stream.Endpoint(layout), stream.Endpoint(layout)

        # # #

        self.fifo = fifo = stream.SyncFIFO(layout, depth, buffered=True)
        kept, empty, shown, keep = stream.Endpoint(layout), Signal(), Signal(), Signal()
        self.comb += [
            empty.eq(fifo.level == 0),
            shown.eq(empty & ~kept.valid),
            # Shown and not taken, or next behind the one that is.
            keep.eq(sink.valid & empty & (kept.valid == source.ready)),
            sink.ready.eq(fifo.sink.ready),
            fifo.sink.payload.eq(sink.payload),
            fifo.sink.valid.eq(sink.valid & ~keep & ~(shown & source.ready)),
            fifo.source.ready.eq(source.ready & ~kept.valid),
            source.valid.eq(kept.valid | fifo.source.valid | (empty & sink.valid)),
            source.first.eq(1), source.last.eq(1),
            If(kept.valid,
                source.payload.eq(kept.payload),
            ).Elif(empty,
                source.payload.eq(sink.payload),
            ).Else(
                source.payload.eq(fifo.source.payload),
            ),
        ]
        self.sync += [
            kept.valid.eq(keep | (kept.valid & ~source.ready)),
            If(keep, kept.payload.eq(sink.payload)),
        ]

# PayloadFetcher -----------------------------------------------------------------------------------

class PayloadFetcher(LiteXModule):
    """Puts the packets of all clients in one order and reads their payload in that order.

    Parameters
    ----------
    payload_beats : int
        Beats of the payload FIFO, a power of two of at least 128: what may be read ahead, which hides the memory's latency.
    max_reads : int
        Read commands outstanding, below 2^TAG_WIDTH.

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

    Latency: packet to source 0 clocks, to rcmd 1 clock, rdata to payload 0 clocks; a packet, a command, a beat a clock.
    Errors : err of rdata passes to the encoder, which marks the frame; nothing is read twice.
    """
    def __init__(self, payload_beats=2048, max_reads=DEPTH, dw=DATA_WIDTH):
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
        taken = Signal()
        self.choice  = StreamChoice(self.ports, packet, 1, taken)
        self.packets = packets = BypassQueue(tx_packet_description(), IN_FLIGHT)
        issue_free   = Signal()
        self.comb += [
            packet.ready.eq(packets.sink.ready & issue_free),
            taken.eq(packet.valid & packet.ready),
            packets.sink.valid.eq(taken),
            packets.sink.payload.eq(packet.payload),
            packets.source.connect(self.source),
        ]

        # Split at the page: one command, or a second one that waits behind it.
        issue      = stream.Endpoint(memory_command_description())
        issue_next = Signal()
        # page: low bits of the second page's number, carry; high: the rest. length: with room for the sum that rounds it up.
        second     = Record([("valid", 1), ("qpi", len(packet.qpi)), ("target", len(packet.target)),
            ("page", 33), ("high", 20), ("length", 13)])
        end        = Signal(13)                    # of the range, counted from its page's begin.
        crosses    = Signal()
        beats      = Signal(7)
        tag        = Signal(TAG_WIDTH)
        self.comb += [
            end.eq(packet.addr[:12] + packet.length),
            crosses.eq(end[12] & (end[:12] != 0)),
            issue_next.eq(~issue.valid | issue.ready),
            issue_free.eq(issue_next & ~second.valid),
        ]
        self.sync += [
            If(taken,
                second.valid.eq(crosses & (packet.length != 0) & ~packet.marker),
                second.qpi.eq(packet.qpi),
                second.target.eq(packet.target),
                second.page.eq(packet.addr[12:44] + 1),
                second.high.eq(packet.addr[44:]),
                second.length.eq(end[:12]),
            ).Elif(issue_next,
                second.valid.eq(0),
            ),
            If(issue_next,
                issue.valid.eq(second.valid | (taken & (packet.length != 0) & ~packet.marker)),
                If(second.valid,
                    issue.target.eq(second.target),
                    issue.qpi.eq(second.qpi),
                    issue.addr.eq(Cat(Constant(0, 12), second.page[:32], second.high + second.page[32])),
                    issue.length.eq(second.length),
                    beats.eq((second.length + DATA_BYTES - 1) >> 6),
                ).Else(
                    issue.target.eq(packet.target),
                    issue.qpi.eq(packet.qpi),
                    issue.addr.eq(packet.addr),
                    issue.length.eq(Mux(crosses, PAGE_BYTES - packet.addr[:12], packet.length)),
                    beats.eq(Mux(crosses, PAGE_BYTES//DATA_BYTES - packet.addr[6:12],
                        (packet.addr[:6] + packet.length + DATA_BYTES - 1) >> 6)),
                ),
                If(issue.valid, tag.eq(tag + 1)),
            ),
        ]

        # Issue: only with room for every beat of the answer.
        self.fifo   = fifo = PayloadFIFO(payload_description(self.dw), payload_beats)
        self.submodules += counted(fifo, "beats asked for: `free`")
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
