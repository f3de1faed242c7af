"""Which candidate of a class a slice is asked from, and what is remembered of those that refused.

The state of a try is the slice, whose spec names its candidate, and the refusals in the status of its
class. A refusal is recorded, then the slice is deleted; when its name is free, it is created at the next
candidate. While a refusal is remembered, nobody asks that candidate for that shape; after it, only the
slice that has claimed the next try asks, until it is granted or refused, or the claim has ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from shared.base.reasons import Reason, find_advice
from shared.frame.plan import StaleObservation
from shared.slices.classes import Place, Refusal, Shape, SliceClass
from shared.slices.provider import Slice

Refusals = tuple[Refusal, ...]
REMEMBERED_FOR = timedelta(minutes=5)
"""How long a refusal is remembered, and at least how long a claim lasts."""
FORGOTTEN_AFTER = timedelta(minutes=10)
"""So long after the end of a refusal it needs no claim any more: nobody has waited for the candidate
since, as those who wait claim it within minutes."""
CHECKED_AFTER = timedelta(minutes=1)
"""A slice that was refused so long ago may have VMs by now."""
MAX_REFUSALS, MAX_MESSAGE = 64, 400
"""The refusals in a status, and the characters of a message. Refusals that end first are dropped."""
WAITED = "Waited"
"""The reason of a candidate that was given up because no VM came."""
REFUSALS = frozenset(
    {
        *(Reason.INSUFFICIENT_CAPACITY, Reason.QUOTA_EXCEEDED, Reason.NOT_OFFERED),
        *(Reason.RESERVATION_NOT_FOUND, Reason.RESERVATION_FULL, Reason.RESERVATION_MISMATCH),
    }
)
"""The reasons for which another candidate is asked. For others an administrator must act: a candidate
that costs more would hide that."""


@dataclass(frozen=True)
class _Change:
    """A change of what is remembered of a candidate, because of the slice ``asker``."""

    place: Place
    shape: Shape
    asker: str

    def find(self, refusals: Refusals) -> Refusal | None:
        """What is remembered of the candidate for the shape."""
        key = (self.place.key, self.shape)
        return next((one for one in refusals if (one.candidate, one.shape) == key), None)

    def put(self, refusals: Refusals, new: Refusal) -> Refusals:
        """The refusals with this one instead of the one that is remembered."""
        others = (one for one in refusals if one != self.find(refusals))
        return tuple(sorted((*others, new), key=lambda one: one.until)[-MAX_REFUSALS:])


@dataclass(frozen=True)
class RecordRefusal(_Change):
    """The slice was refused. Nothing changes while an earlier refusal, or the claim of another slice, is
    remembered. ``since`` stays if the reason is the same."""

    reason: str
    message: str

    def change(self, refusals: Refusals, now: datetime) -> Refusals:
        """The refusals with this one."""
        known = self.find(refusals)
        if known is not None and known.until > now and known.asked_by != self.asker:
            return refusals
        since = known.since if known is not None and known.reason == self.reason else now
        message, until = self.message[:MAX_MESSAGE], now + REMEMBERED_FOR
        new = Refusal(self.place.key, self.shape, self.reason, message, since, until)
        return self.put(refusals, new)


@dataclass(frozen=True)
class ClaimCandidate(_Change):
    """The slice is about to ask a candidate. Nothing changes if that has not refused before; a refusal
    that has long ended is dropped, so that others ask at the same time."""

    give_up_after: timedelta

    def change(self, refusals: Refusals, now: datetime) -> Refusals:
        """The refusals with the claim. Raises `StaleObservation` if another slice was faster."""
        known = self.find(refusals)
        if known is None or (known.until > now and known.asked_by == self.asker):
            return refusals
        if now - known.until >= FORGOTTEN_AFTER:
            return tuple(one for one in refusals if one != known)
        if known.until > now:
            raise StaleObservation(f"{self.place.key} was refused or claimed at the same time")
        until = now + max(REMEMBERED_FOR, self.give_up_after + CHECKED_AFTER)
        return self.put(refusals, replace(known, asked_by=self.asker, until=until))


@dataclass(frozen=True)
class Forget(_Change):
    """The slice was granted by the candidate: if it had claimed it, all may ask it again."""

    def change(self, refusals: Refusals, _now: datetime) -> Refusals:
        """The refusals without the claim."""
        known = self.find(refusals)
        is_own = known is not None and known.asked_by == self.asker
        return tuple(one for one in refusals if not is_own or one != known)


Change = RecordRefusal | ClaimCandidate | Forget


def apply(changes: Sequence[Change], refusals: Refusals, now: datetime) -> Refusals:
    """The refusals after the changes: the same if there is nothing to write."""
    for one in changes:
        refusals = one.change(refusals, now)
    return refusals


def without_advice(text: str) -> str:
    """A slice's message without what its reason advises, which is for people who create groups."""
    for reason in REFUSALS:
        text = text.partition(find_advice(reason)[:40])[0].rstrip(". ")
    return text


