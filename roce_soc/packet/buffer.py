# SPDX-License-Identifier: BSD-2-Clause
"""Packet buffer: payload of received packets in chunks with a free list, committed by the verdict.

Not supported: per-priority occupancy and PFC thresholds.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.bounds import counted
from roce_soc.common import (
    DATA_BYTES, DATA_WIDTH, refusal_description, rx_beats_description, rx_packet_description, rx_verdict_description)
from roce_soc.errors import ERRORS
from roce_soc.table import BypassFIFO, BypassQueue, InitWalker, clocked_port

CHUNK_BEATS  = 8
RECORD_DEPTH = 64      # packets that may wait for the responder or the completer.
FRAME_DEPTH  = 32      # frames between their last beat and their verdict.
CHUNK_SHIFT  = log2_int(CHUNK_BEATS*DATA_BYTES)
CHUNK_ROUND  = CHUNK_BEATS*DATA_BYTES - 1


def chunks_of(packet):
    """Chunks of the packet buffer that a packet holds (expression)."""
    return Mux(packet.has_slot, (packet.offset + packet.length + CHUNK_ROUND)[CHUNK_SHIFT:], 0)


# PacketBuffer -------------------------------------------------------------------------------------

class PacketBuffer(LiteXModule):
    """Stores payload beats as they come, hands out records of good packets, frees chunks as their beats are taken.

    A frame takes chunks from the free list while it arrives; its chunk list is committed by a good
    verdict or given back by a bad one, whole in both cases. There is no order among committed
    packets: whoever holds a record fetches its slot when it likes (parked packets do so late).

    Parameters
    ----------
    n_chunks : int
        Chunks of 512 B, a power of two from 16 to 1024.

    Endpoints
    ---------
    sink : rx_beats_description(512), in
        Beats from the decoder; valid only.
    verdict : rx_verdict_description(), in
        One pulse a frame, in order, two clocks after the frame's last beat or later.
    request, response : rx_packet_description(), out
        Records of good packets.
    fetch : {slot, discard}, in
        Read a packet's beats and free its chunks, or (discard) only free them; served in order.
    data : {data}, out
        Stored beats of the fetched packet, first and last mark the packet.
    keep : in
        The packet whose beats are being taken stays, to be fetched again.
    refusal : refusal_description(), out
        One pulse for each frame that was not handed out.

    Latency: verdict to record none when no record waits; fetch to the first beat 3 clocks, then one beat a clock,
        no gap between packets.
    Errors : no free chunk, or no room for the record: the frame is dropped whole, row BUFFER_FULL.
    """
    def __init__(self, n_chunks=512, dw=DATA_WIDTH):
        if n_chunks not in (16, 32, 64, 128, 256, 512, 1024):
            raise ValueError(f"n_chunks must be a power of two from 16 to 1024, not {n_chunks!r}")
        chunk_bits = log2_int(n_chunks)
        # Stream Endpoints.
        self.sink     = sink     = stream.Endpoint(rx_beats_description(dw))
        self.verdict  = verdict  = stream.Endpoint(rx_verdict_description())
        self.request  = stream.Endpoint(rx_packet_description())
        self.response = stream.Endpoint(rx_packet_description())
        self.fetch    = stream.Endpoint([("slot", 10), ("discard", 1)])
        self.data     = stream.Endpoint([("data", dw)])
        self.keep     = Signal()
        self.refusal  = stream.Endpoint(refusal_description())
        self.ready      = Signal()                       # init walker has filled the free list.
        self.chunks_free = Signal(max=n_chunks + 1)      # for monitoring: all of them when idle.

        # # #

        # Memories. Links and packet sizes are read in the same clock (distributed RAM).
        storage = Memory(dw, n_chunks*CHUNK_BEATS)
        links   = Memory(chunk_bits, n_chunks)
        sizes   = Memory(7, n_chunks)
        store_port = storage.get_port(write_capable=True)
        load_port  = clocked_port(storage, has_re=True)
        link_write, link_read = links.get_port(write_capable=True), links.get_port(async_read=True)
        size_write, size_read = sizes.get_port(write_capable=True), sizes.get_port(async_read=True)
        self.specials += storage, links, sizes, store_port, load_port, link_write, link_read, size_write, size_read

        # Free list: filled once by a walker, then by discards and by the beats that are taken.
        self.free = free = stream.SyncFIFO([("chunk", chunk_bits)], n_chunks, buffered=True)
        self.submodules += counted(free, "chunks: there are n_chunks, each once in the list or in a packet")
        self.walker = walker = InitWalker(n_chunks)
        release     = stream.Endpoint([("chunk", chunk_bits)])
        self.comb += [
            self.ready.eq(walker.ready),
            free.sink.valid.eq(~walker.ready | release.valid),
            free.sink.chunk.eq(Mux(walker.ready, release.chunk, walker.adr)),
        ]
        taken = Signal()
        self.comb += taken.eq(free.source.valid & free.source.ready)
        self.sync += [
            If(~walker.ready,
                self.chunks_free.eq(walker.adr + 1),
            ).Else(
                self.chunks_free.eq(self.chunks_free + release.valid - taken),
            )
        ]

        # Store: which beats hold payload, where they go.
        beat          = Signal(8)     # beats of the frame seen.
        number        = Signal(8)     # this beat's number in the frame.
        first_payload = Signal()
        last_payload  = Signal(8)
        last_byte     = Signal(14)
        wanted, got   = Signal(), Signal()
        stored        = Signal(7)     # payload beats stored of this frame.
        stored_now    = Signal(7)
        head, chunk   = Signal(chunk_bits), Signal(chunk_bits)
        chunk_now     = Signal(chunk_bits)
        overflow, overflow_now, fresh = Signal(), Signal(), Signal()
        self.comb += [
            number.eq(Mux(sink.first, 0, beat)),
            last_byte.eq(sink.start + sink.length - 1),
            first_payload.eq(sink.start[6]),
            last_payload.eq(last_byte[6:]),
            stored_now.eq(Mux(sink.first, 0, stored)),
            wanted.eq(sink.valid & sink.keep & (number >= first_payload) & (number <= last_payload)),
            fresh.eq(stored_now[:3] == 0),
            overflow_now.eq((~sink.first & overflow) | (wanted & fresh & ~free.source.valid)),
            got.eq(wanted & ~overflow_now),
            free.source.ready.eq(got & fresh),
            chunk_now.eq(Mux(fresh, free.source.chunk, chunk)),
            store_port.we.eq(got),
            store_port.adr.eq(Cat(stored_now[:3], chunk_now)),
            store_port.dat_w.eq(sink.data),
            # The link is written when its successor is taken.
            link_write.we.eq(got & fresh & (stored_now != 0)),
            link_write.adr.eq(chunk),
            link_write.dat_w.eq(free.source.chunk),
        ]
        self.sync += [
            If(sink.valid,
                If(number != 0xff, beat.eq(number + 1)),
                stored.eq(stored_now + got),
                overflow.eq(overflow_now),
            ),
            If(got,
                chunk.eq(chunk_now),
                If(stored_now == 0, head.eq(free.source.chunk)),
            )
        ]

        # Frames that wait for their verdict.
        self.frames = frames = stream.SyncFIFO(
            [("head", chunk_bits), ("size", 7), ("overflow", 1), ("offset", 6)], FRAME_DEPTH)
        self.submodules += counted(frames, "frames without a verdict: the decoder gives it within its latency, fewer than 32 clocks")
        ended, ended_offset = Signal(), Signal(6)
        self.sync += [
            ended.eq(sink.valid & sink.last),
            ended_offset.eq(sink.start[:6]),
        ]
        self.comb += [
            frames.sink.valid.eq(ended),
            frames.sink.head.eq(head),
            frames.sink.size.eq(stored),
            frames.sink.overflow.eq(overflow),
            frames.sink.offset.eq(ended_offset),
            size_write.we.eq(ended & (stored != 0)),
            size_write.adr.eq(head),
            size_write.dat_w.eq(stored),
        ]

        # Commit or give back. A record that nothing is before is handed out in the verdict's clock.
        v        = verdict
        names    = [n for n, _ in rx_packet_description().payload_layout if n not in ("has_slot", "slot", "offset")]
        self.requests  = requests  = BypassQueue(rx_packet_description(), RECORD_DEPTH)
        self.responses = responses = BypassQueue(rx_packet_description(), RECORD_DEPTH)
        self.drops     = drops     = stream.SyncFIFO([("slot", chunk_bits)], n_chunks, buffered=True)
        self.submodules += counted(drops, "packets to drop: each has a chunk of n_chunks")
        good, room, has_slot = Signal(), Signal(), Signal()
        self.comb += [
            frames.source.ready.eq(v.valid),
            has_slot.eq(frames.source.size != 0),
            room.eq(Mux(v.response, responses.sink.ready, requests.sink.ready) & ~frames.source.overflow),
            good.eq(v.good),
            requests.sink.valid.eq(good & room & ~v.response),
            responses.sink.valid.eq(good & room & v.response),
            drops.sink.valid.eq(v.valid & has_slot & ~(good & room)),
            drops.sink.slot.eq(frames.source.head),
            requests.source.connect(self.request),
            responses.source.connect(self.response),
        ]
        # Of any other frame nothing is shown, valid or not.
        for records in (requests, responses):
            self.comb += [
                records.sink.first.eq(1),
                records.sink.last.eq(1),
                If(good,
                    [getattr(records.sink, n).eq(getattr(v, n)) for n in names],
                    records.sink.has_slot.eq(has_slot),
                    records.sink.slot.eq(frames.source.head),
                    records.sink.offset.eq(frames.source.offset),
                ),
            ]
        self.sync += [
            self.refusal.valid.eq(v.valid & ~(good & room)),
            self.refusal.row.eq(Mux(v.good, ERRORS["BUFFER_FULL"].index, v.row)),
            self.refusal.qpn.eq(v.qpn),
            self.refusal.psn.eq(v.psn),
            self.refusal.opcode.eq(v.opcode),
            self.refusal.info.eq(v.length),
        ]
        self.comb += [self.refusal.first.eq(1), self.refusal.last.eq(1)]

        # Read: own drops and the placer's fetches in turn; a job is loaded while the former's last step runs.
        job_valid, job_discard, job_first = Signal(), Signal(), Signal()
        job_chunk, job_left, job_lane     = Signal(chunk_bits), Signal(7), Signal(3)
        step, job_last, load              = Signal(), Signal(), Signal()
        step_chunk_ends                   = Signal()
        use_drop                          = Signal()
        next_slot                         = Signal(chunk_bits)
        room_out                          = Signal()
        freed                             = Record([("valid", 1), ("chunk", chunk_bits)])
        # Beats under way; `ends`: the last one of `chunk`.
        self.output = output              = BypassFIFO([("data", dw), ("chunk", chunk_bits), ("ends", 1)], 16, frames=True)
        beat_out                          = output.source
        self.comb += [
            use_drop.eq(drops.source.valid),
            next_slot.eq(Mux(use_drop, drops.source.slot, self.fetch.slot)),
            size_read.adr.eq(next_slot),
            link_read.adr.eq(job_chunk),
            step.eq(job_valid & Mux(job_discard, ~freed.valid, room_out)),
            # A discard frees a chunk each clock, a fetch reads a beat.
            job_last.eq(Mux(job_discard, job_left <= CHUNK_BEATS, job_left == 1)),
            step_chunk_ends.eq(job_discard | (job_lane == CHUNK_BEATS - 1) | job_last),
            load.eq(~job_valid | (step & job_last)),
            drops.source.ready.eq(load),
            self.fetch.ready.eq(load & ~use_drop),
            release.valid.eq(freed.valid | (step & job_discard)),
            release.chunk.eq(Mux(freed.valid, freed.chunk, job_chunk)),
        ]
        self.sync += [
            # A clock behind the beat: `data.ready` goes no further.
            freed.valid.eq(beat_out.valid & beat_out.ready & beat_out.ends & ~self.keep),
            freed.chunk.eq(beat_out.chunk),
            If(step,
                job_first.eq(0),
                job_left.eq(job_left - Mux(job_discard, CHUNK_BEATS, 1)),
                job_lane.eq(job_lane + 1),
                If(step_chunk_ends, job_chunk.eq(link_read.dat_r)),
            ),
            If(load,
                job_valid.eq(use_drop | self.fetch.valid),
                job_discard.eq(use_drop | self.fetch.discard),
                job_first.eq(1),
                job_chunk.eq(next_slot),
                job_left.eq(size_read.dat_r),
                job_lane.eq(0),
            )
        ]

        # RAM output: two registers, then a small FIFO that always has room for what is under way.
        self.submodules += counted(output, "beats on their way: `pending`")
        flags   = [Record([("valid", 1), ("first", 1), ("last", 1), ("chunk", chunk_bits), ("ends", 1)]) for _ in range(2)]
        q       = Signal(dw)
        pending = Signal(max=17)     # beats promised to `output`.
        read    = Signal()
        self.comb += [
            room_out.eq(pending != 16),
            read.eq(step & ~job_discard),
            load_port.adr.eq(Cat(job_lane, job_chunk)),
            load_port.re.eq(1),
            output.sink.valid.eq(flags[1].valid),
            output.sink.first.eq(flags[1].first),
            output.sink.last.eq(flags[1].last),
            output.sink.data.eq(q),
            output.sink.chunk.eq(flags[1].chunk),
            output.sink.ends.eq(flags[1].ends),
            beat_out.connect(self.data, omit={"chunk", "ends"}),
        ]
        self.sync += [
            flags[0].valid.eq(read), flags[0].first.eq(job_first), flags[0].last.eq(job_last),
            flags[0].chunk.eq(job_chunk), flags[0].ends.eq(step_chunk_ends),
            flags[1].eq(flags[0]),
            # What the RAM shows between reads may be of a frame that is not judged yet.
            If(flags[0].valid, q.eq(load_port.dat_r)),
            pending.eq(pending + read - (self.data.valid & self.data.ready)),
        ]
