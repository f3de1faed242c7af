"""create_resources: from a TPUNodeGroup to its workload policy, instance template and MIG.

Triggers:

- The group was added, or its generation, pause, label or finalizer changed.
- An insert of one of its resources or a change to its MIG ended, or the insert of a VM failed.
- A resync.
- A message of label_node or inject_token: VMs or Nodes contradict the condition of the MIG, or Accepted
  is true for a group that is not served any more.
- A message of tear_down, which was triggered about a group that is not being deleted, or has deleted its
  MIG for a repair.

The first invocation takes ownership (label and finalizer) and inserts policy and template, without
waiting for one before the other. A later one, when both exist, inserts the MIG. A group whose VMs are
created one by one (targetSizePolicyMode INDIVIDUAL instead of BULK) has no policy, and a user's own
template is only read. Nothing is inserted for a group with an invalid spec, for a paused one, and for
one that tpu-operator manages.

`node_groups.lifecycle.TABLE` decides about each resource. The status is written before an insert: the
entry of the resource becomes Creating (the intent), so that an invocation that dies is noticed.

The step owns the conditions Accepted, WorkloadPolicyReady, InstanceTemplateReady and
ManagedInstanceGroupReady. They report the errors of Compute Engine, except transient ones.
"""

from functions.create_resources import decide, observe
from shared.base.reasons import Reason
from shared.frame.plan import Plan
from shared.node_groups.resources import find_kind
from shared.node_groups.status import CONDITION_OF, MIG, Status
from shared.node_groups.work import GroupWork, build_step, report_environment_error
from shared.ports.errors import CallError
from shared.triggers import routes


def recover(work: GroupWork, error: CallError) -> Plan | None:
    """Report an environment error in the condition of the resource that the call was about.

    Errors of other calls are reported in that of the MIG, which the group's VMs depend on. After an
    event about one VM, the error is only in the log (`report_environment_error`).
    """
    condition = CONDITION_OF[find_kind(error.about) or MIG]

    def add_error(known: Status, reason: Reason, message: str) -> Status:
        return known.with_condition(condition, False, reason, message, work.group, work.now)

    return report_environment_error(work, error, add_error)


STEP = build_step(routes.CREATE_RESOURCES, observe.observe, decide.decide, recover)
