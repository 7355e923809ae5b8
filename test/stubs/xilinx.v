// SPDX-License-Identifier: BSD-2-Clause
// Vendor cells that generated Verilog instantiates: ports and parameters only, for lint.
`default_nettype none
/* verilator lint_off UNUSED */
/* verilator lint_off UNDRIVEN */

module BUFG (input wire I, output wire O);
    assign O = I;
endmodule

// Without DRCK, RUNTEST and SEL, outputs that LiteX leaves open.
module BSCANE2 #(parameter JTAG_CHAIN = 1) (
    output wire CAPTURE, output wire RESET, output wire SHIFT,
    output wire TCK, output wire TDI, output wire TMS, output wire UPDATE, input wire TDO
);
endmodule

module IBUFDS (input wire I, input wire IB, output wire O);
    assign O = I & ~IB;
endmodule

module FDPE #(parameter INIT = 1'b1) (input wire C, input wire CE, input wire D, input wire PRE, output reg Q);
    always @(posedge C or posedge PRE)
        if (PRE) Q <= 1'b1;
        else if (CE) Q <= D;
endmodule

module FDCE #(parameter INIT = 1'b0) (input wire C, input wire CE, input wire D, input wire CLR, output reg Q);
    always @(posedge C or posedge CLR)
        if (CLR) Q <= 1'b0;
        else if (CE) Q <= D;
endmodule

module MMCME4_ADV #(
    parameter BANDWIDTH        = "OPTIMIZED",
    parameter CLKFBOUT_MULT_F  = 5.0,
    parameter CLKIN1_PERIOD    = 0.0,
    parameter CLKOUT0_DIVIDE_F = 1.0,
    parameter CLKOUT0_PHASE    = 0.0,
    parameter CLKOUT1_DIVIDE   = 1,
    parameter CLKOUT1_PHASE    = 0.0,
    parameter DIVCLK_DIVIDE    = 1,
    parameter REF_JITTER1      = 0.01
) (
    input wire CLKIN1, input wire CLKFBIN, input wire PWRDWN, input wire RST,
    output wire CLKFBOUT, output wire CLKOUT0, output wire CLKOUT1, output wire LOCKED
);
    assign CLKFBOUT = CLKIN1;
    assign CLKOUT0  = CLKIN1;
    assign CLKOUT1  = CLKIN1;
    assign LOCKED   = ~(RST | PWRDWN);
endmodule
