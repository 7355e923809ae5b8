# SPDX-License-Identifier: BSD-2-Clause
"""Registers of engine and PHY: described to the field, 32 bits, pages written by the target's --doc."""
import pytest

from roce_soc.core import RoCECore
from roce_soc.phy.model import RoCEPHYModel
from roce_soc.timebase import tick_cycles_of
from targets import vcu118


@pytest.mark.parametrize("make", [RoCECore, RoCEPHYModel])
def test_descriptions(make):
    """Every register and every field says what it is."""
    registers = make().get_csrs()
    assert registers
    for csr in registers:
        fields = getattr(getattr(csr, "fields", None), "fields", None) or []
        assert getattr(csr, "description", None) or csr.name.startswith("ev_"), csr.name
        assert csr.size <= 32, csr.name
        assert all(f.description for f in fields), csr.name


def test_pages(tmp_path, capsys):
    """--doc writes a page per register group that names the engine's registers."""
    assert vcu118.main(["--build", "--no-compile", "--doc", "--output-dir", str(tmp_path)]) == 0
    page = (tmp_path / "doc" / "roce.rst").read_text()
    assert "ROCE_CAPABILITY_ABI" in page
    assert all(f"ROCE_MONITOR_{master}_COUNTER_SELECT" in page for master in ("FIRMWARE", "HOST"))
    with pytest.raises(SystemExit) as error:
        vcu118.main(["--doc", "--load"])
    assert error.value.code == 2 and "--doc needs --build" in capsys.readouterr().err


@pytest.mark.parametrize("clk_freq,cycles", [(250e6, 64), (125e6, 32), (282e6, 73), (1e6, 1)])
def test_tick(clk_freq, cycles):
    """A tick is never shorter than 256 ns."""
    assert tick_cycles_of(clk_freq) == cycles
