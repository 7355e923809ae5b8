# SPDX-License-Identifier: BSD-2-Clause
"""transport/requester: packets of every operation, limits, key checks, bursts, PSN wrap."""
import pytest

from test.requester_bench import SendBench, expect_cqes
from roce_soc import abi
from roce_soc.opcodes import OPCODES, by_name, packets
from roce_soc.verbs import (
    SEND_FENCE, SEND_INLINE, SEND_SIGNALED, SEND_SOLICITED, WC_LOC_LEN_ERR, WC_LOC_PROT_ERR, WC_LOC_QP_OP_ERR,
    WR_ATOMIC_FETCH_AND_ADD, WR_RDMA_READ, WR_RDMA_WRITE, WR_RDMA_WRITE_WITH_IMM, WR_SEND, WR_SEND_WITH_IMM)


def names(bench):
    return [OPCODES[p.opcode].name[3:] for p in bench.packets]


def test_one_send(seed):
    b = SendBench(seed)
    b.connect()
    b.post(0, WR_SEND, 100)
    b.completed(1)
    assert names(b) == ["SEND_ONLY"]
    assert b.peers[0].sends == [(b.buffer(0, 0, 100), None, 0)]
    c = b.cqes[0]
    assert (c.wr_id, c.status, c.opcode, c.qpn, c.cqn, c.slot) == (b.posted[0][0]["wr_id"], 0, 0, 0x100, 0, 0)



OPERATIONS = (WR_SEND, WR_SEND_WITH_IMM, WR_RDMA_WRITE, WR_RDMA_WRITE_WITH_IMM, WR_RDMA_READ)


def check_done(b, qpi):
    """What the peer received since the last call and what READs brought are what was posted, in order."""
    peer, sends, writes = b.peers[qpi], [], []
    for w, sent in b.unchecked.pop(qpi, []):
        imm = w["imm"] if w["opcode"] in (WR_SEND_WITH_IMM, WR_RDMA_WRITE_WITH_IMM) else None
        se  = int(bool(w["flags"] & SEND_SOLICITED))
        if w["opcode"] in (WR_SEND, WR_SEND_WITH_IMM):
            sends.append((sent, imm, se))
        elif w["opcode"] == WR_RDMA_READ:
            assert b.buffer(qpi, w["local_va"] - b.va(qpi), w["length"]) == peer.read_data(w["remote_va"], w["length"])
        else:
            writes.append((w["remote_va"], sent, imm))
    assert peer.sends == sends
    assert peer.writes == writes
    peer.sends, peer.writes = [], []


@pytest.mark.parametrize("pmtu", [256, 512, 1024, 2048, 4096])
def test_lengths(seed, pmtu):
    """Every operation at the lengths where something changes; PSNs run through the wrap."""
    b = SendBench(seed)
    start = 0xfffff0
    b.connect(pmtu=pmtu, psn=start)
    total = 0
    for length in (0, 1, 63, 64, 65, pmtu - 1, pmtu, pmtu + 1, 2*pmtu, 4095, 4096, 4097, 5*pmtu + 3, 16*pmtu, 16*pmtu + 1):
        for opcode in OPERATIONS:
            b.post(0, opcode, length, offset=(total % 8)*70_000 + 7*total)
            total += 1
            if total % 8 == 0:
                b.completed(total)
                check_done(b, 0)
    b.completed(total)
    expect_cqes(b, 0, [0]*total)
    check_done(b, 0)
    psn = start
    for c, w in zip(b.cqes, b.posted[0]):
        psn += packets(w["length"], pmtu)
        if w["opcode"] == WR_RDMA_READ:
            assert c.byte_len == w["length"]
    assert b.peers[0].psn == psn & 0xffffff
    assert not b.events
    # AckReq: on the last packet of each message, on one in 64 at least.
    for p in b.packets:
        op = OPCODES[p.opcode]
        assert p.ackreq == int(op.ends or p.psn % 64 == 63), op.name


