# SPDX-License-Identifier: BSD-2-Clause
"""Protocol tables: complete, consistent, refusing what is not in them."""
import pytest

from roce_soc import opcodes as op


def test_every_transport_has_its_opcodes():
    count = {t: sum(o.transport == t for o in op.OPCODES.values()) for t in ("RC", "UC", "UD", "CNP")}
    assert count == {"RC": 23, "UC": 12, "UD": 2, "CNP": 1}
    assert sorted(v for v in op.OPCODES if v < 0x20) == [v for v in range(0x18) if v != 0x15]
    assert sorted(v for v in op.OPCODES if v >= 0x20) == list(range(0x20, 0x2c)) + [0x64, 0x65, 0x81]


@pytest.mark.parametrize("name,value,headers,length", [
    ("RC_SEND_FIRST", 0x00, (), 0), ("RC_SEND_LAST_IMM", 0x03, ("IMMDT",), 4), ("RC_WRITE_ONLY", 0x0a, ("RETH",), 16),
    ("RC_WRITE_ONLY_IMM", 0x0b, ("RETH", "IMMDT"), 20), ("RC_READ_REQUEST", 0x0c, ("RETH",), 16),
    ("RC_READ_RESPONSE_MIDDLE", 0x0e, (), 0), ("RC_READ_RESPONSE_LAST", 0x0f, ("AETH",), 4),
    ("RC_ACKNOWLEDGE", 0x11, ("AETH",), 4), ("RC_ATOMIC_ACKNOWLEDGE", 0x12, ("AETH", "ATOMICACKETH"), 12),
    ("RC_CMP_SWAP", 0x13, ("ATOMICETH",), 28), ("RC_FETCH_ADD", 0x14, ("ATOMICETH",), 28),
    ("RC_SEND_ONLY_INV", 0x17, ("IETH",), 4), ("UC_WRITE_LAST_IMM", 0x29, ("IMMDT",), 4),
    ("UD_SEND_ONLY", 0x64, ("DETH",), 8), ("UD_SEND_ONLY_IMM", 0x65, ("DETH", "IMMDT"), 12), ("CNP", 0x81, ("CNPRES",), 16)])
def test_rows(name, value, headers, length):
    row = op.by_name(name)
    assert (row.value, row.headers, row.header_length) == (value, headers, length)
    assert getattr(op, name) == value and op.OPCODES[value] is row


def test_requests_and_responses_part_the_table():
    for row in op.OPCODES.values():
        assert row.is_request + row.is_response == (row.kind != "CNP")
        assert row.value >> 5 == op.TRANSPORT_BITS[row.transport]
        assert (row.payload == "NONE") == (row.kind in ("READ_REQUEST", "ACKNOWLEDGE", "ATOMIC_ACKNOWLEDGE",
                                                        "CMP_SWAP", "FETCH_ADD", "CNP"))


def test_opcode_of_finds_every_row():
    for row in op.OPCODES.values():
        assert op.opcode_of(row.transport, row.kind, row.position, imm=row.has_imm, inv=row.has_inv) == row.value
    with pytest.raises(ValueError, match="UC has no READ_REQUEST"):
        op.opcode_of("UC", "READ_REQUEST", "ONLY")


def test_by_name_refuses():
    with pytest.raises(ValueError, match="RC_SEND_NEVER"):
        op.by_name("RC_SEND_NEVER")


def test_header_sizes():
    assert op.HEADER_BYTES == {"BTH": 12, "RETH": 16, "ATOMICETH": 28, "AETH": 4, "ATOMICACKETH": 8,
                               "IMMDT": 4, "IETH": 4, "DETH": 8, "CNPRES": 16}
    for fields in op.EXT_HEADERS.values():
        assert sum(bits for _, bits in fields) % 8 == 0


def test_rnr_timer_is_the_table_in_10_us():
    milliseconds = (655.36, .01, .02, .03, .04, .06, .08, .12, .16, .24, .32, .48, .64, .96, 1.28, 1.92, 2.56, 3.84,
                    5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52)
    assert list(op.RNR_TIMER_10US) == [round(ms*100) for ms in milliseconds]


@pytest.mark.parametrize("code,nanoseconds", [(0, 0), (1, 8192), (14, 67_108_864), (19, 2_147_483_648), (31, 4096 << 31)])
def test_ack_timeout(code, nanoseconds):
    assert op.ack_timeout_ns(code) == nanoseconds


def test_ack_timeout_refuses():
    with pytest.raises(ValueError, match="0..31, not 32"):
        op.ack_timeout_ns(32)


@pytest.mark.parametrize("available,code", [(0, 0), (4, 4), (5, 4), (6, 5), (7, 5), (255, 15), (32768, 30), (10**6, 30)])
def test_credit_code_never_promises_too_much(available, code):
    assert op.credit_code(available) == code
    assert op.CREDITS[code] <= available


@pytest.mark.parametrize("syndrome,kind", [(0x00, "ACK"), (0x1f, "ACK"), (0x20, "RNR"), (0x3f, "RNR"), (0x40, "RESERVED"),
                                           (0x60, "NAK"), (0x64, "NAK"), (0x80, "RESERVED"), (0xff, "RESERVED")])
def test_syndrome_class(syndrome, kind):
    assert op.syndrome_class(syndrome) == kind


@pytest.mark.parametrize("a,b,diff", [(0, 0xffffff, 1), (0xffffff, 0, -1), (5, 5, 0), (0x7fffff, 0, 0x7fffff),
                                      (0x800000, 0, -0x800000), (2, 0xfffffe, 4)])
def test_psn_diff_wraps(a, b, diff):
    assert op.psn_diff(a, b) == diff


@pytest.mark.parametrize("length,pmtu,count", [(0, 256, 1), (1, 256, 1), (256, 256, 1), (257, 256, 2), (1 << 31, 256, 1 << 23)])
def test_packets(length, pmtu, count):
    assert op.packets(length, pmtu) == count


def test_markdown_names_every_opcode():
    table = op.markdown_table()
    assert all(f"| {row.name} |" in table for row in op.OPCODES.values())
