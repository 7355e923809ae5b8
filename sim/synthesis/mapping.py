# SPDX-License-Identifier: BSD-2-Clause
"""Verilog of a module to a netlist of UltraScale+ primitives by Yosys; kept by content in build/synthesis.

A mapped module is a dict:
    cells : [[type, name, {port: [bits]}, [ports that are outputs]]]
    ports : {name: [direction, [bits]]}
    names : {bit: name of the net in the Verilog}
A bit is a number, or "0", "1", "x".
"""
import gzip
import hashlib
import json
import os
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from roce_soc.tree import build_dir
from sim.netlist import plain

CACHE  = build_dir() / "synthesis"
# -nosrl: a shift register of flip-flops may not hide the stages of a pipeline.
SCRIPT = """\
read_verilog -sv top.v
synth_xilinx -family xcup -flatten -noiopad -noclkbuf -nosrl -top top
check -assert
write_json top.json
"""


@lru_cache(maxsize=None)
def version():
    """Yosys' version, as "0.23". Raises RuntimeError where there is no yosys."""
    try:
        said = subprocess.run(["yosys", "-V"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise RuntimeError(f"yosys does not run: {error}") from error
    return said.split()[1]


def key_of(part):
    """Name of a part in the cache: by what is synthesised and by what."""
    digest = hashlib.sha256()
    for text in (part.verilog, *[f"{n}\0{c}" for n, c in sorted(part.files.items())], SCRIPT, version(), Path(__file__).read_text()):
        digest.update(text.encode() + b"\0")
    return f"{part.name}-{digest.hexdigest()[:16]}"


def _reduce(module):
    """What is kept of Yosys' JSON of a module."""
    cells = [[cell["type"], name, cell["connections"], [p for p, d in cell["port_directions"].items() if d == "output"]]
             for name, cell in module["cells"].items()]
    ports = {name: [port["direction"], port["bits"]] for name, port in module["ports"].items()}
    best  = {}
    for name, net in module["netnames"].items():
        made = bool(net.get("hide_name")) or "$" in name or "slice_proxy" in name
        for i, bit in enumerate(net["bits"]):
            rank = made, len(name), name
            if isinstance(bit, int) and (bit not in best or rank < best[bit][0]):
                best[bit] = rank, f"{name}[{i}]" if len(net["bits"]) > 1 else name
    return {"cells": cells, "ports": ports, "names": {bit: name for bit, (_, name) in best.items()}}


def mapped(part):
    """The mapped module of a Part. Raises RuntimeError with what Yosys says where it refuses the module."""
    CACHE.mkdir(parents=True, exist_ok=True)
    path = CACHE / f"{key_of(part)}.json.gz"
    if not path.exists():
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            (folder / "top.v").write_text(plain(part.verilog))
            (folder / "top.ys").write_text(SCRIPT)
            for name, content in part.files.items():
                (folder / name).write_text(content)
            done = subprocess.run(["yosys", "-q", "top.ys"], cwd=folder, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"yosys refuses {part.name}:\n{(done.stdout + done.stderr)[-3000:]}")
            with open(folder / "top.json", encoding="utf-8") as file:
                reduced = _reduce(json.load(file)["modules"]["top"])
        scratch = path.with_suffix(f".{os.getpid()}")
        with gzip.open(scratch, "wt", compresslevel=3) as file:
            json.dump(reduced, file)
        os.replace(scratch, path)
    with gzip.open(path, "rt") as file:
        found = json.load(file)
    found["names"] = {int(bit): name for bit, name in found["names"].items()}
    return found
