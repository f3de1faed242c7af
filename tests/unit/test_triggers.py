"""What wakes a step: push envelopes with messages of ours and entries of the audit log."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.base.fields import show
from shared.base.names import JOBSET_STEPS, STEPS
from shared.frame.audit_log import LogEvent, find_steps
from shared.frame.decode import Delivery, Trigger, decode
from shared.frame.message import (
    MAX_NAMES,
    Cause,
    Message,
    PoisonError,
    message_about_requests,
)
from shared.frame.plan import NothingToDo
from shared.frame.step import Invocation
from shared.node_groups.work import find_group
from shared.ports.gce.values import Instance
from tests.unit.builders import CLUSTER, DATA, NAME, NOW, RESOURCE, UID, raw_group

MESSAGE = Message("default", NAME, UID, Cause.NODES_CHANGED, NOW, nodes=("n",), vms=("v",))


def push(data: bytes, **envelope: Any) -> bytes:
    """A push request's body around a message's data."""
    message = {"data": base64.b64encode(data).decode(), "messageId": "17"}
    return json.dumps({"message": message, "subscription": "s", **envelope}).encode()


def said(**change: Any) -> bytes:
    """A push of a message of ours with other fields; ``None`` takes one away."""
    document = {**json.loads(MESSAGE.encode()), **change}
    return push(json.dumps({key: it for key, it in document.items() if it is not None}).encode())


def read(body: bytes) -> Trigger:
    trigger = decode(body).trigger
    assert trigger is not None
    return trigger


# Messages of ours


@pytest.mark.parametrize("cause", Cause)
def test_a_message_is_read_as_it_was_written(cause: Cause) -> None:
    message = replace(MESSAGE, cause=cause)
    trigger = read(push(message.encode()))
    assert (trigger.message, trigger.cause, trigger.at) == (message, cause, NOW)
    assert (trigger.nodes, trigger.vms) == (("n",), ("v",))
    assert trigger.is_resync == (cause is Cause.RESYNC)


labels = st.from_regex("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
names = st.lists(labels, min_size=1, max_size=3).map(".".join)


@given(
    message=st.builds(
        Message,
        namespace=labels,
        name=names,
        uid=st.from_regex("[-0-9a-f]{0,36}", fullmatch=True),
        cause=st.sampled_from(Cause),
        at=st.datetimes(timezones=st.just(UTC)),
        nodes=st.lists(names, max_size=3).map(tuple),
        vms=st.lists(labels, max_size=3).map(tuple),
    )
)
def test_whatever_a_message_holds_it_is_read_as_it_was_written(message: Message) -> None:
    assert read(push(message.encode())).message == message


def test_a_message_without_names_does_not_mention_them() -> None:
    document = json.loads(replace(MESSAGE, nodes=(), vms=()).encode())
    assert document == {
        "version": 1,
        "kind": "TPUNodeGroup",
        "namespace": "default",
        "name": NAME,
        "uid": UID,
        "cause": "NodesChanged",
        "at": "2026-11-20T10:00:00Z",
    }


def test_a_message_about_requests_holds_their_names_and_no_other() -> None:
    about = message_about_requests(Cause.JOIN_REQUESTED, NOW, ["csr-a", "node-csr-b"])
    document = json.loads(about.encode())
    assert sorted(document) == ["at", "cause", "kind", "requests", "version"]
    trigger = read(push(about.encode()))
    assert trigger.message == about
    assert trigger.is_for("approve_join")
    assert not any(
        trigger.is_for(step) for step in (*STEPS, *JOBSET_STEPS) if step != "approve_join"
    )
    assert not read(push(MESSAGE.encode())).is_for("approve_join")


def test_attributes_are_for_people_to_filter_by() -> None:
    assert MESSAGE.attributes("my-cluster") == {"cluster": "my-cluster", "cause": "NodesChanged"}


def test_fields_that_are_not_known_are_passed_over() -> None:
    assert read(said(added_in_another_release=[1, 2])).message == MESSAGE


def test_a_cause_that_is_not_known_is_a_trigger_too() -> None:
    trigger = read(said(cause="FullMoon"))
    assert trigger.cause == "FullMoon"
    assert trigger.message == replace(MESSAGE, cause=Cause.FORWARDED)


def test_a_message_without_uid_means_the_group_of_that_name() -> None:
    assert read(said(uid=None)).message == replace(MESSAGE, uid="")


def test_a_message_without_time_is_as_old_as_its_publication() -> None:
    body = json.loads(said(at=None))
    body["message"]["publishTime"] = "2026-11-20T11:00:00.123Z"
    assert read(json.dumps(body).encode()).at == datetime(
        2026, 11, 20, 11, 0, 0, 123000, tzinfo=UTC
    )


def test_what_the_scheduler_publishes_is_a_sweep() -> None:
    trigger = read(push(b'{"version": 1, "kind": "Sweep"}'))
    assert (trigger.cause, trigger.message, trigger.event) == ("Sweep", None, None)


# Envelopes


@pytest.mark.parametrize(
    "message",
    [
        {"messageId": "17", "publishTime": "2026-11-20T10:00:01Z"},
        {"message_id": "17", "publish_time": "2026-11-20T10:00:01Z"},
        {"messageId": "17", "message_id": "17", "publishTime": "2026-11-20T11:00:01+01:00"},
    ],
    ids=["camelCase", "snake_case", "both, another offset"],
)
def test_an_envelope_comes_in_two_spellings(message: dict[str, str]) -> None:
    data = base64.b64encode(MESSAGE.encode()).decode()
    body = json.dumps({"message": {**message, "data": data}, "deliveryAttempt": 3}).encode()
    assert decode(body) == Delivery(
        "17", 3, datetime(2026, 11, 20, 10, 0, 1, tzinfo=UTC), read(body)
    )


@pytest.mark.parametrize("envelope", [{}, {"deliveryAttempt": None}, {"deliveryAttempt": "2"}])
def test_an_absent_delivery_attempt_counts_as_none(envelope: dict[str, Any]) -> None:
    assert decode(push(MESSAGE.encode(), **envelope)).attempt == 0


@pytest.mark.parametrize("time", ["", "yesterday", 17, None])
def test_a_time_of_publication_that_cannot_be_read_is_not_known(time: Any) -> None:
    body = json.loads(push(MESSAGE.encode()))
    body["message"]["publishTime"] = time
    assert decode(json.dumps(body).encode()).published is None


# Poison

TOO_MANY = ["n"] * (MAX_NAMES + 1)
LONG_NAME = show(".".join(["a" * 63] * 4)[:254])
POISON: dict[str, tuple[bytes, str]] = {
    "no JSON": (
        b"x",
        "the push request is no JSON: Expecting value: line 1 column 1 (char 0); "
        "it must be a JSON object",
    ),
    "no object": (b"[]", "the push request is list; it must be a JSON object"),
    "no envelope": (
        MESSAGE.encode(),
        "the push request has no 'message'; it must be a Pub/Sub push envelope",
    ),
    "an envelope of text": (
        b'{"message": "x"}',
        "the push request has no 'message'; it must be a Pub/Sub push envelope",
    ),
    "data that is no base64": (
        b'{"message": {"messageId": "17", "data": "!"}}',
        "message 17: 'data' is no base64: Only base64 data is allowed",
    ),
    "no data": (
        b'{"message": {"messageId": "17"}}',
        "message 17 is no JSON: Expecting value: line 1 column 1 (char 0); "
        "it must be a JSON object",
    ),
    "no id": (
        b'{"message": {}}',
        "message unknown is no JSON: Expecting value: line 1 column 1 (char 0); "
        "it must be a JSON object",
    ),
    "data that is a list": (push(b"[]"), "message 17 is list; it must be a JSON object"),
    "no version": (said(version=None), "message 17: version None is not known; it must be 1"),
    "another version": (said(version=2), "message 17: version 2 is not known; it must be 1"),
    "another kind": (
        said(kind="Deployment"),
        "message 17: kind 'Deployment' is not known; it must be TPUNodeGroup, Pod, JobSet, Slice, "
        "CertificateSigningRequest or Sweep",
    ),
    "no time at all": (said(at=None), "message 17: 'at' must be an RFC 3339 time"),
    "a time that is none": (said(at="now"), "message 17: 'at' must be an RFC 3339 time"),
    "a request's name that is none": (
        said(kind="CertificateSigningRequest", requests=["a/b"]),
        "message 17: each of 'requests' must be printable and without '/' and '%', not 'a/b'",
    ),
    "no namespace": (
        said(namespace=None),
        "message 17: 'namespace' must be a DNS label, not None",
    ),
    "a namespace of two labels": (
        said(namespace="a.b"),
        "message 17: 'namespace' must be a DNS label, not 'a.b'",
    ),
    "an empty name": (said(name=""), "message 17: 'name' must be a DNS subdomain, not ''"),
    "a name that is a path": (
        said(name="a/b"),
        "message 17: 'name' must be a DNS subdomain, not 'a/b'",
    ),
    "a name that leads to the parent": (
        said(name=".."),
        "message 17: 'name' must be a DNS subdomain, not '..'",
    ),
    "a name of 254 characters": (
        said(name=".".join(["a" * 63] * 4)[:254]),
        f"message 17: 'name' must be a DNS subdomain, not {LONG_NAME}",
    ),
    "a name that is a number": (
        said(name=7),
        "message 17: 'name' must be a DNS subdomain, not 7",
    ),
    "a name that ends a line": (
        said(name="a\n"),
        "message 17: 'name' must be a DNS subdomain, not 'a\\n'",
    ),
    "a uid that is a path": (
        said(uid="a/b"),
        "message 17: 'uid' must be an object's uid, not 'a/b'",
    ),
    "a lone surrogate": (
        said(name="\ud800"),
        "message 17 has a lone surrogate in it; it must be Unicode",
    ),
    "a lone surrogate in the envelope": (
        b'{"message": {"messageId": "\\udfff"}}',
        "the push request has a lone surrogate in it; it must be Unicode",
    ),
    "nodes that are text": (
        said(nodes="n"),
        "message 17: 'nodes' must be a list of at most 100 names",
    ),
    "nodes that are numbers": (
        said(nodes=[1]),
        "message 17: each of 'nodes' must be a DNS subdomain, not 1",
    ),
    "a Node that is a path": (
        said(nodes=["n", "a/b"]),
        "message 17: each of 'nodes' must be a DNS subdomain, not 'a/b'",
    ),
    "a VM of two labels": (
        said(vms=["v.example"]),
        "message 17: each of 'vms' must be a DNS label, not 'v.example'",
    ),
    "too many VMs": (said(vms=TOO_MANY), "message 17: 'vms' must be a list of at most 100 names"),
}


@pytest.mark.parametrize("case", POISON.values(), ids=POISON)
def test_what_can_never_be_understood_is_named_with_what_would_be_right(
    case: tuple[bytes, str],
) -> None:
    body, text = case
    with pytest.raises(PoisonError) as caught:
        decode(body)
    assert str(caught.value) == text


def test_a_cause_that_is_no_text_is_a_trigger_too() -> None:
    assert read(said(cause=["x"])).message == replace(MESSAGE, cause=Cause.FORWARDED)


@given(body=st.binary(max_size=40).filter(lambda body: not body.startswith(b"{")))
def test_bytes_of_any_kind_are_poison_and_nothing_worse(body: bytes) -> None:
    for whole in (body, push(body)):
        with pytest.raises(PoisonError):
            decode(whole)


# Entries of the audit log

ENTRIES: dict[str, Any] = {
    row["name"]: row
    for row in map(json.loads, (DATA / "audit-log-entries.jsonl").read_text().splitlines())
}
ONLY_THE_TRUTH_TELLS = {
    "other-project-mig": (
        "create_resources",
        "it has our very name: that the project is another's is in the group's spec",
    ),
    "other-zone-same-name": (
        "inject_token",
        "it has our very name: that the zone is another is in the group's spec",
    ),
    "same-prefix-hand-made-vm": (
        "inject_token",
        "name and place are ours: that no group made the VM is in its metadata",
    ),
}
"""Entries that concern nobody and still wake a step, by which, and why the entry cannot tell."""
THEIR_NAME, THEIR_PROJECT = "tng-default-my-slice-1a2b3c4d", "my-project"


def ours(name: str) -> bytes:
    """An entry of the file as it would be about the group of these tests."""
    text = json.dumps(ENTRIES[name]["entry"])
    for their, our in ((THEIR_NAME, RESOURCE), (THEIR_PROJECT, "my-gcp-project")):
        text = text.replace(their, our)
    return push(text.encode())


def steps_of(delivery: Delivery) -> tuple[str, ...]:
    if delivery.trigger is None:
        return ()
    assert delivery.trigger.event is not None
    return find_steps(delivery.trigger.event)


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_triggers_the_step_that_it_concerns(name: str) -> None:
    expected, _ = ONLY_THE_TRUTH_TELLS.get(name, (ENTRIES[name]["wakes"], ""))
    assert ([*steps_of(decode(ours(name)))] or ["none"]) == [expected]


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_that_triggers_no_step_has_a_note_or_a_foreign_name(name: str) -> None:
    delivery = decode(ours(name))
    assert (delivery.trigger is None) == bool(delivery.note)


POOLS: dict[str, Any] = {
    row["name"]: row
    for row in map(json.loads, (DATA / "node-pool-log-entries.jsonl").read_text().splitlines())
}


def pool_entry(name: str, **change: Any) -> Delivery:
    return decode(push(json.dumps({**POOLS[name]["entry"], **change}).encode()))


@pytest.mark.parametrize("name", POOLS)
def test_an_entry_about_a_node_pool_triggers_the_steps_that_it_concerns(name: str) -> None:
    assert [*steps_of(pool_entry(name))] == POOLS[name]["wakes"]


def test_the_end_of_a_node_pools_creation_says_which_and_why_it_failed() -> None:
    trigger = pool_entry("pool-create-last-error").trigger
    assert trigger is not None
    assert trigger.event is not None
    words = trigger.event.words
    assert "GCE_STOCKOUT" in words
    assert trigger.cause == "container.nodePools.create"
    assert trigger.event == LogEvent(
        method="container.nodePools.create",
        project="my-project",
        location="us-central1-c",
        name="my-jobset-759730a97e4373f3",
        has_failed=True,
        words=words,
        cluster="my-cluster",
    )


def test_an_error_without_a_message_is_named_by_its_code() -> None:
    payload = POOLS["pool-create-last-error"]["entry"]["protoPayload"]
    trigger = pool_entry(
        "pool-create-last-error", protoPayload={**payload, "status": {"code": 13}}
    ).trigger
    assert trigger is not None
    assert trigger.event is not None
    assert (trigger.event.has_failed, trigger.event.words) == (True, "error code 13")


@pytest.mark.parametrize(
    "step, is_meant",
    [("provision_slice", True), ("release_slice", True), ("tear_down", False)],
)
def test_the_end_of_a_deletion_is_for_both_steps_of_jobsets(step: str, is_meant: bool) -> None:
    trigger = pool_entry("pool-delete-last").trigger
    assert trigger is not None
    assert trigger.is_for(step) is is_meant


@pytest.mark.parametrize("label", ["location", "nodepool_name", "cluster_name"])
def test_an_entry_without_a_pools_name_triggers_no_step(label: str) -> None:
    resource = POOLS["pool-create-last"]["entry"]["resource"]
    labels = {key: value for key, value in resource["labels"].items() if key != label}
    delivery = pool_entry("pool-create-last", resource={**resource, "labels": labels})
    assert delivery.trigger is None
    assert delivery.note == (
        "google.container.v1.ClusterManager.CreateNodePool: no resource that has steps"
    )


class Cluster:
    """A cluster with one group in it, which bears its label."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._raw = raw

    def get_cluster_id(self) -> str:
        return CLUSTER

    def list_groups_named(self, _name: str) -> list[Mapping[str, Any]]:
        return [self._raw]


