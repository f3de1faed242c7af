"""Installed packages are pinned by hashes, and each provider by its major version."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.unit.infra.terraform.terraform_module import MODULE

ROOT = Path(__file__).parents[3]
FILES = [
    "requirements.txt",
    "relay/requirements.txt",
    "webhook/requirements.txt",
    "local/requirements.txt",
    "requirements-dev.txt",
    "replay/requirements.txt",
    "tests/readers/requirements.txt",
]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = {"linux": "Linux", "darwin": "Darwin"}
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")


def read_entries(name: str) -> Iterator[tuple[Requirement, list[str]]]:
    """Yield each requirement of a file with its options."""
    lines = (ROOT / name).read_text().replace("\\\n", " ").splitlines()
    for line in lines:
        if line.strip() and not line.lstrip().startswith("#"):
            requirement, *words = re.split(r"\s+(?=--)", line)
            yield Requirement(requirement), [word.strip() for word in words]


def read_pins(name: str) -> dict[str, str]:
    return {canonicalize_name(one.name): str(one.specifier) for one, _ in read_entries(name)}


def test_the_list_has_all_requirements_files() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for pattern in ("requirements*.txt", "[a-z]*/**/requirements*.txt")
        for path in ROOT.glob(pattern)
    }
    assert found == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_every_requirement_is_one_version_with_hashes(name: str) -> None:
    entries = list(read_entries(name))
    assert entries
    for requirement, words in entries:
        assert re.fullmatch(r"==[0-9][^,*]*", str(requirement.specifier)), requirement
        assert words, f"{requirement} has no hash"
        assert all(HASH.fullmatch(word) for word in words), requirement


@pytest.mark.parametrize("name", FILES)
def test_every_requirements_file_is_written_by_make_lock(name: str) -> None:
    command = re.search(r"\n#    pip-compile (.*)\n", (ROOT / name).read_text())
    assert command is not None
    assert {"--generate-hashes", "--allow-unsafe", f"--output-file={name}"} <= {*command[1].split()}
    source = name.removesuffix(".txt") + ".in"
    assert command[1].endswith(f" {source}")
    stem = name.removesuffix(".txt")
    assert re.search(rf"for name in [^;]*\b{re.escape(stem)}[ ;]", (ROOT / "Makefile").read_text())


@pytest.mark.parametrize("name", FILES)
def test_the_dependencies_of_a_package_on_any_python_are_pinned(name: str) -> None:
    """With hashes, pip installs only packages that the file names.

    pip before 23.3 distinguishes a package with an extra from the package without it. If only the latter
    is pinned, pip selects the newest version of the former and fails, because that version has no pin.
    """
    pins = {canonicalize_name(pin.name): pin for pin, _ in read_entries(name)}
    missing = {
        f"{package} needs {needed}"
        for package in pins
        for needed in needs(package)
        if (pin := pins.get(canonicalize_name(needed.name))) is None
        or not needed.extras <= pin.extras
    }
    assert missing == set()


def needs(package: str) -> Iterator[Requirement]:
    """Yield the dependencies of a package from its metadata; none if the package is not installed."""
    try:
        found = metadata.requires(package) or []
    except metadata.PackageNotFoundError:
        return
    for needed in map(Requirement, found):
        if needed.marker is None or any(needed.marker.evaluate(one) for one in environments()):
            yield needed


def environments() -> Iterator[dict[str, str]]:
    for python in PYTHONS:
        for platform, system in PLATFORMS.items():
            yield {
                "python_version": python,
                "python_full_version": f"{python}.0",
                "sys_platform": platform,
                "platform_system": system,
                "extra": "",
            }


def test_a_package_has_one_version_in_all_files() -> None:
    versions: dict[str, set[str]] = {}
    for name in FILES:
        for package, version in read_pins(name).items():
            versions.setdefault(package, set()).add(version)
    assert {package: found for package, found in versions.items() if len(found) > 1} == {}


@pytest.mark.parametrize("name", ["Makefile", "relay/Dockerfile", "webhook/Dockerfile"])
def test_pip_requires_hashes(name: str) -> None:
    text = (ROOT / name).read_text().replace("\\\n", " ")
    installs = [line for line in text.splitlines() if re.search(r"\bpip install\b", line)]
    assert installs
    assert [line for line in installs if "--require-hashes" not in line.split()] == []


def test_make_setup_requires_hashes() -> None:
    text = (ROOT / "infra" / "set_up.py").read_text()
    assert text.count('"install"') == text.count('"--require-hashes"') == 1


# Images


def test_both_images_have_the_same_base() -> None:
    bases = {
        line.split()[1]
        for name in ("relay", "webhook")
        for line in (ROOT / name / "Dockerfile").read_text().splitlines()
        if line.startswith("FROM ")
    }
    (base,) = bases
    assert DIGEST.sub("", base) == "python:3.11-slim"


@pytest.mark.parametrize("name", ["relay", "webhook"])
def test_a_dockerfile_names_no_syntax_frontend(name: str) -> None:
    assert "# syntax=" not in (ROOT / name / "Dockerfile").read_text()


def test_the_page_names_the_images_without_a_digest() -> None:
    page = (ROOT / "docs" / "supply-chain.md").read_text()
    base = (ROOT / "relay" / "Dockerfile").read_text().split()[1:]
    named = next(word for word in base if word.startswith("python:"))
    assert DIGEST.search(named) or f"`{named}` | tag only" in page


# Terraform


def test_one_major_version_of_each_provider_is_allowed() -> None:
    (providers,) = re.findall(
        r"required_providers \{(.*)\n  }", (MODULE / "versions.tf").read_text(), re.S
    )
    constraints = dict(re.findall(r"(\w+) = \{[^}]*version = \"([^\"]+)\"", providers))
    assert set(constraints) == {"google", "time", "archive"}
    for name, constraint in constraints.items():
        allowed = SpecifierSet(constraint)
        majors = {major for major in range(20) if Version(f"{major}.999") in allowed}
        assert len(majors) == 1, f"{name}: {constraint}"


def test_git_does_not_ignore_the_lock_file_of_the_providers() -> None:
    ignored = (MODULE / ".gitignore").read_text().split()
    assert ".terraform.lock.hcl" not in ignored


# Updates


def test_dependabot_checks_every_folder_with_pinned_versions() -> None:
    config = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text())
    folders = {
        entry["package-ecosystem"]: {
            folder.strip("/") for folder in entry.get("directories", [entry.get("directory", "")])
        }
        for entry in config["updates"]
    }
    expected = {
        "pip": {str(Path(name).parent).strip(".") for name in FILES},
        "docker": {path.parent.name for path in ROOT.glob("[a-z]*/Dockerfile")},
        "github-actions": {""},
        "terraform": {"infra/terraform"},
        "gomod": {
            path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("[a-z]*/**/go.mod")
        },
    }
    assert folders == expected
