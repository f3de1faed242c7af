"""What single kinds do on a write beyond what their row says."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from local.kube import errors
from local.kube.crds import (
    CRD_RESOURCE,
    complete_crd,
    find_crd_errors,
    mark_crd,
    note_stored_versions,
)
from local.kube.errors import FieldError
from local.kube.events import find_event_errors
from local.kube.kinds import Document, Kind
from local.kube.signing_requests import (
    find_csr_errors,
    keep_request,
    sign_with_requestor,
    stamp_conditions,
)
from local.kube.users import User


def _leave(document: Document) -> None:
    del document


def _leave_new(document: Document, user: User) -> None:
    del document, user


def _leave_changed(document: Document, old: Document, user: User, subresource: str) -> None:
    del document, old, user, subresource


def _accept(document: Document, old: Document | None) -> Iterable[FieldError]:
    del document, old
    return ()


@dataclass(frozen=True)
class Strategy:
    """Functions that may complete a document in place, and one that finds fault with it.

    A document's nested parts may be shared with the stored version: they are replaced, not changed.
    What ``default`` sets belongs to whoever writes, what the others set belongs to nobody. ``mark``
    is for kinds that a delete holds by itself, and ``stamp`` for those whose changes bear the time,
    which both are given.
    """

    default: Callable[[Document], None] = _leave
    prepare_create: Callable[[Document, User], None] = _leave_new
    prepare_update: Callable[[Document, Document, User, str], None] = _leave_changed
    find_errors: Callable[[Document, Document | None], Iterable[FieldError]] = _accept
    mark: Callable[[Document, str], None] | None = None
    stamp: Callable[[Document, str], None] | None = None


_PLAIN = Strategy()


def strategy_of(kind: Kind) -> Strategy:
    """The strategy of a kind; most have the plain one."""
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


def _keep_namespace(document: Document, old: Document, user: User, subresource: str) -> None:
    """What holds a Namespace is changed by its ``finalize`` subresource alone."""
    del user
    if subresource != "finalize":
        document["spec"] = old["spec"]


# -- pods ------------------------------------------------------------------------------------------


def _default_requests(document: Document) -> None:
    """What a container may have at most it asks for, unless it says otherwise."""
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


# -- nodes -----------------------------------------------------------------------------------------


def _default_allocatable(document: Document) -> None:
    """What a node has is what it can give, unless it says otherwise."""
    status = document.get("status") or {}
    if status.get("capacity") and not status.get("allocatable"):
        document["status"] = {**status, "allocatable": status["capacity"]}


# -- secrets and config maps -----------------------------------------------------------------------


def _fold_string_data(document: Document) -> None:
    plain = document.pop("stringData", {})
    if plain:
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in plain.items()}
        document["data"] = {**document.get("data", {}), **encoded}


def _find_data_faults(document: Document, old: Document | None) -> Iterable[FieldError]:
    for name in ("data", "binaryData"):
        for key in document.get(name) or {}:
            if not _CONFIG_KEY.fullmatch(key):
                yield errors.invalid_value(f"{name}[{key}]", key, _CONFIG_KEY_WORDS)
    yield from _find_frozen(document, old)


_CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_CONFIG_KEY_WORDS = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  "
    "or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)


def _find_frozen(document: Document, old: Document | None) -> Iterable[FieldError]:
    if old is None or not old.get("immutable"):
        return
    for name in ("immutable", "data", "binaryData"):
        if document.get(name) != old.get(name):
            why = "field is immutable when `immutable` is set"
            yield errors.forbidden_field(name, why)


# -- custom resource definitions -------------------------------------------------------------------


def _complete_crd(document: Document) -> None:
    if _is_readable(document):
        complete_crd(document)


def _note_stored(document: Document, user: User) -> None:
    del user
    if _is_readable(document):
        note_stored_versions(document)


def _note_stored_changed(document: Document, old: Document, user: User, subresource: str) -> None:
    del old
    if not subresource:
        _note_stored(document, user)


def _is_readable(document: Document) -> bool:
    """Whether the parts are there that a CRD is completed from; validation says so if not."""
    spec = document.get("spec") or {}
    names = spec.get("names") or {}
    versions = spec.get("versions") or ()
    return {"kind", "plural"} <= set(names) and all(
        {"name", "served", "storage"} <= set(version) for version in versions
    )


# -- role bindings ---------------------------------------------------------------------------------

_RBAC_GROUP = "rbac.authorization.k8s.io"


def _default_api_groups(document: Document) -> None:
    document["roleRef"] = {"apiGroup": _RBAC_GROUP, **document.get("roleRef", {})}
    document["subjects"] = [
        subject if subject.get("kind") == "ServiceAccount" else {"apiGroup": _RBAC_GROUP, **subject}
        for subject in document.get("subjects", [])
    ]


# -- jobs ------------------------------------------------------------------------------------------


def _select_own_pods(document: Document, user: User) -> None:
    """The Pods of a Job bear its uid, unless its author selects them (documented: manualSelector)."""
    del user
    spec, metadata = document["spec"], document["metadata"]
    if spec.get("manualSelector"):
        return
    own = {"batch.kubernetes.io/controller-uid": metadata["uid"]}
    template = spec["template"]
    given = template.get("metadata") or {}
    named = {"batch.kubernetes.io/job-name": metadata["name"], "job-name": metadata["name"]}
    labels = {**(given.get("labels") or {}), **own, "controller-uid": metadata["uid"], **named}
    document["spec"] = {
        **spec,
        "selector": {"matchLabels": own},
        "template": {**template, "metadata": {**given, "labels": labels}},
    }


_STRATEGIES: dict[str, Strategy] = {
    "namespaces": Strategy(
        _label_namespace, prepare_update=_keep_namespace, mark=_terminate_namespace
    ),
    "pods": Strategy(_default_requests),
    "nodes": Strategy(_default_allocatable),
    "secrets": Strategy(_fold_string_data, find_errors=_find_data_faults),
    "configmaps": Strategy(find_errors=_find_data_faults),
    "certificatesigningrequests.certificates.k8s.io": Strategy(
        prepare_create=sign_with_requestor,
        prepare_update=keep_request,
        find_errors=find_csr_errors,
        stamp=stamp_conditions,
    ),
    "jobs.batch": Strategy(prepare_create=_select_own_pods),
    "events": Strategy(find_errors=find_event_errors),
    CRD_RESOURCE: Strategy(
        _complete_crd, _note_stored, _note_stored_changed, find_crd_errors, mark_crd
    ),
    "rolebindings.rbac.authorization.k8s.io": Strategy(_default_api_groups),
    "clusterrolebindings.rbac.authorization.k8s.io": Strategy(_default_api_groups),
}
