# SPDX-License-Identifier: BSD-2-Clause
"""network/receive, packet/decoder, packet/buffer: frames in, records and payload out."""
import random

import pytest

from roce_soc import abi, opcodes
from roce_soc.errors import ERRORS
from sim.harness import build
from test.receive_bench import N_QPS, Bench, make, packet


@pytest.fixture(scope="module")
def so():
    return build(*make(), name="receive")


def random_packet(rng, length=None):
    """A legal packet of an RC opcode with random fields."""
    entry = rng.choice([o for o in opcodes.OPCODES.values() if o.transport == "RC"])
    if entry.payload == "NONE":
        length = 0
    elif length is None:
        length = rng.choice([0, 1, 2, 3, 4, 63, 64, 65, rng.randrange(1100), rng.randrange(4097)])
    more = {name: rng.getrandbits(32) for name in ("rkey", "dma_length", "imm", "inv_rkey")}
    more.update({name: rng.getrandbits(64) for name in ("va", "swap_add", "compare", "original")})
    return packet(entry.value, v6=rng.random() < .5, vlan=rng.choice([None, 0x6064]), payload=rng.randbytes(length), psn=rng.getrandbits(24),
        ackreq=rng.getrandbits(1), se=rng.getrandbits(1), syndrome=rng.getrandbits(8), msn=rng.getrandbits(24), tos=rng.getrandbits(8),
        ttl=rng.randrange(1, 256), ip_id=rng.getrandbits(16), flow_label=rng.getrandbits(20), m=rng.getrandbits(1), becn=rng.getrandbits(1),
        udp_checksum=rng.getrandbits(16), **more)


def check_record(record, p, payload):
    entry = opcodes.OPCODES[p.opcode]
    for name in ("opcode", "psn", "ackreq", "se"):
        assert record[name] == getattr(p, name), name
    assert record.qpn == p.dest_qpn and record.qpi == p.dest_qpn % N_QPS
    assert record.length == len(p.payload) and payload == p.payload
    assert record.ecn == p.tos & 3
    fields = {"RETH": ("va", "rkey", "dma_length"), "AETH": ("syndrome", "msn"), "IMMDT": ("imm",), "ATOMICETH": ("va", "rkey", "swap_add", "compare")}
    for header in entry.headers:
        for name in fields.get(header, ()):
            assert record[name] == getattr(p, name), (header, name)
        if header == "IETH":
            assert record.imm == p.inv_rkey
        if header == "ATOMICACKETH":
            assert record.swap_add == p.original


@pytest.mark.parametrize("gap,stall", [(0, 0), (.5, 0), (.1, .5), (0, .9)])
def test_random_packets(so, gap, stall, request):
    """Every opcode, layout and payload residue arrives with its fields and bytes."""
    rng, bench = random.Random(7), Bench(so, seed=3, gap=gap, stall=stall)
    for i in range(300):
        p = random_packet(rng, length=i if i < 130 else None)
        bench.rx.send(p.build(pad_frame=True))
        out = bench.response if opcodes.OPCODES[p.opcode].is_response else bench.request
        bench.sim.until(out, 1, max_cycles=5000)
        record = out.recv()
        check_record(record, p, bench.payload(record))
    bench.sim.step(50)
    assert not len(bench.refusal) and bench.sim.peek("chunks_free") == 64


def test_back_to_back(so):
    """Short frames at one a clock: all records, in order."""
    bench = Bench(so)
    sent  = [packet(opcodes.RC_ACKNOWLEDGE, psn=i, syndrome=0x1f, msn=i) for i in range(60)]
    for p in sent:
        bench.rx.send(p.build(pad_frame=True))
    bench.sim.drain(bench.rx)
    bench.sim.step(100)
    records = bench.response.recv_all()
    assert [r.psn for r in records] == list(range(60))
    assert bench.rx.stats()["stalled"] == 0


@pytest.mark.parametrize("opcode,length,beats", [
    (opcodes.RC_ACKNOWLEDGE, 0, 1), (opcodes.RC_READ_REQUEST, 0, 2), (opcodes.RC_WRITE_ONLY, 64, 3)])
def test_latency(so, opcode, length, beats):
    """A record is there seven clocks after its frame's last beat, however short the frame is."""
    bench = Bench(so)
    bench.rx.send(packet(opcode, payload=bytes(length)).build(pad_frame=True))
    out   = bench.response if opcodes.OPCODES[opcode].is_response else bench.request
    bench.sim.until(out, 1)
    _, _, last, count = bench.rx.times()[0]
    assert count == beats and out.recv().first - last == 7


