# SPDX-License-Identifier: BSD-2-Clause
"""Which asynchronous events a play may raise, and behind what.

Captures hold none: what is right follows from the states in which their queue pairs end.

Ref: InfiniBand Architecture vol. 1 ch. 11.6.3 (asynchronous events); queue pairs are in RTS before the first frame.
"""
from roce_soc import opcodes as op

FAILED = ("QP_FATAL", "QP_REQ_ERR", "QP_ACCESS_ERR")


def is_fatal(packet):
    """True for the NAKs that end a queue pair at both ends."""
    return packet.name == "RC_ACKNOWLEDGE" and packet.icrc_ok is not False \
        and op.syndrome_class(packet.syndrome) == "NAK" and packet.syndrome != op.NAK_PSN_SEQUENCE


class Events:
    """Events of one side against the end of its queue pairs.

    A queue pair that ends in ERR raises one event of FAILED, not before the frame that ended it; another none. A completion event
    has its completion in the queue. Nothing else may be raised: none is in RTR or SQD, no queue overflows, no link falls.
    """
    def __init__(self, capture, side):
        self.fed, self.seen = 0, []
        self.states, self.least = {}, {}
        peers = {qp["dest_qpn"]: qp["qpn"] for qp in capture.queue_pairs(side)}
        for event in capture.events:
            if event["ev"] == "qp_state" and event["side"] == side:
                self.states[capture.qpn(side, event["qp"])] = event["state"]
        fed = 0
        for frame in capture.frames[side]:
            own  = frame.sender == side
            fed += not own
            qpn  = peers.get(frame.packet.dest_qpn) if own else frame.packet.dest_qpn
            if is_fatal(frame.packet):
                self.least.setdefault(qpn, fed)

    def feed(self):
        """One more frame went in."""
        self.fed += 1

    def told(self, name, qpn):
        """An event came: text of what is wrong with it, or None."""
        if name == "COMPLETION":
            return None
        if name == "BARE_COMPLETION":
            return f"event of QP {qpn:#x}'s completion queue before its completion"
        if name not in FAILED:
            return f"event {name} of QP {qpn:#x}, which nothing calls for"
        if qpn in self.seen:
            return f"event {name} of QP {qpn:#x}, which has failed before"
        self.seen.append(qpn)
        if self.states.get(qpn, "ERR") != "ERR":
            return f"event {name} of QP {qpn:#x}, which ends in {self.states[qpn]}"
        if self.fed < self.least.get(qpn, 0):
            return f"event {name} of QP {qpn:#x} before the frame that ends it"
        return None

    def missing(self):
        """Texts: queue pairs that ended without an event."""
        return [f"no event of QP {qpn:#x}, which ends in ERR" for qpn, state in self.states.items()
            if state == "ERR" and qpn not in self.seen]
