"""JobSets whose slices are TPUNodeGroups, from an unschedulable Pod to the deletion of the group."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest

from local import gce
from local.cloud.simulation import Options
from local.jobsets import Controller
from shared.base.timestamps import parse_time
from shared.frame.step import handle
from shared.triggers.message import Cause, Message
from shared.triggers.routes import SLICE_STEPS
from tests.stories import helpers
from tests.stories.helpers import HOUR, MINUTE
from tests.stories.jobset_slices import marks, new_harness, post, selecting, until_running
from tests.stories.jobsets import (
    FAILS_ONCE,
    JOBSETS,
    MERGE,
    NAME,
    OPTIONS,
    PODS,
    RUNS_FOREVER,
    SECOND,
    apply,
    are_running,
    delete,
    phases,
    pods,
    reported_events,
    until,
)
from tests.support import jobset_objects as objects
from tests.support.harness import Harness
from tests.support.jobset_objects import JOBSET, NAMESPACE
from tests.support.manifests import manifest

MAY_RESTART = {"failurePolicy": {"maxRestarts": 1}}


def jobset(harness: Harness) -> dict[str, Any]:
    found: dict[str, Any] = harness.simulation.admin("GET", f"{JOBSETS}/{JOBSET}")
    return found


def until_gone(harness: Harness) -> None:
    until(harness, lambda: harness.group(NAME) is None, 15 * MINUTE)


CREATING = (
    f"Pod TPUNodeGroupCreationStarted: Creating TPUNodeGroup {NAME}, 4 hosts of ct6e-standard-4t "
    "(4x4), for Job train-workers-0 of JobSet train"
)
DELETING = f"JobSet TPUNodeGroupDeletionStarted: Deleting TPUNodeGroup {NAME}: JobSet train"


def test_a_jobset_gets_its_slice_runs_and_leaves_nothing_behind() -> None:
    harness = new_harness()
    post(harness)
    until(harness, lambda: are_running(harness))
    nodes = {node["metadata"]["name"] for node in helpers.nodes(harness).values()}
    assert {pod["spec"]["nodeName"] for pod in pods(harness)} == nodes
    until_gone(harness)
    harness.run_for(10 * MINUTE)
    assert harness.leftovers() == []
    assert reported_events(harness) == [CREATING, f"{DELETING} has ended (Completed)"]


def running_jobset(settings: dict[str, Any] | None = None, **change: Any) -> Harness:
    """A simulation in which a JobSet runs that does not end by itself."""
    harness = new_harness(settings)
    harness.jobsets.behaviour = RUNS_FOREVER
    post(harness, **change)
    until_running(harness)
    return harness


def occupy(harness: Harness, job: str, node: str) -> None:
    """Create a Pod of another controller with the name of a Job on a Node."""
    metadata = {
        "name": "guest",
        "labels": {"batch.kubernetes.io/job-name": job},
        "ownerReferences": None,
    }
    guest = objects.pod(metadata=metadata, spec={"nodeName": node})
    harness.simulation.admin("POST", PODS, guest)


def evict(harness: Harness) -> None:
    harness.simulation.admin("DELETE", f"{PODS}/guest", {"gracePeriodSeconds": 0})


def uid(harness: Harness) -> str:
    group = harness.group(NAME, NAMESPACE)
    assert group is not None
    return str(group["metadata"]["uid"])


def until_reported(harness: Harness, words: str) -> None:
    until(harness, lambda: any(words in line for line in reported_events(harness)))


SPOT = selecting(**{"cloud.google.com/gke-spot": "true"})


def test_a_jobset_whose_job_is_not_indexed_is_told_why_it_gets_no_slice() -> None:
    harness = new_harness()
    jobset = objects.jobset()
    jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["completionMode"] = "NonIndexed"
    apply(harness, jobset)
    harness.run_for(10 * MINUTE)
    assert (pods(harness) != [], harness.leftovers()) == (True, [])
    assert set(reported_events(harness)) == {
        "Pod TPUNodeGroupCreationFailed: Job train-workers-0 is not Indexed: slices are created only "
        "for those with completionMode: Indexed"
    }


def test_the_log_lines_about_a_slice_have_one_trace() -> None:
    harness = new_harness()
    post(harness)
    until_running(harness)
    trace = uid(harness).replace("-", "")
    until_gone(harness)
    steps = {
        line["step"]
        for line in harness.log.lines
        if line.get("logging.googleapis.com/trace", "").endswith(trace)
    }
    assert steps >= {"provision_slice", "create_resources", "tear_down", "release_slice"}


def test_a_restart_keeps_the_slice() -> None:
    harness = new_harness()
    harness.jobsets.behaviour = FAILS_ONCE
    post(harness, spec=MAY_RESTART)
    until_running(harness)
    before = uid(harness)
    until(harness, lambda: jobset(harness).get("status", {}).get("restarts") == 1)
    harness.run_for(5 * MINUTE)
    assert are_running(harness)
    assert uid(harness) == before
    assert harness.operations["instanceGroupManagers.insert"] == 1


@pytest.mark.conformance("delete-jobset-recreated-same-name")
def test_a_jobset_that_is_recreated_immediately_keeps_its_slice() -> None:
    harness = running_jobset()
    before = uid(harness)
    delete(harness)
    harness.run_for(20 * SECOND)
    assert "tpu-functions.dev/release-after" in marks(harness)
    post(harness)
    harness.run_for(10 * MINUTE)
    assert are_running(harness)
    assert uid(harness) == before
    assert "tpu-functions.dev/release-after" not in marks(harness)


def test_a_jobset_that_is_deleted_leaves_nothing_behind() -> None:
    harness = running_jobset()
    delete(harness)
    until_gone(harness)
    harness.run_for(10 * MINUTE)
    assert harness.leftovers() == []
    assert reported_events(harness) == [CREATING, f"{DELETING} no longer exists"]


def pause(harness: Harness, value: str | None) -> None:
    harness.simulation.admin("PATCH", f"{OPTIONS}/jobsets", {"data": {"paused": value}}, **MERGE)


@pytest.mark.conformance("config-pause-creation")
def test_a_pause_creates_nothing_and_still_deletes_the_slices_of_ended_jobsets() -> None:
    harness = new_harness()
    post(harness)
    until_running(harness)
    pause(harness, "true")
    until_gone(harness)
    delete(harness)
    harness.run_for(2 * MINUTE)
    post(harness)
    harness.run_for(10 * MINUTE)
    assert harness.leftovers() == []
    assert reported_events(harness)[2:] == [
        'Pod SlicePaused: No slice is created: the ConfigMap tpu-functions/jobsets has paused: "true". '
        "Remove this key to continue"
    ]
    pause(harness, None)
    until_running(harness)


@pytest.mark.conformance("state-exists-and-differs", "event-deletion-started")
def test_a_jobset_that_requests_another_slice_gets_it() -> None:
    harness = running_jobset()
    before = uid(harness)
    delete(harness)
    harness.run_for(10 * SECOND)
    post(harness, **SPOT)
    until(harness, lambda: are_running(harness) and uid(harness) != before)
    group = harness.group(NAME, NAMESPACE)
    assert group is not None
    assert group["spec"]["instanceConfig"]["provisioningModel"] == "SPOT"
    assert reported_events(harness)[1].startswith(
        f"Pod TPUNodeGroupDeletionStarted: Deleting TPUNodeGroup {NAME} to create it again: the Pod "
        "asks for"
    )


@pytest.mark.conformance("delete-recreate-deletes-in-use")
@pytest.mark.parametrize("job", ["other", objects.JOB])
def test_a_slice_in_use_is_not_replaced_until_it_is_free(job: str) -> None:
    harness = running_jobset()
    before = uid(harness)
    node = pods(harness)[0]["spec"]["nodeName"]
    delete(harness)
    harness.run_for(10 * SECOND)
    occupy(harness, job, node)
    post(harness, **SPOT)
    until_reported(harness, f"Pods of Job default/{job} run on it")
    harness.run_for(10 * MINUTE)
    assert uid(harness) == before
    evict(harness)
    until(harness, lambda: harness.group(NAME) is None or uid(harness) != before)


@pytest.mark.parametrize("job", ["other", objects.JOB])
def test_a_slice_with_running_pods_is_deleted_when_they_have_ended(job: str) -> None:
    harness = running_jobset()
    node = pods(harness)[0]["spec"]["nodeName"]
    occupy(harness, job, node)
    before = uid(harness)
    delete(harness)
    until_reported(
        harness, f"because Pods of Job default/{job} run on it: it is deleted when they have ended"
    )
    harness.run_for(10 * MINUTE)
    assert uid(harness) == before
    evict(harness)
    until_gone(harness)


def test_a_slice_whose_creation_failed_is_created_again_when_its_template_is_fixed() -> None:
    harness = new_harness()
    harness.jobsets.behaviour = RUNS_FOREVER
    wrong = objects.options(spec={"project": "other-project"})
    harness.simulation.admin("PATCH", f"{OPTIONS}/jobsets", {"data": wrong}, **MERGE)
    post(harness)
    until_reported(harness, "TPUNodeGroupNotReady")
    harness.simulation.admin("PATCH", f"{OPTIONS}/jobsets", {"data": objects.options()}, **MERGE)
    until_running(harness)


def test_a_slice_is_not_replaced_while_its_successor_could_not_be_created() -> None:
    harness = new_harness()
    harness.jobsets.behaviour = RUNS_FOREVER
    options = f"{OPTIONS}/jobsets"
    wrong = objects.options(spec={"project": "other-project"})
    harness.simulation.admin("PATCH", options, {"data": wrong}, **MERGE)
    post(harness)
    until_reported(harness, "TPUNodeGroupNotReady")
    before = uid(harness)
    unreadable = {**objects.options(), "namespaces": "default"}
    harness.simulation.admin("PATCH", options, {"data": unreadable}, **MERGE)
    harness.run_for(10 * MINUTE)
    assert uid(harness) == before
    until_reported(harness, "tpu-functions/jobsets must be a mapping of namespaces")
    harness.simulation.admin("PATCH", options, {"data": {"namespaces": None}}, **MERGE)
    until_running(harness)


def test_foreign_resources_are_not_touched() -> None:
    harness = new_harness()
    theirs = manifest(NAME)
    harness.apply(theirs)
    post(harness)
    until_reported(harness, "that was not created for a workload has this name")
    before = uid(harness)
    delete(harness)
    harness.run_for(10 * MINUTE)
    assert uid(harness) == before


def test_each_job_gets_a_slice_of_its_own() -> None:
    harness = new_harness()
    harness.jobsets.behaviour = RUNS_FOREVER
    one = objects.jobset()["spec"]["replicatedJobs"][0]
    post(harness, spec={"replicatedJobs": [{**one, "replicas": 2}]})
    running = ["Running"] * 8
    until(harness, lambda: phases(harness) == running)
    pools = {
        node["metadata"]["name"]: node["metadata"]["labels"]["cloud.google.com/gke-nodepool"]
        for node in helpers.nodes(harness).values()
    }
    places = {
        (pod["metadata"]["labels"]["batch.kubernetes.io/job-name"], pools[pod["spec"]["nodeName"]])
        for pod in pods(harness)
    }
    assert len(places) == len({job for job, _ in places}) == len(set(pools.values())) == 2


EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
UNFENCED = (
    f"Pod TPUNodeGroupCreationFailed: the JobSet has no annotation {EXCLUSIVE}, and the Pod no "
    "nodeSelector job-key, so that Pods of other Jobs could take hosts of the slice: the JobSet must "
    f"have {EXCLUSIVE}: cloud.google.com/gke-nodepool, or the webhook admit-jobs be installed"
)


@pytest.mark.parametrize(
    "annotations, events",
    [
        ({EXCLUSIVE: None}, [UNFENCED]),
        ({"autoscaling.x-k8s.io/consume-provisioning-request": "another-system"}, []),
    ],
    ids=["without exclusive topology", "for a ProvisioningRequest"],
)
def test_no_slice_is_created_for_a_pod_that(
    annotations: dict[str, str | None], events: list[str]
) -> None:
    harness = new_harness()
    harness.jobsets.controllers -= {Controller.JOB_SELECTOR}
    one = objects.jobset()["spec"]["replicatedJobs"][0]
    given = {key: value for key, value in annotations.items() if value}
    one["template"]["spec"]["template"]["metadata"] = {"annotations": given}
    post(harness, metadata={"annotations": annotations}, spec={"replicatedJobs": [one]})
    harness.run_for(20 * MINUTE)
    assert harness.leftovers() == []
    assert reported_events(harness) == events


def test_a_job_that_a_jobset_no_longer_has_loses_its_slice() -> None:
    harness = new_harness()
    harness.jobsets.behaviour = RUNS_FOREVER
    one = objects.jobset()["spec"]["replicatedJobs"][0]
    post(harness, spec={"replicatedJobs": [{**one, "replicas": 2}]})
    until(harness, lambda: harness.is_ready(NAME) and len(helpers.nodes(harness)) == 8)
    delete(harness)
    harness.run_for(10 * SECOND)
    post(harness)
    until(harness, lambda: len(helpers.nodes(harness)) == 4)
    assert harness.is_ready(NAME)


@pytest.mark.conformance("delete-jobset-suspended")
def test_the_slice_of_a_suspended_jobset_is_released_if_configured() -> None:
    harness = running_jobset({"suspended_release": 10 * MINUTE})
    suspend(harness, is_suspended=True)
    harness.run_for(9 * MINUTE)
    assert harness.is_ready(NAME)
    until_gone(harness)
    suspend(harness, is_suspended=False)
    until_running(harness)


def suspend(harness: Harness, *, is_suspended: bool) -> None:
    change = {"spec": {"suspend": is_suspended}}
    harness.simulation.admin("PATCH", f"{JOBSETS}/{JOBSET}", change, **MERGE)


# Errors


def preempt_one(harness: Harness) -> None:
    harness.simulation.gce.faults.preempt(helpers.vms(harness)[0])


def spot_slice(settings: dict[str, Any] | None = None) -> Harness:
    """A simulation in which a JobSet runs on a Spot slice."""
    return running_jobset(settings, **SPOT)


def test_a_slice_that_has_lost_a_host_is_reported_once() -> None:
    harness = spot_slice({"lost_rebuild": None})
    before = uid(harness)
    preempt_one(harness)
    until_reported(harness, "does not recover by itself")
    harness.run_for(HOUR)
    assert uid(harness) == before
    lost = [line for line in reported_events(harness) if "TPUNodeGroupLost" in line]
    assert len(lost) == 1
    assert lost[0].startswith(
        f"JobSet TPUNodeGroupLost: TPUNodeGroup {NAME} does not recover by itself: Preempted: 1 of 4"
    )


@pytest.mark.parametrize("settings", [{}, {"lost_rebuild": 10 * MINUTE}], ids=["default", "later"])
def test_a_slice_that_has_lost_a_spot_host_is_created_again(settings: dict[str, Any]) -> None:
    harness = spot_slice(settings)
    before = uid(harness)
    preempt_one(harness)
    harness.run_for(4 * MINUTE)
    found = harness.group(NAME)
    kept = found is not None and found["metadata"]["uid"] == before
    assert kept is bool(settings)
    until_reported(harness, "TPUNodeGroupDeletionStarted")
    until(harness, lambda: harness.group(NAME) is not None and uid(harness) != before)
    until_running(harness)
    (line,) = [one for one in reported_events(harness) if "DeletionStarted" in one]
    assert line.endswith(
        "Compute Engine does not restart Spot VMs of a slice. tpu-functions creates it again for JobSet "
        f"{JOBSET}, as long as its Pods need it. The setting jobset_lost_rebuild_minutes can delay "
        "this; with 0 the slice stays."
    )


@pytest.mark.parametrize("restart_minutes", [1, 25, 45])
def test_a_slice_that_compute_engine_restarts_is_replaced_only_after_half_an_hour(
    restart_minutes: int,
) -> None:
    seconds = restart_minutes * 60.0
    timings = gce.Timings(automatic_restart_after_s=(seconds, seconds))
    harness = new_harness(options=replace(helpers.with_heartbeats(), gce=timings))
    harness.jobsets.behaviour = RUNS_FOREVER
    post(harness)
    until_running(harness)
    before = uid(harness)
    harness.simulation.gce.faults.host_error(helpers.vms(harness)[0])
    harness.run_for(29 * MINUTE)
    assert uid(harness) == before
    if restart_minutes > 30:
        until(harness, lambda: harness.group(NAME) is not None and uid(harness) != before)
    else:
        harness.run_for(HOUR)
        assert uid(harness) == before
    until_running(harness)
    assert harness.is_ready(NAME)
    assert harness.operations["instanceGroupManagers.insert"] == 1 + (restart_minutes > 30)


@pytest.mark.conformance("state-error-and-matches")
def test_a_slice_without_any_host_is_created_again_for_waiting_pods() -> None:
    harness = new_harness(options=helpers.with_heartbeats())
    harness.jobsets.behaviour = RUNS_FOREVER
    post(harness, **SPOT)
    until_running(harness)
    before = uid(harness)
    for vm in helpers.vms(harness):
        harness.simulation.gce.faults.preempt(vm)
    until(harness, lambda: harness.group(NAME) is not None and uid(harness) != before)
    until_running(harness)


def grant(harness: Harness, step: str, *verbs: str) -> None:
    """Set the verbs that a step may use on TPUNodeGroups."""
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    rule = {"apiGroups": ["tpu.google.com"], "resources": ["tpunodegroups"], "verbs": list(verbs)}
    change = {"rules": [rule]}
    name = f"tpu-functions-{step}-node-groups"
    answer = harness.simulation.admin("PATCH", f"{path}/{name}", change, **MERGE)
    assert answer["kind"] == "ClusterRole", answer


@pytest.mark.conformance("state-get-500")
def test_a_slice_that_cannot_be_listed_is_not_created() -> None:
    harness = new_harness()
    grant(harness, "provision-slice", "create")
    post(harness)
    harness.run_for(10 * MINUTE)
    assert harness.leftovers() == []
    grant(harness, "provision-slice", "get", "create")
    until_running(harness)


def serve_jobsets(harness: Harness, *, is_served: bool) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/jobsets.jobset.x-k8s.io"
    change = [{"op": "replace", "path": "/spec/versions/0/served", "value": is_served}]
    as_json = {"Content-Type": "application/json-patch+json"}
    answer = harness.simulation.admin("PATCH", path, change, **as_json)
    assert answer["kind"] == "CustomResourceDefinition", answer


def test_jobsets_that_are_not_served_are_not_mistaken_for_deleted() -> None:
    """Serve another version of the JobSet API, as another release of JobSet does."""
    harness = running_jobset()
    before = uid(harness)
    serve_jobsets(harness, is_served=False)
    for _ in range(3):
        gone = Message(NAMESPACE, JOBSET, "", Cause.GONE, harness.clock.now(), kind="JobSet")
        harness.simulation.publish("release_slice", gone.encode(), {})
        harness.run_for(MINUTE)
    assert uid(harness) == before
    assert "tpu-functions.dev/release-after" not in marks(harness)
    notes = {line.get("note", "") for line in harness.log.lines if line["step"] == "release_slice"}
    assert (
        "GET /apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets/train: 503 NotServed: the "
        "cluster does not serve this API, or another server answers in its place: 404 page not found. "
        "If it is the cluster, a release of JobSet that serves jobset.x-k8s.io/v1alpha2 must be "
        "installed"
    ) in notes


@pytest.mark.conformance("state-create-request-refused", "event-creation-failed-request")
def test_a_refused_creation_of_a_slice_is_reported_and_retried() -> None:
    harness = new_harness()
    grant(harness, "provision-slice", "get")
    post(harness)
    until_reported(harness, "Pod TPUNodeGroupCreationFailed: ")
    (failure,) = reported_events(harness)
    assert "cannot create resource" in failure
    grant(harness, "provision-slice", "get", "create")
    until_running(harness)


@pytest.mark.conformance("delete-call-fails", "event-deletion-failed")
def test_a_refused_deletion_of_a_slice_is_reported_and_retried() -> None:
    harness = new_harness()
    post(harness)
    until_running(harness)
    grant(harness, "release-slice", "get", "list", "patch")
    until_reported(harness, "JobSet TPUNodeGroupDeletionFailed: ")
    assert harness.group(NAME) is not None
    grant(harness, "release-slice", "get", "list", "patch", "delete")
    until_gone(harness)


def test_a_slice_whose_pods_cannot_be_listed_is_kept_and_the_error_reported() -> None:
    harness = new_harness()
    post(harness)
    until_running(harness)
    list_of(harness, ["nodes"])
    until_reported(harness, "JobSet TPUNodeGroupDeletionFailed: GET /api/v1/pods: 403 Forbidden")
    assert harness.group(NAME) is not None
    list_of(harness, ["nodes", "pods"])
    until_gone(harness)


def list_of(harness: Harness, resources: list[str]) -> None:
    """Set the resources of the core API that release_slice may list."""
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/tpu-functions-release-slice"
    rules = harness.simulation.admin("GET", path)["rules"]
    (mine,) = [rule for rule in rules if "nodes" in rule["resources"]]
    mine["resources"] = resources
    harness.simulation.admin("PATCH", path, {"rules": rules}, **MERGE)


@pytest.mark.conformance("gc-interval")
def test_the_sweep_without_events_is_enough() -> None:
    harness = new_harness(options=Options(relays=False))
    # Each VM joins after the next sweep, so the first Pods must still run when the last ones start.
    harness.jobsets.behaviour = replace(harness.jobsets.behaviour, run_s=180.0)
    post(harness)
    until_running(harness)
    until_gone(harness)
    harness.run_for(10 * MINUTE)
    assert harness.leftovers() == []


def test_an_invalid_release_deadline_delays_nothing() -> None:
    """The sweep reads the deadlines of all slices. A deadline that it cannot parse must not block
    others."""
    harness = new_harness(options=Options(relays=False))
    harness.jobsets.behaviour = RUNS_FOREVER
    post(harness)
    until_running(harness)
    wrong = {"tpu-functions.dev/release-after": "0001-01-01T00:00:00+14:00"}
    harness.simulation.admin(
        "PATCH", f"{GROUPS}/{NAME}", {"metadata": {"annotations": wrong}}, **MERGE
    )
    delete(harness)
    until_gone(harness)


def test_the_lifecycle_of_a_jobset_slice_takes_few_calls(print_figure: helpers.PrintFigure) -> None:
    harness = new_harness()
    post(harness)
    until_running(harness)
    until_gone(harness)
    harness.run_for(10 * MINUTE)
    lines = [line for line in harness.log.lines if line["step"].endswith("_slice")]
    calls = {
        step: sum(
            line["calls"]["kubernetes"]
            for line in lines
            if line["step"] == step and line["trigger"] != "Sweep"
        )
        for step in ("provision_slice", "release_slice")
    }
    for step, count in calls.items():
        print_figure(f"calls, JobSet slice {step:<16} Kubernetes {count:>5}")
    # Once in a process, whose cluster it is, is read.
    assert calls["provision_slice"] <= 13
    lists_of_nodes_and_pods = 1 + 4
    assert calls["release_slice"] <= 8 + lists_of_nodes_and_pods


GROUPS = f"/apis/tpu.google.com/v1alpha1/namespaces/{NAMESPACE}/tpunodegroups"


@pytest.mark.conformance("state-duplicate-name-in-flight", "gc-on-every-replica")
def test_two_concurrent_invocations_create_one_slice() -> None:
    harness = new_harness()
    harness.jobsets.behaviour = RUNS_FOREVER
    messages: list[bytes] = []

    def run_concurrently() -> None:
        run = import_module("functions.provision_slice").STEP.run
        handle(
            "provision_slice",
            run,
            helpers.envelope(messages[0]),
            harness.runtime("provision_slice"),
        )

    helpers.just_before(harness, "provision_slice", "POST", GROUPS, run_concurrently)
    harness.simulation.options = replace(harness.simulation.options, relays=False)
    post(harness)
    harness.run_for(5 * SECOND)
    (pod,) = pods(harness)
    metadata, now = pod["metadata"], harness.clock.now()
    message = Message(
        NAMESPACE, metadata["name"], metadata["uid"], Cause.UNSCHEDULABLE, now, kind="Pod"
    )
    messages.append(message.encode())
    harness.simulation.publish("provision_slice", message.encode(), {})
    until_running(harness)
    assert harness.operations["instanceGroupManagers.insert"] == 1
    lines = [line for line in harness.log.lines if line["step"] == "provision_slice"]
    assert [line["decision"] for line in lines if line["trigger"] == "Unschedulable"] == [
        "Creating",
        "Provisioning",
    ]


@pytest.mark.conformance("delete-not-found", "event-not-found")
def test_a_slice_that_is_gone_before_its_deletion_is_reported() -> None:
    harness = new_harness()
    post(harness)
    until_running(harness)

    def delete_group() -> None:
        harness.simulation.admin("DELETE", f"{GROUPS}/{NAME}")
        harness.simulation.admin("PATCH", f"{GROUPS}/{NAME}", NO_FINALIZERS, **MERGE)

    helpers.just_before(harness, "release_slice", "DELETE", GROUPS, delete_group)
    until_reported(harness, "TPUNodeGroupNotFound")
    assert reported_events(harness)[1:] == [
        f"JobSet TPUNodeGroupNotFound: TPUNodeGroup {NAME} was gone before it could be deleted",
    ]


NO_FINALIZERS = {"metadata": {"finalizers": None}}


def test_a_slice_that_is_needed_again_during_its_release_is_not_deleted() -> None:
    harness = running_jobset()
    before = uid(harness)

    def recreate_jobset() -> None:
        post(harness)
        change = {"metadata": {"annotations": {"tpu-functions.dev/release-after": None}}}
        harness.simulation.admin("PATCH", f"{GROUPS}/{NAME}", change, **MERGE)

    helpers.just_before(harness, "release_slice", "DELETE", GROUPS, recreate_jobset)
    delete(harness)
    harness.run_for(10 * MINUTE)
    assert uid(harness) == before
    assert are_running(harness)


@pytest.mark.conformance("filter-not-rechecked-in-reconcile")
def test_a_pod_that_no_longer_needs_a_slice_gets_none() -> None:
    harness = new_harness()
    pause(harness, "true")
    post(harness)
    until_reported(harness, "SlicePaused")
    (pod,) = pods(harness)
    opt_out = {"tpu-provisioner.cloud.google.com/disable-autoprovisioning": "True"}
    change = {"metadata": {"annotations": opt_out}}
    harness.simulation.admin("PATCH", f"{PODS}/{pod['metadata']['name']}", change, **MERGE)
    pause(harness, None)
    harness.run_for(HOUR)
    assert harness.leftovers() == []


def test_a_pod_without_a_jobset_gets_no_slice() -> None:
    harness = new_harness()
    forged = objects.pod(metadata={"ownerReferences": [OWNER]})
    harness.simulation.admin("POST", PODS, forged)
    harness.run_for(HOUR)
    assert len(pods(harness)) == 1
    assert harness.leftovers() == []
    decisions = {line["decision"] for line in harness.log.lines if "pod" in line}
    assert decisions == {"OwnerGone"}
    (event,) = reported_events(harness)
    assert event.startswith(
        "Pod TPUNodeGroupCreationFailed: JobSet train does not exist or is being"
    )


def test_a_pod_with_the_key_of_another_namespaces_job_gets_no_slice() -> None:
    """Pods of the other Job would run on the Nodes of such a slice, and be evicted when it is
    deleted."""
    harness = new_harness()
    other = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}}
    harness.simulation.admin("POST", "/api/v1/namespaces", other)
    theirs = objects.jobset(metadata={"namespace": "other"}, spec={"suspend": True})
    harness.simulation.admin("POST", JOBSETS.replace(NAMESPACE, "other"), theirs)
    forged = objects.pod(metadata={"namespace": "other", "ownerReferences": [OWNER]})
    harness.simulation.admin("POST", PODS.replace(NAMESPACE, "other"), forged)
    harness.run_for(HOUR)
    assert harness.leftovers() == []
    decisions = {line["decision"] for line in harness.log.lines if "pod" in line}
    assert decisions == {"InputRefused"}


OWNER = {
    "apiVersion": "example.com/v1",
    "kind": "Other",
    "name": objects.JOB,
    "uid": "1",
    "controller": True,
}


def test_without_a_provider_nothing_is_done() -> None:
    harness = new_harness({"slice_provider": ""})
    post(harness)
    harness.run_for(10 * MINUTE)
    assert harness.leftovers() == []
    lines = [line for line in harness.log.lines if line["step"] in SLICE_STEPS]
    assert {line["decision"] for line in lines} == {"SwitchedOff"}
    assert {line["trigger"] for line in lines} == {"Unschedulable"}


def test_a_slice_whose_node_was_deleted_is_created_again_for_the_waiting_pod() -> None:
    harness = new_harness()
    harness.jobsets.behaviour = RUNS_FOREVER
    jobset = objects.small_jobset()
    jobset["spec"] |= MAY_RESTART
    apply(harness, jobset)
    until(harness, lambda: phases(harness) == ["Running"])
    before = uid(harness)
    (node,) = helpers.nodes(harness)
    harness.simulation.admin("DELETE", f"/api/v1/nodes/{node}")
    until(harness, lambda: phases(harness) == ["Pending"])
    until(harness, lambda: phases(harness) == ["Running"])
    assert uid(harness) != before


def test_a_pod_that_claims_to_be_the_first_of_a_running_job_does_not_replace_its_slice() -> None:
    harness = running_jobset()
    before, first = uid(harness), pods(harness)[0]
    forged = objects.pod(
        metadata={"name": "forged", "ownerReferences": first["metadata"]["ownerReferences"]},
        spec={"nodeSelector": {**objects.selector(), "rack": "a"}},
    )
    harness.simulation.admin("POST", PODS, forged)
    until_reported(harness, f"Pods of Job default/{objects.JOB} run on it")
    harness.run_for(HOUR)
    assert uid(harness) == before


@pytest.mark.parametrize(
    "topology, hosts, pods", [("2x2", "1 host", 4), ("4x4", "4 hosts", 2), ("4x4", "4 hosts", 5)]
)
def test_a_job_with_more_or_fewer_pods_than_hosts_gets_no_slice_and_is_told(
    topology: str, hosts: str, pods: int
) -> None:
    harness = new_harness()
    harness.simulation.admin("POST", JOBSETS, objects.small_jobset("train", topology, pods))
    harness.run_for(10 * MINUTE)
    assert harness.leftovers() == []
    assert reported_events(harness) == [
        f"Pod TPUNodeGroupCreationFailed: a slice of topology {topology} has {hosts} with 4 chips, and "
        f"Job train-workers-0 of JobSet train has {pods} Pods with TPUs: the numbers must be equal"
    ]


def test_a_slice_that_lost_a_vm_before_it_was_complete_is_created_again_when_it_says() -> None:
    harness = new_harness(options=helpers.with_heartbeats())
    harness.jobsets.behaviour = RUNS_FOREVER
    post(harness)
    until(harness, lambda: len(helpers.vms(harness)) == 4)
    before = uid(harness)
    harness.simulation.gce.faults.act_as_user("DELETE", helpers.vms(harness)[0])
    harness.run_for(10 * MINUTE)
    message = helpers.condition_of(harness, name=NAME)[2]
    promise = re.search(
        r"If the slice is not Ready by (\S+), tpu-functions creates it again for JobSet train, ",
        message,
    )
    assert promise is not None, message
    until(harness, lambda: harness.group(NAME) is not None and uid(harness) != before)
    assert timedelta() < harness.clock.now() - parse_time(promise[1]) < 5 * MINUTE
    until_running(harness)


def test_a_slice_whose_mig_somebody_deletes_says_that_it_is_created_again_and_is() -> None:
    harness = new_harness()
    harness.jobsets.behaviour = RUNS_FOREVER
    post(harness)
    until_running(harness)
    before = uid(harness)
    (mig,) = helpers.of_kind(harness, "instanceGroupManagers")
    harness.simulation.gce.faults.act_as_user("DELETE", mig)
    said = set()

    def is_replaced() -> bool:
        if harness.group(NAME) is None:
            return False
        said.add(helpers.condition_of(harness, name=NAME)[1:])
        return uid(harness) != before

    until(harness, is_replaced)
    lost = [message for reason, message in said if reason == "ResourceLost"]
    assert lost == [
        f"The managed instance group {mig.rpartition('/')[2]} is gone. The slice was complete and its "
        "managed instance group is gone. tpu-functions creates it again for JobSet train, as long as "
        "its Pods need it. The setting jobset_lost_rebuild_minutes can delay this; with 0 the slice "
        "stays."
    ]
    until_running(harness)


def test_the_end_of_a_slices_reservation_is_announced_and_the_next_slice_says_what_is_missing() -> (
    None
):
    harness = new_harness(options=helpers.with_heartbeats())
    harness.jobsets.behaviour = RUNS_FOREVER
    reservation = f"{helpers.ZONE}/reservations/tpus"
    faults = harness.simulation.gce.faults
    faults.set_reservation(reservation, "ct6e-standard-4t", 4, hours=3.0)
    post(harness, **selecting(**{"cloud.google.com/reservation-name": "tpus"}))
    until_running(harness)
    before = uid(harness)
    harness.run_for(3 * HOUR)
    told = [message for _, reason, message in helpers.events(harness) if reason == "RunEnds"]
    end = "2026-01-01T03:00:00Z, in {}: its reservation ends then. Save checkpoints before."
    text = f"Compute Engine ends the first of the VMs at {end}"
    assert told == [text.format("an hour"), text.format("ten minutes")]
    (deletion,) = [one for one in reported_events(harness) if "DeletionStarted" in one]
    assert ": RunEnded: " in deletion
    assert uid(harness) != before
    assert helpers.condition_of(harness, name=NAME)[:2] == ("False", "ReservationNotFound")
    assert harness.operations["instanceGroupManagers.insert"] == 2


def test_a_slice_whose_mig_is_created_again_before_it_was_complete_is_kept() -> None:
    harness = new_harness(options=helpers.with_heartbeats(join_s=(420.0, 421.0)))
    harness.jobsets.behaviour = RUNS_FOREVER
    post(harness, **SPOT)
    until(harness, lambda: len(helpers.vms(harness)) == 4)
    until(harness, lambda: len(helpers.pending(harness, NAME)) == 4)
    harness.run_for(50 * SECOND)  # the MIG is created again before the next run of the sweep
    before = uid(harness)
    (path,) = helpers.of_kind(harness, "instanceGroupManagers")
    harness.simulation.gce.faults.act_as_user("DELETE", path)
    until_running(harness)
    assert uid(harness) == before
    assert harness.operations["instanceGroupManagers.insert"] == 2
