"""``replay explain``: prints what each step would do, and changes nothing."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import Any

import pytest

from local.cloud.simulation import Options
from local.vm import agents
from shared.base.reasons import REASONS, Reason
from shared.base.timestamps import render_time
from tests.support.harness import Harness
from tests.unit.replay.tool import ALONE, Tool, training


def _new(tool: Tool) -> None:
    tool.harness.apply(training())


def _in_progress(tool: Tool) -> None:
    tool.harness.apply(training())
    tool.harness.run_for(timedelta(seconds=2))


def _waiting_for_capacity(tool: Tool) -> None:
    tool.harness.simulation.gce.faults.set_capacity("us-central1-c", "tpu7x", 0)
    tool.harness.apply(training())
    tool.harness.run_for(timedelta(minutes=3))


def _joining(tool: Tool) -> None:
    """Run until the VMs have their tokens; they have not joined yet."""
    path = "/api/v1/namespaces/kube-system/secrets"
    tool.harness.apply(training())
    assert tool.harness.run_until(
        lambda: bool(tool.harness.simulation.admin("GET", path)["items"]), timedelta(minutes=10)
    )


def _ready(tool: Tool) -> None:
    tool.harness.apply(training())
    is_ready = tool.harness.is_ready
    assert tool.harness.run_until(lambda: is_ready("training"), timedelta(minutes=30))


def _deleting(tool: Tool) -> None:
    _ready(tool)
    tool.harness.delete("training")


def _unserved(tool: Tool) -> None:
    _deleting(tool)
    _configure(tool, projects=frozenset({"other-project"}))
    tool.harness.run_for(timedelta(minutes=2))


def _foreign(tool: Tool) -> None:
    _ready(tool)
    _configure(tool, installation_id="b")


def _configure(tool: Tool, **settings: Any) -> None:
    """Change the settings of the steps and of the tool."""
    tool.harness.settings["admin"] = replace(tool.harness.settings["admin"], **settings)
    tool.harness.configure(**settings)


def _invalid(tool: Tool) -> None:
    manifest = training()
    manifest["spec"]["project"] = "another-project"
    tool.harness.apply(manifest)
    tool.harness.run_for(timedelta(seconds=5))


STEPS = ("create_resources", "inject_token", "label_node", "tear_down")
WAITING = ("AllHaveTokens", "Counting", "NotDeleted")
NOT_SERVED = ("InvalidSpec", "NotServed", "NotServed", "NotDeleted")
SITUATIONS: dict[str, tuple[Callable[[Tool], None], tuple[str, ...], list[str]]] = {
    "new": (_new, ("Inserting", "AllHaveTokens", "NotOwned", "NotDeleted"), ["create_resources"]),
    "in progress": (_in_progress, ("Waiting", *WAITING), ["create_resources"]),
    "waiting for capacity": (
        _waiting_for_capacity,
        ("ResourcesReady", *WAITING),
        ["create_resources"],
    ),
    "ready": (
        _ready,
        ("ResourcesReady", "AllHaveTokens", "AllReady", "NotDeleted"),
        ["label_node"],
    ),
    "being deleted": (_deleting, (*["Deleting"] * 3, "Cordoning"), ["tear_down"]),
    "being deleted in a project that is not served": (
        _unserved,
        (*["Deleting"] * 3, "InvalidSpec"),
        ["tear_down"],
    ),
    "of another installation": (_foreign, ("OtherInstallation",) * 4, ["label_node"]),
    "invalid spec": (_invalid, NOT_SERVED, ["create_resources"]),
}
"""How each arises, the outcome of each step, and the steps that the sweep would trigger."""
situations = pytest.mark.parametrize("situation", SITUATIONS)


@cache
def _tool_at(situation: str) -> Tool:
    """Return one tool for all tests, which only read."""
    tool = Tool(Harness(ALONE if situation == "new" else None))
    SITUATIONS[situation][0](tool)
    return tool


@situations
def test_explain_writes_nothing(situation: str) -> None:
    tool = _tool_at(situation)
    before = tool.harness.group("training")
    result = tool.run("explain", "default/training")
    assert result.exit_code == 0
    assert tool.calls
    assert [call for call in tool.calls if not _is_read(call)] == []
    assert tool.harness.group("training") == before
    assert tool.published == []


def _is_read(call: str) -> bool:
    """Compute Engine lists a group's members by POST."""
    return call.startswith("GET ") or call.endswith("/listManagedInstances")


@situations
def test_each_step_has_the_outcome_of_its_decision(situation: str) -> None:
    document = _tool_at(situation).json("explain", "default/training")
    outcomes = {step["step"]: step["outcome"] for step in document["steps"]}
    assert outcomes == dict(zip(STEPS, SITUATIONS[situation][1], strict=True))


@situations
def test_the_sweep_names_the_steps_that_it_would_trigger(situation: str) -> None:
    document = _tool_at(situation).json("explain", "default/training")
    assert document["sweep"]["topics"] == SITUATIONS[situation][2]
    triggered = [step["step"] for step in document["steps"] if step["triggeredBySweep"]]
    assert triggered == SITUATIONS[situation][2]


