"""Access to a real cluster: kube-apiserver with an issuer of Google's tokens on loopback.

The settings and the users are those of docs/cluster-access.md, except for the URL of the issuer's keys.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.auth.compute_engine import _metadata

from local.base.ports import LOOPBACK
from local.control_plane.plane import OwnControlPlane
from local.kube import CertificateAuthority
from local.tests.real_parts import open_own_control_plane
from shared.base.names import BOOTSTRAP_GROUP, RESOURCE_NAME_LABEL
from shared.base.timestamps import render_time
from shared.ports.errors import CallError
from shared.ports.kubernetes.access_settings import Access, GoogleToken, Kubeconfig, TokenKind
from shared.ports.kubernetes.cluster import Cluster
from shared.ports.kubernetes.connection import Connection
from shared.triggers.routes import STEPS
from tests.real.relay.waiting import until
from tests.support.chart import apply
from tests.support.loopback import Google, Issuer, MetadataServer, kubeconfig, open_loopback

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("access")]

ROOT = Path(__file__).parents[2]
SNIPPETS = re.findall(
    r"^```\w*\n(.*?)^```$",
    (ROOT / "docs" / "cluster-access.md").read_text(),
    re.DOTALL | re.MULTILINE,
)
PROJECT = "my-gcp-project"
CALL = "GET /api/v1/namespaces/kube-system"


def snippet(text: str) -> str:
    """Return the code block of the page with this text."""
    (found,) = (one for one in SNIPPETS if text in one)
    return str(found)


CONFIGURATION: dict[str, Any] = yaml.safe_load(snippet("claimMappings:"))
FLAGS = snippet("--oidc-issuer-url").split()
USERS: dict[str, str] = yaml.safe_load(snippet("identity:\n"))["identity"]["users"]
AUDIENCE = CONFIGURATION["jwt"][0]["issuer"]["audiences"][0]
PREFIX = CONFIGURATION["jwt"][0]["claimMappings"]["username"]["prefix"]
GOOGLES = CONFIGURATION["jwt"][0]["issuer"]["url"]


@dataclass
class Setup:
    """A real cluster that trusts the issuer, and a function's metadata server."""

    method: str
    plane: OwnControlPlane
    google: Google
    metadata: MetadataServer
    claims: dict[str, Any]
    """Claims of the issuer's tokens that Google's tokens do not have."""

    def act_as(self, email: str, **claims: Any) -> Access:
        """Set the service account of the function, and return its access."""
        self.google.email, self.google.claims = email, self.claims | claims
        return GoogleToken(self.plane.server, self.plane.ca_pem, TokenKind.ID, AUDIENCE)


def by_configuration(folder: Path, issuer: Issuer, ca_pem: str) -> list[str]:
    """Return the flags for the page's AuthenticationConfiguration, with another URL of Google's keys."""
    issuer.name = GOOGLES
    configuration = CONFIGURATION
    configuration["jwt"][0]["issuer"] |= {
        "discoveryURL": f"{issuer.url}/.well-known/openid-configuration",
        "certificateAuthority": ca_pem,
    }
    path = folder / "authentication.yaml"
    path.write_text(yaml.safe_dump(configuration))
    return [f"--authentication-config={path}"]


def by_flags(folder: Path, issuer: Issuer, ca_pem: str) -> list[str]:
    """Return the page's flags with another issuer, because the issuer's name is the URL of its keys."""
    issuer.name = issuer.url
    path = folder / "issuer.crt"
    path.write_text(ca_pem)
    flags = [flag.replace(GOOGLES, issuer.url) for flag in FLAGS]
    return [*flags, f"--oidc-ca-file={path}"]


METHODS = {"AuthenticationConfiguration": by_configuration, "flags": by_flags}


@pytest.fixture(scope="module", params=METHODS)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Setup, str]]:
    folder = tmp_path_factory.mktemp("access")
    with open_loopback() as loopback:
        now = datetime.now(UTC)
        ca = CertificateAuthority.create(now)
        google = Google("")
        issuer = Issuer(google)
        port = loopback.serve(issuer, ca.server_context((LOOPBACK,), now))
        issuer.url = f"https://{LOOPBACK}:{port}"
        flags = METHODS[request.param](folder, issuer, ca.certificate_pem)
        claims = {} if issuer.name == GOOGLES else {"iss": issuer.name}
        metadata = MetadataServer(google)
        host = f"{LOOPBACK}:{loopback.serve(metadata)}"
        with open_own_control_plane(flags) as plane:
            apply(plane, {"identity": {"users": USERS}})
            yield Setup(request.param, plane, google, metadata, claims), host


@pytest.fixture
def setup(served: tuple[Setup, str], monkeypatch: pytest.MonkeyPatch) -> Setup:
    found, host = served
    # GCE_METADATA_HOST sets this attribute when the module is first imported.
    monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", host)
    access = found.act_as(email_of("sweep"))
    # The API server fetches the issuer's keys asynchronously.
    until(lambda: is_accepted(access), "the API server accepts the issuer's tokens")
    found.metadata.asked.clear()
    return found


def email_of(step: str) -> str:
    """Return a step's service account."""
    return USERS[step.replace("_", "-")].removeprefix(PREFIX)


def open_cluster(access: Access) -> Cluster:
    """Return the cluster port of one process."""
    return Cluster(Connection(access), "inject_token", lambda: 10.0)


def is_accepted(access: Access) -> bool:
    try:
        open_cluster(access).get_cluster_id()
    except CallError:
        return False
    return True


def get_error(access: Access) -> CallError:
    with pytest.raises(CallError) as raised:
        open_cluster(access).get_cluster_id()
    return raised.value


