"""``kubectl-tng``: the tool as one file, and the completions for a shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from replay import completion, dependencies
from replay.app import app
from tests.unit.replay.tool import Tool, training
from tools.bundle import REQUIREMENTS, ROOT, WrongVersionError, build
from version import VERSION


@pytest.fixture(name="offered")
def _offered(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        tool.harness.apply(training(name))
    monkeypatch.setattr(
        dependencies,
        "open_cluster_only",
        lambda choice: (tool.dependencies().open_cluster(), choice.namespace or "default"),
    )


def complete(capfd: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """Return the completions of the last word and the directive about file names."""
    with pytest.raises(SystemExit):
        completion.answer_kubectl(app, words)
    return [line.partition("\t")[0] for line in capfd.readouterr().out.splitlines()]


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize(
    "words, expected",
    [
        (["re"], ["resync", "record"]),
        (["dead-letters", "l"], ["list"]),
        (["explain", ""], ["one", "two"]),
        (["explain", "tng/o"], ["tng/one"]),
        (["explain", "jobset/"], []),
        (["explain", "-n", "other", ""], []),
        (["explain", "default/t"], ["default/two"]),
        (["timeline", "default/o"], ["default/one"]),
        (["resync", "other/"], []),
    ],
)
def test_commands_and_groups_are_completed_but_not_files(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    expected: list[str],
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    assert complete(capfd, *words) == [*expected, ":4"]


def test_there_are_no_completions_if_the_cluster_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    assert completion.complete_groups(SimpleNamespace(meta={}), "") == []


def test_a_package_of_another_version_than_the_pinned_one_is_not_bundled(tmp_path: Path) -> None:
    with pytest.raises(WrongVersionError, match=r"pins typer 0\.0\.1, and .* is installed"):
        build(tmp_path / "kubectl-tng", "typer==0.0.1\n")
    assert not (tmp_path / "kubectl-tng").exists()


def test_the_bundled_packages_have_the_pins_of_a_checkout() -> None:
    pins = set(filter(lambda line: "==" in line, REQUIREMENTS.read_text().splitlines()))
    checkout = (ROOT / "local/requirements.txt").read_text().splitlines()
    assert pins
    assert pins <= set(checkout)


@pytest.mark.slow
@pytest.mark.processes
def test_the_file_runs_as_kubectls_plugin_without_other_files(tmp_path: Path) -> None:
    program = tmp_path / "kubectl-tng"
    build(program, REQUIREMENTS.read_text())
    (tmp_path / "kubectl_complete-tng").symlink_to(program)
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    with program.open("rb") as file:
        assert file.readline() == f"#!/usr/bin/env {python}\n".encode()

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {"SHIV_ROOT": str(tmp_path / "root"), "HOME": str(tmp_path), "COLUMNS": "100"}
        return subprocess.run(
            [sys.executable, "-I", *words],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
        )

    assert run(str(program), "--version").stdout == f"kubectl tng {VERSION}\n"
    shown = run(str(program), "explain", "--help")
    assert shown.stdout.startswith("Usage: kubectl tng explain [OPTIONS] {NAME}"), shown
    assert run(str(tmp_path / "kubectl_complete-tng"), "rec").stdout.splitlines() == [
        "record\tRecord the messages of a step's topic in a file.",
        ":4",
    ]
    missing = run(str(program), "audit-log", "--since", "1h")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr.startswith("Error: PUBSUB_PROJECT is not set")
