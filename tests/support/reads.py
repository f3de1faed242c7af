"""Stubs of Compute Engine and the cluster that answer reads from a table and record them in order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar, cast

from shared.node_groups.node_group import AnyGroup
from shared.node_groups.status import Status
from shared.node_groups.work import GroupWork
from shared.ports.gce.calls import Gce
from shared.ports.gce.values import Instance
from shared.ports.kubernetes.cluster import Cluster
from shared.settings import Settings
from shared.slices.classes import Place, SliceClass
from shared.slices.provider import Provider
from shared.slices.work import SliceWork
from shared.triggers.trigger import Trigger
from tests.support.builders import NOW, SETTINGS


@dataclass
class Reads:
    """Answers by the name of the call: a value, an error to raise, or a function of the arguments."""

    answers: Mapping[str, Any]
    calls: list[str] = field(default_factory=list)
    """The calls, each with its last argument if that names objects."""

    def find_member_ids(
        self, _project: str, _zone: str, _name: str, ids: Collection[str], _now: datetime
    ) -> frozenset[str]:
        """Those that the MIG lists; by default all. Not recorded."""
        return frozenset(self.answers.get("find_member_ids", ids)) & frozenset(ids)

    def is_being_written(self, _instance: Instance, _now: datetime) -> bool:
        """By default no metadata is being written. Not recorded."""
        return bool(self.answers.get("is_being_written", False))

    def __getattr__(self, call: str) -> Callable[..., Any]:
        if call not in self.answers:
            if call.startswith("__"):
                raise AttributeError(call)
            raise AssertionError(f"{call} was not expected after {self.calls}")

        def read(*arguments: Any, **_options: Any) -> Any:
            names = arguments[-1] if arguments and isinstance(arguments[-1], list) else []
            self.calls.append(" ".join([call, *names]))
            answer = self.answers[call]
            if isinstance(answer, Exception):
                raise answer
            return answer(*arguments) if callable(answer) else answer

        return read


def reading_work(
    about: AnyGroup, known: Status, trigger: Trigger, answers: Mapping[str, Any], **change: Any
) -> tuple[GroupWork, Reads]:
    """Return the work of a step that only reads, and its recorded reads."""
    reads = Reads(answers)
    nothing: Any = None
    work = GroupWork(
        settings=SETTINGS,
        gce=cast("Gce", reads),
        cluster=cast("Cluster", reads),
        publish=nothing,
        random_bytes=bytes,
        remaining_s=lambda: 30.0,
        now=NOW,
        trigger=trigger,
        group=about,
        status=known,
        reported=known,
    )
    return replace(work, **change), reads


WorkT = TypeVar("WorkT", bound=SliceWork)


@dataclass
class ProviderReads(Reads):
    """A slice provider and the cluster in one object."""

    concurrency_limit: int | None = None
    noun: str = "TPUNodeGroup"
    event_prefix: str = "TPUNodeGroup"
    is_gke: bool = False

    def list_slice_classes(self, _now: datetime) -> list[Any]:
        """By default there is none. Not recorded."""
        return list(self.answers.get("list_slice_classes", ()))

    def find_legacy_class(self, _name: str) -> SliceClass:
        """By default there is one. Not recorded."""
        found = SliceClass("the template", (Place("us-east5-a"),), {}, is_legacy=True)
        return cast("SliceClass", self.answers.get("find_legacy_class", found))


def reading_slices(
    kind: type[WorkT],
    trigger: Trigger,
    answers: Mapping[str, Any],
    *,
    limit: int | None = None,
    settings: Settings = SETTINGS,
    **fields: Any,
) -> tuple[WorkT, Reads]:
    """Return the work of a JobSet step that only reads, and its recorded reads."""
    reads = ProviderReads(answers, concurrency_limit=limit)
    nothing: Any = None
    work = kind(
        settings=settings,
        gce=nothing,
        cluster=cast("Cluster", reads),
        publish=nothing,
        random_bytes=bytes,
        remaining_s=lambda: 30.0,
        now=NOW,
        trigger=trigger,
        provider=cast("Provider", reads),
        **fields,
    )
    return work, reads
