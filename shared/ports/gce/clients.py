"""Compute Engine's REST API, with what a process remembers between invocations."""

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType

from shared.base.documents import Document, read_mappings, read_text
from shared.ports.google_credentials import RestApi


class Clients(RestApi):
    """Compute Engine for all invocations of a process."""

    URL = "https://compute.googleapis.com/compute/v1"

    members: Mapping[tuple[str, str, str], tuple[datetime, frozenset[str]]] = MappingProxyType({})
    """The ids of the members of MIGs, by project, zone and name, and until when each list is kept."""
    written: Mapping[tuple[str, str], datetime] = MappingProxyType({})
    """Since when metadata of VMs is being written, by the VM's id and the fingerprint before."""

    def read_error(self, said: Document, reason: str) -> tuple[str, str]:
        """Compute Engine's code and message of the first error."""
        first: Document = next(read_mappings(said, "errors"), {})
        message = read_text(first, "message") or read_text(said, "message")
        return read_text(first, "reason") or reason, message
