"""The condition TokensInjected: how many VMs have tokens, and the error of the VMs that have none.

Two kinds of invocations of inject_token write it. One lists all VMs and counts their tokens, but cannot
see whether a token has its Secret. The others are for named VMs; they inject tokens and report their
errors. So an error about a VM that still waits is not replaced by a count. It ends when an invocation
for that VM succeeds, or when the VM no longer waits. Transient errors are not in the condition but
among the status's retries; they begin and end likewise.
"""

import re
from collections.abc import Sequence
from datetime import datetime

from shared.base.reasons import Reason
from shared.node_groups.node_group import NodeGroup
from shared.node_groups.status import Status, Type
from shared.triggers import routes


def add_condition(
    group: NodeGroup, known: Status, waiting: Sequence[str], done: int, now: datetime
) -> Status:
    """``known`` with TokensInjected: true if ``done``, the number of VMs that have joined or have a
    valid token, is the group's number of VMs.

    ``waiting`` are the names of the VMs that have not joined and could get a token now.
    """
    if not waiting or not _has_retry_about(group, known, waiting):
        known = known.without_retry(routes.INJECT_TOKEN)
    error = _find_error(known)
    if waiting and error is not None and _may_concern(group, error, waiting):
        return known
    desired = group.spec.node_count
    is_done = done >= desired
    reason = "Injected" if is_done else Reason.PROVISIONING
    if is_done and desired == 1:
        message = "The VM has a join token or has joined"
    else:
        count = f"All {desired}" if is_done else f"{done} of {desired}"
        message = f"{count} VMs have a join token or have joined"
    return known.with_condition(Type.TOKENS_INJECTED, is_done, reason, message, group, now)


def end_error(group: NodeGroup, known: Status, vms: Sequence[str], now: datetime) -> Status:
    """``known`` without the errors that may be about one of these VMs. The next resync counts the
    tokens."""
    if _has_retry_about(group, known, vms):
        known = known.without_retry(routes.INJECT_TOKEN)
    error = _find_error(known)
    if error is None or not _may_concern(group, error, vms):
        return known
    message = "The last error has not occurred again"
    return known.with_condition(
        Type.TOKENS_INJECTED, False, Reason.PROVISIONING, message, group, now
    )


def _has_retry_about(group: NodeGroup, known: Status, vms: Sequence[str]) -> bool:
    """Whether the status has a transient error that may be about one of these VMs."""
    return any(
        retry.step == routes.INJECT_TOKEN and _may_concern(group, retry.message, vms)
        for retry in known.retries
    )


def _may_concern(group: NodeGroup, error: str, vms: Sequence[str]) -> bool:
    """Whether an error may be about one of these VMs: it names one of them, or none of the group's.

    The status keeps the text of an error alone, so the names are searched for in it.
    """
    named = set(re.findall(rf"\b{group.resource_name}-[a-z0-9]{{4}}\b", error))
    return not named or not named.isdisjoint(vms)


def _find_error(known: Status) -> str | None:
    """The message of the error that TokensInjected reports."""
    condition = known.conditions.get(Type.TOKENS_INJECTED)
    if condition is None or condition.is_true or condition.reason == Reason.PROVISIONING:
        return None
    return condition.message
