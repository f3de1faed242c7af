"""``python -m replay``, and ``kubectl-tng`` as one file."""

import io
import os
import sys
from pathlib import Path

from replay.app import app
from replay.completion import COMPLETER, PROGRAM, VARIABLE, answer_kubectl


def run_plugin() -> None:
    """Run as ``kubectl tng``, or complete its command line."""
    if Path(sys.argv[0]).name == COMPLETER:
        answer_kubectl(app, sys.argv[1:])
    else:
        _run("kubectl tng")


def _run(name: str) -> None:
    """Run by this name; shells complete the program by the name of its file."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a locale may lack characters of others' texts
    is_completion = VARIABLE in os.environ or any("-completion" in word for word in sys.argv[1:])
    try:
        app(prog_name=PROGRAM if is_completion else name)
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # the output's reader has ended, as behind ``| head``
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    _run("python -m replay")
