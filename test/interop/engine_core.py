# SPDX-License-Identifier: BSD-2-Clause
"""The compiled engine (no CPU, no SoC around it) as the guest's far end: quick to build and to run."""
from sim.engine import Bench
from test.interop.engine import arp_reply
from test.interop.engine_verbs import VerbsEngine
from test.model.packet import ip as ip_bytes
from test.model.packet import mac as mac_bytes

BUFFERS     = (0x10_0000, 0x80_0000)
STEP_CYCLES = 200
IDLE_CYCLES = 4000      # after the last frame or doorbell the engine is given so many clocks at once.


class CoreEngine(VerbsEngine):
    """RoCECore in Verilator; ARP is answered here, as its slow path would."""
    name = "core"

    def __init__(self, seed):
        self.bench    = Bench(seed=seed)
        self.compiled = self.bench.engines[0]
        super().__init__(self.compiled.roce, BUFFERS)
        self.replies, self.left, self.cycles = [], 0, 0

    def deliver(self, frame):
        reply = arp_reply(frame, mac_bytes(self.mac), ip_bytes(self.ip))
        if reply:
            self.replies.append(reply)
        else:
            self.compiled.send(frame)
        self.left = IDLE_CYCLES

    def collect(self):
        self.bench.step(STEP_CYCLES)
        self.cycles += STEP_CYCLES
        frames, self.replies = self.replies + self.compiled.frames(), []
        self.left = IDLE_CYCLES if frames else max(0, self.left - STEP_CYCLES)
        return frames

    def busy(self):
        return self.left > 0

    def post_send(self, *arguments, **more):
        super().post_send(*arguments, **more)
        self.left = IDLE_CYCLES

    def facts(self):
        return {"clocks": self.cycles}
