# ruff: noqa: E501  (a table reads best with a row on a line)
"""The fields of an error, by the answer to a call: what it was about, its code, kind and reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.api_core.exceptions import Forbidden, RetryError, ServiceUnavailable

from local.base.http import Request, Response
from local.gce.inprocess import mount
from shared.base.reasons import Reason
from shared.ports.error_reasons import ErrorKind
from shared.ports.errors import About, CallError
from shared.ports.gce.calls import Gce
from shared.ports.gce.clients import Clients
from shared.ports.gce.values import TemplateRef
from shared.ports.gke import GkeClient, GkeMethod
from shared.ports.google_credentials import GoogleCredentials
from shared.ports.kubernetes.access import Session
from shared.ports.kubernetes.cluster import Cluster
from shared.ports.kubernetes.connection import Connection
from shared.ports.pubsub import Topics

Answer = tuple[int, Any]
Case = tuple[Callable[[Answer], object], tuple[Answer, About, ErrorKind, Reason | None]]

POLICY, TEMPLATE = About("resourcePolicies", "tng-a"), About("instanceTemplates", "tng-a")
MIG, VM = About("instanceGroupManagers", "tng-a"), About("instances", "tng-a-b1")
NODE, GROUP = About("Node", "tng-a-b1"), About("TPUNodeGroup", "slice")
POOL = About("nodePools", "pool")


class Api:
    """An API that gives one answer."""

    def __init__(self, answer: Answer) -> None:
        self._status, self._body = answer

    def handle(self, _: Request) -> Response:
        return Response.of_json(self._body, self._status)

    def as_client(self) -> Any:
        """The part of the kubernetes client that a request uses."""
        return SimpleNamespace(
            configuration=SimpleNamespace(host="https://cluster"),
            param_serialize=lambda method, url, *_, **__: (method, url, {}),
            call_api=lambda *_, **__: SimpleNamespace(
                status=self._status, read=lambda: json.dumps(self._body).encode()
            ),
        )


def gce(call: Callable[[Gce], object]) -> Callable[[Answer], object]:
    def run(answer: Answer) -> object:
        clients = Clients("http://compute.test", prepare=lambda one: mount(one, Api(answer)))
        return call(Gce(clients, lambda: 30.0))

    return run


def gke(method: GkeMethod, **request: Any) -> Callable[[Answer], object]:
    def run(answer: Answer) -> object:
        url = "http://container.test"
        credentials = GoogleCredentials.of_process(url)
        client = GkeClient(
            url, credentials=credentials, prepare=lambda one: mount(one, Api(answer))
        )
        return client.call(method, request, lambda: 30.0)

    return run


def cluster(call: Callable[[Cluster], object]) -> Callable[[Answer], object]:
    def run(answer: Answer) -> object:
        session = Session(Api(answer).as_client())
        same = SimpleNamespace(
            session=lambda _: session, renew=lambda *_: session, hint="why", constants={}
        )
        return call(Cluster(cast("Connection", same), "label_node", lambda: 30.0))

    return run


def google(http: int, reason: str, message: str = "no") -> Answer:
    error = {"code": http, "message": message, "errors": [{"reason": reason, "message": message}]}
    return http, {"error": error}


def status(http: int, reason: str, message: str = "no") -> Answer:
    return http, {"kind": "Status", "reason": reason, "message": message}


FORBIDDEN, DENIED = google(403, "forbidden"), Reason.PERMISSION_DENIED
NOT_ALLOWED = status(403, "Forbidden")
ENVIRONMENT, TRANSIENT = ErrorKind.ENVIRONMENT, ErrorKind.TRANSIENT
BODY = {"name": "tng-a"}
MANIFEST = {"metadata": {"namespace": "ns", "name": "slice", "uid": "u", "resourceVersion": "7"}}
SECRET = {"metadata": {"name": "bootstrap-token-abc"}}
PATH = "projects/p/locations/l/clusters/c"
INSTANCE = cast("Any", SimpleNamespace(name="tng-a-b1", fingerprint="f"))
BUSY = "Cluster is running incompatible operation operation-1."
EXCEEDED = status(403, "Forbidden", '"x" is forbidden: exceeded quota: q')
EXHAUSTED = google(503, "ZONE_RESOURCE_POOL_EXHAUSTED")


def operation(scope: str) -> Callable[[Answer], object]:
    return gce(lambda one: one.find_operation("p", scope, "op", POLICY))


CASES: dict[str, Case] = {
    # Compute Engine
    "a policy": (gce(lambda one: one.find_policy("p", "us-east5", "tng-a")), (FORBIDDEN, POLICY, ENVIRONMENT, DENIED)),
    "a policy that exists already": (
        gce(lambda one: one.insert_policy("p", "us-east5", BODY, "")),
        (google(409, "alreadyExists"), POLICY, ErrorKind.CONFLICT, None),
    ),
    "a policy that is used": (
        gce(lambda one: one.delete_policy("p", "us-east5", "tng-a")),
        (google(400, "resourceInUseByAnotherResource"), POLICY, ErrorKind.IN_USE, None),
    ),
    "a global template": (gce(lambda one: one.find_template(TemplateRef("p", "tng-a"))), (google(503, "backendError"), TEMPLATE, TRANSIENT, None)),
    "a template of a region": (
        gce(lambda one: one.find_template(TemplateRef("p", "tng-a", "us-east5"))),
        (google(403, "rateLimitExceeded"), TEMPLATE, ErrorKind.RATE_LIMIT, None),
    ),
    "a MIG without capacity": (gce(lambda one: one.insert_mig("p", "us-east5-b", BODY, "")), (EXHAUSTED, MIG, ENVIRONMENT, Reason.INSUFFICIENT_CAPACITY)),
    "a MIG that refers to what does not exist": (
        gce(lambda one: one.insert_mig("p", "us-east5-b", BODY, "")),
        (google(404, "notFound"), MIG, ErrorKind.ABSENT, None),
    ),
    "a MIG that is being created": (
        gce(lambda one: one.delete_mig("p", "us-east5-b", "tng-a")),
        (google(400, "resourceNotReady"), MIG, ErrorKind.NOT_READY, None),
    ),
    "the members of a MIG": (gce(lambda one: one.list_managed_instances("p", "us-east5-b", "tng-a")), (FORBIDDEN, MIG, ENVIRONMENT, DENIED)),
    "a VM": (gce(lambda one: one.find_instance("p", "us-east5-b", "tng-a-b1")), (FORBIDDEN, VM, ENVIRONMENT, DENIED)),
    "a VM whose metadata have changed": (
        gce(lambda one: one.set_metadata("p", "us-east5-b", INSTANCE, {}, datetime.now(UTC))),
        (google(412, "conditionNotMet"), VM, ErrorKind.CONFLICT, None),
    ),
    "all VMs": (gce(lambda one: one.list_instances("p", "us-east5-b", "tng-a", 2)), (FORBIDDEN, About("instances"), ENVIRONMENT, DENIED)),
    "all MIGs": (gce(lambda one: one.list_named("p", "instance_group_managers", "tng-")), (FORBIDDEN, About("instanceGroupManagers"), ENVIRONMENT, DENIED)),
    "a global operation": (operation(""), (FORBIDDEN, POLICY, ENVIRONMENT, DENIED)),
    "an operation in a region": (operation("us-east5"), (FORBIDDEN, POLICY, ENVIRONMENT, DENIED)),
    "an operation in a zone": (operation("us-east5-b"), (FORBIDDEN, POLICY, ENVIRONMENT, DENIED)),
    "another server in place of Compute Engine": (gce(lambda one: one.find_policy("p", "us-east5", "tng-a")), ((404, {}), POLICY, TRANSIENT, None)),
    # GKE
    "a node pool": (gke("get_node_pool", name=f"{PATH}/nodePools/pool"), (FORBIDDEN, POOL, ENVIRONMENT, DENIED)),
    "too many node pools at the same time": (
        gke("create_node_pool", parent=PATH, nodePool={"name": "pool"}),
        (google(429, "rateLimitExceeded"), POOL, ErrorKind.RATE_LIMIT, None),
    ),
    "a node pool of a busy cluster": (gke("delete_node_pool", name=f"{PATH}/nodePools/pool"), (google(400, "failedPrecondition", BUSY), POOL, TRANSIENT, None)),
    "the node pools of no cluster": (gke("list_node_pools", parent=PATH), (google(404, "notFound"), About("nodePools"), ErrorKind.ABSENT, None)),
    # The cluster
    "a Node": (cluster(lambda one: one.find_node("tng-a-b1")), (NOT_ALLOWED, NODE, ENVIRONMENT, DENIED)),
    "a Node that has changed": (
        cluster(lambda one: one.patch_node("tng-a-b1", {"metadata": {"uid": "u"}})),
        (status(409, "Conflict"), NODE, ErrorKind.CONFLICT, None),
    ),
    "the Nodes of a group": (cluster(lambda one: one.list_nodes("tng-a", 2)), (status(429, "TooManyRequests"), About("Node"), ErrorKind.RATE_LIMIT, None)),
    "a group": (cluster(lambda one: one.find_group("ns", "slice")), (status(401, "Unauthorized"), GROUP, ENVIRONMENT, DENIED)),
    "a group's status": (cluster(lambda one: one.replace_status(MANIFEST, {})), (status(422, "Invalid"), GROUP, ENVIRONMENT, Reason.REFUSED)),
    "a new group beyond a ResourceQuota": (cluster(lambda one: one.create_group(MANIFEST)), (EXCEEDED, GROUP, ENVIRONMENT, Reason.QUOTA_EXCEEDED)),
    "a token's Secret": (cluster(lambda one: one.create_token_secret(SECRET)), (NOT_ALLOWED, About("Secret", "bootstrap-token-abc"), ENVIRONMENT, DENIED)),
    "a signing request": (
        cluster(lambda one: one.find_signing_request("csr-a")),
        (NOT_ALLOWED, About("CertificateSigningRequest", "csr-a"), ENVIRONMENT, DENIED),
    ),
    "a JobSet whose API is not served": (cluster(lambda one: one.find_owner("JobSet", "ns", "train")), ((404, {}), About("JobSet", "train"), TRANSIENT, None)),
    "the cluster's id": (cluster(lambda one: one.get_cluster_id()), (status(503, "Unavailable"), About("Namespace", "kube-system"), TRANSIENT, None)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_error_says_what_the_call_was_about_and_what_kind_it_is(case: Case) -> None:
    call, (answer, about, kind, reason) = case
    with pytest.raises(CallError) as raised:
        call(answer)
    assert (raised.value.about, raised.value.kind, raised.value.reason) == (about, kind, reason)


@pytest.mark.parametrize(
    "given, kind, reason",
    [
        (Forbidden("may not"), ENVIRONMENT, DENIED),
        (ServiceUnavailable("later"), TRANSIENT, None),
        (RetryError("slow", cause=None), TRANSIENT, None),
    ],
)
def test_an_error_of_a_publish_is_about_its_topic(
    given: Exception, kind: ErrorKind, reason: Reason | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def publish(**_: Any) -> None:
        raise given

    publisher = SimpleNamespace(publish=publish)
    monkeypatch.setattr("shared.ports.pubsub._make_publisher", lambda: publisher)
    with pytest.raises(CallError) as raised:
        Topics("p", "tpu-").publish("sweep", [(b"x", {})])
    assert raised.value.about == About("topics", "tpu-sweep")
    assert (raised.value.kind, raised.value.reason) == (kind, reason)


def test_the_name_of_an_error_is_in_its_text() -> None:
    error = CallError("POST /secrets", 403, "Forbidden", "may not", About("Secret", "x")).of("vm-1")
    assert str(error) == "POST /secrets of vm-1: 403 Forbidden: may not"
    assert error.about == About("Secret", "vm-1")
