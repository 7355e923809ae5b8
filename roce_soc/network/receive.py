# SPDX-License-Identifier: BSD-2-Clause
"""Receive side, layers 2 to 4: tells RoCE frames from the rest and finds their headers.

Ref: InfiniBand Architecture vol. 1 Annex A17 (RoCEv2); RFC 791 (IPv4), RFC 8200 (IPv6), RFC 768.
Not supported: IPv4 options and fragments (dropped, counted), IPv6 extension headers (slow path),
stacked VLAN tags (slow path).
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc import opcodes
from roce_soc.common import DATA_WIDTH, roce_frame_description, roce_header_description, roce_wire_description
from roce_soc.errors import ERRORS


def big_endian(data, first, count):
    """Number of `count` bytes that start at byte `first` of `data`, first byte most significant."""
    return Cat(*[data[8*(first + i):8*(first + i + 1)] for i in reversed(range(count))])


# RoCEReceive --------------------------------------------------------------------------------------

class RoCEReceive(LiteXModule):
    """Classifies every frame and hands RoCE frames on with their fields, the others to the slow path.

    Two beats are looked at together, since the headers of one frame span up to 106 bytes. Four
    header layouts exist: {untagged, 802.1Q} x {IPv4, IPv6}; the place of everything follows from two
    flags that are taken while the first beat is registered.

    Endpoints
    ---------
    sink : roce_wire_description(512), in
        Frames of the PHY; always accepted; gaps inside a frame are allowed.
    header : roce_header_description(), out
        Fields of a RoCE frame (UDP destination port 4791), the clock before its first beat; valid only.
    source : roce_frame_description(512), out
        RoCE frames; valid only, no ready. `row` != 0 names the first rule of layers 3 and 4 that the frame
        breaks; valid from the second clock after the first beat to the first after the next frame's first beat.
    early : {data 512}, {vlan, ipv6}, out; early_roce, early_end : Signal, out
        For the ICRC checker: beats of every frame, two clocks before `source`. The clock after a beat:
        whether its frame is RoCE, and its `end`.
    slow_source : roce_wire_description(512), out
        All other frames; valid only, the slow path drops whole frames when it has no room.

    Latency: 3 clocks from the second beat (or the last) to the first beat out; one beat a clock.
    Errors : rows IP_FRAGMENT, IP_OPTIONS, IP_CHECKSUM, UDP_LENGTH in `source.row`; the decoder judges RUNT and
        MAC_ERROR behind the last beat.
    """
    def __init__(self, dw=DATA_WIDTH):
        if dw != DATA_WIDTH:
            raise ValueError(f"data_width must be {DATA_WIDTH}, not {dw!r}")
        # Stream Endpoints.
        self.sink        = sink        = stream.Endpoint(roce_wire_description(dw))
        self.header      = header      = stream.Endpoint(roce_header_description())
        self.source      = source      = stream.Endpoint(roce_frame_description(dw))
        self.early       = early       = stream.Endpoint(
            stream.EndpointDescription([("data", dw)], [("vlan", 1), ("ipv6", 1)]))
        self.early_roce, self.early_end = Signal(), Signal(14)
        self.slow_source = slow_source = stream.Endpoint(roce_wire_description(dw))

        # # #

        # Two-beat window: `older` waits for its successor, unless it is the last of its frame.
        older_valid = Signal()
        older       = Record(
            [("data", dw), ("last_be", dw//8), ("error", dw//8)])
        older_first = Signal()
        older_last  = Signal()
        sink_first  = Signal(reset=1)
        advance     = Signal()
        self.comb += [
            sink.ready.eq(1),
            advance.eq(older_valid & (older_last | sink.valid)),
        ]
        tagged, v4, v6 = Signal(), Signal(2), Signal(2)
        self.sync += [
            If(sink.valid,
                older_valid.eq(1),
                older.data.eq(sink.data),
                older.last_be.eq(sink.last_be),
                older.error.eq(sink.error),
                older_first.eq(sink_first),
                older_last.eq(sink.last),
                sink_first.eq(sink.last),
                tagged.eq(big_endian(sink.data, 12, 2) == opcodes.ETHERTYPE_VLAN),
                v4[0].eq((big_endian(sink.data, 12, 2) == opcodes.ETHERTYPE_IPV4)),
                v6[0].eq((big_endian(sink.data, 12, 2) == opcodes.ETHERTYPE_IPV6)),
                v4[1].eq((big_endian(sink.data, 16, 2) == opcodes.ETHERTYPE_IPV4)),
                v6[1].eq((big_endian(sink.data, 16, 2) == opcodes.ETHERTYPE_IPV6)),
            ).Elif(advance,
                older_valid.eq(0),
            )
        ]

        # Stage 1: beat and window registered, layout flags resolved.
        s1       = Record(older.layout)
        s1_valid, s1_first, s1_last = Signal(), Signal(), Signal()
        s1_next  = Signal(dw)
        vlan, ipv4, ipv6 = Signal(), Signal(), Signal()
        self.sync += [
            s1_valid.eq(advance),
            If(advance,
                s1.data.eq(older.data),
                s1.last_be.eq(older.last_be),
                s1.error.eq(older.error),
                s1_first.eq(older_first),
                s1_last.eq(older_last),
                If(older_first,
                    s1_next.eq(Mux(older_last, 0, sink.data)),
                    vlan.eq(tagged),
                    ipv4.eq(Mux(tagged, v4[1], v4[0])),
                    ipv6.eq(Mux(tagged, v6[1], v6[0])),
                )
            )
        ]
        self.comb += [
            early.valid.eq(s1_valid), early.first.eq(s1_first), early.last.eq(s1_last),
            early.data.eq(s1.data), early.vlan.eq(vlan), early.ipv6.eq(ipv6),
        ]

        # Stage 2: every field by its place in the frame's layout; headers as raw bytes.
        window = Cat(s1.data, s1_next)
        cases  = Signal(2)
        self.comb += cases.eq(Cat(vlan, ipv6))
        ip_at  = {0: opcodes.ETHERNET_BYTES, 1: opcodes.ETHERNET_BYTES + opcodes.VLAN_BYTES}

        def by_layout(choices):
            """The one of four choices (index vlan + 2*ipv6) that fits the frame's layout."""
            chosen = Signal(len(choices[0]))
            self.comb += Case(cases, {i: chosen.eq(choice) for i, choice in enumerate(choices)})
            return chosen

        def at(offset, count, l4=False, v6_offset=None):
            """Bytes by layout: offset counts from the IP header, with l4 from behind it."""
            def place(tag, six):
                size = opcodes.IPV6_BYTES if six else opcodes.IPV4_BYTES
                base = ip_at[tag] + (size if l4 else 0)
                return base + (v6_offset if six and v6_offset is not None else offset)
            return by_layout([big_endian(window, place(tag, six), count) for six in (0, 1) for tag in (0, 1)])

        raw_bth = by_layout([window[8*(base + size + opcodes.UDP_BYTES):8*(base + size + opcodes.UDP_BYTES + 40)]
            for size in (opcodes.IPV4_BYTES, opcodes.IPV6_BYTES) for base in (ip_at[0], ip_at[1])])
        tos     = by_layout([s1.data[8*15:8*16], s1.data[8*19:8*20], s1.data[8*15:8*16] >> 4, s1.data[8*19:8*20] >> 4])

        s2          = Record(older.layout)
        s2_valid, s2_first, s2_last, s2_roce, s2_slow = Signal(), Signal(), Signal(), Signal(), Signal()
        total_length = Signal(16)
        roce_port, udp_protocol  = Signal(), Signal()
        fragment, options        = Signal(), Signal()
        partial      = [Signal(17) for _ in range(5)]
        udp_offset   = Signal(7)
        ip_frame = Signal()
        self.sync += [
            s2_valid.eq(s1_valid),
            s2.eq(s1),
            s2_first.eq(s1_first),
            s2_last.eq(s1_last),
            If(s1_valid & s1_first,
                header.ipv6.eq(ipv6),
                udp_offset.eq(Mux(ipv6, Mux(vlan, 58, 54), Mux(vlan, 38, 34))),
                header.bth_offset.eq(Mux(ipv6, Mux(vlan, 66, 62), Mux(vlan, 46, 42))),
                header.bth.eq(raw_bth),
                header.dst_mac.eq(big_endian(s1.data, 0, 6)),
                header.src_ip.eq(Mux(ipv6, at(8, 16), at(12, 4))),
                header.dst_ip.eq(Mux(ipv6, at(24, 16), at(16, 4))),
                # ECN: low two bits of the TOS byte; IPv6's traffic class straddles bytes 0 and 1.
                header.ecn.eq(tos[:2]),
                ip_frame.eq(ipv4 | ipv6),
                # IPv6 counts the payload alone, IPv4 its header too.
                total_length.eq(at(2, 2, v6_offset=4)),
                header.udp_length.eq(at(4, 2, l4=True)),
                udp_protocol.eq(at(9, 1, v6_offset=6) == opcodes.IP_PROTOCOL_UDP),
                roce_port.eq(at(2, 2, l4=True) == opcodes.UDP_PORT),
                fragment.eq(~ipv6 & ((at(6, 2) & 0x3fff) != 0)),
                options.eq(~ipv6 & (at(0, 1) != 0x45)),
                [partial[i].eq(Mux(ipv6, 0x1fffe if i == 0 else 0, at(4*i, 2) + at(4*i + 2, 2))) for i in range(5)],
            ),
        ]

        # Stage 3: class of the frame; RoCE keeps bad ones with the row they break.
        roce, slow = Signal(), Signal()
        keep_roce, keep_slow = Signal(), Signal()
        self.comb += [
            # Behind options, or in a fragment, the port is not where it seems to be.
            roce.eq(ip_frame & udp_protocol & (roce_port | options | fragment)),
            slow.eq(~roce),
            s2_roce.eq(Mux(s2_first, roce, keep_roce)),
            s2_slow.eq(Mux(s2_first, slow, keep_slow)),
            header.valid.eq(s2_valid & s2_first & roce),
            header.first.eq(1), header.last.eq(1),
            self.early_roce.eq(s2_roce),
            self.early_end.eq(udp_offset + header.udp_length),
        ]
        l3_bytes, udp_bytes    = Signal(16), Signal(16)
        checksum_a, checksum_b = Signal(19), Signal(19)
        bad_fragment, bad_options, bad_length = Signal(), Signal(), Signal()
        self.sync += [
            source.valid.eq(s2_valid & s2_roce),
            source.first.eq(s2_first),
            source.last.eq(s2_last),
            source.data.eq(s2.data),
            source.last_be.eq(Mux(s2_last, s2.last_be, 0)),
            source.error.eq(s2.error),
            slow_source.valid.eq(s2_valid & s2_slow),
            slow_source.first.eq(s2_first),
            slow_source.last.eq(s2_last),
            slow_source.data.eq(s2.data),
            slow_source.last_be.eq(Mux(s2_last, s2.last_be, 0)),
            slow_source.error.eq(s2.error),
            If(s2_valid & s2_first,
                keep_roce.eq(roce),
                keep_slow.eq(slow),
                udp_bytes.eq(header.udp_length),
                source.end.eq(self.early_end),
                l3_bytes.eq(total_length - Mux(header.ipv6, 0, opcodes.IPV4_BYTES)),
                checksum_a.eq(partial[0] + partial[1] + partial[2]),
                checksum_b.eq(partial[3] + partial[4]),
                bad_fragment.eq(fragment),
                bad_options.eq(options),
            )
        ]

        # Behind stage 3: checksum added up, lengths compared; `row` follows two clocks after the first beat.
        checksum, ones_left = Signal(20), Signal(16)
        bad_early = Signal(2)
        self.comb += ones_left.eq(~checksum[16:])
        self.sync += [
            checksum.eq(checksum_a + checksum_b),
            bad_length.eq((udp_bytes > l3_bytes)
                | (udp_bytes < opcodes.UDP_BYTES + opcodes.BTH_BYTES + opcodes.ICRC_BYTES)
                | (udp_bytes[13:] != 0)),
            bad_early.eq(Cat(bad_fragment, bad_options)),
            source.row.eq(0),
            # Folded, that is with its carries added, the sum must be all ones: low half = ones - carries.
            If(checksum[:16] != ones_left, source.row.eq(ERRORS["IP_CHECKSUM"].index)),
            If(bad_length, source.row.eq(ERRORS["UDP_LENGTH"].index)),
            If(bad_early[0], source.row.eq(ERRORS["IP_FRAGMENT"].index)),
            If(bad_early[1], source.row.eq(ERRORS["IP_OPTIONS"].index)),
        ]
