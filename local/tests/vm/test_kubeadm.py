# ruff: noqa: E501  (a table reads best with a row on a line)
"""``kubeadm join``: its errors, and its configuration file."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from local.base.http import Response
from local.tests.vm.small_cluster import SmallCluster, sign_detached
from local.vm.conversation import (
    Certificate,
    ConnectionRefused,
    Conversation,
    Identity,
    Reply,
    Send,
    run_conversation,
)
from local.vm.kubeadm import (
    JoinConfiguration,
    JoinFailed,
    join,
    parse_join_configuration,
    public_key_pin,
)
from local.vm.kubelet import Node
from local.vm.transport import InProcess

TOKEN = "abc123.0123456789abcdef"
INFO = "GET /api/v1/namespaces/kube-public/configmaps/cluster-info"
CONFIG = "GET /api/v1/namespaces/kube-system/configmaps"
CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
DISCOVERY = "error execution phase preflight: couldn't validate the identity of the API Server: "
FETCH = "error execution phase preflight: unable to fetch the kubeadm-config ConfigMap: "
KUBELET = "error execution phase kubelet-start: timed out waiting for the condition: kubelet: "


class Attempt:
    """An attempt of one node to join a small cluster. Waiting advances the clock."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.cluster = SmallCluster(lambda: self.now)
        self.cluster.tokens[TOKEN] = self.now + timedelta(hours=1)
        self.is_cut_off = False
        self.pins: tuple[str, ...] = (public_key_pin(self.cluster.ca_pem),)
        self.node = Node("node-1", "gce://p/z/node-1")
        self.sent: list[Send] = []

    def run(self) -> Identity:
        configuration = JoinConfiguration("10.128.0.2:6443", TOKEN, self.pins, self.node)
        return run_conversation(join(configuration, lambda: self.now), self._send, self._wait)

    def _wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def _send(self, step: Send) -> Reply:
        self.sent.append(step)
        if self.is_cut_off:
            return ConnectionRefused("connection refused")
        replies: list[Reply] = []
        InProcess(self.cluster).send(step, replies.append)
        return replies[0]


@pytest.fixture
def attempt() -> Attempt:
    return Attempt()


def get_error_of_join(attempt: Attempt) -> str:
    with pytest.raises(JoinFailed) as failure:
        attempt.run()
    return str(failure.value)


def info_of(attempt: Attempt, **changes: str) -> Response:
    kubeconfig = changes.pop("kubeconfig", attempt.cluster.kubeconfig)
    jws = sign_detached(kubeconfig, TOKEN)
    data = {"kubeconfig": kubeconfig, "jws-kubeconfig-abc123": jws, **changes}
    return Response.of_json({"data": data})


def error_response(status: int, message: str) -> Response:
    return Response.of_json({"kind": "Status", "message": message}, status)


# --- successful joins ---


def test_a_join_ends_with_the_certificate_of_the_node(attempt: Attempt) -> None:
    identity = attempt.run()
    assert identity.server == "https://10.128.0.2:6443"
    assert identity.ca_pem == attempt.cluster.ca_pem
    assert isinstance(identity.credential, Certificate)


def test_a_node_with_the_longest_name_of_a_vm_gets_its_certificate(attempt: Attempt) -> None:
    attempt.node = Node(f"tng-{'a' * 45}-0123abcd-ab12", "gce://p/z/long")
    credential = attempt.run().credential
    assert isinstance(credential, Certificate)
    with pytest.warns(UserWarning, match="64"):
        subject = x509.load_pem_x509_certificate(credential.cert_pem.encode()).subject
    assert subject.rfc4514_string() == f"CN=system:node:{attempt.node.name},O=system:nodes"


def test_only_the_first_read_of_cluster_info_is_unverified(attempt: Attempt) -> None:
    attempt.run()
    first, *others = [step.verify_ca for step in attempt.sent]
    assert first is None
    assert set(others) == {attempt.cluster.ca_pem}


def test_without_a_pin_the_signature_of_the_token_is_enough(attempt: Attempt) -> None:
    attempt.pins = ()
    attempt.run()


def test_discovery_waits_for_the_signature_of_its_token(attempt: Attempt) -> None:
    expires = attempt.cluster.tokens.pop(TOKEN)
    conversation = join(
        JoinConfiguration("10.128.0.2:6443", TOKEN, attempt.pins, attempt.node), lambda: attempt.now
    )
    reply = attempt._send(next_send(conversation, None))
    assert not isinstance(conversation.send(reply), Send)
    attempt.cluster.tokens[TOKEN] = expires
    reply = attempt._send(next_send(conversation, None))
    assert next_send(conversation, reply).verify_ca == attempt.cluster.ca_pem


def next_send(conversation: Conversation[Identity], reply: Reply | None) -> Send:
    step = conversation.send(reply)
    assert isinstance(step, Send)
    return step


