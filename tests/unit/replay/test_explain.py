"""``replay explain``: prints what each step would do, and changes nothing."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import Any

import pytest

from local.base.http import Response
from local.cloud.simulation import Options
from local.vm import agents
from replay.cloud_logging import Page
from replay.output import print_paragraph
from shared.base.timestamps import render_time
from tests.stories.helpers import STEPS_EMAIL
from tests.support.harness import Harness, ProcessKilled
from tests.unit.replay.tool import ALONE, Tool, example, training


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
NOTHING = "\n\nThe steps would change nothing now.\n"
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


def test_a_slice_is_explained_at_each_moment_of_its_deletion() -> None:
    tool = Tool(Harness())
    _deleting(tool)
    outcomes = set()
    while tool.harness.group("training") is not None:
        result = tool.run("explain", "default/training", "--output", "json")
        assert result.exit_code == 0, result.output
        outcomes |= {step["outcome"] for step in json.loads(result.stdout)["steps"]}
        tool.harness.run_for(timedelta(seconds=3))
    assert outcomes >= {"Cordoning", "AwaitingDelete", "DeletingRest"}


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
    first, *rest = document["steps"][0]["actions"]
    assert first.startswith(
        "update the status: Accepted True (Accepted), InstanceTemplateReady False "
    )
    assert rest == [
        "take ownership: finalizer and label",
        f"insert the workload policy {name} and the instance template {name}, and write the results",
    ]


@pytest.mark.parametrize(
    "situation, lines",
    [
        (
            "new",
            [
                "default/training is not Ready: create_resources has work and was not triggered.",
                "create_resources would take ownership: finalizer and label; insert the workload policy "
                "NAME and the instance template NAME, and write the results.",
                "A message is lost, is on its way, or is being handled.",
                "The sweep triggers create_resources at 00:01 UTC (in 1m).",
                "To do it now: kubectl tng resync default/training",
            ],
        ),
        (
            "in progress",
            [
                "default/training has not been Ready for 2s (Provisioning): Compute Engine is creating "
                "the workload policy NAME.",
                "Nothing to do.",
                "The sweep triggers create_resources at 00:01 UTC (in 58s).",
                "More: docs/troubleshooting.md#provisioning",
            ],
        ),
        (
            "invalid spec",
            [
                "default/training has not been Ready for 5s (InvalidSpec): spec.project: "
                "another-project is not served by this installation; it serves my-gcp-project",
                "The sweep triggers create_resources at 00:",
                "More: docs/troubleshooting.md#invalidspec",
            ],
        ),
        (
            "being deleted",
            [
                "default/training is being deleted, for 0s, but its status is out of date: tear_down "
                "observes DeletingMIG now: Waiting for ManagedInstanceGroup to be deleted.",
            ],
        ),
        (
            "of another installation",
            [
                "default/training has been Ready for 0s, but its status is out of date: "
                "create_resources observes OtherInstallation now: ",
            ],
        ),
    ],
)
def test_the_first_lines_name_the_cause_and_what_happens_next(
    situation: str, lines: list[str]
) -> None:
    found = _first_lines(_tool_at(situation))[1]
    assert [line[: len(start)] for line, start in zip(found, lines, strict=False)] == lines


def _first_lines(tool: Tool, name: str = "training") -> tuple[int, list[str]]:
    """The exit code of explain, and its lines before the tables, without the part of names that is
    random."""
    result = tool.run("explain", f"default/{name}")
    text = re.sub(rf"tng-{name}-[0-9a-f]{{8}}", "NAME", result.stdout)
    summary = tool.json("explain", f"default/{name}")["summary"]
    lines = text.partition("\n\n")[0].splitlines()
    assert lines == [re.sub(rf"tng-{name}-[0-9a-f]{{8}}", "NAME", text) for text in summary]
    return result.exit_code, lines


CAPACITY = (
    "{} (InsufficientCapacity): The zone has no free TPU VMs of this kind.",
    "The group keeps waiting and continues when capacity is available. To use another zone, "
    "provisioning model or reservation, create a new TPUNodeGroup.",
)
NOT_DELIVERED = (
    "The sweep does not run either: messages do not reach the functions. "
    "./deploy.sh --dir DIR CLUSTER"
)
TRIGGERED = "default/training has not been Ready for {} ({}): {} has work and was not triggered."
RESYNC = "To do it now: kubectl tng resync default/training"


def _hour() -> Tool:
    return Tool(Harness(Options(agents=agents.Timings())))


def _after(tool: Tool, seconds: int, exit_code: int, *lines: str, name: str = "training") -> None:
    """Let time pass; then explain begins with these lines."""
    tool.harness.run_for(timedelta(seconds=seconds))
    code, found = _first_lines(tool, name)
    starts = [line.format(f"default/{name} has not been Ready for") for line in lines]
    assert [line[: len(start)] for line, start in zip(found, starts, strict=False)] == starts
    assert code == exit_code
    text = tool.run("explain", f"default/{name}").stdout
    assert "update the status if it differs" not in text
    assert not re.search("NotDeleted|AllHaveTokens|ResourcesReady", text)


def test_a_stockout_is_explained_also_while_no_message_arrives() -> None:
    tool = _hour()
    tool.harness.simulation.gce.faults.set_capacity("us-central1-c", "tpu7x", 0)
    tool.harness.apply(training())
    cause, advice = CAPACITY
    sweep = "The sweep triggers create_resources at "
    _after(tool, 10, 0, cause.format("{} 10s"), advice, f"{sweep}00:0")
    _after(tool, 3000, 0, cause.format("{} 50m"), advice, sweep)
    assert "The steps would change nothing now." in tool.run("explain", "default/training").stdout
    tool.harness.simulation.pubsub.has_outage = True
    stale = "{} 1h by its status, which create_resources has not refreshed since 00:"
    same = (
        "The status is of an earlier time. Its reason, InsufficientCapacity, would be the same now."
    )
    _after(tool, 60, 0, cause.format("{} 51m"))
    _after(tool, 40 * 60, 1, stale, NOT_DELIVERED, same)
    assert (
        "or does not run; the lines above say why" in tool.run("explain", "default/training").stderr
    )
    tool.harness.simulation.gce.faults.set_capacity("us-central1-c", "tpu7x")
    came = "The status is of an earlier time. create_resources observes AwaitingNodeJoin now: "
    _after(tool, 60, 1, stale, NOT_DELIVERED, came)
    tool.harness.simulation.pubsub.has_outage = False
    _after(tool, 180, 0, "default/training has been Ready for ")


def test_a_used_up_quota_is_explained_and_its_end_is_no_error() -> None:
    tool = _hour()
    tool.harness.simulation.gce.faults.set_chip_quota("us-central1", "tpu7x", 0)
    tool.harness.apply(training())
    advice = "Raise it or free some of it. The group continues by itself."
    sweep = "The sweep triggers create_resources at 00:"
    for seconds, age in ((10, "10s"), (720, "12m")):
        cause = f"{{}} {age} (QuotaExceeded): A quota is used up."
        _after(tool, seconds, 0, cause, advice, sweep)
        text = tool.run("explain", "default/training").stdout
        assert "Quota 'TPUS_PER_TPU_FAMILY' exceeded." in text
    tool.harness.simulation.gce.faults.set_chip_quota("us-central1", "tpu7x")
    now = "create_resources observes Provisioning now: Waiting for Compute Engine to create 2 VMs."
    text = f"{{}} 12m (QuotaExceeded), but its status is out of date: {now}"
    _after(tool, 5, 0, text, sweep, RESYNC)
    _after(tool, 300, 0, "default/training has been Ready for ")


def test_a_lost_vm_is_named_as_soon_as_it_is_lost() -> None:
    tool = _hour()
    tool.harness.apply(example("v6e-4x4-spot.yaml", name="spot"))
    assert tool.harness.run_until(lambda: tool.harness.is_ready("spot"), timedelta(hours=1))
    _after(tool, 60, 0, "default/spot has been Ready for 1m: All nodes are ready.", name="spot")
    resources = tool.harness.simulation.gce.leftovers()
    lost = next(path for path in resources if "/instances/" in path)
    tool.harness.simulation.gce.faults.preempt(lost)
    vm = f"NAME-{lost[-4:]}"
    text = "default/spot has been Ready for 1m, but its status is out of date: label_node observes"
    _after(tool, 1, 0, f"{text} NodeLost now: 1 of 4 nodes is not ready: {vm}.", name="spot")
    cause = f"(Preempted): 1 of 4 nodes is not ready: {vm}. Lost at 2026-01-01T00:03:01Z. "
    advice = (
        "Compute Engine does not restart Spot VMs of a slice. Delete the group and apply it again."
    )
    for seconds, age in ((60, "59s"), (7200, "2h")):
        _after(tool, seconds, 0, f"{{}} {age} {cause}{advice}", "The sweep triggers ", name="spot")


def test_work_without_a_message_is_reported_before_the_reason_of_the_status() -> None:
    tool = _hour()
    tool.harness.simulation.gce.faults.break_sinks(True)
    tool.harness.apply(training())
    text = TRIGGERED.format("20s", "Provisioning", "create_resources")
    work = "create_resources would insert the managed instance group NAME, and write the results."
    sweep = "A message is lost, is on its way, or is being handled.", "The sweep triggers "
    _after(tool, 20, 0, text, work, *sweep, RESYNC)
    text = "{} 1m (Provisioning): Compute Engine is creating the managed instance group NAME."
    _after(tool, 50, 0, text)
    text = TRIGGERED.format("1m", "Provisioning", "inject_token")
    work = "inject_token would inject tokens into NAME-"
    _after(tool, 30, 0, text, work, *sweep, f"{RESYNC} --step inject_token")
    text = TRIGGERED.format("2m", "AwaitingNodeJoin", "inject_token")
    _after(tool, 40, 0, text, work, *sweep, RESYNC)
    _after(tool, 70, 0, "{} 3m (AwaitingNodeJoin): Waiting for 2 of 2 nodes to ")
    _after(tool, 60, 0, "default/training has been Ready for ")


def test_a_step_that_an_api_refuses_is_not_called_a_lost_message() -> None:
    """An event about one VM writes no condition, so that until the next resync only the log has it."""
    tool = _hour()
    tool.harness.simulation.gce.faults.remove_permission(
        STEPS_EMAIL, "compute.instances.setMetadata"
    )
    tool.harness.apply(training())
    cause = "{} 1m (Provisioning): a step fails: inject_token at 00:00 UTC PermissionDenied: "
    call = "instances.set_metadata of NAME-"
    _after(tool, 65, 0, f"{cause}{call}", "The sweep triggers create_resources")
    assert "lost" not in tool.run("explain", "default/training").stdout


FORBIDDEN = Response.of_json({"kind": "Status", "code": 403, "reason": "Forbidden"}, 403)
UNAVAILABLE = Response.of_json({"error": {"code": 503, "message": "try later"}}, 503)
FAILS = "It runs and fails: create_resources at 00:1"


def test_a_failing_approval_is_named_while_vms_join() -> None:
    """Its log lines name no group if it cannot read the request."""
    tool = _hour()
    tool.harness.hooks.instead = lambda step, call: (
        FORBIDDEN if step == "approve_join" and "certificatesigningrequests" in call else None
    )
    tool.harness.apply(training())
    cause = "{} 2m (AwaitingNodeJoin): a step fails: approve_join at 00:0"
    _after(tool, 150, 0, cause)
    tool.harness.hooks.instead = lambda _step, _call: None
    _after(tool, 300, 0, "default/training has been Ready for ")


@pytest.mark.parametrize(
    "call, answer, line",
    [
        ("", None, "The sweep runs, but its messages do not reach create_resources. ./deploy"),
        ("GET /apis/tpu.google", FORBIDDEN, FAILS),
        ("GET /compute/", UNAVAILABLE, FAILS),
    ],
)
def test_a_step_that_does_not_run_or_fails_is_named_beside_the_stockout(
    call: str, answer: Response | None, line: str
) -> None:
    tool = _hour()
    tool.harness.simulation.gce.faults.set_capacity("us-central1-c", "tpu7x", 0)
    tool.harness.apply(training())
    _after(tool, 240, 0, CAPACITY[0].format("{} 4m"), CAPACITY[1])
    before = tool.harness.hooks.before

    def kill(step: str, made: str) -> None:
        before(step, made)
        if step == "create_resources" and answer is None:
            raise ProcessKilled

    def instead(step: str, made: str) -> Response | None:
        return answer if step == "create_resources" and made.startswith(call) else None

    tool.harness.hooks.before, tool.harness.hooks.instead = kill, instead
    tool.harness.run_for(timedelta(minutes=7))
    code, lines = _first_lines(tool)
    assert (code, lines[1][: len(line)]) == (1, line)
    assert lines[0].startswith("default/training has not been Ready for 11m by its status, which ")


def test_a_sweep_that_fails_is_named_where_steps_are_not_triggered() -> None:
    tool = _hour()
    tool.harness.simulation.gce.faults.set_capacity("us-central1-c", "tpu7x", 0)
    tool.harness.apply(training())
    _after(tool, 240, 0, CAPACITY[0].format("{} 4m"), CAPACITY[1])
    tool.harness.hooks.instead = lambda step, call: (
        FORBIDDEN if step == "sweep" and call.startswith("GET /apis/tpu.google") else None
    )
    tool.harness.run_for(timedelta(minutes=15))
    code, lines = _first_lines(tool)
    assert (code, lines[1][:41]) == (1, "The sweep runs and fails: sweep at 00:18 ")


def test_another_installation_is_not_called_out_of_date_by_a_tool_that_does_not_know_its_own() -> (
    None
):
    tool = _hour()
    _foreign(tool)
    tool.harness.run_for(timedelta(minutes=70))
    mine = tool.harness.settings["admin"]
    tool.harness.settings["admin"] = replace(mine, installation_id="")
    _after(
        tool, 1, 0, "{} 42m (OtherInstallation): The cluster is not the one of this installation"
    )


def _hide_first_page(tool: Tool) -> None:
    """Cloud Logging may end a page before it has found a line."""
    read = tool.logs.list_page

    def list_page(projects: Sequence[str], query: str, token: str, newest: int = 0) -> Page:
        if not token:
            return Page((), "next")
        return read(projects, query, token.removeprefix("next"), newest)

    tool.logs.list_page = list_page  # type: ignore[method-assign]


def _hide_all_pages(tool: Tool) -> None:
    tool.logs.list_page = lambda *_, **__: Page((), "next")  # type: ignore[method-assign]


def _write_lines(tool: Tool, number: int) -> None:
    line = {"severity": "INFO", "step": "inject_token", "group": "default/training"}
    for _ in range(number):
        tool.logs.stand_in.write_line("tpu-functions-inject-token", line)


@pytest.mark.parametrize(
    "change, last",
    [
        (_hide_first_page, "The sweep triggers label_node at "),
        (lambda tool: _write_lines(tool, 200), "The sweep triggers label_node at "),
        (lambda tool: _write_lines(tool, 1000), "The sweep triggers label_node at "),
        (_hide_all_pages, "Whether the steps still run is not known: Cloud Logging has found no "),
    ],
)
def test_a_run_that_was_not_read_is_not_called_missing(
    change: Callable[[Tool], None], last: str
) -> None:
    tool = _hour()
    _ready(tool)
    tool.harness.run_for(timedelta(minutes=70))
    change(tool)
    code, lines = _first_lines(tool)
    assert (code, lines[0][:34], lines[-1][: len(last)]) == (
        0,
        "default/training has been Ready fo",
        last,
    )


def test_a_rejected_call_that_is_retried_is_the_cause_and_no_lost_message() -> None:
    tool = _hour()
    tool.harness.hooks.instead = lambda step, call: (
        UNAVAILABLE if step == "create_resources" and call.startswith("POST /compute/") else None
    )
    tool.harness.apply(training())
    cause = "{} %s (Provisioning): create_resources has failed since 00:00 UTC and is retried: "
    text = "resource_policies.insert: 503 "
    for seconds, age in ((30, "30s"), (120, "2m")):
        _after(tool, seconds, 0, f"{cause % age}{text}", "The sweep triggers create_resources")
    tool.harness.hooks.instead = lambda _step, _call: None
    _after(tool, 300, 0, "default/training has been Ready for ")


def test_a_call_that_has_been_retried_since_yesterday_has_the_date() -> None:
    tool = _hour()
    tool.harness.run_for(timedelta(hours=23, minutes=58))
    tool.harness.hooks.instead = lambda step, call: (
        UNAVAILABLE if step == "create_resources" and call.startswith("POST /compute/") else None
    )
    tool.harness.apply(training())
    cause = (
        "{} 2m (Provisioning): create_resources has failed since 01-01 23:58 UTC and is retried: "
    )
    _after(tool, 150, 0, cause)


def test_what_each_resync_repeats_is_not_called_a_lost_message() -> None:
    tool = _hour()
    tool.harness.simulation.gce.faults.set_count_quota("instanceTemplates", 0)
    tool.harness.apply(training())
    _after(tool, 300, 0, "{} 5m (QuotaExceeded): A quota is used up.")
    assert "insert the instance template" in tool.run("explain", "default/training").stdout
    slow = Tool(Harness(Options(agents=agents.Timings(boot_s=(3600.0, 3600.0)))))
    slow.harness.apply(training())
    _after(slow, 600, 0, "{} 10m (AwaitingNodeJoin): Waiting for 2 of 2 nodes to join the cluster.")
    assert slow.run("explain", "default/training").stdout.endswith(NOTHING)
    served = [one for one in slow.json("explain", "default/training")["steps"] if one["actions"]]
    assert [one["step"] for one in served] == []


def test_the_revocation_that_each_resync_of_a_ready_slice_repeats_is_not_shown() -> None:
    tool = _hour()
    tool.harness.apply(training())
    tool.harness.run_for(timedelta(minutes=15))
    assert tool.run("explain", "default/training").stdout.endswith(NOTHING)
    [label_node] = [
        one for one in tool.json("explain", "default/training")["steps"] if one["triggeredBySweep"]
    ]
    assert (label_node["step"], label_node["actions"]) == ("label_node", [])


def test_without_the_log_it_says_that_it_does_not_know_whether_steps_run(busy_tool: Tool) -> None:
    _waiting_for_capacity(busy_tool)
    for _ in range(60):
        busy_tool.run("explain", "default/training")
    code, lines = _first_lines(busy_tool)
    assert (code, lines[0]) == (0, CAPACITY[0].format("default/training has not been Ready for 3m"))
    assert lines[-1].startswith(
        "Whether the steps still run is not known: the call `entries.list` "
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


def _starting(tool: Tool, seconds: int) -> str:
    """The first lines of explain, after the VMs have been created and this time has passed."""
    tool.harness.run_for(timedelta(seconds=seconds))
    stdout = tool.run("explain", "default/training").stdout
    return stdout.partition("\nThe sweep")[0]


def test_a_vm_that_does_not_join_is_quoted_from_its_serial_port() -> None:
    refused = agents.Timings(join_fault_chance=1.0)
    tool = Tool(Harness(Options(agents=refused)))
    tool.harness.apply(training())
    assert "serial port" not in _starting(tool, 120)
    text = _starting(tool, 300)
    assert re.search(
        r"\(AwaitingNodeJoin\): Waiting for 2 of 2 nodes to join the cluster\.\n"
        r"tng-training-\w+-\w+, which was started [56]m ago, reports on its serial port: failed: "
        r"kubeadm join: .+\. Its meaning: docs/reference/startup-script\.md$",
        text,
    ), text
    assert "Nothing to do" not in text
    late = _starting(tool, 900)
    assert "(NodeJoinTimeout): A VM has not joined in time." in late
    assert "reports on its serial port: " in late


def test_a_vm_without_the_startup_script_is_named() -> None:
    slow = Tool(Harness(Options(agents=agents.Timings(boot_s=(3600.0, 3600.0)))))
    slow.harness.apply(training())
    words = (
        "has no line of the startup script on its serial port: it boots, or its image runs none."
    )
    assert words in _starting(slow, 300)
    own = training()
    del own["spec"]["bootstrapKubernetes"]
    never = Tool(Harness(Options(agents=agents.Timings(joins=False))))
    never.harness.apply(own)
    words = (
        "gets no startup script from tpu-functions: its image must join the cluster. See docs/own-"
    )
    assert words in _starting(never, 300)


def test_a_serial_port_that_may_not_be_read_is_named() -> None:
    tool = Tool(Harness(Options(agents=agents.Timings(join_fault_chance=1.0))))
    tool.harness.apply(training())
    denied = Response.of_json({"error": {"code": 403, "message": "Required permission"}}, 403)
    tool.harness.run_for(timedelta(minutes=6))
    tool.harness.hooks.instead = lambda _step, call: denied if "/serialPort" in call else None
    assert re.search(r"The serial port of tng-training-\S+ cannot be read: ", _starting(tool, 1))


def test_an_address_is_not_broken(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    address = "https://example.com/blob/v1/docs/troubleshooting.md#awaitingnodejoin"
    print_paragraph(f"More: {address}")
    assert address in capsys.readouterr().out.splitlines()
