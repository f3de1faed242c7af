"""What the page reads of a simulation: the same as the commands show."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from functions.report_leaks.observe import ObservedLeaks
from replay import leaks
from replay.cloud_logging import Page
from replay.errors import ReplayError
from replay.web.hub import PageSubject
from replay.web.subjects import DEAD_LETTERS, LATE, LEAKS, OVERVIEW, Life, PageSubjects
from shared.base.timestamps import render_time
from shared.ports.errors import About, CallError
from tests.stories import helpers
from tests.stories.jobsets import pods
from tests.unit.replay.tool import Tool, make_dead_letter, make_tool_with_class, training

SLICE = "slice/default/training"


def read(subject: PageSubject | None) -> dict[str, Any]:
    """All sections of one read."""
    assert subject is not None
    found: dict[str, Any] = {}
    for sections in subject.read():
        found |= sections
    return found


def run(tool: Tool, minutes: float) -> None:
    tool.harness.run_for(timedelta(minutes=minutes))


def open_subjects(tool: Tool, price: float | None = None, namespace: str = "") -> PageSubjects:
    return PageSubjects(tool.dependencies, namespace, price)


@pytest.fixture(name="ready_tool")
def _ready_tool(busy_tool: Tool) -> Tool:
    """A slice that is Ready."""
    busy_tool.harness.apply(training())
    run(busy_tool, 10)
    return busy_tool


def test_the_overview_has_what_get_lists_and_no_call_to_the_cloud(ready_tool: Tool) -> None:
    shown = ready_tool.json("get", "-A")
    ready_tool.calls.clear()
    found = read(open_subjects(ready_tool, 2.0).open(OVERVIEW))
    [slice_] = found["slices"]["rows"]
    head = found["slices"]["head"]
    cells = dict(zip(map(str.lower, head), slice_["cells"], strict=True))
    assert {**cells, "message": slice_["words"]} == {**shown["slices"][0], "cost/h": "16.00"}
    summary = found["summary"]
    assert (summary["ready"], summary["chips"], summary["cost"]) == (1, [8, 8], "16.00")
    assert all(call.startswith("GET ") for call in ready_tool.calls)
    assert len(ready_tool.calls) == 3  # groups, Pods, Nodes of node pools; classes are kept
    assert ready_tool.logs.queries == []


def test_a_life_has_what_explain_and_timeline_show(ready_tool: Tool) -> None:
    shown = ready_tool.json("explain", "training")
    found = read(open_subjects(ready_tool).open(SLICE))
    assert found["life"]["summary"] == shown["summary"]
    types = [one["type"] for one in shown["conditions"]]
    assert [one[0] for one in found["life"]["conditions"]] == types
    assert (found["lifeError"], found["timelineError"]) == ("", "")
    document = ready_tool.json("timeline", "training")
    assert "First Ready after" in found["timeline"]["paragraphs"][0]
    assert found["chart"].count("<rect") == len(document["spans"])
    assert any("AllJoined" in line for line in found["lines"])


def test_a_life_grows_and_only_later_entries_are_read(busy_tool: Tool) -> None:
    busy_tool.harness.apply(training())
    run(busy_tool, 1)
    subject = open_subjects(busy_tool).open(SLICE)
    since = busy_tool.dependencies().now() - LATE
    first = read(subject)["lines"]
    run(busy_tool, 10)
    busy_tool.logs.queries.clear()
    later = read(subject)["lines"]
    assert later[: len(first) - 1] == first[:-1]
    assert len(later) > len(first)
    assert later == read(open_subjects(busy_tool).open(SLICE))["lines"]
    begins = [query.split('"')[1] for query in busy_tool.logs.queries if "protoPayload" in query]
    assert begins == [render_time(since), "2025-12-31T23:55:00Z"]


def test_steps_observe_again_only_after_a_change_or_half_a_minute(ready_tool: Tool) -> None:
    subject = open_subjects(ready_tool).open(SLICE)
    assert "life" in read(subject)
    ready_tool.calls.clear()
    assert "life" not in read(subject)
    assert not [call for call in ready_tool.calls if "instanceGroupManagers" in call]
    change = {"metadata": {"annotations": {"changed": "now"}}}
    helpers.patch(ready_tool.harness, helpers.group_path("training"), change)
    assert "life" in read(subject)
    assert "life" not in read(subject)
    run(ready_tool, 0.5)
    assert "life" in read(subject)


def test_another_slice_of_the_same_name_has_a_life_of_its_own(ready_tool: Tool) -> None:
    subject = open_subjects(ready_tool).open(SLICE)
    before = read(subject)["timeline"]["head"]
    ready_tool.harness.delete("training")
    run(ready_tool, 10)
    gone = read(subject)
    assert gone["life"] is None
    assert gone["lifeError"].startswith("there is no TPUNodeGroup default/training")
    assert any("tear_down" in line for line in gone["lines"])
    ready_tool.harness.apply(training())
    run(ready_tool, 1)
    after = read(subject)
    assert after["life"]["summary"]
    assert after["timeline"]["head"].split(",")[0] != before.split(",")[0]
    assert not any("tear_down" in line for line in after["lines"])
    assert "Other groups had this name: " not in after["timeline"]["paragraphs"][-1]
    ready_tool.harness.delete("training")
    run(ready_tool, 10)
    assert "Other groups had this name: " in read(subject)["timeline"]["paragraphs"][-1]


def test_without_google_credentials_the_life_is_explained_by_the_cluster(ready_tool: Tool) -> None:
    ready_tool.unread = "there are no Google credentials here"
    found = read(open_subjects(ready_tool).open(SLICE))
    assert found["timelineError"] == "there are no Google credentials here"
    assert found["life"]["summary"][0].startswith("default/training has been Ready for")


def test_a_log_that_cannot_be_read_does_not_hide_the_rest(
    ready_tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = CallError("entries.list", 403, "refused", "no permission", About("entries"))

    def fail(*_: object) -> Any:
        raise error

    monkeypatch.setattr(ready_tool.logs, "list_page", fail)
    found = read(open_subjects(ready_tool).open(SLICE))
    assert "roles/logging.viewer" in found["timelineError"]
    assert found["life"]["conditions"]


def test_text_of_others_is_escaped_in_what_is_html(ready_tool: Tool) -> None:
    ready_tool.logs.stand_in.write_line(
        "tpu-functions-label-node",
        {
            "step": "label_node",
            "decision": "<img src=x>",
            "group": "default/training",
            "note": "<b>",
        },
    )
    found = read(open_subjects(ready_tool).open(SLICE))
    html = found["chart"] + found["legend"] + "".join(found["lines"])
    assert "&lt;img src=x&gt;" in html
    assert "<img" not in html
    assert "<b>" not in html


def test_dead_letters_are_listed_and_remain(tool: Tool) -> None:
    make_dead_letter(tool, "label_node", b"no message")
    shown = tool.json("dead-letters", "list")
    before = tool.dependencies().now()
    found = read(open_subjects(tool).open(DEAD_LETTERS))
    assert [one["id"] for one in found["deadLetters"]] == [one["id"] for one in shown]
    assert (
        found["deadLettersReadAt"] == render_time(tool.dependencies().now()) > render_time(before)
    )
    assert tool.subscriptions.leases[-1] == (1, 0)
    assert tool.published == []


def test_leaks_are_those_that_the_command_shows_also_if_dead_letters_cannot_be_read(
    ready_tool: Tool,
) -> None:
    ready_tool.subscriptions.error = CallError("pull", 403, "refused", "no", About("subscriptions"))
    ready_tool.harness.delete("training")
    path = helpers.group_path("training")
    helpers.patch(ready_tool.harness, path, {"metadata": {"finalizers": []}})
    run(ready_tool, 120)
    shown = ready_tool.json("leaks")
    found = read(open_subjects(ready_tool).open(LEAKS))
    assert "tng-training-" in shown[0]["commands"][0]
    assert (found["leaks"], found["leaksUnseen"]) == (shown, "")
    assert found["leaksReadAt"] == render_time(ready_tool.dependencies().now())


def test_leaks_that_were_not_read_are_said(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    observed = ObservedLeaks((), 0, left=2, unseen=("Nodes",))
    monkeypatch.setattr(leaks, "observe_leaks", lambda _: observed)
    found = read(open_subjects(tool).open(LEAKS))
    assert found["leaksUnseen"].startswith("2 slices more may be leaked. ")
    assert "Nodes" in found["leaksUnseen"]


def test_credentials_that_come_later_are_used(tool: Tool) -> None:
    tool.unread = "there are no Google credentials here"
    subjects = open_subjects(tool)
    for name in (DEAD_LETTERS, LEAKS):
        with pytest.raises(ReplayError, match=r"^there are no Google credentials here$"):
            read(subjects.open(name))
    tool.unread = ""
    tool.harness.run_for(timedelta(seconds=59))
    with pytest.raises(ReplayError, match="no Google credentials"):
        read(subjects.open(LEAKS))
    tool.harness.run_for(timedelta(seconds=1))
    assert read(subjects.open(LEAKS))["leaks"] == []
    assert read(subjects.open(DEAD_LETTERS))["deadLetters"] == []


def test_the_overview_of_a_namespace_has_its_slices_alone(tool: Tool) -> None:
    tool.harness.apply(training())
    for namespace, names in (("default", ["training"]), ("kube-system", [])):
        found = read(open_subjects(tool, namespace=namespace).open(OVERVIEW))
        assert [one["cells"][1] for one in found["slices"]["rows"]] == names
        assert found["context"] == namespace
    assert PageSubjects(tool.dependencies, "ml", context="x")._context == "x · ml"


def test_a_pod_has_what_explain_shows_with_the_candidates_of_its_class() -> None:
    tool = make_tool_with_class()
    name = pods(tool.harness)[0]["metadata"]["name"]
    found = read(open_subjects(tool).open(f"pod/default/{name}"))
    assert found == {"pod": tool.json("explain", f"pod/{name}")}
    assert len(found["pod"]["class"]["candidates"]) == 3


def test_a_pod_that_does_not_exist_is_said(tool: Tool) -> None:
    error = "there is no Pod default/missing; kubectl get pods -A lists them"
    subject = open_subjects(tool).open("pod/default/missing")
    with pytest.raises(ReplayError, match=error):
        read(subject)


@pytest.mark.parametrize(
    "name", ["x", "slice", "slice/a", "slice/a/", "slice//b", "node/a/b", "slice/A/b", "pod/a/b/c"]
)
def test_other_names_are_an_error(tool: Tool, name: str) -> None:
    error = f"'{name}' names neither a slice nor a Pod; the first page lists them"
    with pytest.raises(ReplayError, match=f"^{error}$"):
        read(open_subjects(tool).open(name))


def test_a_slice_is_also_named_without_its_kind(ready_tool: Tool) -> None:
    subjects = open_subjects(ready_tool)
    assert (
        read(subjects.open(SLICE.removeprefix("slice/")))["life"]
        == read(subjects.open(SLICE))["life"]
    )


def test_no_name_has_no_subject(tool: Tool) -> None:
    assert open_subjects(tool).open("") is None


def test_entries_are_in_the_order_of_their_times_also_without_a_fraction(
    ready_tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = [
        f"2026-01-01T00:00:00{digits}Z" for digits in ("", ".000001", ".25", ".250000001", ".3")
    ]
    entries = tuple({"timestamp": at, "insertId": "x"} for at in reversed(times))
    monkeypatch.setattr(ready_tool.logs, "list_page", lambda *_: Page(entries, ""))
    life, deps = (
        Life(ready_tool.dependencies, "default", "training", None),
        ready_tool.dependencies(),
    )
    found = life._read_entries(deps, frozenset("p"), deps.now(), deps.now(), "query")
    assert [one["timestamp"] for one in found] == times
