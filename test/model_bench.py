# SPDX-License-Identifier: BSD-2-Clause
"""Bench of the reference model's tests: two endpoints, one QP pair, a wire that can lose and alter frames."""
from roce_soc import verbs as v
from test.model.endpoint import Endpoint
from test.model.packet import parse
from test.model.qp import STANDARD

ACCESS   = v.ACCESS_LOCAL_WRITE | v.ACCESS_REMOTE_WRITE | v.ACCESS_REMOTE_READ | v.ACCESS_REMOTE_ATOMIC
A_VA, B_VA, SIZE     = 0x1_0000_0000, 0x7f00_1234_5000, 1 << 16
A_KEY, B_KEY         = 0x1011, 0x2022
A_QPN, B_QPN         = 0x11, 0x12
PD, OTHER_PD         = 1, 2


class Pair:
    """Endpoints a and b with one connected QP each and a region of 64 KiB each, filled differently.

    Both get the QP attributes given; `a` and `b` hold attributes of one side alone.
    """
    def __init__(self, qp_type="RC", *, profile=STANDARD, a=None, b=None, **attributes):
        attributes = {"pmtu": 256, "access": ACCESS, "pd": PD, "timeout": 14, "sq_sig_all": True, **attributes}
        self.a = Endpoint("02:00:00:00:00:01", "10.0.0.1", profile=profile)
        self.b = Endpoint("02:00:00:00:00:02", "10.0.0.2", profile=profile)
        self.now, self.wire = 0, []
        for me, peer, va, key, seed in ((self.a, self.b, A_VA, A_KEY, 0), (self.b, self.a, B_VA, B_KEY, 128)):
            data = bytearray((i*7 + seed) & 255 for i in range(SIZE))
            me.region = me.reg_mr(va, SIZE, ACCESS, key=key, pd=PD, data=data)
        psn_a, psn_b = attributes.pop("sq_psn", 0x100), attributes.pop("rq_psn", 0x200)
        self.qa = self.a.create_qp(A_QPN, qp_type, dest_qpn=B_QPN, dst_mac=self.b.mac, dst_ip="10.0.0.2",
                                   sq_psn=psn_a, rq_psn=psn_b, **{**attributes, **(a or {})})
        self.qb = self.b.create_qp(B_QPN, qp_type, dest_qpn=A_QPN, dst_mac=self.a.mac, dst_ip="10.0.0.1",
                                   sq_psn=psn_b, rq_psn=psn_a, **{**attributes, **(b or {})})

    def send(self, opcode, length=64, wr_id=1, **fields):
        """Post a work request at a; remote address and keys default to the regions."""
        if opcode not in (v.WR_SEND, v.WR_SEND_WITH_IMM, v.WR_SEND_WITH_INV):
            fields = {"remote_va": B_VA, "rkey": B_KEY, **fields}
        self.a.post_send(A_QPN, wr_id, opcode, **{"va": A_VA, "length": length, "lkey": A_KEY, **fields})

    def receive(self, length=4096, wr_id=100, va=B_VA, lkey=B_KEY):
        """Post a receive at b."""
        self.b.post_recv(B_QPN, wr_id, va, length, lkey)

    def run(self, change=None, rounds=1000):
        """Carry frames until both sides are silent. change(packet, number) -> packet, list or None (lost)."""
        for _ in range(rounds):
            frames = [(self.b, f) for f in self.a.tx(self.now)] + [(self.a, f) for f in self.b.tx(self.now)]
            if not frames:
                return self
            for receiver, frame in frames:
                packet = parse(frame)
                self.wire.append(packet)
                new = change(packet, len(self.wire)) if change else packet
                for p in new if isinstance(new, (list, tuple)) else [new]:
                    if p is not None:
                        receiver.rx(p if isinstance(p, bytes) else p.build(), self.now)
        raise AssertionError("the two sides never come to rest")

    def let_pass(self, change=None):
        """Run, and let timers expire until none is left."""
        for _ in range(100):
            self.run(change)
            times = [t for t in (self.a.next_deadline(), self.b.next_deadline()) if t is not None]
            if not times:
                return self
            self.now = max(self.now, min(times))
            self.a.tick(self.now)
            self.b.tick(self.now)
        raise AssertionError("timers never end")

    def feed_b(self, **changes):
        """Give b a request packet made by hand; returns b's answers."""
        return self.feed(self.b, **changes)

    def feed(self, receiver, **changes):
        """Give a side a packet from the other made by hand (defaults: addresses of the pair)."""
        from test.model.packet import Packet
        sender = self.a if receiver is self.b else self.b
        qp     = self.qb if receiver is self.b else self.qa
        fields = {"dst_mac": receiver.mac, "src_mac": sender.mac, "src_ip": qp.dst_ip, "dst_ip": qp.src_ip,
                  "dest_qpn": qp.qpn, "sport": 0xc000, **changes}
        frame = fields.pop("frame", None) or Packet(**fields).build()
        receiver.rx(frame, self.now)
        return [parse(f) for f in receiver.tx(self.now)]
