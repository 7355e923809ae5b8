# SPDX-License-Identifier: BSD-2-Clause
"""What this build can do, as registers that software reads first and as the answer of CMD_QUERY_DEVICE."""
from dataclasses import dataclass

from litex.gen import *
from litex.soc.interconnect.csr import *

from roce_soc import abi, common

FEATURES = abi.FEATURE_RC | abi.FEATURE_PUSH
EVERY_PAGE = 0xffff_ffff      # pages of a target that takes every address.


@dataclass(frozen=True)
class MemoryTarget:
    """What software is told of a memory target: abi.MEMORY_*, bytes (None: every address), abi.LATENCY_*."""
    kind: int
    size: int
    latency: int = abi.LATENCY_CHIP

    def __post_init__(self):
        if self.kind not in range(1, 5) or self.latency not in range(3):
            raise ValueError(f"kind must be 1..4 and latency 0..2, not {self.kind!r} and {self.latency!r}")
        if self.size is not None and (self.size <= 0 or self.size % common.PAGE_BYTES):
            raise ValueError(f"size must be a multiple of {common.PAGE_BYTES} bytes, not {self.size!r}")

    def words(self):
        """(kind and latency, pages) as software reads them."""
        return self.kind | self.latency << 4, EVERY_PAGE if self.size is None else min(self.size//common.PAGE_BYTES, EVERY_PAGE - 1)


def capability_words(*, n_qps, n_mrs, n_cqs, n_rqs, memories=(), features=FEATURES):
    """{name: (value, description)} in the order of the answer words of CMD_QUERY_DEVICE; memories : MemoryTargets."""
    if len(memories) > 1 << common.TARGET_WIDTH:
        raise ValueError(f"there can be {1 << common.TARGET_WIDTH} memories, not {len(memories)}")
    targets = {}
    for n, memory in enumerate(memories):
        kind, pages = memory.words()
        targets[f"memory{n}"]       = (kind, f"Memory target {n}: bits 3:0 kind (1 SRAM, 2 DRAM, 3 host, 4 user), 7:4 latency (0 chip, 1 board, 2 host).")
        targets[f"memory{n}_pages"] = (pages, f"Size of memory target {n} in pages of 4 KiB; {EVERY_PAGE:#x}: every address.")
    return {
        "abi":          (abi.ABI_VERSION, "Version of rings, commands and doorbells; software refuses another one."),
        "features":     (features, "Bit 0 RC, 1 UC, 2 UD, 3 atomics, 4 shared receive queues, 5 invalidate, 6 push."),
        "qps":          (n_qps, "Queue pairs; QPN = generation * qps + index."),
        "mrs":          (n_mrs, "Memory regions."),
        "cqs":          (n_cqs, "Completion queues."),
        "rqs":          (n_rqs, "Receive queue objects."),
        "max_pmtu":     (common.MAX_PMTU, "Largest path MTU in bytes."),
        "max_message":  (common.MAX_MESSAGE, "Largest message in bytes."),
        "max_reads":    (common.MAX_READS, "READs and atomics outstanding, either role."),
        "outstanding":  (common.OUTSTANDING, "Messages a QP may have unacknowledged."),
        "max_sge":      (1, "Scatter/gather entries of a work request."),
        "max_inline":   (64, "Inline bytes of a send work request."),
        "data_width":   (common.DATA_WIDTH, "Bits of the data path."),
        "memories":     (len(memories), "Memory targets; two words follow for each."),
        **targets,
    }


# RoCECapability -----------------------------------------------------------------------------------

class RoCECapability(LiteXModule):
    """Read-only registers, one per entry of :func:`capability_words`.

    Latency: none. Errors: none.
    """
    def __init__(self, words):
        for name, (value, description) in words.items():
            setattr(self, name, CSRStatus(32, reset=value, name=name, description=description))
