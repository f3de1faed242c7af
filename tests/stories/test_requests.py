"""ProvisioningRequests: quota, then slices, then the Pods, with both providers, and nothing is left."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from local.jobsets import Controller, PodBehaviour
from shared.base.names import COMPLETION_INDEX, RESTART_ATTEMPT
from shared.settings import GKE, TPU_NODE_GROUP
from tests.faults.jobsets import (
    CANDIDATES,
    FULL,
    RESERVED,
    count_most,
    limit_zone,
    make_class,
    running,
)
from tests.faults.jobsets import slices as list_slices
from tests.stories import helpers
from tests.stories import request_objects as requests
from tests.stories import workload_objects as objects
from tests.stories.helpers import MINUTE
from tests.stories.jobsets import MERGE, OPTIONS, phases, until
from tests.stories.request_objects import LISTED, RequestHarness, jobset
from tests.stories.workload_objects import NAMESPACE, PATHS
from tests.support.class_specs import CLASSES
from tests.support.harness import Harness

PROVIDERS = pytest.mark.parametrize("provider", [TPU_NODE_GROUP, GKE])


def count_slices(harness: Harness) -> int:
    return len(list_slices(harness))


@PROVIDERS
@pytest.mark.parametrize(
    "manifest, group, slices, pods",
    [
        pytest.param(jobset(2), None, 2, 4, id="two Jobs of a JobSet"),
        pytest.param(objects.job(2), None, 2, 2, id="a slice for each index of a Job"),
        pytest.param(objects.job(2, "2x4"), None, 1, 2, id="a slice for a Job"),
        pytest.param(
            objects.leader_worker_set(2, topology="2x4"), 0, 1, 2, id="a group of a LeaderWorkerSet"
        ),
        pytest.param(
            objects.leader_worker_set(2, topology=objects.ONE_HOST),
            0,
            2,
            2,
            id="a slice for each Pod",
        ),
    ],
)
def test_a_workload_gets_its_slices_before_its_pods(
    manifest: dict[str, Any], group: int | None, slices: int, pods: int, provider: str
) -> None:
    """It has waited for its turn for longer than a suspended workload keeps its slices."""
    harness = RequestHarness(provider)
    harness.queue(manifest, group)
    harness.until_provisioned()
    assert requests.condition(harness, "Accepted")[0] == "Accepted"
    assert f"{slices} of {slices} slices ready: " in requests.condition(harness, "Provisioned")[1]
    harness.run_for(8 * MINUTE)
    assert count_slices(harness) == harness.created == slices
    assert phases(harness) == []
    harness.admit()
    until(harness, lambda: running(harness) == pods)
    harness.run_for(20 * MINUTE)
    assert requests.conditions(harness) == {"Accepted": "True", "Provisioned": "True"}
    harness.simulation.admin("DELETE", f"{requests.REQUESTS}/train-1")
    harness.run_for(20 * MINUTE)
    assert (count_slices(harness), running(harness)) == (slices, pods)
    assert harness.created == slices, "Pods that consume a request ask for no slice"
    harness.end()


@PROVIDERS
def test_a_stockout_is_reported_and_is_no_failure(provider: str) -> None:
    harness = RequestHarness(provider)
    make_class(harness, CANDIDATES[:2], giveUpAfter="30s")
    harness.queue(jobset())
    harness.run_for(18 * MINUTE)
    assert requests.conditions(harness) == {"Accepted": "True", "Provisioned": "False"}
    message = requests.condition(harness, "Provisioned")[1]
    assert message.startswith("0 of 1 slices ready; ")
    assert FULL in message or RESERVED in message
    limit_zone(harness, FULL)
    harness.until_provisioned()
    harness.admit()
    until(harness, lambda: running(harness) == 2)
    harness.end()


@PROVIDERS
def test_a_stockout_at_the_first_candidates_falls_to_the_next_one(provider: str) -> None:
    harness = RequestHarness(provider)
    make_class(harness, giveUpAfter="30s")
    most = count_most(harness)
    harness.queue(jobset(), None, **{"class": "v6e"})
    harness.until_provisioned()
    assert most == [1]
    assert requests.conditions(harness) == {"Accepted": "True", "Provisioned": "True"}
    harness.end()


@PROVIDERS
def test_a_slice_that_comes_after_an_hour_is_reported_within_two_minutes(provider: str) -> None:
    """Until then its VMs are billed, and nobody uses them."""
    harness = RequestHarness(provider)
    make_class(harness, CANDIDATES[:1])
    harness.queue(jobset())
    harness.run_for(65 * MINUTE)
    limit_zone(harness, FULL)
    until(harness, lambda: len(helpers.nodes(harness)) == 2)
    harness.run_for(2 * MINUTE)
    assert requests.is_provisioned(harness)
    harness.admit()
    harness.end()


@PROVIDERS
@pytest.mark.parametrize("keeps_request", [True, False])
def test_a_workload_that_is_evicted_loses_its_slices_after_a_time(
    keeps_request: bool, provider: str
) -> None:
    harness = RequestHarness(provider)
    harness.queue(jobset())
    harness.until_provisioned()
    harness.run_for(8 * MINUTE)
    if keeps_request:
        requests.end_workload(harness, harness.workload, "Evicted")
    else:
        harness.simulation.admin("DELETE", f"{requests.REQUESTS}/train-1")
    until(harness, lambda: count_slices(harness) == 0, 10 * MINUTE)
    harness.end()


@PROVIDERS
def test_the_next_request_finds_the_slices_of_the_first_one(provider: str) -> None:
    harness = RequestHarness(provider)
    harness.queue(jobset())
    harness.until_provisioned()
    harness.simulation.admin("DELETE", f"{requests.REQUESTS}/train-1")
    sets = requests.pod_sets(harness.owner)
    for name in ("train-2", "train-3"):  # two for one unit
        requests.request(harness, sets, harness.workload, name)
        harness.until_provisioned(name)
    assert harness.created == count_slices(harness) == 1
    harness.end()


@PROVIDERS
def test_a_request_that_nobody_uses_expires_after_ten_minutes(provider: str) -> None:
    """One without a workload; its second one is used by Pods of its own until they have ended."""
    harness = RequestHarness(provider)
    sets = {"main": (2, objects.template())}
    requests.request(harness, sets, name="unused")
    requests.request(harness, sets, name="used")
    harness.until_provisioned("unused")
    harness.until_provisioned("used")
    assert count_slices(harness) == 4
    found = requests.status(harness, "used")["provisioningClassDetails"]["WorkloadKey"]
    pod = objects.pod(spec={"nodeSelector": {requests.KEY: found}})
    pod["metadata"]["annotations"] = {requests.CONSUME: "used"}
    requests.post(harness, PATHS["Pod"], pod)
    harness.run_for(9 * MINUTE)
    assert requests.conditions(harness, "unused") == {"Accepted": "True", "Provisioned": "True"}
    until(harness, lambda: "BookingExpired" in requests.conditions(harness, "unused"), 3 * MINUTE)
    until(harness, lambda: count_slices(harness) == 2, 5 * MINUTE)
    assert running(harness) == 1
    harness.simulation.admin("DELETE", f"{PATHS['Pod']}/one")
    until(harness, lambda: harness.leftovers() == [])
    assert harness.created == 4


def test_a_request_without_a_workload_that_is_deleted_keeps_its_slice_while_a_pod_runs() -> None:
    harness = RequestHarness(TPU_NODE_GROUP)
    requests.request(harness, {"main": (1, objects.template())})
    harness.until_provisioned()
    detail = requests.status(harness)["provisioningClassDetails"]["WorkloadKey"]
    pod = objects.pod(spec={"nodeSelector": {requests.KEY: detail}})
    pod["metadata"]["annotations"] = {requests.CONSUME: "train-1"}
    requests.post(harness, PATHS["Pod"], pod)
    until(harness, lambda: running(harness) == 1)
    harness.simulation.admin("DELETE", f"{requests.REQUESTS}/train-1")
    harness.run_for(10 * MINUTE)
    assert (running(harness), count_slices(harness)) == (1, 1)
    harness.simulation.admin("DELETE", f"{PATHS['Pod']}/one")
    until(harness, lambda: harness.leftovers() == [])


@PROVIDERS
def test_the_slice_of_a_completed_job_is_not_made_again_for_a_request(provider: str) -> None:
    """The request stays open until its Workload has finished."""
    harness = RequestHarness(provider)
    harness.queue(jobset(2))
    harness.until_provisioned()

    def ends(pod: dict[str, Any]) -> str:
        return "Succeeded" if pod["metadata"]["name"].startswith("train-workers-0-") else ""

    harness.jobsets.behaviour = PodBehaviour(run_s=60, ends=ends)
    harness.admit()
    until(harness, lambda: count_slices(harness) == 1)
    harness.run_for(timedelta(hours=1))
    assert (count_slices(harness), harness.created) == (1, 2)
    harness.end()


def test_a_slice_that_is_deleted_comes_back_for_a_request() -> None:
    """The Pods that consume it are no demand."""
    harness = RequestHarness(TPU_NODE_GROUP)
    harness.queue(jobset())
    harness.until_provisioned()
    path = "/apis/tpu.google.com/v1alpha1/namespaces/default/tpunodegroups"
    (group,) = harness.simulation.admin("GET", path)["items"]
    harness.simulation.admin("DELETE", f"{path}/{group['metadata']['name']}")
    until(harness, lambda: harness.created == 2)
    assert requests.is_provisioned(harness)
    harness.admit()
    until(harness, lambda: running(harness) == 2)
    harness.end()


def test_a_slice_that_is_lost_under_a_workload_that_runs_for_long_comes_back_at_once() -> None:
    """Its other slices are billed until then."""
    harness = RequestHarness(TPU_NODE_GROUP)
    manifest = jobset()
    manifest["spec"]["failurePolicy"] = {"maxRestarts": 1}
    harness.queue(manifest)
    harness.until_provisioned()
    harness.admit()
    requests.end_workload(harness, harness.workload, "Admitted")
    until(harness, lambda: running(harness) == 2)
    harness.run_for(timedelta(hours=6, minutes=17))
    path = "/apis/tpu.google.com/v1alpha1/namespaces/default/tpunodegroups"
    (group,) = harness.simulation.admin("GET", path)["items"]
    harness.simulation.admin("DELETE", f"{path}/{group['metadata']['name']}")
    until(harness, lambda: harness.created == 2, 3 * MINUTE)
    until(harness, lambda: running(harness) == 2)
    harness.end()


PLACE = "the key namespaces of the ConfigMap tpu-functions/jobsets does not list"
UNSERVED = {
    "the namespace does not list requests": (
        jobset(),
        "default: {kinds: [JobSet], slices: 1}",
        f"{PLACE} ProvisioningRequest for default",
    ),
    "the namespace does not list the kind": (
        objects.job(),
        "default: {kinds: [ProvisioningRequest], slices: 1}",
        f"{PLACE} Job for default",
    ),
    "another kind": (
        objects.stateful_set(),
        LISTED,
        "only JobSets, Indexed Jobs and LeaderWorkerSets get slices so",
    ),
}


@pytest.mark.parametrize("case", UNSERVED)
def test_a_request_that_cannot_be_served_fails_with_the_reason(case: str) -> None:
    manifest, namespaces, expected = UNSERVED[case]
    harness = RequestHarness(TPU_NODE_GROUP, namespaces)
    harness.jobsets.controllers = frozenset[Controller]()
    owner = requests.post(harness, PATHS[manifest["kind"]], manifest)
    workload = requests.queue(harness, owner)
    spec = manifest["spec"]
    sets = {"main": (1, spec["template"])} if "template" in spec else requests.pod_sets(owner)
    requests.request(harness, sets, workload)
    until(harness, lambda: bool(requests.conditions(harness)))
    assert requests.conditions(harness) == {"Failed": "True"}
    assert requests.condition(harness, "Failed") == ("Unservable", expected)
    assert harness.created == 0


@pytest.mark.parametrize(
    "limits, most", [("slices: 1", "1 slice"), ("slices: 8, chips: 8", "8 slices and 8 chips")]
)
def test_a_request_for_more_than_its_namespace_may_ever_have_gets_nothing(
    limits: str, most: str
) -> None:
    """A part of its slices would be billed, and wait for the rest."""
    listed = "default: {kinds: [JobSet, ProvisioningRequest], %s}"
    harness = RequestHarness(TPU_NODE_GROUP, listed % limits)
    harness.queue(jobset(2))
    harness.run_for(20 * MINUTE)
    expected = (
        f"the request asks for 2 slices with 16 chips, but namespace default may have {most} (the key "
        "namespaces of the ConfigMap tpu-functions/jobsets)"
    )
    assert (harness.created, requests.condition(harness, "Provisioned")) == (
        0,
        ("Refused", expected),
    )
    change = {"data": {"namespaces": listed % "slices: 2, chips: 16"}}
    harness.simulation.admin("PATCH", f"{OPTIONS}/jobsets", change, **MERGE)
    harness.until_provisioned()
    harness.end()


def test_a_request_for_more_than_its_class_may_ever_have_gets_nothing() -> None:
    harness = RequestHarness(TPU_NODE_GROUP)
    make_class(harness, CANDIDATES[2:], limits={"slices": 1})
    harness.queue(jobset(2))
    harness.run_for(5 * MINUTE)
    expected = (
        "the request asks for 2 slices with 16 chips, but TPUSliceClass v6e may have 1 slice (its "
        "limits)"
    )
    condition = requests.condition(harness, "Provisioned")
    assert (harness.created, condition) == (0, ("Refused", expected))


@PROVIDERS
@pytest.mark.parametrize("most", [2, 3])
def test_two_requests_at_a_limit_get_their_slices_one_after_the_other(
    most: int, provider: str
) -> None:
    """A part of the second one's would be billed and wait; with a part each, both would for ever."""
    listed = f"default: {{kinds: [JobSet, ProvisioningRequest], slices: {most}}}"
    harness = RequestHarness(provider, listed)
    workloads = {}
    for name in ("train", "eval"):
        manifest = jobset(2)
        manifest["metadata"]["name"] = name
        harness.queue(manifest, name=f"{name}-1")
        workloads[name] = harness.owner, harness.workload
    until(harness, lambda: any(requests.is_provisioned(harness, f"{one}-1") for one in workloads))
    harness.run_for(5 * MINUTE)
    (first,) = [one for one in workloads if requests.is_provisioned(harness, f"{one}-1")]
    (second,) = workloads.keys() - {first}
    reason, message = requests.condition(harness, "Provisioned", f"{second}-1")
    assert (harness.created, reason) == (2, "LimitReached")
    assert message.startswith(
        f"0 of 2 slices ready; Namespace default may have {most} slices (the key namespaces of the "
        "ConfigMap tpu-functions/jobsets) and has 2 slices with 16 chips, and no room for 2 more "
        "together: the Pod gets its slice, "
    )
    for path, one in zip((PATHS["JobSet"], requests.WORKLOADS), workloads[first], strict=True):
        harness.simulation.admin("DELETE", f"{path}/{one['metadata']['name']}")
    until(harness, lambda: requests.is_provisioned(harness, f"{second}-1"))
    harness.owner, harness.workload = workloads[second]
    harness.end()
    assert harness.created == 4


