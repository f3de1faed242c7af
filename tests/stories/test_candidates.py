"""Candidates of a TPUSliceClass: they are tried in turn, and a unit never has two slices."""

from __future__ import annotations

from typing import Any

import pytest

from local.cloud.simulation import PROJECT
from shared.settings import GKE, TPU_NODE_GROUP
from shared.triggers.routes import SLICE_STEPS
from tests.faults.jobsets import (
    CANDIDATES,
    FREE,
    FULL,
    GROUPS,
    RESERVATION,
    RESERVED,
    SETTINGS,
    count_most,
    limit_reservation,
    limit_zone,
    make_class,
    prepare,
    slices,
)
from tests.stories import helpers
from tests.stories.calls import CallCounter
from tests.stories.helpers import MINUTE, PrintFigure
from tests.stories.jobsets import (
    MERGE,
    SECOND,
    apply,
    are_running,
    delete,
    phases,
    reported_events,
    until,
)
from tests.support import jobset_objects as objects
from tests.support.class_specs import CLASSES
from tests.support.harness import Harness

PROVIDERS = pytest.mark.parametrize("provider", [TPU_NODE_GROUP, GKE])


class ClassHarness(Harness):
    """JobSets get slices of a class with these candidates, of which the last alone has capacity."""

    def __init__(
        self, provider: str, candidates: list[dict[str, str]] = CANDIDATES, **spec: Any
    ) -> None:
        super().__init__(helpers.with_heartbeats(), slices=SETTINGS[provider])
        self.is_gke = provider == GKE
        prepare(self)
        make_class(self, candidates, **spec)
        self.counter = CallCounter(self)
        self.most = count_most(self)
        self.created = 0
        self.hooks.after = self.note

    def note(self, _step: str, call: str) -> None:
        self.created += call.startswith("POST ") and call.endswith(("/nodePools", "/tpunodegroups"))

    def start(self) -> None:
        """Apply the JobSet, and wait until its Pods run."""
        apply(self, objects.jobset())
        until(self, lambda: are_running(self))
        self.run_for(2 * MINUTE)

    def end(self) -> None:
        """The unit has never had two slices, and nothing is left after its JobSet."""
        assert self.most == [1]
        delete(self)
        until(self, lambda: not slices(self))
        assert self.leftovers() == []

    @property
    def calls(self) -> int:
        """The calls to the cloud, without those of the sweep."""
        gke = [
            one
            for one in self.log.lines
            if one["step"] in SLICE_STEPS and one["trigger"] != "Sweep"
        ]
        return (
            sum(one.get("gke_calls", 0) for one in gke)
            if self.is_gke
            else self.counter.cost().writes + self.counter.cost().reads
        )

    @property
    def prefix(self) -> str:
        """The project in the key of a candidate."""
        return "" if self.is_gke else f"{PROJECT}:"

    def places(self) -> list[str]:
        """The zones of the TPUNodeGroups."""
        found = self.simulation.admin("GET", GROUPS)["items"]
        return [one["spec"]["nodeLocation"] for one in found]

    def refusals(self) -> dict[str, str]:
        """The reason that is remembered of each candidate."""
        (found,) = self.simulation.admin("GET", CLASSES)["items"]
        listed = found.get("status", {}).get("refusals", ())
        return {one["candidate"].rpartition(":")[2]: one["reason"] for one in listed}


def events(harness: Harness, reason: str) -> list[str]:
    return [one for one in reported_events(harness) if f" {reason}: " in one]


