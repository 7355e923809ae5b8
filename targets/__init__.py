# SPDX-License-Identifier: BSD-2-Clause
"""Boards: each file brings clocks and pins to the SoC of roce_soc/soc.py."""
