"""The frame of every step: envelope, occasion, look, decide, do, status, HTTP answer, log line.

A step is a `Step`: how it looks and how it decides. All the rest is the same for all and stands here:
which group an occasion means, what is acknowledged and what is tried again, that an answer which the
plan did not expect makes the step look again, that a refusal of the world becomes a condition.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from shared.base.errors import STALE_ANSWERS, CallError, OutOfTimeError
from shared.base.reasons import Reason
from shared.frame.audit_log import LogEvent
from shared.frame.decode import Delivery, Occasion, decode
from shared.frame.message import Message, PoisonError
from shared.frame.plan import (
    BEST_EFFORT,
    Action,
    Derive,
    Emit,
    ForOne,
    LookAgain,
    Plan,
    Publish,
    Work,
    WriteStatus,
)
from shared.frame.settings import Settings
from shared.node_groups import node_group, status
from shared.node_groups.events import changes
from shared.node_groups.node_group import NodeGroup
from shared.ports.classify import Kind, verdict_of
from shared.ports.gce.calls import Gce
from shared.ports.gce.clients import Clients
from shared.ports.kubernetes.access import AccessError
from shared.ports.kubernetes.cluster import Cluster
from shared.ports.kubernetes.connection import Connection

if TYPE_CHECKING:
    from shared.ports.gke import GkeClient

MAX_LOOKS = 3
SECONDS_FOR_CALLS = 30.0
"""No call starts later than this after the look: what a step acts on is never older."""
MAX_ATTEMPTS = 5
MAX_AGE = timedelta(minutes=10)
"""How long an occasion is tried where Pub/Sub does not count the attempts."""
MAX_SYNC_AGE = timedelta(minutes=2)

ACKNOWLEDGED, POISON, TRY_AGAIN = 204, 400, 503

CRASHED, REFUSED = "Crashed", "Refused"
SYNC_DROPPED, LEFT_TO_THE_SWEEP = "SyncDropped", "LeftToTheSweep"
_GIVEN_UP = frozenset({REFUSED, SYNC_DROPPED, LEFT_TO_THE_SWEEP})


@dataclass
class Runtime:
    """All that a step gets from outside: settings, time, randomness, and the ways out."""

    settings: Settings
    connection: Connection
    clients: Clients
    publish: Publish
    now: Callable[[], datetime]
    monotonic: Callable[[], float]
    random_bytes: Callable[[int], bytes]
    log: Any
    gke: GkeClient | None = None
    """The way to GKE, where JobSets get node pools."""


@dataclass(frozen=True)
class Answer:
    """What Pub/Sub is told, and in one word why."""

    http: int
    outcome: str
    note: str = ""


@dataclass
class Invocation:
    """One message in one step: its ports, and what the log line will say."""

    runtime: Runtime
    step: str
    occasion: Occasion
    started: float
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.looked = self.started
        self.gce = Gce(self.runtime.clients, self.remaining_s)
        self.cluster = Cluster(self.runtime.connection, self.step, self.remaining_s)

    def remaining_s(self) -> float:
        """Seconds left for calls. Raises `OutOfTimeError` when there are none."""
        left = self.looked + SECONDS_FOR_CALLS - self.runtime.monotonic()
        if left <= 0:
            raise OutOfTimeError(f"no answer within {SECONDS_FOR_CALLS:.0f} s")
        return left

    def look_from_now(self) -> None:
        """What is read from here on is fresh: the time for calls begins anew."""
        self.looked = self.runtime.monotonic()


@dataclass(frozen=True)
class Step:
    """A step: how it looks (I/O) and how it decides (pure).

    ``report`` turns a refusal of the world, met while looking or doing, into the status that says so.
    """

    name: str
    look: Callable[[Work, Settings], Any]
    decide: Callable[[Any, datetime], Plan]
    report: Callable[[CallError, Reason], Derive]

    def run(self, invocation: Invocation) -> Answer:
        """Look, decide, do; three times at most, while the world moves."""
        return look_until_it_holds(
            invocation, lambda is_first_look: self._once(invocation, is_first_look=is_first_look)
        )

    def _once(self, invocation: Invocation, *, is_first_look: bool) -> Answer:
        found, why_not = find_target(invocation)
        if found is None:
            return Answer(ACKNOWLEDGED, why_not)
        work = _work(invocation, found, is_first_look=is_first_look)
        try:
            plan = self.decide(self.look(work, invocation.runtime.settings), work.now)
            _carry_out(plan, work, invocation)
        except CallError as error:
            return self._refused(error, work, invocation)
        return Answer(ACKNOWLEDGED, plan.outcome, plan.note)

    def _refused(self, error: CallError, work: Work, invocation: Invocation) -> Answer:
        if error.http in STALE_ANSWERS:
            raise LookAgain(str(error)) from error
        verdict = verdict_of(error)
        if verdict.kind is Kind.OURS or verdict.reason is None:
            raise error
        if work.occasion.event is None or not work.occasion.event.concerns_vm:
            before = work.status = status.parse(work.group.raw.get("status"))
            WriteStatus(self.report(error, verdict.reason)).apply(work)
            _tell(before, work, invocation)
        return Answer(ACKNOWLEDGED, verdict.reason, str(error))


def look_until_it_holds(invocation: Invocation, once: Callable[[bool], Answer]) -> Answer:
    """Look, decide and do ``once``, which is told whether it is the first time; again when it raises
    `LookAgain`, three times at most."""
    note = ""
    for attempt in range(MAX_LOOKS):
        invocation.look_from_now()
        try:
            return once(attempt == 0)
        except LookAgain as turn:
            note = str(turn)
    raise CallError(invocation.step, 409, "conditionNotMet", f"the world keeps moving: {note}")


def _work(invocation: Invocation, group: NodeGroup, *, is_first_look: bool) -> Work:
    return Work(
        gce=invocation.gce,
        cluster=invocation.cluster,
        publish=invocation.runtime.publish,
        random_bytes=invocation.runtime.random_bytes,
        now=invocation.runtime.now(),
        occasion=invocation.occasion,
        group=group,
        status=status.parse(group.raw.get("status")),
        is_first_look=is_first_look,
    )


def _carry_out(plan: Plan, work: Work, invocation: Invocation) -> None:
    before = work.status
    refused: list[CallError | LookAgain] = []
    for action in plan.actions:
        if isinstance(action, BEST_EFFORT):
            _try(action, work, invocation)
        elif isinstance(action, ForOne):
            refused += _apply_for_one(action, work)
        else:
            action.apply(work)
    _tell(before, work, invocation)
    if refused:
        raise refused[0]


def _tell(before: status.Status, work: Work, invocation: Invocation) -> None:
    """What has changed, as Kubernetes Events."""
    for event in changes(work.group, before, work.status):
        _try(Emit(event), work, invocation)


def _apply_for_one(action: ForOne, work: Work) -> list[CallError | LookAgain]:
    """One VM's trouble is told when all others have got what they need."""
    try:
        action.apply(work)
    except (CallError, LookAgain) as error:
        return [error]
    return []


