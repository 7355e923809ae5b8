# SPDX-License-Identifier: BSD-2-Clause
"""Conditions of rulings (test/reference/rulings.py): what must hold where an engine differs from a capture.

A History follows what is fed to the side that is played: which requests are in order, which are duplicates, what memory held.
FrameConditions are asked by a FrameMatcher, CompletionConditions by compare_completions().
"""
from collections import namedtuple

from roce_soc import opcodes as op
from roce_soc import verbs
from roce_soc.errors import ERRORS

ACKREQ_EVERY = 256      # packets in which at least one asks for an ACK.
RECEIVING    = ("SEND", "SEND_WITH_IMM", "SEND_WITH_INV", "RDMA_WRITE_WITH_IMM")

Accepted = namedtuple("Accepted", "packet last_psn msn writes")


def is_ack(packet):
    """True for an ACKNOWLEDGE that is no NAK."""
    return packet.name == "RC_ACKNOWLEDGE" and op.syndrome_class(packet.syndrome) == "ACK"


def is_read(packet):
    """True for a READ request."""
    return packet.name == "RC_READ_REQUEST"


class Requests:
    """Requests that a QP was fed, as a responder sees them."""
    def __init__(self, rq_psn, pmtu, fills):
        self.epsn, self.pmtu, self.fills = rq_psn, pmtu, fills
        self.accepted, self.duplicates, self.writes = [], [], []     # writes: (PSN, address, bytes).
        self.bad_sums, self.at = 0, 0

    @property
    def msn(self):
        """Messages taken so far."""
        return self.accepted[-1].msn if self.accepted else 0

    def feed(self, packet):
        """A request; True where it is a duplicate."""
        row = op.OPCODES.get(packet.opcode)
        if row is None or packet.tver or packet.pkey & 0x7fff != 0x7fff or packet.icrc_ok is False:
            return False
        self.bad_sums += not packet.udp_checksum_ok
        order = op.psn_diff(packet.psn, self.epsn)
        if order < 0:
            self.duplicates.append(packet)
        if order:
            return order < 0
        count = op.packets(packet.dma_length, self.pmtu) if is_read(packet) else 1
        ends  = row.ends or row.kind in ("READ_REQUEST", "CMP_SWAP", "FETCH_ADD")
        last  = (packet.psn + count - 1) & op.PSN_MASK
        if row.kind == "WRITE":
            self.at = packet.va if row.starts else self.at
            self.writes.append((packet.psn, self.at, packet.payload))
            self.at += len(packet.payload)
        self.accepted.append(Accepted(packet, last, (self.msn + bool(ends)) & op.PSN_MASK, len(self.writes)))
        self.epsn = (last + 1) & op.PSN_MASK
        return False

    def refused(self, psn):
        """A NAK was sent: nothing from this PSN on was taken."""
        while self.accepted and op.psn_diff(self.accepted[-1].last_psn, psn) >= 0:
            self.accepted.pop()
        while self.writes and op.psn_diff(self.writes[-1][0], psn) >= 0:
            self.writes.pop()
        if op.psn_diff(psn, self.epsn) < 0:
            self.epsn = psn

    def covering(self, psn):
        """What was accepted with this PSN, or None."""
        return next((a for a in self.accepted if op.psn_diff(psn, a.packet.psn) >= 0 and op.psn_diff(psn, a.last_psn) <= 0), None)

    def msn_may_be(self, psn, msn):
        """Between the messages up to a PSN and those taken so far."""
        entry = self.covering(psn)
        return entry is not None and 0 <= op.psn_diff(msn, entry.msn) and op.psn_diff(msn, self.msn) <= 0

    def byte_may_be(self, entry, va, value):
        """What memory held before or after a WRITE that came behind a READ; False where none came."""
        def last(writes):
            return next((data[va - at] for at, data in reversed(writes) if at <= va < at + len(data)), None)
        after  = [data[va - at] for _, at, data in self.writes[entry.writes:] if at <= va < at + len(data)]
        before = last(self.fills + [w[1:] for w in self.writes[:entry.writes]]) or 0
        return bool(after) and value in (before, *after)


