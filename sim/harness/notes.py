# SPDX-License-Identifier: BSD-2-Clause
"""What Verilator says of a netlist: which notes are faults, which are a library's habit, which are worth a line.

A loop, a second driver, a latch or an open case is a fault: a vendor tool refuses the first (LUTLP-1) and the second, and
builds something else than what was simulated from the others.
"""
import re
from collections.abc import Iterable

# Refused by Verilator itself.
ERRORS  = ("ALWNEVER", "SELRANGE", "PINNOTFOUND", "LATCH", "IMPLICIT", "MULTITOP")
# Faults, unless ALLOWED names the place.
FAULTS  = ("UNOPTFLAT", "MULTIDRIVEN", "CASEINCOMPLETE")
# Shown.
SHOWN   = ("UNDRIVEN", "CASEOVERLAP", "CMPCONST", "REALCVT")
# LiteX's habits that are neither.
IGNORED = ("COMBDLY", "WIDTH", "PROCASSINIT")

# (kind, what the source line matches, reason).
ALLOWED = (
    ("CASEINCOMPLETE", r"case \((\w*(grant|roundrobin)\w*|(\w+_)?rr\d*)\)", "migen's RoundRobin: a grant it never gives keeps its value"),
    ("CASEINCOMPLETE", r"case \(\w*adr\w*\[\d+:0\]\)", "LiteX's CSR bank: an address without register reads 0, assigned before"),
    ("UNOPTFLAT", r"\w*arp_rx_depacketizer_source_valid;",
        "LiteEth's ARP: valid and ready in one block; no loop by signals (sim/netlist.py --part slowpath)"),
)


def flags() -> list[str]:
    """Verilator's options for these rules."""
    # -Werror alone does not bring back what -Wno-lint took away.
    return ["-Wno-fatal", "-Wno-lint", "-Wno-style", *[f"-Wno-{w}" for w in IGNORED], *[f"-Wwarn-{w}" for w in (*FAULTS, *SHOWN, *ERRORS)],
            *[f"-Werror-{w}" for w in ERRORS]]


def read(text: str) -> list[tuple[str, str, str]]:
    """[(kind, message, source line)] of Verilator's output."""
    found = []
    for note in re.split(r"^(?=%)", text, flags=re.M):
        head = re.match(r"%Warning-(\w+): (.*)", note)
        if head:
            line = re.search(r"^ *\d+ \| (.*)$", note, flags=re.M)
            found.append((head[1], head[2], line[1].strip() if line else ""))
    return found


def faults(text: str, allowed: Iterable[tuple[str, str, str]] = ALLOWED) -> list[str]:
    """The notes of `text` that are faults, as lines for a person."""
    return [f"{kind}: {message}: {line}" for kind, message, line in read(text)
            if kind in FAULTS and not any(kind == k and re.search(pattern, line) for k, pattern, _ in allowed)]
