# SPDX-License-Identifier: BSD-2-Clause
"""Builds RoCE frames: headers from a packet record and its QP's row, payload rotated behind them.

Ref: InfiniBand Architecture vol. 1 ch. 9.2 to 9.6; Annex A17.3.
Not supported: UD address handles; atomic operands and DETH fields as long as packet records lack them.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc import opcodes
from roce_soc.common import DATA_WIDTH, OWNER_ACK, QPI_WIDTH, connection_layout, tx_packet_description
from roce_soc.packet import header
from roce_soc.packet.align import LANE_BITS, ByteRotator, expand, lanes_from, lanes_to

HEADER_DEPTH = 8       # headers between the row's read and the frame.
LENGTH_BITS  = 14


def payload_description(dw=DATA_WIDTH):
    """Beats as they come from memory: byte `addr` of the packet is in lane addr modulo 64 of its first beat."""
    return stream.EndpointDescription([("data", dw), ("err", 2)])


def frame_params():
    """Travels with a frame from the encoder to network/transmit; err holds on the last beat."""
    return [("marker", 1), ("control", 1), ("loop", 1), ("owner", 2), ("qpi", QPI_WIDTH), ("psn", 24), ("err", 2)]


# HeaderBuilder ------------------------------------------------------------------------------------

class HeaderBuilder(LiteXModule):
    """Headers and geometry of one packet a clock.

    Endpoints
    ---------
    sink : tx_packet_description(), in
    source : {bits, fields of `geometry`}, out
        From a FIFO of HEADER_DEPTH; `bits` holds the headers, zero behind their end.
    checksum : {value}, out
        IPv4 header checksums in packet order (markers have none); each is there two clocks after its header.

    Latency: 4 clocks, one packet a clock.
    """
    def __init__(self, context_port):
        bits     = 8*header.MAX_HEADER_BYTES
        geometry = [
            ("vlan", 1), ("ipv6", 1), ("size", 7),                # header bytes.
            ("shift", LANE_BITS), ("ahead", 1), ("beats_in", 7),  # payload from memory: rotation, beats.
            ("tail", LENGTH_BITS),                                # number of the payload's last byte in the frame.
            ("end", LENGTH_BITS)]                                 # frame bytes without ICRC.
        geometry += frame_params()
        # Stream Endpoints.
        self.sink     = sink = stream.Endpoint(tx_packet_description())
        self.source   = stream.Endpoint([("bits", bits)] + geometry)
        self.checksum = stream.Endpoint([("value", 16)])

        # # #

        # Clock 0: the row's address; room in the FIFO behind the pipeline.
        self.fifo = fifo = stream.SyncFIFO(self.source.description, HEADER_DEPTH)
        pending   = Signal(max=HEADER_DEPTH + 1)
        taken     = Signal()
        self.comb += [
            sink.ready.eq(pending != HEADER_DEPTH),
            taken.eq(sink.valid & sink.ready),
            context_port.adr.eq(sink.qpi),
            fifo.source.connect(self.source),
        ]
        self.sync += pending.eq(pending + taken - (fifo.source.valid & fifo.source.ready))

        # Clock 1: what the opcode table says. Clock 2: row.
        names     = [n for n, _ in tx_packet_description().payload_layout]
        p1, p2    = Record(tx_packet_description().payload_layout), Record(tx_packet_description().payload_layout)
        p1_valid, p2_valid = Signal(), Signal()
        found, index = header.formats()
        cnp       = next(o.value for o in opcodes.OPCODES.values() if o.transport == "CNP")
        form      = Signal(max=len(found))
        ext_bytes = Signal(max=header.MAX_EXT_BYTES + 1)
        p2_form, p2_cnp = Signal(max=len(found)), Signal()
        p2_ext    = Signal(max=header.MAX_EXT_BYTES + 1)
        p2_body   = Signal(LENGTH_BITS)      # extension headers, payload, pad.
        pad       = Signal(2)
        p2_pad    = Signal(2)
        self.comb += [
            Case(p1.opcode, {**{value: form.eq(n) for value, n in index.items()}, "default": form.eq(0)}),
            Case(form, {**{n: ext_bytes.eq(sum(opcodes.HEADER_BYTES[h] for h in f)) for n, f in enumerate(found)}, "default": ext_bytes.eq(0)}),
            pad.eq(-p1.length[:2]),
        ]
        self.sync += [
            p1_valid.eq(taken),
            [getattr(p1, n).eq(getattr(sink, n)) for n in names],
            p2_valid.eq(p1_valid),
            p2.eq(p1),
            p2_form.eq(form),
            p2_cnp.eq(p1.opcode == cnp),
            p2_ext.eq(ext_bytes),
            p2_pad.eq(pad),
            p2_body.eq(ext_bytes + p1.length + pad),
        ]

        # Clock 2 to 3: headers with zero length fields; lengths and geometry.
        row       = context_port.row
        ip_id     = Signal(16)
        ext       = Signal(8*header.MAX_EXT_BYTES)
        transport = header.bth(opcode=p2.opcode, se=p2.se, pad=p2_pad, tver=opcodes.TVER, pkey=row.pkey, becn=p2_cnp,
            dest_qpn=row.dest_qpn, ackreq=p2.ackreq, psn=p2.psn)
        layouts   = [(n & 1, n >> 1) for n in range(4)]
        case      = Signal(2)
        g         = Record(geometry)
        h3        = Signal(bits)
        h3_valid  = Signal()
        base      = [opcodes.ETHERNET_BYTES + opcodes.VLAN_BYTES*v + (opcodes.IPV6_BYTES if s else opcodes.IPV4_BYTES)
            + opcodes.UDP_BYTES + opcodes.BTH_BYTES for v, s in layouts]
        size      = Signal(7)
        lane      = Signal(LANE_BITS)
        udp_length, ip_length = Signal(16), Signal(16)
        self.comb += [
            case.eq(Cat(row.vlan_en, row.ipv6)),
            Case(p2_form, {**{n: ext.eq(header.extension(f, p2)) for n, f in enumerate(found) if f}, "default": ext.eq(0)}),
            Case(case, {n: size.eq(base[n] + p2_ext) for n in range(4)}),
            lane.eq(p2.addr[:LANE_BITS]),
        ]
        self.sync += [
            h3_valid.eq(p2_valid),
            If(p2_valid,
                Case(case, {n: h3.eq(Cat(header.ethernet(row, v, s), header.ip(row, s, ip_id, 0), header.udp(row, 0), transport, ext))
                    for n, (v, s) in enumerate(layouts)}),
                If(~p2.marker, ip_id.eq(ip_id + 1)),
            ),
            udp_length.eq(p2_body + (opcodes.UDP_BYTES + opcodes.BTH_BYTES + opcodes.ICRC_BYTES)),
            # IPv6 counts the payload alone, IPv4 its header too.
            ip_length.eq(p2_body + Mux(row.ipv6, 0, opcodes.IPV4_BYTES) + (opcodes.UDP_BYTES + opcodes.BTH_BYTES + opcodes.ICRC_BYTES)),
            g.vlan.eq(row.vlan_en),
            g.ipv6.eq(row.ipv6),
            g.size.eq(size),
            g.shift.eq(size[:LANE_BITS] - lane),
            g.ahead.eq((lane > size[:LANE_BITS]) & (p2.length != 0)),
            g.beats_in.eq(Mux(p2.length == 0, 0, ((lane + p2.length + 63) >> LANE_BITS)[:7])),
            g.tail.eq(size + p2.length - 1),
            Case(case, {n: g.end.eq(p2_body + base[n]) for n in range(4)}),
            [getattr(g, n).eq(getattr(p2, n)) for n in ("marker", "owner", "qpi", "psn")],
            g.control.eq(p2.owner == OWNER_ACK),
            g.loop.eq(row.dst_mac == row.src_mac),
        ]

        # Clock 3: lengths take their places, behind the layout's.
        lengths = {n: Signal(bits, name=f"lengths{n}") for n in range(4)}
        for n, (v, s) in enumerate(layouts):
            at_ip  = opcodes.ETHERNET_BYTES + opcodes.VLAN_BYTES*v
            at_udp = at_ip + (opcodes.IPV6_BYTES if s else opcodes.IPV4_BYTES)
            at_len = at_ip + (4 if s else 2)
            self.comb += [
                lengths[n][8*at_len:8*(at_len + 2)].eq(header.wire((ip_length, 16))),
                lengths[n][8*(at_udp + 4):8*(at_udp + 6)].eq(header.wire((udp_length, 16))),
            ]
        self.comb += [
            fifo.sink.valid.eq(h3_valid),
            Case(Cat(g.vlan, g.ipv6), {n: fifo.sink.bits.eq(h3 | lengths[n]) for n in range(4)}),
            [getattr(fifo.sink, n).eq(getattr(g, n)) for n, _ in geometry],
        ]

        # IPv4 checksum: words in pairs, sums, sum, folded twice.
        # Taken with the frame's first beat, later than the header: those in the sequencer count too.
        self.checksums = checksums = stream.SyncFIFO(self.checksum.description, 2*HEADER_DEPTH)
        words  = [Cat(row.tclass, Constant(0x45, 8)), ip_id, Cat(Constant(opcodes.IP_PROTOCOL_UDP, 8), row.hop_limit), header.DONT_FRAGMENT,
            row.src_ip[:16], row.src_ip[16:32], row.dst_ip[:16], row.dst_ip[16:32]]
        pairs  = [Signal(17, name=f"pair{n}") for n in range(4)]
        sum_a, sum_b, total = Signal(19), Signal(18), Signal(20)
        folded = Signal(17)
        valid  = Signal(3)
        self.sync += [
            [pairs[n].eq(words[2*n] + words[2*n + 1]) for n in range(4)],
            sum_a.eq(pairs[0] + pairs[1] + ip_length),
            sum_b.eq(pairs[2] + pairs[3]),
            total.eq(sum_a + sum_b),
            valid.eq(Cat(p2_valid & ~p2.marker, valid[:2])),
        ]
        self.comb += [
            folded.eq(total[:16] + total[16:]),
            checksums.sink.valid.eq(valid[2]),
            checksums.sink.value.eq(~(folded[:16] + folded[16])),
            checksums.source.connect(self.checksum),
        ]

# RoCEEncoder --------------------------------------------------------------------------------------

class RoCEEncoder(LiteXModule):
    """Frames without ICRC from packet records and payload as it came from memory.

    sink -> HeaderBuilder -> sequencer: one beat a clock ---> rotator --> merge -> source
    payload -----------------------^

    The payload is moved once, from its lane in memory to its lane in the frame.

    Parameters
    ----------
    context_port : QPContext port
        `adr` (QP index) in, `row` two clocks later.

    Endpoints
    ---------
    sink : tx_packet_description(), in
    payload : payload_description(512), in
        The beats that `length` bytes from `addr` on touch, in packet order.
    source : {data, end}, {vlan, ipv6, pass_by, fields of frame_params}, out
        To ICRCInserter; no ready. A marker is one beat with pass_by.
    room, room_control : Signal, in
        network/transmit can take one more frame of the class, with all that is on its way.
    reserve : {beats, control}, out
        One pulse a frame as it begins: its beats with ICRC.

    Latency: record to first beat 7 clocks; a frame takes as many clocks as beats with its ICRC, one
        more where payload moves to lower lanes and the headers end in the first beat; stalls for payload and room only.
    Errors : err of the last beat is the first err of the payload's beats; transmit drops the frame.
    """
    def __init__(self, context_port, dw=DATA_WIDTH):
        # Stream Endpoints.
        self.builder = builder = HeaderBuilder(context_port)
        self.sink    = builder.sink
        self.payload = payload = stream.Endpoint(payload_description(dw))
        self.source  = source  = stream.Endpoint(stream.EndpointDescription(
            [("data", dw), ("end", LANE_BITS)], [("vlan", 1), ("ipv6", 1), ("pass_by", 1)] + frame_params()))
        self.reserve = reserve = stream.Endpoint([("beats", 7), ("control", 1)])
        self.room         = Signal()
        self.room_control = Signal()

        # # #

        # Sequencer.
        h        = builder.source
        job      = Record([(n, w) for n, w in h.description.payload_layout if n != "bits"])
        bits     = Signal(8*header.MAX_HEADER_BYTES)
        active, gap, skip    = Signal(), Signal(), Signal()
        beat, last_beat      = Signal(7), Signal(7)
        beats_in             = Signal(7)
        err, err_now         = Signal(2), Signal(2)
        extra                = Signal()        # the ICRC takes one more beat.
        done, load, allowed, want, step, emit, finish = (Signal() for _ in range(7))
        end_lane = job.end[:LANE_BITS]
        h_end    = Signal(LENGTH_BITS)
        h_last   = Signal(LENGTH_BITS)
        self.comb += [
            # Room for a frame is asked for when it begins.
            allowed.eq(h.marker | Mux(h.control, self.room_control, self.room)),
            finish.eq((beat == last_beat) & ~skip),
            # One clock free behind a frame whose ICRC needs a beat of its own.
            done.eq((step & finish & ~extra) | gap),
            load.eq(h.valid & allowed & (done | (~active & ~gap))),
            h.ready.eq(load),
            # Headers longer than a beat: the first beat takes payload only to have it ahead.
            want.eq((beats_in != 0) & ~(job.size[LANE_BITS] & (beat == 0) & ~job.ahead)),
            step.eq(active & (~want | payload.valid)),
            payload.ready.eq(active & want),
            emit.eq(step & ~skip),
            err_now.eq(Mux((err == 0) & want, payload.err, err)),
            h_end.eq(h.end + opcodes.ICRC_BYTES + 63),
            h_last.eq(h.end - 1),
            reserve.valid.eq(load & ~h.marker),
            reserve.control.eq(h.control),
            reserve.beats.eq(h_end[LANE_BITS:]),
        ]
        self.sync += [
            gap.eq(step & finish & extra),
            If(step,
                skip.eq(0),
                err.eq(err_now),
                If(want, beats_in.eq(beats_in - 1)),
                If(emit, beat.eq(beat + 1)),
                If(finish, active.eq(0)),
            ),
            If(load,
                active.eq(1),
                [getattr(job, n).eq(getattr(h, n)) for n, _ in job.layout],
                bits.eq(h.bits),
                beat.eq(0),
                last_beat.eq(Mux(h.marker, 0, h_last[LANE_BITS:])),
                extra.eq(~h.marker & (h.end[:LANE_BITS] == 62)),
                beats_in.eq(Mux(h.marker, 0, h.beats_in)),
                skip.eq(h.ahead & ~h.size[LANE_BITS] & ~h.marker),
                err.eq(0),
            ),
        ]

        # Two clocks beside the rotator: headers of the beat, where its payload begins and ends.
        self.rotator = rotator = ByteRotator(dw)
        names  = [n for n, _ in frame_params()] + ["vlan", "ipv6"]
        layout = [("valid", 1), ("first", 1), ("last", 1), ("before", 1), ("starts", 1), ("ends", 1), ("behind", 1),
            ("start_lane", LANE_BITS), ("tail_lane", LANE_BITS), ("end", LANE_BITS), ("header", dw)]
        layout += [(n, w) for n, w in job.layout if n in names]
        m1, m2 = Record(layout), Record(layout)
        start_mask, tail_mask = Signal(dw//8), Signal(dw//8)
        self.comb += [
            rotator.step.eq(step),
            rotator.data.eq(payload.data),
            rotator.shift.eq(job.shift),
        ]
        self.sync += [
            m1.valid.eq(emit),
            If(emit,
                m1.first.eq(beat == 0),
                m1.last.eq(finish),
                m1.before.eq(job.size[LANE_BITS] & (beat == 0)),
                m1.starts.eq(beat == job.size[LANE_BITS]),
                m1.ends.eq(beat == job.tail[LANE_BITS:]),
                m1.behind.eq(beat > job.tail[LANE_BITS:]),
                m1.start_lane.eq(job.size[:LANE_BITS]),
                m1.tail_lane.eq(job.tail[:LANE_BITS]),
                m1.end.eq(end_lane),
                m1.header.eq(0),
                If(beat == 0, m1.header.eq(bits[:dw])),
                If(beat == 1, m1.header.eq(bits[dw:])),
                [getattr(m1, n).eq(getattr(job, n)) for n in names if n != "err"],
                m1.err.eq(err_now),
            ),
            m2.eq(m1),
            start_mask.eq(Mux(m1.before | m1.behind, 0, Mux(m1.starts, lanes_from(m1.start_lane), (1 << dw//8) - 1))),
            tail_mask.eq(Mux(m1.ends, lanes_to(m1.tail_lane), (1 << dw//8) - 1)),
        ]

        # Merge: header, payload of this and the former beat, checksum.
        low, high = Signal(dw//8), Signal(dw//8)
        checksum  = Signal(dw)
        at        = {0: opcodes.ETHERNET_BYTES + 10, 1: opcodes.ETHERNET_BYTES + opcodes.VLAN_BYTES + 10}
        self.comb += [
            high.eq(start_mask & tail_mask & ~rotator.low),
            low.eq(start_mask & tail_mask & rotator.low),
            builder.checksum.ready.eq(m2.valid & m2.first & ~m2.marker),
            If(m2.first & ~m2.ipv6, Case(m2.vlan, {n: checksum[8*at[n]:8*(at[n] + 2)].eq(header.wire((builder.checksum.value, 16)))
                for n in (0, 1)})),
        ]
        self.sync += [
            source.valid.eq(m2.valid),
            If(m2.valid,
                source.first.eq(m2.first),
                source.last.eq(m2.last),
                source.data.eq(m2.header | checksum | (rotator.newest & expand(high)) | (rotator.previous & expand(low))),
                source.end.eq(m2.end),
                source.pass_by.eq(m2.marker),
                [getattr(source, n).eq(getattr(m2, n)) for n in names],
            ),
        ]