@PROVIDERS
def test_a_limit_that_is_lowered_when_all_slices_exist_refuses_none(provider: str) -> None:
    """They are billed whether the workload may use them or not."""
    listed = "default: {kinds: [JobSet, ProvisioningRequest], slices: %s}"
    harness = RequestHarness(provider, listed % 2)
    harness.queue(jobset(2))
    until(harness, lambda: count_slices(harness) == 2)
    change = {"data": {"namespaces": listed % 1}}
    harness.simulation.admin("PATCH", f"{OPTIONS}/jobsets", change, **MERGE)
    harness.until_provisioned()
    harness.end()
    assert harness.created == 2


def test_a_request_waits_while_an_administrator_must_act() -> None:
    harness = RequestHarness(TPU_NODE_GROUP)
    path = f"{OPTIONS}/jobsets"
    harness.simulation.admin("PATCH", path, {"data": {"paused": "true"}}, **MERGE)
    harness.queue(jobset())
    until(harness, lambda: bool(requests.conditions(harness)))
    reason, message = requests.condition(harness, "Provisioned")
    assert (reason, message[:40]) == ("SlicePaused", "0 of 1 slices ready; No slice is created")
    few = "default: {kinds: [JobSet, ProvisioningRequest], slices: 0}"
    harness.simulation.admin("PATCH", path, {"data": {"paused": None, "namespaces": few}}, **MERGE)
    until(harness, lambda: requests.condition(harness, "Provisioned")[0] == "Refused")
    assert "may have 0 slices" in requests.condition(harness, "Provisioned")[1]
    harness.simulation.admin("PATCH", path, {"data": {"namespaces": LISTED}}, **MERGE)
    harness.until_provisioned()
    harness.end()


