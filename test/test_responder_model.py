# SPDX-License-Identifier: BSD-2-Clause
"""transport/responder against the reference model: the same random packets, good and bad, to both."""
import random
from types import SimpleNamespace

import pytest

from roce_soc.common import CTL_RESET
from roce_soc.opcodes import psn_diff
from roce_soc.verbs import QPS_ERR, QPS_RTR, WC_WR_FLUSH_ERR
from test.model.endpoint import Endpoint
from test.responder_bench import *

QPN  = 0x101
KEYS = {RKEY: (2 | 4 | 1, 7), 0x0333: (15, 8), 0x0444: (4, 7), 0x0555: (0, 7)}
# A packet with two faults may name either: key without the right and out of bounds; pad on a FIRST of one path MTU.
DIFFER = {"MR_ACCESS": "MR_BOUNDS", "MR_BOUNDS": "MR_ACCESS", "LENGTH_PMTU": "LENGTH_LAST"}


@pytest.fixture(scope="module")
def so():
    return compiled()


class Pair:
    """QP 1 of the bench and its twin in the model."""
    def __init__(self, so, seed):
        self.rnd   = random.Random(seed)
        self.bench = Bench(so, seed=seed, hold=self.rnd.choice([0, 10]), latency=self.rnd.choice([4, (1, 80)]))
        self.model = Endpoint("52:54:00:00:00:01", "10.0.0.1")
        self.remote, self.local = bytearray(REGION), bytearray(REGION)
        for key, (access, pd) in KEYS.items():
            if key != RKEY:
                self.bench.region(key, access, REMOTE_VA, REMOTE_ADDR, pd=pd)
            self.model.reg_mr(REMOTE_VA, REGION, access, key=key, pd=pd, data=self.remote)
        self.model.reg_mr(LOCAL_VA, REGION, 1, key=LKEY, pd=7, data=self.local)
        self.out = []
        self.model.send = lambda qp, **fields: self.out.append(fields)
        self.live = False

    def start(self):
        """Both QPs anew, with random limits."""
        rnd, b = self.rnd, self.bench
        psn, reads = rnd.choice([0, 0xfffffd, rnd.getrandbits(24)]), rnd.choice([1, 4, 16])
        access = rnd.choice([7, 7, 7, 3, 5])
        b.control_qp(1, CTL_RESET)
        b.qp(1, psn=psn, max_dest_rd_atomic=reads, access=access)
        if QPN in self.model.qps:
            self.model.destroy_qp(QPN)
        self.qp = self.model.create_qp(QPN, state=QPS_RTR, rq_psn=psn, pmtu=256, pd=7, access=access, max_dest_rd_atomic=reads)
        self.bench.take("tx"), self.bench.take("cqes"), self.bench.take("refusals"), self.bench.take("events")
        self.model.completions.clear()
        self.model.refusals.clear()
        self.model.counters.clear()
        self.live, self.posted = True, 0

    def post(self):
        length = self.rnd.choice([0, 10, 600, 4096])
        va = LOCAL_VA + 0x1000*(self.posted % 64)
        wr_id = self.bench.post(1, length=length, va=va)
        self.model.post_recv(QPN, wr_id, va=va, length=length, lkey=LKEY)
        self.posted += 1
        self.bench.run(self.rnd.choice([0, 60]))

    def packet(self):
        """A packet that fits the state, often with one thing wrong."""
        rnd, r = self.rnd, self.qp.responder
        kind  = r.kind or rnd.choice(["SEND", "WRITE", "READ_REQUEST"])
        fields = dict(va=REMOTE_VA + rnd.randrange(4096), rkey=RKEY, dma_length=0, imm=rnd.getrandbits(32), se=rnd.getrandbits(1),
                      ackreq=rnd.getrandbits(1), psn=r.epsn)
        if kind == "READ_REQUEST":
            opcode, size, fields["dma_length"] = "READ_REQUEST", 0, rnd.choice([0, 1, 256, 257, 900])
        else:
            left = (r.residue if kind == "WRITE" else rnd.choice([1, 100, 256, 600])) if r.kind else rnd.choice([0, 4, 256, 300, 700])
            if left <= 256:
                place, size = "LAST" if r.kind else "ONLY", left
            else:
                place, size = "MIDDLE" if r.kind else "FIRST", 256
            opcode = f"{kind}_{place}" + ("_IMM" if place in ("LAST", "ONLY") and rnd.random() < .4 else "")
            fields["dma_length"] = left
        fault = rnd.choice([None]*7 + ["opcode", "length", "pad", "dma", "key", "va", "psn", "psn", "dup", "dup", "long"])
        if fault == "opcode":
            opcode = rnd.choice([n for o, n in NAMES.items() if OPCODES[o].is_request and "INV" not in n and "SWAP" not in n and "ADD" not in n])
        elif fault == "length":
            size = max(0, size + rnd.choice([-1, 1, -4, 4, -256, 256]))
        elif fault == "dma":
            fields["dma_length"] = rnd.choice([0, 1, 5000, REGION, REGION + 1, 1 << 31, (1 << 31) + 1, (1 << 32) - 1])
            if opcode == "READ_REQUEST":
                fields["dma_length"] = rnd.choice([REGION + 1, (1 << 31) + 1, (1 << 32) - 1])
        elif fault == "key":
            fields["rkey"] = rnd.choice([*KEYS, RKEY ^ 1, 0, 0xffffffff])
        elif fault == "va":
            fields["va"] = rnd.choice([REMOTE_VA - 1, REMOTE_VA + REGION - 1, 0, (1 << 64) - 1, rnd.getrandbits(64)])
        elif fault == "psn":
            fields["psn"] = (r.epsn + rnd.choice([1, 2, 100, 0x7fffff])) & 0xffffff
        elif fault == "dup":
            fields["psn"] = (r.epsn - rnd.choice([1, 2, 3, 5, 0x800000])) & 0xffffff
            if opcode == "READ_REQUEST" and r.resources and rnd.random() < .8:
                res = rnd.choice(list(r.resources))
                k   = rnd.randrange(((res.last_psn - res.first_psn) & 0xffffff) + 1)
                fields.update(psn=(res.first_psn + k) & 0xffffff, va=res.va + 256*k, rkey=res.rkey, dma_length=res.length - 256*k)
        elif fault == "long" and kind == "SEND":
            size = 256
        data = rnd.randbytes(size)
        pad  = -size & 3 if fault != "pad" else rnd.randrange(4)
        return SimpleNamespace(opcode=by_name("RC_" + opcode).value, payload=data, pad=pad, **fields), opcode

    def play(self, packet, opcode):
        """The packet to both; compares all that can be seen."""
        b, qp = self.bench, self.qp
        was_live = qp.state != QPS_ERR
        before = dict(self.model.counters)
        if was_live:
            qp.responder.request(packet)
        fields = {n: getattr(packet, n) for n in ("psn", "pad", "va", "rkey", "dma_length", "imm", "se", "ackreq")}
        if "READ" not in opcode and "WRITE" not in opcode:
            fields.update(va=0, rkey=0, dma_length=0)
        b.send(1, opcode, packet.payload, **fields)
        b.run(120)
        for _ in range(100):
            if not (b.payloads or b.packet.pending or b.done.pending) and b.sim.peek("parked") == 0:
                break
            b.run(60)
        b.run(80)
        context = (opcode, fields, len(packet.payload))
        # Answers: a NAK or READ replies as the model's; MSN of a repeated READ is that of its first answer.
        want = [(f["opcode"], f["psn"], f["syndrome"] if "ACK" in NAMES[f["opcode"]] else 0, f["msn"], f.get("payload", b""))
                for f in self.out]
        got  = [(p.opcode, psn, p.syndrome if name == "ACKNOWLEDGE" else 0, p.msn, data) for _, name, psn, p, data in b.take("tx")]
        if opcode == "READ_REQUEST" and psn_diff(packet.psn, qp.responder.epsn) < 0:
            want, got = ([w[:3] + w[4:] for w in items] for items in (want, got))
        assert got == want, context
        self.out.clear()
        rows = [name for name, n in self.model.counters.items() for _ in range(n - before.get(name, 0))]
        if not was_live:
            rows = ["QP_STATE"]
        taken = b.take("refusals")
        assert sorted(taken) == sorted(rows) or [DIFFER.get(t) for t in taken] == rows, context
        # Completions; those of an error are ordered as the flush comes with the command port's answer.
        good = [(c.wr_id, c.byte_len, c.imm or 0, c.opcode, bool(c.solicited)) for c in self.model.completions if c.ok]
        mine = b.take("cqes")
        assert [(c.wr_id, c.byte_len, c.imm, c.opcode, bool(c.solicited)) for c in mine if c.status == 0] == good, context
        failed = [(c.wr_id, c.status) for c in self.model.completions if not c.ok and c.status != WC_WR_FLUSH_ERR]
        if failed:
            assert [(c.wr_id, c.status) for c in mine if c.status not in (0, WC_WR_FLUSH_ERR)] == failed, context
        self.model.completions.clear()
        events = b.take("events")
        assert len(events) == (was_live and qp.state == QPS_ERR), context
        return qp.state != QPS_ERR

    def compare_memory(self):
        assert self.bench.memory.read(REMOTE_ADDR, 0x3000) == bytes(self.remote[:0x3000])
        assert self.bench.memory.read(LOCAL_ADDR, REGION) == bytes(self.local)


@pytest.mark.parametrize("seed", range(8))
def test_same_packets(so, seed):
    pair = Pair(so, seed)
    print("seed", seed)
    after = 0
    for _ in range(150):
        if not pair.live:
            pair.start()
        if pair.qp.state != QPS_ERR and pair.rnd.random() < .4 and len(pair.qp.receives) < 20:
            pair.post()
        if not pair.play(*pair.packet()):
            after += 1
            if after == 3:
                after, pair.live = 0, False
    pair.compare_memory()
