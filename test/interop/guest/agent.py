# SPDX-License-Identifier: BSD-2-Clause
"""Guest end of the control channel: one JSON object per line on a virtio-serial port.

{"id": 1, "call": NAME, "args": {...}} is answered by {"id": 1, "value": ...} or {"id": 1, "error": TEXT}.
Calls are the public functions of verbs.py and those here. None of them waits for the wire, so that
the guest's clock need not run while the other side works.
"""
import glob
import json
import os
import re
import socket
import subprocess
import traceback

import verbs

PORT_NAME = "agent"


def shell(command):
    """[exit code, output] of a command line, for people who debug."""
    done = subprocess.run(command, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=20)
    return [done.returncode, done.stdout.decode("utf8", "replace")]

def hello():
    """Kernel, uptime in seconds and addresses of the guest."""
    with open("/proc/uptime") as uptime, open("/sys/class/net/eth0/address") as mac:
        return {"kernel": os.uname().release, "uptime": float(uptime.read().split()[0]), "mac": mac.read().strip()}

def set_mtu(mtu):
    """MTU of the interface; rxe follows."""
    subprocess.run(["ip", "link", "set", "eth0", "mtu", str(mtu)], check=True)

def neighbour(ip, mac):
    """A static neighbour entry, for an engine that answers no ARP."""
    subprocess.run(["ip", "neigh", "replace", ip, "lladdr", mac, "nud", "permanent", "dev", "eth0"], check=True)

def resolve(ip):
    """MAC that ARP found for an address, or None; a datagram to port 9 makes the kernel ask."""
    text  = subprocess.run(["ip", "neigh", "show", ip], stdout=subprocess.PIPE, check=True).stdout.decode()
    found = re.search(r"lladdr (\S+) (REACHABLE|STALE|DELAY|PERMANENT|PROBE)", text)
    if found:
        return found.group(1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.sendto(b"", (ip, 9))
    return None

CALLS = {f.__name__: f for f in (shell, hello, set_mtu, neighbour, resolve,
    verbs.open_qp, verbs.connect, verbs.close_qp, verbs.post_receive, verbs.post_send, verbs.poll,
    verbs.read, verbs.write, verbs.counters, verbs.state)}

def answer(line):
    """Reply to one request line."""
    request = json.loads(line)
    try:
        return {"id": request["id"], "value": CALLS[request["call"]](**request.get("args", {}))}
    except Exception:
        return {"id": request["id"], "error": traceback.format_exc()}

def open_port():
    """File descriptor of the virtio-serial port."""
    for name in glob.glob("/sys/class/virtio-ports/*/name"):
        with open(name) as file:
            if file.read().strip() == PORT_NAME:
                return os.open("/dev/" + name.split("/")[-2], os.O_RDWR)
    raise OSError(f"no virtio-serial port named {PORT_NAME}")

def serve():
    """Answer requests; does not return."""
    port, pending = open_port(), b""
    while True:
        pending += os.read(port, 1 << 16)
        while b"\n" in pending:
            line, pending = pending.split(b"\n", 1)
            reply = (json.dumps(answer(line)) + "\n").encode()
            while reply:
                reply = reply[os.write(port, reply):]
