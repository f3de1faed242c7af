"""The entry points: ``functions-framework --target create_resources`` and so on.

Each imports only its own step, at its first message, to keep the cold start short. Garbage is not
collected before the first answer: imports create objects that stay, and each collection would visit
all of them.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from threading import Event
from typing import TYPE_CHECKING

from shared.base.environment import SettingsError
from shared.base.logs import make_logger
from shared.frame.execution import ACKNOWLEDGED, TRY_AGAIN
from shared.frame.step import handle
from shared.runtime import get_runtime
from shared.triggers import routes
from shared.triggers.decode import find_message_id
from shared.triggers.push import Gate, Pusher

if TYPE_CHECKING:
    import flask


def create_resources(request: flask.Request) -> tuple[str, int]:
    """Create the workload policy, instance template and MIG of a TPUNodeGroup."""
    return _serve(routes.CREATE_RESOURCES, request)


def inject_token(request: flask.Request) -> tuple[str, int]:
    """Write a bootstrap token into the metadata of each VM that has to join."""
    return _serve(routes.INJECT_TOKEN, request)


def approve_join(request: flask.Request) -> tuple[str, int]:
    """Approve the certificate request of a VM for its own Node."""
    return _serve(routes.APPROVE_JOIN, request)


def label_node(request: flask.Request) -> tuple[str, int]:
    """Label the Nodes of a TPUNodeGroup's VMs, and set its condition Ready."""
    return _serve(routes.LABEL_NODE, request)


def tear_down(request: flask.Request) -> tuple[str, int]:
    """Delete everything that was created for a deleted TPUNodeGroup."""
    return _serve(routes.TEAR_DOWN, request)


def sweep(request: flask.Request) -> tuple[str, int]:
    """Once a minute, publish a resync for each TPUNodeGroup that waits."""
    return _serve(routes.SWEEP, request)


def report_leaks(request: flask.Request) -> tuple[str, int]:
    """Once an hour, report each slice on Compute Engine whose TPUNodeGroup is gone."""
    return _serve(routes.REPORT_LEAKS, request)


def provision_slice(request: flask.Request) -> tuple[str, int]:
    """Create a slice for a Job of a JobSet that waits for TPUs."""
    return _serve(routes.PROVISION_SLICE, request)


def release_slice(request: flask.Request) -> tuple[str, int]:
    """Delete a slice whose JobSet has ended or is gone."""
    return _serve(routes.RELEASE_SLICE, request)


def _serve(step: str, request: flask.Request) -> tuple[str, int]:
    try:
        runtime = get_runtime()
    except SettingsError as error:
        make_logger().error(**_describe(step, "CannotStart", str(error), request))
        return _encodable(f"CannotStart: {error}\n"), TRY_AGAIN
    pusher: Pusher | None = runtime.settings.pusher
    refusal = _gate(pusher).refuse(request.headers.get("Authorization", "")) if pusher else None
    if refusal is not None:
        runtime.log.warning(**_describe(step, "PushRefused", refusal.note, request))
        return "PushRefused\n", refusal.http
    with _uncollected_start():
        run = import_module(f"functions.{step}").run
        answer = handle(step, run, request.get_data(), runtime)
    if answer.http == ACKNOWLEDGED:
        return "", ACKNOWLEDGED
    return _encodable(f"{answer.outcome}: {answer.note}\n"), answer.http


def _describe(step: str, decision: str, note: str, request: flask.Request) -> dict[str, str]:
    """The log line about a request for which no step runs."""
    fields = {"step": step, "decision": decision, "note": note}
    message_id = find_message_id(request.get_data())
    return {"event": f"{step}: {decision}", **fields, "message_id": message_id}


_first_answer = Event()


@contextmanager
def _uncollected_start() -> Iterator[None]:
    """Collect no garbage before the first answer, and never what exists by then."""
    if _first_answer.is_set():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        _first_answer.set()
        gc.freeze()
        gc.enable()


def _encodable(text: str) -> str:
    """The text with ``?`` for what UTF-8 cannot hold, which the web server would refuse to send."""
    return text.encode(errors="replace").decode()


@lru_cache(maxsize=1)
def _gate(pusher: Pusher) -> Gate:
    return Gate(pusher)
