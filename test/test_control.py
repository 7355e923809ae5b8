# SPDX-License-Identifier: BSD-2-Clause
"""software/control/roce: what the engine refused leaves nothing behind; what is not built or makes no sense is refused here."""
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from roce_soc import abi, verbs
from roce_soc.tree import TREE
from software.control import roce_info
from software.control.bus import WordBus
from software.control.roce import MR, Bus, CommandError, RoCE


class Device(Bus):
    """A mailbox, memory and doorbells that remember; `refuse` is the code of the next command."""
    def __init__(self, size=1 << 20):
        self.args, self.at, self.status, self.refuse = [0]*abi.COMMAND_WORDS, 0, 0, 0
        self.commands, self.bells, self.size = [], [], size

    def write_register(self, name, value):
        kind = name.rsplit("_", 1)[1]
        if kind == "index":
            self.at = value
        elif kind == "data":
            self.args[self.at] = value
            self.at += 1
        elif kind == "go":
            opcode, code = value & 0xff, self.refuse
            self.refuse = 0
            self.commands.append((opcode, list(self.args)))
            if opcode == abi.CMD_QUERY_DEVICE:
                self.args[:5] = [abi.ABI_VERSION, 0xff, 256, 1024, 256]
            self.status = 2 | code << 8 | (value >> 8 & 0xff) << 16

    def read_register(self, name):
        return self.status if name.endswith("status") else self.args[self.at]

    def read_memory(self, addr, length):
        return bytes(length)

    def write_memory(self, addr, data):
        pass

    def memory_size(self, target):
        return self.size if target == 0 else None

    def doorbell(self, page, kind, queue, index):
        self.bells.append((kind, queue, index))


@pytest.fixture
def roce():
    return RoCE(Device())


def pair(roce, *states):
    cq = roce.create_cq()
    qp = roce.create_qp(cq, cq)
    for state in states:
        qp.modify(state)
    return qp

# Refused by the engine ----------------------------------------------------------------------------

def test_a_refused_change_leaves_nothing(roce):
    """Attributes and state are those of before, and later changes carry none of what was refused."""
    qp     = pair(roce, abi.QP_INIT)
    before = dict(qp.attributes)
    roce.bus.refuse = abi.CODE_BAD_VALUE
    with pytest.raises(CommandError):
        qp.modify(abi.QP_RTR, pmtu=7, dest_qpn=5)
    assert qp.attributes == before
    qp.modify(abi.QP_RTR, dest_qpn=6)
    sent = abi.unpack_args(abi.QP_ARGS, roce.bus.commands[-1][1])
    assert (sent["pmtu"], sent["dest_qpn"], sent["state"]) == (before["pmtu"], 6, abi.QP_RTR)


def test_a_refused_reset_keeps_the_rings(roce):
    qp = pair(roce, abi.QP_INIT, abi.QP_RTR, abi.QP_RTS)
    qp.post_send(verbs.WR_SEND)
    roce.bus.refuse = abi.CODE_TIMEOUT
    with pytest.raises(CommandError):
        qp.modify(abi.QP_RESET)
    assert qp.sq.producer == 1 and qp.attributes["state"] == abi.QP_RTS
    qp.destroy()
    assert roce.create_qp(qp.send_cq, qp.recv_cq) is not None


@pytest.mark.parametrize("kind", ["mr", "cq", "qp"])
def test_a_refused_object_takes_no_index(roce, kind):
    """As many refusals as there are indices, then as many objects."""
    cq   = roce.create_cq(1)
    make = {"mr": lambda: roce.reg_mr(0, 64), "cq": lambda: roce.create_cq(1), "qp": lambda: roce.create_qp(cq, cq, sq_log2=1, rq_log2=1)}[kind]
    free = len(roce._free[kind])
    for _ in range(3*free):
        roce.bus.refuse = abi.CODE_BAD_INDEX
        with pytest.raises(CommandError):
            make()
    for _ in range(free):
        make()
    with pytest.raises(MemoryError):
        make()

@pytest.mark.parametrize("refuse", [False, True], ids=["no memory", "refused"])
def test_an_object_that_is_not_made_takes_nothing(roce, refuse):
    """Neither index nor ring memory, whether the memory is too small or the engine refuses; an index of another program's stays out."""
    cq     = roce.create_cq(1)
    before = {kind: list(free) for kind, free in roce._free.items()}, roce._next
    for make in (lambda index: roce.create_cq(6 if refuse else 14, index=index),
                 lambda index: roce.create_qp(cq, cq, rq_log2=6 if refuse else 12, index=index)):
        for index in (None, 2, 99):
            roce.bus.refuse = abi.CODE_BAD_INDEX if refuse else 0
            with pytest.raises(CommandError if refuse else MemoryError):
                make(index)
            assert ({kind: sorted(free) for kind, free in roce._free.items()}, roce._next) == before
    roce.create_qp(cq, cq)


# Refused here -------------------------------------------------------------------------------------

