# SPDX-License-Identifier: BSD-2-Clause
"""The built-in peer: the reference model as the station at the other end of the simulated wire.

    peer = Peer(folder/"peer.sock", folder/"soc.sock")      # sockets: own, the SoC's
    with peer: peer.endpoint ... under peer.lock
"""
import os
import socket
import struct
import threading
import time
from collections import deque
from contextlib import suppress
from os import PathLike
from typing import Any, Self

from test.model.endpoint import Endpoint

PEER_MAC, PEER_IP = "02:00:00:00:00:02", "192.168.1.1"
ACK_TIMEOUT       = 20       # code: 4.3 s of this machine's time: the simulated port is slow.


def arp(frame: bytes, mac: bytes, ip: bytes) -> bytes | None:
    """The answer of (mac, ip) to an ARP request in `frame`, or None."""
    if len(frame) < 42 or frame[12:22] != bytes.fromhex("08060001080006040001") or frame[38:42] != ip:
        return None
    asker = frame[22:32]
    return (asker[:6] + mac + struct.pack(">HHHBBH", 0x0806, 1, 0x0800, 6, 4, 2) + mac + ip + asker).ljust(60, b"\0")


class Peer:
    """An Endpoint of test/model on a pair of unix datagram sockets, run by a thread.

    Attributes: `endpoint`, to be touched with `lock` held; `sent`, `received` (frames); `error` (of the thread).
    """
    def __init__(self, own: str | PathLike[str], other: str | PathLike[str], *, mac: str = PEER_MAC, ip: str = PEER_IP,
                 **profile: Any) -> None:
        self.endpoint = Endpoint(mac, ip, **profile)
        self.lock     = threading.RLock()
        self.other    = str(other)
        self.backlog: deque[bytes] = deque()
        self.sent = self.received = 0
        self.error: Exception | None = None
        self.socket   = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with suppress(FileNotFoundError):
            os.unlink(own)
        self.socket.bind(str(own))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        self.socket.settimeout(0.002)
        self.ending   = threading.Event()
        self.thread   = threading.Thread(target=self._run, daemon=True)

    def start(self) -> Self:
        """Begins to listen."""
        self.thread.start()
        return self

    def close(self) -> None:
        """Ends the thread."""
        self.ending.set()
        self.thread.join(5)
        self.socket.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self):
        try:
            while not self.ending.is_set():
                self._receive()
                self._answer()
        except Exception as error:     # told by check()
            self.error = error

    def check(self) -> None:
        """Raises what went wrong in the thread."""
        if self.error is not None:
            raise self.error

    def _receive(self):
        # A backlog is offered again at once, new frames are taken as they come.
        self.socket.settimeout(0.0002 if self.backlog else 0.002)
        with suppress(TimeoutError, BlockingIOError):
            for _ in range(32):
                frame = self.socket.recv(1 << 16)
                self.received += 1
                with self.lock:
                    if not self.endpoint.rx(frame, time.monotonic_ns()):
                        answer = arp(frame, self.endpoint.mac, self.endpoint.gids[0])
                        if answer:
                            self.backlog.append(answer)
                self.socket.setblocking(False)

    def _answer(self):
        now = time.monotonic_ns()
        with self.lock:
            self.endpoint.tick(now)
            self.backlog.extend(self.endpoint.tx(now))
        self.socket.setblocking(False)
        while self.backlog:
            try:
                self.socket.sendto(self.backlog[0], self.other)
            except (BlockingIOError, ConnectionRefusedError, FileNotFoundError):
                break
            self.sent += 1
            self.backlog.popleft()
