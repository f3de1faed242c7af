"""A log line for each leaked slice."""

from dataclasses import dataclass
from datetime import datetime

from functions.report_leaks.leaks import MAX_NAMED_VMS, Leak, render_message
from functions.report_leaks.observe import LeakWork, ObservedLeaks
from shared.frame.plan import Plan
from shared.triggers import routes

NODES_LEFT = "NodesWithoutGroup"
SEE_COMMANDS = "To see the commands that delete them: kubectl tng leaks"
"""A command to paste does not belong into a log, which others may write, too."""
LEAKED = "LeakedSlice"
"""The decision in each leaked slice's log line. An alert in infra/terraform counts these lines."""


@dataclass(frozen=True)
class ReportLeak:
    """Write an error about a leaked slice to the log."""

    leak: Leak

    def apply(self, work: LeakWork) -> None:
        leak = self.leak
        work.log.error(
            f"report_leaks: {LEAKED}",
            step=routes.REPORT_LEAKS,
            decision=LEAKED,
            group=leak.group,
            slice=leak.name,
            project=leak.project,
            vms=len(leak.vms),
            note=f"{render_message(leak)} {SEE_COMMANDS}",
        )

    def describe(self) -> str:
        return f"report the leaked slice {self.leak.name}"


@dataclass(frozen=True)
class ReportNodes:
    """Write a warning about Nodes without a group to the log."""

    nodes: tuple[str, ...]

    def apply(self, work: LeakWork) -> None:
        names, more = ", ".join(self.nodes[:MAX_NAMED_VMS]), len(self.nodes) - MAX_NAMED_VMS
        work.log.warning(
            f"report_leaks: {NODES_LEFT}",
            step=routes.REPORT_LEAKS,
            decision=NODES_LEFT,
            nodes=len(self.nodes),
            note=f"No TPUNodeGroup has the Nodes {names}{f' and {more} more' if more > 0 else ''}. They "
            f"stay until you delete them, and remove their finalizers. {SEE_COMMANDS}",
        )

    def describe(self) -> str:
        return f"report {len(self.nodes)} Nodes without a group"


def decide(observed: ObservedLeaks, _now: datetime) -> Plan:
    """Report each leak. Without leaks, raise a failure, if any.

    After a report, errors are in the log line: a retry would report the leaks again.
    """
    reports = tuple(map(ReportLeak, observed.leaks))
    outcome = "LeaksFound" if reports or observed.nodes else "NoLeaks"
    facts = {"resources": observed.resources, "leaks": len(reports)}
    nodes = (ReportNodes(observed.nodes),) if observed.nodes else ()
    if observed.left:
        facts["left"] = observed.left
    has_report = bool(reports or nodes)
    note = "; ".join(map(str, observed.failures)) if has_report else ""
    errors = () if has_report else observed.failures
    warns = observed.left > 0 or bool(note)
    return Plan(
        outcome,
        first=(*reports, *nodes),
        errors=errors,
        note=note,
        facts=facts,
        needs_attention=warns,
    )
