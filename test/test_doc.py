# SPDX-License-Identifier: BSD-2-Clause
"""Pages cannot age: tables are fresh, files, links, tests and commands exist, the example runs."""
import re
import shlex
import subprocess
import sys
from fnmatch import fnmatch

import pytest

from doc import generate
from test.conftest import ROOT

PAGES    = sorted([ROOT / "README.md", ROOT / "test" / "README.md", *(ROOT / "doc").rglob("*.md")])
NAMES    = [str(p.relative_to(ROOT)) for p in PAGES]
TESTPLAN = (ROOT / "doc" / "testplan.md").read_text(encoding="utf-8")
COMMAND  = re.compile(r"(?:\./)?((?:sim|test|targets|doc|examples|software/control)/[\w/]+(?:\.py)?)")


def quoted(text):
    """Code in a page: `so` and indented lines."""
    return re.findall(r"`([^`\n]+)`", text) + re.findall(r"^    (.+)$", text, re.MULTILINE)


def commands():
    """Commands of ours that the pages name; examples take no arguments."""
    found = set()
    for page in PAGES:
        for code in quoted(page.read_text(encoding="utf-8")):
            for match in COMMAND.findall(code.split("#")[0]):
                if not match.startswith("examples/") and (ROOT / match).is_file() and (ROOT / match).stat().st_mode & 0o100:
                    found.add(match)
    return sorted(found)


@pytest.mark.parametrize("name", generate.PAGES)
def test_tables_are_fresh(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert generate.filled(text) == text, "run doc/generate.py"


def test_stale_table_is_seen():
    text = (ROOT / "doc" / "programmers_guide.md").read_text(encoding="utf-8")
    assert generate.filled(text.replace("WITH_IMM 2", "WITH_IMM 3")) == text
    with pytest.raises(KeyError):
        generate.filled("<!-- table: nothing -->\n<!-- end -->")


@pytest.mark.parametrize("name", NAMES)
def test_links_and_commands_exist(name):
    """Every relative link, and every command written ./so, is a file."""
    page = ROOT / name
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / link).exists(), link
    for code in quoted(text):
        for match in re.findall(r"(?:^|\s)\./([\w./]+)", code.split("#")[0]):
            assert (ROOT / match).is_file(), match


@pytest.mark.parametrize("command", commands())
def test_help(command):
    done = subprocess.run([sys.executable, str(ROOT / command), "--help"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and "usage" in done.stdout.lower(), shlex.join([command, "--help"]) + done.stderr


def test_example_of_the_guide():
    """The program of the programmer's guide runs as it stands."""
    text    = (ROOT / "doc" / "programmers_guide.md").read_text(encoding="utf-8")
    program = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    exec(compile(program, "programmers_guide.md", "exec"), {"__name__": "programmers_guide"})


def test_example_of_a_test(seed, rng):
    """The test that test/README.md shows runs as it stands."""
    text = (ROOT / "test" / "README.md").read_text(encoding="utf-8")
    names = {}
    exec(compile(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], "README.md", "exec"), names)
    names["test_buffer"](seed, rng)


def test_every_helper_of_the_tests_is_described():
    """test/README.md names each file and folder of test/ that is no file of tests, or the kind that it is of."""
    text  = (ROOT / "test" / "README.md").read_text(encoding="utf-8")
    kinds = re.findall(r"`(\w+\*\.py|\*\w+\.py)`", text)
    done  = subprocess.run(["git", "ls-files", "test"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    names = {name.split("/")[1] for name in done} - {"__init__.py", "conftest.py", "run", "README.md"}
    assert kinds and not [n for n in sorted(names) if not n.startswith("test_") and f"`{n}" not in text and not any(fnmatch(n, k) for k in kinds)]


def test_testplan_names_tests_that_exist():
    rows = re.findall(r"`(test_\w+)\.py::(test_\w+)`", TESTPLAN)
    assert len(rows) > 30
    for file, name in rows:
        assert re.search(rf"^def {name}\b", (ROOT / "test" / f"{file}.py").read_text(encoding="utf-8"), re.MULTILINE), f"{file}.py::{name}"


def test_testplan_names_every_file_of_tests():
    tracked = subprocess.run(["git", "ls-files", "test/test_*.py"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    missing = [f for f in tracked if f"`{f.split('/')[-1]}" not in TESTPLAN]
    assert not missing, f"doc/testplan.md does not name {missing}"
