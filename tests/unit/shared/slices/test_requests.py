# ruff: noqa: E501  (a table reads best with a row on a line)
"""The units of a ProvisioningRequest are those of the Pods that its workload will have."""

from __future__ import annotations

from typing import Any, cast

import pytest

from shared.base.topology import chips_of
from shared.slices.requests import RequestSource, find_source, list_units, read_entry
from shared.slices.units import InputError, UnservableError
from tests.stories import workload_objects as objects
from tests.stories.request_objects import pod_sets
from tests.support import jobset_objects
from tests.support.builders import merge
from tests.support.slices import asked

GROUP = {"metadata": {"annotations": {"kueue.x-k8s.io/component-workload-index": "3"}}}
REQUEST = {
    "kind": "ProvisioningRequest",
    "metadata": {"name": "r", "namespace": "default", "uid": "u", "creationTimestamp": "2026-11-20T09:59:00Z"},
    "spec": {"parameters": {"class": "v6e"}},
}  # fmt: skip
Sets = dict[str, tuple[int, dict[str, Any]]]


def units(owner: dict[str, Any], sets: Sets, workload: dict[str, Any] | None = None) -> Any:
    held = merge(owner, {"metadata": {"namespace": "default"}})
    entries = [
        read_entry(REQUEST, f"ppt-r-{name}", count, template)
        for name, (count, template) in sets.items()
    ]
    return list_units(RequestSource(REQUEST, workload or {"metadata": {}}, held), entries)


