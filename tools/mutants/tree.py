"""Copies of the tree, in which mutants and their tests run: the tree itself is never changed."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ("-m", "not slow and not real")
"""The tests of ``make test``."""
_SLOW_IMPORTS = ("aiohttp", "cryptography.x509", "hypothesis", "kubernetes.client", "structlog")


def list_files(*folders: str) -> list[str]:
    """The paths of the files that git tracks or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *folders]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted(path for path in output.split("\0") if path and (ROOT / path).is_file())


@contextmanager
def copied_tree() -> Iterator[Path]:
    """A copy of the tree in its own repository, because some tests list files with git."""
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
    """Run pytest in a copy: its exit code, None if it took too long, and its output.

    The process is a fork of this one, so that it need not import the client libraries again.
    """
    for name in _SLOW_IMPORTS:
        importlib.import_module(name)
    output = copy.parent / "output"
    command = ["-q", "-p", "no:cacheprovider", "-p", "tools.mutants.plugin", *TESTS, *arguments]
    process = multiprocessing.get_context("fork").Process(
        target=_run_child, args=(copy, command, output, environment)
    )
    process.start()
    process.join(timeout)
    if process.exitcode is None and process.pid is not None:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
        return None, output.read_text()
    return process.exitcode, output.read_text()


def _run_child(
    copy: Path, command: list[str], output: Path, environment: Mapping[str, str]
) -> None:
    os.setsid()
    gc.freeze()  # otherwise the garbage collector would touch, and so copy, the memory of the parent
    with output.open("w") as stream:
        for descriptor in (sys.stdout, sys.stderr):
            os.dup2(stream.fileno(), descriptor.fileno())
    os.chdir(copy)
    os.environ.update(environment)
    sys.path[0] = str(copy)
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in environment
    folders = {path.name for path in copy.iterdir()}
    for name in [name for name in sys.modules if name.partition(".")[0] in folders]:
        del sys.modules[name]
    sys.exit(pytest.main(command))
