"""The rules for writes of particular kinds that `Kind` does not express."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from local.kube import errors
from local.kube.crds import (
    CRD_RESOURCE,
    complete_crd,
    establish,
    find_crd_errors,
    mark_crd,
)
from local.kube.errors import FieldError
from local.kube.kinds import Document, Kind
from local.kube.signing_requests import find_csr_errors, prepare_request
from local.kube.writing import Attributes


@dataclass(frozen=True)
class Strategy:
    """Functions that complete a document in place, and one that validates it.

    A document's nested parts may be shared with the stored version: they are replaced, not changed.
    ``default`` runs before the validation, ``prepare`` after it. ``mark`` changes an object that is
    deleted, for kinds whose deletion waits; its second argument is the time. ``grace_s`` returns the
    grace period of a delete that asks for the second argument, for kinds that are deleted gracefully.
    """

    default: Callable[[Document], None] = lambda _: None
    prepare: Callable[[Attributes], None] = lambda _: None
    find_errors: Callable[[Document, Document | None], Iterable[FieldError]] = lambda *_: ()
    mark: Callable[[Document, str], None] | None = None
    grace_s: Callable[[Document, int | None], int] | None = None


_PLAIN = Strategy()


def strategy_of(kind: Kind) -> Strategy:
    """The strategy of a kind."""
    return _STRATEGIES.get(kind.resource, _PLAIN)


# -- namespaces ------------------------------------------------------------------------------------


def _label_namespace(document: Document) -> None:
    meta = document["metadata"]
    if not meta.get("name"):
        return
    meta["labels"] = {**meta.get("labels", {}), "kubernetes.io/metadata.name": meta["name"]}


def _terminate_namespace(document: Document, now: str) -> None:
    del now
    document["status"] = {**document.get("status", {}), "phase": "Terminating"}


def _restore_namespace_spec(attributes: Attributes) -> None:
    """Restore the finalizers of a Namespace, which only its ``finalize`` subresource may change."""
    if attributes.old is not None and attributes.subresource != "finalize":
        attributes.document["spec"] = attributes.old["spec"]


# -- pods ------------------------------------------------------------------------------------------


def _default_requests(document: Document) -> None:
    """Set the requests of containers to their limits, where requests are not set."""
    spec = document.get("spec") or {}
    parts = [part for part in ("containers", "initContainers") if part in spec]
    for part in parts:
        completed = [_with_requests(container) for container in spec[part]]
        spec = document["spec"] = {**spec, part: completed}


def _with_requests(container: Document) -> Document:
    resources = container.get("resources") or {}
    if not resources.get("limits"):
        return container
    requests = {**resources["limits"], **(resources.get("requests") or {})}
    return {**container, "resources": {**resources, "requests": requests}}


def _find_grace_period(pod: Document, asked: int | None) -> int:
    """The grace period of a Pod: 0 if it has no Node or has ended, because no kubelet has to stop it."""
    spec = pod["spec"]
    if not spec.get("nodeName") or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    return int(spec.get("terminationGracePeriodSeconds", 0)) if asked is None else asked


# -- nodes -----------------------------------------------------------------------------------------


def _default_allocatable(document: Document) -> None:
    """Set the allocatable resources of a Node to its capacity, if they are not set."""
    status = document.get("status") or {}
    if status.get("capacity") and not status.get("allocatable"):
        document["status"] = {**status, "allocatable": status["capacity"]}


# -- secrets and config maps -----------------------------------------------------------------------


def _fold_string_data(document: Document) -> None:
    plain = document.pop("stringData", {})
    if plain:
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in plain.items()}
        document["data"] = {**document.get("data", {}), **encoded}


# -- events ----------------------------------------------------------------------------------------

_OF_CLUSTER = ("default", "kube-system")
"""The namespaces of Events about cluster-scoped objects."""


def find_event_errors(document: Document, old: Document | None) -> Iterator[FieldError]:
    """The violations of an Event, apart from the types of its fields."""
    if old is not None:
        return
    own = document["metadata"]["namespace"]
    about = document["involvedObject"].get("namespace", "")
    is_new = document.get("eventTime") is not None
    if (not is_new and about != own) if about else own not in _OF_CLUSTER[: 1 + is_new]:
        why = "does not match event.namespace"
        yield errors.invalid_value("involvedObject.namespace", about, why)
    for name in ("reportingComponent", "reportingInstance", "action", "reason"):
        if is_new and not document.get(name):
            yield errors.required(name)


# -- role bindings ---------------------------------------------------------------------------------

_RBAC_GROUP = "rbac.authorization.k8s.io"


def _default_api_groups(document: Document) -> None:
    document["roleRef"] = {"apiGroup": _RBAC_GROUP, **document.get("roleRef", {})}
    document["subjects"] = [
        subject if subject.get("kind") == "ServiceAccount" else {"apiGroup": _RBAC_GROUP, **subject}
        for subject in document.get("subjects", [])
    ]


# -- jobs ------------------------------------------------------------------------------------------


def _select_own_pods(attributes: Attributes) -> None:
    """Let a Job select its Pods by its uid, unless it has manualSelector (documented)."""
    spec, metadata = attributes.document["spec"], attributes.document["metadata"]
    if attributes.old is not None or spec.get("manualSelector"):
        return
    own = {"batch.kubernetes.io/controller-uid": metadata["uid"]}
    template = spec["template"]
    given = template.get("metadata") or {}
    named = {"batch.kubernetes.io/job-name": metadata["name"], "job-name": metadata["name"]}
    labels = {**(given.get("labels") or {}), **own, "controller-uid": metadata["uid"], **named}
    attributes.document["spec"] = {
        **spec,
        "selector": {"matchLabels": own},
        "template": {**template, "metadata": {**given, "labels": labels}},
    }


_STRATEGIES: dict[str, Strategy] = {
    "namespaces": Strategy(_label_namespace, _restore_namespace_spec, mark=_terminate_namespace),
    "pods": Strategy(_default_requests, grace_s=_find_grace_period),
    "nodes": Strategy(_default_allocatable),
    "secrets": Strategy(_fold_string_data),
    "certificatesigningrequests.certificates.k8s.io": Strategy(
        prepare=prepare_request, find_errors=find_csr_errors
    ),
    "jobs.batch": Strategy(prepare=_select_own_pods),
    "events": Strategy(find_errors=find_event_errors),
    CRD_RESOURCE: Strategy(complete_crd, establish, find_crd_errors, mark_crd),
    "rolebindings.rbac.authorization.k8s.io": Strategy(_default_api_groups),
    "clusterrolebindings.rbac.authorization.k8s.io": Strategy(_default_api_groups),
}