def target(body: bytes, raw: Mapping[str, Any] | None = None) -> str:
    """The key of the group that a body means in a cluster with one, or why there is nothing to do."""
    cluster, trigger = Cluster(raw or raw_group()), read(body)
    invocation = SimpleNamespace(cluster=cluster, trigger=trigger, facts={})
    try:
        return find_group(cast("Invocation", invocation)).key
    except NothingToDo as nothing:
        return nothing.outcome


WAKING = [name for name in ENTRIES if ENTRIES[name]["wakes"] != "none"]


@pytest.mark.parametrize("name", WAKING)
def test_an_entry_leads_to_its_group(name: str) -> None:
    assert target(ours(name)) == "default/my-slice"


@pytest.mark.parametrize("name", ["other-project-mig", "other-zone-same-name"])
def test_an_entry_of_another_place_leads_to_nobody(name: str) -> None:
    assert target(ours(name)) == "NotOurs"


def test_a_vm_that_no_group_has_made_is_not_the_groups() -> None:
    assert target(ours("same-prefix-hand-made-vm")) == "default/my-slice"
    vm = read(ours("same-prefix-hand-made-vm")).vms[0]
    by_hand = Instance(vm, "1", "RUNNING", NOW, NOW, "", "f")
    assert not by_hand.is_member_of("us-central1-c", RESOURCE)


