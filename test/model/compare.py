# SPDX-License-Identifier: BSD-2-Clause
"""Compares what an engine did with what a capture says, under rulings; prints the first difference.

Frames of a QP are matched in order: FrameMatcher.add(packet) takes what the engine sent, waiting()
says whether frames that are due are missing, finish() closes. compare_completions() and
compare_memory() judge the rest. Every ruling used is counted by name; its condition is in conditions.py.
"""
import hashlib
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from roce_soc import opcodes as op
from roce_soc.opcodes import EXT_HEADERS
from test.model.conditions import FrameConditions

NETWORK_FIELDS = ("dst_mac", "src_mac", "vlan", "ip_version", "src_ip", "dst_ip", "tos", "ttl", "flow_label",
                  "ip_id", "ip_flags", "sport", "dport", "udp_checksum")
BTH_FIELDS     = tuple(name for name, _ in op.BTH)
HEX_FIELDS     = ("va", "rkey", "inv_rkey", "imm", "psn", "dest_qpn", "pkey", "syndrome", "opcode", "sport",
                  "ip_id", "qkey", "src_qp", "original", "swap_add", "compare")


@dataclass
class Report:
    """Outcome of one play: differences (text, first one first), rulings used, what was compared."""
    capture     : str
    side        : str
    profile     : str
    differences : list    = field(default_factory=list)
    rulings     : Counter = field(default_factory=Counter)
    frames      : int = 0
    completions : int = 0
    memory      : int = 0

    @property
    def ok(self):
        """True where nothing differs."""
        return not self.differences

    def text(self):
        """Report for people."""
        head = f"{self.capture} as {self.side} ({self.profile}): "
        head += f"{self.frames} frames, {self.completions} completions, {self.memory} memory checks"
        used = ", ".join(f"{name} x{number}" for name, number in sorted(self.rulings.items()))
        lines = [head + (", agrees" if self.ok else ", DIFFERS"), f"  rulings used: {used or 'none'}"]
        return "\n".join(lines + self.differences[:1])

    def as_dict(self):
        """Report for programs."""
        return {"capture": self.capture, "side": self.side, "profile": self.profile, "ok": self.ok,
                "frames": self.frames, "completions": self.completions, "memory": self.memory,
                "rulings": dict(self.rulings), "differences": self.differences}


# Frames -------------------------------------------------------------------------------------------

def show(name, value):
    """A field's value for people."""
    if isinstance(value, bytes):
        return value.hex() if len(value) <= 16 else f"{len(value)} B {value[:16].hex()}.."
    return f"{value:#x}" if name in HEX_FIELDS and isinstance(value, int) else str(value)


def field_names(packet):
    """Fields that a packet of this opcode has, in the order in which they are compared."""
    names = ("opcode", "psn", "dest_qpn") + tuple(
        name for header in packet.headers for name, _ in EXT_HEADERS[header])
    return names + ("payload", "pad_bytes") + BTH_FIELDS[1:] + NETWORK_FIELDS + ("trailer",)


def differing(expected, actual):
    """[(field, expected value, actual value)] of two packets; opcode alone where that differs."""
    if expected.opcode != actual.opcode:
        return [("opcode", expected.opcode, actual.opcode)]
    result, seen = [], set()
    for name in field_names(expected):
        a, b = getattr(expected, name), getattr(actual, name)
        if a != b and name not in seen:
            result.append((name, a, b))
        seen.add(name)
    return result


def malformed(packet):
    """Text of what is wrong with a frame that an engine sent, or None."""
    if not packet.icrc_ok:
        return f"ICRC {packet.icrc:#010x} is wrong"
    if not packet.ip_checksum_ok:
        return f"IPv4 header checksum {packet.ip_checksum:#06x} is wrong"
    if any(packet.trailer) or (packet.trailer and packet.ip_length + 14 + (4 if packet.vlan is not None else 0)
                               + (40 if packet.ip_version == 6 else 0) >= 60):
        return f"bytes after the datagram: {packet.trailer.hex()}"
    return None


