"""What must hold at every moment of a run, and at its end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from local.base.http import Request
from local.gce.refusals import Refused
from shared.base.names import (
    MAINTENANCE_LABEL,
    RESOURCE_NAME_LABEL,
    TOKEN_KEY,
    VM_ID_LABEL,
    find_resource_name,
)
from shared.node_groups.node_group import MARK_PREFIX, resource_name
from shared.slices.by_node_group.marks import read_place
from shared.slices.by_node_pool import found_pools
from shared.slices.candidates import REFUSALS
from shared.slices.classes import CLASS_ANNOTATION
from tests.support.class_specs import CLASSES
from tests.support.harness import Harness

REVOKED_WITHIN = timedelta(minutes=5)
"""A token is revoked so long after its VM's Node was labelled, or its group is gone."""
SAID_WITHIN = timedelta(minutes=10)
"""A state that lasts longer is said on the object."""
GRANTED_FOR = timedelta(seconds=10)
"""A grant may come between provision_slice's read of the MIG and the deletion of the slice."""
SECRETS = "/api/v1/namespaces/kube-system/secrets"
NODES = "/api/v1/nodes"
GROUPS = "/apis/tpu.google.com/v1alpha1/tpunodegroups"


Objects = Mapping[str, Mapping[str, Any]]
"""Documents by name."""


class Violation(AssertionError):
    """A rule does not hold."""


