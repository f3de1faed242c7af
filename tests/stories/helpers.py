"""Helpers of stories: let simulated time pass, and read the state.

The state is read as users read it: from the API server, from Compute Engine and from the log.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from local import kube
from local.base.machine import Machine
from local.cloud.simulation import LAZY_LEASE_S, PROJECT, Options
from local.vm import agents
from local.vm.conversation import Bearer, Identity
from tests.support.harness import Harness
from tests.support.manifests import manifest

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
NAME = "my-slice"
ZONE = f"projects/{PROJECT}/zones/us-central1-c"
REGION = f"projects/{PROJECT}/regions/us-central1"
STEPS_EMAIL = "user@example.com"
"""The identity of the steps on Compute Engine: all have the same one here."""
SERVICE_AGENT_EMAIL = "123456789012@cloudservices.gserviceaccount.com"
"""The Google APIs service agent, which creates the VMs of a MIG."""
SPOT: Mapping[str, Any] = {"provisioningModel": "SPOT", "reservation": None}
STANDARD: Mapping[str, Any] = {"provisioningModel": "STANDARD", "reservation": None}
ONE_HOST: Mapping[str, Any] = {
    "nodeCount": 1,
    "topology": "2x2x1",
    "targetSizePolicyMode": "INDIVIDUAL",
}
TWO_SINGLE: Mapping[str, Any] = {**ONE_HOST, "nodeCount": 2}
EXAMPLES = Path(__file__).parents[2] / "examples"

_CRD_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/tpunodegroups.tpu.google.com"

PrintFigure = Callable[[str], None]


def vm_options(**change: Any) -> Options:
    """Options with other behaviour of VMs. By default, kubelets renew their Leases seldom."""
    return Options(agents=agents.Timings(**{"lease_s": LAZY_LEASE_S, **change}))


def with_heartbeats(**change: Any) -> Options:
    """Options with which kubelets renew their Leases as real ones do, so a dead kubelet is noticed
    within a minute."""
    return Options(agents=agents.Timings(**{"lease_s": 10.0, **change}), kube=kube.ClusterOptions())


def by_other_means(_: Machine) -> Identity:
    """The identity of VMs whose image contains credentials to join."""
    return Identity("https://10.128.0.2:6443", "", Bearer("admin"), impersonates=True)


def as_kubelet(vm: str) -> dict[str, str]:
    """The headers with which an administrator impersonates a VM's kubelet."""
    return {"Impersonate-User": f"system:node:{vm}", "Impersonate-Group": "system:nodes"}


JOIN_BY_OTHER_MEANS = vm_options(identity=by_other_means)


def until(harness: Harness, holds: Callable[[], bool], timeout: timedelta = HOUR) -> None:
    """Let time pass until the condition is true; fail after the timeout."""
    assert harness.run_until(holds, timeout), describe_state(harness)


def until_ready(harness: Harness, name: str = NAME, timeout: timedelta = HOUR) -> None:
    until(harness, lambda: harness.is_ready(name), timeout)


def until_gone(harness: Harness, name: str = NAME, timeout: timedelta = HOUR) -> None:
    until(harness, lambda: harness.group(name) is None, timeout)


def until_reason(
    harness: Harness, reason: str, name: str = NAME, timeout: timedelta = HOUR
) -> None:
    """Let time pass until the condition Ready has the reason."""
    until(harness, lambda: harness.condition(name, "Ready").get("reason") == reason, timeout)


def make_vm_manually(harness: Harness) -> str:
    """Create a VM with all that a VM of the slice has, ``created-by`` included; return its path."""
    model = get(harness, vms(harness)[0])
    kept = ("disks", "networkInterfaces", "machineType", "scheduling", "serviceAccounts")
    body = {key: model[key] for key in kept if key in model}
    items = [one for one in model["metadata"]["items"] if not one["key"].startswith("kubeadm-")]
    name = f"{resource_name(harness)}-zzzz"
    body |= {"name": name, "metadata": {"items": items}}
    body["disks"] = template()["properties"]["disks"]
    body["networkInterfaces"] = template()["properties"]["networkInterfaces"]
    harness.simulation.gce.faults.act_as_user("POST", f"{ZONE}/instances", body)
    return f"{ZONE}/instances/{name}"


def describe_state(harness: Harness) -> str:
    """The status of all groups, the last log lines and all resources, for a failed assertion."""
    groups = harness.simulation.admin("GET", "/apis/tpu.google.com/v1alpha1/tpunodegroups")["items"]
    groups_text = [f"{group['metadata']['name']}: {group.get('status')}" for group in groups]
    return "\n".join([*groups_text, *map(str, harness.log.lines[-12:]), *harness.leftovers()])


