"""The objects of the chart on a real control plane, by its values, and their effects."""

from __future__ import annotations

import base64
import copy
import json
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.control_plane.plane import ControlPlane, OwnControlPlane
from shared.base.names import BOOTSTRAP_GROUP, FINALIZER, RESOURCE_NAME_LABEL
from tests.real.relay.waiting import until
from tests.support import class_specs, specs
from tests.support.chart import AUDIENCE, CHART, USERS, WITH_USERS, apply, define_anything
from tests.support.class_specs import CLASS_CRD, CLASSES, slice_class
from tests.support.guardrails import CASES, Case
from tests.support.manifests import manifest
from tests.unit.infra.chart.manifests import DOCUMENTS

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("installation")]

Document = dict[str, Any]

CRD = "tpunodegroups.tpu.google.com"
DEFINITION = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{CRD}"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
MERGE_PATCH = "application/merge-patch+json"
OWN = {"tpu-functions.dev/guardrails": "own"}
EXAMPLE: Document = yaml.safe_load((CHART.parent / "values" / "example.yaml").read_text())
MONITORED = [
    ("monitoring.googleapis.com", "PodMonitoring"),
    ("monitoring.googleapis.com", "Rules"),
    ("monitoring.coreos.com", "PodMonitor"),
    ("monitoring.coreos.com", "PrometheusRule"),
]


@pytest.fixture(scope="module")
def installed(plane: OwnControlPlane) -> OwnControlPlane:
    """The same control plane, with users, guardrails and Workload Identity Federation."""
    apply(plane, EXAMPLE)
    until(partial(is_served, plane, groups("default")), "groups are served")
    return plane


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
    code, result = plane.request("PUT", f"{path}/tpu-guardrails", body)
    if code == 404:
        code, result = plane.request("POST", path, body)
    assert code in (200, 201), result


def dry_run(plane: OwnControlPlane, namespace: str, group: Document) -> str:
    """Create a group in a dry run, and return the error, or ``""``."""
    body = {**group, "metadata": {**group["metadata"], "namespace": namespace}}
    code, answer = plane.request("POST", f"{groups(namespace)}?dryRun=All", body)
    return "" if code == 201 else f"{code} {answer['message']}"


def denial(group: str, binding: str, why: str) -> str:
    """Return the API server's message for a group that a policy denies."""
    return (
        f"403 {CRD} \"{group}\" is forbidden: ValidatingAdmissionPolicy 'tpu-guardrails' with "
        f"binding '{binding}' denied request: {why}"
    )


NO_LIMITS = (
    "failed to configure binding: no params found for policy binding with `Deny` "
    "parameterNotFoundAction"
)


# Values


def test_the_example_can_be_applied_to_a_new_cluster_and_again_without_change(
    plane: OwnControlPlane,
) -> None:
    assert {line.rpartition(" ")[2] for line in apply(plane, EXAMPLE)} == {"created"}
    assert [line for line in apply(plane, EXAMPLE) if not line.endswith(" unchanged")] == []


@pytest.fixture
def monitoring(plane: OwnControlPlane) -> None:
    """CRDs with the names of both monitoring operators' CRDs; they accept any object."""
    for group, kind in MONITORED:
        definition = define_anything(group, kind)
        plane.request("POST", DEFINITION.rpartition("/")[0], definition)
        path = f"/apis/{group}/v1/{kind.lower()}s"
        until(partial(is_served, plane, path), f"{kind} is served")


@pytest.mark.parametrize(
    "values",
    [
        {
            "identity": {
                "google": {"serviceAccount": "relay@my-gcp-project.iam.gserviceaccount.com"}
            },
            "devicePlugin": {"enabled": False},
            "monitoring": "google",
        },
        {
            "identity": {"users": dict(USERS), "google": {"keySecret": "relay-google-key"}},
            "pods": {"onControlPlane": True},
            "monitoring": "prometheus",
        },
    ],
    ids=["google", "prometheus"],
)
@pytest.mark.usefixtures("monitoring")
def test_objects_are_accepted_and_can_be_applied_again_without_change(
    installed: OwnControlPlane, values: Document
) -> None:
    apply(installed, values)
    assert [line for line in apply(installed, values) if not line.endswith(" unchanged")] == []
    relay = "/apis/apps/v1/namespaces/tpu-functions/deployments/relay"
    template = installed.request("GET", relay)[1]["spec"]["template"]
    pod = {"metadata": {"name": "trial"}, "spec": template["spec"]}
    code, result = installed.request(
        "POST", "/api/v1/namespaces/tpu-functions/pods?dryRun=All", pod
    )
    assert code == 201, f"a restricted namespace rejects the relay: {result}"


