"""Access to the cluster over TLS on loopback: Google tokens, kubeconfigs and certificates."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.auth.compute_engine import _metadata

from local import kube
from local.base.clock import LoopClock
from local.base.http import Response
from local.base.ports import LOOPBACK, find_free_ports
from local.kube import CertificateAuthority
from shared.base.reasons import Reason
from shared.ports.connection_errors import explain
from shared.ports.error_reasons import ErrorKind
from shared.ports.errors import CallError
from shared.ports.kubernetes.access import AccessError
from shared.ports.kubernetes.access_settings import (
    Access,
    AccountToken,
    GoogleToken,
    Kubeconfig,
    TokenKind,
)
from shared.ports.kubernetes.cluster import Cluster
from shared.ports.kubernetes.connection import Connection
from shared.ports.pubsub import Topics
from shared.runtime import make_publish
from shared.triggers.message import Cause, Message
from tests.support.loopback import (
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
GOOGLES = (TokenKind.ID, TokenKind.ACCESS)
AGE_BEFORE_RENEWAL_S = 3600 - 235
AGE_AT_RENEWAL_S = 3600 - 220
"""google-auth renews a token 225 s before it expires."""


@dataclass
class Servers:
    """A cluster that trusts Google, and a function's metadata server."""

    loopback: Loopback
    ca: CertificateAuthority
    api: TrustsGoogle
    server: str
    google: Google
    metadata: MetadataServer

    def access(self, kind: TokenKind = TokenKind.ID) -> GoogleToken:
        """Return settings with which calls succeed."""
        audience = self.server if kind is TokenKind.ID else ""
        return GoogleToken(self.server, self.ca.certificate_pem, kind, audience)


@pytest.fixture(scope="module")
def running_servers() -> Iterator[tuple[Servers, str]]:
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
        yield Servers(loopback, ca, guarded, f"https://{LOOPBACK}:{port}", google, metadata), host


@pytest.fixture
def servers(running_servers: tuple[Servers, str], monkeypatch: pytest.MonkeyPatch) -> Servers:
    """Return the servers without recorded calls: the valid token is accepted and no call fails."""
    shared, host = running_servers
    # google-auth reads this value from GCE_METADATA_HOST when the module is first imported.
    monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", host)
    google = Google(EMAIL, shared.google.keys)
    metadata, api = shared.metadata, shared.api
    metadata.google, metadata.answers, metadata.asked, metadata.given = google, [], [], []
    api.accept, api.refuse, api.seen, api.user = is_id_token(google, shared.server), 0, [], USER
    api.agents.clear()
    return replace(shared, google=google)


def list_nodes(access: Access, calls: int = 1) -> Cluster:
    """List the Nodes of a group this many times with the client of one process."""
    cluster = open_cluster(access)
    for _ in range(calls):
        cluster.list_nodes("tng-x", 2)
    return cluster


def open_cluster(access: Access) -> Cluster:
    """Return the client of one process."""
    return Cluster(Connection(access), "label_node", lambda: 5.0)


def get_error(access: Access) -> CallError:
    """Return the error of the call for the cluster's id."""
    with pytest.raises(CallError) as raised:
        open_cluster(access).get_cluster_id()
    return raised.value


# Google tokens


def test_an_id_token_is_fetched_once_for_the_audience_and_names_the_step(
    servers: Servers,
) -> None:
    cluster = list_nodes(servers.access(), calls=3)
    assert servers.metadata.asked == ["identity"]
    assert servers.api.seen == servers.metadata.given * 3
    assert servers.api.agents == {"tpu-functions-label-node"}
    assert cluster.calls == 3


def test_an_access_token_has_the_scopes_cloud_platform_and_userinfo_email(servers: Servers) -> None:
    servers.api.accept = lambda token: token.startswith("ya29.")
    list_nodes(servers.access(TokenKind.ACCESS), calls=2)
    assert servers.metadata.asked == ["account", "token"]
    assert servers.metadata.given == [
        "ya29.0-https://www.googleapis.com/auth/cloud-platform,"
        "https://www.googleapis.com/auth/userinfo.email"
    ]


