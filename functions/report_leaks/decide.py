"""A log line for each leaked slice."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from functions.report_leaks.leaks import Leak, render_message, render_names
from functions.report_leaks.observe import ObservedLeaks
from shared.frame.plan import Plan, Work
from shared.triggers import routes

NODES_LEFT = "NodesWithoutGroup"
SEE_COMMANDS = "To see the commands that delete them: kubectl tng leaks"
"""A command to paste does not belong into a log, which others may write, too."""
LEAKED = "LeakedSlice"
"""The decision in each leaked slice's log line. An alert in infra/terraform counts these lines."""
NOT_ALL_SEEN = "NotAllSeen"
"""The outcome without a leak if not everything could be read."""


@dataclass(frozen=True)
class ReportLeak:
    """Write a line about leaks to the log: an error about a slice, a warning about Nodes."""

    decision: str
    about: str
    fields: Mapping[str, Any]

    def apply(self, work: Work) -> None:
        write = work.log.error if self.decision == LEAKED else work.log.warning
        fields = {"step": routes.REPORT_LEAKS, "decision": self.decision, **self.fields}
        write(f"report_leaks: {self.decision}", **fields)

    def describe(self) -> str:
        return f"report {self.about}"


def _report_leak(leak: Leak) -> ReportLeak:
    note = f"{render_message(leak)} {SEE_COMMANDS}"
    named = {"group": leak.group, "slice": leak.name, "project": leak.project}
    about = f"the leaked slice {leak.name}"
    return ReportLeak(LEAKED, about, {**named, "vms": len(leak.vms), "note": note})


def _report_nodes(nodes: Sequence[str]) -> ReportLeak:
    note = (
        f"No TPUNodeGroup has the Nodes {render_names(nodes)}. They stay until you delete them, and "
        f"remove their finalizers. {SEE_COMMANDS}"
    )
    about = f"{len(nodes)} Nodes without a group"
    return ReportLeak(NODES_LEFT, about, {"nodes": len(nodes), "note": note})


def decide(observed: ObservedLeaks, _now: datetime) -> Plan:
    """Report each leak, and what could not be read, which the step reads again in an hour.

    No error is raised: a retry would report again, and most errors last.
    """
    reports = tuple(map(_report_leak, observed.leaks))
    nodes = (_report_nodes(observed.nodes),) if observed.nodes else ()
    outcome = NOT_ALL_SEEN if observed.unseen else "NoLeaks"
    facts = {"resources": observed.resources, "leaks": len(reports)}
    if observed.left:
        facts["left"] = observed.left
    return Plan(
        "LeaksFound" if reports or nodes else outcome,
        first=(*reports, *nodes),
        note=render_unseen(observed, map(str, observed.failures)),
        facts=facts,
        needs_attention=bool(observed.left or observed.unseen),
    )


def render_unseen(observed: ObservedLeaks, failures: Iterable[str]) -> str:
    """What could not be read, and why, in words; empty if everything was read."""
    unseen = f"Not seen: {', '.join(observed.unseen)}" if observed.unseen else ""
    return "; ".join(filter(None, (unseen, *failures)))
