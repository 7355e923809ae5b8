# SPDX-License-Identifier: BSD-2-Clause
"""An engine takes one side of a capture; play() returns a Report.

The other side's frame is fed when every frame that our side sent before it in the capture has come,
or may miss by a ruling. Time is the engine's own: where a frame is due and nothing comes, wait() lets
its timers run.

An engine has these methods (ModelEngine below is the reference model; a compiled engine does the same):

    setup(capture, side)        make capture.regions(side) and connect capture.queue_pairs(side)
    fill(mr, va, data)          own program writes data into the region called `mr`
    read(mr, va, length)        bytes of a region as the own program sees them (regions may share addresses)
    post_recv(qpn, event)       wr_id, va, length, lkey
    post_send(qpn, fields, event)   fields of test.model.qp.SendRequest; BIND_MW: see event
    feed(frame)                 a frame arrives; several may be fed before the next frames()
    frames()                    [(time in ns, frame)] sent since the last call, after what can be done now is done
    fed()                       times in ns at which fed frames had gone in, one for each since the last call, in order
    wait()                      let time pass up to the next timer or a bound; False: nothing will happen.
                                Asked only where the capture shows a pause or an RNR NAK before the frame due
    completions()               dicts {qpn, wr_id, status, opcode, byte_len, imm, inv_rkey, src_qpn, flags,
                                vendor_err} since the last call; status and opcode by name, imm as on the wire in hex
                                `queue` is the QPN whose completion queue it was in, where that is known
    state(qpn)                  name of the QP's state
    rest()                      let time pass beyond every timer that could still run; True: something happened
    strays()                    texts: what was written outside of regions and rings
    events()                    [(name of an asynchronous event, QPN)] since the last call; "COMPLETION" of a queue that held an
                                unread completion then, "BARE_COMPLETION" of one that held none; QPN: whose queue it is
    asked()                     QPNs of queues that were asked for an event and hold completions of later, but raised none

A completion may have `ns`, the time at which it was seen.
"""
from collections import deque

from test.model.capture import OTHER, access_bits, fill_bytes
from test.model.conditions import CompletionConditions, History
from test.model.compare import FrameMatcher, Report, compare_completions, compare_memory
from test.model.endpoint import Endpoint
from test.model.events import Events
from test.model.packet import parse
from test.model.qp import PROFILES
from test.model.waits import Causes, Waits
from test.reference.rulings import rulings_for

from roce_soc import opcodes as op
from roce_soc import verbs
from roce_soc.errors import ERRORS


class ModelEngine:
    """The reference model as an engine to play captures with; pad_frames fills frames to 60 bytes."""
    def __init__(self, profile="standard", pad_frames=False):
        self.profile, self.pad_frames = PROFILES[profile], pad_frames
        self.now, self.done, self.went_in = 0, [], []

    def setup(self, capture, side):
        pairs = capture.queue_pairs(side)
        self.endpoint = Endpoint(pairs[0]["src_mac"], *{qp["src_ip"] for qp in pairs}, profile=self.profile)
        self.regions = {}
        for region in capture.regions(side):
            self.regions[region["name"]] = self.endpoint.reg_mr(
                region["va"], region["length"], region["access"], key=region["key"], pd=region["pd"])
        for qp in pairs:
            qp = {name: value for name, value in qp.items() if name != "name"}
            self.endpoint.create_qp(qp.pop("qpn"), qp.pop("qp_type"), **qp)

    def fill(self, mr, va, data):
        self.regions[mr].write(va, data)

    def read(self, mr, va, length):
        return self.regions[mr].read(va, length)

    def post_recv(self, qpn, event):
        self.endpoint.post_recv(qpn, event["wr_id"], event["va"], event["length"], event["lkey"])

    def post_send(self, qpn, fields, event):
        if fields["opcode"] == verbs.WR_BIND_MW:
            self.endpoint.memory.window(self.regions[event["mr"]].key, event["rkey"], event["va"], event["length"],
                                        access_bits(event["access"]))
            self.done.append({"qpn": qpn, "wr_id": event["wr_id"], "status": "SUCCESS", "opcode": "BIND_MW", "flags": ()})
            return
        self.endpoint.post_send(qpn, fields.pop("wr_id"), fields.pop("opcode"), **fields)

    def feed(self, frame):
        self.endpoint.rx(frame, self.now)
        self.went_in.append(self.now)

    def frames(self):
        return [(self.now, f + bytes(max(0, 60 - len(f))) if self.pad_frames else f) for f in self.endpoint.tx(self.now)]

    def fed(self):
        times, self.went_in = self.went_in, []
        return times

    def rest(self):
        return self.wait()

    def strays(self):
        return []

    def events(self):
        told, self.endpoint.events = self.endpoint.events, []
        return told

    def asked(self):
        return []

    def wait(self):
        deadline = self.endpoint.next_deadline()
        if deadline is None:
            return False
        self.now = max(self.now, deadline)
        self.endpoint.tick(self.now)
        return True

    def completions(self):
        done, self.done = self.done, []
        for c in self.endpoint.poll_cq():
            done.append({
                "qpn": c.qpn, "wr_id": c.wr_id, "status": verbs.WC_STATUS_NAMES[c.status],
                "opcode": verbs.WC_OPCODE_NAMES[c.opcode], "byte_len": c.byte_len,
                "imm": None if c.imm is None else f"{c.imm:08x}", "inv_rkey": c.inv_rkey,
                "src_qpn": c.src_qp or None, "ns": self.now,
                "vendor_err": ERRORS[c.row].index if c.row and self.profile.name == "standard" else 0,
                "flags": [name for bit, name in ((1, "GRH"), (2, "WITH_IMM"), (8, "WITH_INV")) if c.flags & bit]})
        return done

    def state(self, qpn):
        return verbs.QP_STATES[self.endpoint.qps[qpn].state]


