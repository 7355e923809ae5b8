#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Campaigns of seeded plays on the compiled engine: round after round over the parts until the time is over.

    sim/stress.py [--seed N] [--minutes M] [--rounds R] [--part NAME ...] [--json]

Round 1 plays seed N of every part but huge, round 2 seed N + 1, and so on; a seed decides everything of a play.
No round but the first R begins after M minutes: `--rounds 10 --minutes 0` is ten seeds of every part.
A play that fails is printed with part and seed: `--part P --seed S --minutes 0` plays it alone.
Exit status: 0 all good, 1 one failed, 2 bad argument.
"""
import argparse
import contextlib
import importlib
import importlib.util
import json
import pathlib
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from sim import env  # noqa: E402
if __name__ == "__main__":
    env.enter()

# Part: (module with run(seed) -> clocks simulated, what it plays).
PARTS = {
    "scenario":   ("test.engine_scenario",   "random QPs, rings, memory, wire faults and work against the model"),
    "life":       ("test.stress_life",       "queue pairs, queues and regions destroyed and made again in traffic"),
    "memory":     ("test.stress_memory",     "memory that is late, refuses, fails or is silent"),
    "order":      ("test.stress_order",      "what users and peers see comes in order"),
    "neighbours": ("test.stress_neighbours", "a bad queue pair costs its neighbours nothing"),
    "pressure":   ("test.stress_pressure",   "transmit blocked or slow among losses, RNR, resets, invalidations, local frames"),
    "ring":       ("test.stress_ring",       "send rings that are always full, read slowly, under loss"),
    "wraps":      ("test.stress_wraps",      "counters, rings and PSNs at their ends"),
    "clocks":     ("test.stress_clocks",     "clock domains of any ratio and phase"),
    "frames":     ("test.stress_frames",     "damaged and refused frames change nothing"),
    "huge":       ("test.stress_huge",       "a message of 2^31 bytes, about ten minutes; only where --part names it"),
}
NAMED_ONLY = ("huge",)
Play       = dict[str, Any]      # part, seed, engine clocks simulated, seconds, error.


def parts() -> list[str]:
    """Names of the parts that are there."""
    return [name for name, (module, _) in PARTS.items() if importlib.util.find_spec(module)]


def play(part: str, seed: int) -> Play:
    """One play: {part, seed, clocks, seconds, error}; `error` is None or what was found and where."""
    begun, clocks, error = time.monotonic(), 0, None
    try:
        clocks = importlib.import_module(PARTS[part][0]).run(seed)
    except Exception as fault:       # whatever it is, the campaign goes on.
        where = traceback.extract_tb(fault.__traceback__)[-1]
        error = f"{type(fault).__name__}: {fault}\n  {where.filename}:{where.lineno}"
    return dict(part=part, seed=seed, clocks=clocks, seconds=round(time.monotonic() - begun, 1), error=error)


def campaign(names: Sequence[str], seed: int, minutes: float, rounds: int, say: Callable[[Play], object],
             begin: Callable[[str, int, float], object] = lambda part, seed, spent: None) -> list[Play]:
    """Plays round after round; `say` gets each play, `begin` what comes. Returns the plays."""
    begun, plays, number = time.monotonic(), [], 0
    while number < rounds or time.monotonic() - begun < 60*minutes:
        for part in names:
            if number >= rounds and time.monotonic() - begun >= 60*minutes:
                break
            begin(part, seed + number, time.monotonic() - begun)
            plays.append(play(part, seed + number))
            say(plays[-1])
        number += 1
    return plays


# Command ------------------------------------------------------------------------------------------

def line(done: Play) -> str:
    """A play in a line; a failure with the command that plays it alone."""
    name = f"{done['part']:<10} seed {done['seed']:<6}"
    rate = done["clocks"]/max(done["seconds"], .1)/1000
    if done["error"] is None:
        return f"{name} {done['clocks']:>9} clocks {done['seconds']:>6} s {rate:>6.0f} k/s"
    return (f"{name} FAILED after {done['seconds']} s: {done['error']}\n"
        f"  again: sim/stress.py --part {done['part']} --seed {done['seed']} --minutes 0")


@contextlib.contextmanager
def progress(minutes: float, quiet: bool) -> Iterator[tuple[Callable[[Play], object], Callable[[str, int, float], object]]]:
    """(say, begin) for `campaign`: lines, and on a terminal a bar of the time that is gone."""
    if quiet or not sys.stdout.isatty():
        yield (lambda done: None) if quiet else (lambda done: print(line(done), flush=True)), lambda *_: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    with Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task("", total=60*minutes or None)
        yield (lambda done: bar.console.print(line(done), markup=False, highlight=False, soft_wrap=True),
            lambda part, seed, spent: bar.update(task, description=f"{part} {seed}", completed=spent))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    known  = parts()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="parts:\n" + "\n".join(f"  {name:<11} {PARTS[name][1]}" for name in known))
    parser.add_argument("--seed", type=int, default=1, help="seed of the first round (default: 1)")
    parser.add_argument("--minutes", type=float, default=1, help="no later play but in the first rounds (default: 1)")
    parser.add_argument("--rounds", type=int, default=1, help="rounds played in any case (default: 1)")
    parser.add_argument("--part", nargs="+", action="extend", metavar="NAME", help="these parts alone (default: all but huge)")
    parser.add_argument("--json", action="store_true", help="print the plays as JSON, at the end")
    args  = parser.parse_args(argv)
    least = (("seed", 0), ("minutes", 0), ("rounds", 1))
    given = vars(args)
    wrong = [f"{name} must be {low} or more, not {given[name]}" for name, low in least if not given[name] >= low]
    wrong += [f"there is no part {name!r}, only {', '.join(known)}" for name in args.part or () if name not in known]
    if wrong:
        print("stress: " + "; ".join(wrong), file=sys.stderr)
        return env.BAD_ARGUMENT
    names = list(dict.fromkeys(args.part or [name for name in known if name not in NAMED_ONLY]))
    with progress(args.minutes, args.json) as (say, begin):
        plays = campaign(names, args.seed, args.minutes, args.rounds, say, begin)
    failed = [done for done in plays if done["error"] is not None]
    if args.json:
        print(json.dumps(plays, indent=1))
    else:
        clocks = sum(done["clocks"] for done in plays)
        print(f"stress: {len(plays)} plays of {len(names)} parts, {clocks} clocks, {len(failed)} failed"
            + "".join(f"\n  {done['part']} seed {done['seed']}" for done in failed))
        for module in (importlib.import_module(PARTS[name][0]) for name in names):
            if hasattr(module, "summary"):
                print(f"{module.__name__.split('.')[-1]}: {module.summary()}")
    return env.FAILED if failed else env.OK


if __name__ == "__main__":
    sys.exit(main())