class History:
    """What the played side was fed and filled with so far, by QP, and what is known of its work.

    constants : values that a QP's frames must all have: {(field, key): value}.
    duplicates : frame number of an own frame -> duplicates that the capture feeds right before its run.
    """
    def __init__(self, capture, side):
        self.capture, self.side   = capture, side
        self.constants, self.fills = {}, []
        pairs         = capture.queue_pairs(side)
        self.pairs    = {qp["qpn"]: qp for qp in pairs}
        self.by_peer  = {qp["dest_qpn"]: qp for qp in pairs}
        self.requests = self._fresh()
        self.duplicates, batch, own = {}, 0, True
        walk = self._fresh()
        for frame in capture.frames[side]:
            packet = frame.packet
            if frame.sender == side:
                self.duplicates[frame.number], own = batch, True
                self._sent(walk, packet)
                continue
            batch, own = 0 if own else batch, False
            if self._is_request(packet) and packet.dest_qpn in walk:
                batch += walk[packet.dest_qpn].feed(packet)

    def _fresh(self):
        return {qpn: Requests(qp["rq_psn"], qp["pmtu"], self.fills) for qpn, qp in self.pairs.items()}

    @staticmethod
    def _is_request(packet):
        row = op.OPCODES.get(packet.opcode)
        return row is not None and not row.is_response

    def fill(self, va, data):
        """The own program wrote."""
        self.fills.append((va, data))

    def feed(self, packet):
        """A frame went in."""
        if self._is_request(packet) and packet.dest_qpn in self.requests:
            self.requests[packet.dest_qpn].feed(packet)

    def sent(self, packet):
        """The engine sent a frame."""
        self._sent(self.requests, packet)

    def _sent(self, requests, packet):
        if packet.name == "RC_ACKNOWLEDGE" and not is_ack(packet) and packet.dest_qpn in self.by_peer:
            requests[self.by_peer[packet.dest_qpn]["qpn"]].refused(packet.psn)

    def of(self, packet):
        """Requests of the QP that sent a packet."""
        return self.requests.get(self.by_peer.get(packet.dest_qpn, {}).get("qpn"))

    def event(self, number):
        """Event by number, or None."""
        return next((e for e in self.capture.events if e.get("n") == number), None)

    def signalled(self, frame):
        """True where the work request of an own frame asks for a completion, or is not known."""
        post = self.event(frame.post)
        pair = self.by_peer.get(frame.packet.dest_qpn)
        return post is None or pair is None or pair["sq_sig_all"] or "SIGNALED" in post["flags"]

    def receive_of(self, post):
        """Receive of the played side that a post of the other one uses, or None."""
        other = "b" if self.side == "a" else "a"
        posts = [e["n"] for e in self.capture.posts(other, post["qp"]) if e["opcode"] in RECEIVING]
        ready = [e for e in self.capture.events if e["ev"] == "post_recv" and e["side"] == self.side and e["qp"] == post["qp"]]
        return ready[posts.index(post["n"])] if post["n"] in posts and posts.index(post["n"]) < len(ready) else None

    def post_of(self, receive):
        """Post of the other side that uses a receive of the played one, or None."""
        other = "b" if self.side == "a" else "a"
        return next((p for p in self.capture.posts(other, receive["qp"]) if self.receive_of(p) is receive), None)


