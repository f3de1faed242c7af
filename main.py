"""The entry points: ``functions-framework --target create_resources`` and so on.

Each imports its own step only, at its first message, so that a cold start pays for nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from shared.logs import make_logger
from shared.runtime import get_runtime
from shared.settings import SettingsError
from shared.step import ACKNOWLEDGED, TRY_AGAIN, handle

if TYPE_CHECKING:
    import flask


def create_resources(request: flask.Request) -> tuple[str, int]:
    """From a TPUNodeGroup to its workload policy, instance template and MIG."""
    return _serve("create_resources", request)


def inject_token(request: flask.Request) -> tuple[str, int]:
    """Every VM that is to join gets a bootstrap token of its own."""
    return _serve("inject_token", request)


def label_node(request: flask.Request) -> tuple[str, int]:
    """Nodes are matched to VMs, labelled and counted; Ready follows."""
    return _serve("label_node", request)


def tear_down(request: flask.Request) -> tuple[str, int]:
    """From a deleted TPUNodeGroup to nothing left of it."""
    return _serve("tear_down", request)


def sweep(request: flask.Request) -> tuple[str, int]:
    """Once a minute, a SYNC for each group that somebody must look at."""
    return _serve("sweep", request)


def _serve(step: str, request: flask.Request) -> tuple[str, int]:
    run = import_module(f"functions.{step}").run
    try:
        runtime = get_runtime()
    except SettingsError as error:
        make_logger().error(f"{step}: CannotStart", step=step, note=str(error))
        return f"CannotStart: {error}\n", TRY_AGAIN
    answer = handle(step, run, request.get_data(), runtime)
    return (
        "" if answer.http == ACKNOWLEDGED else f"{answer.outcome}: {answer.note}\n"
    ), answer.http
