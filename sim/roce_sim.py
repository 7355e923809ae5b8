#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Runs the full SoC with its firmware in Verilator, its wire on this machine.

  ./sim/roce_sim.py                                   console of the firmware; link up, nobody on the wire
  ./sim/roce_sim.py --wire tap:roce0                  then: ping 192.168.1.50                        (root)
  ./sim/roce_sim.py --wire unix:soc.sock,qemu.sock    QEMU: -netdev dgram,...                        one frame a datagram
  ./sim/roce_sim.py --wire pcap:in.pcap --record out.pcap --cycles 2000000
  ./sim/roce_sim.py --bus-port 5555                   then: litex_server --uart --uart-port socket://localhost:5555
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from sim import env  # noqa: E402

env.enter("g++", "make", "zlib1g-dev", "libevent-dev", "libjson-c-dev", "gcc-riscv64-unknown-elf")

import argparse    # noqa: E402
import json        # noqa: E402
import logging     # noqa: E402
import os          # noqa: E402
import shutil      # noqa: E402
import signal      # noqa: E402
import subprocess  # noqa: E402
import tempfile    # noqa: E402
import time        # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any    # noqa: E402

from roce_soc.soc import DEFAULT_IP, DEFAULT_MAC  # noqa: E402
from sim.soc import Simulation, build_soc          # noqa: E402

HOST_IP = "192.168.1.1/24"      # address that a TAP interface gets.


FAULTS  = ("loss", "duplicate", "reorder", "corrupt", "fcs")


class BadArgument(Exception):
    """An argument that cannot be; its text names value and limit."""


