"""What a flight has of each request and answer, and what it must not have."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import requests

from local.base.http import Request, Response
from local.gce.inprocess import mount
from replay.cloud_logging import Page
from shared.ports.errors import CallError
from tools.cloud.flight import Flight, RecordedLogs, UnusableFlightError, read_flight

TOKEN = "abcdef.0123456789abcdef"
SECRETS = ("my-proj", "123456789012", "ya29", TOKEN, "ann@corp.example", "10.1.2.3", "kube-secret")
URL = "https://compute.googleapis.com/compute/v1/projects/my-proj/zones/z/instances/vm/setMetadata"
CLEAN: dict[str, Any] = {
    "format": 1,
    "began": "2026-01-01T00:00:00+00:00",
    "recorded_against": "simulation",
    "run": "abc123",
    "zone": "us-east5-b",
    "entries": [
        {
            "question": "",
            "request": {
                "method": "GET",
                "path": "/compute/v1/projects/PROJECT/zones/z/instances/a",
            },
            "response": {"status": 200, "body": {}},
        }
    ],
}


class Answers:
    """An API whose answer is given."""

    def __init__(self, answer: Response) -> None:
        self._answer = answer

    def handle(self, _: Request) -> Response:
        return self._answer


def fly() -> Flight:
    began = datetime(2026, 1, 1, tzinfo=UTC)
    return Flight("my-proj", "us-east5-b", "abc123", began, "simulation", "a-question")


def send(flight: Flight, method: str, answer: Response, body: Any = None) -> None:
    session = requests.Session()
    mount(session, Answers(answer))
    flight.watch(session)
    headers = {"Authorization": "Bearer ya29.secret-of-ann"}
    session.request(method, URL, params={"requestId": "r"}, json=body, headers=headers)


def test_a_flight_has_no_header_token_value_of_metadata_address_or_name(tmp_path: Path) -> None:
    flight = fly()
    items = [{"key": "kube-token", "value": TOKEN}, {"key": "other", "value": "kube-secret"}]
    answer = {
        "user": "ann@corp.example",
        "metadata": {"fingerprint": "abcdefghij0=", "items": [*items, items[0]]},
        "allInstancesConfig": {"properties": {"metadata": {"kube-labels": "kube-secret"}}},
        "networkIP": "10.1.2.3",
        "error": f"token {TOKEN} of project 123456789012, Bearer ya29.another",
        "seen": "projects/123456789012/zones/z",
        "labels": {"project_id": "my-proj"},
    }
    send(flight, "POST", Response.of_json(answer), {"fingerprint": "f", "items": items})
    path = tmp_path / "flight.json"
    flight.write(path)
    text = path.read_text()
    assert [secret for secret in SECRETS if secret in text] == []
    (entry,) = read_flight(path)["entries"]
    assert entry == {
        "question": "a-question",
        "request": {
            "method": "POST",
            "path": "/compute/v1/projects/PROJECT/zones/z/instances/vm/setMetadata",
            "query": {"requestId": "r"},
            "body": {
                "fingerprint": "f",
                "items": [
                    {"key": "kube-token", "value": "VALUE-1"},
                    {"key": "other", "value": "VALUE-2"},
                ],
            },
        },
        "response": {
            "status": 200,
            "body": {
                "user": "EMAIL",
                "metadata": {
                    "fingerprint": "abcdefghij0=",
                    "items": [
                        {"key": "kube-token", "value": "VALUE-1"},
                        {"key": "other", "value": "VALUE-2"},
                        {"key": "kube-token", "value": "VALUE-1"},
                    ],
                },
                "allInstancesConfig": {"properties": {"metadata": {"kube-labels": "VALUE-2"}}},
                "networkIP": "ADDRESS",
                "error": "token TOKEN of project NUMBER, TOKEN",
                "seen": "projects/NUMBER/zones/z",
                "labels": {"project_id": "PROJECT"},
            },
        },
    }


def test_a_read_is_recorded_again_only_with_another_answer_or_after_a_change() -> None:
    flight, pending, done = fly(), Response.of_json({"n": 1}), Response.of_json({"n": 2})
    for method, answer in (
        ("GET", pending),
        ("GET", pending),
        ("GET", done),
        ("POST", done),
        ("POST", done),
        ("GET", done),
    ):
        send(flight, method, answer)
    methods = [entry["request"]["method"] for entry in flight.entries]
    assert methods == ["GET", "GET", "POST", "POST", "GET"]


def test_an_answer_that_is_not_json_is_recorded_as_text() -> None:
    flight = fly()
    send(flight, "GET", Response(502, {}, b"<html>"))
    assert flight.entries[0]["response"] == {"status": 502, "body": "<html>"}


class Logs:
    """Cloud Logging that answers once."""

    def list_page(self, projects: Any, query: str, token: str, newest: int = 0) -> Page:
        assert (list(projects), query, newest) == (["my-proj"], "q", 0)
        if token:
            raise CallError("entries.list", 403, "PERMISSION_DENIED", "no")
        return Page(({"insertId": "a"},), "next")


def test_pages_of_log_entries_and_their_errors_are_recorded() -> None:
    flight = fly()
    logs = RecordedLogs(Logs(), flight)
    assert logs.list_page(["my-proj"], "q", "").next_token == "next"
    with pytest.raises(CallError, match="PERMISSION_DENIED"):
        logs.list_page(["my-proj"], "q", "next")
    assert [entry["request"]["body"] for entry in flight.entries] == [
        {"resourceNames": ["projects/my-proj"], "filter": "q"},
        {"resourceNames": ["projects/my-proj"], "filter": "q", "pageToken": "next"},
    ]
    assert [entry["response"] for entry in flight.entries] == [
        {"status": 200, "body": {"entries": [{"insertId": "a"}]}},
        {"status": 403,
         "body": {"error": {"code": 403, "status": "PERMISSION_DENIED", "message": "no"}}},
    ]  # fmt: skip


@pytest.mark.parametrize(
    "body, place",
    [
        ({"user": "ann@corp.example"}, "response.body.user"),
        ({"a": [{"ip": "10.1.2.3"}]}, "response.body.a.0.ip"),
        ({"selfLink": "projects/my-proj/zones/z"}, "response.body.selfLink"),
        ({"said": "project 123456789012"}, "response.body.said"),
        ({"labels": {"project_id": "my-proj"}}, "response.body.labels.project_id"),
        ({"metadata": {"items": [{"key": "k", "value": "v"}]}},
         "response.body.metadata.items.0.value"),
        ({"metadata": {"kube-labels": "a=b"}}, "response.body.metadata.kube-labels"),
        ({"said": f"token {TOKEN}"}, "response.body.said"),
        ({"said": "eyJhbGciOi.eyJpc3Mi.c2ln"}, "response.body.said"),
        ({"said": "-----BEGIN PRIVATE KEY-----"}, "response.body.said"),
        ({"headers": {"Authorization": "x"}}, "response.body: one of its keys"),
        ({"ann@corp.example": 1}, "response.body: one of its keys"),
    ],
)  # fmt: skip
def test_an_unclean_file_is_refused_with_the_place_and_without_the_text(
    tmp_path: Path, body: Any, place: str
) -> None:
    path = tmp_path / "flight.json"
    document = json.loads(json.dumps(CLEAN))
    path.write_text(json.dumps(document))
    assert read_flight(path) == CLEAN
    document["entries"][0]["response"]["body"] = body
    path.write_text(json.dumps(document))
    with pytest.raises(UnusableFlightError) as raised:
        read_flight(path)
    assert str(raised.value) == (
        f"flight.json is not clean: entry 1.{place} has a name, number, address, value of metadata or"
        " token. Replace it as the other entries do, and look for others like it"
    )


@pytest.mark.parametrize(
    "text, message",
    [
        ("<html>", "flight.json is not a flight of make test-cloud (JSONDecodeError)"),
        ("[]", "flight.json is not a flight of make test-cloud (TypeError)"),
        ("{}", "flight.json is not a flight of make test-cloud (KeyError)"),
        (json.dumps(CLEAN | {"format": 2}), "flight.json has format 2, not 1"),
        (json.dumps(CLEAN | {"began": "today"}),
         "flight.json is not a flight of make test-cloud (ValueError)"),
        (json.dumps(CLEAN | {"run": "../../x"}),
         "the run or the zone in flight.json is not a name"),
        (json.dumps(CLEAN | {"entries": [{}]}),
         "flight.json is not a flight of make test-cloud (KeyError)"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_flight_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "flight.json"
    path.write_text(text)
    with pytest.raises(UnusableFlightError) as raised:
        read_flight(path)
    assert str(raised.value) == message
