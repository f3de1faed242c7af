"""How a list or a watch can end."""

from __future__ import annotations

from enum import StrEnum


class End(StrEnum):
    """How it ended, which decides how it goes on."""

    CLOSED = "closed"
    EXPIRED = "expired"
    SILENT = "silent"
    UNREACHABLE = "unreachable"
    BROKEN = "broken"
    REFUSED = "refused"


MEANINGS = {
    End.CLOSED: "by the server, in order, as every watch does after a few minutes",
    End.EXPIRED: "the version to go on from is too old (410): a fresh list follows",
    End.SILENT: "nothing was heard for longer than the server's own time-out",
    End.UNREACHABLE: "no connection could be made",
    End.BROKEN: "the connection was lost, or what came over it made no sense",
    End.REFUSED: "the API server answered with an error",
}
