# ruff: noqa: E501  (each row of a table is one line)
"""``kubectl tng explain jobset/NAME``: prints what both steps would do about a JobSet's slices."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from local.base.http import Response
from local.cloud.simulation import PROJECT, Options
from shared.base.reasons import Reason, find_advice
from shared.settings import GKE, TPU_NODE_GROUP
from shared.slices.classes import CLASS_ANNOTATION
from shared.slices.units import Unit
from tests.faults.jobsets import CANDIDATES as CLASS_CANDIDATES
from tests.faults.jobsets import (
    FREE,
    FULL,
    RESERVED,
    SETTINGS,
    make_class,
    post,
    prepare,
    running,
    slices,
)
from tests.stories import request_objects as requests
from tests.stories import workload_objects as objects
from tests.stories.jobsets import NAME, OPTIONS, PODS, apply, are_running, delete, pods, until
from tests.stories.request_objects import RequestHarness, jobset
from tests.support import jobset_objects
from tests.support.builders import merge
from tests.support.class_specs import CLASSES
from tests.support.harness import Harness
from tests.unit.replay.tool import ALONE, Tool

MERGE = {"Content-Type": "application/merge-patch+json"}
ABOUT = ("explain", "jobset/train")
NOUNS = {TPU_NODE_GROUP: "TPUNodeGroup", GKE: "node pool"}
PREFIXES = {TPU_NODE_GROUP: "TPUNodeGroup", GKE: "NodePool"}


def make_tool(provider: str, *, alone: bool) -> Tool:
    harness = (
        Harness(ALONE, slices=SETTINGS[provider]) if alone else Harness(slices=SETTINGS[provider])
    )
    prepare(harness)
    return Tool(harness)


def wait_for_a_slice(tool: Tool) -> None:
    post(tool.harness)
    until(
        tool.harness, lambda: [pod["status"]["phase"] for pod in pods(tool.harness)] == ["Pending"]
    )
    tool.harness.run_for(timedelta(seconds=10))


def rows(tool: Tool) -> list[tuple[Any, ...]]:
    fields = ("step", "about", "triggeredBySweep", "outcome", "note", "actions")
    return [tuple(one[key] for key in fields) for one in tool.json(*ABOUT)["steps"]]


@pytest.mark.parametrize("provider", SETTINGS)
def test_a_waiting_pod_is_explained_with_the_slice_that_would_be_created(provider: str) -> None:
    tool = make_tool(provider, alone=True)
    wait_for_a_slice(tool)
    (pod,) = pods(tool.harness)
    before = len(tool.calls)
    ((step, about, is_triggered, outcome, note, actions),) = rows(tool)
    name = pod["metadata"]["name"]
    assert (step, about, is_triggered, outcome) == ("provision_slice", name, True, "Creating")
    job = "Job train-workers-0 of JobSet train"
    assert note == (
        f"Pod default/{name} waits for the slice {NAME} of {job}. provision_slice would create the "
        f"slice {NAME}"
    )
    assert actions[0] == f"create the slice {NAME}"
    started = f"event {PREFIXES[provider]}CreationStarted: Creating {NOUNS[provider]} {NAME}, "
    assert actions[1].startswith(started)
    assert [call for call in tool.calls[before:] if not call.startswith("GET ")] == []
    assert slices(tool.harness) == []


@pytest.mark.parametrize("provider", SETTINGS)
def test_a_slice_in_use_is_kept_and_released_after_its_jobset_is_deleted(provider: str) -> None:
    tool = make_tool(provider, alone=False)
    post(tool.harness)
    until(tool.harness, lambda: running(tool.harness) == 1)
    assert rows(tool) == [("release_slice", NAME, False, "Needed", "", [])]
    assert tool.json(*ABOUT)["state"] == "has not ended"
    lines = tool.run(*ABOUT).stdout.splitlines()
    hint = f"To see whether the slice is Ready: kubectl tng explain default/{NAME}"
    assert (hint in lines) == (provider == TPU_NODE_GROUP)
    delete(tool.harness)
    ((step, about, is_triggered, outcome, _, actions),) = rows(tool)
    assert (step, about, is_triggered, outcome) == ("release_slice", NAME, True, "DeadlineSet")
    assert actions[0].startswith(f"set the release deadline of {NAME} to 20")
    assert tool.json(*ABOUT)["state"] == "no longer exists"


def test_the_table_has_the_steps_with_their_actions() -> None:
    tool = make_tool(TPU_NODE_GROUP, alone=True)
    wait_for_a_slice(tool)
    (pod,) = pods(tool.harness)
    result = tool.run(*ABOUT)
    lines = result.stdout.splitlines()
    assert lines[1] == ""
    assert lines[0] == (
        "JobSet default/train has not ended: 1 Pod waiting for a slice, 0 slices: Pod "
        f"default/{pod['metadata']['name']} waits for the slice {NAME} of Job train-workers-0 of "
        f"JobSet train. provision_slice would create the slice {NAME}."
    )
    assert lines[2].split() == ["STEP", "BY", "SWEEP", "ABOUT", "OUTCOME"]
    assert lines[3].split() == ["provision_slice", "yes", pod["metadata"]["name"], "Creating"]
    assert lines[4] == f"    - create the slice {NAME}"
    assert lines[5].startswith("    - event TPUNodeGroupCreationStarted: Creating ")


def test_a_jobset_without_waiting_pods_and_slices_is_reported_as_such() -> None:
    tool = make_tool(TPU_NODE_GROUP, alone=True)
    post(tool.harness)
    lines = tool.run(*ABOUT).stdout.splitlines()
    assert lines == [
        "JobSet default/train has not ended: none of its Pods waits for a slice, and it has no slice.",
    ]


def test_a_slice_that_cannot_be_created_is_explained() -> None:
    tool = make_tool(TPU_NODE_GROUP, alone=True)
    wait_for_a_slice(tool)
    (pod,) = pods(tool.harness)
    labels = {"metadata": {"labels": {"jobset.sigs.k8s.io/job-key": "0" * 40}}}
    tool.harness.simulation.admin("PATCH", f"{PODS}/{pod['metadata']['name']}", labels, **MERGE)
    ((_, _, _, outcome, note, actions),) = rows(tool)
    assert outcome == "InputRefused"
    assert note.endswith("slices are created only for this Job")
    assert actions == [f"event TPUNodeGroupCreationFailed: {note}"]
    first = tool.run(*ABOUT).stdout.splitlines()[0]
    assert (
        first == f"JobSet default/train has not ended: 1 Pod waiting for a slice, 0 slices: {note}."
    )


def test_an_error_of_gke_is_reported_with_its_message() -> None:
    tool = make_tool(GKE, alone=True)
    wait_for_a_slice(tool)
    tool.harness.gke.faults.fail_next("*", 10, 403, "forbidden", "Required container.clusters.get")
    result = tool.run(*ABOUT)
    assert result.exit_code == 1
    assert (
        result.stderr
        == "Error: a step could not observe, or does not run; the lines above say why\n"
    )
    assert result.stdout.count("CannotObserve") == 2
    cause = result.stdout.splitlines()[0]
    assert ": 1 Pod waiting for a slice, an unknown number of slices: the call " in cause
    assert cause.endswith(" cluster's project.")
    assert "You need the role roles/container.clusterViewer" in result.stdout
    (pod,) = pods(tool.harness)
    name = pod["metadata"]["name"]
    alone = tool.run("explain", f"pod/{name}")
    assert alone.exit_code == 1
    assert alone.stdout.startswith(f"Pod default/{name} waits for a slice. the call ")


def test_a_missing_jobset_is_reported() -> None:
    tool = make_tool(TPU_NODE_GROUP, alone=True)
    result = tool.run(*ABOUT)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is no JobSet default/train, and no slice of one" in result.stderr


def test_without_the_setting_it_does_not_say_what_jobsets_get(tool: Tool) -> None:
    result = tool.run(*ABOUT)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "JOBSET_PROVIDER is not set here, so it is not known which slices" in result.stderr


POD = ("explain", "pod/alone")
ASKS: dict[str, Any] = {
    "containers": [
        {
            "name": "c",
            "image": "i",
            "resources": {"requests": {"google.com/tpu": "4"}, "limits": {"google.com/tpu": "4"}},
        }
    ],
    "nodeSelector": {"cloud.google.com/gke-tpu-topology": "2x2x1"},
}
OPT_OUT = "tpu-provisioner.cloud.google.com/disable-autoprovisioning"
NO_SLICE: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"nodeName": "n"}, "is on Node n, so that it needs no slice."),
    ({}, {"containers": [{"name": "c", "image": "i"}]}, "requests no google.com/tpu, so that it gets no slice."),
    ({}, {"nodeSelector": {}}, "selects no topology, so that it gets no slice; set the node selector cloud.google.com/gke-tpu-topology."),
    ({"annotations": {OPT_OUT: "true"}}, {}, f"has opted out of slices, by {OPT_OUT} or because a ProvisioningRequest provides its Nodes."),
    ({"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}]}, {}, "gets no slice: Pods of a DaemonSet run on the Nodes that there are."),
]  # fmt: skip


@pytest.mark.parametrize("metadata, spec, why", NO_SLICE, ids=[row[2][:30] for row in NO_SLICE])
def test_a_pod_is_explained_that_gets_no_slice(
    tool: Tool, metadata: dict[str, Any], spec: dict[str, Any], why: str
) -> None:
    """It needs no settings of JobSets: nothing depends on them."""
    metadata = {"name": "alone", "namespace": "default", **metadata}
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**ASKS, **spec}}
    assert "uid" in tool.harness.simulation.admin("POST", PODS, made)["metadata"]
    assert tool.run(*POD).stdout.split() == f"Pod default/alone {why}".split()
    assert tool.json(*POD) == {
        "pod": "default/alone",
        "cause": f"Pod default/alone {why}",
        "steps": [],
    }


def test_a_pod_of_a_jobset_is_explained_with_the_slice_that_would_be_created() -> None:
    tool = make_tool(TPU_NODE_GROUP, alone=True)
    wait_for_a_slice(tool)
    (pod,) = pods(tool.harness)
    name = pod["metadata"]["name"]
    explained = tool.json("explain", f"pod/{name}")
    assert explained["cause"] == (
        f"Pod default/{name} waits for the slice {NAME} of Job train-workers-0 of JobSet train. "
        f"provision_slice would create the slice {NAME}."
    )
    assert [one["outcome"] for one in explained["steps"]] == ["Creating"]
    lines = tool.run("explain", f"pod/{name}").stdout.splitlines()
    assert lines[3].split() == ["provision_slice", "yes", name, "Creating"]
    index = {"metadata": {"annotations": {"batch.kubernetes.io/job-completion-index": "1"}}}
    tool.harness.simulation.admin("PATCH", f"{PODS}/{name}", index, **MERGE)
    assert tool.json("explain", f"pod/{name}")["cause"].endswith(
        "waits for the slice of Job train-workers-0 of JobSet train, for which no Pod asks: the first is missing."
    )


QUIET = Options(sweeps=False, relays=False, sinks=False, workloads=True)
ON = "default: {kinds: [Deployment, ReplicaSet, Job, StatefulSet, LeaderWorkerSet, Pod], slices: 1}"
PLACE = "the key namespaces of the ConfigMap tpu-functions/jobsets"
RELAY = "The relay must have SLICE_WORKLOADS=true, which slice_workloads sets (Terraform)."
UNSCHEDULABLE = {
    "status": {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
    }
}
JOB_KEY = Unit("Job", "default", "train", "").key


JOB_TEMPLATE = merge(
    objects.template("4x4", "Never"), {"spec": {"nodeSelector": {"job-key": JOB_KEY}}}
)


def owned_by(kind: str, name: str, **more: Any) -> dict[str, Any]:
    """A Pod whose controller does not exist, as the scheduler reports it."""
    version = "batch/v1" if kind == "Job" else "apps/v1"
    owner = {"apiVersion": version, "kind": kind, "name": name, "uid": "u", "controller": True}
    return objects.pod(**merge(UNSCHEDULABLE, {"metadata": {"ownerReferences": [owner]}}), **more)


def off(kind: str, entry: str) -> str:
    return f"gets no slice: slices for the kind {kind} are off in namespace default. Add {entry} in {PLACE}. {RELAY}"


KINDS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "no namespace is listed": ("", objects.pod(), "", off("Pod", "default: {kinds: [Pod], slices: 4}, with the limit that it may have,")),
    "another kind is listed": ("default: {kinds: [Pod], slices: 2}", objects.deployment(), "", off("Deployment", "Deployment to the kinds of default")),
    "no kind is its controller's": ("", owned_by("RayCluster", "ray"), "", "gets no slice: no slices are created for Pods of RayCluster ray."),
    "the entry is wrong": ("default: 3", objects.deployment(), "InputRefused", f"gets no slice: {PLACE} must give default kinds, slices and, if they are limited, chips, as in {{kinds: [JobSet], slices: 4, chips: 64}}."),
    "the key is no mapping": ("4", objects.pod(), "InputRefused", f"gets no slice: {PLACE} must be a mapping of namespaces."),
    "the claim is refused": (ON, objects.job(completionMode="NonIndexed"), "InputRefused", "gets no slice: Job train is not Indexed: slices are created only for those with completionMode: Indexed."),
    "the owner is refused": (ON, objects.job(3, "4x4", template=JOB_TEMPLATE), "InputRefused", "gets no slice: a slice of topology 4x4 has 4 hosts with 4 chips, and Job train has 3 Pods with TPUs: the numbers must be equal."),
    "hosts could be taken": (ON, objects.job(4, "4x4"), "InputRefused", f"gets no slice: the Pod has no nodeSelector job-key, so that Pods of other owners could take hosts of the slice: the Pods of Job train must select job-key: {JOB_KEY}, as the webhook tie-pods adds to new Pods in namespaces with the label tpu-functions.dev/tie: enabled."),
    "the owner has opted out": (ON, objects.deployment(metadata={"annotations": {OPT_OUT: "true"}}), "OptedOut", "gets no slice: Deployment serve has opted out."),
    "the owner is gone": (ON, owned_by("ReplicaSet", "gone"), "OwnerGone", "gets no slice: ReplicaSet gone is gone or being deleted."),
    "a follower": (ON, objects.job(4, "4x4"), "", "waits for the slice of Job train, for which Pod FIRST asks: explain that one."),
    "a Deployment": (ON, objects.deployment(), "Creating", "waits for the slice serve-7c86198fe309499e of Pod 0 of Deployment serve. provision_slice would create the slice serve-7c86198fe309499e."),
    "a group": (ON, objects.leader_worker_set(), "Creating", "waits for the slice serve-4b0601454a676bf9 of group 0 of LeaderWorkerSet serve. provision_slice would create the slice serve-4b0601454a676bf9."),
    "a gang": (ON, objects.pod(spec={"schedulingGroup": {"podGroupName": "g"}}), "Creating", "is held by the scheduler until its gang is complete, and waits for the slice one-debecce4ba993b97 of Pod one. provision_slice would create the slice one-debecce4ba993b97."),
    "a new gang": (ON, objects.pod(spec={"schedulingGroup": {"podGroupName": "g"}}), "", "is of a gang that the scheduler has not tried: after a minute it waits for a slice."),
    "a queue": (ON, objects.pod(spec={"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}), "", "does not wait for a slice yet: it has scheduling gates (kueue.x-k8s.io/admission)."),
}  # fmt: skip


def explain_one(
    options: Options, namespaces: str, manifest: dict[str, Any], *, last: bool = False
) -> tuple[Tool, str, str]:
    """The tool, the name of the first or last Pod, and that of the first."""
    harness = Harness(options, slices=SETTINGS[TPU_NODE_GROUP])
    listed = {"namespaces": namespaces} if namespaces else {}
    harness.simulation.admin("POST", OPTIONS, jobset_objects.config_map(**listed))
    harness.simulation.admin("POST", objects.PATHS[manifest["kind"]], manifest)
    if manifest["kind"] != "Pod":
        harness.run_for(timedelta(seconds=20))
    elif {"schedulingGroup", "schedulingGates"}.isdisjoint(manifest["spec"]):
        harness.simulation.admin("PATCH", f"{PODS}/one/status", UNSCHEDULABLE, **MERGE)
    elif "schedulingGroup" in manifest["spec"]:
        # A field of an alpha API that the simulated API server drops.
        pod = merge(harness.simulation.admin("GET", f"{PODS}/one"), manifest)
        harness.hooks.instead = lambda _, call: (
            Response.of_json(pod) if call == f"GET {PODS}/one" else None
        )
    names = sorted(pod["metadata"]["name"] for pod in pods(harness))
    return Tool(harness), names[-last], names[0]


@pytest.mark.parametrize("case", KINDS)
def test_a_pod_of_any_kind_is_explained(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    namespaces, manifest, outcome, why = KINDS[case]
    tool, name, first = explain_one(QUIET, namespaces, manifest, last=case == "a follower")
    monkeypatch.setenv("COLUMNS", "80")
    why = why.replace("FIRST", first)
    if case == "a gang":
        tool.harness.run_for(timedelta(minutes=1))
    before = len(tool.calls)
    explained = tool.json("explain", f"pod/{name}")
    assert (explained["cause"], [one["outcome"] for one in explained["steps"]]) == (
        f"Pod default/{name} {why}",
        [outcome] if outcome else [],
    )
    assert [call for call in tool.calls[before:] if not call.startswith("GET ")] == []
    lines = tool.run("explain", f"pod/{name}").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(lines).startswith(explained["cause"])


def test_a_pod_without_its_volume_claim_is_explained() -> None:
    tool, name, _ = explain_one(QUIET, ON, objects.pod())
    message = '0/4 nodes are available: persistentvolumeclaim "data" not found.'
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    change = {"status": {"conditions": [{**scheduled, "message": message}]}}
    tool.harness.simulation.admin("PATCH", f"{PODS}/{name}/status", change, **MERGE)
    explained = tool.json("explain", f"pod/{name}")
    assert explained["cause"] == (
        "Pod default/one gets no slice before its volume claims are there; the scheduler says: "
        f"{message}"
    )


OWNERS: dict[str, tuple[dict[str, Any], str, Unit]] = {
    "jobset/train": (jobset_objects.small_jobset(), "JobSet default/train has not ended", Unit("JobSet", "default", "train", "train-workers-0")),
    "job.batch/train": (objects.job(), "Job default/train has not ended", Unit("Job", "default", "train", "0")),
    "deployment.apps/serve": (objects.deployment(), "Deployment default/serve exists", Unit("Deployment", "default", "serve", "0")),
    "rs/serve": (objects.replica_set(), "ReplicaSet default/serve exists", Unit("ReplicaSet", "default", "serve", "0")),
    "sts/serve": (objects.stateful_set(), "StatefulSet default/serve exists", Unit("StatefulSet", "default", "serve", "0")),
    "lws/serve": (objects.leader_worker_set(), "LeaderWorkerSet default/serve exists", Unit("LeaderWorkerSet", "default", "serve", "0")),
}  # fmt: skip


@pytest.mark.parametrize("word", OWNERS)
def test_the_slices_of_a_workload_of_any_kind_are_explained(word: str) -> None:
    manifest, state, unit = OWNERS[word]
    slice_name = unit.slice_name
    tool, _, pod = explain_one(QUIET, ON, manifest)
    asked = tool.json("explain", word)
    counted = f"{state}: 1 Pod waiting for a slice, 0 slices"
    assert asked["cause"].startswith(
        f"{counted}: Pod default/{pod} waits for the slice {slice_name} "
    )
    assert [(one["about"], one["outcome"]) for one in asked["steps"]] == [(pod, "Creating")]
    assert f"create the slice {slice_name}" in asked["steps"][0]["actions"]
    assert tool.run("explain", word).stdout.count("waits for the slice") == 1
    [waiting] = tool.json("get")["waiting"]
    is_numbered = unit.kind not in ("Deployment", "ReplicaSet")
    shown = unit.shown if is_numbered else replace(unit, member="").shown
    assert (waiting["pod"], waiting["workload"]) == (pod, shown)

    tool, _, _ = explain_one(Options(workloads=True), ON, manifest)
    tool.harness.run_for(timedelta(minutes=1))
    kept = tool.json("explain", word)
    assert kept["cause"].startswith(f"{state}: ")
    assert re.search(r", 1 slice(\.$|: )", kept["cause"])
    last = kept["steps"][-1]
    assert (last["step"], last["about"], last["outcome"]) == ("release_slice", slice_name, "Needed")
    assert kept["groups"] == [f"default/{slice_name}"]


def test_the_pods_of_a_workload_say_that_its_kind_is_off() -> None:
    tool, name, _ = explain_one(QUIET, "", objects.deployment())
    _, _, _, why = KINDS["no namespace is listed"]
    why = f"Pod default/{name} {why.replace('kind Pod', 'kind Deployment').replace('[Pod]', '[Deployment]')}"
    asked = tool.json("explain", "deployment/serve")
    counted = "Deployment default/serve exists: 1 Pod waiting for a slice, 0 slices"
    assert asked["cause"] == f"{counted}: {why}"
    assert [one["outcome"] for one in asked["steps"]] == ["KindOff"]
    head, *_, row = tool.run("explain", "deployment/serve").stdout.splitlines()
    assert (head, row.split()) == (asked["cause"], ["provision_slice", "no", name, "KindOff"])


def test_what_a_workload_controls_is_explained_as_the_workload() -> None:
    tool, _, _ = explain_one(QUIET, ON, objects.deployment())
    [made] = tool.dependencies().open_cluster().list_owners("ReplicaSet", "default")
    words = tool.json("explain", f"rs/{made['metadata']['name']}")["cause"]
    assert words.startswith("Deployment default/serve exists: ")


@pytest.mark.parametrize("word", OWNERS)
def test_a_workload_that_does_not_exist_is_reported(word: str) -> None:
    kind = OWNERS[word][1].split()[0]
    result = make_tool(TPU_NODE_GROUP, alone=True).run("explain", word.replace("serve", "x"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"there is no {kind} default/" in result.stderr


def test_a_kind_that_cannot_be_explained_is_answered_with_those_that_can() -> None:
    tool = make_tool(TPU_NODE_GROUP, alone=True)
    result = tool.run("explain", "cronjob/train")
    assert result.stderr == (
        "Error: there is no TPUNodeGroup cronjob/train; `kubectl tng get -A` lists them. If cronjob is a "
        "kind: those that can be named are tpunodegroup, jobset, pod, job, deployment, statefulset, "
        "replicaset, leaderworkerset, provisioningrequest\n"
    )
    assert "is a kind" not in tool.run("explain", "train", "-n", "cronjob").stderr


def test_a_pod_whose_leader_runs_is_explained_itself() -> None:
    tool, name, first = explain_one(
        QUIET, ON, objects.job(4, "4x4", template=JOB_TEMPLATE), last=True
    )
    admin = tool.harness.simulation.admin
    admin("PATCH", f"{PODS}/{first}/status", {"status": {"phase": "Running"}}, **MERGE)
    explained = tool.json("explain", f"pod/{name}")
    slice_name = Unit("Job", "default", "train", "").slice_name
    why = f"waits for the slice {slice_name} of Job train. TPUNodeGroup {slice_name} does not exist, and is"
    assert explained["cause"].startswith(f"Pod default/{name} {why} created when the first Pod of ")
    assert [one["outcome"] for one in explained["steps"]] == ["NotWaiting"]


def test_the_limit_of_a_namespace_is_explained_with_the_slice_that_waits_for_it() -> None:
    tool, one, other = explain_one(Options(workloads=True), ON, objects.deployment(2), last=True)
    found = {
        tool.json("explain", f"pod/{name}")["cause"].partition(" waits for the slice ")[2]
        for name in (one, other)
    }
    workload = tool.json("explain", "deploy/serve")["cause"]
    assert "Namespace default may have 1 slice" in workload, "the other Pod needs nothing"
    printed = tool.run("explain", "deploy/serve").stdout
    assert printed.count("Namespace default may have 1 slice") == 1, "it is said once"
    units = [("serve-7c86198fe309499e", 0), ("serve-2b574d7699ac3ae2", 1)]
    assert found in [
        {
            f"{first} of Pod {number} of Deployment serve. It is being created or changed.",
            f"{second} of Pod {1 - number} of Deployment serve. Namespace default may have 1 slice "
            f"({PLACE}) and has 1 slice with 4 chips: the Pod gets its slice, TPUNodeGroup "
            f"{second} (1 host of ct6e-standard-4t (2x2)), when others are released.",
        }
        for (first, number), (second, _) in (units, units[::-1])
    ]


SPOT = {"zone": FREE, "provisioningModel": "SPOT"}
HERE = [
    f"{PROJECT}:{key}"
    for key in (f"{FULL}/STANDARD", f"{RESERVED}/RESERVATION_BOUND/small", f"{FREE}/SPOT")
]
FIELDS = {
    "machineType": "ct6e-standard-4t",
    "topology": "2x2",
    "reason": "QuotaExceeded",
    "since": "2026-01-01T00:00:00Z",
}
WORDS = "since 00:00 UTC (QuotaExceeded): no quota. The next try is at 00:05 UTC"
MISSING = "the Pod selects cloud.google.com/gke-spot"
ON_SPOT = {"nodeSelector": {"cloud.google.com/gke-spot": "true"}}
DEFAULT = "the newest default that serves the Pod"


def refused(number: int, until: str = "00:05:00", **more: str) -> dict[str, str]:
    """What the status of the class remembers of a candidate."""
    words = f"projects/p/zones/z/instanceGroupManagers/tng-x: no quota. {find_advice(Reason.QUOTA_EXCEEDED)}"
    return {
        "candidate": HERE[number],
        **FIELDS,
        "message": words,
        "until": f"2026-01-01T{until}Z",
        **more,
    }


States = list[tuple[str, str]]
CLASSES_OF: dict[str, tuple[dict[str, Any], dict[str, Any], str, str, States]] = {
    "none has refused": ({}, {}, DEFAULT, "Creating", [("next", ""), ("open", ""), ("open", "")]),
    "its slices have waited": ({"waits": {"median": "4m", "p90": "9m"}}, {}, f"{DEFAULT}; the last slices of this class waited 4m (median), 9m (90th percentile)", "Creating", [("next", ""), ("open", ""), ("open", "")]),
    "it is named": ({}, {"metadata": {"annotations": {CLASS_ANNOTATION: "v6e"}}}, f"named by the Pod's annotation {CLASS_ANNOTATION}", "Creating", [("next", ""), ("open", ""), ("open", "")]),
    "the first has refused": ({"refusals": [refused(0)]}, {}, DEFAULT, "Creating", [("refused", WORDS), ("next", ""), ("open", "")]),
    "its refusal has ended": ({"refusals": [refused(0, "00:00:01")]}, {}, DEFAULT, "Creating", [("next", ""), ("open", ""), ("open", "")]),
    "it has refused until another day": ({"refusals": [refused(0) | {"since": "2025-12-31T23:59:00Z", "until": "2026-01-02T00:05:00Z"}]}, {}, DEFAULT, "Creating", [("refused", "since 12-31 23:59 UTC (QuotaExceeded): no quota. The next try is at 01-02 00:05 UTC"), ("next", ""), ("open", "")]),
    "another shape was refused": ({"refusals": [refused(0, topology="4x4")]}, {}, DEFAULT, "Creating", [("next", ""), ("open", ""), ("open", "")]),
    "another slice asks": ({"refusals": [refused(0, askedBy="team/a")]}, {}, DEFAULT, "Creating", [("claimed", "by team/a; others may ask it at 00:05 UTC"), ("next", ""), ("open", "")]),
    "all have refused": ({"refusals": [refused(number) for number in range(3)]}, {}, DEFAULT, "Exhausted", [("refused", WORDS)] * 3),
    "the Pod selects Spot": ({}, {"spec": ON_SPOT}, DEFAULT, "Creating", [("skipped", MISSING), ("skipped", MISSING), ("next", "")]),
}  # fmt: skip


@pytest.mark.parametrize("case", CLASSES_OF)
def test_the_class_of_a_pod_is_explained_with_each_candidate(case: str) -> None:
    status, template, why, outcome, states = CLASSES_OF[case]
    tool = make_tool(TPU_NODE_GROUP, alone=True)
    make_class(tool.harness, [*CLASS_CANDIDATES[:2], SPOT])
    tool.harness.simulation.admin("PATCH", f"{CLASSES}/v6e/status", {"status": status}, **MERGE)
    jobset = jobset_objects.small_jobset()
    (job,) = jobset["spec"]["replicatedJobs"]
    job["template"]["spec"]["template"] = merge(job["template"]["spec"]["template"], template)
    apply(tool.harness, jobset)
    tool.harness.run_for(timedelta(seconds=10))
    (pod,) = pods(tool.harness)
    name = pod["metadata"]["name"]
    explained = tool.json("explain", f"pod/{name}")
    found = explained["class"]
    assert found["summary"] == f"The slice is of TPUSliceClass v6e, {why}."
    assert [tuple(one.values()) for one in found["candidates"]] == [
        (key, *state) for key, state in zip(HERE, states, strict=True)
    ]
    assert [one["outcome"] for one in explained["steps"]] == [outcome]
    lines = tool.run("explain", f"pod/{name}").stdout.splitlines()
    assert lines[1] == found["summary"]
    assert [line.split()[:2] for line in lines[3:5]] == [
        ["CANDIDATE", "STATE"],
        [HERE[0], states[0][0]],
    ]


def test_a_slice_is_followed_from_candidate_to_candidate() -> None:
    """At each time the explanation of the Pod says what the step does next; the timeline has all tries."""
    tool = make_tool(TPU_NODE_GROUP, alone=False)
    make_class(tool.harness, giveUpAfter="6m")
    apply(tool.harness, jobset_objects.jobset())
    tool.harness.run_for(timedelta(seconds=5))
    tries: list[list[str]] = []

    def follow() -> bool:
        """Note the states of the candidates when they have changed."""
        name = min(pod["metadata"]["name"] for pod in pods(tool.harness))
        explained = tool.json("explain", f"pod/{name}")
        if "class" in explained:
            states = [one["state"] for one in explained["class"]["candidates"]]
            is_due = explained["steps"][0]["outcome"] == "NextCandidate"
            assert is_due == ({"next", "asked now"} <= {*states})
            for arguments in (("explain", f"default/{NAME}"), ("get",)):
                assert "create a new" not in tool.run(*arguments).stdout
            if is_due:
                refusal = re.escape(f"{HERE[states.index('asked now')]} has no slice of 2 hosts")
                assert re.search(
                    rf"JobSet train\. {refusal}.* is tried next\.$", explained["cause"]
                )
                printed = tool.run("explain", f"pod/{name}").stdout
                assert len(re.findall(refusal, printed)) == 1, "it is said once"
            tries.extend([states] if [states] != tries[-1:] else [])
        return are_running(tool.harness)

    until(tool.harness, follow)
    asked = [states.index("asked now") for states in tries if "asked now" in states]
    assert ({*asked}, asked) == ({0, 1, 2}, sorted(asked))
    assert ["refused", "refused", "asked now"] in tries
    at = f"{PROJECT}:{FREE}/STANDARD"
    group = tool.json("explain", f"default/{NAME}")
    assert group["class"] == {"name": "v6e", "candidate": at}
    assert any(f"TPUSliceClass v6e, at the candidate {at}" in text for text in group["summary"])
    timeline = tool.json("timeline", f"default/{NAME}")
    waits = [one for one in timeline["spans"] if one["kind"] == "Ready"]
    assert [(one["what"], one["why"]) for one in waits][:4] == [
        ("Requested", "no candidate was asked yet"),
        (f"{PROJECT}:{FULL}/STANDARD", "refuses (Waited)"),
        (f"{PROJECT}:{RESERVED}/RESERVATION_BOUND/small", "refuses (ReservationFull)"),
        (at, "asked"),
    ]
    assert timeline["since"] == waits[0]["begin"].replace("+00:00", "Z")
    assert [
        (one["end"], two["begin"]) for one, two in pairwise(waits) if one["end"] != two["begin"]
    ] == []
    lines = tool.run("timeline", f"default/{NAME}").stdout.splitlines()
    said = [re.split(r"  +|; ", line)[1:4] for line in lines if "  provision_slice  " in line]
    reserved = f"{RESERVED}/RESERVATION_BOUND/small"
    assert said == [
        ["provision_slice", what, f"[{PROJECT}:{text}"]
        for what, text in (
            ("Creating", f"{FULL}/STANDARD"),
            ("NextCandidate", f"{FULL}/STANDARD refuses (Waited)"),
            ("Creating", reserved),
            ("NextCandidate", f"{reserved} refuses (ReservationFull)"),
            ("Creating", f"{FREE}/STANDARD"),
        )
    ]
    assert "provision_slice" not in tool.run("timeline", f"other/{NAME}").stdout


@pytest.mark.parametrize(
    "arguments, code, error",
    [
        (POD, 1, "there is no Pod default/alone; kubectl get pods -A lists them"),
    ],
)
def test_a_pod_that_cannot_be_explained_is_an_error(
    tool: Tool, arguments: tuple[str, ...], code: int, error: str
) -> None:
    result = tool.run(*arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert error in result.stderr


REQUEST = ("explain", "provisioningrequest/train-1")


@pytest.mark.parametrize(
    "of, conditions, expected",
    [
        ("slices.tpu-functions.dev", {}, "has no conditions yet: provision_slice has not looked at it, and its log says why."),
        ("slices.tpu-functions.dev", {"Accepted": ("True", "a"), "Provisioned": ("False", "0 of 1 slices ready; no")}, "has Provisioned=False: 0 of 1 slices ready; no."),
        ("slices.tpu-functions.dev", {"Provisioned": ("True", "1 of 1"), "BookingExpired": ("True", "No Pod")}, "has BookingExpired=True: No Pod."),
        ("slices.tpu-functions.dev", {"Failed": ("True", "a sentence")}, "has Failed=True: a sentence."),
        ("check-capacity.autoscaling.x-k8s.io", {"Failed": ("True", "theirs")}, "is of the class check-capacity.autoscaling.x-k8s.io, which another system serves."),
    ],
)  # fmt: skip
def test_a_request_is_explained_by_its_conditions(
    of: str, conditions: dict[str, tuple[str, str]], expected: str
) -> None:
    options = Options(sweeps=False, relays=False, sinks=False, workloads=True)
    tool = Tool(Harness(options, slices=SETTINGS[TPU_NODE_GROUP]))
    missing = tool.run(*REQUEST)
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert "there is no ProvisioningRequest default/train-1" in missing.stderr
    manifest = {
        "apiVersion": "autoscaling.x-k8s.io/v1",
        "kind": "ProvisioningRequest",
        "metadata": {"name": "train-1"},
        "spec": {
            "provisioningClassName": of,
            "podSets": [{"count": 1, "podTemplateRef": {"name": "t"}}],
        },
    }
    requests.post(tool.harness, requests.REQUESTS, manifest)
    at = {"reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    listed = [
        {"type": kind, "status": status, "message": message, **at}
        for kind, (status, message) in conditions.items()
    ]
    path = f"{requests.REQUESTS}/train-1/status"
    tool.harness.simulation.admin("PATCH", path, {"status": {"conditions": listed}}, **MERGE)
    assert " ".join(tool.run(*REQUEST).stdout.split()) == (
        f"ProvisioningRequest default/train-1 {expected}"
    )
    assert tool.json(*REQUEST)["provisioningrequest"] == "default/train-1"


def test_the_timeline_of_a_slice_has_what_its_request_decided() -> None:
    """Lines that decide the same again are left out, and candidates of the request's other slice."""
    harness = RequestHarness(TPU_NODE_GROUP)
    tool = Tool(harness)
    make_class(harness, giveUpAfter="30s")
    harness.queue(jobset(2))
    harness.until_provisioned()
    said: dict[str, list[tuple[str, str]]] = {}
    for name, _, _ in slices(harness):
        moments = tool.json("timeline", f"default/{name}")["moments"]
        mine = [one for one in moments if one["who"] == "provision_slice"]
        assert all("ProvisioningRequest default/train-1; " in one["why"] for one in mine)
        said[name] = [(one["what"], one["why"].partition("Provisioning")[0]) for one in mine]
    first, last = said.values()
    assert [what for what, _ in first] == [what for what, _ in last]
    assert first[0][0] == "Creating"
    assert first[-1][0] == "Ready"
    assert all(one != other for one, other in pairwise(what for what, _ in first))
    asked = [place for _, place in (*first, *last) if place]
    assert asked[0] == f"{PROJECT}:{FULL}/STANDARD; "
    assert asked[-1] == f"{PROJECT}:{FREE}/STANDARD; "
    assert not all(place for _, place in first)
    assert len(asked) == len([place for _, place in last if place])
