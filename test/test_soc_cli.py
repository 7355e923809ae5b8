# SPDX-License-Identifier: BSD-2-Clause
"""sim/roce_sim.py and sim/demo as commands: exit status, capture replay and record, TAP and ping, figures."""
import json
import os
import shutil
import subprocess
import time

import pytest
from scapy.layers.inet import ICMP, IP
from scapy.layers.l2 import ARP, Ether

from roce_soc.soc import DEFAULT_IP
from sim import env
from test.model.pcap import read_pcap, write_pcap

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

SIM, DEMO = str(env.ROOT/"sim"/"roce_sim.py"), str(env.ROOT/"sim"/"demo")
MAC, PEER_MAC, PEER_IP = "02:00:00:00:00:01", "02:00:00:00:00:02", "192.168.1.1"


def run(*command, **how):
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, **how)


@pytest.mark.parametrize("command, text", [
    ([SIM, "--wire", "carrier-pigeon"], "carrier-pigeon"),
    ([SIM, "--wire", "unix:one"], "unix:LOCAL,REMOTE"),
    ([SIM, "--wire", "pcap:/no/such/file"], "/no/such/file"),
    ([SIM, "--uart", "tcp:99999"], "0..65535"),
    ([SIM, "--loss", "1.5"], "0..1, not 1.5"),
    ([SIM, "--cycles", "-1"], "0 or more, not -1"),
    ([SIM, "--bus-port", "70000"], "70000"),
    ([DEMO, "--sizes", "1,2000000"], "0..1048576, not 2000000"),
    ([DEMO, "--sizes", "many"], "many"),
    ([DEMO, "--pmtu", "1500"], "1500"),
])
def test_bad_arguments_exit_2_and_name_the_value(command, text):
    done = run(*command)
    assert done.returncode == env.BAD_ARGUMENT, done.stderr
    assert text in done.stderr


@pytest.mark.parametrize("command", [SIM, DEMO])
def test_help(command):
    done = run(command, "--help")
    assert done.returncode == 0 and "--seed" in done.stdout


def test_a_capture_is_played_and_recorded(tmp_path):
    ask = Ether(dst="ff:ff:ff:ff:ff:ff", src=PEER_MAC)/ARP(hwsrc=PEER_MAC, psrc=PEER_IP, pdst=DEFAULT_IP)
    other = Ether(dst="02:00:00:00:00:99", src=PEER_MAC)/IP(src=PEER_IP, dst="192.168.1.99")/ICMP()
    write_pcap(tmp_path/"in.pcap", [(0, bytes(ask).ljust(60, b"\0")), (1000, bytes(other).ljust(60, b"\0")), (2000, bytes(ask).ljust(60, b"\0"))])
    done = run(SIM, "--without-engine", "--wire", f"pcap:{tmp_path}/in.pcap", "--record", f"{tmp_path}/out.pcap", "--uart", "none", "--cycles", "200000",
               "--json", "--pause", "500")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["run"]["cycles"] == 200000 and figures["run"]["cycles_per_second"] > 0
    assert figures["wire"]["to_soc"] == 2 and "seed 1" in done.stderr
    frames = [Ether(frame) for _, frame in read_pcap(tmp_path/"out.pcap")]
    assert [f.src for f in frames].count(PEER_MAC) == 2
    assert sum(ARP in f and f[ARP].op == 2 and f[ARP].psrc == DEFAULT_IP for f in frames) == 2


def test_not_a_capture(tmp_path):
    (tmp_path/"bad.pcap").write_bytes(bytes(100))
    done = run(SIM, "--without-engine", "--wire", f"pcap:{tmp_path}/bad.pcap", "--cycles", "1000", "--uart", "none")
    assert done.returncode == env.FAILED and "not a pcap file" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/net/tun") or not shutil.which("ping"), reason="needs root, /dev/net/tun, ping")
def test_ping_through_tap(tmp_path):
    tap = f"roce{os.getpid() % 100000}"
    sim = subprocess.Popen([SIM, "--without-engine", "--wire", f"tap:{tap}", "--uart", f"file:{tmp_path}/uart", "--address", "192.168.1.1/32"],
                           stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 600
        while run("ip", "route", "replace", f"{DEFAULT_IP}/32", "dev", tap, "src", "192.168.1.1").returncode and time.monotonic() < end:
            assert sim.poll() is None
            time.sleep(0.2)
        done = run("ping", "-c", "5", "-i", "0.3", "-w", "30", "-I", tap, DEFAULT_IP)
        assert "5 received" in done.stdout or " 0% packet loss" in done.stdout, done.stdout
    finally:
        sim.terminate()
        sim.wait(20)
    assert "roce_soc firmware" in (tmp_path/"uart").read_text()


def test_demo_shows_the_life_cycle(tmp_path):
    """The link lost and regained, the queue pair made again: in the table, in the result, as lines of the chart."""
    done = run(DEMO, "--sizes", "64", "--json", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    phases = [row["phase"] for row in json.loads(done.stdout)["transfers"]]
    assert [phases.count(name) for name in ("first", "link regained", "made again")] == [6, 12, 12]
    assert "LINK_LOST" not in done.stderr and "lost: " in done.stderr and "queue pair made again" in done.stderr
    chart = (tmp_path/"sequence.html").read_text()
    for text in ("link: signal lost", "link up again, same queue pair", "queue pair 0x101 destroyed", "queue pair 0x201 made"):
        assert text in chart
