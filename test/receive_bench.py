# SPDX-License-Identifier: BSD-2-Clause
"""The receive side, from the wire to packet records, compiled once for the tests of its parts."""
from litex.gen import *
from migen import *

from roce_soc import abi
from roce_soc.common import connection_layout
from roce_soc.network.receive import RoCEReceive
from roce_soc.packet.buffer import PacketBuffer
from roce_soc.packet.decoder import RoCEDecoder
from roce_soc.packet.icrc_checker import ICRCChecker
from roce_soc.qp.context import QPContext
from sim.harness import Sim
from test.model.packet import Packet

N_QPS   = 64
OWN_MAC = bytes.fromhex("020000000002")
OWN_IP4, PEER_IP4 = bytes([10, 0, 0, 2]), bytes([10, 0, 0, 1])
OWN_IP6, PEER_IP6 = bytes.fromhex("20010db8000000000000000000000002"), bytes.fromhex("20010db8000000000000000000000001")


class ReceiveSide(LiteXModule):
    """The receive side as the core wires it."""
    def __init__(self):
        self.context = QPContext(N_QPS)
        self.receive = RoCEReceive()
        self.icrc    = ICRCChecker()
        self.decoder = RoCEDecoder(self.context.get_port(), N_QPS)
        self.buffer  = PacketBuffer(n_chunks=64)
        self.comb += [
            self.receive.header.connect(self.decoder.header),
            self.receive.source.connect(self.decoder.sink),
            self.receive.early.connect(self.icrc.sink),
            self.icrc.judge.eq(self.receive.early_roce), self.icrc.end.eq(self.receive.early_end),
            self.decoder.icrc_valid.eq(self.icrc.valid),
            self.decoder.icrc_good.eq(self.icrc.good),
            self.decoder.source.connect(self.buffer.sink),
            self.decoder.verdict.connect(self.buffer.verdict),
        ]


def make():
    top = ReceiveSide()
    b   = top.buffer
    return top, {
        "rx": top.receive.sink, "slow": top.receive.slow_source, "row": top.context.write, "request": b.request, "response": b.response,
        "fetch": b.fetch, "data": b.data, "keep": b.keep, "refusal": b.refusal, "turned": top.receive.is_local,
        "admit_own": top.decoder.admit_own, "chunks_free": b.chunks_free, "ready": top.context.ready}


def row_bits(**values):
    """A connection row as a number."""
    number, at = 0, 0
    for name, width in connection_layout():
        number |= (values.pop(name, 0) & ((1 << width) - 1)) << at
        at += width
    assert not values, values
    return number


def qp_row(qpn, ipv6=0, state=abi.QP_RTS, **more):
    own, peer = (OWN_IP6, PEER_IP6) if ipv6 else (OWN_IP4, PEER_IP4)
    return row_bits(**{**dict(qpn=qpn, state=state, pmtu=3, pkey=0xffff, ipv6=ipv6, src_mac=int.from_bytes(OWN_MAC, "big"),
        src_ip=int.from_bytes(own, "big"), dst_ip=int.from_bytes(peer, "big"), dest_qpn=qpn + 1), **more})


class Bench:
    """The compiled receive side with QPs in RTS: 0x41 (IPv4) and 0x42 (IPv6), 0x43 and 0x44 the same in VLAN 0x064."""
    def __init__(self, so, seed=1, gap=0.0, stall=0.0):
        self.sim = sim = Sim(so, seed=seed)
        self.rx, self.rows, self.fetch = sim.source("rx", gap=gap), sim.source("row"), sim.source("fetch")
        self.request, self.response = sim.sink("request", stall=stall), sim.sink("response", stall=stall)
        self.refusal, self.slow = sim.sink("refusal"), sim.sink("slow")
        self.data = sim.sink("data", stall=stall, check_last_be=False)
        sim.reset()
        sim.wait("ready", 1)
        sim.step(80)
        self.qp(0x41)
        self.qp(0x42, ipv6=1)
        for n in (0, 1):
            self.qp(0x43 + n, ipv6=n, vlan_en=1, vlan_tci=0x3064)
        sim.drain(self.rows)

    def qp(self, qpn, **more):
        self.rows.send(index=qpn % N_QPS, row=qp_row(qpn, **more))

    def payload(self, record, keep=0):
        """Fetches a record's payload and cuts it out of its beats; with `keep` it may be fetched again."""
        if not record.has_slot:
            return b""
        self.sim.poke("keep", keep)
        self.fetch.send(slot=record.slot, discard=0)
        self.sim.until(self.data, 1)
        self.sim.step()                 # its last chunk comes back behind its last beat.
        return self.data.recv().data[record.offset:record.offset + record.length]


def packet(opcode, *, v6=False, vlan=None, payload=b"", **more):
    own, peer = (OWN_IP6, PEER_IP6) if v6 else (OWN_IP4, PEER_IP4)
    return Packet(**{**dict(opcode=opcode, dst_mac=OWN_MAC, src_mac=bytes.fromhex("020000000001"), vlan=vlan, ip_version=6 if v6 else 4,
        src_ip=peer, dst_ip=own, dest_qpn=0x41 + v6 + 2*((vlan or 0) & 0xfff == 0x064), payload=payload), **more})
