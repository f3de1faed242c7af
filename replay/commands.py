"""What the commands share: options, targets, questions, and publishing with a report."""

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any

import typer

from replay.completion import complete_groups
from replay.dependencies import Dependencies
from replay.errors import ReplayError, in_plain_words
from replay.output import Format, print_sent
from replay.publications import Publication, Sent, publish
from shared.base.fields import count
from shared.base.names import is_dns_label, is_dns_subdomain
from shared.ports.errors import CallError
from shared.triggers import routes

MANY = 20
"""More recorded messages than this are published only after a question."""
MAX_DURATION = timedelta(days=3650)
"""Longer than Cloud Logging can keep entries."""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(rf"(\d{{1,12}})([{''.join(_UNITS)}])", re.ASCII)


Topic = StrEnum("Topic", {step: step for step in routes.GROUP_STEPS})  # type: ignore[misc]
"""The steps that accept messages about a group."""
AnyStep = StrEnum("AnyStep", {step: step for step in routes.ROUTES})  # type: ignore[misc]
"""All topics of an installation but the dead letters."""


def name_argument(help_text: str, complete: Callable[..., list[str]]) -> Any:
    """An argument that names an object, completed by the shell."""
    return typer.Argument(
        metavar="NAMESPACE/NAME", help=help_text, show_default=False, autocompletion=complete
    )


def duration_option(name: str, help_text: str) -> Any:
    """An option that `parse_duration` parses."""
    return typer.Option(name, metavar="DURATION", help=help_text)


Group = Annotated[str, name_argument("One group.", complete_groups)]
Output = Annotated[Format, typer.Option("--output", "-o", help="The output format.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]
Step = Annotated[
    Topic | None, typer.Option("--step", help="The step to trigger.", show_default=False)
]


def get_dependencies(ctx: typer.Context) -> Dependencies:
    """The dependencies of a command, opened now. Raises `SettingsError`."""
    make: Callable[[], Dependencies] = ctx.obj
    return make()


def parse_target(text: str) -> tuple[str, str]:
    """The namespace and name of an object. Raises `typer.BadParameter`."""
    namespace, slash, name = text.partition("/")
    if not (slash and is_dns_label(namespace) and is_dns_subdomain(name)):
        raise typer.BadParameter(
            f"{text!r} must be NAMESPACE/NAME, as in default/my-slice", param_hint="NAMESPACE/NAME"
        )
    return namespace, name


def parse_duration(text: str) -> timedelta:
    """A duration such as ``90s``, ``30m``, ``2h`` or ``1d``. Raises `typer.BadParameter`."""
    match = _DURATION.fullmatch(text)
    if match is None or not int(match[1]):
        raise typer.BadParameter(f"{text!r} must be a duration, as in 90s, 30m, 2h or 1d")
    seconds = int(match[1]) * _UNITS[match[2]]
    if seconds > MAX_DURATION.total_seconds():
        raise typer.BadParameter(f"{text!r} must be at most {MAX_DURATION.days}d")
    return timedelta(seconds=seconds)


def ask(
    deps: Dependencies, question: str, *, yes: bool, undone: str = "nothing was published"
) -> None:
    """Ask the user on a terminal. Raises `ReplayError` if the answer is no."""
    if yes or not deps.is_interactive:
        return
    if not typer.confirm(question, err=True):
        raise ReplayError(undone)


def publish_many(
    deps: Dependencies,
    publications: Sequence[Publication],
    *,
    dry_run: bool,
    yes: bool,
    output: Format,
) -> None:
    """Publish, and ask before if there are many. Raises `ReplayError`."""
    if len(publications) > MANY and not dry_run:
        ask(deps, f"Publish {count(len(publications), 'message')}?", yes=yes)
    publish_and_print(deps, publications, dry_run=dry_run, output=output)


def publish_and_print(
    deps: Dependencies, publications: Sequence[Publication], *, dry_run: bool, output: Format
) -> None:
    """Publish, and print what was published even if it is not all. Raises `ReplayError`."""
    source: Iterable[Sent] = map(Sent, publications) if dry_run else publish(deps, publications)
    print_published(deps, source, len(publications), output)


def print_published(
    deps: Dependencies, source: Iterable[Sent], number: int, output: Format
) -> None:
    """Print what ``source`` publishes, even if it is not all. Raises `ReplayError`."""
    sent: list[Sent] = []
    try:
        sent.extend(source)
    except CallError as error:
        rest = f"{len(sent)} of {number} were published; it is safe to repeat the command"
        raise ReplayError(f"{in_plain_words(error)} ({rest})") from error
    finally:
        print_sent(sent, deps.settings.topic_prefix, output)
