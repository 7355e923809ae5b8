# SPDX-License-Identifier: BSD-2-Clause
"""The firmware as seen from a host or debugger: status, link, event log, queue pairs through its request block.

Everything lies in region `control_ram`; layouts: roce_soc/firmware.py. No gateware import.
"""
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from roce_soc import abi, firmware, verbs
from software.control.bus import WordBus
from software.control.roce import RoCE


class Event(NamedTuple):
    """A line of the event log: milliseconds since boot, name of LOG_EVENTS, its two values."""
    ms   : int
    name : str
    a    : int
    b    : int



class FirmwareError(RuntimeError):
    """A request was refused; `code` is the FW_* number, `field`, `value` and `limit` say what for."""
    def __init__(self, opcode: int, code: int, field: int, value: int, limit: int, engine: int) -> None:
        text = firmware.FW_DOC[code] if code < len(firmware.FW_DOC) else f"code {code}"
        if code == firmware.FW_BAD_VALUE:
            text = f"{firmware.QP_FIELDS[field].name} {value:#x} breaks its limit {limit:#x}"
        elif code in (firmware.FW_MISSING, firmware.FW_REFUSED):
            text += ": " + " ".join(name for name, bit in verbs.ATTR_BITS.items() if value >> bit & 1)
        elif code == firmware.FW_BAD_TRANSITION:
            text = f"no transition {verbs.QP_STATES[value >> 8]} -> {verbs.QP_STATES[value & 0xff]}"
        elif code == firmware.FW_ENGINE:
            text += f": code {engine & 0xff}, argument word {engine >> 8}"
        else:
            text = text.format(value=value, limit=limit)
        super().__init__(f"request {opcode} refused: {text}")
        self.opcode, self.code, self.field, self.value, self.limit = opcode, code, field, value, limit


class Firmware:
    """Status, log and requests. One user at a time.

    Parameters
    ----------
    bus : WordBus
    timeout : float
        Seconds that a request may take.
    """
    def __init__(self, bus: WordBus, timeout: float = 60) -> None:
        self.bus, self.timeout = bus, timeout
        self.base = bus.region("control_ram")

    # Status and log -------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """{name: value} of the status block; link_state and link_reason as names."""
        words  = self.bus.read_words(self.base + firmware.STATUS_OFFSET, len(firmware.STATUS))
        status: dict[str, Any] = {word.name: value for word, value in zip(firmware.STATUS, words)}
        status["running"] = status["magic"] == firmware.FIRMWARE_MAGIC
        if status["running"]:
            status["link_state"]  = firmware.LINK_STATES[status["link_state"]][0]
            status["link_reason"] = firmware.LINK_REASONS[status["link_reason"]][0]
        return status

    def log(self, first: int = 0) -> list[Event]:
        """Events still in the ring, oldest first, from number `first` on."""
        count = self.status()["log_count"]
        out   = []
        for n in range(max(first, count - firmware.LOG_LINES), count):
            at = self.base + firmware.LOG_OFFSET + firmware.LOG_LINE_BYTES*(n % firmware.LOG_LINES)
            ms, code, a, b = self.bus.read_words(at, 4)
            out.append(Event(ms, firmware.LOG_EVENTS[code][0] if code < len(firmware.LOG_EVENTS) else str(code), a, b))
        return out

    def wait_link(self, seconds: float = 60, state: str = "UP") -> dict[str, Any]:
        """Returns the status once the link has the state. Raises TimeoutError with the reason."""
        end = time.monotonic() + seconds
        while True:
            status = self.status()
            if status["running"] and status["link_state"] == state:
                return status
            if time.monotonic() > end:
                raise TimeoutError(f"link is {status['link_state']} ({status['link_reason']}) after {seconds} s, not {state}")
            self.bus.idle()
            time.sleep(0.02)

    # Requests -------------------------------------------------------------------------------------

    def request(self, opcode: int, args: Sequence[int] = (), answer: int = 0) -> list[int]:
        """Has the firmware serve a request; returns `answer` argument words. Raises FirmwareError, TimeoutError."""
        if len(args) > firmware.REQUEST_WORDS:
            raise ValueError(f"a request has at most {firmware.REQUEST_WORDS} words, not {len(args)}")
        at   = {word.name: self.base + word.offset for word in firmware.REQUEST}
        read = self.bus.read_words
        submit = (read(at["done"], 1)[0] + 1) & 0xffffffff
        self.bus.write_words(at["args"], [*args] or [0])
        self.bus.write_words(at["opcode"], [opcode])
        self.bus.write_words(at["submit"], [submit])
        end = time.monotonic() + self.timeout
        while read(at["done"], 1)[0] != submit:
            if time.monotonic() > end:
                raise TimeoutError(f"the firmware did not answer request {opcode} in {self.timeout} s")
            self.bus.idle()
        code, field, value, limit, engine = read(at["code"], 5)
        if code:
            raise FirmwareError(opcode, code, field, value, limit, engine)
        return read(at["args"], answer) if answer else []

    def link(self, action: str) -> None:
        """Link "down", "up" or "restart"."""
        self.request(firmware.REQ_LINK, [("down", "up", "restart").index(action)])

    def modify_qp(self, names: str, **fields: int) -> None:
        """Changes a QP: attribute names separated by spaces (verbs.ATTR_BITS), fields of abi.QP_ARGS."""
        self.request(firmware.REQ_QP_MODIFY, [verbs.attr_mask(names), *abi.pack_args(abi.QP_ARGS, **fields)])

    def query_qp(self, index: int) -> dict[str, int]:
        """Row of a QP as the firmware keeps it, a dict of abi.QP_ARGS fields."""
        return abi.unpack_args(abi.QP_ARGS, self.request(firmware.REQ_QP_QUERY, [index], answer=1 + abi.words_of(abi.QP_ARGS))[1:])

    def command(self, opcode: int, words: Iterable[int]) -> None:
        """An engine command for memory regions and queues, by the firmware's mailbox."""
        self.request(firmware.REQ_COMMAND, [opcode, *words])


class FirmwareRoCE(RoCE):
    """RoCE whose queue pairs are brought up by the firmware: its state machine judges every change.

    Memory regions, queues and queries go to the host's mailbox.
    """
    def __init__(self, bus: WordBus, *, qps: Iterable[int] = range(1, firmware.FIRMWARE_QPS), **kwargs: Any) -> None:
        self.firmware = Firmware(bus)
        self.states: dict[int, int] = {}        # QP index: abi.QP_*.
        super().__init__(bus, mailbox="roce_mailbox_host", qps=qps, **kwargs)

    def command(self, opcode: int, words: Sequence[int], answer: bool = False) -> list[int]:
        """As RoCE.command; CMD_MODIFY_QP carries what the transition requires."""
        if opcode != abi.CMD_MODIFY_QP:
            return super().command(opcode, words, answer)
        args = abi.unpack_args(abi.QP_ARGS, words)
        old, new = self.states.get(args["qpi"], abi.QP_RESET), args["state"]
        row = verbs.TRANSITIONS.get((old, new, "RC"))
        self.firmware.request(firmware.REQ_QP_MODIFY, [row.required if row else 0, *words])
        self.states[args["qpi"]] = new
        return []
