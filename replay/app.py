"""The commands. Their dependencies are the context's object (`Dependencies`)."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Any

import typer
from typer.core import TyperGroup

from replay import commands, dead_letter_commands
from replay.completion import KINDS
from replay.dependencies import Choice, find_context, open_dependencies
from replay.errors import FORESEEN, ReplayError, in_plain_words
from replay.output import (
    Format,
    print_explanation,
    print_tables,
    print_unit_explanation,
    say,
    show_progress,
)
from replay.publications import Publication, get_group, list_groups, resyncs
from shared.base.environment import SettingsError
from shared.base.fields import count
from shared.base.names import KIND
from version import VERSION

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
HELP_OPTIONS = ["-h", "--help"]


class _Commands(TyperGroup):
    """Print an expected error as a sentence on stderr. Any other is a bug and shows its traceback."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        names = {field.name for field in fields(Choice)}
        commands.share_options(self, [one for one in self.params if one.name in names])

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
    name="kubectl-tng",
    cls=_Commands,
    add_completion=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": HELP_OPTIONS, "max_content_width": 100},
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"kubectl tng {VERSION}")
        raise typer.Exit(DONE)


@app.callback()
def main(
    ctx: typer.Context,
    namespace: Annotated[  # noqa: ARG001 - `Choice` has it, and the next three
        str, commands.choice_option(("-n", "--namespace"), "NAME", "Default: the context's.")
    ] = "",
    context: Annotated[  # noqa: ARG001
        str, commands.choice_option(("--context",), "NAME", "A context of the kubeconfig.")
    ] = "",
    kubeconfig: Annotated[  # noqa: ARG001
        str, commands.choice_option(("--kubeconfig",), "FILE", "Default: ~/.kube/config.")
    ] = "",
    project: Annotated[  # noqa: ARG001
        str, commands.choice_option(("--project",), "ID", "The project of the topics.")
    ] = "",
    version: Annotated[  # noqa: ARG001 - its callback has answered
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Explain TPUNodeGroups and JobSets, resync them, and publish messages again.

    A message is a trigger, not a command: a step observes and does only what the current state
    requires, however often it is triggered.

    \b
    Start here:
      kubectl tng explain my-slice      why is it not Ready? Changes nothing
      kubectl tng resync my-slice       trigger its steps now
      kubectl tng COMMAND --help        examples of each command
    In a checkout, `python -m replay` is the same program.

    An object is NAME, in the namespace of the context or of -n, NAMESPACE/NAME, or KIND/NAME with
    a kind of tng and, for explain, pod, jobset, lws, job, statefulset, deployment, replicaset and
    provisioningrequest. The options below may also follow the verb.

    The settings are the environment variables of the functions, as PUBSUB_PROJECT; without it, they
    are read in the cluster, where deploy.sh has written them. The tool has your permissions:
    those of your kubeconfig and of `gcloud auth application-default login`.

    Exit codes: 0 success, 1 failure, 2 invalid usage or settings, 130 interrupted.
    """
    ctx.obj = ctx.obj or open_dependencies


@app.command(short_help="Trigger the steps of a group, or of all groups, now.")
def resync(
    ctx: typer.Context,
    target: commands.Group = "",
    every: Annotated[
        bool, typer.Option("--all", help="All groups of the cluster, or of the namespace of -n.")
    ] = False,
    step: commands.Step = None,
    dry_run: commands.DryRun = False,
    yes: commands.Yes = False,
    output: commands.Output = Format.TABLE,
) -> None:
    """Publish a resync of a group, or of all groups: the steps observe it now, not at the next sweep.

    The resync goes to the steps that the sweep would trigger, or to the step of --step.

    \b
    Examples:
      kubectl tng resync my-slice
      kubectl tng resync my-slice --step label_node
      kubectl tng resync --all --dry-run
    """
    if bool(target) == every:
        raise typer.BadParameter("name one group, or give --all", param_hint=commands.NAME)
    names = commands.parse_target(ctx, target)[:2] if target else None
    deps = commands.get_dependencies(ctx)
    groups = (
        [get_group(deps, *names)] if names else list_groups(deps, ctx.meta.get("namespace", ""))
    )
    publications = list(resyncs(groups, step, deps.now()))
    if not publications:
        where = commands.describe_place(ctx.meta.get("namespace", ""))
        what = f"no step has work for {target}" if target else f"there are no groups{where}"
        say(f"Nothing to publish: {what}.")
    if every and publications and not dry_run:
        question = f"Publish {count(len(publications), 'resync')} of {count(len(groups), 'group')}?"
        commands.ask(deps, question, yes=yes)
    commands.publish_and_print(deps, publications, dry_run=dry_run, output=output)


@app.command(short_help="Publish recorded messages.")
def file(
    ctx: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help='"-": stdin.')],
    step: commands.Step = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Skip lines that cannot be read.")
    ] = False,
    dry_run: commands.DryRun = False,
    yes: commands.Yes = False,
    output: commands.Output = Format.TABLE,
) -> None:
    """Publish recorded messages (one JSON object per line), each to the topic of its step.

    A line is a message of this system, an audit log entry (as `gcloud logging read` prints it), or
    a Pub/Sub message with data and attributes, with or without its envelope.

    An audit log entry goes to the steps that it triggers. A message of this system goes to the step
    that is named by --step, by its field or attribute "step", or, for a dead letter, by its
    subscription. A resync gets the current time. If a line cannot be read, nothing is published,
    unless --skip-bad is set.

    \b
    Examples:
      kubectl tng file recorded.jsonl --dry-run
      gcloud logging read 'log_id("cloudaudit.googleapis.com/activity")' --format json |
        jq -c '.[]' | kubectl tng file -
    """
    from replay.recording import ReplayRules, read_recording

    deps = commands.get_dependencies(ctx)
    rules = ReplayRules(step, deps.settings.topic_prefix, deps.now())
    try:
        raw = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror}"
        raise typer.BadParameter(problem, param_hint="FILE.jsonl") from error
    recording = read_recording(raw.splitlines(), rules)
    for line in (*recording.left_out, *recording.wrong):
        say(line)
    if recording.wrong and not skip_bad:
        raise ReplayError(
            f"{count(len(recording.wrong), 'line')} cannot be read, so nothing was published; "
            "fix the file, or skip these lines with --skip-bad"
        )
    if not recording.publications:
        say("Nothing to publish: no line triggers a step.")
    commands.publish_many(deps, recording.publications, dry_run=dry_run, yes=yes, output=output)


app.add_typer(dead_letter_commands.commands)


@app.command("explain", short_help="Show why a slice is not Ready, and what each step would do.")
def explain_target(
    ctx: typer.Context,
    target: Annotated[str, commands.name_argument("The group, pod/NAME, or a workload: job/NAME.")],
    output: commands.Output = Format.TABLE,
) -> None:
    """Show why a group is not Ready, its conditions, and what each step would do. Changes nothing.

    The first lines are the cause, what happens next and what to do. Each step observes as it would
    on a resync, with your permissions instead of its own, and decides; nothing is executed. If a step
    that the sweep would trigger cannot observe, or does not run, the exit code is 1.

    Of a workload (jobset, lws, job, statefulset, deployment, replicaset), it shows what provision_slice
    would do for each of its Pods that waits for a slice, and what release_slice would do for each of its
    slices. JOBSET_PROVIDER must be set, and for node pools also their settings.

    Of a Pod, it shows why it gets a slice or none; of a provisioningrequest, its condition.

    \b
    Examples:
      kubectl tng explain my-slice
      kubectl tng explain my-slice --output json | jq .ready
      kubectl tng explain jobset/my-jobset -n research
      kubectl tng explain deployment/my-server
      kubectl tng explain pod/my-pod
    """
    namespace, name, kind = commands.parse_target(ctx, target, *KINDS.values())
    deps = commands.get_dependencies(ctx, needs_settings=False)
    if kind == KIND:
        from replay import explain

        group = explain.explain(deps, namespace, name, show_progress)
        print_explanation(group, output)
        is_whole = group.is_whole
    else:
        from replay import explain_unit

        unit = explain_unit.BY_KIND[kind](deps, namespace or deps.namespace, name)
        print_unit_explanation(unit, output)
        is_whole = unit.is_whole
    if not is_whole:
        raise ReplayError("a step could not observe, or does not run; the lines above say why")


@app.command("get", short_help="List slices, workloads that wait for one, and classes.")
def get_all(
    ctx: typer.Context,
    everywhere: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Those of all namespaces.")
    ] = False,
    output: commands.Output = Format.TABLE,
) -> None:
    """List the slices of a namespace, the workloads that wait for one, and the classes of the cluster,
    each with what it waits for. It reads the cluster alone: a slice that is a node pool of GKE is listed
    when it has a Node.

    \b
    Examples:
      kubectl tng get
      kubectl tng get -A
      kubectl tng get -n research --output json | jq .waiting
    """
    from replay import listing

    deps = commands.get_dependencies(ctx, needs_settings=False)
    namespace = "" if everywhere else deps.namespace
    tables = list(listing.list_tables(deps, namespace))
    print_tables(tables, output, commands.describe_place(namespace))
    if unread := [table.name for table in tables if table.error]:
        raise ReplayError(f"your permissions do not suffice to list: {', '.join(unread)}")


@app.command("record", short_help="Record the messages of a step's topic in a file.")
def record_topic(
    ctx: typer.Context,
    step: Annotated[
        commands.AnyStep, typer.Argument(metavar="STEP", help="The step whose topic is recorded.")
    ],
    path: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help='"-": stdout.')],
    duration: Annotated[
        str, commands.duration_option("--for", "How long to record: 90s, 30m, 2h.")
    ] = "10m",
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="Maximum number of messages.")
    ] = 1000,
) -> None:
    """Record the messages of a step's topic in a file. `file` publishes them again.

    The step still receives its messages: the tool creates a subscription, which receives copies from
    now on, and deletes it at the end. Ctrl-C ends a recording early; the file keeps what was recorded.

    \b
    Examples:
      kubectl tng record label_node events.jsonl --for 5m
      kubectl tng record create_resources - --limit 1 | jq .data
    """
    from replay.recording import record

    deps, seconds = commands.get_dependencies(ctx), commands.parse_duration(duration)
    number = 0
    with _open_for_writing(path) as file:
        for number, line in enumerate(record(deps, step, seconds, limit), start=1):  # noqa: B007
            print(line, file=file, flush=True)
    say(f"Recorded {count(number, 'message')}.")


@app.command("audit-log", short_help="Publish messages that the log sinks have lost.")
def publish_audit_log(
    ctx: typer.Context,
    target: commands.Group = "",
    *,
    since: Annotated[
        str, commands.duration_option("--since", "Start of the time range, as an age: 2h, 1d.")
    ],
    until: Annotated[
        str, commands.duration_option("--until", "End of the time range, as an age; default: now.")
    ] = "",
    dry_run: commands.DryRun = False,
    yes: commands.Yes = False,
    output: commands.Output = Format.TABLE,
) -> None:
    """Read Compute Engine's audit log again, and publish its messages as the log sinks would.

    Use it when messages were lost: a sink was missing or lacked its permission, or a subscription
    was deleted. Messages that were not lost are published a second time, which does no harm: a step
    does only what the current state requires. It makes one call a second, within Cloud Logging's
    quota.

    \b
    Examples:
      kubectl tng audit-log --since 2h --dry-run
      kubectl tng audit-log my-slice --since 30m
      kubectl tng audit-log --since 6h --until 4h --yes
    """
    from replay import audit_log

    deps = commands.get_dependencies(ctx)
    now = deps.now()
    began = now - commands.parse_duration(since)
    ended = now - commands.parse_duration(until) if until else now
    filters = audit_log.read_filters(deps.settings)
    names = commands.parse_target(ctx, target)[:2] if target else None
    name = get_group(deps, *names).resource_name if names else ""
    query = audit_log.make_query(filters.values(), began, ended, name)
    publications: list[Publication] = []
    projects = audit_log.find_projects(deps.settings)
    for entry in audit_log.read_entries(deps, projects, query, is_reported=True):
        found = audit_log.make_publications(entry, filters)
        if isinstance(found, str):
            say(found)
        else:
            publications += found
    if not publications:
        say("Nothing to publish: no entry triggers a step.")
    commands.publish_many(deps, publications, dry_run=dry_run, yes=yes, output=output)


@app.command("leaks", short_help="Show leaked slices, and the commands that delete them.")
def show_leaks(ctx: typer.Context, output: commands.Output = Format.TABLE) -> None:
    """Show what is left of slices and Nodes whose group is gone, as report_leaks does once an hour.

    \b
    Examples:
      kubectl tng leaks
      kubectl tng leaks --output json | jq -r '.[].commands[]'
    """
    from functions.report_leaks.decide import render_unseen
    from replay.leaks import observe_leaks, print_leaks

    deps = commands.get_dependencies(ctx)
    observed = observe_leaks(deps)
    print_leaks(observed, deps.settings.gke, output)
    if not (observed.leaks or observed.pools or observed.nodes or observed.unseen):
        say("No leaked slice was found.")
    if observed.left:
        say(f"{count(observed.left, 'slice')} more may be leaked; repeat this when these are gone.")
    if observed.unseen:
        raise ReplayError(render_unseen(observed, map(in_plain_words, observed.failures)))


@app.command(
    "timeline",
    short_help="Show what happened to a slice: what ran, when, how long, and why.",
)
def show_timeline(
    ctx: typer.Context,
    target: Annotated[str, commands.name_argument("The group; it may be deleted already.")],
    since: Annotated[
        str,
        commands.duration_option(
            "--since",
            "Start of the time range, as an age: 2h, 7d; default: the group's creation, or 1d if "
            "it is deleted.",
        ),
    ] = "",
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Write an HTML page with a chart.", show_default=False
        ),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(
            "--price-per-chip-hour", min=0, help="A price in any currency.", show_default=False
        ),
    ] = None,
    uid: Annotated[
        str, typer.Option("--uid", help="A former group of this name.", show_default=False)
    ] = "",
    chips: Annotated[
        int,
        typer.Option("--chips-per-vm", min=0, help="Chips of a VM; 0: as the group specifies."),
    ] = 0,
    why: Annotated[
        bool,
        typer.Option("--why", help="Show the facts behind each decision."),
    ] = False,
    output: commands.Output = Format.TABLE,
) -> None:
    """Show a slice's timeline from Cloud Logging and the group's Events: why it was not Ready and for
    how long, which steps ran when and why, and how long Compute Engine and the functions took.

    --html writes the timeline as one self-contained page with a chart.

    --why shows what each invocation had observed (the snapshot in its log line), what it decided, and
    what this version of the tool decides from the same. Nothing is observed again or executed.

    \b
    Examples:
      kubectl tng timeline my-slice
      kubectl tng timeline my-slice --since 7d --html my-slice.html
      kubectl tng timeline my-slice --output json | jq .notReady
      kubectl tng timeline my-slice --since 1h --why
      kubectl tng timeline my-slice --since 7d --uid 7d0f1c52-8a5e-4ad2-9f0e-1f4ad2d1a8b3
    """
    from replay.timeline_html import render_html
    from replay.timeline_sources import TimelineRequest, build_timeline
    from replay.timeline_text import print_timeline

    namespace, name, _ = commands.parse_target(ctx, target)
    deps = commands.get_dependencies(ctx)
    now = deps.now()
    began = now - commands.parse_duration(since) if since else None
    request = TimelineRequest(
        namespace or deps.namespace,
        name,
        since=began,
        until=now,
        uid=uid,
        chips_per_vm=chips,
        with_decisions=why,
    )
    timeline = build_timeline(deps, request)
    if html is not None:
        with _open_for_writing(html) as file:
            file.write(render_html(timeline, price))
        say(f"Wrote {html}.")
        return
    print_timeline(timeline, price, output)


@app.command(
    "rehearse", short_help="Show which decisions of the past this version would make differently."
)
def rehearse_decisions(
    ctx: typer.Context,
    since: Annotated[
        str, commands.duration_option("--since", "Start of the time range, as an age: 2h, 7d.")
    ] = "7d",
    output: commands.Output = Format.TABLE,
) -> None:
    """Read the functions' decisions from Cloud Logging, make each again from what was observed then, and
    show those that this version of the tool makes differently: an upgrade, before it is made.

    Nothing is observed again or executed. provision_slice, release_slice, report_leaks and the sweep
    write no snapshot of what they observe: their decisions are not made again.

    \b
    Examples:
      kubectl tng rehearse --since 30d
      kubectl tng rehearse --output json | jq '.different[].examples[].decision.today'
    """
    from replay.rehearse import print_rehearsal, rehearse

    deps = commands.get_dependencies(ctx)
    began = deps.now() - commands.parse_duration(since)
    print_rehearsal(rehearse(deps, began), began, output)


@app.command("web", short_help="Show all of this on a live page, on this machine.")
def serve_page(
    ctx: typer.Context,
    price: Annotated[
        float | None,
        typer.Option(
            "--price-per-chip-hour", min=0, help="A price in any currency.", show_default=False
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option("--port", min=0, max=65535, help="The port on 127.0.0.1; 0: any free one."),
    ] = 0,
) -> None:
    """Serve a live page on 127.0.0.1 until Ctrl-C: all slices with state, chips and reason; the life of
    each, message by message; what waits for capacity, and which candidates were tried; dead letters and
    leaks. It changes nothing, and reads only while a tab shows it. With -n, it lists one namespace.

    Whoever knows the printed address can read the page: it has a secret, which is new at each start.
    The page loads nothing from the network. On another machine, forward the port by ssh -L.

    \b
    Examples:
      kubectl tng web
      kubectl tng web --price-per-chip-hour 2.7 --port 8400
    """
    from replay.web.hub import Hub
    from replay.web.server import LOOPBACK, PageServer
    from replay.web.subjects import PageSubjects

    open_again = partial(commands.get_dependencies, ctx, needs_settings=False)
    deps = open_again()
    context = find_context(deps.connection.access)
    if context:  # the page stays with it when kubectl's changes
        ctx.meta["context"] = context
    subjects = PageSubjects(open_again, ctx.meta.get("namespace", ""), price, context)
    try:
        server = PageServer(port, Hub(subjects.open, deps.now))
    except OSError as error:
        problem = f"{LOOPBACK}:{port} cannot be used: {error.strerror}; 0 takes any free port"
        raise typer.BadParameter(problem, param_hint="--port") from error
    with server:
        print(server.address, flush=True)
        say("The page is served until Ctrl-C.")
        server.serve_forever()


@contextmanager
def _open_for_writing(path: Path) -> Iterator[IO[str]]:
    if str(path) == "-":
        yield sys.stdout
        return
    try:
        path.touch(mode=0o600)  # only its owner can read it: messages may have secrets of others
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        problem = f"{path} cannot be written: {error.strerror}"
        raise typer.BadParameter(problem, param_hint=str(path)) from error
    with file:
        yield file
