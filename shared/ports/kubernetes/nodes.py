"""The fields of a Node that matter for slices, and the calls about Nodes."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from shared.base.documents import find_condition
from shared.base.names import (
    BOOT_ID_LABEL,
    CORRECTIONS_KEY,
    NODE_KIND,
    POOL_LABEL,
    RESOURCE_NAME_LABEL,
    TPU_RESOURCE,
    VM_ID_LABEL,
    find_resource_name,
)
from shared.base.timestamps import guess_time
from shared.ports.kubernetes.transport import MERGE_PATCH, Target, Transport
from shared.ports.large_lists import one_at_a_time

_NODES = Target(NODE_KIND, "/api/v1", "nodes")
_SLICES_A_CALL = 50
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True)
class Node:
    """One Node. ``vm``, the first DNS label of its name, is the VM on which it claims to run."""

    name: str
    uid: str = field(repr=False)
    version: str = field(repr=False)
    """Its resourceVersion."""
    created: datetime | None
    provider_id: str
    labels: Mapping[str, str]
    taints: tuple[Mapping[str, str], ...]
    is_unschedulable: bool
    is_ready: bool
    is_silent: bool
    """The control plane has set Ready to Unknown, because the kubelet has reported nothing for long.
    Only the control plane's clock measures that, between two reports. While a VM of its name exists, no
    other Node is deleted: a kubelet that runs does not register its Node again."""
    ready_since: datetime | None
    boot_id: str
    """The machine's boot id that its kubelet reports; empty if it is not a valid label value."""
    tpu_capacity: int
    tpu_allocatable: int
    reference: Mapping[str, Any] = field(repr=False)
    """What Events need of it. The object itself is ten times larger."""
    is_deleting: bool = False
    """It has a deletionTimestamp: a finalizer keeps it."""
    corrections_note: str = ""
    """Its annotation `CORRECTIONS_KEY`, from which `corrections` is read."""

    @property
    def vm(self) -> str:
        return self.name.partition(".")[0]

    @property
    def proved_vm_id(self) -> str:
        """The id of the VM on which it was proved to run; empty without a proof."""
        return self.labels.get(VM_ID_LABEL, "")

    @property
    def proved_boot_id(self) -> str:
        """The boot id that was recorded with the proof."""
        return self.labels.get(BOOT_ID_LABEL, "")

    @property
    def corrections(self) -> tuple[int, datetime | None]:
        """How often its labels were corrected, and since when."""
        count, _, since = self.corrections_note.partition(" ")
        return (int(count), guess_time(since)) if re.fullmatch("[0-9]{1,9}", count) else (0, None)

    @property
    def has_rebooted(self) -> bool:
        """Whether its kubelet reports another boot than the recorded one."""
        return self.boot_id != "" and self.proved_boot_id not in ("", self.boot_id)

    def offers(self, chips: int) -> bool:
        """Whether it offers all the chips of its VM, or any chips if their number is unknown (0)."""
        same = self.tpu_capacity == self.tpu_allocatable
        return same and (self.tpu_capacity == chips if chips else self.tpu_capacity > 0)


def parse_node(raw: Mapping[str, Any]) -> Node:
    """Parse a Node from the API server."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    ready = find_condition(status, "Ready")
    is_ready = ready.get("status") == "True"
    changed = ready.get("lastTransitionTime")
    boot_id = str((status.get("nodeInfo") or {}).get("bootID") or "")
    return Node(
        name=metadata["name"],
        uid=metadata["uid"],
        version=metadata.get("resourceVersion", ""),
        created=guess_time(metadata.get("creationTimestamp")),
        provider_id=spec.get("providerID") or "",
        labels=metadata.get("labels") or {},
        taints=tuple(spec.get("taints") or ()),
        is_unschedulable=bool(spec.get("unschedulable")),
        is_ready=is_ready,
        is_silent=ready.get("status") == "Unknown",
        ready_since=guess_time(changed) if is_ready else None,
        boot_id=boot_id if _LABEL_VALUE.fullmatch(boot_id) else "",
        tpu_capacity=_chips(status.get("capacity")),
        tpu_allocatable=_chips(status.get("allocatable")),
        reference={
            "apiVersion": "v1",
            "kind": NODE_KIND,
            "metadata": {key: metadata.get(key, "") for key in ("name", "uid", "resourceVersion")},
        },
        is_deleting="deletionTimestamp" in metadata,
        corrections_note=str((metadata.get("annotations") or {}).get(CORRECTIONS_KEY, "")),
    )


def _chips(resources: Mapping[str, Any] | None) -> int:
    from kubernetes.utils import quantity

    value = (resources or {}).get(TPU_RESOURCE, "0")
    return int(quantity.parse_quantity(value))


class NodeCalls(Transport):
    """The calls about Nodes."""

    def list_nodes(self, resource_name: str, hosts: int) -> list[Node]:
        """The Nodes with this resource-name label; there may be so many."""
        with one_at_a_time(hosts, self._remaining_s):
            found = self._list(_NODES, f"{RESOURCE_NAME_LABEL}={resource_name}")
            return [parse_node(node) for node in found]

    def list_all_nodes(self, labels: str = "") -> Iterator[dict[str, Any]]:
        """All Nodes of the cluster, or those with these labels, page by page."""
        return self._list(_NODES, labels, is_paged=True)

    def list_unlabelled_nodes(self, resource_name: str) -> list[Node]:
        """The Nodes without the resource-name label that have the names of a slice's VMs, perhaps with a
        domain. Reads all the cluster's Nodes without the label, page by page."""
        found = self._list(_NODES, f"!{RESOURCE_NAME_LABEL}", is_paged=True)
        named = ((raw["metadata"]["name"].partition(".")[0], raw) for raw in found)
        return [parse_node(raw) for vm, raw in named if find_resource_name(vm) == resource_name]

    def find_node(self, name: str) -> Node | None:
        """The Node of that name, or ``None``."""
        raw = self._find(_NODES.one(name))
        return parse_node(raw) if raw is not None else None

    def find_nodes(self, names: Iterable[str]) -> dict[str, Node | None]:
        """The Nodes of these names (``None``: there is none), one after the other, for at most a third
        of the seconds that are left: a name that is not in the answer has not been asked for."""
        stop_at_remaining_s = self._remaining_s() * 2 / 3
        found: dict[str, Node | None] = {}
        for name in names:
            if self._remaining_s() <= stop_at_remaining_s:
                break
            found[name] = self.find_node(name)
        return found

    def patch_node(self, name: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        """Change a Node by a merge patch. With a resourceVersion in it, the Node must be unchanged."""
        return self._call("PATCH", _NODES.one(name), patch, media=MERGE_PATCH)

    def delete_node(self, name: str, uid: str) -> None:
        """Delete this Node and no other with its name. It is not an error if it is gone."""
        self._delete(_NODES.one(name), uid)

    def list_nodes_of_slice(self, name: str) -> list[dict[str, Any]]:
        """The Nodes of a JobSet's slice."""
        return list(self._list(_NODES, f"{POOL_LABEL}={name}"))

    def list_nodes_of_slices(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """The Nodes of several slices, 50 slices in a call."""
        for begin in range(0, len(names), _SLICES_A_CALL):
            chunk = ",".join(names[begin : begin + _SLICES_A_CALL])
            yield from self._list(_NODES, f"{POOL_LABEL} in ({chunk})")
