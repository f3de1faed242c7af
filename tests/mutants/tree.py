"""Copies of the tree, in which mutants and their tests run: the tree itself is never changed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOT_LEFT_TO_OTHER_TARGETS = ("-m", "not slow and not real")
"""The tests of ``make test``."""


def list_files(*folders: str) -> list[str]:
    """The files that git knows or would add, by their paths."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *folders]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted(path for path in output.split("\0") if path and (ROOT / path).is_file())


@contextmanager
def copied_tree() -> Iterator[Path]:
    """A copy of the tree, as a repository of its own because some tests ask git for files."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder) / "tree"
        for path in list_files():
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, copy / path)
        identity = ("-c", "user.name=mutants", "-c", "user.email=mutants@localhost")
        for command in (("init", "--quiet"), ("add", "--all"), ("commit", "--quiet", "-m", "copy")):
            subprocess.run(["git", *identity, *command], cwd=copy, check=True)
        yield copy


def run_pytest(
    copy: Path, arguments: Sequence[str], timeout: float | None = None, **environment: str
) -> tuple[int | None, str]:
    """Run pytest in a copy: its exit code, None if it took too long, and its output."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "tests.mutants.plugin", *NOT_LEFT_TO_OTHER_TARGETS, *arguments]
    with subprocess.Popen(
        command,
        cwd=copy,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, output
