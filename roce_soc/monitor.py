# SPDX-License-Identifier: BSD-2-Clause
"""Counters and the refusal ring: what the engine did, what it refused and why.

Not supported: histograms, per-QP counters.
"""
from types import SimpleNamespace

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
LINE_BITS     = sum(width for _, width in LINE_LAYOUT)


# SharedTable --------------------------------------------------------------------------------------

class SharedTable(LiteXModule):
    """A table that several readers look into, one a clock; what a reader got stands until its own next question.

    Parameters
    ----------
    index_width, width : int
    readers : int

    Signals: per reader in `ports` `ask` (in, pulse), `index` (in, stays), `value` (out); towards the table `look` (out, pulse),
    `index` (out), `value` (in, a clock later).

    Latency: 2 + readers clocks at most from `ask` to `value`. Errors: none.
    """
    def __init__(self, index_width, width, readers):
        self.ports   = [SimpleNamespace(ask=Signal(), index=Signal(index_width), value=Signal(width)) for _ in range(readers)]
        self.look    = Signal()
        self.index   = Signal(index_width)
        self.value   = Signal(width)
        self.latency = 2 + readers

        # # #

        waiting, picked, looked = Signal(readers), Signal(readers), Signal(readers)
        pick = None
        for n, port in enumerate(self.ports):
            body = [picked[n].eq(1), self.index.eq(port.index)]
            pick = If(waiting[n], *body) if pick is None else pick.Elif(waiting[n], *body)
        self.comb += [pick, self.look.eq(waiting != 0)]
        self.sync += [
            waiting.eq(Cat(*[port.ask for port in self.ports]) | (waiting & ~picked)),
            looked.eq(picked),
            [If(looked[n], port.value.eq(self.value)) for n, port in enumerate(self.ports)],
        ]


# MonitorCounters ----------------------------------------------------------------------------------

class MonitorCounters(LiteXModule):
    """Counters and refusal ring, in the engine's clock.

    Parameters
    ----------
    refusals : {source name: (refusal_description endpoint, stages)}
        `stages` (of errors.py) bound the rows a source can name.
    traffic : {counter name: (1-bit pulse, description)}
    readers : int
        Who asks: ports of `counter_table` and of `line_table`.

    Signals: `lines`, `lost` (out) count lines; `time` (in).

    Latency: that of SharedTable. Errors: none.
    """
    def __init__(self, refusals, traffic, readers=1):
        self.counter_table    = counter_table = SharedTable(COUNTER_WIDTH, 32, readers)
        self.line_table       = line_table    = SharedTable(log2_int(REFUSAL_LINES), LINE_BITS, readers)
        self.lines, self.lost = Signal(32), Signal(32)
        self.time = Signal(32)

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
        self.sync += If(counter_table.look,
            Case(counter_table.index, {
                **{i: counter_table.value.eq(sum(c)) for i, c in values.items()},
                "default": counter_table.value.eq(0),
            })
        )

        # Refusal ring: a small FIFO per source, one line a clock into the RAM.
        memory = Memory(LINE_BITS, REFUSAL_LINES)
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
            rd.adr.eq(line_table.index),
            line_table.value.eq(rd.dat_r),
        ]
        self.sync += If(wr.we, lines.eq(lines + 1))


# MonitorWindow ------------------------------------------------------------------------------------

