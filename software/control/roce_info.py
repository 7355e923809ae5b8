#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""What a RoCE SoC says of itself: capability, link, firmware, counters, refusals, event log.

  litex_server --uart --uart-port socket://localhost:5555      (or a board's bridge)
  software/control/roce_info.py --csr build/.../csr.json [--watch]
"""
import argparse
import json
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from roce_soc.errors import ERRORS                              # noqa: E402
from software.control.bus import RemoteBus, SocketBus           # noqa: E402
from software.control.firmware import Firmware                  # noqa: E402

PHY_FLAGS = ("link_up", "aligned", "rx_status", "local_fault", "remote_fault", "hi_ber", "block_lock", "synced", "rsfec_active",
             "rsfec_aligned", "tx_reset_done", "rx_reset_done", "powergood", "tx_dead", "module_present", "module_interrupt")


def named(bus, prefix):
    """{name: value} of the one-word registers that begin with `prefix`."""
    names = [n for n, (_, words) in bus.map.registers.items() if n.startswith(prefix) and words == 1]
    return {n[len(prefix):]: bus.read_register(n) for n in names}


def counters(bus):
    """{name: value} of the engine's counters that are not zero: rows of errors.py."""
    out = {}
    for row in ERRORS.values():
        bus.write_register("roce_monitor_counter_select", row.index)
        while not bus.read_register("roce_monitor_ready"):
            pass
        value = bus.read_register("roce_monitor_counter_value")
        if value:
            out[row.name] = value
    return out


def collect(bus):
    """Everything as one dict."""
    engine = "roce_monitor_counter_select" in bus.map.registers
    status = bus.read_register("phy_status")
    counts = {n: v for n, v in named(bus, "phy_").items() if n.endswith("_count")}
    info   = {
        "link":       {"flags": [name for bit, name in enumerate(PHY_FLAGS) if status >> bit & 1], "status": status},
        "phy":        counts,
        "slowpath":   {n: v for n, v in named(bus, "slowpath_").items() if n.startswith(("rx_", "tx_"))},
        "capability": named(bus, "roce_capability_"),
        "refused":    counters(bus) if engine else {},
    }
    if "control_ram" in bus.map.memories:
        firmware = Firmware(bus)
        info["firmware"] = firmware.status()
        info["log"]      = [event._asdict() for event in firmware.log()] if info["firmware"]["running"] else []
    return info


def show(info, file=sys.stdout):
    """Prints sections of names and values."""
    for section, values in info.items():
        print(f"{section}:", file=file)
        if section == "log":
            for event in values[-12:]:
                print(f"  {event['ms']:8} ms {event['name']:12} {event['a']:#x} {event['b']:#x}", file=file)
            continue
        for name, value in values.items():
            print(f"  {name:20} {' '.join(value) if isinstance(value, list) else value}", file=file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csr",    default="csr.json", help="csr.json of the build")
    parser.add_argument("--host",   default="localhost")
    parser.add_argument("--port",   default=1234, type=int, help="port of litex_server (default 1234)")
    parser.add_argument("--direct", action="store_true", help="the port is the simulation's own bus socket, without litex_server")
    parser.add_argument("--watch",  action="store_true", help="counters that moved, every second")
    parser.add_argument("--json",   action="store_true")
    args = parser.parse_args()
    try:
        bus  = SocketBus(args.host, args.port, args.csr) if args.direct else RemoteBus(args.csr, args.host, args.port)
        info = collect(bus)
    except OSError as error:
        print(f"roce_info: {args.host}:{args.port}: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(info))
    else:
        show(info)
    while args.watch:
        time.sleep(1)
        before, info = info, collect(bus)
        for section in ("phy", "slowpath", "refused"):
            for name, value in info[section].items():
                moved = value - before[section].get(name, 0)
                if moved:
                    print(f"{section} {name} {value} (+{moved})", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
