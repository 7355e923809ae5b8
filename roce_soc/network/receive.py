# SPDX-License-Identifier: BSD-2-Clause
"""Receive side, layers 2 to 4: tells RoCE frames from the rest and finds their headers.

Ref: InfiniBand Architecture vol. 1 Annex A17 (RoCEv2); RFC 791 (IPv4), RFC 8200 (IPv6), RFC 768.
Not supported: IPv4 options, first fragments, UDP behind IPv6 extension headers (dropped, counted); later fragments, longer
chains of extension headers, stacked VLAN tags (slow path).
"""
from functools import reduce
from operator import or_

from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc import opcodes
from roce_soc.common import DATA_WIDTH, roce_frame_description, roce_header_description, roce_wire_description
from roce_soc.errors import ERRORS
from roce_soc.packet.header import big_endian

# Place of the IP header, untagged and tagged.
IP_AT = {0: opcodes.ETHERNET_BYTES, 1: opcodes.ETHERNET_BYTES + opcodes.VLAN_BYTES}


def lane_of(last_be):
    """Number of the lane that a one-hot `last_be` names."""
    return Cat(*[(last_be & sum(1 << n for n in range(len(last_be)) if n >> i & 1)) != 0 for i in range(log2_int(len(last_be)))])


# ExtensionHeaders ---------------------------------------------------------------------------------

