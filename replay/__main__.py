"""``python -m replay``, and ``kubectl-tng`` as one file."""

import io
import os
import sys
from pathlib import Path
from threading import Timer
from typing import Any
from urllib.request import getproxies_environment

from replay.completion import COMPLETER, PROGRAM, VARIABLE, answer_kubectl

READING = {"explain", "get", "timeline", "leaks", "rehearse", "list"}
"""Verbs that print nothing before they have read all."""
LATE, LATE_S = "Still reading; the answer follows.", 2.5


def run_plugin() -> None:
    """Run as ``kubectl tng``, or complete its command line."""
    if Path(sys.argv[0]).name == COMPLETER:
        answer_kubectl(_load(), sys.argv[1:])
    else:
        _run("kubectl tng")


def _run(name: str) -> None:
    """Run by this name; shells complete the program by the name of its file."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a locale may lack characters of others' texts
    is_completion = VARIABLE in os.environ or any("-completion" in word for word in sys.argv[1:])
    late = Timer(LATE_S, _announce_late)
    late.daemon = True
    try:
        if READING.intersection(sys.argv):
            late.start()
        _load()(prog_name=PROGRAM if is_completion else name)
    except KeyboardInterrupt:  # while modules are imported; the commands answer it themselves
        sys.exit(130)
    finally:
        late.cancel()
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # the output's reader has ended, as behind ``| head``
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _announce_late() -> None:
    """Say that the command runs, in the place of its progress on a terminal."""
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{clear}{LATE}", file=sys.stderr, flush=True)


def _load() -> Any:
    """The commands. As in kubectl, nothing on this machine is called through a proxy."""
    if proxies := getproxies_environment():
        own = "localhost,127.0.0.1,127.0.0.0/8,::1"
        os.environ["no_proxy"] = ",".join(filter(None, (proxies.get("no"), own)))
    from replay.app import app

    return app


if __name__ == "__main__":
    _run("python -m replay")
