# SPDX-License-Identifier: BSD-2-Clause
"""The simulated SoC with its CPU as the guest's far end.

The firmware brings the link and the queue pairs up, the slow path's hardware answers ARP, and the bus
socket carries rings, doorbells and completions.
"""
import logging
import shutil
import socket
import time

from roce_soc.firmware import FIRMWARE_MAGIC
from sim import env
from sim.soc import Simulation, build_soc
from software.control.firmware import FirmwareError, FirmwareRoCE
from software.control.roce import CommandError
from test.interop.engine import EngineError, EngineUnavailable
from test.interop.engine_verbs import VerbsEngine

RING_MEMORY  = (0, 1 << 18)
BUFFERS      = (1 << 20, 2 << 20)
BOOT_SECONDS = 120
TAKE_SECONDS = 60       # the simulation takes a frame within this.
PACKAGES     = ("g++", "make", "zlib1g-dev", "libevent-dev", "libjson-c-dev", "gcc-riscv64-unknown-elf")


class SoCEngine(VerbsEngine):
    """sim/soc.py's SoC, its wire a pair of unix datagram sockets.

    Parameters
    ----------
    sockets : folder for sockets and the run's own files; its path must be short.
    logs : folder where the firmware's console (uart.log) and the simulator's messages (sim.log) are left.
    seed : contents of RAMs at power-up.
    say : where progress goes.
    """
    name = "soc"

    def __init__(self, sockets, logs, seed, say):
        lacking = env.install(PACKAGES)
        if lacking:
            raise EngineUnavailable(f"the SoC's simulation needs packages {' '.join(lacking)}")
        say("building the SoC's simulation where it is not in build/sim yet (2 minutes)")
        logging.disable(logging.INFO)
        try:
            build = build_soc()
        except RuntimeError as error:
            raise EngineError(f"the SoC cannot be built: {error}") from error
        self.logs, self.wire, self.figures = logs, str(sockets/"soc.wire"), {}
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(sockets/"soc.relay"))
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.simulation = Simulation(build, wire={"mode": "unix", "local": self.wire, "remote": str(sockets/"soc.relay")},
                                     folder=sockets/"soc", seed=seed)
        try:
            self.simulation.start()
            super().__init__(self._boot(say), BUFFERS, prefix="roce_")
        except RuntimeError as error:
            self.close()
            raise EngineError(f"the SoC does not start: {error}") from error
        except BaseException:
            self.close()
            raise

    def _boot(self, say):
        """The verbs layer, once the firmware runs and has the link up."""
        start, bus = time.monotonic(), self.simulation.bus
        say("booting the SoC")
        magic = bus.region("control_ram")
        self.simulation.wait(lambda: bus.read_words(magic, 1)[0] == FIRMWARE_MAGIC, BOOT_SECONDS)
        roce   = FirmwareRoCE(bus, ring_memory=RING_MEMORY)
        status = roce.firmware.wait_link(BOOT_SECONDS)
        say(f"SoC: link {status['link_state']} after {time.monotonic() - start:.1f} s and {status['link_attempts']} attempts")
        return roce

    # Wire -----------------------------------------------------------------------------------------

    def _alive(self):
        if self.simulation.process.poll() is not None:
            raise EngineError("the simulation ended: " + "; ".join(self.simulation.messages[-5:]))

    def deliver(self, frame):
        end = time.monotonic() + TAKE_SECONDS
        while True:
            try:
                self.socket.sendto(frame, self.wire)
                return
            except BlockingIOError as error:
                self._alive()
                if time.monotonic() > end:
                    raise EngineError(f"the simulation takes no frame for {TAKE_SECONDS} s") from error
                time.sleep(0.001)

    def collect(self):
        frames = []
        while True:
            try:
                frames.append(self.socket.recv(1 << 16))
            except BlockingIOError:
                if not frames:
                    self._alive()
                return frames

    def sockets(self):
        return [self.socket]

    # Software -------------------------------------------------------------------------------------
    # The wire is faster than the bus: what a frame of the guest will need must be there before it is sent.

    def write(self, va, data):
        super().write(va, data)
        self.simulation.bus.flush()

    def post_receive(self, qpn, wr_id, va, length, lkey):
        super().post_receive(qpn, wr_id, va, length, lkey)
        self.simulation.bus.flush()

    def connect(self, qpn, remote):
        try:
            super().connect(qpn, remote)
        except (FirmwareError, CommandError, TimeoutError) as error:
            raise EngineError(f"connect of qpn {qpn:#x}: {error}") from error

    def facts(self):
        status = self.roce.firmware.status()
        return {"link": status["link_state"], "firmware requests": status["requests"], "refusals": status["refusals"]}

    def close(self):
        """End the simulation; its console and messages stay in the logs."""
        simulation = self.simulation
        if simulation.process is not None:
            self.figures = simulation.stop()
        if (simulation.folder/"uart.log").exists():
            shutil.copy(simulation.folder/"uart.log", self.logs/"uart.log")
        (self.logs/"sim.log").write_text("\n".join([*simulation.messages, repr(self.figures), ""]))
        self.socket.close()
