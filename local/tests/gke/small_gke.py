"""A simulated GKE on a virtual clock, called without a client library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from typing import Any

from local.base.clock import VirtualClock
from local.base.http import Request
from local.gce import Principal
from local.gke import Cluster, PoolNode, Simulator, Timings

PROJECT, NUMBER = "my-project", "123456789012"
LOCATION, CLUSTER, ZONE = "us-east5", "my-cluster", "us-east5-a"
POOLS = f"projects/{PROJECT}/locations/{LOCATION}/clusters/{CLUSTER}/nodePools"
NAME = "my-jobset-759730a97e4373f3"
POOL = f"{POOLS}/{NAME}"

Document = dict[str, Any]


class RecordingNodes:
    """A cluster that records its Nodes."""

    def __init__(self) -> None:
        self.there: dict[str, PoolNode] = {}

    def add(self, node: PoolNode) -> None:
        assert node.name not in self.there
        self.there[node.name] = node

    def remove(self, name: str) -> None:
        del self.there[name]

    def relabel(self, name: str, changes: Mapping[str, str | None]) -> None:
        self.there[name] = self.there[name].relabelled(changes)


def pool_body(machine_type: str = "ct6e-standard-4t", **fields: Any) -> Document:
    """Build the body of a pool's creation: a slice of two hosts."""
    return {
        "name": NAME,
        "initialNodeCount": 2,
        "locations": [ZONE],
        "placementPolicy": {"type": "COMPACT", "tpuTopology": "2x4"},
        **fields,
        "config": {"machineType": machine_type, **fields.get("config", {})},
    }


class Gke:
    """A simulator with its clock, log and Nodes, and methods to call it."""

    def __init__(
        self,
        timings: Timings | None = None,
        principals: Mapping[str, Principal] | None = None,
        location: str = LOCATION,
        release_channel: str = "",
    ) -> None:
        self.clock = VirtualClock()
        self.log: list[Document] = []
        self.nodes = RecordingNodes()
        self.simulator = Simulator(
            self.clock,
            clusters=[Cluster(PROJECT, NUMBER, location, CLUSTER, release_channel)],
            random=Random(7),
            nodes=self.nodes,
            on_log_entry=self.log.append,
            timings=timings or Timings(),
            principals=principals or {},
        )
        self.faults = self.simulator.faults

    def send(
        self, method: str, path: str, body: Any = None, token: str = "", version: str = "v1"
    ) -> tuple[int, Document]:
        """Send a request without a client library; return status and answer."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        raw = body if isinstance(body, bytes) else json.dumps(body).encode() if body else b""
        request = Request.of(method, f"/{version}/{path}", headers=headers, body=raw)
        response = self.simulator.handle(request)
        return response.status, response.json()

    def get(self, path: str = POOL) -> Document:
        """Return a resource that must exist."""
        status, document = self.send("GET", path)
        assert status == 200, document
        return document

    def create(self, **fields: Any) -> Document:
        """Create a pool, which must be accepted; return the operation."""
        return self.change("POST", POOLS, {"nodePool": pool_body(**fields)})

    def change(self, method: str, path: str = POOL, body: Any = None) -> Document:
        """Send a change that must be accepted; return its operation at the start."""
        status, document = self.send(method, path, body)
        assert status == 200, document
        return document

    def settle(self, operation: Document) -> Document:
        """Wait until an operation is DONE, and return it."""
        path = f"projects/{PROJECT}/locations/{operation['zone']}/operations/{operation['name']}"
        assert self.clock.run_until(lambda: self.get(path)["status"] == "DONE", 3600)
        return self.get(path)

    def refusal(self, method: str, path: str = POOL, body: Any = None, token: str = "") -> str:
        """Send a request that must fail; return its error in short: status, reason and message."""
        status, document = self.send(method, path, body, token)
        assert status >= 400, document
        error = document["error"]
        assert error["code"] == status
        assert error["message"] == error["errors"][0]["message"]
        return f"{status} {error['status']} {error['errors'][0]['reason']} {error['message']}"

    def entries(self) -> list[str]:
        """Describe the audit log so far: ``CreateNodePool first``."""
        return [_describe(entry) for entry in self.log]


def _describe(entry: Document) -> str:
    operation = entry.get("operation", {})
    position = [word for word in ("first", "last") if operation.get(word)]
    code = entry["protoPayload"].get("status", {}).get("code")
    method = entry["protoPayload"]["methodName"].rpartition(".")[2]
    return " ".join([method, *position, *([f"({code})"] if code else [])])
