"""The deployed functions as Google Cloud builds them: uploaded files, and a new environment."""

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
    """List files; as in git and gcloud, an ignored folder is not searched."""
    for path in folder.iterdir():
        name = path.relative_to(ROOT).as_posix()
        if spec.match_file(f"{name}/" if path.is_dir() else name):
            continue
        if path.is_dir():
            yield from _walk(path, spec)
        else:
            yield path


def copy_uploaded(folder: Path) -> None:
    """Copy the uploaded files into a folder."""
    for name in list_uploaded():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)


def make_environment(folder: Path) -> Path:
    """Create an empty virtual environment; return its folder of programs."""
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    return folder / "bin"


def pip(programs: Path) -> list[str]:
    """The command of pip for that environment; it uses the pip of this one."""
    return [sys.executable, "-m", "pip", "--python", str(programs / "python")]


def run(command: list[str], cwd: Path | None = None) -> None:
    """Run a program; if it fails, the error has its output."""
    passed = ("HOME", "PATH", "LANG")
    environment = {name: os.environ[name] for name in passed if name in os.environ}
    # pip's settings, such as an index. Most packages are not imported, so they are not compiled.
    environment |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    environment["PIP_NO_COMPILE"] = "1"
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
