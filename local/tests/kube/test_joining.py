# ruff: noqa: E501  (a table reads best with a row on a line)
"""A node joins: cluster-info, the kubelet's certificate and its permissions."""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import timedelta
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from local.base.http import Request
from local.tests.contract.kubernetes.embedded import Embedded
from local.tests.kube.joining import (
    CSRS,
    KEY,
    SECRETS,
    TOKEN,
    certificate_of,
    csr,
    der,
    signing_request,
    submit,
    token_secret,
)

CLUSTER_INFO = "/api/v1/namespaces/kube-public/configmaps/cluster-info"


@pytest.fixture
def server() -> Embedded:
    server = Embedded()
    server.ask("POST", SECRETS, token_secret())
    server.run_controllers()
    return server


def test_cluster_info_is_signed_for_each_token(server: Embedded) -> None:
    data = server.ask("GET", CLUSTER_INFO, user="anonymous")["data"]
    header, nothing, signature = data["jws-kubeconfig-abcdef"].split(".")
    assert base64.urlsafe_b64decode(header + "==") == b'{"alg":"HS256","kid":"abcdef"}'
    assert nothing == ""
    content = base64.urlsafe_b64encode(data["kubeconfig"].encode()).decode().rstrip("=")
    secret = TOKEN.partition(".")[2]
    expected = hmac.new(secret.encode(), f"{header}.{content}".encode(), hashlib.sha256).digest()
    assert base64.urlsafe_b64decode(signature + "=") == expected


def test_cluster_info_is_signed_again_when_the_server_address_changes(server: Embedded) -> None:
    before = server.ask("GET", CLUSTER_INFO)["data"]["jws-kubeconfig-abcdef"]
    server.api.advertise("https://10.0.0.1:443")
    server.run_controllers()
    data = server.ask("GET", CLUSTER_INFO)["data"]
    config = yaml.safe_load(data["kubeconfig"])
    assert config["clusters"][0]["cluster"]["server"] == "https://10.0.0.1:443"
    authority = base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"])
    assert authority.decode() == server.api.ca.certificate_pem
    assert data["jws-kubeconfig-abcdef"] != before


def test_cluster_info_loses_the_signature_with_the_token(server: Embedded) -> None:
    server.ask("DELETE", f"{SECRETS}/bootstrap-token-abcdef")
    server.run_controllers()
    assert list(server.ask("GET", CLUSTER_INFO)["data"]) == ["kubeconfig"]


def test_a_token_without_the_usage_signing_signs_nothing() -> None:
    server = Embedded()
    server.ask("POST", SECRETS, token_secret(usage_bootstrap_signing=None))
    server.run_controllers()
    assert list(server.ask("GET", CLUSTER_INFO)["data"]) == ["kubeconfig"]


@pytest.mark.parametrize("name", ["kubeadm-config", "kubelet-config"])
def test_a_joining_node_reads_the_clusters_configuration(server: Embedded, name: str) -> None:
    path = f"/api/v1/namespaces/kube-system/configmaps/{name}"
    assert server.ask("GET", path, user=f"token:{TOKEN}")["data"]
    assert server.send("GET", path, user="anonymous").status == 403


def test_a_joining_node_can_read_the_node_with_its_name(server: Embedded) -> None:
    assert server.send("GET", "/api/v1/nodes/n1", user=f"token:{TOKEN}").status == 404


def test_a_joining_node_gets_its_certificate(server: Embedded) -> None:
    status = submit(server, csr())
    assert [(one["type"], one["reason"]) for one in status["conditions"]] == [
        ("Approved", "AutoApproved")
    ]
    certificate = certificate_of(status)
    assert certificate.subject.rfc4514_string() == "CN=system:node:n1,O=system:nodes"
    assert certificate.public_key() == KEY.public_key()
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    pem = base64.b64decode(status["certificate"]).decode()
    request = Request.of("GET", "/api/v1/nodes/n1", peer_certificate=der(pem))
    assert server.api.handle(request).json()["message"] == 'nodes "n1" not found'


def test_a_csr_has_the_name_of_its_sender(server: Embedded) -> None:
    submit(server, csr(username="somebody", groups=["system:masters"]))
    spec = server.ask("GET", f"{CSRS}/csr")["spec"]
    assert spec["username"] == "system:bootstrap:abcdef"
    assert "system:masters" not in spec["groups"]


def test_a_certificate_has_the_requested_duration(server: Embedded) -> None:
    certificate = certificate_of(submit(server, csr(expirationSeconds=3600)))
    left = certificate.not_valid_after_utc - server.clock.now()
    assert timedelta(minutes=59) < left <= timedelta(hours=1)


def test_an_rsa_key_can_have_the_usage_key_encipherment(server: Embedded) -> None:
    key = rsa.generate_private_key(65537, 2048)
    usages = ["key encipherment", "digital signature", "client auth"]
    assert "certificate" in submit(server, csr(signing_request(key=key), usages=usages))


