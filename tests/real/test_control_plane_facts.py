"""What the product relies on of a cluster, asked of a real one: tokens end, policies and roles hold.

Whatever a step is refused here, somebody who has taken over that step is refused as well.
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
from shared.node_groups.bootstrap import KUBEADM_GROUP, Token, token_secret
from tests.real.bridge.connections import Caller, showing, trusting
from tests.real.bridge.installation import Installation
from tests.real.relay.patience import until

pytestmark = pytest.mark.real

SECRETS = "/api/v1/namespaces/kube-system/secrets"
NODES = "/api/v1/nodes"
GROUPS = "/apis/tpu.google.com/v1alpha1/namespaces/default/tpunodegroups"
MERGE_PATCH = "application/merge-patch+json"
OURS, VM = "tng-my-slice-0123abcd", "tng-my-slice-0123abcd-x7k2"
STEPS = (
    "create-resources",
    "inject-token",
    "label-node",
    "tear-down",
    "approve-join",
    "sweep",
    "report-leaks",
)


@pytest.fixture
def cluster(installation: Installation) -> Iterator[Installation]:
    """The installation, with nothing in it before and after."""
    installation.clean()
    yield installation
    installation.clean()


@dataclass(frozen=True)
class Said:
    """An answer: its code, and the message of a refusal."""

    status: int
    message: str = ""


def ask(cluster: Installation, who: str | Caller, method: str, path: str, body: Any = None) -> Said:
    """Ask as a ServiceAccount of the installation, as ``admin``, or as somebody else."""
    kind = MERGE_PATCH if method == "PATCH" else "application/json"
    headers = {"accept": "application/json", "content-type": kind}
    raw = None if body is None else json.dumps(body)
    accounts = {**cluster.accounts, "admin": cluster.admin.caller}
    caller = accounts[who] if isinstance(who, str) else who
    answer = cluster.connections.send(caller, Request.of(method, path, headers=headers, body=raw))
    return Said(answer.status, answer.json()["message"] if answer.status >= 400 else "")


def register(cluster: Installation, manifest: dict[str, Any]) -> Said:
    """Make a Node as its own kubelet, which alone may, but without NodeRestriction."""
    code, answer = cluster.plane.register_node(manifest)
    return Said(code, answer["message"] if code >= 400 else "")


def refused_by(policy: str, what: str, message: str) -> Said:
    """The answer of an API server whose admission policy says no."""
    return Said(
        403,
        f"{what} is forbidden: ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied "
        f"request: {message}",
    )


# tokens


def token(life: timedelta = timedelta(hours=1)) -> Token:
    expires = (datetime.now(UTC) + life).replace(microsecond=0)
    return Token("abc123", "0123456789abcdef", expires)


def secret(changes: Mapping[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """The Secret that inject_token makes, with other data (``None``: without) and other fields."""
    manifest = token_secret(token(), resource_name=OURS, vm=VM)
    data = {**manifest.pop("data"), **dict.fromkeys(changes or {})}
    plain = {key: value for key, value in (changes or {}).items() if value is not None}
    kept = {key: value for key, value in data.items() if value is not None}
    return {**manifest, "data": kept, "stringData": plain, **fields}


def is_accepted(cluster: Installation, bearer: Token) -> bool:
    caller = Caller("bootstrapper", trusting(cluster.plane.ca_pem), bearer.text)
    return cluster.connections.send(caller, Request.of("GET", "/version")).status == 200


def test_a_token_that_expires_is_refused_unsigned_and_deleted(cluster: Installation) -> None:
    short = token(timedelta(seconds=4))
    manifest = token_secret(short, resource_name=OURS, vm=VM)
    assert ask(cluster, "inject-token", "POST", SECRETS, manifest) == Said(201)
    cluster.await_news(lambda: [] if _is_there(cluster, short) else ["the Secret"])
    cluster.await_news(cluster.unrest)  # signed
    until(lambda: is_accepted(cluster, short), "the token is accepted")
    cluster.await_news(lambda: ["its end"] if _is_there(cluster, short) else [])
    assert datetime.now(UTC) >= short.expires
    cluster.await_news(cluster.unrest)  # signed no more
    until(lambda: not is_accepted(cluster, short), "the token is refused")


def test_a_token_that_is_revoked_is_refused_within_seconds(cluster: Installation) -> None:
    """An API server remembers for ten seconds whom it has let in."""
    manifest = token_secret(token(), resource_name=OURS, vm=VM)
    assert ask(cluster, "inject-token", "POST", SECRETS, manifest) == Said(201)
    until(lambda: is_accepted(cluster, token()), "the token is accepted")
    path = f"{SECRETS}/{token().secret_name}"
    assert ask(cluster, "label-node", "DELETE", path) == Said(200)
    until(lambda: not is_accepted(cluster, token()), "the token is refused", patience_s=15)


def _is_there(cluster: Installation, bearer: Token) -> bool:
    return cluster.mirrors["secrets"].find(bearer.secret_name, "kube-system") is not None


# the policy of Secrets


KIND = "tpu-functions may only create and delete bootstrap tokens in kube-system"
LABEL = (
    "tpu-functions may only create and delete bootstrap tokens of its own, which have the label "
    "tpu-functions.dev/resource-name"
)
LIFE = (
    f"bootstrap tokens of tpu-functions must expire, and be of the group {BOOTSTRAP_GROUP} or "
    f"{KUBEADM_GROUP}"
)
NAMED = secret()["metadata"]
WRONG_SECRETS: dict[str, tuple[dict[str, Any], str]] = {
    "another type": (secret(type="Opaque"), KIND),
    "no type": (secret(type=None), KIND),
    "another name": (secret(metadata={**NAMED, "name": "my-token"}), KIND),
    "nobody's label": (secret(metadata={"name": "bootstrap-token-abc123"}), LABEL),
    "another label": (secret(metadata={**NAMED, "labels": {"app": "mine"}}), LABEL),
    "no expiration": (secret({"expiration": None}), LIFE),
    "an empty expiration": (secret({"expiration": ""}), LIFE),
    "no group": (secret({"auth-extra-groups": None}), LIFE),
    "another group": (secret({"auth-extra-groups": "system:bootstrappers:admins"}), LIFE),
    "one more group": (
        secret({"auth-extra-groups": f"{BOOTSTRAP_GROUP},system:bootstrappers:x"}),
        LIFE,
    ),
    "no data": (secret(data={}), LIFE),
}


@pytest.mark.parametrize("manifest, message", WRONG_SECRETS.values(), ids=WRONG_SECRETS.keys())
def test_inject_token_makes_no_secret_but_a_token_of_its_own(
    cluster: Installation, manifest: dict[str, Any], message: str
) -> None:
    what = f'secrets "{manifest["metadata"]["name"]}"'
    refusal = refused_by("tpu-functions-bootstrap-tokens", what, message)
    assert ask(cluster, "inject-token", "POST", SECRETS, manifest) == refusal
    assert ask(cluster, "admin", "POST", f"{SECRETS}?dryRun=All", manifest) == Said(201)


def test_inject_token_makes_a_token(cluster: Installation) -> None:
    assert ask(cluster, "inject-token", "POST", SECRETS, secret()) == Said(201)
    again = Said(409, 'secrets "bootstrap-token-abc123" already exists')
    assert ask(cluster, "inject-token", "POST", SECRETS, secret()) == again


@pytest.mark.usefixtures("almighty")
@pytest.mark.parametrize("step", STEPS)
def test_the_policy_holds_for_a_step_that_has_got_all_rights(
    cluster: Installation, step: str
) -> None:
    """As when somebody binds it to cluster-admin: then the policy is all that is left."""
    elsewhere = "/api/v1/namespaces/default/secrets"
    manifest = secret(metadata={**NAMED, "namespace": "default"})
    what = 'secrets "bootstrap-token-abc123"'
    refusal = refused_by("tpu-functions-bootstrap-tokens", what, KIND)
    assert ask(cluster, step, "POST", elsewhere, manifest) == refusal
    assert ask(cluster, "admin", "POST", SECRETS, secret()) == Said(201)
    path = f"{SECRETS}/bootstrap-token-abc123"
    change = {"metadata": {"annotations": {"a": "b"}}}
    assert ask(cluster, step, "PATCH", path, change) == refusal
    assert ask(cluster, step, "DELETE", path) == Said(200)


@pytest.fixture
def almighty(cluster: Installation) -> Iterator[None]:
    """Somebody has bound all of the product's ServiceAccounts to cluster-admin."""
    group = "rbac.authorization.k8s.io"
    accounts = {"apiGroup": group, "kind": "Group", "name": "system:serviceaccounts:tpu-functions"}
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "almighty"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [accounts],
    }
    cluster.admin.demand("POST", BINDINGS, binding)
    cluster.canaries.await_roles()
    yield
    cluster.admin.demand("DELETE", f"{BINDINGS}/almighty")
    cluster.canaries.await_roles()


