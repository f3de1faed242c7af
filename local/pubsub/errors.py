"""The errors of the service, with status and message."""

from __future__ import annotations


class PubSubError(Exception):
    """An error; ``status`` is the name of its gRPC status, ``str()`` its message."""

    status = "UNKNOWN"


class NotFound(PubSubError):
    """No topic or subscription has this name."""

    status = "NOT_FOUND"


class AlreadyExists(PubSubError):
    """A topic or subscription has this name already."""

    status = "ALREADY_EXISTS"


class InvalidArgument(PubSubError):
    """The request can never succeed as it is."""

    status = "INVALID_ARGUMENT"


class OutOfRange(PubSubError):
    """A number is out of the allowed range."""

    status = "OUT_OF_RANGE"


class FailedPrecondition(PubSubError):
    """The request does not fit the subscription's state."""

    status = "FAILED_PRECONDITION"


class Unavailable(PubSubError):
    """The service is down; a retry may succeed."""

    status = "UNAVAILABLE"


class Unimplemented(PubSubError):
    """The embedded service does not support this."""

    status = "UNIMPLEMENTED"


def not_found(name: str) -> NotFound:
    """Seen on the service, which names the resource by its last part only."""
    return NotFound(f"Resource not found (resource={name.rpartition('/')[2]}).")


def already_exists(name: str) -> AlreadyExists:
    """Seen on the service, too."""
    return AlreadyExists(
        f"Resource already exists in the project (resource={name.rpartition('/')[2]})."
    )
