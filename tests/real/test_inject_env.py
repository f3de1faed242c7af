"""The webhook with a real API server: objects of kubectl and of controllers get their variables.

The configuration is that of ``infra/chart/manifests/inject-env``, but it names the server by URL
and CA instead of by a Service.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from local.control_plane.plane import ControlPlane
from tests.real.pods import COMPONENT, OWN_MARK, apply, complete, kubectl, marked
from tests.real.relay.waiting import until
from tests.real.webhooks import serving
from tests.unit.webhook.workloads import (
    Manifest,
    container,
    injecting,
    pod,
    selector,
    stateful_set,
)

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("inject-env")]

OTHER_MARK = "gke-tpu-env-injector.aaronbatilo.dev/inject"
TPU7X: dict[str, Any] = {"nodeSelector": selector("tpu7x", "2x2x2")}


@pytest.fixture(scope="module")
def cluster(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """A cluster with the webhook, the policy, and namespaces for the tests."""
    paths = {
        "/mutate": injecting(),
        "/mutate-namespace": injecting(is_namespace_marked=True),
    }
    with serving(tmp_path_factory.mktemp("tls"), paths) as served:
        configuration = served.configure(COMPONENT / "webhook.yaml")
        policies = (COMPONENT / "policy.yaml").read_text()
        everything = "\n---\n".join([yaml.safe_dump(configuration), policies])
        kubectl(control_plane, "apply", "-f", "-", stdin=everything)
        for name, labels in (("ml", []), ("all-tpu", [f"{OWN_MARK}=enabled"])):
            control_plane.run_kubectl("create", "namespace", name)
            for label in labels:
                kubectl(control_plane, "label", "--overwrite", "namespace", name, label)
        _wait_until_in_effect(control_plane)
        yield control_plane
        kubectl(control_plane, "delete", "-f", "-", stdin=everything)
        kubectl(control_plane, "delete", "namespace", "ml", "all-tpu", "--wait=false")


def _wait_until_in_effect(plane: ControlPlane) -> None:
    """Wait until the API server uses the webhook and the policy."""
    probe = complete(marked(stateful_set(name="probe")))
    for _ in range(100):
        created = plane.run_kubectl(
            "create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(probe)
        )
        unnumbered = unnumbered_pod({OWN_MARK: "enabled"})
        rejected = plane.run_kubectl(
            "create", "--dry-run=server", "-f", "-", stdin=json.dumps(unnumbered)
        )
        if "TPU_WORKER_HOSTNAMES" in created.stdout and "TPU_WORKER_ID" in rejected.stderr:
            return
    raise AssertionError(f"not in effect: {created.stderr} {rejected.stderr}")


def env_of(plane: ControlPlane, kind: str, name: str, namespace: str = "ml") -> dict[str, str]:
    """Return the variables of the first container, as they are stored."""
    return env_in(json.loads(kubectl(plane, "-n", namespace, "get", kind, name, "-o", "json")))


def env_in(found: Manifest) -> dict[str, str]:
    """Return the variables of the first container of an object."""
    spec = found["spec"] if found["kind"] == "Pod" else found["spec"]["template"]["spec"]
    entries = spec["containers"][0].get("env", [])
    names = [entry["name"] for entry in entries]
    assert len(names) == len(set(names))
    return {
        entry["name"]: entry.get("value") or f"<{entry['valueFrom']['fieldRef']['fieldPath']}>"
        for entry in entries
    }


@pytest.mark.parametrize("flags", [(), ("--server-side",)], ids=["client-side", "server-side"])
def test_a_stateful_set_is_applied_changed_and_applied_again(
    flags: tuple[str, ...], cluster: ControlPlane
) -> None:
    name = "web" + "-ssa" * len(flags)
    manifest = marked(stateful_set(name=name, service="nginx", replicas=2, pod=TPU7X))
    apply(cluster, manifest, *flags)
    hosts = f"{name}-0.nginx,{name}-1.nginx"
    variables = env_of(cluster, "statefulset", name)
    assert variables["TPU_WORKER_HOSTNAMES"] == hosts
    assert variables["TPU_WORKER_ID"] == "<metadata.labels['apps.kubernetes.io/pod-index']>"
    version = ("-n", "ml", "get", "statefulset", name, "-o", "jsonpath={.metadata.generation}")
    before = kubectl(cluster, *version)
    apply(cluster, manifest, *flags)
    assert kubectl(cluster, *version) == before
    manifest["spec"]["template"]["spec"]["containers"][0]["image"] = "train:2"
    output = apply(cluster, manifest, *flags)
    assert "Warning" not in output
    assert env_of(cluster, "statefulset", name) == variables
    kubectl(cluster, "-n", "ml", "delete", "statefulset", name)


@pytest.mark.conformance("elig-inj-both-labels", "elig-inj-annotation")
@pytest.mark.parametrize(
    "key, kind",
    [
        (OWN_MARK, "labels"),
        (OWN_MARK, "annotations"),
        (OTHER_MARK, "labels"),
        (OTHER_MARK, "annotations"),
    ],
)
def test_a_workload_is_marked_by_label_or_annotation(
    key: str, kind: str, cluster: ControlPlane
) -> None:
    manifest = marked(stateful_set(name="marked", replicas=2), key, kind)
    apply(cluster, manifest)
    assert "TPU_WORKER_HOSTNAMES" in env_of(cluster, "statefulset", "marked")
    kubectl(cluster, "-n", "ml", "delete", "statefulset", "marked")


def test_a_mark_that_is_removed_from_a_template_takes_its_variables_along(
    cluster: ControlPlane,
) -> None:
    manifest = stateful_set(name="taken", replicas=2)
    manifest["spec"]["template"]["metadata"]["annotations"] = {OWN_MARK: "enabled"}
    apply(cluster, manifest)
    assert "TPU_WORKER_HOSTNAMES" in env_of(cluster, "statefulset", "taken")
    assert "Warning" not in apply(cluster, stateful_set(name="taken", replicas=2))
    assert env_of(cluster, "statefulset", "taken") == {}
    kubectl(cluster, "-n", "ml", "delete", "statefulset", "taken")


def test_an_unmarked_workload_is_not_changed(cluster: ControlPlane) -> None:
    apply(cluster, stateful_set(name="plain", replicas=2))
    assert env_of(cluster, "statefulset", "plain") == {}
    kubectl(cluster, "-n", "ml", "delete", "statefulset", "plain")


def test_a_whole_namespace_can_be_marked(cluster: ControlPlane) -> None:
    manifest = stateful_set(name="here", replicas=2)
    manifest["metadata"]["namespace"] = "all-tpu"
    apply(cluster, manifest)
    assert "TPU_WORKER_HOSTNAMES" in env_of(cluster, "statefulset", "here", "all-tpu")
    kubectl(cluster, "-n", "all-tpu", "delete", "statefulset", "here")


def test_the_mark_of_another_injector_on_a_namespace_has_no_effect(cluster: ControlPlane) -> None:
    cluster.run_kubectl("create", "namespace", "other-injector")
    kubectl(cluster, "label", "--overwrite", "namespace", "other-injector", f"{OTHER_MARK}=enabled")
    unnumbered = unnumbered_pod({})
    unnumbered["metadata"]["namespace"] = "other-injector"
    trial = ("create", "--dry-run=server", "-o", "json", "-f", "-")
    assert env_in(json.loads(kubectl(cluster, *trial, stdin=json.dumps(unnumbered)))) == {"A": "b"}
    kubectl(cluster, "delete", "namespace", "other-injector", "--wait=false")


@pytest.mark.conformance("elig-kr-namespaces")
def test_a_workload_in_kube_system_is_not_changed(cluster: ControlPlane) -> None:
    manifest = complete(marked(stateful_set(name="own", replicas=2)))
    manifest["metadata"]["namespace"] = "kube-system"
    made = kubectl(
        cluster, "create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(manifest)
    )
    assert "TPU_WORKER_HOSTNAMES" not in made


@pytest.mark.parametrize(
    "command",
    [
        ("set", "image", "statefulset/kept", "c=train:2"),
        ("set", "env", "statefulset/kept", "MINE=1"),
        ("annotate", "statefulset", "kept", "a=b"),
        ("rollout", "restart", "statefulset/kept"),
        ("scale", "statefulset/kept", "--replicas=3"),
        ("patch", "statefulset", "kept", "-p", '{"spec": {"minReadySeconds": 5}}'),
    ],
    ids=" ".join,
)
def test_a_change_by_kubectl_keeps_the_injected_variables(
    command: tuple[str, ...], cluster: ControlPlane
) -> None:
    apply(cluster, marked(stateful_set(name="kept", service="s", replicas=2, pod=TPU7X)))
    before = env_of(cluster, "statefulset", "kept")
    kubectl(cluster, "-n", "ml", *command)
    after = env_of(cluster, "statefulset", "kept")
    after.pop("MINE", None)
    assert after == before
    kubectl(cluster, "-n", "ml", "delete", "statefulset", "kept")


def test_the_pods_of_a_contradictory_set_are_rejected(cluster: ControlPlane) -> None:
    output = apply(cluster, marked(stateful_set(name="lost", service="", replicas=2, pod=TPU7X)))
    assert "Warning: tpu-functions: StatefulSet lost has no spec.serviceName" in output

    def messages() -> str:
        events = "involvedObject.kind=StatefulSet,involvedObject.name=lost"
        path = "jsonpath={.items[*].message}"
        return kubectl(
            cluster, "-n", "ml", "get", "events", f"--field-selector={events}", "-o", path
        )

    until(lambda: "has no TPU_WORKER_ID" in messages(), "its Pods are rejected")
    found = kubectl(cluster, "-n", "ml", "get", "statefulset", "lost", "-o", "json")
    note = json.loads(found)["spec"]["template"]["metadata"]["annotations"]
    assert note["tpu-functions.dev/not-injected"].startswith("StatefulSet lost has no spec.service")
    kubectl(cluster, "-n", "ml", "delete", "statefulset", "lost")


def test_the_pods_of_a_set_of_too_many_run_after_a_scaling(cluster: ControlPlane) -> None:
    assert "there are 4" in apply(cluster, marked(stateful_set(name="many", replicas=4, pod=TPU7X)))
    kubectl(cluster, "-n", "ml", "scale", "statefulset/many", "--replicas=2")
    get = ("-n", "ml", "get", "pod", "many-0", "-o", "json")
    until(lambda: cluster.run_kubectl(*get).returncode == 0, "its first Pod is created")
    variables = env_in(json.loads(kubectl(cluster, *get)))
    assert variables["TPU_WORKER_HOSTNAMES"] == "many-0.nginx,many-1.nginx"
    kubectl(cluster, "-n", "ml", "delete", "statefulset", "many")


def owner(kind: str) -> Manifest:
    """Return a reference to a controller that does not exist."""
    version = "batch/v1" if kind == "Job" else "apps/v1"
    return {"apiVersion": version, "kind": kind, "name": "o", "uid": "u", "controller": True}


def unnumbered_pod(labels: dict[str, str]) -> Manifest:
    """Return a Pod of a slice whose index is unknown."""
    entry = {"name": "A", "value": "b"}
    made = pod(container(env=[entry]), name="unnumbered", labels=labels)
    made["spec"] |= TPU7X
    made["metadata"]["ownerReferences"] = [owner("Job")]
    return made


def test_kubectl_prints_a_warning(cluster: ControlPlane) -> None:
    manifest = marked(stateful_set(name="odd", replicas=3, pod=TPU7X))
    assert (
        "Warning: tpu-functions: topology 2x2x2 needs 2 Pods, and there are 3; set their number to 2"
        in apply(cluster, manifest, "--dry-run=server")
    )


def test_a_pod_that_was_not_injected_is_rejected(cluster: ControlPlane) -> None:
    unnumbered = unnumbered_pod({OWN_MARK: "enabled"})
    done = cluster.run_kubectl("create", "-f", "-", stdin=json.dumps(unnumbered))
    assert done.returncode == 1
    assert done.stderr.strip().endswith(
        "denied request: a container that requests google.com/tpu has no TPU_WORKER_ID: the annotation "
        "tpu-functions.dev/not-injected of the Pod template has the reason; without it, the webhook "
        "inject-env in tpu-functions was unavailable, or its log has the reason"
    )
