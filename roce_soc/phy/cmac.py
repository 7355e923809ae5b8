# SPDX-License-Identifier: BSD-2-Clause
"""100G PHY of UltraScale+ boards: the hard block behind the shared registers and streams.

Ref: AMD PG203 (UltraScale+ Devices Integrated 100G Ethernet), chapters "Resets", "AXI4-Stream", "Transmit debug".
Not supported: see hardblock.py.
"""
from types import SimpleNamespace

from migen import *
from migen.genlib.cdc import BusSynchronizer, MultiReg

from litex.gen import *

from roce_soc.clocks import ClockLink, bound_delay
from roce_soc.phy.common import COUNTER_WIDTH, LINE_CLK_FREQ, RoCEPHY, link_is_up
from roce_soc.phy.hardblock import CMACHardBlock, ip_config
from roce_soc.phy.line import LineReceive, LineTransmit

# Line clocks that an event lasts for the CPU's clock to see it.
EVENT_CYCLES = 16

# Counters that count in the line's clock.
LINE_COUNTERS = ["rx_frames", "rx_errors", "rx_dropped_down", "rx_dropped_full", "bad_fcs", "tx_frames", "tx_dropped_down",
                 "tx_unfout", "fec_corrected", "fec_uncorrected"]

# RoCEPHYCMAC --------------------------------------------------------------------------------------

