"""Overlays of ``infra/kubernetes`` on a real control plane: what is applied, and its effect."""

from __future__ import annotations

import base64
import copy
import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.control_plane.plane import ControlPlane, OwnControlPlane
from shared.base.names import FINALIZER, RESOURCE_NAME_LABEL, STEPS
from tests.guardrails import CASES, Case
from tests.manifests import manifest
from tests.overlays import EXAMPLE, NAMES, define_anything, write_overlay
from tests.real.relay.patience import until
from tests.real_parts import open_own_control_plane
from tests.unit.test_manifests import DOCUMENTS

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("installation")]

Document = dict[str, Any]

CRD = "tpunodegroups.tpu.google.com"
DEFINITION = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{CRD}"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
MERGE_PATCH = "application/merge-patch+json"
OWN = {"tpu-functions.dev/guardrails": "own"}
MONITORED = [
    ("monitoring.googleapis.com", "PodMonitoring"),
    ("monitoring.googleapis.com", "Rules"),
    ("monitoring.coreos.com", "PodMonitor"),
    ("monitoring.coreos.com", "PrometheusRule"),
]


@pytest.fixture(scope="module")
def plane() -> Iterator[OwnControlPlane]:
    """A fresh control plane that all tests of this module share."""
    with open_own_control_plane() as started:
        yield started


@pytest.fixture(scope="module")
def installed(plane: OwnControlPlane) -> OwnControlPlane:
    """The same, with the example overlay applied."""
    apply(plane, EXAMPLE)
    until(partial(is_served, plane, groups("default")), "groups are served")
    return plane


def apply(plane: OwnControlPlane, folder: Path, *options: str) -> list[str]:
    """Apply an overlay; what kubectl said of each object."""
    said = plane.run_kubectl("apply", *options, "-k", str(folder))
    assert (said.returncode, said.stderr) == (0, "")
    return said.stdout.splitlines()


def groups(namespace: str) -> str:
    return f"/apis/tpu.google.com/v1alpha1/namespaces/{namespace}/tpunodegroups"


def is_served(plane: OwnControlPlane, path: str) -> bool:
    return plane.request("GET", path)[0] == 200


def create_namespace(plane: OwnControlPlane, name: str, labels: Document | None = None) -> None:
    body = {"metadata": {"name": name, "labels": labels or {}}}
    assert plane.request("POST", "/api/v1/namespaces", body)[0] == 201


def write_limits(plane: OwnControlPlane, namespace: str, limits: dict[str, str] | None) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    body = {"metadata": {"name": "tpu-guardrails"}, "data": limits}
    code, said = plane.request("PUT", f"{path}/tpu-guardrails", body)
    if code == 404:
        code, said = plane.request("POST", path, body)
    assert code in (200, 201), said


def ask_for(plane: OwnControlPlane, namespace: str, group: Document) -> str:
    """Create a group as a trial: why it is refused, empty if it is not."""
    body = {**group, "metadata": {**group["metadata"], "namespace": namespace}}
    code, answer = plane.request("POST", f"{groups(namespace)}?dryRun=All", body)
    return "" if code == 201 else f"{code} {answer['message']}"


def denial(group: str, binding: str, why: str) -> str:
    """How the API server words a policy's refusal of a group."""
    return (
        f"403 {CRD} \"{group}\" is forbidden: ValidatingAdmissionPolicy 'tpu-guardrails' with "
        f"binding '{binding}' denied request: {why}"
    )


NO_LIMITS = (
    "failed to configure binding: no params found for policy binding with `Deny` "
    "parameterNotFoundAction"
)


# Overlays


def test_the_example_on_a_cluster_that_has_never_seen_it(plane: OwnControlPlane) -> None:
    assert {line.rpartition(" ")[2] for line in apply(plane, EXAMPLE)} == {"created"}
    assert [line for line in apply(plane, EXAMPLE) if not line.endswith(" unchanged")] == []


