"""The commands. What they need from outside comes as the context's object (`Ways`)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from replay import VERSION
from replay.errors import FORESEEN, ReplayError, in_plain_words
from replay.explain import explain as explain_group
from replay.explain_jobset import explain_jobset
from replay.output import (
    Format,
    print_explanation,
    print_jobset_explanation,
    print_sent,
    say,
)
from replay.publications import (
    Publication,
    Sent,
    get_group,
    list_groups,
    publish,
    syncs,
)
from replay.recording import Recording, Rules, read_recording
from replay.ways import Ways, open_ways
from shared.base.environment import SettingsError
from shared.base.errors import CallError

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
HELP_OPTIONS = ["-h", "--help"]
MANY = 20
"""More recorded messages than this are published only after a question."""


class Inbox(StrEnum):
    """The inboxes that take a message about a group."""

    CREATE_RESOURCES = "create_resources"
    INJECT_TOKEN = "inject_token"
    LABEL_NODE = "label_node"
    TEAR_DOWN = "tear_down"


class _Commands(TyperGroup):
    """What was foreseen is said in a sentence, on stderr; what was not is our fault and is seen."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FORESEEN as error:
            say(f"Error: {in_plain_words(error)}")
            code = USAGE if isinstance(error, SettingsError) else FAILED
            raise typer.Exit(code) from error
        except (KeyboardInterrupt, typer.Abort) as error:
            raise typer.Exit(INTERRUPTED) from error


app = typer.Typer(
    name="replay",
    cls=_Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": HELP_OPTIONS, "max_content_width": 100},
)

Output = Annotated[Format, typer.Option("--output", "-o", help="How results are written.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Publish many without asking.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be published, only.")]
Step = Annotated[Inbox | None, typer.Option("--step", help="Whose inbox.", show_default=False)]


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"tpu-functions replay {VERSION}")
        raise typer.Exit(DONE)


@app.callback()
def main(
    ctx: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback has answered
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Wake steps by hand, publish recorded messages again, ask what the steps would do.

    A message is only an occasion to look: what is not needed is not done, however often it is
    asked for.

    Settings are the functions' own environment variables: PUBSUB_PROJECT, TOPIC_PREFIX, PROJECTS,
    KUBECONFIG (by default ~/.kube/config), COMPUTE_ENDPOINT. Rights are yours: of your kubeconfig,
    and of `gcloud auth application-default login`.

    Exit codes: 0 done, 1 refused or failed, 2 wrong usage or settings, 130 interrupted.
    """
    ctx.obj = ctx.obj or open_ways


@app.command(short_help="Publish a SYNC about a group, or about all.")
def group(
    ctx: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="NAMESPACE/NAME", help="One group.", show_default=False)
    ] = "",
    every: Annotated[bool, typer.Option("--all", help="All groups of the cluster.")] = False,
    step: Step = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Format.TABLE,
) -> None:
    """Publish a SYNC about a group, or about all: its steps look at everything anew.

    It goes to the inboxes that the sweep would choose, or to the one that --step names.

    \b
    Examples:
      python -m replay group default/my-slice
      python -m replay group default/my-slice --step label_node
      python -m replay group --all --dry-run
    """
    if bool(target) == every:
        raise typer.BadParameter("name one group, or give --all", param_hint="NAMESPACE/NAME")
    names = parse_target(target) if target else None
    ways = _ways(ctx)
    groups = [get_group(ways, *names)] if names else list_groups(ways)
    publications = list(syncs(groups, step, ways.now()))
    if not publications:
        what = f"no step has anything to look for in {target}" if target else "there are no groups"
        say(f"Nothing to publish: {what}.")
    if every and not dry_run:
        _ask(ways, f"Publish {len(publications)} SYNCs about {len(groups)} groups?", yes=yes)
    _publish(ways, publications, dry_run=dry_run, output=output)


@app.command(short_help="Publish recorded messages, dead letters too.")
def file(
    ctx: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help='"-": stdin.')],
    step: Step = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out lines that are wrong.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Format.TABLE,
) -> None:
    """Publish recorded messages, a JSON object a line, each to the inbox that it belongs to.

    A line is a message of this system's own, an audit log entry (as `gcloud logging read` gives
    it), or a Pub/Sub message with data and attributes, in its envelope or without: dead letters, as
    they are pulled.

    An audit log entry goes to the step that it wakes. A message of our own goes to the inbox that
    --step names, or its field or attribute "step", or the subscription that gave it up. A SYNC
    counts as new. Nothing is published while a line is wrong, unless --skip-bad.

    \b
    Examples:
      python -m replay file dead-letters.jsonl --dry-run
      gcloud pubsub subscriptions pull tpu-functions-dead-letters --limit 100 --format json |
        jq -c '.[]' | python -m replay file -
    """
    ways = _ways(ctx)
    rules = Rules(step, ways.settings.topic_prefix, ways.now())
    recording = read_recording(_read_lines(path), rules)
    _report(recording, skip_bad=skip_bad)
    publications = recording.publications
    if len(publications) > MANY and not dry_run:
        _ask(ways, f"Publish {len(publications)} messages?", yes=yes)
    _publish(ways, publications, dry_run=dry_run, output=output)


@app.command(short_help="Say what each step would do about a group or a JobSet now, and why.")
def explain(
    ctx: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="NAMESPACE/NAME", help="The group, or the JobSet.")
    ],
    is_jobset: Annotated[
        bool, typer.Option("--jobset", help="About the slices of a JobSet of this name.")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Say what each step would do about a group now, and why. Nothing is carried out.

    Each step looks as it would on a SYNC, with your rights instead of its own, and decides. "Sweep
    wakes it" tells which of them the sweep would choose; if one of these cannot look, the exit code
    is 1.

    With --jobset, the steps that give JobSets their slices answer for each Pod of the JobSet that
    waits for a slice, and for each slice that it has. JOBSET_PROVIDER, and for node pools the
    settings of the functions, must be set.

    \b
    Examples:
      python -m replay explain default/my-slice
      python -m replay explain default/my-slice --output json | jq .ready
      python -m replay explain default/my-jobset --jobset
    """
    names = parse_target(target)
    is_whole = (_explain_jobset if is_jobset else _explain_group)(_ways(ctx), names, output)
    if not is_whole:
        raise ReplayError("a step could not look; what stands in its row says why")


