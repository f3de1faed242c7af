"""Explain why a group is not Ready, whether its steps run, and what each would do now.

Each step observes and decides. Its plan is described by its actions; none of them is executed. When the
steps last ran is in their log.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from google.auth.exceptions import GoogleAuthError

from functions import create_resources, inject_token, label_node, sweep, tear_down
from functions.inject_token.decide import MIN_LEFT
from functions.inject_token.observe import ObservedVms
from functions.label_node.observed_nodes import ObservedNodes
from replay.cloud_logging import from_functions
from replay.dependencies import Dependencies
from replay.errors import in_plain_words
from replay.publications import get_group
from replay.serial_port import find_report
from replay.text import find_time_of, join_names, link, render_age, render_minute
from shared.base.backoff import TICK
from shared.base.documents import read_mapping
from shared.base.reasons import PROGRESS, Reason, find_advice, find_entry
from shared.base.timestamps import LONG_AGO, guess_time, render_time
from shared.frame.plan import Action, Emit, Plan, Send, StepRefused
from shared.frame.step import Step
from shared.node_groups import status
from shared.node_groups.actions import DeleteNode, RevokeToken
from shared.node_groups.node_group import AnyGroup
from shared.node_groups.status import Condition, Status, Type
from shared.node_groups.work import GroupWork, WriteStatus, message_about
from shared.ports.errors import CallError, OutOfTimeError
from shared.runtime import find_refusal
from shared.slices.by_node_group.provider import read_slice
from shared.slices.candidates import REFUSALS
from shared.triggers import routes
from shared.triggers.message import Cause, Message
from shared.triggers.trigger import ObjectTrigger, Trigger

STEPS: tuple[Step[Any, Any], ...] = tuple(
    module.STEP for module in (create_resources, inject_token, label_node, tear_down)
)
API_ERRORS = (CallError, OutOfTimeError, GoogleAuthError)
CANNOT_OBSERVE = "CannotObserve"
"""The outcome of a step whose reads failed with the user's permissions."""
LOG_SINCE = timedelta(hours=2)
"""How far back the log is read: a settled group gets a resync every hour."""
MAX_LINES = 150
"""How many lines a page has: the sweep writes one a minute."""
MAX_PAGES = 5
"""How many pages are read at most. Cloud Logging may end a page early, even without a line, if its
search takes long."""
ANSWERED_WITHIN = timedelta(minutes=2)
"""How long the answer to a resync may take, with a cold start and the lag of Cloud Logging."""
MAX_DETAIL = 120
"""The length of a detail that precedes what to do."""
_SWEPT = ("Swept", "SweptPartly")
"""The sweep's outcomes with which it has served all groups but some, also if its line is a warning."""
_PAGE = link("docs/troubleshooting.md")
_CHECK = f"./deploy.sh --dir DIR CLUSTER checks the path. More: {_PAGE}#nothing-happens"


@dataclass(frozen=True)
class StepExplanation:
    """What a step would do on a resync. ``is_triggered``: the sweep would send it one.

    ``has_observed`` is false if a read has failed; ``note`` then says why. ``about`` is the Pod or the
    slice, if the step has answers for several. ``missed`` has the actions for which an event should
    have triggered it, ``ready`` the condition that it would write if status or reason would change.
    """

    step: str
    is_triggered: bool
    outcome: str
    note: str = ""
    actions: tuple[str, ...] = ()
    has_observed: bool = True
    about: str = ""
    missed: tuple[str, ...] = ()
    ready: Condition | None = None

    @property
    def is_due(self) -> bool:
        """False for a step that would only write a part of the status before its turn."""
        return bool(self.is_triggered or self.missed or self.ready or not self.has_observed)


