"""Reviews: what may I do, who am I. Created, answered and never stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from local.base.clock import Clock
from local.kube import errors
from local.kube.authorization import Authorizer
from local.kube.formats import render_time
from local.kube.kinds import Document, Kind
from local.kube.requests import RequestInfo
from local.kube.users import User


class Reviews:
    """Answers the reviews of the groups authorization.k8s.io and authentication.k8s.io."""

    def __init__(self, authorizer: Authorizer, clock: Clock) -> None:
        self._authorizer = authorizer
        self._clock = clock
        self._answers: dict[str, Callable[[User, Document], Document]] = {
            "selfsubjectaccessreviews": self._review_access,
            "subjectaccessreviews": self._review_others_access,
            "selfsubjectreviews": self._review_self,
        }

    def answer(self, kind: Kind, user: User, document: Document) -> Document:
        """The review with its status. Raises 400 and 422 for one that asks for nothing."""
        return self._answers[kind.plural](user, document)

    def _review_access(self, user: User, document: Document) -> Document:
        return {**document, "status": self._access(user, document["spec"])}

    def _review_others_access(self, user: User, document: Document) -> Document:
        del user
        spec = document["spec"]
        other = User(str(spec.get("user", "")), tuple(spec.get("groups") or ()))
        return {**document, "status": self._access(other, spec)}

    def _review_self(self, user: User, document: Document) -> Document:
        meta = {"creationTimestamp": render_time(self._clock.now())}
        return {**document, "metadata": meta, "status": _who(user)}

    def _access(self, user: User, spec: Mapping[str, Any]) -> Document:
        decision = self._authorizer.decide(user, _info_of(spec))
        status: Document = {"allowed": decision.allowed}
        return {**status, "reason": decision.reason} if decision.reason else status


def _who(user: User) -> Document:
    info: Document = {"username": user.name, "groups": list(user.groups)}
    return {"userInfo": {**info, "uid": user.uid} if user.uid else info}


def _info_of(spec: Mapping[str, Any]) -> RequestInfo:
    wanted: Mapping[str, str] | None = spec.get("resourceAttributes")
    path: Mapping[str, str] | None = spec.get("nonResourceAttributes")
    if wanted is not None and path is not None:
        why = "cannot be specified in combination with resourceAttributes"
        shown = {"Path": path.get("path", ""), "Verb": path.get("verb", "")}
        wrong = errors.invalid_value("spec.nonResourceAttributes", shown, why)
        raise errors.invalid(".authorization.k8s.io", "", [wrong])
    if path is not None:
        return RequestInfo(path.get("verb", ""), path.get("path", ""))
    if wanted is None:
        why = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        wrong = errors.invalid_value("spec.resourceAttributes", None, why)
        raise errors.invalid(".authorization.k8s.io", "", [wrong])
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
