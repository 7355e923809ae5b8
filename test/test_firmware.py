# SPDX-License-Identifier: BSD-2-Clause
"""Firmware in the simulated SoC, without the engine: link bring-up and every reason, console, log, requests, neighbours."""
import re
import socket
import time

import pytest
from scapy.layers.inet import ICMP, IP
from scapy.layers.l2 import ARP, Ether

from roce_soc import firmware
from roce_soc.soc import DEFAULT_IP
from sim.soc import Simulation, build_soc
from software.control.firmware import Firmware, FirmwareError

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

NEVER_ALIGN, LOCAL_FAULT, REMOTE_FAULT, HI_BER, PEER_RSFEC, NO_MODULE = (1 << n for n in range(6))
TX_UNFOUT = 1 << 3
PEER_MAC, PEER_IP = "02:00:00:00:00:02", "192.168.1.1"


class Board:
    """A running SoC, its firmware, its console, the other end of its wire."""
    def __init__(self, folder, **how):
        self.wire = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.wire.bind(str(folder/"peer"))
        self.wire.settimeout(20)
        self.soc  = str(folder/"soc")
        self.sim  = Simulation(build_soc(with_engine=False), wire={"mode": "unix", "local": self.soc, "remote": str(folder/"peer")},
                               console={"mode": "tcp", "port": 0}, **how)
        self.sim.start()
        self.bus  = self.sim.bus
        self.sim.wait(lambda: self.sim.uart_port)
        self.uart = socket.create_connection(("localhost", self.sim.uart_port))
        self.uart.settimeout(20)
        self.firmware = Firmware(self.bus)

    def close(self):
        self.uart.close()
        figures = self.sim.stop()
        self.wire.close()
        return figures

    def console(self, line):
        """Sends a line; returns what the firmware prints between its echo and the next prompt."""
        self.uart.sendall(line.encode() + b"\n")
        text, echo, prompt = "", line.split("\x7f")[-1] + "\n", "roce> "
        # The prompt of the boot may still be on its way: only one behind the echo counts.
        while echo not in text or not text.endswith(prompt):
            text += self.uart.recv(4096).decode().replace("\r", "")
        return text.split(echo, 1)[1][:-len(prompt)]

    def events(self):
        """Number of the next event."""
        return self.firmware.status()["log_count"]

    def reason(self, reason, first, seconds=60):
        """Waits until a link failure or loss with this reason is logged after event `first`."""
        number = [name for name, _ in firmware.LINK_REASONS].index(reason)
        return self.sim.wait(lambda: [e for e in self.firmware.log(first) if e.name in ("LINK_FAIL", "LINK_LOST") and e.a == number], seconds)


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    board = Board(tmp_path_factory.mktemp("b"))
    board.firmware.wait_link()
    yield board
    board.close()


@pytest.fixture
def healed(board):
    """The board with its link up before the test and no fault after it; only a link that was touched comes up anew."""
    def looks():
        status = board.firmware.status()
        return [status[name] for name in ("link_state", "link_attempts", "link_failures", "link_ups")] + [
            board.bus.read_register(f"phy_fault_{name}") for name in ("link", "failures")]
    board.firmware.wait_link()
    before = looks()
    yield board
    if looks() != before:
        board.bus.write_register("phy_fault_link", PEER_RSFEC)
        board.bus.write_register("phy_fault_failures", 0)
        board.firmware.link("restart")
        board.firmware.wait_link()


# Boot and link ------------------------------------------------------------------------------------

def test_status_block_and_log_tell_of_the_bring_up(board):
    status = board.firmware.status()
    assert (status["magic"], status["version"], status["link_state"]) == (firmware.FIRMWARE_MAGIC, firmware.FIRMWARE_VERSION, "UP")
    assert status["log_offset"] == firmware.LOG_OFFSET and status["log_lines"] == firmware.LOG_LINES
    assert board.bus.map.constants["roce_log_addr"] == board.bus.region("control_ram") + firmware.LOG_OFFSET
    before = status["heartbeat"]
    assert board.sim.wait(lambda: board.firmware.status()["heartbeat"] > before)
    assert [e.name for e in board.firmware.log()][:2] == ["BOOT", "LINK_STATE"]


