# SPDX-License-Identifier: BSD-2-Clause
"""network/transmit: classes, order, padding, loopback, errors, pause, room; with fetcher, encoder and ICRC before it."""
import pytest
from litex.gen import LiteXModule
from litex.soc.interconnect import stream

from roce_soc import opcodes
from roce_soc.common import OWNER_ACK
from roce_soc.network.transmit import ControlFIFO, WholeFrameFIFO, RoCETransmit
from sim.harness import Sim, build
from test.tx_bench import TxBench, make, padded, psn_returned


@pytest.fixture(scope="module")
def so():
    return build(*make(), name="transmit")


class Store(LiteXModule):
    """A WholeFrameFIFO alone; `drop` with a frame's beats discards it."""
    def __init__(self):
        self.fifo = fifo = WholeFrameFIFO(64, False)
        self.sink = sink = stream.Endpoint(
            stream.EndpointDescription([("data", 512)], [("lane", 6), ("drop", 1)]))
        self.comb += [
            sink.ready.eq(1),
            fifo.discard.eq(sink.drop),
            [getattr(fifo.sink, n).eq(getattr(sink, n)) for n in ("valid", "first", "last", "data", "lane")],
        ]


@pytest.fixture(scope="module")
def store():
    top = Store()
    return build(top, {"sink": top.sink, "source": top.fifo.source, "free": top.fifo.free}, name="frame_fifo")


def through_store(so, seed, frames, gap=0.0, stall=0.0):
    """Frames (beats, dropped) through a WholeFrameFIFO, as many at once as it has room for: (last clocks in, frames out)."""
    sim = Sim(so, seed=seed)
    source, sink = sim.source("sink", gap=gap), sim.sink("source", stall=stall)
    sim.reset()
    ends, left = [], list(enumerate(frames))
    while left:
        room = sim.peek("free")
        while left and left[0][1][0] <= room:
            n, (beats, drop) = left.pop(0)
            source.send((n + 1).to_bytes(2, "little")*32*beats, lane=n % 64, drop=drop)
            room -= beats
        sim.drain(source)
        ends += [last for _, _, last, _ in source.times()]
        sim.step(1)
    sim.step(2000)
    got = sink.recv_all()
    assert sim.peek("free") == 64 and not sink.stats()["open"]
    assert [(f.data, f.lane) for f in got] == [((n + 1).to_bytes(2, "little")*32*beats, n % 64)
        for n, (beats, drop) in enumerate(frames) if not drop]
    return ends, got


@pytest.mark.parametrize("gap,stall", [(0, 0), (.3, 0), (0, .5), (.5, .5), (.3, .9)])
def test_store(store, seed, rng, gap, stall):
    """Whole frames in order, dropped ones never, whatever the sizes and whoever waits; no beat's place is lost."""
    frames = [(rng.choice([1, 1, 2, 2, 3, rng.randrange(1, 30)]), int(rng.random() < .3)) for _ in range(600)]
    ends, got = through_store(store, seed, frames, gap, stall)
    if not stall:
        assert all(f.last - f.first + 1 == f.beats for f in got), "a frame had a gap"
    kept = [end for end, (_, drop) in zip(ends, frames) if not drop]
    assert all(f.first >= end for f, end in zip(got, kept)), "a frame left before it was whole"


@pytest.mark.parametrize("beats", [1, 2, 3, 17])
def test_store_latency(store, seed, beats):
    """The first beat is there with the last one, also behind a dropped frame; a single beat comes a clock later."""
    frames = [(beats, 0), (2, 1), (beats, 0), (1, 1), (beats, 0)]
    ends, got = through_store(store, seed, frames, gap=.2)
    assert [f.first - end for f, end in zip(got, ends[::2])] == [int(beats == 1)]*3


def full(bench):
    """All beats are free again."""
    bench.sim.step(20)
    return [bench.sim.peek(f"free_{c}") for c in ("control", "roce", "slow")] == [32, 512, 128]


