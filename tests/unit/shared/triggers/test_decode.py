# ruff: noqa: E501  (a table reads best with a row on a line)
"""Triggers of steps: push envelopes with this system's messages and audit log entries."""

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
from shared.base.names import MIGS, NODE_POOLS, POLICIES, TEMPLATES, VMS
from shared.frame.plan import NothingToDo
from shared.frame.step import Invocation
from shared.node_groups.work import find_group
from shared.triggers.audit_log import LogEvent
from shared.triggers.decode import Delivery, decode
from shared.triggers.message import MAX_NAMES, Cause, Message, PoisonError, message_about_requests
from shared.triggers.route import find_steps
from shared.triggers.routes import ROUTES
from shared.triggers.trigger import LogTrigger, ObjectTrigger, TimeTrigger, Trigger
from tests.support.builders import CLUSTER, DATA, NAME, NOW, RESOURCE, UID, raw_group

MESSAGE = Message("default", NAME, UID, Cause.NODES_CHANGED, NOW, nodes=("n",), vms=("v",))


def push(data: bytes, **envelope: Any) -> bytes:
    """Return the body of a push request with a message's data."""
    message = {"data": base64.b64encode(data).decode(), "messageId": "17"}
    return json.dumps({"message": message, "subscription": "s", **envelope}).encode()


def message_push(**change: Any) -> bytes:
    """Return a push of a message with other fields; ``None`` removes a field."""
    document = {**json.loads(MESSAGE.encode()), **change}
    return push(json.dumps({key: it for key, it in document.items() if it is not None}).encode())


def read(body: bytes) -> Trigger:
    trigger = decode(body, ROUTES).trigger
    assert trigger is not None
    return trigger


def read_message(body: bytes) -> Message:
    trigger = read(body)
    assert isinstance(trigger, ObjectTrigger)
    return trigger.message


# Messages of this system


@pytest.mark.parametrize("cause", Cause)
def test_a_message_is_decoded_as_it_was_encoded(cause: Cause) -> None:
    message = replace(MESSAGE, cause=cause)
    trigger = read(push(message.encode()))
    assert trigger == ObjectTrigger(message)
    assert (trigger.cause, trigger.at) == (cause, NOW)
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
        at=st.datetimes(datetime(1970, 1, 1), datetime(9998, 1, 1), timezones=st.just(UTC)),
        nodes=st.lists(names, max_size=3).map(tuple),
        vms=st.lists(labels, max_size=3).map(tuple),
    )
)
def test_a_message_with_any_valid_fields_is_decoded_as_it_was_encoded(message: Message) -> None:
    assert read_message(push(message.encode())) == message


def test_a_message_without_names_has_no_fields_for_them() -> None:
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


def test_a_message_about_requests_has_only_their_names() -> None:
    about = message_about_requests(Cause.JOIN_REQUESTED, NOW, ["csr-a", "node-csr-b"])
    document = json.loads(about.encode())
    assert sorted(document) == ["at", "cause", "kind", "requests", "version"]
    trigger = read(push(about.encode()))
    assert trigger == ObjectTrigger(about)
    assert find_steps(trigger, ROUTES) == ("approve_join",)


def test_the_attributes_of_a_message_are_its_cluster_and_cause() -> None:
    assert MESSAGE.attributes("my-cluster") == {"cluster": "my-cluster", "cause": "NodesChanged"}


def test_unknown_fields_are_ignored() -> None:
    assert read_message(message_push(added_in_another_release=[1, 2])) == MESSAGE


def test_an_unknown_cause_is_a_trigger() -> None:
    trigger = read(message_push(cause="CauseOfALaterVersion"))
    assert trigger.cause == "CauseOfALaterVersion"
    assert read_message(message_push(cause="CauseOfALaterVersion")) == replace(
        MESSAGE, cause=Cause.FORWARDED
    )


def test_a_message_without_uid_refers_to_the_group_of_that_name() -> None:
    assert read_message(message_push(uid=None)) == replace(MESSAGE, uid="")


def test_a_message_without_time_is_as_old_as_its_publication() -> None:
    body = json.loads(message_push(at=None))
    body["message"]["publishTime"] = "2026-11-20T11:00:00.123Z"
    assert read(json.dumps(body).encode()).at == datetime(
        2026, 11, 20, 11, 0, 0, 123000, tzinfo=UTC
    )