@pytest.mark.parametrize("step", STEPS)
def test_each_step_is_authenticated_by_the_token_of_its_service_account(
    setup: Setup, step: str
) -> None:
    cluster = open_cluster(setup.act_as(email_of(step)))
    uid = setup.plane.request("GET", "/api/v1/namespaces/kube-system")[1]["metadata"]["uid"]
    assert cluster.get_cluster_id() == uid
    assert list(cluster.list_groups()) == []
    assert setup.metadata.asked == ["identity"]


def token_secret(name: str) -> dict[str, Any]:
    """Return a bootstrap token as the step creates it, without its secret."""
    group = base64.b64encode(BOOTSTRAP_GROUP.encode()).decode()
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "bootstrap.kubernetes.io/token",
        "metadata": {
            "name": name,
            "namespace": "kube-system",
            "labels": {RESOURCE_NAME_LABEL: "tng-x"},
        },
        "data": {"auth-extra-groups": group},
        "stringData": {"expiration": render_time(datetime.now(UTC) + timedelta(minutes=10))},
    }


def test_the_policies_apply_to_a_google_token_and_the_step_manages_its_fields(
    setup: Setup,
) -> None:
    cluster = open_cluster(setup.act_as(email_of("inject_token")))
    cluster.create_token_secret(token_secret("bootstrap-token-abcdef"))
    path = "/api/v1/namespaces/kube-system/secrets/bootstrap-token-abcdef"
    writers = setup.plane.request("GET", path)[1]["metadata"]["managedFields"]
    assert [one["manager"] for one in writers] == ["tpu-functions-inject-token"]
    denial = ""

    def is_denied() -> bool:
        nonlocal denial
        try:
            cluster.create_token_secret(token_secret("anything-else"))
        except CallError as error:
            denial = str(error)
            return True
        setup.plane.request("DELETE", "/api/v1/namespaces/kube-system/secrets/anything-else")
        return False

    until(is_denied, "the policy is enforced")
    assert "tpu-functions may only create and delete bootstrap tokens in kube-system" in denial


def test_the_error_for_a_user_without_permissions_has_the_prefixed_name(setup: Setup) -> None:
    email = f"stranger@{PROJECT}.iam.gserviceaccount.com"
    assert str(get_error(setup.act_as(email))) == (
        f'{CALL}: 403 Forbidden: namespaces "kube-system" is forbidden: User "{PREFIX}{email}" cannot '
        'get resource "namespaces" in API group "" in the namespace "kube-system"'
    )


HINT = (
    "the API server does not accept the token: is https://accounts.google.com among its issuers, and is "
    "CLUSTER_AUDIENCE, here {audience!r}, among the audiences?"
)


@pytest.mark.parametrize("case", ["another audience", "not verified"])
def test_a_rejected_token_is_fetched_again_once_and_reported_with_a_hint(
    setup: Setup, case: str
) -> None:
    is_verified = case != "not verified"
    access = setup.act_as(email_of("sweep"), email_verified=is_verified)
    assert isinstance(access, GoogleToken)
    audience = "another" if is_verified else AUDIENCE
    error = get_error(replace(access, audience=audience))
    hint = HINT.format(audience=audience)
    assert str(error) == f"{CALL}: 401 Unauthorized: Unauthorized ({hint})"
    assert setup.metadata.asked == ["identity", "identity"]


def test_only_an_authentication_configuration_rejects_other_projects(setup: Setup) -> None:
    error = get_error(setup.act_as("sweep@another-project.iam.gserviceaccount.com"))
    assert error.http == (401 if setup.method == "AuthenticationConfiguration" else 403)


NAMESPACE = "/api/v1/namespaces/tpu-functions"


def test_a_revoked_kubeconfig_is_replaced_by_its_new_version(setup: Setup, tmp_path: Path) -> None:
    plane, path = setup.plane, tmp_path / "kubeconfig"
    bound = plane.request("POST", f"{NAMESPACE}/secrets", {"metadata": {"generateName": "b-"}})[1]
    name, uid = bound["metadata"]["name"], bound["metadata"]["uid"]
    reference = {"apiVersion": "v1", "kind": "Secret", "name": name, "uid": uid}

    def write(bound_to: dict[str, Any] | None) -> None:
        spec = {"boundObjectRef": bound_to} if bound_to else {}
        account = f"{NAMESPACE}/serviceaccounts/relay/token"
        code, answer = plane.request("POST", account, {"spec": spec})
        assert code == 201, answer
        path.write_text(kubeconfig(plane.server, plane.ca_pem, answer["status"]["token"]))

    write(reference)
    cluster = open_cluster(Kubeconfig(str(path)))
    assert list(cluster.list_groups()) == []
    plane.request("DELETE", f"{NAMESPACE}/secrets/{name}")
    errors: list[CallError] = []

    def is_rejected() -> bool:
        try:
            list(cluster.list_groups())
        except CallError as error:
            errors.append(error)
        return bool(errors)

    until(is_rejected, "the revoked token is rejected")
    assert errors[0].http == 401
    assert "was read again, and its credentials are still refused" in errors[0].message
    write(None)
    assert list(cluster.list_groups()) == []


@pytest.mark.parametrize(
    "version", ["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1"]
)
def test_an_api_server_starts_with_the_file_of_the_page_before_accounts_exist(
    version: str, tmp_path: Path
) -> None:
    configuration = yaml.safe_load(snippet("jwt: []")) | {"apiVersion": version}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(configuration))
    with open_own_control_plane([f"--authentication-config={path}"]) as plane:
        assert plane.request("GET", "/api/v1/namespaces/kube-system")[0] == 200
