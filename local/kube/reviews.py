"""Reviews of the user's own permissions and identity. They are created and answered, never stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from local.base.clock import Clock
from local.kube import errors
from local.kube.authorization import Authorizer
from local.kube.formats import render_time
from local.kube.kinds import Document, Kind
from local.kube.requests import RequestInfo
from local.kube.users import User


class Reviews:
    """Answers SelfSubjectAccessReviews and SelfSubjectReviews."""

    def __init__(self, authorizer: Authorizer, clock: Clock) -> None:
        self._authorizer = authorizer
        self._clock = clock

    def answer(self, kind: Kind, user: User, document: Document) -> Document:
        """Return the review with its status. Raises 422 unless it has exactly one kind of attributes."""
        if kind.kind == "SelfSubjectAccessReview":
            allowed = self._authorizer.allows(user, _info_of(document["spec"]))
            return {**document, "status": {"allowed": allowed}}
        meta = {"creationTimestamp": render_time(self._clock.now())}
        info = {"username": user.name, "groups": list(user.groups), "uid": user.uid}
        shown = {name: value for name, value in info.items() if value}
        return {**document, "metadata": meta, "status": {"userInfo": shown}}


def _info_of(spec: Mapping[str, Any]) -> RequestInfo:
    wanted = spec.get("resourceAttributes")
    path = spec.get("nonResourceAttributes")
    if wanted is None and path is not None:
        return RequestInfo(path.get("verb", ""), path.get("path", ""))
    if wanted is None or path is not None:
        why = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        wrong = errors.invalid_value("spec.resourceAttributes", errors.OMITTED, why)
        raise errors.invalid("SelfSubjectAccessReview.authorization.k8s.io", "", [wrong])
    known = ("group", "version", "resource", "subresource", "namespace", "name")
    named = {name: wanted[name] for name in known if name in wanted}
    return RequestInfo(wanted.get("verb", ""), "", **named)
