"""ProvisioningRequests as Kueue makes them for a suspended workload, for stories."""

from __future__ import annotations

from typing import Any

from local.cloud.simulation import Options
from shared.base.documents import find_condition
from tests.faults.jobsets import SETTINGS
from tests.stories.helpers import MINUTE
from tests.stories.jobsets import MERGE, OPTIONS, RUNS_FOREVER, until
from tests.stories.workload_objects import NAMESPACE, PATHS
from tests.support import jobset_objects
from tests.support.harness import Harness

CLASS = "slices.tpu-functions.dev"
CONSUME = "autoscaling.x-k8s.io/consume-provisioning-request"
KEY = "slices.tpu-functions.dev/workload"
REQUESTS = f"/apis/autoscaling.x-k8s.io/v1/namespaces/{NAMESPACE}/provisioningrequests"
TEMPLATES = f"/api/v1/namespaces/{NAMESPACE}/podtemplates"
WORKLOADS = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{NAMESPACE}/workloads"
KINDS = "JobSet, LeaderWorkerSet, Job, Pod, ProvisioningRequest"
LISTED = f"{NAMESPACE}: {{kinds: [{KINDS}], slices: 8, chips: 64}}"


def post(harness: Harness, path: str, manifest: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = harness.simulation.admin("POST", path, manifest)
    assert answer["kind"] == manifest["kind"], answer
    return answer


def reference(owner: dict[str, Any], *, controller: bool = True) -> dict[str, Any]:
    metadata = owner["metadata"]
    keys = {key: owner[key] for key in ("apiVersion", "kind")}
    return {**keys, "name": metadata["name"], "uid": metadata["uid"], "controller": controller}


def pod_sets(owner: dict[str, Any]) -> dict[str, tuple[int, dict[str, Any]]]:
    """The podsets of a workload's owner with their counts and templates, as Kueue makes them."""
    spec = owner["spec"]
    if owner["kind"] == "JobSet":
        return {
            one["name"]: (
                one.get("replicas", 1) * one["template"]["spec"]["parallelism"],
                one["template"]["spec"]["template"],
            )
            for one in spec["replicatedJobs"]
        }
    if owner["kind"] == "Job":
        return {"main": (spec["parallelism"], spec["template"])}
    groups = spec["leaderWorkerTemplate"]
    if "leaderTemplate" not in groups:
        return {"main": (groups["size"], groups["workerTemplate"])}
    leader, worker = groups["leaderTemplate"], groups["workerTemplate"]
    return {"leader": (1, leader), "worker": (groups["size"] - 1, worker)}


def queue(harness: Harness, owner: dict[str, Any], group: int | None = None) -> dict[str, Any]:
    """Reserve quota for an owner: its Workload."""
    name = f"{owner['kind'].lower()}-{owner['metadata']['name']}"
    annotations = {} if group is None else {"kueue.x-k8s.io/component-workload-index": str(group)}
    manifest = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": name,
            "annotations": annotations,
            "ownerReferences": [reference(owner, controller=group is None)],
        },
        "spec": {"active": True},
    }
    return post(harness, WORKLOADS, manifest)


def request(
    harness: Harness,
    sets: dict[str, tuple[int, dict[str, Any]]],
    workload: dict[str, Any] | None = None,
    name: str = "train-1",
    **parameters: str,
) -> dict[str, Any]:
    """Make a request and its PodTemplates."""
    listed = []
    for podset, (count, template) in sets.items():
        made = {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {"name": f"ppt-{name}-{podset}"},
            "template": {**template, "metadata": template.get("metadata", {})},
        }
        post(harness, TEMPLATES, made)
        listed.append({"count": count, "podTemplateRef": {"name": made["metadata"]["name"]}})  # type: ignore[index]
    owners = [reference(workload)] if workload is not None else []
    manifest = {
        "apiVersion": "autoscaling.x-k8s.io/v1",
        "kind": "ProvisioningRequest",
        "metadata": {"name": name, "ownerReferences": owners},
        "spec": {"provisioningClassName": CLASS, "podSets": listed, "parameters": parameters},
    }
    return post(harness, REQUESTS, manifest)


