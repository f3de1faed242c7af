"""The client library's clients, one for each service of Compute Engine that a step uses.

google-cloud-compute imports all of its 130 services with the package, 1.7 s and 148 MB; with the
package module left unloaded (`leave_unloaded`), a service costs 0.37 s.
"""

import importlib
from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

from shared.base.documents import Document, read_mappings, read_text
from shared.ports.google_credentials import LazyClients
from shared.ports.unloaded import leave_unloaded


class Clients(LazyClients):
    """The clients of services, by the names of their packages, as in ``instance_templates``."""

    members: Mapping[tuple[str, str, str], tuple[datetime, frozenset[str]]] = MappingProxyType({})
    """The ids of the members of MIGs, by project, zone and name, and until when each list is kept."""
    written: Mapping[tuple[str, str], datetime] = MappingProxyType({})
    """Since when metadata of VMs is being written, by the VM's id and the fingerprint before."""

    def load_class(self, service: str) -> Callable[..., Any]:
        """Import the class of a service's client, and nothing of other services."""
        leave_unloaded("google.cloud.compute_v1", "google.cloud.compute_v1.services")
        module = importlib.import_module(f"google.cloud.compute_v1.services.{service}")
        words = "".join(part.capitalize() for part in service.split("_"))
        found: Callable[..., Any] = getattr(module, f"{words}Client")
        return found

    def read_error(self, error: Any, said: Document) -> tuple[str, str]:
        """Compute Engine's code and message of the first error."""
        first: Document = next(read_mappings(said, "errors"), {})
        code = read_text(first, "reason") or error.reason or ""
        return str(code), read_text(first, "message") or str(error.message)