BAD = {
    "ICRC":            lambda p: p.copy(icrc=0x12345678),
    "TVER":            lambda p: p.copy(tver=1),
    "OPCODE_UNKNOWN":  lambda p: p.copy(opcode=0x1e),
    "QPN_UNKNOWN":     lambda p: p.copy(dest_qpn=0x50),
    "QPN_GENERATION":  lambda p: p.copy(dest_qpn=0x81),
    "TRANSPORT_CLASS": lambda p: p.copy(opcode=opcodes.UC_SEND_ONLY),
    "PKEY":            lambda p: p.copy(pkey=0x7ffe),
    "DST_MAC":         lambda p: p.copy(dst_mac=bytes.fromhex("020000000009")),
    "ADDRESS":         lambda p: p.copy(src_ip=bytes([10, 0, 0, 9])),
    "IP_CHECKSUM":     lambda p: p.copy(ip_checksum=0x1234),
    "IP_FRAGMENT":     lambda p: p.copy(ip_flags=0x2000),
    "UDP_LENGTH":      lambda p: p.copy(udp_length=20),
}


@pytest.mark.parametrize("row", sorted(BAD))
def test_refused(so, row):
    """A frame that breaks one rule is counted under that rule alone; its neighbours pass."""
    bench = Bench(so)
    good  = packet(opcodes.RC_SEND_ONLY, payload=bytes(range(100)))
    for p in (good, BAD[row](good), good):
        bench.rx.send(p.build())
    bench.sim.drain(bench.rx)
    bench.sim.step(60)
    assert [r.row for r in bench.refusal.recv_all()] == [ERRORS[row].index]
    for record in bench.request.recv_all():
        assert bench.payload(record) == good.payload
    assert bench.sim.peek("chunks_free") == 64


@pytest.mark.parametrize("row", sorted(BAD))
def test_nothing_stays_of_the_frame_before(so, row):
    """A short frame breaks the same rule behind every opcode, whose headers may be longer than all of it."""
    bench  = Bench(so)
    before = [o.value for o in opcodes.OPCODES.values() if o.transport == "RC"]
    for opcode in before:
        bench.rx.send(packet(opcode).build(pad_frame=True))
        bench.rx.send(BAD[row](packet(opcodes.RC_SEND_ONLY, payload=b"abcd")).build(pad_frame=True))
    bench.sim.drain(bench.rx)
    bench.sim.step(100)
    short = ERRORS["UDP_LENGTH"].index
    rows  = [r.row for r in bench.refusal.recv_all()]
    assert [r for r in rows if r != short or row == "UDP_LENGTH"] == [ERRORS[row].index]*len(before)


@pytest.mark.parametrize("own,got,passes", [(0x7fff, 0xffff, True),
    (0xffff, 0x7fff, True), (0x7fff, 0x7fff, False), (0xffff, 0x7ffe, False)])
def test_partition_membership(so, own, got, passes):
    """Two limited members of a partition do not talk; one full member is enough."""
    bench = Bench(so)
    bench.qp(0x41, pkey=own)
    bench.sim.drain(bench.rows)
    bench.rx.send(packet(opcodes.RC_SEND_ONLY, pkey=got).build(pad_frame=True))
    bench.sim.step(60)
    assert len(bench.request) == passes
    assert [r.row for r in bench.refusal.recv_all()] == ([] if passes else [ERRORS["PKEY"].index])


def test_nothing_is_shown(so):
    """Of a refused frame no record and no beat is shown, valid or not, even where its chunk was read before."""
    bench = Bench(so)
    good, bad = (packet(opcodes.RC_SEND_ONLY, payload=bytes([fill])*700, psn=psn) for fill, psn in ((0x11, 1), (0xee, 0xabcdef)))
    shown = set()
    for n in range(70):      # every chunk of the free list is used again
        bench.rx.send((good if n % 2 else bad.copy(icrc=1)).build())
        for _ in range(60):
            bench.sim.step()
            shown |= {bench.sim.peek("request_psn"), bench.sim.peek("response_psn")}
            assert bytes([0xee])*16 not in bench.sim.peek("data_data").to_bytes(64, "little"), f"frame {n}"
        for record in bench.request.recv_all():
            assert bench.payload(record) == good.payload
    assert shown == {0, 1}


