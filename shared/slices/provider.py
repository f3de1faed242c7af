"""The provider interface of slices, and its values.

A provider builds the slice that a unit needs, reads the existing slices, and creates and deletes them,
one call each. ``provision_slice`` and ``release_slice`` decide from these values alone.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol

from shared.base.reasons import Reason
from shared.slices.classes import Place, Shape, SliceClass, find_class
from shared.slices.selection import Selection
from shared.slices.selectors import check_place, list_places
from shared.slices.units import Demand, InputError, Unit, UnservableError

RELEASE_AFTER = timedelta(seconds=30)
"""The shortest time from an owner's end to the deletion of its slices. An owner that is recreated within
it keeps them."""


ASKED_AT = "tpu-functions.dev/asked-at"
"""On a slice: when its Pod began to wait, as a time or, in a label, in seconds since 1970."""

_NOWHERE, _NO_SHAPE = Place(""), Shape("", "")


class SliceState(StrEnum):
    """The state of a slice, as its provider reports it."""

    PROVISIONING = "Provisioning"
    READY = "Ready"
    FAILED = "Failed"
    """The slice cannot be created, or was lost; ``message`` says why."""
    DELETING = "Deleting"


@dataclass(frozen=True)
class DesiredSlice:
    """The slice that a Pod asks for its unit. ``body`` is the provider's manifest of it."""

    name: str
    unit: Unit
    hash: str
    """The hash of topology, machine and count: equal for two requests that one slice satisfies."""
    size: str
    """The size for messages, as in ``4 hosts of ct6e-standard-4t (4x4)``."""
    body: Mapping[str, Any] = field(repr=False)
    selection: Selection = field(default_factory=Selection, repr=False)
    """The requirements of the unit's Pods for its Nodes."""
    chips: int = 0
    place: Place = _NOWHERE
    """The candidate at which it would be created. Its hash does not depend on it."""
    shape: Shape = _NO_SHAPE

    @property
    def asker(self) -> str:
        """It as the one that asks a candidate (`shared.slices.classes.Refusal.asked_by`)."""
        return f"{self.unit.namespace}/{self.name}"


@dataclass(frozen=True)
class Slice:
    """An existing slice of a unit.

    ``message`` is the cloud's message about its failure. A failed slice may be replaced if it has no
    ready Nodes (``has_ready_nodes``) and the provider does not retry by itself (``is_self_healing``).
    ``was_created`` is false if it never had Nodes.
    ``release_after`` is the release deadline: the slice may be deleted after it, if it is still unused.
    ``since`` is the time of the last state transition or of the last loss of a host, if known.
    ``is_selected``: the labels of its Nodes match the node selector of the Pod that asks for it. Only
    `Provider.find` sets it.
    ``place`` is the candidate at which it was created, read from its spec; ``class_name`` and ``asked``
    are the class and the begin of the Pod's wait that were written at its creation.
    ``has_vms``: it has, or had, a VM, as far as its status shows. ``was_ready``: it was complete.
    ``refusal`` is the reason, and the cloud's words, if its creation was refused. ``can_be_given_up``:
    it only waits, so that it may be deleted for another candidate if `Provider.has_vm` is false.
    """

    name: str
    unit: Unit
    hash: str
    state: SliceState
    message: str = ""
    has_ready_nodes: bool = False
    was_created: bool = True
    is_self_healing: bool = False
    release_after: datetime | None = None
    since: datetime | None = None
    is_selected: bool = True
    chips: int = 0
    place: Place | None = None
    class_name: str = ""
    created: datetime | None = None
    asked: datetime | None = None
    has_vms: bool = True
    was_ready: bool = True
    refusal: tuple[Reason, str] | None = None
    can_be_given_up: bool = False
    raw: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class NameConflict:
    """A resource that has the name of a slice and does not belong to its unit."""

    name: str
    description: str


class Wording(Protocol):
    """How Events and messages name a provider's slices."""

    noun: str
    """The noun for a slice: ``node pool`` or ``TPUNodeGroup``."""
    event_prefix: str
    """The prefix of its Event reasons: ``NodePool`` or ``TPUNodeGroup``."""