# Fields that all frames of a QP (UD: of an address handle) have in common, and what they are called.
CONSTANT = (("sport", "source port"), ("m", "MigReq"))


class FrameMatcher(FrameConditions):
    """Matches what an engine sends on one QP with the frames of the capture, in order; `history` is of the whole play."""
    def __init__(self, expected, rulings, report, history=None):
        self.expected, self.rulings, self.report, self.history = expected, rulings, report, history
        self.constants = history.constants if history else {}
        self.next, self.due = 0, 0
        self.unasked, self.extras = 0, 0     # requests since one asked for an ACK; frames beyond the capture.
        self.matched = [False]*len(expected)

    def waiting(self):
        """True while frames that are due have not come."""
        return self.next < self.due

    def add(self, packet):
        """A packet that the engine sent; returns the frame of the capture that it is, or None."""
        wrong = malformed(packet)
        if wrong:
            return self._differ(f"sent a malformed frame: {wrong}", None, packet)
        for name, text in CONSTANT:
            key   = (name, packet.src_qp, packet.dest_qpn if "DETH" not in packet.headers else packet.dst_mac, packet.dst_ip)
            first = self.constants.setdefault(key, getattr(packet, name))
            if getattr(packet, name) != first:
                return self._differ(f"changed its {text}, {show(name, first)} before", None, packet)
        index, skipped = self.next, []
        while index < len(self.expected):
            allowed = self._allowed(index, packet)
            if allowed is not None:
                self.report.rulings.update(skipped + allowed)
                self.matched[index], self.next = True, index + 1
                self.report.frames += 1
                self.unasked = 0 if packet.ackreq else self.unasked + 1
                if self.history:
                    self.history.sent(packet)
                return self.expected[index]
            ruling = self._absent(index, packet)
            if ruling is None:
                break
            skipped.append(ruling)
            index += 1
        extra = self._extra(packet)
        if extra is not None:
            self.report.rulings[extra] += 1
            self.extras += 1
            return None
        if self.next >= len(self.expected):
            return self._differ("sent a frame that the capture lacks", None, packet)
        self._differ("sent another frame than the capture", self.expected[self.next], packet)
        self.matched[self.next] = True
        self.next += 1
        return None

    def skip_due(self):
        """Nothing more comes: pass over due frames that rulings let miss; False where one may not."""
        while self.waiting():
            ruling = self._absent(self.next, None)
            if ruling is None:
                self._differ("did not send a frame of the capture", self.expected[self.next], None)
                self.next += 1
                return False
            self.report.rulings[ruling] += 1
            self.next += 1
        return True

    def finish(self):
        """End of the capture: everything is due."""
        self.due = len(self.expected)
        while not self.skip_due():
            pass

    # Rulings --------------------------------------------------------------------------------------

    def _holds(self, ruling, index, packet):
        return not ruling.rule or getattr(self, "_rule_" + ruling.rule)(index, packet)

    def _allowed(self, index, packet):
        """Names of the rulings under which frame `index` and `packet` are the same, None where not."""
        expected, used = self.expected[index].packet, []
        ours = packet
        if expected.opcode != packet.opcode:
            ruling = next((r for r in self.rulings if r.kind == "opcode" and self._holds(r, index, packet)), None)
            if ruling is None:
                return None
            ours = packet.copy(opcode=expected.opcode)
            used.append(ruling.name)
        for name, theirs, value in differing(expected, ours):
            ruling = next((r for r in self.rulings if self._covers(r, expected, name, theirs, value, index, packet)), None)
            if ruling is None:
                return None
            used.append(ruling.name)
        return used

    def _covers(self, ruling, expected, name, theirs, value, index, packet):
        if ruling.opcodes and not any(fnmatchcase(expected.name, pattern) for pattern in ruling.opcodes):
            return False
        if ruling.kind == "field":
            return ruling.field == name and self._holds(ruling, index, packet)
        return ruling.kind == "value" and (ruling.field, ruling.value, ruling.ours_value) == (name, theirs, value) \
            and self._holds(ruling, index, packet)

    def equal_but(self, expected, packet, index):
        """True where two packets differ only in fields of which rulings say so."""
        return all(any(self._covers(r, expected, *fields, index, packet) for r in self.rulings)
            for fields in differing(expected, packet))

    def _absent(self, index, packet):
        """Name of the ruling that lets frame `index` miss when `packet` (None: nothing) comes, or None."""
        return next((r.name for r in self.rulings if r.kind == "absent" and self._holds(r, index, packet)), None)

    def _extra(self, packet):
        """Name of the ruling that lets a frame come that the capture lacks, or None."""
        return next((r.name for r in self.rulings if r.kind == "extra" and self._holds(r, self.next, packet)), None)

    def _differ(self, text, frame, packet):
        lines = [f"  {self.report.side} {text}"]
        if frame is not None:
            lines.append(f"    capture, frame {frame.number}: {frame.packet.describe()}")
        if packet is not None:
            lines.append(f"    engine:           {packet.describe()}")
        if frame is not None and packet is not None:
            for name, theirs, value in differing(frame.packet, packet):
                index = self.expected.index(frame)
                if not any(self._covers(r, frame.packet, name, theirs, value, index, packet) for r in self.rulings):
                    lines.append(f"    {name}: capture {show(name, theirs)}, engine {show(name, value)}")
        self.report.differences.append("\n".join(lines))