def test_an_existing_node_that_is_not_ready_is_no_obstacle(attempt: Attempt) -> None:
    conditions = [{"type": "Ready", "status": "Unknown"}]
    attempt.cluster.nodes["node-1"] = {"metadata": {}, "status": {"conditions": conditions}}
    attempt.run()


# --- failed joins ---


def test_a_token_without_a_signature_fails_after_five_minutes(
    attempt: Attempt,
) -> None:
    attempt.cluster.tokens.clear()
    assert get_error_of_join(attempt) == DISCOVERY + (
        'could not find a JWS signature in the cluster-info ConfigMap for token ID "abc123"'
    )
    assert attempt.now >= datetime(2026, 1, 1, 0, 5, tzinfo=UTC)


def test_an_unreachable_api_server_fails_the_join_after_five_minutes(
    attempt: Attempt,
) -> None:
    attempt.is_cut_off = True
    assert get_error_of_join(attempt) == DISCOVERY + (
        "failed to request the cluster-info ConfigMap: connection refused"
    )
    assert attempt.now >= datetime(2026, 1, 1, 0, 5, tzinfo=UTC)


def test_a_signature_by_another_token_is_an_error(attempt: Attempt) -> None:
    forged = sign_detached(attempt.cluster.kubeconfig, "abc123.ffffffffffffffff")
    attempt.cluster.answers[INFO] = info_of(attempt, **{"jws-kubeconfig-abc123": forged})
    assert get_error_of_join(attempt) == DISCOVERY + (
        "failed to verify JWS signature of received cluster info object,"
        " can't trust this API Server"
    )


def test_a_ca_that_is_not_pinned_is_an_error(attempt: Attempt) -> None:
    pin = attempt.pins[0]
    attempt.pins = ("sha256:" + "0" * 64,)
    assert get_error_of_join(attempt) == DISCOVERY + (
        f'cluster CA found in cluster-info ConfigMap is invalid: none of the public keys "{pin}"'
        " are pinned"
    )


def test_cluster_info_that_changes_between_the_reads_is_an_error(attempt: Attempt) -> None:
    conversation = join(
        JoinConfiguration("10.128.0.2:6443", TOKEN, attempt.pins, attempt.node), lambda: attempt.now
    )
    next_send(conversation, None)
    next_send(conversation, info_of(attempt))
    other = attempt.cluster.kubeconfig.replace("10.128.0.2", "10.128.0.3")
    with pytest.raises(JoinFailed, match="was different from the first"):
        conversation.send(info_of(attempt, kubeconfig=other))


API_ERRORS = [
    (f"{CONFIG}/kubeadm-config", 401, "Unauthorized", FETCH + "failed to get config map: {}"),
    (f"{CONFIG}/kubeadm-config", 403, "is forbidden", FETCH + "failed to get config map: {}"),
    (
        f"{CONFIG}/kubelet-config",
        404,
        'configmaps "kubelet-config" not found',
        FETCH + "failed to get component configs: could not download the kubelet configuration"
        ' from ConfigMap "kubelet-config": {}',
    ),
    ("GET /api/v1/nodes/node-1", 403, "is forbidden", 'error execution phase kubelet-start: cannot get Node "node-1": {}'),
    (f"POST {CSRS}", 401, "Unauthorized", KUBELET + "cannot create certificate signing request: {}"),
]  # fmt: skip


@pytest.mark.parametrize("place, status, message, error", API_ERRORS)
def test_an_error_of_the_api_server_ends_the_attempt(
    attempt: Attempt, place: str, status: int, message: str, error: str
) -> None:
    attempt.cluster.answers[place] = error_response(status, message)
    assert get_error_of_join(attempt) == error.format(message)


def test_the_error_about_an_answer_without_a_status_has_its_http_code(attempt: Attempt) -> None:
    attempt.cluster.answers[f"{CONFIG}/kubeadm-config"] = Response(502, body=b"<html>")
    assert get_error_of_join(attempt) == FETCH + "failed to get config map: the server answered 502"


def test_a_ready_node_with_the_same_name_is_an_error(attempt: Attempt) -> None:
    conditions = [{"type": "Ready", "status": "True"}]
    attempt.cluster.nodes["node-1"] = {"metadata": {}, "status": {"conditions": conditions}}
    assert get_error_of_join(attempt) == (
        'error execution phase kubelet-start: a Node with name "node-1" and status "Ready" already'
        " exists in the cluster. You must delete the existing Node or change the name of this new"
        " joining Node"
    )


OLD = 'failed to decode cluster configuration data: no kind "ClusterConfiguration" is registered for version "kubeadm.k8s.io/v1beta4" in scheme "k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm/scheme/scheme.go:31"'
NEW = "this version of kubeadm only supports deploying clusters with the control plane version >= 1.{}.0. Current version: v1.{}.3"


