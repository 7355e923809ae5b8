# SPDX-License-Identifier: BSD-2-Clause
"""Receive side, transport header: decodes BTH and extension headers, looks the QP up, judges the frame.

Ref: InfiniBand Architecture vol. 1 ch. 9.2-9.4 (headers), 9.6 (packet validation); Annex A17.
Not supported: QP1 in the data path (a GSI QP is an ordinary UD QP here), XRC, RD.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc import abi, opcodes
from roce_soc.bounds import counted
from roce_soc.common import (
    DATA_BYTES, DATA_WIDTH, roce_frame_description, roce_header_description, rx_beats_description,
    rx_verdict_description)
from roce_soc.errors import ERRORS, ROW_WIDTH
from roce_soc.packet.header import big_endian
from roce_soc.table import BypassFIFO

# Field of a received record -> (header, field) of opcodes.EXT_HEADERS that may carry it.
RECORD_FIELDS = {
    "va":         (("RETH", "va"), ("ATOMICETH", "va")),
    "rkey":       (("RETH", "rkey"), ("ATOMICETH", "rkey")),
    "dma_length": (("RETH", "dma_length"),),
    "syndrome":   (("AETH", "syndrome"),),
    "msn":        (("AETH", "msn"),),
    "imm":        (("IMMDT", "imm"), ("IETH", "inv_rkey")),
    "swap_add":   (("ATOMICETH", "swap_add"), ("ATOMICACKETH", "original")),
    "compare":    (("ATOMICETH", "compare"),),
    "qkey":       (("DETH", "qkey"),),
    "src_qp":     (("DETH", "src_qp"),),
}


def field_places():
    """For each record field: {byte offset from the BTH: [opcode values]}, from the opcode table."""
    places = {name: {} for name in RECORD_FIELDS}
    for opcode in opcodes.OPCODES.values():
        offset = opcodes.BTH_BYTES
        for header in opcode.headers:
            bit = 0
            for field, width in opcodes.EXT_HEADERS[header]:
                for name, sources in RECORD_FIELDS.items():
                    if (header, field) in sources:
                        places[name].setdefault(offset + bit//8, []).append(opcode.value)
                bit += width
            offset += opcodes.HEADER_BYTES[header]
    return places


# RoCEDecoder --------------------------------------------------------------------------------------

class RoCEDecoder(LiteXModule):
    """Turns a RoCE frame's headers into a record and gives the verdict of all receive checks.

    The QP's connection row is only read. The verdict waits for the ICRC checker, so that nothing
    behind this module ever sees a frame that was not checked to its last byte.

    Parameters
    ----------
    context_port : QPContext port
        `adr` (QP index) in, `row` two clocks later.
    n_qps : int
        QPs of the build, a power of two; the QPN's low bits are the index.

    Endpoints
    ---------
    header : roce_header_description(), in
    sink : roce_frame_description(512), in
        From network/receive; valid only.
    admit_own : Signal, in
        A frame from the wire may come from the own address.
    icrc_valid, icrc_good : Signal, in
        The checker's verdicts, one pulse a frame in frame order, two clocks after the frame's last beat or later.
    source : rx_beats_description(512), out
        The frame's beats for the packet buffer, a clock later; valid only.
    verdict : rx_verdict_description(), out
        One pulse a frame, in frame order, the clock after the checker's.

    Latency: beats 1 clock; verdict 1 clock after the ICRC's. One beat a clock.
    Errors : rows of stage RECEIVE; the first in the order of errors.py's checks names the frame's fate.
    """
    def __init__(self, context_port, n_qps, dw=DATA_WIDTH):
        self.header     = header  = stream.Endpoint(roce_header_description())
        self.sink       = sink    = stream.Endpoint(roce_frame_description(dw))
        self.admit_own  = Signal()
        self.icrc_valid = Signal()
        self.icrc_good  = Signal()
        self.source     = source  = stream.Endpoint(rx_beats_description(dw))
        self.verdict    = verdict = stream.Endpoint(rx_verdict_description())

        # # #

        qpi_bits = log2_int(n_qps)
        row      = context_port.row

        # Clock 0: BTH fields; the row's address.
        def bth_field(name):
            bit = 0
            for field, width in opcodes.BTH:
                if field == name:
                    word = big_endian(header.bth, 0, opcodes.BTH_BYTES)
                    low  = 8*opcodes.BTH_BYTES - bit - width
                    return word[low:low + width]
                bit += width
            raise KeyError(name)

        opcode = bth_field("opcode")
        self.comb += context_port.adr.eq(bth_field("dest_qpn")[:qpi_bits])

        # Clock 1: what the opcode table says.
        bth_layout = [(n, w) for n, w in (("opcode", 8), ("se", 1), ("pad", 2), ("tver", 4), ("pkey", 16),
            ("dest_qpn", 24), ("ackreq", 1), ("psn", 24))]
        l4_layout  = [("udp_length", 16), ("bth_offset", 7), ("ipv6", 1), ("dst_mac", 48), ("vid", 12), ("local", 1),
            ("src_ip", 128), ("dst_ip", 128), ("ecn", 2), ("bth", 320)]
        places     = field_places()
        q1, q1_ip  = Record(bth_layout), Record(l4_layout)
        q1_valid   = Signal()
        known, response, cnp = Signal(), Signal(), Signal()
        transport  = Signal(2)
        headers    = Signal(6)
        selects    = {name: Signal(max=max(2, len(places[name]))) for name in places}
        transports = {"RC": abi.QP_TYPE_RC, "UC": abi.QP_TYPE_UC, "UD": abi.QP_TYPE_UD, "CNP": abi.QP_TYPE_RC}
        by_opcode  = {"default": [known.eq(0)]}
        for value, entry in opcodes.OPCODES.items():
            by_opcode[value] = [
                known.eq(1),
                response.eq(entry.is_response),
                cnp.eq(entry.kind == "CNP"),
                transport.eq(transports[entry.transport]),
                headers.eq(opcodes.BTH_BYTES + entry.header_length),
            ] + [selects[name].eq(i) for name, at in places.items()
                for i, users in enumerate(at.values()) if value in users]
        self.sync += [
            q1_valid.eq(header.valid),
            [getattr(q1, n).eq(bth_field(n)) for n, _ in bth_layout],
            [getattr(q1_ip, n).eq(getattr(header, n)) for n, _ in l4_layout],
            response.eq(0),
            cnp.eq(0),
            # An unknown opcode has no headers, whatever the frame before it had.
            headers.eq(opcodes.BTH_BYTES),
            [s.eq(0) for s in selects.values()],
            Case(opcode, by_opcode),
        ]

        # Clock 2: extension headers, payload's place and length; the row is here.
        q2, q2_ip = Record(bth_layout), Record(l4_layout)
        q2_valid, q2_known, q2_response, q2_cnp = Signal(), Signal(), Signal(), Signal()
        q2_transport = Signal(2)
        q2_field  = {name: Signal(dict(rx_verdict_description().payload_layout)[name]) for name in places}
        start     = Signal(7)
        length    = Signal((17, True))
        self.sync += [
            q2_valid.eq(q1_valid),
            q2.eq(q1),
            q2_ip.eq(q1_ip),
            q2_known.eq(known),
            q2_response.eq(response),
            q2_cnp.eq(cnp),
            q2_transport.eq(transport),
            start.eq(q1_ip.bth_offset + headers),
            length.eq(q1_ip.udp_length - (opcodes.UDP_BYTES + opcodes.ICRC_BYTES) - headers - q1.pad),
        ]
        for name, at in places.items():
            size = len(q2_field[name])//8
            choices = [q2_field[name].eq(big_endian(q1_ip.bth, offset, size)) for offset in at]
            self.sync += Case(selects[name], {**dict(enumerate(choices[1:], 1)), "default": choices[0]})

        # Clock 3: the row's word on it.
        q3       = Record(rx_verdict_description().payload_layout)
        q3_valid = Signal()
        checks   = ("OPCODE_UNKNOWN", "TVER", "QPN_UNKNOWN", "QPN_GENERATION", "QP_STATE", "TRANSPORT_CLASS",
                    "PKEY", "DST_MAC", "VLAN", "MARTIAN", "ADDRESS", "GID", "QKEY", "CNP_IGNORED")
        broken   = {name: Signal() for name in checks}
        short, too_long = Signal(), Signal()
        live, replies   = Signal(), Signal()
        same_dst, same_src, ud = Signal(), Signal(), Signal()
        own_src  = Signal()
        self.comb += [
            ud.eq(row.qp_type == abi.QP_TYPE_UD),
            live.eq((row.state == abi.QP_RTR) | (row.state == abi.QP_RTS) | (row.state == abi.QP_SQD)),
            replies.eq((row.state == abi.QP_RTS) | (row.state == abi.QP_SQD)),
            same_dst.eq((q2_ip.dst_ip == row.src_ip) & (q2_ip.ipv6 == row.ipv6)),
            own_src.eq((q2_ip.src_ip == row.src_ip) & (q2_ip.ipv6 == row.ipv6)),
            same_src.eq((q2_ip.src_ip == row.dst_ip) & (q2_ip.ipv6 == row.ipv6)),
        ]
        self.sync += [
            q3_valid.eq(q2_valid),
            q3.qpi.eq(q2.dest_qpn[:qpi_bits]),
            q3.qpn.eq(q2.dest_qpn),
            [getattr(q3, n).eq(getattr(q2, n)) for n in ("opcode", "psn", "se", "ackreq", "pad")],
            q3.length.eq(length),
            [getattr(q3, n).eq(q2_field[n]) for n in q2_field],
            q3.ecn.eq(q2_ip.ecn),
            q3.response.eq(q2_response),
            q3.cnp.eq(q2_cnp),
            short.eq(length < 0),
            too_long.eq(length >= (1 << 13)),
            broken["OPCODE_UNKNOWN"].eq(~q2_known),
            broken["TVER"].eq(q2.tver != opcodes.TVER),
            broken["QPN_UNKNOWN"].eq((q2.dest_qpn == 0) | (row.qpn == 0) | (q2.dest_qpn == opcodes.QPN_MULTICAST)),
            broken["QPN_GENERATION"].eq(row.qpn != q2.dest_qpn),
            broken["QP_STATE"].eq(Mux(q2_response, ~replies, ~live)),
            broken["TRANSPORT_CLASS"].eq((q2_transport != row.qp_type) & ~q2_cnp),
            broken["PKEY"].eq((q2.pkey[:15] != row.pkey[:15]) | ~(q2.pkey[15] | row.pkey[15])),
            broken["DST_MAC"].eq(q2_ip.dst_mac != row.src_mac),
            broken["VLAN"].eq(q2_ip.vid != Mux(row.vlan_en, row.vlan_tci[:12], 0)),
            broken["MARTIAN"].eq(own_src & ~q2_ip.local & ~self.admit_own),
            broken["ADDRESS"].eq(~ud & ~(same_dst & same_src)),
            broken["GID"].eq(ud & ~same_dst),
            broken["QKEY"].eq(ud & (q2_field["qkey"] != row.qkey)),
            broken["CNP_IGNORED"].eq(q2_cnp),
        ]

        # Beats for the buffer; whether the payload is worth keeping is known with them.
        held_start, held_length, held_keep   = Signal(7), Signal(13), Signal()
        keep = Signal()
        self.comb += [
            keep.eq((length > 0) & (length <= 4096 + 64)),
            source.start.eq(Mux(source.first, start, held_start)),
            source.length.eq(Mux(source.first, length[:13], held_length)),
            source.keep.eq(Mux(source.first, keep, held_keep)),
        ]
        self.sync += [
            source.valid.eq(sink.valid),
            source.data.eq(sink.data),
            source.first.eq(sink.first),
            source.last.eq(sink.last),
            If(source.valid & source.first,
                held_start.eq(start),
                held_length.eq(length[:13]),
                held_keep.eq(keep),
            )
        ]

        # Behind the last beat: is the frame as long as its UDP header says, did the MAC object?
        beat, lane            = Signal(9), Signal(6)
        tail_beat             = Signal(9)
        tail_end              = Signal(14)
        tail_valid            = Signal(2)
        mac_error, runt       = Signal(2), Signal()
        bytes_seen            = Signal(16)
        self.comb += bytes_seen.eq(Cat(lane, tail_beat) + 1)
        self.sync += [
            If(sink.valid, If(sink.last, beat.eq(0)).Elif(~beat[8], beat.eq(beat + 1))),
            [lane[i].eq((sink.last_be & sum(1 << n for n in range(DATA_BYTES) if n >> i & 1)) != 0) for i in range(6)],
            tail_beat.eq(beat),
            tail_end.eq(sink.end),
            tail_valid.eq(Cat(sink.valid & sink.last, tail_valid[0])),
            mac_error.eq(Cat(sink.error != 0, mac_error[0])),
            runt.eq(bytes_seen < tail_end),
        ]

        # Record and tail wait for the checker; layers 3 and 4 are judged in the record's clock.
        rules = [("l34_row", ROW_WIDTH), ("length", 1)] + [(name, 1) for name in checks]
        names = [n for n, _ in rx_verdict_description().payload_layout if n not in ("good", "row")]
        fields = [(n, len(getattr(q3, n))) for n in names]
        self.records = records = BypassFIFO([("record", fields), ("broken", rules)], 32)
        self.tails   = tails   = BypassFIFO([("mac_error", 1), ("runt", 1)], 32)
        for fifo in (records, tails):
            self.submodules += counted(fifo, "frames in the ICRC checker: its answers come within its latency, fewer than 32 clocks")
        self.comb += [
            records.sink.valid.eq(q3_valid),
            [getattr(records.sink.record, n).eq(getattr(q3, n)) for n in names],
            records.sink.broken.l34_row.eq(sink.row),
            records.sink.broken.length.eq(short | too_long),
            [getattr(records.sink.broken, n).eq(broken[n]) for n in checks],
            tails.sink.valid.eq(tail_valid[1]),
            tails.sink.mac_error.eq(mac_error[1]),
            tails.sink.runt.eq(runt),
            records.source.ready.eq(self.icrc_valid),
            tails.source.ready.eq(self.icrc_valid),
        ]

        # Verdict; which row it is, of the rules broken, is told behind the register.
        v, tail, icrc_good = Record(rules), Record([("mac_error", 1), ("runt", 1)]), Signal()
        self.sync += [
            verdict.valid.eq(self.icrc_valid),
            [getattr(verdict, n).eq(getattr(records.source.record, n)) for n in names],
            verdict.good.eq(self.icrc_valid & self.icrc_good & (records.source.broken.raw_bits() == 0)
                & (tails.source.payload.raw_bits() == 0)),
            v.eq(records.source.broken),
            tail.eq(tails.source.payload),
            icrc_good.eq(self.icrc_good),
        ]
        order = [(tail.mac_error, "MAC_ERROR"), (tail.runt, "RUNT"), (v.l34_row != 0, None), (v.length, "UDP_LENGTH"),
                 (~icrc_good, "ICRC")]
        order += [(getattr(v, name), name) for name in checks]
        self.comb += [
            verdict.first.eq(1),
            verdict.last.eq(1),
            [If(condition, verdict.row.eq(ERRORS[name].index if name else v.l34_row))
                for condition, name in reversed(order)],
        ]