FOREIGN: dict[str, tuple[dict[str, Any], str]] = {
    "no token": (secret(type="Opaque"), KIND),
    "another name": (secret(metadata={**NAMED, "name": "password"}), KIND),
    "a token of kubeadm": (secret(metadata={"name": "bootstrap-token-abc123"}), LABEL),
}


@pytest.mark.parametrize("step", ["label-node", "approve-join"])
@pytest.mark.parametrize("manifest, message", FOREIGN.values(), ids=FOREIGN.keys())
def test_steps_delete_no_foreign_secrets(
    cluster: Installation, step: str, manifest: dict[str, Any], message: str
) -> None:
    name = manifest["metadata"]["name"]
    assert ask(cluster, "admin", "POST", SECRETS, manifest) == Said(201)
    refusal = refused_by("tpu-functions-bootstrap-tokens", f'secrets "{name}"', message)
    assert ask(cluster, step, "DELETE", f"{SECRETS}/{name}") == refusal
    assert ask(cluster, "admin", "DELETE", f"{SECRETS}/{name}") == Said(200)


@pytest.mark.parametrize("step", ["label-node", "approve-join"])
def test_steps_delete_tokens_of_their_own(cluster: Installation, step: str) -> None:
    assert ask(cluster, "inject-token", "POST", SECRETS, secret()) == Said(201)
    assert ask(cluster, step, "DELETE", f"{SECRETS}/bootstrap-token-abc123") == Said(200)


