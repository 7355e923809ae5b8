# SPDX-License-Identifier: BSD-2-Clause
"""network/echo in the slow path: to whom nothing is answered, and that no answer holds another up."""
import pytest
from scapy.layers.inet import ICMP, IP
from scapy.layers.l2 import ARP, Ether

from roce_soc.network.slowpath import RoCESlowPath
from sim.harness import build
from test.test_slowpath import IPV4, MAC, PEER_IP, PEER_MAC, Station, pad, ping

OTHER_MAC = "02:00:00:00:00:77"


@pytest.fixture(scope="module")
def library():
    path = RoCESlowPath(0x020000000001, IPV4, 1e6)
    return build(path, {"sink": path.sink, "source": path.source,
        "count": {n: getattr(path, n).status for n in ("rx_frames", "echo_dropped")}}, name="slowpath_echo")


class Wire(Station):
    """A station whose neighbours answer no ARP request."""
    def answers(self, cycles=3000):
        self.sim.step(cycles)
        return [Ether(f.data) for f in self.tx.recv_all()]


def echo(size=20, source=PEER_IP, target=IPV4, mac=MAC, sender=PEER_MAC, number=1, **fields):
    return Ether(dst=mac, src=sender)/IP(src=source, dst=target, **fields)/ICMP(id=0x1234, seq=number)/bytes(range(size))


def who_has(sender=OTHER_MAC, source="192.168.1.9"):
    return pad(Ether(dst="ff:ff:ff:ff:ff:ff", src=sender)/ARP(hwsrc=sender, psrc=source, pdst=IPV4))


def both_answered(station):
    """ARP and echo of another host are answered."""
    station.answers(1500)
    station.send(who_has())
    station.send(pad(echo(sender=OTHER_MAC, source="192.168.1.9", number=77)))
    got = [f for f in station.answers() if f.dst == OTHER_MAC]
    return sorted("ARP" if ARP in f else str(f[ICMP].seq) for f in got) == ["77", "ARP"]


@pytest.mark.parametrize("count", [1, 8, 40])
def test_nobody_waits_for_a_neighbour_that_is_silent(library, seed, count):
    """Echo requests from an address that never answers ARP, while more of them come: others get their answers."""
    station = Wire(library, seed)
    for n in range(count):
        station.send(pad(echo(number=n)))
    for _ in range(3):
        station.send(pad(echo(number=99)))
        assert both_answered(station)


def test_answers_back_to_back(library, seed):
    """Eight requests at once from eight hosts: each answer to the host that asked."""
    station = Wire(library, seed)
    hosts   = [(f"02:00:00:00:01:{n:02x}", f"192.168.1.{100 + n}") for n in range(8)]
    for n, (mac, ip) in enumerate(hosts):
        station.send(pad(echo(sender=mac, source=ip, number=n)))
    got = [(f.dst, f[IP].dst, f[ICMP].type, f[ICMP].seq) for f in station.answers(4000)]
    assert got == [(mac, ip, 0, n) for n, (mac, ip) in enumerate(hosts)]


def test_reception_goes_on_while_nothing_can_be_sent(library, seed):
    """With transmit blocked all frames reach the CPU's side; what was dropped here is counted; then answers come again."""
    station = Wire(library, seed)
    station.tx.set(stall=1)
    for n in range(200):
        station.send(pad(echo(number=n)), idle=40)
    station.send(who_has())
    station.sim.drain(station.rx)
    station.sim.step(500)
    assert station.count("rx_frames") == 201 and station.count("echo_dropped") > 50
    station.tx.set(stall=0)
    assert 10 < len(station.answers(8000)) == 201 - station.count("echo_dropped")
    assert both_answered(station)


def broken_sum(frame, at):
    frame = bytearray(pad(frame))
    frame[at] ^= 1
    return bytes(frame)


SILENT = {
    "for another":          echo(target="192.168.1.51"),
    "broadcast":            echo(target="255.255.255.255"),
    "subnet's broadcast":   echo(target="192.168.1.255"),
    "all hosts":            echo(target="224.0.0.1"),
    "broadcast MAC":        echo(mac="ff:ff:ff:ff:ff:ff"),
    "group MAC":            echo(mac="01:00:5e:00:00:01"),
    "from a group":         echo(source="224.0.0.5"),
    "from broadcast":       echo(source="255.255.255.255"),
    "from subnet's broadcast": echo(source="192.168.1.255"),
    "from nobody":          echo(source="0.0.0.0"),
    "from loopback":        echo(source="127.0.0.1"),
    "from here":            echo(source=IPV4),
    "from a group MAC":     echo(sender="03:00:00:00:00:02"),
    "first fragment":       echo(flags="MF"),
    "later fragment":       echo(frag=8),
    "ICMP sum":             broken_sum(echo(), 36),
    "ICMP data":            broken_sum(echo(size=33), 34 + 8 + 32),
    "IPv4 sum":             broken_sum(echo(), 24),
    "total length beyond":  echo(len=90),
    "total length short":   echo(len=27),
    "code":                 Ether(dst=MAC, src=PEER_MAC)/IP(src=PEER_IP, dst=IPV4)/ICMP(code=1)/bytes(20),
    "reply":                Ether(dst=MAC, src=PEER_MAC)/IP(src=PEER_IP, dst=IPV4)/ICMP(type=0)/bytes(20),
    "ARP from a group MAC": who_has(sender="03:00:00:00:00:02"),
}


@pytest.mark.parametrize("name", SILENT)
def test_not_answered(library, seed, name):
    """Nothing is answered to it, and a good request behind it is."""
    station = Wire(library, seed)
    station.send(pad(SILENT[name]))
    assert station.answers(1500) == []
    station.send(ping(20, number=5))
    assert [(f.dst, f[ICMP].seq) for f in station.answers(1500)] == [(PEER_MAC, 5)]
    assert station.count("rx_frames") == 2 and station.count("echo_dropped") == 0


def test_every_length_and_trailer(library, seed, rng):
    """Checksums of odd and even messages, with padding behind them that is not part of them."""
    station = Wire(library, seed)
    for size in (0, 1, 2, 5, 6, 7, 8, 9, 17, 18, 19, 255, 1000, 1471, 1472):
        station.send(bytes(echo(size % 256)).ljust(60, b"\x5a") if size < 18 else bytes(Ether(dst=MAC, src=PEER_MAC)
            / IP(src=PEER_IP, dst=IPV4)/ICMP(id=1, seq=size)/rng.randbytes(size)))
        reply, = station.answers(1500)
        assert reply[ICMP].type == 0 and reply[IP].len == 28 + size
