"""Explore worlds: ``python -m tests.explore --seeds N``, or one with its trace: ``--seed K``."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import replace

from tests.explore.explorer import Run, explore
from tests.explore.world import World, draw


def shrink(world: World, most: int = 60) -> Run:
    """Leave out one fault after the other while the run still fails."""
    failed = explore(world)
    for fault in reversed(world.faults):
        most -= 1
        kept = tuple(one for one in failed.world.faults if one is not fault)
        again = explore(replace(world, faults=kept)) if most > 0 else None
        if again is not None and again.problem:
            failed = again
    return failed


def print_failure(run: Run, *, with_trace: bool) -> None:
    """Print a failure, its faults, and the end of its trace."""
    print(f"seed {run.world.seed}: {run.problem}")
    world = run.world
    print(
        f"slices {world.slices} {world.workloads} {world.provider}\nclocks {world.options.clocks}"
    )
    print("\n".join(f"  {fault}" for fault in run.world.faults))
    if with_trace:
        print("\n".join(run.trace))
    print(f"again: make explore ARGS='--seed {run.world.seed}'", flush=True)


def main() -> int:
    """Explore; 1 if a seed failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--whole", action="store_true", help="do not shrink a failure")
    given = parser.parse_args()
    one = given.seed is not None
    seeds = [given.seed] if one else range(given.first, given.first + given.seeds)
    totals: Counter[str] = Counter()
    begun, failed = time.monotonic(), []
    for seed in seeds:
        run = explore(draw(seed))
        totals.update(run.counts)
        if run.problem:
            failed.append(seed)
            print_failure(run if given.whole else shrink(run.world), with_trace=one)
    minutes = (time.monotonic() - begun) / 60
    figures = ", ".join(f"{totals[what]:,} {what}" for what in ("invocations", "calls", "faults"))
    print(f"{len(seeds):,} seeds, {figures}, {minutes:.1f} minutes; failed: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
