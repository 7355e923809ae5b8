# SPDX-License-Identifier: BSD-2-Clause
"""The transfers: SEND, WRITE and READ each way, every byte around and in the destination checked."""
import random
import time
from dataclasses import asdict, dataclass, field

from test.interop.engine import Remote
from test.interop.vm import GUEST_IP

AREA            = 16384              # source area, then destination area, in each side's buffer.
BUFFER          = 2*AREA
GUARD           = 64                 # bytes around the data that must not change.
OPERATIONS      = ("SEND", "WRITE", "READ")
TIMES           = {"timeout": 18, "retry_cnt": 7, "rnr_retry": 7, "min_rnr_timer": 12}   # 18: 1.07 s.
WAIT_SECONDS    = 90
RESOLVE_SECONDS = 30


@dataclass
class Setting:
    """One QP pair: interface MTU of the guest, path MTU, sizes to move, how the first PSNs are chosen."""
    name     : str
    link_mtu : int
    pmtu     : int
    sizes    : tuple
    wrap     : bool = False

SETTINGS = (
    Setting("mtu1500", 1500, 1024, (0, 1, 64, 1023, 1024, 2048, 5000)),
    Setting("jumbo",   4200, 4096, (0, 1, 64, 4096, 5000, 12288), wrap=True),
)

@dataclass
class Result:
    """One transfer as the table shows it."""
    setting   : str
    direction : str
    operation : str
    length    : int
    errors    : list = field(default_factory=list)
    seconds   : float = 0.0

    @property
    def ok(self):
        """True where nothing was wrong."""
        return not self.errors

    def row(self):
        """The result as plain data."""
        return {**asdict(self), "ok": self.ok}


# Sides --------------------------------------------------------------------------------------------

class GuestSide:
    """The guest's QP and buffer."""
    name = "guest"

    def __init__(self, relay):
        self.relay = relay
        opened     = relay.call("open_qp", length=BUFFER)
        self.qpn, self.rkey, self.va = opened["qpn"], opened["rkey"], opened["va"]

    def write(self, offset, data):
        self.relay.call("write", qpn=self.qpn, offset=offset, data=data.hex())

    def read(self, offset, length):
        return bytes.fromhex(self.relay.call("read", qpn=self.qpn, offset=offset, length=length))

    def post_receive(self, wr_id, offset, length):
        self.relay.call("post_receive", qpn=self.qpn, wr_id=wr_id, offset=offset, length=length)

    def post_send(self, wr_id, operation, offset, length, remote_va, rkey):
        self.relay.call("post_send", qpn=self.qpn, wr_id=wr_id, opcode=operation, offset=offset, length=length,
                        remote_va=remote_va, rkey=rkey)

    def poll(self):
        return [(c["wr_id"], c["status"], c["opcode"], c["byte_len"]) for c in self.relay.call("poll", qpn=self.qpn)]

    def close(self):
        self.relay.call("close_qp", qpn=self.qpn)


class EngineSide:
    """The engine's QP and buffer."""
    name = "soc"

    def __init__(self, engine):
        self.engine, self.region = engine, engine.reg_mr(BUFFER)
        self.qpn, self.rkey, self.va = engine.create_qp(), self.region.rkey, self.region.va

    def write(self, offset, data):
        self.engine.write(self.va + offset, data)

    def read(self, offset, length):
        return self.engine.read(self.va + offset, length)

    def post_receive(self, wr_id, offset, length):
        self.engine.post_receive(self.qpn, wr_id, self.va + offset, length, self.region.lkey)

    def post_send(self, wr_id, operation, offset, length, remote_va, rkey):
        self.engine.post_send(self.qpn, wr_id, operation, self.va + offset, length, self.region.lkey, remote_va, rkey)

    def poll(self):
        return [(c.wr_id, c.status, c.opcode.removeprefix("RDMA_"), c.byte_len) for c in self.engine.poll(self.qpn)]

    def close(self):
        self.engine.destroy_qp(self.qpn)


# Exchange -----------------------------------------------------------------------------------------

