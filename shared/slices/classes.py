"""TPUSliceClasses: what the slices of a cluster are like, and the candidates by which they are had.

A class is an object of the cluster's administrator. A Pod names one, or gets the default. Its status has
the refusals of its candidates, which ``provision_slice`` alone writes, and its usage and waits, which
``release_slice`` alone writes.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from shared.base import names
from shared.base.documents import (
    Document,
    read_list,
    read_mapping,
    read_mappings,
    read_text,
    without_empty,
)
from shared.base.timestamps import LONG_AGO, guess_time, parse_duration_s, render_time
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
_REFUSAL = (
    *("candidate", "machineType", "topology", "reason", "message"),
    *("since", "until", "askedBy"),
)
"""The fields of a refusal in the status."""


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

    def render(self) -> dict[str, Any]:
        """The item of the class's status."""
        times = render_time(self.since), render_time(self.until)
        fields = (self.candidate, *self.shape, self.reason, self.message, *times, self.asked_by)
        return without_empty(dict(zip(_REFUSAL, fields, strict=True)))


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

    @property
    def waited(self) -> str:
        """How long its last slices waited, in words; empty if unknown."""
        words = "the last slices of this class waited {} (median), {} (90th percentile)"
        return words.format(*self.waits) if self.waits[0] else ""

    def find_violation(self, demand: Demand, *, is_gke: bool) -> str:
        """Why it does not serve a Pod; empty if it does."""
        has = "template" if self.node_pool is None else "nodePool"
        needed = "nodePool" if is_gke else "template"
        if self.error:
            return f"is invalid: {self.error}"
        if self.namespaces is not None and demand.namespace not in self.namespaces:
            return f"does not have namespace {demand.namespace} among its allowedNamespaces"
        if self.accelerator not in ("", demand.accelerator):
            label = f"the Pod's nodeSelector {names.ACCELERATOR_LABEL}"
            return f"is for {self.accelerator}, and {label} is {demand.accelerator!r}"
        return f"has spec.{has}, and slices here need spec.{needed}" if has != needed else ""


def parse(raw: Document) -> SliceClass:
    """Read a class. An invalid one has an ``error``."""
    spec, status = read_mapping(raw, "spec"), read_mapping(raw, "status")
    metadata, waits = read_mapping(raw, "metadata"), read_mapping(status, "waits")
    after_s = parse_duration_s(read_text(spec, "giveUpAfter"))
    limits, namespaces = read_mapping(spec, "limits"), read_list(spec, "allowedNamespaces")
    template, node_pool = (
        read_mapping(spec, key) if key in spec else None for key in ("template", "nodePool")
    )
    candidates = _parse_candidates(spec, read_mapping(template or {}, "spec"), node_pool or {})
    error = (
        "" if all(one.zone for one in candidates) else "each of spec.candidates must have a zone"
    )
    if (template is None) == (node_pool is None):
        error = "spec must have one of template and nodePool"
    return SliceClass(
        name=read_text(metadata, "name"),
        candidates=candidates,
        template=template,
        node_pool=node_pool,
        accelerator=read_text(spec, "accelerator"),
        give_up_after=GIVE_UP_AFTER if after_s is None else timedelta(seconds=after_s),
        namespaces=frozenset(map(str, namespaces)) if "allowedNamespaces" in spec else None,
        slices=limits.get("slices"),
        chips=limits.get("chips"),
        is_default=spec.get("isDefault") is True,
        created=guess_time(metadata.get("creationTimestamp")) or LONG_AGO,
        refusals=tuple(_parse_refusals(status)),
        waits=(read_text(waits, "median"), read_text(waits, "p90")),
        error=error,
        raw=raw,
    )


def _parse_candidates(spec: Document, group: Document, node_pool: Document) -> tuple[Place, ...]:
    """The candidates in order; without a list the one that template or node pool describes."""
    config, project = read_mapping(group, "instanceConfig"), read_text(group, "project")
    zone = read_text(group, "nodeLocation") or read_text(node_pool, "zone")
    listed: Iterable[Document] = read_mappings(spec, "candidates")
    if "candidates" not in spec:
        listed = ({**config, "zone": zone},)
    found = ({**one, "project": read_text(one, "project") or project} for one in listed)
    return tuple(dict.fromkeys(map(parse_place, found)))


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


def _parse_refusals(status: Document) -> Iterator[Refusal]:
    for one in read_mappings(status, "refusals"):
        fields = {key: read_text(one, key) for key in _REFUSAL}
        since, until = guess_time(fields.pop("since")), guess_time(fields.pop("until"))
        if since is not None and until is not None:
            candidate, machine_type, topology, reason, message, asked_by = fields.values()
            shape = Shape(machine_type, topology)
            yield Refusal(candidate, shape, reason, message, since, until, asked_by)


def find_naming(demand: Demand) -> tuple[str, str]:
    """Where a Pod names the class of its slice, and the name; both are empty if it gets the default."""
    named = (
        (f"annotation {CLASS_ANNOTATION}", demand.annotations.get(CLASS_ANNOTATION)),
        (f"nodeSelector {COMPUTE_CLASS}", demand.selector.get(COMPUTE_CLASS)),
        (f"annotation {TEMPLATE_ANNOTATION}", demand.annotations.get(TEMPLATE_ANNOTATION)),
    )
    return next(((where, name) for where, name in named if name), ("", ""))


def find_class(
    demand: Demand,
    classes: Iterable[SliceClass],
    find_legacy: Callable[[str], SliceClass | None],
    *,
    is_gke: bool,
) -> SliceClass:
    """The class of a Pod's slice: the one that it names, else the default, else what former versions
    had. ``find_legacy`` returns that by the name of a template, which may be empty.

    Of several defaults it is the newest, as with StorageClasses. Raises `InputError` if there is none,
    or if it does not serve the Pod.
    """
    by_name = {one.name: one for one in classes}
    if demand.selector.get(COMPUTE_CLASS) and is_gke:
        raise InputError(
            f"the Pod's nodeSelector {COMPUTE_CLASS} wakes the autoscaler of GKE: it must be taken "
            f"out, and the {CLASS_KIND} be named by the annotation {CLASS_ANNOTATION}"
        )
    where, name = find_naming(demand)
    found = by_name.get(name)
    if where.endswith(TEMPLATE_ANNOTATION):
        found = find_legacy(name) or found
    elif not name:
        fitting = (one for one in by_name.values() if not one.find_violation(demand, is_gke=is_gke))
        defaults = [one for one in fitting if one.is_default]
        newest = max(defaults, key=lambda one: (one.created, one.name), default=None)
        # On GKE the settings stay, and would serve those whom the default classes do not.
        has_default = is_gke and any(
            one.is_default and one.node_pool is not None for one in by_name.values()
        )
        found = newest or (None if has_default else find_legacy(""))
    if found is None and name:
        raise InputError(f"the Pod names the {CLASS_KIND} {name}, which does not exist")
    if found is None:
        raise InputError(
            f"the Pod names no {CLASS_KIND} by the annotation {CLASS_ANNOTATION}, and no default one "
            "serves its namespace and accelerator"
        )
    violation = found.find_violation(demand, is_gke=is_gke)
    if violation:
        raise InputError(f"{found.shown} {violation}")
    return found