@PROVIDERS
def test_two_candidates_refuse_and_the_third_one_has_the_slice(provider: str) -> None:
    harness = ClassHarness(provider, giveUpAfter="30s")
    harness.start()
    assert {*harness.refusals()} == {f"{FULL}/STANDARD", f"{RESERVED}/RESERVATION_BOUND/small"}
    messages = events(harness, "CandidateRefused")
    assert sorted({one.partition(" ")[0] for one in messages}) == ["JobSet", "Pod"]
    assert [one.rpartition(". ")[2].partition(" ")[0] for one in messages if "Pod" in one] == [
        f"{harness.prefix}{RESERVED}/RESERVATION_BOUND/small",
        f"{harness.prefix}{FREE}/STANDARD",
    ]
    assert not [one for one in reported_events(harness) if "create a new" in one.lower()]
    tried = [
        (one["decision"], one["candidate"].rpartition(":")[2], bool(one.get("refusal")))
        for one in harness.log.lines
        if one["decision"] in ("Creating", "NextCandidate")
    ]
    full, reserved = f"{FULL}/STANDARD", f"{RESERVED}/RESERVATION_BOUND/small"
    refusals = [one[1:] for one in tried if one[0] == "NextCandidate"]
    assert refusals == [(full, True), (reserved, True)]
    assert tried[0][:2] == ("Creating", full)
    assert tried[-1] == ("Creating", f"{FREE}/STANDARD", False)
    harness.run_for(2 * MINUTE)
    (found,) = harness.simulation.admin("GET", CLASSES)["items"]
    assert len(found["status"]["waits"]["seconds"]) == 1, (
        "a refused slice is no wait that has ended"
    )
    (waited,) = [one for one in harness.log.lines if one["decision"] == "BecameReady"]
    assert (waited["class"], waited["candidate"]) == ("v6e", f"{harness.prefix}{FREE}/STANDARD")
    assert waited["waited_s"] == found["status"]["waits"]["seconds"][0]
    harness.end()


RESERVED_TOO = {**CANDIDATES[1], "zone": FULL}


@pytest.mark.parametrize(
    "provider, first, most",
    [
        (TPU_NODE_GROUP, RESERVED_TOO, 26),
        # It lets the slice wait, and refuses nothing: one read more shows that no VM came.
        (TPU_NODE_GROUP, CANDIDATES[0], 27),
        (GKE, RESERVED_TOO, 12),
        (GKE, CANDIDATES[0], 12),
    ],
)
def test_two_refusals_cost_few_calls(
    provider: str, first: dict[str, str], most: int, print_figure: PrintFigure
) -> None:
    spent = []
    for candidates in ([first, *CANDIDATES[1:]], CANDIDATES[2:]):
        harness = ClassHarness(provider, candidates, giveUpAfter="30s")
        harness.simulation.gce.faults.set_reservation(
            RESERVATION.replace(RESERVED, FULL), "ct6e-standard-4t", 0
        )
        harness.start()
        assert len(harness.refusals()) == len(candidates) - 1
        spent.append(harness.calls)
    more, reason = spent[0] - spent[1], first.get("provisioningModel", "no capacity")
    print_figure(f"two refusals, {provider:<15} {reason:<18} {more:>3} calls to the cloud more")
    assert more <= most


def test_a_candidate_that_waits_is_given_up_after_the_time_of_its_class_and_not_before() -> None:
    harness = ClassHarness(TPU_NODE_GROUP, [CANDIDATES[0], CANDIDATES[2]])
    apply(harness, objects.jobset())
    harness.run_for(MINUTE + 30 * SECOND)
    assert harness.places() == [FULL]
    until(harness, lambda: are_running(harness), 8 * MINUTE)
    assert harness.places() == [FREE]
    pod, _ = events(harness, "CandidateRefused")
    assert "does not have enough resources available to fulfill the request" in pod
    assert harness.refusals() == {f"{FULL}/STANDARD": "Waited"}
    harness.end()


def test_a_slice_whose_vm_comes_at_the_last_moment_is_kept() -> None:
    """The status of the group does not have the VMs yet when its candidate would be given up."""
    harness = ClassHarness(TPU_NODE_GROUP, [CANDIDATES[0], CANDIDATES[2]], giveUpAfter="1m")
    asked: list[str] = []

    def before(step: str, call: str) -> None:
        if step == "provision_slice" and "/instanceGroupManagers/" in call:
            limit_zone(harness, FULL)
            asked.append(call)

    harness.hooks.before = before
    harness.start()
    assert len(asked) == 1
    assert harness.places() == [FULL]
    assert events(harness, "CandidateRefused") == []
    harness.end()


