"""A slice for a Job, whoever makes it: what the steps of JobSets know of GKE's node pools and of
TPUNodeGroups alike.

A provider says what a Job wants, what there is, and carries out creates and deletes, a call each. What
is to be done is decided by ``provision_slice`` and ``release_slice`` from these values alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol

from shared.slices.jobsets import Leader

RELEASE_AFTER = timedelta(seconds=30)
"""A slice outlives the end of its JobSet by this: one that is made again at once keeps it."""
_KEY_LENGTH = 16
_MAX_NAME = 40
"""What a node pool's name may have (documented)."""


class SliceState(StrEnum):
    """Where a slice stands."""

    COMING = "Coming"
    READY = "Ready"
    TROUBLED = "Troubled"
    """It cannot be made, or was lost: ``words`` say why."""
    GOING = "Going"


class InputError(Exception):
    """What a Pod asks for cannot be made, now or later; the text says what would be right."""


@dataclass(frozen=True)
class Owner:
    """The Job that a slice was made for, and its JobSet."""

    namespace: str
    jobset: str
    job: str


@dataclass(frozen=True)
class Wanted:
    """What a Job's leader asks for. ``body`` is the provider's own manifest of it."""

    name: str
    owner: Owner
    hash: str
    """Equal for two wishes that one slice fulfils; topology, machine and count are part of it."""
    size: str
    """For a person, as in ``4 hosts of ct6e-standard-4t (4x4)``."""
    body: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Slice:
    """A slice that was made for a JobSet's Job.

    ``words`` is what the cloud says of its trouble. Of a troubled one, ``has_ready_nodes`` and
    ``mends_itself`` (its maker goes on trying) say whether it may be replaced.
    ``release_after`` is the stamp: from then on it may go, if nobody wants it then either.
    ``since`` is when it got into its state, as far as that is known.
    """

    name: str
    owner: Owner
    hash: str
    state: SliceState
    words: str = ""
    has_ready_nodes: bool = False
    mends_itself: bool = False
    release_after: datetime | None = None
    since: datetime | None = None
    raw: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Clash:
    """Something that has the name of a slice and was not made for this Job."""

    name: str
    whose: str


class Naming(Protocol):
    """How a provider's slices are spoken of."""

    noun: str
    """What a slice is there, for a person: ``node pool`` or ``TPUNodeGroup``."""
    event_prefix: str
    """What the reasons of its Events begin with: ``NodePool`` or ``TPUNodeGroup``."""


class Provider(Naming, Protocol):
    """Who makes slices. Every call may raise `CallError`; reads tell absence by ``None``."""

    at_once: int | None
    """How many slices it changes at a time: what is asked beyond that is refused (429). ``None``: any
    number."""

    def want(self, leader: Leader) -> Wanted:
        """What a leader asks for. Raises `InputError`."""

    def find(self, wanted: Wanted) -> Slice | Clash | None:
        """What there is by that name."""

    def get(self, namespace: str, name: str) -> Slice | None:
        """A slice by its name and its JobSet's namespace; ``None`` also for what is no slice of ours."""

    def list_of(self, namespace: str, jobset: str) -> list[Slice]:
        """The slices of one JobSet."""

    def list_all(self, *, with_nodes: bool = True) -> Iterable[Slice]:
        """All slices that were made for JobSets; without asking for ``has_ready_nodes``, if it costs."""

    def create(self, wanted: Wanted) -> None:
        """Begin to make it. Raises `CallError` with 409 if it is there already: the step looks again."""

    def delete(self, existing: Slice) -> bool:
        """Begin to delete it, if it is still as it was read; ``False`` if it was gone."""

    def stamp(self, existing: Slice, release_after: datetime | None) -> None:
        """Write down from when on it may go, or that it may not."""


def slice_name(jobset: str, job_key: str) -> str:
    """The name of a Job's slice: at most 40 characters, of which 16 are the Job's own (64 bits)."""
    key = job_key[:_KEY_LENGTH]
    return f"{jobset[: _MAX_NAME - 1 - len(key)].rstrip('-.')}-{key}".replace(".", "-")


def short_hash(text: str) -> str:
    """FNV-1a (32 bits) in decimal, its digits as ten characters that are no vowels: TPU Provisioner's
    form of a node pool's hash."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 % 2**32
    return str(value).translate(str.maketrans("0123456789", "456789bcdf"))