class Rules:
    """Checks a run. ``strangers`` are the paths and Nodes that belong to nobody's slice."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        namespace = harness.simulation.admin("GET", "/api/v1/namespaces/kube-system")
        self.cluster = namespace["metadata"]["uid"]
        self.strangers: set[str] = set()
        self.foreign: set[str] = set()
        """The names of the resources of another cluster's slices."""
        self.maintained: set[str] = set()
        """The names of the slices that were complete when maintenance of all of their VMs began, until
        that ends."""
        self.broken = ""
        """The first violation by a call of a step."""
        self._labelled: dict[tuple[str, str], datetime] = {}
        """When a Node was first seen with the id of its VM."""
        self._secrets: dict[str, datetime] = {}
        self.late: set[str] = set()
        """The Secrets whose creation took effect after its client gave up."""
        self._gone: dict[str, datetime] = {}
        """Since when the group of a Secret is gone."""
        self.is_revocation_lost = False
        """Whether a revocation has failed. The last one of a group is tried once."""
        self.are_events_lost = False
        """Whether events have been lost: then only the hourly look at a Ready slice finds a change."""
        self._states: dict[str, tuple[object, datetime]] = {}
        """The true state of each group, and since when it has lasted."""

    def find(self, path: str) -> dict[str, Any] | None:
        """A resource of Compute Engine."""
        try:
            return self._harness.simulation.gce.faults.act_as_user("GET", path)
        except Refused:
            return None

    def is_strangers(self, path: str) -> bool:
        """Whether a resource or Node is nobody's slice's, or another cluster's."""
        name = path.rpartition("/")[2]
        return path in self.strangers or bool(self.foreign & {name, find_resource_name(name)})

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
            self._check_maintained(step, request.method, path)
            self._check_mark(step, request.method, path)
        elif path.startswith(f"{NODES}/"):
            self._check_node(step, request, path)
        elif step == "provision_slice" and request.method == "DELETE" and path.startswith("/apis"):
            self._check_slice(path)
        elif step == "provision_slice" and request.method == "DELETE":
            self._check_pool(path)

    def _check_slice(self, path: str) -> None:
        """No candidate is left that has granted the slice: all of its VMs run for ten seconds. One that
        has refused it is left only when its class remembers that."""
        group = self._harness.simulation.admin("GET", path)
        if group["kind"] != "TPUNodeGroup":
            return
        if self._is_maintained(self.resource_name(group["metadata"]), group["spec"]["nodeCount"]):
            raise Violation(f"provision_slice deletes {path} during maintenance")
        if group.get("status", {}).get("completedAt"):
            return
        resource, now = self.resource_name(group["metadata"]), self._harness.clock.now()
        paths = self._harness.simulation.gce.state()["instances"]
        vms = [vm for one in paths if f"/{resource}-" in one and (vm := self.find(one))]
        old = [vm for vm in vms if now - _find_start(vm, now) > GRANTED_FOR]
        if len(old) == group["spec"]["nodeCount"]:
            raise Violation(f"provision_slice deletes {path}, whose {len(old)} VMs run")
        conditions = {one["type"]: one for one in group.get("status", {}).get("conditions", ())}
        name = group["metadata"].get("annotations", {}).get(CLASS_ANNOTATION)
        if vms or name is None or conditions.get("Ready", {}).get("reason") not in REFUSALS:
            return
        self._check_is_recorded(path, name, read_place(group["spec"]).key)

    def _check_pool(self, path: str) -> None:
        """The same for a node pool, which GKE grants whole."""
        pool = self._harness.gke.find_pool(path.rpartition("/")[2])
        name = pool.content["config"]["labels"].get(CLASS_ANNOTATION) if pool is not None else None
        if pool is None or name is None:
            return
        if pool.status == "RUNNING":
            raise Violation(f"provision_slice deletes {path}, which runs")
        if pool.failure is not None and "STOCKOUT" in pool.failure.message:
            self._check_is_recorded(path, name, found_pools.read_place(pool.content).key)

    def _check_is_recorded(self, path: str, name: str, candidate: str) -> None:
        status = self._harness.simulation.admin("GET", f"{CLASSES}/{name}").get("status", {})
        if candidate not in {one["candidate"] for one in status.get("refusals", ())}:
            raise Violation(f"provision_slice deletes {path}, and no refusal is recorded")

    def begin_maintenance(self, group: Mapping[str, Any]) -> None:
        """Maintenance of all VMs of a group's slice begins. Spot VMs are not restarted after it."""
        resource = self.resource_name(group["metadata"])
        states = self._find_states(resource)
        is_whole = states == ["RUNNING"] * group["spec"]["nodeCount"]
        is_spot = group["spec"]["instanceConfig"].get("provisioningModel") == "SPOT"
        if is_whole and not is_spot and group.get("status", {}).get("completedAt"):
            self.maintained.add(resource)

    def _find_states(self, resource: str) -> list[str]:
        found = self._harness.simulation.gce.state()["instances"].items()
        names = ((path.rpartition("/")[2], state) for path, state in found)
        return [state for name, state in names if find_resource_name(name) == resource]

    def _is_maintained(self, resource: str, size: int) -> bool:
        """Whether nothing but maintenance stops the VMs of a slice."""
        states = self._find_states(resource)
        is_restarting = len(states) == size and not {"STOPPING", "TERMINATED"} & {*states}
        return resource in self.maintained and is_restarting

    def _check_maintained(self, step: str, method: str, path: str) -> None:
        """Nothing deletes, resizes or recreates VMs of a slice whose group is not being deleted, while
        Compute Engine restarts them."""
        name, _, verb = path.partition("/instanceGroupManagers/")[2].partition("/")
        is_read = verb.startswith("list")
        for group in self.items(GROUPS) if name in self.maintained and not is_read else ():
            meta, size = group["metadata"], group["spec"]["nodeCount"]
            is_it = self.resource_name(meta) == name and "deletionTimestamp" not in meta
            if is_it and self._is_maintained(name, size):
                raise Violation(f"{step} changes {path} during maintenance: {method}")

    def find_wrong_maintenance(self) -> str:
        """Where conditions or labels of Nodes differ from the maintenance that VMs have; empty if all
        are right."""
        paths = self._harness.simulation.gce.state()["instances"]
        vms = [vm for one in paths if not self.is_strangers(one) and (vm := self.find(one))]
        announced = {vm["name"]: "upcomingMaintenance" in vm["resourceStatus"] for vm in vms}
        wrong = []
        for group in self.items(GROUPS):
            name = self.resource_name(group["metadata"])
            is_due = any(announced[vm] for vm in announced if find_resource_name(vm) == name)
            conditions = group.get("status", {}).get("conditions", ())
            if is_due != any(one["type"] == "MaintenanceScheduled" for one in conditions):
                wrong.append(group["metadata"]["name"])
        for node in self.items(NODES):
            name = node["metadata"]["name"]
            has_label = MAINTENANCE_LABEL in node["metadata"].get("labels", {})
            if name in announced and has_label != announced[name]:
                wrong.append(f"Node {name}")
        return ", ".join(wrong)

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
        if self.is_strangers(resource) or not mark.startswith(MARK_PREFIX):
            raise Violation(f"{step} changes what is no group's: {method} {path} ({mark!r})")

    def _check_node(self, step: str, request: Request, path: str) -> None:
        name, method = path.split("/")[4], request.method
        node = self._harness.simulation.admin("GET", f"{NODES}/{name}")
        if node["kind"] != "Node":
            return
        if name in self.strangers:
            raise Violation(f"{step} changes Node {name}, which is no group's: {method}")
        ready = ready_of(node)
        if method != "DELETE" or ready == "Unknown":
            return
        uid = json.loads(request.body or b"{}").get("preconditions", {}).get("uid")
        if uid not in (None, node["metadata"]["uid"]):
            return  # the API server refuses to delete another Node than the one that was read
        vms = self._harness.simulation.gce.state()["instances"]
        found = [vm for vm in map(self.find, vms) if vm is not None and vm["name"] == name]
        if any(not self._is_predecessors(node, vm) for vm in found):
            raise Violation(
                f"{step} deletes Node {name} of a VM that is {found[0]['status']}; "
                f"its Ready is {ready!r}"
            )

    def _is_predecessors(self, node: dict[str, Any], vm: dict[str, Any]) -> bool:
        """Whether a Node is older than the VM of its name. Labels do not say it: people edit them."""
        clocks = self._harness.simulation.options.clocks
        registered = datetime.fromisoformat(node["metadata"]["creationTimestamp"])
        created = datetime.fromisoformat(vm["creationTimestamp"])
        skew = timedelta(seconds=clocks.api_server_s - clocks.compute_engine_s)
        return registered - skew + timedelta(seconds=1) < created

    def check_state(self) -> None:
        """Check what exists now, and what calls have done."""
        if self.broken:
            raise Violation(self.broken)
        for problem in self._problems():
            raise Violation(problem)

    def _problems(self) -> Iterator[str]:
        state = self._harness.simulation.gce.state()
        found = state["instances"].items()
        vms = {path: status for path, status in found if not self.is_strangers(path)}
        nodes = {one["metadata"]["name"]: one for one in self.items(NODES)}
        groups = self.items(GROUPS)
        yield from self._count(vms)
        yield from self._check_tokens(vms, nodes, groups)
        yield from self._check_status(vms, nodes, groups)

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
            if mig is None:
                continue
            # A VM may be created before its predecessor is gone; people may resize a MIG.
            actions = mig["currentActions"]
            most = mig["targetSize"] + (actions["recreating"] > 0) + actions["deleting"]
            if counts[name] > most:
                yield f"{counts[name]} VMs of {name}, whose size is {mig['targetSize']}"

    def _check_tokens(
        self, vms: dict[str, str], nodes: Objects, groups: list[dict[str, Any]]
    ) -> Iterator[str]:
        now = self._harness.clock.now()
        found = {one["metadata"]["name"]: one["metadata"] for one in self.items(SECRETS)}
        secrets = found.keys() - self.late
        self._secrets = {name: self._secrets.get(name, now) for name in secrets}
        names = {self.resource_name(one["metadata"]) for one in groups}
        yield from self._check_tokens_of_gone({name: found[name] for name in secrets}, names)
        owners: dict[str, str] = {}
        labelled: dict[tuple[str, str], datetime] = {}
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
            if secret in secrets and now - begun > REVOKED_WITHIN:
                yield f"{secret} of {name} is valid {now - begun} after its Node was labelled"
        self._labelled = labelled

    def _check_tokens_of_gone(self, secrets: Objects, names: set[str]) -> Iterator[str]:
        """``names``: of the resources of all groups, also of those whose label somebody has removed."""
        now = self._harness.clock.now()
        gone = {
            name
            for name, meta in secrets.items()
            if meta.get("labels", {}).get(RESOURCE_NAME_LABEL) not in names
        }
        self._gone = {name: self._gone.get(name, now) for name in gone}
        for name, since in self._gone.items():
            if now - since > REVOKED_WITHIN and not self.is_revocation_lost:
                yield f"{name} is valid {now - since} after its group was gone"

    def resource_names(self) -> set[str]:
        """Those of all groups, also those whose label somebody has removed."""
        return {self.resource_name(one["metadata"]) for one in self.items(GROUPS)}

    def resource_name(self, meta: Mapping[str, Any]) -> str:
        """The name of a group's resources."""
        return resource_name(self.cluster, meta["name"], meta["uid"])

    def note_secret(self, secret: dict[str, Any], *, is_late: bool) -> None:
        """A Secret was created: late, if its client has given up or its group is gone."""
        labels = secret["metadata"].get("labels", {})
        if is_late or labels.get(RESOURCE_NAME_LABEL) not in self.resource_names():
            self.late.add(secret["metadata"].get("name", ""))

    def begin_state(self) -> None:
        """The ten minutes begin now: somebody has edited a status, or a message of the sweep is lost."""
        self._states.clear()

    def _check_status(
        self, vms: dict[str, str], found: Objects, groups: list[dict[str, Any]]
    ) -> Iterator[str]:
        now, states = self._harness.clock.now(), dict[str, tuple[object, datetime]]()
        nodes = {name: ready_of(node) for name, node in found.items()}
        for group in groups:
            meta, status = group["metadata"], group.get("status", {})
            resource = self.resource_name(meta)
            names = {path.rpartition("/")[2]: state for path, state in vms.items()}
            own = {name: it for name, it in names.items() if find_resource_name(name) == resource}
            working = [name for name in own if own[name] == "RUNNING" and nodes.get(name) == "True"]
            state = (meta["uid"], meta.get("deletionTimestamp"), own, working)
            known, since = self._states.get(meta["name"], (None, now))
            since = since if known == state else now
            states[meta["name"]] = (state, since)
            if now - since <= SAID_WITHIN:
                continue
            is_deleting = "deletionTimestamp" in meta
            is_whole = len(working) == group["spec"]["nodeCount"] and not is_deleting
            problem = _find_unsaid(status, is_whole=is_whole, misses=set(own) - set(working))
            if problem and not (self.are_events_lost and _is_ready(status)):
                yield f"{meta['name']}: {problem} {now - since} after {state}: {status}"
        self._states = states

    def check_end(self) -> None:
        """Check that nothing is left but what is no group's."""
        left = {
            one
            for one in self._harness.leftovers()
            if not self.is_strangers(one.removeprefix("Node "))
        }
        if left:
            raise Violation(f"left: {sorted(left)}")
        missing = self.strangers - {one.removeprefix("Node ") for one in self._harness.leftovers()}
        if missing:
            raise Violation(f"missing, although it is no group's: {sorted(missing)}")

    def foreign_node(self, resource: str) -> dict[str, Any]:
        """A Node of another machine with the label of a group."""
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "worker-1", "labels": {RESOURCE_NAME_LABEL: resource}},
            "spec": {"providerID": "gce://my-gcp-project/us-central1-c/worker-1"},
        }