def test_a_step_executes_the_actions_of_its_explanation(tool: Tool) -> None:
    _new(tool)
    document = {step["step"]: step for step in tool.json("explain", "default/training")["steps"]}
    tool.run("resync", "default/training")
    tool.harness.run_for(timedelta(seconds=1))
    step, answer = tool.harness.answers[-1]
    assert (document[step]["outcome"], document[step]["note"]) == (answer.outcome, answer.note)


def test_the_actions_are_listed_in_order(tool: Tool) -> None:
    _new(tool)
    document = tool.json("explain", "default/training")
    name = document["resourceName"]
    assert document["steps"][0]["actions"] == [
        "update the status if it differs",
        "take ownership: finalizer and label",
        "update the status if it differs",
        f"insert the workload policy {name} and the instance template {name}, and write the results",
    ]


@pytest.mark.parametrize(
    "situation, reason",
    [
        ("in progress", Reason.PROVISIONING),
        ("waiting for capacity", Reason.INSUFFICIENT_CAPACITY),
        ("invalid spec", Reason.INVALID_SPEC),
    ],
)
def test_the_reason_of_a_group_that_is_not_ready_and_its_solution_are_printed_once(
    situation: str, reason: Reason
) -> None:
    tool = _tool_at(situation)
    text = tool.run("explain", "default/training").stdout
    headlines = text.partition("CONDITION")[0]
    first, message, *_ = headlines.splitlines()
    cause, _, solution = REASONS[reason].partition(". ")
    assert re.fullmatch(
        rf"default/training has not been Ready for \d+[smh] \({reason}\): {cause.rstrip('.')}\.",
        first,
    )
    ready_message = tool.json("explain", "default/training")["ready"]["message"]
    assert message == ready_message.replace(f"{cause}. ", "")
    assert text.count(message) == 1, "no condition repeats it"
    assert not solution or headlines.count(solution) == 1
    assert f"docs/troubleshooting.md#{reason.lower()}\n" in headlines
    assert tool.json("explain", "default/training")["ready"]["meaning"] == REASONS[reason]


def test_a_deletion_is_reported_before_the_status_shows_it() -> None:
    lines = _tool_at("being deleted").run("explain", "default/training").stdout.splitlines()
    assert lines[0].startswith("default/training has been Ready for ")
    assert "The group is being deleted, for 0s." in lines


def test_a_group_without_a_status_is_explained_as_such(tool: Tool) -> None:
    _new(tool)
    first, sweep, *_ = tool.run("explain", "default/training").stdout.splitlines()
    assert first == "default/training is not Ready: no step has written its status yet."
    assert (
        sweep
        == "The group is not settled: the next resync is at 00:01 UTC (in 1m), to create_resources."
    )


def test_the_next_resync_is_when_the_sweep_publishes_it() -> None:
    tool = Tool(Harness(Options(agents=agents.Timings())))
    _ready(tool)
    document = tool.json("explain", "default/training")["sweep"]
    assert document["settled"] is True
    harness, resyncs = tool.harness, []

    def note(step: str, call: str) -> None:
        if step == "sweep" and call.startswith("publish") and "report_leaks" not in call:
            resyncs.append(harness.clock.now().replace(second=0, microsecond=0))

    harness.hooks.before = note
    harness.run_for(timedelta(minutes=61))
    assert document["nextResync"] == render_time(resyncs[0])


@pytest.mark.parametrize("situation", ["waiting for capacity", "in progress", "invalid spec"])
def test_output_is_wrapped_to_80_columns_without_losing_a_word(
    situation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = _tool_at(situation)
    unwrapped = tool.run("explain", "default/training").stdout
    monkeypatch.setenv("COLUMNS", "80")
    wrapped = tool.run("explain", "default/training").stdout
    assert max(map(len, unwrapped.splitlines())) > 80
    assert max(map(len, wrapped.splitlines())) <= 80
    assert "".join(wrapped.split()) == "".join(unwrapped.split())


def test_no_token_is_shown(busy_tool: Tool) -> None:
    _joining(busy_tool)
    result = busy_tool.run("explain", "default/training")
    path = "/api/v1/namespaces/kube-system/secrets"
    tokens = [
        base64.b64decode(secret["data"][key]).decode()
        for secret in busy_tool.harness.simulation.admin("GET", path)["items"]
        for key in ("token-id", "token-secret")
    ]
    assert tokens
    assert not [token for token in tokens if token in result.output]


def test_an_error_of_compute_engine_is_reported_with_its_message(busy_tool: Tool) -> None:
    _in_progress(busy_tool)
    busy_tool.harness.simulation.gce.faults.fail_next(
        "*", 50, http=403, reason="forbidden", message="Required 'compute.x.get' permission"
    )
    document = busy_tool.json("explain", "default/training")["steps"][0]
    assert (document["outcome"], document["observed"]) == ("CannotObserve", False)
    assert document["note"].endswith(
        "403 forbidden: Required 'compute.x.get' permission. You need the role "
        "roles/compute.viewer in the group's project."
    )


def test_a_missing_group_is_reported(tool: Tool) -> None:
    result = tool.run("explain", "default/training")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is no TPUNodeGroup default/training" in result.stderr
