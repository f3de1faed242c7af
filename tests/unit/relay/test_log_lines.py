# ruff: noqa: E501  (a table reads best with a row on a line)
"""The relay's log lines for filters and alerts: the conditions of each, and its level."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import structlog

from local.base.http import Response
from relay import daemon
from tests.unit.relay.objects import group
from tests.unit.relay.running import TIMEOUT_S, Recorder, RunningRelay, is_watch, running_relay
from tests.unit.relay.scripted_api import GROUPS, ScriptedApi, error_response

Lines = Sequence[MutableMapping[str, Any]]


def find(lines: Lines, event: str, **fields: str) -> dict[str, Any]:
    """Return the first line with this text and these fields, without the random delay."""
    line = next(
        line for line in lines if line["event"].startswith(event) and fields.items() <= line.items()
    )
    return {key: value for key, value in line.items() if key != "retry_in_s"}


def end(level: str, end_: str, detail: str) -> dict[str, Any]:
    fields = {"event": "watch ended", "kind": "TPUNodeGroup", "end": end_, "detail": detail}
    return {**fields, "log_level": level}


def _make_list_invalid(api: ScriptedApi) -> None:
    api.compact()
    api.list_errors.append(Response.of_json("x" * 300))


Failure = Callable[[ScriptedApi], None]
ENDS: dict[str, tuple[Failure, dict[str, Any]]] = {
    "the version has expired": (ScriptedApi.compact, end("info", "expired", "410 too old resource version: 5 (100)")),
    "the API server fails": (lambda api: api.watch_errors.append(error_response(500, "etcd is away")), end("warning", "refused", "500 etcd is away")),
    "the CRD does not exist": (
        lambda api: api.watch_errors.append(Response(404, body=b"404 page not found\n")),
        end(
            "warning",
            "refused",
            f"404: the API server does not know {GROUPS}; its CustomResourceDefinition must be applied",
        ),
    ),
    "an invalid event": (lambda api: api.watch_errors.append(Response(200, body=b'"x"\n')), end("warning", "broken", "ValueError: not a watch event: x")),
    "a long invalid event": (
        lambda api: api.watch_errors.append(Response.of_json("x" * 300)),
        end("warning", "broken", f"ValueError: not a watch event: {'x' * 200}"),
    ),
    "a long invalid list": (_make_list_invalid, end("warning", "broken", f"ValueError: not a list: {'x' * 200}")),
    "a long error of the API server": (lambda api: api.watch_errors.append(error_response(500, "x" * 600)), end("warning", "refused", f"500 {'x' * 500}")),
    "a long error of a proxy": (lambda api: api.watch_errors.append(Response(502, body=b"x" * 600)), end("warning", "refused", f"502 {'x' * 500}")),
}  # fmt: skip


@pytest.mark.parametrize("case", ENDS.values(), ids=ENDS)
def test_the_end_of_a_watch_is_a_warning_unless_its_version_has_expired(
    case: tuple[Failure, dict[str, Any]], tmp_path: Path
) -> None:
    cause_failure, line = case

    async def scenario() -> Lines:
        api = ScriptedApi()
        async with running_relay(tmp_path, api) as running:
            with structlog.testing.capture_logs() as lines:
                cause_failure(api)
                for watch in [watch for watch in api.watches if watch.path == GROUPS]:
                    api.watches.remove(watch)
                    watch.end()
                await running.request(is_watch(GROUPS))
                await running.request(is_watch(GROUPS))
            return lines

    assert find(asyncio.run(scenario()), "watch ended", end=line["end"]) == line


def test_a_watch_that_the_server_ends_cleanly_is_not_logged(tmp_path: Path) -> None:
    async def scenario() -> Lines:
        api = ScriptedApi()
        async with running_relay(tmp_path, api) as running:
            with structlog.testing.capture_logs() as lines:
                api.close_watches()
                await running.request(is_watch(GROUPS))
            return lines

    assert asyncio.run(scenario()) == []


def test_each_list_is_logged_with_its_size_and_version(tmp_path: Path) -> None:
    async def scenario() -> Lines:
        api = ScriptedApi()
        api.put(GROUPS, group(), group("b", uid="uid-2"))
        with structlog.testing.capture_logs() as lines:
            async with running_relay(tmp_path, api):
                pass
        return lines

    assert next(one for one in asyncio.run(scenario()) if one.get("kind") == "TPUNodeGroup") == {
        "event": "listed",
        "log_level": "info",
        "kind": "TPUNodeGroup",
        "count": 2,
        "version": "100",
    }


def test_an_object_without_identity_is_a_warning(tmp_path: Path) -> None:
    async def scenario() -> Lines:
        async with running_relay(tmp_path, ScriptedApi()) as running:
            with structlog.testing.capture_logs() as lines:
                running.api.send(GROUPS, {"type": "ADDED", "object": {"metadata": {"name": "a"}}})
                running.api.change(GROUPS, "ADDED", group())
                await running.recorder.next()
            return lines

    assert find(asyncio.run(scenario()), "skipped") == {
        "event": "skipped an object without a valid name, namespace or uid",
        "log_level": "warning",
        "kind": "TPUNodeGroup",
    }


async def _hang(running: RunningRelay) -> None:
    running.api.change(GROUPS, "ADDED", group())
    await running.recorder.attempts.get()
    running.stop.set()
    await asyncio.wait_for(running.ended, TIMEOUT_S)


def test_a_shutdown_with_unpublished_changes_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "SHUTDOWN_S", 0.05)

    async def scenario() -> Lines:
        recorder = Recorder(before_publish=asyncio.Event().wait)
        with structlog.testing.capture_logs() as lines:
            async with running_relay(tmp_path, ScriptedApi(), recorder=recorder) as running:
                await _hang(running)
        return lines

    assert find(asyncio.run(scenario()), "ended") == {
        "event": "ended before everything was published; the next start reports it from the state",
        "log_level": "warning",
    }
