"""``make release``: build all files of a release that need no registry, in build/release.

The release's version is `version.VERSION`. docs/releasing.md has the steps of a maintainer.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import yaml

from infra.release import archives, changelog, krew
from infra.release.sbom import render_sbom
from tools import bundle
from version import VERSION

ROOT = Path(__file__).parents[2]
CHART = ROOT / "infra" / "chart"
NOTES = "notes.md"
CHECKSUMS = "SHA256SUMS"
MANIFESTS = "tpu-functions.yaml"
IMAGES = ("relay", "inject-env")
PROJECT = "my-gcp-project"
"""The placeholder in the manifests that the user replaces by a project."""
SBOMS = {
    "functions": "requirements.txt",
    "relay": "relay/requirements.txt",
    "inject-env": "webhook/requirements.txt",
    "kubectl-tng": "replay/requirements.txt",
}
_DIGEST = re.compile(r"(?P<name>[a-z-]+)=(?P<digest>sha256:[0-9a-f]{64})")


class ReleaseError(Exception):
    """The files of the release cannot be built. The message has the reason and the remedy."""


@dataclass(frozen=True)
class Settings:
    """The version that is released, and the repository and images from which it is installed."""

    version: str
    repository: str
    """The owner and the name on GitHub, as the chart has them."""
    digests: Mapping[str, str] = field(default_factory=dict)
    is_snapshot: bool = False
    added: Path | None = None
    """A folder with additional files of the release."""

    @property
    def name(self) -> str:
        """The version in the names of files and images. A snapshot has a suffix."""
        return f"{self.version}-snapshot" if self.is_snapshot else self.version


def name_tool(version: str) -> str:
    """Return the name of ``kubectl-tng`` as built by this Python on this machine."""
    system, machine = platform.system().lower(), platform.machine().lower()
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return f"kubectl-tng-{version}-{system}-{machine}-{python}"


def read_repository() -> str:
    """Return the owner and the name on GitHub, from the chart: everything else follows from it."""
    (source,) = yaml.safe_load((CHART / "Chart.yaml").read_text())["sources"]
    return str(source).removeprefix("https://github.com/")


def find_violations(
    settings: Settings, tag: str | None, text: str, changed: str, repository: str | None = None
) -> list[str]:
    """Return the violations that prevent a release, each with its remedy.

    ``changed``: the uncommitted files, as git status prints them. ``repository``: where the workflow
    runs, if it does.
    """
    found = []
    if repository not in (None, settings.repository):
        found.append(
            f"infra/chart/Chart.yaml names the repository {settings.repository}, and this is "
            f"{repository}: write it there and into the pages (docs/releasing.md, Once)"
        )
    if tag is not None and tag != f"v{settings.version}":
        found.append(
            f"the tag is {tag}, and the version in version.py is {settings.version}: delete "
            f"the tag, and push v{settings.version}, or the version that the tag has"
        )
    if settings.is_snapshot:
        return found
    if not changelog.find_section(text, settings.version):
        found.append(
            f"CHANGELOG.md has no section for {settings.version}: rename the heading "
            f"## [{changelog.UNRELEASED}] to ## [{settings.version}] - YYYY-MM-DD, and put an empty "
            f"## [{changelog.UNRELEASED}] above it. To try it without: make release ARGS=--snapshot"
        )
    if changed:
        files = ", ".join(line.split()[-1] for line in changed.splitlines()[:5])
        found.append(f"there are changes that are not committed ({files}): commit them")
    return found


def render_notes(settings: Settings, text: str) -> str:
    """Return the release notes: links, the images and the section of the changelog."""
    section = changelog.UNRELEASED if settings.is_snapshot else settings.version
    base = f"https://github.com/{settings.repository}/blob/v{settings.version}"
    notes = changelog.point_links_to(changelog.find_section(text, section) or "", base)
    images = "".join(f"- `{name_image(settings, one)}`\n" for one in IMAGES)
    install = f"[How to install]({base}/docs/install.md)"
    return f"{install}, and how to check these files. Images:\n\n{images}\n{notes}\n"


def name_image(settings: Settings, image: str) -> str:
    """Return an image with its tag and, if known, its digest."""
    # Registries require lower case.
    name = f"ghcr.io/{settings.repository.lower()}/{image}:{settings.name}"
    return f"{name}@{settings.digests[image]}" if image in settings.digests else name


def build(settings: Settings, folder: Path) -> None:
    """Build all files in a folder, whose content is deleted first. Raises `ReleaseError`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tracked = _git("ls-files", "-z").rstrip("\0").split("\0")
    prefix = f"tpu-functions-{settings.name}"
    tree = {f"{prefix}/{name}": ROOT / name for name in tracked}
    chart = _render_chart(settings, f"{prefix}/infra/chart")
    archives.write_tar(folder / f"{prefix}.tar.gz", tree, chart)
    sources = archives.list_function_files(tracked)
    archives.write_zip(folder / f"functions-source-{settings.name}.zip", ROOT, sources)
    (folder / MANIFESTS).write_text(render_manifests(settings, write_chart(settings, folder)))
    at = datetime.fromtimestamp(int(_git("log", "-1", "--format=%ct")), UTC)
    for part, requirements in SBOMS.items():
        text = render_sbom(part, settings.name, (ROOT / requirements).read_text(), at)
        (folder / f"{part}.cdx.json").write_text(text)
    bundle.build(folder / name_tool(settings.name), bundle.REQUIREMENTS.read_text())
    for path in sorted(settings.added.iterdir()) if settings.added is not None else ():
        shutil.copy(path, folder / path.name)
    krew.write_plugin(folder, settings.name, settings.repository, ROOT)
    (folder / NOTES).write_text(render_notes(settings, (ROOT / "CHANGELOG.md").read_text()))
    (folder / CHECKSUMS).write_text(archives.render_checksums(folder))


