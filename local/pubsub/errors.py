"""What the service refuses, with the status and the words that its clients see."""

from __future__ import annotations


class PubSubError(Exception):
    """A refusal; ``status`` is the name of a gRPC status code, ``str()`` of it the message."""

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
    """A number is beyond what the service takes."""

    status = "OUT_OF_RANGE"


class FailedPrecondition(PubSubError):
    """The request does not fit the state that its subscription is in."""

    status = "FAILED_PRECONDITION"


class Unavailable(PubSubError):
    """The service is away; the same request may succeed later."""

    status = "UNAVAILABLE"


class Unimplemented(PubSubError):
    """The service has this, the embedded one has not."""

    status = "UNIMPLEMENTED"


def not_found(name: str) -> NotFound:
    """Seen on the service, which names the resource by its last part only."""
    return NotFound(f"Resource not found (resource={name.rpartition('/')[2]}).")


def already_exists(name: str) -> AlreadyExists:
    """Seen on the service, too."""
    return AlreadyExists(
        f"Resource already exists in the project (resource={name.rpartition('/')[2]})."
    )
