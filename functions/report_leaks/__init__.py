"""report_leaks: once an hour, log an error for each leaked slice. The step deletes nothing.

Trigger: a message of the sweep, in one minute of each hour.

A slice is leaked if its resources on Compute Engine have this cluster's ownership mark and its group
does not exist, or is being deleted without this system's finalizer. That happens if a user has removed
the finalizer, or if a process was frozen for minutes before an insert, which then took effect after the
group's deletion.

The step lists three kinds of resources in each project, and the groups. A slice that looks leaked is
reported if it has a resource that is older than an hour, and still exists when it is read again: at most
ten in a run, the oldest first. The log line counts the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from functions.report_leaks.leaks import (
    LISTED_KINDS,
    MIGS,
    PREFIX,
    TEMPLATES,
    Leak,
    find_leaks,
    is_abandoned,
    render_commands,
    render_message,
)
from shared.frame.plan import Fail, Plan, StaleObservation, Work
from shared.frame.step import Invocation, Step, is_retried, work_fields
from shared.ports.errors import CallError, OutOfTimeError
from shared.ports.gce.calls import Gce
from shared.ports.gce.values import ListedResource, TemplateRef

MAX_LEAKS = 10
"""How many leaked slices one invocation reads again and reports, the oldest first."""
SECONDS_FOR_CONFIRMING = 15.0
"""Listing leaves so many seconds for reading the groups and the suspected slices."""
LEAKED = "LeakedSlice"
"""The decision in each leaked slice's log line. An alert in infra/terraform counts these lines."""


@dataclass(kw_only=True)
class LeakWork(Work):
    """Work that writes log lines about single slices."""

    log: Any = field(repr=False)


@dataclass(frozen=True)
class ObservedLeaks:
    """The leaked slices, and how many resources were listed.

    ``failures`` are the errors of projects and of slices that could not be read. ``left`` is the number
    of slices that look leaked and were not read again (`MAX_LEAKS`).
    """

    leaks: tuple[Leak, ...]
    resources: int
    failures: tuple[CallError | OutOfTimeError, ...] = ()
    left: int = 0


@dataclass(frozen=True)
class ReportLeak:
    """Write an error about a leaked slice to the log."""

    leak: Leak

    def apply(self, work: LeakWork) -> None:
        leak = self.leak
        work.log.error(
            f"report_leaks: {LEAKED}",
            step="report_leaks",
            decision=LEAKED,
            group=leak.group,
            slice=leak.name,
            project=leak.project,
            vms=len(leak.vms),
            commands=list(render_commands(leak)),
            note=render_message(leak),
        )

    def describe(self) -> str:
        return f"report the leaked slice {self.leak.name}"


def open_work(invocation: Invocation, is_first_observation: bool) -> LeakWork:
    """The work on all served projects."""
    return LeakWork(
        **work_fields(invocation, is_first_observation=is_first_observation),
        log=invocation.runtime.log,
    )


def observe(work: LeakWork) -> ObservedLeaks:
    """List the resources that have names of this system, then the groups. Read leaks again."""
    cluster = work.cluster.get_cluster_id()
    listed: list[ListedResource] = []
    failures: list[CallError | OutOfTimeError] = []
    with work.reserve(SECONDS_FOR_CONFIRMING):
        for project in work.rotate(sorted(work.settings.projects)):
            try:
                for kind in LISTED_KINDS:
                    listed += work.gce.list_named(project, kind, PREFIX)
            except (CallError, OutOfTimeError) as error:
                failures.append(error)
    groups = work.cluster.list_groups() if listed else ()
    uids = {raw["metadata"]["uid"] for raw in groups if not is_abandoned(raw)}
    # A kubeconfig that has changed meanwhile clears the id that the connection keeps.
    if work.cluster.get_cluster_id() != cluster:
        raise StaleObservation("the kubeconfig leads to another cluster now")
    suspects = find_leaks(listed, uids, cluster, work.now)
    leaks: list[Leak] = []
    for suspect in suspects[:MAX_LEAKS]:
        try:
            leaks.append(confirm(work.gce, suspect))
        except (CallError, OutOfTimeError) as error:
            failures.append(error)
    existing = tuple(leak for leak in leaks if leak.resources)
    return ObservedLeaks(existing, len(listed), tuple(failures), len(suspects[MAX_LEAKS:]))


def decide(observed: ObservedLeaks, _now: datetime) -> Plan:
    """Report each leak. Without leaks, raise a failure, if any: one that is retried comes first.

    After a report, errors are in the log line: a retry would report the leaks again.
    """
    reports = tuple(map(ReportLeak, observed.leaks))
    errors = sorted(observed.failures, key=is_retried, reverse=True)
    failures = () if reports else tuple(map(Fail, errors[:1]))
    outcome = "LeaksFound" if reports else "NoLeaks"
    facts = {"resources": observed.resources, "leaks": len(reports)}
    if observed.left:
        facts["left"] = observed.left
    note = "; ".join(map(str, observed.failures)) if reports else ""
    needs_attention = observed.left > 0 or bool(note)
    return Plan(outcome, (*reports, *failures), note, facts, needs_attention=needs_attention)


def recover(_work: LeakWork, _error: CallError) -> Plan | None:
    """No plan: after a transient error the message is retried, and the step runs again in an hour."""
    return None


STEP = Step("report_leaks", open_work, observe, decide, recover)
run = STEP.run


def confirm(gce: Gce, leak: Leak) -> Leak:
    """Read the slice's resources and VMs again: a list still shows what was deleted seconds ago."""
    left = tuple(resource for resource in leak.resources if _exists(gce, resource))
    vms: list[str] = []
    for mig in (resource for resource in left if resource.service == MIGS):
        found = gce.list_instances(mig.project, mig.location, mig.name)
        vms += [vm.name for vm in found if vm.is_member_of(mig.location, mig.name)]
    return replace(leak, resources=left, vms=tuple(vms))


def _exists(gce: Gce, resource: ListedResource) -> bool:
    project, location, name = resource.project, resource.location, resource.name
    if resource.service == MIGS:
        mig = gce.find_mig(project, location, name)
        return mig is not None and mig.description == resource.description
    if resource.service == TEMPLATES:
        template = gce.find_template(TemplateRef(project, name, location))
        return template is not None and template.description == resource.description
    policy = gce.find_policy(project, location, name)
    return policy is not None and policy.description == resource.description