@pytest.mark.parametrize("states, send, receive", [
    ((), 0, 0), ((abi.QP_INIT,), 0, 1), ((abi.QP_INIT, abi.QP_RTR), 0, 1), ((abi.QP_INIT, abi.QP_RTR, abi.QP_RTS), 1, 1),
    ((abi.QP_INIT, abi.QP_RTR, abi.QP_RTS, abi.QP_SQD), 1, 1), ((abi.QP_INIT, abi.QP_ERR), 1, 1)])
def test_posting_by_state(roce, states, send, receive):
    """No doorbell for a send in RESET, INIT, RTR, nor for a receive in RESET; the rest goes to the engine."""
    qp = pair(roce, *states)
    for post, allowed in ((lambda: qp.post_send(verbs.WR_SEND), send), (qp.post_recv, receive)):
        count = len(roce.bus.bells)
        if allowed:
            post()
        else:
            with pytest.raises(RuntimeError, match=verbs.QP_STATES[states[-1] if states else 0]):
                post()
        assert len(roce.bus.bells) == count + allowed
    assert (qp.sq.producer, qp.rq.producer) == (send, receive)


@pytest.mark.parametrize("opcode", [77, -1, verbs.WR_ATOMIC_CMP_AND_SWP, verbs.WR_ATOMIC_FETCH_AND_ADD, verbs.WR_LOCAL_INV, verbs.WR_SEND_WITH_INV])
def test_opcodes_that_are_not_built(roce, opcode):
    qp = pair(roce, abi.QP_INIT, abi.QP_RTR, abi.QP_RTS)
    with pytest.raises(ValueError, match=f"RDMA_READ.*not {opcode}"):
        qp.post_send(opcode)
    assert not roce.bus.bells and not qp.sq.producer


@pytest.mark.parametrize("length", [-1, (1 << 31) + 1])
def test_lengths(roce, length):
    with pytest.raises(ValueError, match="0..2147483648"):
        pair(roce, abi.QP_INIT, abi.QP_RTR, abi.QP_RTS).post_send(verbs.WR_SEND, length=length)


@pytest.mark.parametrize("access, name", [
    (verbs.ACCESS_ZERO_BASED, "ZERO_BASED"), (verbs.ACCESS_ON_DEMAND, "ON_DEMAND"), (verbs.ACCESS_MW_BIND, "MW_BIND"),
    (verbs.ACCESS_REMOTE_ATOMIC | 1, "REMOTE_ATOMIC"), (1 << 8, "0x100"), (1 << 30, "0x40000000")])
def test_rights_that_are_not_built(roce, access, name):
    with pytest.raises(ValueError, match=f"not {name}"):
        roce.reg_mr(0, 64, access=access)
    assert roce.bus.commands[-1][0] == abi.CMD_QUERY_DEVICE


@pytest.mark.parametrize("bit", [7, *range(20, 30)])
def test_optional_rights_are_ignored(roce, bit):
    """HUGETLB and the optional bits, RELAXED_ORDERING among them, change nothing."""
    mr = roce.reg_mr(0, 64, access=7 | 1 << bit)
    assert mr.access == 7 and abi.unpack_args(abi.MR_ARGS, roce.bus.commands[-1][1])["access"] == 7


def test_atomics_in_the_flags_of_a_queue_pair(roce):
    """Connection managers set them; a right that is not built at all is refused."""
    qp = pair(roce)
    qp.modify(abi.QP_INIT, access=0xf)
    assert abi.unpack_args(abi.QP_ARGS, roce.bus.commands[-1][1])["access"] == 0xf
    with pytest.raises(ValueError, match="ON_DEMAND"):
        qp.modify(abi.QP_INIT, access=0x41)
    assert qp.attributes["access"] == 0xf


@pytest.mark.parametrize("va, length, addr", [
    (0, 1 << 20, 1), (0, (1 << 20) + 1, 0), (0, 64, 1 << 20), ((1 << 64) - 64, 65, 0), (0, -1, 0), (-1, 5, 0), (0, 64, -64)])
def test_ranges_outside_of_memory(roce, va, length, addr):
    with pytest.raises(ValueError, match="must lie within"):
        roce.reg_mr(va, length, addr=addr)
    roce.reg_mr((1 << 64) - 64, 64, addr=(1 << 20) - 64)


def test_memories_of_a_soc(tmp_path):
    """Target n is region roce_memory<n>: its size, its bytes; a region object goes to its own target."""
    path = tmp_path / "csr.json"
    path.write_text(json.dumps({"csr_registers": {}, "constants": {},
        "memories": {"roce_memory": {"base": 0x1000, "size": 64}, "roce_memory1": {"base": 0x2000, "size": 32}}}))
    bus = Words(path)
    assert [bus.memory_size(n) for n in range(3)] == [64, 32, None]
    for target in (0, 1):
        mr = MR(SimpleNamespace(bus=bus), 1, 1, 0x700, 16, 8, 1, 1, target)
        mr.write(bytes(range(16)))
        assert bus.words == {0x1008 + 0x1000*target + 4*n: 0x03020100 + 0x04040404*n for n in range(4)}
        assert mr.read() == bytes(range(16)) and mr.read(0x704, 2) == b"\4\5"
        bus.words.clear()
    with pytest.raises(KeyError, match="no memory 'roce_memory2'"):
        bus.read_memory(0, 4, 2)


