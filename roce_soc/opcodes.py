# SPDX-License-Identifier: BSD-2-Clause
"""The wire protocol as data: header fields, opcodes, syndromes, timers, path MTU.

Ref: InfiniBand Architecture vol. 1 ch. 9 (BTH, extension headers, opcodes, AETH), Annex A17 (RoCEv2).
Not supported: RD, XRC, and the FLUSH (0x1C) and ATOMIC_WRITE (0x1D) extensions: unknown opcodes here.

Gateware, reference model, dissector, software and pages read these tables; no opcode, header length
or syndrome is written down anywhere else.
"""
from dataclasses import dataclass

# Headers ------------------------------------------------------------------------------------------
# name -> ((field, bits), ...) in wire order, most significant first. Sizes are whole bytes.

BTH = (
    ("opcode", 8), ("se", 1), ("m", 1), ("pad", 2), ("tver", 4), ("pkey", 16),
    ("fecn", 1), ("becn", 1), ("resv6", 6), ("dest_qpn", 24),
    ("ackreq", 1), ("resv7", 7), ("psn", 24),
)

EXT_HEADERS = {
    "BTH":          BTH,
    "RETH":         (("va", 64), ("rkey", 32), ("dma_length", 32)),
    "ATOMICETH":    (("va", 64), ("rkey", 32), ("swap_add", 64), ("compare", 64)),
    "AETH":         (("syndrome", 8), ("msn", 24)),
    "ATOMICACKETH": (("original", 64),),
    "IMMDT":        (("imm", 32),),
    "IETH":         (("inv_rkey", 32),),
    "DETH":         (("qkey", 32), ("resv8", 8), ("src_qp", 24)),
    "CNPRES":       (("cnp_reserved", 128),),
}

def header_bytes(name: str) -> int:
    """Length in bytes of a header of EXT_HEADERS."""
    return sum(bits for _, bits in EXT_HEADERS[name])//8

HEADER_BYTES = {name: header_bytes(name) for name in EXT_HEADERS}
BTH_BYTES    = HEADER_BYTES["BTH"]
ICRC_BYTES   = 4

# Ethernet, IP, UDP --------------------------------------------------------------------------------

ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, ETHERTYPE_ARP = 0x0800, 0x86dd, 0x8100, 0x0806
ETHERNET_BYTES, VLAN_BYTES, IPV4_BYTES, IPV6_BYTES, UDP_BYTES = 14, 4, 20, 40, 8
ETHERNET_MIN_BYTES = 60      # frame without FCS: shorter ones are padded with zeros.
IP_PROTOCOL_UDP    = 17
IPV6_EXTENSIONS    = 0, 43, 60   # hop-by-hop, routing, destination options: as long as they say.
IPV6_FRAGMENT      = 44          # eight bytes, whatever stands in its second one.
IPV6_EXTENSION_BYTES = 56        # UDP is looked for behind up to two extension headers of these bytes together.
UDP_PORT           = 4791    # destination port of RoCE v2.
UDP_SPORT_BASE     = 0xc000  # source port: base | 14 bits of entropy.
PKEY_DEFAULT       = 0xffff
TVER               = 0
ECN_CE             = 3       # IP ECN: congestion experienced.
GRH_BYTES          = 40      # UD receive buffers: area before the payload.
QPN_GSI            = 1
QPN_MULTICAST      = 0xffffff
QKEY_GSI           = 0x80010000

# ICRC: CRC-32 (zlib), sent least significant byte first, over 8 bytes 0xFF, IP, UDP, BTH ... pad
# with TOS, TTL, IP checksum, flow label, UDP checksum and BTH byte 4 read as ones.
ICRC_POLYNOMIAL     = 0x04c11db7
ICRC_POLYNOMIAL_LSB = 0xedb88320
ICRC_SEED           = 0xdebb20e3   # register after the eight bytes 0xFF, not inverted, LSB first.
ICRC_RESIDUE        = 0xdebb20e3   # register after packet and its ICRC.

# Opcodes ------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Opcode:
    """One BTH opcode and all that its packets have in common.

    `headers` follow the BTH in this order; `payload` is NONE, PMTU, 1..PMTU or 0..PMTU bytes;
    `starts`/`ends` say whether the packet is the first/last of its message; `header_length` counts
    the bytes of `headers`. `transport` is RC, UC, UD or CNP.
    """
    value         : int
    name          : str
    transport     : str
    kind          : str
    position      : str
    headers       : tuple[str, ...]
    payload       : str
    has_imm       : bool
    has_inv       : bool
    is_request    : bool
    is_response   : bool
    starts        : bool
    ends          : bool
    header_length : int

