"""The verbs over HTTP: parses requests, calls `Resources`, renders responses."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from random import Random
from typing import Any

from local.base.clock import Clock
from local.base.http import JSON, Request, Response
from local.kube import errors
from local.kube.account_tokens import AccountTokens
from local.kube.arguments import (
    ResourceCall,
    matcher_of,
    number_argument,
    read_delete_options,
    read_token,
    read_write,
    write_token,
)
from local.kube.decoding import content_type, decode, parse_json, read_object
from local.kube.kinds import Document, Kind
from local.kube.patches import json_patch, merge_patch, strategic_merge
from local.kube.pod_logs import render_log
from local.kube.render import View, wants_table
from local.kube.requests import RequestInfo, is_true
from local.kube.resources import Resources
from local.kube.reviews import Reviews
from local.kube.scale import render_scale, scale
from local.kube.schema import Schema
from local.kube.store import Record
from local.kube.users import User
from local.kube.watch import Watch, Watches, WatchRequest
from local.kube.writing import Deletion, Outcome, Write

JSON_PATCH = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"

_MIN_WATCH_S = 1800
"""A watch without a timeout ends after 30 to 60 minutes (documented)."""


class Handlers:
    """One method per verb."""

    def __init__(
        self,
        resources: Resources,
        reviews: Reviews,
        issuer: AccountTokens,
        watches: Watches,
        clock: Clock,
        random: Random,
    ) -> None:
        self._resources = resources
        self._reviews = reviews
        self._issuer = issuer
        self._watches = watches
        self._clock = clock
        self._random = random
        self._verbs: dict[str, Callable[[ResourceCall], Response]] = {
            "get": self._get,
            "list": self._list,
            "watch": self._watch,
            "create": self._create,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_collection,
        }

    def handle(self, request: Request, info: RequestInfo, user: User) -> Response:
        """Answer a request for a resource. Raises `ApiError`."""
        kind = self._resources.catalogue.find(info.group, info.resource)
        if kind is None or not kind.served or kind.version != info.version:
            raise errors.UnknownPath
        allowed = kind.subresources.get(info.subresource) if info.subresource else kind.verbs
        if allowed is None or not _is_in_scope(kind, info):
            raise errors.UnknownPath
        if info.verb not in allowed or not _fits(kind, info):
            raise errors.method_not_allowed()
        call = ResourceCall(request, info, user, kind)
        return self._scale(call) if info.subresource == "scale" else self._verbs[info.verb](call)

    def _view(self, call: ResourceCall) -> View:
        as_table = wants_table(call.request.headers.get("accept", ""))
        include = call.request.argument("includeObject")
        return View(call.kind, as_table, include, self._clock)

    # -- reading ----------------------------------------------------------------------------------

    def _get(self, call: ResourceCall) -> Response:
        record = self._resources.get(call.kind, call.key)
        if call.info.subresource == "log":
            log = render_log(record.document, call.request.argument("container"))
            return Response(200, {"Content-Type": "text/plain"}, log.encode())
        return _respond(self._view(call).one(record))

    def _list(self, call: ResourceCall) -> Response:
        store, token = self._resources.store, call.request.argument("continue")
        if not token:
            records = store.records(call.kind.resource, call.namespace)
            return self._page(call, records, store.revision)
        revision, start = read_token(token)
        records = store.records_at(call.kind.resource, revision, call.namespace)
        return self._page(call, [one for one in records if one.key > start], revision)

    def _page(self, call: ResourceCall, records: list[Record], revision: int) -> Response:
        """The first page of a list, with the token of the next page if there is one."""
        selected = list(filter(matcher_of(call), records))
        limit = max(0, number_argument(call.request, "limit")) or len(selected)
        meta: Document = {"resourceVersion": str(revision)}
        if len(selected) > limit:
            meta["continue"] = write_token(revision, selected[limit - 1].key)
            if not {"labelSelector", "fieldSelector"} & set(call.request.query):
                meta["remainingItemCount"] = len(selected) - limit
        return _respond(self._view(call).page(selected[:limit], meta))

    def _watch(self, call: ResourceCall) -> Response:
        request = call.request
        asked = number_argument(request, "resourceVersion")
        streams = is_true(request, "sendInitialEvents") or not asked
        view = self._view(call)
        store = self._resources.store
        wanted = WatchRequest(
            resource=call.kind.resource,
            namespace=call.namespace,
            since=None if streams else asked,
            matches=matcher_of(call),
            render=view.events(),
            bookmark=view.bookmark,
            bookmarks=is_true(request, "allowWatchBookmarks"),
            timeout_s=number_argument(request, "timeoutSeconds") or self._random_timeout_s(),
        )
        stream = Watch(wanted, store, self._clock, self._watches)
        return Response(200, {"Content-Type": JSON}, stream=stream)

    def _random_timeout_s(self) -> float:
        return _MIN_WATCH_S * (1 + self._random.random())

    # -- writing ----------------------------------------------------------------------------------

    def _create(self, call: ResourceCall) -> Response:
        document, write = read_object(call.request), read_write(call)
        if call.kind.virtual:
            review = self._resources.read_review(write, document)
            return Response.of_json(self._reviews.answer(call.kind, call.user, review), 201)
        if call.info.subresource:
            return self._create_token(call, document, write)
        return self._respond_outcome(call, self._resources.create(write, call.namespace, document))

    def _create_token(self, call: ResourceCall, document: Document, write: Write) -> Response:
        """Answer a TokenRequest. A dry run gets a token, too, as in Kubernetes."""
        kind = self._resources.catalogue["tokenrequests.authentication.k8s.io"]
        warnings = decode(dataclasses.replace(write, kind=kind), document)
        account = self._resources.get(call.kind, call.key)
        self._issuer.complete(document, account)
        admitted = json.loads(json.dumps(document))
        attributes = self._resources.admit(write.user, call.kind, admitted, None, "CREATE", "token")
        warnings = (*warnings, *attributes.warnings, *self._issuer.sign(document, account))
        headers = {"Warning": errors.render_warnings(warnings)} if warnings else None
        return Response.of_json(document, 201, headers)

    def _update(self, call: ResourceCall) -> Response:
        document, write = read_object(call.request), read_write(call)
        return self._respond_outcome(call, self._resources.update(write, call.key, document))

    def _scale(self, call: ResourceCall) -> Response:
        patch = _find_patch(call) if call.info.verb == "patch" else None
        record = self._resources.get(call.kind, call.key)
        if call.info.verb != "get":
            write, before = read_write(call), render_scale(call.kind, record)
            wanted = patch(before) if patch is not None else read_object(call.request)
            record = self._resources.replace(write, record, scale(record, wanted)).record
        return Response.of_json(render_scale(call.kind, record))

    def _patch(self, call: ResourceCall) -> Response:
        patch, write = _find_patch(call), read_write(call)
        record = self._resources.get(call.kind, call.key)
        patched = patch(record.copy())
        try:
            outcome = self._resources.replace(write, record, patched)
        except errors.Undecodable as error:
            wrong = errors.invalid_value("patch", errors.OMITTED, error.message)
            raise errors.invalid(call.kind.qualified_kind, call.info.name, [wrong]) from error
        return self._respond_outcome(call, outcome)

    def _respond_outcome(self, call: ResourceCall, outcome: Outcome) -> Response:
        response = _respond(self._view(call).one(outcome.record), 201 if outcome.created else 200)
        if outcome.warnings:
            response.headers["Warning"] = errors.render_warnings(outcome.warnings)
        return response

    # -- deleting ---------------------------------------------------------------------------------

    def _delete(self, call: ResourceCall) -> Response:
        deletion = self._resources.delete(call.kind, call.key, call.user, read_delete_options(call))
        if not deletion.gone or call.kind.returns_deleted:
            return _respond(self._view(call).one(deletion.record))
        return Response.of_json(_success(call.kind, deletion))

    def _delete_collection(self, call: ResourceCall) -> Response:
        options = read_delete_options(call)
        matches = matcher_of(call)
        records = self._resources.store.records(call.kind.resource, call.namespace)
        chosen = [record for record in records if matches(record)]
        for record in chosen:
            self._resources.delete(call.kind, record.key, call.user, options)
        meta = {"resourceVersion": str(self._resources.store.revision)}
        return _respond(self._view(call).page(chosen, meta))


def _find_patch(call: ResourceCall) -> Callable[[Document], Document]:
    """What patches a document as the request says. Raises 415; the function raises 400 and 422."""
    media_type = content_type(call.request)
    accepted = (JSON_PATCH, MERGE) if call.kind.custom else tuple(_PATCHES)
    if media_type not in accepted:
        raise errors.unsupported_media_type(accepted)

    def patch(document: Document) -> Document:
        sent = parse_json(call.request.body)
        if media_type != JSON_PATCH and not isinstance(sent, dict):
            raise errors.bad_request("the patch must be an object")
        patched = _PATCHES[media_type](document, sent, call.kind.schema)
        if not isinstance(patched, dict):
            raise errors.unprocessable()
        return patched

    return patch


def _respond(body: bytes, status: int = 200) -> Response:
    return Response(status, {"Content-Type": JSON}, body)


def _is_in_scope(kind: Kind, info: RequestInfo) -> bool:
    if not kind.namespaced:
        return not info.namespace or kind.resource == "namespaces"
    if info.namespace or info.verb in ("list", "watch"):
        return True
    return not kind.custom and not info.name


_NAMED = frozenset({"get", "update", "patch", "delete"})


def _fits(kind: Kind, info: RequestInfo) -> bool:
    """Whether the URL has the form that the verb needs: with a name, or without."""
    if info.verb == "create":
        placed = bool(info.namespace) or not kind.namespaced
        return placed and bool(info.name) is bool(info.subresource)
    if info.verb == "deletecollection":
        return bool(info.namespace) or not kind.namespaced
    return info.verb not in _NAMED or bool(info.name)


def _success(kind: Kind, deletion: Deletion) -> Document:
    details = {
        "name": deletion.record.key[1],
        "group": kind.group,
        "kind": kind.plural,
        "uid": deletion.record.metadata["uid"],
    }
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {name: value for name, value in details.items() if value},
    }


_PATCHES: dict[str, Callable[[Document, Any, Schema], Any]] = {
    JSON_PATCH: lambda document, patch, _: json_patch(document, patch),
    MERGE: lambda document, patch, _: merge_patch(document, patch),
    STRATEGIC: strategic_merge,
}