def drop_rule(harness: Harness, step: str, resource: str) -> Any:
    """Take the permission for a resource from a step; the answer restores it."""
    path = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/tpu-functions-{step}"
    role = harness.simulation.admin("GET", path)
    rules = [one for one in role["rules"] if resource not in one["resources"]]
    assert len(rules) < len(role["rules"])
    harness.simulation.admin("PUT", path, {**role, "rules": rules})
    return lambda: harness.simulation.admin(
        "PUT", path, {**harness.simulation.admin("GET", path), "rules": role["rules"]}
    )


def events_about(harness: Harness, kind: str) -> str:
    path = f"/api/v1/namespaces/{NAMESPACE}/events"
    found = harness.simulation.admin("GET", path)["items"]
    return "; ".join(one["message"] for one in found if one["involvedObject"]["kind"] == kind)


@pytest.mark.parametrize("is_by_hand", [True, False])
def test_without_permission_to_read_requests_other_slices_come_and_go(is_by_hand: bool) -> None:
    """As with functions that are newer than the manifests. The slice of the request stays."""
    harness = RequestHarness(TPU_NODE_GROUP)
    if is_by_hand:
        requests.request(harness, {"main": (1, objects.template())})
    else:
        harness.queue(jobset())
    harness.until_provisioned()
    restore = [
        drop_rule(harness, step, "provisioningrequests")
        for step in ("provision-slice", "release-slice")
    ]
    harness.run_for(8 * MINUTE)
    other = objects.job(1)
    requests.post(harness, PATHS["Job"], other)
    until(harness, lambda: running(harness) == 1)
    harness.simulation.admin("DELETE", f"{PATHS['Job']}/{other['metadata']['name']}")
    until(harness, lambda: count_slices(harness) == 1)
    harness.run_for(10 * MINUTE)
    assert count_slices(harness) == 1
    said = events_about(harness, "ProvisioningRequest" if is_by_hand else "JobSet")
    assert 'resource "provisioningrequests"' in said
    for one in restore:
        one()
    harness.simulation.admin("DELETE", f"{requests.REQUESTS}/train-1")
    until(harness, lambda: count_slices(harness) == 0, 10 * MINUTE)


