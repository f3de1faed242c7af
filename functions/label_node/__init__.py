"""label_node: match Nodes to VMs, label and count them, and report what keeps the slice from Ready.

Triggers:

- A Node of the group was added, changed or deleted.
- A VM was preempted, failed, stopped or deleted.
- A resync, which lists the group's VMs.
- A message of approve_join about VMs that cannot join.
- A message of the step itself that names the Nodes for which the last invocation had no time.

The words of this folder, in reading order:

1. A VM is a *member* if the MIG's list of its members has it. Others with such a name are reported.
2. A Node *matches* a member if it runs on it (`membership.is_match`).
3. A Node is *stale* (`membership.is_stale`) if it remains from an earlier VM with this VM's name.
4. The *proof* of a match is the VM's id in a label of the Node, which a kubelet cannot write. If a VM is
   not read, a Node with proof counts as matching. If it is read again, the Node must still match, but
   needs no token in the metadata any more. Another id in the label of a match is corrected.
5. A Node is *misnamed* if its providerID is that of a VM of the group and its name is not. A VM is
   *mismatched* if a Node is misnamed with its providerID, or has its name and another providerID.
6. A VM has *joined* if a Node matches it. It is *ready* if, besides, it runs and its Node is ready and
   offers all chips.
7. A VM *had a Node* (`membership.had_node`) if it certainly had one since its last start.
8. The slice is *complete* from its first Ready on (``completed_at``).
9. A VM is *down* if it does not run (also while it waits for capacity), or was not read and is reported
   lost, and *gone* if it does not exist any more, or if its Node was
   deleted and it was not found among the members that were read.
10. It is *lost* if an event reports its end, if it had joined and is down, or if the slice was complete
    and it is gone now and was not before.
11. The *earlier* entry about a VM (`Status.pending`) has the reason why it was not ready, and since
    when. It is *outdated* as soon as its VM is read (a loss: if the VM is up again). Otherwise its
    reason stays; of a gone VM, only a loss does.
12. A *rejection* is a reason that approve_join has reported. It lasts until the VM joins or stops.
13. A trigger is *debounced* if the count is left to a later one (`observe.is_debounced`).

What is done to a Node depends on its VM:

- The VM was read, and the Node matches: the step revokes the VM's token, then sets the Node's labels and
  taints. If the Node has the proof, no taint is set again, and only a resync of a Ready group revokes
  the token once more.
- The VM was not read, and the Node has the proof: only its labels are corrected.
- The VM does not exist: a Node with its name is deleted, unless its providerID names something else
  (`membership.may_match`).
- Any other Node is left alone.

Nodes are listed by the resource-name label. Kubelets that join with our tokens register with it. The
step labels other Nodes. A Node that has no label yet, or has lost it, is read by its name. If VMs join
by other means, the name may have a domain: a late Node is looked for among all Nodes.

The step owns the conditions NodesJoined (tear_down writes it during a deletion), InterconnectReady and
MaintenanceScheduled.
It triggers inject_token for VMs whose Nodes are stale or deleted, and both inject_token and
create_resources if their conditions contradict what it has observed. A group that is not served any
more, but accepted, is such a contradiction.
"""

from functions.label_node import decide, observe
from shared.base.reasons import Reason
from shared.frame.plan import Plan
from shared.node_groups.status import Status, Type
from shared.node_groups.work import GroupWork, build_step, report_environment_error
from shared.ports.errors import CallError
from shared.triggers import routes


def recover(work: GroupWork, error: CallError) -> Plan | None:
    """Report an environment error in NodesJoined. If that is true, it stays so, because the error proves
    nothing about the Nodes: then the error is recorded like a transient one."""

    def add_error(known: Status, reason: Reason, message: str) -> Status | None:
        if known.is_true(Type.NODES_JOINED):
            return None
        return known.with_condition(Type.NODES_JOINED, False, reason, message, work.group, work.now)

    return report_environment_error(work, error, add_error)


STEP = build_step(routes.LABEL_NODE, observe.observe, decide.decide, recover)
