# SPDX-License-Identifier: BSD-2-Clause
"""packet/icrc, packet/icrc_checker: worked examples, every end modulo 64, corrupted bits, gaps; judged by zlib through test/model."""
import pytest
from litex.gen import LiteXModule
from litex.soc.interconnect.stream import Endpoint, EndpointDescription
from migen import If

from roce_soc import opcodes
from roce_soc.packet import icrc
from roce_soc.packet.icrc import ICRCInserter
from roce_soc.packet.icrc_checker import ICRCChecker, residue
from sim.harness import Sim, build
from test.model.packet import Packet, parse

# protocol.md 2.2: L2 to ICRC, untagged IPv4, IPv6, VLAN, CNP, READ request.
EXAMPLES = {
    "A": """02 00 00 00 00 02 02 00 00 00 00 01 08 00 45 6a 00 4c 12 34 40 00 40 11 a3 ff c0 00 02 01 c0 00 02 02
            c1 23 12 b7 00 38 00 00 0a 30 ff ff 00 00 00 12 80 ff ff fe 00 00 7f 00 12 34 56 78 00 00 0a 2b
            00 00 00 0d 10 11 12 13 14 15 16 17 18 19 1a 1b 1c 00 00 00 bc 63 12 17""",
    "B": """02 00 00 00 00 02 02 00 00 00 00 01 86 dd 66 80 00 00 00 1c 11 40
            20 01 0d b8 00 00 00 00 00 00 00 00 00 00 00 01 20 01 0d b8 00 00 00 00 00 00 00 00 00 00 00 02
            d0 0d 12 b7 00 1c 00 00 11 00 ff ff 00 00 ab cd 00 00 00 05 1f 00 00 03 a8 7a 40 2c""",
    "C": """02 00 00 00 00 02 02 00 00 00 00 01 81 00 60 64 08 00 45 6a 00 30 00 00 40 00 40 11 26 51
            0a 00 00 01 0a 00 00 02 c0 00 12 b7 00 1c 00 00 04 c0 ff ff 00 00 01 00 80 00 00 00 de ad be ef
            16 d7 bb 0d""",
    "D": """02 00 00 00 00 02 02 00 00 00 00 01 08 00 45 c0 00 3c 00 00 40 00 40 11 25 ef 0a 00 00 02 0a 00 00 01
            c0 00 12 b7 00 28 00 00 81 00 ff ff 40 00 00 d2 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
            00 00 00 00 ea 37 a3 22""",
    "E": """02 00 00 00 00 02 02 00 00 00 00 01 86 dd 66 aa bc de 00 28 11 40
            20 01 0d b8 00 00 00 00 00 00 00 00 00 00 00 01 20 01 0d b8 00 00 00 00 00 00 00 00 00 00 00 02
            ff ff 12 b7 00 28 00 00 0c 00 ff ff 00 12 34 56 80 80 00 00 00 00 00 00 00 00 10 00
            de ad be ef 00 00 10 00 ad 95 62 d2""",
}


class Check(LiteXModule):
    """The checker with `end` beside the beat."""
    def __init__(self):
        self.checker = checker = ICRCChecker()
        self.sink    = sink    = Endpoint(EndpointDescription(
            [("data", 512)], [("vlan", 1), ("ipv6", 1), ("end", 14), ("judge", 1)]))
        self.comb += sink.connect(checker.sink, omit={"end", "judge"})
        self.sync += checker.end.eq(sink.end), checker.judge.eq(sink.judge)


def make_checker():
    top = Check()
    return top, {"sink": top.sink, "verdict_valid": top.checker.valid, "verdict_good": top.checker.good}


@pytest.fixture(scope="module")
def checker():
    return build(*make_checker(), name="icrc_check")


class Insert(LiteXModule):
    """The inserter with last_be in place of a byte count, as the harness' streams want it."""
    def __init__(self):
        self.inserter = ICRCInserter(params=[("token", 16)])
        self.source   = Endpoint(EndpointDescription([("data", 512), ("last_be", 64)], [("token", 16)]))
        self.comb += [
            self.inserter.source.connect(self.source, omit={"bytes"}),
            If(self.source.last, self.source.last_be.eq(1 << (self.inserter.source.bytes - 1)[:6])),
        ]


@pytest.fixture(scope="module")
def inserter():
    top = Insert()
    return build(top, {"sink": top.inserter.sink, "source": top.source}, name="icrc_insert")


