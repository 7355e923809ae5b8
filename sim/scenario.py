# SPDX-License-Identifier: BSD-2-Clause
"""A connected pair: the simulated SoC with its firmware, and the reference model at the other end of the wire.

    with Scenario(folder) as pair:
        pair.bring_up(link_failures=1)
        pair.connect()
        row = pair.transfer("WRITE", "soc", 4096)     # checks every byte; raises Mismatch
"""
import random
import time
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Self

from roce_soc import abi, firmware, opcodes, verbs
from roce_soc.errors import ERRORS
from roce_soc.soc import DEFAULT_IP, DEFAULT_MAC
from sim.peer import ACK_TIMEOUT, PEER_IP, PEER_MAC, Peer
from sim.soc import CLOCK_HZ, Simulation, build_soc
from software.control.firmware import Event, FirmwareRoCE
from software.control.monitor import Monitor
from software.control.roce import QP
from test.model.packet import ip, mac

REGION      = 1 << 20                  # bytes of each buffer; the longest message.
RING_MEMORY = (0, 1 << 18)
OUTBOX, INBOX = 1 << 20, 2 << 20       # where the SoC's buffers lie.
SOC_VA, PEER_VA = 0x7f00_0000_0000, 0x5500_0000_0000
ACCESS      = verbs.ACCESS_LOCAL_WRITE | verbs.ACCESS_REMOTE_WRITE | verbs.ACCESS_REMOTE_READ
PEER_QPN    = 0x000111
OPERATIONS  = ("SEND", "WRITE", "READ")
SIDES       = ("soc", "peer")
WORK        = {"SEND": verbs.WR_SEND, "WRITE": verbs.WR_RDMA_WRITE, "READ": verbs.WR_RDMA_READ}
SOC_MAC     = ":".join(f"{b:02x}" for b in DEFAULT_MAC.to_bytes(6, "big"))


class Mismatch(AssertionError):
    """What should have come did not: a completion, or bytes that differ."""


def number(data: bytes) -> int:
    """Bytes of the wire as a number."""
    return int.from_bytes(data, "big")


