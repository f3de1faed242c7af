"""A log line for each leaked slice."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from functions.report_leaks.leaks import Leak, render_message
from functions.report_leaks.observe import LeakWork, ObservedLeaks
from shared.frame.plan import Plan
from shared.triggers import routes

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
            # A command to paste does not belong into a log, which others may write, too.
            note=f"{render_message(leak)} To see the commands that delete them: kubectl tng leaks",
        )

    def describe(self) -> str:
        return f"report the leaked slice {self.leak.name}"


def decide(observed: ObservedLeaks, _now: datetime) -> Plan:
    """Report each leak. Without leaks, raise a failure, if any.

    After a report, errors are in the log line: a retry would report the leaks again.
    """
    reports = tuple(map(ReportLeak, observed.leaks))
    outcome = "LeaksFound" if reports else "NoLeaks"
    facts = {"resources": observed.resources, "leaks": len(reports)}
    if observed.left:
        facts["left"] = observed.left
    note = "; ".join(map(str, observed.failures)) if reports else ""
    errors = () if reports else observed.failures
    warns = observed.left > 0 or bool(note)
    return Plan(
        outcome, first=reports, errors=errors, note=note, facts=facts, needs_attention=warns
    )