def test_control_first(so, seed, rng):
    """While the wire stands, acknowledges pass the data frames that wait, but not the one that has begun."""
    bench = TxBench(so, seed, rng)
    bench.tx.set(stall=1)
    data = [bench.packet(opcodes.RC_WRITE_MIDDLE, 1024, client=0) for _ in range(5)]
    bench.sim.step(400)
    acks = [bench.packet(opcodes.RC_ACKNOWLEDGE, client=1, owner=OWNER_ACK) for _ in range(5)]
    bench.sim.step(400)
    assert len(bench.returned(10)) == 10, "all of them are stored whole"
    bench.tx.set(stall=0)
    got = [f.data for f in bench.frames(10)]
    assert got == [padded(f) for _, f in data[:1] + acks + data[1:]]
    assert full(bench)


def test_control_rate(so, seed, rng):
    """Acknowledges of one and two beats beside data, the wire stalling: no gap inside a frame, none lost."""
    bench = TxBench(so, seed, rng, latency=4)
    acks  = [bench.packet(opcodes.RC_ACKNOWLEDGE, client=0, owner=OWNER_ACK)[1] for _ in range(200)]
    got   = bench.frames(200)
    assert [f.data for f in got] == acks and all(f.last - f.first + 1 == f.beats for f in got)
    assert got[-1].last - got[0].first + 1 == sum(f.beats for f in got)
    bench.tx.set(stall=.5)
    sent = []
    for n in range(200):
        ack = rng.random() < .6
        sent.append(bench.packet(opcodes.RC_ACKNOWLEDGE if ack else opcodes.RC_SEND_ONLY, 0 if ack else rng.randrange(600), client=0,
            owner=OWNER_ACK if ack else 0))
    got = [f.data for f in bench.frames(200)]
    for owner in (0, OWNER_ACK):
        mine = [padded(f) for r, f in sent if r["owner"] == owner]
        assert [f for f in got if f in set(mine)] == mine
    assert full(bench)


def test_padding(so, seed, rng):
    """Only a zero-length SEND over untagged IPv4 is short: 58 bytes become 60, the rest of the lanes is not sent."""
    bench = TxBench(so, seed, rng, rows=dict(ipv6=0, vlan_en=0))
    _, frame = bench.packet(opcodes.RC_SEND_ONLY, 0)
    got = bench.frames(1)[0].data
    assert len(frame) == 58 and got == frame + b"\0\0"
    for size in (1, 14, 42, 59, 60, 61, 64, 65, 127, 128, 1530):
        slow = rng.randbytes(size)
        bench.slow.send(slow)
        assert bench.frames(1)[0].data == padded(slow)
    assert full(bench)


def test_loopback(so, seed, rng):
    """Frames to the own MAC turn round, padded as well; the others go on; a stalled way does not lose anything."""
    bench = TxBench(so, seed, rng, stall=.3)
    for qpi in range(8):
        bench.row(qpi, dst_mac=0x020000000001, src_mac=0x020000000001, ipv6=0, vlan_en=0)
    there, back = [], []
    for _ in range(60):
        qpi = rng.randrange(16)
        (back if qpi < 8 else there).append(bench.packet(opcodes.RC_SEND_ONLY, rng.randrange(600), qpi=qpi))
    assert [f.data for f in bench.frames(len(back), bench.loop)] == [padded(f) for _, f in back]
    assert [f.data for f in bench.frames(len(there))] == [padded(f) for _, f in there]


def test_read_error_drops_the_frame(so, seed, rng):
    """Nothing of it is sent, tx_sent says so, its beats are free again, its neighbours leave."""
    bench = TxBench(so, seed, rng)
    bench.memory.fail(0x10000, 0x20000, 1)
    sent, bad = [], 0
    for n in range(80):
        fails = rng.random() < .4
        addr  = (0x10000 if fails else 0x100000) + rng.randrange(3000)
        pack  = bench.packet(opcodes.RC_WRITE_ONLY, rng.randrange(1, 4097), addr=addr)
        sent.append((fails, *pack))
    got = bench.frames(sum(not f for f, *_ in sent))
    # IP identification counts dropped frames too.
    assert [f.data for f in got] == [padded(frame) for fails, _, frame in sent if not fails]
    assert bench.returned(80) == [(r["owner"], 0, r["qpi"], psn_returned(r), int(fails)) for fails, r, _ in sent]
    assert full(bench)


