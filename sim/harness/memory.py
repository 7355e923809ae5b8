# SPDX-License-Identifier: BSD-2-Clause
"""Memory behind the engine's memory ports: contract-keeping model with random latency, stalls and errors."""
from __future__ import annotations      # memory and simulation name each other.

from collections.abc import Callable, Iterable
from ctypes import c_char
from typing import TYPE_CHECKING, Any

from sim.harness.library import u64s
from sim.harness.streams import probability

if TYPE_CHECKING:
    from sim.harness.simulation import Sim

Latency = int | tuple[int, int]      # cycles, or (lowest, highest).
Option  = float | Latency            # of MemoryPort.set.

READS, WRITES = 1, 2

_DEFAULTS: dict[str, Any] = dict(cmd_stall=0.0, data_stall=0.0, answer_gap=0.0, latency=4, depth=64, ahead=0, reorder=0.0,
                                  early=0.0, error=0.0, err=1, timeout=2000, data_wait=64, exact_be=True, paused=False)
IDEAL    : dict[str, Any] = dict(latency=4, depth=64, ahead=4)
SLOW     : dict[str, Any] = dict(latency=(1, 1000), cmd_stall=0.3, data_stall=0.3, answer_gap=0.3, reorder=0.5, early=0.5)


class MemoryPort:
    """One write or read port; `set` changes its behaviour, `counters` tells what it saw."""
    def __init__(self, memory: Memory, prefix: str, index: int, **options: Option) -> None:
        self.memory, self.prefix, self.index = memory, prefix, index
        self.options = dict(_DEFAULTS)
        self.set(**options)

    def set(self, **options: Option) -> None:
        """Options, all keyword:

        latency    : cycles, or (lowest, highest): command to first beat of a read, last beat to acknowledge of a write;
        cmd_stall, data_stall, answer_gap : probabilities of a cycle without ready or valid;
        depth      : commands held before wcmd/rcmd stalls;   ahead : write beats taken before their command;
        reorder    : probability that answers of another target overtake;
        early      : probability that a read returns the bytes of its issue instead of its answer;
        error, err : probability of an error answer and its code;   timeout : cycles until code 3 is answered;
        data_wait  : bound on cycles a command waits for its data;   exact_be : enables must cover the whole range;
        paused     : accept, never answer.
        """
        unknown = set(options) - set(_DEFAULTS)
        if unknown:
            raise ValueError(f"unknown memory options {sorted(unknown)}, there are {sorted(_DEFAULTS)}")
        self.options.update(options)
        o      = self.options
        lo, hi = o["latency"] if isinstance(o["latency"], tuple) else (o["latency"], o["latency"])
        if not 1 <= lo <= hi:
            raise ValueError(f"latency must be 1 or more, lowest before highest, not {o['latency']!r}")
        if not 0 <= o["err"] <= 5:
            raise ValueError(f"err must be 0..5, not {o['err']!r}")
        p = {k: probability(o[k], k) for k in ("cmd_stall", "data_stall", "answer_gap", "reorder", "early", "error")}
        self.memory.sim.c.mem_config(self.index, u64s([
            p["cmd_stall"], p["data_stall"], p["answer_gap"], lo, hi, o["depth"], o["ahead"], p["reorder"], p["early"],
            p["error"], o["err"], o["timeout"], o["data_wait"], int(o["exact_be"]), int(o["paused"])]))

    def forget(self) -> None:
        """Loses all commands, data and answers that it has not given, as a reset of its clock does; bytes stay."""
        self.memory.sim.c.mem_forget(self.index)

    def counters(self) -> dict[str, int]:
        """{commands, beats, bytes, errors, peak outstanding, bubbles, stalled, answers, outstanding}"""
        out = u64s([0] * 9)
        self.memory.sim.c.mem_counters(self.index, out)
        return dict(zip(("commands", "beats", "bytes", "errors", "peak", "bubbles", "stalled", "answers", "outstanding"), out))


