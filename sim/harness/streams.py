# SPDX-License-Identifier: BSD-2-Clause
"""Ends of a stream: whole frames (or records) in Python, beats with gaps and stalls in C++."""
from __future__ import annotations      # streams and simulation name each other.

import ctypes
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Self

from sim.harness.library import names, u64s

if TYPE_CHECKING:
    from sim.harness.simulation import Sim

ROLES = ("valid", "ready", "first", "last", "data", "last_be", "error")

# Helpers ------------------------------------------------------------------------------------------

def probability(value: float, name: str) -> int:
    """Probability as C++ keeps it. Raises ValueError outside 0..1."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be a probability 0..1, not {value!r}")
    return min(65536, round(value * 65536))


class Frame:
    """One frame (or record) that left the model.

    data : bytes (empty for a record); params : {field: int}; error : OR of the beats' error bits;
    first, last : cycle of the first and the last beat; beats : number of beats.
    """
    __slots__ = ("data", "params", "error", "first", "last", "beats")

    def __init__(self, data: bytes, params: dict[str, int], error: int, first: int, last: int, beats: int) -> None:
        self.data, self.params, self.error, self.first, self.last, self.beats = data, params, error, first, last, beats

    def __getattr__(self, name: str) -> int:
        try:
            return self.params[name]
        except KeyError:
            raise AttributeError(f"no field {name!r}, there are: {', '.join(self.params)}") from None

    def __getitem__(self, name: str) -> int:
        return self.params[name]

    def __bytes__(self) -> bytes:
        return self.data

    def __repr__(self) -> str:
        shown = " ".join(f"{k}={v:#x}" for k, v in self.params.items())
        return f"Frame({len(self.data)} bytes, error={self.error:#x}, cycles {self.first}..{self.last} {shown})"


class _Stream:
    """Finds the ports `<prefix>_<field>`, splits them into roles and params, packs params into bytes."""
    def __init__(self, sim: Sim, prefix: str, clock: str | None, records: bool | None, bound: bool) -> None:
        fields = {n[len(prefix) + 1:]: n for n in sim.ports if n.startswith(prefix + "_")}
        # A longer prefix that is a stream of its own does not belong to this one.
        others = [f[:-len("valid")] for f in fields if f.endswith("_valid")]
        fields = {f: n for f, n in fields.items() if not any(f.startswith(o) for o in others)}
        if "valid" not in fields:
            raise ValueError(f"no stream {prefix!r}: no port {prefix}_valid among {', '.join(sorted(sim.ports))}")
        self.sim, self.prefix = sim, prefix
        self.records = ("data" not in fields) if records is None else records
        roles        = ROLES[:2] if self.records else ROLES
        if self.records:
            fields = {f: n for f, n in fields.items() if f != "first"}
        self.roles   = {r: fields[r] for r in roles if r in fields}
        self.fields  = {f: n for f, n in sorted(fields.items()) if f not in roles}
        self.widths  = {f: sim.ports[n][0] for f, n in self.fields.items()}
        self.layout  = [(f, (w + 7) // 8, w) for f, w in self.widths.items()]
        self.size    = sum(n for _, n, _ in self.layout)
        self.lanes   = 0 if self.records else sim.ports[fields["data"]][0] // 8
        if not self.records and sim.ports[fields["data"]][0] % 8:
            raise ValueError(f"{prefix}_data is {sim.ports[fields['data']][0]} bits, no whole bytes: pass records=True")
        for role, name in [*self.roles.items(), *self.fields.items()]:
            wanted = (role == "ready") == bound
            if sim.ports[name][1] != wanted:
                raise ValueError(f"{name} is {'an input' if sim.ports[name][1] else 'an output'} of the model"
                                 f" (nothing drives it?), {'source' if not bound else 'sink'} {prefix!r} needs the other")
        ends       = [self.roles.get(r, "") for r in ROLES]
        make       = sim.c.sink if bound else sim.c.source
        self.index = make(prefix.encode(), sim.clock_index(clock), names(ends), names(list(self.fields.values())),
                          len(self.fields))

    def stamp_main(self) -> Self:
        """Notes times in cycles of the main clock, not of the stream's own."""
        self.sim.c.stamp_main(self.index)
        return self

    def _pack(self, params: Mapping[str, int]) -> bytes:
        unknown = set(params) - set(self.widths)
        if unknown:
            raise ValueError(f"{self.prefix} has no field {sorted(unknown)}, it has {sorted(self.widths)}")
        out = bytearray()
        for field, size, width in self.layout:
            value = params.get(field, 1 if field == "last" else 0)
            if value < 0 or value >> width:
                raise ValueError(f"{self.prefix}_{field} is {width} bits, {value:#x} does not fit")
            out += int(value).to_bytes(size, "little")
        return bytes(out)

    def _unpack(self, raw: bytes) -> dict[str, int]:
        params, at = {}, 0
        for field, size, _ in self.layout:
            params[field] = int.from_bytes(raw[at:at + size], "little")
            at += size
        return params

