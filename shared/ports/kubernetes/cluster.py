"""The port to the Kubernetes cluster: every call that the budget knows, by name, and nothing else.

Requests go through the kubernetes client's `ApiClient` (its kubeconfig, TLS, authentication;
`access`), as plain dictionaries: its typed models refuse a whole list for one odd Node, and
cost 0.5 s to import.
What is refused is a `CallError` whose ``reason`` is the Status' own, as in ``Conflict``.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

from shared.base.errors import CallError
from shared.base.names import (
    GROUP,
    JOBSET_LABEL,
    PLURAL,
    POOL_LABEL,
    RESOURCE_NAME_LABEL,
    SYSTEM_NAMESPACE,
    VERSION,
)
from shared.base.timestamps import render_time
from shared.frame.settings import Access
from shared.ports.kubernetes.access import Session, explain, source_of
from shared.slices import jobsets
from shared.slices.jobsets import JOB_KEY, JOB_NAME

_GROUPS = f"/apis/{GROUP}/{VERSION}"
_JOBSETS = f"/apis/{jobsets.GROUP}/{jobsets.VERSION}"
_MERGE_PATCH = "application/merge-patch+json"
_PAGE_SIZE = 500
_NAMESPACE_OF_TOKENS = "kube-system"
_CA_KEPT = timedelta(minutes=10)
"""A CA is replaced once in years; a process of ours lives for hours."""


@dataclass(frozen=True)
class Event:
    """A Kubernetes Event about a group (or a Node): what a person reads in ``describe``."""

    reason: str
    message: str
    is_warning: bool = False


class Cluster:
    """The cluster, for one invocation.

    ``remaining_s`` says how many seconds are left for calls; it raises `OutOfTimeError` at the end.
    """

    def __init__(self, connection: Connection, step: str, remaining_s: Callable[[], float]) -> None:
        self._connection = connection
        self._step = step
        self._remaining_s = remaining_s
        self._jobset_options: Mapping[str, str] | None = None
        self.calls = 0

    def get_cluster_id(self) -> str:
        """The uid of the namespace ``kube-system``: asked once in a process."""
        self._connection.session(self._remaining_s)  # forgets the id if it may be another cluster
        constants = self._connection.constants
        known = constants.get("cluster")
        if known is None:
            found = self._call("GET", f"/api/v1/namespaces/{_NAMESPACE_OF_TOKENS}")
            known = constants["cluster"] = str(found["metadata"]["uid"])
        return known

    def get_ca_certificate(self, now: datetime) -> str:
        """The cluster's CA in PEM form, asked every ten minutes; empty while it is not published."""
        known = self._connection.ca
        if known is None or now >= known[1]:
            path = f"/api/v1/namespaces/{_NAMESPACE_OF_TOKENS}/configmaps/kube-root-ca.crt"
            found = self._find(path) or {}
            text = str((found.get("data") or {}).get("ca.crt", ""))
            known = self._connection.ca = (text, now + _CA_KEPT)
        return known[0]

    def forget_ca_certificate(self) -> None:
        """What was read is of no use; it is asked for again."""
        self._connection.ca = None

    def find_group(self, namespace: str, name: str) -> dict[str, Any] | None:
        """The TPUNodeGroup of that name, or ``None``."""
        return self._find(_object_path(namespace, name))

    def list_groups_named(self, resource_name: str) -> list[dict[str, Any]]:
        """The groups that bear this resource-name label, from all namespaces: by right, one."""
        return list(self._list(f"{_GROUPS}/{PLURAL}", f"{RESOURCE_NAME_LABEL}={resource_name}"))

    def list_groups(self) -> Iterator[dict[str, Any]]:
        """All groups of the cluster, page by page."""
        return self._list(f"{_GROUPS}/{PLURAL}")

    def replace_status(self, group: Mapping[str, Any], status: Mapping[str, Any]) -> dict[str, Any]:
        """Write a group's status if the group is still as it was read (409 if not)."""
        return self._call("PUT", f"{_path(group)}/status", {**group, "status": status})

    def patch_group(
        self,
        group: Mapping[str, Any],
        *,
        finalizers: list[str],
        labels: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Set a group's finalizers and labels if it is still as it was read (409 if not)."""
        metadata: dict[str, Any] = {
            "resourceVersion": group["metadata"]["resourceVersion"],
            "finalizers": finalizers,
        }
        if labels:
            metadata["labels"] = dict(labels)
        return self._call("PATCH", _path(group), {"metadata": metadata}, kind=_MERGE_PATCH)

    def has_foreign_children(self, namespace: str, names: Mapping[str, str]) -> bool:
        """Whether tpu-operator has made any of these children (plural to name) of a group.

        Its kinds are installed together: where one is not known, the others need not be asked for.
        """
        for plural, name in names.items():
            try:
                self._call("GET", f"{_GROUPS}/namespaces/{namespace}/{plural}/{name}")
            except CallError as error:
                if error.http != 404:
                    raise
                if error.reason != "NotFound":
                    return False
            else:
                return True
        return False

    def list_slice_groups(self, namespace: str = "", jobset: str = "") -> list[dict[str, Any]]:
        """The groups that were made for JobSets: all, or those of one."""
        path = f"{_GROUPS}/namespaces/{_quoted(namespace)}" if namespace else _GROUPS
        term = f"{JOBSET_LABEL}={jobset}" if jobset else JOBSET_LABEL
        return list(self._list(f"{path}/{PLURAL}", term))

    def create_group(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Make a group (409 if its name is taken)."""
        path = f"{_GROUPS}/namespaces/{_quoted(manifest['metadata']['namespace'])}/{PLURAL}"
        return self._call("POST", path, manifest)

    def annotate_group(
        self, group: Mapping[str, Any], annotations: Mapping[str, str | None]
    ) -> dict[str, Any]:
        """Set annotations, or with ``None`` remove them, if the group is still as it was read."""
        version = group["metadata"]["resourceVersion"]
        change = {"metadata": {"resourceVersion": version, "annotations": dict(annotations)}}
        return self._call("PATCH", _path(group), change, kind=_MERGE_PATCH)

    def delete_group(self, group: Mapping[str, Any]) -> bool:
        """Delete a group if it is still as it was read (409 if not); ``False`` if it is gone."""
        metadata = group["metadata"]
        still = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        try:
            self._call("DELETE", _path(group), {"preconditions": still})
        except CallError as error:
            if error.http != 404:
                raise
            return False
        return True

    def find_pod(self, namespace: str, name: str) -> dict[str, Any] | None:
        """The Pod of that name, or ``None``."""
        return self._find(f"/api/v1/namespaces/{_quoted(namespace)}/pods/{_quoted(name)}")

    def list_pending_pods(self) -> list[dict[str, Any]]:
        """The Pods of JobSets that have not started: among them those that wait for a slice."""
        return self._list_pods("/api/v1/pods", JOB_KEY, "status.phase=Pending")

    def list_job_pods(self, namespace: str, job: str) -> list[dict[str, Any]]:
        """The Pods of one Job."""
        path = f"/api/v1/namespaces/{_quoted(namespace)}/pods"
        return self._list_pods(path, f"{JOB_NAME}={job}")

    def list_pods_on(self, node: str) -> list[dict[str, Any]]:
        """The Pods of Jobs that are bound to a Node."""
        return self._list_pods("/api/v1/pods", JOB_NAME, f"spec.nodeName={node}")

    def list_bound_pods(self) -> Iterator[dict[str, Any]]:
        """The Pods of Jobs that have not ended and are bound to any Node, page by page."""
        here = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
        return self._list("/api/v1/pods", JOB_NAME, here, is_paged=True)

    def _list_pods(self, path: str, labels: str, fields: str = "") -> list[dict[str, Any]]:
        """Pods that say of themselves what they are, as Events must: items of a list do not."""
        found = self._list(path, labels, fields)
        return [{"apiVersion": "v1", "kind": "Pod", **pod} for pod in found]

    def list_nodes_of_slice(self, name: str) -> list[dict[str, Any]]:
        """The Nodes of a slice that was made for a JobSet."""
        return list(self._list("/api/v1/nodes", f"{POOL_LABEL}={name}"))

    def find_jobset(self, namespace: str, name: str) -> dict[str, Any] | None:
        """The JobSet of that name, or ``None``.

        Raises `CallError` (503 ``NotServed``) where the API of JobSets is not served: that says nothing
        of whether there is one, and slices hang on it.
        """
        try:
            return self._call(
                "GET", f"{_JOBSETS}/namespaces/{_quoted(namespace)}/jobsets/{_quoted(name)}"
            )
        except CallError as error:
            if error.http == 404 and error.reason != "NotFound":
                raise _not_served(error) from error
            if error.http == 404:
                return None
            raise

    def list_jobsets(self) -> Iterator[dict[str, Any]]:
        """All JobSets of the cluster, page by page. Raises `CallError` as `find_jobset` does."""
        try:
            yield from self._list(f"{_JOBSETS}/jobsets")
        except CallError as error:
            if error.http == 404:
                raise _not_served(error) from error
            raise

    def get_jobset_options(self) -> Mapping[str, str]:
        """What the ConfigMap ``jobsets`` says, asked once an invocation; empty if there is none."""
        if self._jobset_options is None:
            found = self._find(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps/jobsets") or {}
            self._jobset_options = found.get("data") or {}
        return self._jobset_options

    def list_nodes(self, resource_name: str) -> list[dict[str, Any]]:
        """The Nodes that bear this resource-name label; each says what it is, as Events must."""
        found = self._list("/api/v1/nodes", f"{RESOURCE_NAME_LABEL}={resource_name}")
        return [{"apiVersion": "v1", "kind": "Node", **node} for node in found]

    def find_node(self, name: str) -> dict[str, Any] | None:
        """The Node of that name, or ``None``."""
        return self._find(f"/api/v1/nodes/{_quoted(name)}")

    def find_nodes(self, names: Iterable[str]) -> dict[str, dict[str, Any] | None]:
        """The Nodes of these names (``None``: there is none), one after the other, for at most a third
        of the seconds that are left: a name that is not in the answer has not been asked for."""
        end_s = self._remaining_s() * 2 / 3
        found: dict[str, dict[str, Any] | None] = {}
        for name in names:
            if self._remaining_s() <= end_s:
                break
            found[name] = self.find_node(name)
        return found

    def patch_node(self, name: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        """Change a Node by a merge patch; with a resourceVersion in it, if it is as it was read."""
        return self._call("PATCH", f"/api/v1/nodes/{name}", patch, kind=_MERGE_PATCH)

    def delete_node(self, name: str, uid: str) -> None:
        """Delete this Node and no other of its name; one that is gone is no error."""
        self._delete(f"/api/v1/nodes/{name}", {"preconditions": {"uid": uid}})

    def create_token_secret(self, manifest: Mapping[str, Any]) -> None:
        """Make a bootstrap token's Secret; one of its name that is there already is it."""
        path = f"/api/v1/namespaces/{_NAMESPACE_OF_TOKENS}/secrets"
        try:
            self._call("POST", path, manifest)
        except CallError as error:
            if error.reason != "AlreadyExists":
                raise

    def delete_token_secret(self, token_id: str) -> None:
        """Revoke a bootstrap token; one that is gone is no error."""
        name = f"bootstrap-token-{token_id}"
        self._delete(f"/api/v1/namespaces/{_NAMESPACE_OF_TOKENS}/secrets/{name}", {})

    def emit(self, about: Mapping[str, Any], event: Event, now: datetime) -> None:
        """Write an Event about an object, or count up the one that says the same already."""
        path = self._tell(about, event, now)
        if path is not None:
            self._count_up(path, now)

    def emit_once(self, about: Mapping[str, Any], event: Event, now: datetime) -> None:
        """Write an Event about an object, unless it says the same already."""
        self._tell(about, event, now)

    def _tell(self, about: Mapping[str, Any], event: Event, now: datetime) -> str | None:
        """Write an Event; the path of the one that says the same already."""
        manifest = _event_manifest(about, event, self._step, now)
        path = f"/api/v1/namespaces/{manifest['metadata']['namespace']}/events"
        try:
            self._call("POST", path, manifest)
        except CallError as error:
            if error.reason != "AlreadyExists":
                raise
            return f"{path}/{manifest['metadata']['name']}"
        return None

    def _count_up(self, path: str, now: datetime) -> None:
        found = self._find(path)
        if found is not None:
            change = {"count": (found.get("count") or 1) + 1, "lastTimestamp": render_time(now)}
            self._call("PATCH", path, change, kind=_MERGE_PATCH)

    def _find(self, path: str) -> dict[str, Any] | None:
        try:
            return self._call("GET", path)
        except CallError as error:
            if error.http == 404:
                return None
            raise

    def _delete(self, path: str, options: Mapping[str, Any]) -> None:
        try:
            self._call("DELETE", path, options)
        except CallError as error:
            if error.http not in (404, 409):
                raise

    def _list(
        self, path: str, selector: str = "", fields: str = "", *, is_paged: bool = False
    ) -> Iterator[dict[str, Any]]:
        """All objects, page by page; those with a label, a slice's at most, in one answer.

        An API server of 1.31 to 1.33 has a list in memory, unless a limit is asked for: then it reads
        every object of the kind from etcd.
        """
        query = {"limit": str(_PAGE_SIZE)} if is_paged or not selector else {}
        if selector:
            query["labelSelector"] = selector
        if fields:
            query["fieldSelector"] = fields
        while True:
            page = self._call("GET", f"{path}?{urlencode(query)}")
            yield from page["items"]
            token = page["metadata"].get("continue")
            if not token:
                return
            query["continue"] = token

    def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        kind: str = "application/json",
    ) -> dict[str, Any]:
        name = f"{method} {path.partition('?')[0]}"
        session = self._connection.session(self._remaining_s)
        status, raw = self._send(session, name, (method, path, body, kind))
        if status == 401:
            session = self._connection.renew(session, self._remaining_s)
            status, raw = self._send(session, name, (method, path, body, kind))
        document = _decode(raw)
        if status >= 300:
            said = document.get("message") or (raw or b"").decode(errors="replace")[:200]
            hint = f" ({self._connection.hint})" if status == 401 else ""
            raise CallError(name, status, document.get("reason") or "", f"{said}{hint}")
        return document

    def _send(
        self, session: Session, name: str, call: tuple[str, str, Mapping[str, Any] | None, str]
    ) -> tuple[int, bytes | None]:
        from kubernetes.client.exceptions import OpenApiException
        from urllib3.exceptions import HTTPError

        method, path, body, kind = call
        headers = {"Accept": "application/json", "Content-Type": kind, **session.headers}
        client = session.client
        request = client.param_serialize(
            method, path, [], [], headers, body, auth_settings=["BearerToken"]
        )
        self.calls += 1
        try:
            answer = client.call_api(*request, _request_timeout=self._remaining_s())
            return answer.status, answer.read()
        except (HTTPError, OpenApiException) as error:
            why = f"{client.configuration.host}: {explain(error, self._connection.trust)}"
            raise CallError(name, 0, "unreachable", why) from error


class Connection:
    """The way into the cluster: made when it is first needed, then kept for the process.

    ``constants`` remembers what never changes in a cluster's life (its id), ``ca`` its CA and until
    when that is believed. Both are forgotten when a kubeconfig has changed: it may be another cluster.
    """

    def __init__(self, access: Access, *, prepare: Callable[[Any], None] | None = None) -> None:
        self._source = source_of(access)
        self._prepare = prepare
        self._session: Session | None = None
        self._lock = threading.Lock()
        self.constants: dict[str, str] = {}
        self.ca: tuple[str, datetime] | None = None

    def session(self, remaining_s: Callable[[], float]) -> Session:
        """What to send requests with. Raises `AccessError`, `CallError` and `OutOfTimeError`."""
        with self._lock:
            if self._session is None or self._source.is_stale():
                self._session = self._open(remaining_s())
            return self._session

    def renew(self, refused: Session, remaining_s: Callable[[], float]) -> Session:
        """Another session than the one that was refused; somebody may have renewed it meanwhile."""
        with self._lock:
            if self._session is None or self._session is refused:
                self._session = self._open(remaining_s())
            return self._session

    @property
    def hint(self) -> str:
        """What may be the matter when the API server does not accept a fresh session."""
        return self._source.hint

    @property
    def trust(self) -> str:
        """The variable that names the CA of the API server."""
        return self._source.trust

    def _open(self, timeout_s: float) -> Session:
        before, session = self._session, self._source.open(timeout_s)
        if before is None or session.client is not before.client:
            self.constants.clear()
            self.ca = None
            if self._prepare is not None:
                self._prepare(session.client)
        return session


def _path(group: Mapping[str, Any]) -> str:
    return _object_path(group["metadata"]["namespace"], group["metadata"]["name"])


def _object_path(namespace: str, name: str) -> str:
    return f"{_GROUPS}/namespaces/{_quoted(namespace)}/{PLURAL}/{_quoted(name)}"


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _not_served(error: CallError) -> CallError:
    api = f"{jobsets.GROUP}/{jobsets.VERSION}"
    message = f"the cluster does not serve {api}: a release of JobSet that does must be installed"
    return CallError(error.call, 503, "NotServed", message)


def _decode(raw: bytes | None) -> dict[str, Any]:
    try:
        document = json.loads(raw or b"{}")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _event_manifest(
    about: Mapping[str, Any], event: Event, step: str, now: datetime
) -> dict[str, Any]:
    metadata = about["metadata"]
    said = f"{metadata['uid']}/{event.reason}/{event.message}"
    digest = hashlib.sha256(said.encode()).hexdigest()[:16]
    namespace = metadata.get("namespace") or "default"
    reference = {
        "apiVersion": about["apiVersion"],
        "kind": about["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "resourceVersion": metadata["resourceVersion"],
    }
    if metadata.get("namespace"):
        reference["namespace"] = namespace
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name'][:200]}.{digest}", "namespace": namespace},
        "involvedObject": reference,
        "reason": event.reason,
        "message": event.message[:1024],
        "type": "Warning" if event.is_warning else "Normal",
        "source": {"component": f"tpu-functions-{step.replace('_', '-')}"},
        "reportingComponent": "",
        "reportingInstance": "",
        "firstTimestamp": render_time(now),
        "lastTimestamp": render_time(now),
        "count": 1,
    }