NOT_APPROVED: dict[str, dict[str, Any]] = {
    "another organization": csr(signing_request(organization="system:masters")),
    "no node's name": csr(signing_request(name="n1")),
    "names of hosts": csr(signing_request(host="n1.example.com")),
    "too many usages": csr(usages=["digital signature", "client auth", "server auth"]),
    "too few usages": csr(usages=["client auth"]),
    "a serving certificate": csr(signerName="kubernetes.io/kubelet-serving", usages=["digital signature", "server auth"]),
}  # fmt: skip


@pytest.mark.parametrize("body", NOT_APPROVED.values(), ids=NOT_APPROVED.keys())
def test_a_csr_that_is_no_kubelets_is_not_approved_automatically(
    server: Embedded, body: dict[str, Any]
) -> None:
    assert "conditions" not in submit(server, body)


def test_a_csr_of_a_user_without_the_permission_is_not_approved_automatically(
    server: Embedded,
) -> None:
    rbac = "rbac.authorization.k8s.io"
    binding = {
        "metadata": {"name": "readers"},
        "roleRef": {"kind": "ClusterRole", "name": "system:node-bootstrapper"},
        "subjects": [{"kind": "User", "name": "reader"}],
    }
    server.ask("POST", f"/apis/{rbac}/v1/clusterrolebindings", binding)
    assert "conditions" not in submit(server, csr(), user="reader")


def test_a_token_of_another_group_cannot_create_a_csr() -> None:
    server = Embedded()
    server.ask("POST", SECRETS, token_secret(auth_extra_groups="system:bootstrappers:others"))
    answer = server.send("POST", CSRS, csr(), user=f"token:{TOKEN}")
    assert answer.status == 403
    assert answer.document["message"].startswith(
        "certificatesigningrequests.certificates.k8s.io is forbidden: User "
        '"system:bootstrap:abcdef" cannot create resource "certificatesigningrequests"'
    )


def test_an_approved_csr_that_violates_the_signers_rules_is_not_signed(server: Embedded) -> None:
    submit(server, csr(signing_request(organization="system:masters")))
    body = server.ask("GET", f"{CSRS}/csr")
    body["status"] = {
        "conditions": [{"type": "Approved", "status": "True", "reason": "ByHand", "message": ""}]
    }
    server.ask("PUT", f"{CSRS}/csr/approval", body)
    server.run_controllers()
    status = server.ask("GET", f"{CSRS}/csr")["status"]
    assert "certificate" not in status
    failed = status["conditions"][-1]
    assert (failed["type"], failed["reason"]) == ("Failed", "SignerValidationFailure")
    assert failed["message"] == "subject organization is not system:nodes"


INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "no usages": (csr(usages=[]), "spec.usages: Required value"),
    "no request": ({**csr(), "spec": {**csr()["spec"], "request": "aGVsbG8="}}, "PEM block type must be CERTIFICATE REQUEST"),
    "too short a duration": (
        csr(expirationSeconds=60),
        "spec.expirationSeconds: Invalid value: 60: may not specify a duration less than 600 seconds (10 minutes)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("body, message", INVALID.values(), ids=INVALID.keys())
def test_an_invalid_csr_is_an_error(server: Embedded, body: dict[str, Any], message: str) -> None:
    answer = server.send("POST", CSRS, body)
    assert answer.status == 422
    assert message in answer.document["message"]


def test_the_spec_of_a_csr_cannot_be_changed(server: Embedded) -> None:
    submit(server, csr(usages=["client auth"]))
    changed = server.ask(
        "PATCH",
        f"{CSRS}/csr",
        {"metadata": {"labels": {"a": "b"}}, "spec": {"usages": ["digital signature"]}},
        content_type="application/merge-patch+json",
    )
    assert changed["spec"]["usages"] == ["client auth"]
    assert changed["metadata"]["labels"] == {"a": "b"}


def test_a_node_renews_its_own_certificate(server: Embedded) -> None:
    status = submit(server, csr(), user="system:node:node-default")
    assert "conditions" not in status, "n1 is not node-default"
    server.ask("DELETE", f"{CSRS}/csr")
    own = signing_request(name="system:node:node-default")
    assert "certificate" in submit(server, csr(own), user="system:node:node-default")


def test_a_kubelet_can_read_pods_but_not_create_them() -> None:
    server = Embedded()
    kubelet = {"impersonate-user": "system:node:n", "impersonate-group": "system:nodes"}
    body = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}], "nodeName": "n"}}
    pods = "/api/v1/namespaces/default/pods"
    assert server.send("GET", pods, headers=kubelet).status == 200
    assert server.send("POST", pods, body, headers=kubelet).status == 403
