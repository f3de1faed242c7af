"""A control plane with the manifests applied, and a relay connected to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from local.control_plane.plane import OwnControlPlane
from local.tests.real_parts import open_own_control_plane
from shared.base.names import FINALIZER, RESOURCE_NAME_LABEL
from tests.real.relay.messages import Subscriptions, open_subscriptions
from tests.real.relay.process import RelayProcess, request_token, run_relay, write_kubeconfig
from tests.real.relay.proxy import Proxy, open_proxy
from tests.real.relay.waiting import until
from tests.support.chart import apply
from tests.support.manifests import manifest

GROUPS = "/apis/tpu.google.com/v1alpha1/namespaces/default/tpunodegroups"
NODES = "/api/v1/nodes"
MERGE_PATCH = "application/merge-patch+json"


@dataclass(frozen=True)
class RelaySetup:
    """A cluster, a proxy to it, the subscriptions of the steps' topics, and a relay."""

    plane: OwnControlPlane
    proxy: Proxy
    subscriptions: Subscriptions
    folder: Path
    relay: RelayProcess

    @contextmanager
    def another_relay(self, token: str = "") -> Iterator[RelayProcess]:
        """Start a second relay with another token and the same proxy; it may not have listed yet."""
        folder = self.folder / "another"
        folder.mkdir()
        token = token or request_token(self.plane)
        kubeconfig = write_kubeconfig(self.plane, folder, self.proxy.port, token)
        with run_relay(kubeconfig, self.subscriptions.address) as relay:
            yield relay

    def is_authenticated(self, token: str) -> bool:
        """Return whether the API server accepts a token."""
        review = {"spec": {"token": token}}
        path = "/apis/authentication.k8s.io/v1/tokenreviews"
        return bool(self.ask("POST", path, review)["status"].get("authenticated"))

    def add_group(self, name: str, *, has_resources: bool = False) -> dict[str, Any]:
        """Apply a group as a user; ``has_resources`` if ``create_resources`` has handled it already."""
        return self.ask(
            "POST", GROUPS, group_with_resources(name) if has_resources else manifest(name)
        )

    def delete_group(self, name: str) -> None:
        """Delete a group as a user."""
        self.ask("DELETE", f"{GROUPS}/{name}")

    def add_node(self, group: str, end: str) -> str:
        """Register a Node as a VM's kubelet, and return the Node's name."""
        name = f"{resource_name(group)}-{end}"
        node = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": name}}
        code, answer = self.plane.register_node(node)
        assert code == 201, answer
        return name

    def patch_node_status(self, name: str, status: dict[str, Any]) -> None:
        """Report a Node's status as its kubelet."""
        path = f"{NODES}/{name}/status"
        code, answer = self.plane.request("PATCH", path, {"status": status}, MERGE_PATCH)
        assert code == 200, answer

    def ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Send a request as administrator, which must succeed."""
        code, answer = self.plane.request(method, path, body)
        assert code < 300, answer
        found: dict[str, Any] = answer
        return found


def resource_name(group: str) -> str:
    """Return the resource name of a group in these tests."""
    return f"tng-{group}-0123abcd"


def group_with_resources(name: str) -> dict[str, Any]:
    """Return a group as ``create_resources`` leaves it."""
    group = manifest(name)
    group["metadata"]["finalizers"] = [FINALIZER]
    group["metadata"]["labels"] = {RESOURCE_NAME_LABEL: resource_name(name)}
    return group


@pytest.fixture(scope="session")
def installed_plane() -> Iterator[OwnControlPlane]:
    """A control plane with the manifests applied; each test reverts its changes."""
    with open_own_control_plane() as plane:
        apply(plane, {})
        until(lambda: plane.request("GET", GROUPS)[0] == 200, "groups are served")
        yield plane


@pytest.fixture
def setup(installed_plane: OwnControlPlane, tmp_path: Path) -> Iterator[RelaySetup]:
    """A relay that has listed an empty cluster; the cluster is emptied after the test."""
    port = urlsplit(installed_plane.server).port
    assert port is not None
    with ExitStack() as stack:
        stack.callback(_delete_objects, installed_plane)
        proxy = stack.enter_context(open_proxy(port))
        subscriptions = stack.enter_context(open_subscriptions())
        token = request_token(installed_plane)
        kubeconfig = write_kubeconfig(installed_plane, tmp_path, proxy.port, token)
        relay = stack.enter_context(run_relay(kubeconfig, subscriptions.address))
        relay.wait_until_listed()
        yield RelaySetup(installed_plane, proxy, subscriptions, tmp_path, relay)


def _delete_objects(plane: OwnControlPlane) -> None:
    for path in (GROUPS, NODES):
        for item in plane.request("GET", path)[1]["items"]:
            one = f"{path}/{item['metadata']['name']}"
            plane.request("PATCH", one, {"metadata": {"finalizers": None}}, MERGE_PATCH)
            plane.request("DELETE", one)
