# SPDX-License-Identifier: BSD-2-Clause
"""Headers as bits in wire order, made from the tables of opcodes.py.

Ref: InfiniBand Architecture vol. 1 ch. 9.2, 9.3; Annex A17.3; RFC 791, RFC 8200, RFC 768, IEEE 802.1Q.
"""
from migen import *

from roce_soc import opcodes

# Field of a header -> field of a packet record that holds it.
RECORD_FIELD = {
    ("RETH", "va"):              "va",
    ("RETH", "rkey"):            "rkey",
    ("RETH", "dma_length"):      "dma_length",
    ("ATOMICETH", "va"):         "va",
    ("ATOMICETH", "rkey"):       "rkey",
    ("ATOMICETH", "swap_add"):   "swap_add",
    ("ATOMICETH", "compare"):    "compare",
    ("AETH", "syndrome"):        "syndrome",
    ("AETH", "msn"):             "msn",
    ("ATOMICACKETH", "original"): "swap_add",
    ("IMMDT", "imm"):            "imm",
    ("IETH", "inv_rkey"):        "imm",
    ("DETH", "qkey"):            "qkey",
    ("DETH", "src_qp"):          "src_qp",
}

IPV4_FIRST_BYTE    = 0x45     # version 4, five words.
IPV4_CHECKSUM_BYTE = 10
DONT_FRAGMENT      = 0x4000

MAX_EXT_BYTES    = max(o.header_length for o in opcodes.OPCODES.values())
MAX_HEADER_BYTES = (opcodes.ETHERNET_BYTES + opcodes.VLAN_BYTES + opcodes.IPV6_BYTES + opcodes.UDP_BYTES
    + opcodes.BTH_BYTES + MAX_EXT_BYTES)

def big_endian(data, first, count):
    """Number of `count` bytes that start at byte `first` of `data`, first byte most significant."""
    return Cat(*[data[8*(first + i):8*(first + i + 1)] for i in reversed(range(count))])


# Bits ---------------------------------------------------------------------------------------------

def fit(value, bits):
    """A value of exactly so many bits."""
    if isinstance(value, int):
        return Constant(value, bits)
    return value[:bits] if len(value) >= bits else Cat(value, Constant(0, bits - len(value)))


def wire(*fields):
    """Fields (value, bits), most significant first, as they stand on the wire: first byte in bits 7:0."""
    number = Cat(*[fit(value, bits) for value, bits in reversed(fields)])
    count  = len(number)//8
    if 8*count != len(number):
        raise ValueError(f"header fields must add up to whole bytes, not {len(number)} bits")
    return Cat(*[number[8*n:8*(n + 1)] for n in reversed(range(count))])


def formats():
    """([header names, ...], {opcode: index}): the sequences of extension headers that occur."""
    found, index = [], {}
    for opcode in opcodes.OPCODES.values():
        if opcode.headers not in found:
            found.append(opcode.headers)
        index[opcode.value] = found.index(opcode.headers)
    return found, index


def extension(names, record):
    """Extension headers from a record's fields; fields the record does not have are zero."""
    parts = []
    for name in names:
        fields = []
        for field, bits in opcodes.EXT_HEADERS[name]:
            source = RECORD_FIELD.get((name, field))
            fields.append((getattr(record, source) if hasattr(record, source or "") else 0, bits))
        parts.append(wire(*fields))
    return Cat(*parts)


def bth(**values):
    """BTH from its fields; those not given are zero."""
    return wire(*[(values.get(name, 0), bits) for name, bits in opcodes.BTH])


def ethernet(row, vlan, ipv6):
    """Ethernet header of one of the four layouts from a connection row."""
    ethertype = opcodes.ETHERTYPE_IPV6 if ipv6 else opcodes.ETHERTYPE_IPV4
    tag       = ((opcodes.ETHERTYPE_VLAN, 16), (row.vlan_tci, 16)) if vlan else ()
    return wire((row.dst_mac, 48), (row.src_mac, 48), *tag, (ethertype, 16))


def ip(row, ipv6, identification, length):
    """IP header, checksum 0; `length` is what stands in its length field."""
    if ipv6:
        return wire((6, 4), (row.tclass, 8), (row.flow_label, 20), (length, 16), (opcodes.IP_PROTOCOL_UDP, 8),
            (row.hop_limit, 8), (row.src_ip, 128), (row.dst_ip, 128))
    return wire((IPV4_FIRST_BYTE, 8), (row.tclass, 8), (length, 16), (identification, 16), (DONT_FRAGMENT, 16),
        (row.hop_limit, 8), (opcodes.IP_PROTOCOL_UDP, 8), (0, 16), (row.src_ip[:32], 32), (row.dst_ip[:32], 32))


def udp(row, length):
    """UDP header, checksum 0."""
    return wire((row.udp_sport, 16), (opcodes.UDP_PORT, 16), (length, 16), (0, 16))
