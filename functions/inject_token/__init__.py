"""inject_token: write a bootstrap token into the metadata of each VM that has to join.

Triggers:

- A resync, from the sweep or, if the condition TokensInjected is not up to date, from label_node.
- The end of a VM's insert, start or reset, or its automatic restart.
- A message that names VMs: from label_node about VMs with stale or deleted Nodes, and from the step
  itself.

A resync lists the group's VMs, publishes the names of those that need a token in batches to this step's
own topic, and writes the condition TokensInjected, which this step owns.

Any other trigger names VMs. The step does this for each of them that has not joined and whose metadata
can be written (a repetition also revokes the token of a VM that has joined: an earlier attempt may have
failed between items 3 and 4):

1. If it has a stale Node (`membership.is_stale`), delete that, unless its kubelet may run, and do no
   more: when the Node is gone, label_node triggers the step.
2. Write a new token to the metadata by one setMetadata, unless the old one is valid for ten more
   minutes. If the cluster's CA has changed since, or the VM was restarted, the metadata is written with
   the old token, the hash of the new CA and the new start.
3. Create the token's Secret from the metadata. A repetition builds the same Secret, and that it exists
   is not an error.
4. If the VM had a token before and a Node of its name exists now, the VM has joined meanwhile, and
   label_node may have revoked the token before item 3 made it valid again: revoke it.

VMs are independent: an error of one is raised after the others have their tokens. The names of VMs that
there was no time to read are published to this step's topic. The metadata of a VM that is being created
cannot be written: the end of its insert or start triggers the step, or else a resync.
"""

from functions.inject_token import decide, observe
from shared.base.reasons import Reason
from shared.frame.plan import Plan
from shared.node_groups.status import Status, Type
from shared.node_groups.work import GroupWork, build_step, report_environment_error
from shared.ports.errors import CallError
from shared.triggers import routes


def recover(work: GroupWork, error: CallError) -> Plan | None:
    """Report an environment error in the condition of this step; after an event about one VM only in
    the log, because the next resync tries the VM again (`report_environment_error`)."""

    def add_error(known: Status, reason: Reason, message: str) -> Status:
        return known.with_condition(
            Type.TOKENS_INJECTED, False, reason, message, work.group, work.now
        )

    return report_environment_error(work, error, add_error)


# The snapshot has ``fresh`` without the secrets of its tokens: `Token.secret` is hidden from repr. A
# resync leaves the tokens to later invocations, so its end does not show that an error is over.
STEP = build_step(
    routes.INJECT_TOKEN, observe.observe, decide.decide, recover, ends_own_retries=True
)