def test_a_request_whose_workload_cannot_be_read_says_why() -> None:
    harness = RequestHarness(TPU_NODE_GROUP)
    restore = drop_rule(harness, "provision-slice", "workloads")
    harness.queue(jobset())
    harness.run_for(3 * MINUTE)
    assert 'cannot get resource "workloads"' in events_about(harness, "ProvisioningRequest")
    restore()
    harness.until_provisioned()
    harness.end()


def test_a_request_from_a_backup_whose_slices_are_gone_expires_and_creates_none() -> None:
    """Its conditions are those of the backup."""
    harness = RequestHarness(TPU_NODE_GROUP)
    requests.request(harness, {"main": (1, objects.template())})
    words = {"reason": "Restored", "message": "", "lastTransitionTime": "2025-01-01T00:00:00Z"}
    listed = [{"type": one, "status": "True", **words} for one in ("Accepted", "Provisioned")]
    path = f"{requests.REQUESTS}/train-1/status"
    harness.simulation.admin("PATCH", path, {"status": {"conditions": listed}}, **MERGE)
    until(harness, lambda: "BookingExpired" in requests.conditions(harness))
    assert harness.created == 0


def test_the_requests_of_other_workloads_are_not_read_for_a_suspended_one() -> None:
    """Those of workloads that have finished stay."""
    harness = RequestHarness(TPU_NODE_GROUP)
    read: list[str] = []
    harness.hooks.after = lambda step, call: read.append(call) if "release" in step else None
    harness.queue(jobset())
    harness.until_provisioned()
    other = requests.post(harness, PATHS["Job"], objects.job(suspend=True))
    workload = requests.queue(harness, other)
    requests.end_workload(harness, workload, "Finished")
    requests.request(harness, requests.pod_sets(other), workload, "old")
    harness.simulation.admin(
        "PATCH",
        f"{requests.REQUESTS}/old/status",
        {"status": {**requests.status(harness), "provisioningClassDetails": {"WorkloadKey": "o"}}},
        **MERGE,
    )
    harness.run_for(10 * MINUTE)
    assert count_slices(harness) == 1
    assert requests.is_provisioned(harness, "old")
    workloads = {one.rpartition("/")[2] for one in read if "/workloads" in one}
    assert workloads == {harness.workload["metadata"]["name"]}


