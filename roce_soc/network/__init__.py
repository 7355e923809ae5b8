# SPDX-License-Identifier: BSD-2-Clause
"""Layers 2 to 4: classify what comes in, arbitrate and pad what goes out, slow path."""