def _try(action: Action, work: Work, invocation: Invocation) -> None:
    """Something that may fail without harm: said in the log, and that is all."""
    try:
        action.apply(work)
    except (CallError, OutOfTimeError) as error:
        invocation.facts.setdefault("left_undone", []).append(str(error))


def find_target(invocation: Invocation) -> tuple[NodeGroup | None, str]:
    """The group that an occasion means, or why there is none."""
    cluster_id = invocation.cluster.get_cluster_id()
    message, event = invocation.occasion.message, invocation.occasion.event
    if message is not None:
        invocation.facts["group"] = f"{message.namespace}/{message.name}"
        raw = invocation.cluster.find_group(message.namespace, message.name)
        if raw is None:
            return None, "GroupGone"
        if message.uid and raw["metadata"]["uid"] != message.uid:
            return None, "GroupReplaced"
        candidates = [raw]
    elif event is not None:
        candidates = invocation.cluster.list_groups_named(event.resource_name)
    else:
        return None, "NotForThisStep"
    groups = [node_group.parse(raw, cluster_id) for raw in candidates]
    found = next((group for group in groups if event is None or _is_meant(group, event)), None)
    if found is not None:
        invocation.facts |= {"group": found.key, "uid": found.uid}
    return found, "NotOurs"


def _is_meant(group: NodeGroup, event: LogEvent) -> bool:
    """Users can write labels: only the name computed from the uid proves whose a resource is."""
    if group.resource_name != event.resource_name or group.spec is None:
        return False
    places = ("", group.spec.zone, group.spec.region)
    return event.project == group.spec.project and event.location in places


