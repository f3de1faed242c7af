"""Access to a Kubernetes API server: address, CA, credential."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from local.base.kubeconfig import kubeconfig


class KubeconfigUnusable(Exception):
    """A kubeconfig cannot be used here; the message says which and why."""


@dataclass(frozen=True)
class Access:
    """A server (``https://host:port``), its CA and a credential.

    Without ``ca_pem`` the system's CAs are trusted. ``client_certificate`` names a file with the
    certificate and one with the key. ``authorization`` returns the current header, because tokens
    expire.
    """

    server: str
    ca_pem: str | None
    authorization: Callable[[], str | None] = field(default=lambda: None, repr=False)
    client_certificate: tuple[str, str] | None = None

    def tls(self) -> ssl.SSLContext:
        """The TLS settings of a connection."""
        context = ssl.create_default_context(cadata=self.ca_pem)
        if self.client_certificate is not None:
            context.load_cert_chain(*self.client_certificate)
        return context

    def kubeconfig(self, token: str) -> dict[str, Any]:
        """A kubeconfig for the same server, as the owner of a bearer token."""
        return kubeconfig(self.server, self.ca_pem, token)


def read_kubeconfig(path: Path, scratch: Path) -> Access:
    """Read the current context of a kubeconfig; keys that must be files are written to ``scratch``.

    All kinds of users are supported that the kubernetes client supports. Raises `KubeconfigUnusable`.
    """
    # Imported late: the import is slow, and the embedded cluster does not need it.
    from kubernetes.client.configuration import Configuration
    from kubernetes.config import ConfigException
    from kubernetes.config.kube_config import load_kube_config
    from yaml import YAMLError

    configuration = Configuration()
    try:
        load_kube_config(
            str(path),
            client_configuration=configuration,
            persist_config=False,
            temp_file_path=str(scratch),
        )
    except (ConfigException, OSError, TypeError, ValueError, YAMLError) as error:
        raise KubeconfigUnusable(f"{path} cannot be used: {error}") from error
    violation = _find_violation(configuration)
    if violation:
        raise KubeconfigUnusable(f"{path} cannot be used here: {violation}")
    ca = configuration.ssl_ca_cert
    pair = (configuration.cert_file, configuration.key_file)
    return Access(
        configuration.host,
        Path(ca).read_text() if ca else None,
        lambda: configuration.get_api_key_with_prefix("BearerToken"),
        pair if all(pair) else None,
    )


def _find_violation(configuration: Any) -> str | None:
    if not configuration.host.startswith("https://"):
        return f"its server is {configuration.host}; only https is supported"
    if not configuration.verify_ssl:
        return "insecure-skip-tls-verify is set; set certificate-authority-data instead"
    if configuration.tls_server_name:
        return (
            "tls-server-name is set, which VMs do not support; set a server name of the certificate"
        )
    if configuration.proxy:
        return "proxy-url is set, which VMs here do not support; set a server that needs no proxy"
    return None


def encode(text: str) -> str:
    """Encode in base64."""
    return base64.b64encode(text.encode()).decode()


def decode(text: str) -> str:
    """Decode base64."""
    return base64.b64decode(text).decode()
