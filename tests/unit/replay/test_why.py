# ruff: noqa: E501  (a table reads best with a row on a line)
"""``kubectl tng timeline --why``: the observation, the decision, and the decision of this version."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from functions import label_node
from local.base.http import Response
from replay.decisions import Decided, Decision, decide_again, render, to_document
from replay.observed_text import list_facts
from shared.frame.plan import Emit
from shared.frame.snapshot import FIELD, encode
from tests.stories import helpers
from tests.support.builders import NOW
from tests.support.harness import Harness
from tests.unit.functions.label_node import objects as labels
from tests.unit.replay.decision_lines import changed, line
from tests.unit.replay.tool import Tool, training
from tests.unit.shared.frame.cases import CASES, rules_of

ARGUMENTS = ("timeline", "default/training")
MINUTES = timedelta(minutes=1)
HIDDEN = "0123456789-a-secret-of-the-user"
SECRETS = "/api/v1/namespaces/kube-system/secrets"
STOCKOUT = ("us-central1-c", "tpu7x")


def _record() -> tuple[Tool, set[str]]:
    """Run a lifecycle with a stockout, denied permissions, a loss and a deletion; return its tokens."""
    tool = Tool(Harness())
    harness = tool.harness
    tokens: set[str] = set()

    def note_tokens(step: str, call: str) -> None:
        if step == "inject_token" and call == f"POST {SECRETS}":
            for secret in harness.simulation.admin("GET", SECRETS)["items"]:
                parts = (secret["data"][key] for key in ("token-id", "token-secret"))
                tokens.add(".".join(base64.b64decode(part).decode() for part in parts))

    left = ["PATCH", "PATCH", "GET"]

    def deny(step: str, call: str) -> Response | None:
        if step != "label_node" or not left or not call.startswith(f"{left[0]} /api/v1/nodes"):
            return None
        left.pop(0)
        status = {"kind": "Status", "message": "forbidden", "reason": "Forbidden"}
        return Response.of_json(status, 403)

    harness.hooks.after = note_tokens
    harness.simulation.gce.faults.set_capacity(*STOCKOUT, 0)
    slice_ = training()
    slice_["spec"]["instanceConfig"]["metadata"] = {"user-data": HIDDEN}
    harness.apply(slice_)
    helpers.until_reason(harness, "InsufficientCapacity", "training")
    harness.run_for(4 * MINUTES)
    harness.hooks.instead = deny
    harness.simulation.gce.faults.set_capacity(*STOCKOUT)
    helpers.until_ready(harness, "training")
    harness.simulation.gce.faults.host_error(helpers.vms(harness)[0])
    helpers.until(harness, lambda: not harness.is_ready("training"))
    helpers.until_ready(harness, "training")
    harness.run_for(timedelta(hours=2))
    harness.delete("training")
    helpers.until_gone(harness, "training")
    return tool, tokens


@cache
def _recorded() -> tuple[Tool, set[str]]:
    return _record()


def _invocations() -> Iterator[tuple[str, dict[str, Any]]]:
    for moment in _recorded()[0].json(*ARGUMENTS, "--why")["moments"]:
        if "decision" in moment:
            yield f"{moment['who']} {moment['what']}", moment["decision"]


def _shown(line: Mapping[str, Any]) -> str:
    """Return the text of a log line with its decoded snapshot."""
    data = line.get(FIELD, {}).get("data", "")
    hidden = zlib.decompress(base64.b64decode(data)).decode() if data else ""
    return json.dumps(line, default=str) + hidden


def test_each_decision_of_a_lifecycle_is_reproduced_from_its_log_line() -> None:
    found = list(_invocations())
    undecided = [(what, one["problem"]) for what, one in found if not one["then"]]
    assert undecided == [
        (
            "label_node PermissionDenied",
            "the log line has no snapshot: nothing was decided, or an older version wrote it",
        )
    ]
    different = [(what, one) for what, one in found if one["then"] and not one["isSame"]]
    assert different == []
    steps = {what.partition(" ")[0] for what, one in found if one["then"]}
    assert steps == {"create_resources", "inject_token", "approve_join", "label_node", "tear_down"}
    rejected = [
        one["then"]["outcome"] for what, one in found if what.endswith("Denied") and one["then"]
    ]
    assert rejected == ["Counting", "AllJoined"]
    assert all(decision["observed"] for _, decision in found if decision["then"])


def test_the_observations_have_losses_and_errors() -> None:
    facts = [fact for _, decision in _invocations() for fact in decision["observed"]]
    text = "\n".join(facts)
    assert "ZONE_RESOURCE_POOL_EXHAUSTED" in text
    assert re.search("^Ready was False \\(Preempted\\)$", text, re.MULTILINE)
    assert re.search("^VMs that delay it: tng-training-\\w+-\\w+ Preempted$", text, re.MULTILINE)
    assert "2 Nodes read: 2 wanted, 2 of the group, 2 ready" in facts
    assert "MIG: 2 VMs wanted, topology 2x2x2 ACTIVE" in facts


def test_no_log_line_of_a_lifecycle_has_a_secret() -> None:
    tool, tokens = _recorded()
    assert len(tokens) >= 2
    shown = "\n".join(map(_shown, tool.harness.log.lines))
    assert [token for token in tokens if token in shown] == []
    assert [token for token in tokens if token.partition(".")[2] in shown] == []
    assert HIDDEN not in shown
    assert "sha256:" not in shown
    assert "BEGIN CERTIFICATE" not in shown


def test_each_decision_is_described_below_its_invocation() -> None:
    text = _recorded()[0].run(*ARGUMENTS, "--why").stdout
    assert re.search(
        r"\d  label_node +AllReady  \[.*\]\n"
        r" +observed: 2 Nodes read: 2 wanted, 2 of the group, 2 ready; .*\n"
        r" +decided, as this version does: AllReady \(Ready: Ready\): .*update the status",
        text,
    )
    assert "would decide" not in text


def test_a_timeline_without_why_has_no_decisions() -> None:
    tool, _ = _recorded()
    assert "observed" not in tool.run(*ARGUMENTS).stdout
    assert not [one for one in tool.json(*ARGUMENTS)["moments"] if "decision" in one]


def test_the_page_has_decisions(tmp_path: Path) -> None:
    page = tmp_path / "training.html"
    _recorded()[0].run(*ARGUMENTS, "--why", "--html", str(page))
    assert "<span class=soft>observed: " in page.read_text()


EXISTING = "status: workload policy Ready, instance template Ready, managed instance group Ready"
DELETING = "the group is being deleted since 2026-11-20T09:59:00Z"
REQUEST = "csr-x for tng-my-slice-06caaff9-ab12, made with the token abcdef, 2026-11-20T09:58:01Z"
FACTS: dict[str, list[str]] = {
    "create_resources: no VM could be created": [
        "Compute Engine has the managed instance group: 32 VMs wanted, 32 being created",
        "32 VMs of the MIG listed, errors: ZONE_RESOURCE_POOL_EXHAUSTED",
        EXISTING,
    ],
    "a group that is paused": ["the group is paused", "status: no resources"],
    "a group that is not owned": ["the group lacks this system's finalizer or label", "status: no resources"],
    "a group that cannot be read": ["spec: spec.nodeLocation: is required", "status: no resources"],
    "a VM that was preempted": ["0 Nodes read: 2 wanted, 0 of the group, 0 ready", "1 VM read: 1 gone", "status: managed instance group Ready"],
    "a Node that was ready a moment ago": [
        "1 Node read: 2 wanted, 1 of the group, 1 ready",
        "all VMs listed",
        "status: managed instance group Ready",
        "VMs that delay it: tng-my-slice-06caaff9-aaaa NodeNotReady",
    ],
    "inject_token: no VM has a token": ["32 VMs read: 32 RUNNING", "0 have joined, 0 have the Node of an earlier VM", "0 have a token", "status: no resources"],
    "a VM that could not be read": ["0 VMs read", "no time to read 1 VM", "get: 403 forbidden: no", "status: no resources"],
    "tear_down: the deletion begins": [DELETING, "32 Nodes read, 0 ready, 0 cordoned", EXISTING],
    "tear_down: no Node is labelled": [
        DELETING,
        "Compute Engine has the managed instance group: 2 VMs wanted",
        "32 Nodes read, 0 ready, 0 cordoned",
        "all VMs listed: 32 RUNNING",
        EXISTING,
    ],
    "an unreadable group that is being deleted": [DELETING, "spec: spec.nodeLocation: is required", "status: no resources"],
    "approve_join: the VM holds another token": [
        "1 signing request read",
        f"{REQUEST}: group default/my-slice, and its VM is RUNNING and holds the token newnew",
    ],
    "approve_join: the VM holds no token": ["1 signing request read", f"{REQUEST}: group default/my-slice, and its VM is RUNNING and holds no token"],
    "approve_join: the VM is gone": ["1 signing request read", f"{REQUEST}: group default/my-slice, and no VM was read"],
    "approve_join: Compute Engine is unavailable": ["1 signing request read", f"{REQUEST}: instances.get: 503 backendError: away"],
    "approve_join: an alternative name": ["1 signing request read", f"{REQUEST}: it asks for alternative names"],
    "approve_join: approved by this system": ["1 signing request read", "csr-x: already decided"],
}  # fmt: skip


@pytest.mark.parametrize("case", FACTS)
def test_the_observation_is_described_by_facts(case: str) -> None:
    _, observed = CASES[case]
    assert list(list_facts(observed)) == FACTS[case]


def test_an_event_after_a_status_write_does_not_hide_the_reason_of_ready() -> None:
    given = labels.on_resync(
        labels.node(labels.A, proved=False, provider_id=""), instances={labels.A: labels.vm()}
    )
    plan = label_node.decide.decide(given, NOW)
    assert isinstance(plan.after[-1], Emit)
    found = encode(given, NOW, plan, rules_of(label_node.STEP))
    written = {"reason": "NodeLost"}
    again = decide_again(line(decision=plan.outcome, ready=written) | {FIELD: found})
    assert again.is_same
    assert again.today is not None
    assert again.today.ready == "NodeLost"


WRITE = "update the status if it differs"


def test_an_equal_decision_is_rendered_once() -> None:
    found = decide_again(line())
    assert found.then == found.today == Decided("AllJoined", (WRITE,), "NodeNotReady")
    assert found.is_same
    assert list(render(found)) == [
        "observed: 2 Nodes read: 2 wanted, 2 of the group, 1 ready; "
        "all VMs listed: 2 RUNNING; status: managed instance group Ready",
        f"decided, as this version does: AllJoined (Ready: NodeNotReady): {WRITE}",
    ]


DIFFERENT: dict[str, tuple[dict[str, Any], str]] = {
    "another outcome": ({FIELD: changed(outcome="AllReady")}, f"decided: AllReady: {WRITE}"),
    "another reason of Ready": ({"ready": {"reason": "Preempted"}}, f"decided: AllJoined (Ready: Preempted): {WRITE}"),
    "other actions": ({FIELD: changed(actions=["a", "b", "a", "c", "d", "e", "f"])}, "decided: AllJoined (Ready: NodeNotReady): a; b; c; d and 2 more"),
    "a crash": ({FIELD: changed(outcome=None, actions=[]), "note": "KeyError: 'x'", "decision": "Crashed"}, "decided: Crashed: KeyError: 'x'"),
}  # fmt: skip


@pytest.mark.parametrize("change, then", DIFFERENT.values(), ids=DIFFERENT)
def test_a_different_decision_of_this_version_is_rendered_as_well(
    change: dict[str, Any], then: str
) -> None:
    found = decide_again(line(**change))
    assert not found.is_same
    _, *lines = render(found)
    assert lines[0] == then
    assert lines[1].startswith("this version would decide: AllJoined")


def test_a_plan_that_was_not_completed_has_no_reason_of_ready() -> None:
    found = decide_again(line(decision="Partly", ready={"reason": "Preempted"}))
    assert found.then == found.today == Decided("AllJoined", (WRITE,))


def test_a_crash_of_this_version_is_rendered() -> None:
    document = json.loads(zlib.decompress(base64.b64decode(line()[FIELD]["data"])))
    number = [name for name, _ in document["classes"]].index("ObservedNodes")
    assert document["observed"][0] == number
    document["observed"][3] = "no trigger"
    found = decide_again(line(**{FIELD: changed(observed=document["observed"])}))
    assert found.today is not None
    assert found.today.outcome == "Crashed"
    assert found.today.actions[0].startswith("AttributeError: ")


UNKNOWN: dict[str, tuple[dict[str, Any], str]] = {
    "a step that writes none": (
        {"step": "provision_slice"},
        "provision_slice writes no snapshot of what it observes",
    ),
    "an older version": (
        {"step": "label_node"},
        "the log line has no snapshot: nothing was decided, or an older version wrote it",
    ),
    "a later version": (
        {"step": "label_node", FIELD: {"version": 2}},
        "the snapshot cannot be read: version 2 is not known; this tool reads 1",
    ),
    "too large": (
        {"step": "label_node", FIELD: {"version": 1, "bytes": 335248}},
        "the snapshot cannot be read: the function left it out: it had 335248 bytes, and the log "
        "takes 98304",
    ),
    "values of another kind": (
        line(**{FIELD: changed(observed=[*range(11)])}),
        "the snapshot cannot be read: AttributeError: 'int' object has no attribute 'deleting'",
    ),
}


@pytest.mark.parametrize("given, problem", UNKNOWN.values(), ids=UNKNOWN)
def test_a_decision_that_cannot_be_reproduced_has_a_reason(
    given: dict[str, Any], problem: str
) -> None:
    found = decide_again(given)
    assert found == Decision(problem=problem)
    assert list(render(found)) == [f"observed: unknown; {problem}"]
    assert to_document(found) == {
        "observed": [],
        "then": None,
        "today": None,
        "isSame": False,
        "problem": problem,
    }
