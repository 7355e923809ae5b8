# SPDX-License-Identifier: BSD-2-Clause
"""Transports of the control library: a SoC's bus over litex_server or over the simulation's socket.

Registers, memories and constants are named as in csr.json, which LiteX writes with every build. No gateware import.
"""
import json
import socket
import struct
from abc import abstractmethod
from collections.abc import Sequence
from os import PathLike

from roce_soc import abi
from software.control.transport import Bus

BURST = 255     # words of a UARTBone command.


class RegisterMap:
    """Names of csr.json: `registers` {name: (address, 32-bit words)}, `memories` {name: (address, bytes)}, constants, bases."""
    def __init__(self, path: str | PathLike[str]) -> None:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        self.registers: dict[str, tuple[int, int]] = {n: (r["addr"], r["size"]) for n, r in data["csr_registers"].items()}
        self.memories : dict[str, tuple[int, int]] = {n: (m["base"], m["size"]) for n, m in data["memories"].items()}
        self.constants: dict[str, int | str | None] = data["constants"]
        self.bases    : dict[str, int] = data.get("csr_bases", {})

    def register(self, name: str) -> tuple[int, int]:
        """(address, 32-bit words); KeyError names what is near."""
        try:
            return self.registers[name]
        except KeyError:
            near = [n for n in self.registers if name.split("_")[-1] in n][:8]
            raise KeyError(f"no register {name!r} in csr.json; there are {near}") from None


