"""Test assumptions about Compute Engine in a real project (``make test-cloud PROJECT=...``).

For each question, it creates the cheapest resources that answer it. It deletes all of them, also after
Ctrl-C, and writes the answers to a file without names. --dry-run lists the resources and calls nothing.
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
from shared.ports.errors import CallError as LogError
from tools.cloud.answers import Answer, Report, print_answers, print_questions
from tools.cloud.flight import Flight, RecordedLogs
from tools.cloud.project import CallError, Project, Time, Unanswered, list_runs
from tools.cloud.questions import FOREIGN_ACCOUNT, WITH_TPU, Question, select_questions

DONE, UNANSWERED, USAGE, LEFTOVERS = 0, 1, 2, 3
ZONE = "us-east5-b"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_EXIT_CODES = (
    "exit codes: 0 all questions were answered, 1 some were not, 2 wrong options, "
    "3 resources are left in the project, 128 + N ended by signal N"
)


class Interrupted(KeyboardInterrupt):
    """The process received a signal; ``signal`` is its number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


class Signals:
    """Raises `Interrupted` for the first signal; later signals do not stop the cleanup."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._is_armed = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle signals; restore the previous handlers at the end."""
        handled = [one for one in _SIGNALS if signal.getsignal(one) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._receive) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Within this context, a signal raises `Interrupted`."""
        self._is_armed = True
        try:
            yield
        finally:
            self._is_armed = False

    def _receive(self, number: int, _frame: Any) -> None:
        if self._is_armed:
            self._is_armed = False
            raise Interrupted(number)
        print_message(
            f"Deleting the created resources. After a kill -9, --clean {self._run} deletes them."
        )


def print_message(text: str) -> None:
    """Print a message on stderr; a closed terminal does not stop the cleanup."""
    with suppress(OSError):
        output.say(text)


@dataclass(frozen=True)
class Dependencies:
    """The clock and the logs that a run uses; tests replace them."""

    time: Time = field(
        default_factory=lambda: Time(lambda: datetime.now(UTC), time.monotonic, time.sleep)
    )
    open_logs: Callable[[], Logs] = CloudLogging


def main(arguments: Sequence[str] | None = None, dependencies: Dependencies | None = None) -> int:
    """Run the suite and return the exit code."""
    dependencies = dependencies or Dependencies()
    parser = _make_parser()
    options = parser.parse_args(arguments)
    try:
        values = {FOREIGN_ACCOUNT: options.foreign_account, WITH_TPU: options.with_tpu}
        questions = select_questions(options.only, [name for name in values if values[name]])
    except ValueError as error:
        parser.error(str(error))
    if options.dry_run:
        print_questions(questions)
        return DONE
    run = "".join(random.choices(string.ascii_lowercase + string.digits, k=6))
    against = "simulation" if options.endpoint else "Compute Engine"
    flight = Flight(options.project, options.zone, run, dependencies.time.now(), against)
    project = Project(
        options.project,
        options.zone,
        run,
        open_clients(options.endpoint, flight.watch),
        RecordedLogs(dependencies.open_logs(), flight),
        dependencies.time,
        subnetwork=options.subnetwork,
        foreign_account=options.foreign_account,
    )
    from google.auth.exceptions import GoogleAuthError
    from requests import RequestException

    try:
        if options.clean:
            return _clean(project, "" if options.clean == "all" else options.clean)
        return _run(project, questions, options, flight)
    except CallError as error:
        print_message(f"Error: {error}")
    except GoogleAuthError as error:
        print_message(
            f"Error: no credentials ({error}). Run: gcloud auth application-default login"
        )
    except RequestException as error:
        print_message(f"Error: Compute Engine does not answer: {error}")
    return UNANSWERED


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.cloud",
        description=(__doc__ or "").replace("``", ""),
        epilog=_EXIT_CODES,
    )
    add = parser.add_argument
    add("--project", required=True, type=_name, help="the project's id")
    add("--zone", default=ZONE, type=_name, help=f"the zone of the VMs ({ZONE})")
    add("--dry-run", action="store_true", help="list resources and cost; make no calls")
    add(
        "--only",
        action="append",
        default=[],
        metavar="QUESTION",
        help="only this question; repeatable",
    )
    add(WITH_TPU, action="store_true", help="also questions that may create a TPU VM for minutes")
    add("--subnetwork", default="", help="projects/P/regions/R/subnetworks/S (network default)")
    add("--answers", type=Path, metavar="FILE", help="file for the answers (answers-RUN.json)")
    add("--flight", type=Path, metavar="FILE",
        help="file for all requests and answers (flight-RUN.json, beside the answers)")  # fmt: skip
    add("--keep-names", action="store_true", help="keep the project's id and number in the answers")
    add("--clean", nargs="?", const="all", metavar="RUN", type=_name,
        help="delete the resources that a killed run left, or those of all runs")  # fmt: skip
    add(FOREIGN_ACCOUNT, default="", metavar="EMAIL",
        help="also questions with a service account of the project that you cannot act as")  # fmt: skip
    add("--endpoint", default="", metavar="URL", help="another address of Compute Engine")
    return parser


def _name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9.:-]*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a name")
    return text


def open_clients(
    endpoint: str, prepare: Callable[[Any], None] = lambda _: None
) -> Callable[[str], Any]:
    """Return a getter of the library's client for a service; anonymous if an endpoint is given.

    ``prepare`` is called with each new client's HTTP session.
    """
    from google.api_core.client_options import ClientOptions
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import compute_v1

    @cache
    def get(service: str) -> Any:
        name = "".join(word.capitalize() for word in service.split("_")) + "Client"
        options = {}
        if endpoint:
            options["credentials"] = AnonymousCredentials()
            options["client_options"] = ClientOptions(api_endpoint=endpoint)
        client = getattr(compute_v1, name)(**options)
        prepare(client.transport._session)
        return client

    return get


def _run(
    project: Project, questions: Sequence[Question], options: argparse.Namespace, flight: Flight
) -> int:
    """Ask the questions, delete the resources, print the answers.

    Raises `CallError` only before it creates a resource.
    """
    if project.list_names():
        print_message(
            f"Error: {project.id} already has resources with names of run {project.run}."
            " Start the command again: it chooses another name."
        )
        return UNANSWERED
    others = project.list_marked()
    if others:
        names = ", ".join(list_runs(others))
        print_message(f"Other runs are in progress or left resources: {names}. See --clean.")
    path = options.answers or Path(f"answers-{project.run}.json")
    report = Report(
        path, project.id, project.zone, project.run, project.time.now(), options.keep_names
    )
    flight_path = options.flight or path.with_name(f"flight-{project.run}.json")
    answers: list[Answer] = []

    def write(left: Sequence[str]) -> None:
        report.write(answers, left)
        flight.write(flight_path)

    try:
        write([])
    except OSError as error:
        print_message(f"Error: --answers or --flight: {error}")
        return USAGE
    print_message(
        f"Run {project.run}: {len(questions)} questions, in {project.id}, {project.zone}."
    )
    number, signals = 0, Signals(project.run)
    with signals.handled():
        try:
            with signals.raised():
                for question in questions:
                    print_message(f"{question.id}: {question.text}")
                    answers.append(_ask(project, question, flight))
                    write([])
        except Interrupted as interrupted:
            number = interrupted.signal
            print_message(f"Interrupted. Deleting the resources of run {project.run} ...")
        finally:
            left = _remove(project)
        write(left)
    print_answers(answers)
    print_paragraph(_summarize(answers, len(questions), path, flight_path))
    if left:
        return LEFTOVERS
    if number:
        return 128 + number
    return UNANSWERED if any(answer.error for answer in answers) else DONE


def _ask(project: Project, question: Question, flight: Flight) -> Answer:
    """Ask one question and delete its resources. The answer records an error."""
    project.evidence.clear()
    facts, error = {}, ""
    flight.question = question.id
    try:
        facts = question.ask(project)
    except (CallError, Unanswered, LogError) as known:
        error = str(known)
    except Exception as unknown:  # noqa: BLE001 - a failed question does not stop the others
        error = f"{type(unknown).__name__}: {unknown}"
    finally:
        flight.question = ""
    project.remove_created(print_message)
    return Answer(question, facts, error, tuple(project.evidence))


def _remove(project: Project) -> list[str]:
    """Delete the recorded resources, then the listed ones; return those that are left."""
    from google.auth.exceptions import GoogleAuthError
    from requests import RequestException

    left = list(map(str, project.remove_created(print_message)))
    try:
        listed = map(str, project.remove_listed(project.run, print_message))
        left += [name for name in listed if name not in left]
    except (CallError, GoogleAuthError, RequestException) as error:
        left.append(f"resources that could not be listed ({error})")
    if left:
        print_message(
            f"Left in {project.id}: {', '.join(left)}. Delete with --clean {project.run}."
        )
    else:
        print_message(f"No resource of run {project.run} is left in {project.id}.")
    return left


def _clean(project: Project, run: str) -> int:
    """Delete the resources that a run left, or those of all runs."""
    found = project.list_marked(run)
    print_message(f"Found: {', '.join(map(str, found)) or 'nothing'}.")
    left = project.remove_listed(run, print_message)
    print_message(f"Left: {', '.join(map(str, left)) or 'nothing'}.")
    return LEFTOVERS if left else DONE


def _summarize(answers: Sequence[Answer], asked: int, path: Path, flight: Path) -> str:
    answered = [answer for answer in answers if not answer.error]
    differ = sum(answer.verdict == "differs" for answer in answered)
    return (
        f"{len(answered)} of {asked} questions answered; {differ} differ from the assumption."
        f" The answers are in {path}, all requests in {flight}. See docs/test-cloud.md for how to send"
        " them."
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # the reader of the output has ended, as in ``| head``
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
