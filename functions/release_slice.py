"""release_slice: a slice whose JobSet needs it no longer goes, half a minute later.

Occasions: a JobSet has completed, failed or gone; a node pool was made or deleted, or its update has
failed; SYNC, which the minute sends to this inbox for each slice about which there is something to do,
and the end of an operation for those whose turn it is, where only so many are changed at a time.

The first look marks the slice, and only a later one, which finds the same, deletes it: a JobSet that
is made again at once under its name keeps its slices. What Pods run on stays until they end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import Any

from shared.base import backoff
from shared.base.errors import CallError
from shared.base.names import JOBSET_KIND
from shared.base.timestamps import guess_time
from shared.frame.audit_log import LogEvent
from shared.frame.message import SLICE_KIND, SWEEP_KIND, Cause, Message
from shared.frame.settings import Settings
from shared.frame.step import ACKNOWLEDGED, Answer, Invocation
from shared.ports.kubernetes.events import Event
from shared.slices import concurrency
from shared.slices.jobsets import find_end, job_key
from shared.slices.provider import (
    RELEASE_AFTER,
    Naming,
    Provider,
    Slice,
    SliceState,
    slice_name,
)
from shared.slices.work import (
    QUEUED,
    is_of_our_pools,
    is_out_of_places,
    is_refused,
    jobset_reference,
    list_jobs_on,
    look_until_done,
    refuse,
    tell,
    trace,
)

REBUILDING = "Rebuilding"
"""The outcome of a deletion that makes room for the same slice."""
MAX_JOBS = 10_000
"""Jobs of one JobSet that are looked at for their names: more than a cluster has room for. A user may
write two thousand million replicas."""

DELETED, MARKED = "container.nodePools.delete", "container.nodePools.update"
"""Methods of entries of the audit log; the second comes to this step when the update has failed."""


class Do(StrEnum):
    """What is done about a slice."""

    NOTHING = "nothing"
    MARK = "mark"
    KEEP = "keep"
    """Take the mark back."""
    DELETE = "delete"


@dataclass(frozen=True)
class Decision:
    """What is to be done, in one word why, and what is told of it."""

    outcome: str
    do: Do = Do.NOTHING
    event: Event | None = None


def run(invocation: Invocation) -> Answer:
    """See to a JobSet's slices, or to one; or, once a minute, wake the step for each in question."""
    if not invocation.runtime.settings.jobset_provider:
        return Answer(ACKNOWLEDGED, "SwitchedOff")
    if invocation.occasion.kind == SWEEP_KIND:
        return look_until_done(invocation, lambda provider: _wake(invocation, provider))
    return look_until_done(invocation, lambda provider: _see_to(invocation, provider))


def _wake(invocation: Invocation, provider: Provider) -> Answer:
    invocation.cluster.get_cluster_id()
    slices = list(provider.list_all())
    jobsets = list(invocation.cluster.list_jobsets()) if slices else []
    by_name, now = _by_name(jobsets), invocation.runtime.now()
    decided = [(one, _decide_about(one, by_name, invocation, provider)) for one in slices]
    told = [one for one, decision in decided if is_to_be_told(decision, one, now)]
    _send_sync([*_find_next(decided, provider, now), *told], invocation)
    invocation.facts["slices"] = len(slices)
    return Answer(ACKNOWLEDGED, "Swept")


def _decide_about(
    existing: Slice,
    jobsets: Mapping[tuple[str, str], Mapping[str, Any]],
    invocation: Invocation,
    provider: Provider,
) -> Decision:
    runtime = invocation.runtime
    jobset = jobsets.get(_jobset_of(existing))
    return decide(existing, jobset, runtime.now(), runtime.settings, provider)


def _find_next(
    decided: Sequence[tuple[Slice, Decision]], provider: Provider, now: datetime
) -> list[Slice]:
    """The slices about which there is something to do, as far as it is their turn."""
    to_change = [one for one, decision in decided if decision.do is not Do.NOTHING]
    if provider.concurrency_limit is None:
        return to_change
    places = concurrency.count_places(provider.concurrency_limit, (one for one, _ in decided))
    return choose(to_change, places, now)


def _send_sync(slices: Sequence[Slice], invocation: Invocation) -> None:
    now = invocation.runtime.now()
    messages = [
        Message(one.owner.namespace, one.name, "", Cause.SYNC, now, kind=SLICE_KIND)
        for one in slices
    ]
    invocation.facts["woken"] = len(messages)
    if messages:
        invocation.runtime.publish(invocation.step, messages)


def choose(slices: Iterable[Slice], places: int, now: datetime) -> list[Slice]:
    """Whose turn it is: first those that might have gone longest."""
    waiting = sorted(
        slices, key=lambda one: (one.release_after or datetime.max.replace(tzinfo=UTC), one.name)
    )
    return concurrency.choose(waiting, places, now, lambda one: one.name)


