"""Worlds that are broken and heal: the rules hold at every moment, and the slices converge."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.explore.explorer import explore
from tests.explore.planted import count_seeds
from tests.explore.world import draw, number_of_commit
from tests.stories.helpers import PrintFigure

SAMPLE = 24
"""The worlds of a fast test; which ones, the commit decides."""
SAMPLES = 7
MANY, SHARDS = 2000, 8
QUICK = (
    "a lost entry is ignored",
    "all VMs get one token",
    "a token is not revoked after the join",
)
LONGER = ("a Node of a predecessor counts", "a Node is deleted by its name alone")


def check(seeds: range, print_figure: PrintFigure) -> None:
    counts, problems = Counter[str](), []
    for seed in seeds:
        run = explore(draw(seed))
        counts.update(run.counts)
        if run.problem:
            problems.append(f"make explore ARGS='--seed {seed}': {run.problem}")
    print_figure(f"explore: seeds {seeds.start} to {seeds.stop - 1}: {dict(counts)}")
    assert problems == []


@pytest.mark.parametrize("shard", range(2))
def test_worlds_of_this_commit_heal(shard: int, print_figure: PrintFigure) -> None:
    first = MANY + number_of_commit() % SAMPLES * SAMPLE + shard * SAMPLE // 2
    check(range(first, first + SAMPLE // 2), print_figure)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_thousands_of_worlds_heal(shard: int, print_figure: PrintFigure) -> None:
    size = MANY // SHARDS
    check(range(shard * size, (shard + 1) * size), print_figure)


def test_a_seed_repeats_its_run() -> None:
    first, again, other = (explore(draw(seed)) for seed in (5, 5, 6))
    assert first.hash == again.hash
    assert first.hash != other.hash


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in LONGER)]
)
def test_a_planted_bug_is_found(name: str) -> None:
    assert count_seeds(name, 30)[0] > 0
