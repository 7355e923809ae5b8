# SPDX-License-Identifier: BSD-2-Clause
"""Carries frames between guest and engine, and lets the guest's clock run only while it has work.

The guest runs while it handles a call or a frame, and until what it has to say is out; then it is
stopped until the engine answers. So no time-out of the guest's driver fires because a simulation is slow.
"""
import os
import select
import socket
import time
from collections import Counter

from test.model.packet import PacketError, parse
from test.model.pcap import PcapWriter

# Real seconds that the guest may run ...
AFTER_FRAME  = 0.02    # ... once it got a frame.
AFTER_LAST   = 0.003   # ... once the last frame of its message is out.
AFTER_REPLY  = 0.005   # ... once it answered a call (rxe sends from a work queue).
IN_MESSAGE   = 0.1     # ... inside a message: more frames must follow.
IN_CALL      = 0.05    # ... while it works on a call and has sent a frame.
CALL_SECONDS = 60      # ... for a call in which nothing was sent, or that has its answer from the engine.
STALL, STALL_MAX = 0.2, 5.0   # Frozen that long without an answer it runs for a moment: it may have more to say.


class RelayError(Exception):
    """Something that had to come over the wire did not come in time."""


class Observer:
    """Judges every frame that passes: ICRC, repeated request PSNs, NAKs. Independent of both ends."""
    def __init__(self, path):
        self.pcap, self.counts, self.faults, self.seen = PcapWriter(path), Counter(), Counter(), {}
        self.start = time.monotonic_ns()

    def note(self, source, frame):
        """Record a frame that `source` sent; its Packet, None where it is no RoCE."""
        self.pcap.write(frame, time.monotonic_ns() - self.start)
        try:
            packet = parse(frame)
        except PacketError as error:
            self.faults[f"{source}_{error.row.lower()}"] += 1
            return None
        if packet is None:
            self.counts[f"{source}_other"] += 1
            return None
        self.counts[f"{source}_roce"] += 1
        self._judge(source, packet)
        return packet

    def _judge(self, source, packet):
        if not packet.icrc_ok:
            self.faults[f"{source}_bad_icrc"] += 1
        elif "AETH" in packet.headers and packet.syndrome >> 5:
            self.faults[f"{source}_nak"] += 1
        elif "AETH" not in packet.headers and not packet.name.endswith("RESPONSE_MIDDLE"):
            # A READ takes as many PSNs as it has responses, but its request names only the first.
            key    = source, packet.dest_qpn
            newest = self.seen.get(key)
            if newest is not None and (packet.psn - newest - 1) & 0xffffff >= 1 << 23:
                self.faults[f"{source}_retransmitted"] += 1
            else:
                self.seen[key] = packet.psn

    def close(self):
        """End the capture."""
        self.pcap.close()


class Fault:
    """One fault in one frame of the engine, to see that a run notices: FAULTS names what it does."""
    FRAME  = 5   # the first frame that may be hit, in RoCE frames.
    FAULTS = {
        "none"    : lambda packet, frame: frame,
        "loss"    : lambda packet, frame: None,
        "icrc"    : lambda packet, frame: frame[:-1] + bytes([frame[-1] ^ 1]),
        "payload" : lambda packet, frame: packet.copy(payload=bytes([packet.payload[0] ^ 1])
                                                      + packet.payload[1:]).renew().build(),
    }

    def __init__(self, name):
        self.apply, self.needs_payload, self.frames = self.FAULTS[name], name == "payload", 0

    def __call__(self, frame):
        packet = parse(frame)
        if packet is None or self.apply is self.FAULTS["none"]:
            return frame
        self.frames += 1
        if self.frames < self.FRAME or (self.needs_payload and not packet.payload):
            return frame
        apply, self.apply = self.apply, self.FAULTS["none"]
        return apply(packet, frame)