# the policy of Nodes


def node(name: str, **metadata: Any) -> dict[str, Any]:
    labels = {RESOURCE_NAME_LABEL: OURS, **metadata.pop("labels", {})}
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
def test_steps_touch_no_nodes_of_others(
    cluster: Installation, step: str, manifest: dict[str, Any]
) -> None:
    name = manifest["metadata"]["name"]
    path = f"{NODES}/{name}"
    assert register(cluster, manifest) == Said(201)
    refusal = refused_by(
        "tpu-functions-nodes",
        f'nodes "{name}"',
        "tpu-functions may only change and delete Nodes of its own VMs, whose names begin with tng-",
    )
    assert ask(cluster, step, "DELETE", path) == refusal
    if step != "inject-token":  # which has no right to change any
        assert ask(cluster, step, "PATCH", path, CORDON) == refusal
    assert ask(cluster, "admin", "PATCH", path, CORDON) == Said(200)
    assert ask(cluster, "admin", "DELETE", path) == Said(200)


@pytest.mark.parametrize("step", ["label-node", "tear-down", "inject-token"])
def test_steps_change_and_delete_nodes_of_their_own(cluster: Installation, step: str) -> None:
    assert register(cluster, node(VM)) == Said(201)
    if step != "inject-token":
        assert ask(cluster, step, "PATCH", f"{NODES}/{VM}", CORDON) == Said(200)
    assert ask(cluster, step, "DELETE", f"{NODES}/{VM}") == Said(200)


# roles


@dataclass(frozen=True)
class Thing:
    """What may be asked for: a resource, perhaps one of a name only."""

    group: str
    resource: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""