def ready_slice(harness: Harness, applied: Mapping[str, Any]) -> None:
    """Apply a group, wait until it is Ready, and two minutes more."""
    harness.apply(applied)
    until_ready(harness, applied["metadata"]["name"])
    harness.run_for(2 * MINUTE)


def ready(applied: Mapping[str, Any] | None = None, options: Options | None = None) -> Harness:
    """A simulation with a Ready slice: of the manifest, or of one with two hosts."""
    harness = Harness(options)
    ready_slice(harness, applied or manifest())
    return harness


def assert_deleted_completely(harness: Harness, name: str = NAME) -> None:
    """Delete a group, and assert that nothing is left ten minutes after it is gone."""
    harness.delete(name)
    until_gone(harness, name)
    harness.run_for(10 * MINUTE)
    assert harness.leftovers() == []


def condition_of(harness: Harness, kind: str = "Ready", name: str = NAME) -> tuple[str, str, str]:
    """A condition's status, reason and message."""
    condition = harness.condition(name, kind)
    return (condition.get("status", ""), condition.get("reason", ""), condition.get("message", ""))


def resource_name(harness: Harness, name: str = NAME) -> str:
    """The name of the group's resources."""
    group = harness.group(name)
    assert group is not None
    found: str = group["metadata"]["labels"]["tpu-functions.dev/resource-name"]
    return found


def pending(harness: Harness, name: str = NAME) -> dict[str, str]:
    """The VMs that the slice waits for, each with its reason."""
    group = harness.group(name)
    assert group is not None
    return {entry["name"]: entry["why"] for entry in group["status"].get("pending", [])}


def summary(harness: Harness, name: str = NAME) -> dict[str, Any]:
    """``status.nodeSummary``."""
    group = harness.group(name)
    assert group is not None
    found: dict[str, Any] = group["status"]["nodeSummary"]
    return found


def entry(harness: Harness, kind: str, name: str = NAME) -> dict[str, Any]:
    """``status.resources.<kind>``."""
    group = harness.group(name)
    assert group is not None
    found: dict[str, Any] = group["status"]["resources"][kind]
    return found


def nodes(harness: Harness) -> dict[str, dict[str, Any]]:
    """All Nodes by name."""
    found = harness.simulation.admin("GET", "/api/v1/nodes")["items"]
    return {node["metadata"]["name"]: node for node in found}


def bind_pod(harness: Harness, node: str) -> None:
    """Create a Pod that holds the four chips of a Node."""
    limits = {"limits": {"google.com/tpu": "4"}}
    spec = {"nodeName": node, "containers": [{"name": "a", "image": "a", "resources": limits}]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"on-{node}"}, "spec": spec}
    harness.simulation.admin("POST", "/api/v1/namespaces/default/pods", body)


def vms(harness: Harness) -> list[str]:
    """The paths of all VMs."""
    return [path for path in harness.simulation.gce.leftovers() if "/instances/" in path]


def vm_name(path: str) -> str:
    return path.rpartition("/")[2]


def of_kind(harness: Harness, collection: str) -> list[str]:
    """The paths of all resources of a collection on Compute Engine."""
    return [path for path in harness.simulation.gce.leftovers() if f"/{collection}/" in path]


def get(harness: Harness, path: str) -> dict[str, Any]:
    """A resource of Compute Engine, as a user reads it."""
    found: dict[str, Any] = harness.simulation.gce.faults.act_as_user("GET", path)
    return found


def metadata_of(document: Mapping[str, Any]) -> dict[str, str]:
    """The metadata of a VM, or of a template's properties."""
    return {item["key"]: item["value"] for item in document["metadata"].get("items", [])}


def secrets(harness: Harness) -> list[str]:
    """The names of all bootstrap tokens' Secrets."""
    found = harness.simulation.admin("GET", "/api/v1/namespaces/kube-system/secrets")["items"]
    return [secret["metadata"]["name"] for secret in found]


