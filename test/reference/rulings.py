# SPDX-License-Identifier: BSD-2-Clause
"""Allowed differences between a capture and an engine that plays one of its sides, as data.

Each Ruling says what may differ, under which condition (a method of test/model/conditions.py), why that is legal (clause)
and what this project's engine does (ours). None names a capture: what is legal is legal in each. A comparison prints every
ruling it used. The captures are of Linux rxe 6.12; profile "rxe" allows only what any two runs of the same stack differ in
or verbs leave undefined, profile "standard" also where rxe departs from the standard or the standard leaves a choice.

kind
  field    `field` of a frame may differ in packets of `opcodes` (empty: in all) where `rule` holds
  value    `field` may be `ours_value` where the capture has `value` and `rule` holds
  absent   a frame of the capture may be missing where `rule` holds
  extra    a frame may come that the capture lacks where `rule` holds
  opcode   a frame may have another opcode where `rule` holds
  cqe      `field` of a completion may differ where `rule` holds
"""
from dataclasses import dataclass


@dataclass(frozen=True)
class Ruling:
    """One allowed difference; opcodes are file name patterns."""
    name       : str
    kind       : str
    clause     : str
    ours       : str
    field      : str   = ""
    rule       : str   = ""
    opcodes    : tuple = ()
    value      : object = None
    ours_value : object = None
    profiles   : tuple = ("standard", "rxe")


STANDARD_ONLY = ("standard",)
REQUESTS = ("??_SEND_*", "??_WRITE_*", "RC_READ_REQUEST", "RC_CMP_SWAP", "RC_FETCH_ADD")

RULINGS = (
    # Noise: differs between two runs of one stack.
    Ruling("ip-identification", "field", "RFC 6864 4.1: any value in an atomic datagram (DF set)",
           "counts per port", field="ip_id"),
    Ruling("udp-source-port", "field", "A17: entropy from 0xC000 on, chosen by the sender, one for a QP or address handle",
           "flow label, or product of the QPNs, folded to 14 bits", field="sport", rule="source_port"),
    Ruling("ethernet-padding", "field", "802.3 3.2.8: zeros after the datagram up to 60 bytes",
           "pads to 60 bytes before the MAC", field="trailer"),
    # Choices of the standard.
    Ruling("ackreq-pattern", "field", "9.7.3: a requester may ask for an ACK on any request packet, must where it waits for one",
           "on the last packet of a message and of a repetition, and at a fixed interval", field="ackreq", rule="ackreq",
           opcodes=REQUESTS),
    Ruling("migreq", "field", "9.2: APM not supported, bit ignored by receivers; one value for a QP",
           "0", field="m"),
    Ruling("ack-coalescing", "absent", "9.7.5.1.2: an ACK acknowledges every earlier PSN",
           "one pending ACK per QP: a later one replaces it", rule="coalesced_ack", profiles=STANDARD_ONLY),
    Ruling("read-reply-msn", "field", "9.7.7.1: MSN counts messages completed; credits, its only use, are unlimited",
           "a READ's replies, repeated ones too, carry the MSN of its acceptance", field="msn", rule="msn",
           opcodes=("RC_READ_RESPONSE_*",), profiles=STANDARD_ONLY),
    Ruling("duplicate-acks", "absent", "9.7.5.1: duplicates are acknowledged, coalescing allowed",
           "one ACK for a run of duplicates may do", rule="duplicate_ack", profiles=STANDARD_ONLY),
    # Where rxe departs from the standard.
    Ruling("udp-checksum", "extra", "A17: the ICRC protects the packet; the UDP checksum is not looked at",
           "accepts the packet that the peer's UDP layer dropped, acknowledges its repeat as a duplicate",
           rule="repeated_ack", profiles=STANDARD_ONLY),
    Ruling("nak-after-rnr", "absent", "9.7.5.2.8: packets behind one refused by RNR NAK are dropped silently",
           "silent", rule="nak_after_rnr", profiles=STANDARD_ONLY),
    Ruling("read-restart", "opcode", "9.7.5.1: the answer to a repeated READ starts with FIRST or ONLY",
           "FIRST or ONLY, with AETH", rule="read_restart", profiles=STANDARD_ONLY),
    Ruling("write-behind-read", "field", "10.8.3.3, table 79: a WRITE behind a READ without fence may show in its data",
           "executes the WRITE while the READ's replies wait for their turn", field="payload", rule="written_behind",
           opcodes=("RC_READ_RESPONSE_*",), profiles=STANDARD_ONLY),
    Ruling("short-receive-nak", "value", "9.9.3: SEND longer than the receive is an invalid request",
           "0x61 where rxe has 0x63", field="syndrome", rule="short_receive", opcodes=("RC_ACKNOWLEDGE",), value=0x63,
           ours_value=0x61, profiles=STANDARD_ONLY),
    Ruling("short-receive-status", "cqe", "11.6.2: local length error",
           "LOC_LEN_ERR where rxe has LOC_QP_OP_ERR", field="status", rule="short_receive", value="LOC_QP_OP_ERR",
           ours_value="LOC_LEN_ERR", profiles=STANDARD_ONLY),
    Ruling("receive-key-status", "cqe", "11.6.2: local protection error",
           "LOC_PROT_ERR where rxe has LOC_QP_OP_ERR", field="status", rule="receive_key", value="LOC_QP_OP_ERR",
           ours_value="LOC_PROT_ERR", profiles=STANDARD_ONLY),
    # Completions: fields that verbs leave undefined.
    Ruling("grh-flag", "cqe", "11.6: GRH present flag is defined for UD", "set for UD only", field="flags", rule="no_grh"),
    Ruling("sender-byte-len", "cqe", "11.6: bytes transferred is defined for receives, READ and atomics",
           "length of the work request", field="byte_len", rule="sender_length"),
    Ruling("sender-imm-flag", "cqe", "11.6: immediate data indicator is defined for receives",
           "clear in send completions", field="flags", rule="sender_flags"),
    Ruling("error-fields", "cqe", "11.6: in error only work request ID, status and QP are valid",
           "opcode of the work request, its length or 0, else clear", field="*", rule="error_field"),
    Ruling("vendor-error", "cqe", "11.6: vendor specific", "row of errors.py whose status it is", field="vendor_err",
           rule="vendor_error"),
)


def rulings_for(profile="standard"):
    """Rulings that hold in a profile; ValueError names an unknown one."""
    if profile not in ("standard", "rxe"):
        raise ValueError(f"profile must be standard or rxe, not {profile!r}")
    return [r for r in RULINGS if profile in r.profiles]