def render_manifests(settings: Settings, chart: Path, program: str | None = None) -> str:
    """Return all manifests of a packaged chart in one file. Raises `ReleaseError`."""
    program = program or shutil.which("helm")
    if program is None:
        raise ReleaseError("helm, which renders the manifests, is not on PATH: install it")
    done = subprocess.run(
        [
            *(program, "template", "tpu-functions", str(chart), f"--set=project={PROJECT}"),
            *("--namespace=tpu-functions", "--no-hooks"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ReleaseError(f"helm template failed: {done.stderr.strip()}")
    return (
        f"# tpu-functions {settings.name}, for one cluster. Replace {PROJECT} by the project of the\n"
        "# topics, and apply it with kubectl apply --server-side --filename.\n"
        + (CHART / "manifests" / "namespace.yaml").read_text()
        + done.stdout
    )


def write_chart(settings: Settings, folder: Path) -> Path:
    """Write the chart as helm packages it, with the release's version and images; return its file."""
    names = _git("ls-files", "-z", str(CHART)).rstrip("\0").split("\0")
    files = {name.replace("infra/chart", "tpu-functions", 1): ROOT / name for name in names}
    target = folder / f"tpu-functions-{settings.name}.tgz"
    archives.write_tar(target, files, _render_chart(settings, "tpu-functions"))
    return target


def _render_chart(settings: Settings, folder: str) -> dict[str, str]:
    """Return the files of the chart that name the release's version and images."""
    chart, values = ((CHART / name).read_text() for name in ("Chart.yaml", "values.yaml"))
    digests = json.dumps(dict(settings.digests))
    return {
        f"{folder}/Chart.yaml": chart.replace(
            f"ersion: {settings.version}\n", f"ersion: {settings.name}\n"
        ),
        f"{folder}/values.yaml": values.replace("  digests: {}", f"  digests: {digests}"),
    }


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ReleaseError(f"git {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout


def _parse_digest(text: str) -> tuple[str, str]:
    found = _DIGEST.fullmatch(text)
    if found is None or found["name"] not in IMAGES:
        raise argparse.ArgumentTypeError(f"{text}: it must be relay=sha256:... or inject-env=...")
    return found["name"], found["digest"]


def _parse_folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text} is not a folder")
    return Path(text)


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Build or check a release. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument(
        "--snapshot",
        action="store_true",
        help="build a trial version without a section in CHANGELOG.md",
    )
    parser.add_argument("--tag", help="the tag that was pushed, to be compared with the version")
    parser.add_argument(
        "--digest", type=_parse_digest, action="append", default=[], metavar="IMAGE=sha256:..."
    )
    parser.add_argument(
        "--add", type=_parse_folder, metavar="FOLDER", help="additional files of the release"
    )
    parser.add_argument(
        "--check", action="store_true", help="only check whether this can be released"
    )
    parser.add_argument("--tool", action="store_true", help="build only kubectl-tng")
    options = parser.parse_args(arguments)
    settings = Settings(
        VERSION, read_repository(), dict(options.digest), options.snapshot, options.add
    )
    folder = ROOT / "build" / "release"
    try:
        text = (ROOT / "CHANGELOG.md").read_text()
        changed = _git("status", "--porcelain")
        here = environment.get("GITHUB_REPOSITORY")
        violations = find_violations(settings, options.tag, text, changed, here)
        for violation in violations:
            print(f"make release: {violation}", file=sys.stderr)
        if violations:
            return 1
        if options.check:
            print(f"{settings.name} can be released")
            return 0
        if options.tool:
            bundle.build(folder / name_tool(settings.name), bundle.REQUIREMENTS.read_text())
        else:
            build(settings, folder)
    except (ReleaseError, bundle.WrongVersionError) as error:
        print(f"make release: {error}", file=sys.stderr)
        return 1
    for path in sorted(folder.iterdir()):
        print(f"{path.stat().st_size:>12,}  {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
