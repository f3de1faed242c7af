"""``replay explain``: what each step would do, told and not done."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from google.auth.exceptions import DefaultCredentialsError

from local.cloud.simulation import Options
from local.vm import agents
from replay.publications import GROUP_STEPS
from shared.base.reasons import REASONS, Reason
from shared.base.timestamps import render_time
from shared.ports.gce.clients import Clients
from tests.harness import Harness
from tests.unit.replay.desk import ALONE, Desk, training


def _new(desk: Desk) -> None:
    desk.harness.apply(training())


def _under_way(desk: Desk) -> None:
    desk.harness.apply(training())
    desk.harness.run_for(timedelta(seconds=2))


def _stuck(desk: Desk) -> None:
    desk.harness.simulation.gce.faults.set_capacity("us-central1-c", "tpu7x", 0)
    desk.harness.apply(training())
    desk.harness.run_for(timedelta(minutes=3))


def _joining(desk: Desk) -> None:
    """The VMs have their tokens and are about to join."""
    path = "/api/v1/namespaces/kube-system/secrets"
    desk.harness.apply(training())
    assert desk.harness.run_until(
        lambda: bool(desk.harness.simulation.admin("GET", path)["items"]), timedelta(minutes=10)
    )


def _ready(desk: Desk) -> None:
    desk.harness.apply(training())
    is_ready = desk.harness.is_ready
    assert desk.harness.run_until(lambda: is_ready("training"), timedelta(minutes=30))


def _going(desk: Desk) -> None:
    _ready(desk)
    desk.harness.delete("training")


def _invalid(desk: Desk) -> None:
    manifest = training()
    manifest["spec"]["project"] = "another-project"
    desk.harness.apply(manifest)
    desk.harness.run_for(timedelta(seconds=5))


MOMENTS: dict[str, tuple[Callable[[Desk], None], dict[str, str], list[str]]] = {
    "new": (
        _new,
        {
            "create_resources": "Inserting",
            "inject_token": "AllHaveTokens",
            "label_node": "NotOurs",
            "tear_down": "NotDeleted",
        },
        ["create_resources"],
    ),
    "under way": (
        _under_way,
        {
            "create_resources": "Waiting",
            "inject_token": "AllHaveTokens",
            "label_node": "Counting",
            "tear_down": "NotDeleted",
        },
        ["create_resources"],
    ),
    "waiting for capacity": (
        _stuck,
        {
            "create_resources": "ResourcesReady",
            "inject_token": "AllHaveTokens",
            "label_node": "Counting",
            "tear_down": "NotDeleted",
        },
        ["create_resources"],
    ),
    "ready": (
        _ready,
        {
            "create_resources": "ResourcesReady",
            "inject_token": "AllHaveTokens",
            "label_node": "AllReady",
            "tear_down": "NotDeleted",
        },
        ["label_node"],
    ),
    "being deleted": (
        _going,
        {
            "create_resources": "Deleting",
            "inject_token": "Deleting",
            "label_node": "Deleting",
            "tear_down": "Cordoning",
        },
        ["tear_down"],
    ),
    "refused": (
        _invalid,
        {
            "create_resources": "InvalidSpec",
            "inject_token": "NotServed",
            "label_node": "NotOurs",
            "tear_down": "NotDeleted",
        },
        ["create_resources"],
    ),
}
moments = pytest.mark.parametrize("moment", MOMENTS)


@cache
def _desk_at(moment: str) -> Desk:
    """One for all tests: what is only read stays as it is."""
    desk = Desk(Harness(ALONE if moment == "new" else None))
    MOMENTS[moment][0](desk)
    return desk


@moments
def test_nothing_is_written_anywhere(moment: str) -> None:
    desk = _desk_at(moment)
    before = desk.harness.group("training")
    result = desk.run("explain", "default/training")
    assert result.exit_code == 0
    assert desk.asked
    assert [call for call in desk.asked if not _is_read(call)] == []
    assert desk.harness.group("training") == before
    assert desk.published == []


def _is_read(call: str) -> bool:
    """Compute Engine lists a group's members by POST."""
    return call.startswith("GET ") or call.endswith("/listManagedInstances")


@moments
def test_each_step_says_what_it_would_come_to(moment: str) -> None:
    told = _desk_at(moment).json("explain", "default/training")
    assert {step["step"]: step["outcome"] for step in told["steps"]} == MOMENTS[moment][1]


