"""The chips and the controller of a Pod, from its manifest."""

from typing import Any

from shared.base.documents import Document, read_mapping, read_mappings
from shared.base.names import TPU_RESOURCE

CONTAINER_LISTS = ("containers", "initContainers")
"""The fields of a Pod's spec that list its containers."""


def count_chips(container: Document) -> int:
    """The chips that a container requests: its limit, else its request; 0 if that is not a number."""
    resources = read_mapping(container, "resources")
    for part in ("limits", "requests"):
        amount = parse_count(read_mapping(resources, part).get(TPU_RESOURCE))
        if amount is not None:
            return amount
    return 0


def list_tpu_containers(spec: Document) -> list[Document]:
    """The containers of a Pod that request chips, init containers included."""
    every = (one for part in CONTAINER_LISTS for one in read_mappings(spec, part))
    return [container for container in every if count_chips(container)]


def list_running_together(spec: Document) -> list[Document]:
    """The containers that request chips at the same time: init containers only if they are sidecars."""
    sidecars = (
        one for one in read_mappings(spec, "initContainers") if one.get("restartPolicy") == "Always"
    )
    return [one for one in (*read_mappings(spec, "containers"), *sidecars) if count_chips(one)]


def count_pod_chips(spec: Document) -> int:
    """The chips that a Pod needs of a Node, as the scheduler counts them: those of its containers and
    sidecars, or of an init container with the sidecars before it if these are more."""
    most = sidecars = 0
    for one in read_mappings(spec, "initContainers"):
        chips = count_chips(one)
        most = max(most, sidecars + chips)
        sidecars += chips if one.get("restartPolicy") == "Always" else 0
    return max(most, sidecars + sum(map(count_chips, read_mappings(spec, "containers"))))


def holds_chips(pod: Document) -> bool:
    """Whether a Pod with TPU chips has not ended. A DaemonSet's comes and goes with the Node."""
    metadata, status = read_mapping(pod, "metadata"), read_mapping(pod, "status")
    has_ended = status.get("phase") in ("Succeeded", "Failed")
    is_of_node = (find_controller(metadata) or {}).get("kind") == "DaemonSet"
    return not (has_ended or is_of_node) and bool(list_tpu_containers(read_mapping(pod, "spec")))


def find_controller(metadata: Document) -> Document | None:
    """The reference to the owner that controls an object."""
    owners = read_mappings(metadata, "ownerReferences")
    return next((owner for owner in owners if owner.get("controller") is True), None)


def parse_count(value: Any) -> int | None:
    """A number of at most nine digits, as text or not; ``None`` for anything else."""
    text = "" if value is None else str(value)
    return int(text) if text.isdecimal() and len(text) < 10 else None


def read_count(holder: Document, field: str, default: int) -> int:
    """The number in a field, as `parse_count` reads it; ``default`` if there is none."""
    count = parse_count(holder.get(field))
    return default if count is None else count
