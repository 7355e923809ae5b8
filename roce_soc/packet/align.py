# SPDX-License-Identifier: BSD-2-Clause
"""Moves the bytes of a stream to other lanes: one rotation, two clocks, one beat a clock.

Bytes that start at lane `s` of their first beat and have to start at lane `d`: each beat is rotated by
(d - s) modulo 64. Of a rotated beat the lanes from the shift on belong to the output beat of the same
step, the lanes below it to the next one. Where d < s the first step gives no output beat (`ahead`).
"""
from migen import *

from litex.gen import *

from roce_soc.common import DATA_BYTES, DATA_WIDTH

LANE_BITS = 6
ALL_LANES = (1 << DATA_BYTES) - 1

# Lane masks ---------------------------------------------------------------------------------------

def lanes_from(first):
    """Mask of lanes first..63 (assign it to 64 bits)."""
    return Constant(ALL_LANES, DATA_BYTES) << first


def lanes_to(last):
    """Mask of lanes 0..last (assign it to 64 bits); `last` has 6 bits."""
    return Constant(ALL_LANES, DATA_BYTES) >> (~last)[:LANE_BITS]


def expand(mask):
    """A bit for each bit of the lanes of a mask."""
    return Cat(*[Replicate(mask[n], 8) for n in range(len(mask))])

# ByteRotator --------------------------------------------------------------------------------------

class ByteRotator(LiteXModule):
    """Rotates a beat towards higher lanes and keeps the one before.

    Endpoints
    ---------
    step, data, shift : Signal, in
        On `step` the beat is taken.
    newest, previous, low : Signal, out
        Two clocks later: this step's and the former step's rotated beat, mask of the lanes below the shift, which the
        former step's bytes fill.

    Latency: 2 clocks, one step a clock, never stalls.
    Errors : none.
    """
    LATENCY = 2

    def __init__(self, dw=DATA_WIDTH):
        self.step     = Signal()
        self.data     = Signal(dw)
        self.shift    = Signal(LANE_BITS)
        self.newest   = Signal(dw)
        self.previous = Signal(dw)
        self.low      = Signal(dw//8)

        # # #

        def rotate(data, n_bytes):
            return Cat(data[dw - 8*n_bytes:], data[:dw - 8*n_bytes]) if n_bytes else data

        step, coarse, shift = Signal(), Signal(dw), Signal(LANE_BITS)
        self.sync += [
            # By 8 bytes.
            step.eq(self.step),
            If(self.step,
                Case(self.shift[3:], {n: coarse.eq(rotate(self.data, 8*n)) for n in range(8)}),
                shift.eq(self.shift),
            ),
            # By single bytes.
            If(step,
                Case(shift[:3], {n: self.newest.eq(rotate(coarse, n)) for n in range(8)}),
                self.previous.eq(self.newest),
                self.low.eq(~lanes_from(shift)),
            )
        ]
