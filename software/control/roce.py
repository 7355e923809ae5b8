# SPDX-License-Identifier: BSD-2-Clause
"""Verbs over registers and memory: what Python programs use to drive an engine.

Works over any transport that reads and writes registers by name and bytes by address: litex_server
(control/bus.py), the simulation's socket, the compiled engine of the tests. No gateware import.
"""
from __future__ import annotations      # objects and RoCE name each other.

import contextlib
import itertools
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from roce_soc import abi, verbs
from software.control.transport import Bus

MAX_MESSAGE   = 1 << 31     # bytes.
WORK_REQUESTS = {
    verbs.WR_SEND: "SEND", verbs.WR_SEND_WITH_IMM: "SEND_WITH_IMM", verbs.WR_RDMA_WRITE: "RDMA_WRITE",
    verbs.WR_RDMA_WRITE_WITH_IMM: "RDMA_WRITE_WITH_IMM", verbs.WR_RDMA_READ: "RDMA_READ"}

CODE_NAMES = ("OK", "BAD_OPCODE", "BAD_INDEX", "BAD_STATE", "BAD_VALUE", "TIMEOUT")


class CommandError(RuntimeError):
    """A command was refused; `code` is the CODE_* of the ABI, `info` the argument word refused."""
    def __init__(self, opcode: int, code: int, info: int) -> None:
        name = CODE_NAMES[code] if code < len(CODE_NAMES) else str(code)
        word = f", argument word {info}" if code == abi.CODE_BAD_VALUE else ""
        super().__init__(f"command {opcode:#04x} refused: {name}{word}")
        self.opcode, self.code, self.info = opcode, code, info


# Objects ------------------------------------------------------------------------------------------

class MR:
    """Registered memory of `length` bytes: `va` as work requests name it, `addr` where it lies in memory `target`, `key` both
    lkey and rkey."""
    def __init__(self, roce: RoCE, index: int, variant: int, va: int, length: int, addr: int, access: int, pd: int,
                 target: int = 0) -> None:
        self.roce, self.index, self.variant, self.target = roce, index, variant, target
        self._where = (target,) if target else ()
        self.va, self.length, self.addr, self.access, self.pd = va, length, addr, access, pd

    @property
    def key(self) -> int:
        """lkey and rkey: index and variant."""
        return self.index << 8 | self.variant

    lkey = rkey = key

    def read(self, va: int | None = None, length: int | None = None) -> bytes:
        """`length` bytes of the region from `va` on; by default those of the region."""
        va = self.va if va is None else va
        return self.roce.bus.read_memory(self.addr + va - self.va, self.length if length is None else length, *self._where)

    def write(self, data: bytes, va: int | None = None) -> None:
        """Puts bytes at `va`."""
        self.roce.bus.write_memory(self.addr + (self.va if va is None else va) - self.va, data, *self._where)

    def invalidate(self) -> None:
        """The key grants nothing from here on."""
        self.roce.command(abi.CMD_INVALIDATE_MR, abi.pack_args(abi.MR_ARGS, index=self.index))

    def destroy(self) -> None:
        """Invalidates; the next region on this index has another key."""
        self.invalidate()
        self.roce.free("mr", self.index)


class CQ:
    """Completion queue of 2^log2 entries: `poll` returns dicts of abi.CQE's fields, `status` as a number."""
    def __init__(self, roce: RoCE, index: int, log2: int, addr: int, page: int) -> None:
        self.roce, self.index, self.log2, self.addr, self.page = roce, index, log2, addr, page
        self.consumer = 0

    def poll(self, limit: int | None = None) -> list[dict[str, int]]:
        """Completions that are there; the consumer doorbell is rung when any was taken."""
        out : list[dict[str, int]] = []
        size = 1 << self.log2
        while limit is None or len(out) < limit:
            addr  = self.addr + abi.CQE_BYTES*(self.consumer % size)
            # The phase first: an entry that lands between two words of a read would come in halves.
            phase = self.roce.bus.read_memory(addr + abi.CQE_BYTES - 4, 4)[3] & 1
            if phase == (self.consumer >> self.log2) & 1:
                break
            entry = abi.unpack(abi.CQE, self.roce.bus.read_memory(addr, abi.CQE_BYTES))
            self.consumer = (self.consumer + 1) & 0xffff
            out.append(entry)
        if out:
            self.roce.bus.doorbell(self.page, abi.DOORBELL_CQ, self.index, self.consumer)
            for entry in out:
                self.roce.completed(entry)
        return out

    def destroy(self) -> None:
        """Takes the CQ away; its QPs must be gone or in RESET."""
        self.roce.command(abi.CMD_WRITE_CQ, abi.pack_args(abi.CQ_ARGS, index=self.index))
        self.roce.free("cq", self.index)

    def arm(self, solicited: bool = False) -> None:
        """Asks for one event at the next (solicited) completion."""
        self.roce.bus.doorbell(self.page, abi.DOORBELL_CQ_ARM, self.index, (self.consumer & 0x7fff) | solicited << 15)


