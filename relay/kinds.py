"""What is watched, how a watch ends, and which steps the changes trigger."""

from enum import StrEnum
from typing import Literal, get_args

from shared.triggers import routes

WatchedKind = Literal["TPUNodeGroup", "Node", "CertificateSigningRequest", "Pod", "JobSet"]
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
    """How a list or a watch ended; this decides how the relay continues."""

    CLOSED = "closed"
    EXPIRED = "expired"
    SILENT = "silent"
    UNREACHABLE = "unreachable"
    BROKEN = "broken"
    REFUSED = "refused"


END_MEANINGS = {
    End.CLOSED: "the server closed it normally, as it closes every watch after a few minutes",
    End.EXPIRED: "the resource version is too old (410): a new list follows",
    End.SILENT: "nothing was received for longer than the server's own timeout",
    End.UNREACHABLE: "no connection could be made",
    End.BROKEN: "the connection was lost, or an answer could not be parsed",
    End.REFUSED: "the API server answered with an error",
}
