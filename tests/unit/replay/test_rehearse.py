"""``kubectl tng rehearse``: the decisions of the past that this version makes differently."""

from __future__ import annotations

import json
from typing import Any

import pytest

from replay.rehearse import MAX_ALIKE
from shared.frame.snapshot import FIELD
from tests.stories import helpers
from tests.support.harness import Harness
from tests.unit.replay.decision_lines import changed, line
from tests.unit.replay.tool import Tool, training

A_DIFFERENCE = {"message_id": "42", "group": "default/my-slice", FIELD: changed(outcome="AllReady")}


def write(tool: Tool, *lines: dict[str, Any]) -> None:
    for one in lines:
        tool.logs.stand_in.write_line("tpu-functions-label-node", json.loads(json.dumps(one)))


def test_a_life_decided_by_the_same_version_has_no_difference() -> None:
    tool = Tool(Harness())
    tool.harness.apply(training())
    helpers.until_ready(tool.harness, "training")
    found = tool.json("rehearse")
    assert found["different"] == []
    assert found["same"] >= 10
    assert all("has no snapshot" in problem for problem in found["unread"])
    result = tool.run("rehearse", "--since", "2d")
    first, *_ = result.stdout.splitlines()
    assert result.exit_code == 0
    assert first.startswith(f"{found['same']} decisions since ")


def test_a_decision_that_differs_is_shown_with_what_was_observed(tool: Tool) -> None:
    write(tool, line(), line(**A_DIFFERENCE))
    shown = " ".join(tool.run("rehearse").stdout.split())
    assert "2 decisions since" in shown
    assert "made again: 1 the same in this version, 1 different." in shown
    assert "label_node default/my-slice message 42 observed: 2 Nodes read" in shown
    assert "decided: AllReady: update the status if it differs" in shown
    assert "this version would decide: AllJoined" in shown
    (kind,) = tool.json("rehearse")["different"]
    (one,) = kind["examples"]
    assert (kind["step"], kind["count"]) == ("label_node", 1)
    assert (one["about"], one["messageId"]) == ("default/my-slice", "42")
    assert one["decision"]["then"]["outcome"] == "AllReady"


def test_of_many_alike_a_few_are_shown_and_the_others_counted(tool: Tool) -> None:
    write(tool, *[line(**A_DIFFERENCE)] * (MAX_ALIKE + 2))
    shown = tool.run("rehearse").stdout
    assert shown.count("this version would decide") == MAX_ALIKE
    assert "2 more are different in the same way." in " ".join(shown.split())
    (kind,) = tool.json("rehearse")["different"]
    assert (kind["count"], len(kind["examples"])) == (MAX_ALIKE + 2, MAX_ALIKE)


def test_what_differs_in_another_way_is_shown_beside_many_that_differ_alike(tool: Tool) -> None:
    deletes = changed(outcome="AllReady", actions=["delete Node a"])
    write(tool, *[line(**A_DIFFERENCE)] * (MAX_ALIKE + 1), line(**{**A_DIFFERENCE, FIELD: deletes}))
    assert "decided: AllReady: delete Node a" in " ".join(tool.run("rehearse").stdout.split())


@pytest.mark.parametrize(
    "snapshot, problem",
    [
        (
            {"version": 1, "bytes": 335248},
            "the snapshot cannot be read: the function left it out: it had too many bytes, and the log "
            "takes 98304",
        ),
        ({"version": 2}, "the snapshot cannot be read: version 2 is not known; this tool reads 1"),
        (None, "the log line has no snapshot: nothing was decided, or an older version wrote it"),
    ],
)
def test_what_cannot_be_read_is_counted_with_the_reason(
    tool: Tool, snapshot: dict[str, Any] | None, problem: str
) -> None:
    given = line(**({FIELD: snapshot} if snapshot else {}))
    if snapshot is None:
        del given[FIELD]
    write(tool, given, given)
    assert tool.json("rehearse") == {"same": 0, "different": [], "unread": {problem: 2}}
    shown = " ".join(tool.run("rehearse").stdout.split())
    assert f"2 lines not decided again: {problem}." in shown


def test_older_lines_and_other_services_are_not_read(tool: Tool) -> None:
    write(tool, line(**A_DIFFERENCE))
    tool.harness.run_for(helpers.HOUR)
    tool.logs.stand_in.write_line("another-service", json.loads(json.dumps(line(**A_DIFFERENCE))))
    found = tool.json("rehearse", "--since", "30m")
    assert (found["same"], found["different"], found["unread"]) == (0, [], {})