class Scenario:
    """SoC and peer, one queue pair each.

    Parameters
    ----------
    folder : Path
        For sockets, logs, the capture; its path must be short.
    seed : int
        Data, PSNs, faults, RAM at power-up.
    faults : dict
        loss, duplicate, reorder, corrupt (probabilities), delay (clocks) of module roce_wire.
    tick_cycles : int
        Clocks of the engine's time base; fewer make its time-outs shorter.
    parameters : of SimSoC.
    """
    def __init__(self, folder: str | PathLike[str], *, seed: int = 1, faults: Mapping[str, float] | None = None,
                 tick_cycles: int = 1, record: str | PathLike[str] | None = None,
                 parameters: Mapping[str, Any] | None = None) -> None:
        self.folder, self.seed, self.tick_cycles = Path(folder), seed, tick_cycles
        self.folder.mkdir(parents=True, exist_ok=True)
        self.random = random.Random(seed)
        wire = {"mode": "unix", "local": str(self.folder/"soc.sock"), "remote": str(self.folder/"peer.sock"), "seed": seed,
                **(faults or {})}
        if record:
            wire["record"] = str(record)
        self.build      = build_soc(**(parameters or {}))
        self.peer       = Peer(self.folder/"peer.sock", self.folder/"soc.sock")
        self.simulation = Simulation(self.build, wire=wire, folder=self.folder/"run", seed=seed, hold=True)
        self.outbox     = b""
        self.number     = 0

    def __enter__(self) -> Self:
        self.peer.start()
        self.simulation.start()
        self.bus = self.simulation.bus
        return self

    def __exit__(self, *_: object) -> None:
        self.figures = self.simulation.stop()
        self.peer.close()

    # Bring-up -------------------------------------------------------------------------------------

    def bring_up(self, link_failures: int = 0, seconds: float = 120) -> tuple[dict[str, Any], list[Event]]:
        """Waits for the firmware's link; returns (status, log). So many attempts fail at first."""
        if link_failures:
            # The first attempt's own reset takes one off.
            self.bus.write_register("phy_fault_failures", link_failures + 1)
        self.bus.write_register("roce_time_tick_cycles", self.tick_cycles)
        magic = self.bus.region("control_ram")
        self.simulation.wait(lambda: self.bus.read_words(magic, 1)[0] == firmware.FIRMWARE_MAGIC, seconds)
        self.roce     = FirmwareRoCE(self.bus, ring_memory=RING_MEMORY)
        self.firmware = self.roce.firmware
        status = self.firmware.wait_link(seconds)
        return status, self.firmware.log()

    def connect(self, pmtu: int = 1024) -> QP:
        """Buffers on both sides, a queue pair on each, to RTS with a path MTU of `pmtu` bytes; the SoC's through the firmware."""
        self.soc_out = self.roce.reg_mr(SOC_VA, REGION, addr=OUTBOX, access=ACCESS, variant=0x5a)
        self.soc_in  = self.roce.reg_mr(SOC_VA + REGION, REGION, addr=INBOX, access=ACCESS, variant=0xa5)
        self.cq = self.roce.create_cq(6)
        self.qp = self.roce.create_qp(self.cq, self.cq)
        with self.peer.lock:
            self.peer_out = self.peer.endpoint.reg_mr(PEER_VA, REGION, ACCESS)
            self.peer_in  = self.peer.endpoint.reg_mr(PEER_VA + REGION, REGION, ACCESS)
            self.peer_out.data[:] = self.random.randbytes(REGION)
        self._to_rts(pmtu)
        return self.qp

    def _to_rts(self, pmtu: int, timeout: int = 14, retry_cnt: int = 7) -> None:
        psns = self.random.randrange(1 << 24), self.random.randrange(1 << 24)
        with self.peer.lock:
            self.peer.endpoint.create_qp(PEER_QPN, "RC", dest_qpn=self.qp.qpn, pmtu=pmtu, sq_psn=psns[1], rq_psn=psns[0],
                timeout=ACK_TIMEOUT, access=ACCESS, dst_mac=SOC_MAC, dst_ip=DEFAULT_IP)
        self.qp.modify(abi.QP_INIT, access=ACCESS, src_mac=DEFAULT_MAC, src_ip=number(ip(DEFAULT_IP)), pkey=0xffff)
        self.qp.modify(abi.QP_RTR, dst_mac=number(mac(PEER_MAC)), dst_ip=number(ip(PEER_IP)), dest_qpn=PEER_QPN,
            pmtu=opcodes.PMTU_CODES[pmtu], rq_psn=psns[1])
        self.qp.modify(abi.QP_RTS, sq_psn=psns[0], timeout=timeout, retry_cnt=retry_cnt, rnr_retry=7)

    def reconnect(self, pmtu: int = 1024, **limits: int) -> None:
        """Both queue pairs through RESET to RTS with new PSNs; limits: timeout (code), retry_cnt of the SoC's."""
        self.qp.modify(abi.QP_RESET)
        with self.peer.lock:
            self.peer.endpoint.destroy_qp(PEER_QPN)
            self.peer.endpoint.poll_cq()
        self.cq.poll()
        self._to_rts(pmtu, **limits)

    # Life cycle -----------------------------------------------------------------------------------

    def now(self) -> int:
        """Simulated time in ns since the SoC's reset."""
        self.bus.write_register("timer0_uptime_latch", 1)
        return self.bus.read_register("timer0_uptime_cycles")*10**9//CLOCK_HZ

    def lose_link(self, seconds: float = 120) -> list[Event]:
        """The receiver loses its signal until it is reset; waits for the firmware to regain the link. Returns its log of that."""
        before = self.firmware.status()
        self.bus.write_register("phy_fault_lose_cycles", 0xffffffff)
        self.simulation.wait(lambda: self.firmware.status()["link_ups"] > before["link_ups"], seconds)
        return self.firmware.log(before["log_count"])

    def remake(self, pmtu: int = 1024) -> QP:
        """Destroys queue pair and regions on both sides and makes them again: next generation of the QPN, other keys and PSNs."""
        old = self.qp
        old.modify(abi.QP_RESET)
        self.cq.poll()
        for mr in (self.soc_out, self.soc_in):
            mr.invalidate()
        with self.peer.lock:
            self.peer.endpoint.destroy_qp(PEER_QPN)
            self.peer.endpoint.poll_cq()
        self.soc_out, self.soc_in = [self.roce.reg_mr(mr.va, REGION, addr=mr.addr, access=ACCESS, variant=mr.variant + 1 & 0xff, index=mr.index)
            for mr in (self.soc_out, self.soc_in)]
        self.qp = self.roce.create_qp(self.cq, self.cq, index=old.index, qpn=old.qpn + self.roce.n_qps)
        self._to_rts(pmtu)
        return self.qp

    def fill(self) -> None:
        """Random bytes for the SoC's outbox, brought there by the peer's WRITE and read back over the bus."""
        data = self.random.randbytes(REGION)
        with self.peer.lock:
            kept, self.peer_out.data[:] = bytes(self.peer_out.data), data
            self.peer.endpoint.post_send(PEER_QPN, 0, verbs.WR_RDMA_WRITE, va=PEER_VA, length=REGION, lkey=self.peer_out.key,
                remote_va=SOC_VA, rkey=self.soc_out.key)
        self.completion("peer", verbs.WC_RDMA_WRITE, 0)
        with self.peer.lock:
            self.peer_out.data[:] = kept
        self.outbox = self.bus.read_memory(OUTBOX, REGION)
        if self.outbox != data:
            raise Mismatch("the SoC's outbox differs from what the peer wrote")

    def fill_some(self, length: int) -> None:
        """Random bytes for the start of the SoC's outbox over the bus, for messages of up to `length` less 4096 bytes."""
        self.outbox = self.random.randbytes(length) + bytes(REGION - length)
        self.bus.write_memory(OUTBOX, self.outbox[:length])
        self.bus.read_memory(OUTBOX, 4)

    # Completions ----------------------------------------------------------------------------------

    def poll(self, side: str) -> list[tuple[int, int, int, int]]:
        """[(wr_id, status, opcode, byte_len)] of a side."""
        self.peer.check()
        if side == "soc":
            return [(c["wr_id"], c["status"], c["opcode"], c["byte_len"]) for c in self.cq.poll()]
        with self.peer.lock:
            return [(c.wr_id, c.status, c.opcode, c.byte_len) for c in self.peer.endpoint.poll_cq()]

    def completion(self, side: str, opcode: int, wr_id: int, length: int | None = None, seconds: float = 180) -> None:
        """Waits for a side's next completion and checks it."""
        try:
            got = self.simulation.wait(lambda: self.poll(side), seconds, every=0.002)
        except TimeoutError:
            raise Mismatch(f"{side}: no completion within {seconds} s, expected {verbs.WC_OPCODE_NAMES[opcode]}; "
                           f"{self.trouble()}") from None
        if len(got) != 1 or got[0][:3] != (wr_id, verbs.WC_SUCCESS, opcode) or (length is not None and got[0][3] != length):
            text = [f"{verbs.WC_OPCODE_NAMES.get(o, o)} {verbs.WC_STATUS_NAMES[s]} wr_id {w} {n} B" for w, s, o, n in got]
            raise Mismatch(f"{side}: {text}, expected {verbs.WC_OPCODE_NAMES[opcode]} SUCCESS wr_id {wr_id} {length} B; "
                           f"{self.trouble()}")

    def trouble(self) -> str:
        """Counters of refusals on both sides, for messages."""
        soc = {name: self.counter(row.index) for name, row in ERRORS.items()}
        return f"soc refused {({n: v for n, v in soc.items() if v})}, peer refused {dict(self.peer.endpoint.counters)}"

    def counter(self, index: int) -> int:
        """Counter of the engine's monitor: row of errors.py, or TRAFFIC_BASE + number of a traffic counter."""
        return Monitor(self.bus).counter(index)

    # Transfers ------------------------------------------------------------------------------------

    def transfer(self, operation: str, side: str, length: int) -> dict[str, Any]:
        """One message of `length` bytes asked for by `side`; every byte of its target is checked. Returns a row for the table."""
        began = time.monotonic()
        self.number += 1
        wr_id = self.number
        room  = REGION - length
        start, target = (self.random.randrange(min(room, 4096) + 1) for _ in range(2))
        {"soc": self._soc_asks, "peer": self._peer_asks}[side](operation, wr_id, start, target, length)
        return {"operation": operation, "from": side, "bytes": length, "offsets": (start % 64, target % 64),
                "seconds": time.monotonic() - began}

    def _soc_asks(self, operation, wr_id, start, target, length):
        peer, qp, endpoint = self.peer, self.qp, self.peer.endpoint
        with peer.lock:
            self.peer_in.data[:] = bytes(REGION)
            if operation == "SEND":
                endpoint.post_recv(PEER_QPN, wr_id, self.peer_in.va + target, length, self.peer_in.key)
        if operation == "READ":
            self._clear_inbox(target, length)
            qp.post_send(WORK[operation], self.soc_in, va=self.soc_in.va + target, length=length, wr_id=wr_id,
                remote_va=PEER_VA + start, rkey=self.peer_out.key)
        else:
            qp.post_send(WORK[operation], self.soc_out, va=SOC_VA + start, length=length, wr_id=wr_id,
                remote_va=self.peer_in.va + target, rkey=self.peer_in.key)
        if operation == "SEND":
            self.completion("peer", verbs.WC_RECV, wr_id, length)
        self.completion("soc", verbs.WC_OF_WR[WORK[operation]], wr_id)
        if operation == "READ":
            self._check_inbox(operation, bytes(self.peer_out.data[start:start + length]), target)
        else:
            with peer.lock:
                want = self._around(self.outbox[start:start + length], target)
                self._compare(f"{operation} soc -> peer", bytes(self.peer_in.data), want)

    def _peer_asks(self, operation, wr_id, start, target, length):
        peer, endpoint = self.peer, self.peer.endpoint
        if operation == "SEND":
            self._clear_inbox(target, length)
            self.qp.post_recv(self.soc_in, va=self.soc_in.va + target, length=length, wr_id=wr_id)
        elif operation == "WRITE":
            self._clear_inbox(target, length)
        with peer.lock:
            self.peer_in.data[:] = bytes(REGION)
            if operation == "READ":
                endpoint.post_send(PEER_QPN, wr_id, WORK[operation], va=self.peer_in.va + target, length=length,
                    lkey=self.peer_in.key, remote_va=SOC_VA + start, rkey=self.soc_out.key)
            else:
                endpoint.post_send(PEER_QPN, wr_id, WORK[operation], va=PEER_VA + start, length=length, lkey=self.peer_out.key,
                    remote_va=self.soc_in.va + target, rkey=self.soc_in.key)
        if operation == "SEND":
            self.completion("soc", verbs.WC_RECV, wr_id, length)
        self.completion("peer", verbs.WC_OF_WR[WORK[operation]], wr_id)
        if operation == "READ":
            with peer.lock:
                want = self._around(self.outbox[start:start + length], target)
                self._compare("READ peer <- soc", bytes(self.peer_in.data), want)
        else:
            self._check_inbox(operation, bytes(self.peer_out.data[start:start + length]), target)

    @staticmethod
    def _around(data, target):
        return bytes(target) + data + bytes(REGION - target - len(data))

    EDGE = 64      # bytes beside a target that must stay as they were.

    def _window(self, target, length):
        return max(0, target - self.EDGE), min(REGION, target + length + self.EDGE)

    def _clear_inbox(self, target, length):
        first, last = self._window(target, length)
        self.bus.write_memory(INBOX + first, bytes(last - first))
        # A read says that the writes before it are done.
        self.bus.read_memory(INBOX, 4)

    def _check_inbox(self, operation, data, target):
        first, last = self._window(target, len(data))
        want = self._around(data, target)[first:last]
        self._compare(f"{operation} into the SoC", self.bus.read_memory(INBOX + first, last - first), want)

    @staticmethod
    def _compare(what, got, want):
        if got != want:
            at = next(i for i, (a, b) in enumerate(zip(got, want)) if a != b)
            raise Mismatch(f"{what}: byte {at} is {got[at]:#04x}, must be {want[at]:#04x}")
