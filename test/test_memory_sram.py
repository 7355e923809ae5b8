# SPDX-License-Identifier: BSD-2-Clause
"""memory/sram: contract, errors, rate, latency, the bus beside the ports."""
import pytest
from litex.gen import LiteXModule

from roce_soc.memory.sram import RoCESRAM
from sim.harness import Sim, build
from test.memory_contract import PortUser, exercise

SIZE, BASE = 64 * 1024, 0x4_0000_0000


def make():
    top = RoCESRAM(size=SIZE, base=BASE)
    bus = {n: getattr(top.bus, n) for n in ("adr", "dat_w", "dat_r", "sel", "cyc", "stb", "ack", "we")}
    return top, {"p": {**top.write.streams(), **top.get_read().streams()}, "d": top.get_read().streams(), "bus": bus}


@pytest.fixture(scope="module")
def so():
    return build(*make(), name="sram")


def bus(sim, adr, value=None, sel=0xf):
    """One bus access: returns the word read."""
    for name, number in (("adr", adr // 4), ("we", value is not None), ("dat_w", value or 0), ("sel", sel), ("cyc", 1), ("stb", 1)):
        sim.poke(f"bus_{name}", int(number))
    sim.wait("bus_ack", 1, max_cycles=200)
    got = sim.peek("bus_dat_r")
    sim.poke("bus_cyc", 0)
    sim.poke("bus_stb", 0)
    sim.step(1)
    return got


@pytest.mark.parametrize("gap", [0, .3])
def test_contract(so, seed, rng, gap):
    sim  = Sim(so, seed=seed)
    sim.reset()
    user = PortUser(sim, "p", rng, gap=gap)
    exercise(user, rng, [(0, BASE, SIZE)])


def test_no_such_address(so, seed, rng):
    """Below, above, and far away: refused; the memory keeps its bytes."""
    sim  = Sim(so, seed=seed)
    sim.reset()
    user = PortUser(sim, "p", rng, expect=lambda kind, target, addr, length: 0 if BASE <= addr < BASE + SIZE else 1)
    exercise(user, rng, [(0, BASE, SIZE), (0, BASE - 4096, 4096), (0, BASE + SIZE, 4096), (0, 0, 8192), (0, BASE + (1 << 40), 4096)])


def test_bus(so, seed, rng):
    """Words and bytes written on the bus are read at the port and the other way round, under load."""
    sim  = Sim(so, seed=seed)
    sim.reset()
    user = PortUser(sim, "p", rng)
    load = PortUser(sim, "d", rng, write=False)
    user.write(BASE, bytes(range(256)))
    user.collect()
    assert [bus(sim, a) for a in (0, 4, 60, 64, 252)] == [int.from_bytes(bytes(range(a, a + 4)), "little") for a in (0, 4, 60, 64, 252)]
    for _ in range(20):
        load.read(BASE, 4096)
        user.write(BASE + 8192, bytes(4096))
    model = bytearray(range(256))
    for _ in range(40):
        a, sel, value = 4 * rng.randrange(64), rng.randrange(1, 16), rng.getrandbits(32)
        bus(sim, a, value, sel)
        for n in range(4):
            if sel >> n & 1:
                model[a + n] = value >> 8 * n & 0xff
        assert bus(sim, a) == int.from_bytes(model[a:a + 4], "little")
    user.collect()
    load.collect()
    user.read(BASE, 256, data=bytes(model))
    user.collect()


def test_rate(so, seed, rng):
    """One beat a clock each way; single-beat commands at one a clock; two read ports share."""
    sim  = Sim(so, seed=seed)
    sim.reset()
    user = PortUser(sim, "p", rng)
    for n in range(16):
        user.write(BASE + 4096 * n, rng.randbytes(4096))
    sim.until(user.wack, 16)
    times = user.wdata.times()
    assert times[-1][2] - times[0][1] + 1 == 16 * 64
    user.collect()
    for n in range(256):
        user.read(BASE + 64 * n, 64)
    for n in range(16):
        user.read(BASE + 4096 * n, 4096)
    sim.until(user.rdata, 256 + 1024)
    issued = user.rcmd.times()[0][1]
    first  = user.rdata.recv()
    beats  = user.rdata.recv_all()
    assert beats[-1].first - first.first + 1 == 256 + 1024
    print(f"SRAM: {256 + 1024} beats in {beats[-1].first - first.first + 1} clocks, read latency {first.first - issued}")
    assert first.first - issued == 3


def test_parameters():
    for bad in (dict(size=5000), dict(size=2048), dict(size=8192, base=4096)):
        with pytest.raises(ValueError, match="base" if "base" in bad else "size"):
            RoCESRAM(**bad)