@pytest.mark.parametrize(
    "kubeadm, cluster, error",
    [
        (28, 36, OLD), (30, 31, OLD), (30, 30, ""), (31, 31, ""), (31, 36, ""),  # outside the skew policy
        (33, 36, ""), (36, 36, ""), (37, 36, ""), (37, 35, NEW.format(36, 35)), (36, 28, NEW.format(35, 28)),
    ],
)  # fmt: skip
def test_kubeadm_rejects_clusters_whose_version_it_does_not_know(
    attempt: Attempt, kubeadm: int, cluster: int, error: str
) -> None:
    form = "v1beta4" if cluster > 30 else "v1beta3"
    text = f"apiVersion: kubeadm.k8s.io/{form}\nkubernetesVersion: v1.{cluster}.3\n"
    answer = Response.of_json({"data": {"ClusterConfiguration": text}})
    attempt.cluster.answers[f"{CONFIG}/kubeadm-config"] = answer
    attempt.node = replace(attempt.node, kubelet_version=f"v1.{kubeadm}.4")
    if error:
        assert get_error_of_join(attempt) == FETCH + error
    else:
        attempt.run()


def test_an_unsigned_csr_fails_the_join(attempt: Attempt) -> None:
    attempt.cluster.approves = False
    assert get_error_of_join(attempt) == KUBELET + (
        "certificate signing request is not approved or not signed"
    )


@pytest.mark.parametrize(
    "key",
    [
        "node-restriction.kubernetes.io/x",
        "kubernetes.io/role",
        "x.k8s.io/y",
        "node-role.kubernetes.io/tpu",
    ],
)
def test_a_restricted_label_prevents_the_start_of_a_kubelet(attempt: Attempt, key: str) -> None:
    attempt.node = Node("node-1", labels={key: "x", "cloud.google.com/gke-tpu-topology": "2x2x1"})
    assert get_error_of_join(attempt).endswith(
        f"unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: [{key}]"
    )


@pytest.mark.parametrize(
    "key", ["kubernetes.io/os", "node.kubernetes.io/x", "a.kubelet.kubernetes.io/y", "a/b", "c"]
)
def test_a_kubelet_can_set_other_labels(attempt: Attempt, key: str) -> None:
    attempt.node = Node("node-1", labels={key: "x"})
    attempt.run()


# --- the configuration file ---

V1BETA3 = f"""
apiVersion: kubeadm.k8s.io/v1beta3
kind: JoinConfiguration
discovery:
  bootstrapToken: {{apiServerEndpoint: '10.0.0.2:6443', token: '{TOKEN}', caCertHashes: ['sha256:0']}}
nodeRegistration:
  name: node-1
  kubeletExtraArgs:
    provider-id: gce://p/z/node-1
    node-labels: a=b,c=
    register-with-taints: k=v:NoSchedule,x:NoExecute
"""
V1BETA4 = f"""
apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
discovery:
  bootstrapToken: {{apiServerEndpoint: '10.0.0.2:6443', token: '{TOKEN}', caCertHashes: ['sha256:0']}}
nodeRegistration:
  name: node-1
  kubeletExtraArgs:
  - {{name: provider-id, value: gce://p/z/node-1}}
  - {{name: node-labels, value: 'a=b,c='}}
  - {{name: register-with-taints, value: 'k=v:NoSchedule,x:NoExecute'}}
"""


@pytest.mark.parametrize("text", [V1BETA3, V1BETA4], ids=["v1beta3", "v1beta4"])
def test_a_configuration_is_read(text: str) -> None:
    node = Node(
        "node-1",
        "gce://p/z/node-1",
        {"a": "b", "c": ""},
        ("k=v:NoSchedule", "x:NoExecute"),
        chips=4,
    )
    assert parse_join_configuration(text, chips=4) == JoinConfiguration(
        "10.0.0.2:6443", TOKEN, ("sha256:0",), node
    )


@pytest.mark.parametrize(
    "change", [("v1beta3", "v1beta2"), ("JoinConfiguration", "InitConfiguration")]
)
def test_a_configuration_of_another_kind_is_an_error(change: tuple[str, str]) -> None:
    with pytest.raises(JoinFailed, match="no kind JoinConfiguration is registered for version"):
        parse_join_configuration(V1BETA3.replace(*change))


def test_no_part_of_a_conversation_shows_a_secret(attempt: Attempt) -> None:
    identity = attempt.run()
    assert isinstance(identity.credential, Certificate)
    key = identity.credential.key_pem.splitlines()[1]
    shown = repr((identity, JoinConfiguration("h:1", TOKEN, (), attempt.node)))
    assert key not in shown
    assert TOKEN not in shown