@moments
def test_the_sweep_says_whom_it_would_wake(moment: str) -> None:
    told = _desk_at(moment).json("explain", "default/training")
    assert told["sweep"]["topics"] == MOMENTS[moment][2]
    woken = [step["step"] for step in told["steps"] if step["triggeredBySweep"]]
    assert woken == MOMENTS[moment][2]


def test_the_steps_are_listed_in_the_order_of_a_life(busy_desk: Desk) -> None:
    _new(busy_desk)
    told = busy_desk.json("explain", "default/training")
    assert tuple(step["step"] for step in told["steps"]) == GROUP_STEPS


def test_the_explanation_of_a_step_is_what_it_then_does(desk: Desk) -> None:
    _new(desk)
    told = {step["step"]: step for step in desk.json("explain", "default/training")["steps"]}
    desk.run("resync", "default/training")
    desk.harness.run_for(timedelta(seconds=1))
    step, answer = desk.harness.answers[-1]
    assert (told[step]["outcome"], told[step]["note"]) == (answer.outcome, answer.note)


def test_the_actions_are_listed_in_order(desk: Desk) -> None:
    _new(desk)
    told = desk.json("explain", "default/training")
    name = told["resourceName"]
    assert told["steps"][0]["actions"] == [
        "write the status, if it has changed",
        "take ownership: finalizer and label",
        "write the status, if it has changed",
        f"insert the workload policy {name}",
        f"insert the instance template {name}",
        "write the results of the inserts",
    ]


@pytest.mark.parametrize(
    "moment, reason",
    [
        ("under way", Reason.PROVISIONING),
        ("waiting for capacity", Reason.INSUFFICIENT_CAPACITY),
        ("refused", Reason.INVALID_SPEC),
    ],
)
def test_a_group_that_is_not_ready_gets_its_reason_and_what_to_do_once(
    moment: str, reason: Reason
) -> None:
    desk = _desk_at(moment)
    text = desk.run("explain", "default/training").stdout
    headlines = text.partition("CONDITION")[0]
    first, message, *_ = headlines.splitlines()
    cause, _, what_to_do = REASONS[reason].partition(". ")
    assert re.fullmatch(
        rf"default/training has not been Ready for \d+[smh] \({reason}\): {cause.rstrip('.')}\.",
        first,
    )
    said = desk.json("explain", "default/training")["ready"]["message"]
    assert message == said.replace(f"{cause}. ", "")
    assert text.count(message) == 1, "no condition repeats it"
    assert not what_to_do or headlines.count(what_to_do) == 1
    assert f"docs/troubleshooting.md#{reason.lower()}\n" in headlines
    assert desk.json("explain", "default/training")["ready"]["meaning"] == REASONS[reason]


def test_a_deletion_is_reported_before_the_status_shows_it() -> None:
    lines = _desk_at("being deleted").run("explain", "default/training").stdout.splitlines()
    assert lines[0].startswith("default/training has been Ready for ")
    assert "The group is being deleted, for 0s." in lines


def test_a_group_that_nobody_has_looked_at_says_so(desk: Desk) -> None:
    _new(desk)
    first, sweep, *_ = desk.run("explain", "default/training").stdout.splitlines()
    assert first == "default/training is not Ready: no step has written its status yet."
    assert sweep == "Sweep: not settled; next resync at 00:01 UTC, in 1m, to create_resources."


def test_the_next_look_is_when_the_sweep_really_comes() -> None:
    desk = Desk(Harness(Options(agents=agents.Timings())))
    _ready(desk)
    told = desk.json("explain", "default/training")["sweep"]
    assert told["settled"] is True
    harness, syncs = desk.harness, []

    def note(step: str, call: str) -> None:
        if step == "sweep" and call.startswith("publish") and "report_leaks" not in call:
            syncs.append(harness.clock.now().replace(second=0, microsecond=0))

    harness.hooks.before = note
    harness.run_for(timedelta(minutes=61))
    assert told["nextResync"] == render_time(syncs[0])


def test_the_conditions_are_a_table_with_reasons(busy_desk: Desk) -> None:
    _ready(busy_desk)
    lines = busy_desk.run("explain", "default/training").stdout.splitlines()
    rows = {line.split()[0]: line.split()[1:3] for line in lines if line}
    assert rows["CONDITION"] == ["STATUS", "REASON"]
    assert rows["Accepted"] == ["True", "Accepted"]
    assert rows["Ready"] == ["True", "Ready"]


