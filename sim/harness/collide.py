# SPDX-License-Identifier: BSD-2-Clause
"""Random bits where block RAM gives none that can be trusted: a row read in the clock in which it is written.

ROCE_COLLIDE=1 compiles models so. Spared are the read ports that say they can use the old word (`clocked_port` of
roce_soc/table.py): there it is what hardware gives.
Not supported: RAM with a clock on each side, whose pointers keep reader and writer apart.
"""
import os
import re
from collections.abc import Callable, Iterable, Iterator

from migen import Memory
from migen.fhdl.specials import READ_FIRST, _MemoryPort
from migen.fhdl.structure import _Fragment


def enabled() -> bool:
    """Whether models are compiled with random bits on collisions."""
    return os.environ.get("ROCE_COLLIDE", "0") not in ("", "0")


def readers(memory: Memory) -> Iterator[tuple[int, _MemoryPort]]:
    """Yields (number, port) of the clocked read-only ports."""
    for n, port in enumerate(memory.ports):
        if not port.async_read and port.we is None:
            yield n, port


def prepare(fragment: _Fragment) -> list[Memory]:
    """Gives every clocked read port a data register; returns the memories. Before the conversion."""
    memories = [special for special in fragment.specials if isinstance(special, Memory)]
    for memory in memories:
        for _, port in readers(memory):
            port.mode = READ_FIRST
    return memories


def collide(text: str, memories: Iterable[Memory], name_of: Callable[[Memory], str]) -> str:
    """The Verilog `text` with random bits in the data registers of all read ports that do not take the old word."""
    for memory in memories:
        numbers = [n for n, port in readers(memory) if not getattr(port, "old_word", False)]
        if not numbers:
            continue
        name   = name_of(memory)
        random = "{" + ", ".join(["$urandom"]*(-(-memory.width//32))) + "}"
        for n in numbers:
            read = re.search(rf"{name}_dat{n} <= {name}\[(\w+)\];", text)
            if read is None:
                raise ValueError(f"no read by port {n} of memory {name} in the Verilog text")
            clock = text[:read.start()].rpartition("always @(posedge ")[2].partition(")")[0]
            hits  = {f"({we} & ({adr} == {read[1]}))" for at, we, adr in writes(text, name) if at == clock}
            if hits:
                text = text.replace(read[0], f"{name}_dat{n} <= ({' | '.join(sorted(hits))}) ? {random} : {name}[{read[1]}];", 1)
    return text


def writes(text: str, name: str) -> Iterator[tuple[str, str, str]]:
    """Yields (clock, enable, address) of every write of memory `name`."""
    for found in re.finditer(rf"\tif \((\w+)(?:\[\d+\])?\)\n\t\t{name}\[(\w+)\](?:\[\d+:\d+\])? <= ", text):
        clock = text[:found.start()].rpartition("always @(posedge ")[2].partition(")")[0]
        yield clock, f"(|{found[1]})", found[2]
