"""The installed manifests are complete and labelled, and have no unused permission."""

from __future__ import annotations

from base64 import b64encode
from random import Random

import pytest

from local.gke.nodes import make_nodes
from local.kube.placement import selects
from shared.base.names import (
    ACCELERATOR_LABEL,
    BOOTSTRAP_GROUP,
    KUBELET_SIGNER,
    POOL_LABEL,
    RESOURCE_NAME_LABEL,
)
from shared.base.signing_requests import token_groups
from shared.node_groups.bootstrap import KUBEADM_GROUP
from shared.node_groups.spec import DEFAULT_VERSION
from shared.triggers.routes import STEPS
from tests.support.admission import refusal
from tests.unit.infra.chart.manifests import (
    DOCUMENTS,
    LABELS,
    SECRET,
    Manifest,
    expand,
    merge_patch,
)


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


@pytest.mark.conformance("dp-not-updated")
@pytest.mark.parametrize("document", DOCUMENTS, ids=identify)
def test_every_manifest_has_the_recommended_labels(document: Manifest) -> None:
    labels = document["metadata"]["labels"]
    assert set(LABELS) <= labels.keys()
    assert labels["app.kubernetes.io/part-of"] == "tpu-functions"


# Permissions


@pytest.mark.parametrize("role", of_kind("Role", "ClusterRole"), ids=identify)
def test_no_role_may_read_secrets_or_has_a_wildcard(role: Manifest) -> None:
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

INJECT_TOKEN = {
    "username": "system:serviceaccount:tpu-functions:inject-token",
    "groups": ["system:serviceaccounts", "system:serviceaccounts:tpu-functions"],
}
ADMINISTRATOR = {"username": "jane", "groups": ["system:masters"]}


def find_rejection(
    policy: str, operation: str, item: Manifest, user: Manifest = INJECT_TOKEN
) -> str:
    document = named("ValidatingAdmissionPolicy", policy)
    return refusal(document, operation, item, user=user)


ONLY_TOKENS = "tpu-functions may only create and delete bootstrap tokens in kube-system"
ONLY_OWN_TOKENS = (
    "tpu-functions may only create and delete bootstrap tokens of its own, which have the label "
    f"{RESOURCE_NAME_LABEL}"
)
ONLY_JOIN_TOKENS = (
    f"bootstrap tokens of tpu-functions must expire, and be of the group {BOOTSTRAP_GROUP} (with "
    "join_approval = external also of kubeadm's)"
)


OF_VM = token_groups("tng-training-1a2b3c4d-x1y2", "42")


def of_groups(groups: str) -> Manifest:
    return {"data": {"auth-extra-groups": b64encode(groups.encode()).decode()}}


@pytest.mark.parametrize(
    "operation, change, message",
    [
        pytest.param("CREATE", {}, "", id="a-token-of-inject-token"),
        pytest.param("DELETE", {}, "", id="its-deletion"),
        pytest.param("UPDATE", {}, ONLY_TOKENS, id="a-change"),
        pytest.param("CREATE", {"type": "Opaque"}, ONLY_TOKENS, id="another-type"),
        pytest.param("CREATE", {"type": None}, ONLY_TOKENS, id="no-type"),
        pytest.param("CREATE", {"metadata": {"name": "admin"}}, ONLY_TOKENS, id="another-name"),
        pytest.param("DELETE", {"metadata": {"name": "admin"}}, ONLY_TOKENS, id="delete-another"),
        pytest.param(
            "CREATE", {"metadata": {"namespace": "default"}}, ONLY_TOKENS, id="another-namespace"
        ),
        pytest.param("CREATE", {"metadata": {"labels": None}}, ONLY_OWN_TOKENS, id="no-labels"),
        pytest.param(
            "DELETE",
            {"metadata": {"labels": {RESOURCE_NAME_LABEL: None}}},
            ONLY_OWN_TOKENS,
            id="delete-the-token-of-an-admin",
        ),
        pytest.param(
            "CREATE", {"data": {"expiration": None}}, ONLY_JOIN_TOKENS, id="no-expiration"
        ),
        pytest.param("CREATE", {"data": None}, ONLY_JOIN_TOKENS, id="empty"),
        pytest.param(
            "CREATE",
            {"data": {"auth-extra-groups": "c3lzdGVtOm1hc3RlcnM="}},
            ONLY_JOIN_TOKENS,
            id="of-system-masters",
        ),
        pytest.param(
            "CREATE",
            of_groups(KUBEADM_GROUP),
            ONLY_JOIN_TOKENS,
            id="of-kubeadms-group",
        ),
        pytest.param("CREATE", of_groups(OF_VM), "", id="that-names-its-vm"),
        *(
            pytest.param(
                "CREATE",
                of_groups(f"{OF_VM}{digits},{KUBEADM_GROUP}"),
                ONLY_JOIN_TOKENS,
                id=f"one-group-more{digits}",
            )
            for digits in ("", "1", "12")  # the comma is any of three bytes
        ),
        pytest.param(
            "CREATE",
            of_groups(f"{BOOTSTRAP_GROUP},{KUBEADM_GROUP}"),
            ONLY_JOIN_TOKENS,
            id="another-second-group",
        ),
    ],
)
def test_a_step_may_create_and_delete_only_its_own_bootstrap_tokens(
    operation: str, change: Manifest, message: str
) -> None:
    assert (
        find_rejection("tpu-functions-bootstrap-tokens", operation, merge_patch(SECRET, change))
        == message
    )


