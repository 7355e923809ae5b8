# SPDX-License-Identifier: BSD-2-Clause
"""Captures with their set-up (schema roce-capture-1), and the script of one side.

Schema: test/reference/captures/README.md. A capture is NAME.pcap (the wire at side a), NAME.json, and
NAME.b.pcap (the wire at side b) where frames were lost or altered in between.

    capture = load("test/reference/captures/rc_write.pcap")
    capture.regions("b"), capture.queue_pairs("b")     what to set up
    capture.script("b")                                what to do, in order: list of Step
"""
import json
import os
from dataclasses import dataclass, field

from roce_soc import opcodes as op
from roce_soc import verbs
from test.model.packet import PacketError, ip, mac, parse
from test.model.pcap import read_pcap

SCHEMA = "roce-capture-1"
OTHER  = {"a": "b", "b": "a"}
_WR     = {name: number for number, name in verbs.WR_NAMES.items()}
_ACCESS = {name: bit for bit, name in verbs.ACCESS_NAMES.items()}
_FLAGS  = {name: bit for bit, name in verbs.SEND_FLAG_NAMES.items()}
_NOT_OURS = ("alloc_pd", "dealloc_pd", "reg_mr", "create_qp", "connect_qp", "create_ah", "destroy_ah",
             "alloc_mw", "dealloc_mw", "invalidate", "destroy_qp", "dereg_mr", "poll", "sleep", "sh", "wire")


class CaptureError(ValueError):
    """What a capture or its set-up lacks, for the user."""


@dataclass
class Frame:
    """One RoCE frame of a capture; `number` counts all frames of its file from 1."""
    number  : int
    time_ns : int
    frame   : bytes
    packet  : object
    sender  : str          # a or b.
    post    : int = None   # number of the post_send event it belongs to.


@dataclass
class Step:
    """One thing to do when playing a side.

    kind: recv, send (post `event`), fill, memory (compare), feed (`frame` to our side), expect
    (`frame` from our side), state (compare the QP's state).
    """
    kind  : str
    event : dict = None
    frame : Frame = None