class Provider(Wording, Protocol):
    """Creates, reads and deletes slices. Every call may raise `CallError`; reads return ``None`` for
    absence."""

    concurrency_limit: int | None
    """How many slices may change at the same time; a request beyond that fails with 429. ``None``: no
    limit."""

    is_gke: bool

    def find_legacy_class(self, name: str) -> SliceClass | None:
        """What former versions had in the place of a class, by the name of a template, which may be
        empty. Raises `InputError`."""

    def build_desired(
        self, demand: Demand, unit: Unit, cls: SliceClass, place: Place
    ) -> DesiredSlice:
        """The slice that a Pod asks for its unit, at a candidate of a class. Raises `InputError`."""

    def find(self, desired: DesiredSlice) -> Slice | NameConflict | None:
        """The resource that has this name."""

    def has_vm(self, existing: Slice) -> bool:
        """Whether a slice that can be given up has a VM now. True if that cannot be known."""

    def get(self, namespace: str, name: str) -> Slice | None:
        """The slice with this name and its unit's namespace; ``None`` also if it is not a slice."""

    def list_by_owner(self, kind: str, namespace: str, owner: str) -> list[Slice]:
        """The slices of one owner's units."""

    def list_all(self, namespace: str = "", *, with_nodes: bool = True) -> Iterable[Slice]:
        """All slices of units, or those of one namespace. ``with_nodes=False`` may omit
        ``has_ready_nodes`` to save calls."""

    def create(self, desired: DesiredSlice) -> None:
        """Start creating it. Raises `CallError` with 409 if the name exists; the step observes again."""

    def delete(self, existing: Slice) -> bool:
        """Start deleting it, if it is unchanged since it was read (409 if not). Returns ``False`` if it
        was gone."""

    def set_release_deadline(self, existing: Slice, release_after: datetime | None) -> None:
        """Write the release deadline (``None``: remove it), if the slice is unchanged (409 if not)."""


def list_desired(
    provider: Provider, demand: Demand, unit: Unit, classes: Iterable[SliceClass]
) -> tuple[SliceClass, tuple[DesiredSlice, ...]]:
    """The class of a Pod's slice, and the slice at each of its candidates that fit the Pod, of which
    there is at least one. Raises `InputError`."""
    cls = find_class(demand, classes, provider.find_legacy_class, is_gke=provider.is_gke)
    found, errors = list_offers(provider, demand, unit, cls)
    if found:
        return cls, found
    is_final = all(isinstance(one, UnservableError) for one in errors.values())
    error = UnservableError if is_final else InputError
    texts = [*dict.fromkeys(map(str, errors.values()))]
    if len(texts) == 1 and (cls.is_legacy or cls.shown in texts[0]):
        raise error(texts[0])
    if len(texts) != 1:
        texts = [f"{place.key}: {text}" for place, text in errors.items()]
    raise error(f"no candidate of {cls.shown} (spec.candidates) fits the Pod: {'; '.join(texts)}")


def list_offers(
    provider: Provider, demand: Demand, unit: Unit, cls: SliceClass
) -> tuple[tuple[DesiredSlice, ...], dict[Place, InputError]]:
    """The slice at each candidate of a class that fits a Pod, and why the others do not fit."""
    found: list[DesiredSlice] = []
    errors: dict[Place, InputError] = {}
    for place in list_places(demand, cls):
        try:
            if not cls.is_legacy:
                check_place(demand, place)
            found.append(provider.build_desired(demand, unit, cls, place))
        except InputError as error:
            errors[place] = error
    return tuple(found), errors


def short_hash(content: Any) -> str:
    """FNV-1a (32 bits) of the JSON in decimal, each digit mapped to a character that is not a vowel: TPU
    Provisioner's format of a node pool's hash."""
    text, value = json.dumps(content, sort_keys=True, separators=(",", ":")), 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 % 2**32
    return str(value).translate(str.maketrans("0123456789", "456789bcdf"))
