# SPDX-License-Identifier: BSD-2-Clause
"""Bad queue pairs beside 60 good ones: what these move in a time, alone and with each kind of bad neighbour."""
import functools
import random
from collections import Counter

from roce_soc import abi, verbs
from roce_soc import opcodes as op
from roce_soc.errors import ERRORS
from sim.engine import IPS, MACS, Bench
from sim.harness.memory import READS
from sim.wire import WIRE_BYTES, WIRE_OVERHEAD
from test.engine_pair import ACCESS, QPN, REGION, VA, Pair
from test.model.packet import Packet, parse, raw

GOOD     = 60
WARM     = 3000
WINDOW   = 16_000
KEEP     = 0.95
SOURCE   = 1 << 20          # of each region: what is sent and read; behind it each message has a place of its own.
GUARD    = 64               # bytes behind a place that nobody writes.
BAD      = ("rnr", "dead", "slow", "rewind", "far")
FAR      = 800              # clocks that the memory of the payload of "far" takes.
MIXES    = {"large": (4096, 2048, 1024, 5000, 300), "mixed": (64, 256, 1024, 4096, 700, 1), "small": (64, 0, 32, 100)}
WORK     = ("SEND", "WRITE", "READ")
CODES    = {"SEND": verbs.WR_SEND, "WRITE": verbs.WR_RDMA_WRITE, "READ": verbs.WR_RDMA_READ}
COUNTS   = {"large": 18, "mixed": 44, "small": 180}


class Side:
    """One end of a QP pair: its QP and what must come of what it posts."""
    def __init__(self, qp, number):
        self.qp, self.number = qp, number
        self.sent, self.received = [], 0


