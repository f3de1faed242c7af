"""A log line for each leaked slice."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from functions.report_leaks.leaks import MAX_NAMED_VMS, Leak, render_message
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
    """Write an error about a leaked slice to the log."""

    leak: Leak

    def apply(self, work: Work) -> None:
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

    def apply(self, work: Work) -> None:
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
    """Report each leak, and what could not be read, which the step reads again in an hour.

    No error is raised: a retry would report again, and most errors last.
    """
    reports = tuple(map(ReportLeak, observed.leaks))
    nodes = (ReportNodes(observed.nodes),) if observed.nodes else ()
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
