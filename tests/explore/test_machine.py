"""Whatever people, Compute Engine and the network do to slices, in the end they are what people want.

A story that Hypothesis prints is a test: paste its lines under ``state = Machine()``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shared.node_groups import lifecycle
from tests.explore.machine import Machine, count_lives, live
from tests.explore.planted import planted
from tests.explore.rules import Violation
from tests.stories.helpers import PrintFigure

LIVES = 12
"""In a fast test; in a long one ten times as many."""
QUICK = (
    "all VMs get one token",
    "a token is not revoked after the join",
    "the finalizer is removed early",
)
LONGER = (
    "the tokens of a deleted group stay",
    "the finalizer is never set",
    "the token's Secret is not created",
    "Nodes are not labelled",
    "Nodes are not deleted",
)


def test_slices_are_what_people_want_after_a_life_of_any_rules(print_figure: PrintFigure) -> None:
    print_figure(f"machine: {live(LIVES, derandomize=True)}")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_slices_are_what_people_want_after_random_lives(print_figure: PrintFigure) -> None:
    print_figure(f"machine, at random: {live(10 * LIVES, derandomize=False)}")


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in LONGER)]
)
def test_a_planted_bug_is_found_within_five_lives(name: str, print_figure: PrintFigure) -> None:
    lives, problem = count_lives(name, 5)
    print_figure(f"machine: {name}: {lives} lives: {problem.splitlines()[:1]}")
    assert lives > 0


def test_a_token_is_revoked_when_the_node_of_one_host_has_joined() -> None:
    """As the machine finds a token that is not revoked."""

    def story() -> None:
        state = Machine()
        group_0 = state.create_first(shape="one host")
        state.wait(seconds=1200)
        state.delete(group=group_0)
        state.teardown()

    story()
    with planted("a token is not revoked after the join"), pytest.raises(Violation, match="valid"):
        story()


def test_nothing_is_inserted_for_a_group_that_is_paused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def story() -> None:
        state = Machine()
        group_0 = state.create_first(shape="two hosts")
        state.pause(group=group_0)
        state.teardown()

    make_observation = lifecycle.make_observation

    def ignore_pause(*given: Any, **named: Any) -> lifecycle.Observation:
        return replace(make_observation(*given, **named), is_paused=False)

    story()
    monkeypatch.setattr(lifecycle, "make_observation", ignore_pause)
    with pytest.raises(Violation, match="of one, which is paused"):
        story()


def test_a_paused_group_whose_mig_is_deleted_says_that_it_is_paused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the machine has found a status whose MIG stayed Ready."""

    def story() -> None:
        state = Machine()
        group_0 = state.create_first(shape="two hosts")
        state.remove_finalizer(group=group_0)  # until it is back, the MIG is created
        state.pause(group=group_0)
        state.delete_mig(group=group_0)
        state.teardown()

    story()
    rows = [row for row in lifecycle.TABLE if "It is gone." not in row.because]
    monkeypatch.setattr(lifecycle, "TABLE", tuple(rows))
    with pytest.raises(Violation, match="not paused within"):
        story()
