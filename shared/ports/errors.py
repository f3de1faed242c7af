"""What a call to an API may raise, and which answers mean that an observation is stale."""

from __future__ import annotations

STALE_ANSWERS = frozenset({404, 409, 412})
"""Answers that show that an observation is stale: the step observes again."""


class CallError(Exception):
    """A call to Compute Engine or to the cluster failed.

    ``http`` is the status code (0: no answer came, or the error is of a finished operation without
    one), ``reason`` the API's error code, ``message`` its text.
    """

    def __init__(self, call: str, http: int, reason: str, message: str) -> None:
        super().__init__(f"{call}: {http} {reason}: {message}")
        self.call = call
        self.http = http
        self.reason = reason
        self.message = message

    def about(self, name: str) -> CallError:
        """The same error with the object that the call was about."""
        return CallError(f"{self.call} of {name}", self.http, self.reason, self.message)


class OutOfTimeError(Exception):
    """The time for the calls of an observation is used up; the message is retried."""
