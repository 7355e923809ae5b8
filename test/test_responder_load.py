# SPDX-License-Identifier: BSD-2-Clause
"""transport/responder under load: parking, control operations, loss and repetition, many QPs, cycles per packet."""
import random

import pytest

from roce_soc import abi
from roce_soc.common import CTL_ERR, CTL_RESET, CTL_RESUME, CTL_SQD
from roce_soc.verbs import WC_WR_FLUSH_ERR
from roce_soc.transport.responder.entry import PARK_DEPTH, PARK_QP
from test.responder_bench import *


@pytest.fixture(scope="module")
def so():
    return compiled()


# Parking ------------------------------------------------------------------------------------------

def test_parked_packets_wait_alone(so):
    b = Bench(so, latency=400)
    for qpi in (1, 2, 3):
        b.qp(qpi)
    for qpi in (1, 2):
        b.post(qpi), b.post(qpi)
    b.run(20)
    for n in range(2):
        for qpi in (1, 2):
            b.message(qpi, "SEND", bytes([qpi, n])*150)
    b.write(1, b"behind the parked ones")
    b.write(3, b"flows")
    b.run(120)
    assert b.sim.peek("parked") == 9
    assert [a[:2] for a in b.answers()] == [("ACK", 100)] and b.memory.read(REMOTE_ADDR, 5) == b"flows"
    b.run(800)
    assert [(c.wr_id, c.status, c.byte_len) for c in b.cqes if c.qpn == 0x101] == [(1 << 32 | n, 0, 300) for n in range(2)]
    assert [(c.wr_id, c.status, c.byte_len) for c in b.cqes if c.qpn == 0x102] == [(2 << 32 | n, 0, 300) for n in range(2)]
    for qpi in (1, 2):
        for n in range(2):
            assert b.memory.read(LOCAL_ADDR + 0x1000*n, 300)[:1] in (b"\1", b"\2")
    assert b.memory.read(REMOTE_ADDR, 22) == b"behind the parked ones"
    b.idle()
    assert not b.refusals


def test_a_qp_parks_so_much(so):
    """PARK_QP packets of a QP wait; what comes behind them is dropped, counted, sent again; nobody else waits for it."""
    b = Bench(so, latency=6000)
    b.qp(1), b.qp(2)
    b.post(1)
    b.run(20)
    b.message(1, "SEND", bytes(range(256))*12)
    kept, sent = PARK_QP - 12, PARK_QP + 58
    for n in range(sent):
        b.write(1, bytes([n + 1]), offset=n)
    b.write(2, b"x", offset=300)
    b.run(2500)
    assert b.sim.peek("parked") == PARK_QP and b.memory.read(REMOTE_ADDR + 300, 1) == b"x"
    assert [a[:2] for a in b.answers()] == [("ACK", 100)] and b.take("refusals") == ["BUFFER_FULL"]*70
    b.run(8000)
    assert b.memory.read(REMOTE_ADDR, sent) == bytes(range(1, kept + 1)) + bytes(70)
    assert b.memory.read(LOCAL_ADDR, 3072) == bytes(range(256))*12
    b.take("tx")
    b.write(1, b"y", offset=300)                                      # the gap is found now.
    b.run(100)
    assert b.answers() == [("ACK", 100 + PARK_QP, 0x60, 1 + kept)] and b.take("refusals") == ["PSN_SEQUENCE"]
    b.qps[1] = 100 + PARK_QP
    for n in range(kept, sent):
        b.write(1, bytes([n + 1]), offset=n)
    b.idle()
    assert b.memory.read(REMOTE_ADDR, sent) == bytes(range(1, sent + 1)) and not b.refusals


