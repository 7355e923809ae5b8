# SPDX-License-Identifier: BSD-2-Clause
"""What must not move any more: rules for memory accesses and frames after a command's end; an event queue that is read along."""
from collections import Counter, deque, namedtuple

from roce_soc import abi
from roce_soc.queue.eq import CAUSES
from sim.engine import EventRing
from test.engine_bench import ENGINE_VA
from test.model.packet import parse

CANARY = 0xa5
FRAMES = 1000      # clocks in which whole frames that wait for the MAC may still leave: 512 beats, a MAC that stalls 0.4.

Rule = namedtuple("Rule", "what qp since touches")


class Watch:
    """Looks at every access to memory and at every frame of a ModelBench.

    A rule holds from the end of the command that made it: no access that `touches` begins or ends later, until `lift`.
    Memory that is given up holds a canary from then on.
    """
    def __init__(self, bench):
        self.bench, self.engine = bench, bench.engine
        self.rules    = []
        self.canaries = []
        self.received = {}         # QPN of the engine -> last frames that came for it.
        self.sent     = []         # (clock, frame) of what left the engine lately.

        def frames():
            got = self.engine.tx.recv_all()
            self.sent += [(f.first, f.data) for f in got]
            return [f.data for f in got]
        self.engine.frames = frames

    def forbid(self, what, since, qp=None, rings=(), payload=True):
        """No payload of `qp` (its index) is moved, unless `payload` is False, no byte of `rings` (address, size) read or written."""
        def moves(e):
            return e["qpi"] == qp and e["addr"] >= ENGINE_VA

        def ring(e):
            return any(e["addr"] < at + size and e["addr"] + e["length"] > at for at, size in rings)
        if qp is not None and payload:
            self.rules.append(Rule(what, qp, since, moves))
        if rings:
            self.rules.append(Rule(what, qp, since, ring))

    def lift(self, qp, *whats):
        """The rules of a QP that these commands made are over."""
        self.look()
        self.rules = [rule for rule in self.rules if rule.qp != qp or rule.what not in whats]

    def give_up(self, what, since, rings):
        """Rings of something that was destroyed."""
        self.forbid(what, since, rings=rings)
        for at, size in rings:
            self.engine.write_memory(at, bytes([CANARY])*size)
            self.canaries.append((at, size))

    def look(self):
        """Accesses and frames since the last look."""
        for entry in self.engine.memory.log():
            for rule in self.rules:
                assert entry["answered"] <= rule.since or not rule.touches(entry), \
                    f"{rule.what} of QP {rule.qp} was done at {rule.since}, then {entry}"
        for way, frame in self.bench.wire:
            if way == "to_engine":
                self.received.setdefault(int.from_bytes(frame[47:50], "big"), deque(maxlen=40)).append(frame)
        self.bench.wire.clear()

    def silent(self, peer, since):
        """No frame to `peer` has left the engine after `since` and what the frame FIFOs held then."""
        late = [(at, frame) for at, frame in self.sent if at > since + FRAMES and int.from_bytes(frame[47:50], "big") == peer]
        assert not late, f"RESET was done at {since}, then at {late[0][0]} {parse(late[0][1]).describe()}"
        self.sent = [(at, frame) for at, frame in self.sent if at > since]

    def check_canaries(self):
        """What was given up is untouched."""
        for at, size in self.canaries:
            assert self.engine.read_memory(at, size) == bytes([CANARY])*size, f"something was written in {at:#x} + {size}, which was given up"


class Events(EventRing):
    """The engine's event queue as a program sees it: taken in order by phase; made anew anywhere."""
    def __init__(self, engine, rng):
        super().__init__(engine, None, 0)
        self.rng, self.seen = rng, Counter()
        engine.roce.command(*self.geometry())

    def geometry(self):
        """Command that makes the queue, at another place than before."""
        self.log2, self.consumer = self.rng.randrange(3, 7), 0
        self.addr = self.engine.roce.allocate(abi.EQE_BYTES << self.log2, "event queue")
        return abi.CMD_WRITE_EQ, abi.pack_args(abi.EQ_ARGS, index=0, valid=1, log2=self.log2, addr=self.addr)

    @property
    def ring(self):
        """(address, bytes)"""
        return self.addr, abi.EQE_BYTES << self.log2

    def poll(self):
        """Takes what is there."""
        for entry in super().poll():
            assert entry["type"] in CAUSES, f"event {entry} in the ring at {self.addr:#x}"
            self.seen[entry["type"]] += 1