def events(harness: Harness, namespace: str = "default") -> list[tuple[str, str, str]]:
    """Type, reason and message of all Events about groups, oldest first."""
    found = harness.simulation.admin("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
    of_groups = [event for event in found if event["involvedObject"]["kind"] == "TPUNodeGroup"]
    of_groups.sort(key=lambda event: int(event["metadata"]["resourceVersion"]))
    return [(event["type"], event["reason"], event["message"]) for event in of_groups]


def columns(harness: Harness, name: str = NAME, *, wide: bool = False) -> dict[str, Any]:
    """The columns of ``kubectl get tng`` for a group."""
    path = f"/apis/tpu.google.com/v1alpha1/namespaces/default/tpunodegroups/{name}"
    table = harness.simulation.admin(
        "GET", path, Accept="application/json;as=Table;v=v1;g=meta.k8s.io"
    )
    pairs = zip(table["columnDefinitions"], table["rows"][0]["cells"], strict=True)
    return {column["name"]: cell for column, cell in pairs if wide or not column["priority"]}


def patch(harness: Harness, path: str, change: Mapping[str, Any]) -> dict[str, Any]:
    """Change an object of the cluster as its administrator, by a merge patch."""
    kind = {"Content-Type": "application/merge-patch+json"}
    found: dict[str, Any] = harness.simulation.admin("PATCH", path, change, **kind)
    return found


def group_path(name: str = NAME, namespace: str = "default") -> str:
    return f"/apis/tpu.google.com/v1alpha1/namespaces/{namespace}/tpunodegroups/{name}"


def remove_validation(harness: Harness) -> None:
    """Remove all rules of the spec from the CRD, as an older installation may lack them."""
    crd = harness.simulation.admin("GET", _CRD_PATH)
    rest = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"] = rest
    harness.simulation.admin("PUT", _CRD_PATH, crd)


def annotate(harness: Harness, key: str, value: str | None, name: str = NAME) -> None:
    """``kubectl annotate``; without a value the annotation is removed."""
    patch(harness, group_path(name), {"metadata": {"annotations": {key: value}}})


def template(machine_type: str = "tpu7x-standard-4t", **change: Any) -> dict[str, Any]:
    """A user template for TPUs, with changed fields of its ``properties``."""
    properties = {
        "machineType": machine_type,
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "initializeParams": {
                    "sourceImage": f"projects/{PROJECT}/global/images/my-image",
                    "diskType": "hyperdisk-balanced",
                },
            }
        ],
        "networkInterfaces": [{"subnetwork": f"{REGION}/subnetworks/default"}],
        "scheduling": {"onHostMaintenance": "TERMINATE", "provisioningModel": "STANDARD"},
        **change,
    }
    return {"name": "my-template", "properties": properties}


def identify(harness: Harness, installation: str | None) -> None:
    """Annotate the cluster with the id of its installation, as deploy.sh does."""
    annotations = {"tpu-functions.dev/installation-id": installation}
    patch(harness, "/api/v1/namespaces/kube-system", {"metadata": {"annotations": annotations}})


@contextmanager
def mistaken(harness: Harness, annotation: str | None, setting: str) -> Iterator[list[str]]:
    """Functions with this setting on a cluster with this annotation, which is removed at the end. Lists
    the writes of the steps, except statuses and Events."""
    writes: list[str] = []

    def before(step: str, call: str) -> None:
        verb, _, path = call.partition(" ")
        if verb in ("POST", "PATCH", "PUT", "DELETE"):
            is_report = path.startswith("/api") and path.endswith(("/status", "/events"))
            writes.extend([] if is_report else [f"{step}: {call}"])

    identify(harness, annotation)
    harness.configure(installation_id=setting)
    harness.hooks.before = before
    try:
        yield writes
    finally:
        identify(harness, None)


def create_template(harness: Harness, body: Mapping[str, Any], region: str = "") -> None:
    """Create a user template, in a region or globally, and wait until it exists."""
    scope = f"regions/{region}" if region else "global"
    path = f"projects/{PROJECT}/{scope}/instanceTemplates"
    harness.simulation.gce.faults.act_as_user("POST", path, dict(body))
    harness.run_for(timedelta(seconds=10))


def just_before(
    harness: Harness, step: str, method: str, path: str, act: Callable[[], None]
) -> None:
    """Call ``act`` just before a step's first call of this kind."""
    happened: list[str] = []

    def before(who: str, call: str) -> None:
        verb, _, target = call.partition(" ")
        if (who, verb) == (step, method) and target.startswith(path) and not happened:
            happened.append(call)
            act()

    harness.hooks.before = before


def envelope(data: bytes) -> bytes:
    """A push request with this message."""
    message = {"messageId": "1", "data": base64.b64encode(data).decode()}
    return json.dumps({"message": message}).encode()


def harness_for(spec: dict[str, Any]) -> Harness:
    """A simulation in which the spec can become Ready: its template exists, and its VMs can join."""
    joins = "bootstrapKubernetes" in spec
    harness = Harness() if joins else Harness(JOIN_BY_OTHER_MEANS)
    uri = spec.get("instanceTemplateURI", "")
    if uri:
        region = uri.split("/regions/")[1].split("/")[0] if "/regions/" in uri else ""
        create_template(harness, {**template(), "name": uri.rpartition("/")[2]}, region)
    return harness
