"""What the page shows of the tables of `get`, and what a tab is sent of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from replay.listing import IDLE, UNSAID, Row, Table
from replay.web.state import Lines, build_overview, find_changes

NOW = datetime(2026, 1, 1, 10, tzinfo=UTC)
HEAD = ("NAMESPACE", "SLICE", "READY", "REASON", "NODES", "CHIPS", "WORKLOAD", "AGE")


def build(*rows: tuple[str, ...], price: float | None = None, **others: Table) -> dict[str, Any]:
    slices = Table("slices", HEAD, [(row, f"about {row[1]}") for row in rows])
    waiting = others.get("waiting", Table("waiting", ("NAMESPACE", "POD", "WORKLOAD", "WAITS"), []))
    classes = Table("classes", ("CLASS", "DEFAULT"), [(("v6e", "no"), "us-a has no 2x2")])
    return build_overview([slices, waiting, classes], price, NOW)


def row(name: str, ready: str, reason: str, chips: str = "0/8") -> tuple[str, ...]:
    return ("default", name, ready, reason, "0/2", chips, "-", "1m")


@pytest.mark.parametrize(
    "ready, reason, state",
    [
        ("True", "Ready", "ready"),
        ("False", "Provisioning", "progress"),
        ("False", "InsufficientCapacity", "trouble"),
        ("Unknown", "Unreachable", "trouble"),
        ("True", "Deleting", "deleting"),
        ("False", "DeletingMIG", "deleting"),
        ("-", "-", "progress"),
    ],
)
def test_a_slice_has_a_state_by_ready_and_its_reason(ready: str, reason: str, state: str) -> None:
    [found] = build(row("a", ready, reason))["slices"]["rows"]
    assert found["state"] == state


def test_slices_with_trouble_come_first_and_the_others_keep_their_order() -> None:
    sections = build(
        row("a", "True", "Ready"),
        row("b", "False", "Preempted"),
        row("c", "True", "Ready"),
        row("d", "False", "QuotaExceeded"),
    )
    assert [one["cells"][1] for one in sections["slices"]["rows"]] == ["b", "d", "a", "c"]


def test_the_cost_an_hour_is_of_the_chips_that_run() -> None:
    rows = (row("a", "True", "Ready", "8/8"), row("b", "False", "Preempted", "4/8"))
    sections = build(*rows, row("own-template", "True", "Ready", "-"), price=2.5)
    assert sections["slices"]["head"][-1] == "COST/H"
    assert [one["cells"][-1] for one in sections["slices"]["rows"]] == ["10.00", "20.00", "-"]
    summary = sections["summary"]
    assert (summary["chips"], summary["cost"]) == ([12, 16], "30.00")
    counted = {name: summary[name] for name in ("slices", "ready", "waiting", "idle")}
    assert counted == {"slices": 3, "ready": 2, "waiting": 0, "idle": 0}


def test_chips_of_idle_slices_are_counted() -> None:
    rows = [(row("a", "True", "Ready", "8/8"), f"{IDLE} 2h: no Pod uses its chips")]
    rows += [(row("b", "True", "Ready", "4/4"), "")]
    tables = [Table("slices", HEAD, rows)]
    assert build_overview(tables, None, NOW)["summary"]["idle"] == 8


def test_without_a_price_there_is_no_cost() -> None:
    sections = build(row("a", "True", "Ready", "8/8"))
    assert (sections["slices"]["head"], sections["summary"]["cost"]) == ([*HEAD], None)


def test_a_pod_about_which_nothing_was_said_is_explained_on_the_page_itself() -> None:
    words = [f"`kubectl tng explain pod/p-0 -n default` {UNSAID}", "The zone is full"]
    rows: list[Row] = [((*"dpj", f"{number}m"), text) for number, text in enumerate(words)]
    sections = build(waiting=Table("waiting", ("NAMESPACE", "POD", "WORKLOAD", "WAITS"), rows))
    shown = [one["words"] for one in sections["waiting"]["rows"]]
    assert shown == ["Open it: its page says why.", "The zone is full"]


def test_a_row_leads_to_its_slice_or_pod_and_a_class_to_nothing() -> None:
    pod = (("default", "p-0", "Job p", "5m"), "why")
    waiting = Table("waiting", ("NAMESPACE", "POD", "WORKLOAD", "WAITS"), [pod])
    sections = build(row("a", "True", "Ready"), waiting=waiting)
    found = {name: sections[name]["rows"][0] for name in ("slices", "waiting", "classes")}
    links = {name: one["link"] for name, one in found.items()}
    assert links == {"slices": "slice/default/a", "waiting": "pod/default/p-0", "classes": ""}
    assert found["classes"]["words"] == "us-a has no 2x2"


@pytest.mark.parametrize(
    "ready, reason, state", [("True", "NodePool", "ready"), ("False", "NodesNotReady", "trouble")]
)
def test_a_node_pool_has_a_state_and_leads_to_nothing(ready: str, reason: str, state: str) -> None:
    [found] = build(row("a", ready, reason))["slices"]["rows"]
    assert (found["state"], found["link"]) == (state, "")


def test_what_may_not_be_listed_is_said() -> None:
    waiting = Table("waiting", ("NAMESPACE", "POD", "WORKLOAD", "WAITS"), [], "no permission")
    assert build(waiting=waiting)["waiting"]["error"] == "no permission"


@pytest.mark.parametrize(
    "before, after, changes",
    [
        ({}, {"a": 1, "b": None}, {"a": 1, "b": None}),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, {"b": 3}),
        ({"a": [1]}, {"a": [1]}, {}),
        ({}, {"a": Lines("xy")}, {"a": {"from": 0, "lines": ("x", "y")}}),
        ({"a": Lines("xy")}, {"a": Lines("xyz")}, {"a": {"from": 2, "lines": ("z",)}}),
        ({"a": Lines("xyz")}, {"a": Lines("xbc")}, {"a": {"from": 1, "lines": ("b", "c")}}),
        ({"a": Lines("xyz")}, {"a": Lines("xy")}, {"a": {"from": 2, "lines": ()}}),
        ({"a": Lines("xy")}, {"a": Lines("xy")}, {}),
    ],
)
def test_a_tab_is_sent_only_what_has_changed(
    before: dict[str, Any], after: dict[str, Any], changes: dict[str, Any]
) -> None:
    assert find_changes(before, after) == changes
