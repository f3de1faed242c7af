"""How an API server is reached, and as whom."""

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
    """A server (``https://host:port``), whom to trust as such, and who one is.

    Without ``ca_pem`` the system's CAs are trusted. ``client_certificate`` is a file with certificate
    and one with key. ``authorization`` gives the header, or nothing: each time anew, for it may expire.
    """

    server: str
    ca_pem: str | None
    authorization: Callable[[], str | None] = field(default=lambda: None, repr=False)
    client_certificate: tuple[str, str] | None = None

    def tls(self) -> ssl.SSLContext:
        """What the server must show and what is shown to it."""
        context = ssl.create_default_context(cadata=self.ca_pem)
        if self.client_certificate is not None:
            context.load_cert_chain(*self.client_certificate)
        return context

    def kubeconfig(self, token: str) -> dict[str, Any]:
        """A kubeconfig for the same server, as the owner of a bearer token."""
        return kubeconfig(self.server, self.ca_pem, token)


def read_kubeconfig(path: Path, scratch: Path) -> Access:
    """What a kubeconfig's current context says; ``scratch`` takes keys that must be files.

    Any kind of user is understood that the kubernetes client understands. Raises
    `KubeconfigUnusable`.
    """
    # Late: the client is of no use to the embedded cluster, and takes its time to import.
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
    problem = _find_problem(configuration)
    if problem:
        raise KubeconfigUnusable(f"{path} cannot be used here: {problem}")
    ca = configuration.ssl_ca_cert
    pair = (configuration.cert_file, configuration.key_file)
    return Access(
        configuration.host,
        Path(ca).read_text() if ca else None,
        lambda: configuration.get_api_key_with_prefix("BearerToken"),
        pair if all(pair) else None,
    )


def _find_problem(configuration: Any) -> str | None:
    if not configuration.host.startswith("https://"):
        return f"its server is {configuration.host}, and a cluster is reached by https"
    if not configuration.verify_ssl:
        return "it says insecure-skip-tls-verify; give it the cluster's certificate-authority-data"
    if configuration.tls_server_name:
        return "it says tls-server-name, which VMs that join do not know; name the server as it is"
    if configuration.proxy:
        return "it says proxy-url, and the VMs here know no proxy; name a server that needs none"
    return None


def encode(text: str) -> str:
    """In base64."""
    return base64.b64encode(text.encode()).decode()


def decode(text: str) -> str:
    """From base64."""
    return base64.b64decode(text).decode()