def test_the_message_of_the_scheduler_is_a_sweep() -> None:
    body = json.loads(push(b'{"version": 1, "kind": "Sweep"}'))
    body["message"]["publishTime"] = "2026-11-20T10:00:00Z"
    trigger = read(json.dumps(body).encode())
    assert trigger == TimeTrigger(NOW)
    assert trigger.cause == "Sweep"


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
def test_an_envelope_is_decoded_in_both_spellings(message: dict[str, str]) -> None:
    data = base64.b64encode(MESSAGE.encode()).decode()
    body = json.dumps({"message": {**message, "data": data}, "deliveryAttempt": 3}).encode()
    assert decode(body, ROUTES) == Delivery(
        "17", 3, datetime(2026, 11, 20, 10, 0, 1, tzinfo=UTC), read(body)
    )


@pytest.mark.parametrize("envelope", [{}, {"deliveryAttempt": None}, {"deliveryAttempt": "2"}])
def test_an_absent_or_invalid_delivery_attempt_is_read_as_zero(envelope: dict[str, Any]) -> None:
    assert decode(push(MESSAGE.encode(), **envelope), ROUTES).attempt == 0


@pytest.mark.parametrize("time", ["", "yesterday", 17, None])
def test_an_invalid_time_of_publication_is_none(time: Any) -> None:
    body = json.loads(push(MESSAGE.encode()))
    body["message"]["publishTime"] = time
    assert decode(json.dumps(body).encode(), ROUTES).published is None


# Poison

TOO_MANY = ["n"] * (MAX_NAMES + 1)
LONG_NAME = show(".".join(["a" * 63] * 4)[:254])
POISON: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"x", "the push request is not JSON: Expecting value: line 1 column 1 (char 0); " "it must be a JSON object"),
    "no object": (b"[]", "the push request is list; it must be a JSON object"),
    "no envelope": (MESSAGE.encode(), "the push request has no 'message'; it must be a Pub/Sub push envelope"),
    "an envelope of text": (b'{"message": "x"}', "the push request has no 'message'; it must be a Pub/Sub push envelope"),
    "data that is no base64": (b'{"message": {"messageId": "17", "data": "!"}}', "message 17: 'data' is not base64: Only base64 data is allowed"),
    "no data": (b'{"message": {"messageId": "17"}}', "message 17 is not JSON: Expecting value: line 1 column 1 (char 0); " "it must be a JSON object"),
    "no id": (b'{"message": {}}', "message unknown is not JSON: Expecting value: line 1 column 1 (char 0); " "it must be a JSON object"),
    "data that is a list": (push(b"[]"), "message 17 is list; it must be a JSON object"),
    "no version": (message_push(version=None), "message 17: version None is not known; it must be 1"),
    "another version": (message_push(version=2), "message 17: version 2 is not known; it must be 1"),
    "another kind": (
        message_push(kind="Deployment"),
        "message 17: kind 'Deployment' is not known; it must be TPUNodeGroup, "
        "CertificateSigningRequest, Sweep, Pod, ProvisioningRequest, JobSet or Slice",
    ),
    "no time": (message_push(at=None), "message 17: 'at' must be an RFC 3339 time"),
    "an invalid time": (message_push(at="now"), "message 17: 'at' must be an RFC 3339 time"),
    "an invalid name of a request": (
        message_push(kind="CertificateSigningRequest", requests=["a/b"]),
        "message 17: each of 'requests' must be printable and without '/' and '%', not 'a/b'",
    ),
    "no namespace": (message_push(namespace=None), "message 17: 'namespace' must be a DNS label, not None"),
    "a namespace of two labels": (message_push(namespace="a.b"), "message 17: 'namespace' must be a DNS label, not 'a.b'"),
    "an empty name": (message_push(name=""), "message 17: 'name' must be a DNS subdomain, not ''"),
    "a name that is a path": (message_push(name="a/b"), "message 17: 'name' must be a DNS subdomain, not 'a/b'"),
    "a name of two dots": (message_push(name=".."), "message 17: 'name' must be a DNS subdomain, not '..'"),
    "a name of 254 characters": (message_push(name=".".join(["a" * 63] * 4)[:254]), f"message 17: 'name' must be a DNS subdomain, not {LONG_NAME}"),
    "a name that is a number": (message_push(name=7), "message 17: 'name' must be a DNS subdomain, not 7"),
    "a name that ends a line": (message_push(name="a\n"), "message 17: 'name' must be a DNS subdomain, not 'a\\n'"),
    "a uid that is a path": (message_push(uid="a/b"), "message 17: 'uid' must be an object's uid, not 'a/b'"),
    "a lone surrogate": (message_push(name="\ud800"), "message 17 has a lone surrogate in it; it must be Unicode"),
    "a lone surrogate in the envelope": (b'{"message": {"messageId": "\\udfff"}}', "the push request has a lone surrogate in it; it must be Unicode"),
    "nodes that are text": (message_push(nodes="n"), "message 17: 'nodes' must be a list of at most 100 names"),
    "nodes that are numbers": (message_push(nodes=[1]), "message 17: each of 'nodes' must be a DNS subdomain, not 1"),
    "a Node that is a path": (message_push(nodes=["n", "a/b"]), "message 17: each of 'nodes' must be a DNS subdomain, not 'a/b'"),
    "a VM of two labels": (message_push(vms=["v.example"]), "message 17: each of 'vms' must be a DNS label, not 'v.example'"),
    "too many VMs": (message_push(vms=TOO_MANY), "message 17: 'vms' must be a list of at most 100 names"),
}  # fmt: skip


