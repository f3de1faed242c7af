"""TPUSliceClasses: what the slices of a cluster are like, and the candidates by which they are had.

A class is an object of the cluster's administrator. A Pod names one, or gets the default. Its status has
the refusals of its candidates, which ``provision_slice`` alone writes, and its usage and waits, which
``release_slice`` alone writes.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from shared.base import names
from shared.base.documents import (
    Document,
    read_list,
    read_mapping,
    read_mappings,
    read_text,
)
from shared.base.fields import any_of
from shared.base.timestamps import LONG_AGO, guess_time, render_time
from shared.slices.units import Demand, InputError

CLASS_KIND = "TPUSliceClass"
CLASS_ANNOTATION = "tpu-functions.dev/slice-class"
"""On a Pod: the name of the class of its slice. On a TPUNodeGroup, and as a label on a node pool: the
class of the slice."""
COMPUTE_CLASS = "cloud.google.com/compute-class"
"""The node selector that names a class on self-managed clusters. On GKE it names a ComputeClass."""
TEMPLATE_ANNOTATION = "tpu-functions.dev/slice-template"
"""On a Pod: the name of a template of former versions, or of a class."""
GIVE_UP_AFTER = timedelta(minutes=2)


@dataclass(frozen=True)
class Place:
    """A candidate: where and how a slice is had. It is read from a class and from a slice alike.

    Two places are equal if one refusal concerns both: ``max_run`` and ``subnetwork`` do not count.
    """

    zone: str
    model: str = "STANDARD"
    """The provisioning model, as in the spec of a TPUNodeGroup."""
    reservation: str = ""
    """The name or path of a reservation, with its block and sub-block."""
    project: str = ""
    """The project of a TPUNodeGroup; empty for node pools, which are in their cluster's."""
    max_run: str = field(default="", compare=False)
    subnetwork: str = field(default="", compare=False)

    @property
    def key(self) -> str:
        """It in a status and in messages, as in ``my-project:us-east5-b/SPOT``."""
        place = f"{self.project}:{self.zone}" if self.project else self.zone
        return "/".join(filter(None, (place, self.model, self.reservation)))


class Shape(NamedTuple):
    """What a refusal is about besides its candidate: another shape may be had there."""

    machine_type: str
    topology: str


@dataclass(frozen=True)
class Refusal:
    """A candidate that did not give a slice of a shape, until when nobody asks it again.

    ``candidate`` is the `Place.key`, ``reason`` one of `shared.base.reasons`, and ``message`` has the
    cloud's words. ``asked_by`` is the slice (``NAMESPACE/NAME``) that alone asks again, if one has
    claimed that.
    """

    candidate: str
    shape: Shape
    reason: str
    message: str
    since: datetime
    until: datetime
    asked_by: str = ""

    def render(self) -> dict[str, str]:
        """The item of the class's status."""
        item = {
            "candidate": self.candidate,
            "machineType": self.shape.machine_type,
            "topology": self.shape.topology,
            "reason": self.reason,
            "message": self.message,
            "since": render_time(self.since),
            "until": render_time(self.until),
        }
        return {**item, "askedBy": self.asked_by} if self.asked_by else item


@dataclass(frozen=True)
class SliceClass:
    """A TPUSliceClass, or what former versions had in its place (``is_legacy``).

    ``template`` (TPUNodeGroups) or ``node_pool`` (GKE) has what follows neither from the Pod nor from
    the candidate; the other one is ``None``. An ``accelerator`` limits the class to Pods that select it,
    ``namespaces`` to theirs (``None``: all). ``slices`` and ``chips`` are its limits, ``None`` without
    one. ``waits`` are median and 90th percentile of the last slices, as in ``4m``; empty if unknown.
    ``error`` says what is invalid: nothing is created from the class then.
    """

    name: str
    candidates: tuple[Place, ...] = ()
    template: Document | None = field(default=None, repr=False)
    node_pool: Document | None = field(default=None, repr=False)
    accelerator: str = ""
    give_up_after: timedelta = GIVE_UP_AFTER
    namespaces: frozenset[str] | None = None
    slices: int | None = None
    chips: int | None = None
    is_default: bool = False
    created: datetime = LONG_AGO
    refusals: tuple[Refusal, ...] = ()
    waits: tuple[str, str] = ("", "")
    error: str = ""
    is_legacy: bool = False
    raw: Document = field(default_factory=dict, repr=False, compare=False)

    @property
    def shown(self) -> str:
        """It in words, for messages. The name of a legacy class is these words."""
        return self.name if self.is_legacy else f"{CLASS_KIND} {self.name}"

    def is_for(self, demand: Demand) -> bool:
        """Whether it may serve a Pod: its namespace and accelerator."""
        is_allowed = self.namespaces is None or demand.namespace in self.namespaces
        return is_allowed and self.accelerator in ("", demand.accelerator)


def parse(raw: Document) -> SliceClass:
    """Read a class. An invalid one has an ``error``."""
    spec, status = read_mapping(raw, "spec"), read_mapping(raw, "status")
    metadata, waits = read_mapping(raw, "metadata"), read_mapping(status, "waits")
    template, node_pool = (
        read_mapping(spec, key) if key in spec else None for key in ("template", "nodePool")
    )
    namespaces = read_list(spec, "allowedNamespaces")
    limits = read_mapping(spec, "limits")
    return SliceClass(
        name=read_text(metadata, "name"),
        candidates=_parse_candidates(spec, template, node_pool),
        template=template,
        node_pool=node_pool,
        accelerator=read_text(spec, "accelerator"),
        give_up_after=_parse_minutes(read_text(spec, "giveUpAfter")),
        namespaces=frozenset(namespaces) if "allowedNamespaces" in spec else None,
        slices=limits.get("slices"),
        chips=limits.get("chips"),
        is_default=spec.get("isDefault") is True,
        created=guess_time(metadata.get("creationTimestamp")) or LONG_AGO,
        refusals=tuple(_parse_refusals(status)),
        waits=(read_text(waits, "median"), read_text(waits, "p90")),
        raw=raw,
    )


