# SPDX-License-Identifier: BSD-2-Clause
"""An engine in which everything was destroyed against one after power-up: rows, lists, flags, queues, counters."""
import functools
import re

from migen import bits_for

from roce_soc.queue.cq import queue_layout
from roce_soc.queue.sq_layout import cursor_layout
from roce_soc.transport.reply.rows import ROW_LAYOUT
from roce_soc.transport.requester.state import GENERATION_WIDTH, missed_layout, requester_layout
from roce_soc.transport.responder.entry import PARK_DEPTH, PARK_QP
from roce_soc.transport.responder.execute import DEFERRED
from sim.engine import Bench

# Memories that are not compared: (path, why).
EXCEPTIONS = (
    (r"\.monitor\.", "counters and refusals of the whole port, not of a QP"),
    (r"\.rq\.tag_info\.", "by read tag, written before each read"),
    (r"\.items\.table\.", "by QP, guarded by the flag that it waits"),
    (r"\.(entry|deferred)\.links\.", "by place, written when something is put behind another"),
    (r"\.turnaround\.|\.transmit\.|\.encoder\.|\.fetcher\.|\.placer\.|\.buffer\.(links|sizes)",
        "by place of a queue, guarded by its level"),
)
# Rows with fields that may differ: (path, layout, fields, why).
FIELDS = (
    (r"\.cursors\.",           cursor_layout(),    ("epoch", "life"), "count restarts of the prefetch and RESETs"),
    (r"\.state\.requester\.",  requester_layout(), ("epoch", "life"), "count restarts of the prefetch and RESETs"),
    (r"\.cq\.rows\.",         queue_layout(),     ("life",), "counts how often a queue was written"),
    (r"\.reply\.rows\.",      ROW_LAYOUT,         ("life",), "counts control operations and failures"),
    (r"\.entry\.lists\.",      [("parked", 1), ("ends", 2*bits_for(PARK_DEPTH - 1)), ("count", bits_for(PARK_QP))], ("ends",),
        "mean nothing while none is parked"),
    (r"\.deferred\.lists\.",   [("ends", 2*bits_for(DEFERRED - 1))], ("ends",), "mean nothing while none waits for a page"),
    (r"\.state\.missed\.",     missed_layout(), [name for name, _ in missed_layout() if name != "valid"], "of a miss that is over"),
    (r"\.state\.missing\.",    [("valid", 1), ("generation", GENERATION_WIDTH)], ("generation",), "of a miss that is over"),
)
# Flags that are the difference of two tables with one writer each.
PAIRS = (("up", "down"), ("pushed", "popped"))
# Registers that say what is under way; the rest of a module's registers is data that these make valid.
IDLE = (r"\.level$|\.flying\d*$|\.left\d*$|\.owed$|\.markers$|\.visit\.sq\.open$|\.chunks_free$|\.waited$|_valid$"
        r"|^core0\.(?!ev\.).*\.pending$")


@functools.lru_cache(maxsize=None)
def power_up():
    """(memories, registers) of an engine that has just become ready."""
    bench = Bench(seed=1)
    bench.step(2000)
    return bench.sim.memories(), bench.sim.registers(IDLE)


def mask_of(path):
    """Bits of a row that count."""
    for match, layout, may_differ, _ in FIELDS:
        if re.search(match, path):
            mask, at = 0, 0
            for name, width in layout:
                mask |= 0 if name in may_differ else ((1 << width) - 1) << at
                at   += width
            return mask
    return -1


def half_of(path, tables):
    """(whether the memory is half of a pair, path of the other half; that once a pair)."""
    for a, b in PAIRS:
        for mine, others in ((a, b), (b, a)):
            other = path.replace(f".{mine}.memory", f".{others}.memory")
            if other != path and other in tables:
                return True, other if mine == a else None
    return False, None


def leaks(sim):
    """Texts: what is not as after power-up."""
    before, idle  = power_up()
    after, found  = sim.memories(), []
    # A table of the send side and a flag with one writer have a copy for each reader.
    copies = {path: re.sub(r"\.copy\d+$", ".memory", path) for path in after}
    copies = {path: first if first != path else re.sub(r"(\.visit\..*|\.state\..*|\.popped\.|\.context\.table\.)memory\d+$", r"\1memory", path) for path, first in copies.items()}
    found += [f"{path} is not {first}" for path, first in copies.items()
        if first in after and after[path].raw != after[first].raw]
    tables = {path: rows for path, rows in after.items() if copies[path] == path and not any(before[path].raw)
        and not any(re.search(match, path) for match, _ in EXCEPTIONS)}
    assert len(tables) > 40, f"only {len(tables)} tables are compared"
    for path, rows in tables.items():
        half, other = half_of(path, tables)
        if half:
            found += [f"{path}[{n}] is up" for n in range(rows.depth) if other and rows[n] != tables[other][n]]
            continue
        mask = mask_of(path)
        found += [f"{path}[{n}] is {rows[n] & mask:#x}, not 0" for n in rows.changed(before[path]) if rows[n] & mask]
    registers = sim.registers(IDLE)
    return found + [f"{path} is {value:#x}, not {idle[path]:#x}"
        for path, value in registers.items() if value != idle[path]]
