"""The errors of calls to APIs. Decisions read their fields and search in no text."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shared.ports.error_reasons import UNKNOWN_PLACE, ErrorKind, classify_answer

UNPARSABLE = "unparsable"
"""The code of an answer that cannot be parsed. Such an error is transient."""


@dataclass(frozen=True)
class About:
    """What a call was about: a kind of object as its API names it, and the object's name.

    Kinds are ``Node`` or ``Secret`` in the cluster, ``instances`` or ``nodePools`` in Google's APIs. The
    name is empty if the call was about several objects. Both are empty for a call that fetches a token.
    """

    kind: str = ""
    name: str = ""


class CallError(Exception):
    """A call to Google's APIs or to the cluster failed.

    ``call`` names the call. ``http`` is the status code (0: no answer came), ``code`` the API's own code
    or reason, ``message`` its text. ``kind`` and ``reason`` follow from these three (`classify`).
    ``reason`` is what the object gets for an error of the environment or the user, else ``None``.
    """

    def __init__(
        self, call: str, http: int, code: str, message: str, about: About | None = None
    ) -> None:
        super().__init__(f"{call}: {http} {code}: {message}")
        self.call = call
        self.http = http
        self.code = code
        self.message = message
        self.about = about or About()
        verdict = classify_answer(http, code, message)
        self.kind, self.reason = verdict.kind, verdict.reason

    @property
    def is_stale(self) -> bool:
        """Whether the answer shows that an observation is stale: the step observes again."""
        return self.kind in (ErrorKind.ABSENT, ErrorKind.CONFLICT)

    @property
    def is_of_unknown_place(self) -> bool:
        """Whether Compute Engine knows no such zone or region, or hides it from the project."""
        return self.http == 400 and UNKNOWN_PLACE.search(self.message) is not None

    def of(self, name: str) -> CallError:
        """The same error with the name of the object that the call was about, also in its text."""
        about = replace(self.about, name=name)
        return CallError(f"{self.call} of {name}", self.http, self.code, self.message, about)


class OutOfTimeError(Exception):
    """The time for the calls of an observation is used up; the message is retried."""
