"""Whatever one thing goes wrong at whatever call, a slice has the life that it has without.

It is Ready with the same state, all rules of the explorer hold, and nothing is left. After a process
that died or a message that was handled twice, the operations are the same, too. After these and after a
transient error the life is at most 15 seconds longer. Tokens and Kubernetes Events are not compared: a
process that is killed after it has generated a token and before it has stored the token generates
another one.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.explore.exhaustive import CRASHES, READY, RESOURCES, VMS, Choose, live_all
from tests.explore.planted import planted
from tests.explore.world import Fault, number_of_commit
from tests.faults.crashes import kind
from tests.stories.helpers import PrintFigure

ENDS = [READY, RESOURCES, VMS]
SHARDS = 2
PAIRS = 0.012
"""About one pair for each life with one fault."""


def of_each_kind() -> Choose:
    """One fault of the first call of each kind, by the commit; after a write also a crash."""
    seen, number = set[str](), number_of_commit()

    def choose(call: str, faults: tuple[Fault, ...]) -> Iterable[Fault]:
        nonlocal number
        if kind(call) in seen:
            return []
        seen.add(kind(call))
        number += 1
        chosen = faults[number % len(faults)]
        return [one for one in faults if one is chosen or one.kind == "crash after"]

    return choose


def every(shard: int, kinds: tuple[str, ...] = ()) -> Choose:
    """All faults, or those of some kinds, at each second call."""
    calls = shard

    def choose(_call: str, faults: tuple[Fault, ...]) -> Iterable[Fault]:
        nonlocal calls
        calls += 1
        return [one for one in faults if not kinds or one.kind in kinds] if calls % SHARDS else []

    return choose


@pytest.mark.conformance(cases={RESOURCES: "del-during-create"})
@pytest.mark.parametrize("deleted_when", ENDS)
def test_one_thing_may_go_wrong_at_each_kind_of_call(
    deleted_when: str, print_figure: PrintFigure
) -> None:
    lives = live_all(2, deleted_when, of_each_kind())
    print_figure(f"two hosts, deleted when {deleted_when}: {lives}")
    assert lives.failures == []


def test_a_message_that_is_not_retried_is_found() -> None:
    calls = 0

    def choose(_call: str, faults: tuple[Fault, ...]) -> Iterable[Fault]:
        nonlocal calls
        calls += 1
        return [one for one in faults if one.number == 503 and calls % 9 == 0]

    with planted("no message is retried"):
        failures = live_all(1, READY, choose).failures
    assert failures
    assert all(": took " in one for one in failures), failures


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("deleted_when", ENDS)
def test_a_step_may_die_and_a_message_may_be_handled_twice_at_every_call(
    deleted_when: str, shard: int, print_figure: PrintFigure
) -> None:
    lives = live_all(2, deleted_when, every(shard, CRASHES))
    print_figure(f"two hosts, deleted when {deleted_when}, crashes: {lives}")
    assert lives.failures == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("deleted_when", ENDS)
def test_everything_may_go_wrong_at_every_call_of_a_life_of_one_host(
    deleted_when: str, shard: int, print_figure: PrintFigure
) -> None:
    lives = live_all(1, deleted_when, every(shard), PAIRS)
    print_figure(
        f"one host, deleted when {deleted_when}, all faults and a sample of pairs: {lives}"
    )
    assert lives.failures == []