REQUEST: Manifest = {
    "metadata": {"name": "csr-x"},
    "spec": {
        "signerName": KUBELET_SIGNER,
        "username": "system:bootstrap:abcdef",
        "groups": ["system:bootstrappers", BOOTSTRAP_GROUP, "system:authenticated"],
    },
}
ONLY_OWN_JOINS = (
    "tpu-functions may only approve and deny requests for kubelets' certificates by holders of its own "
    "bootstrap tokens"
)


@pytest.mark.parametrize(
    "change, message",
    [
        pytest.param({}, "", id="by-the-holder-of-an-own-token"),
        pytest.param(
            {"groups": ["system:bootstrappers", KUBEADM_GROUP]},
            ONLY_OWN_JOINS,
            id="by-the-holder-of-another-token",
        ),
        pytest.param({"username": "system:node:tng-x"}, ONLY_OWN_JOINS, id="by-a-kubelet"),
        pytest.param({"username": None}, ONLY_OWN_JOINS, id="without-a-user"),
        pytest.param({"groups": None}, ONLY_OWN_JOINS, id="without-groups"),
        pytest.param(
            {"signerName": "kubernetes.io/kube-apiserver-client"},
            ONLY_OWN_JOINS,
            id="to-another-signer",
        ),
    ],
)
def test_a_step_may_decide_only_requests_by_its_own_bootstrap_tokens(
    change: Manifest, message: str
) -> None:
    request = merge_patch(REQUEST, {"spec": change})
    assert find_rejection("tpu-functions-join-approvals", "UPDATE", request) == message


HOLDER: Manifest = {
    "username": "system:bootstrap:abcdef",
    "groups": ["system:bootstrappers", BOOTSTRAP_GROUP, "system:authenticated"],
}
"""A user with a bootstrap token of tpu-functions."""


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
            "a bootstrap token of tpu-functions may only request a kubelet's client certificate",
            id="to-another-signer",
        ),
    ],
)
def test_the_holder_of_a_token_may_only_request_a_small_kubelet_certificate(
    change: Manifest, message: str
) -> None:
    request = merge_patch(REQUEST, {"spec": change})
    assert find_rejection("tpu-functions-join-requests", "CREATE", request, HOLDER) == message


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
def test_the_holder_of_a_token_may_not_add_metadata_to_a_request(
    metadata: Manifest,
) -> None:
    request = merge_patch(REQUEST, {"metadata": metadata, "spec": {"request": "a"}})
    assert find_rejection("tpu-functions-join-requests", "CREATE", request, HOLDER) == (
        "a request by a bootstrap token of tpu-functions may have no labels, annotations, finalizers "
        "and owners, as a kubelet's has none"
    )


NODE: Manifest = {"metadata": {"name": "tng-training-1a2b3c4d-x1y2", "labels": {}}}
ONLY_OWN_NODES = (
    "tpu-functions may only change and delete Nodes of its own VMs, whose names begin with tng-"
)


