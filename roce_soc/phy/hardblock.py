# SPDX-License-Identifier: BSD-2-Clause
"""AMD's integrated 100G Ethernet core (CMACE4): IP configuration, ports, clocks.

The IP is made by Vivado from Tcl commands in the build script, so no file of the vendor is needed here. It holds the
four GTY transceivers; its control and status are pins (no AXI4-Lite), its frames AXI-Stream of 512 bits.

Ref: AMD PG203 (UltraScale+ Devices Integrated 100G Ethernet); licence: no charge, but asked for at the bitstream.
Not supported: auto-negotiation, link training, time stamps, OTN, PFC (ports tied off), DRP (tied off).
"""
from migen import *

from litex.gen import *

# Tables -------------------------------------------------------------------------------------------

# Status outputs that are used: name -> (port, width).
STATUS = {
    "aligned":         ("stat_rx_aligned",                   1),
    "rx_status":       ("stat_rx_status",                    1),
    "local_fault":     ("stat_rx_local_fault",               1),
    "remote_fault":    ("stat_rx_remote_fault",              1),
    "hi_ber":          ("stat_rx_hi_ber",                    1),
    "block_lock":      ("stat_rx_block_lock",               20),
    "synced":          ("stat_rx_synced",                   20),
    "rsfec_aligned":   ("stat_rx_rsfec_lane_alignment_status", 1),
    "bad_fcs":         ("stat_rx_bad_fcs",                   3),
    "fec_corrected":   ("stat_rx_rsfec_corrected_cw_inc",    1),
    "fec_uncorrected": ("stat_rx_rsfec_uncorrected_cw_inc",  1),
    "tx_unfout":       ("tx_unfout",                         1),
    "tx_ovfout":       ("tx_ovfout",                         1),
}

# Inputs held at a value: port -> (width, value).
TIED = {
    "core_drp_reset": (1, 0), "drp_clk": (1, 0), "drp_en": (1, 0), "drp_we": (1, 0), "drp_addr": (10, 0), "drp_di": (16, 0),
    "tx_preamblein": (56, 0), "ctl_rx_force_resync": (1, 0), "ctl_rx_test_pattern": (1, 0),
    "ctl_tx_send_idle": (1, 0), "ctl_tx_send_lfi": (1, 0), "ctl_tx_test_pattern": (1, 0),
    # FEC corrects, and marks what it cannot correct.
    "ctl_rx_rsfec_enable_correction": (1, 1), "ctl_rx_rsfec_enable_indication": (1, 1),
    "ctl_rsfec_ieee_error_indication_mode": (1, 0),
    # Flow control: nothing is sent, received pause frames are dropped by the core and not acted upon.
    "ctl_rx_pause_enable": (9, 0), "ctl_tx_pause_enable": (9, 0), "ctl_tx_pause_req": (9, 0),
    "ctl_tx_resend_pause": (1, 0), "ctl_rx_pause_ack": (9, 0),
    **{f"ctl_rx_enable_{kind}":       (1, 0) for kind in ("gcp", "pcp", "gpp", "ppp")},
    **{f"ctl_rx_check_{what}_{kind}": (1, value) for kind in ("gcp", "pcp", "gpp", "ppp")
        for what, value in (("etype", 1), ("mcast", 1), ("opcode", 1), ("sa", 0), ("ucast", 0))},
    **{f"ctl_tx_pause_quanta{n}":        (16, 0xffff) for n in range(9)},
    **{f"ctl_tx_pause_refresh_timer{n}": (16, 0x7fff) for n in range(9)},
}

NEAR_END_PMA = 0b010  # of each lane's 3 loopback bits.


def ip_config(site, gt_group, refclk_freq, init_clk_freq):
    """CONFIG.* of the IP: four lanes of 25.78125 Gb/s, transceivers and shared logic inside, RS-FEC by pin.

    site: "CMACE4_X0Y7"; gt_group: first channel of the quad as (column, row), e.g. ("X1", 48).
    """
    column, row = gt_group
    lanes       = [f"{column}Y{row + n}" for n in range(4)]
    return {
        "CMAC_CAUI4_MODE": 1, "NUM_LANES": "4x25", "GT_TYPE": "GTY", "GT_LOCATION": 1,
        "GT_REF_CLK_FREQ": f"{refclk_freq/1e6:.12g}", "GT_DRP_CLK": f"{init_clk_freq/1e6:.2f}", "PLL_TYPE": "QPLL0",
        "CMAC_CORE_SELECT": site, "GT_GROUP_SELECT": f"{lanes[0]}~{lanes[3]}",
        **{f"LANE{n + 1}_GT_LOC": lane for n, lane in enumerate(lanes)},
        **{f"LANE{n}_GT_LOC": "NA" for n in range(5, 11)},
        "USER_INTERFACE": "AXIS", "OPERATING_MODE": "Duplex", "CLOCKING_MODE": "Asynchronous",
        "INCLUDE_SHARED_LOGIC": 2, "ENABLE_AXI_INTERFACE": 0, "INCLUDE_STATISTICS_COUNTERS": 0, "ADD_GT_CNRL_STS_PORTS": 0,
        "ENABLE_PIPELINE_REG": 1, "ENABLE_TIME_STAMPING": 0, "INCLUDE_AUTO_NEG_LT_LOGIC": 0,
        "INCLUDE_RS_FEC": 1, "INS_LOSS_NYQ": 12, "RX_EQ_MODE": "AUTO",
        "TX_FLOW_CONTROL": 1, "RX_FLOW_CONTROL": 1, "RX_FORWARD_CONTROL_FRAMES": 0, "RX_CHECK_ACK": 1,
        "RX_MIN_PACKET_LEN": 64, "RX_MAX_PACKET_LEN": 9600,
        "TX_FRAME_CRC_CHECKING": "Enable FCS Insertion", "RX_FRAME_CRC_CHECKING": "Enable FCS Stripping",
    }

