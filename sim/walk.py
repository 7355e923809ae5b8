#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Walks one WRITE and its acknowledge through the compiled engine and tells the clock of every hand-over.

    sim/walk.py [--json] [--markdown] [--png FILE] [--vcd FILE]

One engine, its transmit wire tied to its receive wire, two queue pairs connected to each other: the request goes out and
comes back in, so does its acknowledge. Memory is ideal (a beat a clock, 4 clocks). Clock 0 is the doorbell. --vcd builds a
second model with trace (minutes) and writes every signal.
"""
import argparse
import functools
import json
import pathlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from sim import env  # noqa: E402
if __name__ == "__main__":
    env.enter()

from migen import Cat, Signal  # noqa: E402
from migen.fhdl.structure import _Value  # noqa: E402

from litex.soc.interconnect import stream  # noqa: E402

from roce_soc import verbs  # noqa: E402
from roce_soc.common import roce_wire_description  # noqa: E402
from roce_soc.core import RoCECore  # noqa: E402
from sim.engine import Engine, Engines, connect  # noqa: E402
from sim.harness import Sim, build_cached  # noqa: E402
from sim.harness.emit import Port  # noqa: E402
from sim.wire import FIELDS, Wire  # noqa: E402
from software.control.roce import QP  # noqa: E402

LENGTH  = 64         # bytes.
VA      = 0x1000_0000
LIMIT   = 2000       # clocks until the walk must have ended.
SOURCES = ("sim/engine.py", "sim/walk.py")

# Milestones ---------------------------------------------------------------------------------------
# stage, file under roce_soc/, what happens, stream, which of its hand-overs (1: of the WRITE, 2: of the acknowledge).

REQUEST, RESPOND, ACKNOWLEDGE = "request", "execute", "acknowledge"
MILESTONES = (
    (REQUEST,     "queue/doorbell.py",               "doorbell leaves the window",         "doorbells.sq",               1),
    (REQUEST,     "queue/sq.py",                     "work request asked of memory",       "send.sq.rcmd",               1),
    (REQUEST,     "queue/sq.py",                     "work request read",                  "send.sq.rdata",              1),
    (REQUEST,     "transport/requester/visit.py",    "burst taken, its key is known",      "send.requester.visit.burst", 1),
    (REQUEST,     "transport/requester/launch.py",   "message in the ring, burst goes on", "send.requester.launch.source", 1),
    (REQUEST,     "transport/requester/segment.py",  "packet cut",                         "send.requester.segment.source", 1),
    (REQUEST,     "memory/fetcher.py",               "packet handed to the encoder",       "fetcher.source",             1),
    (REQUEST,     "memory/fetcher.py",               "payload asked of memory",            "fetcher.port.rcmd",          1),
    (REQUEST,     "memory/fetcher.py",               "first payload beat from memory",     "fetcher.port.rdata",         1),
    (REQUEST,     "packet/encoder.py",               "first beat of the frame",            "encoder.source",             1),
    (REQUEST,     "packet/icrc.py",                  "first beat with ICRC",               "inserter.source",            1),
    (REQUEST,     "network/transmit.py",             "first beat on the wire",             "transmit.source",            1),
    (RESPOND,     "network/turnaround.py",           "first beat from the wire",           "turnaround.source",          1),
    (RESPOND,     "network/receive.py",              "first beat with L2-L4 fields",       "receive.source",             1),
    (RESPOND,     "packet/decoder.py",               "first beat with the record",         "decoder.source",             1),
    (RESPOND,     "packet/icrc_checker.py",          "ICRC verdict",                       "icrc",                       1),
    (RESPOND,     "packet/buffer.py",                "request leaves the buffer",          "buffer.request",             1),
    (RESPOND,     "transport/responder/check.py",    "checked, next state written",        "responder.check.verdict",    1),
    (RESPOND,     "memory/mr.py",                    "key asked",                          "responder.execute.request",  1),
    (RESPOND,     "transport/responder/execute.py",  "place record",                       "responder.execute.place",    1),
    (RESPOND,     "memory/placer.py",                "write asked of memory",              "placer.port.wcmd",           1),
    (RESPOND,     "memory/placer.py",                "write acknowledged by memory",       "placer.port.wack",           1),
    (RESPOND,     "transport/responder/execute.py",  "answer decided",                     "responder.answer.reply",     1),
    (ACKNOWLEDGE, "transport/reply/reply.py",              "acknowledge handed over",            "reply.control",              1),
    (ACKNOWLEDGE, "memory/fetcher.py",               "packet handed to the encoder",       "fetcher.source",             2),
    (ACKNOWLEDGE, "packet/encoder.py",               "first beat of the frame",            "encoder.source",             2),
    (ACKNOWLEDGE, "packet/icrc.py",                  "first beat with ICRC",               "inserter.source",            2),
    (ACKNOWLEDGE, "network/transmit.py",             "first beat on the wire",             "transmit.source",            2),
    (ACKNOWLEDGE, "network/receive.py",              "first beat with L2-L4 fields",       "receive.source",             2),
    (ACKNOWLEDGE, "packet/decoder.py",               "first beat with the record",         "decoder.source",             2),
    (ACKNOWLEDGE, "packet/buffer.py",                "response leaves the buffer",         "buffer.response",            1),
    (ACKNOWLEDGE, "transport/completer/decide.py",   "decided",                            "send.completer.decide.work", 1),
    (ACKNOWLEDGE, "transport/completer/completer.py",          "walker told",                        "send.completer.item",        1),
    (ACKNOWLEDGE, "transport/retire/walker.py",              "message retired, completion made",   "send.walker.cqe",            1),
    (ACKNOWLEDGE, "queue/cq.py",                     "completion written",                 "cq.wcmd",                    1),
    (ACKNOWLEDGE, "queue/cq.py",                     "write acknowledged by memory",       "cq.wack",                    1),
)
TAPS = tuple(dict.fromkeys(path for _, _, _, path, _ in MILESTONES))


# Frames are several beats; streams without back-pressure are taken whenever they are valid.
FRAMES      = ("encoder.source", "inserter.source", "transmit.source", "turnaround.source", "receive.source", "decoder.source")
UNTHROTTLED = ("doorbells.sq", "turnaround.source", "receive.source", "decoder.source", "responder.check.verdict", "placer.port.wack", "cq.wack", "icrc")


def pulse(core: RoCECore, path: str) -> _Value:
    """One clock per hand-over: of a frame its first beat, of the ICRC checker its verdict."""
    item = functools.reduce(getattr, path.split("."), core)
    bits = item.valid
    if path not in UNTHROTTLED:
        bits = bits & item.ready
    return bits & item.first if path in FRAMES else bits


class Walk(Engines):
    """An engine whose frames come back to it, with one bit per tapped stream."""
    def __init__(self) -> None:
        super().__init__(1, {})
        core      = self.cores[0]
        self.wire = Wire(core.tx, core.rx)
        self.taps = Signal(len(TAPS))
        self.seen = seen = stream.Endpoint(roce_wire_description())
        self.comb += [
            self.taps.eq(Cat(*[pulse(core, path) for path in TAPS])),
            [getattr(seen, n).eq(getattr(core.tx, n)) for n in FIELDS],
            seen.valid.eq(core.tx.valid & core.tx.ready),
        ]

    def ios(self) -> dict[str, Port]:
        """As those of an engine, without its wire, with the taps."""
        ios = {n: io for n, io in super().ios().items() if n not in ("e0_rx", "e0_tx")}
        return {**ios, "e0_seen": self.seen, "e0_taps": self.taps}


def build_walk(trace: bool | None = None) -> tuple[str, dict[str, int]]:
    """(path of the compiled library, {register: word address})."""
    top, names, at = Walk(), {}, 0
    for csr in top.cores[0].get_csrs():
        names[csr.name] = at
        at += -(-csr.size//32)
    return build_cached(lambda: (top, top.ios()), key="walk", name="walk", trace=trace, sources=SOURCES), names


# Measurement --------------------------------------------------------------------------------------

def walk(vcd: pathlib.Path | None = None) -> list[dict[str, Any]]:
    """Milestones as dicts of stage, file, what, clock (of the engine); RuntimeError names those that were not reached."""
    so, registers = build_walk(trace=True if vcd else None)
    sim    = Sim(so, seed=1)
    engine = Engine(sim, 0, registers, wired=False, gap=0.0, stall=0.0, memory=None)
    sim.reset()
    sim.wait("e0_ready", 1, max_cycles=20000)
    engine.open(None)
    qa, _ = connect(engine, engine)
    mr    = engine.roce.reg_mr(VA, 1 << 16, access=7)
    data  = bytes(range(LENGTH))
    mr.write(data)
    if vcd:
        sim.trace(str(vcd))
    qa.post_send(verbs.WR_RDMA_WRITE, mr, length=LENGTH, remote_va=VA + 0x8000, rkey=mr.rkey, wr_id=1, ring=False)
    sim.step(20)
    seen: dict[str, list[int]] = {path: [] for path in TAPS}
    _ring(sim, qa, seen)
    done = qa.send_cq.poll()
    if vcd:
        sim.trace(None)
    if [c["status"] for c in done] != [0] or mr.read(VA + 0x8000, LENGTH) != data:
        raise RuntimeError(f"the WRITE did not arrive: completions {done}")
    lost = [(path, n) for _, _, _, path, n in MILESTONES if len(seen[path]) < n]
    if lost:
        raise RuntimeError(f"milestones not reached: {lost}")
    zero = seen["doorbells.sq"][0]
    return [dict(stage=s, file=f, what=w, clock=seen[p][n - 1] - zero) for s, f, w, p, n in MILESTONES]


def _ring(sim: Sim, qp: QP, seen: dict[str, list[int]]) -> None:
    """Rings the doorbell and notes the clock of every pulse until the completion's write is acknowledged."""
    step, clock = sim.step, 0

    def watched(cycles=1, domain=None):
        nonlocal clock
        for _ in range(cycles):
            step(1, domain)
            clock += 1
            taps = sim.peek("e0_taps")
            for i, path in enumerate(TAPS):
                if taps >> i & 1:
                    seen[path].append(clock)
    sim.step = watched
    try:
        qp.ring_send()
        while clock < LIMIT and not seen["cq.wack"]:
            sim.step()
    finally:
        del sim.step


