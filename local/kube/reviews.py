"""Reviews: what may I do, who am I. Created, answered and never stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from local.kube.authorization import Authorizer, Rule
from local.kube.kinds import Document, Kind
from local.kube.requests import RequestInfo
from local.kube.users import MASTERS, User


class Reviews:
    """Answers the reviews of the groups authorization.k8s.io and authentication.k8s.io."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer
        self._answers: dict[str, Callable[[User, Mapping[str, Any]], Document]] = {
            "selfsubjectaccessreviews": self._access,
            "subjectaccessreviews": self._others_access,
            "selfsubjectrulesreviews": self._rules,
            "selfsubjectreviews": _who,
        }

    def answer(self, kind: Kind, user: User, document: Document) -> Document:
        """The review with its status."""
        spec = document.get("spec") or {}
        return {**document, "status": self._answers[kind.plural](user, spec)}

    def _access(self, user: User, spec: Mapping[str, Any]) -> Document:
        decision = self._authorizer.decide(user, _info_of(spec))
        status: Document = {"allowed": decision.allowed}
        return {**status, "reason": decision.reason} if decision.reason else status

    def _others_access(self, user: User, spec: Mapping[str, Any]) -> Document:
        del user
        other = User(str(spec.get("user", "")), tuple(spec.get("groups") or ()))
        return self._access(other, spec)

    def _rules(self, user: User, spec: Mapping[str, Any]) -> Document:
        namespace = spec.get("namespace") or "default"
        rules = [
            rule
            for grant in self._authorizer.rbac.grants_of(user)
            if grant.namespace in ("", namespace)
            for rule in grant.rules
        ]
        if MASTERS in user.groups:
            rules.append(_EVERYTHING)
            rules.append(_EVERY_PATH)
        return {
            "resourceRules": [_resource_rule(rule) for rule in rules if rule.resources],
            "nonResourceRules": [
                {"verbs": sorted(rule.verbs), "nonResourceURLs": list(rule.paths)}
                for rule in rules
                if rule.paths
            ],
            "incomplete": bool(user.node_name),
        }


_EVERYTHING = Rule.of({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]})
_EVERY_PATH = Rule.of({"verbs": ["*"], "nonResourceURLs": ["*"]})


def _resource_rule(rule: Rule) -> Document:
    described: Document = {
        "verbs": sorted(rule.verbs),
        "apiGroups": sorted(rule.groups),
        "resources": sorted(rule.resources),
    }
    return {**described, "resourceNames": sorted(rule.names)} if rule.names else described


def _who(user: User, spec: Mapping[str, Any]) -> Document:
    del spec
    info: Document = {"username": user.name, "groups": list(user.groups)}
    return {"userInfo": {**info, "uid": user.uid} if user.uid else info}


def _info_of(spec: Mapping[str, Any]) -> RequestInfo:
    wanted = spec.get("resourceAttributes")
    if wanted is None:
        path = spec.get("nonResourceAttributes") or {}
        return RequestInfo(path.get("verb", ""), path.get("path", ""))
    return RequestInfo(
        wanted.get("verb", ""),
        "",
        wanted.get("group", ""),
        wanted.get("version", ""),
        wanted.get("resource", ""),
        wanted.get("subresource", ""),
        wanted.get("namespace", ""),
        wanted.get("name", ""),
    )
