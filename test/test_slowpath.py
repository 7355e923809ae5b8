# SPDX-License-Identifier: BSD-2-Clause
"""Slow path: ARP and ICMP echo answered, frames for others dropped, limits, rates, random gaps."""
import pytest
from scapy.layers.inet import ICMP, IP
from scapy.layers.l2 import ARP, Ether

from roce_soc.network.slowpath import MAX_SLOW_FRAME, RoCESlowPath, SlowPathFilter
from sim.harness import Sim, build

MAC, PEER_MAC = "02:00:00:00:00:01", "02:00:00:00:00:02"
IPV4, PEER_IP = "192.168.1.50", "192.168.1.1"


@pytest.fixture(scope="module")
def library():
    path   = RoCESlowPath(0x020000000001, IPV4, 1e6)
    counts = {n: getattr(path, n).status for n in ("rx_frames", "tx_frames", "rx_dropped_mac", "rx_dropped_long",
                                                    "rx_dropped_full", "rx_dropped_error")}
    return build(path, {"sink": path.sink, "source": path.source, "count": counts}, name="slowpath")


class Station:
    """The slow path and a peer that answers its ARP requests."""
    def __init__(self, library, seed, gap=0.0, stall=0.0):
        self.sim = Sim(library, seed=seed)
        self.rx  = self.sim.source("sink", gap=gap)
        self.tx  = self.sim.sink("source", stall=stall)
        self.sim.reset()

    def send(self, frame, **how):
        self.rx.send(bytes(frame), **how)

    def answers(self, cycles=3000):
        """Frames that come within the time; ARP requests are answered, not returned."""
        out = []
        for _ in range(cycles//100):
            self.sim.step(100)
            for got in self.tx.recv_all():
                frame = Ether(got.data)
                if ARP in frame and frame[ARP].op == 1:
                    assert frame[ARP].pdst == PEER_IP and len(got.data) == 60
                    self.send(pad(Ether(dst=MAC, src=PEER_MAC)/ARP(op=2, hwsrc=PEER_MAC, psrc=PEER_IP, hwdst=MAC, pdst=IPV4)))
                else:
                    out.append(frame)
        return out

    def count(self, name):
        return self.sim.peek(f"count_{name}")


def pad(frame):
    return bytes(frame).ljust(60, b"\0")


def ping(size, dst=MAC, number=1):
    payload = bytes((number + i) & 0xff for i in range(size))
    return pad(Ether(dst=dst, src=PEER_MAC)/IP(src=PEER_IP, dst=IPV4)/ICMP(id=0x1234, seq=number)/payload)


@pytest.mark.parametrize("gap, stall", [(0.0, 0.0), (0.3, 0.4)])
def test_arp_request_is_answered(library, seed, gap, stall):
    station = Station(library, seed, gap, stall)
    station.send(pad(Ether(dst="ff:ff:ff:ff:ff:ff", src=PEER_MAC)/ARP(hwsrc=PEER_MAC, psrc=PEER_IP, pdst=IPV4)))
    reply, = station.answers()
    assert (reply.dst, reply.src, reply[ARP].op) == (PEER_MAC, MAC, 2)
    assert (reply[ARP].hwsrc, reply[ARP].psrc, reply[ARP].pdst) == (MAC, IPV4, PEER_IP)


@pytest.mark.parametrize("gap, stall", [(0.0, 0.0), (0.3, 0.4)])
def test_echo_of_every_residue(library, seed, gap, stall):
    station = Station(library, seed, gap, stall)
    for number, size in enumerate([*range(0, 70), 500, 1000, 1400, 1472]):
        station.send(ping(size, number=number))
        reply, = station.answers()
        sent   = Ether(ping(size, number=number))
        assert reply.dst == PEER_MAC and reply[ICMP].type == 0 and reply[ICMP].seq == number
        assert bytes(reply[ICMP].payload)[:size] == bytes(sent[ICMP].payload)[:size], size
        again = reply.copy()
        del again[IP].chksum, again[ICMP].chksum
        again = Ether(bytes(again))
        assert (again[IP].chksum, again[ICMP].chksum) == (reply[IP].chksum, reply[ICMP].chksum)


def test_frames_for_others_and_bad_frames_are_dropped_and_counted(library, seed):
    station = Station(library, seed)
    station.send(ping(10, dst="02:00:00:00:00:09"))
    station.send(bytes.fromhex(MAC.replace(":", "")).ljust(MAX_SLOW_FRAME + 1, b"\1"))
    station.send(bytes.fromhex(MAC.replace(":", "")).ljust(9000, b"\1"))
    station.send(ping(10), error=True)
    station.send(bytes.fromhex(MAC.replace(":", "")).ljust(MAX_SLOW_FRAME, b"\1"))
    assert station.answers() == []
    assert [station.count(f"rx_dropped_{n}") for n in ("mac", "long", "error", "full")] == [1, 2, 1, 0]
    assert station.count("rx_frames") == 1
    station.send(ping(10))
    assert len(station.answers()) == 1


def test_a_flood_is_dropped_whole_and_counted(library, seed):
    station = Station(library, seed)
    frame   = bytes.fromhex(MAC.replace(":", "")).ljust(1500, b"\2")
    for _ in range(40):
        station.send(frame)
    station.answers(12000)
    assert station.count("rx_dropped_full") > 0
    assert station.count("rx_dropped_full") + station.count("rx_frames") == 40
    station.send(ping(33))
    assert len(station.answers()) == 1


def test_filter_memory_never_cuts_a_frame(seed, rng):
    gate = SlowPathFilter(depth=32)
    so   = build(gate, {"sink": gate.sink, "source": gate.source, "mac_address": gate.mac_address}, name="slow_filter")
    sim  = Sim(so, seed=seed)
    sim.poke("mac_address", 0x020000000001)
    rx, tx = sim.source("sink", gap=0.2), sim.sink("source", stall=0.6)
    sim.reset()
    sent = [b"\2\0\0\0\0\1" + bytes([n]) + rng.randbytes(rng.randrange(1, 1500)) for n in range(200)]
    for frame in sent:
        rx.send(frame)
    sim.step(20000)
    got = [f.data for f in tx.recv_all()]
    assert 20 < len(got) < 200
    order = [sent.index(data) for data in got]
    assert order == sorted(order)


@pytest.mark.parametrize("call, words", [
    (lambda: RoCESlowPath(0x010000000001, IPV4, 1e6), "0x10000000001"),
    (lambda: RoCESlowPath(1 << 48, IPV4, 1e6), "48 bits"),
    (lambda: SlowPathFilter(depth=33), "33"),
])
def test_refusals_name_value_and_limit(call, words):
    with pytest.raises(ValueError, match=words):
        call()
