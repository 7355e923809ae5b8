# SPDX-License-Identifier: BSD-2-Clause
"""What must pass in time while a capture is played: waits before repetitions, and what completions come after.

Ref: InfiniBand Architecture vol. 1 ch. 9.7.5.2.8 (RNR wait), 9.7.6.1.3 (ACK time-out: at least T, at most 4T).
"""
from collections import namedtuple

from roce_soc import opcodes as op

LONGEST = 4            # times the nominal wait.
SLACK   = 500_000      # ns beside that for the way through an engine.
# Work requests that complete with data of their own.
ANSWERED = ("RDMA_READ", "ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD")

Wait = namedtuple("Wait", "what ns earliest latest")     # earliest, latest: frames from which it may count.


def is_response(packet):
    """True for ACKNOWLEDGE and whatever else answers."""
    row = op.OPCODES.get(packet.opcode)
    return row is not None and row.is_response


class Waits:
    """Which own frames of a capture stand behind a timer, and whether the engine kept to it.

    `before` holds {number of a frame: Wait}: requests that are sent again after an RNR wait or an ACK time-out. A sequence NAK
    that comes while an RNR wait runs does not end it; an answer to the refused PSN or beyond does.
    """
    def __init__(self, capture, side):
        self.before, self.times = {}, {}
        pairs = {qp["dest_qpn"]: qp for qp in capture.queue_pairs(side)}
        own_of = {qp["qpn"]: peer for peer, qp in pairs.items()}
        self.last, self.timeouts = {}, {qp["qpn"]: op.ack_timeout_ns(qp["timeout"]) for qp in capture.queue_pairs(side)}
        states = {peer: {"low": None, "last": None, "end": None, "refused": None, "owed": {}} for peer in pairs}
        for frame in capture.frames[side]:
            packet, own = frame.packet, frame.sender == side
            peer = packet.dest_qpn if own else own_of.get(packet.dest_qpn)
            if peer not in states or own == is_response(packet) or packet.icrc_ok is False:
                continue                       # another QP's, the QP's other half, or nobody's.
            if own:
                self._request(states[peer], frame, pairs[peer])
                self.last[pairs[peer]["qpn"]] = frame.number
            else:
                self._response(states[peer], frame)
            states[peer]["last"] = frame

    def _request(self, state, frame, qp):
        packet = frame.packet
        count  = op.packets(packet.dma_length, qp["pmtu"]) if packet.name == "RC_READ_REQUEST" else 1
        if state["end"] is not None and op.psn_diff(packet.psn, state["end"]) <= 0:
            ack = op.ack_timeout_ns(qp["timeout"])
            refused = state["refused"]
            if refused:
                self.before[frame.number] = Wait("RNR wait", op.RNR_TIMER_10US[refused.packet.syndrome & op.SYNDROME_VALUE_MASK]*10_000,
                    refused.number, refused.number)
            elif 0 < ack <= 2*(frame.time_ns - state["last"].time_ns):
                self.before[frame.number] = Wait("ACK time-out", ack, state["low"], state["last"].number)
            state.update(refused=None, low=frame.number)
        elif state["low"] is None:
            state["low"] = frame.number
        state["end"] = (packet.psn + count - 1) & op.PSN_MASK
        if packet.name in ("RC_READ_REQUEST", "RC_CMP_SWAP", "RC_FETCH_ADD"):
            state["owed"].setdefault(state["end"], packet.psn)     # last PSN: PSN of the data that is to come next.

    @staticmethod
    def _response(state, frame):
        packet, refused = frame.packet, state["refused"]
        kind = op.syndrome_class(packet.syndrome) if "AETH" in packet.headers else "ACK"
        last, due = next(iter(state["owed"].items()), (None, None))
        if packet.name != "RC_ACKNOWLEDGE" and packet.psn == due:
            state["owed"][last] = (due + 1) & op.PSN_MASK
            if due == last:
                del state["owed"][last]
        if kind == "RNR":
            # Behind data that is still owed it says that this data was lost, no more.
            if not any(op.psn_diff(packet.psn, owed) > 0 for owed in state["owed"]):
                state["refused"] = frame
        elif kind == "ACK":
            state["low"] = frame.number
            if refused and op.psn_diff(packet.psn, refused.packet.psn) >= 0:
                state["refused"] = None

    def passed(self, number, ns):
        """Frame `number` went in or out at `ns`; text of what is wrong with that, or None."""
        self.times[number] = ns
        wait = self.before.get(number)
        if wait is None or not {wait.earliest, wait.latest} <= self.times.keys():
            return None
        longest, shortest = ns - self.times[wait.earliest], ns - self.times[wait.latest]
        if longest < wait.ns - wait.ns//64:
            return f"{wait.what} of {wait.ns} ns: frame {number} came after {longest} ns"
        if shortest > LONGEST*wait.ns + SLACK:
            return f"{wait.what} of {wait.ns} ns: frame {number} came after {shortest} ns"
        return None

    def exceeded(self, completion):
        """Text of what is wrong with the time of a completion that tells that retries are used up, or None.

        It comes a time-out behind the last repetition; what the engine's program sees may be a moment later.
        """
        ack, last = self.timeouts.get(completion["qpn"]), self.times.get(self.last.get(completion["qpn"]))
        if completion["status"] != "RETRY_EXC_ERR" or not ack or last is None or "ns" not in completion:
            return None
        after = completion["ns"] - last
        if ack - ack//64 <= after <= LONGEST*ack + SLACK:
            return None
        return f"ACK time-out of {ack} ns: RETRY_EXC_ERR came {after} ns after the last repetition"


