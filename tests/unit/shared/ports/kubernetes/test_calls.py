# ruff: noqa: E501  (a table reads best with a row on a line)
"""The requests of the calls to the cluster, and how their answers are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import parse_qsl, quote, urlsplit

import pytest

from shared.ports.errors import CallError
from shared.ports.kubernetes.cluster import Cluster
from shared.ports.kubernetes.connection import Connection
from shared.ports.kubernetes.events import Event
from shared.ports.kubernetes.transport import Target
from tests.support.builders import NOW

TNG = "/apis/tpu.google.com/v1alpha1"
GROUP = {
    "apiVersion": "tpu.google.com/v1alpha1",
    "kind": "TPUNodeGroup",
    "metadata": {"namespace": "ns", "name": "a/b", "uid": "u", "resourceVersion": "7"},
}
GROUP_PATH = f"{TNG}/namespaces/ns/tpunodegroups/a%2Fb"
SECRETS = "/api/v1/namespaces/kube-system/secrets"
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2"
REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
LEDGER_PATH = "/api/v1/namespaces/tpu-functions/configmaps/slice-ledger"
LEDGER = {"metadata": {"name": "slice-ledger", "resourceVersion": "7"}, "data": {"gone": "{}"}}
CLASSES = "/apis/tpu-functions.dev/v1alpha1/tpusliceclasses"
KUBELETS = "spec.signerName=kubernetes.io/kube-apiserver-client-kubelet"
GONE = CallError("GET x", 404, "NotFound", "not found")
UNSERVED = CallError("GET x", 503, "NotServed", "it does not serve this API; the answer of a proxy")
DENIED = CallError("GET x", 403, "Forbidden", "may not")
CONFLICT = CallError("PATCH x", 409, "Conflict", "changed")
TAKEN = CallError("POST x", 409, "AlreadyExists", "it exists")
Request = tuple[str, str, Any]


class Answered(Cluster):
    """A cluster with scripted answers; the last one is repeated."""

    def __init__(self, *answers: Any, seconds: float = 30.0) -> None:
        connection = SimpleNamespace(session=lambda _: None, constants={}, cached={})
        self.now_s, self.end_s = 0.0, seconds
        super().__init__(
            cast("Connection", connection), "label_node", lambda: self.end_s - self.now_s
        )
        self.answers, self.requests = list(answers), list[Request]()
        self.media: list[str] = []

    def _call(
        self,
        method: str,
        target: Target,
        body: Mapping[str, Any] | None = None,
        *,
        media: str = "application/json",
    ) -> dict[str, Any]:
        url = f"{target.path}?{target.query}" if target.query else target.path
        self.requests.append((method, url, body))
        self.media.append(media)
        self.now_s += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return cast("dict[str, Any]", answer)


def page(*items: Any, token: str = "") -> dict[str, Any]:
    return {"items": list(items), "metadata": {"continue": token} if token else {}}


LISTS: dict[str, tuple[Callable[[Cluster], Any], str, dict[str, str]]] = {
    "groups": (lambda one: one.list_groups(), f"{TNG}/tpunodegroups", {"limit": "500"}),
    "groups by their label": (lambda one: one.list_groups_named("tng-a"), f"{TNG}/tpunodegroups", {"labelSelector": "tpu-functions.dev/resource-name=tng-a"}),
    "groups of JobSets": (lambda one: one.list_slice_groups(), f"{TNG}/tpunodegroups", {"labelSelector": "tpu-functions.dev/jobset-name"}),
    "groups of a JobSet": (
        lambda one: one.list_slice_groups("ns", "train"),
        f"{TNG}/namespaces/ns/tpunodegroups",
        {"labelSelector": "tpu-functions.dev/jobset-name=train"},
    ),
    "Nodes of a group": (lambda one: [{"a": int(node.name)} for node in one.list_nodes("tng-a", 2)], "/api/v1/nodes", {"labelSelector": "tpu-functions.dev/resource-name=tng-a"}),
    "Nodes of a slice": (lambda one: one.list_nodes_of_slice("pool"), "/api/v1/nodes", {"labelSelector": "cloud.google.com/gke-nodepool=pool"}),
    "Nodes of slices": (lambda one: one.list_nodes_of_slices(["a", "b"]), "/api/v1/nodes", {"labelSelector": "cloud.google.com/gke-nodepool in (a,b)"}),
    "Jobs of a namespace": (lambda one: one.list_owners("Job", "ns"), "/apis/batch/v1/namespaces/ns/jobs", {"limit": "500"}),
    "Pods by labels": (lambda one: one.list_selected_pods("ns", "app=a"), "/api/v1/namespaces/ns/pods", {"labelSelector": "app=a"}),
    "pending Pods": (
        lambda one: one.list_pending_pods(),
        "/api/v1/pods",
        {"labelSelector": "jobset.sigs.k8s.io/job-key", "fieldSelector": "status.phase=Pending"},
    ),
    "Pods without a Node": (
        lambda one: one.list_pending_pods(with_all=True),
        "/api/v1/pods",
        {"limit": "500", "fieldSelector": "spec.nodeName=,status.phase=Pending"},
    ),
    "Pods on a Node": (
        lambda one: one.list_pods_on("node"),
        "/api/v1/pods",
        {"limit": "500", "fieldSelector": "spec.nodeName=node"},
    ),
    "Nodes with a label": (
        lambda one: one.list_all_nodes("a=b"),
        "/api/v1/nodes",
        {"limit": "500", "labelSelector": "a=b"},
    ),
    "Pods on any Node": (
        lambda one: one.list_bound_pods(),
        "/api/v1/pods",
        {
            "limit": "500",
            "fieldSelector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed",
        },
    ),
    "Jobs of all JobSets": (
        lambda one: one.list_jobs(),
        "/apis/batch/v1/jobs",
        {"limit": "500", "labelSelector": "jobset.sigs.k8s.io/jobset-name"},
    ),
    "Jobs of a JobSet": (
        lambda one: one.list_jobs("ns", "a"),
        "/apis/batch/v1/namespaces/ns/jobs",
        {"limit": "500", "labelSelector": "jobset.sigs.k8s.io/jobset-name=a"},
    ),
    "JobSets": (lambda one: one.list_owners("JobSet"), f"{JOBSETS}/jobsets", {"limit": "500"}),
    "classes": (lambda one: one.list_slice_classes(NOW), CLASSES, {"limit": "500"}),
    "requests of kubelets": (lambda one: one.list_signing_requests(), REQUESTS, {"limit": "500", "fieldSelector": KUBELETS}),
    "Events about an object": (
        lambda one: one.list_events("ns", "u"),
        "/api/v1/namespaces/ns/events",
        {"limit": "500", "fieldSelector": "involvedObject.uid=u"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LISTS.values(), ids=LISTS)
def test_a_list_reads_all_pages(
    case: tuple[Callable[[Cluster], Any], str, dict[str, str]],
) -> None:
    call, path, query = case
    first, second = ({"a": one, "metadata": {"name": str(one), "uid": ""}} for one in (1, 2))
    cluster = Answered(page(first, token="more"), page(second))
    assert [one["a"] for one in call(cluster)] == [1, 2]
    urls = [urlsplit(path) for method, path, _ in cluster.requests if method == "GET"]
    assert [one.path for one in urls] == [path] * 2
    assert [dict(parse_qsl(one.query)) for one in urls] == [query, {**query, "continue": "more"}]


def test_unlabelled_nodes_of_a_slices_vms_are_found_by_the_first_label_of_their_names() -> None:
    names = ["tng-a-0123abcd-x1y2", "tng-a-0123abcd-x3y4.c.p.internal", "tng-b-0123abcd-x5y6", "n"]
    pages = [page({"metadata": {"name": name, "uid": ""}}, token="more") for name in names[:3]]
    cluster = Answered(*pages, page({"metadata": {"name": names[3], "uid": ""}}))
    found = cluster.list_unlabelled_nodes("tng-a-0123abcd")
    assert [one.name for one in found] == names[:2]
    query = dict(parse_qsl(urlsplit(cluster.requests[0][1]).query))
    assert query == {"limit": "500", "labelSelector": "!tpu-functions.dev/resource-name"}


@pytest.mark.parametrize(
    "call, kind",
    [
        (lambda one: one.list_selected_pods("ns", "app=a"), "Pod"),
        (lambda one: list(one.list_pending_pods()), "Pod"),
        (lambda one: one.list_pods_on("node"), "Pod"),
    ],
)
def test_a_listed_object_has_api_version_and_kind(
    call: Callable[[Cluster], Any], kind: str
) -> None:
    assert call(Answered(page({"a": 1}))) == [{"apiVersion": "v1", "kind": kind, "a": 1}]


FOUND = {"a": 1, "metadata": {"name": "a/b", "uid": "u"}}


def find_node(cluster: Cluster) -> dict[str, Any] | None:
    node = cluster.find_node("a/b")
    return None if node is None else {"a": 1, "metadata": {"name": node.name, "uid": node.uid}}


FINDS: dict[str, tuple[Callable[[Cluster], Any], str]] = {
    "a group": (lambda one: one.find_group("ns", "a/b"), GROUP_PATH),
    "a Node": (find_node, "/api/v1/nodes/a%2Fb"),
    "a Pod": (lambda one: one.find_pod("ns", "a/b"), "/api/v1/namespaces/ns/pods/a%2Fb"),
    "a JobSet": (
        lambda one: one.find_owner("JobSet", "ns", "a/b"),
        f"{JOBSETS}/namespaces/ns/jobsets/a%2Fb",
    ),
    "a request": (lambda one: one.find_signing_request("a/b"), f"{REQUESTS}/a%2Fb"),
    "the ledger": (lambda one: one.find_slice_ledger(), LEDGER_PATH),
    "a class": (lambda one: one.find_slice_class("a/b"), f"{CLASSES}/a%2Fb"),
}


@pytest.mark.parametrize("case", FINDS.values(), ids=FINDS)
def test_an_absent_object_is_none_and_another_error_is_raised(
    case: tuple[Callable[[Cluster], Any], str],
) -> None:
    call, path = case
    cluster = Answered(FOUND)
    assert call(cluster) == FOUND
    assert cluster.requests == [("GET", path, None)]
    assert call(Answered(GONE)) is None
    with pytest.raises(CallError, match="may not"):
        call(Answered(DENIED))
    with pytest.raises(CallError, match=r"the answer of a proxy") as raised:
        call(Answered(UNSERVED))
    assert (raised.value.http, raised.value.code) == (503, "NotServed")


@pytest.mark.parametrize(
    "call",
    [lambda one: one.find_owner("JobSet", "ns", "a"), lambda one: list(one.list_owners("JobSet"))],
)
def test_a_cluster_that_does_not_serve_jobsets_is_a_transient_error(
    call: Callable[[Cluster], Any],
) -> None:
    with pytest.raises(
        CallError, match=r"serve this API; the answer of a proxy\. .* must be installed"
    ) as raised:
        call(Answered(UNSERVED))
    assert (raised.value.http, raised.value.code) == (503, "NotServed")
    with pytest.raises(CallError, match="may not"):
        call(Answered(DENIED))


EVENT = Event("Ready", "words")
WRITES: dict[str, tuple[Callable[[Cluster], Any], Request, list[Any], Any]] = {
    "the status of a class": (
        lambda one: one.replace_class_status({"metadata": {"name": "a"}}, {"usage": {}}),
        ("PUT", f"{CLASSES}/a/status", {"apiVersion": "tpu-functions.dev/v1alpha1", "kind": "TPUSliceClass", "metadata": {"name": "a"}, "status": {"usage": {}}}),
        [],
        None,
    ),
    "status": (lambda one: one.replace_status(GROUP, {"a": 1}), ("PUT", f"{GROUP_PATH}/status", {**GROUP, "status": {"a": 1}}), [], {}),
    "finalizers and labels": (
        lambda one: one.patch_group(GROUP, finalizers=["f"], labels={"l": "v"}),
        (
            "PATCH",
            GROUP_PATH,
            {"metadata": {"resourceVersion": "7", "finalizers": ["f"], "labels": {"l": "v"}}},
        ),
        [],
        {},
    ),
    "finalizers": (lambda one: one.patch_group(GROUP, finalizers=[]), ("PATCH", GROUP_PATH, {"metadata": {"resourceVersion": "7", "finalizers": []}}), [], {}),
    "annotations": (
        lambda one: one.annotate_group(GROUP, {"a": None}),
        ("PATCH", GROUP_PATH, {"metadata": {"resourceVersion": "7", "annotations": {"a": None}}}),
        [],
        {},
    ),
    "the ledger": (lambda one: one.replace_slice_ledger(LEDGER, {"ns": "{}"}), ("PUT", LEDGER_PATH, {**LEDGER, "data": {"ns": "{}"}}), [], None),
    "a new group": (lambda one: one.create_group(GROUP), ("POST", f"{TNG}/namespaces/ns/tpunodegroups", GROUP), [], {}),
    "the deletion of a group": (
        lambda one: one.delete_group(GROUP),
        ("DELETE", GROUP_PATH, {"preconditions": {"uid": "u", "resourceVersion": "7"}}),
        [GONE],
        True,
    ),
    "a Node": (lambda one: one.patch_node("n", {"a": 1}), ("PATCH", "/api/v1/nodes/n", {"a": 1}), [], {}),
    "the deletion of a Node": (lambda one: one.delete_node("n", "u"), ("DELETE", "/api/v1/nodes/n", {"preconditions": {"uid": "u"}}), [GONE, CONFLICT], None),
    "a token": (lambda one: one.create_token_secret({"a": 1}), ("POST", SECRETS, {"a": 1}), [TAKEN], None),
    "the deletion of a token": (lambda one: one.delete_token_secret("abc"), ("DELETE", f"{SECRETS}/bootstrap-token-abc", {}), [GONE], None),
    "the deletion of all tokens": (
        lambda one: one.delete_token_secrets("tng-a"),
        (
            "DELETE",
            f"{SECRETS}?labelSelector=tpu-functions.dev%2Fresource-name%3Dtng-a"
            "&fieldSelector=type%3Dbootstrap.kubernetes.io%2Ftoken",
            {},
        ),
        [],
        None,
    ),
    "the deletion of the tokens of VMs": (
        lambda one: one.delete_token_secrets("tng-a", ("tng-a-1", "tng-a-2")),
        (
            "DELETE",
            f"{SECRETS}?labelSelector=tpu-functions.dev%2Fresource-name%3Dtng-a%2C"
            "tpu-functions.dev%2Fvm+in+%28tng-a-1%2Ctng-a-2%29"
            "&fieldSelector=type%3Dbootstrap.kubernetes.io%2Ftoken",
            {},
        ),
        [],
        None,
    ),
    "a decision about a request": (
        lambda one: one.decide_signing_request(
            {"metadata": {"name": "csr"}, "status": {"conditions": [{"type": "A"}]}}, {"type": "B"}
        ),
        (
            "PUT",
            f"{REQUESTS}/csr/approval",
            {
                "metadata": {"name": "csr"},
                "status": {"conditions": [{"type": "A"}, {"type": "B"}]},
            },
        ),
        [],
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRITES.values(), ids=WRITES)
def test_each_write_makes_one_request_and_ignores_harmless_errors(
    case: tuple[Callable[[Cluster], Any], Request, list[Any], Any],
) -> None:
    call, request, harmless, result = case
    cluster = Answered({})
    assert call(cluster) == result
    assert cluster.requests == [request]
    is_patch = request[0] == "PATCH"
    assert cluster.media == [f"application/{'merge-patch+' if is_patch else ''}json"]
    for error in harmless:
        assert not call(Answered(error))
    for error in (GONE, UNSERVED, CONFLICT, TAKEN, DENIED):
        if error not in harmless and not (error is TAKEN and CONFLICT in harmless):
            with pytest.raises(CallError, match=error.message):
                call(Answered(error))


CHILDREN = {"policies": "p", "templates": "t"}


@pytest.mark.parametrize(
    "answers, has, calls",
    [([{}], True, 1), ([GONE, {}], True, 2), ([GONE, GONE], False, 2), ([UNSERVED], False, 1)],
    ids=["the first", "the second", "none", "tpu-operator is not installed"],
)
def test_the_children_of_tpu_operator_are_found_by_name(
    answers: list[Any], has: bool, calls: int
) -> None:
    cluster = Answered(*answers)
    assert cluster.has_operator_children("ns", CHILDREN, NOW) is has
    paths = [f"{TNG}/namespaces/ns/{plural}/{name}" for plural, name in CHILDREN.items()]
    assert [path for _, path, _ in cluster.requests] == paths[:calls]
    with pytest.raises(CallError, match="may not"):
        Answered(DENIED).has_operator_children("ns", CHILDREN, NOW)


@pytest.mark.parametrize(
    "call, none, errors, answer, some",
    [
        (
            lambda one, now: one.has_operator_children("ns", CHILDREN, now),
            False,
            [UNSERVED],
            {},
            True,
        ),
        (lambda one, now: one.list_slice_classes(now), [], [UNSERVED], page({"a": 1}), [{"a": 1}]),
        (
            lambda one, now: one.list_slice_classes(now),
            [],
            [DENIED, UNSERVED],
            page({"a": 1}),
            [{"a": 1}],
        ),
    ],
    ids=["tpu-operator's", "classes", "classes before the manifests are applied"],
)
def test_kinds_that_are_not_served_are_read_again_after_a_minute(
    call: Callable[[Cluster, datetime], Any],
    none: Any,
    errors: list[CallError],
    answer: Any,
    some: Any,
) -> None:
    cluster = Answered(*errors, answer)
    found = [call(cluster, NOW + timedelta(seconds=s)) for s in (0, 59, 60)]
    assert (found, len(cluster.requests)) == ([none, none, some], len(errors) + 1)


@pytest.mark.parametrize("discovery", [{}, DENIED], ids=["a lost permission", "a starting server"])
def test_classes_that_may_not_be_listed_do_not_count_as_not_served(discovery: Any) -> None:
    cluster = Answered(DENIED, discovery)
    with pytest.raises(CallError, match="may not"):
        cluster.list_slice_classes(NOW)
    assert cluster.requests[1][1] == "/apis/tpu-functions.dev/v1alpha1"


@pytest.mark.parametrize("seconds, read", [(30.0, 10), (29.9, 10), (3.0, 1)])
def test_nodes_are_read_for_a_third_of_the_remaining_time(seconds: float, read: int) -> None:
    cluster = Answered(GONE, seconds=seconds)
    names = [f"n{number}" for number in range(20)]
    assert cluster.find_nodes(names) == dict.fromkeys(names[:read])


def test_the_ids_of_cluster_and_installation_are_read_once_together_unless_one_is_wrong() -> None:
    annotations = {"tpu-functions.dev/installation-id": "a"}
    cluster = Answered(
        {"metadata": {"uid": "id"}}, {"metadata": {"uid": "id", "annotations": annotations}}
    )
    assert [cluster.get_cluster_id(), cluster.get_installation_id()] == ["id", ""]
    assert [cluster.get_cluster_id(), cluster.get_installation_id()] == ["id", ""]
    assert cluster.requests == [("GET", "/api/v1/namespaces/kube-system", None)]
    cluster.forget_installation_id()
    assert [cluster.get_cluster_id(), cluster.get_installation_id()] == ["id", "a"]
    assert len(cluster.requests) == 2


def test_the_ca_of_the_cluster_is_read_every_ten_minutes() -> None:
    cluster = Answered({"data": {"ca.crt": "first"}}, {"data": {"ca.crt": "second"}}, {}, GONE)
    soon, later = NOW + timedelta(minutes=10, seconds=-1), NOW + timedelta(minutes=10)
    assert [cluster.get_ca_certificate(now) for now in (NOW, soon, later)] == [
        "first",
        "first",
        "second",
    ]
    cluster.forget_ca_certificate()
    assert cluster.get_ca_certificate(later) == ""
    cluster.forget_ca_certificate()
    assert cluster.get_ca_certificate(later) == ""
    path = "/api/v1/namespaces/kube-system/configmaps/kube-root-ca.crt"
    assert cluster.requests == [("GET", path, None)] * 4


def test_recent_groups_of_a_name_are_read_every_20_seconds_until_there_are_some() -> None:
    one, other = {"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}
    cluster = Answered(page(), page(one), page(other), page(one, other))
    seconds = [("tng-a", 0), ("tng-a", 1), ("tng-a", 20.9), ("tng-b", 20.9), ("tng-a", 21)]
    found = [
        cluster.list_recent_groups_named(name, NOW + timedelta(seconds=after))
        for name, after in seconds
    ]
    assert found == [[], [one], [one], [other], [one, other]]
    assert len(cluster.requests) == 4


@pytest.mark.parametrize(
    "answer, options", [({"data": {"paused": "true"}}, {"paused": "true"}), ({}, {}), (GONE, {})]
)
def test_the_options_of_jobsets_are_read_once(answer: Any, options: dict[str, str]) -> None:
    cluster = Answered(answer)
    assert [cluster.get_jobset_options(), cluster.get_jobset_options()] == [options] * 2
    path = "/api/v1/namespaces/tpu-functions/configmaps/jobsets"
    assert cluster.requests == [("GET", path, None)]


def emitted(about: Mapping[str, Any] = GROUP, event: Event = EVENT) -> dict[str, Any]:
    cluster = Answered({})
    cluster.emit(about, event, NOW)
    ((method, path, body),) = cluster.requests
    assert method == "POST"
    assert body is not None
    assert path == f"/api/v1/namespaces/{body['metadata']['namespace']}/events"
    return dict(body)


def test_an_event_names_its_object_and_its_source() -> None:
    event = emitted()
    name = event["metadata"].pop("name")
    assert name.startswith("a/b.")
    assert len(name) == len("a/b.") + 16
    assert event == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": "ns"},
        "involvedObject": {
            "apiVersion": "tpu.google.com/v1alpha1",
            "kind": "TPUNodeGroup",
            "namespace": "ns",
            "name": "a/b",
            "uid": "u",
            "resourceVersion": "7",
        },
        "reason": "Ready",
        "message": "words",
        "type": "Normal",
        "source": {"component": "tpu-functions-label-node"},
        "reportingComponent": "",
        "reportingInstance": "",
        "firstTimestamp": "2026-11-20T10:00:00Z",
        "lastTimestamp": "2026-11-20T10:00:00Z",
        "count": 1,
    }


def test_the_message_of_an_event_is_truncated_to_1024_characters() -> None:
    assert emitted(event=Event("Ready", "x" * 1025))["message"] == "x" * 1024


def test_an_event_about_a_node_is_in_the_default_namespace() -> None:
    metadata = {"name": "n" * 250, "uid": "u", "resourceVersion": "7"}
    event = emitted({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    assert event["metadata"]["namespace"] == "default"
    assert "namespace" not in event["involvedObject"]
    assert len(event["metadata"]["name"]) == 200 + 1 + 16


def test_the_name_of_an_event_follows_from_object_reason_and_message_or_key() -> None:
    def name(event: Event) -> str:
        return str(emitted(event=event)["metadata"]["name"])

    keyed = replace(EVENT, key="k")
    assert name(EVENT) == name(replace(EVENT, is_warning=True))
    assert name(EVENT) != name(replace(EVENT, message="other"))
    assert name(EVENT) != name(replace(EVENT, reason="Other"))
    assert name(keyed) == name(replace(keyed, message="other"))
    assert emitted(event=replace(EVENT, is_warning=True))["type"] == "Warning"
    assert len(emitted(event=replace(EVENT, message="w" * 2000))["message"]) == 1024


@pytest.mark.parametrize("count, counted", [(1, 2), (5, 6), (None, 2)])
def test_the_count_of_an_existing_event_is_incremented(count: int | None, counted: int) -> None:
    cluster = Answered(TAKEN, {"count": count}, {})
    cluster.emit(GROUP, EVENT, NOW)
    post, find, patch = cluster.requests
    path = f"{post[1]}/{quote(emitted()['metadata']['name'], safe='')}"
    assert find == ("GET", path, None)
    assert patch == ("PATCH", path, {"count": counted, "lastTimestamp": "2026-11-20T10:00:00Z"})
    assert cluster.media[-1] == "application/merge-patch+json"


def test_the_count_of_an_event_that_was_deleted_meanwhile_is_not_incremented() -> None:
    cluster = Answered(TAKEN, GONE)
    cluster.emit(GROUP, EVENT, NOW)
    assert [method for method, _, _ in cluster.requests] == ["POST", "GET"]


def test_the_count_of_an_event_that_is_emitted_once_is_not_incremented() -> None:
    cluster = Answered(TAKEN)
    cluster.emit_once(GROUP, EVENT, NOW)
    assert len(cluster.requests) == 1
    with pytest.raises(CallError, match="may not"):
        Answered(DENIED).emit_once(GROUP, EVENT, NOW)