def test_many_qps(rng, seed):
    """Random work on every QP at once, with stalls everywhere: order, data, completions."""
    b = SendBench(seed, stall=0.3, latency=(1, 60), cmd_stall=0.3, answer_gap=0.3)
    for qpi in range(16):
        b.connect(qpi, pmtu=rng.choice([256, 512, 1024, 4096]), psn=rng.randrange(1 << 24), max_rd_atomic=rng.randrange(1, 17))
    count = 0
    for turn in range(20):
        for qpi in range(16):
            b.post(qpi, rng.choice(OPERATIONS), rng.choice([0, rng.randrange(70), rng.randrange(9000)]),
                offset=turn*10_000 + rng.randrange(64), flags=SEND_SIGNALED | rng.choice([0, SEND_SOLICITED]), ring=False)
            count += 1
        for qpi in rng.sample(range(16), 16):
            b.ring(qpi)
        if rng.randrange(2):
            b.completed(count)
    b.completed(count)
    for qpi in range(16):
        expect_cqes(b, qpi, [0]*20)
        check_done(b, qpi)
    assert not b.events


def test_unsignalled(seed):
    """No completion for an unsignalled work request; sq_sig_all asks for each."""
    b = SendBench(seed)
    b.connect(0)
    b.connect(1, sq_sig_all=1)
    for qpi in (0, 1):
        for flags in (0, SEND_SIGNALED, 0, 0, SEND_SIGNALED):
            b.post(qpi, WR_RDMA_WRITE, 10, flags=flags)
    b.completed(7)
    b.run(cycles=500)
    assert [c.slot for c in b.cqes if c.qpn == 0x100] == [1, 4]
    assert [c.slot for c in b.cqes if c.qpn == 0x101] == [0, 1, 2, 3, 4]


def test_inline(seed):
    """Inline payload lies in the next ring slot; no key is asked for; slots go round the ring."""
    b = SendBench(seed)
    b.connect(0)
    texts = [bytes(range(n, n + n)) for n in (1, 13, 63, 64)]*12
    for n, text in enumerate(texts):
        b.post(0, WR_SEND, len(text), flags=SEND_INLINE | SEND_SIGNALED, inline=text, lkey=0xdead)
        b.completed(n + 1)
    assert [s[0] for s in b.peers[0].sends] == texts
    assert [c.slot for c in b.cqes] == [(2*n + 1) % 64 for n in range(len(texts))]
    expect_cqes(b, 0, [0]*len(texts))


@pytest.mark.parametrize("limit", [1, 2, 16])
def test_read_limit(seed, limit):
    """No more READs outstanding than max_rd_atomic; all of them done in the end."""
    b = SendBench(seed)
    b.connect(0, max_rd_atomic=limit)
    b.delay = 400
    for _ in range(24):
        b.post(0, WR_RDMA_READ, 100)
    b.run(lambda: len(b.packets) >= limit)
    b.run(cycles=200)
    assert len(b.packets) == limit
    b.completed(24)
    assert len(b.packets) == 24


def test_fence(seed):
    """A fenced WRITE waits for the READ before it; one without does not."""
    b = SendBench(seed)
    b.connect(0)
    b.delay = 500
    b.post(0, WR_RDMA_READ, 100)
    b.post(0, WR_RDMA_WRITE, 100)
    b.post(0, WR_RDMA_WRITE, 100, flags=SEND_FENCE | SEND_SIGNALED)
    b.run(lambda: len(b.packets) >= 2)
    b.run(cycles=200)
    assert names(b) == ["READ_REQUEST", "WRITE_ONLY"]
    b.completed(3)
    assert names(b)[2] == "WRITE_ONLY"


def test_fence_waits_for_memory(seed):
    """A fenced WRITE waits until the data of every READ before it is in memory, not only until it came."""
    b = SendBench(seed)
    b.connect(0)
    # So many that the counters have wrapped.
    for n in range(70):
        b.post(0, WR_RDMA_READ, 100)
        b.completed(n + 1)
    b.place_delay = 600
    for n in range(3):
        b.post(0, WR_RDMA_READ, 100)
        b.post(0, WR_RDMA_READ, 100)
        b.post(0, WR_RDMA_WRITE, 100, flags=SEND_FENCE | SEND_SIGNALED)
        # The first READ's end looks at the queue again while the second one's data is on its way.
        b.completed(71 + 3*n)
        b.run(cycles=400)
        assert names(b)[70 + 3*n:] == ["READ_REQUEST"]*2
        b.completed(73 + 3*n)
    # Without a READ before it nothing is waited for.
    b.delay = 600
    b.post(0, WR_RDMA_WRITE, 100)
    b.post(0, WR_RDMA_WRITE, 100, flags=SEND_FENCE | SEND_SIGNALED)
    b.run(cycles=300)
    assert names(b)[79:] == ["WRITE_ONLY"]*2


