"""``python -m replay``, and ``kubectl-tng`` as one file."""

from __future__ import annotations

import os
import sys

from replay.app import app
from replay.completion import PROGRAM, VARIABLE, answer_kubectl, is_completer


def run_plugin() -> None:
    """Run as ``kubectl tng``, or complete its command line."""
    if is_completer(sys.argv[0]):
        answer_kubectl(app, sys.argv[1:])
    else:
        _run("kubectl tng")


def _run(name: str) -> None:
    """Run by this name; shells complete the program by the name of its file."""
    is_completion = VARIABLE in os.environ or any("-completion" in word for word in sys.argv[1:])
    try:
        app(prog_name=PROGRAM if is_completion else name)
    finally:
        _flush()


def _flush() -> None:
    """Write what is left of the output, unless nobody reads it any more, as behind ``| head``."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    _run("python -m replay")