@dataclass
class Capture:
    """A capture and its set-up; `frames` by side whose wire it is."""
    name   : str
    data   : dict
    frames : dict = field(default_factory=dict)

    @property
    def qps(self):
        """QP descriptions of the set-up."""
        return self.data["qps"]

    @property
    def events(self):
        """All events, in order."""
        return self.data["events"]

    # Set-up ---------------------------------------------------------------------------------------

    def protection_domain(self, name):
        """Number of a protection domain, from 1."""
        names = []
        for event in self.events:
            if event.get("pd") and event["pd"] not in names:
                names.append(event["pd"])
        return names.index(name) + 1 if name in names else 0

    def regions(self, side):
        """Regions to register: dicts of name, key, va, length, access (bits), pd (number)."""
        return [{"name": m["name"], "key": m["lkey"], "va": m["va"], "length": m["length"],
                 "access": access_bits(m["access"]), "pd": self.protection_domain(m["pd"])}
                for m in self.data["sides"][side]["mrs"]]

    def queue_pairs(self, side):
        """QPs to connect: dicts of qpn, qp_type and the attributes of test.model.qp, in its units."""
        result = []
        for qp in self.qps:
            own, seen = qp[side], qp[side].get("seen") or {}
            if own.get("qpn") is None:
                raise CaptureError(f"{self.name}: qps[].{side} lacks qpn")
            tos  = (seen.get("traffic_class") or [own.get("traffic_class") or 0])[0]
            vlan = own.get("vlan")
            result.append({
                "name": qp["name"], "qpn": own["qpn"], "qp_type": own["type"],
                "dest_qpn": own["peer_qpn"] or 0, "sq_sig_all": bool(own.get("sq_sig_all")),
                "pmtu": own.get("path_mtu") or self.data["sides"][side]["active_mtu"],
                "sq_psn": own.get("sq_psn") or 0, "rq_psn": own.get("rq_psn") or 0,
                "timeout": own.get("timeout") or 0, "retry_cnt": own.get("retry_cnt") or 0,
                "rnr_retry": own.get("rnr_retry") or 0, "min_rnr_timer": own.get("min_rnr_timer") or 0,
                "max_rd_atomic": own.get("max_rd_atomic") or 0,
                "max_dest_rd_atomic": own.get("max_dest_rd_atomic") or 0,
                "access": access_bits(own.get("access") or ()), "qkey": own.get("qkey") or 0,
                "pkey": own.get("pkey") or op.PKEY_DEFAULT, "pd": self.protection_domain(own.get("pd")),
                "src_mac": mac(own["src_mac"]), "dst_mac": mac(own["dst_mac"]),
                "src_ip": ip(own["sgid"]), "dst_ip": ip(own["dgid"]), "tos": tos,
                "ttl": (seen.get("hop_limit") or [64])[0],
                "flow_label": (seen.get("flow_label") or [0])[0],
                "sport": (seen.get("udp_sport") or [None])[0],
                "vlan": None if vlan is None else (own.get("priority") or 0) << 13 | vlan,
            })
        return result

    def qpn(self, side, name):
        """QPN of the QP called `name` at a side."""
        return next(qp[side]["qpn"] for qp in self.qps if qp["name"] == name)

    # Posts ----------------------------------------------------------------------------------------

    def posts(self, side, qp=None):
        """post_send events of a side that take PSNs, of all QPs or of one."""
        return [e for e in self.events if e["ev"] == "post_send" and e["side"] == side
                and e.get("psn") is not None and qp in (None, e["qp"])]

    def send_request(self, event):
        """Fields of a test.model.qp.SendRequest (opcode and wr_id among them) of a post_send."""
        fields = {"wr_id": event["wr_id"], "opcode": _WR[event["opcode"]], "va": event.get("va") or 0,
                  "length": event.get("length") or 0, "lkey": event.get("lkey") or 0,
                  "flags": sum(_FLAGS[f] for f in event["flags"]),
                  "remote_va": event.get("remote_va") or 0, "rkey": event.get("rkey") or 0,
                  "inv_rkey": event.get("inv_rkey") or 0}
        if event.get("imm"):
            fields["imm"] = int(event["imm"], 16)
        if event.get("add") or event.get("swap"):
            fields["swap_add"] = int(event.get("add") or event["swap"], 16)
            fields["compare"]  = int(event.get("compare") or "0", 16)
        if event.get("remote_qpn") is not None:
            qp = next(q for q in self.queue_pairs(event["side"]) if q["name"] == event["qp"])
            fields.update(remote_qpn=event["remote_qpn"], remote_qkey=event["remote_qkey"],
                          address={"dst_ip": ip(event["ah"]["dgid"]), "dst_mac": qp["dst_mac"]})
        return fields

    def completions(self, side):
        """Completion events of a side, in order."""
        return [e for e in self.events if e["ev"] == "completion" and e["side"] == side]

    # Script ---------------------------------------------------------------------------------------

    def script(self, side):
        """Steps that play a side: its posts and checks placed among the frames of its wire.

        A post comes before the first frame of any later post; posts without a poll between them come
        together as far as the capture has no answer between their first frames, or the later one has a fence, which waits
        for that answer. Receives come first, but each after the last RNR NAK that says it was not there yet.
        """
        if not self.qps:
            raise CaptureError(f"{self.name}: the set-up has no qps, so no side can be played")
        if side not in OTHER:
            raise CaptureError(f"side must be a or b, not {side!r}")
        frames = self.frames[side]
        own    = [e for e in self.events if e.get("side") == side and e["ev"] not in _NOT_OURS
                  and e["ev"] not in ("completion", "post_recv")]
        receives = [e for e in self.events if e["ev"] == "post_recv" and e["side"] == side]
        batch  = self._batches(side)
        held   = self._held_receives(side, frames)
        begins = {}
        for position, frame in enumerate(frames):
            if frame.sender == side and frame.post is not None:
                begins.setdefault(frame.post, position)

        def together(event, position):
            """True where a post may go out with the frame at a position."""
            end = position if "FENCE" in event.get("flags", ()) else begins.get(event["n"], position)
            return not any(f.sender != side and op.OPCODES[f.packet.opcode].is_response
                           for f in frames[position:end] if f.packet.opcode in op.OPCODES)
        steps  = []

        def emit(event):
            kind = {"post_recv": "recv", "post_send": "send", "qp_state": "state"}.get(event["ev"], event["ev"])
            steps.append(Step(kind, event))

        for position, frame in enumerate(frames):
            while own and frame.post is not None and (own[0]["n"] <= frame.post
                                                      or batch.get(own[0]["n"]) == batch.get(frame.post, -1)
                                                      and together(own[0], position)):
                emit(own.pop(0))
            while receives and held.get(receives[0]["n"], -1) < position:
                emit(receives.pop(0))
            steps.append(Step("expect" if frame.sender == side else "feed", frame=frame))
        for event in receives + own:
            emit(event)
        return steps

    def _batches(self, side):
        """post_send number -> number of its batch: posts with nothing of the side between them."""
        batch, result = 0, {}
        for event in self.events:
            if event.get("side") == side and event["ev"] == "post_send":
                result[event["n"]] = batch
            elif event.get("side") in (side, None) and event["ev"] in ("poll", "sleep", "fill", "memory"):
                batch += 1
        return result

    def _held_receives(self, side, frames):
        """post_recv number -> position of the last RNR NAK sent for want of it."""
        held = {}
        for position, frame in enumerate(frames):
            packet = frame.packet
            if frame.sender != side or packet.name != "RC_ACKNOWLEDGE" or op.syndrome_class(packet.syndrome) != "RNR":
                continue
            qp = next((q for q in self.qps if q[side]["peer_qpn"] == packet.dest_qpn), None)
            if qp is None:
                continue
            used = sum(1 for e in self.posts(OTHER[side], qp["name"])
                       if (e["opcode"].startswith("SEND") or e["opcode"] == "RDMA_WRITE_WITH_IMM")
                       and op.psn_diff(e["psn"] + e["psns"] - 1, packet.psn) < 0)
            receives = [e for e in self.events if e["ev"] == "post_recv" and e["side"] == side and e["qp"] == qp["name"]]
            for event in receives[used:]:
                held[event["n"]] = position
        return held

    def _find_post(self, packet, sender):
        """Number of the post_send that a frame belongs to, or None."""
        row = op.OPCODES.get(packet.opcode)
        if row is None:
            return None
        poster = OTHER[sender] if row.is_response else sender
        for qp in self.qps:
            if qp[sender]["peer_qpn"] != packet.dest_qpn:
                continue
            for event in self.posts(poster, qp["name"]):
                if 0 <= op.psn_diff(packet.psn, event["psn"]) < event["psns"]:
                    return event["n"]
        return None


