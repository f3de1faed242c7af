"""The properties of a real cluster on which the product relies: tokens, policies and roles.

A call that is denied to a step here is also denied to an attacker with the identity of that step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from local.base.http import Request
from local.vm.conversation import Certificate, Conversation, Identity, run_conversation
from local.vm.kubeadm import JoinConfiguration, join, public_key_pin, signing_request
from local.vm.kubelet import Node
from local.vm.transport import send_https
from shared.base.names import BOOTSTRAP_GROUP, RESOURCE_NAME_LABEL, VM_ID_LABEL
from shared.base.signing_requests import token_groups
from shared.node_groups.bootstrap import KUBEADM_GROUP, Token, token_secret
from shared.triggers.routes import STEPS
from tests.real.bridge.connections import Caller, trusting, with_certificate
from tests.real.bridge.installation import Installation
from tests.real.relay.waiting import until

pytestmark = pytest.mark.real

SECRETS = "/api/v1/namespaces/kube-system/secrets"
NODES = "/api/v1/nodes"
MERGE_PATCH = "application/merge-patch+json"
RESOURCE, VM = "tng-my-slice-0123abcd", "tng-my-slice-0123abcd-x7k2"


@pytest.fixture
def cluster(installation: Installation) -> Iterator[Installation]:
    """The installation, without groups and Nodes before and after."""
    installation.clean()
    yield installation
    installation.clean()


@dataclass(frozen=True)
class Answer:
    """An answer: its code, and the message of an error."""

    status: int
    message: str = ""


def ask(
    cluster: Installation, caller: str | Caller, method: str, path: str, body: Any = None
) -> Answer:
    """Call the API as a ServiceAccount of the installation, as ``admin``, or as another caller."""
    kind = MERGE_PATCH if method == "PATCH" else "application/json"
    headers = {"accept": "application/json", "content-type": kind}
    raw = None if body is None else json.dumps(body)
    accounts = {**cluster.accounts, "admin": cluster.admin.caller}
    sender = accounts[caller] if isinstance(caller, str) else caller
    answer = cluster.connections.send(sender, Request.of(method, path, headers=headers, body=raw))
    return Answer(answer.status, answer.json()["message"] if answer.status >= 400 else "")


def register(cluster: Installation, manifest: dict[str, Any]) -> Answer:
    """Create a Node as its own kubelet, which alone has the permission, without NodeRestriction."""
    code, answer = cluster.plane.register_node(manifest)
    return Answer(code, answer["message"] if code >= 400 else "")


def denied_by(policy: str, target: str, message: str) -> Answer:
    """Return the answer of an API server whose admission policy denies a request."""
    return Answer(
        403,
        f"{target} is forbidden: ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied "
        f"request: {message}",
    )


# tokens


def token(life: timedelta = timedelta(hours=1)) -> Token:
    expires = (datetime.now(UTC) + life).replace(microsecond=0)
    return Token("abc123", "0123456789abcdef", expires)


def secret(changes: Mapping[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """Return the Secret of inject_token with other data (``None``: without) and other fields."""
    manifest = token_secret(token(), resource_name=RESOURCE, vm=VM)
    data = {**manifest.pop("data"), **dict.fromkeys(changes or {})}
    plain = {key: value for key, value in (changes or {}).items() if value is not None}
    kept = {key: value for key, value in data.items() if value is not None}
    return {**manifest, "data": kept, "stringData": plain, **fields}


def is_accepted(cluster: Installation, bearer: Token) -> bool:
    caller = Caller("bootstrapper", trusting(cluster.plane.ca_pem), bearer.text)
    return cluster.connections.send(caller, Request.of("GET", "/version")).status == 200


def test_an_expired_token_is_deleted_rejected_and_no_longer_signed(cluster: Installation) -> None:
    short = token(timedelta(seconds=4))
    manifest = token_secret(short, resource_name=RESOURCE, vm=VM)
    assert ask(cluster, "inject-token", "POST", SECRETS, manifest) == Answer(201)
    cluster.await_none(lambda: [] if _exists(cluster, short) else ["the Secret"])
    cluster.await_none(cluster.pending_work)  # signed
    until(lambda: is_accepted(cluster, short), "the token is accepted")
    cluster.await_none(lambda: ["its deletion"] if _exists(cluster, short) else [])
    assert datetime.now(UTC) >= short.expires
    cluster.await_none(cluster.pending_work)  # no longer signed
    until(lambda: not is_accepted(cluster, short), "the token is rejected")


def test_a_revoked_token_is_rejected_within_seconds(cluster: Installation) -> None:
    """An API server caches an authentication for ten seconds."""
    manifest = token_secret(token(), resource_name=RESOURCE, vm=VM)
    assert ask(cluster, "inject-token", "POST", SECRETS, manifest) == Answer(201)
    until(lambda: is_accepted(cluster, token()), "the token is accepted")
    path = f"{SECRETS}/{token().secret_name}"
    assert ask(cluster, "label-node", "DELETE", path) == Answer(200)
    until(lambda: not is_accepted(cluster, token()), "the token is rejected", timeout_s=15)


def _exists(cluster: Installation, bearer: Token) -> bool:
    return cluster.mirrors["secrets"].find(bearer.secret_name, "kube-system") is not None


# the policy of Secrets


KIND = "tpu-functions may only create and delete bootstrap tokens in kube-system"
LABEL = (
    "tpu-functions may only create and delete bootstrap tokens of its own, which have the label "
    "tpu-functions.dev/resource-name"
)
LIFE = (
    f"bootstrap tokens of tpu-functions must expire, and be of the group {BOOTSTRAP_GROUP} (with "
    "join_approval = external also of kubeadm's)"
)
NAMED = secret()["metadata"]
DENIED_SECRETS: dict[str, tuple[dict[str, Any], str]] = {
    "another type": (secret(type="Opaque"), KIND),
    "another label": (secret(metadata={**NAMED, "labels": {"app": "mine"}}), LABEL),
    "no expiration": (secret({"expiration": None}), LIFE),
    "kubeadm's group": (secret({"auth-extra-groups": KUBEADM_GROUP}), LIFE),
    "one more group": (
        secret({"auth-extra-groups": f"{BOOTSTRAP_GROUP},system:bootstrappers:x"}),
        LIFE,
    ),
    "one more group than its VM's": (
        secret({"auth-extra-groups": f"{token_groups(VM, '42')},system:bootstrappers:x"}),
        LIFE,
    ),
}


@pytest.mark.parametrize("manifest, message", DENIED_SECRETS.values(), ids=DENIED_SECRETS.keys())
def test_inject_token_may_create_only_its_own_bootstrap_tokens(
    cluster: Installation, manifest: dict[str, Any], message: str
) -> None:
    what = f'secrets "{manifest["metadata"]["name"]}"'
    denial = denied_by("tpu-functions-bootstrap-tokens", what, message)
    assert ask(cluster, "inject-token", "POST", SECRETS, manifest) == denial
    assert ask(cluster, "admin", "POST", f"{SECRETS}?dryRun=All", manifest) == Answer(201)


@pytest.mark.usefixtures("bound_to_cluster_admin")
@pytest.mark.parametrize("step", [step.replace("_", "-") for step in STEPS])
def test_the_policy_restricts_a_step_that_is_bound_to_cluster_admin(
    cluster: Installation, step: str
) -> None:
    """With a binding to cluster-admin, only the policy restricts a step."""
    elsewhere = "/api/v1/namespaces/default/secrets"
    manifest = secret(metadata={**NAMED, "namespace": "default"})
    what = 'secrets "bootstrap-token-abc123"'
    denial = denied_by("tpu-functions-bootstrap-tokens", what, KIND)
    assert ask(cluster, step, "POST", elsewhere, manifest) == denial
    assert ask(cluster, "admin", "POST", SECRETS, secret()) == Answer(201)
    path = f"{SECRETS}/bootstrap-token-abc123"
    change = {"metadata": {"annotations": {"a": "b"}}}
    assert ask(cluster, step, "PATCH", path, change) == denial
    assert ask(cluster, step, "DELETE", path) == Answer(200)


@pytest.fixture
def bound_to_cluster_admin(cluster: Installation) -> Iterator[None]:
    """Bind all ServiceAccounts of the product to cluster-admin."""
    group = "rbac.authorization.k8s.io"
    accounts = {"apiGroup": group, "kind": "Group", "name": "system:serviceaccounts:tpu-functions"}
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "bound-to-cluster-admin"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [accounts],
    }
    cluster.admin.demand("POST", BINDINGS, binding)
    cluster.canaries.await_roles()
    yield
    cluster.admin.demand("DELETE", f"{BINDINGS}/bound-to-cluster-admin")
    cluster.canaries.await_roles()


FOREIGN: dict[str, tuple[dict[str, Any], str]] = {
    "no token": (secret(type="Opaque"), KIND),
    "another name": (secret(metadata={**NAMED, "name": "password"}), KIND),
    "a token of kubeadm": (secret(metadata={"name": "bootstrap-token-abc123"}), LABEL),
}


@pytest.mark.parametrize("step", ["label-node", "approve-join"])
@pytest.mark.parametrize("manifest, message", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_step_may_not_delete_foreign_secrets(
    cluster: Installation, step: str, manifest: dict[str, Any], message: str
) -> None:
    name = manifest["metadata"]["name"]
    assert ask(cluster, "admin", "POST", SECRETS, manifest) == Answer(201)
    denial = denied_by("tpu-functions-bootstrap-tokens", f'secrets "{name}"', message)
    assert ask(cluster, step, "DELETE", f"{SECRETS}/{name}") == denial
    assert ask(cluster, "admin", "DELETE", f"{SECRETS}/{name}") == Answer(200)


# the policy of Nodes


def node(name: str, **metadata: Any) -> dict[str, Any]:
    labels = {RESOURCE_NAME_LABEL: RESOURCE, **metadata.pop("labels", {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, **metadata},
        "spec": {"providerID": f"gce://my-gcp-project/us-central1-c/{name}"},
    }


CONTROL_PLANE = {"labels": {"node-role.kubernetes.io/control-plane": ""}}
FOREIGN_NODES = {
    "another name": node("worker-1"),
    "a control plane": node("tng-my-slice-0123abcd-cp01", **CONTROL_PLANE),
}
CORDON = {"spec": {"unschedulable": True}}


@pytest.mark.parametrize("step", ["label-node", "tear-down", "inject-token"])
@pytest.mark.parametrize("manifest", FOREIGN_NODES.values(), ids=FOREIGN_NODES.keys())
def test_a_step_may_not_change_or_delete_foreign_nodes(
    cluster: Installation, step: str, manifest: dict[str, Any]
) -> None:
    name = manifest["metadata"]["name"]
    path = f"{NODES}/{name}"
    assert register(cluster, manifest) == Answer(201)
    denial = denied_by(
        "tpu-functions-nodes",
        f'nodes "{name}"',
        "tpu-functions may only change and delete Nodes of its own VMs, whose names begin with tng-",
    )
    assert ask(cluster, step, "DELETE", path) == denial
    if step != "inject-token":  # it has no permission to change Nodes
        assert ask(cluster, step, "PATCH", path, CORDON) == denial
    assert ask(cluster, "admin", "PATCH", path, CORDON) == Answer(200)
    assert ask(cluster, "admin", "DELETE", path) == Answer(200)


BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


# a kubelet


def converse(cluster: Installation, conversation: Conversation[Identity]) -> Identity:
    """Join the real cluster; where a VM would sleep, wait for the controllers."""
    return run_conversation(
        conversation,
        lambda step: send_https(step, lambda _: cluster.plane.server),
        lambda _seconds: cluster.await_none(cluster.pending_work),
    )


@pytest.fixture
def kubelet(cluster: Installation) -> Caller:
    """A kubelet of this system that has joined with an automatically approved token, and its Node."""
    approved = token_secret(token(), resource_name=RESOURCE, vm=VM, bootstrap_group=KUBEADM_GROUP)
    assert ask(cluster, "admin", "POST", SECRETS, approved) == Answer(201)
    cluster.await_token(token().text)
    pin = public_key_pin(cluster.plane.ca_pem)
    configuration = JoinConfiguration("10.128.0.2:6443", token().text, (pin,), Node(VM))
    identity = converse(cluster, join(configuration, lambda: datetime.now(UTC)))
    assert isinstance(identity.credential, Certificate)
    tls = with_certificate(trusting(identity.ca_pem), identity.credential)
    caller = Caller(f"system:node:{VM}", tls)
    assert ask(cluster, caller, "POST", NODES, node(VM)) == Answer(201)
    return caller


OTHER = "tng-my-slice-0123abcd-b3m9"
MODIFIES_OTHER = (
    f'nodes "{OTHER}" is forbidden: node "{VM}" is not allowed to modify node "{OTHER}"'
)
MODIFIES_PROOF = f'nodes "{VM}" is forbidden: is not allowed to modify labels: {VM_ID_LABEL}'
OTHERS_REQUEST = signing_request(ec.generate_private_key(ec.SECP256R1()), OTHER)
ATTACKS: dict[str, tuple[str, str, Any, Answer]] = {
    "claim another VM by the proof": (
        "PATCH",
        f"{NODES}/{VM}",
        {"metadata": {"labels": {VM_ID_LABEL: "7"}}},
        Answer(403, MODIFIES_PROOF),
    ),
    "claim another VM by its providerID": (
        "PATCH",
        f"{NODES}/{VM}",
        {"spec": {"providerID": f"gce://my-gcp-project/us-central1-c/{OTHER}"}},
        Answer(
            422,
            f'Node "{VM}" is invalid: spec.providerID: Forbidden: node updates may not change '
            'providerID except from "" to valid',
        ),
    ),
    "remove its taints": (
        "PATCH",
        f"{NODES}/{VM}",
        {"spec": {"taints": [{"key": "mine", "effect": "NoSchedule"}]}},
        Answer(403, f'nodes "{VM}" is forbidden: node "{VM}" is not allowed to modify taints'),
    ),
    "write another Node's labels": (
        "PATCH",
        f"{NODES}/{OTHER}",
        {"metadata": {"labels": {RESOURCE_NAME_LABEL: RESOURCE}}},
        Answer(403, MODIFIES_OTHER),
    ),
    "write another Node's status": (
        "PATCH",
        f"{NODES}/{OTHER}/status",
        {"status": {"capacity": {"google.com/tpu": "4"}}},
        Answer(403, MODIFIES_OTHER),
    ),
    "register a second Node": (
        "POST",
        NODES,
        node("tng-my-slice-0123abcd-new1"),
        Answer(
            403,
            f'nodes "tng-my-slice-0123abcd-new1" is forbidden: node "{VM}" is not allowed to '
            'modify node "tng-my-slice-0123abcd-new1"',
        ),
    ),
    "delete its Node": (
        "DELETE",
        f"{NODES}/{VM}",
        None,
        Answer(
            403,
            f'nodes "{VM}" is forbidden: User "system:node:{VM}" cannot delete resource "nodes" in '
            'API group "" at the cluster scope',
        ),
    ),
    "request another kubelet's certificate": (
        "POST",
        "/apis/certificates.k8s.io/v1/certificatesigningrequests",
        OTHERS_REQUEST,
        Answer(
            403,
            "certificatesigningrequests.certificates.k8s.io "
            f'"{OTHERS_REQUEST["metadata"]["name"]}" is forbidden: can only create a node CSR with '
            f"CN=system:node:{VM}",
        ),
    ),
    "read a token": (
        "GET",
        f"{SECRETS}/bootstrap-token-abc123",
        None,
        Answer(
            403,
            f'secrets "bootstrap-token-abc123" is forbidden: User "system:node:{VM}" cannot get '
            'resource "secrets" in API group "" in the namespace "kube-system": no relationship '
            f"found between node '{VM}' and this object",
        ),
    ),
}


@pytest.mark.parametrize("method, path, body, expected", ATTACKS.values(), ids=ATTACKS.keys())
def test_a_kubelet_cannot_claim_another_identity(
    cluster: Installation, kubelet: Caller, method: str, path: str, body: Any, expected: Answer
) -> None:
    assert register(cluster, node(OTHER)) == Answer(201)
    assert ask(cluster, kubelet, method, path, body) == expected


def test_a_kubelet_cannot_remove_its_proof_of_membership(
    cluster: Installation, kubelet: Caller
) -> None:
    path = f"{NODES}/{VM}"
    proof = {"metadata": {"labels": {VM_ID_LABEL: "1234"}}}
    assert ask(cluster, "label-node", "PATCH", path, proof) == Answer(200)
    away = {"metadata": {"labels": {VM_ID_LABEL: None}}}
    assert ask(cluster, kubelet, "PATCH", path, away) == Answer(403, MODIFIES_PROOF)
    own = {"metadata": {"labels": {"cloud.google.com/gke-tpu-topology": "2x2x2"}}}
    assert ask(cluster, kubelet, "PATCH", path, own) == Answer(200)


def test_a_kubelet_cannot_register_with_a_proof_of_membership(
    cluster: Installation, kubelet: Caller
) -> None:
    assert ask(cluster, "label-node", "DELETE", f"{NODES}/{VM}") == Answer(200)
    labels = {VM_ID_LABEL: "1234"}
    message = (
        f'nodes "{VM}" is forbidden: node "{VM}" is not allowed to set the following labels: '
        f"{VM_ID_LABEL}"
    )
    assert ask(cluster, kubelet, "POST", NODES, node(VM, labels=labels)) == Answer(403, message)
