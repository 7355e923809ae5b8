# SPDX-License-Identifier: BSD-2-Clause
"""The engine: every module of roce_soc joined in packet order; no logic of its own.

Ref: doc/architecture.md.
"""
from migen import *

from litex.gen import *
from litex.soc.interconnect.csr import *
from litex.soc.interconnect.csr_eventmanager import EventManager, EventSourcePulse

from roce_soc import abi, capability
from roce_soc.clocks import ClockLink
from roce_soc.common import DEFAULT_CQS, DEFAULT_MRS, DEFAULT_QPS, OWNER_REQUESTER, OWNER_RESPONDER, TICK_CYCLES
from roce_soc.memory.fetcher import PayloadFetcher
from roce_soc.memory.mr import MRTable
from roce_soc.memory.placer import PayloadPlacer
from roce_soc.memory.port import MemoryReadArbiter, MemoryWriteArbiter
from roce_soc.monitor import RoCEMonitor
from roce_soc.network.admission import ReceiveAdmission
from roce_soc.network.receive import RoCEReceive
from roce_soc.network.transmit import RoCETransmit
from roce_soc.network.turnaround import RoCETurnaround
from roce_soc.opcodes import RC_ACKNOWLEDGE
from roce_soc.packet.buffer import PacketBuffer
from roce_soc.packet.decoder import RoCEDecoder
from roce_soc.packet.drain import ReceiveDrain
from roce_soc.packet.encoder import RoCEEncoder, frame_params
from roce_soc.packet.icrc import ICRCInserter
from roce_soc.packet.icrc_checker import ICRCChecker
from roce_soc.qp.command import CommandPort
from roce_soc.qp.context import QPContext
from roce_soc.queue.cq import CompletionQueues
from roce_soc.queue.doorbell import DoorbellWindow
from roce_soc.queue.eq import CAUSES, EventQueue
from roce_soc.queue.push import InlineReads
from roce_soc.queue.rq import ReceiveQueues
from roce_soc.timebase import TimeBase
from roce_soc.transport.reply.reply import RoCEReply
from roce_soc.transport.responder.responder import RoCEResponder
from roce_soc.transport.send_side import RoCESendSide

CAUSE_NAMES = {
    abi.EVENT_COMPLETION: "completion", abi.EVENT_CQ_ERR: "cq_err", abi.EVENT_QP_FATAL: "qp_fatal",
    abi.EVENT_QP_REQ_ERR: "qp_req_err", abi.EVENT_QP_ACCESS_ERR: "qp_access_err", abi.EVENT_COMM_EST: "comm_est",
    abi.EVENT_SQ_DRAINED: "sq_drained", abi.EVENT_PORT_ACTIVE: "port_active", abi.EVENT_PORT_ERR: "port_err"}
MASTERS = ("firmware", "host")


# RoCECore -----------------------------------------------------------------------------------------

