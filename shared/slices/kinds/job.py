"""Indexed Jobs: one slice of several hosts for a Job, or one of one host for each index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.base.documents import Document, read_mapping, read_text
from shared.base.names import COMPLETION_INDEX, JOB_NAME, JOBSET_NAME
from shared.base.pods import parse_count, read_count
from shared.slices.kinds.kind import (
    INDEXED,
    Entries,
    Members,
    UnitKind,
    find_template_change,
    refuse_number,
    refuse_sequence,
    refuse_without_index,
)
from shared.slices.units import Demand, Unit, UnservableError

if TYPE_CHECKING:
    from shared.ports.kubernetes.cluster import Cluster


class IndexedJob(UnitKind):
    """Jobs of no JobSet whose Pods have an index."""

    name = "Job"
    api_version = "batch/v1"
    foreign = (JOBSET_NAME,)
    finished = ("Complete", "Failed")

    def find_index(self, demand: Demand) -> int | None:
        return parse_count(demand.annotations.get(COMPLETION_INDEX))

    def find_size(self, owner: Document) -> tuple[int, str]:
        parallelism, completions = _count(owner, "parallelism"), _count(owner, "completions")
        refusal = refuse_sequence(f"Job {owner['metadata']['name']}", parallelism, completions)
        return parallelism, "" if parallelism == completions else refusal

    def find_unneeded_reason(self, unit: Unit, owner: Document) -> str:
        index = parse_count(unit.member)  # others may have written the marks of a slice
        if unit.member and (index is None or index >= _count(owner, "completions")):
            return f"Job {unit.owner} has no Pod {unit.member} any more"
        if not _count(owner, "parallelism"):
            return f"Job {unit.owner} has parallelism 0"
        ends = {"completedIndexes": "has completed", "failedIndexes": "has failed"}
        found = (
            end for field, end in ends.items() if index is not None and _has(owner, field, index)
        )
        return next((f"{unit.shown} {end}" for end in found), "")

    def is_for_next(self, unit: Unit, owner: Document) -> bool:
        parallelism, completions = _count(owner, "parallelism"), _count(owner, "completions")
        left = completions - read_count(read_mapping(owner, "status"), "succeeded", 0)
        index = parse_count(unit.member)
        is_first = index is not None and index < min(parallelism, left)
        return is_first and parallelism < completions

    def find_change(self, unit: Unit, owner: Document) -> str:
        return find_template_change(unit, read_mapping(read_mapping(owner, "spec"), "template"))

    def list_units(self, owner: Document, _workload: Document, entries: Entries) -> Members:
        spec = read_mapping(owner, "spec")
        entry = self.find_entry(entries, "main", read_mapping(spec, "template"))
        hosts, name = entry.demand.hosts, owner["metadata"]["name"]
        if spec.get("completionMode") != INDEXED:
            raise UnservableError(refuse_without_index(f"Job {name}"))
        if hosts > 1 and (violation := self.find_size(owner)[1]):
            raise UnservableError(violation)
        if hosts not in (1, entry.pods):
            raise UnservableError(refuse_number(f"Job {name}", entry.pods, hosts))
        for index in range(entry.pods if hosts == 1 else 1):
            yield str(index) if hosts == 1 else "", entry, owner

    def list_pods(self, cluster: Cluster, unit: Unit) -> list[dict[str, Any]]:
        pods = cluster.list_selected_pods(unit.namespace, f"{JOB_NAME}={unit.owner}")
        return [pod for pod in pods if self.names_unit(pod, unit)]


def _count(job: Document, field: str) -> int:
    return read_count(read_mapping(job, "spec"), field, 1)


def _has(job: Document, field: str, index: int) -> bool:
    """Whether an index is in a field of the status, as in ``1,3-5,7``."""
    for part in read_text(read_mapping(job, "status"), field).split(","):
        first, _, last = part.partition("-")
        begin, end = parse_count(first), parse_count(last or first)
        if begin is not None and end is not None and begin <= index <= end:
            return True
    return False


JOB = IndexedJob()