class Field:
    """60 good QP pairs and some bad ones between two engines; all work is posted before the first doorbell.

    Each end of a pair posts `count` operations; a SEND finds its receive posted. The good pairs' frames are counted
    by bytes on both wires.

    Parameters
    ----------
    seed : int
    mix : key of MIXES
    bad : kinds of BAD
        From a to b.
    """
    def __init__(self, seed, mix, bad=(), good=GOOD):
        self.rng   = random.Random(seed)
        self.pair  = Pair(seed=seed, paced=False)
        for engine in self.pair.engines:
            engine.memory.set(depth=512)        # both targets are behind one port of the model.
        self.mix, self.count = MIXES[mix], COUNTS[mix]
        self.log2  = max(6, (self.count - 1).bit_length())
        self.bytes = Counter()              # on the wires, by QPN of engine a.
        self.kinds = {}                     # QPN of either side -> kind.
        self.owner = {}
        self.seen  = Counter()
        self.data  = [random.Random(seed + n).randbytes(SOURCE) for n in (7, 8)]
        self.far   = [self.far_region(engine) for engine in self.pair.engines] if "far" in bad else None
        self.free  = [VA + SOURCE]*2        # next place on each side.
        self.moves = []                     # (side that gets them, place, offset in the other's source, bytes)
        self.pairs = [self.connect("good") for _ in range(good)]
        self.bad   = {kind: self.connect(kind) for kind in bad}
        self.pair.passes = self.passes
        for engine, data in zip(self.pair.engines, self.data):
            engine.write_memory(VA, data)
        for ends in self.pairs:
            for side in range(2):
                self.post(ends, side, self.count)
        for kind, ends in self.bad.items():
            work = WORK if kind in ("dead", "rewind", "far") else ("SEND",)
            self.post(ends, 0, self.count, work=work, receives=kind != "rnr")
            if kind == "far":
                self.post(ends, 1, self.count)
            if kind == "slow":
                self.slow_ring(ends[1].qp)

    def connect(self, kind):
        pmtu = self.rng.choice((3, 5, 5)) if max(self.mix) > 1024 else 3
        own = dict(sq_log2=self.log2, rq_log2=self.log2, cq_log2=self.log2 + 2, pmtu=pmtu, timeout=13,
            max_rd_atomic=16, max_dest_rd_atomic=16, sq_psn=self.rng.getrandbits(24), rq_psn=self.rng.getrandbits(24))
        own |= {"rnr": dict(min_rnr_timer=5), "dead": dict(timeout=8), "rewind": dict(timeout=10)}.get(kind, {})
        psns = own.pop("sq_psn"), own.pop("rq_psn")
        ends = []
        a, b = self.pair.connect(**own, sq_psn=psns[0], rq_psn=psns[0])
        for n, qp in enumerate((a, b)):
            ends.append(Side(qp, len(self.kinds)))
            self.owner[n, qp.attributes["dest_qpn"]] = a.qpn
        self.kinds[a.qpn] = kind
        return ends

    def far_region(self, engine):
        """A region in target 1, which takes FAR clocks for each access."""
        engine.memory.slow(VA, VA + REGION, FAR, target=1)
        return engine.roce.reg_mr(VA, REGION, access=ACCESS, target=1)

    def slow_ring(self, qp):
        """The receive ring of a QP of engine b moves to target 1, where a read takes 1000 clocks and more."""
        engine = self.pair.b
        ring   = engine.read_memory(qp.rq.addr, abi.RECV_WQE_BYTES << qp.rq.log2)
        engine.memory.write(qp.rq.addr, ring, target=1)
        engine.memory.slow(qp.rq.addr, qp.rq.addr + len(ring), (1000, 3000), target=1, kinds=READS)
        engine.port("dr").set(reorder=1.0)
        engine.roce.command(abi.CMD_WRITE_RQ, abi.pack_args(abi.RQ_ARGS, index=qp.attributes["rq_index"], valid=1,
            log2=qp.rq.log2, page=qp.page, addr=qp.rq.addr, target=1))

    # Work -----------------------------------------------------------------------------------------

    def place(self, side, length):
        """A place for a message on one side."""
        at = self.free[side] + self.rng.randrange(64)
        self.free[side] = at + length + GUARD
        assert self.free[side] <= VA + REGION
        return at

    def post(self, ends, side, count, work=WORK, receives=True):
        """`count` operations of one end, receives at the other; doorbells later."""
        mine, peer = ends[side], ends[1 - side]
        mrs        = self.far if self.kinds[ends[0].qp.qpn] == "far" else self.pair.mrs
        mr, far    = mrs[side], mrs[1 - side]
        for n in range(count):
            operation, length = self.rng.choice(work), self.rng.choice(self.mix)
            into   = side if operation == "READ" else 1 - side
            place  = self.place(into, length)
            source = self.rng.randrange(SOURCE - length)
            local, remote = (place, VA + source) if operation == "READ" else (VA + source, place)
            if operation == "SEND" and receives:
                peer.qp.rq.reserve(1, "receive queue")
                wqe = abi.pack(abi.RECV_WQE, abi.RECV_WQE_BYTES, wr_id=n, num_sge=1, va=place, length=max(length, 1),
                    lkey=far.lkey)
                peer.qp.roce.bus.write_memory(peer.qp.rq.slot_addr(peer.qp.rq.producer), wqe)
                peer.qp.rq.producer += 1
                peer.received += 1
            mine.qp.post_send(CODES[operation], mr, va=local, length=length, remote_va=remote, rkey=far.rkey, wr_id=n,
                ring=False)
            mine.sent.append(n)
            if self.kinds[ends[0].qp.qpn] == "good":
                self.moves.append((into, place, source, length))

    def ring(self):
        """All doorbells: receives, then sends."""
        everyone = self.pairs + list(self.bad.values())
        for ends in everyone:
            for end in ends:
                if end.qp.rq.producer:
                    number = end.qp.attributes["rq_index"]
                    end.qp.roce.bus.doorbell(end.qp.page, abi.DOORBELL_RQ, number, end.qp.rq.producer)
        for ends in everyone:
            for end in ends:
                if end.sent:
                    end.qp.ring_send()

    # Wire -----------------------------------------------------------------------------------------

    def passes(self, side, frame):
        """Counts the frame for its pair; thins out those of the bad ones."""
        qpn = self.owner[side, int.from_bytes(frame[QPN], "big")]
        self.bytes[qpn] += len(frame) + WIRE_OVERHEAD
        kind = self.kinds[qpn]
        if kind == "good":
            return (frame,)
        self.seen[kind, side] += 1
        if kind == "dead" or (kind == "rewind" and side == 0 and self.seen[kind, side] % 5 == 0):
            return ()
        return (frame,)

    # Measure --------------------------------------------------------------------------------------

    def measure(self, window=WINDOW):
        """Bytes a clock on both wires by pair, over the window."""
        self.ring()
        self.pair.step(WARM)
        self.bytes.clear()
        begun = self.pair.cycles()
        self.pair.step(window)
        self.clocks = self.pair.cycles() - begun
        return {qpn: n/self.clocks for qpn, n in self.bytes.items()}

    def finish(self, max_cycles=600_000):
        """The good pairs complete all they have, each once, in order, without error, every byte in its place."""
        ends = [end for pair in self.pairs for end in pair]
        done = {id(end): [[], 0] for end in ends}

        def over():
            for end in ends:
                for entry in end.qp.send_cq.poll():
                    assert entry["status"] == 0, (hex(end.qp.qpn), verbs.WC_STATUS_NAMES[entry["status"]])
                    if entry["opcode"] & 0x80:
                        done[id(end)][1] += 1
                    else:
                        done[id(end)][0].append(entry["wr_id"])
            return all(len(sent) == len(end.sent) and received == end.received
                for end, (sent, received) in zip(ends, done.values()))
        self.pair.run(over, max_cycles=max_cycles, every=4096)
        assert all(done[id(end)][0] == end.sent for end in ends), "completions out of order"
        for into, place, source, length in self.moves:
            got = self.pair.engines[into].read_memory(place, length + 32)
            want = self.data[1 - into][source:source + length] + bytes(32)
            assert got == want, f"bytes of {length} at {place:#x} differ"