def _explain_group(ways: Ways, names: tuple[str, str], output: Format) -> bool:
    """Explain a group; whether every step could look."""
    explanation = explain_group(ways, *names)
    print_explanation(explanation, output)
    return explanation.is_whole


def _explain_jobset(ways: Ways, names: tuple[str, str], output: Format) -> bool:
    """Explain a JobSet; whether every step could look."""
    explanation = explain_jobset(ways, *names)
    print_jobset_explanation(explanation, output)
    return explanation.is_whole


def parse_target(text: str) -> tuple[str, str]:
    """The namespace and name of a group. Raises `typer.BadParameter`."""
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise typer.BadParameter(
            f"{text!r} must be NAMESPACE/NAME, as in default/my-slice", param_hint="NAMESPACE/NAME"
        )
    return namespace, name


def _ways(ctx: typer.Context) -> Ways:
    make: Callable[[], Ways] = ctx.obj
    return make()


def _read_lines(path: Path) -> list[bytes]:
    try:
        raw = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror}"
        raise typer.BadParameter(problem, param_hint="FILE.jsonl") from error
    return raw.splitlines()


def _report(recording: Recording, *, skip_bad: bool) -> None:
    """What of a file is not published, and why. Raises `ReplayError` when that stops the rest."""
    for line in (*recording.left_out, *recording.wrong):
        say(line)
    if recording.wrong and not skip_bad:
        raise ReplayError(
            f"{_count(len(recording.wrong), 'line')} wrong, so nothing was published; mend it, or "
            "leave out what is wrong by --skip-bad"
        )
    if not recording.publications:
        say("Nothing to publish: no line wakes a step.")


def _ask(ways: Ways, question: str, *, yes: bool) -> None:
    if yes or not ways.is_interactive:
        return
    if not typer.confirm(question, err=True):
        raise ReplayError("nothing was published")


def _publish(
    ways: Ways, publications: Sequence[Publication], *, dry_run: bool, output: Format
) -> None:
    """Publish, and say what was published even if it is not all."""
    sent: list[Sent] = []
    source: Iterable[Sent] = map(Sent, publications) if dry_run else publish(ways, publications)
    try:
        sent.extend(source)
    except CallError as error:
        rest = f"{len(sent)} of {len(publications)} were published; a repeat does no harm"
        raise ReplayError(f"{in_plain_words(error)} ({rest})") from error
    finally:
        print_sent(sent, ways.settings.topic_prefix, output)


def _count(number: int, noun: str) -> str:
    return f"1 {noun} is" if number == 1 else f"{number} {noun}s are"
