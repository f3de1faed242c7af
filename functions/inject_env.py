"""inject_env: an admission webhook that adds TPU environment variables to workloads.

It adds variables that are missing, updates those that it has injected before, and removes them from a
Pod template that needs them no longer. An annotation on the template lists the injected variables with
digests. Values that users have set are kept. Two kinds of them count as not set: an empty value, and
``localhost`` in a variable that names hosts, if the slice has several.

Problems of a workload, such as contradictions between it and its slice, are warnings, or errors by a
setting. If nothing at all is injected because of problems, an annotation on the template says which. A
Pod template gets the label that makes the webhook review its Pods, too, unless it is marked already.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from shared.base.environment import SettingsError
from shared.base.pods import CONTAINER_LISTS
from shared.tpu_env.admission import (
    AdmissionRequest,
    AdmissionResponse,
    Object,
    Operation,
    escape,
    set_keys,
)
from shared.tpu_env.variables import (
    LISTS,
    LOCALHOST,
    Environment,
    Ports,
    Value,
    decide,
    render,
    selects_topology,
)
from shared.tpu_env.workloads import NOT_INJECTED, FieldPath, Workload, read

INJECT = "tpu-functions.dev/inject"
MARKS = (INJECT, "gke-tpu-env-injector.aaronbatilo.dev/inject")
"""Labels or annotations that ask for injection."""
ENABLED, DISABLED = "enabled", "disabled"
INJECTED = "tpu-functions.dev/injected"
"""Annotation of a Pod template: the injected variables, with digests of their values, as JSON."""
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
"""Variables with exactly one correct value."""


@dataclass(frozen=True)
class InjectionSettings:
    """The settings of the webhook.

    ``is_strict``: reject a workload with problems instead of warning about them.
    """

    is_strict: bool
    ports: Ports = field(default_factory=Ports)


def inject(request: AdmissionRequest, settings: InjectionSettings) -> AdmissionResponse:
    """The patch that adds missing variables to a workload, and warnings about its problems."""
    workload = read(request.target) if _is_injectable(request) else None
    if workload is None:
        return AdmissionResponse()
    # ``workload.metadata`` is that of the Pod template or, with an empty ``path``, of the Pod itself.
    own = request.target["metadata"]
    if workload.path and _is_marked(own, (INJECT,), DISABLED):
        return AdmissionResponse(patch=tuple(_mark_template(workload, DISABLED)))
    # A template may still be marked because its workload was `disabled` at an earlier review.
    is_enabled = workload.path and _is_marked(own, MARKS, ENABLED)
    if _is_marked(workload.metadata, (INJECT,), DISABLED) and not is_enabled:
        return AdmissionResponse()
    environment = decide(_without_injected(workload), settings.ports)
    problems = (*environment.problems, *_find_contradictions(workload, environment))
    if problems and settings.is_strict:
        return AdmissionResponse(refusal="; ".join(problems))
    patch = [*build_patch(workload, environment), *_annotate_problems(workload, environment)]
    return AdmissionResponse(patch=tuple(patch), warnings=(*problems, *environment.notices))


def _is_injectable(request: AdmissionRequest) -> bool:
    """Whether the request may be changed: containers of existing Pods and subresources cannot (of Jobs,
    the webhook gets only the creation). What is being deleted is left alone: in strict mode, a refusal
    would keep its finalizers from being removed."""
    is_pod, is_deleting = request.target.get("kind") == "Pod", _is_deleting(request.target)
    is_changeable = not is_pod or request.operation == "CREATE"
    return is_changeable and not request.sub_resource and not is_deleting


def _is_deleting(target: Object) -> bool:
    return bool((target.get("metadata") or {}).get("deletionTimestamp"))


def _is_marked(metadata: Object, marks: Sequence[str], word: str) -> bool:
    texts = [metadata.get(kind) or {} for kind in ("labels", "annotations")]
    return any(text.get(mark) == word for text in texts for mark in marks)


def _find_contradictions(workload: Workload, environment: Environment) -> tuple[str, ...]:
    """Contradictions between the user's own values and the slice, each once."""
    found = (
        problem
        for container in _containers(workload, environment)
        for entry in container.entries()
        if entry["name"] in container.wanted and "valueFrom" not in entry
        for problem in _check_value(
            entry["name"], str(entry.get("value") or ""), container.wanted[entry["name"]]
        )
    )
    return tuple(dict.fromkeys(found))


def _check_value(name: str, given: str, wanted: Value) -> Iterator[str]:
    if "$(" in given:
        return  # it refers to another variable, whose value is not known here
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


