"""In which namespaces which kinds of workloads get slices, and how many slices and chips each may have.

The cluster's administrator lists namespaces in the ConfigMap ``jobsets``; a TPUSliceClass has a limit of
its own. Slices are counted by name, from two sources: those that exist, and those in the ledger, a
ConfigMap in which each creation is reserved first, by compare-and-swap. It has the reservations of
namespaces and of classes, because two objects cannot be written together. A reservation counts for
`RESERVED_FOR` and is dropped by its age alone: that the slice exists does not show that another
invocation, whose list may be older, has seen it.
"""

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from shared.base.documents import Document, parse_json, parse_yaml, read_mapping, read_texts
from shared.base.fields import any_of, count, show
from shared.base.names import JOBSET_KIND, SYSTEM_NAMESPACE, is_dns_label
from shared.base.timestamps import guess_time, render_time
from shared.slices.classes import CLASS_KIND, SliceClass
from shared.slices.provider import DesiredSlice, Slice
from shared.slices.units import InputError

NAMESPACES_KEY = "namespaces"
PLACE = f"the key {NAMESPACES_KEY} of the ConfigMap {SYSTEM_NAMESPACE}/jobsets"
_CLASS = "class."
"""Before the name of a class in the ledger. No name of a namespace has a dot."""
RESERVED_FOR = timedelta(minutes=2)
"""How long a reservation counts. No call is sent later than 30 seconds after the begin of its
observation, so a slice that is not listed by then is not created any more."""


@dataclass(frozen=True)
class Limit:
    """What a namespace or a class may have; ``None`` is no limit. ``key`` is its key in the ledger: a
    namespace, or `_CLASS` and a class. ``kinds`` are those that are switched on in a namespace."""

    key: str
    kinds: frozenset[str]
    slices: int | None
    chips: int | None = None

    @property
    def class_name(self) -> str:
        """The class whose limit it is; empty for a namespace's."""
        return self.key.removeprefix(_CLASS) if self.key.startswith(_CLASS) else ""

    @property
    def shown(self) -> str:
        """The limit in words, with whose it is."""
        found = ((self.slices, "slice"), (self.chips, "chip"))
        most = " and ".join(count(number, noun) for number, noun in found if number is not None)
        if self.class_name:
            return f"{CLASS_KIND} {self.class_name} may have {most} (its limits)"
        return f"namespace {self.key} may have {most} ({PLACE})"

    def counts(self, one: Slice) -> bool:
        """Whether a slice counts. Those of JobSets count in a namespace only if JobSets are listed."""
        if self.class_name:
            return one.class_name == self.class_name
        is_listed = one.unit.kind in self.kinds or one.unit.kind != JOBSET_KIND
        return is_listed and one.unit.namespace == self.key

    def fits(self, slices: int, chips: int) -> bool:
        """Whether there may be so many."""
        found = ((slices, self.slices), (chips, self.chips))
        return all(most is None or number <= most for number, most in found)

    def check(self, chips: int, slices: int = 1) -> None:
        """Raises `InputError` if there may not even be this slice alone, or these of a request."""
        if not self.fits(slices, chips):
            asked = f"the Pod asks for a slice of {count(chips, 'chip')}"
            if slices > 1:
                asked = f"the request asks for {slices} slices with {count(chips, 'chip')}"
            raise InputError(f"{asked}, but {self.shown}")


def limit_of(of: SliceClass) -> Limit | None:
    """The limit of a class; ``None`` if it has none."""
    has_none = of.slices is None and of.chips is None
    return None if has_none else Limit(f"{_CLASS}{of.name}", frozenset(), of.slices, of.chips)


@dataclass(frozen=True)
class Limits:
    """The key, read: for each namespace its limit or what is wrong, and what is wrong in the whole."""

    entries: Mapping[str, Limit | str] = field(default_factory=dict)
    error: str = ""

    def find(self, kind: str, namespace: str) -> Limit | None:
        """The limit for slices of a kind; ``None`` if it is not listed. JobSets, which need no switch,
        are not limited then.

        Raises `InputError` for an error in the key: it neither switches a kind on nor lifts a limit.
        """
        entry = self.error or self.entries.get(namespace)
        if isinstance(entry, str):
            raise InputError(f"{PLACE} {entry}")
        return entry if entry is not None and kind in entry.kinds else None


@lru_cache(maxsize=1)
def parse(text: str, kinds: tuple[str, ...]) -> Limits:
    """Read the key. ``kinds`` are those that there are."""
    try:
        found = parse_yaml(text)
    except ValueError as error:
        return Limits(error=f"is not valid YAML: {error}")
    if not isinstance(found, dict | None):
        return Limits(error="must be a mapping of namespaces")
    for name in found or ():
        if not is_dns_label(name):
            return Limits(error=f"must name namespaces, but {show(name)} is no name of one")
    return Limits({name: _parse(name, entry, kinds) for name, entry in (found or {}).items()})