@pytest.mark.parametrize("case", POISON.values(), ids=POISON)
def test_an_invalid_push_raises_a_poison_error_with_the_valid_values(
    case: tuple[bytes, str],
) -> None:
    body, text = case
    with pytest.raises(PoisonError) as caught:
        decode(body, ROUTES)
    assert str(caught.value) == text


def test_a_cause_that_is_no_string_is_a_trigger() -> None:
    assert read_message(message_push(cause=["x"])) == replace(MESSAGE, cause=Cause.FORWARDED)


@given(body=st.binary(max_size=40).filter(lambda body: not body.startswith(b"{")))
def test_arbitrary_bytes_raise_only_a_poison_error(body: bytes) -> None:
    for whole in (body, push(body)):
        with pytest.raises(PoisonError):
            decode(whole, ROUTES)


# Entries of the audit log

ENTRIES: dict[str, Any] = {
    row["name"]: row
    for row in map(json.loads, (DATA / "audit-log-entries.jsonl").read_text().splitlines())
}
EXCESS = {
    "other-project-mig": (
        "create_resources",
        "the name is the group's; only the group's spec shows that the project is another",
    ),
    "other-zone-same-name": (
        "inject_token",
        "the name is the group's; only the group's spec shows that the zone is another",
    ),
    "same-prefix-hand-made-vm": (
        "inject_token",
        "name and zone are the group's; only the VM's metadata show that no MIG created it",
    ),
}
"""Entries that trigger a step although they concern no group, and why the entry does not show it."""
FILE_NAME, FILE_PROJECT = "tng-default-my-slice-1a2b3c4d", "my-project"


def own_entry(name: str) -> bytes:
    """Return a push of an entry of the file, changed to name the group of these tests."""
    text = json.dumps(ENTRIES[name]["entry"])
    for old, new in ((FILE_NAME, RESOURCE), (FILE_PROJECT, "my-gcp-project")):
        text = text.replace(old, new)
    return push(text.encode())


def steps_of(delivery: Delivery) -> tuple[str, ...]:
    if delivery.trigger is None:
        return ()
    return find_steps(delivery.trigger, ROUTES)


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_triggers_the_step_that_it_concerns(name: str) -> None:
    expected, _ = EXCESS.get(name, (ENTRIES[name]["wakes"], ""))
    assert ([*steps_of(decode(own_entry(name), ROUTES))] or ["none"]) == [expected]


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_that_triggers_no_step_has_a_note_or_a_foreign_name(name: str) -> None:
    delivery = decode(own_entry(name), ROUTES)
    assert (delivery.trigger is None) == bool(delivery.note)