def test_requests_of_other_classes_are_left_alone() -> None:
    harness = RequestHarness(TPU_NODE_GROUP)
    manifest = {
        "apiVersion": "autoscaling.x-k8s.io/v1",
        "kind": "ProvisioningRequest",
        "metadata": {"name": "theirs"},
        "spec": {
            "provisioningClassName": "queued-provisioning.gke.io",
            "podSets": [{"count": 1, "podTemplateRef": {"name": "any"}}],
        },
    }
    requests.post(harness, requests.REQUESTS, manifest)
    harness.run_for(5 * MINUTE)
    assert requests.status(harness, "theirs") == {}
    assert all("request" not in line for line in harness.log.lines)


@PROVIDERS
def test_a_request_takes_few_calls(provider: str) -> None:
    """In a namespace with a limit, each invocation in a process that has run before."""
    harness = RequestHarness(provider)
    harness.queue(jobset())
    harness.until_provisioned()
    lines = [one for one in harness.log.lines if "request" in one]
    most = {one["decision"]: one["calls"]["kubernetes"] for one in lines}
    assert most["Creating"] <= 18
    assert all(count <= 10 for name, count in most.items() if name != "Creating"), most
    harness.end()


@PROVIDERS
def test_requests_of_a_workload_that_name_different_classes_have_one_slice_of_the_first(
    provider: str,
) -> None:
    """As with two checks in one queue. Neither replaces the slice of the other."""
    harness = RequestHarness(provider)
    make_class(harness, [CANDIDATES[2]])
    other = harness.simulation.admin("GET", f"{CLASSES}/v6e")
    other["metadata"] = {"name": "other"}
    other["spec"] |= {"candidates": [{"zone": FULL}], "isDefault": False}
    assert harness.simulation.admin("POST", CLASSES, other)["metadata"]["name"] == "other"
    limit_zone(harness, FULL)
    harness.queue(jobset(), None, **{"class": "v6e"})
    harness.run_for(timedelta(seconds=30))
    sets = requests.pod_sets(harness.owner)
    requests.request(harness, sets, harness.workload, "train-2", **{"class": "other"})
    harness.until_provisioned()
    harness.until_provisioned("train-2")
    harness.run_for(8 * MINUTE)
    assert harness.created == count_slices(harness) == 1
    harness.end()