def _parse(namespace: str, entry: Any, kinds: Collection[str]) -> Limit | str:
    """The limit of a namespace, or what is wrong."""
    required, allowed = {"kinds", "slices"}, {"kinds", "slices", "chips"}
    if not isinstance(entry, dict) or not required <= entry.keys() <= allowed:
        example = f"{{kinds: [{JOBSET_KIND}], slices: 4, chips: 64}}"
        return (
            f"must give {namespace} kinds, slices and, if they are limited, chips, as in {example}"
        )
    listed = entry["kinds"]
    if not isinstance(listed, list) or not listed or not all(one in [*kinds] for one in listed):
        return f"must give {namespace} a list of kinds, each {any_of(sorted(kinds))}"
    numbers = [entry[key] for key in ("slices", "chips") if key in entry]
    if not all(type(one) is int and one >= 0 for one in numbers):
        return f"must give {namespace} whole numbers of slices and chips"
    return Limit(namespace, frozenset(listed), *numbers)


@dataclass(frozen=True)
class Quota:
    """A limit, and what counts. ``existing`` are the chips of its slices, by name. ``also`` is the quota
    of a class beside that of a namespace. ``together`` are the chips of the slices of one request, by
    name: each is reserved with the others, because a part would be billed and wait for the rest.

    Slices and ledger may be read in any order, but not before the time ``now`` by which reservations are
    dropped. After a conflict the ledger alone is read again.
    """

    limit: Limit
    existing: Mapping[str, int]
    ledger: Document = field(repr=False)
    """The ConfigMap: for each `Limit.key`, in JSON, the chips and the time of slices by name."""
    also: "Quota | None" = None
    together: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, limits: Sequence[Limit], slices: Collection[Slice], ledger: Document) -> "Quota":
        """The quota of these limits, whose slices are among these."""
        limit, *others = limits
        existing = {one.name: one.chips for one in slices if limit.counts(one)}
        return cls(limit, existing, ledger, cls.of(others, slices, ledger) if others else None)

    def list_limits(self) -> Sequence[Limit]:
        """All limits of the slice."""
        return (self.limit, *(self.also.list_limits() if self.also is not None else ()))

    def join(self, together: Mapping[Limit, Mapping[str, int]]) -> "Quota":
        """The quota for a slice that is created together with these, by limit."""
        also = self.also.join(together) if self.also is not None else None
        return replace(self, together=together[self.limit], also=also)

    def find_used(self, now: datetime) -> Mapping[str, int]:
        """The chips of the slices that exist or are reserved, by name."""
        used = dict(self.existing)
        for name, (chips, _) in _read(self.ledger, now).get(self.limit.key, {}).items():
            used[name] = max(chips, used.get(name, 0))
        return used

    def show_used(self, now: datetime) -> str:
        """What counts, in words, and what a request needs beside it."""
        used = self.find_used(now)
        shown = f"has {count(len(used), 'slice')} with {count(sum(used.values()), 'chip')}"
        more = len(self.together.keys() - used.keys())
        return f"{shown}, and no room for {more} more together" if more > 1 else shown

    def count_room(self, now: datetime) -> int:
        """How many more slices there may be."""
        used, most = self.find_used(now), self.limit.slices
        room = sys.maxsize if most is None else max(0, most - len(used))
        if not self.limit.fits(0, sum(used.values()) + 1):
            return 0
        return min(room, self.also.count_room(now)) if self.also is not None else room

    def find_full(self, desired: DesiredSlice, now: datetime) -> "Quota | None":
        """The quota that has no room for the slice and those together with it. What is reserved for them
        counts once."""
        used = {**self.find_used(now), **self.together, desired.name: desired.chips}
        if not self.limit.fits(len(used), sum(used.values())):
            return self
        return self.also.find_full(desired, now) if self.also is not None else None

    def reserve(self, desired: DesiredSlice, now: datetime) -> dict[str, str] | None:
        """The data of the ledger with a reservation of the slice and of those together with it; ``None``
        if there is no room.

        An earlier reservation of the same slice may have been for more chips, and its creation may still
        be under way: the larger number counts.
        """
        entries = _read(self.ledger, now)
        own = entries.setdefault(self.limit.key, {})
        asked = {**self.together, desired.name: desired.chips}
        asked = {name: max(chips, own.get(name, (0, ""))[0]) for name, chips in asked.items()}
        used = {**self.find_used(now), **asked}
        if not self.limit.fits(len(used), sum(used.values())):
            return None
        own |= {name: (chips, render_time(now)) for name, chips in asked.items()}
        data = {one: json.dumps(found) for one, found in entries.items() if found}
        if self.also is None:
            return data
        return replace(self.also, ledger={**self.ledger, "data": data}).reserve(desired, now)


def _read(ledger: Document, now: datetime) -> dict[str, dict[str, tuple[int, str]]]:
    """The reservations that count, by `Limit.key` and slice. What is malformed was written by others."""
    found: dict[str, dict[str, tuple[int, str]]] = {}
    for key, text in read_texts(ledger, "data").items():
        try:
            entries = read_mapping({"": parse_json(text.encode())}, "")
        except ValueError:
            continue
        found[key] = {
            name: (entry[0], entry[1])
            for name, entry in entries.items()
            if isinstance(entry, list)
            and [type(one) for one in entry] == [int, str]
            and (at := guess_time(entry[1])) is not None
            and abs(now - at) < RESERVED_FOR
        }
    return found
