# SPDX-License-Identifier: BSD-2-Clause
"""RoCE v2 frames as fields and back, byte for byte.

Ref: InfiniBand Architecture vol. 1 ch. 9.2 to 9.6 (headers, pad), Annex A17 (RoCEv2, ICRC).
Not supported: IPv4 options, IPv6 extension headers, first fragments: PacketError. More than one VLAN tag, later fragments,
other extension headers than those of opcodes.py: None, the slow path's.

A Packet keeps whatever a frame may choose (IP identification, flags, reserved bits, checksums, bytes
after the ICRC), so that parse(frame).build() == frame for every frame it accepts. Fields left at None
are computed by build(): lengths, checksum, pad, ICRC.
"""
import ipaddress
import struct
import zlib

from roce_soc.opcodes import (BTH_BYTES, ETHERNET_MIN_BYTES, ETHERTYPE_IPV4, ETHERTYPE_IPV6,
                              ETHERTYPE_VLAN, EXT_HEADERS, HEADER_BYTES, ICRC_BYTES, IP_PROTOCOL_UDP,
                              IPV6_EXTENSION_BYTES, IPV6_EXTENSIONS, IPV6_FRAGMENT, OPCODES, PKEY_DEFAULT, UDP_BYTES,
                              UDP_PORT, UDP_SPORT_BASE)

CRC_OF_LRH = zlib.crc32(b"\xff"*8)   # the eight bytes that stand for the absent LRH.

# Addresses ----------------------------------------------------------------------------------------

def mac(text):
    """Six bytes of "52:54:00:00:00:01"; bytes pass."""
    value = text if isinstance(text, bytes) else bytes.fromhex(text.replace(":", ""))
    if len(value) != 6:
        raise ValueError(f"MAC address must have 6 bytes, not {text!r}")
    return value

def ip(text):
    """4 or 16 bytes of an address or GID in text; an IPv4-mapped GID gives 4 bytes; bytes pass."""
    if isinstance(text, bytes):
        return text
    address = ipaddress.ip_address(text)
    mapped  = getattr(address, "ipv4_mapped", None)
    return (mapped or address).packed

def udp_sport(local_qpn, remote_qpn, flow_label=0):
    """UDP source port: the flow label, or the product of the QPNs, folded to 14 bits."""
    if not flow_label:
        v  = local_qpn*remote_qpn
        v ^= v >> 20
        v ^= v >> 40
        flow_label = v & 0xfffff
    return UDP_SPORT_BASE | ((flow_label & 0x3fff) ^ (flow_label >> 14))

def internet_checksum(data):
    """Checksum over an even number of bytes whose checksum field is 0; 0 where the field is right."""
    total = sum(struct.unpack(f">{len(data)//2}H", data))
    total = (total & 0xffff) + (total >> 16)
    return ~((total & 0xffff) + (total >> 16)) & 0xffff


def raw(at, value):
    """Function that changes bytes of an untagged IPv4 frame after its ICRC was made; the IPv4 checksum is made anew."""
    def change(frame):
        frame = bytearray(frame)
        frame[at:at + len(value)] = value
        if at < 34:
            frame[24:26] = bytes(2)
            frame[24:26] = internet_checksum(frame[14:34]).to_bytes(2, "big")
        return bytes(frame)
    return change

# Header codecs, made from the tables --------------------------------------------------------------

def _codec(names):
    """(total bytes, ((field, shift, mask), ...)) of headers in wire order, read as one number."""
    fields = [field for name in names for field in EXT_HEADERS[name]]
    shift, rows = sum(bits for _, bits in fields), []
    for name, bits in fields:
        shift -= bits
        rows.append((name, shift, (1 << bits) - 1))
    return sum(HEADER_BYTES[name] for name in names), tuple(rows)

_CODECS    = {value: _codec(("BTH",) + o.headers) for value, o in OPCODES.items()}
_BTH_CODEC = _codec(("BTH",))

class PacketError(ValueError):
    """A frame for UDP port 4791 that cannot be a packet; `row` names the row of errors.py."""
    def __init__(self, row, text):
        super().__init__(f"{row}: {text}")
        self.row = row

# Packet -------------------------------------------------------------------------------------------

