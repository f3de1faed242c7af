"""The input and the result of a write, and the interface of admission plugins."""

from __future__ import annotations

from dataclasses import dataclass, field
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
    """A PUT: a uid in its body is a precondition."""


@dataclass(frozen=True)
class Outcome:
    """The result of a write, or of its dry run."""

    record: Record
    created: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Deletion:
    """The result of a delete. If it is not ``gone``, the object waits for finalizers."""

    record: Record
    gone: bool


@dataclass(frozen=True)
class Attributes:
    """One write, for admission and for the strategy of the kind. Both may change ``document``.

    ``old`` is ``None`` when the object is being created; ``operation`` is CREATE, UPDATE or DELETE;
    ``now`` is rendered as in objects; ``warnings`` are for the answer.
    """

    user: User
    kind: Kind
    document: Document
    old: Document | None
    operation: str
    now: str
    subresource: str = ""
    warnings: list[str] = field(default_factory=list)


class Admission(Protocol):
    """An admission plugin: raises `ApiError` to deny a write, and may change ``attributes.document``."""

    def __call__(self, attributes: Attributes) -> None: ...
