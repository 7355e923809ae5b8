# SPDX-License-Identifier: BSD-2-Clause
"""Builds RoCE frames: headers from a packet record and its QP's row, payload rotated behind them.

Ref: InfiniBand Architecture vol. 1 ch. 9.2 to 9.6; Annex A17.3.
Not supported: UD address handles; atomic operands and DETH fields as long as packet records lack them.
"""
from operator import add

from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc import opcodes
from roce_soc.bounds import counted
from roce_soc.common import DATA_WIDTH, MEM_ERR_WIDTH, OWNER_ACK, OWNER_REQUESTER, QPI_WIDTH, tx_packet_description
from roce_soc.packet import header
from roce_soc.packet.align import ALL_LANES, LANE_BITS, ByteRotator, expand, lanes_from, lanes_to
from roce_soc.packet.icrc import tree
from roce_soc.table import BypassFIFO

HEADER_DEPTH = 8       # headers between the row's read and the frame.
LENGTH_BITS  = 14
BEAT_BITS    = 7


def payload_description(dw=DATA_WIDTH):
    """Beats as they come from memory: byte `addr` of the packet is in lane addr modulo 64 of its first beat."""
    return stream.EndpointDescription([("data", dw), ("err", MEM_ERR_WIDTH)])


def frame_params():
    """Travels with a frame from the encoder to network/transmit; err holds on the last beat."""
    return [("marker", 1), ("control", 1), ("loop", 1), ("owner", 2), ("qpi", QPI_WIDTH), ("psn", 24), ("generation", 4),
        ("err", MEM_ERR_WIDTH)]


def geometry_layout():
    """Shape of a frame: where headers end, how payload moves, how many beats there are."""
    return [
        ("vlan", 1), ("ipv6", 1), ("size", 7),                        # header bytes.
        ("shift", LANE_BITS), ("ahead", 1), ("beats_in", BEAT_BITS),  # payload from memory: rotation, beats.
        ("tail", LENGTH_BITS),                                        # number of the payload's last byte in the frame.
        ("end", LENGTH_BITS)] + frame_params()                        # frame bytes without ICRC.


# HeaderBuilder ------------------------------------------------------------------------------------

