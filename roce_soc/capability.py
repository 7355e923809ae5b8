# SPDX-License-Identifier: BSD-2-Clause
"""What this build can do, as registers that software reads first and as the answer of CMD_QUERY_DEVICE."""
from litex.gen import *
from litex.soc.interconnect.csr import *

from roce_soc import abi, common

FEATURES = abi.FEATURE_RC | abi.FEATURE_PUSH


def capability_words(*, n_qps, n_mrs, n_cqs, n_rqs, memory_bytes, features=FEATURES):
    """{name: (value, description)} in the order of the answer words of CMD_QUERY_DEVICE."""
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
        "memory_bytes": (memory_bytes, "Bytes of memory target 0."),
        "data_width":   (common.DATA_WIDTH, "Bits of the data path."),
    }


# RoCECapability -----------------------------------------------------------------------------------

class RoCECapability(LiteXModule):
    """Read-only registers, one per entry of :func:`capability_words`."""
    def __init__(self, words):
        for name, (value, description) in words.items():
            setattr(self, name, CSRStatus(32, reset=value, name=name, description=description))
