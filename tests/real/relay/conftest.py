"""A control plane with the manifests applied, and a relay before it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from local.control_plane.plane import OwnControlPlane
from shared.base.names import FINALIZER, RESOURCE_NAME_LABEL
from tests.manifests import manifest
from tests.real.relay.mailbox import Mailbox, open_mailbox
from tests.real.relay.patience import until
from tests.real.relay.process import RelayProcess, request_token, run_relay, write_kubeconfig
from tests.real.relay.wire import Wire, stretch
from tests.real_parts import open_own_control_plane

INSTALLATION = str(Path(__file__).parents[3] / "infra" / "kubernetes")
GROUPS = "/apis/tpu.google.com/v1alpha1/namespaces/default/tpunodegroups"
NODES = "/api/v1/nodes"
MERGE_PATCH = "application/merge-patch+json"


@dataclass(frozen=True)
class Scene:
    """A cluster, a wire to it, the inboxes, and a relay between them."""

    plane: OwnControlPlane
    wire: Wire
    mailbox: Mailbox
    folder: Path
    relay: RelayProcess

    @contextmanager
    def another_relay(self, token: str = "") -> Iterator[RelayProcess]:
        """A second relay, with a token of its own, over the same wire; it may not have listed yet."""
        folder = self.folder / "another"
        folder.mkdir()
        token = token or request_token(self.plane)
        kubeconfig = write_kubeconfig(self.plane, folder, self.wire.port, token)
        with run_relay(kubeconfig, self.mailbox.address) as relay:
            yield relay

    def is_accepted(self, token: str) -> bool:
        """Whether the API server takes a token for anybody's."""
        review = {"spec": {"token": token}}
        path = "/apis/authentication.k8s.io/v1/tokenreviews"
        return bool(self.ask("POST", path, review)["status"].get("authenticated"))

    def add_group(self, name: str, *, is_ours: bool = False) -> dict[str, Any]:
        """A person applies a group; ``is_ours`` if ``create_resources`` has taken it already."""
        return self.ask("POST", GROUPS, group_of_ours(name) if is_ours else manifest(name))

    def delete_group(self, name: str) -> None:
        """A person deletes a group."""
        self.ask("DELETE", f"{GROUPS}/{name}")

    def add_node(self, group: str, end: str) -> str:
        """A VM's kubelet registers; the Node's name."""
        name = f"{resource_name(group)}-{end}"
        node = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": name}}
        code, answer = self.plane.register_node(node)
        assert code == 201, answer
        return name

    def patch_node_status(self, name: str, status: dict[str, Any]) -> None:
        """A kubelet says how it is."""
        path = f"{NODES}/{name}/status"
        code, answer = self.plane.request("PATCH", path, {"status": status}, MERGE_PATCH)
        assert code == 200, answer

    def ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """The administrator asks; it must work."""
        code, answer = self.plane.request(method, path, body)
        assert code < 300, answer
        found: dict[str, Any] = answer
        return found


def resource_name(group: str) -> str:
    """What the resources of a group are called in these tests."""
    return f"tng-{group}-0123abcd"


def group_of_ours(name: str) -> dict[str, Any]:
    """A group that ``create_resources`` has taken."""
    wanted = manifest(name)
    wanted["metadata"]["finalizers"] = [FINALIZER]
    wanted["metadata"]["labels"] = {RESOURCE_NAME_LABEL: resource_name(name)}
    return wanted


@pytest.fixture(scope="session")
def installed_plane() -> Iterator[OwnControlPlane]:
    """A control plane with the manifests applied; what a test does to it, it undoes."""
    with open_own_control_plane() as plane:
        said = plane.run_kubectl("apply", "-k", INSTALLATION)
        assert said.returncode == 0, said.stderr
        until(lambda: plane.request("GET", GROUPS)[0] == 200, "groups are served")
        yield plane


@pytest.fixture
def scene(installed_plane: OwnControlPlane, tmp_path: Path) -> Iterator[Scene]:
    """A relay that has listed an empty cluster, which is emptied again."""
    port = urlsplit(installed_plane.server).port
    assert port is not None
    with ExitStack() as stack:
        stack.callback(_tidy, installed_plane)
        wire = stack.enter_context(stretch(port))
        mailbox = stack.enter_context(open_mailbox())
        token = request_token(installed_plane)
        kubeconfig = write_kubeconfig(installed_plane, tmp_path, wire.port, token)
        relay = stack.enter_context(run_relay(kubeconfig, mailbox.address))
        relay.wait_until_listed()
        yield Scene(installed_plane, wire, mailbox, tmp_path, relay)


def _tidy(plane: OwnControlPlane) -> None:
    for path in (GROUPS, NODES):
        for item in plane.request("GET", path)[1]["items"]:
            one = f"{path}/{item['metadata']['name']}"
            plane.request("PATCH", one, {"metadata": {"finalizers": None}}, MERGE_PATCH)
            plane.request("DELETE", one)
