# SPDX-License-Identifier: BSD-2-Clause
"""The engine at the ends of its parameters: smallest tables exchange data between two QPs of their own, largest ones pass the linter."""
import pytest

from roce_soc import abi, capability, common, verbs
from roce_soc.core import RoCECore
from sim.engine import IPS, MACS, Bench
from sim.harness import lint

# A target of each latency, one without a bound.
MEMORIES = (capability.MemoryTarget(abi.MEMORY_SRAM, 1 << 22), capability.MemoryTarget(abi.MEMORY_HOST, None, abi.LATENCY_HOST))
SMALL = dict(n_qps=16, n_mrs=16, n_cqs=16, n_chunks=64, doorbell_pages=1, memories=MEMORIES)
LARGE = dict(n_qps=4096, n_mrs=4096, n_cqs=4096, n_chunks=1024, doorbell_pages=256, tick_cycles=65535)
VA    = 0x1000_0000


@pytest.fixture
def engine(seed):
    return Bench(seed=seed, **SMALL).engines[0]


def local_pair(engine, **attributes):
    """Two QPs of one engine whose frames are addressed to its own MAC."""
    qps = []
    for side in (0, 1):
        cq = engine.roce.create_cq(6)
        qps.append(engine.roce.create_qp(cq, cq, src_mac=MACS[0], dst_mac=MACS[0], src_ip=IPS[0], dst_ip=IPS[0], pmtu=3,
            sq_psn=0x100*(side + 1), rq_psn=0x100*(2 - side), **attributes))
    for qp, peer in zip(qps, reversed(qps)):
        qp.attributes["dest_qpn"] = peer.qpn
    for state in (abi.QP_INIT, abi.QP_RTR, abi.QP_RTS):
        for qp in qps:
            qp.modify(state)
    return qps


def test_capability(engine):
    """Registers and the answer of CMD_QUERY_DEVICE are the same words, and those of the build."""
    words  = capability.capability_words(n_qps=16, n_mrs=16, n_cqs=16, n_rqs=16, memories=MEMORIES)
    answer = engine.roce.command(abi.CMD_QUERY_DEVICE, [], answer=True)
    assert answer[:len(words)] == [value for value, _ in words.values()]
    assert {name: engine.read_register(f"capability_{name}") for name in words} == {name: value for name, (value, _) in words.items()}
    assert words["abi"][0] == abi.ABI_VERSION and words["features"][0] & abi.FEATURE_RC
    assert (words["data_width"][0], words["max_pmtu"][0]) == (common.DATA_WIDTH, 4096)


def test_two_local_qps(engine, rng):
    """SEND, WRITE and READ both ways at once between two QPs of one engine: nothing of it reaches the wire, while the wire is busy."""
    roce, sim = engine.roce, engine.sim
    mr   = roce.reg_mr(VA, 1 << 20, access=7)
    qps  = local_pair(engine)
    done = {qp: [] for qp in qps}
    image = bytearray(rng.randbytes(1 << 20))
    engine.write_memory(VA, bytes(image))
    for qp in qps:
        for n in range(4):
            qp.post_recv(mr, va=VA + 0x80000 + 0x10000*qps.index(qp) + 0x2000*n, length=0x2000, wr_id=100 + n)
    # Frames of the wire between them: for no QP here, counted and dropped.
    engine.rx.pace(50)
    for _ in range(60):
        engine.send(bytes.fromhex("020000000009020000000002" "88b5") + rng.randbytes(rng.randrange(60, 1400)))
    for side, qp in enumerate(qps):
        for n, length in enumerate((0, 1, 64, 1023, 1024, 1025, 5000, 4096)):
            source, sink = VA + 0x20000*side + 0x2000*n + n, VA + 0x40000 + 0x20000*side + 0x2000*n + 3*n
            remote, local, opcode = (sink, source, verbs.WR_RDMA_WRITE) if n % 2 else (source, sink, verbs.WR_RDMA_READ)
            qp.post_send(opcode, mr, va=local, length=length, remote_va=remote, rkey=mr.rkey, wr_id=n)
            image[sink - VA:sink - VA + length] = image[source - VA:source - VA + length]
        for n in range(4):
            data = VA + 0x20000*side + 0x2000*n + 9
            qp.post_send(verbs.WR_SEND, mr, va=data, length=1500*n, wr_id=50 + n)
            at = 0x80000 + 0x10000*(1 - side) + 0x2000*n
            image[at:at + 1500*n] = image[data - VA:data - VA + 1500*n]

    def finished():
        for qp in qps:
            done[qp] += qp.send_cq.poll()
        return all(len(entries) == 16 for entries in done.values()) and not engine.rx.pending

    sim.run(finished, max_cycles=60_000, every=50)
    assert all(e["status"] == 0 for entries in done.values() for e in entries)
    assert engine.read_memory(VA, 1 << 20) == bytes(image)
    sim.step(500)
    assert not engine.frames() and len(engine.slow_out) == 60
    assert engine.chunks_free() == SMALL["n_chunks"]


def test_last_row(engine):
    """The table's last row can be used, an index beyond it is refused."""
    roce = engine.roce
    qps  = [roce.create_qp(cq, cq) for cq in [roce.create_cq(4)] for _ in range(15)]
    assert [qp.index for qp in qps] == list(range(1, 16))
    assert roce.command(abi.CMD_QUERY_QP, [15], answer=True)[0] & 0xffff == 15
    with pytest.raises(Exception, match="(?i)index"):
        roce.command(abi.CMD_QUERY_QP, [16])


def test_lint():
    """The generated Verilog of the largest tables passes the linter; the smallest were compiled above."""
    top = RoCECore(**LARGE)
    lint(top, {"rx": top.rx, "tx": top.tx, "ready": top.ready}, name="core_sizes")