class Player:
    """Plays one side of a capture with an engine; see play()."""
    def __init__(self, capture, side, engine, profile="standard"):
        self.capture, self.side, self.engine = capture, side, engine
        self.rulings  = rulings_for(profile)
        self.history  = History(capture, side)
        self.report   = Report(capture.name, side, profile)
        self.done     = []
        self.waits    = Waits(capture, side)
        self.causes   = Causes(capture, side, self.history)
        self.events   = Events(capture, side)
        self.went_in  = deque()        # numbers of fed frames whose time is not known yet.
        own           = [f for f in capture.frames[side] if f.sender == side]
        self.matchers = {}
        for key in {self._key(f.packet) for f in own}:
            expected = [f for f in own if self._key(f.packet) == key]
            self.matchers[key] = FrameMatcher(expected, self.rulings, self.report, self.history)

    def run(self):
        """The whole script; returns the Report."""
        self.engine.setup(self.capture, self.side)
        for step in self.capture.script(self.side):
            if self.report.differences:
                break
            getattr(self, "_" + step.kind)(step)
        if not self.report.differences:
            self._collect()
            self._linger()
            for matcher in self.matchers.values():
                matcher.finish()
            self._compare_completions()
            for text in self.events.missing() + [f"completions without the event asked for, QP {qpn:#x}" for qpn in self.engine.asked()]:
                self._differ(text)
        return self.report

    @staticmethod
    def _key(packet):
        """Frames of one key have an order: requests and responses of a QP have none between them."""
        row = op.OPCODES.get(packet.opcode)
        return packet.dest_qpn, row is not None and row.is_response

    def _differ(self, text):
        self.report.differences.append(f"  {self.side} {text}")

    def _collect(self):
        """Take what the engine sent and completed; True where it sent something."""
        sent = self.engine.frames()
        for ns in self.engine.fed():
            self.waits.passed(self.went_in.popleft(), ns)
        for ns, frame in sent:
            packet = parse(frame)
            if packet is None:
                continue                      # ARP, ND.
            key = self._key(packet)
            if key not in self.matchers:
                self.matchers[key] = FrameMatcher([], self.rulings, self.report, self.history)
            frame = self.matchers[key].add(packet)
            wrong = frame and self.waits.passed(frame.number, ns)
            if wrong:
                self._differ(wrong)
        done = self.engine.completions()
        for completion in done:
            if completion.get("queue", completion["qpn"]) != completion["qpn"]:
                self._differ(f"completion of QP {completion['qpn']:#x} in the queue of QP {completion['queue']:#x}")
            if self.causes.early(completion):
                self._differ(f"completed wr_id {completion['wr_id']} before what completes it had come")
            wrong = self.waits.exceeded(completion)
            if wrong:
                self._differ(wrong)
        for name, qpn in self.engine.events():
            wrong = self.events.told(name, qpn)
            if wrong:
                self._differ(wrong)
        self.done += done
        return bool(sent)

    def _linger(self):
        """Nothing is to come any more, however long one waits; everything was written where it may be."""
        for _ in range(4):
            moved = self.engine.rest()
            if not (self._collect() or moved) or self.report.differences:
                break
        for text in self.engine.strays():
            self._differ(text)

    def _settle(self):
        """Wait for every frame that is due."""
        self._collect()
        for matcher in self.matchers.values():
            while matcher.waiting() and not self.report.differences:
                may_wait = matcher.expected[matcher.next].number in self.waits.before
                if not self._collect() and not (may_wait and self.engine.wait()):
                    matcher.skip_due()

    # Steps ----------------------------------------------------------------------------------------

    def _expect(self, step):
        self.matchers[self._key(step.frame.packet)].due += 1

    def _feed(self, step):
        """Frames with nothing of ours between them arrive back to back."""
        if any(matcher.waiting() for matcher in self.matchers.values()):
            self._settle()
        if not self.report.differences:
            self.history.feed(step.frame.packet)
            self.causes.feed()
            self.events.feed()
            self.went_in.append(step.frame.number)
            self.engine.feed(step.frame.frame)

    def _recv(self, step):
        self.engine.post_recv(self.capture.qpn(self.side, step.event["qp"]), step.event)

    def _send(self, step):
        self.engine.post_send(self.capture.qpn(self.side, step.event["qp"]), self.capture.send_request(step.event), step.event)

    def _fill(self, step):
        self._settle()
        self.history.fill(step.event["va"], fill_bytes(step.event))
        self.engine.fill(step.event["mr"], step.event["va"], fill_bytes(step.event))

    def _memory(self, step):
        self._settle()
        if not self.report.differences:
            event = step.event
            compare_memory(event, lambda va, length: self.engine.read(event["mr"], va, length), self.report)

    def _state(self, step):
        self._settle()
        self._await_completions(step.event["qp"])
        state = self.engine.state(self.capture.qpn(self.side, step.event["qp"]))
        if state != step.event["state"] and not self.report.differences:
            self.report.differences.append(f"  {self.side} QP state: capture {step.event['state']}, engine {state}")

    def _await_completions(self, name):
        """Let time pass while completions of the capture are to come (RETRY_EXC_ERR ends no frame)."""
        want, qpn = sum(e["qp"] == name for e in self.capture.completions(self.side)), self.capture.qpn(self.side, name)
        while sum(c["qpn"] == qpn for c in self.done) < want and not self.report.differences:
            if not self._collect() and not self.engine.wait():
                break

    # Completions ----------------------------------------------------------------------------------

    def _compare_completions(self):
        wrong = self.causes.disorder(self.done)
        if wrong:
            self._differ("completed wr_id {} before wr_id {}".format(*(c["wr_id"] for c in wrong)))
        for qp in self.capture.qps:
            qpn, name = qp[self.side]["qpn"], qp["name"]
            posted    = {kind: {e["wr_id"]: e for e in self.capture.events
                                if (e["ev"], e.get("side"), e.get("qp")) == (kind, self.side, name)}
                         for kind in ("post_recv", "post_send")}
            receives  = posted["post_recv"]
            expected  = [e for e in self.capture.completions(self.side) if e["qp"] == name]
            actual    = [c for c in self.done if c["qpn"] == qpn]
            for receive, label in ((False, "send"), (True, "receive")):
                compare_completions(f"{name} {label}", [c for c in expected if (c["wr_id"] in receives) == receive],
                                    [c for c in actual if (c["wr_id"] in receives) == receive],
                                    posted["post_recv" if receive else "post_send"], CompletionConditions(self.history),
                                    self.rulings, self.report)


def play(capture, side, engine=None, profile="standard"):
    """Play `side` of a Capture with an engine (default: the model in that profile); returns a Report."""
    if side not in OTHER:
        raise ValueError(f"side must be a or b, not {side!r}")
    return Player(capture, side, engine or ModelEngine(profile), profile).run()