def handle(step: str, run: Callable[[Invocation], Answer], body: bytes, runtime: Runtime) -> Answer:
    """Answer one push request of a step's inbox, and write its log line."""
    started = runtime.monotonic()
    facts: dict[str, Any] = {}
    answer = _answer(step, run, body, runtime, started, facts)
    _log(step, answer, facts, runtime, started)
    return answer


def _answer(
    step: str,
    run: Callable[[Invocation], Answer],
    body: bytes,
    runtime: Runtime,
    started: float,
    facts: dict[str, Any],
) -> Answer:
    try:
        delivery = decode(body)
    except PoisonError as error:
        return Answer(POISON, "Poison", str(error))
    facts |= {"message_id": delivery.message_id, "attempt": delivery.attempt}
    occasion = delivery.occasion
    if occasion is None:
        return Answer(ACKNOWLEDGED, "NobodysBusiness", delivery.note)
    facts["occasion"] = occasion.cause
    if not occasion.is_for(step):
        return Answer(ACKNOWLEDGED, "NotForThisStep", f"{occasion.cause} wakes others")
    if occasion.is_sync and runtime.now() - occasion.at > MAX_SYNC_AGE:
        return Answer(ACKNOWLEDGED, "StaleSync", "a newer one is on its way")
    invocation = Invocation(runtime, step, occasion, started, facts)
    try:
        return run(invocation)
    except CallError as error:
        return _try_again_or_not(delivery, runtime, error, is_ours=_is_ours(error))
    except (OutOfTimeError, AccessError) as error:
        return _try_again_or_not(delivery, runtime, error, is_ours=True)
    except Exception as error:  # noqa: BLE001 - the outermost handler: a fault of ours is told, once
        facts["crash"] = traceback.format_exc(limit=-5)
        answer = _try_again_or_not(delivery, runtime, error, is_ours=True)
        return Answer(answer.http, CRASHED, f"{type(error).__name__}: {error}")
    finally:
        facts["calls"] = {
            "gce": invocation.gce.calls,
            "kubernetes": invocation.cluster.calls,
        }


def _is_ours(error: CallError) -> bool:
    """A refusal that comes this far stands in no condition. Of rights that means that not even the
    group could be read or written: an API server that has just started refuses so what it allows a
    second later.
    """
    is_untold = error.http in STALE_ANSWERS or error.http in (401, 403)
    return is_untold or verdict_of(error).kind is Kind.OURS


def _try_again_or_not(
    delivery: Delivery, runtime: Runtime, error: Exception, *, is_ours: bool
) -> Answer:
    """Nack what is ours to retry, within bounds: what is given up here, the sweep takes up."""
    note = str(error)
    if not is_ours:
        return Answer(ACKNOWLEDGED, REFUSED, note)
    if delivery.occasion is not None and delivery.occasion.is_sync:
        return Answer(ACKNOWLEDGED, SYNC_DROPPED, note)
    published = delivery.published
    is_old = published is not None and runtime.now() - published > MAX_AGE
    if delivery.attempt >= MAX_ATTEMPTS or (delivery.attempt == 0 and is_old):
        return Answer(ACKNOWLEDGED, LEFT_TO_THE_SWEEP, note)
    return Answer(TRY_AGAIN, "TryAgain", note)


def _level(answer: Answer) -> str:
    """What is acknowledged and still undone must be seen, too: nothing else tells of it."""
    if answer.outcome == CRASHED:
        return "error"
    return "warning" if answer.http != ACKNOWLEDGED or answer.outcome in _GIVEN_UP else "info"


def _log(
    step: str, answer: Answer, facts: Mapping[str, Any], runtime: Runtime, started: float
) -> None:
    fields = {"step": step, "decision": answer.outcome, **facts}
    if answer.note:
        fields["note"] = answer.note
    uid = fields.pop("uid", "")
    if uid:
        project = runtime.settings.pubsub_project
        fields["logging.googleapis.com/trace"] = f"projects/{project}/traces/{uid.replace('-', '')}"
    fields["milliseconds"] = round((runtime.monotonic() - started) * 1000)
    write = getattr(runtime.log, _level(answer))
    write(f"{step}: {answer.outcome}", **fields)


def message_about(group: NodeGroup, cause: Any, at: datetime, **names: Any) -> Message:
    """An occasion about a group, for another inbox."""
    return Message(group.namespace, group.name, group.uid, cause, at, **names)