def random_packet(rng, length=None, ipv6=None, vlan=None):
    """A frame with ICRC: any opcode's headers, any payload length."""
    entry = rng.choice(list(opcodes.OPCODES.values()))
    size  = 0 if entry.payload == "NONE" else length if length is not None else rng.choice([rng.randrange(300), rng.randrange(4097)])
    ipv6  = rng.random() < .5 if ipv6 is None else ipv6
    tag   = rng.random() < .5 if vlan is None else vlan
    ip    = 16 if ipv6 else 4
    return Packet(opcode=entry.value, ip_version=6 if ipv6 else 4, vlan=rng.getrandbits(16) if tag else None,
        dst_mac=rng.randbytes(6), src_mac=rng.randbytes(6), src_ip=rng.randbytes(ip), dst_ip=rng.randbytes(ip),
        tos=rng.getrandbits(8), ttl=rng.getrandbits(8), flow_label=rng.getrandbits(20), ip_id=rng.getrandbits(16),
        udp_checksum=rng.getrandbits(16), fecn=rng.getrandbits(1), psn=rng.getrandbits(24), dest_qpn=rng.getrandbits(24),
        va=rng.getrandbits(64), payload=rng.randbytes(size)).build()


def end_of(frame):
    """(vlan, ipv6, byte behind the ICRC)"""
    vlan = frame[12:14] == b"\x81\x00"
    ip   = 18 if vlan else 14
    ipv6 = frame[ip - 2:ip] == b"\x86\xdd"
    udp  = ip + (40 if ipv6 else 20)
    return int(vlan), int(ipv6), udp + int.from_bytes(frame[udp + 4:udp + 6], "big")


class CheckBench:
    """Feeds frames and collects one verdict a frame."""
    def __init__(self, so, seed, gap=0.0):
        self.sim    = Sim(so, seed=seed)
        self.source = self.sim.source("sink", gap=gap)
        self.sim.reset()

    def verdicts(self, frames, **override):
        got, at = [], []
        for frame in frames:
            vlan, ipv6, end = end_of(frame)
            self.source.send(frame, **{**dict(vlan=vlan, ipv6=ipv6, end=end, judge=1), **override})
        while self.source.pending or not got or self.sim.cycles() < self._last + 10:
            self.sim.step()
            if self.source.pending:
                self._last = self.sim.cycles()
            if self.sim.peek("verdict_valid"):
                got.append(self.sim.peek("verdict_good"))
                at.append(self.sim.cycles())
        return got, at


@pytest.mark.parametrize("name", EXAMPLES)
def test_worked_example(checker, inserter, name, seed):
    frame = bytes.fromhex(EXAMPLES[name])
    assert parse(frame).icrc_ok
    got, _ = CheckBench(checker, seed).verdicts([frame, frame + b"\x55" * 7])
    assert got == [1, 1]
    assert insert(inserter, seed, [frame])[0] == [frame]


def test_every_end(checker, seed, rng):
    frames = [random_packet(rng, length=4 * n, ipv6=v6, vlan=tag) for n in range(33) for v6 in (0, 1) for tag in (0, 1)]
    frames += [random_packet(rng) for _ in range(150)]
    assert len({end_of(f)[2] % 64 for f in frames}) == 16
    for gap in (0, .5):
        got, _ = CheckBench(checker, seed, gap).verdicts(frames)
        assert got == [1] * len(frames)