@pytest.mark.parametrize("moment", ["waiting for capacity", "under way", "refused"])
def test_in_80_columns_no_line_is_longer_and_no_word_is_lost(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = _desk_at(moment)
    unwrapped = desk.run("explain", "default/training").stdout
    monkeypatch.setenv("COLUMNS", "80")
    wrapped = desk.run("explain", "default/training").stdout
    assert max(map(len, unwrapped.splitlines())) > 80
    assert max(map(len, wrapped.splitlines())) <= 80
    assert "".join(wrapped.split()) == "".join(unwrapped.split())


def test_under_a_condition_that_is_not_true_stands_what_the_headline_has_not_said(
    busy_desk: Desk,
) -> None:
    _under_way(busy_desk)
    told = busy_desk.json("explain", "default/training")
    known = {one["type"]: one for one in told["conditions"] if one["status"] != "True"}
    lines = busy_desk.run("explain", "default/training").stdout.splitlines()
    below = {line.split(" ")[0]: after for line, after in pairwise(lines)}
    assert known["WorkloadPolicyReady"]["message"] == told["ready"]["message"]
    assert below["WorkloadPolicyReady"] == ""
    other = known["ManagedInstanceGroupReady"]["message"]
    assert other != told["ready"]["message"]
    assert below["ManagedInstanceGroupReady"] == f"    {other}"


def test_under_a_step_stand_its_actions_and_its_note(desk: Desk) -> None:
    _new(desk)
    [step, *_] = desk.json("explain", "default/training")["steps"]
    text = desk.run("explain", "default/training").stdout
    head = next(line for line in text.splitlines() if line.startswith("create_resources"))
    assert head.split() == ["create_resources", "yes", "Inserting"]
    said = text.partition(f"{head}\n")[2].partition("\ninject_token")[0]
    assert said.splitlines() == [f"    - {action}" for action in step["actions"]]


def test_no_token_is_shown(busy_desk: Desk) -> None:
    _joining(busy_desk)
    result = busy_desk.run("explain", "default/training")
    path = "/api/v1/namespaces/kube-system/secrets"
    tokens = [
        base64.b64decode(secret["data"][key]).decode()
        for secret in busy_desk.harness.simulation.admin("GET", path)["items"]
        for key in ("token-id", "token-secret")
    ]
    assert tokens
    assert not [token for token in tokens if token in result.output]


def test_a_step_that_cannot_look_says_why_and_the_others_go_on(busy_desk: Desk) -> None:
    def fail(_session: Any) -> None:
        raise DefaultCredentialsError("Your default credentials were not found.")

    _under_way(busy_desk)
    busy_desk.clients = Clients("http://compute.local", prepare=fail)
    result = busy_desk.run("explain", "default/training")
    assert result.exit_code == 1
    assert (
        result.stderr
        == "Error: a step could not observe; the lines below its name show the error\n"
    )
    steps = busy_desk.json("explain", "default/training")["steps"]
    assert (steps[0]["step"], steps[0]["outcome"]) == ("create_resources", "CannotObserve")
    assert steps[0]["note"] == (
        "there are no valid Google credentials: Your default credentials were not found. "
        "(run `gcloud auth application-default login`)"
    )
    assert (steps[3]["step"], steps[3]["outcome"]) == ("tear_down", "NotDeleted")


def test_a_refusal_by_compute_engine_is_reported_in_its_words(busy_desk: Desk) -> None:
    _under_way(busy_desk)
    busy_desk.harness.simulation.gce.faults.fail_next(
        "*", 50, http=403, reason="forbidden", message="Required 'compute.x.get' permission"
    )
    told = busy_desk.json("explain", "default/training")["steps"][0]
    assert (told["outcome"], told["observed"]) == ("CannotObserve", False)
    assert told["note"].endswith(
        "403 forbidden: Required 'compute.x.get' permission. You need the role "
        "roles/compute.viewer in the group's project."
    )


def test_a_group_that_is_not_there_is_named(desk: Desk) -> None:
    result = desk.run("explain", "default/training")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is no TPUNodeGroup default/training" in result.stderr
