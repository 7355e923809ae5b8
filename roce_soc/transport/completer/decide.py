# SPDX-License-Identifier: BSD-2-Clause
"""Completer, first stage: what a response, a timer visit or a control visit means for its QP.

Ref: InfiniBand Architecture vol. 1 ch. 9.7.5, 9.7.6 (acknowledges, implied NAK, retries), 9.7.5.2.8 (RNR), 9.9.2.
Not supported: atomic responses, end-to-end credits.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream

from roce_soc.abi import QP_RTS, QP_SQD
from roce_soc.attributes import pmtu_case
from roce_soc.bounds import counted
from roce_soc.common import (
    TICKS_PER_10US, ctl_description, mr_request_description, refusal_description, rx_packet_description)
from roce_soc.errors import ROW_WIDTH, index_of
from roce_soc.opcodes import (
    NAK_INVALID_REQUEST, NAK_PSN_SEQUENCE, NAK_REMOTE_ACCESS, NAK_REMOTE_OPERATIONAL, OPCODES,
    RNR_TIMER_10US, SYNDROME_ACK, SYNDROME_RNR)
from roce_soc.table import kick_description
from roce_soc.transport.completer.rules import CTL, RESPONSE, SCAN, SEEK, CompleterRules
from roce_soc.transport.requester.state import (
    GENERATION_WIDTH, ITEM_BITS, TIME_WIDTH, completer_layout)
from roce_soc.verbs import ACCESS_LOCAL_WRITE

WORKS         = 16      # visits between decision and placing.
STAGES        = 5       # clocks from taking a visit to its row's write.
TIMEOUT_SHIFT = 4       # 4.096 us * 2^n are 2^(n + 4) ticks.


def work_layout():
    """A visit on its way to the placer: the payload's place record, then what the walker is told.

    key, va, pd: of the key check. again: was put off before.
    """
    names = ("qpi", "has_slot", "slot", "offset", "length", "psn")
    packet = [f for f in rx_packet_description().payload_layout if f[0] in names]
    return packet + [("record", 1), ("check", 1), ("tell", 1), ("una", 24), ("action", ITEM_BITS), ("row", ROW_WIDTH),
        ("key", 32), ("va", 64), ("pd", 16), ("again", 1)]


# CompleterDecide ----------------------------------------------------------------------------------

class CompleterDecide(LiteXModule):
    """Pipeline of visits. It never stalls: a visit starts only when its work will find room.

    ::
        C0 take a visit    C2 rows here, distances    C3 place in the READ, timers    C4 rules
        C5 row written, work and key check leave

    Parameters
    ----------
    context, state : QPContext, SendState

    Endpoints
    ---------
    response : rx_packet_description(), in
    scan : kick_description(), in
        Timer visits.
    seek : kick_description(), in
        The requester asks for the oldest message left.
    ctl : ctl_description(), in
    again : work_layout(), in
        Works that were put off: each is offered with its key check anew, in a clock in which no visit ends.
    hurry : in
        No visit is to begin, for the sake of `again`.
    full, put_off(qpi) : in, expression
        Responses of QPs that are put off are dropped, there is no place for more of them.
    now : in
        Time in ticks.
    work : work_layout(), out
        One for each response, and for each visit with something to tell.
    check : mr_request_description(), out
        One for each work with `check`, in order.
    refusal : refusal_description(), out

    Latency: 6 clocks from one visit of a QP to its next; different QPs one a clock.
    Errors : see CompleterRules; BUFFER_FULL for a response that is dropped.
    """
    def __init__(self, context, state, put_off):
        # Stream Endpoints.
        self.response = stream.Endpoint(rx_packet_description())
        self.scan     = stream.Endpoint(kick_description())
        self.seek     = stream.Endpoint(kick_description())
        self.ctl      = stream.Endpoint(ctl_description())
        self.again    = stream.Endpoint(work_layout())
        self.hurry    = Signal()
        self.full     = Signal()
        self.now      = Signal(TIME_WIDTH)
        self.work     = stream.Endpoint(work_layout())
        self.check    = stream.Endpoint(mr_request_description())
        self.refusal  = stream.Endpoint(refusal_description())

        # # #

        self.state, self.put_off = state, put_off
        self.works  = stream.SyncFIFO(work_layout(), WORKS, buffered=True)
        self.checks = stream.SyncFIFO(mr_request_description(), WORKS)
        self.submodules += counted(self.works, "visits on their way: `room` keeps STAGES + 2 places")
        self.submodules += counted(self.checks, "works with a key, which `works` counts too")
        self.ports  = {
            "conn"      : context.get_port(),
            "row"       : state.completer.get_port(),
            "wire"      : state.wire.get_port(),
            "busy"      : state.busy.get_port(),
            "generation": state.generation.get_port(),
            "pushed"    : state.pushed.get_port(),
        }
        self.read_port = state.reads.get_port()
        self.comb += [
            self.works.source.connect(self.work),
            self.checks.source.connect(self.check),
        ]
        step = [("valid", 1), ("kind", 2), ("op", 3), ("ctl_psn", 24), ("drop", 1)]
        self.stages = [Record(step + rx_packet_description().payload_layout) for _ in range(STAGES + 1)]
        self.add_take()
        self.add_distances()
        self.add_read()
        self.add_rules()
        self.add_write()

    def add_take(self):
        """C0: control, then timer visits, the requester's questions, then responses; not while the QP is in the pipeline."""
        c = self.stages
        room = Signal()
        self.comb += [
            room.eq((self.works.level <= WORKS - STAGES - 2) & self.state.ready & ~self.hurry),
            c[0].raw_bits().eq(0),
        ]
        free = []
        for source in (self.ctl, self.scan, self.seek, self.response):
            idle = Signal()
            self.comb += idle.eq(source.valid & room
                & ~Reduce("OR", [s.valid & (s.qpi == source.qpi) for s in c[1:]]))
            free.append(idle)
        # Blocked: the next kind of visit may go.
        self.comb += [
            If(free[0],
                self.ctl.ready.eq(1),
                c[0].valid.eq(1),
                c[0].kind.eq(CTL),
                c[0].op.eq(self.ctl.op),
                c[0].ctl_psn.eq(self.ctl.psn),
                c[0].qpi.eq(self.ctl.qpi),
            ).Elif(free[1],
                self.scan.ready.eq(1),
                c[0].valid.eq(1),
                c[0].kind.eq(SCAN),
                c[0].qpi.eq(self.scan.qpi),
            ).Elif(free[2],
                self.seek.ready.eq(1),
                c[0].valid.eq(1),
                c[0].kind.eq(SEEK),
                c[0].qpi.eq(self.seek.qpi),
            ).Elif(free[3],
                self.response.ready.eq(1),
                c[0].valid.eq(1),
                c[0].kind.eq(RESPONSE),
                c[0].drop.eq(self.full & self.put_off(self.response.qpi)),
                [getattr(c[0], f[0]).eq(getattr(self.response, f[0]))
                    for f in rx_packet_description().payload_layout],
            ),
            [port.adr.eq(c[0].qpi) for port in self.ports.values()],
            self.read_port.adr.eq(Cat(self.state.read_head.read(c[0].qpi), c[0].qpi[:self.state.bits])),
        ]
        self.sync += [after.raw_bits().eq(now.raw_bits()) for now, after in zip(c, c[1:])]

    def shift(self, layout):
        """A Record of `layout`, and another that holds it a clock later."""
        now, after = Record(layout), Record(layout)
        self.sync += after.raw_bits().eq(now.raw_bits())
        return now, after

    def add_distances(self):
        """C2: how the response lies to una, to what was sent and to the oldest READ; elapsed times."""
        conn, row, wire, pushed = (self.ports[n].row for n in ("conn", "row", "wire", "pushed"))
        read, packet = self.read_port.row, self.stages[2]
        fields = completer_layout() + [
            ("live", 1), ("pd", 16), ("pmtu", 3), ("timeout", 5), ("retry_cnt", 3), ("rnr_retry", 3), ("qpn", 24),
            ("sent_high", 24), ("from_una", 24), ("from_high", 24), ("from_first", 24), ("from_last", 24),
            ("una_first", 24), ("reading", 1), ("first_psn", 24), ("read_va", 64), ("read_lkey", 32), ("read_length", 32),
            ("since_progress", TIME_WIDTH), ("since_busy", TIME_WIDTH), ("since_rnr", TIME_WIDTH), ("rnr_ticks", 24),
            ("is_ack", 1), ("is_read", 1), ("starts", 1), ("ends", 1), ("aeth", 1),
            ("ack", 1), ("rnr", 1), ("nak", 1), ("nak_row", ROW_WIDTH), ("waits", 1),
            ("generation", GENERATION_WIDTH)]
        a, self.c3 = self.shift(fields)
        self.comb += [getattr(a, n).eq(getattr(row, n)) for n, _ in completer_layout()]
        self.comb += [getattr(a, n).eq(getattr(conn, n))
            for n in ("pd", "pmtu", "timeout", "retry_cnt", "rnr_retry", "qpn")]
        kinds = {o.value: [
            a.is_ack.eq(o.kind == "ACKNOWLEDGE"),
            a.is_read.eq(o.kind == "READ_RESPONSE"),
            a.starts.eq(o.starts),
            a.ends.eq(o.ends),
            a.aeth.eq("AETH" in o.headers),
        ] for o in OPCODES.values() if o.transport == "RC" and o.is_response}
        self.comb += [
            # The completer starts before the requester: until that has, nothing was sent that could be answered.
            a.live.eq(((conn.state == QP_RTS) | (conn.state == QP_SQD)) & wire.started),
            a.sent_high.eq(wire.high),
            a.from_una.eq(packet.psn - row.una),
            a.from_high.eq(packet.psn - wire.high),
            a.from_first.eq(packet.psn - read.first_psn),
            a.from_last.eq(packet.psn - read.last_psn),
            a.una_first.eq(row.una - read.first_psn),
            a.reading.eq(row.read_head != pushed.read),
            a.first_psn.eq(read.first_psn),
            a.read_va.eq(read.va),
            a.read_lkey.eq(read.lkey),
            a.read_length.eq(read.length),
            a.since_progress.eq(self.now - row.last_progress),
            a.since_busy.eq(self.now - self.ports["busy"].row.since),
            # A rewind is on its way to the requester, or what it repeats on its way to the wire: no time runs for it.
            a.generation.eq(self.ports["generation"].row),
            a.waits.eq((a.generation != wire.generation) | (row.rewinding & (a.generation == row.rewind_from))),
            a.since_rnr.eq(self.now - row.rnr_until),
            Case(packet.opcode, {**kinds, "default": []}),
            # Syndrome.
            Case(packet.syndrome[5:], {
                SYNDROME_ACK >> 5     : a.ack.eq(1),
                SYNDROME_RNR >> 5     : a.rnr.eq(1),
                NAK_PSN_SEQUENCE >> 5 : Case(packet.syndrome, {
                    NAK_PSN_SEQUENCE       : a.nak.eq(1),
                    NAK_INVALID_REQUEST    : [a.nak.eq(1), a.nak_row.eq(index_of("NAK_INVALID"))],
                    NAK_REMOTE_ACCESS      : [a.nak.eq(1), a.nak_row.eq(index_of("NAK_ACCESS"))],
                    NAK_REMOTE_OPERATIONAL : [a.nak.eq(1), a.nak_row.eq(index_of("NAK_OPERATIONAL"))],
                    "default"              : [],
                }),
                "default" : [],
            }),
            Case(packet.syndrome[:5], {code: a.rnr_ticks.eq(units*TICKS_PER_10US)
                for code, units in enumerate(RNR_TIMER_10US)}),
        ]

    def add_read(self):
        """C3: the place in the READ's data, what is left of it; whether a time is over."""
        c3 = self.c3
        fields = [
            ("ghost", 1), ("beyond", 1), ("at_read", 1), ("expected", 24), ("as_expected", 1), ("at_first", 1),
            ("at_last", 1), ("offset", 32), ("left", 32), ("pmtu_bytes", 13), ("expired", 1), ("rnr_over", 1)]
        a, self.c4 = self.shift(fields + c3.layout)
        late = [Signal() for _ in range(2)]
        self.comb += [getattr(a, n).eq(getattr(c3, n)) for n, _ in c3.layout]
        self.comb += [
            a.ghost.eq(c3.from_una[-1]),
            a.beyond.eq(~c3.from_high[-1]),
            a.at_read.eq(c3.reading & ~c3.from_first[-1]),
            a.expected.eq(Mux(c3.reading & c3.una_first[-1], c3.first_psn, c3.una)),
            a.as_expected.eq(Mux(c3.una_first[-1], c3.from_first == 0, c3.from_una == 0)),
            a.at_first.eq(c3.from_first == 0),
            a.at_last.eq(c3.from_last == 0),
            pmtu_case(c3.pmtu, lambda k: [a.offset.eq(c3.from_first << k), a.pmtu_bytes.eq(1 << k)]),
            a.left.eq(c3.read_length - a.offset),
            [late[i].eq((since[TIMEOUT_SHIFT:] >> c3.timeout) != 0)
                for i, since in enumerate((c3.since_progress, c3.since_busy))],
            a.expired.eq(late[0] & late[1] & (c3.timeout != 0) & (c3.una != c3.sent_high) & ~c3.waits),
            a.rnr_over.eq(~c3.since_rnr[-1]),
        ]

    def add_rules(self):
        """C4: the rules, in a module of their own."""
        self.rules = rules = CompleterRules(self.c4, self.stages[4], self.now)
        layout = [(n, getattr(self.c4, n).nbits) for n in ("read_va", "offset", "read_lkey", "pd", "qpn")]
        a, self.c5 = self.shift(rules.verdict.layout + layout)
        self.comb += [getattr(a, n).eq(getattr(rules.verdict, n)) for n, *_ in rules.verdict.layout]
        self.comb += [getattr(a, n).eq(getattr(self.c4, n)) for n, _ in layout]

    def add_write(self):
        """C5: row, READ head, work, key check, refusal."""
        c5, packet, state = self.c5, self.stages[5], self.state
        work, check = self.works.sink, self.checks.sink
        self.comb += [
            state.completer.we.eq(packet.valid & c5.write),
            state.completer.adr.eq(packet.qpi),
            [getattr(state.completer.row, n).eq(getattr(c5, f"row_{n}")) for n, _ in completer_layout()],
            state.una.we.eq(packet.valid & c5.write),
            state.una.adr.eq(packet.qpi),
            state.una.row.psn.eq(c5.row_una),
            state.read_head.we.eq(packet.valid & c5.write),
            state.read_head.adr.eq(packet.qpi),
            state.read_head.row.eq(c5.row_read_head),

            [getattr(work, n).eq(getattr(packet, n)) for n in ("qpi", "has_slot", "slot", "offset", "length", "psn")],
            work.record.eq(packet.kind == RESPONSE),
            work.valid.eq(packet.valid & (work.record | c5.tell)),
            work.check.eq(c5.place & (packet.length != 0)),
            work.tell.eq(c5.tell),
            work.una.eq(c5.row_una),
            work.action.eq(c5.action),
            work.row.eq(c5.error),
            work.key.eq(c5.read_lkey),
            work.va.eq(c5.read_va + c5.offset),
            work.pd.eq(c5.pd),
            # In a clock without a visit.
            self.again.ready.eq(~packet.valid & (self.works.level <= WORKS - STAGES - 2)),
            If(self.again.valid & self.again.ready,
                work.valid.eq(1),
                work.payload.eq(self.again.payload),
                work.again.eq(1),
            ),
            check.valid.eq(work.valid & work.check),
            [getattr(check, n).eq(getattr(work, n)) for n in ("key", "va", "length", "pd")],
            check.access.eq(ACCESS_LOCAL_WRITE),
        ]
        refusal = self.refusal
        self.comb += [refusal.first.eq(1), refusal.last.eq(1)]
        self.sync += [
            refusal.valid.eq(packet.valid & (c5.error != 0)),
            refusal.row.eq(c5.error),
            refusal.qpn.eq(c5.qpn),
            refusal.psn.eq(packet.psn),
            refusal.opcode.eq(packet.opcode),
            refusal.info.eq(c5.row_una),
        ]
