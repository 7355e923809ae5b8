# SPDX-License-Identifier: BSD-2-Clause
"""Packet sequence chart of a capture as one HTML file: an arrow per frame, time downward, long runs folded."""
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from roce_soc import opcodes
from test.model.packet import PacketError, parse

ROW, LEFT, RIGHT = 22, 240, 760       # pixels.
COLOURS = {"SEND": "#1f77b4", "RDMA_WRITE": "#2ca02c", "RDMA_READ": "#9467bd", "ACKNOWLEDGE": "#7f7f7f", "other": "#bcbd22"}

NOTE = "#d62728"

Line = tuple[int | None, bytes | None, str, str]      # (ns, frame, label, colour); no time: of lines left out, no frame: a note.

PAGE = """<!doctype html>
<html><head><meta charset="utf-8"><title>{title}</title>
<style>body {{ font: 13px monospace; background: #fff }} text {{ font: 12px monospace }}</style></head>
<body><h3>{title}</h3><p>{note}</p>
<svg width="1000" height="{height}">
<defs><marker id="head" markerWidth="9" markerHeight="7" refX="8" refY="3.5" orient="auto">
<polygon points="0 0, 9 3.5, 0 7"/></marker></defs>
<line x1="{left}" y1="30" x2="{left}" y2="{height}" stroke="#000"/>
<line x1="{right}" y1="30" x2="{right}" y2="{height}" stroke="#000"/>
<text x="{left}" y="20" text-anchor="middle">{left_name}</text><text x="{right}" y="20" text-anchor="middle">{right_name}</text>
{rows}
</svg></body></html>
"""


def describe(frame: bytes) -> tuple[str, str]:
    """(label, colour) of a frame."""
    try:
        packet = parse(frame)
    except PacketError as error:
        return f"refused: {error.row}", "#d62728"
    if packet is None:
        kind = {0x0806: "ARP", 0x0800: "IPv4", 0x86dd: "IPv6"}.get(int.from_bytes(frame[12:14], "big"), "frame")
        return f"{kind} {len(frame)} B", COLOURS["other"]
    opcode = opcodes.OPCODES.get(packet.opcode)
    name   = opcode.name if opcode else f"{packet.opcode:#04x}"
    label  = f"{name} psn {packet.psn:06x} qpn {packet.dest_qpn:06x}"
    if packet.payload:
        label += f" {len(packet.payload)} B"
    colour = next((c for key, c in COLOURS.items() if key in name), COLOURS["other"])
    return label, colour


def fold(frames: Iterable[tuple[int, bytes]], notes: Iterable[tuple[int, str]] = ()) -> list[Line]:
    """[(ns, frame, label, colour)]: of more than four like frames in a row only the first and the last stay, one line between.

    `notes` [(ns, text)] stand among them by their time, with None for a frame.
    """
    rows = [(ns, frame, *describe(frame)) for ns, frame in frames] + [(ns, None, text, NOTE) for ns, text in notes]
    rows.sort(key=lambda row: row[0])
    like = [(frame and frame[6:12], label.split()[0] if frame else n) for n, (_, frame, label, _) in enumerate(rows)]
    out: list[Line] = []
    n = 0
    while n < len(rows):
        last = n
        while last + 1 < len(rows) and like[last + 1] == like[n]:
            last += 1
        if last - n > 3:
            out += [rows[n], (None, rows[n][1], f"... {last - n - 1} more {rows[n][2].split()[0]}", rows[n][3]), rows[last]]
        else:
            out += rows[n:last + 1]
        n = last + 1
    return out


def write_chart(path: Path, frames: Sequence[tuple[int, bytes]], own_mac: bytes, *, title: str,
                notes: Iterable[tuple[int, str]] = (), names: tuple[str, str] = ("SoC", "peer"), limit: int = 2000) -> int:
    """Writes the chart of [(ns, frame)] and notes [(ns, text)]; the station with `own_mac` (bytes) stands left. Returns the lines drawn."""
    rows, folded = [], fold(frames, notes)
    shown = folded[:limit]
    for n, (ns, frame, label, colour) in enumerate(shown):
        y = 50 + n*ROW
        if frame is None:
            rows.append(f'<line x1="{LEFT - 200}" y1="{y}" x2="{RIGHT + 200}" y2="{y}" stroke="{colour}" stroke-dasharray="2"/>'
                        f'<text x="{RIGHT + 8}" y="{y - 4}" fill="{colour}">{escape(label)}</text>'
                        f'<text x="{LEFT - 12}" y="{y - 4}" text-anchor="end" fill="{colour}">{ns/1000:.3f} us</text>')
            continue
        ends = (LEFT, RIGHT) if frame[6:12] == own_mac else (RIGHT, LEFT)
        arrow = 'marker-end="url(#head)"' if ns is not None else 'stroke-dasharray="4"'
        rows.append(f'<line x1="{ends[0]}" y1="{y}" x2="{ends[1]}" y2="{y + ROW//3}" stroke="{colour}" {arrow}/>'
                    f'<text x="{(LEFT + RIGHT)//2}" y="{y}" text-anchor="middle" fill="{colour}">{escape(label)}</text>'
                    + (f'<text x="{LEFT - 12}" y="{y + 6}" text-anchor="end">{ns/1000:.3f} us</text>' if ns is not None else ""))
    note = f"{len(frames)} frames in {len(folded)} lines, {len(shown)} drawn; simulated time at the SoC's port"
    page = PAGE.format(title=escape(title), note=note, height=80 + len(shown)*ROW, left=LEFT, right=RIGHT, left_name=names[0],
                       right_name=names[1], rows="\n".join(rows))
    path.write_text(page, encoding="utf-8")
    return len(shown)
