# SPDX-License-Identifier: BSD-2-Clause
"""A PHY with its registers on a CSR bus, for the tests of this folder: registers by name, as software reads them."""
from migen import *

from litex.soc.interconnect import csr_bus

from sim.harness import Sim, build


class RegisterBench(Module):
    """`dut` and a bank with all of its CSRs; `fields` = {register: {field: (offset, size)}}."""
    def __init__(self, dut):
        self.submodules.dut = dut
        self.bus = csr_bus.Interface(data_width=32, address_width=14)
        csrs     = dut.get_csrs()
        self.submodules.bank = csr_bus.CSRBank(csrs, bus=self.bus, address=0)
        self.fields = {c.name: {f.name: (f.offset, f.size) for f in c.fields.fields} for c in csrs if hasattr(c, "fields")}

    def index(self):
        """{register name: word address}; after finalisation."""
        return {c.name: n for n, c in enumerate(self.bank.simple_csrs)}


class Registers:
    """Register access of a running model: one bus transfer a call; `cycle`: main clocks that cover one of the bus."""
    def __init__(self, sim, index, fields, cycle=1):
        self.sim, self.index, self.fields, self.cycle = sim, index, fields, cycle

    def _address(self, name):
        for candidate in (name, name + "0"):
            if candidate in self.index:
                return self.index[candidate]
        raise KeyError(name)

    def read(self, name):
        self.sim.poke("bus_adr", self._address(name))
        self.sim.poke("bus_re", 1)
        self.sim.step(self.cycle)
        self.sim.poke("bus_re", 0)
        return self.sim.peek("bus_dat_r")

    def write(self, name, value=0, **fields):
        """Writes a value, or a value with some fields replaced."""
        for field, content in fields.items():
            offset, size = self.fields[name][field]
            value = value & ~((2**size - 1) << offset) | content << offset
        self.sim.poke("bus_adr", self._address(name))
        self.sim.poke("bus_dat_w", value)
        self.sim.poke("bus_we", 1)
        self.sim.step(self.cycle)
        self.sim.poke("bus_we", 0)
        self.sim.step(2*self.cycle)    # Until the write has its effect.

    def update(self, name, **fields):
        self.write(name, self.read(name), **fields)

    def get(self, name):
        """All fields of a register as a dict."""
        value = self.read(name)
        return {f: value >> o & (2**s - 1) for f, (o, s) in self.fields[name].items()}

    def flags(self):
        """Names of the latched flags that are set; clears exactly those."""
        value = self.read("latched")
        self.write("latched", value)
        return {f for f, (o, _) in self.fields["latched"].items() if value >> o & 1}


def start(dut, ios, *, name, seed=1, clocks=("sys",), periods=None):
    """Returns (sim, registers) of a PHY under test."""
    bench = RegisterBench(dut)
    so    = build(bench, {"bus": bench.bus, **ios}, name=name, clocks=clocks)
    sim   = Sim(so, seed=seed, clocks=periods)
    return sim, Registers(sim, bench.index(), bench.fields)
