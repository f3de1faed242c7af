"""The reads of report_leaks before it reports a slice as leaked, and the report."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from functions.report_leaks.decide import ReportLeak, decide
from functions.report_leaks.leaks import MIG_SERVICE, POLICY_SERVICE, TEMPLATE_SERVICE, Leak
from functions.report_leaks.observe import MAX_LEAKS, ObservedLeaks, observe
from shared.base.names import RESOURCE_NAME_LABEL
from shared.frame.plan import Plan, StaleObservation
from shared.ports.errors import CallError, OutOfTimeError
from shared.ports.gce.values import ListedResource
from tests.support.builders import CLUSTER, NOW, RESOURCE, UID, raw_group
from tests.support.compute import instance_group, policy, template
from tests.unit.functions.report_leaks.objects import (
    MARK,
    MEMBERS,
    listed,
    raw_node,
    work,
)

FORBIDDEN = CallError("list", 403, "forbidden", "may not list")
SLOW = OutOfTimeError("no answer within 15 s")


CASES: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "all its resources exist": (
        {},
        [MIG_SERVICE, TEMPLATE_SERVICE, POLICY_SERVICE],
        [MEMBERS[0].name],
    ),
    "its group exists": ({"list_groups": [raw_group(uid=UID)]}, [], []),
    "all its resources were deleted meanwhile": (
        {"find_mig": None, "find_policy": None, "find_template": None},
        [],
        [],
    ),
    "the MIG was deleted meanwhile": ({"find_mig": None}, [TEMPLATE_SERVICE, POLICY_SERVICE], []),
    "the policy was deleted meanwhile": (
        {"find_policy": None},
        [MIG_SERVICE, TEMPLATE_SERVICE],
        [MEMBERS[0].name],
    ),
    "the template was deleted meanwhile": (
        {"find_template": None},
        [MIG_SERVICE, POLICY_SERVICE],
        [MEMBERS[0].name],
    ),
    "other resources have the names now": (
        {
            "find_mig": instance_group(description="x"),
            "find_policy": replace(policy(), description="x"),
            "find_template": replace(template(), description="x"),
        },
        [],
        [],
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_slice_is_leaked_if_its_resources_exist_without_its_group(
    case: tuple[dict[str, Any], list[str], list[str]],
) -> None:
    answers, services, vms = case
    observed = observe(work(**answers)[0])
    assert [one.service for leak in observed.leaks for one in leak.resources] == services
    assert [vm for leak in observed.leaks for vm in leak.vms] == vms
    assert (observed.resources, observed.failures, observed.left) == (3, (), 0)


NODES: dict[str, tuple[dict[str, Any], list[dict[str, Any]], bool]] = {
    "no group has its name": (raw_node(), [], True),
    "no group has its label": (raw_node("a", RESOURCE), [], True),
    "it is younger than an hour": (raw_node(age=59), [], False),
    "it is not ours": (raw_node("gke-a"), [], False),
    "its group exists": (raw_node(), [raw_group(labels={RESOURCE_NAME_LABEL: RESOURCE})], False),
    "its group is deleted without our finalizer": (
        raw_node(),
        [
            raw_group(
                labels={RESOURCE_NAME_LABEL: RESOURCE}, deletionTimestamp="x", finalizers=["a"]
            )
        ],
        True,
    ),
}


@pytest.mark.parametrize("case", NODES.values(), ids=NODES)
def test_a_node_without_a_group_is_reported(
    case: tuple[dict[str, Any], list[dict[str, Any]], bool],
) -> None:
    node, groups, expected = case
    observed = observe(work(list_named=([], ()), list_groups=groups, list_all_nodes=[node])[0])
    assert observed.nodes == ((node["metadata"]["name"],) if expected else ())
    assert decide(observed, NOW).outcome == ("LeaksFound" if expected else "NoLeaks")


@pytest.mark.parametrize("failure", [FORBIDDEN, SLOW])
def test_nodes_that_cannot_be_listed_do_not_stop_the_report_of_slices(failure: Exception) -> None:
    observed = observe(work(list_all_nodes=failure)[0])
    assert (len(observed.leaks), observed.failures) == (1, (failure,))
    assert observed.unseen == ("Nodes",)


def test_a_project_that_cannot_be_listed_does_not_stop_the_others() -> None:
    def list_named(
        project: str, service: str, _prefix: str
    ) -> tuple[list[ListedResource], Collection[str]]:
        if project == "a-forbidden":
            raise FORBIDDEN
        return [listed(service, project)], ()

    observed = observe(work(("my-gcp-project", "a-forbidden"), list_named=list_named)[0])
    assert observed.failures == (FORBIDDEN,)
    assert [leak.project for leak in observed.leaks] == ["my-gcp-project"]
    plan = decide(observed, NOW)
    assert [type(action) for action in plan.first] == [ReportLeak]
    assert plan.note == f"Not seen: project a-forbidden; {FORBIDDEN}"
    assert plan.needs_attention


def test_a_run_without_a_leak_reports_what_it_has_not_seen_and_is_not_retried() -> None:
    lists: dict[str, Any] = {
        "a": FORBIDDEN,
        "b": ([], ["zones/x (UNREACHABLE)"]),
        "c": ([], []),
    }

    def list_named(project: str, *_: str) -> Any:
        if isinstance(lists[project], Exception):
            raise lists[project]
        return lists[project]

    plan = decide(observe(work(("a", "b", "c"), list_named=list_named)[0]), NOW)
    assert plan == Plan(
        "NotAllSeen",
        note=f"Not seen: project a, zones/x (UNREACHABLE) of project b; {FORBIDDEN}",
        facts={"resources": 0, "leaks": 0},
        needs_attention=True,
    )


@pytest.mark.parametrize("error", [FORBIDDEN, SLOW], ids=["forbidden", "slow"])
def test_a_slice_that_cannot_be_read_again_does_not_stop_the_others(error: Exception) -> None:
    def list_named(
        project: str, service: str, _prefix: str
    ) -> tuple[list[ListedResource], Collection[str]]:
        return [listed(service, project, mark=MARK.replace(UID, project))], ()

    def find_mig(project: str, *_place: str) -> Any:
        if project == "a":
            raise error
        return instance_group(description=MARK.replace(UID, project))

    answers = {"list_named": list_named, "find_mig": find_mig}
    observed = observe(work(("a", "b"), **answers)[0])
    assert [leak.project for leak in observed.leaks] == ["b"]
    assert observed.failures == (error,)
    assert observed.unseen == (f"slice {RESOURCE} of project a",)


def test_a_project_that_times_out_does_not_stop_the_others_and_may_be_listed_first_next_time() -> (
    None
):
    listed_projects: list[str] = []

    def list_named(
        project: str, service: str, _prefix: str
    ) -> tuple[list[ListedResource], Collection[str]]:
        listed_projects.append(project)
        if len(set(listed_projects)) > 1:
            raise SLOW
        return [listed(service, project)], ()

    leak_work, _ = work(("a", "b"), list_named=list_named)
    observed = observe(leak_work)
    assert observed.failures == (SLOW,)
    assert [leak.project for leak in observed.leaks] == ["a"]

    leak_work.random_bytes = lambda size: b"\x01".rjust(size, b"\x00")
    listed_projects.clear()
    assert [leak.project for leak in observe(leak_work).leaks] == ["b"]


def test_a_cluster_id_that_changes_during_the_reads_makes_the_observation_stale() -> None:
    ids = iter([CLUSTER, "another"])
    with pytest.raises(StaleObservation, match="another cluster now"):
        observe(work(get_cluster_id=lambda: next(ids))[0])


@pytest.mark.parametrize("more", [0, 2])
def test_a_run_reports_a_limited_number_of_leaks(more: int) -> None:
    def list_named(
        _project: str, service: str, _prefix: str
    ) -> tuple[list[ListedResource], Collection[str]]:
        leaked = [
            (f"{RESOURCE[:-1]}{number}", MARK.replace(UID, str(number)))
            for number in range(MAX_LEAKS + more)
        ]
        return [listed(service, name=name, mark=mark) for name, mark in leaked], ()

    gone: dict[str, Any] = dict.fromkeys(("find_mig", "find_policy", "find_template"))
    observed = observe(work(list_named=list_named, **gone)[0])
    assert observed.left == more
    plan = decide(observed, NOW)
    assert plan.needs_attention is (more > 0)
    assert plan.facts.get("left", 0) == more


def test_a_leak_is_logged_as_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    (leak,) = observe(work()[0]).leaks
    plan = decide(ObservedLeaks((leak,), 3, (), 0), NOW)
    assert (plan.outcome, plan.facts) == ("LeaksFound", {"resources": 3, "leaks": 1})
    assert not plan.needs_attention
    (action,) = plan.first
    leak_work, _ = work()
    assert isinstance(action, ReportLeak)
    action.apply(leak_work)
    line = json.loads(capsys.readouterr().out)
    assert (line["severity"], line["project"], line["vms"]) == ("ERROR", "my-gcp-project", 1)
    assert action.describe() == f"report the leaked slice {RESOURCE}"
    assert isinstance(leak, Leak)


def test_a_leaked_node_pool_is_logged_by_the_name_that_the_alert_groups_by(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = decide(ObservedLeaks((), 3, pools=("a-0123456789abcdef",)), NOW)
    (action,) = plan.first
    action.apply(work()[0])
    line = json.loads(capsys.readouterr().out)
    assert (line["decision"], line["severity"], line["slice"]) == (
        "LeakedSlice",
        "ERROR",
        "a-0123456789abcdef",
    )


def test_a_run_without_a_leak_reports_nothing() -> None:
    assert decide(ObservedLeaks((), 5, (), 0), NOW).outcome == "NoLeaks"