class HeaderBuilder(LiteXModule):
    """Headers and geometry of one packet a clock.

    Endpoints
    ---------
    sink : tx_packet_description(), in
    source : {bits, last_beat, extra, beats, fields of geometry_layout}, out
        Past or from a FIFO of HEADER_DEPTH. `bits` holds the headers, zero behind their end; `last_beat` numbers the
        last beat without ICRC, `extra`: the ICRC needs one more; `beats` counts all with it.

    Latency: 3 clocks, one packet a clock.
    Errors : none.
    """
    def __init__(self, context_port):
        self.bits     = 8*header.MAX_HEADER_BYTES
        self.row      = context_port.row
        # Stream Endpoints.
        self.sink     = stream.Endpoint(tx_packet_description())
        self.source   = stream.Endpoint(
            [("bits", self.bits), ("last_beat", BEAT_BITS), ("extra", 1), ("beats", BEAT_BITS)] + geometry_layout())

        # # #

        # The four layouts, index vlan + 2*ipv6, with the bytes up to the end of the BTH.
        self.layouts = [(n & 1, n >> 1) for n in range(4)]
        self.base    = [opcodes.ETHERNET_BYTES + opcodes.VLAN_BYTES*v + (opcodes.IPV6_BYTES if s else opcodes.IPV4_BYTES)
            + opcodes.UDP_BYTES + opcodes.BTH_BYTES for v, s in self.layouts]
        self.ip_id     = Signal(16)
        self.checksum  = Signal(16)
        self.comb += context_port.adr.eq(self.sink.qpi)
        self._add_table()
        self._add_checksum()
        self._add_headers()
        self._add_geometry()

    def _add_table(self):
        """Clocks 0 to 2: room behind the pipeline, what the opcode table says, while the row is read."""
        sink      = self.sink
        layout    = tx_packet_description().payload_layout
        pending   = Signal(max=HEADER_DEPTH + 1)
        taken     = Signal()
        p1        = Record(layout)
        p1_valid  = Signal()
        forms, index = header.formats()
        form      = Signal(max=len(forms))
        ext_bytes = Signal(max=header.MAX_EXT_BYTES + 1)
        pad       = Signal(2)
        cnp       = next(o.value for o in opcodes.OPCODES.values() if o.transport == "CNP")
        self.forms        = forms
        self.packet       = Record(layout)
        self.packet_valid = Signal()
        self.packet_form, self.packet_cnp = Signal(max=len(forms)), Signal()
        self.packet_ext,  self.packet_pad = Signal(max=header.MAX_EXT_BYTES + 1), Signal(2)
        self.packet_body  = Signal(LENGTH_BITS)      # extension headers, payload, pad.
        self.fifo = fifo  = BypassFIFO(self.source.description, HEADER_DEPTH)
        self.submodules += counted(fifo, "packets: `pending`")
        self.comb += [
            sink.ready.eq(pending != HEADER_DEPTH),
            taken.eq(sink.valid & sink.ready),
            fifo.source.connect(self.source),
            Case(p1.opcode, {**{value: form.eq(n) for value, n in index.items()}, "default": form.eq(0)}),
            Case(form, {**{n: ext_bytes.eq(sum(opcodes.HEADER_BYTES[h] for h in f)) for n, f in enumerate(forms)},
                "default": ext_bytes.eq(0)}),
            pad.eq(-p1.length[:2]),
        ]
        self.sync += [
            pending.eq(pending + taken - (fifo.source.valid & fifo.source.ready)),
            p1_valid.eq(taken),
            [getattr(p1, n).eq(getattr(sink, n)) for n, _ in layout],
            self.packet_valid.eq(p1_valid),
            self.packet.eq(p1),
            self.packet_form.eq(form),
            self.packet_cnp.eq(p1.opcode == cnp),
            self.packet_ext.eq(ext_bytes),
            self.packet_pad.eq(pad),
            self.packet_body.eq(ext_bytes + p1.length + pad),
        ]

    def _add_headers(self):
        """Clock 2: headers with zero lengths and checksum. Clock 3: these take the layout's places."""
        p, row, fifo = self.packet, self.row, self.fifo
        ext        = Signal(8*header.MAX_EXT_BYTES)
        transport  = header.bth(opcode=p.opcode, se=p.se, pad=self.packet_pad, tver=opcodes.TVER, pkey=row.pkey,
            becn=self.packet_cnp, dest_qpn=row.dest_qpn, ackreq=p.ackreq, psn=p.psn)
        headers    = Signal(self.bits)
        udp_length, ip_length = Signal(16), Signal(16)
        behind_ip  = opcodes.UDP_BYTES + opcodes.BTH_BYTES + opcodes.ICRC_BYTES
        self.comb += Case(self.packet_form, {
            **{n: ext.eq(header.extension(f, p)) for n, f in enumerate(self.forms) if f}, "default": ext.eq(0)})
        self.sync += [
            If(self.packet_valid,
                Case(Cat(row.vlan_en, row.ipv6), {n: headers.eq(Cat(
                    header.ethernet(row, v, s), header.ip(row, s, self.ip_id, 0), header.udp(row, 0), transport, ext))
                    for n, (v, s) in enumerate(self.layouts)}),
                If(~p.marker, self.ip_id.eq(self.ip_id + 1)),
            ),
            udp_length.eq(self.packet_body + behind_ip),
            # IPv6 counts the payload alone, IPv4 its header too.
            ip_length.eq(self.packet_body + Mux(row.ipv6, behind_ip, behind_ip + opcodes.IPV4_BYTES)),
        ]
        cases = {}
        for n, (v, s) in enumerate(self.layouts):
            lengths = Signal(self.bits, name=f"lengths{n}")
            at_ip   = opcodes.ETHERNET_BYTES + opcodes.VLAN_BYTES*v
            at_udp  = at_ip + (opcodes.IPV6_BYTES if s else opcodes.IPV4_BYTES)
            places  = [(at_ip + (4 if s else 2), ip_length), (at_udp + 4, udp_length)]
            if not s:
                places.append((at_ip + header.IPV4_CHECKSUM_BYTE, self.checksum))
            for at, value in places:
                self.comb += lengths[8*at:8*(at + 2)].eq(header.wire((value, 16)))
            cases[n] = fifo.sink.bits.eq(headers | lengths)
        self.comb += Case(Cat(fifo.sink.vlan, fifo.sink.ipv6), cases)

    def _add_geometry(self):
        """Clock 2: how the frame is laid out. Clock 3: its beats."""
        p, row, fifo = self.packet, self.row, self.fifo
        g     = Record(geometry_layout())
        case  = Cat(row.vlan_en, row.ipv6)
        size  = Signal(7)
        lane  = Signal(LANE_BITS)
        none  = Signal()
        valid = Signal()
        last, whole = Signal(LENGTH_BITS), Signal(LENGTH_BITS)
        self.comb += [
            Case(case, {n: size.eq(self.base[n] + self.packet_ext) for n in range(4)}),
            lane.eq(p.addr[:LANE_BITS]),
            none.eq((p.length == 0) | p.marker),
        ]
        self.sync += [
            valid.eq(self.packet_valid),
            g.vlan.eq(row.vlan_en),
            g.ipv6.eq(row.ipv6),
            g.size.eq(size),
            g.shift.eq(size[:LANE_BITS] - lane),
            g.ahead.eq((lane > size[:LANE_BITS]) & ~none),
            g.beats_in.eq(Mux(none, 0, ((lane + p.length + 63) >> LANE_BITS)[:BEAT_BITS])),
            g.tail.eq(size + p.length - 1),
            Case(case, {n: g.end.eq(self.packet_body + self.base[n]) for n in range(4)}),
            [getattr(g, n).eq(getattr(p, n)) for n in ("marker", "owner", "qpi")],
            g.psn.eq(Mux(p.owner == OWNER_REQUESTER, p.msn, p.psn)),
            g.generation.eq(p.syndrome),
            # What waits for no payload may pass the frames that do.
            g.control.eq((p.owner == OWNER_ACK) & none),
            g.loop.eq(row.dst_mac == row.src_mac),
        ]
        self.comb += [
            last.eq(g.end - 1),
            whole.eq(g.end + opcodes.ICRC_BYTES + 63),
            fifo.sink.valid.eq(valid),
            [getattr(fifo.sink, n).eq(getattr(g, n)) for n, _ in geometry_layout()],
            fifo.sink.last_beat.eq(Mux(g.marker, 0, last[LANE_BITS:])),
            fifo.sink.extra.eq(~g.marker & (g.end[:LANE_BITS] == 62)),
            fifo.sink.beats.eq(whole[LANE_BITS:]),
        ]

    def _add_checksum(self):
        """Clock 2: all words of the IPv4 header, constants in one. Clock 3: folded twice."""
        row, total, folded = self.row, Signal(20), Signal(17)
        fixed = (header.IPV4_FIRST_BYTE << 8) + header.DONT_FRAGMENT + opcodes.IP_PROTOCOL_UDP + (
            opcodes.IPV4_BYTES + opcodes.UDP_BYTES + opcodes.BTH_BYTES + opcodes.ICRC_BYTES)
        words = [row.tclass, self.ip_id, Cat(Constant(0, 8), row.hop_limit), self.packet_body + fixed,
            row.src_ip[:16], row.src_ip[16:32], row.dst_ip[:16], row.dst_ip[16:32]]
        self.sync += total.eq(tree(add, words))
        self.comb += [
            folded.eq(total[:16] + total[16:]),
            self.checksum.eq(~(folded[:16] + folded[16])),
        ]


