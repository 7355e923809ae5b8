# SPDX-License-Identifier: BSD-2-Clause
"""What every 100G PHY of this project shares: stream contract, registers, their meaning.

Firmware and hosts see the same registers on the board and in simulation, so one link bring-up
serves both: `RoCEPHYCMAC` and `RoCEPHYModel` derive from `RoCEPHY` and only drive its signals.

Bring-up (register `control`): enable RX and send remote fault, wait for `aligned`, stop the remote
fault and enable TX, the link is up when `link_up` reads 1. When alignment does not come within about
a second, pulse `gt_rx_reset` and start again. After a change of `rsfec_enable` pulse `tx_reset` and
`rx_reset`: both directions take the FEC mode at reset only.

Ref: IEEE 802.3 clause 81 (reconciliation sublayer, local and remote fault), 82 (PCS), 91 (RS-FEC);
AMD PG203 (core bring-up without AXI4-Lite).
Not supported: auto-negotiation, link training, IEEE 1588 time stamps.
"""
from migen import *

from litex.gen import *

from litex.soc.interconnect import stream
from litex.soc.interconnect.csr import *

from roce_soc.common import roce_wire_description

# Tables -------------------------------------------------------------------------------------------

# Flags of register `latched`; the position is the bit.
LATCHED_FLAGS = [
    ("align_lost",        "Alignment of the receive lanes was lost."),
    ("local_fault",       "A local fault was seen: the receiver has no usable signal."),
    ("remote_fault",      "The peer reported a remote fault: it does not receive us."),
    ("hi_ber",            "The PCS reported a high bit error rate."),
    ("tx_unfout",         "A transmit frame starved or overran the core. Transmission is dead until `tx_reset`."),
    ("rx_full",           "A received frame was dropped because the receive FIFO had no room for a whole frame."),
    ("bad_fcs",           "A received frame had a bad FCS or was too long."),
    ("fec_uncorrected",   "RS-FEC met a codeword that it could not correct."),
    ("rx_reset_seen",     "The receive side left reset."),
    ("tx_reset_seen",     "The transmit side left reset."),
    ("link_down",         "`link_up` went from 1 to 0."),
]

# Counter registers `<name>_count`.
COUNTERS = [
    ("rx_frames",         "Frames handed to the engine, those with an error included."),
    ("rx_errors",         "Frames handed to the engine with an error mark (bad FCS, cut by a link loss, too long)."),
    ("rx_dropped_down",   "Frames of the wire dropped because the link was down or looped back."),
    ("rx_dropped_full",   "Frames dropped because the receive FIFO had no room for a whole frame."),
    ("bad_fcs",           "Bad FCS events of the core, whether or not the frame was handed on."),
    ("tx_frames",         "Frames given to the wire."),
    ("tx_dropped_down",   "Frames of the engine dropped because the link was down."),
    ("tx_refused",        "Frames of the engine dropped or cut: below 60 bytes, above the largest frame, or stuck because the"
                          " line's clock stands still."),
    ("tx_unfout",         "Underflow or overflow events of the transmit side (a frame with a hole)."),
    ("align_losses",      "Times that alignment was lost."),
    ("fec_corrected",     "RS-FEC codewords corrected."),
    ("fec_uncorrected",   "RS-FEC codewords that could not be corrected."),
]

COUNTER_WIDTH = 32
MIN_FRAME     = 60      # bytes without FCS: the core may lock up on less.
MAX_FRAME     = 9600    # bytes, the core's longest frame.
LINE_CLK_FREQ = 322.265625e6


def link_is_up(status, control):
    """Whether frames may be sent: the one rule for registers and gates, in the domain of its arguments."""
    return (status.aligned & status.rx_status & ~status.local_fault & ~status.remote_fault
        & control.rx_enable & control.tx_enable & ~control.send_rfi)

# RoCEPHY ------------------------------------------------------------------------------------------

