"""All groups, and the requests of kubelets for certificates."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from shared.base.documents import read_mapping
from shared.base.signing_requests import SigningRequest, find_signing_request
from shared.frame.execution import SECONDS_FOR_OTHER_CALLS
from shared.frame.plan import Work
from shared.node_groups import node_group
from shared.node_groups.node_group import AnyGroup, NodeGroup
from shared.ports.errors import CallError, OutOfTimeError
from shared.settings import JoinApproval, Settings
from shared.triggers import routes

LEAKS_MINUTE = 41
"""The run of this minute of each hour triggers ``report_leaks``, even if it begins later."""


@dataclass(frozen=True)
class ObservedGroups:
    """All groups and requests. ``failure`` is the error if the groups could not be listed."""

    groups: tuple[AnyGroup, ...]
    at: datetime
    """The time of the message. Whether a resync is due is computed for this minute, even if the run
    begins later, such as when the API server is available again: each minute has its own message."""
    listing_steps: tuple[str, ...] = ()
    """The steps that list their objects themselves and are due."""
    unparsable: tuple[str, ...] = ()
    """Objects that cannot be parsed as groups, each with its error."""
    failure: CallError | OutOfTimeError | None = None
    requests: tuple[SigningRequest, ...] = ()
    """The CertificateSigningRequests of this system's bootstrap group, decided or not."""
    requests_failure: CallError | OutOfTimeError | None = None
    """The error if not all of them could be listed."""


def observe(work: Work) -> ObservedGroups:
    """List the groups, and the requests for certificates if VMs join with tokens."""
    settings: Settings = work.settings
    slice_steps = routes.SLICE_STEPS if settings.slice_provider else ()
    cluster_id = work.cluster.get_cluster_id()
    try:
        found = list(work.cluster.list_groups())
    except (CallError, OutOfTimeError) as error:
        # The message is retried. Of the attempts that fail here, only the first triggers the steps of
        # JobSets; the one that succeeds triggers them once more.
        steps = () if work.is_repetition else slice_steps
        return ObservedGroups((), work.trigger.at, steps, failure=error)
    groups, unparsable = parse_groups(found, cluster_id)
    # Only if the groups could be listed: otherwise the message is retried, and leaks would be logged by
    # each attempt.
    at = work.trigger.at
    leak_steps = (routes.REPORT_LEAKS,) if at.minute == LEAKS_MINUTE else ()
    observed = ObservedGroups(groups, at, (*slice_steps, *leak_steps), unparsable)
    join_with_tokens = any(
        isinstance(one, NodeGroup) and one.spec.joins_with_tokens for one in groups
    )
    if settings.join_approval is JoinApproval.EXTERNAL or not join_with_tokens:
        return observed
    requests: list[SigningRequest] = []
    failure: CallError | OutOfTimeError | None = None
    try:
        with work.reserve(SECONDS_FOR_OTHER_CALLS):  # for the messages
            for raw in work.cluster.list_signing_requests():
                request = find_signing_request(raw)
                if request is not None:
                    requests.append(request)
    except (CallError, OutOfTimeError) as error:
        failure = error
    return replace(observed, requests=tuple(requests), requests_failure=failure)


def parse_groups(
    found: Iterable[Mapping[str, Any]], cluster_id: str
) -> tuple[tuple[AnyGroup, ...], tuple[str, ...]]:
    """The groups, and the errors of objects that cannot be parsed as groups."""
    groups, unparsable = [], []
    for raw in found:
        try:
            groups.append(node_group.parse(raw, cluster_id))
        except ValueError as error:
            metadata = read_mapping(raw, "metadata")
            unparsable.append(f"{metadata.get('namespace')}/{metadata.get('name')}: {error}")
    return tuple(groups), tuple(unparsable)