def test_an_event_has_the_kind_of_its_resource() -> None:
    kinds = set()
    for name, row in ENTRIES.items():
        trigger = decode(own_entry(name), ROUTES).trigger
        if isinstance(trigger, LogTrigger):
            assert trigger.event.kind == row["entry"]["protoPayload"]["resourceName"].split("/")[-2]
            kinds.add(trigger.event.kind)
    assert kinds == {VMS, TEMPLATES, MIGS, POLICIES, NODE_POOLS}


POOLS: dict[str, Any] = {
    row["name"]: row
    for row in map(json.loads, (DATA / "node-pool-log-entries.jsonl").read_text().splitlines())
}


def pool_entry(name: str, **change: Any) -> Delivery:
    return decode(push(json.dumps({**POOLS[name]["entry"], **change}).encode()), ROUTES)


@pytest.mark.parametrize("name", POOLS)
def test_an_entry_about_a_node_pool_triggers_the_steps_that_it_concerns(name: str) -> None:
    assert [*steps_of(pool_entry(name))] == POOLS[name]["wakes"]


def test_the_entry_of_a_failed_node_pool_creation_names_the_pool_and_the_error() -> None:
    trigger = pool_entry("pool-create-last-error").trigger
    assert isinstance(trigger, LogTrigger)
    words = trigger.event.words
    assert "GCE_STOCKOUT" in words
    assert trigger.cause == "container.nodePools.create"
    assert trigger.event == LogEvent(
        method="container.nodePools.create",
        project="my-project",
        location="us-central1-c",
        name="my-jobset-759730a97e4373f3",
        kind="nodePools",
        has_failed=True,
        words=words,
        cluster="my-cluster",
        operation=POOLS["pool-create-last-error"]["entry"]["operation"]["id"],
    )


def test_an_error_without_a_message_is_named_by_its_code() -> None:
    payload = POOLS["pool-create-last-error"]["entry"]["protoPayload"]
    trigger = pool_entry(
        "pool-create-last-error", protoPayload={**payload, "status": {"code": 13}}
    ).trigger
    assert isinstance(trigger, LogTrigger)
    assert (trigger.event.has_failed, trigger.event.words) == (True, "error code 13")