class Packet:
    """One RoCE v2 frame as fields.

    Numbers are integers, addresses and payload bytes. `pad`, `pad_bytes`, `ip_length`, `udp_length`,
    `ip_checksum`, `icrc` at None are computed by build(); parse() sets them to what the frame holds,
    and renew() sets them back. `trailer` is what follows the UDP datagram (Ethernet padding).
    """
    # Ethernet, IP, UDP.
    dst_mac, src_mac, vlan = bytes(6), bytes(6), None            # vlan: 16-bit TCI or None.
    ip_version, tos, ttl   = 4, 0, 64                            # tos: traffic class in IPv6.
    src_ip, dst_ip         = bytes(4), bytes(4)
    ip_id, ip_flags        = 0, 0x4000                           # flags: with fragment offset.
    flow_label             = 0
    ip_length, ip_checksum = None, None
    sport, dport           = UDP_SPORT_BASE, UDP_PORT
    udp_length             = None
    udp_checksum           = 0
    # BTH.
    opcode, se, m, pad, tver, pkey = 0, 0, 0, None, 0, PKEY_DEFAULT
    fecn, becn, resv6, dest_qpn    = 0, 0, 0, 0
    ackreq, resv7, psn             = 0, 0, 0
    # Extension headers: RETH, AtomicETH, AETH, AtomicAckETH, ImmDt, IETH, DETH, CNP.
    va, rkey, dma_length  = 0, 0, 0
    swap_add, compare     = 0, 0
    syndrome, msn         = 0, 0
    original, imm         = 0, 0
    inv_rkey              = 0
    qkey, resv8, src_qp   = 0, 0, 0
    cnp_reserved          = 0
    # Data.
    payload, pad_bytes    = b"", None
    icrc, trailer         = None, b""
    icrc_ok               = None                                 # set by parse().

    def __init__(self, **fields):
        for name in fields:
            if not hasattr(Packet, name):
                raise ValueError(f"Packet has no field {name!r}")
        self.__dict__.update(fields)

    def copy(self, **changes):
        """A copy with fields changed; computed ones stay as they are unless renewed."""
        new = Packet(**changes)
        new.__dict__ = {**self.__dict__, **changes}
        return new

    def renew(self):
        """Let build() compute lengths, pad, checksum and ICRC anew; drops the trailer. Returns self."""
        for name in ("pad", "pad_bytes", "ip_length", "udp_length", "ip_checksum", "icrc", "trailer", "icrc_ok"):
            self.__dict__.pop(name, None)
        return self

    @property
    def name(self):
        """Name of the opcode, OPCODE_xx where it is none of the table."""
        row = OPCODES.get(self.opcode)
        return row.name if row else f"OPCODE_{self.opcode:02x}"

    @property
    def headers(self):
        """Extension headers of the opcode."""
        row = OPCODES.get(self.opcode)
        return row.headers if row else ()

    def build(self, pad_frame=False):
        """The frame without FCS; pad_frame fills it to 60 bytes as a MAC does."""
        length, rows = _CODECS.get(self.opcode, _BTH_CODEC)
        pad  = -len(self.payload) & 3 if self.pad is None else self.pad
        tail = bytes(pad) if self.pad_bytes is None else self.pad_bytes
        word = 0
        for name, shift, mask in rows:
            value = pad if name == "pad" else getattr(self, name)
            if not 0 <= value <= mask:
                raise ValueError(f"{name} must be 0..{mask:#x}, not {value!r}")
            word |= value << shift
        transport  = word.to_bytes(length, "big") + self.payload + tail
        udp_length = self.udp_length
        if udp_length is None:
            udp_length = UDP_BYTES + len(transport) + ICRC_BYTES
        network  = self._ip_header(udp_length)
        network += struct.pack(">HHHH", self.sport, self.dport, udp_length, self.udp_checksum)
        body     = network + transport
        crc      = icrc(body, 0, len(body)) if self.icrc is None else self.icrc
        frame    = self._ethernet_header() + body + crc.to_bytes(4, "little") + self.trailer
        if pad_frame and len(frame) < ETHERNET_MIN_BYTES:
            frame += bytes(ETHERNET_MIN_BYTES - len(frame))
        return frame

    def _ethernet_header(self):
        ethertype = ETHERTYPE_IPV4 if self.ip_version == 4 else ETHERTYPE_IPV6
        tag = b"" if self.vlan is None else struct.pack(">HH", ETHERTYPE_VLAN, self.vlan)
        return self.dst_mac + self.src_mac + tag + struct.pack(">H", ethertype)

    def _ip_header(self, udp_length):
        if self.ip_version == 6:
            length = udp_length if self.ip_length is None else self.ip_length
            return struct.pack(">IHBB", 6 << 28 | self.tos << 20 | self.flow_label, length,
                               IP_PROTOCOL_UDP, self.ttl) + self.src_ip + self.dst_ip
        length   = 20 + udp_length if self.ip_length is None else self.ip_length
        checksum = self.ip_checksum
        if checksum is None:
            checksum = internet_checksum(struct.pack(">BBHHHBBH4s4s", 0x45, self.tos, length, self.ip_id,
                self.ip_flags, self.ttl, IP_PROTOCOL_UDP, 0, self.src_ip, self.dst_ip))
        return struct.pack(">BBHHHBBH4s4s", 0x45, self.tos, length, self.ip_id, self.ip_flags, self.ttl,
                           IP_PROTOCOL_UDP, checksum, self.src_ip, self.dst_ip)

    @property
    def ip_checksum_ok(self):
        """False where a parsed IPv4 header's checksum is wrong."""
        if self.ip_version == 6 or self.ip_checksum is None:
            return True
        return self.copy(ip_checksum=None)._ip_header(self.udp_length)[10:12] == self.ip_checksum.to_bytes(2, "big")

    @property
    def udp_checksum_ok(self):
        """False where a parsed frame's UDP checksum is neither 0 nor right."""
        if not self.udp_checksum:
            return True
        frame = self.build()
        start = 14 + (0 if self.vlan is None else 4) + (20 if self.ip_version == 4 else 40)
        body  = self.src_ip + self.dst_ip + struct.pack(">HH", IP_PROTOCOL_UDP, self.udp_length) \
            + frame[start:start + self.udp_length]
        return internet_checksum(body + bytes(len(body) & 1)) == 0

    def describe(self):
        """One line for people."""
        text = [f"{self.name} qpn={self.dest_qpn:#x} psn={self.psn:#08x}"]
        text += [flag for flag in ("se", "ackreq", "fecn", "becn") if getattr(self, flag)]
        headers = self.headers
        if "DETH" in headers:
            text.append(f"qkey={self.qkey:#x} src_qp={self.src_qp:#x}")
        if "RETH" in headers:
            text.append(f"va={self.va:#x} rkey={self.rkey:#x} dma_length={self.dma_length}")
        if "ATOMICETH" in headers:
            text.append(f"va={self.va:#x} rkey={self.rkey:#x} swap_add={self.swap_add:#x} compare={self.compare:#x}")
        if "AETH" in headers:
            text.append(f"syndrome={self.syndrome:#04x} msn={self.msn}")
        if "ATOMICACKETH" in headers:
            text.append(f"original={self.original:#x}")
        if "IMMDT" in headers:
            text.append(f"imm={self.imm:#010x}")
        if "IETH" in headers:
            text.append(f"inv_rkey={self.inv_rkey:#x}")
        if self.payload:
            text.append(f"{len(self.payload)} B {self.payload[:8].hex()}{'..' if len(self.payload) > 8 else ''}")
        if self.icrc_ok is False:
            text.append("ICRC WRONG")
        return " ".join(text)

