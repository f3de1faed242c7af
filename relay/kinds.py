"""What is watched, how a watch ends, and which steps the changes trigger."""

from enum import StrEnum
from typing import Literal, get_args

from shared.triggers import routes

WatchedKind = Literal[
    "TPUNodeGroup", "Node", "CertificateSigningRequest", "Pod", "JobSet", "ProvisioningRequest"
]
Change = Literal["ADDED", "MODIFIED", "DELETED"]

KINDS: tuple[WatchedKind, ...] = get_args(WatchedKind)

TRIGGERED_STEPS = (
    routes.CREATE_RESOURCES,
    routes.TEAR_DOWN,
    routes.APPROVE_JOIN,
    routes.LABEL_NODE,
    routes.PROVISION_SLICE,
    routes.RELEASE_SLICE,
)
"""The steps to whose topics the relay publishes."""


class End(StrEnum):
    """How a list or a watch ended; this decides how the relay continues.

    tools/pages/relay.py has the meaning of each, for docs/reference/metrics.md.
    """

    CLOSED = "closed"
    EXPIRED = "expired"
    SILENT = "silent"
    UNREACHABLE = "unreachable"
    BROKEN = "broken"
    REFUSED = "refused"
