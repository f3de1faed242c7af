"""The three ways into the cluster, over TLS on loopback: tokens, their ends, and whom to trust."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest
from google.auth.compute_engine import _metadata
from urllib3.exceptions import NameResolutionError

from local import kube
from local.base.clock import LoopClock
from local.base.http import Request, Response
from local.base.ports import LOOPBACK, find_free_ports
from local.kube import CertificateAuthority
from shared.base.errors import CallError
from shared.base.reasons import Reason
from shared.ports.classify import ErrorKind, Verdict, verdict_of
from shared.ports.connection_errors import explain
from shared.ports.kubernetes.access import AccessError
from shared.ports.kubernetes.access_settings import Access, GoogleToken, Kubeconfig, TokenKind
from shared.ports.kubernetes.cluster import Cluster
from shared.ports.kubernetes.connection import Connection
from tests.loopback import (
    Google,
    Loopback,
    MetadataServer,
    TrustsGoogle,
    is_id_token,
    kubeconfig,
    open_loopback,
)

EMAIL = "label-node@my-project.iam.gserviceaccount.com"
USER, POWERLESS = "label-node", "powerless"
CALL = "GET /api/v1/namespaces/kube-system"
TOKEN = "token from the metadata server"
YOUNG = 3600 - 235
OLD = 3600 - 220
"""google-auth renews a token 225 s before its end."""


@dataclass
class Place:
    """A cluster that trusts Google, and a function's metadata server."""

    loopback: Loopback
    ca: CertificateAuthority
    api: TrustsGoogle
    server: str
    google: Google
    metadata: MetadataServer

    def access(self, kind: TokenKind = TokenKind.ID) -> GoogleToken:
        """The right settings."""
        audience = self.server if kind is TokenKind.ID else ""
        return GoogleToken(self.server, self.ca.certificate_pem, kind, audience)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Place, str]]:
    with open_loopback() as loopback:
        now = datetime.now(UTC)
        ca = CertificateAuthority.create(now)
        users = {
            USER: kube.User(USER, ("system:masters",)),
            POWERLESS: kube.User(EMAIL, ()),
        }
        api = loopback.call(
            lambda: kube.KubeApi(LoopClock(loopback.loop), random=Random(0), ca=ca, tokens=users)
        )
        google = Google(EMAIL)
        guarded = TrustsGoogle(api, lambda token: token == USER, USER)
        port = loopback.serve(guarded, ca.server_context((LOOPBACK,), now))
        metadata = MetadataServer(google)
        host = f"{LOOPBACK}:{loopback.serve(metadata)}"
        yield Place(loopback, ca, guarded, f"https://{LOOPBACK}:{port}", google, metadata), host


@pytest.fixture
def place(served: tuple[Place, str], monkeypatch: pytest.MonkeyPatch) -> Place:
    """Fresh for each test: nothing was asked, and nothing is refused."""
    shared, host = served
    # What the environment variable GCE_METADATA_HOST sets when the module is first imported.
    monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", host)
    google = Google(EMAIL, shared.google.keys)
    metadata, api = shared.metadata, shared.api
    metadata.google, metadata.answers, metadata.asked, metadata.given = google, [], [], []
    api.accept, api.refuse, api.seen, api.user = is_id_token(google, shared.server), 0, [], USER
    return replace(shared, google=google)


def reach(access: Access, calls: int = 1) -> Cluster:
    """Ask the cluster for groups of Nodes, this many times, as one process does."""
    cluster = open_cluster(access)
    for _ in range(calls):
        cluster.list_nodes("tng-x")
    return cluster


def open_cluster(access: Access) -> Cluster:
    """The cluster, as one process sees it."""
    return Cluster(Connection(access), "label_node", lambda: 5.0)


def refused(access: Access) -> CallError:
    """The error of a process that asks for the cluster's id."""
    with pytest.raises(CallError) as told:
        open_cluster(access).get_cluster_id()
    return told.value


# a token of Google's


def test_an_id_token_is_fetched_once_and_is_for_the_audience(place: Place) -> None:
    cluster = reach(place.access(), calls=3)
    assert place.metadata.asked == ["identity"]
    assert place.api.seen == place.metadata.given * 3
    assert cluster.calls == 3