# RoCEEncoder --------------------------------------------------------------------------------------

class RoCEEncoder(LiteXModule):
    """Frames without ICRC from packet records and payload as it came from memory.

    ::

        sink ────► HeaderBuilder ─► sequencer, a beat a clock ─┬────────────► merge ─► source
        payload ───────────────────────────^                   └─► rotator ─────^

    The payload is moved once, from its lane in memory to its lane in the frame. A frame without payload passes rotator
    and merge while they are empty.

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

    Latency: record to first beat 4 clocks, with payload 6; a frame takes as many clocks as beats with its ICRC, one
        more where payload moves to lower lanes and the headers end in the first beat; stalls for payload and room only.
    Errors : err of the last beat is the first err of the payload's beats; transmit drops the frame.
    """
    def __init__(self, context_port, dw=DATA_WIDTH):
        # Stream Endpoints.
        self.builder = builder = HeaderBuilder(context_port)
        self.sink    = builder.sink
        self.payload = stream.Endpoint(payload_description(dw))
        self.source  = stream.Endpoint(stream.EndpointDescription(
            [("data", dw), ("end", LANE_BITS)], [("vlan", 1), ("ipv6", 1), ("pass_by", 1)] + frame_params()))
        self.reserve = stream.Endpoint([("beats", BEAT_BITS), ("control", 1)])
        self.room         = Signal()
        self.room_control = Signal()

        # # #

        self.params  = [n for n, _ in frame_params()] + ["vlan", "ipv6"]
        self.rotator = ByteRotator(dw)
        self._add_sequencer()
        self._add_places(dw)
        self._add_merge(dw)
        self._add_straight(dw)

    def _add_sequencer(self):
        """A step a clock, straight from the header FIFO: takes a beat of payload, gives a beat of the frame."""
        h, payload, reserve = self.builder.source, self.payload, self.reserve
        gap          = Signal()
        go, want     = Signal(), Signal()
        skip         = Signal()                # a step that only takes payload ahead.
        left, beats_in = Signal(BEAT_BITS), Signal(BEAT_BITS)
        held_err     = Signal(MEM_ERR_WIDTH)
        self.beat    = beat = Signal(BEAT_BITS)
        self.err     = Signal(MEM_ERR_WIDTH)
        self.started = started = Signal()
        self.straight = Signal()
        self.step, self.emit, self.finish = step, emit, finish = Signal(), Signal(), Signal()
        self.comb += [
            # Room for a frame is asked for when it begins.
            go.eq(h.valid & ~gap & (started | h.marker | Mux(h.control, self.room_control, self.room))),
            beats_in.eq(Mux(started, left, h.beats_in)),
            # Headers longer than a beat: the first beat takes payload only to have it ahead.
            want.eq((beats_in != 0) & ~(h.size[LANE_BITS] & (beat == 0) & ~h.ahead)),
            skip.eq(~started & h.ahead & ~h.size[LANE_BITS]),
            step.eq(go & (~want | payload.valid)),
            payload.ready.eq(go & want),
            emit.eq(step & ~skip),
            finish.eq((beat == h.last_beat) & ~skip),
            self.err.eq(Mux(want & ((held_err == 0) | ~started), payload.err, Mux(started, held_err, 0))),
            # One clock free behind a frame whose ICRC needs a beat of its own.
            h.ready.eq(step & finish),
            reserve.valid.eq(step & ~started & ~h.marker),
            reserve.control.eq(h.control),
            reserve.beats.eq(h.beats),
        ]
        self.sync += [
            gap.eq(step & finish & h.extra),
            If(step,
                started.eq(~finish),
                held_err.eq(self.err),
                left.eq(beats_in - want),
                If(finish, beat.eq(0)).Elif(emit, beat.eq(beat + 1)),
            ),
        ]

    def _add_places(self, dw):
        """Two clocks beside the rotator: headers of the beat, where its payload begins and ends."""
        h, beat, rotator = self.builder.source, self.beat, self.rotator
        layout  = [("valid", 1), ("first", 1), ("last", 1), ("extra", 1)]
        layout += [("before", 1), ("starts", 1), ("ends", 1), ("behind", 1), ("start_lane", LANE_BITS),
            ("tail_lane", LANE_BITS), ("end", LANE_BITS), ("header", dw)]
        layout += [(n, w) for n, w in geometry_layout() if n in self.params]
        m1, m2  = Record(layout), Record(layout)
        self.beats_info = m1, m2
        self.start_mask = Signal(dw//8)
        self.tail_mask  = Signal(dw//8)
        self.comb += [
            rotator.step.eq(self.step),
            rotator.data.eq(self.payload.data),
            rotator.shift.eq(h.shift),
        ]
        self.sync += [
            m1.valid.eq(self.emit & ~self.straight),
            If(self.emit,
                m1.first.eq(beat == 0),
                m1.last.eq(self.finish),
                m1.extra.eq(self.finish & h.extra),
                m1.before.eq(h.size[LANE_BITS] & (beat == 0)),
                m1.starts.eq(beat == h.size[LANE_BITS]),
                m1.ends.eq(beat == h.tail[LANE_BITS:]),
                m1.behind.eq(beat > h.tail[LANE_BITS:]),
                m1.start_lane.eq(h.size[:LANE_BITS]),
                m1.tail_lane.eq(h.tail[:LANE_BITS]),
                m1.end.eq(h.end[:LANE_BITS]),
                Case(beat, {0: m1.header.eq(h.bits[:dw]), 1: m1.header.eq(h.bits[dw:]), "default": m1.header.eq(0)}),
                [getattr(m1, n).eq(getattr(h, n)) for n in self.params if n != "err"],
                m1.err.eq(self.err),
            ),
            m2.eq(m1),
            self.start_mask.eq(Mux(m1.before | m1.behind, 0, Mux(m1.starts, lanes_from(m1.start_lane), ALL_LANES))),
            self.tail_mask.eq(Mux(m1.ends, lanes_to(m1.tail_lane), ALL_LANES)),
        ]

    def _add_merge(self, dw):
        """Header, payload of this and the former beat."""
        m, rotator, source = self.beats_info[1], self.rotator, self.source
        low, high = Signal(dw//8), Signal(dw//8)
        self.comb += [
            high.eq(self.start_mask & self.tail_mask & ~rotator.low),
            low.eq(self.start_mask & self.tail_mask & rotator.low),
        ]
        self.sync += [
            source.valid.eq(m.valid),
            If(m.valid,
                source.first.eq(m.first),
                source.last.eq(m.last),
                source.data.eq(m.header | (rotator.newest & expand(high)) | (rotator.previous & expand(low))),
                source.end.eq(m.end),
                source.pass_by.eq(m.marker),
                [getattr(source, n).eq(getattr(m, n)) for n in self.params],
            ),
        ]

    def _add_straight(self, dw):
        """A frame without payload that finds nothing before it: from the sequencer to the way out."""
        h, beat, source = self.builder.source, self.beat, self.source
        (m1, m2), held, ending = self.beats_info, Signal(), Signal()
        self.comb += self.straight.eq(Mux(self.started, held, (h.beats_in == 0) & ~m1.valid & ~m2.valid & ~ending))
        self.sync += [
            held.eq(self.straight),
            # The beat on the way out needs one more for its ICRC.
            ending.eq(m2.valid & m2.extra),
            If(self.emit & self.straight,
                source.valid.eq(1),
                source.first.eq(beat == 0),
                source.last.eq(self.finish),
                source.data.eq(Mux(beat == 0, h.bits[:dw], h.bits[dw:])),
                source.end.eq(h.end[:LANE_BITS]),
                source.pass_by.eq(h.marker),
                [getattr(source, n).eq(getattr(h, n)) for n in self.params if n != "err"],
                source.err.eq(0),
            ),
        ]
