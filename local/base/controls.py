"""The controls beside a simulated service: its faults, and what there is, over HTTP."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from local.base.http import Request, Response

PREFIX = "/_simulator/"
"""What the paths of the controls begin with."""

Fault = Callable[..., Any]


class UnknownFault(Exception):
    """A fault was asked for that does not exist, or of a resource that does not."""


def list_faults(kind: type) -> Mapping[str, Fault]:
    """The faults that can be asked for: a class's public methods."""
    return MappingProxyType(
        {
            name: method
            for name, method in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }
    )


def describe_fault(fault: Fault) -> str:
    """A fault's arguments and what it does."""
    parameters = list(inspect.signature(fault).parameters.values())[1:]
    arguments = ", ".join(
        parameter.name
        if parameter.default is parameter.empty
        else f"{parameter.name}={parameter.default!r}"
        for parameter in parameters
    )
    meaning = inspect.getdoc(fault) or ""
    return f"({arguments}): {' '.join(meaning.split()).replace('``', '`')}"


def answer(
    request: Request, holder: object, faults: Mapping[str, Fault], state: Callable[[], Any]
) -> Response:
    """Answer a request to the controls; ``holder`` is who has the faults."""
    name = request.path.removeprefix(PREFIX)
    if request.method == "GET" and name == "state":
        return Response.of_json(state())
    if request.method == "GET" and name == "faults":
        return Response.of_json({name: describe_fault(fault) for name, fault in faults.items()})
    if request.method != "POST" or name not in faults:
        return Response.of_json({"error": f"no such fault: {name}"}, 404)
    return _bring_about(getattr(holder, name), name, request.body)


def _bring_about(fault: Fault, name: str, body: bytes) -> Response:
    try:
        arguments = inspect.signature(fault).bind(**json.loads(body or b"{}"))
    except (TypeError, ValueError) as error:
        return Response.of_json({"error": f"{name}: {error}"}, 400)
    try:
        result = fault(*arguments.args, **arguments.kwargs)
    except UnknownFault as error:
        return Response.of_json({"error": str(error)}, 409)
    return Response.of_json(result or {})
