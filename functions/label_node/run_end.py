"""When Compute Engine ends the VMs, and the Events that announce it."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from functions.label_node.observed_nodes import ObservedNodes
from shared.base.timestamps import CLOCKS_DIFFER_BY, render_time
from shared.frame.plan import Emit
from shared.node_groups.status import RUN_END_NOTICES, Status
from shared.ports.gce.values import UP, Instance
from shared.ports.kubernetes.events import Event

_LATE_AFTER = timedelta(minutes=10)
"""A resync that comes later than this after a notice was due emits no Event: the next notice follows."""


def add_run_end(observed: ObservedNodes, known: Status) -> Status:
    """The status with the time at which Compute Engine ends the first of the VMs. A resync reads all
    VMs; another trigger those that have just joined."""
    up = [vm for vm in observed.members.values() if vm.status in UP]
    ends = [end for vm in up if (end := _find_end(vm, known)) is not None]
    if not ends and not (up and observed.has_all_vms):
        return known
    before = None if observed.has_all_vms else known.run_ends
    return replace(known, run_ends=min(filter(None, (*ends, before)), default=None))


def _find_end(vm: Instance, known: Status) -> datetime | None:
    """When Compute Engine ends a VM, as the VM shows it. Whether it shows the end of a reservation in
    calendar mode is a guess; the end of its maxRunDuration also follows from its start."""
    is_limited = known.max_run_s and vm.started is not None
    return vm.ends or (known.find_run_end(vm.started) if is_limited and vm.started else None)


def list_events(observed: ObservedNodes, known: Status, now: datetime) -> Iterator[Emit]:
    """The Event about the end of the VMs, if a notice is due and the trigger is the sweep's resync."""
    end = known.run_ends
    if end is None or not observed.trigger.is_resync:
        return
    for notice, words in RUN_END_NOTICES.items():
        if -CLOCKS_DIFFER_BY <= now - (end - notice) < min(_LATE_AFTER, notice):
            at, cause = render_time(end), _describe_cause(known)
            text = (
                f"Compute Engine ends the first of the VMs at {at}, in {words}: {cause} then. Save "
                "checkpoints before."
            )
            yield Emit(Event("RunEnds", text, is_warning=True, key=f"{words} {at}"), once=True)


def _describe_cause(known: Status) -> str:
    """Why the VMs end; both causes if a template has both, since the status has one time."""
    causes = ["it has run for its maxRunDuration"] if known.max_run_s else []
    if known.provisioning_model == "RESERVATION_BOUND":
        causes.append("its reservation ends")
    return " or ".join(causes) or "the time that its template sets is reached"
