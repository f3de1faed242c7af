"""What is installed in the cluster: complete, labelled, and with no right that is not used."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from local.gke.nodes import make_nodes
from local.kube.placement import selects
from relay.settings import VARIABLES, read_settings
from shared.base.environment import SettingsError
from shared.base.names import (
    ACCELERATOR_LABEL,
    BOOTSTRAP_GROUP,
    KUBELET_SIGNER,
    POOL_LABEL,
    RESOURCE_NAME_LABEL,
    STEPS,
)
from shared.node_groups.bootstrap import KUBEADM_GROUP, Token, token_secret
from tests.admission import refusal

Manifest = dict[str, Any]
Right = tuple[str, str, str, str]
"""Namespace (or ``*``), API group, resource (``/`` and a name if only one), verb."""

BASE = Path(__file__).parents[2] / "infra" / "kubernetes" / "base"
KUSTOMIZATION: Manifest = yaml.safe_load((BASE / "kustomization.yaml").read_text())
DOCUMENTS: list[Manifest] = [
    document
    for name in KUSTOMIZATION["resources"]
    for document in yaml.safe_load_all((BASE / name).read_text())
]
LABELS = ("app.kubernetes.io/name", "app.kubernetes.io/component", "app.kubernetes.io/part-of")


def of_kind(*kinds: str) -> list[Manifest]:
    return [document for document in DOCUMENTS if document["kind"] in kinds]


def named(kind: str, name: str, namespace: str = "") -> Manifest:
    (found,) = (
        document
        for document in of_kind(kind)
        if document["metadata"]["name"] == name
        and document["metadata"].get("namespace", "") == namespace
    )
    return found


def identify(document: Manifest) -> str:
    return f"{document['kind']}-{document['metadata']['name']}"


def test_every_manifest_of_the_folder_is_part_of_the_base() -> None:
    files = {path.name for path in BASE.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(KUSTOMIZATION["resources"]) == files


@pytest.mark.parametrize("document", DOCUMENTS, ids=identify)
def test_every_document_says_what_it_belongs_to(document: Manifest) -> None:
    labels = document["metadata"]["labels"]
    assert set(LABELS) <= labels.keys()
    assert labels["app.kubernetes.io/part-of"] == "tpu-functions"


# Rights


def expand(role: Manifest) -> Iterator[Right]:
    namespace = role["metadata"].get("namespace", "*")
    for rule in role["rules"]:
        names = [f"/{name}" for name in rule.get("resourceNames", ())] or [""]
        yield from (
            (namespace, group, resource + name, verb)
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for name in names
            for verb in rule["verbs"]
        )


@pytest.mark.parametrize("role", of_kind("Role", "ClusterRole"), ids=identify)
def test_no_role_reads_secrets_or_holds_a_wildcard(role: Manifest) -> None:
    for _, group, resource, verb in expand(role):
        assert "*" not in (group, resource, verb)
        if resource.partition("/")[0] == "secrets":
            assert verb in ("create", "delete", "deletecollection")


@pytest.mark.parametrize("binding", of_kind("RoleBinding", "ClusterRoleBinding"), ids=identify)
def test_a_binding_binds_one_account_that_exists(binding: Manifest) -> None:
    (subject,) = binding["subjects"]
    if subject["kind"] == "Group":
        assert subject["name"] == BOOTSTRAP_GROUP
        return
    assert named(subject["kind"], subject["name"], subject["namespace"])


# Admission policies

US = {
    "username": "system:serviceaccount:tpu-functions:inject-token",
    "groups": ["system:serviceaccounts", "system:serviceaccounts:tpu-functions"],
}
OTHERS = {"username": "jane", "groups": ["system:masters"]}


def refused(policy: str, operation: str, item: Manifest, user: Manifest = US) -> str:
    document = named("ValidatingAdmissionPolicy", policy)
    return refusal(document, operation, item, user=user)


def merged(target: Any, change: Any) -> Any:
    """The JSON merge patch ``change`` on ``target``, in a copy."""
    if not isinstance(change, dict):
        return change
    base = target if isinstance(target, dict) else {}
    keys = [key for key in (base | change) if change.get(key, ...) is not None]
    return {key: merged(base.get(key), change[key]) if key in change else base[key] for key in keys}


SECRET = token_secret(
    Token("abcdef", "0123456789abcdef", datetime(2026, 1, 1, tzinfo=UTC)),
    resource_name="tng-training-1a2b3c4d",
    vm="tng-training-1a2b3c4d-x1y2",
)
ONLY_TOKENS = "tpu-functions may only create and delete bootstrap tokens in kube-system"
ONLY_OURS = (
    "tpu-functions may only create and delete bootstrap tokens of its own, which have the label "
    f"{RESOURCE_NAME_LABEL}"
)
ONLY_JOINING = (
    f"bootstrap tokens of tpu-functions must expire, and be of the group {BOOTSTRAP_GROUP} or "
    f"{KUBEADM_GROUP}"
)


@pytest.mark.parametrize(
    "operation, change, message",
    [
        pytest.param("CREATE", {}, "", id="a-token-as-inject-token-makes-it"),
        pytest.param("DELETE", {}, "", id="its-deletion"),
        pytest.param("UPDATE", {}, ONLY_TOKENS, id="a-change"),
        pytest.param("CREATE", {"type": "Opaque"}, ONLY_TOKENS, id="another-type"),
        pytest.param("CREATE", {"type": None}, ONLY_TOKENS, id="no-type"),
        pytest.param("CREATE", {"metadata": {"name": "admin"}}, ONLY_TOKENS, id="another-name"),
        pytest.param("DELETE", {"metadata": {"name": "admin"}}, ONLY_TOKENS, id="delete-another"),
        pytest.param(
            "CREATE", {"metadata": {"namespace": "default"}}, ONLY_TOKENS, id="another-namespace"
        ),
        pytest.param("CREATE", {"metadata": {"labels": None}}, ONLY_OURS, id="no-labels"),
        pytest.param(
            "DELETE",
            {"metadata": {"labels": {RESOURCE_NAME_LABEL: None}}},
            ONLY_OURS,
            id="delete-the-token-of-an-admin",
        ),
        pytest.param("CREATE", {"data": {"expiration": None}}, ONLY_JOINING, id="for-ever"),
        pytest.param("CREATE", {"data": None}, ONLY_JOINING, id="empty"),
        pytest.param(
            "CREATE",
            {"data": {"auth-extra-groups": "c3lzdGVtOm1hc3RlcnM="}},
            ONLY_JOINING,
            id="of-system-masters",
        ),
    ],
)
def test_of_secrets_only_bootstrap_tokens_of_ones_own_pass(
    operation: str, change: Manifest, message: str
) -> None:
    assert refused("tpu-functions-bootstrap-tokens", operation, merged(SECRET, change)) == message


REQUEST: Manifest = {
    "metadata": {"name": "csr-x"},
    "spec": {
        "signerName": KUBELET_SIGNER,
        "username": "system:bootstrap:abcdef",
        "groups": ["system:bootstrappers", BOOTSTRAP_GROUP, "system:authenticated"],
    },
}
ONLY_OUR_JOINS = (
    "tpu-functions may only approve and deny requests for kubelets' certificates by holders of its own "
    "bootstrap tokens"
)


@pytest.mark.parametrize(
    "change, message",
    [
        pytest.param({}, "", id="by-the-holder-of-a-token-of-ours"),
        pytest.param(
            {"groups": ["system:bootstrappers", KUBEADM_GROUP]},
            ONLY_OUR_JOINS,
            id="by-the-holder-of-another-token",
        ),
        pytest.param({"username": "system:node:tng-x"}, ONLY_OUR_JOINS, id="by-a-kubelet"),
        pytest.param({"username": None}, ONLY_OUR_JOINS, id="by-nobody"),
        pytest.param({"groups": None}, ONLY_OUR_JOINS, id="without-groups"),
        pytest.param(
            {"signerName": "kubernetes.io/kube-apiserver-client"},
            ONLY_OUR_JOINS,
            id="to-another-signer",
        ),
    ],
)
def test_of_requests_only_those_by_tokens_of_ours_may_be_decided(
    change: Manifest, message: str
) -> None:
    request = merged(REQUEST, {"spec": change})
    assert refused("tpu-functions-join-approvals", "UPDATE", request) == message


HOLDER: Manifest = {
    "username": "system:bootstrap:abcdef",
    "groups": ["system:bootstrappers", BOOTSTRAP_GROUP, "system:authenticated"],
}
"""Whoever holds a bootstrap token of ours."""


@pytest.mark.parametrize(
    "change, message",
    [
        pytest.param({"request": "a" * 8192}, "", id="a-kubelet's"),
        pytest.param(
            {"request": "a" * 8193},
            "a request by a bootstrap token of tpu-functions may have at most 8 KiB",
            id="a-large-one",
        ),
        pytest.param(
            {"request": "a", "signerName": "kubernetes.io/legacy-unknown"},
            "a bootstrap token of tpu-functions may only ask for a kubelet's client certificate",
            id="to-another-signer",
        ),
    ],
)
def test_what_the_holder_of_a_token_may_ask_for(change: Manifest, message: str) -> None:
    request = merged(REQUEST, {"spec": change})
    assert refused("tpu-functions-join-requests", "CREATE", request, HOLDER) == message


@pytest.mark.parametrize(
    "metadata",
    [
        {"annotations": {"a": "b"}},
        {"labels": {"a": "b"}},
        {"finalizers": ["example.com/a"]},
        {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "b"}]},
    ],
    ids=["annotations", "labels", "finalizers", "owners"],
)
def test_the_holder_of_a_token_sends_what_a_kubelet_sends_and_nothing_more(
    metadata: Manifest,
) -> None:
    request = merged(REQUEST, {"metadata": metadata, "spec": {"request": "a"}})
    assert refused("tpu-functions-join-requests", "CREATE", request, HOLDER) == (
        "a request by a bootstrap token of tpu-functions may have no labels, annotations, finalizers "
        "and owners, as a kubelet's has none"
    )


NODE: Manifest = {"metadata": {"name": "tng-training-1a2b3c4d-x1y2", "labels": {}}}
ONLY_OUR_NODES = (
    "tpu-functions may only change and delete Nodes of its own VMs, whose names begin with tng-"
)


@pytest.mark.parametrize("operation", ["UPDATE", "DELETE"])
@pytest.mark.parametrize(
    "change, message",
    [
        pytest.param({}, "", id="a-node-of-ours"),
        pytest.param({"metadata": {"labels": None}}, "", id="one-without-labels"),
        pytest.param(
            {"metadata": {"name": "tng-training-1a2b3c4d-x1y2.example.internal"}},
            "",
            id="one-with-a-domain",
        ),
        pytest.param({"metadata": {"name": "worker-1"}}, ONLY_OUR_NODES, id="another-node"),
        pytest.param(
            {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}},
            ONLY_OUR_NODES,
            id="a-control-plane",
        ),
    ],
)
def test_of_nodes_only_those_of_our_vms_may_be_touched(
    operation: str, change: Manifest, message: str
) -> None:
    assert refused("tpu-functions-nodes", operation, merged(NODE, change)) == message


CLAIM = "authentication.kubernetes.io/node-name"
PLUGIN: Manifest = {
    "username": "system:serviceaccount:kube-system:tpu-device-plugin-sa",
    "groups": ["system:serviceaccounts", "system:serviceaccounts:kube-system"],
    "extra": {CLAIM: [NODE["metadata"]["name"]]},
}
ONLY_ITS_NODE = "the device plugin may only write the Node that it runs on"
ONLY_WHAT_KUBELETS_WRITE = (
    "the device plugin may not change a Node's spec, owners, finalizers or the labels under "
    "node-restriction.kubernetes.io and node-role.kubernetes.io"
)
PROVED: Manifest = merged(
    NODE,
    {
        "metadata": {"labels": {"node-restriction.kubernetes.io/tpu-functions-vm-id": "42"}},
        "spec": {"providerID": "gce://p/z/v"},
    },
)


@pytest.mark.parametrize(
    "change, message",
    [
        pytest.param({"metadata": {"labels": {"google.com/tpu-chips": "4"}}}, "", id="a-label"),
        pytest.param({"metadata": {"annotations": {"a": "b"}}}, "", id="an-annotation"),
        pytest.param({"status": {"capacity": {"google.com/tpu": "4"}}}, "", id="its-capacity"),
        *(
            pytest.param({"metadata": {"labels": {key: value}}}, ONLY_WHAT_KUBELETS_WRITE, id=name)
            for name, key, value in (
                ("another-proof", "node-restriction.kubernetes.io/tpu-functions-vm-id", "43"),
                ("no-proof", "node-restriction.kubernetes.io/tpu-functions-vm-id", None),
                ("a-proof-more", "team.node-restriction.kubernetes.io/a", "b"),
                ("a-role", "node-role.kubernetes.io/control-plane", ""),
            )
        ),
        pytest.param(
            {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
            ONLY_WHAT_KUBELETS_WRITE,
            id="a-taint",
        ),
        pytest.param({"spec": {"providerID": "gce://p/z/w"}}, ONLY_WHAT_KUBELETS_WRITE, id="a-vm"),
        pytest.param({"metadata": {"finalizers": ["a/b"]}}, ONLY_WHAT_KUBELETS_WRITE, id="a-hold"),
        pytest.param(
            {"metadata": {"ownerReferences": [{"name": "a"}]}},
            ONLY_WHAT_KUBELETS_WRITE,
            id="an-owner",
        ),
    ],
)
def test_the_device_plugin_may_say_of_its_node_what_a_kubelet_may(
    change: Manifest, message: str
) -> None:
    policy = named("ValidatingAdmissionPolicy", "tpu-device-plugin-own-node")
    said = refusal(policy, "UPDATE", merged(PROVED, change), old=PROVED, user=PLUGIN)
    assert said == message


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE", "DELETE"])
@pytest.mark.parametrize(
    "extra",
    [{CLAIM: ["tng-training-1a2b3c4d-other"]}, {"authentication.kubernetes.io/pod-name": ["a"]}],
    ids=["of-another-node", "of-no-node"],
)
def test_the_device_plugin_may_not_touch_another_node(
    operation: str, extra: dict[str, list[str]]
) -> None:
    user = {**PLUGIN, "extra": extra}
    assert refused("tpu-device-plugin-own-node", operation, PROVED, user) == ONLY_ITS_NODE


@pytest.mark.parametrize("operation", ["CREATE", "DELETE"])
def test_nor_make_or_delete_its_own(operation: str) -> None:
    assert refused("tpu-device-plugin-own-node", operation, PROVED, PLUGIN) == ONLY_ITS_NODE


ONLY_KUBELETS = (
    "a Node whose name begins with tng- is registered by the kubelet of that VM alone, as system:node "
    "and its name"
)
OUR_NODE, FOREIGN_NODE = "tng-training-1a2b3c4d-x1y2", "tng-training-1a2b3c4d-z3w4"


@pytest.mark.parametrize(
    "user, name, message",
    [
        pytest.param(f"system:node:{OUR_NODE}", OUR_NODE, "", id="by-its-kubelet"),
        pytest.param(
            f"system:node:{OUR_NODE}.example.internal",
            f"{OUR_NODE}.example.internal",
            "",
            id="with-a-domain-by-its-kubelet",
        ),
        pytest.param(f"system:node:{FOREIGN_NODE}", OUR_NODE, ONLY_KUBELETS, id="by-another-VM"),
        pytest.param("kubernetes-admin", OUR_NODE, ONLY_KUBELETS, id="by-an-administrator"),
        pytest.param(OUR_NODE, OUR_NODE, ONLY_KUBELETS, id="by-a-user-of-that-name"),
        pytest.param("kubernetes-admin", "worker-1", "", id="of-another-machine"),
    ],
)
def test_a_node_of_a_vm_is_registered_by_its_kubelet_alone(
    user: str, name: str, message: str
) -> None:
    asked = {"username": user, "groups": ["system:masters"]}
    made = {"metadata": {"name": name}}
    assert refused("tpu-functions-node-registrations", "CREATE", made, asked) == message


@pytest.mark.parametrize("policy", of_kind("ValidatingAdmissionPolicy"), ids=identify)
def test_policies_are_bound_to_deny(policy: Manifest) -> None:
    name = policy["metadata"]["name"]
    binding = named("ValidatingAdmissionPolicyBinding", name)["spec"]
    assert binding == {"policyName": name, "validationActions": ["Deny"]}


@pytest.mark.parametrize(
    "policy",
    [
        policy
        for policy in of_kind("ValidatingAdmissionPolicy")
        if policy["metadata"]["name"] != "tpu-functions-node-registrations"
    ],
    ids=identify,
)
def test_policies_but_that_of_registrations_bind_us_and_nobody_else(policy: Manifest) -> None:
    name = policy["metadata"]["name"]
    bound = {**PLUGIN, "extra": {}} if name.startswith("tpu-device-plugin") else US
    wrong = merged(SECRET, {"metadata": {"name": "admin", "namespace": "kube-system"}})
    operation = "UPDATE"
    if name == "tpu-functions-join-approvals":
        wrong = merged(REQUEST, {"spec": {"username": "admin"}})
    if name == "tpu-functions-join-requests":
        operation, bound = "CREATE", HOLDER
        wrong = merged(REQUEST, {"spec": {"signerName": "kubernetes.io/kube-apiserver-client"}})
    assert refused(name, operation, wrong, OTHERS) == ""
    assert refused(name, operation, wrong, bound) != ""


# Workloads


def pod_of(kind: str, name: str, namespace: str) -> Manifest:
    workload = named(kind, name, namespace)
    template: Manifest = workload["spec"]["template"]
    assert (
        workload["spec"]["selector"]["matchLabels"].items()
        <= template["metadata"]["labels"].items()
    )
    pod: Manifest = template["spec"]
    return pod


def test_the_device_plugin_runs_on_tpu_nodes_only_and_whatever_their_taints() -> None:
    pod = pod_of("DaemonSet", "tpu-device-plugin", "kube-system")
    required = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required == {
        "nodeSelectorTerms": [
            {
                "matchExpressions": [
                    {"key": ACCELERATOR_LABEL, "operator": "Exists"},
                    {"key": "cloud.google.com/gke-os-distribution", "operator": "DoesNotExist"},
                ]
            }
        ]
    }
    assert pod["tolerations"] == [
        {"operator": "Exists", "effect": "NoExecute"},
        {"operator": "Exists", "effect": "NoSchedule"},
    ]
    assert named("ServiceAccount", pod["serviceAccountName"], "kube-system")


def test_the_device_plugin_runs_on_no_node_of_gke_which_has_its_own() -> None:
    config = {"machineType": "ct6e-standard-4t"}
    pool = {"name": "p", "config": config, "locations": ["us-east5-a"], "initialNodeCount": 1}
    (theirs,) = make_nodes(pool, "my-project", Random(0), tpu_taint=True)
    ours = {ACCELERATOR_LABEL: "tpu-v6e-slice", POOL_LABEL: "train-bfcf5ebea76efcf5"}
    spec = pod_of("DaemonSet", "tpu-device-plugin", "kube-system")
    for labels, is_placed in ((ours, True), (dict(theirs.labels), False)):
        node = {"metadata": {"name": "n", "labels": labels}}
        assert labels[ACCELERATOR_LABEL] == "tpu-v6e-slice"
        assert selects(spec, node) is is_placed


def test_the_device_plugins_images_are_pinned_and_its_mounts_exist() -> None:
    pod = pod_of("DaemonSet", "tpu-device-plugin", "kube-system")
    volumes = {volume["name"] for volume in pod["volumes"]}
    mounted = {mount["name"] for box in pod["containers"] for mount in box["volumeMounts"]}
    assert volumes == mounted
    for container in pod["containers"]:
        assert "@sha256:" in container["image"] or container["image"].endswith(":1.35.7-gke.0")


def test_the_relay_is_what_a_restricted_namespace_takes() -> None:
    pod = pod_of("Deployment", "relay", "tpu-functions")
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    labels = named("Namespace", "tpu-functions")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_the_relay_is_probed_at_the_port_that_its_settings_say() -> None:
    (container,) = pod_of("Deployment", "relay", "tpu-functions")["containers"]
    assert container["ports"] == [{"name": "http", "containerPort": int(relay_settings()["PORT"])}]
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("readiness", "liveness")}
    assert probes == {
        "readiness": {"path": "/readyz", "port": "http"},
        "liveness": {"path": "/healthz", "port": "http"},
    }


def relay_settings() -> dict[str, str]:
    (generator,) = KUSTOMIZATION["configMapGenerator"]
    return dict(literal.split("=", 1) for literal in generator["literals"])


def test_the_base_sets_what_the_relay_knows_and_leaves_the_project_to_the_overlay() -> None:
    settings = relay_settings()
    assert settings.keys() <= {variable.name for variable in VARIABLES.values()}
    with pytest.raises(SettingsError, match=r"^PUBSUB_PROJECT is not set: it must be"):
        read_settings(settings)
    assert read_settings({**settings, "PUBSUB_PROJECT": "my-gcp-project"}).port == 8080


def test_no_pod_runs_as_a_step() -> None:
    for step in STEPS:
        account = named("ServiceAccount", step.replace("_", "-"), "tpu-functions")
        assert account["automountServiceAccountToken"] is False