VERBS = (
    *("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"),
    "approve",
)
TPU = "tpu.google.com"
THINGS = {
    "groups": Thing(TPU, "tpunodegroups", "default"),
    "groups' status": Thing(TPU, "tpunodegroups", "default", "", "status"),
    "tpu-operator's policies": Thing(TPU, "workloadpolicies", "default"),
    "tpu-operator's templates": Thing(TPU, "instancetemplates", "default"),
    "tpu-operator's MIGs": Thing(TPU, "managedinstancegroups", "default"),
    "nodes": Thing("", "nodes"),
    "nodes' status": Thing("", "nodes", subresource="status"),
    "nodes' proxy": Thing("", "nodes", subresource="proxy"),
    "secrets of kube-system": Thing("", "secrets", "kube-system"),
    "secrets": Thing("", "secrets", "default"),
    "the CA": Thing("", "configmaps", "kube-system", "kube-root-ca.crt"),
    "config maps of kube-system": Thing("", "configmaps", "kube-system"),
    "config maps": Thing("", "configmaps", "default"),
    "events": Thing("", "events", "default"),
    "kube-system": Thing("", "namespaces", "", "kube-system"),
    "namespaces": Thing("", "namespaces"),
    "pods of kube-system": Thing("", "pods", "kube-system"),
    "shells in pods": Thing("", "pods", "kube-system", "", "exec"),
    "daemon sets": Thing("apps", "daemonsets", "kube-system"),
    "deployments": Thing("apps", "deployments", "tpu-functions"),
    "accounts' tokens": Thing("", "serviceaccounts", "tpu-functions", "", "token"),
    "roles": Thing("rbac.authorization.k8s.io", "clusterroles"),
    "bindings": Thing("rbac.authorization.k8s.io", "clusterrolebindings"),
    "policies": Thing("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
    "signing requests": Thing("certificates.k8s.io", "certificatesigningrequests"),
    "approvals of signing requests": Thing(
        "certificates.k8s.io", "certificatesigningrequests", subresource="approval"
    ),
    "the signer of kubelets' certificates": Thing(
        "certificates.k8s.io", "signers", "", "kubernetes.io/kube-apiserver-client-kubelet"
    ),
    "other signers": Thing("certificates.k8s.io", "signers", "", "kubernetes.io/legacy-unknown"),
    "definitions": Thing("apiextensions.k8s.io", "customresourcedefinitions"),
}
COMMON = {"groups' status": "update", "events": "get create patch", "kube-system": "get"}
RIGHTS: dict[str, dict[str, str]] = {
    "create-resources": {
        **COMMON,
        "groups": "get list patch",
        "tpu-operator's policies": "get",
        "tpu-operator's templates": "get",
        "tpu-operator's MIGs": "get",
    },
    "inject-token": {
        **COMMON,
        "groups": "get list",
        "nodes": "get list delete",
        "secrets of kube-system": "create",
        "the CA": "get",
    },
    "label-node": {
        **COMMON,
        "groups": "get list",
        "nodes": "get list patch delete",
        "secrets of kube-system": "delete",
    },
    "tear-down": {
        **COMMON,
        "groups": "get list patch",
        "nodes": "get list patch delete",
        "secrets of kube-system": "deletecollection",
    },
    "approve-join": {
        "groups": "list",
        "secrets of kube-system": "delete",
        "events": "create",
        "kube-system": "get",
        "signing requests": "get",
        "approvals of signing requests": "update",
        "the signer of kubelets' certificates": "approve",
    },
    "sweep": {"groups": "list", "signing requests": "list", "kube-system": "get"},
    "report-leaks": {"groups": "list", "kube-system": "get"},
    "relay": {
        "groups": "list watch",
        "nodes": "list watch",
        "signing requests": "list watch",
        "kube-system": "get",
    },
}


@pytest.mark.parametrize("account", RIGHTS)
def test_each_identity_may_do_what_it_must_and_nothing_else(
    cluster: Installation, account: str
) -> None:
    found = {
        name: " ".join(verb for verb in VERBS if _may(cluster, account, verb, thing))
        for name, thing in THINGS.items()
    }
    assert {name: verbs for name, verbs in found.items() if verbs} == RIGHTS[account]


def _may(cluster: Installation, account: str, verb: str, thing: Thing) -> bool:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"verb": verb, **vars(thing)}},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    request = Request.of(
        "POST", path, headers={"content-type": "application/json"}, body=json.dumps(review)
    )
    answer = cluster.connections.send(cluster.accounts[account], request)
    return bool(answer.json()["status"]["allowed"])


def forbidden(account: str, verb: str, thing: Thing) -> Said:
    """RBAC's own words."""
    what = f"{thing.resource}.{thing.group}" if thing.group else thing.resource
    named = f' "{thing.name}"' if thing.name else ""
    resource = f"{thing.resource}/{thing.subresource}" if thing.subresource else thing.resource
    place = f'in the namespace "{thing.namespace}"' if thing.namespace else "at the cluster scope"
    return Said(
        403,
        f'{what}{named} is forbidden: User "system:serviceaccount:tpu-functions:{account}" cannot '
        f'{verb} resource "{resource}" in API group "{thing.group}" {place}',
    )