@pytest.mark.parametrize("operation", ["UPDATE", "DELETE"])
@pytest.mark.parametrize(
    "change, message",
    [
        pytest.param({}, "", id="an-own-node"),
        pytest.param({"metadata": {"labels": None}}, "", id="one-without-labels"),
        pytest.param(
            {"metadata": {"name": "tng-training-1a2b3c4d-x1y2.example.internal"}},
            "",
            id="one-with-a-domain",
        ),
        pytest.param({"metadata": {"name": "worker-1"}}, ONLY_OWN_NODES, id="another-node"),
        pytest.param(
            {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}},
            ONLY_OWN_NODES,
            id="a-control-plane",
        ),
    ],
)
def test_a_step_may_change_and_delete_only_the_nodes_of_its_own_vms(
    operation: str, change: Manifest, message: str
) -> None:
    assert find_rejection("tpu-functions-nodes", operation, merge_patch(NODE, change)) == message


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
PROVED: Manifest = merge_patch(
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
                ("a-further-proof", "team.node-restriction.kubernetes.io/a", "b"),
                ("a-role", "node-role.kubernetes.io/control-plane", ""),
            )
        ),
        pytest.param(
            {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
            ONLY_WHAT_KUBELETS_WRITE,
            id="a-taint",
        ),
        pytest.param({"spec": {"providerID": "gce://p/z/w"}}, ONLY_WHAT_KUBELETS_WRITE, id="a-vm"),
        pytest.param(
            {"metadata": {"finalizers": ["a/b"]}}, ONLY_WHAT_KUBELETS_WRITE, id="a-finalizer"
        ),
        pytest.param(
            {"metadata": {"ownerReferences": [{"name": "a"}]}},
            ONLY_WHAT_KUBELETS_WRITE,
            id="an-owner",
        ),
    ],
)
def test_the_device_plugin_may_write_to_its_node_only_what_a_kubelet_may(
    change: Manifest, message: str
) -> None:
    policy = named("ValidatingAdmissionPolicy", "tpu-device-plugin-own-node")
    found = refusal(policy, "UPDATE", merge_patch(PROVED, change), old=PROVED, user=PLUGIN)
    assert found == message


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE", "DELETE"])
@pytest.mark.parametrize(
    "extra",
    [{CLAIM: ["tng-training-1a2b3c4d-other"]}, {"authentication.kubernetes.io/pod-name": ["a"]}],
    ids=["of-another-node", "of-no-node"],
)
def test_the_device_plugin_may_not_write_another_node(
    operation: str, extra: dict[str, list[str]]
) -> None:
    user = {**PLUGIN, "extra": extra}
    assert find_rejection("tpu-device-plugin-own-node", operation, PROVED, user) == ONLY_ITS_NODE


@pytest.mark.parametrize("operation", ["CREATE", "DELETE"])
def test_the_device_plugin_may_not_create_or_delete_its_own_node(operation: str) -> None:
    assert find_rejection("tpu-device-plugin-own-node", operation, PROVED, PLUGIN) == ONLY_ITS_NODE


ONLY_KUBELETS = (
    "a Node whose name begins with tng- is registered by the kubelet of that VM alone, as system:node "
    "and its name"
)
OWN_NODE, FOREIGN_NODE = "tng-training-1a2b3c4d-x1y2", "tng-training-1a2b3c4d-z3w4"


@pytest.mark.parametrize(
    "user, name, message",
    [
        pytest.param(f"system:node:{OWN_NODE}", OWN_NODE, "", id="by-its-kubelet"),
        pytest.param(
            f"system:node:{OWN_NODE}.example.internal",
            f"{OWN_NODE}.example.internal",
            "",
            id="with-a-domain-by-its-kubelet",
        ),
        pytest.param(f"system:node:{FOREIGN_NODE}", OWN_NODE, ONLY_KUBELETS, id="by-another-VM"),
        pytest.param("kubernetes-admin", OWN_NODE, ONLY_KUBELETS, id="by-an-administrator"),
        pytest.param(OWN_NODE, OWN_NODE, ONLY_KUBELETS, id="by-a-user-of-that-name"),
        pytest.param("kubernetes-admin", "worker-1", "", id="of-another-machine"),
    ],
)
def test_only_the_kubelet_of_a_vm_may_register_its_node(user: str, name: str, message: str) -> None:
    requester = {"username": user, "groups": ["system:masters"]}
    node = {"metadata": {"name": name}}
    assert find_rejection("tpu-functions-node-registrations", "CREATE", node, requester) == message


