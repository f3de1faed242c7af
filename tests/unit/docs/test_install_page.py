"""docs/install.md: the module, manifests and archive of a release exist at the page's addresses."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from infra.release import __main__ as release
from infra.release import archives, krew
from local.tests.real_parts import miss
from tests.support.chart import HELM, USERS, WITH_USERS, needs_helm
from tests.support.harness import ROOT
from tests.terraform import workspace
from version import VERSION

PAGE = (ROOT / "docs" / "install.md").read_text()
OWNER = release.read_repository().partition("/")[0]
CHARTS = f"ghcr.io/{OWNER if OWNER == 'OWNER' else OWNER.lower()}/charts"
WITHOUT = PAGE[PAGE.index("## Without deploy.sh") :]


def git(folder: Path, *arguments: str) -> None:
    identity = {
        f"GIT_{role}_{field}": "x"
        for role in ("AUTHOR", "COMMITTER")
        for field in ("NAME", "EMAIL")
    }
    subprocess.run(
        ["git", "-c", "init.defaultBranch=main", *arguments],
        cwd=folder,
        env={**os.environ, **identity},
        capture_output=True,
        check=True,
    )


@pytest.fixture(scope="module", name="origin")
def _origin(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the address of a repository with this tree, with the tag of a release."""
    folder = tmp_path_factory.mktemp("origin")
    git(folder, "init")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    names = [name for name in listed.stdout.split("\0") if (ROOT / name).is_file()]
    archives.write_tar(folder / "tree.tar.gz", {f"tree/{name}": ROOT / name for name in names}, {})
    subprocess.run(["tar", "-xzf", "tree.tar.gz", "--strip-components=1"], cwd=folder, check=True)
    (folder / "tree.tar.gz").unlink()
    git(folder, "add", "--all")
    git(folder, "commit", "--message", "x")
    git(folder, "tag", f"v{VERSION}")
    return f"file://{folder}"


def read_block(language: str, beginning: str) -> str:
    """Return the block that begins with this text in the page's part without deploy.sh."""
    (block,) = [one for one in list_blocks(language) if one.startswith(beginning)]
    return block


def list_blocks(language: str) -> list[str]:
    """Return the blocks of the page's part without deploy.sh."""
    return re.findall(rf"```{language}\n(.*?)```", WITHOUT, re.DOTALL)


def write_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@needs_helm
def test_the_commands_install_the_chart_of_the_release_with_terraforms_values(
    tmp_path: Path,
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    values = {"project": "my-gcp-project", "slices": {"workloads": "jobsets"}, **WITH_USERS}
    (tmp_path / "values").write_text(yaml.safe_dump(values))
    (tmp_path / "installation_id").write_text("0123")
    chart = release.write_chart(release.Settings(VERSION, "x"), tmp_path)
    write_program(programs / "kubectl", "true")
    write_program(programs / "terraform", f'[ "$1" != output ] || cat {tmp_path}/"$3"')
    # The registry is asked for this version; tests/real/test_release.py has a registry.
    asked = f'[ "$4" = "oci://{CHARTS}/tpu-functions" ] && [ "$5" = --version={VERSION} ] || exit 9'
    rendered = f'shift 5; {HELM} template tpu-functions {chart} "$@"'
    write_program(programs / "helm", f"{asked}; {rendered}")
    (script,) = [one for one in list_blocks("sh") if "helm upgrade --install" in one]
    done = subprocess.run(
        ["sh", "-eu", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    documents = [one for one in yaml.safe_load_all(done.stdout) if one]
    kinds = {(one["kind"], one["metadata"]["name"]) for one in documents}
    assert ("ClusterRole", "tpu-functions-provision-slice") in kinds, "slices for JobSets"
    (binding,) = [
        one
        for one in documents
        if one["kind"] == "ClusterRoleBinding"
        and one["metadata"]["name"] == "tpu-functions-create-resources"
    ]
    assert [subject["name"] for subject in binding["subjects"]] == [USERS["create-resources"]]


@pytest.mark.real
@pytest.mark.xdist_group("terraform")
def test_the_module_of_a_tag_contains_the_functions_source(origin: str, tmp_path: Path) -> None:
    if workspace.find_terraform() is None:
        miss("there is no terraform here")
    block = read_block("hcl", "module ")
    address = f"https://github.com/{release.read_repository()}.git//"
    configuration = block.replace(address, f"{origin}//")
    assert origin in configuration
    (tmp_path / "main.tf").write_text(configuration)
    environment = {**os.environ, "CHECKPOINT_DISABLE": "1"}
    environment.pop("TF_CLI_CONFIG_FILE", None)
    done = subprocess.run(
        ["terraform", "get", "-no-color"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    module = tmp_path / ".terraform" / "modules" / "tpu_functions"
    assert (module / "infra" / "terraform" / "functions.tf").exists()
    assert (module / "main.py").read_bytes() == (ROOT / "main.py").read_bytes()


def test_the_page_names_the_files_that_a_release_has() -> None:
    names = {
        f"tpu-functions-{VERSION}.tar.gz",
        f"tpu-functions-{VERSION}.tgz",
        release.MANIFESTS,
        f"functions-source-{VERSION}.zip",
        f"kubectl-tng-{VERSION}-...",
        krew.MANIFEST,
        "*.cdx.json",
        release.NOTES,
        release.CHECKSUMS,
    }
    table = PAGE[PAGE.index("| file |") : PAGE.index("Its images, `relay`")]
    assert set(re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)) == names


def test_the_page_says_that_nothing_is_published_yet() -> None:
    assert "Nothing is published until a maintainer pushes a tag" in PAGE


def test_the_page_replaces_the_project_of_the_manifests() -> None:
    assert f"s/{release.PROJECT}/YOUR_PROJECT/" in WITHOUT


def test_the_page_names_the_version_of_helm_that_the_tests_build() -> None:
    pinned = (ROOT / "local" / "control_plane" / "helm" / "go.mod").read_text()
    (version,) = re.findall(r"^require helm\.sh/helm/v4 v(\S+)", pinned, re.MULTILINE)
    assert f"Tests run helm {version}." in PAGE
