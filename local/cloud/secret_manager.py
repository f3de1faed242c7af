"""An embedded Secret Manager, for the calls that read, add, list and destroy versions of secrets.

As documented: versions are numbered from 1; only an enabled version can be accessed; a destroyed one
stays destroyed; a payload has at most 64 KiB; each call needs its IAM permission on the secret. As
observed: ``latest`` is the newest version, whatever its state. Secrets are created in process.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from local.base.clock import Clock
from local.base.http import Request, Response

MAX_BYTES = 65_536
PAGE = 100
"""The size of a page without ``pageSize`` (a guess)."""
NUMBER = "225994000000"
"""The project's number, which names in answers have."""

_ENABLED, _DISABLED, _DESTROYED = "ENABLED", "DISABLED", "DESTROYED"
_CODES = {
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
}
_SECRET = r"/v1/projects/(?P<project>[^/]+)/secrets/(?P<secret>[\w-]{1,255})"
_VERSION = _SECRET + r"/versions/(?P<version>[1-9]\d*|latest)"


class SecretManagerError(Exception):
    """The error of a call; ``status`` is Google's name of it."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Version:
    """A version of a secret."""

    number: int
    payload: bytes
    created: str
    state: str = _ENABLED
    destroyed: str = ""

    @property
    def etag(self) -> str:
        return f'"{self.number}-{self.state.lower()}"'


@dataclass
class SecretManager:
    """The secrets of a project. ``grants`` has, by bearer token, the permissions on each secret;
    an empty token stands for requests without one.

    ``calls`` are the permissions of the successful calls, with the secret. ``fail`` may raise an error
    for such a call before it is executed.
    """

    clock: Clock
    project: str
    grants: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    secrets: dict[str, list[Version]] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    fail: Callable[[str, str], None] = lambda *_: None

    # -- in process -------------------------------------------------------------------------------

    def add(self, secret: str, payload: bytes) -> Version:
        """Add a version; creates the secret."""
        versions = self.secrets.setdefault(secret, [])
        versions.append(Version(len(versions) + 1, payload, self._now()))
        return versions[-1]

    def grant(self, token: str, secret: str, *permissions: str) -> None:
        """Grant permissions such as ``versions.add`` on a secret."""
        self.grants.setdefault(token, {}).setdefault(secret, set()).update(permissions)

    def list_states(self, secret: str) -> dict[int, str]:
        """The states of a secret's versions."""
        return {one.number: one.state for one in self.secrets[secret]}

    # -- HTTP -------------------------------------------------------------------------------------

    def handle(self, request: Request) -> Response:
        """Answer one request as the REST API does."""
        for method, pattern, permission, answer in _CALLS:
            found = re.fullmatch(pattern, request.path)
            if found and request.method == method:
                try:
                    self._authorize(request, permission, found)
                    response = Response.of_json(answer(self, request, found))
                    self.calls.append((permission, found["secret"]))
                    return response
                except SecretManagerError as error:
                    return _refuse(error.status, str(error))
        return Response(404, {"Content-Type": "text/html"}, b"<title>Error 404 (Not Found)</title>")

    def _authorize(self, request: Request, permission: str, found: re.Match[str]) -> None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme not in ("Bearer", "") or token not in self.grants:
            raise SecretManagerError(
                "UNAUTHENTICATED",
                "Request had invalid authentication credentials. Expected OAuth 2 access token, login "
                "cookie or other valid authentication credential.",
            )
        secret = found["secret"]
        allowed = (
            self.grants[token].get(secret, set()) if found["project"] == self.project else set()
        )
        if permission not in allowed:
            resource = found.string.removeprefix("/v1/").partition(":")[0].removesuffix("/versions")
            raise SecretManagerError(
                "PERMISSION_DENIED",
                f"Permission 'secretmanager.{permission}' denied for resource '{resource}' (or it may "
                "not exist).",
            )
        self.fail(permission, secret)

    def _get(self, _request: Request, found: re.Match[str]) -> Any:
        return self._render(found, self._find(found))

    def _access(self, _request: Request, found: re.Match[str]) -> Any:
        version = self._find(found)
        _check_state(version, self._name(found, version), _ENABLED)
        data = base64.b64encode(version.payload).decode()
        return {"name": self._name(found, version), "payload": {"data": data}}

    def _list(self, request: Request, found: re.Match[str]) -> Any:
        wanted = re.fullmatch(r"(?:state[:=](\w+))?", request.argument("filter"))
        size, token = request.argument("pageSize", str(PAGE)), request.argument("pageToken", "0")
        if wanted is None or not size.isdecimal() or not token.isdecimal():
            raise SecretManagerError("INVALID_ARGUMENT", "Request contains an invalid argument.")
        versions = reversed(self._secret(found))
        chosen = [one for one in versions if wanted[1] in (None, one.state)]
        start, end = int(token), int(token) + (int(size) or PAGE)
        answer: dict[str, Any] = {
            "versions": [self._render(found, one) for one in chosen[start:end]],
            "totalSize": len(chosen),
            "nextPageToken": str(end) if end < len(chosen) else "",
        }
        return {name: value for name, value in answer.items() if value}

    def _add(self, request: Request, found: re.Match[str]) -> Any:
        payload = _read(request, "payload").get("payload", {})
        if not isinstance(payload, dict) or set(payload) - {"data"}:
            raise SecretManagerError("INVALID_ARGUMENT", "Invalid value at 'payload'")
        try:
            data = base64.b64decode(payload.get("data", ""), validate=True)
        except (binascii.Error, TypeError) as error:
            why = f"Invalid value at 'payload.data' (TYPE_BYTES), Base64 decoding failed: {error}"
            raise SecretManagerError("INVALID_ARGUMENT", why) from error
        if not data or len(data) > MAX_BYTES:
            why = f"The payload must have 1 to {MAX_BYTES} bytes."  # the words are a guess
            raise SecretManagerError("INVALID_ARGUMENT", why)
        self._secret(found)
        return self._render(found, self.add(found["secret"], data))

    def _destroy(self, request: Request, found: re.Match[str]) -> Any:
        etag, version = _read(request, "etag").get("etag", ""), self._find(found)
        name = self._name(found, version)
        _check_state(version, name, _ENABLED, _DISABLED)
        if etag not in ("", version.etag):
            raise SecretManagerError("FAILED_PRECONDITION", f"The etag of {name} does not match.")
        version.state, version.payload, version.destroyed = _DESTROYED, b"", self._now()
        return self._render(found, version)

    # -- helpers ----------------------------------------------------------------------------------

    def _now(self) -> str:
        return self.clock.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def _secret(self, found: re.Match[str]) -> list[Version]:
        secret = found["secret"]
        if secret not in self.secrets:
            why = f"Secret [projects/{NUMBER}/secrets/{secret}] not found."
            raise SecretManagerError("NOT_FOUND", why)
        return self.secrets[secret]

    def _find(self, found: re.Match[str]) -> Version:
        versions, wanted = self.secrets.get(found["secret"], []), found["version"]
        if not versions:
            why = f"Secret [projects/{NUMBER}/secrets/{found['secret']}] not found or has no versions."
            raise SecretManagerError("NOT_FOUND", why)
        number = len(versions) if wanted == "latest" else int(wanted)
        if number > len(versions):
            name = f"projects/{NUMBER}/secrets/{found['secret']}/versions/{number}"
            raise SecretManagerError("NOT_FOUND", f"Secret Version [{name}] not found.")
        return versions[number - 1]

    def _name(self, found: re.Match[str], version: Version) -> str:
        return f"projects/{NUMBER}/secrets/{found['secret']}/versions/{version.number}"

    def _render(self, found: re.Match[str], version: Version) -> dict[str, Any]:
        shown = {
            "name": self._name(found, version),
            "createTime": version.created,
            "destroyTime": version.destroyed,
            "state": version.state,
            "replicationStatus": {"automatic": {}},
            "etag": version.etag,
        }
        return {name: value for name, value in shown.items() if value != ""}