def access_bits(names):
    """Access names -> bits."""
    return sum(_ACCESS[name] for name in names)


def fill_bytes(event):
    """Bytes of a fill event."""
    rule, length = event["rule"], event["length"]
    if rule == "zero":
        return bytes(length)
    if rule == "count":
        seed = event.get("seed") or 0
        return (bytes((i + seed) & 255 for i in range(256))*(length//256 + 1))[:length]
    if rule == "hex":
        return bytes.fromhex(event["hex"])
    raise CaptureError(f"fill rule must be zero, count or hex, not {rule!r}")


def load(path, setup=None):
    """Capture of NAME.pcap and NAME.json (or `setup`); CaptureError says what is missing or wrong."""
    base  = path[:-len(".pcap")] if path.endswith(".pcap") else path
    setup = setup or base + ".json"
    for file in (base + ".pcap", setup):
        if not os.path.exists(file):
            raise CaptureError(f"{file} does not exist; a capture needs NAME.pcap and NAME.json")
    try:
        with open(setup, encoding="utf-8") as file:
            data = json.load(file)
    except json.JSONDecodeError as error:
        raise CaptureError(f"{setup}: not JSON: {error}") from error
    if data.get("schema") != SCHEMA:
        raise CaptureError(f"{setup}: schema must be {SCHEMA!r}, not {data.get('schema')!r}")
    for key in ("sides", "qps", "events"):
        if key not in data:
            raise CaptureError(f"{setup}: lacks {key!r}")
    capture = Capture(data.get("name") or os.path.basename(base), data)
    at_b = base + ".b.pcap" if os.path.exists(base + ".b.pcap") else base + ".pcap"
    for side, file in (("a", base + ".pcap"), ("b", at_b)):
        try:
            capture.frames[side] = _frames(capture, file)
        except CaptureError:
            raise
        except ValueError as error:
            raise CaptureError(str(error)) from error
    return capture


def _frames(capture, path):
    """Frames of a file; also checks their number and times."""
    records = read_pcap(path)
    if not path.endswith(".b.pcap") and capture.data.get("packets") not in (None, len(records)):
        raise CaptureError(f"{path}: has {len(records)} frames, the set-up says {capture.data['packets']}")
    return frames_of(capture, records, path)


def frames_of(capture, records, path="capture"):
    """RoCE frames among [(time in ns, frame)], with their senders and posts."""
    macs, frames = {}, []
    for side in "ab":
        for device in (capture.data["sides"].get(side) or {}).get("netdevs", {}).values():
            macs[mac(device["mac"])] = side
    for number, (time_ns, frame) in enumerate(records, 1):
        if number > 1 and time_ns < records[number - 2][0]:
            raise CaptureError(f"{path}: frame {number} is older than the one before it")
        try:
            packet = parse(frame)
        except PacketError as error:
            raise CaptureError(f"{path}: frame {number}: {error}") from error
        if packet is None:
            continue
        sender = macs.get(packet.src_mac)
        if sender is None:
            raise CaptureError(f"{path}: frame {number}: source MAC {packet.src_mac.hex(':')} is none of sides.*.netdevs")
        frames.append(Frame(number, time_ns, frame, packet, sender, capture._find_post(packet, sender)))
    return frames
