# ruff: noqa: E501  (a table reads best with a row on a line)
"""Which candidate a slice is asked from, and what is remembered of refusals."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.base.reasons import Reason, find_advice
from shared.frame.plan import StaleObservation
from shared.slices.actions import UpdateClass
from shared.slices.candidates import (
    FORGOTTEN_AFTER,
    MAX_MESSAGE,
    MAX_REFUSALS,
    REMEMBERED_FOR,
    WAITED,
    ClaimCandidate,
    Forget,
    Move,
    RecordRefusal,
    Refusals,
    apply,
    choose,
    find_next,
    find_record,
)
from shared.slices.classes import Place, Refusal, Shape, SliceClass
from shared.slices.provider import Slice, SliceState
from shared.slices.units import Unit
from tests.support.builders import NOW

MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)
GIVE_UP = 2 * MINUTE
SHAPE, OTHER_SHAPE = Shape("ct6e-standard-4t", "4x4"), Shape("ct6e-standard-4t", "2x4")
TOP, MIDDLE, LAST = ALL = tuple(Place(zone) for zone in ("us-a", "us-b", "us-c"))
FLEX, ELSEWHERE = Place("us-b", "FLEX_START"), Place("us-x")
ME, OTHER = "default/job-a", "default/job-b"
NO_CAPACITY = (Reason.INSUFFICIENT_CAPACITY, "no capacity")
RECENT, PAST, LONG_PAST = NOW - 2 * MINUTE, NOW - 10 * MINUTE, NOW - 15 * MINUTE


def refusal(
    place: Place = TOP,
    shape: Shape = SHAPE,
    *,
    at: datetime = RECENT,
    by: str = "",
    reason: str = Reason.INSUFFICIENT_CAPACITY,
    since: datetime | None = None,
) -> Refusal:
    """A refusal that was recorded, or claimed by a slice, at a time."""
    until = at + REMEMBERED_FOR
    return Refusal(place.key, shape, reason, "no capacity", since or at, until, by)


def a_class(*refusals: Refusal, places: Iterable[Place] = ALL) -> SliceClass:
    return SliceClass("v6e", tuple(places), give_up_after=GIVE_UP, refusals=refusals)


CHOICES: dict[str, tuple[Refusals, Place | None]] = {
    "nothing is remembered": ((), TOP),
    "the first one has refused": ((refusal(),), MIDDLE),
    "it has refused another shape": ((refusal(shape=OTHER_SHAPE),), TOP),
    "its refusal has ended": ((refusal(at=PAST),), TOP),
    "its refusal ends now": ((refusal(at=NOW - REMEMBERED_FOR),), TOP),
    "another slice has claimed it": ((refusal(by=OTHER),), MIDDLE),
    "this slice has claimed it": ((refusal(by=ME),), TOP),
    "the claim of another slice has ended": ((refusal(by=OTHER, at=PAST),), TOP),
    "all have refused": (tuple(map(refusal, ALL)), None),
}


@pytest.mark.parametrize("case", CHOICES.values(), ids=CHOICES)
def test_the_first_candidate_that_may_be_asked_is_chosen(
    case: tuple[Refusals, Place | None],
) -> None:
    known, chosen = case
    assert choose(a_class(*known), ALL, SHAPE, ME, NOW) == chosen


RECORD = RecordRefusal(TOP, SHAPE, ME, *NO_CAPACITY)
CLAIM, FORGET = ClaimCandidate(TOP, SHAPE, ME, GIVE_UP), Forget(TOP, SHAPE, ME)
KEPT = refusal(MIDDLE), refusal(shape=OTHER_SHAPE)
NEW = refusal(at=NOW)
CHANGES: dict[str, tuple[Any, Refusals, Refusals]] = {
    "the first refusal": (RECORD, (), (NEW,)),
    "a refusal that is remembered": (RECORD, (refusal(),), (refusal(),)),
    "a refusal that has ended": (RECORD, (refusal(at=PAST),), (replace(NEW, since=PAST),)),
    "another reason than before": (RECORD, (refusal(at=PAST, reason=WAITED),), (NEW,)),
    "the refusal of the own claim": (RECORD, (refusal(by=ME),), (replace(NEW, since=RECENT),)),
    "a refusal while another slice asks": (RECORD, (refusal(by=OTHER),), (refusal(by=OTHER),)),
    "a claim of what has never refused": (CLAIM, (), ()),
    "a claim of what has refused": (CLAIM, (refusal(at=PAST),), (replace(NEW, since=PAST, asked_by=ME),)),
    "a claim of what refused long ago": (CLAIM, (refusal(at=LONG_PAST),), ()),
    "a claim again": (CLAIM, (refusal(by=ME),), (refusal(by=ME),)),
    "a claim of an ended claim": (CLAIM, (refusal(by=OTHER, at=PAST),), (replace(NEW, since=PAST, asked_by=ME),)),
    "a claim for a long wait": (replace(CLAIM, give_up_after=9 * MINUTE), (refusal(at=PAST),), (replace(NEW, since=PAST, asked_by=ME, until=NOW + 10 * MINUTE),)),
    "a grant without a claim": (FORGET, (refusal(),), (refusal(),)),
    "a grant": (FORGET, (refusal(by=ME),), ()),
    "a grant after the claim has ended": (FORGET, (refusal(by=ME, at=PAST),), ()),
    "a grant while another slice asks": (FORGET, (refusal(by=OTHER),), (refusal(by=OTHER),)),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGES.values(), ids=CHANGES)
def test_a_change_concerns_its_candidate_and_shape_alone(
    case: tuple[Any, Refusals, Refusals],
) -> None:
    change, before, after = case
    assert set(apply([change], (*KEPT, *before), NOW)) == {*KEPT, *after}


@pytest.mark.parametrize("by", ["", OTHER])
def test_a_claim_fails_if_the_candidate_was_refused_or_claimed_at_the_same_time(by: str) -> None:
    with pytest.raises(StaleObservation, match="us-a/STANDARD was refused or claimed"):
        apply([CLAIM], (refusal(by=by),), NOW)


def test_the_status_keeps_the_refusals_that_end_last_and_short_messages() -> None:
    before = tuple(
        refusal(Place(f"us-{n}"), at=PAST + n * SECOND, since=PAST - n * SECOND)
        for n in range(MAX_REFUSALS)
    )
    after = apply([replace(RECORD, message="x" * 1000)], before, NOW)
    assert after == (*before[1:], replace(NEW, message="x" * MAX_MESSAGE))


def a_slice(place: Place | None = TOP, **fields: Any) -> Slice:
    """A slice that was refused for lack of capacity ten seconds ago."""
    given: dict[str, Any] = {
        "name": "job-a",
        "unit": Unit("JobSet", "default", "job", "a"),
        "place": place,
        "has_vms": False,
        "refusal": NO_CAPACITY,
        "created": NOW - 30 * SECOND,
        "since": NOW - 10 * SECOND,
    }
    return Slice(**{"hash": "", "state": SliceState.FAILED, **given, **fields})


def waiting(place: Place = TOP, *, for_: timedelta = GIVE_UP, **fields: Any) -> Slice:
    given = {"created": NOW - for_, "refusal": None, "can_be_given_up": True}
    return a_slice(place, **{**given, **fields})


def to(place: Place, *refused: RecordRefusal, must_check: bool = False) -> Move:
    claim = ClaimCandidate(place, SHAPE, ME, GIVE_UP)
    return Move(place, (*refused, claim), must_check=must_check)


def waited(place: Place, words: str = "no VM within 120 s") -> RecordRefusal:
    return RecordRefusal(place, SHAPE, ME, WAITED, words)


QUOTA = (Reason.QUOTA_EXCEEDED, "quota")
YOUNG: Any = {"for_": MINUTE}
NEXT: dict[str, tuple[Slice, SliceClass, Move | None]] = {
    "refused": (a_slice(), a_class(), to(MIDDLE, RECORD)),
    "refused by the last one": (a_slice(LAST), a_class(), to(TOP, replace(RECORD, place=LAST))),
    "refused, and it is recorded already": (a_slice(), a_class(refusal()), to(MIDDLE, RECORD)),
    "refused, and the next one has refused, too": (a_slice(), a_class(refusal(MIDDLE)), to(LAST, RECORD)),
    "refused, and the refusal of the first one has ended": (a_slice(LAST), a_class(refusal(at=PAST)), to(TOP, replace(RECORD, place=LAST))),
    "refused, and no other may be asked": (a_slice(), a_class(refusal(MIDDLE), refusal(LAST)), None),
    "refused by the only candidate": (a_slice(), a_class(places=[TOP]), None),
    "refused by a full quota": (a_slice(refusal=QUOTA), a_class(), to(MIDDLE, RecordRefusal(TOP, SHAPE, ME, *QUOTA))),
    "refused for lack of a permission": (a_slice(refusal=(Reason.PERMISSION_DENIED, "no")), a_class(), None),
    "refused for long": (a_slice(since=NOW - MINUTE), a_class(), to(MIDDLE, RECORD, must_check=True)),
    "refused, it is not known since when": (a_slice(since=None, created=None), a_class(), to(MIDDLE, RECORD)),
    "refused, and it has VMs": (a_slice(has_vms=True), a_class(), None),
    "its candidate cannot be read": (a_slice(None), a_class(), None),
    "waits for long": (waiting(), a_class(), to(MIDDLE, waited(TOP), must_check=True)),
    "waits for long, with the cloud's words": (waiting(message="busy"), a_class(), to(MIDDLE, waited(TOP, "busy"), must_check=True)),
    "waits for long, with an advice for people": (waiting(message=f"busy. {find_advice(Reason.INSUFFICIENT_CAPACITY)}"), a_class(), to(MIDDLE, waited(TOP, "busy"), must_check=True)),
    "waits for a short time": (waiting(**YOUNG), a_class(), None),
    "waits for long, and has VMs": (waiting(has_vms=True), a_class(), None),
    "waits for long, and the provider cannot delete it": (waiting(can_be_given_up=False), a_class(), None),
    "waits at the last one": (waiting(LAST, for_=60 * MINUTE), a_class(), None),
    "waits, and only one before it may be asked": (waiting(MIDDLE), a_class(refusal(LAST)), None),
    "waits, and of those before and after it both may be asked": (waiting(MIDDLE), a_class(), to(TOP, waited(MIDDLE), must_check=True)),
    "waits in the queue of flex-start": (waiting(FLEX, for_=60 * MINUTE), a_class(refusal(FLEX, at=NOW), places=[TOP, FLEX, LAST]), None),
    "waits, and another was refused meanwhile": (waiting(**YOUNG), a_class(refusal(at=NOW - MINUTE)), to(MIDDLE, waited(TOP), must_check=True)),
    "waits, and another was refused before": (waiting(**YOUNG), a_class(refusal(at=NOW - MINUTE - SECOND)), None),
    "waits, and another asks": (waiting(**YOUNG), a_class(refusal(at=NOW - SECOND, by=OTHER)), None),
    "waits after its own claim": (waiting(**YOUNG), a_class(refusal(at=NOW - MINUTE - SECOND, by=ME)), None),
    "waits at a candidate that was removed from the class": (waiting(ELSEWHERE, **YOUNG), a_class(), to(TOP, must_check=True)),
}  # fmt: skip


@pytest.mark.parametrize("case", NEXT.values(), ids=NEXT)
def test_a_slice_moves_to_the_next_candidate(case: tuple[Slice, SliceClass, Move | None]) -> None:
    found, of, move = case
    eligible = of.candidates
    assert find_next(of, eligible, found, SHAPE, NOW) == move


MAY_HELP = {
    "InsufficientCapacity",
    "QuotaExceeded",
    "NotOffered",
    "ReservationNotFound",
    "ReservationFull",
    "ReservationMismatch",
}


@pytest.mark.parametrize("reason", [*Reason])
def test_a_refusal_is_recorded_only_if_another_candidate_may_help(reason: Reason) -> None:
    found = find_record(a_slice(refusal=(reason, "words")), SHAPE)
    assert found == (RecordRefusal(TOP, SHAPE, ME, reason, "words") if reason in MAY_HELP else None)
    assert find_record(a_slice(has_vms=True, refusal=(reason, "words")), SHAPE) is None


def test_a_slice_whose_candidate_the_pod_does_not_select_any_more_waits() -> None:
    assert find_next(a_class(), [MIDDLE, LAST], waiting(), SHAPE, NOW) is None


@dataclass
class Race:
    """Invocations about several units that run at the same time, each call a step of a generator.

    Every call is checked: who asks a candidate that had refused has claimed it, and no VM is deleted.
    """

    random: Random
    now: datetime = NOW
    refusals: Refusals = ()
    writes: int = 0
    slices: dict[str, Slice] = field(default_factory=dict)
    free: set[Place] = field(default_factory=set)

    def invoke(self, name: str) -> Generator[None, None, None]:
        began, seen, version = self.now, self.refusals, self.writes
        own, of = self.slices.get(name), replace(a_class(), refusals=self.refusals)
        asker = f"default/{name}"
        yield
        move = find_next(of, ALL, own, SHAPE, began) if own is not None else None
        if own is None:
            place = choose(of, ALL, SHAPE, asker, began)
            changes: tuple[Any, ...] = (
                (ClaimCandidate(place, SHAPE, asker, GIVE_UP),) if place else ()
            )
        elif own.has_vms:
            changes = (Forget(own.place or TOP, SHAPE, asker),)
        else:
            changes = move.changes if move is not None else ()
        while (after := apply(changes, seen, self.now)) != seen:
            if self.writes == version:
                self.refusals, self.writes = after, version + 1
                break
            seen, version = self.refusals, self.writes
            yield
        yield
        if self.now - began > 30 * SECOND:
            return
        if own is None and place is not None and name not in self.slices:
            known = ClaimCandidate(place, SHAPE, asker, GIVE_UP).find(seen)
            is_old = known is not None and self.now - known.until >= FORGOTTEN_AFTER
            self._create(name, place, was_closed=None if is_old else known)
        elif move is not None and self.slices.get(name) == own and own is not None:
            assert move.must_check or own.refusal
            del self.slices[name]

    def _create(self, name: str, place: Place, *, was_closed: Refusal | None) -> None:
        now_known = ClaimCandidate(place, SHAPE, name, GIVE_UP).find(self.refusals)
        if was_closed is not None:
            assert now_known is not None
            assert (now_known.asked_by, now_known.until > self.now) == (f"default/{name}", True)
        is_free = place in self.free
        is_short = not is_free and self.random.random() < 0.5
        self.slices[name] = a_slice(
            place,
            unit=Unit("JobSet", "default", "job", name),
            name=name,
            created=self.now,
            has_vms=is_free,
            refusal=NO_CAPACITY if is_short else None,
            can_be_given_up=not is_short,
        )

    def grant(self, free: set[Place]) -> None:
        """Give VMs at these candidates, also to slices that wait there."""
        self.free = free
        for name, one in self.slices.items():
            if one.refusal is None and one.place in free:
                self.slices[name] = replace(one, has_vms=True)

    def run(self, steps: int) -> None:
        running: list[Generator[None, None, None]] = []
        for _ in range(steps):
            event = self.random.random()
            if event < 0.3:
                running.append(self.invoke(self.random.choice("abcde")))
            elif event < 0.35:
                self.grant({one for one in ALL if self.random.random() < 0.3})
            elif event < 0.4 and running:
                running.pop()  # a crash
            elif event < 0.45:
                self.now += self.random.choice((10, 60, 300)) * SECOND
            elif running:
                one = self.random.choice(running)
                try:
                    next(one)
                except (StopIteration, StaleObservation):
                    running.remove(one)


@given(st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_one_slice_alone_asks_a_candidate_that_has_refused(seed: int) -> None:
    race = Race(Random(seed))
    race.run(300)
    keys = [(one.candidate, one.shape) for one in race.refusals]
    assert len(keys) == len(set(keys))
    # With capacity everywhere, each gets its slice within the time of one refusal.
    race.grant(set(ALL))
    for name in "abcde" * 3:
        for _ in race.invoke(name):
            pass
        race.now += REMEMBERED_FOR
    assert all(one.has_vms for one in race.slices.values())
    assert set(race.slices) == set("abcde")


def test_the_change_of_a_class_is_described_with_its_candidates() -> None:
    of = SliceClass("v6e")
    changes = (ClaimCandidate(TOP, SHAPE, ME, GIVE_UP), Forget(FLEX, SHAPE, ME))
    assert UpdateClass(of, changes).describe() == (
        "update what the status of TPUSliceClass v6e has about us-a/STANDARD, us-b/FLEX_START"
    )
