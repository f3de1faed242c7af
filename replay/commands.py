"""What the commands share: kubectl's options, targets, questions, and publishing with a report."""

import re
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from replay.completion import complete_groups, find_kind
from replay.dependencies import Choice, Dependencies
from replay.errors import ReplayError, in_plain_words
from replay.output import Format, print_note, print_sent, say
from replay.publications import Publication, Sent, publish
from shared.base.environment import SettingsError
from shared.base.fields import count
from shared.base.names import KIND, is_dns_label, is_dns_subdomain
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


NAME = "NAME"
"""The metavar of what names an object."""


def share_options(group: TyperGroup, options: Sequence[Any]) -> None:
    """Accept kubectl's options after the verb, too; its help, as kubectl's, does not repeat them."""
    for command in group.commands.values():
        for option in map(copy, options):
            option.hidden, option.expose_value = True, False
            command.params.append(option)
        if isinstance(command, TyperGroup):
            share_options(command, options)


def _keep(ctx: typer.Context, parameter: typer.CallbackParam, value: str) -> str:
    """Keep the value of an option of `Choice` in the context, which all commands share."""
    if value and parameter.name == "namespace" and not is_dns_label(value):
        raise typer.BadParameter(f"{value!r} must be the name of a namespace")
    if value:
        ctx.meta[str(parameter.name)] = value
    return value


def choice_option(names: Sequence[str], metavar: str, help_text: str) -> Any:
    """An option of `Choice`."""
    return typer.Option(*names, metavar=metavar, help=help_text, callback=_keep, show_default=False)


def name_argument(help_text: str) -> Any:
    """An argument that names an object, completed by the shell."""
    return typer.Argument(
        metavar=NAME, help=help_text, show_default=False, autocompletion=complete_groups
    )


def duration_option(name: str, help_text: str) -> Any:
    """An option that `parse_duration` parses."""
    return typer.Option(name, metavar="DURATION", help=help_text)


Group = Annotated[str, name_argument("One group.")]
Output = Annotated[Format, typer.Option("--output", "-o", help="The output format.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]
Step = Annotated[
    Topic | None, typer.Option("--step", help="The step to trigger.", show_default=False)
]


def get_dependencies(ctx: typer.Context, *, needs_settings: bool = True) -> Dependencies:
    """The dependencies of a command, opened now. Raises `SettingsError`."""
    make: Callable[[Choice], Dependencies] = ctx.obj
    deps = make(Choice(**ctx.meta))
    if needs_settings and deps.unknown:
        raise SettingsError(deps.unknown)
    if needs_settings and deps.note:
        print_note(deps.note)
    return deps


def parse_target(ctx: typer.Context, text: str, *others: str) -> tuple[str, str, str]:
    """The namespace, name and kind of an object; the namespace is empty if neither a word nor an option
    gives it. ``others``: the kinds beside TPUNodeGroups. Raises `typer.BadParameter`."""
    first, slash, name = text.rpartition("/")
    found, chosen = find_kind(first), ctx.meta.get("namespace", "")
    kind, namespace = found or KIND, chosen if found or not slash else first
    if kind not in (KIND, *others):
        problem = f"{text!r} must be a TPUNodeGroup: `kubectl tng explain {text}` names its slices"
        raise typer.BadParameter(problem, param_hint=NAME)
    if not is_dns_subdomain(name) or (namespace and not is_dns_label(namespace)):
        raise typer.BadParameter(
            f"{text!r} must be NAME, KIND/NAME or NAMESPACE/NAME, as in my-slice, tng/my-slice or "
            "default/my-slice",
            param_hint=NAME,
        )
    if chosen and chosen != namespace:
        problem = f"{text!r} is in another namespace than --namespace {chosen}"
        raise typer.BadParameter(problem, param_hint=NAME)
    return namespace, name, kind


def describe_place(namespace: str) -> str:
    """Where is listed, behind what is listed; empty: all namespaces."""
    return f" in namespace {namespace}" if namespace else ""


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
    """Ask the user. Raises `ReplayError` if the answer is no, or if there is no terminal."""
    if yes:
        return
    if not deps.is_interactive:
        raise ReplayError(f"{question} Without a terminal this needs --yes; {undone}")
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


def announce(deps: Dependencies) -> None:
    """Say where messages go if the cluster chose it: whoever may write there chooses it."""
    if deps.found_in:
        project, prefix = deps.settings.pubsub_project, deps.settings.topic_prefix
        say(
            f"Publishing to the topics {prefix}* of project {project}, which {deps.found_in} names; "
            "--project selects another."
        )


def publish_and_print(
    deps: Dependencies, publications: Sequence[Publication], *, dry_run: bool, output: Format
) -> None:
    """Publish, and print what was published even if it is not all. Raises `ReplayError`."""
    source: Iterable[Sent] = map(Sent, publications)
    if not dry_run and publications:
        announce(deps)
        source = publish(deps, publications)
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
