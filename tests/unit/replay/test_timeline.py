"""``kubectl tng timeline``: a slice's lifecycle from log lines, the audit log and Events."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from replay.output import Format
from replay.timeline import COMPUTE, READY, RUNNING, STEP, VM, Timeline, read_timeline
from replay.timeline_html import MAX_VMS, render_html
from replay.timeline_text import join_moments, print_timeline, render_cost, render_summary
from shared.node_groups.status import Condition
from tests.support.harness import Harness
from tests.unit.replay.tool import Tool, example, training

NAME = "tng-training-0123abcd"
BEGAN = datetime(2026, 1, 1, 10, tzinfo=UTC)
VOID = {"meta", "br"}


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def line(
    seconds: float, decision: str = "Counting", took: int = 0, **fields: Any
) -> dict[str, Any]:
    """A log line of a function, written when the invocation ends."""
    payload = {"step": "label_node", "decision": decision, "milliseconds": took, **fields}
    return {"timestamp": at(seconds).isoformat(), "jsonPayload": payload}


def ready(seconds: float, reason: str, message: str = "") -> dict[str, Any]:
    return line(seconds, ready={"reason": reason, "message": message})


def entry(
    seconds: float, verb: str, *, vm: str = "", code: int = 0, message: str = "", **operation: Any
) -> dict[str, Any]:
    """An audit log entry about a VM, or about the MIG."""
    noun = "instances" if vm else "instanceGroupManagers"
    name = f"{NAME}-{vm}" if vm else NAME
    return {
        "timestamp": at(seconds).isoformat(),
        "operation": {"id": f"{verb}-{name}", **operation},
        "protoPayload": {
            "methodName": f"v1.compute.{noun}.{verb}",
            "resourceName": f"projects/p/zones/z/{noun}/{name}",
            "status": {"code": code, "message": message} if code or message else {},
        },
    }


def operation(begin: float, end: float, verb: str, **fields: Any) -> list[dict[str, Any]]:
    return [entry(begin, verb, first=True, **fields), entry(end, verb, last=True, **fields)]


def read(*entries: Mapping[str, Any], until: float = 1000, **more: Any) -> Timeline:
    ordered = sorted(entries, key=lambda one: str(one["timestamp"]))
    arguments = {"chips_per_vm": 4, "events": (), **more}
    return read_timeline("default/training", NAME, entries=ordered, until=at(until), **arguments)


def seconds(duration: timedelta | None) -> float | None:
    return duration.total_seconds() if duration is not None else None


def test_an_invocation_has_the_duration_and_the_end_of_its_line() -> None:
    [span] = read(line(10, took=2500)).list_spans(STEP)
    assert (span.begin, span.end, span.lane) == (at(7.5), at(10), "label_node")


def test_an_operation_lasts_from_its_first_entry_to_its_last() -> None:
    [span] = read(*operation(5, 35, "insert")).list_spans(COMPUTE)
    assert (span.lane, span.what, span.begin, span.end) == ("MIG", "insert", at(5), at(35))


def test_a_failed_operation_has_the_message_of_compute_engine() -> None:
    timeline = read(
        entry(5, "insert", first=True), entry(9, "insert", last=True, code=8, message="STOCKOUT")
    )
    [span] = timeline.list_spans(COMPUTE)
    assert (span.is_bad, span.why) == (True, "STOCKOUT")
    assert [(one.what, one.why, one.is_bad) for one in timeline.moments] == [
        ("insert begins", "", False),
        ("insert failed", "4.0 s; STOCKOUT", True),
    ]


def test_an_operation_without_a_last_entry_has_no_end() -> None:
    [span] = read(entry(5, "insert", first=True)).list_spans(COMPUTE)
    assert (span.begin, span.end) == (at(5), None)


# Verbs of one VM with their seconds, and the seconds for which it ran by second 1000.
VMS: dict[str, tuple[list[tuple[float, str]], float]] = {
    "running": ([(100, "insert")], 900),
    "deleted": ([(100, "insert"), (400, "delete")], 300),
    "preempted": ([(100, "insert"), (150, "preempted")], 50),
    "restarted": ([(100, "insert"), (150, "hostError"), (200, "automaticRestart")], 850),
    "preempted, then deleted": ([(0, "insert"), (50, "preempted"), (90, "delete")], 50),
    "created again": ([(0, "insert"), (50, "delete"), (500, "insert")], 550),
    "never created": ([(100, "delete")], 0),
}


@pytest.mark.parametrize("case", VMS)
def test_chip_hours_count_the_time_for_which_a_vm_ran(case: str) -> None:
    verbs, ran = VMS[case]
    entries = [entry(second, verb, vm="aaaa", first=True, last=True) for second, verb in verbs]
    timeline = read(*entries)
    spans = [span for span in timeline.list_spans(VM) if span.what == RUNNING]
    took = sum((span.until(at(1000)) - span.begin for span in spans), timedelta())
    assert took.total_seconds() == ran
    assert timeline.chip_hours == pytest.approx(4 * ran / 3600)


def test_a_vm_whose_insert_failed_never_ran() -> None:
    failed = entry(9, "insert", vm="aaaa", last=True, code=8, message="STOCKOUT")
    assert read(failed).chip_hours == 0


def test_periods_of_not_ready_are_listed_by_reason_the_longest_first() -> None:
    timeline = read(
        ready(0, "Provisioning", "a"),
        ready(60, "InsufficientCapacity", "b"),
        ready(300, "InsufficientCapacity", "c"),
        ready(360, "Provisioning", "d"),
        ready(400, "Ready", "e"),
        ready(900, "Preempted", "f"),
    )
    assert [(one.reason, seconds(one.took), one.message) for one in timeline.phases] == [
        ("InsufficientCapacity", 300, "c"),
        ("Provisioning", 100, "d"),
        ("Preempted", 100, "f"),
    ]
    assert (seconds(timeline.not_ready), seconds(timeline.first_ready)) == (500, 400)


def test_the_time_not_ready_is_divided_without_counting_a_second_twice() -> None:
    timeline = read(
        ready(0, "Provisioning"),
        *operation(10, 40, "insert"),
        *operation(20, 60, "insert", vm="aaaa"),
        line(70, took=20_000),
        ready(100, "Ready"),
        *operation(200, 300, "delete", vm="aaaa"),
    )
    shares = {name: seconds(share) for name, share in timeline.shares.items()}
    assert shares == {COMPUTE: 50, "functions": 10, "neither": 40}


def test_an_operation_during_another_one_does_not_end_the_other() -> None:
    timeline = read(
        ready(0, "Provisioning"),
        *operation(10, 60, "insert"),
        *operation(20, 30, "insert", vm="aaaa"),
        ready(100, "Ready"),
    )
    assert seconds(timeline.shares[COMPUTE]) == 50


def test_a_timeline_without_readiness_in_the_log_uses_the_status_of_the_group() -> None:
    known = Condition("True", "Ready", "All", since=at(30), generation=1)
    timeline = read(line(0), ready=known)
    [span] = timeline.list_spans(READY)
    assert (span.what, span.begin, span.end) == ("Ready", at(30), None)


def test_a_slice_that_was_ready_before_the_time_range_is_ready_at_its_beginning() -> None:
    known = Condition("True", "Ready", "All", since=at(-9000), generation=1)
    old = [{"reason": "Provisioned", "firstTimestamp": at(-9000).isoformat()}]
    timeline = read(line(1, took=5000), ready=known, events=old, since=at(0))
    head, began, *_ = render_summary(timeline, None)
    assert "from 2026-01-01 10:00:00 to 2026-01-01 10:16:40 UTC" in head
    assert began == "Ready at the beginning of this time range; not Ready for 0.0 s in total."
    assert [moment.who for moment in timeline.moments] == ["status", "label_node"]


def test_a_slice_that_was_not_ready_before_the_time_range_counts_from_its_beginning() -> None:
    known = Condition("False", "Paused", "", since=at(-9000), generation=1)
    timeline = read(line(1), ready=known, since=at(0))
    _, began, paused, *_ = render_summary(timeline, None)
    assert began == "Never Ready; not Ready for 16m 40s in total."
    assert paused == "- Paused, 16m 40s: "


def test_the_time_not_ready_ends_with_the_group() -> None:
    timeline = read(ready(0, "DeletingMIG"), line(60, "Done", step="tear_down"))
    assert seconds(timeline.not_ready) == 60


def test_unreadable_entries_are_skipped() -> None:
    odd: list[dict[str, Any]] = [
        {"timestamp": "soon", "jsonPayload": {}},
        {"jsonPayload": {"step": "x"}},
        {"timestamp": at(1).isoformat(), "textPayload": "hello"},
        {"timestamp": at(1).isoformat(), "protoPayload": {"methodName": "storage.get"}},
        line(2, milliseconds="long", calls=7, ready="no"),
        *(line(2, milliseconds=took) for took in (1e300, math.nan, 1e14, -5)),
        line(2, calls={"gce": 10**400}),
        {"timestamp": at(2).isoformat(), "jsonPayload": {"decision": "LeakedSlice"}},
        {"timestamp": at(2).isoformat(), "protoPayload": {"methodName": 7, "resourceName": None}},
        {**entry(3, "insert"), "operation": "none"},
    ]
    odd[-1]["protoPayload"]["status"] = "bad"
    events = [{"reason": "Odd"}, {"count": "many", "firstTimestamp": at(4).isoformat()}]
    timeline = read_timeline("a/b", NAME, 4, odd, events, at(9))
    who = [moment.who for moment in timeline.moments]
    assert who == [*["label_node"] * 6, "", "MIG", "event"]


def test_moments_of_many_vms_at_the_same_time_are_one_line() -> None:
    vms = [f"a{number:03}" for number in range(5)]
    timeline = read(*(one for vm in vms for one in operation(5, 30, "insert", vm=vm)))
    found = [(one.who, one.what, one.why) for one in join_moments(timeline.moments)]
    assert found == [
        ("5 VMs", "insert begins", "a000, a001, a002 and 2 more"),
        ("5 VMs", "insert ended", "a000, a001, a002 and 2 more; 25.0 s"),
    ]


@pytest.mark.parametrize(
    "price, message",
    [
        (None, "2.00 chip-hours, by the time for which VMs existed. --price-per-chip-hour adds"),
        (12.0, "2.00 chip-hours, by the time for which VMs existed. At 12 per chip-hour: 24.00."),
    ],
)
def test_the_cost_is_printed_only_with_a_price(price: float | None, message: str) -> None:
    timeline = read(*operation(0, 0, "insert", vm="aaaa"), until=1800)
    assert render_cost(timeline, price).startswith(message)


def _host_error() -> Tool:
    """A slice that was Ready, lost a host and is Ready again."""
    tool = Tool(Harness())
    harness = tool.harness
    harness.apply(training())
    assert harness.run_until(lambda: harness.is_ready("training"), timedelta(minutes=30))
    vm = next(path for path in harness.simulation.gce.leftovers() if "/instances/" in path)
    harness.run_for(timedelta(minutes=7))
    harness.simulation.gce.faults.host_error(vm)
    assert harness.run_until(lambda: not harness.is_ready("training"), timedelta(minutes=9))
    assert harness.run_until(lambda: harness.is_ready("training"), timedelta(minutes=40))
    return tool


ARGUMENTS = ("timeline", "default/training")


@cache
def _recovered() -> Tool:
    return _host_error()


def test_a_host_error_is_listed_with_its_vm_and_the_time_not_ready() -> None:
    document = _recovered().json(*ARGUMENTS)
    reasons = [phase["reason"] for phase in document["notReady"]]
    assert {"Provisioning", "AwaitingNodeJoin", "Preempted"} <= set(reasons)
    shares = document["notReadySharesSeconds"]
    total = sum(phase["seconds"] for phase in document["notReady"])
    assert sum(shares.values()) == pytest.approx(total)
    lost = [one for one in document["moments"] if one["what"] == "hostError"]
    assert [(one["who"][:3], one["isBad"]) for one in lost] == [("VM ", True)]
    assert document["chipHours"] > 1
    assert document["cost"] is None
    assert _recovered().json(*ARGUMENTS, "--price-per-chip-hour", "2")["cost"] > 2


def test_chips_that_are_not_usable_now_count_from_the_beginning() -> None:
    """The steps log a period when it has ended, or an hour later; this slice waits for a person."""
    tool = Tool(Harness())
    harness = tool.harness
    harness.apply(example("v6e-4x4-spot.yaml", name="training"))
    assert harness.run_until(lambda: harness.is_ready("training"), timedelta(minutes=9))
    vm = next(path for path in harness.simulation.gce.leftovers() if "/instances/" in path)
    harness.simulation.gce.faults.preempt(vm)
    assert harness.run_until(lambda: not harness.is_ready("training"), timedelta(minutes=9))
    harness.run_for(timedelta(minutes=30))
    unusable = tool.json(*ARGUMENTS)["unusableChipHours"]
    assert unusable["computeEngine"] == pytest.approx(0.5 * 12, rel=0.1)
    assert "the slice waited for capacity or after a loss" in tool.run(*ARGUMENTS).stdout


def test_the_timeline_has_step_decision_and_reason_in_order() -> None:
    text = _recovered().run(*ARGUMENTS).stdout
    head, moments = text.split("\n\n", 1)
    assert head.startswith("default/training (tng-training-")
    assert "- Preempted, " in head
    times = [one[:8] for one in moments.splitlines()]
    assert times == sorted(times)
    assert re.search(r"\d  create_resources +Inserting  \[Added; calls: .*; \d\.\d s\]", moments)
    assert re.search(r"\d  status +not Ready: Preempted  \[1 of 2 nodes is not ready", moments)
    assert re.search(r"\d  event +Provisioned", moments)


def test_the_timeline_has_only_the_requested_time() -> None:
    late = _recovered().json(*ARGUMENTS, "--since", "4m")
    note = "Chip-hours count only VMs that were created in this time range, not earlier ones.\n"
    assert _recovered().run(*ARGUMENTS, "--since", "4m").stderr == note
    assert _recovered().run(*ARGUMENTS).stderr == ""
    assert "Inserting" not in [moment["what"] for moment in late["moments"]]


def test_the_timeline_of_a_slice_that_has_run_for_days_begins_with_its_creation() -> None:
    tool = _host_error()
    before = tool.json(*ARGUMENTS)
    tool.harness.run_for(timedelta(days=2))
    now = tool.json(*ARGUMENTS)
    assert now["since"] == before["since"]
    assert now["chipHours"] - before["chipHours"] == pytest.approx(2 * 24 * 8, rel=0.01)
    late = tool.run(*ARGUMENTS, "--since", "10m").stdout
    assert "Ready at the beginning of this time range; not Ready for 0.0 s in total." in late


def test_a_deleted_group_has_a_timeline() -> None:
    tool = _host_error()
    uid = tool.harness.group("training")["metadata"]["uid"]  # type: ignore[index]
    tool.harness.delete("training")
    tool.harness.run_for(timedelta(minutes=20))
    assert tool.harness.group("training") is None
    document = tool.json(*ARGUMENTS)
    assert uid
    assert [one["what"] for one in document["moments"] if one["who"] == "tear_down"][-1] == "Done"
    running = [one for one in document["spans"] if one["what"] == RUNNING]
    assert len(running) == 4, "both VMs are restarted together"
    assert all(one["end"] for one in running)
    assert document["chipHours"] > 1


def test_an_older_group_of_the_same_name_is_not_in_the_timeline() -> None:
    tool = _host_error()
    tool.harness.delete("training")
    tool.harness.run_for(timedelta(minutes=20))
    tool.harness.apply(training())
    tool.harness.run_for(timedelta(seconds=5))
    found = [moment["what"] for moment in tool.json(*ARGUMENTS)["moments"]]
    assert "Done" not in found
    assert "Inserting" in found


def test_other_groups_of_the_name_are_named_and_one_is_shown_by_its_uid() -> None:
    tool = _host_error()
    before = tool.harness.group("training")["metadata"]["uid"]  # type: ignore[index]
    tool.harness.delete("training")
    tool.harness.run_for(timedelta(minutes=20))
    tool.harness.apply(training())
    tool.harness.run_for(timedelta(seconds=5))
    now = tool.harness.group("training")["metadata"]["uid"]  # type: ignore[index]
    shown = tool.run(*ARGUMENTS, "--since", "1d")
    assert "Inserting" in shown.stdout
    said = (
        rf"This is {now}\. Other groups had this name: {before} \(until \S+Z\); --uid shows one\.\n"
    )
    assert re.search(said, shown.stderr), shown.stderr
    former = tool.json(*ARGUMENTS, "--since", "1d", "--uid", before)
    own = [one["what"] for one in former["moments"] if one["who"] == "tear_down"]
    assert own[-1] == "Done"
    assert former["chipHours"] > 1
    assert former["resourceName"] != tool.json(*ARGUMENTS)["resourceName"]
    unknown = tool.run(*ARGUMENTS, "--uid", "other")
    assert (unknown.exit_code, unknown.stdout) == (1, "")
    assert "Cloud Logging has no line about a group default/training of uid other" in unknown.stderr


def test_an_unknown_group_is_reported(tool: Tool) -> None:
    result = tool.run(*ARGUMENTS)
    assert (result.exit_code, result.stdout) == (1, "")
    assert (
        "there is no TPUNodeGroup default/training, and Cloud Logging has no entry" in result.stderr
    )


class Page(HTMLParser):
    """Checks that elements are closed in order; collects elements, attributes and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_times_have_a_date_if_the_timeline_has_several_days(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for until, shown in ((1000, "10:00:05"), (86_400, "01-01 10:00:05")):
        timeline = read(*operation(5, 30, "insert"), until=until)
        print_timeline(timeline, None, Format.TABLE)
        assert f"\n{shown}  MIG" in capsys.readouterr().out
        html = render_html(timeline, None)
        assert f"<td>{shown}</td>" in html
        assert f"MIG, insert, {shown}, 25.0 s" in html


def test_the_page_is_self_contained_and_has_a_chart(tmp_path: Path) -> None:
    path = tmp_path / "life.html"
    result = _recovered().run(*ARGUMENTS, "--html", str(path))
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.endswith(f"Wrote {path}.\n")
    html = path.read_text()
    page = Page(html)
    assert "svg" in page.tags
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name in ("src", "href", "onload")]
    assert "url(" not in html
    assert "prefers-color-scheme: dark" in html
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes
    assert "- Preempted, " in page.text
    for lane in ("Ready", "MIG", "label_node", "create_resources"):
        assert lane in page.text


def test_messages_from_outside_are_escaped() -> None:
    message = "<script>alert(1)</script>\x1b[31m"
    html = render_html(read(entry(5, "insert", last=True, code=8, message=message)), None)
    assert "<script>" not in html
    assert "\x1b" not in html
    assert "&lt;script&gt;" in html
    Page(html)


def test_a_chart_has_a_limited_number_of_vms() -> None:
    vms = [f"{number:04}" for number in range(MAX_VMS + 12)]
    html = render_html(
        read(*(one for vm in vms for one in operation(5, 30, "insert", vm=vm))), None
    )
    assert "and 12 more VMs" in html
    assert len(re.findall(r'<text x="0" y="\d+">VM ', html)) == MAX_VMS
