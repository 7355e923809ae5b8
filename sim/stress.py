#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Plays random scenarios between the compiled engine and the reference model until the time is over.

    sim/stress.py [--seed N] [--minutes M]

Scenario N decides QPs, path MTUs, ring sizes, memory, wire faults, receives that come late and the work;
N + 1 follows. A scenario that fails is printed with its number: `--seed N --minutes 0` plays it alone.
Exit status: 0 all agree, 1 one failed, 2 bad argument.
"""
import argparse
import pathlib
import sys
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from sim import env  # noqa: E402
if __name__ == "__main__":
    env.enter()

from test.engine_scenario import scenario  # noqa: E402


def main(argv=None):
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="number of the first scenario")
    parser.add_argument("--minutes", type=float, default=1, help="no scenario is begun later; 0: one scenario")
    args = parser.parse_args(argv)
    if args.seed < 0 or args.minutes < 0:
        print(f"stress: seed and minutes must be 0 or more, not {args.seed} and {args.minutes}", file=sys.stderr)
        return env.BAD_ARGUMENT
    end, number, failed, cycles = time.monotonic() + 60*args.minutes, args.seed, 0, 0
    print(f"stress: seed {args.seed}, {args.minutes} minutes", flush=True)
    while number == args.seed or time.monotonic() < end:
        traffic, chosen = scenario(number)
        try:
            traffic.run()
        except (AssertionError, RuntimeError) as error:
            failed += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            print(f"scenario {number} failed: {error}\n  {chosen}\n  {where.filename}:{where.lineno}", flush=True)
        cycles += traffic.bench.bench.sim.cycles()
        number += 1
    print(f"stress: {number - args.seed} scenarios, {cycles} clocks, {failed} failed")
    return env.FAILED if failed else env.OK


if __name__ == "__main__":
    sys.exit(main())
