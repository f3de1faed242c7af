"""Faults on demand: what goes wrong in the simulated GKE, and when.

Every public method of `Faults` is a fault. The same can be asked for over HTTP by POST to
``/_simulator/<method>`` with its arguments as a JSON object. Verbs are those of the call log, such as
``nodePools.create``; patterns as in a shell match many (``nodePools.*``).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from local.controls import UnknownFault
from local.gce.refusals import LOG_STATUSES, Refused
from local.gke.operations import Failure
from local.gke.refusals import INTERNAL, UNAVAILABLE
from local.planned import Planned, Slowness

if TYPE_CHECKING:
    from local.gke.simulator import Simulator

_STATUSES = {3: "INVALID_ARGUMENT", 8: "RESOURCE_EXHAUSTED", 13: "INTERNAL"}


class Faults:
    """Makes things go wrong."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self._refusals = Planned[Refused]()
        self._lost_answers = Planned[Refused]()
        self._failures = Planned[Failure]()
        self._slow = Slowness()
        self._denied: defaultdict[str, set[str]] = defaultdict(set)
        self._room: dict[tuple[str, str], int] = {}
        self._chips: dict[tuple[str, str], int] = {}
        self._no_policies: set[str] = set()

    # supply

    def set_capacity(self, zone: str, family: str, vms: int | None = None) -> None:
        """A zone has room for `vms` VMs of a machine family (``ct6e-standard``) in all; without it,
        for any number. VMs that run already stay."""
        _limit(self._room, (zone, family), vms)

    def set_chip_quota(self, region: str, family: str, chips: int | None = None) -> None:
        """The project may have so many TPU chips of a family in a region; without it, any number."""
        _limit(self._chips, (region, family), chips)

    def remove_policy(self, policy: str, removed: bool = True) -> None:
        """A workload policy does not exist, or exists again; all others that are named do."""
        (self._no_policies.add if removed else self._no_policies.discard)(policy)

    # calls

    def fail_next(
        self,
        verbs: str,
        calls: int = 1,
        http: int = 503,
        reason: str = "backendError",
        message: str = "",
        carried_out: bool = False,
    ) -> None:
        """The next so many calls that match are refused.

        With ``carried_out`` each is done first and only its answer is lost.
        """
        log = LOG_STATUSES.get(http, (9, "FAILED_PRECONDITION"))
        words = message or UNAVAILABLE.message
        refused = Refused(http, reason, words, log=log, status=log[1])
        (self._lost_answers if carried_out else self._refusals).add(verbs, calls, refused)

    def fail_operations(
        self, verbs: str, operations: int = 1, code: int = 13, message: str = ""
    ) -> None:
        """The next so many operations that match end in an error, with a gRPC code.

        A pool whose creation fails stays, in ERROR; one whose deletion fails too.
        """
        status = _STATUSES.get(code, "UNKNOWN")
        failure = Failure(code, status, message or INTERNAL.message)
        self._failures.add(verbs, operations, failure)

    def slow_operations(self, verbs: str, seconds: float) -> None:
        """Operations that match take so much longer from now on; 0 ends it."""
        self._slow.set(verbs, seconds)

    def remove_permission(self, email: str, permission: str, removed: bool = True) -> None:
        """A principal has lost an IAM permission, or has it again."""
        held = self._denied[email]
        (held.add if removed else held.discard)(permission)

    def forget_operations(self) -> None:
        """Operations that are DONE are known no more."""
        self._simulator.operations.forget()

    # pools

    def lose_nodes(self, pool: str, nodes: int = 1) -> None:
        """So many VMs of a running pool (named by its own name) are gone, and do not come back."""
        found = self._simulator.find_pool(pool)
        if found is None or found.status != "RUNNING":
            raise UnknownFault(f"there is no running pool {pool}")
        self._simulator.lose(found, nodes)

    def make_pool(self, cluster: str, name: str, labels: dict[str, str] | None = None) -> None:
        """A person has made a pool of one small VM, with such labels, at once."""
        self._simulator.make_by_hand(cluster, name, labels or {})

    # what the simulator asks

    def has_room(self, zone: str, family: str, used: int, wanted: int) -> bool:
        """Whether a zone has room for so many more VMs of a family."""
        room = self._room.get((zone, family))
        return room is None or used + wanted <= room

    def chip_quota(self, region: str, family: str) -> int | None:
        """How many chips the project may have."""
        return self._chips.get((region, family))

    def has_policy(self, policy: str) -> bool:
        """Whether a workload policy exists."""
        return policy not in self._no_policies

    def take_refusal(self, verb: str, *, carried_out: bool) -> Refused | None:
        """The refusal that is planned for a call of this verb, used up by asking."""
        return (self._lost_answers if carried_out else self._refusals).take(verb)

    def take_failure(self, verb: str) -> Failure | None:
        """The failure that is planned for an operation of this verb, used up by asking."""
        return self._failures.take(verb)

    def slowness(self, verb: str) -> float:
        """How many seconds longer an operation of this verb takes."""
        return self._slow.of(verb)

    def denied_to(self, email: str) -> frozenset[str]:
        """The permissions that a principal has lost."""
        return frozenset(self._denied.get(email, ()))


def _limit(limits: dict[tuple[str, str], int], key: tuple[str, str], value: int | None) -> None:
    if value is None:
        limits.pop(key, None)
    else:
        limits[key] = value