class RoCECore(LiteXModule):
    """One RoCE v2 port: wire on one side, memory ports on the other, registers and doorbells beside.

    Parameters
    ----------
    n_qps, n_mrs, n_cqs : int
        Table sizes, powers of two; as many receive queues as QPs.
    n_chunks : int
        Packet buffer in 512-byte chunks.
    doorbell_pages : int
        Owner pages of the doorbell window.
    memories : tuple of capability.MemoryTarget
        What lies behind the memory ports, by target, for software to read.
    scalable_ticks : bool
        Simulation: the tick's clocks are a register.
    tick_cycles : int
        Engine clocks of a tick of the time base (timebase.tick_cycles_of).
    clock_domain : str
        Clock of the engine. "sys": that of the registers, not one clock is lost between them.
    parity : bool
        Connection rows have parity: a QP whose row is wrong goes to ERR (ROW_PARITY).
    absent : tuple or None
        Simulation: accesses that miss at random (MRTable).

    Endpoints
    ---------
    Registers, doorbell_bus and ev.irq are in clock sys, all others in the engine's.
    rx, tx : roce_wire_description(512), in, out
    slow_rx, slow_tx : roce_wire_description(512), out, in
        Frames that are not RoCE v2; slow_rx has no back-pressure.
    payload_write, completion_write : MemoryWritePort, out; payload_read, descriptor_read : MemoryReadPort, out
        Contract in memory/port.py.
    doorbell_bus : Wishbone slave
    port_event : event_description(), in
        Link up and down.
    ev.irq : interrupt of the event queue's causes
    ready : tables are initialised.
    link : ClockLink from sys to the engine's clock, for what else lies on both sides.

    Latency: doc/architecture.md has the walk clock by clock, README.md the budgets.
    Errors : rows of errors.py, by the parts that check them.
    """
    def __init__(self, *, n_qps=DEFAULT_QPS, n_mrs=DEFAULT_MRS, n_cqs=DEFAULT_CQS, n_chunks=512, doorbell_pages=16,
                 memories=(), scalable_ticks=False, tick_cycles=TICK_CYCLES, clock_domain="sys", parity=False, absent=None):
        self.link = link = ClockLink("sys", clock_domain)

        # Tables.
        self.context = context = QPContext(n_qps, parity)
        self.mr      = mr      = MRTable(n_mrs, absent=absent)
        words        = capability.capability_words(
            n_qps=n_qps, n_mrs=n_mrs, n_cqs=n_cqs, n_rqs=n_qps, memories=memories)
        self.capability = capability.RoCECapability(words)
        self.command = command = CommandPort(
            context, n_mrs=n_mrs, n_cqs=n_cqs, n_rqs=n_qps, capability=[v for v, _ in words.values()])
        for master in MASTERS:
            setattr(self, f"mailbox_{master}", command.get_mailbox(link))

        # Receive side.
        self.turnaround = turnaround = RoCETurnaround()
        self.receive = receive = RoCEReceive()
        self.admission = admission = ReceiveAdmission(link)
        self.icrc    = icrc    = ICRCChecker()
        self.decoder = decoder = RoCEDecoder(context.get_port(), n_qps)
        self.buffer  = buffer  = PacketBuffer(n_chunks)
        self.placer  = placer  = PayloadPlacer()
        self.comb += [
            turnaround.source.connect(receive.sink),
            receive.is_local.eq(turnaround.is_local),
            decoder.admit_own.eq(admission.admit_own),
            receive.header.connect(decoder.header),
            receive.source.connect(decoder.sink),
            receive.early.connect(icrc.sink),
            icrc.judge.eq(receive.early_roce), icrc.end.eq(receive.early_end),
            decoder.icrc_valid.eq(icrc.valid),
            decoder.icrc_good.eq(icrc.good),
            decoder.source.connect(buffer.sink),
            decoder.verdict.connect(buffer.verdict),
            placer.fetch.connect(buffer.fetch),
            buffer.data.connect(placer.data),
            buffer.keep.eq(placer.keep),
        ]
        self.receive_drain = receive_drain = ReceiveDrain(decoder.sink.valid & decoder.sink.first, decoder.verdict.valid,
            (buffer.requests.sink, buffer.responses.sink), (buffer.request, buffer.response))

        # Queues.
        self.doorbells = doorbells = DoorbellWindow(doorbell_pages)
        self.cq        = cq        = CompletionQueues(n_cqs, n_qps)
        self.eq        = eq        = EventQueue()
        self.rq        = rq        = ReceiveQueues(n_qps)

        # Responder.
        self.reply     = reply     = RoCEReply(n_qps)
        self.responder = responder = RoCEResponder(n_qps, context.get_port(), mr.get_port(), rq, reply, n_chunks)
        reply.connect_mr(mr.get_port())
        self.comb += buffer.request.connect(responder.sink)
        self._add_placement(placer, responder.place, responder.place_done, responder.where)

        # Send side.
        self.send = send = RoCESendSide(context, mr.get_port(), mr.get_port(), n_chunks)
        self.comb += buffer.response.connect(send.completer.response)
        self._add_placement(placer, send.completer.place, send.completer.done)

        # Transmit side.
        self.fetcher  = fetcher  = PayloadFetcher()
        self.inline   = inline   = InlineReads(fetcher.port, fetcher.max_reads)
        self.encoder  = encoder  = RoCEEncoder(context.get_port())
        self.inserter = inserter = ICRCInserter(params=frame_params())
        self.transmit = transmit = RoCETransmit()
        for source in (reply.control, reply.reads, send.requester.source):
            self.comb += source.connect(fetcher.get_port())
        self.comb += [
            fetcher.source.connect(encoder.sink),
            fetcher.payload.connect(encoder.payload),
            encoder.source.connect(inserter.sink),
            encoder.reserve.connect(transmit.reserve),
            encoder.room.eq(transmit.room),
            encoder.room_control.eq(transmit.room_control),
            inserter.source.connect(transmit.sink),
            transmit.loop.connect(turnaround.local),
            transmit.sent.connect(send.requester.sent, omit={"ready"}),
            transmit.sent.connect(reply.sent, omit={"ready"}),
        ]

        # Commands and events.
        for side, ctl, done in (
            ("receive",    receive_drain.ctl,  receive_drain.ctl_done),
            ("responder",  responder.ctl,      responder.ctl_done),
            ("requester",  send.requester.ctl, send.requester.ctl_done),
            ("completer",  send.completer.ctl, send.walker.ctl_done),
            ("fetch",      send.sq.ctl,        send.sq.ctl_done),
            ("completion", cq.ctl,             cq.ctl_done),
        ):
            owner = command.get_owner(side)
            self.comb += [owner.ctl.connect(ctl), owner.done.eq(done)]
        self.port_event = eq.get_port()

        def tell(kick, kind):
            port = eq.get_port()
            return [kick.connect(port, keep={"valid", "ready"}), port.first.eq(1), port.last.eq(1), port.type.eq(kind), port.queue.eq(kick.qpi)]
        self.comb += [
            responder.event.connect(command.get_fatal()),
            send.walker.event.connect(command.get_fatal()),
            cq.fatal.connect(command.get_fatal()),
            context.fault.connect(command.get_fatal()) if parity else [],
            command.event.connect(eq.get_port()),
            tell(responder.established, abi.EVENT_COMM_EST),
            tell(send.walker.drained, abi.EVENT_SQ_DRAINED),
            send.walker.drained_clear.eq(command.drain_begins), send.walker.drained_qpi.eq(command.qpi),
            command.drained.eq(send.walker.is_drained(command.qpi)),
            cq.event.connect(eq.get_port()),
            responder.cqe.connect(cq.get_port(responder.cqes_held)),
            # Client 0 of `cq.outcome` is the responder: its get_port below is the first.
            responder.outcome.valid.eq(cq.outcome.valid & (cq.outcome.client == 0)),
            responder.outcome.lost.eq(cq.outcome.lost),
            send.walker.cqe.connect(cq.get_port(send.walker.buffer.source.valid)),
            command.mr_write.connect(mr.write),
            command.cq_write.connect(cq.write),
            command.rq_write.connect(rq.write),
            rq.bell_owned.eq(command.owned(rq.bell_index)),
            command.eq_write.connect(eq.write),
            doorbells.sq.connect(send.sq.doorbell),
            send.sq.push.eq(doorbells.slots.push),
            doorbells.slots.forget.eq(send.sq.clear),
            inline.load.eq(send.sq.inline_we),
            inline.inline.eq(send.sq.inline),
            inline.forget.eq(send.sq.clear),
            doorbells.rq.connect(rq.doorbell),
            doorbells.cq.connect(cq.doorbell),
            doorbells.eq.connect(eq.doorbell),
        ]

        # Memory ports.
        self.completions = completions = MemoryWriteArbiter(2)
        self.descriptors = descriptors = MemoryReadArbiter(2)
        self.payload_write, self.payload_read = placer.port, inline.port
        self.completion_write, self.descriptor_read = completions.port, descriptors.port
        for master, queue in zip(completions.masters, (cq, eq)):
            self.comb += [
                queue.wcmd.connect(master.wcmd),
                queue.wdata.connect(master.wdata),
                master.wack.connect(queue.wack),
            ]
        for master, queue in zip(descriptors.masters, (send.sq, rq)):
            self.comb += [queue.rcmd.connect(master.rcmd), master.rdata.connect(queue.rdata)]

        # Interrupt.
        self.ev = ev = EventManager()
        for cause in CAUSES:
            name = CAUSE_NAMES[cause]
            setattr(ev, name, EventSourcePulse(name, f"Event {name} was written to the event queue."))
        ev.overflow = EventSourcePulse("overflow",
            "An event found no room in the event queue; its cause is pending all the same.")
        ev.finalize()
        names = [CAUSE_NAMES[c] for c in CAUSES] + ["overflow"]
        causes = link.add_pulses(eq.causes, to_far=False)
        self.comb += [getattr(ev, name).trigger.eq(causes[i]) for i, name in enumerate(names)]

        # Time, counters.
        scanner   = send.scanner
        self.time = time = TimeBase(scanner.now, scalable_ticks, tick_cycles, link)
        self.monitor = monitor = RoCEMonitor({
            "receive":   (buffer.refusal, ("RECEIVE",)),
            "responder": (responder.refusal, ("RECEIVE", "RESPONDER")),
            "reply":     (reply.refusal, ("RESPONDER",)),
            "completer": (send.completer.refusal, ("RECEIVE", "COMPLETER")),
            "sq":        (send.sq.refusal, ("REQUESTER", "QUEUE")),
            "rq":        (rq.refusal, ("RESPONDER", "QUEUE")),
            "cq":        (cq.refusal, ("QUEUE",)),
            "doorbell":  (doorbells.refusal, ("QUEUE",)),
            "walker":    (send.walker.refusal, ("REQUESTER", "COMPLETER", "QUEUE")),
            **({"context": (context.refusal, ("CONTEXT",))} if parity else {}),
        }, self._traffic(), link)
        self.comb += [
            scanner.tick_cycles.eq(time.cycles),
            monitor.time.eq(scanner.now),
            eq.time.eq(scanner.now),
        ]

        # Doorbells, wire.
        self.doorbell_bus          = link.add_bus(doorbells.bus)
        self.rx, self.tx           = turnaround.wire, transmit.source
        self.slow_rx, self.slow_tx = receive.slow_source, transmit.slow_sink
        self.ready = Signal()
        self.comb += self.ready.eq(context.ready & command.holders.ready & mr.ready & buffer.ready & cq.ready & responder.ready & send.ready)

        # Clocks: all but the registers runs in the engine's.
        registers = (link, self.capability, ev, time, monitor, admission, *[getattr(self, f"mailbox_{master}") for master in MASTERS])
        for _, module in self._submodules:
            if module not in registers:
                link.on_far(module)

    def _add_placement(self, placer, place, done, where=None):
        """Gives a transport its port of the placer, a late one with `where`."""
        port = placer.get_port(late=where is not None)
        self.comb += [place.connect(port.sink), port.done.connect(done)]
        if where is not None:
            self.comb += where.connect(port.where)

    def _traffic(self):
        """Traffic counters: {name: (pulse, description)}."""
        receive, buffer, transmit, send = self.receive, self.buffer, self.transmit, self.send
        # All that is built passes here, one packet a clock, whatever path it came by; markers are no packets.
        packet = self.fetcher.source
        built, built_opcode = packet.valid & packet.ready & ~packet.marker, packet.opcode
        request = packet.owner == OWNER_REQUESTER
        read    = (packet.owner == OWNER_RESPONDER) & (built_opcode != RC_ACKNOWLEDGE)

        def ends(endpoint):
            return endpoint.valid & endpoint.ready & endpoint.last
        return {
            "rx_roce_frames": (receive.source.valid & receive.source.last, "RoCE frames received, bad ones included."),
            "rx_slow_frames": (receive.slow_source.valid & receive.slow_source.last, "Frames handed to the slow path."),
            "rx_requests":    (buffer.request.valid & buffer.request.ready, "Good request packets."),
            "rx_responses":   (buffer.response.valid & buffer.response.ready, "Good response packets."),
            "tx_frames":      (ends(transmit.source), "Frames transmitted, all classes."),
            "tx_requests":    (built & request,
                "Request packets built, retransmissions included."),
            "tx_acks":        (built & (built_opcode == RC_ACKNOWLEDGE), "Acknowledges built."),
            "tx_reads":       (built & read, "READ reply packets built."),
            "rewinds":        (send.walker.rewind.valid & send.walker.rewind.ready, "Retransmissions begun."),
            "completions":    (self.cq.wcmd.valid & self.cq.wcmd.ready, "Completions written."),
            "tx_loop_lost":   (transmit.lost, "Frames to the own MAC that found no room on their way round."),
            "rx_loop_lost":   (self.turnaround.lost, "Frames of the wire that found no room beside local ones."),
        }