def probability(text: str) -> float:
    """0..1."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"a probability is 0..1, not {text}")
    return value


def whole(text: str) -> int:
    """0 or more."""
    value = int(text, 0)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be 0 or more, not {text}")
    return value


def wire_arguments(text: str) -> dict[str, Any]:
    """Arguments of module roce_wire from --wire."""
    mode, _, rest = text.partition(":")
    if mode in ("none", "peer") and not rest:
        return {"mode": "none"} if mode == "none" else {"mode": "peer"}
    if mode == "unix" and rest.count(",") == 1:
        local, remote = (str(Path(p).absolute()) for p in rest.split(","))
        return {"mode": "unix", "local": local, "remote": remote}
    if mode == "tap" and 0 < len(rest) < 16:
        return {"mode": "tap", "tap": rest}
    if mode == "pcap" and rest:
        if not Path(rest).is_file():
            raise BadArgument(f"--wire pcap: no file {rest}")
        own = ":".join(f"{b:02x}" for b in DEFAULT_MAC.to_bytes(6, "big"))
        return {"mode": "pcap", "play": str(Path(rest).absolute()), "mac": own}
    raise BadArgument(f"--wire must be none, peer, unix:LOCAL,REMOTE, tap:NAME (15 characters) or pcap:FILE, not {text!r}")


def console_arguments(text: str) -> dict[str, Any]:
    """Arguments of module roce_uart from --uart."""
    mode, _, rest = text.partition(":")
    if mode in ("console", "none") and not rest:
        return {"mode": mode}
    if mode == "tcp" and rest.isdigit() and int(rest) < 65536:
        return {"mode": "tcp", "port": int(rest)}
    if mode == "file" and rest:
        return {"mode": "file", "path": str(Path(rest).absolute())}
    raise BadArgument(f"--uart must be console, none, tcp:PORT (0..65535) or file:PATH, not {text!r}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wire",       default="none",
                        help="none, peer (the reference model), unix:LOCAL,REMOTE, tap:NAME, pcap:FILE (frames to the SoC's MAC)")
    parser.add_argument("--record",     metavar="FILE",    help="pcap of all frames that pass the port")
    parser.add_argument("--uart",       default="console", help="console, tcp:PORT (0 any), file:PATH, none")
    parser.add_argument("--bus-port",   default=0, type=whole, metavar="PORT",
                        help="TCP port of the register bus, UARTBone's bytes (0: any, printed)")
    parser.add_argument("--cycles",     default=0, type=whole, metavar="N", help="end after so many clocks (0: never)")
    parser.add_argument("--address",    default=HOST_IP, metavar="IP/LEN",
                        help=f"of this machine on --wire tap (default {HOST_IP})")
    parser.add_argument("--pause",      default=1000, type=whole, metavar="N", help="clocks between the frames of --wire pcap")
    parser.add_argument("--seed",       default=1, type=whole, metavar="N",
                        help="of faults and of what RAM holds at power-up; printed")
    for name, text in (("loss", "frames lost"), ("duplicate", "frames doubled"), ("reorder", "frames held behind the next"),
                       ("corrupt", "frames with one bit turned behind the Ethernet header"),
                       ("fcs", "frames that the MAC marks bad")):
        parser.add_argument(f"--{name}", default=0.0, type=probability, metavar="P", help=f"probability of {text}, each way")
    parser.add_argument("--delay",      default=0, type=whole, metavar="N", help="a frame is held for at most so many clocks")
    parser.add_argument("--link-failures", default=0, type=int, choices=range(255), metavar="N",
                        help="bring-up attempts that fail at first")
    parser.add_argument("--without-engine", action="store_true",
                        help="link, firmware and slow path alone: builds and runs faster")
    parser.add_argument("--json",       action="store_true", help="figures of the run as JSON on stdout, at the end")
    return parser.parse_args()


def wait_end(simulation: Simulation) -> bool:
    """Until the run ends or Ctrl-C; returns whether it ended well."""
    try:
        return simulation.process.wait() == 0
    except KeyboardInterrupt:
        return True


def on_term(*_: object) -> None:
    """SIGTERM ends a run as Ctrl-C does."""
    raise KeyboardInterrupt


def main() -> int:
    arguments = parse()
    signal.signal(signal.SIGTERM, on_term)
    logging.disable(logging.INFO)
    folder = Path(tempfile.mkdtemp(prefix="roce-"))
    peer   = None
    try:
        wire    = wire_arguments(arguments.wire)
        console = console_arguments(arguments.uart)
        if arguments.bus_port > 65535:
            raise BadArgument(f"--bus-port must be 0..65535, not {arguments.bus_port}")
        if wire["mode"] == "tap" and os.geteuid():
            raise BadArgument("--wire tap needs root")
        if arguments.json and console["mode"] == "console":
            console = {"mode": "file", "path": str(folder/"uart.log")}
        wire.update({n: getattr(arguments, n) for n in (*FAULTS, "delay", "seed", "pause")})
        if arguments.record:
            wire["record"] = str(Path(arguments.record).absolute())
        if wire["mode"] == "peer":
            from sim.peer import PEER_IP, Peer
            wire.update(mode="unix", local=str(folder/"soc.sock"), remote=str(folder/"peer.sock"))
            peer = Peer(folder/"peer.sock", folder/"soc.sock").start()
            print(f"peer: {PEER_IP}, answers ARP; queue pairs of sim/peer.py", file=sys.stderr)
        began = time.monotonic()
        build = build_soc(**({"with_engine": False} if arguments.without_engine else {}))
        print(f"SoC {build.folder} ready after {time.monotonic() - began:.0f} s, {DEFAULT_IP}; csr.json there", file=sys.stderr)
        simulation = Simulation(build, wire=wire, console=console, cycles=arguments.cycles, bus_port=arguments.bus_port,
                                folder=folder/"run", seed=arguments.seed, quiet=False, hold=bool(arguments.link_failures))
        simulation.start(terminal=console["mode"] == "console")
        if arguments.link_failures:
            # The first attempt's own reset takes one off.
            simulation.bus.write_register("phy_fault_failures", arguments.link_failures + 1)
            simulation.bus.read_register("phy_fault_failures")
        if wire["mode"] == "tap":
            for command in (["addr", "replace", arguments.address, "dev", wire["tap"]], ["link", "set", wire["tap"], "up"]):
                subprocess.run(["ip", *command], check=True)
        good    = wait_end(simulation)
        figures = simulation.stop()
        if peer:
            peer.close()
            peer.check()
        if arguments.json:
            print(json.dumps(figures))
        return env.OK if good else env.FAILED
    except BadArgument as error:
        print(f"roce_sim.py: {error}", file=sys.stderr)
        return env.BAD_ARGUMENT
    except RuntimeError as error:
        print(f"roce_sim.py: {error}", file=sys.stderr)
        return env.FAILED
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