# ICRC ---------------------------------------------------------------------------------------------

def icrc(data, offset, end):
    """ICRC of data[offset:end], IP header first, last pad byte last; changing fields read as ones."""
    if data[offset] >> 4 == 4:
        head = bytearray(data[offset:offset + 40])
        head[1] = head[8] = head[10] = head[11] = head[26] = head[27] = head[32] = 0xff
        size = 40
    else:
        head = bytearray(data[offset:offset + 60])
        head[0] |= 0x0f
        head[1] = head[2] = head[3] = head[7] = head[46] = head[47] = head[52] = 0xff
        size = 60
    return zlib.crc32(data[offset + size:end], zlib.crc32(head, CRC_OF_LRH))

# Parser -------------------------------------------------------------------------------------------

def _parse_ip(frame, offset, fields):
    """(offset of the UDP header, end of the IP packet, row that stands against a packet or None); None: no UDP there."""
    size = len(frame)
    if fields["ip_version"] == 4:
        if size < offset + 20:
            return None
        (first, tos, length, ip_id, flags, ttl, protocol, checksum, src, dst) = struct.unpack_from(
            ">BBHHHBBH4s4s", frame, offset)
        # A fragment that is not the first has no ports.
        if protocol != IP_PROTOCOL_UDP or first >> 4 != 4 or flags & 0x1fff:
            return None
        if first != 0x45:
            raise PacketError("IP_OPTIONS", f"IPv4 header of {(first & 15)*4} bytes")
        fields.update(tos=tos, ip_length=length, ip_id=ip_id, ip_flags=flags, ttl=ttl,
                      ip_checksum=checksum, src_ip=src, dst_ip=dst)
        return offset + 20, offset + length, "IP_FRAGMENT" if flags & 0x2000 else None
    if size < offset + 40:
        return None
    first, length, protocol, ttl = struct.unpack_from(">IHBB", frame, offset)
    udp = _skip_extensions(frame, offset + 40, protocol)
    if udp is None or first >> 28 != 6:
        return None
    fields.update(tos=first >> 20 & 0xff, flow_label=first & 0xfffff, ip_length=length, ttl=ttl,
                  src_ip=bytes(frame[offset + 8:offset + 24]), dst_ip=bytes(frame[offset + 24:offset + 40]))
    return udp, offset + 40 + length, None if protocol == IP_PROTOCOL_UDP else "IP_OPTIONS"

