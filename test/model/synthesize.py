# SPDX-License-Identifier: BSD-2-Clause
"""Makes captures of random work over a wire with faults: two reference models talk, everything is recorded.

    capture = synthesize(seed, faults=("loss",))      a Capture, ready for play()
    save(capture, "dir/name")                         name.pcap, name.b.pcap, name.json
    python -m test.model.synthesize --seed 1 --faults loss,duplicate --out DIR

An engine that plays either side of such a capture is compared with the model packet by packet. Faults:
loss, duplicate, reorder, corrupt (ICRC), ecn (CE and FECN marks), rnr (receives come late), refuse (the
last request is one that its responder must refuse).
"""
import argparse
import hashlib
import json
import os
import random

from roce_soc import opcodes as op
from roce_soc import verbs as v
from test.model.capture import Capture, OTHER, SCHEMA, frames_of
from test.model.endpoint import Endpoint
from test.model.packet import parse
from test.model.pcap import write_pcap
from test.model.qp import STANDARD

FAULTS = ("loss", "duplicate", "reorder", "corrupt", "ecn", "rnr", "refuse")
WORK   = ("SEND", "SEND_WITH_IMM", "RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "RDMA_READ")
ATOMICS = ("ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD")
RECEIVES = ("SEND", "SEND_WITH_IMM", "RDMA_WRITE_WITH_IMM")
# Areas of a region (offset, bytes): what one half of a QP writes the other never reads, so that the
# outcome does not depend on who is faster.
AREAS = {"source": (0, 1 << 15), "target": (1 << 15, 1 << 15), "receive": (1 << 16, 1 << 15),
         "result": (3 << 15, 1 << 15), "atomic": (1 << 17, 1 << 10)}
SIZE  = (1 << 17) + (1 << 10)
PACKET_NS = 1000
_WR = {name: number for number, name in v.WR_NAMES.items()}
_ACCESS = ["LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC"]
_BITS   = v.ACCESS_LOCAL_WRITE | v.ACCESS_REMOTE_WRITE | v.ACCESS_REMOTE_READ | v.ACCESS_REMOTE_ATOMIC


class Recorder:
    """Two endpoints, a wire with faults, and the record of both."""
    def __init__(self, rng, name, faults, percent, work, profile):
        self.rng, self.name, self.faults, self.percent, self.work = rng, name, faults, percent, work
        self.now, self.events = 0, []
        self.records = {"a": [], "b": []}
        self.late    = {"a": [], "b": []}
        self.pmtu    = rng.choice((256, 512, 1024, 2048, 4096))
        self.ipv6, self.vlan = rng.random() < .3, rng.choice((None, None, (3, 100)))
        self.numbers = {"a": (0x11, 0x1000), "b": (0x22, 0x2000)}           # QPN, key.
        self.va      = {"a": 0x1000_0000 + rng.randrange(64), "b": 0x2000_0000 + rng.randrange(64)}
        self.psn     = {s: rng.choice((0, 0xfffff8, 0x7ffffc, rng.getrandbits(24))) for s in "ab"}
        self.next_psn = dict(self.psn)
        self.wr_id   = {"a": 0, "b": 0}
        self.seed    = {"a": 0, "b": 128}
        self.endpoints = {}
        addresses = {s: (f"fd00::{i}" if self.ipv6 else f"10.0.0.{i}") for i, s in ((1, "a"), (2, "b"))}
        for side in "ab":
            me = self.endpoints[side] = Endpoint(f"52:54:00:00:00:0{'12'[side == 'b']}", addresses[side], profile=profile)
            data = bytearray(((i + self.seed[side]) & 255) for i in range(SIZE))
            me.region = me.reg_mr(self.va[side], SIZE, _BITS, key=self.numbers[side][1], pd=1, data=data)
        self.attributes = {"timeout": 14, "retry_cnt": 7, "rnr_retry": 7, "min_rnr_timer": rng.randrange(1, 14),
                           "max_rd_atomic": rng.choice((1, 2, 16)), "max_dest_rd_atomic": 16}
        self.addresses  = addresses
        for side in "ab":
            peer = self.endpoints[OTHER[side]]
            self.endpoints[side].create_qp(
                self.numbers[side][0], dest_qpn=self.numbers[OTHER[side]][0], dst_mac=peer.mac, dst_ip=addresses[OTHER[side]],
                sq_psn=self.psn[side], rq_psn=self.psn[OTHER[side]], pmtu=self.pmtu, access=_BITS, pd=1, sq_sig_all=True,
                vlan=self.vlan and self.vlan[0] << 13 | self.vlan[1], **self.attributes)
        for side in "ab":
            self.event("reg_mr", side, mr="q.mr", pd="q.pd")
            self.event("fill", side, mr="q.mr", va=self.va[side], length=SIZE, rule="count", seed=self.seed[side])

    def event(self, ev, side, **fields):
        """Append an event."""
        self.events.append({"n": len(self.events), "ev": ev, "side": side, **fields})

    # Work -----------------------------------------------------------------------------------------

    def length(self):
        """A length near an edge, or any."""
        p = self.pmtu
        return self.rng.choice((0, 1, 2, 3, 4, 5, 63, 64, 65, p - 1, p, p + 1, 2*p, 2*p + 3, self.rng.randrange(1, 4*p)))

    def place(self, side, area, length):
        """Address of a random range in an area of a side's region."""
        start, size = AREAS[area]
        return self.va[side] + start + self.rng.randrange(size - length + 1)

    def post_recv(self, side, length):
        """Post one receive of at least `length` bytes."""
        length = max(1, length) if self.rng.random() < .5 else length + self.rng.randrange(1, 64)
        qpn, key = self.numbers[side]
        self.wr_id[side] += 1
        fields = {"wr_id": 4096 + self.wr_id[side], "va": self.place(side, "receive", length), "length": length, "lkey": key}
        self.endpoints[side].post_recv(qpn, **fields)
        self.event("post_recv", side, qp="q", **fields)

    def request(self, side, opcode):
        """Fields of a random request."""
        length = 8 if opcode in ATOMICS else self.length()
        answered = opcode in ATOMICS or opcode == "RDMA_READ"
        fields = {"wr_id": self.wr_id[side], "va": self.place(side, "result" if answered else "source", length),
                  "length": length, "lkey": self.numbers[side][1]}
        if not opcode.startswith("SEND"):
            area = "atomic" if opcode in ATOMICS else "source" if answered else "target"
            remote = self.place(OTHER[side], area, length + 8)
            if opcode in ATOMICS:
                remote += -remote % 8
            fields.update(remote_va=remote, rkey=self.numbers[OTHER[side]][1])
        if opcode.endswith("IMM"):
            fields["imm"] = self.rng.getrandbits(32)
        if opcode in ATOMICS:
            fields.update(swap_add=self.rng.getrandbits(64), compare=self.rng.getrandbits(64))
        return fields

    def post_send(self, side, opcode, **changes):
        """Post one random request, with changes."""
        self.wr_id[side] += 1
        fields = {**self.request(side, opcode), **changes}
        flags  = v.SEND_SIGNALED | (v.SEND_SOLICITED if self.rng.random() < .2 else 0) \
            | (v.SEND_FENCE if self.rng.random() < .1 else 0)
        self.endpoints[side].post_send(self.numbers[side][0], fields.pop("wr_id"), _WR[opcode], flags=flags, **fields)
        psns   = 1 if opcode in ATOMICS else op.packets(fields["length"], self.pmtu)
        event  = {"wr_id": self.wr_id[side], "opcode": opcode, "flags": v.flag_names(v.SEND_FLAG_NAMES, flags), **fields,
                  "psn": self.next_psn[side], "psns": psns}
        if "imm" in fields:
            event["imm"] = f"{fields['imm']:08x}"
        if opcode in ATOMICS:
            event["add" if "FETCH" in opcode else "swap"] = hex(event.pop("swap_add"))
            event["compare"] = hex(event["compare"])
        self.next_psn[side] = (self.next_psn[side] + psns) & op.PSN_MASK
        self.event("post_send", side, qp="q", **event)
        return opcode, fields["length"]

    # Wire -----------------------------------------------------------------------------------------

    def exchange(self):
        """Take what both sides have to send, then carry it; False where there is nothing."""
        frames = [(side, frame) for side in "ab" for frame in self.endpoints[side].tx(self.now)]
        for sender, frame in frames:
            self.now += PACKET_NS
            self.records[sender].append((self.now, frame))
        for sender, frame in frames:
            self.carry(sender, frame)
        return bool(frames)

    def carry(self, sender, frame):
        """One frame from `sender` through the faults to the other side."""
        dice  = self.rng.randrange(100)
        chosen = self.rng.choice(self.faults) if self.faults and dice < self.percent else None
        out, late = [frame], self.late[sender]
        if chosen == "loss":
            out = []
        elif chosen == "duplicate":
            out = [frame, frame]
        elif chosen == "corrupt":
            out = [bytes(frame[:-1]) + bytes([frame[-1] ^ 0x55])]
        elif chosen == "ecn":
            packet = parse(frame)
            out = [packet.copy(tos=packet.tos | op.ECN_CE, fecn=1, ip_checksum=None, ttl=packet.ttl - 1).build()]
        if chosen == "reorder":
            late.append(frame)
            return
        for each in out + late:
            self.deliver(OTHER[sender], each)
        late.clear()

    def deliver(self, side, frame):
        """A frame arrives at a side."""
        self.now += PACKET_NS
        self.records[side].append((self.now, frame))
        self.endpoints[side].rx(frame, self.now)

    def run(self):
        """Until both sides rest and no timer runs."""
        for _ in range(100_000):
            if self.exchange():
                continue
            late = [(side, frame) for side in "ab" for frame in self.late[side]]
            for side, frame in late:
                self.late[side].remove(frame)
                self.deliver(OTHER[side], frame)
            times = [t for t in (e.next_deadline() for e in self.endpoints.values()) if t is not None]
            if late:
                continue
            if not times:
                return
            self.now = max(self.now, min(times))
            for endpoint in self.endpoints.values():
                endpoint.tick(self.now)
        raise RuntimeError(f"{self.name}: the two sides never come to rest")

    # Record ---------------------------------------------------------------------------------------

    def poll(self):
        """Poll both CQs."""
        for side in "ab":
            done = self.endpoints[side].poll_cq()
            self.event("poll", side, qp="q", want=len(done), got=len(done))
            for c in done:
                self.event("completion", side, qp="q", wr_id=c.wr_id, status=v.WC_STATUS_NAMES[c.status],
                           opcode=v.WC_OPCODE_NAMES[c.opcode], byte_len=c.byte_len, vendor_err=0,
                           flags=v.flag_names({1: "GRH", 2: "WITH_IMM", 8: "WITH_INV"}, c.flags),
                           **({} if c.imm is None else {"imm": f"{c.imm:08x}"}))

    def capture(self):
        """The Capture of all that happened."""
        for side in "ab":
            endpoint = self.endpoints[side]
            self.event("qp_state", side, qp="q", state=v.QP_STATES[endpoint.qps[self.numbers[side][0]].state])
            self.event("memory", side, mr="q.mr", va=self.va[side], length=SIZE, when="end",
                       sha256=hashlib.sha256(endpoint.region.data).hexdigest())
        sides = {s: {"active_mtu": 4096, "netdevs": {"eth0": {"mac": self.endpoints[s].mac.hex(":")}}, "mrs": [
            {"name": "q.mr", "pd": "q.pd", "va": self.va[s], "length": SIZE, "lkey": self.numbers[s][1],
             "rkey": self.numbers[s][1], "access": _ACCESS}]} for s in "ab"}
        data = {"schema": SCHEMA, "name": self.name, "what": f"random work of the reference model, faults {self.faults}",
                "sides": sides, "qps": [{"name": "q", **{s: self.qp_of(s) for s in "ab"}}], "events": self.events}
        capture = Capture(self.name, data)
        capture.records = self.records
        for side in "ab":
            capture.frames[side] = frames_of(capture, self.records[side], self.name)
        return capture

    def qp_of(self, side):
        """QP description of a side."""
        peer = OTHER[side]
        gid  = {s: a if self.ipv6 else "::ffff:" + a for s, a in self.addresses.items()}
        return {"qpn": self.numbers[side][0], "peer_qpn": self.numbers[peer][0], "type": "RC", "path_mtu": self.pmtu,
                "sq_psn": self.psn[side], "rq_psn": self.psn[peer], "access": _ACCESS, "pd": "q.pd", "sq_sig_all": True,
                "sgid": gid[side], "dgid": gid[peer], "src_mac": self.endpoints[side].mac.hex(":"),
                "dst_mac": self.endpoints[peer].mac.hex(":"), "vlan": self.vlan and self.vlan[1],
                "priority": self.vlan and self.vlan[0], **self.attributes,
                "seen": {"udp_sport": [self.endpoints[side].qps[self.numbers[side][0]].sport]}}


def synthesize(seed, faults=(), *, rounds=4, percent=5, posts=6, atomics=False, both=True, profile=STANDARD):
    """Capture of random work: `rounds` batches of up to `posts` requests, each side's or a's alone.

    percent: share of frames that meet a fault. ValueError names an unknown fault.
    """
    for fault in faults:
        if fault not in FAULTS:
            raise ValueError(f"fault must be one of {FAULTS}, not {fault!r}")
    rng  = random.Random(seed)
    wire = tuple(f for f in faults if f not in ("rnr", "refuse"))
    record = Recorder(rng, f"synth_{seed}", wire, percent, WORK + (ATOMICS if atomics else ()), profile)
    for number in range(rounds):
        owed = {"a": [], "b": []}
        for side in "ab" if both else "a":
            for _ in range(rng.randrange(1, posts + 1)):
                opcode, length = record.post_send(side, rng.choice(record.work))
                if opcode in RECEIVES:
                    owed[OTHER[side]].append(0 if opcode.startswith("RDMA") else length)
        if "refuse" in faults and number == rounds - 1:
            refuse(record, rng)
        if "rnr" in faults and rng.random() < .7:
            record.exchange()
            record.exchange()
        for side in "ab":
            for length in owed[side]:
                record.post_recv(side, length)
        record.run()
        record.poll()
    return record.capture()


def refuse(record, rng):
    """Post at a one request that b must refuse: key, variant, or one byte beyond the region."""
    key    = record.numbers["b"][1]
    opcode = rng.choice(("RDMA_WRITE", "RDMA_READ"))
    length = rng.randrange(1, 3*record.pmtu)
    end    = record.va["b"] + SIZE - length
    changes = rng.choice(({"rkey": key ^ 1}, {"rkey": key + 0x100}, {"remote_va": end + 1}, {"remote_va": record.va["b"] - 1}))
    record.post_send("a", opcode, **{"length": length, "va": record.place("a", "result", length), "remote_va": end, **changes})


def save(capture, base):
    """Write base.pcap, base.b.pcap and base.json."""
    os.makedirs(os.path.dirname(base) or ".", exist_ok=True)
    write_pcap(base + ".pcap", capture.records["a"])
    write_pcap(base + ".b.pcap", capture.records["b"])
    with open(base + ".json", "w", encoding="utf-8") as file:
        json.dump(capture.data, file)


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", default="", help=f"of {','.join(FAULTS)}")
    parser.add_argument("--percent", type=int, default=5, help="share of frames that meet a fault")
    parser.add_argument("--out", default=".", help="directory")
    args = parser.parse_args()
    capture = synthesize(args.seed, tuple(f for f in args.faults.split(",") if f), percent=args.percent)
    save(capture, os.path.join(args.out, capture.name))
    print(os.path.join(args.out, capture.name + ".pcap"))


if __name__ == "__main__":
    main()
