"""Authentication: certificates, tokens, anonymous requests and impersonation."""

from __future__ import annotations

import ssl
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from cryptography import x509

from local.base.clock import VirtualClock
from local.base.http import Request
from local.kube import CertificateAuthority, KubeApi, User
from local.tests.contract.kubernetes.embedded import Embedded
from local.tests.kube.joining import JOINERS, SECRETS, TOKEN, der, token_secret

SELF_REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


def whoami(server: Embedded, user: str) -> Any:
    answer = server.send("POST", SELF_REVIEWS, {}, user=user)
    return answer.document["status"]["userInfo"] if answer.status == 201 else answer.status


def test_a_bootstrap_token_authenticates_with_its_groups() -> None:
    server = Embedded()
    server.ask("POST", SECRETS, token_secret())
    assert whoami(server, f"token:{TOKEN}") == {
        "username": "system:bootstrap:abcdef",
        "groups": ["system:bootstrappers", JOINERS, "system:authenticated"],
    }


INVALID_TOKENS: dict[str, dict[str, str | None]] = {
    "expired": {"expiration": "2025-12-31T23:59:59Z"},
    "an invalid expiration": {"expiration": "soon"},
    "not for authentication": {"usage_bootstrap_authentication": None},
    "another secret": {"token_secret": "fedcba9876543210"},
    "another id": {"token_id": "fedcba"},
    "a group outside its namespace": {"auth_extra_groups": "system:masters"},
}


@pytest.mark.parametrize("changes", INVALID_TOKENS.values(), ids=INVALID_TOKENS.keys())
def test_an_invalid_bootstrap_token_is_unauthorized(changes: dict[str, str | None]) -> None:
    server = Embedded()
    server.ask("POST", SECRETS, token_secret(**changes))
    assert whoami(server, f"token:{TOKEN}") == 401


def test_a_secret_of_another_type_is_no_token() -> None:
    server = Embedded()
    server.ask("POST", SECRETS, {**token_secret(), "type": "Opaque"})
    assert whoami(server, f"token:{TOKEN}") == 401


def test_a_bootstrap_token_is_invalid_after_its_secret_is_deleted() -> None:
    server = Embedded()
    server.ask("POST", SECRETS, token_secret())
    server.ask("DELETE", f"{SECRETS}/bootstrap-token-abcdef")
    assert whoami(server, f"token:{TOKEN}") == 401


def test_an_expired_bootstrap_token_is_invalid_and_its_secret_deleted() -> None:
    server = Embedded()
    server.ask("POST", SECRETS, token_secret())
    server.clock.run_for(3590)
    assert whoami(server, f"token:{TOKEN}") != 401
    server.clock.run_for(10)
    assert whoami(server, f"token:{TOKEN}") == 401
    assert server.send("GET", f"{SECRETS}/bootstrap-token-abcdef").status == 404


def with_certificate(server: Embedded, certificate: bytes, token: str = "") -> Any:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    request = Request.of(
        "POST", SELF_REVIEWS, headers=headers, body="{}", peer_certificate=certificate
    )
    response = server.api.handle(request)
    return response.json()["status"]["userInfo"] if response.status == 201 else response.status


def test_a_client_certificate_authenticates_its_subject() -> None:
    server = Embedded()
    pair = server.api.ca.issue_client(User("jane", ("devs", "ops")), server.clock.now())
    assert with_certificate(server, der(pair.certificate_pem)) == {
        "username": "jane",
        "groups": ["devs", "ops", "system:authenticated"],
    }


def test_a_certificate_of_another_ca_is_unauthorized() -> None:
    server = Embedded()
    other = CertificateAuthority.create(server.clock.now())
    pair = other.issue_client(User("jane", ("system:masters",)), server.clock.now())
    assert with_certificate(server, der(pair.certificate_pem)) == 401
    assert with_certificate(server, der(pair.certificate_pem), "reader") == {
        "username": "reader",
        "groups": ["case-readers", "system:authenticated"],
    }


def test_a_certificate_expires_after_a_year() -> None:
    server = Embedded()
    pair = server.api.ca.issue_client(User("jane", ()), server.clock.now())
    server.clock.run_for(timedelta(days=366).total_seconds())
    assert with_certificate(server, der(pair.certificate_pem)) == 401