# Source -------------------------------------------------------------------------------------------

class Source(_Stream):
    """Feeds a stream input of the model (with or without `ready`).

    gap       : probability of an idle cycle before each beat;
    frame_gap : the same before the first beat of a frame (0: `gap` counts there too);
    poison    : random payload while not valid and in the lanes behind the end.
    """
    def __init__(self, sim: Sim, prefix: str, *, clock: str | None = None, gap: float = 0, frame_gap: float = 0,
                 poison: bool = True, records: bool | None = None) -> None:
        super().__init__(sim, prefix, clock, records, False)
        self.set(gap=gap, frame_gap=frame_gap, poison=poison)

    def set(self, *, gap: float = 0, frame_gap: float = 0, poison: bool = True) -> None:
        """Changes the random behaviour."""
        self.sim.c.source_set(self.index, probability(gap, "gap"), probability(frame_gap, "frame_gap"), poison)

    def pace(self, bytes_per_cycle: float, overhead: int = 24) -> None:
        """Limits the rate to a wire's: 50 bytes per cycle are 100 Gb/s at 250 MHz; `overhead` per frame (FCS, gap, preamble).
        """
        rate = Fraction(bytes_per_cycle).limit_denominator(10000)
        self.sim.c.source_pace(self.index, rate.numerator, rate.denominator, overhead)

    def send(self, data: bytes | int | None = None, *, error: int | None = None, idle: int = 0, **params: int) -> None:
        """Queues one frame of bytes, or one record when the stream has no bytes. `idle`: cycles to leave before it."""
        if self.records:
            params.update({k: v for k, v in (("data", data), ("error", error)) if v is not None})
            data = b""
        elif not data:
            raise ValueError(f"a frame of {self.prefix} needs at least 1 byte")
        error = 0 if self.records else error or 0
        self.sim.c.push(self.index, bytes(data), len(data), self._pack(params), self.size, error, idle)

    @property
    def pending(self) -> int:
        """Frames not yet fully taken by the model."""
        return self.sim.c.source_pending(self.index)

    def stats(self) -> dict[str, int]:
        """{frames, beats, stalled cycles}"""
        out = u64s([0] * 3)
        self.sim.c.source_stats(self.index, out)
        return dict(zip(("frames", "beats", "stalled"), out))

    def times(self) -> list[tuple[int, ...]]:
        """Takes [(offered, first, last, beats)] cycles of the frames sent since the last call."""
        out: list[tuple[int, ...]] = []
        while True:
            raw   = u64s([0] * 4096)
            count = self.sim.c.source_times(self.index, raw, 1024)
            out  += [tuple(raw[4 * n:4 * n + 4]) for n in range(count)]
            if count < 1024:
                return out

# Sink ---------------------------------------------------------------------------------------------

class Sink(_Stream):
    """Takes a stream output of the model, with random stalls, and checks the stream rules on every beat.

    Rules: valid and payload hold while stalled, `first` on the first beat only, `last_be` one-hot on `last` and 0 before,
    params constant inside a frame. A breach raises `Violation` from the call that runs the clock.
    """
    def __init__(self, sim: Sim, prefix: str, *, clock: str | None = None, stall: float = 0, params_stable: bool = True,
                 check_first: bool = True, check_last_be: bool = True, keep: bool = True, records: bool | None = None) -> None:
        super().__init__(sim, prefix, clock, records, True)
        self._checks = (params_stable, check_first, check_last_be, keep)
        self._data   = ctypes.create_string_buffer(16384)
        self._params = ctypes.create_string_buffer(max(1, self.size))
        self._info   = u64s([0] * 4)
        self.set(stall=stall)

    def set(self, *, stall: float = 0) -> None:
        """Changes the probability of a cycle without ready."""
        self.sim.c.sink_set(self.index, probability(stall, "stall"), *self._checks)

    def __len__(self) -> int:
        return self.sim.c.sink_count(self.index)

    def __bool__(self) -> bool:
        return True

    def recv(self) -> Frame | None:
        """Takes the oldest frame, or returns None."""
        size = self.sim.c.pop(self.index, self._data, len(self._data), self._params, self._info)
        if size > len(self._data):
            self._data = ctypes.create_string_buffer(int(size) * 2)
            size = self.sim.c.pop(self.index, self._data, len(self._data), self._params, self._info)
        if size < 0:
            return None
        return Frame(ctypes.string_at(self._data, size), self._unpack(self._params.raw), *self._info)

    def recv_all(self) -> list[Frame]:
        """Takes every frame that is there."""
        return list(iter(self.recv, None))

    def stats(self) -> dict[str, int]:
        """{frames, beats, stalled, idle cycles, open: inside a frame}"""
        out = u64s([0] * 5)
        self.sim.c.sink_stats(self.index, out)
        return dict(zip(("frames", "beats", "stalled", "idle", "open"), out))
