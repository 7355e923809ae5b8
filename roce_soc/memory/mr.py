# SPDX-License-Identifier: BSD-2-Clause
"""Memory regions: keys, protection and translation.

Ref: InfiniBand Architecture vol. 1 ch. 9.7.4.1.4 (remote access), 10.6.3 (keys, protection domains).
Not supported: page tables (regions are contiguous), memory windows, zero-based regions. Clients bear that an access misses
all the same, as it will where a page list is in memory.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.arbiter import Turns
from roce_soc.common import DEFAULT_MRS, TARGET_WIDTH, mr_request_description, mr_result_description, mr_write_description
from roce_soc.drain import Drain
from roce_soc.errors import index_of
from roce_soc.table import Table

MAX_MRS = 1 << 16

# Last address + 1 takes 65 bits; `delta` is what must be added to an address to make it physical.
ROW = [("enable", 1), ("variant", 8), ("access", 4), ("pd", 16), ("target", TARGET_WIDTH),
       ("va", 64), ("end", 65), ("delta", 64)]


class MRPort:
    """Client port: `request` (mr_request_description), `result` (mr_result_description, valid only, in order).

    `wake`: a page has come; what has missed may be asked again.
    """
    def __init__(self):
        self.request = stream.Endpoint(mr_request_description())
        self.result  = stream.Endpoint(mr_result_description())
        self.wake    = Signal()
        self.phases  = []

    def track(self, begun, ended):
        """Tells of the client's accesses: one pulse of `begun` at or before a request, one of `ended` when
        the access has left this phase, in order. Phases of one access are tracked one after the other."""
        self.phases.append((begun, ended))


# AbsentPages --------------------------------------------------------------------------------------

class AbsentPages(LiteXModule):
    """Simulation: accesses miss at random, and pages come some clocks later, as if their lists lay in memory.

    Parameters
    ----------
    chance : int
        Of 256 accesses so many miss.
    shortest, longest : int
        Clocks from a miss until its page comes.

    Endpoints
    ---------
    missing : out; the access of this clock misses.
    missed : in; it was one that counts. wake : out; pulse, a page has come.

    Latency: none. Errors: none; of more than PAGES misses under way the further ones bring no page of their own.
    """
    PAGES = 16     # misses whose page is on its way.
    LATER = 9      # clocks that a result comes later: no client counts on how many there are.

    def __init__(self, chance, shortest, longest):
        if not 0 < chance < 256:
            raise ValueError(f"chance must be 1 to 255 of 256 accesses, not {chance!r}")
        if not 1 <= shortest <= longest < 1 << 16:
            raise ValueError(f"shortest and longest must be 1 to 65535 clocks in this order, not {shortest!r} and {longest!r}")
        self.missing, self.missed, self.wake = Signal(), Signal(), Signal()

        # # #

        state  = Signal(32, reset=0x2545_f491)
        timers = [Signal(max=longest + 1) for _ in range(self.PAGES)]
        turn   = Signal(max=self.PAGES)
        delay  = Signal(max=longest + 1)
        self.comb += [
            self.missing.eq(state[:8] < chance),
            # The range times 16 drawn bits: its upper part is spread over the range.
            delay.eq(shortest + (((longest - shortest + 1)*state[12:28]) >> 16)),
        ]
        # Galois, eight steps a clock.
        following = state
        for _ in range(8):
            step = Signal(32)
            self.comb += step.eq(Cat(following[1:], 0) ^ Mux(following[0], 0xa300_0000, 0))
            following = step
        self.sync += [
            state.eq(following),
            self.wake.eq(Reduce("OR", [timer == 1 for timer in timers])),
            [If(timer != 0, timer.eq(timer - 1)) for timer in timers],
            If(self.missed,
                turn.eq(turn + 1),
                Case(turn, {n: If(timer == 0, timer.eq(delay)) for n, timer in enumerate(timers)}),
            ),
        ]


# MRTable ------------------------------------------------------------------------------------------

class MRTable(LiteXModule):
    """Checks accesses against the regions and translates their first address, one a clock.

    Sums are carried out to 65 bits in two halves, so that a range that wraps is out of bounds, not small.

    Parameters
    ----------
    n_mrs : int
        Regions, a power of two from 16 to 65536.
    patience : int
        Clocks an invalidation waits at most: data may be held by a wire that is down. The key is dead from the start.
    absent : (chance, shortest, longest) or None
        Simulation: of 256 good accesses so many miss at random, and a page comes so many clocks later. Results are some clocks
        later than they are in hardware.

    Endpoints
    ---------
    write : mr_write_description(), in
        Region rows from the command port; valid_row 0 invalidates, and is taken only when no access that began
        before is in flight, as far as the clients track theirs, or after `patience` clocks. A row over a valid one
        invalidates that first.
    get_port() : MRPort
        A client; call before finalisation.
    Latency: a request is accepted when its turn comes (round robin); the result follows, in order; five clocks later.
    Errors : rows in this order: MR_KEY (index, validity, variant), MR_PD, MR_ACCESS, MR_BOUNDS.
    """
    def __init__(self, n_mrs=DEFAULT_MRS, patience=1 << 20, absent=None):
        if n_mrs < 16 or n_mrs > MAX_MRS or n_mrs & (n_mrs - 1):
            raise ValueError(f"n_mrs must be a power of two from 16 to {MAX_MRS}, not {n_mrs!r}")
        if patience < 2:
            raise ValueError(f"patience must be at least 2 clocks, not {patience!r}")
        self.n_mrs, self.patience = n_mrs, patience
        self.bits  = log2_int(n_mrs)
        self.ports = []
        # Stream Endpoints.
        self.write = stream.Endpoint(mr_write_description())
        self.ready = Signal()

        # # #

        self.judged  = Record([("key", 32), ("va", 64)])     # the access to be judged, were its key good; it misses if `missing`.
        self.missing = Signal()
        self.wake    = Signal()
        if absent:
            self.absent = pages = AbsentPages(*absent)
            self.comb += self.missing.eq(pages.missing), self.wake.eq(pages.wake)
        self.missed = Signal()           # an access has missed.
        self.rows = Table(ROW, n_mrs)
        self.used = Table(1, n_mrs)      # the row is valid.
        self.read_port = self.rows.get_port()
        self._add_write()

    def get_port(self):
        """A new client port, served in turn."""
        port = MRPort()
        self.ports.append(port)
        return port

    def _add_write(self):
        """Init walker and region writes: `end` and `delta` are summed in halves, two clocks each."""
        write, rows, used = self.write, self.rows, self.used
        row     = Record(ROW)
        look    = used.get_port()
        looked  = Signal(max=used.latency + 1)      # clocks that the region's number stands at `look`.
        begin, valid = Signal(), Signal()
        index   = Signal(self.bits)
        self.step    = step = Signal(2)
        self.drained = Signal()
        inside  = Signal()
        carries = [Signal(2), Signal(2)]
        length_hi, va_hi, addr_hi = Signal(32), Signal(32), Signal(32)
        low_end, low_delta, high_end = Signal(33), Signal(33), Signal(33)
        self.comb += [
            self.ready.eq(rows.ready & used.ready),
            look.adr.eq(write.index[:self.bits]),
            begin.eq(self.ready & write.valid & (step == 0) & (looked == used.latency)),
            valid.eq(look.row & (write.index[self.bits:] == 0)),
            write.ready.eq(Mux(write.valid_row, begin & ~valid, self.drained)),
            used.we.eq((step == 2) & inside),
            used.adr.eq(index),
            used.row.eq(row.enable),
            low_end.eq(write.va[:32] + write.length[:32]),
            low_delta.eq(write.addr[:32] - write.va[:32]),
            high_end.eq(va_hi + length_hi + carries[0]),
            # An index beyond the table is the command port's to refuse; here it writes nothing.
            rows.we.eq((step == 2) & inside),
            rows.adr.eq(index),
            rows.row.eq(row),
        ]
        self.sync += [
            If((step != 0) | ~write.valid | begin, looked.eq(0)).Elif(looked != used.latency, looked.eq(looked + 1)),
            If((step == 1) | (step == 2), step.eq(step + 1)),
            # Step 3: the row is invalid, accesses begun before are awaited.
            If((step == 2) & row.enable, step.eq(0)),
            If((step == 3) & self.drained, step.eq(0)),
            If(begin,
                step.eq(1),
                index.eq(write.index),
                inside.eq(write.index[self.bits:] == 0),
                row.enable.eq(write.valid_row & ~valid),
                row.variant.eq(write.variant),
                row.access.eq(write.access),
                row.pd.eq(write.pd),
                row.target.eq(write.target),
                row.va.eq(write.va),
                row.end[:32].eq(low_end),
                row.delta[:32].eq(low_delta),
                carries[0].eq(low_end[32]),
                carries[1].eq(low_delta[32]),
                va_hi.eq(write.va[32:]),
                length_hi.eq(write.length[32:]),
                addr_hi.eq(write.addr[32:]),
            ),
            If(step == 1,
                row.end[32:].eq(high_end),
                row.delta[32:].eq(addr_hi - va_hi - carries[1]),
                # A region beyond the address space ends with it.
                If(high_end[32], row.end.eq(1 << 64)),
            ),
        ]

    def do_finalize(self):
        self._add_drain()
        if not self.ports:
            return
        n_ports = len(self.ports)
        request = stream.Endpoint(mr_request_description())
        self.turns = turns = Turns(n_ports, ahead=True)
        grant   = turns.grant
        self.comb += turns.request.eq(Cat(*[port.request.valid for port in self.ports])), turns.next.eq(request.valid)
        # A row is not read in the clock that writes it: block RAM leaves open what comes out.
        open_ = Signal()
        self.comb += open_.eq(self.ready & (self.step != 1))
        self.comb += Case(grant, {n: [
            request.valid.eq(port.request.valid & open_),
            request.payload.eq(port.request.payload),
            port.request.ready.eq(open_),
        ] for n, port in enumerate(self.ports)})
        self.comb += [port.wake.eq(self.wake) for port in self.ports]
        if hasattr(self, "absent"):
            self.comb += self.absent.missed.eq(self.missed)
        self._add_pipeline(request, grant)

    def _add_drain(self):
        """After an invalidation the accesses already begun are awaited, phase by phase."""
        self.drain = drain = Drain([port.phases for port in self.ports])
        waited = Signal(max=self.patience, reset=self.patience - 1)
        self.comb += [
            drain.wait.eq(self.step == 3),
            self.drained.eq((self.step == 3) & (drain.done | (waited == 0))),
        ]
        self.sync += If(self.step != 3, waited.eq(self.patience - 1)).Elif(waited != 0, waited.eq(waited - 1))

    def _add_pipeline(self, request, grant):
        """Clock 1: RAM address and low end; 2: high end; 3: compare halves; 4: combine and judge; 5: result."""
        layout = request.description.payload_layout + [("grant", len(grant))]
        stages = [Record([("valid", 1)] + layout, name=f"check{n}") for n in range(1, 5)]
        s1, s2, s3, s4 = stages
        names = [f[0] for f in layout]
        self.sync += [s1.valid.eq(request.valid), s1.grant.eq(grant)]
        self.sync += [getattr(s1, name).eq(getattr(request, name)) for name in names if name != "grant"]
        for before, after in zip(stages, stages[1:]):
            self.sync += [getattr(after, name).eq(getattr(before, name)) for name in ["valid"] + names]

        # Clock 3 holds the row, the RAM's register being the second.
        port, row = self.read_port, self.read_port.row
        self.comb += port.adr.eq(s1.key[8:8 + self.bits])

        low, end3 = Signal(33), Signal(65)
        self.sync += [
            low.eq(s1.va[:32] + s1.length),
            end3.eq(Cat(low[:32], (s2.va[32:] + low[32])[:33])),
        ]

        # Clock 3 -> 4.
        key, pd, access         = Signal(), Signal(), Signal()
        va_gt, va_eq, va_ge_low = Signal(), Signal(), Signal()
        end_lt, end_eq, end_le_low = Signal(), Signal(), Signal()
        target4, addr4, delta_hi4 = Signal(TARGET_WIDTH), Signal(33), Signal(32)
        self.sync += [
            key.eq(row.enable & (row.variant == s3.key[:8]) & (s3.key[8 + self.bits:] == 0)),
            pd.eq(row.pd == s3.pd),
            access.eq((s3.access & ~row.access) == 0),
            va_gt.eq(s3.va[32:] > row.va[32:]),
            va_eq.eq(s3.va[32:] == row.va[32:]),
            va_ge_low.eq(s3.va[:32] >= row.va[:32]),
            end_lt.eq(end3[32:] < row.end[32:]),
            end_eq.eq(end3[32:] == row.end[32:]),
            end_le_low.eq(end3[:32] <= row.end[:32]),
            target4.eq(row.target),
            addr4.eq(s3.va[:32] + row.delta[:32]),
            delta_hi4.eq(row.delta[32:]),
        ]
        # Clock 4 -> 5.
        bounds, miss = Signal(), Signal()
        self.comb += [
            bounds.eq((va_gt | (va_eq & va_ge_low)) & (end_lt | (end_eq & end_le_low))),
            self.judged.key.eq(s4.key), self.judged.va.eq(s4.va),
            miss.eq(s4.valid & key & pd & access & bounds & self.missing),
            self.missed.eq(miss),
        ]
        for n, port in enumerate(self.ports):
            result = self._add_result(port)
            self.sync += [
                result.valid.eq(s4.valid & (s4.grant == n)),
                result.miss.eq(miss),
                result.target.eq(target4),
                result.addr.eq(Cat(addr4[:32], (s4.va[32:] + delta_hi4 + addr4[32])[:32])),
                If(~key,
                    result.row.eq(index_of("MR_KEY"))
                ).Elif(~pd,
                    result.row.eq(index_of("MR_PD"))
                ).Elif(~access,
                    result.row.eq(index_of("MR_ACCESS"))
                ).Elif(~bounds,
                    result.row.eq(index_of("MR_BOUNDS"))
                ).Else(
                    result.row.eq(0)
                ),
            ]

    def _add_result(self, port):
        """The register that the result of a client's access is written to; behind it more of them where pages are absent."""
        registers = [stream.Endpoint(mr_result_description()) for _ in range(AbsentPages.LATER if hasattr(self, "absent") else 0)]
        for before, after in zip(registers, registers[1:] + [port.result]):
            self.sync += after.valid.eq(before.valid), after.payload.eq(before.payload)
        self.comb += port.result.first.eq(1), port.result.last.eq(1)
        return (registers + [port.result])[0]
