# SPDX-License-Identifier: BSD-2-Clause
"""queue/push, queue/sq_doorbell: which words came, when a push starts from its slot and when it is a plain doorbell."""
import pytest

from litex.gen import LiteXModule

from roce_soc import abi
from roce_soc.errors import ERRORS
from roce_soc.memory.port import MemoryReadPort
from roce_soc.opcodes import by_name
from roce_soc.queue.doorbell import KIND_PUSH, DoorbellWindow
from roce_soc.queue.push import InlineReads
from roce_soc.verbs import SEND_INLINE, SEND_SIGNALED, WR_RDMA_READ, WR_RDMA_WRITE, WR_SEND
from sim.harness import Sim, build
from test.full_ring import FullRing
from test.requester_bench import PAGE, SQ_BASE, SendBench, expect_cqes
from test.test_doorbell import BUS
from test.test_doorbell import Bench as Bus
from test.test_requester_ring import ack, faulty

PAGES = 4


# Slots --------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def so():
    top = DoorbellWindow(PAGES)
    top.comb += [getattr(top.refusal, name).eq(0) for name in ("opcode", "qpn", "psn")]
    return build(top, {**{n: getattr(top, n) for n in ("sq", "rq", "cq", "eq")}, "refusal": top.refusal,
        **{f"bus_{n}": getattr(top.bus, n) for n in BUS}, "forget": top.slots.forget,
        **{n: getattr(top.slots.push, n) for n in ("complete", "wqe", "data")}}, name="push_slots")


class Window(Bus):
    """The doorbell window with its push slots."""
    def __init__(self, so):
        super().__init__(so)
        self.sim.poke("forget", 0)
        self.sim.step(PAGES + 2)

    def words(self, page, words):
        for n, word in words:
            self.access(page*abi.DOORBELL_PAGE_BYTES + abi.DOORBELL_PUSH + 4*n, word)

    def ring(self, page):
        """The doorbell word: (complete, work request, inline data) as the queue sees them."""
        self.queues["sq"].set(stall=1.0)
        self.sim.step(2)
        with pytest.raises(AssertionError, match="no acknowledge"):
            self.access(page*abi.DOORBELL_PAGE_BYTES + abi.DOORBELL_SQ_PUSH, 7 << 16 | 9)
        seen = tuple(self.sim.peek(n) for n in ("complete", "wqe", "data"))
        self.queues["sq"].set(stall=0.0)
        self.sim.run(lambda: self.sim.peek("bus_ack"), max_cycles=4, every=1)
        self.sim.step()
        self.sim.poke("bus_cyc", 0)
        self.sim.poke("bus_stb", 0)
        self.sim.step(2)
        assert self.taken() == [("sq", KIND_PUSH, page, 7, 9)]
        return seen


def slot(rng, length=None):
    """32 random words of a slot; with a length it is inline."""
    flags = rng.getrandbits(8) & ~SEND_INLINE | (SEND_INLINE if length is not None else 0)
    wqe   = abi.pack(abi.SEND_WQE, 64, opcode=rng.getrandbits(8), flags=flags, wr_id=rng.getrandbits(64),
        length=rng.getrandbits(32) if length is None else length, remote_va=rng.getrandbits(64))
    data  = wqe + rng.randbytes(64)
    return [int.from_bytes(data[4*n:4*n + 4], "little") for n in range(32)]


def number(words):
    return sum(w << (32*n) for n, w in enumerate(words))


