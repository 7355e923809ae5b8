# SPDX-License-Identifier: BSD-2-Clause
"""The memory-port contract as a user of a port sees it: one suite for every adapter, arbiter and router."""


class PortUser:
    """Issues reads and writes at the ports `<prefix>_wcmd` ... `<prefix>_rdata` and checks every answer.

    `expect(kind, target, addr, length)` gives the err that an access must be answered with (None: any).
    """
    def __init__(self, sim, prefix, rng, *, gap=0.0, read=True, write=True, expect=None):
        self.sim, self.prefix, self.rng = sim, prefix, rng
        self.expect = expect or (lambda *_: 0)
        self.writes, self.reads, self.answers = [], [], []
        if write:
            self.wcmd  = sim.source(f"{prefix}_wcmd", gap=gap)
            self.wdata = sim.source(f"{prefix}_wdata", gap=gap, records=True)
            self.wack  = sim.sink(f"{prefix}_wack")
        if read:
            self.rcmd  = sim.source(f"{prefix}_rcmd", gap=gap)
            self.rdata = sim.sink(f"{prefix}_rdata", records=True)
        self.tag = rng.randrange(128)

    def _command(self, source, target, addr, length):
        self.tag = (self.tag + 1) % 128
        source.send(target=target, addr=addr, length=length, qpi=self.rng.getrandbits(12), tag=self.tag)
        return self.tag

    def write(self, addr, data, target=0):
        """Issues one write."""
        tag    = self._command(self.wcmd, target, addr, len(data))
        lane   = addr % 64
        padded = self.rng.randbytes(lane) + data
        beats  = -(-len(padded) // 64)
        padded += self.rng.randbytes(64 * beats - len(padded))
        for n in range(beats):
            be = sum(1 << i for i in range(64) if lane <= 64 * n + i < lane + len(data))
            self.wdata.send(data=int.from_bytes(padded[64 * n:64 * n + 64], "little"), be=be, last=n == beats - 1)
        self.writes.append((tag, target, addr, data))

    def read(self, addr, length, target=0, data=None):
        """Issues one read; `data` is what it must bring, None: not checked."""
        tag = self._command(self.rcmd, target, addr, length)
        self.reads.append((tag, target, addr, length, data))

    def collect(self, max_cycles=200_000):
        """Waits for every answer and checks order, tag, err, beats, data."""
        if self.writes:
            self.sim.until(self.wack, len(self.writes), max_cycles=max_cycles)
            for tag, target, addr, data in self.writes:
                ack    = self.wack.recv()
                wanted = self.expect("write", target, addr, len(data))
                assert ack.tag == tag, f"acknowledge of tag {ack.tag}, not {tag}"
                assert wanted is None or ack.err == wanted, f"write {target}:{addr:#x}: err {ack.err}, not {wanted}"
                self.answers.append(("write", ack.err, ack.last))
            self.writes = []
        reads, self.reads = self.reads, []
        for tag, target, addr, length, data in reads:
            lane  = addr % 64
            beats = -(-(lane + length) // 64)
            self.sim.until(self.rdata, beats, max_cycles=max_cycles)
            got, errs = b"", set()
            for n in range(beats):
                beat = self.rdata.recv()
                assert beat.tag == tag, f"data of tag {beat.tag}, not {tag}"
                assert beat["last"] == (n == beats - 1), f"last is {beat['last']} on beat {n + 1} of {beats}"
                got += beat["data"].to_bytes(64, "little")
                errs.add(beat.err)
                if beat.err:
                    assert beat["data"] == 0, "data of an error is not zero"
            wanted = self.expect("read", target, addr, length)
            assert wanted is None or wanted in errs and errs <= {0, wanted}, f"read {target}:{addr:#x}: err {errs}, not {wanted}"
            if data is not None and errs == {0}:
                assert got[lane:lane + length] == data, f"read {target}:{addr:#x} + {length}: other bytes"
            self.answers.append(("read", max(errs), beat.first))
        assert not len(self.rdata) if hasattr(self, "rdata") else True
        assert not len(self.wack) if hasattr(self, "wack") else True


def random_range(rng, base, size):
    """(address, length) inside one page of [base, base + size), often at edges."""
    page   = base + 4096 * rng.randrange(size // 4096)
    offset = rng.choice([0, rng.randrange(4096), 4095, 64 * rng.randrange(64)])
    room   = 4096 - offset
    return page + offset, min(room, rng.choice([1, 64, rng.randrange(1, 200), rng.randrange(1, 4097), 4096]))


def exercise(user, rng, regions, rounds=8, writes=20, max_cycles=200_000):
    """Random writes, then reads that must bring them. regions: [(target, base, size)]."""
    model = {region: bytearray(region[2]) for region in regions}
    for target, base, size in regions:
        for page in range(0, size, 4096):
            user.write(base + page, bytes(model[target, base, size][page:page + 4096]), target)
    user.collect(max_cycles)
    for _ in range(rounds):
        for _ in range(rng.randrange(1, writes)):
            region             = rng.choice(regions)
            target, base, size = region
            addr, length       = random_range(rng, base, size)
            data               = rng.randbytes(length)
            if user.expect("write", target, addr, length) == 0:
                model[region][addr - base:addr - base + length] = data
            user.write(addr, data, target)
        user.collect(max_cycles)
        for _ in range(rng.randrange(1, writes)):
            region             = rng.choice(regions)
            target, base, size = region
            addr, length       = random_range(rng, base, size)
            user.read(addr, length, target, bytes(model[region][addr - base:addr - base + length]))
        user.collect(max_cycles)
    return model
