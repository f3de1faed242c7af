"""Fingerprints of objects: the few fields whose changes can matter.

Two fingerprints of an object are compared to separate changes from noise (heartbeats, status writes of
this system). Malformed fields count as absent: an object that another client has written must not stop
the relay.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shared.base import names
from shared.base.documents import find_condition, read_list, read_mapping, read_number, read_text
from shared.base.reasons import ORDER
from shared.slices.classes import CLASS_ANNOTATION
from shared.triggers.message import Cause

GroupKey = tuple[str, str]
"""The namespace and name of a group."""

_TPU_LABEL_PREFIXES = ("cloud.google.com/gke-tpu-", names.GROUP_LABEL)
_CONCERNING_LABELS = frozenset(
    {names.RESOURCE_NAME_LABEL, names.VM_ID_LABEL, names.ACCELERATOR_COUNT_LABEL}
)

TRUE = "True"


@dataclass(frozen=True, slots=True)
class GroupFingerprint:
    """A TPUNodeGroup. Of its status, only ``capacity`` is relevant after the start."""

    namespace: str
    name: str
    uid: str
    resource_name: str
    generation: int
    paused: str
    finalizers: tuple[str, ...]
    deleting: bool
    observed_generation: int
    ready: str
    nodes_ready: int
    node_count: int
    capacity: str
    """Of a slice with a class: ``True`` if it has a VM, or the reason if an API has refused it."""
    workload: str
    """Of a slice that a ProvisioningRequest asks for: the key of its workload."""

    @property
    def key(self) -> GroupKey:
        return self.namespace, self.name

    @property
    def owning_finalizers(self) -> frozenset[str]:
        """The finalizers that show who manages the group: this system's, or tpu-operator's."""
        return frozenset(
            finalizer
            for finalizer in self.finalizers
            if finalizer == names.FINALIZER or finalizer.startswith(names.THEIR_FINALIZER_PREFIX)
        )


@dataclass(frozen=True, slots=True)
class NodeFingerprint:
    """A Node. ``claims`` are the resource names of the groups that it may belong to."""

    name: str
    uid: str
    claims: frozenset[str]
    ready: str
    tpu_capacity: str
    tpu_allocatable: str
    provider_id: str
    labels: frozenset[tuple[str, str]]

    @property
    def is_ready(self) -> bool:
        """Whether it is Ready with all its TPU chips allocatable. A step checks if these are enough."""
        chips = self.tpu_capacity
        return self.ready == TRUE and chips not in ("", "0") and chips == self.tpu_allocatable

    @property
    def is_proved(self) -> bool:
        """True if it has the label that only this system can write."""
        return any(key == names.VM_ID_LABEL for key, _ in self.labels)


def has_identity(raw: Mapping[str, Any], *, is_namespaced: bool) -> bool:
    """True if an object has what a message needs: a name; its namespace and uid, if namespaced.

    Messages are about namespaced objects; of a Node they hold the name only.
    """
    metadata = read_mapping(raw, "metadata")
    if not names.is_dns_subdomain(metadata.get("name")):
        return False
    has_uid = read_text(metadata, "uid") != ""
    return not is_namespaced or (has_uid and names.is_dns_label(metadata.get("namespace")))


def fingerprint_group(raw: Mapping[str, Any]) -> GroupFingerprint:
    """The fingerprint of a TPUNodeGroup."""
    metadata, status = read_mapping(raw, "metadata"), read_mapping(raw, "status")
    spec = read_mapping(raw, "spec")
    return GroupFingerprint(
        namespace=read_text(metadata, "namespace"),
        name=read_text(metadata, "name"),
        uid=read_text(metadata, "uid"),
        resource_name=read_text(read_mapping(metadata, "labels"), names.RESOURCE_NAME_LABEL),
        generation=read_number(metadata, "generation"),
        paused=read_text(read_mapping(metadata, "annotations"), names.PAUSED_ANNOTATION),
        finalizers=tuple(
            text for text in read_list(metadata, "finalizers") if isinstance(text, str)
        ),
        deleting=bool(read_text(metadata, "deletionTimestamp")),
        observed_generation=read_number(status, "observedGeneration"),
        ready=read_text(find_condition(status, "Ready"), "status"),
        nodes_ready=read_number(read_mapping(status, "nodeSummary"), "ready"),
        node_count=read_number(spec, "nodeCount"),
        capacity=_read_capacity(metadata, status),
        workload=read_text(read_mapping(spec, "nodeLabels"), names.WORKLOAD_LABEL),
    )


def fingerprint_node(raw: Mapping[str, Any]) -> NodeFingerprint:
    """The fingerprint of a Node."""
    metadata, status = read_mapping(raw, "metadata"), read_mapping(raw, "status")
    name, labels = read_text(metadata, "name"), read_mapping(metadata, "labels")
    label = read_text(labels, names.RESOURCE_NAME_LABEL)
    claims = frozenset({label, names.find_resource_name(name.partition(".")[0])} - {""})
    return NodeFingerprint(
        name=name,
        uid=read_text(metadata, "uid"),
        claims=claims,
        ready=read_text(find_condition(status, "Ready"), "status"),
        tpu_capacity=str(read_mapping(status, "capacity").get(names.TPU_RESOURCE, "")),
        tpu_allocatable=str(read_mapping(status, "allocatable").get(names.TPU_RESOURCE, "")),
        provider_id=read_text(read_mapping(raw, "spec"), "providerID"),
        labels=frozenset(
            (key, str(value))
            for key, value in labels.items()
            if key in _CONCERNING_LABELS or key.startswith(_TPU_LABEL_PREFIXES)
        ),
    )


def classify_group_change(before: GroupFingerprint | None, after: GroupFingerprint) -> Cause | None:
    """The cause of a message on a group that was ``before`` and is ``after``; ``None`` for no message.

    `Cause.DELETING` is for ``tear_down``, every other cause for ``create_resources``. While a group
    is being deleted, only its finalizers matter: the step may wait for the removal of a foreign one.
    A group whose tpu-operator finalizers are removed is reported, too. This system's own finalizer and
    label are not: the step that writes them needs no message.
    """
    if after.deleting:
        known = before is not None and before.deleting and before.finalizers == after.finalizers
        return None if known else Cause.DELETING
    if before is None:
        return Cause.ADDED
    if before.generation != after.generation:
        return Cause.SPEC_CHANGED
    if _ownership(before) != _ownership(after) and not _is_taking_ownership(before, after):
        return Cause.METADATA_CHANGED
    return None


def classify_missed_group_change(group: GroupFingerprint) -> Cause | None:
    """The cause of a message about a group in the first list after a start; ``None`` for no message.

    What happened while the relay was away follows from the state: taking ownership, the status of a
    generation and the Ready condition are what ``create_resources`` leaves behind.
    """
    if group.deleting:
        return Cause.DELETING
    taken = names.FINALIZER in group.finalizers and group.resource_name
    reported = group.ready and group.observed_generation == group.generation
    return None if taken and reported else Cause.ADDED


def has_missed_node_change(group: GroupFingerprint, nodes: Sequence[NodeFingerprint]) -> bool:
    """Whether a group and its Nodes, seen for the first time after a start, do not fit together.

    They do when as many Nodes are ready as the status says, and the group is Ready and all of its
    Nodes are proved, or there are none.
    """
    if sum(node.is_ready for node in nodes) != group.nodes_ready:
        return True
    settled = group.ready == TRUE and all(node.is_proved for node in nodes)
    return bool(nodes) and not settled


def is_relevant_node_change(
    before: NodeFingerprint | None, after: NodeFingerprint, *, live: bool
) -> bool:
    """Whether a change of a Node from ``before`` to ``after`` triggers ``label_node``.

    ``live``: a watch has reported it, so the relay has missed nothing in between.
    """
    if before is None:
        return True
    is_noise = (
        before == after
        or _is_still_unready(before, after)
        or (live and _is_own_patch(before, after))
    )
    return not is_noise


def _is_still_unready(before: NodeFingerprint, after: NodeFingerprint) -> bool:
    """Whether a Node that could not count as ready, and still cannot, only changed in what it lacks.

    A kubelet registers, becomes Ready, and then offers chips. Only the first and the last are reported.
    The sweep handles a Node that does not become ready.
    """
    if before.is_ready or after.is_ready:
        return False
    now = {name: getattr(after, name) for name in ("ready", "tpu_capacity", "tpu_allocatable")}
    return replace(before, **now) == after


def _is_own_patch(before: NodeFingerprint, after: NodeFingerprint) -> bool:
    """Whether a change of a Node that a watch has reported is the echo of ``label_node``'s own patch.

    An echo is ignored: after it the labels are as the step wants them. It changes nothing but labels and
    removes none. There are two kinds:

    - the VM's id was written, which no kubelet may do: the patch that proves a Node sets all its labels
      together with the id.
    - labels were added to a Node that has the VM's id: they were set with the proof, then lost, which
      was reported, and now restored. A wrong value that somebody adds at this moment is read by the step
      that the loss has triggered, or overwritten by its patch.

    A label that is lost, or changed while the VM's id stays, is reported. The first fingerprint of a
    Node and the differences of a new list are never echoes.
    """
    if replace(before, labels=after.labels, claims=after.claims) != after:
        return False
    old, new = dict(before.labels), dict(after.labels)
    if (
        names.VM_ID_LABEL not in new
        or not old.keys() <= new.keys()
        or not before.claims <= after.claims
    ):
        return False
    return old.get(names.VM_ID_LABEL) != new[names.VM_ID_LABEL] or before.labels <= after.labels


def _ownership(group: GroupFingerprint) -> tuple[str, str, frozenset[str]]:
    return group.paused, group.resource_name, group.owning_finalizers


def _is_taking_ownership(before: GroupFingerprint, after: GroupFingerprint) -> bool:
    """Whether a change is the echo of ``create_resources`` taking ownership.

    The group gets our finalizer, our label, or both, and nothing else changes. If somebody else writes
    the label first, the sweep handles it: such a group is not settled.
    """
    gained = after.owning_finalizers - before.owning_finalizers
    lost = before.owning_finalizers - after.owning_finalizers
    keeps_label = before.resource_name in ("", after.resource_name)
    return (
        before.paused == after.paused and gained <= {names.FINALIZER} and not lost and keeps_label
    )


def _read_capacity(metadata: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    if CLASS_ANNOTATION not in read_mapping(metadata, "annotations"):
        return ""
    mig, ready = (find_condition(status, one) for one in ("ManagedInstanceGroupReady", "Ready"))
    reason, counts = read_text(ready, "reason"), read_mapping(status, "nodeSummary")
    # The first VM counts: the Pod may run on its Node before the MIG reports that all exist.
    has_vms = read_text(mig, "status") == TRUE or bool(
        read_number(counts, "running") or read_number(counts, "joined")
    )
    return TRUE if has_vms else reason if reason in ORDER else ""
