# SPDX-License-Identifier: BSD-2-Clause
"""The simulated SoC with a second memory in a clock of its own: bytes in and out of it, its reset in the midst of traffic."""
import pytest

from roce_soc import abi, capability, verbs
from roce_soc.errors import ERRORS
from sim.scenario import ACCESS, OPERATIONS, PEER_QPN, PEER_VA, SIDES, Scenario

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]

NEAR, FAR = 4 << 20, 1 << 18    # bytes of the two memories.
IMAGE     = 1 << 15             # bytes of the second one that messages move.
FAR_VA    = 0x6600_0000_0000
REGIONS   = ("roce_memory", "roce_memory1")
COUNTED   = ("LOCAL_MEMORY", "MEMORY_FAULT", "RESPONSE_MEMORY")


class Two(Scenario):
    """A Scenario with a region over the whole of the second memory."""
    def connect(self, pmtu=1024):
        super().connect(pmtu)
        self.far = self.roce.reg_mr(FAR_VA, FAR, addr=0, access=ACCESS, target=1)

    def post(self, opcode, wr_id, offset, remote, mr, length):
        """The SoC's WRITE out of the second memory, or READ into it."""
        self.qp.post_send(opcode, self.far, va=FAR_VA + offset, length=length, wr_id=wr_id, remote_va=mr.va + remote, rkey=mr.key)

    def peer_posts(self, opcode, wr_id, mr, offset, remote, length):
        """The peer's WRITE into the second memory, or READ out of it."""
        with self.peer.lock:
            self.peer.endpoint.post_send(PEER_QPN, wr_id, opcode, va=mr.va + offset, length=length, lkey=mr.key,
                remote_va=FAR_VA + remote, rkey=self.far.key)

    def ends(self, side, wr_id):
        """Status of a side's next completion, which must be of this work request."""
        got = self.simulation.wait(lambda: self.poll(side))
        assert [g[0] for g in got] == [wr_id]
        return got[0][1]

    def counts(self):
        """What memory faults were counted."""
        return [self.counter(ERRORS[name].index) for name in COUNTED]

    def peer_bytes(self, mr, start, length):
        with self.peer.lock:
            return bytes(mr.data[start:start + length])

    def whole(self, length=9000):
        """Each way in and out of the second memory, every byte of it checked."""
        image = bytearray(self.random.randbytes(IMAGE))
        self.far.write(image)
        a, b = self.random.randrange(4096), self.random.randrange(4096)
        self.post(verbs.WR_RDMA_WRITE, 1, a, b, self.peer_in, length)
        self.completion("soc", verbs.WC_RDMA_WRITE, 1)
        assert self.peer_bytes(self.peer_in, b, length) == image[a:a + length], "WRITE out of it"
        self.post(verbs.WR_RDMA_READ, 2, b, a, self.peer_out, length)
        self.completion("soc", verbs.WC_RDMA_READ, 2)
        image[b:b + length] = self.peer_bytes(self.peer_out, a, length)
        assert self.far.read(length=IMAGE) == image, "READ into it"
        self.peer_posts(verbs.WR_RDMA_WRITE, 3, self.peer_out, b, a, length)
        self.completion("peer", verbs.WC_RDMA_WRITE, 3)
        image[a:a + length] = self.peer_bytes(self.peer_out, b, length)
        assert self.far.read(length=IMAGE) == image, "the peer's WRITE into it"
        self.peer_posts(verbs.WR_RDMA_READ, 4, self.peer_in, a, b, length)
        self.completion("peer", verbs.WC_RDMA_READ, 4)
        assert self.peer_bytes(self.peer_in, a, length) == image[b:b + length], "the peer's READ out of it"


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with Two(tmp_path_factory.mktemp("m"), parameters=dict(far_memory=FAR)) as pair:
        pair.bring_up()
        pair.connect()
        pair.fill_some(30_000)
        yield pair


