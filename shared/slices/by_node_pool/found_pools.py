"""Read a node pool: its owner, its state, its error.

A pool is the API's document, with enums by name. Pools of TPU Provisioner are read like pools of this
system.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from shared.base.documents import Document, read_mapping, read_mappings, read_text
from shared.base.names import JOBSET_KIND, POOL_LABEL
from shared.base.reasons import Reason
from shared.base.topology import count_chips
from shared.ports.error_reasons import classify
from shared.slices.by_node_pool import desired_pool
from shared.slices.classes import CLASS_ANNOTATION, Place, parse_place
from shared.slices.provider import ASKED_AT, DesiredSlice, NameConflict, Slice, SliceState
from shared.slices.units import Unit

_OLD_JOBSET_LABEL = "provisioner-nodepool-id"
RELEASE_LABEL = "tpu-functions.dev/release-after"
"""The release deadline, in seconds since 1970. A label of the Nodes: GKE changes those in place, while
a change to the labels of the cloud's resources recreates the Nodes."""

_STATES = {
    "PROVISIONING": SliceState.PROVISIONING,
    "RECONCILING": SliceState.PROVISIONING,
    "RUNNING": SliceState.READY,
    "RUNNING_WITH_ERROR": SliceState.FAILED,
    "ERROR": SliceState.FAILED,
    "STOPPING": SliceState.DELETING,
}


def is_managed(pool: Mapping[str, Any]) -> bool:
    """Whether a pool was created for a unit, by this system or by TPU Provisioner. The name of a pool
    with `UNIT_LABEL` must follow from its labels."""
    labels = labels_of(pool)
    is_ours = labels.get(desired_pool.MANAGER_LABEL) == desired_pool.MANAGER and _owner(labels)
    is_proved = desired_pool.UNIT_LABEL not in labels or read_unit(pool).slice_name == pool["name"]
    return bool(is_ours and is_proved)


def read_slice(pool: Mapping[str, Any]) -> Slice:
    """Read a managed pool as a slice. GKE does not report whether its Nodes are ready."""
    labels, status = labels_of(pool), pool.get("status")
    machine_type = (pool.get("config") or {}).get("machineType")
    return Slice(
        name=pool["name"],
        unit=read_unit(pool),
        hash=labels.get(desired_pool.HASH_LABEL, ""),
        state=_STATES.get(str(status), SliceState.PROVISIONING),
        message=_find_message(pool),
        is_self_healing=status == "RUNNING_WITH_ERROR",
        release_after=_parse_deadline(labels.get(RELEASE_LABEL, "")),
        chips=count_chips(str(machine_type), int(pool.get("initialNodeCount") or 0)),
        place=read_place(pool),
        class_name=labels.get(CLASS_ANNOTATION, ""),
        asked=_parse_deadline(labels.get(ASKED_AT, "")),
        has_vms=status not in ("PROVISIONING", "ERROR"),
        was_ready=status not in ("PROVISIONING", "ERROR", "STOPPING"),
        refusal=_find_refusal(pool) if status == "ERROR" else None,
        raw=pool,
    )


def read_place(pool: Document) -> Place:
    """The candidate that a pool's fields name."""
    config = read_mapping(pool, "config")
    named = read_mapping(config, "reservationAffinity").get("values")
    model = "SPOT" if config.get("spot") else "FLEX_START" if config.get("flexStart") else ""
    return parse_place(
        {
            "zone": next(iter(pool.get("locations") or ()), ""),
            "provisioningModel": model,
            "reservation": str(named[0]) if named else "",
            "maxRunDuration": config.get("maxRunDuration"),
        }
    )


def _find_refusal(pool: Document) -> tuple[Reason, str] | None:
    """Why GKE could not create a pool: as its conditions' codes, or its message, say (a stockout is the
    error of the creation after minutes: one report)."""
    message = _find_message(pool)
    codes = " ".join(read_text(one, "code") for one in read_mappings(pool, "conditions"))
    reason = classify(0, "", f"{message} {codes}").reason
    return (reason, message) if reason is not None else None


