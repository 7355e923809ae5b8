# SPDX-License-Identifier: BSD-2-Clause
"""The guest as a QEMU process: boot or restore, freeze and thaw, calls to its agent.

QEMU interprets (TCG): while the machine is stopped its clock and timers stand still, which is what
lets a slow simulation answer it. The wire is a unix datagram socket, one datagram a frame.

Ref: QEMU Machine Protocol (stop, cont, migrate, query-migrate); -netdev dgram (QEMU 7.2).
"""
import json
import select
import socket
import subprocess
import time

BOOT_SECONDS = 120
CALL_SECONDS = 30
MEMORY_MB    = 256
GUEST_MAC    = "52:54:00:00:00:01"
GUEST_IP     = "192.168.1.1"
PREFIX       = 24
MTU          = 1500


class GuestError(Exception):
    """The guest is gone, silent, or says that a call failed."""


# Channels -----------------------------------------------------------------------------------------

class LineSocket:
    """JSON objects, one a line, over a unix stream socket that QEMU listens on."""
    def __init__(self, path, process, seconds=20):
        self.pending, end = b"", time.monotonic() + seconds
        while True:
            self.socket = socket.socket(socket.AF_UNIX)
            try:
                self.socket.connect(str(path))
                return
            except OSError as error:
                self.socket.close()
                if process.poll() is not None or time.monotonic() > end:
                    raise GuestError(f"no QEMU behind {path}") from error
                time.sleep(0.02)

    def send(self, message):
        """Send one object."""
        self.socket.sendall((json.dumps(message) + "\n").encode())

    def receive(self, seconds):
        """The next object, or None when none came in time."""
        end = time.monotonic() + seconds
        while b"\n" not in self.pending:
            left = max(0, end - time.monotonic())
            if not select.select([self.socket], [], [], left)[0]:
                return None
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                raise GuestError("QEMU closed a channel (see qemu.log, console.log)")
            self.pending += data
        line, self.pending = self.pending.split(b"\n", 1)
        return json.loads(line)

    def close(self):
        """Close the socket."""
        self.socket.close()

# VM -----------------------------------------------------------------------------------------------