def test_cut_and_marked_frames(so):
    """A frame cut short is a RUNT, one marked by the MAC a MAC_ERROR; neither leaves a chunk behind."""
    bench = Bench(so)
    frame = packet(opcodes.RC_SEND_ONLY, payload=bytes(700)).build()
    for cut in (60, 64, 65, 128, len(frame) - 1):
        bench.rx.send(frame[:cut])
    bench.rx.send(frame, error=1)
    bench.rx.send(frame + bytes(40))
    bench.sim.drain(bench.rx)
    bench.sim.step(60)
    assert [r.row for r in bench.refusal.recv_all()] == [ERRORS["RUNT"].index]*5 + [ERRORS["MAC_ERROR"].index]
    record = bench.request.recv()
    assert record.length == 700 and bench.payload(record) == bytes(700)
    bench.sim.step(20)
    assert bench.sim.peek("chunks_free") == 64


@pytest.mark.parametrize("state,opcode,passes", [
    (abi.QP_RESET, opcodes.RC_SEND_ONLY, False), (abi.QP_INIT, opcodes.RC_SEND_ONLY, False), (abi.QP_RTR, opcodes.RC_SEND_ONLY, True),
    (abi.QP_RTR, opcodes.RC_ACKNOWLEDGE, False), (abi.QP_RTS, opcodes.RC_ACKNOWLEDGE, True), (abi.QP_SQD, opcodes.RC_SEND_ONLY, True),
    (abi.QP_SQD, opcodes.RC_ACKNOWLEDGE, True), (abi.QP_ERR, opcodes.RC_SEND_ONLY, False)])
def test_qp_state(so, state, opcode, passes):
    """Requests need RTR, responses RTS."""
    bench = Bench(so)
    bench.qp(0x41, state=state)
    bench.sim.drain(bench.rows)
    bench.rx.send(packet(opcode).build(pad_frame=True))
    bench.sim.step(60)
    assert len(bench.request) + len(bench.response) == passes
    assert [r.row for r in bench.refusal.recv_all()] == ([] if passes else [ERRORS["QP_STATE"].index])


def test_buffer_full(so):
    """With the buffer full whole frames are dropped and counted; freed chunks serve again."""
    bench = Bench(so)
    frame = packet(opcodes.RC_WRITE_MIDDLE, payload=bytes(4096)).build()
    for _ in range(12):
        bench.rx.send(frame)
    bench.sim.drain(bench.rx)
    bench.sim.step(200)
    records = bench.request.recv_all()
    refused = bench.refusal.recv_all()
    assert len(records) + len(refused) == 12 and len(records) >= 7
    assert {r.row for r in refused} == {ERRORS["BUFFER_FULL"].index}
    for record in records:
        bench.fetch.send(slot=record.slot, discard=1)
    bench.sim.drain(bench.fetch)
    bench.sim.step(100)
    assert bench.sim.peek("chunks_free") == 64
    bench.rx.send(frame)
    bench.sim.until(bench.request, 1)


def test_room_inside_a_frame_comes_too_late(so):
    """A frame that has lost a beat stays lost, though chunks come free before its end; none of them is lost with it."""
    bench = Bench(so)
    frame = packet(opcodes.RC_WRITE_MIDDLE, payload=bytes(4096)).build()
    for _ in range(7):
        bench.rx.send(frame)
    bench.sim.drain(bench.rx)
    bench.sim.step(60)
    first = bench.request.recv_all()[0]
    free  = bench.sim.peek("chunks_free")
    assert 0 < free < 9
    bench.rx.set(gap=.9)
    bench.rx.send(frame)
    bench.sim.wait("chunks_free", 0)
    bench.sim.step(120)
    bench.fetch.send(slot=first.slot, discard=1)
    bench.sim.wait("chunks_free", 9)
    assert bench.rx.pending, "the frame was over before"
    bench.sim.drain(bench.rx)
    bench.sim.step(60)
    assert [r.row for r in bench.refusal.recv_all()] == [ERRORS["BUFFER_FULL"].index] and not len(bench.request)
    assert bench.sim.peek("chunks_free") == 9 + free
    good = packet(opcodes.RC_WRITE_MIDDLE, payload=bytes(range(256))*16)
    bench.rx.send(good.build())
    bench.sim.until(bench.request, 1)
    assert bench.payload(bench.request.recv()) == good.payload


