"""How many slices a class has, and how long its last ones waited, for the status of the class."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median_low
from typing import Any

from shared.base.documents import read_list, read_mapping
from shared.slices.classes import SliceClass
from shared.slices.provider import Slice
from shared.slices.work import SliceWork

MAX_WAITING, MAX_WAITS = 100, 20
BECAME_READY = "BecameReady"
"""The decision in the log line of a slice that has ended its wait."""


@dataclass(frozen=True)
class WriteUsage:
    """Write parts of the status of a class, then a log line for each slice that has ended its wait, of
    which Terraform makes a metric. If others write the status at the same time, the next run of the
    sweep does both."""

    of: SliceClass
    parts: Mapping[str, Any]
    waited: Sequence[tuple[Slice, int]] = ()

    def apply(self, work: SliceWork) -> None:
        status = {**read_mapping(self.of.raw, "status"), **self.parts}
        work.cluster.replace_class_status(self.of.raw, status)
        for one, seconds in self.waited:
            place = one.place.key if one.place else ""
            fields = {"class": self.of.name, "candidate": place, "slice": one.name}
            said = {"step": work.step, "trigger": "Sweep", "decision": BECAME_READY}
            work.log.info(f"{work.step}: {BECAME_READY}", **said, **fields, waited_s=seconds)

    def describe(self) -> str:
        return f"write the {' and '.join(self.parts)} of {self.of.shown}"


def plan_usage(
    classes: Iterable[SliceClass], slices: Sequence[Slice], now: datetime
) -> list[WriteUsage]:
    """The statuses to write, because something has changed.

    A slice that waited at the former run and has been ready since has ended its wait: in whole minutes,
    because nothing but the sweep observes all slices.
    """
    found = (_find_changes(one, slices, now) for one in classes)
    return [one for one in found if one.parts]


def _find_changes(of: SliceClass, slices: Iterable[Slice], now: datetime) -> WriteUsage:
    status = read_mapping(of.raw, "status")
    before = read_list(read_mapping(status, "usage"), "waiting")
    seconds: list[int] = read_list(read_mapping(status, "waits"), "seconds")[:]
    own = {f"{one.unit.namespace}/{one.name}": one for one in slices if one.class_name == of.name}
    waited = [
        (one, max(0, int((now - one.asked).total_seconds())))
        for name, one in sorted(own.items())
        if name in before and one.was_ready and one.asked is not None
    ]
    seconds += [wait for _, wait in waited]
    waiting = sorted(name for name, one in own.items() if not one.was_ready)[:MAX_WAITING]
    chips = sum(one.chips for one in own.values())
    parts = {"usage": {"slices": len(own), "chips": chips, "waiting": waiting}}
    if seconds:
        parts["waits"] = _describe_waits(seconds[-MAX_WAITS:])
    changed = {key: part for key, part in parts.items() if part != status.get(key)}
    return WriteUsage(of, changed, waited)


def _describe_waits(seconds: Sequence[int]) -> dict[str, Any]:
    """The waits with their median and 90th percentile, as in ``4m``."""
    in_order = sorted(seconds)
    p90 = in_order[-(-len(in_order) * 9 // 10) - 1]
    return {"median": _show(median_low(seconds)), "p90": _show(p90), "seconds": [*seconds]}


def _show(seconds: int) -> str:
    sizes = ((7200, 3600, "h"), (60, 60, "m"), (0, 1, "s"))
    size, unit = next((size, unit) for least, size, unit in sizes if seconds >= least)
    return f"{round(seconds / size)}{unit}"