def test_a_serving_certificate_is_no_client_certificate() -> None:
    server = Embedded()
    pair = server.api.ca.issue_server(["localhost"], server.clock.now())
    assert with_certificate(server, der(pair.certificate_pem)) == 401


def test_a_ca_can_be_saved_and_loaded() -> None:
    now = VirtualClock().now()
    first = CertificateAuthority.create(now)
    again = CertificateAuthority.load(first.export())
    assert again.certificate_pem == first.certificate_pem
    pair = first.issue_client(User("jane", ()), now)
    assert again.find_user(der(pair.certificate_pem), now) == User("jane", ())


def test_a_serving_certificate_names_its_hosts() -> None:
    now = VirtualClock().now()
    authority = CertificateAuthority.create(now)
    pair = authority.issue_server(["127.0.0.1", "localhost"], now)
    certificate = x509.load_pem_x509_certificate(pair.certificate_pem.encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert authority.server_context(["localhost"], now).verify_mode is ssl.CERT_OPTIONAL


def test_only_an_administrator_can_impersonate_users() -> None:
    server = Embedded()
    headers = {"impersonate-user": "jane", "impersonate-group": "devs"}
    answer = server.send("POST", SELF_REVIEWS, {}, headers=headers)
    assert answer.document["status"]["userInfo"] == {
        "username": "jane",
        "groups": ["devs", "system:authenticated"],
    }
    refused = server.send("POST", SELF_REVIEWS, {}, user="reader", headers=headers)
    assert refused.status == 403
    assert refused.document["message"] == (
        'users "jane" is forbidden: User "reader" cannot impersonate resource "users" in API '
        'group "" at the cluster scope'
    )


def test_a_static_token_needs_no_group_to_be_authenticated() -> None:
    api = KubeApi(VirtualClock(), random=Random(0), tokens={"t": User("bare", (), "42")})
    request = Request.of("POST", SELF_REVIEWS, headers={"authorization": "Bearer t"}, body="{}")
    assert api.handle(request).json()["status"]["userInfo"] == {
        "username": "bare",
        "groups": ["system:authenticated"],
        "uid": "42",
    }


ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"


def request_token(server: Embedded, **spec: Any) -> Any:
    """The status of a TokenRequest of the account ``default``."""
    return server.ask("POST", f"{ACCOUNTS}/default/token", {"spec": spec})["status"]


@pytest.mark.parametrize("age_s, valid", [(600, True), (659, True), (662, False)])
def test_a_service_accounts_token_expires_a_minute_late(age_s: int, valid: bool) -> None:
    server = Embedded()
    token = request_token(server, expirationSeconds=600)
    assert token["expirationTimestamp"] == "2026-01-01T00:10:01Z"
    server.clock.run_for(age_s)
    assert (whoami(server, f"token:{token['token']}") != 401) is valid


def test_a_cluster_may_shorten_the_life_of_service_accounts_tokens() -> None:
    server = Embedded(max_token_s=3600)
    answer = server.send(
        "POST", f"{ACCOUNTS}/default/token", {"spec": {"expirationSeconds": 43200}}
    )
    assert answer.document["spec"]["expirationSeconds"] == 3600
    assert answer.document["status"]["expirationTimestamp"] == "2026-01-01T01:00:01Z"
    warning = "requested expiration of 43200 seconds shortened to 3600 seconds"
    assert warning in answer.headers["warning"]


def test_a_pods_token_ends_with_the_pod() -> None:
    server, pods = Embedded(), "/api/v1/namespaces/default/pods"
    spec = {"serviceAccountName": "default", "containers": [{"name": "a", "image": "a"}]}
    server.ask("POST", pods, {"metadata": {"name": "a"}, "spec": spec})
    bound = {"apiVersion": "v1", "kind": "Pod", "name": "a"}
    token = f"token:{request_token(server, boundObjectRef=bound)['token']}"
    assert whoami(server, token)["username"] == "system:serviceaccount:default:default"
    server.ask("DELETE", f"{pods}/a?gracePeriodSeconds=0")
    assert whoami(server, token) == 401


@pytest.mark.parametrize("part", range(3))
def test_a_changed_token_is_unauthorized(part: int) -> None:
    server = Embedded()
    own, other = (request_token(server, audiences=aud)["token"].split(".") for aud in ([], ["b"]))
    assert whoami(server, f"token:{'.'.join(own)}") != 401
    own[part] = other[part] if part else "e30"
    assert whoami(server, f"token:{'.'.join(own)}") == 401
