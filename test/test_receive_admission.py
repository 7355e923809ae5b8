# SPDX-License-Identifier: BSD-2-Clause
"""network/receive, packet/decoder, network/admission: frames of another VLAN, frames from the own address."""
import pytest

from roce_soc import opcodes
from roce_soc.errors import BY_INDEX
from sim.harness import build
from test.receive_bench import OWN_IP4, OWN_IP6, Bench, make, packet


@pytest.fixture(scope="module")
def so():
    return build(*make(), name="receive")


def fate(bench, frame):
    """Row of a frame's refusal, None where it is handed out."""
    bench.rx.send(frame)
    bench.sim.step(60)
    rows, records, slow = bench.refusal.recv_all(), bench.request.recv_all(), bench.slow.recv_all()
    assert len(rows) + len(records) == 1 and not slow
    return BY_INDEX[rows[0].row].name if rows else None


# VLAN ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("v6", [False, True])
@pytest.mark.parametrize("own,tci,row", [
    (None,   None,   None), (None,   0x0000, None), (None,   0xe000, None), (None,   0x1000, None),
    (None,   0x00c8, "VLAN"), (None,   0xe001, "VLAN"), (None,   0x0800, "VLAN"),
    (0x3064, 0x3064, None), (0x3064, 0x0064, None), (0x3064, 0xf064, None),
    (0x3064, None,   "VLAN"), (0x3064, 0x6000, "VLAN"), (0x3064, 0x30c8, "VLAN"), (0x3064, 0x0864, "VLAN"),
    (0xe000, None,   None), (0xe000, 0x2000, None), (0xe000, 0x0001, "VLAN"),
])
def test_vlan(so, v6, own, tci, row):
    """A QP takes frames of its VLAN alone; ID 0 is as no tag, priority and DEI never matter."""
    bench = Bench(so)
    qpn   = 0x45 + v6
    bench.qp(qpn, ipv6=int(v6), vlan_en=int(own is not None), vlan_tci=own or 0)
    bench.sim.drain(bench.rows)
    frame = packet(opcodes.RC_SEND_ONLY, v6=v6, vlan=tci, dest_qpn=qpn, payload=bytes(20)).build(pad_frame=True)
    assert fate(bench, frame) == row


def test_tag_of_a_queue_pair_without_one(so):
    """What stands in `vlan_tci` means nothing while the QP sends without a tag."""
    bench = Bench(so)
    bench.qp(0x45, vlan_en=0, vlan_tci=0x00c8)
    bench.sim.drain(bench.rows)
    for tci, row in ((None, None), (0x00c8, "VLAN")):
        assert fate(bench, packet(opcodes.RC_SEND_ONLY, vlan=tci, dest_qpn=0x45).build(pad_frame=True)) == row


# Own address --------------------------------------------------------------------------------------

@pytest.mark.parametrize("v6", [False, True])
@pytest.mark.parametrize("inside,admit,row", [(0, 0, "MARTIAN"), (1, 0, None), (0, 1, None), (1, 1, None)])
def test_own_source(so, v6, inside, admit, row):
    """From the wire it is dropped unless a register admits it; turned round inside it is two local QPs that talk."""
    bench = Bench(so)
    own   = OWN_IP6 if v6 else OWN_IP4
    bench.qp(0x45, ipv6=int(v6), dst_ip=int.from_bytes(own, "big"))
    bench.sim.drain(bench.rows)
    bench.sim.poke("turned", inside)
    bench.sim.poke("admit_own", admit)
    for length in (0, 300):
        frame = packet(opcodes.RC_SEND_ONLY, v6=v6, src_ip=own, dest_qpn=0x45, payload=bytes(length)).build(pad_frame=True)
        assert fate(bench, frame) == row


def test_own_source_for_another_peer(so):
    """Of a QP that talks to another it is refused all the same."""
    assert fate(Bench(so), packet(opcodes.RC_SEND_ONLY, src_ip=OWN_IP4).build(pad_frame=True)) == "MARTIAN"
