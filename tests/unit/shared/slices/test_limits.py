# ruff: noqa: E501  (a table reads best with a row on a line)
"""What a namespace may have: how the administrator's key is read, and that no limit is ever exceeded."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest

from shared.slices.classes import SliceClass
from shared.slices.limits import RESERVED_FOR, Limit, Limits, Quota, limit_of, parse
from shared.slices.provider import DesiredSlice
from shared.slices.units import InputError
from tests.support.builders import NOW
from tests.unit.functions.provision_slice.objects import DESIRED, READY

KINDS = ("Deployment", "Job", "JobSet")
PLACE = "the key namespaces of the ConfigMap tpu-functions/jobsets"
FORM = "must give a kinds, slices and, if they are limited, chips, as in {kinds: [JobSet], slices: 4, chips: 64}"
NUMBERS = "must give a whole numbers of slices and chips"
LISTED = "must give a a list of kinds, each Deployment, Job or JobSet"
SECOND = timedelta(seconds=1)

ENTRIES = {
    "{kinds: [Deployment, Job], slices: 4, chips: 64}": Limit(
        "a", frozenset({"Deployment", "Job"}), 4, 64
    ),
    "{kinds: [JobSet], slices: 8}": Limit("a", frozenset({"JobSet"}), 8),
    "{kinds: [Job], slices: 0}": Limit("a", frozenset({"Job"}), 0),
    "": FORM,
    "4": FORM,
    "{kinds: [Job]}": FORM,
    "{slices: 4}": FORM,
    "{kinds: [Job], slices: 4, chip: 64}": FORM,
    "{kinds: [], slices: 4}": LISTED,
    "{kinds: Job, slices: 4}": LISTED,
    "{kinds: [Job, Deploymnet], slices: 4}": LISTED,
    "{kinds: [[Job]], slices: 4}": LISTED,
    "{kinds: [Job], slices: -1}": NUMBERS,
    "{kinds: [Job], slices: yes}": NUMBERS,
    "{kinds: [Job], slices: 4.0}": NUMBERS,
    "{kinds: [Job], slices: '4'}": NUMBERS,
    "{kinds: [Job], slices: 4, chips: null}": NUMBERS,
}


@pytest.mark.parametrize("entry, read", ENTRIES.items(), ids=ENTRIES)
def test_an_entry_that_is_not_valid_concerns_its_namespace_alone(
    entry: str, read: Limit | str
) -> None:
    limits = parse(f"a: {entry}\nb: {{kinds: [Job], slices: 1}}", KINDS)
    assert limits.find("Job", "b") == Limit("b", frozenset({"Job"}), 1)
    assert limits.find("Deployment", "b") is None
    assert limits.find("JobSet", "elsewhere") is None
    if isinstance(read, Limit):
        assert [limits.find(kind, "a") for kind in KINDS] == [
            read if kind in read.kinds else None for kind in KINDS
        ]
        return
    for kind in KINDS:
        with pytest.raises(InputError) as refused:
            limits.find(kind, "a")
        assert str(refused.value) == f"{PLACE} {read}"


@pytest.mark.parametrize("text, error", [
    ("a: {", "is not valid YAML: while parsing a flow node"),
    ("[a]", "must be a mapping of namespaces"),
    ("a", "must be a mapping of namespaces"),
    ("'*': {kinds: [Job], slices: 4}", "must name namespaces, but '*' is no name of one"),
])  # fmt: skip
def test_an_error_in_the_whole_key_switches_nothing_on_and_lifts_no_limit(
    text: str, error: str
) -> None:
    with pytest.raises(InputError) as refused:
        parse(text, KINDS).find("JobSet", "anywhere")
    assert str(refused.value).startswith(f"{PLACE} {error}")


@pytest.mark.parametrize("text", ["", "{}", "# none"])
def test_a_key_without_namespaces_lists_none(text: str) -> None:
    assert parse(text, KINDS) == Limits()


LIMIT = Limit("ns", frozenset({"Job"}), 4, 64)


@pytest.mark.parametrize("limit, chips, refusal", [
    (LIMIT, 64, ""),
    (LIMIT, 65, "65 chips, but namespace ns may have 4 slices and 64 chips"),
    (Limit("ns", frozenset(), 1), 65, ""),
    (Limit("ns", frozenset(), 0), 1, "1 chip, but namespace ns may have 0 slices"),
    (Limit("ns", frozenset(), 1, 1), 2, "2 chips, but namespace ns may have 1 slice and 1 chip"),
    (Limit("class.v6e", frozenset(), None, 4), 8, "8 chips, but TPUSliceClass v6e may have 4 chips"),
    (Limit("class.v6e", frozenset(), 1), 8, ""),
])  # fmt: skip
def test_a_slice_that_never_fits_is_refused(limit: Limit, chips: int, refusal: str) -> None:
    try:
        limit.check(chips)
        said = ""
    except InputError as error:
        said = str(error)
    place = "its limits" if limit.class_name else PLACE
    assert said == (refusal and f"the Pod asks for a slice of {refusal} ({place})")


def desired(name: str, chips: int) -> DesiredSlice:
    return replace(DESIRED, name=name, chips=chips)


def ledger(**entries: tuple[int, timedelta]) -> dict[str, Any]:
    """A ledger in which slices with so many chips were reserved so long ago."""
    found = {name: [chips, (NOW - ago).isoformat()] for name, (chips, ago) in entries.items()}
    return {"metadata": {"resourceVersion": "7"}, "data": {"ns": json.dumps(found)}}


FRESH, OLD = RESERVED_FOR - SECOND, RESERVED_FOR
ROOM: dict[str, tuple[Mapping[str, int], dict[str, Any], int, bool]] = {
    "nothing exists": ({}, {}, 64, True),
    "the last slice": ({"a": 4, "b": 4, "c": 4}, {}, 4, True),
    "all slices exist": ({"a": 4, "b": 4, "c": 4, "d": 4}, {}, 4, False),
    "all chips exist": ({"a": 32, "b": 16}, {}, 17, False),
    "some are only reserved": ({"a": 4, "b": 4}, ledger(c=(4, FRESH), d=(4, FRESH)), 4, False),
    "a reservation is old": ({"a": 4, "b": 4}, ledger(c=(4, FRESH), d=(4, OLD)), 4, True),
    "a reservation is from the future": ({"a": 4, "b": 4, "c": 4}, ledger(d=(4, -OLD)), 4, True),
    "a slice exists and is reserved": ({"a": 32}, ledger(a=(32, FRESH)), 32, True),
    "with more chips than it has": ({"a": 4}, ledger(a=(32, FRESH)), 33, False),
    "its own reservation": ({"a": 4, "b": 4, "c": 4}, ledger(own=(4, FRESH)), 4, True),
    "its own reservation for more chips": ({"a": 32}, ledger(own=(64, FRESH)), 4, False),
    "malformed by others": ({"a": 4, "b": 4, "c": 4}, {"data": {"ns": '{"d": [true, "2026"], "e": 4, "f": [4, 5]}', "x": "{"}}, 4, True),
}  # fmt: skip


@pytest.mark.parametrize("case", ROOM.values(), ids=ROOM)
def test_slices_that_exist_or_are_reserved_count_once(case: tuple[Any, Any, int, bool]) -> None:
    existing, document, chips, has_room = case
    data = Quota(LIMIT, existing, document).reserve(desired("own", chips), NOW)
    assert (data is not None) is has_room
    if data is not None:
        assert json.loads(data["ns"])["own"][1] == "2026-11-20T10:00:00Z"


def test_a_reservation_keeps_those_of_others_and_drops_the_old_ones_of_all_namespaces() -> None:
    document = ledger(a=(4, FRESH), b=(8, OLD))
    document["data"] |= {"old": json.dumps({"c": [4, "2026-11-20T09:00:00Z"]})}
    data = Quota(LIMIT, {}, document).reserve(desired("own", 16), NOW)
    assert data is not None
    assert {name: sorted(json.loads(text)) for name, text in data.items()} == {"ns": ["a", "own"]}
    assert Quota(LIMIT, {"d": 4}, {"data": data}).show_used(NOW) == "has 3 slices with 24 chips"


@pytest.mark.parametrize(
    "listed, counted", [("JobSet", {"a", "b", "c"}), ("Deployment", {"b", "c"})]
)
def test_slices_of_jobsets_count_only_if_jobsets_are_listed(listed: str, counted: set[str]) -> None:
    units = {"a": "JobSet", "b": "Deployment", "c": "Job"}
    slices = [
        replace(READY, name=name, unit=replace(READY.unit, kind=kind))
        for name, kind in units.items()
    ]
    limit = Limit("default", frozenset({listed}), 4)
    assert {*Quota.of([limit], slices, {}).existing} == counted


OF_CLASS = Limit("class.v6e", frozenset(), 2, 64)
BOTH: dict[str, tuple[Mapping[str, int], Mapping[str, int], int, str]] = {
    "neither is full": ({"a": 4}, {"a": 4}, 4, ""),
    "the namespace is full": ({"a": 4, "b": 4, "c": 4, "d": 4}, {"a": 4}, 4, "ns"),
    "the class is full": ({"a": 4}, {"a": 4, "x": 4}, 4, "class.v6e"),
    "both are full": ({"a": 64}, {"a": 64}, 4, "ns"),
    "the class has too few chips": ({}, {"x": 32}, 33, "class.v6e"),
}


@pytest.mark.parametrize("case", BOTH.values(), ids=BOTH)
def test_a_slice_is_reserved_for_namespace_and_class_at_once_or_for_none(
    case: tuple[Mapping[str, int], Mapping[str, int], int, str],
) -> None:
    of_namespace, of_class, chips, full = case
    document = ledger(z=(1, OLD))
    quota = Quota(LIMIT, of_namespace, document, Quota(OF_CLASS, of_class, document))
    found = quota.find_full(desired("own", chips), NOW)
    assert (found.limit.key if found else "") == full
    data = quota.reserve(desired("own", chips), NOW)
    assert (data is None) is bool(full)
    if data is not None:
        entry = [chips, "2026-11-20T10:00:00Z"]
        own = {"own": entry}
        read = {key: json.loads(text) for key, text in data.items()}
        assert read == {"ns": own, "class.v6e": own}
        assert quota.count_room(NOW) == 1
        later = replace(quota, ledger={"data": data})
        assert later.reserve(desired("next", 4), NOW) is None
        assert later.reserve(desired("own", chips), NOW) == data


TOGETHER: dict[str, tuple[Mapping[str, int], str]] = {
    "both fit": ({"own": 20, "next": 20}, ""),
    "the class has too few chips": ({"own": 20, "next": 21}, "class.v6e"),
    "the class has too few slices": ({"own": 4, "next": 4, "last": 4}, "class.v6e"),
    "the namespace has too few slices": ({"own": 4, "next": 4, "last": 4, "more": 4}, "ns"),
}


@pytest.mark.parametrize("together, full", TOGETHER.values(), ids=TOGETHER)
def test_the_slices_of_a_request_are_reserved_together_or_none_is(
    together: Mapping[str, int], full: str
) -> None:
    of_class = replace(OF_CLASS, chips=40)
    quota = Quota(LIMIT, {"a": 4}, {}, Quota(of_class, {}, {}))
    joined = quota.join({LIMIT: together, of_class: together})
    found = joined.find_full(desired("own", together["own"]), NOW)
    assert (found.limit.key if found else "") == full
    data = joined.reserve(desired("own", together["own"]), NOW)
    assert (data is None) is bool(full)
    if data is not None:
        assert {key: sorted(json.loads(text)) for key, text in data.items()} == {
            "ns": ["next", "own"],
            "class.v6e": ["next", "own"],
        }
        again = replace(joined, ledger={"data": data}).reserve(desired("next", 20), NOW)
        assert again == data, "it has its place already"


def test_the_slices_of_a_class_count_in_all_namespaces() -> None:
    slices = [
        replace(READY, name=name, class_name=of, unit=replace(READY.unit, namespace=namespace))
        for name, of, namespace in (("a", "v6e", "x"), ("b", "v6e", "y"), ("c", "v5e", "x"))
    ]
    quota = Quota.of([Limit("x", frozenset({"JobSet"}), 4), OF_CLASS], slices, {})
    assert {*quota.existing} == {"a", "c"}
    assert quota.also is not None
    assert {*quota.also.existing} == {"a", "b"}


@pytest.mark.parametrize(
    "slices, chips, limit",
    [
        (None, None, None),
        (2, None, "2 slices"),
        (None, 8, "8 chips"),
        (0, 0, "0 slices and 0 chips"),
    ],
)
def test_a_class_is_limited_by_slices_chips_or_both(
    slices: int | None, chips: int | None, limit: str | None
) -> None:
    found = limit_of(SliceClass("v6e", slices=slices, chips=chips))
    assert (found and found.shown) == (limit and f"TPUSliceClass v6e may have {limit} (its limits)")
    if found is not None:
        assert Quota(found, {"a": 4}, {}).count_room(NOW) == (
            0 if limit == "0 slices and 0 chips" else 1 if slices else sys.maxsize
        )


@dataclass
class World:
    """A cluster with one namespace. Invocations interleave at each of their calls."""

    random: Random
    limit: Limit
    now: datetime = NOW
    slices: dict[str, int] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    version: int = 0
    sent: list[tuple[datetime, str, int]] = field(default_factory=list)
    full: int = 0
    lost: int = 0
    created: int = 0

    def invoke(self, name: str, chips: int) -> Iterator[None]:
        """What provision_slice does for a Pod. It may be killed where it yields."""
        began = self.now
        data, version, existing = self.data, self.version, dict(self.slices)
        yield
        if self.random.random() < 0.5:
            data, version = self.data, self.version
        else:
            existing = dict(self.slices)
        while True:
            reserved = Quota(self.limit, existing, {"data": data}).reserve(
                desired(name, chips), began
            )
            if name in existing or reserved is None:
                self.full += reserved is None
                return
            yield
            if self.now - began > 30 * SECOND:
                return
            if self.version == version:
                self.data, self.version = reserved, version + 1
                break
            self.lost += 1
            yield
            data, version = self.data, self.version
        yield
        if self.now - began <= 30 * SECOND:
            # The API server may be slow, but answers no request later than after a minute.
            late = self.random.choice((0, 10, 59)) * SECOND
            self.sent.append((self.now + late, name, chips))
            self.let_pass(0)

    def let_pass(self, seconds: int) -> None:
        self.now += seconds * SECOND
        for one in [one for one in self.sent if one[0] <= self.now]:
            self.sent.remove(one)
            self.created += one[1] not in self.slices
            self.slices.setdefault(one[1], one[2])

    def check(self) -> None:
        assert self.limit.fits(len(self.slices), sum(self.slices.values())), self.slices


def run(world: World, demands: int, killed: float, rounds: int) -> None:
    """Let Pods ask again and again, while processes are killed and slices are released."""
    random, running = world.random, list[Iterator[None]]()
    for _ in range(rounds):
        if len(running) < demands:
            running.append(world.invoke(f"s{random.randrange(demands)}", random.choice((4, 8, 16))))
        one = random.choice(running)
        if random.random() < killed or next(one, one) is one:
            running.remove(one)
        if random.random() < 2 / demands:
            world.let_pass(random.choice((1, 2, 5, 20)))
        if world.slices and random.random() < 0.05:
            del world.slices[random.choice([*world.slices])]
        world.check()


@pytest.mark.parametrize("demands, killed", [(50, 0.0), (20, 0.1), (8, 0.0)])
@pytest.mark.parametrize("seed", range(20))
def test_no_limit_is_exceeded_whatever_the_order_of_calls(
    seed: int, demands: int, killed: float
) -> None:
    world = World(Random(seed), LIMIT)
    run(world, demands, killed, 3_000)
    assert min(world.full, world.lost, world.created) > 20