# Floods -------------------------------------------------------------------------------------------

# Name: (row that counts it or None for the slow path, fields of the packet, change of its frame).
FOREIGN = {
    "other station":      ("DST_MAC",         dict(dst_mac=bytes((2, 9, 9, 9, 9, 9))), None),
    "other port":         (None,              {}, raw(36, b"\x12\xb8")),
    "no IP":              (None,              {}, raw(12, b"\x08\x06")),
    "version":            ("TVER",            dict(tver=1), None),
    "pad without payload": ("UDP_LENGTH",     dict(pad=3, pad_bytes=b"", payload=b""), None),
    "UDP length":         ("UDP_LENGTH",      dict(udp_length=20), None),
    "ICRC":               ("ICRC",            dict(icrc=1), None),
    "cut":                ("RUNT",            dict(payload=bytes(60)), lambda frame: frame[:62]),
    "no such QP":         ("QPN_UNKNOWN",     dict(dest_qpn=0x1f0), None),
    "former QP":          ("QPN_GENERATION",  dict(dest_qpn=0x301), None),
    "class":              ("TRANSPORT_CLASS", dict(opcode=0x24), None),
    "opcode":             ("OPCODE_UNKNOWN",  dict(opcode=0x1e), None),
    "P_Key":              ("PKEY",            dict(pkey=0xfffe), None),
    "source":             ("ADDRESS",         dict(src_ip=bytes((10, 0, 0, 9))), None),
    "fragment":           ("IP_FRAGMENT",     dict(ip_flags=0x2000), None),
    "options":            ("IP_OPTIONS",      {}, raw(14, b"\x46")),
    "congestion":         ("CNP_IGNORED",     dict(opcode=0x81, payload=bytes(16)), None),
}


