"""The stand-in for the metadata server answers as documented."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from queue import Queue

import pytest
import requests

from local.tests.vm.machine import Machine, MetadataThread

FLAVOR = {"Metadata-Flavor": "Google"}
ATTRIBUTES = "instance/attributes/?recursive=true"


class Client:
    """A client of one metadata server."""

    def __init__(self) -> None:
        self.machine = Machine(metadata={"ssh-keys": "me", "a": "b"})
        self.thread = MetadataThread(self.machine)

    def get(self, path: str, headers: dict[str, str] = FLAVOR) -> requests.Response:
        url = f"http://{self.thread.address}/computeMetadata/v1/{path}"
        return requests.get(url, headers=headers, timeout=20, allow_redirects=False)

    def put(self, path: str, text: str) -> requests.Response:
        url = f"http://{self.thread.address}/computeMetadata/v1/{path}"
        return requests.put(url, data=text, headers=FLAVOR, timeout=20)

    def change(self, **items: str) -> None:
        self.thread.do(lambda: self.machine.metadata.update(items))

    def get_later(self, path: str) -> Queue[requests.Response]:
        """Start a request that waits; return when the server has received it."""
        answers: Queue[requests.Response] = Queue()
        asked = len(self.thread.server.paths)
        threading.Thread(target=lambda: answers.put(self.get(path)), daemon=True).start()
        while len(self.thread.server.paths) == asked:
            self.thread.do(lambda: None)  # let the server's loop turn
        return answers


@pytest.fixture
def client() -> Iterator[Client]:
    client = Client()
    yield client
    client.thread.stop()


TEXTS = [
    ("instance/name", "tng-train-0a1b2c3d-x1y2"),
    ("instance/id", "4711"),
    ("instance/zone", "projects/1/zones/us-central1-c"),
    ("instance/machine-type", "projects/1/machineTypes/tpu7x-standard-4t"),
    ("project/project-id", "my-project"),
    ("instance/attributes/a", "b"),
    ("instance/attributes/a?alt=json", '"b"'),
    ("instance/attributes/", "ssh-keys\na\n"),
    ("", "instance/\nproject/\n"),
    ("instance/attributes/?recursive=true&alt=text", "ssh-keys me\na b\n"),
]


@pytest.mark.parametrize("path, text", TEXTS)
def test_a_value_is_returned_as_text_and_a_directory_as_a_list(
    client: Client, path: str, text: str
) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.text) == (200, text)
    assert answer.headers["Metadata-Flavor"] == "Google"


def test_a_directory_can_be_returned_recursively_as_json(client: Client) -> None:
    assert client.get(ATTRIBUTES).json() == {"ssh-keys": "me", "a": "b"}


def test_json_names_are_camel_case_except_custom_attributes(client: Client) -> None:
    document = json.loads(client.get("?recursive=true").text)
    assert document["instance"]["machineType"] == "projects/1/machineTypes/tpu7x-standard-4t"
    assert document["instance"]["attributes"] == {"ssh-keys": "me", "a": "b"}


@pytest.mark.parametrize(
    "path, status",
    [
        ("instance/attributes/absent", 404),
        ("instance/attributes/absent?wait_for_change=true", 404),
        ("instance/name/", 404),
        ("instance/name/more", 404),
        ("instance/attributes", 301),
    ],
)
def test_an_absent_path_is_not_found(client: Client, path: str, status: int) -> None:
    assert client.get(path).status_code == status


@pytest.mark.parametrize(
    "headers",
    [{}, {"Metadata-Flavor": "Other"}, {**FLAVOR, "X-Forwarded-For": "10.0.0.1"}],
    ids=["no-flavor", "other-flavor", "forwarded"],
)
def test_a_request_with_invalid_headers_is_forbidden(
    client: Client, headers: dict[str, str]
) -> None:
    assert client.get("instance/name", headers).status_code == 403


def test_the_etag_changes_with_the_content_and_only_then(client: Client) -> None:
    first, second = client.get(ATTRIBUTES), client.get(ATTRIBUTES)
    client.change(a="c")
    third = client.get(ATTRIBUTES)
    assert first.headers["ETag"] == second.headers["ETag"] != third.headers["ETag"]


def test_a_wait_with_an_old_etag_returns_immediately(client: Client) -> None:
    answer = client.get(f"{ATTRIBUTES}&wait_for_change=true&last_etag=0")
    assert answer.json() == {"ssh-keys": "me", "a": "b"}


def test_a_wait_with_the_current_etag_returns_at_the_next_change(client: Client) -> None:
    etag = client.get(ATTRIBUTES).headers["ETag"]
    answers = client.get_later(f"{ATTRIBUTES}&wait_for_change=true&last_etag={etag}")
    client.thread.do(lambda: None)  # a change to something else
    assert answers.empty()
    client.change(a="c")
    assert answers.get(timeout=20).json() == {"ssh-keys": "me", "a": "c"}


def test_a_wait_without_an_etag_returns_at_the_next_change(client: Client) -> None:
    answers = client.get_later(f"{ATTRIBUTES}&wait_for_change=true")
    client.change(a="c")
    assert answers.get(timeout=20).json()["a"] == "c"


def test_a_wait_returns_the_unchanged_content_at_its_timeout(client: Client) -> None:
    etag = client.get(ATTRIBUTES).headers["ETag"]
    answer = client.get(f"{ATTRIBUTES}&wait_for_change=true&last_etag={etag}&timeout_sec=0")
    assert (answer.status_code, answer.headers["ETag"]) == (200, etag)


def test_guest_attributes_can_be_written_if_enabled(client: Client) -> None:
    client.change(**{"enable-guest-attributes": "TRUE"})
    assert client.put("instance/guest-attributes/ns/key", "value").status_code == 200
    assert client.machine.guest_attributes == {"ns/key": "value"}
    assert client.get("instance/guest-attributes/ns/key").text == "value"


def test_writing_guest_attributes_is_an_error_if_disabled(client: Client) -> None:
    assert client.put("instance/guest-attributes/ns/key", "value").status_code == 403


@pytest.mark.parametrize("path", ["instance/name", "instance/guest-attributes/ns"])
def test_other_paths_cannot_be_written(client: Client, path: str) -> None:
    assert client.put(path, "value").status_code == 404


def test_an_injected_error_applies_to_one_request_of_its_path(client: Client) -> None:
    client.thread.server.refusals.append(("attributes/a", 503))
    asked = ["instance/name", "instance/attributes/a", "instance/attributes/a"]
    assert [client.get(path).status_code for path in asked] == [200, 503, 200]
