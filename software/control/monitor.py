# SPDX-License-Identifier: BSD-2-Clause
"""Counters and refusals of an engine, read through one master's window. No gateware import.

Selection and value are two accesses. What was read is returned only if nobody selected anything else in the same window
meanwhile: its turns tell. Else it is asked for again.
"""
from collections.abc import Iterable
from typing import NamedTuple

from software.control.transport import Bus


class Refusal(NamedTuple):
    """A line of the refusal ring; `row` of errors.py, `time` in ticks of the time base."""
    row    : int
    opcode : int
    source : int
    qpn    : int
    psn    : int
    info   : int
    time   : int


LINES = 64      # of the refusal ring.
POLLS = 1000    # reads of `status` until a selection must be there: it takes some 20 clocks.
TRIES = 100     # selections until one must have passed undisturbed.


class Monitor:
    """Counters and refusal ring.

    Parameters
    ----------
    bus : Bus
    prefix : str
        Of the monitor's registers.
    window : str
        Whose: "host", or "firmware" (which the CPU uses).

    Raises TimeoutError where the engine does not answer (held in reset) or others never stop selecting in this window.
    """
    def __init__(self, bus: Bus, prefix: str = "roce_monitor_", window: str = "host") -> None:
        self.bus, self.prefix, self.window = bus, prefix, f"{prefix}{window}_"

    def _read(self, select: str, index: int, names: Iterable[str], turn_at: int) -> list[int]:
        """Values of registers once `index` is selected, by nobody but us since."""
        read = self.bus.read_register
        for _ in range(TRIES):
            before = read(f"{self.window}status") >> turn_at & 0xff
            self.bus.write_register(f"{self.window}{select}", index)
            for _ in range(POLLS):
                if read(f"{self.window}status") & 1:
                    break
                self.bus.idle()
            else:
                raise TimeoutError(f"the engine does not show {select} {index}: its clock stands or it is held in reset")
            values = [read(f"{self.window}{name}") for name in names]
            if (read(f"{self.window}status") >> turn_at & 0xff) == (before + 1 & 0xff):
                return values
        raise TimeoutError(f"others select in window {self.window} without a pause: {TRIES} times")

    def counter(self, index: int) -> int:
        """Counter by number: row of errors.py, or TRAFFIC_BASE + traffic counter."""
        return self._read("counter_select", index, ["counter_value"], 8)[0]

    def lines(self) -> tuple[int, int]:
        """(lines of the refusal ring written since reset, refusals counted but not logged)."""
        return self.bus.read_register(f"{self.prefix}lines"), self.bus.read_register(f"{self.prefix}lines_lost")

    def line(self, number: int) -> Refusal:
        """Refusal by its line's number since reset; the last 64 are there."""
        row, *more = self._read("line_select", number % LINES, [f"line_{n}" for n in ("row", "qpn", "psn", "info", "time")], 16)
        return Refusal(row & 0xff, row >> 8 & 0xff, row >> 16 & 0xff, *more)