class Flood(Field):
    """Between the good pairs' frames small foreign and malformed ones, as close as an engine takes them.

    Both engines get them. Each must be counted once by its own row, or come out of the slow path whole.
    """
    def __init__(self, seed, mix="mixed", good=GOOD, share=3):
        super().__init__(seed, mix, good=good)
        self.share  = share                         # foreign frames a good one, on average.
        self.counts = [Counter(), Counter()]        # by row, of the receiving engine.
        self.slow   = [[], []]
        self.stock  = [self.make(side) for side in range(2)]

    def make(self, side):
        """Frames for the engine of `side`: (row, frame)."""
        out = []
        for row, fields, change in FOREIGN.values():
            for ends in self.rng.sample(self.pairs, 4):
                qp     = ends[side].qp
                values = dict(opcode=op.RC_WRITE_ONLY, dest_qpn=qp.qpn, psn=self.rng.getrandbits(24), ackreq=1, va=VA,
                    rkey=self.pair.mrs[side].rkey, dma_length=4, payload=bytes(4),
                    dst_mac=MACS[side].to_bytes(6, "big"), src_mac=MACS[1 - side].to_bytes(6, "big"),
                    dst_ip=IPS[side].to_bytes(4, "big"), src_ip=IPS[1 - side].to_bytes(4, "big"))
                frame = Packet(**(values | fields)).build(pad_frame=True)
                frame = change(frame) if change else frame
                out.append((row, frame + bytes(max(0, 60 - len(frame)))))
        return out

    def passes(self, side, frame):
        """A good frame and the foreign ones in front of it."""
        engine = self.pair.engines[1 - side]
        for _ in range(self.rng.randrange(2*self.share + 1)):
            row, foreign = self.rng.choice(self.stock[1 - side])
            engine.send(foreign, idle=int(len(foreign) <= 64))
            self.counts[1 - side][row] += 1
            if row is None:
                self.slow[1 - side].append(foreign)
        return super().passes(side, frame)

    def check(self):
        """Every foreign frame was counted or came out whole; nothing else was refused."""
        for name, engine, counts, slow in zip("ab", self.pair.engines, self.counts, self.slow):
            got  = [f.data for f in engine.slow_out.recv_all()]
            assert got == slow, f"engine {name}: {len(got)} frames from the slow path, {len(slow)} sent there"
            rows = {row.name: engine.counter(row.index) for row in ERRORS.values()}
            rows = {row: n for row, n in rows.items() if n}
            want = {row: n for row, n in counts.items() if row is not None}
            assert rows == want, f"engine {name} counted {rows}, sent were {want}"


# A peer that asks again ---------------------------------------------------------------------------

def asked_again(every, seed=1, frames=3000):
    """Of a wire without a gap every `every`th frame is a READ that was answered long ago; the others go to seven QPs.

    Each of these finds a place and is acknowledged; each READ is answered again or dropped, and counted once.
    """
    bench  = Bench(seed=seed, tick_cycles=1)
    engine = bench.engines[0]
    engine.rx.pace(WIRE_BYTES)
    mr, cq = engine.roce.reg_mr(VA, 1 << 20, access=ACCESS), engine.roce.create_cq(8)
    qps    = []
    for n in range(8):
        qps.append(engine.roce.create_qp(cq, cq, sq_log2=6, rq_log2=4, src_mac=MACS[0], dst_mac=MACS[1], src_ip=IPS[0],
            dst_ip=IPS[1], dest_qpn=0x300 + n, sq_psn=0, rq_psn=5, timeout=0, max_dest_rd_atomic=16))
        for state in (abi.QP_INIT, abi.QP_RTR, abi.QP_RTS):
            qps[-1].modify(state)

    def packet(qp, opcode, psn, payload=b"", length=64):
        return Packet(opcode=opcode, dest_qpn=qp.qpn, psn=psn, ackreq=1, va=VA, rkey=mr.rkey, dma_length=length, payload=payload,
            dst_mac=MACS[0].to_bytes(6, "big"), src_mac=MACS[1].to_bytes(6, "big"),
            dst_ip=IPS[0].to_bytes(4, "big"), src_ip=IPS[1].to_bytes(4, "big")).build(pad_frame=True)
    for k in range(16):
        engine.send(packet(qps[0], op.RC_READ_REQUEST, 5 + k))
    bench.step(4000)
    engine.frames()
    rng, psns, again = random.Random(seed), [5]*8, 0
    for i in range(frames):
        if i % every == 0:
            engine.send(packet(qps[0], op.RC_READ_REQUEST, 5 + rng.randrange(16)*(seed != 1)))
            again += 1
        else:
            good = 1 + i % 7
            engine.send(packet(qps[good], op.RC_WRITE_ONLY, psns[good], bytes(64)))
            psns[good] += 1
    bench.step(60_000)
    rows = {row.name: engine.counter(row.index) for row in ERRORS.values()}
    rows = {row: n for row, n in rows.items() if n}
    assert set(rows) <= {"PSN_DUPLICATE", "DUPLICATE_DROPPED"}, rows
    assert sum(rows.values()) == again, (rows, again)
    last = {}
    for frame in engine.frames():
        p = parse(frame)
        last[p.dest_qpn] = max(last.get(p.dest_qpn, 0), p.psn)
    assert [last[0x300 + n] for n in range(1, 8)] == [psn - 1 for psn in psns[1:]]
    return bench.sim.cycles()