@pytest.mark.parametrize("kind", GOOGLES)
@pytest.mark.parametrize("age_s, fetched", [(AGE_BEFORE_RENEWAL_S, 1), (AGE_AT_RENEWAL_S, 2)])
def test_a_token_is_renewed_before_it_expires(
    servers: Servers, kind: TokenKind, age_s: int, fetched: int
) -> None:
    servers.api.accept = lambda token: token in servers.metadata.given
    servers.google.ages_s = [age_s]
    list_nodes(servers.access(kind), calls=2)
    assert len(servers.metadata.given) == fetched
    assert servers.api.seen == [servers.metadata.given[0], servers.metadata.given[-1]]


@pytest.mark.parametrize("kind", GOOGLES)
def test_a_rejected_token_is_renewed_once(servers: Servers, kind: TokenKind) -> None:
    servers.api.accept = lambda token: token in servers.metadata.given
    servers.api.refuse = 1
    cluster = list_nodes(servers.access(kind))
    assert len(servers.metadata.given) == 2
    assert cluster.calls == 2


def test_many_threads_with_one_rejected_token_renew_it_once(servers: Servers) -> None:
    servers.google.ages_s = [60]
    cluster = list_nodes(servers.access())
    first = servers.metadata.given[0]
    servers.api.accept = lambda token: token != first
    threads = [threading.Thread(target=cluster.list_nodes, args=("tng-x", 2)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(servers.metadata.given) == 2


HINTS = {
    TokenKind.ID: "the API server does not accept the token: is https://accounts.google.com among its "
    "issuers, and is CLUSTER_AUDIENCE, here {audience!r}, among the audiences?",
    TokenKind.ACCESS: "the API server does not accept the token: CLUSTER_TOKEN=google-access-token is "
    "for GKE, others need google-id-token",
}


@pytest.mark.parametrize("kind", GOOGLES)
def test_the_error_of_a_rejected_token_names_what_to_check_and_omits_the_token(
    servers: Servers, kind: TokenKind
) -> None:
    access = replace(servers.access(kind), audience="another" if kind is TokenKind.ID else "")
    error = get_error(access)
    hint = HINTS[kind].format(audience="another")
    assert str(error) == f"{CALL}: 401 Unauthorized: Unauthorized ({hint})"
    assert (error.kind, error.reason) == (ErrorKind.ENVIRONMENT, Reason.PERMISSION_DENIED)
    assert servers.api.seen == servers.metadata.given
    assert len(servers.metadata.given) == 2


def test_the_error_of_a_missing_permission_is_the_message_of_the_api_server(
    servers: Servers,
) -> None:
    servers.api.user = POWERLESS
    error = get_error(servers.access())
    assert str(error) == (
        f'{CALL}: 403 Forbidden: namespaces "kube-system" is forbidden: User "{EMAIL}" cannot get '
        'resource "namespaces" in API group "" in the namespace "kube-system"'
    )


# The metadata server


def test_an_unavailable_metadata_server_is_called_once(servers: Servers) -> None:
    servers.metadata.answers = [Response(503, {}, b"busy")]
    error = get_error(servers.access())
    assert str(error) == f"{TOKEN}: 503 refused: busy"
    assert error.kind is ErrorKind.TRANSIENT
    assert servers.metadata.asked == ["identity"]


def test_the_error_of_an_unreachable_metadata_server_names_the_setting_that_needs_it(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    (port,) = find_free_ports(1)
    monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", f"{LOOPBACK}:{port}")
    error = get_error(servers.access())
    assert str(error) == (
        f"{TOKEN}: 0 unreachable: Connection refused; CLUSTER_TOKEN=google-id-token is for functions "
        "that run on Google Cloud"
    )
    assert error.kind is ErrorKind.TRANSIENT


def test_a_call_to_the_metadata_server_ignores_the_proxy(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    (port,) = find_free_ports(1)
    monkeypatch.setenv("HTTP_PROXY", f"http://{LOOPBACK}:{port}")
    list_nodes(servers.access())
    assert servers.metadata.asked == ["identity"]


UNUSABLE_ANSWERS: dict[str, tuple[Response, str]] = {
    "no account": (
        Response(404, {}, b"not found"),
        "the metadata server knows no service account; the function must run as one",
    ),
    "no token": (
        Response(200, {"Content-Type": "text/html"}, b"secret"),
        "the metadata server did not return such a token",
    ),
    "a token without an expiry": (
        Response(200, {"Content-Type": "text/html"}, b"e30.e30.secret"),
        "the metadata server did not return such a token",
    ),
}


@pytest.mark.parametrize("case", UNUSABLE_ANSWERS)
def test_a_metadata_server_without_a_token_is_reported(servers: Servers, case: str) -> None:
    answer, why = UNUSABLE_ANSWERS[case]
    servers.metadata.answers = [answer]
    with pytest.raises(AccessError) as raised:
        open_cluster(servers.access()).get_cluster_id()
    assert str(raised.value) == f"CLUSTER_TOKEN=google-id-token: {why}"
    assert raised.value.__cause__ is None
    list_nodes(servers.access())


# Certificates


def serve_as(servers: Servers, ca: CertificateAuthority, host: str, age: timedelta) -> str:
    """Serve the same cluster at another port, with another certificate."""
    tls = ca.server_context((host,), datetime.now(UTC) - age)
    return f"https://{LOOPBACK}:{servers.loopback.serve(servers.api, tls)}"


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
def test_an_invalid_certificate_is_rejected_with_the_reason(servers: Servers, case: str) -> None:
    is_ca_trusted, host, age, why = CERTIFICATES[case]
    ca = CertificateAuthority.create(datetime.now(UTC) - YEARS)
    given = ca if is_ca_trusted else servers.ca
    server = serve_as(servers, ca, host, age)
    error = get_error(replace(servers.access(), server=server, ca_pem=given.certificate_pem))
    assert str(error).startswith(f"{CALL}: 0 unreachable: {server}: {why}")
    assert error.kind is ErrorKind.TRANSIENT
    assert servers.api.seen == []


def test_both_cas_of_a_rotation_are_trusted(servers: Servers) -> None:
    after = CertificateAuthority.create(datetime.now(UTC), "after")
    both = servers.ca.certificate_pem + after.certificate_pem
    for ca in (servers.ca, after):
        server = serve_as(servers, ca, LOOPBACK, timedelta())
        list_nodes(replace(servers.access(), server=server, ca_pem=both, audience=servers.server))
    assert len(servers.api.seen) == 2


def test_the_error_of_an_untrusted_certificate_names_kubeconfig_as_the_source_of_the_ca(
    servers: Servers, tmp_path: Path
) -> None:
    other = CertificateAuthority.create(datetime.now(UTC))
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig(servers.server, other.certificate_pem, USER))
    message = get_error(Kubeconfig(str(path))).message
    assert "its certificate is signed by another CA than that of KUBECONFIG (" in message


def test_the_error_of_an_unreachable_cluster_names_its_address(servers: Servers) -> None:
    (port,) = find_free_ports(1)
    server = f"https://{LOOPBACK}:{port}"
    error = get_error(replace(servers.access(), server=server))
    assert str(error) == f"{CALL}: 0 unreachable: {server}: Connection refused"


def test_the_error_of_a_timeout_names_the_address_of_the_cluster(servers: Servers) -> None:
    with socket.create_server((LOOPBACK, 0)) as silent:
        server = f"https://{LOOPBACK}:{silent.getsockname()[1]}"
        access = replace(servers.access(), server=server)
        cluster = Cluster(Connection(access), "label_node", lambda: 0.2)
        with pytest.raises(CallError) as raised:
            cluster.get_cluster_id()
    assert raised.value.message == f"{server}: no answer in time"


# Kubeconfigs


def accept_only(servers: Servers, token: str) -> None:
    """Let the cluster accept only this token."""
    servers.api.accept = lambda found: found == token


def write(servers: Servers, path: Path, token: str) -> Access:
    """Replace the file, as a Secret volume does for a new version."""
    fresh = path.with_suffix(".new")
    fresh.write_text(kubeconfig(servers.server, servers.ca.certificate_pem, token))
    fresh.replace(path)
    return Kubeconfig(str(path))


def test_a_changed_kubeconfig_is_read_again(servers: Servers, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    accept_only(servers, "first")
    cluster = list_nodes(write(servers, path, "first"))
    accept_only(servers, "other")
    write(servers, path, "other")
    cluster.list_nodes("tng-x", 2)
    assert servers.api.seen == ["first", "other"]


def test_a_kubeconfig_with_the_same_size_and_times_is_read_again_after_a_rejection(
    servers: Servers, tmp_path: Path
) -> None:
    path = tmp_path / "kubeconfig"
    accept_only(servers, "first")
    cluster = list_nodes(write(servers, path, "first"))
    accept_only(servers, "other")
    before = path.stat()
    path.write_text(path.read_text().replace("first", "other"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    cluster.list_nodes("tng-x", 2)
    assert servers.api.seen == ["first", "first", "other"]


def test_messages_have_the_clusters_id_also_after_a_rejection(
    servers: Servers, tmp_path: Path
) -> None:
    """The id is read again before anything else of the next invocation; this one has messages left."""
    path, sent = tmp_path / "kubeconfig", list[Any]()
    accept_only(servers, "first")
    connection = Connection(write(servers, path, "first"))
    cluster = Cluster(connection, "label_node", lambda: 5.0)
    uid = cluster.get_cluster_id()
    accept_only(servers, "other")
    write(servers, path, "other")
    cluster.list_nodes("tng-x", 2)
    topics = cast("Topics", SimpleNamespace(publish=lambda _, contents: sent.extend(contents)))
    message = Message("default", "one", "uid", Cause.RESYNC, datetime(2026, 1, 1, tzinfo=UTC))
    make_publish(topics, connection)("label_node", [message])
    assert [attributes["cluster"] for _, attributes in sent] == [uid]
    assert cluster.get_installation_id() == ""
    assert servers.api.seen == ["first", "other", "other"], "whose cluster it is is read again"


def test_a_rejected_kubeconfig_is_reported(servers: Servers, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    error = get_error(write(servers, path, "ended"))
    assert str(error) == (
        f"{CALL}: 401 Unauthorized: Unauthorized (KUBECONFIG={str(path)!r} was read again, and its "
        "credentials are still refused)"
    )
    assert servers.api.seen == ["ended", "ended"]


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
def test_an_invalid_kubeconfig_is_reported_until_it_is_fixed(
    text: str, servers: Servers, tmp_path: Path
) -> None:
    path = tmp_path / "kubeconfig"
    accept_only(servers, "valid")
    cluster = list_nodes(write(servers, path, "valid"))
    path.write_text(text)
    for _ in range(2):
        with pytest.raises(AccessError) as raised:
            cluster.list_nodes("tng-x", 2)
        assert str(raised.value).startswith(f"KUBECONFIG={str(path)!r} cannot be used: ")
    write(servers, path, "valid")
    cluster.list_nodes("tng-x", 2)


def test_the_cluster_id_is_read_again_after_the_kubeconfig_has_changed(
    servers: Servers, tmp_path: Path
) -> None:
    path = tmp_path / "kubeconfig"
    accept_only(servers, "valid")
    cluster = list_nodes(write(servers, path, "valid"))
    for _ in range(2):
        cluster.get_cluster_id()
    write(servers, path, "valid")
    for _ in range(2):
        cluster.get_cluster_id()
    assert len(servers.api.seen) == 3


# Token files

HOURS = timedelta(hours=1)


@dataclass
class TokenFile:
    """A file with a ServiceAccount's token, and the clock of the function that reads it."""

    servers: Servers
    path: Path
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    @property
    def access(self) -> AccountToken:
        """The settings of the function."""
        ca_pem = self.servers.ca.certificate_pem
        return AccountToken(self.servers.server, ca_pem, str(self.path))

    def open(self) -> Cluster:
        """Return the client of one process."""
        return Cluster(Connection(self.access, now=lambda: self.now), "label_node", lambda: 5.0)

    def write(self, name: str, life: timedelta = 12 * HOURS) -> str:
        """Replace the token, which the API server then accepts alone; it is called ``name``."""
        claims = {"sub": name, "exp": int((self.now + life).timestamp())}
        middle = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
        token = f"e30.{middle}.{name}"
        self.path.write_text(token + "\n")
        accept_only(self.servers, token)
        return token

    def list_used(self) -> list[str]:
        """The names of the tokens of all requests."""
        return [token.rpartition(".")[2] for token in self.servers.api.seen]


@pytest.fixture
def token_file(servers: Servers, tmp_path: Path) -> TokenFile:
    """Return a token file that is not written yet."""
    return TokenFile(servers, tmp_path / "token")


@pytest.mark.parametrize(
    "life_h, waits_h, used",
    [
        (12, [5.9], ["a", "a"]),
        (12, [6], ["a", "b"]),
        # "b" was as old as "a", so half of its life is over after three more hours.
        (12, [6, 2.9, 0.1], ["a", "b", "b", "d"]),
        # A token of a year, which the token-writer has replaced meanwhile
        (8760, [5.9, 0.1], ["a", "a", "c"]),
    ],
)
def test_a_token_file_is_read_at_the_start_and_at_half_of_the_tokens_life_or_after_six_hours(
    token_file: TokenFile, life_h: int, waits_h: list[float], used: list[str]
) -> None:
    cluster, written = token_file.open(), [token_file.write("a", life_h * HOURS)]
    cluster.list_nodes("tng-x", 2)
    for hours, name in zip(waits_h, "bcd", strict=False):
        written.append(token_file.write(name))
        token_file.servers.api.accept = lambda token: token in written
        token_file.now += hours * HOURS
        cluster.list_nodes("tng-x", 2)
    assert token_file.list_used() == used


def test_a_token_that_is_not_renewed_is_read_ever_more_often_but_not_for_each_request(
    token_file: TokenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, read_at = token_file.open(), list[float]()
    token_file.write("a")
    began, read = token_file.now, Path.read_text

    def count(path: Path, *arguments: Any, **options: Any) -> str:
        read_at.append((token_file.now - began) / HOURS)
        return read(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", count)
    for _ in range(12 * 60 + 10):
        cluster.list_nodes("tng-x", 2)
        cluster.list_nodes("tng-x", 2)
        token_file.now += timedelta(minutes=1)
    assert [round(hours, 1) for hours in read_at[:5]] == [0, 6, 9, 10.5, 11.2]
    assert len(read_at) < 25


def test_a_revoked_token_is_read_again_once(token_file: TokenFile) -> None:
    cluster = token_file.open()
    token_file.write("a")
    cluster.get_cluster_id()
    token_file.write("b")
    cluster.list_nodes("tng-x", 2)
    cluster.get_cluster_id()
    cluster.get_cluster_id()
    assert token_file.list_used() == ["a", "a", "b", "b"], "the id of the cluster is read once more"
    accept_only(token_file.servers, "another")
    with pytest.raises(CallError) as raised:
        cluster.list_nodes("tng-x", 2)
    assert raised.value.message == (
        f"Unauthorized (the token in CLUSTER_TOKEN_FILE={str(token_file.path)!r} was read again, and is "
        "still refused: does the token-writer run, and is it that of this cluster?)"
    )
    assert token_file.list_used()[4:] == ["b", "b"]


NO_TOKENS = (
    *("the token-writer has not run yet", "", "{", "\u00e9", "e30.e30.secret", "e30.bm9uZQ.secret"),
    *("e30.eyJleHAiOjFlOTl9.secret", "e30.eyJleHAiOiJzb29uIn0.secret", "e30.W10.secret"),
    *("e30.eyJleHAiOjF9.secret\nx-other: header"),
)


@pytest.mark.parametrize("text", NO_TOKENS)
def test_a_file_without_a_token_is_an_error_that_quotes_nothing_until_there_is_one(
    text: str, token_file: TokenFile
) -> None:
    cluster = token_file.open()
    token_file.path.write_text(text)
    for _ in range(2):
        with pytest.raises(AccessError) as raised:
            cluster.list_nodes("tng-x", 2)
        assert str(raised.value) == (
            f"CLUSTER_TOKEN_FILE={str(token_file.path)!r} has no token that expires: the token-writer "
            "has not run yet, or something else wrote it."
        )
    token_file.write("a")
    cluster.list_nodes("tng-x", 2)
    assert token_file.list_used() == ["a"]


def test_an_absent_file_is_an_error_only_when_no_token_is_left(token_file: TokenFile) -> None:
    cluster = token_file.open()
    why = f"CLUSTER_TOKEN_FILE={str(token_file.path)!r} cannot be read: No such file or directory."
    with pytest.raises(AccessError, match=re.escape(why)):
        cluster.list_nodes("tng-x", 2)
    token_file.write("a")
    cluster.list_nodes("tng-x", 2)
    token_file.path.unlink()
    token_file.now += 11 * HOURS
    cluster.list_nodes("tng-x", 2)
    accept_only(token_file.servers, "another")
    with pytest.raises(AccessError, match=re.escape(why)):
        cluster.list_nodes("tng-x", 2)
    token_file.now += HOURS
    with pytest.raises(AccessError, match=re.escape(why)):
        cluster.list_nodes("tng-x", 2)
    assert token_file.list_used() == ["a", "a", "a"]


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
