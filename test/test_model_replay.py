# SPDX-License-Identifier: BSD-2-Clause
"""The player of captures: engines that are too early, too late, in the wrong place or order, or that do not stop, are refused."""
import copy
import os

import pytest

from roce_soc import opcodes as op
from sim.replay import EngineUnderReplay
from test.model.capture import Capture, load
from test.model.packet import parse
from test.model.replay import ModelEngine, play
from test.model.synthesize import synthesize
from test.model.waits import Waits

FOLDER = os.path.join(os.path.dirname(__file__), "reference", "captures")


def capture_of(name):
    return load(os.path.join(FOLDER, name + ".pcap"))


def with_timeout(capture, change):
    """The set-up with other ACK time-outs."""
    data = copy.deepcopy(capture.data)
    for qp in data["qps"]:
        for side in "ab":
            qp[side]["timeout"] += change
    return Capture(capture.name, data, capture.frames)


class Around:
    """An engine around another."""
    def __init__(self, engine=None):
        self.engine = engine or ModelEngine()

    def __getattr__(self, name):
        return getattr(self.engine, name)


# Times --------------------------------------------------------------------------------------------

class Timeout(Around):
    """Its ACK time-outs are 2^change of what they should be."""
    def __init__(self, change, engine=None):
        super().__init__(engine)
        self.change = change

    def setup(self, capture, side):
        self.engine.setup(with_timeout(capture, self.change), side)


class Rnr(Around):
    """Its RNR waits are those of another code."""
    def __init__(self, code, engine=None):
        super().__init__(engine)
        self.code = code

    def feed(self, frame):
        packet = parse(frame)
        if packet.name == "RC_ACKNOWLEDGE" and op.syndrome_class(packet.syndrome) == "RNR":
            frame = packet.copy(syndrome=0x20 | self.code).renew().build()
        self.engine.feed(frame)


@pytest.mark.parametrize("name", ["rc_drop_ack", "rc_drop_last", "rc_bad_icrc", "rc_retry_exceeded", "rc_drop_read_last"])
@pytest.mark.parametrize("change,ok", [(-6, False), (-1, False), (0, True), (1, True), (4, False)])
def test_timeouts(name, change, ok):
    """An ACK time-out comes after T, before 4T."""
    report = play(capture_of(name), "a", Timeout(change))
    assert report.ok is ok, report.text()
    assert ok or "ACK time-out of 67108864 ns" in report.differences[0]


@pytest.mark.parametrize("code,ok", [(14, True), (22, False), (0, False), (12, False), (1, False)])
def test_rnr_waits(code, ok):
    """Neither 16 times too long nor too short."""
    report = play(capture_of("rc_rnr"), "a", Rnr(code))
    assert report.ok is ok, report.text()
    assert ok or "RNR wait of 1280000 ns" in report.differences[0]


@pytest.mark.parametrize("engine", [lambda e: Timeout(-6, e), lambda e: Rnr(22, e)], ids=["timeout", "rnr"])
def test_times_of_the_compiled_engine(engine):
    """Its ticks are compared as well."""
    name = "rc_rnr" if engine(None).__class__ is Rnr else "rc_drop_ack"
    report = play(capture_of(name), "a", engine(EngineUnderReplay(seed=3, linger=0)))
    assert not report.ok and " ns: frame " in report.differences[0], report.text()


def test_sequence_nak_in_an_rnr_wait():
    """It does not end the wait; an answer to the refused PSN does."""
    capture = capture_of("rc_rnr")
    frames  = capture.frames["a"]
    usual   = Waits(capture, "a").before
    assert len(usual) == 8

    def with_answer(**changes):
        new  = frames[1].packet.copy(**changes).renew().build()
        more = copy.copy(frames[1])
        more.packet, more.frame = parse(new), new
        return Waits(Capture(capture.name, capture.data, {**capture.frames, "a": frames[:2] + [more] + frames[2:]}), "a").before
    assert with_answer(syndrome=op.NAK_PSN_SEQUENCE).keys() == usual.keys()
    assert with_answer(syndrome=op.ACK_UNLIMITED, msn=1).keys() == usual.keys() - {3}


# Places and order ---------------------------------------------------------------------------------

class Held(Around):
    """Completions of one kind come only at the end."""
    def __init__(self, receives):
        super().__init__()
        self.receives, self.held = receives, []

    def completions(self):
        done = self.engine.completions()
        hold = [c for c in done if c["opcode"].startswith("RECV") == self.receives]
        self.held += hold
        return [c for c in done if c not in hold]

    def rest(self):
        self.engine.done, self.held, self.receives = self.held, [], None
        return super().__getattr__("rest")()


@pytest.mark.parametrize("receives", [False, True])
def test_order_between_queues(receives):
    """Send and receive completions of a QP come in the order of what completes them."""
    capture = synthesize(1)
    assert play(capture, "a").ok
    report = play(capture, "a", Held(receives))
    assert not report.ok and "before wr_id" in report.differences[0], report.text()


class Early(Around):
    """Tells a completion with the post."""
    def post_send(self, qpn, fields, event):
        self.engine.done.append({"qpn": qpn, "wr_id": event["wr_id"], "status": "SUCCESS", "opcode": "SEND", "flags": ()})
        self.engine.post_send(qpn, fields, event)


def test_completion_before_its_cause():
    report = play(capture_of("rc_send_only"), "a", Early())
    assert not report.ok and "before what completes it had come" in report.differences[0], report.text()


class Misplaced(Around):
    """Completions lie in another QP's queue."""
    def completions(self):
        return [{**c, "queue": c["qpn"] ^ 1} for c in self.engine.completions()]