@dataclass(frozen=True)
class Explanation:
    """The explanation of one group.

    ``topics``: the steps that the sweep triggers. ``next_resync`` is ``None`` if it does not within an
    hour. ``observed``: when each step, and the sweep, last succeeded, by the log; ``failed``: what has
    failed since; ``refused``: what an API refused its last run; ``log_error``: why the log could not be
    read. ``overdue``: the steps that have not answered a resync, and since when. ``events`` are the
    newest first; ``events_error`` says why there are none. ``of_class``: class and candidate of a
    slice. ``report``: what a VM that has not joined says on its serial port.
    """

    group: AnyGroup
    known: Status
    now: datetime
    topics: tuple[str, ...]
    is_settled: bool
    next_resync: datetime | None
    steps: tuple[StepExplanation, ...]
    observed: Mapping[str, datetime]
    failed: Mapping[str, str]
    refused: Mapping[str, str]
    log_error: str
    overdue: Mapping[str, datetime]
    events: Sequence[Mapping[str, Any]]
    events_error: str = ""
    of_class: tuple[str, str] = ("", "")
    report: str = ""

    @property
    def ready(self) -> Condition | None:
        return self.known.conditions.get(Type.READY)

    @property
    def changed(self) -> str:
        """What a step observes that Ready does not say; empty if there is nothing."""
        for one in self.steps:
            if one.ready is not None:
                text = f"{one.step} observes {one.ready.reason} now: {one.ready.message}"
                return f"{text.rstrip('.')}."
        return ""

    @property
    def is_whole(self) -> bool:
        """Whether each step that the sweep would trigger could observe here, and runs."""
        return not self.overdue and all(one.has_observed for one in self.steps if one.is_triggered)


def explain(
    deps: Dependencies, namespace: str, name: str, show: Callable[[str], None] = lambda _: None
) -> Explanation:
    """Observe a group as each step would. Raises `ReplayError` if there is none, `CallError`.

    ``show`` gets what the cluster alone says, before Google's APIs are asked, whose clients take longer
    to load than all that comes before; and an empty text at the end.
    """
    group = get_group(deps, namespace, name)
    known, now = status.parse_of(group), deps.now()
    ready = known.conditions.get(Type.READY)
    if not deps.unread:
        reason = f" ({ready.reason})" if ready is not None and not ready.is_true else ""
        show(f"{_describe_state(group, ready, now)}{reason} by its status; asking Google's APIs")
    decide = sweep.decide
    minute = now.replace(second=0, microsecond=0)
    ticks = (minute + count * TICK for count in range(1, decide.SETTLED_EVERY_MINUTES + 1))
    next_resync = next((tick for tick in ticks if decide.is_due(group, known, tick)), None)
    topics = decide.list_steps(group, known)
    fields = partial(work_fields, deps, ObjectTrigger(message_about(group, Cause.RESYNC, now)), now)
    seen: dict[str, Any] = {}
    steps = tuple(
        _explain_group_step(one, one.name in topics, group, fields, seen)
        for one in (() if deps.unread else STEPS)
    )
    report = find_report(deps, seen.get(label_node.STEP.name), now)
    if not deps.settings.installation_id and ready and ready.reason == Reason.OTHER_INSTALLATION:
        # Here it is not known which installation it is: the steps would refuse what is observed.
        steps = tuple(replace(one, missed=(), ready=None) for one in steps)
    observed, failed, refused, log_error, read_since = _read_runs(deps, group, now)
    show("")
    found = {
        step: _find_overdue(group, known, observed.get(step, read_since), now) for step in topics
    }
    overdue = {step: at for step, at in found.items() if at is not None and not log_error}
    events, error = [], ""
    try:
        events = deps.open_cluster().list_events(namespace, group.uid)
    except API_ERRORS as failure:
        error = f"The Events cannot be read: {in_plain_words(failure)}"
    events.sort(key=find_time_of, reverse=True)
    swept = topics, decide.is_settled(group, known), next_resync
    found_as = read_slice(group.raw, now)
    of_class = (
        (found_as.class_name, found_as.place.key) if found_as and found_as.place else ("", "")
    )
    runs = observed, failed, refused
    return Explanation(
        group, known, now, *swept, steps, *runs, log_error, overdue, events, error, of_class, report
    )


