# SPDX-License-Identifier: BSD-2-Clause
"""The last 16 READs of every QP: those to be answered and those that may be asked for again.

Ref: InfiniBand Architecture vol. 1 ch. 9.7.5.1.1 (duplicate READ), 9.4.4 (responder resources).
"""
from migen import *

from litex.gen import *

from roce_soc.common import MAX_READS, QPI_WIDTH
from roce_soc.table import Table, clocked_port
from roce_soc.transport.responder.layout import READ_INDEX_WIDTH

# A READ as accepted. ack*: acknowledge that goes out before its first reply.
READ_LAYOUT = [
    ("psn", 24), ("last_psn", 24), ("va", 64), ("rkey", 32), ("length", 32), ("msn", 24), ("pmtu", 3), ("pd", 16),
    ("ack", 1), ("ack_psn", 24), ("ack_syndrome", 8), ("ack_msn", 24)]

# What a repetition asks for: a READ or its rest.
REPEAT_LAYOUT = [("psn", 24), ("last_psn", 24), ("va", 64), ("length", 32)]


# ReadRing -----------------------------------------------------------------------------------------

class ReadRing(LiteXModule):
    """Two RAMs of 16 entries a QP: READs as accepted, and the range that a repetition of one asks for.

    Parameters
    ----------
    n_qps : int
    sink : Endpoint of look_up_layout
        Watched: a duplicate READ, looked up newest entry first.

    Interface
    ---------
    update, op_qpi, accepted, saved : in
        Counters of a QP as an operation leaves them.
    write, entry, entry_index; write_repeat, repeat, repeat_index : in
        Entries of the QP `op_qpi`.
    load, load_again, load_next, load_accepted : in
        Read an entry of `op_qpi`: the oldest of the bits of load_again, else load_next; loaded_* follows five
        clocks later, valid one clock.
    known, found, index, hit : out
        The sink's READ has been looked up; found: it is covered by entry `index`. Held until `taken`, with the sink.

    Latency: a load 5 clocks; a look-up at most 6 clocks and one an entry. Errors: `found` 0.
    """
    def __init__(self, n_qps, sink):
        bits = log2_int(n_qps)
        self.update, self.op_qpi = Signal(), Signal(QPI_WIDTH)
        self.accepted, self.saved = Signal(READ_INDEX_WIDTH), Signal(READ_INDEX_WIDTH)
        self.write, self.entry, self.entry_index = Signal(), Record(READ_LAYOUT), Signal(READ_INDEX_WIDTH)
        self.write_repeat, self.repeat, self.repeat_index = Signal(), Record(REPEAT_LAYOUT), Signal(READ_INDEX_WIDTH)
        self.load, self.load_again = Signal(), Signal(MAX_READS)
        self.load_next, self.load_accepted = Signal(READ_INDEX_WIDTH), Signal(READ_INDEX_WIDTH)
        self.loaded_valid, self.loaded_qpi = Signal(), Signal(QPI_WIDTH)
        self.loaded_again, self.loaded_index, self.loaded = Signal(), Signal(READ_INDEX_WIDTH), Record(READ_LAYOUT)
        self.found, self.index, self.hit = Signal(), Signal(READ_INDEX_WIDTH), Record(READ_LAYOUT)
        self.taken, self.known = Signal(), Signal()
        self.ready   = Signal()

        # # #

        # Counters for the look-up; one clock behind the operation.
        self.counters = Table([("accepted", READ_INDEX_WIDTH), ("saved", READ_INDEX_WIDTH)], n_qps, distributed=True)
        self.comb += self.ready.eq(self.counters.ready)
        self.sync += [
            self.counters.we.eq(self.update), self.counters.adr.eq(self.op_qpi),
            self.counters.row.accepted.eq(self.accepted), self.counters.row.saved.eq(self.saved),
        ]
        # RAMs; writes one clock behind the operation, reads from registered addresses.
        ports = []
        for we, data, index in ((self.write, self.entry, self.entry_index), (self.write_repeat, self.repeat, self.repeat_index)):
            memory = Memory(len(data.raw_bits()), n_qps*MAX_READS)
            write, read = memory.get_port(write_capable=True), clocked_port(memory)
            self.specials += memory, write, read
            adr, dat, en = Signal(bits + 4), Signal(len(data.raw_bits())), Signal()
            self.sync += adr.eq(Cat(index[:4], self.op_qpi[:bits])), dat.eq(data.raw_bits()), en.eq(we)
            self.comb += write.adr.eq(adr), write.dat_w.eq(dat), write.we.eq(en)
            ports.append(read)
        self.ports = ports

        # Load: 0 order, choice, 1 address, 2 data, 3 here. Oldest entry: first set bit behind the newest one.
        load0  = Record([("valid", 1), ("again", MAX_READS), ("qpi", QPI_WIDTH), ("next", READ_INDEX_WIDTH),
            ("accepted", READ_INDEX_WIDTH)])
        load1  = Record([("valid", 1), ("again", 1), ("qpi", QPI_WIDTH), ("index", READ_INDEX_WIDTH)])
        load2  = Record(load1.layout)
        choice = Record(load0.layout)
        oldest, order = Signal(4), Signal(MAX_READS)
        self.comb += [order[n].eq(load0.again >> (load0.accepted + n)[:4]) for n in range(MAX_READS)]
        chain = [oldest.eq(MAX_READS - 1)]
        for n in reversed(range(MAX_READS - 1)):
            chain = [If(choice.again[n], oldest.eq(n)).Else(*chain)]
        self.comb += chain
        self.sync += [
            load0.valid.eq(self.load), load0.again.eq(self.load_again), load0.qpi.eq(self.op_qpi),
            load0.next.eq(self.load_next), load0.accepted.eq(self.load_accepted),
            choice.eq(load0), choice.again.eq(order),
            load1.valid.eq(choice.valid), load1.again.eq(choice.again != 0), load1.qpi.eq(choice.qpi),
            load1.index.eq(Mux(choice.again != 0, choice.accepted + MAX_READS + oldest, choice.next)),
            load2.eq(load1),
            self.loaded_valid.eq(load2.valid), self.loaded_again.eq(load2.again), self.loaded_qpi.eq(load2.qpi),
            self.loaded_index.eq(load2.index),
            self.loaded.raw_bits().eq(ports[0].dat_r),
        ]
        repeat = Record(REPEAT_LAYOUT)
        self.comb += repeat.raw_bits().eq(ports[1].dat_r)
        # What was acknowledged before the READ was so when it was answered first.
        self.sync += If(load2.again,
            [getattr(self.loaded, name).eq(getattr(repeat, name)) for name, _ in REPEAT_LAYOUT],
            self.loaded.ack.eq(0),
        )
        self._add_search(sink, load1, bits)

    def _add_search(self, sink, load1, bits):
        """Waits for what has just been written, then looks at an entry a clock, newest first; what fits is read once more."""
        probe, left = Signal(READ_INDEX_WIDTH), Signal(READ_INDEX_WIDTH)
        index  = self.index
        state  = self.counters.read(sink.qpi[:bits])
        wait   = Signal(3)
        entry  = Record(READ_LAYOUT)
        issue, match, under_way = Signal(), Signal(), Signal()
        # Address, entry, sums, ends, judgement; clocks in which the load has the RAM are left out.
        steps  = [Record([("valid", 1), ("index", READ_INDEX_WIDTH)]) for _ in range(5)]
        self.search = fsm = FSM(reset_state="IDLE")
        fsm.act("IDLE",
            NextValue(wait, 0),
            If(sink.valid & self.ready, NextState("WAIT"))
        )
        fsm.act("WAIT",
            NextValue(wait, wait + 1),
            NextValue(probe, state.accepted - 1),
            NextValue(left, state.saved),
            If(wait == 2, NextState("SCAN"))
        )
        fsm.act("SCAN",
            issue.eq((left != 0) & ~load1.valid),
            If(issue,
                NextValue(probe, probe - 1),
                NextValue(left, left - 1),
            ),
            If(steps[4].valid & match,
                NextValue(index, steps[4].index),
                NextState("ADDRESS"),
            ).Elif((left == 0) & ~under_way,
                NextState("MISSED"),
            )
        )
        fsm.act("ADDRESS", If(~load1.valid, NextState("DATA")))
        fsm.act("DATA",    NextState("COPY"))
        fsm.act("COPY",    NextState("FOUND"))
        fsm.act("MISSED",
            self.known.eq(1),
            If(self.taken, NextState("IDLE")),
        )
        fsm.act("FOUND",
            self.known.eq(1), self.found.eq(1),
            If(self.taken, NextState("IDLE")),
        )
        self.comb += [
            under_way.eq(Reduce("OR", [step.valid for step in steps])),
            [port.adr.eq(Mux(load1.valid, Cat(load1.index[:4], load1.qpi[:bits]),
                Cat(Mux(fsm.ongoing("SCAN"), probe[:4], index[:4]), sink.qpi[:bits]))) for port in self.ports],
        ]
        self.sync += [
            steps[0].valid.eq(issue), steps[0].index.eq(probe),
            [[after.valid.eq(before.valid & fsm.ongoing("SCAN")), after.index.eq(before.index)]
                for before, after in zip(steps, steps[1:])],
        ]
        self._add_match(sink, entry, match)

    def _add_match(self, sink, entry, match):
        """Whether the sink's READ lies in an entry: read, summed in halves, compared; one clock each."""
        after, before, ends = Signal(24), Signal(24), Signal(24)
        end, low            = Signal(65), Signal(33)
        entry_end, entry_low, entry_high = Signal(65), Signal(33), Signal(32)
        self.comb += [
            after.eq(sink.psn - entry.psn),
            before.eq(entry.last_psn - sink.psn),
            ends.eq(entry.last_psn - sink.last_psn),
        ]
        fits = [Signal() for _ in range(2)]      # PSNs, key and begin, on their way with the sums.
        self.sync += [
            entry.raw_bits().eq(self.ports[0].dat_r),
            # The sink stands still.
            low.eq(sink.va[:32] + sink.length),
            end.eq(Cat(low[:32], (sink.va[32:] + low[32])[:33])),
            entry_low.eq(entry.va[:32] + entry.length),
            entry_high.eq(entry.va[32:]),
            entry_end.eq(Cat(entry_low[:32], (entry_high + entry_low[32])[:33])),
            fits[0].eq(~after[23] & ~before[23] & ~ends[23] & (entry.rkey == sink.rkey) & (sink.va >= entry.va)),
            fits[1].eq(fits[0]),
            match.eq(fits[1] & (end <= entry_end)),
            If(self.search.ongoing("COPY"), self.hit.eq(entry)),
        ]