# Completions --------------------------------------------------------------------------------------

COMPLETION_FIELDS = ("wr_id", "status", "opcode", "byte_len", "imm", "inv_rkey", "src_qpn", "flags", "vendor_err")


def compare_completions(label, expected, actual, works, conditions, rulings, report):
    """Completions of one queue, in order: dicts with COMPLETION_FIELDS, names for numbers, flags a set.

    works : {wr_id: event that posted it}; conditions : CompletionConditions.
    """
    rulings = [r for r in rulings if r.kind == "cqe"]
    for number, (want, got) in enumerate(zip(expected, actual)):
        report.completions += 1
        for name in COMPLETION_FIELDS:
            a, b = want.get(name), got.get(name)
            if name == "flags":
                a, b = set(a or ()), set(b or ())
            if a == b or (a in (None, 0) and b in (None, 0)):
                continue
            ruling = next((r for r in rulings if r.field in (name, "*")
                and (r.ours_value is None or (r.value, r.ours_value) == (a, b))
                and conditions.hold(r.rule, name, want, got, works.get(want["wr_id"]))), None)
            if ruling is None:
                report.differences.append(f"  {report.side} {label} completion {number + 1} (wr_id {want['wr_id']}): "
                                          f"{name}: capture {a!r}, engine {b!r}")
            else:
                report.rulings[ruling.name] += 1
    for text, rest in (("did not complete", expected[len(actual):]), ("completed beyond the capture", actual[len(expected):])):
        for completion in rest:
            report.differences.append(f"  {report.side} {label} {text}: wr_id {completion['wr_id']} {completion['status']}")


# Memory -------------------------------------------------------------------------------------------

def compare_memory(event, read, report):
    """Bytes of a memory event (hex or sha256) against read(va, length); `changed` narrows a difference."""
    report.memory += 1
    if _holds(event, read):
        return
    where = [f"{c['va']:#x}+{c['length']}" for c in event.get("changed") or () if not _holds(c, read)]
    text  = f"in {', '.join(where)}" if where else "outside what the capture says changed"
    if event.get("hex") is not None:
        text = f"capture {event['hex']}, engine {read(event['va'], event['length']).hex()}"
    report.differences.append(f"  {report.side} memory {event['va']:#x}+{event['length']} differs: {text}")


def _holds(entry, read):
    data = read(entry["va"], entry["length"])
    if entry.get("hex") is not None:
        return data.hex() == entry["hex"]
    return hashlib.sha256(data).hexdigest() == entry["sha256"]
