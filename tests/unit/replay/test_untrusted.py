"""What others write (log entries, messages, objects): what the tool believes, prints and stores."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from local.cloud.simulation import PROJECT
from replay.app import app
from shared.base.timestamps import render_time
from shared.ports.errors import About, CallError
from tests.support.harness import Harness
from tests.unit.replay.tool import Tool, make_dead_letter, training

_A_MINUTE = timedelta(minutes=1)
HOSTILE = "\x1b[2J\x9b31m\u202eevil\u2066\nDropped 1 dead letter.\r\x7f"
"""Clears the screen, colours and reverses text, and begins a line of its own."""
TIMELINE = ("timeline", "default/training", "--since", "1h")
GROUP = "/apis/tpu.google.com/v1alpha1/namespaces/default/tpunodegroups/training"


def entry(tool: Tool, **fields: Any) -> dict[str, Any]:
    """A function's line about the group."""
    now = render_time(tool.harness.clock.now())
    labels = {"project_id": PROJECT, "service_name": "tpu-functions-label-node"}
    return {
        "insertId": "forged",
        "logName": f"projects/{PROJECT}/logs/run.googleapis.com%2Fstdout",
        "timestamp": now,
        "receiveTimestamp": now,
        "resource": {"type": "cloud_run_revision", "labels": labels},
        "jsonPayload": {"group": "default/training", "step": "label_node", "decision": "Forged"},
        **fields,
    }


def audit(tool: Tool, **fields: Any) -> dict[str, Any]:
    """An entry of the audit log about the group's managed instance group."""
    group = tool.harness.group("training")
    assert group is not None
    name = group["metadata"]["labels"]["tpu-functions.dev/resource-name"]
    payload = {
        "serviceName": "compute.googleapis.com",
        "methodName": "v1.compute.instanceGroupManagers.Forged",
        "resourceName": f"projects/{PROJECT}/zones/z/instanceGroupManagers/{name}",
    }
    log = f"projects/{PROJECT}/logs/cloudaudit.googleapis.com%2Factivity"
    operation = {"id": "o", "first": True, "last": True}
    resource = {"type": "gce_instance"}
    made = entry(tool, logName=log, protoPayload=payload, resource=resource, operation=operation)
    del made["jsonPayload"]
    return {**made, **fields}


FORGERIES: dict[str, tuple[Callable[[Tool], dict[str, Any]], bool]] = {
    "a line of a function": (entry, True),
    "an entry of the audit log": (audit, True),
    "another log": (lambda tool: entry(tool, logName=f"projects/{PROJECT}/logs/mine"), False),
    "a log of the same name in another project": (
        lambda tool: entry(tool, logName="projects/tpus/logs/run.googleapis.com%2Fstdout"),
        False,
    ),
    "another service": (
        lambda tool: entry(
            tool,
            resource={
                "type": "cloud_run_revision",
                "labels": {"service_name": "tpu-functions-label-node-2"},
            },
        ),
        False,
    ),
    "a VM": (
        lambda tool: entry(tool, resource={**entry(tool)["resource"], "type": "gce_instance"}),
        False,
    ),
    "an audit entry in another log": (
        lambda tool: audit(tool, logName=f"projects/{PROJECT}/logs/mine"),
        False,
    ),
    "an audit entry of another service": (
        lambda tool: audit(
            tool,
            protoPayload={**audit(tool)["protoPayload"], "serviceName": "storage.googleapis.com"},
        ),
        False,
    ),
}


@pytest.mark.parametrize("case", FORGERIES)
def test_a_timeline_has_only_lines_of_the_functions_and_the_clouds_audit_log(case: str) -> None:
    make, is_shown = FORGERIES[case]
    tool = Tool(Harness())
    settings = tool.harness.settings["admin"]
    tool.harness.settings["admin"] = replace(settings, projects=settings.projects | {"tpus"})
    tool.harness.apply(training())
    tool.harness.run_for(_A_MINUTE)
    tool.logs.stand_in.write(make(tool))
    document = tool.json(*TIMELINE)
    assert [one["what"] for one in document["moments"]].count("Forged") == is_shown


