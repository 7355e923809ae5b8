# SPDX-License-Identifier: BSD-2-Clause
"""One running model: clocks, signals, streams, memories, traces."""
import ctypes
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from sim.harness.emit import BOUNDS
from sim.harness.library import Bound, load
from sim.harness.memory import Memory
from sim.harness.state import Rows
from sim.harness.streams import Frame, Sink, Source

__all__ = ["Frame", "HarnessError", "Sim", "Timeout", "Violation"]


class HarnessError(AssertionError):
    """Base of what the harness raises while the clock runs."""


class Violation(HarnessError):
    """The model broke a rule of a stream or of the memory-port contract, or a bound of roce_soc/bounds.py."""


class Timeout(HarnessError):
    """What was waited for did not come within the bound."""


class Sim:
    """A fresh model in its power-up state: RAMs hold random bits of `seed`.

    Parameters
    ----------
    so : str
        Path from `build`.
    seed : int
        Decides RAM contents, gaps, stalls, latencies, errors.
    clocks : dict
        {domain: period in ps, or (period, phase)}; the first is the main one that `step` counts. Default: every
        `<domain>_clk` input at 4000 ps.
    strict : bool
        Raise `Violation` at once; False collects them in `violations()`.
    """
    def __init__(self, so: str, seed: int = 1, *, clocks: Mapping[str, int | tuple[int, int]] | None = None,
                 strict: bool = True) -> None:
        self.seed   = seed
        self.c      = Bound(load(so), seed & (2**64 - 1))
        self.ports: dict[str, tuple[int, bool]] = {}        # name: (bits, whether it is an input).
        self.strict = strict
        self._streams   : list[Source | Sink] = []
        self._closed     = False
        self._state_list: list[tuple[int, str, int, int, int]] | None = None
        self._list_ports()
        self._so     = so
        self._bounds = bytes((self.ports[BOUNDS][0] + 7)//8) if BOUNDS in self.ports else b""
        self.c.stop_on_fault(strict)
        self.clocks: dict[str, int] = {}        # domain: its number in the bench.
        for name, timing in (clocks or self._default_clocks()).items():
            period, phase = timing if isinstance(timing, tuple) else (timing, 0)
            if period < 2:
                raise ValueError(f"period of clock {name!r} must be 2 ps or more, not {period!r}")
            index = self.c.clock(f"{name}_clk".encode(), f"{name}_rst".encode(), period, phase)
            if index < 0:
                raise ValueError(f"no clock input {name}_clk")
            self.clocks[name] = index
        if not self.clocks:
            raise ValueError("the model has no clock input (build with clocks=...)")

    def _list_ports(self):
        name, is_input, n = ctypes.c_char_p(), ctypes.c_int(), 0
        while (width := self.c.port(n, ctypes.byref(name), ctypes.byref(is_input))) >= 0:
            self.ports[name.value.decode()] = (width, bool(is_input.value))
            n += 1

    def _default_clocks(self) -> dict[str, int]:
        names = [n[:-4] for n, (_, is_input) in self.ports.items() if n.endswith("_clk") and is_input]
        return {n: 4000 for n in sorted(names, key=lambda n: (n != "sys", n))}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_closed", True) is False:
            self.close()

    def close(self) -> None:
        """Frees the model; ends a trace."""
        if not self._closed:
            self._closed = True
            self.c.delete()

    # Clocks -----------------------------------------------------------------------------------------

    def clock_index(self, name: str | None) -> int:
        """Index of a clock domain; None is the main one."""
        if name is None:
            return 0
        if name not in self.clocks:
            raise ValueError(f"no clock {name!r}, there are {sorted(self.clocks)}")
        return self.clocks[name]

    def cycles(self, clock: str | None = None) -> int:
        """Rising edges of a clock (default: the main one) so far."""
        return self.c.cycles(self.clock_index(clock))

    @property
    def time(self) -> int:
        """Picoseconds so far."""
        return self.c.time()

    def violations(self) -> list[str]:
        """Takes the collected violations as texts."""
        out = [self.c.fault(n).decode() for n in range(self.c.fault_count())]
        self.c.clear_faults()
        return out

    def _check(self, result: int) -> int:
        if self.strict and self.c.fault_count():
            raise Violation(f"seed {self.seed}: " + "; ".join(self.violations()))
        if self.strict and self._bounds:
            buffer = ctypes.create_string_buffer(len(self._bounds))
            self.c.peek(BOUNDS.encode(), buffer, len(self._bounds))
            if buffer.raw != self._bounds:
                raise Violation(f"seed {self.seed}, cycle {self.cycles()}: " + "; ".join(self.broken_bounds()))
        return result

    def broken_bounds(self) -> list[str]:
        """Texts of the bounds (roce_soc/bounds.py) that were broken since power-up."""
        broken = self.peek(BOUNDS) if self._bounds else 0
        listed = re.findall(r"^// bound (\d+) (.*)$", (Path(self._so).parent / "top.v").read_text(), re.M) if broken else []
        return [f"bound broken: {text}" for n, text in listed if broken >> int(n) & 1]

    def reset(self, cycles: int = 8, settle: int = 1) -> None:
        """Holds every `<domain>_rst` for `cycles` of each clock; then runs `settle` cycles."""
        self.c.reset(cycles)
        self.step(settle)

    def hold(self, clock: str | None, on: bool = True) -> None:
        """Puts one clock's side with its agents in reset (`on` False: takes it out); the others go on."""
        self.c.hold(self.clock_index(clock), on)

    def step(self, cycles: int = 1, clock: str | None = None) -> None:
        """Runs so many cycles of the main clock, or of another one."""
        index = self.clock_index(clock)
        self._check(self.c.step_clock(index, cycles) if index else self.c.step(cycles))

    def until(self, sink: Sink, count: int = 1, max_cycles: int = 100_000) -> None:
        """Runs until `sink` holds `count` unread frames. Raises Timeout with the state of every stream."""
        if self._check(self.c.until(sink.index, count, max_cycles)):
            raise Timeout(f"{len(sink)} of {count} frames at {sink.prefix} after {max_cycles} cycles{self.state()}")

    def drain(self, *sources: Source, max_cycles: int = 100_000) -> None:
        """Runs until every frame of the sources (default: all) was taken."""
        group = sources or [s for s in self._streams if isinstance(s, Source)]
        index = (ctypes.c_int * max(1, len(group)))(*[s.index for s in group])
        if self._check(self.c.drain(index, len(group), max_cycles)):
            raise Timeout(f"sources not drained after {max_cycles} cycles{self.state()}")

    def wait(self, name: str, value: int = 1, max_cycles: int = 100_000) -> None:
        """Runs until port `name` has `value`."""
        self._width(name)
        if self._check(self.c.wait(name.encode(), value, max_cycles)):
            raise Timeout(f"{name} is {self.peek(name):#x}, not {value:#x}, after {max_cycles} cycles{self.state()}")

    def run(self, condition: Callable[[], object], max_cycles: int = 100_000, every: int = 16) -> None:
        """Runs until `condition()` holds; asks every `every` cycles."""
        left = max_cycles
        while not condition():
            if left <= 0:
                raise Timeout(f"condition not met after {max_cycles} cycles{self.state()}")
            self.step(min(every, left))
            left -= every

    def state(self) -> str:
        """Text for messages: queue and handshake of every stream."""
        rows = []
        for s in self._streams:
            level = " ".join(f"{r}={self.peek(s.roles[r])}" for r in ("valid", "ready") if r in s.roles)
            held  = f"{s.pending} frames to send" if isinstance(s, Source) else f"{len(s)} frames unread"
            rows.append(f"\n  {s.prefix}: {level}, {held}, {s.stats()}")
        return f" (seed {self.seed}, cycle {self.cycles()})" + "".join(rows)

    # Signals ----------------------------------------------------------------------------------------

    def _width(self, name: str) -> int:
        if name not in self.ports:
            raise ValueError(f"no port {name!r}, there are {', '.join(sorted(self.ports))}")
        return self.ports[name][0]

    def poke(self, name: str, value: int) -> None:
        """Sets an input port."""
        width = self._width(name)
        if value < 0 or value >> width:
            raise ValueError(f"{name} is {width} bits, {value:#x} does not fit")
        size = (width + 7) // 8
        if self.c.poke(name.encode(), int(value).to_bytes(size, "little"), size):
            raise ValueError(f"{name} is driven by the model")

    def peek(self, name: str) -> int:
        """Value of a port, after the falling edge."""
        size   = (self._width(name) + 7) // 8
        buffer = ctypes.create_string_buffer(size)
        self.c.peek(name.encode(), buffer, size)
        return int.from_bytes(buffer.raw, "little")

    def _states(self) -> list[tuple[int, str, int, int, int]]:
        """Yields (index, path, width, depth, bytes) of all memories and registers; listed once."""
        if self._state_list is None:
            self._state_list = []
            name, width, depth = ctypes.c_char_p(), ctypes.c_int(), ctypes.c_int()
            while size := self.c.state(len(self._state_list), *map(ctypes.byref, (name, width, depth))):
                self._state_list.append((len(self._state_list), name.value.decode(), width.value, depth.value, size))
        return self._state_list

    def _state(self, index: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        self.c.state_read(index, buffer)
        return buffer.raw

    def memories(self, match: str = "") -> dict[str, Rows]:
        """{path: Rows} of the memories inside the model whose path holds `match` (regular expression), as of now.

        The path is that of the Migen module: `core0.responder.check.rows`. A memory of several copies has an entry each.
        """
        return {path: Rows(width, depth, self._state(n, size)) for n, path, width, depth, size in self._states()
            if depth and re.search(match, path)}

    def write_row(self, path: str, row: int, value: int) -> None:
        """Sets one row of a memory with clocked reads: for what takes too long to reach. ValueError without such a row."""
        for n, name, width, depth, size in self._states():
            if name == path and row in range(depth) and not value >> width:
                return self.c.state_write(n, row, value.to_bytes(size//depth, "little"))
        raise ValueError(f"there is no row {row} of memory {path!r} that holds {value:#x}")

    def registers(self, match: str = "") -> dict[str, int]:
        """{path: value} of the registers inside the model, as `memories`. What Verilator optimised away is missing."""
        return {path: int.from_bytes(self._state(n, size), "little") for n, path, _, depth, size in self._states()
            if not depth and re.search(match, path)}

    # Agents -----------------------------------------------------------------------------------------

    def source(self, prefix: str, **options: Any) -> Source:
        """Feeds the stream input `prefix`; options of `Source`."""
        source = Source(self, prefix, **options)
        self._streams.append(source)
        return source

    def sink(self, prefix: str, **options: Any) -> Sink:
        """Takes the stream output `prefix`; options of `Sink`."""
        sink = Sink(self, prefix, **options)
        self._streams.append(sink)
        return sink

    def memory(self, *prefixes: str, **options: Any) -> Memory:
        """Puts one shared memory behind the memory ports `prefixes`; options of `Memory` and `MemoryPort.set`."""
        return Memory(self, prefixes, **options)

    def trace(self, path: str | None) -> None:
        """Writes a VCD from here on (None ends it); needs `build(trace=True)` or ROCE_TRACE=1."""
        if self.c.trace(path.encode() if path else None):
            raise HarnessError("this model was built without trace: build(..., trace=True) or ROCE_TRACE=1")
