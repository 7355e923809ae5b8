# SPDX-License-Identifier: BSD-2-Clause
"""memory/fetcher: pages, order, room, latency hidden, errors; on the harness' memory."""
import pytest

from roce_soc.common import TAG_WIDTH
from roce_soc.memory.fetcher import PayloadFetcher
from sim.harness import Sim, build

BEATS = 256


def make():
    top   = PayloadFetcher(payload_beats=BEATS, max_reads=40)
    ports = [top.get_port() for _ in range(2)]
    return top, {**{f"c{n}": p for n, p in enumerate(ports)}, "source": top.source, "payload": top.payload, "m": top.port.streams()}


@pytest.fixture(scope="module")
def so():
    return build(*make(), name="fetcher")


class Bench:
    def __init__(self, so, seed, rng, gap=0.0, stall=0.0, **options):
        self.sim, self.rng = Sim(so, seed=seed), rng
        sim = self.sim
        self.memory  = sim.memory("m", **options)
        self.clients = [sim.source(f"c{n}", gap=gap) for n in (0, 1)]
        self.packets = sim.sink("source", stall=stall)
        self.payload = sim.sink("payload", stall=stall, records=True)
        self.count   = 0
        sim.reset()

    def send(self, length, addr=None, client=0, marker=0, target=0):
        addr = self.rng.getrandbits(62) if addr is None else addr
        self.count += 1
        self.clients[client].send(length=length, addr=addr, marker=marker, target=target, psn=self.count, owner=client)
        beats = 0 if marker or not length else -(-(addr % 64 + length) // 64)
        return self.count, client, length, addr, target, beats

    def check(self, sent, expect=lambda addr, length: 0, max_cycles=300_000):
        """Packets in order, their beats in order and right."""
        self.sim.until(self.packets, len(sent), max_cycles=max_cycles)
        for number, client, length, addr, target, beats in sent:
            packet = self.packets.recv()
            assert (packet.psn, packet.owner, packet.length, packet.addr) == (number, client, length, addr)
            self.sim.until(self.payload, beats, max_cycles=max_cycles)
            got = [self.payload.recv() for _ in range(beats)]
            data = b"".join(b["data"].to_bytes(64, "little") for b in got)
            errs = {b.err for b in got}
            assert errs <= {0, expect(addr, length)} and (not beats or expect(addr, length) in errs)
            if errs == {0}:
                assert data[addr % 64:addr % 64 + length] == self.memory.read(addr, length, target)
        assert not len(self.payload)


@pytest.mark.parametrize("gap,stall,options", [
    (0, 0, dict()), (.3, .4, dict(latency=(1, 300), cmd_stall=.4, answer_gap=.4))], ids=["plain", "stalls"])
def test_packets(so, seed, rng, gap, stall, options):
    """Any length and address, none, markers with garbage in their length."""
    bench = Bench(so, seed, rng, gap, stall, **options)
    # Second pages whose address carries through every bit.
    sent  = [bench.send(200, (1 << bit) - rng.randrange(1, 200)) for bit in range(12, 63)]
    for _ in range(300):
        kind = rng.randrange(6)
        addr = rng.choice([None, (rng.getrandbits(40) << 12) - rng.randrange(1, 5000) & (1 << 63) - 1])
        sent.append(bench.send(rng.choice([0, 1, 64, rng.randrange(1, 300), rng.randrange(1, 4097), 4096]), addr, marker=int(kind == 0)))
    bench.check(sent)


def test_two_clients(so, seed, rng):
    """One order for all: packets and payload agree; both get their turns."""
    bench = Bench(so, seed, rng)
    sent  = {0: [], 1: []}
    for n in range(60):
        for client in (0, 1):
            sent[client].append(bench.send(rng.randrange(200), client=client))
    bench.sim.until(bench.packets, 30)
    order = []
    while any(sent.values()):
        bench.sim.until(bench.packets, 1)
        packet = bench.packets.recv()
        wanted = sent[packet.owner].pop(0)
        order.append(packet.owner)
        assert packet.psn == wanted[0]
        bench.sim.until(bench.payload, wanted[5])
        data = b"".join(bench.payload.recv()["data"].to_bytes(64, "little") for _ in range(wanted[5]))
        assert data[wanted[3] % 64:][:wanted[2]] == bench.memory.read(wanted[3], wanted[2])
    assert abs(order[:60].count(0) - 30) < 5


@pytest.mark.parametrize("place", ["any", "page end", "page begin"])
def test_room(so, seed, rng, place):
    """Nobody takes payload: reads stop when their answers would not fit; not one beat is lost.

    Near a page's end nearly all of a packet lies in the second page: its beats are those of nearly a page.
    """
    def addr():
        page = rng.getrandbits(40) << 12
        return {"any": None, "page end": page - rng.randrange(1, 64), "page begin": page + rng.randrange(64)}[place]
    bench = Bench(so, seed, rng)
    bench.payload.set(stall=1)
    sent = [bench.send(rng.randrange(1, 4097) if place == "any" else 4096, addr()) for _ in range(30)]
    bench.sim.step(3000)
    counters = bench.memory.counters()["m", "read"]
    assert BEATS - 65 <= counters["beats"] <= BEATS
    bench.payload.set(stall=0)
    bench.check(sent)


def test_reads_outstanding(so, seed, rng):
    """Never more than max_reads; single beats, long latency."""
    bench = Bench(so, seed, rng, latency=500, depth=64)
    sent  = [bench.send(32, addr=n << 6) for n in range(200)]
    bench.check(sent)
    assert bench.memory.counters()["m", "read"]["peak"] == 40


def test_errors(so, seed, rng):
    """err of the first or the second page's read is there with the packet's beats, the next packet is good."""
    bench = Bench(so, seed, rng)
    bench.memory.fail(0x2000, 0x3000, 2)
    sent  = [bench.send(n, addr=a) for a, n in ((0x1000, 100), (0x1fff, 100), (0x2fff, 100), (0x2000, 64), (0x3000, 200))]
    bench.check(sent, lambda addr, length: 2 if addr < 0x3000 and addr + length > 0x2000 else 0)


@pytest.mark.parametrize("length,latency", [(4096, 4), (1024, 4), (256, 4), (64, 4), (4096, 150), (1024, 150)])
def test_rate(so, seed, rng, length, latency):
    """One beat a clock, packets back to back; a long latency is hidden by what may be outstanding."""
    bench = Bench(so, seed, rng, latency=latency, depth=64)
    sent  = [bench.send(length, addr=rng.getrandbits(40)) for _ in range(150)]
    bench.sim.until(bench.packets, len(sent))
    bench.sim.until(bench.payload, sum(s[5] for s in sent))
    beats  = bench.payload.recv_all()
    clocks = (beats[-1].first - beats[0].first + 1) / len(sent)
    print(f"fetcher: {length} B, latency {latency}: {clocks:.2f} clocks a packet, {len(beats) / len(sent):.2f} beats")
    assert clocks <= len(beats) / len(sent) + 1


def test_parameters():
    for bad, name in ((dict(payload_beats=64), "payload_beats"), (dict(payload_beats=300), "payload_beats"), (dict(max_reads=1 << TAG_WIDTH), "max_reads")):
        with pytest.raises(ValueError, match=name):
            PayloadFetcher(**bad)
    with pytest.raises(ValueError, match="ports"):
        PayloadFetcher().get_fragment()
