"""Requests to Compute Engine's REST API, with what a process remembers between invocations.

They are made without google-cloud-compute: its message classes alone take a third of a cold start.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from shared.base.documents import Document, parse_json, read_mappings, read_text
from shared.ports.errors import About
from shared.ports.google_credentials import AnswerT, Headers, LazyClients

_ENDPOINT = "https://compute.googleapis.com"


@dataclass(frozen=True)
class Call:
    """A request. ``name`` is the API's name of the method, as in ``instances.setMetadata``."""

    name: str
    about: About
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None


class Clients(LazyClients):
    """An HTTP session for all calls of a process."""

    members: Mapping[tuple[str, str, str], tuple[datetime, frozenset[str]]] = MappingProxyType({})
    """The ids of the members of MIGs, by project, zone and name, and until when each list is kept."""
    written: Mapping[tuple[str, str], datetime] = MappingProxyType({})
    """Since when metadata of VMs is being written, by the VM's id and the fingerprint before."""

    def open(self, service: str) -> tuple[Any, Any]:  # noqa: ARG002 - there is one
        """Open the session."""
        import requests

        session = requests.Session()
        return session, session

    def request(
        self, call: Call, headers: Headers, timeout_s: float, parse: Callable[[Document], AnswerT]
    ) -> AnswerT:
        """Send one request and parse its answer. Raises errors that `send` explains."""
        answer = self.get("").request(
            call.method,
            f"{self._endpoint or _ENDPOINT}/compute/v1/{quote(call.path)}",
            params=call.query,
            data=None if call.body is None else json.dumps(call.body),
            headers={"Content-Type": "application/json", **dict(headers)},
            timeout=timeout_s,
            allow_redirects=False,
        )
        answer.raise_for_status()
        try:
            return parse(parse_json(answer.content))
        except ValueError as error:
            raise TypeError(str(error)) from error

    def read_error(self, said: Document, reason: str) -> tuple[str, str]:
        """Compute Engine's code and message of the first error."""
        first: Document = next(read_mappings(said, "errors"), {})
        message = read_text(first, "message") or read_text(said, "message")
        return read_text(first, "reason") or reason, message
