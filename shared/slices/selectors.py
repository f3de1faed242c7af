"""Node selectors and annotations of Pods that both providers read, and what they require of a slice."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from shared.base.names import POOL_LABEL, ZONE_LABEL
from shared.slices.classes import Place, SliceClass
from shared.slices.units import Demand, InputError, Unit

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


def describe_impossible_domain(unit: Unit, key: str) -> str:
    """Why the label of the exclusive topology of a unit's kind keeps it on no slice."""
    return (
        f"the exclusive topology of the Pod's {unit.kind} is {key}, which the Nodes of its slice would "
        f"not have: it must be {POOL_LABEL}, or a label that can be given to Nodes"
    )


def reservation_path(demand: Demand) -> str:
    """The reservation that the Pod selects: its name, or its path if it is of another project."""
    name, project = demand.selector[RESERVATION], demand.selector.get(RESERVATION_PROJECT)
    return f"projects/{project}/reservations/{name}" if project else name


def list_places(demand: Demand, cls: SliceClass) -> tuple[Place, ...]:
    """The candidates of a class. That of former versions has the zone (GKE), the provisioning model and
    the reservation that the Pod selects."""
    if not cls.is_legacy:
        return cls.candidates
    (place,) = cls.candidates
    if cls.node_pool is not None:
        place = replace(place, zone=demand.selector.get(ZONE_LABEL) or place.zone)
    if SPOT in demand.selector:
        place = replace(place, model="SPOT", reservation="", max_run="")
    elif RESERVATION in demand.selector:
        path = reservation_path(demand)
        place = replace(place, model="RESERVATION_BOUND", reservation=path, max_run="")
    return (place,)


def check_place(demand: Demand, place: Place) -> None:
    """Raise `InputError` if a candidate has not the provisioning model that the Pod selects."""
    if SPOT in demand.selector and place.model != "SPOT":
        raise InputError(f"the Pod selects {SPOT}")
    asked = reservation_path(demand) if RESERVATION in demand.selector else ""
    if asked and not f"{place.reservation}/".startswith(f"{asked}/"):
        raise InputError(f"the Pod selects the reservation {asked}")


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