def _skip_extensions(frame, offset, protocol):
    """Offset of the UDP header behind at most two IPv6 extension headers of 56 bytes together; None: there is none."""
    start = offset
    for _ in range(3):
        if protocol == IP_PROTOCOL_UDP:
            return offset if offset - start <= IPV6_EXTENSION_BYTES else None
        if protocol not in (*IPV6_EXTENSIONS, IPV6_FRAGMENT) or len(frame) < offset + 8:
            return None
        if protocol == IPV6_FRAGMENT:
            # One that is not the first has no ports.
            if int.from_bytes(frame[offset + 2:offset + 4], "big") >> 3:
                return None
            size = 8
        else:
            size = 8*(frame[offset + 1] + 1)
        protocol, offset = frame[offset], offset + size
    return None

def _ipv4_sound(frame, offset):
    """Whether the bytes at `offset` are no IPv4 header or one with the right checksum."""
    return frame[offset] >> 4 != 4 or internet_checksum(frame[offset:offset + 20]) == 0

def parse(frame):
    """Packet of a frame without FCS; None where it is no UDP datagram to port 4791 (the slow path's).

    Raises PacketError for one that is but cannot be decoded, with the first of IP_OPTIONS, IP_FRAGMENT, RUNT,
    IP_CHECKSUM, UDP_LENGTH that holds; behind IPv4 options no port is looked for. A wrong ICRC, IPv4 checksum, version
    or opcode is no such case: the packet says so (icrc_ok, ip_checksum_ok, tver, opcode not in OPCODES).
    """
    frame, size = bytes(frame), len(frame)
    if size < 14:
        return None
    ethertype, offset = frame[12] << 8 | frame[13], 14
    fields = {"dst_mac": frame[0:6], "src_mac": frame[6:12]}
    if ethertype == ETHERTYPE_VLAN and size >= 18:
        fields["vlan"] = frame[14] << 8 | frame[15]
        ethertype, offset = frame[16] << 8 | frame[17], 18
    if ethertype not in (ETHERTYPE_IPV4, ETHERTYPE_IPV6):
        return None
    fields["ip_version"] = 4 if ethertype == ETHERTYPE_IPV4 else 6
    bounds = _parse_ip(frame, offset, fields)
    if bounds is None or size < bounds[0] + UDP_BYTES:
        return None
    udp, ip_end, row = bounds
    sport, dport, length, checksum = struct.unpack_from(">HHHH", frame, udp)
    if dport != UDP_PORT:
        return None
    if row is not None:
        raise PacketError(row, "options or a fragment before the UDP header")
    if ip_end > size:
        raise PacketError("RUNT", f"IP packet up to byte {ip_end} in {size} bytes of frame")
    wrong_length = "UDP_LENGTH" if _ipv4_sound(frame, offset) else "IP_CHECKSUM"
    end = udp + length
    if end > ip_end or length < UDP_BYTES:
        raise PacketError(wrong_length, f"UDP length {length} up to byte {end} of an IP packet up to {ip_end}")
    bth = udp + UDP_BYTES
    if end < bth + BTH_BYTES + ICRC_BYTES:
        raise PacketError(wrong_length, f"UDP length {length} holds no BTH and ICRC")
    headers, rows = _CODECS.get(frame[bth], _BTH_CODEC)
    pad = frame[bth + 1] >> 4 & 3
    if end < bth + headers + pad + ICRC_BYTES:
        raise PacketError(wrong_length, f"UDP length {length} below headers, pad and ICRC")
    word = int.from_bytes(frame[bth:bth + headers], "big")
    for name, shift, mask in rows:
        fields[name] = word >> shift & mask
    crc = int.from_bytes(frame[end - 4:end], "little")
    fields.update(sport=sport, dport=dport, udp_length=length, udp_checksum=checksum,
                  payload=frame[bth + headers:end - 4 - pad], pad_bytes=frame[end - 4 - pad:end - 4],
                  icrc=crc, icrc_ok=icrc(frame, offset, end - 4) == crc, trailer=frame[end:])
    packet = Packet()
    packet.__dict__ = fields
    return packet