@pytest.mark.conformance("state-stopping-and-matches", "state-stopping-wait")
def test_the_entry_of_a_finished_deletion_triggers_both_jobset_steps() -> None:
    assert steps_of(pool_entry("pool-delete-last")) == ("provision_slice", "release_slice")


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
    """A cluster with one group, which has its label."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._raw = raw

    def get_cluster_id(self) -> str:
        return CLUSTER

    def list_groups_named(self, _name: str) -> list[Mapping[str, Any]]:
        return [self._raw]

    def find_group(self, _namespace: str, name: str) -> Mapping[str, Any] | None:
        return self._raw if self._raw["metadata"]["name"] == name else None


def target(body: bytes, raw: Mapping[str, Any] | None = None) -> str:
    """Return the key of the group that a body names, or the outcome if there is nothing to do."""
    cluster, trigger = Cluster(raw or raw_group()), read(body)
    invocation = SimpleNamespace(cluster=cluster, trigger=trigger, facts={})
    try:
        return find_group(cast("Invocation", invocation)).key
    except NothingToDo as nothing:
        return nothing.outcome


TRIGGERING = [name for name in ENTRIES if ENTRIES[name]["wakes"] != "none"]


@pytest.mark.parametrize("name", TRIGGERING)
def test_the_group_of_an_entry_is_found(name: str) -> None:
    assert target(own_entry(name)) == "default/my-slice"


@pytest.mark.parametrize("name", ["other-project-mig", "other-zone-same-name"])
def test_an_entry_of_another_project_or_zone_has_no_group(name: str) -> None:
    assert target(own_entry(name)) == "NotOurs"


def test_another_group_with_the_label_is_not_the_group_of_an_entry() -> None:
    other_group = raw_group(uid="another-uid")
    assert target(own_entry("mig-insert-last"), other_group) == "NotOurs"


def test_an_unreadable_group_is_not_the_group_of_an_entry() -> None:
    unread = raw_group(change={"nodeLocation": None})
    assert target(own_entry("mig-insert-last"), unread) == "NotOurs"


@pytest.mark.parametrize(
    "change, outcome", [({"name": "gone"}, "GroupGone"), ({"uid": "of another"}, "GroupReplaced")]
)
def test_the_log_line_names_a_group_that_a_message_names_and_that_is_gone(
    change: dict[str, Any], outcome: str
) -> None:
    message = replace(MESSAGE, **change)
    trigger = ObjectTrigger(message)
    invocation = SimpleNamespace(cluster=Cluster(raw_group()), trigger=trigger, facts={})
    with pytest.raises(NothingToDo) as raised:
        find_group(cast("Invocation", invocation))
    assert raised.value.outcome == outcome
    assert invocation.facts == {"group": f"default/{message.name}"}


class Kept(Cluster):
    """A cluster whose groups were read before, if ``raw`` is given, and have changed since."""

    def __init__(self, raw: Mapping[str, Any] | None) -> None:
        super().__init__(raw_group(generation=2))
        self._kept, self.calls = raw, 0

    def list_groups_named(self, name: str) -> list[Mapping[str, Any]]:
        self.calls += 1
        return super().list_groups_named(name)

    def list_recent_groups_named(self, name: str, _now: Any) -> list[Mapping[str, Any]]:
        return self.list_groups_named(name) if self._kept is None else [self._kept]


@pytest.mark.parametrize(
    "step, is_first, kept, generation, reads",
    [
        pytest.param("inject_token", True, raw_group(), 1, 0, id="whose a VM is, is known"),
        pytest.param("inject_token", False, raw_group(), 2, 1, id="the status was outdated"),
        pytest.param("inject_token", True, None, 2, 1, id="nothing is known"),
        pytest.param("label_node", True, raw_group(), 2, 1, id="the step counts again"),
        pytest.param("label_node", True, raw_group(deleting=True), 1, 0, id="it is being deleted"),
        pytest.param("label_node", True, None, 2, 1, id="it is read once"),
        pytest.param("create_resources", True, raw_group(), 2, 1, id="a VM was not created"),
    ],
)
def test_the_group_of_a_vm_is_read_again_if_the_step_may_write_it(
    step: str, is_first: bool, kept: Mapping[str, Any] | None, generation: int, reads: int
) -> None:
    cluster, trigger = Kept(kept), read(own_entry("vm-insert-by-group-last"))
    runtime = SimpleNamespace(now=lambda: NOW)
    invocation = SimpleNamespace(cluster=cluster, trigger=trigger, step=step, runtime=runtime)
    group = find_group(cast("Invocation", invocation), is_first)
    assert (group.generation, cluster.calls) == (generation, reads)


def test_a_failed_insert_of_a_vm_triggers_create_resources() -> None:
    failed = json.loads(json.dumps(ENTRIES["vm-insert-by-group-last"]["entry"]))
    failed["protoPayload"]["status"] = {"code": 8, "message": "ZONE_RESOURCE_POOL_EXHAUSTED"}
    delivery = decode(push(json.dumps(failed).encode()), ROUTES)
    assert steps_of(delivery) == ("create_resources",)
    assert isinstance(delivery.trigger, LogTrigger)
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
        decode(push(json.dumps(entry).encode()), ROUTES)
    assert str(caught.value) == f"message 17: '{path[-1]}' is {kind}; in a LogEntry it is an object"


@pytest.mark.parametrize("end", ["/x", ".x", "\n", "%0a", "\u00e9", "_x", "-" * 60])
@pytest.mark.parametrize("name", ["mig-insert-last", "vm-insert-by-group-last"])
def test_an_entry_about_a_resource_with_a_foreign_name_triggers_no_step(
    name: str, end: str
) -> None:
    entry = json.loads(json.dumps(ENTRIES[name]["entry"]).replace(FILE_NAME, RESOURCE))
    entry["protoPayload"]["resourceName"] += end
    assert steps_of(decode(push(json.dumps(entry).encode()), ROUTES)) == ()


def test_an_entry_about_a_vm_names_the_vm() -> None:
    trigger = read(own_entry("vm-insert-by-group-last"))
    assert [vm.rsplit("-", 1)[0] for vm in trigger.vms] == [RESOURCE]
    assert not trigger.is_resync


def test_an_entry_about_the_group_names_no_vm() -> None:
    assert read(own_entry("mig-insert-last")).vms == ()