def test_queue_of_a_completion():
    report = play(capture_of("rc_send_only"), "a", Misplaced())
    assert not report.ok and "in the queue of QP" in report.differences[0], report.text()


class Narrow(EngineUnderReplay):
    """Only completion queues may be written."""
    def setup(self, capture, side):
        super().setup(capture, side)
        self.extents = self.extents[len(self.regions):]


class Changed(EngineUnderReplay):
    """Completions name another QP."""
    def completions(self):
        return [{**c, "qpn": c["qpn"] ^ 1} for c in super().completions()]


@pytest.mark.parametrize("engine,says", [(Narrow, "outside of regions"), (Changed, "in the queue of QP")])
def test_places_of_the_compiled_engine(engine, says):
    report = play(capture_of("rc_send_only"), "b", engine(seed=3, linger=0))
    assert not report.ok and says in report.differences[0], report.text()


# Events and the last time-out ---------------------------------------------------------------------

class Told(Around):
    """Its completions and events are changed on their way."""
    def __init__(self, completion=lambda c: c, events=lambda e: e, engine=None):
        super().__init__(engine)
        self.completion, self.change = completion, events

    def completions(self):
        return [self.completion(c) for c in self.engine.completions()]

    def events(self):
        return self.change(self.engine.events())


@pytest.mark.parametrize("factor,ok", [(0, True), (-.5, False), (-.1, False), (2, True), (4, False)])
def test_last_timeout(factor, ok):
    """RETRY_EXC_ERR comes a time-out behind the last repetition as well."""
    def moved(c):
        return {**c, "ns": c["ns"] + int(factor*67108864)} if c["status"] == "RETRY_EXC_ERR" else c
    report = play(capture_of("rc_retry_exceeded"), "a", Told(moved))
    assert report.ok is ok, report.text()
    assert ok or "RETRY_EXC_ERR came" in report.differences[0]


@pytest.mark.parametrize("name,side,events,says", [
    ("rc_retry_exceeded", "a", lambda e: [],      "no event of QP"),
    ("rc_nak_bounds",     "b", lambda e: [],      "no event of QP"),
    ("rc_nak_bounds",     "a", lambda e: e + e,   "has failed before"),
    ("rc_retry_exceeded", "b", lambda e: [("QP_FATAL", 0x12)], "which ends in"),
    ("rc_send_only",      "b", lambda e: [("COMM_EST", 0x11)], "nothing calls for"),
    ("rc_send_only",      "b", lambda e: [("BARE_COMPLETION", 0x11)], "before its completion"),
])
def test_events(name, side, events, says):
    capture = capture_of(name)
    qpn     = capture.queue_pairs(side)[0]["qpn"]
    report  = play(capture, side, Told(events=lambda e: [(n, qpn) for n, _ in events(e)]))
    assert not report.ok and says in report.differences[0], report.text()


def test_event_before_its_cause():
    capture = capture_of("rc_nak_bounds")
    for side in "ab":
        qpn  = capture.queue_pairs(side)[0]["qpn"]
        once = [("QP_ACCESS_ERR", qpn)]

        def first(_, once=once):
            return [once.pop()] if once else []
        report = play(capture, side, Told(events=first))
        assert not report.ok and "before the frame that ends it" in report.differences[0], report.text()


class Robbed(EngineUnderReplay):
    """Another program takes its completions."""
    def _look(self):
        for qp in self.qps.values():
            self.stolen = getattr(self, "stolen", []) + qp.send_cq.poll()
        super()._look()


class Eventless(EngineUnderReplay):
    """Its events are never seen."""
    def _look(self):
        pass


@pytest.mark.parametrize("engine,says", [(Robbed, "before its completion"), (Eventless, "without the event asked for")])
def test_completion_events_of_the_compiled_engine(engine, says):
    report = play(capture_of("rc_send_only"), "b", engine(seed=3, linger=0))
    assert not report.ok and says in report.text(), report.text()


# After the last step ------------------------------------------------------------------------------

class Restless(Around):
    """A timer runs on after the last step."""
    def setup(self, capture, side):
        self.last = []
        self.engine.setup(capture, side)

    def frames(self):
        sent = self.engine.frames()
        self.last = sent or self.last
        return sent

    def rest(self):
        self.engine.frames = lambda: self.last[-1:]
        return True


@pytest.mark.parametrize("name,side", [("rc_send_only", "a"), ("rc_write", "b"), ("uc_all", "a")])
def test_nothing_after_the_last_step(name, side):
    report = play(capture_of(name), side, Restless())
    assert not report.ok and "lacks" in report.differences[0], report.text()


class Deaf(EngineUnderReplay):
    """Does not hear the last ACK, but tells the completion: its timer runs on."""
    def listen(self, ack, completion):
        self.ack, self.completion, self.told = ack, completion, []

    def feed(self, frame):
        packet = parse(frame)
        if packet.psn == self.ack.psn:
            frame, self.told = packet.copy(dest_qpn=packet.dest_qpn ^ 0x4000).renew().build(), [self.completion]
        super().feed(frame)

    def completions(self):
        told, self.told = self.told, []
        return super().completions() + told


def test_timer_of_the_compiled_engine_that_is_not_stopped():
    """Found by running on beyond an ACK time-out."""
    capture = capture_of("rc_udpsum_good")
    for linger in (0, 1.25):
        engine  = Deaf(seed=3, linger=linger)
        engine.listen([f for f in capture.frames["a"] if f.sender == "b"][-1].packet,
            {**capture.completions("a")[-1], "qpn": capture.qpn("a", "q")})
        report = play(capture, "a", engine)
        assert report.ok == (not linger), report.text()
    assert "lacks" in report.differences[0]
