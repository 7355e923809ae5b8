# SPDX-License-Identifier: BSD-2-Clause
"""Sums that lose their carry in Verilog: Migen's + is a bit wider than its operands, Verilog's only where the context is.

Ref: IEEE 1364-2005 clause 5.4 (widths of expressions). Migen prints an expression as it is written, so a sum that is
shifted right, compared or joined with others is cut to its widest operand. Migen's own simulator does not show it.
"""
import pytest
from migen import Cat, If, Module, Signal
from migen.fhdl.bitcontainer import value_bits_sign
from migen.fhdl.structure import Case, Constant, _ArrayProxy, _Assign, _Operator, _Part, _Slice
from migen.fhdl.structure import Replicate

from roce_soc.core import RoCECore

COMPARES = {"<", "<=", "==", "!=", ">", ">="}
SHIFTS   = {">>>", "<<<"}

# Cut sums that are meant or cannot carry, as `show` prints them, and why.
ARGUED = {
    "(payload_addr:64[0:12] + source_payload_length:13)":                   "placer: at most 4095 + 4096",
    "(((payloadplacer:6 + job_payload_length:13) + 64) - 1)":               "placer: at most 63 + 4096 + 63",
    "(lines:7 - 1)":                                                        "placer: a job has a line or more",
    "(job_payload_addr:64[12:64] + 1)":                                     "placer: addresses end at 2^64",
    "(payloadplacer:2 + 1)":                                                "placer: counts around in two bits",
    "(((packet_payload_addr:64[0:6] + packet_payload_length:13) + 64) - 1)": "fetcher: at most 63 + 4096 + 63",
    "((second_length:13 + 64) - 1)":                                        "fetcher: at most 4095 + 63",
    "(second_high:20 + second_page:33[32:33])":                             "fetcher: addresses end at 2^64",
    "(c_index:16 - consumer:16)":                                         "cq: indices count around in 16 bits",
    "(eventqueue:16 - eventqueue:16)":                                      "eq: indices count around in 16 bits",
    "(divider:16 + 1)":                                                     "timebase: starts anew before its end",
}


def show(e):
    """Text of an expression, the bits of its signals with them."""
    if isinstance(e, _Operator):
        return "(" + f" {e.op} ".join(show(x) for x in e.operands) + ")"
    if isinstance(e, Signal):
        return f"{e.name_override or e.backtrace[-1][0]}:{e.nbits}"
    if isinstance(e, Constant):
        return str(e.value)
    if isinstance(e, _Slice):
        return f"{show(e.value)}[{e.start}:{e.stop}]"
    return type(e).__name__


def own_width(e):
    """Bits that Verilog gives an expression where the context asks for none."""
    if not isinstance(e, _Operator):
        return value_bits_sign(e)[0]
    if e.op in COMPARES:
        return 1
    if e.op in SHIFTS:
        return own_width(e.operands[0])
    return max(own_width(x) for x in (e.operands[1:] if e.op == "m" else e.operands))


class Cuts:
    """Texts of the sums and differences in a fragment whose top bit is needed and lost."""
    def __init__(self, fragment):
        self.found = set()
        self.statements(fragment.comb)
        for statements in fragment.sync.values():
            self.statements(statements)

    def statements(self, s):
        if isinstance(s, (list, tuple)):
            for x in s:
                self.statements(x)
        elif isinstance(s, _Assign):
            self.visit(s.r, value_bits_sign(s.l)[0], False)
        elif isinstance(s, If):
            self.visit(s.cond, 0, True)
            self.statements([s.t, s.f])
        elif isinstance(s, Case):
            self.visit(s.test, 0, True)
            self.statements(list(s.cases.values()))

    def visit(self, e, context, needed):
        """`context`: bits that surround the expression; `needed`: its top bit changes the result."""
        if isinstance(e, _Operator):
            width = max(context, own_width(e))
            if needed and e.op in ("+", "-") and width < value_bits_sign(e)[0]:
                self.found.add(show(e))
                needed = False        # the outermost speaks for those in it.
            if e.op in COMPARES:
                for x in e.operands:
                    self.visit(x, max(own_width(y) for y in e.operands), True)
            elif e.op in SHIFTS:
                self.visit(e.operands[0], width, needed or e.op == ">>>")
                self.visit(e.operands[1], 0, True)
            elif e.op == "m":
                self.visit(e.operands[0], 0, True)
                for x in e.operands[1:]:
                    self.visit(x, width, needed)
            else:
                for x in e.operands:
                    self.visit(x, width, needed)
        elif isinstance(e, (_Slice, _Part)):
            # Printed by way of a signal of its full width.
            self.visit(e.value, value_bits_sign(e.value)[0], False)
        elif isinstance(e, Cat):
            for x in e.l:
                self.visit(x, 0, True)
        elif isinstance(e, Replicate):
            self.visit(e.v, 0, True)
        elif isinstance(e, _ArrayProxy):
            for x in e.choices:
                self.visit(x, 0, needed)
            self.visit(e.key, 0, True)


def cuts_of(make):
    """Cuts of a module with one statement, made by `make(module, a, b, wide)` of 8, 8 and 9 bits."""
    module = Module()
    module.comb += make(Signal(8, name="a"), Signal(8, name="b"), Signal(9, name="wide"))
    return Cuts(module.get_fragment()).found


@pytest.mark.parametrize("make,cut", [
    (lambda a, b, wide: Signal(7).eq((a + b) >> 2),     True),
    (lambda a, b, wide: Signal(9).eq((a + b) >> 2),     False),
    (lambda a, b, wide: Signal().eq(a + b > b),         True),
    (lambda a, b, wide: Signal().eq(a + b > wide),      False),
    (lambda a, b, wide: Signal(17).eq(Cat(a + b, a)),   True),
    (lambda a, b, wide: Signal(4).eq((a + b)[4:]),      False),
    (lambda a, b, wide: If(a - b < 4, wide.eq(1)),      True),
    (lambda a, b, wide: Signal(8).eq(a + b),            False),
])
def test_cuts_are_seen(make, cut):
    assert bool(cuts_of(make)) == cut


def test_engine_loses_no_carry():
    """No sum of the engine is cut but those argued above; none is argued that is not there."""
    assert Cuts(RoCECore(scalable_ticks=True).get_fragment()).found == set(ARGUED)
