"""Evaluate ValidatingAdmissionPolicies without an API server.

An API server is stricter: it checks types when a policy is written. tests/real uses one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from local.kube.policies import Expressions
from local.kube.policies import evaluate as evaluate

Document = dict[str, Any]


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
    """The message with which a policy denies an operation; empty if it allows the operation.

    ``old`` is the object before the operation; by default ``item``.
    """
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
    }
    found = Expressions(policy["spec"]).find_violation(data)
    return "" if found is None else found[0]
