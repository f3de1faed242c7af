"""tear_down: delete all resources of a deleted TPUNodeGroup, then remove its finalizer.

Triggers:

- The group got its deletionTimestamp, or its finalizers changed since.
- A delete of its MIG, template or policy ended.
- A resync.
- A message of create_resources, which was triggered about a group that is being deleted, or that was
  changed (`repair`, pause) and whose repair is due.
- A message of the step itself, which continues the deletion of Nodes.
- A message of label_node: a slice is lost, and its repair is due (`recovery.find_repair_time`).

The first plan writes the status, revokes tokens (unless each VM has a proved Node, whose token
label_node has revoked) and cordons Nodes. That needs no call to Compute Engine.
Then the step observes again, with another 30 seconds for calls, and deletes the MIG with its VMs. VMs
cost money, so their delete does not wait for Nodes or tokens: only the write of the status must succeed.
When the MIG is gone, template and policy are deleted, and the Node objects. When template and policy
are gone and no delete of a Node fails, the remaining tokens are revoked and the finalizer is removed.
Each invocation continues up to the next operation that takes time.

Resources are deleted in the place that the status has recorded (`node_group.parse`), also those that the
spec does not need any more. Before the finalizer is removed, what only the status calls gone or never
inserted is read, if Compute Engine does not reject that.

For a repair only the MIG and the Nodes are deleted; create_resources creates the MIG again.

`lifecycle.TABLE` decides when a resource is gone. A resource of its name that was never ours is not
touched.
"""

from dataclasses import replace

from functions.tear_down import decide, observe
from shared.base.names import NODE_KIND
from shared.base.reasons import Reason
from shared.frame.plan import Plan
from shared.node_groups.node_group import NodeGroup
from shared.node_groups.resources import find_kind
from shared.node_groups.status import Resource, State, Status, Type
from shared.node_groups.work import GroupWork, build_step, report_environment_error
from shared.ports.errors import CallError
from shared.triggers import routes


def recover(work: GroupWork, error: CallError) -> Plan | None:
    """Report an environment error.

    An error about Nodes, or one after all resources are gone, is reported in NodesJoined; one of Compute
    Engine in the entry of the resource that the call was about; any other in that of the resource that
    is deleted next.
    """
    group, now, gone = work.group, work.now, decide.find_gone(work)
    kinds = observe.list_kinds(group, work.status) if isinstance(group, NodeGroup) else ()
    left = [kind for kind in kinds if kind not in gone]

    def add_error(known: Status, reason: Reason, message: str) -> Status:
        # The failed plan may have ended before it wrote which resources are gone.
        known = replace(known, resources={**known.resources, **gone})
        failed = find_kind(error.about)
        kind = failed if failed in left else next(iter(left), None)
        if kind is None or error.about.kind == NODE_KIND:
            return known.with_condition(Type.NODES_JOINED, False, reason, message, group, now)
        resource = known.resources.get(kind) or Resource(group.resource_name, State.CREATING, now)
        return known.with_resource(kind, resource.with_error(reason, error.code, message, now))

    return report_environment_error(work, error, add_error)


STEP = build_step(routes.TEAR_DOWN, observe.observe, decide.decide, recover)
