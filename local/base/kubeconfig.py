"""Kubeconfig files."""

from __future__ import annotations

import base64
from typing import Any


def kubeconfig(server: str, ca_pem: str | None, token: str) -> dict[str, Any]:
    """A kubeconfig with one cluster, one user by bearer token and one context, all ``local``.

    Without a CA's certificate, the system's CAs are trusted (none are needed for plain HTTP).
    """
    cluster: dict[str, Any] = {"server": server}
    if ca_pem is not None:
        cluster["certificate-authority-data"] = base64.b64encode(ca_pem.encode()).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": cluster}],
        "users": [{"name": "local", "user": {"token": token}}],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": "local"}}],
        "current-context": "local",
    }