class Relay:
    """The wire between a VM and an Engine, with the calls to the guest that need it to go on."""
    def __init__(self, vm, engine, observer, fault="none"):
        self.vm, self.engine, self.observer = vm, engine, observer
        self.fault = Fault(fault)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(os.fspath(vm.peer))
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.calling, self.run_until, self.stall, self.delivered = False, 0.0, STALL, 0

    # Frames ---------------------------------------------------------------------------------------

    def step(self, seconds=0.01):
        """Carry what is there; wait up to `seconds` for more. Decides whether the guest runs."""
        self._hold_or_run()
        ready = [self.socket, self.vm.agent.socket] + self.engine.sockets()
        limit = self.run_until - time.monotonic()
        if self.engine.busy():
            seconds = 0
        select.select(ready, [], [], min(seconds, limit) if limit > 0 else seconds)
        self._from_guest()
        for frame in self.engine.collect():
            frame = self.fault(frame)
            if frame is not None:
                self.observer.note("soc", frame)
                self._to_guest(frame)
        self._hold_or_run()

    def _from_guest(self):
        while True:
            try:
                frame = self.socket.recv(1 << 16)
            except BlockingIOError:
                return
            packet = self.observer.note("guest", frame)
            self.engine.deliver(frame)
            if packet is not None:
                more = packet.name.endswith(("FIRST", "MIDDLE"))
                self.run_for(IN_MESSAGE if more else IN_CALL if self.calling else AFTER_LAST)

    def _to_guest(self, frame):
        self.vm.thaw()
        end = time.monotonic() + 10
        while True:
            try:
                self.socket.sendto(frame, os.fspath(self.vm.wire))
                break
            except BlockingIOError as error:      # QEMU's queue is full until the guest has taken some.
                if time.monotonic() > end:
                    raise RelayError("the guest takes no frames for 10 s") from error
                time.sleep(0.001)
        self.delivered += 1
        self.stall = STALL
        self.run_for(CALL_SECONDS if self.calling else AFTER_FRAME)

    # Guest's clock --------------------------------------------------------------------------------

    def run_for(self, seconds):
        """Let the guest run that long from now, neither longer nor shorter."""
        self.run_until = time.monotonic() + seconds

    def _hold_or_run(self):
        now = time.monotonic()
        if now < self.run_until:
            self.vm.thaw()
        elif not self.vm.frozen:
            self.vm.freeze()
        elif now - self.vm.frozen_at > self.stall:
            self.stall = STALL if self.calling else min(2*self.stall, STALL_MAX)
            self.run_for(IN_CALL if self.calling else AFTER_FRAME)
            self.vm.thaw()

    # Calls and waits ------------------------------------------------------------------------------

    def call(self, name, **args):
        """Value of a call to the guest's agent, frames carried meanwhile."""
        end = time.monotonic() + CALL_SECONDS
        self.calling = True
        try:
            number = self.vm.request(name, **args)
            self.run_for(CALL_SECONDS)
            while True:
                done, value = self.vm.reply(number, 0)
                if done:
                    return value
                if time.monotonic() > end:
                    raise RelayError(f"guest: {name}: no answer in {CALL_SECONDS} s")
                self.step()
        finally:
            self.calling = False
            self.run_for(AFTER_REPLY)

    def until(self, poll, what, seconds):
        """First true value of poll(), frames carried meanwhile; asked again after frames or a growing pause."""
        end, pause = time.monotonic() + seconds, 0.01
        while True:
            value = poll()
            if value:
                return value
            if time.monotonic() > end:
                raise RelayError(f"{what}: not in {seconds} s")
            delivered, again = self.delivered, time.monotonic() + pause
            while time.monotonic() < again and self.delivered == delivered:
                self.step()
            pause = 0.01 if self.delivered != delivered else min(2*pause, 0.5)

    def settle(self, seconds=0.1):
        """Carry frames until none came from the engine for that long (the last acknowledges)."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            delivered = self.delivered
            self.step()
            if self.delivered != delivered:
                end = time.monotonic() + seconds

    def close(self):
        """Close the wire and the capture."""
        self.socket.close()
        self.observer.close()