class VM:
    """A guest. `wire` (its frames) and `peer` (where they go) are paths of unix datagram sockets.

    Parameters
    ----------
    image : folder with kernel and initramfs (see image.py); a snapshot is kept beside them.
    sockets : folder for sockets; its path must be short (unix paths end at 108 bytes).
    logs : folder for console.log and qemu.log.
    restore : start from the snapshot instead of booting.
    """
    def __init__(self, image, sockets, logs, restore=False):
        self.image, self.sockets, self.calls = image, sockets, 0
        self.frozen, self.frozen_seconds, self.frozen_at = False, 0.0, 0.0
        self.wire, self.peer = sockets/"guest.wire", sockets/"relay.wire"
        with open(logs/"qemu.log", "wb") as log:
            self.process = subprocess.Popen(self._command(logs, restore), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self.qmp = LineSocket(sockets/"qmp", self.process)
            if self.qmp.receive(CALL_SECONDS) is None:
                raise GuestError("QEMU sends no QMP greeting")
            self.command("qmp_capabilities")
            self.agent = LineSocket(sockets/"agent", self.process)
            if restore:
                self._await(lambda: self.command("query-status")["status"] != "inmigrate", "restoring the snapshot")
                self.command("cont")
        except BaseException:
            self.close()
            raise

    def _command(self, logs, restore):
        options = {
            "-accel": "tcg", "-cpu": "Nehalem,+rdrand", "-machine": "q35", "-smp": "1", "-m": str(MEMORY_MB),
            "-kernel": f"{self.image}/kernel", "-initrd": f"{self.image}/initramfs",
            "-append": "console=ttyS0 quiet panic=-1 net.ifnames=0 tsc=reliable mitigations=off random.trust_cpu=on "
                       f"interop.ip={GUEST_IP}/{PREFIX} interop.mtu={MTU}",
            "-display": "none", "-monitor": "none", "-serial": f"file:{logs}/console.log",
            "-qmp": f"unix:{self.sockets}/qmp,server=on,wait=off",
            "-chardev": f"socket,id=agent,path={self.sockets}/agent,server=on,wait=off",
            "-netdev": f"dgram,id=wire,local.type=unix,local.path={self.wire},remote.type=unix,remote.path={self.peer}",
        }
        command = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot"]
        for option, value in options.items():
            command += [option, value]
        for device in (f"virtio-net-pci,netdev=wire,mac={GUEST_MAC},romfile=", "virtio-serial-pci",
                       "virtserialport,chardev=agent,name=agent"):
            command += ["-device", device]
        return command + (["-incoming", f"exec:cat {self.image}/snapshot"] if restore else [])

    # QMP ------------------------------------------------------------------------------------------

    def command(self, name, **arguments):
        """Return value of a QMP command."""
        self.qmp.send({"execute": name, "arguments": arguments})
        while True:
            reply = self.qmp.receive(CALL_SECONDS)
            if reply is None:
                raise GuestError(f"QMP {name}: no answer in {CALL_SECONDS} s")
            if "error" in reply:
                raise GuestError(f"QMP {name}: {reply['error']['desc']}")
            if "return" in reply:
                return reply["return"]

    def _await(self, done, what, seconds=60):
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                raise GuestError(f"{what}: not done in {seconds} s")
            time.sleep(0.02)

    def freeze(self):
        """Stop the guest and its clock."""
        if not self.frozen:
            self.command("stop")
            self.frozen, self.frozen_at = True, time.monotonic()

    def thaw(self):
        """Let the guest run."""
        if self.frozen:
            self.command("cont")
            self.frozen = False
            self.frozen_seconds += time.monotonic() - self.frozen_at

    def save(self):
        """Write the snapshot; the guest stays stopped, close it."""
        self.freeze()
        part = self.image/"snapshot.part"
        self.command("migrate-set-parameters", **{"max-bandwidth": 1 << 40})
        self.command("migrate", uri=f"exec:cat > {part}")
        self._await(lambda: self.command("query-migrate").get("status") in ("completed", "failed"), "saving the snapshot")
        if self.command("query-migrate")["status"] != "completed":
            raise GuestError("QEMU could not save the snapshot")
        part.rename(self.image/"snapshot")

    # Agent ----------------------------------------------------------------------------------------

    def request(self, call, **args):
        """Send a call to the agent and return its number; the guest must be running to answer it."""
        self.calls += 1
        self.agent.send({"id": self.calls, "call": call, "args": args})
        return self.calls

    def reply(self, number, seconds):
        """(True, value) of call `number`, or (False, None) when it did not come in time."""
        while True:
            message = self.agent.receive(seconds)
            if message is None:
                return False, None
            if message.get("id") == number:
                if "error" in message:
                    raise GuestError(f"guest: {message['error'].strip()}")
                return True, message["value"]

    def call(self, name, seconds=CALL_SECONDS, **args):
        """Value of a call that needs no frames to be carried meanwhile."""
        done, value = self.reply(self.request(name, **args), seconds)
        if not done:
            raise GuestError(f"guest: {name}: no answer in {seconds} s (see console.log)")
        return value

    def close(self):
        """End QEMU."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for name in ("qmp", "agent"):
            if hasattr(self, name):
                getattr(self, name).close()


def start_guest(image, sockets, logs, say):
    """A running guest, out of the snapshot; the first time it boots once to make that."""
    if not (image/"snapshot").exists():
        start = time.monotonic()
        say("booting the guest once for its snapshot")
        vm = VM(image, sockets, logs)
        try:
            uptime = vm.call("hello", seconds=BOOT_SECONDS)["uptime"]
            vm.save()
        finally:
            vm.close()
        size = (image/"snapshot").stat().st_size >> 20
        say(f"snapshot of {size} MiB after {time.monotonic() - start:.1f} s (guest uptime {uptime:.1f} s)")
        for leftover in sockets.iterdir():
            leftover.unlink()
    return VM(image, sockets, logs, restore=True)
