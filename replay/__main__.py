"""``python -m replay``, and ``kubectl-tng`` as one file."""

from __future__ import annotations

import sys

from replay.app import app
from replay.completion import answer_kubectl, is_completer


def run_plugin() -> None:
    """Run as ``kubectl tng``, or complete its command line."""
    if is_completer(sys.argv[0]):
        answer_kubectl(app, sys.argv[1:])
    else:
        app(prog_name="kubectl tng")


if __name__ == "__main__":
    app(prog_name="python -m replay")
