# SPDX-License-Identifier: BSD-2-Clause
"""100G Ethernet PHYs: the AMD hard block and a simulation model behind the same streams and registers."""
