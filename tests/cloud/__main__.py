"""Ask a real project what is not known of Compute Engine (``make test-cloud PROJECT=...``).

Makes the cheapest resources that answer each question, deletes all of them, also after Ctrl-C, and
writes the answers to a file without names. --dry-run shows what it would make, and calls nothing.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import string
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from replay import output
from replay.cloud_logging import CloudLogging, Logs
from replay.output import print_paragraph
from shared.base.errors import CallError as LogError
from tests.cloud.answers import Answer, Report, print_answers, print_questions
from tests.cloud.project import CallError, Project, Time, Unanswered, find_runs
from tests.cloud.questions import FOREIGN_ACCOUNT, WITH_TPU, Question, find_questions

DONE, UNANSWERED, USAGE, LEFT = 0, 1, 2, 3
ZONE = "us-east5-b"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_EXIT_CODES = (
    "exit codes: 0 all questions were answered, 1 some were not, 2 wrong options, "
    "3 something is left in the project, 128 + N ended by signal N"
)


class Interrupted(KeyboardInterrupt):
    """A signal has come; ``signal`` is its number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


class Signals:
    """Turns the first signal into `Interrupted`; those after it do not stop the cleanup."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._is_armed = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle signals; gives back the handlers that were there."""
        heeded = [one for one in _SIGNALS if signal.getsignal(one) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._receive) for number in heeded}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def raised(self) -> Iterator[None]:
        """The part that a signal ends."""
        self._is_armed = True
        try:
            yield
        finally:
            self._is_armed = False

    def _receive(self, number: int, _frame: Any) -> None:
        if self._is_armed:
            self._is_armed = False
            raise Interrupted(number)
        say(f"Deleting what was made; kill -9 ends this, and --clean {self._run} then deletes it.")


def say(text: str) -> None:
    """A message on stderr; a terminal that has been closed does not stop the cleanup."""
    with suppress(OSError):
        output.say(text)


@dataclass(frozen=True)
class Ways:
    """What a run needs from outside."""

    time: Time = field(
        default_factory=lambda: Time(lambda: datetime.now(UTC), time.monotonic, time.sleep)
    )
    make_logs: Callable[[], Logs] = CloudLogging


def main(arguments: Sequence[str] | None = None, ways: Ways | None = None) -> int:
    """The exit code."""
    ways = ways or Ways()
    parser = _make_parser()
    options = parser.parse_args(arguments)
    try:
        given = {FOREIGN_ACCOUNT: options.foreign_account, WITH_TPU: options.with_tpu}
        questions = find_questions(options.only, [option for option in given if given[option]])
    except ValueError as error:
        parser.error(str(error))
    if options.dry_run:
        print_questions(questions)
        return DONE
    run = "".join(random.choices(string.ascii_lowercase + string.digits, k=6))
    project = Project(
        options.project,
        options.zone,
        run,
        open_clients(options.endpoint),
        ways.make_logs(),
        ways.time,
        subnetwork=options.subnetwork,
        foreign_account=options.foreign_account,
    )
    from google.auth.exceptions import GoogleAuthError
    from requests import RequestException

    try:
        if options.clean:
            return _clean(project, "" if options.clean == "all" else options.clean)
        return _run(project, questions, options)
    except CallError as error:
        say(f"Error: {error}")
    except GoogleAuthError as error:
        say(f"Error: no credentials ({error}). Run: gcloud auth application-default login")
    except RequestException as error:
        say(f"Error: Compute Engine does not answer: {error}")
    return UNANSWERED


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.cloud",
        description=(__doc__ or "").replace("``", ""),
        epilog=_EXIT_CODES,
    )
    add = parser.add_argument
    add("--project", required=True, type=_name, help="the project's id")
    add("--zone", default=ZONE, type=_name, help=f"where VMs are made ({ZONE})")
    add("--dry-run", action="store_true", help="show what would be made and its cost; call nothing")
    add("--only", action="append", default=[], metavar="QUESTION", help="only this one; repeatable")
    add(WITH_TPU, action="store_true", help="ask also what may make a TPU VM for minutes")
    add("--subnetwork", default="", help="projects/P/regions/R/subnetworks/S; else network default")
    add("--answers", type=Path, metavar="FILE", help="where the answers go (answers-RUN.json)")
    add("--keep-names", action="store_true", help="keep the project's id and number in the answers")
    add("--clean", nargs="?", const="all", metavar="RUN", type=_name,
        help="delete what a run has left that was killed, or what all runs have left")  # fmt: skip
    add(FOREIGN_ACCOUNT, default="", metavar="EMAIL",
        help="ask also with a service account of the project that you may not act as")  # fmt: skip
    add("--endpoint", default="", metavar="URL", help="another address of Compute Engine")
    return parser