def add_node(
    plane: OwnControlPlane, name: str, labels: dict[str, str], taints: list[dict[str, str]]
) -> None:
    """Add a Node without a kubelet, which is Ready while `keep_ready` is called."""
    body = {"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}}
    assert plane.register_node(body)[0] == 201
    keep_ready(plane, name)


def keep_ready(plane: OwnControlPlane, name: str) -> None:
    """Report the Node as Ready: the scheduler ignores a Node after 50 s without a report."""
    resources = {"cpu": "8", "memory": "16Gi", "pods": "10"}
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    ready = {"type": "Ready", "status": "True", "reason": "Trial", "message": ""}
    condition = {**ready, "lastHeartbeatTime": now}
    status = {
        "status": {"capacity": resources, "allocatable": resources, "conditions": [condition]}
    }
    assert plane.request("PATCH", f"/api/v1/nodes/{name}/status", status, MERGE_PATCH)[0] == 200


def test_the_relays_token_has_the_audience_and_the_subject_of_the_docs(
    installed: OwnControlPlane,
) -> None:
    audience = AUDIENCE
    result = installed.run_kubectl(
        "create", "token", "relay", "-n", "tpu-functions", f"--audience={audience}"
    )
    payload = result.stdout.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    assert claims["aud"] == [audience]
    page = (Path(__file__).parents[2] / "docs" / "kubernetes-manifests.md").read_text()
    assert f"/subject/{claims['sub']}\n" in page


# Google identities


@pytest.fixture(scope="module")
def with_users(installed: OwnControlPlane) -> OwnControlPlane:
    apply(installed, WITH_USERS)
    return installed


def bootstrap_token(token_id: str) -> Document:
    data = {
        "token-id": token_id,
        "token-secret": "0123456789abcdef",
        "expiration": "2036-01-01T00:00:00Z",
        "auth-extra-groups": BOOTSTRAP_GROUP,
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
    """Create an object as a step's user, and return kubectl's stdout, or else its stderr."""
    stdin = json.dumps(document)
    result = plane.run_kubectl("create", f"--as={USERS[user]}", "-f", "-", stdin=stdin)
    return result.stdout or result.stderr


def test_the_admission_policy_restricts_a_user_to_bootstrap_tokens(
    with_users: OwnControlPlane,
) -> None:
    token = bootstrap_token("abcdef")
    assert create_as(with_users, "inject-token", token) == "secret/bootstrap-token-abcdef created\n"
    other = {**bootstrap_token("zyxwvu"), "type": "Opaque"}
    assert create_as(with_users, "inject-token", other) == (
        'Error from server (Forbidden): error when creating "STDIN": secrets '
        '"bootstrap-token-zyxwvu" is forbidden: ValidatingAdmissionPolicy '
        "'tpu-functions-bootstrap-tokens' with binding 'tpu-functions-bootstrap-tokens' denied "
        "request: tpu-functions may only create and delete bootstrap tokens in kube-system\n"
    )
    assert "cannot create resource" in create_as(with_users, "sweep", bootstrap_token("fedcba"))


@pytest.mark.parametrize("query", ["", "?dryRun=All"], ids=["not a dry run", "dry run"])
def test_a_user_cannot_read_foreign_secrets_by_deleting_all(
    with_users: OwnControlPlane, query: str
) -> None:
    secrets = "/api/v1/namespaces/kube-system/secrets"
    foreign = {"metadata": {"name": "keys"}, "stringData": {"key": "private"}}
    with_users.request("POST", secrets, foreign)
    user = f"--as={USERS['tear-down']}"
    result = with_users.run_kubectl("delete", user, f"--raw={secrets}{query}")
    assert result.stdout == ""
    assert result.stderr.startswith("Error from server (Forbidden): ")
    assert with_users.request("GET", f"{secrets}/keys")[0] == 200


# The device plugin


@pytest.fixture(scope="module")
def plugin(installed: OwnControlPlane, tmp_path_factory: pytest.TempPathFactory) -> ControlPlane:
    """Access with the token of the device plugin's Pod on the Node tng-c-1a2b3c4d-x1y2."""
    node = "tng-c-1a2b3c4d-x1y2"
    add_node(installed, node, {}, [])
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
    """Return access to the cluster with a token."""
    access = yaml.safe_load(plane.kubeconfig.read_text())
    for one in access["users"]:
        one["user"] = {"token": token}
    (folder / "kubeconfig").write_text(yaml.safe_dump(access))
    return ControlPlane(folder / "kubeconfig", plane.kubectl)


PLUGIN_DENIAL = "ValidatingAdmissionPolicy 'tpu-device-plugin-own-node' with binding "
PLUGIN_DENIAL += "'tpu-device-plugin-own-node' denied request: "
NOT_ITS_NODE = "the device plugin may only write the Node that it runs on"


def test_a_device_plugin_token_without_a_pod_cannot_write_a_node(
    installed: OwnControlPlane, plugin: ControlPlane, tmp_path: Path
) -> None:
    minted = installed.run_kubectl(
        "create", "token", "tpu-device-plugin-sa", "--namespace=kube-system"
    )
    without_pod = with_token(installed, minted.stdout.strip(), tmp_path)
    path = "/api/v1/nodes/tng-c-1a2b3c4d-x1y2?dryRun=All"
    label = {"metadata": {"labels": {"google.com/tpu-x": "1"}}}
    assert plugin.request("PATCH", path, label, MERGE_PATCH)[0] == 200
    code, result = without_pod.request("PATCH", path, label, MERGE_PATCH)
    assert (code, result["message"].partition("forbidden: ")[2]) == (
        403,
        PLUGIN_DENIAL + NOT_ITS_NODE,
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
def test_the_limits_of_a_namespace_apply_to_its_groups(
    installed: OwnControlPlane, case: Case
) -> None:
    namespace = case.id.lower()
    create_namespace(installed, namespace, OWN)
    binding = "tpu-guardrails-namespace-create"
    assert dry_run(installed, namespace, case.group).endswith(NO_LIMITS)
    write_limits(installed, namespace, case.limits)
    until(
        lambda: NO_LIMITS not in dry_run(installed, namespace, case.group), "limits are in effect"
    )
    expected = denial("my-slice", binding, case.message(namespace)) if case.refused else ""
    assert dry_run(installed, namespace, case.group) == expected


def test_the_limits_of_the_cluster_apply_to_all_other_namespaces(
    installed: OwnControlPlane,
) -> None:
    group = manifest()
    binding = "tpu-guardrails-cluster-create"
    create_namespace(installed, "limited")
    create_namespace(installed, "free", OWN)
    write_limits(installed, "free", {})
    write_limits(installed, "tpu-functions", {"maxChips": "4"})
    why = "spec.topology: 2x2x2 has 8 chips; allowed: 4 (ConfigMap tpu-functions/tpu-guardrails)"
    expected = denial("my-slice", binding, why)
    until(lambda: dry_run(installed, "limited", group) == expected, "the cluster's limits apply")
    until(lambda: dry_run(installed, "free", group) == "", "the other namespace has its own limits")
    write_limits(installed, "tpu-functions", {"maxChips": "8"})
    until(lambda: dry_run(installed, "limited", group) == "", "the limit is raised")


def test_without_limits_no_group_is_created_and_existing_ones_can_be_deleted(
    installed: OwnControlPlane,
) -> None:
    create_namespace(installed, "bare")
    write_limits(installed, "tpu-functions", {})
    until(lambda: dry_run(installed, "bare", manifest()) == "", "no limits apply")
    body = manifest("held", "bare")
    body["metadata"]["finalizers"] = [FINALIZER]
    assert installed.request("POST", groups("bare"), body)[0] == 201
    limits = "/api/v1/namespaces/tpu-functions/configmaps/tpu-guardrails"
    assert installed.request("DELETE", limits)[0] == 200
    until(lambda: dry_run(installed, "bare", manifest()).endswith(NO_LIMITS), "no group is created")
    held = f"{groups('bare')}/held"
    paused = {"metadata": {"annotations": {"tpu-functions.dev/paused": "true"}}}
    assert installed.request("PATCH", held, paused, MERGE_PATCH)[0] == 200
    assert installed.request("DELETE", held)[0] == 200
    without_finalizer = {"metadata": {"finalizers": None}}
    assert installed.request("PATCH", held, without_finalizer, MERGE_PATCH)[0] == 200
    assert installed.request("GET", held)[0] == 404


# Permissions to write the guardrails


@pytest.fixture(scope="module")
def limited(installed: OwnControlPlane) -> OwnControlPlane:
    """Namespace ``team`` with its own limits, in which jane has the ClusterRole ``admin``."""
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


DENIAL_OF_KEEPERS = (
    "'tpu-guardrails-keepers' denied request: only users who may write ConfigMap "
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
def test_an_admin_of_a_namespace_cannot_change_its_limits(
    limited: OwnControlPlane, attempt: tuple[str, ...]
) -> None:
    result = limited.run_kubectl(*attempt, "-n", "team", "--as=jane")
    assert result.stderr.endswith(DENIAL_OF_KEEPERS), result.stdout + result.stderr
    limits = limited.request("GET", "/api/v1/namespaces/team/configmaps/tpu-guardrails")[1]
    assert limits["data"] == {"maxChips": "8"}


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
        ({"maxChips": "many"}, "data.maxChips: many is not a whole number"),
        ({"maxChips": "-1"}, "data.maxChips: -1 is not a whole number"),
        ({"maxChips": ""}, "data.maxChips:  is not a whole number"),
        ({"maxBootDiskGB": "1 TB"}, "data.maxBootDiskGB: 1 TB is not a whole number"),
        ({"strict": "yes"}, "data.strict: yes is neither true nor false"),
    ],
    ids=["unknown-keys", "not-a-number", "negative", "empty", "a-size", "strict-not-boolean"],
)
def test_invalid_limits_are_rejected(
    limited: OwnControlPlane, limits: dict[str, str], why: str
) -> None:
    path = "/api/v1/namespaces/team/configmaps/tpu-guardrails"
    code, result = limited.request("PATCH", path, {"data": limits}, MERGE_PATCH)
    assert code == 422
    assert result["message"].endswith(f"'tpu-guardrails-keepers' denied request: {why}")


def test_a_namespace_with_limits_can_be_deleted(installed: OwnControlPlane) -> None:
    create_namespace(installed, "over", OWN)
    write_limits(installed, "over", {})
    assert installed.request("DELETE", "/api/v1/namespaces/over")[0] == 200
    until(lambda: installed.request("GET", "/api/v1/namespaces/over")[0] == 404, "it is deleted")


# Upgrades


def drop_rules(definition: Document) -> Document:
    """A CRD as an older version may have had it: without rules across fields, and any name is valid."""
    older = copy.deepcopy(definition)
    schema = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema.pop("x-kubernetes-validations", None)
    del schema["properties"]["metadata"]
    del schema["properties"]["spec"]["x-kubernetes-validations"]
    return older


def test_an_upgrade_by_server_side_apply_takes_ownership_and_keeps_invalid_objects(
    own_control_plane: OwnControlPlane,
) -> None:
    """A group or class that only an older CRD accepted can still be labelled, reported and deleted."""
    plane = own_control_plane
    group_crd = next(one for one in DOCUMENTS if one["metadata"]["name"] == CRD)
    older = [drop_rules(group_crd), drop_rules(CLASS_CRD)]
    schema = older[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["spec"]["properties"]["nodeCount"]["minimum"]
    result = plane.run_kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(older))
    assert result.returncode == 0, result.stderr
    invalid = [
        (groups("default"), manifest("odd", nodeCount=0)),
        *((groups("default"), manifest(name)) for name in specs.INVALID_NAMES),
        *((CLASSES, slice_class(name)) for name in class_specs.INVALID_NAMES),
    ]
    before = {}
    for collection, given in invalid:
        given["metadata"]["finalizers"] = [FINALIZER]
        post = partial(plane.request, "POST", collection, given)
        until(lambda post=post: post()[0] in (201, 409), "it is accepted")  # type: ignore[misc]
        path = f"{collection}/{given['metadata']['name']}"
        before[path] = plane.request("GET", path)[1]
    applied = apply(plane, {"slices": {"workloads": "jobsets"}}, "--server-side")
    for name in (CRD, CLASS_CRD["metadata"]["name"]):
        assert f"customresourcedefinition.apiextensions.k8s.io/{name} serverside-applied" in applied
    for collection, given in invalid:
        new = copy.deepcopy(given)
        new["metadata"] |= {"name": f"new-{given['metadata']['name']}"}
        create = partial(plane.request, "POST", f"{collection}?dryRun=All", new)
        until(lambda create=create: create()[0] == 422, "rules are new")  # type: ignore[misc]
    labelled = {"metadata": {"labels": {RESOURCE_NAME_LABEL: "tng-odd-1a2b3c4d"}}}
    for path, stored in before.items():
        assert plane.request("GET", path)[1] == stored
        calls = [
            ("PATCH", path, labelled),
            ("PATCH", f"{path}/status", {"status": {"conditions": []}}),
            ("DELETE", path, None),
            ("PATCH", path, {"metadata": {"finalizers": None}}),
        ]
        found = [plane.request(*call, MERGE_PATCH) for call in calls]
        assert [(code, answer.get("message")) for code, answer in found] == [(200, None)] * 4
        assert plane.request("GET", path)[0] == 404
