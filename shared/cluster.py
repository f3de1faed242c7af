"""The port to the Kubernetes cluster: every call that the budget knows, by name, and nothing else.

Requests go through the kubernetes client's `ApiClient` (its kubeconfig, TLS, authentication), as
plain dictionaries: its typed models refuse a whole list for one odd Node, and cost 0.5 s to import.
What is refused is a `CallError` whose ``reason`` is the Status' own, as in ``Conflict``.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

from shared.errors import CallError
from shared.names import GROUP, PLURAL, RESOURCE_NAME_LABEL, VERSION
from shared.when import render_time

_GROUPS = f"/apis/{GROUP}/{VERSION}"
_MERGE_PATCH = "application/merge-patch+json"
_PAGE_SIZE = 500
_NAMESPACE_OF_TOKENS = "kube-system"
_CA_KEPT = timedelta(minutes=10)
"""A CA is replaced once in years; a process of ours lives for hours."""


class KubeconfigError(Exception):
    """The way into the cluster is missing or wrong; the message says which and what would be right."""


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
        self.calls = 0

    def get_cluster_id(self) -> str:
        """The uid of the namespace ``kube-system``: asked once in a process."""
        constants = self._connection.constants
        if "cluster" not in constants:
            found = self._call("GET", f"/api/v1/namespaces/{_NAMESPACE_OF_TOKENS}")
            constants["cluster"] = found["metadata"]["uid"]
        return constants["cluster"]

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

    def list_nodes(self, resource_name: str) -> list[dict[str, Any]]:
        """The Nodes that bear this resource-name label."""
        return list(self._list("/api/v1/nodes", f"{RESOURCE_NAME_LABEL}={resource_name}"))

    def find_node(self, name: str) -> dict[str, Any] | None:
        """The Node of that name, or ``None``."""
        return self._find(f"/api/v1/nodes/{quote(name, safe='')}")

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
        manifest = _event_manifest(about, event, self._step, now)
        path = f"/api/v1/namespaces/{manifest['metadata']['namespace']}/events"
        try:
            self._call("POST", path, manifest)
        except CallError as error:
            if error.reason != "AlreadyExists":
                raise
            self._count_up(f"{path}/{manifest['metadata']['name']}", now)

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

    def _list(self, path: str, selector: str = "") -> Iterator[dict[str, Any]]:
        query = {"limit": str(_PAGE_SIZE)}
        if selector:
            query["labelSelector"] = selector
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
        from kubernetes.client.exceptions import OpenApiException
        from urllib3.exceptions import HTTPError

        client = self._connection.client()
        headers = {"Accept": "application/json", "Content-Type": kind}
        request = client.param_serialize(
            method, path, [], [], headers, body, auth_settings=["BearerToken"]
        )
        name = f"{method} {path.partition('?')[0]}"
        self.calls += 1
        try:
            answer = client.call_api(*request, _request_timeout=self._remaining_s())
            raw = answer.read()
        except (HTTPError, OpenApiException) as error:
            raise CallError(name, 0, "unreachable", type(error).__name__) from error
        document = _decode(raw)
        if answer.status >= 300:
            raise CallError(
                name,
                answer.status,
                document.get("reason") or "",
                document.get("message") or (raw or b"").decode(errors="replace")[:200],
            )
        return document


class Connection:
    """The way into the cluster: made when it is first needed, then kept for the process.

    ``constants`` remembers what never changes in a cluster's life (its id), ``ca`` its CA and until
    when that is believed.
    """

    def __init__(self, kubeconfig: str, *, prepare: Callable[[Any], None] | None = None) -> None:
        self._kubeconfig = kubeconfig
        self._prepare = prepare
        self._client: Any = None
        self._lock = threading.Lock()
        self.constants: dict[str, str] = {}
        self.ca: tuple[str, datetime] | None = None

    def client(self) -> Any:
        """The kubernetes `ApiClient`. Raises `KubeconfigError`."""
        with self._lock:
            if self._client is None:
                self._client = self._make()
                if self._prepare is not None:
                    self._prepare(self._client)
            return self._client

    def _make(self) -> Any:
        from kubernetes.client.api_client import ApiClient
        from kubernetes.client.configuration import Configuration
        from kubernetes.config import ConfigException
        from kubernetes.config.kube_config import load_kube_config
        from urllib3 import Retry
        from yaml import YAMLError

        configuration = Configuration()
        try:
            load_kube_config(self._kubeconfig, client_configuration=configuration)
        except (ConfigException, OSError, ValueError, YAMLError) as error:
            raise KubeconfigError(
                f"KUBECONFIG={self._kubeconfig!r} cannot be used: {str(error).rstrip('.')}. "
                "It must name a file in "
                "kubeconfig form with a current context."
            ) from error
        configuration.retries = Retry(total=None, connect=1, read=0, redirect=0, status=0, other=0)
        return ApiClient(configuration)


def _path(group: Mapping[str, Any]) -> str:
    return _object_path(group["metadata"]["namespace"], group["metadata"]["name"])


def _object_path(namespace: str, name: str) -> str:
    return f"{_GROUPS}/namespaces/{quote(namespace, safe='')}/{PLURAL}/{quote(name, safe='')}"


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