class FrameConditions:
    """Mixin of FrameMatcher: what `rule` of a ruling names."""
    # Fields: packet may differ from frame `index` in the ruling's field.

    def _rule_source_port(self, index, packet):
        """That it is one for all frames of a QP is looked at for every frame."""
        return packet.sport >= op.UDP_SPORT_BASE

    def _rule_ackreq(self, index, packet):
        """Asked for where the capture does not, or not where nothing demands it."""
        if packet.ackreq:
            return True
        frame, row = self.expected[index], op.OPCODES[packet.opcode]
        ends     = row.ends or row.kind in ("READ_REQUEST", "CMP_SWAP", "FETCH_ADD")
        follows  = index + 1 < len(self.expected) and self.expected[index + 1].number == frame.number + 1
        repeated = any(f.packet.psn == packet.psn for f in self.expected[:index])
        if (ends and (self.history is None or self.history.signalled(frame))) or (repeated and not follows):
            return False
        return self.unasked < ACKREQ_EVERY

    def _rule_msn(self, index, packet):
        """Both not less than the messages up to the packet's PSN, not more than have come."""
        requests = self.history and self.history.of(packet)
        frame    = self.expected[index].packet
        msns     = [packet.msn] + [frame.msn]*(frame.opcode == packet.opcode)
        return requests is not None and all(requests.msn_may_be(packet.psn, msn) for msn in msns)

    def _rule_written_behind(self, index, packet):
        """Each other byte is one that memory held before or after a WRITE behind the READ."""
        frame    = self.expected[index].packet
        requests = self.history and self.history.of(packet)
        entry    = requests and requests.covering(packet.psn)
        if not entry or not is_read(entry.packet) or len(frame.payload) != len(packet.payload):
            return False
        va = entry.packet.va + op.psn_diff(packet.psn, entry.packet.psn)*requests.pmtu
        return all(a == b or requests.byte_may_be(entry, va + n, b)
            for n, (a, b) in enumerate(zip(frame.payload, packet.payload)))

    def _rule_short_receive(self, index, packet):
        """The refused SEND is longer than its receive."""
        post    = self.history and self.history.event(self.expected[index].post)
        receive = post and self.history.receive_of(post)
        return receive is not None and post["opcode"].startswith("SEND") and post["length"] > receive["length"]

    # Opcode.

    def _rule_read_restart(self, index, packet):
        """MIDDLE/LAST of the capture, FIRST/ONLY of ours, where a repeated READ's answer begins."""
        pairs    = {op.RC_READ_RESPONSE_MIDDLE: op.RC_READ_RESPONSE_FIRST, op.RC_READ_RESPONSE_LAST: op.RC_READ_RESPONSE_ONLY}
        frame    = self.expected[index]
        requests = self.history and self.history.of(packet)
        return (pairs.get(frame.packet.opcode) == packet.opcode and requests is not None
                and any(is_read(d) and d.psn == packet.psn for d in requests.duplicates)
                and packet.syndrome == op.ACK_UNLIMITED and requests.msn_may_be(packet.psn, packet.msn))

    # Frames that miss when `packet` (None: nothing) comes.

    def _rule_coalesced_ack(self, index, packet):
        """An ACK that a later ACK of ours covers, and no repeat of the one before."""
        expected = self.expected[index].packet
        before   = self.expected[index - 1].packet if index else None
        if not is_ack(expected) or packet is None or packet.name != "RC_ACKNOWLEDGE":
            return False
        return op.psn_diff(packet.psn, expected.psn) > 0 and (before is None or before.psn != expected.psn)

    def _rule_duplicate_ack(self, index, packet):
        """An ACK of a run that answers duplicates, of which another one, not older, came or is to come."""
        frame, run = self.expected[index], []
        duplicates = self.history.duplicates.get(frame.number, 0) if self.history else 0
        if not is_ack(frame.packet) or not duplicates:
            return False
        for step in (-1, 1):
            k = index + step
            while 0 <= k < len(self.expected) and is_ack(self.expected[k].packet) \
                    and self.expected[k].number - self.expected[k - step].number == step:
                run.append(k)
                k += step
        left_out = sum(k < index and not self.matched[k] for k in run)
        return left_out < duplicates and any(op.psn_diff(self.expected[k].packet.psn, frame.packet.psn) >= 0
            and (self.matched[k] if k < index else packet is not None) for k in run)

    def _rule_nak_after_rnr(self, index, packet):
        """A sequence NAK for the packet that an RNR NAK has just refused."""
        psn = self.expected[index].packet.psn
        while index and self.expected[index].packet.syndrome == op.NAK_PSN_SEQUENCE \
                and self.expected[index].packet.name == "RC_ACKNOWLEDGE":
            index -= 1
            before = self.expected[index].packet
            if before.name != "RC_ACKNOWLEDGE" or before.psn != psn:
                return False
            if op.syndrome_class(before.syndrome) == "RNR":
                return True
        return False

    # Frames that come and the capture lacks.

    def _rule_repeated_ack(self, index, packet):
        """The last ACK once more, for the repeat of a packet whose UDP checksum was wrong."""
        before   = self.expected[index - 1].packet if index else None
        requests = self.history and self.history.of(packet)
        return (before is not None and is_ack(before) and requests is not None and self.extras < requests.bad_sums
                and any(op.psn_diff(d.psn, packet.psn) <= 0 for d in requests.duplicates)
                and self.equal_but(before, packet, index - 1))