def _name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9.:-]*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name")
    return text


def open_clients(endpoint: str) -> Callable[[str], Any]:
    """The client library's clients, by service; anonymous at another endpoint."""
    from google.api_core.client_options import ClientOptions
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import compute_v1

    @cache
    def get(service: str) -> Any:
        name = "".join(word.capitalize() for word in service.split("_")) + "Client"
        if not endpoint:
            return getattr(compute_v1, name)()
        return getattr(compute_v1, name)(
            credentials=AnonymousCredentials(), client_options=ClientOptions(api_endpoint=endpoint)
        )

    return get


def _run(project: Project, questions: Sequence[Question], options: argparse.Namespace) -> int:
    """Ask, delete, report. Raises `CallError` before anything is made."""
    if project.list_names():
        say(f"Error: {project.id} has names of a run {project.run}. Start again: it gets another.")
        return UNANSWERED
    others = project.list_marked()
    if others:
        names = ", ".join(find_runs(others))
        say(f"Other runs are going on or have left something: {names}. See --clean.")
    path = options.answers or Path(f"answers-{project.run}.json")
    report = Report(
        path, project.id, project.zone, project.run, project.time.now(), options.keep_names
    )
    answers: list[Answer] = []
    try:
        report.write(answers, [])
    except OSError as error:
        say(f"Error: --answers: {error}")
        return USAGE
    say(f"Run {project.run}: {len(questions)} questions, in {project.id}, {project.zone}.")
    number, signals = 0, Signals(project.run)
    with signals.handled():
        try:
            with signals.raised():
                for question in questions:
                    say(f"{question.id}: {question.asks}")
                    answers.append(_ask(project, question))
                    report.write(answers, [])
        except Interrupted as interrupted:
            number = interrupted.signal
            say(f"Interrupted. Deleting what run {project.run} has made ...")
        finally:
            left = _remove(project)
        report.write(answers, left)
    print_answers(answers)
    print_paragraph(_summarize(answers, len(questions), path))
    if left:
        return LEFT
    if number:
        return 128 + number
    return UNANSWERED if any(answer.error for answer in answers) else DONE


def _ask(project: Project, question: Question) -> Answer:
    """Ask one question, and delete what was made for it; an error is its answer."""
    project.evidence.clear()
    facts, error = {}, ""
    try:
        facts = question.ask(project)
    except (CallError, Unanswered, LogError) as known:
        error = str(known)
    except Exception as unknown:  # noqa: BLE001 - one question never stops the others
        error = f"{type(unknown).__name__}: {unknown}"
    project.remove_made(say)
    return Answer(question, facts, error, tuple(project.evidence))


def _remove(project: Project) -> list[str]:
    """Delete what was recorded, then what lists show; what is left."""
    from google.auth.exceptions import GoogleAuthError
    from requests import RequestException

    left = list(map(str, project.remove_made(say)))
    try:
        left += [
            name for name in map(str, project.remove_listed(project.run, say)) if name not in left
        ]
    except (CallError, GoogleAuthError, RequestException) as error:
        left.append(f"what could not be listed ({error})")
    if left:
        say(f"Left in {project.id}: {', '.join(left)}. Delete it with --clean {project.run}.")
    else:
        say(f"Nothing of run {project.run} is left in {project.id}.")
    return left


def _clean(project: Project, run: str) -> int:
    """Delete what a run, or all, have left."""
    found = project.list_marked(run)
    say(f"Found of runs that were killed: {', '.join(map(str, found)) or 'nothing'}.")
    left = project.remove_listed(run, say)
    say(f"Left: {', '.join(map(str, left)) or 'nothing'}.")
    return LEFT if left else DONE


def _summarize(answers: Sequence[Answer], asked: int, path: Path) -> str:
    answered = [answer for answer in answers if not answer.error]
    differ = sum(answer.verdict == "differs" for answer in answered)
    return (
        f"{len(answered)} of {asked} questions answered; {differ} differ from what is assumed."
        f" The answers are in {path}; docs/test-cloud.md says how to send them in."
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # nobody reads the output any more, as behind ``| head``
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
