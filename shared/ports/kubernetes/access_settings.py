"""The settings of the access to the cluster, read from the environment."""

import base64
import re
import ssl
from dataclasses import dataclass
from enum import StrEnum

from shared.base.environment import Variables, is_url

_OF_CLUSTER_SERVER = ("CLUSTER_CA", "CLUSTER_TOKEN", "CLUSTER_AUDIENCE")


class TokenKind(StrEnum):
    """The kind of token that the API server accepts from the function's service account."""

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
    """The audience of an ID token; empty for an access token."""


Access = Kubeconfig | GoogleToken


def read_access(variables: Variables) -> Access:
    """Read the access to the cluster: a kubeconfig, or a server with its CA and a Google token."""
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
    elif not is_url(value, "https") or re.search(r"[?#]", value):
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