# Transmit wires that stand still ------------------------------------------------------------------

def blocked(seed):
    """Both wires stand still at once, long and often, with READ replies, acknowledges and requests to send."""
    rng   = random.Random(seed)
    field = Field(seed, rng.choice(("mixed", "small", "large")))
    tx    = [engine.tx for engine in field.pair.engines]
    field.ring()
    for _ in range(6):
        field.pair.step(rng.randrange(200, 3000))
        for sink in tx:
            sink.set(stall=1.0)
        field.pair.step(rng.choice((500, 3000, 12_000)))
        for sink in rng.sample(tx, 2):
            sink.set(stall=0)
            field.pair.step(rng.choice((0, 0, 100, 3000)))
    field.finish()
    field.pair.check_idle()
    for engine in field.pair.engines:
        rows = {row.name: engine.counter(row.index) for row in ERRORS.values()}
        assert not any(rows.values()), f"refused on a clean wire: { {row: n for row, n in rows.items() if n} }"
    return field.pair.cycles()


# Campaign -----------------------------------------------------------------------------------------

def flooded(seed, mix="mixed"):
    """The flood, until the good pairs have completed all they have."""
    field = Flood(seed, mix)
    field.ring()
    field.finish()
    field.pair.check_idle()
    field.check()
    return field.pair.cycles()


@functools.lru_cache(maxsize=None)
def alone(seed, mix):
    """(Bytes a clock by pair, clocks simulated) of 60 pairs without a bad one."""
    field = Field(seed, mix)
    return field.measure(), field.pair.cycles()


def beside(seed, mix, kinds):
    """What 60 pairs move beside bad ones is 95 % of what they move alone, less what the bad ones put on the wires."""
    rates, clocks = alone(seed, mix)
    field = Field(seed, mix, kinds)
    got   = field.measure()
    bad   = sum(rate for qpn, rate in got.items() if field.kinds[qpn] != "good")
    good  = [rate for qpn, rate in got.items() if field.kinds[qpn] == "good"]
    base  = sum(rates.values())
    # None of the bad ones gets more than two good ones have.
    assert bad <= 2*len(kinds)*base/GOOD, f"{kinds} take {bad:.1f} of {base:.1f} bytes a clock"
    share = sum(good)/(base - bad)
    least = min(rates.values())
    assert share >= KEEP, f"beside {kinds} the good move {sum(good):.1f} B a clock, alone {base:.1f}, the bad {bad:.1f}"
    assert min(good) >= least/2, f"beside {kinds} a good pair moves {min(good):.2f} bytes a clock, alone {least:.2f}"
    for kind in kinds:
        assert field.seen[kind, 0] >= 3, f"{kind} sent {field.seen[kind, 0]} frames, next to nothing"
    field.finish()
    return clocks + field.pair.cycles()


def run(seed):
    """One play: a kind of bad neighbour, all of them, a flood, or wires that stand still."""
    rng   = random.Random(seed)
    kind  = rng.choice((*BAD, "all", "all", "flood", "blocked"))
    if kind == "blocked":
        return blocked(seed)
    mix = rng.choice(list(MIXES))
    if kind == "flood":
        return flooded(seed, mix)
    return beside(seed, mix, BAD if kind == "all" else (kind,))