def test_outstanding_limit(seed):
    """32 messages outstanding, then the queue waits; nothing is lost."""
    b = SendBench(seed)
    b.connect(0)
    b.delay = 3000
    for _ in range(60):
        b.post(0, WR_SEND, 20, ring=False)
    b.ring(0)
    b.run(cycles=2000)
    assert len(b.packets) == 32
    b.delay = 10
    b.completed(60)
    expect_cqes(b, 0, [0]*60)


BAD = {
    "lkey"       : (WC_LOC_PROT_ERR,  dict(lkey=0x54)),
    "bounds"     : (WC_LOC_PROT_ERR,  dict(local_va=SendBench.va(1) - 99)),
    "too_long"   : (WC_LOC_LEN_ERR,   dict(length=(1 << 31) + 1)),
    "opcode"     : (WC_LOC_QP_OP_ERR, dict(opcode=0x44)),
    "atomic"     : (WC_LOC_QP_OP_ERR, dict(opcode=WR_ATOMIC_FETCH_AND_ADD)),
    "num_sge"    : (WC_LOC_QP_OP_ERR, dict(num_sge=2)),
    "no_sge"     : (WC_LOC_QP_OP_ERR, dict(num_sge=0)),
    "inline_len" : (WC_LOC_LEN_ERR,   dict(flags=SEND_INLINE | SEND_SIGNALED, inline=bytes(64), length=65)),
}


@pytest.mark.parametrize("case", BAD)
def test_local_errors(seed, case):
    """Messages before the bad one complete, it fails with its status, those behind are flushed; other QPs go on."""
    status, changes = BAD[case]
    b = SendBench(seed)
    b.connect(0)
    b.connect(1)
    for n in range(5):
        fields = dict(length=100)
        if n == 2:
            fields.update(changes)
        b.post(0, fields.pop("opcode", WR_SEND), fields.pop("length"), **fields)
        b.post(1, WR_SEND, 100)
    b.run(lambda: b.events)
    assert [(e.type, e.queue) for e in b.events] == [(abi.EVENT_QP_FATAL, 0)]
    b.flushed(0)
    b.completed(10)
    expect_cqes(b, 0, [0, 0, status, 5, 5])
    expect_cqes(b, 1, [0]*5)
    assert len(b.peers[0].sends) == 2
    assert [f.row for f in b.failures] == [c.vendor_err for c in b.cqes if c.status]
    # Work posted in ERR is flushed as well.
    b.post(0, WR_SEND, 100)
    b.completed(11)
    assert b.cqes[-1].status == 5
    # RESET forgets it all.
    b.reset(0)
    b.connect(0, psn=0xabc000)
    for opcode in OPERATIONS:
        b.post(0, opcode, 3000)
    b.completed(16)
    assert [c.status for c in b.cqes[11:]] == [0]*5
    assert b.peers[0].psn == 0xabc000 + 5*3


def test_read_without_right(seed):
    """max_rd_atomic 0 forbids READs; nothing is sent."""
    b = SendBench(seed)
    b.connect(0, max_rd_atomic=0)
    b.post(0, WR_RDMA_READ, 100)
    b.completed(1)
    assert b.cqes[0].status == WC_LOC_QP_OP_ERR
    assert not b.packets


def test_payload_read_error(seed):
    """A packet whose payload could not be read fails its message after those before it are done."""
    b = SendBench(seed)
    b.connect(0, pmtu=256)
    b.sent_err[0, 0x1000 + 2] = 1
    for length in (256, 600, 256):
        b.post(0, WR_RDMA_WRITE, length)
    b.run(lambda: b.events)
    b.flushed(0)
    b.completed(3)
    expect_cqes(b, 0, [0, WC_LOC_QP_OP_ERR, 5])