def _by_name(jobsets: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Mapping[str, Any]]:
    return {(one["metadata"]["namespace"], one["metadata"]["name"]): one for one in jobsets}


def _jobset_of(existing: Slice) -> tuple[str, str]:
    return existing.owner.namespace, existing.owner.jobset


def is_to_be_told(decision: Decision, existing: Slice, now: datetime) -> bool:
    """Whether there is something to tell in this minute, and nothing to do: that is told seldom."""
    if decision.do is not Do.NOTHING or decision.event is None:
        return False
    return existing.since is None or backoff.is_due(existing.since, now)


def _see_to(invocation: Invocation, provider: Provider) -> Answer:
    message, event = invocation.occasion.message, invocation.occasion.event
    if event is not None:
        if not is_of_our_pools(event, invocation.runtime.settings):
            return Answer(ACKNOWLEDGED, "NotOurs")
        invocation.facts["slice"] = event.name
        hear = _see_to_unmarked if event.method == MARKED else _hear_of_the_end
        return hear(event, invocation, provider)
    if message is None:
        return Answer(ACKNOWLEDGED, "NotForThisStep")
    invocation.facts[message.kind.lower()] = f"{message.namespace}/{message.name}"
    if message.kind == JOBSET_KIND:
        found = provider.list_by_jobset(message.namespace, message.name)
    else:
        one = provider.get(message.namespace, message.name)
        found = [] if one is None else [one]
    jobsets = {
        key: invocation.cluster.find_jobset(*key) for key in {_jobset_of(one) for one in found}
    }
    answers, failures = [], []
    for one in found:
        try:
            answers.append(_see_to_one(invocation, provider, one, jobsets[_jobset_of(one)]))
        except CallError as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return _sum_up(answers)


def _see_to_unmarked(event: LogEvent, invocation: Invocation, provider: Provider) -> Answer:
    """The update of a pool has failed: it may have been its mark, which no later look would find."""
    existing = next((one for one in provider.list_all() if one.name == event.name), None)
    if existing is None:
        return Answer(ACKNOWLEDGED, "NoSlice")
    jobset = invocation.cluster.find_jobset(*_jobset_of(existing))
    runtime = invocation.runtime
    decision = decide(existing, jobset, runtime.now(), runtime.settings, provider)
    if decision.do is not Do.MARK:
        return Answer(ACKNOWLEDGED, decision.outcome)
    about = jobset if jobset is not None else jobset_reference(*_jobset_of(existing))
    return _delete_unmarked(invocation, provider, existing, about, event.words)


def _hear_of_the_end(event: LogEvent, invocation: Invocation, provider: Provider) -> Answer:
    """There is room for others; a deletion that has failed is tried again when the minute finds it.

    After a creation the first of them is seen to at once, while those that wait for a slice are being
    woken; after a deletion it is the other way round. So neither keep the other waiting.
    """
    slices = list(provider.list_all(with_nodes=False))
    is_deletion = event.method == DELETED
    jobsets = list(invocation.cluster.list_jobsets()) if slices or is_deletion else []
    by_name = _by_name(jobsets)
    decided = [(one, _decide_about(one, by_name, invocation, provider)) for one in slices]
    following = _find_next(decided, provider, invocation.runtime.now())
    if is_deletion:
        _send_sync(following, invocation)
        return _tell_of_the_end(event, slices, jobsets, invocation, provider)
    _send_sync(following[1:], invocation)
    existing = following and provider.get(following[0].owner.namespace, following[0].name)
    if not existing:
        return Answer(ACKNOWLEDGED, "NoSlice")
    invocation.facts["slice"] = existing.name
    return _see_to_one(invocation, provider, existing, by_name.get(_jobset_of(existing)))


def _tell_of_the_end(
    event: LogEvent,
    slices: Iterable[Slice],
    jobsets: Iterable[Mapping[str, Any]],
    invocation: Invocation,
    provider: Provider,
) -> Answer:
    jobset = find_jobset_of(event.name, jobsets)
    outcome = "DeletionFailed" if event.has_failed else "DeletionSucceeded"
    if jobset is None:
        return Answer(ACKNOWLEDGED, outcome, event.words)
    namespace = jobset["metadata"]["namespace"]
    its = (one for one in slices if (one.owner.namespace, one.name) == (namespace, event.name))
    existing = next(its, None)
    if is_old_news(event, existing):
        return Answer(ACKNOWLEDGED, "OldNews")
    said = f"could not be deleted: {event.words}" if event.has_failed else "has been deleted"
    message = f"{provider.noun} {event.name} {said}"
    about = Event(f"{provider.event_prefix}{outcome}", message, is_warning=event.has_failed)
    tell(invocation, {**jobset_reference(), **jobset}, about, once=False)
    return Answer(ACKNOWLEDGED, outcome, event.words)


