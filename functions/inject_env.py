"""``inject_env``: an admission review of a workload that wants TPUs comes back with its variables.

Pure: what a review says is all that is known, nothing is looked up or remembered, so a dry run is
like any other and the answer to the same review is the same. What users have set stays: an empty
value counts as not set, ``localhost`` where the slice has more hosts than one, too, and what this
step has injected before, which an annotation on the Pod template tells by name and digest.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.settings import SettingsError
from shared.tpu_env import (
    LISTS,
    LOCALHOST,
    Environment,
    Ports,
    Value,
    decide,
    is_left_to_the_pod,
    render,
)
from shared.workloads import Object, Workload, read

INJECT = "tpu-functions.dev/inject"
ENABLED, DISABLED = "enabled", "disabled"
INJECTED = "tpu-functions.dev/injected"
"""On a Pod template: which variables are ours, with digests of their values, as a JSON object."""
MAX_BYTES = 7 * 1024 * 1024
"""An object and the one before it, each of at most 3 MiB, as the API server takes them."""
API_VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
_NAMING_HOSTS = (*LISTS, "JAX_COORDINATOR_ADDRESS")
_MAX_WARNING = 256
"""The API server cuts longer warnings."""


class NoReviewError(ValueError):
    """The request is no admission review; the message says what would be one."""


@dataclass(frozen=True)
class Injection:
    """How the step is set up. ``is_strict`` refuses what does not fit, instead of warning."""

    ports: Ports = field(default_factory=Ports)
    is_strict: bool = False


def review(body: bytes, settings: Injection) -> dict[str, Any]:
    """Answer an AdmissionReview with an AdmissionReview. Raises `NoReviewError`."""
    document = _decode(body)
    request = document["request"]
    response: dict[str, Any] = {"uid": request["uid"], "allowed": True}
    target = request.get("object")
    if _concerns_us(request, target):
        response |= _answer(target, settings)
    version = document.get("apiVersion")
    return {"apiVersion": version, "kind": "AdmissionReview", "response": response}


def _decode(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError as error:
        raise NoReviewError(f"the body is no JSON: {error}") from error
    if not isinstance(document, dict) or document.get("kind") != "AdmissionReview":
        raise NoReviewError("the body is no AdmissionReview")
    if document.get("apiVersion") not in API_VERSIONS:
        raise NoReviewError(
            f"apiVersion is {document.get('apiVersion')!r}; it must be {' or '.join(API_VERSIONS)}"
        )
    request = document.get("request")
    if not isinstance(request, dict) or not isinstance(request.get("uid"), str):
        raise NoReviewError("the AdmissionReview has no request with a uid")
    return document


def _concerns_us(request: Mapping[str, Any], target: Any) -> bool:
    if not isinstance(target, dict) or request.get("subResource"):
        return False
    is_pod = target.get("kind") == "Pod"
    if is_pod and request.get("operation") != "CREATE":
        return False
    return not any(_says(part, DISABLED) for part in _parts(target))


def _parts(target: Object) -> Iterator[Object]:
    """The object and its Pod template."""
    yield target
    yield ((target.get("spec") or {}).get("template")) or {}


def _says(part: Object, word: str) -> bool:
    metadata = part.get("metadata") or {}
    return any((metadata.get(kind) or {}).get(INJECT) == word for kind in ("labels", "annotations"))


def _answer(target: Object, settings: Injection) -> dict[str, Any]:
    workload = read(target)
    if workload is None:
        return {}
    environment = decide(workload, settings.ports)
    problems = [*environment.problems, *_find_other_lists(workload, environment)]
    if problems and settings.is_strict:
        message = "; ".join(problems)
        return {"allowed": False, "status": {"code": 422, "reason": "Invalid", "message": message}}
    answer: dict[str, Any] = {}
    if problems:
        answer["warnings"] = [_cut(f"tpu-functions: {one}") for one in problems]
    patch = list(make_patch(workload, environment))
    if patch:
        raw = json.dumps(patch, separators=(",", ":")).encode()
        answer |= {"patchType": "JSONPatch", "patch": base64.b64encode(raw).decode()}
    return answer


def _find_other_lists(workload: Workload, environment: Environment) -> Iterator[str]:
    """Lists of the user's that have another length than there are workers."""
    ours = _read_ours(workload)
    for pointer, variables in environment.variables.items():
        for entry in _applied(_find(workload, pointer), variables, ours):
            wanted = variables.get(entry["name"])
            if entry["name"] not in LISTS or not isinstance(wanted, str) or "value" not in entry:
                continue
            given, count = len(entry["value"].split(",")), len(wanted.split(","))
            if given != count:
                yield f"{entry['name']} has {given} entries for {count} workers"


