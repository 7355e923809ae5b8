# SPDX-License-Identifier: BSD-2-Clause
"""Slow path: frames that are not RoCE, answered by LiteEth (ARP, ICMP echo) and seen by the CPU.

Ref: RFC 826 (ARP), RFC 792 (ICMP echo).
Not supported: IPv6 in hardware (the CPU sees it), frames above 1530 bytes, Etherbone.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream
from litex.soc.interconnect.csr import *
from litex.soc.interconnect.packet import Arbiter

from liteeth.common import convert_ip, eth_min_frame_length, eth_fcs_length, eth_phy_description
from liteeth.core.arp import LiteEthARP
from liteeth.core.icmp import LiteEthICMP
from liteeth.core.ip import LiteEthIP
from liteeth.mac import LiteEthMACCrossbar, LiteEthMACDepacketizer, LiteEthMACPacketizer
from liteeth.mac.padding import LiteEthMACPaddingInserter
from liteeth.mac.wishbone import LiteEthMACWishboneInterface

from roce_soc.clocks import ClockLink
from roce_soc.common import DATA_BYTES, roce_wire_description
from roce_soc.network.echo import EchoFilter, EchoSenders
from roce_soc.table import clocked_port

MAX_SLOW_FRAME = 1530     # bytes without FCS: LiteEth's slots.
SLOW_WIDTH     = 64       # bits: the widest that LiteEth's MAC side knows.
WORDS          = 8*DATA_BYTES//SLOW_WIDTH
REASONS        = ("mac", "long", "full", "error")


# SlowPathFilter -----------------------------------------------------------------------------------

class SlowPathFilter(LiteXModule):
    """Takes frames meant for this station, whole and short enough, into a small memory; drops the others.

    Parameters
    ----------
    depth : int
        Beats of the memory, a power of two, at least one longest frame (32).

    Endpoints
    ---------
    sink : roce_wire_description(512), in
        Never stalls: ready is 1.
    source : roce_wire_description(512), out
        Complete frames without error, in order.
    mac_address : Signal(48), in
        Own address; broadcast and group addresses pass as well.
    dropped : {reason: pulse}, one clock a frame: other MAC, too long, no room, error mark.

    Latency: 3 clocks from the last beat; one beat a clock.
    Errors : a frame is dropped whole, for the first reason found, and counted by the owner of `dropped`.
    """
    def __init__(self, depth=128):
        if depth < 32 or depth & (depth - 1):
            raise ValueError(f"depth must be a power of two, 32 or more, not {depth!r}")
        # Stream Endpoints.
        self.sink        = sink   = stream.Endpoint(roce_wire_description())
        self.source      = source = stream.Endpoint(roce_wire_description())
        self.mac_address = Signal(48)
        self.dropped     = {reason: Signal(name=f"dropped_{reason}") for reason in REASONS}

        # # #

        max_beats = -(-MAX_SLOW_FRAME//DATA_BYTES)
        tail      = MAX_SLOW_FRAME - (max_beats - 1)*DATA_BYTES
        bits      = log2_int(depth)
        storage   = Memory(8*DATA_BYTES + DATA_BYTES + 1, depth)
        wrport    = storage.get_port(write_capable=True)
        rdport    = clocked_port(storage, has_re=True)
        self.specials += storage, wrport, rdport

        # Judgement of the frame at its beats; the first reason stays.
        beat     = Signal(max=max_beats + 1)
        verdict  = Signal(max=len(REASONS) + 1)     # 0: good so far, else reason + 1.
        judged   = Signal(max=len(REASONS) + 1)
        produce, commit, consume = Signal(bits + 1), Signal(bits + 1), Signal(bits + 1)
        level    = Signal(bits + 1)
        target   = Signal(48)
        foreign, late = Signal(), Signal()
        self.comb += [
            sink.ready.eq(1),
            target.eq(Cat(*[sink.data[8*(5 - i):8*(6 - i)] for i in range(6)])),
            foreign.eq((beat == 0) & ~target[40] & (target != self.mac_address)),
            late.eq((beat == max_beats) | ((beat == (max_beats - 1)) & (~sink.last | (sink.last_be[tail:] != 0)))),
            level.eq(produce - consume),
            If(verdict != 0,
                judged.eq(verdict),
            ).Elif(foreign,
                judged.eq(1 + REASONS.index("mac")),
            ).Elif(late,
                judged.eq(1 + REASONS.index("long")),
            ).Elif(level == depth,
                judged.eq(1 + REASONS.index("full")),
            ).Elif(sink.last & (sink.error != 0),
                judged.eq(1 + REASONS.index("error")),
            ),
            wrport.adr.eq(produce),
            wrport.dat_w.eq(Cat(sink.data, sink.last_be, sink.last)),
            wrport.we.eq(sink.valid & (judged == 0)),
            [self.dropped[r].eq(sink.valid & sink.last & (judged == 1 + n)) for n, r in enumerate(REASONS)],
        ]
        self.sync += If(sink.valid,
            If(beat != max_beats, beat.eq(beat + 1)),
            verdict.eq(judged),
            If(judged == 0, produce.eq(produce + 1)),
            If(sink.last,
                beat.eq(0),
                verdict.eq(0),
                If(judged == 0, commit.eq(produce + 1)).Else(produce.eq(commit)),
            )
        )

        # Read side: a register that holds.
        take, first = Signal(), Signal(reset=1)
        self.comb += [
            take.eq((consume != commit) & (~source.valid | source.ready)),
            rdport.adr.eq(consume),
            rdport.re.eq(take),
            Cat(source.data, source.last_be, source.last).eq(rdport.dat_r),
            source.error.eq(0),
            source.first.eq(first),
        ]
        self.sync += [
            If(take, consume.eq(consume + 1)),
            If(take, source.valid.eq(1)).Elif(source.ready, source.valid.eq(0)),
            If(source.valid & source.ready, first.eq(source.last)),
        ]


# Width converters ---------------------------------------------------------------------------------

class SlowPathNarrow(LiteXModule):
    """512-bit beats to 64-bit words.

    Endpoints: sink roce_wire_description(512), source eth_phy_description(64).
    Latency: none; a word a clock. Errors: none (`error` is not carried).
    """
    def __init__(self):
        # Stream Endpoints.
        self.sink   = sink   = stream.Endpoint(roce_wire_description())
        self.source = source = stream.Endpoint(eth_phy_description(SLOW_WIDTH))

        # # #

        word, final = Signal(max=WORDS), Signal()
        lanes = SLOW_WIDTH//8
        self.comb += [
            Case(word, {n: [
                source.data.eq(sink.data[SLOW_WIDTH*n:SLOW_WIDTH*(n + 1)]),
                If(sink.last, source.last_be.eq(sink.last_be[lanes*n:lanes*(n + 1)])),
            ] for n in range(WORDS)}),
            source.valid.eq(sink.valid),
            source.last.eq(source.last_be != 0),
            final.eq(source.last | (word == (WORDS - 1))),
            sink.ready.eq(source.ready & final),
        ]
        self.sync += If(source.valid & source.ready, If(final, word.eq(0)).Else(word.eq(word + 1)))


class SlowPathWiden(LiteXModule):
    """64-bit words to 512-bit beats; lanes behind the last byte are 0.

    Endpoints: sink eth_phy_description(64), source roce_wire_description(512).
    Latency: 1 clock from the beat's last word; a word a clock. Errors: a mark on the last word stays one.
    """
    def __init__(self):
        # Stream Endpoints.
        self.sink   = sink   = stream.Endpoint(eth_phy_description(SLOW_WIDTH))
        self.source = source = stream.Endpoint(roce_wire_description())

        # # #

        word, first = Signal(max=WORDS), Signal(reset=1)
        lanes = SLOW_WIDTH//8
        self.comb += [
            sink.ready.eq(~source.valid | source.ready),
            source.first.eq(first),
        ]
        self.sync += [
            If(source.valid & source.ready, source.valid.eq(0), first.eq(source.last)),
            If(sink.valid & sink.ready,
                If(word == 0, source.data.eq(0)),
                Case(word, {n: source.data[SLOW_WIDTH*n:SLOW_WIDTH*(n + 1)].eq(sink.data) for n in range(WORDS)}),
                source.last.eq(sink.last),
                source.error.eq(Replicate((sink.error & sink.last_be) != 0, DATA_BYTES)),
                source.last_be.eq(0),
                If(sink.last, Case(word, {n: source.last_be[lanes*n:lanes*(n + 1)].eq(sink.last_be) for n in range(WORDS)})),
                source.valid.eq(sink.last | (word == (WORDS - 1))),
                If(sink.last | (word == (WORDS - 1)), word.eq(0)).Else(word.eq(word + 1)),
            )
        ]


# RoCESlowPath -------------------------------------------------------------------------------------

class RoCESlowPath(LiteXModule):
    """Everything that is not RoCE: own frames are answered in hardware and copied to the CPU's slots.

    ::

        sink ─► filter ─► 512:64 ─┬─► echo filter ─► LiteEth MAC crossbar ─► ARP, IP ─► ICMP ─┐
                                  └─► slots (CPU) ──────────────────────────────────────────┬─┴► padding ─► 64:512 ─► source

    Reception waits for nobody: what the cores have no room for is dropped. An echo request is answered to the MAC address
    it came from, so no answer waits for ARP.

    Parameters
    ----------
    mac_address : int
        Own MAC after reset, a unicast address of 48 bits.
    ip_address : str or int
        Own IPv4 address after reset.
    clk_freq : number
        Hz; ARP's repetition time follows from it.
    rx_slots, tx_slots : int
        Frames that the CPU's memory holds, each 2 KiB.
    link : ClockLink
        `sink` and `source` are far, all else is near; default one clock.

    Endpoints
    ---------
    sink : roce_wire_description(512), in
        Never stalls; what does not fit is dropped and counted.
    source : roce_wire_description(512), out
        Frames of at least 60 bytes; words may come with gaps.
    cpu.bus_rx, cpu.bus_tx : wishbone.Interface(64), the CPU's slots.

    Latency: a 64-bit word a clock each way, some 20 clocks from a request's end to its answer.
    Errors : counters `rx_dropped_*`. The CPU's own losses are in `cpu_sram_writer_errors`.
    """
    def __init__(self, mac_address, ip_address, clk_freq, *, rx_slots=4, tx_slots=2, link=None):
        link = ClockLink() if link is None else link
        if not 0 < mac_address < 1 << 48 or mac_address >> 40 & 1:
            raise ValueError(f"mac_address must be a unicast address of 48 bits, not {mac_address:#x}")
        # Stream Endpoints.
        self.sink   = stream.Endpoint(roce_wire_description())
        self.source = stream.Endpoint(roce_wire_description())
        # CSRs.
        self.mac_address = CSRStorage(48, reset=mac_address, description="Own MAC address (number, first byte most significant)."
            " Written by firmware before frames are expected.", atomic_write=True)
        self.ip_address = CSRStorage(32, reset=convert_ip(ip_address),
            description="Own IPv4 address: ARP and ICMP echo are answered for it.")
        self.rx_frames = CSRStatus(32, description="Frames taken. Free-running, wraps.")
        self.tx_frames = CSRStatus(32, description="Frames sent. Free-running, wraps.")
        text = {
            "mac":   "Frames dropped: neither own, broadcast nor group address.",
            "long":  f"Frames dropped: longer than {MAX_SLOW_FRAME} bytes.",
            "full":  "Frames dropped: no room.",
            "error": "Frames dropped: marked bad by the MAC.",
        }
        self.echo_dropped = CSRStatus(32, description="ARP frames and echo requests dropped: no room. Free-running, wraps.")
        for reason in REASONS:
            name = f"rx_dropped_{reason}"
            setattr(self, name, CSRStatus(32, name=name, description=f"{text[reason]} Free-running, wraps."))

        # # #

        dw = SLOW_WIDTH
        mac_number, ip_number = self.mac_address.storage, self.ip_address.storage

        # Width.
        self.filter = link.on_far(SlowPathFilter())
        self.narrow = link.on_far(SlowPathNarrow())
        self.widen  = link.on_far(SlowPathWiden())
        words_in, rx_words = link.add_frames(eth_phy_description(dw), to_far=False)
        tx_words, widen_in = link.add_frames(eth_phy_description(dw), to_far=True)
        self.comb += [
            self.filter.mac_address.eq(link.add_word(mac_number, to_far=True)),
            self.narrow.source.connect(words_in),
            widen_in.connect(self.widen.sink),
            self.sink.connect(self.filter.sink),
            self.filter.source.connect(self.narrow.sink),
            self.widen.source.connect(self.source),
        ]

        # LiteEth: ARP and ICMP echo. The cores take their MAC as one object with a crossbar.
        self.crossbar     = LiteEthMACCrossbar(dw)
        self.packetizer   = LiteEthMACPacketizer(dw)
        self.depacketizer = LiteEthMACDepacketizer(dw)
        self.arp  = LiteEthARP(mac=self, mac_address=mac_number, ip_address=ip_number, clk_freq=clk_freq, entries=4, dw=dw)
        self.senders = EchoSenders()
        self.ip   = LiteEthIP(mac=self, mac_address=mac_number, ip_address=ip_number, arp_table=self.senders,
            with_broadcast=False, dw=dw)
        self.icmp = LiteEthICMP(ip=self.ip, ip_address=ip_number, dw=dw, fifo_depth=2048)

        # CPU.
        self.cpu       = LiteEthMACWishboneInterface(dw, nrxslots=rx_slots, ntxslots=tx_slots, endianness="little")
        self.rx_slots  = CSRConstant(rx_slots)
        self.tx_slots  = CSRConstant(tx_slots)
        self.slot_size = CSRConstant(2048)

        # RX: each word to both; a FIFO cuts the way from one's ready to the other's valid.
        self.echo     = echo = EchoFilter()
        self.cpu_fifo = stream.SyncFIFO(eth_phy_description(dw), 4)
        words         = self.senders.words
        self.comb += [
            echo.mac_address.eq(mac_number),
            echo.ip_address.eq(ip_number),
            rx_words.connect(self.cpu_fifo.sink),
            rx_words.connect(echo.sink, omit={"valid", "ready"}),
            echo.sink.valid.eq(rx_words.valid & rx_words.ready),
            echo.source.connect(self.depacketizer.sink),
            echo.source.connect(words, omit={"valid", "ready"}),
            words.valid.eq(echo.source.valid),
            words.ready.eq(echo.source.ready),
            self.cpu_fifo.source.connect(self.cpu.sink),
            self.depacketizer.source.connect(self.crossbar.master.sink),
        ]

        # TX: frames take turns.
        self.merged  = merged = stream.Endpoint(eth_phy_description(dw))
        self.arbiter = Arbiter([self.packetizer.source, self.cpu.source], merged)
        self.padding = LiteEthMACPaddingInserter(dw, eth_min_frame_length - eth_fcs_length)
        self.comb += [
            self.crossbar.master.source.connect(self.packetizer.sink),
            merged.connect(self.padding.sink),
            self.padding.source.connect(tx_words),
        ]

        # Counters.
        self.sync += If(echo.full, self.echo_dropped.status.eq(self.echo_dropped.status + 1))
        self.count(link, self.rx_frames, self.filter.source.valid & self.filter.source.ready & self.filter.source.last)
        self.count(link, self.tx_frames, self.source.valid & self.source.ready & self.source.last)
        for reason in REASONS:
            self.count(link, getattr(self, f"rx_dropped_{reason}"), self.filter.dropped[reason])

    def count(self, link, csr, pulse):
        """Counted in the clock of the frames."""
        counter = Signal(len(csr.status))
        sync    = getattr(self.sync, link.far.domain)
        sync   += If(pulse, counter.eq(counter + 1))
        self.comb += csr.status.eq(link.add_word(counter, to_far=False))

    @property
    def rx_bytes(self):
        """Bytes of the CPU's receive slots."""
        return self.rx_slots.constant*self.slot_size.constant

    @property
    def tx_bytes(self):
        """Bytes of the CPU's transmit slots."""
        return self.tx_slots.constant*self.slot_size.constant