def _log(tool: Tool) -> None:
    payload = {
        **dict.fromkeys(("step", "decision", "trigger", "note", "snapshot"), HOSTILE),
        "group": "default/training",
        "calls": {HOSTILE: 1},
        "ready": {"reason": HOSTILE, "message": HOSTILE},
    }
    tool.logs.stand_in.write(entry(tool, jsonPayload=payload))
    entries = audit(tool)
    entries["protoPayload"]["status"] = {"code": 5, "message": HOSTILE}
    tool.logs.stand_in.write(entries)


def _status(tool: Tool) -> None:
    group = tool.harness.group("training")
    assert group is not None
    for one in group["status"]["conditions"]:
        one["message"] = HOSTILE
    tool.harness.simulation.admin("PUT", f"{GROUP}/status", group)


def _letter(tool: Tool) -> None:
    make_dead_letter(tool, "label_node", b"poison", CloudPubSubDeadLetterSourceDeliveryCount="\xb2")
    source = {"CloudPubSubDeadLetterSourceSubscription": HOSTILE}
    make_dead_letter(tool, "label_node", json.dumps({"version": HOSTILE}).encode(), **source)


PRINTED: dict[str, tuple[Callable[[Tool], None], tuple[str, ...]]] = {
    "timeline": (_log, TIMELINE),
    "timeline as JSON": (_log, (*TIMELINE, "--output", "json")),
    "timeline with reasons": (_log, (*TIMELINE, "--why")),
    "timeline as a page": (_log, (*TIMELINE, "--html", "-")),
    "explain": (_status, ("explain", "default/training")),
    "explain as JSON": (_status, ("explain", "default/training", "--output", "json")),
    "dead letters": (_letter, ("dead-letters", "list")),
    "dead letters as JSON": (_letter, ("dead-letters", "list", "--output", "json")),
    "dead letters that are kept": (_letter, ("dead-letters", "replay", "--all", "--yes")),
}


@pytest.mark.parametrize("case", PRINTED)
def test_text_from_outside_cannot_control_the_terminal_or_pass_for_the_tools_own(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    write, command = PRINTED[case]
    tool = Tool(Harness())
    tool.harness.apply(training())
    tool.harness.run_for(_A_MINUTE)
    write(tool)
    printed = tool.run(*command)
    assert "evil" in printed.output
    lines = [*printed.stdout.splitlines(), *printed.stderr.splitlines()]
    assert [line for line in lines if not line.isprintable()] == []
    assert "Dropped 1 dead letter." not in [line.strip() for line in lines]


@pytest.mark.parametrize("name", ['default/x"', "default/A", "a_b/x", "default/", "a/b/c", 'x"/y'])
def test_a_name_that_no_object_can_have_is_wrong_usage(tool: Tool, name: str) -> None:
    result = tool.run("timeline", name)
    assert result.exit_code == 2
    assert "must be NAME, KIND/NAME or NAMESPACE/NAME" in " ".join(result.stderr.split())
    assert tool.logs.queries == []


def test_the_text_of_an_error_is_one_line() -> None:
    def fail(_choice: object) -> None:
        raise CallError("GET /x", 500, "odd", HOSTILE, About("entries"))

    result = CliRunner().invoke(app, ["resync", "--all"], obj=fail)
    [line] = result.stderr.splitlines()
    assert (result.stdout, line.isprintable()) == ("", True)


FILES = {
    "a recording": ("record", "label_node", "FILE", "--for", "1s"),
    "a page": ("timeline", "default/training", "--html", "FILE"),
}


@pytest.mark.parametrize("case", FILES)
def test_only_its_owner_can_read_a_new_file(
    tool: Tool, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chmod(*_: object) -> None:
        raise AssertionError("a file must be private from the beginning")

    monkeypatch.setattr("os.chmod", chmod)
    tool.harness.apply(training())
    file = tmp_path / "file"
    result = tool.run(*(str(file) if word == "FILE" else word for word in FILES[case]))
    assert result.exit_code == 0, result.output
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