DAEMON_SETS = "/apis/apps/v1/namespaces/kube-system/daemonsets"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
TRIES: dict[str, tuple[str, str, Thing]] = {
    "list Secrets": ("GET", SECRETS, THINGS["secrets of kube-system"]),
    "read a Secret": (
        "GET",
        f"{SECRETS}/bootstrap-token-abc123",
        Thing("", "secrets", "kube-system", "bootstrap-token-abc123"),
    ),
    "delete all Secrets": ("DELETE", SECRETS, THINGS["secrets of kube-system"]),
    "make a DaemonSet": ("POST", DAEMON_SETS, THINGS["daemon sets"]),
    "make itself almighty": ("POST", BINDINGS, THINGS["bindings"]),
    "write a Node's status": (
        "PATCH",
        f"{NODES}/{VM}/status",
        Thing("", "nodes", "", VM, "status"),
    ),
    "make a Node": ("POST", NODES, THINGS["nodes"]),
    "delete a group": (
        "DELETE",
        f"{GROUPS}/my-slice",
        Thing(TPU, "tpunodegroups", "default", "my-slice"),
    ),
    "make a group": ("POST", GROUPS, THINGS["groups"]),
}
VERB_OF = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}


@pytest.mark.parametrize(
    "account, method, path, thing",
    [
        pytest.param(account, *attempt, id=f"{name}-{account}")
        for name, attempt in TRIES.items()
        for account in RIGHTS
        # tear_down deletes by label, which an admission policy narrows (test_installation.py).
        if (name, account) != ("delete all Secrets", "tear-down")
    ],
)
def test_no_identity_can(
    cluster: Installation, account: str, method: str, path: str, thing: Thing
) -> None:
    verb = VERB_OF[method]
    if not thing.name:
        verb = {"get": "list", "delete": "deletecollection"}.get(verb, verb)
    body: dict[str, Any] | None = {} if method in ("POST", "PATCH") else None
    assert ask(cluster, account, method, path, body) == forbidden(account, verb, thing)


@pytest.mark.parametrize("account", ["relay", "create-resources", "sweep"])
def test_who_has_no_business_with_nodes_cannot_delete_them(
    cluster: Installation, account: str
) -> None:
    assert register(cluster, node(VM)) == Said(201)
    refusal = forbidden(account, "delete", Thing("", "nodes", "", VM))
    assert ask(cluster, account, "DELETE", f"{NODES}/{VM}") == refusal


# a kubelet


def converse(cluster: Installation, conversation: Conversation[Identity]) -> Identity:
    """Join for real; where a VM would wait, the controllers are waited for."""
    return run_conversation(
        conversation,
        lambda step: send_https(step, lambda _: cluster.plane.server),
        lambda _seconds: cluster.await_news(cluster.unrest),
    )


@pytest.fixture
def kubelet(cluster: Installation) -> Caller:
    """A kubelet of ours: joined with a token that the cluster approves, its Node registered."""
    approved = token_secret(token(), resource_name=OURS, vm=VM, bootstrap_group=KUBEADM_GROUP)
    assert ask(cluster, "inject-token", "POST", SECRETS, approved) == Said(201)
    cluster.await_token(token().text)
    pin = public_key_pin(cluster.plane.ca_pem)
    wanted = JoinConfiguration("10.128.0.2:6443", token().text, (pin,), Node(VM))
    identity = converse(cluster, join(wanted, lambda: datetime.now(UTC)))
    assert isinstance(identity.credential, Certificate)
    tls = showing(trusting(identity.ca_pem), identity.credential)
    caller = Caller(f"system:node:{VM}", tls)
    assert ask(cluster, caller, "POST", NODES, node(VM)) == Said(201)
    return caller


