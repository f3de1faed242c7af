"""What a node pool says of itself: whose it is, where it stands, what its trouble is.

A pool is the API's document of it, its enums by name. Pools that TPU Provisioner has made read as those
of this system do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from shared.slices.by_node_pool.bodies import (
    HASH_LABEL,
    JOBSET_LABEL,
    JOBSET_NAMESPACE_LABEL,
    MANAGER,
    MANAGER_LABEL,
    PARENT,
)
from shared.slices.jobsets import job_key
from shared.slices.provider import Clash, Owner, Slice, SliceState, Wanted

_OLD_JOBSET_LABEL = "provisioner-nodepool-id"
RELEASE_LABEL = "tpu-functions.dev/release-after"
"""The stamp, in seconds since 1970. A label of the Nodes: GKE changes those in place, while a change
to the labels of the cloud's resources makes the Nodes anew."""

_STATES = {
    "PROVISIONING": SliceState.COMING,
    "RECONCILING": SliceState.COMING,
    "RUNNING": SliceState.READY,
    "RUNNING_WITH_ERROR": SliceState.TROUBLED,
    "ERROR": SliceState.TROUBLED,
    "STOPPING": SliceState.GOING,
}


def is_managed(pool: Mapping[str, Any]) -> bool:
    """Whether a pool was made for a JobSet, by this system or by TPU Provisioner."""
    labels = labels_of(pool)
    return labels.get(MANAGER_LABEL) == MANAGER and bool(_jobset(labels))


def read_slice(pool: Mapping[str, Any]) -> Slice:
    """A managed pool as a slice; whether its Nodes are ready is not known to GKE."""
    labels, status = labels_of(pool), pool.get("status")
    return Slice(
        name=pool["name"],
        owner=_owner(labels),
        hash=labels.get(HASH_LABEL, ""),
        state=_STATES.get(str(status), SliceState.COMING),
        words=_words(pool),
        mends_itself=status == "RUNNING_WITH_ERROR",
        release_after=_stamp(labels.get(RELEASE_LABEL, "")),
        raw=pool,
    )


def read_found(pool: Mapping[str, Any], wanted: Wanted) -> Slice | Clash:
    """The pool that has a wanted one's name: the Job's slice, or something of somebody else's."""
    if not is_managed(pool):
        return Clash(wanted.name, "a node pool that was not made for a JobSet")
    found = read_slice(pool)
    theirs = found.owner
    if theirs != wanted.owner:
        return Clash(
            wanted.name,
            f"the node pool of Job {theirs.namespace}/{theirs.job} of JobSet {theirs.jobset}",
        )
    return found


def older_name(owner: Owner) -> str:
    """What TPU Provisioner calls the pool of a Job: five digits of the Job's key are in it."""
    key = job_key(owner.namespace, owner.job)
    return f"{owner.jobset[:34]}-{key[:5]}".replace(".", "-")


def read_older(pool: Mapping[str, Any], wanted: Wanted) -> Slice | None:
    """The pool that has the name by TPU Provisioner: the Job's slice, or ``None`` if it is another's.

    Its hash is over other things. Where it has all that the Pod asks for, it says nothing here.
    """
    if not is_managed(pool):
        return None
    found = read_slice(pool)
    if found.owner != wanted.owner:
        return None
    return replace(found, hash="") if _is_as(wanted.body, pool) else found


def _is_as(wanted: Mapping[str, Any], pool: Mapping[str, Any]) -> bool:
    """Whether a pool's Nodes are those of a wanted one, as far as a Pod sees it."""
    placement, found = wanted.get("placementPolicy") or {}, pool.get("placementPolicy") or {}
    is_placed = all(found.get(key) == value for key, value in placement.items())
    return is_placed and _properties(wanted) == _properties(pool)


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


def stamped_labels(pool: Mapping[str, Any], release_after: datetime | None) -> dict[str, str]:
    """The labels of a pool's Nodes with the stamp, or without it."""
    labels = {key: value for key, value in labels_of(pool).items() if key != RELEASE_LABEL}
    if release_after is not None:
        labels[RELEASE_LABEL] = str(int(release_after.timestamp()))
    return labels


def labels_of(pool: Mapping[str, Any]) -> Mapping[str, str]:
    """The labels that a pool gives its Nodes."""
    labels: Mapping[str, str] = (pool.get("config") or {}).get("labels") or {}
    return labels


def _jobset(labels: Mapping[str, str]) -> str:
    return labels.get(JOBSET_LABEL) or labels.get(_OLD_JOBSET_LABEL, "")


def _owner(labels: Mapping[str, str]) -> Owner:
    return Owner(
        namespace=labels.get(JOBSET_NAMESPACE_LABEL)
        or labels.get(f"{PARENT}namespace")
        or "default",
        jobset=_jobset(labels),
        job=labels.get(f"{PARENT}name", ""),
    )


def _words(pool: Mapping[str, Any]) -> str:
    """What GKE says of a pool's trouble, each thing once."""
    said = [pool.get("statusMessage") or ""]
    for condition in pool.get("conditions") or ():
        message = condition.get("message") or condition.get("code") or ""
        said += [message] if message not in said[0] else []
    return "; ".join(dict.fromkeys(text for text in said if text))


def _stamp(text: str) -> datetime | None:
    if not re.fullmatch("[0-9]{1,11}", text):
        return None
    return datetime.fromtimestamp(int(text), UTC)
