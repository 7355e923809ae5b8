# SPDX-License-Identifier: BSD-2-Clause
"""Rows of sim/bench.py: budgets that fail the run, recorded floors, and the tables made of them.

Constants of the budgets stand here. Clocks are those of the engine; B6 and B7 leave the memory's latency out.
"""
import json
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from roce_soc.common import DATA_BYTES
from sim.wire import WIRE_BYTES, WIRE_OVERHEAD

FLOORS     = pathlib.Path(__file__).with_name("bench_floors.json")
CLOCKS_MHZ = (250.0, 322.265625)
SIZES      = (0, 8, 64, 128, 256, 512, 1024, 2048, 4096)
PMTUS      = (4096, 1024, 256)
OPERATIONS = ("WRITE", "SEND", "READ")

# Must. B1: clocks beyond beats. B2: clocks. B3: share of the wire. B4: clocks. B5: and the payload's beats but one.
# B6: and beats of the response. B7: and beats of the retransmitted frame, and so many for each message acknowledged.
MUST: dict[str, float] = {"B1": 1, "B2": 8, "B3": 0.995, "B4": 32, "B5": 40, "B6": 40, "B7": 64}
B7_MESSAGE   = 6
B5_SIZES     = (0, 64, 1024, 4096)
B6_SIZES     = (64, 1024, 4096)
B7_ROWS      = ((64, 0), (1024, 0), (64, 1), (64, 4), (64, 16))       # bytes, messages the NAK acknowledges.
HEADERS      = 14 + 20 + 8 + 12                                       # Ethernet, IPv4, UDP, BTH.
RETH, AETH, ICRC = 16, 4, 4

# Rows ---------------------------------------------------------------------------------------------

def beats(frame_bytes: int) -> int:
    """Beats of a frame on the 512-bit wire, padded to 60 bytes."""
    return -(-max(frame_bytes, 60)//DATA_BYTES)


def frame_beats(size: int, extension: int = 0) -> int:
    """Beats of an untagged IPv4 frame with `size` bytes of payload."""
    return beats(HEADERS + extension + -(-size//4)*4 + ICRC)


Say = Callable[[str], object]     # is told what comes next.


class Row(dict):
    """One line of the result: name, what, value, unit, limit, ok, clocks."""


def row(name: str, what: str, value: float, unit: str, limit: float | None = None, better: str = "lower", **more: float) -> Row:
    """A measured row; ok: it reaches `limit`."""
    ok = True if limit is None else (value <= limit if better == "lower" else value >= limit)
    return Row(name=name, what=what, value=round(value, 3), unit=unit, limit=None if limit is None else round(limit, 3),
        better=better, ok=ok, **more)


def rates(cycles: float, payload: int) -> dict[str, float]:
    """Gb/s of payload and million messages a second at both clocks, for `cycles` of the engine and `payload` bytes a message."""
    return {f"gbps_{mhz:.0f}": round(payload*8*mhz/1000/cycles, 1) for mhz in CLOCKS_MHZ} | {
        f"mmsg_{mhz:.0f}": round(mhz/cycles, 1) for mhz in CLOCKS_MHZ}


def judge(rows: Iterable[Row], floors: Mapping[str, float]) -> None:
    """Marks rows that are worse than their recorded floor (1 per cent and half a clock allowed for rounding)."""
    for r in rows:
        floor = floors.get(f"{r['name']} {r['what']}")
        if floor is None:
            continue
        r["floor"] = floor
        worse = r["value"] > floor*1.01 + 0.5 if r["better"] == "lower" else r["value"] < floor*0.99
        r["ok"] = r["ok"] and not worse


def b5_must(size: int) -> float:
    """Clocks that a WRITE of `size` bytes may take to its ACK."""
    return MUST["B5"] + -(-size//DATA_BYTES) - 1


def b6_must(size: int) -> float:
    """Clocks that a READ of `size` bytes may take to its response."""
    return MUST["B6"] + frame_beats(size, AETH)


def b7_must(size: int, acknowledged: int) -> float:
    """Clocks that a NAK may take to the retransmission of `size` bytes, with so many messages acknowledged."""
    return MUST["B7"] + frame_beats(size, RETH) + B7_MESSAGE*acknowledged


def latencies() -> list[tuple[str, str, float | None]]:
    """[(name, what, must)] of the latency rows, B4 to B7."""
    out  = [("B4", "last word of the push to first beat, 64 B inline WRITE", MUST["B4"]),
            ("B4", "doorbell to first beat, 64 B inline WRITE fetched from the ring", None)]
    out += [("B5", f"WRITE of {size} B in to ACK out", b5_must(size)) for size in B5_SIZES]
    out += [("B6", f"READ of {size} B in to response out", b6_must(size)) for size in B6_SIZES]
    out += [("B7", f"NAK that acknowledges {n} in to retransmission of {size} B out", b7_must(size, n))
        for size, n in B7_ROWS]
    return out

# Tables -------------------------------------------------------------------------------------------

def goodput(pmtu: int, share: float) -> float:
    """Gb/s of payload in WRITEs of one packet each, at a share of the 100 Gb/s wire."""
    return 8*pmtu*share*WIRE_BYTES*CLOCKS_MHZ[0]/1000/(HEADERS + RETH + pmtu + ICRC + WIRE_OVERHEAD)


def _table(heads: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|"*len(heads)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in cells) + " |" for cells in rows]) + "\n"


def markdown(floors: Mapping[str, float] | None = None) -> str:
    """The tables of README.md, from the recorded floors. KeyError names a row that was not recorded."""
    floors = floors if floors is not None else json.loads(FLOORS.read_text(encoding="utf-8"))
    sizes  = []
    for size in SIZES:
        receive, transmit = floors[f"B1 receive, {size} B"], floors[f"B1 transmit, {size} B"]
        speed = rates(max(receive, transmit), size)
        carried = [f"{speed[f'gbps_{m:.0f}']} Gb/s, {speed[f'mmsg_{m:.0f}']} M/s" for m in CLOCKS_MHZ]
        sizes.append((f"{size} B", receive, transmit, *carried))
    text  = "Clocks a frame by payload, 64 queue pairs, each side alone (must: beats + 1), and what that carries:\n\n"
    text += _table(("payload", "receive", "transmit", *(f"at {m:.0f} MHz" for m in CLOCKS_MHZ)), sizes)
    text += "\nOne queue pair:\n\n"
    rows: list[tuple[object, ...]] = [("B2", f"{o} of 64 B", f"{floors[f'B2 {o} 64 B, one QP']} clocks a message", MUST["B2"])
        for o in OPERATIONS[:2]]
    for pmtu in PMTUS:
        share = min(floors[f"B3 {o}, PMTU {pmtu}, {way}"] for o in OPERATIONS for way in ("one way", "both ways"))
        rows.append(("B3", f"streaming WRITE, SEND, READ, PMTU {pmtu}, one way and both",
            f"{share:.1%} of a 100G wire at 250 MHz: {goodput(pmtu, share):.1f} Gb/s", f"{MUST['B3']:.1%}"))
    rows += [(name, what, f"{floors[f'{name} {what}']} clocks", must or "-") for name, what, must in latencies()]
    return text + _table(("budget", "what", "measured", "must"), rows)
