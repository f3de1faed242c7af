"""The tool outside its commands: help, settings, error messages, exit codes."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
from google.auth.exceptions import RefreshError
from typer.testing import CliRunner, Result

from replay import __main__, output
from replay.app import app
from replay.dependencies import Choice, make_environment
from replay.errors import in_plain_words
from replay.explain import STEPS
from replay.output import print_rows
from replay.text import printable, render_age
from shared.ports.errors import About, CallError, OutOfTimeError
from shared.ports.kubernetes.access import AccessError
from shared.triggers.routes import GROUP_STEPS
from version import VERSION

TOOL: Any = typer.main.get_command(app)


def run(*arguments: str, env: Mapping[str, str | None] | None = None, obj: Any = None) -> Result:
    return CliRunner().invoke(app, list(arguments), env=env, obj=obj)


def _list_commands(command: Any, *words: str) -> Iterator[str]:
    for word, below in command.commands.items():
        if hasattr(below, "commands"):
            yield from _list_commands(below, *words, word)
        else:
            yield " ".join((*words, word))


@pytest.mark.parametrize("command", list(_list_commands(TOOL)))
def test_each_command_shows_an_example_of_itself(command: str) -> None:
    text = run(*command.split(), "--help").stdout
    assert f"kubectl tng {command} " in text.partition("Examples:")[2]


def test_the_tool_without_a_command_prints_help() -> None:
    assert "Commands:" in run().output


def test_the_version_is_printed() -> None:
    assert run("--version").stdout == f"kubectl tng {VERSION}\n"


def test_every_step_that_observes_groups_is_explained() -> None:
    assert tuple(step.name for step in STEPS) == GROUP_STEPS


def test_a_missing_setting_is_reported_as_wrong_usage() -> None:
    missing = {"PUBSUB_PROJECT": None, "KUBECONFIG": "/nowhere"}
    result = run("leaks", env=missing)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(
        "Error: PUBSUB_PROJECT is not set, and ConfigMap tpu-functions/kubectl-tng cannot be read: "
        "KUBECONFIG='/nowhere' cannot be used: "
    )


def test_a_missing_kubeconfig_is_reported(tmp_path: Path) -> None:
    missing = str(tmp_path / "config")
    result = run("explain", "a/b", env={"PUBSUB_PROJECT": "p", "KUBECONFIG": missing})
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"Error: KUBECONFIG={missing!r} cannot be used: ")


@pytest.mark.parametrize(
    "environment, expected",
    [
        ({}, "/home/me/.kube/config"),
        ({"KUBECONFIG": ""}, "/home/me/.kube/config"),
        ({"KUBECONFIG": "/a:/b"}, "/a:/b"),
    ],
    ids=["unset", "empty", "set"],
)
def test_the_default_kubeconfig_is_that_of_kubectl(
    environment: dict[str, str], expected: str
) -> None:
    assert make_environment(Choice(), environment, Path("/home/me"))["KUBECONFIG"] == expected


def raising(error: BaseException) -> Any:
    def make(_choice: Choice) -> None:
        raise error

    return make


def test_an_interrupted_command_ends_without_output() -> None:
    result = run("resync", "--all", obj=raising(KeyboardInterrupt()))
    assert (result.exit_code, result.output) == (130, "")


def test_an_interrupted_start_ends_without_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(__main__, "_load", lambda: raising(KeyboardInterrupt())(Choice()))
    with pytest.raises(SystemExit, match="130"):
        __main__._run("tng")
    assert capsys.readouterr() == ("", "")


def test_an_unexpected_error_is_not_hidden() -> None:
    result = run("resync", "--all", obj=raising(ZeroDivisionError()))
    assert isinstance(result.exception, ZeroDivisionError)


LOG_IN = "run `gcloud auth application-default login`"
GROUPS = "GET /apis/tpu.google.com/v1alpha1/tpunodegroups"
ERRORS: dict[str, tuple[Exception, str]] = {
    "unreachable cluster": (
        CallError(GROUPS, 0, "unreachable", "MaxRetryError", About("TPUNodeGroup")),
        f"the call `{GROUPS}` to the cluster failed: unreachable: MaxRetryError. Check that it is "
        "running and is the current context of your kubeconfig, or name another with --context.",
    ),
    "no permission in the cluster": (
        CallError(
            GROUPS,
            403,
            "Forbidden",
            'User "me" cannot list resource "tpunodegroups".',
            About("TPUNodeGroup"),
        ),
        f'the call `{GROUPS}` to the cluster failed: 403 Forbidden: User "me" cannot list resource '
        '"tpunodegroups". docs/reference/replay.md#what-it-needs lists the permissions of each verb.',
    ),
    "no credentials, as without the kubeconfig's plugin": (
        CallError(
            GROUPS, 403, "Forbidden", 'User "system:anonymous" cannot list', About("TPUNodeGroup")
        ),
        f'the call `{GROUPS}` to the cluster failed: 403 Forbidden: User "system:anonymous" cannot '
        "list. Your kubeconfig's credentials are not accepted; `kubectl get tpunodegroups -A` must work "
        "with it.",
    ),
    "not installed": (
        CallError(GROUPS, 404, "NotFound", "not found", About("TPUNodeGroup")),
        f"the call `{GROUPS}` to the cluster failed: 404 NotFound: not found. Check that it is "
        "installed in this cluster: `kubectl get crd tpunodegroups.tpu.google.com`.",
    ),
    "no such topic": (
        CallError("publish to x-sweep", 404, "refused", "Topic not found", About("topics")),
        "the call `publish to x-sweep` to Pub/Sub failed: 404 refused: Topic not found. There is no "
        "such topic or subscription; PUBSUB_PROJECT and TOPIC_PREFIX must be those of the installation.",
    ),
    "no permission on Compute Engine": (
        CallError(
            "instances.list",
            403,
            "forbidden",
            "Required 'compute.instances.list'",
            About("instances"),
        ),
        "the call `instances.list` to Compute Engine failed: 403 forbidden: Required "
        "'compute.instances.list'. You need the role roles/compute.viewer in the group's project.",
    ),
    "no permission on GKE": (
        CallError(
            "nodePools.list",
            403,
            "forbidden",
            "Required container.clusters.get",
            About("nodePools"),
        ),
        "the call `nodePools.list` to GKE failed: 403 forbidden: Required container.clusters.get. "
        "You need the role roles/container.clusterViewer in the cluster's project.",
    ),
    "an invalid request": (
        CallError("instances.list", 400, "invalid", "Unknown zone.", About("instances")),
        "the call `instances.list` to Compute Engine failed: 400 invalid: Unknown zone.",
    ),
    "expired credentials": (
        RefreshError("invalid_grant"),
        f"there are no valid Google credentials: invalid_grant ({LOG_IN})",
    ),
    "no answer in time": (OutOfTimeError("no answer within 30 s"), "no answer within 30 s"),
    "kubeconfig": (AccessError("KUBECONFIG is wrong"), "KUBECONFIG is wrong"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_is_printed_with_its_solution(case: str) -> None:
    error, message = ERRORS[case]
    assert in_plain_words(error) == message


@pytest.mark.parametrize(
    "seconds, text",
    [(-3, "0s"), (0, "0s"), (59, "59s"), (60, "1m"), (3599, "59m"), (7200, "2h"), (200_000, "2d")],
)
def test_an_age_is_in_its_largest_unit(seconds: int, text: str) -> None:
    assert render_age(timedelta(seconds=seconds)) == text


def test_control_characters_are_not_printable() -> None:
    assert printable("a\x1b[31mb\nc\u202ed\x9bé\r") == "a\ufffd[31mb c\ufffdd\ufffdé "


def test_a_character_that_the_locale_lacks_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, "ascii"))
    monkeypatch.setattr("replay.app.app", lambda **_: print("Z\xfcrich"))
    __main__._run("tng")
    assert printed.getvalue() == b"Z?rich\n"


def test_a_name_that_is_wider_than_the_terminal_is_on_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_rows(("ABOUT", "CAUSE"), [(("x" * 41, "Resync"), ())])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["ABOUT", "    CAUSE", "x" * 41, "    Resync"]


def test_a_message_replaces_the_progress_that_a_terminal_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    output.show_progress("2000 log entries")
    output.say("Error: no network")
    assert capsys.readouterr().err == "\r\x1b[K2000 log entries ...\r\r\x1b[K\rError: no network\n"