# CMACHardBlock ------------------------------------------------------------------------------------

class CMACHardBlock(LiteXModule):
    """The IP with named signals; no logic of its own.

    Parameters
    ----------
    pads : refclk `clk_p`, `clk_n`; lanes `txp`, `txn`, `rxp`, `rxn` (4 bits each)
    init_clk : Signal
        Free-running clock of init_clk_freq.
    config : dict
        From `ip_config`.

    Signals (T: clock `clk`, 322.265625 MHz; A: any)
    ------------------------------------------------
    clk (out): user clock of both directions; usr_tx_reset, usr_rx_reset, powergood (out).
    sys_reset, tx_reset, rx_reset, gt_tx_reset, gt_rx_reset, loopback (in, A).
    tx_enable, send_rfi, tx_rsfec, rx_enable, rx_rsfec (in, T); status (out, T): dict of STATUS.
    tx_{data, keep, last, valid, error} (in, T), tx_ready (out, T): a frame must come without holes while ready.
    rx_{data, keep, last, valid, error} (out, T): no ready. `error` on last: bad FCS, bad length, bad code.

    Latency: the IP's. Errors: `error` as above.
    """
    def __init__(self, platform, pads, init_clk, config, name="roce_cmac"):
        self.clk          = Signal()
        self.usr_tx_reset = Signal()
        self.usr_rx_reset = Signal()
        self.powergood    = Signal(4)
        for name_ in ("sys_reset", "tx_reset", "rx_reset", "gt_tx_reset", "gt_rx_reset", "loopback",
                      "tx_enable", "send_rfi", "tx_rsfec", "rx_enable", "rx_rsfec"):
            setattr(self, name_, Signal(name=name_))
        for side in ("tx", "rx"):
            for field, width in (("data", 512), ("keep", 64), ("last", 1), ("valid", 1), ("error", 1)):
                setattr(self, f"{side}_{field}", Signal(width, name=f"{side}_{field}"))
        self.tx_ready = Signal()
        self.status   = {key: Signal(width, name=f"cmac_{key}") for key, (_, width) in STATUS.items()}

        # # #

        self.specials += Instance(name,
            # Pads, clocks, resets.
            i_gt_ref_clk_p = pads.clk_p, i_gt_ref_clk_n = pads.clk_n,
            i_gt_rxp_in    = pads.rxp,   i_gt_rxn_in    = pads.rxn,
            o_gt_txp_out   = pads.txp,   o_gt_txn_out   = pads.txn,
            i_init_clk     = init_clk,
            i_sys_reset    = self.sys_reset,
            o_gt_txusrclk2 = self.clk,
            i_rx_clk       = self.clk,
            o_usr_tx_reset = self.usr_tx_reset,
            o_usr_rx_reset = self.usr_rx_reset,
            i_core_tx_reset = self.tx_reset,
            i_core_rx_reset = self.rx_reset,
            i_gtwiz_reset_tx_datapath = self.gt_tx_reset,
            i_gtwiz_reset_rx_datapath = self.gt_rx_reset,
            i_gt_loopback_in  = Mux(self.loopback, Constant(NEAR_END_PMA*0o1111, 12), Constant(0, 12)),
            o_gt_powergoodout = self.powergood,
            # Frames.
            i_tx_axis_tdata  = self.tx_data,  i_tx_axis_tkeep  = self.tx_keep,  i_tx_axis_tlast = self.tx_last,
            i_tx_axis_tvalid = self.tx_valid, i_tx_axis_tuser  = self.tx_error, o_tx_axis_tready = self.tx_ready,
            o_rx_axis_tdata  = self.rx_data,  o_rx_axis_tkeep  = self.rx_keep,  o_rx_axis_tlast = self.rx_last,
            o_rx_axis_tvalid = self.rx_valid, o_rx_axis_tuser  = self.rx_error,
            # Control and status.
            i_ctl_tx_enable       = self.tx_enable,
            i_ctl_tx_send_rfi     = self.send_rfi,
            i_ctl_tx_rsfec_enable = self.tx_rsfec,
            i_ctl_rx_enable       = self.rx_enable,
            i_ctl_rx_rsfec_enable = self.rx_rsfec,
            **{f"i_{port}": Constant(value, width) for port, (width, value) in TIED.items()},
            **{f"o_{port}": self.status[key] for key, (port, _) in STATUS.items()},
        )
        # Vivado makes the IP. Braces are doubled: the toolchain formats these lines.
        platform.toolchain.pre_synthesis_commands += [
            f"create_ip -name cmac_usplus -vendor xilinx.com -library ip -module_name {name}",
            "set_property -dict [list \\",
            *[f"    CONFIG.{key} {{{{{value}}}}} \\" for key, value in config.items()],
            f"] [get_ips {name}]",
            f"generate_target all [get_ips {name}]",
            f"synth_ip [get_ips {name}]",
        ]
