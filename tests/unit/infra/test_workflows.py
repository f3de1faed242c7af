"""The workflows of GitHub Actions: their commands, permissions and actions."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.control_plane import binaries
from tests.support.go_tools import ACTIONLINT, run_tool
from tests.support.harness import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*"))
ON = True
"""YAML 1.1 parses the key ``on`` as true."""


def read(path: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(path.read_text())
    return found


def list_steps(workflow: dict[Any, Any]) -> Iterator[dict[str, Any]]:
    for job in workflow["jobs"].values():
        yield from job.get("steps", ())


RELEASE = read(ROOT / ".github" / "workflows" / "release.yaml")
CI = read(ROOT / ".github" / "workflows" / "ci.yaml")
SLOW = read(ROOT / ".github" / "workflows" / "slow.yaml")


@pytest.mark.real
def test_actionlint_reports_no_error() -> None:
    # It has shellcheck, which checks the scripts in the workflows.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = run_tool(ACTIONLINT, *map(str, WORKFLOWS), environment={"PATH": path})
    assert (done.stdout, done.returncode) == ("", 0), done.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_is_pinned_by_commit_and_names_its_version(path: Path) -> None:
    uses = re.findall(r"\buses: (.*)", path.read_text())
    assert uses
    for one in uses:
        if not one.startswith("./"):
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one), one


def test_an_action_has_the_same_commit_in_all_workflows() -> None:
    commits: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        for name, commit in re.findall(r"uses: ([\w/-]+)@(.*)", path.read_text()):
            commits.setdefault(name, set()).add(commit)
    assert {name: found for name, found in commits.items() if len(found) > 1} == {}


@pytest.mark.parametrize("workflow", [CI, RELEASE, SLOW], ids=["ci", "release", "slow"])
def test_a_workflow_that_runs_code_of_a_change_may_only_read(workflow: dict[Any, Any]) -> None:
    assert workflow["permissions"] == {"contents": "read"}
    for step in list_steps(workflow):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
        # The shell would execute the value of an expression: scripts read values from the environment.
        assert "${{" not in step.get("run", "")


def test_only_the_jobs_that_publish_may_write() -> None:
    writing = {
        name: {scope for scope, level in job.get("permissions", {}).items() if level == "write"}
        for name, job in RELEASE["jobs"].items()
    }
    assert {name: scopes for name, scopes in writing.items() if scopes} == {
        "images": {"packages", "id-token", "attestations"},
        "publish": {"contents", "packages", "id-token", "attestations"},
    }


def test_ci_uses_the_go_version_of_the_control_plane() -> None:
    (settings,) = [s["with"] for s in list_steps(CI) if "setup-go@" in s.get("uses", "")]
    path = ROOT / settings["go-version-file"]
    assert path == binaries.HERE / "kubernetes" / "go.mod"
    assert path.exists()


def test_ci_runs_the_same_script_on_every_change() -> None:
    assert set(CI[ON]) == {"push", "pull_request", "workflow_call"}
    assert [step["run"] for step in list_steps(CI) if "run" in step] == [".ci/run"]


def test_every_folder_with_slow_tests_is_run_each_week() -> None:
    marks = ("local/tests/**/*.py", "tests/**/*.py")
    slow = {path for glob in marks for path in ROOT.glob(glob) if "mark.slow" in path.read_text()}
    folders = {"/".join(path.relative_to(ROOT).parts[:2]) for path in slow}
    assert set(SLOW["jobs"]["test"]["strategy"]["matrix"]["tests"]) == folders
    assert set(SLOW[ON]) == {"schedule", "workflow_dispatch"}


@pytest.mark.parametrize(
    "ref, is_released",
    [
        ("v0.2.0", True),
        ("v10.20.30", True),
        ("v0.2.0-rc1", False),
        ("0.2.0", False),
        ("main", False),
    ],
)
def test_only_a_tag_of_a_version_starts_a_release(ref: str, is_released: bool) -> None:
    assert set(RELEASE[ON]) == {"push"}
    assert set(RELEASE[ON]["push"]) == {"tags"}
    (pattern,) = RELEASE[ON]["push"]["tags"]
    assert bool(re.fullmatch(pattern.replace(".", r"\."), ref)) is is_released


def test_nothing_is_published_before_the_tests_have_passed() -> None:
    jobs = RELEASE["jobs"]

    def before(name: str) -> set[str]:
        needs = jobs[name].get("needs", [])
        direct = {needs} if isinstance(needs, str) else set(needs)
        return direct.union(*map(before, direct))

    assert jobs["test"]["uses"] == "./.github/workflows/ci.yaml"
    assert before("images") == {"check", "test", "tool"}
    assert before("publish") == {"check", "test", "images", "tool"}
    (first,) = [step["run"] for step in jobs["check"]["steps"] if "run" in step]
    assert first == 'make release ARGS="--check --tag $GITHUB_REF_NAME"'
