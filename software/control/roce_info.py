#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""What a RoCE SoC says of itself: capability, link, firmware, counters, refusals, event log.

  litex_server --uart --uart-port socket://localhost:5555      the simulation; a board: --jtag --jtag-config ..., or its UART
  software/control/roce_info.py [--csr build/.../csr.json] [--watch]

csr.json is that of the build that runs. Without --csr: ./csr.json, else the newest of build/ whose SoC has the identifier
that the running one shows.

Exit status: 0 good, 1 not reached or another SoC, 2 bad argument.
"""
import argparse
import json
import pathlib
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from roce_soc import abi                                        # noqa: E402
from roce_soc.errors import ERRORS                              # noqa: E402
from roce_soc.tree import build_dir                             # noqa: E402
from software.control.bus import RemoteBus, SocketBus, WordBus  # noqa: E402
from software.control.firmware import Firmware                  # noqa: E402
from software.control.monitor import Monitor                    # noqa: E402

PHY_FLAGS = ("link_up", "aligned", "rx_status", "local_fault", "remote_fault", "hi_ber", "block_lock", "synced", "rsfec_active",
             "rsfec_aligned", "tx_reset_done", "rx_reset_done", "powergood", "tx_dead", "module_present", "module_interrupt")


class ForeignError(RuntimeError):
    """What answers is not the SoC that csr.json describes."""


def candidates(given: str | None = None, build: pathlib.Path | None = None) -> list[pathlib.Path]:
    """Paths of csr.json to try, the best first: `given` alone; else ./csr.json alone; else those of build/, newest first."""
    if given:
        return [pathlib.Path(given)]
    here = pathlib.Path("csr.json")
    if here.exists():
        return [here]
    return sorted((build or build_dir()).glob("**/csr.json"), key=lambda path: path.stat().st_mtime, reverse=True)


def check(bus: WordBus) -> None:
    """Raises ForeignError unless the SoC behind `bus` is the one of its csr.json: identifier, then the engine's ABI version."""
    wanted = str(bus.map.constants.get("config_identifier", ""))
    base   = bus.map.bases.get("identifier_mem")
    if base is None or not wanted:
        raise ForeignError("csr.json has no identifier: it is of no RoCE SoC")
    # LiteX keeps constants in small letters.
    shown  = "".join(chr(word & 0xff) for word in bus.read_words(base, 64)).split("\0")[0].lower()
    if shown != wanted:
        raise ForeignError(f"csr.json is of {wanted!r}, what answers says {shown!r}")
    if "roce_capability_abi" in bus.map.registers:
        version = bus.read_register("roce_capability_abi")
        if version != abi.ABI_VERSION:
            raise ForeignError(f"the engine has ABI version {version}, this program {abi.ABI_VERSION}")


def connect(args: argparse.Namespace) -> SocketBus | RemoteBus:
    """A bus whose csr.json fits what answers. Raises ForeignError, OSError, ValueError."""
    paths, reasons = candidates(args.csr), []
    if not paths:
        raise ForeignError("no csr.json: neither here nor under build/; name one with --csr")
    for path in paths:
        bus = SocketBus(args.host, args.port, path) if args.direct else RemoteBus(path, args.host, args.port)
        try:
            check(bus)
            return bus
        except ForeignError as error:
            reasons.append(f"{path}: {error}")
            bus.close()
    raise ForeignError("; ".join(reasons[:3]))


def named(bus: WordBus, prefix: str) -> dict[str, int]:
    """{name: value} of the one-word registers that begin with `prefix`."""
    names = [n for n, (_, words) in bus.map.registers.items() if n.startswith(prefix) and words == 1]
    return {n[len(prefix):]: bus.read_register(n) for n in names}


def counters(bus: WordBus) -> dict[str, int]:
    """{name: value} of the engine's counters that are not zero: rows of errors.py."""
    monitor = Monitor(bus)
    values  = {row.name: monitor.counter(row.index) for row in ERRORS.values()}
    return {name: value for name, value in values.items() if value}


def collect(bus: WordBus) -> dict[str, Any]:
    """Everything as one dict."""
    engine = "roce_monitor_host_status" in bus.map.registers
    status = bus.read_register("phy_status")
    counts = {n: v for n, v in named(bus, "phy_").items() if n.endswith("_count")}
    info: dict[str, Any] = {
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


def show(info: Mapping[str, Any], file: TextIO = sys.stdout) -> None:
    """Prints sections of names and values."""
    for section, values in info.items():
        print(f"{section}:", file=file)
        if section == "log":
            for event in values[-12:]:
                print(f"  {event['ms']:8} ms {event['name']:12} {event['a']:#x} {event['b']:#x}", file=file)
            continue
        for name, value in values.items():
            print(f"  {name:20} {' '.join(value) if isinstance(value, list) else value}", file=file)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csr",    help="csr.json of the build (default: see above)")
    parser.add_argument("--host",   default="localhost")
    parser.add_argument("--port",   default=1234, type=int, help="port of litex_server (default 1234)")
    parser.add_argument("--direct", action="store_true", help="the port is the simulation's own bus socket, without litex_server")
    parser.add_argument("--watch",  action="store_true", help="counters that moved, every second")
    parser.add_argument("--json",   action="store_true")
    args = parser.parse_args()
    try:
        run(args)
    except (OSError, ValueError, KeyError, ForeignError) as error:
        print(f"roce_info: {args.host}:{args.port}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


def run(args: argparse.Namespace) -> None:
    """Shows all once, with --watch then what moves."""
    bus  = connect(args)
    info = collect(bus)
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


if __name__ == "__main__":
    sys.exit(main())
