"""Explain the class of a waiting Pod's slice, and what each of its candidates is for the Pod."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, NamedTuple

from functions.provision_slice.decide import cut_words
from functions.provision_slice.observe import ObservedPod
from shared.slices import candidates
from shared.slices.classes import Place, SliceClass, find_naming
from shared.slices.provider import Provider, Slice, SliceState, list_offers


class CandidateExplanation(NamedTuple):
    """What a candidate is for the Pod now, in a word, and why."""

    candidate: str
    state: str
    words: str = ""


@dataclass(frozen=True)
class ClassExplanation:
    """The class of a Pod's slice. ``summary``: why it is this one, and how long its slices waited."""

    name: str
    summary: str
    candidates: tuple[CandidateExplanation, ...]

    def to_document(self) -> dict[str, Any]:
        """It as JSON."""
        return {**asdict(self), "candidates": [one._asdict() for one in self.candidates]}


def explain_class(
    provider: Provider, observed: ObservedPod, now: datetime
) -> ClassExplanation | None:
    """The class and its candidates, from what provision_slice has observed; ``None`` without a class."""
    of = observed.of
    if of is None:
        return None
    where, _ = find_naming(observed.leader.demand)
    why = f"named by the Pod's {where}" if where else "the newest default that serves the Pod"
    waited = f"; {of.waited}" if of.waited else ""
    found = tuple(_list_candidates(provider, observed, of, now))
    return ClassExplanation(of.name, f"The slice is of {of.shown}, {why}{waited}.", found)


def _list_candidates(
    provider: Provider, observed: ObservedPod, of: SliceClass, now: datetime
) -> Iterator[CandidateExplanation]:
    existing, desired, move = observed.existing, observed.desired, observed.move
    unit, shape = desired.unit, desired.shape
    _, skipped = list_offers(provider, observed.leader.demand, unit, of)
    is_own = isinstance(existing, Slice) and existing.state is not SliceState.DELETING
    own = existing.place if isinstance(existing, Slice) and is_own else None
    next_place = move.place if move else None
    if existing is None and not observed.is_exhausted:
        next_place = desired.place
    places: dict[Place | None, None] = dict.fromkeys((*of.candidates, own))
    for place in filter(None, places):
        key, forget = place.key, candidates.Forget(place, shape, desired.asker)
        known = forget.find(of.refusals)
        if place == own and isinstance(existing, Slice):
            state = "granted" if existing.has_vms else "asked now"
            yield CandidateExplanation(key, state, cut_words(existing.message))
        elif place in skipped:
            yield CandidateExplanation(key, "skipped", skipped[place])
        elif place == next_place:
            yield CandidateExplanation(key, "next")
        elif known is None or candidates.is_open(of, place, shape, desired.asker, now):
            yield CandidateExplanation(key, "open")
        elif known.asked_by:
            words = f"by {known.asked_by}; others may ask it at {known.until:%H:%M} UTC"
            yield CandidateExplanation(key, "claimed", words)
        else:
            said = f"{known.reason} since {known.since:%H:%M} UTC: {cut_words(known.message)}"
            words = f"{said}. The next try is at {known.until:%H:%M} UTC"
            yield CandidateExplanation(key, "refused", words)
