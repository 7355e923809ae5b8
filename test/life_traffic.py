# SPDX-License-Identifier: BSD-2-Clause
"""Traffic for life cycles: without end, with queue pairs that die and are born in it."""
from test.engine_bench import ENGINE_VA, MODEL_VA
from test.engine_traffic import Half, Traffic


class LifeTraffic(Traffic):
    """Traffic that goes on: places are used again, a killed QP is followed by one with work of its own.

    What a killed QP had begun may or may not have landed. After its RESET nothing of it moves any more: what memory then
    holds is what must stay there, and the place is free.
    """
    def __init__(self, *arguments, **options):
        self.serial = 0
        super().__init__(*arguments, **options)

    def add(self, qp, count):
        for side in self.sides:
            # No work request's number comes twice: a completion of a former life shows.
            half = self.halves[side, qp.qpn]
            if not half.count:
                self.serial += 100_000
                half.count = self.serial
        super().add(qp, count)

    def _completed(self, side, qpn, wr_id, status, opcode, *more):
        place = self.halves[side, qpn].ranges.get(wr_id)
        super()._completed(side, qpn, wr_id, status, opcode, *more)
        if not status and not opcode & 0x80:
            self.places.insert(0, place[1]//self.slot)

    def bury(self, qp):
        """A QP is no more."""
        self.killed.discard(qp.qpn)
        for side in self.sides:
            self._recover(self.halves.pop((side, qp.qpn)))

    def revive(self, qp):
        """A killed QP is new, likewise."""
        self.killed.discard(qp.qpn)
        for side in self.sides:
            self._recover(self.halves[side, qp.qpn])
            self.halves[side, qp.qpn] = Half()

    def _recover(self, half):
        """Places of a QP that was reset come back, with what is there now."""
        for into, offset, length in half.ranges.values():
            self.images[into][offset:offset + length] = self.bench.engine.read_memory(ENGINE_VA + offset, length) \
                if into == "engine" else self.bench.region.read(MODEL_VA + offset, length)
            self.places.insert(0, offset//self.slot)

    def birth(self, qp, count):
        """A new QP with work."""
        for side in self.sides:
            self.halves[side, qp.qpn] = Half()
        self.add(qp, count)

    def top_up(self):
        """Nobody is out of work."""
        for qp in self.pairs:
            if qp.qpn not in self.killed and min(len(self.halves[side, qp.qpn].todo) for side in self.sides) < 2:
                self.add(qp, 4)
        assert any(half.sent for half in self.halves.values()), \
            f"a play without traffic: {len(self.places)} places are free, {len(self.killed)} queue pairs killed"
