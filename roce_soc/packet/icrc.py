# SPDX-License-Identifier: BSD-2-Clause
"""ICRC of 512-bit beats: its arithmetic, and appending it to frames sent.

Ref: InfiniBand Architecture vol. 1 ch. 7.8.1 (invariant CRC), Annex A17.3.3 (fields read as ones).
Not supported: data widths other than 512.

The CRC runs over raw beats, nothing is realigned. Before the frame the register is 0; bytes before the
IP header read as zeros except its last four neighbours, which read as ones: both this and eight bytes
of ones after a register of ones give ICRC_SEED at the IP header. Behind the end bytes read as zeros;
what these do to the register is known, since the end is always 2 modulo 4.
"""
from functools import reduce
from operator import or_, xor

from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc import opcodes
from roce_soc.common import DATA_BYTES, DATA_WIDTH

CRC_BITS = 32
GROUP    = 64       # data bits whose contribution is one register stage.

# CRC arithmetic -----------------------------------------------------------------------------------

def crc_step(register, bits=1):
    """Register (LSB first) after `bits` zero bits; a negative number goes back."""
    for _ in range(abs(bits)):
        if bits > 0:
            register = (register >> 1) ^ (opcodes.ICRC_POLYNOMIAL_LSB if register & 1 else 0)
        elif register >> (CRC_BITS - 1):
            register = ((register ^ opcodes.ICRC_POLYNOMIAL_LSB) << 1) | 1
        else:
            register <<= 1
    return register


def step_columns(bits):
    """For each register bit: the register after `bits` zero bits (before, if negative)."""
    return [crc_step(1 << n, bits) for n in range(CRC_BITS)]


def data_columns(behind=0):
    """For each bit of a beat: what it leaves in the register `behind` bits after the beat's end."""
    columns  = []
    register = crc_step(1, 1 + behind)
    for _ in range(DATA_WIDTH):
        columns.append(register)
        register = crc_step(register)
    return columns[::-1]


def tree(operator, terms):
    """Balanced tree of a two-operand operator."""
    terms = list(terms)
    while len(terms) > 1:
        terms = [reduce(operator, terms[i:i + 2]) for i in range(0, len(terms), 2)]
    return terms[0]


def multiply(bits, columns):
    """Expressions of the 32 register bits: XOR of the columns whose bit is set."""
    return [tree(xor, [bit for bit, column in zip(bits, columns) if column >> n & 1] or [Constant(0)]) for n in range(CRC_BITS)]

# Fields read as ones ------------------------------------------------------------------------------

def masked_nibbles(vlan, ipv6):
    """{nibble of the frame: value 0 or 15} for one of the four layouts; nibble 2*n is the low one of byte n."""
    ip    = opcodes.ETHERNET_BYTES + (opcodes.VLAN_BYTES if vlan else 0)
    udp   = ip + (opcodes.IPV6_BYTES if ipv6 else opcodes.IPV4_BYTES)
    bth   = udp + opcodes.UDP_BYTES
    # TOS, TTL, checksum; or traffic class, flow label, hop limit. UDP checksum. FECN, BECN, reserved.
    ones  = [ip + n for n in ((1, 2, 3, 7) if ipv6 else (1, 8, 10, 11))] + [udp + 6, udp + 7, bth + 4]
    ones += range(ip - 4, ip)
    found = {2*byte + half: 15 for byte in ones for half in (0, 1)}
    if ipv6:
        found[2*ip] = 15
    found.update({nibble: 0 for nibble in range(2*(ip - 4))})
    return found