def test_every_word_counts(so, rng):
    """Whole: yes. Any word of the work request missing: no. Inline data: the words it reaches into, no others."""
    window = Window(so)
    for length in (None, 0, 1, 4, 5, 63, 64, 65, 1 << 31):
        words = slot(rng, length)
        order = rng.sample(range(32), 32)
        window.words(1, [(n, words[n]) for n in order])
        assert window.ring(1) == (1, number(words[:16]), number(words[16:]))
        needed = 16 if length is None else 16 + min(16, -(-length//4))
        for missing in range(32):
            window.words(1, [(n, words[n]) for n in range(32) if n != missing])
            assert window.ring(1)[0] == (missing >= needed), f"length {length}, word {missing}"
    assert not len(window.refusal)


def test_forgotten(so, rng):
    """A doorbell, or the reset of a QP, forgets the words that came; other pages' doorbells do not; pages are apart."""
    window = Window(so)
    words  = [slot(rng) for _ in range(PAGES)]
    for page in range(PAGES):
        window.words(page, enumerate(words[page][:16]))
    for page in (2, 0, 3):
        assert window.ring(page)[:2] == (1, number(words[page][:16]))
        assert window.ring(page)[0] == 0
    window.sim.poke("forget", 1)
    window.sim.step()
    window.sim.poke("forget", 0)
    window.sim.step(PAGES + 2)
    assert window.ring(1)[0] == 0
    # A plain doorbell of the page leaves them.
    window.words(1, enumerate(words[1][:16]))
    window.access(abi.DOORBELL_PAGE_BYTES + abi.DOORBELL_SQ, 1 << 16)
    assert window.taken() == [("sq", 0, 1, 1, 0)] and window.ring(1)[0] == 1


def test_narrow_words(so, rng):
    """A word of less than 32 bits is refused and does not count."""
    window, words = Window(so), slot(rng)
    window.words(0, enumerate(words[:15]))
    window.access(abi.DOORBELL_PUSH + 60, words[15], sel=3)
    assert window.ring(0)[0] == 0
    assert [(r.row, r.info) for r in window.refusal.recv_all()] == [(ERRORS["DOORBELL"].index, abi.DOORBELL_PUSH + 60)]


# Start --------------------------------------------------------------------------------------------

def reads(b):
    """Work requests read from memory since the last call."""
    return [e["addr"] for e in b.memory.log() if SQ_BASE <= e["addr"] < SQ_BASE + 0x10000*64]


def test_starts_from_its_slot(seed):
    """An idle queue: no read of the ring, plain and inline, through the ring's end."""
    b = SendBench(seed)
    b.connect(0, pmtu=256)
    for n in range(150):
        inline = bytes([n])*(n % 65) if n % 2 else None
        b.post(0, WR_SEND, 700 if inline is None else len(inline), offset=n*10, inline=inline, push=True,
            flags=SEND_SIGNALED | (SEND_INLINE if inline is not None else 0))
        b.completed(n + 1)
    expect_cqes(b, 0, [0]*150)
    assert [s[0] for s in b.peers[0].sends] == [sent for _, sent in b.unchecked[0]]
    assert not reads(b)


def test_repetition_reads_the_ring(seed):
    """What has left the chip is read again from the ring."""
    b = SendBench(seed)
    b.connect(0)
    b.peers[0].packet = lambda p, data: []
    for _ in range(20):
        b.post(0, WR_SEND, 100, push=True)
        b.run(cycles=60)
    assert len(b.packets) == 20 and not reads(b)
    ack(b, 0x1000, 0x60)
    b.run(lambda: len(b.packets) == 40)
    assert reads(b)[0] == SQ_BASE and [p.psn for p in b.packets[20:]] == list(range(0x1000, 0x1014))


PLAIN = {   # why a push is a doorbell as any other: (words missing, work requests posted before it without doorbell)
    "words missing": (True, 0),
    "more than one": (False, 1),
}


@pytest.mark.parametrize("why", PLAIN)
def test_plain(seed, why):
    """Not all words, or not the work request at the producer index: it is read from the ring; nothing is lost."""
    missing, before = PLAIN[why]
    b = SendBench(seed)
    b.connect(0)
    for n in range(4):
        for _ in range(before):
            b.post(0, WR_SEND, 10, ring=False)
        b.post(0, WR_SEND, 20, ring=False)
        b.sim.poke("push_wqe", b.rng.getrandbits(512) & ~(SEND_INLINE << 8))
        b.push(0, complete=not missing)
        b.completed((n + 1)*(1 + before))
    expect_cqes(b, 0, [0]*4*(1 + before))
    assert len(reads(b)) >= 4


def test_others_wait(seed):
    """Work requests before it still wait to be read or sent: in order, each once."""
    b = SendBench(seed, latency=200)
    b.connect(0)
    for n in range(30):
        b.post(0, WR_SEND, n, push=n % 3 != 0)
        if n % 5 == 0:
            b.run(cycles=n*10)
    b.completed(30)
    expect_cqes(b, 0, [0]*30)
    assert [len(s[0]) for s in b.peers[0].sends] == list(range(30))


def test_late_read_of_a_passed_slot(seed):
    """A read that a rewind began arrives when the cursor has passed: the pushed work request that waits there stays."""
    b = SendBench(seed, latency=600)
    b.connect(0, max_rd_atomic=1)
    b.peers[0].packet = lambda p, data: []
    for n in range(8):
        b.post(0, WR_RDMA_READ if n == 7 else WR_SEND, 100, ring=False)
    b.ring(0)
    b.run(lambda: len(b.packets) == 8)
    b.run(cycles=700)
    ack(b, 0x1000, 0x60)                         # all again from the chip, while the ring is read once more.
    b.run(lambda: len(b.packets) == 16)
    b.post(0, WR_RDMA_READ, 100, push=True)      # in the place of slot 0, held by the READ before it.
    b.run(cycles=800)
    assert len(b.packets) == 16
    b.respond(0, opcode=by_name("RC_READ_RESPONSE_ONLY").value, psn=0x1007, syndrome=0x1f, data=bytes(100))
    b.run(lambda: len(b.packets) == 17, cycles=3000)


def test_refused(seed):
    """Not the queue's page, an index beyond the ring, no such queue, a QP in RESET: counted, nothing starts."""
    b = SendBench(seed)
    b.connect(0)
    b.post(0, WR_SEND, 10, ring=False)
    wqe = b.memory.read(SQ_BASE, 64)
    wrong = ((0, dict(page=PAGE + 1)), (0, dict(index=65)), (0, dict(index=0xffff)), (64, dict(index=1)),
        (5, dict(index=1, page=0)))
    for queue, more in wrong:
        b.sim.poke("push_wqe", int.from_bytes(wqe, "little"))
        b.push(queue, **more)
    b.run(cycles=300)
    assert len(b.bell_refusals) == 5 and not b.packets and not reads(b)
    b.sim.poke("push_wqe", int.from_bytes(wqe, "little"))
    b.push(0)
    b.completed(1)
    assert not reads(b)


def test_reset(seed):
    """A QP's next life begins at slot 0: what was pushed before is not there any more."""
    b = SendBench(seed)
    for turn in range(6):
        b.connect(0, psn=0x2000*turn)
        for n in range(turn):
            b.post(0, WR_RDMA_WRITE, 3000, push=True)
        b.run(cycles=turn*9)
        b.reset(0)
        b.pending, b.cqes = [], []
        b.connect(0, psn=0x100)
        sent = len(b.packets)
        b.run(cycles=100)
        assert len(b.packets) == sent
        b.post(0, WR_SEND, 10, push=turn % 2)
        b.completed(1)
        expect_cqes(b, 0, [0])
        b.reset(0)


@pytest.mark.parametrize("latency", [4, 1000])
def test_full_ring(seed, rng, latency):
    """Pushed and plain work requests in rings that are always full, loss, late acknowledges, slow reads."""
    b = SendBench(seed, tick_cycles=8, lose=faulty(rng, .01, .05), latency=latency)
    b.delay = 700
    for qpi in range(2):
        b.connect(qpi, pmtu=256, psn=rng.choice((5, 0xfffff0, 0x7fffe0)), timeout=4)
    FullRing(b, rng, range(2), total=150, signalled=rng.choice((1, .5)), pushed=.7).run()


# Inline data --------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def reader():
    class Top(LiteXModule):
        def __init__(self):
            self.user  = MemoryReadPort()
            self.reads = InlineReads(self.user, 8)
    top  = Top()
    port = top.reads.port
    return build(top, {"rcmd": top.user.rcmd, "rdata": top.user.rdata, "m_rcmd": port.rcmd, "m_rdata": port.rdata,
        "load": top.reads.load, "forget": top.reads.forget,
        **{f"inline_{n}": getattr(top.reads.inline, n) for n in ("target", "addr", "data")}}, name="inline_reads")


class Reader:
    def __init__(self, so, **options):
        self.sim    = Sim(so, seed=1)
        self.rcmd   = self.sim.source("rcmd", records=True)
        self.rdata  = self.sim.sink("rdata", records=True)
        self.memory = self.sim.memory("m", **(options or dict(latency=4)))
        for name in ("load", "forget"):
            self.sim.poke(name, 0)
        self.sim.reset()
        self.memory.write(0x1000, bytes(range(256))*16)

    def pulse(self, name):
        self.sim.poke(name, 1)
        self.sim.step()
        self.sim.poke(name, 0)

    def load(self, addr, data, target=0):
        for name, value in (("target", target), ("addr", addr), ("data", data)):
            self.sim.poke(f"inline_{name}", value)
        self.pulse("load")

    def read(self, *commands):
        """(tag, data) of reads of 64 bytes at (addr, tag, target)."""
        for addr, tag, target in commands:
            self.rcmd.send(target=target, addr=addr, length=64, qpi=1, tag=tag)
        self.sim.run(lambda: len(self.rdata) >= len(commands), max_cycles=3000, every=1)
        answers = self.rdata.recv_all()
        assert not any(r.err for r in answers)
        return [(r.tag, r["data"]) for r in answers]


def memory_word(addr):
    return int.from_bytes(bytes((addr + n) & 0xff for n in range(64)), "little")


def test_inline_is_served_once(reader):
    """Held data answers the first read of its address and target; then memory does, and for every other address."""
    bench = Reader(reader)
    bench.load(0x1040, 0xabc)
    assert bench.read((0x1080, 1, 0), (0x1000, 2, 0)) == [(1, memory_word(0x1080)), (2, memory_word(0x1000))]
    assert bench.read((0x1040, 3, 0)) == [(3, 0xabc)]
    assert bench.read((0x1040, 4, 0)) == [(4, memory_word(0x1040))]
    bench.load(0x1040, 0xdef, target=1)
    assert bench.read((0x1040, 5, 0)) == [(5, memory_word(0x1040))]
    assert bench.read((0x1040, 6, 1)) == [(6, 0xdef)]
    for n in range(8):
        bench.load(0x1000 + 64*n, n + 1)
        assert bench.read((0x1000 + 64*n, 8 + n, 0)) == [(8 + n, n + 1)]
    # A command that is none, of the same address, takes nothing.
    bench.rcmd.set(poison=False)
    bench.read((0x1080, 1, 0))
    bench.load(0x1080, 0x77)
    bench.sim.step(10)
    assert bench.read((0x1080, 2, 0)) == [(2, 0x77)]
    bench.load(0x1040, 0x123)
    bench.pulse("forget")
    assert bench.read((0x1040, 7, 0)) == [(7, memory_word(0x1040))]


MEMORIES = dict(latency=4), dict(latency=60, cmd_stall=.8), dict(latency=(1, 40), answer_gap=.5)


def test_inline_withdraws_no_command(reader):
    """A command that waits for memory is not answered here, though nothing is under way any more."""
    bench = Reader(reader)
    sim   = bench.sim
    for _ in range(20):
        bench.memory.set(cmd_stall=0.0)
        bench.load(0x1040, 0xabc)
        bench.rcmd.send(target=0, addr=0x1000, length=64, qpi=1, tag=1)
        bench.rcmd.send(target=0, addr=0x1040, length=64, qpi=1, tag=2)
        sim.run(lambda: sim.peek("m_rcmd_valid"), max_cycles=100, every=1)
        bench.memory.set(cmd_stall=.95)
        sim.step()
        waits = False
        while len(bench.rdata) < 2:
            valid = sim.peek("m_rcmd_valid")
            assert valid or not waits, "a command was withdrawn"
            waits = valid and not sim.peek("m_rcmd_ready")
            sim.step()
        assert [(r.tag, r["data"]) for r in bench.rdata.recv_all()] == [(1, memory_word(0x1000)), (2, memory_word(0x1040))]


@pytest.mark.parametrize("options", MEMORIES)
def test_inline_keeps_order(reader, options):
    """Behind reads under way memory answers, in order; a command that memory has been shown stays with it."""
    bench = Reader(reader, **options)
    for turn in range(20):
        bench.load(0x1040, 0xabc)
        got = bench.read((0x1000, 1, 0), (0x1040, 2, 0), (0x1040, 3, 0))
        assert [tag for tag, _ in got] == [1, 2, 3]
        assert got[0][1] == memory_word(0x1000) and got[2][1] == memory_word(0x1040)
        assert got[1][1] in (memory_word(0x1040), 0xabc)
