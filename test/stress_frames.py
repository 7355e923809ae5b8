# SPDX-License-Identifier: BSD-2-Clause
"""Store, check, then act: a damaged frame of every opcode, layout and byte; everything inside the engine is as it was.

Ref: InfiniBand Architecture vol. 1 Annex A17 (RoCEv2): MAC addresses, VLAN tag, TOS, TTL, flow label, IP and UDP
checksum and byte 4 of the BTH are not in the ICRC. Of these the destination MAC, the IPv4 checksum and what that
covers are checked otherwise; the rest may change on the way (`rule`).
"""
import random
import re

from roce_soc import abi, verbs
from roce_soc import opcodes as op
from roce_soc.errors import ERRORS
from sim.engine import IPS, MACS, RING_MEMORY, Bench
from sim.harness.state import Rows
from test.model.packet import Packet, parse

OPCODES   = list(op.OPCODES.values())
LAYOUTS   = [(version, tci) for version in (4, 6) for tci in (None, 0x6064)]
IPS6      = tuple(0x20010db8 << 96 | n for n in (1, 2))
BUFFERS   = 0x1000_0000
REGION    = 1 << 16
RECEIVED, WRITTEN, LOCAL = 0x8000, 0x4000, 0x2000     # offsets in the region: receives, WRITEs, what the engine sends.
PMTU      = 256
SETTLE    = 160         # clocks from the last beat of a frame to the end of all that it causes.
COUNTER   = r"^core0\.monitor\..*\bcount_"
ACCESS    = verbs.ACCESS_LOCAL_WRITE | verbs.ACCESS_REMOTE_WRITE | verbs.ACCESS_REMOTE_READ
LENGTH    = {"IP_CHECKSUM", "UDP_LENGTH", "RUNT", "ICRC"}   # a length that changed is caught by what it meets first.
# What a frame may move before it is known to be good: where it is stored and looked at, and what tells of it.
ROWS      = r"^core0\.(?!(buffer|decoder|monitor|turnaround)\.)"
# Registers besides: what only looks (parser, checker, rows and memory that are read), what the timer scanner passes, and
# the crossings that show counters in the registers' clock.
REGISTERS = (r"^core0\.(?!(buffer|decoder|link|monitor|icrc|receive|receive_drain|turnaround)\.|command\.context\.table\.later|"
             r"send\.completer\.decide\.([^.]*$|state\.)|send\.requester\.visit\.sq\.(data|err)$)")


def header_offsets(frame):
    """(IP header, UDP header, BTH, end of the ICRC) of a good frame."""
    at  = 18 if frame[12:14] == b"\x81\x00" else 14
    udp = at + (20 if frame[at] >> 4 == 4 else 40)
    return at, udp, udp + op.UDP_BYTES, udp + int.from_bytes(frame[udp + 4:udp + 6], "big")


def rule(frame, at, flip):
    """What becomes of a good frame whose byte `at` changes by `flip`: "good", "slow" or rows, one of which counts."""
    ip, udp, bth, end = header_offsets(frame)
    if at < 6:
        return {"DST_MAC"}
    if at < 12 or at >= end:
        return "good"                          # source MAC; padding of the Ethernet frame.
    if at < ip:
        if ip != 18 or at not in (14, 15):
            return "slow"
        return {"VLAN"} if at == 15 or flip & 0x0f else "good"
    n = at - ip
    if frame[ip] >> 4 == 4 and at < udp:
        if n == 9:
            return "slow"
        if n in (6, 7) and (flip << 8 if n == 6 else flip) & 0x1fff:
            return "slow"                      # a later fragment.
        if n == 6 and flip & 0x20:
            return {"IP_FRAGMENT"}
        return {0: "slow" if flip & 0xf0 else {"IP_OPTIONS"}, 2: LENGTH, 3: LENGTH}.get(n, {"IP_CHECKSUM"})
    if at < udp:
        if n == 6 or n == 0 and flip & 0xf0:
            return "slow"
        if n in (1, 2, 3, 7) or n == 0:
            return "good"
        return LENGTH if n in (4, 5) else {"ICRC"}
    if at < bth:
        return ({"ICRC"}, {"ICRC"}, "slow", "slow", LENGTH, LENGTH, "good", "good")[at - udp]
    if at == bth + 4:
        return "good"
    # With another opcode or pad the lengths may not fit either; they are looked at first.
    return LENGTH if at < bth + 2 else {"ICRC"}


