# SPDX-License-Identifier: BSD-2-Clause
"""What of the slow path's frames LiteEth's ARP and ICMP cores get to see, and where their answers go.

Ref: RFC 826 (ARP), RFC 791, RFC 792 (echo), RFC 1071 (checksum), RFC 1122 3.2.1.3, 3.2.2 (to whom nothing is answered).
Not supported: echo requests with a VLAN tag, IPv4 options or in fragments (the CPU sees them).
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from liteeth.common import (
    arp_table_request_layout, arp_table_response_layout, eth_phy_description, ethernet_type_arp, ethernet_type_ip,
    icmp_protocol, icmp_type_ping_request)

from roce_soc.network.receive import lane_of
from roce_soc.packet.header import big_endian

WIDTH       = 64
LANES       = WIDTH//8
DEPTH       = 512        # words: two longest frames and more.
ROWS        = 8          # senders: more than LiteEth's cores hold echo requests.
ETHERNET    = 14
LEAST_IP    = 28         # bytes of an echo request without data, from the IP header on.
LEAST_FRAME = 42         # bytes of it, and of an ARP message, with the Ethernet header.


# EchoFilter ---------------------------------------------------------------------------------------

class EchoFilter(LiteXModule):
    """Lets whole ARP frames and sound echo requests through, and never waits for those who answer them.

    Endpoints
    ---------
    sink : eth_phy_description(64), in
        Every frame; ready is 1.
    source : eth_phy_description(64), out
        ARP frames from single MAC addresses; echo requests to the own MAC and IP address from a single one, not
        fragmented, as long as they say, ICMP checksum right. (LiteEth checks that of the IPv4 header.)
    mac_address, ip_address : Signal(48), Signal(32), in
    full : Signal, out
        One clock for each of these that found no room.

    Latency: 5 clocks from the last word; a word a clock.
    Errors : whatever else comes is dropped whole; the CPU has its own copy.
    """
    def __init__(self):
        # Stream Endpoints.
        self.sink   = sink   = stream.Endpoint(eth_phy_description(WIDTH))
        self.source = source = stream.Endpoint(eth_phy_description(WIDTH))
        self.mac_address, self.ip_address = Signal(48), Signal(32)
        self.full = Signal()

        # # #

        # Fields, word by word; what is wrong for an echo request, and for everybody.
        word, seen       = Signal(8), Signal(12)      # `seen`: bytes up to this word's end or the frame's.
        arp, ip          = Signal(), Signal()
        wrong, bad       = Signal(), Signal()
        no_echo, refused = Signal(), Signal()         # sticky: of the words before.
        total, end       = Signal(16), Signal(17)
        low, address, single = Signal(16), Signal(32), Signal()

        def number(first, count):
            return big_endian(sink.data, first, count)
        self.comb += [
            sink.ready.eq(1),
            seen.eq(Cat(Constant(0, 3), word) + Mux(sink.last, lane_of(sink.last_be) + 1, LANES)),
            end.eq(total + ETHERNET),
            # A host: neither this one, nor of network 0 or 127, nor group, reserved or broadcast. An address that ends
            # with 255 LiteEth would answer by broadcast.
            address.eq(number(2, 4)),
            single.eq((address != self.ip_address) & (address[24:] != 0) & (address[24:] != 127) & (address[29:] != 7)
                & (address[:8] != 0xff)),
            Case(word, {
                0: [bad.eq(sink.data[8*6]), wrong.eq(number(0, 6) != self.mac_address)],
                1: wrong.eq(number(6, 1) != 0x45),
                2: wrong.eq(((number(4, 2) & 0x3fff) != 0) | (number(7, 1) != icmp_protocol)),
                3: wrong.eq(~single | (number(6, 2) != self.ip_address[16:])),
                4: wrong.eq((number(0, 2) != self.ip_address[:16]) | (number(2, 2) != icmp_type_ping_request << 8)),
                "default": wrong.eq(0),
            }),
        ]
        self.sync += If(sink.valid,
            If(word != 0xff, word.eq(word + 1)),
            If(word == 1,
                arp.eq(number(4, 2) == ethernet_type_arp),
                ip.eq(number(4, 2) == ethernet_type_ip),
            ),
            If(word == 2, total.eq(number(0, 2))),
            no_echo.eq(((word != 0) & no_echo) | wrong),
            refused.eq(((word != 0) & refused) | bad),
            If(sink.last, word.eq(0)),
        )

        # Clock 1: the ICMP message's halves of this word added up; the frame's fate but for its checksum.
        self.s1 = s1 = stream.Endpoint(eth_phy_description(WIDTH))
        counts  = [Signal(name=f"counts{i}") for i in range(LANES)]
        halves  = Signal(18)
        part    = Signal(18)
        s1_first, s1_good, s1_arp = Signal(), Signal(), Signal()
        place   = Cat(Constant(0, 3), word)
        masked  = Cat(*[sink.data[8*i:8*i + 8] & Replicate(counts[i], 8) for i in range(LANES)])
        masked_word = Signal(WIDTH)
        self.comb += [
            [counts[i].eq((word >= (4 if i >= 2 else 5)) & ((place + i) < end)) for i in range(LANES)],
            masked_word.eq(masked),
            halves.eq(sum((big_endian(masked_word, i, 2) for i in range(2, LANES, 2)), big_endian(masked_word, 0, 2))),
        ]
        self.sync += [
            s1.valid.eq(sink.valid),
            s1.last.eq(sink.last),
            s1.data.eq(sink.data),
            s1.last_be.eq(sink.last_be),
            s1_first.eq(word == 0),
            part.eq(halves),
            s1_arp.eq(arp),
            s1_good.eq((seen >= LEAST_FRAME) & ~refused & ((sink.error & sink.last_be) == 0)
                & (arp | (ip & ~no_echo & (total >= LEAST_IP) & (end <= seen)))),
        ]

        # Clocks 2 and 3: the message's sum, and folded.
        self.s2 = s2 = stream.Endpoint(eth_phy_description(WIDTH))
        self.s3 = s3 = stream.Endpoint(eth_phy_description(WIDTH))
        total_sum, folded = Signal(28), Signal(17)
        s2_good, s3_good, s2_arp, s3_arp = Signal(), Signal(), Signal(), Signal()
        for after, before in ((s2, s1), (s3, s2)):
            self.sync += [getattr(after, n).eq(getattr(before, n)) for n in ("valid", "last", "data", "last_be")]
        self.sync += [
            If(s1.valid, total_sum.eq(Mux(s1_first, 0, total_sum) + part)),
            s2_good.eq(s1_good), s3_good.eq(s2_good), s2_arp.eq(s1_arp), s3_arp.eq(s2_arp),
            folded.eq(total_sum[:16] + total_sum[16:]),
        ]

        # Stored; the last word decides whether the frame stays.
        storage = Memory(WIDTH + LANES + 1, DEPTH)
        write   = storage.get_port(write_capable=True)
        read    = storage.get_port(has_re=True, mode=READ_FIRST)
        self.specials += storage, write, read
        bits    = log2_int(DEPTH)
        produce, commit, consume = Signal(bits + 1), Signal(bits + 1), Signal(bits + 1)
        level, lost, room, good  = Signal(bits + 1), Signal(), Signal(), Signal()
        self.comb += [
            level.eq(produce - consume),
            room.eq(~lost & (level != DEPTH)),
            good.eq(s3_good & (s3_arp | (folded == 0xffff) | (folded == 0x1fffe))),
            write.we.eq(s3.valid & room),
            write.adr.eq(produce),
            write.dat_w.eq(Cat(s3.data, s3.last_be, s3.last)),
            self.full.eq(s3.valid & s3.last & good & ~room),
        ]
        self.sync += If(s3.valid,
            lost.eq(~room),
            If(room, produce.eq(produce + 1)),
            If(s3.last,
                lost.eq(0),
                If(good & room, commit.eq(produce + 1)).Else(produce.eq(commit)),
            ),
        )

        # Read side: a register that holds.
        take = Signal()
        self.comb += [
            take.eq((consume != commit) & (~source.valid | source.ready)),
            read.adr.eq(consume),
            read.re.eq(take),
            Cat(source.data, source.last_be, source.last).eq(read.dat_r),
        ]
        self.sync += [
            If(take, consume.eq(consume + 1)),
            If(take, source.valid.eq(1)).Elif(source.ready, source.valid.eq(0)),
        ]


# EchoSenders --------------------------------------------------------------------------------------

class EchoSenders(LiteXModule):
    """Stands where LiteEthIP wants its ARP table: an answer goes to the MAC address its request came from, at once.

    An ARP request per answer could stay without reply, and all answers behind it would wait; through a router it has none.

    Endpoints
    ---------
    words : eth_phy_description(64), in
        Frames on their way to LiteEth, watched only (valid and ready).
    request : {ip_address}, in; response : {failed, mac_address}, out
        As LiteEthARPTable. `failed`: not among the last ROWS senders; LiteEth drops that answer.

    Latency: 1 clock.
    Errors : `failed`.
    """
    def __init__(self):
        # Stream Endpoints.
        self.words    = words    = stream.Endpoint(eth_phy_description(WIDTH))
        self.request  = request  = stream.Endpoint(arp_table_request_layout)
        self.response = response = stream.Endpoint(arp_table_response_layout)

        # # #

        # Senders, newest first.
        word = Signal(3)
        mac, is_ip = Signal(48), Signal()
        rows = [Record([("valid", 1), ("ip_address", 32), ("mac_address", 48)], name=f"row{n}") for n in range(ROWS)]
        self.sync += If(words.valid & words.ready,
            If(words.last, word.eq(0)).Elif(word != 7, word.eq(word + 1)),
            If(word == 0, mac[32:].eq(big_endian(words.data, 6, 2))),
            If(word == 1, mac[:32].eq(big_endian(words.data, 0, 4))),
            If(word == 1, is_ip.eq(big_endian(words.data, 4, 2) == ethernet_type_ip)),
            If((word == 3) & is_ip,
                [after.eq(before) for after, before in zip(rows[1:], rows)],
                rows[0].valid.eq(1),
                rows[0].ip_address.eq(big_endian(words.data, 2, 4)),
                rows[0].mac_address.eq(mac),
            ),
        )

        found, target = Signal(), Signal(48)
        for row in reversed(rows):
            self.comb += If(row.valid & (row.ip_address == request.ip_address), found.eq(1), target.eq(row.mac_address))
        self.comb += request.ready.eq(~response.valid)
        self.sync += [
            If(response.ready, response.valid.eq(0)),
            If(request.valid & request.ready,
                response.valid.eq(1),
                response.failed.eq(~found),
                response.mac_address.eq(target),
            ),
        ]