def _parse_candidates(
    spec: Document, template: Document | None, node_pool: Document | None
) -> tuple[Place, ...]:
    """The candidates in order; without a list the one that template or node pool describes."""
    group = read_mapping(template or {}, "spec")
    config, project = read_mapping(group, "instanceConfig"), read_text(group, "project")
    if "candidates" not in spec:
        zone = read_text(group, "nodeLocation") or read_text(node_pool or {}, "zone")
        return (parse_place({**config, "zone": zone, "project": project}),)
    found = (
        parse_place({**one, "project": read_text(one, "project") or project})
        for one in read_mappings(spec, "candidates")
    )
    return tuple(dict.fromkeys(found))


def parse_place(fields: Document) -> Place:
    """Read a place from the fields of a candidate, which a TPUNodeGroup's ``instanceConfig`` has too."""
    reservation = read_text(fields, "reservation")
    default = "RESERVATION_BOUND" if reservation else "STANDARD"
    return Place(
        zone=read_text(fields, "zone"),
        model=read_text(fields, "provisioningModel") or default,
        reservation=reservation,
        project=read_text(fields, "project"),
        max_run=read_text(fields, "maxRunDuration"),
        subnetwork=read_text(fields, "subnetwork"),
    )


def _parse_minutes(text: str) -> timedelta:
    """``30s`` or ``2m``; the default for any other text."""
    if not text[:-1].isdecimal() or text[-1] not in "sm":
        return GIVE_UP_AFTER
    return timedelta(**{"seconds" if text[-1] == "s" else "minutes": int(text[:-1])})


def _parse_refusals(status: Document) -> Iterable[Refusal]:
    for one in read_mappings(status, "refusals"):
        since, until = guess_time(one.get("since")), guess_time(one.get("until"))
        if since is not None and until is not None:
            candidate, machine_type, topology, reason, message, asked_by = (
                read_text(one, key)
                for key in (
                    *("candidate", "machineType", "topology"),
                    *("reason", "message", "askedBy"),
                )
            )
            shape = Shape(machine_type, topology)
            yield Refusal(candidate, shape, reason, message, since, until, asked_by)


def find_class(
    demand: Demand,
    classes: Iterable[SliceClass],
    find_legacy: Callable[[str], SliceClass | None],
    *,
    is_gke: bool,
) -> SliceClass:
    """The class of a Pod's slice: the one that it names, else the default, else what former versions
    had. ``find_legacy`` returns that by the name of a template, which may be empty.

    Raises `InputError` if there is none, or if it does not serve the Pod.
    """
    by_name = {one.name: one for one in classes}
    selected = demand.selector.get(COMPUTE_CLASS, "")
    if selected and is_gke:
        raise InputError(
            f"the Pod's nodeSelector {COMPUTE_CLASS} wakes the autoscaler of GKE: it must be taken "
            f"out, and the {CLASS_KIND} named by the annotation {CLASS_ANNOTATION}"
        )
    template = demand.annotations.get(TEMPLATE_ANNOTATION, "")
    name = demand.annotations.get(CLASS_ANNOTATION, "") or selected
    if not name and template:
        name, found = template, find_legacy(template)
    elif not name:
        found = _find_default(demand, by_name, is_gke=is_gke) or find_legacy("")
    else:
        found = by_name.get(name)
    found = found or by_name.get(name)
    if found is None:
        raise InputError(_explain_none(name, by_name))
    _check(found, demand, is_gke=is_gke)
    return found


def _find_default(
    demand: Demand, classes: Mapping[str, SliceClass], *, is_gke: bool
) -> SliceClass | None:
    """Of several defaults the newest, as with StorageClasses."""
    found = [
        one
        for one in classes.values()
        if one.is_default and one.is_for(demand) and (one.node_pool is not None) is is_gke
    ]
    return max(found, key=lambda one: (one.created, one.name), default=None)


def _explain_none(name: str, classes: Mapping[str, SliceClass]) -> str:
    if name:
        listed = f"there is {any_of(sorted(classes))}" if classes else "there is none"
        return f"the Pod names the {CLASS_KIND} {name}, which does not exist: {listed}"
    return (
        f"the Pod names no {CLASS_KIND}, and none for its namespace and accelerator has isDefault: it "
        f"must name one by the annotation {CLASS_ANNOTATION}, or a class must be the default"
    )


def _check(found: SliceClass, demand: Demand, *, is_gke: bool) -> None:
    """Raise `InputError` if a class does not serve a Pod."""
    if found.error:
        raise InputError(f"{found.shown} is invalid: {found.error}")
    if found.namespaces is not None and demand.namespace not in found.namespaces:
        raise InputError(
            f"{found.shown} does not allow namespace {demand.namespace}: spec.allowedNamespaces must "
            "list it, or the Pod name another class"
        )
    if not found.is_for(demand):
        raise InputError(
            f"{found.shown} is for {found.accelerator}, and the Pod's nodeSelector "
            f"{names.ACCELERATOR_LABEL} is {demand.accelerator!r}"
        )
    if (found.node_pool is not None) is not is_gke:
        needed, has = ("nodePool", "template") if is_gke else ("template", "nodePool")
        raise InputError(
            f"{found.shown} has spec.{has}, and slices are made from spec.{needed} here: it must have "
            "that, or the Pod name another class"
        )
