"""A real API server, for the cases."""

from __future__ import annotations

import json
import secrets
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
import urllib3

from local.control_plane.plane import ControlPlane, OwnControlPlane
from local.tests.contract.kubernetes.definitions import ALL
from local.tests.contract.kubernetes.dialogue import AGENT, JSON, USERS, Answer, fill, variables

_TIMEOUT_S = 60.0
_POLL_S = 0.05
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class Real:
    """A `Server` for cases. Each case runs in its own namespace.

    The administrator impersonates all users but ``anonymous`` and users of tokens. Objects that a case
    creates outside its namespace are deleted after it. Namespaces and CRDs are deleted at the end,
    unless the tests have started the cluster.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._administrator = urllib3.PoolManager(ssl_context=plane.administrator())
        anonymous = ssl.create_default_context(cadata=plane.ca_pem)
        self._anonymous = urllib3.PoolManager(ssl_context=anonymous)
        self._known: Mapping[str, str] = {}
        self._created: dict[str, None] = {}
        self._remaining: list[str] = []

    # -- a server ---------------------------------------------------------------------------------

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = JSON,
        user: str = "admin",
        accept: str = JSON,
    ) -> Answer:
        """See `Server`."""
        pool, headers = self._connection_of(user)
        headers.update({"Accept": accept, "User-Agent": AGENT})
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        if raw is not None:
            headers["Content-Type"] = content_type
        response = pool.request(
            method, self._plane.server + path, body=raw, headers=headers, retries=False, timeout=60
        )
        lowered = {name.lower(): value for name, value in response.headers.itermerged()}
        answer = Answer(response.status, lowered, response.data)
        if answer.status == 201:
            self._note(method, path.partition("?")[0], answer)
        return answer

    def _connection_of(self, user: str) -> tuple[urllib3.PoolManager, urllib3.HTTPHeaderDict]:
        headers = urllib3.HTTPHeaderDict()
        if user == "anonymous":
            return self._anonymous, headers
        if user.startswith("token:"):
            headers["Authorization"] = f"Bearer {user.removeprefix('token:')}"
            return self._anonymous, headers
        headers.update(self._plane.headers())
        if user != "admin":
            headers["Impersonate-User"] = user
            for group in {fill(name, self._known): groups for name, groups in USERS.items()}[user]:
                headers.add("Impersonate-Group", group)
        return self._administrator, headers

    def await_answer(
        self, ask: Callable[[], Answer], is_expected: Callable[[Answer], bool]
    ) -> Answer:
        """See `Server`."""
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            answer = ask()
            if is_expected(answer) or time.monotonic() > deadline:
                return answer
            time.sleep(_POLL_S)

    def compact(self) -> None:
        """See `Server`. Skips the case unless the tests have started the control plane."""
        if not isinstance(self._plane, OwnControlPlane):
            pytest.skip("only a control plane that the tests have started can be compacted")
        self._plane.compact()

    # -- a namespace for each case ----------------------------------------------------------------

    @contextmanager
    def open_namespace(self) -> Iterator[Mapping[str, str]]:
        """Create an empty namespace, and return the variables of a case in it."""
        self._known = variables(secrets.token_hex(3), datetime.now(UTC))
        path = f"/api/v1/namespaces/{self._known['ns']}"
        self._send_expecting(
            201, "POST", "/api/v1/namespaces", {"metadata": {"name": self._known["ns"]}}
        )
        self._created = {}
        self._wait_until(f"{path}/serviceaccounts/default", lambda answer: answer.status == 200)
        try:
            yield self._known
        finally:
            for created in self._created:
                if not created.startswith(f"{path}/"):
                    self.send("DELETE", created)
            self._remaining.append(path)

    def _note(self, method: str, path: str, answer: Answer) -> None:
        meta = answer.document.get("metadata", {})
        if meta.get("uid"):
            self._created[path if method == "PATCH" else f"{path}/{meta['name']}"] = None

    def create_definitions(self, definitions: Iterable[Any] = ALL) -> None:
        """Create the CRDs that cases need, unless they exist."""
        for crd in definitions:
            path = f"{_CRDS}/{crd['metadata']['name']}"
            if self.send("GET", path).status == 404:
                self._send_expecting(201, "POST", _CRDS, crd)
                self._remaining.append(path)
            self._wait_until(path, _is_established)

    def clean_up(self) -> None:
        """Delete what `open_namespace` and `create_definitions` created, if the cluster remains."""
        if not self._plane.is_ours:
            for path in self._remaining:
                self.send("DELETE", path)

    def _wait_until(self, path: str, condition: Callable[[Answer], bool]) -> None:
        answer = self.await_answer(lambda: self.send("GET", path), condition)
        assert condition(answer), f"GET {path}: {answer.body.decode()}"

    def _send_expecting(self, status: int, method: str, path: str, body: Any) -> None:
        answer = self.send(method, path, body)
        assert answer.status == status, f"{method} {path}: {answer.body.decode()}"


def _is_established(answer: Answer) -> bool:
    conditions = answer.document["status"].get("conditions") or ()
    return any((one["type"], one["status"]) == ("Established", "True") for one in conditions)