def test_parked_packets_hold_half_the_buffer(so):
    """Two QPs with packets of nine chunks: 256 chunks and what was under way, not all of the buffer."""
    b = Bench(so, latency=2000)
    for qpi in (1, 2):
        b.qp(qpi, pmtu=5)
        b.post(qpi, length=0x18000)
    b.run(20)
    for n in range(20):
        for qpi in (1, 2):
            b.send(qpi, "SEND_FIRST" if n == 0 else "SEND_MIDDLE", bytes([n])*4096, offset=63)
    b.run(600)
    assert 29 <= b.sim.peek("parked") <= 30
    lost = len(b.take("refusals"))
    assert lost == 40 - b.sim.peek("parked")
    b.idle()
    assert not b.refusals


def test_no_place_to_park(so):
    """All places taken: a packet that would have to wait is dropped without an answer, one that need not passes."""
    b = Bench(so, latency=6000)
    for qpi in (1, 2, 3, 4):
        b.qp(qpi)
    for qpi in (1, 2, 3):
        b.post(qpi)
    b.run(20)
    for n in range(PARK_DEPTH//2 + 8):
        for qpi in (1, 2):
            b.send(qpi, "SEND_ONLY" if n == 0 else "WRITE_ONLY", b"p", va=REMOTE_VA, rkey=RKEY, dma_length=1)
    b.send(3, "SEND_ONLY", b"q")
    b.write(4, b"flows")
    b.run(3000)
    assert PARK_DEPTH - 10 <= b.sim.peek("parked") <= PARK_DEPTH - 6
    assert [a[:2] for a in b.answers()] == [("ACK", 100)] and b.memory.read(REMOTE_ADDR, 5) == b"flows"
    assert set(b.take("refusals")) == {"BUFFER_FULL"} and not [c for c in b.cqes if c.qpn == 0x103]
    b.idle()
    b.qps[3] = 100
    b.send(3, "SEND_ONLY", b"q", ackreq=1)
    b.run(200)
    assert [(c.wr_id, c.status) for c in b.cqes if c.qpn == 0x103] == [(3 << 32, 0)]
    assert b.answers()[-1][:2] == ("ACK", 100)
    b.idle()


# Control ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("op", [CTL_ERR, CTL_RESET])
def test_stop_with_parked_packets(so, op):
    b = Bench(so, latency=3000)
    b.qp(1)
    b.post(1), b.post(1)
    b.run(20)
    for _ in range(2):
        b.message(1, "SEND", bytes(600))
    b.run(200)
    assert b.sim.peek("parked") == 6
    b.connection(1, state=abi.QP_ERR if op == CTL_ERR else abi.QP_RESET)
    b.control_qp(1, op)
    assert b.sim.peek("parked") == 0 and not b.payloads               # done means that nothing is left.
    if op == CTL_RESET:
        assert b.memory.counters()["dq", "read"]["outstanding"] == 0
    b.idle()
    assert b.sim.peek("parked") == 0 and not b.answers() and set(b.take("refusals")) == {"QP_STATE"}
    b.run(8000)
    flushed = [(c.wr_id & 0xffff, c.status, c.vendor_err, c.cqn) for c in b.take("cqes")]
    assert flushed == ([(n, WC_WR_FLUSH_ERR, 62, 5) for n in range(2)] if op == CTL_ERR else [])
    # The QP starts again as if nothing had been.
    b.control_qp(1, CTL_RESET)
    b.memory.set(latency=4)
    b.qp(1, psn=7)
    b.post(1)
    b.message(1, "SEND", b"again")
    b.run(200)
    assert b.answers() == [("ACK", 7, 31, 1)] and [c.wr_id for c in b.cqes] == [1 << 32]
    b.idle()


def test_reset_meets_every_clock_of_a_wake_up(so):
    """The receive WQE of parked packets comes in just when the QP is stopped."""
    b = Bench(so, latency=40)
    for k in range(60):
        b.qp(1, psn=0)
        b.post(1)
        b.sim.drain(b.bell)
        for n, op in enumerate(("FIRST", "MIDDLE", "LAST")):
            b.send(1, "SEND_" + op, bytes(256), psn=n, ackreq=1)
        b.sim.step(k)
        b.connection(1, state=abi.QP_RESET)
        b.control_qp(1, CTL_RESET)
        assert b.sim.peek("parked") == 0 and not b.payloads
        b.run(100)
        psns = [a[1] for a in b.answers()]
        assert len(b.take("cqes")) <= 1 and psns == sorted(psns)
        assert set(b.take("refusals")) <= {"QP_STATE"}
    b.qp(1)
    b.post(1)
    b.message(1, "SEND", b"good")
    b.run(300)
    assert b.answers() == [("ACK", 100, 31, 1)] and [c.status for c in b.cqes] == [0]
    b.idle()


def test_flush_takes_later_doorbells(so):
    b = Bench(so)
    b.qp(1), b.qp(2)
    ids = [b.post(1) for _ in range(20)]
    b.message(1, "SEND", bytes(256) + b"open")                        # leaves the first receive open,
    b.qps[1] += 1
    b.send(1, "SEND_FIRST", bytes(256), psn=102)                      # and the second.
    b.run(300)
    assert [c.status for c in b.take("cqes")] == [0]
    b.control_qp(1, CTL_ERR)
    b.run(6000)
    ids += [b.post(1) for _ in range(5)]
    b.run(3000)
    b.control_qp(1, CTL_ERR)                                          # again: no second flush of anything.
    b.run(1000)
    assert [(c.wr_id, c.status, c.solicited) for c in b.cqes] == [(i, WC_WR_FLUSH_ERR, 1) for i in ids[1:]]
    assert [c.slot for c in b.cqes] == [n % 64 for n in range(1, 25)]
    b.control_qp(1, CTL_RESET)
    b.qp(1)
    b.post(1)
    b.message(1, "SEND", b"good")
    b.run(300)
    assert [c.status for c in b.cqes[24:]] == [0]
    b.idle()


def test_reset_cuts_reads_and_forgets_them(so):
    b = Bench(so)
    b.qp(1)
    b.reads.set(stall=0.9)
    for _ in range(3):
        b.read(1, 20000)
    b.run(200)
    b.control_qp(1, CTL_RESET)
    assert b.control_qp(1, CTL_SQD) is None and b.control_qp(1, CTL_RESUME) is None
    b.run(100)
    sent = len(b.take("tx"))
    assert 0 < sent < 200
    b.run(2000)
    assert not b.tx
    b.reads.set(stall=0)
    b.qp(1, psn=101, ring=False)
    b.read(1, 100, psn=100)                                           # a READ of the former life.
    b.run(300)
    assert not b.tx and b.take("refusals") == ["DUPLICATE_DROPPED"]
    for n in range(20):                                               # no resource was lost.
        b.read(1, 300)
        b.run(60)
    assert not b.refusals and [a[3] for a in b.answers()][-1] == 20
    b.idle()


def test_packets_of_a_stopped_qp_are_counted(so):
    b = Bench(so)
    b.send(5, "SEND_ONLY", b"early", psn=0)
    b.run(100)
    assert b.take("refusals") == ["QP_STATE"] and not b.answers()
    b.qp(5)
    b.connection(5, qp_type=abi.QP_TYPE_UC)
    b.send(5, "SEND_ONLY", b"uc", psn=100)
    b.connection(5, qp_type=abi.QP_TYPE_UD)
    b.send(5, "SEND_ONLY", b"ud", psn=100)
    b.run(100)
    assert b.take("refusals")[-1] == "UD_DROPPED" and not b.answers()
    b.idle()


# Peers that lose packets --------------------------------------------------------------------------

class Peer:
    """Requester of one QP: a script of messages sent with go back N through a lossy wire."""
    def __init__(self, b, qpi, rnd, messages, loss):
        self.b, self.qpi, self.rnd, self.loss = b, qpi, rnd, loss
        self.start = rnd.choice([0, 5, 0xfffff0, rnd.getrandbits(24)])
        self.requests, self.una, self.next, self.idle = [], 0, 0, 0
        self.reads, self.expect_memory, self.expect_cqes, self.receives = {}, {}, [], []
        at = 0
        base = 0x4000*qpi
        for n in range(messages):
            kind = rnd.choice(["SEND", "SEND", "WRITE", "WRITE", "WRITE_IMM", "READ"])
            size = rnd.choice([0, 1, 4, 60, 255, 256, 257, 700, 1500])
            data = rnd.randbytes(size)
            imm  = rnd.getrandbits(32) if kind == "WRITE_IMM" or (kind == "SEND" and rnd.random() < .3) else None
            if kind == "READ":
                offset = rnd.randrange(2000)
                k = packets(size, 256)
                self.requests.append((at, k, "READ_REQUEST", b"", dict(va=REMOTE_VA + 0x40000 + offset, rkey=RKEY, dma_length=size)))
                self.reads[at] = (k, size, offset)
                at += k
                continue
            name, chunks = kind.split("_")[0], [data[i:i + 256] for i in range(0, size, 256)] or [b""]
            offset = base + rnd.randrange(0x2000)
            for i, chunk in enumerate(chunks):
                first, last = i == 0, i == len(chunks) - 1
                place = "ONLY" if first and last else "FIRST" if first else "LAST" if last else "MIDDLE"
                fields = dict(va=REMOTE_VA + offset, rkey=RKEY, dma_length=size) if first and name == "WRITE" else {}
                if last:
                    fields.update(ackreq=1, imm=imm or 0)
                self.requests.append((at, 1, f"{name}_{place}{'_IMM' if last and imm is not None else ''}", chunk, fields))
                at += 1
            if name == "WRITE" and size:
                self.expect_memory[len(self.expect_memory)] = (REMOTE_ADDR + offset, data)
            if name == "SEND" or imm is not None:
                self.expect_cqes.append((len(self.expect_cqes), size, imm, name == "WRITE", data))
        self.end = at
        self.got = {k: bytearray() for k in self.reads}
        self.read_at = dict.fromkeys(self.reads, 0)

    def psn(self, n):
        return (self.start + n) & 0xffffff

    def number(self, psn):
        """Message-wide number of a PSN near una."""
        return self.una + (((psn - self.start - self.una) + 0x800000 & 0xffffff) - 0x800000)

    @property
    def finished(self):
        return self.una >= self.end

    def index_of(self, number):
        return next((i for i, r in enumerate(self.requests) if r[0] <= number < r[0] + r[1]), len(self.requests))

    def send_some(self):
        self.idle += 1
        if self.idle > 60:
            self.rewind()
        for _ in range(self.rnd.randrange(4)):
            if self.next >= len(self.requests) or self.requests[self.next][0] - self.una > 24:
                return
            at, k, opcode, data, fields = self.requests[self.next]
            if opcode == "READ_REQUEST" and at < self.una:             # partly answered: ask for the rest.
                skip   = (self.una - at)*256
                fields = {**fields, "va": fields["va"] + skip, "dma_length": fields["dma_length"] - skip}
                at     = self.una
            elif opcode != "READ_REQUEST" and self.rnd.random() < .2:
                fields = {**fields, "ackreq": 1}
            self.next += 1
            if self.rnd.random() >= self.loss:
                self.b.send(self.qpi, opcode, data, psn=self.psn(at), **fields)

    def rewind(self):
        self.next, self.idle = self.index_of(self.una), 0

    def reply(self, name, psn, packet, data):
        if self.rnd.random() < self.loss:
            return
        n = self.number(psn)
        if name == "ACKNOWLEDGE":
            if packet.syndrome == 0x1f:
                self.advance(n + 1)
            else:
                assert packet.syndrome in (0x60, 0x2c), hex(packet.syndrome)
                self.advance(n)
                self.rewind()
            return
        # READ replies: take the one that is due.
        at = max((k for k in self.reads if k <= n), default=None)
        if at is None or n != at + self.read_at[at] or n < self.una:
            return
        self.advance(at)
        if self.una >= at:
            self.got[at] += data
            self.read_at[at] += 1
            self.una, self.idle = n + 1, 0
            self.next = max(self.next, self.index_of(self.una))

    def advance(self, to):
        """Acknowledged up to `to`; a READ is only done with its data."""
        for at, k, opcode, *_ in self.requests:
            if opcode == "READ_REQUEST" and at < to and self.read_at[at] < k:
                to = min(to, at + self.read_at[at])
        if to > self.una:
            self.una, self.idle = to, 0
            self.next = max(self.next, self.index_of(self.una))


@pytest.mark.parametrize("seed", range(6))
def test_lossy_peers(so, seed):
    rnd  = random.Random(seed)
    loss = rnd.choice([0, .02, .1, .3])
    b = Bench(so, seed=seed, stall=rnd.choice([0, .3, .8]), gap=rnd.choice([0, .3]), hold=rnd.choice([0, 5, 40]),
              latency=rnd.choice([4, (1, 60), (1, 500)]), cmd_stall=rnd.choice([0, .5]), answer_gap=rnd.choice([0, .5]))
    print("seed", seed, "loss", loss)
    b.region(0x0333, 1 | 2 | 4, REMOTE_VA, REMOTE_ADDR)
    source = rnd.randbytes(4096)
    b.memory.write(REMOTE_ADDR + 0x40000, source)
    peers = [Peer(b, qpi, rnd, 40, loss) for qpi in range(8)]
    for peer in peers:
        b.qp(peer.qpi, psn=peer.start)
    shadow = bytearray(REGION)
    posted = [0]*8
    for _ in range(60000):
        for peer in peers:
            if posted[peer.qpi] < len(peer.expect_cqes) and rnd.random() < .1 and posted[peer.qpi] - sum(
                    c.qpn == 0x100 + peer.qpi for c in b.cqes) < 8:
                b.post(peer.qpi, length=2048, va=LOCAL_VA + 0x8000*peer.qpi + 0x800*(posted[peer.qpi] % 16))
                posted[peer.qpi] += 1
            if b.packet.pending < 20:
                peer.send_some()
        b.run(20)
        for qpi, name, psn, packet, data in b.take("tx"):
            peers[qpi].reply(name, psn, packet, data)
        if all(peer.finished for peer in peers):
            break
    assert all(peer.finished for peer in peers), [(p.una, p.end) for p in peers]
    b.idle()
    for peer in peers:
        cqes = [c for c in b.cqes if c.qpn == 0x100 + peer.qpi]
        assert [(c.wr_id & 0xffff, c.byte_len, c.imm if imm is not None else None, c.opcode == 129, c.status)
                for c, (_, _, imm, *_) in zip(cqes, peer.expect_cqes)] == [
            (n, size, imm, is_write, 0) for n, size, imm, is_write, _ in peer.expect_cqes]
        assert len(cqes) == len(peer.expect_cqes)
        for n, size, imm, is_write, data in peer.expect_cqes[-16:]:
            if not is_write:
                assert b.memory.read(LOCAL_ADDR + 0x8000*peer.qpi + 0x800*(n % 16), size) == data
        for addr, data in peer.expect_memory.values():
            shadow[addr - REMOTE_ADDR:addr - REMOTE_ADDR + len(data)] = data
        for at, (k, size, offset) in peer.reads.items():
            assert bytes(peer.got[at]) == source[offset:offset + size], (peer.qpi, at)
    assert b.memory.read(REMOTE_ADDR, 0x40000) == bytes(shadow[:0x40000])
    # BUFFER_FULL: more packets wait for receives than may, and are sent again.
    allowed = {"PSN_SEQUENCE", "PSN_SEQUENCE_AGAIN", "PSN_DUPLICATE", "RNR", "DUPLICATE_DROPPED", "BUFFER_FULL"}
    assert set(b.refusals) <= allowed and not b.events