class Exchange:
    """A connected QP pair of one Setting."""
    def __init__(self, relay, setting, seed):
        self.relay, self.setting = relay, setting
        self.random = random.Random(f"{seed}/{setting.name}")
        self.wr_id  = 0
        relay.call("set_mtu", mtu=setting.link_mtu)
        self.guest, self.soc = GuestSide(relay), EngineSide(relay.engine)
        self._connect()

    def _connect(self):
        engine, relay = self.relay.engine, self.relay
        found = relay.until(lambda: relay.call("resolve", ip=engine.ip), f"ARP reply of {engine.ip}", RESOLVE_SECONDS)
        if found != engine.mac:
            raise ValueError(f"ARP for {engine.ip} must give {engine.mac}, not {found}")
        guest_psn, soc_psn = (0xfffffe, 0xfffffd) if self.setting.wrap else (self.random.getrandbits(24) for _ in "ab")
        mac = relay.call("hello")["mac"]
        engine.connect(self.soc.qpn, Remote(qpn=self.guest.qpn, mac=mac, ip=GUEST_IP, sq_psn=soc_psn, rq_psn=guest_psn,
                                            pmtu=self.setting.pmtu, **TIMES))
        relay.call("connect", qpn=self.guest.qpn, remote_qpn=self.soc.qpn, remote_ip=engine.ip, local_ip=GUEST_IP,
                   sq_psn=guest_psn, rq_psn=soc_psn, pmtu=self.setting.pmtu, **TIMES)

    def transfer(self, initiator, operation, length):
        """Move `length` bytes once and check everything; the Result."""
        target      = self.soc if initiator is self.guest else self.guest
        source, destination = (target, initiator) if operation == "READ" else (initiator, target)
        result      = Result(self.setting.name, f"{initiator.name} -> {target.name}", operation, length)
        start       = time.monotonic()
        take, put   = self.random.randrange(GUARD), AREA + GUARD + self.random.randrange(GUARD)
        data        = self.random.randbytes(length)
        background  = self.random.randbytes(length + 4*GUARD)
        source.write(take, data)
        destination.write(AREA, background)
        self.wr_id += 2
        expected    = {initiator: [(self.wr_id, "SUCCESS", operation, length)], target: []}
        if operation == "SEND":
            target.post_receive(self.wr_id + 1, put, length)
            expected[target] = [(self.wr_id + 1, "SUCCESS", "RECV", length)]
            initiator.post_send(self.wr_id, operation, take, length, 0, 0)
        else:
            local, remote = (put, take) if operation == "READ" else (take, put)
            initiator.post_send(self.wr_id, operation, local, length, target.va + remote, target.rkey)
        for side in (self.soc, self.guest):
            self._completions(side, expected[side], operation, result)
        wanted = bytearray(background)
        wanted[put - AREA:put - AREA + length] = data
        got = destination.read(AREA, len(wanted))
        if got != wanted:
            wrong = [n for n in range(len(wanted)) if got[n] != wanted[n]]
            result.errors.append(f"{destination.name}: {len(wrong)} bytes wrong, "
                                 f"first at {wrong[0] - (put - AREA)} of {length}")
        result.seconds = time.monotonic() - start
        return result

    def _completions(self, side, expected, operation, result):
        """Wait for a side's completions and compare; verbs define no byte_len for sends and WRITEs."""
        found = []
        def poll():
            found.extend(side.poll())
            return len(found) >= len(expected)
        self.relay.until(poll, f"{side.name}: completion of {operation} {result.length} B", WAIT_SECONDS)
        for got, want in zip(found, expected):
            size = 4 if want[2] in ("RECV", "READ") else 3
            if got[:size] != want[:size]:
                result.errors.append(f"{side.name}: completion {got}, expected {want}")
        if len(found) > len(expected):
            result.errors.append(f"{side.name}: {len(found)} completions, expected {len(expected)}")

    def run(self, say):
        """All transfers of the setting; [Result]. Ends at the first failure, as the QP may be in ERR."""
        results = []
        for operation in OPERATIONS:
            for initiator in (self.guest, self.soc):
                for length in self.setting.sizes:
                    results.append(self.transfer(initiator, operation, length))
                    say(results[-1])
                    if not results[-1].ok:
                        return results
        return results

    def close(self):
        """Let the last acknowledges pass, destroy both QPs."""
        self.relay.settle()
        self.guest.close()
        self.soc.close()
