# SPDX-License-Identifier: BSD-2-Clause
"""Two compiled engines with a wire between them that the test watches, stalls, thins out and adds frames to."""
from roce_soc import abi
from sim.engine import IPS, MACS, Bench, connect
from sim.wire import WIRE_BYTES
from test.engine_bench import ACCESS

VA     = 0x1000_0000
REGION = 1 << 26

# Places of BTH fields in an untagged IPv4 frame.
OPCODE, QPN, PSN = 42, slice(47, 50), slice(51, 54)


def connect_inside(engine, *, cq_log2=8, **attributes):
    """Two QPs of one engine, connected to each other: their frames turn round inside it."""
    own = dict(src_mac=MACS[0], dst_mac=MACS[0], src_ip=IPS[0], dst_ip=IPS[0], sq_psn=0x100, rq_psn=0x100)
    qps = []
    for _ in range(2):
        cq = engine.roce.create_cq(cq_log2)
        qps.append(engine.roce.create_qp(cq, cq, **{**own, **attributes}))
    for qp, peer in (qps, qps[::-1]):
        qp.attributes["dest_qpn"] = peer.qpn
    for state in (abi.QP_INIT, abi.QP_RTR, abi.QP_RTS):
        for qp in qps:
            qp.modify(state)
    return tuple(qps)


class Pair:
    """Engines `a` and `b`, each with one region at VA; both clocks advance together.

    Parameters
    ----------
    seed : int
    every : int
        Clocks between two looks at the wire; what a frame is late at most.
    memory : dict
        Of both engines, as Bench.
    paced : bool
        Frames arrive at 100 Gb/s at most.
    """
    def __init__(self, seed=1, *, every=32, memory=None, tick_cycles=1, paced=True, **parameters):
        self.benches = [Bench(seed=seed + n, memory=memory, tick_cycles=tick_cycles, **parameters) for n in range(2)]
        self.engines = self.a, self.b = [bench.engines[0] for bench in self.benches]
        self.every   = every
        self.mrs     = [engine.roce.reg_mr(VA, REGION, access=ACCESS) for engine in self.engines]
        self.passes  = lambda side, frame: (frame,)     # frames that arrive for one that side sent.
        self.frames  = [0, 0]                           # sent by each side.
        for engine in self.engines:
            if paced:
                engine.rx.pace(WIRE_BYTES)

    def connect(self, **attributes):
        """A QP on each engine, connected to each other; (qp at a, qp at b)."""
        return connect(self.a, self.b, **attributes)

    def cycles(self):
        return max(bench.sim.cycles() for bench in self.benches)

    def step(self, cycles):
        """Runs both engines; doorbells and commands may have left one behind."""
        end = self.cycles() + cycles
        while (now := min(self.cycles() + self.every, end)) > min(bench.sim.cycles() for bench in self.benches):
            for bench in self.benches:
                bench.step(max(0, now - bench.sim.cycles()))
            for side in range(2):
                for frame in self.engines[side].frames():
                    self.frames[side] += 1
                    for arriving in self.passes(side, frame):
                        self.engines[1 - side].send(arriving)

    def run(self, condition, max_cycles=500_000, every=512):
        """Runs until `condition()` holds."""
        end = self.cycles() + max_cycles
        while not condition():
            states = "".join(bench.sim.state() for bench in self.benches) if self.cycles() >= end else None
            assert states is None, f"not reached in {max_cycles} clocks{states}"
            self.step(every)

    def check_idle(self):
        """Nothing is left inside: every chunk free, no memory access open."""
        self.step(3000)
        for name, engine in zip("ab", self.engines):
            assert engine.chunks_free() == 512, f"{512 - engine.chunks_free()} chunks of engine {name} are lost"
            left = {port: c["outstanding"] for port, c in engine.memory.counters().items() if c["outstanding"]}
            assert not left, f"memory accesses of engine {name} are open: {left}"
