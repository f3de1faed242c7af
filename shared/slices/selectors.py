"""Node selectors and annotations of Pods that both providers read, and what they require of a slice."""

from collections.abc import Iterable, Mapping
from typing import Any

from shared.slices.units import Demand, InputError

COPY_LABELS = "tpu-provisioner.cloud.google.com/copy-labels"
"""On a Pod: which of its labels its Nodes get."""
SPOT = "cloud.google.com/gke-spot"
RESERVATION = "cloud.google.com/reservation-name"
RESERVATION_PROJECT = "cloud.google.com/reservation-project"


def check_spot(demand: Demand) -> None:
    """Raise `InputError` if the Pod selects Spot by a value that no Node has, or with a reservation."""
    if demand.selector.get(SPOT, "true") != "true":
        raise InputError(f'the Pod\'s nodeSelector {SPOT} must be "true", or not be there')
    if SPOT in demand.selector and RESERVATION in demand.selector:
        raise InputError(
            f"the Pod's nodeSelector has both {SPOT} and {RESERVATION}: VMs of a reservation are never "
            "Spot; it must have one of them"
        )


def reservation_path(demand: Demand) -> str:
    """The reservation that the Pod selects: its name, or its path if it is of another project."""
    name, project = demand.selector[RESERVATION], demand.selector.get(RESERVATION_PROJECT)
    return f"projects/{project}/reservations/{name}" if project else name


def check_tolerations(
    demand: Demand, taints: Iterable[Mapping[str, Any]], source: str = ""
) -> None:
    """Raise `InputError` if the Pod does not tolerate one of these taints. ``source``: whence it is."""
    for taint in taints:
        if not any(_tolerates(one, taint) for one in demand.tolerations):
            text = f"{taint.get('key')}={taint.get('value', '')}:{taint.get('effect')}"
            raise InputError(
                f"the Nodes of the Pod's slice would have the taint {text}{source}: the Pod must "
                "tolerate it"
            )


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Whether a Pod with this toleration may run on Nodes with this taint, which has an effect."""
    key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
    is_meant = key == taint.get("key") or (not key and operator == "Exists")
    is_equal = (toleration.get("value") or "") == (taint.get("value") or "")
    return (
        is_meant
        and (operator == "Exists" or is_equal)
        and (toleration.get("effect") or taint["effect"]) == taint["effect"]
    )