def _explain_group_step(
    step: Step[Any, Any],
    is_triggered: bool,
    group: AnyGroup,
    open_fields: Callable[[], Any],
    seen: dict[str, Any],
) -> StepExplanation:
    """What a step would do; ``seen`` gets what it observes."""
    known, observed, now = status.parse_of(group), None, LONG_AGO
    before = after = known.conditions.get(Type.READY)
    try:
        work = GroupWork(**open_fields(), group=group, status=known, reported=known)
        now = work.now
        observed = seen[step.name] = step.observe(work)
        plan = step.decide(observed, now)
    except StepRefused as refusal:
        words = refusal.outcome, str(refusal)
        report = WriteStatus(known.with_condition(Type.READY, False, *words, group, LONG_AGO))
        plan = Plan(refusal.outcome, first=(report,), note=str(refusal))
    except API_ERRORS as error:
        return explain_error(step.name, error, is_triggered=is_triggered)
    for action in plan.list_actions():
        if isinstance(action, WriteStatus):
            after = action.status.conditions[Type.READY]
    is_same = before and after and (before.status, before.reason) == (after.status, after.reason)
    return StepExplanation(
        step.name,
        is_triggered,
        plan.outcome,
        plan.note,
        tuple(_describe_actions(step.name, plan, known, _find_served(observed, now))),
        missed=tuple(_list_missed(step.name, plan, known, observed)),
        ready=None if is_same or not (before or is_triggered) else after,
    )


def _find_served(observed: Any, now: datetime) -> Collection[str]:
    """The VMs whose token is injected, or is revoked because they have joined: each resync repeats that,
    because a call may have been lost, and changes nothing."""
    if isinstance(observed, ObservedVms):
        tokens = {vm.instance.name: vm.token for vm in observed.vms}
        return [name for name, one in tokens.items() if one and one.expires - now >= MIN_LEFT]
    if isinstance(observed, ObservedNodes):
        pairs = ((node, observed.instances.get(node.vm)) for node in observed.nodes)
        return [node.vm for node, vm in pairs if vm is not None and node.proved_vm_id == vm.id]
    return ()


def _describe_actions(
    step: str, plan: Plan, known: Status, served: Collection[str]
) -> Iterator[str]:
    """The actions that change something. What another step is triggered to do is in its own answer."""
    written = status.render(known)
    for action in plan.list_actions():
        if (vms := {*_list_vms(action)}) and vms.issubset(served):
            continue
        if isinstance(action, WriteStatus):
            before, written = written, status.render(action.status)
            if changes := ", ".join(_list_changes(before, written)):
                yield f"update the status: {changes}"
        elif action.step == step if isinstance(action, Send) else not isinstance(action, Emit):
            yield _describe(action)


def _list_vms(action: Action) -> list[str]:
    """The VMs whose tokens are revoked, or that inject_token's message to itself names."""
    if isinstance(action, RevokeToken):
        return [action.vm]
    return [vm for one in (action.messages if isinstance(action, Send) else ()) for vm in one.vms]


def _describe(action: Action) -> str:
    """An action; inject_token's message to itself by the VMs that it names."""
    vms = _list_vms(action) if isinstance(action, Send) else []
    return f"inject tokens into {join_names(vms)}" if vms else action.describe()


def _list_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """What differs in two statuses: conditions with their new reasons, and the names of other fields."""
    for one in after.get("conditions", ()):
        if one not in before.get("conditions", ()):
            yield f"{one['type']} {one['status']} ({one['reason']})"
    for name in sorted({*before, *after} - {"conditions"}):
        if before.get(name) != after.get(name):
            yield name


def _list_missed(step: str, plan: Plan, known: Status, observed: Any) -> Iterator[str]:
    """The actions for which an event should have triggered the step. Not those that each resync
    repeats: after an error, or for a VM that has a token and has not joined."""
    if known.is_true(Type.READY) or any(retry.step == step for retry in known.retries):
        return
    vms = observed.vms if isinstance(observed, ObservedVms) else ()
    tokens = known.conditions.get(Type.TOKENS_INJECTED)
    has_failed = tokens is not None and not tokens.is_true and tokens.reason != Reason.PROVISIONING
    bare = {vm.instance.name for vm in vms if vm.token is None and not has_failed}
    for action in plan.list_actions():
        is_missed = not isinstance(action, WriteStatus | Emit | DeleteNode)
        inserts, deletes = getattr(action, "inserts", ()), getattr(action, "kinds", ())
        if isinstance(action, Send):
            is_missed = any(bare.intersection(message.vms) for message in action.messages)
        elif inserts or deletes:
            entries = [known.resources.get(kind) for kind in (*deletes, *(i.kind for i in inserts))]
            is_missed = any(one is None or one.error is None for one in entries)
        if is_missed:
            yield _describe(action)