class MonitorWindow(LiteXModule):
    """Registers through which one master reads counters and refusals; another master's reads change nothing here.

    Write `counter_select` (or `line_select`), poll `status` for `ready`, read the value. Of programs that share a window each
    sees from `status` whether the value is the one asked for: exactly one turn since before the selection.

    Parameters
    ----------
    link : ClockLink
    counter, line : ports of SharedTables, in the far clock.
    latency : int
        Of the tables.

    Latency: `status` tells when what was selected is shown. Errors: none; a number without a counter shows 0.
    """
    def __init__(self, link, counter, line, latency):
        self.counter_select = CSRStorage(fields=[
            CSRField("index", size=COUNTER_WIDTH, description=f"Counter: row of errors.py, or {TRAFFIC_BASE} + traffic counter."),
        ], description="Counter shown by `counter_value`.")
        self.counter_value = CSRStatus(32,
            description="Counter at `counter_select`, free running, sampled after `counter_select` was written.")
        self.line_select = CSRStorage(fields=[
            CSRField("index", size=6, description="Line of the refusal ring."),
        ], description="Line shown by `line_*`, sampled after this was written.")
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
        self.status    = CSRStatus(fields=[
            CSRField("ready",        size=1, offset=0,
                description="1: `counter_value` and `line_*` belong to what this window selected last. 0 for some clocks after it."),
            CSRField("counter_turn", size=8, offset=8,  description="Writes of `counter_select`, modulo 256."),
            CSRField("line_turn",    size=8, offset=16, description="Writes of `line_select`, modulo 256."),
        ], description="State of this window's selections.")

        # # #

        shown, status = Record(LINE_LAYOUT), self.status.fields
        near = getattr(self.sync, link.near.domain)
        near += [
            If(self.counter_select.re, status.counter_turn.eq(status.counter_turn + 1)),
            If(self.line_select.re, status.line_turn.eq(status.line_turn + 1)),
        ]
        self.comb += [
            self.line_row.fields.row.eq(shown.row),
            self.line_row.fields.opcode.eq(shown.opcode),
            self.line_row.fields.source.eq(shown.source),
            self.line_qpn.status.eq(shown.qpn),
            self.line_psn.status.eq(shown.psn),
            self.line_info.status.eq(shown.info),
            self.line_time.status.eq(shown.time),
        ]
        ready = []
        for select, port, value in (
            (self.counter_select, counter, self.counter_value.status),
            (self.line_select,    line,    shown.raw_bits()),
        ):
            if link.separate:
                query = link.add_query(len(port.value), len(port.index), latency)
                self.comb += [
                    query.ask.eq(select.re),
                    query.index.eq(select.fields.index),
                    port.ask.eq(query.far_ask),
                    port.index.eq(query.far_index),
                    query.far_value.eq(port.value),
                    value.eq(query.value),
                ]
                ready.append(query.ready)
            else:
                under_way = Signal(latency)
                near += under_way.eq(Cat(select.re, under_way))
                self.comb += [
                    port.ask.eq(select.re),
                    port.index.eq(select.fields.index),
                    value.eq(port.value),
                ]
                ready.append(~select.re & (under_way == 0))
        self.comb += status.ready.eq(ready[0] & ready[1])


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
    masters : names
        Each has a MonitorWindow of its name, like its mailbox: index and value are two accesses.

    Counters are numbered: rows of errors.py by index, then traffic in the order given (`traffic_names`).

    Latency: 1 clock from a refusal or pulse to its counter. Errors: lines without room, counted.
    """
    def __init__(self, refusals, traffic, link=None, masters=("firmware", "host")):
        link = ClockLink() if link is None else link
        self.traffic_names = list(traffic)
        self.lines = CSRStatus(32,
            description="Refusal lines written since reset; the newest is line (lines - 1) modulo 64.")
        self.lines_lost = CSRStatus(32, description="Refusals counted but not logged.")
        self.time       = Signal(32)     # time base, in the engine's clock.

        # # #

        self.counters = counters = link.on_far(MonitorCounters(refusals, traffic, len(masters)))
        self.comb += [
            counters.time.eq(self.time),
            self.lines.status.eq(link.add_word(counters.lines, to_far=False)),
            self.lines_lost.status.eq(link.add_word(counters.lost, to_far=False)),
        ]
        for master, counter, line in zip(masters, counters.counter_table.ports, counters.line_table.ports):
            self.add_module(name=master, module=MonitorWindow(link, counter, line, counters.line_table.latency))
