"""What must hold at every moment of a run, and at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from local.base.http import Request
from local.gce.refusals import Refused
from shared.base.names import RESOURCE_NAME_LABEL, TOKEN_KEY, VM_ID_LABEL, find_resource_name
from shared.node_groups.node_group import MARK_PREFIX
from tests.support.harness import Harness

REVOKED_WITHIN = timedelta(minutes=5)
"""A token is revoked so long after its VM's Node was labelled."""
SECRETS = "/api/v1/namespaces/kube-system/secrets"
NODES = "/api/v1/nodes"


class Violation(AssertionError):
    """A rule does not hold."""


class Rules:
    """Checks a run. ``strangers`` are the paths and Nodes that belong to nobody's slice."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self.strangers: set[str] = set()
        self.broken = ""
        """The first violation by a call of a step."""
        self._labelled: dict[tuple[str, str], datetime] = {}
        """When a Node was first seen with the id of its VM."""
        self._secrets: dict[str, datetime] = {}
        self.late: set[str] = set()
        """The Secrets whose creation took effect after its client gave up."""

    def find(self, path: str) -> dict[str, Any] | None:
        """A resource of Compute Engine."""
        try:
            return self._harness.simulation.gce.faults.act_as_user("GET", path)
        except Refused:
            return None

    def items(self, path: str) -> list[dict[str, Any]]:
        """The objects of a list in the cluster."""
        found: list[dict[str, Any]] = self._harness.simulation.admin("GET", path)["items"]
        return found

    def check_write(self, step: str, request: Request) -> None:
        """Check a change by a step, just before its effect. The step itself may catch the error."""
        try:
            self._check_write(step, request)
        except Violation as violation:
            self.broken = self.broken or str(violation)
            raise

    def _check_write(self, step: str, request: Request) -> None:
        path = request.path.removeprefix("/compute/v1/")
        if path != request.path:
            self._check_mark(step, request.method, path)
        elif request.method == "DELETE" and path.startswith(f"{NODES}/"):
            self._check_node(step, path)

    def _check_mark(self, step: str, method: str, path: str) -> None:
        parts = path.split("/")
        collection = next(
            at for at, part in enumerate(parts) if part in ("global", "zones", "regions")
        )
        at = collection + (2 if parts[collection] == "global" else 3)
        if len(parts) <= at:
            return  # an insert
        resource = "/".join(parts[: at + 1])
        found = self.find(resource)
        if found is None:
            return
        owner: dict[str, Any] | None = found
        if parts[at - 1] == "instances":
            mig = find_resource_name(parts[at])
            owner = self.find("/".join([*parts[: at - 1], "instanceGroupManagers", mig]))
        mark = (owner or {}).get("description", "")
        if resource in self.strangers or not mark.startswith(MARK_PREFIX):
            raise Violation(f"{step} changes what is no group's: {method} {path} ({mark!r})")

    def _check_node(self, step: str, path: str) -> None:
        name = path.rpartition("/")[2]
        node = self._harness.simulation.admin("GET", path)
        if node["kind"] != "Node":
            return
        if name in self.strangers:
            raise Violation(f"{step} deletes Node {name}, which is no group's")
        conditions = node.get("status", {}).get("conditions", [])
        ready = next((one["status"] for one in conditions if one["type"] == "Ready"), "")
        vms = self._harness.simulation.gce.state()["instances"]
        # A VM that has just been created again cannot have registered: the Node is its predecessor's.
        runs = any(vm.endswith(f"/{name}") and state == "RUNNING" for vm, state in vms.items())
        if ready != "Unknown" and runs:
            raise Violation(f"{step} deletes Node {name} of a running VM; its Ready is {ready!r}")

    def check_state(self) -> None:
        """Check what exists now."""
        for problem in self._problems():
            raise Violation(problem)

    def _problems(self) -> Iterator[str]:
        state = self._harness.simulation.gce.state()
        found = state["instances"].items()
        vms = {path: status for path, status in found if path not in self.strangers}
        yield from self._count(vms)
        yield from self._check_tokens(vms)

    def _count(self, vms: dict[str, str]) -> Iterator[str]:
        paths = self._harness.simulation.gce.leftovers()
        migs = {path: self.find(path) for path in paths if "/instanceGroupManagers/" in path}
        owners = Counter(
            mig["description"].rpartition(" uid=")[0] for mig in migs.values() if mig is not None
        )
        yield from (f"{count} MIGs of {owner}" for owner, count in owners.items() if count > 1)
        counts = Counter(find_resource_name(path.rpartition("/")[2]) for path in vms)
        for path, mig in migs.items():
            name = path.rpartition("/")[2]
            if mig is not None and counts[name] > mig["targetSize"] + 1:
                yield f"{counts[name]} VMs of {name}, whose size is {mig['targetSize']}"

    def _check_tokens(self, vms: dict[str, str]) -> Iterator[str]:
        now = self._harness.clock.now()
        secrets = {one["metadata"]["name"] for one in self.items(SECRETS)}
        self._secrets = {name: self._secrets.get(name, now) for name in secrets}
        owners: dict[str, str] = {}
        labelled: dict[tuple[str, str], datetime] = {}
        nodes = {one["metadata"]["name"]: one for one in self.items(NODES)}
        for path in vms:
            vm, name = self.find(path), path.rpartition("/")[2]
            items = (vm or {}).get("metadata", {}).get("items", [])
            token = next((one["value"] for one in items if one["key"] == TOKEN_KEY), "")
            secret = f"bootstrap-token-{token.partition('.')[0]}"
            if vm is None or not token:
                continue
            if owners.setdefault(token, name) != name:
                yield f"one token for {name} and {owners[token]}"
            labels = nodes.get(name, {}).get("metadata", {}).get("labels", {})
            if labels.get(VM_ID_LABEL) != vm["id"]:
                continue
            key = (name, vm["id"])
            labelled[key] = self._labelled.get(key, now)
            begun = max(labelled[key], self._secrets.get(secret, now))
            if secret in secrets and now - begun > REVOKED_WITHIN and secret not in self.late:
                yield f"{secret} of {name} is valid {now - begun} after its Node was labelled"
        self._labelled = labelled

    def check_end(self) -> None:
        """Check that nothing is left but what is no group's."""
        left = {
            one
            for one in self._harness.leftovers()
            if one.removeprefix("Node ") not in self.strangers
        }
        if left:
            raise Violation(f"left: {sorted(left)}")
        missing = self.strangers - {one.removeprefix("Node ") for one in self._harness.leftovers()}
        if missing:
            raise Violation(f"missing, although it is no group's: {sorted(missing)}")

    def foreign_node(self) -> dict[str, Any]:
        """A Node of another machine with labels of a group."""
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "worker-1", "labels": {RESOURCE_NAME_LABEL: "tng-one-00000000"}},
            "spec": {"providerID": "gce://my-gcp-project/us-central1-c/worker-1"},
        }
