# SPDX-License-Identifier: BSD-2-Clause
"""Register names, widths and regions of the SoC are an interface: a change shows here and belongs in CHANGELOG.

New list: python -m test.test_csr_names > test/reference/csr_names.txt
"""
import logging
from pathlib import Path

import pytest

from roce_soc.firmware import CONTROL_RAM_BYTES

LIST = Path(__file__).parent/"reference"/"csr_names.txt"


def elaborate():
    """The simulated SoC, finalised."""
    logging.disable(logging.INFO)
    from sim.soc import SimSoC
    soc = SimSoC()
    soc.finalize()
    return soc


def names(soc):
    """Lines `name words access` of all registers and `region name size` of all memories, sorted."""
    lines = []
    for region, csrs in soc.csr_regions.items():
        if isinstance(csrs.obj, list):
            for csr in csrs.obj:
                access = "ro" if type(csr).__name__ == "CSRStatus" and getattr(csr, "read_only", True) else "rw"
                lines.append(f"{region}_{csr.name} {-(-csr.size//32)} {access}")
    lines += [f"region {name} {region.size:#x}" for name, region in soc.mem_regions.items() if name != "csr"]
    return sorted(lines)


@pytest.fixture(scope="module")
def soc():
    return elaborate()


def test_names_are_those_of_the_list(soc):
    now, then = set(names(soc)), set(LIST.read_text().split("\n")) - {""}
    assert now == then, f"gone: {sorted(then - now)}, new: {sorted(now - then)}"


def test_every_register_of_ours_is_described(soc):
    poor = []
    for region, csrs in soc.csr_regions.items():
        if not isinstance(csrs.obj, list) or region not in ("phy", "roce", "slowpath"):
            continue
        for csr in csrs.obj:
            # LiteEth's own registers and LiteX's event manager have their own documentation.
            if region == "slowpath" and csr.name.startswith("cpu_"):
                continue
            fields = getattr(getattr(csr, "fields", None), "fields", [])
            if not csr.description and "ev_" not in csr.name:
                poor.append(f"{region}_{csr.name}")
            poor += [f"{region}_{csr.name}.{f.name}" for f in fields if not f.description]
    assert poor == []


def test_regions_do_not_meet_and_suit_the_firmware(soc):
    regions = soc.mem_regions
    assert regions["control_ram"].size == CONTROL_RAM_BYTES
    for name in ("control_ram", "roce_memory", "roce_doorbell", "slowpath"):
        assert not regions[name].cached and regions[name].origin >= 0x8000_0000, name


if __name__ == "__main__":
    print("\n".join(names(elaborate())))
