#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Counts cycles of the compiled engine against its budgets.

    sim/bench.py [--only B1 B3 ...] [--json] [--record]
    sim/bench.py --markdown | --readme

B1 cycles per frame, receive and transmit side, 64 QPs, mixed opcodes      B2 cycles per message, one QP, 64 B
B3 streaming WRITE, SEND, READ, one QP, 100 Gb/s wire                      B4 doorbell to first beat, 64 B inline
B5 request in to ACK out      B6 READ request in to response out           B7 NAK in to retransmission out

Cycles are engine clocks at its stream ports, memory ideal (a beat a clock, 4 clocks; B6 and B7 leave its latency out).
Rates are averages over a thousand messages with every byte checked. Fails (exit 1) below a must of bench_rows.MUST or
below a recorded floor. --markdown prints the tables of README.md, --readme writes them: from the floors, without a run.
"""
import argparse
import json
import pathlib
import random
import sys
from collections.abc import Callable, Iterable, Sequence

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from sim import env  # noqa: E402
if __name__ == "__main__":
    env.enter()

from roce_soc import opcodes, verbs  # noqa: E402
from roce_soc.errors import ERRORS  # noqa: E402
from sim.bench_latency import ack, b4_to_b7  # noqa: E402
from sim.bench_rows import (  # noqa: E402
    CLOCKS_MHZ, FLOORS, MUST, OPERATIONS, PMTUS, SIZES, Row, Say, beats, judge, markdown, rates, row)
from sim.engine import IPS, MACS, Bench, connect  # noqa: E402
from sim.harness.memory import IDEAL  # noqa: E402
from sim.wire import WIRE_BYTES, WIRE_OVERHEAD  # noqa: E402
from software.control.roce import MR, QP  # noqa: E402
from test.model.packet import Packet, parse  # noqa: E402

B1_QPS     = 64
BUFFERS    = 0x1000_0000
REMOTE     = 0x2000_0000
BUFFER_FULL = ERRORS["BUFFER_FULL"].index


# B1 -----------------------------------------------------------------------------------------------

class B1:
    """64 QPs that receive, 64 that send, on one engine; the bench is the peer."""
    def __init__(self, seed: int) -> None:
        self.bench  = Bench(seed=seed, stall=0.0, memory=IDEAL)
        self.engine = engine = self.bench.engines[0]
        self.random = random.Random(seed)
        roce        = engine.roce
        self.mr     = roce.reg_mr(BUFFERS, 1 << 24, access=7)
        self.qps: list[QP]      = []
        self.psn: dict[QP, int] = {}        # the next one of each, sent by the peer or by the engine.
        for i in range(2*B1_QPS):
            cq = roce.create_cq(8)
            qp = roce.create_qp(cq, cq, sq_log2=5, rq_log2=5, src_mac=MACS[0], dst_mac=MACS[1], src_ip=IPS[0], dst_ip=IPS[1], pmtu=5,
                dest_qpn=0x1000 + i, sq_psn=0, rq_psn=0, timeout=0)
            for state in (1, 2, 3):
                qp.modify(state)
            self.psn[qp] = 0
            self.qps.append(qp)
        self.engine.write_memory(BUFFERS, self.random.randbytes(8192)*2048)

    def request(self, qp: QP, size: int, i: int) -> tuple[Packet, int]:
        """(packet, address of its payload) of the next request for a QP of the engine: SEND or WRITE in turn."""
        send, va = i % 2, BUFFERS + (1 << 22) + 8192*i + self.random.randrange(64)
        if send:
            qp.post_recv(self.mr, va=va, length=max(size, 1), wr_id=i)
        packet = Packet(opcode=opcodes.RC_SEND_ONLY if send else opcodes.RC_WRITE_ONLY, dst_mac=MACS[0].to_bytes(6, "big"), src_mac=MACS[1].to_bytes(6, "big"),
            src_ip=IPS[1].to_bytes(4, "big"), dst_ip=IPS[0].to_bytes(4, "big"), dest_qpn=qp.qpn, psn=self.psn[qp], ackreq=1,
            rkey=self.mr.rkey, dma_length=size, va=va, payload=self.random.randbytes(size))
        self.psn[qp] = (self.psn[qp] + 1) & opcodes.PSN_MASK
        return packet, va

    def receive(self, size: int, spacing: Callable[[int], int], count: int) -> tuple[bool, float, float]:
        """Feeds `count` requests to 64 QPs at `spacing`(beats) clocks each: (executed whole and acknowledged in time, clocks a frame, beats)."""
        engine, qps = self.engine, self.qps[:B1_QPS]
        requests = [self.request(qps[i % B1_QPS], size, i) for i in range(count)]
        self.bench.step(2000)
        engine.frames()
        refused, clocks, total = engine.counter(BUFFER_FULL), 0, 0
        for packet, _ in requests:
            frame = packet.build(pad_frame=True)
            n     = beats(len(frame))
            engine.send(frame, idle=spacing(n) - n)
            clocks, total = clocks + spacing(n), total + n
        # What is not worked off soon after the last frame was a growing queue.
        self.bench.step(clocks + 500)
        ok   = engine.rx.pending == 0 and engine.counter(BUFFER_FULL) == refused
        acks = [parse(f) for f in engine.frames()]
        ok  &= all(a.syndrome == opcodes.ACK_UNLIMITED for a in acks)
        ok  &= {a.dest_qpn: a.psn for a in acks} == {qp.attributes["dest_qpn"]: (self.psn[qp] - 1) & opcodes.PSN_MASK for qp in qps}
        self.bench.step(5000)
        for packet, va in requests:
            assert not ok or engine.read_memory(va, size) == packet.payload
        for qp in qps:
            qp.recv_cq.poll()
        return ok, clocks/count, total/count

    def post(self, size: int, count: int) -> None:
        """WRITEs on the QPs that send, doorbells still to ring."""
        for i in range(count):
            self.qps[B1_QPS + i % B1_QPS].post_send(verbs.WR_RDMA_WRITE, self.mr, va=BUFFERS + self.random.randrange(64), length=size, remote_va=REMOTE,
                rkey=1, wr_id=i, ring=False)

    def retire(self, count: int) -> None:
        """The peer acknowledges what the sending QPs sent; all of it completes."""
        for qp in self.qps[B1_QPS:]:
            self.psn[qp] += count//B1_QPS
            self.engine.send(ack(qp, self.psn[qp] - 1))
        self.bench.step(3000)
        done = [e for qp in self.qps[B1_QPS:] for e in qp.send_cq.poll()]
        assert len(done) == count and all(e["status"] == 0 for e in done)

    def transmit(self, size: int, count: int) -> tuple[float, float]:
        """(clocks, beats) a frame of `count` WRITEs by 64 QPs, over the later two thirds."""
        self.engine.frames()
        self.post(size, count)
        for qp in self.qps[B1_QPS:]:
            qp.ring_send()
        self.bench.run(lambda: len(self.engine.tx) >= count, max_cycles=count*200)
        frames = self.engine.tx.recv_all()[count//3:]
        self.retire(count)
        return (frames[-1].last - frames[0].last)/(len(frames) - 1), sum(beats(len(f.data)) for f in frames[1:])/(len(frames) - 1)

    def both(self, size: int, count: int) -> tuple[bool, float, float]:
        """(good, clocks, beats) a transmitted frame, ACKs among them, while frames are received a clock a beat."""
        engine = self.engine
        self.post(size, count)
        requests = [self.request(self.qps[i % B1_QPS], size, i) for i in range(count)]
        self.bench.step(2000)
        engine.frames()
        refused = engine.counter(BUFFER_FULL)
        for packet, _ in requests:
            frame = packet.build(pad_frame=True)
            engine.send(frame, idle=max(2, beats(len(frame))) - beats(len(frame)))
        for qp in self.qps[B1_QPS:]:
            qp.ring_send()
        self.bench.run(lambda: not engine.rx.pending and len(engine.tx) >= count, max_cycles=count*400)
        self.bench.step(3000)
        frames = engine.tx.recv_all()
        good   = engine.counter(BUFFER_FULL) == refused
        for packet, va in requests:
            good &= engine.read_memory(va, size) == packet.payload
        busy = frames[len(frames)//4:len(frames)//2]
        self.retire(count)
        for qp in self.qps[:B1_QPS]:
            qp.recv_cq.poll()
        return good, (busy[-1].last - busy[0].last)/(len(busy) - 1), sum(beats(len(f.data)) for f in busy[1:])/(len(busy) - 1)


def b1(seed: int, say: Say) -> list[Row]:
    """Cycles per frame of each side alone, by size."""
    out, side = [], B1(seed)
    for size in SIZES:
        say(f"B1 {size} B")
        for extra in range(12):
            # Two clocks a frame at best: max(2, beats).
            ok, clocks, n = side.receive(size, lambda b: max(2, b + extra), 1024)
            if ok:
                break
        out.append(row("B1", f"receive, {size} B", clocks, "clocks/frame", max(2, n + MUST["B1"]), size=size, beats=n, **rates(clocks, size)))
        clocks, n = side.transmit(size, 1024)
        out.append(row("B1", f"transmit, {size} B", clocks, "clocks/frame", max(2, n + MUST["B1"]), size=size, beats=n, **rates(clocks, size)))
        good, clocks, n = side.both(size, 1024)
        out.append(row("B1", f"transmit while receiving, {size} B and ACKs", clocks if good else 1e9, "clocks/frame", max(2, n) + MUST["B1"], beats=n))
    return out


# B2, B3: two engines ------------------------------------------------------------------------------

def stream(operation: str, pmtu: int, size: int, count: int, both: bool, seed: int) -> tuple[int, float, int, int]:
    """`count` messages of `size` bytes from a (and from b) on one QP each; (clocks, share of the wire, payload bytes)."""
    bench = Bench(engines=2, seed=seed, memory=IDEAL)
    a, b  = bench.engines
    code  = opcodes.PMTU_CODES[pmtu]
    log2  = max(4, (count - 1).bit_length() + 1)
    qps   = connect(a, b, sq_log2=log2, rq_log2=log2, cq_log2=log2 + 1, pmtu=code, timeout=0, max_rd_atomic=16, max_dest_rd_atomic=16)
    ends  = list(zip((a, b), qps))
    data, rng, total = [], random.Random(seed), size*count
    regions: dict[QP, MR] = {}
    for engine, qp in ends:
        blob = rng.randbytes(total)
        regions[qp] = engine.roce.reg_mr(BUFFERS, 2*total + 4096, access=7)
        engine.write_memory(BUFFERS + 5, blob)
        data.append(blob)
    for side, (engine, qp) in enumerate(ends):
        if operation == "SEND" and (both or side == 1):
            for i in range(count):
                qp.post_recv(regions[qp], va=BUFFERS + 5 + total + i*size, length=size, wr_id=i)
    active = ends if both else ends[:1]
    wr = {"WRITE": verbs.WR_RDMA_WRITE, "SEND": verbs.WR_SEND, "READ": verbs.WR_RDMA_READ}[operation]
    for side, (engine, qp) in enumerate(active):
        peer  = ends[1 - side][1]
        local = BUFFERS + 5 + (total if operation == "READ" else 0)
        there = BUFFERS + 5 + (0 if operation == "READ" else total)
        for i in range(count):
            qp.post_send(wr, regions[qp], va=local + i*size, length=size, remote_va=there + i*size, rkey=regions[peer].rkey,
                wr_id=i, ring=False, flags=verbs.SEND_SIGNALED if i == count - 1 else 0)
    for engine, qp in active:
        qp.ring_send()
    done, entries = [False]*len(active), []

    def finished():
        for n, (engine, qp) in enumerate(active):
            for entry in qp.send_cq.poll():
                entries.append(entry)
                done[n] |= entry["wr_id"] == count - 1
        return all(done)

    bench.run(finished, max_cycles=count*(size//8 + 400), every=500)
    assert all(e["status"] == 0 for e in entries), entries
    for side, (engine, qp) in enumerate(active):
        source, sink = (1 - side, side) if operation == "READ" else (side, 1 - side)
        assert ends[sink][0].read_memory(BUFFERS + 5 + total, total) == data[source], f"{operation} {pmtu}: bytes differ"
    carrier = (b if operation == "READ" else a) if not both else a
    frames  = carrier.tx.recv_all()
    skip    = len(frames)//5
    used    = frames[skip:-skip] if skip else frames
    clocks  = used[-1].last - used[0].last
    wire    = sum(len(f.data) + WIRE_OVERHEAD for f in used[1:])
    share   = wire/(WIRE_BYTES*clocks)
    payload = sum(len(p.payload) for p in map(parse, (f.data for f in used[1:])))
    return clocks, share, payload, len(used) - 1


def b2(seed: int, say: Say) -> list[Row]:
    out = []
    for operation in OPERATIONS[:2]:
        say(f"B2 {operation}")
        clocks, _, _, frames = stream(operation, 1024, 64, 1000, False, seed)
        out.append(row("B2", f"{operation} 64 B, one QP", clocks/frames, "clocks/message", MUST["B2"],
            **rates(clocks/frames, 64)))
    return out


def b3(seed: int, say: Say) -> list[Row]:
    out = []
    for both in (False, True):
        for pmtu in PMTUS:
            for operation in OPERATIONS:
                way = "both ways" if both else "one way"
                say(f"B3 {operation} {pmtu} {way}")
                clocks, share, payload, _ = stream(operation, pmtu, 4096, 1000, both, seed)
                out.append(row("B3", f"{operation}, PMTU {pmtu}, {way}", share, "of the wire", MUST["B3"], "higher",
                    goodput_gbps=round(payload*8/clocks*CLOCKS_MHZ[0]/1000, 2)))
    return out


# Command --------------------------------------------------------------------------------------------

PARTS = {"B1": b1, "B2": b2, "B3": b3, "B4": b4_to_b7}


def show(rows: Iterable[Row]) -> None:
    """The table for people."""
    from rich.console import Console
    from rich.table import Table
    table = Table(title="cycles of the compiled engine")
    for column in ("budget", "what", "value", "unit", "must", "floor", "at 250 MHz", "at 322 MHz", ""):
        table.add_column(column)
    for r in rows:
        rate = [f"{r[f'gbps_{m}']} Gb/s {r[f'mmsg_{m}']} M/s" if f"gbps_{m}" in r else "" for m in ("250", "322")]
        if "goodput_gbps" in r:
            rate[0] = f"{r['goodput_gbps']} Gb/s"
        table.add_row(r["name"], r["what"], str(r["value"]), r["unit"], str(r["limit"] or ""), str(r.get("floor", "")), *rate, "ok" if r["ok"] else "BELOW")
    Console(width=150).print(table)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sorted(PARTS), default=sorted(PARTS), help="parts to run (B4 stands for B4 to B7)")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--record", action="store_true", help="write the floors that later runs must reach")
    parser.add_argument("--markdown", action="store_true", help="print README.md's tables from the floors; no run")
    parser.add_argument("--readme", action="store_true", help="write them into README.md; no run")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    if args.markdown or args.readme:
        from doc import generate
        if args.readme:
            generate.fill(generate.ROOT / "README.md")
        if args.markdown:
            print(markdown(json.loads(FLOORS.read_text(encoding="utf-8"))), end="")
        return env.OK
    say  = (lambda text: print(f"bench: {text}", file=sys.stderr, flush=True))
    rows = [r for part in args.only for r in PARTS[part](args.seed, say)]
    floors = json.loads(FLOORS.read_text()) if FLOORS.exists() else {}
    judge(rows, floors)
    if args.record:
        for r in rows:
            floors[f"{r['name']} {r['what']}"] = r["value"]
        FLOORS.write_text(json.dumps(floors, indent=1, sort_keys=True) + "\n")
    print(json.dumps(rows, indent=1)) if args.json else show(rows)
    return env.OK if all(r["ok"] for r in rows) else env.FAILED


if __name__ == "__main__":
    sys.exit(main())
