"""What the page reads of a simulation: the same as the commands show."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from replay.errors import ReplayError
from replay.web.hub import PageSubject
from replay.web.subjects import OVERVIEW, REST, PageSubjects
from shared.ports.errors import About, CallError
from tests.unit.replay.tool import Tool, make_dead_letter, training

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


def open_subjects(tool: Tool, price: float | None = None) -> PageSubjects:
    return PageSubjects(tool.dependencies(), price)


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
    assert len(ready_tool.calls) == 2  # classes are kept for some seconds
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
    first = read(subject)["lines"]
    run(busy_tool, 10)
    busy_tool.logs.queries.clear()
    later = read(subject)["lines"]
    assert later[: len(first) - 1] == first[:-1]
    assert len(later) > len(first)
    assert later == read(open_subjects(busy_tool).open(SLICE))["lines"]
    begins = [query.split('"')[1] for query in busy_tool.logs.queries if "protoPayload" in query]
    assert begins == ["2026-01-01T00:00:00Z", "2025-12-31T23:55:00Z"] or begins[0] > begins[1]


def test_steps_observe_again_only_after_a_change_or_half_a_minute(ready_tool: Tool) -> None:
    subject = open_subjects(ready_tool).open(SLICE)
    assert "life" in read(subject)
    ready_tool.calls.clear()
    assert "life" not in read(subject)
    assert not [call for call in ready_tool.calls if "instanceGroupManagers" in call]
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


def test_the_rest_has_the_dead_letters_which_remain_and_the_leaks(tool: Tool) -> None:
    make_dead_letter(tool, "label_node", b"no message")
    shown = tool.json("dead-letters", "list")
    found = read(open_subjects(tool).open(REST))
    assert [one["id"] for one in found["deadLetters"]] == [one["id"] for one in shown]
    assert (found["leaks"], found["leaksUnseen"]) == ([], "")
    assert tool.subscriptions.leases[-1] == (1, 0)
    assert tool.published == []


def test_a_pod_has_the_candidates_of_its_class_that_explain_shows(tool: Tool) -> None:
    error = "there is no Pod default/missing; kubectl get pods -A lists them"
    subject = open_subjects(tool).open("pod/default/missing")
    with pytest.raises(ReplayError, match=error):
        read(subject)


@pytest.mark.parametrize(
    "name",
    ["", "x", "slice", "slice/a", "slice/a/", "slice//b", "node/a/b", "slice/A/b", "pod/a/b/c"],
)
def test_other_names_have_no_subject(tool: Tool, name: str) -> None:
    assert open_subjects(tool).open(name) is None
