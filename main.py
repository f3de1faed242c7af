"""The entry points: ``functions-framework --target create_resources`` and so on.

Each imports only its own step, at its first message, to keep the cold start short. Garbage is not
collected before the first answer: imports create objects that stay, and each collection would visit
all of them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
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


def _build_entry_point(step: str) -> Callable[[flask.Request], tuple[str, int]]:
    """The function of a step's push requests: functions-framework takes no other callable."""

    def serve(request: flask.Request) -> tuple[str, int]:
        return _serve(step, request)

    return serve


create_resources = _build_entry_point(routes.CREATE_RESOURCES)
inject_token = _build_entry_point(routes.INJECT_TOKEN)
approve_join = _build_entry_point(routes.APPROVE_JOIN)
label_node = _build_entry_point(routes.LABEL_NODE)
tear_down = _build_entry_point(routes.TEAR_DOWN)
sweep = _build_entry_point(routes.SWEEP)
report_leaks = _build_entry_point(routes.REPORT_LEAKS)
provision_slice = _build_entry_point(routes.PROVISION_SLICE)
release_slice = _build_entry_point(routes.RELEASE_SLICE)


def _serve(step: str, request: flask.Request) -> tuple[str, int]:
    try:
        runtime = get_runtime()
    except SettingsError as error:
        make_logger().error(
            **_describe(request, step=step, decision="CannotStart", note=str(error))
        )
        return _encodable(f"CannotStart: {error}\n"), TRY_AGAIN
    pusher: Pusher | None = runtime.settings.pusher
    refusal = _gate(pusher).refuse(request.headers.get("Authorization", "")) if pusher else None
    if refusal is not None:
        runtime.log.warning(
            **_describe(request, step=step, decision="PushRefused", note=refusal.note)
        )
        return "PushRefused\n", refusal.http
    with _uncollected_start():
        run = import_module(f"functions.{step}").STEP.run
        answer = handle(step, run, request.get_data(), runtime)
    if answer.http == ACKNOWLEDGED:
        return "", ACKNOWLEDGED
    return _encodable(f"{answer.outcome}: {answer.note}\n"), answer.http


def _describe(request: flask.Request, **fields: str) -> dict[str, str]:
    """The log line about a request for which no step runs."""
    event = f"{fields['step']}: {fields['decision']}"
    return {"event": event, **fields, "message_id": find_message_id(request.get_data())}


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
