# SPDX-License-Identifier: BSD-2-Clause
"""What lies between compiled engines: a cable of 100 Gb/s, the PHY's frame FIFOs where the MAC has a clock of its own."""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.clocks import ClockLink
from roce_soc.common import DATA_BYTES, roce_wire_description
from roce_soc.core import RoCECore
from roce_soc.phy.line import LineReceive, LineTransmit

WIRE_BYTES    = 50      # of 100 Gb/s in a clock of 250 MHz.
WIRE_OVERHEAD = 24      # FCS, preamble, inter-packet gap.
FIELDS        = ("first", "last", "data", "last_be", "error")


class Wire(LiteXModule):
    """One direction of a 100 Gb/s cable between two engines: frames wait for their share of `rate`, bytes a clock."""
    def __init__(self, tx: stream.Endpoint, rx: stream.Endpoint, rate: int = WIRE_BYTES) -> None:
        tokens = Signal((16, True))
        size   = Signal(16)
        tail   = Signal(7)
        self.comb += [
            [getattr(rx, n).eq(getattr(tx, n)) for n in FIELDS],
            [If(tx.last_be[i], tail.eq(i + 1)) for i in range(DATA_BYTES)],
            tx.ready.eq(~(size == 0) | (tokens >= 0)),
            rx.valid.eq(tx.valid & tx.ready),
        ]
        cost = Signal((16, True))
        self.comb += If(tx.valid & tx.ready & tx.last, cost.eq(size + tail + WIRE_OVERHEAD))
        self.sync += [
            If(tx.valid & tx.ready, If(tx.last, size.eq(0)).Else(size.eq(size + DATA_BYTES))),
            # Between frames nothing is saved up; inside one, its cost is still to be paid.
            tokens.eq(tokens - cost + rate),
            If((size == 0) & ~tx.valid & (tokens > 0), tokens.eq(rate)),
        ]


class Mac(LiteXModule):
    """The PHY's frame FIFOs between an engine in clock `roce` and a wire in clock `mac`: `rx`, `tx` as the engine's."""
    def __init__(self, core: RoCECore) -> None:
        self.rx = rx = stream.Endpoint(roce_wire_description())
        self.tx = tx = stream.Endpoint(roce_wire_description())

        # # #

        self.cd_eth_tx = ClockDomain(reset_less=True)
        self.cd_eth_rx = ClockDomain(reset_less=True)
        self.link     = link     = ClockLink("roce", "eth_tx")
        self.transmit = transmit = LineTransmit(512, link)
        self.receive  = receive  = LineReceive(512, link)
        fresh = Signal(reset=1)
        self.comb += [
            self.cd_eth_tx.clk.eq(ClockSignal("mac")),
            self.cd_eth_rx.clk.eq(ClockSignal("mac")),
            core.tx.connect(transmit.sink),
            receive.source.connect(core.rx),
            transmit.up.eq(1),
            transmit.ready.eq(tx.ready),
            tx.valid.eq(transmit.valid),
            tx.first.eq(fresh),
            tx.last.eq(transmit.last),
            tx.data.eq(transmit.data),
            If(transmit.last, tx.last_be.eq(transmit.keep & ~Cat(transmit.keep[1:], 0))),
            tx.error.eq(Replicate(transmit.error, DATA_BYTES)),
            receive.open.eq(1),
            receive.valid.eq(rx.valid),
            receive.last.eq(rx.last),
            receive.data.eq(rx.data),
            receive.keep.eq(Mux(rx.last, rx.last_be | (rx.last_be - 1), 2**DATA_BYTES - 1)),
            receive.error.eq(rx.error != 0),
            rx.ready.eq(1),
        ]
        self.sync.eth_tx += If(tx.valid & tx.ready, fresh.eq(tx.last))