@pytest.fixture
def monitoring(plane: OwnControlPlane) -> None:
    """The CRDs of both ways of monitoring, as far as names go: any object is taken."""
    for group, kind in MONITORED:
        definition = define_anything(group, kind)
        plane.request("POST", DEFINITION.rpartition("/")[0], definition)
        path = f"/apis/{group}/v1/{kind.lower()}s"
        until(partial(is_served, plane, path), f"{kind} is served")


@pytest.mark.parametrize(
    "components",
    [
        ("relay-gke-workload-identity", "without-device-plugin", "monitoring-google"),
        ("relay-key-secret", "control-plane-taint", "google-identities", "monitoring-prometheus"),
    ],
    ids="+".join,
)
@pytest.mark.usefixtures("monitoring")
def test_components_are_accepted_and_applied_again_change_nothing(
    installed: OwnControlPlane, components: tuple[str, ...], tmp_path: Path
) -> None:
    overlay = write_overlay(tmp_path, *components)
    apply(installed, overlay)
    assert [line for line in apply(installed, overlay) if not line.endswith(" unchanged")] == []
    relay = "/apis/apps/v1/namespaces/tpu-functions/deployments/relay"
    template = installed.request("GET", relay)[1]["spec"]["template"]
    pod = {"metadata": {"name": "trial"}, "spec": template["spec"]}
    code, said = installed.request("POST", "/api/v1/namespaces/tpu-functions/pods?dryRun=All", pod)
    assert code == 201, f"a restricted namespace refuses the relay: {said}"


def test_without_its_definition_monitoring_is_refused_and_the_rest_applied(
    own_control_plane: OwnControlPlane, tmp_path: Path
) -> None:
    overlay = write_overlay(tmp_path, "monitoring-google", "monitoring-prometheus")
    said = own_control_plane.run_kubectl("apply", "-k", str(overlay))
    assert (said.returncode, len(said.stdout.splitlines())) == (1, len(DOCUMENTS) + 1)
    for group, kind in MONITORED:
        assert f'no matches for kind "{kind}" in version "{group}/v1"' in said.stderr


def test_on_a_cluster_of_control_plane_and_tpu_nodes_the_relay_runs_on_the_control_plane(
    installed: OwnControlPlane, tmp_path: Path
) -> None:
    taint = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
    add_node(installed, "control-plane-1", {taint["key"]: ""}, [taint])
    add_node(installed, "tng-a-1", {"cloud.google.com/gke-tpu-accelerator": "tpu7x"}, [])
    installed.run_kubectl("delete", "deployment", "relay", "-n", "tpu-functions")
    until(lambda: relays(installed) == set(), "nothing is left of earlier tests")
    apply(installed, write_overlay(tmp_path / "without"))
    until(lambda: "Unschedulable" in relays(installed), "it stays pending without the component")
    assert "control-plane-1" not in relays(installed)
    apply(installed, write_overlay(tmp_path / "with", "control-plane-taint"))
    until(lambda: "control-plane-1" in relays(installed), "it is bound to the control plane")
    assert "tng-a-1" not in relays(installed)