@PROVIDERS
def test_while_all_candidates_have_refused_nobody_asks_and_after_five_minutes_one_slice_does(
    provider: str,
) -> None:
    """Several JobSets wait. When a refusal has ended, one slice asks the candidate; the others wait for
    its answer, and all get slices when there is capacity again."""
    harness = ClassHarness(provider, CANDIDATES[:2])
    for number in range(4):
        apply(harness, objects.small_jobset(f"train-{number}"))
    harness.run_for(15 * MINUTE)
    before = harness.created
    harness.run_for(30 * MINUTE)
    assert 1 <= harness.created - before <= 2 * 6 + 2
    assert events(harness, "CandidatesRefused" if harness.is_gke else "CandidateRefused")
    last = f"{RESERVED}/RESERVATION_BOUND/small"
    refused = [one for one in harness.log.lines if one.get("refusal") == "ReservationFull"]
    assert {one["candidate"] for one in refused} == {f"{harness.prefix}{last}"}
    assert not [one for one in events(harness, "NodePoolCreationFailed") if "Reservation" in one]
    (found,) = harness.simulation.admin("GET", CLASSES)["items"]
    assert "waits" not in found["status"]
    limit_zone(harness, FULL)
    limit_reservation(harness, 64)
    until(harness, lambda: phases(harness) == ["Running"] * 4)


def test_a_candidate_that_gives_a_slice_after_its_refusal_may_be_asked_by_all_again() -> None:
    """The Pod may run on the first Node before the others have joined, and waits no longer then."""
    harness = ClassHarness(TPU_NODE_GROUP, CANDIDATES[:2], giveUpAfter="30s")
    apply(harness, objects.jobset())
    harness.run_for(7 * MINUTE)
    limit_zone(harness, FULL)
    until(harness, lambda: are_running(harness))
    assert harness.places() == [FULL]
    assert {*harness.refusals()} == {f"{RESERVED}/RESERVATION_BOUND/small"}


def test_spot_slices_that_are_preempted_begin_again_with_the_first_candidate() -> None:
    spot = {"zone": FREE, "provisioningModel": "SPOT"}
    harness = ClassHarness(TPU_NODE_GROUP, [CANDIDATES[0], spot], giveUpAfter="30s")
    harness.start()
    assert harness.places() == [FREE]
    limit_zone(harness, FULL)
    for vm in helpers.vms(harness):
        harness.simulation.gce.faults.preempt(vm)
    until(harness, lambda: harness.places() == [FULL])
    until(harness, lambda: are_running(harness))
    assert harness.most == [1]
    harness.end()


def test_flex_start_waits_in_its_queue() -> None:
    flex = {"zone": FULL, "provisioningModel": "FLEX_START", "maxRunDuration": "1h"}
    harness = ClassHarness(TPU_NODE_GROUP, [flex, CANDIDATES[2]], giveUpAfter="30s")
    apply(harness, objects.jobset())
    harness.run_for(20 * MINUTE)
    assert harness.places() == [FULL]
    assert events(harness, "CandidateRefused") == []


def test_a_slice_moves_to_another_candidate_if_its_own_is_taken_out_of_the_class() -> None:
    harness = ClassHarness(TPU_NODE_GROUP, CANDIDATES[:1])
    apply(harness, objects.jobset())
    harness.run_for(5 * MINUTE)
    assert harness.places() == [FULL]
    change = {"spec": {"candidates": CANDIDATES[2:]}}
    harness.simulation.admin("PATCH", f"{CLASSES}/v6e", change, **MERGE)
    until(harness, lambda: are_running(harness))
    assert harness.places() == [FREE]
    harness.end()


def test_the_slice_of_a_class_that_is_deleted_stays_until_its_jobset_ends() -> None:
    harness = ClassHarness(TPU_NODE_GROUP, CANDIDATES[2:])
    harness.start()
    harness.simulation.admin("DELETE", f"{CLASSES}/v6e")
    harness.run_for(10 * MINUTE)
    assert are_running(harness)
    harness.end()