class RoCEPHY(LiteXModule):
    """Registers and stream contract of a 100G PHY; the data path is the derived class's.

    Attributes of LiteEth's PHY contract: `dw`, `with_preamble_crc` (False: frames without preamble
    and FCS), `integrated_ifg_inserter` (True), `tx_clk_freq`, `rx_clk_freq`; `engine_domain`: clock of the streams.

    Endpoints
    ---------
    sink : roce_wire_description(512), in
        Frames of the engine, 60 bytes to MAX_FRAME, beats without holes while ready is high.
    source : roce_wire_description(512), out
        Frames of the wire. No back-pressure: ready is ignored. Gaps inside a frame occur, a frame
        always ends; `error` is all ones on the last beat of a frame to be discarded, else 0.

    CSRs
    ----
    `status` is live. `latched` remembers: a bit stays 1 from the event until a 1 is written to it, so
    read it twice (read, write back what was read, read again): the first value is history, the second
    says what still holds. Counters are 32 bits, free-running, wrap, and are read in one word.

    Latency: the derived class's.
    Errors : frames that the line side marks bad come with `error`; counters count them.
    """
    dw                      = 512
    with_preamble_crc       = False
    integrated_ifg_inserter = True
    tx_clk_freq             = LINE_CLK_FREQ
    rx_clk_freq             = LINE_CLK_FREQ
    engine_domain           = "sys"

    def add_endpoints(self):
        # Stream Endpoints.
        self.sink   = stream.Endpoint(roce_wire_description(self.dw))
        self.source = stream.Endpoint(roce_wire_description(self.dw))

    def add_registers(self, model, rsfec):
        """Creates the CSRs.

        Parameters
        ----------
        model : bool
            Value of field `info.model`.
        rsfec : bool
            Value of `control.rsfec_enable` after reset.
        """
        self.info = CSRStatus(description="What this PHY is; constant.", fields=[
            CSRField("model",    size=1, reset=int(model), values=[
                ("``0b0``", "AMD UltraScale+ 100G hard block."),
                ("``0b1``", "Simulation model, has the `fault_*` registers."),
            ], description="Kind of PHY."),
            CSRField("rate_gbps", size=8, offset=8, reset=100, description="Line rate in Gb/s."),
        ])
        self.control = CSRStorage(description="Link control; written by the bring-up firmware. Levels, not pulses:"
            " a reset lasts from writing 1 to writing 0, at least 1 us.", fields=[
            CSRField("tx_enable",    size=1, offset=0,  description="Transmit frames (else idles or faults only)."),
            CSRField("rx_enable",    size=1, offset=1,  description="Receive: align lanes, accept frames."),
            CSRField("send_rfi",     size=1, offset=2,  description="Send remote fault: tells the peer that we do not"
                " receive it. Set while not aligned; no frame leaves while it is set."),
            CSRField("rsfec_enable", size=1, offset=3,  reset=int(rsfec), description="RS-FEC (clause 91) for both"
                " directions. Must equal the peer's. Taken at reset: pulse `tx_reset` and `rx_reset` after a change."),
            CSRField("loopback",     size=1, offset=4,  description="Near-end loopback: own frames return, the wire is"
                " not received."),
            CSRField("sys_reset",    size=1, offset=8,  description="Reset the whole core and its transceivers."),
            CSRField("tx_reset",     size=1, offset=9,  description="Reset the core's transmit logic (also ends a"
                " `tx_unfout`)."),
            CSRField("rx_reset",     size=1, offset=10, description="Reset the core's receive logic."),
            CSRField("gt_tx_reset",  size=1, offset=11, description="Reset the transceivers' transmit data path."),
            CSRField("gt_rx_reset",  size=1, offset=12, description="Reset the transceivers' receive data path; the"
                " remedy when alignment does not come."),
            CSRField("module_reset",     size=1, offset=16, description="Hold the pluggable module in reset."),
            CSRField("module_select",    size=1, offset=17, description="Let the module answer on I2C."),
            CSRField("module_low_power", size=1, offset=18, description="Keep the module in low power mode (its laser"
                " stays off)."),
        ])
        self.status = CSRStatus(description="Link status, live.", fields=[
            CSRField("link_up",       size=1, offset=0,  description="Frames pass: aligned, status good, no fault,"
                " both directions enabled, `send_rfi` off, transmit side alive."),
            CSRField("aligned",       size=1, offset=1,  description="All receive lanes are aligned and deskewed."),
            CSRField("rx_status",     size=1, offset=2,  description="PCS receive status: aligned and no high BER."),
            CSRField("local_fault",   size=1, offset=3,  description="Local fault: own receiver has no usable signal."),
            CSRField("remote_fault",  size=1, offset=4,  description="Remote fault received: the peer does not receive"
                " us."),
            CSRField("hi_ber",        size=1, offset=5,  description="High bit error rate."),
            CSRField("block_lock",    size=1, offset=6,  description="Block lock on all 20 PCS lanes."),
            CSRField("synced",        size=1, offset=7,  description="Alignment markers found on all 20 PCS lanes."),
            CSRField("rsfec_active",  size=1, offset=8,  description="FEC mode that was taken at the last reset."),
            CSRField("rsfec_aligned", size=1, offset=9,  description="RS-FEC lanes aligned; 0 with RS-FEC off."),
            CSRField("tx_reset_done", size=1, offset=10, description="Transmit side is out of reset."),
            CSRField("rx_reset_done", size=1, offset=11, description="Receive side is out of reset."),
            CSRField("powergood",     size=1, offset=12, description="Supply and clocks of all transceivers are good."),
            CSRField("tx_dead",       size=1, offset=13, description="The transmit side starved; `tx_reset` revives"
                " it."),
            CSRField("module_present",   size=1, offset=14, description="A module is plugged; 1 where the board cannot"
                " tell."),
            CSRField("module_interrupt", size=1, offset=15, description="The module raises its interrupt line."),
        ])
        self.latched = CSRStatus(read_only=False, description="Events since each bit was cleared; write 1 to clear."
            " A condition that persists sets its bit again at once: read, write back, read again.",
            fields=[CSRField(name, size=1, description=text) for name, text in LATCHED_FLAGS])
        self.counts = {}
        for name, text in COUNTERS:
            csr = CSRStatus(COUNTER_WIDTH, name=f"{name}_count", description=f"{text} Free-running, wraps.")
            setattr(self, f"{name}_count", csr)
            self.counts[name] = csr.status

        # # #

        # Latched flags: an event and a clear in the same clock leave the bit set.
        self.events = {name: Signal(name=f"event_{name}") for name, _ in LATCHED_FLAGS}
        for n, (name, _) in enumerate(LATCHED_FLAGS):
            flag = getattr(self.latched.fields, name)
            self.sync += flag.eq(self.events[name] | (flag & ~(self.latched.re & self.latched.r[n])))

    def add_link_status(self):
        """Derives `link_up` and the events and counters that follow from the status, once that is driven."""
        status, control = self.status.fields, self.control.fields
        self.comb += status.link_up.eq(
            link_is_up(status, control) & status.tx_reset_done & status.rx_reset_done & ~status.tx_dead)
        changes = [
            ("align_lost",    status.aligned,       0),
            ("link_down",     status.link_up,       0),
            ("rx_reset_seen", status.rx_reset_done, 1),
            ("tx_reset_seen", status.tx_reset_done, 1),
        ]
        for name, level, new in changes:
            before = Signal()
            self.sync += before.eq(level)
            self.comb += self.events[name].eq((level == new) & (before != new))
        losses = self.counts["align_losses"]
        self.sync += If(self.events["align_lost"], losses.eq(losses + 1))
