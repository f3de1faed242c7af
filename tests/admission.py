"""ValidatingAdmissionPolicies asked in process, with the C++ implementation of CEL.

It is less strict than an API server, which checks types when a policy is written; tests/real asks one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_optional, ext_strings

Document = dict[str, Any]

_CEL = cel.NewEnv(
    variables=dict.fromkeys(
        ("object", "oldObject", "request", "params", "namespaceObject", "variables"), cel.Type.DYN
    ),
    extensions=[ext_strings.ExtStrings(), ext_optional.ExtOptional()],
)


def evaluate(expression: str, data: Mapping[str, Any]) -> Any:
    """The plain value of an expression. An error of CEL's is a failed assertion."""
    value = _CEL.compile(expression).eval(data=data)
    assert value.type() != cel.Type.ERROR, f"{expression}: {value.value()}"
    return value.plain_value()


def refusal(
    policy: Document,
    operation: str,
    item: Document,
    *,
    old: Document | None = None,
    user: Mapping[str, Any] | None = None,
    params: Document | None = None,
    namespace: Document | None = None,
) -> str:
    """The message with which a policy denies an operation; empty when it allows it.

    ``old`` is what ``item`` was before, itself if left out.
    """
    spec = policy["spec"]
    data: Document = {
        "object": None if operation == "DELETE" else item,
        "oldObject": None if operation == "CREATE" else old or item,
        "request": {
            "operation": operation,
            "userInfo": user,
            "namespace": item["metadata"].get("namespace", ""),
        },
        "params": params,
        "namespaceObject": namespace,
        "variables": {},
    }
    if not all(evaluate(entry["expression"], data) for entry in spec["matchConditions"]):
        return ""
    for entry in spec.get("variables", ()):
        data["variables"][entry["name"]] = evaluate(entry["expression"], data)
    for entry in spec["validations"]:
        if not evaluate(entry["expression"], data):
            return _message(entry, data)
    return ""


def _message(validation: Mapping[str, str], data: Document) -> str:
    if "messageExpression" in validation:
        return str(evaluate(validation["messageExpression"], data))
    return validation["message"]
