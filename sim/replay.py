#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The compiled engine takes one side of a capture.

    sim/replay.py CAPTURE.pcap [--setup SETUP.json] --play {a,b} [--profile standard|rxe] [--json]

The other side's frames are fed when every frame that our side sent before them has come; retries come
from the engine's own timers on a scaled tick. Compared: headers, PSNs, syndromes, MSNs, payload,
completions with their QPN and order, asynchronous events, memory in and outside of the regions, RNR waits and ACK time-outs in ticks; after
the last step it runs on, and nothing more may come. Differences that the standard allows are data (test/reference/rulings.py).
Exit status: 0 agrees, 1 differs, 2 bad argument or incomplete capture.
"""
import argparse
import json
import pathlib
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from sim import env  # noqa: E402
if __name__ == "__main__":
    env.enter()

from roce_soc import abi, verbs  # noqa: E402
from roce_soc.opcodes import PMTU_CODES  # noqa: E402
from sim.engine import Bench, EventRing  # noqa: E402
from software.control.roce import MR, QP  # noqa: E402
from test.model.capture import Capture, CaptureError, load  # noqa: E402
from test.model.replay import play  # noqa: E402

STATES   = {number: name for name, number in vars(abi).items() if name in
    ("QP_RESET", "QP_INIT", "QP_RTR", "QP_RTS", "QP_SQD", "QP_SQE", "QP_ERR")}
RING_LOG2   = 8
QUIET       = 600        # clocks without a frame after which nothing more is to come by itself.
TICK_CYCLES = 1          # one clock a tick: 67 ms are 262144 clocks.
TICK_NS     = 256


class EngineUnderReplay:
    """The compiled engine behind the interface that test.model.replay plays captures with.

    linger : ACK time-outs to run on after the last step.
    """
    def __init__(self, seed: int = 1, linger: float = 1.25, **options: Any) -> None:
        self.bench  = Bench(seed=seed, tick_cycles=TICK_CYCLES, **options)
        self.engine = self.bench.engines[0]
        self.qps    : dict[int, QP] = {}                             # by QPN.
        self.regions: dict[str, MR] = {}                             # by name in the capture.
        self.sent   : list[tuple[int, int, dict[str, int]]] = []     # (QPN, ns, completion).
        self.extents: list[tuple[int, int]] = []                     # (address, bytes) that may be written: regions, rings.
        self.posted  = False
        self.cqs    : dict[int, QP]  = {}       # CQ number: its QP, whose completion queue it alone is.
        self.armed  : dict[int, int] = {}       # QPN: completions that were taken when its queue was asked for an event.
        self.taken  : Counter[int]   = Counter()
        self.events_seen: list[tuple[str, int]] = []
        self.linger  = linger

    def setup(self, capture: Capture, side: str) -> None:
        roce = self.engine.roce
        # Rights that this engine does not have are not asked for: what would need them is not played.
        # Regions of one capture may have had the same address one after the other: each gets memory of its own.
        for number, region in enumerate(capture.regions(side)):
            self.regions[region["name"]] = roce.reg_mr(region["va"], region["length"], access=region["access"] & verbs.ACCESS_MR,
                pd=region["pd"],
                addr=region["va"] | number << 44, index=region["key"] >> 8, variant=region["key"] & 0xff)
            self.extents.append((region["va"] | number << 44, region["length"]))
        for qp in capture.queue_pairs(side):
            if qp["qp_type"] != "RC":
                raise CaptureError(f"{capture.name}: QP {qp['name']} is {qp['qp_type']}; this engine does RC")
            cq = roce.create_cq(RING_LOG2)
            self.extents.append((cq.addr, abi.CQE_BYTES << cq.log2))
            v6 = len(qp["src_ip"]) == 16
            wide = {name: int.from_bytes(qp[name], "big") for name in ("src_mac", "dst_mac", "src_ip", "dst_ip")}
            made = roce.create_qp(cq, cq, sq_log2=RING_LOG2, rq_log2=RING_LOG2, index=qp["qpn"] % roce.n_qps,
                qpn=qp["qpn"], ipv6=int(v6),
                pmtu=PMTU_CODES[qp["pmtu"]], sq_sig_all=int(qp["sq_sig_all"]), tclass=qp["tos"], hop_limit=qp["ttl"],
                flow_label=qp["flow_label"],
                udp_sport=qp["sport"] or 0xc000, vlan_en=int(qp["vlan"] is not None), vlan_tci=qp["vlan"] or 0,
                **wide,
                **{name: qp[name] for name in ("dest_qpn", "sq_psn", "rq_psn", "timeout", "retry_cnt", "rnr_retry",
                "min_rnr_timer", "max_rd_atomic",
                    "max_dest_rd_atomic", "pkey", "pd")}, access=qp["access"] & verbs.ACCESS_QP)
            for state in (abi.QP_INIT, abi.QP_RTR, abi.QP_RTS):
                made.modify(state)
            self.qps[qp["qpn"]] = self.cqs[cq.index] = made
        self.ring = EventRing(self.engine, roce.allocate(abi.EQE_BYTES << RING_LOG2, "event queue"), RING_LOG2)
        self.extents.append((self.ring.addr, abi.EQE_BYTES << RING_LOG2))
        roce.command(abi.CMD_WRITE_EQ, abi.pack_args(abi.EQ_ARGS, index=0, valid=1, log2=RING_LOG2, addr=self.ring.addr))
        for qpn in self.qps:
            self._arm(qpn)
        longest      = 16*max((1 << qp["timeout"] for qp in capture.queue_pairs(side) if qp["timeout"]), default=0)*TICK_CYCLES
        self.timeout = 2*longest + 200_000
        self.beyond  = int(self.linger*longest)

    def fill(self, mr: str, va: int, data: bytes) -> None:
        self.regions[mr].write(data, va)

    def read(self, mr: str, va: int, length: int) -> bytes:
        return self.regions[mr].read(va, length)

    def _digest(self):
        """What was fed is worked off before the program does something."""
        self.bench.run(lambda: not self.engine.rx.pending)
        self.bench.step(QUIET + self.bench.extra)

    def post_recv(self, qpn: int, event: Mapping[str, Any]) -> None:
        self._digest()
        self.qps[qpn].post_recv(va=event["va"], length=event["length"], wr_id=event["wr_id"], lkey=event["lkey"])

    def post_send(self, qpn: int, fields: Mapping[str, Any], event: Mapping[str, Any]) -> None:
        if fields["opcode"] not in verbs.WC_OF_WR or fields["opcode"] == verbs.WR_BIND_MW:
            raise CaptureError(f"post_send opcode {event['opcode']} is not in this engine")
        self._digest()
        self.posted = True
        inline = None
        if fields["flags"] & verbs.SEND_INLINE:
            region = next(mr for mr in self.regions.values() if mr.key == fields["lkey"])
            inline = region.read(fields["va"], fields["length"])
        self.qps[qpn].post_send(fields["opcode"], va=fields["va"], length=fields["length"], wr_id=fields["wr_id"],
            flags=fields["flags"], inline=inline,
            lkey=fields["lkey"], remote_va=fields["remote_va"], rkey=fields["rkey"],
            imm=fields.get("imm", 0) or fields.get("inv_rkey", 0))

    def feed(self, frame: bytes) -> None:
        self.engine.send(frame)

    def frames(self) -> list[tuple[int, bytes]]:
        """[(ns, frame)] that the engine sent since the last call, once it is quiet."""
        quiet = 0
        while quiet < QUIET + self.bench.extra:
            before = len(self.engine.tx)
            self.bench.step(100)
            quiet = 0 if len(self.engine.tx) != before or self.engine.rx.pending else quiet + 100
        return [(f.first*TICK_NS//TICK_CYCLES, f.data) for f in self.engine.tx.recv_all()]

    def fed(self) -> list[int]:
        """Times in ns at which the frames fed since the last call had gone in."""
        return [last*TICK_NS//TICK_CYCLES for _, _, last, _ in self.engine.rx.times()]

    def rest(self) -> bool:
        """Long enough for an ACK time-out where something was sent."""
        end = self.bench.sim.cycles() + 20_000 + self.beyond*self.posted
        while self.bench.sim.cycles() < end:
            self.bench.step(1000)
            if len(self.engine.tx) or self._collect():
                return True
        return False

    def strays(self) -> list[str]:
        def within(e):
            return any(at <= e["addr"] and e["addr"] + e["length"] <= at + size for at, size in self.extents)
        return [f"wrote {e['length']} bytes to {e['addr']:#x}, outside of regions and queues"
            for e in self.engine.memory.log() if e["kind"] == "write" and not within(e)]

    def wait(self) -> bool:
        left = self.timeout
        while left > 0:
            self.bench.step(500)
            left -= 500
            if len(self.engine.tx) or self._collect():
                return True
        return False

    def _arm(self, qpn: int) -> None:
        self.armed[qpn] = self.taken[qpn]
        self.qps[qpn].send_cq.arm()

    def _collect(self) -> bool:
        """Takes events, then completions: what an event tells of is there when it is."""
        self._look()
        for qp in self.qps.values():
            done = qp.send_cq.poll()
            self.taken[qp.qpn] += len(done)
            now  = self.bench.sim.cycles()*TICK_NS//TICK_CYCLES
            self.sent += [(qp.qpn, now, entry) for entry in done]
            if done and qp.qpn not in self.armed:
                self._arm(qp.qpn)
        return bool(self.sent)

    def _look(self):
        """Events of the ring, each beside the completions that are there."""
        for entry in self.ring.poll():
            name = next(n[6:] for n, value in vars(abi).items() if n.startswith("EVENT_") and value == entry["type"])
            if name == "COMPLETION":
                qp = self.cqs[entry["queue"]]
                cq = qp.send_cq
                at = cq.addr + abi.CQE_BYTES*(cq.consumer % (1 << cq.log2))
                there = (self.engine.read_memory(at + abi.CQE_BYTES - 1, 1)[0] & 1) != (cq.consumer >> cq.log2) % 2
                armed = self.armed.pop(qp.qpn, None)      # none: an event that nobody asked for.
                more  = armed is not None and (there or self.taken[qp.qpn] > armed)
                self.events_seen.append(("COMPLETION" if more else "BARE_COMPLETION", qp.qpn))
                if not there:
                    self._arm(qp.qpn)
            else:
                qpn = next((qp.qpn for qp in self.qps.values() if qp.index == entry["queue"]), entry["queue"])
                self.events_seen.append((name, qpn))

    def events(self) -> list[tuple[str, int]]:
        self._look()
        seen, self.events_seen = self.events_seen, []
        return seen

    def asked(self) -> list[int]:
        self.bench.step(QUIET)
        self._look()
        return [qpn for qpn, taken in self.armed.items() if self.taken[qpn] > taken]

    def completions(self) -> list[dict[str, Any]]:
        self._collect()
        done, self.sent = self.sent, []
        return [{
            "qpn": e["qpn"], "queue": qpn, "ns": ns, "wr_id": e["wr_id"], "status": verbs.WC_STATUS_NAMES[e["status"]],
            "opcode": verbs.WC_OPCODE_NAMES[e["opcode"]],
            "byte_len": e["byte_len"], "imm": f"{e['imm']:08x}" if e["flags"] & verbs.WC_FLAG_WITH_IMM else None,
            "inv_rkey": e["imm"] if e["flags"] & verbs.WC_FLAG_WITH_INV else None, "src_qpn": e["src_qp"] or None,
            "vendor_err": e["vendor_err"],
            "flags": [name for bit, name in ((1, "GRH"), (2, "WITH_IMM"),
            (8, "WITH_INV")) if e["flags"] & bit]} for qpn, ns, e in done]

    def state(self, qpn: int) -> str:
        return STATES[self.qps[qpn].query()["state"]][3:]


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("capture", help="NAME.pcap; NAME.b.pcap beside it is the wire at side b")
    parser.add_argument("--setup", help="set-up of both sides, schema roce-capture-1 (default: NAME.json)")
    parser.add_argument("--play", choices=("a", "b"), required=True, help="side the engine takes")
    parser.add_argument("--profile", choices=("standard", "rxe"), default="standard", help="rulings that hold")
    parser.add_argument("--seed", type=int, default=1, help="seed of RAM contents and stalls")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    args = parser.parse_args(argv)
    try:
        capture = load(args.capture, args.setup)
        report  = play(capture, args.play, EngineUnderReplay(seed=args.seed), args.profile)
    except CaptureError as error:
        print(f"replay: {error}", file=sys.stderr)
        return env.BAD_ARGUMENT
    print(json.dumps(report.as_dict(), indent=1) if args.json else report.text())
    return env.OK if report.ok else env.FAILED


if __name__ == "__main__":
    sys.exit(main())
