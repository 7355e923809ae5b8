# SPDX-License-Identifier: BSD-2-Clause
"""Limits and stream layouts shared by the engine's modules: one description function per layer.

Streams follow LiteX: a beat moves when valid and ready; `first`/`last` frame a packet; `last_be` is
one-hot of the last valid byte, meaningful on `last` only and 0 elsewhere. Record streams (one token
a packet) carry fields only. `valid` never depends on the same stream's `ready`.
"""
from litex.soc.interconnect.stream import EndpointDescription

from roce_soc.abi import MR_ARGS, QP_ARGS
from roce_soc.errors import ROW_WIDTH

# Limits -----------------------------------------------------------------------------------------

DATA_WIDTH       = 512            # bits of the data path.
DATA_BYTES       = DATA_WIDTH//8
QPI_WIDTH        = 12             # bits of a QP, CQ or RQ index; up to 4096.
MAX_QPS          = 4096
DEFAULT_QPS      = 256
DEFAULT_MRS      = 1024
DEFAULT_CQS      = 256
MAX_READS        = 16             # READ/atomic resources of a QP, either role.
OUTSTANDING      = 32             # messages a QP may have unacknowledged.
MAX_PMTU         = 4096
MAX_MESSAGE      = 1 << 31        # bytes.
MAX_FRAME        = 4096 + 128     # bytes: largest RoCE frame, all headers counted.
PAGE_BYTES       = 4096           # a memory command never crosses a multiple of this.
TARGET_WIDTH     = 3
TAG_WIDTH        = 10
PAGE_WIDTH       = 12             # bits of a doorbell page's number.
IN_FLIGHT        = 512            # packets between their memory access and its end, each way: 1000 clocks of the smallest.
TICK_NS          = 256            # tick of the time base.
TICK_CYCLES      = 64             # engine clocks of a tick at 250 MHz.
TICKS_PER_4096NS = 16             # 4.096 us, unit of the ACK time-out.
TICKS_PER_10US   = 40             # unit of the RNR timer table: 10.24 us, never shorter than 10 us.

# Memory errors (err of wack and rdata): the target is not told of the address, refused, did not answer in time, had the data
# marked bad, was gone.
MEM_OK, MEM_NO_ADDRESS, MEM_REFUSED, MEM_TIMEOUT, MEM_POISON, MEM_GONE = range(6)
MEM_ERR_WIDTH = 3

# What a memory command is for (kind of its record).
MEMORY_PAYLOAD, MEMORY_WQE, MEMORY_CQE, MEMORY_EQE, MEMORY_MSI = range(5)
MEMORY_KIND_WIDTH = 3

# TX owners (tx_packet.owner, tx_sent.owner).
OWNER_REQUESTER, OWNER_RESPONDER, OWNER_ACK, OWNER_OTHER = range(4)

# Control pseudo-packets from the command port to the owners of QP rows.
CTL_RESET, CTL_START, CTL_ERR, CTL_SQD, CTL_RESUME, CTL_STOP = range(6)


# Frames -----------------------------------------------------------------------------------------

