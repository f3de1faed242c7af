"""Mutating webhooks for the embedded API server, which does not support them.

`Webhooks.admit` handles requests before the server (`local.base.web.serve`). Supported parts of a
MutatingWebhookConfiguration: rules, match conditions, selectors of namespaces, and ``failurePolicy:
Ignore``. Not supported: ``UPDATE``, reinvocation.
"""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any
from uuid import uuid4

import aiohttp
import jsonpatch
from cel_expr_python import cel

from local.base.http import Request, Response
from local.kube.label_selectors import matches_expressions

Document = dict[str, Any]
GetLabels = Callable[[str], Mapping[str, str]]
"""The labels of a namespace."""
_ENVIRONMENT = cel.NewEnv(variables={"object": cel.Type.DYN, "oldObject": cel.Type.DYN})


class Webhooks:
    """The webhooks of a configuration, all of them served at one URL.

    ``trust`` is the CA of that server, in PEM form.
    """

    def __init__(
        self, configuration: Mapping[str, Any], url: str, trust: str, labels_of: GetLabels
    ) -> None:
        self._webhooks: Sequence[Document] = configuration["webhooks"]
        self._url = url
        self._trust = trust
        self._labels_of = labels_of

    async def admit(self, request: Request) -> Request | Response:
        """Return the mutated request, or the response of a denial."""
        place = _read_place(request)
        if place is None:
            return request
        group, resource, namespace = place
        found = _read_object(request)
        if found is None:
            return request
        warnings: list[str] = []
        for webhook in self._find(group, resource, namespace, found):
            answer = await self._call(webhook, found, namespace)
            if not answer.get("allowed", True):
                name = webhook["name"]
                return _deny(name, (answer.get("status") or {}).get("message", ""))
            if answer.get("patch"):
                patch = json.loads(base64.b64decode(answer["patch"]))
                found = jsonpatch.apply_patch(found, patch)
            warnings += answer.get("warnings") or ()
        headers = {**request.headers, "content-type": "application/json"}
        return replace(request, headers=headers, body=json.dumps(found).encode())

    def _find(
        self, group: str, resource: str, namespace: str, found: Document
    ) -> Iterator[Document]:
        labels = {**self._labels_of(namespace), "kubernetes.io/metadata.name": namespace}
        for webhook in self._webhooks:
            selector = (webhook.get("namespaceSelector") or {}).get("matchExpressions") or ()
            is_ruled = any(
                group in rule["apiGroups"]
                and resource in rule["resources"]
                and "CREATE" in rule["operations"]
                for rule in webhook["rules"]
            )
            if is_ruled and matches_expressions(selector, labels) and _matches(webhook, found):
                yield webhook

    async def _call(self, webhook: Document, found: Document, namespace: str) -> Document:
        """The response of a review; empty if the webhook does not answer."""
        group, _, version = found["apiVersion"].rpartition("/")
        review = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": str(uuid4()),
                "kind": {"group": group, "version": version, "kind": found["kind"]},
                "namespace": namespace,
                "operation": "CREATE",
                "object": found,
            },
        }
        path = webhook["clientConfig"]["service"]["path"]
        timeout = aiohttp.ClientTimeout(total=webhook.get("timeoutSeconds", 10))
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.post(self._url + path, json=review, ssl=self._context) as answer,
            ):
                answered: Document = (await answer.json())["response"]
                return answered
        except (TimeoutError, aiohttp.ClientError, ValueError, KeyError):
            return {}

    @cached_property
    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self._trust)


def _read_place(request: Request) -> tuple[str, str, str] | None:
    """Group, resource and namespace of a request that creates a namespaced object."""
    match request.method, [part for part in request.path.split("/") if part]:
        case "POST", ["api", _, "namespaces", namespace, resource]:
            return "", resource, namespace
        case "POST", ["apis", group, _, "namespaces", namespace, resource]:
            return group, resource, namespace
        case _:
            return None


def _read_object(request: Request) -> Document | None:
    """Parse a body; ``None`` if it is not JSON, which the server rejects."""
    try:
        found = json.loads(request.body)
    except ValueError:
        return None
    is_object = isinstance(found, dict) and {"apiVersion", "kind", "metadata"} <= found.keys()
    return found if is_object else None


def _matches(webhook: Document, found: Document) -> bool:
    """Whether all conditions are true; a condition that cannot be evaluated counts as false."""
    for condition in webhook.get("matchConditions") or ():
        # Only creations are reviewed, which have no old object.
        data = {"object": found, "oldObject": None}
        result = _ENVIRONMENT.compile(condition["expression"]).eval(data=data)
        if result.value() is not True:
            return False
    return True


def _deny(name: str, why: str) -> Response:
    message = f'admission webhook "{name}" denied the request: {why}'
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return Response.of_json({**status, "message": message, "reason": "Forbidden", "code": 403}, 403)