def _read(request: Request, *fields: str) -> dict[str, Any]:
    try:
        body = json.loads(request.body or b"{}")
    except ValueError as error:
        raise SecretManagerError("INVALID_ARGUMENT", "Invalid JSON payload received.") from error
    unknown = sorted(set(body) - set(fields)) if isinstance(body, dict) else [""]
    if unknown:
        why = f'Invalid JSON payload received. Unknown name "{unknown[0]}": Cannot find field.'
        raise SecretManagerError("INVALID_ARGUMENT", why)
    read: dict[str, Any] = body
    return read


def _check_state(version: Version, name: str, *states: str) -> None:
    if version.state not in states:
        why = f"Secret Version [{name}] is in {version.state} state."
        raise SecretManagerError("FAILED_PRECONDITION", why)


def _refuse(status: str, message: str) -> Response:
    code = _CODES[status]
    return Response.of_json(
        {"error": {"code": code, "message": message, "status": status}}, status=code
    )


_CALLS: tuple[
    tuple[str, str, str, Callable[[SecretManager, Request, re.Match[str]], Mapping[str, Any]]], ...
] = (
    ("GET", _VERSION, "versions.get", SecretManager._get),
    ("GET", _VERSION + ":access", "versions.access", SecretManager._access),
    ("GET", _SECRET + "/versions", "versions.list", SecretManager._list),
    ("POST", _SECRET + ":addVersion", "versions.add", SecretManager._add),
    ("POST", _VERSION + ":destroy", "versions.destroy", SecretManager._destroy),
)
