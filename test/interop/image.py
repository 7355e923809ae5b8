# SPDX-License-Identifier: BSD-2-Clause
"""The guest: a Debian kernel with rdma_rxe, and an initramfs with Python, pyverbs and our agent.

Everything comes out of .deb files that apt finds; they are read as archives, nothing is installed
and no root is needed for it. Only missing host tools (QEMU) are installed, where root or sudo can.

Ref: Linux Documentation/driver-api/early-userspace/buffer-format (newc).
Not supported: hosts that are no amd64 Debian or derivative: Unavailable says so.
"""
import fnmatch
import hashlib
import io
import lzma
import os
import re
import shutil
import stat
import subprocess
import tarfile
from pathlib import Path

HERE          = Path(__file__).resolve().parent
GUEST_FILES   = {"init": 0o755, "agent.py": 0o644, "verbs.py": 0o644}
KERNEL        = "6.12"
HOST_TOOLS    = {"qemu-system-x86_64": "qemu-system-x86", "dpkg-deb": "dpkg", "apt-get": "apt"}
GUEST_WANTS   = ("python3-pyverbs", "ibverbs-providers", "iproute2", "busybox-static")
MODULES       = ("virtio_net", "crc32_generic", "crc32_pclmul", "ib_uverbs", "rdma_rxe")
MODULE_PATHS  = ("*/drivers/net/*", "*/infiniband/*", "*/crypto/*", "*/net/ipv*", "*/net/core/*", "*/lib/*")

# Which packages of the dependency closure are read, and which files of them are kept.
PACKAGES      = ("lib*", "zlib1g", "python3*", "ibverbs-providers", "iproute2", "busybox-static")
NOT_PACKAGES  = ("libperl*", "*-perl", "libsystemd*", "libgcrypt*", "libsqlite*", "libpam*", "libsemanage*", "libsepol*")
FILES         = ("usr/lib64/*", "usr/lib/x86_64-linux-gnu/*", "usr/lib/python3*", "usr/bin/python3*",
                 "usr/bin/busybox", "usr/bin/rdma", "usr/bin/ip", "usr/sbin/ip", "etc/libibverbs.d/rxe.driver")
NOT_FILES     = ("*/gconv/*", "*/idlelib/*", "*/lib2to3/*", "*/ensurepip/*", "*/distutils/*", "*/pydoc_data/*",
                 "*/config-3*", "*.a", "*/perl*", "*/libibverbs/lib[!r]*", "*/audit/*", "*/e2fsprogs/*")
MERGED        = ("bin", "sbin", "lib", "lib64")
APT_SECONDS   = 170


class Unavailable(Exception):
    """A tool or package that this machine has not and cannot get; the run is skipped."""


# Tools --------------------------------------------------------------------------------------------

def run(command, timeout=APT_SECONDS, **options):
    """stdout of a command; Unavailable with its last line where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, **options)
    except FileNotFoundError as error:
        raise Unavailable(f"{command[0]}: not found") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{' '.join(command[:3])}: no end after {timeout} s") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise Unavailable(f"{' '.join(command[:3])}: exit {done.returncode}: {lines[-1]}")
    return done.stdout

def as_root(command):
    """Run a command as root: directly, or by sudo that asks for no password."""
    if os.geteuid():
        if not shutil.which("sudo") or subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode:
            raise Unavailable(f"needs root or sudo for: {' '.join(command)}")
        command = ["sudo", "-n"] + command
    return run(command, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})

def check_tools(say):
    """Host tools are there or are installed; QEMU must know unix datagrams (7.2)."""
    missing = [package for tool, package in HOST_TOOLS.items() if not shutil.which(tool)]
    if {"apt", "dpkg"} & set(missing):
        raise Unavailable(f"no {' and '.join(missing)}: the guest is made of Debian packages")
    if missing:
        say(f"installing {' '.join(missing)}")
        if not apt_knows(missing[0]):
            update_lists(say)
        as_root(["apt-get", "-qq", "install", "-y", "--no-install-recommends", *missing])
    text    = run(["qemu-system-x86_64", "--version"])
    version = tuple(int(n) for n in re.search(r"version (\d+)\.(\d+)", text).groups())
    if version < (7, 2):
        raise Unavailable(f"QEMU must be 7.2 or later (-netdev dgram), not {version[0]}.{version[1]}")

# Packages -----------------------------------------------------------------------------------------

def update_lists(say):
    """Renew apt's lists."""
    say("apt-get update")
    as_root(["apt-get", "-qq", "update"])