def test_responses_full(so):
    """Responses that find no room for their record are dropped, their chunks come back, requests go on."""
    bench = Bench(so)
    bench.response.set(stall=1)
    answers = [packet(opcodes.RC_ACKNOWLEDGE, psn=n) for n in range(60)]
    answers += [packet(opcodes.RC_READ_RESPONSE_MIDDLE, psn=60 + n, payload=bytes([n])*100) for n in range(20)]
    for p in answers:
        bench.rx.send(p.build(pad_frame=True))
    bench.sim.drain(bench.rx)
    bench.sim.step(80)
    refused = bench.refusal.recv_all()
    assert {r.row for r in refused} == {ERRORS["BUFFER_FULL"].index}
    request = packet(opcodes.RC_SEND_ONLY, payload=bytes(300))
    bench.rx.send(request.build())
    bench.sim.until(bench.request, 1)
    assert bench.payload(bench.request.recv()) == request.payload
    bench.response.set(stall=0)
    bench.sim.step(100)
    records = bench.response.recv_all()
    assert [r.psn for r in records] == list(range(len(records))) and len(records) + len(refused) == 80
    assert 64 <= len(records) <= 66
    for record, p in zip(records, answers):
        assert bench.payload(record) == p.payload
    bench.sim.step(20)
    assert bench.sim.peek("chunks_free") == 64


@pytest.mark.parametrize("qpn,row", [(0, "QPN_UNKNOWN"), (0xffffff, "QPN_UNKNOWN"), (0x50, "QPN_UNKNOWN"),
    (0x80, "QPN_GENERATION"), (0xfffff7, "QPN_UNKNOWN"), (0xffffbf, "QPN_GENERATION")])
def test_no_such_qp(so, qpn, row):
    """QPN 0 and multicast are nobody's, whatever row their low bits name."""
    bench = Bench(so)
    bench.qp(0x40)
    bench.qp(0x7f)
    bench.sim.drain(bench.rows)
    bench.rx.send(packet(opcodes.RC_SEND_ONLY, dest_qpn=qpn).build(pad_frame=True))
    bench.sim.step(60)
    assert [r.row for r in bench.refusal.recv_all()] == [ERRORS[row].index] and not len(bench.request)


def test_slow_path(so):
    """What is not RoCE leaves on the slow path unchanged, between RoCE frames."""
    bench = Bench(so)
    arp   = bytes.fromhex("ffffffffffff020000000001" "0806" "0001080006040001") + bytes(38)
    ping  = bytes.fromhex("020000000002020000000001" "0800" "4500002e000040004001") + bytes(36)
    other = packet(opcodes.RC_SEND_ONLY, dport=53, payload=bytes(300)).build()
    for frame in (arp, packet(opcodes.RC_SEND_ONLY).build(pad_frame=True), ping, other):
        bench.rx.send(frame)
    bench.sim.drain(bench.rx)
    bench.sim.step(60)
    assert [f.data for f in bench.slow.recv_all()] == [arp, ping, other]
    assert len(bench.request) == 1


@pytest.mark.parametrize("stall", [0, .5])
def test_kept_payload(so, seed, rng, stall):
    """Payload that is kept is read again as often as one likes, beside others and after them; its chunks come back at the end."""
    b, free = Bench(so, seed, stall=stall), None
    for _ in range(8):
        free  = b.sim.peek("chunks_free")
        datas = [rng.randbytes(rng.choice((1, 8, 400, 512, 700, 1024))) for _ in range(6)]
        for data in datas:
            b.rx.send(packet(opcodes.RC_WRITE_ONLY, payload=data, va=1, rkey=2, dma_length=len(data)).build())
        b.sim.until(b.request, 6)
        records = list(zip(b.request.recv_all(), datas))
        held    = b.sim.peek("chunks_free")
        for record, data in rng.sample(records, 4) + records:
            assert b.payload(record, keep=1) == data
        assert b.sim.peek("chunks_free") == held < free
        rng.shuffle(records)
        for record, data in records:
            assert b.payload(record) == data
        b.sim.step(10)
        assert b.sim.peek("chunks_free") == free


def test_discards_beside_beats_taken(so, seed, rng):
    """Chunks given back by discards and by beats that are taken in the same clocks: all come back."""
    b = Bench(so, seed)
    for _ in range(12):
        datas = [rng.randbytes(rng.choice((1, 64, 512, 700, 1024))) for _ in range(8)]
        for data in datas:
            b.rx.send(packet(opcodes.RC_WRITE_ONLY, payload=data, va=1, rkey=2, dma_length=len(data)).build())
        b.sim.until(b.request, 8)
        read = 0
        for n, record in enumerate(b.request.recv_all()):
            b.fetch.send(slot=record.slot, discard=n % 2)
            read += 1 - n % 2
        b.sim.until(b.data, read)
        b.data.recv_all()
        b.sim.step(40)
        assert b.sim.peek("chunks_free") == 64