def test_failed_attempts_back_off_and_the_next_succeeds(healed):
    healed.firmware.link("down")
    before = healed.firmware.status()
    first  = before["log_count"]
    healed.bus.write_register("phy_fault_failures", 3)
    healed.firmware.link("up")
    status = healed.firmware.wait_link()
    # The first attempt's own reset takes one off.
    assert status["link_failures"] - before["link_failures"] == 2
    assert status["link_attempts"] - before["link_attempts"] == 3
    waits = [e.b for e in healed.firmware.log(first) if e.name == "LINK_FAIL"]
    assert waits == [firmware.LINK_TIMES["LINK_BACKOFF_MS"], 2*firmware.LINK_TIMES["LINK_BACKOFF_MS"]]


@pytest.mark.parametrize("fault, reason", [
    (PEER_RSFEC | NO_MODULE, "NO_MODULE"), (PEER_RSFEC | NEVER_ALIGN, "NO_LOCK"), (PEER_RSFEC | HI_BER, "HI_BER"),
    (PEER_RSFEC | LOCAL_FAULT, "LOCAL_FAULT"), (PEER_RSFEC | REMOTE_FAULT, "REMOTE_FAULT")])
def test_every_fault_of_the_wire_has_its_reason(healed, fault, reason):
    first = healed.events()
    healed.bus.write_register("phy_fault_link", fault)
    healed.firmware.link("restart")
    assert healed.reason(reason, first)
    assert healed.firmware.status()["link_state"] != "UP"


def test_failures_of_alignment(healed):
    first = healed.events()
    healed.bus.write_register("phy_fault_failures", 200)
    healed.firmware.link("restart")
    assert healed.reason("NO_ALIGN", first)


def test_the_other_fec_setting_is_found(healed):
    healed.bus.write_register("phy_fault_link", 0)
    healed.firmware.link("restart")
    status = healed.firmware.wait_link(60)
    assert status["link_state"] == "UP" and not healed.bus.read_register("phy_control") >> 3 & 1


def test_lost_alignment_comes_back(healed):
    ups, first = healed.firmware.status()["link_ups"], healed.events()
    healed.bus.write_register("phy_fault_lose_cycles", 20000)
    assert healed.reason("ALIGN_LOST", first)
    healed.sim.wait(lambda: healed.firmware.status()["link_ups"] > ups)


def test_dead_transmitter_is_revived(healed):
    ups, first = healed.firmware.status()["link_ups"], healed.events()
    healed.bus.write_register("phy_fault_event", TX_UNFOUT)
    assert healed.reason("TX_DEAD", first)
    healed.sim.wait(lambda: healed.firmware.status()["link_ups"] > ups)
    assert not healed.bus.read_register("phy_status") >> 13 & 1


def test_down_by_request_stays_down(healed):
    healed.firmware.link("down")
    status = healed.firmware.wait_link(state="DOWN")
    assert status["link_reason"] == "ADMIN"
    time.sleep(0.3)
    assert healed.firmware.status()["link_state"] == "DOWN"
    healed.firmware.link("up")
    healed.firmware.wait_link()


# Requests -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("opcode, args, code", [
    (99, [], firmware.FW_BAD_REQUEST), (firmware.REQ_QP_QUERY, [firmware.FIRMWARE_QPS], firmware.FW_BAD_INDEX),
    (firmware.REQ_QP_MODIFY, [0]*30, firmware.FW_NO_ENGINE), (firmware.REQ_COMMAND, [1], firmware.FW_NO_ENGINE)])
def test_requests_that_cannot_be_are_refused(board, opcode, args, code):
    before = board.firmware.status()
    with pytest.raises(FirmwareError) as told:
        board.firmware.request(opcode, args)
    assert told.value.code == code
    after = board.firmware.status()
    assert (after["refusals"], after["requests"]) == (before["refusals"] + 1, before["requests"] + 1)
    assert board.firmware.log()[-1].name == "REFUSED"
    board.firmware.request(firmware.REQ_NOP)


# Console ------------------------------------------------------------------------------------------

def test_console_commands(board):
    helped = board.console("help")
    for name in ("help", "link", "qp", "mr", "stats", "log", "refusals", "arp", "fault", "version"):
        assert re.search(rf"^{name} ", helped, re.M), name
        assert "unknown command" not in board.console(name), name
    assert "state UP reason NONE" in board.console("link")
    assert "phy      rx" in board.console("stats")
    assert "BOOT" in board.console("log 128") or board.firmware.status()["log_count"] > firmware.LOG_LINES
    assert "unknown command frobnicate" in board.console("frobnicate")
    assert "not sideways" in board.console("link sideways")
    assert f"from 0 to {firmware.FIRMWARE_QPS - 1}, not 99" in board.console("qp 99")
    assert "state UP" in board.console("linl\x7fk")


