# SPDX-License-Identifier: BSD-2-Clause
"""The full SoC against the reference model on its wire: queue pairs through the firmware, traffic, faults, CPU reset."""
import socket
import subprocess
import sys

import pytest

from roce_soc import abi, capability, firmware, verbs
from roce_soc.soc import RoCESoC, add_roce
from sim.scenario import OPERATIONS, SIDES, Scenario
from software.control.bus import RemoteBus
from software.control.firmware import FirmwareError
from software.control.roce_info import collect

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]

INIT = "PKEY_INDEX PORT ACCESS_FLAGS"
SPARE = {"qpi": 30, "qpn": 256 + 30, "hop_limit": 64, "sq_log2": 6}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with Scenario(tmp_path_factory.mktemp("s")) as pair:
        pair.bring_up(link_failures=1)
        pair.connect()
        pair.fill()
        yield pair


# Bring-up -----------------------------------------------------------------------------------------

def test_link_came_up_with_its_second_attempt(pair):
    status = pair.firmware.status()
    assert (status["link_attempts"], status["link_failures"], status["link_ups"]) == (2, 1, 1)


def test_capability_registers_and_command_agree(pair):
    words = capability.capability_words(n_qps=256, n_mrs=1024, n_cqs=256, n_rqs=256, memories=(capability.MemoryTarget(abi.MEMORY_SRAM, 4 << 20),))
    for name, (value, _) in words.items():
        assert pair.bus.read_register(f"roce_capability_{name}") == value, name
    answer = pair.roce.command(abi.CMD_QUERY_DEVICE, [], answer=True)
    assert answer[:len(words)] == [value for value, _ in words.values()]


def test_queue_pair_reached_rts_in_order(pair):
    steps = [(e.b >> 8, e.b & 0xff) for e in pair.firmware.log() if e.name == "QP_STATE" and e.a == pair.qp.index]
    assert steps[:3] == [(0, 1), (1, 2), (2, 3)]
    row, engine = pair.firmware.query_qp(pair.qp.index), pair.qp.query()
    for name in ("qpn", "dest_qpn", "pmtu", "dst_ip", "dst_mac", "src_ip", "rq_index", "sq_addr", "timeout", "state"):
        assert row[name] == engine[name] == pair.qp.attributes[name], name


@pytest.mark.parametrize("names, fields, code, text", [
    ("PKEY_INDEX PORT",     dict(SPARE, state=1),              firmware.FW_MISSING,        "ACCESS_FLAGS"),
    (INIT + " PATH_MTU",    dict(SPARE, state=1),              firmware.FW_REFUSED,        "PATH_MTU"),
    (INIT,                  dict(SPARE, state=2),              firmware.FW_BAD_TRANSITION, "RESET -> RTR"),
    ("",                    dict(SPARE, state=6),              firmware.FW_BAD_TRANSITION, "RESET -> ERR"),
    (INIT,                  dict(SPARE, state=1, qpn=1),       firmware.FW_BAD_VALUE,      "qpn 0x1 breaks its limit 0x2"),
    (INIT,                  dict(SPARE, state=1, qpn=0xffffff), firmware.FW_BAD_VALUE,     "0xffffff breaks its limit 0xfffffe"),
    (INIT,                  dict(SPARE, state=1, qpi=firmware.FIRMWARE_QPS), firmware.FW_BAD_INDEX, str(firmware.FIRMWARE_QPS)),
])
def test_firmware_refuses_and_names_it(pair, names, fields, code, text):
    with pytest.raises(FirmwareError, match=text) as told:
        pair.firmware.modify_qp(names, **fields)
    assert told.value.code == code


def test_limits_of_later_transitions(pair):
    modify = pair.firmware.modify_qp
    rtr = "AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER"
    modify(INIT, **SPARE, state=abi.QP_INIT, access=1, rq_index=30)
    for field, value in (("pmtu", 6), ("pmtu", 0), ("dest_qpn", 0), ("max_dest_rd_atomic", 17)):
        good = {**SPARE, "pmtu": 3, "dest_qpn": 5, "max_dest_rd_atomic": 4}
        with pytest.raises(FirmwareError, match=f"{field} {value:#x}"):
            modify(rtr, **{**good, field: value}, state=abi.QP_RTR)
    # The engine judges what the firmware leaves to it.
    modify("", **SPARE, state=abi.QP_RESET)


