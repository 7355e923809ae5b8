# SPDX-License-Identifier: BSD-2-Clause
"""sim/resources.py: levels, chains, loads and areas of netlists whose figures are known; joined modules; floors."""
import json
import subprocess
import sys

import pytest

from roce_soc.tree import TREE
from sim import env, resources
from sim.synthesis import mapping, netlist, parts
from sim.synthesis.netlist import Netlist, join
from sim.synthesis.parts import Part

pytestmark = pytest.mark.skipif(bool(env.missing(["yosys"])), reason="yosys is missing")


def part(name, ports, body, numbers=None):
    """A Part of a few lines of Verilog, clocked by sys_clk."""
    text = f"module top(input sys_clk, input sys_rst, {ports});\n{body}\nendmodule\n"
    return Part(name, "none", text, ports=numbers or {})


def net(*args, **kwargs):
    return Netlist(mapping.mapped(part(*args, **kwargs)))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Nothing of one test is found by another, or by a run of the command."""
    monkeypatch.setattr(mapping, "CACHE", tmp_path)


# Levels -------------------------------------------------------------------------------------------

def test_levels_between_registers():
    """A function of 30 registers takes two levels, and no path goes on through a register."""
    found = net("and", "input [29:0] a, output reg q", """
        reg [29:0] r; reg s; always @(posedge sys_clk) begin r <= a; s <= &r; q <= s; end""")
    mapped, repacked = found.histogram()
    assert max(mapped) == max(repacked) == 2 and found.loops == 0


def test_distributed_ram_is_a_level():
    """Register, asynchronous read of 32 rows, inverted compare, register: one level for the read and one behind it."""
    body  = """
        reg [4:0] at; reg [7:0] key; (* ram_style = "distributed" *) reg [7:0] m [31:0];
        always @(posedge sys_clk) begin at <= a; key <= d; if (we) m[w] <= d; q <= (m[at][5:0] == 6'h15); end"""
    found = net("ram", "input [4:0] a, input [4:0] w, input we, input [7:0] d, output reg q", body)
    assert max(found.histogram()[0]) == 2 and found.area()["lutram"] > 0 and found.area()["bram36"] == 0


def test_block_ram_without_its_register():
    """The output of a block RAM counts two levels, a LUT behind it is the third."""
    body  = """
        reg [35:0] m [1023:0]; reg [35:0] d1; always @(posedge sys_clk) begin if (we) m[w] <= d; d1 <= m[a]; q <= ^d1[5:0]; end"""
    found = net("bram", "input [9:0] a, input [9:0] w, input we, input [35:0] d, output reg q", body)
    assert found.area()["bram36"] == 1 and max(found.histogram()[0]) == netlist.OUTPUT_LEVELS + 1


def test_carry_chain():
    """A sum of 40 bits is one chain of 40 to 44, at no level; two halves are shorter."""
    body = "reg [39:0] x, y; always @(posedge sys_clk) begin x <= a; y <= b; q <= x + y; end"
    assert 40 <= net("sum", "input [39:0] a, input [39:0] b, output reg [39:0] q", body).longest_carry()[0] <= 44
    body = body.replace("q <= x + y", "q[19:0] <= x[19:0] + y[19:0]; q[39:20] <= x[39:20] + y[39:20]")
    assert 20 <= net("halves", "input [39:0] a, input [39:0] b, output reg [39:0] q", body).longest_carry()[0] <= 24


def test_loads():
    """A net that selects for 100 registers has 100 loads; one that enables 100 has 13; the clock is not counted."""
    ports = "input s, input [99:0] a, input [99:0] b, output reg [99:0] q"
    count, name = net("select", ports, "reg sel; always @(posedge sys_clk) begin sel <= s; q <= sel ? a : b; end").loads()[0]
    assert 50 <= count <= 100 and name == "sel"
    found = dict((name, count) for count, name in net("enable", ports, "reg en; always @(posedge sys_clk) begin en <= s; if (en) q <= a; end").loads())
    assert found["en"] == 13 and "sys_clk" not in found


def test_repacked_is_no_deeper():
    """Six inputs through three functions of two that a module's border keeps apart: three levels mapped, one repacked."""
    first  = part("first", "input [2:0] a, output y", "reg [2:0] r; always @(posedge sys_clk) r <= a; assign y = r[0] & r[1] | r[2];", {"a": 1, "y": 2})
    second = part("second", "input y, input [1:0] b, output z", "reg [1:0] r; always @(posedge sys_clk) r <= b; assign z = y ^ r[0] & r[1];",
                  {"y": 2, "b": 3, "z": 4})
    third  = part("third", "input z, input c, output reg q", "reg r; always @(posedge sys_clk) begin r <= c; q <= z | r; end", {"z": 4, "c": 5, "q": 6})
    whole  = Netlist(join({p.name: (mapping.mapped(p), p.ports) for p in (first, second, third)}))
    mapped, repacked = whole.histogram()
    assert (max(mapped), max(repacked)) == (3, 1) and whole.loops == 0
    assert whole.area()["ff"] == 7


def test_loop_through_two_modules():
    """Neither module has a loop, the two together have: seen, and the walk ends."""
    a = part("a", "input x, input p, output y", "assign y = x & p;", {"x": 1, "p": 2, "y": 3})
    b = part("b", "input y, input p, output x, output reg q", "assign x = y | p; always @(posedge sys_clk) q <= x;", {"y": 3, "p": 2, "x": 1, "q": 4})
    whole = Netlist(join({p.name: (mapping.mapped(p), p.ports) for p in (a, b)}))
    whole.levels()
    assert whole.loops > 0
    assert list(resources.faults({"whole": {"loops": whole.loops}})) == ["whole: a combinational loop"]


def test_constant_and_passed_on():
    """A module that drives a constant, or passes an input on, is seen through when joined."""
    first  = part("first", "input a, output y, output one", "assign y = a; assign one = 1;", {"a": 1, "y": 2, "one": 3})
    second = part("second", "input y, input one, output reg q", "always @(posedge sys_clk) q <= y & one;", {"y": 2, "one": 3, "q": 4})
    whole  = Netlist(join({p.name: (mapping.mapped(p), p.ports) for p in (first, second)}))
    assert max(whole.histogram()[0]) == 1
    driven = {pins["D"][0] for kind, _, _, pins, _ in whole.cells if kind == "ff"}
    assert driven and all(whole._through(bit)[0] == "lut" for bit in driven)


def test_refused_by_yosys():
    with pytest.raises(RuntimeError, match="yosys refuses wrong"):
        mapping.mapped(part("wrong", "output q", "assign q = nothing_there[;"))


def test_cached_by_content(monkeypatch):
    """The same text is mapped once, another text anew."""
    one = part("one", "input a, output reg q", "always @(posedge sys_clk) q <= ~a;")
    mapping.mapped(one)
    made = list(mapping.CACHE.iterdir())
    monkeypatch.setattr(mapping.subprocess, "run", lambda *a, **k: pytest.fail("mapped twice"))
    mapping.mapped(one)
    assert list(mapping.CACHE.iterdir()) == made
    assert mapping.key_of(one) != mapping.key_of(part("one", "input a, output reg q", "always @(posedge sys_clk) q <= a;"))

# Parts --------------------------------------------------------------------------------------------

def test_parts_of_the_engine():
    """One module and the glue: ports are what the rest shares, each with a number; what nobody asked for is not converted."""
    found = {p.name: p for p in parts.parts(["eq", parts.GLUE], n_qps=16, n_mrs=16, n_cqs=16)}
    assert set(found) == {"eq", parts.GLUE}
    assert found["eq"].source == "EventQueue, roce_soc/queue/eq.py"
    shared = set(found["eq"].ports.values()) & set(found[parts.GLUE].ports.values())
    assert len(shared) > 10
    figures = resources.of_part(found["eq"])
    assert figures["ff"] > 50 and figures["loops"] == 0 and figures["mapped"] >= figures["repacked"] > 0

# Floors -------------------------------------------------------------------------------------------

GOOD = {"lut": 1000, "packed": 800, "lutram": 64, "ff": 500, "bram36": 2, "uram": 0, "mapped": 6, "repacked": 5, "over7": 0, "carry": 32, "loads": 100}


@pytest.mark.parametrize("key,allowed,refused", [("lut", 1028, 1029), ("ff", 500, 501), ("bram36", 2, 2.5), ("repacked", 5, 6), ("carry", 32, 33)])
def test_floors(key, allowed, refused):
    """A figure may be better or as it was; LUTs may be two in a hundred and eight more."""
    assert not list(resources.worse({"m": {**GOOD, key: allowed}}, {"m": GOOD}))
    assert list(resources.worse({"m": {**GOOD, key: refused}}, {"m": GOOD})) == [f"m: {resources.TITLES[key]} {refused:g}, floor {GOOD[key]:g}"]


def test_new_module_needs_a_floor():
    assert "no floor" in next(resources.worse({"new": GOOD}, {}))


def test_record(tmp_path, monkeypatch):
    """Modules that were not looked at keep their floors."""
    monkeypatch.setattr(resources, "FLOORS", tmp_path / "floors.json")
    resources.record({"a": GOOD, "b": GOOD}, {"a": "a-1", "b": "b-1"})
    resources.record({"b": {**GOOD, "lut": 7}}, {"b": "b-2"})
    kept = json.loads(resources.FLOORS.read_text())
    assert kept["yosys"] == mapping.version()
    assert kept["modules"] == {"a": {**GOOD, "key": "a-1"}, "b": {**GOOD, "lut": 7, "key": "b-2"}}


def test_only_changed():
    """A module is left out while its Verilog is that of its floor."""
    one, two = (part(name, "input a, output reg q", "always @(posedge sys_clk) q <= a;") for name in ("one", "two"))
    floors   = {"one": {"key": mapping.key_of(one)}, "two": {"key": "two-of-another-day"}}
    assert resources.changed([one, two], floors) == [two] and resources.changed([one], {}) == [one]


def test_floors_are_those_of_the_modules():
    """The recorded file names the modules of the engine, no more."""
    names = {name for name, _ in parts._children(parts.Engine(n_qps=16, n_mrs=16, n_cqs=16).core)}
    assert set(resources.recorded()["modules"]) <= names | {parts.GLUE}


@pytest.mark.parametrize("arguments,said", [
    (["--module", "nothing"], "not nothing"), (["--qps", "100"], "not 100"), (["--joined", "--module", "mr"], "choose"), (["--joined", "--only-changed"], "choose"),
    (["--check", "--qps", "16"], "floors are those of 256")])
def test_bad_arguments(arguments, said):
    done = subprocess.run([sys.executable, str(TREE / "sim" / "resources.py"), *arguments], capture_output=True, text=True, cwd=TREE)
    assert done.returncode == env.BAD_ARGUMENT and said in done.stderr
