"""Explain the class of a waiting Pod's slice, and what each of its candidates is for the Pod."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from functions.provision_slice.decide import cut_words
from functions.provision_slice.observe import ObservedPod
from replay.text import render_minute
from shared.slices import candidates
from shared.slices.classes import SliceClass, find_naming
from shared.slices.provider import Provider, Slice, SliceState, list_offers


def explain_class(provider: Provider, observed: ObservedPod, now: datetime) -> dict[str, Any]:
    """The class and its candidates, from what provision_slice has observed, as JSON; empty without a
    class. ``summary``: why it is this class, and how long its last slices waited."""
    of = observed.of
    if of is None:
        return {}
    where, _ = find_naming(observed.leader.demand)
    why = f"named by the Pod's {where}" if where else "the newest default that serves the Pod"
    waited = f"; {of.waited}" if of.waited else ""
    keys, found = ("candidate", "state", "words"), _list_candidates(provider, observed, of, now)
    return {
        "name": of.name,
        "summary": f"The slice is of {of.shown}, {why}{waited}.",
        "candidates": [dict(zip(keys, one, strict=True)) for one in found],
    }


def _list_candidates(
    provider: Provider, observed: ObservedPod, of: SliceClass, now: datetime
) -> Iterator[tuple[str, str, str]]:
    """Each candidate, what it is for the Pod in a word, and why."""
    existing, desired, move = observed.existing, observed.desired, observed.move
    _, skipped = list_offers(provider, observed.leader.demand, desired.unit, of)
    is_absent = existing is None and not observed.is_exhausted
    next_place = move.place if move else desired.place if is_absent else None
    is_kept = isinstance(existing, Slice) and existing.state is not SliceState.DELETING
    own = existing if isinstance(existing, Slice) and is_kept else None
    for place in filter(None, dict.fromkeys((*of.candidates, own.place if own else None))):
        forget = candidates.Forget(place, desired.shape, desired.asker)
        known = forget.find(of.refusals)
        if own and place == own.place:
            yield place.key, "granted" if own.has_vms else "asked now", cut_words(own.message)
        elif place in skipped:
            yield place.key, "skipped", str(skipped[place])
        elif place == next_place:
            yield place.key, "next", ""
        elif known is None or candidates.is_open(of, place, desired.shape, desired.asker, now):
            yield place.key, "open", ""
        elif known.asked_by:
            words = f"by {known.asked_by}; others may ask it at {render_minute(known.until, now)}"
            yield place.key, "claimed", words
        else:
            since, until = render_minute(known.since, now), render_minute(known.until, now)
            words = f"since {since} ({known.reason}): {cut_words(known.message)}"
            yield place.key, "refused", f"{words}. The next try is at {until}"
