# SPDX-License-Identifier: BSD-2-Clause
"""The transmit path, from packet records to the wire, compiled once for the tests of its parts."""
from litex.gen import LiteXModule

from roce_soc import abi, opcodes
from roce_soc.common import OWNER_ACK, OWNER_REQUESTER, connection_layout
from roce_soc.memory.fetcher import PayloadFetcher
from roce_soc.network.transmit import RoCETransmit
from roce_soc.packet.encoder import RoCEEncoder, frame_params
from roce_soc.packet.icrc import ICRCInserter
from roce_soc.qp.context import QPContext
from sim.harness import Sim
from test.model.packet import Packet

N_QPS = 64


def psn_returned(record):
    """PSN of tx_sent: a request's last one, which travels in the field that only responses use."""
    return record["msn"] if record["owner"] == OWNER_REQUESTER and not record["marker"] else record["psn"]


class TransmitPath(LiteXModule):
    """fetcher -> encoder -> ICRC -> transmit, with QP rows."""
    def __init__(self):
        self.context  = QPContext(N_QPS)
        self.fetcher  = PayloadFetcher()
        self.clients  = [self.fetcher.get_port() for _ in range(3)]
        self.encoder  = RoCEEncoder(self.context.get_port())
        self.icrc     = ICRCInserter(params=frame_params())
        self.transmit = RoCETransmit()
        self.comb += [
            self.fetcher.source.connect(self.encoder.sink),
            self.fetcher.payload.connect(self.encoder.payload),
            self.encoder.source.connect(self.icrc.sink),
            self.encoder.reserve.connect(self.transmit.reserve),
            self.encoder.room.eq(self.transmit.room),
            self.encoder.room_control.eq(self.transmit.room_control),
            self.icrc.source.connect(self.transmit.sink),
        ]


def make():
    top = TransmitPath()
    t   = top.transmit
    return top, {**{f"c{n}": c for n, c in enumerate(top.clients)}, "m": top.fetcher.port.streams(), "row": top.context.write, "tx": t.source,
        "loop": t.loop, "slow": t.slow_sink, "sent": t.sent, "pause": t.pause, "ready": top.context.ready, "dropped": t.dropped,
        "free_roce": t.fifos[1].free, "free_control": t.fifos[0].free, "free_slow": t.fifos[2].free,
        "free_loop": t.loop_fifo.free}


def row_bits(values):
    """A connection row as a number."""
    number, at = 0, 0
    for name, width in connection_layout():
        number |= (values.get(name, 0) & ((1 << width) - 1)) << at
        at += width
    return number


def random_row(rng, qpi, **more):
    """Values of a connection row; addresses random, own and peer MAC differ."""
    ipv6 = more.get("ipv6", rng.getrandbits(1))
    bits = 128 if ipv6 else 32
    return {**dict(qpn=qpi, state=abi.QP_RTS, ipv6=ipv6, vlan_en=rng.getrandbits(1), vlan_tci=rng.getrandbits(16), dest_qpn=rng.getrandbits(24),
        hop_limit=rng.getrandbits(8), tclass=rng.getrandbits(8), pkey=rng.getrandbits(16), udp_sport=rng.getrandbits(16),
        flow_label=rng.getrandbits(20), dst_mac=rng.getrandbits(48), src_mac=rng.getrandbits(48), dst_ip=rng.getrandbits(bits),
        src_ip=rng.getrandbits(bits)), **more}


class TxBench:
    """Rows, memory, clients; knows the frame every record must become."""
    def __init__(self, so, seed, rng, *, gap=0.0, stall=0.0, rows=None, **options):
        self.sim, self.rng = Sim(so, seed=seed), rng
        sim          = self.sim
        self.memory  = sim.memory("m", **options)
        self.clients = [sim.source(f"c{n}", gap=gap) for n in range(3)]
        self.writes  = sim.source("row")
        self.slow    = sim.source("slow", gap=gap)
        self.tx      = sim.sink("tx", stall=stall)
        self.loop    = sim.sink("loop", stall=stall)
        self.sent    = sim.sink("sent")
        self.ip_id   = 0
        self.rows    = {}
        sim.reset()
        sim.wait("ready", 1)
        for qpi in range(N_QPS):
            self.row(qpi, **(rows or {}))

    def row(self, qpi, **values):
        self.rows[qpi] = random_row(self.rng, qpi, **values)
        self.writes.send(index=qpi, row=row_bits(self.rows[qpi]))
        self.sim.drain(self.writes)

    def packet(self, opcode, length=0, addr=None, client=0, qpi=None, owner=OWNER_REQUESTER, target=0, **fields):
        """Sends one record with random fields; returns (record, frame on the wire without its padding)."""
        rng, entry = self.rng, opcodes.OPCODES[opcode]
        qpi        = rng.randrange(N_QPS) if qpi is None else qpi
        record     = dict(owner=owner, marker=0, qpi=qpi, opcode=opcode, psn=rng.getrandbits(24), se=rng.getrandbits(1), ackreq=rng.getrandbits(1),
            length=length, target=target, addr=rng.getrandbits(60) if addr is None else addr, va=rng.getrandbits(64), rkey=rng.getrandbits(32),
            dma_length=rng.getrandbits(32), syndrome=rng.getrandbits(8), msn=rng.getrandbits(24), imm=rng.getrandbits(32))
        record.update(fields)
        self.clients[client].send(**record)
        row     = self.rows[qpi]
        payload = self.memory.read(record["addr"], length, target) if length else b""
        size    = 16 if row["ipv6"] else 4
        frame   = Packet(opcode=opcode, payload=payload, dst_mac=row["dst_mac"].to_bytes(6, "big"), src_mac=row["src_mac"].to_bytes(6, "big"),
            vlan=row["vlan_tci"] if row["vlan_en"] else None, ip_version=6 if row["ipv6"] else 4, tos=row["tclass"], ttl=row["hop_limit"],
            src_ip=row["src_ip"].to_bytes(size, "big"), dst_ip=row["dst_ip"].to_bytes(size, "big"), ip_id=self.ip_id, flow_label=row["flow_label"],
            sport=row["udp_sport"], pkey=row["pkey"], dest_qpn=row["dest_qpn"], becn=int(entry.transport == "CNP"), inv_rkey=record["imm"],
            **{n: record[n] for n in ("se", "ackreq", "psn", "va", "rkey", "dma_length", "syndrome", "msn", "imm")}).build()
        self.ip_id = (self.ip_id + 1) % 65536
        return record, frame

    def marker(self, client=0, **fields):
        record = dict(marker=1, owner=OWNER_ACK, qpi=self.rng.randrange(N_QPS), psn=self.rng.getrandbits(24), length=self.rng.randrange(100),
            opcode=self.rng.getrandbits(8))
        record.update(fields)
        self.clients[client].send(**record)
        return record

    def frames(self, count, sink=None, max_cycles=400_000):
        sink = sink or self.tx
        self.sim.until(sink, count, max_cycles=max_cycles)
        return [f for f in sink.recv_all()]

    def returned(self, count):
        self.sim.until(self.sent, count)
        return [(s.owner, s.marker, s.qpi, s.psn, s.err) for s in self.sent.recv_all()]


def padded(frame):
    return frame + bytes(max(0, opcodes.ETHERNET_MIN_BYTES - len(frame)))


def random_length(rng, opcode, most=4096):
    payload = opcodes.OPCODES[opcode].payload
    return 0 if payload == "NONE" else rng.choice([0 if payload[0] == "0" else 1, rng.randrange(1, 200), rng.randrange(1, most + 1)])
