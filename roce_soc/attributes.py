# SPDX-License-Identifier: BSD-2-Clause
"""Attributes of a queue pair as expressions: path MTU, rights. One place that knows their codes.

Ref: InfiniBand Architecture vol. 1 ch. 11.2.5.2 (path MTU), 10.6.3.4 (access control).
"""
from migen import *

from roce_soc.opcodes import PMTU_BYTES


def pmtu_bytes(code):
    """Expression: bytes of path MTU `code`, 1 to 5 = 256 to 4096."""
    return 128 << code


def pmtu_case(code, body):
    """Case over the path MTU codes: body(shift) gives the statements for an MTU of 2^shift bytes."""
    return Case(code, {**{c: body(log2_int(size)) for c, size in PMTU_BYTES.items()}, "default": body(8)})


def grants(access, right):
    """Expression: `access` (bits of verbs.ACCESS_*) holds the one `right`."""
    return access[log2_int(right)]