class RoCEPHYCMAC(RoCEPHY):
    """Hard block, frame FIFOs between the line's clock and the engine's, registers in the CPU's.

    The paths of the frames are `LineTransmit` and `LineReceive`.

    Parameters
    ----------
    platform : LiteX platform with the Vivado toolchain
    pads : one QSFP28 cage: clk_p/n, txp/n, rxp/n; modsell, resetl, modprsl, intl, lpmode where the board has them.
    site, gt_group : str, (str, int)
        CMAC and first transceiver, e.g. "CMACE4_X0Y7", ("X1", 48).
    sys_clk_freq : float
        Clock of the registers; events are caught above LINE_CLK_FREQ*2/EVENT_CYCLES (40.3 MHz).
    refclk_freq, init_clk_freq : float
        Transceiver reference; clock of domain `init_domain`, free-running.
    engine_domain, init_domain : str
    rsfec : bool
        `control.rsfec_enable` after reset.
    depth : int
        Beats of each FIFO: 256, 512, 1024 ...

    Latency: engine to line 9 to 11 line clocks behind the last beat; line to engine 3 line and 5 to 6 engine clocks.
    Errors : registers `latched` and the counters name every frame that is dropped, cut or marked.
    """
    def __init__(self, platform, pads, *, site, gt_group, sys_clk_freq,
        refclk_freq   = 156.25e6,
        init_clk_freq = 125e6,
        engine_domain = "roce",
        init_domain   = "init",
        rsfec         = True,
        depth         = 512):
        slowest = LINE_CLK_FREQ*2/EVENT_CYCLES
        if sys_clk_freq < slowest:
            raise ValueError(f"sys_clk_freq must be {slowest/1e6:.1f} MHz or more, not {sys_clk_freq/1e6:.1f} MHz")
        self.add_endpoints()
        self.add_registers(model=False, rsfec=rsfec)

        # # #

        self.engine_domain = engine_domain
        self.cmac = CMACHardBlock(platform, pads, ClockSignal(init_domain),
            ip_config(site, gt_group, refclk_freq, init_clk_freq))
        self.add_clocks(platform, pads, refclk_freq)
        self.add_control()
        self.add_status()
        self.add_module(pads)
        self.line_counts = {name: Signal(COUNTER_WIDTH, name=f"line_{name}") for name in LINE_COUNTERS}
        self.add_transmit(depth)
        self.add_receive(depth)
        self.add_counters()

    # Clocks ---------------------------------------------------------------------------------------

    def add_clocks(self, platform, pads, refclk_freq):
        """eth_tx and eth_rx: one clock that knows no reset."""
        self.cd_eth_tx = ClockDomain(reset_less=True)
        self.cd_eth_rx = ClockDomain(reset_less=True)
        self.comb += [
            self.cd_eth_tx.clk.eq(self.cmac.clk),
            self.cd_eth_rx.clk.eq(self.cd_eth_tx.clk),
        ]
        self.link = ClockLink(self.engine_domain, "eth_tx")
        platform.add_period_constraint(pads.clk_p, 1e9/refclk_freq)
        for domain in sorted({self.engine_domain, "sys"}):
            other = Signal(name=f"{domain}_beside_line")
            self.comb += other.eq(ClockSignal(domain))
            bound_delay(platform, self.cd_eth_tx.clk, other, 1e9/LINE_CLK_FREQ)

    # Control and status ---------------------------------------------------------------------------

    def add_control(self):
        cmac, control = self.cmac, self.control.fields
        self.line = SimpleNamespace(**{name: Signal(name=f"line_{name}")
            for name in ("rx_enable", "tx_enable", "send_rfi", "tx_in_reset", "rx_in_reset")})
        self.specials += [
            MultiReg(control.rx_enable,    self.line.rx_enable,   "eth_tx"),
            MultiReg(control.tx_enable,    self.line.tx_enable,   "eth_tx"),
            MultiReg(control.send_rfi,     self.line.send_rfi,    "eth_tx"),
            MultiReg(cmac.usr_tx_reset,    self.line.tx_in_reset, "eth_tx", reset=1),
            MultiReg(cmac.usr_rx_reset,    self.line.rx_in_reset, "eth_tx", reset=1),
            MultiReg(control.rsfec_enable, cmac.tx_rsfec,         "eth_tx"),
            MultiReg(control.rsfec_enable, cmac.rx_rsfec,         "eth_tx"),
        ]
        # Resets come from registers: a glitch would reset the transceivers.
        sys_reset = Signal(reset=1)
        self.sync += sys_reset.eq(control.sys_reset)
        self.comb += [
            cmac.sys_reset.eq(sys_reset),
            cmac.tx_reset.eq(control.tx_reset),
            cmac.rx_reset.eq(control.rx_reset),
            cmac.gt_tx_reset.eq(control.gt_tx_reset),
            cmac.gt_rx_reset.eq(control.gt_rx_reset),
            cmac.loopback.eq(control.loopback),
            cmac.rx_enable.eq(self.line.rx_enable),
            cmac.tx_enable.eq(self.line.tx_enable),
            cmac.send_rfi.eq(self.line.send_rfi),
        ]

    def add_status(self):
        cmac, status = self.cmac, self.status.fields
        # Registered next to the hard block, reduced to a bit each.
        raw = {}
        for name in ("aligned", "rx_status", "local_fault", "remote_fault", "hi_ber", "block_lock", "synced", "rsfec_aligned"):
            raw[name] = Signal(name=f"line_{name}")
            wide      = cmac.status[name]
            self.sync.eth_tx += raw[name].eq(wide == 2**len(wide) - 1)
            self.specials    += MultiReg(raw[name], getattr(status, name), "sys")
        dead = Signal()
        self.sync.eth_tx += If(self.line.tx_in_reset, dead.eq(0)).Elif(
            cmac.status["tx_unfout"] | cmac.status["tx_ovfout"], dead.eq(1))
        tx_in_reset, rx_in_reset, powergood = Signal(), Signal(), Signal(4)
        self.specials += [
            MultiReg(cmac.usr_tx_reset, tx_in_reset, "sys"),
            MultiReg(cmac.usr_rx_reset, rx_in_reset, "sys"),
            MultiReg(cmac.powergood,    powergood,   "sys"),
            MultiReg(dead, status.tx_dead, "sys"),
        ]
        self.comb += [
            status.tx_reset_done.eq(~tx_in_reset),
            status.rx_reset_done.eq(~rx_in_reset),
            status.powergood.eq(powergood == 0xf),
        ]
        # The FEC mode is taken at reset.
        fec_tx, fec_rx = Signal(), Signal()
        self.sync += [
            If(tx_in_reset, fec_tx.eq(self.control.fields.rsfec_enable)),
            If(rx_in_reset, fec_rx.eq(self.control.fields.rsfec_enable)),
        ]
        self.comb += status.rsfec_active.eq(fec_tx & fec_rx)
        self.add_link_status()
        # The same rule in the line's domain, for the gates.
        line = SimpleNamespace(**raw)
        self.line_up      = Signal()
        self.line_receive = Signal()
        self.line_aligned = raw["aligned"]
        self.sync.eth_tx += [
            self.line_up.eq(link_is_up(line, self.line) & ~self.line.tx_in_reset & ~dead),
            self.line_receive.eq(line.rx_status & line.aligned & self.line.rx_enable),
        ]
        for name in ("local_fault", "remote_fault", "hi_ber"):
            self.catch(name, raw[name])
        self.catch("tx_unfout",       cmac.status["tx_unfout"] | cmac.status["tx_ovfout"])
        self.catch("bad_fcs",         cmac.status["bad_fcs"] != 0)
        self.catch("fec_uncorrected", cmac.status["fec_uncorrected"])

    def catch(self, name, pulse):
        """Stretches an event of the line's clock until the CPU's clock has seen it."""
        timer, level, seen = Signal(max=EVENT_CYCLES + 1), Signal(), Signal()
        self.sync.eth_tx += [
            If(pulse, timer.eq(EVENT_CYCLES)).Elif(timer != 0, timer.eq(timer - 1)),
            level.eq(timer != 0),
        ]
        self.specials += MultiReg(level, seen, "sys")
        self.comb += self.events[name].eq(seen)

    def add_module(self, pads):
        """Low-speed pins of the cage; boards that have none report a module that is present."""
        control, status = self.control.fields, self.status.fields
        for name, level in (("resetl", ~control.module_reset), ("modsell", ~control.module_select),
                            ("lpmode", control.module_low_power)):
            if hasattr(pads, name):
                self.comb += getattr(pads, name).eq(level)
        for name, field, absent in (("modprsl", status.module_present, 1), ("intl", status.module_interrupt, 0)):
            if hasattr(pads, name):
                self.specials += MultiReg(~getattr(pads, name), field, "sys")
            else:
                self.comb += field.eq(absent)

    # Data path ------------------------------------------------------------------------------------

    def add_transmit(self, depth):
        cmac = self.cmac
        self.transmit = transmit = LineTransmit(depth, self.link)
        self.comb += [
            self.sink.connect(transmit.sink),
            transmit.up.eq(self.line_up),
            transmit.in_reset.eq(self.line.tx_in_reset),
            *[getattr(cmac, f"tx_{name}").eq(getattr(transmit, name)) for name in ("valid", "last", "data", "keep", "error")],
            transmit.ready.eq(cmac.tx_ready),
        ]
        self.count("tx_frames",       transmit.passed)
        self.count("tx_dropped_down", transmit.dropped)
        self.count("tx_unfout",       cmac.status["tx_unfout"] | cmac.status["tx_ovfout"])

    def add_receive(self, depth):
        cmac = self.cmac
        self.receive = receive = LineReceive(depth, self.link)
        self.comb += [
            receive.source.connect(self.source),
            receive.open.eq(self.line_receive),
            receive.lost.eq(~self.line_aligned | self.line.rx_in_reset | ~self.line.rx_enable),
            *[getattr(receive, name).eq(getattr(cmac, f"rx_{name}")) for name in ("valid", "last", "data", "keep", "error")],
        ]
        self.catch("rx_full", receive.full)
        self.count("rx_frames",       receive.passed)
        self.count("rx_errors",       receive.failed)
        self.count("rx_dropped_full", receive.full)
        self.count("rx_dropped_down", receive.dropped)
        self.count("bad_fcs",         cmac.status["bad_fcs"])
        self.count("fec_corrected",   cmac.status["fec_corrected"])
        self.count("fec_uncorrected", cmac.status["fec_uncorrected"])

    def count(self, name, amount):
        registered = Signal(max(1, len(amount)))
        self.sync.eth_tx += [
            registered.eq(amount),
            self.line_counts[name].eq(self.line_counts[name] + registered),
        ]

    def add_counters(self):
        """Snapshots of all line counters at one instant, renewed all the time."""
        refused = Signal(COUNTER_WIDTH)
        engine  = getattr(self.sync, self.engine_domain)
        engine += If(self.transmit.refused, refused.eq(refused + 1))
        self.line_snapshot   = BusSynchronizer(COUNTER_WIDTH*len(LINE_COUNTERS), "eth_tx", "sys")
        self.engine_snapshot = BusSynchronizer(COUNTER_WIDTH, self.engine_domain, "sys")
        self.comb += [
            self.line_snapshot.i.eq(Cat(*[self.line_counts[name] for name in LINE_COUNTERS])),
            Cat(*[self.counts[name] for name in LINE_COUNTERS]).eq(self.line_snapshot.o),
            self.engine_snapshot.i.eq(refused),
            self.counts["tx_refused"].eq(self.engine_snapshot.o),
        ]
