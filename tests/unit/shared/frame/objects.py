"""A step, its messages and its runtime, for tests of the frame."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from shared.base.logs import make_logger
from shared.frame.step import (
    Runtime,
)
from shared.ports.gce.clients import Clients
from shared.ports.kubernetes.access_settings import Kubeconfig
from shared.ports.kubernetes.connection import Connection
from shared.settings import Settings
from shared.triggers.routes import ROUTES
from tests.support.pushes import push

STEP = "label_node"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def runtime() -> Runtime:
    """Return a runtime that makes no call."""
    access = Kubeconfig("/nowhere")
    return Runtime(
        routes=ROUTES,
        project="p",
        settings=Settings("p", "", frozenset({"p"}), access, "", timedelta(minutes=15)),
        connection=Connection(access),
        clients=Clients(""),
        publish=lambda _topic, _messages: None,
        find_refusal=lambda _cluster: None,
        now=lambda: NOW,
        monotonic=lambda: 0.0,
        random_bytes=bytes,
        log=make_logger(),
    )


def message(
    cause: str, attempt: int, published: datetime | None = NOW, *, at: datetime = NOW
) -> bytes:
    document = {
        "version": 1,
        "kind": "TPUNodeGroup",
        "namespace": "default",
        "name": "train",
        "uid": "u",
        "cause": cause,
        "at": at.isoformat(),
    }
    body = json.loads(push(document))
    body["message"].pop("publishTime", None)
    if published is not None:
        body["message"]["publishTime"] = published.isoformat()
    return json.dumps({**body, "deliveryAttempt": attempt}).encode()