class _Ring:
    """Producer side of a work queue's ring: slots free running, returned by completions."""
    def __init__(self, log2: int, addr: int) -> None:
        self.log2, self.addr = log2, addr
        self.reset()

    def reset(self) -> None:
        self.producer, self.consumer = 0, 0

    def reserve(self, slots: int, what: str) -> None:
        if self.producer - self.consumer + slots > 1 << self.log2:
            raise BufferError(f"{what} is full: {1 << self.log2} slots, {self.producer - self.consumer} in use")

    def slot_addr(self, number: int) -> int:
        return self.addr + abi.SEND_WQE_BYTES*(number % (1 << self.log2))

    def release(self, slot: int) -> None:
        """Slots up to the one a CQE names are free again."""
        self.consumer += ((slot - self.consumer) % (1 << self.log2)) + 1


class QP:
    """Queue pair: attributes as a dict of abi.QP_ARGS fields, rings, state."""
    def __init__(self, roce: RoCE, index: int, send_cq: CQ, recv_cq: CQ, sq: _Ring, rq: _Ring, page: int) -> None:
        self.roce, self.index, self.send_cq, self.recv_cq, self.page = roce, index, send_cq, recv_cq, page
        self.sq, self.rq = sq, rq
        self.attributes: dict[str, int] = {}

    @property
    def qpn(self) -> int:
        """Number on the wire."""
        return self.attributes["qpn"]

    def modify(self, state: int, **attributes: int) -> None:
        """Goes to `state` (abi.QP_*); attributes of abi.QP_ARGS are kept for later commands."""
        # A wish to be told holds for one change alone.
        wanted = {**self.attributes, "sqd_notify": 0, **attributes, "state": state}
        wanted["access"] = verbs.access_of(wanted.get("access", 0), verbs.ACCESS_QP, "a queue pair")
        self.roce.command(abi.CMD_MODIFY_QP, abi.pack_args(abi.QP_ARGS, **wanted))
        # What was refused leaves nothing here.
        self.attributes = wanted
        if state == abi.QP_RESET:
            self.sq.reset()
            self.roce.write_rq(self)

    def _check_state(self, what: str, states: Sequence[int]) -> None:
        """RuntimeError where no work request of this kind may be posted: nobody would ever hear of it."""
        state = self.attributes.get("state", abi.QP_RESET)
        if state not in states:
            names = " ".join(verbs.QP_STATES[s] for s in states)
            raise RuntimeError(f"a {what} work request needs the QP in {names}, not {verbs.QP_STATES[state]}")

    def destroy(self) -> None:
        """Takes the QP and its receive queue away; the next QP on this index has another number."""
        if self.attributes.get("state", abi.QP_RESET) != abi.QP_RESET:
            self.modify(abi.QP_RESET)
        self.roce.command(abi.CMD_MODIFY_QP, abi.pack_args(abi.QP_ARGS, qpi=self.index))
        self.roce.command(abi.CMD_WRITE_RQ, abi.pack_args(abi.RQ_ARGS, index=self.attributes["rq_index"]))
        self.roce.forget(self)

    def query(self) -> dict[str, int]:
        """Attributes as the engine holds them."""
        return abi.unpack_args(abi.QP_ARGS, self.roce.command(abi.CMD_QUERY_QP, [self.index], answer=True))

    def post_send(self, opcode: int, mr: MR | None = None, va: int = 0, length: int = 0, *, wr_id: int = 0,
                  flags: int = verbs.SEND_SIGNALED, remote_va: int = 0, rkey: int = 0, imm: int = 0, lkey: int | None = None,
                  inline: bytes | None = None, ring: bool = True, push: bool = False, **more: int) -> int:
        """Posts a work request (verbs.WR_*); `inline` bytes travel in the continuation slot. Returns its slot.

        With `push` it also goes through the doorbell window, where the engine has that: an idle queue need not read it.

        Raises
        ------
        ValueError : an opcode that is not built, a length above 2^31, too much inline data.
        RuntimeError : the QP is in RESET, INIT or RTR. In SQD a work request waits, in ERR it is flushed.
        BufferError : the ring is full.
        """
        self._check_state("send", (abi.QP_RTS, abi.QP_SQD, abi.QP_SQE, abi.QP_ERR))
        if opcode not in WORK_REQUESTS:
            raise ValueError(f"opcode must be one of {', '.join(WORK_REQUESTS.values())}, not {opcode!r}")
        if not 0 <= length <= MAX_MESSAGE:
            raise ValueError(f"length must be 0..{MAX_MESSAGE}, not {length!r}")
        slots = 1 if inline is None else 2
        self.sq.reserve(slots, "send queue")
        if inline is not None:
            if len(inline) > abi.SEND_WQE_BYTES:
                raise ValueError(f"inline data must be at most {abi.SEND_WQE_BYTES} bytes, not {len(inline)}")
            length, flags = len(inline), flags | verbs.SEND_INLINE
            self.roce.bus.write_memory(self.sq.slot_addr(self.sq.producer + 1), inline)
        key = lkey if lkey is not None else (mr.lkey if mr else 0)
        wqe = abi.pack(abi.SEND_WQE, abi.SEND_WQE_BYTES, opcode=opcode, flags=flags, num_sge=1 if length and inline is None else 0, length=length,
            wr_id=wr_id, local_va=va or (mr.va if mr else 0), lkey=key, imm=imm, remote_va=remote_va, rkey=rkey, **more)
        slot = self.sq.producer
        self.roce.bus.write_memory(self.sq.slot_addr(slot), wqe)
        self.sq.producer += slots
        if push and self.roce.features & abi.FEATURE_PUSH:
            data = inline or b""
            self.roce.bus.push(self.page, wqe + data + bytes(-len(data) % 4), self.index, self.sq.producer & 0xffff)
        elif ring:
            self.ring_send()
        return slot

    def ring_send(self) -> None:
        """The send queue's doorbell for all that was posted with ring=False."""
        self.roce.bus.doorbell(self.page, abi.DOORBELL_SQ, self.index, self.sq.producer & 0xffff)

    def post_recv(self, mr: MR | None = None, va: int = 0, length: int = 0, *, wr_id: int = 0, lkey: int | None = None) -> None:
        """Posts a receive work request with at most one buffer; RuntimeError in RESET, BufferError where the ring is full."""
        self._check_state("receive", (abi.QP_INIT, abi.QP_RTR, abi.QP_RTS, abi.QP_SQD, abi.QP_SQE, abi.QP_ERR))
        self.rq.reserve(1, "receive queue")
        wqe = abi.pack(abi.RECV_WQE, abi.RECV_WQE_BYTES, wr_id=wr_id, num_sge=1 if length else 0, va=va or (mr.va if mr else 0), length=length,
            lkey=lkey if lkey is not None else (mr.lkey if mr else 0))
        self.roce.bus.write_memory(self.rq.slot_addr(self.rq.producer), wqe)
        self.rq.producer += 1
        self.roce.bus.doorbell(self.page, abi.DOORBELL_RQ, self.attributes["rq_index"], self.rq.producer & 0xffff)