def roce_wire_description(dw=DATA_WIDTH):
    """Ethernet frames without FCS at the PHY and on the slow path. `error` != 0 with last: discard."""
    return EndpointDescription([("data", dw), ("last_be", dw//8), ("error", dw//8)])


def roce_payload_description(dw=DATA_WIDTH):
    """Bytes of one packet, first byte in lane 0, no gaps."""
    return EndpointDescription([("data", dw), ("last_be", dw//8)])


# Receive: one record per packet that passed every check of the receive side -----------------------

def rx_packet_description():
    """A good RoCE packet for the responder or the completer; its payload waits in packet-buffer slots.

    `slot` names the packet's first buffer chunk, valid when has_slot; whoever takes the record owes
    the buffer exactly one place record (length 0 = discard). `offset` is the lane of the first
    payload byte in the slot's first stored beat (the buffer keeps payload beats only).
    """
    return EndpointDescription([
        ("qpi",          QPI_WIDTH), ("qpn", 24), ("opcode", 8), ("psn", 24),
        ("se", 1), ("ackreq", 1), ("pad", 2),
        ("length",       13),    # payload bytes without pad.
        ("has_slot",     1), ("slot", 10), ("offset", 6),
        ("va",           64), ("rkey", 32), ("dma_length", 32),       # RETH / AtomicETH
        ("syndrome",     8), ("msn", 24),                             # AETH
        ("imm",          32),                                         # ImmDt or IETH
        ("swap_add",     64), ("compare", 64),                        # AtomicETH, AtomicAckETH in swap_add
        ("qkey",         32), ("src_qp", 24),                         # DETH
        ("ecn",          2),
    ])


# Payload placement: packet buffer -> memory --------------------------------------------------------

def place_description():
    """What to do with a packet's payload: write `length` bytes to `addr`, then free the slot.

    length 0: nothing is written. Each record is answered by exactly one done record, in order per
    client, after the acknowledges of its own and of all earlier writes of the client.
    """
    return EndpointDescription([
        ("qpi", QPI_WIDTH), ("has_slot", 1), ("slot", 10), ("offset", 6), ("length", 13),
        ("target", TARGET_WIDTH), ("addr", 64)])


def where_description():
    """Where the bytes of a place record go that came without its address, and whether they go at all.

    `keep`: the packet stays in the buffer, to be placed by another record.
    """
    return EndpointDescription([("write", 1), ("keep", 1), ("target", TARGET_WIDTH), ("addr", 64)])


def place_done_description():
    return EndpointDescription([("err", MEM_ERR_WIDTH)])


# Transmit: one record per packet --------------------------------------------------------------------

def tx_packet_description():
    """One packet to build. Addresses, ports, P_Key, dest QPN come from the QP's connection row.

    marker: no packet; the record only travels the queue and comes back as tx_sent (quiesce).
    A request has no AETH: of OWNER_REQUESTER `msn` is the last PSN that the packet asks for, `syndrome` the requester's
    generation; tx_sent brings both back.
    """
    return EndpointDescription([
        ("owner", 2), ("marker", 1), ("qpi", QPI_WIDTH), ("opcode", 8), ("psn", 24),
        ("se", 1), ("ackreq", 1),
        ("length", 13), ("target", TARGET_WIDTH), ("addr", 64),       # payload: bytes, where
        ("va", 64), ("rkey", 32), ("dma_length", 32),                 # RETH
        ("syndrome", 8), ("msn", 24),                                 # AETH
        ("imm", 32),                                                  # ImmDt or IETH
    ])


def tx_sent_description():
    """Returned once per tx_packet, in order: the frame is complete in its frame FIFO, or err says
    that its payload could not be read and nothing was sent. `psn` of a request: the last one it asks for."""
    return EndpointDescription([
        ("owner", 2), ("marker", 1), ("qpi", QPI_WIDTH), ("psn", 24), ("generation", 4), ("err", MEM_ERR_WIDTH)])


# Memory ports (contract in memory/port.py) -----------------------------------------------------------

def memory_command_description():
    return EndpointDescription([
        ("target", TARGET_WIDTH), ("addr", 64), ("length", 13), ("qpi", QPI_WIDTH), ("tag", TAG_WIDTH),
        ("kind", MEMORY_KIND_WIDTH), ("relaxed", 1)])


def memory_wdata_description(dw=DATA_WIDTH):
    return EndpointDescription([("data", dw), ("be", dw//8)])


def memory_wack_description():
    return EndpointDescription([("tag", TAG_WIDTH), ("err", MEM_ERR_WIDTH)])


def memory_rdata_description(dw=DATA_WIDTH):
    return EndpointDescription([("data", dw), ("tag", TAG_WIDTH), ("err", MEM_ERR_WIDTH)])


# Protection -----------------------------------------------------------------------------------------

def mr_request_description():
    """Access check of [va, va + length): `access` holds the one IBV_ACCESS bit needed, 0 = local read."""
    return EndpointDescription([
        ("key", 32), ("va", 64), ("length", 32), ("access", 4), ("pd", 16)])


def mr_result_description():
    """row 0: granted, bytes start at target/addr; else the row of errors.py (MR_KEY, MR_PD, ...).

    `miss`: where the bytes start is not known yet; to be asked again when the table says `wake`, or at any time.
    """
    return EndpointDescription([("row", ROW_WIDTH), ("miss", 1), ("target", TARGET_WIDTH), ("addr", 64)])


# Queues ---------------------------------------------------------------------------------------------

def doorbell_description():
    """`kind` is the offset in the owner page divided by 4 (abi.DOORBELL_*)."""
    return EndpointDescription([("kind", 3), ("page", PAGE_WIDTH), ("queue", 16), ("index", 16)])


def cqe_description():
    """A completion for CQ `cqn`; fields as abi.CQE. `solicited` also holds for every error."""
    return EndpointDescription([
        ("cqn", QPI_WIDTH), ("wr_id", 64), ("byte_len", 32), ("imm", 32), ("qpn", 24), ("status", 8),
        ("src_qp", 24), ("opcode", 8), ("slot", 16), ("flags", 8), ("vendor_err", 8), ("solicited", 1)])


def event_description():
    """An event for the event queue (abi.EVENT_*) or, from a transport, a QP that failed."""
    return EndpointDescription([("type", 8), ("queue", 16), ("info", 32)])


def ctl_description():
    """Pseudo-packet from the command port to a row's owner: CTL_*; `psn` for CTL_START."""
    return EndpointDescription([("qpi", QPI_WIDTH), ("op", 3), ("psn", 24)])


def refusal_description():
    """A refused packet or request: row of errors.py. One cycle of valid counts once; no ready."""
    return EndpointDescription([("row", ROW_WIDTH), ("qpn", 24), ("psn", 24), ("opcode", 8), ("info", 32)])


# QP connection row: written by the command port alone, read by every stage ----------------------------

def _built(layout, *without):
    """[(name, bits)] of command arguments that this build knows."""
    return [(a.name, a.built.bit_length()) for a in layout if a.built and a.name not in without]


def connection_layout():
    """Fields of the connection row: the arguments of CMD_MODIFY_QP except index, start PSNs and what a query alone tells."""
    return _built(QP_ARGS, "qpi", "draining", "sq_psn", "rq_psn")


# Receive side, in packet order ------------------------------------------------------------------------

def roce_header_description():
    """Headers of a RoCE frame from network/receive: one pulse a frame, the clock before its first beat.

    `bth` holds BTH and extension headers as they stand on the wire (byte 0 in bits 7:0), `bth_offset`
    is the BTH's place in the frame. `vid`: VLAN ID, 0 without a tag. `local`: turned round inside, not from the wire.
    """
    return EndpointDescription([
        ("ipv6", 1), ("bth_offset", 7), ("udp_length", 16), ("bth", 8*(12 + 28)),
        ("dst_mac", 48), ("vid", 12), ("local", 1), ("src_ip", 128), ("dst_ip", 128), ("ecn", 2)])


def roce_frame_description(dw=DATA_WIDTH):
    """A RoCE frame from network/receive: raw beats. `end` counts bytes from the frame's start to behind the ICRC."""
    return EndpointDescription([("data", dw), ("last_be", dw//8), ("error", dw//8)], [("end", 14), ("row", ROW_WIDTH)])


def rx_beats_description(dw=DATA_WIDTH):
    """Beats from packet/decoder to packet/buffer; `start` is the payload's first byte in the frame."""
    return EndpointDescription([("data", dw)], [("start", 7), ("length", 13), ("keep", 1)])


def rx_verdict_description():
    """The decoder's judgement of a frame, in frame order: `good`, only ever with valid, or the row of errors.py it breaks."""
    fields = [f for f in rx_packet_description().payload_layout if f[0] not in ("has_slot", "slot", "offset")]
    return EndpointDescription(fields + [("good", 1), ("row", ROW_WIDTH), ("response", 1), ("cnp", 1)])


# Commands to queue owners -----------------------------------------------------------------------------

def mr_write_description():
    """A region's row from the command port: the arguments of CMD_WRITE_MR; valid_row 0 removes the region at `index`."""
    return EndpointDescription([("valid_row", 1)] + _built(MR_ARGS))


def ring_write_description():
    """A ring object's geometry from the command port (abi.CQ_ARGS): CQ, RQ or EQ."""
    return EndpointDescription([
        ("index", QPI_WIDTH), ("enable", 1), ("log2", 4), ("target", TARGET_WIDTH), ("page", PAGE_WIDTH), ("addr", 64)])
