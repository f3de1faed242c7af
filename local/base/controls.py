"""The HTTP controls of a simulated service: its faults and its state."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from local.base.http import Request, Response

PREFIX = "/_simulator/"
"""The prefix of the paths of the controls."""

Fault = Callable[..., Any]


class UnknownFault(Exception):
    """The fault, or the resource that it names, does not exist."""


def list_faults(kind: type) -> Mapping[str, Fault]:
    """List the faults: the public methods of a class."""
    return MappingProxyType(
        {
            name: method
            for name, method in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }
    )


def describe_fault(fault: Fault) -> str:
    """Describe a fault: its arguments and effect."""
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
    """Answer a request to the controls; ``holder`` has the faults as methods."""
    name = request.path.removeprefix(PREFIX)
    if request.method == "GET" and name == "state":
        return Response.of_json(state())
    if request.method == "GET" and name == "faults":
        return Response.of_json({name: describe_fault(fault) for name, fault in faults.items()})
    if request.method != "POST" or name not in faults:
        return Response.of_json({"error": f"no such fault: {name}"}, 404)
    return _call_fault(getattr(holder, name), name, request.body)


def _call_fault(fault: Fault, name: str, body: bytes) -> Response:
    try:
        arguments = inspect.signature(fault).bind(**json.loads(body or b"{}"))
    except (TypeError, ValueError) as error:
        return Response.of_json({"error": f"{name}: {error}"}, 400)
    try:
        result = fault(*arguments.args, **arguments.kwargs)
    except UnknownFault as error:
        return Response.of_json({"error": str(error)}, 409)
    return Response.of_json(result or {})
