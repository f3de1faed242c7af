"""The projection of objects, lists and errors: the fields that the relay keeps."""

from __future__ import annotations

import json

import pytest

from relay.changes.fingerprints import fingerprint_group, fingerprint_node
from relay.watching.projection import parse
from shared.base.names import TPU_RESOURCE
from shared.base.signing_requests import find_signing_request
from shared.slices.kinds import find_leader
from shared.slices.kinds.jobset import JOBSET, count_completed, requests_chips
from shared.slices.units import read_demand, waits
from tests.unit.relay.objects import (
    Raw,
    foreign_node,
    group,
    held_pod,
    jobset,
    node,
    pod,
    projected,
    settled_group,
    signing_request,
    slice_group,
    versioned,
)
from tests.unit.relay.scripted_api import status


def test_a_list_with_a_deeply_nested_object_is_read_as_the_api_server_sends_it() -> None:
    managed = {**group(), "metadata": {**group()["metadata"], "managedFields": "@"}}
    text = json.dumps({"items": [managed, node("n")]}).replace('"@"', _nest(1_100))
    items = parse(text.encode())["items"]
    assert [item["metadata"]["name"] for item in items] == [group()["metadata"]["name"], "n"]
    assert fingerprint_group(items[0]) == fingerprint_group(projected(group()))


def _nest(depth: int) -> str:
    return '[{"fieldsV1":' + '{"f:a":' * depth + "{}" + "}" * depth + "}]"


GROUPS = {
    "new": group(resource_name="", finalizers=()),
    "paused and deleting": group(paused="true", deleting=True),
    "settled": settled_group(3, generation=4, observed=4),
    "refused slice": slice_group("QuotaExceeded"),
    "granted slice": slice_group(has_vms=True),
}


@pytest.mark.parametrize("raw", GROUPS.values(), ids=GROUPS.keys())
def test_every_field_of_a_group_that_is_read_is_kept(raw: Raw) -> None:
    assert fingerprint_group(projected(raw)) == fingerprint_group(raw)


@pytest.mark.parametrize("raw", [node(), foreign_node("n")], ids=["own", "foreign"])
def test_every_field_of_a_node_that_is_read_is_kept(raw: Raw) -> None:
    assert fingerprint_node(projected(raw)) == fingerprint_node(raw)


def with_sidecar(raw: Raw) -> Raw:
    """A Pod with two chips in a sidecar, and an init container that asks for four."""
    chips = {"requests": {TPU_RESOURCE: "2"}, "limits": {TPU_RESOURCE: "2"}}
    sidecar = {"name": "data", "restartPolicy": "Always", "resources": chips}
    before = {"name": "warm", "resources": {"requests": {TPU_RESOURCE: "4"}}}
    return {**raw, "spec": {**raw["spec"], "initContainers": [before, sidecar]}}


def with_init_container(raw: Raw) -> Raw:
    """A Pod with four chips in an init container."""
    spec = {**raw["spec"], "initContainers": with_sidecar(raw)["spec"]["initContainers"][:1]}
    return {**raw, "spec": spec}


PODS = {
    "leader": pod(),
    "with a sidecar": with_sidecar(pod(chips="2")),
    "chips only in a sidecar": with_sidecar(pod(chips="")),
    "chips only in an init container": with_init_container(pod(chips="")),
    "other": pod(index="1", phase="Running"),
    "opted out": pod(annotations={"autoscaling.x-k8s.io/consume-provisioning-request": "x"}),
    "of a LeaderWorkerSet": pod(annotations={"leaderworkerset.sigs.k8s.io/size": "2"}),
    "in a gang": held_pod(),
    "in a gang, with a gate": held_pod(schedulingGates=[{"name": "a"}]),
    "in a gang, with a Node": held_pod(nodeName="n"),
}


@pytest.mark.parametrize("raw", PODS.values(), ids=PODS.keys())
def test_every_field_of_a_pod_that_is_read_is_kept(raw: Raw) -> None:
    after = projected(raw)
    for read in (find_leader, read_demand, waits):
        assert read(after) == read(raw), read


