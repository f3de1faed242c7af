"""The same stories for every kind of workload: marks, pause, limits, ends, losses and a rollback."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from datetime import timedelta
from itertools import product
from typing import Any

import pytest

from local.cloud.simulation import Options
from local.jobsets import PodBehaviour
from shared.settings import GKE, TPU_NODE_GROUP
from shared.slices.kinds.jobset import JOBSET
from shared.slices.units import Unit
from tests.faults.jobsets import SETTINGS
from tests.stories import helpers
from tests.stories import workload_objects as objects
from tests.stories.helpers import HOUR, MINUTE
from tests.stories.jobsets import MERGE, OPTIONS, RUNS_FOREVER, until
from tests.stories.workload_objects import NAMESPACE, PATHS
from tests.support import jobset_objects
from tests.support.harness import Harness

MANIFESTS: dict[str, dict[str, Any]] = {
    one["kind"]: one
    for one in (
        jobset_objects.small_jobset(),
        objects.leader_worker_set(size=2, topology="2x4"),
        objects.deployment(),
        objects.replica_set(),
        objects.job(),
        objects.stateful_set(),
        objects.pod(),
    )
}


def select_key(manifest: dict[str, Any]) -> dict[str, Any]:
    """Let the Pods select their own slice, as the webhook tie-pods does."""
    unit = Unit(manifest["kind"], NAMESPACE, manifest["metadata"]["name"], "")
    manifest["spec"]["template"]["spec"]["nodeSelector"]["job-key"] = unit.key
    return manifest


TWO_HOSTS: dict[str, dict[str, Any]] = {
    "JobSet": jobset_objects.small_jobset(topology="2x4", hosts=2),
    "LeaderWorkerSet": objects.leader_worker_set(size=2, topology="2x4"),
    "Job": select_key(objects.job(2, "2x4")),
    "StatefulSet": select_key(objects.stateful_set(2, "2x4")),
}
"""The kinds whose slices may have several hosts."""
OTHERS = [kind for kind in MANIFESTS if kind != "JobSet"]
PROVIDERS = (TPU_NODE_GROUP, GKE)
OPT_OUT = "tpu-provisioner.cloud.google.com/disable-autoprovisioning"
SPOT = "cloud.google.com/gke-spot"
EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"

each_kind = pytest.mark.parametrize("kind", MANIFESTS)
few_kinds = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[] if kind in ("Deployment", "Pod") else [pytest.mark.slow])
        for kind in MANIFESTS
    ],
)
each_provider = pytest.mark.parametrize("provider", PROVIDERS)
with_providers = pytest.mark.parametrize(
    "kind, provider",
    [
        pytest.param(kind, provider, marks=[pytest.mark.slow] if (row + column) % 2 else [])
        for row, kind in enumerate(MANIFESTS)
        for column, provider in enumerate(PROVIDERS)
    ],
)
"""Each kind with each provider; the fast tests try each kind with one of them."""


class Life:
    """One workload of a kind, in a namespace that may have this many slices."""

    def __init__(
        self,
        kind: str,
        provider: str,
        *,
        slices: int = 8,
        behaviour: PodBehaviour = RUNS_FOREVER,
        options: Options | None = None,
        manifests: Mapping[str, dict[str, Any]] = MANIFESTS,
        **settings: Any,
    ) -> None:
        self.kind, self.manifest = kind, deepcopy(manifests[kind])
        self.harness = Harness(
            options or Options(workloads=True), slices={**SETTINGS[provider], **settings}
        )
        listed = f"{NAMESPACE}: {{kinds: [{', '.join(MANIFESTS)}], slices: {slices}}}"
        self.harness.simulation.admin("POST", OPTIONS, jobset_objects.config_map(namespaces=listed))
        self.harness.jobsets.behaviour = behaviour
        self.pods_of_one = 2 if kind == "LeaderWorkerSet" or manifests is TWO_HOSTS else 1

    @property
    def path(self) -> str:
        return f"{PATHS[self.kind]}/{self.manifest['metadata']['name']}"

    def apply(self) -> None:
        answer = self.harness.simulation.admin("POST", PATHS[self.kind], self.manifest)
        assert answer["kind"] == self.kind, answer

    def allow_restarts(self) -> None:
        """Let failed Pods be replaced."""
        limits = {"JobSet": {"failurePolicy": {"maxRestarts": 3}}, "Job": {"backoffLimit": 6}}
        self.manifest["spec"].update(limits.get(self.kind, {}))

    def delete(self, policy: str = "Background") -> None:
        self.harness.simulation.admin("DELETE", self.path, {"propagationPolicy": policy})

    def change(self, path: str, change: dict[str, Any]) -> None:
        answer = self.harness.simulation.admin("PATCH", path, change, **MERGE)
        assert "metadata" in answer, answer

    def set_option(self, **data: str | None) -> None:
        self.change(f"{OPTIONS}/jobsets", {"data": data})

    def templates(self) -> list[dict[str, Any]]:
        """The templates of Pods in the manifest, which may be the Pod itself."""
        spec = self.manifest["spec"]
        if self.kind == "Pod":
            return [self.manifest]
        if self.kind == "JobSet":
            return [job["template"]["spec"]["template"] for job in spec["replicatedJobs"]]
        if self.kind == "LeaderWorkerSet":
            return [spec["leaderWorkerTemplate"]["workerTemplate"]]
        return [spec["template"]]

    def pods(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.harness.simulation.admin("GET", PATHS["Pod"])["items"]
        return found

    def are_running(self) -> bool:
        running = [one for one in self.pods() if one["status"].get("phase") == "Running"]
        return len(running) == self.pods_of_one

    def until_running(self) -> None:
        until(self.harness, self.are_running)

    def slices(self) -> set[tuple[str, str]]:
        """The slices by name, each with the uid of one of its Nodes."""
        nodes = self.harness.simulation.admin("GET", "/api/v1/nodes")["items"]
        label = "cloud.google.com/gke-nodepool"
        return {(one["metadata"]["labels"][label], one["metadata"]["uid"]) for one in nodes}

    def reports(self, reason: str) -> list[str]:
        events = self.harness.simulation.admin("GET", EVENTS)["items"]
        return [one["message"] for one in events if one["reason"].endswith(reason)]

    def until_nothing_is_left(self, timeout: timedelta = 30 * MINUTE) -> None:
        until(self.harness, lambda: self.harness.leftovers() == [], timeout)


def mark(document: dict[str, Any], place: str) -> None:
    document.setdefault("metadata", {}).setdefault(place, {})[OPT_OUT] = "true"


@each_kind
@pytest.mark.parametrize("where, place", [("owner", "labels"), ("Pod", "annotations")])
def test_who_has_opted_out_gets_no_slice(kind: str, place: str, where: str) -> None:
    life = Life(kind, TPU_NODE_GROUP)
    for document in [life.manifest] if where == "owner" else life.templates():
        mark(document, place)
    life.apply()
    life.harness.run_for(10 * MINUTE)
    assert (life.harness.leftovers(), life.reports("Started")) == ([], [])
    assert life.pods()


@few_kinds
def test_a_slice_stays_when_its_owner_opts_out_later(kind: str) -> None:
    life = Life(kind, TPU_NODE_GROUP)
    life.apply()
    life.until_running()
    before = life.slices()
    life.change(life.path, {"metadata": {"labels": {OPT_OUT: "true"}}})
    life.harness.run_for(10 * MINUTE)
    assert (life.slices(), life.are_running()) == (before, True)


@with_providers
def test_a_pause_delays_the_slice_and_no_release(kind: str, provider: str) -> None:
    life = Life(kind, provider)
    life.set_option(paused="true")
    life.apply()
    life.harness.run_for(5 * MINUTE)
    assert life.harness.leftovers() == []
    assert len(life.reports("SlicePaused")) == 1
    life.set_option(paused=None)
    life.until_running()
    life.set_option(paused="true")
    life.delete()
    life.until_nothing_is_left()


@with_providers
def test_at_the_limit_the_next_waits_until_a_slice_is_released(kind: str, provider: str) -> None:
    life = Life(kind, provider, slices=1)
    life.harness.simulation.admin("POST", PATHS["Pod"], objects.pod("first"))
    until(life.harness, lambda: bool(life.slices()))
    life.apply()
    life.harness.run_for(5 * MINUTE)
    (message,) = life.reports("SliceLimitReached")
    assert message.startswith(f"Namespace {NAMESPACE} may have 1 slice (")
    life.harness.simulation.admin("DELETE", f"{PATHS['Pod']}/first")
    life.until_running()
    life.delete()
    life.until_nothing_is_left()


HANGS = PodBehaviour(ends=lambda _: "", stop_s=30)
"""Pods need their whole grace period to end."""


def until_an_hour_later(life: Life) -> None:
    life.until_running()
    life.harness.run_for(HOUR)


MOMENTS: dict[str, Callable[[Life], None]] = {
    "at once": lambda life: life.harness.run_for(timedelta(seconds=1)),
    "as its slice is requested": lambda life: until(
        life.harness, lambda: bool(life.harness.leftovers())
    ),
    "as its VMs are created": lambda life: life.harness.run_for(timedelta(seconds=60)),
    "as its Pods run": lambda life: life.until_running(),
    "after an hour": until_an_hour_later,
}


@pytest.mark.parametrize(
    "kind, provider, policy, moment",
    [
        pytest.param(kind, provider, policy, moment, marks=[pytest.mark.slow] if is_slow else [])
        for row, kind in enumerate(MANIFESTS)
        for column, provider in enumerate(PROVIDERS)
        for place, policy in enumerate(("Foreground", "Background"))
        for number, moment in enumerate(MOMENTS)
        for is_slow in [(row + place + column) % 2 or (row + place - number) % 5]
    ],
)
def test_a_deletion_at_any_moment_leaves_nothing(
    kind: str, provider: str, policy: str, moment: str
) -> None:
    life = Life(kind, provider, behaviour=HANGS)
    life.apply()
    MOMENTS[moment](life)
    life.delete(policy)
    life.until_nothing_is_left()
    life.harness.run_for(30 * MINUTE)
    assert life.harness.leftovers() == []
    assert life.harness.simulation.admin("GET", life.path)["kind"] == "Status"


@each_provider
def test_a_job_that_its_time_to_live_deletes_leaves_nothing(provider: str) -> None:
    """After the release by its end, or before it."""
    for ttl_s in (0, 3_600):
        behaviour = PodBehaviour(run_s=60, ends=lambda _: "Succeeded")
        life = Life("Job", provider, behaviour=behaviour)
        life.manifest["spec"]["ttlSecondsAfterFinished"] = ttl_s
        life.apply()
        life.harness.run_for(HOUR)
        assert life.harness.leftovers() == []
        assert (life.harness.simulation.admin("GET", life.path)["kind"] == "Job") is bool(ttl_s)
        life.harness.run_for(HOUR)
        assert life.harness.simulation.admin("GET", life.path)["kind"] == "Status"
        assert len(life.reports("CreationStarted")) == 1


@each_provider
@pytest.mark.parametrize("kind", ["JobSet", "Job"])
def test_a_suspended_owner_keeps_its_slice_for_a_time_and_gets_one_again(
    kind: str, provider: str
) -> None:
    """The other kinds cannot be suspended."""
    life = Life(kind, provider, suspended_release=5 * MINUTE)
    life.apply()
    life.until_running()
    before = life.slices()
    for minutes, is_kept in ((3, True), (30, False)):
        life.change(life.path, {"spec": {"suspend": True}})
        life.harness.run_for(minutes * MINUTE)
        assert life.pods() == []
        assert life.slices() == (before if is_kept else set())
        life.change(life.path, {"spec": {"suspend": False}})
        life.until_running()
    life.delete()
    life.until_nothing_is_left()


@with_providers
def test_a_stranger_with_tpus_keeps_the_slice_until_it_ends(kind: str, provider: str) -> None:
    life = Life(kind, provider)
    life.apply()
    life.until_running()
    before, node = life.slices(), life.pods()[0]["spec"]["nodeName"]
    guest = objects.pod("guest", spec={"nodeName": node})
    life.harness.simulation.admin("POST", PATHS["Pod"], guest)
    life.delete()
    life.harness.run_for(30 * MINUTE)
    assert life.slices() == before
    (message,) = life.reports("InUse")
    assert f"because Pods of Pod {NAMESPACE}/guest run on it" in message
    life.harness.simulation.admin("DELETE", f"{PATHS['Pod']}/guest")
    life.until_nothing_is_left()


def make_spot(life: Life) -> None:
    for template in life.templates():
        template["spec"]["nodeSelector"][SPOT] = "true"
        template["spec"]["tolerations"] = [{"key": SPOT, "operator": "Exists"}]


@few_kinds
def test_a_preempted_slice_is_created_again_for_what_comes_back(kind: str) -> None:
    """A Pod of its own does not come back: its slice is released. (GKE repairs its pools itself.) The
    Pods of a group keep their names, and those on Nodes that stay without a kubelet do not end: only the
    rebuild of lost slices helps."""
    options = helpers.with_heartbeats()
    options = Options(workloads=True, agents=options.agents)
    life = Life(kind, TPU_NODE_GROUP, options=options)
    life.allow_restarts()
    make_spot(life)
    life.apply()
    life.until_running()
    before = life.slices()
    for vm in helpers.vms(life.harness):
        life.harness.simulation.gce.faults.preempt(vm)
    if kind == "Pod":
        life.until_nothing_is_left(2 * HOUR)
        return
    until(
        life.harness,
        lambda: life.are_running() and bool(life.slices()) and before.isdisjoint(life.slices()),
        2 * HOUR,
    )
    assert len({name for name, _ in life.slices()}) == 1
    life.delete()
    life.until_nothing_is_left()


def lose_a_host(kind: str, *, first: bool, **settings: Any) -> Life:
    """A slice of two Spot hosts has lost the one of the first or of the last Pod."""
    options = Options(workloads=True, agents=helpers.with_heartbeats().agents)
    life = Life(kind, TPU_NODE_GROUP, options=options, manifests=TWO_HOSTS, **settings)
    life.allow_restarts()
    make_spot(life)
    life.apply()
    life.until_running()
    node = life.pods()[0 if first else -1]["spec"]["nodeName"]
    (vm,) = (one for one in helpers.vms(life.harness) if one.endswith(node))
    life.harness.simulation.gce.faults.preempt(vm)
    return life


def with_first(*fast: tuple[str, bool]) -> pytest.MarkDecorator:
    """Each kind that loses the host of its first or of its last Pod; the fast tests try these."""
    return pytest.mark.parametrize(
        "kind, first",
        [
            pytest.param(*case, marks=[] if case in fast else [pytest.mark.slow])
            for case in product(TWO_HOSTS, (False, True))
        ],
    )


@with_first(("LeaderWorkerSet", True), ("Job", False))
def test_a_slice_that_has_lost_one_host_is_reported_once_and_leaves_nothing_when_its_owner_is_deleted(
    kind: str, first: bool
) -> None:
    """The Pod on the dead Node does not end. The worker of a leader there is deleted only after it."""
    life = lose_a_host(kind, first=first, lost_rebuild=None)
    before = life.slices()
    life.harness.run_for(HOUR)
    assert life.slices() == before
    (message,) = {*life.reports("Lost")}
    assert "does not recover by itself: Preempted: 1 of 2 nodes is not ready" in message
    life.delete()
    life.until_nothing_is_left()


@with_first(("StatefulSet", False))
def test_a_slice_that_has_lost_one_host_is_created_again_if_configured(
    kind: str, first: bool
) -> None:
    life = lose_a_host(kind, first=first, lost_rebuild=10 * MINUTE)
    before = life.slices()
    until(
        life.harness,
        lambda: life.are_running() and bool(life.slices()) and before.isdisjoint(life.slices()),
        HOUR,
    )
    assert len({name for name, _ in life.slices()}) == 1
    assert len(life.reports("Lost")) == 1
    life.delete()
    life.until_nothing_is_left()


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[] if kind == "Job" else [pytest.mark.slow]) for kind in TWO_HOSTS],
)
def test_a_pool_that_has_lost_one_host_is_left_to_gke(kind: str) -> None:
    """The Pod whose Node is gone waits, and nothing is bought or reported for it."""
    life = Life(kind, GKE, manifests=TWO_HOSTS)
    life.allow_restarts()
    life.apply()
    life.until_running()
    before = {name for name, _ in life.slices()}
    (path,) = life.harness.gke.leftovers()
    pool = path.rpartition("/")[2]
    life.harness.gke.faults.lose_nodes(pool, 1)
    life.harness.run_for(HOUR)
    assert ({name for name, _ in life.slices()}, life.are_running()) == (before, False)
    life.harness.gke.faults.repair_nodes(pool)
    life.until_running()
    assert {name for name, _ in life.slices()} == before
    assert [life.reports(one) for one in ("Failed", "Lost", "DeletionStarted")] == [[], [], []]
    assert len(life.reports("CreationStarted")) == 1
    life.delete()
    life.until_nothing_is_left()


def fail(life: Life, pod: dict[str, Any]) -> None:
    life.change(f"{PATHS['Pod']}/{pod['metadata']['name']}/status", {"status": {"phase": "Failed"}})


def remove(life: Life, pod: dict[str, Any]) -> None:
    life.harness.simulation.admin("DELETE", f"{PATHS['Pod']}/{pod['metadata']['name']}")


@pytest.mark.parametrize(
    "kind, provider, end",
    [
        pytest.param(kind, provider, end, marks=[pytest.mark.slow] if number % 5 else [])
        for number, (kind, provider, end) in enumerate(
            product(MANIFESTS, PROVIDERS, (fail, remove))
        )
    ],
)
def test_a_pod_that_ends_is_replaced_on_its_slice(
    kind: str, provider: str, end: Callable[[Life, dict[str, Any]], None]
) -> None:
    """Nothing replaces a Pod of its own: its slice is released."""
    life = Life(kind, provider)
    life.allow_restarts()
    life.apply()
    life.until_running()
    before, last = life.slices(), life.pods()[-1]
    end(life, last)
    if kind == "Pod":
        life.until_nothing_is_left()
        return
    life.harness.run_for(30 * MINUTE)
    uids = {one["metadata"]["uid"] for one in life.pods() if one["status"]["phase"] != "Failed"}
    assert last["metadata"]["uid"] not in uids
    assert (life.are_running(), life.slices()) == (True, before)


FAST = {("LeaderWorkerSet", TPU_NODE_GROUP), ("Deployment", GKE), ("Pod", TPU_NODE_GROUP)}


def be_older(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of a version that knows JobSets alone."""
    for path in ("shared.slices.kinds", "shared.slices.work", "functions.provision_slice.quotas"):
        monkeypatch.setattr(f"{path}.KINDS", (JOBSET,))


