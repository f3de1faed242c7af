"""A real API server, as the cases ask it."""

from __future__ import annotations

import json
import secrets
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
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
    """A `Server` for cases, each in a namespace of its own.

    The administrator speaks for all users but ``anonymous`` and the bearers of tokens. What cases
    leave behind outside their namespaces is deleted after them; namespaces and CRDs are when the
    cluster is somebody's.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._administrator = urllib3.PoolManager(ssl_context=plane.administrator())
        nobody = ssl.create_default_context(cadata=plane.ca_pem)
        self._nobody = urllib3.PoolManager(ssl_context=nobody)
        self._known: Mapping[str, str] = {}
        self._made: dict[str, None] = {}
        self._leave: list[str] = []

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
        pool, headers = self._speak_as(user)
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

    def _speak_as(self, user: str) -> tuple[urllib3.PoolManager, urllib3.HTTPHeaderDict]:
        headers = urllib3.HTTPHeaderDict()
        if user == "anonymous":
            return self._nobody, headers
        if user.startswith("token:"):
            headers["Authorization"] = f"Bearer {user.removeprefix('token:')}"
            return self._nobody, headers
        headers.update(self._plane.headers())
        if user != "admin":
            headers["Impersonate-User"] = user
            for group in {fill(name, self._known): held for name, held in USERS.items()}[user]:
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

    def forget(self) -> None:
        """See `Server`. Skips the case on somebody's cluster, whose history is not ours."""
        if not isinstance(self._plane, OwnControlPlane):
            pytest.skip("only a control plane of one's own can be made to forget")
        self._plane.compact()

    # -- a place for each case --------------------------------------------------------------------

    @contextmanager
    def place(self) -> Iterator[Mapping[str, str]]:
        """An empty namespace, and the variables of a case in it."""
        self._known = variables(secrets.token_hex(3), datetime.now(UTC))
        path = f"/api/v1/namespaces/{self._known['ns']}"
        self._demand(201, "POST", "/api/v1/namespaces", {"metadata": {"name": self._known["ns"]}})
        self._made = {}
        self._until(f"{path}/serviceaccounts/default", lambda answer: answer.status == 200)
        try:
            yield self._known
        finally:
            for made in self._made:
                if not made.startswith(f"{path}/"):
                    self.send("DELETE", made)
            self._leave.append(path)

    def _note(self, method: str, path: str, answer: Answer) -> None:
        meta = answer.document.get("metadata", {})
        if meta.get("uid"):
            self._made[path if method == "PATCH" else f"{path}/{meta['name']}"] = None

    def define(self) -> None:
        """Make the CRDs that cases need, where they are not there yet."""
        for crd in ALL:
            path = f"{_CRDS}/{crd['metadata']['name']}"
            if self.send("GET", path).status == 404:
                self._demand(201, "POST", _CRDS, crd)
                self._leave.append(path)
            self._until(path, _is_established)

    def leave(self) -> None:
        """Delete what `place` and `define` have made, if the cluster lives on."""
        if not self._plane.is_ours:
            for path in self._leave:
                self.send("DELETE", path)

    def _until(self, path: str, condition: Callable[[Answer], bool]) -> None:
        answer = self.await_answer(lambda: self.send("GET", path), condition)
        assert condition(answer), f"GET {path}: {answer.body.decode()}"

    def _demand(self, status: int, method: str, path: str, body: Any) -> None:
        answer = self.send(method, path, body)
        assert answer.status == status, f"{method} {path}: {answer.body.decode()}"


def _is_established(answer: Answer) -> bool:
    conditions = answer.document["status"].get("conditions") or ()
    return any((one["type"], one["status"]) == ("Established", "True") for one in conditions)
