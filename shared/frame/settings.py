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
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from shared.slices.by_node_pool.bodies import GkeSettings

GOOGLES_CERTIFICATES = "https://www.googleapis.com/oauth2/v1/certs"
"""Where Google publishes the keys that sign its ID tokens, as X.509 by key id."""

JOBSET_PROVIDERS = (GKE, TPU_NODE_GROUP) = ("gke", "tpu-node-group")
"""What JobSets' slices can be: node pools of GKE, or TPUNodeGroups."""

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


class PushVerification(StrEnum):
    """Who verifies the signature of a push's token."""

    PLATFORM = "platform"
    """Cloud Run: IAM lets only the push account call the service, and the signature is removed."""
    SIGNATURE = "signature"
    """The function itself, wherever it runs."""


@dataclass(frozen=True)
class Pusher:
    """Who may push messages, as the push subscriptions' OIDC tokens say it."""

    service_account: str
    audience: str
    certificates_url: str
    verification: PushVerification = PushVerification.SIGNATURE


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
    jobset_provider: str = ""
    """What makes slices for JobSets, of `JOBSET_PROVIDERS`; empty: nothing does."""
    suspended_release: timedelta | None = None
    """After how long the slice of a suspended JobSet is released; ``None``: never."""
    lost_rebuild: timedelta | None = None
    """After how long a JobSet's slice that has lost a host is replaced; ``None``: never."""
    gke: GkeSettings | None = None
    """What node pools are made of (`by_node_pool.bodies`), where JobSets get node pools."""

    def serves(self, project: str) -> bool:
        """Whether groups may ask for TPUs in a project."""
        return project in self.projects


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
        jobset_provider=_jobset_provider(variables),
        suspended_release=_minutes(variables, "JOBSET_SUSPENDED_RELEASE_MINUTES"),
        lost_rebuild=_minutes(variables, "JOBSET_LOST_REBUILD_MINUTES"),
        gke=_gke(variables, environment),
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


def _jobset_provider(variables: Variables) -> str:
    provider = variables.get("JOBSET_PROVIDER")
    if provider and provider not in JOBSET_PROVIDERS:
        choices = " or ".join(JOBSET_PROVIDERS)
        variables.reject("JOBSET_PROVIDER", f"{choices}, or empty: JobSets get no slices then")
    return provider


def _gke(variables: Variables, environment: Mapping[str, str]) -> GkeSettings | None:
    """The settings of node pools, which only an installation that makes some need have."""
    if variables.get("JOBSET_PROVIDER") != GKE:
        return None
    from shared.slices.by_node_pool.bodies import read_settings

    try:
        return read_settings(environment)
    except SettingsError as error:
        variables.problems.append(str(error))
        return None


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
    names = ("PUSH_SERVICE_ACCOUNT", "PUSH_AUDIENCE", "PUSH_CERTIFICATES_URL", "PUSH_VERIFICATION")
    if not any(variables.get(name) for name in names):
        return None
    verification = variables.get("PUSH_VERIFICATION") or PushVerification.SIGNATURE
    if verification not in list(PushVerification):
        variables.reject("PUSH_VERIFICATION", " or ".join(PushVerification))
    if verification == PushVerification.PLATFORM and variables.get("PUSH_CERTIFICATES_URL"):
        variables.problems.append(
            "PUSH_CERTIFICATES_URL is set, but with PUSH_VERIFICATION=platform no signature is "
            "verified: it must not be set"
        )
    return Pusher(
        service_account=variables.require(
            "PUSH_SERVICE_ACCOUNT", "the e-mail of the push subscriptions' service account", _EMAIL
        ),
        audience=variables.require("PUSH_AUDIENCE", "the audience of the push subscriptions"),
        certificates_url=read_url(variables, "PUSH_CERTIFICATES_URL") or GOOGLES_CERTIFICATES,
        verification=PushVerification.PLATFORM
        if verification == PushVerification.PLATFORM
        else PushVerification.SIGNATURE,
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


def _minutes(variables: Variables, name: str) -> timedelta | None:
    text = variables.get(name) or "0"
    if not re.fullmatch("[0-9]{1,6}", text):
        variables.reject(name, "a whole number of minutes, or 0 for never")
        return None
    return timedelta(minutes=int(text)) or None
