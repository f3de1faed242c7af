"""A log line for each leaked slice, and a report of each idle one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from functions.report_leaks.idle import SliceInUse, plan_writes
from functions.report_leaks.leaks import (
    Leak,
    render_message,
    render_names,
    render_pool_message,
)
from functions.report_leaks.observe import ObservedLeaks
from shared.base.fields import count
from shared.base.timestamps import render_time
from shared.frame.plan import Emit, Plan, Work
from shared.node_groups.node_group import NodeGroup
from shared.ports.kubernetes.events import Event
from shared.triggers import routes

NODES_LEFT = "NodesWithoutGroup"
SEE_COMMANDS = "To see the commands that delete them: kubectl tng leaks"
"""A command to paste does not belong into a log, which others may write, too."""
LEAKED = "LeakedSlice"
"""The decision in each leaked slice's log line. An alert in infra/terraform counts these lines."""
IDLE = "IdleSlice"
"""The decision in each idle slice's log line, which another alert counts."""
NOT_ALL_SEEN = "NotAllSeen"
"""The outcome without a leak if not everything could be read."""


@dataclass(frozen=True)
class ReportLeak:
    """Write a line to the log: an error about a leaked slice, a warning about Nodes, or an information
    about an idle slice."""

    decision: str
    about: str
    fields: Mapping[str, Any]

    def apply(self, work: Work) -> None:
        levels = {LEAKED: work.log.error, IDLE: work.log.info}
        write = levels.get(self.decision, work.log.warning)
        fields = {"step": routes.REPORT_LEAKS, "decision": self.decision, **self.fields}
        write(f"report_leaks: {self.decision}", **fields)

    def describe(self) -> str:
        return f"report {self.about}"


def _report_leak(leak: Leak) -> ReportLeak:
    note = f"{render_message(leak)} {SEE_COMMANDS}"
    named = {"group": leak.group, "slice": leak.name, "project": leak.project}
    about = f"the leaked slice {leak.name}"
    return ReportLeak(LEAKED, about, {**named, "vms": len(leak.vms), "note": note})


def _report_pool(name: str) -> ReportLeak:
    note = f"{render_pool_message(name)} {SEE_COMMANDS}"
    return ReportLeak(LEAKED, f"the leaked node pool {name}", {"slice": name, "note": note})


def _report_nodes(nodes: Sequence[str]) -> ReportLeak:
    note = (
        f"No TPUNodeGroup has the Nodes {render_names(nodes)}. They stay until you delete them, and "
        f"remove their finalizers. {SEE_COMMANDS}"
    )
    about = f"{count(len(nodes), 'Node')} without a group"
    return ReportLeak(NODES_LEFT, about, {"nodes": len(nodes), "note": note})


def _report_idle(one: SliceInUse, now: datetime) -> tuple[ReportLeak, Emit]:
    chips, since = sum(node.chips for node in one.nodes), one.status.idle_since
    named = {"slice": one.name, "workload": one.workload, "chips": chips}
    what, end = f"node pool {one.name}", ""
    if isinstance(one.owner, NodeGroup):
        named["group"] = one.owner.key
        what, end = f"TPUNodeGroup {one.owner.key}", " Delete it if nothing needs it."
    if one.workload:
        end = f" It was created for {one.workload}, and is deleted when that ends."
    when = f"at each look since {render_time(since)}, once an hour" if since else "now"
    note = f"No Pod used the {chips} TPU chips of {what} {when}. They are billed.{end}"
    hours = round((now - since).total_seconds() / 3600, 1) if since else 0
    line = ReportLeak(IDLE, f"the idle slice {one.name}", {**named, "idle_h": hours, "note": note})
    return line, Emit(Event("SliceIdle", note, is_warning=True), one.about, once=True)


def decide(observed: ObservedLeaks, now: datetime) -> Plan:
    """Report each leak, each idle slice, and what could not be read, which the step reads again in an
    hour.

    No error is raised: a retry would report again, and most errors last.
    """
    reports = (*map(_report_leak, observed.leaks), *map(_report_pool, observed.pools))
    idle = [one for one in observed.slices if one.is_reported(now)]
    nodes = (_report_nodes(observed.nodes),) if observed.nodes else ()
    outcome = NOT_ALL_SEEN if observed.unseen else "NoLeaks"
    facts = {"resources": observed.resources, "leaks": len(reports)}
    if idle:
        facts["idle"] = len(idle)
    if observed.left:
        facts["left"] = observed.left
    return Plan(
        "LeaksFound" if reports or nodes else outcome,
        first=(*reports, *nodes),
        best_effort=(
            *plan_writes(observed.slices, now),
            *(action for one in idle for action in _report_idle(one, now)),
        ),
        note=render_unseen(observed, map(str, observed.failures)),
        facts=facts,
        needs_attention=bool(observed.left or observed.unseen),
    )


def render_unseen(observed: ObservedLeaks, failures: Iterable[str]) -> str:
    """What could not be read, and why, in words; empty if everything was read."""
    unseen = f"Not seen: {', '.join(observed.unseen)}" if observed.unseen else ""
    return "; ".join(filter(None, (unseen, *failures)))