class WordBus(Bus):
    """Registers by name and memory by byte on top of word accesses.

    Memory addresses are the engine's: offset 0 is the first byte of region `roce_memory`, of target n `roce_memory<n>`.
    """
    def __init__(self, csr_json: RegisterMap | str | PathLike[str]) -> None:
        self.map = csr_json if isinstance(csr_json, RegisterMap) else RegisterMap(csr_json)

    # Transport: 32-bit words at a byte address of the bus -----------------------------------------

    @abstractmethod
    def read_words(self, address: int, count: int) -> list[int]:
        """`count` words from a byte address on."""

    @abstractmethod
    def write_words(self, address: int, words: Sequence[int]) -> None:
        """Writes words from a byte address on."""

    # Registers ------------------------------------------------------------------------------------

    def read_register(self, name: str) -> int:
        """Value of a register; the most significant word comes first."""
        addr, words = self.map.register(name)
        value = 0
        for word in self.read_words(addr, words):
            value = value << 32 | word
        return value

    def write_register(self, name: str, value: int) -> None:
        """Writes a register of any width."""
        addr, words = self.map.register(name)
        self.write_words(addr, [(value >> 32*(words - 1 - i)) & 0xffffffff for i in range(words)])

    # Memory ---------------------------------------------------------------------------------------

    def region(self, name: str) -> int:
        """Bus address of a region's first byte."""
        try:
            return self.map.memories[name][0]
        except KeyError:
            raise KeyError(f"no memory {name!r} in csr.json; there are {list(self.map.memories)}") from None

    def read_bytes(self, address: int, length: int) -> bytes:
        """Bytes at a bus address of any alignment."""
        first = address & ~3
        words = self.read_words(first, -(-(address + length - first)//4)) if length else []
        data  = b"".join(word.to_bytes(4, "little") for word in words)
        return data[address - first:address - first + length]

    def write_bytes(self, address: int, data: bytes) -> None:
        """Writes bytes at a bus address of any alignment; words that are touched in part are read first."""
        data = bytes(data)
        head, tail = address & 3, -(address + len(data)) & 3
        if not data:
            return
        first = address - head
        if head:
            data = self.read_words(first, 1)[0].to_bytes(4, "little")[:head] + data
        if tail:
            data += self.read_words(first + len(data) + tail - 4, 1)[0].to_bytes(4, "little")[4 - tail:]
        self.write_words(first, [int.from_bytes(data[i:i + 4], "little") for i in range(0, len(data), 4)])

    def read_memory(self, addr: int, length: int, target: int = 0) -> bytes:
        return self.read_bytes(self.region(f"roce_memory{target or ''}") + addr, length)

    def write_memory(self, addr: int, data: bytes, target: int = 0) -> None:
        self.write_bytes(self.region(f"roce_memory{target or ''}") + addr, data)

    def memory_size(self, target: int) -> int | None:
        return self.map.memories.get(f"roce_memory{target or ''}", (None, None))[1]

    def flush(self) -> None:
        """A read behind the writes: all of a client go the same way."""
        self.read_words(self.region("roce_memory"), 1)

    def doorbell(self, page: int, kind: int, queue: int, index: int) -> None:
        self.write_words(self.region("roce_doorbell") + page*abi.DOORBELL_PAGE_BYTES + kind, [queue << 16 | index])


class SocketBus(WordBus):
    """The simulation's bus socket (sim/roce_sim.py --bus-port): UARTBone's bytes over TCP, many commands on the way.

    timeout : seconds until a silent simulation is given up (TimeoutError).

    Raises ConnectionError when the simulation goes away.
    """
    WINDOW = 64     # read commands sent ahead of their answers.

    def __init__(self, host: str, port: int, csr_json: RegisterMap | str | PathLike[str], timeout: float = 60) -> None:
        WordBus.__init__(self, csr_json)
        self.socket = socket.create_connection((host, port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        """Ends the connection."""
        self.socket.close()

    def _receive(self, length: int) -> bytes:
        parts = []
        while length:
            part = self.socket.recv(min(length, 1 << 16))
            if not part:
                raise ConnectionError("the simulation closed the bus")
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def read_words(self, address: int, count: int) -> list[int]:
        """32-bit words from a byte address on."""
        out, bursts, sent = b"", [(i, min(BURST, count - i)) for i in range(0, count, BURST)], 0
        for n, (_, words) in enumerate(bursts):
            ahead = b""
            while sent < len(bursts) and sent < n + self.WINDOW:
                start, size = bursts[sent]
                ahead += bytes([2, size]) + ((address >> 2) + start).to_bytes(4, "big")
                sent  += 1
            if ahead:
                self.socket.sendall(ahead)
            out += self._receive(4*words)
        return [int.from_bytes(out[i:i + 4], "big") for i in range(0, len(out), 4)]

    def write_words(self, address: int, words: Sequence[int]) -> None:
        """Writes words; returns when they are sent (later commands of this client come after them)."""
        out = []
        for i in range(0, len(words), BURST):
            part = words[i:i + BURST]
            out.append(bytes([1, len(part)]) + struct.pack(f">{len(part) + 1}I", (address >> 2) + i, *part))
        self.socket.sendall(b"".join(out))


class RemoteBus(WordBus):
    """A board or simulation behind litex_server (UARTBone, Etherbone, PCIe): Etherbone records over TCP.

    timeout : seconds until a silent server is given up (TimeoutError).

    Raises ConnectionError when the server goes away.
    """
    CHUNK   = 64                                                # words of a record.
    HEADER  = bytes([0x4e, 0x6f, 0x10, 0x44, 0, 0, 0, 0])       # magic, version 1, 32-bit addresses and data.

    def __init__(self, csr_json: RegisterMap | str | PathLike[str], host: str = "localhost", port: int = 1234,
                 timeout: float = 30) -> None:
        WordBus.__init__(self, csr_json)
        self.socket = socket.create_connection((host, port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The server says what it drives; PCIe bridges show the registers from address 0 on.
        self.base = -self.region("csr") if b"CommPCIe" in self.socket.recv(128) else 0

    def close(self) -> None:
        """Ends the connection."""
        self.socket.close()

    def _receive(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            part = self.socket.recv(length - len(data))
            if not part:
                raise ConnectionError("litex_server closed the connection")
            data += part
        return data

    def read_words(self, address: int, count: int) -> list[int]:
        """32-bit words from a byte address on."""
        out: list[int] = []
        for i in range(0, count, self.CHUNK):
            addresses = [self.base + address + 4*n for n in range(i, min(count, i + self.CHUNK))]
            record = bytes([0, 15, 0, len(addresses)]) + struct.pack(f">{len(addresses) + 1}I", 0, *addresses)
            self.socket.sendall(self.HEADER + record)
            # Header, record with one write: return address, then the words.
            data = self._receive(len(self.HEADER) + 8 + 4*len(addresses))[len(self.HEADER) + 8:]
            out += struct.unpack(f">{len(addresses)}I", data)
        return out

    def write_words(self, address: int, words: Sequence[int]) -> None:
        """Writes words from a byte address on."""
        for i in range(0, len(words), self.CHUNK):
            part = words[i:i + self.CHUNK]
            record = bytes([0, 15, len(part), 0]) + struct.pack(f">{len(part) + 1}I", self.base + address + 4*i, *part)
            self.socket.sendall(self.HEADER + record)