def _read_runs(
    deps: Dependencies, group: AnyGroup, now: datetime
) -> tuple[dict[str, datetime], dict[str, str], dict[str, str], str, datetime]:
    """When each step last succeeded, what has failed since, what an API refused its last run, why that
    is not known, and since when all lines were read."""
    observed: dict[str, datetime] = {}
    failed, refused = dict[str, str](), dict[str, str]()
    read_since, token = now, ""
    begun = max(now - LOG_SINCE, group.created)
    query = (
        f'timestamp>="{render_time(begun)}"\n'
        f"{from_functions(deps.settings)}\n"
        f'(jsonPayload.group="{group.key}" OR jsonPayload.step="{routes.SWEEP}"'
        f' OR jsonPayload.step="{routes.APPROVE_JOIN}")'  # it may know a request's name alone
    )
    if deps.unread:
        return observed, failed, refused, deps.unread, read_since
    for _ in range(MAX_PAGES):
        try:
            page = deps.logs.list_page([deps.settings.pubsub_project], query, token, MAX_LINES)
        except API_ERRORS as error:
            return observed, failed, refused, in_plain_words(error), read_since
        for entry in page.entries:
            line, at = read_mapping(entry, "jsonPayload"), guess_time(entry.get("timestamp"))
            step, has_failed = str(line.get("step")), entry.get("severity") in ("WARNING", "ERROR")
            read_since = at or read_since
            decision = str(line.get("decision"))
            note = f": {line['note']}" if line.get("note") else ""
            words = f"{step} at {at or now:%H:%M} UTC {decision}{note}"
            is_of_vm = "compute.instances." in str(line.get("trigger"))  # the status has it later
            if is_of_vm and find_advice(decision) and step not in observed:
                refused.setdefault(step, words)
            if at is not None and (not has_failed or decision in _SWEPT):
                observed.setdefault(step, at)
            elif at is not None and step not in observed:
                failed.setdefault(step, words)
        token = page.next_token
        if not token:
            return observed, failed, refused, "", begun
    unread = (
        ""
        if observed or failed
        else "Cloud Logging has found no line, and has not searched to the end"
    )
    return observed, failed, refused, unread, read_since


def _find_overdue(
    group: AnyGroup, known: Status, observed: datetime | None, now: datetime
) -> datetime | None:
    """The first resync since its last run that a step should have answered by now."""
    begun = max(sweep.decide.last_progress(group, known), now - LOG_SINCE)
    tick = max(begun, observed or begun).replace(second=0, microsecond=0) + TICK
    while tick <= now - ANSWERED_WITHIN and not sweep.decide.is_due(group, known, tick):
        tick += TICK
    return tick if tick <= now - ANSWERED_WITHIN else None


def explain_step(
    step: str, is_triggered: bool, build_plan: Callable[[], Plan], about: str = ""
) -> StepExplanation:
    """What a step of JobSets would do: its plan, or the error of its reads."""
    try:
        plan = build_plan()
    except API_ERRORS as error:
        return explain_error(step, error, about, is_triggered=is_triggered)
    actions = tuple(action.describe() for action in plan.list_actions())
    return StepExplanation(step, is_triggered, plan.outcome, plan.note, actions, about=about)


def explain_error(
    step: str, error: Exception, about: str = "", *, is_triggered: bool = True
) -> StepExplanation:
    """A step that cannot observe, because its reads fail."""
    words = CANNOT_OBSERVE, in_plain_words(error)
    return StepExplanation(step, is_triggered, *words, has_observed=False, about=about)