OTHER = "tng-my-slice-0123abcd-b3m9"
MODIFIES_OTHER = (
    f'nodes "{OTHER}" is forbidden: node "{VM}" is not allowed to modify node "{OTHER}"'
)
MODIFIES_PROOF = f'nodes "{VM}" is forbidden: is not allowed to modify labels: {VM_ID_LABEL}'
OTHERS_REQUEST = signing_request(ec.generate_private_key(ec.SECP256R1()), OTHER)
MOVES: dict[str, tuple[str, str, Any, Said]] = {
    "to another VM, by the proof": (
        "PATCH",
        f"{NODES}/{VM}",
        {"metadata": {"labels": {VM_ID_LABEL: "7"}}},
        Said(403, MODIFIES_PROOF),
    ),
    "to another VM, by its providerID": (
        "PATCH",
        f"{NODES}/{VM}",
        {"spec": {"providerID": f"gce://my-gcp-project/us-central1-c/{OTHER}"}},
        Said(
            422,
            f'Node "{VM}" is invalid: spec.providerID: Forbidden: node updates may not change '
            'providerID except from "" to valid',
        ),
    ),
    "away from its taints": (
        "PATCH",
        f"{NODES}/{VM}",
        {"spec": {"taints": [{"key": "mine", "effect": "NoSchedule"}]}},
        Said(403, f'nodes "{VM}" is forbidden: node "{VM}" is not allowed to modify taints'),
    ),
    "into another Node's labels": (
        "PATCH",
        f"{NODES}/{OTHER}",
        {"metadata": {"labels": {RESOURCE_NAME_LABEL: OURS}}},
        Said(403, MODIFIES_OTHER),
    ),
    "into another Node's status": (
        "PATCH",
        f"{NODES}/{OTHER}/status",
        {"status": {"capacity": {"google.com/tpu": "4"}}},
        Said(403, MODIFIES_OTHER),
    ),
    "into a second Node": (
        "POST",
        NODES,
        node("tng-my-slice-0123abcd-new1"),
        Said(
            403,
            f'nodes "tng-my-slice-0123abcd-new1" is forbidden: node "{VM}" is not allowed to '
            'modify node "tng-my-slice-0123abcd-new1"',
        ),
    ),
    "out of the cluster": (
        "DELETE",
        f"{NODES}/{VM}",
        None,
        Said(
            403,
            f'nodes "{VM}" is forbidden: User "system:node:{VM}" cannot delete resource "nodes" in '
            'API group "" at the cluster scope',
        ),
    ),
    "into another kubelet's certificate": (
        "POST",
        "/apis/certificates.k8s.io/v1/certificatesigningrequests",
        OTHERS_REQUEST,
        Said(
            403,
            "certificatesigningrequests.certificates.k8s.io "
            f'"{OTHERS_REQUEST["metadata"]["name"]}" is forbidden: can only create a node CSR with '
            f"CN=system:node:{VM}",
        ),
    ),
    "into the tokens": (
        "GET",
        f"{SECRETS}/bootstrap-token-abc123",
        None,
        Said(
            403,
            f'secrets "bootstrap-token-abc123" is forbidden: User "system:node:{VM}" cannot get '
            'resource "secrets" in API group "" in the namespace "kube-system": no relationship '
            f"found between node '{VM}' and this object",
        ),
    ),
}


@pytest.mark.parametrize("method, path, body, said", MOVES.values(), ids=MOVES.keys())
def test_a_kubelet_cannot_move(
    cluster: Installation, kubelet: Caller, method: str, path: str, body: Any, said: Said
) -> None:
    assert register(cluster, node(OTHER)) == Said(201)
    assert ask(cluster, kubelet, method, path, body) == said


def test_a_kubelet_keeps_what_proves_it(cluster: Installation, kubelet: Caller) -> None:
    path = f"{NODES}/{VM}"
    proof = {"metadata": {"labels": {VM_ID_LABEL: "1234"}}}
    assert ask(cluster, "label-node", "PATCH", path, proof) == Said(200)
    away = {"metadata": {"labels": {VM_ID_LABEL: None}}}
    assert ask(cluster, kubelet, "PATCH", path, away) == Said(403, MODIFIES_PROOF)
    own = {"metadata": {"labels": {"cloud.google.com/gke-tpu-topology": "2x2x2"}}}
    assert ask(cluster, kubelet, "PATCH", path, own) == Said(200)


def test_no_kubelet_registers_with_a_proof_of_its_own(
    cluster: Installation, kubelet: Caller
) -> None:
    assert ask(cluster, "label-node", "DELETE", f"{NODES}/{VM}") == Said(200)
    labels = {VM_ID_LABEL: "1234"}
    message = (
        f'nodes "{VM}" is forbidden: node "{VM}" is not allowed to set the following labels: '
        f"{VM_ID_LABEL}"
    )
    assert ask(cluster, kubelet, "POST", NODES, node(VM, labels=labels)) == Said(403, message)
