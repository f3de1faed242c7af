"""Planted bugs: how many seeds each needs until the explorer finds it.

``python -m tests.explore.planted [NAME ...]``
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

from functions import provision_slice as provision
from functions.create_resources import actions as creation
from functions.inject_token import actions as injection
from functions.label_node import maintenance_condition
from functions.tear_down import actions as deletion
from functions.tear_down import decide
from functions.tear_down import observe as remains
from shared.frame import execution, step
from shared.frame.plan import Plan
from shared.node_groups import actions, bootstrap, lifecycle, membership, readiness
from shared.node_groups.status import Resource
from shared.ports.kubernetes import nodes
from shared.slices import actions as slice_actions
from shared.slices.by_node_group.provider import GroupSlices
from shared.slices.by_node_pool.provider import NodePools
from shared.slices.provider import DesiredSlice, short_hash
from tests.explore.explorer import explore
from tests.explore.world import draw

MOST_SEEDS = 500
"""No planted bug needs more."""
Place = tuple[Any, str]
"""Where a function or constant is: a module or class, and its name."""


def _do_nothing(*_: Any, **__: Any) -> None:
    """In place of an action."""


def _ignore_owner(*given: Any, **named: Any) -> lifecycle.Observation:
    found = _make_observation(*given, **named)
    is_foreign = found.presence is lifecycle.Presence.NOT_OURS
    return replace(found, presence=lifecycle.Presence.OURS) if is_foreign else found


def _ignore_lost(self: remains.ObservedRemains, kind: str, _now: Any) -> Resource:
    return self.status.resources.get(kind) or Resource(self.group.resource_name)


def _end_early(*_: Any) -> Plan:
    return Plan("Done", if_all_succeeded=(deletion.RemoveFinalizer(),))


def _give_up(_invocation: Any, error: Exception) -> execution.Answer:
    return execution.Answer(execution.ACKNOWLEDGED, "GivenUp", str(error))


def _same_token(_random: Any, now: Any, life: timedelta = bootstrap.TOKEN_LIFE) -> bootstrap.Token:
    return bootstrap.Token("abcdef", "0123456789abcdef", (now + life).replace(microsecond=0))


def _delete_by_name(self: nodes.NodeCalls, name: str, _uid: str) -> None:
    self._delete(nodes._NODES.one(name))


def _with_candidate(self: GroupSlices, *given: Any) -> DesiredSlice:
    found = _build_desired(self, *given)
    name = f"{found.name[:-4]}{short_hash(found.place.key)[:4]}"
    body = {**found.body, "metadata": {**found.body["metadata"], "name": name}}
    return replace(found, name=name, body=body)


def _with_candidate_of_pool(self: NodePools, *given: Any) -> DesiredSlice:
    found = _build_pool(self, *given)
    name = f"{found.name[:-4]}{short_hash(found.place.key)[:4]}"
    return replace(found, name=name, body={**found.body, "name": name})


def _record_last(*given: Any) -> Plan:
    plan = _plan_pod(*given)
    is_record = [isinstance(one, slice_actions.UpdateClass) for one in plan.first]
    if plan.outcome != "NextCandidate" or not any(is_record):
        return plan
    records = [one for one, is_it in zip(plan.first, is_record, strict=True) if is_it]
    others = [one for one, is_it in zip(plan.first, is_record, strict=True) if not is_it]
    return replace(plan, first=(*others, *records))


_build_pool = NodePools.build_desired
_build_desired, _plan_pod = GroupSlices.build_desired, provision.decide._plan_pod
_make_observation = lifecycle.make_observation
_ABOUT_NODES = (readiness._check_nodes, readiness._check_pending)
BUGS: Mapping[str, tuple[Place, Any]] = {
    "inserts count as ended after 2 s": (
        (lifecycle, "SURELY_ABSENT_AFTER"),
        timedelta(seconds=2),
    ),
    "a lost entry is ignored": ((remains.ObservedRemains, "resource"), _ignore_lost),
    "the owner is not checked": ((lifecycle, "make_observation"), _ignore_owner),
    "a token is not revoked after the join": ((actions.RevokeToken, "apply"), _do_nothing),
    "the finalizer is removed early": ((decide, "_plan_delete_of_rest"), _end_early),
    "the finalizer is never set": ((creation.TakeOwnership, "apply"), _do_nothing),
    "the token's Secret is not created": ((injection.CreateSecret, "apply"), _do_nothing),
    "all VMs get one token": ((bootstrap, "new_token"), _same_token),
    "a Node of a predecessor counts": ((membership, "is_stale"), lambda *_: False),
    "any Node may be a VM's": ((membership, "is_vm_name"), lambda *_: True),
    "Nodes are not labelled": ((actions.PatchNode, "apply"), _do_nothing),
    "Nodes are not deleted": ((actions.DeleteNode, "apply"), _do_nothing),
    "a Node is deleted by its name alone": ((nodes.NodeCalls, "delete_node"), _delete_by_name),
    "the tokens of a deleted group stay": ((deletion.RevokeTokens, "apply"), _do_nothing),
    "Nodes that are not Ready are not reported": (
        (readiness, "RULES"),
        tuple(one for one in readiness.RULES if one not in _ABOUT_NODES),
    ),
    "a workload's slice is not created": ((slice_actions.CreateSlice, "apply"), _do_nothing),
    "a workload's slice is not deleted": ((slice_actions.DeleteSlice, "apply"), _do_nothing),
    "VMs are not read before a candidate is given up": ((GroupSlices, "has_vm"), lambda *_: False),
    "a slice's name has its candidate": ((GroupSlices, "build_desired"), _with_candidate),
    "a pool's name has its candidate": ((NodePools, "build_desired"), _with_candidate_of_pool),
    "a refusal is recorded after the deletion": ((provision.decide, "_plan_pod"), _record_last),
    "maintenance is reported by events alone": (
        (maintenance_condition, "add_condition"),
        lambda _observed, known, _now: known,
    ),
    "each resync is too old": ((step, "MAX_RESYNC_AGE"), timedelta(seconds=-1000)),
}
NOT_RETRIED = {"no message is retried": ((step, "_retry"), _give_up)}
"""A bug that no world shows, because the sweep repeats within a minute what is not retried: a life
with one fault shows that it takes longer."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug in all modules that have imported its place."""
    (owner, attribute), value = {**BUGS, **NOT_RETRIED}[name]
    old = getattr(owner, attribute)
    product = ("functions", "shared")
    holders = [one for key, one in sys.modules.items() if key.split(".")[0] in product]
    found = [one for one in (owner, *holders) if getattr(one, attribute, None) is old]
    for one in found:
        setattr(one, attribute, value)
    try:
        yield
    finally:
        for one in found:
            setattr(one, attribute, old)


def count_seeds(name: str, most: int = MOST_SEEDS) -> tuple[int, str]:
    """How many seeds a bug needs, and what is found; 0 if it is not found.

    A seed that fails without the bug, too, proves nothing.
    """
    for seed in range(most):
        with planted(name):
            problem = explore(draw(seed)).problem
        if problem and not explore(draw(seed)).problem:
            return seed + 1, problem
    return 0, ""


def main(names: list[str], show: Callable[[str], None] = print) -> int:
    """Print the seeds that each bug needed; 1 if one was not found."""
    missed = 0
    for name in names or BUGS:
        seeds, problem = count_seeds(name)
        missed += not seeds
        show(f"{name}: {seeds or 'NOT FOUND'}: {problem.splitlines()[0][:90] if problem else ''}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