def test_bad_frames(checker, seed, rng):
    """Any covered bit turned, a frame cut short, an end elsewhere: not good; bits not covered do not matter."""
    frames, wanted = [], []
    for _ in range(300):
        frame     = bytearray(random_packet(rng, length=rng.randrange(200)))
        _, _, end = end_of(frame)
        ip        = 18 if end_of(frame)[0] else 14
        kind      = rng.randrange(5)
        if kind == 0:
            frame[rng.randrange(end - 4, end)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            # Behind BTH byte 4 every byte is covered.
            frame[end - rng.randrange(1, 5) - rng.randrange(8)] ^= 1 << rng.randrange(8)
        elif kind == 2:
            frame[rng.randrange(12)] ^= 1 << rng.randrange(8)
        elif kind == 3:
            frame += rng.randbytes(rng.randrange(1, 100))
        elif kind == 4:
            frame[ip + (7 if end_of(frame)[1] else 8)] ^= 0x41
        frames.append(bytes(frame))
        wanted.append(int(kind >= 2))
    got, _ = CheckBench(checker, seed, .2).verdicts(frames)
    assert got == wanted
    long = random_packet(rng, length=200)
    _, _, end = end_of(long)
    for wrong in (end + 4, end - 4, end + 64, end - 64, end + 1, end + 2, 0x2002, 2):
        got, _ = CheckBench(checker, seed).verdicts([long, random_packet(rng, length=8)][:1], end=wrong)
        assert got == [0]


def test_other_frames(checker, seed, rng):
    """Frames that are not to be judged get no verdict and leave nothing behind."""
    bench, wanted = CheckBench(checker, seed, .2), 0
    for n in range(100):
        vlan, ipv6, end = end_of(frame := random_packet(rng, length=rng.randrange(200)))
        judge = n % 3 != 0
        bench.source.send(frame, vlan=vlan, ipv6=ipv6, end=end if judge else rng.randrange(1 << 14), judge=judge)
        wanted += judge
    got, _ = bench.verdicts([random_packet(rng)])
    assert got == [1]*(wanted + 1)


def test_frame_shorter_than_its_end(checker, seed, rng):
    """A good packet whose UDP length claims a beat more than there is: same residue, still not good."""
    for length in (8, 64, 200):
        frame = random_packet(rng, length=length)
        bench = CheckBench(checker, seed)
        bench.source.set(poison=False)
        assert bench.verdicts([frame], end=end_of(frame)[2] + 64)[0] == [0]


def test_latency(checker, seed, rng):
    """One verdict LATENCY clocks behind each last beat, frames back to back."""
    frames = [random_packet(rng, length=rng.randrange(300)) for _ in range(40)]
    bench  = CheckBench(checker, seed)
    got, at = bench.verdicts(frames)
    assert got == [1] * len(frames)
    ends = [last for _, _, last, _ in bench.source.times()]
    assert {a - e for a, e in zip(at, ends)} == {at[0] - ends[0]}
    # A signal peeked after n edges shows what edge n made; the beat was taken by edge `last`.
    assert at[0] - ends[0] in (ICRCChecker.LATENCY - 1, ICRCChecker.LATENCY)


def insert(so, seed, frames, gap=0.0, **params):
    """Frames through the inserter, fed without their ICRC and what follows it."""
    sim    = Sim(so, seed=seed)
    source = sim.source("sink", gap=gap, poison=False)
    sink   = sim.sink("source")
    sim.reset()
    for n, frame in enumerate(frames):
        vlan, ipv6, end = end_of(frame)
        source.send(frame[:end - 4], vlan=vlan, ipv6=ipv6, end=(end - 4) % 64, token=n, **params)
    sim.until(sink, len(frames))
    out = sink.recv_all()
    assert [f.token for f in out] == list(range(len(frames)))
    return [f.data for f in out], out, source.times()


@pytest.mark.parametrize("gap", [0, .5])
def test_insert(inserter, seed, rng, gap):
    frames  = [random_packet(rng, length=4 * n, ipv6=v6, vlan=tag) for n in range(33) for v6 in (0, 1) for tag in (0, 1)]
    frames += [random_packet(rng) for _ in range(100)]
    frames  = [f[:end_of(f)[2]] for f in frames]
    got, out, times = insert(inserter, seed, frames, gap)
    assert got == frames
    assert out[0].first - times[0][1] == icrc.ICRCInserter.LATENCY
    if not gap:
        beats = sum(-(-len(f) // 64) for f in frames)
        assert out[-1].last - out[0].first + 1 == beats
        print(f"ICRC inserter: {beats} beats of {len(frames)} frames in {out[-1].last - out[0].first + 1} clocks,"
              f" latency {out[0].first - times[0][1]}")


def test_pass_by(inserter, seed, rng):
    """Frames that have an ICRC, or need none, leave unchanged."""
    frames = [random_packet(rng) for _ in range(20)]
    sim    = Sim(inserter, seed=seed)
    source, sink = sim.source("sink", poison=False), sim.sink("source")
    sim.reset()
    frames += [rng.randbytes(n) for n in (1, 62, 63, 64, 65, 128)]
    for frame in frames:
        source.send(frame, end=len(frame) % 64, pass_by=1)
    sim.until(sink, len(frames))
    assert [f.data for f in sink.recv_all()] == frames


def test_arithmetic():
    """Steps undo each other; data columns are what zlib says; residues differ."""
    import zlib
    assert icrc.crc_step(icrc.crc_step(0x12345678, 100), -100) == 0x12345678
    columns = icrc.data_columns()
    for bit in (0, 7, 8, 100, 511):
        beat = (1 << bit).to_bytes(64, "little")
        assert columns[bit] == zlib.crc32(beat) ^ zlib.crc32(bytes(64))
    assert icrc.data_columns(-16)[9] == icrc.crc_step(columns[9], -16)
    assert len({residue(2 + 4 * n) for n in range(16)}) == 16


def test_width():
    for cls in (ICRCChecker, ICRCInserter):
        with pytest.raises(ValueError, match="512"):
            cls(dw=256)