class CompletionConditions:
    """Conditions of completions: `want` of the capture, `got` of the engine, `work` the event that posted it."""
    def __init__(self, history):
        self.history = history

    def hold(self, rule, *arguments):
        """True where the condition of that name holds."""
        return getattr(self, "_rule_" + rule)(*arguments)

    @staticmethod
    def _is_receive(work):
        return work is not None and work["ev"] == "post_recv"

    def _rule_no_grh(self, name, want, got, work):
        """The capture's receive has the flag, the QP is not UD, the engine's has not."""
        return (self._is_receive(work) and not want.get("src_qpn")
                and set(want.get("flags") or ()) - set(got.get("flags") or ()) == {"GRH"}
                and not set(got.get("flags") or ()) - set(want.get("flags") or ()))

    def _rule_sender_length(self, name, want, got, work):
        """Where nothing is received: the work request's, or 0."""
        return (work is not None and not self._is_receive(work) and got.get("byte_len") in (None, 0, work.get("length"))
                and want["opcode"] not in ("RDMA_READ", "COMP_SWAP", "FETCH_ADD"))

    def _rule_sender_flags(self, name, want, got, work):
        """A send completion without flags."""
        return work is not None and not self._is_receive(work) and not got.get("flags")

    def _rule_error_field(self, name, want, got, work):
        """Opcode of the work request, length its own or 0, nothing else."""
        if want["status"] == "SUCCESS" or work is None:
            return False
        if name == "opcode" and self._is_receive(work):
            post = self.history.post_of(work)
            return got["opcode"] == "RECV" or (got["opcode"] == "RECV_RDMA_WITH_IMM" and post is not None
                and post["opcode"] == "RDMA_WRITE_WITH_IMM")
        if name == "opcode":
            names = {n: number for number, n in verbs.WR_NAMES.items()}
            return got["opcode"] == verbs.WC_OPCODE_NAMES.get(verbs.WC_OF_WR.get(names.get(work["opcode"])))
        if name == "byte_len":
            return got.get("byte_len") in (None, 0, work.get("length"))
        return name in ("imm", "inv_rkey", "src_qpn", "flags") and not got.get(name)

    def _rule_vendor_error(self, name, want, got, work):
        """A row of errors.py that ends with this status."""
        return any(row.index == got["vendor_err"] and row.local_status is not None
            and verbs.WC_STATUS_NAMES[row.local_status] == got["status"] for row in ERRORS.values() if got["status"] != "SUCCESS")

    def _rule_short_receive(self, name, want, got, work):
        """The message is longer than this receive."""
        post = self.history.post_of(work) if self._is_receive(work) else None
        return post is not None and post["opcode"].startswith("SEND") and post["length"] > work["length"]

    def _rule_receive_key(self, name, want, got, work):
        """The receive's key does not let its bytes be written."""
        if not self._is_receive(work):
            return False
        qp     = next(q for q in self.history.pairs.values() if q["name"] == work["qp"])
        region = next((r for r in self.history.capture.regions(self.history.side) if r["key"] == work["lkey"]), None)
        return region is None or not region["access"] & verbs.ACCESS_LOCAL_WRITE or region["pd"] != qp["pd"] \
            or not region["va"] <= work["va"] <= work["va"] + work["length"] <= region["va"] + region["length"]