def name_asker(found: Slice) -> str:
    """A slice as `Refusal.asked_by`."""
    return f"{found.unit.namespace}/{found.name}"


def is_open(of: SliceClass, place: Place, shape: Shape, asker: str, now: datetime) -> bool:
    """Whether the slice may ask a candidate now."""
    known = _Change(place, shape, asker).find(of.refusals)
    return known is None or known.until <= now or known.asked_by == asker


def choose(
    of: SliceClass, eligible: Sequence[Place], shape: Shape, asker: str, now: datetime
) -> Place | None:
    """The first candidate that the slice may ask now."""
    return next((one for one in eligible if is_open(of, one, shape, asker, now)), None)


def find_record(found: Slice, shape: Shape) -> RecordRefusal | None:
    """The refusal of a slice, if another candidate may be asked for its reason."""
    reason, words = found.refusal or ("", "")
    if found.place is None or found.has_vms or reason not in REFUSALS:
        return None
    return RecordRefusal(found.place, shape, name_asker(found), reason, words)


@dataclass(frozen=True)
class Move:
    """A slice is to be deleted after these changes, so that ``place`` can be asked; ``must_check``:
    only if `Provider.has_vm` is false now."""

    place: Place
    changes: tuple[Change, ...]
    must_check: bool = True


def find_next(
    of: SliceClass, eligible: Sequence[Place], found: Slice, shape: Shape, now: datetime
) -> Move | None:
    """The candidate to ask instead of a slice's own one, which has refused it or lets it wait; ``None``:
    the slice stays, as any that has a VM.

    One that waits moves only if a candidate after its own may be asked: the last one waits. In the
    queue of flex-start, a slice waits for good.
    """
    own, asker = found.place, name_asker(found)
    others = [one for one in eligible if one != own]
    next_place = choose(of, others, shape, asker, now)
    if own is None or found.has_vms or next_place is None:
        return None
    claim = ClaimCandidate(next_place, shape, asker, of.give_up_after)
    begin = found.created or now
    if record := find_record(found, shape):
        return Move(next_place, (record, claim), now - (found.since or begin) >= CHECKED_AFTER)
    if not found.can_be_given_up:
        return None
    if own not in of.candidates:
        return Move(next_place, (claim,))
    words = without_advice(found.message)
    words = words or f"no VM within {int(of.give_up_after.total_seconds())} s"
    record = RecordRefusal(own, shape, asker, WAITED, words)
    after = eligible[eligible.index(own) + 1 :] if own in eligible else ()
    has_waited = now - begin >= of.give_up_after and choose(of, after, shape, asker, now)
    known = record.find(of.refusals)
    is_refused = known is not None and known.until > now and not known.asked_by
    is_recent = known is not None and known.until - REMEMBERED_FOR >= begin
    if own.model == "FLEX_START" or not (has_waited or (is_refused and is_recent)):
        return None
    return Move(next_place, (record, claim))
