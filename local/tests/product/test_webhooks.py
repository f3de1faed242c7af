# ruff: noqa: E501  (a table reads best with a row on a line)
"""The stand-in for an API server that calls webhooks: its calls, and the effect of the answers."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from local.base.http import Request, Response
from local.base.web import serve
from local.cluster.manifests import read_webhook_configuration
from local.cluster.webhooks import Webhooks
from local.kube import CertificateAuthority

JOBS = "/apis/batch/v1/namespaces/default/jobs"
MARK = {"tpu-functions.dev/inject": "enabled"}


class Server:
    """A webhook that adds a label, warns or denies, and records its requests."""

    def __init__(self, denial: str = "", *, fails: bool = False) -> None:
        self.reviews: list[dict[str, Any]] = []
        self._denial = denial
        self._fails = fails

    def handle(self, request: Request) -> Response:
        review = json.loads(request.body)["request"]
        self.reviews.append(review)
        patch = [{"op": "add", "path": "/metadata/labels/seen", "value": "yes"}]
        answer: dict[str, Any] = {"uid": review["uid"], "allowed": not self._denial}
        if self._denial:
            answer["status"] = {"message": self._denial}
        else:
            answer["patch"] = base64.b64encode(json.dumps(patch).encode()).decode()
        return Response(500) if self._fails else Response.of_json({"response": answer})


def job(labels: Mapping[str, str], chips: int = 4) -> dict[str, Any]:
    container = {"name": "jax", "resources": {"limits": {"google.com/tpu": str(chips)}}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "labels": {"a": "b", **labels}},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }


def ask(
    server: Server,
    body: Any,
    *,
    method: str = "POST",
    path: str = JOBS,
    namespace: Mapping[str, str] | None = None,
    trusted: bool = True,
) -> Request | Response:
    """Return the result of a request, with the webhook configuration of an installation."""

    async def run() -> Request | Response:
        now = datetime.now(UTC)
        ca = CertificateAuthority.create(now)
        runner, port = await serve(server, tls=ca.server_context(("127.0.0.1",), now))
        trust = ca if trusted else CertificateAuthority.create(now)
        webhooks = Webhooks(
            read_webhook_configuration(),
            f"https://127.0.0.1:{port}",
            trust.certificate_pem,
            lambda _: namespace or {},
        )
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            return await webhooks.admit(Request.of(method, path, body=raw))
        finally:
            await runner.cleanup()

    return asyncio.run(run())


def labels_of(answer: Request | Response) -> dict[str, str]:
    found: dict[str, str] = json.loads(answer.body)["metadata"]["labels"]
    return found


def test_a_marked_workload_is_patched_as_the_webhook_answers() -> None:
    server = Server()
    answer = ask(server, job(MARK))
    assert isinstance(answer, Request)
    assert labels_of(answer) == {"a": "b", **MARK, "seen": "yes"}
    (review,) = server.reviews
    assert review["operation"] == "CREATE"
    assert review["namespace"] == "default"
    assert review["kind"] == {"group": "batch", "version": "v1", "kind": "Job"}


def test_the_mark_of_a_namespace_selects_its_workloads() -> None:
    assert "seen" in labels_of(ask(Server(), job({}), namespace=MARK))


@pytest.mark.parametrize(
    "body, more",
    [
        pytest.param(job({}), {}, id="not marked"),
        pytest.param(job(MARK, chips=0), {}, id="no chips"),
        pytest.param(job(MARK), {"method": "PUT"}, id="a change"),
        pytest.param(job(MARK), {"path": JOBS.replace("jobs", "cronjobs")}, id="another kind"),
        pytest.param(job(MARK), {"path": JOBS.replace("default", "kube-system")}, id="a system namespace"),
        pytest.param(b"k8s\x00protobuf", {}, id="not JSON"),
        pytest.param(b"[]", {}, id="no object"),
    ],
)  # fmt: skip
def test_other_objects_are_admitted_unchanged_without_a_call(
    body: Any, more: dict[str, str]
) -> None:
    server = Server()
    answer = ask(server, body, **more)  # type: ignore[arg-type]
    assert isinstance(answer, Request)
    assert server.reviews == []
    assert answer.body == (body if isinstance(body, bytes) else json.dumps(body).encode())


def test_a_denial_by_a_webhook_has_the_api_servers_message() -> None:
    answer = ask(Server(denial="no such slice"), job(MARK))
    assert isinstance(answer, Response)
    assert answer.status == 403
    assert answer.json()["message"] == (
        'admission webhook "objects.inject-env.tpu-functions.dev" denied the request: no such slice'
    )


@pytest.mark.parametrize("trusted", [True, False], ids=["it fails", "its certificate is wrong"])
def test_an_object_is_admitted_unchanged_if_the_webhook_does_not_answer(trusted: bool) -> None:
    answer = ask(Server(fails=trusted), job(MARK), trusted=trusted)
    assert isinstance(answer, Request)
    assert labels_of(answer) == {"a": "b", **MARK}
