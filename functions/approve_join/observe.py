"""What approve_join reads."""

from __future__ import annotations

from dataclasses import dataclass

from functions.approve_join.join_requests import Cache, Candidate, JoinWork, find_candidate
from shared.ports.errors import CallError, OutOfTimeError

SECONDS_FOR_WRITING = 15.0
"""Reading leaves so many seconds for writing."""


@dataclass(frozen=True)
class ObservedRequests:
    """The requests that the trigger names."""

    candidates: tuple[Candidate, ...] = ()
    unread: tuple[str, ...] = ()
    """The names of requests that there was no time to read."""
    is_repetition: bool = False
    """Whether this is a later attempt: the message was redelivered, or is observed again. An earlier
    attempt may have published the unread names, so this one does only if all else succeeds
    (`forward_rest`)."""
    errors: tuple[CallError | OutOfTimeError, ...] = ()
    """The errors of requests that could not be read."""


def observe(work: JoinWork) -> ObservedRequests:
    """Read each request, its group and its VM, as long as time for writing is left.

    The first request is always read, so that messages about the rest do not follow each other forever.
    """
    candidates: list[Candidate] = []
    errors: list[CallError | OutOfTimeError] = []
    names = work.trigger.requests
    cache = Cache(work)
    with work.reserve(SECONDS_FOR_WRITING):
        for index, name in enumerate(names):
            if index and not work.has_time():
                is_repetition = work.trigger.is_redelivered or not work.is_first_observation
                unread = names[index:]
                return ObservedRequests(tuple(candidates), unread, is_repetition, tuple(errors))
            try:
                candidate = find_candidate(work, cache, name)
            except (CallError, OutOfTimeError) as error:
                errors.append(error)
                continue
            if candidate is not None:
                candidates.append(candidate)
    return ObservedRequests(tuple(candidates), errors=tuple(errors))
