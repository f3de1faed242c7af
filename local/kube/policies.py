"""ValidatingAdmissionPolicies: their expressions accept or deny a write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_optional, ext_strings

from local.kube import errors
from local.kube.cel import CelError, Program, compile_program
from local.kube.errors import ApiError
from local.kube.kinds import Document
from local.kube.store import Store
from local.kube.users import User
from local.kube.writing import Attributes

_POLICIES = "validatingadmissionpolicies.admissionregistration.k8s.io"
_BINDINGS = "validatingadmissionpolicybindings.admissionregistration.k8s.io"
_UNSUPPORTED = ("namespaceSelector", "objectSelector", "excludeResourceRules")
_CODES = {"Unauthorized": 401, "Forbidden": 403, "RequestEntityTooLarge": 413, "Invalid": 422}

_CEL = cel.NewEnv(
    variables=dict.fromkeys(
        ("object", "oldObject", "request", "params", "namespaceObject", "variables"), cel.Type.DYN
    ),
    extensions=[ext_strings.ExtStrings(), ext_optional.ExtOptional()],
)


class Expressions:
    """The expressions of one policy, compiled. Raises `CelError` if one does not compile."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._conditions = [_compile(one["expression"]) for one in spec.get("matchConditions", ())]
        self._variables = [
            (one["name"], _compile(one["expression"])) for one in spec.get("variables", ())
        ]
        self._validations = [
            (one, _compile(one["expression"]), _compile(one.get("messageExpression", "''")))
            for one in spec.get("validations", ())
        ]

    def find_violation(self, data: Mapping[str, Any]) -> tuple[str, str] | None:
        """Find the message and the reason of the first validation that is false; ``None`` if all are
        true, or the policy does not match the write. Raises `CelError` if an expression fails."""
        if not all(condition.run(data) for condition in self._conditions):
            return None
        known = {**data, "variables": {}}
        for name, expression in self._variables:
            known["variables"][name] = expression.run(known)
        for validation, expression, message in self._validations:
            if expression.run(known) is not True:
                text = message.run(known) or validation.get("message")
                failed = f"failed expression: {validation['expression']}"
                return str(text or failed), validation.get("reason", "Invalid")
        return None


class Policies:
    """Admission by the policies with a binding that denies or warns.

    Policies with parameters or selectors have no effect. Neither have policies whose expressions need
    the authorizer or a missing library.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def __call__(self, attributes: Attributes) -> None:
        """Raises the error of the first policy that denies the write; adds the warnings of others."""
        for actions, binding, policy in self._list_bound(attributes):
            spec = policy["spec"]
            try:
                expressions = Expressions(spec)
            except CelError:
                continue
            try:
                found = expressions.find_violation(self._data(attributes))
            except CelError as error:
                if spec.get("failurePolicy", "Fail") == "Ignore":
                    continue
                found = (f"expression resulted in error: {error}", "Invalid")
            name = policy["metadata"]["name"]
            if found is not None and "Deny" in actions:
                raise _denial(attributes, name, binding, *found)
            if found is not None and "Warn" in actions:
                by = f"ValidatingAdmissionPolicy '{name}' with binding '{binding}'"
                attributes.warnings.append(f"Validation failed for {by}: {found[0]}")

    def _list_bound(self, attributes: Attributes) -> Iterator[tuple[list[str], str, Document]]:
        """List the policies that match a write, each with the actions and the name of a binding."""
        for record in self._store.records(_BINDINGS):
            spec = record.document["spec"]
            policy = self._store.find(_POLICIES, ("", spec["policyName"]))
            if policy is None or spec.get("matchResources") or spec.get("paramRef"):
                continue
            if _matches(policy.document["spec"], attributes):
                yield spec.get("validationActions") or [], record.key[1], policy.document

    def _data(self, attributes: Attributes) -> dict[str, Any]:
        namespace = attributes.document["metadata"].get("namespace", "")
        found = self._store.find("namespaces", ("", namespace))
        return {
            "object": None if attributes.operation == "DELETE" else attributes.document,
            "oldObject": attributes.old,
            "request": {
                "operation": attributes.operation,
                "userInfo": _describe(attributes.user),
                "name": attributes.document["metadata"].get("name", ""),
                "namespace": namespace,
                "subResource": attributes.subresource,
            },
            "params": None,
            "namespaceObject": None if found is None else found.document,
        }


def _matches(spec: Document, attributes: Attributes) -> bool:
    constraints = spec.get("matchConstraints") or {}
    if spec.get("paramKind") or any(constraints.get(name) for name in _UNSUPPORTED):
        return False
    return any(_matches_rule(rule, attributes) for rule in constraints.get("resourceRules") or ())


def _matches_rule(rule: Document, attributes: Attributes) -> bool:
    kind, path = attributes.kind, attributes.kind.plural
    wanted = rule.get("resources") or ()
    if attributes.subresource:
        path = f"{path}/{attributes.subresource}"
    names = rule.get("resourceNames") or ()
    scope = rule.get("scope") or "*"
    return (
        bool({kind.group, "*"} & set(rule.get("apiGroups") or ()))
        and bool({path, "*/*"} & set(wanted) or ("*" in wanted and not attributes.subresource))
        and bool({attributes.operation, "*"} & set(rule.get("operations") or ()))
        and (not names or attributes.document["metadata"].get("name") in names)
        and scope in ("*", "Namespaced" if kind.namespaced else "Cluster")
    )


def _describe(user: User) -> dict[str, Any]:
    return {"username": user.name, "groups": list(user.groups), "uid": user.uid, "extra": {}}


def _denial(
    attributes: Attributes, policy: str, binding: str, message: str, reason: str
) -> ApiError:
    why = f"ValidatingAdmissionPolicy '{policy}' with binding '{binding}' denied request: {message}"
    name = attributes.document["metadata"].get("name", "")
    refused = errors.forbidden(attributes.kind.resource, name, why)
    refused.code, refused.reason = _CODES[reason], reason
    refused.details = {**(refused.details or {}), "causes": [{"message": why}]}
    return refused


def _compile(expression: str) -> Program:
    return compile_program(expression, _CEL)


def evaluate(expression: str, data: Mapping[str, Any]) -> Any:
    """Evaluate an expression. Raises `CelError`."""
    return _compile(expression).run(data)
