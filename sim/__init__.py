# SPDX-License-Identifier: BSD-2-Clause
"""Simulation of roce_soc: compiled harness, full-system runs, replay, benchmarks."""