def test_second_page_error(so, seed, rng):
    bench = TxBench(so, seed, rng)
    bench.memory.fail(0x20000, 0x21000, 3)
    bench.memory.set(timeout=50)
    record, _ = bench.packet(opcodes.RC_WRITE_ONLY, 2000, addr=0x20000 - 300)
    assert bench.returned(1) == [(record["owner"], 0, record["qpi"], psn_returned(record), 3)]
    bench.sim.step(200)
    assert not len(bench.tx) and full(bench)


def test_markers(so, seed, rng):
    """Return in order with the packets around them and send nothing, also after a read error."""
    bench = TxBench(so, seed, rng, latency=40)
    bench.memory.fail(0x10000, 0x20000, 1)
    wanted, frames = [], []
    for n in range(100):
        kind = rng.randrange(4)
        if kind == 0:
            r = bench.marker()
            wanted.append((r["owner"], 1, r["qpi"], r["psn"], 0))
        else:
            r, frame = bench.packet(opcodes.RC_SEND_ONLY, rng.choice([0, rng.randrange(1, 500)]), addr=0x10000 if kind == 1 else 0x30000)
            err = int(kind == 1 and r["length"] > 0)
            wanted.append((r["owner"], 0, r["qpi"], psn_returned(r), err))
            frames += [] if err else [frame]
    assert bench.returned(100) == wanted
    assert [f.data for f in bench.frames(len(frames))] == [padded(f) for f in frames]


def test_classes_share(so, seed, rng):
    """Slow path and RoCE take turns per frame; each class keeps its order; whole frames only."""
    bench = TxBench(so, seed, rng)
    bench.tx.set(stall=1)
    data = [bench.packet(opcodes.RC_WRITE_MIDDLE, 256) for _ in range(12)]
    slow = [b"\xff" * 6 + rng.randbytes(rng.randrange(40, 500)) for _ in range(12)]
    for frame in slow:
        bench.slow.send(frame)
    bench.sim.step(600)
    bench.tx.set(stall=.1)
    got   = [f.data for f in bench.frames(24)]
    first = [f in {padded(s) for s in slow} for f in got]
    assert sum(first[:14]) >= 6
    assert [f for f in got if f in {padded(s) for s in slow}] == [padded(s) for s in slow]
    assert [f for f in got if f not in {padded(s) for s in slow}] == [padded(f) for _, f in data]


def test_slow_error(so, seed, rng):
    """A slow-path frame with an error mark is dropped whole."""
    bench = TxBench(so, seed, rng)
    bench.slow.send(bytes(200), error=1)
    bench.slow.send(b"good" * 50)
    assert bench.frames(1)[0].data == b"good" * 50
    bench.sim.step(100)
    assert not len(bench.tx) and full(bench)


def test_pause(so, seed, rng):
    """A paused class begins no frame; the others go on."""
    bench = TxBench(so, seed, rng)
    bench.sim.poke("pause", 0b010)
    data = [bench.packet(opcodes.RC_WRITE_MIDDLE, 256) for _ in range(4)]
    acks = [bench.packet(opcodes.RC_ACKNOWLEDGE, owner=OWNER_ACK) for _ in range(4)]
    assert [f.data for f in bench.frames(4)] == [padded(f) for _, f in acks]
    bench.sim.step(200)
    assert not len(bench.tx)
    bench.sim.poke("pause", 0)
    assert [f.data for f in bench.frames(4)] == [padded(f) for _, f in data]


def test_full(so, seed, rng):
    """The wire stands: the FIFOs fill up to whole frames and nothing is lost or cut."""
    bench = TxBench(so, seed, rng)
    bench.tx.set(stall=1)
    sent = [bench.packet(opcodes.RC_WRITE_MIDDLE, 4096) for _ in range(20)]
    bench.sim.step(3000)
    stored = len(bench.sent)
    assert 4 <= stored <= 8
    bench.tx.set(stall=0)
    assert [f.data for f in bench.frames(20)] == [f for _, f in sent]
    assert full(bench)


def test_parameters():
    with pytest.raises(ValueError, match="roce_beats"):
        RoCETransmit(roce_beats=256)
    for cls, bad in ((WholeFrameFIFO, 2), (WholeFrameFIFO, 100), (ControlFIFO, 3)):
        with pytest.raises(ValueError, match="depth"):
            cls(bad)
