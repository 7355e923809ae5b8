# SPDX-License-Identifier: BSD-2-Clause
"""sim/netlist.py: a loop, a second driver and a wire without a driver turn it red, whatever Verilator thinks of them."""
import subprocess
import sys
from pathlib import Path

import pytest

from roce_soc.transport.reply.reply import RoCEReply
from sim import netlist
from sim.harness.emit import emit
from test.test_harness import Looped

ROOT = Path(__file__).resolve().parents[1]


def verilog(body):
    return f"module top(input clk, input [7:0] a, output [7:0] b);\n{body}\nendmodule\n"


@pytest.mark.parametrize("good, body", [
    (True,  "wire [7:0] x;\nassign x = a + 1;\nassign b = x;"),
    (False, "wire [7:0] x;\nassign x = a[0] ? x + 1 : a;\nassign b = x;"),
    (False, "assign b[3:0] = a[3:0];\nassign b[4:3] = a[7:6];"),
    (False, "wire [7:0] x;\nassign b = a ^ x;")])
def test_check(good, body, tmp_path):
    assert netlist.check(verilog(body), tmp_path)[0] is good


def test_a_loop_between_blocks(tmp_path):
    """A loop whose data never closes it in simulation."""
    dut = Looped()
    done, said = netlist.check(emit(dut, {"a": dut.a, "b": dut.b})[0], tmp_path)
    assert not done and "loop" in said


def test_reply_scheduler(tmp_path):
    """What is left to be repeated follows from the row as it was, never from what the operation makes of it."""
    dut = RoCEReply(16)
    ios = {"sink": dut.sink, "control": dut.control, "reads": dut.reads, "sent": dut.sent, "kill": dut.kill, "request": dut.request,
           "result": dut.result}
    good, said = netlist.check(emit(dut, ios)[0], tmp_path)
    assert "loop" not in said, said


def test_command():
    done = subprocess.run([sys.executable, str(ROOT / "sim" / "netlist.py"), "--part", "nothing"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2 and "slowpath" in done.stderr
