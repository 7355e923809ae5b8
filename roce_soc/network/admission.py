# SPDX-License-Identifier: BSD-2-Clause
"""Registers that say what the receive side lets in."""
from migen import *

from litex.gen import *
from litex.soc.interconnect.csr import *

from roce_soc.clocks import ClockLink


# ReceiveAdmission ---------------------------------------------------------------------------------

class ReceiveAdmission(LiteXModule):
    """What is dropped by default and may be let in on purpose.

    Parameters
    ----------
    link : ClockLink
        The registers are near, the receive side is far; default one clock.

    Endpoints
    ---------
    admit_own : Signal, out
        For RoCEDecoder, far.

    Latency: that of the link. Errors: none.
    """
    def __init__(self, link=None):
        link = ClockLink() if link is None else link
        # CSRs.
        self.control = CSRStorage(fields=[
            CSRField("own_source", size=1, reset=0, values=[
                ("``0b0``", "Dropped and counted as MARTIAN."),
                ("``0b1``", "Let in, for tests whose wire leads back."),
            ], description="Frames from the wire whose source IP address is that of their queue pair. Written by software.")],
            description="What the receive side lets in beside the rule.")
        # Endpoints.
        self.admit_own = Signal()

        # # #

        self.comb += self.admit_own.eq(link.add_level(self.control.fields.own_source, to_far=True))
