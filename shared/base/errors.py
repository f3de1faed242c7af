"""What a call to an API may raise, and which answers mean that an observation is stale."""

from __future__ import annotations

STALE_ANSWERS = frozenset({404, 409, 412})
"""Answers by which the world says that what was seen is no longer so: the step looks again."""


class CallError(Exception):
    """A call to Compute Engine or to the cluster was refused or failed.

    ``http`` is the status code (0: no answer came, or the error is of a finished operation without
    one), ``reason`` the machine's word for it, ``message`` what the server said.
    """

    def __init__(self, call: str, http: int, reason: str, message: str) -> None:
        super().__init__(f"{call}: {http} {reason}: {message}")
        self.call = call
        self.http = http
        self.reason = reason
        self.message = message


class OutOfTimeError(Exception):
    """The time that an invocation has for its calls is used up; the message is tried again."""