TRANSPORT_BITS = {"RC": 0b000, "UC": 0b001, "UD": 0b011, "CNP": 0b100}   # opcode[7:5].

# low five bits, name, kind, position, headers, payload, transports.
_ROWS = (
    (0x00, "SEND_FIRST",           "SEND",               "FIRST",  (),                       "PMTU",    "RC UC"),
    (0x01, "SEND_MIDDLE",          "SEND",               "MIDDLE", (),                       "PMTU",    "RC UC"),
    (0x02, "SEND_LAST",            "SEND",               "LAST",   (),                       "1..PMTU", "RC UC"),
    (0x03, "SEND_LAST_IMM",        "SEND",               "LAST",   ("IMMDT",),               "1..PMTU", "RC UC"),
    (0x04, "SEND_ONLY",            "SEND",               "ONLY",   (),                       "0..PMTU", "RC UC UD"),
    (0x05, "SEND_ONLY_IMM",        "SEND",               "ONLY",   ("IMMDT",),               "0..PMTU", "RC UC UD"),
    (0x06, "WRITE_FIRST",          "WRITE",              "FIRST",  ("RETH",),                "PMTU",    "RC UC"),
    (0x07, "WRITE_MIDDLE",         "WRITE",              "MIDDLE", (),                       "PMTU",    "RC UC"),
    (0x08, "WRITE_LAST",           "WRITE",              "LAST",   (),                       "1..PMTU", "RC UC"),
    (0x09, "WRITE_LAST_IMM",       "WRITE",              "LAST",   ("IMMDT",),               "1..PMTU", "RC UC"),
    (0x0a, "WRITE_ONLY",           "WRITE",              "ONLY",   ("RETH",),                "0..PMTU", "RC UC"),
    (0x0b, "WRITE_ONLY_IMM",       "WRITE",              "ONLY",   ("RETH", "IMMDT"),        "0..PMTU", "RC UC"),
    (0x0c, "READ_REQUEST",         "READ_REQUEST",       "ONLY",   ("RETH",),                "NONE",    "RC"),
    (0x0d, "READ_RESPONSE_FIRST",  "READ_RESPONSE",      "FIRST",  ("AETH",),                "PMTU",    "RC"),
    (0x0e, "READ_RESPONSE_MIDDLE", "READ_RESPONSE",      "MIDDLE", (),                       "PMTU",    "RC"),
    (0x0f, "READ_RESPONSE_LAST",   "READ_RESPONSE",      "LAST",   ("AETH",),                "1..PMTU", "RC"),
    (0x10, "READ_RESPONSE_ONLY",   "READ_RESPONSE",      "ONLY",   ("AETH",),                "0..PMTU", "RC"),
    (0x11, "ACKNOWLEDGE",          "ACKNOWLEDGE",        "ONLY",   ("AETH",),                "NONE",    "RC"),
    (0x12, "ATOMIC_ACKNOWLEDGE",   "ATOMIC_ACKNOWLEDGE", "ONLY",   ("AETH", "ATOMICACKETH"), "NONE",    "RC"),
    (0x13, "CMP_SWAP",             "CMP_SWAP",           "ONLY",   ("ATOMICETH",),           "NONE",    "RC"),
    (0x14, "FETCH_ADD",            "FETCH_ADD",          "ONLY",   ("ATOMICETH",),           "NONE",    "RC"),
    (0x16, "SEND_LAST_INV",        "SEND",               "LAST",   ("IETH",),                "1..PMTU", "RC"),
    (0x17, "SEND_ONLY_INV",        "SEND",               "ONLY",   ("IETH",),                "0..PMTU", "RC"),
    (0x01, "",                     "CNP",                "ONLY",   ("CNPRES",),              "NONE",    "CNP"),
)

RESPONSE_KINDS = ("READ_RESPONSE", "ACKNOWLEDGE", "ATOMIC_ACKNOWLEDGE")

def _opcode(transport: str, low: int, name: str, kind: str, position: str, headers: tuple[str, ...], payload: str) -> Opcode:
    if transport == "UD":
        headers = ("DETH",) + headers
    return Opcode(
        value         = TRANSPORT_BITS[transport] << 5 | low,
        name          = f"{transport}_{name}" if name else transport,
        transport     = transport,
        kind          = kind,
        position      = position,
        headers       = headers,
        payload       = payload,
        has_imm       = "IMMDT" in headers,
        has_inv       = "IETH" in headers,
        is_request    = kind not in RESPONSE_KINDS and kind != "CNP",
        is_response   = kind in RESPONSE_KINDS,
        starts        = position in ("FIRST", "ONLY"),
        ends          = position in ("LAST", "ONLY"),
        header_length = sum(HEADER_BYTES[h] for h in headers),
    )

