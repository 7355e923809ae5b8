# SPDX-License-Identifier: BSD-2-Clause
"""100G PHY for simulation: the board's registers and streams, a link that comes up, and its faults.

One clock; frames pass in one clock. The wire is the AXI-Stream side of the hard block: pads for
LiteX's simulation platform, endpoints for other benches. What goes wrong is set by registers `fault_*`, or by
parameters where it must be wrong before software runs.

Ref: AMD PG203 (ports and reset behaviour of the hard block).
Not supported: line rate (the bench paces the wire), bit errors (the bench corrupts frames).
"""
from migen import *

from litex.gen import *

from litex.soc.interconnect import stream
from litex.soc.interconnect.csr import *

from roce_soc.common import roce_wire_description
from roce_soc.phy.common import MIN_FRAME, RoCEPHY
from roce_soc.phy.frames import FrameGate

# Simulation only: cycles that a side needs to come out of reset.
RESET_CYCLES = 64

FOREVER = 0xffffffff

# Events that register `fault_event` makes happen once; names as in `latched` or the counters.
FAULT_EVENTS = [
    ("local_fault",     "Local fault for one clock."),
    ("remote_fault",    "Remote fault for one clock."),
    ("hi_ber",          "High bit error rate for one clock."),
    ("tx_unfout",       "Transmit underflow: transmission is dead until `control.tx_reset`."),
    ("bad_fcs",         "A frame with a bad FCS that is not handed on."),
    ("fec_corrected",   "A codeword corrected."),
    ("fec_uncorrected", "A codeword not corrected."),
]

# RoCEPHYModel -------------------------------------------------------------------------------------