def work_fields(deps: Dependencies, trigger: Trigger, now: datetime) -> dict[str, Any]:
    """The fields of a step's `Work` that only observes: it cannot publish.

    Raises `StepRefused` if the cluster is not the one of the tool's settings, and `CallError`.
    """
    cluster = deps.open_cluster()
    refusal = find_refusal(deps.settings, cluster) if deps.settings.installation_id else None
    if refusal is not None:
        raise refusal
    return {
        "settings": deps.settings,
        "gce": deps.open_gce(),
        "cluster": cluster,
        "publish": _publish_nothing,
        "random_bytes": deps.random_bytes,
        "remaining_s": deps.count_down(),
        "now": now,
        "trigger": trigger,
    }


def _publish_nothing(step: str, _messages: Sequence[Message]) -> None:
    raise AssertionError(f"an explanation must not publish, and tried to trigger {step}")


def summarize(explanation: Explanation) -> Iterator[str]:
    """What is wrong and since when, what happens next and what to do, a paragraph at a time."""
    group, ready, now = explanation.group, explanation.ready, explanation.now
    subject = _describe_state(group, ready, now)
    if explanation.overdue:
        yield from _describe_overdue(explanation, subject)
        return
    if ready is not None and not ready.is_true:
        subject += f" ({ready.reason})"
    moment, changed = explanation.next_resync, explanation.changed
    class_name, candidate = explanation.of_class
    failed = {**explanation.refused, **explanation.failed}
    missed = [one for one in explanation.steps if one.missed and one.step not in failed]
    retries = [
        f"{one.step} has failed since {render_minute(one.since, now)} and is retried: {one.message}"
        for one in explanation.known.retries
    ]
    tried = [one.step for one in explanation.steps if one.missed]
    tried += [routes.APPROVE_JOIN] if ready and ready.reason == Reason.AWAITING_NODE_JOIN else []
    retries += [f"a step fails: {failed[step].rstrip('.')}." for step in tried if step in failed]
    if missed:
        has = "has work and was" if len(missed) == 1 else "have work and were"
        yield f"{subject}: {' and '.join(one.step for one in missed)} {has} not triggered."
        for one in missed:
            yield f"{one.step} would {'; '.join(one.missed)}."
        yield "A message is lost, is on its way, or is being handled."
    elif retries and not (ready is not None and ready.is_true):
        yield f"{subject}: {retries.pop(0)}"
    elif changed:
        yield f"{subject}, but its status is out of date: {changed}"
    elif ready is None:
        yield f"{subject}: no step has written its status yet."
    else:
        # A class does what is to be done; what a VM reports says more than to wait.
        silent = {*(REFUSALS if class_name else ()), *(PROGRESS if explanation.report else ())}
        yield from _describe_cause(subject, ready, silent)
    yield explanation.report
    if class_name:
        hint = "All candidates: kubectl tng explain pod/NAME; kubectl tng get names its Pod."
        yield f"It is a slice of TPUSliceClass {class_name}, at the candidate {candidate}. {hint}"
    yield from retries
    if moment is None:
        yield "The sweep triggers nothing within an hour: check this machine's clock."
    else:
        when = f"{moment:%H:%M} UTC (in {render_age(moment - now)})"
        hourly = ", as every hour" if explanation.is_settled else ""
        yield f"The sweep triggers {' and '.join(explanation.topics)} at {when}{hourly}."
    if missed or changed:
        others = [f" --step {one.step}" for one in missed if not one.is_triggered]
        yield f"To do it now: kubectl tng resync {group.key}{''.join(others[:1])}"
    observed = [one.ready.reason for one in explanation.steps if one.ready] if changed else []
    if ready is not None and (entry := find_entry(observed[0] if observed else ready.reason)):
        yield f"More: {link(entry)}"
    if explanation.log_error:
        yield f"Whether the steps still run is not known: {explanation.log_error}"


def _describe_state(group: AnyGroup, ready: Condition | None, now: datetime) -> str:
    if group.deleting is not None:
        return f"{group.key} is being deleted, for {render_age(now - group.deleting)}"
    if ready is None:
        return f"{group.key} is not Ready"
    been = f"{'' if ready.is_true else 'not '}been Ready for {render_age(now - ready.since)}"
    return f"{group.key} has {been}"


