"""The ways into a real cluster: kube-apiserver with an issuer of Google's tokens on loopback.

The settings are those of docs/cluster-access.md, and so are the users; only where the issuer's keys
are found is another place.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.auth.compute_engine import _metadata

from local.base.ports import LOOPBACK
from local.control_plane.plane import OwnControlPlane
from local.kube import CertificateAuthority
from shared.base.errors import CallError
from shared.base.names import RESOURCE_NAME_LABEL, STEPS
from shared.ports.kubernetes.access_settings import Access, GoogleToken, Kubeconfig, TokenKind
from shared.ports.kubernetes.cluster import Cluster
from shared.ports.kubernetes.connection import Connection
from tests.loopback import Google, Issuer, MetadataServer, kubeconfig, open_loopback
from tests.real.relay.patience import until
from tests.real_parts import open_own_control_plane

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("access")]

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "infra" / "kubernetes"
SNIPPETS = re.findall(
    r"^```\w*\n(.*?)^```$",
    (ROOT / "docs" / "cluster-access.md").read_text(),
    re.DOTALL | re.MULTILINE,
)
PROJECT = "my-gcp-project"
CALL = "GET /api/v1/namespaces/kube-system"


def snippet(words: str) -> str:
    """The piece of the page that has these words in it."""
    (found,) = (one for one in SNIPPETS if words in one)
    return str(found)


CONFIGURATION: dict[str, Any] = yaml.safe_load(snippet("claimMappings:"))
FLAGS = snippet("--oidc-issuer-url").split()
USERS: dict[str, str] = yaml.safe_load(snippet("data:\n"))["data"]
AUDIENCE = CONFIGURATION["jwt"][0]["issuer"]["audiences"][0]
PREFIX = CONFIGURATION["jwt"][0]["claimMappings"]["username"]["prefix"]
GOOGLES = CONFIGURATION["jwt"][0]["issuer"]["url"]


@dataclass
class Place:
    """A real cluster that trusts the issuer, and a function's metadata server."""

    way: str
    plane: OwnControlPlane
    google: Google
    metadata: MetadataServer
    claims: dict[str, Any]
    """What the issuer's tokens have that Google's have not."""

    def be(self, email: str, **claims: Any) -> Access:
        """The service account that the function runs as."""
        self.google.email, self.google.claims = email, self.claims | claims
        return GoogleToken(self.plane.server, self.plane.ca_pem, TokenKind.ID, AUDIENCE)


def by_configuration(folder: Path, issuer: Issuer, ca_pem: str) -> list[str]:
    """Flags: the page's AuthenticationConfiguration, with Google's keys in another place."""
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
    """The page's flags, with another issuer: there the keys are where the issuer's name says."""
    issuer.name = issuer.url
    path = folder / "issuer.crt"
    path.write_text(ca_pem)
    flags = [flag.replace(GOOGLES, issuer.url) for flag in FLAGS]
    return [*flags, f"--oidc-ca-file={path}"]


WAYS = {"AuthenticationConfiguration": by_configuration, "flags": by_flags}


@pytest.fixture(scope="module", params=WAYS)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Place, str]]:
    folder = tmp_path_factory.mktemp("access")
    with open_loopback() as loopback:
        now = datetime.now(UTC)
        ca = CertificateAuthority.create(now)
        google = Google("")
        issuer = Issuer(google)
        port = loopback.serve(issuer, ca.server_context((LOOPBACK,), now))
        issuer.url = f"https://{LOOPBACK}:{port}"
        flags = WAYS[request.param](folder, issuer, ca.certificate_pem)
        claims = {} if issuer.name == GOOGLES else {"iss": issuer.name}
        metadata = MetadataServer(google)
        host = f"{LOOPBACK}:{loopback.serve(metadata)}"
        with open_own_control_plane(flags) as plane:
            install(plane, folder)
            yield Place(request.param, plane, google, metadata, claims), host


def install(plane: OwnControlPlane, folder: Path) -> None:
    """All that the cluster needs, for the page's users."""
    overlay = folder / "overlay"
    overlay.mkdir()
    component = KUBERNETES / "components" / "google-identities"
    kustomization = {
        "resources": [os.path.relpath(KUBERNETES / "base", overlay), "installation.yaml"],
        "components": [os.path.relpath(component, overlay)],
    }
    installation = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "installation",
            "annotations": {"config.kubernetes.io/local-config": "true"},
        },
        "data": USERS,
    }
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    (overlay / "installation.yaml").write_text(yaml.safe_dump(installation))
    done = plane.run_kubectl("apply", "-k", str(overlay))
    assert done.returncode == 0, done.stderr


@pytest.fixture
def place(served: tuple[Place, str], monkeypatch: pytest.MonkeyPatch) -> Place:
    found, host = served
    # What the environment variable GCE_METADATA_HOST sets when the module is first imported.
    monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", host)
    access = found.be(email_of("sweep"))
    # The API server fetches the issuer's keys in its own time.
    until(lambda: is_let_in(access), "the API server accepts the issuer's tokens")
    found.metadata.asked.clear()
    return found


def email_of(step: str) -> str:
    """A step's service account."""
    return USERS[step.replace("_", "-")].removeprefix(PREFIX)


