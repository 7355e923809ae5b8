# SPDX-License-Identifier: BSD-2-Clause
"""What every target's command does: options, files for the vendor tool, loading, exit status.

Exit status: 0 good, 1 failed, 2 bad argument, 3 missing tool.
"""
import argparse
import logging
import os
import shutil
import subprocess
import sys

from litex.soc.integration.builder import Builder

from roce_soc import grouping
from sim import env

# Environment variable with Vivado's folder, as LiteX reads it.
VIVADO_VARIABLE = "LITEX_ENV_VIVADO"
FIRMWARE_TOOLS  = ("make", "gcc-riscv64-unknown-elf")

# Files ---------------------------------------------------------------------------------------------

def make_relocatable(platform):
    """Has the toolchain copy every source beside the project file and name it without a folder."""
    toolchain     = platform.toolchain
    build_project = toolchain.build_project

    def copy_and_build_project():
        for n, (path, language, library, *_) in enumerate(platform.sources):
            name = os.path.basename(path)
            if not os.path.exists(name) or not os.path.samefile(path, name):
                shutil.copy(path, name)
            platform.sources[n] = (name, language, library)
        platform.verilog_include_paths.clear()
        build_project()

    toolchain.build_project = copy_and_build_project

# Tools ---------------------------------------------------------------------------------------------

def vivado():
    """Path of Vivado, or None."""
    folder = os.environ.get(VIVADO_VARIABLE, "")
    return shutil.which("vivado", path=os.path.join(folder, "bin")) if folder else shutil.which("vivado")


def say(text):
    print(text, file=sys.stderr, flush=True)


def missing_vivado(gateware, what):
    say(f"missing: Vivado (not in PATH, and {VIVADO_VARIABLE} does not name its folder), needed to {what}.")
    say("         The part needs a paid or evaluation licence; the 100G core's licence costs nothing but must be asked for.")
    if gateware:
        say(f"         With Vivado at hand: cd {os.path.relpath(gateware)} && vivado -mode batch -source {what_file(gateware)}")
    return env.MISSING


def what_file(gateware):
    return next(name for name in sorted(os.listdir(gateware)) if name.endswith(".tcl"))

# Build and load ------------------------------------------------------------------------------------

def build(soc, name, output, run, **options):
    """Writes all files under `output`; compiles firmware and bitstream when `run`. Returns an exit status."""
    lacking = env.install(FIRMWARE_TOOLS) if run else []
    with_firmware = run and not lacking
    builder = Builder(soc, output_dir=output, csr_csv=os.path.join(output, "csr.csv"), csr_json=os.path.join(output, "csr.json"),
        compile_software=with_firmware, compile_gateware=False)
    soc.add_firmware(builder)
    make_relocatable(soc.platform)
    grouping.install()
    builder.build(build_name=name, **options)
    gateware = builder.gateware_dir
    print(f"written: {os.path.relpath(gateware)}/{name}.v .xdc .tcl, {os.path.relpath(output)}/csr.json .csv")
    if not run:
        return env.OK
    if lacking:
        say(f"missing: {' '.join(lacking)}, needed to compile the firmware: the ROM is empty")
    if vivado() is None:
        return missing_vivado(gateware, "make the bitstream")
    if lacking:
        return env.MISSING
    done = subprocess.run([vivado(), "-mode", "batch", "-source", f"{name}.tcl"], cwd=gateware)
    return env.OK if done.returncode == 0 else env.FAILED


def write_doc(soc, name, output):
    """Writes a page per register group, from the descriptions in the gateware."""
    from litex.soc.doc import generate_docs
    folder = os.path.join(output, "doc")
    generate_docs(soc, folder, project_name=f"roce_soc on {name}", author="the roce_soc developers", quiet=True)
    print(f"written: {os.path.relpath(folder)}/*.rst")


def load(name, output, cable, device):
    """Loads the bitstream over JTAG by openFPGALoader, else by Vivado. Returns an exit status."""
    bitstream = os.path.join(output, "gateware", f"{name}.bit")
    loader    = shutil.which("openFPGALoader")
    if loader is None and vivado() is None:
        say("missing: openFPGALoader (package openfpgaloader) or Vivado, needed to load the bitstream over JTAG")
        return env.MISSING
    if not os.path.exists(bitstream):
        say(f"no bitstream {os.path.relpath(bitstream)}: run with --build first")
        return env.FAILED
    if loader:
        command = [loader, "-b", cable, bitstream]
    else:
        script = os.path.join(output, "gateware", "load.tcl")
        with open(script, "w", encoding="utf-8") as file:
            file.write("\n".join([
                "open_hw_manager", "connect_hw_server", "open_hw_target",
                f"set device [lindex [get_hw_devices {device}*] 0]",
                f"set_property PROGRAM.FILE {{{bitstream}}} $device", "program_hw_devices $device", "quit"]) + "\n")
        command = [vivado(), "-mode", "batch", "-nojournal", "-nolog", "-source", script]
    return env.OK if subprocess.run(command).returncode == 0 else env.FAILED


def frequency(text):
    """Argument type: Hz as 125e6."""
    value = float(text)
    if not 50e6 <= value <= 300e6:
        raise argparse.ArgumentTypeError(f"must be 50e6..300e6 Hz, not {text}")
    return value


def main(make_soc, *, name, description, add_arguments, cable, device, argv=None, **options):
    """A target's command line.

    Parameters
    ----------
    make_soc : function of the parsed arguments, returns a RoCESoC.
    name : str
        Of the project and of the folder build/<name>.
    add_arguments : function(parser), for the board's own options.
    cable, device : str
        openFPGALoader's name of the board; start of the device's name in Vivado's hardware manager.
    options : for the toolchain.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--build",        action="store_true", help="write Verilog, constraints, project; make the bitstream")
    parser.add_argument("--no-compile",   action="store_true", help="with --build: write the files only")
    parser.add_argument("--load",         action="store_true", help="load the bitstream over JTAG")
    parser.add_argument("--doc",          action="store_true", help="with --build: write the register pages (reStructuredText) to doc/")
    parser.add_argument("--sys-clk-freq",  type=frequency, default=125e6, metavar="HZ", help="clock of CPU and registers")
    parser.add_argument("--roce-clk-freq", type=frequency, default=250e6, metavar="HZ", help="clock of the engine")
    parser.add_argument("--output-dir",   default=str(env.BUILD / name), metavar="DIR", help="where the files go")
    parser.add_argument("--verbose",      action="store_true", help="show what LiteX reports while it builds")
    add_arguments(parser)
    args = parser.parse_args(argv)
    for flag in ("no_compile", "doc"):
        if getattr(args, flag) and not args.build:
            parser.error(f"--{flag.replace('_', '-')} needs --build")
    if not (args.build or args.load):
        parser.error("nothing to do: give --build, --load or both")
    if not args.verbose:
        logging.disable(logging.INFO)
    output = os.path.abspath(args.output_dir)
    status = env.OK
    if args.build:
        try:
            soc = make_soc(args)
        except ValueError as error:
            parser.error(str(error))
        status = build(soc, name, output, not args.no_compile, **options)
        if args.doc:
            write_doc(soc, name, output)
    if args.load and status == env.OK:
        status = load(name, output, cable, device)
    return status