def test_software_is_told_of_both(pair):
    """Kind and size of each by register and by command; each has its region, of its size; a range beyond its end is refused."""
    read = pair.bus.read_register
    assert read("roce_capability_memories") == 2
    for n, (name, size) in enumerate(zip(REGIONS, (NEAR, FAR))):
        assert read(f"roce_capability_memory{n}") == abi.MEMORY_SRAM and read(f"roce_capability_memory{n}_pages")*4096 == size
        assert pair.bus.memory_size(n) == pair.bus.map.memories[name][1] == size
    targets = [capability.MemoryTarget(abi.MEMORY_SRAM, size) for size in (NEAR, FAR)]
    words   = capability.capability_words(n_qps=256, n_mrs=1024, n_cqs=256, n_rqs=256, memories=targets)
    answer  = pair.roce.command(abi.CMD_QUERY_DEVICE, [], answer=True)
    assert answer[:len(words)] == [value for value, _ in words.values()]
    with pytest.raises(ValueError, match="within 0..0x40000"):
        pair.roce.reg_mr(FAR_VA, 4096, addr=FAR - 4095, target=1)


def test_the_bus_reaches_it(pair):
    """Bytes at its first and last address; neither memory sees what is written to the other."""
    near = pair.bus.read_memory(0, 4096)
    for at in (0, 1, 3000, FAR - 64):
        data = pair.random.randbytes(64)
        pair.bus.write_memory(at, data, 1)
        assert pair.bus.read_memory(at, 64, 1) == data
    assert pair.bus.read_memory(0, 4096) == near


@pytest.mark.parametrize("length", [1, 64, 1025, 20_000])
def test_every_byte_both_ways(pair, length):
    pair.whole(length)


def test_its_clock_domain_is_reset_in_the_midst(pair):
    """Work that needs it ends with its status and is counted; the other memory, the CPU and the bus go on; then all is whole."""
    reset  = "mem_clock_reset"
    image  = pair.random.randbytes(IMAGE)
    before = pair.counts()
    pair.far.write(image)
    # A message is under way when the reset comes.
    pair.post(verbs.WR_RDMA_WRITE, 1, 0, 0, pair.peer_in, FAR)
    pair.simulation.wait(lambda: pair.peer_bytes(pair.peer_in, 0, 64) == image[:64], every=0)
    pair.bus.write_register(reset, 1)
    assert pair.ends("soc", 1) == verbs.WC_LOC_QP_OP_ERR
    assert pair.qp.query()["state"] == abi.QP_ERR
    # CPU and bus go on, whoever touches it.
    beat = pair.firmware.status()["heartbeat"]
    assert pair.bus.read_memory(0, 4, 1) == b"\xff"*4
    pair.bus.write_memory(0, bytes(4), 1)
    pair.simulation.wait(lambda: pair.firmware.status()["heartbeat"] > beat + 3)
    # The other memory's work goes on.
    pair.reconnect()
    for side in SIDES:
        for operation in OPERATIONS:
            pair.transfer(operation, side, 5000)
    # The peer's WRITE and READ and the SoC's own READ, begun while it lasts.
    for opcode in (verbs.WR_RDMA_WRITE, verbs.WR_RDMA_READ):
        pair.peer_posts(opcode, 9, pair.peer_out if opcode == verbs.WR_RDMA_WRITE else pair.peer_in, 0, 0, 3000)
        assert pair.ends("peer", 9) == verbs.WC_REM_OP_ERR
        pair.reconnect()
    pair.post(verbs.WR_RDMA_READ, 10, 0, 0, pair.peer_out, 3000)
    assert pair.ends("soc", 10) == verbs.WC_LOC_PROT_ERR
    assert [now - then for now, then in zip(pair.counts(), before)] == [1, 2, 1]
    # Released: no command is needed.
    pair.bus.write_register(reset, 0)
    pair.reconnect()
    assert pair.bus.read_register("roce_memory_control_closed") == 0
    pair.whole()
    pair.transfer("WRITE", "soc", 3000)