def build_patch(workload: Workload, environment: Environment) -> Iterator[Operation]:
    """The operations that add missing variables and update injected ones."""
    containers = _containers(workload, environment)
    for container in containers:
        yield from container.patch()
    if not workload.path:
        return
    # With this label the webhook also reviews the template's Pods. The admission policy of
    # infra/kubernetes/components/inject-env requires it on templates.
    if not _is_marked(workload.metadata, MARKS, ENABLED):
        yield from _mark_template(workload, ENABLED)
    base = f"{workload.path}/metadata"
    if environment.variables:
        written = {key: digest for one in containers for key, digest in one.written()}
        note = json.dumps(written, separators=(",", ":"), sort_keys=True)
        yield from set_keys(workload.metadata, base, "annotations", {INJECTED: note})
    elif containers:  # those that the annotation names, so there is an annotation to remove
        yield {"op": "remove", "path": f"{base}/annotations/{escape(INJECTED)}"}


def _annotate_problems(workload: Workload, environment: Environment) -> Iterator[Operation]:
    """Write on a template why nothing is injected.

    If a Pod has this annotation, `read` reports it as the Pod's problem, so that nothing is injected
    there either.
    """
    if not workload.path:
        return
    base = f"{workload.path}/metadata"
    if environment.problems and not environment.variables:
        reason = {NOT_INJECTED: "; ".join(environment.problems)}
        yield from set_keys(workload.metadata, base, "annotations", reason)
    elif NOT_INJECTED in (workload.metadata.get("annotations") or {}):
        yield {"op": "remove", "path": f"{base}/annotations/{escape(NOT_INJECTED)}"}


def _mark_template(workload: Workload, word: str) -> Iterator[Operation]:
    base = f"{workload.path}/metadata"
    if not workload.metadata:
        yield {"op": "add", "path": base, "value": {}}
    yield from set_keys(workload.metadata, base, "labels", {INJECT: word})


def _without_injected(workload: Workload) -> Workload:
    """A template as its user wrote it: a list of hosts that was injected is not the user's own."""
    injected = _read_injected(workload)
    if not (workload.path and injected):
        return workload
    spec = dict(workload.spec)
    for part in CONTAINER_LISTS:
        spec[part] = [
            {
                **one,
                "env": [
                    entry for entry in _list_entries(one) if not _is_injected(injected, one, entry)
                ],
            }
            for one in spec.get(part) or []
        ]
    return replace(workload, spec=spec)


def _containers(workload: Workload, environment: Environment) -> list[_Container]:
    """The containers that get variables and, in a template, those that got some before.

    A StatefulSet with ``replicas: 0`` (``workers`` is ``None``) gets no variables. Those that it got
    before are kept if its template has never selected a topology: they follow from the former replicas,
    and ``kubectl scale`` does not send the template for a review. They are removed if it selects a
    topology, which tells the review of each Pod the number of hosts, or if it selected one before, from
    which they follow.
    """
    injected = _read_injected(workload)
    wanted = dict(environment.variables)
    has_topology = selects_topology(workload.spec) or any(
        key.endswith("/TPU_TOPOLOGY") for key in injected
    )
    if workload.path and (workload.workers is not None or has_topology):
        names = {key.partition("/")[0] for key in injected}
        for part in CONTAINER_LISTS:
            for place, one in enumerate(workload.spec.get(part) or []):
                if one.get("name") in names:
                    wanted.setdefault(f"{workload.path}/spec/{part}/{place}", {})
    return [
        _Container(pointer, _get_container(workload, pointer), found, injected, bool(workload.path))
        for pointer, found in wanted.items()
    ]


