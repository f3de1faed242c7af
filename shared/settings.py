"""What the environment says, read once; all that is wrong is said at once, by the variables' names."""

from __future__ import annotations

import base64
import ipaddress
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from urllib.parse import urlsplit

from shared.node_group import NodeGroup

GOOGLES_CERTIFICATES = "https://www.googleapis.com/oauth2/v1/certs"
"""Where Google publishes the keys that sign its ID tokens, as X.509 by key id."""

_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_OF_CLUSTER_SERVER = ("CLUSTER_CA", "CLUSTER_TOKEN", "CLUSTER_AUDIENCE")


class SettingsError(Exception):
    """Variables of the environment are missing or wrong; the message says what would be right."""


class TokenKind(StrEnum):
    """Which token of the function's service account the API server takes."""

    ID = "google-id-token"
    """An OIDC token: of a kube-apiserver that trusts accounts.google.com."""
    ACCESS = "google-access-token"
    """An OAuth token: of GKE."""


@dataclass(frozen=True)
class Kubeconfig:
    """Access to the cluster by a kubeconfig file; in the cloud, by a secret's volume."""

    path: str


@dataclass(frozen=True)
class GoogleToken:
    """Access to the cluster by a token of the Google service account that the function runs as."""

    server: str
    """The API server's URL, without a slash at its end."""
    ca_pem: str
    """The certificates of the CAs that may have signed the API server's; no others are trusted."""
    kind: TokenKind
    audience: str
    """Whom an ID token is for; empty for an access token."""


Access = Kubeconfig | GoogleToken


@dataclass(frozen=True)
class Pusher:
    """Who may push messages, as the push subscriptions' OIDC tokens say it."""

    service_account: str
    audience: str
    certificates_url: str


@dataclass(frozen=True)
class Settings:
    """How the functions are set up."""

    pubsub_project: str
    """Where the topics are."""
    topic_prefix: str
    projects: frozenset[str]
    """Projects in which groups may ask for TPUs."""
    access: Access
    """The way into the cluster."""
    compute_endpoint: str
    """Another address of Compute Engine's API; empty for Google's."""
    join_timeout: timedelta
    """How long a started VM may take to join before it is called late."""
    pusher: Pusher | None = None
    """Whose pushes alone are taken; without it, the platform has seen to that."""

    def serves(self, group: NodeGroup) -> bool:
        """Whether the group asks for TPUs in a project of this installation."""
        return group.spec is not None and group.spec.project in self.projects


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Read the settings; an empty variable counts as not set. Raises `SettingsError`."""
    variables = Variables(environment)
    project = variables.require("PUBSUB_PROJECT", "the id of the project with the topics")
    settings = Settings(
        pubsub_project=project,
        topic_prefix=variables.get("TOPIC_PREFIX") or "tpu-functions-",
        projects=_projects(variables, project),
        access=_access(variables),
        compute_endpoint=read_url(variables, "COMPUTE_ENDPOINT"),
        join_timeout=_seconds(variables, "NODE_JOIN_TIMEOUT_SECONDS", 900),
        pusher=_pusher(variables),
    )
    if variables.problems:
        raise SettingsError("; ".join(variables.problems))
    return settings


class Variables:
    """The environment, trimmed, and what has been found wrong with it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.problems: list[str] = []

    def get(self, name: str) -> str:
        """A variable's value; empty when it is not set."""
        return self._environment.get(name, "").strip()

    def require(self, name: str, meaning: str, pattern: re.Pattern[str] | None = None) -> str:
        """One that must be set, and match ``pattern``; ``meaning`` says what would be right."""
        value = self.get(name)
        if not value:
            self.problems.append(f"{name} is not set: it must be {meaning}")
        elif pattern is not None and not pattern.fullmatch(value):
            self.reject(name, meaning)
        return value

    def reject(self, name: str, meaning: str) -> None:
        """Note that a value is wrong."""
        self.problems.append(f"{name}={self.get(name)!r} is wrong: it must be {meaning}")


def _projects(variables: Variables, default: str) -> frozenset[str]:
    listed = variables.get("PROJECTS") or default
    projects = frozenset(name.strip() for name in listed.split(",") if name.strip())
    if not projects and listed:
        variables.reject("PROJECTS", "the ids of the projects with the TPUs, with commas between")
    return projects