class Memory:
    """Bytes by (target, address), shared by any number of ports.

    Created by `Sim.memory("pw", "pr", ...)`: prefix `p` binds `p_wcmd_*, p_wdata_*, p_wack_*` as a write port and
    `p_rcmd_*, p_rdata_*` as a read port, whichever exist. Writes become visible in order, when their acknowledge is first
    shown. Breaches of the memory-port contract raise `Violation`.
    """
    def __init__(self, sim: Sim, prefixes: Iterable[str], *, clock: str | None = None, fill: int | None = None,
                 **options: Option) -> None:
        if fill is not None and not 0 <= fill <= 255:
            raise ValueError(f"fill must be a byte 0..255 or None for random, not {fill!r}")
        self.sim   = sim
        self.index = sim.c.memory(-1 if fill is None else fill)
        self.ports: dict[tuple[str, str], MemoryPort] = {}      # (prefix, "write" or "read").
        for prefix in prefixes:
            self.add(prefix, clock=clock, **options)

    def add(self, prefix: str, *, clock: str | None = None, **options: Option) -> tuple[MemoryPort | None, ...]:
        """Binds the ports of one prefix; returns them as a tuple (write, read), None for an absent one."""
        number = self.sim.clock_index(clock)
        out: list[MemoryPort | None] = []
        for kind, make, streams in (("write", self.sim.c.write_port, ("wcmd", "wdata", "wack")),
                                    ("read",  self.sim.c.read_port,  ("rcmd", "rdata"))):
            if f"{prefix}_{streams[0]}_valid" not in self.sim.ports:
                out.append(None)
                continue
            self._require(prefix, streams)
            port = MemoryPort(self, prefix, make(self.index, prefix.encode(), number), **options)
            self.ports[prefix, kind] = port
            out.append(port)
        if out == [None, None]:
            raise ValueError(f"no memory port {prefix!r}: neither {prefix}_wcmd_valid nor {prefix}_rcmd_valid exists")
        return tuple(out)

    def _require(self, prefix: str, streams: Iterable[str]) -> None:
        """Fields that must exist, and the side that must drive them (True: the model)."""
        need = {"wcmd":  {"valid": True, "ready": False, "addr": True, "length": True, "tag": True},
                "wdata": {"valid": True, "ready": False, "data": True, "be": True, "last": True},
                "wack":  {"valid": False, "tag": False, "err": False},
                "rcmd":  {"valid": True, "ready": False, "addr": True, "length": True, "tag": True},
                "rdata": {"valid": False, "data": False, "last": False, "tag": False, "err": False}}
        for stream in streams:
            for field, driven in need[stream].items():
                name = f"{prefix}_{stream}_{field}"
                if name not in self.sim.ports:
                    raise ValueError(f"memory port {prefix!r} lacks {name}")
                if self.sim.ports[name][1] == driven:
                    raise ValueError(f"{name} must be {'driven' if driven else 'read'} by the model")

    def set(self, **options: Option) -> None:
        """Sets options of every port."""
        for port in self.ports.values():
            port.set(**options)

    def forget(self) -> None:
        """A reset of the memory: every port loses what it has not answered."""
        for port in self.ports.values():
            port.forget()

    def write(self, addr: int, data: bytes, target: int = 0) -> None:
        """Puts bytes at byte address `addr`, at once."""
        self.sim.c.mem_copy(self.index, target, addr, bytes(data), len(data), 1)

    def read(self, addr: int, length: int, target: int = 0) -> bytes:
        """Returns `length` bytes as a later read through a port would."""
        out = bytearray(length)
        if length:
            self.sim.c.mem_copy(self.index, target, addr, (c_char * length).from_buffer(out), length, 0)
        return bytes(out)

    def fail(self, lo: int, hi: int, err: int, *, target: int | None = None, kinds: int = READS | WRITES) -> None:
        """Answers err (1 no such address, 2 refused, 3 timed out) to every access that touches lo..hi-1."""
        if not 1 <= err <= 3:
            raise ValueError(f"err must be 1..3, not {err!r}")
        self.sim.c.mem_error(self.index, -1 if target is None else target, lo, hi, err, kinds)

    def slow(self, lo: int, hi: int, latency: Latency, *, target: int | None = None, kinds: int = READS | WRITES) -> None:
        """Gives accesses that touch lo..hi-1 a latency of their own: cycles, or (lowest, highest)."""
        first, last = latency if isinstance(latency, tuple) else (latency, latency)
        if not 1 <= first <= last:
            raise ValueError(f"latency must be 1 or more, lowest before highest, not {latency!r}")
        self.sim.c.mem_slow(self.index, -1 if target is None else target, lo, hi, first, last, kinds)

    def pattern(self, lo: int, hi: int, *, target: int = 0) -> Callable[[], dict[str, int]]:
        """A range that stores nothing: byte n of every such range is the same function of n.

        Reads give it, writes are compared with it. Returns a function that tells {written, wrong: bytes;
        jumps: writes that do not begin where the last one ended}. Ranges must not overlap.
        """
        number = self.sim.c.mem_pattern(self.index, target, lo, hi)

        def counts():
            out = u64s([0] * 3)
            self.sim.c.mem_pattern_counts(self.index, number, out)
            return dict(zip(("written", "wrong", "jumps"), out))
        return counts

    def heal(self) -> None:
        """Forgets every `fail` and every `slow`."""
        self.sim.c.mem_error(self.index, 0, 0, 0, 0, 0)

    def log(self) -> list[dict[str, Any]]:
        """Takes the answered accesses since the last call, in order of their answer: list of dicts.

        issued, answered : cycles; kind : "read" or "write"; target, addr, length (bytes), qpi, tag, err as on the port.
        """
        keys = ("issued", "answered", "kind", "target", "addr", "length", "qpi", "tag", "err")
        out: list[dict[str, Any]] = []
        while True:
            raw   = u64s([0] * (9 * 512))
            count = self.sim.c.mem_log(self.index, raw, 512)
            for n in range(count):
                entry: dict[str, Any] = dict(zip(keys, raw[9 * n:9 * n + 9]))
                entry["kind"] = "read" if entry["kind"] == READS else "write"
                out.append(entry)
            if count < 512:
                return out

    def counters(self) -> dict[tuple[str, str], dict[str, int]]:
        """{(prefix, kind): counters}"""
        return {key: port.counters() for key, port in self.ports.items()}