@PROVIDERS
def test_a_request_expires_also_if_its_slices_are_not_allowed_any_more(provider: str) -> None:
    harness = RequestHarness(provider)
    requests.request(harness, {"main": (2, objects.template())})
    harness.until_provisioned()
    path = f"{OPTIONS}/jobsets"
    nothing = f"{NAMESPACE}: {{kinds: [JobSet], slices: 1}}"
    harness.simulation.admin("PATCH", path, {"data": {"namespaces": nothing}}, **MERGE)
    harness.simulation.admin("DELETE", f"{requests.TEMPLATES}/ppt-train-1-main")
    harness.run_for(9 * MINUTE)
    assert count_slices(harness) == 2
    harness.simulation.admin("PATCH", path, {"data": {"namespaces": LISTED}}, **MERGE)
    until(harness, lambda: "BookingExpired" in requests.conditions(harness), 3 * MINUTE)
    until(harness, lambda: count_slices(harness) == 0, 5 * MINUTE)


def test_a_request_creates_no_more_node_pools_than_gke_creates_at_a_time() -> None:
    """Other calls would be rejected, and reserve a part of the limit. Two are made in any case."""
    harness = RequestHarness(GKE, LISTED.replace("slices: 8, chips: 64", "slices: 20"))
    harness.queue(jobset(20))
    harness.until_provisioned()
    lines = [one for one in harness.log.lines if "request" in one]
    assert max(one["calls"]["kubernetes"] for one in lines) <= 60
    assert harness.created <= 20 + 2 * len(lines)
    harness.end()