def apt_knows(package):
    """True where apt's lists hold a candidate of a package."""
    return "Candidate:" in run(["apt-cache", "policy", package]).replace("Candidate: (none)", "")

def kernel_package():
    """Name of the package that holds the kernel, by its meta package."""
    for meta in (f"linux-image-{KERNEL}-amd64", "linux-image-amd64"):
        depends = re.findall(r"Depends: (linux-image-\S+)", run(["apt-cache", "depends", meta])) if apt_knows(meta) else []
        if depends and f"-{KERNEL}." in depends[0]:
            return depends[0]
    raise Unavailable(f"apt knows no linux-image {KERNEL} for amd64 (cloud kernels have no rdma_rxe)")

def guest_packages(scratch):
    """Names of the packages whose files the guest holds: the closure over an empty system, filtered."""
    status = scratch/"status"
    status.write_text("")
    plan = run(["apt-get", "-o", f"Dir::State::status={status}", "-o", "APT::Install-Recommends=0",
                "-o", "Debug::NoLocking=1", "-s", "-y", "install", *GUEST_WANTS])
    names = [name.split(":")[0] for name in re.findall(r"^Inst (\S+)", plan, re.M)]
    return [name for name in names if matches(name, PACKAGES) and not matches(name, NOT_PACKAGES)]

def download(names, folder, say):
    """Paths of the packages' .deb files, fetched where the folder has none."""
    def find(name):
        return max(folder.glob(f"{name}_*.deb"), default=None, key=lambda path: path.stat().st_mtime)
    missing = [name for name in names if find(name) is None]
    if missing:
        say(f"downloading {len(missing)} packages")
        try:
            run(["apt-get", "-q", "download", *missing], cwd=folder)
        except Unavailable:                       # The lists may be older than the archive.
            update_lists(say)
            run(["apt-get", "-q", "download", *missing], cwd=folder)
    return [find(name) for name in names]

def matches(name, patterns):
    """True where one of the patterns is that of a name."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

def members(deb):
    """(path, tar entry, open tar) of the files of a package, with merged /usr."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(deb)], stdout=subprocess.PIPE) as process:
        with tarfile.open(fileobj=process.stdout, mode="r|") as tar:
            for entry in tar:
                path = entry.name.removeprefix("./")
                if path.split("/")[0] in MERGED:
                    path = "usr/" + path
                yield path, entry, tar
        process.stdout.read()
    if process.returncode:
        raise Unavailable(f"dpkg-deb: {deb.name} is damaged, remove it")

# Kernel -------------------------------------------------------------------------------------------

def read_kernel(deb):
    """(bzImage, {module: bytes}, built-in modules) of a kernel package."""
    image, modules, builtin = b"", {}, set()
    for path, entry, tar in members(deb):
        base = os.path.basename(path)
        if path.startswith("boot/vmlinuz"):
            image = tar.extractfile(entry).read()
        elif base == "modules.builtin":
            text    = tar.extractfile(entry).read().decode()
            builtin = {module_name(line) for line in text.split()}
        elif ".ko" in base and matches(path, MODULE_PATHS):
            modules[module_name(base)] = tar.extractfile(entry).read()
    return image, modules, builtin

def module_name(path):
    """Name of a module as the kernel says it."""
    return os.path.basename(path).split(".ko")[0].replace("-", "_")

def module_order(modules, builtin):
    """[(name, bytes)] of MODULES and what they depend on, each after its own dependencies."""
    order = {}
    def add(name):
        if name in order or name in builtin:
            return
        if name not in modules:
            raise Unavailable(f"kernel package has no module {name}")
        data = modules[name]
        if data[:6] == b"\xfd7zXZ\0":
            data = lzma.decompress(data)
        for needed in re.search(rb"[\0]depends=([^\0]*)\0", data).group(1).decode().split(","):
            if needed:
                add(needed.replace("-", "_"))
        order[name] = data
    for name in MODULES:
        add(name)
    return list(order.items())

