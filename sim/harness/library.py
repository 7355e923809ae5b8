# SPDX-License-Identifier: BSD-2-Clause
"""The C interface of a compiled model, declared for ctypes once per library."""
import ctypes
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any

_NAMES = POINTER(c_char_p)
_U64S  = POINTER(c_uint64)

# name: (result, arguments after the bench)
_CALLS: dict[str, tuple[Any, list[Any]]] = {
    "delete":         (None,     []),
    "clock":          (c_int,    [c_char_p, c_char_p, c_uint64, c_uint64]),
    "cycles":         (c_uint64, [c_int]),
    "time":           (c_uint64, []),
    "step":           (c_int,    [c_uint64]),
    "reset":          (c_int,    [c_uint64]),
    "step_clock":     (c_int,    [c_int, c_uint64]),
    "hold":           (None,     [c_int, c_int]),
    "port":           (c_int,    [c_int, POINTER(c_char_p), POINTER(c_int)]),
    "poke":           (c_int,    [c_char_p, c_char_p, c_size_t]),
    "peek":           (c_int,    [c_char_p, c_char_p, c_size_t]),
    "state":          (c_size_t, [c_int, POINTER(c_char_p), POINTER(c_int), POINTER(c_int)]),
    "state_read":     (None,     [c_int, c_char_p]),
    "state_write":    (None,     [c_int, c_int, c_char_p]),
    "wait":           (c_int,    [c_char_p, c_uint64, c_uint64]),
    "fault_count":    (c_int,    []),
    "fault":          (c_char_p, [c_int]),
    "clear_faults":   (None,     []),
    "stop_on_fault":  (None,     [c_int]),
    "trace":          (c_int,    [c_char_p]),
    "source":         (c_int,    [c_char_p, c_int, _NAMES, _NAMES, c_int]),
    "sink":           (c_int,    [c_char_p, c_int, _NAMES, _NAMES, c_int]),
    "stamp_main":     (None,     [c_int]),
    "source_set":     (None,     [c_int, c_uint32, c_uint32, c_int]),
    "source_pace":    (None,     [c_int, c_uint64, c_uint64, c_uint64]),
    "sink_set":       (None,     [c_int, c_uint32, c_int, c_int, c_int, c_int]),
    "push":           (None,     [c_int, c_char_p, c_size_t, c_char_p, c_size_t, c_uint64, c_uint64]),
    "source_pending": (c_size_t, [c_int]),
    "source_stats":   (None,     [c_int, _U64S]),
    "source_times":   (c_size_t, [c_int, _U64S, c_size_t]),
    "sink_count":     (c_size_t, [c_int]),
    "sink_stats":     (None,     [c_int, _U64S]),
    "pop":            (c_int64,  [c_int, c_char_p, c_size_t, c_char_p, _U64S]),
    "until":          (c_int,    [c_int, c_size_t, c_uint64]),
    "drain":          (c_int,    [POINTER(c_int), c_int, c_uint64]),
    "memory":         (c_int,    [c_int]),
    "write_port":     (c_int,    [c_int, c_char_p, c_int]),
    "read_port":      (c_int,    [c_int, c_char_p, c_int]),
    "mem_config":     (None,     [c_int, _U64S]),
    "mem_forget":     (None,     [c_int]),
    "mem_counters":   (None,     [c_int, _U64S]),
    "mem_copy":       (None,     [c_int, c_int, c_uint64, c_char_p, c_uint64, c_int]),
    "mem_error":      (None,     [c_int, c_int, c_uint64, c_uint64, c_int, c_int]),
    "mem_slow":       (None,     [c_int, c_int, c_uint64, c_uint64, c_uint64, c_uint64, c_int]),
    "mem_pattern":    (c_int,    [c_int, c_int, c_uint64, c_uint64]),
    "mem_pattern_counts": (None, [c_int, c_int, _U64S]),
    "mem_log":        (c_size_t, [c_int, _U64S, c_size_t]),
}

_loaded: dict[str, ctypes.CDLL] = {}


def load(path: str) -> ctypes.CDLL:
    """Returns the ctypes library of a compiled model; raises OSError where it cannot be loaded."""
    if path not in _loaded:
        library = ctypes.CDLL(path)
        library.hs_new.restype, library.hs_new.argtypes = c_void_p, [c_uint64]
        for name, (result, arguments) in _CALLS.items():
            call = getattr(library, f"hs_{name}")
            call.restype, call.argtypes = result, [c_void_p, *arguments]
        _loaded[path] = library
    return _loaded[path]


class Bound:
    """Calls of one bench: `Bound(library, seed).step(10)`."""
    def __init__(self, library: ctypes.CDLL, seed: int) -> None:
        self._handle = library.hs_new(seed)
        handle = self._handle
        for name in _CALLS:
            setattr(self, name, _bind(getattr(library, f"hs_{name}"), handle))

    if TYPE_CHECKING:
        def __getattr__(self, name: str) -> Callable[..., Any]:
            """The calls of _CALLS."""


def _bind(call: Callable[..., Any], handle: int) -> Callable[..., Any]:
    return lambda *arguments: call(handle, *arguments)


def names(items: Sequence[str]) -> ctypes.Array[c_char_p]:
    """C array of C strings."""
    return (c_char_p * max(1, len(items)))(*[i.encode() for i in items])


def u64s(items: Sequence[int]) -> ctypes.Array[c_uint64]:
    """C array of 64-bit numbers."""
    return (c_uint64 * len(items))(*items)
