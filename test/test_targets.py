# SPDX-License-Identifier: BSD-2-Clause
"""Targets: the command's files, messages and exit status; the Verilog passes lint; pins against the board's tables."""
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sim.harness import notes
from sim.harness.compile import verilator_root
from sim.harness.emit import combinational

ROOT    = Path(__file__).resolve().parents[1]
TARGETS = sorted(p.stem for p in (ROOT / "targets").glob("*.py") if p.stem not in ("__init__", "common"))
STUBS   = sorted((ROOT / "test" / "stubs").glob("*.v"))


def without_tools(**more):
    """An environment without Vivado and openFPGALoader."""
    folders = [p for p in os.environ["PATH"].split(os.pathsep)
               if not any((Path(p) / tool).exists() for tool in ("vivado", "openFPGALoader"))]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LITEX_ENV")}
    return {**environment, "PATH": os.pathsep.join(folders), "PYTHONPATH": str(ROOT), **more}


def run(target, *arguments, **more):
    return subprocess.run([sys.executable, str(ROOT / "targets" / f"{target}.py"), *arguments], cwd=ROOT, text=True,
                          capture_output=True, env=without_tools(**more))


@pytest.fixture(scope="module", params=TARGETS)
def built(request):
    """(target, output folder) after --build on a machine without Vivado."""
    # A folder that stays: the C library is compiled once. Workers of one run share what the first of them builds.
    output = ROOT / "build" / "test" / request.param
    output.mkdir(parents=True, exist_ok=True)
    run_id = os.environ.get("PYTEST_XDIST_TESTRUNUID", "")
    with open(output / "lock", "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        if not run_id or lock.read() != run_id:
            shutil.rmtree(output / "gateware", ignore_errors=True)
            shutil.rmtree(output / "software" / "firmware", ignore_errors=True)
            done = run(request.param, "--build", "--output-dir", str(output))
            assert done.returncode == 3, done.stderr
            assert "missing: Vivado" in done.stderr
            lock.truncate(0)
            lock.write(run_id)
    return request.param, output

# Files --------------------------------------------------------------------------------------------

def test_files(built):
    name, output = built
    for suffix in (".v", ".xdc", ".tcl"):
        assert (output / "gateware" / f"{name}{suffix}").stat().st_size > 1000
    registers = json.loads((output / "csr.json").read_text())["csr_registers"]
    assert {"phy_control", "phy_status", "phy_latched", "phy_rx_frames_count"} <= set(registers)
    assert not any("fault" in name for name in registers if name.startswith("phy_fault")), "the board has no fault model"


@pytest.mark.skipif(not shutil.which("riscv64-unknown-elf-gcc"), reason="no RISC-V compiler")
def test_firmware_is_in_the_rom(built):
    name, output = built
    assert (output / "software" / "firmware" / "firmware.bin").stat().st_size > 1000
    assert any(file.stat().st_size > 1000 for file in (output / "gateware").glob("*rom*.init"))


def test_files_can_be_moved(built):
    name, output = built
    gateware = output / "gateware"
    for file in (f"{name}.tcl", f"{name}.xdc", f"{name}.v"):
        text = (gateware / file).read_text()
        assert "site-packages" not in text and str(ROOT) not in text and str(output) not in text, file
    tcl = (gateware / f"{name}.tcl").read_text()
    for source in re.findall(r"read_(?:verilog|xdc) (?:-v )?\{?([^}\n]+)\}?", tcl):
        assert (gateware / source).exists(), source
    for image in re.findall(r'\$readmemh\("([^"]+)"', (gateware / f"{name}.v").read_text()):
        assert (gateware / image).exists() and "/" not in image, image


def test_core_is_made_by_the_build_script(built):
    name, output = built
    tcl = (output / "gateware" / f"{name}.tcl").read_text()
    assert "create_ip -name cmac_usplus" in tcl and "{{" not in tcl
    for text in ("CONFIG.INCLUDE_RS_FEC {1}", "CONFIG.ENABLE_AXI_INTERFACE {0}", "CONFIG.GT_DRP_CLK {125.00}"):
        assert text in tcl
    assert tcl.index("create_ip") < tcl.index("synth_design") < tcl.index("set_max_delay -datapath_only")
    nets = re.findall(r"get_nets (\w+)\]", tcl)
    verilog = (output / "gateware" / f"{name}.v").read_text()
    assert nets and all(re.search(rf"\b{net}\b", verilog) for net in nets)


def test_lint(built, tmp_path):
    """The generated Verilog with the vendor's cells as stubs: no latch, loop, second driver, dead block, wrong port, range error."""
    name, output = built
    for file in (output / "gateware").iterdir():
        if file.suffix in (".v", ".init"):
            text = file.read_text()
            (tmp_path / file.name).write_text(combinational(text) if file.stem == name else text)
    flags  = ["--lint-only", "--no-timing", "--top-module", name, *notes.flags(), "-Wwarn-PINMISSING", "-Werror-PINMISSING"]
    root   = verilator_root()
    # The CPU is a vendored file with unconnected outputs of its own.
    rules = "".join(f'lint_off -rule {rule} -file "*VexRiscv*"\n' for rule in ("PINMISSING", *notes.FAULTS))
    (tmp_path / "waive.vlt").write_text("`verilator_config\n" + rules)
    sources = sorted(p.name for p in tmp_path.glob("*.v"))
    done = subprocess.run([str(root / "bin" / "verilator_bin"), *flags, "waive.vlt", *sources, *map(str, STUBS)], cwd=tmp_path,
                          capture_output=True, text=True, env={**os.environ, "VERILATOR_ROOT": str(root)})
    assert done.returncode == 0, done.stderr[-4000:]
    assert not notes.faults(done.stderr)

# Command ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("target", TARGETS)
def test_load_without_loader(target, tmp_path):
    done = run(target, "--load", "--output-dir", str(tmp_path))
    assert done.returncode == 3
    assert "openFPGALoader" in done.stderr and "Vivado" in done.stderr


@pytest.mark.parametrize("target", TARGETS)
def test_load_without_bitstream(target, tmp_path):
    tool = tmp_path / "openFPGALoader"
    tool.write_text("#!/bin/sh\nexit 0\n")
    tool.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{without_tools()['PATH']}"
    done = run(target, "--load", "--output-dir", str(tmp_path), PATH=path)
    assert done.returncode == 1 and "no bitstream" in done.stderr
    (tmp_path / "gateware").mkdir()
    (tmp_path / "gateware" / f"{target}.bit").write_text("")
    assert run(target, "--load", "--output-dir", str(tmp_path), PATH=path).returncode == 0
    tool.write_text("#!/bin/sh\nexit 5\n")
    assert run(target, "--load", "--output-dir", str(tmp_path), PATH=path).returncode == 1


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("arguments, text", [
    ([], "nothing to do"), (["--no-compile"], "--no-compile needs --build"), (["--build", "--sys-clk-freq", "1e6"], "50e6..300e6"),
    (["--build", "--sys-clk-freq", "fast"], "fast"), (["--nonsense"], "--nonsense"), (["--build", "--cage", "3"], "3")])
def test_bad_arguments(target, arguments, text):
    done = run(target, *arguments)
    assert done.returncode == 2 and text in done.stderr


@pytest.mark.parametrize("target", TARGETS)
def test_help(target):
    done = run(target, "--help")
    assert done.returncode == 0
    for option in ("--build", "--load", "--no-compile", "--sys-clk-freq"):
        assert option in done.stdout

# VCU118 -------------------------------------------------------------------------------------------

def constraints(output):
    """{port: {property: value}} of the XDC."""
    found = {}
    for key, value, port in re.findall(r"set_property (\w+) (\S+) \[get_ports \{(\S+)\}\]", (output / "gateware" / "vcu118.xdc").read_text()):
        found.setdefault(port, {})[key] = value
    return found


def test_vcu118_files_only(tmp_path):
    """The other cage and clock, without RS-FEC."""
    done = run("vcu118", "--build", "--no-compile", "--cage", "2", "--no-rsfec", "--sys-clk-freq", "100e6", "--roce-clk-freq", "200e6",
               "--output-dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    tcl  = (tmp_path / "gateware" / "vcu118.tcl").read_text()
    pins = constraints(tmp_path)
    assert "CONFIG.CMAC_CORE_SELECT {CMACE4_X0Y8}" in tcl and "{X1Y52~X1Y55}" in tcl
    assert pins["qsfp1_clk_p"]["LOC"] == "R9" and pins["qsfp1_txp[3]"]["LOC"] == "H7" and "qsfp0_clk_p" not in pins
    constants = json.loads((tmp_path / "csr.json").read_text())["constants"]
    assert constants["config_clock_frequency"] == 100000000
    assert "set_max_delay -datapath_only 5.000 -from [get_clocks -of_objects [get_nets sys_clk]]" in tcl


on_vcu118 = pytest.mark.parametrize("built", ["vcu118"], indirect=True, scope="module")


@on_vcu118
def test_vcu118_clocks(built):
    """Registers at 125 MHz, engine at 250 MHz; paths between them, and between each and the line, are bounded both ways."""
    name, output = built
    tcl = (output / "gateware" / "vcu118.tcl").read_text()
    constants = json.loads((output / "csr.json").read_text())["constants"]
    assert constants["config_clock_frequency"] == 125000000
    found = re.findall(r"set_max_delay -datapath_only ([\d.]+) -from \[get_clocks -of_objects \[get_nets (\w+)\]\]"
                       r" -to \[get_clocks -of_objects \[get_nets (\w+)\]\]", tcl)
    bounds = {(a, b): float(ns) for ns, a, b in found}
    for a, b, ns in (("sys_clk", "roce_clk", 4), ("eth_tx_clk", "soc_rocephycmac_roce_beside_line", 3.103),
                     ("eth_tx_clk", "soc_rocephycmac_sys_beside_line", 3.103)):
        assert bounds.pop((a, b)) == bounds.pop((b, a)) == ns
    assert not bounds
    verilog = (output / "gateware" / "vcu118.v").read_text()
    # Both come from one MMCM.
    divide = [float(n) for n in re.findall(r"\.CLKOUT[01]_DIVIDE(?:_F)?\s*\((?:\d'd)?([\d.]+)\)", verilog)]
    assert len(divide) == 2 and divide[0] == 2*divide[1]


def test_vcu118_bounds_a_memory_in_a_clock_of_its_own(tmp_path):
    """A second memory in the board's 125 MHz: the script bounds paths between its clock and the engine's, by nets that exist."""
    from migen import ClockDomainsRenamer
    from roce_soc.memory.crossing import MemoryCrossing
    from roce_soc.memory.sram import RoCESRAM
    from targets import common
    from targets.vcu118 import VCU118SoC
    memory = MemoryCrossing(ClockDomainsRenamer("init")(RoCESRAM(1 << 15)), "roce", "init", far_hz=125e6)
    soc = VCU118SoC(memories=[memory], engine_parameters=dict(n_qps=16, n_mrs=16, n_cqs=16))
    assert common.build(soc, "vcu118", str(tmp_path), False) == 0
    tcl, verilog = ((tmp_path / "gateware" / f"vcu118.{suffix}").read_text() for suffix in ("tcl", "v"))
    for first, then in (("roce_clk", "init_clk"), ("init_clk", "roce_clk")):
        assert tcl.count(f"set_max_delay -datapath_only 4.000 -from [get_clocks -of_objects [get_nets {first}]]"
                         f" -to [get_clocks -of_objects [get_nets {then}]]") == 1
        assert re.search(rf'dont_touch = "true" \*\)\s+(?:wire|reg)\s+{first};', verilog)


@on_vcu118
def test_vcu118_bridges(built, tmp_path):
    """JTAG is a bus bridge always; with --uartbone the UART is another and the console goes over the bus."""
    name, output = built
    verilog = (output / "gateware" / "vcu118.v").read_text()
    assert "BSCANE2" in verilog and "jtagbone" in verilog
    from targets.vcu118 import VCU118SoC
    for uartbone in (False, True):
        soc = VCU118SoC(uartbone=uartbone, engine_parameters=dict(n_qps=16, n_mrs=16, n_cqs=16))
        bridges = {name for name in soc.bus.masters if not name.startswith("cpu_")}
        assert bridges == ({"jtagbone", "uartbone"} if uartbone else {"jtagbone"}) and hasattr(soc.uart, "_rxtx")


@on_vcu118
def test_vcu118_pins(built):
    name, output = built
    pins = constraints(output)
    lanes = {"rxp": "Y2 W4 V2 U4", "rxn": "Y1 W3 V1 U3", "txp": "V7 T7 P7 M7", "txn": "V6 T6 P6 M6"}
    for signal, places in lanes.items():
        assert [pins[f"qsfp0_{signal}[{n}]"]["LOC"] for n in range(4)] == places.split()
    assert (pins["qsfp0_clk_p"]["LOC"], pins["qsfp0_clk_n"]["LOC"]) == ("W9", "W8")
    for signal, place in {"modsell": "AM21", "resetl": "BA22", "modprsl": "AL21", "intl": "AP21", "lpmode": "AN21"}.items():
        assert pins[f"qsfp0_{signal}"]["LOC"] == place and pins[f"qsfp0_{signal}"]["IOSTANDARD"] == "LVCMOS18"
    xdc = (output / "gateware" / "vcu118.xdc").read_text()
    assert "-period 6.4 [get_ports qsfp0_clk_p]" in xdc and "-period 8.0 [get_ports clk125_p]" in xdc
    assert "create_project -force -name vcu118 -part xcvu9p-flga2104-2L-e" in (output / "gateware" / "vcu118.tcl").read_text()


def test_vcu118_pins_are_used_once():
    from targets.vcu118 import _io
    from litex.build.generic_platform import Pins, Subsignal
    places = [p for _, _, *subs in _io for sub in subs for c in sub.constraints if isinstance(c, Pins) for p in c.identifiers]
    assert len(places) == len(set(places)) == 2*(2 + 16 + 5) + 1 + 2 + 64
    pairs = {sub.name: sub for sub in _io[2][2:] if isinstance(sub, Subsignal)}
    assert all(len(pairs[name].constraints[0].identifiers) == 16 for name in ("rx_p", "rx_n", "tx_p", "tx_n"))
