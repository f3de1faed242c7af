"""``make release``: its files depend only on the tree, and its errors name what to do."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest
import yaml

from infra.release import __main__ as release
from infra.release import krew
from infra.release.archives import list_function_files, render_checksums, write_tar, write_zip
from infra.release.changelog import find_section, point_links_to
from infra.release.sbom import parse_pins, render_sbom
from local.base.clock import VirtualClock
from local.kube import KubeApi
from tests.bundle.bundle import list_uploaded
from tests.support.chart import HELM, needs_helm, render, run_helm
from tests.support.go_tools import KREW, VALIDATE_KREW_MANIFEST, run_tool
from tests.support.harness import ROOT
from tools import bundle
from version import VERSION

CHANGELOG = """\
# Changelog

## [Unreleased]

- not yet

## [0.2.0] - 2026-11-30

### Added

- a thing ([how](docs/install.md#it))

## [0.1.0]

- the first
"""
SETTINGS = release.Settings("0.2.0", "Acme/tpu-functions")
DIGEST = f"sha256:{'ab' * 32}"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
REPOSITORY = release.read_repository()
IMAGES = f"ghcr.io/{REPOSITORY.lower()}"
AT = datetime(2026, 11, 30, tzinfo=UTC)


# The version

TEXTS = {".md", ".yaml", ".tf", ".toml", ".sh", ".tpl", ".txt"}


def list_tracked() -> list[str]:
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [name for name in done.stdout.split("\0") if (ROOT / name).is_file()]


def test_every_file_has_the_version() -> None:
    pattern = re.compile(
        r"(?:\bref=v|tpu-functions/releases/download/v|/blob/v|charts/tpu-functions --version="
        r"|(?:functions|source|tng|relay|inject-env)[-:]|(?:tag|origin|annotate|message) v)"
        r"(\d+\.\d+\.\d+)\b"
    )
    others = []
    for name in list_tracked():
        if not name.startswith("tests/") and name.endswith((".md", ".yaml", ".tf", ".toml", ".sh")):
            for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
                others += [
                    f"{name}:{number}: {found}"
                    for found in pattern.findall(line)
                    if found != VERSION and name != "CHANGELOG.md"
                ]
    assert others == [], f"the version in version.py is {VERSION}"


def test_the_packages_metadata_take_the_version_from_the_root() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in project
    assert 'version = {attr = "version.VERSION"}' in project
    assert re.search(r'^version = "', project, re.MULTILINE) is None
    assert re.fullmatch(r"\d+\.\d+\.\d+", VERSION)


# The notes


@pytest.mark.parametrize(
    "name, section",
    [
        ("Unreleased", "- not yet"),
        ("0.2.0", "### Added\n\n- a thing ([how](docs/install.md#it))"),
        ("0.1.0", "- the first"),
        ("0.2", None),
        ("0x2.0", None),
    ],
)
def test_the_notes_are_the_section_of_the_version(name: str, section: str | None) -> None:
    assert find_section(CHANGELOG, name) == section


def test_the_changelog_of_the_project_can_be_read() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert find_section(text, "Unreleased") is not None, "an empty section needs the heading, too"
    assert find_section(text, "Unreleased") or find_section(text, VERSION)


@pytest.mark.parametrize(
    "link, becomes",
    [
        ("[a](docs/a.md#b)", "[a](BASE/docs/a.md#b)"),
        ("[a](README.md) [b](infra/x)", "[a](BASE/README.md) [b](BASE/infra/x)"),
        ("[a](https://b/c)", "[a](https://b/c)"),
        ("[a](#b)", "[a](#b)"),
        ("f(docs/a.md)", "f(docs/a.md)"),
    ],
)
def test_links_of_the_notes_point_to_the_files_of_the_tag(link: str, becomes: str) -> None:
    assert point_links_to(link, "BASE") == becomes


def test_the_notes_name_an_image_by_its_digest_if_it_is_known() -> None:
    settings = release.Settings("0.2.0", "Acme/tpu-functions", {"relay": DIGEST})
    base = "https://github.com/Acme/tpu-functions/blob/v0.2.0/docs/install.md"
    assert release.render_notes(settings, CHANGELOG) == (
        f"[How to install]({base}), and how to check these files. Images:\n\n"
        f"- `ghcr.io/acme/tpu-functions/relay:0.2.0@{DIGEST}`\n"
        "- `ghcr.io/acme/tpu-functions/inject-env:0.2.0`\n\n"
        f"### Added\n\n- a thing ([how]({base}#it))\n"
    )


# Violations


@pytest.mark.parametrize(
    "version, is_snapshot, tag, changed, violations",
    [
        ("0.2.0", False, None, "", []),
        ("0.2.0", False, "v0.2.0", "", []),
        (
            "0.2.0",
            False,
            "v0.3.0",
            "",
            [
                "the tag is v0.3.0, and the version in version.py is 0.2.0: delete the tag, "
                "and push v0.2.0, or the version that the tag has"
            ],
        ),
        (
            "0.3.0",
            False,
            None,
            " M a.py\n?? b.py\n",
            [
                "CHANGELOG.md has no section for 0.3.0: rename the heading ## [Unreleased] to "
                "## [0.3.0] - YYYY-MM-DD, and put an empty ## [Unreleased] above it. "
                "To try it without: make release ARGS=--snapshot",
                "there are changes that are not committed (a.py, b.py): commit them",
            ],
        ),
        ("0.3.0", True, None, " M a.py\n", []),
    ],
)
def test_a_violation_names_what_to_do_before_the_release(
    version: str, is_snapshot: bool, tag: str | None, changed: str, violations: list[str]
) -> None:
    settings = release.Settings(version, "Acme/x", is_snapshot=is_snapshot)
    assert release.find_violations(settings, tag, CHANGELOG, changed) == violations


def test_a_release_of_a_repository_that_the_chart_does_not_name_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(release, "build", None)
    assert release.main(["--snapshot"], {"GITHUB_REPOSITORY": "Acme/other"}) == 1
    assert capsys.readouterr().err == (
        f"make release: infra/chart/Chart.yaml names the repository {REPOSITORY}, and this is "
        "Acme/other: write it there and into the pages (docs/releasing.md, Once)\n"
    )


def test_every_page_names_the_repository_that_the_chart_names() -> None:
    """Images of a fork would otherwise be another repository's."""
    named = re.compile(r"(?:github\.com/|ghcr\.io/|--repo )([\w.-]+)(?=/(?:charts/)?tpu-functions)")
    owners = {
        f"{name}: {owner}"
        for name in list_tracked()
        if not name.startswith(("tests/", "CHANGELOG")) and (ROOT / name).suffix in TEXTS
        for owner in named.findall((ROOT / name).read_text())
    }
    owner = REPOSITORY.partition("/")[0]
    assert {one.partition(": ")[2].lower() for one in owners} == {owner.lower()}, owners


def test_a_release_with_violations_builds_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(release, "build", None)
    monkeypatch.setattr(release, "VERSION", "98.0.0")
    assert release.main(["--tag", "v99.0.0"], {}) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "make release: the tag is v99.0.0" in err
    assert "make release: CHANGELOG.md has no section for 98.0.0" in err


def test_a_check_builds_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(release, "build", None)
    assert release.main(["--snapshot", "--check", "--tag", f"v{VERSION}"], {}) == 0
    assert capsys.readouterr().out == f"{VERSION}-snapshot can be released\n"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--digest", "relay=sha256:12"], "relay=sha256:12: it must be relay=sha256:..."),
        (["--digest", f"other={DIGEST}"], "it must be relay=sha256:... or inject-env=..."),
        (["--add", "missing"], "missing is not a folder"),
    ],
)
def test_wrong_usage_is_an_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        release.main(arguments, {})
    assert message in capsys.readouterr().err


