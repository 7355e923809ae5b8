# SPDX-License-Identifier: BSD-2-Clause
"""What of the interop bench needs no guest: the archive writer, the judge of the wire, the guest's clock."""
import socket
import stat

import pytest

from roce_soc import opcodes as op
from test.interop.engine import arp_reply
from test.interop.image import Cpio, matches, module_order
from test.interop.relay import Fault, Observer, Relay
from test.model.packet import Packet, parse

MAC, IP = bytes.fromhex("020000000002"), bytes([10, 0, 0, 2])
CODE    = {row.name: value for value, row in op.OPCODES.items()}


def frame(name, psn, **fields):
    """A frame of the guest by opcode name."""
    return Packet(opcode=CODE[name], psn=psn, dest_qpn=17, dst_mac=MAC, src_ip=bytes([10, 0, 0, 1]), dst_ip=IP,
                  **fields).build()

@pytest.fixture
def observer(tmp_path):
    """An Observer that writes into the test's folder."""
    made = Observer(tmp_path/"wire.pcap")
    yield made
    made.close()

# Judge --------------------------------------------------------------------------------------------

def test_clean_traffic_has_no_fault(observer):
    for psn in (0xfffffe, 0xffffff, 0, 1):
        observer.note("guest", frame("RC_SEND_ONLY", psn))
    observer.note("guest", frame("RC_READ_REQUEST", 2, dma_length=5000))
    observer.note("guest", frame("RC_SEND_ONLY", 7))
    observer.note("soc", frame("RC_ACKNOWLEDGE", 1, syndrome=0x1f))
    assert not observer.faults and observer.counts == {"guest_roce": 6, "soc_roce": 1}

def test_repeated_request_is_a_fault(observer):
    for psn in (0xffffff, 0, 0xffffff):
        observer.note("guest", frame("RC_SEND_ONLY", psn))
    assert observer.faults == {"guest_retransmitted": 1}

@pytest.mark.parametrize("syndrome", (0x60, 0x21, 0x62))
def test_nak_is_a_fault(observer, syndrome):
    observer.note("soc", frame("RC_ACKNOWLEDGE", 1, syndrome=syndrome))
    assert observer.faults == {"soc_nak": 1}

def test_damaged_icrc_is_a_fault(observer):
    data = bytearray(frame("RC_SEND_ONLY", 1, payload=b"data"))
    data[-5] ^= 1
    observer.note("soc", bytes(data))
    assert observer.faults == {"soc_bad_icrc": 1}

# Faults -------------------------------------------------------------------------------------------

def test_fault_hits_one_frame_once():
    data  = frame("RC_SEND_ONLY", 1, payload=b"data")
    for name in ("loss", "icrc", "payload"):
        fault = Fault(name)
        out   = [fault(data) for _ in range(10)]
        assert [o == data for o in out].count(False) == 1 and out[Fault.FRAME - 1] != data
    assert parse(out[Fault.FRAME - 1]).icrc_ok, "a changed payload has a right ICRC: only the data check sees it"

# Guest's clock ------------------------------------------------------------------------------------

class FakeVM:
    """A guest that only remembers whether it runs."""
    def __init__(self, folder):
        self.peer, self.wire, self.frozen, self.frozen_at = folder/"peer", folder/"wire", False, 0.0
        self.agent   = self
        self.socket  = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.wire))

    def freeze(self):
        self.frozen = True

    def thaw(self):
        self.frozen = False

class Silent:
    """An engine that answers nothing."""
    def __init__(self):
        self.got, self.send = [], []

    def deliver(self, data):
        self.got.append(data)

    def collect(self):
        taken, self.send = self.send, []
        return taken

    def sockets(self):
        return []

    def busy(self):
        return False

def test_guest_is_frozen_after_its_last_frame_until_an_answer(tmp_path, observer):
    vm, engine = FakeVM(tmp_path), Silent()
    relay = Relay(vm, engine, observer)
    relay.run_for(10)
    vm.socket.sendto(frame("RC_SEND_FIRST", 0, payload=bytes(1024)), str(vm.peer))
    relay.step()
    assert not vm.frozen, "inside a message the guest has more to send"
    vm.socket.sendto(frame("RC_SEND_LAST", 1, payload=b"data"), str(vm.peer))
    relay.step(0)
    relay.step(0.05)
    assert vm.frozen and len(engine.got) == 2
    engine.send = [frame("RC_ACKNOWLEDGE", 1, syndrome=0x1f)]
    relay.step(0)
    assert not vm.frozen and parse(vm.socket.recv(2048)).name == "RC_ACKNOWLEDGE"
    relay.close()
    vm.socket.close()

# Small parts --------------------------------------------------------------------------------------

def test_arp_reply_only_for_own_address():
    ask = bytes.fromhex("ffffffffffff525400000001 0806 0001080006040001 525400000001 0a000001 000000000000 0a000002")
    reply = arp_reply(ask, MAC, IP)
    assert reply == bytes.fromhex("525400000001 020000000002 0806 0001080006040002"
                                  "020000000002 0a000002 525400000001 0a000001")
    assert arp_reply(ask, MAC, bytes([10, 0, 0, 3])) is None
    assert arp_reply(reply, MAC, IP) is None

def test_cpio_entries_are_aligned_and_have_parents():
    cpio = Cpio()
    cpio.add("a/b/file", stat.S_IFREG | 0o644, b"12345")
    cpio.add("a/b/file", stat.S_IFREG | 0o644, b"twice")
    data, names = cpio.finish(), []
    while data:
        size, length = int(data[54:62], 16), int(data[94:102], 16)
        start = -(-(110 + length)//4)*4
        names.append((data[110:110 + length - 1].decode(), data[start:start + size]))
        data = data[-(-(start + size)//4)*4:]
    assert names == [("a", b""), ("a/b", b""), ("a/b/file", b"12345"), ("TRAILER!!!", b"")]

def test_modules_follow_their_dependencies(monkeypatch):
    monkeypatch.setattr("test.interop.image.MODULES", ("c",))
    modules = {"a": b"\0depends=\0", "b": b"\0depends=a,built\0", "c": b"\0depends=a,b\0"}
    assert [name for name, _ in module_order(modules, {"built"})] == ["a", "b", "c"]

def test_patterns():
    assert matches("libperl5.36", ("lib*",)) and not matches("perl", ("lib*",))