def _find_start(vm: dict[str, Any], now: datetime) -> datetime:
    """Since when a VM runs; now if it does not."""
    text = vm.get("lastStartTimestamp", "")
    return datetime.fromisoformat(text) if vm["status"] == "RUNNING" and text else now


def ready_of(node: Mapping[str, Any]) -> str:
    """The status of a Node's condition Ready; empty without one."""
    conditions = node.get("status", {}).get("conditions", [])
    return next((str(one["status"]) for one in conditions if one["type"] == "Ready"), "")


def _is_ready(status: dict[str, Any]) -> bool:
    conditions = status.get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _find_unsaid(status: dict[str, Any], *, is_whole: bool, misses: set[str]) -> str:
    """What the status does not say about a state that lasts; empty if it says all."""
    conditions = status.get("conditions", [])
    ready = next((one for one in conditions if one["type"] == "Ready"), None)
    if ready is None or not ready.get("reason") or not ready.get("message"):
        return "nothing is said"
    if _is_ready(status) and not is_whole:
        return "Ready is True"
    if is_whole and not _is_ready(status):
        return f"Ready is {ready['status']}"
    joined = next((one for one in conditions if one["type"] == "NodesJoined"), None)
    said = {one["name"] for one in status.get("pending", [])}
    if joined is not None and misses - said and joined["status"] == "True":
        return f"{sorted(misses - said)} not named"
    return ""