def jobset(*jobs: tuple[str, int, str], **change: Any) -> dict[str, Any]:
    """A JobSet with these replicated Jobs: name, replicas, topology. Each Pod has 4 chips."""
    made = jobset_objects.jobset(**change)
    (job,) = made["spec"]["replicatedJobs"]
    select = jobset_objects.selector
    made["spec"]["replicatedJobs"] = [
        merge(job, {"name": name, "replicas": replicas, "template": {"spec": {"parallelism": chips_of(topology) // 4, "completions": chips_of(topology) // 4, "template": {"spec": {"nodeSelector": select(topology=topology)}}}}})
        for name, replicas, topology in jobs
    ]  # fmt: skip
    return made


SURPLUS = jobset(("a", 1, "4x4"))
SURPLUS["spec"]["replicatedJobs"][0]["template"]["spec"] |= {"parallelism": 8, "completions": 4}
ONE_HOST = jobset_objects.small_jobset()
ONE_HOST["spec"]["replicatedJobs"][0]["template"]["spec"]["completionMode"] = "NonIndexed"
LWS = objects.leader_worker_set
CPU_LEADER = LWS(5, has_leader=False)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "the Jobs of a JobSet": (jobset(("a", 2, "4x4"), ("b", 1, "2x4")), {}, ["train-a-0", "train-a-1", "train-b-0"]),
    "a Job with fewer completions than may run at once": (SURPLUS, {}, ["train-a-0"]),
    "the Jobs of one host of a JobSet, which need no index": (ONE_HOST, {}, ["train-workers-0"]),
    "an Indexed Job of one slice": (objects.job(4, "4x4"), {}, [""]),
    "the indexes of a Job": (objects.job(3), {}, ["0", "1", "2"]),
    "a group": (LWS(4), GROUP, ["3"]),
    "a group whose leader has no chips": (CPU_LEADER, GROUP, ["3"]),
    "the Pods of a group": (LWS(2, topology="2x2"), GROUP, ["3", "3/1"]),
    "the workers of a group": (LWS(3, topology="2x2", has_leader=False), GROUP, ["3/1", "3/2"]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_request_is_for_the_units_of_its_owner(case: str) -> None:
    owner, workload, members = CASES[case]
    found = units(owner, pod_sets(owner), workload)
    assert [one.member for one in found] == members
    for unit, demand in found.items():
        assert (unit.kind, unit.owner) == (owner["kind"], owner["metadata"]["name"])
        assert demand.selector["slices.tpu-functions.dev/workload"] == unit.workload_key
        assert demand.annotations["tpu-functions.dev/slice-class"] == "v6e"
    assert len({one.workload_key for one in found}) == 1


def test_the_pod_of_a_jobset_later_has_the_slice_that_was_made_for_the_request() -> None:
    owner = jobset_objects.jobset()
    ((unit, demand),) = units(owner, pod_sets(owner)).items()
    tied = jobset_objects.waiting_pod(spec={"nodeSelector": {"job-key": unit.key}})
    later, own = asked(tied)
    assert (own, own.slice_name) == (unit, unit.slice_name)
    assert {
        **later.selector,
        "slices.tpu-functions.dev/workload": unit.workload_key,
    } == demand.selector
    assert later.chips == demand.chips


def test_of_the_owners_annotations_only_its_exclusive_topology_counts() -> None:
    """The others are not those of its Pods."""
    others = {"tpu-functions.dev/slice-class": "v5e"}
    owner = jobset_objects.jobset(metadata={"annotations": others})
    ((_, demand),) = units(owner, pod_sets(owner)).items()
    given = owner["metadata"]["annotations"]
    topology = "alpha.jobset.sigs.k8s.io/exclusive-topology"
    assert demand.annotations[topology] == given[topology]
    assert demand.annotations["tpu-functions.dev/slice-class"] == "v6e"


def test_a_podset_has_its_own_template_also_if_its_name_ends_that_of_another() -> None:
    owner = jobset(("spare-a", 1, "4x4"), ("a", 1, "4x4"))
    sets = pod_sets(owner)
    for name, (count, template) in sets.items():
        sets[name] = (count, merge(template, {"metadata": {"labels": {"podset": name}}}))
    found = units(owner, sets)
    assert [one.labels["podset"] for one in found.values()] == ["spare-a", "a"]


@pytest.mark.parametrize("kind", ["LocalQueue", "Foo"])
def test_a_request_of_another_owner_than_a_workload_is_for_itself(kind: str) -> None:
    owner = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": kind,
        "name": "q",
        "uid": "u",
        "controller": True,
    }
    request = merge(REQUEST, {"metadata": {"ownerReferences": [owner]}})
    assert find_source(cast("Any", None), request) == RequestSource(request, {}, request)


TWO_JOBS = jobset(("a", 2, "4x4"), metadata={"annotations": None})
UNFENCED = (
    "the JobSet has no annotation alpha.jobset.sigs.k8s.io/exclusive-topology, and the Pod no "
    "nodeSelector job-key, so that Pods of other Jobs could take hosts of the slice: the JobSet must "
    "have alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool"
)
IN_TURNS = jobset(("a", 1, "4x4"))
IN_TURNS["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"] = 8
TOGETHER = merge(
    LWS(2, topology="2x2"),
    {
        "metadata": {
            "annotations": {
                "leaderworkerset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"
            }
        }
    },
)
DEPLOYMENT = objects.deployment()
NOT_INDEXED = jobset(("a", 1, "4x4"))
NOT_INDEXED["spec"]["replicatedJobs"][0]["template"]["spec"]["completionMode"] = "NonIndexed"
REFUSED: dict[str, tuple[dict[str, Any], Sets | None, type[Exception], str]] = {
    "Jobs of several hosts that could take each other's": (TWO_JOBS, None, InputError, UNFENCED),
    "a Job that is not Indexed": (objects.job(2, completionMode="NonIndexed"), None, UnservableError, "Job train is not Indexed: slices are created only for those with completionMode: Indexed"),
    "a JobSet of several hosts whose Jobs are not": (NOT_INDEXED, None, UnservableError, "replicatedJob a is not Indexed: slices are created only for those with completionMode: Indexed"),
    "Jobs whose Pods run one after another": (IN_TURNS, None, UnservableError, "replicatedJob a has parallelism 4 and completions 8: they must be equal, because all hosts of a slice run together"),
    "a Job whose Pods do": (objects.job(4, "4x4", completions=8), None, UnservableError, "Job train has parallelism 4 and completions 8: they must be equal"),
    "a group of single hosts that is to run on one slice": (TOGETHER, None, UnservableError, "a slice of topology 2x2 has 1 host with 4 chips, so each Pod of a group gets its own; by the annotation leaderworkerset.sigs.k8s.io/exclusive-topology, all would have to run on the leader's: remove it, or request the chips of one host of a larger slice"),
    "a JobSet with too many Pods": (jobset_objects.small_jobset(hosts=2), None, UnservableError, "replicatedJob workers has 2 Pods, and a slice has 1 host: they must be equal"),
    "too few Pods": (objects.job(2, "4x4"), None, UnservableError, "Job train has 2 Pods, and a slice has 4 hosts: they must be equal"),
    "a group of an unknown number": (LWS(4), None, UnservableError, "only groups of equal Pods, and without subgroups, get slices so"),
    "a Deployment": (DEPLOYMENT, {"main": (1, objects.template())}, UnservableError, "only JobSets, Indexed Jobs and LeaderWorkerSets get slices so"),
    "too many": (objects.job(201), None, UnservableError, "the Pods must ask for chips, and for at most 200 slices"),
    "a PodTemplate that was changed": (objects.job(1), {"main": (1, objects.template("4x4"))}, UnservableError, "no PodTemplate asks for the slices of main"),
    "by hand, a remainder": (REQUEST, {"main": (3, objects.template("4x4"))}, UnservableError, "PodTemplate ppt-r-main: 12 chips are not one slice of 4x4 or, of one host, several, which a request without a workload may ask for"),
    "by hand, two slices of several hosts": (REQUEST, {"main": (8, objects.template("4x4"))}, UnservableError, "PodTemplate ppt-r-main: 32 chips are not one slice of 4x4"),
    "no topology": (REQUEST, {"main": (1, merge(objects.template(), {"spec": {"nodeSelector": None}}))}, UnservableError, "PodTemplate ppt-r-main must select a cloud.google.com/gke-tpu-topology, as in 4x4, and not opt out of slices"),
    "another class": (REQUEST, {"main": (1, merge(objects.template(), {"metadata": {"annotations": {"tpu-functions.dev/slice-class": "b"}}}))}, UnservableError, "PodTemplate ppt-r-main has not the parameter's tpu-functions.dev/slice-class"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_request_that_names_no_units_says_why(case: str) -> None:
    owner, sets, expected, text = REFUSED[case]
    workload = GROUP if owner is TOGETHER else None
    with pytest.raises(expected) as raised:
        units(owner, pod_sets(owner) if sets is None else sets, workload)
    said = str(raised.value)
    assert said == text if text == UNFENCED else said.startswith(text)
    assert type(raised.value) is expected


def test_a_request_by_hand_is_for_as_many_slices_as_its_pods_need() -> None:
    found = units(REQUEST, {"a": (2, objects.template()), "b": (1, objects.template())})
    assert [one.member for one in found] == ["0", "1", "2"]
    (unit,) = units(REQUEST, {"main": (4, objects.template("4x4"))})
    assert (unit.kind, unit.owner, unit.member) == ("ProvisioningRequest", "r", "0")


def test_the_groups_of_a_leader_worker_set_are_tied_to_slices_of_their_own() -> None:
    """Kueue admits each with a request of its own, and all Pods have the same template."""
    keys = {
        unit.workload_key
        for group in "34"
        for unit in units(
            LWS(2, topology="2x2"),
            pod_sets(LWS(2, topology="2x2")),
            {"metadata": {"annotations": {"kueue.x-k8s.io/component-workload-index": group}}},
        )
    }
    assert len(keys) == 2
