"""The variables of a workload's containers, before and after an injection.

A variable is written if it is missing, counts as not set (`ContainerEnv._is_unset`), or was injected
before: then the annotation `INJECTED` of the template has the digest of its present value. An injected
variable that the container should not have is removed from a template, and from a Pod whose topology is
known: a queue may have selected it after the review of the template. Any other variable is the user's,
and is kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from shared.base.pods import CONTAINER_LISTS
from webhook.tpu_env.admission import Object, Operation
from webhook.tpu_env.variables import (
    LISTS,
    LOCALHOST,
    MAX_CONTAINERS,
    Environment,
    Value,
    read_field,
    render,
    selects_topology,
)
from webhook.tpu_env.workloads import INJECTED, Workload

_NAMING_HOSTS = (*LISTS, "JAX_COORDINATOR_ADDRESS")


def without_injected(workload: Workload) -> Workload:
    """A workload as its user wrote it: a list of hosts that was injected is not the user's own."""
    injected = _read_injected(workload)
    if not (_shows_all(workload) and injected):
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


def build_container_envs(workload: Workload, environment: Environment) -> list[ContainerEnv]:
    """The variables before and after the patch, of each container that gets variables and, in a
    template, of those that got some before.

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
    if workload.has_template and (workload.workers is not None or has_topology):
        names = {key.partition("/")[0] for key in injected}
        for part in CONTAINER_LISTS:
            for place, one in enumerate(workload.spec.get(part) or []):
                if one.get("name") in names:
                    wanted.setdefault(f"{workload.path}/spec/{part}/{place}", {})
    return [
        ContainerEnv(pointer, _get_container(workload, pointer), found, injected, workload)
        for pointer, found in wanted.items()
    ]


def note_injected(envs: Sequence[ContainerEnv]) -> str:
    """The value of `INJECTED` after the patch.

    In a Pod the digests of its template stay, because what the template has may not be in the patch.
    """
    kept = next((one.injected for one in envs if not one.workload.has_template), {})
    written = {key: digest for one in envs for key, digest in one.written()}
    return json.dumps({**kept, **written}, separators=(",", ":"), sort_keys=True)


def _shows_all(workload: Workload) -> bool:
    """Whether its variables follow from a workload alone: not those of a Pod without a topology."""
    return workload.has_template or selects_topology(workload.spec)


@dataclass(frozen=True)
class ContainerEnv:
    """A container in a workload: its variables before and after the patch.

    ``pointer`` is the JSON pointer to the ``document``. ``wanted`` are the variables that it should
    have, ``injected`` the digests of those that were injected before, by container and name.
    """

    pointer: str
    document: Object
    wanted: Mapping[str, Value]
    injected: Mapping[str, str]
    workload: Workload

    def entries(self) -> Iterable[dict[str, Any]]:
        """The variables after the patch. If a name has several entries, the last one counts."""
        return {new["name"]: new for _, new in self._changes if new is not None}.values()

    def patch(self) -> Iterator[Operation]:
        """The operations from the current to the desired entries."""
        changes, path = self._changes, f"{self.pointer}/env"
        if any(
            new is None and old is not None and old is not self._effective[old["name"]]
            for old, new in changes
        ):
            # Entries that a later one of their name overrides are removed. One operation: to remove many
            # one by one, an API server needs quadratic time.
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
    def _shows_all(self) -> bool:
        return _shows_all(self.workload)

    @cached_property
    def _existing(self) -> list[dict[str, Any]]:
        return _list_entries(self.document)

    @cached_property
    def _effective(self) -> Mapping[str, dict[str, Any]]:
        """The last entry of each name, which a process sees."""
        return {entry["name"]: entry for entry in self._existing}

    @cached_property
    def _changes(self) -> list[tuple[dict[str, Any] | None, dict[str, Any] | None]]:
        """Each variable before and after: existing ones first, then new ones. ``None`` is no entry.

        Only the last entry of a name takes effect; mostly it is the only one. If the patch changes or
        removes it, earlier ones that are identical to it or count as not set are removed, too:
        otherwise, one of them would take effect when the last one is removed, now or later.
        """
        after = {name: self._decide(entry) for name, entry in self._effective.items()}
        changes: list[tuple[dict[str, Any] | None, dict[str, Any] | None]] = []
        for old in self._existing:
            effective, new = self._effective[old["name"]], after[old["name"]]
            if old is not effective:
                is_kept = new == effective or not (old == effective or self._is_unset(old))
                new = old if is_kept else None
            changes.append((old, new))
        for name, value in self.wanted.items():
            if name not in self._effective:
                changes.append((None, render(name, value)))
        return changes

    def _decide(self, old: dict[str, Any]) -> dict[str, Any] | None:
        """The new entry for an effective one; ``None``: it is removed."""
        is_injected = self._is_injected(old)
        value = self.wanted.get(old["name"])
        if value is None:
            return None if is_injected and self._shows_all else old
        if is_injected and "valueFrom" in old and not self.workload.has_template:
            is_right = read_field(old, self.workload.metadata) == value
            if is_right or not self._shows_all:
                return old
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
    """The digests in the annotation; empty if it cannot be parsed.

    kubectl apply removes it with a user's last annotation of the template: then the stored one counts.
    """
    both = (holder.get("annotations") or {} for holder in (workload.metadata, workload.stored))
    note = next((one[INJECTED] for one in both if INJECTED in one), "{}")
    try:
        found = json.loads(note)
    except (ValueError, RecursionError):
        return {}
    return _with_renamed(found, workload.spec) if isinstance(found, dict) else {}


def _with_renamed(injected: Mapping[str, str], spec: Object) -> Mapping[str, str]:
    """The digests, also under the name of a new container that has all entries of one that is gone."""
    containers = [one for part in CONTAINER_LISTS for one in spec.get(part) or []]
    noted: dict[str, dict[str, str]] = {}
    for key, digest in injected.items():
        container, _, name = key.partition("/")
        noted.setdefault(container, {})[name] = digest
    gone = noted.keys() - {one.get("name") for one in containers}
    new = [one for one in containers if one.get("name") not in noted]
    if not gone or len(noted) > MAX_CONTAINERS:
        return injected
    found = dict(injected)
    for one in new:
        digests = {entry.get("name"): _digest(entry) for entry in _list_entries(one)}
        for theirs in (noted[name] for name in gone):
            if all(digests.get(name) == digest for name, digest in theirs.items()):
                found |= {f"{one.get('name')}/{name}": digest for name, digest in theirs.items()}
    return found


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