class RoCEPHYModel(RoCEPHY):
    """Simulation PHY.

    Parameters
    ----------
    pads : Record or None
        tx_{valid, ready, last, data[512], keep[64]}, rx_{valid, ready, last, data, keep} and, where present,
        tx_error, rx_error (a frame to be discarded, on last). None: the bench uses the endpoints `wire_source` and `wire_sink`.
    align_cycles : int
        Clocks from "receiver enabled and out of reset" to alignment, 1 .. 2**32 - 1.
    failures : int
        Bring-up attempts that fail before one succeeds, 0 .. 255.
    rsfec, peer_rsfec : bool
        RS-FEC of this side after reset, and of the peer. Alignment needs equal settings.

    Endpoints
    ---------
    sink, source : as RoCEPHY
    wire_source : roce_wire_description(512), out
        Frames sent. wire_sink : roce_wire_description(512), in, always taken: frames received.

    Latency: 0 clocks to the wire, 1 clock from it.
    Errors : frames meet the rules of RoCEPHY; a frame on the way when the link goes down is cut: received, it ends
        with an error; sent, its rest is dropped after a reset and passes otherwise.
    """
    def __init__(self, pads=None, *, align_cycles=256, failures=0, rsfec=True, peer_rsfec=True):
        if not 1 <= align_cycles <= FOREVER:
            raise ValueError(f"align_cycles must be 1..{FOREVER}, not {align_cycles!r}")
        if not 0 <= failures <= 255:
            raise ValueError(f"failures must be 0..255, not {failures!r}")
        self.add_endpoints()
        self.wire_source = stream.Endpoint(roce_wire_description(self.dw))
        self.wire_sink   = stream.Endpoint(roce_wire_description(self.dw))
        self.add_registers(model=True, rsfec=rsfec)
        self.add_fault_registers(align_cycles, failures, peer_rsfec)

        # # #

        self.cd_eth_tx = ClockDomain()
        self.cd_eth_rx = ClockDomain()
        for cd in (self.cd_eth_tx, self.cd_eth_rx):
            self.comb += [cd.clk.eq(ClockSignal("sys")), cd.rst.eq(ResetSignal("sys"))]
        self.add_link()
        self.add_transmit()
        self.add_receive()
        if pads is not None:
            self.add_pads(pads)

    def add_fault_registers(self, align_cycles, failures, peer_rsfec):
        self.fault_link = CSRStorage(description="State of the wire and the peer. Loopback hides all of it.", fields=[
            CSRField("never_align",  size=1, description="The lanes never align: no signal."),
            CSRField("local_fault",  size=1, description="Local fault although aligned."),
            CSRField("remote_fault", size=1, description="The peer sends remote fault."),
            CSRField("hi_ber",       size=1, description="High bit error rate: `status.rx_status` falls."),
            CSRField("peer_rsfec",   size=1, reset=int(peer_rsfec), description="The peer uses RS-FEC; the lanes align only"
                " if `status.rsfec_active` is equal."),
            CSRField("no_module",    size=1, description="No pluggable module: no signal, `status.module_present` is 0."),
        ])
        self.fault_align_cycles = CSRStorage(32, reset=align_cycles,
            description="Clocks from \"receiver enabled and out of reset\" to alignment.")
        self.fault_failures = CSRStorage(8, reset=failures, write_from_dev=True,
            description="Bring-up attempts that still fail: while not 0 the lanes do not align; each reset"
            " (`control.gt_rx_reset` or `control.sys_reset` set) takes 1 off.")
        self.fault_lose_cycles = CSRStorage(32,
            description="A write of N loses alignment for N clocks; all ones: until `control.gt_rx_reset` or"
            " `control.sys_reset` is set.")
        self.fault_event = CSRStorage(description="Write 1: happens once.",
            fields=[CSRField(name, size=1, pulse=True, description=text) for name, text in FAULT_EVENTS])

    # Link -----------------------------------------------------------------------------------------

    def add_link(self):
        control, status, fault = self.control.fields, self.status.fields, self.fault_link.fields
        event = self.fault_event.fields

        # Resets: a side is ready RESET_CYCLES after its last reset.
        tx_fec = self.add_side(control.sys_reset | control.tx_reset | control.gt_tx_reset, status.tx_reset_done)
        rx_fec = self.add_side(control.sys_reset | control.rx_reset | control.gt_rx_reset, status.rx_reset_done)

        # What resets cure.
        cure, cure_d = Signal(), Signal()
        lost, lose   = Signal(), Signal(32)
        self.comb += [
            cure.eq(control.gt_rx_reset | control.sys_reset),
            self.fault_failures.we.eq(cure & ~cure_d & (self.fault_failures.storage != 0)),
            self.fault_failures.dat_w.eq(self.fault_failures.storage - 1),
            lost.eq(lose != 0),
        ]
        self.sync += [
            cure_d.eq(cure),
            If(self.fault_lose_cycles.re,
                lose.eq(self.fault_lose_cycles.storage),
            ).Elif(cure & (lose == FOREVER),
                lose.eq(0),
            ).Elif(lost & (lose != FOREVER),
                lose.eq(lose - 1),
            )
        ]

        # Alignment.
        signal, lock, timer = Signal(), Signal(), Signal(32)
        self.comb += [
            signal.eq(control.loopback | ~(fault.never_align | lost | fault.no_module
                | control.module_reset | control.module_low_power)),
            lock.eq(status.rx_reset_done & signal & (rx_fec == Mux(control.loopback, tx_fec, fault.peer_rsfec))),
            status.aligned.eq(lock & (timer == 0)),
        ]
        self.sync += If(~(lock & control.rx_enable & (self.fault_failures.storage == 0)),
            timer.eq(self.fault_align_cycles.storage)
        ).Elif(timer != 0,
            timer.eq(timer - 1)
        )

        # Status.
        self.comb += [
            status.block_lock.eq(lock),
            status.synced.eq(status.aligned),
            status.rsfec_active.eq(rx_fec & tx_fec),
            status.rsfec_aligned.eq(status.aligned & rx_fec),
            status.hi_ber.eq(status.aligned & ~control.loopback & fault.hi_ber),
            status.rx_status.eq(status.aligned & ~status.hi_ber),
            status.local_fault.eq(~status.aligned | (fault.local_fault & ~control.loopback)),
            status.remote_fault.eq(status.aligned & ~control.loopback & (fault.remote_fault | (tx_fec != fault.peer_rsfec))),
            status.powergood.eq(~control.sys_reset),
            status.module_present.eq(~fault.no_module),
        ]
        self.sync += If(~status.tx_reset_done, status.tx_dead.eq(0)).Elif(event.tx_unfout, status.tx_dead.eq(1))
        self.add_link_status()

        # Events.
        for name in ("local_fault", "remote_fault", "hi_ber"):
            self.comb += self.events[name].eq(getattr(status, name) | getattr(event, name))
        for name in ("tx_unfout", "bad_fcs", "fec_uncorrected"):
            self.comb += self.events[name].eq(getattr(event, name))
        for name in ("tx_unfout", "bad_fcs", "fec_corrected", "fec_uncorrected"):
            self.count(name, getattr(event, name))

    def add_side(self, reset, done):
        """One direction's reset; returns the FEC mode it took."""
        timer, fec = Signal(max=RESET_CYCLES + 1, reset=RESET_CYCLES), Signal()
        self.comb += done.eq(timer == 0)
        self.sync += [
            If(reset, timer.eq(RESET_CYCLES)).Elif(~done, timer.eq(timer - 1)),
            If(~done, fec.eq(self.control.fields.rsfec_enable)),
        ]
        return fec

    def count(self, name, pulse):
        self.sync += If(pulse, self.counts[name].eq(self.counts[name] + 1))

    # Data path ------------------------------------------------------------------------------------

    def add_transmit(self):
        self.tx_gate = gate = FrameGate(self.sink.description, terminate=False)
        sink, control, short = self.sink, self.control.fields, Signal()
        fresh = Signal(reset=1)
        loop  = Signal()
        self.loop = loop
        self.comb += [
            short.eq(fresh & sink.last & (sink.last_be[:MIN_FRAME - 1] != 0)),
            sink.connect(gate.sink, omit={"valid", "ready"}),
            gate.sink.valid.eq(sink.valid & ~short),
            sink.ready.eq(gate.sink.ready | short),
            gate.open.eq(self.status.fields.link_up),
            gate.cut.eq(~self.status.fields.tx_reset_done),
            gate.source.connect(self.wire_source, omit={"valid", "ready"}),
            self.wire_source.valid.eq(gate.source.valid & ~loop),
            gate.source.ready.eq(self.wire_source.ready | loop),
        ]
        # Loopback changes between frames.
        self.sync += [
            If(sink.valid & sink.ready, fresh.eq(sink.last)),
            If(fresh & ~sink.valid, loop.eq(control.loopback)),
        ]
        self.count("tx_frames",         gate.passed)
        self.count("tx_dropped_down",   gate.dropped)
        self.count("tx_refused",      sink.valid & short)

    def add_receive(self):
        self.rx_gate = gate = FrameGate(self.source.description, terminate=True)
        status, control, wire, sent = self.status.fields, self.control.fields, self.wire_sink, self.tx_gate.source
        source = self.source
        # The engine's side is a register; own frames of the loopback enter there, one clock after the wire was cut.
        self.comb += [
            wire.connect(gate.sink),
            gate.open.eq(status.rx_status & control.rx_enable & ~self.loop),
            gate.cut.eq(~status.aligned | ~control.rx_enable | control.loopback | self.loop),
            gate.source.ready.eq(1),
        ]
        self.sync += [
            source.valid.eq(gate.source.valid | (self.loop & sent.valid)),
            If(self.loop,
                source.first.eq(sent.first), source.last.eq(sent.last), source.data.eq(sent.data),
                source.last_be.eq(sent.last_be), source.error.eq(sent.error),
            ),
            If(gate.source.valid,
                source.first.eq(gate.source.first), source.last.eq(gate.source.last), source.data.eq(gate.source.data),
                source.last_be.eq(gate.source.last_be), source.error.eq(gate.source.error),
            )
        ]
        self.count("rx_frames",       source.valid & source.last)
        self.count("rx_errors",       source.valid & source.last & (source.error != 0))
        self.count("rx_dropped_down", gate.dropped)

    def add_pads(self, pads):
        """The hard block's stream ports: `keep` for `last_be`."""
        wire_source, wire_sink = self.wire_source, self.wire_sink
        dw_bytes = self.dw//8
        self.comb += [
            pads.tx_valid.eq(wire_source.valid),
            pads.tx_last.eq(wire_source.last),
            pads.tx_data.eq(wire_source.data),
            # Ones from lane 0 to the set bit.
            pads.tx_keep.eq(Mux(wire_source.last, wire_source.last_be | (wire_source.last_be - 1), 2**dw_bytes - 1)),
            wire_source.ready.eq(pads.tx_ready),
            pads.rx_ready.eq(1),
            wire_sink.valid.eq(pads.rx_valid),
            wire_sink.last.eq(pads.rx_last),
            wire_sink.data.eq(pads.rx_data),
            If(pads.rx_last, wire_sink.last_be.eq(pads.rx_keep & ~Cat(pads.rx_keep[1:], 0))),
        ]
        if hasattr(pads, "tx_error"):
            self.comb += pads.tx_error.eq(wire_source.last & (wire_source.error != 0))
        if hasattr(pads, "rx_error"):
            self.comb += wire_sink.error.eq(Replicate(pads.rx_error & pads.rx_last, dw_bytes))
