"""The settings of the access to the cluster, read from the environment."""

import base64
import re
import ssl
from dataclasses import dataclass, field
from enum import StrEnum

from shared.base.environment import Variables, is_url

_OF_CLUSTER_SERVER = ("CLUSTER_CA", "CLUSTER_TOKEN", "CLUSTER_AUDIENCE", "CLUSTER_TOKEN_FILE")


class TokenKind(StrEnum):
    """The kind of token that the API server accepts from the function."""

    ID = "google-id-token"
    """An OIDC token: of a kube-apiserver that trusts accounts.google.com."""
    ACCESS = "google-access-token"
    """An OAuth token: of GKE."""
    ACCOUNT = "service-account-token"
    """A token of a ServiceAccount of the cluster, in a file that the token-writer keeps current."""


@dataclass(frozen=True)
class Kubeconfig:
    """Access to the cluster by a kubeconfig file; in the cloud, by a secret's volume."""

    path: str
    context: str = ""
    """The context that is used; empty: the current one."""


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


@dataclass(frozen=True)
class AccountToken:
    """Access to the cluster by a ServiceAccount's token in a file, such as a secret's volume.

    ``server`` and ``ca_pem`` are as in `GoogleToken`: who can write the file cannot change them.
    ``token`` is used in place of a file.
    """

    server: str
    ca_pem: str
    path: str
    token: str = field(default="", repr=False)


Access = Kubeconfig | GoogleToken | AccountToken


def read_access(variables: Variables) -> Access:
    """Read the access to the cluster: a kubeconfig, or a server with its CA and a kind of token."""
    kubeconfig, server = variables.get("KUBECONFIG"), variables.get("CLUSTER_SERVER")
    stray = [name for name in _OF_CLUSTER_SERVER if variables.get(name)]
    if kubeconfig and server:
        variables.problems.append(
            "KUBECONFIG and CLUSTER_SERVER are both set: one of them must be, KUBECONFIG for access "
            "by a kubeconfig file, CLUSTER_SERVER for access by a token"
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
        return _token(variables)
    return Kubeconfig(kubeconfig)


def read_server(variables: Variables) -> tuple[str, str]:
    """The API server's URL, and its CA in PEM form."""
    return _server(variables), _ca(variables)


def _token(variables: Variables) -> GoogleToken | AccountToken:
    server = _server(variables)
    kinds = " or ".join(TokenKind)
    kind = variables.require("CLUSTER_TOKEN", kinds, re.compile("|".join(TokenKind)))
    uses = {"CLUSTER_AUDIENCE": TokenKind.ID, "CLUSTER_TOKEN_FILE": TokenKind.ACCOUNT}
    for name, user in uses.items():
        if variables.get(name) and kind in list(TokenKind) and kind != user:
            variables.problems.append(
                f"{name} is set, but only CLUSTER_TOKEN={user} uses it: it must not be set"
            )
    if kind == TokenKind.ACCOUNT:
        path = variables.require("CLUSTER_TOKEN_FILE", "the path of a file with the token")
        return AccountToken(server, _ca(variables), path)
    return GoogleToken(
        server=server,
        ca_pem=_ca(variables),
        kind=TokenKind.ACCESS if kind == TokenKind.ACCESS else TokenKind.ID,
        audience="" if kind == TokenKind.ACCESS else variables.get("CLUSTER_AUDIENCE") or server,
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
