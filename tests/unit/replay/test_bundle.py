"""``kubectl-tng``: the tool as one file, and the completions for a shell."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from google.cloud import compute_v1

from replay import completion, dependencies
from replay.app import app
from tests.unit.replay.tool import Tool, training
from tools.bundle import REQUIREMENTS, ROOT, WrongVersionError, build
from version import VERSION

KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "x",
}


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
        (["re"], ["resync", "record", "rehearse"]),
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


@pytest.fixture(name="program", scope="module")
def _program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("bin") / "kubectl-tng"
    build(program, REQUIREMENTS.read_text())
    (program.parent / "kubectl_complete-tng").symlink_to(program)
    return program


def run(cache: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run without the packages of this environment."""
    given = {"XDG_CACHE_HOME": str(cache), "HOME": "/nonexistent", "COLUMNS": "100", **environment}
    return subprocess.run(
        [sys.executable, "-I", "-S", *words],
        env=given,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.slow
@pytest.mark.processes
def test_the_file_runs_as_kubectls_plugin_without_other_files(
    program: Path, tmp_path: Path
) -> None:
    assert program.stat().st_size < 15_000_000
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    with program.open("rb") as file:
        assert file.readline() == f"#!/usr/bin/env {python}\n".encode()
    assert run(tmp_path, str(program), "--version").stdout == f"kubectl tng {VERSION}\n"
    shown = run(tmp_path, str(program), "explain", "--help")
    assert shown.stdout.startswith("Usage: kubectl tng explain [OPTIONS] {NAME}"), shown
    completed = run(tmp_path, str(program.with_name("kubectl_complete-tng")), "rec")
    assert completed.stdout.splitlines() == [
        "record\tRecord the messages of a step's topic in a file.",
        ":4",
    ]
    missing = run(tmp_path, str(program), "audit-log", "--since", "1h")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "Error: PUBSUB_PROJECT is not set" in missing.stderr
    (unpacked,) = (tmp_path / "kubectl-tng").iterdir()
    assert unpacked.name.startswith(f"{VERSION}-")


IMPORTS = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from importlib import import_module
for path in sorted(Path(sys.argv[1], "replay").rglob("*.py")):
    if not path.stem.startswith("__"):
        import_module(".".join(path.relative_to(sys.argv[1]).with_suffix("").parts))
from replay.audit_log import read_filters
from replay.cloud_logging import CloudLogging, read_entry
from replay.subscriptions import Subscriptions
from shared.ports.gce.clients import Clients
from shared.ports.gke import *
from shared.ports.kubernetes.access import KubeconfigFile, _credentials
from shared.ports.kubernetes.access_settings import GoogleToken, Kubeconfig, TokenKind
from shared.ports import pubsub
from shared.settings import from_environment
import google.auth, google.auth.compute_engine, google.oauth2.service_account, google.oauth2.credentials
import google.auth.impersonated_credentials, google.auth.external_account, google.auth.aws
from functions.approve_join import STEP
import cryptography.x509
KubeconfigFile(Kubeconfig(sys.argv[2])).open(1)
for service in sys.argv[3].split(): Clients("http://localhost:1").load_class(service)
CloudLogging()._client, Subscriptions("p")._client, pubsub._make_publisher()
from google.cloud.container_v1 import ClusterManagerClient
from google.cloud.audit import audit_log_pb2
from google.cloud.logging_v2.types import LogEntry
assert read_entry(LogEntry(text_payload="x"))["textPayload"] == "x"
files = [getattr(module, "__file__", None) or "" for module in sys.modules.values()]
print([file for file in files if "site-packages" in file])
"""


@pytest.mark.slow
@pytest.mark.processes
def test_the_file_has_what_the_tool_imports(program: Path, tmp_path: Path) -> None:
    """Also what only some credentials, or an answer, need."""
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(json.dumps(KUBECONFIG))
    run(tmp_path, str(program), "--version")
    (unpacked,) = (tmp_path / "kubectl-tng").iterdir()
    calls = (ROOT / "shared/ports/gce/calls.py").read_text()
    known = {path.name for path in (Path(compute_v1.__file__).parent / "services").iterdir()}
    services = known & set(re.findall(r'"(\w+)"', calls))
    assert {"instances", "resource_policies", "zone_operations"} <= services
    words = ("-c", IMPORTS, str(unpacked), str(kubeconfig), " ".join(sorted(services)))
    emulators = {"PUBSUB_EMULATOR_HOST": "localhost:1", "LOGGING_EMULATOR_HOST": "localhost:1"}
    done = run(tmp_path, *words, **emulators)
    assert (done.stderr, done.stdout) == ("", "[]\n")


@pytest.mark.slow
@pytest.mark.processes
def test_a_home_that_cannot_be_written_is_a_sentence(program: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(tmp_path / "file", str(program), "get")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"Error: kubectl tng cannot unpack itself into {tmp_path}/file/kubectl-tng: Not a directory. "
        "Set XDG_CACHE_HOME to a folder that can be written.\n"
    )


@pytest.mark.slow
@pytest.mark.processes
def test_a_full_disk_is_a_sentence_and_nothing_is_left(program: Path, tmp_path: Path) -> None:
    limit = (
        "import resource, sys, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))\n"
    )
    code = (
        f"{limit}sys.argv = [sys.argv[1], 'get']; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    done = run(tmp_path, "-c", code, str(program))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"Error: kubectl tng cannot unpack itself into {tmp_path}/kubectl-tng: File too large. "
        "Set XDG_CACHE_HOME to a folder that can be written.\n"
    )
    assert list((tmp_path / "kubectl-tng").iterdir()) == []
