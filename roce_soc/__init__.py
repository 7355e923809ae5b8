# SPDX-License-Identifier: BSD-2-Clause
"""RoCE v2 endpoint: Migen engine and LiteX SoC generator."""
