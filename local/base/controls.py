"""The HTTP controls of a simulated service: its faults and its state."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, get_args, get_origin, get_type_hints

from local.base.http import Request, Response

PREFIX = "/_simulator/"
"""The prefix of the paths of the controls."""

Fault = Callable[..., Any]


class UnknownFault(Exception):
    """The fault, or the resource that it names, does not exist."""


@dataclass(frozen=True)
class Valid:
    """The valid values of an argument; ``words`` name them."""

    accepts: Callable[[Any], object]
    words: str

    @staticmethod
    def among(values: Iterable[str]) -> Valid:
        """Only these values."""
        known = sorted(values)
        return Valid(known.__contains__, f"one of {', '.join(known)}")


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
    request: Request,
    holder: object,
    faults: Mapping[str, Fault],
    state: Callable[[], Any],
    valid: Mapping[str, Valid],
) -> Response:
    """Answer a request to the controls; ``holder`` has the faults as methods.

    ``valid`` are the valid values by the argument's name, or by ``fault.argument``.
    """
    name = request.path.removeprefix(PREFIX)
    if request.method == "GET" and name == "state":
        return Response.of_json(state())
    if request.method == "GET" and name == "faults":
        return Response.of_json({name: describe_fault(fault) for name, fault in faults.items()})
    if request.method != "POST" or name not in faults:
        known = f"POST one of {', '.join(sorted(faults))}"
        return Response.of_json({"error": f"no such fault: {name}; {known}"}, 404)
    return _call_fault(getattr(holder, name), name, request.body, valid)


def _call_fault(fault: Fault, name: str, body: bytes, valid: Mapping[str, Valid]) -> Response:
    try:
        given = json.loads(body or b"{}")
        arguments = inspect.signature(fault).bind(**given)
    except (TypeError, ValueError) as error:
        takes = f"it takes {inspect.signature(fault)}"
        return Response.of_json({"error": f"{name}: {error}; {takes}"}, 400)
    hints = get_type_hints(fault)
    for argument, value in given.items():
        rule = valid.get(f"{name}.{argument}") or valid.get(argument)
        needed = _find_violation(value, hints[argument], rule)
        if needed:
            message = f"{name}: {argument} must be {needed}, not {json.dumps(value)}"
            return Response.of_json({"error": message}, 400)
    try:
        result = fault(*arguments.args, **arguments.kwargs)
    except UnknownFault as error:
        return Response.of_json({"error": str(error)}, 409)
    return Response.of_json(result or {})


def _find_violation(value: Any, hint: Any, rule: Valid | None) -> str:
    """What the value of an argument must be; empty if it is that."""
    kinds = [get_origin(kind) or kind for kind in get_args(hint) or (hint,)]
    kinds += [int] if float in kinds else []
    if type(value) not in kinds:
        names = {"NoneType": "null", "str": "a string", "dict": "an object", "bool": "a boolean"}
        return " or ".join(names.get(kind.__name__, "a number") for kind in dict.fromkeys(kinds))
    if isinstance(value, int | float) and value < 0:
        return "0 or more"
    is_wrong = rule is not None and value is not None and not rule.accepts(value)
    return rule.words if rule is not None and is_wrong else ""