class ExtensionHeaders(LiteXModule):
    """Looks for UDP to port 4791 behind one or two IPv6 extension headers.

    Headers begin at multiples of eight bytes behind the IPv6 header. The first one's end is found while the first beat
    is registered, the second one's a clock later.

    Signals
    -------
    load, tagged, beat : in
        The first beat of a frame, and whether it has a tag.
    window, vlan : in
        The clock after: two beats, and the same flag.
    found, size : out
        With `window`: there is one, behind `size` bytes of extension headers.

    Latency: `found` in the clock of `window`. Errors: none.
    """
    def __init__(self, dw=DATA_WIDTH):
        self.load, self.tagged, self.beat = Signal(), Signal(), Signal(dw)
        self.window, self.vlan            = Signal(2*dw), Signal()
        self.found, self.size             = Signal(), Signal(6)

        # # #

        steps = range(1, opcodes.IPV6_EXTENSION_BYTES//8 + 1)

        def header(tag, data, place):
            """Eight bytes at `place` times eight behind the IPv6 header."""
            word, first = Signal(64), [IP_AT[t] + opcodes.IPV6_BYTES + 8*place for t in (0, 1)]
            self.comb += word.eq(Mux(tag, data[8*first[1]:8*first[1] + 64], data[8*first[0]:8*first[0] + 64]))
            return word

        def is_option(kind):
            return reduce(or_, [kind == n for n in opcodes.IPV6_EXTENSIONS])

        def goes(word, count, option, fragment):
            """The header is as long as `count` times eight bytes; a fragment has ports only if it is the first."""
            by_length = option & (word[8:16] == count - 1)
            return by_length | (fragment & (big_endian(word, 2, 2)[3:] == 0)) if count == 1 else by_length

        # First header.
        kind, udp, option, fragment = Signal(8), Signal(), Signal(), Signal()
        at    = Signal(len(steps))        # one bit for each place of the header behind it.
        ip    = {tag: IP_AT[tag] for tag in (0, 1)}
        first = header(self.tagged, self.beat, 0)
        self.comb += kind.eq(Mux(self.tagged, self.beat[8*(ip[1] + 6):8*(ip[1] + 7)], self.beat[8*(ip[0] + 6):8*(ip[0] + 7)]))
        self.sync += If(self.load,
            [at[n].eq(goes(first, count, is_option(kind), kind == opcodes.IPV6_FRAGMENT)) for n, count in enumerate(steps)],
            udp.eq(first[:8] == opcodes.IP_PROTOCOL_UDP),
            option.eq(is_option(first[:8])),
            fragment.eq(first[:8] == opcodes.IPV6_FRAGMENT),
        )

        # Second header; UDP at each place, and its port.
        words = {place: header(self.vlan, self.window, place) for place in steps}
        ends  = Signal(len(steps))
        self.comb += [ends[n].eq(((at[n] & udp) | reduce(or_, [at[m] & (words[start][:8] == opcodes.IP_PROTOCOL_UDP)
                & goes(words[start], place - start, option, fragment) for m, start in enumerate(steps) if start < place], 0))
            & (big_endian(words[place], 2, 2) == opcodes.UDP_PORT)) for n, place in enumerate(steps)]
        self.comb += [
            self.found.eq(ends != 0),
            self.size.eq(reduce(or_, [Mux(ends[n], 8*place, 0) for n, place in enumerate(steps)])),
        ]


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
    is_local : Signal, in
        With a frame's beats: it was turned round inside.
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
        MAC_ERROR behind the last beat. What has no whole UDP header to port 4791 in its first 128 bytes is the slow
        path's; behind IPv4 options no port is looked for.
    """
    def __init__(self, dw=DATA_WIDTH):
        if dw != DATA_WIDTH:
            raise ValueError(f"data_width must be {DATA_WIDTH}, not {dw!r}")
        # Stream Endpoints.
        self.is_local       = Signal()
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
        older_local = Signal()
        sink_first  = Signal(reset=1)
        advance     = Signal()
        self.comb += [
            sink.ready.eq(1),
            advance.eq(older_valid & (older_last | sink.valid)),
        ]
        tagged, v4, v6 = Signal(), Signal(2), Signal(2)
        version = [Signal(4), Signal(4)]       # of the IP header, untagged and tagged.
        self.sync += [
            If(sink.valid,
                older_valid.eq(1),
                older.data.eq(sink.data),
                older.last_be.eq(sink.last_be),
                older.error.eq(sink.error),
                older_first.eq(sink_first),
                older_last.eq(sink.last),
                older_local.eq(self.is_local),
                sink_first.eq(sink.last),
                tagged.eq(big_endian(sink.data, 12, 2) == opcodes.ETHERTYPE_VLAN),
                v4[0].eq((big_endian(sink.data, 12, 2) == opcodes.ETHERTYPE_IPV4)),
                v6[0].eq((big_endian(sink.data, 12, 2) == opcodes.ETHERTYPE_IPV6)),
                v4[1].eq((big_endian(sink.data, 16, 2) == opcodes.ETHERTYPE_IPV4)),
                v6[1].eq((big_endian(sink.data, 16, 2) == opcodes.ETHERTYPE_IPV6)),
                [version[tag].eq(sink.data[8*at + 4:8*at + 8]) for tag, at in IP_AT.items()],
            ).Elif(advance,
                older_valid.eq(0),
            )
        ]

        # Stage 1: beat and window registered, layout flags resolved.
        s1       = Record(older.layout)
        s1_valid, s1_first, s1_last, s1_local = Signal(), Signal(), Signal(), Signal()
        s1_next  = Signal(dw)
        s1_next_last, s1_next_be = Signal(), Signal(dw//8)
        vlan, ipv4, ipv6 = Signal(), Signal(), Signal()
        self.extensions = extensions = ExtensionHeaders()
        self.comb += [
            extensions.load.eq(advance & older_first),
            extensions.tagged.eq(tagged),
            extensions.beat.eq(older.data),
        ]
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
                    s1_local.eq(older_local),
                    s1_next_last.eq(sink.last),
                    s1_next_be.eq(sink.last_be),
                    vlan.eq(tagged),
                    ipv4.eq(Mux(tagged, v4[1] & (version[1] == 4), v4[0] & (version[0] == 4))),
                    ipv6.eq(Mux(tagged, v6[1] & (version[1] == 6), v6[0] & (version[0] == 6))),
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
        ip_at  = IP_AT
        self.comb += extensions.window.eq(window), extensions.vlan.eq(vlan)

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
        later, chained           = Signal(), Signal()      # fragment without ports; UDP behind extension headers.
        # Bytes of the window that are the frame's, and those it must have.
        s2_bytes, needed         = Signal(8), Signal(8)
        ip_place                 = Signal(6)               # of what the IP length counts from.
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
                header.vid.eq(Mux(vlan, big_endian(s1.data, opcodes.ETHERNET_BYTES, 2)[:12], 0)),
                header.local.eq(s1_local),
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
                fragment.eq(~ipv6 & ((at(6, 2) & 0x2000) != 0)),
                later.eq(~ipv6 & ((at(6, 2) & 0x1fff) != 0)),
                options.eq(~ipv6 & (at(0, 1)[:4] != 5)),
                chained.eq(ipv6 & extensions.found),
                ip_place.eq(Mux(ipv6, Mux(vlan, 58, 54), Mux(vlan, 18, 14))),
                If(s1_last,
                    s2_bytes.eq(lane_of(s1.last_be) + 1),
                ).Elif(s1_next_last,
                    s2_bytes.eq(lane_of(s1_next_be) + dw//8 + 1),
                ).Else(
                    s2_bytes.eq(2*dw//8),
                ),
                If(ipv6,
                    needed.eq(Mux(vlan, 66, 62) + Mux(extensions.found, extensions.size, 0)),
                ).Elif(at(0, 1)[:4] == 5,
                    needed.eq(Mux(vlan, 46, 42)),
                ).Else(
                    needed.eq(Mux(vlan, 38, 34)),
                ),
                [partial[i].eq(Mux(ipv6, 0x1fffe if i == 0 else 0, at(4*i, 2) + at(4*i + 2, 2))) for i in range(5)],
            ),
        ]

        # Stage 3: class of the frame; RoCE keeps bad ones with the row they break.
        roce, slow = Signal(), Signal()
        keep_roce, keep_slow = Signal(), Signal()
        self.comb += [
            # Behind options the port is not where it seems to be, and a fragment that is not the first has none.
            roce.eq(ip_frame & (chained | (udp_protocol & ~later & (roce_port | options)))
                & (s2_bytes >= needed)),
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
        ip_end = Signal(17)
        self.comb += ip_end.eq(total_length + ip_place)
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
                source.end.eq(ip_end),
                # No frame is as long.
                If(ip_end[14:] != 0, source.end.eq(0x3fff)),
                # Such a frame is refused for that, whatever its lengths say.
                If(options | chained | fragment, source.end.eq(0)),
                l3_bytes.eq(total_length - opcodes.IPV4_BYTES),
                If(total_length < opcodes.IPV4_BYTES, l3_bytes.eq(0)),
                If(header.ipv6, l3_bytes.eq(total_length)),
                checksum_a.eq(partial[0] + partial[1] + partial[2]),
                checksum_b.eq(partial[3] + partial[4]),
                bad_fragment.eq(fragment),
                bad_options.eq(options | chained),
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
            If(bad_length, source.row.eq(ERRORS["UDP_LENGTH"].index)),
            # Folded, that is with its carries added, the sum must be all ones: low half = ones - carries.
            If(checksum[:16] != ones_left, source.row.eq(ERRORS["IP_CHECKSUM"].index)),
            If(bad_early[0], source.row.eq(ERRORS["IP_FRAGMENT"].index)),
            If(bad_early[1], source.row.eq(ERRORS["IP_OPTIONS"].index)),
        ]
