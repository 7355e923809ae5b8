# SPDX-License-Identifier: BSD-2-Clause
"""Planted faults: ten changes of one line that must never pass, each in a copy of the tree, each found by its test.

More of them, drawn by a seed: sim/mutate.py.
"""
import pytest

from sim import mutate

# Name: (file below roce_soc, text that stands there once, what becomes of it, test that must fail).
PLANTED = {
    "PSN compare flipped":    ("transport/responder/check.py", "first.duplicate.eq(distance[23])",
                               "first.duplicate.eq(~distance[23])",
                               "test_responder.py::test_gap_answers_once"),
    "region a byte too long": ("memory/mr.py", "end_le_low.eq(end3[:32] <= row.end[:32])",
                               "end_le_low.eq(end3[:32] <= row.end[:32] + 1)",
                               "test_mr.py::test_bounds"),
    "ACK before wack":        ("memory/placer.py", "acks.sink.valid.eq(self.port.wack.valid)",
                               "acks.sink.valid.eq(self.port.wcmd.valid & self.port.wcmd.ready)",
                               "test_placer.py::test_done_follows_the_acknowledge"),
    "CQE before wack":        ("transport/completer/completer.py", "landed.eq(wait.valid & (~wait.record | done.valid))",
                               "landed.eq(wait.valid)",
                               "test_completer.py::test_completion_after_data"),
    "verdict ignored":        ("packet/buffer.py", "good.eq(v.good)", "good.eq(v.valid)",
                               "test_receive.py::test_refused"),
    "tail of the last beat":  ("memory/placer.py", "(c1.end <= i)", "(c1.end < i)",
                               "test_placer.py::test_every_residue"),
    "ePSN not advanced":      ("transport/responder/check.py", "new.epsn.eq(p.psn + checked.packets)", "new.epsn.eq(p.psn)",
                               "test_responder.py::test_messages"),
    "rewind PSN wrong":       ("transport/retire/walker.py", "rewind.psn.eq(head.una)", "rewind.psn.eq(head.una + 1)",
                               "test_retry.py::test_request_lost"),
    "what has left is lost":  ("transport/requester/launch.py", "reached.high, returns[2].psn + 1)", "reached.high, reached.high)",
                               "test_completer.py::test_ack_range"),
    "row not cleared":        ("transport/requester/write.py", "row.raw_bits().eq(0)", "[]",
                               "test_requester.py::test_reset_and_reuse"),
}


@pytest.fixture(scope="module")
def copy():
    """A copy of the tree that compiles into the common cache."""
    copy = mutate.Copy(own_cache=False)
    yield copy
    copy.close()


@pytest.mark.parametrize("name", PLANTED)
def test_planted(name, copy):
    """The fault is found by the test that stands for it, not by an error on the way."""
    file, old, new, test = PLANTED[name]
    source = (mutate.ROOT / "roce_soc" / file).read_text()
    assert source.count(old) == 1, f"{file} holds {source.count(old)} times {old!r}: plant it where the code is now"
    path = copy.root / "roce_soc" / file
    path.write_text(source.replace(old, new))
    try:
        verdict, by = copy.test([f"test/{test}"])
    finally:
        path.write_text(source)
    assert verdict == "red" and by.startswith(f"test/{test}"), f"{name}: {verdict} {by}"


def test_a_tree_without_fault_is_green(copy):
    """What finds the faults passes where there is none; a fault that does not elaborate is told apart."""
    assert copy.test(["test/test_mr.py::test_bounds"]) == ("green", "")
    path   = copy.root / "roce_soc" / "memory" / "mr.py"
    source = path.read_text()
    path.write_text(source.replace("end_le_low.eq(end3[:32]", "end_le_low.eq(end3[:99].nothing"))
    try:
        assert copy.test(["test/test_mr.py::test_bounds"])[0] == "broken"
    finally:
        path.write_text(source)


def test_drawn_faults():
    """A seed draws the same faults again, of every kind, none twice; each changes its own line and nothing else."""
    import itertools
    import random
    drawn = [list(itertools.islice(mutate.draw(random.Random(5), list(mutate.MODULES)), 200)) for _ in range(2)]
    assert drawn[0] == drawn[1] and len({f for _, f in drawn[0]}) == 200
    assert {f.kind for _, f in drawn[0]} == set(mutate.KINDS)
    for _, fault in drawn[0]:
        text = (mutate.ROOT / fault.file).read_text().splitlines()[fault.number - 1]
        assert text.strip() == fault.line
        assert fault.what == text[fault.first:fault.last] + (f" -> {fault.new}" if fault.new else " dropped")


def test_arguments_stand():
    """A line that is argued about exists and can have its fault."""
    import json
    for entry in json.loads(mutate.ARGUED.read_text()):
        places = mutate.Places(entry["file"], (mutate.ROOT / entry["file"]).read_text()).found
        assert any((f.line, f.what) == (entry["line"], entry["fault"]) for f in places), entry
        assert len(entry["why"]) > 20


@pytest.mark.parametrize("options,said", [
    (("--only", "z"), "there is no module 'z'"), (("--count", "0"), "count must be 1 or more, not 0"),
    (("--seed", "-1"), "seed must be 0 or more"), (("--line", "3"), "--line and --kind need --file")])
def test_bad_argument(options, said, capsys):
    assert mutate.main(list(options)) == mutate.env.BAD_ARGUMENT
    assert said in capsys.readouterr().err
