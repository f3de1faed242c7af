"""Invocations in turns: the same order in each run, in which a test can interleave them."""

from __future__ import annotations

from random import Random

import pytest

from local.base import turns
from local.base.clock import VirtualClock
from tests.stories.helpers import MINUTE, NAME
from tests.support.harness import Harness
from tests.support.manifests import manifest


def test_functions_that_sleep_continue_in_the_order_of_their_times() -> None:
    clock, seen = VirtualClock(), list[str]()

    def work(name: str, seconds: float) -> None:
        seen.append(f"{name} begins")
        turns.sleep(clock, seconds)
        seen.append(f"{name} ends at {clock.now():%S}")

    turns.begin(lambda: work("a", 3))
    turns.begin(lambda: work("b", 1))
    clock.run_for(2)
    assert seen == ["a begins", "b begins", "b ends at 01"]
    clock.run_for(2)
    assert seen[3:] == ["a ends at 03"]
    work("c, outside of turns,", 5)
    assert seen[4:] == ["c, outside of turns, begins", "c, outside of turns, ends at 09"]


def test_an_error_is_raised_where_the_function_was_continued() -> None:
    clock = VirtualClock()

    def fail_later() -> None:
        turns.sleep(clock, 1)
        raise ValueError("late")

    turns.begin(fail_later)
    with pytest.raises(ValueError, match="late"):
        clock.run_for(2)


def interleave(seed: int) -> list[str]:
    """Create a slice while each call waits until a random one of the waiting invocations continues."""
    harness, waiting = Harness(), list[turns.Continue]()
    random, calls = Random(seed), list[str]()

    def before(step: str, call: str) -> None:
        turns.hand_back(waiting.append)
        calls.append(f"{step} {call.split()[0]}")

    def go_on() -> None:
        if waiting:
            waiting.pop(random.randrange(len(waiting)))()
        harness.clock.call_later(0.02, go_on)

    harness.hooks.before = before
    go_on()
    harness.apply(manifest())
    assert harness.run_until(lambda: harness.is_ready(NAME), 15 * MINUTE)
    return calls


def test_invocations_can_be_interleaved_at_each_call_and_a_seed_repeats_their_order() -> None:
    first, again, other = interleave(1), interleave(1), interleave(2)
    assert first == again
    assert first != other
