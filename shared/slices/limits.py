"""In which namespaces which kinds of workloads get slices, and how many slices and chips each may have.

The cluster's administrator lists namespaces in the ConfigMap ``jobsets``. Slices are counted by name,
from two sources: those that exist, and those in the ledger, a ConfigMap in which each creation is
reserved first, by compare-and-swap. A reservation counts for `RESERVED_FOR` and is dropped by its age
alone: that the slice exists does not show that another invocation, whose list may be older, has seen it.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from shared.base.documents import Document, parse_json, parse_yaml, read_mapping, read_texts
from shared.base.fields import any_of, count, show
from shared.base.names import JOBSET_KIND, SYSTEM_NAMESPACE, is_dns_label
from shared.base.timestamps import guess_time, render_time
from shared.slices.provider import DesiredSlice, Slice
from shared.slices.units import InputError

NAMESPACES_KEY = "namespaces"
PLACE = f"the key {NAMESPACES_KEY} of the ConfigMap {SYSTEM_NAMESPACE}/jobsets"
RESERVED_FOR = timedelta(minutes=2)
"""How long a reservation counts. No call is sent later than 30 seconds after the begin of its
observation, so a slice that is not listed by then is not created any more."""


@dataclass(frozen=True)
class Limit:
    """What a namespace may have. ``kinds`` are switched on; ``None`` as ``chips`` limits only slices."""

    namespace: str
    kinds: frozenset[str]
    slices: int
    chips: int | None = None

    @property
    def shown(self) -> str:
        """The limit in words."""
        chips = "" if self.chips is None else f" and {count(self.chips, 'chip')}"
        return f"{count(self.slices, 'slice')}{chips}"

    def fits(self, slices: int, chips: int) -> bool:
        """Whether the namespace may have so many."""
        return slices <= self.slices and (self.chips is None or chips <= self.chips)

    def check(self, chips: int) -> None:
        """Raises `InputError` if the namespace may not even have this slice alone."""
        if not self.fits(1, chips):
            asked = f"the Pod asks for a slice of {count(chips, 'chip')}"
            raise InputError(
                f"{asked}, but namespace {self.namespace} may have {self.shown} ({PLACE})"
            )


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
    """A namespace's limit, and what it has. ``existing`` are the chips of its slices, by name.

    Slices and ledger may be read in any order, but not before the time ``now`` by which reservations are
    dropped. After a conflict the ledger alone is read again.
    """

    limit: Limit
    existing: Mapping[str, int]
    ledger: Document = field(repr=False)
    """The ConfigMap: for each namespace, in JSON, the chips and the time of slices by name."""

    @classmethod
    def of(cls, limit: Limit, slices: Iterable[Slice], ledger: Document) -> "Quota":
        """The quota of the limit's namespace, whose slices are among these. Those of JobSets count only
        if JobSets are listed."""
        own = (one for one in slices if one.unit.namespace == limit.namespace)
        counted = (
            one for one in own if one.unit.kind in limit.kinds or one.unit.kind != JOBSET_KIND
        )
        return cls(limit, {one.name: one.chips for one in counted}, ledger)

    def find_used(self, now: datetime) -> Mapping[str, int]:
        """The chips of the slices that exist or are reserved, by name."""
        used = dict(self.existing)
        for name, (chips, _) in _read(self.ledger, now).get(self.limit.namespace, {}).items():
            used[name] = max(chips, used.get(name, 0))
        return used

    def show_used(self, now: datetime) -> str:
        """What the namespace has, in words."""
        used = self.find_used(now)
        return f"has {count(len(used), 'slice')} with {count(sum(used.values()), 'chip')}"

    def count_room(self, now: datetime) -> int:
        """How many more slices the namespace may have."""
        return max(0, self.limit.slices - len(self.find_used(now)))

    def has_room(self, desired: DesiredSlice, now: datetime) -> bool:
        """Whether the slice may be created. What it has reserved before does not count twice."""
        used = {**self.find_used(now), desired.name: desired.chips}
        return self.limit.fits(len(used), sum(used.values()))

    def reserve(self, desired: DesiredSlice, now: datetime) -> dict[str, str] | None:
        """The data of the ledger with a reservation of the slice; ``None`` if there is no room.

        An earlier reservation of the same slice may have been for more chips, and its creation may still
        be under way: the larger number counts.
        """
        entries, name = _read(self.ledger, now), desired.name
        own = entries.setdefault(self.limit.namespace, {})
        chips = max(desired.chips, own.get(name, (0, ""))[0])
        if not self.has_room(replace(desired, chips=chips), now):
            return None
        own[name] = (chips, render_time(now))
        return {one: json.dumps(found) for one, found in entries.items() if found}


def _read(ledger: Document, now: datetime) -> dict[str, dict[str, tuple[int, str]]]:
    """The reservations that count, by namespace and slice. What is malformed was written by others."""
    found: dict[str, dict[str, tuple[int, str]]] = {}
    for namespace, text in read_texts(ledger, "data").items():
        try:
            entries = read_mapping({"": parse_json(text.encode())}, "")
        except ValueError:
            continue
        found[namespace] = {
            name: (entry[0], entry[1])
            for name, entry in entries.items()
            if isinstance(entry, list)
            and [type(one) for one in entry] == [int, str]
            and (at := guess_time(entry[1])) is not None
            and abs(now - at) < RESERVED_FOR
        }
    return found
