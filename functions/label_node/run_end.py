"""When maxRunDuration ends the VMs, and the Events that announce it."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from functions.label_node.observed_nodes import ObservedNodes
from shared.base.timestamps import CLOCKS_DIFFER_BY, render_time
from shared.frame.plan import Emit
from shared.node_groups.status import RUN_END_NOTICES, Status
from shared.ports.gce.values import UP
from shared.ports.kubernetes.events import Event

_LATE_AFTER = timedelta(minutes=10)
"""A resync that comes later than this after a notice was due emits no Event: the next notice follows."""


def add_run_end(observed: ObservedNodes, known: Status) -> Status:
    """The status with the time at which Compute Engine ends the first of the VMs, by their starts. A
    resync reads all VMs; another trigger those that have just joined."""
    started = [vm.started for vm in observed.members.values() if vm.started and vm.status in UP]
    if not known.max_run_s:
        return replace(known, run_ends=None)
    if not started:
        return known
    end = known.find_run_end(min(started))
    before = None if observed.has_all_vms else known.run_ends
    return replace(known, run_ends=min(filter(None, (end, before))))


def list_events(observed: ObservedNodes, known: Status, now: datetime) -> Iterator[Emit]:
    """The Event about the end of the VMs, if a notice is due and the trigger is the sweep's resync."""
    end = known.run_ends
    if end is None or not observed.trigger.is_resync:
        return
    for notice, words in RUN_END_NOTICES.items():
        if -CLOCKS_DIFFER_BY <= now - (end - notice) < min(_LATE_AFTER, notice):
            at = render_time(end)
            text = (
                f"Compute Engine ends the first of the VMs at {at}, in {words}: it has run for its "
                "maxRunDuration then. Save checkpoints before."
            )
            yield Emit(Event("RunEnds", text, is_warning=True, key=f"{words} {at}"), once=True)
