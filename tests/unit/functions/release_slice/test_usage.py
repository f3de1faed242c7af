# ruff: noqa: E501  (a table reads best with a row on a line)
"""The usage and the waits of a class, as release_slice writes them to its status once a minute."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from functions.release_slice.usage import WriteUsage, plan_usage
from shared.slices.classes import Place, parse
from shared.slices.provider import Slice
from shared.slices.units import Unit
from tests.support.builders import NOW
from tests.support.class_specs import slice_class
from tests.unit.functions.release_slice.objects import SLICE

MINUTE = timedelta(minutes=1)


def one(name: str, minutes: float = 4, *, ready: bool = True, **change: Any) -> Slice:
    """A slice of the class, whose Pod began to wait so long ago."""
    unit = Unit("Job", "ns", name, "")
    found = replace(SLICE, name=name, unit=unit, class_name="v6e", chips=16, was_ready=ready)
    found = replace(found, place=Place("us-b", "SPOT"))
    return replace(found, **{"asked": NOW - minutes * MINUTE, **change})


def usage(slices: int, *waiting: str, chips: int = 16) -> dict[str, Any]:
    return {
        "slices": slices,
        "chips": slices * chips,
        "waiting": [f"ns/{name}" for name in waiting],
    }


def waits(median: str, p90: str, *seconds: int) -> dict[str, Any]:
    return {"median": median, "p90": p90, "seconds": [*seconds]}


LAST = waits("4m", "4m", 240)
TWENTY = [60] * 17 + [300, 900, 4000]
Row = tuple[dict[str, Any], list[Slice], dict[str, Any]]
ROWS: dict[str, Row] = {
    "none, for the first time": ({}, [], {"usage": usage(0)}),
    "none": ({"usage": usage(0)}, [], {}),
    "one begins": ({"usage": usage(0)}, [one("a", ready=False)], {"usage": usage(1, "a")}),
    "one still waits": ({"usage": usage(1, "a"), "waits": LAST}, [one("a", ready=False)], {}),
    "one has waited": ({"usage": usage(1, "a")}, [one("a")], {"usage": usage(1), "waits": LAST}),
    "it counts once": ({"usage": usage(1), "waits": LAST}, [one("a")], {}),
    "two have waited": ({"usage": usage(2, "a", "b")}, [one("b", 1), one("a", 2)], {"usage": usage(2), "waits": waits("1m", "2m", 120, 60)}),
    "one that waited is gone": ({"usage": usage(1, "a")}, [], {"usage": usage(0)}),
    "of a version that did not write its begin": ({"usage": usage(1, "a")}, [one("a", asked=None)], {"usage": usage(1)}),
    "a clock that is behind": ({"usage": usage(1, "a")}, [one("a", -1)], {"usage": usage(1), "waits": waits("0s", "0s", 0)}),
    "the last twenty": ({"usage": usage(1, "a"), "waits": waits("1m", "5m", 1, *TWENTY[:19])}, [one("a", 4000 / 60)], {"usage": usage(1), "waits": waits("1m", "5m", *TWENTY)}),
    "two hours": ({"usage": usage(1, "a")}, [one("a", 120)], {"usage": usage(1), "waits": waits("2h", "2h", 7200)}),
    "a minute less than two hours": ({"usage": usage(1, "a")}, [one("a", 119)], {"usage": usage(1), "waits": waits("119m", "119m", 7140)}),
    "hours": ({"usage": usage(1, "a")}, [one("a", 121)], {"usage": usage(1), "waits": waits("2h", "2h", 7260)}),
    "of another class": ({"usage": usage(0)}, [replace(one("a"), class_name="v5e"), replace(one("a"), class_name="")], {}),
    "refusals are kept": ({"usage": usage(1), "refusals": [{"candidate": "a"}]}, [], {"usage": usage(0), "refusals": [{"candidate": "a"}]}),
}  # fmt: skip


class Written:
    """A cluster that keeps the status that is written, and the log."""

    step = "release_slice"

    def __init__(self) -> None:
        self.cluster = self.log = self
        self.waited: list[tuple[str, int]] = []

    def info(self, _message: str, **fields: Any) -> None:
        assert (fields["class"], fields["candidate"]) == ("v6e", "us-b/SPOT")
        self.waited.append((fields["slice"], fields["waited_s"]))

    def replace_class_status(self, found: Any, status: dict[str, Any]) -> None:
        assert found["metadata"]["name"] == "v6e"
        self.status = status


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_the_status_of_a_class_has_its_slices_and_their_waits(row: Row) -> None:
    status, slices, parts = row
    found = plan_usage([parse({**slice_class(), "status": status})], slices, NOW)
    work: Any = Written()
    for write in found:
        write.apply(work)
    assert (work.status if found else {}) == ({**status, **parts} if parts else {})
    ended = len(parts.get("waits", {}).get("seconds", ())) and len(work.waited)
    assert work.waited == sorted(work.waited)
    assert [wait for _, wait in work.waited] == parts.get("waits", {}).get("seconds", [])[-ended:]


def test_a_hundred_names_are_kept_and_the_write_is_described() -> None:
    many = [one(f"s{number:03}", ready=False) for number in range(101)]
    (write,) = plan_usage([parse(slice_class())], many, NOW)
    assert isinstance(write, WriteUsage)
    assert [len(write.parts["usage"]["waiting"]), write.parts["usage"]["slices"]] == [100, 101]
    assert write.describe() == "write the usage of TPUSliceClass v6e"
