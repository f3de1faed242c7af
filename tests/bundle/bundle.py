"""What is deployed, made as the cloud makes it: files of the repository, an empty environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pathspec import GitIgnoreSpec

ROOT = Path(__file__).parents[2]


def list_uploaded() -> list[str]:
    """The files that ``gcloud`` uploads as the functions' source, by ``.gcloudignore``."""
    spec = GitIgnoreSpec.from_lines((ROOT / ".gcloudignore").read_text().splitlines())
    return sorted(path.relative_to(ROOT).as_posix() for path in _walk(ROOT, spec))


def _walk(folder: Path, spec: GitIgnoreSpec) -> Iterator[Path]:
    """As git and gcloud do, nothing is looked for in a folder that is ignored."""
    for path in folder.iterdir():
        name = path.relative_to(ROOT).as_posix()
        if spec.match_file(f"{name}/" if path.is_dir() else name):
            continue
        if path.is_dir():
            yield from _walk(path, spec)
        else:
            yield path


def copy_uploaded(folder: Path) -> None:
    """Copy them into a folder."""
    for name in list_uploaded():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)


def make_environment(folder: Path) -> Path:
    """A new virtual environment with nothing in it; returns its folder of programs."""
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    return folder / "bin"


def pip(programs: Path) -> list[str]:
    """How pip is run for that environment: by the one of this, which need not be installed there."""
    return [sys.executable, "-m", "pip", "--python", str(programs / "python")]


def run(command: list[str], cwd: Path | None = None) -> None:
    """Run a program to its end; its output is shown when it fails."""
    kept = ("HOME", "PATH", "LANG")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    # How packages are reached from here; most of them are never imported, and need not be compiled.
    environment |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    environment["PIP_NO_COMPILE"] = "1"
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