# Archives


def make_tree(folder: Path, names: list[str], at: int) -> Path:
    """Write the files in this order, with times and permissions that depend on ``at``."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n")
        path.chmod(0o700 if name.endswith(".sh") else 0o600 if at else 0o644)
        os.utime(path, (at, at))
    return folder


def test_an_archive_depends_only_on_the_files(tmp_path: Path) -> None:
    names = ["b/run.sh", "a.py", "b/a.py"]
    builds = []
    for at, order in enumerate((names, names[::-1])):
        tree = make_tree(tmp_path / f"tree-{at}", order, at * 1_000_000_000)
        write_zip(tmp_path / f"{at}.zip", tree, order)
        write_tar(tmp_path / f"{at}.tar.gz", {f"x-1/{name}": tree / name for name in order}, {})
        builds.append([(tmp_path / f"{at}{end}").read_bytes() for end in (".zip", ".tar.gz")])
    assert builds[0] == builds[1]
    with zipfile.ZipFile(tmp_path / "0.zip") as archive:
        assert archive.namelist() == sorted(names)
        assert archive.read("b/a.py") == b"b/a.py\n"
        assert {entry.date_time[0] for entry in archive.infolist()} == {1980}
        assert {entry.external_attr >> 16 for entry in archive.infolist()} == {0o100644}
    flags_and_time = (tmp_path / "0.tar.gz").read_bytes()[3:8]
    assert flags_and_time == bytes(5), "the header has neither a file's name nor a time"
    with tarfile.open(tmp_path / "0.tar.gz") as packed:
        modes = {entry.name: (entry.mode, entry.mtime, entry.uid) for entry in packed}
    assert modes == {
        "x-1/a.py": (0o644, 0, 0),
        "x-1/b/a.py": (0o644, 0, 0),
        "x-1/b/run.sh": (0o755, 0, 0),
    }


def test_archives_of_different_contents_differ(tmp_path: Path) -> None:
    archives = set()
    for text in ("1", "2"):
        (tmp_path / "a").write_text(text)
        write_zip(tmp_path / "a.zip", tmp_path, ["a"])
        write_tar(tmp_path / "a.tar.gz", {"x/a": tmp_path / "a"}, {})
        archives |= {(tmp_path / name).read_bytes() for name in ("a.zip", "a.tar.gz")}
    assert len(archives) == 4


def test_the_functions_archive_has_the_files_that_gcloud_and_terraform_deploy() -> None:
    assert list_function_files(list_tracked()) == list_uploaded()


def test_the_checksums_have_the_format_of_sha256sum(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).write_text(name)
    sums = [f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n" for name in ("a", "b")]
    assert render_checksums(tmp_path) == "".join(sums)


# SBOMs


@pytest.mark.parametrize("part", release.SBOMS)
def test_an_sbom_names_each_pinned_package_with_its_hashes(part: str) -> None:
    requirements = (ROOT / release.SBOMS[part]).read_text()
    text = render_sbom(part, "0.2.0", requirements, AT)
    assert text == render_sbom(part, "0.2.0", requirements, AT)
    bom = json.loads(text)
    pins = re.findall(r"^([\w.-]+)(?:\[.*?\])?==(\S+)", requirements, re.MULTILINE)
    assert len(pins) > 10
    assert {(one["name"], one["version"]) for one in bom["components"]} == set(pins)
    assert sum(len(one["hashes"]) for one in bom["components"]) == requirements.count("--hash=")
    assert bom["metadata"]["component"]["name"] == f"tpu-functions-{part}"
    assert bom["metadata"]["component"]["version"] == "0.2.0"
    assert bom["metadata"]["timestamp"] == "2026-11-30T00:00:00+00:00"
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")


def test_a_package_for_some_python_versions_is_optional() -> None:
    pins = f'a[x]==1 \\\n    --hash=sha256:{"0" * 64}\nb==2 ; python_version < "3.12" \\\n    # via a\n'
    assert [(pin.name, pin.is_conditional, len(pin.hashes)) for pin in parse_pins(pins)] == [
        ("a", False, 1),
        ("b", True, 0),
    ]
    bom = json.loads(render_sbom("x", "1", pins, AT))
    assert [one["scope"] for one in bom["components"]] == ["required", "optional"]
    assert [one["purl"] for one in bom["components"]] == ["pkg:pypi/a@1", "pkg:pypi/b@2"]


# The manifests


@needs_helm
def test_the_manifests_are_the_chart_with_the_releases_images(tmp_path: Path) -> None:
    settings = release.Settings("0.2.0", "Acme/tpu-functions", {"relay": DIGEST})
    text = release.render_manifests(settings, release.write_chart(settings, tmp_path), str(HELM))
    documents = [one for one in yaml.safe_load_all(text) if one]
    assert [one["kind"] for one in documents] == ["Namespace", *(one["kind"] for one in render({}))]
    assert f"image: {IMAGES}/relay:0.2.0@{DIGEST}\n" in text
    (data,) = [
        one["data"]
        for one in documents
        if (one["kind"], one["metadata"]["name"]) == ("ConfigMap", "relay")
    ]
    assert data == {
        "PORT": "8080",
        "PUBSUB_PROJECT": "my-gcp-project",
        "TOPIC_PREFIX": "tpu-functions-",
    }
    assert "Replace my-gcp-project by" in text.splitlines()[0]
    KubeApi(VirtualClock(), random=Random(1)).apply_manifests(documents)
    packaged = release.write_chart(SETTINGS, tmp_path)
    tagged = release.render_manifests(SETTINGS, packaged, str(HELM))
    assert f"image: {IMAGES}/relay:0.2.0\n" in tagged


@needs_helm
@pytest.mark.parametrize(
    "values, relay, inject_env",
    [
        ({}, f"{IMAGES}/relay:0.2.0-snapshot@{DIGEST}", f"{IMAGES}/inject-env:0.2.0-snapshot"),
        (
            {"repository": "mirror.test/x"},
            f"mirror.test/x/relay:0.2.0-snapshot@{DIGEST}",
            "mirror.test/x/inject-env:0.2.0-snapshot",
        ),
        ({"tag": "1"}, f"{IMAGES}/relay:1", f"{IMAGES}/inject-env:1"),
        ({"relay": "a.test/b:2"}, "a.test/b:2", f"{IMAGES}/inject-env:0.2.0-snapshot"),
    ],
    ids=["its own", "of a mirror", "with another tag", "one by its whole name"],
)
def test_the_chart_of_a_release_names_its_version_and_images(
    values: dict[str, str], relay: str, inject_env: str, tmp_path: Path
) -> None:
    settings = release.Settings("0.2.0", "Acme/tpu-functions", {"relay": DIGEST}, True)
    packaged = release.write_chart(settings, tmp_path)
    assert packaged.name == "tpu-functions-0.2.0-snapshot.tgz"
    switches = {"injectEnv": {"enabled": True}, "monitoring": "prometheus"}
    given = {"project": "p-1", "image": values, **switches}
    done = run_helm("template", "x", str(packaged), "--no-hooks", values=given)
    assert done.returncode == 0, done.stderr
    images = re.findall(r"image: (\S+/(?:relay|inject-env):\S+|a.test\S+)", done.stdout)
    assert images == [inject_env, relay]
    assert f"https://github.com/{REPOSITORY}/blob/v0.2.0-snapshot/docs/" in done.stdout


def test_a_release_without_helm_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(release.ReleaseError, match=r"helm, which renders .* not on PATH"):
        release.render_manifests(SETTINGS, release.CHART)


# krew

TOOL = '#!/bin/sh\necho "$(basename "$0"): $*"\n'


def write_plugin(folder: Path, *platforms: str) -> None:
    """Write a plugin whose files print their names."""
    folder.mkdir()
    for one in platforms:
        write_program(folder / f"kubectl-tng-0.2.0-{one}")
    krew.write_plugin(folder, "0.2.0", "Acme/tpu-functions", ROOT)


def write_program(path: Path) -> None:
    path.write_text(TOOL)
    path.chmod(0o755)


def test_the_plugin_has_an_archive_for_each_platform_with_its_checksum(tmp_path: Path) -> None:
    files = tmp_path / "files"
    platforms = ("linux-x86_64-python3.11", "linux-x86_64-python3.12", "darwin-arm64-python3.13")
    write_plugin(files, *platforms)
    plugin = yaml.safe_load((files / "tng.yaml").read_text())
    assert (plugin["metadata"]["name"], plugin["spec"]["version"]) == ("tng", "v0.2.0")
    found = {}
    for one in plugin["spec"]["platforms"]:
        address, _, name = one["uri"].rpartition("/")
        assert address == "https://github.com/Acme/tpu-functions/releases/download/v0.2.0"
        assert one["sha256"] == hashlib.sha256((files / name).read_bytes()).hexdigest()
        with tarfile.open(files / name) as packed:
            found["{os} {arch}".format(**one["selector"]["matchLabels"])] = packed.getnames()
    assert found == {
        "darwin arm64": ["LICENSE", "kubectl-tng", f"kubectl-tng-0.2.0-{platforms[2]}"],
        "linux amd64": [
            *("LICENSE", "kubectl-tng"),
            *(f"kubectl-tng-0.2.0-{one}" for one in platforms[:2]),
        ],
    }


@pytest.mark.parametrize(
    "pythons, output, code",
    [
        (["3.11", "3.12", "3.13"], "kubectl-tng-0.2.0-linux-x86_64-python3.12: a b\n", 0),
        (["3.11"], "kubectl-tng-0.2.0-linux-x86_64-python3.11: a b\n", 0),
        (["3.13"], "", 1),
        ([], "", 1),
    ],
)
def test_krews_command_runs_the_newest_file_that_has_its_python(
    pythons: list[str], output: str, code: int, tmp_path: Path
) -> None:
    write_plugin(tmp_path / "x y", "linux-x86_64-python3.11", "linux-x86_64-python3.12")
    with tarfile.open(tmp_path / "x y" / "kubectl-tng-0.2.0-linux-amd64.tar.gz") as packed:
        packed.extractall(tmp_path / "x y", filter="data")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("dirname", "readlink", "basename", "sh"):
        (programs / name).symlink_to(str(shutil.which(name)))
    for one in pythons:
        write_program(programs / f"python{one}")
    (programs / "kubectl-tng").symlink_to(tmp_path / "x y" / "kubectl-tng")
    done = subprocess.run(
        ["kubectl-tng", "a", "b"],
        env={"PATH": str(programs)},
        executable=programs / "kubectl-tng",
        capture_output=True,
        text=True,
        check=False,
    )
    error = "Error: kubectl tng needs python3.11, python3.12 or python3.13 on PATH\n" * code
    assert (done.stdout, done.stderr, done.returncode) == (output, error, code)


@pytest.mark.real
def test_krew_accepts_the_plugin_and_installs_it(tmp_path: Path) -> None:
    files, root = tmp_path / "files", tmp_path / "krew"
    write_plugin(files, f"linux-x86_64-python{PYTHON}", f"darwin-arm64-python{PYTHON}")
    manifest = f"{files / 'tng.yaml'}"
    checked = run_tool(VALIDATE_KREW_MANIFEST, "-skip-install", f"-manifest={manifest}")
    assert checked.returncode == 0, checked.stderr
    assert "structural validation OK" in checked.stderr
    installed = run_tool(
        *(KREW, "install", f"--manifest={manifest}"),
        f"--archive={files / 'kubectl-tng-0.2.0-linux-amd64.tar.gz'}",
        environment={"KREW_ROOT": str(root), "KREW_OS": "linux", "KREW_ARCH": "amd64"},
    )
    assert installed.returncode == 0, installed.stderr
    ran = subprocess.run([root / "bin" / "kubectl-tng"], capture_output=True, text=True, check=True)
    assert ran.stdout == f"kubectl-tng-0.2.0-linux-x86_64-python{PYTHON}: \n"


# The whole release


def krew_files(version: str) -> set[str]:
    """Return krew's manifest, and the archive for this machine."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return {"tng.yaml", f"kubectl-tng-{version}-{platform.system().lower()}-{machine}.tar.gz"}


