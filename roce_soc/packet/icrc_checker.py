# SPDX-License-Identifier: BSD-2-Clause
"""ICRC of received frames: judges each beside the decoder.

Ref: InfiniBand Architecture vol. 1 ch. 7.8.1 (invariant CRC), Annex A17.3.3 (fields read as ones).
Not supported: data widths other than 512.
"""
from operator import and_, xor

from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc import opcodes
from roce_soc.common import DATA_BYTES, DATA_WIDTH
from roce_soc.packet.icrc import CRC_BITS, ICRCMask, crc_step, data_columns, multiply, step_columns, tree


def residue(lanes):
    """Register after a good packet that ends behind `lanes` bytes of its last beat, zeros to the beat's end."""
    return crc_step(opcodes.ICRC_RESIDUE, 8*(DATA_BYTES - lanes))


# ICRCChecker --------------------------------------------------------------------------------------

class ICRCChecker(LiteXModule):
    """Watches a stream of received frames and judges each one's ICRC.

    The place of the ICRC comes from the UDP length alone; what follows it in the frame is ignored. The
    beat is summed in the pieces that an end can leave of it, so that the end may be told after the beat.

    Endpoints
    ---------
    sink : {valid, first, last, data 512, vlan, ipv6}, in
        Beats from the Ethernet header on. vlan, ipv6 hold from the first beat to the last. No ready.
    end, judge : Signal, in
        The clock after a beat, of its frame: the byte behind the ICRC, counted from the frame's start;
        whether the frame gets a verdict.
    valid, good : Signal, out
        One pulse of `valid` a judged frame, in frame order.

    Latency: `valid` LATENCY clocks after the last beat, whatever the gaps; one beat a clock.
    Errors : a frame shorter than `end`, or an `end` that is not 2 modulo 4, is not good.
    """
    LATENCY = 4

    def __init__(self, dw=DATA_WIDTH):
        if dw != DATA_WIDTH:
            raise ValueError(f"data_width must be {DATA_WIDTH}, not {dw!r}")
        # Stream Endpoints.
        self.sink  = sink = stream.Endpoint(stream.EndpointDescription([("data", dw)], [("vlan", 1), ("ipv6", 1)]))
        self.end   = end  = Signal(14)
        self.judge = Signal()
        self.valid = Signal()
        self.good  = Signal()

        # # #

        # Clock 1: fields read as ones.
        self.mask = mask = ICRCMask(dw)
        beat, number = Signal(8), Signal(8)
        m_valid, m_first, m_last = Signal(), Signal(), Signal()
        m_data, m_number = Signal(dw), Signal(8)
        self.comb += [
            sink.ready.eq(1),
            number.eq(Mux(sink.first, 0, beat)),
            mask.data.eq(sink.data),
            mask.vlan.eq(sink.vlan),
            mask.ipv6.eq(sink.ipv6),
            mask.first.eq(sink.first),
            mask.second.eq(number == 1),
        ]
        self.sync += [
            m_valid.eq(sink.valid),
            If(sink.valid,
                If(number != 0xff, beat.eq(number + 1)),
                m_data.eq(mask.masked),
                m_first.eq(sink.first),
                m_last.eq(sink.last),
                m_number.eq(number),
            )
        ]

        # Clock 2: what each piece of the beat adds to the register; where the end lies. Pieces: lanes 0 and
        # 1, fifteen dwords, lanes 62 and 63.
        columns = data_columns()
        edges   = [0] + [16 + 32*n for n in range(16)] + [dw]
        pieces  = [Signal(CRC_BITS, name=f"piece{n}") for n in range(17)]
        for piece, low, high in zip(pieces, edges, edges[1:]):
            bits = [m_data[i] for i in range(low, high)]
            self.sync += If(m_valid, piece.eq(Cat(*multiply(bits, columns[low:high]))))
        valid, first, last, judge = Signal(), Signal(), Signal(), Signal()
        at_end, past, aligned     = Signal(), Signal(), Signal()
        dwords = Signal(4)
        self.sync += [
            valid.eq(m_valid),
            last.eq(m_valid & m_last),
            judge.eq(self.judge),
            If(m_valid,
                first.eq(m_first),
                at_end.eq(m_number == end[6:]),
                past.eq(m_number > end[6:]),
                dwords.eq(end[2:6]),
                aligned.eq(end[:2] == 2),
            )
        ]

        # Clock 3: the loop. Bytes behind the end read as zeros, beats behind it leave the register as it is.
        register, carried, wanted = Signal(CRC_BITS), Signal(CRC_BITS), Signal(CRC_BITS)
        keep    = Signal(17)
        ended   = Signal()
        judged, sure = Signal(), Signal()
        self.comb += [
            [keep[1 + n].eq(~at_end | (dwords > n)) for n in range(15)],
            keep[16].eq(~at_end),
            keep[0].eq(1),
            carried.eq(Cat(*multiply([register[i] for i in range(CRC_BITS)], step_columns(dw)))),
        ]
        kept  = [piece & Replicate(keep[n], CRC_BITS) for n, piece in enumerate(pieces)]
        whole = (ended & ~first) | at_end | past
        self.sync += [
            If(valid & ~past, register.eq(tree(xor, kept) ^ (carried & Replicate(~first, CRC_BITS)))),
            If(valid, ended.eq(whole)),
            wanted.eq(Array(Constant(residue(2 + 4*n), CRC_BITS) for n in range(16))[dwords]),
            judged.eq(last & judge),
            sure.eq(whole & aligned),
        ]

        # Clock 4: compared with the residue of the end's place.
        self.sync += [
            self.valid.eq(judged),
            self.good.eq(sure & tree(and_, [register[4*n:4*n + 4] == wanted[4*n:4*n + 4] for n in range(8)])),
        ]
