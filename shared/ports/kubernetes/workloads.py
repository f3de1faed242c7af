"""The calls about the owners of units, and about Pods."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from shared.base.names import (
    JOB_KEY,
    JOBSET_GROUP,
    JOBSET_KIND,
    JOBSET_NAME,
    JOBSET_PLURAL,
    JOBSET_VERSION,
)
from shared.ports.errors import CallError
from shared.ports.kubernetes.transport import NOT_SERVED, Target, Transport

_PODS = Target("Pod", "/api/v1", "pods")
_JOBS = Target("Job", "/apis/batch/v1", "jobs")
_REQUESTS = Target("ProvisioningRequest", "/apis/autoscaling.x-k8s.io/v1", "provisioningrequests")
_OWNERS = {
    "Deployment": Target("Deployment", "/apis/apps/v1", "deployments"),
    "Job": _JOBS,
    JOBSET_KIND: Target(JOBSET_KIND, f"/apis/{JOBSET_GROUP}/{JOBSET_VERSION}", JOBSET_PLURAL),
    "LeaderWorkerSet": Target(
        "LeaderWorkerSet", "/apis/leaderworkerset.x-k8s.io/v1", "leaderworkersets"
    ),
    "Pod": _PODS,
    "PodTemplate": Target("PodTemplate", "/api/v1", "podtemplates"),
    _REQUESTS.kind: _REQUESTS,
    "ReplicaSet": Target("ReplicaSet", "/apis/apps/v1", "replicasets"),
    "StatefulSet": Target("StatefulSet", "/apis/apps/v1", "statefulsets"),
    "Workload": Target("Workload", "/apis/kueue.x-k8s.io/v1beta2", "workloads"),
}
"""The owners of units, by kind, and what a ProvisioningRequest refers to. Some are not served
everywhere."""


class WorkloadCalls(Transport):
    def find_pod(self, namespace: str, name: str) -> dict[str, Any] | None:
        """The Pod of that name, or ``None``."""
        return self._find(_PODS.within(namespace).one(name))

    def list_pending_pods(
        self, namespace: str = "", *, with_all: bool = False
    ) -> Iterator[dict[str, Any]]:
        """The pending Pods of JobSets, or all without a Node, page by page. Some wait for a slice."""
        if not with_all:
            yield from self._list_pods(_PODS.within(namespace), JOB_KEY, "status.phase=Pending")
            return
        for pod in self._list(_PODS.within(namespace), "", "spec.nodeName=,status.phase=Pending"):
            yield {"apiVersion": "v1", "kind": "Pod", **pod}

    def list_jobs(self, namespace: str = "", jobset: str = "") -> Iterator[dict[str, Any]]:
        """The Jobs of all JobSets, page by page, or of one."""
        term = f"{JOBSET_NAME}={jobset}" if jobset else JOBSET_NAME
        return self._list(_JOBS.within(namespace), term, is_paged=True)

    def list_pods_on(self, node: str) -> list[dict[str, Any]]:
        """The Pods that are bound to a Node."""
        return self._list_pods(_PODS, "", f"spec.nodeName={node}")

    def list_bound_pods(self) -> Iterator[dict[str, Any]]:
        """The Pods that have not ended and are bound to any Node, page by page."""
        here = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
        return self._list(_PODS, "", here, is_paged=True)

    def _list_pods(self, target: Target, labels: str, fields: str = "") -> list[dict[str, Any]]:
        """The Pods with kind and apiVersion, which Events need: items of a list lack them."""
        found = self._list(target, labels, fields)
        return [{"apiVersion": "v1", "kind": "Pod", **pod} for pod in found]

    def find_owner(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """The object of that name and of a kind of `_OWNERS`, or ``None``.

        Raises `CallError` (503 ``NotServed``) if its API is not served: this does not show that there is
        none, and its slices would be deleted.
        """
        with _explain_not_served(_OWNERS[kind]):
            return self._find(_OWNERS[kind].within(namespace).one(name))

    def list_owners(self, kind: str, namespace: str = "") -> Iterator[dict[str, Any]]:
        """All of a kind, or those of a namespace, page by page. Raises `CallError` as `find_owner`
        does."""
        with _explain_not_served(_OWNERS[kind]):
            yield from self._list(_OWNERS[kind].within(namespace))

    def list_requests(self, namespace: str, now: datetime) -> list[dict[str, Any]]:
        """The ProvisioningRequests of a namespace, or all; none if the cluster does not serve them."""
        return self._list_if_served(_REQUESTS.within(namespace), now)

    def replace_request_status(self, found: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        """Write the status of a request, if it is unchanged since it was read (409 if not)."""
        metadata = found["metadata"]
        target = _REQUESTS.within(metadata["namespace"]).one(metadata["name"], "status")
        self._call("PUT", target, {**found, "status": status})

    def list_selected_pods(self, namespace: str, labels: str) -> list[dict[str, Any]]:
        """The Pods of a namespace that a label selector matches."""
        return self._list_pods(_PODS.within(namespace), labels)


@contextmanager
def _explain_not_served(target: Target) -> Iterator[None]:
    """A context in which the error of an API that is not served says what to install."""
    try:
        yield
    except CallError as error:
        if error.code != NOT_SERVED:
            raise
        said = error.message.strip().rstrip(".")
        needed = f"a release of {target.kind} that serves {target.api.removeprefix('/apis/')}"
        message = f"{said}. If it is the cluster, {needed} must be installed"
        raise CallError(error.call, 503, NOT_SERVED, message, error.about) from error
