"""What report_leaks reads before it calls a slice leaked, and what it reports."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest

from functions.report_leaks import MAX_LEAKS, LeakWork, ObservedLeaks, ReportLeak, decide, observe
from shared.base.errors import CallError, OutOfTimeError
from shared.base.logs import make_logger
from shared.frame.decode import Trigger
from shared.frame.plan import Fail, StaleObservation
from shared.node_groups.leaks import MIGS, POLICIES, TEMPLATES, Leak
from shared.ports.gce.calls import Gce
from shared.ports.gce.values import ListedResource
from shared.ports.kubernetes.cluster import Cluster
from tests.unit.builders import CLUSTER, NOW, RESOURCE, UID, group, raw_group
from tests.unit.reads import Reads
from tests.unit.test_create_resources import SETTINGS, instance_group, policy, template
from tests.unit.test_inject_token import instance

MARK = group().mark
REFUSED = CallError("list", 403, "forbidden", "may not list")
SLOW = OutOfTimeError("no answer within 15 s")
PLACES = {MIGS: "us-central1-c", TEMPLATES: "", POLICIES: "us-central1"}


def listed(
    service: str, project: str = "my-gcp-project", name: str = RESOURCE, mark: str = MARK
) -> ListedResource:
    return ListedResource(project, service, PLACES[service], name, mark, NOW - timedelta(days=1))


ALL = [listed(service) for service in PLACES]
MEMBER = replace(instance(f"{RESOURCE}-ab12"), name=f"{RESOURCE}-ab12")
STANDS: dict[str, Any] = {
    "get_cluster_id": CLUSTER,
    "list_named": lambda _project, service, _prefix: [listed(service)],
    "list_groups": [],
    "find_mig": instance_group(description=MARK),
    "find_policy": replace(policy(), description=MARK),
    "find_template": replace(template(), description=MARK),
    "list_instances": [MEMBER, replace(MEMBER, created_by="")],
}


def work(projects: tuple[str, ...] = ("my-gcp-project",), **answers: Any) -> tuple[LeakWork, Reads]:
    reads, nothing = Reads(STANDS | answers), cast("Any", None)
    made = LeakWork(
        settings=replace(SETTINGS, projects=frozenset(projects)),
        gce=cast("Gce", reads),
        cluster=cast("Cluster", reads),
        publish=nothing,
        random_bytes=bytes,
        remaining_s=lambda: 30.0,
        now=NOW,
        trigger=Trigger("Sweep", NOW),
        log=make_logger(),
    )
    return made, reads


CASES: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "all of it stands": ({}, [MIGS, TEMPLATES, POLICIES], [MEMBER.name]),
    "its group is there": ({"list_groups": [raw_group(uid=UID)]}, [], []),
    "it has gone meanwhile": (
        {"find_mig": None, "find_policy": None, "find_template": None},
        [],
        [],
    ),
    "the MIG has gone": ({"find_mig": None}, [TEMPLATES, POLICIES], []),
    "the policy has gone": ({"find_policy": None}, [MIGS, TEMPLATES], [MEMBER.name]),
    "the template has gone": ({"find_template": None}, [MIGS, POLICIES], [MEMBER.name]),
    "others have the names now": (
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
def test_a_slice_is_leaked_if(case: tuple[dict[str, Any], list[str], list[str]]) -> None:
    answers, services, vms = case
    observed = observe(work(**answers)[0])
    assert [one.service for leak in observed.leaks for one in leak.resources] == services
    assert [vm for leak in observed.leaks for vm in leak.vms] == vms
    assert (observed.resources, observed.failures, observed.left) == (3, (), 0)


def test_where_nothing_is_listed_the_groups_are_not() -> None:
    made, reads = work(list_named=[])
    assert observe(made) == ObservedLeaks((), 0, (), 0)
    assert "list_groups" not in reads.made


def test_a_project_that_cannot_be_listed_stops_no_other() -> None:
    def list_named(project: str, service: str, _prefix: str) -> list[ListedResource]:
        if project == "a-refused":
            raise REFUSED
        return [listed(service, project)]

    observed = observe(work(("my-gcp-project", "a-refused"), list_named=list_named)[0])
    assert observed.failures == (REFUSED,)
    assert [leak.project for leak in observed.leaks] == ["my-gcp-project"]
    plan = decide(observed, NOW)
    assert [type(action) for action in plan.actions] == [ReportLeak]
    assert (plan.note, plan.needs_attention) == (str(REFUSED), True)


def test_a_run_without_a_leak_is_retried_after_an_error() -> None:
    plan = decide(ObservedLeaks((), 0, (REFUSED,)), NOW)
    assert (plan.outcome, plan.actions, plan.note) == ("NoLeaks", (Fail(REFUSED),), "")


@pytest.mark.parametrize("error", [REFUSED, SLOW], ids=["refused", "slow"])
def test_a_slice_that_cannot_be_read_again_stops_no_other(error: Exception) -> None:
    def list_named(project: str, service: str, _prefix: str) -> list[ListedResource]:
        return [listed(service, project, mark=MARK.replace(UID, project))]

    def find_mig(project: str, *_place: str) -> Any:
        if project == "a":
            raise error
        return instance_group(description=MARK.replace(UID, project))

    answers = {"list_named": list_named, "find_mig": find_mig}
    observed = observe(work(("a", "b"), **answers)[0])
    assert [leak.project for leak in observed.leaks] == ["b"]
    assert observed.failures == (error,)


def test_a_project_that_there_is_no_time_to_list_stops_no_other_and_is_first_another_time() -> None:
    listed_projects: list[str] = []

    def list_named(project: str, service: str, _prefix: str) -> list[ListedResource]:
        listed_projects.append(project)
        if len(set(listed_projects)) > 1:
            raise SLOW
        return [listed(service, project)]

    made, _ = work(("a", "b"), list_named=list_named)
    observed = observe(made)
    assert observed.failures == (SLOW,)
    assert [leak.project for leak in observed.leaks] == ["a"]

    made.random_bytes = lambda size: b"\x01".rjust(size, b"\x00")
    listed_projects.clear()
    assert [leak.project for leak in observe(made).leaks] == ["b"]


def test_another_cluster_in_between_makes_the_step_observe_again() -> None:
    ids = iter([CLUSTER, "another"])
    with pytest.raises(StaleObservation, match="another cluster now"):
        observe(work(get_cluster_id=lambda: next(ids))[0])


@pytest.mark.parametrize("more", [0, 2])
def test_so_many_leaks_are_reported_at_once(more: int) -> None:
    def list_named(_project: str, service: str, _prefix: str) -> list[ListedResource]:
        marks = [
            (f"{RESOURCE[:-1]}{number}", MARK.replace(UID, str(number)))
            for number in range(MAX_LEAKS + more)
        ]
        return [listed(service, name=name, mark=mark) for name, mark in marks]

    gone: dict[str, Any] = dict.fromkeys(("find_mig", "find_policy", "find_template"))
    observed = observe(work(list_named=list_named, **gone)[0])
    assert observed.left == more
    plan = decide(observed, NOW)
    assert plan.needs_attention is (more > 0)
    assert plan.facts.get("left", 0) == more


def test_a_leak_is_an_error_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    (leak,) = observe(work()[0]).leaks
    plan = decide(ObservedLeaks((leak,), 3, (), 0), NOW)
    assert (plan.outcome, plan.facts) == ("LeaksFound", {"resources": 3, "leaks": 1})
    assert not plan.needs_attention
    (action,) = plan.actions
    made, _ = work()
    assert isinstance(action, ReportLeak)
    action.apply(made)
    line = json.loads(capsys.readouterr().out)
    assert (line["severity"], line["project"], line["vms"]) == ("ERROR", "my-gcp-project", 1)
    assert action.describe() == f"report the leaked slice {RESOURCE}"
    assert isinstance(leak, Leak)


def test_without_a_leak_nothing_is_reported() -> None:
    assert decide(ObservedLeaks((), 5, (), 0), NOW).outcome == "NoLeaks"