def add_node(
    plane: OwnControlPlane, name: str, labels: dict[str, str], taints: list[dict[str, str]]
) -> None:
    """A Node of which no kubelet knows, ready for as long as it is kept so."""
    body = {"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}}
    assert plane.register_node(body)[0] == 201
    keep_ready(plane, name)


def keep_ready(plane: OwnControlPlane, name: str) -> None:
    """What its kubelet would say: after 50 seconds of silence a Node takes no Pods."""
    room = {"cpu": "8", "memory": "16Gi", "pods": "10"}
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    ready = {"type": "Ready", "status": "True", "reason": "Trial", "message": ""}
    condition = {**ready, "lastHeartbeatTime": now}
    status = {"status": {"capacity": room, "allocatable": room, "conditions": [condition]}}
    assert plane.request("PATCH", f"/api/v1/nodes/{name}/status", status, MERGE_PATCH)[0] == 200


def relays(plane: OwnControlPlane) -> set[str]:
    """Where the relay's Pods are bound to, or why they are not, while both Nodes stay ready."""
    for name in ("control-plane-1", "tng-a-1"):
        keep_ready(plane, name)
    pods = plane.request("GET", "/api/v1/namespaces/tpu-functions/pods")[1]["items"]
    conditions = (one for pod in pods for one in pod["status"].get("conditions") or ())
    reasons = {condition.get("reason", "") for condition in conditions}
    return reasons | {pod["spec"].get("nodeName", "") for pod in pods}


def test_the_relays_token_is_for_the_provider_and_about_the_principal_of_the_docs(
    installed: OwnControlPlane,
) -> None:
    audience = NAMES["relay-audience"]
    said = installed.run_kubectl(
        "create", "token", "relay", "-n", "tpu-functions", f"--audience={audience}"
    )
    payload = said.stdout.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    assert claims["aud"] == [audience]
    page = (Path(__file__).parents[2] / "docs" / "kubernetes-manifests.md").read_text()
    assert f"/subject/{claims['sub']}\n" in page


# Google identities


@pytest.fixture(scope="module")
def identified(
    installed: OwnControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> OwnControlPlane:
    apply(installed, write_overlay(tmp_path_factory.mktemp("users"), "google-identities"))
    return installed


@pytest.mark.parametrize("step", STEPS)
def test_a_step_may_as_its_user_what_it_may_as_its_service_account(
    identified: OwnControlPlane, step: str
) -> None:
    user = step.replace("_", "-")
    wanted = {
        (namespace, verb, resource)
        for namespace in ("default", "kube-system")
        for verb in ("get", "list", "watch", "create", "update", "patch", "delete")
        for resource in (f"tpunodegroups.{CRD.partition('.')[2]}", "nodes", "secrets", "events")
    }
    mine = {one for one in wanted if can(identified, NAMES[user], *one)}
    assert mine == {one for one in wanted if may(user, *one)}


def can(plane: OwnControlPlane, user: str, namespace: str, verb: str, resource: str) -> bool:
    review = {
        "spec": {
            "user": user,
            "groups": ["system:authenticated"],
            "resourceAttributes": {
                "namespace": namespace,
                "verb": verb,
                "resource": resource.partition(".")[0],
                "group": resource.partition(".")[2],
            },
        }
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return bool(plane.request("POST", path, review)[1]["status"]["allowed"])


def may(account: str, namespace: str, verb: str, resource: str) -> bool:
    """What the base's roles give a step's ServiceAccount."""
    plural, _, group = resource.partition(".")
    roles = (
        one
        for one in DOCUMENTS
        if one["kind"] in ("Role", "ClusterRole")
        and one["metadata"]["name"] == f"tpu-functions-{account}"
        and one["metadata"].get("namespace", namespace) == namespace
    )
    return any(
        plural in rule["resources"] and group in rule["apiGroups"] and verb in rule["verbs"]
        for role in roles
        for rule in role["rules"]
    )


def bootstrap_token(token_id: str) -> Document:
    data = {
        "token-id": token_id,
        "token-secret": "0123456789abcdef",
        "expiration": "2036-01-01T00:00:00Z",
        "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "bootstrap.kubernetes.io/token",
        "metadata": {
            "name": f"bootstrap-token-{token_id}",
            "namespace": "kube-system",
            "labels": {RESOURCE_NAME_LABEL: "tng-a-1a2b3c4d"},
        },
        "stringData": data,
    }


def create_as(plane: OwnControlPlane, user: str, document: Document) -> str:
    """What kubectl says when a step's user creates an object: on stdout, or else on stderr."""
    stdin = json.dumps(document)
    said = plane.run_kubectl("create", f"--as={NAMES[user]}", "-f", "-", stdin=stdin)
    return said.stdout or said.stderr


def test_a_user_is_held_to_tokens_by_the_admission_policy(identified: OwnControlPlane) -> None:
    token = bootstrap_token("abcdef")
    assert create_as(identified, "inject-token", token) == "secret/bootstrap-token-abcdef created\n"
    other = {**bootstrap_token("zyxwvu"), "type": "Opaque"}
    assert create_as(identified, "inject-token", other) == (
        'Error from server (Forbidden): error when creating "STDIN": secrets '
        '"bootstrap-token-zyxwvu" is forbidden: ValidatingAdmissionPolicy '
        "'tpu-functions-bootstrap-tokens' with binding 'tpu-functions-bootstrap-tokens' denied "
        "request: tpu-functions may only create and delete bootstrap tokens in kube-system\n"
    )
    assert "cannot create resource" in create_as(identified, "sweep", bootstrap_token("fedcba"))


@pytest.mark.parametrize("query", ["", "?dryRun=All"], ids=["in earnest", "dry run"])
def test_a_user_is_shown_no_secret_of_others_by_deleting_all(
    identified: OwnControlPlane, query: str
) -> None:
    secrets = "/api/v1/namespaces/kube-system/secrets"
    foreign = {"metadata": {"name": "keys"}, "stringData": {"key": "private"}}
    identified.request("POST", secrets, foreign)
    user = f"--as={NAMES['tear-down']}"
    said = identified.run_kubectl("delete", user, f"--raw={secrets}{query}")
    assert said.stdout == ""
    assert said.stderr.startswith("Error from server (Forbidden): ")
    assert identified.request("GET", f"{secrets}/keys")[0] == 200


def test_a_user_is_held_to_our_nodes_by_the_admission_policy(identified: OwnControlPlane) -> None:
    add_node(identified, "worker-1", {}, [])
    add_node(identified, "tng-b-1a2b3c4d-x1y2", {}, [])
    ours = label_node(identified, "tng-b-1a2b3c4d-x1y2")
    assert ours.stdout == "node/tng-b-1a2b3c4d-x1y2 labeled\n", ours.stderr
    theirs = label_node(identified, "worker-1")
    assert theirs.stderr == (
        'Error from server (Forbidden): nodes "worker-1" is forbidden: ValidatingAdmissionPolicy '
        "'tpu-functions-nodes' with binding 'tpu-functions-nodes' denied request: tpu-functions may "
        "only change and delete Nodes of its own VMs, whose names begin with tng-\n"
    )


def label_node(plane: OwnControlPlane, name: str) -> subprocess.CompletedProcess[str]:
    return plane.run_kubectl("label", "node", name, "team=a", f"--as={NAMES['label-node']}")


# The device plugin


@pytest.fixture(scope="module")
def plugin(installed: OwnControlPlane, tmp_path_factory: pytest.TempPathFactory) -> ControlPlane:
    """Who has got the token of the device plugin's Pod on the Node tng-c-1a2b3c4d-x1y2."""
    node = "tng-c-1a2b3c4d-x1y2"
    for name in (node, "tng-c-1a2b3c4d-z3w4", "control-plane-2"):
        add_node(installed, name, {PROOF: "42"}, [])
    pod = {
        "metadata": {"name": "tpu-device-plugin-x"},
        "spec": {
            "nodeName": node,
            "serviceAccountName": "tpu-device-plugin-sa",
            "containers": [{"name": "it", "image": "example.test/it"}],
        },
    }
    assert installed.request("POST", "/api/v1/namespaces/kube-system/pods", pod)[0] == 201
    token = installed.run_kubectl(
        *("create", "token", "tpu-device-plugin-sa", "--namespace=kube-system"),
        *("--bound-object-kind=Pod", "--bound-object-name=tpu-device-plugin-x"),
    ).stdout.strip()
    return with_token(installed, token, tmp_path_factory.mktemp("plugin"))


def with_token(plane: ControlPlane, token: str, folder: Path) -> ControlPlane:
    """The cluster as the bearer of a token sees it."""
    access = yaml.safe_load(plane.kubeconfig.read_text())
    for one in access["users"]:
        one["user"] = {"token": token}
    (folder / "kubeconfig").write_text(yaml.safe_dump(access))
    return ControlPlane(folder / "kubeconfig", plane.kubectl)


PROOF = "node-restriction.kubernetes.io/tpu-functions-vm-id"
OF_THE_PLUGIN = "ValidatingAdmissionPolicy 'tpu-device-plugin-own-node' with binding "
OF_THE_PLUGIN += "'tpu-device-plugin-own-node' denied request: "
NOT_ITS_NODE = "the device plugin may only write the Node that it runs on"
NOT_A_KUBELETS = (
    "the device plugin may not change a Node's spec, owners, finalizers or the labels under "
    "node-restriction.kubernetes.io and node-role.kubernetes.io"
)
NOT_READY = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
NO_EXECUTE = {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}
PLUGIN_WRITES: dict[str, tuple[str, Document, str]] = {
    "a label of its Node": ("x1y2", {"metadata": {"labels": {"google.com/tpu-x": "1"}}}, ""),
    "its Node's capacity": ("x1y2/status", {"status": {"capacity": {"google.com/tpu": "4"}}}, ""),
    "its Node's proof": ("x1y2", {"metadata": {"labels": {PROOF: "43"}}}, NOT_A_KUBELETS),
    "the same by the status": (
        "x1y2/status",
        {"metadata": {"labels": {PROOF: "43"}}},
        NOT_A_KUBELETS,
    ),
    "a taint of its Node": ("x1y2", NO_EXECUTE, NOT_A_KUBELETS),
    "another Node's proof": ("z3w4", {"metadata": {"labels": {PROOF: None}}}, NOT_ITS_NODE),
    "another Node's condition": ("z3w4/status", NOT_READY, NOT_ITS_NODE),
}


@pytest.mark.parametrize("case", PLUGIN_WRITES)
def test_the_device_plugin_writes_of_its_own_node_what_a_kubelet_may(
    case: str, plugin: ControlPlane
) -> None:
    name, change, why = PLUGIN_WRITES[case]
    path = f"/api/v1/nodes/tng-c-1a2b3c4d-{name}?dryRun=All"
    code, said = plugin.request("PATCH", path, change, MERGE_PATCH)
    assert (code, said.get("message", "").partition("forbidden: ")[2]) == (
        (403, OF_THE_PLUGIN + why) if why else (200, "")
    )


def test_the_device_plugin_cannot_empty_the_control_plane(plugin: ControlPlane) -> None:
    path = "/api/v1/nodes/control-plane-2?dryRun=All"
    code, said = plugin.request("PATCH", path, NO_EXECUTE, MERGE_PATCH)
    assert (code, said["message"].partition("forbidden: ")[2]) == (
        403,
        OF_THE_PLUGIN + NOT_ITS_NODE,
    )


def test_a_token_of_the_device_plugin_that_no_pod_has_writes_no_node(
    installed: OwnControlPlane, plugin: ControlPlane, tmp_path: Path
) -> None:
    minted = installed.run_kubectl(
        "create", "token", "tpu-device-plugin-sa", "--namespace=kube-system"
    )
    anybody = with_token(installed, minted.stdout.strip(), tmp_path)
    path = "/api/v1/nodes/tng-c-1a2b3c4d-x1y2?dryRun=All"
    label = {"metadata": {"labels": {"google.com/tpu-x": "1"}}}
    assert plugin.request("PATCH", path, label, MERGE_PATCH)[0] == 200
    code, said = anybody.request("PATCH", path, label, MERGE_PATCH)
    assert (code, said["message"].partition("forbidden: ")[2]) == (
        403,
        OF_THE_PLUGIN + NOT_ITS_NODE,
    )


# Guardrails


def test_the_policies_pass_the_type_check_of_the_cluster(installed: OwnControlPlane) -> None:
    names = ("tpu-guardrails", "tpu-guardrails-keepers")

    def checked() -> list[Any]:
        found = (installed.request("GET", f"{POLICIES}/{name}")[1] for name in names)
        return [policy.get("status", {}).get("typeChecking") for policy in found]

    until(lambda: None not in checked(), "both are checked")
    assert checked() == [{}, {}]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_guardrails_of_a_namespace(installed: OwnControlPlane, case: Case) -> None:
    namespace = case.id.lower()
    create_namespace(installed, namespace, OWN)
    binding = "tpu-guardrails-namespace-create"
    assert ask_for(installed, namespace, case.group).endswith(NO_LIMITS)
    write_limits(installed, namespace, case.limits)
    until(lambda: NO_LIMITS not in ask_for(installed, namespace, case.group), "limits are seen")
    refused = denial("my-slice", binding, case.message(namespace)) if case.refused else ""
    assert ask_for(installed, namespace, case.group) == refused


def test_the_limits_of_the_cluster_rule_all_other_namespaces(installed: OwnControlPlane) -> None:
    group = manifest()
    binding = "tpu-guardrails-cluster-create"
    create_namespace(installed, "ruled")
    create_namespace(installed, "free", OWN)
    write_limits(installed, "free", {})
    write_limits(installed, "tpu-functions", {"maxChips": "4"})
    why = "spec.topology: 2x2x2 has 8 chips; allowed: 4 (ConfigMap tpu-functions/tpu-guardrails)"
    refused = denial("my-slice", binding, why)
    until(lambda: ask_for(installed, "ruled", group) == refused, "the cluster's limits rule")
    until(lambda: ask_for(installed, "free", group) == "", "its own limits rule the other one")
    write_limits(installed, "tpu-functions", {"maxChips": "8"})
    until(lambda: ask_for(installed, "ruled", group) == "", "the limit is raised")


def test_without_limits_nothing_is_created_and_what_stands_is_let_go(
    installed: OwnControlPlane,
) -> None:
    create_namespace(installed, "bare")
    write_limits(installed, "tpu-functions", {})
    until(lambda: ask_for(installed, "bare", manifest()) == "", "no limits rule")
    body = manifest("held", "bare")
    body["metadata"]["finalizers"] = [FINALIZER]
    assert installed.request("POST", groups("bare"), body)[0] == 201
    limits = "/api/v1/namespaces/tpu-functions/configmaps/tpu-guardrails"
    assert installed.request("DELETE", limits)[0] == 200
    until(lambda: ask_for(installed, "bare", manifest()).endswith(NO_LIMITS), "nothing is created")
    held = f"{groups('bare')}/held"
    paused = {"metadata": {"annotations": {"tpu-functions.dev/paused": "true"}}}
    assert installed.request("PATCH", held, paused, MERGE_PATCH)[0] == 200
    assert installed.request("DELETE", held)[0] == 200
    let_go = {"metadata": {"finalizers": None}}
    assert installed.request("PATCH", held, let_go, MERGE_PATCH)[0] == 200
    assert installed.request("GET", held)[0] == 404


def test_a_group_beyond_later_limits_is_kept_and_let_go(installed: OwnControlPlane) -> None:
    create_namespace(installed, "late", OWN)
    write_limits(installed, "late", {})
    body = manifest("held", "late")
    body["metadata"]["finalizers"] = [FINALIZER]
    until(lambda: installed.request("POST", groups("late"), body)[0] in (201, 409), "is created")
    write_limits(installed, "late", {"maxChips": "0"})
    until(lambda: ask_for(installed, "late", manifest()) != "", "the new limit rules")
    held = f"{groups('late')}/held"
    labelled = {"metadata": {"labels": {RESOURCE_NAME_LABEL: "tng-held-1a2b3c4d"}}}
    assert installed.request("PATCH", held, labelled, MERGE_PATCH)[0] == 200
    assert installed.request("DELETE", held)[0] == 200
    assert (
        installed.request("PATCH", held, {"metadata": {"finalizers": None}}, MERGE_PATCH)[0] == 200
    )


def test_were_node_counts_mutable_limits_would_hold_for_changes_too(
    own_control_plane: OwnControlPlane, tmp_path: Path
) -> None:
    """No field that is limited can be changed today; a later CRD may let one."""
    plane = own_control_plane
    limits = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "tpu-guardrails", "namespace": "tpu-functions"},
        "data": {"maxChips": "8"},
    }
    apply(plane, write_overlay(tmp_path, "guardrails", resources=[limits]))
    loosened = copy.deepcopy(plane.request("GET", DEFINITION)[1])
    spec = loosened["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    rules = spec["x-kubernetes-validations"]
    spec["x-kubernetes-validations"] = [
        rule for rule in rules if rule["message"] != "NodeCount is immutable"
    ]
    assert plane.request("PUT", DEFINITION, loosened)[0] == 200
    single = {"machineType": "ct6e-standard-4t"}
    body = manifest(
        targetSizePolicyMode="INDIVIDUAL", nodeCount=1, topology="2x2", instanceConfig=single
    )
    until(lambda: plane.request("POST", groups("default"), body)[0] == 201, "it is created")
    path = f"{groups('default')}/my-slice"

    def resize(count: int) -> tuple[int, str]:
        change = {"spec": {"nodeCount": count}}
        code, answer = plane.request("PATCH", path, change, MERGE_PATCH)
        return code, answer.get("message", "")

    def outgrow() -> str:
        until(lambda: resize(2)[0] == 200, "the loosened definition is served")
        code, message = resize(3)
        return f"{code} {message}"

    why = "spec.nodeCount: 3 slices of 2x2 have 12 chips; allowed: 8"
    source = "(ConfigMap tpu-functions/tpu-guardrails)"
    refused = denial("my-slice", "tpu-guardrails-cluster-update", f"{why} {source}")
    until(lambda: outgrow() == refused, f"the policy is in force: {refused}")


# Who keeps the guardrails


@pytest.fixture(scope="module")
def ruled(installed: OwnControlPlane) -> OwnControlPlane:
    """Namespace ``team`` with limits of its own, which jane may edit as Kubernetes' role has it."""
    create_namespace(installed, "team", OWN)
    write_limits(installed, "team", {"maxChips": "8"})
    binding = {
        "metadata": {"name": "jane"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "admin",
        },
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
    }
    path = "/apis/rbac.authorization.k8s.io/v1/namespaces/team/rolebindings"
    assert installed.request("POST", path, binding)[0] == 201
    jane = ("get", "configmaps", "-n", "team", "--as=jane")
    until(lambda: installed.run_kubectl(*jane).returncode == 0, "jane may read")
    return installed


ONLY_KEEPERS = (
    "'tpu-guardrails-keepers' denied request: only who may write ConfigMap "
    "tpu-functions/tpu-guardrails may write a ConfigMap tpu-guardrails\n"
)


@pytest.mark.parametrize(
    "attempt",
    [
        ("patch", "configmap", "tpu-guardrails", "--type=merge", '-p={"data":{"maxChips":"999"}}'),
        ("delete", "configmap", "tpu-guardrails"),
        ("delete", "--raw=/api/v1/namespaces/team/configmaps"),
        ("create", "configmap", "tpu-guardrails", "--dry-run=server"),
    ],
    ids=["change", "delete", "delete-all", "create"],
)
def test_who_may_edit_a_namespace_may_not_lift_its_limits(
    ruled: OwnControlPlane, attempt: tuple[str, ...]
) -> None:
    said = ruled.run_kubectl(*attempt, "-n", "team", "--as=jane")
    assert said.stderr.endswith(ONLY_KEEPERS), said.stdout + said.stderr
    limits = ruled.request("GET", "/api/v1/namespaces/team/configmaps/tpu-guardrails")[1]
    assert limits["data"] == {"maxChips": "8"}


def test_other_config_maps_are_nobody_elses_business(ruled: OwnControlPlane) -> None:
    said = ruled.run_kubectl("create", "configmap", "mine", "-n", "team", "--as=jane")
    assert said.stdout == "configmap/mine created\n", said.stderr


@pytest.mark.parametrize(
    "limits, why",
    [
        (
            {"machineType": "ct6e-standard-4t"},
            "data: machineType is not known; known are projects, zones, machineTypes, "
            "provisioningModels, reservations, images, diskTypes, subnetworks, networkTags, "
            "serviceAccounts, scopes, metadataKeys, instanceTemplates, kubernetesVersions, "
            "controlPlanes, nodeLabels, nodeTaints, maxBootDiskGB, maxChips, strict",
        ),
        ({"maxChips": "many"}, "data.maxChips: many is no whole number"),
        ({"maxChips": "-1"}, "data.maxChips: -1 is no whole number"),
        ({"maxChips": ""}, "data.maxChips:  is no whole number"),
        ({"maxBootDiskGB": "1 TB"}, "data.maxBootDiskGB: 1 TB is no whole number"),
        ({"strict": "yes"}, "data.strict: yes is neither true nor false"),
    ],
    ids=["unknown-keys", "no-number", "negative", "empty", "a-size", "half-strict"],
)
def test_limits_that_would_not_work_are_refused(
    ruled: OwnControlPlane, limits: dict[str, str], why: str
) -> None:
    path = "/api/v1/namespaces/team/configmaps/tpu-guardrails"
    code, said = ruled.request("PATCH", path, {"data": limits}, MERGE_PATCH)
    assert code == 422
    assert said["message"].endswith(f"'tpu-guardrails-keepers' denied request: {why}")


def test_a_namespace_with_limits_can_be_deleted(installed: OwnControlPlane) -> None:
    create_namespace(installed, "over", OWN)
    write_limits(installed, "over", {})
    assert installed.request("DELETE", "/api/v1/namespaces/over")[0] == 200
    until(lambda: installed.request("GET", "/api/v1/namespaces/over")[0] == 404, "it is gone")


# Upgrades


def test_an_upgrade_by_server_side_apply_takes_over_what_stands_and_keeps_odd_groups(
    own_control_plane: OwnControlPlane, tmp_path: Path
) -> None:
    """An older definition may have let pass what a newer one refuses: it must still be let go."""
    plane = own_control_plane
    older = next(one for one in copy.deepcopy(DOCUMENTS) if one["metadata"]["name"] == CRD)
    spec = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["x-kubernetes-validations"]
    del spec["properties"]["nodeCount"]["minimum"]
    said = plane.run_kubectl("apply", "-f", "-", stdin=yaml.safe_dump(older))
    assert said.returncode == 0, said.stderr
    odd = manifest("odd", nodeCount=0)
    odd["metadata"]["finalizers"] = [FINALIZER]
    until(lambda: plane.request("POST", groups("default"), odd)[0] in (201, 409), "it is taken")
    before = plane.request("GET", f"{groups('default')}/odd")[1]
    overlay = write_overlay(tmp_path)
    assert f"customresourcedefinition.apiextensions.k8s.io/{CRD} serverside-applied" in apply(
        plane, overlay, "--server-side"
    )
    until(lambda: "nodeCount" in ask_for(plane, "default", manifest(nodeCount=0)), "rules are new")
    path = f"{groups('default')}/odd"
    assert plane.request("GET", path)[1] == before
    labelled = {"metadata": {"labels": {RESOURCE_NAME_LABEL: "tng-odd-1a2b3c4d"}}}
    assert plane.request("PATCH", path, labelled, MERGE_PATCH)[0] == 200
    status = {"status": {"observedGeneration": 1}}
    assert plane.request("PATCH", f"{path}/status", status, MERGE_PATCH)[0] == 200
    assert plane.request("DELETE", path)[0] == 200
    assert plane.request("PATCH", path, {"metadata": {"finalizers": None}}, MERGE_PATCH)[0] == 200
    assert plane.request("GET", path)[0] == 404