# Initramfs ----------------------------------------------------------------------------------------

class Cpio:
    """Writes a newc archive in memory; parents are made where missing, a path is written once."""
    def __init__(self):
        self.out, self.paths = io.BytesIO(), set()

    def add(self, path, mode, data=b""):
        """One entry: mode with its file type; data is a file's bytes or a link's target."""
        if path in self.paths:
            return
        parent = os.path.dirname(path)
        if parent and parent not in self.paths:
            self.add(parent, stat.S_IFDIR | 0o755)
        self.paths.add(path)
        name   = path.encode() + b"\0"
        fields = (len(self.paths), mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
        self._put(b"070701" + "".join(f"{value:08x}" for value in fields).encode() + name)
        self._put(data)

    def _put(self, data):
        self.out.write(data + bytes(-len(data) & 3))

    def finish(self):
        """The archive."""
        self.add("TRAILER!!!", 0)
        return self.out.getvalue()

def _add_package(cpio, deb):
    for path, entry, tar in members(deb):
        if not matches(path, FILES) or matches(path, NOT_FILES):
            continue
        if entry.issym():
            cpio.add(path, stat.S_IFLNK | 0o777, entry.linkname.encode())
        elif entry.isreg():
            cpio.add(path, stat.S_IFREG | entry.mode, tar.extractfile(entry).read())

def make_initramfs(debs, modules):
    """newc archive of the guest's whole root file system."""
    cpio = Cpio()
    for name in MERGED:
        cpio.add(f"usr/{name}", stat.S_IFDIR | 0o755)
        cpio.add(name, stat.S_IFLNK | 0o777, f"usr/{name}".encode())
    for name in ("proc", "sys", "dev", "run", "tmp", "root"):
        cpio.add(name, stat.S_IFDIR | 0o755)
    for deb in debs:
        _add_package(cpio, deb)
    cpio.add("usr/bin/sh", stat.S_IFLNK | 0o777, b"busybox")
    for position, (name, data) in enumerate(modules):
        cpio.add(f"modules/{position:02}-{name}.ko", stat.S_IFREG | 0o644, data)
    for name, mode in GUEST_FILES.items():
        path = name if name == "init" else f"agent/{name}"
        cpio.add(path, stat.S_IFREG | mode, (HERE/"guest"/name).read_bytes())
    return cpio.finish()

# Cache --------------------------------------------------------------------------------------------

def image_key():
    """Changes when anything that makes the image changes."""
    digest = hashlib.sha256()
    for path in [Path(__file__), HERE/"vm.py"] + [HERE/"guest"/name for name in GUEST_FILES]:
        digest.update(path.read_bytes())
    return digest.hexdigest()

def ensure_image(folder, say):
    """Build kernel and initramfs into folder/image unless they are there. Returns that path.

    Raises Unavailable where the machine has not what it takes.
    """
    check_tools(say)
    image, packages = folder/"image", folder/"packages"
    if (image/"key").exists() and (image/"key").read_text() == image_key():
        return image
    shutil.rmtree(image, ignore_errors=True)
    image.mkdir(parents=True)
    packages.mkdir(exist_ok=True)
    if not apt_knows("python3-pyverbs"):
        update_lists(say)
    debs   = download(guest_packages(folder), packages, say)
    kernel = download([kernel_package()], packages, say)[0]
    say(f"unpacking {kernel.name}")
    bzimage, modules, builtin = read_kernel(kernel)
    (image/"kernel").write_bytes(bzimage)
    say("writing the initramfs")
    initramfs = make_initramfs(debs, module_order(modules, builtin))
    (image/"initramfs").write_bytes(initramfs)
    say(f"kernel {len(bzimage) >> 20} MiB, initramfs {len(initramfs) >> 20} MiB")
    (image/"key").write_text(image_key())
    return image
