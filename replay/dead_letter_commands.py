"""``dead-letters list``, ``replay`` and ``drop``."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

from replay.commands import (
    AnyStep,
    DryRun,
    Output,
    Yes,
    announce,
    ask,
    get_dependencies,
    print_published,
)
from replay.dead_letters import MAX_LISTED, DeadLetter, Leased, leased, select, to_document
from replay.dependencies import Dependencies
from replay.errors import ReplayError
from replay.output import Format, print_json, print_rows, say, show_progress
from replay.publications import Sent, publish
from replay.recording import ReplayRules
from replay.text import render_age
from shared.base.fields import count

commands = typer.Typer(
    name="dead-letters",
    no_args_is_help=True,
    short_help="List, replay or drop messages that a step has not acknowledged.",
    help="""List, replay or drop dead letters: messages that a step has not acknowledged in ten
    attempts.

    They are kept for 31 days in the subscription TOPIC_PREFIX + "dead-letters". While a command reads
    them, no other client receives them. At its end it releases those that it has not removed.

    \b
    Examples:
      kubectl tng dead-letters list
      kubectl tng dead-letters replay --all --dry-run
      kubectl tng dead-letters drop 9276517312934721
    """,
)

Ids = Annotated[
    list[str] | None, typer.Argument(metavar="ID...", help="Ids, as `list` shows them.")
]
Every = Annotated[bool, typer.Option("--all", help="All dead letters, or all of --step.")]
OfStep = Annotated[AnyStep | None, typer.Option("--step", help="Only those of this step.")]


@commands.command(
    "list", short_help="List the dead letters: time, step, number of attempts, reason."
)
def list_letters(ctx: typer.Context, step: OfStep = None, output: Output = Format.TABLE) -> None:
    """List the dead letters, the oldest first: time, step, number of attempts, reason.

    \b
    Examples:
      kubectl tng dead-letters list
      kubectl tng dead-letters list --step label_node --output json | jq -r '.[].id'
    """
    deps = get_dependencies(ctx)
    with _leased(deps) as found:
        _print_letters(deps, select(found.letters, [], step), output)


@commands.command(short_help="Publish dead letters again, each to its step.")
def replay(
    ctx: typer.Context,
    ids: Ids = None,
    every: Every = False,
    step: OfStep = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Format.TABLE,
) -> None:
    """Publish dead letters again, each to its step, and remove those that were published.

    A dead letter that cannot be read is kept, and the exit code is 1.

    \b
    Examples:
      kubectl tng dead-letters replay 9276517312934721
      kubectl tng dead-letters replay --all --step inject_token --dry-run
    """
    _check(ids, every=every)
    deps = get_dependencies(ctx)
    with _leased(deps) as found:
        letters = select(found.letters, ids or (), step)
        readable = [letter for letter in letters if letter.publications]
        if every and readable and not dry_run:
            ask(deps, f"Replay {count(len(readable), 'dead letter')}?", yes=yes)

        if readable and not dry_run:
            announce(deps)

        def send() -> Iterator[Sent]:
            for letter in readable:
                if dry_run:
                    yield from map(Sent, letter.publications)
                    continue
                yield from publish(deps, letter.publications)
                found.remove(letter)

        print_published(deps, send(), sum(len(one.publications) for one in readable), output)
        for letter in letters:
            if not letter.publications:
                say(f"{letter.id} is kept: {letter.reason}")
        if len(readable) < len(letters):
            left = count(len(letters) - len(readable), "dead letter")
            raise ReplayError(f"{left} cannot be replayed; remove what you do not need with `drop`")


@commands.command(short_help="Remove dead letters without publishing them.")
def drop(
    ctx: typer.Context,
    ids: Ids = None,
    every: Every = False,
    step: OfStep = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Format.TABLE,
) -> None:
    """Remove dead letters without publishing them. The sweep triggers the steps that still have work.

    \b
    Examples:
      kubectl tng dead-letters drop 9276517312934721
      kubectl tng dead-letters drop --all --dry-run
    """
    _check(ids, every=every)
    deps = get_dependencies(ctx)
    with _leased(deps) as found:
        letters = select(found.letters, ids or (), step)
        _print_letters(deps, letters, output)
        if dry_run or not letters:
            return
        question = f"Drop {count(len(letters), 'dead letter')}?"
        ask(deps, question, yes=yes, undone="nothing was dropped")
        for letter in letters:
            found.remove(letter)
    say(f"Dropped {count(len(letters), 'dead letter')}.")


def _check(ids: Sequence[str] | None, *, every: bool) -> None:
    if bool(ids) == every:
        raise typer.BadParameter("name at least one, or give --all", param_hint="ID...")


@contextmanager
def _leased(deps: Dependencies) -> Iterator[Leased]:
    rules = ReplayRules(None, deps.settings.topic_prefix, deps.now())
    with leased(deps.subscriptions, rules, show_progress) as found:
        if len(found.letters) >= MAX_LISTED:
            say(f"These are {MAX_LISTED} dead letters; repeat the command if there are more.")
        yield found


def _print_letters(deps: Dependencies, letters: Sequence[DeadLetter], output: Format) -> None:
    if output is Format.JSON:
        print_json([to_document(letter) for letter in letters])
        return
    if not letters:
        say("There are no dead letters.")
        return
    rows = [
        (
            (
                letter.id,
                f"{render_age(deps.now() - letter.first_published)} ago",
                letter.step,
                str(letter.attempts or "?"),
                f"{letter.about} ({letter.cause})" if letter.about else "",
            ),
            (letter.reason,),
        )
        for letter in letters
    ]
    print_rows(("ID", "FIRST SENT", "STEP", "TRIED", "ABOUT"), rows)
