# SPDX-License-Identifier: BSD-2-Clause
"""The CPU held in reset: established queue pairs run on over a bad wire, time out, survive the link; it comes back and finds them."""
import pytest

from roce_soc import abi, verbs
from roce_soc.monitor import TRAFFIC_BASE
from sim.scenario import OPERATIONS, PEER_QPN, SIDES, SOC_VA, Scenario

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]

FOREVER = 0xffffffff
REWINDS = TRAFFIC_BASE + 8


class Held(Scenario):
    """A Scenario whose CPU is held in reset and let go."""
    def hold(self):
        """Holds the CPU; its heartbeat stands."""
        self.bus.write_register("ctrl_reset", 2)
        self.beat = self.firmware.status()["heartbeat"]

    def check_held(self):
        assert self.firmware.status()["heartbeat"] == self.beat, "the CPU ran meanwhile"

    def let_go(self):
        """Lets the CPU boot; returns when its firmware serves requests again."""
        self.bus.write_words(self.bus.region("control_ram"), [0])
        self.bus.write_register("ctrl_reset", 0)
        self.simulation.wait(lambda: self.firmware.status()["running"] and self.firmware.status()["heartbeat"] > 2)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A pair on a wire that loses and doubles frames."""
    with Held(tmp_path_factory.mktemp("h"), seed=5, faults=dict(loss=.03, duplicate=.03), tick_cycles=1) as pair:
        pair.bring_up()
        pair.connect()
        pair.fill_some(20_000)
        yield pair


def all_kinds(pair, length):
    for operation in OPERATIONS:
        for side in SIDES:
            pair.transfer(operation, side, length)


def test_traffic_and_retransmission(pair):
    """Every operation both ways over a bad wire, repaired by the engine alone."""
    pair.hold()
    rewinds = pair.counter(REWINDS)
    for _ in range(2):
        all_kinds(pair, 12_000)
    assert pair.counter(REWINDS) > rewinds, "nothing was lost: nothing was shown"
    pair.check_held()
    pair.let_go()


def test_the_cpu_boots_in_the_midst_of_a_message(pair):
    """It takes the running link over, finds the queue pair as it is, and disturbs neither."""
    pair.hold()
    downs, ups = pair.bus.read_register("phy_align_losses_count"), pair.bus.read_register("phy_latched")
    with pair.peer.lock:
        pair.peer.endpoint.post_send(PEER_QPN, 900, verbs.WR_RDMA_READ, va=pair.peer_in.va, length=1 << 19, lkey=pair.peer_in.key,
            remote_va=SOC_VA, rkey=pair.soc_out.key)
    pair.let_go()
    early = not pair.poll("peer")
    row   = pair.firmware.query_qp(pair.qp.index)
    assert early, "the message was over before the CPU was back"
    pair.completion("peer", verbs.WC_RDMA_READ, 900)
    assert bytes(pair.peer_in.data[:20_000]) == pair.outbox[:20_000]
    for name in ("qpn", "dest_qpn", "pmtu", "dst_ip", "dst_mac", "src_ip", "rq_index", "sq_addr", "timeout", "state"):
        assert row[name] == pair.qp.attributes[name], name
    status = pair.firmware.status()
    assert (status["link_state"], status["link_attempts"], status["link_failures"]) == ("UP", 0, 0)
    assert pair.bus.read_register("phy_align_losses_count") == downs and not (ups ^ pair.bus.read_register("phy_latched")) >> 10 & 1
    all_kinds(pair, 3000)


def test_after_its_boot_it_destroys_and_creates(pair):
    """The queue pair of before goes through RESET and gets a new life; another one is made beside it."""
    pair.hold()
    pair.transfer("WRITE", "soc", 2000)
    pair.let_go()
    pair.reconnect()
    all_kinds(pair, 3000)
    first, pair.qp = pair.qp, pair.roce.create_qp(pair.cq, pair.cq)
    with pair.peer.lock:
        pair.peer.endpoint.destroy_qp(PEER_QPN)
    pair._to_rts(512)
    all_kinds(pair, 3000)
    assert first.query()["state"] == abi.QP_RTS and pair.firmware.query_qp(pair.qp.index)["state"] == abi.QP_RTS


def test_time_outs(pair):
    """A peer that is gone: the engine's timers count, the work ends with its status, the firmware sees the state when it is back."""
    pair.reconnect(timeout=7, retry_cnt=2)
    with pair.peer.lock:
        pair.peer.endpoint.destroy_qp(PEER_QPN)
        pair.peer.endpoint.poll_cq()
    pair.hold()
    for wr_id in (1, 2):
        pair.qp.post_send(verbs.WR_RDMA_WRITE, pair.soc_out, va=SOC_VA, length=100, wr_id=wr_id, remote_va=pair.peer_in.va, rkey=pair.peer_in.key)
    done = []
    pair.simulation.wait(lambda: done.extend(pair.poll("soc")) or len(done) == 2, 120)
    assert [d[:2] for d in done] == [(1, verbs.WC_RETRY_EXC_ERR), (2, verbs.WC_WR_FLUSH_ERR)]
    pair.check_held()
    pair.let_go()
    assert pair.firmware.query_qp(pair.qp.index)["state"] == abi.QP_ERR
    pair.qp.modify(abi.QP_RESET)
    pair.cq.poll()
    pair._to_rts(1024)
    all_kinds(pair, 2000)


@pytest.mark.parametrize("needs_firmware", [False, True], ids=["heals", "needs a reset"])
def test_the_link_is_lost(pair, needs_firmware):
    """A loss that heals passes without the CPU; one that needs a reset waits for it. The message in between arrives, the pair lives on."""
    pair.hold()
    pair.bus.write_register("phy_fault_lose_cycles", FOREVER if needs_firmware else 3000)
    pair.qp.post_send(verbs.WR_RDMA_WRITE, pair.soc_out, va=SOC_VA, length=5000, wr_id=77, remote_va=pair.peer_in.va, rkey=pair.peer_in.key)
    if needs_firmware:
        pair.simulation.wait(lambda: pair.counter(REWINDS) and not pair.bus.read_register("phy_status") & 1)
        assert not pair.poll("soc")
        pair.check_held()
        pair.let_go()
        status = pair.firmware.wait_link()
        assert status["link_attempts"] >= 1 and status["link_ups"] == 1
    pair.completion("soc", verbs.WC_RDMA_WRITE, 77)
    with pair.peer.lock:
        assert bytes(pair.peer_in.data[:5000]) == pair.outbox[:5000]
    if not needs_firmware:
        pair.check_held()
        assert pair.bus.read_register("phy_status") & 1
        pair.let_go()
    assert pair.firmware.query_qp(pair.qp.index)["state"] == abi.QP_RTS
    all_kinds(pair, 1000)