class Causes:
    """Which fed frames a good completion stands behind.

    Frames that are fed with nothing of the own side between them are a batch: they have no order towards completions.
    """
    def __init__(self, capture, side, history):
        self.fed, self.windows = 0, {}
        batch, own, fed = 0, False, []
        for frame in capture.frames[side]:
            if frame.sender == side:
                own = True
                continue
            batch, own = batch + own, False
            fed.append((batch, frame.packet))
        self.batches = [b for b, _ in fed]
        fed = [(n, p) for n, (_, p) in enumerate(fed) if p.icrc_ok is not False]
        for qp in capture.queue_pairs(side):
            if qp["qp_type"] != "RC":
                continue
            mine = [(n, p) for n, p in fed if p.dest_qpn == qp["qpn"]]
            low = high = -1                     # completions of a send queue stand in the order of its posts.
            for event in capture.posts(side, qp["name"]):
                end = (event["psn"] + event["psns"] - 1) & op.PSN_MASK
                at  = [n for n, p in mine if is_response(p) and self._answers(event, end, p)]
                if at:
                    # What acknowledges a post before the data of an earlier one is there, is not heard.
                    heard     = at[-1:] if event["opcode"] in ANSWERED else [n for n in at if n >= high] or at[-1:]
                    low, high = max(low, at[0]), max(high, heard[0])
                self._window(qp["qpn"], event["wr_id"], [low, high] if at else [])
            for event in capture.events:
                if event["ev"] == "post_recv" and event["side"] == side and event["qp"] == qp["name"]:
                    post = history.post_of(event)
                    end  = None if post is None else (post["psn"] + post["psns"] - 1) & op.PSN_MASK
                    self._window(qp["qpn"], event["wr_id"], [n for n, p in mine if not is_response(p) and p.psn == end])

    @staticmethod
    def _answers(event, end, packet):
        """True where a response may be what completes a post: READs and atomics need their own data, others all that acknowledges
        their last PSN; a NAK acknowledges what is before its own."""
        ahead = op.psn_diff(packet.psn, end)
        if event["opcode"] in ANSWERED:
            return ahead == 0 and packet.name != "RC_ACKNOWLEDGE"
        nak = "AETH" in packet.headers and op.syndrome_class(packet.syndrome) != "ACK"
        return ahead > 0 or ahead == 0 and not nak

    def _window(self, qpn, wr_id, at):
        # A number that both queues use says nothing.
        self.windows[qpn, wr_id] = (self.batches[at[0]], self.batches[at[-1]]) if at and (qpn, wr_id) not in self.windows else None

    def feed(self):
        """One more frame went in."""
        self.fed += 1

    def early(self, completion):
        """True where nothing that has gone in can be the cause of a completion."""
        window = self.windows.get((completion["qpn"], completion["wr_id"]))
        now    = self.batches[self.fed - 1] if self.fed else -1
        return completion["status"] == "SUCCESS" and window is not None and window[0] > now

    def disorder(self, completions):
        """Two completions of one QP, whatever their queues, that came in another order than their causes; or None."""
        latest = {}
        for completion in completions:
            window = self.windows.get((completion["qpn"], completion["wr_id"]))
            if completion["status"] != "SUCCESS" or window is None:
                continue
            before = latest.get(completion["qpn"])
            if before and window[1] < before[0]:
                return before[1], completion
            if not before or window[0] > before[0]:
                latest[completion["qpn"]] = window[0], completion
        return None