def read_found(pool: Mapping[str, Any], desired: DesiredSlice) -> Slice | NameConflict:
    """A pool that has a name of the desired slice: the Job's slice, or a conflict."""
    if not is_managed(pool):
        return NameConflict(desired.name, "a node pool that was not created for a workload")
    found = read_slice(pool)
    if found.unit != desired.unit:
        prefix = f"{found.unit.namespace}/"
        return NameConflict(desired.name, f"the node pool of {found.unit.show(prefix)}")
    # Pools of TPU Provisioner use another hash: compare the fields instead.
    is_theirs = found.name != desired.name
    hash_ = "" if is_theirs and _is_equivalent(desired.body, pool) else found.hash
    labels = {**labels_of(pool), POOL_LABEL: found.name}  # the pool may lack a label
    return replace(found, hash=hash_, is_selected=desired.selection.matches(labels))


def older_name(unit: Unit) -> str:
    """The name of a Job's pool by TPU Provisioner's rule, with five digits of the Job's key."""
    return f"{unit.owner[:34]}-{unit.key[:5]}".replace(".", "-")


def _is_equivalent(desired: Mapping[str, Any], pool: Mapping[str, Any]) -> bool:
    """Whether a pool has the desired properties that a Pod can observe."""
    placement, found = desired.get("placementPolicy") or {}, pool.get("placementPolicy") or {}
    is_placed = all(found.get(key) == value for key, value in placement.items())
    return is_placed and _properties(desired) == _properties(pool)


def _properties(pool: Mapping[str, Any]) -> tuple[Any, ...]:
    config = pool.get("config") or {}
    reservation = config.get("reservationAffinity") or {}
    return (
        int(pool.get("initialNodeCount") or 0),
        list(pool.get("locations") or ()),
        config.get("machineType"),
        bool(config.get("spot")),
        list(reservation.get("values") or ()),
    )


def labels_with_deadline(pool: Mapping[str, Any], release_after: datetime | None) -> dict[str, str]:
    """The labels of a pool's Nodes with the release deadline, or without one."""
    labels = {key: value for key, value in labels_of(pool).items() if key != RELEASE_LABEL}
    if release_after is not None:
        labels[RELEASE_LABEL] = str(int(release_after.timestamp()))
    return labels


def labels_of(pool: Mapping[str, Any]) -> Mapping[str, str]:
    """The labels that a pool gives its Nodes."""
    labels: Mapping[str, str] = (pool.get("config") or {}).get("labels") or {}
    return labels


def _owner(labels: Mapping[str, str]) -> str:
    return labels.get(desired_pool.JOBSET_LABEL) or labels.get(_OLD_JOBSET_LABEL, "")


def read_unit(pool: Mapping[str, Any]) -> Unit:
    """The unit by the labels of a pool.

    TPU Provisioner copies a Pod's labels over those of the JobSet. Then the pool's name, which follows
    from JobSet and Job, proves another part of the Job's name to be the JobSet's.
    """
    labels = labels_of(pool)
    namespace = labels.get(f"{desired_pool.PARENT}namespace") or "default"
    job = labels.get(f"{desired_pool.PARENT}name", "")
    own = labels.get(desired_pool.JOBSET_NAMESPACE_LABEL) or namespace
    if desired_pool.UNIT_LABEL in labels:
        kind, _, member = labels[desired_pool.UNIT_LABEL].partition(".")
        return Unit(kind, own, _owner(labels), member.replace("_", "/"))
    found = Unit(JOBSET_KIND, own, _owner(labels), job)
    words = job.split("-")
    others = (
        Unit(JOBSET_KIND, namespace, "-".join(words[:end]), job)
        for end in range(len(words) - 2, 0, -1)
    )
    return next((one for one in (found, *others) if older_name(one) == pool["name"]), found)


def _find_message(pool: Mapping[str, Any]) -> str:
    """GKE's messages about a pool's failure, each once."""
    messages = [pool.get("statusMessage") or ""]
    for condition in pool.get("conditions") or ():
        message = condition.get("message") or condition.get("code") or ""
        messages += [message] if message not in messages[0] else []
    return "; ".join(dict.fromkeys(text for text in messages if text))


def _parse_deadline(text: str) -> datetime | None:
    if not re.fullmatch("[0-9]{1,11}", text):
        return None
    return datetime.fromtimestamp(int(text), UTC)