def test_a_label_that_a_user_wrote_on_another_group_leads_nowhere() -> None:
    impostor = raw_group(uid="another-uid")
    assert target(ours("mig-insert-last"), impostor) == "NotOurs"


def test_an_entry_about_a_group_whose_spec_cannot_be_read_leads_nowhere() -> None:
    unread = raw_group(change={"nodeLocation": None})
    assert target(ours("mig-insert-last"), unread) == "NotOurs"


def test_a_failed_insert_of_a_vm_goes_to_who_reads_failures() -> None:
    failed = json.loads(json.dumps(ENTRIES["vm-insert-by-group-last"]["entry"]))
    failed["protoPayload"]["status"] = {"code": 8, "message": "ZONE_RESOURCE_POOL_EXHAUSTED"}
    delivery = decode(push(json.dumps(failed).encode()))
    assert steps_of(delivery) == ("create_resources",)
    assert delivery.trigger is not None
    assert delivery.trigger.event is not None
    assert delivery.trigger.event.words == "ZONE_RESOURCE_POOL_EXHAUSTED"


@pytest.mark.parametrize(
    "path", [("protoPayload",), ("operation",), ("protoPayload", "status"), ("resource", "labels")]
)
@pytest.mark.parametrize("value, kind", [("x", "str"), ([1], "list"), (7, "int")])
def test_an_entry_of_another_form_is_poison(path: tuple[str, ...], value: Any, kind: str) -> None:
    entry = json.loads(json.dumps(ENTRIES["policy-insert-last-error"]["entry"]))
    holder = entry
    for name in path[:-1]:
        holder = holder[name]
    holder[path[-1]] = value
    with pytest.raises(PoisonError) as caught:
        decode(push(json.dumps(entry).encode()))
    assert str(caught.value) == f"message 17: '{path[-1]}' is {kind}; in a LogEntry it is an object"


@pytest.mark.parametrize("end", ["/x", ".x", "\n", "%0a", "\u00e9", "_x", "-" * 60])
@pytest.mark.parametrize("name", ["mig-insert-last", "vm-insert-by-group-last"])
def test_an_entry_whose_resource_has_no_name_of_ours_concerns_no_step(name: str, end: str) -> None:
    entry = json.loads(json.dumps(ENTRIES[name]["entry"]).replace(THEIR_NAME, RESOURCE))
    entry["protoPayload"]["resourceName"] += end
    assert steps_of(decode(push(json.dumps(entry).encode()))) == ()


def test_the_vm_of_an_entry_is_the_one_to_look_at() -> None:
    trigger = read(ours("vm-insert-by-group-last"))
    assert [vm.rsplit("-", 1)[0] for vm in trigger.vms] == [RESOURCE]
    assert not trigger.is_resync


def test_an_entry_about_the_group_names_no_vm() -> None:
    assert read(ours("mig-insert-last")).vms == ()