def make_patch(workload: Workload, environment: Environment) -> Iterator[dict[str, Any]]:
    """The operations that write what is missing and what is ours and out of date."""
    ours = _read_ours(workload)
    written: dict[str, str] = {}
    for pointer, variables in environment.variables.items():
        container = _find(workload, pointer)
        yield from _patch_container(pointer, container, variables, ours)
        final = {entry["name"]: entry for entry in _applied(container, variables, ours)}
        for name, value in variables.items():
            if final.get(name) == render(name, value):
                written[f"{container.get('name')}/{name}"] = _digest(render(name, value))
    if workload.path and environment.variables:
        yield from _patch_template(workload, environment, written)


def _patch_container(
    pointer: str, container: Object, variables: Mapping[str, Value], ours: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    existing = list(container.get("env") or [])
    has_list = bool(existing)
    places = {entry.get("name"): place for place, entry in enumerate(existing)}
    for name, value in variables.items():
        entry = render(name, value)
        if name in places:
            old = _as_written(existing[places[name]])
            if old != entry and _may_replace(container, old, value, ours):
                path = f"{pointer}/env/{places[name]}"
                yield {"op": "replace", "path": path, "value": entry}
        elif has_list:
            yield {"op": "add", "path": f"{pointer}/env/-", "value": entry}
        else:
            yield {"op": "add", "path": f"{pointer}/env", "value": [entry]}
            has_list = True


def _applied(
    container: Object, variables: Mapping[str, Value], ours: Mapping[str, str]
) -> list[dict[str, Any]]:
    """The container's entries as they are after the patch."""
    entries = [_as_written(entry) for entry in container.get("env") or []]
    names = {entry.get("name") for entry in entries}
    for place, old in enumerate(entries):
        value = variables.get(str(old.get("name")))
        if value is not None and _may_replace(container, old, value, ours):
            entries[place] = render(str(old["name"]), value)
    return entries + [render(name, value) for name, value in variables.items() if name not in names]


def _may_replace(
    container: Object, old: Mapping[str, Any], value: Value, ours: Mapping[str, str]
) -> bool:
    if ours.get(f"{container.get('name')}/{old.get('name')}") == _digest(old):
        return True
    if "valueFrom" in old:
        return False
    given = str(old.get("value") or "")
    if not given:
        return True
    is_default = LOCALHOST in given and isinstance(value, str) and LOCALHOST not in value
    return is_default and old.get("name") in _NAMING_HOSTS


def _patch_template(
    workload: Workload, environment: Environment, written: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    base = f"{workload.path}/metadata"
    if not workload.metadata:
        yield {"op": "add", "path": base, "value": {}}
    note = json.dumps(written, separators=(",", ":"), sort_keys=True)
    yield from _set(workload.metadata, base, "annotations", INJECTED, note)
    if is_left_to_the_pod(workload, environment):
        yield from _set(workload.metadata, base, "labels", INJECT, ENABLED)


def _set(metadata: Object, base: str, kind: str, name: str, value: str) -> Iterator[dict[str, Any]]:
    existing = metadata.get(kind)
    if not existing:
        yield {"op": "add", "path": f"{base}/{kind}", "value": {name: value}}
    elif existing.get(name) != value:
        key = name.replace("~", "~0").replace("/", "~1")
        yield {"op": "add", "path": f"{base}/{kind}/{key}", "value": value}


def _read_ours(workload: Workload) -> Mapping[str, str]:
    """What the annotation says; what is no such thing says nothing."""
    note = (workload.metadata.get("annotations") or {}).get(INJECTED, "{}")
    try:
        known = json.loads(note)
    except ValueError:
        return {}
    return known if isinstance(known, dict) else {}


def _as_written(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Without what the API server fills in by itself."""
    field = (entry.get("valueFrom") or {}).get("fieldRef")
    if not field or field.get("apiVersion") != "v1":
        return dict(entry)
    path = {name: value for name, value in field.items() if name != "apiVersion"}
    return {**entry, "valueFrom": {"fieldRef": path}}


def _digest(entry: Mapping[str, Any]) -> str:
    raw = json.dumps(entry, separators=(",", ":"), sort_keys=True).encode()
    return hashlib.sha256(raw).hexdigest()[:8]


def _find(workload: Workload, pointer: str) -> Object:
    part, _, place = pointer.removeprefix(f"{workload.path}/spec/").partition("/")
    found: Object = workload.spec[part][int(place)]
    return found


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_WARNING else f"{text[: _MAX_WARNING - 3]}..."


def read_injection(environment: Mapping[str, str]) -> Injection:
    """The step's settings from the environment. Raises `SettingsError`."""
    return Injection(
        ports=Ports(
            process=_port(environment, "INJECT_PROCESS_PORT", Ports.process),
            jax_coordinator=_port(
                environment, "INJECT_JAX_COORDINATOR_PORT", Ports.jax_coordinator
            ),
        ),
        is_strict=_flag(environment, "INJECT_STRICT"),
    )


def _port(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name) or str(default)
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise SettingsError(f"{name}={text!r} must be a port, 1 to 65535")
    return int(text)


def _flag(environment: Mapping[str, str], name: str) -> bool:
    text = environment.get(name) or "false"
    if text not in ("true", "false"):
        raise SettingsError(f"{name}={text!r} must be true or false")
    return text == "true"