# Traffic ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_messages_of_all_kinds(pair, operation, side):
    for length in (0, 1, 63, 64, 65, 1023, 1024, 1025, 9000):
        pair.transfer(operation, side, length)


def test_cpu_in_reset_does_not_stop_traffic(pair):
    pair.bus.write_register("ctrl_reset", 2)
    for operation in OPERATIONS:
        for side in SIDES:
            pair.transfer(operation, side, 3000)
    beat = pair.firmware.status()["heartbeat"]
    assert pair.firmware.status()["heartbeat"] == beat
    pair.bus.write_register("ctrl_reset", 0)
    # It starts afresh, takes the running link over, and the queue pair's state from the engine.
    pair.simulation.wait(lambda: pair.firmware.status()["link_attempts"] == 0)
    pair.firmware.wait_link()
    assert pair.firmware.status()["link_attempts"] == 0 and pair.bus.read_register("phy_align_losses_count") == 0
    pair.transfer("WRITE", "peer", 100)
    pair.qp.modify(abi.QP_RTS)
    assert pair.firmware.query_qp(pair.qp.index)["state"] == abi.QP_RTS


def test_bad_key_fails_the_queue_pair_and_reset_heals_it(pair):
    pair.qp.post_send(verbs.WR_RDMA_WRITE, pair.soc_out, length=100, wr_id=77, remote_va=pair.peer_in.va, rkey=0xdead00)
    got = pair.simulation.wait(lambda: pair.poll("soc"), 60)
    assert got[0][:2] == (77, verbs.WC_REM_ACCESS_ERR)
    assert pair.qp.query()["state"] == abi.QP_ERR
    with pytest.raises(FirmwareError, match="no transition ERR -> RTS"):
        pair.firmware.request(firmware.REQ_QP_MODIFY, [0, *abi.pack_args(abi.QP_ARGS, **{**pair.qp.attributes, "state": abi.QP_RTS})])
    assert any(e.name == "QP_STATE" and e.b & 0xff == abi.QP_ERR for e in pair.firmware.log())
    pair.reconnect()
    for operation in OPERATIONS:
        for side in SIDES:
            pair.transfer(operation, side, 2000)


def test_registers_by_name_over_litex_server(pair):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "litex.tools.litex_server", "--uart", "--uart-port",
               f"socket://localhost:{pair.simulation.port}", "--bind-port", str(port)]
    server  = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        def connect():
            try:
                return RemoteBus(pair.build.folder/"csr.json", port=port)
            except ConnectionRefusedError:
                return None
        bus  = pair.simulation.wait(connect, 30)
        info = collect(bus)
        assert "link_up" in info["link"]["flags"] and info["capability"]["qps"] == 256
        before = bus.read_register("phy_rx_frames_count")
        pair.transfer("WRITE", "peer", 5000)
        assert bus.read_register("phy_rx_frames_count") >= before + 5
        bus.close()
    finally:
        server.kill()
        server.wait()


# A bad wire ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("faults", [{"loss": 0.05}, {"duplicate": 0.1, "reorder": 0.1}, {"corrupt": 0.05, "delay": 500}])
def test_every_byte_arrives_over_a_bad_wire(tmp_path, seed, faults):
    with Scenario(tmp_path/"w", seed=seed & 0xffff, faults=faults, tick_cycles=1) as pair:
        pair.bring_up()
        pair.connect()
        pair.fill_some(30000)
        for operation in OPERATIONS:
            for side in SIDES:
                pair.transfer(operation, side, 20000)
    wire = pair.figures["wire"]
    counter = {"loss": "lost", "duplicate": "duplicated", "reorder": "reordered", "corrupt": "corrupted", "delay": "delayed"}
    assert all(wire[counter[fault]] for fault in faults)


# Parameters ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("call, text", [
    (lambda: add_roce(None, None, memory_size=1000), "not 1000"),
    (lambda: add_roce(None, None, with_engine=False, with_slowpath=False), "both False"),
    (lambda: RoCESoC(None, 250e6, None, ms_cycles=3), "not 3"),
])
def test_parameters_that_cannot_be(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_example_of_add_roce_writes_verilog():
    from sim import env
    subprocess.run([str(env.ROOT/"examples"/"add_roce.py")], check=True, capture_output=True)
    assert (env.ROOT/"build"/"add_roce"/"gateware"/"sqrl_xcu1525.v").stat().st_size > 1_000_000