def is_old_news(event: LogEvent, existing: Slice | None) -> bool:
    """Whether what is there now (``None``: nothing) is not what the end of a deletion would leave."""
    if event.has_failed:
        return existing is None
    return existing is not None and existing.state is not SliceState.DELETING


def find_jobset_of(wanted: str, jobsets: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The JobSet of which a Job has a slice of that name, whether it is there or not."""
    for jobset in jobsets:
        namespace, name = jobset["metadata"]["namespace"], jobset["metadata"]["name"]
        jobs = islice(_jobs(name, jobset), MAX_JOBS) if _may_be_named(wanted, name) else ()
        if any(slice_name(name, job_key(namespace, job)) == wanted for job in jobs):
            return jobset
    return None


def _may_be_named(wanted: str, jobset: str) -> bool:
    """Whether a Job of a JobSet of this name may have a slice of that name: what is not of its key."""
    return slice_name(jobset, job_key("", "")).rpartition("-")[0] == wanted.rpartition("-")[0]


def _sum_up(answers: list[Answer]) -> Answer:
    """One answer for all slices of a JobSet, as a rule the same for each."""
    outcomes = sorted({answer.outcome for answer in answers})
    note = "; ".join(answer.note for answer in answers if answer.note)
    return Answer(ACKNOWLEDGED, ",".join(outcomes) or "NoSlice", note)


def _see_to_one(
    invocation: Invocation, provider: Provider, existing: Slice, jobset: Mapping[str, Any] | None
) -> Answer:
    now = invocation.runtime.now()
    trace(invocation, existing)
    decision = decide(existing, jobset, now, invocation.runtime.settings, provider)
    about = jobset if jobset is not None else jobset_reference(*_jobset_of(existing))
    return _carry_out(invocation, provider, existing, about, decision)


def _carry_out(
    invocation: Invocation,
    provider: Provider,
    existing: Slice,
    about: Mapping[str, Any],
    decision: Decision,
) -> Answer:
    now = invocation.runtime.now()
    if decision.do is Do.DELETE:
        try:
            jobs = _jobs_on(invocation, existing, decision)
        except CallError as error:
            return _tell_of_the_failure(error, about, provider, invocation)
        decision = wait_for(jobs, decision, existing, provider)
    try:
        was_there = _do(decision.do, existing, provider, now)
    except CallError as error:
        if is_out_of_places(error, provider):
            return Answer(ACKNOWLEDGED, QUEUED, str(error))
        if decision.do is Do.MARK and is_refused(error):
            return _delete_unmarked(invocation, provider, existing, about, str(error))
        return _tell_of_the_failure(error, about, provider, invocation)
    told = decision.event
    if not was_there:
        told = Event(
            f"{provider.event_prefix}NotFound",
            f"{provider.noun} {existing.name} was gone when it was to be deleted",
        )
    if told is not None:
        tell(invocation, about, told, once=decision.do is Do.NOTHING)
    return Answer(ACKNOWLEDGED, decision.outcome)


def _tell_of_the_failure(
    error: CallError, about: Mapping[str, Any], provider: Provider, invocation: Invocation
) -> Answer:
    event = Event(f"{provider.event_prefix}DeletionFailed", str(error), is_warning=True)
    return refuse(error, lambda: tell(invocation, about, event, once=False))


def _delete_unmarked(
    invocation: Invocation,
    provider: Provider,
    existing: Slice,
    about: Mapping[str, Any],
    refusal: str,
) -> Answer:
    """What cannot be kept for half a minute more goes at once, instead of staying for ever."""
    why = f"nobody needs it, and it cannot be marked to go later: {refusal}"
    decision = _delete("Releasing", existing, why, provider)
    return _carry_out(invocation, provider, existing, about, decision)


def _jobs_on(invocation: Invocation, existing: Slice, decision: Decision) -> tuple[str, ...]:
    """Whose Pods a deletion has to wait for: its own Job's, too, which may be writing a last
    checkpoint, but not those that are only what is left of a slice that is made anew."""
    if existing.state is SliceState.FAILED and not existing.has_ready_nodes:
        return ()
    but = existing.owner if decision.outcome == REBUILDING else None
    return list_jobs_on(invocation.cluster, existing.name, invocation.runtime.now(), but=but)


def wait_for(jobs: Sequence[str], decision: Decision, existing: Slice, naming: Naming) -> Decision:
    """What is done, if it was to delete a slice, while Jobs run on it. Pure."""
    if not jobs:
        return decision
    message = (
        f"{naming.noun} {existing.name} is to go, and is in use by Job {jobs[0]}: it goes when that "
        "has ended"
    )
    return Decision("InUse", event=Event(f"{naming.event_prefix}InUse", message))


def _do(do: Do, existing: Slice, provider: Provider, now: datetime) -> bool:
    """Do it; ``False`` if what was to be deleted was gone."""
    if do is Do.DELETE:
        return provider.delete(existing)
    if do is not Do.NOTHING:
        provider.set_release_deadline(existing, now + RELEASE_AFTER if do is Do.MARK else None)
    return True


def decide(
    existing: Slice,
    jobset: Mapping[str, Any] | None,
    now: datetime,
    settings: Settings,
    naming: Naming,
) -> Decision:
    """What is to be done about a slice, as its JobSet (``None``: gone) stands now. Pure."""
    if existing.state is SliceState.DELETING:
        return Decision("Going")
    why = find_reason(existing, jobset, now, settings.suspended_release)
    if why is not None:
        return _decide_to_release(existing, why, now, naming)
    if existing.release_after is not None:
        return Decision("WantedAgain", Do.KEEP)
    if existing.state is SliceState.FAILED and not existing.is_self_healing:
        return _decide_about_a_loss(existing, now, settings.lost_rebuild, naming)
    return Decision("Wanted")


def find_reason(
    existing: Slice,
    jobset: Mapping[str, Any] | None,
    now: datetime,
    suspended_release: timedelta | None,
) -> str | None:
    """Why a slice is no longer needed; ``None`` while it is."""
    owner = existing.owner
    if jobset is None:
        return f"JobSet {owner.jobset} no longer exists"
    end = find_end(jobset)
    if end is not None:
        return f"JobSet {owner.jobset} has ended ({end})"
    if not _may_have_job(existing, jobset):
        return f"JobSet {owner.jobset} has no Job {owner.job} any more"
    since = _suspended_since(jobset)
    if suspended_release and since is not None and now - since >= suspended_release:
        minutes = int((now - since) / timedelta(minutes=1))
        return f"JobSet {owner.jobset} has been suspended for {minutes} minutes"
    return None


def _may_have_job(existing: Slice, jobset: Mapping[str, Any]) -> bool:
    """A JobSet that was made again may have fewer Jobs. What is no Job of a JobSet by its name and key
    is not judged."""
    owner = existing.owner
    key = job_key(owner.namespace, owner.job)
    if existing.name != slice_name(owner.jobset, key):
        return True
    name, _, index = owner.job.rpartition("-")
    return bool(re.fullmatch("[0-9]{1,10}", index)) and any(
        name == f"{owner.jobset}-{one['name']}" and int(index) < one.get("replicas", 1)
        for one in _replicated_jobs(jobset)
    )


def _jobs(name: str, jobset: Mapping[str, Any]) -> Iterator[str]:
    for one in _replicated_jobs(jobset):
        for index in range(one.get("replicas", 1)):
            yield f"{name}-{one['name']}-{index}"


def _replicated_jobs(jobset: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list((jobset.get("spec") or {}).get("replicatedJobs") or ())


def _suspended_since(jobset: Mapping[str, Any]) -> datetime | None:
    for condition in (jobset.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Suspended" and condition.get("status") == "True":
            return guess_time(condition.get("lastTransitionTime"))
    return None


def _decide_to_release(existing: Slice, why: str, now: datetime, naming: Naming) -> Decision:
    is_lost = existing.state is SliceState.FAILED and not existing.is_self_healing
    if is_lost and not existing.has_ready_nodes:  # nobody could go on with it
        return _delete("Releasing", existing, why, naming)
    mark = existing.release_after
    if mark is None or mark > now + 2 * RELEASE_AFTER:  # not ours: it might never come
        return Decision("Marked", Do.MARK)
    if now < mark:
        return Decision("Waiting")
    return _delete("Releasing", existing, why, naming)


def _decide_about_a_loss(
    existing: Slice, now: datetime, lost_rebuild: timedelta | None, naming: Naming
) -> Decision:
    """The JobSet's next leader that waits asks for another, when this one is gone."""
    is_over = lost_rebuild and existing.since is not None and now - existing.since >= lost_rebuild
    if is_over:
        return _delete(REBUILDING, existing, existing.message, naming)
    message = f"{naming.noun} {existing.name} does not come back by itself: {existing.message}"
    return Decision("Lost", event=Event(f"{naming.event_prefix}Lost", message, is_warning=True))


def _delete(outcome: str, existing: Slice, why: str, naming: Naming) -> Decision:
    message = f"Deleting {naming.noun} {existing.name}: {why}"
    event = Event(f"{naming.event_prefix}DeletionStarted", message)
    return Decision(outcome, Do.DELETE, event)
