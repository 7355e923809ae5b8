# SPDX-License-Identifier: BSD-2-Clause
"""Store, check, then act: bytes of one frame of every opcode are damaged; one counter moves, the next good frame works.

Every byte of every opcode in every layout: `sim/stress.py --part frames`.
"""
import random

import pytest

from roce_soc import opcodes as op
from test.stress_frames import (
    LAYOUTS, OPCODES, PMTU, Frames, executed, header_offsets, rule, size_of, spoil_byte, spoil_cut, spoil_error)
from test.model.packet import parse


@pytest.fixture
def frames(seed):
    """An engine with one QP in RTS, in a layout by the seed."""
    return Frames(seed, *LAYOUTS[seed % len(LAYOUTS)])


@pytest.mark.parametrize("opcode", OPCODES, ids=lambda o: o.name)
def test_damaged_bytes(opcode, frames, seed):
    """Bytes by the seed, a cut, the MAC's mark: memory, rows, queues, lists, all counters but one are as they were."""
    rng, size = random.Random(seed), size_of(frames, opcode)
    frame     = frames.frame(opcode.value, 0, bytes({"PMTU": PMTU, "NONE": 0}.get(opcode.payload, 1)))
    _, udp, bth, end = header_offsets(frame)
    ends      = (0, udp, bth, bth + op.BTH_BYTES, end)
    for first, last in [*zip(ends, ends[1:]), (0, size)]:
        frames.play(opcode, spoil_byte(frames, opcode, rng.randrange(first, last), 1 << rng.randrange(8)))
    frames.play(opcode, spoil_cut(frames, opcode, rng.randrange(50, size)))
    frames.play(opcode, spoil_error(frames, opcode))


@pytest.mark.parametrize("version,vlan", LAYOUTS)
def test_bytes_outside_of_the_icrc(version, vlan, seed):
    """What may change on the way does and the frame is executed; TOS and TTL of IPv4 with their checksum made right."""
    frames = Frames(seed, version, vlan)
    write  = op.OPCODES[op.RC_WRITE_ONLY]
    frame  = frames.frame(op.RC_WRITE_ONLY, 0, b"1")
    free   = [at for at in range(len(frame)) if rule(frame, at, 1) == "good"]
    # Source MAC, traffic class with flow label and hop limit, UDP checksum, byte 4 of the BTH.
    assert len(free) == 6 + 5*(version == 6) + 2 + 1
    for at in free:
        frames.play(write, spoil_byte(frames, write, at, 1))
    priority = () if vlan is None else (dict(vlan=vlan ^ 0xf000),)
    for change in (dict(tos=0xff), dict(tos=3), dict(ttl=1), *priority):
        frames.play(write, lambda frame, change=change: changed_on_the_way(frame, change))


def changed_on_the_way(frame, change):
    """The frame as a router leaves it: fields changed, IPv4 checksum right, ICRC as sent."""
    return parse(frame).copy(**change, ip_checksum=None).build()


@pytest.mark.parametrize("opcode", [o for o in OPCODES if executed(o)], ids=lambda o: o.name)
def test_a_good_frame_is_seen(opcode, frames):
    """The comparison can fail: every frame that is executed is found to change something."""
    with pytest.raises(AssertionError, match="changed inside|answered by"):
        frames.play(opcode, lambda frame: frames.damaged(frame, {"ICRC"}, "good"))