# Pages --------------------------------------------------------------------------------------------

def markdown(rows: Iterable[Mapping[str, Any]]) -> str:
    """The table of doc/architecture.md."""
    lines = ["| clock | + | stage | file | what |", "|---|---|---|---|---|"]
    last  = 0
    for r in rows:
        lines.append(f"| {r['clock']} | {r['clock'] - last} | {r['stage']} | {r['file']} | {r['what']} |")
        last = r["clock"]
    return "\n".join(lines) + "\n"


def chart(rows: Sequence[Mapping[str, Any]], path: pathlib.Path) -> None:
    """A bar from each hand-over to the next, as a PNG."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    colours = {REQUEST: "#2ca02c", RESPOND: "#1f77b4", ACKNOWLEDGE: "#7f7f7f"}
    figure, axes = pyplot.subplots(figsize=(11, 9))
    last = 0
    for y, r in enumerate(rows):
        axes.barh(y, max(r["clock"] - last, 0.5), left=last, color=colours[r["stage"]])
        axes.text(r["clock"] + 1, y, f"{r['clock']}  {r['what']}", va="center", fontsize=7)
        last = r["clock"]
    axes.set_yticks(range(len(rows)), [r["file"] for r in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(0, last*1.3)
    axes.set_xlabel("clocks of 4 ns after the doorbell")
    axes.set_title(f"One WRITE of {LENGTH} bytes and its acknowledge")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> int:
    parser = argparse.ArgumentParser(description="Clocks of one WRITE and its acknowledge through the engine.")
    parser.add_argument("--json",     action="store_true", help="print milestones as JSON")
    parser.add_argument("--markdown", action="store_true", help="print the table of doc/architecture.md")
    parser.add_argument("--png",      type=pathlib.Path,   help="draw a chart into this file")
    parser.add_argument("--vcd",      type=pathlib.Path,   help="write all signals into this file")
    args = parser.parse_args()
    rows = walk(vcd=args.vcd)
    if args.png:
        chart(rows, args.png)
    if args.json:
        print(json.dumps(rows, indent=1))
    elif args.markdown:
        print(markdown(rows), end="")
    else:
        for r in rows:
            print(f"{r['clock']:5d}  {r['stage']:<12} {r['file']:<32} {r['what']}")
    return env.OK


if __name__ == "__main__":
    sys.exit(main())
