"""Execute a Dockerfile without Docker: each stage is a folder, with a virtual environment as its Python.

Only the instructions of the project's Dockerfiles are supported. The base image must be this Python
version.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pathspec import GitIgnoreSpec

from tests.bundle.bundle import ROOT, make_environment, pip, run

_IGNORED = frozenset({"USER", "EXPOSE"})


@dataclass
class Image:
    """A stage after its instructions: the folder of its ``/``, and the command of a container."""

    root: Path
    folder: str = "/"
    environment: dict[str, str] = field(default_factory=dict)
    entry_point: list[str] = field(default_factory=list)

    def inside(self, path: str) -> Path:
        """Return the path in the file system of this machine for a path of the image."""
        return self.root / os.path.join(self.folder, path).lstrip("/")

    def command(self, words: list[str]) -> list[str]:
        """Translate a command of the image to programs and absolute paths in the folder."""
        programs = self.root / "usr" / "local" / "bin"
        program = pip(programs) if words[0] == "pip" else [str(programs / words[0])]
        return [*program, *(self._move(word) for word in words[1:])]

    @contextmanager
    def started(self, environment: Mapping[str, str], log: Path) -> Iterator[None]:
        """Run a container until the end of the block; it must then exit with 0 after SIGTERM."""
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.command(self.entry_point),
                cwd=self.inside("."),
                env={**self.environment, **environment},
                stdout=output,
                stderr=output,
            )
        try:
            yield
        finally:
            process.terminate()
            code = process.wait()
        assert code == 0, log.read_text()

    def _move(self, word: str) -> str:
        name, sign, value = word.partition("=")
        if not sign:
            name, value = "", word
        moved = f"{self.root}{value}" if value.startswith("/") else value
        return f"{name}{sign}{moved}"


def read_steps(text: str) -> list[tuple[str, str]]:
    """List the instructions with their arguments."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [
        (line.split(maxsplit=1)[0], line.split(maxsplit=1)[1].strip())
        for line in joined.splitlines()
        if line.strip()
    ]


def build(dockerfile: Path, folder: Path) -> Image:
    """Execute the instructions; return the last stage."""
    stages: dict[str, Image] = {}
    image = Image(folder)
    for instruction, rest in read_steps(dockerfile.read_text()):
        if instruction == "FROM":
            words = rest.split()
            assert re.fullmatch(r"python:3\.\d+(-slim)?(@sha256:[0-9a-f]{64})?", words[0]), (
                f"{words[0]} is not this Python"
            )
            name = words[2] if len(words) == 3 else str(len(stages))
            image = stages[name] = Image(folder / name)
            make_environment(image.root / "usr" / "local")
        elif instruction == "COPY":
            _copy(image, rest.split(), stages)
        elif instruction == "RUN":
            run(image.command(shlex.split(rest)), image.inside("."))
        elif instruction == "WORKDIR":
            image.folder = rest
            image.inside(".").mkdir(parents=True, exist_ok=True)
        elif instruction == "ENV":
            image.environment |= dict(word.split("=", 1) for word in shlex.split(rest))
        elif instruction == "ENTRYPOINT":
            image.entry_point = json.loads(rest)
        else:
            assert instruction in _IGNORED, f"{instruction} is not supported"
    return image


def _copy(image: Image, words: list[str], stages: dict[str, Image]) -> None:
    *sources, target = words
    destination = image.inside(target)
    if sources[0].startswith("--from="):
        other = stages[sources.pop(0).removeprefix("--from=")]
        for source in sources:
            shutil.copytree(other.inside(source), destination, dirs_exist_ok=True)
        return
    destination.mkdir(parents=True, exist_ok=True)
    for pattern in sources:
        found = sorted(ROOT.glob(pattern))
        assert found, f"COPY {pattern}: no file matches"
        for path in found:
            if path.is_dir():
                shutil.copytree(path, destination, ignore=_ignored, dirs_exist_ok=True)
            else:
                shutil.copy(path, destination)


def _ignored(folder: str, names: list[str]) -> set[str]:
    """The names that ``.dockerignore`` excludes."""
    spec = GitIgnoreSpec.from_lines((ROOT / ".dockerignore").read_text().splitlines())
    base = Path(folder).relative_to(ROOT)
    return {name for name in names if spec.match_file((base / name).as_posix())}