def test_an_access_token_is_for_gke(place: Place) -> None:
    place.api.accept = lambda token: token.startswith("ya29.")
    reach(place.access(TokenKind.ACCESS), calls=2)
    assert place.metadata.asked == ["account", "token"]
    assert place.metadata.given == [
        "ya29.0-https://www.googleapis.com/auth/cloud-platform,"
        "https://www.googleapis.com/auth/userinfo.email"
    ]


@pytest.mark.parametrize("kind", TokenKind)
@pytest.mark.parametrize("age_s, fetched", [(YOUNG, 1), (OLD, 2)])
def test_a_token_is_renewed_before_it_ends(
    place: Place, kind: TokenKind, age_s: int, fetched: int
) -> None:
    place.api.accept = lambda token: token in place.metadata.given
    place.google.ages_s = [age_s]
    reach(place.access(kind), calls=2)
    assert len(place.metadata.given) == fetched
    assert place.api.seen == [place.metadata.given[0], place.metadata.given[-1]]


@pytest.mark.parametrize("kind", TokenKind)
def test_a_token_that_is_refused_is_renewed_once(place: Place, kind: TokenKind) -> None:
    place.api.accept = lambda token: token in place.metadata.given
    place.api.refuse = 1
    cluster = reach(place.access(kind))
    assert len(place.metadata.given) == 2
    assert cluster.calls == 2