@pytest.mark.parametrize(
    "kind, provider",
    [
        pytest.param(kind, provider, marks=[] if (kind, provider) in FAST else [pytest.mark.slow])
        for kind in OTHERS
        for provider in PROVIDERS
    ],
)
def test_after_a_rollback_servers_go_on_and_what_nobody_runs_on_is_released(
    kind: str, provider: str
) -> None:
    """The older version has no rows of the new kinds; its relay is the newer one, whose messages it
    acknowledges with an outcome."""
    life = Life(kind, provider)
    life.apply()
    life.until_running()
    before = life.slices()
    with pytest.MonkeyPatch.context() as older:
        be_older(older)
        answered = len(life.harness.answers)
        life.harness.run_for(HOUR)
        assert (life.slices(), life.are_running()) == (before, True)
        life.harness.simulation.admin("POST", PATHS["Pod"], objects.pod("later"))
        life.harness.run_for(10 * MINUTE)
        assert life.slices() == before
        answers = [answer for _, answer in life.harness.answers[answered:]]
        assert {answer.http for answer in answers} <= {200, 204}, answers
        assert all(answer.outcome for answer in answers)
        life.harness.simulation.admin("DELETE", f"{PATHS['Pod']}/later")
    life.harness.run_for(30 * MINUTE)
    assert (life.slices(), life.are_running()) == (before, True)
    with pytest.MonkeyPatch.context() as older:
        be_older(older)
        life.delete()
        life.until_nothing_is_left()
    life.apply()
    life.until_running()
    life.delete()
    life.until_nothing_is_left()