class Frames:
    """One engine, one QP in RTS; the bench is its peer and makes every frame by hand."""
    def __init__(self, seed, version=4, vlan=None):
        self.random  = random.Random(seed)
        self.bench   = Bench(seed=seed, gap=self.random.choice((0, .3)))
        self.engine  = engine = self.bench.engines[0]
        self.vlan, self.version = vlan, version
        self.ips     = IPS if version == 4 else IPS6
        self.epsn, self.wr = self.random.choice((0xfffffe, 0x7fffff, 9)), 0
        self.mr      = engine.roce.reg_mr(BUFFERS, REGION, access=ACCESS)
        self.cq      = engine.roce.create_cq(4)
        self.qp      = engine.roce.create_qp(self.cq, self.cq, src_mac=MACS[0], dst_mac=MACS[1], src_ip=self.ips[0],
            dst_ip=self.ips[1], ipv6=int(version == 6), vlan_en=int(vlan is not None), vlan_tci=vlan or 0,
            dest_qpn=0x1000, pmtu=op.PMTU_CODES[PMTU], timeout=0,
            sq_psn=self.random.choice((0xfffffd, 3)), rq_psn=self.epsn)
        for state in (abi.QP_INIT, abi.QP_RTR, abi.QP_RTS):
            self.qp.modify(state)
        engine.write_memory(BUFFERS, self.random.randbytes(REGION))
        self.bench.work(SETTLE)
        self.rings   = engine.roce._next - RING_MEMORY[0]
        # Registers that move when nothing arrives: clocks, scanners, what follows lines without a meaning; of one bit, too.
        self.restless, before = set(), self.bench.sim.registers(REGISTERS)
        for _ in range(20):
            self.bench.step(37)
            now = self.bench.sim.registers(REGISTERS)
            self.restless |= {name for name in now if now[name] != before[name]}

    # Frames ---------------------------------------------------------------------------------------

    def frame(self, opcode, psn, payload=b"", **fields):
        """A frame of the peer."""
        size = 4 if self.version == 4 else 16
        return Packet(**{**dict(opcode=opcode, dst_mac=MACS[0].to_bytes(6, "big"), src_mac=MACS[1].to_bytes(6, "big"),
            ip_version=self.version, vlan=self.vlan, src_ip=self.ips[1].to_bytes(size, "big"),
            dst_ip=self.ips[0].to_bytes(size, "big"), dest_qpn=self.qp.qpn, psn=psn & op.PSN_MASK, ackreq=1,
            payload=payload, va=BUFFERS + WRITTEN, rkey=self.mr.rkey, dma_length=len(payload), tos=2,
            ip_id=self.random.getrandbits(16), syndrome=op.ACK_UNLIMITED, imm=0x1234_5678), **fields}).build(pad_frame=True)

    def pass_on(self, frame, **how):
        """The frame arrives and all it causes has happened. Returns the frames sent, parsed."""
        self.engine.send(frame, **how)
        self.bench.sim.drain(self.engine.rx)
        self.bench.work(SETTLE)
        return [parse(f) for f in self.engine.frames()]

    def inside(self):
        """Everything that a frame could have changed: {name: contents}."""
        sim, engine = self.bench.sim, self.engine
        found = sim.memories(ROWS)
        found.update((n, v) for n, v in sim.registers(REGISTERS).items() if n not in self.restless)
        found["payload memory"] = engine.read_memory(BUFFERS, REGION)
        found["ring memory"]    = engine.read_memory(RING_MEMORY[0], self.rings)
        found["accesses"]       = [(k, c["commands"], c["answers"]) for k, c in engine.memory.counters().items()]
        found["chunks free"]    = engine.chunks_free()
        found["interrupt"]      = sim.peek("e0_irq")
        return found

    def damaged(self, frame, expected, what, **how):
        """A frame that must change nothing but one counter; `expected` by `rule`, None: any counter or the slow path."""
        before, counted = self.inside(), self.bench.sim.registers(COUNTER)
        sent  = self.pass_on(frame, **how)
        after = self.inside()
        slow  = [f.data for f in self.engine.slow_out.recv_all()]
        assert not sent, f"{what}: answered by {sent[0].describe()}"
        changed = [f"{n} rows {after[n].changed(before[n])[:9]}" if isinstance(after[n], Rows) else n
            for n in after if after[n] != before[n]]
        assert not changed, f"{what}: changed inside: {', '.join(changed)}"
        now   = self.bench.sim.registers(COUNTER)
        moved = {re.sub(COUNTER, "", n): now[n] - counted[n] for n in now if now[n] != counted[n]}
        if slow or expected == "slow":
            assert expected in ("slow", None), f"{what}: went to the slow path, not {expected}"
            assert slow == [frame] and moved == {"rx_slow_frames": 1}, f"{what}: slow path took {len(slow)}, {moved}"
            return
        assert moved.pop("rx_roce_frames", 0) == 1 and list(moved.values()) == [1], f"{what}: counters {moved}"
        row = next(iter(moved)).removeprefix("receive_").upper()
        assert ERRORS[row].stage == "RECEIVE", f"{what}: counted as {row}"
        assert expected is None or row in expected, f"{what}: counted as {row}, not {expected}"

    # Plays ----------------------------------------------------------------------------------------

    def around(self, frame, spoil):
        """The target frame: `spoil` first, which says what then arrives instead of the good frame, if anything."""
        return self.pass_on(spoil(frame) or frame)

    def complete(self, wr_id, opcode, length):
        """One good completion, nothing else."""
        entries = self.cq.poll()
        assert [(e["wr_id"], e["status"], e["opcode"]) for e in entries] == [(wr_id, 0, opcode)], entries
        assert not opcode & 0x80 or entries[0]["byte_len"] == length, entries

    def request(self, opcode, spoil):
        """A message of the peer that holds `opcode` once, whole, and all it must cause."""
        kind, place = opcode.kind, opcode.position
        code = {n: op.opcode_of("RC", kind, n) for n in ("FIRST", "MIDDLE", "LAST")} if place != "ONLY" else {}
        if place in ("FIRST", "MIDDLE"):
            plan = [code["FIRST"], code["MIDDLE"], code["LAST"]]
        else:
            plan = [code["FIRST"], opcode.value] if place == "LAST" else [opcode.value]
        data   = self.random.randbytes(PMTU*(len(plan) - 1) + self.random.randrange(1, 40))
        engine, offset = self.engine, (RECEIVED if kind == "SEND" else WRITTEN) + self.random.randrange(64)
        engine.write_memory(BUFFERS + offset, bytes(len(data)))
        consumes = kind == "SEND" or opcode.has_imm
        if consumes:
            self.wr += 1
            self.qp.post_recv(self.mr, va=BUFFERS + offset, length=len(data), wr_id=self.wr)
            self.bench.work(SETTLE)
        for n, value in enumerate(plan):
            frame = self.frame(value, self.epsn, data[PMTU*n:PMTU*(n + 1)], va=BUFFERS + offset, dma_length=len(data))
            sent  = self.around(frame, spoil) if value == opcode.value else self.pass_on(frame)
            said = [(p.opcode, p.psn, p.syndrome & op.SYNDROME_CLASS_MASK) for p in sent]
            assert said == [(op.RC_ACKNOWLEDGE, self.epsn & op.PSN_MASK, op.SYNDROME_ACK)], [p.describe() for p in sent]
            self.epsn += 1
        assert engine.read_memory(BUFFERS + offset, len(data)) == data, f"{opcode.name}: payload differs"
        if consumes:
            self.complete(self.wr, verbs.WC_RECV_RDMA_WITH_IMM if kind == "WRITE" else verbs.WC_RECV, len(data))
        assert not self.cq.poll()

    def read_request(self, spoil):
        """A READ of the peer and its reply."""
        length = self.random.randrange(1, PMTU)
        frame  = self.frame(op.RC_READ_REQUEST, self.epsn, va=BUFFERS + LOCAL, dma_length=length)
        sent   = self.around(frame, spoil)
        said   = [(p.opcode, p.psn) for p in sent]
        assert said == [(op.RC_READ_RESPONSE_ONLY, self.epsn & op.PSN_MASK)], [p.describe() for p in sent]
        assert sent[0].payload == self.engine.read_memory(BUFFERS + LOCAL, length)
        self.epsn += 1

    def response(self, opcode, spoil):
        """Work of the engine that the peer answers, with `opcode` among the answers."""
        read, engine = opcode.kind == "READ_RESPONSE", self.engine
        names  = {"ONLY": ("ONLY",), "LAST": ("FIRST", "LAST")}.get(opcode.position, ("FIRST", "MIDDLE", "LAST"))
        names  = names if read else ()
        length = PMTU*max(0, len(names) - 1) + self.random.randrange(1, 40)
        offset, data = LOCAL + 0x800 + self.random.randrange(64), self.random.randbytes(length)
        self.wr += 1
        self.qp.post_send(verbs.WR_RDMA_READ if read else verbs.WR_SEND, self.mr, va=BUFFERS + offset, length=length,
            wr_id=self.wr, remote_va=0x4000, rkey=7)
        self.bench.work(2*SETTLE)
        asked = [parse(f) for f in engine.frames()]
        said  = [p.opcode for p in asked]
        assert said == [op.RC_READ_REQUEST if read else op.RC_SEND_ONLY], [p.describe() for p in asked]
        plan  = [op.by_name(f"RC_READ_RESPONSE_{n}").value for n in names] or [opcode.value]
        for n, value in enumerate(plan):
            frame = self.frame(value, asked[0].psn + n, data[PMTU*n:PMTU*(n + 1)] if read else b"", ackreq=0)
            sent  = self.around(frame, spoil) if value == opcode.value else self.pass_on(frame)
            assert not sent, [p.describe() for p in sent]
        assert not read or engine.read_memory(BUFFERS + offset, length) == data, f"{opcode.name}: READ data differs"
        self.complete(self.wr, verbs.WC_RDMA_READ if read else verbs.WC_SEND, length)

    def play(self, opcode, spoil):
        """One message with a frame of `opcode` in it; one this build refuses is spoiled only, and a WRITE follows."""
        if opcode.transport == "RC" and opcode.kind in ("SEND", "WRITE") and not opcode.has_inv:
            self.request(opcode, spoil)
        elif opcode.value == op.RC_READ_REQUEST:
            self.read_request(spoil)
        elif opcode.kind in ("READ_RESPONSE", "ACKNOWLEDGE"):
            self.response(opcode, spoil)
        else:
            payload = self.random.randbytes({"PMTU": PMTU, "NONE": 0}.get(opcode.payload, 21))
            spoil(self.frame(opcode.value, self.epsn, payload, qkey=1, src_qp=5))
            self.request(op.OPCODES[op.RC_WRITE_ONLY], lambda frame: None)