def status(harness: Harness, name: str = "train-1") -> dict[str, Any]:
    found = harness.simulation.admin("GET", f"{REQUESTS}/{name}")
    read: dict[str, Any] = found.get("status", {})
    return read


def conditions(harness: Harness, name: str = "train-1") -> dict[str, str]:
    """The status of each condition of a request."""
    listed = status(harness, name).get("conditions", ())
    return {one["type"]: one["status"] for one in listed}


def condition(harness: Harness, kind: str, name: str = "train-1") -> tuple[str, str]:
    """Reason and message of a condition."""
    found = find_condition(status(harness, name), kind)
    return found.get("reason", ""), found.get("message", "")


def is_provisioned(harness: Harness, name: str = "train-1") -> bool:
    return conditions(harness, name).get("Provisioned") == "True"


def admit(harness: Harness, owner: dict[str, Any], name: str = "train-1") -> None:
    """Resume a workload whose request is provisioned, as Kueue does: its Pods consume that."""
    detail = status(harness, name)["provisioningClassDetails"]["WorkloadKey"]
    found = harness.simulation.admin("GET", f"{PATHS[owner['kind']]}/{owner['metadata']['name']}")
    templates = [one for _, one in pod_sets(found).values()]
    for template in templates:
        template.setdefault("metadata", {}).setdefault("annotations", {})[CONSUME] = name
        template["spec"].setdefault("nodeSelector", {})[KEY] = detail
    found["spec"]["suspend"] = False
    path = f"{PATHS[owner['kind']]}/{owner['metadata']['name']}"
    answer = harness.simulation.admin("PUT", path, found)
    assert answer["kind"] == owner["kind"], answer


def end_workload(harness: Harness, workload: dict[str, Any], kind: str) -> None:
    """Set a condition of a Workload, such as Evicted."""
    path = f"{WORKLOADS}/{workload['metadata']['name']}"
    change = {"status": {"conditions": [{"type": kind, "status": "True"}]}}
    harness.simulation.admin("PATCH", f"{path}/status", change, **MERGE)


def jobset(replicas: int = 1) -> dict[str, Any]:
    made = jobset_objects.small_jobset(topology="2x4", hosts=2)
    made["spec"]["replicatedJobs"][0]["replicas"] = replicas
    return made


class RequestHarness(Harness):
    """ProvisioningRequests are served; the creations of slices are counted."""

    def __init__(self, provider: str, namespaces: str = LISTED) -> None:
        super().__init__(
            Options(workloads=True),
            slices=SETTINGS[provider] | {"suspended_release": 5 * MINUTE},
        )
        data = jobset_objects.config_map(namespaces=namespaces)
        self.simulation.admin("POST", OPTIONS, data)
        self.jobsets.behaviour = RUNS_FOREVER
        self.created = 0
        self.hooks.after = self.note

    def note(self, _step: str, call: str) -> None:
        self.created += call.startswith("POST ") and call.endswith(("/nodePools", "/tpunodegroups"))

    def queue(
        self, manifest: dict[str, Any], group: int | None = None, **parameters: str
    ) -> dict[str, Any]:
        """Apply a workload that its queue holds, and reserve quota for it."""
        kept = self.jobsets.controllers
        if manifest["kind"] == "LeaderWorkerSet":
            self.jobsets.controllers = frozenset()  # Kueue holds its Pods by a gate
        else:
            manifest["spec"]["suspend"] = True
        self.owner = post(self, PATHS[manifest["kind"]], manifest)
        self.workload = queue(self, self.owner, group)
        request(self, pod_sets(self.owner), self.workload, **parameters)
        self.kept = kept
        return self.owner

    def until_provisioned(self, name: str = "train-1") -> None:
        until(self, lambda: is_provisioned(self, name))

    def admit(self) -> None:
        admit(self, self.owner)
        self.jobsets.controllers = self.kept

    def end(self) -> None:
        """Delete the workload: its Workload and its request follow, and nothing is left."""
        path = PATHS[self.owner["kind"]]
        self.simulation.admin("DELETE", f"{path}/{self.owner['metadata']['name']}")
        path = f"{WORKLOADS}/{self.workload['metadata']['name']}"
        self.simulation.admin("DELETE", path)
        until(self, lambda: self.leftovers() == [])
