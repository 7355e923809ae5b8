# SPDX-License-Identifier: BSD-2-Clause
"""Options and fixtures of every test: one seed, caches inside the clone, quiet LiteX."""
import logging
import os
import random
import sys
import zlib
from pathlib import Path

import pytest
from migen.fhdl import tracer

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))


def pytest_addoption(parser):
    parser.addoption("--seed", default="1", help="seed of every random choice: a number, or 'random' (default: 1)")
    parser.addoption("--sample", type=int, default=0, metavar="N", help="run N of the tests that were asked for, drawn by --seed (default: all)")


def pytest_configure(config):
    text = str(config.getoption("--seed"))
    if text == "random":
        text = str(random.SystemRandom().randrange(1, 2**32))
    if not text.isdigit():
        raise pytest.UsageError(f"--seed must be a number or 'random', not {text!r}")
    # Workers of xdist receive the number, not the word.
    config.option.seed = text
    os.environ.setdefault("ROCE_VSIM_CACHE", str(ROOT / "build" / "vsim"))
    logging.disable(logging.INFO)
    try:
        from hypothesis import settings
        from hypothesis.database import DirectoryBasedExampleDatabase
    except ImportError:
        return
    settings.register_profile("roce", deadline=None, derandomize=text == "1", print_blob=True,
                              database=None if text == "1" else DirectoryBasedExampleDatabase(ROOT / "build" / "hypothesis"))
    settings.load_profile("roce")


def pytest_collection_modifyitems(config, items):
    number = config.getoption("--sample")
    if 0 < number < len(items):
        chosen = set(random.Random(f"sample {config.option.seed}").sample(range(len(items)), number))
        config.hook.pytest_deselected(items=[item for n, item in enumerate(items) if n not in chosen])
        items[:] = [item for n, item in enumerate(items) if n in chosen]


def pytest_report_header(config):
    return f"roce_soc: --seed {config.option.seed}, models in {os.environ['ROCE_VSIM_CACHE']}"


@pytest.fixture(autouse=True)
def forget_names():
    """Migen's tracer keeps every object it ever named and looks through them for each signal: the third engine of a
    process would take twice as long as the first."""
    tracer.classname_to_objs.clear()
    tracer.name_to_idx.clear()


@pytest.fixture
def seed(request):
    """A number that differs between tests and follows --seed."""
    return (int(request.config.option.seed) * 0x9E3779B1 + zlib.crc32(request.node.nodeid.encode())) % 2**32


@pytest.fixture
def rng(seed):
    """random.Random of this test's seed."""
    return random.Random(seed)