def test_the_slices_of_a_request_serve_all_indexes_of_a_job() -> None:
    """Four indexes, two at a time. The last two fail when the first have completed, and their Pods come
    back after a while, as in a back-off."""
    manifest = objects.job(2, completions=4, backoffLimit=6)
    harness = RequestHarness(TPU_NODE_GROUP)
    harness.queue(manifest)
    harness.until_provisioned()
    made, has_failed = list_slices(harness), False

    def ends(pod: dict[str, Any]) -> str:
        is_first = pod["metadata"]["annotations"][COMPLETION_INDEX] in ("0", "1")
        return "Succeeded" if is_first or has_failed else "Failed"

    def count(phase: str) -> int:
        pods = harness.simulation.admin("GET", PATHS["Pod"])["items"]
        return sum(one["status"].get("phase") == phase for one in pods)

    harness.jobsets.behaviour = PodBehaviour(run_s=90, ends=ends)
    harness.admit()
    requests.end_workload(harness, harness.workload, "Admitted")
    until(harness, lambda: count("Succeeded") == 2 and running(harness) == 2)
    kept = harness.jobsets.controllers
    harness.jobsets.controllers = kept - {Controller.JOB_CONTROLLER}
    until(harness, lambda: count("Failed") == 2)
    has_failed = True
    harness.run_for(3 * MINUTE)
    assert list_slices(harness) == made
    harness.jobsets.controllers = kept
    until(harness, lambda: list_slices(harness) == [], 10 * MINUTE)
    job = harness.simulation.admin("GET", f"{PATHS['Job']}/train")
    assert job["status"]["succeeded"] == 4


def test_a_slice_that_an_older_request_lacks_is_created_soon_after_its_pods_wait() -> None:
    """One of two Jobs completes and loses its slice; hours later all Jobs are restarted."""
    manifest = jobset(2)
    manifest["spec"]["failurePolicy"] = {"maxRestarts": 3}
    is_over = False

    def ends(pod: dict[str, Any]) -> str:
        if pod["metadata"]["labels"][RESTART_ATTEMPT] != "0":
            return ""
        if pod["metadata"]["name"].startswith("train-workers-0-"):
            return "Succeeded"
        return "Failed" if is_over else ""

    harness = RequestHarness(TPU_NODE_GROUP)
    harness.queue(manifest)
    harness.until_provisioned()
    harness.jobsets.behaviour = PodBehaviour(run_s=60, ends=ends)
    harness.admit()
    requests.end_workload(harness, harness.workload, "Admitted")
    until(harness, lambda: running(harness) == 2 and count_slices(harness) == 1)
    harness.run_for(timedelta(hours=4))
    is_over = True
    harness.run_for(2 * MINUTE)
    until(harness, lambda: running(harness) == 4, 4 * MINUTE)