# RoCE ---------------------------------------------------------------------------------------------

class RoCE:
    """An engine seen through a bus: commands, allocation of table rows and ring memory, objects.

    Parameters
    ----------
    bus : Bus
    mailbox : str
        Register prefix of the mailbox this program owns.
    ring_memory : (first, end) byte addresses of memory target 0 that rings may use.
    qps, mrs, cqs : ranges of indices that belong to this program.
    """
    def __init__(self, bus: Bus, *, mailbox: str = "roce_mailbox_host", ring_memory: tuple[int, int] = (0, 1 << 18),
                 qps: Iterable[int] = range(1, 16), mrs: Iterable[int] = range(1, 64), cqs: Iterable[int] = range(1, 16)) -> None:
        self.bus, self.mailbox = bus, mailbox
        self._next, self._end  = ring_memory
        self._free  = {"qp": deque(qps), "mr": deque(mrs), "cq": deque(cqs)}
        self._lives : Counter[tuple[str, int]] = Counter()          # (kind, index) -> objects that were there before.
        self._seq    = itertools.count(1)
        self._by_qpn: dict[int, QP] = {}
        words        = self.command(abi.CMD_QUERY_DEVICE, [], answer=True)
        if words[0] != abi.ABI_VERSION:
            raise RuntimeError(f"engine has ABI version {words[0]}, this software {abi.ABI_VERSION}")
        self.features, self.n_qps, self.n_mrs, self.n_cqs = words[1:5]

    def command(self, opcode: int, words: Sequence[int], answer: bool = False) -> list[int]:
        """Runs a command; raises CommandError; with `answer` returns the words of the answer."""
        bus, box = self.bus, self.mailbox
        bus.write_register(f"{box}_index", 0)
        for word in words:
            bus.write_register(f"{box}_data", word)
        seq = next(self._seq) & 0xff
        bus.write_register(f"{box}_go", opcode | seq << 8)
        for _ in range(1_000_000):
            status = bus.read_register(f"{box}_status")
            if status & 2 and (status >> 16) & 0xff == seq:
                break
            bus.idle()
        else:
            raise RuntimeError(f"command {opcode:#04x} does not end: status {status:#010x}")
        if (status >> 8) & 0xff:
            raise CommandError(opcode, (status >> 8) & 0xff, status >> 24)
        out = []
        for i in range(abi.ANSWER_WORDS[opcode] if answer else 0):
            bus.write_register(f"{box}_index", i)
            out.append(bus.read_register(f"{box}_value"))
        return out

    def allocate(self, size: int, what: str) -> int:
        """Address of `size` zeroed bytes of ring memory, multiple of 64."""
        addr = -(-self._next//64)*64
        if addr + size > self._end:
            raise MemoryError(f"{what} needs {size} bytes, ring memory has {self._end - addr} left")
        self._next = addr + size
        self.bus.write_memory(addr, bytes(size))
        return addr

    def _take(self, kind: str, index: int | None) -> int:
        """A free index, or the one asked for."""
        if index is None:
            if not self._free[kind]:
                raise MemoryError(f"no {kind} left of this program's range")
            index = self._free[kind][0]
        if index in self._free[kind]:
            self._free[kind].remove(index)
        return index

    @contextlib.contextmanager
    def _claim(self, kind: str, index: int | None) -> Iterator[int]:
        """A free index, or the one asked for; where its object is not made, index and ring memory are free as before.

        Ring memory is kept where the engine's answer is missing: it may have the address.
        """
        mine, memory = index is None or index in self._free[kind], self._next
        index = self._take(kind, index)
        try:
            yield index
        except Exception as error:
            if not isinstance(error, RuntimeError) or isinstance(error, CommandError) and error.code != abi.CODE_TIMEOUT:
                self._next = memory
            if mine:
                self._free[kind].appendleft(index)
            raise

    def free(self, kind: str, index: int) -> None:
        """The index of a destroyed object may be used again; its next key or number is another one."""
        self._lives[kind, index] += 1
        self._free[kind].append(index)

    def forget(self, qp: QP) -> None:
        """A destroyed QP: its index is free, completions of it that are still in a queue stand for nothing."""
        self._by_qpn.pop(qp.qpn, None)
        self.free("qp", qp.index)

    def reg_mr(self, va: int, length: int, *, addr: int | None = None, access: int = verbs.ACCESS_LOCAL_WRITE, pd: int = 1,
               variant: int | None = None, target: int = 0, index: int | None = None) -> MR:
        """Registers `length` bytes of memory; `addr` (default: va) is where they lie in the target.

        Raises ValueError for rights that are not built (HUGETLB and optional bits are ignored), and for a range that wraps
        or leaves its memory.
        """
        access = verbs.access_of(access)
        verbs.check_access(access)
        addr = va if addr is None else addr
        size = self.bus.memory_size(target)
        for name, start, end in (("va", va, 1 << 64), ("addr", addr, 1 << 64 if size is None else size)):
            if not 0 <= start <= start + length <= end:
                raise ValueError(f"{name} and length must lie within 0..{end:#x}, not {start:#x} and {length:#x}")
        with self._claim("mr", index) as index:
            variant = self._lives["mr", index] % 255 + 1 if variant is None else variant
            mr      = MR(self, index, variant, va, length, addr, access, pd, target)
            self.command(abi.CMD_WRITE_MR, abi.pack_args(abi.MR_ARGS, index=index, variant=variant, access=access, target=target, pd=pd,
                va=va, length=length, addr=addr))
        return mr

    def create_cq(self, log2: int = 6, *, page: int = 0, index: int | None = None) -> CQ:
        """A completion queue of 2^log2 entries."""
        with self._claim("cq", index) as index:
            cq = CQ(self, index, log2, self.allocate(abi.CQE_BYTES << log2, "completion queue"), page)
            self.command(abi.CMD_WRITE_CQ, abi.pack_args(abi.CQ_ARGS, index=index, valid=1, log2=log2, page=page, addr=cq.addr))
        return cq

    def write_rq(self, qp: QP) -> None:
        """(Re)creates a QP's receive queue: empty ring."""
        self.command(abi.CMD_WRITE_RQ, abi.pack_args(abi.RQ_ARGS, index=qp.attributes["rq_index"], valid=1, log2=qp.rq.log2, page=qp.page, addr=qp.rq.addr))
        qp.rq.reset()

    def create_qp(self, send_cq: CQ, recv_cq: CQ, *, sq_log2: int = 6, rq_log2: int = 6, page: int = 0, index: int | None = None,
                  qpn: int | None = None, **attributes: int) -> QP:
        """A QP in RESET with rings of 2^sq_log2 and 2^rq_log2 slots; `attributes` of abi.QP_ARGS are kept for modify."""
        with self._claim("qp", index) as index:
            if qpn is None:
                # The generation: QPNs 0 and 1 and the last ones are not made.
                qpn = self.n_qps*(self._lives["qp", index] % ((1 << 24)//self.n_qps - 2) + 1) + index
            sq = _Ring(sq_log2, self.allocate(abi.SEND_WQE_BYTES << sq_log2, "send queue"))
            rq = _Ring(rq_log2, self.allocate(abi.RECV_WQE_BYTES << rq_log2, "receive queue"))
            qp = QP(self, index, send_cq, recv_cq, sq, rq, page)
            qp.attributes = {**dict(qpi=index, qpn=qpn, qp_type=abi.QP_TYPE_RC, pd=1, page=page, send_cq=send_cq.index, recv_cq=recv_cq.index,
                rq_index=index, sq_log2=sq_log2, sq_addr=sq.addr, pkey=0xffff, hop_limit=64, udp_sport=0xc000 | index, pmtu=3, timeout=14,
                retry_cnt=7, rnr_retry=7, min_rnr_timer=12, max_rd_atomic=4, max_dest_rd_atomic=4,
                access=verbs.ACCESS_LOCAL_WRITE | verbs.ACCESS_REMOTE_WRITE | verbs.ACCESS_REMOTE_READ), **attributes}
            self.write_rq(qp)
        self._by_qpn[qp.qpn] = qp
        return qp

    def completed(self, entry: Mapping[str, int]) -> None:
        """Returns the ring slots that a completion stands for."""
        qp = self._by_qpn.get(entry["qpn"])
        if qp is None:
            return
        receive = entry["opcode"] & 0x80
        (qp.rq if receive else qp.sq).release(entry["slot"])