OF_NO_SLICE = {
    "no chips": pod(chips=""),
    "no topology": pod(topology=""),
    "no containers": pod() | {"spec": {"containers": []}},
    "malformed": pod() | {"spec": {"containers": [None, 1, {}], "nodeSelector": 2}},
}


@pytest.mark.parametrize("raw", OF_NO_SLICE.values(), ids=OF_NO_SLICE.keys())
def test_of_a_pod_that_asks_for_no_slice_only_its_identity_is_kept(raw: Raw) -> None:
    identity = {"namespace": "default", "name": pod()["metadata"]["name"], "uid": "pod-uid-1"}
    assert projected(raw) == {"metadata": identity}


JOBSETS = {
    "running": jobset(),
    "ended": jobset(end="Failed"),
    "with completed Jobs": jobset(completed=2),
    "without chips": jobset(chips=""),
    "of templates without metadata": json.loads(
        json.dumps(jobset()).replace('"metadata": {}, ', "")
    ),
}


@pytest.mark.parametrize("raw", JOBSETS.values(), ids=JOBSETS.keys())
def test_every_field_of_a_jobset_that_is_read_is_kept(raw: Raw) -> None:
    after = projected(raw)
    assert after["metadata"]["uid"] == raw["metadata"]["uid"]
    for read in (requests_chips, JOBSET.find_end, count_completed):
        assert read(after) == read(raw), read


@pytest.mark.parametrize("raw", [signing_request(), signing_request("AutoApproved")])
def test_every_field_of_a_request_that_is_read_is_kept_and_its_text_is_dropped(raw: Raw) -> None:
    assert find_signing_request(projected(raw)) == find_signing_request(raw) is not None
    assert "request" not in projected(raw)["spec"]


def test_most_of_a_node_is_dropped() -> None:
    raw = foreign_node("n")
    assert len(json.dumps(projected(raw))) < len(json.dumps(raw)) / 10


def test_only_the_chips_of_containers_of_pods_and_templates_are_kept() -> None:
    chips = {"google.com/tpu": "4"}
    requests = {"resources": {"requests": chips, "limits": chips}}
    assert projected(pod())["spec"].keys() == {"containers", "nodeSelector", "tolerations"}
    assert projected(pod())["spec"]["containers"] == [requests]
    [job] = projected(jobset())["spec"]["replicatedJobs"]
    limits = {"resources": {"requests": {}, "limits": chips}}
    assert job["template"]["spec"]["template"]["spec"] == {"containers": [limits]}


def test_the_items_of_a_list_are_projected_and_its_version_is_kept() -> None:
    page = projected({"metadata": {"resourceVersion": "7", "continue": "t"}, "items": [node()]})
    assert page == {
        "metadata": {"resourceVersion": "7", "continue": "t"},
        "items": [projected(node())],
    }


def test_a_watch_event_keeps_its_type_and_the_version_of_its_object() -> None:
    event = projected({"type": "MODIFIED", "object": versioned(node(), 7)})
    assert (event["type"], event["object"]["metadata"]["resourceVersion"]) == ("MODIFIED", "7")


def test_an_error_is_not_changed() -> None:
    error = {"type": "ERROR", "object": status(410, "too old resource version")}
    assert projected(error) == error


def test_metadata_in_the_spec_of_a_group_is_not_read_as_metadata_of_the_group() -> None:
    raw = group()
    raw["spec"]["instanceConfig"] = {"metadata": {"name": "x"}, "labels": {}}
    assert projected(raw)["metadata"]["name"] == "train"


MALFORMED: dict[str, Raw] = {
    "nulls": {"metadata": None, "spec": None, "status": {}},
    "wrong shapes": {"metadata": [], "spec": {}, "status": {"conditions": {"a": 1}}},
    "conditions of other types": {"metadata": {}, "status": {"conditions": [None, "Ready", {}]}},
    "containers of other types": {
        "metadata": {},
        "spec": {"containers": [None, 1, {}]},
        "status": {},
    },
}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_objects_are_projected(raw: Raw) -> None:
    assert projected(raw)["status"] == {"conditions": []}
