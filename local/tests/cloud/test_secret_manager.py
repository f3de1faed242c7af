# ruff: noqa: E501  (a table reads best with a row on a line)
"""The embedded Secret Manager's answers, request by request."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from local.base.clock import VirtualClock
from local.base.http import Request
from local.cloud.secret_manager import SecretManager

SECRET = "/v1/projects/p/secrets/s"
NAME = "projects/225994000000/secrets/s"
ALL = ("versions.get", "versions.access", "versions.list", "versions.add", "versions.destroy")


def open_manager() -> SecretManager:
    """Return a manager with the secret ``s``, for the caller ``t`` with all permissions on it."""
    manager = SecretManager(VirtualClock(), "p")
    manager.secrets["s"] = []
    manager.grant("t", "s", *ALL)
    return manager


def ask(manager: SecretManager, call: str, body: str = "", token: str = "t") -> tuple[int, Any]:
    """Send a request such as ``GET /versions``, or ``POST :addVersion``."""
    method, _, path = call.partition(" ")
    headers = {"authorization": f"Bearer {token}"} if token else {}
    url = path if path.startswith("/v1/") else SECRET + path
    answer = manager.handle(Request.of(method, url, headers=headers, body=body))
    return answer.status, answer.json() if answer.headers[
        "Content-Type"
    ] == "application/json" else {}


def add(text: str) -> str:
    """The body of ``addVersion``."""
    return json.dumps({"payload": {"data": base64.b64encode(text.encode()).decode()}})


def test_a_version_is_added_read_and_destroyed() -> None:
    manager = open_manager()
    assert ask(manager, "POST :addVersion", add("one"))[1] == {
        "name": f"{NAME}/versions/1",
        "createTime": "2026-01-01T00:00:00.000000Z",
        "state": "ENABLED",
        "replicationStatus": {"automatic": {}},
        "etag": '"1-enabled"',
    }
    ask(manager, "POST :addVersion", add("two"))
    accessed = ask(manager, "GET /versions/latest:access")[1]
    assert accessed == {"name": f"{NAME}/versions/2", "payload": {"data": "dHdv"}}
    assert ask(manager, "POST /versions/2:destroy", "{}")[1]["state"] == "DESTROYED"
    assert ask(manager, "GET /versions/latest")[1]["destroyTime"] == "2026-01-01T00:00:00.000000Z"
    assert manager.list_states("s") == {1: "ENABLED", 2: "DESTROYED"}


def test_a_list_is_filtered_and_has_pages() -> None:
    manager = open_manager()
    for _ in range(5):
        ask(manager, "POST :addVersion", add("one"))
    ask(manager, "POST /versions/3:destroy")
    pages, query = [], "filter=state:ENABLED&pageSize=3"
    first = ask(manager, f"GET /versions?{query}")[1]
    rest = ask(manager, f"GET /versions?{query}&pageToken={first['nextPageToken']}")[1]
    pages = [[one["name"].rpartition("/")[2] for one in page["versions"]] for page in (first, rest)]
    assert (pages, first["totalSize"], "nextPageToken" in rest) == (
        [["5", "4", "2"], ["1"]],
        4,
        False,
    )


REFUSED: dict[str, tuple[str, str, str, int, str, str]] = {
    "no token": (
        "GET /versions",
        "",
        "",
        401,
        "UNAUTHENTICATED",
        "Request had invalid authentication credentials.",
    ),
    "an unknown token": (
        "GET /versions",
        "",
        "other",
        401,
        "UNAUTHENTICATED",
        "Request had invalid authentication credentials.",
    ),
    "no permission": (
        "GET /versions/1:access",
        "",
        "powerless",
        403,
        "PERMISSION_DENIED",
        "Permission 'secretmanager.versions.access' denied for resource 'projects/p/secrets/s/versions/1' (or it may not exist).",
    ),
    "another secret": (
        "POST /v1/projects/p/secrets/other:addVersion",
        add("x"),
        "t",
        403,
        "PERMISSION_DENIED",
        "Permission 'secretmanager.versions.add' denied for resource 'projects/p/secrets/other' (or it may not exist).",
    ),
    "another project": (
        "GET /v1/projects/other/secrets/s/versions",
        "",
        "t",
        403,
        "PERMISSION_DENIED",
        "Permission 'secretmanager.versions.list' denied for resource 'projects/other/secrets/s' (or it may not exist).",
    ),
    "an absent secret": (
        "POST /v1/projects/p/secrets/absent:addVersion",
        add("x"),
        "t",
        404,
        "NOT_FOUND",
        "Secret [projects/225994000000/secrets/absent] not found.",
    ),
    "the latest of an absent secret": (
        "GET /v1/projects/p/secrets/absent/versions/latest",
        "",
        "t",
        404,
        "NOT_FOUND",
        "Secret [projects/225994000000/secrets/absent] not found or has no versions.",
    ),
    "an absent version": (
        "GET /versions/3",
        "",
        "t",
        404,
        "NOT_FOUND",
        f"Secret Version [{NAME}/versions/3] not found.",
    ),
    "a destroyed version": (
        "GET /versions/latest:access",
        "",
        "t",
        400,
        "FAILED_PRECONDITION",
        f"Secret Version [{NAME}/versions/2] is in DESTROYED state.",
    ),
    "a destroyed version again": (
        "POST /versions/2:destroy",
        "{}",
        "t",
        400,
        "FAILED_PRECONDITION",
        f"Secret Version [{NAME}/versions/2] is in DESTROYED state.",
    ),
    "another etag": (
        "POST /versions/1:destroy",
        '{"etag": "x"}',
        "t",
        400,
        "FAILED_PRECONDITION",
        f"The etag of {NAME}/versions/1 does not match.",
    ),
    "an unknown field": (
        "POST :addVersion",
        '{"data": "eA=="}',
        "t",
        400,
        "INVALID_ARGUMENT",
        'Invalid JSON payload received. Unknown name "data": Cannot find field.',
    ),
    "no JSON": (
        "POST :addVersion",
        "{",
        "t",
        400,
        "INVALID_ARGUMENT",
        "Invalid JSON payload received.",
    ),
    "no base64": (
        "POST :addVersion",
        '{"payload": {"data": "a.b"}}',
        "t",
        400,
        "INVALID_ARGUMENT",
        "Invalid value at 'payload.data' (TYPE_BYTES), Base64 decoding failed",
    ),
    "no payload": (
        "POST :addVersion",
        "{}",
        "t",
        400,
        "INVALID_ARGUMENT",
        "The payload must have 1 to 65536 bytes.",
    ),
    "a long payload": (
        "POST :addVersion",
        add("x" * 65_537),
        "t",
        400,
        "INVALID_ARGUMENT",
        "The payload must have 1 to 65536 bytes.",
    ),
    "another filter": (
        "GET /versions?filter=name:x",
        "",
        "t",
        400,
        "INVALID_ARGUMENT",
        "Request contains an invalid argument.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_call_changes_nothing(case: str) -> None:
    call, body, token, code, status, message = REFUSED[case]
    manager = open_manager()
    manager.grant("powerless", "s")
    manager.grant("t", "absent", *ALL)
    for _ in range(2):
        ask(manager, "POST :addVersion", add("x"))
    ask(manager, "POST /versions/2:destroy")
    found_code, answer = ask(manager, call, body, token)
    error = answer["error"]
    assert (found_code, error["code"], error["status"]) == (code, code, status)
    assert error["message"].startswith(message)
    assert manager.list_states("s") == {1: "ENABLED", 2: "DESTROYED"}


def test_another_path_is_a_page() -> None:
    assert ask(open_manager(), "GET /versions/0") == (404, {})
    assert ask(open_manager(), "POST /versions/1:enable") == (404, {})
