"""kubectl reads OpenAPI about an unknown kind."""

from __future__ import annotations

from random import Random

from local.base.clock import VirtualClock
from local.base.http import Request
from local.kube import ADMIN, KubeApi


def test_openapi_v2_is_empty_so_that_kubectl_reports_an_unknown_kind() -> None:
    api = KubeApi(VirtualClock(), random=Random(1), tokens={"admin": ADMIN})
    headers = {"Authorization": "Bearer admin"}
    answer = api.handle(Request.of("GET", "/openapi/v2", headers=headers))
    assert (answer.status, answer.body) == (200, b"")
    assert "protobuf" in answer.headers["Content-Type"]
