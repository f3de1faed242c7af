"""What the log says of a message that was not handled, and whether it comes again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from shared.base.errors import CallError
from shared.base.logs import make_logger
from shared.frame.settings import Settings
from shared.frame.step import Answer, Invocation, Runtime, handle
from shared.ports.gce.clients import Clients
from shared.ports.kubernetes.access_settings import Kubeconfig
from shared.ports.kubernetes.connection import Connection
from tests.bench import push

STEP = "label_node"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
Run = Callable[[Invocation], Answer]


def runtime() -> Runtime:
    """One that no call is made with."""
    access = Kubeconfig("/nowhere")
    return Runtime(
        settings=Settings("p", "", frozenset({"p"}), access, "", timedelta(minutes=15)),
        connection=Connection(access),
        clients=Clients(""),
        publish=lambda _inbox, _messages: None,
        now=lambda: NOW,
        monotonic=lambda: 0.0,
        random_bytes=bytes,
        log=make_logger(),
    )


def message(cause: str, attempt: int | None, published: str | None = None) -> bytes:
    document = {
        "version": 1,
        "kind": "TPUNodeGroup",
        "namespace": "default",
        "name": "train",
        "uid": "u",
        "cause": cause,
        "at": NOW.isoformat(),
    }
    body = json.loads(push(document))
    body["message"]["publishTime"] = NOW.isoformat() if published is None else published
    return json.dumps({**body, "deliveryAttempt": attempt}).encode()


def crash(_: Invocation) -> Answer:
    raise KeyError("apiVersion")


def refuse(http: int) -> Run:
    def run(_: Invocation) -> Answer:
        raise CallError("GET /x", http, "Because", "no")

    return run


@dataclass(frozen=True)
class Case:
    run: Run
    cause: str
    attempt: int
    told: tuple[int, str, str]


CASES = {
    "handled": Case(lambda _: Answer(204, "Settled"), "Added", 1, (204, "Settled", "INFO")),
    "a crash comes again": Case(crash, "Added", 1, (503, "Crashed", "ERROR")),
    "a crash that came five times": Case(crash, "Added", 5, (204, "Crashed", "ERROR")),
    "a crash of what the sweep sends": Case(crash, "Sync", 1, (204, "Crashed", "ERROR")),
    "no answer": Case(refuse(503), "Added", 1, (503, "TryAgain", "WARNING")),
    "no answer five times": Case(refuse(503), "Added", 5, (204, "LeftToTheSweep", "WARNING")),
    "no answer to the sweep's": Case(refuse(503), "Sync", 1, (204, "SyncDropped", "WARNING")),
    "a right that is missing": Case(refuse(401), "Sync", 1, (204, "SyncDropped", "WARNING")),
    "a refusal": Case(refuse(400), "Added", 1, (204, "Refused", "WARNING")),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_left_undone_is_seen_in_the_log(
    case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = handle(STEP, case.run, message(case.cause, case.attempt), runtime())
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (answer.http, line["decision"], line["severity"]) == case.told
    assert line["message"] == f"{STEP}: {case.told[1]}"


UNCOUNTED = {
    "just published": (None, "2025-12-31T23:51:00Z", 503),
    "published eleven minutes ago": (None, "2025-12-31T23:49:00Z", 204),
    "published eleven minutes from now": (None, "2026-01-01T00:11:00Z", 204),
    "published in no year": (None, "yesterday", 204),
    "without a time of publication": (None, "", 204),
    "counted below zero, just published": (-3, "2025-12-31T23:51:00Z", 503),
    "counted below zero, published long ago": (-3, "2025-12-31T23:49:00Z", 204),
}


@pytest.mark.parametrize("case", UNCOUNTED.values(), ids=UNCOUNTED)
def test_without_a_count_of_attempts_a_message_is_tried_for_ten_minutes(
    case: tuple[int | None, str, int],
) -> None:
    attempt, published, http = case
    body = message("Added", attempt, published)
    assert handle(STEP, refuse(503), body, runtime()).http == http


def test_a_log_line_has_no_lone_surrogate(capsys: pytest.CaptureFixture[str]) -> None:
    make_logger().info("read", name="a\ud800b", smile="\U0001f600", path="C:\\udir")
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert line == {
        "severity": "INFO",
        "message": "read",
        "name": "a?b",
        "smile": "\U0001f600",
        "path": "C:\\udir",
    }
