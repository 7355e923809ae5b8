# SPDX-License-Identifier: BSD-2-Clause
"""packet/encoder: every opcode, layout, payload residue and memory lane; judged by test/model; B1 of the transmit side."""
import pytest

from roce_soc import opcodes
from roce_soc.common import OWNER_ACK
from roce_soc.packet import header
from sim.harness import build
from test.model.packet import parse
from test.tx_bench import TxBench, make, padded, psn_returned, random_length

# Records carry no atomic operands and no UD fields.
OPCODES = [o.value for o in opcodes.OPCODES.values() if not {"ATOMICETH", "ATOMICACKETH", "DETH"} & set(o.headers)]


@pytest.fixture(scope="module")
def so():
    return build(*make(), name="transmit")


def check(bench, sent, max_cycles=400_000):
    """Frames on the wire are the wanted ones, in order, gapless while the wire never stalls."""
    got = bench.frames(len(sent), max_cycles=max_cycles)
    for n, ((record, wanted), frame) in enumerate(zip(sent, got)):
        assert frame.data == padded(wanted), f"frame {n}, opcode {record['opcode']:#x}, length {record['length']}, addr {record['addr']:#x}"
        assert parse(frame.data).icrc_ok
    return got


@pytest.mark.parametrize("layout", range(4))
def test_every_opcode(so, seed, rng, layout):
    bench = TxBench(so, seed, rng, rows=dict(vlan_en=layout & 1, ipv6=layout >> 1))
    check(bench, [bench.packet(o, random_length(rng, o, 300)) for o in OPCODES for _ in range(3)])


@pytest.mark.parametrize("gap,stall,options", [
    (0, 0, dict()), (.2, .4, dict(latency=(1, 100), cmd_stall=.4, answer_gap=.5))], ids=["plain", "stalls"])
def test_every_residue(so, seed, rng, gap, stall, options):
    """Payload length modulo 64 x memory lane x header length, sampled."""
    bench = TxBench(so, seed, rng, gap=gap, stall=stall, **options)
    sent  = []
    for length in [*range(0, 132), *[rng.randrange(132, 4097) for _ in range(20)]]:
        for _ in range(3):
            opcode = rng.choice([o for o in OPCODES if opcodes.OPCODES[o].payload != "NONE"])
            sent.append(bench.packet(opcode, length, addr=rng.getrandbits(50) << 6 | rng.randrange(64)))
    got = check(bench, sent)
    assert bench.returned(len(sent)) == [(r["owner"], 0, r["qpi"], psn_returned(r), 0) for r, _ in sent]
    if not stall:
        assert all(f.last - f.first + 1 == f.beats for f in got), "a frame had a gap"


@pytest.mark.parametrize("lane", [0, 1, 31, 62, 63])
def test_lanes(so, seed, rng, lane):
    """All header lengths against one memory lane."""
    bench = TxBench(so, seed, rng)
    check(bench, [bench.packet(o, n, addr=0x10000 + lane) for o in OPCODES if opcodes.OPCODES[o].payload != "NONE" for n in (1, 2, 63, 64, 65, 127, 256)])


def test_checksum(so, seed, rng):
    """IPv4 header checksums with every carry: addresses of ones and zeros."""
    bench = TxBench(so, seed, rng, rows=dict(ipv6=0))
    sent  = []
    for qpi in range(24):
        bench.row(qpi, ipv6=0, src_ip=rng.choice([0xffffffff, 0, rng.getrandbits(32)]), dst_ip=rng.choice([0xffffffff, 0, 0xffff0000]),
            tclass=rng.choice([0, 255]), hop_limit=rng.choice([0, 255]))
        sent += [bench.packet(opcodes.RC_SEND_ONLY, 5, qpi=qpi), bench.packet(opcodes.RC_ACKNOWLEDGE, qpi=qpi)]
    # Low word 0xffff and a carry: the first fold carries once more.
    for n in range(24, 40):
        base  = 0x4500 + bench.ip_id + 0x4000 + 17 + (20 + 8 + 12 + 4) + 0xffff + 0xffff + 0xffff
        bench.row(n, ipv6=0, tclass=0, hop_limit=0, src_ip=0xffffffff, dst_ip=0xffff0000 | (0xffff - base & 0xffff))
        assert (base + (0xffff - base & 0xffff)) & 0xffff == 0xffff
        sent.append(bench.packet(opcodes.RC_SEND_ONLY, 0, qpi=n))
    check(bench, sent)


@pytest.mark.parametrize("length", [0, 1, 64, 256, 1024, 4096, "mixed"])
def test_b1(so, seed, rng, length):
    """Clocks a frame of the transmit side alone, many QPs, mixed opcodes, random addresses: at most beats + 1."""
    bench = TxBench(so, seed, rng, latency=4)
    mix   = OPCODES if length in (0, "mixed") else [o for o in OPCODES if opcodes.OPCODES[o].payload != "NONE"]
    sent  = []
    for n in range(400 if length == 4096 else 1000):
        o = rng.choice(mix)
        sent.append(bench.packet(o, random_length(rng, o, 1500) if length == "mixed" else length, client=0, addr=rng.getrandbits(40)))
    got    = check(bench, sent)
    clocks = got[-1].last - got[100].first + 1
    beats  = sum(f.beats for f in got[100:])
    frames = len(got) - 100
    print(f"B1 TX alone, payload {length}: {clocks / frames:.3f} clocks a frame, {beats / frames:.3f} beats")
    assert clocks <= beats + frames


@pytest.mark.parametrize("gap", [0, .5, .8])
def test_straight(so, seed, rng, gap):
    """Frames without payload, which pass rotator and merge, among those that do not."""
    bench = TxBench(so, seed, rng, gap=gap, latency=4)
    none  = [o for o in OPCODES if opcodes.OPCODES[o].payload == "NONE"]
    sent  = []
    for _ in range(600):
        with_payload = rng.random() < .4
        o = rng.choice([o for o in OPCODES if o not in none] if with_payload else none)
        sent.append(bench.packet(o, rng.randrange(1, 130) if with_payload else 0))
    got = check(bench, sent)
    assert all(f.last - f.first + 1 == f.beats for f in got), "a frame had a gap"


@pytest.mark.parametrize("length,owner,clocks", [(0, OWNER_ACK, 8), (0, 0, 9), (1, 0, 11), (64, 0, 11), (1024, 0, 11)])
def test_latency(so, seed, rng, length, owner, clocks):
    """Record to first beat on the wire: encoder, ICRC, way out; with payload its memory, less the frame's beats."""
    bench = TxBench(so, seed, rng, rows=dict(ipv6=0, vlan_en=0), latency=4)
    for n in range(3):
        opcode   = opcodes.RC_READ_RESPONSE_ONLY if length else opcodes.RC_ACKNOWLEDGE
        _, frame = bench.packet(opcode, length, owner=owner, addr=n << 20)
        got   = bench.frames(1)[0]
        taken = got.first - bench.clients[0].times()[0][1] - (got.beats if length else 0)
        print(f"TX: record to first beat on the wire {taken} clocks, {got.beats} beats")
        assert got.data == padded(frame) and taken <= clocks


def test_headers():
    """Lengths of the tables; odd bits are refused."""
    from migen import Signal
    found, index = header.formats()
    assert set(index) == set(opcodes.OPCODES) and header.MAX_HEADER_BYTES == 106
    for value, n in index.items():
        assert len(header.extension(found[n], object())) == 8 * opcodes.OPCODES[value].header_length if found[n] else True
    with pytest.raises(ValueError, match="whole bytes"):
        header.wire((Signal(3), 3))