class Words(WordBus):
    """A bus that keeps what is written."""
    def __init__(self, path):
        super().__init__(path)
        self.words = {}

    def read_words(self, address, count):
        return [self.words.get(address + 4*i, 0) for i in range(count)]

    def write_words(self, address, words):
        self.words.update({address + 4*i: word for i, word in enumerate(words)})


# roce_info ----------------------------------------------------------------------------------------

class Soc(WordBus):
    """A SoC that shows an identifier, and whose engine's clock may stand still."""
    def __init__(self, path, identifier, version=abi.ABI_VERSION):
        super().__init__(path)
        self.words = {0x100 + 4*i: ord(c) for i, c in enumerate(identifier)}
        self.words[0x1000] = version

    def read_words(self, address, count):
        return [self.words.get(address + 4*i, 0) for i in range(count)]

    def write_words(self, address, words):
        pass


@pytest.fixture
def csr_json(tmp_path):
    path = tmp_path / "csr.json"
    registers = {name: {"addr": 0x1000 + 4*n, "size": 1} for n, name in enumerate((
        "roce_capability_abi", "roce_monitor_host_counter_select", "roce_monitor_host_status", "roce_monitor_host_counter_value"))}
    path.write_text(json.dumps({"csr_registers": registers, "memories": {}, "constants": {"config_identifier": "my soc"},
        "csr_bases": {"identifier_mem": 0x100}}))
    return path


def test_info_refuses_a_foreign_soc(csr_json):
    roce_info.check(Soc(csr_json, "My SoC"))
    with pytest.raises(roce_info.ForeignError, match="of 'my soc', what answers says 'your soc'"):
        roce_info.check(Soc(csr_json, "Your SoC"))
    with pytest.raises(roce_info.ForeignError, match="ABI version 77, this program"):
        roce_info.check(Soc(csr_json, "My SoC", version=77))


def test_info_does_not_wait_for_ever(csr_json):
    with pytest.raises(TimeoutError, match="does not show counter_select"):
        roce_info.counters(Soc(csr_json, "My SoC"))


def test_info_finds_csr_json(tmp_path, monkeypatch):
    """--csr alone; else the file here; else the newest under build/."""
    (tmp_path / "build" / "a").mkdir(parents=True)
    (tmp_path / "build" / "b").mkdir()
    (tmp_path / "here").mkdir()
    for age, name in ((20, "a"), (10, "b")):
        file = tmp_path / "build" / name / "csr.json"
        file.write_text("{}")
        os.utime(file, (1e9 - age, 1e9 - age))
    monkeypatch.chdir(tmp_path / "here")
    assert [p.parent.name for p in roce_info.candidates(build=tmp_path / "build")] == ["b", "a"]
    (tmp_path / "here" / "csr.json").write_text("{}")
    assert [str(p) for p in roce_info.candidates(build=tmp_path / "build")] == ["csr.json"]
    assert [str(p) for p in roce_info.candidates("x.json", tmp_path / "build")] == ["x.json"]


def test_info_takes_the_csr_json_of_what_answers(tmp_path, monkeypatch, csr_json):
    """A newer build of another SoC is passed over; where none fits, each is named with its identifier."""
    newer = tmp_path / "newer.json"
    newer.write_text(csr_json.read_text().replace("my soc", "your soc"))
    monkeypatch.setattr(roce_info, "candidates", lambda given: [newer, csr_json])
    for identifier in ("My SoC", "Their SoC"):
        monkeypatch.setattr(roce_info, "RemoteBus", lambda path, host, port: Soc(path, identifier))
        monkeypatch.setattr(Soc, "close", lambda soc: None, raising=False)
        args = SimpleNamespace(csr=None, direct=False, host="localhost", port=1)
        if identifier == "My SoC":
            assert roce_info.connect(args).map.constants["config_identifier"] == "my soc"
        else:
            with pytest.raises(roce_info.ForeignError, match="newer.json: .*'your soc'.*'their soc'.*'my soc'"):
                roce_info.connect(args)


def test_info_says_what_is_missing(tmp_path):
    done = subprocess.run([sys.executable, str(TREE / "software" / "control" / "roce_info.py"), "--csr", "nowhere.json"], cwd=tmp_path,
        capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "nowhere.json" in done.stderr and "Traceback" not in done.stderr


def test_incomplete_transport():
    """A transport that lacks a part is refused by its name when it is made."""
    class Deaf(Bus):
        read_register = write_register = read_memory = write_memory = lambda self, *_: 0
    with pytest.raises(TypeError, match="doorbell"):
        Deaf()
