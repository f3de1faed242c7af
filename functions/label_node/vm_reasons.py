"""Why is a VM of a slice, or its Node, not ready: the reasons, the most severe first.

`RULES` is the specification: unless an earlier reason still holds (`find_reason`), the first rule that
applies to the `VmFacts` about a VM decides.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from shared.base.reasons import RUN_ENDS, VM_LOSSES, Reason
from shared.node_groups.status import Pending
from shared.ports.gce.values import Instance
from shared.ports.kubernetes.nodes import Node

PLUGIN_LATE_AFTER = timedelta(minutes=2)
"""A Node that is Ready this long and does not offer all its chips lacks its device plugin."""
MAX_START_OF_NODE = timedelta(minutes=5)
"""How long a Node may take to start its network and its device plugin (a guess). A Node that is new, or
whose VM was started again, is reported as not Ready only after this time."""
REJECTIONS = (Reason.JOIN_DENIED, Reason.JOIN_NOT_APPROVED)
"""The reasons that ``approve_join`` reports for VMs. They are also the causes of its messages."""
ENDS = RUN_ENDS | {Reason.PREEMPTED}
"""How Compute Engine ends VMs. A Node does not show it."""
WAITS = "PENDING"
"""The status of a flex-start VM that waits for capacity, perhaps for days."""


@dataclass(frozen=True)
class VmFacts:
    """What is known about a VM that is not ready. Fields without a default are about the slice."""

    now: datetime
    join_timeout: timedelta
    chips: int  # of each VM; 0 if not known yet
    end: Reason | None  # why the VM has, or had, to end by now
    completed_at: datetime | None  # when the slice was complete for the first time
    earlier: Pending | None = None  # what the status reports about the VM
    is_outdated: bool = False  # what was read since contradicts ``earlier``
    event_loss: Reason | None = None  # from the trigger's event, unless the VM was started after it
    is_gone: bool = (
        False  # the slice was complete, and the VM or its Node does not exist (`counts`)
    )
    new_rejection: Reason | None = None  # from the trigger, if it is a message of ``approve_join``
    exists: bool = False  # it was read and is a member of the MIG
    is_down: bool = False  # it was read and does not run, or was not read and is reported lost
    instance: Instance | None = None  # ``None``: the VM does not exist or was not read
    node: Node | None = None  # the Node with which the VM has joined
    had_node: bool = False  # since its last start, and no stale Node has its name
    is_mismatched: bool = False  # a Node has only the VM's name, or only its providerID

    @property
    def earlier_reason(self) -> Reason | None:
        """The earlier reason, while it holds. Of a gone VM only a loss holds. If the VM has joined, only
        `ENDS` hold: its Node shows everything else."""
        if self.earlier is None or (self.node is not None and self.earlier.why not in ENDS):
            return None
        holds = not (self.is_outdated or self.event_loss is not None)
        if self.is_gone:
            holds = self.earlier.why in VM_LOSSES
        return Reason(self.earlier.why) if holds else None

    @property
    def is_lost(self) -> bool:
        """Whether the trigger's event, the absence of the VM or of its Node, or a stop shows that the VM
        is lost."""
        is_stopped = self.is_down and (self.node is not None or self.lacks_node)
        is_newly_gone = self.is_gone and (self.earlier is None or self.node is None)
        return self.event_loss is not None or is_newly_gone or is_stopped

    @property
    def lacks_node(self) -> bool:
        """Whether the VM has not joined although it has capacity."""
        is_waiting = self.instance is not None and self.instance.status == WAITS
        return self.exists and self.node is None and not is_waiting

    @property
    def started(self) -> datetime | None:
        """When the VM was last started; when it was created if that is not known."""
        return (self.instance.started or self.instance.created) if self.instance else None

    @property
    def is_late(self) -> bool:
        """Whether the VM was started too long ago for a VM that has not joined."""
        return self.started is not None and self.now - self.started >= self.join_timeout

    @property
    def rejection(self) -> str | None:
        """The reason that ``approve_join`` has reported for the VM, kept until it joins or stops."""
        earlier = self.earlier.why if self.earlier is not None else None
        reason = self.new_rejection or (earlier if earlier in REJECTIONS else None)
        return reason if self.lacks_node and not self.is_down else None

    @property
    def is_starting(self) -> bool:
        """Whether the Node need not be Ready yet: it is new or its VM was started, since the slice was
        complete or before it ever was."""
        if self.node is None:
            return False
        moments = (self.node.created, self.instance.started if self.instance is not None else None)
        return any(
            abs(self.now - moment) < MAX_START_OF_NODE
            for moment in moments
            if moment is not None and (self.completed_at is None or moment > self.completed_at)
        )

    @property
    def lacks_chips(self) -> bool:
        """Whether the Node has been Ready for long and does not offer the VM's chips."""
        if self.node is None or self.node.ready_since is None:
            return False
        is_late = self.now - self.node.ready_since >= PLUGIN_LATE_AFTER
        return is_late and not self.node.offers(self.chips)


RULES: tuple[tuple[Reason, Callable[[VmFacts], bool]], ...] = (
    # An event reports that Compute Engine took the VM back. Nothing else shows this. A VM of a complete
    # slice that is gone by the time of the event counts as lost.
    (Reason.PREEMPTED, lambda vm: vm.event_loss == Reason.PREEMPTED and not vm.is_gone),
    # The VM is lost. The log does not tell the end at maxRunDuration from other ends, but the time does.
    *((end, lambda vm, end=end: vm.is_lost and vm.end == end) for end in sorted(RUN_ENDS)),
    # The VM is lost. An event is no proof against a Node: the VM may run again.
    (Reason.NODE_LOST, lambda vm: vm.is_lost and (vm.is_down or vm.node is None)),
    # The VM runs without the Node that it had, and neither a mismatch nor approve_join explains it.
    (
        Reason.NODE_DELETED,
        lambda vm: vm.lacks_node and vm.had_node and not (vm.is_mismatched or vm.rejection),
    ),
    (Reason.NODE_NAME_MISMATCH, lambda vm: vm.lacks_node and vm.is_mismatched),
    (Reason.JOIN_DENIED, lambda vm: vm.rejection == Reason.JOIN_DENIED),
    (Reason.JOIN_NOT_APPROVED, lambda vm: vm.rejection == Reason.JOIN_NOT_APPROVED),
    (Reason.NODE_JOIN_TIMEOUT, lambda vm: vm.lacks_node and vm.is_late),
    (Reason.DEVICE_PLUGIN_MISSING, lambda vm: vm.lacks_chips),
    (Reason.NODE_NOT_READY, lambda vm: vm.node is not None and not vm.is_starting),
    # Nothing is wrong yet: the VM waits for capacity or joins, or its Node starts.
    (Reason.AWAITING_NODE_JOIN, lambda _: True),
)
SEVERITY = {reason: rank for rank, (reason, _) in enumerate(RULES)}
"""The rank of each reason: the status reports the VMs with the most severe reasons first."""


def find_reason(vm: VmFacts) -> Reason:
    """The reason that the VM is not ready: the earlier one if it holds, else the first that applies."""
    return vm.earlier_reason or next(reason for reason, applies in RULES if applies(vm))