@pytest.mark.parametrize("line, text", [
    ("qp x err", "not x"), ("qp 2O reset", "not 2O"), ("qp -1", "not -1"), ("qp 0x", "not 0x"), ("qp 1e0 err", "not 1e0"),
    ("qp 4294967296", "not 4294967296"), ("qp 99999999999999999999", "not 9999"), ("qp 1 err now", "qp [N [reset|err]]"), ("log ten", "not ten"),
    ("log 1000000", "not 1000000"), ("refusals 3x", "not 3x"), ("arp 999.1.1.1", "not 999.1.1.1"), ("arp 10.0.0", "not 10.0.0"),
    ("arp 10.0.0.1.2", "not 10.0.0.1.2"), ("arp 10.0.0.1x", "not 10.0.0.1x"), ("arp 10..0.1", "not 10..0.1"), ("arp 0001.2.3.4", "not 0001.2.3.4"),
    ("fault failures many", "not many"), ("fault link 0x123456789", "not 0x123456789"), ("link up down", "link [up|down|restart]"),
    ("a b c d e f g", "at most")])
def test_console_acts_on_whole_numbers_only(healed, line, text):
    """What is no number, or none in range, is told and changes nothing: no QP, no neighbour asked for, no fault."""
    before = (healed.console("qp"), healed.console("fault"), healed.firmware.status()["requests"])
    answer = healed.console(line)
    assert text in answer or ("refusals" in line and "no engine" in answer), answer
    assert (healed.console("qp"), healed.console("fault"), healed.firmware.status()["requests"]) == before


def test_console_orders_faults(healed):
    first = healed.events()
    # One is taken off by the attempt that follows the loss, one by the restart.
    assert "link" in healed.console("fault failures 3")
    healed.console("link restart")
    healed.reason("NO_ALIGN", first)
    healed.firmware.wait_link()


def test_log_ring_keeps_the_newest(healed):
    first = healed.firmware.status()["log_count"]
    for _ in range(firmware.LOG_LINES + 5):
        healed.firmware.request(firmware.REQ_NOP)
    log = healed.firmware.log(first)
    assert len(log) == firmware.LOG_LINES and {e.name for e in log} == {"REQUEST"}


# Wire ---------------------------------------------------------------------------------------------

def receive(board, wanted):
    """The next frame for which `wanted` is true."""
    while True:
        frame = Ether(board.wire.recv(9000))
        if wanted(frame):
            return frame


def test_ping_and_arp_are_answered_while_the_firmware_runs(board):
    mac = "02:00:00:00:00:01"
    board.wire.sendto(bytes(Ether(dst="ff:ff:ff:ff:ff:ff", src=PEER_MAC)/ARP(hwsrc=PEER_MAC, psrc=PEER_IP, pdst=DEFAULT_IP)), board.soc)
    reply = receive(board, lambda f: ARP in f and f[ARP].op == 2)
    assert (reply[ARP].hwsrc, reply[ARP].psrc) == (mac, DEFAULT_IP)
    board.wire.sendto(bytes(Ether(dst=mac, src=PEER_MAC)/IP(src=PEER_IP, dst=DEFAULT_IP)/ICMP(id=7, seq=1)/bytes(100)), board.soc)
    frame = receive(board, lambda f: ICMP in f or (ARP in f and f[ARP].op == 1 and f[ARP].pdst == PEER_IP))
    if ARP in frame:
        board.wire.sendto(bytes(Ether(dst=mac, src=PEER_MAC)/ARP(op=2, hwsrc=PEER_MAC, psrc=PEER_IP, hwdst=mac, pdst=DEFAULT_IP)), board.soc)
        frame = receive(board, lambda f: ICMP in f)
    assert frame[ICMP].type == 0 and bytes(frame[ICMP].payload) == bytes(100)
    # The CPU saw the request as well and remembers the asker.
    board.sim.wait(lambda: board.firmware.status()["neighbours"] == 1)
    assert f"{PEER_IP} {PEER_MAC}" in board.console("arp")
    assert any(e.name == "NEIGHBOUR" for e in board.firmware.log())


def test_link_up_is_announced(healed):
    healed.firmware.link("restart")
    frame = receive(healed, lambda f: ARP in f and f[ARP].psrc == f[ARP].pdst)
    assert frame.dst == "ff:ff:ff:ff:ff:ff" and frame[ARP].psrc == DEFAULT_IP
