# SPDX-License-Identifier: BSD-2-Clause
"""What the engine costs on UltraScale+: cut into its modules, mapped by Yosys, its netlist walked; used by sim/resources.py."""
