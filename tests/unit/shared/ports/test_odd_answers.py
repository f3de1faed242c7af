"""What a client library cannot parse is a transient error of the call, and proves nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from datetime import timedelta
from pathlib import Path

import grpc
import pytest

from local.base.http import Request, Response
from local.gce.inprocess import mount
from shared.ports.error_reasons import ErrorKind
from shared.ports.errors import CallError
from shared.ports.gce.calls import Gce
from shared.ports.gce.clients import Clients
from shared.ports.gke import GkeClient
from shared.ports.kubernetes.access_settings import Kubeconfig
from shared.ports.kubernetes.cluster import Cluster
from shared.ports.kubernetes.connection import Connection
from shared.ports.pubsub import Topics
from tests.support.builders import NOW
from tests.support.loopback import kubeconfig, open_loopback

NO_DOCUMENT = {
    "HTML": b"<html><title>Sign in</title></html>",
    "nothing": b"",
    "truncated": b'{"kind": "NodeList", "metadata": {}, "items": [{"metadata": {"na',
    "null": b"null",
    "a text": b'"error"',
    "invalid UTF-8": b'{"kind": "\xff"}',
}
GOOGLE: dict[str, bytes] = {
    **NO_DOCUMENT,
    "a list": b'["items"]',
    "an empty list": b"[]",
    "no name": b'{"items": [{"name": 1}], "nodePools": 1}',
    "items of null": b'{"items": [null], "error": {"errors": [null]}, "name": [], "nodePools": 1}',
}
GOOGLE_ERRORS = {
    **NO_DOCUMENT,
    "a list": b'["error"]',
    "an error of null": b'{"error": null}',
    "an error that is a text": b'{"error": "forbidden"}',
    "details of null": b'{"error": {"code": 403, "message": "no", "details": null}}',
}
KUBERNETES = {
    **NO_DOCUMENT,
    "another document": b'{"login": "https://proxy"}',
    "a kind of null": b'{"kind": null, "metadata": {}, "items": []}',
    "metadata of null": b'{"kind": "NodeList", "metadata": null, "items": []}',
    "no items": b'{"kind": "NodeList", "metadata": {}}',
    "items that are null": b'{"kind": "NodeList", "metadata": {}, "items": null}',
    "an item of null": b'{"kind": "NodeList", "metadata": {}, "items": [null]}',
    "an item without metadata": b'{"kind": "NodeList", "metadata": {}, "items": [{"metadata": null}]}',
}
Answer = tuple[int, bytes]
Call = Callable[[Answer], object]


class Raw:
    """A server that gives one answer, whatever it is."""

    def __init__(self, answer: Answer = (200, b"")) -> None:
        self.answer = answer

    def handle(self, _: Request) -> Response:
        status, body = self.answer
        return Response(status, {"Content-Type": "application/json"}, body)


def answers(successes: Mapping[str, bytes], errors: Mapping[str, bytes]) -> dict[str, Answer]:
    """The bodies with 200, and those of errors with each status that would mean something."""
    found = {f"200 with {name}": (200, body) for name, body in successes.items()}
    for status, (name, body) in itertools.product((400, 403, 404, 409, 412), errors.items()):
        found[f"{status} with {name}"] = (status, body)
    return found


def gce(call: Callable[[Gce], object]) -> Call:
    def run(answer: Answer) -> object:
        clients = Clients("http://compute.test", prepare=lambda one: mount(one, Raw(answer)))
        return call(Gce(clients, lambda: 30.0))

    return run


def gke(answer: Answer) -> object:
    client = GkeClient("http://container.test", prepare=lambda one: mount(one, Raw(answer)))
    return client.call(
        "list_node_pools", {"parent": "projects/p/locations/l/clusters/c"}, lambda: 30.0
    )


GOOGLE_CALLS = {
    "insert": gce(lambda one: one.insert_mig("p", "us-east5-b", {"name": "tng-a"}, "")),
    "get": gce(lambda one: one.find_mig("p", "us-east5-b", "tng-a")),
    "delete": gce(lambda one: one.delete_mig("p", "us-east5-b", "tng-a")),
    "list": gce(lambda one: one.list_instances("p", "us-east5-b", "tng-a", 2)),
    "node pools": gke,
}


@pytest.mark.parametrize(
    "body", answers(GOOGLE, GOOGLE_ERRORS).items(), ids=lambda one: str(one[0])
)
@pytest.mark.parametrize("call", GOOGLE_CALLS.values(), ids=GOOGLE_CALLS)
def test_an_odd_answer_of_google_is_a_transient_error(call: Call, body: tuple[str, Answer]) -> None:
    with pytest.raises(CallError) as raised:
        call(body[1])
    assert (raised.value.kind, raised.value.http) == (ErrorKind.TRANSIENT, 0)
    assert raised.value.about.kind in ("instanceGroupManagers", "instances", "nodePools")


@pytest.mark.parametrize("call", GOOGLE_CALLS.values(), ids=GOOGLE_CALLS)
@pytest.mark.parametrize(
    "fields", ['"errors": null', '"errors": [null]', '"errors": 5, "status": {}'], ids=str
)
def test_an_error_of_google_with_odd_fields_keeps_what_can_be_read(call: Call, fields: str) -> None:
    with pytest.raises(CallError) as raised:
        call((403, f'{{"error": {{"message": "may not", {fields}}}}}'.encode()))
    error = raised.value
    assert (error.kind, error.http, error.code) == (ErrorKind.ENVIRONMENT, 403, "")
    assert "may not" in error.message


def test_a_request_that_the_library_rejects_is_not_an_odd_answer() -> None:
    client = GkeClient("http://container.test", prepare=lambda one: mount(one, Raw()))
    with pytest.raises(ValueError, match="Invalid request"):
        client.call("list_node_pools", {"parent": "projects/p"}, lambda: 30.0)


class Elsewhere:
    """A server that redirects all requests to another one."""

    def __init__(self) -> None:
        self.requests: list[str] = []

    def handle(self, request: Request) -> Response:
        self.requests.append(request.method)
        return Response(307, {"Location": "https://elsewhere.test/"}, b"<html>Moved</html>")


def test_a_redirect_is_not_followed() -> None:
    server = Elsewhere()
    clients = Clients("http://compute.test", prepare=lambda one: mount(one, server))
    with pytest.raises(CallError) as raised:
        Gce(clients, lambda: 30.0).insert_mig("p", "us-east5-b", {"name": "tng-a"}, "")
    assert (raised.value.kind, raised.value.http) == (ErrorKind.TRANSIENT, 0)
    assert server.requests == ["POST"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Raw, Cluster]]:
    server = Raw()
    with open_loopback() as loopback:
        path: Path = tmp_path_factory.mktemp("cluster") / "kubeconfig"
        path.write_text(kubeconfig(f"http://127.0.0.1:{loopback.serve(server)}", "", "token"))
        yield server, Cluster(Connection(Kubeconfig(str(path))), "label_node", lambda: 30.0)


CALLS = itertools.count()
"""Kinds that are not served are asked for once a minute."""
CLUSTER_CALLS: dict[str, Callable[[Cluster], object]] = {
    "list": lambda one: one.list_nodes("tng-a", 2),
    "get": lambda one: one.find_node("tng-a-b1"),
    "patch": lambda one: one.patch_node("tng-a-b1", {}),
    "delete": lambda one: one.delete_node("tng-a-b1", "u"),
    "children of tpu-operator": lambda one: one.has_operator_children(
        "ns", {"nodes": "a"}, NOW + timedelta(minutes=2 * next(CALLS))
    ),
}


@pytest.mark.parametrize(
    "body", answers(KUBERNETES, NO_DOCUMENT).items(), ids=lambda one: str(one[0])
)
@pytest.mark.parametrize("call", CLUSTER_CALLS.values(), ids=CLUSTER_CALLS)
def test_an_odd_answer_of_the_cluster_is_a_transient_error(
    call: Callable[[Cluster], object], body: tuple[str, Answer], cluster: tuple[Raw, Cluster]
) -> None:
    server, one = cluster
    server.answer = body[1]
    if body[1][0] == 404 and call is CLUSTER_CALLS["children of tpu-operator"]:
        assert call(one) is False  # an API server answers with a text that it does not serve a kind
        return
    with pytest.raises(CallError) as raised:
        call(one)
    assert (raised.value.kind, raised.value.http) == (ErrorKind.TRANSIENT, 503)
    assert "another server answers in its place" in raised.value.message


@pytest.mark.parametrize(
    "status, kind",
    [(429, ErrorKind.RATE_LIMIT), (500, ErrorKind.TRANSIENT), (503, ErrorKind.TRANSIENT)],
)
@pytest.mark.parametrize("call", CLUSTER_CALLS.values(), ids=CLUSTER_CALLS)
def test_a_busy_cluster_may_answer_with_a_text(
    call: Callable[[Cluster], object],
    status: int,
    kind: ErrorKind,
    cluster: tuple[Raw, Cluster],
) -> None:
    server, one = cluster
    server.answer = (status, b"too many requests, please try again later")
    with pytest.raises(CallError, match="please try again later") as raised:
        call(one)
    assert (raised.value.kind, raised.value.http) == (kind, status)
    assert "another server" not in raised.value.message


class RawPubSub:
    """A server over gRPC whose answer to Publish is these bytes."""

    def __init__(self, answer: bytes) -> None:
        handler = grpc.unary_unary_rpc_method_handler(lambda _request, _context: answer)
        methods = grpc.method_handlers_generic_handler(
            "google.pubsub.v1.Publisher", {"Publish": handler}
        )
        self.server = grpc.server(futures.ThreadPoolExecutor(1))
        self.server.add_generic_rpc_handlers([methods])
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()


@pytest.mark.parametrize(
    "answer, code",
    [
        (b"", "unparsable"),
        (b"\x0a\x011", "unparsable"),
        (b"<html>", "refused"),
        (b"\xff", "refused"),
    ],
    ids=["no ids", "fewer ids than messages", "HTML", "binary"],
)
def test_an_odd_answer_to_a_publish_is_a_transient_error(
    answer: bytes, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pubsub = RawPubSub(answer)
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", f"127.0.0.1:{pubsub.port}")
    with pytest.raises(CallError) as raised:
        Topics("p", "tpu-").publish("sweep", [(b"x", {}), (b"y", {})])
    pubsub.server.stop(None)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.TRANSIENT, code)


@pytest.mark.parametrize("status", [200, 403, 404, 502])
def test_a_page_in_place_of_pubsub_is_a_transient_error(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_loopback() as loopback:
        port = loopback.serve(Raw((status, NO_DOCUMENT["HTML"])))
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", f"127.0.0.1:{port}")
        with pytest.raises(CallError) as raised:
            Topics("p", "tpu-").publish("sweep", [(b"x", {})])
    assert raised.value.kind is ErrorKind.TRANSIENT
