"""Each story is told twice: on the embedded Kubernetes API, and on a real control plane."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real.bridge.ground import standing_on_real

SLOW_ON_REAL = frozenset(
    {
        "test_joins.py::test_a_burst_of_requests_is_approved_before_any_kubelet_gives_up",
        "test_budget.py::test_two_hosts_keep_to_their_budget_however_their_changes_fall",
        "test_budget.py::test_a_settled_fleet_costs_two_lists_a_minute_and_a_look_per_group_and_hour",
        "test_losses.py::test_64_vms_preempted_at_once_are_few_writes_and_one_reason",
        "test_mended.py::test_64_vms_preempted_at_once_are_all_called_lost",
        "test_at_the_same_time.py::test_a_message_may_be_at_work_twice",
    }
)
"""Stories of many VMs or of many lives, left to `make test-all` on a real control plane. Of the others
each is told there in its first case every day, in the rest by `make test-all`."""
EMBEDDED_ALONE = frozenset(
    {
        "tests.stories.test_clocks",
        "tests.stories.test_jobset_slices",
        "tests.stories.test_many_jobsets",
        "tests.stories.test_node_pool_ends",
        "tests.stories.test_node_pool_slices",
        "tests.stories.test_older_pools",
        "tests.stories.test_suspended_jobsets",
        "tests.stories.test_upgrades",
    }
)
"""Stories in which Pods run (a real control plane alone has no kubelets), clocks are wrong, or manifests
change (there they are applied once for all)."""
REAL = pytest.param("real", marks=pytest.mark.real)
LONG_S = 1800
"""How long one of those may take there."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    told: set[str] = set()
    for item in items:
        if not item.get_closest_marker("real"):
            continue
        story = item.nodeid.removeprefix("tests/stories/").partition("[")[0]
        if story != item.nodeid.partition("[")[0]:
            if story in SLOW_ON_REAL | told:
                item.add_marker(pytest.mark.slow)
            elif not item.get_closest_marker("slow"):
                told.add(story)
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(LONG_S))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    real = [] if metafunc.module.__name__ in EMBEDDED_ALONE else [REAL]
    metafunc.parametrize("ground", ["embedded", *real], indirect=True)


@pytest.fixture(autouse=True)
def ground(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the story's harnesses stand on."""
    if request.param == "embedded":
        yield
        return
    with standing_on_real(request.getfixturevalue("installation")):
        yield