def build_twice(
    folder: Path, monkeypatch: pytest.MonkeyPatch, added: Path | None = None
) -> tuple[Path, Path]:
    """Return the folders of two builds of a snapshot."""
    monkeypatch.setenv("PATH", f"{Path(str(HELM)).parent}{os.pathsep}{os.environ['PATH']}")
    settings = release.Settings(VERSION, "Acme/tpu-functions", is_snapshot=True, added=added)
    for one in ("first", "second"):
        release.build(settings, folder / one)
    return folder / "first", folder / "second"


@needs_helm
def test_two_builds_of_a_tree_have_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "build", lambda path, text: path.write_text(text))
    added = tmp_path / "added"
    added.mkdir()
    (added / "kubectl-tng-elsewhere").write_text("x")
    first, second = build_twice(tmp_path, monkeypatch, added)
    name = f"{VERSION}-snapshot"
    assert {path.name for path in first.iterdir()} == {
        "SHA256SUMS",
        f"functions-source-{name}.zip",
        *(f"{part}.cdx.json" for part in ("functions", "relay", "inject-env", "kubectl-tng")),
        release.name_tool(name),
        "kubectl-tng-elsewhere",
        *krew_files(name),
        "notes.md",
        f"tpu-functions-{name}.tar.gz",
        f"tpu-functions-{name}.tgz",
        "tpu-functions.yaml",
    }
    assert (first / "SHA256SUMS").read_text() == (second / "SHA256SUMS").read_text()
    (first / "SHA256SUMS").rename(tmp_path / "sums")
    assert (tmp_path / "sums").read_text() == render_checksums(first)
    with tarfile.open(first / f"tpu-functions-{name}.tar.gz") as packed:
        content = packed.extractfile(f"tpu-functions-{name}/deploy.sh")
        assert isinstance(content, io.BufferedReader)
        assert content.read() == (ROOT / "deploy.sh").read_bytes()


@pytest.mark.slow
@pytest.mark.processes
@needs_helm
def test_two_builds_of_the_operators_tool_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = build_twice(tmp_path, monkeypatch)
    assert (first / "SHA256SUMS").read_text() == (second / "SHA256SUMS").read_text()