def open_cluster(access: Access) -> Cluster:
    """The cluster, as one process sees it."""
    return Cluster(Connection(access), "step", lambda: 10.0)


def is_let_in(access: Access) -> bool:
    try:
        open_cluster(access).get_cluster_id()
    except CallError:
        return False
    return True


def refused(access: Access) -> CallError:
    with pytest.raises(CallError) as told:
        open_cluster(access).get_cluster_id()
    return told.value


@pytest.mark.parametrize("step", STEPS)
def test_each_step_comes_in_by_its_service_accounts_token(place: Place, step: str) -> None:
    cluster = open_cluster(place.be(email_of(step)))
    uid = place.plane.request("GET", "/api/v1/namespaces/kube-system")[1]["metadata"]["uid"]
    assert cluster.get_cluster_id() == uid
    assert list(cluster.list_groups()) == []
    assert place.metadata.asked == ["identity"]


def token_secret(name: str) -> dict[str, Any]:
    """A bootstrap token, as the step makes it; it has no use here."""
    group = base64.b64encode(b"system:bootstrappers:kubeadm:default-node-token").decode()
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
        "stringData": {"expiration": "2000-01-01T00:00:00Z"},
    }


def test_a_token_of_googles_is_under_the_admission_policies(place: Place) -> None:
    cluster = open_cluster(place.be(email_of("inject_token")))
    cluster.create_token_secret(token_secret("bootstrap-token-abcdef"))
    told = ""

    def is_denied() -> bool:
        nonlocal told
        try:
            cluster.create_token_secret(token_secret("anything-else"))
        except CallError as error:
            told = str(error)
            return True
        place.plane.request("DELETE", "/api/v1/namespaces/kube-system/secrets/anything-else")
        return False

    until(is_denied, "the policy is at work")
    assert "tpu-functions may only create and delete bootstrap tokens in kube-system" in told


def test_who_has_no_rights_is_named_with_the_prefix(place: Place) -> None:
    email = f"stranger@{PROJECT}.iam.gserviceaccount.com"
    assert str(refused(place.be(email))) == (
        f'{CALL}: 403 Forbidden: namespaces "kube-system" is forbidden: User "{PREFIX}{email}" cannot '
        'get resource "namespaces" in API group "" in the namespace "kube-system"'
    )


HINT = (
    "the API server does not accept the token: is https://accounts.google.com among its issuers, and is "
    "CLUSTER_AUDIENCE, here {audience!r}, among the audiences?"
)


@pytest.mark.parametrize("case", ["another audience", "not verified"])
def test_what_does_not_fit_is_refused_twice_and_told(place: Place, case: str) -> None:
    is_verified = case != "not verified"
    access = place.be(email_of("sweep"), email_verified=is_verified)
    assert isinstance(access, GoogleToken)
    audience = "another" if is_verified else AUDIENCE
    error = refused(replace(access, audience=audience))
    hint = HINT.format(audience=audience)
    assert str(error) == f"{CALL}: 401 Unauthorized: Unauthorized ({hint})"
    assert place.metadata.asked == ["identity", "identity"]


def test_only_a_configuration_keeps_other_projects_out(place: Place) -> None:
    error = refused(place.be("sweep@another-project.iam.gserviceaccount.com"))
    assert error.http == (401 if place.way == "AuthenticationConfiguration" else 403)


def test_a_token_that_has_ended_is_renewed(place: Place) -> None:
    access = place.be(email_of("sweep"))
    place.google.ages_s = [3700]
    cluster = open_cluster(access)
    assert list(cluster.list_groups()) == []
    assert cluster.calls == 2
    assert place.metadata.asked == ["identity", "identity"]


def test_only_the_clusters_own_ca_is_trusted(place: Place) -> None:
    access = place.be(email_of("sweep"))
    assert isinstance(access, GoogleToken)
    other = CertificateAuthority.create(datetime.now(UTC)).certificate_pem
    error = refused(replace(access, ca_pem=other))
    assert str(error).startswith(
        f"{CALL}: 0 unreachable: {place.plane.server}: its certificate is signed by another CA than "
        "that of CLUSTER_CA ("
    )


NAMESPACE = "/api/v1/namespaces/tpu-functions"


def test_a_new_version_of_a_kubeconfig_follows_one_that_was_revoked(
    place: Place, tmp_path: Path
) -> None:
    plane, path = place.plane, tmp_path / "kubeconfig"
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
    told: list[CallError] = []

    def is_refused() -> bool:
        try:
            list(cluster.list_groups())
        except CallError as error:
            told.append(error)
        return bool(told)

    until(is_refused, "the revoked token is refused")
    assert told[0].http == 401
    assert "was read again, and its credentials are still refused" in told[0].message
    write(None)
    assert list(cluster.list_groups()) == []


@pytest.mark.parametrize(
    "version", ["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1"]
)
def test_an_api_server_starts_with_the_pages_file_before_there_are_accounts(
    version: str, tmp_path: Path
) -> None:
    configuration = yaml.safe_load(snippet("jwt: []")) | {"apiVersion": version}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(configuration))
    with open_own_control_plane([f"--authentication-config={path}"]) as plane:
        assert plane.request("GET", "/api/v1/namespaces/kube-system")[0] == 200