def test_many_threads_fetch_one_token(place: Place) -> None:
    cluster = open_cluster(place.access())
    threads = [threading.Thread(target=cluster.list_nodes, args=("tng-x",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert place.metadata.asked == ["identity"]
    assert len(place.api.seen) == 8


def test_many_threads_that_are_refused_renew_once(place: Place) -> None:
    place.google.ages_s = [60]
    cluster = reach(place.access())
    first = place.metadata.given[0]
    place.api.accept = lambda token: token != first
    threads = [threading.Thread(target=cluster.list_nodes, args=("tng-x",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(place.metadata.given) == 2


HINTS = {
    TokenKind.ID: "the API server does not accept the token: is https://accounts.google.com among its "
    "issuers, and is CLUSTER_AUDIENCE, here {audience!r}, among the audiences?",
    TokenKind.ACCESS: "the API server does not accept the token: CLUSTER_TOKEN=google-access-token is "
    "for GKE, others need google-id-token",
}


@pytest.mark.parametrize("kind", TokenKind)
def test_a_token_that_the_cluster_rejects_is_reported_without_the_token(
    place: Place, kind: TokenKind
) -> None:
    access = replace(place.access(kind), audience="another" if kind is TokenKind.ID else "")
    error = refused(access)
    hint = HINTS[kind].format(audience="another")
    assert str(error) == f"{CALL}: 401 Unauthorized: Unauthorized ({hint})"
    assert verdict_of(error) == Verdict(ErrorKind.ENVIRONMENT, Reason.PERMISSION_DENIED)
    assert place.api.seen == place.metadata.given
    assert len(place.metadata.given) == 2


def test_a_missing_permission_is_reported_only_in_the_clusters_words(place: Place) -> None:
    place.api.user = POWERLESS
    error = refused(place.access())
    assert str(error) == (
        f'{CALL}: 403 Forbidden: namespaces "kube-system" is forbidden: User "{EMAIL}" cannot get '
        'resource "namespaces" in API group "" in the namespace "kube-system"'
    )


# the metadata server


def test_a_metadata_server_that_is_away_is_asked_once(place: Place) -> None:
    place.metadata.answers = [Response(503, {}, b"busy")]
    error = refused(place.access())
    assert str(error) == f"{TOKEN}: 503 refused: busy"
    assert verdict_of(error).kind is ErrorKind.TRANSIENT
    assert place.metadata.asked == ["identity"]


def test_outside_of_google_cloud_there_is_no_metadata_server(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    (port,) = find_free_ports(1)
    monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", f"{LOOPBACK}:{port}")
    error = refused(place.access())
    assert str(error) == (
        f"{TOKEN}: 0 unreachable: Connection refused; CLUSTER_TOKEN=google-id-token is for functions "
        "that run on Google Cloud"
    )
    assert verdict_of(error).kind is ErrorKind.TRANSIENT


def test_no_proxy_comes_before_the_metadata_server(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    (port,) = find_free_ports(1)
    monkeypatch.setenv("HTTP_PROXY", f"http://{LOOPBACK}:{port}")
    reach(place.access())
    assert place.metadata.asked == ["identity"]


USELESS: dict[str, tuple[Response, str]] = {
    "no account": (
        Response(404, {}, b"not found"),
        "the metadata server knows no service account; the function must run as one",
    ),
    "no token": (
        Response(200, {"Content-Type": "text/html"}, b"secret"),
        "what the metadata server has answered is no such token",
    ),
    "a token without end": (
        Response(200, {"Content-Type": "text/html"}, b"e30.e30.secret"),
        "what the metadata server has answered is no such token",
    ),
}


@pytest.mark.parametrize("case", USELESS)
def test_a_metadata_server_without_a_token_is_reported(place: Place, case: str) -> None:
    answer, why = USELESS[case]
    place.metadata.answers = [answer]
    with pytest.raises(AccessError) as told:
        open_cluster(place.access()).get_cluster_id()
    assert str(told.value) == f"CLUSTER_TOKEN=google-id-token: {why}"
    assert told.value.__cause__ is None
    reach(place.access())


def test_of_a_long_refusal_of_the_metadata_server_the_first_200_characters_are_quoted(
    place: Place,
) -> None:
    place.metadata.answers = [Response(503, {}, b" " + b"x" * 300)]
    error = refused(place.access())
    assert (error.http, error.message) == (503, "x" * 200)


class Proxy:
    """What answers before the API server, and in no JSON."""

    def handle(self, _request: Request) -> Response:
        return Response(502, {}, b"x" * 300)


def test_of_a_long_answer_that_is_no_status_the_first_200_characters_are_quoted(
    place: Place,
) -> None:
    tls = place.ca.server_context((LOOPBACK,), datetime.now(UTC))
    server = f"https://{LOOPBACK}:{place.loopback.serve(Proxy(), tls)}"
    error = refused(replace(place.access(TokenKind.ACCESS), server=server))
    assert (error.http, error.reason, error.message) == (502, "", "x" * 200)


# whom to trust


def serve_as(place: Place, ca: CertificateAuthority, host: str, age: timedelta) -> str:
    """The same cluster at another port, with another certificate."""
    tls = ca.server_context((host,), datetime.now(UTC) - age)
    return f"https://{LOOPBACK}:{place.loopback.serve(place.api, tls)}"


YEARS = timedelta(days=800)
CERTIFICATES: dict[str, tuple[bool, str, timedelta, str]] = {
    "another CA": (
        False,
        LOOPBACK,
        timedelta(),
        "its certificate is signed by another CA than that of CLUSTER_CA (",
    ),
    "another address": (
        True,
        "10.0.0.2",
        timedelta(),
        "its certificate is for another name or address (",
    ),
    "expired": (True, LOOPBACK, YEARS, "its certificate has expired"),
}


@pytest.mark.parametrize("case", CERTIFICATES)
def test_only_a_certificate_of_the_given_ca_is_trusted(place: Place, case: str) -> None:
    is_transient, host, age, why = CERTIFICATES[case]
    ca = CertificateAuthority.create(datetime.now(UTC) - YEARS)
    given = place.ca if not is_transient else ca
    server = serve_as(place, ca, host, age)
    error = refused(replace(place.access(), server=server, ca_pem=given.certificate_pem))
    assert str(error).startswith(f"{CALL}: 0 unreachable: {server}: {why}")
    assert verdict_of(error).kind is ErrorKind.TRANSIENT
    assert place.api.seen == []


def test_two_cas_are_trusted_while_one_follows_the_other(place: Place) -> None:
    after = CertificateAuthority.create(datetime.now(UTC), "after")
    both = place.ca.certificate_pem + after.certificate_pem
    for ca in (place.ca, after):
        server = serve_as(place, ca, LOOPBACK, timedelta())
        reach(replace(place.access(), server=server, ca_pem=both, audience=place.server))
    assert len(place.api.seen) == 2


def test_a_kubeconfigs_ca_is_named_as_its_own(place: Place, tmp_path: Path) -> None:
    other = CertificateAuthority.create(datetime.now(UTC))
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig(place.server, other.certificate_pem, USER))
    message = refused(Kubeconfig(str(path))).message
    assert "its certificate is signed by another CA than that of KUBECONFIG (" in message


def test_a_cluster_that_is_away_is_named(place: Place) -> None:
    (port,) = find_free_ports(1)
    server = f"https://{LOOPBACK}:{port}"
    error = refused(replace(place.access(), server=server))
    assert str(error) == f"{CALL}: 0 unreachable: {server}: Connection refused"


def test_a_cluster_that_does_not_answer_in_time_is_named(place: Place) -> None:
    with socket.create_server((LOOPBACK, 0)) as silent:
        server = f"https://{LOOPBACK}:{silent.getsockname()[1]}"
        access = replace(place.access(), server=server)
        cluster = Cluster(Connection(access), "label_node", lambda: 0.2)
        with pytest.raises(CallError) as told:
            cluster.get_cluster_id()
    assert told.value.message == f"{server}: no answer in time"


def test_an_unknown_name_is_reported() -> None:
    error = NameResolutionError("api.example", None, socket.gaierror(-2, "Name not known"))  # type: ignore[arg-type]
    assert explain(error) == "its name cannot be resolved"


# a kubeconfig


def accept_only(place: Place, token: str) -> None:
    """The cluster knows this token and no other."""
    place.api.accept = lambda found: found == token


def write(place: Place, path: Path, token: str) -> Access:
    """A new version of the secret, as a volume shows it: another file in its place."""
    fresh = path.with_suffix(".new")
    fresh.write_text(kubeconfig(place.server, place.ca.certificate_pem, token))
    fresh.replace(path)
    return Kubeconfig(str(path))


def test_a_kubeconfig_that_has_changed_is_read_again(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    accept_only(place, "first")
    cluster = reach(write(place, path, "first"))
    accept_only(place, "other")
    write(place, path, "other")
    cluster.list_nodes("tng-x")
    assert place.api.seen == ["first", "other"]


def test_a_kubeconfig_whose_change_does_not_show_is_read_again_when_it_is_refused(
    place: Place, tmp_path: Path
) -> None:
    path = tmp_path / "kubeconfig"
    accept_only(place, "first")
    cluster = reach(write(place, path, "first"))
    accept_only(place, "other")
    before = path.stat()
    path.write_text(path.read_text().replace("first", "other"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    cluster.list_nodes("tng-x")
    assert place.api.seen == ["first", "first", "other"]


def test_a_rejected_kubeconfig_is_reported(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    error = refused(write(place, path, "ended"))
    assert str(error) == (
        f"{CALL}: 401 Unauthorized: Unauthorized (KUBECONFIG={str(path)!r} was read again, and its "
        "credentials are still refused)"
    )
    assert place.api.seen == ["ended", "ended"]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "- apiVersion: v1",
        "kubeconfig",
        "5",
        "",
        "{current-context: a, contexts: 5}",
        "{current-context: a, contexts: [{name: a, context: 5}]}",
    ],
)
def test_a_broken_kubeconfig_is_reported_until_it_is_fixed(
    text: str, place: Place, tmp_path: Path
) -> None:
    path = tmp_path / "kubeconfig"
    accept_only(place, "right")
    cluster = reach(write(place, path, "right"))
    path.write_text(text)
    for _ in range(2):
        with pytest.raises(AccessError) as told:
            cluster.list_nodes("tng-x")
        assert str(told.value).startswith(f"KUBECONFIG={str(path)!r} cannot be used: ")
    write(place, path, "right")
    cluster.list_nodes("tng-x")


def test_another_kubeconfig_may_be_another_cluster(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    accept_only(place, "right")
    cluster = reach(write(place, path, "right"))
    for _ in range(2):
        cluster.get_cluster_id()
    write(place, path, "right")
    for _ in range(2):
        cluster.get_cluster_id()
    assert len(place.api.seen) == 3


def test_several_kubeconfigs_are_one(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    accept_only(place, "right")
    write(place, path, "right")
    cluster = reach(Kubeconfig(f"{tmp_path / 'none'}{os.pathsep}{path}"))
    cluster.list_nodes("tng-x")
    assert len(place.api.seen) == 2


OPENSSL = {
    **dict.fromkeys((2, 7, 18, 19, 20, 21), "is signed by another CA than that of SOME_CA (words)"),
    **dict.fromkeys((62, 64), "is for another name or address (words)"),
    10: "has expired",
}


@pytest.mark.parametrize("code", range(1, 95))
def test_a_certificate_that_openssl_rejects_is_described_by_the_result(code: int) -> None:
    error = ssl.SSLCertVerificationError("certificate verify failed")
    error.verify_code, error.verify_message = code, "words."
    described = OPENSSL.get(code, "cannot be verified (words)")
    assert explain(error, "SOME_CA") == f"its certificate {described}"
