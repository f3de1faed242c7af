"""docs/install.md: the module, manifests and archive of a release exist at the page's addresses."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.release import __main__ as release
from infra.release import archives
from local.tests.real_parts import miss
from tests.support.harness import ROOT
from tests.terraform import workspace
from tests.unit.infra.kubernetes.kubectl import KUBECTL, USERS
from version import VERSION

PAGE = (ROOT / "docs" / "install.md").read_text()
WITHOUT = PAGE[PAGE.index("## Without deploy.sh") :]
OVERLAY = {
    "apiVersion": "kustomize.config.k8s.io/v1beta1",
    "kind": "Kustomization",
    "resources": ["../../base"],
    "components": ["deployed", "../../components/google-identities"],
}
COMPONENT = {
    "apiVersion": "kustomize.config.k8s.io/v1alpha1",
    "kind": "Component",
    "configMapGenerator": [
        {
            "name": "installation",
            "literals": [f"{user}={user}@example" for user in USERS],
            "options": {
                "disableNameSuffixHash": True,
                "annotations": {"config.kubernetes.io/local-config": "true"},
            },
        },
    ],
    "components": ["../../../components/jobsets"],
}


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
    archives.write_tar(folder / "tree.tar.gz", ROOT, names, "tree")
    subprocess.run(["tar", "-xzf", "tree.tar.gz", "--strip-components=1"], cwd=folder, check=True)
    (folder / "tree.tar.gz").unlink()
    git(folder, "add", "--all")
    git(folder, "commit", "--message", "x")
    git(folder, "tag", f"v{VERSION}")
    return f"file://{folder}"


def read_block(language: str, beginning: str) -> str:
    """Return the block that begins with this text in the page's part without deploy.sh."""
    blocks = re.findall(rf"```{language}\n(.*?)```", WITHOUT, re.DOTALL)
    (block,) = [one for one in blocks if one.startswith(beginning)]
    return str(block)


def write_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.real
@pytest.mark.skipif(KUBECTL is None, reason="kubectl, which renders the manifests, is not here")
def test_the_manifests_of_a_tag_can_be_rendered(origin: str, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, content in (("overlay", OVERLAY), ("component", COMPONENT)):
        (tmp_path / name).write_text(quote(content))
    write_program(programs / "terraform", f'cat {tmp_path}/"$3"')
    write_program(programs / "kubectl", f'{KUBECTL} kustomize "$4"')
    github = "https://github.com/OWNER/tpu-functions"
    script = read_block("sh", "remote=").replace(f"{github}//", f"{origin}//")
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
    assert ("ClusterRole", "tpu-functions-provision-slice") in kinds, "the component of JobSets"
    assert f"image: ghcr.io/OWNER/tpu-functions/relay:{VERSION}\n" in done.stdout
    (binding,) = [
        one
        for one in documents
        if one["kind"] == "ClusterRoleBinding"
        and one["metadata"]["name"] == "tpu-functions-create-resources"
    ]
    assert [subject["name"] for subject in binding["subjects"]] == ["create-resources@example"]


def quote(document: dict[str, Any]) -> str:
    """Return YAML as Terraform's yamlencode writes it, with all strings in quotation marks."""
    return yaml.safe_dump(document, default_style='"').replace('!!bool "true"', "true")


def test_the_quoted_outputs_are_equal_to_the_documents() -> None:
    assert '"../../base"' in quote(OVERLAY)
    assert yaml.safe_load(quote(COMPONENT)) == COMPONENT


@pytest.mark.real
@pytest.mark.xdist_group("terraform")
def test_the_module_of_a_tag_contains_the_functions_source(origin: str, tmp_path: Path) -> None:
    if workspace.find_terraform() is None:
        miss("there is no terraform here")
    block = read_block("hcl", "module ")
    configuration = block.replace("https://github.com/OWNER/tpu-functions.git//", f"{origin}//")
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
        release.MANIFESTS,
        f"functions-source-{VERSION}.zip",
        f"kubectl-tng-{VERSION}-...",
        "*.cdx.json",
        release.NOTES,
        release.CHECKSUMS,
    }
    table = PAGE[PAGE.index("| file |") : PAGE.index("The images are `ghcr.io")]
    assert set(re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)) == names


def test_the_page_says_that_nothing_is_published_yet() -> None:
    assert "**Nothing is published until a maintainer\npushes a tag**" in PAGE


def test_the_page_replaces_the_project_of_the_manifests() -> None:
    assert f"s/{release.PROJECT}/YOUR_PROJECT/" in WITHOUT
