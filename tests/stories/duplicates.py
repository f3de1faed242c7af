"""Lifecycles in which messages are delivered twice."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from shared.triggers.routes import STEPS
from tests.faults.crashes import (
    Outcome,
)
from tests.stories.helpers import HOUR
from tests.support.harness import Harness


@dataclass
class Point:
    """The call of a step at which the second invocation runs, counted over the scenario."""

    index: int
    call: str = ""
    answer: int = 0


class DuplicatingHarness(Harness):
    """A harness that can handle the current message a second time."""

    handle_again: Callable[[], int]

    def _serve(self, step: str) -> Callable[[bytes], int]:
        serve = super()._serve(step)

        def remember(body: bytes) -> int:
            self.handle_again = lambda: serve(body)
            return serve(body)

        return remember


def run_duplicated(
    scenario: Callable[[Harness], Any],
    point: Point,
    make: Callable[[], DuplicatingHarness] = DuplicatingHarness,
    steps: Collection[str] = STEPS,
) -> Outcome:
    """Run a scenario in which one message is handled twice; only calls of ``steps`` are counted."""
    harness = make()
    calls: list[str] = []
    is_second = False

    def before(step: str, call: str) -> None:
        nonlocal is_second
        if is_second or step not in steps:
            return
        calls.append(f"{step}: {call}")
        if len(calls) == point.index:
            point.call = calls[-1]
            is_second = True
            point.answer = harness.handle_again()
            is_second = False

    harness.hooks.before = before
    ready = scenario(harness)
    harness.run_for(HOUR)
    return Outcome(ready, harness.operations, harness.node_deletes(), harness.leftovers(), calls)