class ICRCMask(LiteXModule):
    """Gives a beat the values the ICRC covers: fields that routers change read as ones.

    `masked` follows `data` in the same clock; `first`, `second` say which beat of the frame it is.

    Latency: none. Errors: none.
    """
    def __init__(self, dw=DATA_WIDTH):
        self.data   = Signal(dw)
        self.vlan   = Signal()
        self.ipv6   = Signal()
        self.first  = Signal()
        self.second = Signal()
        self.masked = Signal(dw)

        # # #

        layout  = [Signal(name=f"layout{n}") for n in range(4)]
        position = (self.first, self.second)
        self.comb += [layout[n].eq((self.vlan == (n & 1)) & (self.ipv6 == (n >> 1))) for n in range(4)]
        masks   = [masked_nibbles(n & 1, n >> 1) for n in range(4)]
        signals = {}

        def when(places):
            """Condition that the beat is one of the (layout, beat) places; shared between nibbles."""
            if places not in signals:
                signals[places] = Signal()
                self.comb += signals[places].eq(tree(or_, [layout[n] & position[beat] for n, beat in sorted(places)]))
            return signals[places]

        out = []
        for nibble in range(dw//4):
            value  = self.data[4*nibble:4*nibble + 4]
            places = {level: frozenset((n, beat) for n in range(4) for beat in range(2)
                if masks[n].get(nibble + beat*dw//4) == level) for level in (0, 15)}
            if places[0]:
                value = value & Replicate(~when(places[0]), 4)
            if places[15]:
                value = value | Replicate(when(places[15]), 4)
            out.append(value)
        self.comb += self.masked.eq(Cat(*out))


class ICRCRegister(LiteXModule):
    """The CRC of beats, one a clock, any gaps.

    Parameters
    ----------
    behind : int
        Zero bits added after each frame's last beat; negative: taken away (a change of basis, at no cost).

    `data` (covered bytes, others zero) with `valid` and `first`; two clocks later `register` holds the
    CRC up to and including that beat; `coming` is what it will be, one clock before.

    Latency: 2 clocks, one beat a clock. Errors: none.
    """
    def __init__(self, behind=0, dw=DATA_WIDTH):
        self.valid    = Signal()
        self.first    = Signal()
        self.data     = Signal(dw)
        self.register = Signal(CRC_BITS)
        self.coming   = Signal(CRC_BITS)

        # # #

        # Stage 1: sums of 64-bit groups.
        columns = data_columns(behind)
        sums    = [Signal(CRC_BITS, name=f"sums{n}") for n in range(dw//GROUP)]
        valid, first = Signal(), Signal()
        self.sync += [
            valid.eq(self.valid),
            first.eq(self.first),
        ]
        terms = []
        for n in range(dw//GROUP):
            part = Signal(GROUP, name=f"group{n}")
            self.comb += part.eq(self.data[GROUP*n:GROUP*(n + 1)])
            terms.append(sums[n].eq(Cat(*multiply([part[i] for i in range(GROUP)], columns[GROUP*n:GROUP*(n + 1)]))))
        self.sync += If(self.valid, *terms)

        # Stage 2: the loop, one clock.
        carried = Signal(CRC_BITS)
        self.comb += [
            carried.eq(Cat(*multiply([self.register[i] for i in range(CRC_BITS)], step_columns(dw)))),
            self.coming.eq(tree(xor, sums) ^ Mux(first, 0, carried)),
        ]
        self.sync += If(valid, self.register.eq(self.coming))

# ICRCInserter -------------------------------------------------------------------------------------

class ICRCInserter(LiteXModule):
    """Appends the ICRC to frames: four bytes behind the pad, in one more beat where they do not fit.

    The CRC runs over beats filled with zeros; matrices take back the zeros that this frame had: 0 to 3 dwords of them
    as the CRC is known, then fours. Each is a choice of four products side by side, not one behind the other.

    Parameters
    ----------
    params : list
        Fields that travel with the frame.

    Endpoints
    ---------
    sink : {data 512, end 6}, {vlan, ipv6, pass_by, params}, in
        Frames without ICRC, lanes behind the end zero. On `last`, `end` is the number of valid bytes modulo
        64, always 2 modulo 4. pass_by: the frame leaves as it came.  `ready` is 0 only in the one clock
        after a last beat with end 62.
    source : {data 512, bytes 7}, {params}, out
        Frames with ICRC, lanes behind the end zero; `bytes` counts the last beat's valid bytes, 64
        before. No ready.

    Latency: 3 clocks, one beat a clock.
    Errors : none.
    """
    LATENCY = 3

    def __init__(self, params=(), dw=DATA_WIDTH):
        if dw != DATA_WIDTH:
            raise ValueError(f"data_width must be {DATA_WIDTH}, not {dw!r}")
        params = list(params)
        # Stream Endpoints.
        self.sink   = sink   = stream.Endpoint(stream.EndpointDescription(
            [("data", dw), ("end", 6)], [("vlan", 1), ("ipv6", 1), ("pass_by", 1)] + params))
        self.source = source = stream.Endpoint(stream.EndpointDescription([("data", dw), ("bytes", 7)], params))

        # # #

        # Clock 1: one more beat behind an end at 62; fields read as ones; CRC groups.
        extra  = Signal()
        second = Signal()
        take   = Signal()
        self.comb += [
            sink.ready.eq(~extra),
            take.eq(sink.valid & ~extra),
        ]
        self.sync += [
            extra.eq(take & sink.last & ~sink.pass_by & (sink.end == 62)),
            If(take, second.eq(sink.first)),
        ]
        self.mask = mask = ICRCMask(dw)
        # The register lies 16 bits before the beat's end: zeros come in whole dwords then.
        self.crc  = crc  = ICRCRegister(behind=-16, dw=dw)
        self.comb += [
            mask.data.eq(sink.data),
            mask.vlan.eq(sink.vlan),
            mask.ipv6.eq(sink.ipv6),
            mask.first.eq(sink.first),
            mask.second.eq(second & ~sink.first),
            crc.data.eq(mask.masked),
            crc.valid.eq(take),
            crc.first.eq(sink.first),
        ]

        layout = [("data", dw), ("valid", 1), ("first", 1), ("last", 1), ("extra", 1), ("add", 1), ("end", 6)] + params
        stages = [Record(layout) for _ in range(2)]
        names  = [n for n, _ in params]
        self.sync += [
            stages[0].valid.eq(take | extra),
            stages[0].extra.eq(extra),
            stages[0].first.eq(sink.first & ~extra),
            stages[0].data.eq(Mux(extra, 0, sink.data)),
            # Behind the additional beat: two bytes.
            stages[0].last.eq(extra | (sink.last & (sink.pass_by | (sink.end != 62)))),
            stages[0].add.eq(~extra & sink.last & ~sink.pass_by),
            If(~extra,
                stages[0].end.eq(sink.end),
                [getattr(stages[0], n).eq(getattr(sink, n)) for n in names],
            ),
            [later.eq(earlier) for earlier, later in zip(stages, stages[1:])],
        ]

        # Clocks 2 and 3: take the zeros back. `zeros` counts dwords.
        half, fours = Signal(CRC_BITS), Signal(2)
        icrc        = Signal(CRC_BITS)
        zeros       = ~stages[0].end[2:6]
        def before(value, unit):
            """`value` before 0 to 3 times so many zero dwords."""
            return [Cat(*multiply([value[i] for i in range(CRC_BITS)], step_columns(-32*unit*n))) for n in range(4)]
        self.sync += [
            Case(zeros[:2], {n: half.eq(product) for n, product in enumerate(before(crc.coming, 1))}),
            fours.eq(zeros[2:]),
        ]
        self.comb += Case(fours, {n: icrc.eq(~product) for n, product in enumerate(before(half, 4))})

        # Clock 3: merge.
        s      = stages[1]
        merged = []
        carry  = Signal(16)
        self.sync += If(s.add, carry.eq(icrc[16:]))
        for n in range(16):
            place = Signal(name=f"place{n}")
            word  = s.data[16 + 32*n:16 + 32*(n + 1)]
            self.comb += place.eq(s.add & (s.end[2:6] == n))
            merged.append(word | (icrc[:len(word)] & Replicate(place, len(word))))
        self.sync += [
            source.valid.eq(s.valid),
            source.first.eq(s.first),
            source.last.eq(s.last),
            source.data.eq(Cat(s.data[:16] | (carry & Replicate(s.extra, 16)), *merged)),
            source.bytes.eq(DATA_BYTES),
            If(s.last, source.bytes.eq(Mux(s.extra, 2, Mux(s.add, s.end + opcodes.ICRC_BYTES, s.end)))),
            If(s.last & ~s.extra & ~s.add & (s.end == 0), source.bytes.eq(DATA_BYTES)),
            [getattr(source, n).eq(getattr(s, n)) for n in names],
        ]
