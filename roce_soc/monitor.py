# SPDX-License-Identifier: BSD-2-Clause
"""Counters and the refusal ring: what the engine did, what it refused and why.

Not supported: histograms, per-QP counters.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect import stream
from litex.soc.interconnect.csr import *

from roce_soc.clocks import ClockLink
from roce_soc.common import refusal_description
from roce_soc.errors import ERROR_ROWS, ERRORS, ROW_WIDTH
from roce_soc.table import clocked_port

REFUSAL_LINES = 64
TRAFFIC_BASE  = ERROR_ROWS      # counters of traffic follow the error rows.
COUNTER_WIDTH = ROW_WIDTH + 1   # bits of a counter's number.
LINE_LAYOUT   = refusal_description().payload_layout + [("source", 8), ("time", 32)]


# MonitorCounters ----------------------------------------------------------------------------------

class MonitorCounters(LiteXModule):
    """Counters and refusal ring, in the engine's clock.

    Parameters
    ----------
    refusals : {source name: (refusal_description endpoint, stages)}
        `stages` (of errors.py) bound the rows a source can name.
    traffic : {counter name: (1-bit pulse, description)}

    Signals: `ask` (in, pulse) samples counter `index` into `value`; `line` is the line `line_index` of a clock before;
    `lines`, `lost` (out) count lines; `time` (in).

    Latency: 1 clock. Errors: none.
    """
    def __init__(self, refusals, traffic):
        self.ask,   self.index      = Signal(), Signal(COUNTER_WIDTH)
        self.value, self.line_index = Signal(32), Signal(log2_int(REFUSAL_LINES))
        self.line   = Signal(sum(w for _, w in LINE_LAYOUT))
        self.lines, self.lost = Signal(32), Signal(32)
        self.time   = Signal(32)

        # # #

        # Counters.
        values = {}
        for name, (endpoint, stages) in refusals.items():
            rows = [row for row in ERRORS.values() if row.stage in stages]
            for row in rows:
                counter = Signal(32, name=f"count_{name}_{row.name.lower()}")
                self.sync += If(endpoint.valid & (endpoint.row == row.index), counter.eq(counter + 1))
                values.setdefault(row.index, []).append(counter)
        for i, (name, (pulse, _)) in enumerate(traffic.items()):
            counter = Signal(32, name=f"count_{name}")
            self.sync += If(pulse, counter.eq(counter + 1))
            values[TRAFFIC_BASE + i] = [counter]
        self.sync += If(self.ask,
            Case(self.index, {
                **{i: self.value.eq(sum(c)) for i, c in values.items()},
                "default": self.value.eq(0),
            })
        )

        # Refusal ring: a small FIFO per source, one line a clock into the RAM.
        memory = Memory(len(self.line), REFUSAL_LINES)
        wr, rd = memory.get_port(write_capable=True), clocked_port(memory, old_word=True)
        self.specials += memory, wr, rd
        fifos, losses = [], []
        for number, (name, (endpoint, _)) in enumerate(refusals.items()):
            fifo = stream.SyncFIFO(refusal_description(), 4)
            setattr(self, f"{name}_fifo", fifo)
            self.comb += [
                fifo.sink.valid.eq(endpoint.valid),
                [getattr(fifo.sink, n).eq(getattr(endpoint, n)) for n, _ in refusal_description().payload_layout],
            ]
            loss = Signal()
            self.comb += loss.eq(fifo.sink.valid & ~fifo.sink.ready)
            fifos.append((number, fifo))
            losses.append(loss)
        lines, lost = self.lines, self.lost
        self.sync += lost.eq(lost + sum(losses))
        pick = None
        for number, fifo in fifos:
            body = [
                wr.we.eq(1),
                wr.dat_w.eq(Cat(*[getattr(fifo.source, n) for n, _ in refusal_description().payload_layout],
                    C(number, 8), self.time)),
                fifo.source.ready.eq(1),
            ]
            pick = If(fifo.source.valid, *body) if pick is None else pick.Elif(fifo.source.valid, *body)
        self.comb += [
            pick,
            wr.adr.eq(lines[:log2_int(REFUSAL_LINES)]),
            rd.adr.eq(self.line_index),
            self.line.eq(rd.dat_r),
        ]
        self.sync += If(wr.we, lines.eq(lines + 1))


# RoCEMonitor --------------------------------------------------------------------------------------

class RoCEMonitor(LiteXModule):
    """One free-running 32-bit counter per row of errors.py and per traffic pulse, and the last refusals.

    Counters never lose a pulse: every source counts its rows in registers of its own. The refusal
    ring is a log: of several refusals in one clock, or faster than a line a clock, some lines are
    left out and counted in `lines_lost`.

    Parameters
    ----------
    refusals, traffic : as MonitorCounters
    link : ClockLink
        Registers are near, what is counted is far; default one clock.

    Counters are numbered: rows of errors.py by index, then traffic in the order given (`traffic_names`).
    """
    def __init__(self, refusals, traffic, link=None):
        link = ClockLink() if link is None else link
        self.traffic_names = list(traffic)
        self.counter_select = CSRStorage(fields=[
            CSRField("index", size=COUNTER_WIDTH, description=f"Counter: row of errors.py, or {TRAFFIC_BASE} + traffic counter."),
        ], description="Counter shown by `counter_value`.")
        self.counter_value = CSRStatus(32,
            description="Counter at `counter_select`, free running, sampled when `counter_select` is written.")
        self.ready = CSRStatus(description="1: `counter_value` and `line_*` belong to what was selected last. 0 for some"
            " clocks after a selection where the engine has a clock of its own.")
        self.lines = CSRStatus(32,
            description="Refusal lines written since reset; the newest is line (lines - 1) modulo 64.")
        self.lines_lost = CSRStatus(32, description="Refusals counted but not logged.")
        self.line_select = CSRStorage(fields=[
            CSRField("index", size=6, description="Line of the refusal ring."),
        ], description="Line shown by `line_*`; sampled when written, or live where the engine has the registers' clock.")
        self.line_row = CSRStatus(fields=[
            CSRField("row",    size=8,  offset=0, description="Row of errors.py."),
            CSRField("opcode", size=8,  offset=8, description="BTH or work request opcode."),
            CSRField("source", size=8,  offset=16,
                description="Which part refused: number in the order of doc/architecture.md."),
        ], description="What was refused.")
        self.line_qpn  = CSRStatus(32, description="Destination QPN or QP.")
        self.line_psn  = CSRStatus(32, description="PSN.")
        self.line_info = CSRStatus(32, description="Row's own detail: length, key or address.")
        self.line_time = CSRStatus(32, description="Time base at the refusal, ticks.")
        self.time      = Signal(32)     # time base, in the engine's clock.

        # # #

        self.counters = counters = link.on_far(MonitorCounters(refusals, traffic))
        line = Record(LINE_LAYOUT)
        self.comb += [
            counters.time.eq(self.time),
            self.lines.status.eq(link.add_word(counters.lines, to_far=False)),
            self.lines_lost.status.eq(link.add_word(counters.lost, to_far=False)),
            self.line_row.fields.row.eq(line.row),
            self.line_row.fields.opcode.eq(line.opcode),
            self.line_row.fields.source.eq(line.source),
            self.line_qpn.status.eq(line.qpn),
            self.line_psn.status.eq(line.psn),
            self.line_info.status.eq(line.info),
            self.line_time.status.eq(line.time),
        ]
        counter, index = self.counter_select, self.line_select.fields.index
        if not link.separate:
            self.comb += [
                counters.ask.eq(counter.re),
                counters.index.eq(counter.storage),
                self.counter_value.status.eq(counters.value),
                counters.line_index.eq(index),
                line.raw_bits().eq(counters.line),
                self.ready.status.eq(1),
            ]
            return
        number = link.add_query(32, len(counter.storage), latency=1)
        text   = link.add_query(len(line.raw_bits()), len(index), latency=1)
        self.comb += [
            number.ask.eq(counter.re),
            number.index.eq(counter.storage),
            counters.ask.eq(number.far_ask),
            counters.index.eq(number.far_index),
            number.far_value.eq(counters.value),
            self.counter_value.status.eq(number.value),
            text.ask.eq(self.line_select.re),
            text.index.eq(index),
            counters.line_index.eq(text.far_index),
            text.far_value.eq(counters.line),
            line.raw_bits().eq(text.value),
            self.ready.status.eq(number.ready & text.ready),
        ]
