# SPDX-License-Identifier: BSD-2-Clause
"""Store, check, then act: each byte of one frame of every opcode is damaged once; nothing changes but one counter."""
import random

import pytest

from roce_soc import opcodes as op
from roce_soc import verbs
from roce_soc.errors import BY_INDEX, ERRORS
from sim.engine import IPS, MACS
from test.engine_bench import ENGINE_VA, MODEL_VA, ModelBench
from test.model.packet import Packet

OPCODES = [o for o in op.OPCODES.values() if o.transport in ("RC", "CNP")]
# Bytes of an untagged IPv4 frame that nothing protects: source MAC, UDP checksum (not looked at), FECN and BECN of the BTH.
# TOS and TTL are masked in the ICRC, too, but the IP header's checksum covers them.
FREE = {*range(6, 12), 40, 41, 46}


def total(bench, rows=range(1, 64)):
    """All counters of refusals."""
    return {n: bench.engine.counter(n) for n in rows}


@pytest.fixture
def bench(seed):
    """One QP in RTS with a READ and a SEND open, a receive posted; the model is silent."""
    bench = ModelBench(seed=seed, timeout=0)
    qp    = bench.pairs[0]
    bench.engine.write_memory(ENGINE_VA, bytes(range(256))*16)
    for n in range(3):
        qp.post_recv(bench.mr, va=ENGINE_VA + 0x8000, length=4096, wr_id=n)
    qp.post_send(verbs.WR_RDMA_READ, bench.mr, va=ENGINE_VA + 0x9000, length=1500, wr_id=7, remote_va=MODEL_VA, rkey=bench.region.key)
    qp.post_send(verbs.WR_SEND, bench.mr, va=ENGINE_VA, length=64, wr_id=8)
    bench.bench.step(300)
    bench.engine.frames()
    return bench


def frame_of(bench, opcode, payload):
    """A frame of the opcode that the engine would act upon."""
    qp = bench.pairs[0]
    a  = qp.attributes
    psn = a["sq_psn"] if opcode.is_response else a["rq_psn"]
    return Packet(dst_mac=MACS[0].to_bytes(6, "big"), src_mac=MACS[1].to_bytes(6, "big"), src_ip=IPS[1].to_bytes(4, "big"), dst_ip=IPS[0].to_bytes(4, "big"),
        opcode=opcode.value, dest_qpn=qp.qpn, psn=psn, ackreq=1, va=ENGINE_VA + 0x8000, rkey=bench.mr.rkey, dma_length=len(payload), syndrome=op.ACK_UNLIMITED, msn=1,
        payload=payload, tos=2).build(pad_frame=True)


@pytest.mark.parametrize("opcode", OPCODES, ids=lambda o: o.name)
def test_every_byte(opcode, bench, seed):
    """One bit of each byte in turn, and the MAC's error mark: dropped, counted once, no frame, no completion, no write."""
    rng     = random.Random(seed)
    payload = rng.randbytes(21) if opcode.payload != "NONE" else b""
    frame   = frame_of(bench, opcode, payload)
    engine  = bench.engine
    length  = int.from_bytes(frame[16:18], "big") + 14
    before  = total(bench)
    writes  = engine.memory.counters()["e0_pw", "write"]["commands"], engine.memory.counters()["e0_cw", "write"]["commands"]
    count   = 0
    for at in range(length):
        if at in FREE:
            continue
        bad = frame[:at] + bytes([frame[at] ^ 1 << rng.randrange(8)]) + frame[at + 1:]
        engine.send(bad)
        count += 1
    engine.send(frame, error=1)
    bench.bench.run(lambda: not engine.rx.pending)
    bench.bench.step(600)
    after = total(bench)
    # A frame that is not RoCE any more goes to the slow path.
    slow  = len(engine.slow_out.recv_all())
    assert sum(after.values()) - sum(before.values()) + slow == count + 1, {n: after[n] - before[n] for n in after if after[n] != before[n]}
    assert after[ERRORS["MAC_ERROR"].index] == before[ERRORS["MAC_ERROR"].index] + 1
    assert all(BY_INDEX[n].stage == "RECEIVE" for n in after if after[n] != before[n])
    assert not engine.frames()
    assert writes == (engine.memory.counters()["e0_pw", "write"]["commands"], engine.memory.counters()["e0_cw", "write"]["commands"])
    assert engine.chunks_free() == 512
    # The QP is where it was: the same frame undamaged is taken.
    if opcode.name in ("RC_SEND_ONLY", "RC_WRITE_ONLY", "RC_SEND_ONLY_IMM", "RC_WRITE_ONLY_IMM", "RC_READ_REQUEST"):
        engine.send(frame)
        bench.bench.step(600)
        assert len(engine.frames()) == 1
