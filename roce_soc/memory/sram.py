# SPDX-License-Identifier: BSD-2-Clause
"""On-chip memory behind the engine's memory ports and on the CPU's bus.

Not supported: caching of the bus side; rings and buffers in it are uncached for the CPU.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import wishbone

from roce_soc.abi import MEMORY_SRAM
from roce_soc.capability import MemoryTarget
from roce_soc.common import (
    DATA_BYTES, DATA_WIDTH, MEM_NO_ADDRESS, MEM_OK, PAGE_BYTES, TAG_WIDTH)
from roce_soc.memory.port import BEATS_WIDTH, MemoryReadPort, MemoryWritePort, beats_of
from roce_soc.memory.router import MemoryHub
from roce_soc.table import clocked_port

BUS_WIDTH = 32

# RoCESRAM -----------------------------------------------------------------------------------------

class RoCESRAM(LiteXModule):
    """RAM of 512-bit words with one write port, several read ports and a Wishbone slave.

    All of them see one memory: a read after a wack, or after the bus' acknowledge, sees the bytes.

    Parameters
    ----------
    size : int
        Bytes, a power of two, at least 4096.
    base : int
        Address of its first byte on the memory ports, a multiple of size.

    Attributes
    ----------
    target : MemoryTarget
        What software is told of it.

    Endpoints
    ---------
    write : MemoryWritePort, in
    get_read() : MemoryReadPort, in
        A new read port; the ports share the RAM's read port beat by beat. Before finalisation.
    add_port(port) :
        Puts an engine's memory port on this memory as its only target: MemoryHub in between.
    bus : wishbone.Interface(32), in
        Byte 0 of the memory is address 0; higher address bits are ignored.

    Latency: last beat to wack 1 clock; rcmd to first beat 3 clocks; one beat a clock each way, none lost between commands.
    Errors : a range outside [base, base + size) is answered MEM_NO_ADDRESS.
    """
    def __init__(self, size=4*1024*1024, base=0, dw=DATA_WIDTH):
        if size < PAGE_BYTES or size & (size - 1):
            raise ValueError(f"size must be a power of two of at least {PAGE_BYTES}, not {size!r}")
        if base % size:
            raise ValueError(f"base must be a multiple of size ({size:#x}), not {base:#x}")
        self.size, self.base, self.dw = size, base, dw
        self.target = MemoryTarget(MEMORY_SRAM, size)
        self.write = MemoryWritePort(dw)
        self.reads = []
        self.bus   = wishbone.Interface(data_width=BUS_WIDTH, address_width=32, addressing="word")

    def get_read(self):
        """A new read port."""
        if self.finalized:
            raise ValueError("get_read must be called before finalisation")
        self.reads.append(MemoryReadPort(self.dw))
        return self.reads[-1]

    def add_port(self, port):
        """An engine's port on this memory alone."""
        if not hasattr(self, "hub"):
            self.hub = MemoryHub([self])
        self.hub.add_port(port)

    def do_finalize(self):
        self.reads  = self.reads or [MemoryReadPort(self.dw)]
        words       = self.size//DATA_BYTES
        self.bits   = log2_int(words)
        self.memory = memory = Memory(self.dw, words)
        self.ram_write = memory.get_port(write_capable=True, we_granularity=8)
        self.ram_read  = clocked_port(memory, old_word=True, has_re=True)
        self.specials += memory, self.ram_write, self.ram_read

        # Bus: one access at a time.
        bus       = self.bus
        access    = Signal()
        self.bus_write, self.bus_read = Signal(), Signal()
        self.bus_wait  = Signal()       # a read is under way.
        self.bus_lanes = self.dw//BUS_WIDTH
        lane_bits      = log2_int(self.bus_lanes)
        self.bus_lane, self.bus_word = bus.adr[:lane_bits], bus.adr[lane_bits:lane_bits + self.bits]
        self.comb += [
            access.eq(bus.cyc & bus.stb & ~bus.ack & ~self.bus_wait),
            self.bus_write.eq(access & bus.we),
            self.bus_read.eq(access & ~bus.we),
        ]
        self._add_write()
        self._add_read()

    def _word(self, addr):
        return addr[6:6 + self.bits]

    def _outside(self, addr):
        return addr[6 + self.bits:] != self.base >> (6 + self.bits)

    def _add_write(self):
        """A command is taken while the last beat of the one before is written; the bus comes first."""
        bus, write, ram     = self.bus, self.write, self.ram_write
        w_open, w_err       = Signal(), Signal()
        w_adr, w_tag        = Signal(self.bits), Signal(TAG_WIDTH)
        w_beat, w_last      = Signal(), Signal()
        self.comb += [
            write.wdata.ready.eq(w_open & ~self.bus_write),
            w_beat.eq(write.wdata.valid & write.wdata.ready),
            w_last.eq(w_beat & write.wdata.last),
            write.wcmd.ready.eq(~w_open | w_last),
            ram.adr.eq(Mux(self.bus_write, self.bus_word, w_adr)),
            ram.dat_w.eq(Mux(self.bus_write, Replicate(bus.dat_w, self.bus_lanes), write.wdata.data)),
            If(self.bus_write,
                Case(self.bus_lane, {n: ram.we[4*n:4*n + 4].eq(bus.sel) for n in range(self.bus_lanes)}),
            ).Elif(w_beat & ~w_err,
                ram.we.eq(write.wdata.be),
            ),
        ]
        self.sync += [
            If(w_beat, w_adr.eq(w_adr + 1)),
            If(write.wcmd.ready,
                w_open.eq(write.wcmd.valid),
                w_adr.eq(self._word(write.wcmd.addr)),
                w_tag.eq(write.wcmd.tag),
                w_err.eq(self._outside(write.wcmd.addr)),
            ),
            write.wack.valid.eq(w_last),
            write.wack.last.eq(1),
            write.wack.tag.eq(w_tag),
            write.wack.err.eq(Mux(w_err, MEM_NO_ADDRESS, MEM_OK)),
        ]

    def _add_read(self):
        """Each port runs one command at a time; the ports take turns beat by beat, the bus comes first."""
        bus, reads, ram = self.bus, self.reads, self.ram_read
        n_reads = len(reads)
        layout  = [("open", 1), ("err", 1), ("last", 1), ("adr", self.bits), ("left", BEATS_WIDTH), ("tag", TAG_WIDTH)]
        states  = [Record(layout) for _ in reads]
        grants  = [Signal(name=f"grant{n}") for n in range(n_reads)]
        turn    = Signal(max=max(n_reads, 2))
        choose  = {}
        for first in range(n_reads):
            branch = None
            for n in [(first + i) % n_reads for i in range(n_reads)]:
                branch = If(states[n].open, grants[n].eq(1)) if branch is None else branch.Elif(states[n].open, grants[n].eq(1))
            choose["default" if first == n_reads - 1 else first] = branch
        pipe = [Record([("port", n_reads), ("bus", 1), ("err", 1), ("last", 1), ("tag", TAG_WIDTH)]) for _ in range(2)]
        lane = Signal(len(self.bus_lane))
        q    = Signal(self.dw)
        self.comb += [
            If(~self.bus_read, Case(turn, choose)),
            ram.re.eq(1),
            ram.adr.eq(self.bus_word),
        ]
        self.sync += [
            pipe[0].port.eq(Cat(*grants)),
            pipe[0].bus.eq(self.bus_read),
            pipe[1].eq(pipe[0]),
        ]
        for n, (port, state) in enumerate(zip(reads, states)):
            self.comb += [
                state.last.eq(state.left == 1),
                port.rcmd.ready.eq(~state.open | (grants[n] & state.last)),
                If(grants[n], ram.adr.eq(state.adr)),
                port.rdata.valid.eq(pipe[1].port[n]),
                port.rdata.last.eq(pipe[1].last),
                port.rdata.tag.eq(pipe[1].tag),
                port.rdata.err.eq(Mux(pipe[1].err, MEM_NO_ADDRESS, MEM_OK)),
                port.rdata.data.eq(q),
            ]
            self.sync += [
                If(grants[n],
                    turn.eq((n + 1) % n_reads),
                    state.adr.eq(state.adr + 1),
                    state.left.eq(state.left - 1),
                    pipe[0].err.eq(state.err),
                    pipe[0].last.eq(state.last),
                    pipe[0].tag.eq(state.tag),
                ),
                If(port.rcmd.ready,
                    state.open.eq(port.rcmd.valid),
                    state.err.eq(self._outside(port.rcmd.addr)),
                    state.adr.eq(self._word(port.rcmd.addr)),
                    state.left.eq(beats_of(port.rcmd)),
                    state.tag.eq(port.rcmd.tag),
                ),
            ]
        self.sync += [
            If(self.bus_read, pipe[0].err.eq(0)),
            # The RAM's output register; the data of an error is zero.
            If(pipe[0].port | pipe[0].bus, q.eq(Mux(pipe[0].err, 0, ram.dat_r))),
            If(self.bus_read, lane.eq(self.bus_lane)),
            self.bus_wait.eq(self.bus_read | (self.bus_wait & ~pipe[1].bus)),
            bus.ack.eq((self.bus_write | pipe[1].bus) & bus.cyc & bus.stb),
            Case(lane, {n: bus.dat_r.eq(q[BUS_WIDTH*n:BUS_WIDTH*(n + 1)]) for n in range(self.bus_lanes)}),
        ]
