"""Commands in the documentation run as printed if they need no cloud and no cluster.

Other tests run `docs/first-slice.md`, `docs/on-call.md`, and parts of `docs/install.md` and
`docs/injection.md`; they parse the commands of `kubectl tng` and gcloud. `NOT_RUN` has all others.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from local.gce.inventory import read_inventory
from local.gce.simulator import FAULTS
from tests.unit.docs.pages import PAGES, ROOT

NOT_RUN = {
    ".ci/run": "runs all tests",
    ".venv/bin/functions-framework": "needs a cluster and Google Cloud",
    ".venv/bin/python": "needs a cluster; test_docs.py parses the operator's tool",
    "./deploy.sh": "needs Google Cloud; a test below checks its options",
    "apt-get": "changes the machine",
    "cat": "creates the values in injection.md; tests/real run it",
    "cd": "needs the archive of a release",
    "curl": "needs a release or `make local`; a test below checks the faults of `make local`",
    "docker": "needs the image of a function",
    "gcloud": "needs Google Cloud",
    "gh": "needs a release",
    "git": "publishes a release, or makes a repository of local/",
    "helm": "needs a cluster; tests/real/test_helm.py installs the chart",
    "install": "needs a release",
    "sudo": "needs a VM; test_check_image.py runs the script",
    "kubectl": "needs a cluster; a test below checks that the files exist",
    "lint-imports": "`make check` runs it",
    "make": "takes minutes; a test below checks the options",
    "openssl": "creates a certificate in injection.md; tests/real/test_inject_env_installed.py runs it",
    "pip": "installs packages",
    "python": "runs the tests of local/",
    "rm": "deletes a key that the previous command created",
    "sed": "needs the manifests of a release, or runs in `RUNNABLE`",
    "sha256sum": "needs a release",
    "tar": "needs a release",
    "terraform": "needs providers and the state of an installation",
}
_BLOCK = re.compile(r"^ *```sh\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_HEREDOC = re.compile(r"<<END\n.*?^END$", re.MULTILINE | re.DOTALL)
_ASSIGNMENT = re.compile(r"^(?:\w+=(?:\$\([^)]*\)|\S+)\s*)+")
_KEYWORDS = {"", "break", "do", "done", "export", "for", "get()", "jq", "while"}
_FILE = re.compile(r"(?:-f|--filename[= ])[= ]((?:examples|infra)/\S+)")
_FAULT = re.compile(r"/_simulator/(\w+)(?:\s*\\?\s*-d (?:'([^']*)'|\"((?:\\\"|[^\"])*)\"))?")
_MAKE = re.compile(r"make ([a-z-]+)[^\n`;&#]*?ARGS=(?:\"([^\"]*)\"|([^\s`\"]+))")
_DEPLOY = re.compile(r"\./deploy\.sh((?: +[^\s`#|&;.,)]+)*)")
_RECIPE = re.compile(r"^{}:.*\n(?:\t.*\n)*?\t.*\$\(BIN\)/python -m (\S+)", re.MULTILINE)


def list_blocks() -> Iterator[tuple[str, str]]:
    """Yield the blocks of commands of all pages, each with the page's name."""
    for page in PAGES:
        for block in _BLOCK.findall(page.read_text()):
            yield str(page.relative_to(ROOT)), block


def list_programs(block: str) -> Iterator[str]:
    """Yield the first word of each command, except in pipelines and substitutions."""
    text = _HEREDOC.sub("", block).replace("\\\n", " ")
    for line in text.splitlines():
        word = (_ASSIGNMENT.sub("", line.strip()).removeprefix("|| ").split() or [""])[0]
        if not word.startswith(("#", "'", "--")):
            yield word


@dataclass(frozen=True)
class Runnable:
    """A block that runs in an empty folder after ``before``; ``is_done`` must be true afterwards."""

    page: str
    beginning: str
    before: str
    is_done: Callable[[Path], bool]


RUNNABLE = (
    Runnable(
        "docs/install.md",
        "mkdir -p ../clusters",
        f"mkdir -p infra/terraform && cp -R {ROOT}/infra/terraform/examples infra/terraform",
        lambda folder: "project_id" in (folder.parent / "clusters/research.tfvars").read_text(),
    ),
    Runnable(
        "docs/supply-chain.md",
        "digest=",
        f"cp -R {ROOT}/relay {ROOT}/webhook . && docker() {{ echo sha256:{'a' * 64}; }}",
        lambda folder: all(
            f"FROM python:3.11-slim@sha256:{'a' * 64}" in (folder / name / "Dockerfile").read_text()
            for name in ("relay", "webhook")
        ),
    ),
    Runnable(
        "docs/local.md",
        "cat >more.yaml",
        "make() { :; }",
        lambda folder: read_inventory(folder / "more.yaml").has_zone("us-west4-a"),
    ),
)


@pytest.mark.parametrize("case", RUNNABLE, ids=lambda case: case.page)
def test_a_block_that_needs_no_cloud_runs(case: Runnable, tmp_path: Path) -> None:
    (block,) = [
        text
        for page, text in list_blocks()
        if page == case.page and text.startswith(case.beginning)
    ]
    done = subprocess.run(
        ["bash", "-euc", f"{case.before}\n{block}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert case.is_done(tmp_path)


def test_each_program_that_is_not_run_has_a_reason() -> None:
    run = {case.beginning for case in RUNNABLE}
    programs = {
        program
        for _, block in list_blocks()
        if not block.startswith(tuple(run))
        for program in list_programs(block)
    }
    assert programs - _KEYWORDS == set(NOT_RUN)


def test_each_file_in_a_command_exists() -> None:
    files = {file for _, block in list_blocks() for file in _FILE.findall(block)}
    assert len(files) > 3
    assert {file for file in files if not (ROOT / file).exists()} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_fault_of_the_simulator_accepts_the_arguments_in_the_page(page: Path) -> None:
    for name, quoted, escaped in _FAULT.findall(page.read_text()):
        if name in ("NAME", "faults", "state"):
            continue
        arguments = json.loads(quoted or escaped.replace('\\"', '"') or "{}")
        inspect.signature(FAULTS[name]).bind("self", **arguments)


@cache
def read_help(*command: str) -> str:
    done = subprocess.run(
        [*command, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


def list_options() -> set[tuple[tuple[str, ...], str]]:
    """Return each option of a make target or of deploy.sh in the pages, with its program."""
    makefile = (ROOT / "Makefile").read_text()
    found: set[tuple[tuple[str, ...], str]] = set()
    for page in PAGES:
        text = page.read_text()
        for target, quoted, bare in _MAKE.findall(text):
            recipe = re.search(_RECIPE.pattern.format(target), makefile, re.MULTILINE)
            assert recipe is not None, f"{page}: make {target}"
            command = (sys.executable, "-m", recipe[1])
            found |= {(command, option) for option in re.findall(r"--[a-z-]+", quoted or bare)}
        for words in _DEPLOY.findall(text):
            found |= {(("./deploy.sh",), option) for option in re.findall(r"--[a-z-]+", words)}
    return found


def test_each_option_in_a_command_exists() -> None:
    found = list_options()
    assert len(found) > 8
    unknown = [
        (command[-1], option)
        for command, option in sorted(found)
        if not re.search(rf"{option}\b(?!-)", read_help(*command))
    ]
    assert unknown == []