@dataclass(frozen=True)
class _Container:
    """A container in a workload: its variables before and after the patch.

    ``pointer`` is the JSON pointer to the ``document``. ``wanted`` are the variables that it should
    have, ``injected`` the digests of those that were injected before, by container and name.
    ``is_template``: it is a container of a Pod template, not of a Pod.
    """

    pointer: str
    document: Object
    wanted: Mapping[str, Value]
    injected: Mapping[str, str]
    is_template: bool

    def entries(self) -> Iterable[dict[str, Any]]:
        """The variables after the patch. If a name has several entries, the last one counts."""
        return {new["name"]: new for _, new in self._changes if new is not None}.values()

    def patch(self) -> Iterator[Operation]:
        """The operations from the current to the desired entries."""
        changes, path = self._changes, f"{self.pointer}/env"
        if self._removes_duplicates:
            # One operation: to remove many entries one by one, an API server needs quadratic time.
            left = [new for _, new in changes if new is not None]
            yield {"op": "replace", "path": path, "value": left}
            return
        has_list = bool(self.document.get("env"))
        for place, (old, new) in enumerate(changes):
            if old is not None and new is not None and old != new:
                yield {"op": "replace", "path": f"{path}/{place}", "value": new}
        for place, (_, new) in reversed(list(enumerate(changes))):
            if new is None:
                yield {"op": "remove", "path": f"{path}/{place}"}
        for old, new in changes:
            if old is not None:
                continue
            if has_list:
                yield {"op": "add", "path": f"{path}/-", "value": new}
            else:
                yield {"op": "add", "path": path, "value": [new]}
                has_list = True

    def written(self) -> Iterator[tuple[str, str]]:
        """The injected variables after the patch, with their digests.

        A variable that the user has set to the same value is the user's.
        """
        for entry in self.entries():
            value, old = self.wanted.get(entry["name"]), self._effective.get(entry["name"])
            is_users = old == entry and not self._is_injected(entry)
            if value is not None and entry == render(entry["name"], value) and not is_users:
                yield _key(self.document, entry), _digest(entry)

    @cached_property
    def _existing(self) -> list[dict[str, Any]]:
        return _list_entries(self.document)

    @cached_property
    def _effective(self) -> Mapping[str, dict[str, Any]]:
        """The last entry of each name, which a process sees."""
        return {entry["name"]: entry for entry in self._existing}

    @cached_property
    def _new_effective(self) -> Mapping[str, dict[str, Any] | None]:
        """The new value of each effective entry."""
        return {name: self._new_effective_entry(entry) for name, entry in self._effective.items()}

    @cached_property
    def _changes(self) -> list[tuple[dict[str, Any] | None, dict[str, Any] | None]]:
        """Each variable before and after: existing ones first, then new ones."""
        new = [render(name, value) for name, value in self.wanted.items()]
        return [
            *((old, self._new_entry(old)) for old in self._existing),
            *((None, one) for one in new if one["name"] not in self._effective),
        ]

    @property
    def _removes_duplicates(self) -> bool:
        """Whether the patch removes entries that a later entry of the same name overrides."""
        return any(
            new is None and old is not self._effective[old["name"]]
            for old, new in self._changes
            if old is not None
        )

    def _new_entry(self, old: dict[str, Any]) -> dict[str, Any] | None:
        """The new entry in an entry's place; ``None``: it is removed.

        If a name has several entries, a process sees the last one, the effective one. If the patch
        removes or changes that, it also removes the earlier ones that count as not set or were identical
        to it: one of them would take effect now, or when a later review removes the last one. Any other
        one is a user's value and is kept.
        """
        name = old["name"]
        effective, after = self._effective[name], self._new_effective[name]
        if old is effective:
            return after
        if after == effective:
            return old
        return None if old == effective or self._is_unset(old) else old

    def _new_effective_entry(self, old: dict[str, Any]) -> dict[str, Any] | None:
        """The new entry for an effective one; ``None``: it is removed."""
        is_injected = self._is_injected(old)
        value = self.wanted.get(old["name"])
        if value is None:
            # A Pod alone may not show why its template got a variable, so it keeps the variable.
            return None if is_injected and self.is_template else old
        if is_injected and "valueFrom" in old and not self.is_template:
            return old  # its worker is numbered by a field that only the Job or the like shows
        return render(old["name"], value) if is_injected or self._is_unset(old) else old

    def _is_injected(self, entry: Mapping[str, Any]) -> bool:
        return _is_injected(self.injected, self.document, entry)

    @cached_property
    def _names_of_other_hosts(self) -> frozenset[str]:
        """The variables whose desired value names other hosts than this one."""
        return frozenset(
            name
            for name, value in self.wanted.items()
            if name in _NAMING_HOSTS and isinstance(value, str) and LOCALHOST not in value
        )

    def _is_unset(self, entry: Mapping[str, Any]) -> bool:
        """Whether an entry counts as not set: it is empty, or ``localhost`` for several hosts."""
        if "valueFrom" in entry or entry["name"] not in self.wanted:
            return False
        given = str(entry.get("value") or "")
        return not given or (entry["name"] in self._names_of_other_hosts and LOCALHOST in given)


def _read_injected(workload: Workload) -> Mapping[str, str]:
    """The digests in the annotation; empty if it cannot be parsed."""
    note = (workload.metadata.get("annotations") or {}).get(INJECTED, "{}")
    try:
        found = json.loads(note)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_injected(injected: Mapping[str, str], container: Object, entry: Mapping[str, Any]) -> bool:
    """Whether an entry of a container is as this webhook has injected it."""
    digest = injected.get(_key(container, entry))
    return digest is not None and digest == _digest(entry)


def _key(container: Object, entry: Mapping[str, Any]) -> str:
    return f"{container.get('name')}/{entry.get('name')}"


def _list_entries(container: Object) -> list[dict[str, Any]]:
    return [_as_written(entry) for entry in container.get("env") or []]


def _as_written(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entry without fields that the API server defaults."""
    field = (entry.get("valueFrom") or {}).get("fieldRef")
    if not field or field.get("apiVersion") != "v1":
        return dict(entry)
    path = {name: value for name, value in field.items() if name != "apiVersion"}
    return {**entry, "valueFrom": {"fieldRef": path}}


def _digest(entry: Mapping[str, Any]) -> str:
    raw = json.dumps(entry, separators=(",", ":"), sort_keys=True).encode()
    return hashlib.sha256(raw).hexdigest()[:8]


def _get_container(workload: Workload, pointer: str) -> Object:
    part, _, place = pointer.removeprefix(f"{workload.path}/spec/").partition("/")
    found: Object = workload.spec[part][int(place)]
    return found


def read_injection(environment: Mapping[str, str]) -> InjectionSettings:
    """The webhook's settings from the environment. Raises `SettingsError`."""
    return InjectionSettings(
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