@pytest.mark.parametrize("version", [DEFAULT_VERSION, "1.33", None])
def test_a_group_with_the_default_version_of_kubernetes_is_accepted_with_a_warning(
    version: str | None,
) -> None:
    name = "tpu-functions-default-version"
    bootstrap = {"bootstrapKubernetes": {"version": version}} if version else {}
    text = find_rejection(name, "CREATE", {"metadata": {}, "spec": bootstrap})
    assert text.startswith(f"spec.bootstrapKubernetes.version is {version}, as if") is (
        version == DEFAULT_VERSION
    )
    assert named("ValidatingAdmissionPolicyBinding", name)["spec"]["validationActions"] == ["Warn"]


DENYING = [
    policy
    for policy in of_kind("ValidatingAdmissionPolicy")
    if policy["metadata"]["name"] != "tpu-functions-default-version"
]


@pytest.mark.parametrize("policy", DENYING, ids=identify)
def test_every_policy_is_bound_with_the_action_deny(policy: Manifest) -> None:
    name = policy["metadata"]["name"]
    binding = named("ValidatingAdmissionPolicyBinding", name)["spec"]
    assert binding == {"policyName": name, "validationActions": ["Deny"]}


@pytest.mark.parametrize(
    "policy",
    [
        policy
        for policy in DENYING
        if policy["metadata"]["name"] != "tpu-functions-node-registrations"
    ],
    ids=identify,
)
def test_every_policy_except_node_registrations_restricts_only_its_subject(
    policy: Manifest,
) -> None:
    name = policy["metadata"]["name"]
    subject = {**PLUGIN, "extra": {}} if name.startswith("tpu-device-plugin") else INJECT_TOKEN
    wrong = merge_patch(SECRET, {"metadata": {"name": "admin", "namespace": "kube-system"}})
    operation = "UPDATE"
    if name == "tpu-functions-join-approvals":
        wrong = merge_patch(REQUEST, {"spec": {"username": "admin"}})
    if name == "tpu-functions-join-requests":
        operation, subject = "CREATE", HOLDER
        wrong = merge_patch(
            REQUEST, {"spec": {"signerName": "kubernetes.io/kube-apiserver-client"}}
        )
    assert find_rejection(name, operation, wrong, ADMINISTRATOR) == ""
    assert find_rejection(name, operation, wrong, subject) != ""


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


@pytest.mark.conformance("dp-daemonset", "dp-service-account-not-applied")
def test_the_device_plugin_runs_only_on_tpu_nodes_and_tolerates_their_taints() -> None:
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


def test_the_device_plugin_does_not_run_on_nodes_of_gke() -> None:
    config = {"machineType": "ct6e-standard-4t"}
    pool = {"name": "p", "config": config, "locations": ["us-east5-a"], "initialNodeCount": 1}
    (gke_node,) = make_nodes(pool, "my-project", Random(0), tpu_taint=True)
    own_labels = {ACCELERATOR_LABEL: "tpu-v6e-slice", POOL_LABEL: "train-bfcf5ebea76efcf5"}
    spec = pod_of("DaemonSet", "tpu-device-plugin", "kube-system")
    for labels, is_placed in ((own_labels, True), (dict(gke_node.labels), False)):
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


def test_the_relay_meets_the_restricted_pod_security_standard() -> None:
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


def test_the_relay_is_probed_at_its_configured_port() -> None:
    (container,) = pod_of("Deployment", "relay", "tpu-functions")["containers"]
    assert container["ports"] == [{"name": "http", "containerPort": 8080}]
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("readiness", "liveness")}
    assert probes == {
        "readiness": {"path": "/readyz", "port": "http"},
        "liveness": {"path": "/healthz", "port": "http"},
    }


def test_the_service_account_of_a_step_mounts_no_token() -> None:
    for step in STEPS:
        account = named("ServiceAccount", step.replace("_", "-"), "tpu-functions")
        assert account["automountServiceAccountToken"] is False
