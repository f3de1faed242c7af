"""``inject_env``: a workload that wants TPUs comes back from its admission with its variables.

What users have set stays: an empty value counts as not set, ``localhost`` where the slice has more
hosts than one, too, and what this step has injected before, which an annotation on the Pod template
tells by name and digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.admission import Answer, Object, Operation, Request, set_keys
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
from shared.workloads import FieldPath, Workload, read

INJECT = "tpu-functions.dev/inject"
ENABLED, DISABLED = "enabled", "disabled"
INJECTED = "tpu-functions.dev/injected"
"""On a Pod template: which variables are ours, with digests of their values, as a JSON object."""
_NAMING_HOSTS = (*LISTS, "JAX_COORDINATOR_ADDRESS")
_FIXED = (
    "TPU_WORKER_ID",
    "TPU_TOPOLOGY",
    "TPU_ACCELERATOR_TYPE",
    "TPU_HOST_BOUNDS",
    "TPU_CHIPS_PER_HOST_BOUNDS",
    "MEGASCALE_NUM_SLICES",
    "MEGASCALE_SLICE_ID",
)
"""Variables of which only one value can be right."""


@dataclass(frozen=True)
class Injection:
    """How the step is set up. ``is_strict`` refuses what does not fit, instead of warning."""

    ports: Ports = field(default_factory=Ports)
    is_strict: bool = False


def inject(request: Request, settings: Injection) -> Answer:
    """The variables that a workload lacks, as a patch, and what does not fit."""
    workload = read(request.target) if _concerns_us(request) else None
    if workload is None:
        return Answer()
    environment = decide(workload, settings.ports)
    problems = (*environment.problems, *_find_contradictions(workload, environment))
    if problems and settings.is_strict:
        return Answer(refusal="; ".join(problems))
    return Answer(patch=tuple(make_patch(workload, environment)), warnings=problems)


def _concerns_us(request: Request) -> bool:
    if request.sub_resource:
        return False
    if request.target.get("kind") == "Pod" and request.operation != "CREATE":
        return False
    return not any(_says(part, DISABLED) for part in _parts(request.target))


def _parts(target: Object) -> Iterator[Object]:
    """The object and its Pod template."""
    yield target
    yield ((target.get("spec") or {}).get("template")) or {}


def _says(part: Object, word: str) -> bool:
    metadata = part.get("metadata") or {}
    return any((metadata.get(kind) or {}).get(INJECT) == word for kind in ("labels", "annotations"))


def _find_contradictions(workload: Workload, environment: Environment) -> tuple[str, ...]:
    """What the user's own values say otherwise than the slice, each once."""
    ours = _read_ours(workload)
    found = (
        problem
        for pointer, variables in environment.variables.items()
        for entry in _applied(_find(workload, pointer), variables, ours)
        if entry["name"] in variables and "valueFrom" not in entry
        for problem in _contradict(
            entry["name"], str(entry.get("value") or ""), variables[entry["name"]]
        )
    )
    return tuple(dict.fromkeys(found))


def _contradict(name: str, given: str, wanted: Value) -> Iterator[str]:
    if isinstance(wanted, FieldPath):
        yield f"{name} is {given} in all Pods, and each has its own; leave it out"
    elif name in LISTS:
        entries, count = len(given.split(",")), len(wanted.split(","))
        if entries != count:
            yield f"{name} has {entries} entries for {count} workers"
        if name == "TPU_WORKER_HOSTNAMES" and ":" in given:
            yield f"{name} has ports, and readers add their own; leave the ports out"
    elif name in _FIXED and given != wanted:
        yield f"{name} is {given} and should be {wanted}; leave it out"


def make_patch(workload: Workload, environment: Environment) -> Iterator[Operation]:
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
) -> Iterator[Operation]:
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
) -> Iterator[Operation]:
    base = f"{workload.path}/metadata"
    if not workload.metadata:
        yield {"op": "add", "path": base, "value": {}}
    note = json.dumps(written, separators=(",", ":"), sort_keys=True)
    yield from set_keys(workload.metadata, base, "annotations", {INJECTED: note})
    if is_left_to_the_pod(workload, environment):
        yield from set_keys(workload.metadata, base, "labels", {INJECT: ENABLED})


def _read_ours(workload: Workload) -> Mapping[str, str]:
    """What the annotation says; what is no such thing says nothing."""
    note = (workload.metadata.get("annotations") or {}).get(INJECTED, "{}")
    try:
        known = json.loads(note)
    except (ValueError, RecursionError):
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
