"""What is to be written, by whom and how; and what has come of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from local.kube.kinds import Document, Kind
from local.kube.store import Record
from local.kube.users import User


@dataclass(frozen=True)
class Write:
    """A write of an object of some kind, or of its ``subresource``."""

    kind: Kind
    user: User
    subresource: str = ""
    dry_run: bool = False
    field_validation: str = "Warn"
    whole: bool = False
    """A PUT, which names the object that it is meant for by its uid, if it names any."""


@dataclass(frozen=True)
class Outcome:
    """A write that has been carried out (or, as a dry run, would have been)."""

    record: Record
    created: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Deletion:
    """What a delete did: ``gone``, or waiting for finalizers."""

    record: Record
    gone: bool


@dataclass(frozen=True)
class Attributes:
    """One write, as admission and the strategy of the kind see it, who may change ``document``.

    ``old`` is ``None`` when the object is being created; ``operation`` is CREATE, UPDATE or DELETE;
    ``now`` is the time as objects hold it.
    """

    user: User
    kind: Kind
    document: Document
    old: Document | None
    operation: str
    now: str
    subresource: str = ""


class Admission(Protocol):
    """Says no by raising `ApiError`, or changes ``attributes.document``."""

    def __call__(self, attributes: Attributes) -> None: ...