def _access(variables: Variables) -> Access:
    kubeconfig, server = variables.get("KUBECONFIG"), variables.get("CLUSTER_SERVER")
    stray = [name for name in _OF_CLUSTER_SERVER if variables.get(name)]
    if kubeconfig and server:
        variables.problems.append(
            "KUBECONFIG and CLUSTER_SERVER are both set: one of them must be, KUBECONFIG for access "
            "by a kubeconfig file, CLUSTER_SERVER for access by a Google token"
        )
    elif stray and not server:
        variables.problems.append(
            f"{' and '.join(stray)} {'is' if len(stray) == 1 else 'are'} set without CLUSTER_SERVER: "
            "that must be the API server's https URL"
        )
    elif not kubeconfig and not server:
        variables.problems.append(
            "neither KUBECONFIG nor CLUSTER_SERVER is set: one of them must be, KUBECONFIG the path "
            "of a kubeconfig file, or CLUSTER_SERVER the API server's https URL"
        )
    elif server:
        return _google_token(variables)
    return Kubeconfig(kubeconfig)


def _google_token(variables: Variables) -> GoogleToken:
    server = _server(variables)
    kinds = " or ".join(TokenKind)
    kind = variables.require("CLUSTER_TOKEN", kinds, re.compile("|".join(TokenKind)))
    audience = variables.get("CLUSTER_AUDIENCE")
    if kind == TokenKind.ACCESS and audience:
        variables.problems.append(
            f"CLUSTER_AUDIENCE is set, but a {TokenKind.ACCESS} has no audience: it must not be set"
        )
    return GoogleToken(
        server=server,
        ca_pem=_ca(variables),
        kind=TokenKind.ACCESS if kind == TokenKind.ACCESS else TokenKind.ID,
        audience="" if kind == TokenKind.ACCESS else audience or server,
    )


def _server(variables: Variables) -> str:
    value = variables.get("CLUSTER_SERVER")
    if "@" in value:
        variables.problems.append("CLUSTER_SERVER is wrong: there must be no user in the URL")
    elif not _is_url(value, "https") or re.search(r"[?#]", value):
        variables.reject("CLUSTER_SERVER", "an https URL such as https://10.128.0.2:6443")
    return value.rstrip("/")


def _ca(variables: Variables) -> str:
    """The value is never repeated: somebody may have put a key there."""
    meaning = "the base64 of the CA's certificate in PEM form, as a kubeconfig has it in "
    meaning += "certificate-authority-data"
    text = variables.require("CLUSTER_CA", meaning)
    if not text:
        return ""
    try:
        pem = base64.b64decode("".join(text.split()), validate=True).decode("ascii")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem)
    except (ValueError, ssl.SSLError):
        variables.problems.append(f"CLUSTER_CA is wrong: it must be {meaning}")
        return ""
    if "PRIVATE KEY" in pem:
        variables.problems.append(
            "CLUSTER_CA holds a private key: it must be the certificate alone"
        )
    return pem


def _pusher(variables: Variables) -> Pusher | None:
    names = ("PUSH_SERVICE_ACCOUNT", "PUSH_AUDIENCE", "PUSH_CERTIFICATES_URL")
    if not any(variables.get(name) for name in names):
        return None
    return Pusher(
        service_account=variables.require(
            "PUSH_SERVICE_ACCOUNT", "the e-mail of the push subscriptions' service account", _EMAIL
        ),
        audience=variables.require("PUSH_AUDIENCE", "the audience of the push subscriptions"),
        certificates_url=read_url(variables, "PUSH_CERTIFICATES_URL") or GOOGLES_CERTIFICATES,
    )


def read_url(variables: Variables, name: str) -> str:
    """An address of Google's in another place: plain HTTP on this machine only."""
    value = variables.get(name)
    if value and not _is_url(value, "https") and not (_is_url(value, "http") and _is_near(value)):
        variables.reject(name, "an https URL (http on this machine)")
    return value


def _is_url(value: str, scheme: str) -> bool:
    try:
        parts = urlsplit(value)
        return parts.scheme == scheme and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _is_near(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _seconds(variables: Variables, name: str, default: int) -> timedelta:
    text = variables.get(name) or str(default)
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) == 0:
        variables.reject(name, "a whole number of seconds above 0")
        return timedelta()
    return timedelta(seconds=int(text))