def test_reset_and_reuse(seed):
    """RESET clears every store: the next connection starts at slot 0 with its own PSNs."""
    b = SendBench(seed)
    for turn in range(4):
        b.connect(0, psn=0x500000 + turn*1000)
        done = len(b.cqes)
        for _ in range(20):
            b.post(0, WR_RDMA_WRITE, 3000)
        if turn & 1:
            b.run(cycles=300)       # RESET in the middle of traffic.
        else:
            b.completed(done + 20)
            assert b.peers[0].psn == 0x500000 + turn*1000 + 60
        b.reset(0)
        b.pending, sent = [], len(b.packets)
        b.run(cycles=500)
        assert len(b.packets) == sent


def test_posted_before_rts(seed):
    """Work posted before the QP has its PSNs waits for CTL_START, also when the state is written first."""
    b = SendBench(seed)
    b.connect(0)
    b.reset(0)
    b.write_row(0, state=abi.QP_RTR)
    b.post(0, WR_SEND, 10)
    b.run(cycles=200)
    b.write_row(0, state=abi.QP_RTS)
    b.post(0, WR_SEND, 10)
    b.run(cycles=200)
    assert not b.packets
    b.connect(0, psn=0x777)
    b.completed(2)
    assert [p.psn for p in b.packets] == [0x777, 0x778]


def test_long_read(seed):
    """A READ of 2^31 bytes goes out in requests of 2^29 bytes; with PMTU 256 one fills the window."""
    for pmtu, requests in ((256, 1), (4096, 4)):
        b = SendBench(seed, tick_cycles=4)
        b.connect(0, pmtu=pmtu, psn=0xffff00, timeout=3, retry_cnt=1)
        b.mr.send(valid_row=1, index=0, variant=0x55, access=1, pd=7, target=0, va=b.va(0), length=1 << 32, addr=0)
        b.sim.drain(b.mr)
        b.run(cycles=20)
        b.peers[0].packet = lambda p, data: []
        b.post(0, WR_RDMA_READ, 1 << 31)
        b.run(cycles=400)
        asked = [(p.psn, p.va - 0x5000_0000, p.dma_length) for p in b.packets]
        size  = 1 << 29
        assert asked == [((0xffff00 + n*size//pmtu) & 0xffffff, n*size, size) for n in range(requests)]
        # The first response moves una; the repetition ends where the first request did.
        b.respond(0, opcode=by_name("RC_READ_RESPONSE_FIRST").value, psn=0xffff00, syndrome=0x1f, data=bytes(pmtu))
        b.run(lambda: any(p.psn == 0xffff01 for p in b.packets))
        p = next(p for p in b.packets if p.psn == 0xffff01)
        assert (p.psn, p.va - 0x5000_0000, p.dma_length) == (0xffff01, pmtu, size - pmtu)


def test_acknowledged_are_skipped(seed):
    """Rewound, and acknowledged before anything is sent again: what is done is not repeated."""
    b = SendBench(seed)
    b.connect(0, pmtu=256)
    b.delay = 1 << 30
    for length in (600, 600, 100, 600):           # PSNs 0..2, 3..5, 6, 7..9.
        b.post(0, WR_SEND, length)
    b.run(lambda: len(b.packets) == 10)
    b.run(cycles=100)
    for psn, syndrome in ((0x1000, 0x60), (0x1007, 0x1f)):
        b.respond(0, opcode=by_name("RC_ACKNOWLEDGE").value, psn=psn, syndrome=syndrome)
    b.run(cycles=300)
    assert [(p.psn, OPCODES[p.opcode].name) for p in b.packets[10:]] == [(0x1008, "RC_SEND_MIDDLE"), (0x1009, "RC_SEND_LAST")]
    assert len(b.cqes) == 3


def test_nothing_behind_a_local_error(seed):
    """Bursts built before the key check of an earlier one failed do not go out."""
    b = SendBench(seed)
    b.connect(0)
    for n in range(20):
        b.post(0, WR_SEND, 100, ring=False, **({"lkey": 0x54} if n == 2 else {}))
    b.ring(0)
    b.run(lambda: b.events)
    b.flushed(0)
    b.completed(20)
    expect_cqes(b, 0, [0, 0, WC_LOC_PROT_ERR] + [5]*17)
    assert [p.psn for p in b.packets] == [0x1000, 0x1001]