def _describe_cause(subject: str, ready: Condition, silent: Collection[str]) -> Iterator[str]:
    """The cause, then what to do, unless its reason is ``silent``. A long detail follows in the
    conditions."""
    message, meaning = ready.message, find_advice(ready.reason)
    cause, _, advice = meaning.partition(". ")
    detail = message.replace(meaning, "").strip()
    if not meaning or meaning not in message:
        # The message has words of its own for this case, and mostly what to do.
        cause, advice, detail = message, "" if ". " in message else advice, ""
    yield f"{subject}: {cause.rstrip('.')}."
    yield detail if len(detail) <= MAX_DETAIL else ""
    yield "" if ready.reason in silent else advice


def _describe_overdue(explanation: Explanation, subject: str) -> Iterator[str]:
    """No step has refreshed the status: its reason is that of an earlier time."""
    observed, now, overdue = explanation.observed, explanation.now, explanation.overdue
    steps = " and ".join(overdue)
    seen = max((observed[step] for step in overdue if step in observed), default=None)
    due = f"a resync was due at {min(overdue.values()):%H:%M} UTC"
    since = f"{seen:%H:%M} UTC ({render_age(now - seen)} ago)" if seen else due
    yield f"{subject} by its status, which {steps} has not refreshed since {since}."
    swept = observed.get(routes.SWEEP)
    failed = [text for step, text in explanation.failed.items() if step in overdue]
    if failed or routes.SWEEP in explanation.failed:
        what = "; ".join(failed or [explanation.failed[routes.SWEEP]])
        who = "It" if failed else "The sweep"
        yield f"{who} runs and fails: {what}. More: {_PAGE}#decisions-in-the-log"
    elif swept is not None and now - swept < ANSWERED_WITHIN + TICK:
        yield f"The sweep runs, but its messages do not reach {steps}. {_CHECK}"
    elif observed:
        yield f"The sweep does not run either: messages do not reach the functions. {_CHECK}"
    else:
        yield (
            "The log has no run of any function, or PUBSUB_PROJECT or TOPIC_PREFIX is not the "
            f"installation's. {_CHECK}"
        )
    if explanation.changed:
        yield f"The status is of an earlier time. {explanation.changed}"
    elif explanation.ready is not None and all(one.has_observed for one in explanation.steps):
        reason = explanation.ready.reason
        yield f"The status is of an earlier time. Its reason, {reason}, would be the same now."


def to_document(explanation: Explanation) -> dict[str, Any]:
    """The explanation as JSON."""
    group, moment = explanation.group, explanation.next_resync
    conditions = {
        kind: {**vars(condition), "type": str(kind), "since": render_time(condition.since)}
        for kind, condition in explanation.known.conditions.items()
    }
    ready, of = conditions.get(Type.READY), explanation.of_class
    return {
        "group": group.key,
        "uid": group.uid,
        "resourceName": group.resource_name,
        "deleting": render_time(group.deleting) if group.deleting else None,
        "summary": [text for text in summarize(explanation) if text],
        **({"class": dict(zip(("name", "candidate"), of, strict=True))} if of[0] else {}),
        "ready": {**ready, "meaning": find_advice(str(ready["reason"]))} if ready else None,
        "conditions": list(conditions.values()),
        "sweep": {
            "settled": explanation.is_settled,
            "nextResync": render_time(moment) if moment else None,
            "topics": list(explanation.topics),
        },
        "overdue": {step: render_time(due) for step, due in explanation.overdue.items()},
        "lastObserved": {step: render_time(at) for step, at in explanation.observed.items()},
        "events": list(explanation.events),
        "steps": [step_document(answer) for answer in explanation.steps],
    }


def step_document(answer: StepExplanation) -> dict[str, Any]:
    """The explanation of a step as JSON."""
    return {
        "step": answer.step,
        "triggeredBySweep": answer.is_triggered,
        "observed": answer.has_observed,
        "outcome": answer.outcome,
        "note": answer.note,
        "actions": list(answer.actions),
        "missed": list(answer.missed),
    }