OPCODES = {o.value: o for o in (
    _opcode(transport, *row[:-1])
    for transport in ("RC", "UC", "UD", "CNP") for row in _ROWS if transport in row[-1].split())}

_BY_NAME = {o.name: o for o in OPCODES.values()}

def by_name(name: str) -> Opcode:
    """The Opcode called `name`; ValueError names what is not in the table."""
    if name not in _BY_NAME:
        raise ValueError(f"opcode name must be one of OPCODES, not {name!r}")
    return _BY_NAME[name]

# One constant a row: RC_SEND_FIRST = 0x00 ... UD_SEND_ONLY_IMM = 0x65, CNP = 0x81.
globals().update({o.name: o.value for o in OPCODES.values()})

def opcode_of(transport: str, kind: str, position: str, *, imm: bool = False, inv: bool = False) -> int:
    """Value of the opcode for a packet of a message; ValueError where the transport has none."""
    for o in OPCODES.values():
        if (o.transport, o.kind, o.position, o.has_imm, o.has_inv) == (transport, kind, position, imm, inv):
            return o.value
    raise ValueError(f"{transport} has no {kind} {position} opcode with imm={imm}, inv={inv}")

# AETH syndrome ------------------------------------------------------------------------------------

SYNDROME_ACK           = 0x00   # | credit code.
SYNDROME_RNR           = 0x20   # | RNR timer code.
SYNDROME_NAK           = 0x60   # | NAK code.
SYNDROME_CLASS_MASK    = 0x60   # bit 7 set is reserved as well.
SYNDROME_VALUE_MASK    = 0x1f
ACK_UNLIMITED          = 0x1f   # ACK without credit information.
NAK_PSN_SEQUENCE       = 0x60
NAK_INVALID_REQUEST    = 0x61
NAK_REMOTE_ACCESS      = 0x62
NAK_REMOTE_OPERATIONAL = 0x63
NAK_INVALID_RD_REQUEST = 0x64

# Credit code -> receive work requests; code 31 says nothing about credits.
CREDITS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
           1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768)
CREDIT_CODE_UNLIMITED = 31

def credit_code(available: int) -> int:
    """Largest credit code that promises no more than `available` receive work requests."""
    return max(code for code, credits in enumerate(CREDITS) if credits <= available)

def syndrome_class(syndrome: int) -> str:
    """ACK, RNR, NAK or RESERVED."""
    return ("ACK", "RNR", "RESERVED", "NAK")[syndrome >> 5] if syndrome < 0x80 else "RESERVED"

# Timers -------------------------------------------------------------------------------------------

# RNR timer code -> wait in units of 10 us. Code 0 is the longest.
RNR_TIMER_10US = (65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768,
                  1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152)
RNR_RETRY_INFINITE  = 7
ACK_TIMEOUT_UNIT_NS = 4096

def ack_timeout_ns(code: int) -> int:
    """Local ACK time-out in ns: 4.096 us * 2^code, 0 = no timer."""
    if not 0 <= code <= 31:
        raise ValueError(f"ACK time-out code must be 0..31, not {code!r}")
    return ACK_TIMEOUT_UNIT_NS << code if code else 0

# Path MTU -----------------------------------------------------------------------------------------

PMTU_BYTES = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
PMTU_CODES = {size: code for code, size in PMTU_BYTES.items()}

# PSN ----------------------------------------------------------------------------------------------

PSN_MASK = 0xffffff

def psn_diff(a: int, b: int) -> int:
    """a - b as a signed 24-bit number: > 0 when a is later. Outstanding PSNs stay below 2^23."""
    return ((a - b + 0x800000) & PSN_MASK) - 0x800000

def packets(length: int, pmtu: int) -> int:
    """PSNs that a message of `length` bytes takes at a path MTU of `pmtu` bytes."""
    return max(1, -(-length//pmtu))

# Pages --------------------------------------------------------------------------------------------

def markdown_table() -> str:
    """The opcode table as a markdown table, made for the documentation."""
    lines = ["| value | name | headers after BTH | header bytes | payload |", "|---|---|---|---|---|"]
    lines += [f"| 0x{o.value:02x} | {o.name} | {', '.join(o.headers) or '-'} | {o.header_length} | {o.payload} |"
              for o in OPCODES.values()]
    return "\n".join(lines) + "\n"
