# SPDX-License-Identifier: BSD-2-Clause
"""What the verbs layer needs of whatever leads to an engine: registers by name, memory by byte address, doorbells.

No gateware import.
"""
from abc import ABC, abstractmethod

from roce_soc import abi


class Bus(ABC):
    """What RoCE needs of a transport; registers, memory and doorbell are each transport's own.

    Transports that reach memories beyond target 0 take their number as a last argument of read_memory and write_memory.
    """
    @abstractmethod
    def read_register(self, name: str) -> int:
        """A register by its csr.json name."""

    @abstractmethod
    def write_register(self, name: str, value: int) -> None:
        """Writes a register by its csr.json name."""

    @abstractmethod
    def read_memory(self, addr: int, length: int) -> bytes:
        """`length` bytes of the engine's memory target 0 from byte address `addr` on."""

    @abstractmethod
    def write_memory(self, addr: int, data: bytes) -> None:
        """Puts bytes into the engine's memory target 0."""

    @abstractmethod
    def doorbell(self, page: int, kind: int, queue: int, index: int) -> None:
        """A doorbell write (`kind`: abi.DOORBELL_*) that acts after all earlier write_memory."""

    def push(self, page: int, slot: bytes, queue: int, index: int) -> None:
        """A send work request and its inline data through the doorbell window, as words."""
        for at in range(0, len(slot), 4):
            word = int.from_bytes(slot[at:at + 4], "little")
            self.doorbell(page, abi.DOORBELL_PUSH + at, word >> 16, word & 0xffff)
        self.doorbell(page, abi.DOORBELL_SQ_PUSH, queue, index)

    def flush(self) -> None:
        """Returns when every earlier write has been done; nothing to do where they are when they return.

        Needed before a peer is told that memory or a receive is ready: its packets may be faster than the bus.
        """

    def memory_size(self, target: int) -> int | None:
        """Bytes of a memory target; None where nobody knows: the engine judges."""
        return None

    def idle(self) -> None:
        """Called while polling; lets a simulation run on, nothing to do where time passes by itself."""