# Campaign -----------------------------------------------------------------------------------------

def flips(rng):
    """A change of one byte: one bit or any."""
    return rng.choice((1 << rng.randrange(8), rng.randrange(1, 256)))


def executed(opcode):
    """Whether this build acts upon frames of the opcode."""
    kinds = ("SEND", "WRITE", "READ_REQUEST", "READ_RESPONSE", "ACKNOWLEDGE")
    return opcode.transport == "RC" and not opcode.has_inv and opcode.kind in kinds


def spoil_byte(frames, opcode, at, flip):
    """A `spoil` that changes one byte."""
    def spoil(frame):
        bad  = frame[:at] + bytes([frame[at] ^ flip]) + frame[at + 1:]
        rows = rule(frame, at, flip)
        if rows == "good":
            return bad if executed(opcode) else None
        # A frame of another transport breaks two rules where the ICRC holds.
        if rows in ({"DST_MAC"}, {"VLAN"}) and opcode.transport in ("UC", "UD"):
            rows |= {"TRANSPORT_CLASS"}
        frames.damaged(bad, rows, f"{opcode.name} IPv{frames.version} vlan {frames.vlan}, byte {at} ^ {flip:#04x}")
        return None
    return spoil


def spoil_cut(frames, opcode, length):
    """A `spoil` that cuts the frame to a length; before its UDP header is there nobody knows what it was."""
    def spoil(frame):
        _, _, bth, end = header_offsets(frame)
        known = {"RUNT"} if length >= bth + op.BTH_BYTES else None
        frames.damaged(frame[:min(length, end - 1)], known, f"{opcode.name} cut to {length}")
    return spoil


def spoil_error(frames, opcode):
    """A `spoil` that the MAC marks bad."""
    return lambda frame: frames.damaged(frame, {"MAC_ERROR"}, f"{opcode.name} with a MAC error", error=1)


def size_of(frames, opcode):
    """Bytes of the shortest frame that a play of `opcode` can make, padding of short ones included."""
    payload = {"PMTU": PMTU, "NONE": 0}.get(opcode.payload, 1)
    return len(frames.frame(opcode.value, 0, bytes(payload)))


def run(seed):
    """All bytes of one opcode in one layout, both by the seed, cuts, the MAC's mark. Returns the clocks."""
    opcode = OPCODES[seed % len(OPCODES)]
    frames = Frames(seed, *LAYOUTS[seed//len(OPCODES) % len(LAYOUTS)])
    rng    = frames.random
    for at in range(size_of(frames, opcode)):
        frames.play(opcode, spoil_byte(frames, opcode, at, flips(rng)))
        if at % 16 == 0:
            frames.play(opcode, spoil_cut(frames, opcode, rng.randrange(15, 300)))
    frames.play(opcode, spoil_error(frames, opcode))
    return frames.bench.sim.cycles()
