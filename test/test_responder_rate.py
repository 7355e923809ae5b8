# SPDX-License-Identifier: BSD-2-Clause
"""transport/responder, transport/reply: cycles per packet and latency with ideal neighbours."""
import pytest

from test.responder_bench import *


@pytest.fixture(scope="module")
def so():
    return compiled()


def rate(b, count):
    """Cycles per packet at the placement port, placements answered at once."""
    for _ in range(count + 8):
        b.done.send(err=0)
    b.sim.drain(b.packet, max_cycles=40*count)
    b.sim.step(100)
    marks = [p.last for p in b.place.recv_all()]
    assert len(marks) == count
    # Behind the first packets, which may wait for receives to be fetched.
    return (marks[-1] - marks[count//4])/(count - 1 - count//4)


def quick(b, qpi, opcode, psn, size, **fields):
    b.packet.send(qpi=qpi, qpn=0x100 + qpi, opcode=by_name("RC_" + opcode).value, psn=psn & 0xffffff, length=size, pad=-size & 3,
                  has_slot=int(size != 0), slot=psn & 1023, **fields)


def test_one_qp_small(so):                                            # B2: at most 8.
    b = Bench(so)
    b.qp(1, psn=0)
    for n in range(400):
        quick(b, 1, "WRITE_ONLY", n, 64, va=REMOTE_VA, rkey=RKEY, dma_length=64, ackreq=1)
    assert rate(b, 400) <= 6


def test_one_qp_stream(so):                                           # B3: PMTU 256 leaves 6.76 clocks a packet.
    b = Bench(so)
    b.qp(1, psn=0)
    quick(b, 1, "WRITE_FIRST", 0, 256, va=REMOTE_VA, rkey=RKEY, dma_length=256*1000)
    for n in range(1, 500):
        quick(b, 1, "WRITE_MIDDLE", n, 256)
    assert rate(b, 500) <= 6


def test_many_qps_small(so):                                          # B1: 2 beats + 1.
    b = Bench(so)
    for qpi in range(N_QPS):
        b.qp(qpi, psn=0)
    for n in range(1600):
        quick(b, n % N_QPS, "WRITE_ONLY", n//N_QPS, 64, va=REMOTE_VA + 64*(n % 100), rkey=RKEY, dma_length=64, ackreq=1)
    assert rate(b, 1600) <= 1.1


def test_many_qps_small_sends(so):
    b = Bench(so)
    for qpi in range(N_QPS):
        b.qp(qpi, psn=0)
        for _ in range(63):
            b.post(qpi, ring=False)
        b.ring(qpi)
    b.run(200)
    for n in range(N_QPS*60):
        quick(b, n % N_QPS, "SEND_ONLY", n//N_QPS, 64, ackreq=1)
    assert rate(b, N_QPS*60) <= 2
    assert b.sim.peek("parked") == 0


@pytest.mark.parametrize("pmtu", [256, 1024, 4096])
@pytest.mark.parametrize("qps,limit", [(1, 5.0), (5, 2.0)])
def test_read_stream(so, qps, limit, pmtu):                           # B3: a frame of PMTU 256 has 5 beats.
    b = Bench(so)
    for qpi in range(qps):
        b.qp(qpi, psn=0, pmtu={256: 1, 1024: 3, 4096: 5}[pmtu])
    for qpi in range(qps):
        b.read(qpi, min(pmtu*300, REGION), pmtu=pmtu)
    for n in range(qps):
        b.done.send(err=0)
    taken = []
    for _ in range(800):
        b.sim.step(1)
        for packet in b.reads.recv_all():
            taken.append((packet.last, packet.qpi))
            b.sent.send(owner=packet.owner, qpi=packet.qpi, psn=packet.psn, err=0)
    assert len(taken) > 100
    assert (taken[-1][0] - taken[10][0])/(len(taken) - 11) <= limit
    if qps > 1:                                                       # turns per packet.
        middle = [qpi for _, qpi in taken[20:300]]
        assert max(middle.count(q) for q in range(qps)) - min(middle.count(q) for q in range(qps)) <= 2


def test_small_reads_one_qp(so):
    b = Bench(so)
    b.qp(1, psn=0)
    times = []
    for n in range(200):
        quick(b, 1, "READ_REQUEST", n, 0, va=REMOTE_VA, rkey=RKEY, dma_length=64)
        b.done.send(err=0)
    for _ in range(2000):
        b.sim.step(1)
        for packet in b.reads.recv_all():
            times.append(packet.last)
            b.sent.send(owner=packet.owner, qpi=packet.qpi, psn=packet.psn, err=0)
        b.place.recv_all()
    assert len(times) == 200 and not b.refusal.recv_all()
    assert (times[-1] - times[20])/179 <= 8                           # B2


def test_latency(so):
    """Figures of the docstrings: packet to placement, placement done to ACK, READ request to first reply."""
    b = Bench(so)
    b.qp(1)
    b.send(1, "WRITE_ONLY", b"abcd", va=REMOTE_VA, rkey=RKEY, dma_length=4, ackreq=1)
    b.sim.drain(b.packet)
    start = b.packet.times()[-1][1]
    b.sim.until(b.place, 1)
    placed = b.place.recv().last
    b.sim.step(5)
    b.done.send(err=0)
    b.sim.until(b.control, 1)
    done, ack = b.done.times()[-1][1], b.control.recv().last
    b.read(1, 4)
    b.sim.drain(b.packet)
    asked = b.packet.times()[-1][1]
    b.sim.until(b.place, 1)
    b.done.send(err=0)
    b.sim.until(b.reads, 1)
    read = b.reads.recv().last
    print(placed - start, ack - done, read - asked)
    assert placed - start <= 16 and ack - done <= 8 and read - asked <= 34
