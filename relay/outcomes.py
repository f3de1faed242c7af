"""How a list or a watch can end."""

from __future__ import annotations

from enum import StrEnum


class End(StrEnum):
    """How a list or a watch ended; this decides how the relay continues."""

    CLOSED = "closed"
    EXPIRED = "expired"
    SILENT = "silent"
    UNREACHABLE = "unreachable"
    BROKEN = "broken"
    REFUSED = "refused"


MEANINGS = {
    End.CLOSED: "the server closed it normally, as it closes every watch after a few minutes",
    End.EXPIRED: "the resource version is too old (410): a new list follows",
    End.SILENT: "nothing was received for longer than the server's own timeout",
    End.UNREACHABLE: "no connection could be made",
    End.BROKEN: "the connection was lost, or an answer could not be parsed",
    End.REFUSED: "the API server answered with an error",
}
