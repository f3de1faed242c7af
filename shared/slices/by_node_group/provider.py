"""The provider of slices that are TPUNodeGroups, and how a group is read as a slice."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from shared.base.documents import (
    find_condition,
    read_mapping,
    read_mappings,
    read_number,
    read_text,
)
from shared.base.fields import is_yes
from shared.base.names import KIND, PAUSED_ANNOTATION
from shared.base.reasons import ORDER, PROGRESS, VM_LOSSES, Reason, find_advice
from shared.base.timestamps import find_time, guess_time, render_time
from shared.base.topology import count_chips
from shared.node_groups import recovery
from shared.node_groups.status import CONDITION_OF, MIG, State, Status, Type, parse
from shared.ports.gce.calls import Gce
from shared.ports.kubernetes.cluster import Cluster
from shared.slices.by_node_group.desired_group import (
    HASH_ANNOTATION,
    TEMPLATE_HASH_ANNOTATION,
    build_desired_slice,
    read_legacy_class,
)
from shared.slices.by_node_group.marks import (
    owner_label,
    read_place,
    read_unit,
)
from shared.slices.classes import CLASS_ANNOTATION, Place, SliceClass
from shared.slices.provider import ASKED_AT, DesiredSlice, NameConflict, Slice, SliceState
from shared.slices.units import Demand, Unit

RELEASE_ANNOTATION = "tpu-functions.dev/release-after"
LOST_AFTER = timedelta(minutes=10)
"""A Node that was deleted may be registered again within this time."""
_NODE_LOSSES = frozenset({Reason.NODE_DELETED, Reason.NODE_JOIN_TIMEOUT})
"""Reasons of a VM that runs without a Node. No MIG repairs it."""


class GroupSlices:
    """The groups in the namespaces of their units: a `shared.slices.provider.Provider`."""

    noun = KIND
    event_prefix = KIND
    is_gke = False
    concurrency_limit: int | None = None

    def __init__(self, cluster: Cluster, gce: Gce, now: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._gce = gce
        self._now = now

    def find_legacy_class(self, name: str) -> SliceClass | None:
        return read_legacy_class(name, self._cluster.get_jobset_options())

    def build_desired(
        self, demand: Demand, unit: Unit, cls: SliceClass, place: Place
    ) -> DesiredSlice:
        return build_desired_slice(demand, unit, cls, place)

    def find(self, desired: DesiredSlice) -> Slice | NameConflict | None:
        raw = self._cluster.find_group(desired.unit.namespace, desired.name)
        if raw is None:
            return None
        found = read_slice(raw, self._now())
        if found is None:
            return NameConflict(desired.name, "a TPUNodeGroup that was not created for a workload")
        if found.unit != desired.unit:
            return NameConflict(desired.name, f"the TPUNodeGroup of {found.unit.shown}")
        found = replace(found, is_selected=is_selected(raw, desired))
        if has_outdated_template(raw, desired):
            return replace(found, is_self_healing=False)
        return found

    def has_vm(self, existing: Slice) -> bool:
        place, known = existing.place, parse(existing.raw.get("status")).resources.get(MIG)
        if place is None or known is None:
            return True
        found = self._gce.find_mig(place.project, place.zone, known.name)
        return found is not None and found.missing != found.target_size

    def get(self, namespace: str, name: str) -> Slice | None:
        raw = self._cluster.find_group(namespace, name)
        return None if raw is None else read_slice(raw, self._now())

    def list_by_owner(self, kind: str, namespace: str, owner: str) -> list[Slice]:
        found = self._read(self._cluster.list_slice_groups(namespace, owner_label(owner)))
        return [one for one in found if one.unit.owner_key == (kind, namespace, owner)]

    def list_all(self, namespace: str = "", *, with_nodes: bool = True) -> list[Slice]:  # noqa: ARG002 - the status has it
        return self._read(self._cluster.list_slice_groups(namespace))

    def create(self, desired: DesiredSlice) -> None:
        self._cluster.create_group(desired.body)

    def delete(self, existing: Slice) -> bool:
        return self._cluster.delete_group(existing.raw)

    def set_release_deadline(self, existing: Slice, release_after: datetime | None) -> None:
        text = render_time(release_after) if release_after else None
        self._cluster.annotate_group(existing.raw, {RELEASE_ANNOTATION: text})

    def _read(self, groups: Iterable[Mapping[str, Any]]) -> list[Slice]:
        now = self._now()
        return [found for raw in groups if (found := read_slice(raw, now)) is not None]


def read_slice(raw: Mapping[str, Any], now: datetime) -> Slice | None:
    """Read a group as a slice; ``None`` if it was not created for a unit (`marks.read_unit`)."""
    unit = read_unit(raw["metadata"])
    if unit is None:
        return None
    annotations = raw["metadata"].get("annotations") or {}
    state, message, since = _read_state(raw)
    spec, status = read_mapping(raw, "spec"), raw.get("status") or {}
    return Slice(
        name=raw["metadata"]["name"],
        unit=unit,
        hash=annotations.get(HASH_ANNOTATION, ""),
        state=state,
        message=message,
        has_ready_nodes=bool((status.get("nodeSummary") or {}).get("ready")),
        is_self_healing=not _is_lost(raw, since, now),
        release_after=guess_time(annotations.get(RELEASE_ANNOTATION)),
        since=since,
        chips=count_chips(
            read_text(read_mapping(spec, "instanceConfig"), "machineType"),
            read_number(spec, "nodeCount"),
        ),
        place=read_place(spec),
        class_name=annotations.get(CLASS_ANNOTATION, ""),
        created=guess_time(raw["metadata"].get("creationTimestamp")),
        asked=guess_time(annotations.get(ASKED_AT)),
        was_ready=_was_complete(raw),
        **_read_creation(raw),
        raw=raw,
    )


def _read_creation(raw: Mapping[str, Any]) -> dict[str, Any]:
    """How far the creation of a group is: `Slice.has_vms`, ``refusal`` and ``can_be_given_up``. A paused
    group is left as it is.

    In BULK mode, Compute Engine reports a lack of capacity while it goes on trying (documented; when it
    first does is not): the group waits, and is not refused.
    """
    known = parse(raw.get("status"))
    counts = known.counts
    if known.completed_at or counts.running or counts.joined or known.is_true(Type.MIG_READY):
        return {"has_vms": True}
    if is_yes(str((raw["metadata"].get("annotations") or {}).get(PAUSED_ANNOTATION, ""))):
        return {"has_vms": False}
    reason, words = _find_refusal(known)
    is_bulk = read_text(read_mapping(raw, "spec"), "targetSizePolicyMode") == "BULK"
    is_short = is_bulk and reason is Reason.INSUFFICIENT_CAPACITY
    mig = known.resources.get(MIG)
    is_accepted = mig is not None and mig.state is State.READY
    return {
        "has_vms": False,
        "refusal": (reason, words) if reason is not None and not is_short else None,
        "can_be_given_up": is_accepted and (reason is None or is_short),
    }


def _find_refusal(known: Status) -> tuple[Reason | None, str]:
    """The first error of an API about a resource of a group, and its words without the advice."""
    for kind in CONDITION_OF.values():
        found = known.conditions.get(kind)
        if found is not None and not found.is_true and found.reason in ORDER:
            return Reason(found.reason), found.message.replace(
                find_advice(found.reason), ""
            ).strip()
    return None, ""


def is_selected(raw: Mapping[str, Any], desired: DesiredSlice) -> bool:
    """Whether the Pod's node selector matches the Nodes of a group. They may lack a label if the
    template has changed."""
    return desired.selection.matches(raw["spec"].get("nodeLabels") or {})


def has_outdated_template(raw: Mapping[str, Any], desired: DesiredSlice) -> bool:
    """Whether a group that was never complete was built from an older template, which may name what
    is never available."""
    before = (raw["metadata"].get("annotations") or {}).get(TEMPLATE_HASH_ANNOTATION)
    now = desired.body["metadata"]["annotations"][TEMPLATE_HASH_ANNOTATION]
    is_paused = _ready(raw).get("reason") == Reason.PAUSED
    return before not in (None, now) and not _was_complete(raw) and not is_paused


def _read_state(raw: Mapping[str, Any]) -> tuple[SliceState, str, datetime | None]:
    """The state, the message of its failure, and its time: that of the last transition or loss."""
    metadata, ready = raw["metadata"], _ready(raw)
    if metadata.get("deletionTimestamp"):
        return SliceState.DELETING, "", find_time(metadata["deletionTimestamp"])
    since = guess_time(ready.get("lastTransitionTime") or metadata.get("creationTimestamp"))
    if ready.get("status") == "True":
        return SliceState.READY, "", since
    reason = ready.get("reason", Reason.PROVISIONING)
    is_starting = reason == Reason.NODE_NOT_READY and not _was_complete(raw)
    if reason in PROGRESS or is_starting:
        return SliceState.PROVISIONING, "", since
    since = _find_loss_time(raw, reason) or since
    return SliceState.FAILED, f"{reason}: {ready.get('message', '')}", since


def _find_loss_time(raw: Mapping[str, Any], reason: str) -> datetime | None:
    """When the last host was lost, if Ready reports a loss and the status has its time.

    The slice may have failed earlier for another reason: then Ready's transition is older.
    """
    losses = next((one for one in (_NODE_LOSSES, VM_LOSSES) if reason in one), frozenset())
    pending = read_mappings(raw.get("status") or {}, "pending")
    times = (guess_time(one.get("since")) for one in pending if read_text(one, "why") in losses)
    return max((one for one in times if one is not None), default=None)


def _ready(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    return find_condition(raw.get("status") or {}, "Ready")


def _was_complete(raw: Mapping[str, Any]) -> bool:
    return bool((raw.get("status") or {}).get("completedAt"))


def _is_lost(raw: Mapping[str, Any], since: datetime | None, now: datetime) -> bool:
    """Whether nothing recreates the lost VMs or Nodes: neither the MIG nor a step."""
    reason = _ready(raw).get("reason")
    if reason == Reason.RESOURCE_LOST:
        return True
    if reason in _NODE_LOSSES:
        return since is not None and now - since >= LOST_AFTER and _was_complete(raw)
    spec = read_mapping(raw, "spec")
    model = read_text(read_mapping(spec, "instanceConfig"), "provisioningModel")
    is_bulk = read_text(spec, "targetSizePolicyMode") == "BULK"
    if reason not in VM_LOSSES or recovery.is_repaired_by_mig(model, is_bulk=is_bulk):
        return False
    restored = recovery.find_restore_time(model, reason)
    return not restored or (since is not None and now - since >= restored)
